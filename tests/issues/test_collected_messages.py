"""A message that the garbage collector finds in a cycle, for instance in the traceback of an exception, took the
process down: its hold on the log file was cleared before it was given back.
Found by ``python -m tests.damage`` (seed 1080).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, sys
import mqfast

with mqfast.open(sys.argv[1], mapped_file_bytes_commit_log=4096, mapped_file_bytes_consume_queue=200) as store:
    for i in range(50):
        store.put("T", b"x" * 100)
    for kind in ("message", "result", "reader"):
        if kind == "reader":
            with mqfast.StoreReader(sys.argv[1]) as reader:
                held = [reader, reader.scan()]
                next(held[1])
        else:
            found = store.get("T", 0, 0)
            held = [store.get_by_offset(0), found[1]] if kind == "message" else [found]
        held.append(held)
        del held
        if kind != "reader":
            del found
        gc.collect()
    assert [bytes(message.body) for message in store.get("T", 0, 0, 2)] == [b"x" * 100] * 2
held = [store]
held.append(held)
del held, store
gc.collect()
print("alive")
"""


def test_messages_in_a_cycle_are_collected(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr[-2000:]
