"""The results of a put: the positions of stored messages, and the ticket of a message that is not awaited.

A result is always made before its append: a MemoryError afterwards would hide a stored message. A put makes its result
first (put_message.pyx) and then only assigns; message ids and the results of a batch are made on access.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t
from mqfast.store.log.append cimport Appended
from mqfast.store.base.os_api cimport Mutex, acquire, release

from mqfast.message import encode_message_id
from mqfast.store.base.results import PutMessageStatus

cdef tuple STATUS = tuple(PutMessageStatus)


@cython.final
@cython.freelist(32)
@cython.no_gc
cdef class PutResult:
    """The position of a stored message.

    physical_offset: byte in the log; queue_offset: unit in its queue; size: bytes of the record; store_timestamp: ms
    since the epoch.
    """

    @property
    def status(self):
        """PutMessageStatus: PUT_OK, or FLUSH_DISK_TIMEOUT if the message is stored but not known to be durable."""
        return STATUS[self.outcome]

    @property
    def message_id(self) -> str:
        """Offset message id, computed on access."""
        return encode_message_id(self.host, self.physical_offset)

    def with_status(self, status) -> PutResult:
        """Return a copy with another status."""
        cdef PutResult r = PutResult.__new__(PutResult)
        r.physical_offset = self.physical_offset
        r.queue_offset = self.queue_offset
        r.store_timestamp = self.store_timestamp
        r.size = self.size
        r.outcome = status
        r.host = self.host
        return r

    def __reduce__(self):
        return load_result, (self.physical_offset, self.queue_offset, self.store_timestamp, self.size, self.outcome,
                             self.host)

    def __repr__(self):
        return (f"<PutResult {self.status.name} physical_offset={self.physical_offset} queue_offset={self.queue_offset}"
                f" size={self.size}>")


cdef class BatchResult:
    """The positions of the messages of a batch: a sequence of PutResult objects, created on access."""
    def __dealloc__(self):
        PyMem_Free(self.items)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t index):
        cdef PutResult r
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"expected an index below {self.count}, found {index}")
        r = PutResult.__new__(PutResult)
        fill_result(r, &self.items[index], self.outcome)
        r.host = self.host
        return r

    @property
    def status(self):
        """PutMessageStatus of the whole batch."""
        return STATUS[self.outcome]

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last record; 0 for an empty batch."""
        return self.items[self.count - 1].physical_offset + self.items[self.count - 1].size if self.count else 0

    @property
    def message_id(self) -> str:
        """Offset message ids, joined by commas, as in RocketMQ's response to a batch."""
        return ",".join(self[i].message_id for i in range(self.count))

    def __reduce__(self):
        return load_batch, (list(map(_fields_of, self)), self.outcome, self.host)

    def __repr__(self):
        return f"<BatchResult {self.status.name} {self.count} messages>"


def load_result(int64_t physical_offset, int64_t queue_offset, int64_t store_timestamp, int32_t size, int outcome,
                bytes host) -> PutResult:
    """Restore a pickled result."""
    cdef PutResult r = PutResult.__new__(PutResult)
    r.physical_offset = physical_offset
    r.queue_offset = queue_offset
    r.store_timestamp = store_timestamp
    r.size = size
    r.outcome = STATUS[outcome]
    r.host = host
    return r


def _fields_of(PutResult r):
    return r.physical_offset, r.queue_offset, r.store_timestamp, r.size


def load_batch(list items not None, int outcome, bytes host) -> BatchResult:
    """Restore a pickled result of a batch."""
    cdef BatchResult r = BatchResult.__new__(BatchResult)
    cdef Py_ssize_t i
    r.outcome = STATUS[outcome]
    r.host = host
    r.items = <Appended *> PyMem_Malloc(max(len(items), 1) * sizeof(Appended))
    if r.items == NULL:
        raise MemoryError
    for i in range(len(items)):
        r.items[i].physical_offset, r.items[i].queue_offset, r.items[i].store_timestamp, r.items[i].size = items[i]
    r.count = len(items)
    return r


class Ticket:
    """The ticket of a stored message that may not yet be durable.

    ``wait`` blocks until the message is durable. Callbacks run in the flush thread once the message is durable or its
    flush failed.
    """

    __slots__ = ("_callbacks", "_error", "_finished", "_lock", "_engine", "result")

    def __init__(self, engine, result):
        self._engine = engine
        self.result = result
        self._callbacks = []
        self._finished = False
        self._error = None
        self._lock = Mutex()

    @property
    def engine(self):
        """Engine of the store that has the message."""
        return self._engine

    @property
    def end_offset(self) -> int:
        """Physical offset behind the message."""
        return self.result.physical_offset + self.result.size

    def done(self) -> bool:
        """True if the message is durable or its flush failed."""
        return self._finished or self._engine.log.flushed >= self.end_offset

    def wait(self, timeout=None) -> bool:
        """Wait until the message is durable.

        Args: timeout: seconds, None for ever. Returns: False at the timeout.
        Raises: FlushError, StoreFailed. GIL: released.
        """
        if self._error is not None:
            raise self._error
        return self._engine.log.wait_flushed(self.end_offset, timeout)

    def add_done_callback(self, callback) -> None:
        """Call ``callback(ticket)`` in the flush thread once the message is durable or its flush failed; at once if
        that is so already.
        """
        acquire(self._lock)
        try:
            if not self._finished and not self.done():
                if not self._callbacks:
                    self._engine.watch_ticket(self)
                self._callbacks.append(callback)
                return
        finally:
            release(self._lock)
        callback(self)

    def __reduce__(self):
        raise TypeError("a Ticket cannot be pickled: it waits for its store; wait for it, then pickle its result")

    @property
    def error(self):
        """The exception of a failed flush, or None."""
        return self._error

    def finish(self, error=None) -> None:
        """Complete the ticket. Called by the flush service, once."""
        acquire(self._lock)
        try:
            self._finished = True
            self._error = error
            callbacks, self._callbacks = self._callbacks, []
        finally:
            release(self._lock)
        for callback in callbacks:
            callback(self)
