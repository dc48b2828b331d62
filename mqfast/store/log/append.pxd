# Appends of records, and the pages ahead of them.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from mqfast.store.queues.consume_queue cimport PUT_DONE, QueueState, queue_put
from mqfast.store.log.idle cimport refuses
from mqfast.store.log.log_state cimport APPEND_NO_ROOM, APPEND_OK, BLANK_BYTES, LogState, check_owner, note_clock_fall
from mqfast.store.record.record cimport Draft
from mqfast.store.log.log_watch cimport appended
from mqfast.store.base.os_api cimport (
    crc32_copy,
    mq_assert,
    mq_fetch_to_write,
    mq_load32,
    mq_load64,
    mq_planted,
    mq_prefetchw,
    mq_publish32,
    mq_put16,
    mq_put32,
    mq_put64,
    mq_short_copy,
    mq_store32,
    mq_store64,
)

cdef struct Appended:
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp
    int32_t size

# The parts that the records of a producer have in common, in record format.
cdef struct Template:
    uint8_t header[88]              # up to the body, without the fields that differ
    # behind the body: topic with its length byte, length of the properties, the properties
    const uint8_t *tail
    int32_t tail_bytes
    int32_t topic_bytes             # with the length byte
    int32_t properties_bytes
    bint dispatch_later             # units are not put with the record: for some topics, and where tags are indexed
    int64_t tags_code

# The bodies of a batch: pointers, or the rows of an array, with a constant distance and size.
cdef struct BodyList:
    const uint8_t **at              # NULL: rows
    int32_t *sizes
    const uint8_t *rows
    int64_t step
    int32_t row_bytes

# Cache lines are prefetched before a record is written into them. The log is in no cache, and a processor that waits
# for each line takes half as long again for a record of 1 KiB.
cdef enum:
    FETCH_AHEAD = 4096              # distance behind the next record: nearer prefetches come too late for fast puts
    POPULATE_STEP = 131072          # a piece of prefault: short enough that a rising rate is noticed between two
    ZEROS_STEP = 524288             # the same where zeros go to the disk: each piece costs a sync

# The caller holds the put lock for these. The first two are here so that the loops of a put and of a batch inline them:
# a call costs 34 instructions.
cdef inline void write_record(uint8_t *p, const Template *t, const uint8_t *body, int32_t body_bytes,
                              const uint8_t *key, int32_t key_bytes,
                              int32_t total, int64_t queue_offset, int64_t physical, int64_t now) noexcept nogil:
    """Write a version 1 record with IPv4 hosts and constant header: copy the template, patch six fields, and the size
    word last.

    key: behind the template's properties, or NULL. Copy and CRC are a single pass that reads each byte once, so that
    they agree even if the caller's buffer changes meanwhile; into cold log memory the pass costs no more than the copy
    alone.
    """
    cdef uint8_t *at
    memcpy(p + 4, t.header + 4, 84)
    mq_put64(p + 20, queue_offset)
    mq_put64(p + 28, physical)
    mq_put64(p + 40, now)
    mq_put64(p + 56, now)
    mq_put32(p + 84, body_bytes)
    mq_put32(p + 8, <int32_t> (crc32_copy(p + 88, body, body_bytes) & 0x7FFFFFFF))
    at = p + 88 + body_bytes
    mq_short_copy(at, t.tail, t.tail_bytes)
    if key != NULL:
        mq_put16(at + t.topic_bytes, <short> (t.properties_bytes + key_bytes + 6))
        at += t.tail_bytes          # TAGS precede KEYS in the order of Java's map
        memcpy(at, "KEYS\x01", 5)
        memcpy(at + 5, key, key_bytes)
        at[5 + key_bytes] = 2
    mq_publish32(p, total)


cdef inline int append_one(LogState *s, QueueState *q, const Template *t, const uint8_t *body, int32_t body_bytes,
                           const uint8_t *key, int32_t key_bytes, int64_t now, Appended *out) noexcept nogil:
    """Append a record; with a key the unit is left to dispatch. now: the store time."""
    cdef int32_t total = 88 + body_bytes + t.tail_bytes + (key_bytes + 6 if key != NULL else 0)
    cdef int64_t physical = s.written
    cdef int64_t position = physical - s.file_start
    cdef bint in_place
    cdef uint8_t *p
    check_owner(s)
    mq_assert(body_bytes >= 0, body_bytes, 0)
    mq_assert(key_bytes >= 0, key_bytes, 0)
    mq_assert(q.next_offset >= 0, q.next_offset, 0)
    if position + total + BLANK_BYTES > s.file_bytes:
        return APPEND_NO_ROOM
    mq_assert(position >= 0, physical, s.file_start)
    mq_assert(not q.deleted, q.queue_id, q.next_offset)
    mq_assert(mq_load64(&s.dispatched) <= physical, s.dispatched, physical)
    # nothing older waits for the dispatcher, which then leaves the queue's unit to the put: only now may the unit
    # fields be read
    in_place = s.inline_dispatch and key == NULL and not t.dispatch_later and mq_load64(&s.dispatched) == physical
    if in_place:
        # a queue among thousands is in no cache
        mq_prefetchw(<void *> (<size_t> q.units + <size_t> (q.end - q.file_start)))
    if now < s.last_store_timestamp:
        note_clock_fall(s, now)
    mq_store64(&s.lock_since_ms, now)
    p = s.base + position
    write_record(p, t, body, body_bytes, key, key_bytes, total, q.next_offset, physical, now)
    if in_place:
        if queue_put(q, physical, total, t.tags_code, q.next_offset) == PUT_DONE:
            q.last_store_timestamp = now
            mq_store64(&s.dispatched, physical + total)
        else:
            mq_store32(&s.needs_dispatch, 1)
    out.physical_offset = physical
    out.queue_offset = q.next_offset
    out.store_timestamp = now
    out.size = total
    mq_store64(&q.next_offset, q.next_offset + 1)
    mq_store64(&s.puts, s.puts + 1)
    mq_assert(s.written == physical, s.written, physical)
    mq_store64(&s.written, physical + total if not mq_planted("written") else s.flushed - 1)
    mq_store64(&s.last_store_timestamp, now)     # after `written`: a reader of it never sees the time of a later record
    mq_store64(&s.lock_since_ms, 0)
    mq_fetch_to_write(p + total + FETCH_AHEAD, total)
    if mq_load32(&s.watched):
        appended(s, q if in_place else NULL)
    return APPEND_OK
cdef int append_encoded(LogState *s, QueueState *q, uint8_t *record, int32_t total, int32_t sys_flag,
                        bint dispatch_later, int64_t tags_code, int64_t now, Appended *out) noexcept nogil
cdef int append_draft(LogState *s, QueueState *q, const Draft *d, int32_t total, bint dispatch_later, int64_t tags_code,
                      int64_t expected, int64_t advance, int64_t now, Appended *out) noexcept nogil
cdef inline bint refused(LogState *s, QueueState *q) noexcept nogil:
    """Return true if nothing may be appended for this queue now: a flag of the log forbids it, or the topic was
    deleted.
    """
    return (mq_load32(&s.flags) != 0 and refuses(s)) or q.deleted
# The put lock is not held for these.
cdef Py_ssize_t append_many(LogState *s, QueueState *q, const Template *t, bint prefault, const BodyList *bodies,
                            Appended *out, Py_ssize_t start, Py_ssize_t n) noexcept nogil
cdef int prefault_piece(LogState *s, int64_t end, int64_t of_file, bint to_disk) noexcept nogil
