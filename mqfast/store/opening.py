"""Opening of a store: builds the parts in order, runs recovery, and adds the close step of each part beside the part.

No thread runs before recovery is done. ``MessageStore`` starts the services and closes the store.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from mqfast.errors import ConfigError, DiskFull
from mqfast.store.base import lock as _lock
from mqfast.store.base import paths as _paths
from mqfast.store.base.results import LogFlag
from mqfast.store.base.space import Space
from mqfast.store.check.cut import finish_cut
from mqfast.store.check.recovery import RecoveryMemory, RecoveryReport, recover, refuse_damage, sync_names
from mqfast.store.dispatch.dispatch import CommitLogDispatcher
from mqfast.store.dispatch.reput import PrefaultService, ReputMessageService
from mqfast.store.engine import Engine
from mqfast.store.file_sizes import sizes_of_files
from mqfast.store.index.index_service import IndexService
from mqfast.store.log.allocate import AllocateMappedFileService
from mqfast.store.log.commit_log import CommitLog
from mqfast.store.log.flush import CommitService, FlushService, SyncService
from mqfast.store.log.retention import RetentionService
from mqfast.store.meta.checkpoint import StoreCheckpoint
from mqfast.store.meta.metadata import TopicConfigTable
from mqfast.store.meta.notes import Deletion, StoreNotes
from mqfast.store.meta.offsets import ConsumerOffsets
from mqfast.store.meta.persist import MetadataService
from mqfast.store.queues.queue_store import QueueStore
from mqfast.store.raw_log import RawLog, Rooms

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.config import StoreConfig
    from mqfast.store.base.lock import StoreLock
    from mqfast.store.base.os_api import Mutex, OsApi
    from mqfast.store.base.service import Service
    from mqfast.store.log.transient_pool import TransientStorePool
    from mqfast.store.meta.tables import ConfigTables

__all__ = ["DeferredSteps", "OpenStore", "open_parts", "require_all_units"]

_log = logging.getLogger("mqfast.store")

_RETRY_S: Final = 1.0  # between two attempts of the deferred steps on a full disk


class DeferredSteps:
    """The steps of an open that need disk space and must end before the first put.

    On a full disk a put or the dispatch thread runs them later (``CommitLog.get_ready``).
    """

    def __init__(self, log: CommitLog, dispatcher: CommitLogDispatcher, space: Space) -> None:
        self._log: Final = log
        self._dispatcher: Final = dispatcher
        self._space: Final = space
        self._steps: list[Callable[[], object]] = []
        self._error: DiskFull | None = None
        self._retry_at = 0.0

    def run_or_defer(self, step: Callable[[], object]) -> None:
        """Run a step; on a full disk keep the step for ``run``."""
        try:
            step()
        except DiskFull as error:
            self._space.see("puts", error)
            self._steps.append(step)

    def install(self) -> None:
        """Refuse puts until the deferred steps have run. No effect without deferred steps."""
        if self._steps:
            self._log.get_ready = self.run
            self._log.set_flag(LogFlag.WAITING)

    def run(self) -> None:
        """Run the deferred steps. Raises: DiskFull, StorageError."""
        with self._dispatcher.locked():
            if self._error is not None and time.monotonic() < self._retry_at:
                raise copy.copy(self._error)
            while self._steps:
                try:
                    self._steps[-1]()
                except DiskFull as error:
                    self._error = copy.copy(error)  # without its traceback, which would keep files open
                    self._retry_at = time.monotonic() + _RETRY_S
                    self._space.see("puts", error)
                    raise
                self._steps.pop()
            self._log.set_flag(LogFlag.WAITING, False)
            self._space.see("puts", None)


@dataclass(frozen=True)
class OpenStore:
    """The parts of an open store. ``index``, ``pool``, ``commit``, ``prefault``: None if the settings need none."""

    paths: _paths.StorePaths
    config: StoreConfig
    space: Space
    checkpoint: StoreCheckpoint
    notes: StoreNotes
    topic_table: TopicConfigTable
    consumer_offsets: ConsumerOffsets
    queues: QueueStore
    index: IndexService | None
    dispatcher: CommitLogDispatcher
    recovery: RecoveryReport
    metadata: MetadataService
    allocate: AllocateMappedFileService
    pool: TransientStorePool | None
    flush: FlushService
    syncs: SyncService
    commit: CommitService | None
    reput: ReputMessageService
    prefault: PrefaultService | None
    retention: RetentionService
    engine: Engine

    def services(self) -> list[Service]:
        """Return the services in the order of their start."""
        owners = (self.allocate, self.syncs, self.flush, self.commit, self.reput, self.prefault, self.retention)
        return [owner.service for owner in (*owners, self.metadata) if owner is not None]


@dataclass(frozen=True)
class _Files:
    """The small files of a store, and the settings with the sizes of existing files."""

    paths: _paths.StorePaths
    config: StoreConfig
    clean: bool
    checkpoint: StoreCheckpoint
    notes: StoreNotes
    topic_table: TopicConfigTable
    consumer_offsets: ConsumerOffsets


def open_parts(
    path: str,
    settings: StoreConfig,
    *,
    os_api: OsApi,
    lock: StoreLock,
    close_lock: Mutex,
    close_steps: list[Callable[[], object]],
    warn: Callable[[str], None],
    tables: ConfigTables | None,
    progress: Callable[[int, int], None] | None,
) -> OpenStore:
    """Load or create the files of a store, run recovery, and build the parts.

    Args: lock: the store's lock, already acquired. close_steps: receives the close step of each part as soon as the
    part is open; the caller runs the steps last first, also if this call raises. tables: the caller's tables of
    ``config/``, or None to load the tables. progress: called during recovery with (bytes done, bytes to do).
    Raises: ConfigError, CorruptFile, DiskFull, StorageError.
    """
    files = _load_files(path, settings, os_api, tables, warn)
    config, paths, clean, checkpoint, notes = files.config, files.paths, files.clean, files.checkpoint, files.notes
    space = Space()
    log = _new_log(os_api, paths, config)
    close_steps += [partial(_close_pool, log), log.close]  # the log first: its files have buffers of the pool
    log.set_flag(LogFlag.SLAVE, config.broker_role == "SLAVE")
    lock.cover(os_api, paths.commit_logs)
    finish_cut(os_api, log.path, log.file_bytes, notes, warn)
    log.load()
    queues = QueueStore(os_api, paths, config, files.topic_table, log.latch)
    close_steps.append(queues.close)
    queues.load()
    queues.on_restart = partial(_note_restarted_queue, log, notes, files.consumer_offsets)
    index = None
    if config.message_index_enable and config.index_file_write_enable:
        index = IndexService(os_api, paths.index, config, checkpoint)
        close_steps.append(index.close)
    dispatcher = CommitLogDispatcher(log, queues.table, queues, index, config.delay_levels_ms)
    dispatcher.space = space
    deferred = DeferredSteps(log, dispatcher, space)
    create_abort_file = partial(_lock.create_abort, os_api, paths.abort, os.getpid())
    if not clean or log.files:
        deferred.run_or_defer(create_abort_file)
    confirmed = checkpoint.confirm_phy_offset
    memory = RecoveryMemory(notes, files.topic_table, paths, warn)
    recovery = recover(log, queues, index, dispatcher, checkpoint, config, memory, clean=clean, progress=progress)
    metadata = MetadataService(
        log,
        queues,
        files.topic_table,
        files.consumer_offsets,
        notes,
        config,
        space,
        warn,
        start=recovery.end,
        owns_tables=tables is None,
    )
    metadata.forget_offsets(memory.left_over)
    if not log.files and notes.is_there:
        metadata.persist_notes()  # of the files of an earlier log
    if clean and not log.files:
        deferred.run_or_defer(create_abort_file)
    cut_offsets = partial(_cut_offsets, config, files.consumer_offsets, queues, recovery)
    if dispatcher.hold_back(log.written):
        deferred.run_or_defer(partial(_end_queue_recovery, dispatcher, queues, cut_offsets))
    else:
        cut_offsets()
    deferred.install()
    allocate = AllocateMappedFileService(os_api, log, config, space)
    log.allocator = allocate
    pool = _new_pool(os_api, config, log, allocate) if config.transient_store_pool_enable else None
    flush = FlushService(log, queues, index, checkpoint, config, space, warn)
    retention = RetentionService(os_api, paths, log, queues, index, files.consumer_offsets, config)
    queried = index if config.index_file_read_enable else None
    engine = Engine(log, queues.table, dispatcher, queues, queried, config, flush.waiters)
    rooms = Rooms(
        log=log,
        queues=queues,
        index=index,
        dispatcher=dispatcher,
        checkpoint=checkpoint,
        config=config,
        memory=memory,
        allocate=allocate,
        flush=flush,
        retention=retention,
        closing=close_lock,
    )
    engine.raw = RawLog(rooms, confirmed)
    _log.info("%s: retention: %s", path, retention.policy())
    return OpenStore(
        paths=paths,
        config=config,
        space=space,
        checkpoint=checkpoint,
        notes=notes,
        topic_table=files.topic_table,
        consumer_offsets=files.consumer_offsets,
        queues=queues,
        index=index,
        dispatcher=dispatcher,
        recovery=recovery,
        metadata=metadata,
        allocate=allocate,
        pool=pool,
        flush=flush,
        syncs=SyncService(log),
        commit=CommitService(log, config) if pool is not None else None,
        reput=ReputMessageService(log, dispatcher),
        prefault=PrefaultService(log) if log.ready_bytes else None,
        retention=retention,
        engine=engine,
    )


def require_all_units(dispatcher: CommitLogDispatcher, queues: QueueStore) -> None:
    """Raise DiskFull while units of queues wait for disk space."""
    if dispatcher.units_wait and queues.full is not None:
        raise copy.copy(queues.full)


def _load_files(
    path: str, config: StoreConfig, os_api: OsApi, tables: ConfigTables | None, warn: Callable[[str], None]
) -> _Files:
    root = config.store_path_root_dir
    if root is not None and _paths.absolute(root, "store_path_root_dir") != path:
        raise ConfigError(f"store_path_root_dir: expected the path of the store, {path}, found {root}")
    if len(config.commit_log_dirs) > 1 or config.read_only_commit_log_dirs:
        raise ConfigError("store_path_commit_log: expected one directory, found several")
    paths = _paths.StorePaths(path, config.commit_log_dirs)
    config = sizes_of_files(os_api, paths, config)
    config.check_budget()
    clean = not _lock.abort_exists(os_api, paths.abort)
    checkpoint = StoreCheckpoint.load(os_api, paths.checkpoint)
    if config.on_damage == "stop":
        refuse_damage(os_api, paths, config, checkpoint, clean)
    notes = StoreNotes.load(os_api, paths)
    for text in notes.warnings:
        warn(text)
    if not clean:
        sync_names(os_api, paths)
    if tables is None:
        topics = TopicConfigTable.load(os_api, paths.topics)
        step = config.consumer_offset_update_version_step
        offsets = ConsumerOffsets.of_store(os_api, paths, lmq=config.enable_lmq, version_step=step)
    elif tables.path != path:
        raise ConfigError(f"tables: expected those of the store {path}, found those of {tables.path}")
    else:
        topics, offsets = tables.topics, tables.offsets
    return _Files(paths, config, clean, checkpoint, notes, topics, offsets)


def _new_log(os_api: OsApi, paths: _paths.StorePaths, config: StoreConfig) -> CommitLog:
    return CommitLog(
        os_api,
        paths.commit_logs[0],
        config.mapped_file_bytes_commit_log,
        sync_flush=config.sync_flush,
        hide_unflushed=config.sync_flush and not config.read_uncommitted,
        crc_property=config.enabled_append_prop_crc,
        inline_dispatch=config.dispatch == "inline",
        prefault_window=config.prefault_window_bytes,
        zeros_ahead=config.zeros_ahead_bytes,
    )


def _new_pool(
    os_api: OsApi, config: StoreConfig, log: CommitLog, allocate: AllocateMappedFileService
) -> TransientStorePool:
    from mqfast.store.log.transient_pool import TransientStorePool

    pool = TransientStorePool(
        os_api, config.transient_store_pool_size, config.mapped_file_bytes_commit_log, config.mlock_budget_bytes
    )
    allocate.pool = pool
    log.enable_pool(pool)
    return pool


def _close_pool(log: CommitLog) -> None:
    if log.pool is not None:
        log.pool.close()


def _end_queue_recovery(dispatcher: CommitLogDispatcher, queues: QueueStore, cut_offsets: Callable[[], None]) -> None:
    """Dispatch the waiting units: only a queue with all its units gives the next queue offset."""
    dispatcher.step(-1, True)
    require_all_units(dispatcher, queues)
    queues.end_recovery(dispatcher.log.min_offset)
    cut_offsets()


def _cut_offsets(config: StoreConfig, offsets: ConsumerOffsets, queues: QueueStore, recovery: RecoveryReport) -> None:
    """Lower the group offsets that are above the end of the queue."""

    def end_of(topic: str, queue_id: int) -> int | None:
        queue = queues.get(topic, queue_id)
        if queue is not None:
            return queue.max_offset
        # After a clean stop an absent queue never had a message, and its offset was chosen ahead of the first one.
        return None if recovery.clean else 0

    if config.broker_role != "SLAVE":  # a slave's offsets come from its master, ahead of the log
        offsets.cut(end_of)


def _note_restarted_queue(
    log: CommitLog,
    notes: StoreNotes,
    offsets: ConsumerOffsets,
    topic: str,
    queue_id: int,
    last: tuple[int, int] | None,
) -> None:
    """Note that the master of this slave deleted the topic behind the record ``last``.

    Recovery then restores no record of the deleted topic, and the offsets of the groups in this queue begin at 0.
    """
    offsets.cut(lambda name, number: 0 if (name, number) == (topic, queue_id) else None)
    known, stored_ms = notes.deletions.get(topic), -1 if last is None else log.store_timestamp(*last)
    if last is not None and stored_ms >= 0 and (known is None or known.end < sum(last)):
        notes.note_deletion(topic, Deletion(*last, stored_ms))
