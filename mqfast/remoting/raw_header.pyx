"""Headers for services without the GIL: code, opaque, flag and the fields, in place.

Nothing is refused here: False means that ``codec.pyx`` reads the header, which knows every form. Accepted are headers
as the clients write them: each name once, numbers as numbers.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp
from mqfast.remoting.codec cimport Span, Text, number_in, take_binary_pair, take_key, take_pair, take_value

cdef enum:
    BINARY_MIN = 21             # bytes of a binary header without remark and fields
    HAS_CODE = 1
    HAS_OPAQUE = 2
    HAS_FLAG = 4
    HAS_FIELDS = 8


cdef inline bint is_name(const Span *key, const char *name, Py_ssize_t size) noexcept nogil:
    return key.size == size and memcmp(key.at, name, size) == 0


cdef bint take_int(Text *t, int32_t *number) noexcept nogil:
    cdef const uint8_t *begin = t.at
    cdef bint valid = False
    cdef int64_t value
    if not take_value(t, 1):
        return False
    value = number_in(begin, t.at - begin, &valid)
    if not valid or value < -2147483648 or value > 2147483647:
        return False
    number[0] = <int32_t> value
    return True


cdef bint read_json(Text *t, RawHeader *header) noexcept nogil:
    cdef Span key
    cdef const uint8_t *begin
    cdef int seen = 0, name
    cdef int32_t version
    if t.at >= t.end or t.at[0] != c'{':
        return False
    t.at += 1
    while True:
        if not take_key(t, &key):
            return False
        name = 0
        if is_name(&key, b"code", 4):
            name = HAS_CODE
            if not take_int(t, &header.code):
                return False
        elif is_name(&key, b"opaque", 6):
            name = HAS_OPAQUE
            if not take_int(t, &header.opaque):
                return False
        elif is_name(&key, b"flag", 4):
            name = HAS_FLAG
            if not take_int(t, &header.flag):
                return False
        elif is_name(&key, b"extFields", 9):
            name = HAS_FIELDS
            begin = t.at
            if t.at >= t.end or t.at[0] != c'{' or not take_value(t, 1):
                return False
            header.fields.begin = header.fields.at = begin + 1
            header.fields.end = t.at - 1
        elif is_name(&key, b"version", 7):
            if not take_int(t, &version):
                return False
        elif not take_value(t, 1):
            return False
        if seen & name:
            return False
        seen |= name
        if t.at < t.end and t.at[0] == c',':
            t.at += 1
            continue
        return seen == 15 and t.end - t.at == 1 and t.at[0] == c'}'


cdef inline int32_t big32(const uint8_t *at) noexcept nogil:
    return <int32_t> (<unsigned int> at[0] << 24 | <unsigned int> at[1] << 16 | <unsigned int> at[2] << 8 | at[3])


cdef bint read_binary(Text *t, RawHeader *header) noexcept nogil:
    cdef int64_t size
    if t.end - t.at < BINARY_MIN:
        return False
    header.code = <int32_t> t.at[0] << 8 | t.at[1]
    header.opaque = big32(t.at + 5)
    header.flag = big32(t.at + 9)
    if big32(t.at + 13) != 0 or header.code > 32767:        # a remark; a negative code
        return False
    size = big32(t.at + 17)
    t.at += BINARY_MIN
    if size < 0 or size != t.end - t.at:
        return False
    header.fields.begin = header.fields.at = t.at
    header.fields.end = t.end
    return True


cdef bint read_header(const uint8_t *at, Py_ssize_t size, int codec, RawHeader *header) noexcept nogil:
    """Read a header. Returns: False for a header that is left to ``codec.pyx``, valid or not."""
    cdef Text t
    t.begin = t.at = at
    t.end = at + size
    t.expected = NULL
    header.codec = codec
    header.fields.expected = NULL
    return read_json(&t, header) if codec == 0 else read_binary(&t, header)


cdef bint take_field(RawHeader *header, Span *key, Span *value) noexcept nogil:
    """Step over a field. Returns: False at the end; then ``fields.expected`` is set if a field was truncated."""
    if header.codec == 0:
        return take_pair(&header.fields, key, value)
    return take_binary_pair(&header.fields, key, value)
