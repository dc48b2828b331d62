"""The records of POP in the topic ``rmq_sys_REVIVE_LOG_<cluster>``, in the form of RocketMQ's FS mode: check-points of
delivered batches, and acks.

A record is a timed message: it waits in the timing wheel and enters the topic when due. Its unique key names the batch.
The property POP_LIFE names the process that keeps the batch in memory; a record of another process is read from the
topic (``revive_log.py``). Source: PopCheckPoint, AckMsg, BatchAckMsg, PopMessageProcessor.buildCkMsg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from mqfast import properties as names
from mqfast.broker.send.message_writer import MessageRecord
from mqfast.errors import FieldError

__all__ = [
    "ACK", "BATCH_ACK", "CHECK_POINT", "LIFE", "REVIVE_GROUP", "AckRecord", "Batch", "ack_record", "batch_key",
    "check_point_record", "decode_ack", "decode_check_point", "revive_topic",
]  # fmt: skip

CHECK_POINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
"""Tags of the records."""
LIFE: Final = "POP_LIFE"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_EARLIER_MS: Final = 1000  # a check-point enters the topic before its acks
_COUNT_MAX: Final = 1 << 12
_I64: Final = 2**63 - 1
_ENCODER: Final = msgspec.json.Encoder()
_LONG_NAMES: Final[dict[str, str]] = {
    "ackOffset": "ao", "startOffset": "so", "consumerGroup": "c", "topic": "t", "queueId": "q", "popTime": "pt",
    "brokerName": "bn", "cid": "c", "invisibleTime": "it", "num": "n", "queueOffsetDiff": "d", "ackOffsetList": "aol",
    "rePutTimes": "rp", "suspend": "sp", "bitMap": "bm",
}  # fmt: skip


def revive_topic(cluster: str) -> str:
    """Return the topic of a cluster's records."""
    return f"rmq_sys_REVIVE_LOG_{cluster}"


def batch_key(topic: str, queue_id: int, start: int, group: str, pop_time: int, broker: str) -> str:
    """Return the key of a batch, the unique key of its check-point without the tag."""
    return f"{topic}@{queue_id}@{start}@{group}@{pop_time}@{broker}"


class Batch:
    """A delivered batch of a queue, until each message is acked or stored again.

    Attributes: ``topic``: of the queue, which may be a retry topic; ``offsets``: of the delivered messages;
        ``pending``: the offsets that are neither acked nor stored again; ``is_suspended``: redelivery does not count as
        a failed attempt; ``is_own``: this process made the check-point; ``rewrites``: how often the check-point was
        written again.
    """

    __slots__ = (
        "broker", "group", "invisible_ms", "is_own", "is_suspended", "key", "offsets", "pending", "pop_time",
        "queue_id", "revive_queue_id", "rewrites", "start", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        group: str,
        queue_id: int,
        start: int,
        offsets: Sequence[int],
        pop_time: int,
        invisible_ms: int,
        revive_queue_id: int,
        broker: str,
        *,
        is_suspended: bool = False,
        is_own: bool = True,
        rewrites: int = 0,
    ) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.start = start
        self.offsets = tuple(offsets)
        self.pending = set(offsets)
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.revive_queue_id = revive_queue_id
        self.broker = broker
        self.is_suspended = is_suspended
        self.is_own = is_own
        self.rewrites = rewrites
        self.key = batch_key(topic, queue_id, start, group, pop_time, broker)

    @property
    def due_ms(self) -> int:
        """Return the time of redelivery."""
        return self.pop_time + self.invisible_ms


class AckRecord(NamedTuple):
    """The ack of messages of a batch."""

    key: str
    offsets: tuple[int, ...]


def check_point_record(batch: Batch, topic: str, life: str, store_host: bytes) -> MessageRecord:
    """Return the check-point of a batch as a message of the revive topic."""
    fields: dict[str, Any] = {
        "bm": 0,
        "bn": batch.broker,
        "c": batch.group,
        "d": [offset - batch.start for offset in batch.offsets],
        "it": batch.invisible_ms,
        "n": len(batch.offsets),
        "pt": batch.pop_time,
        "q": batch.queue_id,
        "reviveTime": batch.due_ms,
        "ro": 0,
        "so": batch.start,
        "sp": batch.is_suspended,
        "t": batch.topic,
    }
    if batch.rewrites:
        fields["rp"] = str(batch.rewrites)
    due_ms = batch.due_ms - _EARLIER_MS
    return _record(
        topic, batch.revive_queue_id, fields, CHECK_POINT, f"{batch.key}@ck", due_ms, life, batch.pop_time, store_host
    )


