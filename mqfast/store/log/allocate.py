"""AllocateMappedFileService: creates log files ahead of need, so that a roll is a pointer swap (RocketMQ:
AllocateMappedFileService).

Leaves no half file behind, retries a full disk at most once a second, and returns only the file of the requested
offset. A full disk is reported here, as DiskFull, before a byte of a message is written.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from mqfast.errors import DiskFull, MqfastError, PoolExhausted, StorageError, StoreBusy, StoreClosed
from mqfast.store.base import paths as _paths
from mqfast.store.base.event import Event
from mqfast.store.base.mapped_file import MappedFile
from mqfast.store.base.memory_room import MemoryRoom
from mqfast.store.base.os_api import Mutex, decode_path, encode_path
from mqfast.store.base.service import Service
from mqfast.store.base.space import Space
from mqfast.store.log.service_loops import wait_until_written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqfast.config import StoreConfig
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.log.transient_pool import TransientStorePool

__all__ = ["AllocateMappedFileService"]

_log = logging.getLogger("mqfast.store")

_TAKE_TIMEOUT_S: Final = 5.0
_LONGEST_NAP_S: Final = 0.1
_RETRY_S: Final = 1.0
_POLL_S: Final = 0.05  # while work waits for space on the disk
_LONGEST_WAIT_S: Final = 60.0
# Files up to this size are all created at once. Of larger files the next is created when the current is half full and
# the second next at three quarters, so that a store of a few messages does not take three files of 64 MiB or 1 GiB.
_EAGER_BYTES: Final = 4 << 20


class AllocateMappedFileService:
    """Files of the log, created in a background thread.

    Thread: ``request_file`` from the putting thread (a single thread at a time: the roll lock), the rest from the
    service's own thread.
    """

    def __init__(self, os_api: OsApi, log: CommitLog, config: StoreConfig, space: Space | None = None) -> None:
        self._os_api = os_api
        self._log = log
        self._config = config
        self._space = space or Space()
        self._guard = Mutex()
        self._steps = Mutex()  # held while a file is created
        self._made = Event()  # set when a file is ready, or its creation failed
        self._ready: dict[int, MappedFile] = {}
        self._failed: dict[int, MqfastError] = {}
        self._urgent: int | None = None
        self._retry_at = 0.0
        self._blocks_at = 0.0
        self._blocks_wanted = 0  # bytes of a put that was refused for lack of them
        self._blocks_error: DiskFull | None = None  # the error of that put
        self._closed = False
        self._memory: MemoryRoom | None = None
        self.pool: TransientStorePool | None = None
        self.made = 0
        self.failed = 0
        self.last_error: MqfastError | None = None
        self.mlock_warning: str | None = None
        self.service = Service("allocate", self._run_once)

    def request_file(self, start: int) -> MappedFile:
        """Return the file that begins at ``start``; create the file if needed.

        Raises: DiskFull, StorageError of the creation; PoolExhausted; StoreBusy after more than five seconds;
        StoreClosed.
        """
        deadline = time.monotonic() + _TAKE_TIMEOUT_S
        while not self._is_ready(start):
            if not self.service.is_running:
                self.step()  # a store without services: no other thread creates the file
                continue
            self.service.wake()
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise StoreBusy(
                    11,
                    f"log file {_paths.offset_name(start)} was not ready in {_TAKE_TIMEOUT_S:.0f} s",
                    self._log.path,
                )
            self._made.wait(min(remaining_s, _LONGEST_NAP_S))  # signal handlers run between the waits
        with self._guard:
            if self._closed:
                raise StoreClosed("the store is closing")
            file = self._ready[start]
            if self.pool is not None and not self.pool.lend(file) and self._config.fast_fail_if_no_buffer_in_store_pool:
                raise PoolExhausted(
                    11, f"all {self.pool.capacity} buffers of the transient store pool wait for a commit"
                )
        return file

    def _is_ready(self, start: int) -> bool:
        """Return true if the file is ready; else request it. Raises: the error of a failed creation; StoreClosed."""
        with self._guard:
            if self._closed:
                raise StoreClosed("the store is closing")
            if start in self._ready:
                return True
            error = self._failed.pop(start, None)
            if error is not None:
                raise error
            if isinstance(self.last_error, DiskFull) and time.monotonic() < self._retry_at:
                raise copy.copy(self.last_error)
            self._urgent = start
            return False

    def confirm_file(self, file: MappedFile) -> None:
        """Note that the log has the file that ``request_file`` returned; until then ``request_file`` returns the
        same file again.
        """
        del self._ready[file.start_offset]  # in one step: after a lock was taken, an interrupt could keep the entry

    def plan_next(self, file: MappedFile) -> None:
        """Plan the next files after a roll to ``file``, unless the service waits for a position in that file."""
        if file.start_offset + file.file_bytes not in self._ready:
            self.service.wake()

    def _next(self, current: MappedFile) -> tuple[int, int] | None:
        """Return the start of the first missing file, and the log position from which on the file is wanted.

        None: no file is created ahead.
        """
        ahead_files, size, number = self._config.preallocate_files, current.file_bytes, 1
        if ahead_files == 0:
            return None
        while (start := current.start_offset + number * size) in self._ready or self._log.find_file(start) is not None:
            number += 1
        if size <= _EAGER_BYTES:
            quarters = 4 * (number - ahead_files)
        else:
            quarters = 4 * number - (2 if number == 1 or ahead_files == 1 else 5)
        return start, current.start_offset + quarters * size // 4

    def _next_start(self) -> int | None:
        """Return the start of the next file to create, or None when there are enough."""
        current = self._log.current_file
        if self._urgent is not None:
            return self._urgent if self._urgent not in self._ready else None
        if current is None or time.monotonic() < self._retry_at:
            return None
        planned = self._next(current)
        return planned[0] if planned is not None and self._log.written >= planned[1] else None

    def _run_once(self, event: Event) -> None:
        if not self.step():
            current, end = self._log.current_file, 0
            if current is not None:
                planned = self._next(current)
                end = planned[1] if planned is not None else current.start_offset + current.file_bytes
            blocks = self._log.blocks_end()
            if blocks >= 0:
                end = min(end, blocks)
            if self._blocks_wanted or self.last_error is not None or time.monotonic() < self._retry_at:
                event.wait(_POLL_S)
            elif current is None or self._log.written >= end:
                event.wait(_LONGEST_WAIT_S)  # a put or the roll wakes the thread
            else:
                wait_until_written(self._log, event, end, _LONGEST_WAIT_S)

    @contextlib.contextmanager
    def without_spares(self) -> Iterator[None]:
        """Create no file meanwhile, and remove the files created ahead: behind a truncated log they would leave a
        gap.
        """
        with self._steps:
            for start in sorted(self._ready, reverse=True):
                self._ready.pop(start).destroy()
                self._os_api.fsync_dir(self._log.path)
            yield

    def step(self) -> bool:
        """Create a file if one is wanted; failures are kept for ``request_file``. Returns true if a file was wanted."""
        with self._steps:
            return self._step()

    def _step(self) -> bool:
        with self._guard:
            start = None if self._closed else self._next_start()
        if self._blocks_wanted or 0 <= self._log.blocks_end() <= self._log.written:
            self._give_blocks()
        if start is None:
            self._check_room()
            return False
        urgent = start == self._urgent
        try:
            file = self._make(start, urgent)
        except MqfastError as error:
            self.failed += 1
            self._retry_at = time.monotonic() + _RETRY_S
            self._note(error)
            with self._guard:
                if urgent:
                    self._failed[start] = error
                    self._urgent = None
                self._made.set()
            return True
        try:
            self._offer(file)
        except MemoryError:
            if start not in self._ready:
                file.destroy()  # the name would block the next attempt
            raise
        return True

    def _give_blocks(self) -> None:
        """Allocate blocks of the current file, which existed at open and may have holes ahead of the puts."""
        if time.monotonic() < self._blocks_at:
            return
        try:
            self._log.give_blocks_ahead(self._blocks_wanted)
        except MqfastError as error:
            self._blocks_error = error if isinstance(error, DiskFull) else None
            self._blocks_at = time.monotonic() + _RETRY_S  # a put that needs blocks tries again, and raises the error
        else:
            self._blocks_wanted = 0
            self._blocks_error = None
            self._space.see("blocks", None)

    def check_blocks(self, needed: int) -> None:
        """Raise DiskFull for a put that needs blocks if the disk refused some less than a second ago."""
        if self._blocks_error is not None and time.monotonic() < self._blocks_at:
            self._blocks_wanted = max(self._blocks_wanted, needed)
            self._space.see("blocks", self._blocks_error)
            raise copy.copy(self._blocks_error)

    def wait_for_blocks(self, needed: int, error: DiskFull) -> None:
        """Note that a put of ``needed`` bytes was refused: the current file has holes, and the disk no blocks for
        them.
        """
        self._blocks_wanted = needed
        self._blocks_error = copy.copy(error)  # without the traceback, which would keep files open
        self._blocks_at = time.monotonic() + _RETRY_S
        self._space.see("blocks", error)
        self.service.wake()

    def retry_now(self) -> None:
        """Retry the disk now: space was freed."""
        self._retry_at = self._blocks_at = 0.0
        self.service.wake()

    def _note(self, error: MqfastError | None) -> None:
        self.last_error = error
        self._space.see("log", error if isinstance(error, DiskFull) else None)

    def _check_room(self) -> None:
        """Clear the error of a full disk once the disk has room for a file."""
        error = self.last_error
        if isinstance(error, DiskFull) and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _RETRY_S
            with contextlib.suppress(StorageError):  # the directory itself may have no room
                if self._os_api.statvfs(self._log.path)[1] >= self._log.file_bytes:
                    self._note(None)

    def _offer(self, file: MappedFile) -> None:
        with self._guard:
            self.made += 1
            self._note(None)
            if self._closed:
                file.destroy()
            else:
                self._ready[file.start_offset] = file
            if self._urgent == file.start_offset:
                self._urgent = None
            self._made.set()

    def _make(self, start: int, urgent: bool) -> MappedFile:
        if not self._log.files:
            self._os_api.makedirs(self._log.path)
        path = os.path.join(self._log.path, _paths.offset_name(start))
        if self._memory is None:
            place = os.path.realpath(encode_path(self._log.path))
            self._memory = MemoryRoom(self._os_api, decode_path(place))
        setting = "mapped_file_bytes_commit_log"
        self._memory.check(self._log.file_bytes, path, setting)
        # No pages are made ready here in three cases: with sync flush, blocks go to the disk before they are made
        # writable; buffers of a pool have their pages; and a put that waits for a file should not wait for its pages as
        # well.
        others = self._log.zeros_ahead > 0 or self.pool is not None or urgent
        file = MappedFile.create(
            self._os_api,
            path,
            start,
            self._log.file_bytes,
            setting=setting,
            appends=True,
            small_syncs=self._config.sync_flush,
            ready=0 if others else self._config.prefault_window_bytes,
        )
        try:
            if self._config.warm_mapped_file_enable:
                file.preheat()
                try:
                    if not file.lock_memory(self._config.mlock_budget_bytes):
                        self._warn_lock(f"mlock budget of {self._config.mlock_budget_bytes} bytes is used up")
                except StorageError as error:
                    self._warn_lock(str(error))
        except BaseException:
            file.destroy()
            raise
        return file

    def _warn_lock(self, text: str) -> None:
        if self.mlock_warning is None:
            _log.warning("log pages are not locked in memory: %s", text)
        self.mlock_warning = text

    @property
    def ready_count(self) -> int:
        """Number of files created and not taken yet."""
        return len(self._ready)

    def close(self) -> None:
        """Stop, and remove the files that were not used (as RocketMQ does at a clean stop)."""
        with self._guard:
            self._closed = True
            self._made.set()
        self.service.stop()
        # From the last file on, each synced: a crash in between must not leave a gap.
        for start in sorted(self._ready, reverse=True):
            self._ready.pop(start).destroy()
            self._os_api.fsync_dir(self._log.path)
