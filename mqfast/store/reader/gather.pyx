"""Gather: records as columns: a walk along the log, or units of a queue, collected into Arrow buffers without the GIL.

For bulk reads (column_scan.py, Spark). Files are read by pread into reused blocks; all values are copied into the
columns, so that batches own their memory. No file is mapped, every length is checked against the available bytes
before use, text is always valid UTF-8, and pyarrow is not needed. scan.pyx has the walk, record.pyx the record
(FORMAT.md), record/record_columns.pyx the columns.
"""

cimport cython

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset
from mqfast.store.record.arrow cimport (
    ArrowArray,
    ArrowSchema,
    Tree,
    new_array_capsule,
    new_schema_capsule,
    release_schema,
)
from mqfast.store.record.record_columns cimport (
    CRC_OK,
    Column,
    begin_column,
    drop_column,
    fill_column,
    fill_schema,
    filled_bytes,
    give_columns,
    needs_properties,
    new_batch_tree,
)
from mqfast.store.base.os_api cimport mq_get32, mq_get64, os_error
from mqfast.store.record.filter cimport TagFilter, TagTexts, has_tag, may_have_tag
from mqfast.store.record.record cimport (
    ANYWHERE,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    PropertyRefs,
    Record,
    StoredMessage,
    find_properties,
    offset_in_queue,
)
from mqfast.store.reader.scan cimport STEP_BAD, STEP_CRC, STEP_MORE, STEP_RECORD, LogWalk, PreadFile, Window, step

from mqfast.errors import StoreClosed, UsageError
from mqfast.store.reader.scan import STOPS as _STOPS
from mqfast.store.record.record_columns import COLUMNS

cdef enum:
    MAX_COLUMNS = 64
    MAX_HIDDEN = 64
    ANY_QUEUE_ID = -1
    PENDING = 1024              # records that are added to the columns together
    BLOCK = 1 << 20             # bytes of the log per read
    NEAR = 16384                # a record that begins this close behind the previous record is read with it
    HEAD = 128                  # all fixed fields of a record are in these bytes
    UNIT_BYTES = 20
    FILLER_SIZE = 0x7FFFFFFF
    PHYSICAL_OFFSET_AT = 28     # in a record
    INNER_BATCH = 1 << 7        # of sysFlag: a record with several messages

# In place of a queue id: every queue of the topic.
ANY_QUEUE = ANY_QUEUE_ID

# The end of a walk or of a sequence of units.
cdef enum End:
    FULL = 1                    # the batch is full
    DONE = 2                    # all requested records were added
    OTHER_FILE = 3              # the next unit's record is not in this file
    DOUBT = 4                   # the next unit needs a detailed check
    OTHER_QUEUE = 5             # the next record of a response belongs to another queue
    HOLE = 6                    # the next record of a response has a higher queue offset than expected

cdef struct Wanted:                         # a queue of the table, empty if topic is NULL
    const uint8_t *topic
    int32_t topic_bytes
    int32_t queue_id
    int64_t start
    int64_t end


cdef inline uint64_t hash_queue(const uint8_t *p, int32_t n, int32_t queue_id) noexcept nogil:
    cdef uint64_t h = <uint64_t> 14695981039346656037 ^ <uint32_t> queue_id
    cdef int32_t i
    for i in range(n):
        h = (h ^ p[i]) * <uint64_t> 1099511628211
    return h ^ (h >> 29)


