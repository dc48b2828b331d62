# Reads of store files by pread: a step over a window of the log, and the walks that use it.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from mqfast.store.base.os_api cimport OsApi, mq_os
from mqfast.store.record.record cimport Record

cdef enum Step:
    STEP_RECORD = 1         # w.record is whole and checked; w.at is behind it
    STEP_BLANK = 2          # the rest of the file is intentionally blank
    STEP_MORE = 3           # the window ends here: w.need bytes from w.at on are required
    STEP_END = 4            # no room for another record in this file
    STEP_ZERO = 5           # nothing was written here yet
    STEP_BAD = 6            # no record starts here
    STEP_MISMATCH = 7       # the length does not agree with the parts
    STEP_PLACE = 8          # a whole record of another physical offset
    STEP_CRC = 9            # a whole record whose content does not match its checksum

cdef struct Window:         # a part of a log file in memory; all offsets are physical offsets
    const uint8_t *base
    int64_t start           # of base
    int64_t filled          # bytes at base
    int64_t file_end
    int64_t at              # the next record
    int64_t need            # after STEP_MORE
    bint check_crc
    bint property_crc       # ... and by the checksum in the properties, not that of the body
    Record record           # points into base

# The walk itself: collects nothing, reads nothing and never reads beyond the window.
cdef int step(Window *w) noexcept nogil


cdef class PreadFile:
    cdef OsApi os_api
    cdef mq_os *os
    cdef int fd
    cdef readonly str path
    cdef readonly int64_t start     # stream offset of the first byte
    cdef readonly int64_t bytes     # length at the last check, at most most_bytes
    cdef int64_t most_bytes         # -1: all
    cdef int64_t pread(self, void *to, int64_t n, int64_t position) noexcept nogil


cdef class LogWalk:
    cdef PreadFile file
    cdef Window window
    cdef uint8_t *buffer
    cdef int64_t room
    cdef int fill(self) noexcept nogil
    cdef int next(self) noexcept nogil
    cdef int over(self) noexcept nogil
    cdef int failed(self, int rc) except -1


cdef struct Counted:        # the records of a queue in the log
    uint64_t hash
    uint8_t *topic
    int32_t topic_bytes
    int32_t queue_id
    int64_t count
    uint64_t digest         # of (place, size, tags code, queue offset) of each record, in any order
    uint64_t batch_digest   # the same of the values that a batch queue keeps
    int64_t first_physical
    int64_t end_physical
    int64_t min_offset
    int64_t max_offset      # next queue offset
    int64_t bytes
    int64_t floor           # records that end here or before require nothing: the topic was deleted behind them


cdef struct Floor:          # of every queue of a topic
    const uint8_t *topic
    int64_t topic_bytes
    int64_t end


cdef struct Place:          # the record that a queue unit points at
    int64_t physical
    int64_t size


cdef class RecordPositions:
    cdef Place *table
    cdef int64_t room
    cdef int64_t used
    cdef bint sorted
    cdef int64_t find(self, int64_t physical_offset) noexcept nogil


cdef class LogTally:
    cdef Floor *floors
    cdef int64_t floor_count
    cdef list floor_topics      # the bytes that the floors point at
    cdef Counted *table
    cdef int64_t slots
    cdef int64_t used
    cdef readonly int64_t records
    cdef readonly int64_t bytes
    cdef readonly int64_t body_bytes
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t last_timestamp
    cdef readonly int64_t backward_times
    cdef readonly int64_t first_backward
    cdef readonly int64_t keys
    cdef uint64_t key_digest
    cdef readonly int64_t tags
    cdef uint64_t tag_digest
    cdef Counted *find(self, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil
    cdef int grow(self) noexcept nogil
    cdef int count_record(self, Record *r) noexcept nogil


cdef class ExtFiles:
    cdef list files
    cdef int64_t tags_of(self, int64_t address) noexcept nogil
    cdef int64_t *starts
    cdef int64_t *lengths
    cdef int *fds
    cdef int count
    cdef mq_os *os
