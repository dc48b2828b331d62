"""get: units of a queue -> messages of the log, zero-copy (RocketMQ: DefaultMessageStore.getMessage).

No record beyond the readable position and no message whose tag only has the same hash is returned. Every unit is
checked against its record. The result holds the files that it points into. The walk: unit_walk.pyx.
"""

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
from mqfast.store.base.mapped_file cimport FilePin, MappedFile, pin_file
from mqfast.store.base.os_api cimport mq_assert, mq_load32, mq_load64
from mqfast.store.core cimport Core, StoreBase
from mqfast.store.get.get_result cimport GetResult, nothing
from mqfast.store.get.hits cimport add_hit, check_pins
from mqfast.store.get.unit_walk cimport (
    WALK_ASK,
    WALK_BEYOND,
    WALK_DAMAGED,
    WALK_END,
    WALK_FILE,
    WALK_NO_MEMORY,
    WALK_PAUSE,
    WALK_PLACE,
    ReadLimits,
    UnitWalk,
    is_full,
    walk_units,
)
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.log.group_commit cimport readable
from mqfast.store.log.log_state cimport LOG_CLOSED, LOG_FORKED, unlock_puts
from mqfast.store.queues.consume_queue cimport UNIT_BYTES, ConsumeQueue
from mqfast.store.record.filter cimport ASK_RECORD, LEAVE, TAKE, TagFilter, UnitFilter, tag_filter
from mqfast.store.record.record cimport ANYWHERE, NOT_IN_QUEUE, StoredMessage

from mqfast.errors import CorruptFile, OffsetError, UsageError
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.queues.batch_queue import check_unit
from mqfast.store.queues.unit_bytes import BATCH_UNIT_BYTES as _BATCH_UNIT_BYTES
from mqfast.store.queues.placement import ANY_PLACE, may_stand

cdef object FOUND = GetMessageStatus.FOUND
cdef object NO_MATCHED_MESSAGE = GetMessageStatus.NO_MATCHED_MESSAGE
cdef object MESSAGE_WAS_REMOVING = GetMessageStatus.MESSAGE_WAS_REMOVING
cdef object OFFSET_FOUND_NULL = GetMessageStatus.OFFSET_FOUND_NULL
cdef object OFFSET_OVERFLOW_BADLY = GetMessageStatus.OFFSET_OVERFLOW_BADLY
cdef object OFFSET_OVERFLOW_ONE = GetMessageStatus.OFFSET_OVERFLOW_ONE
cdef object OFFSET_TOO_SMALL = GetMessageStatus.OFFSET_TOO_SMALL
cdef object NO_MATCHED_LOGIC_QUEUE = GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
cdef object NO_MESSAGE_IN_QUEUE = GetMessageStatus.NO_MESSAGE_IN_QUEUE

cdef int64_t MAX_OFFSET = (<int64_t> 1 << 62) // UNIT_BYTES    # its byte in the queue still fits 63 bits
# Units that are walked before the GIL is released, which costs as much as some ten of them.
cdef int64_t WITH_GIL = 512
cdef int64_t WITHOUT_GIL = MAX_OFFSET
cdef int64_t BATCH_UNIT_BYTES = _BATCH_UNIT_BYTES


cdef int64_t number(object value, str what, int64_t low, int64_t high) except? -1:
    """Return a whole number in [low, high]. Raises: UsageError."""
    cdef int64_t found = 0
    cdef bint fits = True
    if not isinstance(value, int):
        raise UsageError(f"{what}: expected a whole number, found {type(value).__name__}")
    try:
        found = value
    except OverflowError:
        fits = False
    if not fits or found < low or found > high:
        raise UsageError(f"{what}: expected {low} to {high}, found {value}")
    return found


cdef str topic_name(object topic):
    if type(topic) is not str:
        raise UsageError(f"topic: expected str, found {type(topic).__name__}")
    return topic


# --- does the record of a unit belong there? -------------------------------------------------------------------------

cdef object misplaced(ConsumeQueue queue, int64_t place, path, int64_t physical, int32_t size, found):
    return CorruptFile(f"queue {queue.topic}/{queue.queue_id} offset {place} does not point at its record", path=path,
                       offset=physical, expected=f"a record of {size} bytes", found=found)


