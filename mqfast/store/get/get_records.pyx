"""A broker's get: whole records of a queue as an iovec of memoryviews, with RocketMQ's limits and statuses (RocketMQ:
DefaultMessageStore.getMessage).

No record is copied, no view outlives its mapping, and no more units are read than the limits allow. The walk:
unit_walk.pyx; holds and checks: get_message.pyx.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t
from mqfast.store.base.mapped_file cimport FilePin
from mqfast.store.base.os_api cimport mq_load32, mq_load64
from mqfast.store.core cimport Core
from mqfast.store.get.get_result cimport GetResult, nothing
from mqfast.store.get.hits cimport Hit, check_pins
from mqfast.store.get.get_message cimport (
    MAX_OFFSET, Manner, QueueUnit, find_queue, number, read_any, topic_name, unit_of_any,
)
from mqfast.store.get.unit_walk cimport ReadLimits
from mqfast.store.log.log_state cimport LOG_CLOSED, LOG_FORKED
from mqfast.store.queues.consume_queue cimport UNIT_BYTES, ConsumeQueue
from mqfast.store.record.filter cimport UnitFilter
from mqfast.store.record.record cimport StoredMessage

import os

from mqfast.errors import OffsetError, UsageError
from mqfast.store.base.results import GetMessageStatus

cdef object NO_MESSAGE_IN_QUEUE = GetMessageStatus.NO_MESSAGE_IN_QUEUE
cdef object OFFSET_TOO_SMALL = GetMessageStatus.OFFSET_TOO_SMALL
cdef object OFFSET_OVERFLOW_ONE = GetMessageStatus.OFFSET_OVERFLOW_ONE
cdef object OFFSET_OVERFLOW_BADLY = GetMessageStatus.OFFSET_OVERFLOW_BADLY
cdef object OFFSET_FOUND_NULL = GetMessageStatus.OFFSET_FOUND_NULL

cdef int64_t LEAST_BYTES = 100
cdef int64_t MOST_BYTES = 128 << 20         # maximum of a get, whatever is requested


def _memory_bytes():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


@cython.final
cdef class GetLimits:
    """The limits of a get for a broker; names and defaults are RocketMQ's.

    Args: total_memory_bytes: of the machine, None to ask the system; access_message_in_memory_max_ratio: percent of
    this memory that counts as the page cache of the log: records that begin at most so far before the log's end count
    as in memory; the four ``max_transfer_...``: bytes and messages of a result while its next record is in memory, or
    on disk; max_filter_message_size: bytes of queue units that a get may read, at least those of the requested messages
    (20 bytes a unit: 16,000 are 800 units); travel_cq_file_num_when_get_message: queue files that a get without a
    message reads.
    Raises: UsageError for a number below 0, or no number.
    Source: MessageStoreConfig; DefaultMessageStore.isTheBatchFull, estimateInMemByCommitOffset.
    """

    def __init__(self, *, total_memory_bytes=None, access_message_in_memory_max_ratio=40,
                 max_transfer_bytes_on_message_in_memory=262144,
                 max_transfer_count_on_message_in_memory=32, max_transfer_bytes_on_message_in_disk=65536,
                 max_transfer_count_on_message_in_disk=8, max_filter_message_size=16000,
                 travel_cq_file_num_when_get_message=1):
        cdef int64_t memory, ratio
        memory = number(_memory_bytes() if total_memory_bytes is None else total_memory_bytes, "total_memory_bytes", 0,
                        1 << 56)
        ratio = number(access_message_in_memory_max_ratio, "access_message_in_memory_max_ratio", 0, 100)
        self.limits.memory_bytes = memory * ratio // 100
        self.limits.bytes_in_memory = number(max_transfer_bytes_on_message_in_memory,
                                             "max_transfer_bytes_on_message_in_memory", 0, MAX_OFFSET)
        self.limits.count_in_memory = number(max_transfer_count_on_message_in_memory,
                                             "max_transfer_count_on_message_in_memory", 0, MAX_OFFSET)
        self.limits.bytes_on_disk = number(max_transfer_bytes_on_message_in_disk,
                                           "max_transfer_bytes_on_message_in_disk", 0, MAX_OFFSET)
        self.limits.count_on_disk = number(max_transfer_count_on_message_in_disk,
                                           "max_transfer_count_on_message_in_disk", 0, MAX_OFFSET)
        self.limits.scan_bytes = number(max_filter_message_size, "max_filter_message_size", 0, MAX_OFFSET)
        self.limits.queue_files = number(travel_cq_file_num_when_get_message, "travel_cq_file_num_when_get_message", 1,
                                         MAX_OFFSET)

    @property
    def in_memory_bytes(self) -> int:
        """Bytes before the end of the log within which a record counts as in memory."""
        return self.limits.memory_bytes


cdef GetLimits DEFAULT = GetLimits()


@cython.final
cdef class RecordRange:
    """Adjacent records of a log file, as a single buffer that holds the file."""
    cdef FilePin held
    cdef const uint8_t *p
    cdef Py_ssize_t n

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self.p, self.n, True, flags)


cdef list ranges_of(GetResult g):
    """Return the hits as memoryviews, adjacent hits in a single view."""
    cdef list found = []
    cdef RecordRange range_ = None
    cdef const Hit *hit
    cdef Py_ssize_t i
    for i in range(g.hits.count):
        hit = &g.hits.at[i]
        if (range_ is not None and range_.p + range_.n == hit.record and hit.record < range_.held.base
            + range_.held.file.file_bytes):
            range_.n += hit.size
            continue
        range_ = RecordRange.__new__(RecordRange)
        range_.held = g.owner_of(hit.record)
        range_.p = hit.record
        range_.n = hit.size
        found.append(range_)
    for i in range(len(found)):
        found[i] = memoryview(found[i])
    return found


@cython.final
cdef class GetMessageResult:
    """The result of a get for a broker. Its buffers are views of the mapped log; ``close``, or the end of a ``with``,
    releases the buffers.

    A file with a live view stays mapped, also if retention removed the file or the store was closed: a slice or an
    export of a buffer keeps the file by itself. Source: GetMessageResult.
    """
    cdef GetResult found
    cdef list views
    cdef readonly bint suggest_pulling_from_slave
    cdef readonly int64_t message_count

    def __init__(self):
        raise TypeError("a GetMessageResult comes from a store")

    @property
    def status(self) -> GetMessageStatus:
        """RocketMQ's GetMessageStatus."""
        return self.found.status

    @property
    def next_offset(self) -> int:
        """Next queue offset."""
        return self.found.next_offset

    @property
    def min_offset(self) -> int:
        """First readable queue offset."""
        return self.found.min_offset

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last readable message."""
        return self.found.max_offset

    @property
    def total_bytes(self) -> int:
        """Bytes of all records."""
        return self.found.hits.total_bytes

    @property
    def buffers(self) -> list:
        """The records in order, whole, as read-only memoryviews for ``sendmsg``: adjacent records are a
        single buffer.
        """
        if self.views is None:
            raise UsageError("the result is closed")
        return list(self.views)

    @property
    def queue_offsets(self) -> list:
        """Queue offset of each record."""
        return [self.found.hits.at[i].queue_offset for i in range(self.found.hits.count)]

    @property
    def messages(self) -> list:
        """Return the records as StoredMessage, for access to their fields; each keeps the file by itself."""
        if self.views is None:
            raise UsageError("the result is closed")
        return self.found._all()

    def check_damage(self) -> None:
        """Check after reading the buffers that they had the bytes of the files. Raises: CorruptFile if a file was cut
        short meanwhile.
        """
        check_pins(self.found.pins)

    def close(self) -> None:
        """Release the buffers and the files. Safe to call twice. A buffer with another export lives on until that
        export ends.
        """
        views, self.views = self.views, None
        for view in views or ():
            try:
                view.release()
            except BufferError:
                pass        # exported: its memoryview keeps the file
        self.found.pins = []
        self.found.hits.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __len__(self):
        return self.message_count

    def __repr__(self):
        return (f"<GetMessageResult {self.found.status.name} {self.message_count} messages, "
                f"{self.found.hits.total_bytes} bytes, "
                f"next_offset={self.found.next_offset}>")


cdef bint is_corrected(object status):
    """Return True if the next offset of this status is a correction, which a slave does not make."""
    return (status is OFFSET_TOO_SMALL or status is OFFSET_OVERFLOW_BADLY or status is NO_MESSAGE_IN_QUEUE
            or status is OFFSET_FOUND_NULL)


def get_records(Core self not None, topic, queue_id, offset, max_count=32, *, max_bytes=MOST_BYTES, filter=None,
                GetLimits limits=None, bint correct_offset=True) -> GetMessageResult:
    """Find messages of a queue from a queue offset on, for a broker: as RocketMQ's getMessage, result for result.

    Args: max_count: messages; the first is returned even for 0 and if it is too long; max_bytes: of records, limited to
    100 bytes to 128 MiB; filter: None for all; a UnitFilter such as TagCodes, whose test is in C; or a callable that
    takes a QueueUnit and returns True for a match, and reads ``unit.record`` only if the tags code does not decide.
    limits: None for RocketMQ's defaults; correct_offset: False for a slave, which returns the requested offset; a
    master corrects an offset outside the queue.
    Returns: GetMessageResult, to be closed. An unknown queue counts as empty: NO_MESSAGE_IN_QUEUE.
    Raises: CorruptFile if the first unit is invalid; exceptions of a filter; UsageError; StoreClosed.
    GIL: released for a long walk. Thread: any.
    Source: DefaultMessageStore.getMessage.
    """
    cdef ReadLimits to
    cdef Manner manner
    cdef int64_t id_ = number(queue_id, "queue_id", 0, 0x7FFFFFFF)
    cdef int64_t at = number(offset, "offset", -MAX_OFFSET, MAX_OFFSET)
    cdef UnitFilter wanted = None
    cdef object ask = None
    cdef GetMessageResult result
    cdef GetResult g
    if mq_load32(&self.state.flags) & (LOG_CLOSED | LOG_FORKED):
        self.log.check_state()
    if isinstance(filter, UnitFilter):
        wanted = filter
    elif filter is not None:
        if not callable(filter):
            raise UsageError(f"filter: expected a UnitFilter or a callable, found {type(filter).__name__}")
        ask = filter
    to = (DEFAULT if limits is None else limits).limits
    to.count = number(max_count, "max_count", 0, 0x7FFFFFFF)
    to.bytes = min(max(number(max_bytes, "max_bytes", 0, INT64_MAX), LEAST_BYTES), MOST_BYTES)
    manner.of_broker = True
    manner.last_physical = -1
    manner.messages = 0
    queue = find_queue(self, topic_name(topic), id_, MAX_OFFSET, 0)       # its end counts, wherever the get begins
    manner.log_end = mq_load64(&self.state.committed) if self.state.pooled else mq_load64(&self.state.written)
    if queue is None:
        g = nothing(NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    else:
        to.scan_bytes = max(to.scan_bytes, to.count * (UNIT_BYTES if type(queue) is ConsumeQueue else 46))
        g = read_any(self.log, queue, at, &to, wanted, ask, &manner)
    if not correct_offset and is_corrected(g.status):
        g.next_offset = at
    result = GetMessageResult.__new__(GetMessageResult)
    result.found = g
    result.message_count = manner.messages
    result.suggest_pulling_from_slave = (manner.last_physical >= 0
                                         and manner.log_end - manner.last_physical > to.memory_bytes)
    result.views = ranges_of(g)
    return result


def unit_at(Core self not None, topic, queue_id, offset) -> QueueUnit:
    """Find the unit of a queue offset. Its ``record`` reads the message. In a batch queue: the unit whose record holds
    this offset.

    Raises: OffsetError outside the queue; StoreClosed.
    """
    cdef int64_t id_ = number(queue_id, "queue_id", 0, 0x7FFFFFFF)
    cdef int64_t at = number(offset, "offset", -MAX_OFFSET, MAX_OFFSET)
    if mq_load32(&self.state.flags) & (LOG_CLOSED | LOG_FORKED):
        self.log.check_state()
    queue = find_queue(self, topic_name(topic), id_, at, 1)
    if queue is None:
        raise OffsetError(f"queue {topic}/{queue_id} does not exist")
    return unit_of_any(self.log, queue, at)


def record_at(Core self not None, physical_offset) -> memoryview:
    """View the whole record that starts at a physical offset, read-only and zero-copy; the view keeps the file.

    Raises: OffsetError outside the log; CorruptFile if no record starts there; UsageError for no whole number;
    StoreClosed.
    Source: DefaultMessageStore.selectOneMessageByOffset.
    """
    cdef int64_t at = number(physical_offset, "physical_offset", INT64_MIN, INT64_MAX)
    cdef StoredMessage message
    cdef RecordRange found
    if mq_load32(&self.state.flags) & (LOG_CLOSED | LOG_FORKED):
        self.log.check_state()
    message = self.log.message(at)
    message.fields()
    found = RecordRange.__new__(RecordRange)
    found.held = message.owner
    found.p = message.p
    found.n = message.record.total
    return memoryview(found)
