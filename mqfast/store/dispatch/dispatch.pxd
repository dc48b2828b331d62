# Dispatch of the log: records -> queue units and index entries.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.queues.consume_queue cimport QueueState, QueueTable
from mqfast.store.index.index_file cimport IndexState
from mqfast.store.log.log_state cimport LogState
from mqfast.store.base.mapped_file cimport FilePin
from mqfast.store.base.event cimport Event
from mqfast.store.base.os_api cimport Mutex
from mqfast.store.record.record cimport PropertyRefs, Record

cdef struct DispatchCursor:
    # in
    const uint8_t *base
    int64_t file_start
    int64_t file_end
    int64_t limit
    bint checked            # CRC
    bint property_crc
    bint light              # light message queues are on: check INNER_MULTI_DISPATCH
    bint dispatch
    bint odd_blanks_stop
    bint follows            # the log is a copy of a master's, which may have deleted and re-created topics
    int64_t dispatch_from   # records below are only checked
    int64_t units_from      # records below have their units, or may not get a unit again
    int64_t index_from      # records below have all keys in the index
    bint keys_wait          # keys wait for space on the disk: no key is put
    int64_t *delays
    int max_level
    int64_t *published      # dispatched position, or NULL
    LogState *follow        # the log whose limit is read again when reached, or NULL
    LogState *watching      # the log, if consumers may wait for messages of a queue, or NULL
    bint hide_unflushed     # of that log
    const uint32_t *waiting # threads that wait for the dispatch lock: the walk then ends at its limit
    int64_t follow_bytes
    int64_t last_limit      # no new limit is read beyond this position
    const uint32_t *lost    # not 0: a page of the log's mapping was lost; and of the index's
    const uint32_t *index_lost
    uint32_t event_seen     # of the event that ends the sleeps of the service thread
    int64_t round_at        # dispatched position when the step, or its part after a sleep, began
    bint round_needs_dispatch     # true if puts had left units to it then
    # in and out
    int64_t at
    int64_t shown           # last value written to `published`; never below: a put may have moved it
    bint holding            # holds the put lock, for the last few records
    const uint8_t *mapping  # while `base` is a pool buffer: the previous `base`; else NULL
    bint keyed              # a record of this step had a key or tags for the index
    int64_t key_done        # entries of the current record that are in the index already
    int64_t key_at          # a record with a part of its keys in the index: their number is `key_had`
    int64_t key_had
    # the first record that lacks a unit for lack of space, and the first that lacks a key; -1: none
    int64_t waits_units
    int64_t waits_keys
    int64_t waits_timestamp # store time of the first of both
    int64_t records
    int64_t last_start      # start of the last good record; -1
    int64_t last_timestamp
    int64_t flushed_time    # records stored before are known durable
    int64_t unflushed_from  # the first record not known durable; -1: none seen
    # out
    Record record
    PropertyRefs found
    QueueState *queue
    int64_t tags_code
    int32_t topic_hash
    bint hashed             # topic_hash belongs to the known topic
    int32_t tags_hash       # of the index entry for the tags
    bint tags_hashed        # tags_hash belongs to `found`
    # of the last record that was parsed fully: topic and queue number, to which `queue` (unless NULL) and `topic_hash`
    # belong
    const uint8_t *known
    int32_t known_bytes     # -1: none
    int32_t known_id
    # of the last record with only a unit and tags: topic, properties and queue, to which `queue`, `tags_code` and
    # `found` belong
    const uint8_t *same
    int64_t same_bytes      # -1: the last record was of another kind
    int32_t same_id
    bint same_tagged        # its tags are indexed


cdef class CommitLogDispatcher:
    cdef readonly CommitLog log
    cdef readonly QueueTable table
    cdef object queues              # QueueStore: creates queues, knows batch and light message queues
    cdef object index               # IndexService, or None
    cdef Mutex mutex                # the dispatch lock
    cdef public int64_t follow_bytes    # how far a walk goes behind the readable position of its begin
    cdef public object error        # error that stopped the dispatch for good
    cdef int64_t key_done           # entries of the current record that are in the index already
    cdef public object space        # Space: notified of work that waits for space
    # the first record that lacks a unit for lack of space, and the first that lacks a key; -1: none.
    cdef int64_t waits_units
    cdef int64_t waits_keys         # `dispatched` stays at the lower of both, `walked` is the position of the rest
    cdef int64_t waits_timestamp
    cdef int64_t key_at             # a record with a part of its keys in the index, -1: none; and their number
    cdef int64_t key_had
    cdef object index_full          # the index's DiskFull, or None
    cdef int64_t next_try           # monotonic ns of the next attempt on a full disk
    cdef int64_t delays[64]         # delay level -> ms; 0: unknown
    cdef int max_level
    cdef int64_t changes            # counts changes under the dispatch lock other than a walk forward
    cdef int64_t dispatched_records
    cdef int catch_up(self) except -1
    cdef int64_t _step(self, int64_t limit, bint again, Event event) except -1
    cdef int _begin(self, DispatchCursor *w) except -1
    cdef int _remember(self, DispatchCursor *w) except -1
    cdef int _report_waits(self) except -1
    cdef bint _is_room_again(self, bint again) except -1
    cdef bint _make_index_room(self) except -1
    cdef int _roll_index(self, DispatchCursor *w) except -1
    cdef int _restart_queue(self, DispatchCursor *w) except -1
    cdef int64_t _visible(self) except -1
    cdef int _run(self, DispatchCursor *w, progress, Event event) except -1
    cdef int _make_room(self, DispatchCursor *w) except -1
    cdef int _without_queue(self, DispatchCursor *w) except -1
    cdef int _by_hand(self, DispatchCursor *w, IndexState *x, bint indexing) except -1
    cdef int _finish_by_hand(self, DispatchCursor *w) except -1
