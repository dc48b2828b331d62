"""Event: the object that a service thread sleeps on.

A thread needs no GIL to sleep or to see that the event was set. A loop in C reads ``word`` first and ends when
the word has changed.
"""

from libc.stdint cimport int64_t, uint32_t
from mqfast.store.base.os_api cimport futex_wait, futex_wake_all, mq_add32, mq_fence, mq_load32, mq_load64


cdef class Event:
    """Wakes a sleeping service thread. Thread: ``set`` from any, ``wait`` from a single thread."""

    def set(self) -> None:
        """End the current sleep, or the next sleep."""
        cdef uint32_t *elsewhere
        mq_add32(&self.word, 1)
        mq_fence()      # order: the sleeper publishes `elsewhere`, then reads `word`
        futex_wake_all(&self.word)
        elsewhere = <uint32_t *> <size_t> mq_load64(&self.elsewhere)
        if elsewhere != NULL:
            mq_add32(elsewhere, 1)
            futex_wake_all(elsewhere)

    def wait(self, double seconds) -> None:
        """Sleep until the event was set since the last wait, or the time is over. GIL: released."""
        cdef uint32_t seen = self.seen
        cdef int64_t ns = <int64_t> (seconds * 1e9)
        if mq_load32(&self.word) == seen:
            with nogil:
                futex_wait(&self.word, seen, ns)
        self.seen = mq_load32(&self.word)
