# State shared by append, commit, flush and dispatch of a log: the append position, and the committed, flushed and
# dispatched positions. The writer of a field is noted at the field, or follows from the lock named there; other threads
# read with mq_load.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from mqfast.store.base.os_api cimport (
    MQ_IS_DEBUG,
    futex_wake_one,
    lock_wait,
    mq_assert,
    mq_unlock_no_wake,
    mq_load32,
    mq_load64,
    mq_lock_try,
    mq_os,
    mq_store64,
    mq_this_thread,
)

cdef enum LogFlag:  # same numbers as results.LogFlag; a put loads them once: any bit means the slow path
    LOG_CLOSED = 1
    LOG_FAILED = 2                  # latched by a failed flush or write
    LOG_FORKED = 4
    LOG_REFUSING = 8                # disk above the watermark and the policy refuses writes
    LOG_SLAVE = 16                  # opened as a slave: no puts
    LOG_WAITING = 64  # since the open, work without which nothing can be put waits for space on the disk (get_ready)
    LOG_ASLEEP = 128                # service threads sleep until an append (idle.pyx): wake them and continue

cdef enum Append:
    APPEND_OK = 1
    APPEND_NO_ROOM = 2              # roll first
    APPEND_MOVED = 3                # the queue's end moved meanwhile: encode again

cdef enum LogWatch:
    WATCH_WRITTEN = 1               # a thread waits for the log to grow (futex `grown`)
    WATCH_FLUSHED = 2               # the same, or Arrivals, for the flushed position
    WATCH_ARRIVALS = 4              # the store has an Arrivals: puts check the queue for waiting consumers

cdef enum:
    RING = 1024                     # files that may wait for a flush before a roll waits for a flush
    BLANK_BYTES = 8
    CLOCK_FALL_MS = 3000            # margin by which the checkpoint's times are taken to be too late (checkpoint.py)

cdef struct PendingFile:            # a file with unflushed bytes
    int64_t start
    int64_t bytes
    int64_t used                    # up to the end mark, after the roll
    uint8_t *base                   # its mapping
    uint8_t *buffer                 # pool buffer, or NULL
    int fd

cdef struct LogState:
    # cache line of the put
    uint32_t lock                   # the put lock: 0 free, 1 held, 2 held and a thread may sleep on it (csrc/atomics.h)
    uint32_t flags                  # LogFlag
    uint8_t *base                   # address of the current file's first byte: mapping, or pool buffer
    int64_t file_start
    int64_t file_bytes  # of the current file, up to the end of its blocks; 0: no file to append to, roll first
    int64_t written                 # physical offset behind the last record; published
    int64_t last_store_timestamp
    int64_t dispatched              # physical offset up to which queues and index match the log; published
    mq_os *os
    int64_t puts
    int64_t lock_since_ms           # when the put lock was taken; 0: free
    bint inline_dispatch
    bint crc_property
    bint pooled
    uint32_t watched                # LogWatch: the watches to notify of an append; one load in a put, see log_watch.pyx
    # commit and flush: other cache lines
    # 1: a put found no room for the unit: that record and the later ones wait for the dispatcher
    uint32_t needs_dispatch
    int64_t padding[4]
    uint32_t flush_lock             # the holder syncs for all waiters
    uint32_t commit_lock
    uint32_t group                  # number of the newest sync that has begun
    uint32_t group_done[2]          # futexes of the syncs of even and odd number, see group_commit.pyx
    uint32_t ahead                  # futex: 1 while blocks ahead of the log are synced
    uint32_t waits_begun            # counts the waits for a sync
    uint32_t waits_before           # value of waits_begun when the newest sync began
    uint32_t group_size             # waits that the newest sync covered, or that began while it ran
    uint32_t sync_job  # futex of the thread that leads syncs for waiters with a deadline: 0 none, 1 lead one, 2 end
    bint syncer                     # true while that thread runs. Under the flush lock
    int64_t sync_target             # of the job
    uint32_t skip_waits, backoff    # syncs that begin without a wait; the number that the last unsuccessful wait set
    int64_t group_end[2]            # end that the newest sync of even and of odd number covers
    int64_t sync_ns                 # duration of the newest sync
    int error                       # -errno of the failure that latched the log
    int64_t committed
    int64_t flushed
    int64_t flushed_timestamp       # store timestamp of the newest record known durable
    int64_t led_end                 # written position when the newest sync began, which may have left the last page
    int64_t led_timestamp           # store timestamp of a record before led_end
    int64_t dispatched_timestamp    # store timestamp up to which queues were seen to match the log
    int64_t confirm                 # physical offset above which readers may not read; INT64_MAX: not set
    uint32_t grown                  # futex: changes when a watched position moved
    # 1: the next arrival writes to the descriptor; 0: it was written to since the list was taken
    uint32_t arrivals_armed
    int64_t arrived  # QueueState *: queues with a new message and a waiter, each once, linked by next_arrived
    int arrivals_fd
    int64_t borrowed  # start of the file whose pool buffer the dispatcher reads, -1: none. Set under the put lock
    int64_t whole_bytes  # length of the current file: blocks for the rest are allocated in steps, ahead of the puts
    # physical offset up to which all is dispatched except units that wait for space, from `dispatched` on
    int64_t walked
    int64_t prefaulted  # physical offset up to which pages were made writable ahead, or a pool buffer touched
    int64_t clock_fall_from  # the clock fell by more than the checkpoint's margin: from this store time, 0: it did not
    int64_t clock_fall_to           # to this store time
    int64_t sync_calls
    int64_t synced_bytes
    uint32_t moved                  # futex of the service threads that sleep until an append
    int64_t pending_head            # ring positions: head is the oldest unflushed file
    int64_t pending_tail
    PendingFile pending[RING]
    uint64_t lock_owner             # in debug builds: the thread that holds the put lock, 0: none


