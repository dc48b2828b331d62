"""Spark's row encoder: encodes rows of Arrow columns into records that lack only offsets and store time.

The encoder needs no store. ``append_records`` of ``mqfast/store/put/staged.pyx`` checks the records and fills in
offsets and store time under the put lock. Record format: ``mqfast/store/FORMAT.md``.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, strcmp
from mqfast.store.base.os_api cimport mq_put16, mq_put32
from mqfast.store.record.arrow cimport ArrowArray, ArrowSchema
from mqfast.store.record.record cimport (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Draft,
    draft_bytes,
    encode_draft,
    jhash,
)

from mqfast.errors import MessageIllegal, MessageTooLarge, PropertiesTooLong

cdef int64_t MAX_PROPERTIES = 32767
cdef int32_t INNER_BATCH = 0x80
cdef enum:
    STAMP_DIGITS = 21                   # of a row number, with the separator

# Columns of rows that are copies of messages, with Arrow's names of the types.
cdef enum:
    TOPIC
    QUEUE_ID
    BORN_TIMESTAMP
    BORN_HOST
    FLAG
    SYS_FLAG
    RECONSUME_TIMES
    PROPERTIES
    BODY
    PLACES

PLAIN_COLUMNS = {
    "topic": "u", "queueId": "i", "bornTimestamp": "l", "bornHost": "u", "flag": "i", "sysFlag": "i",
    "reconsumeTimes": "i", "properties": "z", "body": "z",
}
cdef tuple _PLACES = tuple(PLAIN_COLUMNS)
cdef tuple _NEEDED = ("topic", "queueId", "body")

cdef uint8_t NOTHING = 0        # the address of an empty text of a column without memory

cdef struct Field:              # a column; values NULL: missing
    const uint8_t *valid        # NULL: no nulls
    const void *values          # numbers, or the offsets of texts
    const uint8_t *data
    int64_t offset

cdef struct Rows:               # a batch
    Field fields[PLACES]
    int64_t count


cdef inline bint is_there(const Field *f, int64_t i) noexcept nogil:
    i += f.offset
    return f.values != NULL and (f.valid == NULL or f.valid[i >> 3] >> (i & 7) & 1)


cdef inline int32_t number32(const Field *f, int64_t i) noexcept nogil:
    return (<const int32_t *> f.values)[f.offset + i] if is_there(f, i) else 0


cdef inline const uint8_t *text_of(const Field *f, int64_t i, int32_t *n) except NULL:
    cdef const int32_t *ends = <const int32_t *> f.values + f.offset + i
    if ends[0] < 0 or ends[1] < ends[0]:
        raise MessageIllegal(f"row {i} of a batch: expected rising Arrow offsets, found {ends[0]} and {ends[1]}")
    n[0] = ends[1] - ends[0]
    return f.data + ends[0]


cdef int open_rows(object batch, Rows *rows, list kept) except -1:
    """Set ``rows`` to the columns of a batch, an Arrow struct array of PLAIN_COLUMNS; ``kept`` keeps the memory alive.

    Raises: MessageIllegal.
    """
    cdef ArrowSchema *schema
    cdef ArrowSchema *kind
    cdef ArrowArray *array
    cdef ArrowArray *column
    cdef Field *field
    cdef bytes expected
    cdef int64_t i
    cdef int place
    schema_capsule, array_capsule = batch.__arrow_c_array__()
    kept.append(schema_capsule)
    kept.append(array_capsule)
    schema = <ArrowSchema *> PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    array = <ArrowArray *> PyCapsule_GetPointer(array_capsule, "arrow_array")
    rows.count = array.length
    for i in range(schema.n_children):
        kind = schema.children[i]
        name = kind.name.decode("utf-8")
        if name not in PLAIN_COLUMNS:
            continue
        expected = PLAIN_COLUMNS[name].encode("ascii")
        if kind.dictionary != NULL or strcmp(kind.format, expected) != 0:
            raise MessageIllegal(
                f"column {name}: expected the Arrow type {PLAIN_COLUMNS[name]!r}, found {kind.format.decode('utf-8')!r}"
            )
        place = _PLACES.index(name)
        column = array.children[i]
        field = &rows.fields[place]
        field.valid = <const uint8_t *> column.buffers[0] if column.null_count != 0 else NULL
        field.values = column.buffers[1]
        field.data = &NOTHING
        if column.n_buffers == 3 and column.buffers[2] != NULL:
            field.data = <const uint8_t *> column.buffers[2]
        field.offset = column.offset + array.offset
    for name in _NEEDED:
        if rows.count and rows.fields[<int> _PLACES.index(name)].values == NULL:
            raise MessageIllegal(f"column {name}: expected it, found none")
    return 0


@cython.final
cdef class RowEncoder:
    """The encoder of rows into records that lack only offsets and store time.

    Args: hosts: encoded, 8 or 20 bytes; stamp: end of every record's properties, as ``name U+0001 prefix``, followed by
        the row number and U+0002 (empty: no stamp); max_body_bytes, max_record_bytes: limits of the store; dropped:
        names of properties that ``encode_plain`` leaves out.
    Thread: one.
    """
    cdef bytes born_host
    cdef bytes store_host
    cdef bytes stamp
    cdef const char *stamp_text         # the bytes of stamp
    cdef int64_t stamp_bytes
    cdef int64_t max_body
    cdef int64_t max_record
    cdef bytearray buffer
    cdef readonly int64_t rows
    cdef tuple dropped
    cdef uint8_t *scratch               # properties without the dropped names
    cdef int64_t scratch_bytes

    def __dealloc__(self):
        free(self.scratch)

    def __init__(self, bytes born_host not None, bytes store_host not None, bytes stamp not None,
                 int64_t max_body_bytes, int64_t max_record_bytes, tuple dropped not None=()):
        for name in dropped:
            if type(name) is not bytes or not name:
                raise MessageIllegal(f"dropped: expected names as bytes, found {name!r}")
        self.dropped = dropped
        self.born_host = born_host
        self.store_host = store_host
        self.stamp = stamp
        self.stamp_text = PyBytes_AS_STRING(stamp)
        self.stamp_bytes = PyBytes_GET_SIZE(stamp)
        self.max_body = max_body_bytes
        self.max_record = max_record_bytes
        self.buffer = bytearray(1 << 20)
        self.rows = 0

    def encode(self, list topics not None, const int32_t[::1] topic_of, const int32_t[::1] queue_ids,
               const int32_t[::1] body_offsets, body_data, list properties, const int32_t[::1] flags,
               const int32_t[::1] sys_flags, const int64_t[::1] born_timestamps, const int32_t[::1] reconsume_times,
               list born_hosts) -> memoryview:
        """Return the records of some rows, one after the other; valid until the next call.

        Args: topics: encoded names; topic_of: index into topics for each row; body_offsets: into body_data, rows + 1;
            properties: property texts, or None; born_timestamps: ms; born_hosts: encoded, None for the default.
        Raises: MessageIllegal (MessageTooLarge, PropertiesTooLong) naming the row.
        """
        cdef Py_ssize_t n = topic_of.shape[0], i
        cdef Py_buffer view
        cdef int64_t total = 0, at = 0, room
        cdef uint8_t *to
        cdef Draft d
        if (queue_ids.shape[0] != n or flags.shape[0] != n or sys_flags.shape[0] != n or born_timestamps.shape[0] != n
                or reconsume_times.shape[0] != n or body_offsets.shape[0] != n + 1
                or (properties is not None and len(properties) != n)
                or (born_hosts is not None and len(born_hosts) != n)):
            raise MessageIllegal("columns: expected the same number of rows in each")
        PyObject_GetBuffer(body_data, &view, PyBUF_SIMPLE)
        try:
            for i in range(n):
                if not 0 <= body_offsets[i] <= body_offsets[i + 1] <= view.len or not 0 <= topic_of[i] < len(topics):
                    raise MessageIllegal(
                        f"row {self.rows + i}: expected a body inside its column, "
                        f"found {body_offsets[i]}..{body_offsets[i + 1]}"
                    )
                self.draft(&d, i, topics, topic_of, queue_ids, body_offsets, <const uint8_t *> view.buf, properties,
                           flags, sys_flags, born_timestamps, reconsume_times, born_hosts)
                room = draft_bytes(&d)
                if room > self.max_record:
                    raise MessageTooLarge(
                        f"row {self.rows + i}: expected a record of at most {self.max_record} bytes, found {room}"
                    )
                total += room
            # A stamp's number of digits varies: the room is for the maximum.
            if len(self.buffer) < total:
                self.buffer = bytearray(2 * total)
            to = <uint8_t *> PyByteArray_AS_STRING(self.buffer)
            for i in range(n):
                self.draft(&d, i, topics, topic_of, queue_ids, body_offsets, <const uint8_t *> view.buf, properties,
                           flags, sys_flags, born_timestamps, reconsume_times, born_hosts)
                at += self.write(to + at, &d, self.rows + i)
        finally:
            PyBuffer_Release(&view)
        self.rows += n
        return memoryview(self.buffer)[:at]

    def encode_plain(self, list batches not None, const int64_t[::1] order, int64_t born_timestamp, check_topic,
                     parse_host) -> memoryview:
        """Return the records of rows that are copies of messages, with the stored property text; valid until the next
        call.

        Args: batches: Arrow struct arrays with PLAIN_COLUMNS; topic, queueId and body are required; bornTimestamp in
            microseconds; order: number of the batch * 2^32 + number of the row, for each row in turn; None: all rows of
            the first batch; born_timestamp: ms, for rows without; check_topic, parse_host: return the bytes of a topic
            or host text, or raise MessageIllegal.
        Raises: MessageIllegal (MessageTooLarge, PropertiesTooLong) naming the row.
        """
        cdef Rows *columns = <Rows *> calloc(max(len(batches), 1), sizeof(Rows))
        cdef list kept = []
        cdef Py_ssize_t k, n, number = 0
        if columns == NULL:
            raise MemoryError()
        try:
            for k in range(len(batches)):
                open_rows(batches[k], &columns[k], kept)
            if order is not None:
                n = order.shape[0]
                for k in range(n):
                    if (not 0 <= order[k] >> 32 < len(batches)
                            or (order[k] & 0xFFFFFFFF) >= columns[order[k] >> 32].count):
                        raise MessageIllegal(
                            f"order: expected a row of a batch, found {order[k] & 0xFFFFFFFF} of {order[k] >> 32}"
                        )
            else:
                n = columns[0].count
            return self.copy_rows(columns, order, n, born_timestamp, check_topic, parse_host)
        finally:
            free(columns)

    cdef object copy_rows(self, Rows *batches, const int64_t[::1] order, Py_ssize_t n, int64_t born_timestamp,
                          check_topic, parse_host):
        cdef Py_ssize_t k, room = len(self.buffer), longest
        cdef int64_t i, at = 0, micros
        cdef bint ordered = order is not None
        cdef Rows *rows
        cdef Field *field
        cdef uint8_t *to = <uint8_t *> PyByteArray_AS_STRING(self.buffer)
        cdef bytearray grown
        cdef Draft d
        cdef const uint8_t *text
        cdef const uint8_t *host_text = NULL
        cdef int32_t text_bytes, host_bytes = 0
        cdef bytes topic = None, host = self.born_host
        cdef dict topics = {}, hosts = {}
        for k in range(n):
            rows = &batches[order[k] >> 32] if ordered else batches
            i = order[k] & 0xFFFFFFFF if ordered else k
            if not (is_there(&rows.fields[TOPIC], i) and is_there(&rows.fields[QUEUE_ID], i)
                    and is_there(&rows.fields[BODY], i)):
                raise MessageIllegal(f"row {self.rows + k}: expected a topic, a queueId and a body, found null")
            text = text_of(&rows.fields[TOPIC], i, &text_bytes)
            if (topic is None or PyBytes_GET_SIZE(topic) != text_bytes
                    or memcmp(PyBytes_AS_STRING(topic), text, text_bytes) != 0):
                topic = (<const char *> text)[:text_bytes]
                if topic not in topics:
                    topics[topic] = check_topic(topic.decode("utf-8"))      # raises, or returns the same bytes
            d.topic = <const uint8_t *> PyBytes_AS_STRING(topic)
            d.topic_bytes = text_bytes
            field = &rows.fields[BORN_HOST]
            if not is_there(field, i):
                host, host_text = self.born_host, NULL
            else:
                text = text_of(field, i, &text_bytes)
                if host_text == NULL or host_bytes != text_bytes or memcmp(host_text, text, text_bytes) != 0:
                    host_text, host_bytes = text, text_bytes
                    host = hosts.get((<const char *> text)[:text_bytes])
                    if host is None:
                        try:
                            host = parse_host((<const char *> text)[:text_bytes].decode("utf-8"))
                        except MessageIllegal as error:
                            raise MessageIllegal(f"row {self.rows + k}: {error}") from None
                        hosts[(<const char *> text)[:text_bytes]] = host
            micros = born_timestamp
            field = &rows.fields[BORN_TIMESTAMP]
            if is_there(field, i):
                micros = (<const int64_t *> field.values)[field.offset + i]
                micros = micros // 1000 - (1 if micros % 1000 < 0 else 0)
            d.born_timestamp = micros
            d.properties = &NOTHING
            d.properties_bytes = 0
            if is_there(&rows.fields[PROPERTIES], i):
                d.properties = text_of(&rows.fields[PROPERTIES], i, &d.properties_bytes)
                self.leave_out(&d)
            d.body = text_of(&rows.fields[BODY], i, &d.body_bytes)
            d.queue_id = number32(&rows.fields[QUEUE_ID], i)
            d.flag = number32(&rows.fields[FLAG], i)
            d.sys_flag = number32(&rows.fields[SYS_FLAG], i)
            d.reconsume_times = number32(&rows.fields[RECONSUME_TIMES], i)
            self.finish(&d, k, host)
            longest = draft_bytes(&d)
            if longest > self.max_record:
                raise MessageTooLarge(
                    f"row {self.rows + k}: expected a record of at most {self.max_record} bytes, found {longest}"
                )
            if longest > room - at:
                room = 2 * (at + longest)
                grown = bytearray(room)
                memcpy(PyByteArray_AS_STRING(grown), to, at)
                self.buffer = grown
                to = <uint8_t *> PyByteArray_AS_STRING(grown)
            at += self.write(to + at, &d, self.rows + k)
        self.rows += n
        return memoryview(self.buffer)[:at]

    cdef int leave_out(self, Draft *d) except -1:
        """Remove the dropped properties of a draft, and add the last separator, which a 4.x broker omits."""
        cdef const uint8_t *p = d.properties
        cdef const uint8_t *end
        cdef const char *name
        cdef int64_t n = d.properties_bytes, at = 0, stop, following, out = 0, bytes_of_name
        cdef bint drop, copies = False
        if n <= 0:
            return 0
        if n + 1 > self.scratch_bytes:
            end = <const uint8_t *> realloc(self.scratch, 2 * n + 1024)
            if end == NULL:
                raise MemoryError()
            self.scratch = <uint8_t *> end
            self.scratch_bytes = 2 * n + 1024
        while at < n:
            end = <const uint8_t *> memchr(p + at, 2, n - at)
            stop = end - p if end != NULL else n
            following = stop + 1 if end != NULL else n
            drop = False
            for dropped in self.dropped:
                name = PyBytes_AS_STRING(dropped)
                bytes_of_name = PyBytes_GET_SIZE(dropped)
                if (stop - at > bytes_of_name and p[at + bytes_of_name] == 1
                        and memcmp(p + at, name, bytes_of_name) == 0):
                    drop = True
                    break
            if drop and not copies:
                copies = True
                memcpy(self.scratch, p, at)
                out = at
            elif copies and not drop:
                memcpy(self.scratch + out, p + at, following - at)
                out += following - at
            at = following
        if not copies:
            if p[n - 1] == 2:
                return 0
            memcpy(self.scratch, p, n)
            out = n
        if out and self.scratch[out - 1] != 2:
            self.scratch[out] = 2
            out += 1
        d.properties = self.scratch
        d.properties_bytes = <int32_t> out
        return 0

    cdef int draft(self, Draft *d, Py_ssize_t i, list topics, const int32_t[::1] topic_of, const int32_t[::1] queue_ids,
                   const int32_t[::1] body_offsets, const uint8_t *body, list properties, const int32_t[::1] flags,
                   const int32_t[::1] sys_flags, const int64_t[::1] born_timestamps, const int32_t[::1] reconsume_times,
                   list born_hosts) except -1:
        """Fill the draft of a row; the length of the properties includes the longest stamp."""
        cdef bytes topic = topics[topic_of[i]]
        cdef bytes text = properties[i] if properties is not None else b""
        cdef bytes born = self.born_host
        if born_hosts is not None and born_hosts[i] is not None:
            born = born_hosts[i]
        d.queue_id = queue_ids[i]
        d.flag = flags[i]
        d.sys_flag = sys_flags[i]
        d.born_timestamp = born_timestamps[i]
        d.reconsume_times = reconsume_times[i]
        d.body = body + body_offsets[i]
        d.body_bytes = body_offsets[i + 1] - body_offsets[i]
        d.topic = <const uint8_t *> PyBytes_AS_STRING(topic)
        d.topic_bytes = <int32_t> PyBytes_GET_SIZE(topic)
        d.properties = <const uint8_t *> PyBytes_AS_STRING(text)
        d.properties_bytes = <int32_t> PyBytes_GET_SIZE(text)
        return self.finish(d, i, born)

    cdef int finish(self, Draft *d, int64_t i, bytes born) except -1:
        """Refuse values that no record may have, and set the derived fields; the caller keeps ``born`` alive."""
        cdef int64_t stamp_bytes = self.stamp_bytes
        if d.queue_id < 0:
            raise MessageIllegal(f"row {self.rows + i}: expected a queue id from 0, found {d.queue_id}")
        d.sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_MASK)
        if d.sys_flag & INNER_BATCH:
            raise MessageIllegal(
                f"row {self.rows + i}: expected single messages, found an inner batch (bit 0x80 of sysFlag)"
            )
        if PyBytes_GET_SIZE(born) == 20:
            d.sys_flag |= BORN_HOST_V6
        if PyBytes_GET_SIZE(self.store_host) == 20:
            d.sys_flag |= STORE_HOST_V6
        d.prepared_offset = 0
        d.born_host = <const uint8_t *> PyBytes_AS_STRING(born)
        d.store_host = <const uint8_t *> PyBytes_AS_STRING(self.store_host)
        if d.body_bytes < 0 or d.body_bytes > self.max_body:
            raise MessageTooLarge(
                f"row {self.rows + i}: expected a body of at most {self.max_body} bytes, found {d.body_bytes}"
            )
        d.version_2 = d.topic_bytes > 127
        d.crc_property = False
        d.separator = False
        if d.properties_bytes + (stamp_bytes + STAMP_DIGITS if stamp_bytes else 0) > MAX_PROPERTIES:
            raise PropertiesTooLong(
                f"row {self.rows + i}: expected properties of at most {MAX_PROPERTIES} bytes, found "
                f"{d.properties_bytes} and a stamp of {stamp_bytes}"
            )
        if stamp_bytes:
            d.properties_bytes += <int32_t> stamp_bytes + STAMP_DIGITS
        return 0

    cdef int64_t write(self, uint8_t *to, Draft *d, int64_t row) noexcept:
        """Write the record with size word, CRC and stamp; return the length."""
        cdef char digits[STAMP_DIGITS + 1]
        cdef int64_t stamp_bytes = self.stamp_bytes, end
        cdef int count
        if stamp_bytes:
            count = snprintf(digits, STAMP_DIGITS + 1, "%lld\x02", <long long> row)
            d.properties_bytes -= <int32_t> stamp_bytes + STAMP_DIGITS
            end = encode_draft(to, d)
            mq_put16(to + end - d.properties_bytes - 2, <int16_t> (d.properties_bytes + stamp_bytes + count))
            memcpy(to + end, self.stamp_text, stamp_bytes)
            memcpy(to + end + stamp_bytes, digits, count)
            end += stamp_bytes + count
        else:
            end = encode_draft(to, d)
        mq_put32(to, <int32_t> end)
        return end


def java_hashes(const int32_t[::1] ends, data, int64_t[::1] into):
    """Write the absolute Java hash code of each text of an Arrow column, ``ends`` and ``data``.

    Raises: MessageIllegal.
    """
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef int64_t number
    if ends.shape[0] != into.shape[0] + 1:
        raise MessageIllegal("column: expected an end for each row")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        for i in range(into.shape[0]):
            if not 0 <= ends[i] <= ends[i + 1] <= view.len:
                raise MessageIllegal(
                    f"row {i} of a batch: expected rising Arrow offsets, found {ends[i]} and {ends[i + 1]}"
                )
            number = jhash(<const uint8_t *> view.buf + ends[i], ends[i + 1] - ends[i], 0)
            into[i] = number if number >= 0 else -number
    finally:
        PyBuffer_Release(&view)


def merge_properties(Py_ssize_t n, list names, list values, list ends, list extras, frozenset dropped) -> list:
    """Return a dict for each row: the pairs of a map column without ``dropped``, then non-empty values of ``extras``.

    Args: names, values, ends: of the map column, or None; the pairs ends[i] to ends[i + 1] belong to row i; extras:
        (property name, values by row).
    """
    cdef Py_ssize_t i, k
    cdef dict row
    cdef list made = []
    if names is not None:
        if values is None or ends is None or len(ends) != n + 1 or len(names) != len(values):
            raise MessageIllegal("properties: expected as many values as names, and an end for each row")
        for i in range(n):
            if not 0 <= <Py_ssize_t> ends[i] <= <Py_ssize_t> ends[i + 1] <= len(names):
                raise MessageIllegal(
                    f"properties: expected ends that grow to {len(names)}, found {ends[i]} and {ends[i + 1]}"
                )
    for name, column in extras:
        if type(column) is not list or len(<list> column) != n:
            raise MessageIllegal(f"column for {name}: expected {n} values")
    for i in range(n):
        row = {}
        if names is not None:
            for k in range(<Py_ssize_t> ends[i], <Py_ssize_t> ends[i + 1]):
                if values[k] is not None and names[k] not in dropped:
                    row[names[k]] = values[k]
        for name, column in extras:
            value = (<list> column)[i]
            if value:
                row[name] = value
        made.append(row)
    return made
