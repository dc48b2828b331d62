"""Sequential reads of log and queue files by pread, without mapping (RocketMQ: MappedFileQueue, which maps).

No file is mapped or written, and every length is compared with the file before use: files may be foreign, damaged, or
shrink and vanish during the read. Each of these raises an exception that names file and offset. The walk (``step``)
is independent of the collected values: LogWalk collects messages, LogTally counts and sums for verify.
Formats: FORMAT.md.
"""

cimport cython
import errno as _errno
import os as _os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset
from mqfast.store.index.index_file cimport key_slot_hash
from mqfast.store.base.os_api cimport (
    MQ_OPEN_READ, OsApi, check, decode_path, encode_path, mq_get16, mq_get32, mq_get64, mq_os, mq_stat, os_error,
    read_all,
)
from mqfast.store.record.record cimport (
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    REC_OK,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    PropertyRefs,
    QueuePairs,
    Record,
    StoredMessage,
    begin_pairs,
    check_crc,
    find_properties,
    jhash,
    make_message,
    next_pair,
    parse_int,
    parse_record,
)

from mqfast.errors import CorruptFile, StorageError, StoreClosed

# Fits the second-level cache, so that checksums read bytes that pread has just stored there.
cdef enum:
    _BLOCK = 262144
    SHRUNK = -100001            # not an errno
    NO_MEMORY = -100002
    LEAST_RECORD = 91
    UNIT_BYTES = 20
    BATCH_UNIT_BYTES = 46
    FILLER_SIZE = 0x7FFFFFFF
    INNER_BATCH = 1 << 7        # of sysFlag: a record with several messages
    HEAD_BYTES = 128            # every fixed field of a record is in these bytes, whatever its hosts

cdef int64_t LEAST_TAGS_CODE = -2147483648      # smaller values are addresses of the extension file

STOPS = {
    STEP_BLANK: "blank", STEP_END: "end", STEP_ZERO: "zero", STEP_BAD: "no record", STEP_MISMATCH: "length",
    STEP_PLACE: "place", STEP_CRC: "crc",
}


# --- the walk --------------------------------------------------------------------------------------------------------

cdef int step(Window *w) noexcept nogil:
    """Check w.at: a record, or the reason why there is none. Moves w.at only over a valid record."""
    cdef const uint8_t *p = w.base + (w.at - w.start)
    cdef int64_t left = w.file_end - w.at
    cdef int64_t inside = w.start + w.filled - w.at
    cdef int64_t total, hosts, body
    cdef int32_t magic
    if left < 8:
        return STEP_END
    if inside < 8:
        w.need = 8
        return STEP_MORE
    total = mq_get32(p)
    magic = mq_get32(p + 4)
    w.record.total = <int32_t> total
    w.record.magic = magic
    if magic == MAGIC_BLANK:
        return STEP_BLANK
    if magic == 0 and total == 0:
        return STEP_ZERO
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or total < LEAST_RECORD or total > left:
        return STEP_BAD
    if total > inside:
        if inside < HEAD_BYTES:
            w.need = min(total, HEAD_BYTES)
            return STEP_MORE
        # A damaged length would cause an allocation of any size: the body's length must agree with it first.
        hosts = (20 if mq_get32(p + 36) & BORN_HOST_V6 else 8) + (20 if mq_get32(p + 36) & STORE_HOST_V6 else 8)
        body = max(mq_get32(p + 68 + hosts), 0)
        if not 3 <= total - 72 - hosts - body <= 4 + 2 * 32767:
            return STEP_MISMATCH
        w.need = total
        return STEP_MORE
    if parse_record(p, total, &w.record) != REC_OK:
        return STEP_MISMATCH
    if w.record.physical_offset != w.at:
        return STEP_PLACE
    if w.check_crc and not check_crc(p, &w.record, w.property_crc):
        return STEP_CRC
    w.at += total
    return STEP_RECORD


# --- an open file ----------------------------------------------------------------------------------------------------

