"""Fields of many records as Arrow columns, for results of a get and for scans.

The definition of a column, its growth, its schema, and the batch of columns. A scan fills chosen columns block by block
(fill_column); a result of a get fills all of its columns in a single pass, with the same buffers (get/get_columns.pyx).
Every length is checked against the record, text is always valid UTF-8, and no pointer to a record is kept after a call.
The Arrow structs and their owners: arrow.pyx. The layout of a record: FORMAT.md.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset
from mqfast.store.record.arrow cimport (
    NULLABLE,
    ArrowArray,
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
    new_tree,
    nulls,
    put32,
    put64,
    put_again_times,
    put_new_host,
    put_properties,
    put_raw,
    put_text,
    release_schema,
    reserve,
    reserve_in_tree,
    same_bytes,
)
from mqfast.store.record.record cimport PropertyRefs, Record

from mqfast.errors import UsageError

# By Field: the names of the columns, in the order of a record's fields.
COLUMNS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "body_size", "born_timestamp", "store_timestamp",
    "born_host", "store_host",
    "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", "body_crc", "tags", "keys", "uniq_key",
    "message_id", "properties", "raw_properties", "body", "crc_ok",
)

cdef list _names = [name.encode("ascii") for name in COLUMNS]     # owner of the memory that `names` points into
cdef const char *names[23]
for _i, _name in enumerate(_names):
    names[_i] = <const char *> <bytes> _name


cdef inline bint is_int32(int field) noexcept nogil:
    return field in (QUEUE_ID, SIZE, BODY_SIZE, FLAG, SYS_FLAG, RECONSUME_TIMES, BODY_CRC)


cdef inline bint is_time(int field) noexcept nogil:
    return field == BORN_TIMESTAMP or field == STORE_TIMESTAMP


cdef inline bint is_int64(int field) noexcept nogil:
    return field in (QUEUE_OFFSET, PHYSICAL_OFFSET, PREPARED) or is_time(field)


cdef bint needs_properties(int field) noexcept nogil:
    """Return True if the column needs `found` of each record. Only these may be missing in a record."""
    return field in (TAGS, KEYS, UNIQ_KEY)


cdef inline bint is_text(int field) noexcept nogil:
    return needs_properties(field) or field in (TOPIC, BORN_HOST, STORE_HOST, MESSAGE_ID, RAW_PROPERTIES, BODY)


# --- room ------------------------------------------------------------------------------------------------------------

cdef int begin_column(Column *c) except -1 nogil:
    """Make an empty column, sized by the previous batch."""
    c.host_bytes = 0
    if c.text_bytes:
        reserve(&c.texts.text, c.text_bytes + c.text_bytes // 8)
    if c.field == PROPERTIES:
        put32(&c.numbers, 0)
        begin_texts(&c.texts)
        begin_texts(&c.values)
    elif c.large:
        put64(&c.texts.offsets, 0)
        reserve(&c.texts.text, 0)
    elif is_text(c.field):
        begin_texts(&c.texts)
    return 0


cdef int64_t _row_bytes(const Column *c) noexcept nogil:
    """Return the fixed bytes of each row, without texts; a bit counts as a byte."""
    if c.field == CRC_OK:
        return 1
    return (8 if is_int64(c.field) or c.large else 4) + (1 if needs_properties(c.field) else 0)


cdef void put_in_tree(Column *c, Tree *tree, int64_t rows) noexcept nogil:
    """Reserve room in the tree for the data of fixed size, before begin_column. No further rows are added."""
    cdef int64_t bits = (rows + 7) // 8
    c.in_tree = True
    if c.field == PROPERTIES:
        reserve_in_tree(&c.numbers, tree, 4 * (rows + 1))
    elif is_text(c.field):
        reserve_in_tree(&c.texts.offsets, tree, (8 if c.large else 4) * (rows + 1))
        if needs_properties(c.field):
            reserve_in_tree(&c.valid, tree, bits)
            memset(c.valid.p, 0, bits)
    else:
        reserve_in_tree(&c.numbers, tree, bits if c.field == CRC_OK else rows * (8 if is_int64(c.field) else 4))


cdef int64_t filled_bytes(const Column *c) noexcept nogil:
    return c.numbers.used + c.texts.offsets.used + c.texts.text.used + c.values.offsets.used + c.values.text.used


cdef void drop_column(Column *c) noexcept nogil:
    """Free the buffers that were not given away; the tree stays."""
    if c.in_tree:
        c.numbers.p = c.valid.p = NULL
        if c.field != PROPERTIES:
            c.texts.offsets.p = NULL
    drop_buffer(&c.numbers)
    drop_buffer(&c.valid)
    drop_texts(&c.texts)
    drop_texts(&c.values)


# --- filling ---------------------------------------------------------------------------------------------------------

cdef inline int64_t _micros(int64_t ms) noexcept nogil:
    # A damaged record may hold any number.
    if ms > <int64_t> 9223372036854775:
        return <int64_t> 9223372036854775807
    if ms < -<int64_t> 9223372036854775:
        return -<int64_t> 9223372036854775807
    return ms * 1000


cdef inline int _put_bit(Buffer *b, int64_t row, bint bit) except -1 nogil:
    if row & 7 == 0:
        reserve(b, 1)
        b.p[b.used] = 0
        b.used += 1
    if bit:
        b.p[row >> 3] |= <uint8_t> (1 << (row & 7))
    return 0


cdef inline int _put_optional(Column *c, int64_t row, const uint8_t *p, int32_t n) except -1 nogil:
    _put_bit(&c.valid, row, p != NULL)
    if p == NULL:
        return put32(&c.texts.offsets, <int32_t> c.texts.text.used)
    return put_text(&c.texts, p, n)


cdef int _put_message_id(Texts *t, const Record *r) except -1 nogil:
    """Append store host and physical offset, in upper-case hexadecimal digits."""
    cdef const char *digits = "0123456789ABCDEF"
    cdef uint8_t text[56]
    cdef int i, n = r.store_host_bytes
    cdef uint8_t byte
    for i in range(n + 8):
        byte = r.store_host[i] if i < n else <uint8_t> (<uint64_t> r.physical_offset >> (56 - 8 * (i - n)))
        text[2 * i] = digits[byte >> 4]
        text[2 * i + 1] = digits[byte & 15]
    return put_raw(t, text, 2 * (n + 8))


cdef int bodies_too_long() except -1 nogil:
    with gil:
        raise UsageError("the bodies of one batch exceed 2 GiB: ask for fewer bytes at a time; a result of a get also "
                         "has them as large_binary")


cdef int _put_bodies(Column *c, const Record *records, int n) except -1 nogil:
    cdef Texts *t = &c.texts
    cdef int64_t total = 0, width = 8 if c.large else 4, end
    cdef uint8_t *to
    cdef int i
    for i in range(n):
        total += records[i].body_bytes
    if t.text.used + total > 0x7FFFFFFF and not c.large:
        return bodies_too_long()
    reserve(&t.text, total)
    reserve(&t.offsets, width * n)
    to = t.text.p + t.text.used
    for i in range(n):
        memcpy(to, records[i].body, records[i].body_bytes)
        to += records[i].body_bytes
        end = to - t.text.p
        if width == 8:
            (<int64_t *> (t.offsets.p + t.offsets.used))[i] = end
        else:
            (<int32_t *> (t.offsets.p + t.offsets.used))[i] = <int32_t> end
    t.text.used += total
    t.offsets.used += width * n
    return 0


cdef int _put_topics(Texts *t, const Record *r, int n) except -1 nogil:
    """Append the topics. Most are equal: equal neighbours are counted and put together."""
    cdef const uint8_t *last = NULL
    cdef int32_t last_bytes = 0
    cdef int64_t more = 0
    cdef int i
    for i in range(n):
        if same_bytes(last, last_bytes, r[i].topic, r[i].topic_bytes):
            more += 1
            continue
        put_again_times(t, &more)
        last, last_bytes = r[i].topic, r[i].topic_bytes
        put_text(t, last, last_bytes)
    return put_again_times(t, &more)


cdef int _put_hosts(Column *c, const Record *r, int n) except -1 nogil:
    """Append the hosts, equal neighbours together. The text of a host takes the GIL, so the last host of the previous
    block counts as well.
    """
    cdef const uint8_t *p
    cdef int32_t p_bytes
    cdef int64_t more = 0
    cdef int i
    for i in range(n):
        if c.field == BORN_HOST:
            p, p_bytes = r[i].born_host, r[i].born_host_bytes
        else:
            p, p_bytes = r[i].store_host, r[i].store_host_bytes
        if c.host_bytes and same_bytes(c.host, c.host_bytes, p, p_bytes):
            more += 1
            continue
        put_again_times(&c.texts, &more)
        c.host_bytes = p_bytes              # 8 or 20
        memcpy(c.host, p, p_bytes)
        put_new_host(&c.texts, p, p_bytes)
    return put_again_times(&c.texts, &more)


cdef inline void _copy32(int32_t *to, const int32_t *first, int n) noexcept nogil:
    """Copy a field of n adjacent records."""
    cdef int i
    for i in range(n):
        to[i] = first[i * (sizeof(Record) // 4)]


cdef inline void _copy64(int64_t *to, const int64_t *first, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        to[i] = first[i * (sizeof(Record) // 8)]


cdef int _put32s(Buffer *b, const int32_t *first, int n) except -1 nogil:
    reserve(b, 4 * <int64_t> n)
    _copy32(<int32_t *> (b.p + b.used), first, n)
    b.used += 4 * <int64_t> n
    return 0


cdef int _put64s(Buffer *b, const int64_t *first, int n, bint micros) except -1 nogil:
    cdef int64_t *to
    cdef int i
    reserve(b, 8 * <int64_t> n)
    to = <int64_t *> (b.p + b.used)
    _copy64(to, first, n)
    if micros:
        for i in range(n):
            to[i] = _micros(to[i])
    b.used += 8 * <int64_t> n
    return 0


cdef int fill_column(Column *c, const Record *r, const PropertyRefs *found, const uint8_t *crc_ok, int n,
                     int64_t row) except -1 nogil:
    """Put a field of n records behind `row` rows. Each record was parsed.

    Raises: UsageError if the column exceeds 2 GiB, MemoryError; the column holds some of the rows then.
    """
    cdef int i, field = c.field
    if n == 0:
        return 0
    if field == QUEUE_ID:
        return _put32s(&c.numbers, &r.queue_id, n)
    if field == SIZE:
        return _put32s(&c.numbers, &r.total, n)
    if field == BODY_SIZE:
        return _put32s(&c.numbers, &r.body_bytes, n)
    if field == FLAG:
        return _put32s(&c.numbers, &r.flag, n)
    if field == SYS_FLAG:
        return _put32s(&c.numbers, &r.sys_flag, n)
    if field == RECONSUME_TIMES:
        return _put32s(&c.numbers, &r.reconsume_times, n)
    if field == BODY_CRC:
        return _put32s(&c.numbers, &r.body_crc, n)
    if field == QUEUE_OFFSET:
        return _put64s(&c.numbers, &r.queue_offset, n, False)
    if field == PHYSICAL_OFFSET:
        return _put64s(&c.numbers, &r.physical_offset, n, False)
    if field == PREPARED:
        return _put64s(&c.numbers, &r.prepared_offset, n, False)
    if field == BORN_TIMESTAMP:
        return _put64s(&c.numbers, &r.born_timestamp, n, c.micros)
    if field == STORE_TIMESTAMP:
        return _put64s(&c.numbers, &r.store_timestamp, n, c.micros)
    if field == TOPIC:
        return _put_topics(&c.texts, r, n)
    if field == BORN_HOST or field == STORE_HOST:
        return _put_hosts(c, r, n)
    if field == BODY:
        return _put_bodies(c, r, n)
    if field == CRC_OK:
        for i in range(n):
            _put_bit(&c.numbers, row + i, crc_ok[i])
    elif field == TAGS:
        for i in range(n):
            _put_optional(c, row + i, found[i].tags, found[i].tags_bytes)
    elif field == KEYS:
        for i in range(n):
            _put_optional(c, row + i, found[i].keys, found[i].keys_bytes)
    elif field == UNIQ_KEY:
        for i in range(n):
            _put_optional(c, row + i, found[i].uniq_key, found[i].uniq_key_bytes)
    elif field == RAW_PROPERTIES:
        for i in range(n):
            put_text(&c.texts, r[i].properties, r[i].properties_bytes)
    elif field == PROPERTIES:
        for i in range(n):
            put_properties(r[i].properties, r[i].properties_bytes, &c.texts, &c.values)
            put32(&c.numbers, <int32_t> (c.texts.offsets.used // 4 - 1))
    else:
        for i in range(n):
            _put_message_id(&c.texts, &r[i])
    return 0


# --- Arrow -----------------------------------------------------------------------------------------------------------

cdef int64_t _nodes(const Column *columns, int count) noexcept nogil:
    """Return the number of nodes: the batch, its columns, and the entries of a map with their names and values."""
    cdef int64_t n = 1 + count
    cdef int i
    for i in range(count):
        if columns[i].field == PROPERTIES:
            n += 3
    return n


cdef Tree *new_batch_tree(const Column *columns, int count, int64_t rows) noexcept nogil:
    """Allocate memory for the nodes of a batch; with rows >= 0 also for the fixed data of so many rows in each column
    (put_in_tree). NULL without memory.
    """
    cdef int64_t room = 0
    cdef int i
    if rows >= 0:
        for i in range(count):
            room += (rows + 1) * _row_bytes(&columns[i])
    return new_tree(_nodes(columns, count), 0 if rows < 0 else 2 * count, room)


cdef void give_columns(Column *columns, int count, Tree *tree, ArrowArray *batch, int64_t rows) noexcept nogil:
    """Make the batch out of the columns, which are empty then; the batch owns the tree."""
    cdef int i
    cdef Column *c
    cdef ArrowArray *child
    make_node(tree, batch, rows, 1, count)
    for i in range(count):
        c = &columns[i]
        child = batch.children[i]
        if c.field == PROPERTIES:
            make_node(tree, child, rows, 2, 1)
            child.buffers[1] = give(&c.numbers)
            child = child.children[0]
            make_node(tree, child, c.texts.offsets.used // 4 - 1, 1, 2)
            make_node(tree, child.children[0], child.length, 3, 0)
            make_node(tree, child.children[1], child.length, 3, 0)
            child.children[0].buffers[1] = give(&c.texts.offsets)
            child.children[0].buffers[2] = give(&c.texts.text)
            child.children[1].buffers[1] = give(&c.values.offsets)
            child.children[1].buffers[2] = give(&c.values.text)
        elif is_text(c.field):
            make_node(tree, child, rows, 3, 0)
            child.buffers[1] = give(&c.texts.offsets)
            child.buffers[2] = give(&c.texts.text)
            if c.valid.p != NULL:
                child.null_count = nulls(c.valid.p, rows)
                child.buffers[0] = give(&c.valid)
        else:
            make_node(tree, child, rows, 2, 0)
            child.buffers[1] = give(&c.numbers)


cdef const char *_format(const Column *c) noexcept nogil:
    if is_int32(c.field):
        return "i"
    if is_time(c.field):
        return "tsu:UTC" if c.micros else "tsm:UTC"
    if is_int64(c.field):
        return "l"
    if c.field == CRC_OK:
        return "b"
    if c.field == BODY:
        return "Z" if c.large else "z"
    return "u"


cdef int fill_schema(ArrowSchema *schema, const Column *columns, int count, const char *shown) noexcept nogil:
    """Make the schema of a batch. Returns 0, or -1 without memory (nothing is kept then).

    shown: the names in the result, adjacent, each with a closing zero, in memory that outlives the schema; NULL: the
    names of COLUMNS.
    """
    cdef const char *name
    cdef int64_t flags
    cdef int i, rc
    if make_schema(schema, "+s", "", 0, count) < 0:
        return -1
    for i in range(count):
        name = names[columns[i].field] if shown == NULL else shown
        flags = NULLABLE if columns[i].nullable or needs_properties(columns[i].field) else 0
        if columns[i].field == PROPERTIES:
            rc = make_map_schema(schema.children[i], name, flags)
        else:
            rc = make_schema(schema.children[i], _format(&columns[i]), name, flags, 0)
        if rc < 0:
            release_schema(schema)
            return -1
        if shown != NULL:
            while shown[0]:
                shown += 1
            shown += 1
    return 0
