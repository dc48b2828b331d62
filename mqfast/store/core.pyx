"""Core: the rooms of an open store and the limits of its configuration, for the rooms that put and get.

No message is put or read here, and no room that does (put/, get/) is imported: those import this module. engine.py
combines them for the broker, replication and Spark.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from mqfast.store.base.os_api cimport LONGEST_WAIT_NS, mq_load64
from mqfast.store.dispatch.dispatch cimport CommitLogDispatcher
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.log.group_commit cimport flush_up_to
from mqfast.store.log.log_watch cimport unit_put
from mqfast.store.log.log_state cimport LogState, unlock_puts, wait_to_lock_puts
from mqfast.store.queues.consume_queue cimport ConsumeQueue, QueueTable

from mqfast.errors import FlushError, MessageIllegal, PageCacheBusy
from mqfast.message import parse_host
from mqfast.store.base.results import PutMessageStatus

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef int OK = PutMessageStatus.PUT_OK
cdef int FLUSH_DISK_TIMEOUT = PutMessageStatus.FLUSH_DISK_TIMEOUT


cdef int64_t integer(object value, str what, int64_t low, int64_t high) except? -1:
    """Return a whole number in [low, high]. Raises: MessageIllegal."""
    cdef int overflow = 0
    cdef int64_t number
    if not isinstance(value, int):
        raise MessageIllegal(f"{what}: expected a whole number, found {type(value).__name__}")
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or number < low or number > high:
        raise MessageIllegal(f"{what}: expected {low} to {high}, found {value}")
    return number


@cython.no_gc_clear
cdef class Core:
    """The rooms of an open store. Made by MessageStore before the first put.

    Args: index: the IndexService for queries, or None; waiters: FlushWaiters of the flush service.
    Thread: any.
    """

    def __init__(self, CommitLog log not None, QueueTable table not None, CommitLogDispatcher dispatcher not None,
                 queues, index, config, waiters not None):
        self.log = log
        self.table = table
        self.dispatcher = dispatcher
        self.queues = queues
        self.index = index
        self.config = config
        self.waiters = waiters
        self.state = &log.state
        self.store_host = parse_host(config.store_host)
        self.born_host = parse_host(config.born_host)
        self.max_body = config.max_message_bytes
        self.query_max_num = config.default_query_max_num
        self.query_batch = config.max_msgs_num_batch
        self.busy_timeout_ms = config.os_page_cache_busy_timeout_ms
        self.sync_timeout_ns = config.sync_flush_timeout_ms * 1000000
        self.sync_flush = log.sync_flush
        self.read_your_writes = config.dispatch == "inline"
        self.version_2_allowed = config.auto_message_version_on_topic_len
        self.multi_dispatch = config.enable_lmq and config.enable_multi_dispatch

    def watch_ticket(self, ticket) -> None:
        """Let the flush service finish this ticket."""
        self.waiters.add(ticket)

    @property
    def put_count(self) -> int:
        """Messages appended since the store was opened."""
        return mq_load64(&self.state.puts)

    def mark_deleted(self, queues, bint deleted=True) -> None:
        """Stop giving out offsets of queues that are being deleted: every put finds its queue again. False reverts
        this.
        """
        cdef ConsumeQueue queue
        self.log.take_put_lock()
        for queue in queues:
            queue.state.deleted = deleted
            unit_put(self.state, &queue.state)      # wakes the waiters for a message there
        unlock_puts(self.state)

    cdef int contended(self) except -1:
        """Release the GIL until the put lock is free: another thread holds the lock."""
        cdef LogState *s = self.state
        self.log.raise_state()      # in a forked child the holder of the lock does not exist
        held = self.log.lock_held_ms
        if held > self.busy_timeout_ms:
            raise PageCacheBusy(f"one append has held the put lock for {held} ms: expected at most "
                                f"{self.busy_timeout_ms} ms")
        with nogil:
            wait_to_lock_puts(s)
            unlock_puts(s)
        self.log.raise_state()      # checks from before the wait may no longer hold
        return 0

    cdef int wait_durable(self, int64_t end, int64_t timeout_ns) except -1:
        """Wait for the disk, and for slaves if puts wait for them. Returns: a PutMessageStatus."""
        cdef int outcome = self._wait_for_disk(end, timeout_ns) if self.log.sync_flush else OK
        cdef int slaves = OK if self.waiters.acks is None else self.waiters.acks.wait_for(end)
        return slaves if slaves != OK else outcome

    def wait_for_slaves(self, acks) -> None:
        """Let puts end when enough slaves have the message, by this AckTable; None: puts wait for no slave. The status
        of a put that is stored only here is FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE. A put with
        ``wait_store_ok=False`` waits for nothing, and ``put_nowait`` and ``aput`` wait for the disk only: watch the
        AckTable for them.
        """
        self.waiters.acks = acks
        self.sync_flush = self.log.sync_flush or acks is not None

    cdef int _wait_for_disk(self, int64_t end, int64_t timeout_ns) except -1:
        cdef LogState *s = self.state
        cdef int64_t left = timeout_ns, now = s.os.monotonic_ns(s.os), wait
        cdef int rc
        while True:
            wait = min(left, LONGEST_WAIT_NS)
            with nogil:
                rc = flush_up_to(s, end, now + wait)
            if rc != 0 or left == wait:
                break
            PyErr_CheckSignals()
            left -= wait
            now += wait
        if rc == 1:
            return OK
        if rc == 0:
            return FLUSH_DISK_TIMEOUT
        raise FlushError(-rc, "the message is stored but the flush failed; the store is latched", self.log.path)


@cython.no_gc_clear
cdef class StoreBase:
    """A store with an engine: the base of MessageStore."""

    @property
    def log(self) -> CommitLog:
        """The commit log."""
        return self.engine.log

    @property
    def put_count(self) -> int:
        """Messages appended since the store was opened."""
        return self.engine.put_count
