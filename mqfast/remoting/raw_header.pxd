# A header read in place, without an object and without the GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.remoting.codec cimport Span, Text

cdef struct RawHeader:
    int32_t code
    int32_t opaque
    int32_t flag
    int codec
    Text fields                 # for take_field


cdef bint read_header(const uint8_t *at, Py_ssize_t size, int codec, RawHeader *header) noexcept nogil
cdef bint take_field(RawHeader *header, Span *key, Span *value) noexcept nogil
