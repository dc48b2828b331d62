"""Dispatch: walk the log forward and put queue units and index entries (RocketMQ: ReputMessageService,
CommitLogDispatcher*).

The walk holds no GIL, stops at its limit, and skips no record silently. A single loop serves the running store and
recovery; recovery also checks CRCs. It returns from C to create a queue, to allocate room for a queue or the index, for
records with several units, and at the end of a file.

A full disk stops only the work that needs space: a queue without blocks gets no unit, an index without blocks gets no
key, and all else continues. `dispatched` then stays at the first incomplete record, for checkpoint, retention and the
next recovery; `walked` is the position of the rest. Once there is room, the log is walked again from `dispatched`.

Repeats are harmless: a queue skips records up to its end, the index skips records below its end offset.
"""


cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.queues.consume_queue cimport (
    PUT_DONE,
    UNIT_BYTES,
    ConsumeQueue,
    QueueState,
    QueueTable,
    grow_tail,
    queue_put,
)
from mqfast.store.log.group_commit cimport commit_up_to, is_behind, readable
from mqfast.store.log.idle cimport sleep_until_put
from mqfast.store.index.index_file cimport IndexFile, IndexState, index_put, key_slot_hash
from mqfast.store.log.log_state cimport (
    LOG_FAILED,
    LOG_SLAVE,
    WATCH_ARRIVALS,
    LogState,
    check_owner,
    lock_puts,
    unlock_puts,
)
from mqfast.store.log.log_watch cimport unit_put
from mqfast.store.base.mapped_file cimport FilePin, MappedFile, pin_file
from mqfast.store.base.event cimport Event
from mqfast.store.base.os_api cimport (
    Mutex,
    acquire,
    acquire_without_gil,
    futex_wait,
    handoff,
    mq_add64,
    mq_assert,
    mq_cas64,
    mq_fetch_to_read,
    mq_load32,
    mq_load64,
    mq_prefetchr,
    mq_store32,
    mq_store64,
    refuse_nested,
    release,
    unlock,
)
from mqfast.store.record.record cimport (
    REC_BLANK,
    REC_MISMATCH,
    REC_OK,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    PropertyRefs,
    Record,
    check_crc,
    find_properties,
    jhash,
    make_message,
    parse_int,
    parse_record,
)

import copy as _copy

from mqfast.errors import CorruptFile, DiskFull, InternalError
from mqfast.store.base.space import Space

ODD_BLANK = "a blank that does not reach the end of its file"     # a reason of CommitLogDispatcher.recover

cdef enum DispatchStop:
    AT_LIMIT = 1        # the limit was reached
    AT_BLANK = 2        # continue in the next file
    AT_BAD = 3          # no record here
    NO_QUEUE = 4        # no such queue yet, or a queue without 20-byte units
    NO_ROOM = 5         # the queue needs blocks
    NO_INDEX = 6        # no index file, or a full one
    NEEDS_PYTHON = 7         # a record with several units
    AT_MISMATCH = 8
    AT_PLACE = 9        # a record that states another offset
    UNCOMMITTED = 10    # a record that needs more than its unit is in the pool's buffer only
    AT_ODD_BLANK = 11   # a blank that does not reach the end of its file: perhaps a damaged record
    QUEUE_RESTARTED = 12      # the first offset of a queue that has units of older records

cdef uint32_t NOTHING_LOST = 0
cdef int64_t NAP_NS = 1000000  # sleep between two checks for records; longer after DISPATCH_LOOKS unsuccessful checks
cdef int64_t DISPATCH_LOOKS = 30
cdef int64_t STILL_LOOKS = 4            # unsuccessful checks of 20 ms: the log is idle
cdef int64_t TRY_NS = 1000000000         # between two attempts on a full disk
cdef int64_t MAX_FOLLOW = 16 << 20       # limit of a walk behind a busy log: a close may wait for the thread
cdef int64_t SHOW_BYTES = 16 << 10  # the dispatched position is in the put's cache line: updated only at this distance
cdef int64_t CHECK_AHEAD = 1 << 10       # a walk that checks CRCs prefetches so many bytes behind the next record
# another walk prefetches the expected head of the eighth record from here, assuming equal lengths
cdef int64_t HEADS_AHEAD = 8
cdef int64_t HAND_OVER = 4 << 10  # so near to the end the walk takes the put lock: at most a microsecond or two of work
cdef int64_t MAX_QUEUE_OFFSET = (<int64_t> 1 << 62) // UNIT_BYTES       # its byte in the queue still fits 63 bits

cdef inline int _index_key(IndexState *x, int32_t topic_hash, const uint8_t *key, int64_t n, Record *r) noexcept nogil:
    # the key text is topic#key, hashed in one pass
    return index_put(x, key_slot_hash(jhash(key, n, <int32_t> (<uint32_t> topic_hash * 31 + 35))), r.physical_offset,
                     r.store_timestamp)


cdef inline bint _has_entries(const PropertyRefs *f) noexcept nogil:
    return f.tags != NULL or f.keys != NULL or f.uniq_key != NULL