cdef str of_another_place(int64_t claimed):
    return "one of another place: " + ("of another queue" if claimed == NOT_IN_QUEUE else f"queue offset {claimed}")


cdef bint beyond(CommitLog log, int64_t physical, int32_t size) except -1:
    """Return True if a unit points behind everything written. The unit of a put exists a moment before `written` covers
    the record; both are set under the put lock.
    """
    cdef int64_t written = mq_load64(&log.state.written)
    if physical > written - size:
        log.take_put_lock()
        written = log.state.written
        unlock_puts(&log.state)
    return physical > written - size


cdef class LivePlaces:
    """The units of a queue of an open store, for the rule of placement.py. Raises OffsetError if retention removed the
    evidence.
    """
    cdef CommitLog log
    cdef ConsumeQueue queue

    @property
    def first(self):
        return self.queue.state.min_logic // UNIT_BYTES

    @property
    def end(self):
        return mq_load64(&self.queue.state.end) // UNIT_BYTES

    def physical_at(self, place):
        return self.queue.unit(place)[0]

    def claim_at(self, place):
        return self.log.message(self.queue.unit(place)[0]).offset_in(self.queue.topic_text, self.queue.queue_id)

    def first_is_gone(self):
        return self.queue.unit(0)[0] < self.log.min_offset


cdef bint stands_well(CommitLog log, ConsumeQueue queue, int64_t place, int64_t claimed, int64_t physical) except -1:
    """Return True if a record that claims another queue offset belongs here."""
    cdef LivePlaces places
    if claimed == NOT_IN_QUEUE:
        return False
    if claimed == place or claimed == ANYWHERE:
        return True
    places = LivePlaces.__new__(LivePlaces)
    places.log = log
    places.queue = queue
    try:
        return may_stand(place, claimed, physical, places)
    except OffsetError:
        return True             # retention removed the evidence


# --- the unit for a filter in Python ---------------------------------------------------------------------------------

@cython.final
cdef class QueueUnit:
    """A unit of a queue for a filter in Python; its record is read only on access."""

    @property
    def record(self):
        """The message, as StoredMessage. Raises: OffsetError if retention removed it; CorruptFile if the unit does not
        point at it.
        """
        cdef StoredMessage message
        if self.message is None:
            if self.log is None:
                raise UsageError("record: expected a unit that a get shows to its filter, found one made by hand")
            message = self.log.message(self.physical_offset)
            if self.batch is not None:
                check_unit(self.batch_unit, message, self.batch.topic, self.batch.queue_id)
                message.queue_position = self.queue_offset
                self.message = message
                return message
            claimed = (message.offset_in(self.queue.topic_text, self.queue.queue_id) if message.size == self.size
                       else None)
            claim = NOT_IN_QUEUE if claimed is None else ANYWHERE if claimed == ANY_PLACE else claimed
            if not stands_well(self.log, self.queue, self.queue_offset, claim, self.physical_offset):
                raise misplaced(self.queue, self.queue_offset, self.log.path, self.physical_offset, self.size,
                                of_another_place(claim))
            message.queue_position = self.queue_offset
            self.message = message
        return self.message


cdef QueueUnit unit_of(CommitLog log, ConsumeQueue queue, int64_t queue_offset, int64_t physical_offset, int32_t size,
                       int64_t tags_code):
    cdef QueueUnit unit = QueueUnit.__new__(QueueUnit)
    unit.log = log
    unit.queue = queue
    unit.queue_offset = queue_offset
    unit.physical_offset = physical_offset
    unit.size = size
    unit.tags_code = tags_code
    return unit


cdef QueueUnit unit_of_any(CommitLog log, object queue, int64_t offset):
    """Return the unit of a queue offset, of a queue of either kind. Raises: OffsetError outside the queue."""
    cdef QueueUnit found
    if type(queue) is ConsumeQueue:
        physical, size, tags_code = (<ConsumeQueue> queue).unit(offset)
        return unit_of(log, queue, offset, physical, size, tags_code)
    unit = queue.unit(offset)
    found = unit_of(log, None, unit.base_offset, unit.physical_offset, unit.size, unit.tags_code)
    found.batch = queue
    found.batch_unit = unit
    return found


