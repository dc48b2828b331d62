# The walk along the units of a queue file, to the records that they point at. Needs no GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.get.hits cimport Hits
from mqfast.store.queues.consume_queue cimport QueueState
from mqfast.store.record.filter cimport record_test, unit_test

cdef enum WalkStop:
    WALK_END = 1                # of the queue file
    WALK_FULL = 2               # the unit there exceeds the limit of count or bytes
    WALK_SCANNED = 3            # the limit of read units
    WALK_BEYOND = 4             # its record is behind the readable end
    WALK_FILE = 5               # its record is in another file of the log: hold that file
    WALK_ASK = 6                # a test in Python decides: set `decided`
    WALK_DAMAGED = 7            # no record of its size is there
    WALK_PLACE = 8              # its record claims another queue offset: set `allowed` if it belongs there
    WALK_PAUSE = 9              # the limit of units walked with the GIL
    WALK_NO_MEMORY = 10

# The limits of a get. In memory or on disk: an estimate by the distance from the end of the log, as RocketMQ makes it.
cdef struct ReadLimits:
    int64_t count               # messages
    int64_t bytes               # of records
    int64_t scan_bytes          # of units, from the first read unit on
    int64_t queue_files         # files of the queue that a get without a message reads
    int64_t memory_bytes        # records that begin at most so far before the end of the log count as in memory
    int64_t bytes_in_memory     # of records, if the next record is in memory
    int64_t count_in_memory
    int64_t bytes_on_disk
    int64_t count_on_disk

cdef struct UnitWalk:
    # the queue
    const uint8_t *units        # its mapped file
    int64_t units_start         # first byte of that file in the queue
    int64_t units_end           # end of its units
    int64_t at                  # byte of the next unit
    int64_t scan_end            # byte up to which units may be read
    const QueueState *queue
    # the log
    int64_t readable_end
    int64_t in_memory_from
    const uint8_t *file         # its mapped file, NULL: none yet
    int64_t file_start
    int64_t file_bytes
    int64_t removed_until       # records before were removed; their units are skipped
    # the filters, and the limits
    unit_test by_unit
    record_test by_record
    const void *context
    bint ask                    # a test in Python
    ReadLimits limits
    int64_t pause               # units until WALK_PAUSE
    int64_t decided             # byte of the unit that the test in Python accepted, -1: none
    int64_t allowed             # byte of the unit whose record belongs there although it claims another offset
    # the results
    Hits *hits                  # of the result, which owns them
    int64_t last_physical       # of the newest unit that was read
    bint rejected               # since the last removed file, a filter rejected a message
    # the unit at `at`, when the walk stops there
    int64_t physical
    int64_t tags_code
    int64_t claimed             # queue offset in the record, or NOT_IN_QUEUE
    int64_t found_size          # of the record there, 0: none
    int32_t size


cdef bint is_full(const ReadLimits *limits, int64_t in_memory_from, int64_t count, int64_t total_bytes,
                  int64_t messages, int64_t physical, int64_t size) noexcept nogil
cdef int walk_units(UnitWalk *w) noexcept nogil
