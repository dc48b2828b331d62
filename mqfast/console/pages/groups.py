"""Pages of consumer groups: the list by lag, a group with its queues and members, and the plan of a reset.

Must never change an offset: a plan is a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from mqfast.client.admin.checks import nearest
from mqfast.client.admin.groups import is_system_group
from mqfast.client.admin.plan import Where
from mqfast.client.values import MessageQueue
from mqfast.console.findings import group_sentence
from mqfast.console.history import SPARK_SLOTS
from mqfast.console.members import MemberState
from mqfast.console.page import Console, Page, command, number_of, rows_of
from mqfast.console.pictures import QueueBar, Tick, line, queue_bars
from mqfast.console.state import GroupState, Number, Unknown, known
from mqfast.errors import ClientConfigError, UnknownName
from mqfast.message import RETRY_PREFIX

__all__ = ["Wanted", "group", "groups", "known_group", "reset_plan", "reset_target", "reset_words"]

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
    await console.collector.ask_ages(state, consumers)
    members = await console.members.of(consumers)
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


# --- resets ---


class Wanted:
    """The wish of a reset, as a form has it. Raises: ConfigError for a wrong field."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self.topic = wanted.get("topic", "").strip()
        self.kind = wanted.get("to", "latest")
        self.time = wanted.get("time", "").strip()
        self.offset = wanted.get("offset", "").strip()
        self.broker = wanted.get("broker", "").strip()
        self.queue = wanted.get("queue", "").strip()
        if not self.topic:
            raise ClientConfigError("topic: expected the topic of the reset, found none")

    @property
    def of_queue(self) -> MessageQueue | None:
        """Return the only queue; None: all queues."""
        if not self.queue:
            return None
        return MessageQueue(self.topic, self.broker, number_of({"queue": self.queue}, "queue", 0))


def reset_target(wanted: Wanted) -> Where:
    """Return the target of a reset."""
    if wanted.kind in ("earliest", "latest"):
        return "earliest" if wanted.kind == "earliest" else "latest"
    if wanted.kind == "offset":
        if not wanted.queue:
            raise ClientConfigError("queue: expected a queue, because each queue has its own offsets; found none")
        return number_of({"offset": wanted.offset}, "offset", 0)
    if wanted.kind != "time":
        raise ClientConfigError(f"to: expected earliest, latest, time or offset, found {wanted.kind[:40]!r}")
    try:
        when = datetime.fromisoformat(wanted.time)
    except ValueError:
        raise ClientConfigError(f"time: expected a time such as 2026-01-31T12:00, found {wanted.time[:40]!r}") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def reset_words(name: str, wanted: Wanted) -> str:
    """Return a reset as a command."""
    words = ["group", "reset", name, wanted.topic]
    words += {
        "earliest": ["--to-earliest"], "time": ["--to-time", wanted.time], "offset": ["--to-offset", wanted.offset],
    }.get(wanted.kind, ["--to-latest"])  # fmt: skip
    if wanted.queue:
        words += ["--queue", wanted.queue, "--broker", wanted.broker]
    return command(*words)


async def reset_plan(console: Console, wanted: Mapping[str, str], name: str) -> Page:
    """Return what a reset would change, queue by queue."""
    consumers = known_group(console, name)
    if not wanted.get("topic"):
        empty = {"topic": "", "to": "latest", "time": "", "offset": "", "broker": "", "queue": ""}
        data: dict[str, Any] = {"name": name, "topics": consumers.topics, "plan": None, "wanted": empty}
        return Page("reset.html", f"Reset {name}", data, command("group", "reset", name, "TOPIC", "--to-latest"))
    wish = Wanted(wanted)
    plan = await console.admin.reset_offset(name, wish.topic, reset_target(wish), queue=wish.of_queue)
    ends = {(place.broker, place.queue_id): place.max_offset for place in consumers.places if place.topic == wish.topic}
    rows: list[dict[str, Any]] = [
        {
            "broker": step.queue.broker_name, "queue": step.queue.queue_id, "now": step.now, "to": step.to,
            "skipped": step.skipped, "replayed": step.replayed,
        }
        for step in plan
    ]  # fmt: skip
    bars = []
    for row in rows:
        end = max(ends.get((row["broker"], row["queue"]), 0), row["now"], row["to"])
        note = f"{row['replayed']} again" if row["replayed"] else f"{row['skipped']} skipped"
        ticks = [Tick("now", max(0, row["now"])), Tick("then", row["to"], "to")]
        bars.append(QueueBar(f"{row['broker']} {row['queue']}", 0, end, ticks, note))
    data = {
        "name": name,
        "topics": consumers.topics,
        "plan": rows,
        "skipped": sum(row["skipped"] for row in rows),
        "replayed": sum(row["replayed"] for row in rows),
        "wanted": {
            "topic": wish.topic, "to": wish.kind, "time": wish.time, "offset": wish.offset, "broker": wish.broker,
            "queue": wish.queue,
        },
    }  # fmt: skip
    pictures = {"plan": queue_bars(bars, f"plan of the reset of {name}")}
    return Page("reset.html", f"Reset {name}", data, reset_words(name, wish), pictures)
