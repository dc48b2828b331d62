"""From the log in memory to the disk: pool buffer -> page cache (commit), page cache -> disk (flush), and who waits for it (RocketMQ:
CommitRealTimeService, GroupCommitService).

It must never sync again after a sync failed: the log is latched and everybody who waits hears of it. Nobody may sleep where no sync will
wake it. Positions are physical offsets: flushed <= committed <= written.

Group commit: a ticket is an end offset; there is no queue, no tick and no thread. Who finds the flush lock free leads: it syncs everything
that is written, publishes `flushed`, wakes those whom that covers, and one of those who came too late, to lead the next sync while the
covered ones go on. The covered and the late sleep in two futexes (group_done) that change roles with each sync, so that nobody is woken
for nothing; on a machine with few processors that is half of the cost.

A sync cannot be left before its end, however long the disk takes. So who has a deadline does not lead one itself: it takes the flush lock and hands
it over to a thread that does nothing else (serve_syncs), and sleeps with the others. Why nobody is forgotten:
  - a sync says what it covers (group_end) before it says that it has begun (group), and it moves both futexes when it is over;
  - a waiter reads the futex that it will sleep on, then sees that `group` has not changed, that it is not covered yet, and that somebody
    holds the flush lock. That holder has not moved the futex yet, so it will wake the waiter, or one beside it that leads a sync covering both;
  - who was woken to lead and leaves at its deadline passes the call on.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from mqfast.store.log.log_state cimport LOG_FAILED, RING, LogState, PendingFile
from mqfast.store.log.log_watch cimport flushed_moved, wake_watchers
from mqfast.store.base.os_api cimport (
    futex_wait,
    futex_wake_all,
    futex_wake_one,
    lock,
    mq_add32,
    mq_assert,
    mq_load32,
    mq_load64,
    mq_lock_try,
    mq_or32,
    mq_pause,
    mq_planted,
    mq_stat,
    mq_store32,
    mq_store64,
    populate,
    unlock,
    unmap_written,
    write_all,
    yield_processor,
)

cdef int64_t PAGE = 4096
cdef int64_t HUGE_PAGE = 2 << 20
cdef int64_t BUSY_BYTES = 1 << 20        # a flush by the clock of so much was not the last one: more comes
cdef int LEFT_PART = 5                   # and may leave a fifth of it to the next
cdef int NO_PAGE = 14                    # EFAULT: populate's answer where a touch would be a SIGBUS
cdef int LOST = 5                        # EIO: a page or a whole file is gone
cdef int64_t COMMIT_PIECE = 128 << 10    # of one write: some 30 us
cdef int64_t LONG_YIELD_NS = 1000000     # so long none of the store's threads has a processor that it was given for a moment: others want it
cdef int64_t GATHER_NS = 100000          # 16 threads that were woken need some 150 us on two processors until all are back
cdef int GATHER_TURNS = 1000             # the same for a clock that stands still
cdef int JOB_LOOKS = 256                 # some 10 us, before the thread of the syncs sleeps
cdef enum:
    JOB_NONE = 0
    JOB_LEAD = 1
    JOB_END = 2
cdef uint32_t BACKOFF_MIN = 4
cdef uint32_t BACKOFF_MAX = 64


cdef int64_t readable(LogState *s, bint sync) noexcept nogil:
    """Physical offset up to which readers may look: flushed with sync flush, committed with a pool, else written; never above the confirm
    offset, where one is set."""
    cdef int64_t end = mq_load64(&s.flushed) if sync else mq_load64(&s.committed) if s.pooled else mq_load64(&s.written)
    return min(end, mq_load64(&s.confirm))


cdef bint is_behind(LogState *s, bint sync) noexcept nogil:
    """Is there something to dispatch?"""
    # in this order: a put that dispatches itself moves `dispatched` first, and is not to be taken for one that does not
    cdef int64_t limit = readable(s, sync)
    return (mq_load64(&s.dispatched) < limit and mq_load64(&s.walked) < limit) or (mq_load32(&s.needs_dispatch) != 0 and not sync)


cdef void latch(LogState *s, int rc) noexcept nogil:
    s.error = rc
    mq_or32(&s.flags, LOG_FAILED)
    wake_watchers(s)


cdef int _write_out(LogState *s, PendingFile *f, int64_t at, int64_t end) noexcept nogil:
    """Write the buffer's bytes [at, end) to the file, and let go of the processor after each piece.

    Who stands behind this write may have been woken to have the GIL, and a thread that puts waits until it has had it. On a machine where
    others want every processor a yield may cost milliseconds: after one of those there are no more in this write.
    """
    cdef int64_t n, began
    cdef bint yields = True
    cdef int rc = 0
    mq_assert(at >= 0, at, 0)
    mq_assert(end <= f.bytes, end, f.bytes)
    while at < end:
        n = min(COMMIT_PIECE - at % COMMIT_PIECE, end - at)
        rc = write_all(s.os, f.fd, f.buffer + at, n, at)
        at += n
        if rc < 0:
            break
        if yields and at < end:
            began = s.os.monotonic_ns(s.os)
            yield_processor()
            yields = s.os.monotonic_ns(s.os) - began < LONG_YIELD_NS
    return rc


cdef int commit_up_to(LogState *s, int64_t target) noexcept nogil:
    """Copy pool buffers to the page cache up to target. Only one thread at a time: takes the commit lock."""
    cdef int64_t i, from_, to
    cdef PendingFile *f
    cdef int rc = 0
    if not s.pooled:
        return 0
    lock(&s.commit_lock)
    i = mq_load64(&s.pending_head)
    while i < mq_load64(&s.pending_tail) and not mq_load32(&s.flags) & LOG_FAILED:
        f = &s.pending[i % RING]
        if f.start >= target:
            break
        from_ = max(s.committed, f.start)
        to = min(target, f.start + f.bytes)
        mq_assert(mq_load64(&f.used) <= f.bytes, f.used, f.bytes)
        if from_ < to:
            mq_assert(mq_load32(&s.commit_lock) != 0, s.commit_lock, 1)
            mq_assert(to <= mq_load64(&s.written), to, s.written)
            if f.buffer != NULL:
                # behind the end mark the buffer may hold what an older file left there: the file keeps its zeros
                rc = _write_out(s, f, from_ - f.start, min(to - f.start, mq_load64(&f.used)))
                if rc < 0:
                    latch(s, rc)
                    break
            mq_store64(&s.committed, to)
        i += 1
    unlock(&s.commit_lock)
    return rc


cdef int _whole(LogState *s, PendingFile *f) noexcept nogil:
    """After a sync and before it is believed: no page was lost that was written to, and nobody cut short or removed the file.

    The kernel tells of a failed write once for each open file: the sync of the blocks ahead, which goes through the same one, may have been
    told of ours. Whoever was told latches the log before it says that it has ended.
    """
    cdef mq_stat st
    cdef int rc
    while mq_load32(&s.ahead):
        futex_wait(&s.ahead, 1, -1)
    st.unlinked = 0
    rc = s.os.fstat(s.os, f.fd, &st)
    if rc >= 0 and (st.bytes < f.bytes or st.unlinked):
        rc = -LOST
    if rc < 0:
        latch(s, rc)
    if mq_load32(&s.flags) & LOG_FAILED:
        return s.error if s.error < 0 else -LOST
    return 0


cdef void _keep_writable(LogState *s, PendingFile *f) noexcept nogil:
    """Make the page that the next put touches writable again before the put meets it."""
    cdef int64_t first = (mq_load64(&s.written) - f.start) & ~(PAGE - 1)
    if 0 <= first < f.bytes:
        if populate(s.os, f.base + first, min(2 * PAGE, f.bytes - first)) == -NO_PAGE:
            latch(s, -LOST)


cdef int _sync(LogState *s, int64_t target, bint by_clock) noexcept nogil:
    """Sync [flushed, target) file by file. The flush lock is held.

    A sync takes the right to write from each page that it finds mapped, with an interrupt for every processor; pages that left their mapping
    before are spared that. By the clock the page that puts are in stays: a put shall not meet a fault. Where somebody waits for the sync
    it goes as well, since nobody puts much meanwhile and the fault costs less than what it saves.
    """
    cdef PendingFile *f
    cdef int64_t from_, to, first
    cdef int rc
    mq_assert(mq_load32(&s.flush_lock) != 0, s.flush_lock, 1)
    mq_assert(target <= mq_load64(&s.written), target, s.written)
    if s.pooled:
        rc = commit_up_to(s, target)
        if rc < 0:
            return rc
    while s.flushed < target:
        if s.pending_head >= mq_load64(&s.pending_tail):
            return 0
        f = &s.pending[s.pending_head % RING]
        mq_assert(f.base != NULL, f.start, f.bytes)
        from_ = max(s.flushed, f.start)
        to = min(target, f.start + f.bytes)
        if not s.pooled:
            first = (from_ - f.start) & ~(PAGE - 1)
            unmap_written(s.os, f.base + first, ((to - f.start + (0 if by_clock else PAGE - 1)) & ~(PAGE - 1)) - first)
            if by_clock:
                _keep_writable(s, f)    # a huge page goes whole, and the next put's pages may lie in it
        if from_ < to:
            # all of it in one call: each has its own commit of the filesystem's journal, and none of those who wait goes on before the last
            first = (from_ - f.start) & ~(PAGE - 1)
            rc = s.os.msync(s.os, f.base + first, to - f.start - first)
            mq_store64(&s.sync_calls, s.sync_calls + 1)
            if rc < 0:
                latch(s, rc)
                return rc
            rc = _whole(s, f)
            if rc < 0:
                return rc
            mq_store64(&s.synced_bytes, s.synced_bytes + to - from_)
            mq_assert(to > s.flushed, to, s.flushed)
            mq_assert(not s.pooled or to <= mq_load64(&s.committed), to, s.committed)
            mq_store64(&s.flushed, to if not mq_planted("flushed") else to + (<int64_t> 1 << 40))
            mq_assert(s.flushed <= mq_load64(&s.written), s.flushed, s.written)
        if s.flushed >= f.start + f.bytes:
            mq_store64(&s.pending_head, s.pending_head + 1)
        elif not s.pooled:
            _keep_writable(s, f)        # the sync write-protected the page that the next put touches
        if s.flushed < f.start + f.bytes:
            break
    return 0


cdef void _gather(LogState *s) noexcept nogil:
    """Before a sync wait for those whom the last one let go: they are on their way back with their next message. The flush lock is held.

    Otherwise the waiters fall into two halves that alternate for ever, a sync for each. Waits no longer than a sync takes; after a wait in
    vain the next syncs begin at once, more of them each time.
    """
    cdef int64_t limit
    cdef int turn
    if mq_load32(&s.waits_begun) - s.waits_before >= s.group_size:
        return
    if s.skip_waits > 0:
        s.skip_waits -= 1
        return
    limit = s.os.monotonic_ns(s.os) + min(GATHER_NS, s.sync_ns)
    for turn in range(GATHER_TURNS):
        if mq_load32(&s.waits_begun) - s.waits_before >= s.group_size:
            s.backoff = 0
            return
        if s.os.monotonic_ns(s.os) >= limit:
            break
        yield_processor()
    s.backoff = min(max(2 * s.backoff, BACKOFF_MIN), BACKOFF_MAX)
    s.skip_waits = s.backoff


cdef int64_t _behind_puts(LogState *s, int64_t written) noexcept nogil:
    """Where a flush by the clock ends while the log is busy: before the page that puts are in, a huge one where that leaves little.

    The sync of a page takes the right to write from it, and a put that comes there meanwhile is a fault that may wait for the filesystem's journal.
    The page's rest goes with the next flush, when puts are elsewhere. The flush lock is held.
    """
    cdef int64_t flushes = written - s.flushed, tail = mq_load64(&s.pending_tail), rest
    cdef PendingFile *f
    if s.pooled or flushes < BUSY_BYTES or s.pending_head >= tail:
        return written
    f = &s.pending[(tail - 1) % RING]
    if not f.start <= written < f.start + f.bytes:      # the log rolls just now
        return written
    rest = (written - f.start) & (HUGE_PAGE - 1)
    if rest * LEFT_PART > flushes:
        rest &= PAGE - 1
    return written - rest


cdef void _lead(LogState *s, bint by_clock) noexcept nogil:
    """Sync everything that is written, by the clock without the page that puts are in, and say whom that covers. The flush lock is held."""
    cdef uint32_t group = s.group + 1, before = s.waits_before
    cdef int64_t timestamp, written, end, began
    if not by_clock:
        _gather(s)
    mq_assert(mq_load32(&s.flush_lock) != 0, s.flush_lock, 1)
    s.waits_before = mq_load32(&s.waits_begun)       # before `written`: whoever is counted is covered
    # a timestamp read before `written` belongs to a record at or before it
    timestamp = mq_load64(&s.last_store_timestamp)
    written = mq_load64(&s.written)
    end = _behind_puts(s, written) if by_clock else written
    mq_assert(end <= written, end, written)
    mq_assert(end >= s.flushed, end, s.flushed)
    mq_store64(&s.group_end[group & 1], end)
    mq_store32(&s.group, group)
    began = s.os.monotonic_ns(s.os)
    if _sync(s, end, by_clock) == 0 and s.flushed >= end:
        if end == written:
            mq_store64(&s.flushed_timestamp, timestamp)
        elif end >= s.led_end:          # that time belongs to a record that was left: the one before does not
            mq_store64(&s.flushed_timestamp, s.led_timestamp)
    s.led_timestamp = timestamp
    mq_store64(&s.led_end, written)
    s.sync_ns = s.os.monotonic_ns(s.os) - began
    flushed_moved(s)
    s.group_size = mq_load32(&s.waits_begun) - before


cdef void call_waiters(LogState *s, uint32_t group, bint everybody) noexcept nogil:
    """Sync number `group` is over: wake one of those who came too late for it, to lead the next, and all whom it covered."""
    mq_add32(&s.group_done[(group + 1) & 1], 1)
    mq_add32(&s.group_done[group & 1], 1)
    if everybody:
        futex_wake_all(&s.group_done[(group + 1) & 1])
    else:
        futex_wake_one(&s.group_done[(group + 1) & 1])
    futex_wake_all(&s.group_done[group & 1])


cdef bint _lead_and_let_go(LogState *s, int64_t target, bint by_clock) noexcept nogil:
    """Lead a sync unless everything before target is durable already. The flush lock is held, and let go of. Returns: is the log latched?"""
    cdef bint failed = mq_load32(&s.flags) & LOG_FAILED
    cdef uint32_t group
    if s.flushed < target and not failed:
        _lead(s, by_clock)
        failed = mq_load32(&s.flags) & LOG_FAILED
    group = s.group
    mq_assert(mq_load32(&s.flush_lock) != 0, s.flush_lock, 1)
    unlock(&s.flush_lock)
    call_waiters(s, group, failed)
    return failed


cdef int flush_by_clock(LogState *s) noexcept nogil:
    """Make durable what is written, but for the page that puts are in while the log is busy; led_end > flushed says that something was left.

    Returns 1, or -errno when the log is latched.
    """
    cdef int64_t target = mq_load64(&s.written)
    if not mq_lock_try(&s.flush_lock):
        return flush_up_to(s, target, -1)       # with those who wait for the disk already
    if _lead_and_let_go(s, target, True):
        return s.error if s.error < 0 else -LOST
    return 1


cdef int flush_up_to(LogState *s, int64_t target, int64_t deadline_ns) noexcept nogil:
    """Wait until everything before target is durable, leading a sync where nobody else does.

    Returns 1 when durable, 0 at the deadline (monotonic ns; negative: none), or -errno when the log is latched. With a deadline the sync is
    led by the thread of serve_syncs, where there is one; 0 may then come before its sync is over.
    """
    cdef uint32_t seen, group, own
    cdef int64_t left = -1
    cdef bint failed
    mq_add32(&s.waits_begun, 1)
    while True:
        if mq_load64(&s.flushed) >= min(target, mq_load64(&s.written)):     # a slave's log may have been cut below the target
            return 1
        if mq_load32(&s.flags) & LOG_FAILED:
            return s.error if s.error < 0 else -LOST
        if deadline_ns >= 0:
            left = max(0, deadline_ns - s.os.monotonic_ns(s.os))
        if mq_lock_try(&s.flush_lock):
            if deadline_ns < 0 or not s.syncer or s.flushed >= target:
                failed = _lead_and_let_go(s, target, False)
                if left == 0 and not failed and mq_load64(&s.flushed) < target:
                    return 0
                continue
            s.sync_target = target
            mq_store32(&s.sync_job, JOB_LEAD)
            futex_wake_one(&s.sync_job)
        if left == 0:
            call_waiters(s, mq_load32(&s.group), False)
            return 0
        group = mq_load32(&s.group)
        own = group & 1 if target <= mq_load64(&s.group_end[group & 1]) else (group + 1) & 1
        seen = mq_load32(&s.group_done[own])
        if mq_load32(&s.group) == group and mq_load64(&s.flushed) < target and mq_load32(&s.flush_lock):
            futex_wait(&s.group_done[own], seen, left)


cdef void serve_syncs(LogState *s) noexcept nogil:
    """Lead syncs for those who have a deadline, until end_syncs. One thread at a time."""
    cdef uint32_t job
    cdef int look
    lock(&s.flush_lock)
    if mq_load32(&s.sync_job) != JOB_END:
        s.syncer = True
    _release(s)
    while True:
        job = mq_load32(&s.sync_job)
        if job == JOB_LEAD:
            mq_store32(&s.sync_job, JOB_NONE)
            _lead_one_by_one(s)
            # who was let go is on its way back with the next one
            for look in range(JOB_LOOKS):
                if mq_load32(&s.sync_job) != JOB_NONE:
                    break
                mq_pause()
        elif job == JOB_END:
            return
        else:
            futex_wait(&s.sync_job, JOB_NONE, -1)


cdef void _lead_one_by_one(LogState *s) noexcept nogil:
    """Lead the sync of the job, and as many more as there is somebody who came too late for the one before. The flush lock is held, and let go of."""
    cdef int64_t target = s.sync_target
    while s.flushed < target and not mq_load32(&s.flags) & LOG_FAILED:
        _lead(s, False)
        if mq_load32(&s.waits_begun) == s.waits_before or mq_load32(&s.flags) & LOG_FAILED:
            break
        target = mq_load64(&s.written)
        if s.flushed < target:      # whom it covered go on; the others sleep on, until the next one is over
            mq_add32(&s.group_done[s.group & 1], 1)
            futex_wake_all(&s.group_done[s.group & 1])
    _release(s)


cdef void end_syncs(LogState *s) noexcept nogil:
    """The flush lock is held, so that there is no job, and let go of: from now on everybody leads syncs itself."""
    s.syncer = False
    mq_store32(&s.sync_job, JOB_END)
    futex_wake_all(&s.sync_job)
    _release(s)


cdef void _release(LogState *s) noexcept nogil:
    cdef uint32_t group = s.group
    cdef bint failed = mq_load32(&s.flags) & LOG_FAILED
    unlock(&s.flush_lock)
    call_waiters(s, group, failed)
