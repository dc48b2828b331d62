"""The fields of a pull (11, 361) from a header, and the header of an answer with messages, without the GIL.

Nothing is refused: a header with a field that is missing, repeated or of another type is left to ``headers.pyx``.
Source: PullMessageRequestHeader, PullMessageResponseHeader.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp
from mqfast.broker.fast.answer_text cimport put_big, put_digits, put_name, put_text
from mqfast.remoting.codec cimport Span, number_in
from mqfast.remoting.raw_header cimport RawHeader, read_header, take_field

from mqfast.remoting.command import VERSION

cdef enum:
    NAMES = 13
    REQUIRED = 0x1FF            # the first nine fields
    FOR_BROADCAST = 1           # requestSource of a proxy that pulls for a broadcasting client
    ANSWER_FIELDS = 6

cdef int32_t OWN_VERSION = VERSION
cdef const char *NAMES_OF_FIELDS[NAMES]
NAMES_OF_FIELDS[:] = [
    b"consumerGroup", b"topic", b"queueId", b"queueOffset", b"maxMsgNums", b"sysFlag", b"commitOffset",
    b"suspendTimeoutMillis", b"subVersion", b"subscription", b"expressionType", b"maxMsgBytes", b"requestSource",
]
cdef Py_ssize_t[NAMES] LENGTHS = [13, 5, 7, 11, 10, 7, 12, 20, 10, 12, 14, 11, 13]
cdef const char *ANSWER_NAMES[ANSWER_FIELDS]
ANSWER_NAMES[:] = [
    b"suggestWhichBrokerId", b"nextBeginOffset", b"minOffset", b"maxOffset", b"topicSysFlag", b"groupSysFlag",
]
cdef int[ANSWER_FIELDS] ANSWER_LENGTHS = [20, 15, 9, 9, 12, 12]


cdef inline int place_of(const Span *key) noexcept nogil:
    """Return the number of a field, -1 for an unknown one."""
    cdef int i
    for i in range(NAMES):
        if key.size == LENGTHS[i] and memcmp(key.at, NAMES_OF_FIELDS[i], key.size) == 0:
            return i
    return -1


cdef inline bint whole(const Span *value, int64_t low, int64_t high, int64_t *number) noexcept nogil:
    cdef bint valid = False
    if value.escaped:
        return False
    number[0] = number_in(value.at, value.size, &valid)
    return valid and low <= number[0] <= high


cdef bint read_pull(RawHeader *header, PullFields *fields) noexcept nogil:
    """Read the fields of a pull. Returns: False if the request is left to Python."""
    cdef Span key, value
    cdef int seen = 0, place
    cdef int64_t number
    cdef int64_t low32 = -2147483648, high32 = 2147483647
    cdef int64_t low64 = -9223372036854775807, high64 = 9223372036854775807
    cdef bint is_long
    fields.subscription.at = fields.expression_type.at = NULL
    fields.subscription.size = fields.expression_type.size = 0
    fields.max_bytes = 0
    while take_field(header, &key, &value):
        if value.at == NULL:
            continue
        place = place_of(&key)
        if place < 0:
            continue
        if seen & 1 << place:
            return False
        seen |= 1 << place
        if place in (0, 1, 9, 10):
            if value.escaped:
                return False
            if place == 0:
                fields.group = value
            elif place == 1:
                fields.topic = value
            elif place == 9:
                fields.subscription = value
            else:
                fields.expression_type = value
            continue
        is_long = place in (3, 6, 7, 8)
        if not whole(&value, low64 if is_long else low32, high64 if is_long else high32, &number):
            return False
        if place == 2:
            fields.queue_id = <int32_t> number
        elif place == 3:
            fields.queue_offset = number
        elif place == 4:
            fields.max_count = <int32_t> number
        elif place == 5:
            fields.sys_flag = <int32_t> number
        elif place == 6:
            fields.commit_offset = number
        elif place == 8:
            fields.sub_version = number
        elif place == 11:
            fields.max_bytes = <int32_t> number
        elif place == 12 and number == FOR_BROADCAST:
            return False
    return seen & REQUIRED == REQUIRED and header.fields.expected == NULL


cdef object text_of(const Span *part):
    return None if part.at == NULL else part.at[:part.size]


def parsed(bytes header, int codec):
    """Return (opaque, group, topic, queue id, offset, most messages, sysFlag, commit offset, version of the
    subscription, subscription, type of expression, most bytes) of a pull's header, as reactors read the header; None:
    left to Python. For tests.
    """
    cdef RawHeader raw
    cdef PullFields fields
    if (not read_header(<const uint8_t *> header, len(header), codec, &raw) or raw.flag != 0
            or raw.code not in (PULL, LITE_PULL) or not read_pull(&raw, &fields)):
        return None
    return (raw.opaque, text_of(&fields.group), text_of(&fields.topic), fields.queue_id, fields.queue_offset,
            fields.max_count, fields.sys_flag, fields.commit_offset, fields.sub_version, text_of(&fields.subscription),
            text_of(&fields.expression_type), fields.max_bytes)


# --- the answer ---

cdef uint8_t *write_json(const PullAnswer *answer, const int64_t *numbers, uint8_t *to) noexcept nogil:
    cdef int i
    to = put_text(to, b'{"code":0,"extFields":{', 23)
    for i in range(ANSWER_FIELDS):
        to = put_text(to, b',"' if i else b'"', 2 if i else 1)
        to = put_text(to, ANSWER_NAMES[i], ANSWER_LENGTHS[i])
        to = put_text(to, b'":"', 3)
        to = put_digits(to, numbers[i])
        to = put_text(to, b'"', 1)
    to = put_text(to, b'},"flag":1,"language":"JAVA","opaque":', 38)
    to = put_digits(to, answer.opaque)
    to = put_text(to, b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":', 61)
    to = put_digits(to, OWN_VERSION)
    return put_text(to, b'}', 1)


cdef uint8_t *write_binary(const PullAnswer *answer, const int64_t *numbers, uint8_t *to) noexcept nogil:
    cdef uint8_t *fields
    cdef uint8_t *begin
    cdef int i
    to = put_big(to, 0, 2)
    to = put_big(to, 0, 1)
    to = put_big(to, <uint32_t> OWN_VERSION, 2)
    to = put_big(to, <uint32_t> answer.opaque, 4)
    to = put_big(to, 1, 4)
    to = put_big(to, 5, 4)
    to = put_text(to, b"FOUND", 5)
    fields = to
    to += 4
    for i in range(ANSWER_FIELDS):
        to = put_name(to, ANSWER_NAMES[i], ANSWER_LENGTHS[i])
        begin = to
        to = put_digits(to + 4, numbers[i])
        put_big(begin, <uint32_t> (to - begin - 4), 4)
    put_big(fields, <uint32_t> (to - fields - 4), 4)
    return to


cdef Py_ssize_t write_pull_answer(const PullAnswer *answer, int64_t body_bytes, uint8_t *to) noexcept nogil:
    """Write an answer up to its body. Returns: the length, at most PULL_ANSWER_MAX."""
    cdef int64_t numbers[ANSWER_FIELDS]
    cdef uint8_t *end
    numbers[0] = answer.broker_id
    numbers[1] = answer.next_offset
    numbers[2] = answer.min_offset
    numbers[3] = answer.max_offset
    numbers[4] = answer.topic_sys_flag
    numbers[5] = answer.group_sys_flag
    if answer.codec == 0:
        end = write_json(answer, numbers, to + 8)
    else:
        end = write_binary(answer, numbers, to + 8)
    put_big(to, <uint32_t> (end - to - 4 + body_bytes), 4)
    put_big(to + 4, <uint32_t> answer.codec << 24 | <uint32_t> (end - to - 8), 4)
    return end - to
