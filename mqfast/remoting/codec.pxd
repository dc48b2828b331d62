"""Declarations of codec.pyx for headers.pyx and raw_header.pyx: a command's undecoded fields."""

from libc.stdint cimport int64_t, uint8_t


cdef class RemotingCommand:
    cdef readonly int code
    cdef public int opaque
    cdef readonly int flag
    cdef readonly int language
    cdef readonly int version
    cdef readonly int serialize
    cdef readonly object remark
    cdef readonly object body
    cdef public double received_s
    cdef public bint was_held
    cdef dict _fields  # None while undecoded in _header
    cdef bint _has_fields  # "extFields" is on the wire, be it empty
    cdef bytes _header
    cdef Py_ssize_t _from
    cdef Py_ssize_t _to
    cdef tuple _signed  # what signed_parts has read from _header
    cdef object _send_header  # what headers.pyx has read from _header


cdef struct Text:
    const uint8_t *begin
    const uint8_t *at
    const uint8_t *end
    const char *expected  # the expected text where decoding failed; NULL before


cdef struct Span:
    const uint8_t *at
    Py_ssize_t size
    bint escaped


cdef bint take_key(Text *t, Span *key) noexcept nogil
cdef bint take_value(Text *t, int depth) noexcept nogil
cdef Py_ssize_t unescape(const uint8_t *at, Py_ssize_t size, uint8_t *to) noexcept nogil
cdef bint take_pair(Text *t, Span *key, Span *value) noexcept nogil
cdef bint take_binary_pair(Text *t, Span *key, Span *value) noexcept nogil
cdef int64_t number_in(const uint8_t *at, Py_ssize_t size, bint *valid) noexcept nogil
cdef bytes bytes_of(Span *span)
cdef str text_of(Span *span)
cdef Text fields_of(RemotingCommand command)
