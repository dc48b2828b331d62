"""Watching the log: threads that wait for the log to grow, and queues in which somebody waits for a message.

A put pays one load of `watched` (LogWatch bits) and a branch that is not taken. This module must never take the GIL, and never let a put wait:
it wakes a futex, and writes to an eventfd that does not block.

Why no arrival is missed:
  - A put sees `watched` and the state of the queue under the put lock, under which both are set. So the put either shows its message before the
    watch looks for one, or it sees the watch.
  - The dispatcher does not hold the put lock. It has a fence between the unit that it puts and its look at the queue (unit_put); a watch has one
    between the state that it sets and its look at the queue.
  - A sync has a fence between `flushed` and its look at `watched`, and who waits has one in between as well.
  - `arrivals_armed` is set before the list of queues is taken, and looked at behind each queue that enters the list.
A queue in the list stays there until the list is taken. So no queue is in the list twice.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from mqfast.store.base.os_api cimport futex_wake_all, mq_add32, mq_and32, mq_cas32, mq_cas64, mq_fence, mq_load32, mq_load64, mq_store32
from mqfast.store.log.log_state cimport WATCH_ARRIVALS, WATCH_FLUSHED, WATCH_WRITTEN, LogState
from mqfast.store.queues.consume_queue cimport QUEUE_ARRIVED, QUEUE_WATCHED, QueueState

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void *data, size_t n)


cdef void appended(LogState *s, QueueState *q) noexcept nogil:
    """The log has grown; q: the queue that has the unit of the last record already, or NULL. The put lock is held."""
    if mq_load32(&s.watched) & WATCH_WRITTEN:
        mq_and32(&s.watched, ~<uint32_t> WATCH_WRITTEN)
        wake_watchers(s)
    if q != NULL and mq_load32(&q.watched) == QUEUE_WATCHED:
        unit_put(s, q)


cdef void unit_put(LogState *s, QueueState *q) noexcept nogil:
    """The queue got a unit: if somebody waits for one, the queue enters the list."""
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
    """Make the descriptor readable, once until somebody looks."""
    cdef uint64_t one = 1
    if mq_load32(&s.arrivals_armed) and mq_cas32(&s.arrivals_armed, 1, 0):
        write(s.arrivals_fd, &one, sizeof(one))


cdef QueueState *take_arrived(LogState *s) noexcept nogil:
    """Take the list, and ask for a signal from the next arrival on."""
    cdef int64_t head
    mq_store32(&s.arrivals_armed, 1)
    mq_fence()
    while True:
        head = mq_load64(&s.arrived)
        if head == 0 or mq_cas64(&s.arrived, head, 0):
            return <QueueState *> <size_t> head


cdef void flushed_moved(LogState *s) noexcept nogil:
    """The flushed position moved, or the log was latched. Called behind a sync."""
    mq_fence()
    if mq_load32(&s.watched) & WATCH_FLUSHED:
        mq_and32(&s.watched, ~<uint32_t> WATCH_FLUSHED)
        wake_watchers(s)
        if mq_load32(&s.watched) & WATCH_ARRIVALS:
            signal_arrivals(s)


cdef void wake_watchers(LogState *s) noexcept nogil:
    """Wake all who wait for the log."""
    mq_add32(&s.grown, 1)
    futex_wake_all(&s.grown)
