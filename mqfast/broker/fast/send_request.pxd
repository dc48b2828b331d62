# The fields of a send, and its answer.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.remoting.codec cimport Span
from mqfast.remoting.raw_header cimport RawHeader

cdef struct SendFields:
    Span topic
    Span properties
    int32_t queue_id
    int32_t sys_flag
    int32_t flag
    int32_t reconsume_times
    int64_t born_timestamp

cdef enum:
    SEND = 10
    SEND_V2 = 310
    ANSWER_MAX = 1024           # bytes of an answer, with pairs of at most PAIRS_MAX
    PAIRS_MAX = 512
    UNIQUE_MAX = 128

# All that differs between the answers of stored messages.
cdef struct SendAnswer:
    int32_t opaque
    int32_t queue_id
    int64_t physical_offset
    int64_t queue_offset
    int32_t code
    uint8_t codec
    uint8_t unique_bytes
    uint8_t unique[UNIQUE_MAX]

# What all answers of a broker have in common.
cdef struct AnswerParts:
    const char *json_pairs      # '"name":"value",' of the broker's fields
    Py_ssize_t json_bytes
    const char *binary_pairs
    Py_ssize_t binary_bytes
    const char *id_prefix       # of message ids, in hexadecimal
    Py_ssize_t id_bytes


cdef bint read_send(RawHeader *header, SendFields *fields) noexcept nogil
cdef bint is_plain_text(const uint8_t *at, Py_ssize_t n) noexcept nogil
cdef Py_ssize_t write_answer(const AnswerParts *parts, const SendAnswer *answer, uint8_t *to) noexcept nogil
