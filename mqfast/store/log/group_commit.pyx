"""Commit and flush of the log: pool buffer -> page cache (commit), page cache -> disk (flush), and the threads that
wait (RocketMQ: CommitRealTimeService, GroupCommitService).

After a failed sync nothing is synced again: the log is latched and all waiters get the error. No thread sleeps where no
sync will wake it. Positions are physical offsets: flushed <= committed <= written.

Group commit: a ticket is an end offset; there is no queue, no timer and no thread. The thread that takes the flush lock
is the leader. It syncs the log, publishes `flushed` and wakes the waiters that the sync covers. It also wakes another
waiter, which leads the next sync. Covered waiters and later waiters sleep on two futexes (group_done) that swap roles
with each sync, so that no thread is woken without need; on a machine with few processors that is half of the cost.

fsync cannot be cancelled. A waiter with a deadline hands the flush lock to the sync thread (serve_syncs), and sleeps
with the other waiters. No waiter is missed:
  - a sync publishes its end (group_end) before its begin (group), and changes both futexes at its end;
  - a waiter reads the futex for its sleep, then checks that `group` has not changed, that `flushed` does not cover the
    target yet, and that the flush lock is held. That holder has not changed the futex yet, so it will wake the waiter,
    or another waiter that leads a sync covering both;
  - a waiter that was woken to lead and returns at its deadline passes the wake-up on.
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
cdef int64_t BUSY_BYTES = 1 << 20        # an interval flush of so many bytes was not the last: more follow
cdef int LEFT_PART = 5                   # and may leave a fifth of the bytes to the next flush
cdef int NO_PAGE = 14                    # EFAULT: populate's error where an access would be a SIGBUS
cdef int LOST = 5                        # EIO: a page or a whole file is lost
cdef int64_t COMMIT_PIECE = 128 << 10    # size of a write: some 30 us
cdef int64_t LONG_YIELD_NS = 1000000     # a yield of this duration shows that other processes need the processors
cdef int64_t GATHER_NS = 100000          # 16 woken threads need some 150 us on two processors until all wait again
cdef int GATHER_TURNS = 1000             # the same for a clock that does not advance
cdef int JOB_LOOKS = 256                 # some 10 us of polls before the sync thread sleeps
cdef enum:
    JOB_NONE = 0
    JOB_LEAD = 1
    JOB_END = 2
cdef uint32_t BACKOFF_MIN = 4
cdef uint32_t BACKOFF_MAX = 64


cdef int64_t readable(LogState *s, bint sync) noexcept nogil:
    """Return the physical offset up to which readers may read.

    Flushed with sync flush, committed with a pool, else written; never above the confirm offset, if set.
    """
    cdef int64_t end = mq_load64(&s.flushed) if sync else mq_load64(&s.committed) if s.pooled else mq_load64(&s.written)
    return min(end, mq_load64(&s.confirm))


cdef bint is_behind(LogState *s, bint sync) noexcept nogil:
    """Return true if records wait for dispatch."""
    # read in this order: a put that dispatches moves `dispatched` first, and must not be taken for a put that does not
    cdef int64_t limit = readable(s, sync)
    return ((mq_load64(&s.dispatched) < limit and mq_load64(&s.walked) < limit)
            or (mq_load32(&s.needs_dispatch) != 0 and not sync))


cdef void latch(LogState *s, int rc) noexcept nogil:
    s.error = rc
    mq_or32(&s.flags, LOG_FAILED)
    wake_watchers(s)


cdef int _write_out(LogState *s, PendingFile *f, int64_t at, int64_t end) noexcept nogil:
    """Write the buffer's bytes [at, end) to the file, and yield the processor after each piece.

    A thread that waits for this processor may be about to get the GIL, and a putting thread waits for that thread. On a
    busy machine a yield may cost milliseconds: after such a yield there are no more in this write.
    """
    cdef int64_t n, start_ns
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
            start_ns = s.os.monotonic_ns(s.os)
            yield_processor()
            yields = s.os.monotonic_ns(s.os) - start_ns < LONG_YIELD_NS
    return rc


cdef int commit_up_to(LogState *s, int64_t target) noexcept nogil:
    """Copy pool buffers to the page cache up to target. Takes the commit lock."""
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
                # behind the end mark the buffer may hold bytes of an older file: the file keeps its zeros
                rc = _write_out(s, f, from_ - f.start, min(to - f.start, mq_load64(&f.used)))
                if rc < 0:
                    latch(s, rc)
                    break
            mq_store64(&s.committed, to)
        i += 1
    unlock(&s.commit_lock)
    return rc


cdef int _whole(LogState *s, PendingFile *f) noexcept nogil:
    """Verify the file after a sync: no written page was lost, and the file was not truncated or removed.

    The kernel reports a failed write once for each open file: the sync of the blocks ahead, which uses the same open
    file, may have received the error of this sync. It latches the log before it ends, so this waits for it.
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
    """Make the page of the next put writable again ahead of the put."""
    cdef int64_t first = (mq_load64(&s.written) - f.start) & ~(PAGE - 1)
    if 0 <= first < f.bytes:
        if populate(s.os, f.base + first, min(2 * PAGE, f.bytes - first)) == -NO_PAGE:
            latch(s, -LOST)


