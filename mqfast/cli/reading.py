"""``mqfast store ls``, ``stat``, ``cat``, ``tail``, ``get``, ``query``, ``dump``: the content of a store.

All commands use StoreReader: no lock, no thread, and no change of a byte.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import struct
import sys
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.arguments import Commands, tag_expression, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text
from mqfast.cli.rows import Printer, columns_of
from mqfast.cli.stores import (
    check_times,
    config_of,
    gather_of,
    known_queues,
    lists_of,
    missing_topic,
    reader_of,
    tags_of,
)
from mqfast.errors import CorruptFile, DataLoss, OffsetError, UsageError

if TYPE_CHECKING:
    from mqfast.store.reader.store_reader import QueueRange, StoreReader
    from mqfast.store.record.record import StoredMessage

__all__ = ["add_commands"]

_DAMAGE: Final = {
    "no record": "no record starts here",
    "length": "the length of the record does not agree with its parts",
    "place": "the record says another physical offset",
    "crc": "the content of the record does not agree with its CRC",
    "gap": "a log file is missing",
}
_FILLER_SIZE: Final = 0x7FFFFFFF  # of a unit without a message
_TAIL_INTERVAL_US: Final = 10_000.0  # for a human reader: the default of 20 us costs a fifth of a processor
_TAGS: Final = "only messages with one of these tags: 'A || B'"


def add_commands(commands: Commands) -> None:
    """Add every command that only reads."""
    names = commands.add(ls, "list topics and queues with their offsets")
    names.add_argument(
        "--sizes", action="store_true", help="tell also the bytes of each queue's messages, and of its own files"
    )
    commands.add(stat, "tell sizes, file counts, checkpoint, need of recovery, and settings")

    some = commands.add(
        cat, "print messages of topics", commands.body, commands.times, commands.grep, more="Queue after queue."
    )
    some.add_argument("topics", metavar="TOPIC", nargs="+")
    some.add_argument("--queue", type=whole, metavar="N", help="only this queue (default: all, one after the other)")
    some.add_argument(
        "--offset",
        type=int,
        metavar="N",
        help="queue offset to begin at; -N: the last N messages (default: the first message)",
    )
    some.add_argument(
        *("--max", "--count"),
        dest="count",
        type=whole,
        default=32,
        metavar="N",
        help="most messages of each queue, 0: all (default: 32)",
    )
    some.add_argument("--tags", type=tag_expression, metavar="EXPRESSION", help=_TAGS)

    follow = commands.add(
        tail, "print messages as they are written", commands.body, commands.grep, more="Until it is interrupted."
    )
    follow.add_argument("topics", metavar="TOPIC", nargs="*", help="only these (default: every record of the log)")
    follow.add_argument("--queue", type=whole, metavar="N", help="only this queue of the topics")
    follow.add_argument("--tags", type=tag_expression, metavar="EXPRESSION", help=_TAGS)
    follow.add_argument(
        "--from", dest="start", type=whole, metavar="N", help="physical offset of a record (default: the log's end)"
    )
    follow.add_argument(
        *("--max", "--count"), dest="count", type=whole, default=0, metavar="N", help="stop after so many messages"
    )
    follow.add_argument("--seconds", type=float, metavar="S", help="stop when nothing was written for so long")

    message_command = commands.add(get, "print one message", commands.body)
    message_command.add_argument(
        "where",
        metavar="WHERE",
        help="physical offset, offset message id, TOPIC/QUEUE/OFFSET, or the unique key of a message of any topic",
    )

    search = commands.add(
        query,
        "find messages by key, or by tag",
        commands.body,
        commands.times,
        commands.grep,
        more="Finds keys and unique keys; the newest message comes first.",
    )
    search.add_argument("topic", metavar="TOPIC")
    search.add_argument("key", metavar="KEY", nargs="?")
    search.add_argument("--key", dest="named_key", metavar="KEY", help="the same, as admin find has it")
    search.add_argument("--id", metavar="ID", help="in place of KEY, as admin find has it: message id or unique key")
    search.add_argument(
        "--tag",
        metavar="TAG",
        help="in place of KEY: messages with this tag (RocketMQ before 5.5 did not index tags; cat --tags finds all)",
    )
    search.add_argument("--max", type=whole, default=32, metavar="N", help="most messages (default: 32)")

    every = commands.add(
        dump,
        "print every record of the log, in log order",
        commands.times,
        more="Streams; bodies are given by their checksums. Shows also what no queue has.",
    )
    every.add_argument("topics", metavar="TOPIC", nargs="*", help="only these (default: every record of the log)")
    every.add_argument("--sha256", action="store_true", help="tell the SHA-256 of each body as well")


def _printer(arguments: argparse.Namespace, out: Output, separator: bytes = b"\n") -> Printer:
    chosen = separator if arguments.separator is None else arguments.separator
    return Printer(
        out,
        style=arguments.body,
        sha256=arguments.sha256,
        grep=getattr(arguments, "grep", None),
        separator=chosen,
    )


def _ended(out: Output, count: int) -> ExitCode:
    if count == 0:
        out.note("nothing was found")
    return ExitCode.OK if count else ExitCode.NOTHING_FOUND


def ls(arguments: argparse.Namespace) -> ExitCode:
    """List queues."""
    out = Output(arguments.json)
    heads = ["topic", "queue", "min", "max", "messages"]
    names = ["topic", "queueId", "minOffset", "maxOffset", "count"]
    with reader_of(arguments) as reader:
        rows = [(q.topic, q.queue_id, q.min_offset, q.max_offset, q.max_offset - q.min_offset) for q in reader.queues()]
        if arguments.sizes:
            heads += ["bytes", "queue bytes"]
            names += ["bytes", "queueBytesOnDisk"]
            rows = [(*row, *_queue_sizes(reader, *row[:4])) for row in rows]  # type: ignore[misc]
    if out.as_json:
        for row in rows:
            out.json(dict(zip(names, row, strict=True)))
    elif rows:
        out.table(heads, rows)
    else:
        out.note(f"no queues in {arguments.path}")
    return ExitCode.OK if rows else ExitCode.NOTHING_FOUND


def _queue_sizes(reader: StoreReader, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int]:
    """Return the bytes of the queue's records in the log, and of the queue's files on disk."""
    paths = reader.paths
    if first < end and reader.has_plain_units(topic, queue_id):
        blocks = reader.unit_bytes(topic, queue_id, first, end)
        sizes = (size for block in blocks for _, size, _ in struct.iter_unpack(">qiq", block))
        taken = sum(size for size in sizes if size != _FILLER_SIZE)
    else:
        taken = sum(unit.size for some in reader.units(topic, queue_id, first, end) for unit in some)
    bases = (paths.consume_queue, paths.batch_consume_queue, paths.consume_queue_ext)
    return taken, sum(_tree_size(os.path.join(base, topic, str(queue_id)))[2] for base in bases)


def _tree_size(path: str) -> tuple[int, int, int]:
    """Return (files, bytes, bytes on disk) below a directory; files that vanish meanwhile do not count."""
    from mqfast.store.base.os_api import encode_path

    files = length = used = 0
    for directory, _, names in os.walk(encode_path(path)):
        for name in names:
            try:
                status = os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                continue
            files += 1
            length += status.st_size
            used += status.st_blocks * 512
    return files, length, used


def stat(arguments: argparse.Namespace) -> ExitCode:
    """Print the parts and the state of the store."""
    from mqfast.config import StoreConfig
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.file_sizes import sizes_of_files

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
    config = sizes_of_files(OsApi(), paths, config_of(arguments) or StoreConfig())
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
        "logicsPhysicalOffset": checkpoint.logics_physical_offset,
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
    """Print messages of topics."""
    out = Output(arguments.json)
    printer = _printer(arguments, out)
    tags = tags_of(arguments.tags)
    with reader_of(arguments) as reader:
        for queue in known_queues(reader, arguments.topics, arguments.queue):
            start = _first_offset(arguments.offset, queue, out)
            if start < queue.max_offset and not reader.has_plain_units(queue.topic, queue.queue_id):
                start = reader.unit_at(
                    queue.topic, queue.queue_id, start
                ).queue_offset  # the batch that contains the offset
            remaining = arguments.count or queue.max_offset
            gather = gather_of(printer.columns, arguments, batch_rows=min(remaining, 1 << 14), tags=tags)
            run = reader.queue_run(
                queue.topic, queue.queue_id, min(start, queue.max_offset), queue.max_offset, gather,
                check_crc=True, mark=False, skip_damage=False, skip_lost=False,
            )  # fmt: skip
            for columns in lists_of(run, gather, printer.json_maps):
                remaining -= printer.show(columns, remaining)
                if remaining <= 0:
                    break
    return _ended(out, printer.count)


def _first_offset(asked: int | None, queue: QueueRange, out: Output) -> int:
    if asked is None:
        return queue.min_offset
    if asked < 0:
        return max(queue.min_offset, queue.max_offset + asked)
    if asked < queue.min_offset:
        out.note(f"{queue.topic}/{queue.queue_id}: the first offset is {queue.min_offset}, found {asked}")
    elif asked >= queue.max_offset:
        out.note(f"{queue.topic}/{queue.queue_id}: the last offset is {queue.max_offset - 1}, found {asked}")
    return max(asked, queue.min_offset)


def tail(arguments: argparse.Namespace) -> ExitCode:
    """Print messages as they are written."""
    out = Output(arguments.json)
    printer = _printer(arguments, out)
    topics = set(arguments.topics)
    only = arguments.topics[0] if len(topics) == 1 else None
    with (
        reader_of(arguments) as reader,
        reader.tail(
            only,
            arguments.queue if only else None,
            arguments.tags,
            from_offset=arguments.start,
            poll_interval_us=_TAIL_INTERVAL_US,
        ) as log,
    ):
        for topic in dict.fromkeys(arguments.topics):
            missing = missing_topic(reader, topic)
            if missing:
                out.note(f"{missing} It may still be written: waiting for it" if missing.endswith("?") else
                         f"{missing}; waiting for it")  # fmt: skip
        remaining = arguments.count or sys.maxsize
        while remaining > 0:
            messages = log.poll(min(remaining, 256), arguments.seconds)
            if not messages:
                break
            if not only:
                messages = [m for m in messages if not topics or m.topic in topics]
                messages = [m for m in messages if arguments.queue in (None, m.queue_id)]
            remaining -= printer.show(columns_of(messages), remaining)
            sys.stdout.flush()  # a reader of a pipe needs the line now
    return _ended(out, printer.count)


def get(arguments: argparse.Namespace) -> ExitCode:
    """Print one message."""
    out = Output(arguments.json)
    where: str = arguments.where
    with reader_of(arguments) as reader:
        if "/" in where:
            message = _at_queue_offset(reader, where)
        elif where.isdecimal() and len(where) < 20:
            message = reader.get_by_offset(int(where))
        else:
            message = _by_id(reader, where)
        _printer(arguments, out, b"").show(columns_of([message]))
    return ExitCode.OK


def _at_queue_offset(reader: StoreReader, where: str) -> StoredMessage:
    topic, queue_text, offset_text = [*where.rsplit("/", 2), "", ""][:3]
    if not (queue_text.isdecimal() and offset_text.isdecimal()):
        raise UsageError(f"WHERE: expected TOPIC/QUEUE/OFFSET, found {where!r}")
    known_queues(reader, [topic], int(queue_text))
    result = reader.get(topic, int(queue_text), int(offset_text), 1)
    # A batch queue finds an offset inside the record of the batch.
    if not len(result):
        raise OffsetError(
            f"{where}: expected an offset from {result.min_offset} to {result.max_offset - 1}, "
            f"found {result.status.name}"
        )
    return result[0]


def _by_id(reader: StoreReader, text: str) -> StoredMessage:
    """Return the message of an offset message id, or else of a unique key: both have the same form."""
    try:
        return reader.get_by_offset(text)
    except OffsetError as error:
        for topic in sorted({queue.topic for queue in reader.queues()}):
            for message in reader.query(topic, text, 1):
                return message
        raise OffsetError(
            f"{text}: expected an offset message id, a unique key or another key of a message; {error}"
        ) from None


def query(arguments: argparse.Namespace) -> ExitCode:
    """Find messages by key."""
    from mqfast.store.base.os_api import encode_path

    out = Output(arguments.json)
    printer = _printer(arguments, out)
    begin = 0 if arguments.begin is None else arguments.begin
    end = 2**63 - 1 if arguments.end is None else arguments.end
    check_times(arguments)
    if arguments.named_key is not None:
        if arguments.key is not None:
            raise UsageError("query: expected KEY or --key KEY, found both")
        arguments.key = arguments.named_key
    given = [value for value in (arguments.key, arguments.tag, arguments.id) if value is not None]
    if len(given) != 1:
        raise UsageError(f"query: expected KEY, --id ID or --tag TAG, found {'several' if given else 'neither'}")
    with reader_of(arguments) as reader:
        if arguments.id is not None:
            messages = [message for message in [_by_id(reader, arguments.id)] if message.topic == arguments.topic]
        else:
            messages = reader.query(arguments.topic, arguments.key, arguments.max, begin, end, tag=arguments.tag)
        printer.show(columns_of(messages))
        missing = None if printer.count else missing_topic(reader, arguments.topic)
        index = encode_path(reader.paths.index)
        indexed = os.path.isdir(index) and bool(os.listdir(index))
    if missing:
        raise OffsetError(missing)
    if not indexed:
        out.note("the store has no index file: nothing with a key was stored, or message_index_enable was off")
    return _ended(out, printer.count)


def dump(arguments: argparse.Namespace) -> ExitCode:
    """Print every record of the log."""
    from mqfast.store.reader.column_scan import LogColumns

    out = Output(arguments.json)
    printer = Printer(out, sha256=arguments.sha256, short=True)
    topics = set(arguments.topics)
    with reader_of(arguments) as reader, out.progress("dumping", printing=True) as progress:
        for topic in dict.fromkeys(arguments.topics):
            missing = missing_topic(reader, topic)
            if missing:
                out.note(missing)

        def show(columns: dict[str, list[Any]]) -> None:
            if topics:
                matches = [topic in topics for topic in columns["topic"]]
                columns = {name: list(compress(values, matches)) for name, values in columns.items()}
            printer.show(columns)

        first, end = reader.readable_range()
        gather = gather_of(printer.columns, arguments, queued_only=False)
        run = LogColumns(reader, gather, first, end, skip_damage=False, skip_lost=False)
        # The cause that stopped the columns stops the plain scan as well, which reports the cause.
        with contextlib.suppress(CorruptFile, DataLoss):
            for columns in lists_of(run, gather, printer.json_maps):
                show(columns)
                if progress is not None:
                    progress(run.at - first, end - first)
        rest = reader.scan(run.at)
        for message in rest:
            if (arguments.begin or 0) <= message.store_timestamp and (
                arguments.end is None or message.store_timestamp <= arguments.end
            ):
                show({**columns_of([message]), "queue_offset": [message.record_queue_offset]})
    damage = _DAMAGE.get(rest.reason or "")
    if damage is not None:
        out.note(f"the log is damaged at physical offset {rest.at}: {damage}")
        return ExitCode.DAMAGE
    return _ended(out, printer.count) if topics or arguments.begin or arguments.end else ExitCode.OK
