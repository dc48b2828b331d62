"""The memory that benchmarks ask for beforehand (bench/host_memory.py): no more than there is, nothing left changed.

Room: tests.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


def _machine(root: Path, group: str, files: dict[str, str]) -> tuple[Path, Path]:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:    4096 kB\n")
    (root / "proc" / "self" / "cgroup").write_text(group)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/\n", {}, 4 << 20),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "5\n"}, 4 << 20),
        ("0::/a/b\n", {"a/memory.max": "3000000\n", "a/memory.current": "1000000\n"}, 2_000_000),
        ("0::/as/the/host/sees/it\n", {"memory.max": "3000000\n", "memory.current": "2999999\n"}, 1),
        ("0::/\n", {"memory.max": "3000000\n", "memory.current": "4000000\n"}, 0),
        (
            "5:cpu,memory:/x\n0::/\n",
            {"memory/x/memory.limit_in_bytes": "900000\n", "memory/x/memory.usage_in_bytes": "100000\n"},
            800_000,
        ),
    ],
)
def test_no_more_than_may_be_had(
    host_memory: ModuleType, tmp_path: Path, group: str, files: dict[str, str], expected: int
) -> None:
    """A container's limit counts: who is beyond it is killed, benchmark and all."""
    assert host_memory.available_bytes(*_machine(tmp_path, group, files)) == expected


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ("", 12 << 20),
        ("MemFree: 1024 kB\n", 12 << 20),
        ("MemFree: 15360 kB\n", 14 << 20),
        ("MemFree: 99999 kB\n", 15 << 20),
    ],
)
def test_nearly_all_that_is_free_is_touched(
    host_memory: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: str, expected: int
) -> None:
    """Pages that were left out are what a long run meets in the middle; what files have needs no touch."""
    monkeypatch.setattr(host_memory, "_RESERVE_BYTES", 1 << 20)
    machine = _machine(tmp_path, "0::/\n", {})
    (tmp_path / "proc" / "meminfo").write_text(f"{free}MemAvailable: 16384 kB\n")
    assert host_memory.touchable_bytes(*machine) == expected


def test_a_machine_without_readable_values(host_memory: ModuleType, tmp_path: Path) -> None:
    assert host_memory.available_bytes(tmp_path, tmp_path) == host_memory.touchable_bytes(tmp_path, tmp_path) == 0


def test_the_setting_is_put_back(host_memory: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "page_reporting_order"
    monkeypatch.setattr(host_memory, "_REPORTING_ORDER", setting)
    with host_memory.kept(1 << 20) as told:
        assert "the host" not in told
    assert not setting.exists()
    setting.write_text("9\n")

    def run() -> None:
        with host_memory.kept(1 << 20) as told:
            assert "off meanwhile" in told
            assert setting.read_text() != "9\n"
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run()
    assert setting.read_text() == "9\n"
