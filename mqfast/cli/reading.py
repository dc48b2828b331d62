"""``mqfast store ls``, ``stat``, ``cat``, ``tail``, ``get``, ``query``, ``dump``: what is in a store.

All of them use StoreReader: no lock, no thread, not one byte changed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mqfast.cli.arguments import Commands, time_ms, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text, visible
from mqfast.cli.rows import record_row, show
from mqfast.cli.stores import config_of, known_topic, reader_of
from mqfast.errors import OffsetError, UsageError

if TYPE_CHECKING:
    from mqfast.store._record import StoredMessage

__all__ = ["add_commands"]

_DAMAGE: Final = {
    "no record": "no record starts here",
    "length": "the length of the record does not agree with its parts",
    "place": "the record says another physical offset",
    "crc": "the content of the record does not agree with its CRC",
    "gap": "a log file is missing",
}


def add_commands(commands: Commands) -> None:
    """Every command that only reads."""
    commands.add(ls, "list topics and queues with their offsets")
    commands.add(stat, "tell sizes, file counts, checkpoint, need of recovery, and settings")

    some = commands.add(cat, "print messages of a topic", commands.body)
    some.add_argument("topic", metavar="TOPIC")
    some.add_argument("--queue", type=whole, metavar="N", help="only this queue (default: all, one after the other)")
    some.add_argument(
        "--offset",
        type=int,
        metavar="N",
        help="queue offset to begin at; -N: the last N messages (default: the first message)",
    )
    some.add_argument(
        "--count", type=whole, default=32, metavar="N", help="most messages of each queue, 0: all (default: 32)"
    )
    some.add_argument("--tags", metavar="EXPRESSION", help="only messages with these tags: 'A || B'")

    follow = commands.add(tail, "print messages as they are written", commands.body, more="Until it is interrupted.")
    follow.add_argument("topic", metavar="TOPIC", nargs="?", help="only this topic (default: every record of the log)")
    follow.add_argument("--queue", type=whole, metavar="N", help="only this queue of the topic")
    follow.add_argument("--tags", metavar="EXPRESSION", help="only messages with these tags: 'A || B'")
    follow.add_argument(
        "--from", dest="begin", type=whole, metavar="N", help="physical offset of a record (default: the log's end)"
    )
    follow.add_argument("--count", type=whole, default=0, metavar="N", help="stop after so many messages")
    follow.add_argument("--seconds", type=float, metavar="S", help="stop when nothing was written for so long")

    one = commands.add(get, "print one message", commands.body)
    one.add_argument("where", metavar="WHERE", help="physical offset, offset message id, or TOPIC/QUEUE/OFFSET")

    search = commands.add(query, "find messages by key", commands.body, more="Finds keys and unique keys.")
    search.add_argument("topic", metavar="TOPIC")
    search.add_argument("key", metavar="KEY")
    search.add_argument(
        "--begin",
        type=time_ms,
        default=0,
        metavar="TIME",
        help="earliest store time: ms since the epoch, or 2026-01-31T12:00",
    )
    search.add_argument("--end", type=time_ms, default=2**63 - 1, metavar="TIME", help="latest store time")
    search.add_argument("--max", type=whole, default=32, metavar="N", help="most messages (default: 32)")

    commands.add(
        dump, "print every record of the log, in log order", more="Streams; bodies are given by their checksums."
    )


def _show_all(out: Output, messages: Iterable[StoredMessage], style: str) -> ExitCode:
    code = ExitCode.NOTHING_FOUND
    for message in messages:
        show(out, message, style)
        code = ExitCode.OK
    if code != ExitCode.OK:
        out.note("nothing was found")
    return code


def ls(arguments: argparse.Namespace) -> ExitCode:
    """List queues."""
    out = Output(arguments.json)
    with reader_of(arguments) as reader:
        rows = [(q.topic, q.queue_id, q.min_offset, q.max_offset, q.max_offset - q.min_offset) for q in reader.queues()]
    if out.as_json:
        for row in rows:
            out.json(dict(zip(("topic", "queueId", "minOffset", "maxOffset", "count"), row, strict=True)))
    elif rows:
        out.table(("topic", "queue", "min", "max", "messages"), rows)
    else:
        out.note(f"no queues in {arguments.path}")
    return ExitCode.OK


def _tree_size(path: str) -> tuple[int, int, int]:
    """(files, bytes, bytes on disk) below a directory; what vanishes meanwhile does not count."""
    files = length = used = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                continue
            files += 1
            length += found.st_size
            used += found.st_blocks * 512
    return files, length, used


def stat(arguments: argparse.Namespace) -> ExitCode:
    """Tell what the store is made of and what it needs."""
    from mqfast.config import StoreConfig
    from mqfast.store._os import OsDoor
    from mqfast.store.message_store import sizes_of_files

    out = Output(arguments.json)
    with reader_of(arguments) as reader:
        paths = reader.paths
        first, end = reader.log_range()
        scan = reader.scan(end) if end > first or reader.is_dirty else None
        for _ in scan or ():
            break
        stopped = scan.reason if scan is not None else None
        damage = _DAMAGE.get(stopped or "")
        checkpoint = reader.checkpoint
        queues = reader.queues()
        dirty = reader.is_dirty
    config = sizes_of_files(OsDoor(), paths, config_of(arguments) or StoreConfig())
    kinds = {
        "commitlog": [*paths.commit_logs, *paths.read_only_commit_logs],
        "consumequeue": [paths.consume_queue],
        "batchconsumequeue": [paths.batch_consume_queue],
        "consumequeue_ext": [paths.consume_queue_ext],
        "index": [paths.index],
    }
    sizes = {
        name: [sum(part) for part in zip(*map(_tree_size, directories), strict=True)]
        for name, directories in kinds.items()
    }
    sizes = {name: size for name, size in sizes.items() if size[0]}
    times = {
        "physicMsgTimestamp": checkpoint.physic_msg_timestamp,
        "logicsMsgTimestamp": checkpoint.logics_msg_timestamp,
        "indexMsgTimestamp": checkpoint.index_msg_timestamp,
    }
    offsets = {
        "masterFlushedOffset": checkpoint.master_flushed_offset,
        "confirmPhyOffset": checkpoint.confirm_phy_offset,
    }
    need = (
        "yes: the last writer has not closed it, or is at work"
        if dirty
        else "yes: the log is damaged"
        if damage
        else "no"
    )
    if out.as_json:
        out.json(
            {
                "path": paths.root,
                "files": {
                    name: dict(zip(("files", "bytes", "bytesOnDisk"), size, strict=True))
                    for name, size in sizes.items()
                },
                "minPhysicalOffset": first,
                "maxPhysicalOffset": end,
                "topics": len({q.topic for q in queues}),
                "queues": len(queues),
                "checkpoint": {**times, **offsets},
                "abort": dirty,
                "needsRecovery": dirty or damage is not None,
                "damage": None if damage is None else {"physicalOffset": end, "found": damage},
                "config": {s.field: s.value for s in config.describe()},
                "brokerConf": config.broker_conf_sizes(),
            }
        )
        return ExitCode.OK if damage is None else ExitCode.DAMAGE
    out.table(("kind", "files", "bytes", "on disk"), [(name, *size) for name, size in sizes.items()])
    pairs: list[tuple[str, object]] = [
        ("log", f"{first} to {end} ({end - first} bytes)"),
        ("behind its end", damage or "nothing"),
        ("topics", len({q.topic for q in queues})),
        ("queues", len(queues)),
        ("abort file", "there" if dirty else "not there"),
        ("recovery needed", need),
    ]
    out.facts("state", pairs)
    out.facts(
        "checkpoint",
        [
            *((name, f"{value} ({time_text(value)})" if value else "0") for name, value in times.items()),
            *offsets.items(),
        ],
    )
    if checkpoint.warnings:
        out.facts("warnings", [("", text) for text in checkpoint.warnings])
    default = {s.field: s.value for s in StoreConfig().describe()}
    changed = [(s.field, f"{s.value} {s.unit}".rstrip()) for s in config.describe() if s.value != default[s.field]]
    out.facts("settings that differ from the defaults", changed or [("none", "")])
    lines = [("", f"{name}={value}") for name, value in config.broker_conf_sizes().items()]
    out.facts(
        "broker.conf of a Java broker for this store (only what differs from RocketMQ's defaults)",
        lines or [("nothing", "RocketMQ's defaults fit")],
    )
    return ExitCode.OK if damage is None else ExitCode.DAMAGE


def cat(arguments: argparse.Namespace) -> ExitCode:
    """Print messages of a topic."""
    out = Output(arguments.json)
    with reader_of(arguments) as reader:
        queues = known_topic(reader, arguments.topic)
        if arguments.queue is not None:
            queues = [queue for queue in queues if queue[0] == arguments.queue]
            if not queues:
                raise OffsetError(f"topic {arguments.topic}: expected a queue {arguments.queue}, found none")

        def messages() -> Iterable[StoredMessage]:
            for queue_id, first, last in queues:
                asked = arguments.offset
                offset = first if asked is None else max(first, last + asked) if asked < 0 else asked
                if asked is not None and 0 <= asked < first:
                    out.note(f"{arguments.topic}/{queue_id}: the first offset is {first}, found {asked}")
                    offset = first
                left = arguments.count or last
                while offset < last and left > 0:
                    found = reader.get(arguments.topic, queue_id, offset, min(left, 256), 4 << 20, arguments.tags)
                    for message in found:
                        left -= 1
                        yield message
                    if found.next_offset <= offset:
                        break
                    offset = found.next_offset

        return _show_all(out, messages(), arguments.body)


def tail(arguments: argparse.Namespace) -> ExitCode:
    """Print messages as they are written."""
    out = Output(arguments.json)
    with (
        reader_of(arguments) as reader,
        reader.tail(arguments.topic, arguments.queue, arguments.tags, from_offset=arguments.begin) as log,
    ):

        def messages() -> Iterable[StoredMessage]:
            left = arguments.count or sys.maxsize
            while left > 0:
                found = log.poll(min(left, 256), arguments.seconds)
                if not found:
                    return
                yield from found
                left -= len(found)
                sys.stdout.flush()  # who reads it through a pipe wants it now

        return _show_all(out, messages(), arguments.body)


def get(arguments: argparse.Namespace) -> ExitCode:
    """Print one message."""
    out = Output(arguments.json)
    where: str = arguments.where
    with reader_of(arguments) as reader:
        if "/" in where:
            topic, queue_text, offset_text = [*where.rsplit("/", 2), "", ""][:3]
            if not (queue_text.isdecimal() and offset_text.isdecimal()):
                raise UsageError(f"WHERE: expected TOPIC/QUEUE/OFFSET, found {where!r}")
            result = reader.get(topic, int(queue_text), int(offset_text), 1)
            # A batch queue finds an offset inside the record that holds it.
            if not len(result):
                raise OffsetError(
                    f"{where}: expected an offset from {result.min_offset} to {result.max_offset - 1}, "
                    f"found {result.status.name}"
                )
            message = result[0]
        elif where.isdecimal() and len(where) < 20:
            message = reader.look(int(where))
        else:
            message = reader.look(where)
        show(out, message, arguments.body)
    return ExitCode.OK


def query(arguments: argparse.Namespace) -> ExitCode:
    """Find messages by key."""
    out = Output(arguments.json)
    with reader_of(arguments) as reader:
        found = reader.query(arguments.topic, arguments.key, arguments.max, arguments.begin, arguments.end)
        return _show_all(out, found, arguments.body)


def dump(arguments: argparse.Namespace) -> ExitCode:
    """Print every record of the log."""
    out = Output(arguments.json)
    with reader_of(arguments) as reader, out.progress("dumping") as progress:
        first, end = (0, 0) if progress is None else reader.log_range()
        records = reader.scan()
        for number, message in enumerate(records):
            if out.as_json:
                out.json(record_row(message))
            else:
                out.line(
                    f"{message.physical_offset}  {message.size}  "
                    f"{visible(message.topic)}/{message.queue_id}@{message.record_queue_offset}"
                    f"  {message.store_timestamp}  {message.message_id}"
                )
            if progress is not None and number % 256 == 0:
                progress(message.physical_offset - first, end - first)
    damage = _DAMAGE.get(records.reason or "")
    if damage is not None:
        out.note(f"the log is damaged at physical offset {records.at}: {damage}")
        return ExitCode.DAMAGE
    return ExitCode.OK
