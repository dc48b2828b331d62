# The C structs of Arrow, and growing buffers for its columns. All of this works without the GIL; failures take the GIL
# to raise.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memmove
from mqfast.store.base.os_api cimport mq_short_equal

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

cdef void release_schema(ArrowSchema *schema) noexcept nogil
cdef int make_schema(ArrowSchema *schema, const char *format, const char *name, int64_t flags,
                     int64_t n_children) noexcept nogil
cdef int make_map_schema(ArrowSchema *schema, const char *name, int64_t flags) noexcept nogil

cdef struct Tree:  # a block of memory for a batch: its nodes, their lists, columns of known size
    int64_t users                           # nodes that were not released; the last node frees the tree
    int64_t bytes
    int64_t used


cdef Tree *new_tree(int64_t nodes, int64_t columns, int64_t room) noexcept nogil
cdef void make_node(Tree *tree, ArrowArray *array, int64_t length, int64_t n_buffers, int64_t n_children) noexcept nogil


cdef inline void *take(Tree *tree, int64_t n) noexcept nogil:
    """Return n of the bytes that new_tree has reserved."""
    cdef uint8_t *p = <uint8_t *> tree + tree.used
    tree.used += (n + 15) & ~15
    return p


cdef int64_t nulls(const uint8_t *bits, int64_t n) noexcept nogil

# Capsules of heap structs, which are consumed also on failure.
cdef object new_schema_capsule(ArrowSchema *schema)
cdef object new_array_capsule(ArrowArray *array)
cdef object new_stream_capsule(ArrowArrayStream *stream)


cdef struct Buffer:
    uint8_t *p
    int64_t used
    int64_t room


cdef struct Texts:                          # a utf8 or binary column of 32-bit offsets
    Buffer offsets
    Buffer text


cdef int grow(Buffer *b, int64_t n) except -1 nogil


cdef inline int reserve(Buffer *b, int64_t n) except -1 nogil:
    """Reserve room for n more bytes; the buffer is never NULL, since some consumers take a NULL buffer for a missing
    buffer.
    """
    if b.p != NULL and b.used + n <= b.room:
        return 0
    return grow(b, n)


cdef inline int put32(Buffer *b, int32_t x) except -1 nogil:
    reserve(b, 4)
    memcpy(b.p + b.used, &x, 4)
    b.used += 4
    return 0


cdef inline int put64(Buffer *b, int64_t x) except -1 nogil:
    reserve(b, 8)
    memcpy(b.p + b.used, &x, 8)
    b.used += 8
    return 0


cdef inline void reserve_in_tree(Buffer *b, Tree *tree, int64_t n) noexcept nogil:
    """Make a buffer of n bytes within a tree: it must not grow, and the tree frees it."""
    b.p = <uint8_t *> take(tree, n)
    b.used = 0
    b.room = n


cdef inline const void *give(Buffer *b) noexcept nogil:
    """Hand the memory over to an array."""
    cdef void *p = b.p
    b.p = NULL
    b.used = b.room = 0
    return p


cdef bint is_utf8(const uint8_t *p, int64_t n) noexcept nogil
cdef int begin_texts(Texts *t) except -1 nogil
cdef int too_long() except -1 nogil
cdef int put_new_host(Texts *t, const uint8_t *p, int32_t n) except -1 nogil


cdef inline int put_raw(Texts *t, const uint8_t *p, int64_t n) except -1 nogil:
    """Append a value that is UTF-8."""
    if t.text.used + n > 0x7FFFFFFF:
        return too_long()
    reserve(&t.text, n)
    memcpy(t.text.p + t.text.used, p, n)
    t.text.used += n
    return put32(&t.offsets, <int32_t> t.text.used)


cdef inline int put_copy(Texts *t) except -1 nogil:
    """Append the previous value again."""
    cdef int64_t start = (<int32_t *> (t.offsets.p + t.offsets.used - 8))[0]
    cdef int64_t length = t.text.used - start
    reserve(&t.text, max(length, 16))   # first: put_raw must not move its source
    if length > 16 or t.text.used > 0x7FFFFFFF - 16:
        return put_raw(t, t.text.p + start, length)
    # of a known length: no call; additional bytes are overwritten
    memmove(t.text.p + t.text.used, t.text.p + start, 16)
    t.text.used += length
    return put32(&t.offsets, <int32_t> t.text.used)


cdef inline int put_again_times(Texts *t, int64_t *times) except -1 nogil:
    """Append the previous value so many times; the number is 0 afterwards. A single loop for a run of equal values."""
    cdef int64_t n = times[0], start, length, used, k
    cdef int32_t *offset
    cdef uint8_t value[16]
    if n == 0:
        return 0
    times[0] = 0
    start = (<int32_t *> (t.offsets.p + t.offsets.used - 8))[0]
    length = t.text.used - start
    if length > 16 or t.text.used + n * length > 0x7FFFFFFF - 16:
        for k in range(n):
            put_copy(t)
        return 0
    reserve(&t.text, n * length + 16)       # additional bytes of the last copy are overwritten, or not used
    reserve(&t.offsets, n * 4)
    memcpy(value, t.text.p + start, 16)
    offset = <int32_t *> (t.offsets.p + t.offsets.used)
    used = t.text.used
    for k in range(n):
        memcpy(t.text.p + used, value, 16)
        used += length
        offset[k] = <int32_t> used
    t.text.used = used
    t.offsets.used += n * 4
    return 0


cdef inline bint same_bytes(const uint8_t *a, int32_t a_bytes, const uint8_t *b, int32_t b_bytes) noexcept nogil:
    """Return True for an equal value. `a` is NULL without a previous value."""
    return a != NULL and a_bytes == b_bytes and mq_short_equal(a, b, a_bytes)


cdef int put_text(Texts *t, const uint8_t *p, int64_t n) except -1 nogil
cdef int put_properties(const uint8_t *p, int32_t n, Texts *names, Texts *values) except -1 nogil
cdef int put_mended(Texts *t, const uint8_t *p, int64_t n) except -1 nogil
cdef int put_odd_properties(const uint8_t *p, int32_t n, Texts *names, Texts *values) except -1 nogil
cdef void drop_texts(Texts *t) noexcept nogil
cdef void drop_buffer(Buffer *b) noexcept nogil