@cython.no_gc_clear
@cython.final
cdef class RecordColumns:
    """A batch of records as columns: an Arrow struct array, taken once through ``__arrow_c_array__``
    (pyarrow.record_batch(...) does this).
    """

    cdef ArrowArray array
    cdef Gather maker
    cdef readonly int64_t rows

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)

    def __len__(self) -> int:
        return self.rows

    def __arrow_c_schema__(self):
        """Return a capsule ``arrow_schema``."""
        return self.maker.arrow_schema()

    def __arrow_c_array__(self, requested_schema=None):
        """Return capsules ``arrow_schema`` and ``arrow_array``, and give the columns away: a second call raises
        UsageError.
        """
        cdef ArrowArray *array
        if self.array.release == NULL:
            raise UsageError("the columns were given away already")
        schema = self.maker.arrow_schema()
        array = <ArrowArray *> malloc(sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError()
        memcpy(array, &self.array, sizeof(ArrowArray))
        self.array.release = NULL
        return schema, new_array_capsule(array)


@cython.no_gc_clear
@cython.final
cdef class Gather:
    """Collects records into columns.

    Args: ``columns``: (name in COLUMNS, name in the result, nullable) each; ``batch_bytes``, ``batch_rows``: limits of
    a batch; ``micros``: times in microseconds instead of milliseconds; ``check_crc``: compare every body's checksum;
    ``bad``: the treatment of a record with a wrong checksum: ``"stop"``, ``"skip"`` or ``"mark"`` (see the column
    crc_ok); ``queues``: only these, (topic, queue id or ANY_QUEUE) -> (first queue offset, end); ``hidden``: without
    ``queues``, all topics except these (``x*``: that begin with x); ``tags``: only these; ``stored_from``,
    ``stored_before``: store times, ms; ``queued_only``: leave out records outside all queues: half and rolled back
    messages of transactions.
    Thread: one at a time. GIL: released while reading and copying.
    """

    cdef Column columns[MAX_COLUMNS]
    cdef int count
    cdef list names             # of the columns, bytes
    cdef list kept              # owners of the memory that pointers point into
    cdef bint need_found
    cdef bint wants_crc
    cdef int bad                # 0 stop, 1 skip, 2 mark
    cdef int64_t batch_bytes
    cdef int64_t batch_rows
    cdef bint queued_only
    cdef int64_t stored_from
    cdef int64_t stored_before
    cdef Wanted *table
    cdef int64_t slots          # a power of two, 0: every queue
    cdef bint any_queue         # the table has topics with ANY_QUEUE
    cdef const uint8_t *hidden[MAX_HIDDEN]
    cdef int32_t hidden_bytes[MAX_HIDDEN]
    cdef bint hidden_prefix[MAX_HIDDEN]
    cdef int hidden_count
    cdef TagFilter tag_filter   # None: any tag
    cdef const TagTexts *tags   # the texts of the filter; NULL: any tag
    cdef Record *pending
    cdef PropertyRefs *found
    cdef uint8_t *crc_ok
    cdef int waiting            # number of pending records
    cdef readonly int64_t rows
    cdef readonly int64_t skipped
    cdef int64_t filled_bytes
    cdef uint8_t *block         # records that units point at
    cdef int64_t room
    cdef Window window
    cdef PreadFile window_file  # the file of the block

    def __cinit__(self, columns, *, int64_t batch_bytes=1 << 20, int64_t batch_rows=1 << 16, bint micros=False,
                  bint check_crc=False, str bad="stop",
                  queues=None, hidden=(), tags=None, stored_from=None, stored_before=None, bint queued_only=True):
        cdef int i
        self.names = []
        self.kept = []
        self.wants_crc = check_crc
        if bad not in ("stop", "skip", "mark"):
            raise UsageError(f"bad: expected stop, skip or mark, found {bad!r}")
        self.bad = ("stop", "skip", "mark").index(bad)
        if not 1 <= batch_bytes <= 1 << 28 or not 1 <= batch_rows <= 1 << 24:
            raise UsageError(f"batch_bytes, batch_rows: expected 1 to 2^28 and 1 to 2^24, found {batch_bytes}, "
                             f"{batch_rows}")
        self.batch_bytes = batch_bytes
        self.batch_rows = batch_rows
        self.queued_only = queued_only
        self.stored_from = INT64_MIN if stored_from is None else stored_from
        self.stored_before = INT64_MAX if stored_before is None else stored_before
        self.set_columns(columns, micros)
        self.set_queues(queues)
        self.set_hidden(hidden)
        if tags is not None:
            self.tag_filter = TagFilter(tags)
            self.tags = &self.tag_filter.tags
            self.need_found = True
        self.pending = <Record *> calloc(PENDING, sizeof(Record))
        self.found = <PropertyRefs *> calloc(PENDING, sizeof(PropertyRefs))
        self.crc_ok = <uint8_t *> calloc(PENDING, 1)
        self.room = BLOCK
        self.block = <uint8_t *> malloc(self.room)
        if self.pending == NULL or self.found == NULL or self.crc_ok == NULL or self.block == NULL:
            raise MemoryError()
        self.begin()

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            drop_column(&self.columns[i])
        free(self.table)
        free(self.pending)
        free(self.found)
        free(self.crc_ok)
        free(self.block)

    cdef int set_columns(self, object columns, bint micros) except -1:
        cdef Column *column
        columns = list(columns)
        if not 1 <= len(columns) <= MAX_COLUMNS:
            raise UsageError(f"columns: expected 1 to {MAX_COLUMNS}, found {len(columns)}")
        for name, shown, nullable in columns:
            if name not in COLUMNS:
                raise UsageError(f"column {name!r}: expected one of {', '.join(COLUMNS)}")
            column = &self.columns[self.count]
            column.field = COLUMNS.index(name)
            column.nullable = nullable
            column.micros = micros
            self.names.append(shown.encode("utf-8"))
            self.count += 1
            self.need_found |= needs_properties(column.field)
            if column.field == CRC_OK and not self.wants_crc:
                raise UsageError("column crc_ok: checksums are not compared")
        return 0

    cdef int set_queues(self, object queues) except -1:
        cdef int64_t k
        cdef Wanted *slot
        cdef bytes name
        if queues is None:
            return 0
        self.slots = 16
        while self.slots < 2 * len(queues):
            self.slots *= 2
        self.table = <Wanted *> calloc(self.slots, sizeof(Wanted))
        if self.table == NULL:
            raise MemoryError()
        for (topic, queue_id), (start, end) in queues.items():
            name = topic.encode("utf-8", "surrogateescape")
            self.kept.append(name)
            k = hash_queue(name, <int32_t> len(name), queue_id) & (self.slots - 1)
            while self.table[k].topic != NULL:
                k = (k + 1) & (self.slots - 1)
            slot = &self.table[k]
            slot.topic = name
            slot.topic_bytes = <int32_t> len(name)
            slot.queue_id = queue_id
            slot.start = start
            slot.end = end
            self.any_queue |= queue_id == ANY_QUEUE_ID
        return 0

    cdef int set_hidden(self, object hidden) except -1:
        cdef bytes name
        if len(hidden) > MAX_HIDDEN:
            raise UsageError(f"hidden: expected at most {MAX_HIDDEN} topics, found {len(hidden)}")
        for topic in hidden:
            name = topic.removesuffix("*").encode("utf-8", "surrogateescape")
            self.kept.append(name)
            self.hidden[self.hidden_count] = name
            self.hidden_bytes[self.hidden_count] = <int32_t> len(name)
            self.hidden_prefix[self.hidden_count] = topic.endswith("*")
            self.hidden_count += 1
        return 0

    # --- which records -----------------------------------------------------------------------------------------------

    cdef Wanted *find_wanted(self, const Record *r, int32_t queue_id) noexcept nogil:
        cdef int64_t k = hash_queue(r.topic, r.topic_bytes, queue_id) & (self.slots - 1)
        cdef Wanted *w = &self.table[k]
        while w.topic != NULL:
            if (w.queue_id == queue_id and w.topic_bytes == r.topic_bytes
                and memcmp(w.topic, r.topic, r.topic_bytes) == 0):
                return w
            k = (k + 1) & (self.slots - 1)
            w = &self.table[k]
        return NULL

    cdef bint is_wanted_queue(self, const Record *r) noexcept nogil:
        cdef Wanted *w
        cdef int i
        if self.slots:
            w = self.find_wanted(r, r.queue_id)
            if w == NULL and self.any_queue:
                w = self.find_wanted(r, ANY_QUEUE_ID)
            return w != NULL and w.start <= r.queue_offset < w.end
        for i in range(self.hidden_count):
            if (r.topic_bytes == self.hidden_bytes[i]
                or (self.hidden_prefix[i] and r.topic_bytes > self.hidden_bytes[i])) and \
                    memcmp(r.topic, self.hidden[i], self.hidden_bytes[i]) == 0:
                return False
        return True

    cdef int consider(self, const Record *r, bint crc_ok) noexcept nogil:
        """Add a checked record if it is requested. There is room for another record."""
        cdef int32_t transaction = r.sys_flag & TRANSACTION_MASK
        if self.queued_only and (transaction == TRANSACTION_PREPARED or transaction == TRANSACTION_ROLLBACK):
            return 0
        if not self.stored_from <= r.store_timestamp < self.stored_before:
            return 0
        if self.need_found:
            find_properties(r.properties, r.properties_bytes, &self.found[self.waiting])
            if (self.tags != NULL and not has_tag(self.tags, self.found[self.waiting].tags,
                                                  self.found[self.waiting].tags_bytes)):
                return 0
        memcpy(&self.pending[self.waiting], r, sizeof(Record))
        self.crc_ok[self.waiting] = crc_ok
        self.waiting += 1
        return 0

    # --- filling the columns -----------------------------------------------------------------------------------------

    cdef int begin(self) except -1:
        cdef int i
        for i in range(self.count):
            begin_column(&self.columns[i])
        self.rows = 0
        self.filled_bytes = 0
        return 0

    cdef int flush(self) except -1 nogil:
        """Add the pending records to the columns; afterwards the bytes that they point at may change."""
        cdef int i
        if self.waiting:
            self.filled_bytes = 0
            for i in range(self.count):
                fill_column(&self.columns[i], self.pending, self.found, self.crc_ok, self.waiting, self.rows)
                self.filled_bytes += filled_bytes(&self.columns[i])
            self.rows += self.waiting
            self.waiting = 0
        return 0

    cdef bint is_full(self) noexcept nogil:
        return self.filled_bytes >= self.batch_bytes or self.rows >= self.batch_rows

    # --- along the log -----------------------------------------------------------------------------------------------

    cdef int take_log(self, LogWalk walk, int64_t limit, int *outcome) except -1 nogil:
        """Add records from the position of the walk on; ``outcome`` is FULL, DONE (the limit), or 16 + the result of
        step, or an error number below 0.
        """
        cdef Window *w = &walk.window
        cdef int rc
        while True:
            if self.waiting == PENDING:
                self.flush()
                if self.is_full():
                    outcome[0] = FULL
                    return 0
            if w.at >= limit:
                self.flush()
                outcome[0] = DONE
                return 0
            rc = step(w)
            if rc == STEP_RECORD:
                if (self.slots == 0 and self.hidden_count == 0) or self.is_wanted_queue(&w.record):
                    self.consider(&w.record, True)
            elif rc == STEP_MORE:
                self.flush()
                if self.is_full():
                    outcome[0] = FULL
                    return 0
                rc = walk.fill()
                if rc < 0:
                    outcome[0] = rc
                    return 0
            elif rc == STEP_CRC and self.bad:
                w.at += w.record.total
                if self.bad == 1:
                    self.skipped += 1
                elif (self.slots == 0 and self.hidden_count == 0) or self.is_wanted_queue(&w.record):
                    self.consider(&w.record, False)
            else:
                self.flush()
                outcome[0] = 16 + rc
                return 0

    def along(self, LogWalk walk not None, int64_t limit) -> str:
        """Add records up to a physical offset. Returns: ``"full"``, ``"limit"``, or the reason of the walk's stop (see
        STOPS of scan.pyx).

        Raises: CorruptFile if the file has shrunk, UsageError if a column exceeds 2 GiB, StorageError.
        """
        cdef int outcome = 0
        walk.window.check_crc = self.wants_crc
        with nogil:
            self.take_log(walk, limit, &outcome)
        if outcome < 0:
            walk.failed(outcome)
        return "full" if outcome == FULL else "limit" if outcome == DONE else _STOPS[outcome - 16]

    # --- along a queue -----------------------------------------------------------------------------------------------

    cdef int load(self, PreadFile file, const uint8_t *units, int64_t i, int64_t n, int64_t *got) except -1 nogil:
        """Read the record of unit i into the block, with the following records that are close. The unit is within the
        file.
        """
        cdef int64_t start = mq_get64(units + i * UNIT_BYTES), end = start + mq_get32(units + i * UNIT_BYTES + 8)
        cdef int64_t k = i + 1, physical, size
        cdef uint8_t *grown
        if end - start > BLOCK:
            # Compare the length with the record's own length before it decides the size of the allocation.
            got[0] = file.pread(self.block, HEAD, start - file.start)
            if got[0] < 0:
                return 0
            self.window.start = self.window.at = start
            self.window.file_end = end
            self.window.filled = got[0]
            if got[0] < HEAD or step(&self.window) != STEP_MORE or self.window.need != end - start:
                self.window.filled = 0
                return 0
        while k < n:
            physical = mq_get64(units + k * UNIT_BYTES)
            size = mq_get32(units + k * UNIT_BYTES + 8)
            if (physical < end or physical - end > NEAR or size <= 0 or physical + size - start > BLOCK
                or physical + size > file.start + file.bytes):
                break
            end = physical + size
            k += 1
        if end - start > self.room:
            grown = <uint8_t *> realloc(self.block, end - start)
            if grown == NULL:
                with gil:
                    raise MemoryError()
            self.block = grown
            self.room = end - start
            self.window.base = grown
        got[0] = file.pread(self.block, end - start, start - file.start)
        if got[0] >= 0:
            self.window.start = start
            self.window.filled = got[0]
        return 0

    cdef int take_units(self, const uint8_t *units, int64_t *at, int64_t n, int64_t first_offset, PreadFile file,
                        const uint8_t *topic, int32_t topic_bytes, int32_t queue_id, int64_t *outcome) except -1 nogil:
        """Add the records of units from ``at[0]`` on; ``outcome`` is an End, or an error number below 0."""
        cdef Window *w = &self.window
        cdef int64_t physical, size, claimed, got = 0
        cdef const uint8_t *unit
        cdef int rc
        while at[0] < n:
            if self.waiting == PENDING:
                self.flush()
                if self.is_full():
                    outcome[0] = FULL
                    return 0
            unit = units + at[0] * UNIT_BYTES
            physical = mq_get64(unit)
            size = mq_get32(unit + 8)
            if ((physical == 0 and size == FILLER_SIZE)
                or (self.tags != NULL and not may_have_tag(self.tags, mq_get64(unit + 12)))):
                at[0] += 1
                continue
            if physical < file.start or physical >= file.start + file.bytes:
                self.flush()
                outcome[0] = OTHER_FILE
                return 0
            if size <= 0 or size > file.start + file.bytes - physical:
                self.flush()
                outcome[0] = DOUBT
                return 0
            if physical < w.start or physical + size > w.start + w.filled:
                self.flush()
                if self.is_full():
                    outcome[0] = FULL
                    return 0
                self.load(file, units, at[0], n, &got)
                if got < 0:
                    outcome[0] = got
                    return 0
                if physical + size > w.start + w.filled:
                    outcome[0] = DOUBT
                    return 0
            w.at = physical
            w.file_end = physical + size
            rc = step(w)
            if (rc != STEP_RECORD and (rc != STEP_CRC or self.bad == 0)) or w.record.total != size:
                self.flush()
                outcome[0] = DOUBT
                return 0
            claimed = offset_in_queue(&w.record, topic, topic_bytes, queue_id)
            if claimed != first_offset + at[0] and claimed != ANYWHERE:
                self.flush()
                outcome[0] = DOUBT
                return 0
            if rc == STEP_CRC and self.bad == 1:
                self.skipped += 1
            else:
                # The row belongs to the requested queue; a light queue's record has another topic.
                w.record.topic = topic
                w.record.topic_bytes = topic_bytes
                w.record.queue_id = queue_id
                w.record.queue_offset = first_offset + at[0]
                self.consider(&w.record, rc == STEP_RECORD)
            at[0] += 1
        self.flush()
        outcome[0] = DONE
        return 0

    def units(self, bytes units not None, int64_t at, int64_t first_offset, PreadFile file not None,
              bytes topic not None, int32_t queue_id) -> tuple:
        """Add the records of queue units of 20 bytes, from unit number ``at`` on; unit number 0 has queue offset
        ``first_offset``.

        Returns: (number of the first unread unit, reason): ``"full"``, ``"limit"``, ``"file"`` (the record is not in
        this file) or ``"doubt"`` (the record does not match the unit).
        Raises: StorageError, UsageError if a column exceeds 2 GiB.
        """
        cdef int64_t outcome = 0
        cdef int64_t n = len(units) // UNIT_BYTES
        cdef const uint8_t *p = units
        cdef const uint8_t *name = topic
        cdef int32_t name_bytes = <int32_t> len(topic)
        if not 0 <= at <= n:
            raise UsageError(f"at: expected 0 to {n}, found {at}")
        if file.fd < 0:
            raise StoreClosed(f"file is closed: {file.path}")
        if self.window_file is not file:            # another file has other bytes
            memset(&self.window, 0, sizeof(Window))
            self.window_file = file
        self.window.base = self.block
        self.window.check_crc = self.wants_crc
        with nogil:
            self.take_units(p, &at, n, first_offset, file, name, name_bytes, queue_id, &outcome)
        if outcome < 0:
            raise os_error(outcome, "read", file.path)
        return at, {FULL: "full", DONE: "limit", OTHER_FILE: "file", DOUBT: "doubt"}[outcome]

    # --- a broker's response -----------------------------------------------------------------------------------------

    cdef int take_answer(self, const uint8_t *p, int64_t n, int64_t *at, int64_t *expected, int64_t begin, int64_t end,
                         const uint8_t *asked, int32_t asked_bytes,
                         const uint8_t *topic, int32_t topic_bytes, int32_t queue_id, int64_t *outcome,
                         int64_t *there) except -1 nogil:
        """Add adjacent whole records from byte ``at[0]`` on; ``outcome`` is FULL, DONE, OTHER_QUEUE, HOLE, or 16 + the
        result of step.
        """
        cdef Window w
        cdef int64_t physical, claimed
        cdef int rc
        cdef bint is_before
        memset(&w, 0, sizeof(Window))
        w.check_crc = self.wants_crc
        while at[0] < n:
            if self.waiting == PENDING:
                self.flush()
                if self.is_full():
                    outcome[0] = FULL
                    return 0
            # The record's own physical offset is used as the window's, since no file gives one.
            physical = mq_get64(p + at[0] + PHYSICAL_OFFSET_AT) if n - at[0] >= PHYSICAL_OFFSET_AT + 8 else 0
            if physical < 0 or physical > INT64_MAX >> 2:
                self.flush()
                outcome[0] = 16 + STEP_BAD
                return 0
            w.base = p + at[0]
            w.start = w.at = physical
            w.filled = n - at[0]
            w.file_end = physical + w.filled
            rc = step(&w)
            if rc != STEP_RECORD and (rc != STEP_CRC or self.bad == 0):
                self.flush()
                outcome[0] = 16 + rc
                return 0
            claimed = offset_in_queue(&w.record, asked, asked_bytes, queue_id)
            if claimed == ANYWHERE:
                claimed = expected[0]
            if claimed < 0:
                self.flush()
                outcome[0] = OTHER_QUEUE
                return 0
            if claimed >= end:              # ``expected`` is below ``end`` where there is a hole before it
                at[0] = n
                break
            if claimed > expected[0] >= 0:
                self.flush()
                outcome[0] = HOLE
                there[0] = claimed
                return 0
            at[0] += w.record.total
            is_before = claimed < begin or claimed < expected[0]    # a batch that begins before the requested offset
            if expected[0] >= 0:
                if w.record.sys_flag & INNER_BATCH:
                    expected[0] = -1
                elif not is_before:
                    expected[0] = claimed + 1
            if is_before:
                continue
            if rc == STEP_CRC and self.bad == 1:
                self.skipped += 1
                continue
            # The row belongs to the requested queue, under the caller's name of it.
            w.record.topic = topic
            w.record.topic_bytes = topic_bytes
            w.record.queue_id = queue_id
            w.record.queue_offset = claimed
            self.consider(&w.record, rc == STEP_RECORD)
        self.flush()
        outcome[0] = FULL if at[0] < n or self.is_full() else DONE
        return 0

    def answer(self, const uint8_t[::1] body not None, int64_t at, int64_t expected, int64_t begin, int64_t end,
               bytes asked not None, bytes topic not None, int32_t queue_id) -> tuple:
        """Add the records of a broker's response to a pull, from byte ``at`` of the response on.

        Args: ``expected``: queue offset of the next message, -1 if holes are no loss (a filter, a batch); ``begin``,
        ``end``: other offsets are left out; ``asked``: topic of the queue at the broker; ``topic``: topic of the rows.
        Returns: (next byte, reason, next ``expected``, offset of the next record for a hole, otherwise -1): ``"limit"``
        (the response is used up; with ``expected`` below ``end`` the rest is missing), ``"full"``, ``"hole"`` (the next
        record's offset is above ``expected``), ``"queue"`` (a record of another queue) or the fault of the bytes (see
        STOPS of scan.pyx).
        Raises: UsageError if a column exceeds 2 GiB.
        """
        cdef int64_t outcome = 0, there = -1
        cdef int64_t n = body.shape[0]
        cdef const uint8_t *p = &body[0] if n else NULL
        cdef const uint8_t *name = asked
        cdef const uint8_t *shown = topic
        cdef int32_t name_bytes = <int32_t> len(asked), shown_bytes = <int32_t> len(topic)
        if not 0 <= at <= n:
            raise UsageError(f"at: expected 0 to {n}, found {at}")
        with nogil:
            self.take_answer(p, n, &at, &expected, begin, end, name, name_bytes, shown, shown_bytes, queue_id, &outcome,
                             &there)
        if outcome >= 16:
            return at, _STOPS[outcome - 16], expected, there
        return (at, "full" if outcome == FULL else "limit" if outcome == DONE else "hole" if outcome == HOLE else
                "queue", expected, there)

    def message(self, StoredMessage message not None, bytes topic not None, int32_t queue_id, int64_t queue_offset,
                bint crc_ok=True) -> bool:
        """Add a message of the caller, as a message of this queue. Returns: True if the batch is full."""
        cdef Record r
        cdef const uint8_t *name = topic
        message.fields()
        memcpy(&r, &message.record, sizeof(Record))
        r.topic = name
        r.topic_bytes = <int32_t> len(topic)
        r.queue_id = queue_id
        r.queue_offset = queue_offset
        self.consider(&r, crc_ok)
        self.flush()                # while the message and the name exist
        return self.is_full()

    # --- the collected records ---------------------------------------------------------------------------------------

    def arrow_schema(self):
        """Return a capsule ``arrow_schema``: the columns of every batch."""
        cdef ArrowSchema *schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
        cdef char *names
        if schema == NULL:
            raise MemoryError()
        names = share_names(self.names)
        if names == NULL or fill_schema(schema, self.columns, self.count, names) < 0:
            free(names)
            free(schema)
            raise MemoryError()
        schema.private_data = <void *> names
        schema.release = release_named
        return new_schema_capsule(schema)

    def finish(self) -> RecordColumns:
        """Return the records collected since the last call, as a separate batch."""
        cdef RecordColumns batch = RecordColumns.__new__(RecordColumns)
        cdef Tree *tree = new_batch_tree(self.columns, self.count, -1)
        cdef int i
        if tree == NULL:
            raise MemoryError()
        batch.maker = self
        batch.rows = self.rows
        for i in range(self.count):
            self.columns[i].text_bytes = self.columns[i].texts.text.used
        give_columns(self.columns, self.count, tree, &batch.array, self.rows)
        self.begin()
        return batch


# --- names -----------------------------------------------------------------------------------------------------------

cdef char *share_names(list names) except? NULL:
    """Return all names, each with a closing zero, in memory that a schema owns."""
    cdef bytes all_names = b"\0".join(names) + b"\0"
    cdef int64_t n = len(all_names)
    cdef const char *p = all_names
    cdef char *copy = <char *> malloc(n)
    if copy != NULL:
        memcpy(copy, p, n)
    return copy


cdef void release_named(ArrowSchema *schema) noexcept nogil:
    free(schema.private_data)
    schema.private_data = NULL
    release_schema(schema)
