"""Frames of RocketMQ's remoting protocol: bytes -> commands -> bytes. Headers as types: ``headers.pyx``.

    0   4   length of all that follows
    4   1   codec of the header: 0 JSON, 1 ROCKETMQ (binary)
    5   3   length of the header
    8       header, then the body

No I/O and no clock. Invalid bytes of a peer are a FrameError, a field that is missing or of another type is a
FieldError; neither leaves a half-decoded command. Every bound is checked before a read.
Source: NettyDecoder, RemotingCommand, RocketMQSerializable, MessageDecoder.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from mqfast.errors import FieldError, FrameTooLarge, HeaderIllegal

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

JSON = 0
ROCKETMQ = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024  # RocketMQ: com.rocketmq.remoting.frameMaxLength
HEADER_BYTES_MAX = 1024 * 1024
VERSION = 479  # MQVersion.V5_3_3

cdef int RESPONSE = 1
cdef int ONEWAY = 2
cdef int DEPTH_MAX = 32
cdef int64_t I32_MIN = -2147483648
cdef int64_t I32_MAX = 2147483647

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)
cdef tuple _LANGUAGES = LANGUAGES
cdef dict _LANGUAGE_CODES = {name.encode(): code for code, name in enumerate(LANGUAGES)}
cdef int OTHER = 7


# --- the command ------------------------------------------------------------------------------------------------------


cdef class RemotingCommand:
    """A frame: a request or a response.

    Args:
        code: request code, or response code.
        ext_fields: the header's fields, by RocketMQ's names; numbers and booleans become text on the wire, None is left
            out.
        body: bytes, or a list of buffers that are sent in order.
        serialize: the codec of the header, JSON or ROCKETMQ.
    Attributes: ``received_s``: time of receipt of a request, by the clock of the server, where latencies are counted;
        else 0. ``was_held``: the request was held for long polling (RocketMQ: isSuspended).
    Thread: one at a time.
    """

    def __init__(
        self,
        int code,
        dict ext_fields=None,
        body=b"",
        *,
        int opaque=0,
        int flag=0,
        str remark=None,
        int language=0,
        int version=VERSION,
        int serialize=0,
    ):
        if serialize not in (JSON, ROCKETMQ):
            raise ValueError(f"serialize is 0 (JSON) or 1 (ROCKETMQ), not {serialize}")
        if not 0 <= language < len(_LANGUAGES):
            raise ValueError(f"language is 0 to {len(_LANGUAGES) - 1}, not {language}")
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.serialize = serialize
        self.remark = remark
        self.body = body
        self._fields = {} if ext_fields is None else ext_fields
        self._has_fields = ext_fields is not None

    @property
    def is_response(self):
        """Return whether this is the response to a request."""
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self):
        """Return whether the sender of this request wants no response."""
        return self.flag & ONEWAY != 0

    @property
    def ext_fields(self):
        """Return the header's fields by RocketMQ's names, all as text. A received command decodes them at first use."""
        if self._fields is None:
            self._fields = _all_pairs(self)
        return self._fields

    def response(self, int code=0, dict ext_fields=None, body=b"", *, str remark=None):
        """Return the response to this request, in the codec of its sender."""
        cdef RemotingCommand answer = RemotingCommand.__new__(RemotingCommand)
        answer.code = code
        answer.opaque = self.opaque
        answer.flag = RESPONSE
        answer.language = 0
        answer.version = VERSION
        answer.serialize = self.serialize
        answer.remark = remark
        answer.body = body
        answer._fields = {} if ext_fields is None else ext_fields
        answer._has_fields = ext_fields is not None
        return answer

    def _state(self):
        body = self.body if isinstance(self.body, bytes) else b"".join(self.body)
        return self.code, self.ext_fields, body, self.opaque, self.flag, self.remark, self.language, self.version, \
            self.serialize

    def __eq__(self, other):
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return self._state() == (<RemotingCommand> other)._state()

    __hash__ = None

    def __reduce__(self):
        return _rebuilt, self._state()

    def __repr__(self):
        kind = "response" if self.is_response else "one-way request" if self.is_oneway else "request"
        remark = "" if self.remark is None else f", remark {self.remark[:200]!r}"
        size = len(self.body) if isinstance(self.body, bytes) else sum(map(len, self.body))
        return f"<{kind} {self.code}, opaque {self.opaque}, fields {self.ext_fields}{remark}, {size} bytes>"


def _rebuilt(code, ext_fields, body, opaque, flag, remark, language, version, serialize):
    return RemotingCommand(
        code, ext_fields, body, opaque=opaque, flag=flag, remark=remark, language=language, version=version,
        serialize=serialize,
    )


# --- text of a header -------------------------------------------------------------------------------------------------


cdef inline bint wanted(Text *t, const char *what) noexcept nogil:
    t.expected = what
    return False


cdef inline void skip_blanks(Text *t) noexcept nogil:
    while t.at < t.end and (t.at[0] == c' ' or t.at[0] == c'\t' or t.at[0] == c'\n' or t.at[0] == c'\r'):
        t.at += 1


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    if c'A' <= c <= c'F':
        return c - c'A' + 10
    return -1


cdef bint take_string(Text *t, Span *text) noexcept nogil:
    """Step over a string; ``text`` is set to the text between the quotes."""
    cdef const uint8_t *at = t.at
    cdef int i
    if at >= t.end or at[0] != c'"':
        return wanted(t, b"a string")
    at += 1
    text.at = at
    text.escaped = False
    while at < t.end:
        if at[0] == c'"':
            text.size = at - text.at
            t.at = at + 1
            return True
        if at[0] != c'\\':
            at += 1
            continue
        text.escaped = True
        t.at = at
        at += 1
        if at >= t.end:
            break
        if at[0] == c'u':
            if t.end - at < 5:
                break
            for i in range(1, 5):
                if hex_digit(at[i]) < 0:
                    return wanted(t, b"four hex digits behind \\u")
            at += 5
        elif memchr(<const char *> b'"\\/bfnrt', at[0], 8) != NULL:
            at += 1
        else:
            return wanted(t, b"an escape of JSON")
    t.at = t.end
    return wanted(t, b"the end of a string")


cdef inline bint take_word(Text *t, const char *word, Py_ssize_t size) noexcept nogil:
    if t.end - t.at < size or memcmp(t.at, word, size) != 0:
        return wanted(t, b"a JSON value")
    t.at += size
    return True


cdef bint take_number(Text *t) noexcept nogil:
    cdef const uint8_t *begin = t.at
    if t.at < t.end and t.at[0] == c'-':
        t.at += 1
    if t.at >= t.end or not c'0' <= t.at[0] <= c'9':
        return wanted(t, b"a JSON value")
    while t.at < t.end and (
        c'0' <= t.at[0] <= c'9' or t.at[0] == c'.' or t.at[0] == c'e' or t.at[0] == c'E' or t.at[0] == c'+'
        or t.at[0] == c'-'
    ):
        t.at += 1
    return t.at > begin


cdef bint take_value(Text *t, int depth) noexcept nogil:
    """Step over any JSON value, at most DEPTH_MAX deep."""
    cdef Span ignored
    cdef uint8_t close
    if t.at >= t.end:
        return wanted(t, b"a JSON value")
    if t.at[0] == c'"':
        return take_string(t, &ignored)
    if t.at[0] == c't':
        return take_word(t, b"true", 4)
    if t.at[0] == c'f':
        return take_word(t, b"false", 5)
    if t.at[0] == c'n':
        return take_word(t, b"null", 4)
    if t.at[0] != c'{' and t.at[0] != c'[':
        return take_number(t)
    if depth >= DEPTH_MAX:
        return wanted(t, b"JSON at most 32 deep")
    close = c'}' if t.at[0] == c'{' else c']'
    t.at += 1
    skip_blanks(t)
    if t.at < t.end and t.at[0] == close:
        t.at += 1
        return True
    while True:
        if close == c'}':
            if not take_key(t, &ignored):
                return False
        else:
            skip_blanks(t)
        if not take_value(t, depth + 1):
            return False
        skip_blanks(t)
        if t.at < t.end and t.at[0] == close:
            t.at += 1
            return True
        if t.at >= t.end or t.at[0] != c',':
            return wanted(t, b"a comma or the end of an object or array")
        t.at += 1


cdef bint take_key(Text *t, Span *key) noexcept nogil:
    """Step over blanks, a name, blanks, the colon and blanks."""
    skip_blanks(t)
    if not take_string(t, key):
        return False
    skip_blanks(t)
    if t.at >= t.end or t.at[0] != c':':
        return wanted(t, b"a colon")
    t.at += 1
    skip_blanks(t)
    return True


cdef bint take_pair(Text *t, Span *key, Span *value) noexcept nogil:
    """Step over one field of ``extFields``, which was checked when the frame came in. Returns: False at the end.

    A string's value is its text; that of a number, a boolean or a nested value its JSON; null has no address.
    """
    cdef Span nested
    skip_blanks(t)
    if t.at < t.end and t.at[0] == c',':
        t.at += 1
    skip_blanks(t)
    if t.at >= t.end or t.at[0] == c'}' or not take_key(t, key):
        return False
    if t.at < t.end and t.at[0] == c'"':
        return take_string(t, value)
    value.at = t.at
    value.escaped = False
    if not take_value(t, 1):
        return False
    value.size = t.at - value.at
    if value.size == 4 and memcmp(value.at, b"null", 4) == 0:
        value.at = NULL
        value.size = 0
    return True


cdef inline uint32_t big32(const uint8_t *at) noexcept nogil:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline int big16(const uint8_t *at) noexcept nogil:
    cdef int value = at[0] << 8 | at[1]
    return value - 65536 if value > 32767 else value  # a Java short


cdef bint take_binary_pair(Text *t, Span *key, Span *value) noexcept nogil:
    """Step over one field of the binary codec. Returns: False at the end, or with ``expected`` set for a truncated
    field.
    """
    cdef int64_t size
    if t.at >= t.end:
        return False
    if t.end - t.at < 2:
        return wanted(t, b"the length of a name")
    size = big16(t.at)
    if size < 0 or size > t.end - t.at - 2:
        return wanted(t, b"the length of a name within the fields")
    key.at = t.at + 2
    key.size = size
    key.escaped = False
    t.at += 2 + size
    if t.end - t.at < 4:
        return wanted(t, b"the length of a value")
    size = <int32_t> big32(t.at)
    if size < 0 or size > t.end - t.at - 4:
        return wanted(t, b"the length of a value within the fields")
    value.at = t.at + 4
    value.size = size
    value.escaped = False
    t.at += 4 + size
    if size == 0:
        value.at = NULL  # Java decodes an empty value to null
    return True


cdef int64_t number_in(const uint8_t *at, Py_ssize_t size, bint *valid) noexcept nogil:
    """Parse as Java's Long.parseLong."""
    cdef bint minus = False
    cdef uint64_t value = 0
    cdef uint64_t limit = 9223372036854775807
    valid[0] = False
    if size and (at[0] == c'-' or at[0] == c'+'):
        minus = at[0] == c'-'
        at += 1
        size -= 1
    if size < 1 or size > 19:  # 19 digits fit into 64 bits without a sign
        return 0
    while size:
        if not c'0' <= at[0] <= c'9':
            return 0
        value = value * 10 + (at[0] - c'0')
        at += 1
        size -= 1
    if value > limit + minus:
        return 0
    valid[0] = True
    return <int64_t> (0 - value) if minus else <int64_t> value


