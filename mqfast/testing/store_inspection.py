"""The content of the brokers of a test: messages, dead letters, scheduled messages, progress of groups.

All values are copies, read from the stores without a consumer group. Nothing is changed. Thread: that of the event
loop.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import SCHEDULE_TOPIC, TIMER_TOPIC, retry_topic
from mqfast.client.delivery import Delivery, Source
from mqfast.client.values import MessageQueue
from mqfast.store.record.record import StoredMessage, decode_record
from mqfast.testing.cluster import RunningCluster, RunningServer
from mqfast.testing.fault_injection import QueueOffset

__all__ = ["QueueLag", "committed", "is_delivering", "lags", "members_of", "messages", "scheduled", "topics_of"]

_AT_ONCE: Final = 1000
_SOON_MS: Final = 5


class QueueLag(NamedTuple):
    """Progress of a group in a queue. Attributes: committed: -1 without a commit; behind: count of unprocessed
    messages.
    """

    queue: MessageQueue
    committed: int
    end: int
    behind: int


def _in_queue(context: BrokerContext, topic: str, queue_id: int) -> Iterator[StoredMessage]:
    store = context.store
    at = store.min_offset(topic, queue_id)
    while at < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, at, _AT_ONCE)
        yield from result
        if result.next_offset <= at:
            return
        at = result.next_offset


def _copy(member: RunningServer, message: StoredMessage) -> Delivery:
    queue = MessageQueue(message.topic, member.name, message.queue_id)
    return Delivery(decode_record(message.to_bytes()), Source(member.name, queue))


def messages(
    cluster: RunningCluster, topic: str, *, queue_id: int | None = None, tags: str | None = None, key: str | None = None
) -> list[Delivery]:
    """Return the messages of a topic in the order of storage."""
    wanted = None if tags in (None, "", "*") else {tag.strip() for tag in str(tags).split("||")}
    deliveries = []
    for member in cluster.running():
        for stored_id in member.context.store.queue_ids(topic):
            if queue_id is not None and stored_id != queue_id:
                continue
            for message in _in_queue(member.context, topic, stored_id):
                if wanted is not None and message.tags not in wanted:
                    continue
                if key is not None and key not in message.keys:
                    continue
                deliveries.append(
                    ((message.store_timestamp, member.name, message.physical_offset), _copy(member, message))
                )
    return [delivery for _, delivery in sorted(deliveries, key=lambda entry: entry[0])]


def scheduled(cluster: RunningCluster) -> list[tuple[datetime, Delivery]]:
    """Return the messages that wait for their time, by delay level or by the timer, the next first."""
    entries = []
    for member in cluster.running():
        for due_ms, message in [*_by_level(member), *_by_timer(member)]:
            entries.append((due_ms, message.physical_offset, _copy(member, message)))
    entries.sort(key=lambda entry: entry[:2])
    return [(datetime.fromtimestamp(due_ms / 1000).astimezone(), delivery) for due_ms, _, delivery in entries]


def _by_level(member: RunningServer) -> Iterator[tuple[int, StoredMessage]]:
    service, context = member.parts.delays.service, member.context
    for queue_id in context.store.queue_ids(SCHEDULE_TOPIC):
        begin = service.offset(queue_id + 1)
        for offset in range(begin, context.store.max_offset(SCHEDULE_TOPIC, queue_id)):
            unit = context.engine.unit_at(SCHEDULE_TOPIC, queue_id, offset)
            yield unit.tags_code, unit.record


def _by_timer(member: RunningServer) -> Iterator[tuple[int, StoredMessage]]:
    service = member.parts.timers.service
    if service is None:
        return
    until_ms = service.delivered_until_ms
    seen = set()
    gone = set()
    waiting = []
    for message in _in_queue(member.context, TIMER_TOPIC, 0):
        pairs = message.properties
        due_ms = int(pairs.get(names.TIMER_OUT_MS, "0"))
        if due_ms < until_ms:
            continue
        if names.TIMER_DEL_UNIQKEY in pairs:
            gone.add((pairs.get(names.REAL_TOPIC), pairs[names.TIMER_DEL_UNIQKEY].rpartition("+")[2]))
            continue
        unique = pairs.get(names.UNIQ_KEY, str(message.physical_offset))
        if unique not in seen:  # the timer parks a message beyond the wheel's window repeatedly
            seen.add(unique)
            waiting.append((due_ms, unique, message))
    yield from (
        (due_ms, message)
        for due_ms, unique, message in waiting
        if (message.properties.get(names.REAL_TOPIC), unique) not in gone
    )


def committed(cluster: RunningCluster, group: str, topic: str) -> dict[MessageQueue, int]:
    """Return the committed offsets of a group."""
    offsets = {}
    for member in cluster.running():
        for queue_id, offset in member.context.offsets.offsets(group).get(topic, {}).items():
            offsets[MessageQueue(topic, member.name, queue_id)] = offset
    return dict(sorted(offsets.items()))


def topics_of(cluster: RunningCluster, group: str) -> list[str]:
    """Return the topics that a group reads or has read, and the retry topic."""
    topics: dict[str, None] = {}
    for member in cluster.running():
        members = member.context.consumers.group(group)
        topics.update(dict.fromkeys(members.subscriptions if members is not None else ()))
        topics.update(dict.fromkeys(member.context.offsets.offsets(group)))
    if topics:
        topics[retry_topic(group)] = None
    return list(topics)


def lags(cluster: RunningCluster, group: str, topic: str) -> list[QueueLag]:
    """Return the progress of a group in each queue of a topic that has or had messages."""
    lag_list = []
    for member in cluster.running():
        context = member.context
        for queue_id in context.store.queue_ids(topic):
            end = context.store.max_offset(topic, queue_id)
            at = context.offsets.get(group, topic, queue_id)
            # A group that began behind the last message has no work, and commits nothing.
            first_offset = cluster.gate.first_pulls.get(QueueOffset(member.name, group, topic, queue_id))
            done = at if at >= 0 else first_offset if first_offset is not None and first_offset >= end else -1
            min_offset = context.store.min_offset(topic, queue_id)
            lag_list.append(QueueLag(MessageQueue(topic, member.name, queue_id), at, end, end - max(done, min_offset)))
    return lag_list


def is_delivering(cluster: RunningCluster, topics: Container[str]) -> bool:
    """Return whether a due message is not yet readable in one of these topics."""
    for member in cluster.running():
        log = member.context.engine.log
        if log.dispatched < log.written:
            return True
        until_ms = cluster.time.now_ms() + _SOON_MS
        for due_ms, message in [*_by_level(member), *_by_timer(member)]:
            if due_ms <= until_ms and message.properties.get(names.REAL_TOPIC) in topics:
                return True
    return False


def members_of(cluster: RunningCluster, group: str) -> list[str]:
    """Return the clients of a consumer group, each once."""
    client_ids: dict[str, None] = {}
    for member in cluster.running():
        members = member.context.consumers.group(group)
        client_ids.update(dict.fromkeys(members.client_ids() if members is not None else ()))
    return list(client_ids)
