"""``mqfast store``: one function a command.

Read commands use StoreReader: no lock, no thread, not one byte changed. ``put`` opens the store as its writer;
``repair`` is the only command that takes anything away, and asks first. What a record looks like in JSON is in
``record_row`` alone.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.main import ExitCode
from mqfast.cli.output import Output, body_text, time_text, visible
from mqfast.errors import OffsetError, UsageError
from mqfast.message import SysFlag

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store._record import StoredMessage
    from mqfast.store.reader import StoreReader
    from mqfast.store.verify import RepairReport, Report

__all__ = ["COMMANDS", "host_text", "record_row"]

_DAMAGE: Final = {
    "no record": "no record starts here",
    "length": "the length of the record does not agree with its parts",
    "place": "the record says another physical offset",
    "crc": "the content of the record does not agree with its CRC",
    "gap": "a log file is missing",
}
_MAX_UNPACKED: Final = 1 << 20


# --- messages as rows and as text ---


def host_text(host: str) -> str:
    """``ip|port`` of ``ip:port`` or ``[v6]:port``, the address as Java prints it (no ``::``)."""
    address, _, port = host.rpartition(":")
    if address.startswith("["):
        import ipaddress

        v6 = ipaddress.IPv6Address(address[1:-1])
        if v6.ipv4_mapped is not None:
            address = str(v6.ipv4_mapped)
        else:
            address = ":".join(f"{int(group, 16):x}" for group in v6.exploded.split(":"))
    return f"{address}|{port}"


def record_row(message: StoredMessage) -> dict[str, Any]:
    """The fields of one record for ``dump``; the body as it is stored, by its sums."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.record_queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "properties": dict(sorted(message.properties.items())),
        "msgId": message.message_id,
    }


def _unpacked(message: StoredMessage) -> tuple[bytes, str]:
    """The body for showing, and what was done to it. Only zlib is in the standard library."""
    body = bytes(message.body)
    kind = SysFlag.compression(message.sys_flag)
    if kind is None:
        return body, ""
    if kind == "zlib":
        try:
            # Bounded: a few bytes may stand for gigabytes.
            return zlib.decompressobj().decompress(body, _MAX_UNPACKED), ", zlib"
        except zlib.error:
            return body, ", damaged zlib"
    return body, f", {kind}, shown as stored"


def _show(out: Output, message: StoredMessage, style: str) -> None:
    if out.as_json:
        row = record_row(message)
        row["queueOffset"] = message.queue_offset
        body = bytes(message.body)
        try:
            row["body"] = body.decode("utf-8")
        except UnicodeDecodeError:
            row["bodyBase64"] = base64.b64encode(body).decode("ascii")
        out.json(row)
        return
    body, packing = _unpacked(message)
    out.line(
        f"{visible(message.topic)}/{message.queue_id}@{message.queue_offset}  {time_text(message.store_timestamp)}",
        "bold cyan",
    )
    out.line(
        f"  physical offset {message.physical_offset}, {message.size} bytes, body {len(message.body)} bytes{packing}, "
        f"id {message.message_id}",
        "dim",
    )
    text = "  ".join(f"{visible(name)}={visible(value)}" for name, value in message.properties.items())
    if text:
        out.line(f"  {text}", "dim")
    if style != "none":
        out.line(f"  {body_text(body, style)}")


def _show_all(out: Output, messages: Iterable[StoredMessage], style: str) -> ExitCode:
    code = ExitCode.DAMAGE_OR_NOTHING
    for message in messages:
        _show(out, message, style)
        code = ExitCode.OK
    if code != ExitCode.OK:
        out.note("nothing was found")
    return code


# --- opening ---


def _config(arguments: argparse.Namespace) -> StoreConfig | None:
    if arguments.conf is None:
        return None
    from mqfast.config import StoreConfig
    from mqfast.store._os import OsDoor

    return StoreConfig.from_broker_conf(arguments.conf, door=OsDoor())


def _reader(arguments: argparse.Namespace) -> StoreReader:
    from mqfast.store.reader import StoreReader

    config = _config(arguments)
    if config is None:
        return StoreReader(arguments.path)
    # Only what the file says: its silence about a size must not contradict the store.
    sizes = {name: getattr(config, name) for name in ("max_hash_slot_num", "max_index_num") if name in config.explicit}
    directories = (*config.commit_log_dirs, *config.read_only_commit_log_dirs)
    return StoreReader(arguments.path, commit_log=directories or None, **sizes)


