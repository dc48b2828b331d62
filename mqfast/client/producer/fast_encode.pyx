"""The bytes of a send in a single pass: plain messages, the frame of a request from a ready header, batches.

Messages that are not plain are left to ``encode.py``. Source: SendMessageRequestHeaderV2,
MessageDecoder.encodeMessages.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from mqfast.remoting.codec cimport RemotingCommand
from mqfast.remoting.headers cimport SendAnswer, send_answer
from mqfast.remoting.unique_ids cimport UniqueIds

from mqfast import message as _message
from mqfast.client.values import MessageQueue, SendResult, SendStatus
from mqfast.errors import FieldError, MessageIllegal
from mqfast.message import Message

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef int SEND = 310
cdef int PROPERTIES_MAX = 32767
cdef object ZERO = 0
cdef str RETRY = _message.RETRY_PREFIX
cdef object SEND_OK = SendStatus.SEND_OK


# --- one message ------------------------------------------------------------------------------------------------------


@cython.freelist(64)
cdef class PreparedMessage:
    """A message or batch, ready to be sent to any queue of the topic; every attempt sends the same bytes.

    Args: topic: with the namespace. body: as sent. properties: the property string. msg_id: the unique id.
    Attributes: ``msg_ids``: the unique ids, of a batch one for each message. ``delayed``: not delivered at once.
    """

    cdef public object message
    cdef public str topic
    cdef public bytes body
    cdef public bytes properties
    cdef public str msg_id
    cdef public object sharding_key
    cdef public object born_ms
    cdef public int code
    cdef public int flag
    cdef public int sys_flag
    cdef public int reconsume_times
    cdef public bint delayed
    cdef public bint batch
    cdef tuple _msg_ids

    def __init__(self, message, str topic, bytes body, bytes properties, str msg_id):
        self.message = message
        self.topic = topic
        self.body = body
        self.properties = properties
        self.msg_id = msg_id
        self.code = SEND
        self.flag = message.flag or 0
        self.sys_flag = 0
        self.born_ms = message.born_timestamp
        self.reconsume_times = message.reconsume_times or 0
        self.sharding_key = message.sharding_key
        self.delayed = False
        self.batch = False

    @property
    def size(self):
        """Return the bytes of body and properties."""
        return PyBytes_GET_SIZE(self.body) + PyBytes_GET_SIZE(self.properties)

    @property
    def is_batchable(self):
        """Return whether the message may be part of a batch."""
        return not (
            self.delayed or self.sys_flag or self.code != SEND or self.reconsume_times
            or self.topic.startswith(RETRY)
        )

    @property
    def msg_ids(self):
        return (self.msg_id,) if self._msg_ids is None else self._msg_ids

    @msg_ids.setter
    def msg_ids(self, tuple ids):
        self._msg_ids = ids


cdef inline bint is_zero(value) noexcept:
    return value is ZERO


cdef const char *text_of(value, Py_ssize_t *size) except? NULL:
    """Return the UTF-8 of tags or keys that need no change in a property string; NULL for others. None: size 0."""
    cdef const char *text
    if type(value) is not str:
        return NULL
    try:
        text = PyUnicode_AsUTF8AndSize(value, size)
    except UnicodeEncodeError:
        return NULL
    if memchr(text, 1, size[0]) != NULL or memchr(text, 2, size[0]) != NULL:
        return NULL
    return text


cdef inline char *put_property(
    char *to, const char *name, Py_ssize_t name_size, const char *value, Py_ssize_t size
) noexcept nogil:
    """Write a property. Args: name: followed by U+0001. Returns: the end."""
    memcpy(to, name, name_size)
    memcpy(to + name_size, value, size)
    to[name_size + size] = 2
    return to + name_size + size + 1


def plain(message, UniqueIds ids not None, str topic, Py_ssize_t max_bytes):
    """Return a plain message: bytes as the body, no properties but tags and keys.

    Args: topic: of the message, checked, with the namespace. max_bytes: of a body.
    Returns: the message, not compressed; None for a message that is not plain, valid or not.
    """
    cdef PreparedMessage out
    cdef Py_ssize_t size, tags_size = 0, keys_size = 0, id_size
    cdef const char *tags = NULL
    cdef const char *keys = NULL
    cdef char text[64]
    cdef char *at
    cdef bytes properties
    if type(message) is not Message:
        return None
    body = message.body
    if type(body) is not bytes:
        return None
    size = PyBytes_GET_SIZE(<bytes> body)
    if size == 0 or size > max_bytes:
        return None
    if (
        message.properties is not None
        or message.sharding_key is not None
        or message.delay_level is not None
        or message.delay_s is not None
        or message.deliver_at is not None
        or message.wait_store_ok is not True
        or message.born_timestamp is not None
        or message.born_host is not None
        or message.store_host is not None
        or not is_zero(message.flag)
        or not is_zero(message.queue_id)
        or not is_zero(message.sys_flag)
        or not is_zero(message.reconsume_times)
        or not is_zero(message.prepared_transaction_offset)
    ):
        return None
    given_tags, given_keys = message.tags, message.keys
    if given_tags is not None:
        tags = text_of(given_tags, &tags_size)
        if tags == NULL:
            return None
    if given_keys is not None:
        keys = text_of(given_keys, &keys_size)
        if keys == NULL:
            return None
    id_size = ids.write(text)
    size = 10 + id_size + (6 + tags_size if tags_size else 0) + (6 + keys_size if keys_size else 0)
    if size > PROPERTIES_MAX:
        return None
    properties = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(properties)
    at = put_property(at, b"UNIQ_KEY\x01", 9, text, id_size)
    if tags_size:
        at = put_property(at, b"TAGS\x01", 5, tags, tags_size)
    if keys_size:
        put_property(at, b"KEYS\x01", 5, keys, keys_size)
    out = PreparedMessage.__new__(PreparedMessage)
    out.message = message
    out.topic = topic
    out.body = <bytes> body
    out.properties = properties
    out.msg_id = PyUnicode_DecodeASCII(text, id_size, NULL)
    out.code = SEND
    return out


# --- the request ------------------------------------------------------------------------------------------------------


cdef inline void put32(uint8_t *at, uint32_t v) noexcept nogil:
    at[0] = v >> 24
    at[1] = v >> 16 & 255
    at[2] = v >> 8 & 255
    at[3] = v & 255


cdef Py_ssize_t put_number(uint8_t *to, int64_t value) noexcept nogil:
    """Write decimal text. Returns: the length, at most 20."""
    cdef uint8_t digits[20]
    cdef Py_ssize_t n = 0, i
    cdef uint64_t rest = <uint64_t> -value if value < 0 else <uint64_t> value
    while True:
        digits[n] = <uint8_t> (c'0' + rest % 10)
        n += 1
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        digits[n] = c'-'
        n += 1
    for i in range(n):
        to[i] = digits[n - 1 - i]
    return n


cdef Py_ssize_t put_escaped(uint8_t *to, const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Write the inside of a JSON string. Returns: the length, at most six times that of the text."""
    cdef uint8_t *at = to
    cdef Py_ssize_t i
    cdef uint8_t c
    for i in range(size):
        c = text[i]
        if c >= 0x20 and c != c'"' and c != c'\\':
            at[0] = c
            at += 1
        elif c >= 0x20:
            at[0] = c'\\'
            at[1] = c
            at += 2
        else:
            memcpy(at, b"\\u00", 4)
            at[4] = c'0' + (c >> 4)
            at[5] = b"0123456789abcdef"[c & 15]
            at += 6
    return at - to


