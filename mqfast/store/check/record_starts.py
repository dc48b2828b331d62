"""Check that a record begins at a physical offset of an open store. ``reader/starts.py`` does the same for readers.

The bytes at an offset prove nothing: a body may hold bytes that look like a record of that offset. A record begins
where a queue unit points, where a log file begins, and behind another record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqfast.errors import OffsetError, StoreNotFound
from mqfast.store.queues.consume_queue import ConsumeQueue
from mqfast.store.reader.scan import LogWalk, PreadFile

if TYPE_CHECKING:
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.queues.queue_store import QueueStore
    from mqfast.store.record.record import StoredMessage

__all__ = ["check_start"]


def check_start(os_api: OsApi, log: CommitLog, queues: QueueStore, message: StoredMessage) -> StoredMessage:
    """Return the message if a record begins at its offset.

    The unit with the message's queue offset is checked first. Without that unit (rolled back, not dispatched yet, moved
    by a damaged queue) the records are walked by their lengths from the start of the file or from the dispatched
    offset.
    Raises: OffsetError, StorageError.
    """
    physical = message.physical_offset
    queue = queues.get(message.topic, message.queue_id)
    claimed = message.record_queue_offset
    if isinstance(queue, ConsumeQueue) and queue.min_offset <= claimed < queue.max_offset:
        place, size, _ = queue.unit(claimed)
        if (place, size) == (physical, message.size):
            return message
    file = log.find_file(physical)
    if file is not None and physical > file.start_offset:
        dispatched = log.dispatched
        start = dispatched if file.start_offset < dispatched <= physical else file.start_offset
        try:
            walk = LogWalk(PreadFile(os_api, file.path, file.start_offset), start, False, block_bytes=1 << 14)
        except StoreNotFound:
            raise OffsetError(f"physical offset {physical}: retention has just removed {file.path}") from None
        walk.hop(physical)
        if walk.at != physical:
            raise OffsetError(
                f"physical offset {physical}: expected the beginning of a record, found a place within one, or behind "
                f"damage ({file.path}, byte {walk.at - file.start_offset})"
            )
    return message
