# The bodies of a put_many: pointers and sizes, held as long as this object exists.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.log.append cimport BodyList
from mqfast.store.record.arrow cimport ArrowArrayStream, ArrowSchema


cdef class Bodies:
    cdef BodyList list_
    cdef Py_ssize_t count
    cdef list items             # the bodies as objects; None: `view` or `chunks` have all bodies
    cdef Py_buffer *views       # of items that are no bytes
    cdef Py_ssize_t viewed
    cdef Py_buffer view         # of an array whose rows are the bodies
    cdef bint rows              # the view is held
    cdef int64_t row_bytes
    cdef int32_t size_of(self, Py_ssize_t i) noexcept
    cdef int take_room(self) except -1
    cdef list chunks            # capsules of Arrow arrays, or None
    cdef bytes format           # of these arrays
    cdef int fill(self, int64_t limit) except -1
    cdef int fill_items(self, int64_t limit) except -1
    cdef int fill_rows(self, int64_t limit) except -1
    cdef int fill_chunks(self, int64_t limit) except -1
    cdef bint take_rows(self, object many) except -1
    cdef bint take_chunks(self, object many) except -1
    cdef object broken(self, ArrowArrayStream *stream, int rc)
    cdef bint understands(self, ArrowSchema *schema) except -1
    cdef list objects(self)


cdef Bodies bodies_of(object many)
cdef int borrow_body(object body, Py_buffer *view) except -1
