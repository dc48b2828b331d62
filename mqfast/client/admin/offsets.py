"""Lag of consumer groups, and reset of offsets: a plan first, then exactly the changes of the plan.

A dry run changes no offset. A broker of 5.x sets offsets itself and sends the new offsets to the members with the next
pull (``useServerSideResetOffset``). An older broker that resets a running group chooses the offsets of all queues by a
time: there a single queue of such a group cannot be set. Source: DefaultMQAdminExtImpl.resetOffsetByTimestamp,
AdminBrokerProcessor.resetOffset, Broker2Client.resetOffset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from mqfast.client.admin.admin_base import AdminBase, BrokerInfo, read_field
from mqfast.client.admin.bodies import ConsumeStatsBody, TimeSpansBody, by_queue, settings_of
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import (
    checked_flag,
    checked_group,
    checked_number,
    checked_queue,
    checked_topic,
    known_name,
)
from mqfast.client.admin.groups import known_group, members_at
from mqfast.client.admin.plan import NOTHING_COMMITTED, QueueStats, Target, Where, row, target_of
from mqfast.client.admin.topics import stats_at
from mqfast.client.consumer.queue_bounds import offset_at, store_offset
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.client.values import MessageQueue, ResetPlan
from mqfast.errors import ClientConfigError
from mqfast.message import RETRY_PREFIX
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["Lag", "OffsetCalls", "committed_at"]

_SERVER_SIDE = "useServerSideResetOffset"
_I64_MAX = 2**63 - 1


class Lag(NamedTuple):
    """The lag of a group in a queue.

    Attributes: committed: the next offset, also 0 where nothing was committed; behind: unread messages; age: time since
        the first unread message was stored; beyond: distance of the committed offset beyond the end of the queue, as
        after a store was replaced: new messages up to the committed offset are not read.
    """

    committed: int
    behind: int
    age: timedelta
    beyond: int = 0


class OffsetCalls(AdminBase):
    """The calls about offsets."""

    @call
    def lag(self, group: str, topic: str | None = None) -> RequestSteps[Mapping[MessageQueue, Lag]]:
        """Return the lag of a group in every queue of the topics: committed, behind, age.

        For a connected group these are the topics of its current subscriptions and its retry topic. Deleted messages do
        not count. Raises: ConfigError with the nearest name when no broker knows the group.
        """
        checked_group(group)
        if topic is None:
            brokers = (yield from self._clusters()).of(None)
        else:
            checked_topic(topic)
            brokers = yield from self._brokers_of(topic)
        lags: dict[MessageQueue, Lag] = {}
        for broker in brokers:
            lags |= yield from _lag_at(self, broker.any, group, topic)
        if not lags:
            yield from known_group(self, group)
        return {queue: lags[queue] for queue in sorted(lags)}

    @call
    def reset_offset(
        self, group: str, topic: str, to: Where, *, queue: MessageQueue | None = None, dry_run: bool = True
    ) -> RequestSteps[Sequence[ResetPlan]]:
        """Reset the offsets of a group in a topic, running or not, forward or back. Returns: the plan, a row per queue.

        Args:
            to: ``"earliest"``, ``"latest"``, a time (datetime, or ms since the epoch), or, with ``queue``, an offset.
            queue: only this one.
            dry_run: True (the default): only the plan, nothing is changed.
        Raises: ConfigError before anything is changed; BrokerError where a broker refuses.
        """
        checked_group(group), checked_topic(topic), checked_flag("dry_run", dry_run)
        queue = None if queue is None else checked_queue(queue)
        target = target_of(to, of_one_queue=queue is not None)
        if queue is not None and queue.topic != topic:
            raise ClientConfigError(f"queue: expected one of topic {topic}, found {queue!r}")
        brokers = {broker.name: broker for broker in (yield from self._brokers_of(topic))}
        if queue is not None:
            known_name("queue: broker", queue.broker_name, brokers)
            brokers = {queue.broker_name: brokers[queue.broker_name]}
        yield from known_group(self, group)
        plans = {}
        for name, broker in sorted(brokers.items()):
            plans[name] = yield from _plan_at(self, broker, group, topic, target, queue)
        if not dry_run:
            for name, plan in plans.items():
                yield from _apply(self, brokers[name], group, topic, target, plan, whole_topic=queue is None)
        return [queue_plan for plan in plans.values() for queue_plan in plan]

    @call
    def set_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, dry_run: bool = True
    ) -> RequestSteps[Sequence[ResetPlan]]:
        """Set the offsets of a group in the given queues of a topic. Returns: the plan, a row per queue.

        Args: offsets: each within the first and the last offset of its queue. dry_run: as in ``reset_offset``.
        Raises: ConfigError before anything is changed; BrokerError where a broker refuses.
        """
        checked_group(group), checked_flag("dry_run", dry_run)
        targets = {checked_queue(queue): checked_number("offset", to, 0, _I64_MAX) for queue, to in offsets.items()}
        topics = sorted({queue.topic for queue in targets})
        if len(topics) != 1:
            raise ClientConfigError(f"offsets: expected queues of one topic, found {', '.join(topics) or 'none'}")
        brokers = {broker.name: broker for broker in (yield from self._brokers_of(topics[0]))}
        for queue in targets:
            known_name("queue: broker", queue.broker_name, brokers)
        yield from known_group(self, group)
        plan = []
        for queue, to in sorted(targets.items()):
            plan += yield from _plan_at(self, brokers[queue.broker_name], group, topics[0], Target(offset=to), queue)
        if not dry_run:
            for name in sorted({queue.broker_name for queue in targets}):
                rows = [queue_plan for queue_plan in plan if queue_plan.queue.broker_name == name]
                yield from _apply(self, brokers[name], group, topics[0], Target(), rows, whole_topic=False)
        return plan

    @call
    def committed(self, group: str, topic: str) -> RequestSteps[Mapping[MessageQueue, int]]:
        """Return the committed offset of a group in each queue of a topic; -1 where nothing was committed."""
        checked_group(group), checked_topic(topic)
        offsets: dict[MessageQueue, int] = {}
        for broker in (yield from self._brokers_of(topic)):
            for queue in (yield from stats_at(self, broker.master, topic)):
                offsets[queue] = yield from committed_at(self, broker.master, group, queue)
        return {queue: offsets[queue] for queue in sorted(offsets)}

    @call
    def clone_offset(
        self, source: str, group: str, topic: str | None = None, *, dry_run: bool = True
    ) -> RequestSteps[Sequence[ResetPlan]]:
        """Set the offsets of ``group`` to those of ``source``. Returns: the plan of ``group``, a row per queue.

        Args: topic: only this one; left out: all topics that ``source`` has offsets in, but its retry topic.
            dry_run: True (the default): only the plan, nothing is changed.
        Raises: ConfigError while ``group`` has members: they would set their own offsets again.
        """
        checked_group(source, "source"), checked_group(group), checked_flag("dry_run", dry_run)
        if source == group:
            raise ClientConfigError(f"group: expected another one than the source, found {group!r} twice")
        if topic is not None:
            checked_topic(topic)
        brokers = (yield from self._clusters()).of(None) if topic is None else (yield from self._brokers_of(topic))
        yield from known_group(self, source)
        yield from known_group(self, group)
        plan: list[ResetPlan] = []
        for broker in brokers:
            topics = [topic] if topic is not None else (yield from _topics_at(self, broker.any, source))
            for name in topics:
                plan += yield from _copy_plan_at(self, broker, source, group, name)
        if not dry_run:
            for broker in brokers:
                if (yield from members_at(self, broker.any, group)).connection_set:
                    raise ClientConfigError(
                        f"group: expected one without members, found {group} connected to {broker.name}"
                    )
            for broker in brokers:
                rows = [queue_plan for queue_plan in plan if queue_plan.queue.broker_name == broker.name]
                if not (yield from _set_by_broker(self, broker.master, group, rows)):
                    yield from _store(self, group, rows)
        return plan


# --- lag ---


def _lag_at(admin: AdminBase, address: str, group: str, topic: str | None) -> RequestSteps[dict[MessageQueue, Lag]]:
    fields = {"consumerGroup": group, "topic": topic}
    about = f"lag of group {group}"
    answer = yield from admin._call(address, RequestCode.GET_CONSUME_STATS, fields, about=about)
    rows = read_answer(
        answer,
        address,
        lambda data: by_queue("body.offsetTable", decode_body(data, ConsumeStatsBody, "body").offset_table),
    )
    late = sorted({queue.topic for queue, offsets in rows.items() if offsets.broker_offset > offsets.consumer_offset})
    ages: dict[MessageQueue, int] = {}
    stats: dict[MessageQueue, QueueStats] = {}
    for name in late:
        spans = yield from admin._query(
            address, RequestCode.QUERY_CONSUME_TIME_SPAN, TimeSpansBody, {"topic": name, "group": group}, about=about
        )
        ages |= {span.queue: max(0, span.delay_time) for span in spans.consume_time_span_set}
        stats |= yield from stats_at(admin, address, name)
    lags = {}
    for queue, offsets in rows.items():
        first = stats[queue].min_offset if queue in stats else 0
        behind = max(0, offsets.broker_offset - max(first, offsets.consumer_offset))
        age_ms = ages.get(queue, 0) if behind else 0
        if behind and offsets.consumer_offset < first:  # a Java broker reads the time of a deleted message
            oldest = yield from _oldest_ms(admin, address, queue)
            age_ms = max(0, round(time.time() * 1000) - oldest) if oldest > 0 else 0
        beyond = max(0, offsets.consumer_offset - offsets.broker_offset)
        lags[queue] = Lag(max(0, offsets.consumer_offset), behind, timedelta(milliseconds=age_ms), beyond)
    return lags


def _oldest_ms(admin: AdminBase, address: str, queue: MessageQueue) -> RequestSteps[int]:
    fields = {"topic": queue.topic, "queueId": queue.queue_id}
    answer = yield from admin._call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, fields, about=str(queue))
    return read_field(answer, address, "timestamp")


# --- plans ---


def committed_at(admin: AdminBase, address: str, group: str, queue: MessageQueue) -> RequestSteps[int]:
    """Return the committed offset of a group, or NOTHING_COMMITTED. A broker of 4.x may return 0 for nothing."""
    fields = {"consumerGroup": group, "topic": queue.topic, "queueId": queue.queue_id, "setZeroIfNotFound": False}
    answer = yield from admin._call(
        address, RequestCode.QUERY_CONSUMER_OFFSET, fields, also=(ResponseCode.QUERY_NOT_FOUND,), about=f"group {group}"
    )
    if answer.code != ResponseCode.SUCCESS:
        return NOTHING_COMMITTED
    return max(NOTHING_COMMITTED, read_field(answer, address, "offset"))


def _plan_at(
    admin: AdminBase, broker: BrokerInfo, group: str, topic: str, target: Target, only: MessageQueue | None
) -> RequestSteps[list[ResetPlan]]:
    """Return the effect of a reset on the queues of a broker."""
    stats = yield from stats_at(admin, broker.master, topic)
    if only is not None:
        known_name("queue: id", str(only.queue_id), [str(queue.queue_id) for queue in stats])
        stats = {only: stats[only]}
    plan = []
    for queue, queue_stats in stats.items():
        to = yield from _wanted(admin, queue, target, queue_stats)
        now = yield from committed_at(admin, broker.master, group, queue)
        plan.append(row(queue, now, to, queue_stats))
    return plan


def _wanted(admin: AdminBase, queue: MessageQueue, target: Target, stats: QueueStats) -> RequestSteps[int]:
    if target.first:
        return stats.min_offset
    if target.offset is not None:
        if not stats.min_offset <= target.offset <= stats.max_offset:
            raise ClientConfigError(
                f"to: expected {stats.min_offset} to {stats.max_offset} in {queue}, found {target.offset}"
            )
        return target.offset
    if target.time_ms is None or stats.max_offset == stats.min_offset:
        return stats.max_offset
    offset = yield from offset_at(admin._instance, queue, target.time_ms, timeout_s=admin._timeout_s)
    return min(max(offset, stats.min_offset), stats.max_offset)


def _topics_at(admin: AdminBase, address: str, group: str) -> RequestSteps[list[str]]:
    body = yield from admin._query(
        address, RequestCode.GET_CONSUME_STATS, ConsumeStatsBody, {"consumerGroup": group}, about=f"group {group}"
    )
    topics = {queue.topic for queue in by_queue("body.offsetTable", body.offset_table)}
    return sorted(topics - {RETRY_PREFIX + group})


def _copy_plan_at(
    admin: AdminBase, broker: BrokerInfo, source: str, group: str, topic: str
) -> RequestSteps[list[ResetPlan]]:
    plan = []
    for queue, queue_stats in (yield from stats_at(admin, broker.master, topic)).items():
        to = yield from committed_at(admin, broker.master, source, queue)
        if to != NOTHING_COMMITTED:
            now = yield from committed_at(admin, broker.master, group, queue)
            plan.append(row(queue, now, to, queue_stats))
    return plan


# --- changes ---


def _apply(
    admin: AdminBase,
    broker: BrokerInfo,
    group: str,
    topic: str,
    target: Target,
    plan: Sequence[ResetPlan],
    *,
    whole_topic: bool,
) -> RequestSteps[None]:
    """Set the offsets of a plan at a broker."""
    address = broker.master
    if (yield from _set_by_broker(admin, address, group, plan)):
        return
    is_online = bool((yield from members_at(admin, address, group)).connection_set)
    if is_online and not whole_topic:
        raise ClientConfigError(
            f"queue: broker {broker.name} resets all queues of a running group at once ({_SERVER_SIDE} is off, or "
            f"it is of 4.x); expected no queue=, or group {group} without members"
        )
    yield from _store(admin, group, plan)
    if is_online:  # the broker notifies the members; the request needs an offset in every queue, which exists now
        fields = {
            "topic": topic, "group": group, "timestamp": target.broker_time, "isForce": True, "queueId": -1,
        }  # fmt: skip
        code, also = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, (ResponseCode.CONSUMER_NOT_ONLINE,)
        yield from admin._call(address, code, fields, also=also, about=f"reset of group {group}, topic {topic}")


def _set_by_broker(admin: AdminBase, address: str, group: str, plan: Sequence[ResetPlan]) -> RequestSteps[bool]:
    """Make a broker set the offsets itself, also for the running members. Returns: whether the broker supports that.

    A broker that supports it may ignore a committed offset (15) while an earlier reset waits for a member.
    """
    answer = yield from admin._call(address, RequestCode.GET_BROKER_CONFIG, about="settings of the broker")
    settings = read_answer(answer, address, lambda data: settings_of("body", data))
    if settings.get(_SERVER_SIDE) != "true":
        return False
    for queue_plan in plan:
        fields = {
            "topic": queue_plan.queue.topic, "group": group, "timestamp": -1, "isForce": True,
            "queueId": queue_plan.queue.queue_id, "offset": queue_plan.to,
        }  # fmt: skip
        code, about = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, f"reset of group {group} in {queue_plan.queue}"
        yield from admin._call(address, code, fields, about=about)
    return True


def _store(admin: AdminBase, group: str, plan: Sequence[ResetPlan]) -> RequestSteps[None]:
    for queue_plan in plan:
        yield from store_offset(admin._instance, group, queue_plan.queue, queue_plan.to, timeout_s=admin._timeout_s)
