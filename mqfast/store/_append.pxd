# Records to the end of the log, and the pages ahead of it.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store._consume_queue cimport QueueState
from mqfast.store._log_state cimport LogState
from mqfast.store._os cimport mq_load32

cdef struct Appended:
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp
    int32_t size

# What the records of one producer have in common, as it stands in them.
cdef struct Template:
    uint8_t header[88]              # up to the body, without what differs
    const uint8_t *tail             # behind the body: topic with its length byte, length of the properties, the properties
    int32_t tail_bytes
    int32_t topic_bytes             # with the length byte
    int32_t properties_bytes
    bint dispatch_later             # a topic whose units are not put with the record
    int64_t tags_code

# Lock held by the caller for these.
cdef int append_simple(LogState *s, QueueState *q, const Template *t, const uint8_t *body, int32_t body_bytes, const uint8_t *key,
                       int32_t key_bytes, int64_t now, Appended *out) noexcept nogil
cdef int append_encoded(LogState *s, QueueState *q, uint8_t *record, int32_t total, int32_t sys_flag, int64_t expected, int64_t advance,
                        int64_t now, Appended *out) noexcept nogil
cdef inline bint refused(LogState *s, QueueState *q) noexcept nogil:
    """May nothing be appended for this queue: the log takes nothing now, or the queue's topic was deleted?"""
    return mq_load32(&s.flags) != 0 or q.deleted
# Not held for these.
cdef Py_ssize_t append_many(LogState *s, QueueState *q, const Template *t, bint prefault, const uint8_t **at, int32_t *sizes,
                            Appended *out, Py_ssize_t start, Py_ssize_t n) noexcept nogil
cdef int prefault_piece(LogState *s, int64_t end, int64_t of_file, bint to_disk) noexcept nogil
