"""Split a record of several messages (an inner batch, of topics with ``queue.type=BatchCQ``). No I/O.

No message is left out: a body that cannot be split is an error, and the caller delivers the record whole.
Source: MessageDecoder.decodeMessage, PullAPIWrapper.processPullResult.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from mqfast import properties as names
from mqfast.errors import FieldError
from mqfast.message import SysFlag

if TYPE_CHECKING:
    from mqfast.store.record.record import StoredMessage

__all__ = ["INNER", "InnerRecord", "inner_records"]

INNER: Final = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
"""Both bits: the body holds several messages."""
_HEAD: Final = struct.Struct(">iiiii")  # size, magic, CRC, flag, bytes of the body; clients write 0 for magic and CRC
_MESSAGES_MAX: Final = 100_000
"""Limit of messages per record: an object takes hundreds of bytes, a message in the record as few as 22."""
_NOT_OF_ONE: Final = ~(INNER | SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)


class InnerRecord:
    """A message of such a record. Other fields have the values of the record."""

    __slots__ = ("body", "flag", "outer", "properties", "queue_offset", "size")

    def __init__(
        self, outer: StoredMessage, queue_offset: int, flag: int, body: memoryview, properties: dict[str, str]
    ) -> None:
        self.outer = outer
        self.queue_offset = queue_offset
        self.flag = flag
        self.body = body
        self.properties = properties
        self.size = len(body) + _HEAD.size

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """Property KEYS, split."""
        return names.split_keys(self.properties.get(names.KEYS))

    @property
    def sys_flag(self) -> int:
        """The bits of the record that are true of this message; its body is not compressed."""
        return self.outer.sys_flag & _NOT_OF_ONE

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outer, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (self.outer, self.queue_offset, self.flag, bytes(self.body), self.properties)


def _copy(outer: StoredMessage, queue_offset: int, flag: int, body: bytes, properties: dict[str, str]) -> InnerRecord:
    return InnerRecord(outer, queue_offset, flag, memoryview(body), properties)


def inner_records(outer: StoredMessage, body: bytes) -> list[InnerRecord]:
    """Decode the messages of a record. Args: body: decompressed. Raises: FieldError for an invalid body."""
    records: list[InnerRecord] = []
    view = memoryview(body)
    at, end = 0, len(body)
    first = outer.queue_offset
    while at < end:
        if len(records) >= _MESSAGES_MAX:
            raise FieldError("body", f"at most {_MESSAGES_MAX} messages of an inner batch", "more")
        try:
            _, _, _, flag, body_bytes = _HEAD.unpack_from(body, at)
            begin = at + _HEAD.size
            stop = begin + body_bytes
            (properties_bytes,) = struct.unpack_from(">h", body, stop)
        except struct.error:
            raise FieldError("body", "whole messages of an inner batch", f"{end - at} bytes at {at}") from None
        at = stop + 2 + properties_bytes
        if body_bytes < 0 or properties_bytes < 0 or at > end:
            raise FieldError("body", "a message within the record", f"one of {body_bytes} and {properties_bytes} bytes")
        pairs = names.decode(body[stop + 2 : at])
        records.append(InnerRecord(outer, first + len(records), flag, view[begin:stop], pairs))
    return records
