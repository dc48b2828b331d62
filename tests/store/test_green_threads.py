"""A store under gevent and eventlet, whose patches stand in the place of threading: its threads are the system's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
how, path = sys.argv[1:]
if how.startswith("late"):
    import mqfast
if "gevent" in how:
    import gevent.monkey
    gevent.monkey.patch_all()
    import gevent
    spawn, wait_all, nap = gevent.spawn, gevent.joinall, gevent.sleep
else:
    import eventlet
    eventlet.monkey_patch()
    spawn, nap = eventlet.spawn, eventlet.sleep
    wait_all = lambda all: [one.wait() for one in all]
import mqfast, logging, time
logging.basicConfig(level=logging.DEBUG)
SETTINGS = dict(mapped_file_bytes_commit_log=256 << 10, max_hash_slot_num=64, max_index_num=400)
for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
    store = mqfast.open(path + flush, flush_disk_type=flush, **SETTINGS)
    def work(number):
        for i in range(100):
            store.put(f"T{number}", b"x" * 200, keys=f"k{i}")
            if i % 10 == 0:
                nap(0)
            assert len(store.get(f"T{number}", 0, i)) == 1
    wait_all([spawn(work, number) for number in range(8)])
    assert store.flush(30)
    done = []
    store.put_nowait("T0", b"y").add_done_callback(done.append)
    deadline = time.monotonic() + 30
    while not done and time.monotonic() < deadline:
        nap(0.01)
    assert done and len(store.query("T1", "k7")) == 1
    assert store.stats()["service_errors"] == {}
    store.close()
    with mqfast.open(path + flush, **SETTINGS) as store:
        assert store.recovery.clean
        assert [store.max_offset(f"T{n}", 0) for n in range(8)] == [101] + [100] * 7
kept = mqfast.open(path + "kept", **SETTINGS)   # closed at the end of the interpreter
kept.put("T", b"x")
print("fine")
"""


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
@pytest.mark.parametrize("order", ["early", "late"])
def test_a_store_under_patched_threads(tmp_path: Path, library: str, order: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, f"{order} {library}", str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"
    assert not (tmp_path / "skept" / "abort").exists()
