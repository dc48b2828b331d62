"""Records of the log that a client receives: the form of ``store/record/record.pyx`` without compiled code.

Every length is compared with the available bytes before use. Only reading: records are written by the store, which is
compiled. Source: MessageDecoder, CommitLog.checkMessageAndReturnSize. Layout: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Any, Final, NamedTuple, final

from mqfast.errors import CorruptFile
from mqfast.message import encode_message_id, format_host
from mqfast.properties import decode as decode_properties

_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB
_BORN_HOST_V6: Final = 16
_STORE_HOST_V6: Final = 32
_BEHIND_HOSTS: Final = struct.Struct(">iqi")  # reconsume times, prepared offset, bytes of the body
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,18}")


class _Layout(NamedTuple):
    """The places of a record's parts, from its begin, and the values between the hosts and the body."""

    born_host: slice
    store_timestamp: int
    store_host: slice
    reconsume_times: int
    prepared_offset: int
    body: slice
    topic: slice
    properties: slice


def _layout_of(data: bytes, at: int, available: int) -> _Layout | None:
    """Return the layout of the record at a position; None for other bytes, or for a record that is not whole."""
    total, magic = struct.unpack_from(">iI", data, at)
    if not 0 <= total <= available or magic not in (_MAGIC_V1, _MAGIC_V2) or available < 91:
        return None
    sys_flag = struct.unpack_from(">i", data, at + 36)[0]
    begin, end = at, at + available
    at += 48
    born_host = slice(at, at + (20 if sys_flag & _BORN_HOST_V6 else 8))
    at = born_host.stop
    store_host = slice(at + 8, at + 8 + (20 if sys_flag & _STORE_HOST_V6 else 8))
    if store_host.stop + 16 > end:
        return None
    store_timestamp = struct.unpack_from(">q", data, at)[0]
    reconsume_times, prepared_offset, size = _BEHIND_HOSTS.unpack_from(data, store_host.stop)
    at = store_host.stop + 16
    body = slice(at, at + max(size, 0))  # RocketMQ counts a negative length as empty
    at = body.stop
    if at + 2 > end:
        return None
    size, width = _topic_size(data, at, magic)
    topic = slice(at + width, at + width + size)
    if size < 0 or topic.stop + 2 > end:
        return None
    at = topic.stop
    size = max(struct.unpack_from(">h", data, at)[0], 0)
    properties = slice(at + 2, at + 2 + size)
    if properties.stop > end or properties.stop != begin + total:
        return None
    return _Layout(born_host, store_timestamp, store_host, reconsume_times, prepared_offset, body, topic, properties)


def _topic_size(data: bytes, at: int, magic: int) -> tuple[int, int]:
    """Return the bytes of the topic and those of its length."""
    if magic == _MAGIC_V1:
        return struct.unpack_from(">b", data, at)[0], 1
    return struct.unpack_from(">h", data, at)[0], 2


def _crc31(body: bytes | memoryview) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