@cython.no_gc_clear
@cython.final
cdef class PreadFile:
    """A file of a store, open for reading by pread; only the first ``most_bytes``, if not negative.

    Thread: any; close only without concurrent reads. GIL: released while reading.
    """

    def __cinit__(self, OsApi os_api not None, path, int64_t start=0, int64_t most_bytes=-1):
        cdef bytes name
        cdef const char *c
        self.fd = -1
        self.most_bytes = most_bytes
        name = encode_path(path)
        c = name
        self.os_api = os_api
        self.os = os_api.os
        self.path = decode_path(path)
        self.start = start
        with nogil:
            self.fd = self.os.open(self.os, c, MQ_OPEN_READ)
        check(self.fd, "open", path)
        self.length()

    def __dealloc__(self):
        if self.fd >= 0:
            self.os.close(self.os, self.fd)

    @property
    def end(self) -> int:
        """Stream offset of the end of the file."""
        return self.start + self.bytes

    def length(self) -> int:
        """Read the present length, bytes."""
        cdef mq_stat st
        if self.fd < 0:
            raise StoreClosed(f"file is closed: {self.path}")
        check(self.os.fstat(self.os, self.fd, &st), "stat", self.path)
        if st.is_directory:
            raise StorageError(_errno.EISDIR, "is a directory", self.path)
        self.bytes = min(st.bytes, self.most_bytes) if self.most_bytes >= 0 else st.bytes
        return self.bytes

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self.fd >= 0:
            self.os.close(self.os, self.fd)
            self.fd = -1

    cdef int64_t pread(self, void *to, int64_t n, int64_t position) noexcept nogil:
        if self.fd < 0:
            return -_errno_ebadf
        return read_all(self.os, self.fd, to, n, position)

    def read(self, int64_t position, int64_t n, bint whole=True) -> bytes:
        """Return ``n`` bytes from ``position`` (in this file) on; with ``whole=False`` fewer at the end of the file.

        Raises: CorruptFile if the file ends before, StorageError.
        """
        cdef int64_t got, room = self.bytes - position
        cdef bytes data
        cdef char *to
        if self.fd < 0:
            raise StoreClosed(f"file is closed: {self.path}")
        if position < 0 or n < 0 or n > room:
            if whole or position < 0 or n < 0:
                raise CorruptFile("the file ends early", path=self.path, offset=position, expected=f"{n} bytes",
                                  found=f"{max(room, 0)}")
            n = max(room, 0)
        data = PyBytes_FromStringAndSize(NULL, n)
        to = PyBytes_AS_STRING(data)
        with nogil:
            got = self.pread(to, n, position)
        check(got, "read", self.path)
        if got != n:
            if whole:
                raise CorruptFile("the file has shrunk", path=self.path, offset=position, expected=f"{n} bytes",
                                  found=f"{got}")
            return data[:got]
        return data

    def record(self, int64_t physical_offset, int32_t size=0, int64_t queue_offset=-1, bint check_body=True):
        """Return the record at a physical offset as a message over its own bytes object; ``size`` of the queue unit, 0:
        unknown.

        Returns: the message, or the reason why there is none, as text.
        Raises: CorruptFile if the file has shrunk, StorageError.
        """
        cdef int64_t position = physical_offset - self.start, left = self.bytes - position, want, total
        cdef bytes data
        cdef const uint8_t *p
        cdef Window w
        cdef int outcome
        if position < 0 or left < 8:
            return "outside of the file"
        if size and (size < LEAST_RECORD or size > left):
            return "length"
        memset(&w, 0, sizeof(w))
        w.start = w.at = physical_offset
        w.file_end = self.start + self.bytes
        w.check_crc = check_body
        want = size if size else min(left, 4096)
        data = self.read(position, want)
        w.base = <const uint8_t *> PyBytes_AS_STRING(data)
        w.filled = want
        outcome = step(&w)
        while outcome == STEP_MORE:
            if size:
                return "length"
            data = self.read(position, w.need)
            w.base = <const uint8_t *> PyBytes_AS_STRING(data)
            w.filled = w.need
            outcome = step(&w)
        if outcome != STEP_RECORD:
            return STOPS[outcome]
        total = w.record.total
        if size and total != size:
            return "length"
        if total != w.filled:
            data = data[:total]
        return make_message(data, <const uint8_t *> PyBytes_AS_STRING(data), queue_offset)

    def record_bytes(self, int64_t physical_offset) -> int:
        """Return the length of the record with valid parts there, whatever its content and its own offset; 0: no
        record.

        Raises: CorruptFile if the file has shrunk, StorageError.
        """
        cdef int64_t position = physical_offset - self.start, left = self.bytes - position
        cdef bytes data
        cdef Window w
        cdef int outcome
        if position < 0 or left < LEAST_RECORD:
            return 0
        memset(&w, 0, sizeof(w))
        w.start = w.at = physical_offset
        w.file_end = self.start + self.bytes
        w.need = min(left, 4096)
        outcome = STEP_MORE
        while outcome == STEP_MORE:
            data = self.read(position, w.need)
            w.base = <const uint8_t *> PyBytes_AS_STRING(data)
            w.filled = w.need
            outcome = step(&w)
        return w.record.total if outcome == STEP_RECORD else 0

    def valid_units(self, int64_t position, int32_t unit_bytes) -> int:
        """Return the position behind the last valid unit from ``position`` on: offset at least 0, size at least 1.

        Raises: CorruptFile if the file has shrunk, StorageError.
        """
        cdef uint8_t *buffer
        cdef int64_t n, got, end = self.bytes - self.bytes % unit_bytes, chunk = 3276 * unit_bytes, i
        cdef bint good = True
        if self.fd < 0:
            raise StoreClosed(f"file is closed: {self.path}")
        if position >= end:
            return end
        buffer = <uint8_t *> malloc(chunk)
        if buffer == NULL:
            raise MemoryError()
        try:
            with nogil:
                n = unit_bytes * 8          # most queues have few units behind a known end
                while good and position < end:
                    n = min(min(n, chunk), end - position)
                    got = self.pread(buffer, n, position)
                    if got != n:
                        break
                    i = 0
                    while i < n:
                        if not is_unit(buffer + i, unit_bytes):
                            good = False
                            break
                        i += unit_bytes
                    position += i
                    n = chunk
            if position < end and good:
                check(got, "read", self.path)
                raise CorruptFile("the file has shrunk", path=self.path, offset=position, expected=f"{n} bytes",
                                  found=f"{got}")
            return position
        finally:
            free(buffer)

    def first_set_byte(self, int64_t position) -> int:
        """Return the position of the first nonzero byte from ``position`` on, -1 for none. Holes are skipped."""
        cdef int64_t end = self.bytes, got = 0, i, at
        cdef uint8_t *buffer
        if self.fd < 0:
            raise StoreClosed(f"file is closed: {self.path}")
        buffer = <uint8_t *> malloc(_BLOCK)
        if buffer == NULL:
            raise MemoryError()
        try:
            with nogil:
                while position < end:
                    at = self.os.seek_data(self.os, self.fd, position)
                    if at == -_errno_enxio:
                        break
                    if at > position:
                        position = at
                    got = self.pread(buffer, min(_BLOCK, end - position), position)
                    if got <= 0:
                        break
                    i = first_set(buffer, got)
                    if i < got:
                        with gil:
                            return position + i
                    position += got
            check(got, "read", self.path)
            return -1
        finally:
            free(buffer)

    def find_record(self, int64_t physical_offset) -> int:
        """Return the start of the first whole record at or behind a physical offset, -1: none in this file. For reads
        behind damage.
        """
        cdef int64_t position = physical_offset - self.start, got = 0, i, keep, found = -1
        cdef uint8_t *buffer
        cdef const uint8_t *hit
        if position < 0:
            position = 0
        buffer = <uint8_t *> malloc(_BLOCK)
        if buffer == NULL:
            raise MemoryError()
        try:
            while position + LEAST_RECORD <= self.bytes:
                with nogil:
                    got = self.pread(buffer, min(_BLOCK, self.bytes - position), position)
                    i = 4
                    found = -1
                    while i + 32 <= got:
                        hit = <const uint8_t *> memchr(buffer + i, 0xDA, got - 32 - i + 1)
                        if hit == NULL:
                            break
                        i = hit - buffer
                        # a record holds its own offset: nothing else needs to be tried
                        if ((mq_get32(hit) == MAGIC_V1 or mq_get32(hit) == MAGIC_V2)
                                and mq_get64(hit + 24) == self.start + position + i - 4):
                            found = self.start + position + i - 4
                            break
                        i += 1
                check(got, "read", self.path)
                if found >= 0:
                    if not isinstance(self.record(found), str):
                        return found
                    position = found - self.start + 4
                elif got < 64:
                    break
                else:
                    position += got - 36
                    if position + LEAST_RECORD > self.bytes or got < _BLOCK:
                        break
            return -1
        finally:
            free(buffer)


