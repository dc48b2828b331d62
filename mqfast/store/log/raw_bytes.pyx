"""Raw log bytes: ranges for a master's connections, and appends to the end of a slave's log (RocketMQ:
CommitLog.getData, appendData; DefaultHAConnection, DefaultHAClient).

No byte above the readable position is returned, and no byte is appended to a slave's log before its record is whole and
checked. So a slave's log ends with a whole record at every moment: readers, dispatch and recovery find the same state
as on a master.

Received data may be split anywhere. Whole records are copied in place; the first bytes of an incomplete record wait in
memory, at most a log file of them. Bytes are published in the order of an append: all but the first size word, then
that word, then `written`. A reader in another process stops at the word until all bytes behind it are there.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from mqfast.store.base.mapped_file cimport FilePin, MappedFile, pin_file
from mqfast.store.base.os_api cimport (
    LONGEST_WAIT_NS,
    Mutex,
    acquire,
    futex_wait,
    lock,
    mq_fence,
    mq_get32,
    mq_load32,
    mq_load64,
    mq_or32,
    mq_publish32,
    mq_store64,
    release,
    unlock,
)
from mqfast.store.log.commit_log cimport CommitLog, deadline_after
from mqfast.store.log.group_commit cimport commit_up_to, readable
from mqfast.store.log.idle cimport wake_services
from mqfast.store.log.log_state cimport (
    CLOCK_FALL_MS,
    LOG_ASLEEP,
    LOG_CLOSED,
    LOG_FAILED,
    LOG_FORKED,
    LOG_REFUSING,
    LOG_SLAVE,
    LOG_WAITING,
    WATCH_FLUSHED,
    WATCH_WRITTEN,
    LogState,
    lock_puts,
    unlock_puts,
)
from mqfast.store.log.log_watch cimport appended, flushed_moved
from mqfast.store.record.record cimport MAGIC_BLANK, MAGIC_V1, MAGIC_V2, REC_OK, Record, check_crc, parse_record

from mqfast.errors import (
    CorruptFile,
    DiskFull,
    InternalError,
    LogGap,
    LogOverlap,
    NotSlave,
    OffsetError,
    StoreClosed,
    UsageError,
)

cdef int64_t BLOCKS_STEP = 16 << 20


# --- a master's side ---

cdef class LogBytes:
    """A range of bytes of a log file, mapped as long as this object or a view of it lives."""

    cdef FilePin held
    cdef const uint8_t *at
    cdef Py_ssize_t count
    cdef readonly int64_t physical_offset

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self.at, self.count, 1, flags)

    def check(self) -> None:
        """Verify the bytes after their last use. Raises: CorruptFile when a page was lost, so that bytes may have been
        zeros.
        """
        self.held.file.check_damage()


def read_range(CommitLog log not None, int64_t offset, int64_t max_bytes, bint unflushed=False) -> list:
    """Read a range as RawLog.read."""
    cdef LogState *s = &log.state
    cdef int64_t limit, n, first = log.min_offset
    cdef MappedFile file
    cdef LogBytes piece
    cdef list pieces = []
    log.check_state()
    limit = watched_limit(s, log.hide_unflushed, unflushed)
    if max_bytes < 0:
        raise UsageError(f"max_bytes: expected at least 0, found {max_bytes}")
    if offset < max(first, 0) or offset > limit:
        raise OffsetError(f"physical offset {offset} is outside the log: expected {max(first, 0)} to {limit}")
    while max_bytes > 0 and offset < limit:
        file = log.file_at(offset)
        if file is None:
            break
        n = min(max_bytes, min(limit, file.start_offset + file.file_bytes) - offset)
        piece = LogBytes.__new__(LogBytes)
        piece.held = pin_file(file)
        file.check_damage()
        piece.at = piece.held.base + (offset - file.start_offset)
        piece.count = n
        piece.physical_offset = offset
        pieces.append(memoryview(piece))
        offset += n
        max_bytes -= n
    return pieces


def wait_range(CommitLog log not None, int64_t offset, timeout=None, bint unflushed=False) -> bool:
    """Wait as RawLog.wait_for."""
    cdef LogState *s = &log.state
    cdef bint sync = log.hide_unflushed
    cdef int64_t deadline = deadline_after(log.os_api.monotonic_ns(), timeout), until
    while True:
        log.check_state()
        if watched_limit(s, sync, unflushed) > offset:
            return True
        until = log.os_api.monotonic_ns() + LONGEST_WAIT_NS
        if 0 <= deadline < until:
            until = deadline
        with nogil:
            wait_above(s, offset, sync, unflushed, until)
        if until == deadline and log.os_api.monotonic_ns() >= deadline:
            return watched_limit(s, sync, unflushed) > offset
        PyErr_CheckSignals()


cdef int64_t watched_limit(LogState *s, bint sync, bint unflushed) noexcept nogil:
    """Return the physical offset up to which raw bytes may be read. Commits a pool's buffer.

    unflushed: includes unsynced and unconfirmed bytes, for a slave that confirms them.
    """
    if s.pooled and mq_load64(&s.committed) < mq_load64(&s.written):
        commit_up_to(s, mq_load64(&s.written))
    if unflushed:
        return mq_load64(&s.committed) if s.pooled else mq_load64(&s.written)
    return readable(s, sync)


cdef void wait_above(LogState *s, int64_t offset, bint sync, bint unflushed, int64_t until_ns) noexcept nogil:
    """Wait until watched_limit is above offset, the time is over, or the log takes no more appends."""
    cdef uint32_t seen, bits = WATCH_WRITTEN
    cdef int64_t remaining_ns
    if sync and not unflushed:
        bits |= WATCH_FLUSHED
    while not mq_load32(&s.flags) & (LOG_CLOSED | LOG_FAILED | LOG_FORKED):
        lock_puts(s)
        seen = mq_load32(&s.grown)
        mq_or32(&s.watched, bits)
        unlock_puts(s)
        mq_fence()
        if watched_limit(s, sync, unflushed) > offset:
            return
        remaining_ns = until_ns - s.os.monotonic_ns(s.os)
        if remaining_ns <= 0:
            return
        futex_wait(&s.grown, seen, remaining_ns)


# --- the confirm offset ---

def set_confirm(CommitLog log not None, offset) -> None:
    """Set the confirm offset, at which readers and dispatch end; None: no limit but the log's."""
    cdef LogState *s = &log.state
    log.take_put_lock()
    s.inline_dispatch = log.inline_dispatch and offset is None  # a put would publish the unit before it is confirmed
    mq_store64(&s.confirm, INT64_MAX if offset is None else <int64_t> offset)
    if mq_load32(&s.watched):
        appended(s, NULL)
    unlock_puts(s)
    with nogil:
        flushed_moved(s)


