"""Append: records to the end of the log under the put lock, one or many, and the pages made ready ahead of the end.

Under the put lock: no Python object, no allocation, no sync. No byte is written before the room for the whole record is
known. Positions are physical offsets. Formats: FORMAT.md.

The order of an append: record bytes, size word (release), queue unit where it can be put at once, `dispatched`,
`written` (release). So a reader that sees `written` sees the whole record; a reader in another process that sees the
size word sees the rest of the record. A batch has the same order, with the queue's end, `dispatched` and `written` once
for all records of a run.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy
from mqfast.store.queues.consume_queue cimport PUT_DONE, UNIT_BYTES, QueueState, queue_put
from mqfast.store.log.group_commit cimport latch
from mqfast.store.log.log_state cimport (
    APPEND_MOVED,
    APPEND_NO_ROOM,
    APPEND_OK,
    BLANK_BYTES,
    RING,
    LOG_FAILED,
    LogState,
    check_owner,
    lock_puts,
    note_clock_fall,
    unlock_puts,
)
from mqfast.store.log.log_watch cimport appended
from mqfast.store.base.os_api cimport (
    futex_wake_all,
    mq_and32,
    mq_assert,
    mq_cas64,
    mq_fetch_to_write,
    mq_load32,
    mq_load64,
    mq_or32,
    mq_planted,
    mq_publish32,
    mq_put32,
    mq_put64,
    mq_store32,
    mq_store64,
    populate,
    touch,
    unmap_written,
)
from mqfast.store.record.record cimport (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Draft,
    encode_draft,
    finish_record,
)

# a batch releases the put lock after so many bytes, so that a concurrent single put does not wait long
cdef int64_t CHUNK_BYTES = 64 << 10
cdef int64_t PAGE = 4096
cdef int NO_PAGE = 14                    # EFAULT: populate's error where an access would be a SIGBUS
cdef int LOST = 5                        # EIO: a page or a whole file is lost


# --- the put lock is held (append_one, the most common record, is in append.pxd) ---

cdef inline int _begin(LogState *s, int32_t total, int64_t *now) noexcept nogil:
    """Begin the append if there is room for the record.

    Sets `now`, the store time, from the clock where it is -1.
    """
    check_owner(s)
    mq_assert(total >= 88, total, 88)
    mq_assert(s.written >= s.file_start, s.written, s.file_start)
    if s.written - s.file_start + total + BLANK_BYTES > s.file_bytes:
        return APPEND_NO_ROOM
    if now[0] < 0:
        now[0] = s.os.clock_ms(s.os)
    if now[0] < s.last_store_timestamp:
        note_clock_fall(s, now[0])
    mq_store64(&s.lock_since_ms, now[0])
    return APPEND_OK


cdef inline bint _is_counted(int32_t sys_flag) noexcept nogil:
    """Return false for prepared and rolled back messages, which have no queue offset and no unit."""
    cdef int32_t transaction = sys_flag & TRANSACTION_MASK
    return transaction != TRANSACTION_PREPARED and transaction != TRANSACTION_ROLLBACK


cdef inline void _finish(LogState *s, QueueState *q, uint8_t *p, int32_t total, bint counted, int64_t advance,
                         bint dispatch_later, int64_t tags_code, int64_t now, Appended *out) noexcept nogil:
    """Publish the record at p, complete but for the size word, with its unit where nothing older waits for the
    dispatcher.
    """
    cdef int64_t physical = s.written
    cdef int64_t queue_offset = q.next_offset if counted else 0
    mq_assert(advance > 0, advance, 0)
    mq_assert(queue_offset >= 0, queue_offset, 0)
    mq_assert(not q.deleted, q.queue_id, q.next_offset)
    mq_publish32(p, total)
    if s.inline_dispatch and not dispatch_later and mq_load64(&s.dispatched) == physical:
        if not counted:
            mq_store64(&s.dispatched, physical + total)
        elif queue_put(q, physical, total, tags_code, queue_offset) == PUT_DONE:
            q.last_store_timestamp = now
            mq_store64(&s.dispatched, physical + total)
        else:
            mq_store32(&s.needs_dispatch, 1)
    out.physical_offset = physical
    out.queue_offset = queue_offset
    out.store_timestamp = now
    out.size = total
    if counted:
        mq_store64(&q.next_offset, queue_offset + advance)
    mq_store64(&s.puts, s.puts + 1)
    mq_store64(&s.written, physical + total)
    mq_store64(&s.last_store_timestamp, now)     # after `written`: a reader of it never sees the time of a later record
    mq_store64(&s.lock_since_ms, 0)
    mq_fetch_to_write(p + total + FETCH_AHEAD, total)
    if mq_load32(&s.watched):
        appended(s, q if counted and not dispatch_later else NULL)


cdef int append_encoded(LogState *s, QueueState *q, uint8_t *record, int32_t total, int32_t sys_flag,
                        bint dispatch_later, int64_t tags_code, int64_t now, Appended *out) noexcept nogil:
    """Append a record that is complete but for offsets, store time and size.

    dispatch_later: the unit, or an entry of the index, is left to dispatch; else tags_code is the unit's. now: the
    store time, or -1 for the clock's.
    """
    cdef bint counted = _is_counted(sys_flag)
    cdef uint8_t *p
    if _begin(s, total, &now) != APPEND_OK:
        return APPEND_NO_ROOM
    p = s.base + (s.written - s.file_start)
    finish_record(record, total, q.next_offset if counted else 0, s.written, now, sys_flag, s.crc_property)
    memcpy(p + 4, record + 4, total - 4)
    _finish(s, q, p, total, counted, 1, dispatch_later, tags_code, now, out)
    return APPEND_OK


cdef int append_draft(LogState *s, QueueState *q, const Draft *d, int32_t total, bint dispatch_later, int64_t tags_code,
                      int64_t expected, int64_t advance, int64_t now, Appended *out) noexcept nogil:
    """Encode a record into its place in the log. total: the record's length.

    expected: the queue offset that the properties were made for, or -1. advance: number of queue offsets (an inner
    batch: several). Otherwise as append_encoded.
    """
    cdef bint counted = _is_counted(d.sys_flag)
    cdef uint8_t *p
    if expected >= 0 and q.next_offset != expected:
        return APPEND_MOVED
    if _begin(s, total, &now) != APPEND_OK:
        return APPEND_NO_ROOM
    p = s.base + (s.written - s.file_start)
    encode_draft(p, d)
    finish_record(p, total, q.next_offset if counted else 0, s.written, now, d.sys_flag, d.crc_property)
    _finish(s, q, p, total, counted, advance, dispatch_later, tags_code, now, out)
    return APPEND_OK


# --- the put lock is not held ---

cdef inline int32_t _size(const BodyList *bodies, Py_ssize_t i) noexcept nogil:
    return bodies.row_bytes if bodies.at == NULL else bodies.sizes[i]


cdef Py_ssize_t _append_run(LogState *s, QueueState *q, const Template *t, const BodyList *bodies, Appended *out,
                            Py_ssize_t start, Py_ssize_t end, int64_t now) noexcept nogil:
    """Append the records from start on that take append_one's plain path, and publish all of them at once. The put lock
    is held.

    Returns the index of the first record not appended: start, if the first needs append_one. Positions, and the queue's
    end, are published at the end of the run: until then no reader uses the records.
    """
    cdef int64_t physical = s.written, number = q.next_offset, unit_end
    cdef int64_t last = s.file_start + s.file_bytes - BLANK_BYTES
    cdef int32_t size, total
    cdef Py_ssize_t i = start
    cdef uint8_t *p
    cdef uint8_t *unit = NULL
    cdef bint in_place = s.inline_dispatch and not t.dispatch_later and mq_load64(&s.dispatched) == physical
    check_owner(s)
    mq_assert(start < end, start, end)
    mq_assert(physical >= s.file_start, physical, s.file_start)
    if in_place:
        unit_end = q.end        # the dispatcher's field before this check
        if number * UNIT_BYTES != unit_end or q.max_physical > physical:
            return start
        end = min(end, start + <Py_ssize_t> ((q.room_end - unit_end) // UNIT_BYTES))
        unit = q.units + (unit_end - q.file_start)
    if now < s.last_store_timestamp:
        note_clock_fall(s, now)
    mq_store64(&s.lock_since_ms, now)
    while i < end:
        size = _size(bodies, i)
        total = 88 + size + t.tail_bytes
        if physical + total > last:
            break
        p = s.base + (physical - s.file_start)
        write_record(p, t, bodies.rows + i * bodies.step if bodies.at == NULL else bodies.at[i], size, NULL, 0, total,
                     number, physical, now)
        if in_place:
            mq_put64(unit, physical)
            mq_put32(unit + 8, total)
            mq_put64(unit + 12, t.tags_code)
            unit += UNIT_BYTES
        out[i].physical_offset = physical
        out[i].queue_offset = number
        out[i].store_timestamp = now
        out[i].size = total
        mq_fetch_to_write(p + total + FETCH_AHEAD, total)
        physical += total
        number += 1
        i += 1
    if i > start:
        mq_assert(physical <= last, physical, last)
        if in_place:
            mq_assert(number * UNIT_BYTES <= q.room_end, number * UNIT_BYTES, q.room_end)
            mq_store64(&q.max_physical, physical)
            mq_store64(&q.end, number * UNIT_BYTES)
            q.last_store_timestamp = now
            mq_store64(&s.dispatched, physical)
        mq_store64(&q.next_offset, number)
        mq_store64(&s.puts, s.puts + (i - start))
        mq_store64(&s.written, physical)
        mq_store64(&s.last_store_timestamp, now)     # after `written`, as in append_one
    mq_store64(&s.lock_since_ms, 0)
    if i > start and mq_load32(&s.watched):
        appended(s, q if in_place else NULL)
    return i


cdef Py_ssize_t append_many(LogState *s, QueueState *q, const Template *t, bint prefault, const BodyList *bodies,
                            Appended *out, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    """Append from start on, in chunks; returns the index of the end: n, or earlier when a roll is needed or the log was
    latched.
    """
    cdef Py_ssize_t end, i, stop
    cdef int64_t bytes_, now
    cdef int rc
    while start < n:
        end = start
        bytes_ = 0
        while end < n and bytes_ < CHUNK_BYTES:
            bytes_ += 88 + t.tail_bytes + _size(bodies, end)
            end += 1
        if prefault and mq_load64(&s.written) + bytes_ > mq_load64(&s.prefaulted):
            # the prefault thread is too slow: help it
            prefault_piece(s, mq_load64(&s.written) + bytes_ + CHUNK_BYTES, -1, False)
        lock_puts(s)
        if refused(s, q):
            unlock_puts(s)
            return start
        now = s.os.clock_ms(s.os)      # read once a chunk: the clock costs as much as the copy of a small body
        i = start
        while i < end:
            stop = _append_run(s, q, t, bodies, out, i, end, now)
            if stop == i:
                rc = append_one(s, q, t, bodies.rows + i * bodies.step if bodies.at == NULL else bodies.at[i],
                                _size(bodies, i), NULL, 0, now, &out[i])
                if rc != APPEND_OK:
                    unlock_puts(s)
                    return i
                stop += 1
            i = stop
        if mq_planted("owner"):
            s.lock_owner = 0
        unlock_puts(s)
        start = end
    return n


cdef int prefault_piece(LogState *s, int64_t end, int64_t of_file, bint to_disk) noexcept nogil:
    """Claim the next piece ahead of the written position, up to end, and make its pages writable; with a pool touch the
    buffer.

    The prefault thread and batches that outrun it share the work this way. Returns: 1 done, 0 nothing to do, -errno.
    The put lock is not held.
    of_file: only while the log is in the file that starts there; -1: in any. to_disk: write the zeros to the disk as
    well. The first write to an allocated block changes its state in the filesystem, and a sync waits for the journal to
    record that: 290 us instead of 130 for a group of 9 KB on ext4. Here that is paid once for the piece, while no put
    waits.
    """
    cdef int64_t claimed, start, stop, file_start, file_bytes
    cdef uint8_t *base
    cdef uint8_t *mapped
    cdef bint buffered
    cdef int rc
    lock_puts(s)
    base = s.base
    file_start = s.file_start
    file_bytes = s.file_bytes
    start = s.written
    mapped = s.pending[(s.pending_tail + RING - 1) % RING].base
    buffered = base != mapped
    unlock_puts(s)
    if mq_load32(&s.flags) & LOG_FAILED:
        return 0                # no more puts, and the page where the log ends may be the one whose sync failed
    claimed = mq_load64(&s.prefaulted)
    start = max(start, claimed)
    end = min(end, file_start + file_bytes)
    if file_bytes == 0 or start < file_start or start >= end or (of_file >= 0 and of_file != file_start):
        return 0
    mq_assert(mapped != NULL, file_start, file_bytes)
    mq_assert(base != NULL, file_start, file_bytes)
    stop = min(end, start + (ZEROS_STEP if to_disk else POPULATE_STEP))
    if not mq_cas64(&s.prefaulted, claimed, stop):
        return 1
    start = (start - file_start) & ~(PAGE - 1)
    if buffered:
        touch(base + start, stop - file_start - start)
        if not to_disk:
            return 1
    rc = populate(s.os, mapped + start, stop - file_start - start)
    if rc >= 0 and to_disk:
        # else the sync write-protects each page separately
        unmap_written(s.os, mapped + start, stop - file_start - start)
        mq_or32(&s.ahead, 1)
        rc = s.os.msync(s.os, mapped + start, stop - file_start - start)
        if rc < 0:
            latch(s, rc)        # the failed page may hold records by now, and the kernel reports an error once
        mq_and32(&s.ahead, 0)   # a sync that ended meanwhile checks the error only now
        futex_wake_all(&s.ahead)
        if rc < 0:
            return rc
        if not buffered:
            rc = populate(s.os, mapped + start, stop - file_start - start)  # the sync write-protected the pages
    if rc == -NO_PAGE:
        latch(s, -LOST)
    return rc if rc < 0 else 1
