"""``mqfast store put``, ``export``, ``import``: messages into a store and out of a store, in standard file formats.

An import of an export gives equal topics, queues in the same order, bodies, properties, flags and born times; store
times, offsets and message ids are new. A store that another process writes is refused, and a failed export leaves no
file under the requested name.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import csv
import io
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Self

from mqfast.cli.arguments import Commands, argument_bytes, name_value, system_path, tag_expression, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.importing import Import, runs
from mqfast.cli.output import Output, visible
from mqfast.cli.rows import ROW_COLUMNS, json_lines, matching
from mqfast.cli.stores import gather_of, known_queues, lists_of, near, ranges, reader_of, tags_of
from mqfast.errors import MqfastError, UsageError
from mqfast.message import LMQ_PREFIX

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore

__all__ = ["add_commands"]

_NEW: Final = (
    "Topics, queues and their order, bodies, properties, flags and born times are kept; store times, offsets and "
    "message ids are new."
)


def add_commands(commands: Commands) -> None:
    """Add ``put``, ``export`` and ``import``."""
    export_command = commands.add(
        put,
        "store one message",
        more="Opens the store for writing, and recovers it first when its last writer did not close it.",
    )
    export_command.add_argument("topic", metavar="TOPIC")
    export_command.add_argument(
        "body", metavar="BODY", nargs="?", help="text of the message (default: all of standard input, as it is)"
    )
    export_command.add_argument("--queue", type=whole, default=0, metavar="N", help="queue of the topic (default: 0)")
    export_command.add_argument("--empty", action="store_true", help="store a message without a body")
    _message_arguments(export_command)

    give = commands.add(
        export,
        "write messages to a file, for import and for other programs",
        commands.times,
        commands.grep,
        more="Queue after queue, each in its order; light queues (%LMQ%) only when named, as other queues have their "
        "messages.",
    )
    give.add_argument(
        "to",
        metavar="FILE",
        nargs="?",
        type=system_path,
        help="new file to write, which is there when all of it is (default, and -: standard output)",
    )
    give.add_argument(
        "--topic",
        dest="topics",
        metavar="TOPIC",
        action="append",
        help="only this topic; may be given several times (default: every topic)",
    )
    give.add_argument("--queue", type=whole, metavar="N", help="only this queue of the topics")
    give.add_argument("--tags", type=tag_expression, metavar="EXPRESSION", help="only these tags: 'A || B'")
    give.add_argument(
        "--format",
        choices=("jsonl", "csv", "parquet"),
        help="default: by the end of FILE's name, else jsonl, which alone can be imported; parquet needs pyarrow; in "
        "csv a text that begins with one of = + - @ ' has a ' before, so that no cell is a formula",
    )

    take = commands.add(
        import_,
        "store messages that export wrote, or lines of text",
        name="import",
        more=f"JSON lines as export writes them, or text with --lines. {_NEW} A line that is no message ends it, and "
        "what was before is stored.",
    )
    take.add_argument(
        "files", metavar="FILE", nargs="*", type=system_path, help="files to read (default, and -: standard input)"
    )
    take.add_argument("--lines", action="store_true", help="each line is the body of a message (needs --topic)")
    take.add_argument("--topic", metavar="TOPIC", help="put everything to this topic")
    take.add_argument("--queue", type=whole, metavar="N", help="put everything to this queue")
    take.add_argument("--skip", type=whole, default=0, metavar="N", help="leave out so many lines at the beginning")
    _message_arguments(take, "; of --lines")


def _message_arguments(parser: argparse.ArgumentParser, which: str = "") -> None:
    parser.add_argument("--tags", metavar="TAG", help=f"tag{which}")
    parser.add_argument("--keys", metavar="KEYS", help=f"keys, separated by blanks{which}")
    parser.add_argument(
        "--property",
        type=name_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a property; may be given several times{which}",
    )
    parser.add_argument("--create", action="store_true", help="make the store if there is none")


def put(arguments: argparse.Namespace) -> ExitCode:
    """Store one message."""
    import mqfast

    out = Output(arguments.json)
    if arguments.empty and arguments.body:
        raise UsageError("--empty: expected no BODY, found one")
    if arguments.empty and arguments.body is None:
        arguments.body = ""
    if arguments.body is None and sys.stdin is None:
        raise UsageError("BODY: expected a text, or an open standard input; found neither")
    body = sys.stdin.buffer.read() if arguments.body is None else argument_bytes(arguments.body)
    if not body and not arguments.empty:
        raise UsageError("BODY: expected a text, found an empty one; --empty stores a message without a body")
    with out.progress("recovering") as progress:
        store = mqfast.open(arguments.path, broker_conf=arguments.conf, create=arguments.create, progress=progress)
    with store:
        new = _what_is_new(store, arguments.topic, arguments.queue)
        if new:
            out.note(new)
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


def _what_is_new(store: MessageStore, topic: str, queue_id: int) -> str | None:
    """Return a note about a topic or a queue that the first message creates."""
    topics = store.topics()
    if topic not in topics:
        return f"topic {topic} is new{near(topic, topics, others=False)}" if topics else None
    ids = store.queue_ids(topic)
    return None if queue_id in ids else f"queue {queue_id} of topic {topic} is new; there are {ranges(ids)}"


# --- export ---


class _Writer:
    """Writer of batches of a scan in one format; the file gets its name when complete.

    Attributes: ``columns`` of the scan that the format needs.
    """

    columns: tuple[str, ...] = (*ROW_COLUMNS, "body")
    json_maps = False
    binary = False

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._to: str | None = arguments.to
        self._grep = arguments.grep
        self._file: IO[Any] = sys.stdout
        if self._to is None and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as in a file, whatever the locale is
        if self._to is not None:
            if os.path.exists(self._to):
                raise UsageError(f"FILE: expected the name of a new file, found one that is there: {self._to}")
            self._part = f"{self._to}.part"
            text: dict[str, Any] = {} if self.binary else {"encoding": "utf-8", "newline": ""}
            self._file = open(self._part, "wb" if self.binary else "w", **text)  # noqa: SIM115  (closed by __exit__)
        try:
            self.write_head()
        except BaseException:
            self._drop()
            raise

    def write_head(self) -> None:
        """Write the head of the file."""

    def write(self, columns: Mapping[str, list[Any]]) -> None:
        """Write rows of columns."""
        raise NotImplementedError

    def add(self, columns: dict[str, list[Any]]) -> int:
        """Write the matching rows of a batch. Returns: the number of rows."""
        matches = columns if self._grep is None else matching(columns, self._grep)
        if matches["topic"]:
            self.write(matches)
        return len(matches["topic"])

    def write_tail(self) -> None:
        """Write the end of the file."""

    def _drop(self) -> None:
        if self._to is not None:
            self._file.close()
            os.unlink(self._part)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._drop()
            return
        try:
            self.write_tail()
            if self._to is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._name()
        finally:
            if self._to is not None:
                self._file.close()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._part)

    def _name(self) -> None:
        assert self._to is not None
        try:
            os.link(self._part, self._to)  # fails if a file of this name was created meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(self._part, self._to)


class _JsonLines(_Writer):
    json_maps = True

    def write(self, columns: Mapping[str, list[Any]]) -> None:
        self._file.write(json_lines(columns, body=True))


class _Csv(_Writer):
    _NAMES: Final = {
        "topic": "topic",
        "queueId": "queue_id",
        "queueOffset": "queue_offset",
        "physicalOffset": "physical_offset",
        "storeTimestamp": "store_timestamp",
        "bornTimestamp": "born_timestamp",
        "tags": "tags",
        "keys": "keys",
        "msgId": "message_id",
        "properties": "properties",
    }
    columns = (*_NAMES.values(), "sys_flag", "body")
    json_maps = True

    def write_head(self) -> None:
        self._rows = csv.writer(self._file)
        self._rows.writerow([*self._NAMES, "body", "bodyBase64"])

    def write(self, columns: Mapping[str, list[Any]]) -> None:
        bodies = [_text_or_base64(body) for body in columns["body"]]
        fixed = zip(*(self._cells(name, columns[name]) for name in self._NAMES.values()), strict=True)
        self._rows.writerows((*row, *body) for row, body in zip(fixed, bodies, strict=True))

    @staticmethod
    def _cells(name: str, values: list[Any]) -> list[Any]:
        return list(map(_cell, values)) if name in ("topic", "tags", "keys", "message_id") else values


def _cell(text: str | None) -> str | None:
    """Return a text with a ``'`` before a first letter that makes a formula of a cell, or is a ``'`` itself."""
    return f"'{text}" if text and text[0] in "=+-@\t\r'" else text


def _text_or_base64(body: bytes) -> tuple[str | None, str]:
    try:
        return _cell(body.decode("utf-8")), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(body).decode("ascii")


class _Parquet(_Writer):
    columns = (*ROW_COLUMNS, "tags", "keys", "uniq_key", "body")
    binary = True

    def write_head(self) -> None:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise UsageError(f"--format parquet: expected pyarrow, found none ({error}): pip install pyarrow") from None
        self._arrow = pyarrow
        fixed = {
            "queue_id": pyarrow.int32(), "size": pyarrow.int32(), "sys_flag": pyarrow.int32(), "flag": pyarrow.int32(),
            "reconsume_times": pyarrow.int32(), "body_crc": pyarrow.int32(), "body": pyarrow.binary(),
            "queue_offset": pyarrow.int64(), "physical_offset": pyarrow.int64(),
            "prepared_transaction_offset": pyarrow.int64(),
            "born_timestamp": pyarrow.timestamp("ms", "UTC"), "store_timestamp": pyarrow.timestamp("ms", "UTC"),
            "properties": pyarrow.map_(pyarrow.string(), pyarrow.string()),
        }  # fmt: skip
        self._schema = pyarrow.schema([(name, fixed.get(name, pyarrow.string())) for name in self.columns])
        self._parquet = parquet.ParquetWriter(self._file, self._schema)

    def write(self, columns: Mapping[str, list[Any]]) -> None:
        maps = [list(properties.items()) for properties in columns["properties"]]
        arrays = [
            self._arrow.array(maps if name == "properties" else columns[name], self._schema.field(name).type)
            for name in self.columns
        ]
        self._parquet.write_batch(self._arrow.record_batch(arrays, schema=self._schema))

    def write_tail(self) -> None:
        self._parquet.close()


_WRITERS: Final[dict[str, type[_Writer]]] = {"jsonl": _JsonLines, "csv": _Csv, "parquet": _Parquet}


def _writer_of(arguments: argparse.Namespace) -> tuple[str, type[_Writer]]:
    end = os.path.splitext(arguments.to or "")[1].lower().lstrip(".")
    kind = arguments.format or (end if end in _WRITERS else "jsonl")
    if kind == "parquet" and arguments.to is None:
        raise UsageError("--format parquet: expected FILE, found none: such a file is not written to a pipe")
    return kind, _WRITERS[kind]


def export(arguments: argparse.Namespace) -> ExitCode:
    """Write messages to a file or to stdout."""
    out = Output(arguments.json)
    arguments.to = None if arguments.to == "-" else arguments.to
    kind, make = _writer_of(arguments)
    count = 0
    with reader_of(arguments) as reader:
        every = [queue.topic for queue in reader.queues() if not queue.topic.startswith(LMQ_PREFIX)]
        queues = known_queues(reader, arguments.topics or every, arguments.queue)
        done, whole_count = 0, sum(queue.max_offset - queue.min_offset for queue in queues)
        with make(arguments) as writer, out.progress("exporting", printing=arguments.to is None) as progress:
            for queue in queues:
                gather = gather_of(writer.columns, arguments, tags=tags_of(arguments.tags))
                run = reader.queue_run(
                    queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, gather,
                    check_crc=True, mark=False, skip_damage=False, skip_lost=False,
                )  # fmt: skip
                for columns in lists_of(run, gather, writer.json_maps):
                    count += writer.add(columns)
                    if progress is not None and columns["topic"]:
                        progress(done + columns["queue_offset"][-1] - queue.min_offset, whole_count)
                done += queue.max_offset - queue.min_offset
    if count == 0:
        out.note("nothing was found")
    if arguments.to is not None and out.as_json:
        out.json({"exported": count, "format": kind, "file": arguments.to})
    elif arguments.to is not None:
        out.line(f"{count:,} messages exported to {visible(arguments.to)}")
    return ExitCode.OK if count else ExitCode.NOTHING_FOUND


# --- import ---


def import_(arguments: argparse.Namespace) -> ExitCode:
    """Store the messages of files."""
    import mqfast

    out = Output(arguments.json)
    if arguments.lines and arguments.topic is None:
        raise UsageError("--lines: expected --topic TOPIC, found none")
    if not arguments.lines and (arguments.tags or arguments.keys or arguments.property):
        raise UsageError("--tags, --keys, --property: expected --lines, as JSON lines have their own; found none")
    files = arguments.files or ["-"]
    if "-" in files and sys.stdin is None:
        raise UsageError("FILE: expected a file to read, or an open standard input; found neither")
    for name in files:
        if name != "-" and not os.path.exists(name):
            raise UsageError(f"FILE: expected a file to read, found none: {name}")
    with out.progress("recovering") as progress:
        store = mqfast.open(arguments.path, broker_conf=arguments.conf, create=arguments.create, progress=progress)
    work = Import(store, arguments)
    with store, out.progress("importing") as progress:
        try:
            for run in runs(files, progress):
                work.store(run)
            store.flush()
        except (MqfastError, OSError):
            out.note(f"{work.count:,} messages were stored, none from {work.where} on")
            raise
    if out.as_json:
        out.json({"imported": work.count})
    else:
        out.line(f"{work.count:,} messages imported into {visible(arguments.path)}")
    return ExitCode.OK