cdef int _sync(LogState *s, int64_t target, bint by_clock) noexcept nogil:
    """Sync [flushed, target) file by file. The flush lock is held.

    A sync write-protects each mapped page, with an interrupt for every processor; pages that were unmapped before are
    spared that. An interval flush keeps the current page of the puts mapped: a put must not fault. A sync with waiters
    unmaps it as well: few puts run meanwhile, and the fault costs less than the interrupts.
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
                _keep_writable(s, f)    # a huge page is unmapped whole, and may hold the next put's pages
        if from_ < to:
            # a single call: each call commits the filesystem's journal, and all waiters wait for the last one
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
            _keep_writable(s, f)        # the sync write-protected the page of the next put
        if s.flushed < f.start + f.bytes:
            break
    return 0


cdef void _gather(LogState *s) noexcept nogil:
    """Wait for the waiters of the last sync before the next one: their next messages are about to arrive. The flush
    lock is held.

    Otherwise the waiters split into two halves that alternate, with a sync for each. Waits no longer than a sync takes;
    after an unsuccessful wait the next syncs begin at once, more of them each time.
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
    """Return the end of an interval flush while the log is busy: before the page of the puts, a huge page where that
    leaves little.

    The sync of a page write-protects it, and a concurrent put there faults and may wait for the filesystem's journal.
    The page's rest is flushed with the next interval, when puts use other pages. The flush lock is held.
    """
    cdef int64_t flushes = written - s.flushed, tail = mq_load64(&s.pending_tail), rest
    cdef PendingFile *f
    if s.pooled or flushes < BUSY_BYTES or s.pending_head >= tail:
        return written
    f = &s.pending[(tail - 1) % RING]
    if not f.start <= written < f.start + f.bytes:      # the log rolls now
        return written
    rest = (written - f.start) & (HUGE_PAGE - 1)
    if rest * LEFT_PART > flushes:
        rest &= PAGE - 1
    return written - rest


cdef void _lead(LogState *s, bint by_clock) noexcept nogil:
    """Sync everything that is written, by the clock without the page of the puts, and publish the end. The flush lock
    is held.
    """
    cdef uint32_t group = s.group + 1, before = s.waits_before
    cdef int64_t timestamp, written, end, start_ns
    if not by_clock:
        _gather(s)
    mq_assert(mq_load32(&s.flush_lock) != 0, s.flush_lock, 1)
    s.waits_before = mq_load32(&s.waits_begun)       # before `written`: a counted waiter is covered
    # a timestamp read before `written` belongs to a record at or before it
    timestamp = mq_load64(&s.last_store_timestamp)
    written = mq_load64(&s.written)
    end = _behind_puts(s, written) if by_clock else written
    mq_assert(end <= written, end, written)
    mq_assert(end >= s.flushed, end, s.flushed)
    mq_store64(&s.group_end[group & 1], end)
    mq_store32(&s.group, group)
    start_ns = s.os.monotonic_ns(s.os)
    if _sync(s, end, by_clock) == 0 and s.flushed >= end:
        if end == written:
            mq_store64(&s.flushed_timestamp, timestamp)
        elif end >= s.led_end:          # that time belongs to a record that was left: use the time before
            mq_store64(&s.flushed_timestamp, s.led_timestamp)
    s.led_timestamp = timestamp
    mq_store64(&s.led_end, written)
    s.sync_ns = s.os.monotonic_ns(s.os) - start_ns
    flushed_moved(s)
    s.group_size = mq_load32(&s.waits_begun) - before


cdef void call_waiters(LogState *s, uint32_t group, bint everybody) noexcept nogil:
    """Wake the waiters after sync `group`: all that it covered, and one later waiter, which leads the next sync."""
    mq_add32(&s.group_done[(group + 1) & 1], 1)
    mq_add32(&s.group_done[group & 1], 1)
    if everybody:
        futex_wake_all(&s.group_done[(group + 1) & 1])
    else:
        futex_wake_one(&s.group_done[(group + 1) & 1])
    futex_wake_all(&s.group_done[group & 1])


