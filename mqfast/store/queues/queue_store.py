"""QueueStore: all queues of a store: creation, load, recovery, search and removal (RocketMQ: ConsumeQueueStore).

Reads no record body; recovery determines the end of the log. Queues of 20-byte units are ConsumeQueue. Topics with
``queue.type=BatchCQ`` have 46-byte units, whose units Python puts, as those of light message queues.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, DiskFull, MessageIllegal, MqfastError, OffsetError, StoreClosed, UsageError
from mqfast.message import LMQ_PREFIX, check_topic
from mqfast.properties import queue_pairs
from mqfast.store.base import paths as _paths
from mqfast.store.base.mapped_file import mapping_count
from mqfast.store.base.os_api import Mutex, encode_path
from mqfast.store.base.results import BoundaryType
from mqfast.store.queues.batch_queue import BatchConsumeQueue, check_unit, claimed_places
from mqfast.store.queues.by_time import find_by_time
from mqfast.store.queues.consume_queue import ConsumeQueue, QueueTable, scan_ahead
from mqfast.store.queues.placement import is_plausible
from mqfast.store.queues.queue_flush import flush_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqfast.config import StoreConfig
    from mqfast.store.base.mapped_file import Latch
    from mqfast.store.base.os_api import OpenDirectory, OsApi
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.metadata import TopicConfigTable
    from mqfast.store.record.record import StoredMessage

__all__ = ["AnyQueue", "DroppedUnits", "QueueStore"]

_log = logging.getLogger("mqfast.store")

AnyQueue = ConsumeQueue | BatchConsumeQueue

_FILLER_SIZE: Final = 0x7FFFFFFF
# The stream byte in a queue of 20-byte units still fits 63 bits.
_MAX_QUEUE_OFFSET: Final = 2**62 // 20
# From so many queues on, a second thread helps to read them at open: some 10 us of system calls each.
_MANY_QUEUES: Final = 512
# Number of waiting queues that request space at a time: each failed request waits for the journal.
_TRIES: Final = 4


def _scan_ahead(queues: list[ConsumeQueue]) -> None:
    half = len(queues) // 2
    helper = threading.Thread(target=scan_ahead, args=(queues[half:],), name="mqfast-look-ahead", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # no more threads: each queue is read when loaded
        return
    try:
        scan_ahead(queues[:half])
    finally:
        helper.join()


@dataclass
class DroppedUnits:
    """Bytes of the units removed from queues: from queues of 20-byte units, and from batch queues."""

    plain: list[bytes] = field(default_factory=list)
    batch: list[bytes] = field(default_factory=list)


class QueueStore:
    """The queues by (topic, queue id).

    Thread: lookups from any thread; a lock of the store serializes creation and removal.
    """

    def __init__(
        self,
        os_api: OsApi,
        paths: _paths.StorePaths,
        config: StoreConfig,
        topics: TopicConfigTable,
        latch: Latch | None = None,
    ) -> None:
        self._os_api = os_api
        self._latch = latch
        self._paths = paths
        self._config = config
        self._topics = topics
        self._lock = Mutex(nests=True)
        self._tails: dict[ConsumeQueue, None] = {}  # queues whose last file is mapped for writing
        self.table = QueueTable()
        self.batch: dict[tuple[str, int], BatchConsumeQueue] = {}
        self._batch_topics: set[str] = set()
        self._batch_heads: dict[tuple[str, int], ConsumeQueue] = {}
        self._former_heads: list[ConsumeQueue] = []
        self.light = config.enable_lmq and config.enable_multi_dispatch
        # Removed from the table, and not yet from the disk.
        self._gone: list[AnyQueue] = []
        self.skipped = 0
        # Opened before the first unit, to report errors since then.
        self._directory: OpenDirectory | None = None
        self.left_page = False  # true if the last flush left a page to the next flush
        self.many = 64  # from so many queues on, one sync of the filesystem is less work than a sync for each queue
        # queues whose units wait for space, and the queue offset of the first waiting unit
        self._waiting: dict[AnyQueue, int] = {}
        self.arrived: Callable[[AnyQueue], object] | None = None  # called with the queue of each unit that Python puts
        # called with a topic that has a new queue; must not call back
        self.created: Callable[[str], object] | None = None
        # Called with topic, queue id, and physical offset and size of the last record, before a queue is restarted.
        self.on_restart: Callable[[str, int, tuple[int, int] | None], object] | None = None
        self.full: DiskFull | None = None
        """The last DiskFull of a queue."""
        self.held_back = 0
        """Units that Python did not put because the queue waits."""
        # Topic -> end of the last deleted record: records up to there get no unit, whether mqfast or RocketMQ creates
        # the queues.
        self.floors: dict[str, int] = {}
        self.warnings: list[str] = []

    # --- creation and lookup ---

    def is_batch(self, topic: str) -> bool:
        """Return true if the queues of the topic have 46-byte units, by topics.json or by the files."""
        if topic in self._batch_topics:
            return True
        config = self._topics.get(topic)
        return config is not None and config.is_batch_queue

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue that assigns the next queue offset; create a missing queue. Files are created with the first
        unit.
        """
        queue = self.table.get(topic, queue_id)
        if queue is not None and not queue.deleted:
            return queue
        with self._lock:  # waits while a topic is deleted
            if self.is_batch(topic):
                return self._batch_head(topic, queue_id)
            queue = self.table.get(topic, queue_id)
            if queue is not None and queue.deleted:  # the deletion of the topic was interrupted: continue it
                self._retire(queue)
                queue = None
            if queue is None:
                queue = self._make(topic, queue_id)
                self.table.insert(queue)
                self._notify_created(topic)
            return queue

    def _notify_created(self, topic: str) -> None:
        if self.created is not None:
            self.created(topic)

    def _retire(self, queue: ConsumeQueue) -> None:
        if queue not in self._gone:
            self._gone.append(queue)
        self.table.remove(queue.topic, queue.queue_id)

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        if self._gone:
            self._destroy_gone(topic)  # else old files would be taken for those of the new queue
        queue = ConsumeQueue(
            self._os_api,
            self._paths.consume_queue,
            topic,
            queue_id,
            self._config.mapped_file_bytes_consume_queue,
            self._latch,
            self._tails,
        )
        if self.floors:
            queue.floor = self.floors.get(topic, -1)
        return queue

    def _batch_head(self, topic: str, queue_id: int) -> ConsumeQueue:
        head = self._batch_heads.get((topic, queue_id))
        if head is not None and head.deleted:  # as above; the remaining queue is used on
            self._former_heads.append(head)
            head = None
        if head is None:
            head = self._batch_heads[topic, queue_id] = self._make(topic, queue_id)
            head.next_offset = max(0, self._batch_queue(topic, queue_id).max_offset)
            self._notify_created(topic)
        return head

    def _batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        queue = self.batch.get((topic, queue_id))
        if queue is None:
            if self._gone:
                self._destroy_gone(topic)
            size = self._config.mapped_file_bytes_batch_consume_queue
            queue = BatchConsumeQueue(self._os_api, self._paths.batch_consume_queue, topic, queue_id, size)
            self.batch[topic, queue_id] = queue
            self.table.others = len(self.batch)
        return queue

    def get(self, topic: str, queue_id: int) -> AnyQueue | None:
        """Return the queue, or None. Raises: UsageError for an invalid topic or queue id."""
        if not isinstance(topic, str):
            raise UsageError(f"topic: expected str, found {type(topic).__name__}")
        if not isinstance(queue_id, int):
            raise UsageError(f"queue_id: expected int, found {type(queue_id).__name__}")
        return self.table.get(topic, queue_id) or self.batch.get((topic, queue_id))

    def all(self) -> list[AnyQueue]:
        """Return every queue."""
        return [*self.table.all(), *self.batch.values()]

    def _one_by_one(self) -> Iterator[AnyQueue]:
        """Yield every queue, for steps that map files of each: of very many queues only some stay mapped."""
        for queue in self.all():
            yield queue
            if mapping_count() > self._config.max_mapped_files:
                queue.unmap_idle()

    def topics(self) -> list[str]:
        """Return the topics that have a queue."""
        return sorted({queue.topic for queue in self.all()})

    # --- units put by Python: called by the dispatcher ---

    def put_lmq_or_batch(self, message: StoredMessage, tags_code: int) -> bool:
        """Create the missing queue of a record (False: put the unit as usual), or put the unit here (True)."""
        topic = message.topic
        try:
            if check_topic(topic) != message.topic_bytes:
                raise MessageIllegal("topic is not UTF-8")
            base, count = claimed_places(message)
            for name, value, largest in (
                ("queue id", message.queue_id, 2**31 - 1),
                ("queue offset", message.record_queue_offset, _MAX_QUEUE_OFFSET),
                ("first queue offset", base, _MAX_QUEUE_OFFSET),
            ):
                if not 0 <= value <= largest:
                    raise MessageIllegal(f"{name}: expected 0 to {largest}, found {value}")
        except MqfastError as error:
            # Such a name is no directory name, such a number no queue offset; the message stays in the log and can be
            # found by offset and key.
            self.skipped += 1
            if self.skipped == 1:
                self._warn(f"record at physical offset {message.physical_offset} gets no queue: {error}")
            return True
        if self._is_deleted(topic, message):
            return True
        with self._lock:
            if not self.is_batch(topic):
                self.find_or_create(topic, message.queue_id)
                return False
            queue = self._batch_queue(topic, message.queue_id)
        units = message.physical_offset, message.size, tags_code, message.store_timestamp, base, count
        self._put_or_wait(queue, base, lambda: queue.put(*units))
        return True

    # --- a full disk: a queue without room gets no unit until there is room, then all of them, in order ---

    def wait(self, queue: AnyQueue, place: int, error: DiskFull) -> None:
        """Mark the queue as waiting for space from this queue offset on: no units until ``is_room_again``."""
        queue.waits = True
        self._waiting[queue] = place
        self.full = copy.copy(error)  # without the traceback, which would keep files open

    def is_room_again(self) -> bool:
        """Return true if the disk has room for a waiting queue. Then no queue waits any more, and the dispatcher walks
        the log again.

        Raises: StorageError.
        """
        has_room = not self._waiting
        for queue in list(islice(self._waiting, _TRIES)):
            place = self._waiting.pop(queue)
            queue.waits = False
            try:
                queue.make_room(place)
                has_room = True
            except DiskFull as error:
                self.wait(queue, place, error)  # after the others
            except StoreClosed:
                has_room = True  # the queue was deleted with the topic
        if has_room:
            self.wait_no_more()
        return has_room

    def wait_no_more(self) -> None:
        """Clear the list of waiting queues."""
        for queue in self._waiting:
            queue.waits = False
        self._waiting.clear()

    def _put_or_wait(self, queue: AnyQueue, place: int, put: Callable[[], None]) -> None:
        if not queue.waits:
            try:
                put()
            except DiskFull as error:
                self.wait(queue, place, error)
            else:
                if self.arrived is not None:
                    self.arrived(queue)
                return
        self.held_back += 1

    def _is_deleted(self, topic: str, message: StoredMessage) -> bool:
        """Return true if the record was deleted with the topic."""
        return message.physical_offset + message.size <= self.floors.get(topic, -1)

    def put_multi(self, message: StoredMessage, tags_code: int) -> None:
        """Put units into the record's own queue and every queue that INNER_MULTI_DISPATCH names."""
        if not self.put_special_or_plain(message, tags_code):
            return
        topic = message.topic
        if topic.startswith(("%RETRY%", "rmq_sys_")) or topic == "SCHEDULE_TOPIC_XXXX":
            return
        for name, queue_id, text in queue_pairs(message.properties, message.queue_id):
            try:
                check_topic(name)
            except MqfastError:
                continue
            if self._is_deleted(name, message):
                continue
            queue = self.find_or_create(name, queue_id)
            known = text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= _MAX_QUEUE_OFFSET
            self._put_unit(queue, message, tags_code, int(text) if known else queue.max_offset)

    def put_special_or_plain(self, message: StoredMessage, tags_code: int) -> bool:
        """Put the unit of the record's own queue, of any kind; return false when the topic cannot have a unit."""
        before = self.skipped
        if not self.put_lmq_or_batch(message, tags_code) and not self._is_deleted(message.topic, message):
            queue = self.find_or_create(message.topic, message.queue_id)
            self._put_unit(queue, message, tags_code, message.record_queue_offset)
        return self.skipped == before

    def _put_unit(self, queue: ConsumeQueue, message: StoredMessage, tags_code: int, place: int) -> None:
        unit = message.physical_offset, message.size, tags_code, place
        self._put_or_wait(queue, place, lambda: queue.put(*unit))

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)

    # --- load and recovery ---

    def load(self) -> None:
        """Load the queues of the directories. Raises: CorruptFile for a file of another length, with the file name."""
        base = self._paths.consume_queue
        self._directory = self._os_api.open_directory(base if self._os_api.exists(base) else self._paths.root)
        listed = _paths.list_queues(self._os_api, self._paths.consume_queue)
        queues = [self._make(topic, queue_id) for topic, ids in listed.items() for queue_id in ids]
        if len(queues) >= _MANY_QUEUES:
            _scan_ahead(queues)
        for queue in queues:
            queue.load()
            self.table.insert(queue)
        for topic, ids in _paths.list_queues(self._os_api, self._paths.batch_consume_queue).items():
            for queue_id in ids:
                self._batch_queue(topic, queue_id).load()
                self._batch_topics.add(topic)

    def recover(self) -> None:
        """Recover every queue."""
        for queue in self.all():
            queue.recover()

    def largest_end(self) -> int:
        """Return the largest end of a record that has a unit, -1 without units."""
        largest = -1
        for queue in self.all():
            end = queue.max_physical
            if isinstance(queue, BatchConsumeQueue):
                # A batch queue keeps the start of the last record; taken for an end, that record would be indexed again
                # at each open.
                last = queue.find(queue.max_offset - 1)
                end = -1 if last is None else last.physical_offset + last.size
            largest = max(largest, end)
        return largest

    def check_ends(self, log: CommitLog, *, expected: bool = False) -> None:
        """Drop damaged units at the end of queues: units that do not point to a record of that queue.

        A wrong end would reject all later units, or put them in the wrong place.
        Args: expected: a crash may have left such units, and recovery puts them again from the log: no warning.
        """
        min_physical = log.min_offset
        for queue in self._one_by_one():
            if isinstance(queue, ConsumeQueue):
                if log.vouches_for(queue):
                    continue
                topic = encode_path(queue.topic)
                end = at = queue.max_offset
                while at > queue.min_offset:
                    plain = queue.unit(at - 1)
                    # After a damaged unit, earlier units count only if exact.
                    if _is_sound(log, min_physical, topic, queue.queue_id, at - 1, plain, exact=at < end):
                        break
                    at -= 1
                if at < end:
                    if not expected:
                        self._warn(f"queue {queue.topic}/{queue.queue_id}: {end - at} damaged units from {at} on")
                    queue.cut_to(at)
                continue
            while (unit := queue.last_unit()) is not None and unit.physical_offset >= min_physical:
                try:
                    check_unit(unit, log.message(unit.physical_offset), queue.topic, queue.queue_id)
                    break
                except (CorruptFile, OffsetError) as error:
                    if not expected:
                        self._warn(str(error))
                    queue.drop_last()

    def cut_gaps(self) -> None:
        """Truncate queues before the first unit that was put too low: the log may have the missing records."""
        for queue in self.table.all():
            if queue.misplaced:
                queue.cut_to(queue.misplaced_from)

    def missing_from(self) -> int | None:
        """Return the physical offset from which records may lack units since queues were truncated, or None; clears the
        marks.
        """
        cut = [queue for queue in self.all() if queue.was_cut]
        for queue in cut:
            queue.was_cut = False
        return min((max(0, queue.max_physical) for queue in cut), default=None)

    def truncate(self, physical_offset: int, *, doubtful: bool = False, dropped: DroppedUnits | None = None) -> None:
        """Drop the units of records at or behind this offset, in every queue that reaches it.

        Args: doubtful: pages of any file may be missing, so a queue's recorded end does not count; dropped: gets the
        bytes of the dropped units.
        """
        for queue in self._one_by_one():
            if isinstance(queue, BatchConsumeQueue):
                queue.truncate(physical_offset, None if dropped is None else dropped.batch)
            elif doubtful or queue.max_physical > physical_offset:
                queue.truncate(physical_offset, None if dropped is None else dropped.plain)

    @property
    def paths(self) -> _paths.StorePaths:
        """Paths of the store's files."""
        return self._paths

    @property
    def count(self) -> int:
        """Number of queues."""
        return len(self.table) + len(self.batch)

    # --- deleted topics: before and after the walk of a recovery ---

    def present(self) -> dict[str, list[int]]:
        """Return topic -> ids of the queues that have or had messages, except light message queues."""
        ids: dict[str, list[int]] = {}
        for queue in self.all():
            if queue.max_offset > 0 and not queue.topic.startswith(LMQ_PREFIX):
                ids.setdefault(queue.topic, []).append(queue.queue_id)
        return {topic: sorted(ids[topic]) for topic in sorted(ids)}

    def last_record_of(self, topic: str) -> tuple[int, int] | None:
        """Return physical offset and size of the newest record with a unit in the topic, or None."""
        last: tuple[int, int] | None = None
        for queue in self.all():
            if queue.topic != topic:
                continue
            if isinstance(queue, BatchConsumeQueue):
                unit = queue.last_unit()
                record = None if unit is None else (unit.physical_offset, unit.size)
            elif queue.max_offset <= queue.min_offset:
                record = None
            else:
                physical, size, _ = queue.unit(queue.max_offset - 1)
                record = None if physical == 0 and size == _FILLER_SIZE else (physical, size)
            if record is not None and (last is None or record > last):
                last = record
        return last

    def exclude_deleted(self, floors: dict[str, int]) -> list[str]:
        """Exclude the records up to these ends, which were deleted with their topics.

        Queues without other records are removed: the deletion had not reached them, or RocketMQ has restored them.
        Returns the topics that lost all queues this way.
        """
        self.floors = dict(floors)
        gone = []
        for topic, end in floors.items():
            queues = [queue for queue in self.all() if queue.topic == topic]
            removed = [self._exclude(queue, end) for queue in queues]
            if removed and all(removed):
                gone.append(topic)
            self._drop_topic_dirs(topic)
        return gone

    def _exclude(self, queue: AnyQueue, end: int) -> bool:
        if isinstance(queue, BatchConsumeQueue):
            unit = queue.last_unit()
            if unit is None or unit.physical_offset + unit.size > end:
                return False
            del self.batch[queue.topic, queue.queue_id]
            self.table.others = len(self.batch)
        else:
            if queue.max_physical > end or queue.max_physical < 0:
                queue.floor = end
                return False
            self.table.remove(queue.topic, queue.queue_id)
        queue.destroy()
        return True

    def infer_floors(self, log: CommitLog, start: int) -> None:
        """Infer floors of queues whose first message is behind ``start``: the queue was created there.

        Earlier records of the queue in the log were deleted with an earlier queue, by RocketMQ or by a release that
        left no note. Call before the queues are emptied.
        """
        for queue in self.table.all():
            if queue.min_offset or queue.max_offset < 1:
                continue
            physical, size, _ = queue.unit(0)
            if physical <= start or (physical == 0 and size == _FILLER_SIZE):
                continue
            if _is_sound(log, start, encode_path(queue.topic), queue.queue_id, 0, queue.unit(0), exact=True):
                queue.floor = max(queue.floor, physical)

    def cut_floors(self, end: int) -> list[str]:
        """Lower the floors after the log was truncated at ``end``: records put from now on were not deleted. Returns
        the topics.
        """
        cut = sorted(topic for topic, floor in self.floors.items() if floor > end)
        for topic in cut:
            self.floors[topic] = end
        for queue in self.table.all():
            if queue.floor > end:
                queue.floor = end
        return cut

    def end_recovery(self, min_physical: int) -> None:
        """Set the next offsets and lower bounds after a recovery."""
        for queue in self._one_by_one():
            if isinstance(queue, ConsumeQueue):
                queue.end_recovery(min_physical)
            else:
                queue.correct_min(max(0, min_physical))
                self._batch_head(queue.topic, queue.queue_id).next_offset = max(0, queue.max_offset)

    def destroy_all(self) -> None:
        """Remove every queue (for a log without files)."""
        with self._lock:
            for queue in list(self.table.all()):
                self.table.remove(queue.topic, queue.queue_id)
                queue.destroy()
            for batch in list(self.batch.values()):
                batch.destroy()
            self.batch.clear()
            self.table.others = 0
            self._batch_heads.clear()

    # --- search ---

    def offset_by_time(
        self, log: CommitLog, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the queue offset for a store time (RocketMQ: getOffsetInQueueByTime).

        LOWER: first message stored at or after ``timestamp``, else the queue's max offset. UPPER: last message stored
        at or before the time, else 0 (raised to the min offset). Returns 0 for an unknown queue.
        """
        queue = self.get(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchConsumeQueue):
            return queue.offset_by_time(timestamp, boundary)
        low, end = queue.min_offset, queue.max_offset
        if low >= end:
            return low

        def stored_at(offset: int) -> int:
            try:
                physical, size, _ = queue.unit(offset)
            except OffsetError:
                return -1  # retention was faster: older than all remaining messages
            return -1 if size == _FILLER_SIZE and physical == 0 else log.store_timestamp(physical, size)

        return find_by_time(low, end, timestamp, boundary, stored_at)

    # --- flush, delete, close ---

    def flush(self, by_clock: bool = False) -> int:
        """Make all units durable; return the bytes synced.

        Args: by_clock: the page that a busy queue writes to waits for the next flush, and ``left_page`` is set.
        Raises: StorageError.
        """
        dirty, left_page = self.table.dirty(by_clock)
        # One sync of the filesystem where it replaces many; not all systems have one that reports failures.
        together = self._directory
        if len(dirty) < self.many or together is None or not together.sync_filesystem():
            together = None
        bad: CorruptFile | None = None
        done = 0
        try:
            done = flush_queues(dirty, -1 if together is None else together.device)
        except CorruptFile as error:
            bad = error
        done += sum(queue.flush() for queue in list(self.batch.values()))
        if bad is not None:
            raise bad
        self.left_page = left_page
        return done

    def delete_expired(self, min_physical: int) -> int:
        """Drop queue files whose records are all deleted; return the number of files."""
        with self._lock:  # no topic is deleted meanwhile
            return sum(queue.delete_expired(min_physical) for queue in self._one_by_one())

    def drop_expired_files(self, min_physical: int) -> None:
        """Drop expired files at open, after end_recovery: files that a killed process had not deleted yet.

        Queues without such files are not mapped.
        """
        for queue in self._one_by_one():
            files = queue.file_list
            if len(files) < 2:
                continue
            if isinstance(queue, BatchConsumeQueue) or queue.min_logic >= files[0].start_offset + queue.file_bytes:
                queue.delete_expired(min_physical)

    def locked(self) -> Mutex:
        """Return a context manager: no queue is created or removed meanwhile."""
        return self._lock

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the objects that assign queue offsets of a topic."""
        heads = [head for (name, _), head in self._batch_heads.items() if name == topic]
        return [queue for queue in self.table.all() if queue.topic == topic] + heads

    def remove_topic(self, topic: str) -> int:
        """Drop the topic's queues and their files; return the number of queues. No thread puts into or dispatches to
        them any more.

        After a failure, call again.
        """
        with self._lock:
            for queue in self.table.all():
                if queue.topic == topic:
                    self._retire(queue)
            for key in [key for key in self.batch if key[0] == topic]:
                if self.batch[key] not in self._gone:
                    self._gone.append(self.batch[key])
                del self.batch[key]
                self.table.others = len(self.batch)
                self._batch_topics.discard(topic)
            for key in [key for key in self._batch_heads if key[0] == topic]:
                # A producer may still use the head.
                self._former_heads.append(self._batch_heads[key])
                del self._batch_heads[key]
            dropped = sum(queue.topic == topic and isinstance(queue, ConsumeQueue) for queue in self._gone)
            self._destroy_gone(topic)
            self._drop_topic_dirs(topic)
            return dropped

    def restart_queue(self, topic: str, queue_id: int, physical_offset: int) -> None:
        """Drop a slave's queue after the master deleted the topic: the queue restarts at this physical offset.

        RocketMQ's slave keeps the old units, and adds no unit for new messages until their offsets pass the old ones.
        """
        with self._lock:
            queue = self.table.get(topic, queue_id)
            if queue is not None:
                last = queue.unit(queue.max_offset - 1)[:2] if queue.max_offset > queue.min_offset else None
                if self.on_restart is not None:
                    self.on_restart(topic, queue_id, None if last == (0, _FILLER_SIZE) else last)
                _log.warning(
                    "queue %s/%d: its master deleted the topic and made it anew, so the queue begins anew with the "
                    "message at physical offset %d, without %d older messages",
                    topic, queue_id, physical_offset, queue.max_offset - queue.min_offset,
                )  # fmt: skip
                self._retire(queue)
            self._destroy_gone(topic)

    def _destroy_gone(self, topic: str) -> None:
        for queue in [queue for queue in self._gone if queue.topic == topic]:
            queue.destroy()
            self._gone.remove(queue)

    def _drop_topic_dirs(self, topic: str) -> None:
        for base in (self._paths.consume_queue, self._paths.batch_consume_queue):
            path = os.path.join(base, topic)
            if self._os_api.is_dir(path) and not self._os_api.listdir(path):
                self._os_api.rmdir(path)
                self._os_api.fsync_dir(base)

    def unmap_idle(self) -> None:
        """Unmap queue files without holds."""
        for queue in self.all():
            queue.unmap_idle()

    def keep_few_tails(self) -> None:
        """Unmap a quarter of the files mapped for writing when too many are mapped, least recently grown first.

        Call only from the dispatcher, while it has a record without a unit: then no put writes a unit itself.
        """
        if mapping_count() >= self._config.max_mapped_files and self._tails:
            for queue in list(islice(self._tails, len(self._tails) // 4 + 1)):
                queue.unmap_tail()

    def close(self) -> None:
        """Unmap all files without holds."""
        if self._directory is not None:
            self._directory.close()
        for queue in self.all():
            queue.close()
        for head in self._batch_heads.values():
            head.close()
        for queue in self._gone:
            queue.close()


def _is_sound(
    log: CommitLog,
    min_physical: int,
    topic: bytes,
    queue_id: int,
    place: int,
    unit: tuple[int, int, int],
    *,
    exact: bool,
) -> bool:
    """Return true if a unit points to a record of this queue offset, or to a record no longer in the log."""
    physical, size, _ = unit
    if (physical == 0 and size == _FILLER_SIZE) or physical < min_physical:
        return True
    try:
        message = log.message(physical)
        claimed = message.offset_in(topic, queue_id) if message.size == size else None
    except (CorruptFile, OffsetError):
        return False
    return claimed == place if exact else is_plausible(place, claimed)