cdef Py_ssize_t unescape(const uint8_t *at, Py_ssize_t size, uint8_t *to) noexcept nogil:
    """Write the UTF-8 of a JSON string's inside; a lone surrogate becomes a question mark, as in Java.

    Returns: its length, at most ``size``: an escape is never shorter than its character.
    """
    cdef uint8_t *begin = to
    cdef const uint8_t *end = at + size
    cdef uint32_t c
    cdef uint32_t low
    cdef uint8_t kind
    while at < end:
        if at[0] != c'\\':
            to[0] = at[0]
            to += 1
            at += 1
            continue
        kind = at[1]
        at += 2
        if kind != c'u':
            if kind == c'b':
                kind = 8
            elif kind == c'f':
                kind = 12
            elif kind == c'n':
                kind = 10
            elif kind == c'r':
                kind = 13
            elif kind == c't':
                kind = 9
            to[0] = kind
            to += 1
            continue
        c = hex_digit(at[0]) << 12 | hex_digit(at[1]) << 8 | hex_digit(at[2]) << 4 | hex_digit(at[3])
        at += 4
        if 0xD800 <= c <= 0xDBFF and end - at >= 6 and at[0] == c'\\' and at[1] == c'u':
            low = hex_digit(at[2]) << 12 | hex_digit(at[3]) << 8 | hex_digit(at[4]) << 4 | hex_digit(at[5])
            if 0xDC00 <= low <= 0xDFFF:
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00)
                at += 6
        if 0xD800 <= c <= 0xDFFF:
            c = c'?'
        if c < 0x80:
            to[0] = c
            to += 1
        elif c < 0x800:
            to[0] = 0xC0 | c >> 6
            to[1] = 0x80 | (c & 0x3F)
            to += 2
        elif c < 0x10000:
            to[0] = 0xE0 | c >> 12
            to[1] = 0x80 | (c >> 6 & 0x3F)
            to[2] = 0x80 | (c & 0x3F)
            to += 3
        else:
            to[0] = 0xF0 | c >> 18
            to[1] = 0x80 | (c >> 12 & 0x3F)
            to[2] = 0x80 | (c >> 6 & 0x3F)
            to[3] = 0x80 | (c & 0x3F)
            to += 4
    return to - begin


