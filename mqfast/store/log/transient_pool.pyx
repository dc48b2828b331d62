"""TransientStorePool: private, locked buffers that take the appends of a log file each (RocketMQ: TransientStorePool).

A buffer is never lent to two files and never unmapped while lent. A lent buffer is resident and writable, so that a
store cannot fault. The log commits and flushes the bytes.

A buffer is not cleared between two files, and still holds records of the older file: no byte may reach the disk that
was not appended to the new file. The commit copies only appended bytes: up to `written`, and at a roll up to the end of
the 8-byte end mark. The file behind the mark keeps the zeros of its creation, as RocketMQ leaves it with a buffer's
first use. (RocketMQ copies the whole rest of a used buffer, so that old records follow the end marks. No reader reads
there, and the two agree in every byte that is read.) Readers never see a buffer, only the mapping. Clearing a gigabyte
would cost the roll, where a buffer changes the file, some hundred milliseconds.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from mqfast.store.base.mapped_file cimport MappedFile
from mqfast.store.base.os_api cimport (
    MQ_ADVISE_HUGE,
    MQ_READ_WRITE,
    Mutex,
    OsApi,
    acquire,
    check,
    mq_assert,
    mq_os,
    populate,
    release,
)

import logging
import os as _os

from mqfast.errors import InternalError
from mqfast.store.base.mapped_file import locked_byte_count

_log = logging.getLogger("mqfast.store")

cdef int64_t POPULATE_STEP = 4 << 20
cdef Py_ssize_t MOST_BUFFERS = 1024


@cython.no_gc_clear
cdef class TransientStorePool:
    """``count`` buffers of ``buffer_bytes`` each, all allocated, resident and (within the budget) locked at once.

    Args: ``buffer_bytes``: the length of a log file. ``mlock_budget_bytes``: maximum that the process may lock, log
    files included; buffers beyond the budget, or that the system refuses to lock, are named in ``warnings`` and work
    unlocked.
    Raises: ValueError for a count or a length out of range; MapFailed, StorageError without the memory (nothing is kept
    then).
    Thread: any; a lock of its own. GIL: released while buffers are allocated and unmapped.
    Durability: bytes in a buffer are lost with the process; once committed and flushed they are as safe as any other.
    Source: TransientStorePool.
    """

    def __cinit__(self, OsApi os_api, count, buffer_bytes, mlock_budget_bytes):
        if not 1 <= count <= MOST_BUFFERS:
            raise ValueError(f"count: expected 1 to {MOST_BUFFERS} buffers, found {count}")
        if not 1 <= buffer_bytes < 1 << 40:
            raise ValueError(f"buffer_bytes: expected 1 to 2^40-1, found {buffer_bytes}")
        self.os_api = os_api
        self.os = os_api.os
        self.buffer_bytes = buffer_bytes
        self.warnings = []
        self.guard = Mutex()
        self.buffers = <uint8_t **> calloc(count, sizeof(uint8_t *))
        self.spare = <uint8_t **> calloc(count, sizeof(uint8_t *))
        if self.buffers == NULL or self.spare == NULL:
            raise MemoryError()
        try:
            while self.total < count:
                self._map()
        except BaseException:
            for i in range(self.total):
                self._unmap(self.buffers[i])
            raise
        while self.available < count:
            self.spare[self.available] = self.buffers[count - 1 - self.available]
            self.available += 1
        for i in range(count):
            if not self._lock_memory(i, mlock_budget_bytes):
                break

    cdef int _map(self) except -1:
        cdef void *address = NULL
        cdef mq_os *os = self.os
        cdef int64_t n = self.buffer_bytes, at = 0, step
        cdef int rc
        name = f"pool buffer {self.total}"
        with nogil:
            rc = os.mmap(os, -1, n, MQ_READ_WRITE, &address)
        check(rc, "mmap", name)
        self.buffers[self.total] = <uint8_t *> address
        self.total += 1
        with nogil:
            os.madvise(os, address, n, MQ_ADVISE_HUGE)      # fewer TLB misses for the put; the buffer works without it
            while at < n and rc >= 0:
                step = min(POPULATE_STEP, n - at)
                rc = populate(os, <uint8_t *> address + at, step)
                at += step
        check(rc, "populate", name)
        return 0

    cdef int _lock_memory(self, Py_ssize_t i, int64_t budget_bytes) except -1:
        """Lock a buffer. Returns 0 at the limit: the other buffers would fail too."""
        cdef mq_os *os = self.os
        cdef uint8_t *buffer = self.buffers[i]
        cdef int64_t n = self.buffer_bytes
        cdef int rc
        cdef int64_t others = locked_byte_count()
        if self.locked_bytes + others + n > budget_bytes:
            reason = f"mlock budget of {budget_bytes} bytes, of which {self.locked_bytes + others} are used"
        else:
            with nogil:
                rc = os.mlock(os, buffer, n)
            if rc >= 0:
                self.locked_bytes += n
                self.locked += 1
                return 1
            reason = f"{_os.strerror(-rc)}: see the memory lock limit (ulimit -l)"
        text = f"{self.total - i} of {self.total} pool buffers of {n} bytes are not locked in memory: {reason}"
        self.warnings.append(text)
        _log.warning("%s", text)
        return 0

    cdef void _unmap(self, uint8_t *buffer) noexcept:
        cdef mq_os *os = self.os
        cdef int64_t n = self.buffer_bytes
        cdef Py_ssize_t i
        for i in range(self.total):
            if self.buffers[i] == buffer:
                self.buffers[i] = NULL
                if i < self.locked:
                    self.locked_bytes -= n
        with nogil:
            os.munmap(os, buffer, n)

    def lend(self, MappedFile file) -> bool:
        """Lend a buffer to the appends of ``file``, the last one returned.

        Returns: False when all are lent, or the pool is closed: the file then takes the appends through its mapping.
        Raises: InternalError when the file has a buffer already or is longer than a buffer.
        """
        acquire(self.guard)
        try:
            if file.buffer != NULL:
                raise InternalError(f"{file.path} has a pool buffer already")
            if file.file_bytes > self.buffer_bytes:
                raise InternalError(f"{file.path} has {file.file_bytes} bytes, a pool buffer {self.buffer_bytes}")
            if self.available == 0 or self.closed:
                return False
            mq_assert(self.available <= self.total, self.available, self.total)
            self.available -= 1
            file.buffer = self.spare[self.available]
            mq_assert(file.buffer != NULL, self.available, self.total)
            return True
        finally:
            release(self.guard)

    def give_back(self, MappedFile file) -> None:
        """Take back the buffer of ``file``, whose bytes are all committed or abandoned; no effect without a buffer.

        Raises: InternalError when the buffer is not from this pool.
        """
        cdef Py_ssize_t i
        acquire(self.guard)
        try:
            if file.buffer == NULL:
                return
            for i in range(self.total):
                if self.buffers[i] == file.buffer:
                    break
            else:
                raise InternalError(f"the buffer of {file.path} is not one of this pool's")
            if self.closed:
                self._unmap(file.buffer)
            else:
                mq_assert(self.available < self.total, self.available, self.total)
                for i in range(self.available):
                    mq_assert(self.spare[i] != file.buffer, i, self.available)      # a buffer has one owner
                self.spare[self.available] = file.buffer
                self.available += 1
            file.buffer = NULL
        finally:
            release(self.guard)

    @property
    def free_count(self) -> int:
        """Number of buffers that can be lent now."""
        return self.available

    @property
    def capacity(self) -> int:
        """Number of buffers of the pool, lent or not."""
        return self.total

    def close(self) -> None:
        """Unmap the free buffers; lent buffers are unmapped when given back. Safe to call twice."""
        acquire(self.guard)
        try:
            self.closed = True
            while self.available > 0:
                self.available -= 1
                self._unmap(self.spare[self.available])
        finally:
            release(self.guard)

    def __dealloc__(self):
        # a lent buffer stays: the file points into it
        while self.available > 0:
            self.available -= 1
            self._unmap(self.spare[self.available])
        free(self.buffers)
        free(self.spare)

    def __repr__(self):
        return f"<TransientStorePool {self.available} of {self.total} buffers of {self.buffer_bytes} bytes free>"
