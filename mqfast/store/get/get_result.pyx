"""GetResult: the messages of a get, and the holds on their files, which last as long as a message is referenced.

A record is copied only for access to its bytes, and a file with a hit stays held. get_message.pyx finds the messages;
get_columns.pyx makes their columns from the hits.
"""

cimport cython
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from mqfast.store.base.mapped_file cimport FilePin
from mqfast.store.base.os_api cimport mq_get32
from mqfast.store.get.get_columns cimport arrow_array, arrow_schema, arrow_stream, fixed_fields, record_batch
from mqfast.store.get.hits cimport check_pins
from mqfast.store.record.record cimport BORN_HOST_V6, STORE_HOST_V6, make_message


@cython.no_gc_clear
@cython.freelist(16)
@cython.final
cdef class GetResult:
    """The result of a get: status, next offset, bounds of the queue, and messages.

    Iterate over the result, index it, or use ``to_numpy()``, ``to_arrow()`` or the Arrow interface. Messages and views
    stay valid as long as they are referenced, also after the store was closed or a file was removed.
    """

    def __dealloc__(self):
        free(self.hits.at)

    def __reduce__(self):
        raise TypeError("a GetResult cannot be pickled: it holds mappings of the store's files; pickle its messages, "
                        "list(result)")

    cdef object owner_of(self, const uint8_t *record):
        cdef FilePin held
        for held in self.pins:
            if held.base <= record < held.base + held.file.file_bytes:
                return held
        raise SystemError("a message without its file")

    @property
    def total_bytes(self) -> int:
        """Bytes of the records."""
        return self.hits.total_bytes

    def __len__(self):
        return self.hits.count

    def __getitem__(self, index):
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.hits.count))]
        i = index
        if i < 0:
            i += self.hits.count
        if not 0 <= i < self.hits.count:
            raise IndexError(f"expected an index below {self.hits.count}, found {index}")
        return self._message(i)

    cdef object _message(self, Py_ssize_t i):
        cdef const uint8_t *record = self.hits.at[i].record
        cdef FilePin first = <FilePin> self.pins[0]
        if first.base <= record < first.base + first.file.file_bytes:
            return make_message(first, record, self.hits.at[i].queue_offset)
        return make_message(self.owner_of(record), record, self.hits.at[i].queue_offset)

    cdef list _all(self):
        cdef list messages = PyList_New(self.hits.count)     # of the right length at once
        cdef Py_ssize_t i
        cdef object message
        for i in range(self.hits.count):
            message = self._message(i)
            Py_INCREF(message)
            PyList_SET_ITEM(messages, i, message)
        return messages

    def __iter__(self):
        cdef GetResultIterator each = GetResultIterator.__new__(GetResultIterator)
        each.result = self
        return each

    @property
    def messages(self) -> list:
        """Return all messages, as a list."""
        return self._all()

    def bodies(self) -> list:
        """Return all bodies, copied into bytes objects."""
        cdef list out = []
        cdef Py_ssize_t i
        cdef const uint8_t *p
        cdef int32_t sys_flag, at
        for i in range(self.hits.count):
            p = self.hits.at[i].record
            sys_flag = mq_get32(p + 36)
            at = 88 + (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)
            out.append((<const char *> p + at)[:max(mq_get32(p + at - 4), 0)])
        check_pins(self.pins)
        return out

    def to_numpy(self):
        """Return the fixed fields of every message as a structured array of shape (len(self),), copied.
        Imports numpy.
        """
        return fixed_fields(&self.hits, self.pins)

    def to_arrow(self):
        """Return all columns of every message as a pyarrow.RecordBatch, copied: as ``pyarrow.record_batch(self)``, but
        faster. Imports pyarrow.
        """
        return record_batch(&self.hits, self.pins)

    def __arrow_c_array__(self, requested_schema=None):
        return arrow_array(&self.hits, self.pins, requested_schema)

    def __arrow_c_stream__(self, requested_schema=None):
        return arrow_stream(&self.hits, self.pins, requested_schema)

    def __arrow_c_schema__(self):
        return arrow_schema()

    def __repr__(self):
        return f"<GetResult {self.status.name} {self.hits.count} messages, next_offset={self.next_offset}>"


@cython.no_gc
@cython.freelist(4)
@cython.final
cdef class GetResultIterator:
    """An iterator over the messages of a result. Each message is made on demand: a loop that drops messages keeps a
    single message in the cache.
    """
    cdef GetResult result
    cdef Py_ssize_t at

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t i = self.at
        if self.result is None or i >= self.result.hits.count:       # None: made without a result
            raise StopIteration
        self.at = i + 1
        return self.result._message(i)

    def __length_hint__(self):
        return 0 if self.result is None else self.result.hits.count - self.at


cdef GetResult nothing(object status, int64_t next_offset, int64_t min_offset, int64_t max_offset):
    cdef GetResult g = GetResult.__new__(GetResult)
    g.status = status
    g.next_offset = next_offset
    g.min_offset = min_offset
    g.max_offset = max_offset
    g.pins = []
    return g


