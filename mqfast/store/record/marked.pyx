"""Records of the log with a given property, found by a walk over the bytes without the GIL.

Every length is checked: the bytes may end inside a record. Record format: ``mqfast/store/FORMAT.md``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp
from mqfast.store.base.os_api cimport mq_get32
from mqfast.store.record.record cimport MAGIC_BLANK, REC_OK, Record, parse_record

from mqfast.errors import CorruptFile


cdef bint has_property(const Record *r, const char *name, int64_t n) noexcept nogil:
    """Return True if the text of a property begins with these n bytes, the name and U+0001."""
    cdef const uint8_t *at = r.properties
    cdef const uint8_t *end = r.properties + r.properties_bytes
    while end - at >= n:
        if memcmp(at, name, n) == 0:
            return True
        at = <const uint8_t *> memchr(at, 2, end - at)
        if at == NULL:
            return False
        at += 1
    return False


def marked_records(block, bytes name not None, int64_t physical_offset) -> tuple:
    """Return ([(begin, end, store timestamp, topic, queue id, queue offset, properties), ...] of the records in a block
    of the log with the property, number of bytes before the next walk).

    Args: block: bytes of a log file from ``physical_offset`` on, cut anywhere. The second number is 0 without a whole
    record, and points behind the block if an end mark fills the rest of the file.
    Raises: CorruptFile with the offset of bytes that are no record.
    """
    cdef Py_buffer view
    cdef bytes text = name + b"\x01"
    cdef const char *wanted = PyBytes_AS_STRING(text)
    cdef int64_t n = PyBytes_GET_SIZE(text), at = 0, total, found = -1
    cdef const uint8_t *p
    cdef Record r
    cdef list made = []
    cdef bint is_bad = False
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    p = <const uint8_t *> view.buf
    try:
        while True:
            with nogil:
                found = -1
                while view.len - at >= 8:
                    total = mq_get32(p + at)
                    if mq_get32(p + at + 4) == MAGIC_BLANK and total >= 8:
                        at += total
                        break
                    if total > view.len - at:
                        break
                    if parse_record(p + at, view.len - at, &r) != REC_OK:
                        is_bad = True
                        break
                    at += r.total
                    if has_property(&r, wanted, n):
                        found = at
                        break
            if found < 0:
                break
            made.append((
                physical_offset + found - r.total, physical_offset + found, r.store_timestamp,
                (<const char *> r.topic)[:r.topic_bytes].decode("utf-8", "replace"), r.queue_id,
                r.queue_offset, (<const char *> r.properties)[:r.properties_bytes],
            ))
    finally:
        PyBuffer_Release(&view)
    if is_bad:
        raise CorruptFile("the log cannot be read", offset=physical_offset + at, expected="a record",
                          found="something else")
    return made, at
