"""Staged records, encoded in a process and appended in another: property texts, the check of a block, and the append.

The append patches offsets and store time under the put lock. Between encoding and append the bytes were on disk or on a
network, so ``count_records`` and ``append_records`` check every length before use. Record format:
``mqfast/store/FORMAT.md``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from mqfast.store.base.os_api cimport mq_get32, mq_load64
from mqfast.store.core cimport Core, StoreBase
from mqfast.store.log.append cimport Appended, append_encoded, prefault_piece, refused
from mqfast.store.log.log_state cimport APPEND_OK, BLANK_BYTES, LogState, lock_puts, unlock_puts
from mqfast.store.queues.consume_queue cimport QueueState, QueueTable
from mqfast.store.record.record cimport REC_OK, Record, check_crc, parse_record

from mqfast.errors import ConfigError, CorruptFile, MessageIllegal, MessageTooLarge

cdef int64_t CHUNK_BYTES = 64 << 10     # the put lock is released after this many bytes

cdef enum StagedStop:
    DONE = 0
    BAD_RECORD = 1
    NO_QUEUE = 2
    NO_ROOM = 3
    REFUSED = 4


def property_texts(list rows, dict orders, order_of, slow) -> list:
    """Return the property text of each row.

    Args: orders: names -> names in the order of the store, filled by order_of; slow: called with the number and the row
    for a row with separators or empty values; returns the text or raises.
    """
    cdef list made = []
    cdef list parts
    cdef dict row
    cdef bytes text
    cdef Py_ssize_t i = 0
    cdef bint empty
    for row in rows:
        if not row:
            made.append(b"")
            i += 1
            continue
        names = tuple(row)
        order = orders.get(names)
        if order is None:
            order = order_of(names)
            orders[names] = order
        parts = []
        empty = False
        for name in <tuple> order:
            value = row[name]
            if not value:
                empty = True
            parts.append(name)
            parts.append("\x01")
            parts.append(value)
            parts.append("\x02")
        if not empty:
            try:
                text = "".join(parts).encode("utf-8")
            except UnicodeEncodeError:
                empty = True
        if empty or text.count(b"\x01") != len(row) or text.count(b"\x02") != len(row):
            text = slow(i, row)
        made.append(text)
        i += 1
    return made


def count_records(block, int64_t max_record_bytes=0x7FFFFFFF) -> tuple:
    """Return (records, bytes) of the whole records at the start of a block, each with a checked CRC.

    The bytes are fewer than the block's if it ends inside a record. Raises: CorruptFile with the offset in the block;
    MessageTooLarge.
    """
    cdef Py_buffer view
    cdef int64_t at = 0, count = 0, n
    cdef int rc = DONE
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            rc = _count(<const uint8_t *> view.buf, view.len, max_record_bytes, &at, &count)
    finally:
        PyBuffer_Release(&view)
    if rc == NO_ROOM:
        raise MessageTooLarge(f"record: expected at most {max_record_bytes} bytes, found a longer one at offset {at}")
    if rc != DONE:
        raise CorruptFile("staged records are damaged", offset=at, expected="a whole record with the right CRC",
                          found="something else")
    return count, at


cdef int _count(const uint8_t *p, int64_t n, int64_t most, int64_t *at, int64_t *count) noexcept nogil:
    cdef Record r
    cdef int64_t total
    while n - at[0] >= 8:
        total = mq_get32(p + at[0])
        if total > most:
            return NO_ROOM
        if total > n - at[0]:
            return DONE         # continues in the next block
        if parse_record(p + at[0], n - at[0], &r) != REC_OK or not check_crc(p + at[0], &r, False):
            return BAD_RECORD
        at[0] += r.total
        count[0] += 1
    return DONE


def append_records(StoreBase into not None, block) -> int:
    """Append encoded records to the log in order. Returns: the number of records.

    Args: block: a writable buffer of whole records, as count_records found them; the buffer is patched meanwhile.
    Raises: CorruptFile for an invalid record; ConfigError if the store keeps CRC properties; otherwise as put_many:
    earlier records stay.
    Durability: as put_many. GIL: released.
    """
    cdef Py_buffer view
    cdef int64_t at = 0, count = 0
    cdef int rc
    cdef Core store = into.engine
    cdef LogState *s = store.state
    cdef uint8_t *p
    cdef Record r
    store.log.raise_state()
    if s.crc_property:
        raise ConfigError("enabled_append_prop_crc: expected it off where encoded records are appended, found it on")
    PyObject_GetBuffer(block, &view, PyBUF_WRITABLE)
    p = <uint8_t *> view.buf
    try:
        while at < view.len:
            with nogil:
                rc = _append(s, store.table, store.log.prefault_window > 0 and not s.pooled, p, view.len, &at, &count)
            if rc == BAD_RECORD:
                raise CorruptFile("staged records are damaged", offset=at, expected="a whole record",
                                  found="something else")
            store.log.raise_state()
            if at < view.len:
                parse_record(p + at, view.len - at, &r)
                if rc == NO_ROOM:
                    if r.total + BLANK_BYTES > store.log.file_bytes:
                        raise MessageTooLarge(f"record: expected at most {store.log.file_bytes - BLANK_BYTES} bytes (a "
                                              "log file less its end mark),"
                                              f" found {r.total}")
                    store.log.roll(r.total)
                else:
                    store.queues.find_or_create(str((<const char *> r.topic)[:r.topic_bytes], "utf-8"), r.queue_id)
                    if store.table.find(r.topic, r.topic_bytes, r.queue_id) == NULL:
                        raise MessageIllegal(f"topic {str((<const char *> r.topic)[:r.topic_bytes], 'utf-8')!r}: "
                                             "expected ConsumeQueues,"
                                             " found a topic of batch queues")
    finally:
        PyBuffer_Release(&view)
    return count


cdef int _append(LogState *s, QueueTable table, bint prefault, uint8_t *p, int64_t n, int64_t *at,
                 int64_t *count) noexcept nogil:
    """Append from at[0] on, in chunks. Returns: DONE, or the reason of a stop at the record at at[0]."""
    cdef Record r
    cdef QueueState *q
    cdef Appended out
    cdef int64_t until, now
    cdef int rc = DONE
    while at[0] < n and rc == DONE:
        if prefault and mq_load64(&s.written) + CHUNK_BYTES > mq_load64(&s.prefaulted):
            prefault_piece(s, mq_load64(&s.written) + 2 * CHUNK_BYTES, -1, False)
        until = at[0] + CHUNK_BYTES
        lock_puts(s)
        now = s.os.clock_ms(s.os)
        while at[0] < n and at[0] < until:
            if parse_record(p + at[0], n - at[0], &r) != REC_OK:
                rc = BAD_RECORD
                break
            q = table.find(r.topic, r.topic_bytes, r.queue_id)
            if q == NULL:
                rc = NO_QUEUE
                break
            if refused(s, q):
                rc = REFUSED
                break
            if append_encoded(s, q, p + at[0], r.total, r.sys_flag, True, 0, now, &out) != APPEND_OK:
                rc = NO_ROOM
                break
            at[0] += r.total
            count[0] += 1
        unlock_puts(s)
    return rc
