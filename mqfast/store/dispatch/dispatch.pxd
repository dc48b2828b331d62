# Following the log: records -> queue units and index entries.
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
    bint light              # light queues are on: look for INNER_MULTI_DISPATCH
    bint dispatch
    bint odd_blanks_stop
    bint follows            # the log is a master's: whoever gave its queue offsets may have deleted topics, and made them anew
    int64_t dispatch_from   # records below are only walked over
    int64_t units_from      # records below have their units, or may not get one again
    int64_t index_from      # records below have all their keys in the index
    bint keys_wait          # for space on the disk: no key is put
    int64_t *delays
    int max_level
    int64_t *published      # dispatched position, or NULL
    LogState *follow        # the log whose limit is asked for again when it was reached, or NULL
    LogState *watching      # the log, when somebody may wait for a message in a queue, or NULL
    bint hide_unflushed     # of that log
    const uint32_t *waiting # threads that want the dispatch lock: the walk follows no further then
    int64_t follow_bytes
    int64_t last_limit      # it asks no more once it is here
    const uint32_t *lost    # not 0: a page of the log's mapping is gone; and of the index's
    const uint32_t *index_lost
    uint32_t event_seen     # of the event that ends the rests of the service thread
    int64_t round_at        # where it was dispatched up to when the step, or its part behind a rest, began
    bint round_needs_dispatch     # and whether puts had left units to it then
    # in and out
    int64_t at
    int64_t shown           # what `published` was set to last; never below: a put may have moved it on
    bint holding            # the put lock, for the last few records
    const uint8_t *mapping  # while `base` is a buffer of the pool: what it was before; else NULL
    bint keyed              # a record of this step had a key or tags for the index
    int64_t key_done        # entries of the current record that are in the index already
    int64_t key_at          # a record some of whose keys are in the index: how many is `key_had`
    int64_t key_had
    int64_t waits_units     # the first record that lacks a unit for want of space, and the first that lacks a key; -1: none
    int64_t waits_keys
    int64_t waits_timestamp # store time of the first of both
    int64_t records
    int64_t last_start      # start of the last good record; -1
    int64_t last_timestamp
    int64_t flushed_time    # records stored before are known durable
    int64_t unflushed_from  # the first record that is not; -1: none seen
    # out
    Record record
    PropertyRefs found
    QueueState *queue
    int64_t tags_code
    int32_t topic_hash
    bint hashed             # topic_hash is that of the known topic
    int32_t tags_hash       # of the index entry for the tags
    bint tags_hashed        # it is that of `found`
    # of the last record that was looked at closely: its topic and queue number, which `queue` (unless NULL) and `topic_hash` belong to
    const uint8_t *known
    int32_t known_bytes     # -1: none
    int32_t known_id
    # of the last record that has no more to it than a unit and tags: its topic, properties and queue, which `queue`, `tags_code` and `found`
    # belong to
    const uint8_t *same
    int64_t same_bytes      # -1: the last record was another one
    int32_t same_id
    bint same_tagged        # its tags go into the index


cdef class Dispatcher:
    cdef readonly CommitLog log
    cdef readonly QueueTable table
    cdef object queues              # QueueStore: makes queues, knows batch and light queues
    cdef object index               # IndexService, or None
    cdef Mutex mutex                # the dispatch lock
    cdef public int64_t follow_bytes    # how far a walk goes behind what readers saw when it began
    cdef public object error        # what stopped the dispatch for good
    cdef int64_t key_done           # entries of the current record that are in the index already
    cdef public object space        # Space: is told what waits for some
    cdef int64_t waits_units        # the first record that lacks a unit for want of space, and the first that lacks a key; -1: none.
    cdef int64_t waits_keys         # `dispatched` stays at the lower one, `walked` says how far the rest is
    cdef int64_t waits_timestamp
    cdef int64_t key_at             # a record some of whose keys are in the index, -1: none; and how many
    cdef int64_t key_had
    cdef object index_full          # what the index waits for: DiskFull, or None
    cdef int64_t next_try           # monotonic ns: not before then is the disk asked again
    cdef int64_t delays[64]         # delay level -> ms; 0: unknown
    cdef int max_level
    cdef int64_t changes            # counts what else than a walk forward was done under the dispatch lock
    cdef int64_t dispatched_records
    cdef int catch_up(self) except -1
    cdef int64_t _step(self, int64_t limit, bint again, Event event) except -1
    cdef int _begin(self, DispatchCursor *w) except -1
    cdef int _remember(self, DispatchCursor *w) except -1
    cdef int _tell(self) except -1
    cdef bint _is_room_again(self, bint again) except -1
    cdef bint _make_index_room(self) except -1
    cdef int _roll_index(self, DispatchCursor *w) except -1
    cdef int _begin_anew(self, DispatchCursor *w) except -1
    cdef int64_t _visible(self) except -1
    cdef int _run(self, DispatchCursor *w, progress, Event event) except -1
    cdef int _make_room(self, DispatchCursor *w) except -1
    cdef int _without_queue(self, DispatchCursor *w) except -1
    cdef int _by_hand(self, DispatchCursor *w, IndexState *x, bint indexing) except -1
    cdef int _finish_by_hand(self, DispatchCursor *w) except -1
