"""Pages of messages: the search by key, id or time, and a message with its life.

Must never read more than ``_FOUND_MAX`` messages for a search.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mqfast.client.admin.life import LifeEvent
from mqfast.client.delivery import Delivery
from mqfast.console.message_rows import message_row
from mqfast.console.page import Console, Page, command
from mqfast.console.pictures import Event, life
from mqfast.errors import ClientConfigError, NoRoute

__all__ = ["find", "message", "time_of"]

_FOUND_MAX: Final = 64
_CLASSES: Final = {"retry": "retry", "failed": "retry", "dead letter": "dead", "consumed": "done"}


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
        return Page("messages.html", "Messages", data, command("message", "find", "TOPIC", "--key", "KEY"))
    if word:
        rows = [message_row(match) for match in await _found(console, topic, word, begin, end)]
        line = command("message", "find", topic, "--key", word)
    else:
        since = begin or datetime.now(UTC) - timedelta(minutes=15)
        browsed = console.admin.browse(topic, begin=since, end=end, max_count=_FOUND_MAX + 1)
        rows = [message_row(match) async for match in browsed]
        line = command("message", "cat", topic)
    data["messages"] = rows[:_FOUND_MAX]
    data["is_cut"] = len(rows) > _FOUND_MAX
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
    life_of = await console.admin.life(msg_id, topic)
    if not matching or life_of is None:
        raise NoRoute(f"message: expected one of topic {topic} with id {msg_id}, found none")
    events = [event for event in life_of.events if event.time_ms is not None]
    data = {
        **message_row(matching[0], whole=True),
        "copies": len(matching),
        "life": [_event_row(event) for event in events],
        "groups": [_event_row(event) for event in life_of.events if event.time_ms is None],
        "unknown": list(life_of.unknown),
    }
    drawn = [Event(event.time_ms or 0, _CLASSES.get(event.kind, "stored"), event.kind, event.text) for event in events]
    pictures = {"life": life(drawn, f"life of message {data['msg_id']}")}
    return Page("message.html", str(data["msg_id"]), data, command("message", "find", topic, "--id", msg_id), pictures)


def _event_row(event: LifeEvent) -> dict[str, Any]:
    return {"time_ms": event.time_ms, "kind": event.kind, "text": event.text, "group": event.group}
