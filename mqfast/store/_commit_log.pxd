# The log: append under one put lock, and the files that it stands in.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from mqfast.store._consume_queue cimport QueueState
from mqfast.store._log_state cimport LogState
from mqfast.store._mapped_file cimport Latch, MappedFile
from mqfast.store._os cimport Mutex, OsDoor, mq_load32
from mqfast.store._record cimport Draft, Record

cdef struct Appended:
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp
    int32_t size

# Lock held by the caller for these.
cdef int append_simple(LogState *s, QueueState *q, const uint8_t *header, const uint8_t *body, int32_t body_bytes,
                       const uint8_t *topic, int32_t topic_bytes, const uint8_t *key, int32_t key_bytes,
                       const uint8_t *properties, int32_t properties_bytes, int64_t tags_code, bint dispatch_later,
                       int64_t now, Appended *out) noexcept nogil
cdef int append_encoded(LogState *s, QueueState *q, uint8_t *record, int32_t total, int32_t sys_flag, int64_t expected, int64_t advance,
                        int64_t now, Appended *out) noexcept nogil
cdef inline bint refused(LogState *s, QueueState *q) noexcept nogil:
    """May nothing be appended for this queue: the log takes nothing now, or the queue's topic was deleted?"""
    return mq_load32(&s.flags) != 0 or q.deleted
# Not held for this.
cdef int prefault_piece(LogState *s, int64_t end, int64_t of_file, bint to_disk) noexcept nogil


cdef class Bell:
    cdef uint32_t word
    cdef uint32_t seen


cdef class CommitLog:
    cdef LogState state
    cdef readonly Latch latch               # of this log: a lost page of a file that is written to makes it fail
    cdef readonly OsDoor door
    cdef readonly str path
    cdef readonly int64_t file_bytes
    cdef public object allocator            # gives the next file: AllocateMappedFileService
    cdef public object pool                 # TransientStorePool, or None
    cdef public bint sync_flush
    cdef bint hide_unflushed                # readers see only what is durable
    cdef readonly list files
    cdef Mutex roll_lock
    cdef list retained                      # MappedFiles that stand in the ring, oldest first
    cdef int64_t reaped                     # how many were let go of: the first of `retained` has this number in the ring
    cdef MappedFile current
    cdef public int64_t prefault_window
    cdef MappedFile file_at(self, int64_t physical_offset)
    cdef int roll(self, int64_t needed) except -1
    cdef int _roll_over(self) except -1
    cdef int _retain(self, MappedFile file) except -1
    cdef int _sync_range(self, int64_t first, int64_t end) except -1
    cdef void _switch_to(self, MappedFile file) noexcept
    cdef _set_positions(self, int64_t end)
    cdef int take_put_lock(self) except -1
    cdef int raise_state(self) except -1
    cdef int raise_lost(self) except -1
