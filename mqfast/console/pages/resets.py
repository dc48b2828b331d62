"""The reset of a group: the wish of a form, the plan queue by queue, and whether a confirmed plan still holds.

A plan goes to its reader and comes back with the confirmation: what was shown is what is done. Must never change an
offset: a plan is a dry run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from mqfast.client.admin.plan import Where
from mqfast.client.values import MessageQueue, ResetPlan
from mqfast.console.page import Console, Page, command, number_of
from mqfast.console.pages.groups import known_group
from mqfast.console.pictures import QueueBar, Tick, queue_bars
from mqfast.errors import ClientConfigError, Refused

__all__ = ["PlannedRow", "Wanted", "check_holds", "plan_text", "planned_rows", "reset_plan", "reset_target",
           "reset_words"]  # fmt: skip

_ROWS_MAX: Final = 100_000


class PlannedRow(NamedTuple):
    """A queue of a confirmed plan. Attributes: now: committed offset when the plan was made, -1: none; to: target."""

    broker: str
    queue: int
    now: int
    to: int


def plan_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows of a plan as the text of a form field."""
    return msgspec.json.encode(
        [PlannedRow(row["broker"], row["queue"], row["now"], row["to"]) for row in rows]
    ).decode()


def planned_rows(text: str) -> list[PlannedRow]:
    """Return the rows of a confirmed plan. Raises: ConfigError."""
    try:
        rows = msgspec.json.decode(text, type=list[tuple[str, int, int, int]])
    except msgspec.MsgspecError as error:
        raise ClientConfigError(
            f"plan: expected the field plan of the page that shows the plan, found {text[:40]!r}: {error}; nothing "
            "was changed"
        ) from None
    if not 0 < len(rows) <= _ROWS_MAX or len({(broker, queue) for broker, queue, _, _ in rows}) != len(rows):
        raise ClientConfigError(f"plan: expected 1 to {_ROWS_MAX} different queues, found {len(rows)} rows")
    return [PlannedRow(*row) for row in rows]


def check_holds(planned: Sequence[PlannedRow], current: Sequence[ResetPlan], queues: Iterable[MessageQueue]) -> None:
    """Check that a confirmed plan still means the same. Args: current: of the same targets; queues: of the wish now.

    A running member may have consumed more, as long as no message that was to be skipped is delivered again. Raises:
    Refused.
    """
    known = {(queue.broker_name, queue.queue_id) for queue in queues}
    if known != {(row.broker, row.queue) for row in planned}:
        raise Refused(f"plan: expected {len(known)} queues as of now, found {len(planned)}; load the plan again")
    places = {(row.queue.broker_name, row.queue.queue_id): row.now for row in current}
    for row in planned:
        now = places[row.broker, row.queue]
        if now < row.now or row.now < row.to < now:
            raise Refused(
                f"plan: expected broker {row.broker} queue {row.queue} at offset {row.now}, found {now}; nothing was "
                "changed: load the plan again"
            )


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
        "confirmed": plan_text(rows),
        "skipped": sum(row["skipped"] for row in rows),
        "replayed": sum(row["replayed"] for row in rows),
        "wanted": {
            "topic": wish.topic, "to": wish.kind, "time": wish.time, "offset": wish.offset, "broker": wish.broker,
            "queue": wish.queue,
        },
    }  # fmt: skip
    pictures = {"plan": queue_bars(bars, f"plan of the reset of {name}")}
    return Page("reset.html", f"Reset {name}", data, reset_words(name, wish), pictures)
