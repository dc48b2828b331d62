"""Messages of requests from encoded records: batches for a queue each, every message with the mark of the row.

The checksum of a task's rows for a queue covers body, flags and properties of the rows. The checksum depends neither on
the boundaries of batches nor on a clock. Forms of marks: ``mqfast/remoting/once.py``; of batches: RocketMQ's
MessageDecoder.encodeMessages.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy
from mqfast.store.base.os_api cimport crc32_more, mq_put16, mq_put32
from mqfast.store.record.record cimport BORN_HOST_V6, REC_OK, STORE_HOST_V6, Record, parse_record

from mqfast.errors import InternalError, PropertiesTooLong

cdef int64_t MAX_PROPERTIES = 32767
cdef int64_t HEAD_BYTES = 20
cdef enum:
    TAIL_BYTES = 128        # of the mark's numbers and separators
    UNIQUE_BYTES = 43       # UNIQ_KEY, U+0001, 32 digits, U+0002


cdef bint has_name(const uint8_t *at, int64_t n, const char *name, int64_t name_bytes) noexcept nogil:
    cdef const uint8_t *end = at + n
    while end - at > name_bytes:
        if at[name_bytes] == 1 and memcmp(at, name, name_bytes) == 0:
            return True
        at = <const uint8_t *> memchr(at, 2, end - at)
        if at == NULL:
            return False
        at += 1
    return False


@cython.final
cdef class _Queue:
    """The unsent messages for a queue."""
    cdef bytes topic
    cdef int32_t queue
    cdef uint8_t *data
    cdef int64_t room
    cdef int64_t used
    cdef int64_t count
    cdef int64_t previous       # last row of the request before
    cdef int64_t last           # last row so far
    cdef uint32_t crc
    cdef int32_t sys_flag
    cdef int32_t reconsume_times
    cdef int64_t born
    cdef bytes division

    def __dealloc__(self):
        free(self.data)

    cdef int need(self, int64_t more) except -1:
        cdef uint8_t *grown
        if self.used + more > self.room:
            grown = <uint8_t *> realloc(self.data, 2 * (self.used + more))
            if grown == NULL:
                raise MemoryError()
            self.data = grown
            self.room = 2 * (self.used + more)
        return 0


@cython.final
cdef class Elements:
    """The encoder of a task's records into requests.

    Args: stamp: ``name U+0001 key:batch:partition:``; unique: the first 20 of 32 characters of the messages' unique
        keys; division: called with a topic, returns ``queues.brokers`` as bytes; keeps_ids: unique keys of the rows
        are kept; keeps_born: born times of the rows are kept; most_bytes, most_count: limits of a batch.
    Attributes: ``rows``: number of added rows; ``pending``: bytes in unfinished batches.
    Thread: one.
    """
    cdef bytes stamp
    cdef bytes unique
    cdef object division
    cdef bint keeps_ids
    cdef bint keeps_born
    cdef int64_t most_bytes
    cdef int64_t most_count
    cdef dict queues
    cdef readonly int64_t rows
    cdef readonly int64_t pending

    def __init__(self, bytes stamp not None, bytes unique not None, division, bint keeps_ids, bint keeps_born,
                 int64_t most_bytes, int64_t most_count):
        if PyBytes_GET_SIZE(unique) != 20:
            raise InternalError(f"unique: expected 20 characters, found {unique!r}")
        self.stamp = stamp
        self.unique = unique
        self.division = division
        self.keeps_ids = keeps_ids
        self.keeps_born = keeps_born
        self.most_bytes = most_bytes
        self.most_count = most_count
        self.queues = {}
        self.rows = self.pending = 0

    def add(self, block, bint delayed) -> list:
        """Add records, and return the full requests in order: (topic, queue, single, body, properties, count, previous,
        last, crc, sys_flag, born, reconsume_times, flag).

        Args: block: whole records of RowEncoder; a queue id may be any number; delayed: a record with a delay property
            becomes a separate request, with ``single``.
        Raises: PropertiesTooLong naming the row.
        """
        cdef Py_buffer view
        cdef const uint8_t *p
        cdef int64_t at = 0, element, n
        cdef Record r
        cdef _Queue q = None
        cdef list ready = []
        cdef int32_t sys_flag, single
        cdef int64_t born
        PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
        p = <const uint8_t *> view.buf
        try:
            while at < view.len:
                if parse_record(p + at, view.len - at, &r) != REC_OK:
                    raise InternalError(f"records of a task: expected a record at byte {at}")
                at += r.total
                if (q is None or q.queue != r.queue_id or PyBytes_GET_SIZE(q.topic) != r.topic_bytes
                        or memcmp(PyBytes_AS_STRING(q.topic), r.topic, r.topic_bytes) != 0):
                    q = self.queue_of(&r)
                sys_flag = r.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
                born = r.born_timestamp if self.keeps_born else 0
                element = (HEAD_BYTES + r.body_bytes + 2 + r.properties_bytes + UNIQUE_BYTES
                           + PyBytes_GET_SIZE(self.stamp) + TAIL_BYTES)
                single = delayed and self.is_delayed(&r)
                if q.count and (single or q.used + element > self.most_bytes or q.count >= self.most_count
                                or q.sys_flag != sys_flag or q.reconsume_times != r.reconsume_times or q.born != born):
                    ready.append(self.take(q))
                q.need(element)
                q.sys_flag = sys_flag
                q.reconsume_times = r.reconsume_times
                q.born = born
                if single:
                    ready.append(self.alone(q, &r))
                else:
                    n = self.write(q, q.data + q.used, &r)
                    q.used += n
                    self.pending += n
                    q.count += 1
                self.rows += 1
        finally:
            PyBuffer_Release(&view)
        return ready

    def rest(self) -> list:
        """Return the requests that are not full."""
        return [self.take(q) for q in self.queues.values() if (<_Queue> q).count]

    def ends(self) -> list:
        """Return the end of each queue: (topic, queue, last row, crc)."""
        return [
            ((<_Queue> q).topic, (<_Queue> q).queue, (<_Queue> q).last, (<_Queue> q).crc) for q in self.queues.values()
        ]

    cdef _Queue queue_of(self, const Record *r):
        cdef bytes topic = (<const char *> r.topic)[:r.topic_bytes]
        cdef _Queue q = self.queues.get((topic, r.queue_id))
        if q is None:
            q = _Queue.__new__(_Queue)
            q.topic = topic
            q.queue = r.queue_id
            q.previous = q.last = -1
            q.division = self.division(topic)
            self.queues[(topic, r.queue_id)] = q
        return q

    cdef bint is_delayed(self, const Record *r) noexcept:
        return (has_name(r.properties, r.properties_bytes, b"DELAY", 5)
                or has_name(r.properties, r.properties_bytes, b"TIMER_DELAY_MS", 14))

    cdef int64_t tail(self, _Queue q, uint8_t *to, const Record *r) except -1:
        """Write the properties after those of the row at `to`, and count the row. Returns: number of bytes."""
        cdef char numbers[TAIL_BYTES + 1]
        cdef uint8_t said[12]
        cdef int64_t n = 0, stamp_bytes = PyBytes_GET_SIZE(self.stamp)
        cdef int count
        mq_put32(said, r.body_crc)
        mq_put32(said + 4, r.flag)
        mq_put32(said + 8, q.sys_flag)
        q.crc = crc32_more(q.crc, said, 12)
        q.crc = crc32_more(q.crc, r.properties, r.properties_bytes)
        q.last = self.rows
        if r.properties_bytes and r.properties[r.properties_bytes - 1] != 2:
            to[0] = 2
            n = 1
        if not (self.keeps_ids and has_name(r.properties, r.properties_bytes, b"UNIQ_KEY", 8)):
            count = snprintf(numbers, TAIL_BYTES, "UNIQ_KEY\x01%.20s%012llX\x02", PyBytes_AS_STRING(self.unique),
                             <long long> self.rows)
            memcpy(to + n, numbers, count)
            n += count
        memcpy(to + n, PyBytes_AS_STRING(self.stamp), stamp_bytes)
        n += stamp_bytes
        count = snprintf(numbers, TAIL_BYTES, "%lld:%08x:%.40s\x02", <long long> self.rows, <unsigned int> q.crc,
                         PyBytes_AS_STRING(q.division))
        memcpy(to + n, numbers, count)
        n += count
        if r.properties_bytes + n > MAX_PROPERTIES:
            raise PropertiesTooLong(
                f"row {self.rows}: expected properties of at most {MAX_PROPERTIES - n} bytes beside the mark of the "
                f"row, found {r.properties_bytes}"
            )
        return n

    cdef int64_t write(self, _Queue q, uint8_t *to, const Record *r) except -1:
        cdef int64_t n
        cdef uint8_t *properties = to + HEAD_BYTES + r.body_bytes + 2
        memcpy(properties, r.properties, r.properties_bytes)
        n = r.properties_bytes + self.tail(q, properties + r.properties_bytes, r)
        mq_put32(to + 4, 0)
        mq_put32(to + 8, 0)
        mq_put32(to + 12, r.flag)
        mq_put32(to + 16, r.body_bytes)
        memcpy(to + HEAD_BYTES, r.body, r.body_bytes)
        mq_put16(properties - 2, <int16_t> n)
        n += HEAD_BYTES + r.body_bytes + 2
        mq_put32(to, <int32_t> n)
        return n

    cdef tuple take(self, _Queue q):
        """Return the batch of a queue, and begin an empty batch."""
        cdef bytes body = PyBytes_FromStringAndSize(<const char *> q.data, q.used)
        cdef tuple made = (q.topic, q.queue, False, body, b"", q.count, q.previous, q.last, q.crc, q.sys_flag, q.born,
                           q.reconsume_times, 0)
        q.previous = q.last
        self.pending -= q.used
        q.used = q.count = 0
        return made

    cdef tuple alone(self, _Queue q, const Record *r):
        """Return a request of a single message."""
        cdef bytes body = (<const char *> r.body)[:r.body_bytes]
        cdef bytes properties
        memcpy(q.data, r.properties, r.properties_bytes)
        properties = PyBytes_FromStringAndSize(
            <const char *> q.data, r.properties_bytes + self.tail(q, q.data + r.properties_bytes, r)
        )
        cdef tuple made = (q.topic, q.queue, True, body, properties, 1, q.previous, q.last, q.crc, q.sys_flag, q.born,
                           q.reconsume_times, r.flag)
        q.previous = q.last
        return made
