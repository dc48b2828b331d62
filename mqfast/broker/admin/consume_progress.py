"""The progress of groups, and the offsets of queues (202, 208, 300, 303, 314, 317, 343, 345), and the progress of delay
levels (45).

A request over all groups yields to the event loop regularly. Source: AdminBrokerProcessor, ConsumerOffsetManager.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Struct

from mqfast.broker.acl.required_permissions import ANY, of_group, of_topic
from mqfast.broker.acl.terms import Action
from mqfast.broker.admin.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    OffsetWrapper,
    QueueBody,
    SubscriptionOf,
    TimeSpan,
    TopicNames,
    TopicOffset,
    TopicStats,
    by_queue,
)
from mqfast.errors import CallRefused
from mqfast.remoting.bodies import build_tables, encode_body, header_of
from mqfast.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.schedule.delay_level import Delays
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors
    from mqfast.store.meta.metadata import TopicConfig

__all__ = ["ConsumeProgress"]

_QUEUES_AT_ONCE: Final = 256
_QUEUES_MAX: Final = 100_000  # of a response: more rows would not fit into a frame


class _Topic(Struct):
    topic: str


class _Group(Struct):
    group: str


class _GroupTopic(Struct):
    group: str
    topic: str


class _ConsumeHeader(Struct, rename="camel"):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class _AllHeader(Struct, rename="camel"):
    is_order: bool = False


class _CloneHeader(Struct, rename="camel"):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ConsumeProgress:
    """Serves requests about offsets. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, delays: Delays) -> None:
        self._context = context
        self._delays = delays

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        for code, handler in {
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
        }.items():
            processors.register([code], handler, lane)
        for code, coroutine in {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
        }.items():
            processors.register([code], coroutine, lane)

    def _existing(self, topic: str) -> TopicConfig:
        config = self._context.topics.get(topic)
        if config is None:
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _queue(self, topic: str, queue_id: int) -> QueueBody:
        return QueueBody(self._context.config["brokerName"], queue_id, topic)

    # --- topics ---

    async def topic_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 202: first and last offset of every queue, and the store time of the last message."""
        topic = header_of(request, _Topic).topic
        config = self._existing(topic)
        store, engine = self._context.store, self._context.engine
        rows = []
        async for queue_id in _queues(max(config.read_queue_nums, config.write_queue_nums)):
            high = store.max_offset(topic, queue_id)
            last_ms = engine.message_store_time(topic, queue_id, high - 1) if high > 0 else 0
            offsets = TopicOffset(last_ms, high, store.min_offset(topic, queue_id))
            rows.append((self._queue(topic, queue_id), offsets))
        return request.response(body=encode_body(TopicStats(by_queue(rows), self._context.stats.put_tps(topic))))

    def groups_of_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 300: the groups that consume or have consumed a topic."""
        topic = header_of(request, _Topic).topic
        groups = set(self._context.consumers.groups_of_topic(topic))
        groups |= {group for consumed, group in self._context.offsets.pairs() if consumed == topic}
        rights = self._context.rights
        caller = rights.caller(channel, request)
        groups = {group for group in groups if rights.may(caller, of_group(group, *ANY))}
        return request.response(body=encode_body(GroupList(sorted(groups))))

    async def time_span(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 303: the time span of the messages of each queue, and the delay of a group."""
        header = header_of(request, _GroupTopic)
        config = self._existing(header.topic)
        spans = [self._time_span(header, queue_id) async for queue_id in _queues(config.write_queue_nums)]
        return request.response(body=encode_body({"consumeTimeSpanSet": spans}))

    def _time_span(self, header: _GroupTopic, queue_id: int) -> TimeSpan:
        context = self._context
        topic, store_time = header.topic, context.engine.message_store_time
        first_ms = context.engine.earliest_message_time(topic, queue_id)
        high = context.store.max_offset(topic, queue_id)
        last_ms = store_time(topic, queue_id, high - 1)
        at = context.offsets.get(header.group, topic, queue_id)
        consumed_ms = store_time(topic, queue_id, at - 1) if at > 0 else first_ms
        next_ms = store_time(topic, queue_id, max(at, context.store.min_offset(topic, queue_id)))
        late_ms = max(0, context.now_ms() - next_ms) if at < high and next_ms > 0 else 0
        queue = self._queue(topic, queue_id)
        return TimeSpan(
            consumed_ms, _clock(consumed_ms), late_ms, last_ms, _clock(last_ms), queue, first_ms, _clock(first_ms)
        )

    # --- groups ---

    async def consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 208: the progress of a group in every queue of its topics."""
        header = header_of(request, _ConsumeHeader)
        group = header.consumer_group
        if header.topic_list:
            topics = [name for name in dict.fromkeys(header.topic_list.split(";")) if name]
        else:
            named = header.topic and header.topic.strip()
            asked = [str(header.topic)] if named else self._seen(channel, request, self._topics_of(group), *ANY)
            topics = [topic for topic in asked if self._subscribes(group, topic)]
        rows: list[tuple[QueueBody, OffsetWrapper]] = []
        tps = 0.0
        for topic in topics:
            config = self._context.topics.get(topic)
            if config is not None:
                rows += await self._positions(group, topic, config.read_queue_nums, len(rows))
                tps += self._context.stats.get_tps(topic, group)
        return request.response(body=encode_body(ConsumeStats(tps, by_queue(rows))))

    async def all_consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 317: the progress of all groups."""
        only_ordered = header_of(request, _AllHeader).is_order
        context = self._context
        topics_of: dict[str, list[str]] = {}
        for topic, group in context.offsets.pairs():
            topics_of.setdefault(group, []).append(topic)
        lists: list[dict[str, list[ConsumeStats]]] = []
        queues = behind = in_flight = 0
        for group in context.groups.table:
            stats = []
            for topic in topics_of.get(group, ()):
                config = context.topics.get(topic)
                if config is None or (only_ordered and not config.order) or not self._subscribes(group, topic):
                    continue
                rows = await self._positions(group, topic, config.write_queue_nums, queues)
                queues += len(rows)
                behind += sum(row.broker_offset - row.consumer_offset for _, row in rows)
                in_flight += sum(row.pull_offset - row.consumer_offset for _, row in rows)
                stats.append(ConsumeStats(context.stats.get_tps(topic, group), by_queue(rows)))
            lists.append({group: stats})
        return request.response(body=encode_body(ConsumeStatsList(context.address, lists, behind, in_flight)))

    def _seen(self, channel: Channel, request: RemotingCommand, topics: list[str], *actions: Action) -> list[str]:
        """Return the topics on which the caller has any of these rights."""
        rights = self._context.rights
        caller = rights.caller(channel, request)
        return [topic for topic in topics if rights.may(caller, of_topic(topic, *actions))]

    def _topics_of(self, group: str) -> list[str]:
        return sorted(self._context.offsets.offsets(group))

    def _subscribes(self, group: str, topic: str) -> bool:
        """Return False if the group is online without a subscription to the topic."""
        online = self._context.consumers.group(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    async def _positions(
        self, group: str, topic: str, queues: int, so_far: int
    ) -> list[tuple[QueueBody, OffsetWrapper]]:
        """Return the progress of a group in the queues of a topic. Args: so_far: number of rows in the response."""
        if so_far + queues > _QUEUES_MAX:
            remark = f"expected at most {_QUEUES_MAX} queues in one answer, found more: ask for one topic of one group"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)
        context = self._context
        rows = []
        async for queue_id in _queues(queues):
            at = max(0, context.offsets.get(group, topic, queue_id))
            last_ms = context.engine.message_store_time(topic, queue_id, at - 1) if at > 0 else 0
            high = context.store.max_offset(topic, queue_id)
            pulled = max(at, context.pull_offsets.get(group, topic, queue_id) or 0)
            rows.append((self._queue(topic, queue_id), OffsetWrapper(high, at, max(0, last_ms), pulled)))
        return rows

    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 343: the topics with offsets of a group."""
        topics = self._seen(channel, request, self._topics_of(header_of(request, _Group).group), *ANY)
        return request.response(body=encode_body(TopicNames(self._context.address, topics)))

    def subscription(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 345: the subscription of an online group to a topic."""
        header = header_of(request, _GroupTopic)
        data = self._context.consumers.subscription(header.group, header.topic)
        body = SubscriptionOf(header.group, UNSET if data is None else data, header.topic)
        return request.response(body=encode_body(body))

    # --- offsets ---

    def clone(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 314: copy the offsets of a group to another group; without a topic those of all topics."""
        header = header_of(request, _CloneHeader)
        context = self._context
        positions = context.offsets.offsets(header.src_group)
        topics = [header.topic] if header.topic and header.topic.strip() else list(positions)
        for topic in self._seen(channel, request, topics, Action.UPDATE):
            if context.topics.get(topic) is None:
                continue
            if not header.offline and not self._subscribes(header.src_group, topic):
                continue
            for queue_id, offset in positions.get(topic, {}).items():
                context.offsets.commit(header.dest_group, topic, queue_id, max(0, offset))
        return request.response()

    def delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 45: the progress of each delay level, also progress that is not on disk yet.

        A slave has the log up to there, too.
        """
        delays = self._context.tables.delays
        offsets = self._delays.service.offsets() if self._delays.is_delivering else delays.offsets()
        body = {"dataVersion": delays.data_version, "offsetTable": offsets}
        return request.response(body=encode_body(body))


def _clock(ms: int) -> str:
    """Return a time in the format of RocketMQ's bodies."""
    return time.strftime("%Y-%m-%d#%H:%M:%S", time.localtime(ms / 1000)) + f":{ms % 1000:03d}"


async def _queues(count: int) -> AsyncIterator[int]:
    """Yield queue ids, with regular yields to the event loop."""
    for queue_id in range(count):
        if queue_id % _QUEUES_AT_ONCE == 0:
            await asyncio.sleep(0)
        yield queue_id


build_tables(__name__)
