# A CommitLog record: parse, check, find properties, encode. All of this works without the GIL on raw pointers.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from mqfast.store.base.os_api cimport crc31, mq_get16, mq_get32, mq_get64, mq_short_equal

cdef enum:
    MAGIC_V1 = -626843481       # 0xDAA320A7, one-byte topic length
    MAGIC_V2 = -626843477       # 0xDAA320AB, two-byte topic length
    MAGIC_BLANK = -875286124    # 0xCBD43194, end of file
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    TRANSACTION_MASK = 0x0C
    TRANSACTION_PREPARED = 0x04
    TRANSACTION_ROLLBACK = 0x0C
    CRC_PROPERTY_BYTES = 20
    NOT_IN_QUEUE = -2147483648  # offset_in_queue: the record does not belong there
    ANYWHERE = -2147483647      # the record belongs there, without an offset
    HEADER_BYTES = 88           # up to the body, both hosts IPv4

cdef enum Check:
    REC_OK = 1
    REC_BLANK = 2
    REC_MISMATCH = 3            # the length does not agree with the parts (RocketMQ: size > 0, failed)
    REC_BAD = 4                 # not a record at all (RocketMQ: -1, failed)

cdef struct Record:
    int32_t total
    int32_t magic
    int32_t body_crc
    int32_t queue_id
    int32_t flag
    int64_t queue_offset
    int64_t physical_offset
    int32_t sys_flag
    int64_t born_timestamp
    int64_t store_timestamp
    int32_t reconsume_times
    int64_t prepared_offset
    int32_t body_bytes
    int32_t topic_bytes
    int32_t properties_bytes
    int32_t born_host_bytes     # 8 or 20
    int32_t store_host_bytes
    const uint8_t *born_host
    const uint8_t *store_host
    const uint8_t *body
    const uint8_t *topic
    const uint8_t *properties

# The properties that put and dispatch use; a NULL pointer means absent.
cdef struct PropertyRefs:
    const uint8_t *tags
    const uint8_t *keys
    const uint8_t *uniq_key
    const uint8_t *delay
    const uint8_t *inner_num
    const uint8_t *inner_base
    const uint8_t *multi_dispatch
    const uint8_t *multi_offset
    const uint8_t *wait
    const uint8_t *crc
    int32_t tags_bytes
    int32_t keys_bytes
    int32_t uniq_key_bytes
    int32_t delay_bytes
    int32_t inner_num_bytes
    int32_t inner_base_bytes
    int32_t multi_dispatch_bytes
    int32_t multi_offset_bytes
    int32_t wait_bytes
    int32_t crc_bytes

# The input of a general encode: everything of the record except the fields that are patched at append.
cdef struct Draft:
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int64_t born_timestamp
    int32_t reconsume_times
    int64_t prepared_offset
    const uint8_t *born_host
    const uint8_t *store_host
    const uint8_t *body
    int32_t body_bytes
    const uint8_t *topic
    int32_t topic_bytes
    const uint8_t *properties   # without the CRC property
    int32_t properties_bytes
    bint version_2
    bint crc_property           # reserve and fill 20 bytes at the end
    bint separator              # a U+0002 goes between the properties and the CRC property

cdef int parse_record(const uint8_t *p, int64_t available, Record *r) noexcept nogil
cdef int check_crc(const uint8_t *p, Record *r, bint property_crc) noexcept nogil
cdef void find_properties(const uint8_t *p, int32_t n, PropertyRefs *f) noexcept nogil
# The additional queues of a record: INNER_MULTI_DISPATCH has their names, INNER_MULTI_QUEUE_OFFSET the offsets.
cdef struct QueuePairs:
    const uint8_t *name
    const uint8_t *offset       # text; NULL: none for this name
    int32_t name_bytes
    int32_t offset_bytes
    const uint8_t *next_name    # the rest; NULL: nothing
    const uint8_t *names_end
    const uint8_t *next_offset
    const uint8_t *offsets_end

cdef void begin_pairs(QueuePairs *pairs, const PropertyRefs *f) noexcept nogil
cdef bint next_pair(QueuePairs *pairs) noexcept nogil
cdef int64_t offset_in_queue(const Record *r, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil
cdef int32_t jhash(const uint8_t *p, int64_t n, int32_t seed) noexcept nogil
cdef bint waits_for_disk(const PropertyRefs *f) noexcept nogil
cdef int64_t parse_int(const uint8_t *p, int32_t n, int64_t otherwise) noexcept nogil
cdef int64_t draft_bytes(const Draft *d) noexcept nogil
cdef int64_t encode_draft(uint8_t *to, const Draft *d) noexcept nogil
cdef void finish_record(uint8_t *p, int32_t total, int64_t queue_offset, int64_t physical_offset,
                        int64_t store_timestamp, int32_t sys_flag, bint crc_property) noexcept nogil
cdef int64_t read_store_timestamp(const uint8_t *p) noexcept nogil


cdef inline bint is_plain_record(const uint8_t *p, int64_t size, int64_t physical_offset, int64_t queue_offset,
                                 int32_t queue_id, const uint8_t *topic, int32_t topic_bytes) noexcept nogil:
    """Return True for a whole version 1 record with IPv4 hosts, of exactly this length, position and queue. `size`
    bytes may be read.

    The result of parse_record and the comparisons behind it, at a third of the work. False decides nothing: call those.
    """
    cdef int64_t at
    if (size < HEADER_BYTES + 3 or mq_get32(p) != size or mq_get32(p + 4) != MAGIC_V1
        or mq_get64(p + 28) != physical_offset):
        return False
    if (mq_get64(p + 20) != queue_offset or mq_get32(p + 12) != queue_id
        or mq_get32(p + 36) & (BORN_HOST_V6 | STORE_HOST_V6)):
        return False
    at = mq_get32(p + HEADER_BYTES - 4)                     # bytes of the body
    if at < 0 or at > size - HEADER_BYTES - 3 - topic_bytes:
        return False
    at += HEADER_BYTES
    if <int32_t> <signed char> p[at] != topic_bytes or not mq_short_equal(p + at + 1, topic, topic_bytes):
        return False
    at += 1 + topic_bytes
    return at + 2 + mq_get16(p + at) == size


cdef class StoredMessage:
    cdef object owner           # keeps the bytes alive: a FilePin, or a bytes object
    cdef const uint8_t *p
    cdef int64_t queue_position # queue offset of its unit; -1 without a queue
    cdef Record record
    cdef bint parsed
    cdef int fields(self) except -1
    cdef int still_there(self, int32_t total) except -1


cdef StoredMessage make_message(object owner, const uint8_t *p, int64_t queue_position)
