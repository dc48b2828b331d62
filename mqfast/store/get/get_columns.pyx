"""Hits of a get as columns: a numpy array of the fixed fields, and the Arrow C data interface.

Everything is copied, so that columns stay valid after the result, the store and the files are gone. Every length is
checked against the record, text is always valid UTF-8, and the Arrow interface needs no pyarrow. numpy is imported for
an array, pyarrow for a pyarrow batch, and nowhere else. The C structs and their rules:
https://arrow.apache.org/docs/format/CDataInterface.html (and CStreamInterface, PyCapsule interface). The layout of a
record: FORMAT.md.

record/record_columns.pyx fills the columns; record/arrow.pyx owns the C structs.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcmp
from mqfast.store.record.arrow cimport (
    ArrowArray,
    ArrowArrayStream,
    ArrowSchema,
    Texts,
    Tree,
    new_array_capsule,
    new_schema_capsule,
    new_stream_capsule,
    put_again_times,
    put_new_host,
    put_properties,
    put_text,
    reserve,
    same_bytes,
)
from mqfast.store.record.record_columns cimport (
    BODY,
    BODY_CRC,
    BORN_HOST,
    BORN_TIMESTAMP,
    FLAG,
    KEYS,
    PHYSICAL_OFFSET,
    PREPARED,
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    STORE_HOST,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TAGS,
    TOPIC,
    FIELDS,
    Column,
    Field,
    begin_column,
    bodies_too_long,
    drop_column,
    fill_schema,
    give_columns,
    new_batch_tree,
    put_in_tree,
)
from mqfast.store.base.os_api cimport mq_fetch_to_read, mq_get32, mq_get64
from mqfast.store.get.hits cimport Hits, check_pins
from mqfast.store.record.record cimport MAGIC_V2, REC_OK, PropertyRefs, Record, find_properties, parse_record

from mqfast.errors import CorruptFile, UsageError

FIXED_FIELDS = (
    ("queue_offset", "i8"),                 # queue offset of the unit
    ("physical_offset", "i8"),              # byte in the whole log
    ("record_queue_offset", "i8"),          # in the record: differs for light queues and diverged queues
    ("born_timestamp", "i8"),               # ms since the epoch
    ("store_timestamp", "i8"),              # ms since the epoch
    ("prepared_transaction_offset", "i8"),
    ("size", "i4"),                         # of the whole record, bytes
    ("queue_id", "i4"),                     # in the record
    ("flag", "i4"),
    ("sys_flag", "i4"),
    ("body_crc", "i4"),                     # 31 bits
    ("reconsume_times", "i4"),
    ("body_bytes", "i4"),                   # as stored, may be compressed
    ("topic_bytes", "i4"),
    ("properties_bytes", "i4"),
    ("version", "i4"),                      # 1 or 2: width of the topic length
)

cdef packed struct Row:                     # a row of FIXED_FIELDS
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


cdef object numpy_array = None, numpy_empty = None, plain_bytes = None, fixed_dtype = None  # made for the first array


cdef object not_whole(list pins, const uint8_t *p):
    check_pins(pins)
    return CorruptFile("not a whole record", offset=mq_get64(p + 28))


cdef object fixed_fields(const Hits *hits, list pins):
    """Return the fixed fields of every message: a structured array of shape (hits.count,), fields as in FIXED_FIELDS,
    native byte order.

    Raises: CorruptFile if a record is not whole.
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
    # numpy checks each field when it allocates an array of this dtype, and again when it shows the array: bytes take a
    # third of that time
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


# --- Arrow: the content of a stream ----------------------------------------------------------------------------------

cdef struct Pending:                        # of a stream: the batch until it is taken
    ArrowArray batch
    bint large

cdef int ENOMEM_ = 12


# --- Arrow: the batch ------------------------------------------------------------------------------------------------

cdef enum:
    COUNT = 18              # columns of a batch

cdef Field[18] columns_of_a_batch = [
    TOPIC, QUEUE_ID, QUEUE_OFFSET, PHYSICAL_OFFSET, SIZE, FLAG, SYS_FLAG, BORN_TIMESTAMP, STORE_TIMESTAMP, BORN_HOST,
    STORE_HOST,
    RECONSUME_TIMES, PREPARED, BODY_CRC, BODY, TAGS, KEYS, PROPERTIES,
]


cdef void set_columns(Column *columns, bint large) noexcept nogil:
    cdef int k
    memset(columns, 0, COUNT * sizeof(Column))
    for k in range(COUNT):
        columns[k].field = columns_of_a_batch[k]
        columns[k].large = large and columns_of_a_batch[k] == BODY


