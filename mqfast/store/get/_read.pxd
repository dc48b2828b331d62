# Reading messages through a queue.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.log._commit_log cimport CommitLog
from mqfast.store.queues._consume_queue cimport ConsumeQueue

cdef struct Hit:
    const uint8_t *record
    int64_t queue_offset

cdef class GetResult:
    cdef readonly object status         # GetMessageStatus
    cdef readonly int64_t next_offset
    cdef readonly int64_t min_offset
    cdef readonly int64_t max_offset
    cdef Hit *hits
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef list leases                    # holds on the files that the hits point into
    cdef readonly int64_t total_bytes
    cdef int add(self, const uint8_t *record, int64_t queue_offset) except -1
    cdef object owner_of(self, const uint8_t *record)
    cdef int check_damage(self) except -1
    cdef object _message(self, Py_ssize_t i)
    cdef list _all(self)

cdef GetResult read_queue(CommitLog log, ConsumeQueue queue, int64_t offset, int64_t max_count, int64_t max_bytes, object tags)
cdef GetResult nothing(object status, int64_t next_offset, int64_t min_offset, int64_t max_offset)
