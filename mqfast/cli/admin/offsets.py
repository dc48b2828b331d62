"""``mqfast admin group reset`` and ``group copy``: the offsets of a group, with a plan first and read back afterwards.

Works for groups with and without members, forward and back, on all queues or on one. Nothing is changed without
``--yes``; the offsets that a broker has afterwards are compared with the plan.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin.commands import AdminCommands, print_table, say_outcome
from mqfast.cli.arguments import Parser, add_ends, time_ms, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.values import MessageQueue, ResetPlan

__all__ = ["add_commands", "copy", "reset"]

_STEP: Final = re.compile(r"[+-]\d{1,18}")
_OFFSET_MAX: Final = 10**12
"""A number from here on is a time in ms."""
_ENDS: Final = {"earliest": "earliest", "first": "earliest", "latest": "latest", "last": "latest"}


def add_commands(commands: AdminCommands) -> None:
    """Add ``reset`` and ``copy``."""
    commands.add(
        "reset", reset, "set where a group goes on in a topic", _fill_reset, example="billing orders --to -2h --yes",
        more="The members may run. Shows what would change; --yes does it.", changes=True,
    )  # fmt: skip
    commands.add(
        "copy", copy, "set the offsets of a group to those of another", _fill_copy, example="billing audit --yes",
        more="The group that is changed must have no members.", changes=True,
    )  # fmt: skip


def _fill_reset(sub: Parser) -> None:
    sub.add_argument("group", metavar="GROUP")
    sub.add_argument("topic", metavar="TOPIC")
    sub.add_argument("--queue", type=whole, metavar="N", help="only this queue")
    sub.add_argument("--broker", metavar="NAME", help="of the queue, where the topic has several brokers")
    to = sub.add_mutually_exclusive_group(required=True)
    to.add_argument(
        "--to", type=_target, metavar="WHERE",
        help="earliest, latest, a time (ISO 8601, -2h, now), +N or -N messages from here, or an offset",
    )  # fmt: skip
    add_ends(to)
    to.add_argument("--to-time", type=time_ms, metavar="TIME", help="the first message of this time (ms or ISO 8601)")
    to.add_argument("--to-offset", type=whole, metavar="N", help="this offset, of one --queue")


def _fill_copy(sub: Parser) -> None:
    sub.add_argument("source", metavar="SOURCE", help="the group whose offsets are read")
    sub.add_argument("group", metavar="GROUP", help="the group that is changed")
    sub.add_argument("--topic", metavar="TOPIC", help="only this one")


def _target(text: str) -> tuple[str, Any]:
    """Return (kind, value) of ``--to``: an end, a step, an offset or a time."""
    if text in _ENDS:
        return "end", _ENDS[text]
    if _STEP.fullmatch(text):
        return "step", int(text)
    if text.isascii() and text.isdigit() and int(text) < _OFFSET_MAX:
        return "offset", int(text)
    return "time", time_ms(text)


_target.__name__ = "target"


def reset(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the plan of a reset, or apply it and read the offsets back."""
    queue = _queue(admin, arguments)
    kind, value = _wanted(arguments)
    if kind == "offset" and queue is None and arguments.to is None:
        raise ConfigError("--to-offset: expected with --queue, because each queue has its own offsets")
    if kind == "step" or (kind == "offset" and queue is None):
        plan = admin.set_offsets(
            arguments.group, _moved(admin, arguments, queue, kind, value), dry_run=not arguments.yes
        )
    else:
        to: Any = datetime.fromtimestamp(value / 1000, UTC) if kind == "time" else value
        plan = admin.reset_offset(arguments.group, arguments.topic, to, queue=queue, dry_run=not arguments.yes)
    return _show(admin, arguments, out, plan)


def _wanted(arguments: argparse.Namespace) -> tuple[str, Any]:
    if arguments.to is not None:
        kind, value = arguments.to
        return str(kind), value
    if arguments.to_time is not None:
        return "time", arguments.to_time
    if arguments.to_offset is not None:
        return "offset", arguments.to_offset
    return "end", "earliest" if arguments.to_earliest else "latest"


def _moved(
    admin: AdminClient, arguments: argparse.Namespace, only: MessageQueue | None, kind: str, value: int
) -> dict[MessageQueue, int]:
    """Return the offset of each queue after a step, or for an offset of all queues: within the bounds of the queue."""
    committed = admin.committed(arguments.group, arguments.topic)
    moved = {}
    for queue, stats in admin.topic_stats(arguments.topic).items():
        if only in (None, queue):
            start = max(stats.min_offset, committed.get(queue, -1)) + value if kind == "step" else value
            moved[queue] = min(max(start, stats.min_offset), stats.max_offset)
    if not moved:
        raise ConfigError(f"--queue: expected a queue of topic {arguments.topic}, found {arguments.queue}")
    return moved


def _queue(admin: AdminClient, arguments: argparse.Namespace) -> MessageQueue | None:
    if arguments.queue is None:
        if arguments.broker is not None:
            raise ConfigError("--broker: expected with --queue")
        return None
    from mqfast.client.values import MessageQueue

    brokers = admin.topic_config(arguments.topic)
    if arguments.broker is None and len(brokers) != 1:
        raise ConfigError(f"--broker: expected one of {', '.join(brokers)}, because each has a queue {arguments.queue}")
    return MessageQueue(arguments.topic, arguments.broker or next(iter(brokers)), arguments.queue)


def copy(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the plan of a copy of offsets, or apply it and read the offsets back."""
    plan = admin.clone_offset(arguments.source, arguments.group, arguments.topic, dry_run=not arguments.yes)
    return _show(admin, arguments, out, plan)


def _show(admin: AdminClient, arguments: argparse.Namespace, out: Output, plan: Sequence[ResetPlan]) -> ExitCode:
    """Print a plan; after a change with the offsets that the brokers have now."""
    heads: tuple[str, ...] = ("broker", "queue", "now", "to", "skipped", "replayed")
    topics = {step.queue.topic for step in plan}
    if len(topics) > 1:
        heads = ("topic", *heads)
    rows: list[tuple[Any, ...]] = [
        (*((step.queue.topic,) if len(topics) > 1 else ()), step.queue.broker_name, step.queue.queue_id, *step[1:])
        for step in plan
    ]
    wrong = []
    if arguments.yes:
        after = {topic: admin.committed(arguments.group, topic) for topic in topics}
        read = [after[step.queue.topic].get(step.queue, -1) for step in plan]
        rows = [(*row, offset) for row, offset in zip(rows, read, strict=True)]
        heads = (*heads, "after")
        wrong = [(step, offset) for step, offset in zip(plan, read, strict=True) if offset != step.to]
    code = print_table(out, heads, rows)
    say_outcome(out, arguments)
    if wrong and admin.connections(arguments.group):
        out.note("some offsets differ from the plan: the members have consumed or committed since")
    elif wrong:
        step, offset = wrong[0]
        out.note(f"{step.queue}: expected offset {step.to} after the change, found {offset}; try again")
        return ExitCode.DAMAGE
    return code