cdef bytes unescaped(const uint8_t *at, Py_ssize_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    return out[:unescape(at, size, <uint8_t *> PyBytes_AS_STRING(out))]


cdef bytes bytes_of(Span *span):
    if span.escaped:
        return unescaped(span.at, span.size)
    return PyBytes_FromStringAndSize(<const char *> span.at, span.size)


cdef str text_of(Span *span):
    cdef bytes raw
    if span.escaped:
        raw = unescaped(span.at, span.size)
        return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), "replace")
    return PyUnicode_DecodeUTF8(<const char *> span.at, span.size, "replace")


# --- frame -> command -------------------------------------------------------------------------------------------------


cdef object illegal(Text *t):
    found = bytes(t.at[: min(t.end - t.at, 20)])
    return HeaderIllegal(
        f"header, offset {t.at - t.begin}: expected {t.expected.decode()}, found {found!r}"
        if found
        else f"header, offset {t.at - t.begin}: expected {t.expected.decode()}, found its end"
    )


cdef int take_int32(Text *t, int *out) except -1:
    """Read an int32 as a JSON number or as text."""
    cdef Span span
    cdef bint valid = False
    cdef int64_t value = 0
    cdef const uint8_t *at = t.at
    if t.at < t.end and t.at[0] == c'"':
        if not take_string(t, &span):
            raise illegal(t)
    else:
        span.at = t.at
        if not take_value(t, 1):
            raise illegal(t)
        span.size = t.at - span.at
        if span.size == 4 and memcmp(span.at, b"null", 4) == 0:
            return 0
    value = number_in(span.at, span.size, &valid)
    if not valid or not I32_MIN <= value <= I32_MAX:
        t.at = at
        t.expected = b"a whole number of 32 bits"
        raise illegal(t)
    out[0] = <int> value
    return 0


