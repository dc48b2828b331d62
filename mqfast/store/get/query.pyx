"""query: a key, or tags -> the messages of a topic with that key (RocketMQ: DefaultMessageStore.queryMessage).

Every entry of the index is compared with the topic, the keys and the store time of the record that it points at.
Entries without a valid record are skipped; a log file that was cut short is an error.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp
from mqfast.store.log.commit_log cimport CommitLog
from mqfast.store.log.group_commit cimport readable
from mqfast.store.index.index_file cimport IndexFile, hash_of_key
from mqfast.store.log.log_state cimport LOG_CLOSED, LOG_FORKED
from mqfast.store.base.mapped_file cimport FilePin, MappedFile, pin_file
from mqfast.store.base.os_api cimport mq_load32
from mqfast.store.core cimport Core, StoreBase
from mqfast.store.record.record cimport REC_OK, PropertyRefs, Record, find_properties, make_message, parse_record

from mqfast.errors import StoreClosed, UsageError
from mqfast.properties import TAG_KEY as _TAG_KEY

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    FEW = 64                    # up to this many hits need no allocation; RocketMQ's limit of an index lookup

cdef str TAG_KEY = _TAG_KEY

cdef int64_t LATEST = 0x7FFFFFFFFFFFFFFF
_latest = LATEST


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
    """Return True if the key is among KEYS, which are separated by blanks."""
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


cdef struct Wanted:
    const uint8_t *topic
    const uint8_t *key
    Py_ssize_t topic_bytes, key_bytes
    int64_t begin, last         # store times
    int64_t readable_end
    bint by_tag                 # the key is the message's TAGS


cdef bint is_wanted(const Wanted *w, const Record *r) noexcept nogil:
    cdef PropertyRefs f
    if not w.begin <= r.store_timestamp <= w.last:
        return False
    if r.topic_bytes != w.topic_bytes or memcmp(r.topic, w.topic, w.topic_bytes) != 0:
        return False
    find_properties(r.properties, r.properties_bytes, &f)
    if w.by_tag:
        return f.tags != NULL and f.tags_bytes == w.key_bytes and memcmp(f.tags, w.key, w.key_bytes) == 0
    return (f.keys != NULL and carries(f.keys, f.keys_bytes, w.key, w.key_bytes)) or (
        f.uniq_key != NULL and f.uniq_key_bytes == w.key_bytes and memcmp(f.uniq_key, w.key, w.key_bytes) == 0)


cdef FilePin hit_at(CommitLog log, const Wanted *w, int64_t offset, FilePin held, Record *r, const uint8_t **p):
    """Hold and parse the record at an offset of the index; None without a record. ``held``: a hold to use again."""
    cdef MappedFile file = log.file_at(offset)
    cdef int outcome
    if file is None or offset < 0 or offset >= w.readable_end:
        return None             # retention was faster than the index
    if held is None or held.file is not file:
        held = pin_file(file)
    p[0] = held.base + (offset - file.start_offset)
    outcome = parse_record(p[0], min(w.readable_end, file.start_offset + file.file_bytes) - offset, r)
    file.check_damage()
    return held if outcome == REC_OK and r.physical_offset == offset else None


def _place(message) -> int:
    return message.physical_offset


def query(StoreBase self not None, topic, key=None, max_count=None, begin_ms=0, end_ms=_latest, *, tag=None) -> list:
    """Return the newest ``max_count`` messages of a topic with this key (KEYS or unique key), or this tag, newest
    first.

    The order is that of the log, as StoreReader.query and RocketMQ's index (IndexService.queryOffset) give it;
    DefaultMessageStore.queryMessage returns the same messages oldest first. Every hit of the hash index is compared
    with the message before it is returned.
    Args: key or tag, not both. tag: the whole text of the message's TAGS; messages that a release of RocketMQ before
    5.5 indexed are found by their keys only, until the index is rebuilt here. max_count: None for the store's
    ``default_query_max_num``; begin_ms, end_ms: store times, both included.
    Raises: UsageError if the index is off, or neither or both of key and tag are given.
    Source: DefaultMessageStore.queryMessage, IndexService.queryOffset (index type T).
    """
    cdef Wanted w
    cdef int64_t hits[FEW]
    cdef int64_t limit, batch, begin
    cdef int64_t n = 0, room, i, j, newest = LATEST
    cdef bint older = True
    cdef bint in_order = True
    cdef Core store = self.engine
    cdef CommitLog log = store.log
    cdef list found = []
    cdef tuple files
    cdef Py_ssize_t at
    cdef int32_t h
    cdef FilePin held = None
    cdef FilePin hit
    cdef const uint8_t *p = NULL
    cdef Record r
    if mq_load32(&log.state.flags) & (LOG_CLOSED | LOG_FORKED):
        self._check_open()
    index = store.index
    batch = store.query_batch
    if index is None:
        raise UsageError("query: expected message_index_enable, index_file_write_enable and index_file_read_enable, "
                         "found one of them off")
    w.topic = <const uint8_t *> text(topic, "topic", &w.topic_bytes)
    if (key is None) == (tag is None):
        raise UsageError(f"query: expected a key or a tag, found {'neither' if key is None else 'both'}")
    w.by_tag = tag is not None
    w.key = <const uint8_t *> (text(tag, "tag", &w.key_bytes) if w.by_tag else text(key, "key", &w.key_bytes))
    limit = store.query_max_num if max_count is None else number(max_count, "max_count")
    w.begin = number(begin_ms, "begin_ms")
    w.last = LATEST if end_ms is _latest else number(end_ms, "end_ms")
    h = hash_of_key(topic, TAG_KEY + tag if w.by_tag else key)
    if store.read_your_writes:
        store.dispatcher.catch_up()
    room = min(batch, <int64_t> FEW)
    # the index keeps whole seconds: its time of a message may be up to a second before the store time
    begin = w.begin - 1000 if w.begin > 1000 else 0
    files = index.files
    at = len(files)
    while at > 0 and older and n < room:
        at -= 1
        try:
            n += (<IndexFile?> files[at]).select(h, begin, w.last, hits + n, room - n, &older)
        except StoreClosed:
            continue        # retired meanwhile
    w.readable_end = readable(&log.state, log.hide_unflushed)
    if n >= room or limit <= 0:
        found = query_more(store, index, h, &w, limit, batch)
    else:
        # Few hits, usually newest first: no table of hits and no sort.
        for i in range(n):
            hit = hit_at(log, &w, hits[i], held, &r, &p)
            if hit is None:
                continue
            held = hit
            if is_wanted(&w, &r):
                for j in range(i):
                    if hits[j] == hits[i]:
                        break
                else:
                    in_order = in_order and hits[i] < newest
                    newest = hits[i]
                    found.append(make_message(held, p, -1))
            held.file.check_damage()
        if len(found) > 1:
            if not in_order:
                found.sort(key=_place, reverse=True)
            if len(found) > limit:
                del found[limit:]
    if index.is_closed:         # checked afterwards: a file that was retired meanwhile is no error, a closed store is
        index.check_open()
    return found


cdef list query_more(Core store, index, int32_t h, Wanted *w, int64_t limit, int64_t batch):
    """Run query for any number of hits: several lookups in the index, each from the end of the previous lookup."""
    cdef int64_t end = w.last, offset, oldest
    cdef CommitLog log = store.log
    cdef dict found = {}
    cdef list hits
    cdef tuple files
    cdef FilePin held = None
    cdef FilePin hold
    cdef const uint8_t *p = NULL
    cdef Record r
    cdef Py_ssize_t i
    cdef bint fresh
    while len(found) < limit:
        hits = []
        files = index.files
        i = len(files)
        while i > 0:
            i -= 1
            try:
                if not (<IndexFile?> files[i]).select_into(hits, h, w.begin - 1000 if w.begin > 1000 else 0, end,
                                                           batch):
                    break
            except StoreClosed:
                continue        # retired meanwhile
        oldest = LATEST
        fresh = False
        w.readable_end = readable(&log.state, log.hide_unflushed)
        for hit in hits:
            offset = hit
            hold = hit_at(log, w, offset, held, &r, &p)
            if hold is None:
                continue
            held = hold
            oldest = min(oldest, r.store_timestamp)
            if hit not in found and is_wanted(w, &r):
                found[hit] = make_message(held, p, -1)
                fresh = True
            held.file.check_damage()
        if len(hits) < batch or oldest < w.begin:
            break
        if fresh:
            end = oldest
        else:
            batch *= 4          # a second of the index, the smallest unit, holds more hits than a lookup returns
    return [found[offset] for offset in sorted(found, reverse=True)[:max(limit, 0)]]
