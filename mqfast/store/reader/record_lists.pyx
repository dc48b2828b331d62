"""Columns as Python lists: the content of an Arrow batch of gather.pyx, for programs without pyarrow.

No store is read and no batch is kept: the lists own all values. Formats: those that gather.pyx writes,
https://arrow.apache.org/docs/format/CDataInterface.html.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy
from mqfast.store.record.arrow cimport ArrowArray, ArrowSchema, Buffer, drop_buffer, reserve

from json.encoder import encode_basestring_ascii as _quoted

from mqfast.errors import InternalError


def to_lists(batch, bint json_maps=False) -> dict:
    """Return name -> list of values of each column: int, str, bytes, bool, dict of str, None. The batch is consumed.

    Args: json_maps: maps as the text of a JSON object (ASCII) instead of a dict.
    GIL: kept.
    """
    cdef const ArrowSchema *schema
    cdef const ArrowArray *array
    cdef int64_t i
    cdef dict found = {}
    schemas, arrays = batch.__arrow_c_array__()
    schema = <const ArrowSchema *> PyCapsule_GetPointer(schemas, "arrow_schema")
    array = <const ArrowArray *> PyCapsule_GetPointer(arrays, "arrow_array")
    for i in range(array.n_children):
        found[schema.children[i].name.decode("utf-8")] = column(schema.children[i].format, array.children[i], json_maps)
    return found


cdef list column(const char *form, const ArrowArray *a, bint json_maps):
    cdef char kind = form[0]
    if kind == c"i":
        return numbers32(<const int32_t *> a.buffers[1], a.length)
    if kind == c"l" or kind == c"t":
        return numbers64(<const int64_t *> a.buffers[1], a.length)
    if kind == c"u" or kind == c"z":
        return texts(a, kind == c"z")
    if kind == c"b":
        return [bool((<const uint8_t *> a.buffers[1])[row >> 3] >> (row & 7) & 1) for row in range(a.length)]
    if kind == c"+":
        return json_objects(a) if json_maps else dicts(a)
    raise InternalError(f"a column of Arrow format {form.decode('ascii')}")


cdef list filled(int64_t n):
    return PyList_New(n)


cdef inline void put(list to, int64_t i, object value):
    Py_INCREF(value)
    PyList_SET_ITEM(to, i, value)


cdef list numbers32(const int32_t *p, int64_t n):
    cdef list found = filled(n)
    cdef int64_t i
    for i in range(n):
        put(found, i, p[i])
    return found


cdef list numbers64(const int64_t *p, int64_t n):
    cdef list found = filled(n)
    cdef int64_t i
    for i in range(n):
        put(found, i, p[i])
    return found


cdef list texts(const ArrowArray *a, bint raw):
    cdef const uint8_t *valid = <const uint8_t *> a.buffers[0]
    cdef const int32_t *at = <const int32_t *> a.buffers[1]
    cdef const char *text = <const char *> a.buffers[2]
    cdef list found = filled(a.length)
    cdef int64_t i
    cdef int32_t last = -1
    cdef object value = None
    for i in range(a.length):
        if valid != NULL and not valid[i >> 3] >> (i & 7) & 1:
            put(found, i, None)
        elif raw:
            put(found, i, PyBytes_FromStringAndSize(text + at[i], at[i + 1] - at[i]))
        else:
            # Topics, hosts and tags repeat: the object of the previous row is used again.
            if last < 0 or not same(text, at, last, <int32_t> i):
                value = PyUnicode_DecodeUTF8(text + at[i], at[i + 1] - at[i], NULL)
                last = <int32_t> i
            put(found, i, value)
    return found


cdef inline bint same(const char *text, const int32_t *at, int32_t i, int32_t j) noexcept nogil:
    cdef int32_t n = at[i + 1] - at[i]
    cdef int32_t k
    if at[j + 1] - at[j] != n:
        return False
    for k in range(n):
        if text[at[i] + k] != text[at[j] + k]:
            return False
    return True


cdef list dicts(const ArrowArray *a):
    cdef const int32_t *at = <const int32_t *> a.buffers[1]
    cdef list names = texts(a.children[0].children[0], False)
    cdef list values = texts(a.children[0].children[1], False)
    return [dict(zip(names[at[i]:at[i + 1]], values[at[i]:at[i + 1]])) for i in range(a.length)]


cdef list json_objects(const ArrowArray *a):
    cdef const int32_t *at = <const int32_t *> a.buffers[1]
    cdef const ArrowArray *names = a.children[0].children[0]
    cdef const ArrowArray *values = a.children[0].children[1]
    cdef list found = filled(a.length)
    cdef Buffer out
    cdef int64_t i
    cdef int32_t k
    out.p = NULL
    out.used = out.room = 0
    try:
        for i in range(a.length):
            out.used = 0
            put_byte(&out, c"{")
            for k in range(at[i], at[i + 1]):
                if k > at[i]:
                    put_byte(&out, c",")
                put_quoted(&out, names, k)
                put_byte(&out, c":")
                put_quoted(&out, values, k)
            put_byte(&out, c"}")
            put(found, i, PyUnicode_DecodeUTF8(<const char *> out.p, out.used, NULL))
    finally:
        drop_buffer(&out)
    return found


cdef int put_byte(Buffer *to, char c) except -1:
    reserve(to, 1)
    to.p[to.used] = <uint8_t> c
    to.used += 1
    return 0


cdef int put_quoted(Buffer *to, const ArrowArray *a, int32_t row) except -1:
    cdef const int32_t *at = <const int32_t *> a.buffers[1]
    cdef const uint8_t *p = <const uint8_t *> a.buffers[2] + at[row]
    cdef int32_t n = at[row + 1] - at[row]
    cdef int32_t k
    cdef bytes text
    for k in range(n):
        if p[k] < 32 or p[k] > 126 or p[k] == c'"' or p[k] == c"\\":
            break
    else:
        reserve(to, n + 2)
        to.p[to.used] = c'"'
        memcpy(to.p + to.used + 1, p, n)
        to.p[to.used + 1 + n] = c'"'
        to.used += n + 2
        return 0
    text = _quoted(PyUnicode_DecodeUTF8(<const char *> p, n, NULL)).encode("ascii")
    n = <int32_t> len(text)
    reserve(to, n)
    memcpy(to.p + to.used, <const char *> text, n)
    to.used += n
    return 0