# --- a queue of 20-byte units ----------------------------------------------------------------------------------------

cdef bint outside(GetResult g, int64_t offset, int64_t first, int64_t last):
    """Return True if the offset is outside [first, last); the result then has the reason and the next offset."""
    if last == 0:
        g.status = NO_MESSAGE_IN_QUEUE
        g.next_offset = 0
    elif offset < first:
        g.status = OFFSET_TOO_SMALL
        g.next_offset = first
    elif offset >= last:
        g.status = OFFSET_OVERFLOW_ONE if offset == last else OFFSET_OVERFLOW_BADLY
        g.next_offset = last
    else:
        return False
    return True


cdef struct Progress:
    bint removed                # a skipped record was removed by retention
    bint stopped


cdef int64_t behind_file(CommitLog log, int64_t physical) noexcept:
    """Return the first byte of the log file behind the file of a physical offset."""
    return physical - physical % log.file_bytes + log.file_bytes


cdef int hold_file(UnitWalk *w, GetResult g, CommitLog log, Manner *manner, Progress *done) except -1:
    """Hold the log file of the unit where the walk stopped, or skip the unit if the file was removed."""
    cdef MappedFile file = log.file_at(w.physical)
    cdef FilePin held
    if file is None:
        if g.hits.count and not manner.of_broker:       # retention was faster: the next get reports it
            done.stopped = True
            return 0
        done.removed = True
        w.rejected = False
        w.removed_until = behind_file(log, w.physical)
        w.at += UNIT_BYTES
        return 0
    if done.removed and not manner.of_broker:       # the skipped records are reported before later records
        done.stopped = True
        return 0
    held = pin_file(file)
    g.pins.append(held)
    w.file = held.base
    w.file_start = file.start_offset
    w.file_bytes = file.file_bytes
    return 0


cdef int ask_test(UnitWalk *w, GetResult g, CommitLog log, ConsumeQueue queue, object ask, Progress *done) except -1:
    """Let a test in Python decide on the unit where the walk stopped."""
    cdef int64_t place = w.at // UNIT_BYTES
    cdef bint passes = False
    try:
        passes = bool(ask(unit_of(log, queue, place, w.physical, w.size, w.tags_code)))
    except CorruptFile:
        if g.hits.count == 0:
            raise
        done.stopped = True     # the found messages are returned first
        return 0
    except OffsetError:
        if log.file_at(w.physical) is not None:
            raise
        done.removed = True
        w.rejected = False
        w.removed_until = behind_file(log, w.physical)
        w.at += UNIT_BYTES
        return 0
    if passes:
        w.decided = w.at
    else:
        w.rejected = True
        w.at += UNIT_BYTES
    return 0


