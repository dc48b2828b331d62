"""Pages of topics: the list with rates, groups and lag; a topic with its queues and the place of every group.

Must never ask a broker for each topic of the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from mqfast.client.admin.checks import nearest
from mqfast.console.history import SPARK_SLOTS
from mqfast.console.page import Console, Page, command, rows_of
from mqfast.console.pictures import QueueBar, Tick, line, queue_bars
from mqfast.console.state import ClusterState, TopicState, Unknown, is_topic_of_users, known, largest
from mqfast.errors import ClientConfigError, MqfastError, NoRoute

__all__ = ["is_own", "topic", "topics"]

_COLOURS = 6
_SORTS = ("lag", "name", "rate")


def is_own(name: str, state: ClusterState) -> bool:
    """Return whether a topic belongs to users: no topic of RocketMQ itself, of retries or of dead letters."""
    return name not in state.reserved and is_topic_of_users(name)


async def topics(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the topics, those that a group reads latest first."""
    state, words = console.collector.state, wanted.get("q", "").strip().lower()
    sort = wanted.get("sort", "lag")
    if sort not in _SORTS:
        raise ClientConfigError(f"sort: expected one of {', '.join(_SORTS)}, found {sort[:40]!r}")
    matching = [
        entry
        for name, entry in state.topics.items()
        if words in name.lower() and (wanted.get("all") or is_own(name, state))
    ]
    matching.sort(key=lambda entry: entry.name)
    if sort == "lag":
        lags = _lags(state)
        matching.sort(key=lambda entry: -lags.get(entry.name, 0))
    elif sort == "rate":
        matching.sort(key=lambda entry: -known(entry.rate))
    part = rows_of(matching, wanted)
    history = console.collector.history
    data = {
        "topics": [_row(entry, state) for entry in part.rows],
        "page": part.page,
        "pages": part.pages,
        "total": part.total,
        "sort": sort,
        "q": wanted.get("q", ""),
    }
    pictures = {
        entry.name: line(history.values("rate", entry.name, SPARK_SLOTS), f"rate of {entry.name}")
        for entry in part.rows
    }
    return Page("topics.html", "Topics", data, command("topic", "ls"), {"lines": pictures})


def _lags(state: ClusterState) -> dict[str, int]:
    lags: dict[str, int] = {}
    for group in state.groups.values():
        for place in group.places:
            lags[place.topic] = lags.get(place.topic, 0) + place.behind
    return lags


def _row(topic: TopicState, state: ClusterState) -> dict[str, Any]:
    groups = [state.groups[name] for name in topic.groups if name in state.groups]
    lag = sum(place.behind for group in groups for place in group.places if place.topic == topic.name)
    return {
        "name": topic.name,
        "kind": topic.kind,
        "queues": topic.queues,
        "brokers": sorted(topic.settings),
        "rate": topic.rate,
        "messages": topic.messages,
        "groups": sorted(topic.groups),
        "lag": lag if groups else 0,
        "age_s": largest([group.age_s for group in groups]) if lag else 0,
    }


async def topic(console: Console, wanted: Mapping[str, str], name: str) -> Page:
    """Return a topic: queues as bars with the place of every group, rate, groups and settings."""
    state = console.collector.state
    entry = state.topics.get(name)
    if entry is None:
        raise NoRoute(f"topic: expected one that a broker has, found {name!r}{nearest(name, state.topics)}")
    errors: dict[str, str] = {}
    queues: list[dict[str, Any]] = []
    brokers = [state.brokers[broker] for broker in sorted(entry.settings) if broker in state.brokers]
    answers = await asyncio.gather(
        *(console.admin.queues_at(broker.address, name) for broker in brokers), return_exceptions=True
    )
    for broker, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, MqfastError):
            errors[broker.name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            queues += [
                {"broker": at.broker_name, "queue": at.queue_id, "min": stats.min_offset, "max": stats.max_offset,
                 "last_ms": stats.last_update}
                for at, stats in answer.items()
            ]  # fmt: skip
    groups = [state.groups[group] for group in sorted(entry.groups) if group in state.groups]
    places: dict[tuple[str, int], list[Tick]] = {}
    rows: list[dict[str, Any]] = []
    for group in groups:
        lag = 0
        for place in group.places:
            if place.topic == name:
                lag += place.behind
                kind = f"g{len(rows) % _COLOURS}"
                places.setdefault((place.broker, place.queue_id), []).append(Tick(group.name, place.committed, kind))
        rows.append({"name": group.name, "lag": lag, "age_s": group.age_s if lag else 0, "rate": group.rate})
    bars = [
        QueueBar(
            f"{queue['broker']} {queue['queue']}",
            queue["min"],
            queue["max"],
            places.get((queue["broker"], queue["queue"]), ()),
            f"{queue['max'] - queue['min']} stored",
        )
        for queue in queues[:200]
    ]
    history = console.collector.history
    data = {
        **_row(entry, state),
        "messages": Unknown("; ".join(errors.values())) if errors else sum(q["max"] - q["min"] for q in queues),
        "queue_rows": queues,
        "group_rows": rows,
        "settings": {
            broker: {
                "readQueueNums": settings.read_queue_nums, "writeQueueNums": settings.write_queue_nums,
                "perm": settings.perm, "order": settings.order, "attributes": settings.attributes or {},
            }
            for broker, settings in sorted(entry.settings.items())
        },
        "errors": errors,
        "history": {"times": history.times(), "rate": history.values("rate", name)},
    }  # fmt: skip
    pictures = {
        "bars": queue_bars(bars, f"queues of {name}"),
        "rate": line(history.values("rate", name), f"rate of {name}", width=900, height=120),
    }
    return Page("topic.html", name, data, command("topic", "show", name), pictures)
