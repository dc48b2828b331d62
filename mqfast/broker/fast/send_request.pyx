"""The fields of a send (10, 310) from a header, and the answer of a stored message, without the GIL.

Nothing is refused: a header with a field that is missing, repeated or of another type is left to ``headers.pyx``.
Source: SendMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy
from mqfast.broker.fast.answer_text cimport put_big, put_digits, put_name, put_text
from mqfast.remoting.codec cimport Span, number_in, unescape
from mqfast.remoting.raw_header cimport RawHeader, read_header, take_field

from mqfast.remoting.command import VERSION

cdef enum:
    NAMES = 14
    REQUIRED = 0xFF             # the first eight fields

cdef int32_t OWN_VERSION = VERSION
cdef const char *NAMES_OF_FIELDS[14]
NAMES_OF_FIELDS[:] = [
    b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId", b"sysFlag", b"bornTimestamp",
    b"flag", b"properties", b"reconsumeTimes", b"unitMode", b"maxReconsumeTimes", b"batch", b"bname",
]
cdef Py_ssize_t[14] LENGTHS = [13, 5, 12, 21, 7, 7, 13, 4, 10, 14, 8, 17, 5, 5]


cdef inline int place_of(const Span *key, bint has_long_names) noexcept nogil:
    """Return the number of a field, -1 for an unknown one."""
    cdef int i
    if not has_long_names:
        return key.at[0] - c'a' if key.size == 1 and c'a' <= key.at[0] <= c'n' else -1
    for i in range(NAMES):
        if key.size == LENGTHS[i] and memcmp(key.at, NAMES_OF_FIELDS[i], key.size) == 0:
            return i
    return -1


cdef inline bint whole(const Span *value, int64_t *number) noexcept nogil:
    cdef bint valid = False
    if value.escaped:
        return False
    number[0] = number_in(value.at, value.size, &valid)
    return valid


cdef inline bint whole32(const Span *value, int32_t *number) noexcept nogil:
    cdef int64_t wide
    if not whole(value, &wide) or wide < -2147483648 or wide > 2147483647:
        return False
    number[0] = <int32_t> wide
    return True


cdef bint read_send(RawHeader *header, SendFields *fields) noexcept nogil:
    """Read the fields of a single message. Returns: False if the request is left to Python."""
    cdef Span key, value
    cdef int seen = 0, place
    cdef int32_t ignored
    cdef bint has_long_names = header.code == SEND, fits
    fields.reconsume_times = 0
    fields.properties.size = 0
    while take_field(header, &key, &value):
        if value.at == NULL:
            continue
        place = place_of(&key, has_long_names)
        if place < 0:
            continue
        if seen & 1 << place:
            return False
        seen |= 1 << place
        fits = True
        if place == 1:
            fields.topic = value
            fits = not value.escaped
        elif place == 3:
            fits = whole32(&value, &ignored)
        elif place == 4:
            fits = whole32(&value, &fields.queue_id)
        elif place == 5:
            fits = whole32(&value, &fields.sys_flag)
        elif place == 6:
            fits = whole(&value, &fields.born_timestamp)
        elif place == 7:
            fits = whole32(&value, &fields.flag)
        elif place == 8:
            fields.properties = value
        elif place == 9:
            fits = whole32(&value, &fields.reconsume_times)
        elif place == 11:
            fits = whole32(&value, &ignored)
        elif place == 12:
            fits = value.size == 5          # "false"; a batch is left to Python
        if not fits:
            return False
    return seen & REQUIRED == REQUIRED and header.fields.expected == NULL


def parsed(bytes header, int codec):
    """Return (opaque, topic, queue id, sysFlag, born timestamp, flag, properties, reconsume times) of a plain send's
    header, as reactors read the header; None: left to Python. For tests.
    """
    cdef RawHeader raw
    cdef SendFields fields
    cdef bytes properties
    if (not read_header(<const uint8_t *> header, len(header), codec, &raw) or raw.flag != 0
            or raw.code not in (SEND, SEND_V2) or not read_send(&raw, &fields)):
        return None
    properties = PyBytes_FromStringAndSize(NULL, fields.properties.size)
    if fields.properties.escaped:
        properties = properties[:unescape(fields.properties.at, fields.properties.size,
                                          <uint8_t *> PyBytes_AS_STRING(properties))]
    elif fields.properties.size:
        memcpy(PyBytes_AS_STRING(properties), fields.properties.at, fields.properties.size)
    return (raw.opaque, fields.topic.at[:fields.topic.size], fields.queue_id, fields.sys_flag, fields.born_timestamp,
            fields.flag, properties, fields.reconsume_times)


cdef bint is_plain_text(const uint8_t *at, Py_ssize_t n) noexcept nogil:
    """Return True for text that is the same in JSON: ASCII without a control character, quote or backslash."""
    cdef Py_ssize_t i
    for i in range(n):
        if at[i] < 0x20 or at[i] >= 0x7F or at[i] == c'"' or at[i] == c'\\':
            return False
    return True


# --- the answer ---

cdef const char *HEX_DIGITS = b"0123456789ABCDEF"


cdef inline uint8_t *put_hex(uint8_t *to, int64_t value) noexcept nogil:
    cdef int shift
    for shift in range(60, -4, -4):
        to[0] = HEX_DIGITS[value >> shift & 15]
        to += 1
    return to


cdef uint8_t *write_json(const AnswerParts *parts, const SendAnswer *answer, uint8_t *to) noexcept nogil:
    to = put_text(to, b'{"code":', 8)
    to = put_digits(to, answer.code)
    to = put_text(to, b',"extFields":{', 14)
    to = put_text(to, parts.json_pairs, parts.json_bytes)
    to = put_text(to, b'"msgId":"', 9)
    to = put_text(to, parts.id_prefix, parts.id_bytes)
    to = put_hex(to, answer.physical_offset)
    to = put_text(to, b'","queueId":"', 13)
    to = put_digits(to, answer.queue_id)
    to = put_text(to, b'","queueOffset":"', 17)
    to = put_digits(to, answer.queue_offset)
    to = put_text(to, b'","transactionId":"', 19)
    to = put_text(to, <const char *> answer.unique, answer.unique_bytes)
    to = put_text(to, b'"},"flag":1,"language":"JAVA","opaque":', 39)
    to = put_digits(to, answer.opaque)
    to = put_text(to, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    to = put_digits(to, OWN_VERSION)
    to[0] = c'}'
    return to + 1


cdef uint8_t *write_binary(const AnswerParts *parts, const SendAnswer *answer, uint8_t *to) noexcept nogil:
    cdef uint8_t *fields
    cdef uint8_t *begin
    to = put_big(to, <uint32_t> answer.code, 2)
    to = put_big(to, 0, 1)
    to = put_big(to, <uint32_t> OWN_VERSION, 2)
    to = put_big(to, <uint32_t> answer.opaque, 4)
    to = put_big(to, 1, 4)
    to = put_big(to, 0, 4)
    fields = to
    to = put_text(to + 4, parts.binary_pairs, parts.binary_bytes)
    to = put_name(to, b"msgId", 5)
    to = put_big(to, <uint32_t> parts.id_bytes + 16, 4)
    to = put_text(to, parts.id_prefix, parts.id_bytes)
    to = put_hex(to, answer.physical_offset)
    to = put_name(to, b"queueId", 7)
    begin = to
    to = put_digits(to + 4, answer.queue_id)
    put_big(begin, <uint32_t> (to - begin - 4), 4)
    to = put_name(to, b"queueOffset", 11)
    begin = to
    to = put_digits(to + 4, answer.queue_offset)
    put_big(begin, <uint32_t> (to - begin - 4), 4)
    to = put_name(to, b"transactionId", 13)
    to = put_big(to, answer.unique_bytes, 4)
    to = put_text(to, <const char *> answer.unique, answer.unique_bytes)
    put_big(fields, <uint32_t> (to - fields - 4), 4)
    return to


cdef Py_ssize_t write_answer(const AnswerParts *parts, const SendAnswer *answer, uint8_t *to) noexcept nogil:
    """Write the frame of an answer. Returns: its length, at most ANSWER_MAX."""
    cdef uint8_t *end
    if answer.codec == 0:
        end = write_json(parts, answer, to + 8)
    else:
        end = write_binary(parts, answer, to + 8)
    put_big(to, <uint32_t> (end - to - 4), 4)
    put_big(to + 4, <uint32_t> answer.codec << 24 | <uint32_t> (end - to - 8), 4)
    return end - to
