"""Request and reply: a consumer's reply (324, 325) is pushed to the requesting producer (326), and stored.

The consumer gets success only if the producer has accepted the reply. Source: ReplyMessageProcessor.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.send.message_writer import MessageRecord
from mqfast.broker.send.send_message import SendProcessor, host_bytes
from mqfast.errors import CallRefused, RemotingError
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand, SendHeader, send_header
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.util.log_limit import LogLimit

__all__ = ["ReplyMessage"]

_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
_PUSH_TIMEOUT_MS: Final = 10_000
_UNSENT_MAX: Final = 8 << 20  # limit for a producer that does not read: unsent replies stay in memory
_COMPRESSION: Final = 1 | 0x700


class ReplyMessage:
    """Serves 324 and 325.

    Args: send: checks the topics. Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, send: SendProcessor) -> None:
        self._context = context
        self._send = send
        self._log = LogLimit(logging.getLogger("mqfast.broker"))

    def register(self, processors: Processors) -> None:
        """Register the handlers, with a limit of their own, since replies wait for clients."""
        codes = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
        processors.register(codes, self.reply, ConcurrencyLimit("reply", concurrency=10_000))

    def start(self) -> None:
        """Do nothing: no periodic work."""

    async def stop(self) -> None:
        """Do nothing: no periodic work."""

    async def reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 324, 325. Raises: FieldError, CallRefused, MessageIllegal."""
        context = self._context
        config = context.config
        header = send_header(request)
        topic = self._send.topic_of(header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queue_nums))
        elif queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise CallRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {topic!r} Producer: {channel.peer[0]}:{channel.peer[1]}",
            )
        tracing = {names.MSG_REGION: config["regionId"], names.TRACE_ON: str(config["traceOn"]).lower()}
        pairs = {**names.decode(header.properties), **tracing}
        properties = names.encode(pairs)
        fields: dict[str, str] = {}
        wrong = await self._push(channel, request, header, pairs)
        if wrong is None:
            fields = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if config["storeReplyMessageEnable"]:
            stored = await context.writer.stored(
                MessageRecord(
                    header.topic,
                    queue_id,
                    request.body,
                    properties,
                    flag=header.flag,
                    sys_flag=header.sys_flag & _COMPRESSION,
                    born_timestamp=header.born_timestamp,
                    born_host=host_bytes(channel),
                    reconsume_times=header.reconsume_times,
                )
            )
            if stored.result is not None:
                context.stats.put(header.topic, 1, stored.result.size)  # type: ignore[union-attr]
                fields = {
                    "msgId": stored.result.message_id,
                    "queueId": str(queue_id),
                    "queueOffset": str(stored.result.queue_offset),  # type: ignore[union-attr]
                }
        code = ResponseCode.SUCCESS if wrong is None else ResponseCode.SYSTEM_ERROR
        return request.response(code, {**fields, **tracing}, remark=wrong)

    async def _push(
        self, channel: Channel, request: RemotingCommand, header: SendHeader, pairs: dict[str, str]
    ) -> str | None:
        """Push the reply to the requesting client. Returns: RocketMQ's text of a failure, else None."""
        context = self._context
        client = pairs.get(_REPLY_TO_CLIENT)
        if client is None:
            return f"reply message properties[{_REPLY_TO_CLIENT}] is null"
        target = context.producers.channel_of(client)
        if not isinstance(target, Channel):
            return f"push reply message fail, channel of <{client}> not found."
        if target.unsent_bytes >= _UNSENT_MAX:
            self._log.warning("unread", "a reply was not pushed to %s, which does not read what it gets", client)
            return f"push reply message to {client}fail."
        now_ms = context.now_ms()
        fields = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queue_nums),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp),
            "flag": str(header.flag),
            "properties": names.encode({**pairs, _PUSH_REPLY_TIME: now_ms}).decode(),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": str(header.unit_mode).lower(),
            "bornHost": f"{channel.peer[0]}:{channel.peer[1]}",
            "storeHost": context.address,
            "storeTimestamp": str(now_ms),
        }
        try:
            answer = await target.call(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body, timeout_ms=_PUSH_TIMEOUT_MS
            )
        except RemotingError as error:
            self._log.warning("push", "a reply was not pushed to %s: %s", client, error)
            return f"push reply message to {client}fail."
        if answer.code != ResponseCode.SUCCESS:
            self._log.warning("push", "a reply was not taken by %s: code %d, %s", client, answer.code, answer.remark)
            return f"push reply message to {client}fail."
        return None
