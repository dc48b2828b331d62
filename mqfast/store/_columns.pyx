"""The messages of a GetResult as columns: a numpy array of the fixed fields, and the Arrow C data interface.

Everything is copied, so that columns stay valid after the result, the store and the files are gone. It must never trust a length of a record that
was not checked against the record, never hand out text that is not UTF-8, and never need pyarrow. numpy is imported where an array is asked for,
nowhere else. The C structs and their rules: https://arrow.apache.org/docs/format/CDataInterface.html (and CStreamInterface, PyCapsule
interface). The layout of a record: FORMAT.md.

Ownership, as Arrow has it: every schema and array struct owns its own buffers and child structs, and gives them up in its release callback, which
may be called without the GIL, from any thread, once; a consumer may move a struct away (it copies it and sets release to NULL). A capsule
that nobody took releases its struct when it goes.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strcmp
from mqfast.store._os cimport mq_get32, mq_get64
from mqfast.store._read cimport GetResult
from mqfast.store._record cimport MAGIC_V2, REC_OK, Found, Record, find_properties, parse_record

from mqfast.errors import CorruptFile, UsageError
from mqfast.message import format_host
from mqfast.properties import decode as decode_properties

FIXED_FIELDS = (
    ("queue_offset", "i8"),                 # where the message was found in its queue
    ("physical_offset", "i8"),              # byte in the whole log
    ("record_queue_offset", "i8"),          # as the record says it: another one for light queues and diverged queues
    ("born_timestamp", "i8"),               # ms since the epoch
    ("store_timestamp", "i8"),              # ms since the epoch
    ("prepared_transaction_offset", "i8"),
    ("size", "i4"),                         # of the whole record, bytes
    ("queue_id", "i4"),                     # as the record says it
    ("flag", "i4"),
    ("sys_flag", "i4"),
    ("body_crc", "i4"),                     # 31 bits
    ("reconsume_times", "i4"),
    ("body_bytes", "i4"),                   # as stored, perhaps compressed
    ("topic_bytes", "i4"),
    ("properties_bytes", "i4"),
    ("version", "i4"),                      # 1 or 2: width of the topic length
)

cdef packed struct Row:                     # one line of FIXED_FIELDS
    int64_t queue_offset
    int64_t physical_offset
    int64_t record_queue_offset
    int64_t born_timestamp
    int64_t store_timestamp
    int64_t prepared_offset
    int32_t size
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t body_crc
    int32_t reconsume_times
    int32_t body_bytes
    int32_t topic_bytes
    int32_t properties_bytes
    int32_t version


cdef object numpy_empty = None, fixed_dtype = None      # made when the first array is asked for


cdef object not_whole(GetResult result, const uint8_t *p):
    result.check_damage()
    return CorruptFile("not a whole record", offset=mq_get64(p + 28))


cdef Record *parse_all(GetResult result) except NULL:
    """Every record's fields, checked once; what is made of them later agrees even if the file changes. The caller frees it."""
    cdef Py_ssize_t i
    cdef Record *records = <Record *> PyMem_Malloc(max(result.count, 1) * sizeof(Record))
    cdef const uint8_t *p
    if records == NULL:
        raise MemoryError()
    for i in range(result.count):
        p = result.hits[i].record
        if parse_record(p, mq_get32(p), &records[i]) != REC_OK:
            PyMem_Free(records)
            raise not_whole(result, p)
    return records


