"""QueueStore: all queues of a store: making, loading, recovering, searching and dropping them (RocketMQ:
ConsumeQueueStore).

It must never read a record's body and never decide where the log ends; recovery tells it. Queues of 20-byte units are
ConsumeQueue; topics with ``queue.type=BatchCQ`` have 46-byte units and are put by hand, as are units of light queues.
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
from mqfast.store.queues.consume_queue import ConsumeQueue, QueueTable, look_ahead
from mqfast.store.queues.placement import is_plausible
from mqfast.store.queues.queue_flush import flush_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqfast.config import StoreConfig
    from mqfast.store.base.mapped_file import Latch
    from mqfast.store.base.os_api import OpenDirectory, OsApi
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.metadata import TopicTable
    from mqfast.store.record.record import StoredMessage

__all__ = ["AnyQueue", "DroppedUnits", "QueueStore"]

_log = logging.getLogger("mqfast.store")

AnyQueue = ConsumeQueue | BatchConsumeQueue

_FILLER_SIZE: Final = 0x7FFFFFFF
# Its byte in a queue of 20-byte units still fits 63 bits.
_MAX_QUEUE_OFFSET: Final = 2**62 // 20
# From so many queues on a second thread helps to read them when a store is opened: some 10 us of system calls each.
_MANY_QUEUES: Final = 512
# So many of the queues that wait for space ask for it at a time: each that gets none waits for the journal.
_TRIES: Final = 4


def _look_ahead(queues: list[ConsumeQueue]) -> None:
    half = len(queues) // 2
    helper = threading.Thread(target=look_ahead, args=(queues[half:],), name="mqfast-look-ahead", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # no more threads: each queue is read when it is loaded
        return
    try:
        look_ahead(queues[:half])
    finally:
        helper.join()


@dataclass
class DroppedUnits:
    """Bytes of units that were taken out of queues: of 20-byte ones, and of batch queues."""

    plain: list[bytes] = field(default_factory=list)
    batch: list[bytes] = field(default_factory=list)


class QueueStore:
    """The queues by (topic, queue id).

    Thread: lookups from any thread; making and dropping queues is serialised by a lock of its own.
    """

    def __init__(
        self,
        os_api: OsApi,
        paths: _paths.StorePaths,
        config: StoreConfig,
        topics: TopicTable,
        latch: Latch | None = None,
    ) -> None:
        self._door = os_api
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
        # Out of the table, and not yet removed from the disk.
        self._gone: list[AnyQueue] = []
        self.skipped = 0
        # Opened before the first unit: it tells of what failed since then.
        self._directory: OpenDirectory | None = None
        self.left_page = False  # did the last flush leave one to the next?
        self.many = 64  # from so many queues on one sync of everything is less work than one a queue
        self._waiting: dict[AnyQueue, int] = {}  # queues whose units wait for space, and the place of the first of them
        self.arrived: Callable[[AnyQueue], object] | None = None  # told of each unit that is put by hand
        self.created: Callable[[str], object] | None = None  # told of a topic with another queue; must not call
        # Told of topic and queue id, and of physical offset and size of the last record, before the queue begins anew.
        self.made_anew: Callable[[str, int, tuple[int, int] | None], object] | None = None
        self.full: DiskFull | None = None
        """What a queue last waited for."""
        self.held_back = 0
        """Units that were not put by hand because their queue waits."""
        # Topic -> end of its last deleted record: those get no unit, whoever makes the queues anew.
        self.floors: dict[str, int] = {}
        self.warnings: list[str] = []

    # --- making and finding ---

    def is_batch(self, topic: str) -> bool:
        """Is it a topic whose queues have 46-byte units? Its files say so too, should topics.json have lost it."""
        if topic in self._batch_topics:
            return True
        found = self._topics.get(topic)
        return found is not None and found.is_batch_queue

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue that gives the next queue offset, made if there is none. Files come with the first unit."""
        found = self.table.get(topic, queue_id)
        if found is not None and not found.deleted:
            return found
        with self._lock:  # while a topic is deleted, until that is over
            if self.is_batch(topic):
                return self._batch_head(topic, queue_id)
            found = self.table.get(topic, queue_id)
            if found is not None and found.deleted:  # the deletion of its topic broke off: go on with it
                self._leave(found)
                found = None
            if found is None:
                found = self._make(topic, queue_id)
                self.table.insert(found)
                self._tell(topic)
            return found

    def _tell(self, topic: str) -> None:
        if self.created is not None:
            self.created(topic)

    def _leave(self, queue: ConsumeQueue) -> None:
        if queue not in self._gone:
            self._gone.append(queue)
        self.table.remove(queue.topic, queue.queue_id)

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        if self._gone:
            self._destroy_gone(topic)  # else its files would be taken for those of the new queue
        queue = ConsumeQueue(
            self._door,
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
        if head is not None and head.deleted:  # as above; what is left of its queue goes on
            self._former_heads.append(head)
            head = None
        if head is None:
            head = self._batch_heads[topic, queue_id] = self._make(topic, queue_id)
            head.next_offset = max(0, self._batch_queue(topic, queue_id).max_offset)
            self._tell(topic)
        return head

    def _batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        found = self.batch.get((topic, queue_id))
        if found is None:
            if self._gone:
                self._destroy_gone(topic)
            size = self._config.mapped_file_bytes_batch_consume_queue
            found = BatchConsumeQueue(self._door, self._paths.batch_consume_queue, topic, queue_id, size)
            self.batch[topic, queue_id] = found
            self.table.others = len(self.batch)
        return found

    def get(self, topic: str, queue_id: int) -> AnyQueue | None:
        """The queue, or None. Raises: UsageError for what is no topic or no queue id."""
        if not isinstance(topic, str):
            raise UsageError(f"topic: expected str, found {type(topic).__name__}")
        if not isinstance(queue_id, int):
            raise UsageError(f"queue_id: expected int, found {type(queue_id).__name__}")
        return self.table.get(topic, queue_id) or self.batch.get((topic, queue_id))

    def all(self) -> list[AnyQueue]:
        """Every queue."""
        return [*self.table.all(), *self.batch.values()]

    def _one_by_one(self) -> Iterator[AnyQueue]:
        """Every queue, for what maps files of each: of very many not all stay mapped."""
        for queue in self.all():
            yield queue
            if mapping_count() > self._config.maps_max:
                queue.unmap_idle()

    def topics(self) -> list[str]:
        """Topics that have a queue."""
        return sorted({queue.topic for queue in self.all()})

    # --- units put by hand: called by the dispatcher ---

    def put_lmq_or_batch(self, message: StoredMessage, tags_code: int) -> bool:
        """The record's queue is not in the table: make it (False: put the unit as usual), or put the unit here
        (True).
        """
        topic = message.topic
        try:
            if check_topic(topic) != message.topic_bytes:
                raise MessageIllegal("topic is not UTF-8")
            base, count = claimed_places(message)
            for name, value, most in (
                ("queue id", message.queue_id, 2**31 - 1),
                ("queue offset", message.record_queue_offset, _MAX_QUEUE_OFFSET),
                ("first queue offset", base, _MAX_QUEUE_OFFSET),
            ):
                if not 0 <= value <= most:
                    raise MessageIllegal(f"{name}: expected 0 to {most}, found {value}")
        except MqfastError as error:
            # Such a name is no directory, such a number no place; the message stays in the log and can be found by
            # offset and key.
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

    # --- a full disk: a queue without room gets no unit until it has some, then all of them, in order ---

    def wait(self, queue: AnyQueue, place: int, error: DiskFull) -> None:
        """The unit for this queue offset has no room: the queue takes none until ``is_room_again``."""
        queue.waits = True
        self._waiting[queue] = place
        self.full = copy.copy(error)  # without its traceback, which would keep files open

    def is_room_again(self) -> bool:
        """Has the disk room for a queue that waits? Then none waits any more, and the dispatcher walks the log again.

        Raises: StorageError.
        """
        found = not self._waiting
        for queue in list(islice(self._waiting, _TRIES)):
            place = self._waiting.pop(queue)
            queue.waits = False
            try:
                queue.make_room(place)
                found = True
            except DiskFull as error:
                self.wait(queue, place, error)  # behind the others
            except StoreClosed:
                found = True  # it went with its topic
        if found:
            self.wait_no_more()
        return found

    def wait_no_more(self) -> None:
        """No queue waits for space."""
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
        """Did the record go with its topic?"""
        return message.physical_offset + message.size <= self.floors.get(topic, -1)

    def put_multi(self, message: StoredMessage, tags_code: int) -> None:
        """Units of the record's own queue and of every queue that INNER_MULTI_DISPATCH names."""
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
        """Put the unit of the record's own queue, whatever kind it is; False when its topic cannot have one."""
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
        """Take the queues of the directories. Raises: CorruptFile for a file of another length, with its name."""
        base = self._paths.consume_queue
        self._directory = self._door.open_directory(base if self._door.exists(base) else self._paths.root)
        listed = _paths.list_queues(self._door, self._paths.consume_queue)
        queues = [self._make(topic, queue_id) for topic, ids in listed.items() for queue_id in ids]
        if len(queues) >= _MANY_QUEUES:
            _look_ahead(queues)
        for queue in queues:
            queue.load()
            self.table.insert(queue)
        for topic, ids in _paths.list_queues(self._door, self._paths.batch_consume_queue).items():
            for queue_id in ids:
                self._batch_queue(topic, queue_id).load()
                self._batch_topics.add(topic)

    def recover(self) -> None:
        """Let every queue find its end."""
        for queue in self.all():
            queue.recover()

    def largest_end(self) -> int:
        """The largest end of a record that has a unit, -1 when there is none."""
        largest = -1
        for queue in self.all():
            end = queue.max_physical
            if isinstance(queue, BatchConsumeQueue):
                # It keeps where its last record starts; taken for an end, that record is indexed again at each open.
                last = queue.find(queue.max_offset - 1)
                end = -1 if last is None else last.physical_offset + last.size
            largest = max(largest, end)
        return largest

    def check_ends(self, log: CommitLog, *, expected: bool = False) -> None:
        """Drop units at the end of a queue that do not point at a record of that queue: they are damaged, and a wrong
        end would keep out, or put in the wrong place, everything that comes after.

        Args: expected: a crash may have left such units, and they are put again from the log: no warning.
        """
        least = log.min_offset
        for queue in self._one_by_one():
            if isinstance(queue, ConsumeQueue):
                if log.vouches_for(queue):
                    continue
                topic = encode_path(queue.topic)
                end = at = queue.max_offset
                while at > queue.min_offset:
                    plain = queue.unit(at - 1)
                    # Once a unit was found damaged, those before it count only if they are exact.
                    if _is_sound(log, least, topic, queue.queue_id, at - 1, plain, exact=at < end):
                        break
                    at -= 1
                if at < end:
                    if not expected:
                        self._warn(f"queue {queue.topic}/{queue.queue_id}: {end - at} damaged units from {at} on")
                    queue.cut_to(at)
                continue
            while (unit := queue.last_unit()) is not None and unit.physical_offset >= least:
                try:
                    check_unit(unit, log.message(unit.physical_offset), queue.topic, queue.queue_id)
                    break
                except (CorruptFile, OffsetError) as error:
                    if not expected:
                        self._warn(str(error))
                    queue.drop_last()

    def cut_gaps(self) -> None:
        """Cut queues before the first unit that had to be put too low: what should stand there may be in the log."""
        for queue in self.table.all():
            if queue.misplaced:
                queue.cut_to(queue.misplaced_from)

    def missing_from(self) -> int | None:
        """Physical offset from which records may lack units since queues were cut; None when none was. Asks once."""
        cut = [queue for queue in self.all() if queue.was_cut]
        for queue in cut:
            queue.was_cut = False
        return min((max(0, queue.max_physical) for queue in cut), default=None)

    def truncate(self, physical_offset: int, *, doubtful: bool = False, dropped: DroppedUnits | None = None) -> None:
        """Drop units of records at or behind this offset, in every queue that reaches it.

        Args: doubtful: pages of any file may be missing, so that no queue's own idea of its end counts; dropped: gets
        the bytes of the units that go.
        """
        for queue in self._one_by_one():
            if isinstance(queue, BatchConsumeQueue):
                queue.truncate(physical_offset, None if dropped is None else dropped.batch)
            elif doubtful or queue.max_physical > physical_offset:
                queue.truncate(physical_offset, None if dropped is None else dropped.plain)

    @property
    def paths(self) -> _paths.StorePaths:
        """Where the store's files are."""
        return self._paths

    @property
    def count(self) -> int:
        """How many queues there are."""
        return len(self.table) + len(self.batch)

    # --- deleted topics: before and behind the walk of a recovery ---

    def present(self) -> dict[str, list[int]]:
        """Topic -> ids of its queues that have or had messages, light queues left out."""
        found: dict[str, list[int]] = {}
        for queue in self.all():
            if queue.max_offset > 0 and not queue.topic.startswith(LMQ_PREFIX):
                found.setdefault(queue.topic, []).append(queue.queue_id)
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def last_record_of(self, topic: str) -> tuple[int, int] | None:
        """Physical offset and size of the newest record that has a unit in a queue of the topic; None: none has."""
        last: tuple[int, int] | None = None
        for queue in self.all():
            if queue.topic != topic:
                continue
            if isinstance(queue, BatchConsumeQueue):
                unit = queue.last_unit()
                found = None if unit is None else (unit.physical_offset, unit.size)
            elif queue.max_offset <= queue.min_offset:
                found = None
            else:
                physical, size, _ = queue.unit(queue.max_offset - 1)
                found = None if physical == 0 and size == _FILLER_SIZE else (physical, size)
            if found is not None and (last is None or found > last):
                last = found
        return last

    def leave_out(self, floors: dict[str, int]) -> list[str]:
        """Records up to these ends were deleted with their topics. Queues that have nothing else are removed: the
        deletion had not come to them, or RocketMQ has brought them back. Returns the topics that lost all theirs so.
        """
        self.floors = dict(floors)
        gone = []
        for topic, end in floors.items():
            queues = [queue for queue in self.all() if queue.topic == topic]
            removed = [self._leave_out(queue, end) for queue in queues]
            if removed and all(removed):
                gone.append(topic)
            self._drop_topic_dirs(topic)
        return gone

    def _leave_out(self, queue: AnyQueue, end: int) -> bool:
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
        """A queue that begins with its first message behind ``start`` was made there: what the log has of it before was
        deleted with an earlier one, by RocketMQ or by a release that left no note. Before the queues are emptied.
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
        """The log was cut at ``end``: what is put there from now on was not deleted. Returns the topics concerned."""
        cut = sorted(topic for topic, floor in self.floors.items() if floor > end)
        for topic in cut:
            self.floors[topic] = end
        for queue in self.table.all():
            if queue.floor > end:
                queue.floor = end
        return cut

    def end_recovery(self, min_physical: int) -> None:
        """After recovery: next offsets continue the queues, lower bounds follow the log."""
        for queue in self._one_by_one():
            if isinstance(queue, ConsumeQueue):
                queue.end_recovery(min_physical)
            else:
                queue.correct_min(max(0, min_physical))
                self._batch_head(queue.topic, queue.queue_id).next_offset = max(0, queue.max_offset)

    def destroy_all(self) -> None:
        """Remove every queue (a log without any file leaves none behind)."""
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
        """Queue offset by store time (RocketMQ: getOffsetInQueueByTime).

        LOWER: first message stored at or after ``timestamp``, the queue's max offset when there is none. UPPER: last
        message stored at or before it, 0 (then raised to the min offset) when there is none. Returns 0 for an unknown
        queue.
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
                return -1  # retention was faster: older than all that is left
            return -1 if size == _FILLER_SIZE and physical == 0 else log.store_timestamp(physical, size)

        return find_by_time(low, end, timestamp, boundary, stored_at)

    # --- flush, delete, close ---

    def flush(self, by_clock: bool = False) -> int:
        """Make all units durable; returns the bytes synced.

        Args: by_clock: the page that a busy queue puts units in waits for the next flush, and ``left_page`` says so.
        Raises: StorageError.
        """
        dirty, left = self.table.dirty(by_clock)
        # One sync of everything where it replaces many; not all systems have one that tells of failures.
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
        self.left_page = left
        return done

    def delete_expired(self, min_physical: int) -> int:
        """Drop queue files whose records are all gone; returns how many."""
        with self._lock:  # no topic is deleted meanwhile
            return sum(queue.delete_expired(min_physical) for queue in self._one_by_one())

    def drop_expired_files(self, min_physical: int) -> None:
        """At open, behind end_recovery: what a kill left of a deletion. Maps no queue that has nothing to drop."""
        for queue in self._one_by_one():
            files = queue.file_list
            if len(files) < 2:
                continue
            if isinstance(queue, BatchConsumeQueue) or queue.min_logic >= files[0].start_offset + queue.file_bytes:
                queue.delete_expired(min_physical)

    def locked(self) -> Mutex:
        """Context manager: no queue is made or dropped meanwhile."""
        return self._lock

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Whatever gives out queue offsets of a topic."""
        heads = [head for (name, _), head in self._batch_heads.items() if name == topic]
        return [queue for queue in self.table.all() if queue.topic == topic] + heads

    def remove_topic(self, topic: str) -> int:
        """Drop the topic's queues and their files; returns how many. Nobody puts into them any more, nor dispatches.

        After a failure: call it again.
        """
        with self._lock:
            for queue in self.table.all():
                if queue.topic == topic:
                    self._leave(queue)
            for key in [key for key in self.batch if key[0] == topic]:
                if self.batch[key] not in self._gone:
                    self._gone.append(self.batch[key])
                del self.batch[key]
                self.table.others = len(self.batch)
                self._batch_topics.discard(topic)
            for key in [key for key in self._batch_heads if key[0] == topic]:
                # A producer may still look at it.
                self._former_heads.append(self._batch_heads[key])
                del self._batch_heads[key]
            dropped = sum(queue.topic == topic and isinstance(queue, ConsumeQueue) for queue in self._gone)
            self._destroy_gone(topic)
            self._drop_topic_dirs(topic)
            return dropped

    def begin_anew(self, topic: str, queue_id: int, physical_offset: int) -> None:
        """Drop a queue of a slave: the master deleted the topic, and the queue begins anew at this physical offset.

        RocketMQ's slave keeps the old units, and gives new messages none until it has passed their offsets.
        """
        with self._lock:
            queue = self.table.get(topic, queue_id)
            if queue is not None:
                last = queue.unit(queue.max_offset - 1)[:2] if queue.max_offset > queue.min_offset else None
                if self.made_anew is not None:
                    self.made_anew(topic, queue_id, None if last == (0, _FILLER_SIZE) else last)
                _log.warning(
                    "queue %s/%d: its master deleted the topic and made it anew, so the queue begins anew with the "
                    "message at physical offset %d, without %d older messages",
                    topic, queue_id, physical_offset, queue.max_offset - queue.min_offset,
                )  # fmt: skip
                self._leave(queue)
            self._destroy_gone(topic)

    def _destroy_gone(self, topic: str) -> None:
        for queue in [queue for queue in self._gone if queue.topic == topic]:
            queue.destroy()
            self._gone.remove(queue)

    def _drop_topic_dirs(self, topic: str) -> None:
        for base in (self._paths.consume_queue, self._paths.batch_consume_queue):
            path = os.path.join(base, topic)
            if self._door.is_dir(path) and not self._door.listdir(path):
                self._door.rmdir(path)
                self._door.fsync_dir(base)

    def unmap_idle(self) -> None:
        """Unmap queue files that nobody uses."""
        for queue in self.all():
            queue.unmap_idle()

    def keep_few_tails(self) -> None:
        """Where too many files are mapped, unmap a quarter of those that queues are written to, the longest ago grown
        first.

        Only by the dispatcher, while it has a record that has no unit yet: then no put writes its unit itself.
        """
        if mapping_count() >= self._config.maps_max and self._tails:
            for queue in list(islice(self._tails, len(self._tails) // 4 + 1)):
                queue.unmap_tail()

    def close(self) -> None:
        """Unmap everything that nobody holds."""
        if self._directory is not None:
            self._directory.close()
        for queue in self.all():
            queue.close()
        for head in self._batch_heads.values():
            head.close()
        for queue in self._gone:
            queue.close()


def _is_sound(
    log: CommitLog, least: int, topic: bytes, queue_id: int, place: int, unit: tuple[int, int, int], *, exact: bool
) -> bool:
    """Does a unit point at a record of this place, or one that the log no longer has?"""
    physical, size, _ = unit
    if (physical == 0 and size == _FILLER_SIZE) or physical < least:
        return True
    try:
        message = log.message(physical)
        claimed = message.offset_in(topic, queue_id) if message.size == size else None
    except (CorruptFile, OffsetError):
        return False
    return claimed == place if exact else is_plausible(place, claimed)
