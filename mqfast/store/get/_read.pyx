"""get: units of one queue -> messages of the log, zero-copy (RocketMQ: DefaultMessageStore.getMessage).

It must never show a record beyond the readable position, never return a message whose tag only has the same hash, and never trust a unit:
the record is checked against it. The result holds the files that it points into.
"""

cimport cython
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp
from mqfast.store.log._commit_log cimport CommitLog
from mqfast.store.queues._consume_queue cimport FILLER_SIZE, UNIT_BYTES, ConsumeQueue, QueueState
from mqfast.store.log._group_commit cimport readable
from mqfast.store.log._log_state cimport LOG_CLOSED, LOG_FORKED, unlock_puts
from mqfast.store.base._mapped_file cimport Lease, MappedFile, lease
from mqfast.store.base._os cimport mq_get32, mq_get64, mq_load32, mq_load64, mq_prefetchr
from mqfast.store.core cimport Core, StoreBase, integer
from mqfast.store.record._record cimport (
    ANYWHERE,
    BORN_HOST_V6,
    NOT_IN_QUEUE,
    REC_OK,
    STORE_HOST_V6,
    Found,
    Record,
    StoredMessage,
    find_properties,
    is_plain_record,
    make_message,
    offset_in_queue,
    parse_record,
)

from mqfast.errors import CorruptFile, MessageIllegal, OffsetError, UsageError
from mqfast.properties import jhash
from mqfast.store.queues.batch_queue import check_unit
from mqfast.store.base.results import GetMessageStatus

cdef object FOUND = GetMessageStatus.FOUND
cdef object NO_MATCHED_MESSAGE = GetMessageStatus.NO_MATCHED_MESSAGE
cdef object MESSAGE_WAS_REMOVING = GetMessageStatus.MESSAGE_WAS_REMOVING
cdef object OFFSET_FOUND_NULL = GetMessageStatus.OFFSET_FOUND_NULL
cdef object OFFSET_OVERFLOW_BADLY = GetMessageStatus.OFFSET_OVERFLOW_BADLY
cdef object OFFSET_OVERFLOW_ONE = GetMessageStatus.OFFSET_OVERFLOW_ONE
cdef object OFFSET_TOO_SMALL = GetMessageStatus.OFFSET_TOO_SMALL
cdef object NO_MATCHED_LOGIC_QUEUE = GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
cdef object NO_MESSAGE_IN_QUEUE = GetMessageStatus.NO_MESSAGE_IN_QUEUE

cdef int MAX_TAGS = 64
cdef int64_t AHEAD = 16 * UNIT_BYTES
cdef int64_t MAX_OFFSET = (<int64_t> 1 << 62) // UNIT_BYTES    # its byte in the queue still fits 63 bits


cdef object columns = None      # the module that makes columns of a result; it imports this one


cdef int find_columns() except -1:
    global columns
    import mqfast.store.get._columns as found

    columns = found
    return 0