cdef inline void note_clock_fall(LogState *s, int64_t now) noexcept nogil:
    """Note that the clock is behind the newest store time. The put lock is held."""
    if s.last_store_timestamp - now > CLOCK_FALL_MS:
        if s.clock_fall_from == 0:
            mq_store64(&s.clock_fall_to, now)
        mq_store64(&s.clock_fall_from, s.last_store_timestamp)


cdef inline void check_positions(LogState *s) noexcept nogil:
    """Check the order of the positions. The put lock is held, so `written` is constant; the others may move, never
    beyond it.
    """
    cdef int64_t flushed, committed, written
    if not MQ_IS_DEBUG:
        return
    flushed = mq_load64(&s.flushed)
    committed = mq_load64(&s.committed)     # after `flushed`, which follows it
    written = s.written
    mq_assert(flushed >= 0, flushed, 0)
    mq_assert(flushed <= written, flushed, written)
    mq_assert(s.pooled == 0 or flushed <= committed, flushed, committed)
    mq_assert(s.pooled == 0 or committed <= written, committed, written)
    mq_assert(mq_load64(&s.dispatched) <= written, mq_load64(&s.dispatched), written)
    mq_assert(s.file_bytes == 0 or s.file_start <= written, s.file_start, written)
    mq_assert(s.file_bytes == 0 or written <= s.file_start + s.whole_bytes, written, s.file_start + s.whole_bytes)
    mq_assert(s.file_bytes <= s.whole_bytes or s.file_bytes == 1, s.file_bytes, s.whole_bytes)
    mq_assert(s.file_bytes == 0 or s.base != NULL, s.file_bytes, s.file_start)
    mq_assert(mq_load64(&s.pending_head) <= s.pending_tail, s.pending_head, s.pending_tail)
    mq_assert(s.pending_tail - mq_load64(&s.pending_head) <= RING, s.pending_tail, RING)
    mq_assert(s.puts >= 0, s.puts, 0)


cdef inline void _own_puts(LogState *s) noexcept nogil:
    if MQ_IS_DEBUG:
        mq_assert(s.lock_owner == 0, s.lock_owner, 0)
        s.lock_owner = mq_this_thread()


cdef inline void check_owner(LogState *s) noexcept nogil:
    """Check that this thread holds the put lock."""
    mq_assert(mq_load32(&s.lock) != 0, s.lock, 1)
    mq_assert(s.lock_owner == mq_this_thread(), s.lock_owner, mq_this_thread())


cdef inline bint try_to_lock_puts(LogState *s) noexcept nogil:
    """Take the put lock if it is free: the only way allowed with the GIL."""
    if not mq_lock_try(&s.lock):
        return False
    _own_puts(s)
    return True


cdef inline void wait_to_lock_puts(LogState *s) noexcept nogil:
    """Wait for the put lock. Not with the GIL."""
    lock_wait(&s.lock)
    _own_puts(s)


cdef inline void lock_puts(LogState *s) noexcept nogil:
    """Take the put lock. Not with the GIL."""
    if not mq_lock_try(&s.lock):
        lock_wait(&s.lock)
    _own_puts(s)


cdef inline void unlock_puts(LogState *s) noexcept nogil:
    check_positions(s)
    check_owner(s)
    if MQ_IS_DEBUG:
        s.lock_owner = 0
    if mq_unlock_no_wake(&s.lock):
        futex_wake_one(&s.lock)