cdef int _errno_ebadf = _errno.EBADF
cdef int _errno_enxio = _errno.ENXIO


cdef inline bint is_unit(const uint8_t *p, int32_t unit_bytes) noexcept nogil:
    if mq_get64(p) < 0 or mq_get32(p + 8) <= 0:
        return False
    return unit_bytes == UNIT_BYTES or (<uint64_t> mq_get64(p + 28) >> 62 == 0 and mq_get16(p + 36) > 0)


cdef int64_t first_set(const uint8_t *p, int64_t n) noexcept nogil:
    # compares the bytes with themselves shifted by one: memcmp is the fastest search for "all equal"
    cdef int64_t i = 0, block
    while i < n:
        block = min(4096, n - i)
        if p[i] or (block > 1 and memcmp(p + i, p + i + 1, block - 1)):
            while i < n and p[i] == 0:
                i += 1
            return i
        i += block
    return n


# --- walking through a log file --------------------------------------------------------------------------------------

@cython.no_gc_clear
@cython.final
cdef class LogWalk:
    """A walk through a log file, from a record on.

    Thread: one at a time. GIL: released while reading and parsing.
    """

    def __cinit__(self, PreadFile file not None, int64_t physical_offset, bint check_crc=True, bint property_crc=False,
                  int64_t block_bytes=_BLOCK):
        memset(&self.window, 0, sizeof(self.window))
        self.file = file
        self.room = max(block_bytes, HEAD_BYTES)
        self.buffer = <uint8_t *> malloc(self.room)
        if self.buffer == NULL:
            raise MemoryError()
        self.window.base = self.buffer
        self.window.start = self.window.at = physical_offset
        self.window.file_end = file.start + file.bytes
        self.window.check_crc = check_crc
        self.window.property_crc = property_crc

    def __dealloc__(self):
        free(self.buffer)

    @property
    def at(self) -> int:
        """Physical offset of the next record, or of the byte where the walk stopped."""
        return self.window.at

    @property
    def size(self) -> int:
        """The length field at the offset where the walk stopped."""
        return self.window.record.total

    @property
    def magic(self) -> int:
        """The magic code at the offset where the walk stopped, unsigned."""
        return <uint32_t> self.window.record.magic

    cdef int fill(self) noexcept nogil:
        """Read w.need bytes from w.at on into the window, and more bytes as far as there is room."""
        cdef Window *w = &self.window
        cdef int64_t rest = w.start + w.filled - w.at, want, got
        cdef uint8_t *grown
        if w.need > self.room:
            grown = <uint8_t *> realloc(self.buffer, w.need)
            if grown == NULL:
                return NO_MEMORY
            w.base = self.buffer = grown
            self.room = w.need
        if rest and w.at != w.start:
            memmove(self.buffer, self.buffer + (w.at - w.start), rest)
        w.base = self.buffer
        w.start = w.at
        w.filled = rest
        want = min(self.room - rest, w.file_end - (w.start + rest))
        got = self.file.pread(self.buffer + rest, want, w.start + rest - self.file.start)
        if got < 0:
            return <int> got
        w.filled += got
        return SHRUNK if w.filled < w.need else 0

    cdef int next(self) noexcept nogil:
        cdef int outcome = step(&self.window), rc
        while outcome == STEP_MORE:
            rc = self.fill()
            if rc < 0:
                return rc
            outcome = step(&self.window)
        return outcome

    cdef int failed(self, int rc) except -1:
        if rc == SHRUNK:
            raise CorruptFile("the file has shrunk", path=self.file.path, offset=self.window.at,
                              expected=f"{self.file.bytes} bytes",
                              found=f"{self.window.start + self.window.filled - self.file.start}")
        if rc == NO_MEMORY:
            raise MemoryError()
        raise os_error(rc, "read", self.file.path)

    def batch(self, int64_t limit=-1) -> tuple:
        """Return the next messages, a block of them: (messages, None), or at the end (messages, reason of the stop).

        The messages of a block share a bytes object. ``limit``: physical offset at which to stop ("limit").
        Raises: CorruptFile if the file has shrunk, StorageError.
        """
        cdef Window *w = &self.window
        cdef int64_t first, room = 64, n = 0, end, i
        cdef int64_t *places = <int64_t *> malloc(room * sizeof(int64_t))
        cdef int64_t *grown
        cdef int outcome = 0
        cdef bytes data
        cdef const uint8_t *p
        cdef list messages = []
        if places == NULL:
            raise MemoryError()
        try:
            with nogil:
                while True:
                    if limit >= 0 and w.at >= limit:
                        outcome = STEP_RECORD
                        break
                    outcome = self.next() if n == 0 else step(w)
                    if outcome != STEP_RECORD:
                        break
                    if n == room:
                        grown = <int64_t *> realloc(places, room * 2 * sizeof(int64_t))
                        if grown == NULL:
                            outcome = NO_MEMORY
                            break
                        places = grown
                        room *= 2
                    places[n] = w.at - w.record.total
                    n += 1
            if outcome < 0:
                self.failed(outcome)
            if n:
                first = places[0]
                end = w.at
                data = PyBytes_FromStringAndSize(<const char *> w.base + (first - w.start), end - first)
                p = <const uint8_t *> PyBytes_AS_STRING(data)
                for i in range(n):
                    messages.append(make_message(data, p + (places[i] - first), -1))
            if outcome == STEP_MORE:
                return messages, None
            return messages, "limit" if outcome == STEP_RECORD else STOPS[outcome]
        finally:
            free(places)

    def skip(self, int64_t limit=-1) -> str:
        """Continue the walk without collecting anything. Returns: the reason of the stop, or "limit"."""
        cdef int outcome = STEP_RECORD
        cdef Window *w = &self.window
        with nogil:
            while outcome == STEP_RECORD and (limit < 0 or w.at < limit):
                outcome = self.next()
        if outcome < 0:
            self.failed(outcome)
        return "limit" if outcome == STEP_RECORD else STOPS[outcome]

    cdef int over(self) noexcept nogil:
        """Step over a record that step found to be larger than the window, by its head and the bytes behind
        its body.
        """
        cdef Window *w = &self.window
        cdef const uint8_t *p = w.base + (w.at - w.start)
        cdef int64_t total = mq_get32(p), got, at, topic
        cdef uint8_t lengths[2]
        at = 72 + (20 if mq_get32(p + 36) & BORN_HOST_V6 else 8) + (20 if mq_get32(p + 36) & STORE_HOST_V6 else 8)
        at += max(mq_get32(p + at - 4), 0)
        got = self.file.pread(lengths, 2, w.at + at - self.file.start)
        if got != 2:
            return <int> got if got < 0 else SHRUNK
        if mq_get32(p + 4) == MAGIC_V1:
            topic = <signed char> lengths[0]
            at += 1
        else:
            topic = mq_get16(lengths)
            at += 2
        at += topic
        if topic < 0 or at + 2 > total:
            return STEP_MISMATCH
        got = self.file.pread(lengths, 2, w.at + at - self.file.start)
        if got != 2:
            return <int> got if got < 0 else SHRUNK
        if at + 2 + max(mq_get16(lengths), 0) != total:
            return STEP_MISMATCH
        if mq_get64(p + 28) != w.at:
            return STEP_PLACE
        w.at += total
        w.start = w.at
        w.filled = 0
        return STEP_RECORD

    def hop(self, int64_t limit=-1) -> str:
        """Skip without checksums, and without reading the bodies of records that are larger than a block."""
        cdef int outcome = STEP_RECORD, rc
        cdef Window *w = &self.window
        w.check_crc = False
        with nogil:
            while outcome == STEP_RECORD and (limit < 0 or w.at < limit):
                outcome = step(w)
                while outcome == STEP_MORE:
                    if w.need > self.room:
                        outcome = self.over()
                        break
                    rc = self.fill()
                    outcome = rc if rc < 0 else step(w)
        if outcome < 0:
            self.failed(outcome)
        return "limit" if outcome == STEP_RECORD else STOPS[outcome]

    def tally(self, LogTally tally not None) -> str:
        """Continue the walk and count every record into ``tally``. Returns: the reason of the stop."""
        cdef int outcome
        cdef int rc = 0
        with nogil:
            while True:
                outcome = self.next()
                if outcome != STEP_RECORD:
                    break
                rc = tally.count_record(&self.window.record)
                if rc < 0:
                    outcome = rc
                    break
        if outcome < 0:
            self.failed(outcome)
        return STOPS[outcome]


