# ConsumeQueue: 20-byte units, and the table from the bytes of a record to the queue.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from mqfast.store.base.mapped_file cimport Latch, MappedFile
from mqfast.store.base.os_api cimport OsApi, mq_assert, mq_os, mq_planted, mq_put32, mq_put64, mq_store64

cdef enum:
    UNIT_BYTES = 20
    FILLER_SIZE = 0x7FFFFFFF

cdef enum QueuePut:
    PUT_DONE = 1            # written, or already there
    PUT_NO_ROOM = 2         # make_room must run first, with the GIL

cdef enum QueueWatch:
    QUEUE_WATCHED = 1       # a consumer waits for a message
    QUEUE_ARRIVED = 2       # a message arrived: the queue is in the list `arrived` of the log

# A file of a queue that is held for writing, or until its last units are flushed: the fields that growth and flush need
# without the GIL.
cdef struct HeldFile:
    uint8_t *base               # NULL: no file
    int64_t start               # first byte in the queue's stream
    int64_t *allocated          # bytes from the start that have blocks
    const uint32_t *lost        # not 0: a page of the mapping was lost
    const char *path

# Fields of a queue that put, dispatch and flush need without the GIL. Part of its ConsumeQueue, never moved; lives as
# long as the table, also after the topic was deleted.
cdef struct QueueState:
    # cache line of the put: used under the put lock only
    int64_t next_offset         # queue offset of the next record
    int32_t queue_id
    int32_t topic_bytes
    const uint8_t *topic
    uint64_t hash
    bint deleted                # the topic was deleted: producers must look up the queue again; set under the put lock
    bint waits                  # waits for space on the disk: units are skipped until then. Of the dispatcher
    int64_t misplaced_at        # stream byte of the first unit that is not at its record's queue offset
    uint32_t watched            # QueueWatch
    QueueState *next_arrived    # next entry of that list
    # cache line of dispatch
    uint8_t *units              # address of the first byte of the file that takes the next unit
    int64_t file_start          # first byte of that file in the queue's stream
    int64_t room_end            # stream byte up to which units may be written; 0: no file yet
    int64_t end                 # stream byte behind the last unit; published
    int64_t min_logic           # stream byte of the first valid unit
    int64_t max_physical        # end of the last record that has a unit; -1: none
    int64_t misplaced           # units written at another place than their record's queue offset
    int64_t last_store_timestamp
    # cache lines of the flush thread
    uint32_t files_lock         # guards changes and syncs of `tail` and `before`; its holder never waits for the GIL
    bint cut                    # bytes were cleared or files removed since the last flush
    bint fresh                  # the names of the queue and the first file are not synced yet
    int64_t flushed             # stream byte up to which units are known durable
    mq_os *os
    int64_t file_bytes
    HeldFile tail               # takes the next unit
    HeldFile before             # the file before, which was not fully flushed when the tail began
    # of the dispatcher: end of the queue, and store time of the last record, when the queue last grew
    int64_t asked_end
    int64_t asked_at


# Result of the recovery's scan of the files of a queue.
cdef struct Scan:
    int64_t file_bytes          # length of the last file, -1: a directory
    int64_t units               # of the last file
    int64_t max_physical        # end of the last record that has a unit
    int64_t first_physical      # of the first and the last unit; -1: none
    int64_t first_tags
    int64_t last_physical
    int64_t last_tags
    int32_t first_size
    int32_t last_size
    bint opened
    bint dirty                  # nonzero bytes behind the last unit


