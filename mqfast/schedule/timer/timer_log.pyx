# cython: wraparound=True
"""The timer log: one unit of 52 bytes for each parked message, in files of one size (RocketMQ: TimerLog).

Units are collected in memory and written once a turn, with pwrite: no page of these files is mapped. A position that
a caller may have stored is not assigned again, and every returned unit was checked. Format: ``mqfast/store/FORMAT.md``,
"Timer files".
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from mqfast.store.base.os_api cimport (
    MQ_OPEN_CREATE,
    MQ_OPEN_WRITE,
    OsApi,
    check,
    check_room,
    encode_path,
    mq_get32,
    mq_get64,
    mq_os,
    mq_put32,
    mq_put64,
    mq_stat,
    read_all,
    write_all,
)

from mqfast.errors import ConfigError, CorruptFile
from mqfast.store.base import paths as _paths
from mqfast.store.reader import timer_files as _format

cdef enum:
    UNIT_BYTES = 52
    BLANK_BYTES = 16
    PREVIOUS = 4            # offsets of the fields of a unit; the size is at 0, the last eight bytes are zero
    MAGIC = 12
    WRITE_TIME = 16
    DELAY = 24
    PHYSICAL = 28
    SIZE = 36
    TOPIC_HASH = 40
    RESERVED = 44
    BLOCK_BYTES = 16 << 10
    PENDING_UNITS = 4096
    OPEN_FILES = 8
    NO_DATA = -6            # -ENXIO of Linux

cdef int MAGIC_MAX = _format.MAGIC_MAX
cdef int DELETE = _format.DELETE
cdef int ROLL = _format.ROLL
cdef uint32_t BLANK_MAGIC = _format.BLANK_MAGIC
cdef str SETTING = "mapped_file_bytes_timer_log"
assert _format.UNIT.size == UNIT_BYTES and _format.BLANK.size == BLANK_BYTES


@cython.final
cdef class TimerLog:
    """The files of one timer log. A position counts bytes through all of them.

    Args: directory: created with the first unit; file_bytes: length of one file.
    Thread: one thread; ``sync`` may run in another thread at the same time.
    Source: TimerLog.
    """

    cdef OsApi os_api
    cdef mq_os *os
    cdef readonly str directory
    cdef readonly int64_t file_bytes
    cdef readonly int64_t end       # position of the next unit
    cdef int64_t written            # units before are in the page cache, later units in `pending`
    cdef uint8_t *pending
    cdef uint8_t *block             # of a file, for reading
    cdef int64_t block_start, block_end
    cdef list starts                # of the files, ascending
    cdef dict fds                   # start -> descriptor
    cdef set unsynced               # starts
    cdef int64_t syncing            # the start of the file that another thread is syncing; -1: none
    cdef bint is_new_name

    def __init__(self, OsApi os_api not None, str directory not None, int64_t file_bytes):
        if file_bytes < UNIT_BYTES + BLANK_BYTES:
            raise ConfigError(f"{SETTING}: expected at least {UNIT_BYTES + BLANK_BYTES} bytes, found {file_bytes}")
        self.os_api = os_api
        self.os = os_api.os
        self.directory = directory
        self.file_bytes = file_bytes
        self.starts = []
        self.fds = {}
        self.unsynced = set()
        self.syncing = -1
        self.pending = <uint8_t *> malloc(PENDING_UNITS * UNIT_BYTES + BLANK_BYTES)
        self.block = <uint8_t *> malloc(BLOCK_BYTES)
        if self.pending == NULL or self.block == NULL:
            raise MemoryError()

    def __dealloc__(self):
        self.close()
        free(self.pending)
        free(self.block)

    # --- files ---

    def load(self) -> None:
        """List the files; ``end`` is the end of the last file until ``truncate`` sets the end of the units.

        Raises: CorruptFile for a file of another length or with a name that is no multiple of the length; StorageError.
        """
        files = _paths.list_offset_files(self.os_api, self.directory)[0]
        for start, path in files:
            size = self.os_api.file_size(path)
            if size == 0 and start == files[-1].start_offset:
                self.os_api.unlink(path)      # created just before a power cut
                break
            if size != self.file_bytes or start % self.file_bytes:
                raise CorruptFile("timer log file has a wrong length", path=path, expected=f"{self.file_bytes} bytes",
                                  found=f"{size} bytes")
            self.starts.append(start)
        self.end = self.written = self.starts[-1] + self.file_bytes if self.starts else 0

    @property
    def begin(self) -> int:
        """Return the smallest position that may have a unit."""
        return self.starts[0] if self.starts else self.end

    cdef str _path(self, int64_t start):
        return f"{self.directory}/{_paths.offset_name(start)}"

    cdef int _open(self, int64_t start) except -1:
        """Return a descriptor of the file that begins at ``start``. Raises: CorruptFile for a missing file."""
        cdef int fd
        descriptor = self.fds.get(start)
        if descriptor is not None:
            return descriptor
        if start not in self.starts:
            raise CorruptFile("timer log file is missing", path=self._path(start), expected=f"{self.file_bytes} bytes",
                              found="no file")
        if len(self.fds) >= OPEN_FILES:
            for other in [other for other in self.fds
                          if other != self.starts[-1] and other != self.syncing and other not in self.unsynced]:
                self.os.close(self.os, self.fds.pop(other))
        native = encode_path(self._path(start))
        fd = self.os.open(self.os, <const char *> <bytes> native, MQ_OPEN_WRITE)
        check(fd, "open", self._path(start))
        self.fds[start] = fd
        return fd

    cdef int _make(self, int64_t start) except -1:
        """Create a sparse file at the end of the log."""
        cdef int fd
        path = self._path(start)
        native = encode_path(path)
        self.os_api.makedirs(self.directory)
        fd = self.os.open(self.os, <const char *> <bytes> native, MQ_OPEN_WRITE | MQ_OPEN_CREATE)
        check_room(self.os_api, fd, "open", path, self.file_bytes, SETTING)
        try:
            check_room(self.os_api, self.os.ftruncate(self.os, fd, self.file_bytes), "truncate", path, self.file_bytes,
                       SETTING)
        except BaseException:
            self.os.close(self.os, fd)
            raise
        self.fds[start] = fd
        self.starts.append(start)
        self.unsynced.add(start)
        self.is_new_name = True
        return 0

    def write(self) -> None:
        """Write the collected units to the page cache. Raises: DiskFull, StorageError; the units stay collected."""
        cdef int64_t n = self.end - self.written, start = self.written - self.written % self.file_bytes
        if n == 0:
            return
        check_room(self.os_api, write_all(self.os, self._open(start), self.pending, n, self.written - start), "write",
                   self._path(start), n, SETTING)
        self.unsynced.add(start)
        self.written = self.end

    def sync(self) -> None:
        """Make the written units durable. Raises: StorageError. GIL: released."""
        cdef int rc, fd
        cdef bint is_new_name = self.is_new_name
        for start in list(self.unsynced):
            fd = self.fds[start]
            self.syncing = start
            self.unsynced.discard(start)    # before the fsync: units written during the fsync count as not synced
            with nogil:
                rc = self.os.fsync(self.os, fd)
            self.syncing = -1
            if rc < 0:
                self.unsynced.add(start)
            check(rc, "fsync", self._path(start))
        if is_new_name:
            self.is_new_name = False
            try:
                self.os_api.fsync_dir(self.directory)
                self.os_api.fsync_dir(self.directory.rpartition("/")[0])
            except BaseException:
                self.is_new_name = True
                raise

    def close(self) -> None:
        """Close the files; units that were not written are lost."""
        while self.fds:
            self.os.close(self.os, self.fds.popitem()[1])

    def truncate(self, int64_t end) -> None:
        """Set the end of the units: remove later files and zero the rest of the last file. Raises: StorageError."""
        cdef int64_t start = end - end % self.file_bytes, at = end - start, n, i
        cdef int fd
        while self.starts and self.starts[-1] >= end:
            last = self.starts.pop()
            if last in self.fds:
                self.os.close(self.os, self.fds.pop(last))
            self.unsynced.discard(last)
            self.os_api.unlink(self._path(last))
            self.is_new_name = True
        self.end = self.written = end
        self.block_end = self.block_start
        if not self.starts or self.starts[-1] != start:
            return
        fd = self._open(start)
        while at < self.file_bytes:
            n = self.os.seek_data(self.os, fd, at)
            if n < 0:       # a hole up to the end, or unknown
                check(0 if n == NO_DATA else n, "seek", self._path(start))
                break
            at = max(at, n)
            n = read_all(self.os, fd, self.block, min(<int64_t> BLOCK_BYTES, self.file_bytes - at), at)
            check(n, "read", self._path(start))
            for i in range(n):
                if self.block[i]:
                    memset(self.block, 0, n)
                    check(write_all(self.os, fd, self.block, n, at), "write", self._path(start))
                    self.unsynced.add(start)
                    break
            at += max(n, 1)

    def clear(self) -> None:
        """Remove every file; the next unit gets position 0. Raises: StorageError."""
        self.truncate(0)

    def expire(self, int64_t min_physical) -> int:
        """Remove files whose last unit has a physical offset below ``min_physical``, except the last file.

        Returns: the number of removed files. Source: MappedFileQueue.deleteExpiredFileByOffsetForTimerLog.
        """
        cdef int removed = 0
        while len(self.starts) > 1 and self.starts[0] not in self.unsynced and self.starts[0] != self.syncing:
            start = self.starts[0]
            if self.unit(start + self._last_unit())[5] >= min_physical:
                break
            if start in self.fds:
                self.os.close(self.os, self.fds.pop(start))
            self.os_api.unlink(self._path(start))
            self.starts.pop(0)
            removed += 1
        return removed

    cdef int64_t _last_unit(self) noexcept:
        """Return the offset of the last unit in a full file."""
        return (self.file_bytes - BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES

    def before(self, int64_t position) -> int:
        """Return the position of the unit before a unit at ``position`` or before the end."""
        return position - UNIT_BYTES if position % self.file_bytes else position - self.file_bytes + self._last_unit()

    # --- units ---

    def following(self, int64_t position) -> int:
        """Return the position behind a unit, valid or damaged, at ``position``."""
        cdef int64_t remaining_bytes = self.file_bytes - position % self.file_bytes
        return position + (UNIT_BYTES if remaining_bytes >= 2 * UNIT_BYTES + BLANK_BYTES else remaining_bytes)

    def append(self, int64_t previous, int32_t magic, int64_t write_time, int32_t delay, int64_t physical, int32_t size,
               int32_t topic_hash) -> int:
        """Add a unit, in memory until ``write``. Returns: its position.

        Raises: DiskFull, StorageError; no unit was added then.
        Source: TimerMessageStore.doEnqueue, TimerLog.append.
        """
        cdef int64_t remaining_bytes = self.file_bytes - self.end % self.file_bytes
        cdef int64_t start = self.end - self.end % self.file_bytes
        cdef uint8_t *p
        if remaining_bytes < UNIT_BYTES + BLANK_BYTES:
            self._roll(start, remaining_bytes)
            start += self.file_bytes
        if not self.starts or self.starts[-1] < start:
            self.write()
            self._make(start)
        if self.end - self.written >= PENDING_UNITS * UNIT_BYTES:
            self.write()
        p = self.pending + (self.end - self.written)
        mq_put32(p, UNIT_BYTES)
        mq_put64(p + PREVIOUS, previous)
        mq_put32(p + MAGIC, magic)
        mq_put64(p + WRITE_TIME, write_time)
        mq_put32(p + DELAY, delay)
        mq_put64(p + PHYSICAL, physical)
        mq_put32(p + SIZE, size)
        mq_put32(p + TOPIC_HASH, topic_hash)
        mq_put64(p + RESERVED, 0)
        self.end += UNIT_BYTES
        return self.end - UNIT_BYTES

    cdef int _roll(self, int64_t start, int64_t remaining_bytes) except -1:
        """End the file at ``start`` with a blank unit; the log continues in the next file, which is not created yet."""
        cdef uint8_t blank[BLANK_BYTES]
        self.write()
        mq_put32(blank, <int32_t> remaining_bytes)
        mq_put64(blank + 4, 0)
        mq_put32(blank + 12, <int32_t> BLANK_MAGIC)
        check_room(self.os_api,
                   write_all(self.os, self._open(start), blank, BLANK_BYTES, self.file_bytes - remaining_bytes),
                   "write", self._path(start), remaining_bytes, SETTING)
        self.unsynced.add(start)
        self.end = self.written = start + self.file_bytes
        return 0

    cdef const uint8_t *_at(self, int64_t position, int64_t n) except NULL:
        """Return ``n`` bytes at a position, valid until the next call. Raises: CorruptFile outside the log."""
        cdef int64_t start = position - position % self.file_bytes, begin, end, size
        if position < 0 or position + n > self.end:
            raise CorruptFile("no unit of the timer log", path=self.directory, offset=position,
                              expected=f"a position below {self.end}", found=position)
        if position >= self.written:
            return self.pending + (position - self.written)
        if not self.block_start <= position or position + n > self.block_end:
            end = min(start + self.file_bytes, self.written)
            if position >= self.block_end and position - self.block_end < BLOCK_BYTES:
                begin = position                                                # forward
            else:
                begin = max(start, position + n - BLOCK_BYTES)                  # the units of a chain are read backward
            end = min(end, begin + BLOCK_BYTES)
            size = read_all(self.os, self._open(start), self.block, end - begin, begin - start)
            check(size, "read", self._path(start))
            self.block_start = begin
            self.block_end = begin + size
            if position + n > self.block_end:
                raise CorruptFile("timer log file is too short", path=self._path(start), offset=position - start,
                                  expected=f"{n} bytes", found="its end")
        return self.block + (position - self.block_start)

    cdef bint _is_unit(self, const uint8_t *p, int64_t position) noexcept:
        cdef int32_t magic = mq_get32(p + MAGIC)
        return (mq_get32(p) == UNIT_BYTES and 0 <= magic <= MAGIC_MAX and -1 <= mq_get64(p + PREVIOUS) < position
                and mq_get64(p + PHYSICAL) >= 0 and mq_get32(p + SIZE) > 0)

    cdef const uint8_t *_unit(self, int64_t position) except NULL:
        cdef const uint8_t *p = self._at(position, UNIT_BYTES)
        if not self._is_unit(p, position):
            raise CorruptFile("no unit of the timer log", path=self.directory, offset=position,
                              expected="a unit of 52 bytes", found=(p[:16]).hex())
        return p

    cdef tuple _fields(self, const uint8_t *p, int64_t position):
        return (position, mq_get64(p + PREVIOUS), mq_get32(p + MAGIC), mq_get64(p + WRITE_TIME), mq_get32(p + DELAY),
                mq_get64(p + PHYSICAL), mq_get32(p + SIZE), mq_get32(p + TOPIC_HASH))

    def unit(self, int64_t position) -> tuple:
        """Return position, previous, magic, write time, delay, physical offset, size and topic hash of a unit.

        Raises: CorruptFile, StorageError.
        """
        return self._fields(self._unit(position), position)

    def units(self, int64_t position, int64_t max_units) -> tuple:
        """Read at most ``max_units`` units from a position on; continues behind a blank with an existing next file.

        Returns: (units as from ``unit``, position behind the last unit); no units if the position has no valid unit.
        Raises: StorageError.
        """
        cdef list units = []
        cdef const uint8_t *p
        cdef int64_t remaining_bytes
        while len(units) < max_units and position < self.end:
            remaining_bytes = self.file_bytes - position % self.file_bytes
            if remaining_bytes >= UNIT_BYTES and position + UNIT_BYTES <= self.end:
                p = self._at(position, UNIT_BYTES)
                if self._is_unit(p, position):
                    units.append(self._fields(p, position))
                    position += UNIT_BYTES
                    continue
            if (remaining_bytes >= BLANK_BYTES and position + remaining_bytes < self.end
                    and position + remaining_bytes in self.starts):
                p = self._at(position, BLANK_BYTES)
                if (mq_get32(p) == remaining_bytes and mq_get64(p + 4) == 0
                        and <uint32_t> mq_get32(p + 12) == BLANK_MAGIC):
                    position += remaining_bytes
                    continue
            break
        return units, position

    def chain(self, int64_t position, int64_t stop, int64_t time, int64_t precision, int64_t max_units) -> tuple:
        """Read the chain of one slot backward from ``position``, at most ``max_units`` units.

        Args: stop: the chain is read down to this position; time: of the slot, in steps of precision ms.
        Returns: (positions of messages, positions of deletes, next position), newest first; -1: end of chain.
        Raises: CorruptFile for an invalid unit or a unit of another time in the chain; StorageError.
        Source: TimerMessageStore.dequeue.
        """
        cdef list messages = [], deletes = []
        cdef const uint8_t *p
        cdef int64_t due
        cdef int32_t magic
        stop = max(stop, self.starts[0] if self.starts else self.end)
        while position >= stop and max_units > 0:
            p = self._unit(position)
            due = mq_get64(p + WRITE_TIME) + mq_get32(p + DELAY)
            if due // precision != time:
                raise CorruptFile("timer slot leads to a unit of another time", path=self.directory, offset=position,
                                  expected=f"a unit that is due at {time * precision}", found=due)
            magic = mq_get32(p + MAGIC)
            (deletes if magic & DELETE and not magic & ROLL else messages).append(position)
            position = mq_get64(p + PREVIOUS)
            max_units -= 1
        return messages, deletes, position if position >= stop else -1
