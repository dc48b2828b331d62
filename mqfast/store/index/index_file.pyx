"""IndexFile: a file of the hash index, from (topic, key) to physical offsets.

A hit is a candidate only: two keys may share a hash, and the caller compares the message. Every number from the file
is checked before use, and no disk operation waits with the GIL held. FORMAT.md describes the layout (40-byte header,
slots of 4 bytes, entries of 20). Source: IndexFile, IndexHeader.

A single writer, any number of readers, no lock between them. The writer completes an entry before it stores the
entry's number in the slot, and the slot before the count; a reader reads in the opposite order. So every entry that a
reader reaches is complete, also from another process.

A writable file is mapped. The file has the full length from the start, and gets blocks in steps: the slots with the
first entries, then more entries ahead of the puts. A full disk is therefore an error and not a later signal, and a
store with a few keys needs little disk space. A file opened read-only is read by pread, since the owner may shrink
the file at any time.
"""

import errno as _errno
import os as _os

cimport cython

from mqfast.errors import ConfigError, CorruptFile, FlushError, StorageError, StoreClosed, UsageError

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mqfast.store.base.os_api cimport (
    mq_assert, MQ_ADVISE_HUGE, MQ_OPEN_CREATE, MQ_OPEN_READ, MQ_OPEN_TRUNCATE, MQ_OPEN_WRITE, MQ_READ_WRITE,
    OsApi, allocate, allocate_empty, check, check_room, decode_path, encode_path, guard_add, guard_remove, in_folios,
    mq_acquire32, mq_acquire64, mq_add64, mq_cas64, mq_get32, mq_get64, mq_load32, mq_load64, mq_or32, mq_os,
    mq_put32, mq_put64, mq_release32, mq_release64, mq_stat, mq_store32, mq_store64, os_error, populate, read_all,
)

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    const void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    HEADER_BYTES = 40
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    CHUNK = 64            # offsets collected before taking the GIL; RocketMQ's own limit of a query
    ENTRY_CHUNK = 512     # entries read at once for a dump
    ZERO_CHUNK = 1 << 20  # bytes per search for the last nonzero byte
    SAMPLE = 2048         # entries checked from either end when sizes are guessed
    PAGE = 4096
    # blocks for entries are reserved in steps as long as all entries before, up to this; the minimum on a full disk
    STEP_MOST = 8 << 20

# RocketMQ's defaults.
_DEFAULT_SIZES = ((5_000_000, 20_000_000), (75_000, 300_000))  # RocketMQ's sizes, and those of the embedded profile
_SETTING = "max_hash_slot_num or max_index_num"
# Java maps an index file in one piece, whose length is a signed 32-bit number.
_BYTES_MAX = 2**31 - 1


cdef int index_put(IndexState *s, int32_t key_hash, int64_t physical_offset, int64_t store_timestamp) noexcept nogil:
    cdef int32_t number = s.count
    if number >= s.room:
        return 0
    cdef int32_t h = key_slot_hash(key_hash)
    cdef uint8_t *slot = s.base + HEADER_BYTES + SLOT_BYTES * <int64_t> (h % s.slots)
    cdef uint8_t *entry = s.base + HEADER_BYTES + SLOT_BYTES * <int64_t> s.slots + ENTRY_BYTES * <int64_t> number
    cdef int32_t previous = mq_get32(slot)
    mq_assert(s.base != NULL, number, s.capacity)
    mq_assert(number >= 0, number, 0)
    mq_assert(number < s.capacity, number, s.capacity)
    mq_assert(h >= 0, h, 0)
    mq_assert(physical_offset >= 0, physical_offset, 0)
    if previous < 0 or previous > number:
        previous = 0
    # The first entry of a rolled file is measured from the end of the previous file: the header still holds that time
    # here, as in RocketMQ.
    cdef int64_t seconds = 0
    if s.begin_timestamp > 0:
        seconds = <int64_t> (<uint64_t> store_timestamp - <uint64_t> s.begin_timestamp) / 1000
        if seconds < 0:
            seconds = 0
        elif seconds > 2147483647:
            seconds = 2147483647
    mq_put32(entry, h)
    mq_put64(entry + 4, physical_offset)
    mq_put32(entry + 12, <int32_t> seconds)
    mq_put32(entry + 16, previous)
    if number <= 1:
        mq_store64(&s.begin_timestamp, store_timestamp)
        mq_store64(&s.begin_offset, physical_offset)
        mq_release64(s.base, store_timestamp)
        mq_release64(s.base + 16, physical_offset)
    mq_release32(slot, number)
    if previous == 0:
        s.slots_used += 1
        mq_release32(s.base + 32, s.slots_used)
    mq_store64(&s.end_timestamp, store_timestamp)
    mq_store64(&s.end_offset, physical_offset)
    mq_release64(s.base + 8, store_timestamp)
    mq_release64(s.base + 24, physical_offset)
    mq_store32(<uint32_t *> &s.count, <uint32_t> (number + 1))
    mq_release32(s.base + 36, number + 1)
    return 1


