"""The bodies of put_many as pointers and sizes: a sequence of bytes-like objects, an array whose rows are the bodies,
or Arrow arrays.

No Python object is made for a row, numpy and pyarrow are not needed, and no body is read here: the put reads while this
object holds the memory. Arrays come by the buffer protocol, Arrow by its C data interface (arrow.pyx). The producer
guarantees the offsets; their signs and order are checked.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_RECORDS_RO,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport strchr
from mqfast.store.record.arrow cimport ArrowArray, ArrowArrayStream, ArrowSchema, new_array_capsule, new_schema_capsule

from mqfast.errors import MessageIllegal, MessageTooLarge

cdef uint8_t NOTHING = 0        # the address of a body of 0 bytes in an array without memory


cdef object _too_large(int64_t i, int64_t limit, int64_t size):
    return MessageTooLarge(f"body {i}: expected at most {limit} bytes, found {size}")


cdef int borrow_body(object body, Py_buffer *view) except -1:
    """Borrow the bytes of a body, to be released. Raises: TypeError, BufferError, ValueError for an object without
    contiguous bytes, or an array of objects, whose bytes are pointers.
    """
    PyObject_GetBuffer(body, view, PyBUF_ND | PyBUF_FORMAT)
    if view.format != NULL and strchr(view.format, 79) != NULL:     # O
        PyBuffer_Release(view)
        raise TypeError("an array of objects")
    return 0


@cython.no_gc_clear
@cython.final
cdef class Bodies:
    """The bodies of a put. Thread: a single thread. The pointers are valid while this object exists, after ``fill``,
    also without the GIL.
    """

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.viewed):
            PyBuffer_Release(&self.views[i])
        if self.rows:
            PyBuffer_Release(&self.view)
        PyMem_Free(self.views)
        PyMem_Free(self.list_.at)
        PyMem_Free(self.list_.sizes)

    cdef bint take_rows(self, object many) except -1:
        """Take the rows of a two-dimensional array, or the elements of fixed-size bytes, void and records of a
        one-dimensional array.
        """
        cdef bint rows = False
        cdef bytes kind
        try:
            PyObject_GetBuffer(many, &self.view, PyBUF_RECORDS_RO)
        except (BufferError, ValueError, TypeError):
            return False
        kind = b"B" if self.view.format == NULL else <bytes> self.view.format
        if b"O" not in kind:        # objects: pointers
            if self.view.ndim == 2:
                rows = self.view.shape[1] <= 1 or self.view.strides[1] == self.view.itemsize
                self.row_bytes = self.view.shape[1] * self.view.itemsize
            elif self.view.ndim == 1:
                rows = (kind.startswith(b"T{")
                        or (kind.endswith((b"s", b"x")) and (kind.rstrip(b"sx") or b"1").isdigit()))
                self.row_bytes = self.view.itemsize
        if not rows:
            PyBuffer_Release(&self.view)
            return False
        self.rows = True
        self.count = self.view.shape[0]
        return True

    cdef bint take_chunks(self, object many) except -1:
        """Take an Arrow array or a stream of arrays, of binary or text."""
        cdef ArrowArrayStream *stream
        cdef ArrowArray *array
        cdef ArrowSchema *schema
        cdef list chunks = []
        cdef int rc
        if hasattr(many, "__arrow_c_array__"):
            schema_capsule, capsule = many.__arrow_c_array__()
            chunks.append(capsule)
            schema = <ArrowSchema *> PyCapsule_GetPointer(schema_capsule, "arrow_schema")
            if not self.understands(schema):
                return False
        else:
            stream_capsule = many.__arrow_c_stream__()
            stream = <ArrowArrayStream *> PyCapsule_GetPointer(stream_capsule, "arrow_array_stream")
            schema = <ArrowSchema *> calloc(1, sizeof(ArrowSchema))
            if schema == NULL:
                raise MemoryError()
            rc = stream.get_schema(stream, schema)
            if rc != 0:
                free(schema)
                raise self.broken(stream, rc)
            schema_capsule = new_schema_capsule(schema)
            if not self.understands(schema):
                return False
            while True:
                array = <ArrowArray *> calloc(1, sizeof(ArrowArray))
                if array == NULL:
                    raise MemoryError()
                rc = stream.get_next(stream, array)
                if rc != 0 or array.release == NULL:
                    free(array)
                    if rc != 0:
                        raise self.broken(stream, rc)
                    break
                chunks.append(new_array_capsule(array))
        for capsule in chunks:
            array = <ArrowArray *> PyCapsule_GetPointer(capsule, "arrow_array")
            if array.length < 0 or array.offset < 0:
                raise MessageIllegal(f"bodies: expected a length and an offset from 0 on, found {array.length} and "
                                     f"{array.offset}")
            self.count += array.length
        self.chunks = chunks
        return True

    cdef broken(self, ArrowArrayStream *stream, int rc):
        cdef const char *why = stream.get_last_error(stream)
        return MessageIllegal(f"bodies: the Arrow stream failed ({rc}): "
                              f"{'' if why == NULL else (<bytes> why).decode(errors='replace')}")

    cdef bint understands(self, ArrowSchema *schema) except -1:
        self.format = <bytes> schema.format
        if schema.dictionary != NULL:
            return False
        if self.format.startswith(b"w:"):
            self.row_bytes = int(self.format[2:])
            return self.row_bytes >= 0
        return self.format in (b"z", b"Z", b"u", b"U")

    cdef int fill(self, int64_t limit) except -1:
        """Set the pointers and sizes. Raises: MessageIllegal, MessageTooLarge, naming the first refused body."""
        if self.items is not None:
            return self.fill_items(limit)
        return self.fill_rows(limit) if self.chunks is None else self.fill_chunks(limit)

    cdef int take_room(self) except -1:
        cdef Py_ssize_t n = max(self.count, 1)
        self.list_.at = <const uint8_t **> PyMem_Malloc(n * sizeof(void *))
        self.list_.sizes = <int32_t *> PyMem_Malloc(n * sizeof(int32_t))
        if self.list_.at == NULL or self.list_.sizes == NULL:
            raise MemoryError()
        return 0

    cdef int32_t size_of(self, Py_ssize_t i) noexcept:
        return self.list_.row_bytes if self.list_.at == NULL else self.list_.sizes[i]

    cdef int fill_items(self, int64_t limit) except -1:
        cdef Py_ssize_t i, size
        self.take_room()
        cdef const uint8_t **at = self.list_.at
        cdef int32_t *sizes = self.list_.sizes
        cdef list items = self.items
        for i in range(self.count):
            body = items[i]
            if PyBytes_CheckExact(body):
                at[i] = <const uint8_t *> PyBytes_AS_STRING(body)
                size = PyBytes_GET_SIZE(body)
            else:
                if self.views == NULL:
                    self.views = <Py_buffer *> PyMem_Malloc(self.count * sizeof(Py_buffer))
                    if self.views == NULL:
                        raise MemoryError()
                try:
                    borrow_body(body, &self.views[self.viewed])
                except (TypeError, BufferError, ValueError) as error:
                    raise MessageIllegal(f"body {i}: expected a contiguous bytes-like object, found "
                                         f"{type(body).__name__}") from error
                at[i] = <const uint8_t *> self.views[self.viewed].buf
                size = self.views[self.viewed].len
                self.viewed += 1
            if size > limit:
                raise _too_large(i, limit, size)
            sizes[i] = <int32_t> size
        return 0

    cdef int fill_rows(self, int64_t limit) except -1:
        if self.count and self.row_bytes > limit:
            raise _too_large(0, limit, self.row_bytes)
        self.list_.rows = <const uint8_t *> self.view.buf
        self.list_.step = self.view.strides[0]
        self.list_.row_bytes = <int32_t> self.row_bytes
        return 0

    cdef int fill_chunks(self, int64_t limit) except -1:
        cdef ArrowArray *array
        cdef const uint8_t *bits
        cdef const uint8_t *data
        cdef const int32_t *short_offsets
        cdef const int64_t *long_offsets
        cdef Py_ssize_t done = 0
        cdef int64_t i, place, first, size, kept = self.row_bytes
        cdef const uint8_t **at
        cdef int32_t *sizes
        cdef bint empty, fixed = self.format.startswith(b"w:"), is_long = self.format in (b"Z", b"U")
        self.take_room()
        at = self.list_.at
        sizes = self.list_.sizes
        for capsule in self.chunks:
            array = <ArrowArray *> PyCapsule_GetPointer(capsule, "arrow_array")
            if array.length == 0:
                continue
            if array.n_buffers != (2 if fixed else 3) or (not fixed and array.buffers[1] == NULL):
                raise MessageIllegal(f"bodies: expected an Arrow array of {2 if fixed else 3} buffers, found "
                                     f"{array.n_buffers}")
            bits = <const uint8_t *> array.buffers[0] if array.null_count != 0 else NULL
            short_offsets = <const int32_t *> array.buffers[1]
            long_offsets = <const int64_t *> array.buffers[1]
            data = <const uint8_t *> array.buffers[1 if fixed else 2]
            empty = data == NULL
            if empty:
                data = &NOTHING
            for i in range(array.length):
                place = array.offset + i
                if bits != NULL and not bits[place >> 3] >> (place & 7) & 1:
                    raise MessageIllegal(f"body {done}: expected bytes, found a null")
                if fixed:
                    first, size = place * kept, kept
                elif is_long:
                    first = long_offsets[place]
                    size = long_offsets[place + 1] - first
                else:
                    first = short_offsets[place]
                    size = <int64_t> short_offsets[place + 1] - first
                if first < 0 or size < 0 or (empty and first + size > 0):
                    raise MessageIllegal(f"body {done}: expected rising Arrow offsets, found {first} and "
                                         f"{first + size}")
                if size > limit:
                    raise _too_large(done, limit, size)
                at[done] = data + first
                sizes[done] = <int32_t> size
                done += 1
        return 0

    cdef list objects(self):
        """Return the bodies as objects: copies unless they are objects already."""
        cdef Py_ssize_t i
        if self.items is not None:
            return self.items
        self.fill((<int64_t> 1 << 31) - 1)
        if self.list_.at == NULL:
            return [(<const char *> self.list_.rows + i * self.list_.step)[:self.list_.row_bytes]
                    for i in range(self.count)]
        return [(<const char *> self.list_.at[i])[:self.list_.sizes[i]] for i in range(self.count)]


cdef Bodies bodies_of(object many):
    """Hold the bodies without reading them. Raises: MessageIllegal for an object that is not several bodies."""
    cdef Bodies found = Bodies.__new__(Bodies)
    if type(many) is not list and type(many) is not tuple:
        if PyObject_CheckBuffer(many):
            if found.take_rows(many):
                return found
        elif hasattr(many, "__arrow_c_array__") or hasattr(many, "__arrow_c_stream__"):
            if found.take_chunks(many):
                return found
    try:
        # a separate list, so that the items stay referenced while the GIL is released
        found.items = list(many)
    except TypeError:
        raise MessageIllegal(f"bodies: expected several, found {type(many).__name__}") from None
    found.count = len(found.items)
    return found