def get_confirm(CommitLog log not None):
    """Return the confirm offset, or None."""
    cdef int64_t at = mq_load64(&log.state.confirm)
    return None if at == INT64_MAX else at


# --- a slave's side ---

cdef enum Scanned:
    SCAN_ALL = 1            # all records are whole, or the file ends
    SCAN_PART = 2           # an incomplete record
    SCAN_SIZE = 3           # no record: from here on the reasons
    SCAN_MAGIC = 4
    SCAN_RECORD = 5
    SCAN_PLACE = 6
    SCAN_CRC = 7

_WRONG = {SCAN_SIZE: "a size that the log file has room for", SCAN_MAGIC: "the magic of a record or of an end mark",
          SCAN_RECORD: "lengths that agree", SCAN_PLACE: "a record that names its own physical offset",
          SCAN_CRC: "a body that agrees with its CRC"}

cdef struct Scan:
    int64_t whole           # bytes of whole records from the start
    int64_t records
    int64_t need            # length of the next record, if known; else 8
    int64_t last_timestamp  # store time of the newest record; before the first: that of the log
    int64_t fell_from       # the master's clock fell: from this time, 0: it did not
    int64_t fell_to
    int stop


cdef void scan(const uint8_t *p, int64_t n, int64_t at, int64_t file_end, bint crc, Scan *out) noexcept nogil:
    """Check the records of a file from p on, whose physical offset is `at`."""
    cdef Record r
    cdef int64_t total, magic, rest
    out.whole = out.records = 0
    out.need = 8
    out.fell_from = out.fell_to = 0
    out.stop = SCAN_ALL
    while n > 0 and at < file_end:
        rest = file_end - at
        if rest < 8:                    # too short for an end mark
            out.need = total = rest
        elif n < 8:
            out.need = 8
            out.stop = SCAN_PART
            return
        else:
            total = mq_get32(p)
            magic = mq_get32(p + 4)
            if total < 8 or total > rest:
                out.stop = SCAN_SIZE
                return
            if magic == MAGIC_BLANK:
                if total != rest:
                    out.stop = SCAN_SIZE
                    return
            elif magic != MAGIC_V1 and magic != MAGIC_V2:
                out.stop = SCAN_MAGIC
                return
            out.need = total
        if n < total:
            out.stop = SCAN_PART
            return
        if rest >= 8 and magic != MAGIC_BLANK:
            if parse_record(p, total, &r) != REC_OK:
                out.stop = SCAN_RECORD
                return
            if r.physical_offset != at:
                out.stop = SCAN_PLACE
                return
            if crc and not check_crc(p, &r, False):
                out.stop = SCAN_CRC
                return
            if out.last_timestamp - r.store_timestamp > CLOCK_FALL_MS:
                if out.fell_from == 0:
                    out.fell_to = r.store_timestamp
                out.fell_from = out.last_timestamp
            out.last_timestamp = r.store_timestamp
            out.records += 1
        p += total
        n -= total
        at += total
        out.whole += total


