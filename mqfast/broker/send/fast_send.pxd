"""Fields of the classes of fast_send.pyx."""


cdef bint needs_slow_path(
    const char *at, const char *end, bint waits, const char **unique, Py_ssize_t *unique_bytes
) noexcept nogil


cdef class SendTopic:
    cdef str topic
    cdef bytes encoded
    cdef readonly int queues
    cdef readonly int write_queues
    cdef readonly int sys_flag
    cdef readonly bint is_plain


cdef class SendPath:
    cdef object put
    cdef bytes store_host
    cdef bytes additions
    cdef str id_prefix
    cdef dict answer_fields
    cdef object count
    cdef readonly dict routes
    cdef readonly dict hosts
    cdef public bint is_open
    cdef public bint waits
    cdef readonly long long end_offset
    cdef public dict waiting
    cdef public object notify