cdef int batch_schema_of(ArrowSchema *schema, bint large) noexcept nogil:
    """Make the schema of a batch. Returns 0, or -1 without memory (nothing is kept then)."""
    cdef Column columns[COUNT]
    set_columns(columns, large)
    return fill_schema(schema, columns, COUNT, NULL)


cdef bint wants_large(object requested_schema) except -1:
    """Return True if the caller requests bodies as large_binary. All other requests are left to the caller, as Arrow
    allows.
    """
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


cdef int begin_columns(Column *columns, Tree *tree, const Hits *hits) except -1:
    """Reserve room for all columns of known size, in the tree, and for the texts."""
    cdef int k
    for k in range(COUNT):
        put_in_tree(&columns[k], tree, hits.count)
        begin_column(&columns[k])
        if columns[k].field in (TOPIC, BORN_HOST, STORE_HOST):
            reserve(&columns[k].texts.text, hits.count * 16)        # the usual size, so that few columns grow
        elif columns[k].field == BODY:
            # a record is its body and at least 91 bytes
            reserve(&columns[k].texts.text, max(hits.total_bytes - hits.count * 91, 0))
    return 0


cdef inline int put_optional(Column *c, Py_ssize_t i, const uint8_t *p, int32_t n) except -1 nogil:
    cdef Texts *t = &c.texts
    if p == NULL:
        (<int32_t *> (t.offsets.p + t.offsets.used))[0] = <int32_t> t.text.used     # in the tree, so there is room
        t.offsets.used += 4
        return 0
    c.valid.p[i >> 3] |= <uint8_t> (1 << (i & 7))
    return put_text(t, p, n)


cdef Py_ssize_t fill_columns(Column **c, const Hits *hits) except -2 nogil:
    """Copy every record, in order. Returns: the number of whole records.

    Not column by column, as gather.pyx does with fill_column: all columns are needed here, and each record is read
    once. Batches of 1,000 take 109 ns a message this way, 132 the other way. c: the columns by Field.
    """
    cdef int32_t *queue_id = <int32_t *> c[<int> QUEUE_ID].numbers.p
    cdef int64_t *queue_offset = <int64_t *> c[<int> QUEUE_OFFSET].numbers.p
    cdef int64_t *physical_offset = <int64_t *> c[<int> PHYSICAL_OFFSET].numbers.p
    cdef int32_t *size = <int32_t *> c[<int> SIZE].numbers.p
    cdef int32_t *flag = <int32_t *> c[<int> FLAG].numbers.p
    cdef int32_t *sys_flag = <int32_t *> c[<int> SYS_FLAG].numbers.p
    cdef int64_t *born_timestamp = <int64_t *> c[<int> BORN_TIMESTAMP].numbers.p
    cdef int64_t *store_timestamp = <int64_t *> c[<int> STORE_TIMESTAMP].numbers.p
    cdef int32_t *reconsume_times = <int32_t *> c[<int> RECONSUME_TIMES].numbers.p
    cdef int64_t *prepared = <int64_t *> c[<int> PREPARED].numbers.p
    cdef int32_t *body_crc = <int32_t *> c[<int> BODY_CRC].numbers.p
    cdef int32_t *map_offsets = <int32_t *> c[<int> PROPERTIES].numbers.p
    cdef Texts *topics = &c[<int> TOPIC].texts
    cdef Texts *borns = &c[<int> BORN_HOST].texts
    cdef Texts *stores = &c[<int> STORE_HOST].texts
    cdef Texts *bodies = &c[<int> BODY].texts
    cdef Texts *names = &c[<int> PROPERTIES].texts
    cdef Texts *values = &c[<int> PROPERTIES].values
    cdef bint large = c[<int> BODY].large
    cdef Py_ssize_t i, count = hits.count
    cdef const uint8_t *p
    cdef Record r
    cdef PropertyRefs f
    cdef const uint8_t *born = NULL
    cdef const uint8_t *store = NULL
    cdef const uint8_t *topic = NULL
    cdef int32_t born_bytes = 0, store_bytes = 0, topic_bytes = 0
    # equal to the previous value, not yet in their columns
    cdef int64_t more_topics = 0, more_borns = 0, more_stores = 0
    cdef Py_ssize_t done = count
    for i in range(count):
        p = hits.at[i].record
        if i + 8 < count:  # get has read only the head and the tail of the record; most records have a similar length
            mq_fetch_to_read(hits.at[i + 8].record, mq_get32(p))
        if parse_record(p, mq_get32(p), &r) != REC_OK:      # the parsed fields agree even if the file changes
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
            put_again_times(topics, &more_topics)
            topic, topic_bytes = r.topic, r.topic_bytes
            put_text(topics, topic, topic_bytes)
        if same_bytes(born, born_bytes, r.born_host, r.born_host_bytes):
            more_borns += 1
        else:
            put_again_times(borns, &more_borns)
            born, born_bytes = r.born_host, r.born_host_bytes
            put_new_host(borns, born, born_bytes)
        if same_bytes(store, store_bytes, r.store_host, r.store_host_bytes):
            more_stores += 1
        else:
            put_again_times(stores, &more_stores)
            store, store_bytes = r.store_host, r.store_host_bytes
            put_new_host(stores, store, store_bytes)
        if r.properties_bytes:
            find_properties(r.properties, r.properties_bytes, &f)
            put_properties(r.properties, r.properties_bytes, names, values)
        else:
            f.tags = f.keys = NULL
        put_optional(c[<int> TAGS], i, f.tags, f.tags_bytes)
        put_optional(c[<int> KEYS], i, f.keys, f.keys_bytes)
        map_offsets[i + 1] = <int32_t> ((names.offsets.used >> 2) - 1)
        if not large and bodies.text.used + r.body_bytes > 0x7FFFFFFF:
            return bodies_too_long()
        reserve(&bodies.text, r.body_bytes)
        memcpy(bodies.text.p + bodies.text.used, r.body, r.body_bytes)
        bodies.text.used += r.body_bytes
        if large:
            (<int64_t *> bodies.offsets.p)[i + 1] = bodies.text.used
        else:
            (<int32_t *> bodies.offsets.p)[i + 1] = <int32_t> bodies.text.used
    put_again_times(topics, &more_topics)
    put_again_times(borns, &more_borns)
    put_again_times(stores, &more_stores)
    return done


