"""Pages of consumer groups: the list by lag, and a group with its queues and members.

Must never ask a broker for each group of the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from mqfast.client.admin.checks import nearest
from mqfast.client.admin.groups import is_system_group
from mqfast.console.findings import group_sentence
from mqfast.console.history import SPARK_SLOTS
from mqfast.console.members import MemberState
from mqfast.console.page import Console, Page, command, rows_of
from mqfast.console.pictures import QueueBar, Tick, line, queue_bars
from mqfast.console.state import GroupState, Number, Unknown, known
from mqfast.errors import ClientConfigError, UnknownName
from mqfast.message import RETRY_PREFIX

__all__ = ["group", "groups", "known_group"]

_SORTS = ("lag", "age", "name", "rate")


async def groups(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the groups, groups with the largest lag first."""
    state, words = console.collector.state, wanted.get("q", "").strip().lower()
    sort = wanted.get("sort", "lag")
    if sort not in _SORTS:
        raise ClientConfigError(f"sort: expected one of {', '.join(_SORTS)}, found {sort[:40]!r}")
    matching = [
        consumers
        for consumers in state.groups.values()
        if words in consumers.name.lower() and (wanted.get("all") or not is_system_group(consumers.name))
    ]
    matching.sort(key=lambda consumers: consumers.name)
    numbers: dict[str, Callable[[GroupState], Number]] = {
        "lag": lambda consumers: consumers.lag, "age": lambda consumers: consumers.age_s,
        "rate": lambda consumers: consumers.rate,
    }  # fmt: skip
    if sort in numbers:
        matching.sort(key=lambda consumers: -known(numbers[sort](consumers), 0.5 if sort != "rate" else 0.0))
    part = rows_of(matching, wanted)
    history = console.collector.history
    data = {
        "groups": [_row(consumers) for consumers in part.rows],
        "page": part.page,
        "pages": part.pages,
        "total": part.total,
        "sort": sort,
        "q": wanted.get("q", ""),
    }
    pictures = {row.name: line(history.values("lag", row.name, SPARK_SLOTS), f"lag of {row.name}") for row in part.rows}
    return Page("groups.html", "Groups", data, command("group", "ls"), {"lines": pictures})


def _row(group: GroupState) -> dict[str, Any]:
    letters = group.retry_lag
    return {
        "name": group.name,
        "topics": group.topics,
        "lag": group.lag,
        "age_s": group.age_s,
        "age_is_least": group.age_is_least,
        "rate": group.rate,
        "members": group.member_count,
        "retry_lag": letters,
    }


def known_group(console: Console, name: str) -> GroupState:
    """Return a group of the last round. Raises: UnknownName, with the nearest name."""
    groups = console.collector.state.groups
    if name not in groups:
        raise UnknownName(f"group: expected one that a broker knows, found {name!r}{nearest(name, groups)}")
    return groups[name]


async def group(console: Console, wanted: Mapping[str, str], name: str) -> Page:
    """Return a group: lag over an hour, every queue with the group's place, and the members."""
    state, consumers = console.collector.state, known_group(console, name)
    await console.collector.ask_members(state, consumers)
    if consumers.topics_without_offset():
        await console.collector.ask_missing(state, consumers)
    _, members = await asyncio.gather(console.collector.ask_ages(state, consumers), console.members.of(consumers))
    owners = _owners(members)
    queues: list[dict[str, Any]] = [
        {
            "topic": place.topic,
            "broker": place.broker,
            "queue": place.queue_id,
            "committed": place.committed,
            "end": place.max_offset,
            "lag": place.behind,
            "owner": owners.get((place.topic, place.broker, place.queue_id)),
        }
        for place in sorted(consumers.places, key=lambda place: (place.topic, place.broker, place.queue_id))
    ]
    history = console.collector.history
    letters = state.letters_of(name)
    data = {
        **_row(consumers),
        "sentence": group_sentence(consumers, members) if known(consumers.lag) else "",
        "dead_letters": letters.messages if letters else 0,
        "settings": None if consumers.settings is None else {
            "consumeEnable": consumers.settings.consume_enable,
            "consumeMessageOrderly": consumers.settings.consume_message_orderly,
            "retryMaxTimes": consumers.settings.retry_max_times,
        },
        "queues": queues,
        "member_rows": members if isinstance(members, Unknown) else [_member(member) for member in members],
        "history": {"times": history.times(), "lag": history.values("lag", name), "age": history.values("age", name)},
    }  # fmt: skip
    bars: dict[str, list[QueueBar]] = {}
    drawn = [queue for queue in queues if queue["lag"] or not queue["topic"].startswith(RETRY_PREFIX)]
    for queue in sorted(drawn, key=lambda queue: queue["topic"].startswith(RETRY_PREFIX))[:200]:
        topic, lag = queue["topic"], queue["lag"]
        note = f"{lag} unread" if lag else "all read"
        ticks = [Tick(name, queue["committed"])]
        bars.setdefault(topic, []).append(QueueBar(f"{queue['broker']} {queue['queue']}", 0, queue["end"], ticks, note))
    pictures = {
        "bars": {
            ("retries" if topic.startswith(RETRY_PREFIX) else topic): queue_bars(rows, f"queues of {topic}")
            for topic, rows in bars.items()
        },
        "lag": line(history.values("lag", name), f"lag of {name}", width=900, height=120),
    }
    return Page("group.html", name, data, command("group", "show", name), pictures)


def _owners(members: list[MemberState] | Unknown) -> dict[tuple[str, str, int], str]:
    owners = {}
    for member in members if isinstance(members, list) else ():
        for queue in member.queues if isinstance(member.queues, list) else ():
            owners[queue.topic, queue.broker, queue.queue_id] = member.client_id
    return owners


def _member(member: MemberState) -> dict[str, Any]:
    queues: Any = member.queues
    if isinstance(queues, list):
        queues = [
            {
                "topic": queue.topic, "broker": queue.broker, "queue": queue.queue_id, "held": queue.held,
                "first_offset": queue.first_offset, "held_s": round(queue.held_s, 1), "is_stuck": queue.is_stuck,
            }
            for queue in queues
        ]  # fmt: skip
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "brokers": member.brokers,
        "subscriptions": member.subscriptions,
        "queues": queues,
        "is_stuck": bool(member.stuck),
    }