cdef int _index(DispatchCursor *w, IndexState *x) noexcept nogil:
    """Put all keys of the record, then the tags, as 5.5 does. Returns 0 when the index file is full (key_done: where to
    continue).
    """
    cdef Record *r = &w.record
    cdef PropertyRefs *f = &w.found
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *blank
    cdef int64_t number = 0
    cdef int32_t topic_hash
    if not w.hashed:
        w.topic_hash = jhash(r.topic, r.topic_bytes, 0)
        w.hashed = True
    topic_hash = w.topic_hash
    if f.uniq_key != NULL:
        if number >= w.key_done:
            if not _index_key(x, topic_hash, f.uniq_key, f.uniq_key_bytes, r):
                return 0
            w.key_done += 1
        number += 1
    if f.keys != NULL:
        at = f.keys
        end = f.keys + f.keys_bytes
        while at < end:
            blank = <const uint8_t *> memchr(at, c' ', end - at)
            if blank == NULL:
                blank = end
            if blank > at:
                if number >= w.key_done:
                    if not _index_key(x, topic_hash, at, blank - at, r):
                        return 0
                    w.key_done += 1
                number += 1
            at = blank + 1
    if f.tags != NULL and number >= w.key_done:
        if not w.tags_hashed:
            w.tags_hash = key_slot_hash(jhash(f.tags, f.tags_bytes, jhash(<const uint8_t *> "#T#", 3, topic_hash)))
            w.tags_hashed = True
        if not index_put(x, w.tags_hash, r.physical_offset, r.store_timestamp):
            return 0
        w.key_done += 1
    return 1


cdef int64_t tags_code_of(DispatchCursor *w) noexcept nogil:
    """Return the hash of TAGS; for a parked delayed message the delivery time."""
    cdef PropertyRefs *f = &w.found
    cdef int64_t level, code = 0
    if f.tags != NULL:
        code = jhash(f.tags, f.tags_bytes, 0)
    if f.delay != NULL and w.record.topic_bytes == 19 and memcmp(w.record.topic, "SCHEDULE_TOPIC_XXXX", 19) == 0:
        level = min(parse_int(f.delay, f.delay_bytes, 0), w.max_level)
        if level > 0:
            code = <int64_t> (<uint64_t> w.record.store_timestamp + <uint64_t> w.delays[level])
    return code


cdef bint _has_more(DispatchCursor *w) noexcept nogil:
    """Return true if the log has grown when the limit was reached, and set the new limit.

    A return to Python for it would need the GIL, and each wait beside a computing thread takes 5 ms. The dispatcher
    would stay behind that thread's puts, which would leave all units to it.
    """
    cdef LogState *s = w.follow
    cdef int64_t limit
    cdef bint plain = w.same_bytes >= 0 and not w.same_tagged and not w.hide_unflushed, pooled
    if s == NULL or w.holding or w.at >= w.last_limit or mq_load32(w.waiting):
        return False
    plain = plain and mq_load64(&s.confirm) == INT64_MAX
    # With a pool, uncommitted records count as well, unless they would have to be committed for each key.
    pooled = s.pooled and plain and not w.keyed
    # in this order: a put publishes `dispatched` before `written`
    limit = mq_load64(&s.written) if pooled else readable(s, w.hide_unflushed)
    if limit <= w.at or mq_load64(&s.dispatched) != w.at:
        return False
    if limit - w.at <= HAND_OVER and plain and (pooled or not s.pooled):
        # Behind a thread that puts without a pause the walk would stay a record behind. With the lock it reaches the
        # end; later puts find no waiting record, and put their units themselves.
        lock_puts(s)
        w.limit = mq_load64(&s.written)
        if w.limit - w.at <= 2 * HAND_OVER and (not pooled or (s.file_bytes != 0 and s.file_start == w.file_start)):
            w.holding = True
            if pooled:
                _look_into(w, s.base)
            return True
        unlock_puts(s)
    if pooled and _borrow(w):
        return True
    _release(w)
    if pooled:
        commit_up_to(s, limit)
        limit = readable(s, False)
    w.limit = limit
    return limit > w.at


cdef inline void _look_into(DispatchCursor *w, const uint8_t *buffer) noexcept nogil:
    if w.mapping == NULL:
        w.mapping = w.base
        w.base = buffer


cdef bint _borrow(DispatchCursor *w) noexcept nogil:
    """Continue in the pool's buffer, up to the written position. Returns false if the buffer is no longer this file's,
    or nothing was put.

    A commit of all that a fast thread puts in an interval takes another interval. The dispatcher would be hundreds of
    milliseconds behind, during which no put puts its unit itself.
    """
    cdef LogState *s = w.follow
    cdef bint there
    lock_puts(s)
    there = s.file_bytes != 0 and s.file_start == w.file_start and not mq_load32(&s.flags) & LOG_FAILED
    if there:
        mq_store64(&s.borrowed, s.file_start)       # before the log can roll: `reap` sees it
        w.limit = s.written
        _look_into(w, s.base)
    unlock_puts(s)
    return there and w.limit > w.at


