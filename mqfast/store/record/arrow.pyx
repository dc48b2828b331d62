"""Arrow's C data interface and the buffers of Arrow columns; for record_columns.pyx and get_columns.pyx.

Independent of records and results. Text is always valid UTF-8, and pyarrow is not needed. The C structs and their
rules: https://arrow.apache.org/docs/format/CDataInterface.html (and the PyCapsule interface).

Ownership, as in Arrow: every schema and array struct owns its own buffers and child structs (those of a tree are owned
by the last node), and frees them in the release callback. The callback may run without the GIL, from any thread, once.
A consumer may move a struct away (copy it and set release to NULL). A capsule that was not consumed releases its struct
at the end.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset
from mqfast.store.base.os_api cimport mq_add64

from mqfast.errors import UsageError
from mqfast.message import format_host
from mqfast.properties import decode as decode_properties

cdef extern from *:
    int bits_set "__builtin_popcountll"(uint64_t word) noexcept nogil


# --- structs ---------------------------------------------------------------------------------------------------------

cdef void release_schema(ArrowSchema *schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i] != NULL:
            if schema.children[i].release != NULL:
                schema.children[i].release(schema.children[i])
            free(schema.children[i])
    free(schema.children)
    schema.release = NULL


cdef int make_schema(ArrowSchema *schema, const char *format, const char *name, int64_t flags,
                     int64_t n_children) noexcept nogil:
    """Make a node with room for all children, all of them released; format and name must be literals. Returns 0, or -1
    without memory.
    """
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


cdef int make_map_schema(ArrowSchema *schema, const char *name, int64_t flags) noexcept nogil:
    """Make a map of text to text. Returns 0, or -1 without memory."""
    cdef ArrowSchema *child
    if make_schema(schema, "+m", name, flags, 1) < 0:
        return -1
    child = schema.children[0]
    if (make_schema(child, "+s", "entries", 0, 2) < 0 or make_schema(child.children[0], "u", "key", 0, 0) < 0
            or make_schema(child.children[1], "u", "value", NULLABLE, 0) < 0):
        release_schema(schema)
        return -1
    return 0


cdef enum:
    TREE_HEAD = 32      # sizeof(Tree), so that the next bytes are aligned
    NODE_MOST = 144     # an ArrowArray, its place in its parent's list, three buffers, and padding


cdef Tree *new_tree(int64_t nodes, int64_t columns, int64_t room) noexcept nogil:
    """Allocate memory for so many nodes of at most three buffers, and for so many columns of room bytes in all. NULL
    without memory.
    """
    cdef int64_t n = TREE_HEAD + nodes * NODE_MOST + columns * 15 + room
    cdef Tree *tree = <Tree *> malloc(n)
    if tree != NULL:
        tree.users = 0
        tree.bytes = n
        tree.used = TREE_HEAD
    return tree


cdef void release_node(ArrowArray *array) noexcept nogil:
    cdef Tree *tree = <Tree *> array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
    for i in range(array.n_buffers):
        if not <uint8_t *> tree <= <const uint8_t *> array.buffers[i] < <uint8_t *> tree + tree.bytes:
            free(<void *> array.buffers[i])
    array.release = NULL        # before the tree is freed: the node may be in it
    if mq_add64(&tree.users, -1) == 0:
        free(tree)


cdef void make_node(Tree *tree, ArrowArray *array, int64_t length, int64_t n_buffers,
                    int64_t n_children) noexcept nogil:
    """Make a node with NULL buffers and all children, all of them released; all but the node itself in the tree. A
    consumer may move the node away, and release the node after the others. A buffer outside the tree is freed with the
    node.
    """
    cdef ArrowArray *children
    cdef int64_t i
    memset(array, 0, sizeof(ArrowArray))
    array.length = length
    array.n_buffers = n_buffers
    array.buffers = <const void **> take(tree, n_buffers * sizeof(void *))
    for i in range(n_buffers):
        array.buffers[i] = NULL
    array.n_children = n_children
    if n_children:
        array.children = <ArrowArray **> take(tree, n_children * sizeof(ArrowArray *))
        children = <ArrowArray *> take(tree, n_children * sizeof(ArrowArray))
        for i in range(n_children):
            array.children[i] = &children[i]
            children[i].release = NULL
    array.private_data = tree
    array.release = release_node
    tree.users += 1


cdef int64_t nulls(const uint8_t *bits, int64_t n) noexcept nogil:
    cdef int64_t i = 0, count = n
    cdef uint64_t word
    while i + 64 <= n:
        memcpy(&word, bits + (i >> 3), 8)
        count -= bits_set(word)
        i += 64
    while i < n:
        count -= bits[i >> 3] >> (i & 7) & 1
        i += 1
    return count


# --- buffers ---------------------------------------------------------------------------------------------------------

cdef int grow(Buffer *b, int64_t n) except -1 nogil:
    cdef int64_t room = max(b.room * 2, b.used + n, 64)
    cdef uint8_t *grown = <uint8_t *> realloc(b.p, room)
    if grown == NULL:
        with gil:
            raise MemoryError()
    b.p = grown
    b.room = room
    return 0


cdef void drop_buffer(Buffer *b) noexcept nogil:
    free(b.p)
    b.p = NULL
    b.used = b.room = 0


cdef void drop_texts(Texts *t) noexcept nogil:
    drop_buffer(&t.offsets)
    drop_buffer(&t.text)


cdef bint is_utf8(const uint8_t *p, int64_t n) noexcept nogil:
    """Return True for well-formed UTF-8 by Unicode: no over-long forms, no surrogates, nothing above U+10FFFF."""
    cdef int64_t i = 0, need, k
    cdef uint64_t word
    cdef uint8_t c, low, high
    while i < n:
        while i + 8 <= n:
            memcpy(&word, p + i, 8)
            if word & <uint64_t> 0x8080808080808080:
                break
            i += 8
        if i >= n:
            break
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


cdef int begin_texts(Texts *t) except -1 nogil:
    put32(&t.offsets, 0)
    return reserve(&t.text, 0)


# Code that needs the interpreter is in separate functions: a function with such a part checks the GIL at every call.

cdef int too_long() except -1 nogil:
    with gil:
        raise UsageError("the text of one column exceeds 2 GiB: ask for fewer messages at a time")


cdef int put_bytes(Texts *t, bytes value) except -1:
    return put_raw(t, <const uint8_t *> <const char *> value, len(value))


cdef int put_text(Texts *t, const uint8_t *p, int64_t n) except -1 nogil:
    """Append a value; invalid UTF-8 becomes U+FFFD, as for every reader of a message."""
    return put_raw(t, p, n) if is_utf8(p, n) else put_mended(t, p, n)


cdef int put_mended(Texts *t, const uint8_t *p, int64_t n) except -1 nogil:
    with gil:
        return put_bytes(t, PyUnicode_DecodeUTF8(<const char *> p, n, "replace").encode("utf-8"))


cdef int put_new_host(Texts *t, const uint8_t *p, int32_t n) except -1 nogil:
    with gil:
        return put_bytes(t, format_host((<const char *> p)[:n]).encode("ascii"))


cdef int put_properties(const uint8_t *p, int32_t n, Texts *names, Texts *values) except -1 nogil:
    """Append all pairs as a map: of equal names the last value at the first position, none without a name or
    a value.
    """
    cdef const uint8_t *name[64]
    cdef const uint8_t *value[64]
    cdef int32_t name_bytes[64]
    cdef int32_t value_bytes[64]
    cdef const uint8_t *end = p + n
    cdef const uint8_t *at = p
    cdef const uint8_t *pair_end
    cdef const uint8_t *separator
    cdef int count = 0, k
    cdef bint plain
    if n == 0:
        return 0
    plain = is_utf8(p, n)
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
    return put_odd_properties(p, n, names, values)


cdef int put_odd_properties(const uint8_t *p, int32_t n, Texts *names, Texts *values) except -1 nogil:
    """Append many pairs, or bytes that are no text."""
    with gil:
        for name_text, value_text in decode_properties((<const char *> p)[:n]).items():
            put_bytes(names, name_text.encode("utf-8"))
            put_bytes(values, value_text.encode("utf-8"))
    return 0


# --- capsules -------------------------------------------------------------------------------------------------------

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


cdef object new_schema_capsule(ArrowSchema *schema):
    try:
        return PyCapsule_New(schema, "arrow_schema", drop_schema_capsule)
    except BaseException:
        schema.release(schema)
        free(schema)
        raise


cdef object new_array_capsule(ArrowArray *array):
    try:
        return PyCapsule_New(array, "arrow_array", drop_array_capsule)
    except BaseException:
        array.release(array)
        free(array)
        raise


cdef object new_stream_capsule(ArrowArrayStream *stream):
    try:
        return PyCapsule_New(stream, "arrow_array_stream", drop_stream_capsule)
    except BaseException:
        stream.release(stream)
        free(stream)
        raise
