"""Hits of a get as columns: a numpy array of the fixed fields, and the Arrow C data interface.

Everything is copied, so that columns stay valid after the result, the store and the files are gone. It must never trust a length of a record that
was not checked against the record, never hand out text that is not UTF-8, and never need pyarrow for the Arrow interface. numpy is imported where
an array is asked for, pyarrow where one of its batches is, nowhere else. The C structs and their rules: https://arrow.apache.org/docs/format/CDataInterface.html (and CStreamInterface, PyCapsule
interface). The layout of a record: FORMAT.md.

Who owns the C structs is said in _arrow.pyx.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcmp
from mqfast.store.record._arrow cimport (
    NULLABLE,
    ArrowArray,
    ArrowArrayStream,
    ArrowSchema,
    Buffer,
    Texts,
    Tree,
    begin_texts,
    drop_buffer,
    drop_texts,
    give,
    make_map_schema,
    make_node,
    make_schema,
    new_array_capsule,
    new_schema_capsule,
    new_stream_capsule,
    new_tree,
    nulls,
    put32,
    put64,
    put_again_times,
    put_new_host,
    put_properties,
    put_text,
    release_schema,
    reserve,
    reserve_in_tree,
    same_bytes,
    take,
)
from mqfast.store.base._os cimport mq_fetch_to_read, mq_get32, mq_get64
from mqfast.store.get._hits cimport Hits, check_pins
from mqfast.store.record._record cimport MAGIC_V2, REC_OK, PropertyRefs, Record, find_properties, parse_record

from mqfast.errors import CorruptFile, UsageError

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


cdef object numpy_array = None, numpy_empty = None, plain_bytes = None, fixed_dtype = None     # made when the first array is asked for


cdef object not_whole(list pins, const uint8_t *p):
    check_pins(pins)
    return CorruptFile("not a whole record", offset=mq_get64(p + 28))


cdef object fixed_fields(const Hits *hits, list pins):
    """The fixed fields of every message: a structured array of shape (hits.count,), fields as in FIXED_FIELDS, native byte order.

    Raises: CorruptFile when a record is not whole.
    """
    global numpy_array, numpy_empty, plain_bytes, fixed_dtype
    cdef Py_ssize_t i
    cdef Row *row
    cdef const uint8_t *p
    cdef Record record
    cdef Record *r = &record
    cdef Py_buffer view
    if fixed_dtype is None:
        import numpy

        numpy_array, numpy_empty, plain_bytes = numpy.ndarray, numpy.empty, numpy.dtype(numpy.uint8)
        fixed_dtype = numpy.dtype(list(FIXED_FIELDS))
        assert fixed_dtype.itemsize == <Py_ssize_t> sizeof(Row)
    # numpy looks at each field when it makes memory of this dtype, and again when it shows it: of bytes that takes a third
    memory = numpy_empty(hits.count * <Py_ssize_t> sizeof(Row), plain_bytes)
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    row = <Row *> view.buf
    PyBuffer_Release(&view)     # the array keeps its memory
    for i in range(hits.count):
        p = hits.at[i].record
        if parse_record(p, mq_get32(p), r) != REC_OK:
            raise not_whole(pins, p)
        row.queue_offset = hits.at[i].queue_offset
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
    check_pins(pins)
    return numpy_array(hits.count, fixed_dtype, memory)


# --- Arrow: what a stream holds ---------------------------------------------------------------------------------------------

cdef struct Pending:                        # of a stream: the one batch until it is taken
    ArrowArray batch
    bint large

cdef int ENOMEM_ = 12


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
    return "i"


cdef int fill_schema(ArrowSchema *schema, bint large) noexcept nogil:
    """The schema of a batch. Returns 0, or -1 without memory (nothing is kept then)."""
    cdef ArrowSchema *child
    cdef int i, rc
    if make_schema(schema, "+s", "", 0, COLUMNS) < 0:
        return -1
    for i in range(COLUMNS):
        child = schema.children[i]
        if i == PROPERTIES:
            rc = make_map_schema(child, column_name(i), 0)
        else:
            rc = make_schema(child, column_format(i, large), column_name(i), NULLABLE if i == TAGS or i == KEYS else 0, 0)
        if rc < 0:
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


cdef struct Columns:
    void *numbers[18]                       # by Column, in the tree; NULL but for those of fixed width
    Texts texts[18]                         # by Column; only those of text are used, with their offsets in the tree
    Buffer valid_tags                       # these four in the tree
    Buffer valid_keys
    Buffer body_offsets
    Buffer map_offsets
    Buffer body
    Texts names
    Texts values


cdef void drop_columns(Columns *c) noexcept:
    cdef int k
    for k in range(18):
        drop_buffer(&c.texts[k].text)
    drop_buffer(&c.body)
    drop_texts(&c.names)
    drop_texts(&c.values)


cdef inline int put_optional(Texts *t, Buffer *valid, Py_ssize_t i, const uint8_t *p, int32_t n) except -1 nogil:
    if p == NULL:
        (<int32_t *> (t.offsets.p + t.offsets.used))[0] = <int32_t> t.text.used     # settled, so there is room
        t.offsets.used += 4
        return 0
    valid.p[i >> 3] |= <uint8_t> (1 << (i & 7))
    return put_text(t, p, n)


cdef int64_t fill_columns(Columns *c, const Hits *hits, bint large) except -2 nogil:
    """Copy every record, one after the other: how many were whole."""
    cdef int32_t *queue_id = <int32_t *> c.numbers[<int> QUEUE_ID]
    cdef int64_t *queue_offset = <int64_t *> c.numbers[<int> QUEUE_OFFSET]
    cdef int64_t *physical_offset = <int64_t *> c.numbers[<int> PHYSICAL_OFFSET]
    cdef int32_t *size = <int32_t *> c.numbers[<int> SIZE]
    cdef int32_t *flag = <int32_t *> c.numbers[<int> FLAG]
    cdef int32_t *sys_flag = <int32_t *> c.numbers[<int> SYS_FLAG]
    cdef int64_t *born_timestamp = <int64_t *> c.numbers[<int> BORN_TIMESTAMP]
    cdef int64_t *store_timestamp = <int64_t *> c.numbers[<int> STORE_TIMESTAMP]
    cdef int32_t *reconsume_times = <int32_t *> c.numbers[<int> RECONSUME_TIMES]
    cdef int64_t *prepared = <int64_t *> c.numbers[<int> PREPARED]
    cdef int32_t *body_crc = <int32_t *> c.numbers[<int> BODY_CRC]
    cdef int32_t *map_offsets = <int32_t *> c.map_offsets.p
    cdef Py_ssize_t i, count = hits.count
    cdef const uint8_t *p
    cdef Record r
    cdef PropertyRefs f
    cdef const uint8_t *born = NULL
    cdef const uint8_t *store = NULL
    cdef const uint8_t *topic = NULL
    cdef int32_t born_bytes = 0, store_bytes = 0, topic_bytes = 0
    cdef int64_t more_topics = 0, more_borns = 0, more_stores = 0   # of the same as the last one, not yet in their columns
    cdef Py_ssize_t done = count
    for i in range(count):
        p = hits.at[i].record
        if i + 8 < count:       # get has only seen its head and its tail; most are as long as this one
            mq_fetch_to_read(hits.at[i + 8].record, mq_get32(p))
        if parse_record(p, mq_get32(p), &r) != REC_OK:      # what is made of its fields agrees even if the file changes
            done = i
            break
        queue_id[i] = r.queue_id
        queue_offset[i] = hits.at[i].queue_offset
        physical_offset[i] = r.physical_offset
        size[i] = r.total
        flag[i] = r.flag
        sys_flag[i] = r.sys_flag
        born_timestamp[i] = r.born_timestamp
        store_timestamp[i] = r.store_timestamp
        reconsume_times[i] = r.reconsume_times
        prepared[i] = r.prepared_offset
        body_crc[i] = r.body_crc
        if same_bytes(topic, topic_bytes, r.topic, r.topic_bytes):
            more_topics += 1
        else:
            put_again_times(&c.texts[<int> TOPIC], &more_topics)
            topic, topic_bytes = r.topic, r.topic_bytes
            put_text(&c.texts[<int> TOPIC], topic, topic_bytes)
        if same_bytes(born, born_bytes, r.born_host, r.born_host_bytes):
            more_borns += 1
        else:
            put_again_times(&c.texts[<int> BORN_HOST], &more_borns)
            born, born_bytes = r.born_host, r.born_host_bytes
            put_new_host(&c.texts[<int> BORN_HOST], born, born_bytes)
        if same_bytes(store, store_bytes, r.store_host, r.store_host_bytes):
            more_stores += 1
        else:
            put_again_times(&c.texts[<int> STORE_HOST], &more_stores)
            store, store_bytes = r.store_host, r.store_host_bytes
            put_new_host(&c.texts[<int> STORE_HOST], store, store_bytes)
        if r.properties_bytes:
            find_properties(r.properties, r.properties_bytes, &f)
            put_properties(r.properties, r.properties_bytes, &c.names, &c.values)
        else:
            f.tags = f.keys = NULL
        put_optional(&c.texts[<int> TAGS], &c.valid_tags, i, f.tags, f.tags_bytes)
        put_optional(&c.texts[<int> KEYS], &c.valid_keys, i, f.keys, f.keys_bytes)
        map_offsets[i + 1] = <int32_t> ((c.names.offsets.used >> 2) - 1)
        if not large and c.body.used + r.body_bytes > 0x7FFFFFFF:
            return bodies_too_long()
        reserve(&c.body, r.body_bytes)
        memcpy(c.body.p + c.body.used, r.body, r.body_bytes)
        c.body.used += r.body_bytes
        if large:
            (<int64_t *> c.body_offsets.p)[i + 1] = c.body.used
        else:
            (<int32_t *> c.body_offsets.p)[i + 1] = <int32_t> c.body.used
    put_again_times(&c.texts[<int> TOPIC], &more_topics)
    put_again_times(&c.texts[<int> BORN_HOST], &more_borns)
    put_again_times(&c.texts[<int> STORE_HOST], &more_stores)
    c.map_offsets.used = (done + 1) * 4
    c.body_offsets.used = (done + 1) * (8 if large else 4)
    return done


cdef int64_t bodies_too_long() except -2 nogil:
    with gil:
        raise UsageError("the bodies exceed 2 GiB: ask for fewer bytes at a time, or request large_binary for them")


cdef enum:
    NODES = COLUMNS + 4     # the batch, and the entries of the map with their keys and values
    IN_TREE = 20            # columns of known size: 11 of numbers, offsets of 5 texts, of bodies and maps, valid tags and keys


cdef Tree *begin_columns(Columns *c, const Hits *hits, bint large) except NULL:
    """Room for what is known beforehand; all of it in the tree, but for the bodies."""
    cdef int64_t count = hits.count, offsets = (count + 1) * 4, bits = (count + 7) // 8
    cdef Tree *tree = new_tree(NODES, IN_TREE, count * (6 * 4 + 5 * 8) + 6 * offsets + (2 if large else 1) * offsets + 2 * bits)
    cdef int k
    if tree == NULL:
        raise MemoryError()
    try:
        for k in (TOPIC, BORN_HOST, STORE_HOST):
            reserve(&c.texts[k].text, count * 16)       # what most of them take, so that few grow
        for k in (TOPIC, BORN_HOST, STORE_HOST, TAGS, KEYS):
            reserve_in_tree(&c.texts[k].offsets, tree, offsets)
            begin_texts(&c.texts[k])
        for k in (QUEUE_ID, SIZE, FLAG, SYS_FLAG, RECONSUME_TIMES, BODY_CRC):
            c.numbers[k] = take(tree, count * 4)
        for k in (QUEUE_OFFSET, PHYSICAL_OFFSET, BORN_TIMESTAMP, STORE_TIMESTAMP, PREPARED):
            c.numbers[k] = take(tree, count * 8)
        begin_texts(&c.names)
        begin_texts(&c.values)
        reserve_in_tree(&c.map_offsets, tree, offsets)
        put32(&c.map_offsets, 0)
        reserve_in_tree(&c.valid_tags, tree, bits)
        memset(c.valid_tags.p, 0, bits)
        reserve_in_tree(&c.valid_keys, tree, bits)
        memset(c.valid_keys.p, 0, bits)
        reserve_in_tree(&c.body_offsets, tree, offsets * 2 if large else offsets)
        if large:
            put64(&c.body_offsets, 0)
        else:
            put32(&c.body_offsets, 0)
        reserve(&c.body, max(hits.total_bytes - count * 91, 0))       # a record is its body and 91 bytes at least
    except BaseException:
        free(tree)
        raise
    return tree


cdef void give_columns(Columns *c, Tree *tree, ArrowArray *batch, int64_t count) noexcept:
    """Make the batch out of the columns; it owns the tree."""
    cdef int k
    cdef ArrowArray *child
    cdef Buffer *valid
    make_node(tree, batch, count, 1, COLUMNS)
    for k in range(COLUMNS):
        child = batch.children[k]
        if k == PROPERTIES:
            make_node(tree, child, count, 2, 1)
            child.buffers[1] = give(&c.map_offsets)
            child = child.children[0]
            make_node(tree, child, c.names.offsets.used // 4 - 1, 1, 2)
            make_node(tree, child.children[0], child.length, 3, 0)
            child.children[0].buffers[1] = give(&c.names.offsets)
            child.children[0].buffers[2] = give(&c.names.text)
            make_node(tree, child.children[1], child.length, 3, 0)
            child.children[1].buffers[1] = give(&c.values.offsets)
            child.children[1].buffers[2] = give(&c.values.text)
            continue
        make_node(tree, child, count, 2 if c.numbers[k] != NULL else 3, 0)
        if k == BODY:
            child.buffers[1] = give(&c.body_offsets)
            child.buffers[2] = give(&c.body)
        elif c.numbers[k] != NULL:
            child.buffers[1] = c.numbers[k]
        else:
            child.buffers[1] = give(&c.texts[k].offsets)
            child.buffers[2] = give(&c.texts[k].text)
            if k == TAGS or k == KEYS:
                valid = &c.valid_tags if k == TAGS else &c.valid_keys
                child.null_count = nulls(valid.p, count)
                child.buffers[0] = give(valid)


cdef int fill_batch(ArrowArray *batch, const Hits *hits, list pins, bint large) except -1:
    """Copy the messages into a new batch."""
    cdef Columns c
    cdef Tree *tree = NULL
    cdef int64_t whole
    memset(&c, 0, sizeof(Columns))
    try:
        tree = begin_columns(&c, hits, large)
        with nogil:
            whole = fill_columns(&c, hits, large)
        if whole < hits.count:
            raise not_whole(pins, hits.at[whole].record)
        check_pins(pins)
        give_columns(&c, tree, batch, hits.count)
        tree = NULL
    finally:
        drop_columns(&c)
        free(tree)
    return 0


cdef object schema_capsule(bint large):
    cdef ArrowSchema *schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError()
    if fill_schema(schema, large) < 0:
        free(schema)
        raise MemoryError()
    return new_schema_capsule(schema)


cdef object arrow_schema():
    """A capsule ``arrow_schema``: the columns that a batch of messages has."""
    return schema_capsule(False)


cdef tuple arrow_array(const Hits *hits, list pins, object requested_schema):
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
        fill_batch(batch, hits, pins, large)
    except BaseException:
        free(batch)
        raise
    return schema, new_array_capsule(batch)


cdef class Schema:
    """The columns of a batch, for pyarrow.schema."""

    def __arrow_c_schema__(self):
        return schema_capsule(False)


cdef object import_batch = None, batch_schema = None    # of pyarrow, when its first batch is asked for


cdef object record_batch(const Hits *hits, list pins):
    """All messages as a pyarrow.RecordBatch, with one schema for all batches: pyarrow takes longer for a schema than for what it describes.

    Raises: ImportError without pyarrow; otherwise as arrow_array.
    """
    global import_batch, batch_schema
    cdef ArrowArray batch
    if batch_schema is None:
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("to_arrow() needs pyarrow (pip install pyarrow)") from error
        import_batch, batch_schema = pyarrow.RecordBatch._import_from_c, pyarrow.schema(Schema())
    fill_batch(&batch, hits, pins, False)
    try:
        return import_batch(<size_t> &batch, batch_schema)     # takes the batch over, also when it fails later
    finally:
        if batch.release != NULL:
            batch.release(&batch)


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


cdef object arrow_stream(const Hits *hits, list pins, object requested_schema):
    """A capsule ``arrow_array_stream`` of one batch; otherwise as arrow_array. The messages are copied now, not when it is read."""
    cdef ArrowArrayStream *stream
    cdef Pending *pending = <Pending *> calloc(1, sizeof(Pending))
    if pending == NULL:
        raise MemoryError()
    try:
        pending.large = wants_large(requested_schema)
        fill_batch(&pending.batch, hits, pins, pending.large)
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
    return new_stream_capsule(stream)
