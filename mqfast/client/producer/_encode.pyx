"""The bytes of a send in one pass: unique ids, the frame of a request from a ready header, the body of a batch.

Room: client. It must never do I/O, and never check a message: that is done in ``encode.py``.
Source: MessageClientIDSetter, SendMessageRequestHeaderV2, MessageDecoder.encodeMessages.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mqfast.errors import MessageIllegal

cdef const char *HEX = b"0123456789ABCDEF"


cdef class UniqueIds:
    """Makes the unique ids (UNIQ_KEY) of one process: upper-case hex, 32 digits for an IPv4 host and 56 for IPv6.

    Args: head: address, process and random bytes of the id. clock: seconds since the epoch. month: from seconds to the
    begin of that month in local time and the begin of the next one, both in ms.
    No id comes twice, whatever the clock does: 65,536 ids have one millisecond, the next one the following millisecond.
    Thread: any.
    """

    cdef bytes _head
    cdef object _clock
    cdef object _month
    cdef int64_t _begin
    cdef int64_t _next_month
    cdef int64_t _now
    cdef uint32_t _count
    cdef uint32_t _first

    def __init__(self, bytes head, clock, month):
        self._head = head.hex().upper().encode()
        self._clock = clock
        self._month = month
        self._now = -1
        self._next_month = -1

    def next(self):
        """One more id."""
        cdef int64_t now = <int64_t> (<double> self._clock() * 1000)
        cdef Py_ssize_t head = PyBytes_GET_SIZE(self._head)
        cdef bytes text
        cdef char *at
        cdef uint64_t tail
        cdef int i
        if now > self._now:
            self._now = now
            self._first = self._count
        elif self._count - self._first >= 65536:
            self._now += 1
            self._first = self._count
        if self._now >= self._next_month:
            self._begin, self._next_month = self._month(self._now / 1000)
        tail = <uint64_t> (<uint32_t> (self._now - self._begin)) << 16 | (self._count & 0xFFFF)
        self._count += 1
        text = PyBytes_FromStringAndSize(NULL, head + 12)
        at = PyBytes_AS_STRING(text)
        memcpy(at, PyBytes_AS_STRING(self._head), head)
        for i in range(12):
            at[head + 11 - i] = HEX[tail & 15]
            tail >>= 4
        return text.decode("ascii")


cdef inline void put32(uint8_t *at, uint32_t v) noexcept nogil:
    at[0] = v >> 24
    at[1] = v >> 16 & 255
    at[2] = v >> 8 & 255
    at[3] = v & 255


cdef Py_ssize_t put_number(uint8_t *to, int64_t value) noexcept nogil:
    """Decimal text. Returns: its length, at most 20."""
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
    """The inside of a JSON string. Returns: its length, at most six times that of the text."""
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


cdef class SendHead:
    """The header of all sends to one queue, whose changing fields are filled in by ``frame``.

    Args: fields: the header's fields that never change, by their letters. code: of the request. version: of this
    client. language: its name.
    """

    cdef readonly dict fields
    cdef readonly int code
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
        """The whole frame of one send. Args: properties: the property string; body: bytes-like."""
        cdef Py_buffer view
        cdef bytes end = self._oneway_end if oneway else self._end
        cdef Py_ssize_t most
        cdef bytes head
        cdef bytes out
        cdef uint8_t *begin
        cdef uint8_t *at
        cdef Py_ssize_t header
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            most = (
                8 + PyBytes_GET_SIZE(self._begin) + 6 * PyBytes_GET_SIZE(properties) + 4 * 20 + 24
                + PyBytes_GET_SIZE(end) + PyBytes_GET_SIZE(self._last)
            )
            head = PyBytes_FromStringAndSize(NULL, most)
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


def encode_batch(list items not None):
    """The body of a batch (320). Args: items: (flag, body, property string) of each message."""
    cdef Py_ssize_t size = 0, i, count = len(items), one
    cdef bytes properties, body, out
    cdef uint8_t *at
    cdef list bodies = []
    for item in items:
        body = item[1] if type(item[1]) is bytes else bytes(item[1])
        bodies.append(body)
        size += 22 + PyBytes_GET_SIZE(body) + PyBytes_GET_SIZE(<bytes> item[2])
    out = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t *> PyBytes_AS_STRING(out)
    for i in range(count):
        item = items[i]
        body = <bytes> bodies[i]
        properties = item[2]
        if PyBytes_GET_SIZE(properties) > 32767:
            raise MessageIllegal(f"properties: expected at most 32767 bytes, found {PyBytes_GET_SIZE(properties)}")
        one = 22 + PyBytes_GET_SIZE(body) + PyBytes_GET_SIZE(properties)
        put32(at, <uint32_t> one)
        put32(at + 4, 0)
        put32(at + 8, 0)
        put32(at + 12, <uint32_t> <int> item[0])
        put32(at + 16, <uint32_t> PyBytes_GET_SIZE(body))
        at += 20
        at += put_bytes(at, body)
        at[0] = PyBytes_GET_SIZE(properties) >> 8
        at[1] = PyBytes_GET_SIZE(properties) & 255
        at += 2
        at += put_bytes(at, properties)
    return out