cdef inline bint is_name(Span *key, const char *name, Py_ssize_t size) noexcept nogil:
    return key.size == size and memcmp(key.at, name, size) == 0


cdef int decode_json(RemotingCommand command) except -1:
    cdef bytes header = command._header
    cdef Text t
    cdef Span key
    cdef Span value
    t.begin = <const uint8_t *> PyBytes_AS_STRING(header)
    t.at = t.begin
    t.end = t.begin + PyBytes_GET_SIZE(header)
    t.expected = NULL
    skip_blanks(&t)
    if t.at >= t.end or t.at[0] != c'{':
        t.expected = b"a JSON object"
        raise illegal(&t)
    t.at += 1
    skip_blanks(&t)
    if t.at < t.end and t.at[0] == c'}':
        t.at += 1
    else:
        while True:
            if not take_key(&t, &key):
                raise illegal(&t)
            if is_name(&key, b"code", 4):
                take_int32(&t, &command.code)
            elif is_name(&key, b"extFields", 9):
                take_fields(&t, command)
            elif is_name(&key, b"flag", 4):
                take_int32(&t, &command.flag)
            elif is_name(&key, b"opaque", 6):
                take_int32(&t, &command.opaque)
            elif is_name(&key, b"version", 7):
                take_int32(&t, &command.version)
            elif is_name(&key, b"language", 8) and t.at < t.end and t.at[0] == c'"':
                if not take_string(&t, &value):
                    raise illegal(&t)
                command.language = 0 if is_name(&value, b"JAVA", 4) else _LANGUAGE_CODES.get(bytes_of(&value), OTHER)
            elif is_name(&key, b"remark", 6) and t.at < t.end and t.at[0] == c'"':
                if not take_string(&t, &value):
                    raise illegal(&t)
                command.remark = text_of(&value)
            elif not take_value(&t, 1):
                raise illegal(&t)
            skip_blanks(&t)
            if t.at < t.end and t.at[0] == c',':
                t.at += 1
                continue
            if t.at < t.end and t.at[0] == c'}':
                t.at += 1
                break
            t.expected = b"a comma or the end of the object"
            raise illegal(&t)
    skip_blanks(&t)
    if t.at != t.end:
        t.expected = b"the end of the header"
        raise illegal(&t)
    return 0


cdef int take_fields(Text *t, RemotingCommand command) except -1:
    """Store the position of the fields; they are decoded at the first use."""
    cdef const uint8_t *at = t.at
    if not take_value(t, 1):
        raise illegal(t)
    if at[0] == c'{':
        command._from = at + 1 - t.begin
        command._to = t.at - 1 - t.begin
        command._fields = None
        command._has_fields = True
    elif at[0] == c'n':
        command._fields = {}
    else:
        t.at = at
        t.expected = b"an object of fields"
        raise illegal(t)
    return 0


