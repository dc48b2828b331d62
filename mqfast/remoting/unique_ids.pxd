"""Unique ids for other compiled modules; see ``unique_ids.pyx``."""

from libc.stdint cimport int64_t, uint32_t


cdef class UniqueIds:
    cdef bytes _head
    cdef object _clock
    cdef object _month
    cdef int64_t _begin
    cdef int64_t _next_month
    cdef int64_t _now
    cdef uint32_t _count
    cdef uint32_t _first

    cdef Py_ssize_t write(self, char *at) except -1
