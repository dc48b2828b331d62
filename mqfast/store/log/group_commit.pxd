# Commit and flush of the log, and waits for them.
from libc.stdint cimport int64_t, uint32_t
from mqfast.store.log.log_state cimport LogState

cdef int64_t readable(LogState *s, bint sync) noexcept nogil
cdef bint is_behind(LogState *s, bint sync) noexcept nogil
cdef void latch(LogState *s, int rc) noexcept nogil
cdef int commit_up_to(LogState *s, int64_t target) noexcept nogil
cdef int flush_up_to(LogState *s, int64_t target, int64_t deadline_ns) noexcept nogil
cdef void serve_syncs(LogState *s) noexcept nogil
cdef void end_syncs(LogState *s) noexcept nogil
cdef int flush_by_clock(LogState *s) noexcept nogil
cdef void call_waiters(LogState *s, uint32_t group, bint everybody) noexcept nogil
