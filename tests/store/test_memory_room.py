"""A tmpfs that has more room than the control group has memory: DiskFull, and no process that the kernel ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqfast.errors import DiskFull
from mqfast.store.base.memory_room import MemoryRoom, mount_of
from mqfast.store.base.os_api import OsApi

MIB = 1 << 20
PROGRAM = """
import os, sys
from pathlib import Path
import mqfast
with mqfast.open(os.path.join(sys.argv[2], "first")) as store:  # what is loaded at need belongs to no group
    store.get("T", 0, 0)
    mqfast.errors.DiskFull
mqfast.verify(os.path.join(sys.argv[2], "first"))
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
for settings in ({}, {"mappedFileSizeCommitLog": 1 << 20}):
    stored = 0
    place = os.path.join(sys.argv[2], str(len(settings)))
    with mqfast.open(place, **settings) as store:
        try:
            while True:
                store.put("T", bytes(50_000), keys="k")
                stored += 1
        except mqfast.errors.DiskFull as error:
            print(stored, error)
        assert len(store.get("T", 0, 0, 10_000, 1 << 40)) == stored
    with mqfast.open(place) as store:
        assert store.max_offset("T", 0) == stored
    assert mqfast.verify(place).state == "clean"
    for file in sorted(Path(place, "commitlog").iterdir()):
        file.unlink()
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A control group of so many bytes of memory."""
    if os.geteuid() != 0:
        pytest.skip("making a control group needs root")
    with open("/proc/meminfo", encoding="ascii") as file:
        if int(file.read().split("SwapTotal:")[1].split()[0]):
            pytest.skip("this machine swaps: memory has no end that could be told")
    made: list[Path] = []

    def make(limit: int) -> Path:
        for tree, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            place = Path(tree, f"mqfast-test-{os.getpid()}")
            try:
                place.mkdir()
                made.append(place)
                (place / name).write_text(str(limit))
            except OSError:
                continue
            return place
        pytest.skip("no control group of memory can be made here")

    yield make
    for place in made:
        place.rmdir()


def test_a_tmpfs_in_a_small_control_group_is_full_before_the_group_is(
    group: Callable[[int], Path], tmpfs: Callable[[str], Path]
) -> None:
    place, limit = tmpfs("2g"), group(160 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(limit), str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    large, small = done.stdout.splitlines()
    for line in (large, small):
        assert int(line.split()[0]) > 500
        assert "the file system is in memory: wanted" in line
        assert f"in the control group {limit}" in line
        assert "mapped_file_bytes_commit_log asks for less" in line


class Files:
    """A door that has these files and no others."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.real = OsApi()

    def read_file(self, path: str, max_bytes: int = 0) -> bytes:
        if path in self.files:
            return self.files[path].encode()
        return self.real.read_file("/nowhere/" + path)


MOUNTS = "/dev/vda / ext4 rw 0 0\ntmpfs /mnt/a\\040b tmpfs rw 0 0\n"
NEWER = {
    "/proc/self/mounts": MOUNTS,
    "/proc/meminfo": "MemAvailable:  1000000 kB\nSwapTotal:  0 kB\n",
    "/proc/self/cgroup": "0::/a/b\n",
    "/sys/fs/cgroup/a/b/memory.max": "max\n",
    "/sys/fs/cgroup/a/b/memory.current": "5\n",
    "/sys/fs/cgroup/a/memory.max": str(100 * MIB),
    "/sys/fs/cgroup/a/memory.current": str(60 * MIB),
    "/sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {20 * MIB}\nactive_file {10 * MIB}\n",
}


@pytest.mark.parametrize(
    ("change", "directory", "refused"),
    [
        ({}, "/mnt/a b/store", "in the control group /sys/fs/cgroup/a;"),
        ({}, "/home/store", None),
        ({"/sys/fs/cgroup/a/memory.max": "max\n"}, "/mnt/a b/store", None),
        ({"/sys/fs/cgroup/a/memory.max": "max\n", "/proc/meminfo": "MemAvailable: 9 kB\nSwapTotal: 0 kB\n"},
         "/mnt/a b/store", "in this machine;"),
        ({"/proc/meminfo": "MemAvailable: 9 kB\nSwapTotal: 7 kB\n"}, "/mnt/a b/store", None),
        ({"/proc/meminfo": "?"}, "/mnt/a b/store", None),
        ({"/proc/self/mounts": ""}, "/mnt/a b/store", None),
        ({"/proc/self/cgroup": "4:cpu,memory:/x\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(80 * MIB),
          "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(70 * MIB),
          "/sys/fs/cgroup/memory/memory.stat": "total_inactive_file 5\n"}, "/mnt/a b/store",
         "in the control group /sys/fs/cgroup/memory;"),
    ],
)  # fmt: skip
def test_memory_limits_of_the_machine_and_of_control_groups(
    change: dict[str, str], directory: str, refused: str | None
) -> None:
    room = MemoryRoom(Files({**NEWER, **change}), directory)  # type: ignore[arg-type]
    if refused is None:
        room.check(64 * MIB, "f", "setting")
        return
    with pytest.raises(DiskFull, match=refused) as caught:
        room.check(64 * MIB, "f", "setting")
    assert caught.value.wanted_bytes == 64 * MIB
    assert caught.value.setting == "setting"
    assert caught.value.free_bytes is not None


def test_what_fits_is_made(tmp_path: Path) -> None:
    room = MemoryRoom(Files(NEWER), "/mnt/a b")  # type: ignore[arg-type]
    room.check(50 * MIB, "f", "setting")  # 70 MiB are free, page cache that can be given back counted
    assert mount_of(OsApi(), str(tmp_path)) is not None
