"""Headers of the codes on the hot path as types, decoded in place from the frame: no dict, no text for a number.

A field that is missing or of another type is a FieldError, and the connection stays open.
Source: SendMessageRequestHeader, SendMessageRequestHeaderV2, PullMessageRequestHeader,
UpdateConsumerOffsetRequestHeader.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp
from mqfast.remoting.codec cimport (
    RemotingCommand,
    Span,
    Text,
    bytes_of,
    fields_of,
    number_in,
    take_binary_pair,
    take_pair,
    text_of,
)

from mqfast.errors import FieldError
from mqfast.remoting.codec import FrameDecoder, encode

cdef int64_t I32_MIN = -2147483648
cdef int64_t I32_MAX = 2147483647


cdef inline bint is_name(Span *key, const char *name, Py_ssize_t size) noexcept nogil:
    return key.size == size and memcmp(key.at, name, size) == 0


cdef object missing(str name):
    return FieldError(name, "a value", "none")


cdef int32_t int_of(Span *value, str name) except? -2147483647:
    cdef bint valid = False
    cdef int64_t number = number_in(value.at, value.size, &valid) if not value.escaped else 0
    if not valid or not I32_MIN <= number <= I32_MAX:
        raise FieldError(name, "a whole number of 32 bits", repr(text_of(value)[:40]))
    return <int32_t> number


cdef int64_t long_of(Span *value, str name) except? -9223372036854775807:
    cdef bint valid = False
    cdef int64_t number = number_in(value.at, value.size, &valid) if not value.escaped else 0
    if not valid:
        raise FieldError(name, "a whole number of 64 bits", repr(text_of(value)[:40]))
    return number


cdef bint bool_of(Span *value) noexcept:
    """Parse as Java's Boolean.parseBoolean: only "true" is true, in any case."""
    cdef int i
    if value.size != 4:
        return False
    for i in range(4):
        if (value.at[i] | 0x20) != (b"true")[i]:
            return False
    return True


cdef class SendHeader:
    """Header of 10, 310, 320, 324 and 325; ``properties`` are the bytes of RocketMQ's property text."""


cdef tuple _SEND_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
)
cdef dict _SEND_LETTERS = {
    name.encode(): letter
    for name, letter in zip(_SEND_NAMES, [ord(c) for c in "abcdefghijklmn"], strict=True)
}


cpdef SendHeader send_header(RemotingCommand command):
    """Return the header of a send. Raises: FieldError."""
    cdef SendHeader h = SendHeader.__new__(SendHeader)
    cdef Text t
    cdef Span key
    cdef Span value
    cdef int letter
    cdef int seen = 0
    cdef bint short_names
    if command is None:
        raise TypeError("expected a command, found None")
    short_names = command.code in (310, 320, 325)
    h.properties = b""
    if command._header is None:
        command = reread(command)
    t = fields_of(command)
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if value.at == NULL:
            continue
        if short_names:
            letter = key.at[0] if key.size == 1 else 0
        else:
            letter = _SEND_LETTERS.get(bytes_of(&key), 0)
        if letter == c'a':
            h.producer_group = text_of(&value)
        elif letter == c'b':
            h.topic = text_of(&value)
        elif letter == c'c':
            h.default_topic = text_of(&value)
        elif letter == c'd':
            h.default_topic_queue_nums = int_of(&value, "defaultTopicQueueNums")
        elif letter == c'e':
            h.queue_id = int_of(&value, "queueId")
        elif letter == c'f':
            h.sys_flag = int_of(&value, "sysFlag")
        elif letter == c'g':
            h.born_timestamp = long_of(&value, "bornTimestamp")
        elif letter == c'h':
            h.flag = int_of(&value, "flag")
        elif letter == c'i':
            h.properties = bytes_of(&value)
        elif letter == c'j':
            h.reconsume_times = int_of(&value, "reconsumeTimes")
        elif letter == c'k':
            h.unit_mode = bool_of(&value)
        elif letter == c'l':
            h.max_reconsume_times = int_of(&value, "maxReconsumeTimes")
        elif letter == c'm':
            h.batch = bool_of(&value)
        elif letter == c'n':
            h.broker_name = text_of(&value)
        else:
            continue
        seen |= 1 << (letter - c'a')
    if seen & 0xFF != 0xFF:
        for letter in range(8):
            if not seen & 1 << letter:
                raise missing(_SEND_NAMES[letter])
    return h


cdef RemotingCommand reread(RemotingCommand command):
    """Return a command that was created here as a peer would receive it."""
    whole = RemotingCommand(command.code, {"": "", **command.ext_fields}, serialize=command.serialize)
    return FrameDecoder(0x7FFFFFFF, 0xFFFFFF).feed(encode(whole))[0]


cdef class PullHeader:
    """Header of 11 and 361; ``subscription`` and ``expression_type`` are None where the client names none.

    ``request_source``: the kind of client for which a proxy pulls; -1: no proxy.
    """

    cdef readonly str consumer_group
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly int64_t queue_offset
    cdef readonly int max_msg_nums
    cdef readonly int sys_flag
    cdef readonly int64_t commit_offset
    cdef readonly int64_t suspend_timeout_ms
    cdef readonly object subscription
    cdef readonly int64_t sub_version
    cdef readonly object expression_type
    cdef readonly object max_msg_bytes
    cdef readonly object broker_name
    cdef readonly int request_source