cdef inline void _release(DispatchCursor *w) noexcept nogil:
    if w.mapping != NULL:
        w.base = w.mapping
        w.mapping = NULL
        w.same_bytes = w.known_bytes = -1       # they are in the buffer, which may be given back now
        mq_store64(&w.follow.borrowed, -1)
    if w.holding:
        check_owner(w.follow)
        w.holding = False
        unlock_puts(w.follow)


cdef inline void _show(DispatchCursor *w) noexcept nogil:
    """Move the dispatched position forward, never past a record that waits for space. At the log's end puts move it."""
    if w.published != NULL and w.shown < w.at and w.waits_units < 0 and w.waits_keys < 0:
        mq_assert(mq_load64(w.published) <= w.at, mq_load64(w.published), w.at)
        mq_assert(w.follow == NULL or w.at <= mq_load64(&w.follow.written), w.at, w.limit)
        w.shown = w.at
        mq_store64(w.published, w.at)


cdef void _note_wait(DispatchCursor *w, int64_t *first) noexcept nogil:
    """Note that the record lacks a unit or a key for lack of space on the disk."""
    cdef int64_t at = w.record.physical_offset
    mq_assert(at == w.at, at, w.at)
    _show(w)
    if (w.waits_units < 0 or at < w.waits_units) and (w.waits_keys < 0 or at < w.waits_keys):
        w.waits_timestamp = w.record.store_timestamp
    if first[0] < 0 or at < first[0]:
        first[0] = at


cdef inline void _unit_waits(DispatchCursor *w) noexcept nogil:
    _note_wait(w, &w.waits_units)


cdef inline void _keys_wait(DispatchCursor *w) noexcept nogil:
    if w.record.physical_offset < w.index_from:
        return
    if w.key_done:
        w.key_at = w.record.physical_offset
        w.key_had = w.key_done
    _note_wait(w, &w.waits_keys)


cdef void _begin_round(DispatchCursor *w, int64_t limit) noexcept nogil:
    """Begin a step, or its part after a sleep. limit: the end; -1: the readable position, also as it moves."""
    cdef LogState *s = w.follow
    w.round_at = w.shown = mq_load64(&s.dispatched)
    w.round_needs_dispatch = limit < 0 and not w.hide_unflushed and mq_load32(&s.needs_dispatch)
    if limit < 0:
        limit = readable(s, w.hide_unflushed)
    if w.round_needs_dispatch:
        mq_store32(&s.needs_dispatch, 0)
        if w.round_at >= limit:
            limit = mq_load64(&s.written)
    w.limit = limit
    w.last_limit = limit + w.follow_bytes
    w.records = 0
    w.keyed = False


cdef void _end_round(DispatchCursor *w) noexcept nogil:
    """End a step after which no record waits for space."""
    cdef LogState *s = w.follow
    mq_store64(&s.walked, w.at)
    if w.at > w.round_at:       # a roll alone may have moved the position; an append may have moved it on meanwhile
        mq_cas64(&s.dispatched, w.round_at, w.at)
    if w.round_needs_dispatch and w.records and not w.keyed and mq_load64(&s.dispatched) < mq_load64(&s.written):
        mq_store32(&s.needs_dispatch, 1)      # not caught up yet: puts still put no unit


cdef bint _rest(DispatchCursor *w, CommitLogDispatcher d, Event event) noexcept nogil:
    """Sleep until there are more records, after all are dispatched. The dispatch lock is held before and after, and
    released for the sleep.

    Returns true: continue this walk; false: work needs the GIL, the event was set, or the log rolled.
    """
    cdef LogState *s = w.follow
    cdef int64_t changes = d.changes
    cdef bint wanted
    if d.waits_units >= 0 or d.waits_keys >= 0:
        return False            # fewer records wait now: the end of the step reports it
    while not (w.waits_units >= 0 or w.waits_keys >= 0 or w.keys_wait or w.key_done or mq_load32(w.lost)
               or mq_load32(w.index_lost)
               or mq_load32(&s.flags) & LOG_FAILED):
        _end_round(w)
        mq_add64(&d.dispatched_records, w.records)
        d.key_done = 0
        handoff(d.mutex)
        wanted = _wait_for_records(s, event, w.event_seen, w.hide_unflushed, w.file_start, -1)
        acquire_without_gil(d.mutex)
        _begin_round(w, -1)
        w.at = w.round_at
        w.watching = s if mq_load32(&s.watched) & WATCH_ARRIVALS else NULL
        w.same_bytes = w.known_bytes = -1       # their queues may have been deleted
        if d.changes != changes:
            # state of another step: keep it
            w.waits_units = d.waits_units
            w.waits_keys = d.waits_keys
            w.waits_timestamp = d.waits_timestamp
            w.key_at = d.key_at
            w.key_had = d.key_had
            w.key_done = d.key_done
            if w.waits_units >= 0 or w.waits_keys >= 0:
                w.at = mq_load64(&s.walked)
        if not wanted or d.changes != changes or not w.file_start <= w.at < w.file_end:
            if w.round_needs_dispatch:
                w.round_needs_dispatch = False
                mq_store32(&s.needs_dispatch, 1)
            break
        if w.limit > w.at:
            return True
    return False


