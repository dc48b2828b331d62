# Fields of many records as Arrow columns.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.record.arrow cimport ArrowArray, ArrowSchema, Buffer, Texts, Tree
from mqfast.store.record.record cimport PropertyRefs, Record

cdef enum Field:
    TOPIC
    QUEUE_ID
    QUEUE_OFFSET
    PHYSICAL_OFFSET
    SIZE
    BODY_SIZE
    BORN_TIMESTAMP
    STORE_TIMESTAMP
    BORN_HOST
    STORE_HOST
    FLAG
    SYS_FLAG
    RECONSUME_TIMES
    PREPARED
    BODY_CRC
    TAGS
    KEYS
    UNIQ_KEY
    MESSAGE_ID
    PROPERTIES
    RAW_PROPERTIES
    BODY
    CRC_OK
    FIELDS                                  # number of fields

cdef struct Column:
    int field
    bint nullable
    bint micros                             # of a time: microseconds rather than milliseconds
    bint large                              # of bodies: 64-bit offsets
    bint in_tree                            # data of a fixed size per row is in the batch's tree
    Buffer numbers                          # of a map its offsets
    Buffer valid
    Texts texts
    Texts values                            # of a map, whose names are in texts
    uint8_t host[20]                        # the last host
    int32_t host_bytes                      # 0: none was
    int64_t text_bytes                      # of the previous batch, the estimate for the next


cdef bint needs_properties(int field) noexcept nogil
cdef int begin_column(Column *c) except -1 nogil
cdef void put_in_tree(Column *c, Tree *tree, int64_t rows) noexcept nogil
cdef int bodies_too_long() except -1 nogil
cdef int fill_column(Column *c, const Record *records, const PropertyRefs *found, const uint8_t *crc_ok, int n,
                     int64_t row) except -1 nogil
cdef int64_t filled_bytes(const Column *c) noexcept nogil
cdef void drop_column(Column *c) noexcept nogil
cdef Tree *new_batch_tree(const Column *columns, int count, int64_t rows) noexcept nogil
cdef void give_columns(Column *columns, int count, Tree *tree, ArrowArray *batch, int64_t rows) noexcept nogil
cdef int fill_schema(ArrowSchema *schema, const Column *columns, int count, const char *names) noexcept nogil
