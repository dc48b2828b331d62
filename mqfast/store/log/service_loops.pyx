"""The loops of the service threads of the log: flush, commit, prefault, and the wait for the next file.

No loop takes the GIL while nothing fails: each is a single call from Python that returns when the event was set, after
a failure, or for work that needs Python. An idle loop sleeps until a put (idle.pyx).
"""

from libc.stdint cimport int64_t, uint32_t
from mqfast.store.base.event cimport Event
from mqfast.store.base.mapped_file cimport MappedFile, mapped_now
from mqfast.store.base.os_api cimport (
    Mutex,
    acquire,
    acquire_without_gil,
    decode_path,
    futex_wait,
    mq_load32,
    mq_load64,
    mq_store64,
    os_error,
    release,
)
from mqfast.store.log.append cimport POPULATE_STEP, ZEROS_STEP, prefault_piece
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.log.group_commit cimport commit_up_to, flush_by_clock, flush_up_to, latch
from mqfast.store.log.idle cimport sleep_until_put
from mqfast.store.log.log_state cimport LOG_FAILED, LogState
from mqfast.store.meta.checkpoint_file cimport CheckpointFile
from mqfast.store.queues.consume_queue cimport QueueState, QueueTable
from mqfast.store.queues.queue_flush cimport NEEDS_PYTHON, flush_tails

from mqfast.errors import FlushError

cdef int64_t PAGE = 4096
cdef int64_t MAX_WINDOW = 128 << 20     # prefault: some 30 ms at the fastest rate measured
cdef int64_t MS = 1000000
cdef int64_t PREFAULT_LOOKS = 20        # unsuccessful checks, each after a longer sleep: the log is idle then
cdef int64_t WRITTEN_LOOKS = 4          # the same in the wait for a position
cdef int64_t FILE_LOOKS = 20           # checks for the file of the put that woke the thread
cdef int64_t LOOK_NS = 50 * MS          # interval of checks of a slow position
cdef int64_t IDLE_NS = 10000 * MS       # an idle flush thread checks whether readers mapped too many files
cdef int64_t NEVER = (<int64_t> 1 << 62)


cdef inline int64_t _pages_behind(int64_t end, int64_t done) noexcept nogil:
    return end // PAGE - done // PAGE