def fixed_fields(GetResult result not None):
    """The fixed fields of every message: a structured array of shape (len(result),), fields as in FIXED_FIELDS, native byte order.

    Raises: CorruptFile when a record is not whole.
    """
    global numpy_empty, fixed_dtype
    cdef Py_ssize_t i
    cdef Row *row
    cdef const uint8_t *p
    cdef Record record
    cdef Record *r = &record
    cdef Py_buffer view
    if fixed_dtype is None:
        import numpy

        numpy_empty, fixed_dtype = numpy.empty, numpy.dtype(list(FIXED_FIELDS))
        assert fixed_dtype.itemsize == <Py_ssize_t> sizeof(Row)
    array = numpy_empty(result.count, fixed_dtype)
    if result.count == 0:
        return array
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    row = <Row *> view.buf
    PyBuffer_Release(&view)     # the array keeps its memory
    for i in range(result.count):
        p = result.hits[i].record
        if parse_record(p, mq_get32(p), r) != REC_OK:
            raise not_whole(result, p)
        row.queue_offset = result.hits[i].queue_offset
        row.physical_offset = r.physical_offset
        row.record_queue_offset = r.queue_offset
        row.born_timestamp = r.born_timestamp
        row.store_timestamp = r.store_timestamp
        row.prepared_offset = r.prepared_offset
        row.size = r.total
        row.queue_id = r.queue_id
        row.flag = r.flag
        row.sys_flag = r.sys_flag
        row.body_crc = r.body_crc
        row.reconsume_times = r.reconsume_times
        row.body_bytes = r.body_bytes
        row.topic_bytes = r.topic_bytes
        row.properties_bytes = r.properties_bytes
        row.version = 2 if r.magic == MAGIC_V2 else 1
        row += 1
    result.check_damage()
    return array


# --- Arrow: the C structs --------------------------------------------------------------------------------------------------

cdef enum:
    NULLABLE = 2

cdef struct ArrowSchema:
    const char *format
    const char *name
    const char *metadata
    int64_t flags
    int64_t n_children
    ArrowSchema **children
    ArrowSchema *dictionary
    void (*release)(ArrowSchema *) noexcept nogil
    void *private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    ArrowArray **children
    ArrowArray *dictionary
    void (*release)(ArrowArray *) noexcept nogil
    void *private_data

cdef struct ArrowArrayStream:
    int (*get_schema)(ArrowArrayStream *, ArrowSchema *) noexcept nogil
    int (*get_next)(ArrowArrayStream *, ArrowArray *) noexcept nogil
    const char *(*get_last_error)(ArrowArrayStream *) noexcept nogil
    void (*release)(ArrowArrayStream *) noexcept nogil
    void *private_data

cdef struct Pending:                        # of a stream: the one batch until it is taken
    ArrowArray batch
    bint large

cdef int ENOMEM_ = 12


cdef void release_schema(ArrowSchema *schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i] != NULL:
            if schema.children[i].release != NULL:
                schema.children[i].release(schema.children[i])
            free(schema.children[i])
    free(schema.children)
    schema.release = NULL


cdef int make_schema(ArrowSchema *schema, const char *format, const char *name, int64_t flags, int64_t n_children) noexcept nogil:
    """One node with room for its children, all of them released; format and name must be literals. Returns 0, or -1 without memory."""
    cdef int64_t i
    memset(schema, 0, sizeof(ArrowSchema))
    schema.format = format
    schema.name = name
    schema.flags = flags
    if n_children:
        schema.children = <ArrowSchema **> calloc(n_children, sizeof(ArrowSchema *))
        if schema.children == NULL:
            return -1
    schema.n_children = n_children
    schema.release = release_schema
    for i in range(n_children):
        schema.children[i] = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
        if schema.children[i] == NULL:
            release_schema(schema)
            return -1
    return 0


cdef void release_array(ArrowArray *array) noexcept nogil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i] != NULL:
            if array.children[i].release != NULL:
                array.children[i].release(array.children[i])
            free(array.children[i])
    free(array.children)
    if array.buffers != NULL:
        for i in range(array.n_buffers):
            free(<void *> array.buffers[i])
    free(array.buffers)
    array.release = NULL


cdef int make_array(ArrowArray *array, int64_t length, int64_t n_buffers, int64_t n_children) noexcept nogil:
    """One node with NULL buffers and room for its children, all of them released. Returns 0, or -1 without memory."""
    cdef int64_t i
    memset(array, 0, sizeof(ArrowArray))
    array.length = length
    array.buffers = <const void **> calloc(n_buffers, sizeof(void *))
    if array.buffers == NULL:
        return -1
    array.n_buffers = n_buffers
    array.release = release_array
    if n_children:
        array.children = <ArrowArray **> calloc(n_children, sizeof(ArrowArray *))
        if array.children == NULL:
            release_array(array)
            return -1
    array.n_children = n_children
    for i in range(n_children):
        array.children[i] = <ArrowArray *> calloc(1, sizeof(ArrowArray))
        if array.children[i] == NULL:
            release_array(array)
            return -1
    return 0