cdef bint _wait_for_records(LogState *s, Event event, uint32_t seen, bint sync, int64_t of_file,
                            int64_t until) noexcept nogil:
    """Sleep until there are records to dispatch.

    Returns false: the event was set, the log rolled from `of_file` (-1: ignored), or monotonic time `until` (-1: none)
    has come. Checks every millisecond at first. After 30 unsuccessful checks: every 10 ms while the log grows (puts
    dispatch themselves then, and each check costs them time), every 20 ms while it does not, and after some of those
    not before the next put.
    """
    cdef int64_t looks = 0, still = 0, last = -1, written, remaining_ns = NAP_NS * 1000
    while mq_load32(&event.word) == seen and (of_file < 0 or mq_load64(&s.file_start) == of_file):
        if is_behind(s, sync):
            return True
        if until >= 0:
            remaining_ns = until - s.os.monotonic_ns(s.os)
            if remaining_ns <= 0:
                break
        looks += 1
        written = mq_load64(&s.written)
        still = still + 1 if written == last else 0
        last = written
        if looks <= DISPATCH_LOOKS:
            futex_wait(&event.word, seen, min(remaining_ns, NAP_NS))
        elif still < STILL_LOOKS or readable(s, sync) < written or (s.pooled and mq_load64(&s.committed) < written):
            futex_wait(&event.word, seen, min(remaining_ns, 20 * NAP_NS if still else 10 * NAP_NS))
        else:
            sleep_until_put(s, event, seen, written, remaining_ns if until >= 0 else -1)
            looks = still = 0
    return False


cdef int _walk(DispatchCursor *w, CommitLogDispatcher d, QueueTable table, IndexState *x, bint indexing,
               Event event) noexcept nogil:
    """Continue from w.at until work needs the GIL; with an event, the end of the log does not."""
    cdef int stop
    while True:
        stop = _walk_on(w, table, x, indexing)
        if stop == NO_ROOM and grow_tail(w.queue):
            continue
        if stop != AT_LIMIT or event is None or not _rest(w, d, event):
            return stop


cdef int _walk_on(DispatchCursor *w, QueueTable table, IndexState *x, bint indexing) noexcept nogil:
    cdef int stop
    w.same_bytes = w.known_bytes = -1       # they are in another mapping
    if w.follow != NULL and readable(w.follow, w.hide_unflushed) < w.limit and not _borrow(w):
        commit_up_to(w.follow, w.limit)
        w.limit = readable(w.follow, w.hide_unflushed)
    while True:
        stop = _records(w, table, x, indexing)
        _show(w)
        if w.mapping == NULL or stop == AT_LIMIT or stop == NO_ROOM:        # room for a queue needs no record
            break
        # read this record from the mapping, without the put lock
        _release(w)
        commit_up_to(w.follow, w.limit)
        if readable(w.follow, False) < w.limit:     # latched
            return AT_LIMIT
    _release(w)
    return stop


