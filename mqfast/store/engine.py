"""Engine: the interface of the store for the broker, replication and Spark (RocketMQ: MessageStore).
``MessageStore.engine`` is the engine of an open store.

The engine has no state except parts that are created on demand, and does no per-message work: both belong to Core and
to the other rooms. A method that is called for each message is a function of its room, which takes the Core as its
first argument. The method is an assignment here, so that a call costs no Python frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mqfast.errors import OffsetError
from mqfast.store.base.disk_use import DiskUse, disk_use
from mqfast.store.base.results import LogFlag
from mqfast.store.core import Core
from mqfast.store.dispatch.arrival import Arrivals
from mqfast.store.get.get_message import QueueUnit
from mqfast.store.get.get_records import GetLimits, GetMessageResult, get_records, record_at, unit_at
from mqfast.store.put import encoded as _encoded
from mqfast.store.record.filter import TagCodes, TagFilter, UnitFilter

if TYPE_CHECKING:
    from mqfast.errors import MqfastError
    from mqfast.store.log.watermarks import FlushWatch
    from mqfast.store.raw_log import RawLog

__all__ = [
    "DiskUse", "Engine", "GetLimits", "GetMessageResult", "QueueUnit", "TagCodes", "TagFilter",
    "UnitFilter",
]  # fmt: skip


class Engine(Core):
    """The interface of an open store for the broker, replication and Spark.

    Attributes: ``raw``: the log as bytes, for replication.
    Thread: every method may be called from any thread.
    """

    raw: RawLog
    _arrivals: Arrivals | None = None
    followers: Any = None  # used by store/follow.py only

    # --- arrival ---

    def arrivals(self) -> Arrivals:
        """Return the store's Arrivals, which report new messages of watched queues. The first call creates them.

        An event loop watches ``arrivals().fileno()`` and calls ``take()``; a thread calls ``wait()``.
        Raises: StoreClosed.
        """
        with self.dispatcher.locked():
            arrivals = self._arrivals
            if arrivals is None or arrivals.closed:
                self.log.check_state()
                arrivals = self._arrivals = Arrivals(self.log, self.dispatcher, self.queues)
            return arrivals

    @property
    def has_arrivals(self) -> bool:
        """True if a broker or a consumer watches this open store for messages."""
        return self._arrivals is not None and not self._arrivals.closed

    def end_arrivals(self) -> None:
        """Wake all waiters for messages: the store closes."""
        if self._arrivals is not None:
            self._arrivals.cancel_all()
        if self.followers is not None:
            self.followers.wake_all()

    # --- put ---

    put_encoded = _encoded.put_encoded
    put_batch_encoded = _encoded.put_batch_encoded
    put_stored = _encoded.put_stored

    # --- durability ---

    def watch_flushed(self, callback: Callable[[int, MqfastError | None], object]) -> FlushWatch:
        """Create a watch of the durable position. ``want(end_offset)`` requests that a physical offset becomes durable.
        The
        flush thread then calls ``callback(flushed, error)`` once for each sync, until the offset is covered.

        10,000 waiting requests need one watch and a heap of their end offsets: one callback a sync completes all
        covered requests. Thread: any. The callback runs in the flush thread and must not block.
        """
        return self.waiters.watch(callback)

    # --- get ---

    get_records = get_records
    unit_at = unit_at
    record_at = record_at

    # --- admin questions ---

    def earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Find the store time of the first message of a queue, or of the log where no topic is given, ms; -1: none.

        Source: DefaultMessageStore.getEarliestMessageTime.
        """
        if topic is not None:
            return self.message_store_time(topic, queue_id, self._first_of(topic, queue_id))
        first = self.log.min_offset
        return -1 if first < 0 or first >= self.log.readable else self.log.first_store_timestamp(first)

    def _first_of(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get(topic, queue_id)
        return -1 if queue is None else max(0, queue.min_offset)

    def message_store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Find the store time of the message at a queue offset, ms; -1 where there is none.

        Raises: CorruptFile when the unit does not point at a record.
        Source: DefaultMessageStore.getMessageStoreTimeStamp.
        """
        try:
            unit = self.unit_at(topic, queue_id, offset)
            return self.log.message(unit.physical_offset).store_timestamp
        except OffsetError:
            return -1

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that readers may see and that are not yet in queues and index.

        Source: DefaultMessageStore.dispatchBehindBytes.
        """
        return max(0, self.log.readable - self.log.dispatched)

    @property
    def is_page_cache_busy(self) -> bool:
        """True if one append has held the put lock for longer than ``os_page_cache_busy_timeout_ms``.

        Source: DefaultMessageStore.isOSPageCacheBusy.
        """
        return self.log.lock_held_ms > self.config.os_page_cache_busy_timeout_ms

    @property
    def is_disk_full(self) -> bool:
        """True if the store refuses puts because disk use is above its watermark. Source: RunningFlags.isDiskFull."""
        return bool(self.log.flags & LogFlag.REFUSING)

    def disk_use(self) -> DiskUse:
        """Return the use of the fullest filesystem that holds files of the store. Raises: StorageError."""
        return disk_use(self.log.os_api, self.queues.paths)

    def is_on_disk(self, topic: str, queue_id: int, offset: int, limits: GetLimits | None = None) -> bool:
        """Return True if the message at a queue offset is so far behind the end of the log that it counts as on disk.

        False if there is no such message. Source: DefaultMessageStore.checkInDiskByConsumeOffset.
        """
        try:
            unit = self.unit_at(topic, queue_id, offset)
        except OffsetError:
            return False
        return self.log.committed - unit.physical_offset > (limits or GetLimits()).in_memory_bytes
