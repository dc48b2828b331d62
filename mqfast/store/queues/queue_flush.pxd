# The flush of queues without the GIL.
from libc.stdint cimport int64_t
from mqfast.store.queues.consume_queue cimport QueueState, QueueTable

cdef enum:
    NEEDS_PYTHON = 0             # the rest needs the GIL: `flush_queues`

cdef int flush_tails(QueueTable table, int64_t many, bint *left_page, int64_t *done, QueueState **failed) noexcept nogil