# --- Arrow: the schema -----------------------------------------------------------------------------------------------------

cdef enum Column:
    TOPIC
    QUEUE_ID
    QUEUE_OFFSET
    PHYSICAL_OFFSET
    SIZE
    FLAG
    SYS_FLAG
    BORN_TIMESTAMP
    STORE_TIMESTAMP
    BORN_HOST
    STORE_HOST
    RECONSUME_TIMES
    PREPARED
    BODY_CRC
    BODY
    TAGS
    KEYS
    PROPERTIES
    COLUMNS                                 # how many there are


cdef const char *column_name(int column) noexcept nogil:
    if column == TOPIC:
        return "topic"
    if column == QUEUE_ID:
        return "queue_id"
    if column == QUEUE_OFFSET:
        return "queue_offset"
    if column == PHYSICAL_OFFSET:
        return "physical_offset"
    if column == SIZE:
        return "size"
    if column == FLAG:
        return "flag"
    if column == SYS_FLAG:
        return "sys_flag"
    if column == BORN_TIMESTAMP:
        return "born_timestamp"
    if column == STORE_TIMESTAMP:
        return "store_timestamp"
    if column == BORN_HOST:
        return "born_host"
    if column == STORE_HOST:
        return "store_host"
    if column == RECONSUME_TIMES:
        return "reconsume_times"
    if column == PREPARED:
        return "prepared_transaction_offset"
    if column == BODY_CRC:
        return "body_crc"
    if column == BODY:
        return "body"
    if column == TAGS:
        return "tags"
    if column == KEYS:
        return "keys"
    return "properties"


cdef const char *column_format(int column, bint large) noexcept nogil:
    if column in (TOPIC, BORN_HOST, STORE_HOST, TAGS, KEYS):
        return "u"
    if column in (QUEUE_OFFSET, PHYSICAL_OFFSET, PREPARED):
        return "l"
    if column in (BORN_TIMESTAMP, STORE_TIMESTAMP):
        return "tsm:UTC"
    if column == BODY:
        return "Z" if large else "z"
    if column == PROPERTIES:
        return "+m"
    return "i"


cdef int fill_schema(ArrowSchema *schema, bint large) noexcept nogil:
    """The schema of a batch. Returns 0, or -1 without memory (nothing is kept then)."""
    cdef ArrowSchema *child
    cdef int i
    if make_schema(schema, "+s", "", 0, COLUMNS) < 0:
        return -1
    for i in range(COLUMNS):
        child = schema.children[i]
        if make_schema(child, column_format(i, large), column_name(i), NULLABLE if i == TAGS or i == KEYS else 0,
                       1 if i == PROPERTIES else 0) < 0:
            release_schema(schema)
            return -1
    child = schema.children[<int> PROPERTIES].children[0]
    if (make_schema(child, "+s", "entries", 0, 2) < 0 or make_schema(child.children[0], "u", "key", 0, 0) < 0
            or make_schema(child.children[1], "u", "value", NULLABLE, 0) < 0):
        release_schema(schema)
        return -1
    return 0


cdef bint wants_large(object requested_schema) except -1:
    """Does the caller ask for bodies as large_binary? Everything else that it may ask for is left to it, as Arrow allows."""
    cdef ArrowSchema *schema
    cdef int64_t i
    if requested_schema is None:
        return False
    if not PyCapsule_IsValid(requested_schema, "arrow_schema"):
        raise TypeError("requested_schema: expected a capsule named arrow_schema")
    schema = <ArrowSchema *> PyCapsule_GetPointer(requested_schema, "arrow_schema")
    if schema.release == NULL:
        raise ValueError("requested_schema: it was released already")
    for i in range(schema.n_children):
        if schema.children[i].name != NULL and strcmp(schema.children[i].name, "body") == 0:
            return strcmp(schema.children[i].format, "Z") == 0
    return False


# --- Arrow: the columns ----------------------------------------------------------------------------------------------------

cdef struct Buffer:
    uint8_t *p
    int64_t used
    int64_t room


