"""Headers of the codes on the hot path as types: the form of ``remoting/headers.pyx`` without compiled code.

A field that is missing or of another type is a FieldError. Source: SendMessageRequestHeader,
SendMessageRequestHeaderV2, PullMessageRequestHeader, UpdateConsumerOffsetRequestHeader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast.errors import FieldError

if TYPE_CHECKING:
    from mqfast.pure.codec import (
        FrameDecoder,
        Pair,
        RemotingCommand,
        encode,
        has_header,
        text_of,
        unescaped,
        whole_number,
        wire_pairs,
    )
else:
    from mqfast.remoting.codec import (
        FrameDecoder,
        RemotingCommand,
        encode,
        has_header,
        text_of,
        unescaped,
        whole_number,
        wire_pairs,
    )

_Header = TypeVar("_Header")


class SendHeader:
    """Header of 10, 310, 320, 324 and 325; ``properties`` are the bytes of RocketMQ's property text."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: bytes = b""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: str | None = None


class PullHeader:
    """Header of 11 and 361; ``subscription`` and ``expression_type`` are None where the client names none."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    broker_name: str | None = None
    request_source: int = -1


class OffsetHeader:
    """Header of 15: the committed offset of a group in a queue."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class SendAnswer:
    """The response to a stored send: ids, queue and offset of the message."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str | None = None


def _text(name: str, raw: bytes, escaped: bool) -> str:
    return text_of(raw, escaped)


def _bytes(name: str, raw: bytes, escaped: bool) -> bytes:
    return unescaped(raw) if escaped else raw


def _long(name: str, raw: bytes, escaped: bool) -> int:
    number = None if escaped else whole_number(raw)
    if number is None:
        raise FieldError(name, "a whole number of 64 bits", repr(text_of(raw, escaped)[:40]))
    return number


def _int(name: str, raw: bytes, escaped: bool) -> int:
    number = None if escaped else whole_number(raw)
    if number is None or not -(1 << 31) <= number < 1 << 31:
        raise FieldError(name, "a whole number of 32 bits", repr(text_of(raw, escaped)[:40]))
    return number


def _bool(name: str, raw: bytes, escaped: bool) -> bool:
    """Parse as Java's Boolean.parseBoolean: only "true" is true, in any case."""
    return len(raw) == 4 and bytes(byte | 0x20 for byte in raw) == b"true"


# The fields by their names on the wire: attribute and type; the required ones first.
_Fields = dict[bytes, tuple[str, Any]]
_SEND: Final[_Fields] = {
    b"producerGroup": ("producer_group", _text),
    b"topic": ("topic", _text),
    b"defaultTopic": ("default_topic", _text),
    b"defaultTopicQueueNums": ("default_topic_queue_nums", _int),
    b"queueId": ("queue_id", _int),
    b"sysFlag": ("sys_flag", _int),
    b"bornTimestamp": ("born_timestamp", _long),
    b"flag": ("flag", _int),
    b"properties": ("properties", _bytes),
    b"reconsumeTimes": ("reconsume_times", _int),
    b"unitMode": ("unit_mode", _bool),
    b"maxReconsumeTimes": ("max_reconsume_times", _int),
    b"batch": ("batch", _bool),
    b"bname": ("broker_name", _text),
}
_LETTERS: Final = {bytes((0x61 + at,)): name for at, name in enumerate(_SEND)}
_PULL: Final[_Fields] = {
    b"consumerGroup": ("consumer_group", _text),
    b"topic": ("topic", _text),
    b"queueId": ("queue_id", _int),
    b"queueOffset": ("queue_offset", _long),
    b"maxMsgNums": ("max_msg_nums", _int),
    b"sysFlag": ("sys_flag", _int),
    b"commitOffset": ("commit_offset", _long),
    b"suspendTimeoutMillis": ("suspend_timeout_ms", _long),
    b"subVersion": ("sub_version", _long),
    b"subscription": ("subscription", _text),
    b"expressionType": ("expression_type", _text),
    b"maxMsgBytes": ("max_msg_bytes", _int),
    b"bname": ("broker_name", _text),
    b"requestSource": ("request_source", _int),
}
_OFFSET: Final[_Fields] = {
    b"consumerGroup": ("consumer_group", _text),
    b"topic": ("topic", _text),
    b"queueId": ("queue_id", _int),
    b"commitOffset": ("commit_offset", _long),
}
_ANSWER: Final[_Fields] = {
    b"msgId": ("msg_id", _text),
    b"queueId": ("queue_id", _int),
    b"queueOffset": ("queue_offset", _long),
    b"transactionId": ("transaction_id", _text),
    b"recallHandle": ("recall_handle", _text),
    b"MSG_REGION": ("region", _text),
}


def _pairs(command: RemotingCommand) -> Iterator[Pair]:
    """Yield the fields; a command that was created here is read as a peer would receive it."""
    if not isinstance(command, RemotingCommand):
        raise TypeError(f"expected a command, found {command!r}")
    if not has_header(command):
        whole = RemotingCommand(command.code, {"": "", **command.ext_fields}, serialize=command.serialize)
        command = FrameDecoder(0x7FFFFFFF, 0xFFFFFF).feed(encode(whole))[0]
    return wire_pairs(command)


def _fill(header: _Header, pairs: Iterator[Pair], fields: _Fields, required: int) -> _Header:
    """Set the attributes; of a repeated field the last value counts. Raises: FieldError for a missing field."""
    values = {name: (value, escaped) for name, value, _, escaped in pairs if name in fields and value is not None}
    for name in list(fields)[:required]:
        if name not in values:
            raise FieldError(name.decode(), "a value", "none")
    for name, (attribute, kind) in fields.items():
        if name in values:
            setattr(header, attribute, kind(name.decode(), *values[name]))
    return header


def send_header(command: RemotingCommand) -> SendHeader:
    """Return the header of a send. Raises: FieldError."""
    pairs = _pairs(command)
    if command.code in (310, 320, 325):
        pairs = ((_LETTERS.get(name, b""), value, False, escaped) for name, value, _, escaped in pairs)
    return _fill(SendHeader(), pairs, _SEND, 8)


def pull_header(command: RemotingCommand) -> PullHeader:
    """Return the header of a pull. Raises: FieldError."""
    return _fill(PullHeader(), _pairs(command), _PULL, 9)


def offset_header(command: RemotingCommand) -> OffsetHeader:
    """Return the header of an offset update. Raises: FieldError."""
    return _fill(OffsetHeader(), _pairs(command), _OFFSET, 4)


def send_answer(command: RemotingCommand) -> SendAnswer:
    """Return the fields of the response to a stored send. Raises: FieldError."""
    return _fill(SendAnswer(), _pairs(command), _ANSWER, 3)