cdef int decode_binary(RemotingCommand command) except -1:
    """Decode code 2, language 1, version 2, opaque 4, flag 4, remark 4 + n, fields 4 + n."""
    cdef bytes header = command._header
    cdef Text t
    cdef Span key
    cdef Span value
    cdef int64_t size
    t.begin = <const uint8_t *> PyBytes_AS_STRING(header)
    t.at = t.begin
    t.end = t.begin + PyBytes_GET_SIZE(header)
    t.expected = NULL
    if t.end - t.at < 21:
        t.expected = b"at least 21 bytes"
        raise illegal(&t)
    command.code = big16(t.at)
    command.language = t.at[2] if t.at[2] < len(_LANGUAGES) else OTHER
    command.version = big16(t.at + 3)
    command.opaque = <int32_t> big32(t.at + 5)
    command.flag = <int32_t> big32(t.at + 9)
    size = <int32_t> big32(t.at + 13)
    t.at += 13
    if size < 0 or size > t.end - t.at - 8:
        t.expected = b"the length of a remark within the header"
        raise illegal(&t)
    if size:
        command.remark = PyUnicode_DecodeUTF8(<const char *> t.at + 4, size, "replace")
    t.at += 4 + size
    size = <int32_t> big32(t.at)
    if size < 0 or size > t.end - t.at - 4:
        t.expected = b"the length of the fields within the header"
        raise illegal(&t)
    t.at += 4
    if size:
        command._from = t.at - t.begin
        command._to = command._from + size
        command._fields = None
        command._has_fields = True
        t.end = t.at + size
        while take_binary_pair(&t, &key, &value):
            pass
        if t.expected != NULL:
            raise illegal(&t)
    return 0


cdef RemotingCommand decoded(int serialize, bytes header):
    cdef RemotingCommand command = RemotingCommand.__new__(RemotingCommand)
    command.serialize = serialize
    command.body = b""
    command._fields = {}
    command._header = header
    if serialize == 0:
        decode_json(command)
    else:
        decode_binary(command)
    if command._fields is not None:
        command._header = None
    return command


cdef Text fields_of(RemotingCommand command):
    cdef Text t
    t.begin = <const uint8_t *> PyBytes_AS_STRING(command._header) + command._from
    t.at = t.begin
    t.end = <const uint8_t *> PyBytes_AS_STRING(command._header) + command._to
    t.expected = NULL
    return t


cdef dict _all_pairs(RemotingCommand command):
    cdef Text t = fields_of(command)
    cdef Span key
    cdef Span value
    cdef dict fields = {}
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if value.at != NULL:
            fields[text_of(&key)] = text_of(&value)
        elif command.serialize == 0:
            fields.pop(text_of(&key), None)
    return fields


cdef enum:
    SORTED_MAX = 32


cdef int sorted_pairs(RemotingCommand command, Span *keys, Span *values) except -2:
    """Find the fields of a received header in the order of their names.

    Returns: their number; -1 if the general way must read the header: more fields than there is space for, a repeated
    name, or a name that is escaped or not ASCII.
    """
    cdef Text t = fields_of(command)
    cdef Span key
    cdef Span value
    cdef int count = 0, at, order
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        if count == SORTED_MAX or key.escaped or not is_ascii(&key):
            return -1
        at = count
        while at:
            order = memcmp(keys[at - 1].at, key.at, min(keys[at - 1].size, key.size))
            if order == 0:
                if keys[at - 1].size == key.size:
                    return -1
                order = 1 if keys[at - 1].size > key.size else -1
            if order < 0:
                break
            keys[at] = keys[at - 1]
            values[at] = values[at - 1]
            at -= 1
        keys[at] = key
        values[at] = value
        count += 1
    return count


cdef inline bint is_ascii(const Span *span) noexcept nogil:
    cdef uint8_t bits = 0
    cdef Py_ssize_t i
    for i in range(span.size):
        bits |= span.at[i]
    return bits < 0x80


def repeated_name(RemotingCommand command not None):
    """Return the name of a repeated field of a received header: readers may differ in the choice of the value.

    Returns: None where each name occurs once, and for a command that was created here.
    """
    cdef Span key
    cdef Span value
    cdef set seen = set()
    cdef Text t
    if command._header is None or not command._has_fields or signed_parts(command) is not None:
        return None
    t = fields_of(command)
    while take_pair(&t, &key, &value) if command.serialize == 0 else take_binary_pair(&t, &key, &value):
        name = text_of(&key)
        if name in seen:
            return name
        seen.add(name)
    return None


