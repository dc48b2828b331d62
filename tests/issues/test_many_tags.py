"""Tags that are all different, as order numbers are, cost no memory that grows with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, mqfast
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
with mqfast.open(sys.argv[1], mapped_file_bytes_commit_log=1 << 20) as store:
    for number in range(6000):
        store.put("T", b"", tags=f"a{number}")
    before, mapped = resident(), store.stats()["mapped_files"]
    for number in range(100_000):
        store.put("T", b"", tags=f"b{number}")
    store.flush()
    print(resident() - before)
"""


def test_a_hundred_thousand_tags(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    # Pages of mapped files count as well: the log, its next files and the queue, some 14 MiB.
    assert int(done.stdout) < 40 << 20
