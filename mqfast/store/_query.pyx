"""query: a key -> the messages of a topic that carry it (RocketMQ: DefaultMessageStore.queryMessage).

It must never trust a hash: every entry of the index is compared with the topic, the keys and the store time of the record that it points at.
Entries whose record is gone or is not one are left out; a log file that was cut short is an error.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp
from mqfast.store._commit_log cimport CommitLog
from mqfast.store._group_commit cimport readable
from mqfast.store._index_file cimport IndexFile, hash_of_key
from mqfast.store._mapped_file cimport Lease, MappedFile, lease
from mqfast.store._put cimport PutPath
from mqfast.store._record cimport REC_OK, Found, Record, find_properties, make_message, parse_record

from mqfast.errors import StoreClosed, UsageError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef int64_t LATEST = 0x7FFFFFFFFFFFFFFF


cdef int64_t number(object value, str what) except? -1:
    if isinstance(value, int):
        try:
            return value
        except OverflowError:
            pass
    raise UsageError(f"{what}: expected a whole number of 64 bits, found {value!r}")


cdef const char *text(object value, str what, Py_ssize_t *n) except NULL:
    if type(value) is not str:
        raise UsageError(f"{what}: expected str, found {type(value).__name__}")
    try:
        return PyUnicode_AsUTF8AndSize(value, n)
    except UnicodeEncodeError:
        raise UsageError(f"{what}: expected text that has a UTF-8 form, found {value!r}") from None


cdef bint carries(const uint8_t *keys, int64_t keys_bytes, const uint8_t *key, Py_ssize_t key_bytes) noexcept nogil:
    """Is the key one of those that stand in KEYS, with blanks in between?"""
    cdef const uint8_t *at = keys
    cdef const uint8_t *end = keys + keys_bytes
    cdef const uint8_t *blank
    while at < end:
        blank = <const uint8_t *> memchr(at, c' ', end - at)
        if blank == NULL:
            blank = end
        if blank - at == key_bytes and memcmp(at, key, key_bytes) == 0:
            return True
        at = blank + 1
    return False


def query(PutPath store, index, topic, key, max_count, begin_ms, end_ms) -> list:
    """MessageStore.query; the store is open and the index is on. Args as there; max_count an int."""
    cdef Py_ssize_t topic_bytes = 0, key_bytes = 0
    cdef const uint8_t *topic_text = <const uint8_t *> text(topic, "topic", &topic_bytes)
    cdef const uint8_t *key_text = <const uint8_t *> text(key, "key", &key_bytes)
    cdef int64_t limit = number(max_count, "max_count"), begin = number(begin_ms, "begin_ms"), last = number(end_ms, "end_ms")
    cdef int64_t end = last, batch = index.batch, offset, oldest, readable_end
    cdef CommitLog log = store.log
    cdef dict found = {}
    cdef list hits
    cdef tuple files
    cdef IndexFile index_file
    cdef MappedFile file
    cdef Lease held = None
    cdef const uint8_t *p
    cdef Record r
    cdef Found f
    cdef Py_ssize_t i
    cdef bint fresh
    cdef int outcome
    cdef int32_t h = hash_of_key(topic, key)
    if store.read_your_writes:
        store.dispatcher.catch_up()
    while len(found) < limit:
        hits = []
        files = index.files
        i = len(files)
        while i > 0:
            i -= 1
            index_file = files[i]
            try:
                # the index keeps whole seconds: what it says of a message may lie up to a second before its store time
                if not index_file.select_into(hits, h, begin - 1000 if begin > 1000 else 0, end, batch):
                    break
            except StoreClosed:
                continue        # retired meanwhile
        oldest = LATEST
        fresh = False
        readable_end = readable(&log.state, log.hide_unflushed)
        for hit in hits:
            offset = hit
            file = log.file_at(offset)
            if file is None or offset < 0 or offset >= readable_end:
                continue        # retention was faster than the index
            if held is None or held.file is not file:
                held = lease(file)
            p = held.base + (offset - file.start_offset)
            outcome = parse_record(p, min(readable_end, file.start_offset + file.file_bytes) - offset, &r)
            file.check_damage()
            if outcome != REC_OK or r.physical_offset != offset:
                continue
            oldest = min(oldest, r.store_timestamp)
            if hit in found or not begin <= r.store_timestamp <= last:
                continue
            if r.topic_bytes != topic_bytes or memcmp(r.topic, topic_text, topic_bytes) != 0:
                continue
            find_properties(r.properties, r.properties_bytes, &f)
            if (f.keys != NULL and carries(f.keys, f.keys_bytes, key_text, key_bytes)) or (
                    f.uniq_key != NULL and f.uniq_key_bytes == key_bytes and memcmp(f.uniq_key, key_text, key_bytes) == 0):
                found[hit] = make_message(held, p, -1)
                fresh = True
            file.check_damage()
        if len(hits) < batch or not fresh or oldest <= begin:
            break
        end = oldest
    if index.is_closed:         # asked afterwards: a file that was retired meanwhile is no error, a store that was closed is
        index.check_open()
    if len(found) == 1:
        return list(found.values())
    return [found[offset] for offset in sorted(sorted(found, reverse=True)[:max(limit, 0)])]
