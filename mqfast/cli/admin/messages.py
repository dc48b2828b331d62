"""``mqfast admin message``: find, print, follow, send and trace messages of a running cluster.

Rows are printed as by ``mqfast store cat``. No offset of a group changes, and stored messages stay.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin.commands import AdminCommands, client_arguments
from mqfast.cli.arguments import Parser, name_value, tag_expression, time_ms, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text
from mqfast.cli.rows import Printer, columns_of
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.delivery import Delivery

__all__ = ["add_commands", "add_limits", "add_times", "checked_max", "moment", "show_messages"]

_MANY: Final = 2000
_FOLLOW_S: Final = 0.5
_SENDER: Final = "CLI_PRODUCER"


def add_commands(commands: AdminCommands) -> None:
    """Add all commands of the noun."""
    commands.add(
        "find", find, "print messages of a topic by id or key", _fill_find, example="orders --key order-7",
        owns_key=True,
    )  # fmt: skip
    commands.add("show", show, "print the message at an offset of a queue", _fill_show, example="orders broker-a 0 17")
    commands.add(
        "cat", cat, "print messages of all queues of a topic in the order of their store times", _fill_cat,
        example="orders --begin -2h --tags paid",
    )  # fmt: skip
    commands.add(
        "tail", tail, "print new messages of a topic until control-C", _fill_tail, example="orders --tags paid"
    )
    commands.add(
        "send", send, "send a message; the body is BODY, or stdin", _fill_send,
        example="orders 'hello' --keys order-7 --tags paid", owns_key=True,
    )  # fmt: skip
    commands.add(
        "trace", trace, "show what clients with message trace wrote of a message", _fill_trace,
        example="7F0000010A2B18B4AAC27B3D5A0A0000",
    )  # fmt: skip


def add_times(sub: Parser) -> None:
    """Add ``--begin`` and ``--end``."""
    sub.add_argument("--begin", type=time_ms, metavar="TIME", help="earliest store time (ms, ISO 8601, or -2h)")
    sub.add_argument("--end", type=time_ms, metavar="TIME", help="latest store time, itself included")


def add_limits(sub: Parser) -> None:
    """Add ``--max`` and ``--body``."""
    sub.add_argument("--max", type=whole, metavar="N", default=_MANY, help=f"at most (default: {_MANY})")
    _add_body(sub)


def _add_body(sub: Parser) -> None:
    sub.add_argument("--body", choices=("auto", "text", "hex", "none"), default="auto", help="(default: auto)")


def _fill_find(sub: Parser) -> None:
    sub.add_argument("topic", metavar="TOPIC")
    by = sub.add_mutually_exclusive_group(required=True)
    by.add_argument("--id", metavar="ID", help="the producer's unique id, or the broker's offset id")
    by.add_argument("--key", metavar="KEY")
    add_times(sub)
    add_limits(sub)


def _fill_show(sub: Parser) -> None:
    sub.add_argument("topic", metavar="TOPIC")
    sub.add_argument("broker", metavar="BROKER", help="its name")
    sub.add_argument("queue", type=whole, metavar="QUEUE")
    sub.add_argument("offset", type=whole, metavar="OFFSET", help="in the queue")
    _add_body(sub)


def _fill_cat(sub: Parser) -> None:
    sub.add_argument("topic", metavar="TOPIC")
    sub.add_argument("--tags", type=tag_expression, metavar="TAGS", default="*", help="only these: 'A || B'")
    sub.add_argument("--queue", type=whole, metavar="N", help="only this queue")
    sub.add_argument("--broker", metavar="NAME", help="only of this broker")
    add_times(sub)
    add_limits(sub)


def _fill_tail(sub: Parser) -> None:
    sub.add_argument("topic", metavar="TOPIC")
    sub.add_argument("-f", "--follow", action="store_true", help="(the default)")
    sub.add_argument("--tags", type=tag_expression, metavar="TAGS", default="*", help="only these: 'A || B'")
    sub.add_argument("--max", type=whole, metavar="N", help="end after so many messages")
    sub.add_argument("--begin", type=time_ms, metavar="TIME", help="begin at this store time (default: now)")
    _add_body(sub)


def _fill_send(sub: Parser) -> None:
    sub.add_argument("topic", metavar="TOPIC")
    sub.add_argument("text", metavar="BODY", nargs="?", help="text of the body; left out: stdin, as bytes")
    sub.add_argument("--keys", "--key", metavar="KEYS", help="joined by blanks")
    sub.add_argument("--tags", "--tag", metavar="TAG")
    sub.add_argument("--property", action="append", type=name_value, metavar="NAME=VALUE", default=[])
    sub.add_argument("--delay", type=float, metavar="SECONDS", help="deliver after so many seconds (5.x)")
    sub.add_argument("--delay-level", type=int, metavar="N", help="deliver after delay level N")
    sub.add_argument("--broker", metavar="NAME", help="with --queue: to a queue of this broker")
    sub.add_argument("--queue", type=whole, metavar="N")
    sub.add_argument("--trace", action="store_true", help="write a message trace")


def _fill_trace(sub: Parser) -> None:
    sub.add_argument("id", metavar="ID", help="the producer's unique id")
    sub.add_argument("--trace-topic", metavar="TOPIC", help="(default: RMQ_SYS_TRACE_TOPIC)")


def moment(timestamp_ms: int | None) -> datetime | None:
    """Return a time in ms as a datetime."""
    return None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC)


# --- reading ---


def find(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print messages with an id or a key."""
    messages = admin.find(
        arguments.topic,
        msg_id=arguments.id,
        key=arguments.key,
        begin=moment(arguments.begin),
        end=moment(arguments.end),
        max_count=checked_max(arguments),
    )
    return show_messages(arguments, out, messages)


