"""max_offset counted a message that no reader may see yet: with sync flush its unit may be put before the flush.

Room: tests/issues. Found by tests/linearity: the end of a queue was 71, and then 70. A new consumer that starts "behind
the last message" would have started behind one that a power cut takes back.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import mqfast
from mqfast.store.base.os_api import OsApi

MSYNC = 11  # its place in struct mq_os (csrc/os_api.h)
CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def test_a_message_that_waits_for_its_flush_is_not_counted(tmp_path: Path) -> None:
    os_api = OsApi()
    entered, go_on = threading.Event(), threading.Event()
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    real = CALL(table[MSYNC])

    def slow(os_: int, address: int, count: int) -> int:
        entered.set()
        go_on.wait(30)
        return int(real(os_, address, count))

    callback = CALL(slow)
    settings = {"flushDiskType": "SYNC_FLUSH", "dispatch": "inline", "mappedFileSizeCommitLog": 1 << 20}
    settings |= {"flushIntervalConsumeQueue": 600_000}  # else queues are synced through the same door
    with mqfast.open(tmp_path / "store", os_api=os_api, **settings) as store:
        store.put("T", b"first")
        assert store.max_offset("T", 0) == 1
        table[MSYNC] = ctypes.cast(callback, ctypes.c_void_p).value
        putting = threading.Thread(target=store.put, args=("T", b"second"))
        putting.start()
        try:
            assert entered.wait(30)
            assert store.log.written > store.log.flushed
            found = store.get("T", 0, 0)
            assert (len(found), found.max_offset, found.next_offset) == (1, 1, 1)
            assert store.get("T", 0, 1).status.name == "OFFSET_OVERFLOW_ONE"
            assert store.max_offset("T", 0) == 1
            assert store.queues() == [("T", 0, 0, 1)]
        finally:
            go_on.set()
            putting.join()
        assert store.max_offset("T", 0) == 2
        assert store.queues() == [("T", 0, 0, 2)]
        table[MSYNC] = ctypes.cast(real, ctypes.c_void_p).value
