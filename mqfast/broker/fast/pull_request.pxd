# The fields of a pull, and the header of its answer.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.remoting.codec cimport Span
from mqfast.remoting.raw_header cimport RawHeader

cdef enum:
    PULL = 11
    LITE_PULL = 361
    COMMIT_OFFSET = 1           # bits of sysFlag
    OWN_SUBSCRIPTION = 4
    NUMBER_MAX = 20             # digits of a number of the group's or the topic's settings
    PULL_ANSWER_MAX = 640       # bytes of an answer without the records

# What a client may leave out has no address.
cdef struct PullFields:
    Span group
    Span topic
    Span subscription
    Span expression_type
    int32_t queue_id
    int32_t max_count
    int32_t max_bytes
    int32_t sys_flag
    int64_t queue_offset
    int64_t commit_offset
    int64_t sub_version

# What differs between the answers of pulls that found messages.
cdef struct PullAnswer:
    int32_t opaque
    uint8_t codec
    int64_t next_offset
    int64_t min_offset
    int64_t max_offset
    int64_t broker_id           # that the client shall ask next
    int64_t topic_sys_flag
    int64_t group_sys_flag


cdef bint read_pull(RawHeader *header, PullFields *fields) noexcept nogil
cdef Py_ssize_t write_pull_answer(const PullAnswer *answer, int64_t body_bytes, uint8_t *to) noexcept nogil
