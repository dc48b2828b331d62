"""Pages of messages: the search by key, id or time, and a message with its life.

Must never read more than ``_FOUND_MAX`` messages for a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mqfast.client.delivery import Delivery
from mqfast.console.message_rows import message_row
from mqfast.console.page import Console, Page, command
from mqfast.console.pictures import Event, life
from mqfast.console.state import ClusterState
from mqfast.errors import ClientConfigError, MqfastError, NoRoute
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX

__all__ = ["find", "message", "time_of"]

_FOUND_MAX: Final = 64
_GROUPS_MAX: Final = 8  # of a topic, whose retries and dead letters a life shows


async def find(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the messages of a topic with a key or an id, or those of a time."""
    topic, word = wanted.get("topic", "").strip(), wanted.get("q", "").strip()
    if word and not topic and ":" in word:
        topic, _, word = word.partition(":")
    begin, end = time_of(wanted, "begin"), time_of(wanted, "end")
    data: dict[str, Any] = {
        "topic": topic, "q": word, "begin": wanted.get("begin", ""), "end": wanted.get("end", ""), "messages": None,
        "is_cut": False,
    }  # fmt: skip
    if not topic:
        return Page("messages.html", "Messages", data, command("find", "TOPIC", "--key", "KEY"))
    if word:
        matching = await _found(console, topic, word, begin, end)
        line = command("find", topic, "--key", word)
    else:
        since = begin or datetime.now(UTC) - timedelta(minutes=15)
        browsed = console.admin.browse(topic, begin=since, end=end, max_count=_FOUND_MAX + 1)
        matching = [match async for match in browsed]
        line = command("browse", topic)
    data["messages"] = [message_row(match) for match in matching[:_FOUND_MAX]]
    data["is_cut"] = len(matching) > _FOUND_MAX
    return Page("messages.html", "Messages", data, line)


async def _found(
    console: Console, topic: str, word: str, begin: datetime | None, end: datetime | None
) -> list[Delivery]:
    by_key = await console.admin.find(topic, key=word, begin=begin, end=end, max_count=_FOUND_MAX)
    by_id = await console.admin.find(topic, msg_id=word, begin=begin, end=end, max_count=_FOUND_MAX)
    known = {match.offset_msg_id for match in by_key}
    return [*by_key, *(match for match in by_id if match.offset_msg_id not in known)]


def time_of(wanted: Mapping[str, str], name: str) -> datetime | None:
    """Return a time of the request; without a zone in UTC. Raises: ConfigError."""
    text = wanted.get(name, "").strip()
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ClientConfigError(f"{name}: expected a time such as 2026-01-31T12:00, found {text[:40]!r}") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


async def message(console: Console, wanted: Mapping[str, str], topic: str, msg_id: str) -> Page:
    """Return a message: life, body and properties."""
    matching = await console.admin.find(topic, msg_id=msg_id)
    if not matching:
        raise NoRoute(f"message: expected one of topic {topic} with id {msg_id}, found none")
    match = matching[0]
    events, unknown = await _life(console, match)
    data = {
        **message_row(match, whole=True),
        "copies": len(matching),
        "groups": _readers(console.collector.state, match),
        "life": [event._asdict() for event in events],
        "unknown": unknown,
    }
    pictures = {"life": life(events, f"life of message {match.msg_id}")}
    return Page("message.html", match.msg_id, data, command("find", topic, "--id", msg_id), pictures)


def _readers(state: ClusterState, message: Delivery) -> list[dict[str, Any]]:
    """Return the groups of the topic, each with the place relative to the message."""
    rows = []
    for name in sorted(getattr(state.topics.get(message.topic), "groups", ())):
        for place in state.groups[name].places:
            at = (place.topic, place.broker, place.queue_id)
            if at == (message.topic, message.queue.broker_name, message.queue_id):
                rows.append(
                    {"name": name, "committed": place.committed, "is_past": place.committed > message.queue_offset}
                )
    return rows


async def _life(console: Console, message: Delivery) -> tuple[list[Event], list[str]]:
    """Return the known events of a message, and what could not be read."""
    where = f"{message.queue.broker_name} queue {message.queue_id} offset {message.queue_offset}"
    events = [
        Event(message.born_timestamp, "born", "sent", f"by {message.born_host}"),
        Event(message.store_timestamp, "stored", "stored", where),
    ]
    unknown: list[str] = []
    state = console.collector.state
    groups = sorted(getattr(state.topics.get(message.topic), "groups", ()))
    if len(groups) > _GROUPS_MAX:
        unknown.append(f"retries of {len(groups) - _GROUPS_MAX} more groups were not read")
    for group in groups[:_GROUPS_MAX]:
        for prefix, what, kind in ((RETRY_PREFIX, "retry", "retry"), (DLQ_PREFIX, "dead letter", "dead")):
            if prefix + group in state.topics:
                copies = await _copies(console, prefix + group, message.msg_id, unknown)
                for copy in copies:
                    detail = (
                        f"group {group}, attempt {copy.reconsume_times + 1}" if kind == "retry" else f"group {group}"
                    )
                    events.append(Event(copy.store_timestamp, kind, what, detail))
    try:
        rows = await console.admin.trace(message.msg_id)
    except MqfastError as error:
        rows = []
        unknown.append(f"no message trace: {error}")
    for row in rows:
        if row["timestamp"] and row["type"] != "Pub":
            events.append(_traced(row))
    return sorted(events, key=lambda event: event.ms), unknown


async def _copies(console: Console, topic: str, msg_id: str, unknown: list[str]) -> Sequence[Delivery]:
    try:
        return await console.admin.find(topic, msg_id=msg_id)
    except MqfastError as error:
        unknown.append(f"{topic}: {error}")
        return []


def _traced(row: Mapping[str, Any]) -> Event:
    who = f"group {row.get('group')} at {row.get('client_host')}"
    if row["type"] == "SubBefore":
        return Event(row["timestamp"], "delivery", "delivered", who)
    if row["type"] == "SubAfter":
        done = "consumed" if row.get("success") else f"consumption failed ({row.get('consumed')})"
        return Event(row["timestamp"], "done" if row.get("success") else "retry", done, f"in {row.get('cost_ms')} ms")
    return Event(row["timestamp"], "stored", str(row["type"]), who)
