"""CommitLog: the files of the log, their positions, roll over, and reads by physical offset (RocketMQ: CommitLog,
MappedFileQueue).

Appends: append.pyx. Commit and flush: group_commit.pyx. The holder of the put lock never waits for the GIL, allocates
or syncs. Positions are physical offsets: flushed <= committed <= written. Formats: FORMAT.md.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from mqfast.store.queues.consume_queue cimport ConsumeQueue
from mqfast.store.log.group_commit cimport (
    call_waiters,
    commit_up_to,
    end_syncs,
    flush_up_to,
    is_behind,
    latch,
    readable,
    serve_syncs,
)
from mqfast.store.log.log_state cimport (
    LOG_ASLEEP,
    LOG_CLOSED,
    LOG_FAILED,
    LOG_FORKED,
    LOG_REFUSING,
    LOG_SLAVE,
    LOG_WAITING,
    BLANK_BYTES,
    RING,
    LogState,
    PendingFile,
    try_to_lock_puts,
    unlock_puts,
    wait_to_lock_puts,
)
from mqfast.store.base.mapped_file cimport FilePin, Latch, MappedFile, pin_file
from mqfast.store.base.os_api cimport (
    FOLIO,
    LONGEST_WAIT_NS,
    Mutex,
    OsApi,
    acquire,
    allocate,
    allocate_empty,
    check,
    check_room,
    crc31,
    decode_path,
    futex_wait,
    gets_signals,
    in_folios,
    latch_cut,
    lock,
    mq_and32,
    mq_assert,
    mq_load32,
    mq_load64,
    mq_lock_try,
    mq_or32,
    mq_os,
    mq_publish32,
    mq_put32,
    mq_store64,
    os_error,
    populate,
    release,
    unlock,
)
from mqfast.store.record.record cimport (
    MAGIC_BLANK,
    REC_OK,
    Record,
    StoredMessage,
    check_crc,
    make_message,
    offset_in_queue,
    parse_record,
    read_store_timestamp,
)

import os as _os

from mqfast.errors import (
    CorruptFile,
    DiskFull,
    FlushError,
    InternalError,
    MessageTooLarge,
    NotMaster,
    OffsetError,
    StorageError,
    StoreClosed,
    StoreFailed,
    StoreForked,
    UsageError,
)
from mqfast.store.base import paths as _paths

cdef int64_t PAGE = 4096
cdef int NO_SPACE = 28, OVER_QUOTA = 122, NO_PAGE = 14      # ENOSPC, EDQUOT, EFAULT of Linux
# step of the allocation for the rest of a file that existed at open; less on a nearly full disk
cdef int64_t BLOCKS_STEP = 16 << 20
cdef int64_t NAP_NS = 1000000


cdef double LONGEST_TIMEOUT_S = 1e9


cdef int64_t deadline_after(int64_t now_ns, object timeout) except? -2:
    """Return the monotonic ns at which a wait of ``timeout`` seconds ends; -1: never. Raises: UsageError."""
    cdef double seconds
    if timeout is None:
        return -1
    try:
        if isinstance(timeout, (str, bytes, bytearray)):
            raise TypeError
        seconds = float(timeout)
    except OverflowError:
        return -1 if timeout > 0 else now_ns
    except (TypeError, ValueError):
        raise UsageError(f"timeout: expected seconds or None, found {type(timeout).__name__}") from None
    if seconds != seconds:
        raise UsageError("timeout: expected seconds or None, found nan")
    if seconds >= LONGEST_TIMEOUT_S:
        return -1
    return now_ns + <int64_t> (max(seconds, 0.0) * 1e9)


# --- the log ---

@cython.no_gc_clear      # __dealloc__ needs the latch
cdef class CommitLog:
    """The files of the log and the append position.

    Thread: append paths take the put lock; reads and flushes may run concurrently.
    """

    def __cinit__(self):
        self.latch = Latch()
        self.latch.c.error = &self.state.error
        self.latch.c.bits = LOG_FAILED
        self.latch.c.flags = &self.state.flags

    def __dealloc__(self):
        latch_cut(&self.latch.c)

    def __init__(self, OsApi os_api, path, file_bytes, *, sync_flush=False, hide_unflushed=False, crc_property=False,
                 inline_dispatch=True,
                 prefault_window=16 << 20, zeros_ahead=8 << 20):
        self.os_api = os_api
        self.path = path
        self.file_bytes = file_bytes
        self.files = []
        self.retained = []
        self.roll_lock = Mutex()
        self.sync_flush = sync_flush
        self.hide_unflushed = hide_unflushed
        self.prefault_window = prefault_window
        self.zeros_ahead = zeros_ahead if sync_flush else 0
        self.state.os = os_api.os
        self.state.borrowed = self.state.arrivals_fd = -1
        self.state.confirm = INT64_MAX
        self.state.crc_property = crc_property
        self.inline_dispatch = self.state.inline_dispatch = inline_dispatch

    # --- load and recovery ---

    def load(self) -> None:
        """Load the files of the directory; until recovery the positions are at the end of the last file. Raises:
        CorruptFile.
        """
        segments = _paths.list_offset_files(self.os_api, self.path)[0]
        expected = None
        for number, (start, path) in enumerate(segments, 1):
            if number == len(segments) and self.os_api.file_size(path) == 0:
                self.os_api.unlink(path)          # created, but without its length
                continue
            if start % self.file_bytes or (expected is not None and start != expected):
                raise CorruptFile("log file out of place", path=path, expected=expected if expected is not None
                                  else f"a multiple of {self.file_bytes}", found=start)
            self.files.append(MappedFile.load(self.os_api, path, start, self.file_bytes))
            expected = start + self.file_bytes
        if expected is not None:
            self._set_positions(expected, 0)

    cdef int _set_positions(self, int64_t end, int64_t store_timestamp) except -1:
        """Set all positions to `end`, behind a record of that store time. Not during a sync or commit: their positions
        must agree.
        """
        cdef LogState *s = &self.state
        with nogil:
            lock(&s.flush_lock)
            lock(&s.commit_lock)
            s.written = s.committed = s.flushed = s.dispatched = s.walked = s.prefaulted = s.led_end = end
            s.last_store_timestamp = s.dispatched_timestamp = s.flushed_timestamp = s.led_timestamp = store_timestamp
            unlock(&s.commit_lock)
            unlock(&s.flush_lock)
        return 0

    def truncate(self, int64_t end, int64_t store_timestamp, int64_t sync_from=-1, take=None) -> list:
        """Truncate the log at physical offset ``end``: later files are removed, the rest of the last file is cleared.

        Args: take: called with the path of each file before its removal; may move the file away.
        Returns: the names of the removed files. At open, or after ``rewind``.
        Durability: the cleared bytes are synced, so that a stale record cannot reappear after a power cut; with
        ``sync_from``, everything from there on is synced, since a killed writer may have left it in the page cache
        only.
        """
        cdef MappedFile file
        cdef mq_os *os = self.os_api.os
        cdef int rc
        cdef int64_t first, n
        removed = []
        if sync_from >= 0:
            self._sync_range(sync_from, end)
        while self.files and (<MappedFile> self.files[len(self.files) - 1]).start_offset >= end and not (
            (<MappedFile> self.files[len(self.files) - 1]).start_offset == end and len(self.files) == 1
        ):
            file = self.files.pop()
            removed.append(_paths.offset_name(file.start_offset))
            if take is not None:
                take(file.path)
            file.destroy()
            self.os_api.fsync_dir(self.path)      # each synced: a power cut in between must not leave a gap
        self._set_positions(end, store_timestamp)
        if self.files:
            file = self.files[len(self.files) - 1]
            if end < file.start_offset + self.file_bytes:
                if file.zero_tail(end - file.start_offset):
                    first = (end - file.start_offset) & ~(PAGE - 1)
                    n = self.file_bytes - first
                    file.hold()
                    try:
                        with nogil:
                            rc = os.msync(os, file.base + first, n)
                    finally:
                        file.release()
                    check(rc, "msync", file.path)
                file.expect_appends(self.sync_flush)
                self._retain(file)
                file.allocated = end - file.start_offset
                self._switch_to(file)
                self.current = file
                try:
                    self._give_blocks(0, BLOCKS_STEP)
                except StorageError:
                    pass        # a put tries again, and raises the error
        return removed

    cdef int _give_blocks(self, int64_t needed, int64_t ahead) except -1:
        """Allocate blocks of the current file up to ``needed`` bytes behind the written position, and ``ahead`` more.

        The file may have holes (RocketMQ never allocates, and copies may be sparse), and a write into a hole of a full
        disk would be a lost page. Allocated blocks keep their bytes. The page cache may keep up to 2 MiB as a unit,
        which a write to any byte makes dirty: those bytes get their blocks together.

        Before the first put, or under the roll lock. Raises: DiskFull, StorageError; nothing changed then.
        """
        cdef LogState *s = &self.state
        cdef mq_os *os = s.os
        cdef MappedFile file = self.current
        cdef int64_t end = mq_load64(&s.written) - s.file_start + needed + BLANK_BYTES
        cdef int64_t min_end = min(in_folios(end), s.whole_bytes), stop = min(in_folios(end + ahead), s.whole_bytes)
        cdef int64_t start = file.allocated, before = start & (FOLIO - 1)
        cdef int rc, fd = file.fd
        if min_end <= start:
            return 0
        while True:
            with nogil:
                rc = allocate(os, fd, start - before, before) if before else 0      # existing bytes are kept
                if rc >= 0:
                    rc = allocate_empty(os, fd, start, stop - start)
            if rc >= 0 or stop <= min_end:
                break
            stop = min_end
        check_room(self.os_api, rc, "allocate", file.path, stop - start, None)
        file.allocated = stop
        mq_store64(&s.file_bytes, stop)
        return 0

    def blocks_end(self) -> int:
        """Return the physical offset at which the current file needs the next blocks; -1: it has all blocks."""
        cdef LogState *s = &self.state
        return (max(s.file_start, s.file_start + s.file_bytes - BLOCKS_STEP // 2)
                if 0 < s.file_bytes < s.whole_bytes else -1)

    def give_blocks_ahead(self, int64_t needed) -> None:
        """Allocate the next blocks of the current file, at least ``needed`` bytes, so that no put waits. Raises:
        DiskFull, StorageError.
        """
        acquire(self.roll_lock)
        try:
            if self.blocks_end() >= 0:
                self._give_blocks(needed, BLOCKS_STEP)
        finally:
            release(self.roll_lock)

    cdef int _sync_range(self, int64_t first, int64_t end) except -1:
        """Sync everything from physical offset first up to end.

        The pages are made dirty before: after a failed sync the kernel takes them for clean, and would not write them.
        """
        cdef MappedFile file
        cdef mq_os *os = self.os_api.os
        cdef int64_t n, at
        cdef int rc
        for file in self.files:
            n = min(end, file.start_offset + self.file_bytes) - file.start_offset
            if file.start_offset + self.file_bytes <= first or n <= 0:
                continue
            at = max(first - file.start_offset, 0) & ~(PAGE - 1)
            file.hold()
            try:
                self._dirty(file, at, n)
                with nogil:
                    rc = os.msync(os, file.base + at, n - at)
            finally:
                file.release()
            check(rc, "msync", file.path)
        return 0

    cdef int _dirty(self, MappedFile file, int64_t at, int64_t end) except -1:
        """Make the data pages of a mapped file dirty, but no holes, for which a full disk may have no block."""
        cdef mq_os *os = self.os_api.os
        cdef int64_t data
        cdef int rc, fd
        file.open_fd()
        fd = file.fd
        with nogil:
            rc = os.fallocate(os, fd, at, end - at)
            if rc != -NO_SPACE and rc != -OVER_QUOTA:
                rc = populate(os, file.base + at, end - at)
            else:
                rc = 0
                while rc >= 0:      # page by page: the next page that holds data
                    data = os.seek_data(os, fd, at)
                    if data < 0 or data >= end:
                        break
                    at = max(at, data & ~(PAGE - 1))
                    rc = populate(os, file.base + at, min(PAGE, end - at))
                    if rc == -NO_PAGE:      # its folio extends into a hole
                        rc = 0
                    at += PAGE
        file.close_fd()
        check(rc, "populate", file.path)
        return 0

    # --- files ---

    @property
    def min_offset(self) -> int:
        """First physical offset of the log; -1 without a file."""
        return (<MappedFile> self.files[0]).start_offset if self.files else -1

    @property
    def written(self) -> int:
        """Physical offset behind the last record."""
        return mq_load64(&self.state.written)

    @property
    def committed(self) -> int:
        """Physical offset up to which the log is in the page cache."""
        return mq_load64(&self.state.committed) if self.state.pooled else mq_load64(&self.state.written)

    @property
    def flushed(self) -> int:
        """Physical offset up to which the log is on the disk; after an interval flush it may be inside a record."""
        return mq_load64(&self.state.flushed)

    @property
    def flushed_timestamp(self) -> int:
        """Store time of the newest record known durable, ms; 0 for none."""
        return mq_load64(&self.state.flushed_timestamp)

    @property
    def readable(self) -> int:
        """Physical offset up to which readers may read."""
        return readable(&self.state, self.hide_unflushed)

    @property
    def dispatched(self) -> int:
        """Physical offset up to which the queues match the log."""
        return mq_load64(&self.state.dispatched)

    @property
    def dispatched_timestamp(self) -> int:
        """A store time, ms, up to which queues match the log."""
        cdef int64_t timestamp = mq_load64(&self.state.last_store_timestamp)
        if mq_load64(&self.state.dispatched) >= mq_load64(&self.state.written):
            self.state.dispatched_timestamp = timestamp
        return self.state.dispatched_timestamp

    def take_clock_fall(self) -> tuple | None:
        """Return and clear (from, to), store times in ms, if the clock fell by more than 3 s; else None."""
        cdef LogState *s = &self.state
        if mq_load64(&s.clock_fall_from) == 0:
            return None
        self.take_put_lock()
        fall = s.clock_fall_from, s.clock_fall_to
        mq_store64(&s.clock_fall_from, 0)
        unlock_puts(s)
        return fall

    @property
    def last_store_timestamp(self) -> int:
        """Store time of the newest record, ms."""
        return mq_load64(&self.state.last_store_timestamp)

    @property
    def flags(self) -> int:
        """The bits of ``LogFlag`` (store/base/results.py)."""
        return mq_load32(&self.state.flags) & ~<uint32_t> LOG_ASLEEP

    def set_flag(self, uint32_t flag, bint on=True) -> None:
        """Set or clear a LogFlag bit."""
        if on:
            mq_or32(&self.state.flags, flag)
            if flag & LOG_CLOSED:           # an append that read the old flags has ended when this returns
                self.take_put_lock()
                unlock_puts(&self.state)
        else:
            mq_and32(&self.state.flags, ~flag)

    @property
    def error_number(self) -> int:
        """errno of the failure that latched the log, or 0."""
        return -self.state.error

    @property
    def sync_calls(self) -> int:
        """Number of syncs."""
        return mq_load64(&self.state.sync_calls)

    @property
    def synced_bytes(self) -> int:
        """Number of bytes that the syncs covered."""
        return mq_load64(&self.state.synced_bytes)

    @property
    def lock_held_ms(self) -> int:
        """Duration of the current hold of the put lock by an append, ms; 0 when it is free."""
        since = mq_load64(&self.state.lock_since_ms)
        return max(0, self.os_api.now_ms() - since) if since else 0

    cdef MappedFile file_at(self, int64_t physical_offset):
        cdef MappedFile first
        cdef int64_t index
        if not self.files:
            return None
        first = self.files[0]
        index = (physical_offset - first.start_offset) // self.file_bytes
        if physical_offset < first.start_offset or index >= len(self.files):
            return None
        return self.files[index]

    @property
    def current_file(self) -> MappedFile | None:
        """The file that takes appends."""
        return self.current

    def find_file(self, int64_t physical_offset) -> MappedFile | None:
        """Return the file that holds this byte, or None."""
        return self.file_at(physical_offset)

    cdef int raise_state(self) except -1:
        """Raise if the state of the log forbids puts."""
        cdef uint32_t flags = mq_load32(&self.state.flags) & ~<uint32_t> LOG_ASLEEP
        if flags == 0:
            return 0
        self.check_state()
        if flags & LOG_SLAVE:
            raise NotMaster(f"store of {self.path}: expected broker_role ASYNC_MASTER or SYNC_MASTER for a put, "
                            "found SLAVE")
        if flags & LOG_WAITING:
            self.get_ready()
        if flags & LOG_REFUSING:
            raise DiskFull(28, "disk use is above its watermark and the policy refuses writes", self.path)
        return 0

    cdef int raise_lost(self) except -1:
        """Raise StoreFailed with the file name if a page was lost that was written through; also for a closing store.
        """
        if mq_load32(&self.latch.c.published):
            raise StoreFailed(-self.state.error, "the store was latched: a mapped page is gone at position"
                              f" {self.latch.c.position} (the file was cut short, or the disk could not read it);"
                              " reopen it to recover",
                              decode_path(<bytes> self.latch.c.path))
        return 0

    def check_state(self) -> None:
        """Raise if this log is unusable: StoreClosed, StoreForked, StoreFailed. Refused puts alone are no reason."""
        cdef uint32_t flags = mq_load32(&self.state.flags)
        if flags & LOG_FORKED:
            raise StoreForked("this store was opened by the parent process; open it again in this one")
        if flags & LOG_CLOSED:
            raise StoreClosed(f"store of {self.path} is closed")
        if flags & LOG_FAILED:
            self.raise_lost()
            raise StoreFailed(-self.state.error,
                              "the store was latched by a failed flush or write; reopen it to recover", self.path)

    cdef int take_put_lock(self) except -1:
        """Take the put lock with the GIL held: no sleep on the lock with the GIL, and no wait for the GIL with the
        lock.
        """
        cdef LogState *s = &self.state
        while not try_to_lock_puts(s):
            with nogil:
                wait_to_lock_puts(s)
                unlock_puts(s)
        return 0

    cdef int _retain(self, MappedFile file) except -1:
        """Hold a file until its bytes are durable. Call before the put lock is taken."""
        file.hold()
        try:
            file.open_fd()
            self.retained.append(file)
        except BaseException:
            file.release()
            raise
        file.watch(self.latch)
        return 0

    cdef void _switch_to(self, MappedFile file) noexcept:
        """Make a retained file the append target. The put lock is held, or no other thread exists yet."""
        cdef LogState *s = &self.state
        cdef PendingFile *f = &s.pending[s.pending_tail % RING]
        mq_assert(s.pending_tail - mq_load64(&s.pending_head) < RING, s.pending_tail, s.pending_head)
        mq_assert(file.base != NULL, file.start_offset, file.file_bytes)
        mq_assert(file.start_offset <= s.written, file.start_offset, s.written)
        f.start = file.start_offset
        f.bytes = f.used = file.file_bytes
        f.base = file.base
        f.buffer = file.buffer
        f.fd = file.fd
        mq_store64(&s.pending_tail, s.pending_tail + 1)
        s.base = file.buffer if file.buffer != NULL else file.base
        mq_store64(&s.file_start, file.start_offset)
        s.whole_bytes = file.file_bytes
        mq_store64(&s.file_bytes, max(<int64_t> 1, file.allocated))
        if mq_load64(&s.prefaulted) < file.start_offset + file.ready:
            mq_store64(&s.prefaulted, file.start_offset + file.ready)

    cdef int roll(self, int64_t needed) except -1:
        """Roll to the next file if the current file has no room for ``needed`` bytes.

        Another thread may have rolled meanwhile, or the reason of a refused append may be over. The put lock is not
        held.

        Raises: DiskFull, StorageError, PoolExhausted from the creation; StoreBusy when the file is not ready in time.
        """
        cdef LogState *s = &self.state
        acquire(self.roll_lock)
        try:
            self.raise_state()
            if s.file_bytes == 0 or mq_load64(&s.written) - s.file_start + needed + BLANK_BYTES > s.whole_bytes:
                self._roll_over()
            elif mq_load64(&s.written) - s.file_start + needed + BLANK_BYTES > s.file_bytes:
                self.allocator.check_blocks(needed)
                try:
                    self._give_blocks(needed, BLOCKS_STEP)
                except DiskFull as error:
                    self.allocator.wait_for_blocks(needed, error)
                    raise
        finally:
            release(self.roll_lock)
        return 0

    cdef int _roll_over(self) except -1:
        cdef LogState *s = &self.state
        cdef MappedFile file
        cdef int64_t rest, target
        cdef uint8_t *p
        cdef int rc
        if s.file_bytes and s.file_bytes < s.whole_bytes:
            self._give_blocks(0, 0)         # for the end mark
        self.reap()
        if s.pending_tail - mq_load64(&s.pending_head) >= RING - 2:
            target = mq_load64(&s.written)
            with nogil:
                rc = flush_up_to(s, target, -1)
            if rc < 0:
                self.raise_state()
            self.reap()
        file = self.allocator.request_file(s.file_start + s.whole_bytes if s.file_bytes
                                           else s.written - s.written % self.file_bytes)
        self.files.append(file)
        try:
            self._retain(file)
            self.allocator.confirm_file(file)
        except BaseException:
            self.files.pop()
            if self.retained and self.retained[len(self.retained) - 1] is file:
                self.retained.pop()
                file.watch(None)
                file.release()
            if file.buffer != NULL:
                self.pool.give_back(file)
            raise
        self.take_put_lock()
        if mq_load32(&s.flags) & LOG_CLOSED:
            unlock_puts(s)
            self.raise_state()
        if s.file_bytes:
            rest = s.file_start + s.whole_bytes - s.written
            if rest >= BLANK_BYTES:
                p = s.base + (s.written - s.file_start)
                mq_put32(p + 4, MAGIC_BLANK)
                mq_publish32(p, <int32_t> rest)
                mq_store64(&s.pending[(s.pending_tail - 1) % RING].used, s.written - s.file_start + BLANK_BYTES)
            if mq_load64(&s.dispatched) == s.written:
                mq_store64(&s.dispatched, s.file_start + s.whole_bytes)
            mq_store64(&s.written, s.file_start + s.whole_bytes)
        self._switch_to(file)
        unlock_puts(s)
        self.current = file
        self.allocator.plan_next(file)
        return 0

    def reap(self) -> None:
        """Release files whose bytes are all durable: return pool buffers, close descriptors."""
        cdef MappedFile file
        cdef LogState *s = &self.state
        mq_store64(&self.reap_head, mq_load64(&s.pending_head))
        # not by the length of `retained`: a concurrent roll has added its file and may still wait for the put lock
        while len(self.retained) > 1 and self.reaped < mq_load64(&self.reap_head):
            file = self.retained[0]
            if file.buffer != NULL and mq_load64(&s.borrowed) == file.start_offset:
                break                   # the dispatcher reads it, for some milliseconds
            mq_assert(file.start_offset + file.file_bytes <= mq_load64(&s.flushed), file.start_offset, s.flushed)
            mq_assert(file.references > 0, file.references, 0)
            self.retained.pop(0)
            self.reaped += 1
            if file.buffer != NULL:
                self.pool.give_back(file)
            file.watch(None)
            file.close_fd()
            file.release()

    # --- flush ---

    def flush(self, timeout=None) -> bool:
        """Make everything written so far durable.

        Args: timeout: seconds, None for no limit. Returns: False at the timeout. Raises: FlushError when a sync fails;
        the store is latched then. GIL: released while waiting.
        """
        cdef LogState *s = &self.state
        return self.wait_flushed(mq_load64(&s.written), timeout)

    def wait_flushed(self, int64_t end, timeout=None) -> bool:
        """Wait until everything before physical offset ``end`` is durable; as flush."""
        cdef LogState *s = &self.state
        cdef int64_t deadline = deadline_after(self.os_api.monotonic_ns(), timeout), until = -1
        cdef int rc
        if mq_load64(&s.flushed) >= end:
            return True
        while True:
            if deadline >= 0 or gets_signals():
                until = self.os_api.monotonic_ns() + LONGEST_WAIT_NS
                if 0 <= deadline < until:
                    until = deadline
            with nogil:
                rc = flush_up_to(s, end, until)
            if rc != 0 or until == deadline:
                break
            PyErr_CheckSignals()
        if rc < 0:
            # a closing store is not the cause
            self.raise_lost()
            raise FlushError(-rc, "flush failed; the store is latched", self.path)
        return rc == 1

    def serve_syncs(self) -> None:
        """Lead syncs for waiters with a deadline, which a slow disk must not delay, until end_syncs. GIL: released.
        Thread: one.
        """
        with nogil:
            serve_syncs(&self.state)

    def end_syncs(self) -> None:
        """Let serve_syncs return after the current sync. Safe to call twice."""
        cdef LogState *s = &self.state
        cdef uint32_t word = 0
        while not mq_lock_try(&s.flush_lock):
            with nogil:
                futex_wait(&word, 0, NAP_NS)
            PyErr_CheckSignals()
        with nogil:
            end_syncs(s)

    def flush_pages(self, int64_t least_pages) -> None:
        """Flush when at least ``least_pages`` pages of 4 KiB are not durable. GIL: released during the sync. Raises:
        FlushError.
        """
        cdef LogState *s = &self.state
        if mq_load64(&s.written) // PAGE - mq_load64(&s.flushed) // PAGE >= least_pages:
            self.wait_flushed(mq_load64(&s.written))

    def fail(self, int error_number) -> None:
        """Latch the log after a failed sync of another file of the store: nothing may be reported durable any more."""
        if not mq_load32(&self.state.flags) & LOG_FAILED:
            latch(&self.state, -error_number)

    def commit(self) -> int:
        """Copy pool buffers to the page cache up to the written position; return it. GIL: released."""
        cdef LogState *s = &self.state
        cdef int64_t target = mq_load64(&s.written)
        cdef int rc
        with nogil:
            rc = commit_up_to(s, target)
        if rc < 0:
            self._commit_failed(rc)
        return target

    cdef int _commit_failed(self, int rc) except -1:
        self.raise_lost()
        raise StoreFailed(-rc, "commit failed; the store is latched: reopen it to recover", self.path)

    def enable_pool(self, pool) -> None:
        """Write appends into buffers of this pool from the next file on."""
        self.pool = pool
        self.state.pooled = True
        self.state.committed = self.state.written

    def is_behind(self) -> bool:
        """Return true if readable records wait for dispatch, or, with a pool, a put found no room for a unit.

        The latter would grow to a whole commit interval's records before the commit, and puts put no unit themselves
        until the dispatcher has caught up.
        """
        return is_behind(&self.state, self.hide_unflushed)

    @property
    def ready_bytes(self) -> int:
        """Distance ahead of the written position up to which pages are kept writable; 0: not kept."""
        return self.zeros_ahead or self.prefault_window

    # --- read ---

    def message(self, int64_t physical_offset, bint verify=False) -> StoredMessage:
        """Return the record that starts at this physical offset.

        Raises: OffsetError outside the readable log; CorruptFile when no whole record starts there.
        """
        cdef MappedFile file = self.file_at(physical_offset)
        cdef int64_t limit = readable(&self.state, self.hide_unflushed)
        cdef Record r
        cdef FilePin held
        cdef const uint8_t *p
        cdef int outcome
        if file is None or physical_offset < 0 or physical_offset >= limit:
            raise OffsetError(f"physical offset {physical_offset} is outside the log: expected {self.min_offset} to"
                              f" {limit - 1} (of the log, not of a queue)")
        held = pin_file(file)
        p = held.base + (physical_offset - file.start_offset)
        outcome = parse_record(p, min(limit, file.start_offset + file.file_bytes) - physical_offset, &r)
        file.check_damage()
        if outcome != REC_OK or r.physical_offset != physical_offset:
            raise CorruptFile("no record starts here (a physical offset, of the log, is not a queue offset)",
                              path=file.path, offset=physical_offset, expected="a whole record",
                              found=f"size {r.total}, magic {r.magic & 0xFFFFFFFF:#x}")
        if verify and not check_crc(p, &r, False):
            file.check_damage()
            raise CorruptFile("body CRC differs", path=file.path, offset=physical_offset, expected=r.body_crc,
                              found=crc31(r.body, r.body_bytes))
        return make_message(held, p, -1)

    def vouches_for(self, ConsumeQueue queue not None) -> bool:
        """Return true if the last unit that a recovery saw in a queue points to a record of that queue offset."""
        cdef int64_t place = queue.seen_last, at = queue.scan.last_physical
        cdef MappedFile file
        cdef const uint8_t *base
        cdef Record r
        cdef bint sound
        if place < 0:
            return False
        file = self.file_at(at)
        if file is None or at >= readable(&self.state, self.hide_unflushed):
            return False
        base = file.hold()
        try:
            sound = (parse_record(base + (at - file.start_offset), min(readable(&self.state, self.hide_unflushed),
                                  file.start_offset + file.file_bytes) - at, &r) == REC_OK
                     and r.physical_offset == at and r.total == queue.scan.last_size
                     and offset_in_queue(&r, queue.state.topic, queue.state.topic_bytes, queue.state.queue_id) == place)
            file.check_damage()
            return sound
        finally:
            file.release()

    def store_timestamp(self, int64_t physical_offset, int64_t size) -> int:
        """Return the store time of that record, -1 outside the log (RocketMQ: pickupStoreTimestamp)."""
        cdef MappedFile file = self.file_at(physical_offset)
        cdef int64_t limit = readable(&self.state, self.hide_unflushed)
        cdef uint8_t *base
        if file is None or size < 91 or physical_offset + size > limit:
            return -1
        if physical_offset + 91 > file.start_offset + file.file_bytes:
            return -1
        base = file.hold()
        try:
            timestamp = read_store_timestamp(base + (physical_offset - file.start_offset))
            file.check_damage()
            return timestamp
        finally:
            file.release()

    def read(self, int64_t physical_offset, int64_t size) -> bytes:
        """Return a copy of raw log bytes of a file, cut at the readable end."""
        cdef MappedFile file = self.file_at(physical_offset)
        cdef int64_t limit = readable(&self.state, self.hide_unflushed)
        cdef uint8_t *base
        if file is None or physical_offset >= limit or size <= 0:
            return b""
        size = min(size, min(limit, file.start_offset + file.file_bytes) - physical_offset)
        base = file.hold()
        try:
            data = (<const char *> base + (physical_offset - file.start_offset))[:size]
            file.check_damage()
            return data
        finally:
            file.release()

    def file_start_of(self, int64_t physical_offset) -> int:
        """Return the start offset of the file that holds this byte, or of the first file."""
        cdef MappedFile file = self.file_at(physical_offset)
        return self.min_offset if file is None else file.start_offset

    def first_store_timestamp(self, int64_t start_offset) -> int:
        """Return the store time of the first record of the file that starts there; 0 without a record."""
        cdef MappedFile file = self.file_at(start_offset)
        cdef Record r
        cdef uint8_t *base
        if file is None:
            return 0
        base = file.hold()
        try:
            outcome = parse_record(base, file.file_bytes, &r)
            file.check_damage()
            return r.store_timestamp if outcome == REC_OK else 0
        finally:
            file.release()

    # --- delete and close ---

    def remove_first(self) -> str:
        """Remove the oldest file (never the last); readers with a hold keep the bytes. Returns its path."""
        cdef MappedFile file
        if len(self.files) < 2:
            raise InternalError("the last log file is never removed")
        file = self.files[0]
        if file is self.current or file in self.retained:
            raise InternalError("a file with unflushed bytes is never removed")
        self.files.pop(0)
        file.destroy()
        return file.path

    def first_is_flushed(self) -> bool:
        """Return true if the oldest file may be removed: fully durable and dispatched, and not the last."""
        if len(self.files) < 2:
            return False
        file = self.files[0]
        # queue offsets of records that were never dispatched would be missing in their queues
        return file not in self.retained and file.start_offset + self.file_bytes <= min(self.flushed, self.dispatched)

    def close(self) -> None:
        """Stop appends and unmap files without holds. Does not flush: flush first."""
        cdef MappedFile file
        cdef LogState *s = &self.state
        self.take_put_lock()
        mq_or32(&s.flags, LOG_CLOSED)
        mq_store64(&s.file_bytes, 0)
        s.base = NULL
        self.current = None
        unlock_puts(s)
        with nogil:
            lock(&s.flush_lock)     # no thread is inside a sync or a commit any more
            lock(&s.commit_lock)
            s.pending_head = s.pending_tail
            unlock(&s.commit_lock)
            unlock(&s.flush_lock)
            call_waiters(s, s.group, True)
        while self.retained:
            file = self.retained[len(self.retained) - 1]
            if file.buffer != NULL:
                self.pool.give_back(file)
            self.retained.pop()
            file.close_fd()
            file.release()
        files, self.files = self.files, []
        for file in files:
            file.drop()
