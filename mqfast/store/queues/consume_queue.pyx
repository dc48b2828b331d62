"""ConsumeQueue: the 20-byte units of a (topic, queue) (RocketMQ: ConsumeQueue).

No unit is written outside allocated blocks or visible before its bytes are written, and the log is not read. Only one
thread at a time may put, make room or truncate (the holder of the dispatch lock, or of the put lock while no record
waits for dispatch); any thread may read.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, qsort
from libc.string cimport memcmp, memcpy, memset
from mqfast.store.base.mapped_file cimport Latch, MappedFile
from mqfast.store.base.os_api cimport (
    MQ_OPEN_READ,
    MQ_OPEN_WRITE,
    OsApi,
    allocate,
    check,
    encode_path,
    list_starts,
    lock,
    mq_get32,
    mq_get64,
    mq_load32,
    mq_load64,
    mq_lock_try,
    mq_or32,
    mq_os,
    mq_put32,
    mq_put64,
    mq_stat,
    mq_store64,
    populate,
    read_all,
    unlock,
    unmap_written,
)

import posixpath as _posixpath

from mqfast.errors import CorruptFile, DiskFull, OffsetError, StoreClosed
from mqfast.store.base import paths as _paths

_SETTING = "mapped_file_bytes_consume_queue"

cdef int64_t FIRST_ROOM = 4096          # a queue starts with a page of blocks, doubled at each growth
# an interval flush of so many bytes was not the last: it leaves the page of the last units
cdef int64_t BUSY_BYTES = 64 << 10
cdef int64_t MOST_PHYSICAL = <int64_t> 1 << 62     # the sum with a size still fits 63 bits
cdef int SHORT_FILE = 1
cdef int NO_PAGE = 14                    # EFAULT: populate's error where an access would be a SIGBUS

cdef enum:
    KNOWN_STARTS = 64                       # files of a queue that are listed without heap memory
    FIRST_SCAN_BYTES = 4096
    SCAN_BYTES = 65536
    PATH_BYTES = 4096


cdef uint64_t topic_hash(const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil:
    cdef uint64_t h = <uint64_t> n * 0x9E3779B97F4A7C15ULL + <uint32_t> queue_id, word
    while n >= 8:
        memcpy(&word, topic, 8)
        h = (h ^ word) * 0x9E3779B97F4A7C15ULL
        h ^= h >> 29
        topic += 8
        n -= 8
    word = 0
    memcpy(&word, topic, n)
    h = (h ^ word) * 0x9E3779B97F4A7C15ULL
    return h ^ (h >> 32)


cdef void _see(const uint8_t *unit, int64_t *physical, int32_t *size, int64_t *tags) noexcept nogil:
    physical[0] = mq_get64(unit)
    size[0] = mq_get32(unit + 8)
    tags[0] = mq_get64(unit + 12)


cdef bint _is_zero(const uint8_t *p, int64_t n) noexcept nogil:
    return n <= 0 or (p[0] == 0 and memcmp(p, p + 1, n - 1) == 0)


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const int64_t *> a)[0], y = (<const int64_t *> b)[0]
    return (x > y) - (x < y)


cdef int _read(mq_os *os, int fd, uint8_t *to, int64_t n, int64_t at) noexcept nogil:
    cdef int64_t got = read_all(os, fd, to, n, at)
    return <int> got if got < 0 else SHORT_FILE if got < n else 0


cdef int _scan(mq_os *os, const char *path, int64_t file_bytes, Scan *scan) noexcept nogil:
    """Read the units of a file up to the first non-unit, then check for nonzero bytes behind it. Returns 0, SHORT_FILE
    or an errno.

    Through a descriptor, not a mapping: most queues of a large store have a single page, and a read costs a fifth of a
    mapping.
    """
    cdef uint8_t buffer[SCAN_BYTES]
    cdef int64_t at = 0, next_ = 0, n = 0, k = 0, physical
    cdef int32_t size
    cdef bint ended = False
    cdef int rc = 0
    cdef mq_stat st
    cdef int fd = os.open(os, path, MQ_OPEN_READ)
    scan.units = 0
    scan.dirty = False
    scan.opened = fd >= 0
    if fd < 0:
        return fd
    rc = os.fstat(os, fd, &st)
    scan.file_bytes = -1 if st.is_directory else st.bytes
    if rc < 0 or scan.file_bytes != file_bytes:
        os.close(os, fd)
        return rc
    while next_ < file_bytes and not ended and rc == 0:
        at = next_
        n = min(<int64_t> (SCAN_BYTES if at else FIRST_SCAN_BYTES), file_bytes - at)
        rc = _read(os, fd, buffer, n, at)
        k = 0
        while rc == 0 and k + UNIT_BYTES <= n:
            physical = mq_get64(buffer + k)
            size = mq_get32(buffer + k + 8)
            if physical < 0 or size <= 0 or physical > MOST_PHYSICAL:
                ended = True
                break
            if not (physical == 0 and size == FILLER_SIZE):
                scan.max_physical = physical + size
            if scan.first_physical < 0:
                _see(buffer, &scan.first_physical, &scan.first_size, &scan.first_tags)
            k += UNIT_BYTES
        if k > 0:
            _see(buffer + k - UNIT_BYTES, &scan.last_physical, &scan.last_size, &scan.last_tags)
        scan.units += k // UNIT_BYTES
        next_ = at + n - n % UNIT_BYTES if at + n < file_bytes else file_bytes
    at += n
    if rc == 0 and ended and not _is_zero(buffer + k, n - k):
        scan.dirty = True
    while rc == 0 and not scan.dirty and at < file_bytes:
        at = os.seek_data(os, fd, at)       # only blocks that hold data
        if at < 0 or at >= file_bytes:
            break
        n = min(<int64_t> SCAN_BYTES, file_bytes - at)
        rc = _read(os, fd, buffer, n, at)
        scan.dirty = rc == 0 and not _is_zero(buffer, n)
        at += n
    os.close(os, fd)
    return rc


cdef struct ScanJob:
    mq_os *os
    const char *path            # of the directory
    int64_t file_bytes
    Scan *scan
    int64_t *scanned_start


cdef void _scan_single_file(ScanJob *job) noexcept nogil:
    """Read the units of a queue with a single file, as most have. Errors are left to ``load``, which reports them."""
    cdef int64_t starts[2]
    cdef char path[PATH_BYTES]
    cdef int n
    if list_starts(job.path, starts, 2) != 1 or starts[0] % job.file_bytes != 0:
        return
    n = snprintf(path, PATH_BYTES, "%s/%020lld", job.path, <long long> starts[0])
    if (0 < n < PATH_BYTES and _scan(job.os, path, job.file_bytes, job.scan) == 0
            and job.scan.file_bytes == job.file_bytes):
        job.scanned_start[0] = starts[0]


def scan_ahead(list queues) -> None:
    """Scan the files of these queues ahead of their ``load``, without the GIL. Threads may scan separate queues in
    parallel.

    No exceptions: unreadable files are read again by ``load``.
    """
    cdef Py_ssize_t i, n = len(queues)
    cdef ScanJob *jobs = <ScanJob *> calloc(n or 1, sizeof(ScanJob))
    cdef ConsumeQueue queue
    cdef list names = []
    if jobs == NULL:
        return
    try:
        for queue in queues:
            names.append(encode_path(queue.path))
        for i in range(n):
            queue = <ConsumeQueue> queues[i]
            queue._begin_scan()
            jobs[i].os = queue.os_api.os
            jobs[i].path = PyBytes_AS_STRING(names[i])
            jobs[i].file_bytes = queue.file_bytes
            jobs[i].scan = &queue.scan
            jobs[i].scanned_start = &queue.scanned_start
        with nogil:
            for i in range(n):
                _scan_single_file(&jobs[i])
    finally:
        free(jobs)


cdef int sync_units(mq_os *os, uint8_t *base, int64_t first, int64_t to, int64_t end) noexcept nogil:
    """Sync the bytes from `first`, the start of a page, to `to` of a mapped file whose last unit ends at `end`."""
    # saves 650 interrupts a second beside 200,000 puts
    unmap_written(os, base + first, (min(to, end) & ~<int64_t> 4095) - first)
    return os.msync(os, base + first, to - first)


cdef bint _fills_fast(QueueState *q) noexcept nogil:
    """Return true if the queue got at least 2 units a millisecond since the last call.

    Such a queue grows by a larger step: without room, its puts leave their units to the dispatcher.
    """
    cdef uint64_t elapsed = <uint64_t> q.last_store_timestamp - <uint64_t> q.asked_at  # arbitrary for a damaged record
    cdef bint fast = q.end >= q.asked_end and elapsed <= <uint64_t> (q.end - q.asked_end) // (2 * UNIT_BYTES)
    q.asked_end = q.end
    q.asked_at = q.last_store_timestamp
    return fast


cdef int grow_tail(QueueState *q) noexcept nogil:
    """Allocate more blocks for the queue's last file, if it exists and is not full.

    Returns 1: room for a unit; 0: not possible here: `make_room` does it or reports the error. Only for the dispatcher,
    with a record that has no unit yet: then no put uses the queue's room.
    """
    cdef HeldFile *t = &q.tail
    cdef mq_os *os = q.os
    cdef int64_t at, to
    cdef int fd, rc
    if t.base == NULL or q.end + UNIT_BYTES > t.start + q.file_bytes:
        return 0
    at = t.allocated[0]
    to = min(max(<int64_t> FIRST_ROOM, at) * (16 if _fills_fast(q) else 2), q.file_bytes)
    if to <= at:
        return 0
    fd = os.open(os, t.path, MQ_OPEN_WRITE)
    if fd < 0:
        return 0
    rc = allocate(os, fd, at, to - at)
    os.close(os, fd)
    # the page cache may keep a larger folio, whose other bytes have no blocks
    if (rc < 0 or populate(os, t.base + (at & ~<int64_t> 4095), to - (at & ~<int64_t> 4095)) == -NO_PAGE
            or mq_load32(t.lost)):
        return 0
    t.allocated[0] = to
    q.room_end = t.start + to - to % UNIT_BYTES
    return q.end + UNIT_BYTES <= q.room_end


cdef int64_t behind_units(const QueueState *q, int64_t end) noexcept nogil:
    """Return the end of an interval flush while the queue is busy: before the page of the next units, as in
    group_commit.pyx.

    The next flush covers all units that existed at this flush.
    """
    if q.tail.base == NULL or q.cut or end - q.flushed < BUSY_BYTES or end <= q.tail.start:
        return end
    return end - ((end - q.tail.start) & 4095)


@cython.no_gc_clear
cdef class ConsumeQueue:
    """A queue: files, bounds, units.

    ``min_offset`` is the first unit whose record may still exist, ``max_offset`` the next unit to be put.
    """

    def __init__(self, OsApi os_api, directory, topic, queue_id, file_bytes, Latch latch=None, dict tails=None):
        self.os_api = os_api
        self.latch = latch
        self.tails = {} if tails is None else tails
        self.topic = topic
        self.queue_id = queue_id
        self.path = _paths.queue_dir(directory, topic, queue_id)
        self.file_bytes = self.state.file_bytes = file_bytes
        self.state.os = os_api.os
        self.topic_text = topic.encode("utf-8")
        self.files = []
        self.state.topic = <const uint8_t *> PyBytes_AS_STRING(self.topic_text)
        self.state.topic_bytes = <int32_t> PyBytes_GET_SIZE(self.topic_text)
        self.state.queue_id = queue_id
        self.state.hash = topic_hash(self.state.topic, self.state.topic_bytes, queue_id)
        self.floor_end = -1
        self.state.max_physical = -1
        self.seen_first = self.seen_last = self.scanned_start = -1

    # --- bounds ---

    @property
    def min_offset(self) -> int:
        """First valid queue offset."""
        return self.state.min_logic // UNIT_BYTES

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last unit."""
        return mq_load64(&self.state.end) // UNIT_BYTES

    @property
    def next_offset(self) -> int:
        """Queue offset of the next record."""
        return mq_load64(&self.state.next_offset)

    @next_offset.setter
    def next_offset(self, int64_t value):
        mq_store64(&self.state.next_offset, value)

    @property
    def deleted(self) -> bool:
        """True once the deletion of the topic has begun."""
        return self.state.deleted

    @property
    def waits(self) -> bool:
        """True while units wait for space on the disk."""
        return self.state.waits

    @waits.setter
    def waits(self, bint value):
        self.state.waits = value

    @property
    def min_logic(self) -> int:
        """Byte of the first valid unit in the queue's stream."""
        return self.state.min_logic

    @property
    def max_physical(self) -> int:
        """End of the last record that has a unit, -1 for none."""
        cdef int64_t end = mq_load64(&self.state.max_physical)
        return -1 if end <= self.floor_end else end

    @property
    def floor(self) -> int:
        """End of the records without a unit: the topic was deleted behind them. -1: none.

        Set only at open, for a queue without a unit of such records.
        """
        return self.floor_end

    @floor.setter
    def floor(self, int64_t value):
        if self.state.max_physical <= self.floor_end:
            self.state.max_physical = -1        # the value was the floor
        self.floor_end = value
        self._reach(self.state.max_physical)

    cdef void _reach(self, int64_t max_physical) noexcept:
        """Set the end of the last unit's record; -1: no unit."""
        mq_store64(&self.state.max_physical, max(max_physical, self.floor_end))

    @property
    def was_cut(self) -> bool:
        """True if units behind the end, whose records the log may still have, were cleared since this was last set."""
        return self.cut_units

    @was_cut.setter
    def was_cut(self, bint value):
        self.cut_units = value

    @property
    def misplaced(self) -> int:
        """Number of units at another place than their record's queue offset (a queue that lost units before)."""
        return self.state.misplaced

    @property
    def misplaced_from(self) -> int:
        """Queue offset of the first misplaced unit, if any."""
        return self.state.misplaced_at // UNIT_BYTES

    @property
    def unit_count(self) -> int:
        """Number of valid units."""
        return (mq_load64(&self.state.end) - self.state.min_logic) // UNIT_BYTES

    @property
    def file_list(self) -> list:
        """The files, oldest first."""
        return list(self.files)

    # --- load, recover, truncate ---

    def load(self) -> None:
        """Load the files of the directory. Raises: CorruptFile for a file of another length or a gap between files."""
        cdef bytes native
        cdef const char *path
        cdef int64_t starts[KNOWN_STARTS]
        cdef int64_t *all_starts = starts
        cdef int64_t count
        if self.scanned_start >= 0:
            self._take_files(&self.scanned_start, 1)
            return
        native = encode_path(self.path)
        path = native
        with nogil:
            count = list_starts(path, starts, KNOWN_STARTS)
            if count > KNOWN_STARTS:
                all_starts = <int64_t *> calloc(count, sizeof(int64_t))
                if all_starts != NULL:
                    count = min(count, list_starts(path, all_starts, count))
        check(count, "list", self.path)
        if all_starts == NULL:
            raise MemoryError()
        try:
            if count > 1:
                qsort(all_starts, count, sizeof(int64_t), _compare)
            self._take_files(all_starts, count)
        finally:
            if all_starts != starts:
                free(all_starts)

    cdef int _take_files(self, const int64_t *starts, int64_t count) except -1:
        cdef mq_os *os = self.os_api.os
        cdef mq_stat st
        cdef MappedFile file
        cdef int64_t i, start, length, expected = -1
        for i in range(count):
            start = starts[i]
            path = f"{self.path}/{start:020d}"
            file = MappedFile.__new__(MappedFile)
            file._init(self.os_api, path, start, self.file_bytes, True)
            if i == count - 1 and not self.files and start % self.file_bytes == 0:
                # Most queues have a single file: its units are read here, by the descriptor that reports the length.
                if start == self.scanned_start:
                    self.scanned = file
                    self.scanned_start = -1
                else:
                    self._begin_scan()
                    self._scan_file(file)
                length = self.scan.file_bytes
            else:
                check(os.stat(os, <const char *> file.native_path, &st), "stat", path)
                length = -1 if st.is_directory else st.bytes
            if length < 0:
                continue
            if i == count - 1 and length == 0:
                self.os_api.unlink(path)          # created, but without its length
                continue
            if start % self.file_bytes or (expected >= 0 and start != expected):
                raise CorruptFile("queue file out of place", path=path, expected=expected if expected >= 0
                                  else f"a multiple of {self.file_bytes}", found=start)
            if length != self.file_bytes:
                raise CorruptFile("wrong file length", path=path, expected=f"{self.file_bytes} bytes",
                                  found=f"{length} bytes")
            self.files.append(file)
            expected = start + self.file_bytes
        return 0

    cdef void _begin_scan(self) noexcept:
        self.scanned = None
        self.scan.first_physical = self.scan.last_physical = self.scan.max_physical = -1

    cdef int _scan_file(self, MappedFile file) except -1:
        """Read a file's units into ``scan``, after the files before; sets ``file_bytes``: the file's length, -1 for a
        directory.
        """
        cdef mq_os *os = file.os
        cdef const char *path = <const char *> file.native_path
        cdef int rc
        self.scanned = None
        with nogil:
            rc = _scan(os, path, self.file_bytes, &self.scan)
        if rc == SHORT_FILE:
            raise CorruptFile("file is shorter than its format asks for", path=file.path,
                              expected=f"{self.file_bytes} bytes", found="less")
        check(rc, "read" if self.scan.opened else "open", file.path)
        self.scanned = file
        return 0

    def recover(self) -> None:
        """Find the end of the valid units, from the third-last file on; clear the bytes behind the end.

        Fillers (physical offset 0, size 2^31-1) replace units that never existed: they count as units, but have no
        record.
        """
        cdef MappedFile file
        cdef QueueState *q = &self.state
        cdef Scan *scan = &self.scan
        cdef int64_t first
        cdef Py_ssize_t index
        self._reach(-1)
        if not self.files:
            return
        first = max(0, len(self.files) - 3)
        q.min_logic = (<MappedFile> self.files[0]).start_offset
        if self.scanned is None or self.scanned is not self.files[0] or len(self.files) > 1:
            self._begin_scan()
        for index in range(first, len(self.files)):
            file = self.files[index]
            if file is not self.scanned:
                self._scan_file(file)
                if scan.file_bytes != self.file_bytes:
                    raise CorruptFile("file is shorter than its format asks for", path=file.path,
                                      expected=f"{self.file_bytes} bytes", found=f"{scan.file_bytes} bytes")
            q.end = file.start_offset + scan.units * UNIT_BYTES
            if q.end < file.start_offset + self.file_bytes:
                break
        self.scanned = None
        self._reach(scan.max_physical if scan.max_physical >= 0 or first == 0 else self._last_physical_before(q.end))
        self._cut(scan.dirty)
        # recovery needs these units next: without the copy, each of thousands of queues would be mapped for a unit
        if scan.last_physical >= 0:
            self.seen_first = q.min_logic // UNIT_BYTES if first == 0 else -1
            self.seen_last = q.end // UNIT_BYTES - 1

    def end_recovery(self, int64_t min_physical) -> None:
        """Set the bounds at the end of recovery: the lower bound follows the log, the next offset continues the queue.
        """
        self.correct_min(max(0, min_physical))
        self.next_offset = self.max_offset
        self.seen_first = self.seen_last = -1

    def _cut(self, bint clear=True) -> None:
        """Remove the files behind the end, and clear the rest of the last file; the next unit makes it the tail."""
        cdef MappedFile file
        cdef QueueState *q = &self.state
        self.seen_first = self.seen_last = -1
        if self.tail is not None:
            self._give_up_tail()
        q.room_end = 0
        q.units = NULL
        while self.files and (<MappedFile> self.files[len(self.files) - 1]).start_offset > q.end:
            file = self.files.pop()
            file.destroy()
            self.state.cut = self.cut_units = True
        if self.files:
            file = self.files[len(self.files) - 1]
            if clear and file.start_offset + self.file_bytes > q.end and file.zero_tail(q.end - file.start_offset):
                self.state.cut = self.cut_units = True
        self.state.flushed = min(self.state.flushed, q.end)

    cdef void _lock_files(self) noexcept:
        """Take `files_lock`: no flush uses `tail` and `before` until its release."""
        cdef QueueState *q = &self.state
        if not mq_lock_try(&q.files_lock):
            with nogil:
                lock(&q.files_lock)

    cdef void _release_before(self) noexcept:
        cdef MappedFile file = self.before
        if file is None:
            return
        self._lock_files()
        self.state.before.base = NULL
        unlock(&self.state.files_lock)
        self.before = None
        file.release()

    cdef void _give_up_tail(self) noexcept:
        cdef MappedFile file = self.tail
        self._release_before()
        self._lock_files()
        self.state.tail.base = NULL
        unlock(&self.state.files_lock)
        self.tail = None
        self.tails.pop(self, None)
        file.watch(None)
        file.release()

    cdef _take_tail(self, MappedFile file):
        cdef QueueState *q = &self.state
        cdef MappedFile last = self.tail
        cdef uint8_t *base
        cdef int64_t flushed
        self._lock_files()
        flushed = q.flushed
        unlock(&q.files_lock)
        if last is not None and (q.cut or flushed >= file.start_offset
                                 or last.start_offset + self.file_bytes != file.start_offset):
            self._give_up_tail()
            last = None
        self.tails[self] = None
        base = file.hold()
        file.watch(self.latch)
        self._release_before()
        self._lock_files()
        if last is not None:
            q.before = q.tail
            self.before = last      # held until flushed
        q.tail.base = base
        q.tail.start = file.start_offset
        q.tail.allocated = &file.allocated
        q.tail.lost = &file.damage.hits
        q.tail.path = <const char *> file.native_path
        unlock(&q.files_lock)
        if last is not None:
            last.watch(None)
        q.units = base
        self.tail = file
        q.file_start = file.start_offset
        if file.allocated == 0 and q.end > file.start_offset:
            # blocks are whole pages: bytes behind the page of the last unit may be a hole
            file.allocated = (q.end - file.start_offset) & ~<int64_t> 4095
        q.room_end = file.start_offset + file.allocated - file.allocated % UNIT_BYTES

    def truncate(self, int64_t physical_offset, dropped=None) -> None:
        """Drop every unit whose record starts at or behind ``physical_offset`` (RocketMQ: truncateDirtyLogicFiles).

        Args: dropped: a list that gets the bytes of the dropped units.
        """
        cdef MappedFile file
        cdef QueueState *q = &self.state
        cdef uint8_t *base
        cdef int64_t at, physical, end, to, old_end = mq_load64(&self.state.end), last_end = -1
        cdef int32_t size
        cdef bint filler
        cdef Py_ssize_t index = len(self.files) - 1
        if not self.files:
            self._reach(-1)
            return
        end = (<MappedFile> self.files[0]).start_offset
        while index >= 0:
            file = self.files[index]
            base = file.hold()
            last_end = -1
            try:
                at = 0
                while at < self.file_bytes:
                    physical = mq_get64(base + at)
                    size = mq_get32(base + at + 8)
                    filler = physical == 0 and size == FILLER_SIZE
                    # a record ends at or before the log's end: a longer unit is damaged, and would reject later units
                    if physical < 0 or size <= 0 or (physical > physical_offset - size and not filler):
                        break
                    if not filler:
                        last_end = physical + size
                    at += UNIT_BYTES
                to = min(old_end - file.start_offset, self.file_bytes)
                if dropped is not None and at < to:
                    dropped.append((<const char *> base + at)[:to - at])
                file.check_damage()
            finally:
                file.release()
            if at > 0 or index == 0:
                end = file.start_offset + at
                break
            index -= 1
        if last_end < 0 and index > 0:
            # only fillers remain in that file: the last real unit, if any, is in an earlier file
            last_end = self._last_physical_before(end)
        self._reach(last_end)
        mq_store64(&q.end, end)
        self._cut()

    def _last_physical_before(self, int64_t end) -> int:
        cdef int64_t at = end - UNIT_BYTES
        while at >= self.state.min_logic:
            physical, size, _ = self.unit(at // UNIT_BYTES)
            if size > 0 and not (physical == 0 and size == FILLER_SIZE):
                return physical + size
            at -= UNIT_BYTES
        return -1

    def cut_to(self, int64_t queue_offset) -> None:
        """Drop the units from this queue offset on; recovery puts them again from the log."""
        self._reach(self._last_physical_before(queue_offset * UNIT_BYTES))
        mq_store64(&self.state.end, queue_offset * UNIT_BYTES)
        self._cut()
        self.state.misplaced = 0
        self.cut_units = True

    def correct_min(self, int64_t min_physical) -> None:
        """Move the lower bound past units whose records were deleted (RocketMQ: correctMinOffset), and past fillers."""
        cdef QueueState *q = &self.state
        cdef int64_t low, high, middle
        cdef int64_t end = mq_load64(&q.end)
        cdef bint fillers
        if not self.files or q.min_logic >= end:
            return
        first = (<MappedFile> self.files[0]).start_offset
        low = max(q.min_logic, first) // UNIT_BYTES
        high = end // UNIT_BYTES
        # fillers precede the first unit: elsewhere a filler is a damaged unit, with no information on the units before
        physical, size, _ = self.unit(low)
        fillers = physical == 0 and size == FILLER_SIZE
        if not fillers and physical >= min_physical:
            return
        if self._gone(high - 1, min_physical, fillers):
            mq_store64(&q.min_logic, end)
            return
        while low < high:                   # first unit whose record exists
            middle = (low + high) // 2
            if self._gone(middle, min_physical, fillers):
                low = middle + 1
            else:
                high = middle
        mq_store64(&q.min_logic, low * UNIT_BYTES)

    cdef bint _gone(self, int64_t queue_offset, int64_t min_physical, bint fillers) except -1:
        physical, size, _ = self.unit(queue_offset)
        return fillers if physical == 0 and size == FILLER_SIZE else physical < min_physical

    # --- write ---

    def make_room(self, int64_t queue_offset) -> None:
        """Allocate blocks for the next unit: in the tail file, the next file, or the first file.

        A first file of a queue that starts above 0 is filled with fillers up to there. Raises: DiskFull, StorageError;
        nothing changed then.
        """
        cdef QueueState *q = &self.state
        cdef MappedFile file
        cdef int64_t start, at
        cdef bint fresh = not self.files
        if self.closed:
            raise StoreClosed(f"queue {self.topic}/{self.queue_id} was closed or deleted")
        if self.tail is None and not fresh:
            file = self.files[len(self.files) - 1]
            if q.end < file.start_offset + self.file_bytes:
                self._take_tail(file)           # the first unit since the queue was loaded
                if q.room_end >= q.end + UNIT_BYTES:
                    return
        if self.tail is not None and q.end < self.tail.start_offset + self.file_bytes:
            try:
                self.tail.grow(max(FIRST_ROOM, self.tail.allocated) * (16 if _fills_fast(q) else 2))
            except DiskFull:
                self.tail.grow(self.tail.allocated + FIRST_ROOM)
            q.room_end = self.tail.start_offset + self.tail.allocated - self.tail.allocated % UNIT_BYTES
            if q.room_end < q.end + UNIT_BYTES:
                self.make_room(queue_offset)
            return
        if fresh:
            start = queue_offset * UNIT_BYTES
            start -= start % self.file_bytes
            self.os_api.makedirs(self.path, False)
            for old_file in _paths.list_offset_files(self.os_api, self.path)[0]:
                self.os_api.unlink(old_file.path)         # of a queue whose deletion was interrupted
        else:
            start = (<MappedFile> self.files[len(self.files) - 1]).start_offset + self.file_bytes
            if self.state.fresh:
                self._sync_first_file()
        # The first file is synced by the next flush, which thousands of new queues share. A later file must not exist
        # without the earlier ones, and has blocks for all its units: a queue that filled a file fills the next one. On
        # a full disk it takes the minimum.
        file = MappedFile.create(self.os_api, f"{self.path}/{_paths.offset_name(start)}", start, self.file_bytes, False,
                                 not fresh, 0 if fresh else self.file_bytes, _SETTING)
        if fresh:
            self.state.fresh = True     # before the first unit: a flush that sees the unit sees this
        try:
            file.grow(queue_offset * UNIT_BYTES - start + FIRST_ROOM if fresh else FIRST_ROOM)
            self.files.append(file)
        except BaseException:
            file.destroy()
            raise
        if fresh:
            at = start
            while at < queue_offset * UNIT_BYTES:
                mq_put64(file.base + (at - start), 0)
                mq_put32(file.base + (at - start) + 8, FILLER_SIZE)
                mq_put64(file.base + (at - start) + 12, 0)
                at += UNIT_BYTES
            mq_store64(&q.min_logic, at)
            mq_store64(&q.end, at)
        self._take_tail(file)

    def put(self, int64_t physical_offset, int32_t size, int64_t tags_code, int64_t queue_offset) -> None:
        """Put a unit; make room if needed."""
        while queue_put(&self.state, physical_offset, size, tags_code, queue_offset) == PUT_NO_ROOM:
            self.make_room(queue_offset)

    # --- read ---

    cdef MappedFile file_of(self, int64_t byte):
        cdef MappedFile first
        cdef Py_ssize_t index
        if not self.files:
            return None
        first = self.files[0]
        index = (byte - first.start_offset) // self.file_bytes
        if byte < first.start_offset or index >= len(self.files):
            return None
        return self.files[index]

    def unit(self, int64_t queue_offset) -> tuple:
        """Return (physical offset, size, tags code) of a unit. Raises: OffsetError outside the queue."""
        cdef int64_t at = queue_offset * UNIT_BYTES
        cdef MappedFile file
        cdef uint8_t *unit
        if queue_offset >= 0:
            if queue_offset == self.seen_last:
                return self.scan.last_physical, self.scan.last_size, self.scan.last_tags
            if queue_offset == self.seen_first:
                return self.scan.first_physical, self.scan.first_size, self.scan.first_tags
        file = self.file_of(at) if 0 <= at < mq_load64(&self.state.end) else None
        if file is None:
            raise OffsetError(f"queue {self.topic}/{self.queue_id} has no offset {queue_offset}:"
                              f" expected {self.min_offset} to {self.max_offset - 1}")
        unit = file.hold() + (at - file.start_offset)
        try:
            fields = mq_get64(unit), mq_get32(unit + 8), mq_get64(unit + 12)
            file.check_damage()
            return fields
        finally:
            file.release()

    def readable_offset(self, int64_t limit) -> int:
        """Return the queue offset behind the last unit whose record ends at or before physical offset ``limit``.

        A unit that was put with its record exists before the record is readable.
        """
        cdef int64_t at = mq_load64(&self.state.end) // UNIT_BYTES
        if mq_load64(&self.state.max_physical) <= limit:    # read after the end: at least the value of the last unit
            return at
        while at * UNIT_BYTES > self.state.min_logic:
            try:
                physical, size, _ = self.unit(at - 1)
            except OffsetError:         # retention or the deletion of the topic was faster
                break
            if physical + size <= limit or (physical == 0 and size == FILLER_SIZE):
                break
            at -= 1
        return at

    # --- flush, delete ---

    cdef bint is_dirty(self) noexcept:
        return mq_load64(&self.state.end) > self.state.flushed or self.state.cut

    cdef int sync_names(self, bint fresh) except -1:
        """Sync the names of new files and directories, and of removed ones: units that reappear after a power cut would
        count as valid.
        """
        if self.files and fresh:
            self._sync_names()
        elif self.files and self.state.cut:
            self.os_api.fsync_dir(self.path)
        return 0

    cdef int _sync_names(self) except -1:
        """Sync the names of the queue's directories and files."""
        topic = _posixpath.dirname(self.path)
        for directory in (self.path, topic, _posixpath.dirname(topic)):
            self.os_api.fsync_dir(directory)
        return 0

    cdef int _sync_first_file(self) except -1:
        """Sync the first file before a second is created. A failed sync latches the log: units may be lost."""
        cdef MappedFile file = self.files[0]
        cdef mq_os *os = self.os_api.os
        cdef int rc
        file.hold()
        try:
            with nogil:
                rc = sync_units(os, file.base, 0, self.file_bytes, self.file_bytes)
        finally:
            file.release()
        if rc < 0:
            if self.latch is not None:
                self.latch.c.error[0] = rc
                mq_or32(self.latch.c.flags, self.latch.c.bits)
            check(rc, "msync", file.path)
        self._sync_names()
        self._lock_files()
        self.state.fresh = False
        unlock(&self.state.files_lock)
        return 0

    @property
    def flushed_bytes(self) -> int:
        """Stream byte up to which units are known durable."""
        return self.state.flushed

    def delete_expired(self, int64_t min_physical) -> int:
        """Remove files whose records are all deleted, never the last file; then correct the lower bound. Returns the
        number of files.
        """
        cdef MappedFile file
        cdef int removed = 0
        cdef int64_t first
        while len(self.files) > 1:
            file = self.files[0]
            if not self._gone((file.start_offset + self.file_bytes) // UNIT_BYTES - 1, min_physical, True):
                break
            self.files.pop(0)
            file.destroy()
            self.os_api.fsync_dir(self.path)      # each synced: a power cut in between must not leave a gap
            removed += 1
        if removed:
            first = (<MappedFile> self.files[0]).start_offset
            mq_store64(&self.state.min_logic, max(self.state.min_logic, first))
        self.correct_min(min_physical)
        return removed

    def unmap_idle(self) -> None:
        """Unmap files without holds."""
        cdef MappedFile file
        if self.before is not None and self.state.flushed >= self.before.start_offset + self.file_bytes:
            self._release_before()
        for file in self.files:
            if file is not self.tail:
                file.unmap_idle()

    def unmap_tail(self) -> None:
        """Unmap as unmap_idle does, and the tail as well; the next unit maps the tail again. Only while no put can
        write a unit itself.
        """
        if self.tail is not None:
            self.state.room_end = 0
            self.state.units = NULL
            self._give_up_tail()
        self.unmap_idle()

    def close(self) -> None:
        """Unmap the files. Views that are still held stay valid."""
        cdef MappedFile file
        self.closed = True
        self.state.room_end = 0
        self.state.units = NULL
        if self.tail is not None:
            self._give_up_tail()
        self._release_before()
        files, self.files = self.files, []      # first: a reader finds no file that cannot be held
        for file in files:
            file.drop()

    def destroy(self) -> None:
        """Remove all files and the queue's directory. After a failure, call again."""
        cdef MappedFile file
        if not self.state.deleted:      # else a concurrent put may read it under the put lock
            self.state.deleted = True
        if self.doomed is None:
            self.doomed = list(self.files)
        self.close()
        while self.doomed:
            file = self.doomed[len(self.doomed) - 1]
            file.destroy()
            self.os_api.fsync_dir(self.path)      # each synced: a power cut in between must not leave a gap
            self.doomed.pop()
        if self.os_api.is_dir(self.path) and not self.os_api.listdir(self.path):
            self.os_api.rmdir(self.path)
            self.os_api.fsync_dir(self.path.rpartition("/")[0])

    def __repr__(self):
        return f"<ConsumeQueue {self.topic}/{self.queue_id} {self.min_offset}..{self.max_offset}>"


cdef QueueState *find_in(Slots **table, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil:
    """Find a queue in the slots of a QueueTable, which must live on. NULL: there is none."""
    cdef uint64_t h = topic_hash(topic, n, queue_id)
    cdef Slots *slots = <Slots *> mq_load64(<const int64_t *> table)
    cdef int64_t i = <int64_t> (h & <uint64_t> slots.mask)
    cdef QueueState *q
    while True:
        q = <QueueState *> mq_load64(<const int64_t *> &slots.at[i])
        if q == NULL:
            return NULL
        if q.hash == h and q.queue_id == queue_id and q.topic_bytes == n and memcmp(q.topic, topic, n) == 0:
            return q
        i = (i + 1) & slots.mask


@cython.no_gc_clear
cdef class QueueTable:
    """All queues of a store, by name and by the bytes of a record.

    Thread: one writer at a time (the queue store's lock). ``find`` needs no lock: it sees the old or the new table, and
    both stay allocated as long as this object, as do removed queues.
    """

    def __cinit__(self):
        self.queues = {}
        self.removed = []
        self.slots = self._fresh(64)

    def __dealloc__(self):
        cdef Slots *gone
        while self.slots != NULL:
            gone = self.slots
            self.slots = gone.older
            free(gone)

    cdef Slots *_fresh(self, int64_t size) except NULL:
        cdef Slots *made = <Slots *> calloc(1, sizeof(Slots) + size * sizeof(QueueState *))
        if made == NULL:
            raise MemoryError()
        made.mask = size - 1
        return made

    cdef QueueState *find(self, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil:
        return find_in(&self.slots, topic, n, queue_id)

    cdef void _insert(self, Slots *slots, QueueState *q) noexcept:
        cdef int64_t i = <int64_t> (q.hash & <uint64_t> slots.mask)
        while slots.at[i] != NULL:
            i = (i + 1) & slots.mask
        mq_store64(<int64_t *> &slots.at[i], <int64_t> q)

    cdef int _rebuild(self, int64_t size, ConsumeQueue without) except -1:
        cdef list queues = list(self.queues.values())
        cdef Slots *made = self._fresh(size)
        cdef ConsumeQueue queue
        for queue in queues:
            if queue is not without:
                self._insert(made, &queue.state)
        made.older = self.slots
        mq_store64(<int64_t *> &self.slots, <int64_t> made)
        return 0

    def insert(self, ConsumeQueue queue) -> None:
        """Add a queue."""
        if (len(self.queues) + 1) * 2 > self.slots.mask:
            self._rebuild((self.slots.mask + 1) * 2, None)
        # the allocating step comes first: a queue in only one of the two would never be found by a record
        self.queues[queue.topic, queue.queue_id] = queue
        self._insert(self.slots, &queue.state)

    def remove(self, topic, queue_id) -> None:
        """Remove a queue; its state stays allocated, since a thread may still use it."""
        key = (topic, queue_id)
        queue = self.queues[key]
        self.removed.append(queue)
        self._rebuild(self.slots.mask + 1, queue)
        del self.queues[key]

    def get(self, topic, queue_id):
        """Return the queue, or None."""
        return self.queues.get((topic, queue_id))

    def all(self) -> list:
        """Return all queues."""
        return list(self.queues.values())

    def dirty(self, bint by_clock=False) -> tuple:
        """Return ([(queue, stream byte up to which to flush, names are new)] of the dirty queues, true if a page of any
        queue is left).

        Args: by_clock: leave the page of the next units of busy queues; else flush up to the last unit's end.
        """
        cdef ConsumeQueue queue
        cdef int64_t end, to
        cdef bint left_page = False
        cdef list entries = []
        for queue in list(self.queues.values()):
            if queue.is_dirty():
                to = end = mq_load64(&queue.state.end)
                if by_clock:
                    to = behind_units(&queue.state, end)
                    left_page = left_page or to < end
                entries.append((queue, to, queue.state.fresh))
        return entries, left_page

    def __len__(self):
        return len(self.queues)