def show(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print a message."""
    from mqfast.client.values import MessageQueue

    message = admin.message_at(MessageQueue(arguments.topic, arguments.broker, arguments.queue), arguments.offset)
    return show_messages(arguments, out, [] if message is None else [message])


def cat(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print a topic."""
    begin, end, max_count = moment(arguments.begin), moment(arguments.end), checked_max(arguments)
    messages: Iterable[Delivery] = admin.browse(
        arguments.topic, begin=begin, end=end, tags=arguments.tags, max_count=None
    )
    queue, broker = getattr(arguments, "queue", None), getattr(arguments, "broker", None)
    offset = getattr(arguments, "offset", None) or 0
    if queue is not None or broker is not None or offset:
        messages = (
            message for message in messages
            if queue in (None, message.queue.queue_id) and broker in (None, message.queue.broker_name)
            and message.queue_offset >= offset
        )  # fmt: skip
    return show_messages(arguments, out, messages, max_count)


def tail(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print new messages on arrival."""
    return show_messages(arguments, out, islice(_new_messages(admin, arguments), arguments.max), flush=True)


def _new_messages(admin: AdminClient, arguments: argparse.Namespace) -> Iterator[Delivery]:
    """Yield messages of a topic from now on, each queue from where the last round ended."""
    seen: dict[Any, int] = {}
    begin = arguments.begin
    if begin is None:
        seen = {queue: stats.max_offset for queue, stats in admin.topic_stats(arguments.topic).items()}
        begin = round(time.time() * 1000) - 60_000  # the clocks of brokers differ
    while True:
        newest = begin
        for message in admin.browse(arguments.topic, begin=moment(begin), tags=arguments.tags, max_count=None):
            if message.queue_offset >= seen.get(message.queue, 0):
                seen[message.queue] = message.queue_offset + 1
                newest = max(newest, message.store_timestamp)
                yield message
        begin = max(begin, newest - 1000)
        time.sleep(_FOLLOW_S)


def trace(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the trace of a message."""
    topic = getattr(arguments, "trace_topic", None)
    rows: Sequence[Any] = admin.trace(arguments.id, **({"trace_topic": topic} if topic else {}))
    for row in rows:
        if out.as_json:
            out.json(dict(row))
        else:
            rest = ", ".join(f"{name}={value}" for name, value in row.items() if name not in ("type", "timestamp"))
            out.text(f"{time_text(row['timestamp'] or 0)}  {row['type']}  {rest}")
    if not rows:
        out.note("nothing was found")
    return ExitCode.OK if rows else ExitCode.NOTHING_FOUND


def checked_max(arguments: argparse.Namespace) -> int:
    """Return ``--max``. Raises: ConfigError below 1."""
    if arguments.max < 1:
        raise ConfigError(f"--max: expected at least 1, found {arguments.max}")
    return int(arguments.max)


def show_messages(
    arguments: argparse.Namespace, out: Output, messages: Iterable[Delivery], max_count: int | None = None,
    *, flush: bool = False,
) -> ExitCode:  # fmt: skip
    """Print messages on arrival; print a note if more than ``max_count`` match."""
    from mqfast.store.record.record import decode_record

    printer = Printer(out, style=arguments.body)
    rest = iter(messages)
    for message in islice(rest, max_count):
        printer.show(columns_of([decode_record(message.record_bytes())]))
        if flush:
            sys.stdout.flush()
    if printer.count == 0:
        out.note("nothing was found")
    elif printer.count == max_count and next(rest, None) is not None:
        out.note(f"there are more than {max_count}; --max shows more")
    return ExitCode.OK if printer.count else ExitCode.NOTHING_FOUND


# --- sending ---


def send(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Send a message to a known topic."""
    from mqfast.client.producer.producer import Producer
    from mqfast.client.values import MessageQueue

    admin.topic_config(arguments.topic)  # a mistyped name must not create a topic
    queue = None
    if arguments.queue is not None or arguments.broker is not None:
        if arguments.queue is None or arguments.broker is None:
            raise ConfigError("--queue and --broker: expected both or none")
        queue = MessageQueue(arguments.topic, arguments.broker, arguments.queue)
    body = sys.stdin.buffer.read() if arguments.text is None else arguments.text.encode("utf-8", "surrogateescape")
    with Producer(_SENDER, **client_arguments(arguments), trace=arguments.trace) as producer:
        result = producer.send(
            arguments.topic, body, tags=arguments.tags, keys=arguments.keys, properties=dict(arguments.property),
            delay_s=arguments.delay, delay_level=arguments.delay_level, queue=queue,
            timeout_s=arguments.timeout,
        )  # fmt: skip
    at = result.message_queue
    if out.as_json:
        out.json(
            {"status": result.status.name, "msgId": result.msg_id, "offsetMsgId": result.offset_msg_id,
             "broker": at.broker_name, "queueId": at.queue_id, "queueOffset": result.queue_offset}
        )  # fmt: skip
    else:
        out.line(
            f"{result.status.name}  {at.topic}/{at.broker_name}/{at.queue_id}@{result.queue_offset}  {result.msg_id}"
        )
    return ExitCode.OK