cdef inline int queue_put(QueueState *q, int64_t physical_offset, int32_t size, int64_t tags_code,
                          int64_t queue_offset) noexcept nogil:
    """Put a unit by RocketMQ's rules: existing units are skipped; a wrong place is counted, and still appended to."""
    cdef int64_t expected = queue_offset * UNIT_BYTES
    cdef uint8_t *unit
    if physical_offset + size <= q.max_physical:
        return PUT_DONE
    if q.end + UNIT_BYTES > q.room_end:
        return PUT_NO_ROOM
    if expected != q.end:
        if queue_offset != 0 and expected < q.end:
            return PUT_DONE
        if q.misplaced == 0:
            q.misplaced_at = q.end
        q.misplaced += 1
    mq_assert(physical_offset >= 0, physical_offset, 0)
    mq_assert(size > 0, size, 0)
    mq_assert(queue_offset >= 0, queue_offset, 0)
    mq_assert(q.units != NULL, q.end, q.room_end)
    mq_assert(q.end >= q.file_start, q.end, q.file_start)
    mq_assert(q.end % UNIT_BYTES == 0, q.end, UNIT_BYTES)
    unit = q.units + (q.end - q.file_start)
    mq_put64(unit, physical_offset)
    mq_put32(unit + 8, size)
    mq_put64(unit + 12, tags_code)
    mq_store64(&q.max_physical, physical_offset + size)
    mq_store64(&q.end, q.end + (UNIT_BYTES if not mq_planted("unit") else <int64_t> 1 << 40))
    mq_assert(q.end <= q.room_end, q.end, q.room_end)
    return PUT_DONE


cdef uint64_t topic_hash(const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil
cdef int sync_units(mq_os *os, uint8_t *base, int64_t first, int64_t to, int64_t end) noexcept nogil
cdef int grow_tail(QueueState *q) noexcept nogil
cdef int64_t behind_units(const QueueState *q, int64_t end) noexcept nogil


cdef class ConsumeQueue:
    cdef QueueState state
    cdef readonly OsApi os_api
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly str path
    cdef readonly int64_t file_bytes
    cdef bytes topic_text
    cdef list files
    cdef list doomed                # files that destroy has not removed yet
    cdef MappedFile tail            # held for writing; the fields without the GIL are in `state`
    cdef MappedFile before          # held until it is flushed, or None
    cdef dict tails                 # of the store: the queues with a tail, least recently grown first
    cdef Latch latch                # of the log: set by a lost page of the tail
    cdef MappedFile scanned         # the file of `scan`, or None
    cdef Scan scan
    cdef int64_t scanned_start          # start of the only file, if `scan` was read before the load; -1: not read
    cdef int64_t seen_first         # queue offsets of the two units in `scan`, -1 when no longer valid
    cdef int64_t seen_last
    cdef bint closed
    cdef bint cut_units
    cdef int64_t floor_end  # records that end here or before are not this queue's: their topic was deleted; -1: none
    cdef MappedFile file_of(self, int64_t byte)
    cdef int _take_files(self, const int64_t *starts, int64_t count) except -1
    cdef void _begin_scan(self) noexcept
    cdef int _scan_file(self, MappedFile file) except -1
    cdef _take_tail(self, MappedFile file)
    cdef void _give_up_tail(self) noexcept
    cdef void _lock_files(self) noexcept
    cdef void _release_before(self) noexcept
    cdef void _reach(self, int64_t max_physical) noexcept
    cdef bint _gone(self, int64_t queue_offset, int64_t min_physical, bint fillers) except -1
    cdef bint is_dirty(self) noexcept
    cdef int sync_names(self, bint fresh) except -1
    cdef int _sync_names(self) except -1
    cdef int _sync_first_file(self) except -1


cdef struct Slots:              # open addressing; only empty slots are filled
    int64_t mask
    Slots *older
    QueueState *at[0]


cdef QueueState *find_in(Slots **table, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil


cdef class QueueTable:
    cdef Slots *slots
    cdef dict queues                # (topic, queue_id) -> ConsumeQueue
    cdef list removed
    cdef public int64_t others      # queues of the store that are no ConsumeQueues: their flush needs the GIL
    cdef QueueState *find(self, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil
    cdef Slots *_fresh(self, int64_t size) except NULL
    cdef void _insert(self, Slots *slots, QueueState *q) noexcept
    cdef int _rebuild(self, int64_t size, ConsumeQueue without) except -1