cdef int reserve(Buffer *b, int64_t n) except -1:
    """Room for n more bytes; never leaves it without memory, as some consumers take a NULL buffer for a missing one."""
    cdef int64_t room
    cdef uint8_t *grown
    if b.p != NULL and b.used + n <= b.room:
        return 0
    room = max(b.room * 2, b.used + n, 64)
    grown = <uint8_t *> realloc(b.p, room)
    if grown == NULL:
        raise MemoryError()
    b.p = grown
    b.room = room
    return 0


cdef int put32(Buffer *b, int32_t x) except -1:
    reserve(b, 4)
    memcpy(b.p + b.used, &x, 4)
    b.used += 4
    return 0


cdef int put64(Buffer *b, int64_t x) except -1:
    reserve(b, 8)
    memcpy(b.p + b.used, &x, 8)
    b.used += 8
    return 0


cdef bint is_utf8(const uint8_t *p, int64_t n) noexcept nogil:
    """Well-formed UTF-8 as Unicode has it: no over-long forms, no surrogates, nothing above U+10FFFF."""
    cdef int64_t i = 0, need, k
    cdef uint8_t c, low, high
    while i < n:
        c = p[i]
        i += 1
        if c < 0x80:
            continue
        if c < 0xC2 or c > 0xF4:
            return False
        need = 1 if c < 0xE0 else 2 if c < 0xF0 else 3
        if i + need > n:
            return False
        low = 0xA0 if c == 0xE0 else 0x90 if c == 0xF0 else 0x80
        high = 0x9F if c == 0xED else 0x8F if c == 0xF4 else 0xBF
        if p[i] < low or p[i] > high:
            return False
        for k in range(1, need):
            if p[i + k] & 0xC0 != 0x80:
                return False
        i += need
    return True


cdef struct Texts:                          # a utf8 column
    Buffer offsets
    Buffer text


cdef int begin_texts(Texts *t) except -1:
    put32(&t.offsets, 0)
    return reserve(&t.text, 0)


cdef int put_raw(Texts *t, const uint8_t *p, int64_t n) except -1:
    if t.text.used + n > 0x7FFFFFFF:
        raise UsageError("the text of one column exceeds 2 GiB: ask for fewer messages at a time")
    reserve(&t.text, n)
    memcpy(t.text.p + t.text.used, p, n)
    t.text.used += n
    return put32(&t.offsets, <int32_t> t.text.used)


cdef int put_text(Texts *t, const uint8_t *p, int64_t n) except -1:
    """One value; what is not UTF-8 becomes U+FFFD, as for every reader of a message."""
    cdef bytes repaired
    if is_utf8(p, n):
        return put_raw(t, p, n)
    repaired = PyUnicode_DecodeUTF8(<const char *> p, n, "replace").encode("utf-8")
    return put_raw(t, <const uint8_t *> <const char *> repaired, len(repaired))


cdef int put_host(Texts *t, const uint8_t *p, int32_t n, const uint8_t **last, int32_t *last_bytes) except -1:
    """The text of a host; the value before is repeated where the host is the same one, as it mostly is."""
    cdef bytes text
    cdef int64_t rows = t.offsets.used // 4
    cdef int64_t start, length
    if last[0] != NULL and last_bytes[0] == n and memcmp(last[0], p, n) == 0:
        start = (<int32_t *> t.offsets.p)[rows - 2]
        length = t.text.used - start
        reserve(&t.text, length)            # first: put_raw must not move what it copies from
        return put_raw(t, t.text.p + start, length)
    last[0] = p
    last_bytes[0] = n
    text = format_host((<const char *> p)[:n]).encode("ascii")
    return put_raw(t, <const uint8_t *> <const char *> text, len(text))


