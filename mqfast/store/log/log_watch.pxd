# Watches of the log's end, the flushed position and the messages of a queue.
from libc.stdint cimport int64_t
from mqfast.store.log.log_state cimport LogState
from mqfast.store.queues.consume_queue cimport QueueState

cdef void appended(LogState *s, QueueState *q) noexcept nogil
cdef void unit_put(LogState *s, QueueState *q) noexcept nogil
cdef void flushed_moved(LogState *s) noexcept nogil
cdef void wake_watchers(LogState *s) noexcept nogil
cdef QueueState *take_arrived(LogState *s) noexcept nogil
cdef void signal_arrivals(LogState *s) noexcept nogil