cdef inline uint32_t _jhash(uint32_t h, str text) noexcept:
    # Return String.hashCode of the text of h, continued over UTF-16 units.
    cdef Py_ssize_t i, n = PyUnicode_GET_LENGTH(text)
    cdef int kind = PyUnicode_KIND(text)
    cdef const void *data = PyUnicode_DATA(text)
    cdef uint32_t point
    if kind == 1:
        for i in range(n):
            h = 31 * h + (<const uint8_t *> data)[i]
    elif kind == 2:
        for i in range(n):
            h = 31 * h + (<const uint16_t *> data)[i]
    else:
        for i in range(n):
            point = (<const uint32_t *> data)[i]
            if point >= 0x10000:
                h = 31 * h + (0xD7C0 + (point >> 10))
                point = 0xDC00 + (point & 0x3FF)
            h = 31 * h + point
    return h


cdef int32_t hash_of_key(str topic, str key) noexcept:
    return key_slot_hash(<int32_t> _jhash(31 * _jhash(0, topic) + 35, key))  # 35: "#"


def key_hash(str topic not None, str key not None) -> int:
    """Return the index's hash of a key of a topic: not negative, 31 bits.

    Source: IndexFile.indexKeyHashMethod, IndexService.buildKey.
    """
    return hash_of_key(topic, key)


cdef int64_t _clamped(object value) except? -1:
    # Limit a time to Java's bounds.
    try:
        return value
    except OverflowError:
        return INT64_MAX if value > 0 else INT64_MIN


def _file_bytes(slots, capacity, path) -> int:
    total = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * capacity
    if slots < 1 or capacity < 2 or total > _BYTES_MAX:
        raise ConfigError(
            f"an index file needs at least 1 slot and 2 entries and is at most {_BYTES_MAX} bytes long, "
            f"found max_hash_slot_num {slots} and max_index_num {capacity}, file {path}"
        )
    return total