cdef inline int64_t _prefault_nap(int64_t rest, int64_t taken, int64_t nap) noexcept nogil:
    """Return the next sleep, 1 to 4 ms, allowing for eight times the rate of the last sleep.

    taken: bytes written in the last sleep; rest: bytes that may still be written.
    """
    return max(MS, min(4 * MS, nap * max(rest, 0) // (8 * max(taken, 1))))


# --- flush ---

cdef class FlushLoop:
    """Interval flushes: the log, the queues, and the checkpoint of both.

    Args: log; interval: seconds after which at least ``least_pages`` dirty pages of 4 KiB are flushed;
    thorough_interval: seconds after which any dirty page is; queues, checkpoint: flushed each ``queue_interval``
    seconds, None: not here; max_mapped_files: mapped files above which ``run`` returns.
    Attributes: by_hand: the next flush of the queues is the caller's; many: number of dirty queues from which on the
    caller flushes, who may sync the filesystem; flushing: a lock held by each flush of the queues and by a truncation:
    the state that a flush has read of a queue stays valid until its end.
    Thread: one at a time.
    """
    cdef CommitLog log
    cdef QueueTable queues
    cdef CheckpointFile checkpoint
    cdef public bint by_hand
    cdef readonly Mutex flushing
    cdef public int64_t many
    cdef int64_t step, thorough_step, queue_step, least_pages, max_mapped_files
    cdef int64_t due, thorough_due, queues_due      # monotonic ns; due 0: not started
    # positions where queues and log agreed before the newest flush of the queues
    cdef int64_t covered_timestamp, covered_offset
    cdef bint clean                                 # that flush had nothing to do
    cdef QueueState *failed                         # the queue whose sync failed, or NULL

    def __init__(self, CommitLog log not None, double interval, double thorough_interval, int64_t least_pages,
                 QueueTable queues=None,
                 CheckpointFile checkpoint=None, double queue_interval=1.0, int64_t max_mapped_files=NEVER):
        self.log = log
        self.queues = queues
        self.checkpoint = checkpoint
        self.many = NEVER
        self.flushing = Mutex(nests=True)
        self.least_pages = least_pages
        self.max_mapped_files = max_mapped_files
        self.step = max(MS, <int64_t> (interval * 1e9))
        self.thorough_step = <int64_t> (thorough_interval * 1e9)
        self.queue_step = max(MS, <int64_t> (queue_interval * 1e9)) if queues is not None else NEVER
        self.clean = queues is None

    cdef void _begin(self, int64_t now) noexcept nogil:
        self.due = now + self.step
        self.thorough_due = now + self.thorough_step
        self.queues_due = now + self.queue_step if self.queue_step < NEVER else NEVER

    def run(self, Event event not None, double seconds=-1.0) -> bool:
        """Flush in intervals until a reason to return.

        Reasons: the event is set, ``seconds`` are over (negative: no limit), a file is ready for ``reap``, the clock
        fell, or too many files are mapped. While the log is busy the page of the puts waits for the next interval. GIL:
        released.

        Returns: true if the queues are due and the caller's to flush (new or truncated queues, many at once, a bad
        file). Raises: FlushError, StorageError when a sync fails; the log is latched then.
        """
        cdef LogState *s = &self.log.state
        cdef uint32_t seen = event.seen
        cdef int64_t written, remaining_ns, now = s.os.monotonic_ns(s.os)
        cdef int64_t until = now + <int64_t> (seconds * 1e9) if seconds >= 0 else NEVER
        cdef int rc = 1, rc_queues = 1
        cdef bint crowded = False
        self.failed = NULL
        if self.due == 0:
            self._begin(now)
        with nogil:
            while True:
                now = s.os.monotonic_ns(s.os)
                if now >= self.due:
                    rc = self._flush_log(s, now)
                    if rc < 0:
                        break
                    self.due = now + self.step
                    now = s.os.monotonic_ns(s.os)
                if now >= self.queues_due and mq_load64(&s.clock_fall_from) == 0:
                    self.queues_due = now + self.queue_step
                    acquire_without_gil(self.flushing)
                    rc_queues = self._flush_queues(s)
                    release(self.flushing)
                    crowded = mapped_now() > self.max_mapped_files
                    now = s.os.monotonic_ns(s.os)
                # reap_head: a pool has few buffers, which must be returned soon
                if (rc_queues != 1 or crowded or now >= until or mq_load32(&event.word) != seen
                        or mq_load64(&s.clock_fall_from) != 0
                        or mq_load64(&s.pending_head) != mq_load64(&self.log.reap_head)):
                    break
                written = mq_load64(&s.written)
                if self.clean and not self._is_behind(s, written):
                    sleep_until_put(s, event, seen, written, min(IDLE_NS, until - now))
                    crowded = mapped_now() > self.max_mapped_files
                    self.clean = self.queues is None
                    self._begin(s.os.monotonic_ns(s.os))
                else:
                    remaining_ns = min(min(until, self.queues_due), self.due) - now
                    if remaining_ns > 0:
                        futex_wait(&event.word, seen, remaining_ns)
        event.seen = mq_load32(&event.word)
        if rc < 0:
            self.log.raise_lost()
            raise FlushError(-rc, "flush failed; the store is latched", self.log.path)
        return self._is_by_hand(rc_queues)

    def flush_queues(self) -> bool:
        """Flush the queues and the checkpoint now, as ``run`` does at the interval. GIL: released. Returns, raises: as
        ``run``.
        """
        cdef LogState *s = &self.log.state
        cdef int rc
        acquire(self.flushing)
        try:
            with nogil:
                rc = self._flush_queues(s)
        finally:
            release(self.flushing)
        return self._is_by_hand(rc)

    cdef bint _is_by_hand(self, int rc) except -1:
        if rc < 0:
            self.log.raise_lost()
            raise os_error(rc, "msync", decode_path(self.failed.tail.path))
        return rc == NEEDS_PYTHON

    cdef int _flush_log(self, LogState *s, int64_t now) noexcept nogil:
        cdef int64_t end = mq_load64(&s.written)
        if now >= self.thorough_due:
            self.thorough_due = now + self.thorough_step
            return flush_up_to(s, end, -1)
        if (_pages_behind(end, mq_load64(&s.flushed)) >= self.least_pages
                or mq_load64(&s.flushed) < mq_load64(&s.led_end)):
            return flush_up_to(s, end, -1) if self.log.sync_flush else flush_by_clock(s)
        return 1

    cdef bint _is_behind(self, LogState *s, int64_t written) noexcept nogil:
        """Return true if records are not flushed or not dispatched yet, or the log is latched."""
        return (mq_load64(&s.flushed) < written or mq_load64(&s.dispatched) < written
                or (mq_load32(&s.flags) & LOG_FAILED) != 0)

    cdef int _flush_queues(self, LogState *s) noexcept nogil:
        """Flush the queues, then the checkpoint, which never claims more than a sync covered.

        Returns 1, NEEDS_PYTHON, or -errno after a failed sync.
        """
        cdef bint left_page = False
        cdef int64_t done = 0, timestamp, offset
        cdef int rc
        if mq_load32(&s.flags) & LOG_FAILED:
            return 1                # after a failed sync nothing is synced
        if self.by_hand:
            return NEEDS_PYTHON
        self._cover(s, &timestamp, &offset)
        rc = flush_tails(self.queues, self.many, &left_page, &done, &self.failed)
        if rc < 0:
            latch(s, rc)            # the kernel may have dropped the pages: a second sync would report them durable
        if rc != 1:
            return rc
        self._see_synced(timestamp, offset, left_page)
        mq_store64(&self.checkpoint.physic_msg_timestamp, mq_load64(&s.flushed_timestamp))
        rc = self.checkpoint.write()
        self.clean = done == 0 and not left_page and rc == 0
        return 1 if rc == 0 or rc == 1 else NEEDS_PYTHON

    cdef void _cover(self, LogState *s, int64_t *timestamp, int64_t *offset) noexcept nogil:
        # The offset first: the time may be that of a later record, which has a unit as well. Unflushed records may be
        # lost after a power cut, and RocketMQ's recovery begins at this offset.
        offset[0] = min(mq_load64(&s.dispatched), mq_load64(&s.flushed))
        timestamp[0] = mq_load64(&s.last_store_timestamp)
        if mq_load64(&s.dispatched) >= mq_load64(&s.written):
            s.dispatched_timestamp = timestamp[0]
        timestamp[0] = s.dispatched_timestamp

    cdef void _see_synced(self, int64_t timestamp, int64_t offset, bint left_page) noexcept nogil:
        # If a page was skipped, the state at the flush before is durable: all its pages are written by now.
        cdef int64_t synced = self.covered_timestamp if left_page else timestamp
        cdef int64_t end = self.covered_offset if left_page else offset
        self.covered_timestamp = timestamp
        self.covered_offset = offset
        mq_store64(&self.checkpoint.logics_msg_timestamp, synced)
        mq_store64(&self.checkpoint.logics_physical_offset,
                   max(mq_load64(&self.checkpoint.logics_physical_offset), end))

    def cover(self) -> tuple:
        """Return the state that the next flush of the queues covers, for ``see_synced``."""
        cdef int64_t timestamp, offset
        self._cover(&self.log.state, &timestamp, &offset)
        return timestamp, offset

    def see_synced(self, tuple covered not None, bint left_page) -> None:
        """Advance the checkpoint after a queue flush to its offset, or to the previous flush's if the last page was
        skipped.
        """
        self._see_synced(covered[0], covered[1], left_page)


# --- commit ---

def keep_committed(CommitLog log not None, Event event not None, double interval, double thorough_interval,
                   int64_t least_pages) -> None:
    """Commit in intervals until the event is set. GIL: released.

    After each ``interval`` seconds if at least ``least_pages`` are dirty, after ``thorough_interval`` any dirty page.
    Raises: StoreFailed when a write fails; the store is latched then. Thread: one at a time.
    """
    cdef LogState *s = &log.state
    cdef uint32_t seen = event.seen
    cdef int64_t now, target
    cdef int64_t step = max(MS, <int64_t> (interval * 1e9)), thorough_step = <int64_t> (thorough_interval * 1e9)
    cdef int rc = 0
    if log.thorough_commit_due == 0:
        log.thorough_commit_due = s.os.monotonic_ns(s.os) + thorough_step
    with nogil:
        while rc >= 0 and mq_load32(&event.word) == seen:
            now = s.os.monotonic_ns(s.os)
            target = mq_load64(&s.written)
            if now >= log.thorough_commit_due:
                rc = commit_up_to(s, target)
                log.thorough_commit_due = now + thorough_step
            elif _pages_behind(target, mq_load64(&s.committed)) >= least_pages:
                rc = commit_up_to(s, target)
            if rc >= 0:
                if mq_load64(&s.committed) >= target:
                    sleep_until_put(s, event, seen, target, -1)
                futex_wait(&event.word, seen, step)
    event.seen = mq_load32(&event.word)
    if rc < 0:
        log._commit_failed(rc)


# --- pages and files ahead ---

def wait_until_written(CommitLog log not None, Event event not None, int64_t end, double seconds) -> None:
    """Sleep until the event is set, the time is over, or the log is written up to ``end``.

    Checks every 50 ms while the log grows. GIL: released.
    """
    cdef LogState *s = &log.state
    cdef int64_t until = s.os.monotonic_ns(s.os) + <int64_t> (seconds * 1e9)
    cdef int64_t remaining_ns, written, last = -1, still = 0
    cdef uint32_t seen = event.seen
    with nogil:
        while mq_load32(&event.word) == seen:
            written = mq_load64(&s.written)
            remaining_ns = until - s.os.monotonic_ns(s.os)
            if written >= end or remaining_ns <= 0:
                break
            still = still + 1 if written == last else 0
            last = written
            if still < WRITTEN_LOOKS:
                futex_wait(&event.word, seen, min(remaining_ns, LOOK_NS))
            else:
                still = 0
                sleep_until_put(s, event, seen, written, remaining_ns)
    event.seen = mq_load32(&event.word)


def keep_prefaulted(CommitLog log not None, Event event not None) -> None:
    """Keep the window ahead of the written position writable until the event is set or the log rolls. GIL: released.

    With a pool, the buffer's pages are touched, which the host of a virtual machine may have taken back (90 us of a put
    every 2 MiB). The window doubles whenever a check found less than half of it left, up to MAX_WINDOW, and shrinks
    when the log is idle. With zeros ahead it does not grow: its bytes are written to the disk once already, beside the
    syncs of the puts.
    """
    cdef LogState *s = &log.state
    cdef MappedFile file = log.current
    cdef uint32_t seen = event.seen
    cdef int64_t written, ahead, last = -1, still = 0, nap = MS, slept_at = -1, taken, piece
    cdef int64_t window, min_window, max_window
    cdef int rc = 0
    cdef bint zeros = log.zeros_ahead > 0
    min_window = window = log.ready_bytes
    max_window = min_window if zeros else MAX_WINDOW
    piece = ZEROS_STEP if zeros else POPULATE_STEP
    taken = window
    if window <= 0:
        with nogil:
            futex_wait(&event.word, seen, -1)
        event.seen = mq_load32(&event.word)
        return
    if file is None:
        _wait_for_file(s, event)
        return
    file.hold()
    try:
        with nogil:
            while (mq_load32(&event.word) == seen and mq_load64(&s.file_start) == file.start_offset
                   and mq_load64(&s.file_bytes) and rc >= 0):
                written = mq_load64(&s.written)
                if slept_at >= 0:
                    taken = written - slept_at
                    slept_at = -1
                ahead = mq_load64(&s.prefaulted) - written
                if ahead < window // 2 and last >= 0 and written != last:
                    window = min(window * 2, max_window)
                if ahead <= window - min(piece, window // 4):
                    rc = prefault_piece(s, written + window, file.start_offset, zeros)
                    if rc > 0:
                        last = written
                        continue
                if written != last:
                    still = 0
                    nap = _prefault_nap(ahead - window // 2, taken, nap)
                else:
                    still += 1
                    nap = min(MS * still, 8 * MS)
                last = slept_at = written
                if still < PREFAULT_LOOKS:
                    futex_wait(&event.word, seen, nap)
                else:
                    window = min_window
                    still = 0
                    nap = MS
                    sleep_until_put(s, event, seen, written, -1)
                    last = -1
    finally:
        file.release()
    event.seen = mq_load32(&event.word)
    if rc < 0:
        raise os_error(rc, "prefault", file.path)


cdef int _wait_for_file(LogState *s, Event event) except -1:
    """Wait until the log has a file, which the first put creates a moment after it has woken this thread."""
    cdef uint32_t seen = event.seen
    cdef int64_t look
    with nogil:
        while mq_load32(&event.word) == seen and mq_load64(&s.file_bytes) == 0:
            sleep_until_put(s, event, seen, mq_load64(&s.written), -1)
            for look in range(FILE_LOOKS):
                if mq_load32(&event.word) != seen or mq_load64(&s.file_bytes) != 0:
                    break
                futex_wait(&event.word, seen, 5 * MS)
    event.seen = mq_load32(&event.word)
    return 0