@cython.no_gc_clear
@cython.freelist(16)
@cython.final
cdef class GetResult:
    """The result of a get: status, next offset, bounds of the queue, and messages.

    Iterate over the result, index it, or use ``to_numpy()``, ``to_arrow()`` or the Arrow interface. Messages and views stay valid as long as they
    are referenced, also after the store was closed or a file was removed.
    """

    def __dealloc__(self):
        PyMem_Free(self.hits)

    def __reduce__(self):
        raise TypeError("a GetResult cannot be pickled: it holds mappings of the store's files; pickle its messages, list(result)")

    cdef int add(self, const uint8_t *record, int64_t queue_offset) except -1:
        cdef Hit *grown
        if self.count == self.room:
            self.room = 32 if self.room == 0 else self.room * 2
            grown = <Hit *> PyMem_Realloc(self.hits, self.room * sizeof(Hit))
            if grown == NULL:
                raise MemoryError()
            self.hits = grown
        self.hits[self.count].record = record
        self.hits[self.count].queue_offset = queue_offset
        self.count += 1
        return 0

    cdef int check_damage(self) except -1:
        """After anything was read through the mappings: is it the files that were seen?"""
        cdef Lease held
        for held in self.leases:
            held.file.check_damage()
        return 0

    cdef object owner_of(self, const uint8_t *record):
        cdef Lease held
        for held in self.leases:
            if held.base <= record < held.base + held.file.file_bytes:
                return held
        raise SystemError("a message without its file")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.count))]
        i = index
        if i < 0:
            i += self.count
        if not 0 <= i < self.count:
            raise IndexError(f"expected an index below {self.count}, found {index}")
        return self._message(i)

    cdef object _message(self, Py_ssize_t i):
        cdef const uint8_t *record = self.hits[i].record
        cdef Lease first = <Lease> self.leases[0]
        if first.base <= record < first.base + first.file.file_bytes:
            return make_message(first, record, self.hits[i].queue_offset)
        return make_message(self.owner_of(record), record, self.hits[i].queue_offset)

    cdef list _all(self):
        cdef list messages = PyList_New(self.count)     # of the right length at once
        cdef Py_ssize_t i
        cdef object message
        for i in range(self.count):
            message = self._message(i)
            Py_INCREF(message)
            PyList_SET_ITEM(messages, i, message)
        return messages

    def __iter__(self):
        cdef Each each = Each.__new__(Each)
        each.result = self
        return each

    @property
    def messages(self) -> list:
        """All messages, as a list."""
        return self._all()

    def bodies(self) -> list:
        """All bodies, copied into bytes objects."""
        cdef list out = []
        cdef Py_ssize_t i
        cdef const uint8_t *p
        cdef int32_t sys_flag, at
        for i in range(self.count):
            p = self.hits[i].record
            sys_flag = mq_get32(p + 36)
            at = 88 + (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)
            out.append((<const char *> p + at)[:max(mq_get32(p + at - 4), 0)])
        self.check_damage()
        return out

    def to_numpy(self):
        """The fixed fields of every message as a structured array of shape (len(self),), copied. Imports numpy."""
        if columns is None:
            find_columns()
        return columns.fixed_fields(self)

    def to_arrow(self):
        """All columns of every message as a pyarrow.RecordBatch, copied: as ``pyarrow.record_batch(self)``, in less time. Imports pyarrow."""
        if columns is None:
            find_columns()
        return columns.record_batch(self)

    def __arrow_c_array__(self, requested_schema=None):
        if columns is None:
            find_columns()
        return columns.arrow_array(self, requested_schema)

    def __arrow_c_stream__(self, requested_schema=None):
        if columns is None:
            find_columns()
        return columns.arrow_stream(self, requested_schema)

    def __arrow_c_schema__(self):
        if columns is None:
            find_columns()
        return columns.arrow_schema()

    def __repr__(self):
        return f"<GetResult {self.status.name} {self.count} messages, next_offset={self.next_offset}>"


@cython.no_gc
@cython.freelist(4)
@cython.final
cdef class Each:
    """The messages of a result one by one, each made when it is asked for: a loop that lets go of them has one in the cache, not all."""
    cdef GetResult result
    cdef Py_ssize_t at

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t i = self.at
        if self.result is None or i >= self.result.count:       # None: made by hand
            raise StopIteration
        self.at = i + 1
        return self.result._message(i)

    def __length_hint__(self):
        return 0 if self.result is None else self.result.count - self.at


cdef GetResult nothing(object status, int64_t next_offset, int64_t min_offset, int64_t max_offset):
    cdef GetResult g = GetResult.__new__(GetResult)
    g.status = status
    g.next_offset = next_offset
    g.min_offset = min_offset
    g.max_offset = max_offset
    g.leases = []
    return g


cdef object misplaced(ConsumeQueue queue, int64_t at, path, int64_t physical, int32_t size, found):
    return CorruptFile(f"queue {queue.topic}/{queue.queue_id} offset {at // UNIT_BYTES} does not point at its record", path=path,
                       offset=physical, expected=f"a record of {size} bytes", found=found)


cdef bint beyond(CommitLog log, int64_t physical, int32_t size) except -1:
    """Does a unit point behind everything written? One that is put with its record stands there a moment before `written` covers the
    record; both happen under the put lock."""
    cdef int64_t written = mq_load64(&log.state.written)
    if physical > written - size:
        log.take_put_lock()
        written = log.state.written
        unlock_puts(&log.state)
    return physical > written - size


cdef bint may_stand(CommitLog log, ConsumeQueue queue, int64_t place, int64_t claimed, int64_t physical) except -1:
    """May a record that claims another queue offset stand here? A queue that once lost units has all later ones too low, in the
    order of the log, but never its first one; where the unit of the claimed place is not later in the log, one of the two is damaged."""
    if claimed == place or claimed == ANYWHERE:
        return True
    try:
        return fits(log, queue, place, claimed, physical)
    except OffsetError:
        return True             # retention took what would tell


