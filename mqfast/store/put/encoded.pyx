"""Puts of encoded fields: the fields of a broker's request, and stored records under another topic (RocketMQ:
MessageExtBrokerInner, MessageExtEncoder).

No Python object is made for a field, no buffer of the caller is kept, and no byte is written before every check has
passed. Checks and append: put_record.pyx.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.base.os_api cimport mq_get16, mq_get32
from mqfast.store.core cimport Core
from mqfast.store.log.append cimport Appended
from mqfast.store.put.bodies cimport borrow_body
from mqfast.store.put.put_record cimport (
    INNER_BATCH,
    MAX_INT,
    MAX_PROPERTIES,
    Block,
    Element,
    append_block,
    append_record,
    check_block,
    is_left_to_dispatch,
    measure,
    queue_of,
    without_crc,
)
from mqfast.store.put.put_result cimport BatchResult, PutResult, fill_result
from mqfast.store.queues.consume_queue cimport QueueState
from mqfast.store.record.record cimport (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Draft,
    PropertyRefs,
    Record,
    StoredMessage,
    check_crc,
    encode_draft,
    find_properties,
    parse_int,
    waits_for_disk,
)

from mqfast.errors import CorruptFile, MessageIllegal, MessageTooLarge, PropertiesTooLong, TopicTooLong
from mqfast.store.base.results import PutMessageStatus

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    bint PyLong_CheckExact(object value)

# The value of a short int without a call; 0: the int is longer, or this Python does not expose the value.
cdef extern from *:
    """
    static inline int mq_short_int(PyObject *value, long long *number) {
    #if PY_VERSION_HEX >= 0x030C0000
        if (!PyUnstable_Long_IsCompact((PyLongObject *)value)) return 0;
        *number = PyUnstable_Long_CompactValue((PyLongObject *)value);
    #else
        Py_ssize_t digits = Py_SIZE(value);
        if (digits < -1 || digits > 2) return 0;
        *number = (long long)((PyLongObject *)value)->ob_digit[0];
        if (digits == 2)
            *number |= (long long)((PyLongObject *)value)->ob_digit[1] << PyLong_SHIFT;
        else
            *number *= digits;
    #endif
        return 1;
    }
    """
    bint mq_short_int(object value, long long *number)

cdef int OK = PutMessageStatus.PUT_OK
cdef int64_t MIN_INT = -<int64_t> MAX_INT - 1
cdef int64_t MAX_LONG = 0x7FFFFFFFFFFFFFFF
cdef int64_t MIN_LONG = -MAX_LONG - 1
cdef int HEAD_BYTES = 20        # of a batch element: size, magic, CRC, flag, length of the body


# --- the fields ------------------------------------------------------------------------------------------------------

cdef inline int64_t whole(object value, str what, int64_t low, int64_t high) except? -1:
    cdef long long number
    if PyLong_CheckExact(value) and mq_short_int(value, &number) and low <= number <= high:
        return number
    return _whole(value, what, low, high)


cdef int64_t _whole(object value, str what, int64_t low, int64_t high) except? -1:
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(value):
        raise MessageIllegal(f"{what}: expected an int, found {type(value).__name__}")
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or number < low or number > high:
        raise MessageIllegal(f"{what}: expected {low} to {high}, found {value}")
    return number


cdef inline int _ready(object value, str what) except -1:
    if not PyBytes_CheckExact(value):
        raise MessageIllegal(f"{what}: expected bytes, found {type(value).__name__}")
    return 0


cdef inline const uint8_t *_host(object host, str what, Draft *d, int32_t v6) except NULL:
    cdef Py_ssize_t n
    _ready(host, what)
    n = PyBytes_GET_SIZE(host)
    if n == 20:
        d.sys_flag |= v6
    elif n != 8:
        raise MessageIllegal(f"{what}: expected 8 bytes (IPv4 address and port) or 20 (IPv6), found {n}")
    return <const uint8_t *> PyBytes_AS_STRING(host)


cdef inline int _fill(Core e, Draft *d, object topic, object queue_id, object sys_flag, object born_timestamp,
                      object born_host, object store_host, object reconsume_times) except -1:
    """Fill the common fields of the records of a put; the arguments keep the bytes."""
    _ready(topic, "topic")
    if PyBytes_GET_SIZE(topic) > 255:
        raise TopicTooLong(f"topic: expected at most 255 bytes, found {PyBytes_GET_SIZE(topic)}: {topic[:40]!r}...")
    d.topic = <const uint8_t *> PyBytes_AS_STRING(topic)
    d.topic_bytes = <int32_t> PyBytes_GET_SIZE(topic)
    d.queue_id = <int32_t> whole(queue_id, "queue_id", 0, MAX_INT)
    d.sys_flag = <int32_t> whole(sys_flag, "sys_flag", MIN_INT, MAX_INT) & ~(BORN_HOST_V6 | STORE_HOST_V6)
    if born_timestamp is None:
        d.born_timestamp = e.state.os.clock_ms(e.state.os)
    else:
        d.born_timestamp = whole(born_timestamp, "born_timestamp", MIN_LONG, MAX_LONG)
    d.born_host = _host(e.born_host if born_host is None else born_host, "born_host", d, BORN_HOST_V6)
    d.store_host = _host(e.store_host if store_host is None else store_host, "store_host", d, STORE_HOST_V6)
    d.reconsume_times = <int32_t> whole(reconsume_times, "reconsume_times", MIN_INT, MAX_INT)
    return 0


cdef inline int _fill_properties(Draft *d, bytes properties) except -1:
    if PyBytes_GET_SIZE(properties) > MAX_PROPERTIES:
        raise PropertiesTooLong(f"properties: expected at most {MAX_PROPERTIES} bytes, found "
                                f"{PyBytes_GET_SIZE(properties)}")
    d.properties = <const uint8_t *> PyBytes_AS_STRING(properties)
    d.properties_bytes = <int32_t> PyBytes_GET_SIZE(properties)
    return 0


cdef inline int _borrow(object body, Py_buffer *view) except -1:
    try:
        return borrow_body(body, view)
    except (TypeError, BufferError, ValueError) as error:
        raise MessageIllegal(f"body: expected a contiguous bytes-like object, found {type(body).__name__}") from error


cdef inline int _append(Core e, Draft *d, const uint8_t *body, Py_ssize_t n, bytes properties, const PropertyRefs *f,
                        Appended *out) except -1:
    if n > e.max_body:
        raise MessageTooLarge(f"body: expected at most {e.max_body} bytes, found {n}")
    d.body = body
    d.body_bytes = <int32_t> n
    return append_record(e, d, properties, f, out)


cdef inline int _answer(Core e, PutResult r, const Appended *out, object store_host, bint wait) except -1:
    fill_result(r, out, OK)
    r.host = store_host
    if wait:
        r.outcome = e.wait_durable(out.physical_offset + out.size, e.sync_timeout_ns)
    return 0


# --- a record --------------------------------------------------------------------------------------------------------

def put_encoded(Core self not None, topic, queue_id, body, properties=b"", flag=0, sys_flag=0, born_timestamp=None,
                born_host=None, store_host=None, reconsume_times=0, prepared_transaction_offset=0, wait=True,
                PutResult result=None) -> PutResult:
    """Store a message with encoded fields: the record that ``MessageStore.put_message`` makes of the same fields.

    Args: topic: bytes, UTF-8; body: any contiguous buffer; properties: the property string, stored unchanged; sys_flag:
    with the transaction bits of a half, commit or rollback message (prepared and rolled back messages get queue offset
    0 and no unit); the host bits are set from the hosts; born_timestamp: ms since the epoch, None for now; born_host,
    store_host: address and port as 8 bytes (IPv4) or 20 (IPv6), None for the configured hosts; wait: with sync flush,
    wait for the disk, unless the properties have a WAIT that is not ``true``; result: a PutResult without other
    references, to be filled instead of a new object.
    Returns: PutResult. Raises: MessageIllegal (MessageTooLarge, PropertiesTooLong, TopicTooLong) before any byte is
    written; otherwise as MessageStore.put. Thread: any. GIL: released only during a wait. Durability: as
    MessageStore.put.
    Source: DefaultMessageStore.putMessage with a MessageExtBrokerInner; WAIT: Message.isWaitStoreMsgOK.
    """
    cdef Draft d
    cdef PropertyRefs f
    cdef Appended out
    cdef Py_buffer view
    cdef bytes text
    _fill(self, &d, topic, queue_id, sys_flag, born_timestamp, born_host, store_host, reconsume_times)
    d.flag = <int32_t> whole(flag, "flag", MIN_INT, MAX_INT)
    d.prepared_offset = whole(prepared_transaction_offset, "prepared_transaction_offset", MIN_LONG, MAX_LONG)
    _ready(properties, "properties")
    text = without_crc(properties) if self.state.crc_property else properties
    _fill_properties(&d, text)
    find_properties(d.properties, d.properties_bytes, &f)
    if result is None:
        result = PutResult.__new__(PutResult)
    if PyBytes_CheckExact(body):
        _append(self, &d, <const uint8_t *> PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), text, &f, &out)
    else:
        _borrow(body, &view)
        try:
            _append(self, &d, <const uint8_t *> view.buf, view.len, text, &f, &out)
        finally:
            PyBuffer_Release(&view)
    _answer(self, result, &out, self.store_host if store_host is None else store_host, self.sync_flush and wait
            and waits_for_disk(&f))
    return result


def put_stored(Core self not None, physical_offset, topic=None, queue_id=None, properties=None, *, sys_flag=None,
               born_timestamp=None, store_host=None, reconsume_times=None, prepared_transaction_offset=None, wait=True,
               PutResult result=None) -> PutResult:
    """Store the message at a physical offset of this log again, under another topic, queue or properties.

    The body is not decoded: its checksum is compared, then the body is copied from the log to its end. For delays,
    retries, transactions and timers.
    Args: physical_offset: of a whole readable record; every other argument: as put_encoded, None keeps the record's
    value. properties: never with the checksum property of another record. flag and born host are kept.
    Returns: PutResult. Raises: OffsetError outside the log; CorruptFile if no record starts there or its CRC is wrong;
    otherwise as put_encoded.
    GIL: released while the stored body is read. Durability: as MessageStore.put.
    Source: ScheduleMessageService.messageTimeUp, EndTransactionProcessor.endMessageTransaction.
    """
    cdef StoredMessage stored = self.log.message(whole(physical_offset, "physical_offset", MIN_LONG, MAX_LONG))
    cdef Record *r
    cdef Draft d
    cdef PropertyRefs f
    cdef Appended out
    cdef bytes text, born, host     # kept while the draft points into them
    cdef bint whole_body
    stored.fields()
    r = &stored.record
    with nogil:             # pages that are not in memory are read here, not under the put lock
        whole_body = check_crc(stored.p, r, False)
    if not whole_body:
        raise CorruptFile("body CRC differs", path=self.log.path, offset=physical_offset, expected=r.body_crc,
                          found="another")
    if store_host is None:
        store_host = (<const char *> r.store_host)[:r.store_host_bytes]
    _ready(store_host, "store_host")
    host = store_host
    born = (<const char *> r.born_host)[:r.born_host_bytes]
    if topic is None:
        topic = (<const char *> r.topic)[:r.topic_bytes]
    _fill(self, &d, topic, r.queue_id if queue_id is None else queue_id,
          r.sys_flag if sys_flag is None else sys_flag, r.born_timestamp if born_timestamp is None else born_timestamp,
          born, host, r.reconsume_times if reconsume_times is None else reconsume_times)
    d.flag = r.flag
    d.prepared_offset = (r.prepared_offset if prepared_transaction_offset is None
                         else whole(prepared_transaction_offset, "prepared_transaction_offset", MIN_LONG, MAX_LONG))
    if properties is None:
        properties = (<const char *> r.properties)[:r.properties_bytes]
    _ready(properties, "properties")
    text = without_crc(properties)
    _fill_properties(&d, text)
    find_properties(d.properties, d.properties_bytes, &f)
    if result is None:
        result = PutResult.__new__(PutResult)
    _append(self, &d, r.body, r.body_bytes, text, &f, &out)
    _answer(self, result, &out, host, self.sync_flush and wait and waits_for_disk(&f))
    return result


# --- a client's batch ------------------------------------------------------------------------------------------------

def put_batch_encoded(Core self not None, topic, queue_id, body, properties=b"", sys_flag=0, born_timestamp=None,
                      born_host=None, store_host=None, reconsume_times=0, wait=True) -> BatchResult:
    """Store the messages of a client's batch, as encoded in its request (code 320): all or none, adjacent, with the
    same store time.

    Args: body: the encoded messages, adjacent: for each size, magic code, CRC (these three are not used), flag, length
    and bytes of the body, length and bytes of the properties; properties: of the batch itself, which are not stored (as
    since RocketMQ 5.5), but whose WAIT and DELAY count; the other arguments, as in put_encoded, apply to every message.
    Returns: BatchResult, in order. Raises: MessageIllegal, naming the message and its position in the body, for a batch
    that is cut short, empty, delayed or transactional; MessageTooLarge if together they exceed ``max_message_bytes`` or
    a log file; otherwise as put_encoded. Then nothing was written.
    Durability: a process killed in the middle of the append may leave the first of them, as in RocketMQ.
    Source: MessageExtEncoder.encode(MessageExtBatch, PutMessageContext), CommitLog.asyncPutMessages.
    """
    cdef Draft d
    cdef PropertyRefs f
    cdef Py_buffer view
    cdef Block b
    cdef BatchResult result = BatchResult.__new__(BatchResult)
    _fill(self, &d, topic, queue_id, sys_flag, born_timestamp, born_host, store_host, reconsume_times)
    d.prepared_offset = 0
    if d.sys_flag & TRANSACTION_MASK:
        raise MessageIllegal("batch: expected no transaction bits in sys_flag")
    if d.sys_flag & INNER_BATCH:
        raise MessageIllegal("batch: expected no inner batch bit in sys_flag; an inner batch is one message, for "
                             "put_encoded")
    _ready(properties, "properties")
    find_properties(<const uint8_t *> PyBytes_AS_STRING(properties),
                    <int32_t> min(PyBytes_GET_SIZE(properties), <Py_ssize_t> MAX_INT), &f)
    wait = wait and waits_for_disk(&f)
    if f.delay != NULL and parse_int(f.delay, f.delay_bytes, 0) > 0:
        raise MessageIllegal("batch: expected no delay level")
    result.host = self.store_host if store_host is None else store_host
    b.records = NULL
    b.elements = NULL
    _borrow(body, &view)
    try:
        _encode_batch(self, &d, <const uint8_t *> view.buf, view.len, &b)
        result.items = <Appended *> PyMem_Malloc(b.count * sizeof(Appended))
        if result.items == NULL:
            raise MemoryError()
        append_block(self, &b, True, result.items)
    finally:
        PyBuffer_Release(&view)
        PyMem_Free(b.records)
        PyMem_Free(b.elements)
    result.count = b.count
    if self.sync_flush and wait:
        result.outcome = self.wait_durable(result.end_offset, self.sync_timeout_ns)
    return result


# The positions of the parts of a batch element.
cdef struct Part:
    int32_t flag
    int64_t body
    int32_t body_bytes
    int64_t properties
    int32_t properties_bytes
    int64_t end


cdef bint _read_part(const uint8_t *p, int64_t n, int64_t at, Part *part) noexcept nogil:
    """Parse the element at `at` of a batch of n bytes; False for an incomplete element."""
    if n - at < HEAD_BYTES:
        return False
    part.flag = mq_get32(p + at + 12)
    part.body_bytes = mq_get32(p + at + 16)
    part.body = at + HEAD_BYTES
    if part.body_bytes < 0 or n - part.body < <int64_t> part.body_bytes + 2:
        return False
    part.properties = part.body + part.body_bytes + 2
    part.properties_bytes = mq_get16(p + part.properties - 2)
    part.end = part.properties + part.properties_bytes
    return part.properties_bytes >= 0 and part.end <= n


cdef int _encode_batch(Core e, Draft *d, const uint8_t *p, int64_t n, Block *b) except -1:
    """Encode the records of a batch body, with the data for the append of each. The body may change meanwhile, so each
    part is read once.
    """
    cdef Part part
    cdef PropertyRefs f
    cdef Element *element
    cdef QueueState *q
    cdef int64_t at = 0, total = 0, around, size
    cdef Py_ssize_t count = 0, i
    cdef bint is_batch
    d.body_bytes = d.properties_bytes = 0
    around = measure(e, d, False)
    while at < n:
        if not _read_part(p, n, at, &part):
            raise MessageIllegal(f"batch: message {count} at byte {at} of the body: expected a whole message, found "
                                 f"{n - at} bytes that are none")
        if part.body_bytes > e.max_body:
            raise MessageTooLarge(f"batch: message {count}: expected a body of at most {e.max_body} bytes, found "
                                  f"{part.body_bytes}")
        total += around + part.body_bytes + part.properties_bytes
        at = part.end
        count += 1
    if count == 0:
        raise MessageIllegal("batch: expected at least one message, found an empty body")
    check_block(e, total)
    b.records = <uint8_t *> PyMem_Malloc(total)
    b.elements = <Element *> PyMem_Malloc(count * sizeof(Element))
    if b.records == NULL or b.elements == NULL:
        raise MemoryError()
    b.count = count
    b.total = at = 0
    q = queue_of(e, d, &is_batch)
    for i in range(count):
        if not _read_part(p, n, at, &part) or b.total + around + part.body_bytes + part.properties_bytes > total:
            raise MessageIllegal(f"batch: message {i}: expected a body that does not change while it is put")
        at = part.end
        d.flag = part.flag
        d.body = p + part.body
        d.body_bytes = part.body_bytes
        d.properties = p + part.properties
        d.properties_bytes = part.properties_bytes
        size = measure(e, d, False)     # the properties of a batch are stored unchanged, as in RocketMQ
        find_properties(d.properties, d.properties_bytes, &f)
        if e.multi_dispatch and f.multi_dispatch != NULL:
            raise MessageIllegal(f"batch: message {i}: light queues must be put one by one")
        element = &b.elements[i]
        element.queue = q
        element.sys_flag = d.sys_flag
        element.later = is_left_to_dispatch(e, d, &f, &element.tags_code) or is_batch
        element.size = <int32_t> size
        encode_draft(b.records + b.total, d)
        b.total += size
    if b.total != total:
        raise MessageIllegal("batch: expected a body that does not change while it is put")
    return 0
