"""Requests of admins for topics (17, 18, 21, 215, 305, 351), and for cleaning (306, 316, 329).

Messages are deleted only with their topic: cleaning removes what retention would remove, and 316 only queues without
messages. Source: AdminBrokerProcessor, TopicConfigManager.updateTopicConfig.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Struct

from mqfast.broker.admin.attributes import TOPIC_ATTRIBUTES, changed, parsed
from mqfast.broker.admin.bodies import AllTopics, TopicNames
from mqfast.broker.metadata.topic_manager import illegal_topic
from mqfast.errors import CallRefused
from mqfast.remoting.bodies import (
    LIST_BYTES_MAX,
    DataVersion,
    Int32,
    TopicConfigBody,
    build_tables,
    decode_request,
    encode_body,
    header_of,
)
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pull.long_polling import LongPolling
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["TopicRequests"]

_A_TURN: Final = 100
_QUEUES_MAX: Final = 100_000  # of a topic: statistics of more would not fit into a response
_NAME_BYTES_MAX: Final = 255
_ADD_MIXED: Final = ("+message.type", "MIXED")


class _TopicHeader(Struct, rename="camel"):
    read_queue_nums: int
    write_queue_nums: int
    perm: Int32
    topic: str = ""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None


class _NameHeader(Struct):
    topic: str = ""


class _TopicListBody(Struct, rename="camel"):
    topic_config_list: list[TopicConfigBody]


class TopicRequests:
    """Serves requests about topics. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, long_polling: LongPolling) -> None:
        self._context = context
        self._long_polling = long_polling
        self._limit = LogLimit(logging.getLogger("mqfast.broker"), burst=20)
        self._deleting = asyncio.Lock()

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        processors.register([RequestCode.UPDATE_AND_CREATE_TOPIC], self.update, lane)
        processors.register([RequestCode.UPDATE_AND_CREATE_TOPIC_LIST], self.update_list, lane)
        for code, handler in {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
        }.items():
            processors.register([code], handler, lane)
        processors.register([RequestCode.DELETE_TOPIC_IN_BROKER], self.delete, lane)
        processors.register([RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE], self.clean, lane)
        processors.register([RequestCode.CLEAN_UNUSED_TOPIC], self.clean_unused, lane)
        processors.register([RequestCode.DELETE_EXPIRED_COMMITLOG], self.clean, lane)

    # --- changes ---

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 17: create or change a topic."""
        self._check_name(request.ext_fields.get("topic", ""))
        header = header_of(request, _TopicHeader)
        wanted = parsed(header.attributes)
        self._check_type(wanted)
        self._put(
            {
                "order": header.order,
                "perm": header.perm,
                "readQueueNums": header.read_queue_nums,
                "topicFilterType": header.topic_filter_type,
                "topicName": header.topic,
                "topicSysFlag": header.topic_sys_flag or 0,
                "writeQueueNums": header.write_queue_nums,
            },
            wanted,
        )
        self._limit.info("set", "topic %s was set by %s:%d", header.topic, *channel.peer)
        return request.response()

    async def update_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 18: several topics at once, or none if any name is illegal. Yields to other requests in between."""
        topics = decode_request(request.body, _TopicListBody, "body", bytes_max=LIST_BYTES_MAX).topic_config_list
        for topic in topics:
            self._check_name(topic.topic_name or "")
            self._check_type(topic.attributes or {})
        for number, topic in enumerate(topics, 1):
            if not number % _A_TURN:
                await asyncio.sleep(0)
            self._put(
                {
                    "order": topic.order,
                    "perm": topic.perm,
                    "readQueueNums": topic.read_queue_nums,
                    "topicFilterType": topic.topic_filter_type or "SINGLE_TAG",
                    "topicName": topic.topic_name,
                    "topicSysFlag": topic.topic_sys_flag,
                    "writeQueueNums": topic.write_queue_nums,
                },
                topic.attributes or {},
            )
        self._limit.info("set", "%d topics were set by %s:%d", len(topics), *channel.peer)
        return request.response()

    def _check_name(self, topic: str) -> None:
        if (wrong := illegal_topic(topic)) is not None:
            raise CallRefused(ResponseCode.INVALID_PARAMETER, wrong)
        self._check_not_system(topic)

    def _check_not_system(self, topic: str) -> None:
        if self._context.topics.is_system(topic):
            remark = f"The topic[{topic}] is conflict with system topic."
            raise CallRefused(ResponseCode.INVALID_PARAMETER, remark)

    @staticmethod
    def _check_type(wanted: dict[str, str]) -> None:
        if _ADD_MIXED in wanted.items():
            raise CallRefused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")

    def _put(self, raw: dict[str, Any], wanted: dict[str, str]) -> None:
        for name in ("readQueueNums", "writeQueueNums"):
            if not 0 <= raw[name] <= _QUEUES_MAX:
                remark = f"{name}: expected 0 to {_QUEUES_MAX}, found {raw[name]}"
                raise CallRefused(ResponseCode.INVALID_PARAMETER, remark)
        topics = self._context.topics
        old = topics.get(raw["topicName"])
        attributes = changed(TOPIC_ATTRIBUTES, None if old is None else old.attributes, wanted)
        raw = {"attributes": attributes, **raw}
        if old is None or {**old.raw, **raw} != old.raw:
            topics.put(raw if old is None else {**old.raw, **raw})

    async def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 215: delete a topic, its queues and offsets, and the topics of its POP retries.

        Durability: all changes are on disk before the response is sent.
        """
        topic = header_of(request, _NameHeader).topic
        if not topic.strip():
            raise CallRefused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if len(topic.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
            remark = f"topic: expected at most {_NAME_BYTES_MAX} bytes, as a directory has, found {topic[:40]!r}..."
            raise CallRefused(ResponseCode.INVALID_PARAMETER, remark)
        self._check_not_system(topic)
        async with self._deleting:
            for name in (topic, *self._pop_retry_topics(topic)):
                await self._delete(name)
            # Otherwise a kill restores the offsets, and groups skip messages of a new topic of this name.
            context = self._context
            await context.loop.run_in_executor(None, context.offsets.persist, context.store.flush)
        self._limit.info("deleted", "topic %s was deleted by %s:%d", topic, *channel.peer)
        return request.response()

    def _pop_retry_topics(self, topic: str) -> Iterable[str]:
        topics = self._context.topics
        for group in [group for consumed, group in self._context.offsets.pairs() if consumed == topic]:
            for name in (f"%RETRY%{group}+{topic}", f"%RETRY%{group}_{topic}"):
                if topics.get(name) is not None:
                    yield name

    async def _delete(self, topic: str) -> None:
        context = self._context
        config = context.topics.get(topic)
        async with context.topics.leaving(topic):
            await context.loop.run_in_executor(None, context.store.delete_topic, topic)
        context.offsets.remove_topic(topic)
        context.pull_offsets.forget_topic(topic)
        context.reset_offsets.forget_topic(topic)
        context.stats.topic_deleted(topic)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            self._long_polling.answer_held((topic, queue_id))  # the next pulls of the consumers are refused

    # --- queries ---

    def topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 351: a topic; there are no static topics."""
        name = header_of(request, _NameHeader).topic
        config = self._context.topics.get(name)
        if config is None:
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        return request.response(body=encode_body(_whole(name, config.raw)))

    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 21: all topics, whatever slice is requested."""
        topics = self._context.topics
        table = {name: _whole(name, config.raw) for name in topics.table if (config := topics.get(name)) is not None}
        version = _version(topics.table.data_version)
        body = encode_body(AllTopics(version, DataVersion(timestamp=version.timestamp), table))
        return request.response(0, {"totalTopicNum": str(len(table))}, body)

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 305: the topics of RocketMQ and of this broker."""
        return request.response(body=encode_body(TopicNames(UNSET, self._context.topics.system_topics())))

    # --- cleaning ---

    def clean(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 306, 329: delete expired files soon, at any hour."""
        self._context.store.retention.clean_now()
        return request.response()

    async def clean_unused(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 316: delete the queues of topics without a table entry and without a message."""
        context = self._context
        held = {topic for topic, _, low, high in context.store.queues() if low < high}
        for topic in context.store.topics():
            if topic not in held and context.topics.get(topic) is None and not context.topics.is_system(topic):
                async with self._deleting:
                    await self._delete(topic)
        return request.response()


_DEFAULTS: Final = {
    "attributes": {},
    "order": False,
    "perm": 6,
    "readQueueNums": 16,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "writeQueueNums": 16,
}


def _whole(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a topic's object with all fields, in the order of names."""
    fields = {**_DEFAULTS, **raw, "topicName": name}
    return {field: fields[field] for field in sorted(fields)}


def _version(raw: dict[str, int]) -> DataVersion:
    return DataVersion(int(raw.get("counter", 0)), int(raw.get("stateVersion", 0)), int(raw.get("timestamp", 0)))


build_tables(__name__)