cdef bint fits(CommitLog log, ConsumeQueue queue, int64_t place, int64_t claimed, int64_t physical) except -1:
    cdef int64_t last = mq_load64(&queue.state.end) // UNIT_BYTES
    if claimed < place:
        # RocketMQ takes a record of queue offset 0 wherever the queue ends
        return claimed == 0 and place * UNIT_BYTES > queue.state.min_logic and queue.unit(place - 1)[0] < physical
    if claimed < last:
        later = queue.unit(claimed)[0]
        if later <= physical:
            return False
        further = log.message(later).offset_in(queue.topic_text, queue.queue_id)
        if further is None or -1 < further <= claimed:
            return False
    if queue.state.min_logic == 0:
        first, size, _ = queue.unit(0)
        return first < log.min_offset or log.message(first).offset_in(queue.topic_text, queue.queue_id) in (0, -1)
    return True


cdef bint outside(GetResult g, int64_t offset, int64_t first, int64_t last):
    """Is the offset outside [first, last)? The result then says why, and where to go on."""
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


cdef GetResult read_queue(CommitLog log, ConsumeQueue queue, int64_t offset, int64_t max_count, int64_t max_bytes, object tags):
    """Read up to max_count messages from a queue offset on. tags: tuple of (hash, UTF-8 bytes), or None for all."""
    cdef int64_t end = mq_load64(&queue.state.end)
    cdef int64_t limit = readable(&log.state, log.hide_unflushed)
    cdef int64_t first = queue.state.min_logic // UNIT_BYTES, last = end // UNIT_BYTES
    cdef int64_t at, physical, segment_end, available, claimed
    cdef int32_t size, hash_
    cdef int64_t soon
    cdef int32_t hashes[64]
    cdef int tag_count = 0, k, wanted
    cdef QueueState *q = &queue.state
    cdef GetResult g = nothing(NO_MATCHED_MESSAGE, offset, first, last)
    cdef MappedFile segment, file = None
    cdef Lease segment_lease = None, held = None
    cdef const uint8_t *unit
    cdef const uint8_t *p
    cdef Record r
    cdef Found f
    cdef bint removed = False
    cdef bytes text
    if log.hide_unflushed or log.state.pooled:
        # a unit may stand there before its record may be seen
        last = min(last, queue.readable_offset(limit))      # the queue may have grown since its end was read
        g.max_offset = last
    if outside(g, offset, first, last):
        return g
    if tags is not None:
        tag_count = len(tags)
        for k in range(tag_count):
            hashes[k] = tags[k][0]
    while offset < last and g.count < max_count:
        at = offset * UNIT_BYTES
        segment = queue.file_of(at)
        if segment is None:
            if g.count == 0:
                g.status = OFFSET_FOUND_NULL
                offset = (at - at % queue.file_bytes + queue.file_bytes) // UNIT_BYTES
            break
        segment_lease = lease(segment)
        segment_end = min(end, segment.start_offset + segment.file_bytes)
        while at < segment_end and g.count < max_count:
            unit = segment_lease.base + (at - segment.start_offset)
            physical = mq_get64(unit)
            size = mq_get32(unit + 8)
            if physical == 0 and size == FILLER_SIZE:
                at += UNIT_BYTES
                continue
            if physical < 0 or physical > limit - size:
                if g.count == 0 and (physical < 0 or beyond(log, physical, size)):
                    raise misplaced(queue, at, log.path, physical, size, "one beyond the log")
                last = 0            # not yet shown to readers, or damaged and shown first when the next get comes to it
                break
            if g.count and g.total_bytes + size > max_bytes:
                last = 0
                break
            if at + AHEAD < segment_end and file is not None:
                # a batch is bound by cache misses: fetch the head and the tail of a record that comes soon
                soon = mq_get64(unit + AHEAD) - file.start_offset
                if 0 <= soon <= file.file_bytes - mq_get32(unit + AHEAD + 8):
                    mq_prefetchr(held.base + soon)
                    mq_prefetchr(held.base + soon + 64)
                    mq_prefetchr(held.base + soon + mq_get32(unit + AHEAD + 8) - 1)
            if tag_count:
                hash_ = <int32_t> mq_get64(unit + 12)
                wanted = 0
                for k in range(tag_count):
                    if hashes[k] == hash_:
                        wanted = 1
                        break
                # an address of the extension file is a very negative number: its tag is compared below
                if not wanted and mq_get64(unit + 12) > -2147483649:
                    at += UNIT_BYTES
                    continue
            if file is None or not file.start_offset <= physical < file.start_offset + file.file_bytes:
                file = log.file_at(physical)
                if file is None:
                    if g.count:     # retention was faster: the next get says so
                        last = 0
                        break
                    removed = True
                    at += UNIT_BYTES
                    continue
                if removed:         # what was passed is told before what comes behind it
                    last = 0
                    break
                held = lease(file)
                g.leases.append(held)
            p = held.base + (physical - file.start_offset)
            available = min(limit, file.start_offset + file.file_bytes) - physical
            if tag_count or size > available or not is_plain_record(p, size, physical, at // UNIT_BYTES, q.queue_id, q.topic, q.topic_bytes):
                if parse_record(p, available, &r) != REC_OK or r.total != size or r.physical_offset != physical:
                    if g.count:
                        last = 0
                        break
                    file.check_damage()
                    segment.check_damage()
                    raise misplaced(queue, at, file.path, physical, size, f"size {r.total}" if available >= 8 else "none")
                claimed = r.queue_offset
                if (claimed != at // UNIT_BYTES or r.queue_id != q.queue_id or r.topic_bytes != q.topic_bytes
                        or memcmp(r.topic, q.topic, r.topic_bytes) != 0):
                    claimed = offset_in_queue(&r, q.topic, q.topic_bytes, q.queue_id)
                    if claimed == NOT_IN_QUEUE or not may_stand(log, queue, at // UNIT_BYTES, claimed, physical):
                        if g.count:
                            last = 0
                            break
                        file.check_damage()
                        segment.check_damage()
                        raise misplaced(queue, at, file.path, physical, size, "one of another place: "
                                        + ("of another queue" if claimed == NOT_IN_QUEUE else f"queue offset {claimed}"))
            if tag_count:
                find_properties(r.properties, r.properties_bytes, &f)
                wanted = 0
                if f.tags != NULL:
                    for k in range(tag_count):
                        text = tags[k][1]
                        if len(text) == f.tags_bytes and memcmp(<const char *> text, f.tags, f.tags_bytes) == 0:
                            wanted = 1
                            break
                if not wanted:
                    at += UNIT_BYTES
                    continue
            g.add(p, at // UNIT_BYTES)
            g.total_bytes += size
            at += UNIT_BYTES
        segment.check_damage()
        offset = at // UNIT_BYTES
        if last == 0:
            break
    g.check_damage()
    g.next_offset = offset
    if g.count:
        g.status = FOUND
        return g
    if mq_load32(&log.state.flags) & (LOG_CLOSED | LOG_FORKED):
        log.raise_state()       # what seems to be gone may only be closed
    if removed:
        g.status = MESSAGE_WAS_REMOVING
    return g


cdef bint uncommitted(CommitLog log, ConsumeQueue queue, int64_t offset) except -1:
    """Is the record of this unit still in a pool buffer? Its unit may have been put with it."""
    if offset * UNIT_BYTES < queue.state.min_logic or mq_load64(&log.state.committed) >= mq_load64(&log.state.written):
        return False
    try:
        physical, size, _ = queue.unit(offset)
    except OffsetError:
        return False            # retention took it
    return physical + size > mq_load64(&log.state.committed)


def read(StoreBase self, topic, queue_id, offset_, max_count_, max_bytes_, tags):
    """MessageStore.get; the store is open."""
    cdef Core store = self.engine
    cdef ConsumeQueue queue
    cdef QueueState *q
    cdef int64_t offset, max_count, max_bytes, last
    try:
        queue_id = integer(queue_id, "queue_id", 0, 0x7FFFFFFF)
        offset = integer(offset_, "offset", -MAX_OFFSET, MAX_OFFSET)
        max_count = integer(max_count_, "max_count", 0, MAX_OFFSET)
        max_bytes = integer(max_bytes_, "max_bytes", 0, MAX_OFFSET)
    except MessageIllegal as error:
        raise UsageError(str(error)) from None
    if type(topic) is not str:
        raise UsageError(f"topic: expected str, found {type(topic).__name__}")
    queue = store.table.queues.get((topic, queue_id))
    try:
        wanted = None if tags is None else tag_filter(tags)
    except (TypeError, UnicodeEncodeError):
        raise UsageError(f"tags: expected text that has a UTF-8 form or None, found {tags!r:.80}") from None
    if queue is None:
        if store.read_your_writes:
            store.dispatcher.catch_up()
            queue = store.table.queues.get((topic, queue_id))
        if queue is None:
            batch = store.queues.batch.get((topic, queue_id))
            if batch is None:
                return nothing(NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            return read_batch_queue(store.log, batch, offset, max_count, max_bytes, wanted)
    q = &queue.state
    # the last units may still have to be put, or their records to be committed: only then does a get wait for dispatch
    if store.read_your_writes:
        last = mq_load64(&q.end) // UNIT_BYTES
        if offset + max_count > last and mq_load64(&q.next_offset) > last:
            store.dispatcher.catch_up()
        elif store.log.state.pooled and uncommitted(store.log, queue, min(offset + max_count, last) - 1):
            store.dispatcher.catch_up()
    return read_queue(store.log, queue, offset, max_count, max_bytes, wanted)


cdef GetResult read_batch_queue(CommitLog log, object queue, int64_t offset, int64_t max_count, int64_t max_bytes, object tags):
    """A queue of 46-byte units: each unit is one record, which may be a whole inner batch."""
    cdef int64_t first = queue.min_offset, last = queue.max_offset
    cdef GetResult g = nothing(NO_MATCHED_MESSAGE, offset, max(first, 0), last)
    cdef int64_t limit = readable(&log.state, log.hide_unflushed)
    cdef MappedFile file
    cdef Lease held
    cdef int64_t messages = 0
    cdef bint removed = False
    if outside(g, offset, first, last):
        if mq_load32(&log.state.flags) & (LOG_CLOSED | LOG_FORKED):
            log.raise_state()       # a closed queue has no bounds
        return g
    while offset < last and messages < max_count:
        unit = queue.find(offset)
        if unit is not None and unit.base_offset + unit.batch_size <= offset:
            unit = queue.find_after(offset)         # a hole: go on behind it
            if unit is None:
                offset = last
        if unit is None or unit.physical_offset + unit.size > limit:
            if unit is not None and g.count == 0 and unit.physical_offset + unit.size > mq_load64(&log.state.written):
                raise CorruptFile(f"queue {queue.topic}/{queue.queue_id} offset {offset} does not point at its record", path=log.path,
                                  offset=unit.physical_offset, expected=f"a record of {unit.size} bytes", found="one beyond the log")
            break
        if g.count and (messages + unit.batch_size > max_count or g.total_bytes + unit.size > max_bytes):
            break
        offset = unit.base_offset + unit.batch_size
        if tags is not None and unit.tags_code not in [tag[0] for tag in tags]:
            continue
        file = log.file_at(unit.physical_offset)
        if file is None:
            if g.count:             # retention was faster: the next get says so
                offset = unit.base_offset
                break
            removed = True
            continue
        if removed:                 # what was passed is told before what comes behind it
            offset = unit.base_offset
            break
        held = lease(file)
        try:
            message = log.message(unit.physical_offset)
            check_unit(unit, message, queue.topic, queue.queue_id)
        except (CorruptFile, OffsetError):
            if g.count:
                offset = unit.base_offset
                break
            raise
        if tags is not None and message.tags not in [tag[1].decode() for tag in tags]:
            continue
        g.leases.append(held)
        g.add(held.base + (<int64_t> unit.physical_offset - file.start_offset), unit.base_offset)
        g.total_bytes += unit.size
        messages += unit.batch_size
    g.check_damage()
    g.next_offset = offset
    if g.count:
        g.status = FOUND
        return g
    if mq_load32(&log.state.flags) & (LOG_CLOSED | LOG_FORKED):
        log.raise_state()
    if removed:
        g.status = MESSAGE_WAS_REMOVING
    return g


cdef dict _filters = {}


def tag_filter(expression):
    """``"A || B"`` -> ((hash, UTF-8 bytes), ...); None for None, empty and ``*``. Raises: UsageError beyond 64 tags."""
    found = _filters.get(expression)
    if found is not None:
        return found
    if type(expression) is not str:
        raise UsageError(f"tags: expected str or None, found {type(expression).__name__}")
    if expression.strip() in ("", "*"):
        return None
    tags = [part.strip() for part in expression.split("||") if part.strip()]
    if not tags:
        return None
    if len(tags) > MAX_TAGS:
        raise UsageError(f"tags: expected at most {MAX_TAGS}, found {len(tags)}")
    found = tuple((jhash(tag), tag.encode("utf-8")) for tag in tags)
    if len(_filters) >= 1024:
        _filters.clear()
    _filters[expression] = found
    return found