@final
class StoredMessage:
    """A message of a broker; the fields behind the fixed part are found on the first access. As in ``record.pyx``."""

    __slots__ = ("_at", "_data", "_known_layout", "_queue_position")

    def __init__(self, data: bytes, at: int, queue_position: int, layout: _Layout | None = None) -> None:
        self._data = data
        self._at = at
        self._queue_position = queue_position
        self._known_layout = layout

    def _fixed(self, form: str, at: int) -> int:
        value: int = struct.unpack_from(form, self._data, self._at + at)[0]
        return value

    @property
    def _layout(self) -> _Layout:
        layout = self._known_layout
        if layout is None:
            layout = self._known_layout = _layout_of(self._data, self._at, self.size)
            if layout is None:
                raise CorruptFile("not a whole record", offset=self.physical_offset)
        return layout

    @property
    def topic(self) -> str:
        """Topic of the record itself."""
        return self.topic_bytes.decode("utf-8", "replace")

    @property
    def topic_bytes(self) -> bytes:
        """Topic of the record as stored."""
        return self._data[self._layout.topic]

    @property
    def queue_id(self) -> int:
        """Queue of the record itself."""
        return self._fixed(">i", 12)

    @property
    def queue_offset(self) -> int:
        """Queue offset: of the unit through which the message was read, otherwise the one in the record."""
        return self.record_queue_offset if self._queue_position < 0 else self._queue_position

    @property
    def record_queue_offset(self) -> int:
        """Queue offset in the record."""
        return self._fixed(">q", 20)

    @property
    def physical_offset(self) -> int:
        """Byte in the whole log."""
        return self._fixed(">q", 28)

    @property
    def size(self) -> int:
        """Length of the record in the log, bytes."""
        return self._fixed(">i", 0)

    @property
    def magic(self) -> int:
        """Magic code, unsigned."""
        return self._fixed(">I", 4)

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body in the record, 31 bits."""
        return self._fixed(">i", 8)

    @property
    def flag(self) -> int:
        """The producer's own flag."""
        return self._fixed(">i", 16)

    @property
    def sys_flag(self) -> int:
        """Bits of MessageSysFlag."""
        return self._fixed(">i", 36)

    @property
    def born_timestamp(self) -> int:
        """Time of creation by the producer, ms since the epoch."""
        return self._fixed(">q", 40)

    @property
    def store_timestamp(self) -> int:
        """Time of the append, ms since the epoch."""
        return self._fixed(">q", 68 if self.sys_flag & _BORN_HOST_V6 else 56)

    @property
    def born_host(self) -> str:
        """``address:port`` of the producer."""
        return format_host(self._data[self._layout.born_host])

    @property
    def store_host(self) -> str:
        """``address:port`` of the broker."""
        return format_host(self._data[self._layout.store_host])

    @property
    def reconsume_times(self) -> int:
        """Number of times that a consumer sent the message back."""
        return self._layout.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message of a committed transaction, otherwise 0."""
        return self._layout.prepared_offset

    @property
    def body(self) -> memoryview:
        """The stored body, zero-copy (compressed if sys_flag says so)."""
        return memoryview(self._data)[self._layout.body]

    def __bytes__(self) -> bytes:
        return self._data[self._layout.body]

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.body

    @property
    def properties(self) -> dict[str, str]:
        """All properties."""
        return decode_properties(self.properties_bytes)

    @property
    def properties_bytes(self) -> bytes:
        """The property text as stored."""
        return self._data[self._layout.properties]

    def _property(self, name: bytes) -> bytes | None:
        """Return a value; the last of equal names wins; pairs with an empty name or value do not count."""
        value = None
        for pair in self.properties_bytes.split(b"\x02"):
            key, _, rest = pair.partition(b"\x01")
            if key == name and rest:
                value = rest
        return value

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        tags = self._property(b"TAGS")
        return None if tags is None else tags.decode("utf-8", "replace")

    @property
    def keys(self) -> list[str]:
        """Property KEYS, split at blanks."""
        return list(filter(None, (self._property(b"KEYS") or b"").decode("utf-8", "replace").split(" ")))

    @property
    def message_id(self) -> str:
        """Offset id: store host and physical offset in hex. Source: MessageDecoder.createMessageId."""
        return encode_message_id(self._data[self._layout.store_host], self.physical_offset)

    def offset_in(self, topic: bytes, queue_id: int) -> int | None:
        """Return the record's own queue offset in a queue, -1 if it belongs there without an offset; None: not its
        queue.
        """
        if self.queue_id == queue_id and self.topic_bytes == topic:
            return self.record_queue_offset
        queues = self._property(b"INNER_MULTI_DISPATCH")
        offsets = (self._property(b"INNER_MULTI_QUEUE_OFFSET") or b"").split(b",")
        for i, name in enumerate(queues.removesuffix(b",").split(b",") if queues else ()):
            if name == topic:
                number = _INTEGER.fullmatch(offsets[i]) if i < len(offsets) else None
                return int(number[0]) if number else -1
        return None

    def check_crc(self) -> bool:
        """Return True if the stored body agrees with its CRC."""
        return _crc31(self.body) == self._fixed(">I", 8)

    def to_bytes(self) -> bytes:
        """Return the whole record as stored in the log."""
        return self._data[self._at : self._at + self.size]

    def __reduce__(self) -> tuple[Any, ...]:
        return load_message, (self.to_bytes(), self._queue_position)

    def __repr__(self) -> str:
        return (
            f"<StoredMessage {self.topic}/{self.queue_id}@{self.queue_offset} "
            f"physical_offset={self.physical_offset} size={self.size}>"
        )


def decode_record(data: Any, offset: int = 0) -> StoredMessage:
    """Decode a record out of a bytes object.

    Args: data: bytes that hold the record at ``offset``. Raises: CorruptFile if no whole record is there or its CRC is
    wrong.
    """
    held = bytes(data)
    available = len(held) - offset
    if offset < 0 or available < 8:
        raise CorruptFile("no record", offset=offset, expected="at least 8 bytes", found=max(available, 0))
    layout = _layout_of(held, offset, available)
    if layout is None:
        size, magic = struct.unpack_from(">iI", held, offset)
        raise CorruptFile(
            "not a whole record", offset=offset, expected="a record", found=f"size {size}, magic {magic:#x}"
        )
    message = StoredMessage(held, offset, -1, layout)
    if not message.check_crc():
        raise CorruptFile("body CRC differs", offset=offset, expected=message.body_crc, found=_crc31(message.body))
    return message


def load_message(record: bytes, queue_position: int) -> StoredMessage:
    """Restore a pickled message: a copy of its record, and its offset in the queue of the read (-1: none)."""
    layout = _layout_of(record, 0, len(record)) if len(record) >= 8 else None
    if layout is None:
        raise CorruptFile("the pickled message is damaged", expected="a whole record", found=f"{len(record)} bytes")
    return StoredMessage(record, 0, queue_position, layout)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode. Source: java.lang.String."""
    code = 0
    units = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode("utf-16-be")
    for at in range(0, len(units), 2):
        code = code * 31 + (units[at] << 8 | units[at + 1]) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code
