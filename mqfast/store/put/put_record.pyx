"""Records of any kind to the end of the log: a Message or several, light queues, inner batches (RocketMQ:
DefaultMessageStore.putMessage, putMessages, HookUtils.checkBeforePutMessage, MultiDispatch).

No byte is written before every check has passed, and the put lock is never held during a wait for the GIL.
put_message.pyx has the bound producer, whose records are of the most common kind; encoded.pyx has the puts of encoded
fields.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy
from mqfast.store.base.os_api cimport mq_load32, mq_short_equal, refuse_nested
from mqfast.store.core cimport Core, integer
from mqfast.store.log.append cimport Appended, append_draft, append_encoded, refused
from mqfast.store.log.log_state cimport (
    APPEND_MOVED, APPEND_OK, BLANK_BYTES, LOG_FAILED, LogState, try_to_lock_puts, unlock_puts,
)
from mqfast.store.put.bodies cimport borrow_body
from mqfast.store.put.put_result cimport BatchResult, PutResult, fill_result
from mqfast.store.queues.consume_queue cimport ConsumeQueue, QueueState
from mqfast.store.record.record cimport (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Draft,
    PropertyRefs,
    draft_bytes,
    encode_draft,
    find_properties,
    jhash,
    waits_for_disk,
)

from mqfast import properties as _properties
from mqfast.errors import MessageIllegal, MessageTooLarge, PropertiesTooLong, TopicTooLong
from mqfast.message import Message, check_topic, parse_host
from mqfast.store.base.results import PutMessageStatus

cdef int OK = PutMessageStatus.PUT_OK
cdef int64_t MIN_INT = -<int64_t> MAX_INT - 1
cdef int64_t MAX_LONG = 0x7FFFFFFFFFFFFFFF
cdef int64_t MIN_LONG = -MAX_LONG - 1


# --- a record --------------------------------------------------------------------------------------------------------

cdef int64_t measure(Core e, Draft *d, bint separated) except -1:
    """Set the derived fields of a record, and check its sizes. Returns: the bytes of the record.

    separated: put a separator between properties without a final separator and the checksum property.

    Raises: TopicTooLong, PropertiesTooLong, MessageTooLarge.
    """
    cdef int64_t total, reserved = 0
    # RocketMQ checks the characters only; in version 1 a length of more than 127 bytes would read as negative
    d.version_2 = d.topic_bytes > 127
    if d.version_2 and not e.version_2_allowed:
        raise TopicTooLong(f"topic: expected at most 127 bytes while auto_message_version_on_topic_len is off, found "
                           f"{d.topic_bytes}")
    d.crc_property = e.state.crc_property
    d.separator = separated and d.crc_property and d.properties_bytes > 0 and d.properties[d.properties_bytes - 1] != 2
    if d.crc_property:
        reserved = 21 if d.separator else 20
    if d.properties_bytes + reserved > MAX_PROPERTIES:
        raise PropertiesTooLong(f"properties: expected at most {MAX_PROPERTIES - reserved} bytes, found "
                                f"{d.properties_bytes}")
    total = draft_bytes(d)
    if total + BLANK_BYTES > e.log.file_bytes:
        raise MessageTooLarge(f"record: expected at most {e.log.file_bytes - BLANK_BYTES} bytes (a log file less its"
                              f" end mark), found {total}")
    return total


cdef QueueState *queue_of(Core e, const Draft *d, bint *is_batch) except NULL:
    """Return the queue of a record; a missing queue is created. is_batch: the units have 46 bytes, and only the
    dispatcher puts them.

    Raises: MessageIllegal and TopicTooLong for an invalid topic.
    """
    cdef QueueState *q = e.last_queue       # the table keeps it allocated, also after its removal
    cdef ConsumeQueue queue
    is_batch[0] = False
    if (q != NULL and q.queue_id == d.queue_id and q.topic_bytes == d.topic_bytes and not q.deleted
            and mq_short_equal(q.topic, d.topic, d.topic_bytes)):
        return q
    q = e.table.find(d.topic, d.topic_bytes, d.queue_id)
    if q != NULL and not q.deleted:
        e.last_queue = q
    else:
        refuse_nested()
        try:
            topic = (<const char *> d.topic)[:d.topic_bytes].decode("utf-8")
        except UnicodeDecodeError:
            raise MessageIllegal(f"topic: expected UTF-8 text, found "
                                 f"{(<const char *> d.topic)[:d.topic_bytes]!r:.80}") from None
        check_topic(topic)
        queue = e.queues.find_or_create(topic, d.queue_id)        # the queue store keeps it allocated
        q = &queue.state
        is_batch[0] = e.queues.is_batch(topic)
    return q


cdef bint is_left_to_dispatch(Core e, const Draft *d, const PropertyRefs *f, int64_t *tags_code) noexcept:
    """Return True if the record needs more than a unit with the tags' hash, which is set. As dispatch.pyx decides."""
    cdef bint indexed = e.dispatcher.index is not None and d.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
    tags_code[0] = jhash(f.tags, f.tags_bytes, 0) if f.tags != NULL else 0
    return ((indexed and (f.tags != NULL or f.keys != NULL or f.uniq_key != NULL))
            or (f.delay != NULL and d.topic_bytes == 19 and memcmp(d.topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0)
            or (e.multi_dispatch and f.multi_dispatch != NULL))


cdef inline bint _starts_with(const Draft *d, const char *word, int32_t n) noexcept nogil:
    return d.topic_bytes >= n and memcmp(d.topic, word, n) == 0


cdef inline bint _has_light_queues(Core e, const Draft *d, const PropertyRefs *f) noexcept:
    return (e.multi_dispatch and f.multi_dispatch != NULL and not _starts_with(d, b"%RETRY%", 7)
            and not _starts_with(d, b"rmq_sys_", 8)
            and not (d.topic_bytes == 19 and _starts_with(d, b"SCHEDULE_TOPIC_XXXX", 19)))


cdef int append_record(Core e, Draft *d, bytes properties, const PropertyRefs *f, Appended *out) except -1:
    """Append a record with a checked body; `d` has `properties`, and `f` their references."""
    cdef int64_t total, tags_code
    cdef bint later
    if d.sys_flag & INNER_BATCH or _has_light_queues(e, d, f):
        return _append_special(e, d, properties, _has_light_queues(e, d, f), out)
    total = measure(e, d, True)
    later = is_left_to_dispatch(e, d, f, &tags_code)
    _append(e, d, total, later, tags_code, -1, 1, NULL, 0, out)
    return 0


# A light queue of a record, and the offset there in its properties.
cdef struct Light:
    QueueState *queue
    int64_t offset


cdef int _append(Core e, const Draft *d, int64_t total, bint later, int64_t tags_code, int64_t expected,
                 int64_t advance, const Light *lights, Py_ssize_t light_count, Appended *out) except -1:
    """Append. Returns APPEND_OK, or APPEND_MOVED if a queue's offset differs from the properties (expected, lights)."""
    cdef LogState *s = e.state
    cdef QueueState *q
    cdef bint is_batch
    cdef Py_ssize_t i
    cdef int rc
    while True:
        q = queue_of(e, d, &is_batch)
        if not try_to_lock_puts(s):
            e.contended()
            continue
        if refused(s, q):
            unlock_puts(s)
            e.log.raise_state()
            continue
        rc = APPEND_OK
        for i in range(light_count):
            if lights[i].queue.deleted or lights[i].queue.next_offset != lights[i].offset:
                rc = APPEND_MOVED
        if rc == APPEND_OK:
            rc = append_draft(s, q, d, <int32_t> total, later or is_batch, tags_code, expected, advance, -1, out)
        if rc == APPEND_OK:
            for i in range(light_count):
                lights[i].queue.next_offset += 1
        unlock_puts(s)
        if rc == APPEND_MOVED:
            return rc
        if rc == APPEND_OK:
            break
        e.log.roll(total)
    if mq_load32(&s.flags) & LOG_FAILED:        # the record's page may be lost
        e.log.raise_state()
    return APPEND_OK


cdef int _append_special(Core e, Draft *d, bytes properties, bint has_lights, Appended *out) except -1:
    """Append to light queues, or an inner batch: the property text has queue offsets, so the text is created again
    after they moved.
    """
    cdef str topic = (<const char *> d.topic)[:d.topic_bytes].decode("utf-8")
    cdef int64_t advance = 1, expected = -1
    cdef QueueState *q
    cdef ConsumeQueue light
    cdef Light *lights = NULL
    cdef Py_ssize_t count = 0
    cdef bint is_batch
    cdef list names = []
    refuse_nested()
    fields = _properties.decode(properties)
    if d.sys_flag & INNER_BATCH:
        try:
            advance = int(fields.get(_properties.INNER_NUM, ""))
        except ValueError:
            advance = 0
        if advance <= 0 or advance > 32767:
            raise MessageIllegal(f"inner batch: expected INNER_NUM from 1 to 32767, found "
                                 f"{fields.get(_properties.INNER_NUM)!r}")
        if not e.queues.is_batch(topic):
            raise MessageIllegal(f"inner batch: expected a topic with queue.type=BatchCQ, found {topic!r}")
    if has_lights:
        names = fields[_properties.INNER_MULTI_DISPATCH].split(",")
        for name in names:
            if name.startswith("%LMQ%"):
                check_topic(name)       # it becomes a directory
        lights = <Light *> PyMem_Malloc(len(names) * sizeof(Light))
        if lights == NULL:
            raise MemoryError()
    try:
        while True:
            if d.sys_flag & INNER_BATCH:
                q = queue_of(e, d, &is_batch)
                expected = q.next_offset
                fields[_properties.INNER_BASE] = str(expected)
            if has_lights:
                count = 0
                offsets = []
                for name in names:
                    if name.startswith("%LMQ%"):
                        light = e.queues.find_or_create(name, 0)      # the queue store keeps it allocated
                        lights[count].queue = &light.state
                        lights[count].offset = light.next_offset
                        offsets.append(str(lights[count].offset))
                        count += 1
                    else:
                        offsets.append("")
                fields[_properties.INNER_MULTI_QUEUE_OFFSET] = ",".join(offsets)
            properties = _properties.encode(fields)
            d.properties = <const uint8_t *> PyBytes_AS_STRING(properties)
            d.properties_bytes = <int32_t> PyBytes_GET_SIZE(properties)
            if _append(e, d, measure(e, d, True), True, 0, expected, advance, lights, count, out) == APPEND_OK:
                return 0
    finally:
        PyMem_Free(lights)


cdef bytes without_crc(bytes properties):
    """Remove the checksum that a record brought from another store."""
    if b"__CRC32#\x01" not in properties:
        return properties
    fields = _properties.decode(properties)
    fields.pop(_properties.CRC32, None)
    return _properties.encode(fields)


# --- a Message -------------------------------------------------------------------------------------------------------

cdef int check_numbers(object message) except -1:
    """Check that the numbers of a Message fit their fields."""
    if not isinstance(message, Message):
        raise MessageIllegal(f"message: expected a Message, found {type(message).__name__}")
    integer(message.queue_id, "queue_id", 0, MAX_INT)
    integer(message.flag, "flag", MIN_INT, MAX_INT)
    integer(message.sys_flag, "sys_flag", MIN_INT, MAX_INT)
    integer(message.reconsume_times, "reconsume_times", MIN_INT, MAX_INT)
    integer(message.prepared_transaction_offset, "prepared_transaction_offset", MIN_LONG, MAX_LONG)
    if message.born_timestamp is not None:
        integer(message.born_timestamp, "born_timestamp", MIN_LONG, MAX_LONG)
    return 0


cdef bytes _encoded_properties(object message):
    try:
        return message.encoded_properties()
    except TypeError as error:
        raise MessageIllegal(f"properties: expected texts that have a UTF-8 form, found {error}") from error


cdef int _fill(Core e, Draft *d, object message, bytes topic, bytes properties, bytes born, bytes store,
               Py_buffer *view) except -1:
    """Fill a draft; `view` is acquired over the body and must be released."""
    body = message.encoded_body()
    try:
        borrow_body(body, view)
    except (TypeError, BufferError, ValueError) as error:
        raise MessageIllegal(f"body: expected a contiguous bytes-like object, found "
                             f"{type(message.body).__name__}") from error
    try:
        if view.len > e.max_body:
            raise MessageTooLarge(f"body: expected at most {e.max_body} bytes, found {view.len}")
        d.queue_id = message.queue_id
        d.flag = message.flag
        d.sys_flag = <int32_t> message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        if len(born) == 20:
            d.sys_flag |= BORN_HOST_V6
        if len(store) == 20:
            d.sys_flag |= STORE_HOST_V6
        d.born_timestamp = e.log.os_api.now_ms() if message.born_timestamp is None else message.born_timestamp
        d.reconsume_times = message.reconsume_times
        d.prepared_offset = message.prepared_transaction_offset
        d.born_host = <const uint8_t *> PyBytes_AS_STRING(born)
        d.store_host = <const uint8_t *> PyBytes_AS_STRING(store)
        d.body = <const uint8_t *> view.buf
        d.body_bytes = <int32_t> view.len
        d.topic = <const uint8_t *> PyBytes_AS_STRING(topic)
        d.topic_bytes = <int32_t> len(topic)
        d.properties = <const uint8_t *> PyBytes_AS_STRING(properties)
        d.properties_bytes = <int32_t> len(properties)
        return 0
    except BaseException:
        PyBuffer_Release(view)
        raise


cdef PutResult put_slow(Core e, object message, bint wait):
    """Put a message of any kind: everything is checked before the put lock is taken."""
    cdef bytes topic, properties, born, store
    cdef Draft d
    cdef PropertyRefs f
    cdef Py_buffer view
    cdef Appended out
    cdef PutResult r = PutResult.__new__(PutResult)     # before the append: after a MemoryError nothing is stored
    e.log.raise_state()
    refuse_nested()
    check_numbers(message)
    topic = check_topic(message.topic)
    properties = _encoded_properties(message)
    if e.state.crc_property:
        properties = without_crc(properties)
    born = e.born_host if message.born_host is None else parse_host(message.born_host)
    store = e.store_host if message.store_host is None else parse_host(message.store_host)
    _fill(e, &d, message, topic, properties, born, store, &view)
    try:
        find_properties(d.properties, d.properties_bytes, &f)
        wait = wait and e.sync_flush and message.wait_store_ok and waits_for_disk(&f)
        append_record(e, &d, properties, &f, &out)
    finally:
        PyBuffer_Release(&view)
    fill_result(r, &out, OK)
    r.host = store
    if wait:
        r.outcome = e.wait_durable(out.physical_offset + out.size, e.sync_timeout_ns)
    return r


# --- several messages ------------------------------------------------------------------------------------------------

cdef int check_block(Core e, int64_t total) except -1:
    """Raise MessageTooLarge for a classic batch whose records are too long together."""
    if total > e.max_body + 65536:
        raise MessageTooLarge(f"batch: expected at most {e.max_body + 65536} bytes of records, found {total}")
    if total + BLANK_BYTES > e.log.file_bytes:
        raise MessageTooLarge(f"batch: expected at most {e.log.file_bytes - BLANK_BYTES} bytes of records, found "
                              f"{total}")
    return 0


cdef BatchResult put_all(Core e, list given, bint together):
    """Check and encode all, then append them: as a block, or each by itself."""
    cdef Py_ssize_t i, n = len(given)
    cdef BatchResult result = BatchResult.__new__(BatchResult)
    cdef list records = []
    cdef bytes record
    cdef bint wait = e.sync_flush
    cdef Block b
    cdef int64_t at = 0
    result.host = e.store_host
    if n == 0:
        return result
    e.log.raise_state()
    refuse_nested()
    b.records = NULL
    b.count = n
    b.total = 0
    b.elements = <Element *> PyMem_Malloc(n * sizeof(Element))
    result.items = <Appended *> PyMem_Malloc(n * sizeof(Appended))
    try:
        if b.elements == NULL or result.items == NULL:
            raise MemoryError()
        for i in range(n):
            record = _encode_one(e, given[i], &b.elements[i], &wait)
            records.append(record)
            b.total += len(record)
        if together:
            check_block(e, b.total)
        b.records = <uint8_t *> PyMem_Malloc(b.total)
        if b.records == NULL:
            raise MemoryError()
        for record in records:
            memcpy(b.records + at, PyBytes_AS_STRING(record), len(record))
            at += len(record)
        append_block(e, &b, together, result.items)
    finally:
        PyMem_Free(b.records)
        PyMem_Free(b.elements)
    result.count = n
    if wait:
        result.outcome = e.wait_durable(result.end_offset, e.sync_timeout_ns)
    return result


cdef bytes _encode_one(Core e, object message, Element *element, bint *wait):
    """Encode a record of a batch, without offsets. wait: False after a message without wait."""
    cdef bytes topic, properties, born, store
    cdef Draft d
    cdef PropertyRefs f
    cdef Py_buffer view
    cdef bytearray record
    cdef bint is_batch
    check_numbers(message)
    if message.sys_flag & TRANSACTION_MASK:
        raise MessageIllegal("batch: expected no transaction bits in sys_flag")
    topic = check_topic(message.topic)
    properties = _encoded_properties(message)
    born = e.born_host if message.born_host is None else parse_host(message.born_host)
    store = e.store_host if message.store_host is None else parse_host(message.store_host)
    _fill(e, &d, message, topic, properties, born, store, &view)
    try:
        find_properties(d.properties, d.properties_bytes, &f)
        if d.sys_flag & INNER_BATCH or (e.multi_dispatch and f.multi_dispatch != NULL):
            raise MessageIllegal("batch: inner batches and light queues must be put one by one")
        element.size = <int32_t> measure(e, &d, True)
        record = bytearray(element.size)
        encode_draft(record, &d)
    finally:
        PyBuffer_Release(&view)
    wait[0] = wait[0] and message.wait_store_ok and waits_for_disk(&f)
    element.sys_flag = d.sys_flag
    element.later = is_left_to_dispatch(e, &d, &f, &element.tags_code)
    element.queue = queue_of(e, &d, &is_batch)
    element.later = element.later or is_batch
    return bytes(record)


cdef int append_block(Core e, Block *b, bint together, Appended *out) except -1:
    """Append the records: together with the same store time, all or none, or each by itself."""
    cdef LogState *s = e.state
    cdef Py_ssize_t i = 0, k, step = b.count if together else 1
    cdef int64_t at = 0, size
    while i < b.count:
        e.log.raise_state()
        if not try_to_lock_puts(s):
            e.contended()
            continue
        if _any_refused(s, b.elements + i, step):
            unlock_puts(s)
            for k in range(i, b.count):
                if b.elements[k].queue.deleted:
                    b.elements[k].queue = _again(e, b.elements[k].queue)
            continue
        size = b.total if together else b.elements[i].size
        if _append_records(s, b.records + at, size, step, b.elements + i, out + i):
            unlock_puts(s)
            at += size
            i += step
            continue
        unlock_puts(s)
        e.log.roll(size)
    if mq_load32(&s.flags) & LOG_FAILED:
        e.log.raise_state()
    return 0


cdef QueueState *_again(Core e, const QueueState *q) except NULL:
    """Return the current queue in place of a deleted queue."""
    cdef ConsumeQueue queue = e.queues.find_or_create((<const char *> q.topic)[:q.topic_bytes].decode("utf-8"),
                                                      q.queue_id)
    return &queue.state


cdef bint _any_refused(LogState *s, const Element *elements, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if refused(s, elements[i].queue):
            return True
    return False


cdef bint _append_records(LogState *s, uint8_t *records, int64_t total, Py_ssize_t n, const Element *elements,
                          Appended *out) noexcept nogil:
    """Append all records or none; the put lock is held."""
    cdef Py_ssize_t i
    cdef int64_t at = 0
    if s.written - s.file_start + total + BLANK_BYTES > s.file_bytes:
        return False
    for i in range(n):
        append_encoded(s, elements[i].queue, records + at, elements[i].size, elements[i].sys_flag, elements[i].later,
                       elements[i].tags_code, out[0].store_timestamp if i else -1, &out[i])
        at += elements[i].size
    return True
