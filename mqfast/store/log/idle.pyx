"""Sleep of service threads while nothing is put: without a timer, and without a cost for puts.

An idle thread sets LOG_ASLEEP in the flags word, which each append loads under the put lock anyway. The first append
that sees the bit clears it and wakes all sleeping threads. No append is missed: the thread sets the bit, takes and
releases the put lock, and checks the written position again before the sleep. An append that loaded the flags before
the bit was set has released the lock by then, so its bytes are seen; any later append sees the bit.
"""

from libc.stdint cimport int64_t, uint32_t
from mqfast.store.base.event cimport Event
from mqfast.store.base.os_api cimport (
    futex_wait,
    futex_wake_all,
    mq_add32,
    mq_and32,
    mq_fence,
    mq_load32,
    mq_load64,
    mq_or32,
    mq_store64,
)
from mqfast.store.log.log_state cimport LOG_ASLEEP, LogState, lock_puts, unlock_puts


cdef void wake_services(LogState *s) noexcept nogil:
    """Wake the threads in `sleep_until_put`: bytes were put, or are about to be."""
    mq_and32(&s.flags, ~<uint32_t> LOG_ASLEEP)
    mq_add32(&s.moved, 1)
    futex_wake_all(&s.moved)


cdef bint refuses(LogState *s) noexcept nogil:
    """Return true if a flag forbids appends. LOG_ASLEEP does not: the sleeping threads are woken."""
    if mq_load32(&s.flags) & LOG_ASLEEP:
        wake_services(s)
    return mq_load32(&s.flags) & ~<uint32_t> LOG_ASLEEP != 0


cdef void sleep_until_put(LogState *s, Event event, uint32_t seen, int64_t written, int64_t ns) noexcept nogil:
    """Sleep until the log is written beyond `written`, the event's word differs from `seen`, or `ns` are over;
    negative: no limit.

    May return earlier. Not with the put lock held.
    """
    cdef uint32_t moved = mq_load32(&s.moved)
    mq_store64(&event.elsewhere, <int64_t> <size_t> &s.moved)
    mq_or32(&s.flags, LOG_ASLEEP)
    lock_puts(s)
    unlock_puts(s)
    mq_fence()
    if mq_load64(&s.written) == written and mq_load32(&event.word) == seen:
        futex_wait(&s.moved, moved, ns)
    mq_store64(&event.elsewhere, 0)
