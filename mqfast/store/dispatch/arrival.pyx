"""Arrivals: the queues that got a message for a waiting consumer (RocketMQ: MessageArrivingListener,
PullRequestHoldService).

No put waits, and no message is missed: log/log_watch.pyx has the order of the steps. A queue without a watch costs a
put nothing; 10,000 watched queues cost one signal a batch of arrivals, and work for the queues with a message only.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from mqfast.store.base.os_api cimport (
    Mutex,
    acquire,
    mq_and32,
    mq_cas32,
    mq_fence,
    mq_load32,
    mq_load64,
    mq_or32,
    mq_store32,
    release,
)
from mqfast.store.dispatch.dispatch cimport CommitLogDispatcher
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.log.group_commit cimport readable
from mqfast.store.log.log_state cimport WATCH_ARRIVALS, WATCH_FLUSHED, LogState, lock_puts, unlock_puts
from mqfast.store.log.log_watch cimport signal_arrivals, take_arrived, unit_put
from mqfast.store.queues.consume_queue cimport QUEUE_WATCHED, UNIT_BYTES, ConsumeQueue, QueueState

import os as _os
import select as _select
import time as _time

from mqfast.errors import StoreClosed, UsageError
from mqfast.message import check_topic

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void *data, size_t n)
    int close(int fd)


cdef class ArrivalWatch:
    """A queue with a waiter for a message at or above an offset."""

    cdef tuple key
    cdef object queue
    cdef int64_t offset

    def __init__(self, key, queue, int64_t offset):
        self.key = key
        self.queue = queue
        self.offset = offset


@cython.no_gc_clear
cdef class Arrivals:
    """Reports the watched queues that got a message; one of a store.

    ``fileno`` is a descriptor that becomes readable, once until ``drain`` is called: an event loop watches it, or
    ``wait`` sleeps on it. A watch ends with the ``drain`` that reports it. Messages count once readable: with sync
    flush after the sync, and never above a confirm offset. Units written by a put and by the dispatcher count alike.
    Thread: any.
    """

    cdef CommitLog log
    cdef CommitLogDispatcher dispatcher
    cdef object queues              # QueueStore
    cdef LogState *state
    cdef Mutex mutex
    cdef int fd
    cdef readonly bint closed
    cdef dict watches               # (topic, queue id) -> ArrivalWatch
    cdef dict at                    # address of a QueueState -> ArrivalWatch
    cdef list hidden                # watches whose message exists, and is not readable yet
    cdef list by_hand               # watches whose queue got a unit from Python
    cdef list kept                  # queues that may be in the list of the log, without a watch

    def __cinit__(self):
        self.fd = -1

    def __init__(self, CommitLog log not None, CommitLogDispatcher dispatcher not None, queues):
        self.log = log
        self.dispatcher = dispatcher
        self.queues = queues
        self.state = &log.state
        self.mutex = Mutex()
        self.watches = {}
        self.at = {}
        self.hidden = []
        self.by_hand = []
        self.kept = []
        if mq_load32(&self.state.watched) & WATCH_ARRIVALS:
            raise UsageError(f"store of {log.path}: expected one Arrivals, found a second one")
        self.fd = _os.eventfd(0, _os.EFD_NONBLOCK | _os.EFD_CLOEXEC)
        acquire(dispatcher.mutex)          # a running walk does not check the queues
        try:
            log.take_put_lock()
            self.state.arrivals_fd = self.fd
            mq_store32(&self.state.arrivals_armed, 1)
            mq_or32(&self.state.watched, WATCH_ARRIVALS)
            unlock_puts(self.state)
            queues.arrived = self._arrived_by_hand
        finally:
            release(dispatcher.mutex)

    def fileno(self) -> int:
        """Return the descriptor that is readable while there may be arrivals to take."""
        return self.fd

    def __len__(self):
        return len(self.watches)

    def watch(self, topic, queue_id, int64_t offset) -> bool:
        """Watch for a message at this queue offset or above; a second watch of the queue replaces the first.

        Returns: True when such a message exists; nothing is watched then. Raises: MessageIllegal for an invalid topic,
        UsageError, StoreClosed.
        """
        cdef ArrivalWatch watch
        check_topic(topic)
        if not isinstance(queue_id, int) or not 0 <= queue_id < 1 << 31:
            raise UsageError(f"queue_id: expected 0 to 2147483647, found {queue_id!r}")
        if offset < 0:
            raise UsageError(f"offset: expected at least 0, found {offset}")
        key = topic, queue_id
        queue = self.queues.find_or_create(topic, queue_id)
        batch = self.queues.batch.get(key)
        acquire(self.mutex)
        try:
            self._check_open()
            self._release(self.watches.get(key))
            watch = ArrivalWatch(key, queue if batch is None else batch, offset)
            self._enter(watch)
            if self._arm(watch):
                self._release(watch)
                return True
            return False
        finally:
            release(self.mutex)

    def unwatch(self, topic, queue_id) -> None:
        """Remove the watch of the queue. No effect without a watch."""
        acquire(self.mutex)
        try:
            self._release(self.watches.get((topic, queue_id)))
        finally:
            release(self.mutex)

    def drain(self) -> list:
        """Return the queues, as (topic, queue id), that have the awaited message; their watches end.

        A queue whose topic was deleted is reported too. Raises: StoreClosed.
        """
        cdef LogState *s = self.state
        cdef QueueState *q
        cdef QueueState *following
        cdef uint64_t count
        cdef ArrivalWatch watch
        cdef list looked = [], arrived = []
        acquire(self.mutex)
        try:
            self._check_open()
            read(self.fd, &count, sizeof(count))
            q = take_arrived(s)
            with nogil:         # a put in the list publishes its record before it releases the lock
                lock_puts(s)
                unlock_puts(s)
            while q != NULL:
                following = q.next_arrived
                mq_and32(&q.watched, 0)
                watch = self.at.get(<size_t> q)
                if watch is not None:
                    looked.append(watch)
                q = following
            self.kept = []
            looked += self.hidden
            looked += self.by_hand
            self.hidden = []
            self.by_hand = []
            for watch in looked:
                if self.watches.get(watch.key) is not watch:
                    continue
                if self._is_over(watch) or self._arm(watch):
                    self._release(watch)
                    arrived.append(watch.key)
            return arrived
        finally:
            release(self.mutex)

    def wait(self, timeout=None) -> list:
        """Sleep until there are arrivals, and return them as ``drain`` does, for a thread.

        Args: timeout: seconds, None for no limit. Returns: an empty list at the timeout. GIL: released. Raises:
        StoreClosed.
        """
        poll = _select.poll()
        poll.register(self.fd, _select.POLLIN)
        deadline = None if timeout is None else _time.monotonic() + timeout
        while True:
            arrived = self.drain()
            if arrived:
                return arrived
            remaining_s = None if deadline is None else max(0.0, deadline - _time.monotonic())
            if remaining_s == 0.0:
                return []
            poll.poll(None if remaining_s is None else remaining_s * 1000)

    def cancel_all(self) -> None:
        """End all watches, and make the descriptor readable, so that waiting threads see that the store is closed."""
        cdef LogState *s = self.state
        acquire(self.dispatcher.mutex)
        try:
            acquire(self.mutex)
            try:
                if self.closed:
                    return
                self.closed = True
                self.queues.arrived = None
                self.log.take_put_lock()
                mq_and32(&s.watched, ~<uint32_t> WATCH_ARRIVALS)
                mq_store32(&s.arrivals_armed, 1)
                signal_arrivals(s)
                s.arrivals_fd = -1
                unlock_puts(s)
                for watch in list(self.watches.values()):
                    self._release(watch)
                take_arrived(s)
                mq_store32(&s.arrivals_armed, 0)
            finally:
                release(self.mutex)
        finally:
            release(self.dispatcher.mutex)

    def close(self) -> None:
        """End all watches, and close the descriptor. Safe to call twice."""
        self.cancel_all()
        acquire(self.mutex)
        try:
            fd, self.fd = self.fd, -1
        finally:
            release(self.mutex)
        if fd >= 0:
            close(fd)

    def __dealloc__(self):
        if self.fd >= 0:  # in C: at the end of the interpreter the module os is empty
            close(self.fd)

    cdef int _check_open(self) except -1:
        if self.closed:
            raise StoreClosed("no arrivals any more: the store, or Arrivals, was closed")
        return 0

    cdef int _enter(self, ArrivalWatch watch) except -1:
        self.watches[watch.key] = watch
        if isinstance(watch.queue, ConsumeQueue):
            self.at[<size_t> &(<ConsumeQueue> watch.queue).state] = watch
        return 0

    cdef int _release(self, ArrivalWatch watch) except -1:
        cdef ConsumeQueue queue
        if watch is None:
            return 0
        self.watches.pop(watch.key, None)
        if isinstance(watch.queue, ConsumeQueue):
            queue = watch.queue
            self.at.pop(<size_t> &queue.state, None)
            if not mq_cas32(&queue.state.watched, QUEUE_WATCHED, 0) and mq_load32(&queue.state.watched):
                self.kept.append(queue)
        return 0

    cdef bint _is_over(self, ArrivalWatch watch) except -1:
        """Return true if the message is readable, or the queue was deleted."""
        cdef LogState *s = self.state
        cdef CommitLog log = self.log
        cdef ConsumeQueue queue
        if not isinstance(watch.queue, ConsumeQueue):
            return watch.queue.readable_offset(readable(s, log.hide_unflushed)) > watch.offset
        queue = watch.queue
        if queue.state.deleted:
            return True
        if mq_load64(&queue.state.end) // UNIT_BYTES <= watch.offset:
            return False
        if s.pooled and not log.hide_unflushed:
            log.commit()
        return queue.readable_offset(readable(s, log.hide_unflushed)) > watch.offset

    cdef bint _arm(self, ArrivalWatch watch) except -1:
        """Let the next unit of the queue add it to the list. Returns true if the message exists already."""
        cdef LogState *s = self.state
        cdef ConsumeQueue queue
        if isinstance(watch.queue, ConsumeQueue):
            queue = watch.queue
            self.log.take_put_lock()
            mq_cas32(&queue.state.watched, 0, QUEUE_WATCHED)
            unlock_puts(s)
            mq_fence()
            if mq_load64(&queue.state.end) // UNIT_BYTES > watch.offset and not self._is_over(watch):
                self._hide(watch)
        elif watch.queue.max_offset > watch.offset and not self._is_over(watch):
            self._hide(watch)
        return self._is_over(watch)

    cdef int _hide(self, ArrivalWatch watch) except -1:
        """Note a message that exists, and that the next sync or confirm offset makes readable."""
        self.hidden.append(watch)
        mq_or32(&self.state.watched, WATCH_FLUSHED)
        mq_fence()
        return 0

    def _arrived_by_hand(self, queue) -> None:
        """Note a unit that the dispatcher put through Python. The dispatch lock is held."""
        cdef ConsumeQueue plain
        if isinstance(queue, ConsumeQueue):
            plain = queue
            unit_put(self.state, &plain.state)
            return
        watch = self.watches.get((queue.topic, queue.queue_id))
        if watch is not None:
            self.by_hand.append(watch)
            signal_arrivals(self.state)
