# The result of a get.
from libc.stdint cimport int64_t, uint8_t
from mqfast.store.get.hits cimport Hits


cdef class GetResult:
    cdef readonly object status         # GetMessageStatus
    cdef readonly int64_t next_offset
    cdef readonly int64_t min_offset
    cdef readonly int64_t max_offset
    cdef Hits hits
    cdef list pins                    # holds on the files that the hits point into
    cdef object owner_of(self, const uint8_t *record)
    cdef object _message(self, Py_ssize_t i)
    cdef list _all(self)


cdef GetResult nothing(object status, int64_t next_offset, int64_t min_offset, int64_t max_offset)
