"""The checks of POP requests and of receipt handles, with RocketMQ's codes and texts.

A handle comes from a client: each field is compared with the queue, the settings and the clock before use. Source: as
``pop_service.py``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mqfast.broker.filter.consumer_filter_manager import SQL92, check_supported, is_tag_type
from mqfast.broker.filter.queue_unit_filter import SqlUnits, WantedUnits, by_tags
from mqfast.broker.filter.sql92_parser import SqlError, compile_sql
from mqfast.broker.metadata.topic_manager import READ
from mqfast.broker.pop.pop_result import ANY_QUEUE, PopRequest
from mqfast.broker.pop.receipt_handle import NORMAL, ORDER_QUEUE, ReceiptHandle, pop_retry_topic
from mqfast.broker.pop.retry_message import origin_topic
from mqfast.errors import CallRefused, UsageError
from mqfast.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.schedule.timer import BrokerTimers
    from mqfast.store.meta.metadata import TopicConfig

__all__ = ["PopChecks", "illegal"]

COUNT_MAX: Final = 32
_SEE: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_FUTURE_MS: Final = 60_000
"""A handle with a later pop time was not made here."""


class PopChecks:
    """Raises CallRefused for what is not permitted. Args: timers: POP needs the timing wheel."""

    def __init__(self, context: BrokerContext, timers: BrokerTimers) -> None:
        self._context: Final = context
        self._timers: Final = timers
        self._compiling: Final = asyncio.Lock()

    def request(self, request: PopRequest) -> TopicConfig:
        """Return the topic of a permitted request. Raises: CallRefused."""
        host = self._context.address.rpartition(":")[0]
        if not 0 < request.max_count <= COUNT_MAX:
            raise illegal(f"the broker[{host}] pop message's num is greater than {COUNT_MAX}")
        self.invisible(request.invisible_ms)
        self.master()
        topic = self.readable(request.group, request.topic)
        if not ANY_QUEUE <= request.queue_id < topic.read_queue_nums:
            raise illegal(
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}]"
            )
        return topic

    def master(self) -> None:
        """Check that this broker redelivers: not a slave, with a timer. Raises: CallRefused."""
        host = self._context.address.rpartition(":")[0]
        if self._context.config.is_slave:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"the broker[{host}] is a slave: pop needs the master")
        if self._timers.service is None:
            raise CallRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{host}] pop message is forbidden because timerWheelEnable is false",
            )

    def invisible(self, invisible_ms: int) -> None:
        """Check an invisible time, for which the timer keeps a check-point. Raises: CallRefused."""
        longest_ms = self._context.config["timerMaxDelaySec"] * 1000
        if not 0 < invisible_ms <= longest_ms:
            raise illegal(f"invisibleTime: expected 1 to {longest_ms} ms (timerMaxDelaySec), found {invisible_ms}")

    def readable(self, group: str, name: str) -> TopicConfig:
        """Return a topic that a group may read. Raises: CallRefused."""
        context = self._context
        host = context.address.rpartition(":")[0]
        if not context.config["brokerPermission"] & READ:
            raise CallRefused(ResponseCode.NO_PERMISSION, f"the broker[{host}] pop message is forbidden")
        topic = context.topics.get(name)
        if topic is None:
            raise _no_topic(name)
        if not topic.perm & READ:
            raise CallRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        rules = context.groups.get(group)
        if rules is None:
            raise CallRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist, {_SEE}"
            )
        if not rules.get("consumeEnable", True) or not context.groups.may_read(group, name):
            raise CallRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return topic

    async def filter(self, request: PopRequest) -> WantedUnits:
        """Return the filter of a request; a long expression is compiled in a thread. Raises: CallRefused."""
        kind, expression = request.expression_type, request.expression
        if not expression:
            return None
        check_supported(kind, self._context.config)
        try:
            if is_tag_type(kind):
                return by_tags(expression)
            if kind != SQL92:
                raise SqlError(f"no expression type {kind!r:.40}")
            if not self._context.filters.compiling.takes_long([expression]):
                return SqlUnits(compile_sql(expression))
            async with self._compiling:  # of all clients together
                return SqlUnits(await self._context.loop.run_in_executor(None, compile_sql, expression))
        except (SqlError, UsageError):
            raise CallRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None

    def handle(self, group: str, name: str, handle: ReceiptHandle, revive_queues: int, *, is_end_allowed: bool) -> str:
        """Return the topic that the message of a handle is in.

        Args: revive_queues: the number of revive queues; is_end_allowed: the offset may be that after the last message.
        Raises: CallRefused.
        """
        context = self._context
        self.master()
        real = pop_retry_topic(name, group, handle.kind)
        config = context.topics.get(real)
        # After a kill a retry topic may be in the log and not yet in the table.
        is_retry = handle.kind != NORMAL and context.topics.get(origin_topic(real, group)) is not None
        if config is None and not (is_retry and context.store.max_offset(real, 0) > 0):
            raise _no_topic(real)
        queues = 1 if config is None else config.read_queue_nums
        if not 0 <= handle.queue_id < queues:
            raise CallRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{handle.queue_id}] is illegal, topic:[{real}] topicConfig.readQueueNums:[{queues}]",
            )
        low, high = context.store.min_offset(real, handle.queue_id), context.store.max_offset(real, handle.queue_id)
        if not low <= handle.offset <= high - (not is_end_allowed):
            raise CallRefused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{real}@{handle.queue_id}, commit:{handle.offset}, store:{low}~{high}",
            )
        if handle.broker_name != context.config["brokerName"]:
            raise illegal(f"brokerName: expected {context.config['brokerName']}, found {handle.broker_name[:100]}")
        is_orderly = handle.revive_queue_id == ORDER_QUEUE
        if not is_orderly and not 0 <= handle.revive_queue_id < revive_queues:
            raise illegal(f"reviveQid: expected 0 to {revive_queues - 1}, found {handle.revive_queue_id}")
        if not 0 <= handle.start_offset <= handle.offset:
            raise illegal(f"ckQueueOffset: expected 0 to {handle.offset}, found {handle.start_offset}")
        if not 0 <= handle.pop_time <= context.now_ms() + _FUTURE_MS:
            raise illegal(f"popTime: expected a time of this broker, found {handle.pop_time}")
        if not is_orderly:
            self.invisible(handle.invisible_ms)
        return real


def illegal(text: str) -> CallRefused:
    """Return the refusal of an argument (29)."""
    return CallRefused(ResponseCode.INVALID_PARAMETER, text)


def _no_topic(name: str) -> CallRefused:
    return CallRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {_SEE}")
