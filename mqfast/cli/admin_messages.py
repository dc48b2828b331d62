"""``mqfast admin find``, ``browse``, ``trace`` and ``dlq``: messages of a running cluster.

Rows are printed as by ``mqfast store cat``. Stored messages stay: a dead letter that is sent back as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from mqfast.cli.arguments import tag_expression, time_ms, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text
from mqfast.cli.rows import Printer, columns_of
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.cli.admin_commands import AdminCommands
    from mqfast.cli.arguments import Parser
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.delivery import Delivery

__all__ = ["add_commands"]

_MANY: Final = 2000


def add_commands(commands: AdminCommands) -> None:
    """Add every command about messages."""
    look = commands.add("find", find, "print messages of a topic by id or key", owns_key=True)
    look.add_argument("topic", metavar="TOPIC")
    by = look.add_mutually_exclusive_group(required=True)
    by.add_argument("--id", metavar="ID", help="the producer's unique id, or the broker's offset id")
    by.add_argument("--key", metavar="KEY")
    read = commands.add("browse", browse, "print messages of all queues of a topic in the order of their store times")
    read.add_argument("topic", metavar="TOPIC")
    read.add_argument("--tags", type=tag_expression, metavar="TAGS", default="*", help="only these: 'A || B'")
    way = commands.add("trace", trace, "show what clients with message trace wrote of a message")
    way.add_argument("id", metavar="ID", help="the producer's unique id")
    dlq = commands.group("dlq", "dead letters of a group")
    letters = dlq.add("list", dlq_list, "print dead letters")
    resend = dlq.add(
        "resend",
        dlq_resend,
        "send dead letters to the topics that they came from",
        more="The stored letters stay. Shows what would be sent; --yes sends.",
        changes=True,
    )
    resend.add_argument("--topic", metavar="TOPIC", help="all to this topic")
    resend.add_argument("--id", metavar="ID", action="append", help="only this one (may be given several times)")
    for sub in (letters, resend):
        sub.add_argument("group", metavar="GROUP")
    for sub in (look, read, letters, resend):
        _add_times(sub)
    for sub in (look, read, letters):
        sub.add_argument("--max", type=whole, metavar="N", default=_MANY, help=f"at most (default: {_MANY})")
        sub.add_argument("--body", choices=("auto", "text", "hex", "none"), default="auto", help="(default: auto)")


def _add_times(sub: Parser) -> None:
    sub.add_argument("--begin", type=time_ms, metavar="TIME", help="earliest store time (ms or ISO 8601)")
    sub.add_argument("--end", type=time_ms, metavar="TIME", help="latest store time, itself included")


def _moment(timestamp_ms: int | None) -> datetime | None:
    return None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def find(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print messages with an id or a key."""
    messages = admin.find(
        arguments.topic,
        msg_id=arguments.id,
        key=arguments.key,
        begin=_moment(arguments.begin),
        end=_moment(arguments.end),
        max_count=_checked_max(arguments),
    )
    return _show(arguments, out, messages)


def browse(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print a topic."""
    begin, end, max_count = _moment(arguments.begin), _moment(arguments.end), _checked_max(arguments)
    messages = admin.browse(arguments.topic, begin=begin, end=end, tags=arguments.tags, max_count=None)
    return _show(arguments, out, messages, max_count)


def dlq_list(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print dead letters."""
    letters = admin.dead_letters(arguments.group, begin=_moment(arguments.begin), end=_moment(arguments.end))
    return _show(arguments, out, letters, _checked_max(arguments))


def dlq_resend(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Send dead letters, or show which would be sent."""
    from mqfast.properties import origin_of

    letters = admin.dead_letters(arguments.group, begin=_moment(arguments.begin), end=_moment(arguments.end))
    wanted = set(arguments.id or ())
    missing, count = set(wanted), 0
    for letter in letters:
        ids = {letter.msg_id, letter.offset_msg_id}
        if wanted and not wanted & ids:
            continue
        missing -= ids
        count += 1
        to = arguments.topic or origin_of(letter.properties) or "?"
        row = {"msgId": letter.msg_id, "topic": to, "sent": arguments.yes}
        if arguments.yes:
            result = admin.resend(letter, topic=arguments.topic)
            row |= {"queueId": result.message_queue.queue_id, "queueOffset": result.queue_offset}
        if out.as_json:
            out.json(row)
        else:
            place = f"/{row['queueId']}@{row['queueOffset']}" if arguments.yes else ""
            out.line(f"{letter.msg_id} -> {to}{place}")
    for msg_id in sorted(missing):
        out.note(f"{msg_id}: no dead letter of group {arguments.group} has this id")
    out.note(f"{count} sent" if arguments.yes else f"{count} letters; nothing was sent; --yes does it")
    return ExitCode.OK if count else ExitCode.NOTHING_FOUND


def trace(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the trace of a message."""
    rows = admin.trace(arguments.id)
    for row in rows:
        if out.as_json:
            out.json(dict(row))
        else:
            rest = ", ".join(f"{name}={value}" for name, value in row.items() if name not in ("type", "timestamp"))
            out.text(f"{time_text(row['timestamp'] or 0)}  {row['type']}  {rest}")
    if not rows:
        out.note("nothing was found")
    return ExitCode.OK if rows else ExitCode.NOTHING_FOUND


def _checked_max(arguments: argparse.Namespace) -> int:
    if arguments.max < 1:
        raise ConfigError(f"--max: expected at least 1, found {arguments.max}")
    return int(arguments.max)


def _show(
    arguments: argparse.Namespace, out: Output, messages: Iterable[Delivery], max_count: int | None = None
) -> ExitCode:
    """Print messages as they arrive; print a note if there are more than ``max_count``."""
    from mqfast.store.record.record import decode_record

    printer = Printer(out, style=arguments.body)
    rest = iter(messages)
    for message in islice(rest, max_count):
        printer.show(columns_of([decode_record(message.record_bytes())]))
    if printer.count == 0:
        out.note("nothing was found")
    elif printer.count == max_count and next(rest, None) is not None:
        out.note(f"there are more than {max_count}; --max shows more")
    return ExitCode.OK if printer.count else ExitCode.NOTHING_FOUND
