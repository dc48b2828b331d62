"""The bytes of a send: the form of ``client/producer/fast_encode.pyx`` without compiled code.

Messages that are not plain are left to ``encode.py``. Source: SendMessageRequestHeaderV2,
MessageDecoder.encodeMessages.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from mqfast.client.values import MessageQueue, SendResult, SendStatus
from mqfast.errors import FieldError, MessageIllegal
from mqfast.message import RETRY_PREFIX, Message
from mqfast.remoting.codec import RemotingCommand
from mqfast.remoting.headers import send_answer
from mqfast.remoting.unique_ids import UniqueIds

_Buffer: TypeAlias = bytes | bytearray | memoryview

_SEND: Final = 310
_PROPERTIES_MAX: Final = 32767


# --- one message ------------------------------------------------------------------------------------------------------


class PreparedMessage:
    """A message or batch, ready to be sent. Arguments and attributes: as in ``fast_encode.pyx``."""

    __slots__ = (
        "_msg_ids",
        "batch",
        "body",
        "born_ms",
        "code",
        "delayed",
        "flag",
        "message",
        "msg_id",
        "properties",
        "reconsume_times",
        "sharding_key",
        "sys_flag",
        "topic",
    )

    def __init__(self, message: Message, topic: str, body: bytes, properties: bytes, msg_id: str) -> None:
        self.message = message
        self.topic = topic
        self.body = body
        self.properties = properties
        self.msg_id = msg_id
        self.code = _SEND
        self.flag = message.flag or 0
        self.sys_flag = 0
        self.born_ms = message.born_timestamp
        self.reconsume_times = message.reconsume_times or 0
        self.sharding_key = message.sharding_key
        self.delayed = False
        self.batch = False
        self._msg_ids: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Return the bytes of body and properties."""
        return len(self.body) + len(self.properties)

    @property
    def is_batchable(self) -> bool:
        """Return whether the message may be part of a batch."""
        return not (
            self.delayed
            or self.sys_flag
            or self.code != _SEND
            or self.reconsume_times
            or self.topic.startswith(RETRY_PREFIX)
        )

    @property
    def msg_ids(self) -> tuple[str, ...]:
        """The unique ids, of a batch one for each message."""
        return (self.msg_id,) if self._msg_ids is None else self._msg_ids

    @msg_ids.setter
    def msg_ids(self, ids: tuple[str, ...]) -> None:
        self._msg_ids = ids


def _is_zero(value: Any) -> bool:
    return type(value) is int and value == 0


def _utf8(value: Any) -> bytes | None:
    """Return the UTF-8 of tags or keys that need no change in a property string; None for others."""
    if type(value) is not str or "\x01" in value or "\x02" in value:
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:
        return None


def plain(message: Message, ids: UniqueIds, topic: str, max_bytes: int) -> PreparedMessage | None:
    """Return a plain message: bytes as the body, no properties but tags and keys. Arguments: as in ``fast_encode.pyx``.

    Returns: the message, not compressed; None for a message that is not plain, valid or not.
    """
    if type(message) is not Message:
        return None
    body = message.body
    if type(body) is not bytes or not 0 < len(body) <= max_bytes:
        return None
    if (
        message.properties is not None
        or message.sharding_key is not None
        or message.delay_level is not None
        or message.delay_s is not None
        or message.deliver_at is not None
        or message.wait_store_ok is not True
        or message.born_timestamp is not None
        or message.born_host is not None
        or message.store_host is not None
        or not _is_zero(message.flag)
        or not _is_zero(message.queue_id)
        or not _is_zero(message.sys_flag)
        or not _is_zero(message.reconsume_times)
        or not _is_zero(message.prepared_transaction_offset)
    ):
        return None
    tags = b"" if message.tags is None else _utf8(message.tags)
    keys = b"" if message.keys is None else _utf8(message.keys)
    if tags is None or keys is None:
        return None
    msg_id = ids.next()
    properties = b"UNIQ_KEY\x01%b\x02" % msg_id.encode()
    if tags:
        properties += b"TAGS\x01%b\x02" % tags
    if keys:
        properties += b"KEYS\x01%b\x02" % keys
    if len(properties) > _PROPERTIES_MAX:
        return None
    return PreparedMessage(message, topic, body, properties, msg_id)


# --- the request ------------------------------------------------------------------------------------------------------

_TO_ESCAPE: Final = re.compile(rb'[\x00-\x1f"\\]')


def _escape(character: re.Match[bytes]) -> bytes:
    code = character[0][0]
    return b"\\" + character[0] if code >= 0x20 else b"\\u00%02x" % code


def _escaped(text: bytes) -> bytes:
    """Return the inside of a JSON string."""
    return _TO_ESCAPE.sub(_escape, text)


