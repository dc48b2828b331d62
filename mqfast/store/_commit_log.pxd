# The append side of the log: where the next byte goes, how far it is committed, flushed and dispatched.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from mqfast.store._consume_queue cimport QueueState
from mqfast.store._mapped_file cimport Latch, MappedFile
from mqfast.store._os cimport Mutex, OsDoor, mq_load32, mq_os
from mqfast.store._record cimport Draft, Record

cdef enum LogFlag:                  # one load on the put's edge: anything set means the slow path
    LOG_CLOSED = 1
    LOG_FAILED = 2                  # latched by a failed flush or write
    LOG_FORKED = 4
    LOG_REFUSING = 8                # disk above its watermark and the policy refuses writes
    LOG_SLAVE = 16                  # opened as a slave: nothing is put

cdef enum Append:
    APPEND_OK = 1
    APPEND_NO_ROOM = 2              # roll first
    APPEND_MOVED = 3                # the queue went on meanwhile: encode again

cdef enum:
    RING = 1024                     # files that may wait for a flush before a roll waits for one
    BLANK_BYTES = 8

cdef struct PendingFile:            # a file with bytes that are not yet flushed
    int64_t start
    int64_t bytes
    int64_t used                    # up to the end mark, once the log rolled on
    uint8_t *base                   # its mapping
    uint8_t *buffer                 # pool buffer, or NULL
    int fd

cdef struct LogState:
    # the put's line
    uint32_t lock                   # the put lock
    uint32_t flags                  # LogFlag
    uint8_t *base                   # address of the current file's first byte: mapping, or pool buffer
    int64_t file_start
    int64_t file_bytes              # 0: no file to append to, roll first
    int64_t written                 # physical offset behind the last record; published
    int64_t last_store_timestamp
    int64_t dispatched              # physical offset up to which queues and index agree with the log; published
    mq_os *os
    int64_t puts
    int64_t lock_since_ms           # when the put lock was taken; 0: free
    bint inline_dispatch
    bint crc_property
    bint pooled
    # commit and flush: other lines
    int64_t padding[4]
    uint32_t flush_lock             # its holder syncs for everybody
    uint32_t flush_count            # futex: moves after each sync
    uint32_t commit_lock
    int error                       # -errno of the failure that latched the log
    int64_t committed
    int64_t flushed
    int64_t flushed_timestamp       # store timestamp of the newest record known durable
    int64_t dispatched_timestamp    # store timestamp up to which queues were seen to agree with the log
    int64_t prefaulted              # physical offset up to which pages were made writable ahead
    int64_t sync_calls
    int64_t synced_bytes
    int64_t pending_head            # ring positions: head is the oldest unflushed file
    int64_t pending_tail
    PendingFile pending[RING]

cdef struct Appended:
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp
    int32_t size

# Lock held by the caller for these.
cdef int append_simple(LogState *s, QueueState *q, const uint8_t *header, const uint8_t *body, int32_t body_bytes,
                       const uint8_t *topic, int32_t topic_bytes, const uint8_t *key, int32_t key_bytes,
                       const uint8_t *properties, int32_t properties_bytes, int64_t tags_code, bint dispatch_later,
                       int64_t now, Appended *out) noexcept nogil
cdef int append_encoded(LogState *s, QueueState *q, uint8_t *record, int32_t total, int32_t sys_flag, int64_t expected, int64_t advance,
                        int64_t now, Appended *out) noexcept nogil
cdef inline bint refused(LogState *s, QueueState *q) noexcept nogil:
    """May nothing be appended for this queue: the log takes nothing now, or the queue's topic was deleted?"""
    return mq_load32(&s.flags) != 0 or q.deleted
# Not held for these.
cdef int prefault_piece(LogState *s, int64_t end) noexcept nogil
cdef int flush_up_to(LogState *s, int64_t target, int64_t deadline_ns) noexcept nogil
cdef int64_t readable(LogState *s, bint sync) noexcept nogil


cdef class Bell:
    cdef uint32_t word
    cdef uint32_t seen


cdef class CommitLog:
    cdef LogState state
    cdef readonly Latch latch               # of this log: a lost page of a file that is written to makes it fail
    cdef readonly OsDoor door
    cdef readonly str path
    cdef readonly int64_t file_bytes
    cdef public object allocator            # gives the next file: AllocateMappedFileService
    cdef public object pool                 # TransientStorePool, or None
    cdef public bint sync_flush
    cdef bint hide_unflushed                # readers see only what is durable
    cdef readonly list files
    cdef Mutex roll_lock
    cdef list retained                      # MappedFiles that stand in the ring, oldest first
    cdef int64_t reaped                     # how many were let go of: the first of `retained` has this number in the ring
    cdef MappedFile current
    cdef public int64_t prefault_window
    cdef MappedFile file_at(self, int64_t physical_offset)
    cdef int roll(self, int64_t needed) except -1
    cdef int _roll_over(self) except -1
    cdef int _retain(self, MappedFile file) except -1
    cdef int _sync_range(self, int64_t first, int64_t end) except -1
    cdef void _switch_to(self, MappedFile file) noexcept
    cdef _set_positions(self, int64_t end)
    cdef int take_put_lock(self) except -1
    cdef int raise_state(self) except -1
    cdef int raise_lost(self) except -1
