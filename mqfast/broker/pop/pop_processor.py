"""POP over remoting: 200050 to 200055 and 200151, as headers and codes around ``PopService``.

Source: PopMessageProcessor, PeekMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor,
NotificationProcessor, PollingInfoProcessor.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mqfast.broker.acl.required_permissions import of_popped
from mqfast.broker.pop.pop_result import PopRequest, PopResult, PopStatus
from mqfast.broker.pop.pop_service import PopService
from mqfast.broker.pop.receipt_handle import ReceiptHandle, kind_of
from mqfast.broker.send.header_fields import flag, text, whole
from mqfast.errors import CallRefused, ConfigError, FieldError
from mqfast.remoting.bodies import build_tables, decode_request
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.processors import ConcurrencyLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pull.get_limits import Limits
    from mqfast.broker.pull.long_polling import LongPolling
    from mqfast.broker.schedule.timer import BrokerTimers
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import Processors

__all__ = ["PopProcessor"]

_TOO_LATE_MS: Final = 500
_CLOCKS_DIFFER_MS: Final = 60_000
_BEFORE_THE_END_MS: Final = 50  # the answer must reach the client in time
_WAIT_MS_MAX: Final = 10 * 60 * 1000
_BITS_MAX: Final = 1 << 12
_ACKS_MAX: Final = 1 << 12
_CODES: Final = {
    PopStatus.FOUND: ResponseCode.SUCCESS,
    PopStatus.NOT_FOUND: ResponseCode.POLLING_TIMEOUT,
    PopStatus.FULL: ResponseCode.POLLING_FULL,
}


class BatchAck(Struct):
    """Acks of a batch. Source: BatchAck."""

    c: str
    t: str
    r: str
    so: int
    q: int
    rq: int
    pt: int
    it: int
    b: str


class BatchAckBody(Struct, rename="camel"):
    """The body of 200151. Source: BatchAckMessageRequestBody."""

    broker_name: str | None = None
    acks: list[BatchAck] | None = None


class PopProcessor:
    """Serves the requests of POP consumers.

    Attributes: ``service``: for the gRPC server as well.
    Raises: ConfigError if the store has POP state in RocksDB.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, limits: Limits, long_polling: LongPolling, timers: BrokerTimers) -> None:
        _check_key_value_store(context)
        self._context: Final = context
        self.service: Final = PopService(context, limits, long_polling, timers)
        self._held: dict[Channel, set[asyncio.Task[RemotingCommand | None]]] = {}

    def register(self, processors: Processors) -> None:
        """Register the handlers."""
        config = self._context.config
        held = ConcurrencyLimit("pop", concurrency=config["maxPopPollingSize"], queue_max=config["maxPopPollingSize"])
        acks = ConcurrencyLimit("ack", concurrency=config["maxPopPollingSize"])
        processors.register([RequestCode.POP_MESSAGE], self.pop, held)
        processors.register([RequestCode.NOTIFICATION], self.notification, held)
        processors.register([RequestCode.PEEK_MESSAGE], self.peek, acks)
        processors.register([RequestCode.ACK_MESSAGE], self.ack, acks)
        processors.register([RequestCode.BATCH_ACK_MESSAGE], self.batch_ack, acks)
        processors.register([RequestCode.CHANGE_MESSAGE_INVISIBLETIME], self.change_invisible_time, acks)
        processors.register([RequestCode.POLLING_INFO], self.polling_info, acks)

    def start(self) -> None:
        """Start redelivery."""
        self.service.start()

    async def stop(self) -> None:
        """Answer held requests, and stop redelivery."""
        self.service.stop()
        tasks = [task for held in self._held.values() for task in held]
        if tasks:
            await asyncio.wait(tasks)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the held requests of a closed connection, so that other consumers get the messages."""
        for task in self._held.pop(channel, ()):
            task.cancel()

    def _hold(self, channel: Channel, serve: Coroutine[Any, Any, RemotingCommand]) -> Awaitable[RemotingCommand | None]:
        task: asyncio.Task[RemotingCommand | None] = asyncio.ensure_future(serve)
        self._held.setdefault(channel, set()).add(task)
        task.add_done_callback(lambda done: self._answered(channel, done))
        return task

    def _answered(self, channel: Channel, task: asyncio.Task[RemotingCommand | None]) -> None:
        held = self._held.get(channel)
        if held is not None:
            held.discard(task)
            if not held:
                del self._held[channel]

    # --- 200050, 200052, 200054, 200055 ---

    def pop(self, channel: Channel, request: RemotingCommand) -> Awaitable[RemotingCommand | None] | RemotingCommand:
        """Serve 200050. Raises: FieldError, CallRefused."""
        wait_ms = self._wait_ms(request)
        if wait_ms is None:
            remark = f"the broker[{self._context.address.rpartition(':')[0]}] pop message is timeout too much"
            return request.response(ResponseCode.POLLING_TIMEOUT, remark=remark)
        rights = self._context.rights
        wanted = PopRequest(
            group=text(request, "consumerGroup"),
            topic=text(request, "topic"),
            queue_id=whole(request, "queueId"),
            max_count=whole(request, "maxMsgNums"),
            invisible_ms=whole(request, "invisibleTime"),
            wait_ms=wait_ms,
            from_max=whole(request, "initMode", 0) != 0,
            expression_type=_optional(request, "expType"),
            expression=_optional(request, "exp"),
            is_orderly=flag(request, "order"),
            attempt_id=_optional(request, "attemptId"),
        )
        if rights.compares:
            needs = of_popped(wanted.topic, wanted.group)
            wanted.check_rights = partial(rights.demand, channel, request, *needs)
        return self._hold(channel, self._pop(request, wanted))

    async def _pop(self, request: RemotingCommand, wanted: PopRequest) -> RemotingCommand:
        result = await self.service.pop(wanted)
        fields = _fields(result)
        if result.status is not PopStatus.FOUND:
            return request.response(_CODES[result.status], fields, remark="NO_MESSAGE_IN_QUEUE")
        records = [memoryview(message.record) for message in result.messages]
        return request.response(ResponseCode.SUCCESS, fields, records, remark=result.status.value)

    def _wait_ms(self, request: RemotingCommand) -> int | None:
        """Return how long a request may be held; None: the request was too long on the way.

        A request that seems to be minutes old comes from a machine with another clock. RocketMQ answers such a request
        at once, and the client repeats it without a pause.
        """
        poll_ms, now_ms = max(0, whole(request, "pollTime", 0)), self._context.now_ms()
        born_ms = whole(request, "bornTime", 0) or now_ms
        remaining_ms = min(born_ms - now_ms, 0) + poll_ms
        if remaining_ms < -_CLOCKS_DIFFER_MS:
            remaining_ms = poll_ms
        if remaining_ms < -_TOO_LATE_MS:
            return None
        return min(max(0, remaining_ms - _BEFORE_THE_END_MS), _WAIT_MS_MAX)

    async def peek(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 200052: the next messages of a group, which stay visible."""
        group, topic, queue_id = text(request, "consumerGroup"), text(request, "topic"), whole(request, "queueId")
        result = await self.service.peek(group, topic, queue_id, whole(request, "maxMsgNums"))
        if not result.messages:
            return request.response(ResponseCode.PULL_NOT_FOUND, _fields(result), remark="NO_MESSAGE_IN_QUEUE")
        records = [memoryview(message.record) for message in result.messages]
        return request.response(ResponseCode.SUCCESS, _fields(result), records, remark=result.status.value)

    def notification(self, channel: Channel, request: RemotingCommand) -> Awaitable[RemotingCommand | None]:
        """Serve 200054: whether a POP would find messages, within the time of the request."""
        return self._hold(channel, self._notification(request))

    async def _notification(self, request: RemotingCommand) -> RemotingCommand:
        group, topic, queue_id = text(request, "consumerGroup"), text(request, "topic"), whole(request, "queueId")
        wait_ms = self._wait_ms(request) or 0
        has_messages = await self.service.notification(
            group, topic, queue_id, wait_ms, is_orderly=flag(request, "order"),
            attempt_id=_optional(request, "attemptId"),
        )  # fmt: skip
        return request.response(0, {"hasMsg": str(has_messages).lower(), "pollingFull": "false"})

    def polling_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 200055: the number of requests of a group that wait for messages of a topic."""
        count = self.service.waiters.count(text(request, "topic"), text(request, "consumerGroup"))
        return request.response(0, {"pollingNum": str(count)})

    # --- 200051, 200151, 200053 ---

    async def ack(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 200051. Raises: FieldError, CallRefused."""
        await self.service.ack(text(request, "consumerGroup"), text(request, "topic"), _handle(request))
        return request.response()

    async def batch_ack(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 200151. Unknown topics and offsets out of range are left out, as in RocketMQ. Raises: FieldError."""
        body = decode_request(request.body, BatchAckBody, "body")
        if not body.acks:
            raise CallRefused(ResponseCode.NO_MESSAGE, "batchAckMessageRequestBody is empty")
        if len(body.acks) > _ACKS_MAX:
            raise FieldError("body.acks", f"at most {_ACKS_MAX} batches", str(len(body.acks)))
        broker = body.broker_name or self._context.config["brokerName"]
        by_group: dict[tuple[str, str], list[ReceiptHandle]] = {}
        for ack in body.acks:
            kind = int(ack.r) if ack.r in ("0", "1", "2") else kind_of(ack.t, ack.c)
            handles = by_group.setdefault((ack.c, ack.t), [])
            for offset in _offsets(ack):
                handles.append(ReceiptHandle(ack.so, ack.pt, ack.it, ack.rq, kind, broker, ack.q, offset))
        for (group, topic), handles in by_group.items():
            for refused in await self.service.ack_batch(group, topic, handles):
                if refused is not None and refused.code in _FAILURES:
                    raise refused
        return request.response()

    async def change_invisible_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 200053. Raises: FieldError, CallRefused."""
        handle = await self.service.change_invisible_time(
            text(request, "consumerGroup"),
            text(request, "topic"),
            _handle(request),
            whole(request, "invisibleTime"),
            is_suspend=flag(request, "suspend"),
        )
        fields = {
            "popTime": str(handle.pop_time),
            "invisibleTime": str(handle.invisible_ms),
            "reviveQid": str(handle.revive_queue_id),
        }
        return request.response(0, fields)


_FAILURES: Final = (
    ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.INVALID_PARAMETER,
)  # fmt: skip


def _handle(request: RemotingCommand) -> ReceiptHandle:
    """Return the handle of a request; queue and offset are those of the header, as in RocketMQ. Raises: FieldError."""
    handle = ReceiptHandle.decode(text(request, "extraInfo"))
    return handle._replace(queue_id=whole(request, "queueId"), offset=whole(request, "offset"))


def _optional(request: RemotingCommand, name: str) -> str | None:
    value = request.ext_fields.get(name)
    return None if value is None or value == "" else str(value)


def _offsets(ack: BatchAck) -> list[int]:
    """Return the offsets of the bits of Java's BitSet. Raises: FieldError."""
    try:
        data = base64.b64decode(ack.b, validate=True)
    except (binascii.Error, ValueError):
        raise FieldError("body.acks.b", "Base64", repr(ack.b[:60])) from None
    if len(data) > _BITS_MAX // 8:
        raise FieldError("body.acks.b", f"at most {_BITS_MAX} bits", f"{len(data)} bytes")
    bits = int.from_bytes(data, "little")
    return [ack.so + position for position in range(bits.bit_length()) if bits >> position & 1]


def _fields(result: PopResult) -> dict[str, str]:
    fields = {
        "popTime": str(result.pop_time),
        "invisibleTime": str(result.invisible_ms),
        "reviveQid": str(result.revive_queue_id),
        "restNum": str(result.rest),
    }
    for name, value in (
        ("startOffsetInfo", result.start_offset_info),
        ("msgOffsetInfo", result.message_offset_info),
        ("orderCountInfo", result.order_count_info),
    ):
        if value:
            fields[name] = value
    return fields


def _check_key_value_store(context: BrokerContext) -> None:
    """Raise ConfigError if a Java broker has left POP state in RocksDB, which this broker cannot read."""
    path = context.store.paths.kv_store
    files = context.store.log.os_api.listdir(path) if context.store.log.os_api.exists(path) else []
    if any(name.endswith((".sst", ".log")) for name in files):
        raise ConfigError(
            f"popConsumerKVServiceEnable: {path} has POP state in RocksDB, which mqfast does not read: start the Java "
            "broker once more, move the state into messages (request 200056), stop it, and remove the folder"
        )


build_tables(__name__)