cdef int put_properties(const uint8_t *p, int32_t n, Texts *names, Texts *values) except -1:
    """All pairs as a map: of equal names the last one's value at the first one's place, none without a name or a value."""
    cdef const uint8_t *name[64]
    cdef const uint8_t *value[64]
    cdef int32_t name_bytes[64]
    cdef int32_t value_bytes[64]
    cdef const uint8_t *end = p + n
    cdef const uint8_t *at = p
    cdef const uint8_t *pair_end
    cdef const uint8_t *separator
    cdef int count = 0, k
    cdef bytes text
    cdef bint plain = is_utf8(p, n)
    while plain and at < end:
        pair_end = <const uint8_t *> memchr(at, 2, end - at)
        if pair_end == NULL:
            pair_end = end
        separator = <const uint8_t *> memchr(at, 1, pair_end - at)
        if separator != NULL and separator > at and separator + 1 < pair_end:
            k = 0
            while k < count and not (name_bytes[k] == separator - at and memcmp(name[k], at, separator - at) == 0):
                k += 1
            if k == 64:
                plain = False
                break
            name[k] = at
            name_bytes[k] = <int32_t> (separator - at)
            value[k] = separator + 1
            value_bytes[k] = <int32_t> (pair_end - separator - 1)
            count = max(count, k + 1)
        at = pair_end + 1
    if plain:
        for k in range(count):
            put_raw(names, name[k], name_bytes[k])
            put_raw(values, value[k], value_bytes[k])
        return 0
    # many pairs, or bytes that are no text
    for pair in decode_properties((<const char *> p)[:n]).items():
        text = pair[0].encode("utf-8")
        put_raw(names, <const uint8_t *> <const char *> text, len(text))
        text = pair[1].encode("utf-8")
        put_raw(values, <const uint8_t *> <const char *> text, len(text))
    return 0


cdef struct Columns:
    Buffer numbers[18]                      # by Column; only those of fixed width are used
    Texts texts[18]                         # by Column; only those of text are used
    Buffer valid_tags
    Buffer valid_keys
    Buffer body_offsets
    Buffer body
    Buffer map_offsets
    Texts names
    Texts values


cdef void drop_columns(Columns *c) noexcept:
    cdef int i
    for i in range(18):
        free(c.numbers[i].p)
        free(c.texts[i].offsets.p)
        free(c.texts[i].text.p)
    free(c.valid_tags.p)
    free(c.valid_keys.p)
    free(c.body_offsets.p)
    free(c.body.p)
    free(c.map_offsets.p)
    free(c.names.offsets.p)
    free(c.names.text.p)
    free(c.values.offsets.p)
    free(c.values.text.p)


cdef const void *give(Buffer *b) noexcept:
    """Hand the memory over to an array."""
    cdef void *p = b.p
    b.p = NULL
    return p


cdef int put_optional(Texts *t, Buffer *valid, Py_ssize_t i, const uint8_t *p, int32_t n) except -1:
    if p == NULL:
        return put32(&t.offsets, <int32_t> t.text.used)
    valid.p[i >> 3] |= <uint8_t> (1 << (i & 7))
    return put_text(t, p, n)


