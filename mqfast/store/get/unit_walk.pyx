"""The walk of a get along the units of a mapped queue file: filter, limits, and the check of each record against its
unit.

Works on raw pointers without the GIL and stops where the caller must act (WalkStop): hold another file, run a test in
Python, check a record that claims another offset. Every unit is checked, no record beyond the readable position is
added, and no lock is taken.
"""

from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcmp
from mqfast.store.base.os_api cimport mq_assert, mq_get32, mq_get64, mq_planted, mq_prefetchr
from mqfast.store.get.hits cimport Hits, add_hit
from mqfast.store.queues.consume_queue cimport FILLER_SIZE, UNIT_BYTES, QueueState
from mqfast.store.record.filter cimport ASK_RECORD, LEAVE, TAKE
from mqfast.store.record.record cimport NOT_IN_QUEUE, REC_OK, Record, is_plain_record, offset_in_queue, parse_record

cdef int64_t AHEAD = 16 * UNIT_BYTES


cdef bint is_full(const ReadLimits *limits, int64_t in_memory_from, int64_t count, int64_t total_bytes,
                  int64_t messages, int64_t physical, int64_t size) noexcept nogil:
    """Return True if a record of so many messages exceeds the limits, behind ``count`` messages of ``total_bytes``. The
    first record never does.
    """
    if count == 0:
        return False
    if count + messages > limits.count or total_bytes + size > limits.bytes:
        return True
    if physical >= in_memory_from:
        return total_bytes + size > limits.bytes_in_memory or count >= limits.count_in_memory
    return total_bytes + size > limits.bytes_on_disk or count >= limits.count_on_disk


cdef inline void fetch_ahead(const uint8_t *file, int64_t file_start, int64_t file_bytes,
                             const uint8_t *unit) noexcept nogil:
    """Prefetch the head and the tail of a later record: a batch is bound by cache misses."""
    cdef int64_t soon = mq_get64(unit + AHEAD) - file_start
    cdef int32_t size = mq_get32(unit + AHEAD + 8)
    if 0 <= soon <= file_bytes - size:
        mq_prefetchr(file + soon)
        mq_prefetchr(file + soon + 64)
        mq_prefetchr(file + soon + size - 1)


cdef int check_record(UnitWalk *w, const uint8_t *p, int64_t available, bint ask) noexcept nogil:
    """Parse the record of the unit: 0 if it belongs there and matches, 1 if a filter rejects it, otherwise
    a WalkStop.
    """
    cdef Record r
    cdef const QueueState *q = w.queue
    cdef int outcome = parse_record(p, available, &r)
    if outcome != REC_OK or r.total != w.size or r.physical_offset != w.physical:
        w.found_size = r.total if available >= 8 else 0
        return WALK_DAMAGED
    if (r.queue_offset != w.at // UNIT_BYTES or r.queue_id != q.queue_id or r.topic_bytes != q.topic_bytes
            or memcmp(r.topic, q.topic, r.topic_bytes) != 0):
        w.claimed = offset_in_queue(&r, q.topic, q.topic_bytes, q.queue_id)
        if w.claimed == NOT_IN_QUEUE or (w.claimed != w.at // UNIT_BYTES and w.allowed != w.at):
            return WALK_PLACE
    return 1 if ask and not w.by_record(w.context, &r) else 0


cdef inline int stop_at(UnitWalk *w, int64_t at, int64_t physical, int32_t size, int stop) noexcept nogil:
    """Store the unit where the walk stops for the caller."""
    w.at = at
    w.physical = physical
    w.size = size
    return stop


cdef inline int judge_unit(UnitWalk *w, int64_t at, int64_t physical, int64_t tags_code) noexcept nogil:
    """Apply the filters to a unit: a Verdict, or WALK_ASK for the test in Python. A removed record is skipped and not
    rejected.
    """
    cdef int verdict = TAKE
    if physical < w.removed_until:
        return LEAVE
    if w.by_unit != NULL:
        verdict = w.by_unit(w.context, tags_code)
        if verdict == LEAVE:
            w.rejected = True
            return LEAVE
    if w.ask and w.decided != at:
        w.tags_code = tags_code
        return WALK_ASK
    return verdict


cdef int walk_units(UnitWalk *w) noexcept nogil:
    cdef Hits *hits = w.hits
    cdef const ReadLimits *limits = &w.limits
    cdef const QueueState *q = w.queue
    cdef const uint8_t *units = w.units - w.units_start
    cdef const uint8_t *file = w.file
    cdef int64_t file_start = w.file_start
    cdef int64_t file_bytes = w.file_bytes if file != NULL else 0, readable_end = w.readable_end
    cdef int64_t at = w.at, units_end = w.units_end, last = min(min(units_end, w.scan_end), at + w.pause * UNIT_BYTES)
    # below both, nothing is full
    cdef int64_t few_bytes = min(limits.bytes, min(limits.bytes_in_memory, limits.bytes_on_disk))
    cdef int64_t few = min(limits.count_in_memory, limits.count_on_disk)
    cdef int64_t physical, available
    cdef int32_t size
    cdef const uint8_t *unit
    cdef const uint8_t *p
    cdef int64_t fetch_end = units_end - AHEAD if file != NULL else 0
    cdef bint takes_all = w.by_unit == NULL and not w.ask and w.removed_until == INT64_MIN
    cdef int verdict = TAKE, outcome
    while at < last:
        unit = units + at
        physical = mq_get64(unit)
        size = mq_get32(unit + 8)
        if physical == 0 and size == FILLER_SIZE:
            at += UNIT_BYTES
            continue
        if physical < 0 or physical > readable_end - size:
            return stop_at(w, at, physical, size, WALK_BEYOND)
        if hits.count and (hits.total_bytes + size > few_bytes or hits.count >= few) and is_full(
                limits, w.in_memory_from, hits.count, hits.total_bytes, 1, physical, size):
            return stop_at(w, at, physical, size, WALK_FULL)
        w.last_physical = physical
        if at < fetch_end:
            fetch_ahead(file, file_start, file_bytes, unit)
        if not takes_all:
            verdict = judge_unit(w, at, physical, mq_get64(unit + 12))
            if verdict == WALK_ASK:
                return stop_at(w, at, physical, size, WALK_ASK)
            if verdict == LEAVE:
                at += UNIT_BYTES
                continue
        if not file_start <= physical < file_start + file_bytes:
            return stop_at(w, at, physical, size, WALK_FILE)
        p = file + (physical - file_start)
        available = min(readable_end, file_start + file_bytes) - physical
        if (verdict == ASK_RECORD or size > available
                or not is_plain_record(p, size, physical, at // UNIT_BYTES, q.queue_id, q.topic, q.topic_bytes)):
            stop_at(w, at, physical, size, 0)
            outcome = check_record(w, p, available, verdict == ASK_RECORD)
            if outcome > 1:
                return outcome
            if outcome == 1:
                w.rejected = True
                at += UNIT_BYTES
                continue
        # the record is in the log and readable
        mq_assert(physical >= file_start, physical, file_start)
        mq_assert(size > 0, size, 0)
        mq_assert(physical + size <= file_start + file_bytes, physical + size, file_start + file_bytes)
        mq_assert(physical + size <= (readable_end if not mq_planted("read") else physical), physical + size,
                  readable_end)
        if add_hit(hits, p, at // UNIT_BYTES, size) < 0:
            return WALK_NO_MEMORY
        at += UNIT_BYTES
        if hits.count >= limits.count:
            w.at = at
            return WALK_FULL
    w.at = at
    if at >= units_end:
        return WALK_END
    return WALK_SCANNED if at >= w.scan_end else WALK_PAUSE
