"""Headers of the codes on the hot path as types, decoded in place from the frame: no dict, no text for a number.

A table names the fields of a header, and ``read_fields`` finds them; each header takes the values in the order of the
table. A field that is missing or of another type is a FieldError, and the connection stays open. Of a field that a
frame repeats, the last value counts, as in Java's map.
Source: SendMessageRequestHeader, SendMessageRequestHeaderV2, PullMessageRequestHeader,
UpdateConsumerOffsetRequestHeader.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
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

cdef enum:
    FIELDS_MAX = 16
    SLOTS = 64                      # of the perfect hash of a table's names; a power of two


cdef class FieldTable:
    """The fields of a header by name, the required ones first."""

    cdef tuple names
    cdef tuple encoded              # keeps the bytes of ``name`` alive
    cdef const char *name[FIELDS_MAX]
    cdef Py_ssize_t size[FIELDS_MAX]
    cdef int count
    cdef uint32_t required          # bit i: field i must be present
    cdef uint32_t factor            # with this factor each name has a slot of its own
    cdef int8_t slot[SLOTS]         # hash of a name -> field, -1 for none

    def __init__(self, str required, str optional=""):
        cdef int i
        self.names = (*required.split(), *optional.split())
        self.encoded = tuple([name.encode() for name in self.names])
        self.count = len(self.names)
        self.required = (1u << len(required.split())) - 1
        assert self.count <= FIELDS_MAX
        for i in range(self.count):
            self.name[i] = <bytes> self.encoded[i]
            self.size[i] = len(self.encoded[i])
        while len({hash_of(self.name[i], self.size[i], self.factor) for i in range(self.count)}) < self.count:
            self.factor += 1
        for i in range(SLOTS):
            self.slot[i] = -1
        for i in range(self.count):
            self.slot[hash_of(self.name[i], self.size[i], self.factor)] = i


cdef inline uint32_t hash_of(const char *name, Py_ssize_t size, uint32_t factor) noexcept nogil:
    return (((<uint8_t> name[0]) * factor + <uint8_t> name[size - 1]) * factor + <uint32_t> size) & (SLOTS - 1)


cdef struct Fields:
    Span value[FIELDS_MAX]
    uint32_t seen               # bit i: field i of the table is there
    int at                      # the field that the next value belongs to


cdef RemotingCommand read_fields(RemotingCommand command, FieldTable table, bint short_names, Fields *fields):
    """Find the fields of a table in the header of a command.

    Args: short_names: field i is called by letter i of the alphabet.
    Returns: the command whose bytes ``fields`` points to; the caller keeps the command as long as ``fields``.
    Raises: FieldError for a missing field.
    """
    cdef Text t
    cdef Span key
    cdef Span value
    cdef int i
    fields.seen = 0
    fields.at = 0
    if command._header is None:
        command = reread(command)
    t = fields_of(command)
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if value.at == NULL:
            continue
        if short_names:
            i = key.at[0] - c'a' if key.size == 1 else -1
            if 0 <= i < table.count:
                fields.value[i] = value
                fields.seen |= 1u << i
            continue
        if key.size == 0:
            continue
        i = table.slot[hash_of(<const char *> key.at, key.size, table.factor)]
        if i >= 0 and key.size == table.size[i] and memcmp(key.at, table.name[i], key.size) == 0:
            fields.value[i] = value
            fields.seen |= 1u << i
    if fields.seen & table.required != table.required:
        for i in range(table.count):
            if table.required >> i & 1 and not fields.seen >> i & 1:
                raise FieldError(table.names[i], "a value", "none")
    return command


cdef inline Span *next_value(Fields *fields) noexcept:
    """Return the value of the next field of the table, NULL if the header lacks the field."""
    cdef int i = fields.at
    fields.at += 1
    return &fields.value[i] if fields.seen >> i & 1 else NULL


cdef inline str next_text(Fields *fields):
    cdef Span *value = next_value(fields)
    return None if value == NULL else text_of(value)


cdef inline int32_t next_int(Fields *fields, FieldTable table, int32_t default) except? -2147483647:
    cdef Span *value = next_value(fields)
    return default if value == NULL else int_of(value, table, fields.at - 1)


cdef inline int64_t next_long(Fields *fields, FieldTable table) except? -9223372036854775807:
    cdef Span *value = next_value(fields)
    return 0 if value == NULL else long_of(value, table, fields.at - 1)


cdef inline object next_int_or_none(Fields *fields, FieldTable table):
    cdef Span *value = next_value(fields)
    return None if value == NULL else int_of(value, table, fields.at - 1)


cdef inline bint next_bool(Fields *fields) noexcept:
    cdef Span *value = next_value(fields)
    return value != NULL and bool_of(value)


cdef int32_t int_of(Span *value, FieldTable table, int field) except? -2147483647:
    cdef bint valid = False
    cdef int64_t number = number_in(value.at, value.size, &valid) if not value.escaped else 0
    if not valid or not I32_MIN <= number <= I32_MAX:
        raise FieldError(table.names[field], "a whole number of 32 bits", repr(text_of(value)[:40]))
    return <int32_t> number


cdef int64_t long_of(Span *value, FieldTable table, int field) except? -9223372036854775807:
    cdef bint valid = False
    cdef int64_t number = number_in(value.at, value.size, &valid) if not value.escaped else 0
    if not valid:
        raise FieldError(table.names[field], "a whole number of 64 bits", repr(text_of(value)[:40]))
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


cdef FieldTable _SEND = FieldTable(
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag",
    "properties reconsumeTimes unitMode maxReconsumeTimes batch bname",
)


cpdef SendHeader send_header(RemotingCommand command):
    """Return the header of a send. Raises: FieldError."""
    cdef SendHeader h = SendHeader.__new__(SendHeader)
    cdef Fields f
    cdef Span *properties
    cdef RemotingCommand received
    if command is None:
        raise TypeError("expected a command, found None")
    if command._send_header is not None:
        return command._send_header
    received = command if command._header is not None else None
    command = read_fields(command, _SEND, command.code in (310, 320, 325), &f)
    h.producer_group = next_text(&f)
    h.topic = next_text(&f)
    h.default_topic = next_text(&f)
    h.default_topic_queue_nums = next_int(&f, _SEND, 0)
    h.queue_id = next_int(&f, _SEND, 0)
    h.sys_flag = next_int(&f, _SEND, 0)
    h.born_timestamp = next_long(&f, _SEND)
    h.flag = next_int(&f, _SEND, 0)
    properties = next_value(&f)
    h.properties = b"" if properties == NULL else bytes_of(properties)
    h.reconsume_times = next_int(&f, _SEND, 0)
    h.unit_mode = next_bool(&f)
    h.max_reconsume_times = next_int_or_none(&f, _SEND)
    h.batch = next_bool(&f)
    h.broker_name = next_text(&f)
    if received is not None:  # access control and handler read the same header
        received._send_header = h
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


cdef FieldTable _PULL = FieldTable(
    "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion",
    "subscription expressionType maxMsgBytes bname requestSource",
)


def pull_header(RemotingCommand command not None):
    """Return the header of a pull. Raises: FieldError."""
    cdef PullHeader h = PullHeader.__new__(PullHeader)
    cdef Fields f
    command = read_fields(command, _PULL, False, &f)
    h.consumer_group = next_text(&f)
    h.topic = next_text(&f)
    h.queue_id = next_int(&f, _PULL, 0)
    h.queue_offset = next_long(&f, _PULL)
    h.max_msg_nums = next_int(&f, _PULL, 0)
    h.sys_flag = next_int(&f, _PULL, 0)
    h.commit_offset = next_long(&f, _PULL)
    h.suspend_timeout_ms = next_long(&f, _PULL)
    h.sub_version = next_long(&f, _PULL)
    h.subscription = next_text(&f)
    h.expression_type = next_text(&f)
    h.max_msg_bytes = next_int_or_none(&f, _PULL)
    h.broker_name = next_text(&f)
    h.request_source = next_int(&f, _PULL, -1)
    return h


cdef class OffsetHeader:
    """Header of 15: the committed offset of a group in a queue."""

    cdef readonly str consumer_group
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly int64_t commit_offset


cdef FieldTable _OFFSET = FieldTable("consumerGroup topic queueId commitOffset")


def offset_header(RemotingCommand command not None):
    """Return the header of an offset update. Raises: FieldError."""
    cdef OffsetHeader h = OffsetHeader.__new__(OffsetHeader)
    cdef Fields f
    command = read_fields(command, _OFFSET, False, &f)
    h.consumer_group = next_text(&f)
    h.topic = next_text(&f)
    h.queue_id = next_int(&f, _OFFSET, 0)
    h.commit_offset = next_long(&f, _OFFSET)
    return h


cdef class SendAnswer:
    """The response to a stored send: ids, queue and offset of the message."""


cdef FieldTable _ANSWER = FieldTable("msgId queueId queueOffset", "transactionId recallHandle MSG_REGION")


cpdef SendAnswer send_answer(RemotingCommand command):
    """Return the fields of the response to a stored send. Raises: FieldError."""
    cdef SendAnswer a = SendAnswer.__new__(SendAnswer)
    cdef Fields f
    if command is None:
        raise TypeError("expected a command, found None")
    command = read_fields(command, _ANSWER, False, &f)
    a.msg_id = next_text(&f)
    a.queue_id = next_int(&f, _ANSWER, 0)
    a.queue_offset = next_long(&f, _ANSWER)
    a.transaction_id = next_text(&f)
    a.recall_handle = next_text(&f)
    a.region = next_text(&f)
    return a
