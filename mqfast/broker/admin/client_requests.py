"""Requests of admins for clients: reset of offsets (222), state of a client (223, 307), direct consumption (309), and
producers (328).

The wait for a client has RocketMQ's time limits, and does not delay other requests. Source: Broker2Client,
AdminBrokerProcessor.resetOffset, callConsumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mqfast.broker.acl.required_permissions import of_message
from mqfast.broker.acl.terms import Action
from mqfast.broker.admin.bodies import OffsetsBody, ProducerRow, QueueBody, by_client, by_queue, queue_offsets
from mqfast.errors import CallRefused, CallTimeout, MqfastError, RemotingError
from mqfast.message import decode_message_id
from mqfast.remoting.bodies import build_tables, encode_body, header_of
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import LanguageCode, RequestCode, ResponseCode
from mqfast.remoting.signature import OF_THE_SIGNATURE
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.metadata.client_manager.consumer_manager import ClientChannelInfo
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["ClientRequests"]

_limit = LogLimit(logging.getLogger("mqfast.broker"), burst=20)
_CALL_MS: Final = 10_000
_STATUS_MS: Final = 5_000
_SINCE_RESET: Final = 47  # V3_0_7_SNAPSHOT
_SINCE_CALLS: Final = 62  # V3_1_8_SNAPSHOT


class _ResetHeader(Struct, rename="camel"):
    topic: str
    group: str
    timestamp: int
    is_force: bool = False
    queue_id: int = -1
    offset: int | None = None


class _StatusHeader(Struct, rename="camel"):
    topic: str
    group: str
    client_addr: str | None = None


class _ClientHeader(Struct, rename="camel"):
    consumer_group: str
    client_id: str = ""


class _DirectHeader(Struct, rename="camel"):
    consumer_group: str
    client_id: str = ""
    msg_id: str = ""
    topic: str | None = None


class ClientRequests:
    """Serves 222, 223, 307, 309 and 328. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        processors.register([RequestCode.INVOKE_BROKER_TO_RESET_OFFSET], self.reset, lane)
        processors.register([RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS], self.status, lane)
        processors.register([RequestCode.GET_CONSUMER_RUNNING_INFO], self.running_info, lane)
        processors.register([RequestCode.CONSUME_MESSAGE_DIRECTLY], self.consume_directly, lane)
        processors.register([RequestCode.GET_ALL_PRODUCER_INFO], self.producers, lane)

    # --- offsets ---

    def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 222: reset a group's offsets by time, or a single offset by number."""
        header = header_of(request, _ResetHeader)
        _limit.warning(
            "reset", "offsets of group %s, topic %s are reset by %s:%d: time %d, queue %d, offset %s",
            header.group, header.topic, *channel.peer, header.timestamp, header.queue_id, header.offset,
        )  # fmt: skip
        if self._context.config["useServerSideResetOffset"]:
            return self._reset_here(request, header)
        return self._reset_at_clients(request, header)

    def _reset_here(self, request: RemotingCommand, header: _ResetHeader) -> RemotingCommand:
        context = self._context
        topic = context.topics.get(header.topic)
        if topic is None:
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.group not in context.groups.table:
            raise CallRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        wanted: dict[int, int] = {}
        if header.queue_id >= 0:
            wanted[header.queue_id] = self._wanted_offset(header)
        else:
            for queue_id in range(topic.read_queue_nums):
                wanted[queue_id] = self._offset_by_time(header.topic, queue_id, header.timestamp)
        if not wanted:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="No queues to reset.")
        for queue_id, offset in wanted.items():
            context.reset_offsets.assign(header.group, header.topic, queue_id, offset)
        return request.response(body=self._offsets_body(header.topic, wanted))

    def _wanted_offset(self, header: _ResetHeader) -> int:
        if header.offset is None or header.offset == -1:
            return self._offset_by_time(header.topic, header.queue_id, header.timestamp)
        low = self._context.store.min_offset(header.topic, header.queue_id)
        high = self._context.store.max_offset(header.topic, header.queue_id)
        if not low <= header.offset <= high + 1:
            remark = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)
        return min(header.offset, high)

    def _offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        store = self._context.store
        return store.max_offset(topic, queue_id) if timestamp < 0 else store.offset_by_time(topic, queue_id, timestamp)

    def _reset_at_clients(self, request: RemotingCommand, header: _ResetHeader) -> RemotingCommand:
        context = self._context
        topic = context.topics.get(header.topic)
        if topic is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
        wanted: dict[int, int] = {}
        for queue_id in range(topic.write_queue_nums):
            at = context.offsets.get(header.group, header.topic, queue_id)
            if at == -1:
                raise CallRefused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            target = max(0, self._offset_by_time(header.topic, queue_id, header.timestamp))
            wanted[queue_id] = target if header.is_force or target < at else at
        members = self._members(header.group)
        if not members:
            remark = (
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
            raise CallRefused(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        _check_versions(members)
        body = self._offsets_body(header.topic, wanted)
        if request.language == LanguageCode.CPP:
            name = context.config["brokerName"]
            rows = [
                {"brokerName": name, "offset": offset, "queueId": queue_id, "topic": header.topic}
                for queue_id, offset in wanted.items()
            ]
            client_body = encode_body({"offsetTable": rows})
        else:
            client_body = body
        fields = {
            "topic": header.topic,
            "group": header.group,
            "timestamp": str(header.timestamp),
            "isForce": str(header.is_force).lower(),
        }
        for channel in _channels(members):
            channel.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, client_body)
        return request.response(body=body)

    def _offsets_body(self, topic: str, offsets: dict[int, int]) -> bytes:
        name = self._context.config["brokerName"]
        return encode_body(
            OffsetsBody(by_queue((QueueBody(name, queue_id, topic), offset) for queue_id, offset in offsets.items()))
        )

    async def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 223: the offsets of each client of a group, requested from the clients (221)."""
        header = header_of(request, _StatusHeader)
        members = self._members(header.group)
        if not members:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)
        _check_versions(members)
        client_id = (header.client_addr or "").strip()
        asked = [member for member in members if not client_id or member.client_id == client_id]
        fields = {"topic": header.topic, "group": header.group}
        answers = await asyncio.gather(*(_status_of(member, fields) for member in asked))
        table = {
            member.client_id: offsets for member, offsets in zip(asked, answers, strict=True) if offsets is not None
        }
        return request.response(body=encode_body({"consumerTable": by_client(table)}))

    # --- forwarded calls ---

    async def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 307: the running info of a client."""
        header = header_of(request, _ClientHeader)
        fields = dict(request.ext_fields)
        return await self._pass_on(request, header.consumer_group, header.client_id, fields, bytes(request.body))

    async def consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 309: a client consumes a stored message now."""
        header = header_of(request, _DirectHeader)
        context = self._context
        fields = {**request.ext_fields, "brokerName": context.config["brokerName"]}
        if header.topic and (topic := context.topics.get(header.topic)) is not None:
            fields["topicSysFlag"] = str(topic.sys_flag)
        if header.consumer_group and (group := context.groups.get(header.consumer_group)) is not None:
            fields["groupSysFlag"] = str(group.get("groupSysFlag", 0))
        try:
            message = context.store.get_by_offset(decode_message_id(header.msg_id).physical_offset)
            record = context.engine.record_at(message.physical_offset)
        except (MqfastError, ValueError) as error:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id!r}: {error}") from None
        context.rights.demand(channel, request, of_message(message, Action.SUB))
        return await self._pass_on(request, header.consumer_group, header.client_id, fields, bytes(record))

    async def _pass_on(
        self, request: RemotingCommand, group: str, client_id: str, fields: dict[str, Any], body: bytes
    ) -> RemotingCommand:
        member = self._member(group, client_id)
        if member is None or not isinstance(member.channel, Channel):
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < _SINCE_CALLS:
            remark = (
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it to "
                "V3_1_8_SNAPSHOT"
            )
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)
        # A client could reuse the admin's signature with another code.
        client_fields = {name: value for name, value in fields.items() if name not in OF_THE_SIGNATURE}
        try:
            answer = await member.channel.call(request.code, client_fields, body, timeout_ms=_CALL_MS)
        except CallTimeout as error:
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise CallRefused(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from None
        except RemotingError as error:
            remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark) from None
        return request.response(answer.code, dict(answer.ext_fields), bytes(answer.body), remark=answer.remark)

    def producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 328: all connected producers."""
        manager = self._context.producers
        data = {group: [_row(member) for member in manager.members(group)] for group in manager.groups()}
        return request.response(body=encode_body({"data": data}))

    def _members(self, group: str) -> list[ClientChannelInfo]:
        consumer_group = self._context.consumers.group(group)
        return [] if consumer_group is None else list(consumer_group.members.values())

    def _member(self, group: str, client_id: str) -> ClientChannelInfo | None:
        members = [member for member in self._members(group) if member.client_id == client_id]
        return max(members, key=lambda member: member.updated_ms) if members else None


async def _status_of(member: ClientChannelInfo, fields: dict[str, str]) -> dict[QueueBody, int] | None:
    if not isinstance(member.channel, Channel):
        return None
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        answer = await member.channel.call(code, fields, timeout_ms=_STATUS_MS)
        return queue_offsets(bytes(answer.body)) if answer.code == 0 and answer.body else None
    except RemotingError as error:
        _limit.warning("status", "client %s does not tell how far it is: %s", member.client_id, error)
        return None


def _channels(members: Iterable[ClientChannelInfo]) -> list[Channel]:
    return [member.channel for member in members if isinstance(member.channel, Channel)]


def _check_versions(members: Iterable[ClientChannelInfo]) -> None:
    for member in members:
        if member.version < _SINCE_RESET:
            remark = f"the client does not support this feature. version={member.version}"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)


def _row(member: ClientChannelInfo) -> ProducerRow:
    host, port = member.channel.peer if isinstance(member.channel, Channel) else ("", 0)
    language = LanguageCode(member.language).name
    return ProducerRow(member.client_id, language, member.updated_ms, f"/{host}:{port}", member.version)


build_tables(__name__)