cpdef tuple signed_parts(RemotingCommand command):
    """Return access key, signature and signed values of a received header, read once and without a dict.

    The values are those of all fields but the signature, in the order of the names, joined.

    Returns: None for a command that was created here, and for a header that is left to readers of ``ext_fields``: see
    ``sorted_pairs``; a value that is not ASCII; a field that clients sign or not.
    """
    cdef Span keys[SORTED_MAX]
    cdef Span values[SORTED_MAX]
    cdef int count, i
    cdef Py_ssize_t size = 0
    cdef bytes joined
    cdef str access_key = None
    cdef str signature = None
    cdef uint8_t *to
    if command is None:
        raise TypeError("expected a command, found None")
    if command._fields is not None or command._signed is not None:
        return command._signed
    count = sorted_pairs(command, keys, values)
    for i in range(count):
        if values[i].at == NULL:
            values[i].size = 0
            continue
        if not is_ascii(&values[i]) or is_name(&keys[i], b"_UNIQUE_KEY_QUERY", 17):
            return None
        if is_name(&keys[i], b"Signature", 9):
            signature = text_of(&values[i])
            values[i].size = 0
        elif is_name(&keys[i], b"AccessKey", 9):
            access_key = text_of(&values[i])
        size += values[i].size
    if count < 0:
        return None
    joined = PyBytes_FromStringAndSize(NULL, size)
    to = <uint8_t *> PyBytes_AS_STRING(joined)
    size = 0
    for i in range(count):
        if values[i].size and values[i].escaped:
            size += unescape(values[i].at, values[i].size, to + size)
        elif values[i].size:
            memcpy(to + size, values[i].at, values[i].size)
            size += values[i].size
    command._signed = access_key, signature, joined[:size]
    return command._signed


cdef class FrameDecoder:
    """Decodes a stream of bytes, in pieces of any size, into commands; each byte is copied once.

    Args: frame_bytes_max: longest frame with its length word. header_bytes_max: longest header.
    Attributes:
        error: the FrameError at which the stream became unreadable, or None. Later bytes are not decoded.
        buffered: bytes of the incomplete frame.
    """

    cdef readonly object error
    cdef Py_ssize_t _frame_max
    cdef Py_ssize_t _header_max
    cdef uint8_t _prefix[8]
    cdef int _prefix_have
    cdef bytes _header
    cdef Py_ssize_t _header_have
    cdef RemotingCommand _command
    cdef bytes _body
    cdef Py_ssize_t _body_have

    def __init__(self, Py_ssize_t frame_bytes_max=FRAME_BYTES_MAX, Py_ssize_t header_bytes_max=HEADER_BYTES_MAX):
        self._frame_max = frame_bytes_max
        self._header_max = header_bytes_max

    @property
    def buffered(self):
        return self._prefix_have + self._header_have + self._body_have

    def feed(self, data):
        """Add the next bytes. Returns: the completed commands, in order; check ``error`` afterwards."""
        cdef list commands = []
        cdef Py_buffer view
        if self.error is not None:
            return commands
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self._take(<const uint8_t *> view.buf, view.len, commands)
        except (FrameTooLarge, HeaderIllegal) as error:
            self.error = error
            self._command = None
            self._header = self._body = None
            self._prefix_have = self._header_have = self._body_have = 0
        finally:
            PyBuffer_Release(&view)
        return commands

    cdef int _take(self, const uint8_t *at, Py_ssize_t remaining, list commands) except -1:
        cdef Py_ssize_t take
        cdef uint32_t total
        cdef Py_ssize_t header_size
        while True:
            if self._header is None:
                take = min(<Py_ssize_t> (8 - self._prefix_have), remaining)
                memcpy(self._prefix + self._prefix_have, at, take)
                self._prefix_have += take
                at += take
                remaining -= take
                if self._prefix_have >= 4:
                    total = big32(self._prefix)
                    if total < 4 or total > 0x7FFFFFFF:
                        raise HeaderIllegal(
                            f"frame: expected a length of at least 4, found {<int32_t> total} "
                            f"(bytes {bytes(self._prefix[:4])!r})"
                        )
                    if <Py_ssize_t> total + 4 > self._frame_max:
                        raise FrameTooLarge(
                            f"frame: expected at most {self._frame_max} bytes, found {<Py_ssize_t> total + 4} "
                            f"(bytes {bytes(self._prefix[:4])!r})"
                        )
                if self._prefix_have < 8:
                    return 0
                if self._prefix[4] > 1:
                    raise HeaderIllegal(f"frame: expected codec 0 (JSON) or 1 (ROCKETMQ), found {self._prefix[4]}")
                header_size = big32(self._prefix + 4) & 0xFFFFFF
                if header_size > <Py_ssize_t> total - 4:
                    raise HeaderIllegal(
                        f"frame: expected a header of at most {total - 4} bytes, found {header_size}"
                    )
                if header_size > self._header_max:
                    raise FrameTooLarge(
                        f"header: expected at most {self._header_max} bytes, found {header_size}"
                    )
                self._header = PyBytes_FromStringAndSize(NULL, header_size)
                self._body = None
            if self._command is None:
                header_size = PyBytes_GET_SIZE(self._header)
                take = min(header_size - self._header_have, remaining)
                memcpy(PyBytes_AS_STRING(self._header) + self._header_have, at, take)
                self._header_have += take
                at += take
                remaining -= take
                if self._header_have < header_size:
                    return 0
                self._command = decoded(self._prefix[4], self._header)
                total = big32(self._prefix) - 4 - <uint32_t> header_size
                self._body = PyBytes_FromStringAndSize(NULL, total) if total else b""
            take = min(PyBytes_GET_SIZE(self._body) - self._body_have, remaining)
            if take:
                memcpy(PyBytes_AS_STRING(self._body) + self._body_have, at, take)
                self._body_have += take
                at += take
                remaining -= take
            if self._body_have < PyBytes_GET_SIZE(self._body):
                return 0
            self._command.body = self._body
            commands.append(self._command)
            self._command = None
            self._header = self._body = None
            self._prefix_have = 0
            self._header_have = self._body_have = 0
            if remaining == 0:
                return 0