@cython.final
@cython.no_gc_clear  # os_api must outlive the unmapping
cdef class IndexFile:
    """An open index file. Made by ``create`` or ``open``.

    Attributes: ``path``, ``writable``, ``damage`` (None, or the fault of the header; the file stays usable as far as
    possible).

    Thread: a single thread puts; queries, flushes and the header's values from any. GIL: released for every search,
    flush and mapping.
    Durability: puts survive a process kill, and a power loss once flushed; the file can be rebuilt from the log.
    Source: IndexFile.
    """

    def __cinit__(self):
        self.fd = -1
        self.flushed_count = -1

    def __init__(self):
        raise UsageError("use IndexFile.create or IndexFile.open")

    def __dealloc__(self):
        if self.holds > 0 and mq_or32(&self.closing, 1) == 0:
            self.release()

    # --- life ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def create(OsApi os_api not None, path, slots, capacity, previous=None) -> IndexFile:
        """Create a file with blocks for the slots and first entries, and map the file for puts.

        Args: ``slots``, ``capacity``: RocketMQ's maxHashSlotNum and maxIndexNum; ``previous``: (end_timestamp,
        end_offset) of the previous full file.
        Raises: DiskFull, StorageError (nothing is left behind), ConfigError.
        Durability: the first flush() makes the name durable.
        """
        path = decode_path(path)
        total = _file_bytes(slots, capacity, path)
        if os_api.exists(path):
            raise StorageError(_errno.EEXIST, "the index file exists already", path)
        # Created under a temporary name, so that a file of the right name always has the full length, whenever the
        # process dies.
        temporary = path + ".tmp"
        cdef IndexFile f = IndexFile.__new__(IndexFile)
        f.writable = True
        f.path = path
        f.bytes = total
        try:
            f.attach(os_api, path, encode_path(temporary), slots, capacity, True)
            f.state.count = 1
            if previous is not None:
                end_timestamp, end_offset = previous
                if end_offset > 0:
                    f.state.begin_offset = f.state.end_offset = end_offset
                    mq_put64(f.state.base + 16, end_offset)
                    mq_put64(f.state.base + 24, end_offset)
                if end_timestamp > 0:
                    f.state.begin_timestamp = f.state.end_timestamp = end_timestamp
                    mq_put64(f.state.base, end_timestamp)
                    mq_put64(f.state.base + 8, end_timestamp)
            os_api.rename(temporary, path)
        except BaseException:
            f.close()
            os_api.unlink(temporary, missing_ok=True)
            raise
        return f

    @staticmethod
    def open(OsApi os_api not None, path, slots, capacity, writable=True) -> IndexFile:
        """Open an existing file: mapped for puts, or by pread when not ``writable``.

        Raises: CorruptFile if the length does not fit ``slots`` and ``capacity``; StoreNotFound, StorageError,
        ConfigError.
        """
        path = decode_path(path)
        cdef IndexFile f = IndexFile.__new__(IndexFile)
        f.writable = writable
        f.path = path
        f.bytes = _file_bytes(slots, capacity, path)
        f.directory_synced = True
        cdef IndexState found
        try:
            f.attach(os_api, path, encode_path(path), slots, capacity, False)
            f.header(&found)
            f.state.count = found.count
            f.state.slots_used = found.slots_used
            f.state.begin_timestamp = found.begin_timestamp
            f.state.end_timestamp = found.end_timestamp
            f.state.begin_offset = found.begin_offset
            f.state.end_offset = found.end_offset
        except BaseException:
            f.close()
            raise
        return f

    cdef int attach(
        self, OsApi os_api, object path, object native, int64_t slots, int64_t capacity, bint create
    ) except -1:
        """Open the descriptor, check or set the length, map the file. close() reverts all completed steps."""
        cdef bytes name = native
        cdef const char *c = name
        cdef mq_os *os = os_api.os
        cdef int flags = MQ_OPEN_READ
        cdef mq_stat st
        cdef int rc = 0
        cdef void *base = NULL
        self.os_api = os_api
        self.os = os
        self.state.slots = <int32_t> slots
        self.state.capacity = <int32_t> capacity
        if self.writable:
            flags = MQ_OPEN_WRITE | (MQ_OPEN_CREATE | MQ_OPEN_TRUNCATE if create else 0)
        with nogil:
            rc = os.open(os, c, flags)
        check(rc, "open", path)
        self.fd = rc
        self.holds = 1
        if create:
            with nogil:
                rc = os.ftruncate(os, self.fd, self.bytes)
            check_room(os_api, rc, "truncate", path, PAGE, _SETTING)
            self.give_blocks(HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * 2)
        else:
            check(os.fstat(os, self.fd, &st), "stat", path)
            if st.is_directory:
                raise StorageError(_errno.EISDIR, "is a directory", path)
            if st.bytes != self.bytes:
                raise CorruptFile(
                    f"wrong length of an index file of {slots} slots and {capacity} entries",
                    path=path, expected=f"{self.bytes} bytes", found=f"{st.bytes} bytes",
                )
        if self.writable:
            with nogil:
                rc = os.mmap(os, self.fd, self.bytes, MQ_READ_WRITE, &base)
            check(rc, "mmap", path)
            self.native_path = name
            self.guarded = guard_add(os, base, self.bytes, <const char *> self.native_path, &self.lost, NULL)
            if self.guarded == NULL:
                os.munmap(os, base, self.bytes)
                raise MemoryError()
            self.state.base = <uint8_t *> base
        return 0

    cdef bint hold(self) noexcept nogil:
        cdef int64_t n
        while mq_load32(&self.closing) == 0:
            n = mq_load64(&self.holds)
            if n <= 0:
                return False
            if mq_cas64(&self.holds, n, n + 1):
                return True
        return False

    cdef void release(self) noexcept nogil:
        mq_assert(mq_load64(&self.holds) > 0, self.holds, 0)
        if mq_add64(&self.holds, -1) != 0:
            return
        if self.state.base != NULL:
            guard_remove(self.guarded)
            self.guarded = NULL
            self.os.munmap(self.os, self.state.base, self.bytes)
            self.state.base = NULL
        if self.fd >= 0:
            self.os.close(self.os, self.fd)
            self.fd = -1

    cdef int enter(self) except -1:
        if not self.hold():
            raise StoreClosed(f"index file {self.path} is closed")
        return 0

    cdef int check_damage(self) except -1:
        """Raise CorruptFile if a page of the mapping was lost: bytes that were read may be zeros, and puts are lost."""
        if mq_load32(&self.lost.hits):
            raise CorruptFile(
                "a mapped page is gone: the file was cut short, or the disk could not read it",
                path=self.path, offset=self.lost.position, expected="a page of the file", found="SIGBUS",
            )
        return 0

    def close(self) -> None:
        """Refuse further use and unmap when no call is in flight. Does not flush. Safe to call twice."""
        if mq_or32(&self.closing, 1) == 0 and self.holds > 0:
            with nogil:
                self.release()

    def destroy(self) -> None:
        """Close and remove the file; a query in flight in another thread ends as if it had come earlier."""
        self.close()
        self.os_api.unlink(self.path, missing_ok=True)

    def reserve(self) -> None:
        """Reserve disk blocks for the slots and the next entries: a whole step, or the rest of a nearly full disk.

        Raises: DiskFull, StorageError, StoreClosed.
        """
        cdef int64_t entries = HEADER_BYTES + SLOT_BYTES * <int64_t> self.state.slots, used
        if self.state.count < self.state.room or not self.writable or self.state.count >= self.state.capacity:
            return
        used = ENTRY_BYTES * <int64_t> self.state.count
        self.enter()
        try:
            self.give_blocks(entries + used + ENTRY_BYTES)
        finally:
            self.release()

    cdef int give_blocks(self, int64_t end) except -1:
        """Reserve blocks for the bytes up to ``end``, and a step more. Under a hold. Bytes with blocks are
        not changed.
        """
        cdef int64_t entries = HEADER_BYTES + SLOT_BYTES * <int64_t> self.state.slots
        cdef int64_t start = self.allocated, step = min(end - entries, <int64_t> STEP_MOST)
        cdef int64_t least = min(in_folios(end), self.bytes), stop = min(in_folios(end + step), self.bytes)
        cdef mq_os *os = self.os
        cdef int rc
        while True:
            with nogil:
                # not new: the content is kept, also by a system that cannot allocate
                if start == 0 and self.directory_synced:
                    rc = allocate(os, self.fd, start, stop - start)
                else:
                    rc = allocate_empty(os, self.fd, start, stop - start)
            if rc >= 0 or stop == least:
                break
            stop = least
        check_room(self.os_api, rc, "allocate", self.path, stop - start, _SETTING)
        self.allocated = stop
        self.state.room = <int32_t> min((stop - entries) // ENTRY_BYTES, <int64_t> self.state.capacity)
        return 0

    def populate_slots(self) -> None:
        """Make the pages of all slots writable at once, as large pages if the filesystem has them. A page that fails
        now is made, or the failure is reported, when a put needs the page.

        Raises: StoreClosed. GIL: released.
        """
        self.enter()
        try:
            with nogil:
                self.os.madvise(self.os, self.state.base, self.bytes, MQ_ADVISE_HUGE)
                populate(self.os, self.state.base, HEADER_BYTES + SLOT_BYTES * <int64_t> self.state.slots)
        finally:
            self.release()

    def flush(self) -> None:
        """Make every entry put before this call, and the file's name, durable.

        Raises: FlushError, also in every later call, since the kernel may have dropped the failed pages. StoreClosed.
        """
        cdef int rc
        cdef int64_t count, nothing_put
        cdef uint8_t header_tail[8]
        cdef mq_stat st
        if not self.writable:
            return
        self.enter()
        try:
            if self.flush_failed:
                raise FlushError(_errno.EIO, "an earlier flush of the index file failed", self.path)
            count = <int32_t> mq_load32(<uint32_t *> &self.state.count)
            if count <= 1 and self.allocated > 0:
                # RocketMQ's flush writes the count of an empty file. The exchange cannot revert a put that runs
                # meanwhile.
                mq_put64(header_tail, 1)
                memcpy(&nothing_put, header_tail, 8)
                mq_cas64(<int64_t *> (self.state.base + 32), 0, nothing_put)
            if count != self.flushed_count:
                with nogil:
                    rc = self.os.msync(self.os, self.state.base, self.bytes)
                if rc < 0:
                    self.flush_failed = True
                    raise FlushError(-rc, f"msync failed: {_os.strerror(-rc)}", self.path)
                st.unlinked = 0
                check(self.os.fstat(self.os, self.fd, &st), "stat", self.path)
                if st.bytes < self.bytes or st.unlinked or mq_load32(&self.lost.hits):
                    self.flush_failed = True
                    raise FlushError(_errno.EIO, "the index file was cut short or removed", self.path)
                self.flushed_count = count
            if not self.directory_synced:
                try:
                    self.os_api.fsync_dir(_os.path.dirname(self.path) or ".")
                except StorageError as error:
                    self.flush_failed = True
                    raise FlushError(error.errno, error.strerror, error.filename) from error
                self.directory_synced = True
        finally:
            self.release()

    # --- header -------------------------------------------------------------------------------------------------------

    cdef const uint8_t *fetch(self, int64_t position, int64_t n, uint8_t *scratch, int64_t *rc) noexcept nogil:
        # Under a hold. Return n bytes at a checked position; NULL: rc has the reason (0: the file has shrunk).
        if self.state.base != NULL:
            return self.state.base + position
        cdef int64_t got = read_all(self.os, self.fd, scratch, n, position)
        if got == n:
            return scratch
        rc[0] = got if got < 0 else 0
        return NULL

    cdef int64_t read_header(self, IndexState *to) noexcept nogil:
        # Under a hold. Read the header within its bounds; returns count as stored in the file, or INT64_MIN for an
        # unreadable header.
        cdef uint64_t scratch[5]        # HEADER_BYTES, aligned as the mapping is
        cdef int64_t rc = 0
        cdef int32_t count
        cdef const uint8_t *p = self.fetch(0, HEADER_BYTES, <uint8_t *> scratch, &rc)
        if p == NULL:
            return INT64_MIN
        count = mq_acquire32(p + 36)
        to.begin_timestamp = mq_acquire64(p)
        to.end_timestamp = mq_acquire64(p + 8)
        to.begin_offset = mq_acquire64(p + 16)
        to.end_offset = mq_acquire64(p + 24)
        to.slots_used = min(max(mq_acquire32(p + 32), 0), self.state.slots)
        to.count = min(max(count, 1), self.state.capacity)
        return count

    cdef int header(self, IndexState *to) except -1:
        """Copy the current header; of a closed file the last header."""
        cdef int64_t count
        if not self.hold():
            to[0] = self.state
            return 0
        try:
            count = self.read_header(to)
            if count == INT64_MIN:
                raise CorruptFile("the index file has shrunk", path=self.path, offset=0, expected=f"{self.bytes} bytes")
            self.check_damage()
            if (count < 0 or count > self.state.capacity) and self.damage is None:
                self.damage = (
                    f"file {self.path}, offset 36: entry count {count} of an index file of {self.state.capacity} "
                    "entries"
                )
        finally:
            self.release()
        return 0

    @property
    def closed(self) -> bool:
        """True after close() or destroy()."""
        return mq_load32(&self.closing) != 0

    @property
    def slots(self) -> int:
        """Hash slots (maxHashSlotNum)."""
        return self.state.slots

    @property
    def capacity(self) -> int:
        """Maximum number of entries, including entry 0, which is never used (maxIndexNum)."""
        return self.state.capacity

    @property
    def count(self) -> int:
        """Number of the next entry: 1 in an empty file (indexCount)."""
        cdef IndexState h
        self.header(&h)
        return h.count

    @property
    def slots_used(self) -> int:
        """Slots that hold a chain (hashSlotCount)."""
        cdef IndexState h
        self.header(&h)
        return h.slots_used

    @property
    def begin_timestamp(self) -> int:
        """Store time of the first entry, ms."""
        cdef IndexState h
        self.header(&h)
        return h.begin_timestamp

    @property
    def end_timestamp(self) -> int:
        """Store time of the last entry, ms."""
        cdef IndexState h
        self.header(&h)
        return h.end_timestamp

    @property
    def begin_offset(self) -> int:
        """Physical offset of the first entry."""
        cdef IndexState h
        self.header(&h)
        return h.begin_offset

    @property
    def end_offset(self) -> int:
        """Physical offset of the last entry; in an empty file that of the previous file."""
        cdef IndexState h
        self.header(&h)
        return h.end_offset

    @property
    def is_full(self) -> bool:
        """True if the file has no room for another entry."""
        cdef IndexState h
        self.header(&h)
        return h.count >= self.state.capacity

    # --- put and query ------------------------------------------------------------------------------------------------

    def put(self, int32_t key_hash, int64_t physical_offset, int64_t store_timestamp) -> bool:
        """Put an entry; False if the file is full. Raises: as reserve. Source: IndexFile.putKey."""
        if not self.writable:
            raise UsageError(f"index file {self.path} was opened for reading only")
        self.reserve()
        self.enter()
        cdef int done = index_put(&self.state, key_hash, physical_offset, store_timestamp)
        self.release()
        self.check_damage()
        return done != 0

    cdef void start_walk(self, Walk *w, int64_t begin_ms, int64_t end_ms, bint *older) noexcept nogil:
        # Under a hold. Find the head of the chain of w.key_hash, or 0 if this file has nothing in the range.
        cdef uint32_t scratch
        cdef const uint8_t *p
        cdef int32_t head
        cdef IndexState h
        w.next = 0
        w.rc = 1
        cdef int64_t position = HEADER_BYTES + SLOT_BYTES * <int64_t> (w.key_hash % self.state.slots)
        p = self.fetch(position, SLOT_BYTES, <uint8_t *> &scratch, &w.rc)
        if p == NULL:
            return
        # The count is read after the slot, otherwise a put in between would make a good slot look damaged.
        head = mq_acquire32(p)
        if self.read_header(&h) == INT64_MIN:
            w.rc = 0
            return
        w.begin_timestamp = h.begin_timestamp
        older[0] = h.begin_timestamp >= begin_ms
        if head <= 0 or head > h.count or head >= self.state.capacity or h.count <= 1:
            return
        if (
            (begin_ms < h.begin_timestamp and end_ms > h.end_timestamp)
            or h.begin_timestamp <= begin_ms <= h.end_timestamp
            or h.begin_timestamp <= end_ms <= h.end_timestamp
        ):
            w.next = head

    cdef int64_t walk(self, Walk *w, int64_t begin_ms, int64_t end_ms, int64_t *to, int64_t room) noexcept nogil:
        # Under a hold. Collect until the chain or the room ends; entry numbers only decrease, so a damaged chain cannot
        # loop.
        cdef uint8_t scratch[ENTRY_BYTES]
        cdef const uint8_t *p
        cdef int64_t entries = HEADER_BYTES + SLOT_BYTES * <int64_t> self.state.slots
        cdef int64_t got = 0, time
        cdef int32_t number, previous, seconds
        while w.next != 0 and got < room:
            number = w.next
            w.next = 0
            p = self.fetch(entries + ENTRY_BYTES * <int64_t> number, ENTRY_BYTES, scratch, &w.rc)
            if p == NULL:
                break
            seconds = mq_get32(p + 12)
            if seconds < 0:
                break
            time = <int64_t> (<uint64_t> w.begin_timestamp + <uint64_t> seconds * 1000)
            if mq_get32(p) == w.key_hash and begin_ms <= time <= end_ms:
                to[got] = mq_get64(p + 4)
                got += 1
            previous = mq_get32(p + 16)
            if 0 < previous < number and time >= begin_ms:
                w.next = previous
        return got

    cdef int64_t select(self, int32_t key_hash, int64_t begin_ms, int64_t end_ms, int64_t *to, int64_t room,
                        bint *older) except -1:
        # As select_into, at most `room` hits into an array; returns the number of hits. `older` says that an older file
        # must be read too.
        cdef int64_t got
        cdef Walk w
        w.key_hash = key_slot_hash(key_hash)
        self.enter()
        older[0] = False
        if self.state.base != NULL:     # no system call: releasing the GIL would cost as much as the walk
            self.start_walk(&w, begin_ms, end_ms, older)
            got = self.walk(&w, begin_ms, end_ms, to, room)
        else:
            with nogil:
                self.start_walk(&w, begin_ms, end_ms, older)
                got = self.walk(&w, begin_ms, end_ms, to, room)
        self.release()
        self.check_damage()
        if w.rc <= 0:
            self.refuse(w.rc)
        return got

    cdef int refuse(self, int64_t rc) except -1:
        if rc < 0:
            raise os_error(rc, "read", self.path)
        raise CorruptFile("the index file has shrunk", path=self.path, expected=f"{self.bytes} bytes")

    cpdef bint select_into(self, list out, int32_t key_hash, begin_ms, end_ms, Py_ssize_t max_count) except -1:
        """Append this file's hits to ``out`` until it holds ``max_count``. Returns: True if an older file must be read
        too.

        Raises: StoreClosed; CorruptFile or StorageError if a file opened read-only can no longer be read.
        Source: IndexService.queryOffset, IndexFile.selectPhyOffset.
        """
        cdef int64_t found[CHUNK]
        cdef int64_t begin = _clamped(begin_ms), end = _clamped(end_ms), room, got, i
        cdef bint older = False
        cdef Walk w
        w.key_hash = key_slot_hash(key_hash)
        room = max_count - len(out)
        self.enter()
        try:
            with nogil:
                self.start_walk(&w, begin, end, &older)
                got = self.walk(&w, begin, end, found, min(room, CHUNK))
            while True:
                self.check_damage()
                for i in range(got):
                    out.append(found[i])
                room -= got
                if w.rc <= 0:
                    self.refuse(w.rc)
                if room <= 0 or w.next == 0:
                    break
                with nogil:
                    got = self.walk(&w, begin, end, found, min(room, CHUNK))
        finally:
            self.release()
        return older and room > 0

    def query(self, int32_t key_hash, begin_ms, end_ms, Py_ssize_t max_count) -> list:
        """Return the physical offsets of entries with this hash and a time in [begin_ms, end_ms], newest first, at most
        ``max_count``.

        Other keys with the same hash are included. Times are exact to a second only, and those of a rolled file may be
        late by the age of the previous file (a RocketMQ behaviour that the format carries).
        Raises: as select_into.
        """
        cdef list out = []
        self.select_into(out, key_hash, begin_ms, end_ms, max_count)
        return out

    def _read_entries(self, int64_t first, int64_t stop) -> list:
        """Return the entries [first, stop) as tuples; the caller keeps both within the count."""
        cdef int64_t n = stop - first, i
        cdef bytes buffer = PyBytes_FromStringAndSize(NULL, n * ENTRY_BYTES)
        cdef uint8_t *to = <uint8_t *> PyBytes_AS_STRING(buffer)
        cdef const uint8_t *p
        cdef int64_t rc = 1
        cdef list rows = []
        self.enter()
        try:
            with nogil:
                p = self.fetch(
                    HEADER_BYTES + SLOT_BYTES * <int64_t> self.state.slots + ENTRY_BYTES * first, n * ENTRY_BYTES, to,
                    &rc
                )
                if p != NULL and p != to:
                    memcpy(to, p, n * ENTRY_BYTES)
        finally:
            self.release()
        if p == NULL:
            if rc < 0:
                raise os_error(rc, "read", self.path)
            raise CorruptFile("the index file has shrunk", path=self.path, expected=f"{self.bytes} bytes")
        self.check_damage()
        p = to
        for i in range(n):
            rows.append((first + i, mq_get32(p), mq_get64(p + 4), mq_get32(p + 12), mq_get32(p + 16)))
            p += ENTRY_BYTES
        return rows

    def entries(self):
        """Yield (number, key hash, physical offset, seconds since begin_timestamp, previous number), oldest first."""
        number = 1
        count = self.count
        while number < count:
            stop = min(number + ENTRY_CHUNK, count)
            yield from self._read_entries(number, stop)
            number = stop

    def __repr__(self) -> str:
        return f"IndexFile({self.path!r}, slots={self.slots}, capacity={self.capacity}, closed={self.closed})"


def search(
    tuple files not None, str topic not None, str key not None, begin_ms, end_ms, Py_ssize_t max_count
) -> tuple:
    """Search files that are sorted oldest first for a key, newest first, with RocketMQ's end condition. Closed files
    are skipped.

    Returns: (offsets, end_timestamp of the newest file, end_offset of the newest file). Raises: as select_into.
    Source: IndexService.queryOffset.
    """
    cdef list out = []
    cdef int32_t h = hash_of_key(topic, key)
    cdef IndexFile f
    cdef IndexState newest
    cdef Py_ssize_t i = len(files)
    if i == 0:
        return out, 0, 0
    f = files[i - 1]
    f.header(&newest)
    while i > 0:
        i -= 1
        f = files[i]
        try:
            if not f.select_into(out, h, begin_ms, end_ms, max_count):
                break
        except StoreClosed:
            continue
    return out, newest.end_timestamp, newest.end_offset


# --- sizes of an undescribed file ------------------------------------------------------------------------------------


@cython.no_gc_clear
cdef class _Peek:
    """A reader of a file of unknown layout."""

    cdef OsApi os_api
    cdef int fd
    cdef str path
    cdef readonly int64_t bytes

    def __cinit__(self, OsApi os_api not None, path):
        cdef mq_stat st
        cdef bytes name
        cdef const char *c
        self.fd = -1
        self.os_api = os_api
        name = encode_path(path)
        c = name
        self.path = decode_path(path)
        self.fd = os_api.os.open(os_api.os, c, MQ_OPEN_READ)
        check(self.fd, "open", path)
        check(os_api.os.fstat(os_api.os, self.fd, &st), "stat", path)
        if st.is_directory:
            raise StorageError(_errno.EISDIR, "is a directory", path)
        self.bytes = st.bytes

    def __dealloc__(self):
        if self.fd >= 0:
            self.os_api.os.close(self.os_api.os, self.fd)

    def read(self, int64_t position, int64_t n) -> bytes:
        """Return n bytes at a position; fewer only if the file has shrunk."""
        cdef bytes buffer = PyBytes_FromStringAndSize(NULL, n)
        cdef char *to = PyBytes_AS_STRING(buffer)
        cdef int64_t got
        with nogil:
            got = read_all(self.os_api.os, self.fd, to, n, position)
        check(got, "read", self.path)
        if got != n:
            raise CorruptFile(
                "the index file has shrunk", path=self.path, offset=position, expected=f"{n} bytes", found=f"{got}"
            )
        return buffer

    def last_set_byte(self) -> int:
        """Return the position of the last nonzero byte, -1 if all are zero."""
        end = self.bytes
        while end > 0:
            start = max(end - ZERO_CHUNK, 0)
            used = len(self.read(start, end - start).rstrip(b"\0"))
            if used:
                return start + used - 1
            end = start
        return -1


def _fits(peek, slots, count) -> bool:
    """Return True if slots and entries agree for this number of slots. A few damaged entries are tolerated."""

    def i32(data, position):
        return int.from_bytes(data[position : position + 4], "big", signed=True)

    entries = HEADER_BYTES + SLOT_BYTES * slots
    if any(peek.read(entries, ENTRY_BYTES)):
        return False
    numbers = sorted({*range(1, min(count, SAMPLE)), *range(max(1, count - SAMPLE), count)})
    wrong = 0
    for number in numbers:
        entry = peek.read(entries + ENTRY_BYTES * number, ENTRY_BYTES)
        h, seconds, previous = i32(entry, 0), i32(entry, 12), i32(entry, 16)
        good = h >= 0 and seconds >= 0 and 0 <= previous < number
        if good:
            head = i32(peek.read(HEADER_BYTES + SLOT_BYTES * (h % slots), SLOT_BYTES), 0)
            good = number <= head <= count
        if good and previous:
            good = i32(peek.read(entries + ENTRY_BYTES * previous, 4), 0) % slots == h % slots
        wrong += not good
    return wrong * 16 <= len(numbers)


def infer_sizes(OsApi os_api not None, path, slots=None, capacity=None) -> tuple:
    """Infer the number of slots and entries of an existing index file: the file does not hold these numbers.

    Args: ``slots``, ``capacity``: the configured sizes; used if the length fits.
    Returns: (slots, capacity). Without configured sizes that fit, RocketMQ's defaults and the embedded profile's are
    tried.
    Then the contents are searched: the last nonzero byte belongs to the last entry, whose number is in the header,
    which leaves a single possible end of the slots.
    Raises: CorruptFile if the length fits nothing and the contents decide nothing (an empty or damaged file);
    StorageError.
    """
    path = decode_path(path)
    peek = _Peek(os_api, path)
    for known in ((slots, capacity), *_DEFAULT_SIZES):
        if None not in known and _file_bytes(*known, path) == peek.bytes:
            return known
    words, rest = divmod(peek.bytes - HEADER_BYTES, SLOT_BYTES)
    if rest or words < 11 or peek.bytes > _BYTES_MAX:
        raise CorruptFile(
            "no index file has this length",
            path=path, expected="40 + 4 * slots + 20 * entries bytes", found=f"{peek.bytes} bytes",
        )
    count = int.from_bytes(peek.read(36, 4), "big", signed=True)
    if 1 < count <= words // 5:
        last = peek.last_set_byte()
        # A crash may leave an entry that the count does not include yet.
        for number in (count - 1, count):
            # Entry `number` starts at 40 + 4 * slots + 20 * number and contains the last nonzero byte, and slots =
            # words - 5 * capacity.
            for start in range(last - last % 4, last - last % 4 - ENTRY_BYTES, -4):
                found = (start - HEADER_BYTES - ENTRY_BYTES * number) // SLOT_BYTES
                if found < 1 or (words - found) % 5 or (words - found) // 5 < max(count, 2):
                    continue
                if _fits(peek, found, count):
                    return found, (words - found) // 5
    raise CorruptFile(
        "the numbers of slots and entries cannot be told from the contents; give max_hash_slot_num and max_index_num",
        path=path, found=f"{peek.bytes} bytes, entry count {count}",
    )
