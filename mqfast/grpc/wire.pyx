"""Protobuf bytes of messages, by tables: which number of a message is which attribute of a class, of which kind.

No message is known here. Unknown numbers are skipped; every length is checked against the end; a broken message is a
FieldError with the byte, and no byte outside a message is read. A message of very many parts is broken as well.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from mqfast.errors import FieldError

TEXT = 0
BYTES = 1
INT32 = 2
INT64 = 3
BOOL = 4
FLOAT = 5
DURATION = 6
TIMESTAMP = 7
MESSAGE = 8
MAP = 9

cdef enum:
    K_TEXT, K_BYTES, K_INT32, K_INT64, K_BOOL, K_FLOAT, K_DURATION, K_TIMESTAMP, K_MESSAGE, K_MAP
    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5
    DEPTH_MAX = 16
    NUMBERS_MAX = 500_000  # keys, lengths and numbers of a message: an empty part costs two bytes and an object

cdef int64_t SECONDS_MAX = 9_000_000_000_000  # more than any time; a product with 1,000 stays in range


cdef struct Input:
    const uint8_t *begin
    const uint8_t *at
    const uint8_t *end
    int numbers


cdef struct Output:
    uint8_t *data
    size_t size
    size_t room


cdef class Field:
    """A number of a message: attribute and kind.

    Args: is_repeated: the attribute is a list; is_optional: None without the number, and written also with the default;
    codec: of a MESSAGE.
    """

    cdef uint32_t number
    cdef str name
    cdef int kind
    cdef bint is_repeated
    cdef bint is_optional
    cdef Codec codec

    def __init__(self, uint32_t number, str name not None, int kind, bint is_repeated, bint is_optional, Codec codec):
        self.number = number
        self.name = name
        self.kind = kind
        self.is_repeated = is_repeated
        self.is_optional = is_optional
        self.codec = codec


cdef class Codec:
    """The bytes of a class of messages.

    Args: make: returns a new object with the defaults; name: for errors; fields: in the order of writing.
    Thread: any.
    """

    cdef object make
    cdef str name
    cdef dict by_number
    cdef list fields

    def __init__(self, make, str name not None, list fields not None):
        cdef Field field
        self.make = make
        self.name = name
        self.fields = fields
        self.by_number = {}
        for field in fields:
            self.by_number[field.number] = field

    def decode(self, bytes data not None):
        """Return the object of a message. Raises: FieldError."""
        cdef Input given
        given.begin = given.at = <const uint8_t *> PyBytes_AS_STRING(data)
        given.end = given.at + PyBytes_GET_SIZE(data)
        given.numbers = 0
        return self.read(&given, given.end, 0)

    def encode(self, message):
        """Return the bytes of a message. Raises: ValueError for a number outside the range of the kind."""
        cdef Output out
        out.room = 256
        out.size = 0
        out.data = <uint8_t *> PyMem_Malloc(out.room)
        if out.data == NULL:
            raise MemoryError
        try:
            self.write(&out, message)
            return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
        finally:
            PyMem_Free(out.data)

    cdef read(self, Input *given, const uint8_t *end, int depth):
        cdef uint64_t key
        cdef Field field
        cdef uint32_t wire
        message = self.make()
        if depth > DEPTH_MAX:
            raise broken(self, given, "messages nested", f"at most {DEPTH_MAX} times", "more")
        while given.at < end:
            key = self.varint(given, end)
            wire = key & 7
            found = self.by_number.get(key >> 3)
            if found is None:
                self.skip(given, end, wire)
                continue
            field = <Field> found
            self.take(field, message, given, end, wire, depth)
        return message

    cdef take(self, Field field, message, Input *given, const uint8_t *end, uint32_t wire, int depth):
        """Read a value of a known number."""
        cdef const uint8_t *stop
        cdef size_t size
        if field.kind in (K_INT32, K_INT64, K_BOOL):
            if wire == LENGTH and field.is_repeated:
                size = self.length(given, end)
                stop = given.at + size
                values = getattr(message, field.name)
                while given.at < stop:
                    values.append(number(field.kind, self.varint(given, stop)))
                return
            self.expect(field, given, wire, VARINT)
            value = number(field.kind, self.varint(given, end))
        elif field.kind == K_FLOAT:
            self.expect(field, given, wire, FIXED32)
            value = self.fixed_float(given, end)
        else:
            self.expect(field, given, wire, LENGTH)
            value = self.sized(field, message, given, end, depth)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        elif field.kind != K_MAP:
            setattr(message, field.name, value)

    cdef sized(self, Field field, message, Input *given, const uint8_t *end, int depth):
        """Read a value with a length before."""
        cdef size_t size = self.length(given, end)
        cdef const uint8_t *start = given.at
        cdef const uint8_t *stop = start + size
        if field.kind == K_TEXT:
            given.at = stop
            return self.text(field, given, start, size)
        if field.kind == K_BYTES:
            given.at = stop
            return PyBytes_FromStringAndSize(<const char *> start, size)
        if field.kind == K_MESSAGE:
            return field.codec.read(given, stop, depth + 1)
        if field.kind == K_MAP:
            self.entry(field, getattr(message, field.name), given, stop)
            return None
        return self.time(field, given, stop)

    cdef entry(self, Field field, dict table, Input *given, const uint8_t *end):
        """Read a pair of a map of texts."""
        cdef str name = "", value = ""
        cdef uint64_t key
        cdef size_t size
        while given.at < end:
            key = self.varint(given, end)
            if key not in (1 << 3 | LENGTH, 2 << 3 | LENGTH):
                self.skip(given, end, key & 7)
                continue
            size = self.length(given, end)
            text = self.text(field, given, given.at, size)
            given.at += size
            if key >> 3 == 1:
                name = text
            else:
                value = text
        table[name] = value

    cdef time(self, Field field, Input *given, const uint8_t *end):
        """Read a Duration or Timestamp. Returns: ms."""
        cdef int64_t seconds = 0
        cdef int32_t nanos = 0
        cdef uint64_t key
        while given.at < end:
            key = self.varint(given, end)
            if key == 1 << 3:
                seconds = <int64_t> self.varint(given, end)
            elif key == 2 << 3:
                nanos = <int32_t> self.varint(given, end)
            else:
                self.skip(given, end, key & 7)
        if not -SECONDS_MAX <= seconds <= SECONDS_MAX or not -999_999_999 <= nanos <= 999_999_999:
            raise broken(self, given, field.name, "a time in range", f"{seconds} s, {nanos} ns")
        return seconds * 1000 + nanos // 1_000_000

    cdef str text(self, Field field, Input *given, const uint8_t *start, size_t size):
        try:
            return PyUnicode_DecodeUTF8(<const char *> start, size, NULL)
        except UnicodeDecodeError:
            raise broken(self, given, field.name, "UTF-8", "other bytes") from None

    cdef uint64_t varint(self, Input *given, const uint8_t *end) except? 0:
        cdef uint64_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        given.numbers += 1
        if given.numbers > NUMBERS_MAX:
            raise broken(self, given, "keys, lengths and numbers", f"at most {NUMBERS_MAX}", "more")
        while given.at < end and shift < 70:
            byte = given.at[0]
            given.at += 1
            value |= <uint64_t> (byte & 0x7F) << shift if shift < 64 else 0
            if not byte & 0x80:
                return value
            shift += 7
        if shift >= 70:
            raise broken(self, given, "number", "at most 10 bytes", "more")
        raise broken(self, given, "number", "its last byte", "the end")

    cdef size_t length(self, Input *given, const uint8_t *end) except? 0:
        cdef uint64_t size = self.varint(given, end)
        if size > <uint64_t> (end - given.at):
            raise broken(self, given, "length", f"at most {end - given.at}", size)
        return size

    cdef fixed_float(self, Input *given, const uint8_t *end):
        cdef float value
        if end - given.at < 4:
            raise broken(self, given, "float", "4 bytes", end - given.at)
        memcpy(&value, given.at, 4)
        given.at += 4
        return value

    cdef int expect(self, Field field, Input *given, uint32_t wire, uint32_t expected) except -1:
        if wire != expected:
            raise broken(self, given, field.name, f"wire type {expected}", wire)
        return 0

    cdef int skip(self, Input *given, const uint8_t *end, uint32_t wire) except -1:
        cdef size_t size
        if wire == VARINT:
            self.varint(given, end)
            return 0
        if wire == LENGTH:
            size = self.length(given, end)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise broken(self, given, "number", "wire type 0, 1, 2 or 5", wire)
        if size > <size_t> (end - given.at):
            raise broken(self, given, "number", f"{size} bytes", end - given.at)
        given.at += size
        return 0

    # --- writing ---

    cdef int write(self, Output *out, message) except -1:
        cdef Field field
        for field in self.fields:
            value = getattr(message, field.name)
            if value is None:
                continue
            if field.is_repeated:
                for item in value:
                    self.put(field, out, item)
            elif field.kind == K_MAP:
                for pair in (<dict> value).items():
                    self.put_pair(field, out, <str> pair[0], <str> pair[1])
            elif value or field.is_optional or field.kind == K_MESSAGE:
                self.put(field, out, value)
        return 0

    cdef int put(self, Field field, Output *out, value) except -1:
        cdef const char *text
        cdef Py_ssize_t size
        cdef float real
        cdef int64_t ms
        cdef int kind = field.kind
        if kind == K_TEXT:
            text = PyUnicode_AsUTF8AndSize(value, &size)
            put_sized(out, field.number, text, size)
        elif kind == K_BYTES:
            put_sized(out, field.number, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        elif kind in (K_INT32, K_INT64, K_BOOL):
            put_varint(out, field.number << 3 | VARINT)
            put_varint(out, <uint64_t> <int64_t> value)
        elif kind == K_FLOAT:
            real = value
            put_varint(out, field.number << 3 | FIXED32)
            put_raw(out, <const char *> &real, 4)
        elif kind == K_MESSAGE:
            self.put_message(field, out, value)
        else:
            ms = value
            put_time(out, field.number, ms)
        return 0

    cdef int put_message(self, Field field, Output *out, value) except -1:
        """Write a message, then move the bytes behind the length."""
        cdef size_t start, size, room
        put_varint(out, field.number << 3 | LENGTH)
        start = out.size
        put_byte(out, 0)
        field.codec.write(out, value)
        size = out.size - start - 1
        room = varint_size(size)
        if room > 1:
            reserve(out, room - 1)
            memmove(out.data + start + room, out.data + start + 1, size)
        out.size = start
        put_varint(out, size)
        out.size = start + room + size
        return 0

    cdef int put_pair(self, Field field, Output *out, str name, str value) except -1:
        cdef Py_ssize_t name_size, value_size
        cdef const char *name_text = PyUnicode_AsUTF8AndSize(name, &name_size)
        cdef const char *value_text = PyUnicode_AsUTF8AndSize(value, &value_size)
        put_varint(out, field.number << 3 | LENGTH)
        put_varint(out, 2 + varint_size(name_size) + name_size + varint_size(value_size) + value_size)
        put_sized(out, 1, name_text, name_size)
        put_sized(out, 2, value_text, value_size)
        return 0


cdef object number(int kind, uint64_t value):
    if kind == K_BOOL:
        return value != 0
    if kind == K_INT32:
        return <int32_t> value
    return <int64_t> value


cdef broken(Codec codec, Input *given, name, expected, found):
    return FieldError(f"{codec.name}, byte {given.at - given.begin}: {name}", str(expected), str(found))


cdef int reserve(Output *out, size_t more) except -1:
    cdef size_t room = out.room
    cdef uint8_t *data
    if out.size + more <= room:
        return 0
    while room < out.size + more:
        room *= 2
    data = <uint8_t *> PyMem_Realloc(out.data, room)
    if data == NULL:
        raise MemoryError
    out.data, out.room = data, room
    return 0


cdef int put_byte(Output *out, uint8_t byte) except -1:
    reserve(out, 1)
    out.data[out.size] = byte
    out.size += 1
    return 0


cdef int put_varint(Output *out, uint64_t value) except -1:
    reserve(out, 10)
    while value >= 0x80:
        out.data[out.size] = <uint8_t> (value & 0x7F | 0x80)
        out.size += 1
        value >>= 7
    out.data[out.size] = <uint8_t> value
    out.size += 1
    return 0


cdef size_t varint_size(uint64_t value) noexcept:
    cdef size_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef int put_raw(Output *out, const char *data, size_t size) except -1:
    reserve(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef int put_sized(Output *out, uint32_t field, const char *data, size_t size) except -1:
    put_varint(out, <uint64_t> field << 3 | LENGTH)
    put_varint(out, size)
    return put_raw(out, data, size)


cdef int put_time(Output *out, uint32_t field, int64_t ms) except -1:
    """Write ms as a Duration or Timestamp: seconds, and nanoseconds with the sign of the seconds for a Duration."""
    cdef int64_t seconds = ms // 1000 if ms >= 0 else -(-ms // 1000)
    cdef int64_t nanos = (ms - seconds * 1000) * 1_000_000
    cdef size_t size = 0
    if seconds:
        size += 1 + varint_size(<uint64_t> seconds)
    if nanos:
        size += 1 + varint_size(<uint64_t> nanos)
    put_varint(out, <uint64_t> field << 3 | LENGTH)
    put_varint(out, size)
    if seconds:
        put_varint(out, 1 << 3)
        put_varint(out, <uint64_t> seconds)
    if nanos:
        put_varint(out, 2 << 3)
        put_varint(out, <uint64_t> nanos)
    return 0