# --- command -> frame -------------------------------------------------------------------------------------------------


cdef struct Out:
    uint8_t *at
    Py_ssize_t size
    Py_ssize_t room
    uint8_t *heap
    uint8_t first[1024]


cdef int reserve(Out *out, Py_ssize_t more) except -1:
    cdef uint8_t *larger
    cdef Py_ssize_t room
    if out.size + more <= out.room:
        return 0
    room = (out.size + more) * 2
    larger = <uint8_t *> PyMem_Realloc(out.heap, room)
    if larger == NULL:
        raise MemoryError()
    if out.heap == NULL:
        memcpy(larger, out.first, out.size)
    out.heap = out.at = larger
    out.room = room
    return 0


cdef inline int put(Out *out, const void *at, Py_ssize_t size) except -1:
    reserve(out, size)
    memcpy(out.at + out.size, at, size)
    out.size += size
    return 0


cdef int put_number(Out *out, int64_t value) except -1:
    cdef uint8_t digits[20]
    cdef int i = 20
    cdef bint minus = value < 0
    while True:
        i -= 1
        digits[i] = c'0' + <int> (-(value % 10) if minus else value % 10)
        value = value // 10
        if value == 0:
            break
    if minus:
        put(out, b"-", 1)
    return put(out, digits + i, 20 - i)


cdef int put_big32(Out *out, uint32_t value) except -1:
    cdef uint8_t raw[4]
    raw[0] = value >> 24
    raw[1] = value >> 16 & 0xFF
    raw[2] = value >> 8 & 0xFF
    raw[3] = value & 0xFF
    return put(out, raw, 4)


cdef int put_big16(Out *out, int value) except -1:
    cdef uint8_t raw[2]
    raw[0] = value >> 8 & 0xFF
    raw[1] = value & 0xFF
    return put(out, raw, 2)


cdef int put_quoted(Out *out, const char *text, Py_ssize_t size) except -1:
    """Write a JSON string, with fastjson's choice of escapes."""
    cdef uint8_t c
    cdef uint8_t *to
    cdef Py_ssize_t i
    reserve(out, 6 * size + 2)
    to = out.at + out.size
    to[0] = c'"'
    to += 1
    for i in range(size):
        c = text[i]
        if c >= 0x20 and c != c'"' and c != c'\\':
            to[0] = c
            to += 1
            continue
        to[0] = c'\\'
        if c == c'"' or c == c'\\':
            to[1] = c
        elif c == 8:
            to[1] = c'b'
        elif c == 9:
            to[1] = c't'
        elif c == 10:
            to[1] = c'n'
        elif c == 12:
            to[1] = c'f'
        elif c == 13:
            to[1] = c'r'
        else:
            to[1] = c'u'
            to[2] = to[3] = c'0'
            to[4] = c'0' + (c >> 4)
            to[5] = (b"0123456789ABCDEF")[c & 15]
            to += 4
        to += 2
    to[0] = c'"'
    out.size = to + 1 - out.at
    return 0


