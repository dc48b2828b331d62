# Pieces of the headers of answers, written without the GIL. Each function returns the end of the piece.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy


cdef inline uint8_t *put_text(uint8_t *to, const char *text, Py_ssize_t n) noexcept nogil:
    memcpy(to, text, n)
    return to + n


cdef inline uint8_t *put_digits(uint8_t *to, int64_t value) noexcept nogil:
    """Write a number; the lowest one is never written here."""
    cdef uint8_t digits[20]
    cdef int i = 20
    if value < 0:
        to[0] = c'-'
        to += 1
        value = -value
    while True:
        i -= 1
        digits[i] = <uint8_t> (c'0' + value % 10)
        value //= 10
        if value == 0:
            break
    memcpy(to, digits + i, 20 - i)
    return to + 20 - i


cdef inline uint8_t *put_big(uint8_t *to, uint32_t value, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        to[i] = <uint8_t> (value >> 8 * (n - 1 - i))
    return to + n


cdef inline uint8_t *put_name(uint8_t *to, const char *name, int n) noexcept nogil:
    return put_text(put_big(to, n, 2), name, n)
