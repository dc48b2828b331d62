# The index file for the dispatch loop: a plain struct and a function, both usable without the GIL.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from mqfast.store.base.os_api cimport OsApi, mq_damage, mq_guarded, mq_os


cdef struct IndexState:          # owned by an IndexFile; never moves while the file is open
    uint8_t *base                # the mapping, NULL when closed or opened read-only
    int32_t slots, capacity      # maxHashSlotNum, maxIndexNum
    int32_t room                 # entries below this number have blocks, the slots too; 0: unknown
    int32_t count                # indexCount: number of the next entry, from 1
    int32_t slots_used           # hashSlotCount
    int64_t begin_timestamp, end_timestamp, begin_offset, end_offset


# Put an entry. 1: done; 0: the file is full, or needs blocks first (`reserve`): nothing was written. A single thread at
# a time; readers need no lock.
cdef int index_put(IndexState *s, int32_t key_hash, int64_t physical_offset, int64_t store_timestamp) noexcept nogil


cdef inline int32_t key_slot_hash(int32_t jhash) noexcept nogil:
    # Return the absolute value as Java does: the number without a positive counterpart becomes 0.
    if jhash >= 0:
        return jhash
    return 0 if jhash == -2147483647 - 1 else -jhash


cdef int32_t hash_of_key(str topic, str key) noexcept


cdef struct Walk:                # the state of a query on a chain
    int64_t rc                   # < 0: a read failed
    int64_t begin_timestamp      # of the file
    int32_t key_hash
    int32_t next                 # entry to read next, 0: the end


@cython.final
cdef class IndexFile:
    cdef IndexState state
    cdef OsApi os_api
    cdef mq_os *os
    cdef int fd
    cdef int64_t holds           # 1 for the owner until close(), 1 for every call in flight; 0: unmapped
    cdef uint32_t closing
    cdef int64_t bytes
    cdef int64_t flushed_count   # count at the last flush, -1: unknown
    cdef bint directory_synced, flush_failed
    cdef int64_t allocated       # known number of bytes from the start that have blocks
    cdef readonly bint writable
    cdef readonly str path
    cdef readonly object damage
    cdef bytes native_path
    cdef mq_guarded *guarded     # entry in the table of guarded mappings, while mapped
    cdef mq_damage lost          # written by the SIGBUS handler

    # A caller that uses `state` acquires a hold first; false: closed.
    cdef bint hold(self) noexcept nogil
    cdef void release(self) noexcept nogil
    cdef int enter(self) except -1
    cdef int check_damage(self) except -1
    cdef const uint8_t *fetch(self, int64_t position, int64_t n, uint8_t *scratch, int64_t *rc) noexcept nogil
    cdef int64_t read_header(self, IndexState *to) noexcept nogil
    cdef int header(self, IndexState *to) except -1
    cdef void start_walk(self, Walk *w, int64_t begin_ms, int64_t end_ms, bint *older) noexcept nogil
    cdef int64_t walk(self, Walk *w, int64_t begin_ms, int64_t end_ms, int64_t *to, int64_t room) noexcept nogil
    cdef int64_t select(
        self, int32_t key_hash, int64_t begin_ms, int64_t end_ms, int64_t *to, int64_t room, bint *older
    ) except -1
    cdef int refuse(self, int64_t rc) except -1
    cdef int give_blocks(self, int64_t end) except -1
    cdef int attach(
        self, OsApi os_api, object path, object native, int64_t slots, int64_t capacity, bint create
    ) except -1
    cpdef bint select_into(self, list out, int32_t key_hash, begin_ms, end_ms, Py_ssize_t max_count) except -1