cdef int refuse_unit(UnitWalk *w, GetResult g, CommitLog log, ConsumeQueue queue, MappedFile segment,
                     object found) except -1:
    """Raise the error of an invalid unit, unless the result has messages."""
    cdef MappedFile file = log.file_at(w.physical)
    if g.hits.count:
        return 0
    if file is not None:
        file.check_damage()
    segment.check_damage()
    raise misplaced(queue, w.at // UNIT_BYTES, log.path if file is None else file.path, w.physical, w.size, found)


cdef int walk_file(UnitWalk *w, GetResult g, CommitLog log, ConsumeQueue queue, MappedFile segment, object ask,
                   Manner *manner, Progress *done) except -1:
    """Walk the units of a mapped file of the queue, until its end or the end of the get."""
    cdef int stop
    w.pause = WITH_GIL
    while not done.stopped:
        if w.pause == WITH_GIL:
            stop = walk_units(w)
        else:
            with nogil:
                stop = walk_units(w)
        if stop == WALK_END:
            return 0
        if stop == WALK_FILE:
            hold_file(w, g, log, manner, done)
        elif stop == WALK_PAUSE:
            w.pause = WITHOUT_GIL
        elif stop == WALK_ASK:
            ask_test(w, g, log, queue, ask, done)
        elif stop == WALK_PLACE and stands_well(log, queue, w.at // UNIT_BYTES, w.claimed, w.physical):
            w.allowed = w.at
        else:
            done.stopped = True
            if stop == WALK_PLACE:
                refuse_unit(w, g, log, queue, segment, of_another_place(w.claimed))
            elif stop == WALK_DAMAGED:
                refuse_unit(w, g, log, queue, segment, f"size {w.found_size}" if w.found_size else "none")
            elif stop == WALK_BEYOND:
                # not yet visible to readers, or damaged: reported by the next get
                if g.hits.count == 0 and (w.physical < 0 or beyond(log, w.physical, w.size)):
                    raise misplaced(queue, w.at // UNIT_BYTES, log.path, w.physical, w.size, "one beyond the log")
            elif stop == WALK_NO_MEMORY:
                raise MemoryError()
    return 0


cdef GetResult finish(GetResult g, CommitLog log, int64_t next_offset, bint removed):
    check_pins(g.pins)
    g.next_offset = next_offset
    if g.hits.count:
        g.status = FOUND
        return g
    if mq_load32(&log.state.flags) & (LOG_CLOSED | LOG_FORKED):
        log.raise_state()       # records that seem removed may belong to a closed log
    if removed:
        g.status = MESSAGE_WAS_REMOVING
    return g


cdef GetResult read_queue(CommitLog log, ConsumeQueue queue, int64_t offset, const ReadLimits *limits,
                          UnitFilter wanted, object ask, Manner *manner):
    """Return messages of a queue from a queue offset on, within the limits."""
    cdef int64_t end = mq_load64(&queue.state.end)
    cdef int64_t first = queue.state.min_logic // UNIT_BYTES, last = end // UNIT_BYTES
    cdef int64_t files = 0
    cdef GetResult g = nothing(NO_MATCHED_MESSAGE, offset, first, last)
    cdef MappedFile segment
    cdef FilePin held
    cdef Progress done
    cdef UnitWalk w
    w.readable_end = readable(&log.state, log.hide_unflushed)
    if log.hide_unflushed or log.state.pooled or mq_load64(&log.state.confirm) != INT64_MAX:
        # a unit may exist before its record is visible
        last = min(last, queue.readable_offset(w.readable_end))     # the queue may have grown since its end was read
        g.max_offset = last
    if outside(g, offset, first, last):
        return g
    begin_walk(&w, g, queue, offset, limits, wanted, ask is not None, manner)
    done.removed = False
    done.stopped = limits.count == 0 and not manner.of_broker
    while not done.stopped and w.at < last * UNIT_BYTES and files < limits.queue_files:
        if files and manner.of_broker and g.hits.count:
            break
        files += 1
        segment = queue.file_of(w.at)
        if segment is None:
            if g.hits.count == 0:
                g.status = OFFSET_FOUND_NULL
                w.at += queue.file_bytes - w.at % queue.file_bytes
            break
        held = pin_file(segment)
        w.units = held.base
        w.units_start = segment.start_offset
        w.units_end = min(end, segment.start_offset + segment.file_bytes)
        walk_file(&w, g, log, queue, segment, ask, manner, &done)
        segment.check_damage()
    manner.last_physical = w.last_physical
    manner.messages = g.hits.count
    return finish(g, log, w.at // UNIT_BYTES, done.removed and not (manner.of_broker and w.rejected))


cdef void begin_walk(UnitWalk *w, GetResult g, ConsumeQueue queue, int64_t offset, const ReadLimits *limits,
                     UnitFilter wanted, bint ask, Manner *manner) noexcept:
    w.at = offset * UNIT_BYTES
    w.scan_end = w.at + min(limits.scan_bytes, INT64_MAX - w.at)
    w.queue = &queue.state
    w.in_memory_from = manner.log_end - limits.memory_bytes if manner.of_broker else INT64_MIN
    w.file = NULL
    w.removed_until = INT64_MIN
    if wanted is None:
        w.by_unit = NULL
    else:
        w.by_unit = wanted.by_unit
        w.by_record = wanted.by_record
        w.context = wanted.context
    w.ask = ask
    w.limits = limits[0]
    w.decided = w.allowed = -1
    w.hits = &g.hits
    w.last_physical = 0
    w.rejected = False


# --- a queue of 46-byte units ----------------------------------------------------------------------------------------

cdef enum Verdict46:
    UNIT_LEFT_OUT = 0
    UNIT_PASSES = 1
    UNIT_GONE = 2


cdef int judge_batch_unit(CommitLog log, object queue, object unit, UnitFilter wanted, object ask) except -1:
    """Check that the record of a unit exists, belongs there and passes the filters. Raises: CorruptFile,
    OffsetError.
    """
    cdef int verdict = TAKE
    cdef StoredMessage message
    cdef QueueUnit shown
    if wanted is not None and wanted.by_unit != NULL:
        verdict = wanted.by_unit(wanted.context, unit.tags_code)
        if verdict == LEAVE:
            return UNIT_LEFT_OUT
    if log.file_at(unit.physical_offset) is None:
        return UNIT_GONE
    message = log.message(unit.physical_offset)
    check_unit(unit, message, queue.topic, queue.queue_id)
    message.fields()
    if verdict == ASK_RECORD and not wanted.by_record(wanted.context, &message.record):
        return UNIT_LEFT_OUT
    if ask is not None:
        message.queue_position = unit.base_offset
        shown = unit_of(log, None, unit.base_offset, unit.physical_offset, unit.size, unit.tags_code)
        shown.message = message
        return UNIT_PASSES if ask(shown) else UNIT_LEFT_OUT
    return UNIT_PASSES


cdef object next_batch_unit(object queue, int64_t offset):
    """Return the unit of a queue offset, or the unit behind a hole there; None at the end."""
    unit = queue.find(offset)
    if unit is not None and unit.next_offset <= offset:
        unit = queue.find_after(offset)
    return unit


cdef GetResult read_batch_queue(CommitLog log, object queue, int64_t offset, const ReadLimits *limits,
                                UnitFilter wanted, object ask, Manner *manner):
    """Read a queue of 46-byte units: each unit is a record, which may be a whole inner batch."""
    cdef int64_t first = queue.min_offset, last = queue.max_offset, begin = offset
    cdef GetResult g = nothing(NO_MATCHED_MESSAGE, offset, max(first, 0), last)
    cdef int64_t limit = readable(&log.state, log.hide_unflushed)
    cdef int64_t in_memory_from = manner.log_end - limits.memory_bytes if manner.of_broker else INT64_MIN
    cdef int64_t messages = 0, physical
    cdef int64_t most = max(limits.count, 1) if manner.of_broker else limits.count
    cdef MappedFile file
    cdef FilePin held
    cdef int verdict
    cdef bint removed = False, rejected = False
    if first > last:
        queue.check_bounds()        # otherwise each bound would send the caller to the other bound, for ever
    if outside(g, offset, first, last):
        if mq_load32(&log.state.flags) & (LOG_CLOSED | LOG_FORKED):
            log.raise_state()       # a closed queue has no bounds
        return g
    manner.last_physical = 0
    while offset < last and messages < most:
        unit = next_batch_unit(queue, offset)
        if unit is None:
            offset = last if queue.find(offset) is not None else offset
            break
        physical = unit.physical_offset
        if physical + unit.size > limit:
            if g.hits.count == 0 and physical + unit.size > mq_load64(&log.state.written):
                raise CorruptFile(f"queue {queue.topic}/{queue.queue_id} offset {offset} does not point at its record",
                                  path=log.path, offset=physical, expected=f"a record of {unit.size} bytes",
                                  found="one beyond the log")
            break
        if unit.base_offset >= last and unit.base_offset >= queue.max_offset:
            if g.hits.count:
                break
            raise CorruptFile(f"queue {queue.topic}/{queue.queue_id} has a unit behind its end; mqfast.repair makes "
                              "the queue anew from the log",
                              path=queue.path, expected=f"a queue offset from {offset} to {last - 1}",
                              found=unit.base_offset)
        if offset > begin and unit.base_offset - begin >= limits.scan_bytes // BATCH_UNIT_BYTES:
            break
        if is_full(limits, in_memory_from, messages, g.hits.total_bytes, unit.batch_size, physical, unit.size):
            break
        manner.last_physical = physical
        try:
            verdict = judge_batch_unit(log, queue, unit, wanted, ask)
        except (CorruptFile, OffsetError):
            if g.hits.count:
                break
            raise
        file = log.file_at(physical)        # repeated: retention may have been faster than the check
        if verdict == UNIT_LEFT_OUT:
            rejected = True
        elif verdict == UNIT_GONE or file is None:
            if g.hits.count and not manner.of_broker:       # the next get reports it
                break
            removed, rejected = True, False
        else:
            if removed and not manner.of_broker:        # the skipped records are reported before later records
                break
            held = pin_file(file)
            g.pins.append(held)
            mq_assert(physical >= file.start_offset, physical, file.start_offset)
            mq_assert(physical + unit.size <= file.start_offset + file.file_bytes, physical + unit.size,
                      file.start_offset + file.file_bytes)
            if add_hit(&g.hits, held.base + (physical - file.start_offset), unit.base_offset, unit.size) < 0:
                raise MemoryError()
            messages += unit.batch_size
        offset = unit.next_offset
    manner.messages = messages
    return finish(g, log, offset, removed and not (manner.of_broker and rejected))


# --- the queue of a get ----------------------------------------------------------------------------------------------

cdef bint uncommitted(CommitLog log, ConsumeQueue queue, int64_t offset) except -1:
    """Return True if the record of this unit is still in a pool buffer. Its unit may have been put with it."""
    if offset * UNIT_BYTES < queue.state.min_logic or mq_load64(&log.state.committed) >= mq_load64(&log.state.written):
        return False
    try:
        physical, size, _ = queue.unit(offset)
    except OffsetError:
        return False            # removed by retention
    return physical + size > mq_load64(&log.state.committed)


cdef object find_queue(Core store, str topic, int64_t queue_id, int64_t offset, int64_t count):
    """Return the queue, readable from an offset on: ConsumeQueue, BatchConsumeQueue or None. If a reader would miss its
    own put, dispatch catches up first.
    """
    cdef ConsumeQueue queue = store.table.queues.get((topic, queue_id))
    cdef int64_t last
    if queue is None:
        if store.read_your_writes:
            store.dispatcher.catch_up()
            queue = store.table.queues.get((topic, queue_id))
        return store.queues.batch.get((topic, queue_id)) if queue is None else queue
    # the last units may not be put yet, or their records not committed: only then a get waits for dispatch
    if store.read_your_writes:
        last = mq_load64(&queue.state.end) // UNIT_BYTES
        if offset + count > last and mq_load64(&queue.state.next_offset) > last:
            store.dispatcher.catch_up()
        elif store.log.state.pooled and uncommitted(store.log, queue, min(offset + count, last) - 1):
            store.dispatcher.catch_up()
    return queue


cdef GetResult read_any(CommitLog log, object queue, int64_t offset, const ReadLimits *limits, UnitFilter wanted,
                        object ask, Manner *manner):
    """Read a queue of either kind."""
    if type(queue) is ConsumeQueue:
        return read_queue(log, <ConsumeQueue> queue, offset, limits, wanted, ask, manner)
    return read_batch_queue(log, queue, offset, limits, wanted, ask, manner)


def read(StoreBase self, topic, queue_id, offset_, max_count_, max_bytes_, tags):
    """Implement MessageStore.get; the store is open."""
    cdef Core store = self.engine
    cdef ReadLimits limits
    cdef Manner manner
    cdef int64_t id_ = number(queue_id, "queue_id", 0, 0x7FFFFFFF)
    cdef int64_t offset = number(offset_, "offset", -MAX_OFFSET, MAX_OFFSET)
    cdef TagFilter wanted
    limits.count = number(max_count_, "max_count", 0, MAX_OFFSET)
    limits.bytes = number(max_bytes_, "max_bytes", 0, MAX_OFFSET)
    limits.scan_bytes = limits.queue_files = limits.bytes_in_memory = limits.count_in_memory = INT64_MAX
    manner.of_broker = False
    wanted = tag_filter(tags)
    queue = find_queue(store, topic_name(topic), id_, offset, limits.count)
    if queue is None:
        return nothing(NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    return read_any(store.log, queue, offset, &limits, wanted, None, &manner)
