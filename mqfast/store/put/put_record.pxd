# Records of any kind from a Message or encoded fields, single or in a block.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.core cimport Core
from mqfast.store.log.append cimport Appended
from mqfast.store.put.put_result cimport BatchResult, PutResult
from mqfast.store.queues.consume_queue cimport QueueState
from mqfast.store.record.record cimport Draft, PropertyRefs

cdef enum:
    INNER_BATCH = 0x80
    MAX_PROPERTIES = 32767
    MAX_INT = 0x7FFFFFFF

# A record of a block.
cdef struct Element:
    QueueState *queue
    int64_t tags_code
    int32_t size
    int32_t sys_flag
    bint later                      # its unit, or an entry of the index, is left to dispatch

# Adjacent encoded records without offsets and store time.
cdef struct Block:
    uint8_t *records
    int64_t total
    Element *elements
    Py_ssize_t count

cdef int64_t measure(Core e, Draft *d, bint separated) except -1
cdef QueueState *queue_of(Core e, const Draft *d, bint *is_batch) except NULL
cdef bint is_left_to_dispatch(Core e, const Draft *d, const PropertyRefs *f, int64_t *tags_code) noexcept
cdef int append_record(Core e, Draft *d, bytes properties, const PropertyRefs *f, Appended *out) except -1
cdef bytes without_crc(bytes properties)
cdef PutResult put_slow(Core e, object message, bint wait)
cdef BatchResult put_all(Core e, list given, bint together)
cdef int check_block(Core e, int64_t total) except -1
cdef int append_block(Core e, Block *b, bint together, Appended *out) except -1
