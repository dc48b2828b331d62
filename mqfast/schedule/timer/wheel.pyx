"""The timing wheel: the first and the last unit of the timer log for each step of time (RocketMQ: TimerWheel, Slot).

The slots are kept in private memory; a page that was never written needs no memory. `write` copies changed pages to
the file; the caller has flushed the timer log before. Format: ``mqfast/store/FORMAT.md``, "Timer files".
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from mqfast.store.base.os_api cimport (
    MQ_OPEN_CREATE,
    MQ_OPEN_TRUNCATE,
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

from mqfast.errors import CorruptFile
from mqfast.store.reader import timer_files as _format

cdef enum:
    SLOT_BYTES = 32
    FIRST = 8               # offsets of the fields of a slot; the time is at 0, four zero bytes follow the count
    LAST = 16
    COUNT = 24
    PAGE = 4096
    SLOTS_A_PAGE = 128
    PAGES_AT_ONCE = 64
    NO_DATA = -6            # -ENXIO of Linux

cdef int64_t SLOTS = _format.SLOTS
cdef int64_t BYTES = _format.WHEEL_BYTES
cdef int64_t PAGES = BYTES // PAGE
assert _format.SLOT.size == SLOT_BYTES and BYTES % PAGE == 0


cdef bint is_zero(const uint8_t *p) noexcept nogil:
    """Return True if a page is all zeros."""
    cdef const int64_t *words = <const int64_t *> p
    cdef int64_t seen = 0
    cdef int i
    for i in range(PAGE // 8):
        seen |= words[i]
    return seen == 0


@cython.final
cdef class TimerWheel:
    """All slots of one wheel. Times are in steps of the timer's precision.

    Thread: one thread changes slots; another thread may write and sync at the same time.
    Source: TimerWheel.
    """

    cdef OsApi os_api
    cdef mq_os *os
    cdef readonly str path
    cdef int fd
    cdef bint is_new                # the file has no final name yet
    cdef uint8_t *slots
    cdef uint8_t *changed           # a byte for each page
    cdef uint8_t *used              # a byte for each page: whether a slot of the page was ever written
    cdef uint8_t *copied            # PAGES_AT_ONCE pages

    def __cinit__(self):
        self.fd = -1

    def __init__(self, OsApi os_api not None, str path not None):
        self.os_api = os_api
        self.os = os_api.os
        self.path = path
        self.slots = <uint8_t *> calloc(1, BYTES)
        self.changed = <uint8_t *> calloc(1, PAGES)
        self.used = <uint8_t *> calloc(1, PAGES)
        self.copied = <uint8_t *> malloc(PAGES_AT_ONCE * PAGE)
        if self.slots == NULL or self.changed == NULL or self.used == NULL or self.copied == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.fd >= 0:
            self.os.close(self.os, self.fd)
        free(self.slots)
        free(self.changed)
        free(self.used)
        free(self.copied)

    # --- the file ---

    def load(self) -> bool:
        """Read the slots of the file. Returns: False without a file; then ``renew`` was called.

        Raises: CorruptFile for a file of another length; StorageError.
        """
        cdef bytes native = encode_path(self.path)
        cdef mq_stat st
        cdef int64_t at, n, page
        if not self.os_api.exists(self.path):
            self.renew()
            return False
        self.fd = self.os.open(self.os, <const char *> native, MQ_OPEN_WRITE)
        check(self.fd, "open", self.path)
        check(self.os.fstat(self.os, self.fd, &st), "fstat", self.path)
        if st.bytes == 0:
            self.renew()
            return False
        if st.bytes != BYTES:
            raise CorruptFile(
                "timer wheel has a wrong length; once it is removed, the slots are rebuilt from the timer log",
                path=self.path, expected=f"{BYTES} bytes", found=f"{st.bytes} bytes")
        at = 0
        while at < BYTES:
            n = self.os.seek_data(self.os, self.fd, at)     # the file is mostly holes
            if n == NO_DATA:
                break
            if n >= 0:
                at = max(at, n - n % PAGE)
            n = read_all(self.os, self.fd, self.copied, min(<int64_t> PAGES_AT_ONCE * PAGE, BYTES - at), at)
            check(n, "read", self.path)
            for page in range(n // PAGE):
                if not is_zero(self.copied + page * PAGE):
                    memcpy(self.slots + at + page * PAGE, self.copied + page * PAGE, PAGE)
                    self.used[at // PAGE + page] = 1
            at += PAGES_AT_ONCE * PAGE
        return True

    def renew(self) -> None:
        """Clear every slot and begin a new file, which gets the name of the wheel with the first ``sync``."""
        cdef int64_t i
        self.close()
        for i in range(PAGES):
            if self.used[i]:
                memset(self.slots + i * PAGE, 0, PAGE)
        memset(self.changed, 0, PAGES)
        memset(self.used, 0, PAGES)
        self.is_new = True

    cdef int _make(self) except -1:
        """Open the new file under a temporary name."""
        cdef bytes native = encode_path(self.path + ".tmp")
        self.fd = self.os.open(self.os, <const char *> native, MQ_OPEN_WRITE | MQ_OPEN_CREATE | MQ_OPEN_TRUNCATE)
        check_room(self.os_api, self.fd, "open", self.path + ".tmp", BYTES, None)
        return check_room(self.os_api, self.os.ftruncate(self.os, self.fd, BYTES), "truncate", self.path + ".tmp",
                          BYTES, None)

    def write(self) -> bool:
        """Write some of the changed pages to the page cache. Returns: False without changed pages.

        Raises: DiskFull, StorageError; the pages then still count as changed. GIL: released for the write.
        """
        cdef int64_t page = 0, n = 0
        cdef int rc
        if self.fd < 0:
            self._make()
        while page < PAGES and not self.changed[page]:
            page += 1
        if page == PAGES:
            return False
        while page + n < PAGES and n < PAGES_AT_ONCE and self.changed[page + n]:
            self.changed[page + n] = 0
            n += 1
        memcpy(self.copied, self.slots + page * PAGE, n * PAGE)     # under the GIL: the file gets no half-changed slot
        with nogil:
            rc = write_all(self.os, self.fd, self.copied, n * PAGE, page * PAGE)
        if rc < 0:
            while n:
                n -= 1
                self._touch_page(page + n)
            check_room(self.os_api, rc, "write", self.path, BYTES, None)
        return True

    def sync(self) -> None:
        """Make the written pages durable, after ``write`` has returned False. Raises: StorageError. GIL: released."""
        cdef int rc
        with nogil:
            rc = self.os.fsync(self.os, self.fd)
        check(rc, "fsync", self.path)
        if self.is_new:
            self.os_api.rename(self.path + ".tmp", self.path)
            self.is_new = False
            self.os_api.fsync_dir(self.path.rpartition("/")[0])

    def close(self) -> None:
        """Close the file; pages that were not written are lost."""
        if self.fd >= 0:
            self.os.close(self.os, self.fd)
            self.fd = -1

    # --- slots ---

    cdef inline uint8_t *_slot(self, int64_t time) noexcept nogil:
        return self.slots + <uint64_t> time % <uint64_t> SLOTS * SLOT_BYTES

    cdef inline void _touch_page(self, int64_t page) noexcept nogil:
        self.used[page] = 1
        self.changed[page] = 1

    cdef inline void _touch(self, const uint8_t *slot) noexcept nogil:
        self._touch_page((slot - self.slots) // PAGE)

    cdef uint8_t *_used_from(self, int64_t *number) noexcept nogil:
        """Return the first used slot from ``number`` on, and store its number; NULL without a used slot."""
        cdef int64_t i = number[0]
        cdef uint8_t *slot
        while i < SLOTS:
            if not self.used[i // SLOTS_A_PAGE]:
                i = (i // SLOTS_A_PAGE + 1) * SLOTS_A_PAGE
                continue
            slot = self.slots + i * SLOT_BYTES
            if mq_get64(slot):
                number[0] = i
                return slot
            i += 1
        return NULL

    def get(self, int64_t time) -> tuple | None:
        """Return first unit, last unit and count of a time; None if no message was parked for the time."""
        cdef const uint8_t *slot = self._slot(time)
        if mq_get64(slot) != time:
            return None
        return mq_get64(slot + FIRST), mq_get64(slot + LAST), mq_get32(slot + COUNT)

    def last(self, int64_t time) -> int:
        """Return the newest unit of a time; -1: none."""
        cdef const uint8_t *slot = self._slot(time)
        return mq_get64(slot + LAST) if mq_get64(slot) == time else -1

    def count(self, int64_t time) -> int:
        """Return the number of messages parked for a time, minus the deletes."""
        cdef const uint8_t *slot = self._slot(time)
        return mq_get32(slot + COUNT) if mq_get64(slot) == time else 0

    def put(self, int64_t time, int64_t position, int32_t change) -> None:
        """Make the unit at ``position`` of the timer log the newest of a time; no effect if the slot has this unit.

        Args: change: of the count, 1 for a message and -1 for a delete.
        """
        cdef uint8_t *slot = self._slot(time)
        if mq_get64(slot) != time:
            mq_put64(slot, time)
            mq_put64(slot + FIRST, position)
            mq_put64(slot + LAST, position)
            mq_put64(slot + COUNT, 0)
            mq_put32(slot + COUNT, change)
        elif position > mq_get64(slot + LAST):
            mq_put64(slot + LAST, position)
            mq_put32(slot + COUNT, mq_get32(slot + COUNT) + change)
        else:
            return
        self._touch(slot)

    def clear(self, int64_t begin, int64_t end) -> None:
        """Clear the slots of the times from ``begin`` to before ``end``."""
        cdef int64_t time
        cdef uint8_t *slot
        for time in range(begin, min(end, begin + SLOTS)):
            slot = self._slot(time)
            if mq_get64(slot) == time:
                memset(slot, 0, SLOT_BYTES)
                self._touch(slot)

    def clear_all(self) -> None:
        """Clear every slot."""
        cdef int64_t i = 0
        cdef uint8_t *slot = self._used_from(&i)
        while slot != NULL:
            memset(slot, 0, SLOT_BYTES)
            self._touch(slot)
            slot = self._used_from(&i)

    def next_used(self, int64_t begin, int64_t end) -> int:
        """Return the first time from ``begin`` to before ``end`` with a parked message; -1: none."""
        cdef int64_t time = begin, number
        end = min(end, begin + SLOTS)
        while time < end:
            number = <int64_t> (<uint64_t> time % <uint64_t> SLOTS)
            if not self.used[number // SLOTS_A_PAGE]:
                time += SLOTS_A_PAGE - number % SLOTS_A_PAGE
            elif mq_get64(self.slots + number * SLOT_BYTES) == time:
                return time
            else:
                time += 1
        return -1

    def bounds(self) -> tuple | None:
        """Return the smallest and the largest time of all slots; None without a used slot."""
        cdef int64_t low = INT64_MAX, high = 0, time, i = 0
        cdef const uint8_t *slot = self._used_from(&i)
        while slot != NULL:
            time = mq_get64(slot)
            low = min(low, time)
            high = max(high, time)
            i += 1
            slot = self._used_from(&i)
        return (low, high) if high else None

    def count_from(self, int64_t begin) -> int:
        """Return the number of messages parked for ``begin`` or later, minus the deletes."""
        cdef int64_t total = 0, i = 0
        cdef const uint8_t *slot = self._used_from(&i)
        while slot != NULL:
            if mq_get64(slot) >= begin:
                total += mq_get32(slot + COUNT)
            i += 1
            slot = self._used_from(&i)
        return total

    def cut(self, int64_t end) -> int:
        """Remove units at or behind ``end``, the end of the timer log.

        Returns: the first unit of the timer log to be applied again by ``put``; -1: none.
        """
        cdef int64_t start = INT64_MAX, first, i = 0
        cdef uint8_t *slot = self._used_from(&i)
        while slot != NULL:
            if mq_get64(slot + LAST) >= end:
                first = mq_get64(slot + FIRST)
                if first >= end:
                    memset(slot, 0, SLOT_BYTES)
                else:
                    start = min(start, first)
                    mq_put64(slot + LAST, -1)
                    mq_put32(slot + COUNT, 0)
                self._touch(slot)
            i += 1
            slot = self._used_from(&i)
        return start if start < INT64_MAX else -1
