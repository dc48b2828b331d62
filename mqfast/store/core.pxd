# The rooms of an open store, for the puts, the gets and the engine interface.
from libc.stdint cimport int64_t
from mqfast.store.dispatch.dispatch cimport CommitLogDispatcher
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.log.log_state cimport LogState
from mqfast.store.queues.consume_queue cimport QueueState, QueueTable


cdef int64_t integer(object value, str what, int64_t low, int64_t high) except? -1


cdef class Core:
    cdef readonly CommitLog log
    cdef readonly QueueTable table
    cdef readonly CommitLogDispatcher dispatcher
    cdef readonly object queues         # QueueStore
    cdef readonly object index          # IndexService for queries, or None
    cdef readonly object config         # StoreConfig
    cdef int64_t query_max_num          # messages of a query without a limit
    cdef int64_t query_batch            # index entries of a lookup
    cdef readonly object waiters        # FlushWaiters: callbacks of the flush thread
    cdef LogState *state
    cdef QueueState *last_queue         # queue of the last record with encoded fields, or NULL
    cdef bytes store_host
    cdef bytes born_host
    cdef int64_t max_body
    cdef int64_t busy_timeout_ms
    cdef int64_t sync_timeout_ns
    cdef bint sync_flush                # a put waits for the disk, or for slaves
    cdef bint read_your_writes
    cdef bint multi_dispatch
    cdef bint version_2_allowed
    cdef int contended(self) except -1
    cdef int _wait_for_disk(self, int64_t end, int64_t timeout_ns) except -1
    cdef int wait_durable(self, int64_t end, int64_t timeout_ns) except -1


cdef class StoreBase:
    cdef readonly Core engine
