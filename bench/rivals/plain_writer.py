"""A process that appends BYTES a second to FILE and syncs them every 500 ms, until its input ends.

    plain_writer.py FILE BYTES

It stands beside the hot-memory loop of the comparison; it must never do more than a log of that rate needs: sequential
writes into the page cache, in pieces of a millisecond, and fdatasync from a second thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time

_TURN_S = 0.001
_SYNC_S = 0.5


def main(path: str, rate: int) -> None:
    """Write until the input ends."""
    if hasattr(os, "sched_setaffinity"):
        kept = os.sched_getaffinity(0)
        if len(kept) == 1 and (others := set(range(os.cpu_count() or 1)) - kept):
            os.sched_setaffinity(0, others)  # that one is for the loop that started it
    ended = threading.Event()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def sync() -> None:
        while not ended.wait(_SYNC_S):
            os.fdatasync(file)

    def listen() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threads = [threading.Thread(target=sync), threading.Thread(target=listen)]
    for thread in threads:
        thread.start()
    begin, written, piece = time.monotonic(), 0, memoryview(bytearray(4 << 20))
    while not ended.wait(_TURN_S):
        due = int((time.monotonic() - begin) * rate) - written
        while due > 0:
            done = os.write(file, piece[: min(due, len(piece))])
            written += done
            due -= done
    for thread in threads:
        thread.join()
    os.close(file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
