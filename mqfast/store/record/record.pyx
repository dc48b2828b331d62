"""CommitLog records: encode, check, decode (RocketMQ: MessageExtEncoder, CommitLog.checkMessageAndReturnSize,
MessageDecoder).

Every length is compared with the available bytes before use, and no memory is owned: the functions work on pointers
that the caller holds. Layout: FORMAT.md.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy
from mqfast.store.base.mapped_file cimport FilePin
from mqfast.store.base.os_api cimport (
    crc31, crc32_copy, crc32_more, mq_get16, mq_get32, mq_get64, mq_put16, mq_put32, mq_put64, mq_touch,
)

from mqfast.errors import CorruptFile
from mqfast.message import encode_message_id, format_host
from mqfast.properties import decode as decode_properties


# --- parse and check -------------------------------------------------------------------------------------------------

cdef int parse_record(const uint8_t *p, int64_t available, Record *r) noexcept nogil:
    """Parse the record at p, of which `available` bytes may be read. Lengths are checked before use."""
    cdef int64_t at, total
    cdef int32_t magic
    if available < 8:
        return REC_BAD
    total = mq_get32(p)
    magic = mq_get32(p + 4)
    r.total = <int32_t> total
    r.magic = magic
    if total > available or total < 0:
        return REC_BAD
    if magic == MAGIC_BLANK:
        return REC_BLANK
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return REC_BAD
    if available < HEADER_BYTES + 3:
        return REC_BAD
    r.body_crc = mq_get32(p + 8)
    r.queue_id = mq_get32(p + 12)
    r.flag = mq_get32(p + 16)
    r.queue_offset = mq_get64(p + 20)
    r.physical_offset = mq_get64(p + 28)
    r.sys_flag = mq_get32(p + 36)
    r.born_timestamp = mq_get64(p + 40)
    r.born_host = p + 48
    r.born_host_bytes = 20 if r.sys_flag & BORN_HOST_V6 else 8
    r.store_host_bytes = 20 if r.sys_flag & STORE_HOST_V6 else 8
    at = 48 + r.born_host_bytes
    if available < at + 8 + r.store_host_bytes + 16:
        return REC_BAD
    r.store_timestamp = mq_get64(p + at)
    at += 8
    r.store_host = p + at
    at += r.store_host_bytes
    r.reconsume_times = mq_get32(p + at)
    r.prepared_offset = mq_get64(p + at + 4)
    r.body_bytes = mq_get32(p + at + 12)
    at += 16
    r.body = p + at
    if r.body_bytes < 0:
        r.body_bytes = 0            # RocketMQ counts a negative length as empty
    at += r.body_bytes
    if at + 2 > available:
        return REC_BAD
    if magic == MAGIC_V1:
        r.topic_bytes = <int32_t> <signed char> p[at]
        at += 1
    else:
        r.topic_bytes = mq_get16(p + at)
        at += 2
    if r.topic_bytes < 0:
        return REC_BAD
    r.topic = p + at
    at += r.topic_bytes
    if at + 2 > available:
        return REC_BAD
    r.properties_bytes = mq_get16(p + at)
    if r.properties_bytes < 0:
        r.properties_bytes = 0
    at += 2
    r.properties = p + at
    at += r.properties_bytes
    if at > available:
        return REC_BAD
    return REC_OK if at == total else REC_MISMATCH


cdef int check_crc(const uint8_t *p, Record *r, bint property_crc) noexcept nogil:
    """Return 1 if the checksum agrees: of the body, or of the whole record with property_crc."""
    cdef PropertyRefs f
    cdef int64_t value = 0
    cdef int i
    if not property_crc:
        # also of an empty body, whose checksum is 0: RocketMQ skips it, and accepts a body with a lost length as empty
        return crc31(r.body, r.body_bytes) == <uint32_t> r.body_crc
    find_properties(r.properties, r.properties_bytes, &f)
    if f.crc == NULL or f.crc_bytes != 10 or r.total < CRC_PROPERTY_BYTES:
        return 0
    for i in range(9, -1, -1):      # the lowest digit comes first
        if f.crc[i] < c'0' or f.crc[i] > c'9':
            return 0
        value = value * 10 + (f.crc[i] - c'0')
    return value == crc31(p, r.total - CRC_PROPERTY_BYTES)


cdef int64_t read_store_timestamp(const uint8_t *p) noexcept nogil:
    return mq_get64(p + (68 if mq_get32(p + 36) & BORN_HOST_V6 else 56))


cdef inline bint _is(const uint8_t *name, int64_t n, const char *word, int64_t word_bytes) noexcept nogil:
    return n == word_bytes and memcmp(name, word, word_bytes) == 0


cdef void find_properties(const uint8_t *p, int32_t n, PropertyRefs *f) noexcept nogil:
    """Find the properties in a pass over the property text; the last of equal names wins; pairs with an empty name or
    value do not count.
    """
    cdef const uint8_t *end = p + n
    cdef const uint8_t *pair_end
    cdef const uint8_t *sep
    cdef int64_t name_bytes
    cdef int32_t value_bytes
    f.tags = f.keys = f.uniq_key = f.delay = f.wait = f.crc = NULL
    f.inner_num = f.inner_base = f.multi_dispatch = f.multi_offset = NULL
    while p < end:
        pair_end = <const uint8_t *> memchr(p, 2, end - p)
        if pair_end == NULL:
            pair_end = end
        if pair_end - p >= 3:
            sep = <const uint8_t *> memchr(p, 1, pair_end - p)
            if sep != NULL and sep > p and sep + 1 < pair_end:
                name_bytes = sep - p
                value_bytes = <int32_t> (pair_end - sep - 1)
                if name_bytes == 4:
                    if memcmp(p, "TAGS", 4) == 0:
                        f.tags = sep + 1
                        f.tags_bytes = value_bytes
                    elif memcmp(p, "KEYS", 4) == 0:
                        f.keys = sep + 1
                        f.keys_bytes = value_bytes
                    elif memcmp(p, "WAIT", 4) == 0:
                        f.wait = sep + 1
                        f.wait_bytes = value_bytes
                elif name_bytes == 8:
                    if memcmp(p, "UNIQ_KEY", 8) == 0:
                        f.uniq_key = sep + 1
                        f.uniq_key_bytes = value_bytes
                    elif memcmp(p, "__CRC32#", 8) == 0:
                        f.crc = sep + 1
                        f.crc_bytes = value_bytes
                elif name_bytes == 5:
                    if memcmp(p, "DELAY", 5) == 0:
                        f.delay = sep + 1
                        f.delay_bytes = value_bytes
                elif _is(p, name_bytes, "INNER_NUM", 9):
                    f.inner_num = sep + 1
                    f.inner_num_bytes = value_bytes
                elif _is(p, name_bytes, "INNER_BASE", 10):
                    f.inner_base = sep + 1
                    f.inner_base_bytes = value_bytes
                elif _is(p, name_bytes, "INNER_MULTI_DISPATCH", 20):
                    f.multi_dispatch = sep + 1
                    f.multi_dispatch_bytes = value_bytes
                elif _is(p, name_bytes, "INNER_MULTI_QUEUE_OFFSET", 24):
                    f.multi_offset = sep + 1
                    f.multi_offset_bytes = value_bytes
        p = pair_end + 1


cdef bint waits_for_disk(const PropertyRefs *f) noexcept nogil:
    """Return True if a put of these properties waits for a sync flush, which is the default without WAIT
    (Message.isWaitStoreMsgOK: Boolean.parseBoolean).
    """
    cdef int32_t i
    if f.wait == NULL:
        return True
    if f.wait_bytes != 4:
        return False
    for i in range(4):
        if f.wait[i] | 0x20 != (<const uint8_t *> "true")[i]:
            return False
    return True


cdef int64_t parse_int(const uint8_t *p, int32_t n, int64_t otherwise) noexcept nogil:
    """Return the decimal number of that text, or `otherwise` for other text (or more than 18 digits)."""
    cdef int64_t value = 0
    cdef int32_t i = 0
    cdef bint negative = False
    if n > 0 and (p[0] == c'-' or p[0] == c'+'):
        negative = p[0] == c'-'
        i = 1
    if i >= n or n - i > 18:
        return otherwise
    while i < n:
        if p[i] < c'0' or p[i] > c'9':
            return otherwise
        value = value * 10 + (p[i] - c'0')
        i += 1
    return -value if negative else value


cdef void begin_pairs(QueuePairs *pairs, const PropertyRefs *f) noexcept nogil:
    pairs.next_name = f.multi_dispatch
    pairs.names_end = f.multi_dispatch + f.multi_dispatch_bytes if f.multi_dispatch != NULL else NULL
    pairs.next_offset = f.multi_offset
    pairs.offsets_end = f.multi_offset + f.multi_offset_bytes if f.multi_offset != NULL else NULL


cdef bint next_pair(QueuePairs *pairs) noexcept nogil:
    """Read the next name and its offset; False at the end of the names."""
    cdef const uint8_t *stop
    if pairs.next_name == NULL or pairs.next_name >= pairs.names_end:
        return False
    stop = <const uint8_t *> memchr(pairs.next_name, c',', pairs.names_end - pairs.next_name)
    if stop == NULL:
        stop = pairs.names_end
    pairs.name = pairs.next_name
    pairs.name_bytes = <int32_t> (stop - pairs.name)
    pairs.next_name = stop + 1
    pairs.offset = NULL
    pairs.offset_bytes = 0
    if pairs.next_offset != NULL and pairs.next_offset < pairs.offsets_end:
        stop = <const uint8_t *> memchr(pairs.next_offset, c',', pairs.offsets_end - pairs.next_offset)
        if stop == NULL:
            stop = pairs.offsets_end
        pairs.offset = pairs.next_offset
        pairs.offset_bytes = <int32_t> (stop - pairs.offset)
        pairs.next_offset = stop + 1
    return True


cdef int64_t offset_in_queue(const Record *r, const uint8_t *topic, int32_t n, int32_t queue_id) noexcept nogil:
    """Return the record's own queue offset in a queue: that of its queue, or an offset that
    INNER_MULTI_DISPATCH names.
    """
    cdef PropertyRefs f
    cdef QueuePairs pairs
    if r.queue_id == queue_id and r.topic_bytes == n and memcmp(r.topic, topic, n) == 0:
        return r.queue_offset
    find_properties(r.properties, r.properties_bytes, &f)
    begin_pairs(&pairs, &f)
    while next_pair(&pairs):
        if pairs.name_bytes == n and memcmp(pairs.name, topic, n) == 0:
            return ANYWHERE if pairs.offset == NULL else parse_int(pairs.offset, pairs.offset_bytes, ANYWHERE)
    return NOT_IN_QUEUE


cdef int32_t jhash(const uint8_t *p, int64_t n, int32_t seed) noexcept nogil:
    """Return Java's String.hashCode of UTF-8 text, continued from `seed`; ill-formed bytes hash as Java's decoder reads
    them, U+FFFD.
    """
    cdef uint32_t h = <uint32_t> seed, c, low
    cdef int64_t i = 0, need, k
    while i < n:
        c = p[i]
        if c < 0x80:
            h = h * 31 + c
            i += 1
            continue
        need = (1 if c & 0xE0 == 0xC0 and c >= 0xC2 else 2 if c & 0xF0 == 0xE0 else 3 if c & 0xF8 == 0xF0 and c <= 0xF4
                else 0)
        if need == 0:
            h = h * 31 + 0xFFFD
            i += 1
            continue
        c &= 0x3F >> need
        k = 1
        while k <= need and i + k < n and p[i + k] & 0xC0 == 0x80:
            low = p[i + k]
            if k == 1:
                # over-long forms, surrogates and code points above U+10FFFF end at their first byte
                if need == 2 and ((c == 0 and low < 0xA0) or (c == 0x0D and low >= 0xA0)):
                    break
                if need == 3 and ((c == 0 and low < 0x90) or (c == 4 and low >= 0x90)):
                    break
            c = c << 6 | (low & 0x3F)
            k += 1
        if k <= need:
            h = h * 31 + 0xFFFD
            i += k
            continue
        if c >= 0x10000:
            c -= 0x10000
            h = h * 31 + (0xD800 + (c >> 10))
            h = h * 31 + (0xDC00 + (c & 0x3FF))
        else:
            h = h * 31 + c
        i += need + 1
    return <int32_t> h


# --- encode ----------------------------------------------------------------------------------------------------------

cdef int64_t draft_bytes(const Draft *d) noexcept nogil:
    cdef int64_t total = 72 + d.body_bytes + d.topic_bytes + d.properties_bytes + 2
    total += (20 if d.sys_flag & BORN_HOST_V6 else 8) + (20 if d.sys_flag & STORE_HOST_V6 else 8)
    total += 2 if d.version_2 else 1
    if d.crc_property:
        total += CRC_PROPERTY_BYTES + (1 if d.separator else 0)
    return total


cdef int64_t encode_draft(uint8_t *to, const Draft *d) noexcept nogil:
    """Write everything except the size word and the fields that finish_record patches. Returns: the record's length.

    Body and CRC are a single pass that reads each byte once, so that they agree even if the caller's buffer changes
    meanwhile.
    """
    cdef int64_t at = 48
    cdef int32_t born = 20 if d.sys_flag & BORN_HOST_V6 else 8
    cdef int32_t store = 20 if d.sys_flag & STORE_HOST_V6 else 8
    cdef int32_t properties = d.properties_bytes
    mq_put32(to + 4, MAGIC_V2 if d.version_2 else MAGIC_V1)
    mq_put32(to + 12, d.queue_id)
    mq_put32(to + 16, d.flag)
    mq_put32(to + 36, d.sys_flag)
    mq_put64(to + 40, d.born_timestamp)
    memcpy(to + at, d.born_host, born)
    at += born + 8
    memcpy(to + at, d.store_host, store)
    at += store
    mq_put32(to + at, d.reconsume_times)
    mq_put64(to + at + 4, d.prepared_offset)
    mq_put32(to + at + 12, d.body_bytes)
    at += 16
    mq_put32(to + 8, <int32_t> (crc32_copy(to + at, d.body, d.body_bytes) & 0x7FFFFFFF))
    at += d.body_bytes
    if d.version_2:
        mq_put16(to + at, <int16_t> d.topic_bytes)
        at += 2
    else:
        to[at] = <uint8_t> d.topic_bytes
        at += 1
    memcpy(to + at, d.topic, d.topic_bytes)
    at += d.topic_bytes
    if d.crc_property:
        properties += CRC_PROPERTY_BYTES + (1 if d.separator else 0)
    mq_put16(to + at, <int16_t> properties)
    at += 2
    memcpy(to + at, d.properties, d.properties_bytes)
    at += d.properties_bytes
    if d.crc_property:
        if d.separator:
            to[at] = 2
            at += 1
        memcpy(to + at, "__CRC32#\x01", 9)
        to[at + CRC_PROPERTY_BYTES - 1] = 2
        at += CRC_PROPERTY_BYTES
    return at


cdef void finish_record(uint8_t *p, int32_t total, int64_t queue_offset, int64_t physical_offset,
                        int64_t store_timestamp, int32_t sys_flag, bint crc_property) noexcept nogil:
    """Patch the values that are known only under the put lock, but not the size word, which is published last."""
    cdef uint32_t crc
    cdef uint8_t size_word[4]
    cdef uint8_t *digits
    cdef int i
    mq_put64(p + 20, queue_offset)
    mq_put64(p + 28, physical_offset)
    mq_put64(p + (68 if sys_flag & BORN_HOST_V6 else 56), store_timestamp)
    if crc_property:
        mq_put32(size_word, total)
        crc = crc32_more(crc32_more(0, size_word, 4), p + 4, total - CRC_PROPERTY_BYTES - 4) & 0x7FFFFFFF
        digits = p + total - 11
        for i in range(10):
            digits[i] = <uint8_t> (c'0' + crc % 10)
            crc //= 10


# --- the reader's message --------------------------------------------------------------------------------------------

cdef StoredMessage make_message(object owner, const uint8_t *p, int64_t queue_position):
    """Make a message over memory that `owner` keeps alive; the caller has checked that the record there is whole."""
    cdef StoredMessage m = StoredMessage.__new__(StoredMessage)
    m.owner = owner
    m.p = p
    m.queue_position = queue_position
    return m


@cython.no_gc       # its references cannot lead back to the message: the collector need not track it
@cython.freelist(64)
@cython.final
cdef class StoredMessage:
    """A message of the store; each field is decoded on access.

    The body is a zero-copy view. The message keeps its file mapped, also after the store was closed or retention
    removed the file. If another process truncates the file, the next field or view raises CorruptFile; earlier views
    stay readable and show zeros for the lost bytes. The message exports the stored body through the buffer protocol:
    ``bytes(message)`` copies the body.
    """

    def __init__(self):
        raise TypeError("a StoredMessage comes from a store or a reader; to make a message for a put, use Message")

    cdef int still_there(self, int32_t total) except -1:
        """Check the record's end, which is lost first if the file was cut short since."""
        if isinstance(self.owner, FilePin):
            mq_touch(self.p + total - 1)
            (<FilePin> self.owner).file.check_damage()
        return 0

    cdef int fields(self) except -1:
        cdef int32_t total
        if not self.parsed:
            total = mq_get32(self.p)
            if parse_record(self.p, total, &self.record) != REC_OK:
                self.still_there(1)
                raise CorruptFile("not a whole record", offset=mq_get64(self.p + 28))
            self.still_there(total)
            self.parsed = True
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.fields()
        self.still_there(self.record.total)
        PyBuffer_FillInfo(view, self, <void *> self.record.body, self.record.body_bytes, 1, flags)

    @property
    def topic(self) -> str:
        """Topic of the record itself."""
        self.fields()
        return PyUnicode_DecodeUTF8(<const char *> self.record.topic, self.record.topic_bytes, "replace")

    @property
    def topic_bytes(self) -> bytes:
        """Topic of the record as stored."""
        self.fields()
        return (<const char *> self.record.topic)[:self.record.topic_bytes]

    @property
    def queue_id(self) -> int:
        """Queue of the record itself."""
        return mq_get32(self.p + 12)

    @property
    def queue_offset(self) -> int:
        """Queue offset: of the unit through which the message was read, otherwise the one in the record."""
        return mq_get64(self.p + 20) if self.queue_position < 0 else self.queue_position

    @property
    def record_queue_offset(self) -> int:
        """Queue offset in the record (differs from queue_offset for light queues and diverged queues)."""
        return mq_get64(self.p + 20)

    @property
    def physical_offset(self) -> int:
        """Byte in the whole log."""
        return mq_get64(self.p + 28)

    @property
    def size(self) -> int:
        """Length of the record in the log, bytes."""
        return mq_get32(self.p)

    @property
    def magic(self) -> int:
        """Magic code, unsigned: 0xDAA320A7 (version 1) or 0xDAA320AB (version 2)."""
        return <uint32_t> mq_get32(self.p + 4)

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body in the record, 31 bits."""
        return mq_get32(self.p + 8)

    @property
    def flag(self) -> int:
        """The producer's own flag."""
        return mq_get32(self.p + 16)

    @property
    def sys_flag(self) -> int:
        """Bits of MessageSysFlag."""
        return mq_get32(self.p + 36)

    @property
    def born_timestamp(self) -> int:
        """Time of creation by the producer, ms since the epoch."""
        return mq_get64(self.p + 40)

    @property
    def store_timestamp(self) -> int:
        """Time of the append, ms since the epoch."""
        return read_store_timestamp(self.p)

    @property
    def born_host(self) -> str:
        """``address:port`` of the producer."""
        self.fields()
        return format_host((<const char *> self.record.born_host)[:self.record.born_host_bytes])

    @property
    def store_host(self) -> str:
        """``address:port`` of the broker."""
        self.fields()
        return format_host((<const char *> self.record.store_host)[:self.record.store_host_bytes])

    @property
    def reconsume_times(self) -> int:
        """Number of times that a consumer sent the message back."""
        self.fields()
        return self.record.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message of a committed transaction, otherwise 0."""
        self.fields()
        return self.record.prepared_offset

    @property
    def body(self) -> memoryview:
        """The stored body, zero-copy (compressed if sys_flag says so)."""
        return PyMemoryView_FromObject(self)

    @property
    def properties(self) -> dict:
        """All properties."""
        self.fields()
        return decode_properties((<const char *> self.record.properties)[:self.record.properties_bytes])

    @property
    def properties_bytes(self) -> bytes:
        """The property text as stored."""
        self.fields()
        return (<const char *> self.record.properties)[:self.record.properties_bytes]

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        cdef PropertyRefs f
        self.fields()
        find_properties(self.record.properties, self.record.properties_bytes, &f)
        return None if f.tags == NULL else PyUnicode_DecodeUTF8(<const char *> f.tags, f.tags_bytes, "replace")

    @property
    def keys(self) -> list:
        """Property KEYS, split at blanks."""
        cdef PropertyRefs f
        self.fields()
        find_properties(self.record.properties, self.record.properties_bytes, &f)
        if f.keys == NULL:
            return []
        return list(filter(None, PyUnicode_DecodeUTF8(<const char *> f.keys, f.keys_bytes, "replace").split(" ")))

    @property
    def message_id(self) -> str:
        """Offset id: store host and physical offset in hex. Source: MessageDecoder.createMessageId."""
        self.fields()
        return encode_message_id((<const char *> self.record.store_host)[:self.record.store_host_bytes],
                                 self.physical_offset)

    def offset_in(self, bytes topic not None, int32_t queue_id) -> int | None:
        """Return the record's own queue offset in a queue, -1 if it belongs there without an offset; None: not its
        queue.
        """
        self.fields()
        cdef int64_t at = offset_in_queue(&self.record, <const uint8_t *> PyBytes_AS_STRING(topic),
                                          <int32_t> PyBytes_GET_SIZE(topic), queue_id)
        return None if at == NOT_IN_QUEUE else -1 if at == ANYWHERE else at

    def check_crc(self) -> bool:
        """Return True if the stored body agrees with its CRC."""
        self.fields()
        return check_crc(self.p, &self.record, False) == 1

    def to_bytes(self) -> bytes:
        """Return the whole record as stored in the log."""
        return (<const char *> self.p)[:mq_get32(self.p)]

    def __reduce__(self):
        return load_message, (self.to_bytes(), self.queue_position)

    def __repr__(self):
        return (f"<StoredMessage {self.topic}/{self.queue_id}@{self.queue_offset} "
                f"physical_offset={self.physical_offset}"
                f" size={self.size}>")


def decode_record(data, offset=0) -> StoredMessage:
    """Decode a record out of a bytes object.

    Args: data: bytes that hold the record at ``offset``. Raises: CorruptFile if no whole record is there or its CRC is
    wrong.
    """
    cdef bytes held = bytes(data)
    cdef int64_t at = offset
    cdef int64_t left = PyBytes_GET_SIZE(held) - at
    cdef Record r
    if at < 0 or left < 8:
        raise CorruptFile("no record", offset=offset, expected="at least 8 bytes", found=max(left, 0))
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(held) + at
    cdef int outcome = parse_record(p, left, &r)
    if outcome != REC_OK:
        raise CorruptFile("not a whole record", offset=offset, expected="a record",
                          found=f"size {r.total}, magic {r.magic & 0xFFFFFFFF:#x}")
    if not check_crc(p, &r, False):
        raise CorruptFile("body CRC differs", offset=offset, expected=r.body_crc, found=crc31(r.body, r.body_bytes))
    return make_message(held, p, -1)


def load_message(bytes record not None, int64_t queue_position) -> StoredMessage:
    """Restore a pickled message: a copy of its record, and its offset in the queue of the read (-1: none)."""
    cdef Record r
    if parse_record(<const uint8_t *> PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record), &r) != REC_OK:
        raise CorruptFile("the pickled message is damaged", expected="a whole record", found=f"{len(record)} bytes")
    return make_message(record, <const uint8_t *> PyBytes_AS_STRING(record), queue_position)


def java_hash(str text) -> int:
    """Return Java's String.hashCode. Source: java.lang.String."""
    cdef bytes data = text.encode("utf-8", "surrogatepass")
    return jhash(<const uint8_t *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), 0)
