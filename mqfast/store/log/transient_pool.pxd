# Buffers outside the page cache that take the appends of a log file each.
from libc.stdint cimport int64_t, uint8_t
from mqfast.store.base.mapped_file cimport MappedFile
from mqfast.store.base.os_api cimport Mutex, OsApi, mq_os


cdef class TransientStorePool:
    cdef readonly OsApi os_api
    cdef readonly int64_t buffer_bytes
    cdef readonly int64_t locked_bytes      # of all buffers, including lent ones
    cdef readonly list warnings             # buffers that could not be locked, with the reason
    cdef readonly bint closed
    cdef mq_os *os
    cdef uint8_t **buffers                    # every buffer; NULL once it is unmapped
    cdef uint8_t **spare                    # a stack: the last entry is lent next
    cdef Py_ssize_t locked                  # the first so many of `buffers` are locked
    cdef Py_ssize_t total
    cdef Py_ssize_t available
    cdef Mutex guard
    cdef int _map(self) except -1
    cdef int _lock_memory(self, Py_ssize_t i, int64_t budget_bytes) except -1
    cdef void _unmap(self, uint8_t *buffer) noexcept
