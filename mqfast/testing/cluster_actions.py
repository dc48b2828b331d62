"""Actions of a test on its brokers without a client, and checks of the work of consumers.

No connection is used: faults and the list of requests are for the application under test. Thread: that of the event
loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mqfast import properties as names
from mqfast.broker.metadata.topic_manager import AUTO_CREATE_TOPIC, READ, WRITE, illegal_topic, retry_topic
from mqfast.broker.send.message_writer import MessageRecord, Stored
from mqfast.client.delivery import Delivery
from mqfast.client.values import Body, MessageQueue, SendResult, SendStatus
from mqfast.errors import BrokerError, UsageError
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX, Message, parse_host
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.unique_ids import UniqueIds
from mqfast.testing import checks
from mqfast.testing import store_inspection as look
from mqfast.testing.cluster import RunningCluster, RunningServer

__all__ = ["Acts"]

_STORED: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
}
_FIELDS: Final = (
    "broker", "deliver_at", "delay_level", "delay_s", "keys", "properties", "queue_id", "sharding_key", "tags",
)  # fmt: skip
# Topics of messages that returned, and properties that brokers add there: a test stores dead letters of its own.
_BACK: Final = (RETRY_PREFIX, DLQ_PREFIX)
_OF_THE_DEAD: Final = (
    names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.MAX_RECONSUME_TIMES, names.DLQ_ORIGIN_TOPIC,
    names.DLQ_ORIGIN_MESSAGE_ID, names.DLQ_ATTEMPTS,
)  # fmt: skip
_BORN_HOST: Final = parse_host("127.0.0.1:0")
_PERMISSIONS: Final = {"r": READ, "w": WRITE, "rw": READ | WRITE}


class Acts:
    """Sends and topics of a test. Args: cluster."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._ids = UniqueIds(bytes((127, 0, 0, 1)))
        self._turns = itertools.count()

    async def create_topic(self, topic: str, queues: int, *, perm: str, order: bool) -> None:
        """Create or change a topic on all running brokers. Raises: UsageError."""
        given: Sequence[object] = (topic, perm, order)
        wrong = illegal_topic(topic) if isinstance(given[0], str) else f"expected the name of a topic, found {topic!r}"
        if wrong:
            raise UsageError(f"create_topic: {wrong}")
        checks.whole("queues", queues, 1, 1024)
        if not isinstance(given[2], bool):
            raise UsageError(f"order: expected True or False, found {order!r}")
        if not isinstance(given[1], str) or perm not in _PERMISSIONS:
            raise UsageError(f"perm: expected r, w or rw, found {perm!r}")
        for member in self._cluster.running():
            context = member.context
            context.topics.put({**context.topics.raw(topic, queues, _PERMISSIONS[perm]), "order": order})
            await context.changes.settled()

    # --- send ---

    async def send(self, topic: str, bodies: Sequence[Body], fields: Mapping[str, Any]) -> list[SendResult]:
        """Store messages as a send does. Raises: UsageError, BrokerError."""
        unknown = fields.keys() - set(_FIELDS)
        if unknown:
            raise UsageError(f"send: expected {', '.join(_FIELDS)}, found {', '.join(sorted(unknown))}")
        given: object = topic
        wrong = illegal_topic(topic) if isinstance(given, str) else f"expected the name of a topic, found {topic!r}"
        if wrong:
            raise UsageError(f"send: {wrong}")
        pairs = self._properties(topic, fields)
        return [await self._send_one(topic, data, fields, pairs) for data in [_bytes_of(body) for body in bodies]]

    async def _send_one(
        self, topic: str, data: bytes, fields: Mapping[str, Any], pairs: Mapping[str, Any]
    ) -> SendResult:
        turn, running = next(self._turns), self._cluster.running()
        member = self._member(running, fields.get("broker"), turn)
        context = member.context
        known = context.topics.create_for_send(topic, AUTO_CREATE_TOPIC, 4, 0)
        if known is None:
            remark = f"topic[{topic}] not exist, apply first please!"
            raise BrokerError(code=ResponseCode.TOPIC_NOT_EXIST, remark=remark, broker=member.name)
        await context.changes.settled()
        queue_id = fields.get("queue_id")
        if queue_id is None:
            queue_id = turn // len(running) % max(1, known.write_queue_nums)
        else:
            checks.whole("queue_id", queue_id, 0, known.write_queue_nums - 1)
        unique = self._ids.next()
        record = MessageRecord(
            topic,
            queue_id,
            data,
            names.encode({**pairs, names.UNIQ_KEY: unique, names.WAIT: "true"}),
            born_timestamp=self._cluster.time.now_ms(),
            born_host=_BORN_HOST,
        )
        return self._result(member, record, unique, await context.writer.stored(record))

    def _properties(self, topic: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return properties as a client makes properties of arguments; delays use the cluster's time. Raises:
        UsageError.
        """
        given = {name: value for name, value in fields.items() if name not in ("broker", "queue_id")}
        names.refuse_reserved(fields.get("properties") or {}, allowed=_OF_THE_DEAD if topic.startswith(_BACK) else ())
        pairs = Message(topic, b"", **given).merged_properties(fields.get("properties") or {})
        delay_ms = pairs.pop(names.TIMER_DELAY_MS, None) if fields.get("delay_s") is not None else None
        if delay_ms is not None:
            pairs[names.TIMER_DELIVER_MS] = str(self._cluster.time.now_ms() + int(delay_ms))
        return pairs

    @staticmethod
    def _member(running: list[RunningServer], name: str | None, turn: int) -> RunningServer:
        if not running:
            raise UsageError("send: expected a broker that runs, found none")
        if name is None:
            return running[turn % len(running)]
        member = next((candidate for candidate in running if candidate.name == name), None)
        if member is None:
            raise UsageError(f"broker: expected {' or '.join(candidate.name for candidate in running)}, found {name!r}")
        return member

    def _result(self, member: RunningServer, record: MessageRecord, unique: str, done: Stored) -> SendResult:
        if done.result is None or done.code not in _STORED:
            raise BrokerError(code=done.code, remark=done.remark or "", broker=member.name)
        result: Any = done.result
        member.context.stats.put(record.topic, 1, result.size)
        queue = MessageQueue(record.topic, member.name, record.queue_id)
        return SendResult(
            _STORED[ResponseCode(done.code)],
            unique,
            result.message_id,
            queue,
            result.queue_offset,
            region_id=member.context.config["regionId"],
            msg_ids=(unique,),
        )

    # --- work of consumers ---

    def consumed_otherwise(self, group: str, topic: str) -> str:
        """Return the messages of a topic that a group did not consume exactly once, in words; empty if none."""
        wrong = []
        for lag in look.lags(self._cluster, group, topic):
            if lag.behind > 0:
                wrong.append(f"{lag.behind} of queue {lag.queue.queue_id} of {lag.queue.broker_name} not consumed")
        for place, ranges in self._cluster.gate.delivered.items():
            if (place.group, place.topic) == (group, topic):
                seen = 0
                for begin, end in sorted(ranges):
                    if begin < seen:
                        wrong.append(
                            f"offsets {begin} to {min(seen, end) - 1} of queue {place.queue_id} delivered twice"
                        )
                    seen = max(seen, end)
        back = [message for message in look.messages(self._cluster, retry_topic(group)) if _origin(message) == topic]
        if back:
            wrong.append(f"{len(back)} sent back")
        return "; ".join(wrong)

    def out_of_order(self, topic: str, by: str) -> str:
        """Return the first violation of the order, in words; empty if none."""
        last: dict[str, tuple[MessageQueue, int]] = {}
        for delivery in sorted(
            look.messages(self._cluster, topic), key=lambda delivery: (delivery.queue, delivery.queue_offset)
        ):
            value = delivery.properties.get(by)
            if value is None:
                continue
            before = last.get(value)
            if before is not None and before[0] != delivery.queue:
                return f"{by} {value!r} in queues {before[0].queue_id} and {delivery.queue.queue_id}"
            if before is not None and before[1] > delivery.born_timestamp:
                place = f"offset {delivery.queue_offset} of queue {delivery.queue.queue_id}"
                return f"{by} {value!r}: {place} born before the last"
            last[value] = delivery.queue, delivery.born_timestamp
        return ""


def _origin(message: Delivery) -> str | None:
    return message.properties.get(names.RETRY_TOPIC)


def _bytes_of(body: Body) -> bytes:
    """Return a body as bytes. Raises: UsageError."""
    if isinstance(body, str):
        return body.encode()
    try:
        return bytes(memoryview(body))  # bytes() of a number would be so many zeros
    except TypeError:
        raise UsageError(f"body: expected bytes or text, found {body!r}") from None
