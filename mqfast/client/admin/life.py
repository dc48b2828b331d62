"""The life of a message as events in order of time: sent, stored, delayed, delivered, consumed, retried, dead.

The events come from records of the log, from units of queues, from committed offsets and from trace records. Nothing is
guessed: what no record shows is a line of ``unknown``. A record is a Delivery or a StoredMessage. No request, no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from mqfast import properties as names
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX

__all__ = [
    "HALF_TOPIC", "PARKING_TOPICS", "Copy", "Life", "LifeEvent", "RecordPlace", "Record", "born_event", "life_of",
    "progress_event", "record_event", "trace_event",
]  # fmt: skip

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
PARKING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
"""RocketMQ's own topics in which a message waits before it is in its own topic."""
_KINDS: Final = {SCHEDULE_TOPIC: "delayed", TIMER_TOPIC: "timed", HALF_TOPIC: "half"}


class Record(Protocol):
    """The fields of a record that the events need."""

    @property
    def queue_id(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_timestamp(self) -> int: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def properties(self) -> dict[str, str]: ...


class RecordPlace(NamedTuple):
    """The place of a record: broker (None: a store without its broker), topic, queue, offset in queue and in log."""

    broker: str | None
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class Copy(NamedTuple):
    """A record of the message. Attributes: has_unit: whether a unit names the record; None: not known."""

    record: Record
    place: RecordPlace
    has_unit: bool | None = None


class LifeEvent(NamedTuple):
    """An event in the life of a message.

    Attributes: time_ms: None where no record has the time; kind: ``born``, ``put``, ``delayed``, ``timed``, ``half``,
        ``retry``, ``dead letter``, ``sent``, ``delivered``, ``consumed``, ``failed``, ``passed``, ``waits`` or
        ``transaction``; text: a sentence; group: the consumer group; place: of the record, None for an event without.
    """

    time_ms: int | None
    kind: str
    text: str
    group: str | None = None
    place: RecordPlace | None = None


class Life(NamedTuple):
    """The life of a message. Attributes: unknown: sentences about what could not be found out, and why."""

    msg_id: str
    topic: str
    events: Sequence[LifeEvent]
    unknown: Sequence[str]


def born_event(record: Record) -> LifeEvent:
    """Return the creation of a message, by the producer's clock."""
    return LifeEvent(record.born_timestamp, "born", f"created by {record.born_host} (the producer's clock)")


def record_event(copy: Copy) -> LifeEvent:
    """Return the event that a record of the log stands for."""
    record, place = copy.record, copy.place
    pairs = record.properties
    group = None
    if place.topic in _KINDS:
        kind = _KINDS[place.topic]
        real = pairs.get(names.REAL_TOPIC, "?")
        if kind == "delayed":
            text = f"waits on delay level {place.queue_id + 1} for topic {real}"
        elif kind == "timed":
            text = f"waits in the timer for topic {real}"
        else:
            text = f"half message of producer group {pairs.get(names.PGROUP, '?')} for topic {real}"
        if real.startswith(RETRY_PREFIX):
            group = real.removeprefix(RETRY_PREFIX)
            text += f", after {record.reconsume_times} failed deliveries"
    elif place.topic.startswith(RETRY_PREFIX):
        kind, group = "retry", place.topic.removeprefix(RETRY_PREFIX)
        text = f"ready for delivery {record.reconsume_times + 1} to group {group}"
    elif place.topic.startswith(DLQ_PREFIX):
        kind, group = "dead letter", place.topic.removeprefix(DLQ_PREFIX)
        text = f"given up for group {group} after {record.reconsume_times} failed redeliveries"
    else:
        kind = "put"
        text = "stored"
        if pairs.get(names.TRAN_MSG) == "true":
            text = "stored, as its transaction was committed"
        elif attempts := names.attempts_of(pairs):
            text = f"stored again: dead letter, resend {attempts}"
    if copy.has_unit is not None:
        text += "; a unit of the queue names the record" if copy.has_unit else "; NO unit of the queue names the record"
    return LifeEvent(record.store_timestamp, kind, text, group, place)


def progress_event(group: str, committed: int, place: RecordPlace) -> LifeEvent:
    """Return whether a group has passed a record, by its committed offset (-1: none)."""
    where = f"queue {place.queue_id}"
    if committed > place.queue_offset:
        text = f"group {group} has committed offset {committed} in {where}: the message counts as consumed"
        return LifeEvent(None, "passed", text, group, place)
    behind = f"{place.queue_offset - max(0, committed)} messages before it"
    state = "nothing" if committed < 0 else f"offset {committed}"
    text = f"group {group} has committed {state} in {where}: not consumed yet, {behind}"
    return LifeEvent(None, "waits", text, group, place)


def trace_event(row: Mapping[str, Any]) -> LifeEvent | None:
    """Return the event of a trace record; None for a record of another kind."""
    kind, at, host = row.get("type"), row.get("timestamp"), row.get("client_host", "?")
    group = row.get("group")
    if kind == "Pub":
        result = "sent" if row.get("success") else "send failed"
        return LifeEvent(at, "sent", f"{result} by {host}, group {group}, in {row.get('cost_ms')} ms")
    if kind == "SubBefore":
        times = (row.get("retry_times") or 0) + 1
        return LifeEvent(at, "delivered", f"delivery {times} to {host}", group)
    if kind == "SubAfter":
        done = bool(row.get("success"))
        end = None if at is None else at + (row.get("cost_ms") or 0)
        text = (
            f"handled by {host} in {row.get('cost_ms')} ms: {row.get('consumed') or ('SUCCESS' if done else 'FAILED')}"
        )
        return LifeEvent(end, "consumed" if done else "failed", text, group)
    if kind == "EndTransaction":
        return LifeEvent(at, "transaction", f"ended as {row.get('state')} by {host}")
    return None


def life_of(
    msg_id: str,
    topic: str,
    copies: Sequence[Copy],
    progress: Iterable[LifeEvent],
    traces: Iterable[Mapping[str, Any]],
    unknown: Sequence[str],
) -> Life:
    """Return the life: events in order of time, those without a time last."""
    ordered = sorted(copies, key=lambda copy: (copy.record.store_timestamp, copy.place.physical_offset))
    events = [born_event(ordered[0].record)] if ordered else []
    events += [record_event(copy) for copy in ordered]
    events += [event for event in map(trace_event, traces) if event is not None]
    events.sort(key=lambda event: (event.time_ms is None, event.time_ms or 0))
    missing = list(unknown)
    kinds = {event.kind for event in events}
    if "half" in kinds and "put" not in kinds:
        missing.append("whether the transaction is open or was rolled back: the topic has no record of the message")
    return Life(msg_id, topic, [*events, *progress], missing)