cdef tuple _PULL_NAMES = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
    "suspendTimeoutMillis", "subVersion",
)


def pull_header(RemotingCommand command not None):
    """Return the header of a pull. Raises: FieldError."""
    cdef PullHeader h = PullHeader.__new__(PullHeader)
    cdef Text t
    cdef Span key
    cdef Span value
    cdef int seen = 0
    cdef int i
    if command._header is None:
        command = reread(command)
    t = fields_of(command)
    h.request_source = -1
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if value.at == NULL:
            continue
        if is_name(&key, b"consumerGroup", 13):
            h.consumer_group = text_of(&value)
            seen |= 1
        elif is_name(&key, b"topic", 5):
            h.topic = text_of(&value)
            seen |= 2
        elif is_name(&key, b"queueId", 7):
            h.queue_id = int_of(&value, "queueId")
            seen |= 4
        elif is_name(&key, b"queueOffset", 11):
            h.queue_offset = long_of(&value, "queueOffset")
            seen |= 8
        elif is_name(&key, b"maxMsgNums", 10):
            h.max_msg_nums = int_of(&value, "maxMsgNums")
            seen |= 16
        elif is_name(&key, b"sysFlag", 7):
            h.sys_flag = int_of(&value, "sysFlag")
            seen |= 32
        elif is_name(&key, b"commitOffset", 12):
            h.commit_offset = long_of(&value, "commitOffset")
            seen |= 64
        elif is_name(&key, b"suspendTimeoutMillis", 20):
            h.suspend_timeout_ms = long_of(&value, "suspendTimeoutMillis")
            seen |= 128
        elif is_name(&key, b"subVersion", 10):
            h.sub_version = long_of(&value, "subVersion")
            seen |= 256
        elif is_name(&key, b"subscription", 12):
            h.subscription = text_of(&value)
        elif is_name(&key, b"expressionType", 14):
            h.expression_type = text_of(&value)
        elif is_name(&key, b"maxMsgBytes", 11):
            h.max_msg_bytes = int_of(&value, "maxMsgBytes")
        elif is_name(&key, b"bname", 5):
            h.broker_name = text_of(&value)
        elif is_name(&key, b"requestSource", 13):
            h.request_source = int_of(&value, "requestSource")
    if seen != 511:
        for i in range(9):
            if not seen & 1 << i:
                raise missing(_PULL_NAMES[i])
    return h


cdef class OffsetHeader:
    """Header of 15: the committed offset of a group in a queue."""

    cdef readonly str consumer_group
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly int64_t commit_offset


cdef tuple _OFFSET_NAMES = ("consumerGroup", "topic", "queueId", "commitOffset")


def offset_header(RemotingCommand command not None):
    """Return the header of an offset update. Raises: FieldError."""
    cdef OffsetHeader h = OffsetHeader.__new__(OffsetHeader)
    cdef Text t
    cdef Span key
    cdef Span value
    cdef int seen = 0
    cdef int i
    if command._header is None:
        command = reread(command)
    t = fields_of(command)
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if value.at == NULL:
            continue
        if is_name(&key, b"consumerGroup", 13):
            h.consumer_group = text_of(&value)
            seen |= 1
        elif is_name(&key, b"topic", 5):
            h.topic = text_of(&value)
            seen |= 2
        elif is_name(&key, b"queueId", 7):
            h.queue_id = int_of(&value, "queueId")
            seen |= 4
        elif is_name(&key, b"commitOffset", 12):
            h.commit_offset = long_of(&value, "commitOffset")
            seen |= 8
    if seen != 15:
        for i in range(4):
            if not seen & 1 << i:
                raise missing(_OFFSET_NAMES[i])
    return h


cdef class SendAnswer:
    """The response to a stored send: ids, queue and offset of the message."""


cpdef SendAnswer send_answer(RemotingCommand command):
    """Return the fields of the response to a stored send. Raises: FieldError."""
    cdef SendAnswer a = SendAnswer.__new__(SendAnswer)
    cdef Text t
    cdef Span key
    cdef Span value
    cdef int seen = 0
    if command is None:
        raise TypeError("expected a command, found None")
    if command._header is None:
        command = reread(command)
    t = fields_of(command)
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if value.at == NULL:
            continue
        if is_name(&key, b"msgId", 5):
            a.msg_id = text_of(&value)
            seen |= 1
        elif is_name(&key, b"queueId", 7):
            a.queue_id = int_of(&value, "queueId")
            seen |= 2
        elif is_name(&key, b"queueOffset", 11):
            a.queue_offset = long_of(&value, "queueOffset")
            seen |= 4
        elif is_name(&key, b"transactionId", 13):
            a.transaction_id = text_of(&value)
        elif is_name(&key, b"recallHandle", 12):
            a.recall_handle = text_of(&value)
        elif is_name(&key, b"MSG_REGION", 10):
            a.region = text_of(&value)
    if seen != 7:
        raise missing("msgId" if not seen & 1 else "queueId" if not seen & 2 else "queueOffset")
    return a
