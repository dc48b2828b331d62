"""36: a consumer sends a message back. The message is delivered again after a delay, or becomes a dead letter.

No body is decoded or copied. Source: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Final

from mqfast import properties as names
from mqfast.broker.acl.required_permissions import of_message
from mqfast.broker.acl.terms import Action
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import DLQ_PREFIX, READ, RETRY_PREFIX, WRITE, dlq_topic, retry_topic
from mqfast.broker.send.header_fields import flag, text, whole
from mqfast.broker.send.message_writer import Stored
from mqfast.broker.send.restored_message import get_by_offset, put_copy
from mqfast.errors import CallRefused
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["SendBack"]

_HONOURS_RECONSUME_MAX: Final = 121  # V3_4_9
_UNIT_SUB: Final = 2
_FIRST_LEVEL: Final = 3
_DLQ_QUEUES: Final = 1
_STORED: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
)  # fmt: skip
_NOT_AT_SLAVES: Final = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class SendBack:
    """Serves 36. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def register(self, processors: Processors) -> None:
        """Register the handler; send-backs do not wait behind sends."""
        processors.register(
            [RequestCode.CONSUMER_SEND_MSG_BACK], self.send_back, ConcurrencyLimit("sendBack", concurrency=10_000)
        )

    def start(self) -> None:
        """Do nothing: no periodic work."""

    async def stop(self) -> None:
        """Do nothing: no periodic work."""

    def send_back(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve 36. Raises: FieldError, CallRefused."""
        context = self._context
        name = text(request, "group")
        offset, level = whole(request, "offset"), whole(request, "delayLevel")
        host = context.address.rpartition(":")[0]
        group = context.groups.get(name)
        if group is None:
            raise CallRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {_FAQ}")
        if not context.config["brokerPermission"] & WRITE:
            raise CallRefused(ResponseCode.NO_PERMISSION, f"the broker[{host}] sending message is forbidden")
        queues = int(group.get("retryQueueNums", 1))
        if queues <= 0:
            return request.response()
        target, queue_id = retry_topic(name), random.randrange(queues)
        sys_flag = _UNIT_SUB if flag(request, "unitMode") else 0
        if not context.topics.ensure(target, queues, READ | WRITE, sys_flag).perm & WRITE:
            raise CallRefused(ResponseCode.NO_PERMISSION, f"the topic[{target}] sending message is forbidden")
        message = get_by_offset(context, offset)
        if message is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        context.rights.demand(channel, request, of_message(message, Action.SUB))
        max_retries = int(group.get("retryMaxTimes", 16))
        if request.version >= _HONOURS_RECONSUME_MAX:
            max_retries = whole(request, "maxReconsumeTimes", max_retries)
        is_dead = message.reconsume_times >= max_retries or level < 0
        if is_dead:
            target, queue_id, level = dlq_topic(name), 0, 0
            context.topics.ensure(target, _DLQ_QUEUES)
        elif level == 0:
            level = _FIRST_LEVEL + message.reconsume_times
        pairs = message.properties
        if not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            pairs[names.RETRY_TOPIC] = message.topic  # overwrites the producer's value: clients show this topic
        origin_topic = pairs.setdefault(names.RETRY_TOPIC, message.topic)
        pairs[names.WAIT] = "false"
        pairs[names.DELAY] = str(level)
        if not pairs.get(names.ORIGIN_MESSAGE_ID, "").strip():
            pairs[names.ORIGIN_MESSAGE_ID] = message.message_id
        again = put_copy(
            context, message, target, queue_id, pairs,
            reconsume_times=message.reconsume_times + 1, store_host=context.store_host,
        )  # fmt: skip
        if again.result is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, again.status.name)
        context.stats.add("SNDBCK_PUT_NUMS", f"{origin_topic}@{name}")
        if is_dead:
            context.stats.add("SEND_TO_DLQ", f"{origin_topic}@{name}")
        if context.writer.must_wait(b""):
            return self._when_durable(request, Stored(0, None, again.result))
        return request.response()

    async def _when_durable(self, request: RemotingCommand, stored: Stored) -> RemotingCommand:
        # RocketMQ does not wait here: after a power cut, or the loss of the master, the message is lost.
        writer = self._context.writer
        done = await writer.durable(stored)
        # The message is stored; after an error a consumer would store the message once more. Under fail-over the next
        # master may lack the message.
        is_success = done.code in _STORED and (writer.right is None or done.code not in _NOT_AT_SLAVES)
        return request.response(0 if is_success else done.code, remark=done.remark)