cdef inline Py_ssize_t put_bytes(uint8_t *to, bytes text) noexcept:
    memcpy(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return PyBytes_GET_SIZE(text)


cdef class HeaderTemplate:
    """The header of all sends to a queue; ``frame`` fills in the changing fields.

    Args: fields: the constant fields of the header, by their letters. code: of the request. version: of this client.
        language: its name.
    Attributes: ``queue``: with the topic as users see it.
    """

    cdef readonly dict fields
    cdef readonly int code
    cdef public object queue
    cdef bytes _begin
    cdef bytes _end
    cdef bytes _oneway_end
    cdef bytes _last

    def __init__(self, int code, dict fields, int version, str language):
        cdef list parts = []
        cdef bytes text, room
        cdef Py_ssize_t size
        for name, value in fields.items():
            text = str(value).encode()
            room = PyBytes_FromStringAndSize(NULL, 6 * PyBytes_GET_SIZE(text) + 1)
            size = put_escaped(<uint8_t *> PyBytes_AS_STRING(room), <const uint8_t *> PyBytes_AS_STRING(text),
                               PyBytes_GET_SIZE(text))
            parts.append(b'"' + (<str> name).encode() + b'":"' + room[:size] + b'",')
        self.fields = fields
        self.code = code
        self._begin = b'{"code":%d,"extFields":{' % code + b"".join(parts) + b'"f":"'
        self._end = b'"},"flag":0,"language":"' + language.encode() + b'","opaque":'
        self._oneway_end = self._end.replace(b'"flag":0', b'"flag":2')
        self._last = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % version

    def frame(self, int opaque, int sys_flag, int64_t born_ms, int flag, bytes properties, body, bint oneway=False):
        """Return the whole frame of a send. Args: properties: the property string; body: bytes-like."""
        return self.make(opaque, sys_flag, born_ms, flag, properties, body, oneway)

    cdef bytes make(self, int opaque, int sys_flag, int64_t born_ms, int flag, bytes properties, body, bint oneway):
        cdef Py_buffer view
        cdef bytes end = self._oneway_end if oneway else self._end
        cdef Py_ssize_t max_bytes
        cdef bytes head
        cdef bytes out
        cdef uint8_t *begin
        cdef uint8_t *at
        cdef Py_ssize_t header
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            max_bytes = (
                8 + PyBytes_GET_SIZE(self._begin) + 6 * PyBytes_GET_SIZE(properties) + 4 * 20 + 24
                + PyBytes_GET_SIZE(end) + PyBytes_GET_SIZE(self._last)
            )
            head = PyBytes_FromStringAndSize(NULL, max_bytes)
            begin = <uint8_t *> PyBytes_AS_STRING(head)
            at = begin + 8
            at += put_bytes(at, self._begin)
            at += put_number(at, sys_flag)
            memcpy(at, b'","g":"', 7)
            at += 7
            at += put_number(at, born_ms)
            memcpy(at, b'","h":"', 7)
            at += 7
            at += put_number(at, flag)
            memcpy(at, b'","i":"', 7)
            at += 7
            at += put_escaped(at, <const uint8_t *> PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
            at += put_bytes(at, end)
            at += put_number(at, opaque)
            at += put_bytes(at, self._last)
            header = at - begin - 8
            put32(begin, <uint32_t> (4 + header + view.len))
            put32(begin + 4, <uint32_t> header)
            out = PyBytes_FromStringAndSize(NULL, at - begin + view.len)
            memcpy(PyBytes_AS_STRING(out), begin, at - begin)
            memcpy(PyBytes_AS_STRING(out) + (at - begin), view.buf, view.len)
            return out
        finally:
            PyBuffer_Release(&view)


@cython.freelist(64)
cdef class SendRequest:
    """The request of an attempt: an ``EncodedRequest`` with a frame from a ready header.

    Attributes: as those of Request; ``begun_s``: begin of the attempt, by the sender's clock.
    """

    cdef readonly str address
    cdef readonly HeaderTemplate head
    cdef readonly PreparedMessage out
    cdef readonly int64_t born_ms
    cdef readonly double timeout_s
    cdef readonly bint oneway
    cdef readonly double begun_s

    def __init__(
        self,
        str address,
        HeaderTemplate head not None,
        PreparedMessage out not None,
        int64_t born_ms,
        double timeout_s,
        bint oneway=False,
        double begun_s=0.0
    ):
        self.address = address
        self.head = head
        self.out = out
        self.born_ms = born_ms
        self.timeout_s = timeout_s
        self.oneway = oneway
        self.begun_s = begun_s

    @property
    def code(self):
        """Return the request code."""
        return self.head.code

    @property
    def body(self):
        """Return the body as sent."""
        return self.out.body

    @property
    def ext_fields(self):
        """Return the header fields."""
        out = self.out
        return {
            **self.head.fields,
            "f": out.sys_flag,
            "g": self.born_ms,
            "h": out.flag,
            "i": out.properties.decode(),
        }

    def frame(self, int opaque):
        """Return the frame of a request without a signature."""
        cdef PreparedMessage out = self.out
        return self.head.make(opaque, out.sys_flag, self.born_ms, out.flag, out.properties, out.body, self.oneway)

    cpdef stored(self, RemotingCommand answer):
        """Return the result of a response with SEND_OK and the offset of the message; else None: the steps decide."""
        if answer is None or answer.code != 0:
            return None
        try:
            return result_of(SEND_OK, answer, self.out, self.head.queue)
        except FieldError:
            return None


# --- the answer -------------------------------------------------------------------------------------------------------


cdef object new_tuple = tuple.__new__


cpdef result_of(status, RemotingCommand answer, PreparedMessage out, queue):
    """Return the result of a send.

    Args: status: of the response's code. queue: of the request, with the topic as users see it.
    Raises: FieldError for a response without a valid msgId, queueId and queueOffset.
    """
    cdef SendAnswer said = send_answer(answer)
    if said.queue_id != queue[2]:
        queue = MessageQueue(queue[0], queue[1], said.queue_id)
    ids = (out.msg_id,) if out._msg_ids is None else out._msg_ids
    return new_tuple(
        SendResult,
        (status, out.msg_id, said.msg_id, queue, said.queue_offset, said.transaction_id, said.recall_handle,
         said.region, ids),
    )


def results_of(result, list many not None):
    """Return the result of each message of a batch, from that of the batch. Args: many: a PreparedMessage for each."""
    cdef list ids = result[2].split(",")
    cdef list results = []
    cdef int64_t offset = result[4]
    cdef Py_ssize_t i = 0
    cdef bint each = len(ids) == len(many)
    cdef PreparedMessage part
    status, batch_id, queue, transaction, handle, region = (
        result[0], result[2], result[3], result[5], result[6], result[7]
    )
    for part in many:
        results.append(
            new_tuple(
                SendResult,
                (status, part.msg_id, ids[i] if each else batch_id, queue, offset + i, transaction, handle, region,
                 (part.msg_id,)),
            )
        )
        i += 1
    return results


cdef class FirstAttempt:
    """The first attempt of a send that may go to any queue, driven by its response: no task, no future, no steps.

    A channel uses it as a future. After any response but SEND_OK the steps of a send continue.
    Args: done: called with the end: result and error. goes_on: called with (this, response, error) where the steps
        continue.
    """

    cdef readonly SendRequest request
    cdef readonly object how
    cdef readonly object on_done
    cdef object _goes_on

    def __init__(self, SendRequest request not None, how, done, goes_on):
        self.request = request
        self.how = how
        self.on_done = done
        self._goes_on = goes_on

    def done(self):
        """Return whether the attempt has ended."""
        return False

    def set_result(self, RemotingCommand answer not None):
        """End with the response."""
        result = self.request.stored(answer)
        if result is None:
            self._goes_on(self, answer, None)
        else:
            self.on_done(result, None)

    def set_exception(self, error):
        """End without a response."""
        self._goes_on(self, None, error)


# --- a batch ----------------------------------------------------------------------------------------------------------


def encode_batch(list many not None):
    """Return the body of a batch (320). Args: many: a PreparedMessage for each message. Raises: MessageIllegal."""
    cdef Py_ssize_t size = 0, record_size
    cdef bytes properties, body, out
    cdef uint8_t *at
    cdef PreparedMessage item
    for item in many:
        size += 22 + PyBytes_GET_SIZE(item.body) + PyBytes_GET_SIZE(item.properties)
    out = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t *> PyBytes_AS_STRING(out)
    for item in many:
        body = item.body
        properties = item.properties
        if PyBytes_GET_SIZE(properties) > PROPERTIES_MAX:
            raise MessageIllegal(f"properties: expected at most 32767 bytes, found {PyBytes_GET_SIZE(properties)}")
        record_size = 22 + PyBytes_GET_SIZE(body) + PyBytes_GET_SIZE(properties)
        put32(at, <uint32_t> record_size)
        put32(at + 4, 0)
        put32(at + 8, 0)
        put32(at + 12, <uint32_t> item.flag)
        put32(at + 16, <uint32_t> PyBytes_GET_SIZE(body))
        at += 20
        at += put_bytes(at, body)
        at[0] = PyBytes_GET_SIZE(properties) >> 8
        at[1] = PyBytes_GET_SIZE(properties) & 255
        at += 2
        at += put_bytes(at, properties)
    return out
