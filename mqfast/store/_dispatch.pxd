# Following the log: records -> queue units and index entries.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from mqfast.store._commit_log cimport CommitLog
from mqfast.store._consume_queue cimport QueueTable

cdef class Dispatcher:
    cdef readonly CommitLog log
    cdef readonly QueueTable table
    cdef object queues              # QueueStore: makes queues, knows batch and light queues
    cdef object index               # IndexService, or None
    cdef object mutex               # the dispatch lock
    cdef public object error        # what stopped the dispatch for good
    cdef int64_t key_done           # keys of the current record that are in the index already
    cdef int64_t delays[64]         # delay level -> ms; 0: unknown
    cdef int max_level
    cdef readonly int64_t skipped   # records whose topic cannot be a directory name
    cdef readonly int64_t records
    cdef int catch_up(self) except -1
