"""Publication order of a record: a reader that sees the size word (another process) or the end (this process) sees the
whole record.

The bodies are large, so that a copy is under way for most of the time. Written for a reordering that no test detected
(``tests/mutation``).
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import mqfast

FILE_BYTES = 32 << 20
BODY = b"\xa5" * (1 << 20)
ROUNDS = 3
COUNT = 28  # in one log file

WATCH = """
    import mmap, pathlib, struct, sys

    path, size, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print("ready", flush=True)
    for number in range(count):
        at = number * size
        last = at + size - 4  # of the body: behind it are the topic and the length of the properties
        while view[at : at + 4] == bytes(4):
            pass
        seen = view[last - 8 : last]
        if view[at : at + 4] != struct.pack(">i", size) or seen != b"\\xa5" * 8:
            sys.exit(f"record {number}: size {view[at:at + 4]!r}, the end of its body {seen!r}")
    """


def test_another_process_sees_the_whole_record_with_its_size_word(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        path = tmp_path / f"store{number}"
        with mqfast.open(path, mappedFileSizeCommitLog=FILE_BYTES, messageIndexEnable=False) as probe:
            size = probe.put("T", BODY).size
        log = path / "commitlog" / ("0" * 20)
        with mqfast.open(path, messageIndexEnable=False) as store:
            watcher = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(WATCH), str(log), str(size), str(COUNT)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "ready\n"
            for _ in range(COUNT - 1):
                store.put("T", BODY)
            _, errors = watcher.communicate(timeout=300)
            assert watcher.returncode == 0, errors


def test_a_reader_sees_the_whole_record_with_the_written_position(tmp_path: Path) -> None:
    looks: list[int] = []
    wrong: list[str] = []
    done = threading.Event()
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=FILE_BYTES, messageIndexEnable=False) as store:
        first = store.put("T", BODY)

        def watch() -> None:
            seen = store.log.readable
            while not done.is_set():
                end = store.log.readable
                if end != seen:
                    seen = end
                    looks.append(end)
                    tail = store.log.read(end - 12, 8)
                    if end % FILE_BYTES and tail != BODY[:8]:
                        wrong.append(f"end {end}: {tail!r}")

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(ROUNDS):
                store.put_many("T", [BODY] * COUNT)  # without the GIL
        finally:
            done.set()
            watcher.join()
        assert store.max_physical_offset > first.size * COUNT
    assert looks
    assert not wrong, wrong[:3]