class HeaderTemplate:
    """The header of all sends to a queue; ``frame`` fills in the changing fields. Arguments: as in ``fast_encode.pyx``.

    Attributes: ``queue``: with the topic as users see it.
    """

    queue: MessageQueue

    def __init__(self, code: int, fields: dict[str, Any], version: int, language: str) -> None:
        pairs = [b'"%b":"%b",' % (name.encode(), _escaped(str(value).encode())) for name, value in fields.items()]
        self.fields = fields
        self.code = code
        self._begin = b'{"code":%d,"extFields":{' % code + b"".join(pairs) + b'"f":"'
        self._end = b'"},"flag":0,"language":"%b","opaque":' % language.encode()
        self._oneway_end = self._end.replace(b'"flag":0', b'"flag":2')
        self._last = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % version

    def frame(
        self,
        opaque: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        body: _Buffer,
        oneway: bool = False,
    ) -> bytes:
        """Return the whole frame of a send. Args: properties: the property string; body: bytes-like."""
        end = self._oneway_end if oneway else self._end
        header = b'%b%d","g":"%d","h":"%d","i":"%b%b%d%b' % (
            *(self._begin, sys_flag, born_ms, flag, _escaped(properties), end, opaque, self._last),
        )
        size = memoryview(body).nbytes
        return b"".join([struct.pack(">II", 4 + len(header) + size, len(header)), header, body])


class SendRequest:
    """The request of an attempt: an ``EncodedRequest`` with a frame from a ready header.

    Attributes: as those of Request; ``begun_s``: begin of the attempt, by the sender's clock.
    """

    __slots__ = ("address", "begun_s", "born_ms", "head", "oneway", "out", "timeout_s")

    def __init__(
        self,
        address: str,
        head: HeaderTemplate,
        out: PreparedMessage,
        born_ms: int,
        timeout_s: float,
        oneway: bool = False,
        begun_s: float = 0.0,
    ) -> None:
        self.address = address
        self.head = head
        self.out = out
        self.born_ms = born_ms
        self.timeout_s = timeout_s
        self.oneway = oneway
        self.begun_s = begun_s

    @property
    def code(self) -> int:
        """Return the request code."""
        return self.head.code

    @property
    def body(self) -> bytes:
        """Return the body as sent."""
        return self.out.body

    @property
    def ext_fields(self) -> dict[str, Any]:
        """Return the header fields."""
        out = self.out
        changing = {"f": out.sys_flag, "g": self.born_ms, "h": out.flag, "i": out.properties.decode()}
        return {**self.head.fields, **changing}

    def frame(self, opaque: int) -> bytes:
        """Return the frame of a request without a signature."""
        out = self.out
        return self.head.frame(opaque, out.sys_flag, self.born_ms, out.flag, out.properties, out.body, self.oneway)

    def stored(self, answer: RemotingCommand | None) -> SendResult | None:
        """Return the result of a response with SEND_OK and the offset of the message; else None: the steps decide."""
        if answer is None or answer.code != 0:
            return None
        try:
            return result_of(SendStatus.SEND_OK, answer, self.out, self.head.queue)
        except FieldError:
            return None


# --- the answer -------------------------------------------------------------------------------------------------------


def result_of(status: SendStatus, answer: RemotingCommand, out: PreparedMessage, queue: MessageQueue) -> SendResult:
    """Return the result of a send. Arguments and errors: as in ``fast_encode.pyx``."""
    said = send_answer(answer)
    if said.queue_id != queue[2]:
        queue = MessageQueue(queue[0], queue[1], said.queue_id)
    values = (status, out.msg_id, said.msg_id, queue, said.queue_offset, said.transaction_id, said.recall_handle)
    return tuple.__new__(SendResult, (*values, said.region, out.msg_ids))


def results_of(result: SendResult, many: list[PreparedMessage]) -> list[SendResult]:
    """Return the result of each message of a batch, from that of the batch. Args: many: a PreparedMessage for each."""
    status, _, batch_id, queue, offset, transaction, handle, region, _ = result
    ids = batch_id.split(",")
    each = len(ids) == len(many)
    return [
        tuple.__new__(
            SendResult,
            (
                *(status, part.msg_id, ids[i] if each else batch_id, queue, offset + i, transaction, handle, region),
                (part.msg_id,),
            ),
        )
        for i, part in enumerate(many)
    ]


class FirstAttempt:
    """The first attempt of a send that may go to any queue, driven by its response. As in ``fast_encode.pyx``."""

    __slots__ = ("_goes_on", "how", "on_done", "request")

    def __init__(
        self,
        request: SendRequest,
        how: object,
        done: Callable[[SendResult | None, Exception | None], None],
        goes_on: Callable[[Any, RemotingCommand | None, Exception | None], None],
    ) -> None:
        self.request = request
        self.how: Any = how
        self.on_done = done
        self._goes_on = goes_on

    def done(self) -> bool:
        """Return whether the attempt has ended."""
        return False

    def set_result(self, answer: RemotingCommand) -> None:
        """End with the response."""
        result = self.request.stored(answer)
        if result is None:
            self._goes_on(self, answer, None)
        else:
            self.on_done(result, None)

    def set_exception(self, error: Exception) -> None:
        """End without a response."""
        self._goes_on(self, None, error)


# --- a batch ----------------------------------------------------------------------------------------------------------


def encode_batch(many: list[PreparedMessage]) -> bytes:
    """Return the body of a batch (320). Args: many: a PreparedMessage for each message. Raises: MessageIllegal."""
    parts: list[bytes] = []
    for item in many:
        body, properties = item.body, item.properties
        if len(properties) > _PROPERTIES_MAX:
            raise MessageIllegal(f"properties: expected at most 32767 bytes, found {len(properties)}")
        parts += (
            struct.pack(">IIIiI", 22 + len(body) + len(properties), 0, 0, item.flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    return b"".join(parts)
