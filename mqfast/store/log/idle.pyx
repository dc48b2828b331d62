"""How service threads sleep while nothing is put: for good, without a look at the log, and without a cost for puts.

A thread that has nothing to do sets LOG_ASLEEP in the word of flags, which each append loads under the put lock anyway. The first append that sees
the bit clears it and wakes all threads that sleep. No append is missed: the thread sets the bit, takes the put lock and lets go of it, and looks at
the written position again before it sleeps. An append that loaded the flags before the bit was set has let go of the lock by then, so its bytes are
seen; any later append sees the bit.
"""

from libc.stdint cimport int64_t, uint32_t
from mqfast.store.base.event cimport Event
from mqfast.store.base.os_api cimport futex_wait, futex_wake_all, mq_add32, mq_and32, mq_fence, mq_load32, mq_load64, mq_or32, mq_store64
from mqfast.store.log.log_state cimport LOG_ASLEEP, LogState, lock_puts, unlock_puts


cdef void wake_services(LogState *s) noexcept nogil:
    """Something is put, or about to be: end the sleeps of `sleep_until_put`."""
    mq_and32(&s.flags, ~<uint32_t> LOG_ASLEEP)
    mq_add32(&s.moved, 1)
    futex_wake_all(&s.moved)


cdef bint refuses(LogState *s) noexcept nogil:
    """A flag is set: may nothing be appended now? That threads sleep is no reason: they are woken."""
    if mq_load32(&s.flags) & LOG_ASLEEP:
        wake_services(s)
    return mq_load32(&s.flags) & ~<uint32_t> LOG_ASLEEP != 0


cdef void sleep_until_put(LogState *s, Event event, uint32_t seen, int64_t written, int64_t ns) noexcept nogil:
    """Sleep until the log is written beyond `written`, the event's word is no more `seen`, or so long; negative: without a limit.

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
