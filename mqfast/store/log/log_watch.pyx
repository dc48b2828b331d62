"""Watches of the log: threads that wait for the log to grow, and queues with a waiter for a message.

A put pays for a load of `watched` (LogWatch bits) and a branch that is not taken. This module takes no GIL and delays
no put: it wakes a futex, and writes to a non-blocking eventfd.

No arrival is missed:
  - A put reads `watched` and the state of the queue under the put lock, under which both are set. So the put either
    publishes the message before the watch checks for messages, or sees the watch.
  - The dispatcher does not hold the put lock. It has a fence between the unit that it puts and its check of the queue
    (unit_put); a watch has a fence between the state that it sets and its check of the queue.
  - A sync has a fence between `flushed` and its check of `watched`, and so has a waiter.
  - `arrivals_armed` is set before the list of queues is taken, and checked after each queue that enters the list.
A queue stays in the list until the list is taken, so no queue is in the list twice.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from mqfast.store.base.os_api cimport (
    futex_wake_all,
    mq_add32,
    mq_and32,
    mq_cas32,
    mq_cas64,
    mq_fence,
    mq_load32,
    mq_load64,
    mq_store32,
)
from mqfast.store.log.log_state cimport WATCH_ARRIVALS, WATCH_FLUSHED, WATCH_WRITTEN, LogState
from mqfast.store.queues.consume_queue cimport QUEUE_ARRIVED, QUEUE_WATCHED, QueueState

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void *data, size_t n)


cdef void appended(LogState *s, QueueState *q) noexcept nogil:
    """Notify watches that the log has grown; q: the queue that has the unit of the last record already, or NULL. The
    put lock is held.
    """
    if mq_load32(&s.watched) & WATCH_WRITTEN:
        mq_and32(&s.watched, ~<uint32_t> WATCH_WRITTEN)
        wake_watchers(s)
    if q != NULL and mq_load32(&q.watched) == QUEUE_WATCHED:
        unit_put(s, q)


cdef void unit_put(LogState *s, QueueState *q) noexcept nogil:
    """Add the queue to the list of arrivals after a unit was put, if a consumer waits for messages of the queue."""
    cdef int64_t head
    mq_fence()
    if mq_load32(&q.watched) != QUEUE_WATCHED or not mq_cas32(&q.watched, QUEUE_WATCHED, QUEUE_ARRIVED):
        return
    while True:
        head = mq_load64(&s.arrived)
        q.next_arrived = <QueueState *> <size_t> head
        if mq_cas64(&s.arrived, head, <int64_t> <size_t> q):
            break
    mq_fence()
    signal_arrivals(s)


cdef void signal_arrivals(LogState *s) noexcept nogil:
    """Make the descriptor readable, once until the list is taken."""
    cdef uint64_t count = 1
    if mq_load32(&s.arrivals_armed) and mq_cas32(&s.arrivals_armed, 1, 0):
        write(s.arrivals_fd, &count, sizeof(count))


cdef QueueState *take_arrived(LogState *s) noexcept nogil:
    """Take the list, and signal again from the next arrival on."""
    cdef int64_t head
    mq_store32(&s.arrivals_armed, 1)
    mq_fence()
    while True:
        head = mq_load64(&s.arrived)
        if head == 0 or mq_cas64(&s.arrived, head, 0):
            return <QueueState *> <size_t> head


cdef void flushed_moved(LogState *s) noexcept nogil:
    """Notify watches after a sync that the flushed position moved, or the log was latched."""
    mq_fence()
    if mq_load32(&s.watched) & WATCH_FLUSHED:
        mq_and32(&s.watched, ~<uint32_t> WATCH_FLUSHED)
        wake_watchers(s)
        if mq_load32(&s.watched) & WATCH_ARRIVALS:
            signal_arrivals(s)


cdef void wake_watchers(LogState *s) noexcept nogil:
    """Wake all threads that wait for the log."""
    mq_add32(&s.grown, 1)
    futex_wake_all(&s.grown)
