# The checkpoint file as the flush thread writes it, without the GIL.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from mqfast.store.base.os_api cimport Mutex, OsApi, mq_os

cdef enum:
    NUMBERS_BYTES = 48


cdef class CheckpointFile:
    cdef OsApi os_api
    cdef readonly str path
    cdef bytes native_path
    cdef mq_os *os
    cdef const char *name
    cdef Mutex mutex
    cdef uint32_t writing           # a lock; the holder never waits for the GIL
    cdef bint whole                 # true if a file of the right length exists, so that numbers may be written in place
    cdef bint known                 # true if the file holds `written`
    cdef uint8_t written[NUMBERS_BYTES]
    # the six numbers, in the order of the file; any thread, each by itself
    cdef int64_t physic_msg_timestamp
    cdef int64_t logics_msg_timestamp
    cdef int64_t index_msg_timestamp
    cdef int64_t master_flushed_offset
    cdef int64_t confirm_phy_offset
    cdef int64_t logics_physical_offset
    cdef void _pack(self, uint8_t *to) noexcept nogil
    cdef int write(self) noexcept nogil
