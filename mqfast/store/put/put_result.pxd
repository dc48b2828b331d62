# The results of a put.
from libc.stdint cimport int32_t, int64_t
from mqfast.store.log.append cimport Appended


cdef class PutResult:
    cdef readonly int64_t physical_offset
    cdef readonly int64_t queue_offset
    cdef readonly int64_t store_timestamp
    cdef readonly int32_t size
    cdef int outcome
    cdef bytes host


cdef class BatchResult:
    cdef Appended *items
    cdef Py_ssize_t count
    cdef int outcome
    cdef bytes host


cdef inline void fill_result(PutResult r, const Appended *a, int outcome) noexcept:
    r.physical_offset = a.physical_offset
    r.queue_offset = a.queue_offset
    r.store_timestamp = a.store_timestamp
    r.size = a.size
    r.outcome = outcome
