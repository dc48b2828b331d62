# The pulls that reactors may serve.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from mqfast.broker.fast.pull_request cimport PullFields
from mqfast.remoting.reactor.reactor cimport Reactors, mq_group
from mqfast.store.core cimport Core
from mqfast.store.get.unit_walk cimport ReadLimits
from mqfast.store.log.log_state cimport LogState
from mqfast.store.queues.consume_queue cimport QueueState
from mqfast.store.record.filter cimport record_test, unit_test

cdef enum:
    FILES_MAX = 16              # files of the log that reactors read
    POSITIONS_MAX = 1 << 14     # of groups in queues; further pulls are left to Python

# A mapped file. It stays mapped until no reactor uses the Route or the LogFiles.
cdef struct MappedBytes:
    const uint8_t *base
    int64_t start
    int64_t bytes
    const uint32_t *lost        # not 0: a page of the mapping was lost
    const int32_t *owned        # 0: the file was removed

# Where a group is in a queue, and what reactors have sent of that. Never freed before the table.
cdef struct Position:
    int64_t number
    int64_t commit              # the offset that the group commits, -1: none since Python has looked
    int64_t pulled              # the offset behind the last pull, the same
    int64_t pulls
    int64_t messages
    int64_t bytes

# What Python has checked of a pull. Never changed; freed when no reactor uses it.
cdef struct Route:
    Position *position
    const QueueState *queue
    MappedBytes units           # a file of the queue
    unit_test by_unit           # NULL: all messages
    record_test by_record
    const void *context
    ReadLimits limits
    int64_t sub_version
    int64_t broker_id           # that the client shall ask next; far: after a pull from far behind
    int64_t far_broker_id
    int64_t topic_sys_flag
    int64_t group_sys_flag
    bint is_for_lite

# A group, a queue and a filter. Never freed before the table.
cdef struct Entry:
    uint64_t hash
    Route *route                # NULL: left to Python
    uint32_t used               # since Python has looked
    uint32_t asks               # for another file of the queue
    const uint8_t *key
    int32_t key_bytes

cdef struct LogFiles:
    int count
    MappedBytes at[FILES_MAX]

# The positions with a value that Python has not taken yet.
cdef struct Waiting:
    uint32_t any
    uint64_t bits[256]           # POSITIONS_MAX of them

# All that a reactor needs for pulls.
cdef struct Pulls:
    LogState *state
    LogFiles *files
    Entry **slots               # open addressing; only empty slots are filled
    uint64_t mask
    Waiting commits
    Waiting pulled
    Waiting counts
    uint32_t asks               # for another file of the log


cdef class PullTable:
    cdef Pulls pulls
    cdef mq_group *group
    cdef Reactors reactors
    cdef Core core
    cdef dict entries           # key -> number of the entry
    cdef list kept              # by entry: the objects that its route uses
    cdef list log_files         # pins
    cdef list names             # by position: group, topic, queue id
    cdef dict numbers           # (group, topic, queue id) -> position
    cdef dict counted           # by position: what Python has taken
    cdef dict routes            # ("group" or "topic", name) -> numbers of the entries with a route
    cdef Entry **all
    cdef Position **positions
    cdef int _quiesce(self) except -1
    cdef int _exchange(self, int number, Route *route, object kept) except -1
    cdef int _pin_log(self) except -1
    cdef int _position_of(self, str group, str topic, int queue_id) except -1
    cdef int _entry_of(self, bytes key) except -1
    cdef list _waiting(self, Waiting *waiting)
    cdef int _note_route(self, int number, object kept) except -1


cdef Entry *find_entry(Pulls *pulls, const PullFields *fields) noexcept nogil
cdef Route *route_of(Entry *entry) noexcept nogil
cdef const MappedBytes *log_file_of(const LogFiles *files, int64_t physical) noexcept nogil
cdef LogFiles *log_files_of(Pulls *pulls) noexcept nogil
cdef bint is_usable(const MappedBytes *file) noexcept nogil
cdef void note_pull(Pulls *pulls, Position *position, int64_t next_offset, int64_t commit_offset, int64_t messages,
                    int64_t size) noexcept nogil