cdef bint _lead_and_release(LogState *s, int64_t target, bint by_clock) noexcept nogil:
    """Lead a sync unless everything before target is durable already. The flush lock is held, and released here.

    Returns: true if the log is latched.
    """
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
    """Make the written records durable, except the page of the puts while the log is busy; led_end > flushed then.

    Returns 1, or -errno when the log is latched.
    """
    cdef int64_t target = mq_load64(&s.written)
    if not mq_lock_try(&s.flush_lock):
        return flush_up_to(s, target, -1)       # join the running sync
    if _lead_and_release(s, target, True):
        return s.error if s.error < 0 else -LOST
    return 1


cdef int flush_up_to(LogState *s, int64_t target, int64_t deadline_ns) noexcept nogil:
    """Wait until everything before target is durable; lead a sync if the flush lock is free.

    Returns 1 when durable, 0 at the deadline (monotonic ns; negative: none), or -errno when the log is latched. With a
    deadline the thread of serve_syncs, if any, leads the sync; 0 may then be returned before that sync has ended.
    """
    cdef uint32_t seen, group, own
    cdef int64_t remaining_ns = -1
    cdef bint failed
    mq_add32(&s.waits_begun, 1)
    while True:
        # a slave's log may have been truncated below the target
        if mq_load64(&s.flushed) >= min(target, mq_load64(&s.written)):
            return 1
        if mq_load32(&s.flags) & LOG_FAILED:
            return s.error if s.error < 0 else -LOST
        if deadline_ns >= 0:
            remaining_ns = max(0, deadline_ns - s.os.monotonic_ns(s.os))
        if mq_lock_try(&s.flush_lock):
            if deadline_ns < 0 or not s.syncer or s.flushed >= target:
                failed = _lead_and_release(s, target, False)
                if remaining_ns == 0 and not failed and mq_load64(&s.flushed) < target:
                    return 0
                continue
            s.sync_target = target
            mq_store32(&s.sync_job, JOB_LEAD)
            futex_wake_one(&s.sync_job)
        if remaining_ns == 0:
            call_waiters(s, mq_load32(&s.group), False)
            return 0
        group = mq_load32(&s.group)
        own = group & 1 if target <= mq_load64(&s.group_end[group & 1]) else (group + 1) & 1
        seen = mq_load32(&s.group_done[own])
        if mq_load32(&s.group) == group and mq_load64(&s.flushed) < target and mq_load32(&s.flush_lock):
            futex_wait(&s.group_done[own], seen, remaining_ns)


cdef void serve_syncs(LogState *s) noexcept nogil:
    """Lead syncs for waiters with a deadline, until end_syncs. One thread at a time."""
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
            # a released waiter is about to wait again
            for look in range(JOB_LOOKS):
                if mq_load32(&s.sync_job) != JOB_NONE:
                    break
                mq_pause()
        elif job == JOB_END:
            return
        else:
            futex_wait(&s.sync_job, JOB_NONE, -1)


cdef void _lead_one_by_one(LogState *s) noexcept nogil:
    """Lead the sync of the job, and further syncs while waiters arrived too late for the last. The flush lock is held,
    and released here.
    """
    cdef int64_t target = s.sync_target
    while s.flushed < target and not mq_load32(&s.flags) & LOG_FAILED:
        _lead(s, False)
        if mq_load32(&s.waits_begun) == s.waits_before or mq_load32(&s.flags) & LOG_FAILED:
            break
        target = mq_load64(&s.written)
        if s.flushed < target:      # covered waiters continue; the others sleep until the next sync is over
            mq_add32(&s.group_done[s.group & 1], 1)
            futex_wake_all(&s.group_done[s.group & 1])
    _release(s)


cdef void end_syncs(LogState *s) noexcept nogil:
    """End the sync thread: from now on each waiter leads syncs itself. The flush lock is held (so no job is open), and
    released here.
    """
    s.syncer = False
    mq_store32(&s.sync_job, JOB_END)
    futex_wake_all(&s.sync_job)
    _release(s)


cdef void _release(LogState *s) noexcept nogil:
    cdef uint32_t group = s.group
    cdef bint failed = mq_load32(&s.flags) & LOG_FAILED
    unlock(&s.flush_lock)
    call_waiters(s, group, failed)