# --- sums over the log, to be compared with sums over queues and index -----------------------------------------------

cdef inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) noexcept nogil:
    # Each number passes through the multiplication of the previous numbers, so that equal sums mean equal sets except
    # by chance.
    cdef uint64_t x = a * <uint64_t> 0x9E3779B97F4A7C15
    x = (x ^ (x >> 32) ^ b) * <uint64_t> 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 29) ^ c) * <uint64_t> 0x94D049BB133111EB
    x = (x ^ (x >> 31) ^ d) * <uint64_t> 0xD6E8FEB86659FD93
    return x ^ (x >> 32)


cdef inline bint is_schedule(const uint8_t *topic, int64_t n) noexcept nogil:
    # its tags code is a delivery time that depends on the writer's table of delays
    return n == 19 and memcmp(topic, "SCHEDULE_TOPIC_XXXX", 19) == 0


@cython.no_gc_clear
@cython.final
cdef class LogTally:
    """The units and index entries that the records of a log require, as counts and sums that are independent of the
    order.

    Args: floors: topic -> end of the last record that was deleted with the topic: those records require no unit.
    Thread: one at a time.
    """

    def __cinit__(self, dict floors=None):
        cdef int64_t i = 0
        cdef bytes topic
        self.slots = 64
        self.table = <Counted *> calloc(self.slots, sizeof(Counted))
        self.floor_topics = []
        self.floors = <Floor *> calloc(max(1, len(floors or ())), sizeof(Floor))
        if self.table == NULL or self.floors == NULL:
            raise MemoryError()
        for name, end in (floors or {}).items():
            topic = name.encode()
            self.floor_topics.append(topic)
            self.floors[i].topic = <const uint8_t *> PyBytes_AS_STRING(topic)
            self.floors[i].topic_bytes = len(topic)
            self.floors[i].end = end
            i += 1
        self.floor_count = i
        self.first_timestamp = self.last_timestamp = self.first_backward = -1

    def __dealloc__(self):
        cdef int64_t i
        free(self.floors)
        if self.table != NULL:
            for i in range(self.slots):
                free(self.table[i].topic)
            free(self.table)

    cdef Counted *find(self, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil:
        cdef uint64_t hash_ = <uint64_t> queue_id * <uint64_t> 0x9E3779B97F4A7C15, word
        cdef int64_t i = 0
        cdef Counted *c
        while i + 8 <= n:
            memcpy(&word, topic + i, 8)
            hash_ = (hash_ ^ word) * <uint64_t> 0xBF58476D1CE4E5B9
            hash_ ^= hash_ >> 29
            i += 8
        word = 0
        memcpy(&word, topic + i, n - i)
        hash_ = (hash_ ^ word ^ <uint64_t> n << 56) * <uint64_t> 0x94D049BB133111EB
        hash_ ^= hash_ >> 31
        i = hash_ & (self.slots - 1)
        while True:
            c = &self.table[i]
            if c.topic == NULL:
                break
            if c.hash == hash_ and c.queue_id == queue_id and c.topic_bytes == n and memcmp(c.topic, topic, n) == 0:
                return c
            i = (i + 1) & (self.slots - 1)
        if self.used * 2 >= self.slots:
            if self.grow() < 0:
                return NULL
            return self.find(topic, n, queue_id)
        c.topic = <uint8_t *> malloc(n + 1)
        if c.topic == NULL:
            return NULL
        memcpy(c.topic, topic, n)
        c.topic_bytes = n
        c.queue_id = queue_id
        c.hash = hash_
        c.first_physical = c.min_offset = c.floor = -1
        for i in range(self.floor_count):
            if self.floors[i].topic_bytes == n and memcmp(self.floors[i].topic, topic, n) == 0:
                c.floor = self.floors[i].end
        self.used += 1
        return c

    cdef int grow(self) noexcept nogil:
        cdef int64_t i, k, slots = self.slots * 2
        cdef Counted *table = <Counted *> calloc(slots, sizeof(Counted))
        if table == NULL:
            return NO_MEMORY
        for i in range(self.slots):
            if self.table[i].topic != NULL:
                k = self.table[i].hash & (slots - 1)
                while table[k].topic != NULL:
                    k = (k + 1) & (slots - 1)
                table[k] = self.table[i]
        free(self.table)
        self.table = table
        self.slots = slots
        return 0

    cdef int count_record(self, Record *r) noexcept nogil:
        cdef PropertyRefs f
        cdef int64_t tags, number, base
        cdef QueuePairs pairs
        cdef int32_t transaction = r.sys_flag & TRANSACTION_MASK
        cdef const uint8_t *name
        cdef const uint8_t *names_end
        cdef const uint8_t *stop
        cdef int32_t topic_hash
        cdef bint light
        self.records += 1
        self.bytes += r.total
        self.body_bytes += r.body_bytes
        if self.first_timestamp < 0:
            self.first_timestamp = r.store_timestamp
        if r.store_timestamp < self.last_timestamp:
            if self.backward_times == 0:
                self.first_backward = r.physical_offset
            self.backward_times += 1
        self.last_timestamp = r.store_timestamp
        find_properties(r.properties, r.properties_bytes, &f)
        if transaction != TRANSACTION_PREPARED and transaction != TRANSACTION_ROLLBACK:
            tags = jhash(f.tags, f.tags_bytes, 0) if f.tags != NULL else 0
            if is_schedule(r.topic, r.topic_bytes):
                tags = 0
            number, base = 1, r.queue_offset
            if r.sys_flag & INNER_BATCH and f.inner_num != NULL:
                number = parse_int(f.inner_num, f.inner_num_bytes, 1)
            if r.sys_flag & INNER_BATCH and f.inner_base != NULL:
                base = parse_int(f.inner_base, f.inner_base_bytes, r.queue_offset)
            if count_unit(self, r.topic, r.topic_bytes, r.queue_id, r, tags, base, number, r.queue_offset) < 0:
                return NO_MEMORY
            begin_pairs(&pairs, &f)
            while next_pair(&pairs):
                base = parse_int(pairs.offset, pairs.offset_bytes, -1) if pairs.offset != NULL else -1
                if pairs.name_bytes > 0 and base >= 0 and memchr(pairs.name, c'/', pairs.name_bytes) == NULL:
                    light = pairs.name_bytes >= 5 and memcmp(pairs.name, "%LMQ%", 5) == 0
                    if count_unit(self, pairs.name, pairs.name_bytes, 0 if light else r.queue_id, r, tags, base, 1,
                                  base) < 0:
                        return NO_MEMORY
        if transaction != TRANSACTION_ROLLBACK and (f.tags != NULL or f.uniq_key != NULL or f.keys != NULL):
            topic_hash = <int32_t> (<uint32_t> jhash(r.topic, r.topic_bytes, 0) * 31 + 35)      # '#'
            if f.uniq_key != NULL:
                self.keys += 1
                self.key_digest += mix(key_slot_hash(jhash(f.uniq_key, f.uniq_key_bytes, topic_hash)),
                                       r.physical_offset, 0, 0)
            if f.keys != NULL:
                name = f.keys
                names_end = name + f.keys_bytes
                while name < names_end:
                    stop = <const uint8_t *> memchr(name, c' ', names_end - name)
                    if stop == NULL:
                        stop = names_end
                    if stop > name:
                        self.keys += 1
                        self.key_digest += mix(key_slot_hash(jhash(name, stop - name, topic_hash)), r.physical_offset,
                                               0, 0)
                    name = stop + 1
            if f.tags != NULL:
                self.tags += 1
                topic_hash = jhash(<const uint8_t *> "T#", 2, topic_hash)
                self.tag_digest += mix(key_slot_hash(jhash(f.tags, f.tags_bytes, topic_hash)), r.physical_offset, 0, 0)
        return 0

    @property
    def key_sum(self) -> int:
        """Sum over every (key hash, physical offset) that belongs into the index, except tags."""
        return self.key_digest

    @property
    def tag_sum(self) -> int:
        """The same for the entries of tags, which releases before 5.5 do not write."""
        return self.tag_digest

    def queues(self) -> dict:
        """Return (topic, queue id) -> (records, sum, sum for a batch queue, first physical offset, end of the last
        record, lowest queue offset, highest queue offset + 1, bytes).
        """
        cdef int64_t i
        cdef Counted *c
        cdef dict found = {}
        for i in range(self.slots):
            c = &self.table[i]
            if c.topic != NULL and c.count:
                topic = (<const char *> c.topic)[:c.topic_bytes].decode("utf-8", "replace")
                found[topic, c.queue_id] = (c.count, c.digest, c.batch_digest, c.first_physical, c.end_physical,
                                            c.min_offset, c.max_offset, c.bytes)
        return found


cdef int count_unit(LogTally t, const uint8_t *topic, int32_t n, int32_t queue_id, Record *r, int64_t tags,
                    int64_t base, int64_t number, int64_t queue_offset) noexcept nogil:
    cdef Counted *c = t.find(topic, n, queue_id)
    if c == NULL:
        return NO_MEMORY
    if r.physical_offset + r.total <= c.floor:
        return 0
    c.count += 1
    c.bytes += r.total
    c.digest += mix(r.physical_offset, r.total, tags, queue_offset)
    c.batch_digest += mix(r.physical_offset, r.total, tags, base) + mix(r.store_timestamp, number, 0, 0)
    if c.first_physical < 0:
        c.first_physical = r.physical_offset
    c.end_physical = r.physical_offset + r.total
    if c.min_offset < 0 or base < c.min_offset:
        c.min_offset = base
    if base + number > c.max_offset:
        c.max_offset = base + number
    return 0


# --- record positions of queue units ---------------------------------------------------------------------------------

cdef int _compare_places(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const Place *> a).physical, y = (<const Place *> b).physical
    return (x > y) - (x < y)


@cython.no_gc_clear
@cython.final
cdef class RecordPositions:
    """Record positions from queue units: boundaries that no body of a message can forge.

    Thread: one at a time.
    """

    def __dealloc__(self):
        free(self.table)

    def __len__(self):
        return self.used

    def add(self, bytes units not None, int32_t unit_bytes=UNIT_BYTES, int64_t low=0) -> None:
        """Add the positions of these units, for records that start at ``low`` or behind; invalid units are skipped."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(units)
        cdef int64_t i = 0, n = len(units) - len(units) % unit_bytes, wanted = self.used + n // unit_bytes
        cdef Place *grown
        if wanted > self.room:
            wanted = max(wanted, 2 * self.room)
            grown = <Place *> realloc(self.table, wanted * sizeof(Place))
            if grown == NULL:
                raise MemoryError()
            self.table = grown
            self.room = wanted
        with nogil:
            while i < n:
                if is_unit(p + i, unit_bytes) and mq_get64(p + i) >= low and mq_get32(p + i + 8) != FILLER_SIZE:
                    self.table[self.used].physical = mq_get64(p + i)
                    self.table[self.used].size = mq_get32(p + i + 8)
                    self.used += 1
                i += unit_bytes
        self.sorted = False

    cdef int64_t find(self, int64_t physical_offset) noexcept nogil:
        """Return the number of the first position at or behind an offset."""
        cdef int64_t low = 0, high = self.used, middle
        if not self.sorted:
            if self.used:
                qsort(self.table, self.used, sizeof(Place), _compare_places)
            self.sorted = True
        while low < high:
            middle = (low + high) // 2
            if self.table[middle].physical < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def size_at(self, int64_t physical_offset) -> int:
        """Return the size that a unit gives for the record there, 0: no unit does, or two disagree."""
        cdef int64_t i = self.find(physical_offset), size = 0
        while i < self.used and self.table[i].physical == physical_offset:
            if size and self.table[i].size != size:
                return 0
            size = self.table[i].size
            i += 1
        return size

    def next(self, int64_t physical_offset) -> int:
        """Return the first position at or behind an offset, -1: none."""
        cdef int64_t i = self.find(physical_offset)
        return self.table[i].physical if i < self.used else -1


# --- sums over queue files and index files ---------------------------------------------------------------------------

@cython.no_gc_clear
@cython.final
cdef class ExtFiles:
    """The files of a queue's extension, for resolving addresses. Thread: any."""

    def __cinit__(self, list files not None):
        cdef PreadFile f
        cdef int i
        self.files = files
        self.count = len(files)
        self.starts = <int64_t *> malloc(max(1, self.count) * 8)
        self.lengths = <int64_t *> malloc(max(1, self.count) * 8)
        self.fds = <int *> malloc(max(1, self.count) * sizeof(int))
        if self.starts == NULL or self.lengths == NULL or self.fds == NULL:
            raise MemoryError()
        for i in range(self.count):
            f = files[i]
            self.os = f.os
            self.starts[i] = f.start
            self.lengths[i] = f.bytes
            self.fds[i] = f.fd

    def __dealloc__(self):
        free(self.starts)
        free(self.lengths)
        free(self.fds)

    cdef int64_t tags_of(self, int64_t address) noexcept nogil:
        """Return the tags code behind an address; the address itself if it cannot be read."""
        cdef int64_t offset = address + (<int64_t> 1 << 62) + (<int64_t> 1 << 62)
        cdef uint8_t head[10]
        cdef int i
        for i in range(self.count):
            if self.starts[i] <= offset and offset + 20 <= self.starts[i] + self.lengths[i]:
                if read_all(self.os, self.fds[i], head, 10, offset - self.starts[i]) != 10 or mq_get16(head) < 20:
                    return address
                return mq_get64(head + 2)
        return address

    def tags_code(self, int64_t value) -> int:
        """Return the tags code of a unit: ``value`` itself, or the value in the extension at that address; the address
        if unresolved.
        """
        return value if value >= LEAST_TAGS_CODE else self.tags_of(value)


def tally_units(PreadFile file not None, int64_t position, int64_t end, int32_t unit_bytes, int64_t log_min,
                int64_t log_end, bint with_tags, ExtFiles ext, state) -> tuple:
    """Check the units of a queue file and add up those whose record should be in [log_min, log_end).

    Args: ``state``: the result for the previous file, None for the first.
    Returns: (units, fillers, of removed records, beyond the log, invalid, first invalid position, out of order,
    position of the first, counted, their sum, last offset, next queue offset of a batch queue, messages).
    Raises: CorruptFile if the file has shrunk, StorageError.
    """
    cdef int64_t units = 0, fillers = 0, removed = 0, beyond = 0
    cdef int64_t invalid = 0, invalid_at = -1, disorder = 0, disorder_at = -1
    cdef int64_t counted = 0, last = -1, next_base = -1, messages = 0
    cdef uint64_t digest = 0
    cdef int64_t n = 0, got = 0, i, physical, tags, base, number, chunk = 3276 * unit_bytes
    cdef int32_t size
    cdef const uint8_t *p
    cdef uint8_t *buffer
    if state is not None:
        (units, fillers, removed, beyond, invalid, invalid_at, disorder, disorder_at, counted, digest, last, next_base,
         messages) = state
    end -= (end - position) % unit_bytes
    buffer = <uint8_t *> malloc(chunk)
    if buffer == NULL:
        raise MemoryError()
    try:
        with nogil:
            while position < end:
                n = min(chunk, end - position)
                got = file.pread(buffer, n, position)
                if got != n:
                    break
                i = 0
                while i < n:
                    p = buffer + i
                    units += 1
                    physical = mq_get64(p)
                    size = mq_get32(p + 8)
                    if not is_unit(p, unit_bytes):
                        if invalid == 0:
                            invalid_at = file.start + position + i
                        invalid += 1
                    elif physical == 0 and size == FILLER_SIZE:
                        fillers += 1
                    else:
                        number = mq_get16(p + 36) if unit_bytes == BATCH_UNIT_BYTES else 1
                        messages += number
                        base = (mq_get64(p + 28) if unit_bytes == BATCH_UNIT_BYTES
                                else (file.start + position + i) // UNIT_BYTES)
                        if (physical <= last or (unit_bytes == BATCH_UNIT_BYTES and next_base >= 0
                                                 and base != next_base)):
                            if disorder == 0:
                                disorder_at = file.start + position + i
                            disorder += 1
                        last = physical
                        next_base = base + number
                        if physical < log_min:
                            removed += 1
                        elif physical + size > log_end:
                            beyond += 1
                        else:
                            tags = mq_get64(p + 12) if with_tags else 0
                            if tags < LEAST_TAGS_CODE and ext is not None:
                                tags = ext.tags_of(tags)
                            counted += 1
                            digest += mix(physical, size, tags, base)
                            if unit_bytes == BATCH_UNIT_BYTES:
                                digest += mix(mq_get64(p + 20), number, 0, 0)
                    i += unit_bytes
                position += n
        if got != n:
            check(got, "read", file.path)
            raise CorruptFile("the file has shrunk", path=file.path, offset=position, expected=f"{n} bytes",
                              found=f"{got}")
        return (units, fillers, removed, beyond, invalid, invalid_at, disorder, disorder_at, counted, digest, last,
                next_base, messages)
    finally:
        free(buffer)


def tally_index(PreadFile file not None, int32_t slots, int32_t capacity, int64_t log_min, int64_t log_end) -> tuple:
    """Check every chain of an index file, and add up the entries that point into [log_min, log_end).

    Returns: (entries, counted, their sum, wrong entries, byte of the first, wrong slots, byte of the first, entries
    beyond log_end).
    Raises: CorruptFile if the file has shrunk, StorageError.
    """
    cdef int64_t counted = 0, wrong = 0, wrong_at = -1, wrong_slots = 0, wrong_slot_at = -1, beyond = 0
    cdef uint64_t digest = 0
    cdef int64_t n = 0, got = 0, i, number = 1, count, entries = 40 + 4 * <int64_t> slots, physical
    cdef int32_t key_hash, previous, value
    cdef const uint8_t *p
    cdef int32_t *heads
    cdef uint8_t *buffer
    if slots < 1 or capacity < 2 or entries + 20 * <int64_t> capacity > file.bytes:
        raise CorruptFile("no index file of these sizes has this length", path=file.path,
                          expected=f"{entries + 20 * <int64_t> capacity} bytes", found=f"{file.bytes}")
    count = max(1, min(<int64_t> int.from_bytes(file.read(36, 4), "big", signed=True), capacity))
    buffer = <uint8_t *> malloc(_BLOCK)
    heads = <int32_t *> calloc(slots, 4)
    try:
        if buffer == NULL or heads == NULL:
            raise MemoryError()
        with nogil:
            while number < count:
                n = min(_BLOCK // 20, count - number) * 20
                got = file.pread(buffer, n, entries + 20 * number)
                if got != n:
                    break
                i = 0
                while i < n:
                    p = buffer + i
                    key_hash = mq_get32(p)
                    physical = mq_get64(p + 4)
                    previous = mq_get32(p + 16)
                    if (key_hash < 0 or physical < 0 or mq_get32(p + 12) < 0
                        or previous != heads[max(key_hash, 0) % slots]):
                        if wrong == 0:
                            wrong_at = entries + 20 * number
                        wrong += 1
                    if key_hash >= 0:
                        heads[key_hash % slots] = <int32_t> number
                    if log_min <= physical < log_end:
                        counted += 1
                        digest += mix(key_hash, physical, 0, 0)
                    elif physical >= log_end:
                        beyond += 1
                    number += 1
                    i += 20
        if got != n:
            check(got, "read", file.path)
            raise CorruptFile("the file has shrunk", path=file.path, offset=entries + 20 * number,
                              expected=f"{n} bytes", found=f"{got}")
        number = 0
        with nogil:
            while number < slots:
                n = min(_BLOCK // 4, slots - number) * 4
                got = file.pread(buffer, n, 40 + 4 * number)
                if got != n:
                    break
                i = 0
                while i < n:
                    value = mq_get32(buffer + i)
                    if value != heads[number]:
                        if wrong_slots == 0:
                            wrong_slot_at = 40 + 4 * number
                        wrong_slots += 1
                    number += 1
                    i += 4
        if got != n:
            check(got, "read", file.path)
            raise CorruptFile("the file has shrunk", path=file.path, offset=40 + 4 * number, expected=f"{n} bytes",
                              found=f"{got}")
        return count - 1, counted, digest, wrong, wrong_at, wrong_slots, wrong_slot_at, beyond
    finally:
        free(buffer)
        free(heads)
