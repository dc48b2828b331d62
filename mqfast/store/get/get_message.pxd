# Reads of messages through a queue.
from libc.stdint cimport int32_t, int64_t
from mqfast.store.core cimport Core
from mqfast.store.get.get_result cimport GetResult
from mqfast.store.get.unit_walk cimport ReadLimits
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.queues.consume_queue cimport ConsumeQueue
from mqfast.store.record.filter cimport UnitFilter
from mqfast.store.record.record cimport StoredMessage

cdef int64_t MAX_OFFSET

# The differences between a broker's get and a user's.
cdef struct Manner:
    bint of_broker  # as RocketMQ: the first message always, a single file of the queue, removed records skipped
    int64_t log_end             # for a broker: the distance of a record in memory is counted from here
    int64_t last_physical       # set: of the newest unit that was read; 0: none, -1: the offset is outside the queue
    int64_t messages            # set: number of messages; a record of a batch queue may hold several



cdef class QueueUnit:
    cdef CommitLog log
    cdef ConsumeQueue queue             # or, of 46-byte units:
    cdef object batch, batch_unit
    cdef readonly int64_t queue_offset
    cdef readonly int64_t physical_offset
    cdef readonly int64_t tags_code
    cdef readonly int32_t size
    cdef StoredMessage message


cdef object find_queue(Core store, str topic, int64_t queue_id, int64_t offset, int64_t count)
cdef GetResult read_any(CommitLog log, object queue, int64_t offset, const ReadLimits *limits, UnitFilter wanted,
                        object ask, Manner *manner)
cdef int64_t number(object value, str what, int64_t low, int64_t high) except? -1
cdef str topic_name(object topic)
cdef QueueUnit unit_of_any(CommitLog log, object queue, int64_t offset)