cdef class RawEnd:
    """The end of a slave's log, which takes the bytes of the master. Thread: any; appends are serialized."""

    cdef CommitLog log
    cdef Mutex mutex
    cdef bytearray part             # the first bytes of the record at `written`

    def __init__(self, CommitLog log not None):
        self.log = log
        self.mutex = Mutex()
        self.part = bytearray()

    @property
    def end(self) -> int:
        """Physical offset behind the last whole record."""
        return mq_load64(&self.log.state.written)

    @property
    def next_offset(self) -> int:
        """Physical offset at which the next bytes must begin."""
        return self.end + len(self.part)

    def forget_part(self) -> None:
        """Discard the incomplete record after a disconnect: the next bytes begin at ``end`` again."""
        acquire(self.mutex)
        try:
            self.part = bytearray()
        finally:
            release(self.mutex)

    def append(self, int64_t offset, data, bint check_crc=True) -> int:
        """Append as RawLog.append."""
        cdef Py_buffer view
        try:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        except (TypeError, BufferError) as error:
            raise UsageError(f"data: expected contiguous bytes, found {type(data).__name__}") from error
        acquire(self.mutex)
        try:
            self._check(offset)
            self._feed(<const uint8_t *> view.buf, view.len, check_crc)
        finally:
            release(self.mutex)
            PyBuffer_Release(&view)
        return self.next_offset

    cdef int _check(self, int64_t offset) except -1:
        """Check that bytes may be appended at this offset. Raises: NotSlave, LogGap, LogOverlap, DiskFull, and as a
        put.
        """
        cdef CommitLog log = self.log
        cdef LogState *s = &log.state
        cdef uint32_t flags = mq_load32(&s.flags)
        cdef int64_t end = mq_load64(&s.written), expected = end + len(self.part)
        log.check_state()
        if not flags & LOG_SLAVE:
            raise NotSlave(f"store of {log.path}: expected broker_role SLAVE for bytes of a master, found a master")
        if flags & LOG_WAITING:
            log.get_ready()
        if flags & LOG_REFUSING:
            raise DiskFull(28, "disk use is above its watermark and the policy refuses writes", log.path)
        if offset == expected:
            return 0
        if offset == end:
            self.part = bytearray()         # a new connection begins with the incomplete record
            return 0
        if not log.files and s.file_bytes == 0 and offset >= 0 and offset % log.file_bytes == 0:
            self.part = bytearray()
            log._set_positions(offset, s.last_store_timestamp)      # a new slave begins at the master's first offset
            return 0
        if offset < expected:
            raise LogOverlap(offset, expected, log.path)
        raise LogGap(offset, expected, log.path)

    cdef int _feed(self, const uint8_t *p, int64_t n, bint crc) except -1:
        cdef LogState *s = &self.log.state
        cdef int64_t at, k, need = 8
        cdef Scan result
        while n > 0:
            at = mq_load64(&s.written)
            if PyByteArray_GET_SIZE(self.part):     # complete the record first, and no more than that
                self._scan(<const uint8_t *> PyByteArray_AS_STRING(self.part), PyByteArray_GET_SIZE(self.part), at, crc,
                           &result)
                k = min(n, result.need - PyByteArray_GET_SIZE(self.part))
                self.part += p[:k]
                p += k
                n -= k
                self._scan(<const uint8_t *> PyByteArray_AS_STRING(self.part), PyByteArray_GET_SIZE(self.part), at, crc,
                           &result)
                if result.whole:
                    self._land(<const uint8_t *> PyByteArray_AS_STRING(self.part), &result)
                    self.part = bytearray()
                continue
            self._scan(p, n, at, crc, &result)
            if result.whole:
                self._land(p, &result)
                p += result.whole
                n -= result.whole
            if result.stop == SCAN_PART:
                self.part += p[:n]
                return 0
            if result.stop != SCAN_ALL:
                self._refuse(mq_load64(&s.written), result.stop)
        return 0

    cdef int _scan(self, const uint8_t *p, int64_t n, int64_t at, bint crc, Scan *result) except -1:
        """Check the records; raise CorruptFile if the first is bad. Whole records before a bad record are for the log.
        """
        cdef int64_t file_end = at - at % self.log.file_bytes + self.log.file_bytes
        result.last_timestamp = mq_load64(&self.log.state.last_store_timestamp)
        with nogil:
            scan(p, n, at, file_end, crc, result)
        if result.whole == 0 and result.stop > SCAN_PART:
            self._refuse(at, result.stop)
        return 0

    cdef int _refuse(self, int64_t at, int stop) except -1:
        self.part = bytearray()
        raise CorruptFile("what the master sent is no record; nothing from there on was appended", path=self.log.path,
                          offset=at, expected=_WRONG[stop], found="other bytes")

    cdef int _land(self, const uint8_t *p, Scan *result) except -1:
        """Append whole records of a file. Raises: DiskFull, StorageError of a new file; no record was appended then."""
        cdef CommitLog log = self.log
        cdef LogState *s = &log.state
        cdef int64_t n = result.whole, position
        cdef bint closed
        acquire(log.roll_lock)
        try:
            if s.file_bytes == 0 or mq_load64(&s.written) >= s.file_start + s.whole_bytes:
                log._roll_over()
            if mq_load64(&s.written) - s.file_start + n > s.file_bytes:
                log.allocator.check_blocks(n)
                try:
                    log._give_blocks(n, BLOCKS_STEP)
                except DiskFull as error:
                    log.allocator.wait_for_blocks(n, error)
                    raise
            with nogil:
                lock_puts(s)
                if mq_load32(&s.flags) & LOG_ASLEEP:
                    wake_services(s)
                closed = mq_load32(&s.flags) & (LOG_CLOSED | LOG_FAILED) or s.base == NULL
                if not closed:
                    position = s.written - s.file_start
                    if n > 4:
                        memcpy(s.base + position + 4, p + 4, n - 4)
                        mq_publish32(s.base + position, mq_get32(p))
                    else:
                        memcpy(s.base + position, p, n)     # the rest of a file, too short for an end mark
                    if result.fell_from:
                        if s.clock_fall_from == 0:
                            mq_store64(&s.clock_fall_to, result.fell_to)
                        mq_store64(&s.clock_fall_from, result.fell_from)
                    mq_store64(&s.puts, s.puts + result.records)
                    mq_store64(&s.written, s.written + n)
                    mq_store64(&s.last_store_timestamp, result.last_timestamp)
                    if mq_load32(&s.watched):
                        appended(s, NULL)
                unlock_puts(s)
        finally:
            release(log.roll_lock)
        if closed:
            log.check_state()
            raise StoreClosed(f"store of {log.path} is closed")
        log.raise_lost()
        return 0

    def held(self) -> Mutex:
        """Return a context manager: nothing is appended meanwhile."""
        return self.mutex


def rewind(CommitLog log not None) -> None:
    """Prepare `CommitLog.truncate` of an open log: no file takes appends or waits for a flush.

    All bytes are durable, and no thread appends.
    """
    cdef LogState *s = &log.state
    cdef MappedFile file
    if mq_load64(&s.flushed) < mq_load64(&s.written):
        raise InternalError("a log is rewound behind its last sync only")
    log.take_put_lock()
    mq_store64(&s.file_bytes, 0)
    s.base = NULL
    log.current = None
    unlock_puts(s)
    with nogil:
        lock(&s.flush_lock)
        lock(&s.commit_lock)
        s.pending_head = s.pending_tail
        unlock(&s.commit_lock)
        unlock(&s.flush_lock)
    while log.retained:
        file = log.retained[len(log.retained) - 1]
        if file.buffer != NULL:
            log.pool.give_back(file)
        log.retained.pop()
        file.watch(None)
        file.close_fd()
        file.release()
    log.reaped = s.pending_tail
    mq_store64(&log.reap_head, s.pending_head)
