# Sleep of service threads while nothing is put to the log.
from libc.stdint cimport int64_t, uint32_t
from mqfast.store.base.event cimport Event
from mqfast.store.log.log_state cimport LogState

cdef void wake_services(LogState *s) noexcept nogil
cdef bint refuses(LogState *s) noexcept nogil
cdef void sleep_until_put(LogState *s, Event event, uint32_t seen, int64_t written, int64_t ns) noexcept nogil
