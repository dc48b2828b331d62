"""MessageStore: the public store (RocketMQ: DefaultMessageStore). ``opening.py`` builds its parts.

Per-message work is in put_message.pyx and get_message.pyx. No thread starts before recovery is done, and the ``abort``
file is removed only if everything is flushed and dispatched.

Open: lock, sizes from the files, load, recover, abort file, threads. Close: refuse puts, commit, dispatch, flush,
checkpoint, remove spare files, remove abort file, unmap, unlock.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final, Self

from mqfast.config import StoreConfig
from mqfast.errors import (
    ConfigError,
    CorruptFile,
    DiskFull,
    MqfastError,
    OffsetError,
    StoreClosed,
    StoreForked,
    StoreNotFound,
    UsageError,
)
from mqfast.message import check_topic_name, decode_message_id, not_a_message_id
from mqfast.store.base import lock as _lock
from mqfast.store.base import paths as _paths
from mqfast.store.base.mapped_file import locked_byte_count, mapping_count
from mqfast.store.base.os_api import Mutex, OsApi, check_not_nested, is_nested
from mqfast.store.base.results import BoundaryType, LogFlag, StoreState
from mqfast.store.base.service import Joinable, start_thread
from mqfast.store.check.record_starts import check_start
from mqfast.store.consumer import Consumer, OffsetReset
from mqfast.store.get.get_message import read
from mqfast.store.get.get_result import GetResult
from mqfast.store.get.query import query
from mqfast.store.meta.notes import Deletion
from mqfast.store.opening import open_parts, require_all_units
from mqfast.store.put.put_message import PutPath
from mqfast.store.queues.consume_queue import ConsumeQueue
from mqfast.util.deprecated import former_argument
from mqfast.util.validate import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Unpack

    from mqfast.message import Body, Keys, Properties, PutOptions
    from mqfast.settings import StoreSettings
    from mqfast.store.engine import Engine
    from mqfast.store.log.retention import RetentionService
    from mqfast.store.meta.tables import ConfigTables
    from mqfast.store.put.put_result import PutResult
    from mqfast.store.queues.queue_store import AnyQueue
    from mqfast.store.record.record import StoredMessage

__all__ = ["MessageStore", "open_store"]

_log = logging.getLogger("mqfast.store")

# Warnings that stats() shows; the oldest are dropped first.
_WARNINGS_KEPT: Final = 100
_MOST_TRIES: Final = 100  # of the close steps after a failed open without memory
# of a close by a signal handler's exception, before the exception counts as failure of the close
_MOST_INTERRUPTIONS: Final = 100
# Includes closed stores: a thread at the end of a close still has the lock when another thread forks.
_stores: weakref.WeakSet[MessageStore] = weakref.WeakSet()


class MessageStore(PutPath):
    """A store that is open for writing. ``mqfast.open`` creates it.

    Thread: every method may be called from any thread. One process writes a store at a time.
    """

    if TYPE_CHECKING:
        engine: Engine

    @former_argument("door", "os_api")
    def __init__(
        self,
        path: str,
        config: StoreConfig,
        *,
        os_api: OsApi | None = None,
        progress: Callable[[int, int], None] | None = None,
        tables: ConfigTables | None = None,
        _start_services: bool = True,
    ) -> None:
        # _start_services=False is for tests and tools that step the services themselves: no thread is started, and a
        # put that needs a new log file creates the file.
        self.path: Final = path
        self.os_api: Final = os_api or OsApi()
        self.os_api.guard_mappings(config.sigbus_guard)
        self._close_lock = Mutex(nests=True)
        self._is_closed = False
        self._closer: Joinable | None = None
        self._warned: list[str] = []
        self._opened_in = os.getpid()
        self.os_api.makedirs(path)
        self._lock = _lock.StoreLock.acquire(self.os_api, os.path.join(path, "lock"))
        self._closing: list[Callable[[], object]] = []
        # The steps that end a close or a failed open, run last first.
        self._close_steps: list[Callable[[], object]] = [self._lock.release]
        self._close_failure: Exception | None = None
        self._interruptions = 0
        try:
            parts = self._store_parts = open_parts(
                path,
                config,
                os_api=self.os_api,
                lock=self._lock,
                close_lock=self._close_lock,
                close_steps=self._close_steps,
                warn=self._warn,
                tables=tables,
                progress=progress,
            )
            self.paths: Final = parts.paths
            self.config: Final = parts.config
            self.topic_table: Final = parts.topic_table
            self.consumer_offsets: Final = parts.consumer_offsets
            self.recovery: Final = parts.recovery
            self._bind(parts.engine)
            _stores.add(self)
            if _start_services:
                self._start()
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Close the parts that a failed open has opened, last first.

        The garbage collector is too late: services refer to the object, and CPython may keep the arguments of a call
        that fails for lack of memory. A step that fails for lack of memory is tried again.
        """
        tries = 0
        while self._close_steps:
            try:
                self._close_steps[-1]()
            except MemoryError:
                tries += 1
                if tries < _MOST_TRIES:
                    continue
            except Exception as error:
                _log.warning("%s: after an open that failed: %s", self.path, error)
            self._close_steps.pop()

    # --- services ---

    def _start(self) -> None:
        services = self._store_parts.services()
        try:
            for service in services:
                service.start()
        except BaseException:
            for service in services:
                service.stop()
            raise

    def persist_offsets(self) -> None:
        """Make the offsets of the consumer groups durable, after the messages that they pass. Includes a caller's
        tables, which the store writes only here.

        Raises: FlushError, StoreFailed, StorageError. The disk then keeps the previous offsets.
        """
        self._check_open()
        self._store_parts.metadata.persist_offsets()

    # --- read ---

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 4 << 20,
        tags: str | None = None,
    ) -> GetResult:
        """Read messages of one queue from a queue offset on.

        Args: tags: ``"A || B"``, None or ``*`` for all; compared with the tag itself, not only its hash. max_bytes:
        limit of record bytes; the first message is returned whatever its size.
        Returns: GetResult with RocketMQ's GetMessageStatus as ``status`` and the offset for the next call as
        ``next_offset``.
        Raises: CorruptFile if a unit does not point at its record; StoreClosed.
        Source: DefaultMessageStore.getMessage.
        """
        if self._is_closed:
            self._refuse_closed()
        return read(self, topic, queue_id, offset, max_count, max_bytes, tags)

    def look(self, where: int | str) -> StoredMessage:
        """Return ``get_by_offset``; the deprecated name."""
        warnings.warn("MessageStore.look is get_by_offset now", DeprecationWarning, stacklevel=2)
        return self.get_by_offset(where)

    def get_by_offset(self, where: int | str) -> StoredMessage:
        """Return the message at a physical offset, or of an offset message id.

        Use ``get`` for a queue offset, and ``query`` for a client's unique key, which has the form of a message id.
        Raises: OffsetError for an offset outside the log or without a whole record, also if bytes of a body look like a
        record there; CorruptFile if the record does not agree with its checksum.
        """
        self._check_open()
        offset = decode_message_id(where).physical_offset if isinstance(where, str) else _offset(where)
        if self.config.dispatch == "inline":
            self._store_parts.dispatcher.step_if_needed()
        try:
            return check_start(self.os_api, self.log, self._store_parts.queues, self.log.message(offset, True))
        except (OffsetError, CorruptFile) as error:
            if is_damage(error):
                raise
            if isinstance(where, str):
                raise OffsetError(f"{not_a_message_id(where)} ({error})") from None
            if isinstance(error, OffsetError):
                raise
            raise OffsetError(
                f"physical offset {offset} (of the log; a queue offset is another number): expected a record, found "
                f"other bytes ({error.found})"
            ) from None

    # A method in C: a Python frame costs as much as the index lookup.
    query = query

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType | str = BoundaryType.LOWER
    ) -> int:
        """Return the queue offset for a store time. LOWER: the first message at or after the time; UPPER: the last
        message at or before the time.

        Source: DefaultMessageStore.getOffsetInQueueByTime.
        """
        self._check_open()
        self._catch_up()
        _numbers(queue_id=queue_id, timestamp_ms=timestamp_ms)
        try:
            kind = BoundaryType[boundary.upper()] if isinstance(boundary, str) else BoundaryType(boundary)
        except (KeyError, ValueError):
            raise UsageError(f"boundary: expected LOWER or UPPER, found {boundary!r}") from None
        return self._store_parts.queues.offset_by_time(self.log, topic, queue_id, timestamp_ms, kind)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first readable queue offset; 0 for an unknown queue."""
        self._check_open()
        self._catch_up()
        queue = self._store_parts.queues.get(topic, queue_id)
        return 0 if queue is None else max(0, queue.min_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last readable message; 0 for an unknown queue."""
        self._check_open()
        self._catch_up()
        queue = self._store_parts.queues.get(topic, queue_id)
        return 0 if queue is None else self._end_of(queue)

    def _end_of(self, queue: AnyQueue) -> int:
        end = queue.readable_offset(self.log.readable)
        if not isinstance(queue, ConsumeQueue):
            self.check_still_open()  # a queue that was closed meanwhile has no bounds
        return end

    @property
    def min_physical_offset(self) -> int:
        """First byte of the log; -1 without a log file."""
        return self.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Byte behind the last record that readers may see."""
        return self.log.readable

    def catch_up(self) -> None:
        """Put the units of all records now, ahead of the dispatcher's thread. Raises: as ``max_offset``."""
        self._check_open()
        self._catch_up()

    def _catch_up(self) -> None:
        if self.config.dispatch == "inline":
            self._store_parts.dispatcher.step_if_needed()

    def topics(self) -> list[str]:
        """Return all topics with a queue, sorted."""
        self._check_open()
        self._catch_up()
        return [topic for topic in self._store_parts.queues.topics() if self.queue_ids(topic)]

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have or had messages."""
        self._check_open()
        self._catch_up()
        return sorted(q.queue_id for q in self._store_parts.queues.all() if q.topic == topic and self._end_of(q) > 0)

    def queues(self) -> list[tuple[str, int, int, int]]:
        """Return (topic, queue id, min offset, max offset) of every queue."""
        self._check_open()
        self._catch_up()
        rows = [(q.topic, q.queue_id, max(0, q.min_offset), self._end_of(q)) for q in self._store_parts.queues.all()]
        return sorted(row for row in rows if row[3] > 0)

    def consumer(
        self,
        group: str,
        topic: str,
        *,
        tags: str | None = None,
        from_first: bool = True,
        batch: int = 32,
        offset_reset: OffsetReset = "error",
    ) -> Consumer:
        """Create an embedded consumer of one topic. The consumer resumes at the committed offset of its group.

        Args: from_first: a new group starts at the first message (True) or behind the last message (False). batch: most
        messages per read. offset_reset: behaviour if the group's next messages were deleted before the group has read
        them: ``error`` raises OffsetMoved; ``earliest`` continues at the first message, ``latest`` behind the last
        message,
        both with a warning.
        """
        self._check_open()
        consumer = Consumer(
            self, group, topic, tags=tags, from_first=from_first, batch=batch, offset_reset=offset_reset
        )
        ends = {} if from_first else {queue_id: self.max_offset(topic, queue_id) for queue_id in self.queue_ids(topic)}
        self.consumer_offsets.follow(group, topic, ends)
        return consumer

    # --- write: put, put_many, put_batch, put_nowait and producer come from PutPath ---

    async def aput(
        self,
        topic: str,
        body: Body,
        queue_id: int = 0,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Properties | None = None,
        **options: Unpack[PutOptions],
    ) -> PutResult:
        """Store one message. With sync flush: await its durability without blocking the event loop.

        Raises: the same as put.
        """
        from mqfast.aio import settled

        return await settled(self.put_nowait(topic, body, queue_id, tags, keys, properties, **options), self.config)

    def flush(self, timeout: float | None = None) -> bool:
        """Make all messages that were put before durable. Args: timeout in seconds, None for no limit. Returns: False
        at the timeout. Raises: FlushError, StoreFailed.
        """
        self._check_open()
        self.log.check_state()
        return self.log.flush(timeout)

    def delete_topic(self, topic: str) -> int:
        """Drop the topic's queues and remove their offsets. The records stay in the log until retention deletes them,
        and
        ``query``, ``get_by_offset`` and scans of the log return them until then. In tables of the caller (``tables=``)
        topic and offsets are removed in memory only. Returns: number of queues dropped.

        Raises: UsageError for an invalid topic name; FlushError, StorageError if the deletion cannot be made durable;
        DiskFull also while units of queues wait for space. Nothing was deleted then.
        Durability: the deletion is on disk before a queue is dropped and before the topic can have a new message. No
        recovery and no repair restores deleted messages. If RocketMQ rebuilds queues from the log, it restores them.
        """
        self._check_open()
        check_topic_name(topic)
        parts = self._store_parts
        with self._close_lock:  # a close waits; the next open completes an interrupted deletion
            self.check_still_open()
            with parts.dispatcher.locked(), parts.queues.locked():
                parts.dispatcher.step(-1, True)
                leaving = parts.queues.of_topic(topic)
                try:
                    self._mark_deleted(leaving)
                    # Dispatch the topic's last records, durable or not: later they would become the first units of new
                    # queues.
                    if parts.pool is not None:
                        self.log.commit()
                    parts.dispatcher.step(self.log.committed)
                    # A waiting unit would be dispatched later, and would create the topic again.
                    require_all_units(parts.dispatcher, parts.queues)
                    parts.notes.note_deletion(topic, self._last_of(topic))
                except BaseException:
                    self._mark_deleted(leaving, False)
                    raise
                # Before the queues: an open that finds some of the queues completes the deletion.
                parts.metadata.forget_offsets([topic])
                dropped = parts.queues.remove_topic(topic)
            parts.metadata.delete_topic(topic)
            return dropped

    def _mark_deleted(self, queues: list[ConsumeQueue], deleted: bool = True) -> None:
        self.engine.mark_deleted(queues, deleted)
        self.forget_producers()

    def _last_of(self, topic: str) -> Deletion | None:
        """Return the last record of a topic that is being deleted. Durability: the record is durable when the call
        returns.
        """
        last = self._store_parts.queues.last_record_of(topic)
        if last is None or last[0] < self.log.min_offset:
            return None
        self.log.flush()
        return Deletion(*last, self.log.store_timestamp(*last))

    # --- state ---

    @property
    def units_wait(self) -> bool:
        """True if stored messages wait for their place in a queue because the disk is full. A queue may then end too
        early.
        """
        return self._store_parts.dispatcher.units_wait

    @property
    def state(self) -> StoreState:
        """OPEN, FULL, FAILED or CLOSED. FULL: work waits for disk space (``stats()["waits_for_space"]``), or disk use
        is above its watermark; both end by themselves. FAILED: latched by a failed flush or write.
        """
        flags = self.log.flags
        if self._is_closed or flags & (LogFlag.CLOSED | LogFlag.FORKED):
            return StoreState.CLOSED
        if flags & LogFlag.FAILED:
            return StoreState.FAILED
        if (
            self._store_parts.retention.refusing
            or self._store_parts.allocate.last_error is not None
            or self._store_parts.space.waits
        ):
            return StoreState.FULL
        return StoreState.OPEN

    def stats(self) -> dict[str, Any]:
        """Return run-time figures by name, in bytes and counts unless the name has another unit; see
        docs/operations.md.
        """
        log, parts = self.log, self._store_parts
        parts.flush.see_clock()
        warnings = [
            *self._warned,
            *parts.checkpoint.warnings,
            *self.topic_table.warnings,
            *self.consumer_offsets.warnings,
            *parts.queues.warnings,
        ]
        if parts.retention.dropped_unread:
            warnings.append(
                f"retention: {parts.retention.dropped_unread} messages were deleted that a group had not read"
            )
        if parts.allocate.mlock_warning:
            warnings.append(f"mlock: {parts.allocate.mlock_warning}")
        if parts.pool is not None:
            warnings.extend(parts.pool.warnings)
        use = parts.retention.last_use or parts.retention.disk_use()
        return {
            "state": str(self.state),
            "min_physical_offset": log.min_offset,
            "written_offset": log.written,
            "committed_offset": log.committed,
            "flushed_offset": log.flushed,
            "dispatched_offset": log.dispatched,
            "flush_behind_bytes": log.written - log.flushed,
            "commit_behind_bytes": log.written - log.committed,
            "dispatch_behind_bytes": max(0, log.readable - log.dispatched),
            "puts": self.engine.put_count,
            "put_bytes": log.written - self.recovery.end,
            "dispatched_records": parts.dispatcher.records,
            "log_files": len(log.files),
            "spare_log_files": parts.allocate.ready_count,
            "queues": len(parts.queues.table) + len(parts.queues.batch),
            "index_files": len(parts.index.files) if parts.index is not None else 0,
            "mapped_files": mapping_count(),
            "locked_bytes": locked_byte_count() + (parts.pool.locked_bytes if parts.pool is not None else 0),
            "pool_free_buffers": parts.pool.free_count if parts.pool is not None else None,
            "sync_calls": log.sync_calls,
            "synced_bytes": log.synced_bytes,
            "put_lock_held_ms": log.lock_held_ms,
            "page_cache_busy": log.lock_held_ms > self.config.os_page_cache_busy_timeout_ms,
            "waits_for_space": parts.space.texts(),
            "allocation_error": str(parts.allocate.last_error) if parts.allocate.last_error else None,
            "dispatch_error": str(parts.dispatcher.error) if parts.dispatcher.error else None,
            "retention": parts.retention.policy(),
            "disk_used_percent": use.percent,
            "disk_used_path": use.path,
            "deleted_log_files": parts.retention.deleted_files,
            "held_removed_files": parts.retention.held_count,
            "dropped_unread_messages": parts.retention.dropped_unread,
            "records_without_queue": parts.queues.skipped,
            "last_store_timestamp_ms": log.last_store_timestamp,
            "recovery_seconds": self.recovery.seconds,
            "service_errors": {s.name: str(s.error) for s in parts.services() if s.error is not None},
            "warnings": warnings,
        }

    def _warn(self, text: str) -> None:
        """Log a WARNING, once for each text, and add a line to ``stats()["warnings"]``."""
        if text in self._warned:
            return
        self._warned.append(text)
        del self._warned[:-_WARNINGS_KEPT]
        _log.warning("%s: %s", self.path, text)

    @property
    def retention(self) -> RetentionService:
        """The retention service: ``policy()``, ``run_once`` and ``clean_now``."""
        return self._store_parts.retention

    def _check_open(self) -> None:
        self.check_still_open()
        check_not_nested()

    def check_still_open(self) -> None:
        """Check that this process may still change the store. Raises: StoreClosed, StoreForked."""
        if self._is_closed:
            self._refuse_closed()

    def _refuse_closed(self) -> None:
        if self._opened_in != os.getpid():
            raise StoreForked("this store was opened by the parent process; open it again in this one")
        raise StoreClosed(f"store {self.path} is closed")

    # --- close ---

    def close(self) -> None:
        """Flush and close. A second call has no effect. Messages and views that were returned stay valid.

        In a signal handler, a finalizer or a callback, if the interrupted call of this thread holds a lock: puts are
        refused at once, and another thread closes the store as soon as that call has released the lock. The interpreter
        waits for this thread at its end. If the interrupted call is a close, nothing happens: that close continues.

        Raises: FlushError, StorageError if data could not be made durable; the next open then recovers. MemoryError if
        memory was short; call close again.
        """
        if self._opened_in != os.getpid():
            return  # a forked child: threads, lock and files are the parent's
        if self._is_closed and self._close_lock.is_mine:
            return
        if is_nested():
            self._close_in_a_thread()
            return
        with self._close_lock:
            if not self._is_closed:
                self._closing = self._steps_of_closing()
                self._is_closed = True
            self._run_steps(self._closing)
            failure, self._close_failure = self._close_failure, None
            if failure is not None:
                raise failure

    def _close_in_a_thread(self) -> None:
        self._refuse_puts()
        if self._closer is None:
            # no thread can start at the end of the interpreter, which closes all stores
            with contextlib.suppress(RuntimeError):
                self._closer = start_thread(self._close_later, "mqfast-close", daemon=False)

    def _close_later(self) -> None:
        try:
            self.close()
        except Exception as error:
            _log.error("%s: close: %s", self.path, error)
        finally:
            self._closer = None

    def _run_steps(self, steps: list[Callable[[], object]]) -> None:
        """Run the steps, last first. Steps that remain after a MemoryError or a signal handler's exception run in the
        next close.
        """
        while steps:
            try:
                steps[-1]()
            except MemoryError:
                raise
            except Exception as error:
                # An exception of another type comes from a signal handler; an exception of a step is raised again at
                # each attempt.
                if not isinstance(error, MqfastError | OSError) and self._interruptions < _MOST_INTERRUPTIONS:
                    self._interruptions += 1
                    raise
                self._close_failure = self._close_failure or error
            steps.pop()

    def _steps_of_closing(self) -> list[Callable[[], object]]:
        log, parts = self.log, self._store_parts
        steps: list[Callable[[], object]] = [self._refuse_puts, self._end_arrivals]
        steps += [parts.retention.close, parts.metadata.close]
        if parts.prefault is not None:
            steps.append(parts.prefault.close)
        if parts.commit is not None:
            steps.append(parts.commit.close)
        steps.append(parts.allocate.close)  # spare files first: the next steps may need their space
        if log.error_number:
            steps += [parts.reput.service.stop, parts.flush.close]
        elif log.sync_flush:
            steps += [log.flush, parts.reput.close, parts.flush.close]
        else:
            steps += [parts.reput.close, parts.flush.close]
        steps += [
            parts.syncs.close,
            lambda: self._if_there_is_space("topics.json", parts.metadata.persist_topics),
            lambda: self._if_there_is_space("consumerOffset.json", parts.metadata.persist_last_offsets),
            self._say_closed_in_order,
            self._release,
            self._forget,
        ]
        steps.reverse()
        return steps

    def _if_there_is_space(self, name: str, persist: Callable[[], object]) -> None:
        try:
            persist()
        except DiskFull as error:
            self._warn(f"{name} could not be written at close, and is as it was before: {error}")

    def _refuse_puts(self) -> None:
        self.log.set_flag(LogFlag.CLOSED)

    def _end_arrivals(self) -> None:
        self.engine.end_arrivals()

    def _say_closed_in_order(self) -> None:
        log = self.log
        if self._close_failure is None and not log.error_number and log.dispatched >= log.written:
            with contextlib.suppress(DiskFull):  # an older checkpoint claims less, which is always safe
                self._store_parts.checkpoint.flush()
            _lock.remove_abort(self.os_api, self.paths.abort)

    def _release(self) -> None:
        with self._store_parts.dispatcher.locked():  # a get may still be dispatching where a flush failed
            self._run_steps(self._close_steps)

    def _forget(self) -> None:
        # the producers and the store refer to each other, and the garbage collector cannot break that cycle
        self.forget_producers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MessageStore cannot be pickled: one process writes a store; another one opens mqfast.StoreReader(path)"
        )

    def __repr__(self) -> str:
        return f"<MessageStore {self.path} {self.state}>"


def _numbers(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"{name}: expected a whole number of 64 bits, found {value!r}")


def _offset(where: object) -> int:
    if not is_whole(where, 0, (1 << 63) - 1):
        raise OffsetError(f"look: expected a physical offset of 0 to 2^63-1 or a message id, found {where!r}")
    return where


def is_damage(error: Exception) -> bool:
    """Return True if a record begins at the offset but its content does not match its checksum."""
    return isinstance(error, CorruptFile) and error.expected != "a whole record"


@former_argument("door", "os_api")
def open_store(
    path: str | os.PathLike[str],
    *,
    config: StoreConfig | None = None,
    broker_conf: str | os.PathLike[str] | None = None,
    create: bool = True,
    os_api: OsApi | None = None,
    progress: Callable[[int, int], None] | None = None,
    tables: ConfigTables | None = None,
    _start_services: bool = True,
    **settings: Unpack[StoreSettings],
) -> MessageStore:
    """Create a store or open an existing store for writing. Recovers the store if its last writer did not close it.

    A new store is small and deletes nothing. ``retention="72h"``, ``"20GB"`` or ``"72h, 20GB"`` turns deletion on.
    ``profile="broker"`` selects RocketMQ's sizes and retention; a broker_conf implies this profile. An existing store
    keeps its sizes.

    Args: settings: RocketMQ's names (``mappedFileSizeCommitLog=...``) or ours (``flush_disk_type="SYNC_FLUSH"``).
    broker_conf: path of a RocketMQ property file; settings override its values. config: a StoreConfig instead of both.
    create: False raises StoreNotFound instead of creating a store. progress: called during recovery with (bytes done,
    bytes to do). tables: the tables of ``config/``, which the caller has loaded with ``ConfigTables.load`` and
    persists. The store reads and changes these objects in memory and never reads or writes their files.
    Returns: MessageStore, a context manager.
    Raises: UsageError for an empty path, ConfigError, StoreLocked, StoreNotFound, CorruptFile, DiskFull, StorageError.
    """
    real_api = os_api or OsApi()
    text = _paths.root_of(path, real_api)
    if config is None:
        if broker_conf is not None:
            config = StoreConfig.from_broker_conf(
                _paths.absolute(broker_conf, "broker_conf"), os_api=real_api, **settings
            )
        else:
            config = StoreConfig.from_kwargs(**settings)
    elif settings or broker_conf is not None:
        raise ConfigError("open: expected either a config object or settings, found both")
    if not create and not real_api.is_dir(os.path.join(text, "commitlog")) and not config.commit_log_dirs:
        raise StoreNotFound(2, "no store here (no commitlog directory)", text)
    return MessageStore(
        text, config, os_api=real_api, progress=progress, tables=tables, _start_services=_start_services
    )


def _close_all() -> None:
    for store in list(_stores):
        with contextlib.suppress(Exception):
            store.close()


def _forked() -> None:
    for store in list(_stores):
        store._is_closed = True
        store._close_lock = Mutex(nests=True)  # a thread of the parent may have held the lock
        store.log.set_flag(LogFlag.FORKED)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forked)
