"""LogTail: follows the log of a store that another process writes, message by message, without delay.

Nothing is written, no lock of the store is taken, only whole records are returned, and the GIL is released during a
wait. The tail maps the log file that takes the appends and reads the size word of the next record. A writer stores the
size word last, so that a visible size implies a visible record. A writer without that order (Java, commits of a
transient pool) is detected by lengths, offset and CRC, and the record is read again. A file that is cut short meanwhile
causes an error, not a SIGBUS (csrc/sigbus_guard.c).

Messages are read from the page cache and may not be on disk yet: a power cut may remove them. If the writer died and
its recovery cut the log, the last record is no longer at its offset, and the next poll raises CorruptFile.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp
from mqfast.store.base.mapped_file cimport FilePin, MappedFile, pin_file
from mqfast.store.base.os_api cimport (
    OsApi,
    futex_wait,
    futex_wake_all,
    mq_add32,
    mq_fence,
    mq_get32,
    mq_get64,
    mq_load32,
    mq_os,
    mq_pause,
    mq_prefetchr,
)
from mqfast.store.record.filter cimport TagFilter, tag_filter
from mqfast.store.record.record cimport (
    REC_BLANK,
    REC_OK,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
    check_crc,
    make_message,
    parse_record,
    read_store_timestamp,
)

from mqfast.errors import CorruptFile, OffsetError, StoreClosed, StoreNotFound, UsageError
from mqfast.store.reader.scan import PreadFile
from mqfast.store.base.paths import list_offset_files

cdef enum TailStop:
    READY = 1           # a size word is at the offset
    TICK = 2            # time to check signals and files
    TIMED_OUT = 3
    RANG = 4            # closed

cdef int64_t TICK_NS = 50000000
cdef int64_t GRACE_NS = 2000000000  # a record that is incomplete for longer than this is damage, not an active writer
cdef int64_t RETRY_NS = 20000           # between two checks of an incomplete record, or of a missing file
cdef int SPINS = 256                    # checks between two reads of the clock
cdef int STEPS = 4096                   # skipped records between two checks of signals and files


@cython.no_gc_clear      # __dealloc__ needs the file
@cython.final
cdef class LogTail:
    """Messages behind ``position``, as another process writes them. Made by StoreReader.tail.

    Iterate over the tail (the iteration ends at its close), or ``poll``. Thread: a single thread polls; any may close.
    Messages are zero-copy views of the mapped log and stay valid as long as they are referenced.
    """
    cdef OsApi os_api
    cdef mq_os *os
    cdef object directories         # list of str: the log directories
    cdef readonly int64_t position  # physical offset of the next record
    cdef int64_t last               # the previous record, -1 for none in this file
    cdef Record seen                # the content of that record
    cdef MappedFile file
    cdef FilePin held
    cdef int64_t file_bytes         # of the last mapped file: all files have the same length; 0: unknown
    cdef bytes topic
    cdef int64_t queue_id
    cdef TagFilter tags             # or None
    cdef bint spin, checked
    cdef bint polling               # a thread is in poll: it reads the mapping without the GIL
    cdef int64_t interval_ns
    cdef uint32_t bell

    def __init__(self, OsApi os_api not None, directories, int64_t position, topic, queue_id, tags, bint spin,
                 double poll_interval_us, bint check_crc):
        if topic is not None and type(topic) is not str:
            raise UsageError(f"topic: expected str or None, found {type(topic).__name__}")
        if queue_id is not None and (topic is None or not isinstance(queue_id, int) or not 0 <= queue_id <= 0x7FFFFFFF):
            raise UsageError(f"queue_id: expected a queue of a topic, found {queue_id!r}")
        if not 1 <= poll_interval_us <= 1e6:
            raise UsageError(f"poll_interval_us: expected 1 to 1,000,000, found {poll_interval_us}")
        self.os_api = os_api
        self.os = os_api.os
        self.directories = list(directories)
        self.position = position
        self.last = -1
        self.topic = None if topic is None else topic.encode("utf-8")
        self.queue_id = -1 if queue_id is None else queue_id
        self.tags = tag_filter(tags)
        self.spin = spin
        self.checked = check_crc
        self.interval_ns = <int64_t> (poll_interval_us * 1000)
        self._find_file()

    # --- files ---

    cdef bint _find_file(self) except -1:
        """Map the file of the position, if it exists. Raises: OffsetError if it was removed; CorruptFile."""
        cdef int64_t bytes_
        cdef MappedFile file
        files = sorted(file for directory in self.directories for file in list_offset_files(self.os_api, directory)[0])
        for start, path in files:
            try:
                bytes_ = self.os_api.file_size(path)
                if not start <= self.position < max(start + bytes_, start + 1):
                    continue
                if bytes_ == 0:
                    return False        # the file is being created
                if start == self.position and bytes_ != self.file_bytes:
                    # the file may be under creation: nothing is put before it has its whole length
                    first = PreadFile(self.os_api, path)
                    begun = first.read(0, min(4, first.bytes), whole=False).strip(b"\0")
                    first.close()
                    if not begun:
                        return False
                    bytes_ = self.os_api.file_size(path)
                file = MappedFile.load(self.os_api, path, start, bytes_, writable=False, exact=False)
                self.held = pin_file(file)
            except StoreNotFound:
                return False        # retention was faster: the next check sees the rest
            self.file = file
            self.file_bytes = bytes_
            return True
        for start, _ in files:
            if start > self.position:
                raise OffsetError(f"physical offset {self.position} is outside the log: the next file begins at "
                                  f"{start}")
        return False

    cdef int _leave_file(self) except -1:
        self.held = None
        self.last = -1
        if self.file is not None:
            self.file.drop()
            self.file = None
        return 0

    cdef int _look_around(self) except -1:
        """Check that the log is still the same, and let signal handlers run."""
        cdef const uint8_t *p
        PyErr_CheckSignals()
        if self.file is None:
            return 0
        self.file.check_damage()
        if self.last >= 0:
            p = self.held.base + (self.last - self.file.start_offset)
            if (mq_get32(p) != self.seen.total or mq_get64(p + 28) != self.last
                or read_store_timestamp(p) != self.seen.store_timestamp):
                self.file.check_damage()
                raise CorruptFile("the log was cut back under its reader", path=self.file.path, offset=self.last,
                                  expected=f"the record of {self.seen.total} bytes that was read there",
                                  found=f"size {mq_get32(p)}")
        return 0

    # --- wait ---

    cdef int _wait(self, const uint8_t *p, int64_t deadline_ns, int64_t tick_ns, int64_t pause_ns) noexcept nogil:
        """Wait for a size word at p (NULL: nothing to check), at most until the tick. pause_ns 0: without sleeping."""
        cdef int spins = 0
        cdef int64_t now
        while True:
            if p != NULL:
                if mq_get32(p) != 0:
                    mq_fence()          # nothing of the record is read before its size
                    return READY
            if mq_load32(&self.bell):
                return RANG
            if pause_ns:
                futex_wait(&self.bell, 0, pause_ns)
            else:
                mq_pause()
                spins += 1
                if spins < SPINS:
                    continue
                spins = 0
            mq_fence()
            now = self.os.monotonic_ns(self.os)
            if deadline_ns >= 0 and now >= deadline_ns:
                return TIMED_OUT
            if now >= tick_ns:
                return TICK

    def poll(self, Py_ssize_t max_count=32, timeout=None) -> list:
        """Wait for the next messages.

        Args: max_count: most messages to return; timeout: seconds, None for ever, 0 to check once.
        Returns: the messages in log order, empty at the timeout. Raises: StoreClosed after close; CorruptFile if a
        record is invalid, or the log was cut back, or a page of it is lost; OffsetError if retention removed unread
        messages. UsageError if another thread is polling. GIL: released while waiting.
        """
        if max_count < 1:
            raise UsageError(f"max_count: expected at least 1, found {max_count}")
        if self.polling:
            raise UsageError("poll: expected one thread at a time, found another one in it")
        self.polling = True
        try:
            return self._poll(max_count, -1 if timeout is None else <int64_t> (max(<double> timeout, 0.0) * 1e9))
        finally:
            self.polling = False

    cdef list _poll(self, Py_ssize_t max_count, int64_t timeout_ns):
        cdef list found = []
        cdef int64_t now, deadline = -1, unwhole_since = -1
        cdef int stop, outcome
        cdef const uint8_t *p
        cdef int64_t pause = 0 if self.spin else self.interval_ns
        now = self.os.monotonic_ns(self.os)
        if timeout_ns >= 0:
            deadline = now + timeout_ns
        while True:
            if mq_load32(&self.bell):
                self._leave_file()
                raise StoreClosed("this tail is closed")
            now = self.os.monotonic_ns(self.os)
            if self.file is None:
                if not self._find_file():
                    with nogil:
                        stop = self._wait(NULL, deadline, now + 1000000, 1000000)
                    if stop == TIMED_OUT:
                        return found
                    self._look_around()
                    continue
            p = NULL
            if self.file.start_offset + self.file.file_bytes - self.position >= 8:
                p = self.held.base + (self.position - self.file.start_offset)
                with nogil:
                    stop = self._wait(p, deadline, now + TICK_NS, pause)
                if stop == RANG:
                    continue
                if stop != READY:
                    self._look_around()
                    if stop == TIMED_OUT:
                        return found
                    continue
                outcome = self._take(p, found, max_count)
                if found:
                    return found
            else:
                outcome = REC_BLANK
            if outcome == REC_BLANK:
                # the next file usually exists already; otherwise it is checked repeatedly
                self.position = self.file.start_offset + self.file.file_bytes
                self._look_around()
                self._leave_file()
            elif outcome != REC_OK:
                if unwhole_since < 0:
                    unwhole_since = now
                self._look_around()
                if now - unwhole_since > GRACE_NS:
                    raise CorruptFile("no whole record", path=self.file.path, offset=self.position, expected="a record",
                                      found=f"size {mq_get32(p)}, magic {mq_get32(p + 4) & 0xFFFFFFFF:#x}")
                with nogil:
                    stop = self._wait(NULL, deadline, now + RETRY_NS, RETRY_NS)
                if stop == TIMED_OUT:
                    return found
            else:
                unwhole_since = -1          # whole, but filtered out
                self._look_around()

    cdef int _take(self, const uint8_t *p, list found, Py_ssize_t max_count) except -1:
        """Collect records from the position on. Returns: REC_OK after at least one record, otherwise the reason."""
        cdef Record r
        cdef int64_t end = self.file.start_offset + self.file.file_bytes
        cdef int outcome = REC_OK, stepped = 0
        cdef int32_t total
        while len(found) < max_count and end - self.position >= 8:
            total = mq_get32(p)
            if total == 0:
                break
            mq_fence()
            if 64 < total <= end - self.position:
                # these cache lines still belong to the writer's core: prefetch all of them together, not one by one
                mq_prefetchr(p + 64)
                mq_prefetchr(p + total - 64)
                mq_prefetchr(p + total - 1)
            outcome = parse_record(p, end - self.position, &r)
            if (outcome == REC_OK
                and (r.physical_offset != self.position or (self.checked and not check_crc(p, &r, False)))):
                outcome = 0
            if outcome != REC_OK:
                break
            if self._is_wanted(&r):
                found.append(make_message(self.held, p, -1))
            self.last = self.position
            self.seen = r
            self.position += r.total
            p += r.total
            stepped += 1
            if not found and stepped == STEPS:
                break
        self.file.check_damage()
        return REC_OK if stepped else outcome

    cdef bint _is_wanted(self, Record *r) except -1:
        cdef int32_t transaction = r.sys_flag & TRANSACTION_MASK
        if self.topic is None:
            return self.tags is None or self.tags.by_record(self.tags.context, r)
        if r.topic_bytes != len(self.topic) or memcmp(r.topic, <const char *> self.topic, r.topic_bytes) != 0:
            return False
        if self.queue_id >= 0 and r.queue_id != self.queue_id:
            return False
        if transaction == TRANSACTION_PREPARED or transaction == TRANSACTION_ROLLBACK:
            return False                # also missing in its queue
        return self.tags is None or self.tags.by_record(self.tags.context, r)

    # --- life ---

    def __iter__(self):
        """Yield every message from the position on; ends when the tail is closed."""
        while True:
            try:
                messages = self.poll()
            except StoreClosed:
                return
            yield from messages

    def close(self) -> None:
        """End a running poll and every later poll. Safe to call twice; messages stay valid."""
        mq_add32(&self.bell, 1)
        futex_wake_all(&self.bell)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __dealloc__(self):
        if self.file is not None:
            self.file.drop()

    def __repr__(self):
        return f"<LogTail at physical offset {self.position}>"
