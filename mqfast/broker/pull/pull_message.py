"""Pulls (11, 361): checks of the permission, the filter, the messages, the wait for messages (``long_polling.py``).

Records are sent as views of the mapped log; a view keeps the file mapped until the connection has sent the view.
Records that are probably not in memory are read in a thread, since the loop must not wait for a disk. Records in memory
are not copied, and every response has the four offsets that clients read.
Source: PullMessageProcessor, DefaultPullMessageResultHandler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqfast.broker.acl.required_permissions import of_group, of_topic
from mqfast.broker.acl.terms import Action
from mqfast.broker.filter.consumer_filter_manager import SQL92, check_supported, is_tag_type
from mqfast.broker.filter.queue_unit_filter import SqlUnits, WantedUnits, by_subscription, by_tags
from mqfast.broker.filter.sql92_parser import SqlError, compile_sql
from mqfast.broker.metadata.subscription_group_manager import is_system_group
from mqfast.broker.metadata.topic_manager import READ
from mqfast.broker.pull.broadcast_offsets import BroadcastOffsets
from mqfast.broker.pull.get_limits import Limits
from mqfast.broker.pull.long_polling import LongPolling
from mqfast.errors import CallRefused, MqfastError, UsageError
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import PullHeader, RemotingCommand, pull_header
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.engine import GetLimits, GetMessageResult
from mqfast.store.meta.metadata import TopicConfig
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.fast.published_pulls import PublishedPulls
    from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerGroup
    from mqfast.broker.pull.consumer_offsets import OffsetProcessor
    from mqfast.broker.replication.replica_manager import ReplicaManager

__all__ = ["PullProcessor"]

_log = logging.getLogger("mqfast.broker")

# Bits of the header's sysFlag.
COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
# Reasons of a refusal (forbiddenType of the response).
BY_BROKER, BY_GROUP, BY_TOPIC, BY_BROADCASTING, BY_SUBSCRIPTION = 1, 2, 3, 4, 5
_FORBIDDEN_READ: Final = 1 << 2
_I32: Final = 2**31 - 1
_OFFSET_MAX: Final = 1 << 56
_GONE: Final = "it was deleted while its messages were read"
_SEE: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_CODES: Final = {
    GetMessageStatus.FOUND: 0,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # but at offset 0
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # but at offset 0
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY: Final = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)


def _bounded(offset: int) -> int:
    """Return an offset within the range of the store; no queue exceeds this range."""
    return min(max(offset, -_OFFSET_MAX), _OFFSET_MAX)


class _Refused(Exception):
    """The group may not read: code, text, and the reason as a number if there is one."""

    def __init__(self, code: int, remark: str, forbidden: int = 0) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.forbidden = forbidden


class _Pull(NamedTuple):
    """A checked pull."""

    channel: Channel
    request: RemotingCommand
    header: PullHeader
    topic: TopicConfig
    group: dict[str, Any]
    wanted: WantedUnits
    may_hold: bool


class PullProcessor:
    """Serves 11, 361, and 46. Thread: that of the event loop."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: OffsetProcessor,
        long_polling: LongPolling,
        limits: Limits,
        replicas: ReplicaManager,
    ) -> None:
        self._context = context
        self._offsets = offsets
        self._replicas: Final = replicas
        self._log = LogLimit(_log, burst=5)
        self._filters: Final = context.filters
        self._limits: Final = limits
        self._long_polling: Final = long_polling
        self._broadcast = BroadcastOffsets(context, limits)
        self._tasks: set[asyncio.Future[None]] = set()
        self._published: PublishedPulls | None = None

    def register(self, processors: Processors) -> None:
        """Register the handlers."""
        config = self._context.config
        max_pulls, max_lite_pulls = config["pullThreadPoolQueueCapacity"], config["litePullThreadPoolQueueCapacity"]
        # An awaited pull blocks no other pull.
        pulls = ConcurrencyLimit("pull", concurrency=max_pulls, queue_max=max_pulls)
        lite = ConcurrencyLimit("litePull", concurrency=max_lite_pulls, queue_max=max_lite_pulls)
        processors.register([RequestCode.PULL_MESSAGE], self.pull, pulls)
        processors.register([RequestCode.LITE_PULL_MESSAGE], self.pull, lite)
        self._filters.register(processors)

    def publish_to(self, published: PublishedPulls | None) -> None:
        """Publish what was checked of a pull that found messages, for reactors; None: no longer."""
        self._published = published

    def start(self) -> None:
        """Do nothing: pulls are held from the beginning."""

    async def stop(self) -> None:
        """Answer all held pulls."""
        self._long_polling.stop()
        self._filters.compiling.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def scan(self) -> None:
        """Forget filters and broadcasting clients of groups and clients that left long ago; every ten seconds."""
        self._filters.forget_late()
        self._broadcast.scan()

    def channel_closed(self, channel: Channel) -> None:
        """Forget the held pulls of a closed connection."""
        self._long_polling.channel_closed(channel)

    def pull(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Serve 11, 361. Raises: FieldError, MqfastError."""
        return self._serve(channel, request, not request.is_oneway)

    # --- checks ---

    def _serve(
        self, channel: Channel, request: RemotingCommand, may_hold: bool
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        header = pull_header(request)
        if not may_hold and (rights := self._context.rights).compares:  # after a wait: rights may have been revoked
            needs = of_topic(header.topic, Action.SUB), of_group(header.consumer_group, Action.SUB)
            rights.demand(channel, request, *needs)
        if header.expression_type == SQL92 and header.sys_flag & SUBSCRIPTION and header.subscription:
            compiling, text = self._filters.compiling, header.subscription
            if compiling.takes_long([text]):
                return compiling.then(channel, [text], partial(self._serve, channel, request, may_hold))
        try:
            group, topic = self._permitted(channel, request, header)
            wanted = self._wanted(channel, header, group)
        except _Refused as refusal:
            fields = {"forbiddenType": str(refusal.forbidden)} if refusal.forbidden else None
            return request.response(refusal.code, fields, remark=refusal.remark)
        pull = _Pull(channel, request, header, topic, group, wanted, may_hold)
        if self._context.config.is_slave and not self._context.config["slaveReadEnable"]:
            # RocketMQ's slave returns the offset after the withheld messages: the group skips these messages.
            return self._to_the_master(pull, "this slave is not read from, slaveReadEnable is false")
        return self._read(pull)

    def _to_the_master(self, pull: _Pull, remark: str) -> RemotingCommand:
        """Return a response after which the group continues at the same offset, at the master."""
        store, header = self._context.store, pull.header
        queue = header.topic, header.queue_id
        fields = self._fields(pull, header.queue_offset, store.min_offset(*queue), store.max_offset(*queue))
        return pull.request.response(ResponseCode.PULL_RETRY_IMMEDIATELY, fields, remark=remark)

    def _permitted(
        self, channel: Channel, request: RemotingCommand, header: PullHeader
    ) -> tuple[dict[str, Any], TopicConfig]:
        context, config = self._context, self._context.config
        if not config["brokerPermission"] & READ:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._host}] pulling message is forbidden", BY_BROKER
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config["litePullMessageEnable"]:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._host}] for lite pull consumer is forbidden", BY_BROKER
            )
        group = context.groups.get(header.consumer_group)
        if group is None:
            raise _Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {_SEE}",
            )
        if not group.get("consumeEnable", True):
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}", BY_GROUP
            )
        topic = context.topics.get(header.topic)
        if topic is None:
            raise _Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {_SEE}")
        if not topic.perm & READ:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden", BY_TOPIC
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[/{channel.peer[0]}:{channel.peer[1]}]",
            )
        return group, topic

    @property
    def _host(self) -> str:
        return self._context.address.rpartition(":")[0]

    # --- the filter ---

    def _wanted(self, channel: Channel, header: PullHeader, group: dict[str, Any]) -> WantedUnits:
        """Return the filter of a pull: of the pull itself, or of the group's heartbeat."""
        members = self._context.consumers.group(header.consumer_group)
        try:
            if header.sys_flag & SUBSCRIPTION:
                wanted = self._own_filter(header)
            else:
                wanted = self._registered_filter(header, group, members)
        except CallRefused as refused:
            raise _Refused(refused.code, refused.remark) from None
        if self._context.config["rejectPullConsumerEnable"] and self._is_stranger(channel, header, members):
            raise _Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist, or the pull consumer is rejected by server.{_SEE}",
            )
        return wanted

    @staticmethod
    def _is_stranger(channel: Channel, header: PullHeader, members: ConsumerGroup | None) -> bool:
        if members is not None and members.consume_type != "CONSUME_ACTIVELY":
            return False
        known = members is not None and channel in members.members
        return not known and not is_system_group(header.consumer_group)

    def _own_filter(self, header: PullHeader) -> WantedUnits:
        kind = header.expression_type
        check_supported(kind, self._context.config)
        try:
            if is_tag_type(kind):
                return by_tags(header.subscription)
            if kind != SQL92 or not header.subscription:
                raise SqlError("no expression of a type that is known")
            return SqlUnits(compile_sql(header.subscription))
        except (SqlError, UsageError) as error:
            self._log.warning(
                "subscription", "group %s: the subscription %r is refused: %s",
                header.consumer_group, (header.subscription or "")[:200], error,
            )  # fmt: skip
            raise _Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None

    def _registered_filter(
        self, header: PullHeader, group: dict[str, Any], members: ConsumerGroup | None
    ) -> WantedUnits:
        if members is None:
            raise _Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{_SEE}")
        name, topic = header.consumer_group, header.topic
        if not group.get("consumeBroadcastEnable", True) and members.message_model == "BROADCASTING":
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] can not consume by broadcast way",
                BY_BROADCASTING,
            )
        if self._context.groups.table.forbidden(name, topic) & _FORBIDDEN_READ:
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] is forbidden for topic[{topic}]",
                BY_SUBSCRIPTION,
            )
        subscription = members.subscriptions.get(topic)
        if subscription is None:
            raise _Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{_SEE}")
        if subscription.sub_version < header.sub_version:
            raise _Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if is_tag_type(subscription.expression_type):
            return by_subscription(subscription)
        entry = self._filters.get(topic, name)
        if entry is None:
            raise _Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if entry.client_version < header.sub_version:
            raise _Refused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        check_supported(subscription.expression_type, self._context.config)
        return SqlUnits(entry.compiled)

    # --- the messages ---

    def _read(self, pull: _Pull) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        context, header = self._context, pull.header
        reset = context.reset_offsets.pop(header.consumer_group, header.topic, header.queue_id)
        if reset is not None and context.config["useServerSideResetOffset"]:
            return self._moved(pull, reset)
        begin = self._broadcast.begin(pull.channel, pull.request, header)
        if begin >= 0:
            return self._moved(pull, begin)
        limits = self._limits.get(pull.wanted, header.max_msg_nums)
        if context.engine.is_on_disk(header.topic, header.queue_id, _bounded(header.queue_offset), limits):
            return self._read_in_a_thread(pull, limits)
        return self._answer(pull, self._records(pull, limits))

    def _records(self, pull: _Pull, limits: GetLimits) -> GetMessageResult:
        header = pull.header
        max_bytes = header.max_msg_bytes
        return self._context.engine.get_records(
            header.topic,
            header.queue_id,
            _bounded(header.queue_offset),
            max(0, header.max_msg_nums),
            max_bytes=max_bytes if max_bytes is not None and max_bytes > 0 else _I32,
            filter=pull.wanted,
            limits=limits,
        )

    async def _read_in_a_thread(self, pull: _Pull, limits: GetLimits) -> RemotingCommand | None:
        def read() -> tuple[GetMessageResult, list[bytes]]:
            result = self._records(pull, limits)
            return result, [bytes(buffer) for buffer in result.buffers]

        context, topic = self._context, pull.header.topic
        before = context.offsets.deletions(topic)
        result, copies = await context.loop.run_in_executor(None, read)
        if context.offsets.deletions(topic) != before:  # these offsets are not valid in a topic created again
            return pull.request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist, {_GONE}")
        return self._answer(pull, result, copies)

    # --- the response ---

    def _answer(
        self, pull: _Pull, result: GetMessageResult, copies: list[bytes] | None = None
    ) -> RemotingCommand | None:
        context, header, status = self._context, pull.header, result.status
        code, next_offset = _CODES[status], result.next_offset
        if status in _EMPTY and header.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_OFFSET_MOVED and context.config.is_slave:
            # The master has messages that this slave lacks: those before the first file, and the newest ones.
            context.stats.missed()
            self._commit(pull)
            return self._to_the_master(pull, f"this slave has no message there: {status.name}")
        is_above = code == ResponseCode.PULL_OFFSET_MOVED and header.queue_offset > result.max_offset
        if is_above and self._replicas.may_be_replaced:  # the master may have messages there
            code, next_offset = ResponseCode.PULL_NOT_FOUND, header.queue_offset
        self._note(pull, code, next_offset)
        self._commit(pull)
        if code == ResponseCode.PULL_NOT_FOUND and pull.may_hold and header.sys_flag & SUSPEND:
            if self._waits(pull):
                return None
            if not self._long_polling.is_stopped:  # else the client would repeat the pull at once
                self._log.warning("held", "%d pulls wait, one more is refused", len(self._long_polling))
                remark = "[OVERLOAD]system busy, start flow control for a while"
                return pull.request.response(ResponseCode.SYSTEM_BUSY, remark=remark)
        group, topic = header.consumer_group, header.topic
        if code == 0:
            context.stats.got(topic, group, result.message_count, result.total_bytes)
            if self._published is not None and copies is None:
                self._published.offer(header, pull.topic, pull.group, pull.wanted, self._limits.get(), next_offset)
        else:
            context.stats.missed()
            if code == ResponseCode.PULL_OFFSET_MOVED:
                self._log.info(
                    "moved", "group %s, topic %s, queue %d: offset %d is moved to %d: %s",
                    group, topic, header.queue_id, header.queue_offset, next_offset, status.name,
                )  # fmt: skip
        fields = self._fields(pull, next_offset, result.min_offset, result.max_offset)
        if context.config["slaveReadEnable"]:
            name = "whichBrokerWhenConsumeSlowly" if result.suggest_pulling_from_slave else "brokerId"
            fields["suggestWhichBrokerId"] = str(pull.group.get(name, 0))
        body = result.buffers if copies is None else copies
        return pull.request.response(code, fields, body if body else b"", remark=status.name)

    def _moved(self, pull: _Pull, offset: int) -> RemotingCommand:
        """Return a response after which the group continues at another offset."""
        context, header = self._context, pull.header
        self._note(pull, ResponseCode.PULL_OFFSET_MOVED, offset)
        context.stats.missed()
        queue = header.topic, header.queue_id
        fields = self._fields(pull, offset, context.store.min_offset(*queue), context.store.max_offset(*queue))
        return pull.request.response(ResponseCode.PULL_OFFSET_MOVED, fields, remark="OFFSET_RESET")

    @staticmethod
    def _fields(pull: _Pull, next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(min_offset),
            "maxOffset": str(max_offset),
            "topicSysFlag": str(pull.topic.sys_flag),
            "groupSysFlag": str(pull.group.get("groupSysFlag", 0)),
        }

    def _note(self, pull: _Pull, code: int, next_offset: int) -> None:
        """Store the progress of a group by a pull."""
        header = pull.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        self._broadcast.pulled(pull.channel, pull.request, header, code, next_offset)
        self._context.pull_offsets.set(group, topic, queue_id, next_offset)

    def _commit(self, pull: _Pull) -> None:
        """Commit the header's offset, except while a reset is pending, or for a deleted group.

        The reset must survive a client that stops before its next commit. RocketMQ's broker commits here, too.
        """
        if not pull.may_hold or not pull.header.sys_flag & COMMIT_OFFSET:
            return
        context, header = self._context, pull.header
        queue = header.consumer_group, header.topic, header.queue_id
        # During the read in a thread, an admin may have reset or deleted the group.
        if context.reset_offsets.get(*queue) is None and header.consumer_group in context.groups.table:
            self._offsets.commit(*queue, header.commit_offset)

    # --- the wait ---

    def _waits(self, pull: _Pull) -> bool:
        header, config = pull.header, self._context.config
        long = config["longPollingEnable"]
        return self._long_polling.add(
            pull.channel,
            pull.request,
            header.topic,
            header.queue_id,
            header.queue_offset,
            pull.wanted,
            header.suspend_timeout_ms if long else config["shortPollingTimeMills"],
            self._serve_again,
        )

    def _serve_again(self, channel: Channel, request: RemotingCommand) -> None:
        """Answer a pull after the wait, also after an error."""
        try:
            answer = self._serve(channel, request, False)
        except CallRefused as refused:
            answer = request.response(refused.code, remark=refused.remark)
        except Exception as error:
            answer = self._failure(request, error)
        if answer is None or isinstance(answer, RemotingCommand):
            channel.answer(request, answer)
        else:
            task = asyncio.ensure_future(self._answer_later(channel, request, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer_later(
        self, channel: Channel, request: RemotingCommand, answer: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            channel.answer(request, await answer)
        except Exception as error:
            channel.answer(request, self._failure(request, error))

    def _failure(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        self._log.warning("again", "a pull that waited failed: %r", error, exc_info=not isinstance(error, MqfastError))
        return request.response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