cdef int _records(DispatchCursor *w, QueueTable table, IndexState *x, bint indexing) noexcept nogil:
    cdef const uint8_t *p
    cdef int64_t available, n
    cdef int32_t transaction
    cdef Record *r = &w.record
    cdef PropertyRefs *f = &w.found
    cdef int outcome
    while True:
        if w.at >= w.limit:
            _show(w)
            if not _has_more(w):
                return AT_LIMIT
        mq_assert(w.at >= w.file_start, w.at, w.file_start)
        mq_assert(w.base != NULL, w.at, w.file_start)
        p = w.base + (w.at - w.file_start)
        available = min(w.limit, w.file_end) - w.at
        if available <= 0:
            return AT_BLANK
        outcome = parse_record(p, available, r)
        if outcome == REC_BLANK:
            return AT_ODD_BLANK if w.odd_blanks_stop and r.total != w.file_end - w.at else AT_BLANK
        if outcome == REC_MISMATCH:
            return AT_MISMATCH
        if outcome != REC_OK:
            # a blank beyond the limit is not complete yet; a file may also end in fewer than 8 bytes
            if w.file_end - w.at < 8:
                return AT_BLANK
            return AT_BAD
        if r.physical_offset != w.at:
            return AT_PLACE
        mq_prefetchr(p + r.total)
        mq_prefetchr(p + r.total + 64)
        if w.checked:
            mq_fetch_to_read(p + r.total + CHECK_AHEAD, r.total)
            if not check_crc(p, r, w.property_crc):
                return AT_BAD
        else:
            mq_prefetchr(p + HEADS_AHEAD * r.total - 64)
            mq_prefetchr(p + HEADS_AHEAD * r.total)
            mq_prefetchr(p + HEADS_AHEAD * r.total + 64)
        if w.dispatch and r.physical_offset >= w.dispatch_from:
            n = r.properties + r.properties_bytes - r.topic
            if n != w.same_bytes or r.queue_id != w.same_id or memcmp(r.topic, w.same, n) != 0:
                w.same_bytes = -1
                find_properties(r.properties, r.properties_bytes, f)
                w.tags_hashed = False
                if (r.topic_bytes != w.known_bytes or r.queue_id != w.known_id
                        or memcmp(r.topic, w.known, r.topic_bytes) != 0):
                    w.known = r.topic
                    w.known_bytes = r.topic_bytes
                    w.known_id = r.queue_id
                    w.queue = NULL
                    w.hashed = False
            transaction = r.sys_flag & TRANSACTION_MASK
            if (w.key_done == 0 and transaction != TRANSACTION_PREPARED and transaction != TRANSACTION_ROLLBACK
                    and r.physical_offset >= w.units_from):
                if w.same_bytes < 0:
                    w.tags_code = tags_code_of(w)
                if r.queue_id < 0 or not 0 <= r.queue_offset <= MAX_QUEUE_OFFSET:
                    return NO_QUEUE
                if w.same_bytes < 0:
                    if w.light and f.multi_dispatch != NULL:
                        return NEEDS_PYTHON
                    if w.queue == NULL:
                        w.queue = table.find(r.topic, r.topic_bytes, r.queue_id)
                    if w.queue == NULL:
                        return NO_QUEUE
                if (w.follows and r.queue_offset == 0 and w.queue.end > 0
                        and r.physical_offset >= w.queue.max_physical and not w.queue.waits):
                    return QUEUE_RESTARTED
                outcome = queue_put(w.queue, r.physical_offset, r.total, w.tags_code, r.queue_offset)
                if outcome == PUT_DONE:
                    w.queue.last_store_timestamp = r.store_timestamp
                    if w.watching != NULL:
                        unit_put(w.watching, w.queue)
                elif w.queue.waits:
                    _unit_waits(w)
                else:
                    return NO_ROOM
                if (w.same_bytes < 0 and f.uniq_key == NULL and f.keys == NULL and f.delay == NULL
                        and f.multi_dispatch == NULL):
                    w.same = r.topic
                    w.same_bytes = n
                    w.same_id = r.queue_id
                    w.same_tagged = indexing and f.tags != NULL
            if indexing and transaction != TRANSACTION_ROLLBACK and _has_entries(f):
                w.keyed = True
                if w.mapping != NULL:
                    return UNCOMMITTED
                _release(w)      # a page of the index may have to be allocated first
                if w.keys_wait:
                    _keys_wait(w)
                elif x == NULL:
                    return NO_INDEX
                elif (r.physical_offset >= x.end_offset and r.physical_offset >= w.index_from) or w.key_done:
                    if w.key_done == 0 and r.physical_offset == w.key_at:
                        w.key_done = w.key_had
                    if not _index(w, x):
                        return NO_INDEX
            w.key_done = 0
        mq_assert(r.total > 0, r.total, 0)
        mq_assert(w.at + r.total <= w.limit, w.at + r.total, w.limit)
        mq_assert(w.at + r.total <= w.file_end, w.at + r.total, w.file_end)
        w.records += 1
        w.last_start = w.at
        w.last_timestamp = r.store_timestamp
        if w.unflushed_from < 0 and r.store_timestamp >= w.flushed_time:
            w.unflushed_from = w.at
        w.at += r.total
        if w.at - w.shown >= SHOW_BYTES:
            _show(w)


cdef object _copied(const DispatchCursor *w):
    """Return the current record as a message that does not hold the file: CPython may keep the arguments of a call that
    runs out of memory.
    """
    cdef const char *p = <const char *> w.base + (w.at - w.file_start)
    cdef bytes record = p[:w.record.total]
    return make_message(record, <const uint8_t *> PyBytes_AS_STRING(record), -1)