def _known_topic(reader: StoreReader, topic: str) -> list[tuple[int, int, int]]:
    """(queue id, min offset, max offset) of the topic's queues. Raises: OffsetError when it has none."""
    found = [(q.queue_id, q.min_offset, q.max_offset) for q in reader.queues() if q.topic == topic]
    if not found:
        raise OffsetError(f"topic {topic}: expected one that has a queue in {reader.paths.root}, found none")
    return found


# --- commands ---


def ls(arguments: argparse.Namespace) -> ExitCode:
    """List queues."""
    out = Output(arguments.json)
    with _reader(arguments) as reader:
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
    with _reader(arguments) as reader:
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
    config = sizes_of_files(OsDoor(), paths, _config(arguments) or StoreConfig())
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
            }
        )
        return ExitCode.OK if damage is None else ExitCode.DAMAGE_OR_NOTHING
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
    return ExitCode.OK if damage is None else ExitCode.DAMAGE_OR_NOTHING


def cat(arguments: argparse.Namespace) -> ExitCode:
    """Print messages of a topic."""
    out = Output(arguments.json)
    with _reader(arguments) as reader:
        queues = _known_topic(reader, arguments.topic)
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
        _reader(arguments) as reader,
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
    with _reader(arguments) as reader:
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
        _show(out, message, arguments.body)
    return ExitCode.OK


def query(arguments: argparse.Namespace) -> ExitCode:
    """Find messages by key."""
    out = Output(arguments.json)
    with _reader(arguments) as reader:
        found = reader.query(arguments.topic, arguments.key, arguments.max, arguments.begin, arguments.end)
        return _show_all(out, found, arguments.body)


def put(arguments: argparse.Namespace) -> ExitCode:
    """Store one message."""
    import mqfast

    out = Output(arguments.json)
    body = sys.stdin.buffer.read() if arguments.body is None else os.fsencode(arguments.body)
    with out.progress("recovering") as progress:
        store = mqfast.open(arguments.path, broker_conf=arguments.conf, create=arguments.create, progress=progress)
    with store:
        result = store.put(
            arguments.topic,
            body,
            arguments.queue,
            tags=arguments.tags,
            keys=arguments.keys,
            properties=dict(arguments.property) or None,
        )
        row = {
            "topic": arguments.topic,
            "queueId": arguments.queue,
            "queueOffset": result.queue_offset,
            "physicalOffset": result.physical_offset,
            "size": result.size,
            "storeTimestamp": result.store_timestamp,
            "msgId": result.message_id,
            "status": result.status.name,
        }
    if out.as_json:
        out.json(row)
    else:
        out.line(
            f"{visible(arguments.topic)}/{arguments.queue}@{result.queue_offset}  "
            f"physical offset {result.physical_offset}  id {result.message_id}"
        )
    return ExitCode.OK


def dump(arguments: argparse.Namespace) -> ExitCode:
    """Print every record of the log."""
    out = Output(arguments.json)
    with _reader(arguments) as reader, out.progress("dumping") as progress:
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
        return ExitCode.DAMAGE_OR_NOTHING
    return ExitCode.OK


def _tell(out: Output, report: Report | RepairReport) -> None:
    if out.as_json:
        out.json(json.loads(report.to_json()))
    else:
        out.text(str(report))


def verify(arguments: argparse.Namespace) -> ExitCode:
    """Check the whole store."""
    import mqfast

    out = Output(arguments.json)
    with out.progress("checking") as progress:
        report = mqfast.verify(arguments.path, config=_config(arguments), progress=progress)
    _tell(out, report)
    return ExitCode.OK if report.ok else ExitCode.DAMAGE_OR_NOTHING


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("repair: expected --yes or --dry-run where nobody can be asked, found neither")
    print(question, end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def repair(arguments: argparse.Namespace) -> ExitCode:
    """Cut or rebuild what is damaged."""
    import mqfast

    out = Output(arguments.json)
    config = _config(arguments)
    if not arguments.yes:
        report = mqfast.repair(arguments.path, dry_run=True, config=config)
        if arguments.dry_run or not report.actions:
            _tell(out, report)
            return ExitCode.OK
        for line in str(report).splitlines():
            print(line, file=sys.stderr)
        if not _agreed("carry this out? [y/N]"):
            out.note("nothing was changed")
            return ExitCode.OK
    report = mqfast.repair(arguments.path, config=config)
    _tell(out, report)
    return ExitCode.OK


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], ExitCode]]] = {
    "ls": ls,
    "stat": stat,
    "cat": cat,
    "tail": tail,
    "get": get,
    "query": query,
    "put": put,
    "verify": verify,
    "repair": repair,
    "dump": dump,
}
