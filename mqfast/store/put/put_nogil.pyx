"""A put without the GIL, for threads without the interpreter: the most common records only.

The record is the one that put_encoded makes of the same fields. Nothing is refused here and no Python object is
touched: a record that needs more is left to put_encoded (PUT_LEFT), and then no byte was written.
"""

from libc.stdint cimport int32_t, int64_t
from mqfast.store.base.os_api cimport mq_load32, mq_load64
from mqfast.store.core cimport Core
from mqfast.store.log.append cimport Appended, append_draft, refused
from mqfast.store.log.log_state cimport (
    APPEND_OK,
    BLANK_BYTES,
    LOG_FAILED,
    LogState,
    try_to_lock_puts,
    unlock_puts,
    wait_to_lock_puts,
)
from mqfast.store.log.log_watch cimport unit_put
from mqfast.store.put.put_record cimport INNER_BATCH, MAX_PROPERTIES
from mqfast.store.queues.consume_queue cimport QUEUE_WATCHED, QueueState, find_in
from mqfast.store.record.record cimport (
    TRANSACTION_MASK,
    Draft,
    PropertyRefs,
    draft_bytes,
    find_properties,
    jhash,
)

cdef int SHORT_TOPIC_MAX = 127      # a longer topic needs version 2 of the record


cdef void open_entry(Core e, PutEntry *entry) noexcept:
    """Fill the entry of an open store."""
    entry.state = e.state
    entry.queues = &e.table.slots
    entry.max_body = e.max_body
    entry.file_bytes = e.log.file_bytes
    entry.busy_timeout_ms = e.busy_timeout_ms
    entry.is_indexed = e.dispatcher.index is not None
    entry.multi_dispatch = e.multi_dispatch


cdef bint _is_busy(const PutEntry *entry) noexcept nogil:
    """Return true if an append has held the put lock for too long (RocketMQ: osPageCacheBusyTimeOutMills)."""
    cdef LogState *s = entry.state
    cdef int64_t since = mq_load64(&s.lock_since_ms)
    return since != 0 and s.os.clock_ms(s.os) - since > entry.busy_timeout_ms


cdef int put_without_gil(const PutEntry *entry, Draft *d, Appended *out) noexcept nogil:
    """Store a record with checked fields, whose host bits are set. Returns: a PutOutcome."""
    cdef LogState *s = entry.state
    cdef PropertyRefs f
    cdef QueueState *q
    cdef int64_t total, tags_code
    cdef bint later
    cdef int outcome
    if (s.crc_property or d.sys_flag & (TRANSACTION_MASK | INNER_BATCH) or d.body_bytes > entry.max_body
            or d.topic_bytes > SHORT_TOPIC_MAX or d.properties_bytes > MAX_PROPERTIES):
        return PUT_LEFT
    find_properties(d.properties, d.properties_bytes, &f)
    if f.delay != NULL or (entry.multi_dispatch and f.multi_dispatch != NULL):
        return PUT_LEFT
    d.prepared_offset = 0
    d.version_2 = d.crc_property = d.separator = False
    total = draft_bytes(d)
    q = find_in(entry.queues, d.topic, d.topic_bytes, d.queue_id)
    if q == NULL or total + BLANK_BYTES > entry.file_bytes:
        return PUT_LEFT
    tags_code = jhash(f.tags, f.tags_bytes, 0) if f.tags != NULL else 0
    later = entry.is_indexed and (f.tags != NULL or f.keys != NULL or f.uniq_key != NULL)
    if not try_to_lock_puts(s):
        if _is_busy(entry):
            return PUT_LEFT
        wait_to_lock_puts(s)
    if refused(s, q):
        unlock_puts(s)
        return PUT_LEFT
    outcome = append_draft(s, q, d, <int32_t> total, later, tags_code, -1, 1, -1, out)
    if outcome == APPEND_OK and later and mq_load32(&q.watched) == QUEUE_WATCHED:
        unit_put(s, q)      # a waiting pull dispatches the record; the dispatcher may sleep for a millisecond
    unlock_puts(s)
    if outcome != APPEND_OK:
        return PUT_LEFT
    return PUT_LOST if mq_load32(&s.flags) & LOG_FAILED else PUT_STORED