cdef int fill_columns(Columns *c, GetResult result, Record *records, bint large) except -1:
    cdef Py_ssize_t i, count = result.count
    cdef int k
    cdef Record *r
    cdef Found f
    cdef const uint8_t *born = NULL
    cdef const uint8_t *store = NULL
    cdef int32_t born_bytes = 0, store_bytes = 0
    cdef int64_t body_total = 0, at = 0
    cdef uint8_t *to
    for k in (TOPIC, BORN_HOST, STORE_HOST, TAGS, KEYS):
        begin_texts(&c.texts[k])
    for k in (QUEUE_ID, SIZE, FLAG, SYS_FLAG, RECONSUME_TIMES, BODY_CRC):
        reserve(&c.numbers[k], count * 4)
    for k in (QUEUE_OFFSET, PHYSICAL_OFFSET, BORN_TIMESTAMP, STORE_TIMESTAMP, PREPARED):
        reserve(&c.numbers[k], count * 8)
    begin_texts(&c.names)
    begin_texts(&c.values)
    put32(&c.map_offsets, 0)
    reserve(&c.valid_tags, (count + 7) // 8)
    memset(c.valid_tags.p, 0, c.valid_tags.room)
    reserve(&c.valid_keys, (count + 7) // 8)
    memset(c.valid_keys.p, 0, c.valid_keys.room)
    for i in range(count):
        r = &records[i]
        put_text(&c.texts[<int> TOPIC], r.topic, r.topic_bytes)
        put32(&c.numbers[<int> QUEUE_ID], r.queue_id)
        put64(&c.numbers[<int> QUEUE_OFFSET], result.hits[i].queue_offset)
        put64(&c.numbers[<int> PHYSICAL_OFFSET], r.physical_offset)
        put32(&c.numbers[<int> SIZE], r.total)
        put32(&c.numbers[<int> FLAG], r.flag)
        put32(&c.numbers[<int> SYS_FLAG], r.sys_flag)
        put64(&c.numbers[<int> BORN_TIMESTAMP], r.born_timestamp)
        put64(&c.numbers[<int> STORE_TIMESTAMP], r.store_timestamp)
        put_host(&c.texts[<int> BORN_HOST], r.born_host, r.born_host_bytes, &born, &born_bytes)
        put_host(&c.texts[<int> STORE_HOST], r.store_host, r.store_host_bytes, &store, &store_bytes)
        put32(&c.numbers[<int> RECONSUME_TIMES], r.reconsume_times)
        put64(&c.numbers[<int> PREPARED], r.prepared_offset)
        put32(&c.numbers[<int> BODY_CRC], r.body_crc)
        find_properties(r.properties, r.properties_bytes, &f)
        put_optional(&c.texts[<int> TAGS], &c.valid_tags, i, f.tags, f.tags_bytes)
        put_optional(&c.texts[<int> KEYS], &c.valid_keys, i, f.keys, f.keys_bytes)
        put_properties(r.properties, r.properties_bytes, &c.names, &c.values)
        put32(&c.map_offsets, <int32_t> (c.names.offsets.used // 4 - 1))
        body_total += r.body_bytes
    if not large and body_total > 0x7FFFFFFF:
        raise UsageError("the bodies exceed 2 GiB: ask for fewer bytes at a time, or request large_binary for them")
    reserve(&c.body, body_total)
    reserve(&c.body_offsets, (count + 1) * (8 if large else 4))
    to = c.body.p
    with nogil:
        for i in range(count):
            if large:
                (<int64_t *> c.body_offsets.p)[i] = at
            else:
                (<int32_t *> c.body_offsets.p)[i] = <int32_t> at
            memcpy(to + at, records[i].body, records[i].body_bytes)
            at += records[i].body_bytes
        if large:
            (<int64_t *> c.body_offsets.p)[count] = at
        else:
            (<int32_t *> c.body_offsets.p)[count] = <int32_t> at
    return 0


cdef int64_t nulls(const uint8_t *bits, int64_t n) noexcept nogil:
    cdef int64_t i, count = 0
    for i in range(n):
        count += 1 - (bits[i >> 3] >> (i & 7) & 1)
    return count


cdef int give_columns(Columns *c, ArrowArray *batch, int64_t count) noexcept:
    """Make the batch out of the columns. Returns 0, or -1 without memory (what is left of the columns is the caller's)."""
    cdef int k
    cdef ArrowArray *child
    cdef Buffer *valid
    if make_array(batch, count, 1, COLUMNS) < 0:
        return -1
    for k in range(COLUMNS):
        child = batch.children[k]
        if k == PROPERTIES:
            if make_array(child, count, 2, 1) < 0:
                release_array(batch)
                return -1
            child.buffers[1] = give(&c.map_offsets)
            child = child.children[0]
            if (make_array(child, c.names.offsets.used // 4 - 1, 1, 2) < 0
                    or make_array(child.children[0], child.length, 3, 0) < 0 or make_array(child.children[1], child.length, 3, 0) < 0):
                release_array(batch)
                return -1
            child.children[0].buffers[1] = give(&c.names.offsets)
            child.children[0].buffers[2] = give(&c.names.text)
            child.children[1].buffers[1] = give(&c.values.offsets)
            child.children[1].buffers[2] = give(&c.values.text)
            continue
        if make_array(child, count, 2 if c.numbers[k].p != NULL else 3, 0) < 0:
            release_array(batch)
            return -1
        if k == BODY:
            child.buffers[1] = give(&c.body_offsets)
            child.buffers[2] = give(&c.body)
        elif c.numbers[k].p != NULL:
            child.buffers[1] = give(&c.numbers[k])
        else:
            child.buffers[1] = give(&c.texts[k].offsets)
            child.buffers[2] = give(&c.texts[k].text)
            if k == TAGS or k == KEYS:
                valid = &c.valid_tags if k == TAGS else &c.valid_keys
                child.null_count = nulls(valid.p, count)
                child.buffers[0] = give(valid)
    return 0


cdef int fill_batch(ArrowArray *batch, GetResult result, bint large) except -1:
    """Copy the messages into a new batch."""
    cdef Columns *c
    cdef Record *records = parse_all(result)
    cdef int rc
    c = <Columns *> calloc(1, sizeof(Columns))
    try:
        if c == NULL:
            raise MemoryError()
        fill_columns(c, result, records, large)
        result.check_damage()
        if give_columns(c, batch, result.count) < 0:
            raise MemoryError()
    finally:
        if c != NULL:
            drop_columns(c)
            free(c)
        PyMem_Free(records)
    return 0


# --- Arrow: capsules -------------------------------------------------------------------------------------------------------

cdef void drop_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *> PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array_capsule(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *> PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void drop_stream_capsule(object capsule) noexcept:
    cdef ArrowArrayStream *stream = <ArrowArrayStream *> PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef object schema_capsule(bint large):
    cdef ArrowSchema *schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError()
    if fill_schema(schema, large) < 0:
        free(schema)
        raise MemoryError()
    try:
        return PyCapsule_New(schema, "arrow_schema", drop_schema_capsule)
    except BaseException:
        schema.release(schema)
        free(schema)
        raise


def arrow_schema():
    """A capsule ``arrow_schema``: the columns that a batch of messages has."""
    return schema_capsule(False)


def arrow_array(GetResult result not None, requested_schema=None):
    """Capsules ``arrow_schema`` and ``arrow_array``: all messages as one struct array (a record batch).

    Args: ``requested_schema``: a capsule; bodies become large_binary where it asks for that, the rest of it is left to the consumer.
    Raises: CorruptFile when a record is not whole; UsageError when bodies or a text column exceed 2 GiB.
    """
    cdef bint large = wants_large(requested_schema)
    cdef ArrowArray *batch
    schema = schema_capsule(large)
    batch = <ArrowArray *> calloc(1, sizeof(ArrowArray))
    if batch == NULL:
        raise MemoryError()
    try:
        fill_batch(batch, result, large)
        array = PyCapsule_New(batch, "arrow_array", drop_array_capsule)
    except BaseException:
        if batch.release != NULL:
            batch.release(batch)
        free(batch)
        raise
    return schema, array


# --- Arrow: a stream of one batch ------------------------------------------------------------------------------------------

cdef int stream_schema(ArrowArrayStream *stream, ArrowSchema *out) noexcept nogil:
    return ENOMEM_ if fill_schema(out, (<Pending *> stream.private_data).large) < 0 else 0


cdef int stream_next(ArrowArrayStream *stream, ArrowArray *out) noexcept nogil:
    cdef Pending *pending = <Pending *> stream.private_data
    memcpy(out, &pending.batch, sizeof(ArrowArray))
    pending.batch.release = NULL            # moved; a batch without release is the end of the stream
    return 0


cdef const char *stream_error(ArrowArrayStream *stream) noexcept nogil:
    return NULL


cdef void release_stream(ArrowArrayStream *stream) noexcept nogil:
    cdef Pending *pending = <Pending *> stream.private_data
    if pending.batch.release != NULL:
        pending.batch.release(&pending.batch)
    free(pending)
    stream.private_data = NULL
    stream.release = NULL


def arrow_stream(GetResult result not None, requested_schema=None):
    """A capsule ``arrow_array_stream`` of one batch; otherwise as arrow_array. The messages are copied now, not when it is read."""
    cdef ArrowArrayStream *stream
    cdef Pending *pending = <Pending *> calloc(1, sizeof(Pending))
    if pending == NULL:
        raise MemoryError()
    try:
        pending.large = wants_large(requested_schema)
        fill_batch(&pending.batch, result, pending.large)
    except BaseException:
        free(pending)
        raise
    stream = <ArrowArrayStream *> calloc(1, sizeof(ArrowArrayStream))
    if stream == NULL:
        pending.batch.release(&pending.batch)
        free(pending)
        raise MemoryError()
    stream.get_schema = stream_schema
    stream.get_next = stream_next
    stream.get_last_error = stream_error
    stream.release = release_stream
    stream.private_data = pending
    try:
        return PyCapsule_New(stream, "arrow_array_stream", drop_stream_capsule)
    except BaseException:
        stream.release(stream)
        free(stream)
        raise