@cython.no_gc_clear
cdef class CommitLogDispatcher:
    """Keeps queues and index up to date with the log.

    Thread: the dispatch lock serializes ``step`` and ``catch_up``; any thread may call them.
    """

    def __init__(self, CommitLog log, QueueTable table, queues, index, delay_levels_ms):
        self.log = log
        self.table = table
        self.queues = queues
        self.index = index
        self.mutex = Mutex(nests=True)      # delete_topic
        self.space = Space()
        self.waits_units = self.waits_keys = self.key_at = -1
        self.follow_bytes = MAX_FOLLOW
        self.max_level = min(63, len(delay_levels_ms))
        for level in range(1, self.max_level + 1):
            self.delays[level] = delay_levels_ms[level - 1]

    cdef int catch_up(self) except -1:
        """Dispatch all readable records (read your own writes). Raises: NestedCall, as from a handler that interrupted
        a step.
        """
        if mq_load64(&self.log.state.dispatched) < self._visible():
            refuse_nested()
            self.step_if_needed()
        return 0

    cdef int64_t _visible(self) except -1:
        if self.log.state.pooled and not self.log.hide_unflushed:
            self.log.commit()
        return readable(&self.log.state, self.log.hide_unflushed)

    def step_if_needed(self) -> None:
        """Dispatch all readable records, except work that waits for space on the disk."""
        cdef int64_t limit = self._visible()
        if mq_load64(&self.log.state.dispatched) < limit:
            self.step(limit)

    def step(self, int64_t limit=-1, bint again=False) -> int:
        """Dispatch up to ``limit`` (default: the readable position, as it moves); return the number of records. GIL:
        released while walking.

        Work that needs space on a full disk waits, ``space`` is notified, and the rest continues. The first step after
        a pause retries the disk, and so does a step with ``again``.

        Raises: CorruptFile when the log cannot be read further (kept in ``error``), StorageError when a queue or the
        index cannot be written; the next call continues at that record.
        """
        cdef bint follow = limit < 0
        acquire(self.mutex)
        try:
            return self._step(limit, again, None)
        finally:
            if follow:
                handoff(self.mutex)        # the following thread takes the lock again at once
            else:
                release(self.mutex)

    def follow(self, Event event not None) -> None:
        """Dispatch as ``step`` does, and continue with new records until the event is set or work needs Python.

        GIL: released meanwhile, and the dispatch lock while there is nothing to dispatch.
        """
        acquire(self.mutex)
        try:
            self._step(-1, False, event)
        finally:
            handoff(self.mutex)

    def wait_for_records(self, Event event not None, double seconds=-1.0) -> bool:
        """Sleep until there are records to dispatch, the event is set, or the time is over (negative: no limit). GIL:
        released.
        """
        cdef LogState *s = &self.log.state
        cdef uint32_t seen = event.seen
        cdef bint sync = self.log.hide_unflushed, wanted
        cdef int64_t until = s.os.monotonic_ns(s.os) + <int64_t> (seconds * 1e9) if seconds >= 0 else -1
        with nogil:
            wanted = _wait_for_records(s, event, seen, sync, -1, until)
        event.seen = mq_load32(&event.word)
        return wanted

    cdef int64_t _step(self, int64_t limit, bint again, Event event) except -1:
        cdef CommitLog log = self.log
        cdef LogState *s = &log.state
        cdef DispatchCursor w
        cdef int stop = AT_LIMIT
        cdef bint follow = limit < 0, waiting, room
        w.follow = s
        w.hide_unflushed = log.hide_unflushed
        w.follow_bytes = self.follow_bytes
        _begin_round(&w, limit)
        limit = w.limit
        waiting = self.waits_units >= 0 or self.waits_keys >= 0
        room = waiting and self._is_room_again(again)
        if room:
            limit = max(limit, s.walked)
        if mq_load64(&s.dispatched) >= limit or (waiting and not room and s.walked >= limit):
            return 0
        if self.error is not None:
            raise self.error
        mq_assert(mq_load64(&s.dispatched) <= mq_load64(&s.written), s.dispatched, s.written)
        self._begin(&w)
        w.at = w.round_at
        w.dispatch_from = w.units_from = w.index_from = 0
        if room:        # again over the waiting records; existing units and keys are not put again
            w.units_from = s.walked if w.waits_units < 0 else w.waits_units
            w.index_from = s.walked if w.waits_keys < 0 else w.waits_keys
            w.waits_units = w.waits_keys = -1
        elif waiting:
            w.at = s.walked
        w.limit = limit
        w.last_limit = limit + self.follow_bytes
        w.checked = False
        w.property_crc = False
        w.published = NULL if waiting and not room else &s.dispatched
        w.follow = s if follow else NULL
        w.watching = s if mq_load32(&s.watched) & WATCH_ARRIVALS else NULL
        w.waiting = &self.mutex.waiting
        w.event_seen = event.seen if event is not None else 0
        w.key_done = self.key_done
        w.flushed_time = w.unflushed_from = 0
        if w.at < log.min_offset:
            w.at = log.min_offset
        try:
            stop = self._run(&w, None, event)
        finally:
            self.key_done = w.key_done
            mq_add64(&self.dispatched_records, w.records)
            self._remember(&w)
            mq_store64(&s.walked, w.at)
            if event is not None:
                event.seen = mq_load32(&event.word)
        if stop == AT_BAD or stop == AT_MISMATCH or stop == AT_PLACE:
            file = log.file_at(w.at)
            self.changes += 1
            self.error = CorruptFile("the log cannot be dispatched on", path=file.path if file else log.path,
                                     offset=w.at, expected="a record",
                                     found=f"size {w.record.total}, magic {w.record.magic & 0xFFFFFFFF:#x}")
            raise self.error
        if self.waits_units >= 0 or self.waits_keys >= 0:
            return w.records
        w.follow = s
        _end_round(&w)
        return w.records

    cdef int _begin(self, DispatchCursor *w) except -1:
        """Set the fields common to all walks."""
        w.dispatch = True
        w.odd_blanks_stop = False
        w.follows = mq_load32(&self.log.state.flags) & LOG_SLAVE != 0
        w.watching = NULL
        w.holding = w.keyed = False
        w.mapping = NULL
        w.records = 0
        w.lost = w.index_lost = &NOTHING_LOST
        w.last_start = -1
        w.last_timestamp = 0
        w.keys_wait = self.index_full is not None
        w.key_at = self.key_at
        w.key_had = self.key_had
        w.waits_units = self.waits_units
        w.waits_keys = self.waits_keys
        w.waits_timestamp = self.waits_timestamp
        return 0

    # --- a full disk ---

    @property
    def waits(self) -> bool:
        """True while a unit or a key waits for space on the disk."""
        return self.waits_units >= 0 or self.waits_keys >= 0

    @property
    def units_wait(self) -> bool:
        """True while a unit waits for space on the disk."""
        return self.waits_units >= 0

    cdef int _remember(self, DispatchCursor *w) except -1:
        """Keep the walk's waiting records."""
        cdef bint has_waits = self.waits_units >= 0 or self.waits_keys >= 0 or w.waits_units >= 0 or w.waits_keys >= 0
        self.waits_units = w.waits_units
        self.waits_keys = w.waits_keys
        self.waits_timestamp = w.waits_timestamp
        self.key_at = w.key_at
        self.key_had = w.key_had
        if has_waits:
            self.changes += 1
            self._report_waits()
        return 0

    cdef int _report_waits(self) except -1:
        self.space.see("queues", self.queues.full if self.waits_units >= 0 else None)
        self.space.see("index", self.index_full if self.waits_keys >= 0 else None)
        return 0

    cdef bint _is_room_again(self, bint again) except -1:
        """Retry the disk for the waiting records; return true if any has room."""
        cdef bint has_room = False
        if not again and self.log.os_api.monotonic_ns() < self.next_try:
            return False
        if self.waits_units >= 0:
            has_room = self.queues.is_room_again()
        if self.waits_keys >= 0:
            has_room |= self._make_index_room()
        self.next_try = self.log.os_api.monotonic_ns() + TRY_NS
        if not has_room:
            self._report_waits()
        return has_room

    cdef bint _make_index_room(self) except -1:
        self.changes += 1
        try:
            self.index.roll()
        except DiskFull as error:
            self.index_full = _copy.copy(error)     # without the traceback, which would keep files open
            return False
        self.index_full = None
        return True

    def hold_back(self, int64_t end) -> bool:
        """Keep the dispatched position before the waiting records after a recovery up to ``end``.

        Returns true if units of queues wait, so that the end of a queue is not its next offset.
        """
        cdef LogState *s = &self.log.state
        self.changes += 1
        if self.waits_units >= end:         # the log was truncated before it
            self.waits_units = -1
        if self.waits_keys >= end:
            self.waits_keys = -1
        if self.waits_units < 0:
            self.queues.wait_no_more()
        if self.waits_units >= 0 or self.waits_keys >= 0:
            s.walked = end
            s.dispatched = min(self.waits_units if self.waits_units >= 0 else end,
                               self.waits_keys if self.waits_keys >= 0 else end)
            s.dispatched_timestamp = min(s.dispatched_timestamp, self.waits_timestamp)
        return self.waits_units >= 0

    def recover(self, int64_t start, int64_t end, *, bint checked, bint property_crc, int64_t dispatch_from,
                int64_t index_from=0,
                bint keys=True, int64_t flushed_time=0, bint odd_blanks_stop=False, progress=None) -> tuple:
        """Walk the log from ``start`` until no further record is found; dispatch records at or above ``dispatch_from``.

        Without ``keys`` to the queues only.

        Args: index_from: records below are not indexed again; flushed_time: records stored before that time (ms) are
        known durable; odd_blanks_stop: stop at a blank that does not reach the end of its file, else continue in the
        next file.

        Returns: (end of the last good record, its start or -1, its store time, records, reason in words, the first
        record that is not known durable or -1). Only at open.
        """
        cdef DispatchCursor w
        cdef int stop = AT_LIMIT
        self.key_at = -1        # the index file with a part of its keys may have been removed meanwhile
        self._begin(&w)
        w.at = start
        w.limit = end
        w.checked = checked
        w.property_crc = property_crc
        w.dispatch_from = dispatch_from
        w.units_from = 0
        w.index_from = index_from
        w.flushed_time = flushed_time
        w.odd_blanks_stop = odd_blanks_stop
        w.unflushed_from = -1
        w.published = NULL
        w.shown = start
        w.follow = NULL
        w.key_done = 0
        acquire(self.mutex)
        try:
            index = self.index
            if not keys:
                self.index = None
            try:
                stop = self._run(&w, progress, None)
            finally:
                self.index = index
                self._remember(&w)
        finally:
            release(self.mutex)
        reason = {AT_LIMIT: "end of the log", AT_BLANK: "end of the last file", AT_BAD: "no whole record",
                  AT_MISMATCH: "record length does not agree with its parts",
                  AT_PLACE: "a record that belongs elsewhere", AT_ODD_BLANK: ODD_BLANK}[stop]
        return w.at, w.last_start, w.last_timestamp, w.records, reason, w.unflushed_from

    cdef int _run(self, DispatchCursor *w, progress, Event event) except -1:
        """Walk file after file; return for work that needs the GIL."""
        cdef CommitLog log = self.log
        cdef MappedFile file
        cdef FilePin held
        cdef IndexFile index_file
        cdef IndexState *x
        cdef QueueTable table = self.table
        cdef int stop
        cdef bint indexing = self.index is not None
        w.delays = self.delays
        w.max_level = self.max_level
        w.light = self.queues.light
        while True:
            file = log.file_at(w.at)
            if file is None:
                return AT_LIMIT if w.at >= w.limit else AT_BLANK
            held = pin_file(file)
            w.base = held.base
            w.file_start = file.start_offset
            w.file_end = file.start_offset + file.file_bytes
            w.lost = &file.damage.hits
            while True:
                index_file = self.index.current() if indexing and not w.keys_wait else None
                x = &index_file.state if index_file is not None else NULL
                w.index_lost = &index_file.lost.hits if index_file is not None else &NOTHING_LOST
                with nogil:
                    stop = _walk(w, self, table, x, indexing, event)
                # results from a lost page are not valid
                file.check_damage()
                if index_file is not None:
                    index_file.check_damage()
                log.raise_lost()
                if stop == NO_QUEUE:
                    self._without_queue(w)
                elif stop == NO_ROOM:
                    self._make_room(w)
                elif stop == NO_INDEX:
                    self._roll_index(w)
                elif stop == NEEDS_PYTHON:
                    self._by_hand(w, x, indexing)
                elif stop == QUEUE_RESTARTED:
                    self._restart_queue(w)
                else:
                    break
            if progress is not None:
                progress(w.at)
            if stop != AT_BLANK:
                return stop
            if log.file_at(w.file_end) is None or w.file_end > w.limit:
                return AT_BLANK
            w.at = w.file_end
            _show(w)

    cdef int _make_room(self, DispatchCursor *w) except -1:
        cdef ConsumeQueue queue
        topic = bytes(w.queue.topic[:w.queue.topic_bytes]).decode("utf-8", "replace")
        queue = self.table.get(topic, w.queue.queue_id)
        if queue is None:
            raise InternalError(f"queue {topic}/{w.queue.queue_id} vanished during dispatch")
        self.queues.keep_few_tails()
        try:
            queue.make_room(w.record.queue_offset)
        except DiskFull as error:
            self.queues.wait(queue, w.record.queue_offset, error)
        return 0

    cdef int _restart_queue(self, DispatchCursor *w) except -1:
        """Restart the queue after the master deleted and re-created the topic: the existing units belong to the deleted
        topic.
        """
        self.queues.restart_queue(bytes(w.queue.topic[:w.queue.topic_bytes]).decode("utf-8", "replace"),
                                  w.queue.queue_id, w.at)
        w.queue.deleted = True
        if w.watching != NULL:
            unit_put(w.watching, w.queue)       # waiting consumers check again
        return 0

    cdef int _roll_index(self, DispatchCursor *w) except -1:
        self.changes += 1
        try:
            self.index.roll(w.limit - w.at)
        except DiskFull as error:
            self.index_full = _copy.copy(error)     # without the traceback, which would keep files open
            w.keys_wait = True
        return 0

    cdef int _without_queue(self, DispatchCursor *w) except -1:
        """Create the missing queue, or put a unit of another kind in Python and skip the queue part."""
        message = _copied(w)
        held_back = self.queues.held_back
        if self.queues.put_lmq_or_batch(message, w.tags_code):
            if self.queues.held_back != held_back:
                _unit_waits(w)
            self._finish_by_hand(w)
        return 0

    cdef int _by_hand(self, DispatchCursor *w, IndexState *x, bint indexing) except -1:
        message = _copied(w)
        self.queues.keep_few_tails()
        held_back = self.queues.held_back
        self.queues.put_multi(message, w.tags_code)
        if self.queues.held_back != held_back:
            _unit_waits(w)
        self._finish_by_hand(w)
        return 0

    cdef int _finish_by_hand(self, DispatchCursor *w) except -1:
        """Put the keys of a record whose units are put, and go to the next record."""
        cdef IndexFile index_file
        cdef Record *r = &w.record
        if self.index is not None and _has_entries(&w.found):
            while not w.keys_wait:
                index_file = self.index.current()
                if index_file is not None:
                    if ((r.physical_offset < index_file.state.end_offset or r.physical_offset < w.index_from)
                            and w.key_done == 0):
                        break
                    if w.key_done == 0 and r.physical_offset == w.key_at:
                        w.key_done = w.key_had
                    if _index(w, &index_file.state):
                        break
                self._roll_index(w)
            else:
                _keys_wait(w)
        w.key_done = 0
        w.records += 1
        w.last_start = w.at
        w.last_timestamp = r.store_timestamp
        if w.unflushed_from < 0 and r.store_timestamp >= w.flushed_time:
            w.unflushed_from = w.at
        w.at += r.total
        _show(w)
        return 0

    @property
    def records(self) -> int:
        """Number of records dispatched since the open, by any thread."""
        return mq_load64(&self.dispatched_records)

    def locked(self):
        """Return a context manager: nothing is dispatched meanwhile."""
        return self.mutex
