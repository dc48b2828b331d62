"""The life of a message of a running cluster: its records in all topics where copies can be, groups, and trace.

Requests: by broker and topic of a copy, never by message. Without a topic each topic of the cluster is searched.
Source: QueryMsgByUniqueKeySubCommand, QueryMsgTraceByIdSubCommand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mqfast.client.admin.admin_base import AdminBase, BrokerInfo
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_topic
from mqfast.client.admin.life import PARKING_TOPICS, Copy, Life, LifeEvent, RecordPlace, life_of, progress_event
from mqfast.client.admin.messages import by_id, by_key_at, by_place, checked_word, trace_of
from mqfast.client.admin.offsets import committed_at
from mqfast.client.admin.topics import groups_of, is_system_topic
from mqfast.client.admin.trace_data import TRACE_TOPIC
from mqfast.client.delivery import Delivery
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.client.values import MessageQueue
from mqfast.errors import BrokerError, NoRoute
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX
from mqfast.properties import REAL_TOPIC, origin_of
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode

__all__ = ["ExplainCalls"]

_LETTER_TOPICS_MAX: Final = 64


class ExplainCalls(AdminBase):
    """The call that explains a message."""

    @call
    def life(self, msg_id: str, topic: str | None = None) -> RequestSteps[Life | None]:
        """Return the life of a message as events in order of time; None where no broker has the message.

        Args: msg_id: the producer's unique id, or the broker's offset id; topic: None searches all topics.
        """
        checked_word("msg_id", msg_id)
        if topic is not None:
            checked_topic(topic)
        first = yield from _first(self, msg_id, topic)
        if first is None:
            return None
        home = _home(first)
        unknown: list[str] = []
        groups, known = yield from _groups(self, home, unknown)
        brokers = (yield from self._clusters()).brokers
        topics = [home, *PARKING_TOPICS, *_letter_topics(groups, known, unknown)]
        copies = yield from _copies(self, brokers, first, topics)
        progress: list[LifeEvent] = []
        for place in (copy.place for copy in copies if copy.place.topic == home and copy.place.broker in brokers):
            for group in groups:
                event = yield from _progress(self, brokers[str(place.broker)], group, place)
                progress.append(event)
        traces: Sequence[dict[str, Any]] = []
        if TRACE_TOPIC in known:
            traces = yield from trace_of(self, first.msg_id, TRACE_TOPIC)
        if not traces:
            unknown.append(
                "single deliveries and their results: no client wrote a trace of this message; committed offsets and "
                "records of retries are all that shows them"
            )
        return life_of(first.msg_id, home, copies, progress, traces, unknown)


def _first(admin: AdminBase, msg_id: str, topic: str | None) -> RequestSteps[Delivery | None]:
    if topic is not None:
        messages = yield from by_id(admin, topic, msg_id)
        return messages[0] if messages else None
    if messages := (yield from by_place(admin, msg_id, None)):
        return messages[0]
    for name in (yield from admin._all_topics()):
        if is_system_topic(name):
            continue
        try:
            brokers = yield from admin._brokers_of(name)
        except NoRoute:
            continue
        for broker in brokers:
            if messages := (yield from by_key_at(admin, broker, name, msg_id)):
                return messages[0]
    return None


def _home(message: Delivery) -> str:
    """Return the topic to which the producer sent the message."""
    topic = message.topic
    if topic in PARKING_TOPICS:
        topic = message.properties.get(REAL_TOPIC, topic)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        topic = origin_of(message.properties) or topic
    return topic


def _groups(admin: AdminBase, home: str, unknown: list[str]) -> RequestSteps[tuple[list[str], set[str]]]:
    """Return the groups of a topic, and all topics that name servers know."""
    known = set((yield from admin._all_topics()))
    try:
        return (yield from groups_of(admin, home)), known
    except NoRoute:
        unknown.append(f"groups: topic {home} is no longer known to the name servers")
        return [], known


def _letter_topics(groups: list[str], known: set[str], unknown: list[str]) -> list[str]:
    """Return the topics of retries and dead letters to search: all of a small cluster, else those of the groups.

    A group whose offsets were deleted is no longer a group of the topic; its dead letters stay.
    """
    every = sorted(topic for topic in known if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    if len(every) <= _LETTER_TOPICS_MAX:
        return every
    unknown.append(f"retries of other groups than {', '.join(groups) or 'none'}: the cluster has too many to search")
    letters = [f"{prefix}{group}" for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
    return [topic for topic in letters if topic in known]


def _copies(
    admin: AdminBase, brokers: Mapping[str, BrokerInfo], first: Delivery, topics: Sequence[str]
) -> RequestSteps[list[Copy]]:
    records = {(first.source.broker_name, first.physical_offset): first}
    for broker in brokers.values():
        for topic in topics:
            for message in (yield from by_key_at(admin, broker, topic, first.msg_id)):
                if _home(message) == topics[0]:  # another topic may have the same id
                    records[broker.name, message.physical_offset] = message
    copies = []
    for (name, offset), message in records.items():
        place = RecordPlace(name, message.record_topic, message.queue_id, message.queue_offset, offset)
        has_unit = (yield from _has_unit(admin, brokers[name], place)) if name in brokers else None
        copies.append(Copy(message, place, has_unit))
    return copies


def _has_unit(admin: AdminBase, broker: BrokerInfo, place: RecordPlace) -> RequestSteps[bool | None]:
    """Return whether the unit at the record's offset names the record; None where the broker does not report it."""
    fields = {"topic": place.topic, "queueId": place.queue_id, "index": place.queue_offset, "count": 1}
    try:
        answer = yield from admin._call(broker.any, RequestCode.QUERY_CONSUME_QUEUE, fields, about="unit of a queue")
    except BrokerError:
        return None

    def read(data: bytes) -> list[dict[str, Any]]:
        return (decode_body(data, dict[str, Any], "body").get("queueData") or []) if data else []

    rows = read_answer(answer, broker.any, read)
    return bool(rows) and rows[0].get("physicOffset") == place.physical_offset


def _progress(admin: AdminBase, broker: BrokerInfo, group: str, place: RecordPlace) -> RequestSteps[LifeEvent]:
    queue = MessageQueue(place.topic, broker.name, place.queue_id)
    committed = yield from committed_at(admin, broker.any, group, queue)
    return progress_event(group, committed, place)