cdef object as_text(value):
    """Return the text of Java's toString."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


cdef object utf8(str text):
    """Return the UTF-8 of a text; a lone surrogate becomes a question mark, as in Java."""
    return text.encode("utf-8", "replace").decode("utf-8")


cdef const char *utf8_of(list keep, value, Py_ssize_t *size) except NULL:
    text = value if type(value) is str else as_text(value)
    try:
        keep[0] = text
        return PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError:
        keep[0] = utf8(text)
        return PyUnicode_AsUTF8AndSize(keep[0], size)


cdef int put_json(Out *out, RemotingCommand command) except -1:
    cdef Py_ssize_t size = 0
    cdef const char *text
    cdef list keep = [None]
    cdef bint first = True
    put(out, b'{"code":', 8)
    put_number(out, command.code)
    if command._has_fields:
        fields = command.ext_fields
        put(out, b',"extFields":{', 14)
        for name, value in (<dict> fields).items():
            if value is None:
                continue
            if not first:
                put(out, b",", 1)
            first = False
            text = utf8_of(keep, name, &size)
            put_quoted(out, text, size)
            put(out, b":", 1)
            text = utf8_of(keep, value, &size)
            put_quoted(out, text, size)
        put(out, b"}", 1)
    put(out, b',"flag":', 8)
    put_number(out, command.flag)
    put(out, b',"language":"', 13)
    text = utf8_of(keep, _LANGUAGES[command.language], &size)
    put(out, text, size)
    put(out, b'","opaque":', 11)
    put_number(out, command.opaque)
    if command.remark is not None:
        put(out, b',"remark":', 10)
        text = utf8_of(keep, command.remark, &size)
        put_quoted(out, text, size)
    put(out, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    put_number(out, command.version)
    put(out, b"}", 1)
    return 0


cdef int put_binary(Out *out, RemotingCommand command) except -1:
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t at
    cdef uint32_t total
    cdef const char *text
    cdef list keep = [None]
    cdef uint8_t language = command.language
    if not -32768 <= command.code <= 32767 or not -32768 <= command.version <= 32767:
        raise FieldError("code", "a number of 16 bits in the ROCKETMQ codec", str(command.code))
    put_big16(out, command.code)
    put(out, &language, 1)
    put_big16(out, command.version)
    put_big32(out, command.opaque)
    put_big32(out, command.flag)
    if command.remark is None:
        put_big32(out, 0)
    else:
        text = utf8_of(keep, command.remark, &size)
        put_big32(out, <uint32_t> size)
        put(out, text, size)
    at = out.size
    put_big32(out, 0)
    for name, value in (<dict> command.ext_fields).items():
        if value is None:
            continue
        text = utf8_of(keep, name, &size)
        if size > 32767:
            raise FieldError(name[:40], "a name of at most 32,767 bytes", f"{size} bytes")
        put_big16(out, <int> size)
        put(out, text, size)
        text = utf8_of(keep, value, &size)
        put_big32(out, <uint32_t> size)
        put(out, text, size)
    total = <uint32_t> (out.size - at - 4)
    out.at[at] = total >> 24
    out.at[at + 1] = total >> 16 & 0xFF
    out.at[at + 2] = total >> 8 & 0xFF
    out.at[at + 3] = total & 0xFF
    return 0


def encode(RemotingCommand command not None, bint with_body=True):
    """Return the frame of a command.

    Args: with_body: False leaves the body to the caller, to be sent after these bytes.
    Raises: FieldError for a value that the codec cannot encode; FrameTooLarge for a frame beyond 31 bits or a header
        beyond 24.
    """
    cdef Out out
    cdef Py_ssize_t body_size
    cdef Py_ssize_t header_size
    cdef Py_ssize_t total
    body = command.body
    if type(body) is bytes:
        body_size = PyBytes_GET_SIZE(<bytes> body)
    else:
        body_size = sum([memoryview(part).nbytes for part in body])
    out.at = out.first
    out.heap = NULL
    out.size = 8
    out.room = 1024
    try:
        if command.serialize == 0:
            put_json(&out, command)
        else:
            put_binary(&out, command)
        header_size = out.size - 8
        total = 4 + header_size + body_size
        if header_size > 0xFFFFFF or total > 0x7FFFFFFF:
            raise FrameTooLarge(f"frame: expected a header below 16 MiB and a frame below 2 GiB, found {header_size} "
                                f"and {total} bytes")
        out.at[0] = total >> 24 & 0xFF
        out.at[1] = total >> 16 & 0xFF
        out.at[2] = total >> 8 & 0xFF
        out.at[3] = total & 0xFF
        out.at[4] = command.serialize
        out.at[5] = header_size >> 16 & 0xFF
        out.at[6] = header_size >> 8 & 0xFF
        out.at[7] = header_size & 0xFF
        if with_body and body_size and type(body) is bytes:
            put(&out, PyBytes_AS_STRING(<bytes> body), body_size)
            body_size = 0
        head = PyBytes_FromStringAndSize(<char *> out.at, out.size)
    finally:
        PyMem_Free(out.heap)
    return b"".join([head, *body]) if with_body and body_size else head
