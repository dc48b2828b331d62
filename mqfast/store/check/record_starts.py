"""Does a record begin where somebody asked an open store for one?

Room: the store; what ``reader_starts.py`` is for readers. A body may hold what looks like a record of another topic at
just the physical offset that it gets: so this must never take a place for the beginning of a record by what stands
there. A record begins where a unit of a queue points, where a log file begins, and behind a record that begins.
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
    """The message, when a record begins where it lies.

    The unit that it claims tells at once; without one (rolled back, not dispatched yet, moved by a damaged queue) the
    lengths of the records before it do, from the beginning of its file or from where dispatch stands.
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