def ack_record(
    key: tuple[str, int, int, str, int, str],
    offsets: Sequence[int],
    revive_queue_id: int,
    due_ms: int,
    topic: str,
    life: str | None,
    now_ms: int,
    store_host: bytes,
) -> MessageRecord:
    """Return the ack of messages as a message of the revive topic.

    Args: key: the arguments of ``batch_key``; due_ms: of the batch; life: None if the batch is of another process.
    """
    real_topic, queue_id, start, group, pop_time, broker = key
    is_single = len(offsets) == 1
    fields: dict[str, Any] = {"ao": offsets[0] if is_single else -1}
    if not is_single:
        fields["aol"] = list(offsets)
    fields |= {"bn": broker, "c": group, "pt": pop_time, "q": queue_id, "so": start, "t": real_topic}
    unique = batch_key(real_topic, queue_id, offsets[0] if is_single else -1, group, pop_time, broker) + "@ack"
    tag = ACK if is_single else BATCH_ACK
    return _record(topic, revive_queue_id, fields, tag, unique, due_ms, life, now_ms, store_host)


def _record(
    topic: str,
    queue_id: int,
    fields: dict[str, Any],
    tag: str,
    unique: str,
    due_ms: int,
    life: str | None,
    born_ms: int,
    store_host: bytes,
) -> MessageRecord:
    pairs = {names.TAGS: tag, names.UNIQ_KEY: unique, names.TIMER_DELIVER_MS: str(due_ms)}
    if life is not None:
        pairs[LIFE] = life
    body, properties = _ENCODER.encode(fields), names.encode(pairs)
    return MessageRecord(topic, queue_id, body, properties, born_timestamp=born_ms, born_host=store_host)


def decode_check_point(body: bytes, revive_queue_id: int, broker: str) -> Batch:
    """Parse a check-point of another process, of any version of RocketMQ. Raises: FieldError."""
    fields = _fields(body)
    start, count = _whole(fields, "so"), _whole(fields, "n", _COUNT_MAX)
    distances = fields.get("d")
    if distances is None:
        distances = list(range(count))
    if not isinstance(distances, list) or not 0 < len(distances) <= _COUNT_MAX:
        raise FieldError("check-point.d", f"a list of 1 to {_COUNT_MAX} numbers", repr(distances)[:60])
    if any(type(distance) is not int or not 0 <= distance <= _I64 - start for distance in distances):
        raise FieldError("check-point.d", "distances from so", repr(distances)[:60])
    acked = _whole(fields, "bm", default=0)
    rewrites = str(fields.get("rp") or "0")
    batch = Batch(
        _text(fields, "t"),
        _text(fields, "c"),
        _whole(fields, "q", 2**31 - 1),
        start,
        [start + distance for distance in distances],
        _whole(fields, "pt"),
        _whole(fields, "it"),
        revive_queue_id,
        str(fields.get("bn") or broker),
        is_suspended=fields.get("sp") is True,
        is_own=False,
        rewrites=int(rewrites) if rewrites.isascii() and rewrites.isdigit() and len(rewrites) < 4 else 0,
    )
    for position, offset in enumerate(batch.offsets):
        if acked >> position & 1:
            batch.pending.discard(offset)
    return batch


def decode_ack(body: bytes, broker: str) -> AckRecord:
    """Parse an ack or a batch of acks of another process. Raises: FieldError."""
    fields = _fields(body)
    listed = fields.get("aol")
    if listed is None:
        offsets = [_whole(fields, "ao")]
    elif not isinstance(listed, list) or len(listed) > _COUNT_MAX or any(type(offset) is not int for offset in listed):
        raise FieldError("ack.aol", f"a list of at most {_COUNT_MAX} numbers", repr(listed)[:60])
    else:
        offsets = listed
    key = batch_key(
        _text(fields, "t"),
        _whole(fields, "q"),
        _whole(fields, "so"),
        _text(fields, "c"),
        _whole(fields, "pt"),
        str(fields.get("bn") or broker),
    )
    return AckRecord(key, tuple(offsets))


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError("record", f"JSON ({str(error)[:60]})", repr(body[:60])) from None
    if not isinstance(fields, dict):
        raise FieldError("record", "a JSON object", repr(body[:60]))
    return {_LONG_NAMES.get(str(name), str(name)): value for name, value in fields.items()}


def _whole(fields: dict[str, Any], name: str, highest: int = _I64, default: int | None = None) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not 0 <= value <= highest:
        raise FieldError(f"record.{name}", f"0 to {highest}", repr(value)[:60])
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value or "@" in value:
        raise FieldError(f"record.{name}", "a name", repr(value)[:60])
    return value