cdef int fill_batch(ArrowArray *batch, const Hits *hits, list pins, bint large) except -1:
    """Copy the messages into a new batch."""
    cdef Column columns[COUNT]
    cdef Column *by_field[FIELDS]
    cdef Tree *tree
    cdef Py_ssize_t whole
    cdef int k
    set_columns(columns, large)
    for k in range(COUNT):
        by_field[columns[k].field] = &columns[k]
    tree = new_batch_tree(columns, COUNT, hits.count)
    if tree == NULL:
        raise MemoryError()
    try:
        begin_columns(columns, tree, hits)
        with nogil:
            whole = fill_columns(by_field, hits)
        if whole < hits.count:
            raise not_whole(pins, hits.at[whole].record)
        check_pins(pins)
        give_columns(columns, COUNT, tree, batch, hits.count)
        tree = NULL
    finally:
        for k in range(COUNT):
            drop_column(&columns[k])
        free(tree)
    return 0


cdef object schema_capsule(bint large):
    cdef ArrowSchema *schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError()
    if batch_schema_of(schema, large) < 0:
        free(schema)
        raise MemoryError()
    return new_schema_capsule(schema)


cdef object arrow_schema():
    """Return a capsule ``arrow_schema``: the columns of a batch of messages."""
    return schema_capsule(False)


cdef tuple arrow_array(const Hits *hits, list pins, object requested_schema):
    """Return capsules ``arrow_schema`` and ``arrow_array``: all messages as a struct array (a record batch).

    Args: ``requested_schema``: a capsule; if it requests large_binary, bodies have that type; all else is left to the
    consumer.
    Raises: CorruptFile if a record is not whole; UsageError if bodies or a text column exceed 2 GiB.
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


cdef object import_batch = None, batch_schema = None    # of pyarrow, set for the first batch


cdef object record_batch(const Hits *hits, list pins):
    """Return all messages as a pyarrow.RecordBatch. All batches share a schema: pyarrow takes longer for a schema than
    for the data.

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
        return import_batch(<size_t> &batch, batch_schema)     # takes the batch over, also if it fails later
    finally:
        if batch.release != NULL:
            batch.release(&batch)


# --- Arrow: a stream of a single batch -------------------------------------------------------------------------------

cdef int stream_schema(ArrowArrayStream *stream, ArrowSchema *out) noexcept nogil:
    return ENOMEM_ if batch_schema_of(out, (<Pending *> stream.private_data).large) < 0 else 0


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
    """Return a capsule ``arrow_array_stream`` of a single batch; otherwise as arrow_array. The messages are copied now,
    not at the read of the stream.
    """
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
