"""``mqfast store import``: converts lines of files to messages, in runs of lines that are parsed and put together.

A line in another form than that of an export goes through the slow path, line by line, which reports the error. No
message after an invalid line is stored, and only stored messages are counted.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import functools
import json
import os
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqfast.errors import MessageIllegal, UsageError
from mqfast.message import check_topic, parse_host
from mqfast.properties import encode

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore
    from mqfast.store.put.put_result import PutResult

__all__ = ["Import", "runs"]

_RUN_BYTES: Final = 1 << 20
_MOST_ORDERS: Final = 1024  # further names of properties are data, not names
_OPTIONS: Final = {
    "flag": "flag",
    "sysFlag": "sys_flag",
    "bornTimestamp": "born_timestamp",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
}
_PUT: Final = ("topic", "queueId", "tags", "keys", "properties", "body", "bodyBase64", "bornHost", *_OPTIONS)
_TOLD: Final = (
    "queueOffset",
    "physicalOffset",
    "size",
    "storeTimestamp",
    "storeHost",
    "bodyCRC",
    "bodySha256",
    "msgId",
)
_PLAIN: Final = {*_PUT, *_TOLD} - {"tags", "keys"}


class _Absent:
    """The type of a field that a row does not have."""


_ABSENT: Final = _Absent()


class Run(NamedTuple):
    """Consecutive lines: the file, the number of the first line there, the texts without line ends."""

    file: str
    first: int
    lines: list[bytes]

    def where(self, index: int) -> str:
        """Return the file and number of a line, for an error."""
        return f"line {self.first + index} of {'standard input' if self.file == '-' else self.file}"


def runs(files: list[str], progress: Callable[[int, int], None] | None) -> Iterator[Run]:
    """Yield the lines of all files in order; of a pipe the available lines, without a wait for more."""
    sizes = [os.path.getsize(name) if os.path.isfile(name) else 0 for name in files]
    done = 0
    for name, size in zip(files, sizes, strict=True):
        before, first, held = done, 1, [b""]
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            while data := file.read1(_RUN_BYTES):
                done += len(data)
                if b"\n" in data:
                    lines = b"".join([*held, data]).split(b"\n")
                    held = [lines.pop()]
                    yield Run(name, first, lines)
                    first += len(lines)
                else:
                    held.append(data)
                if progress is not None:
                    progress(done, sum(sizes))
        last = b"".join(held)
        if last:
            yield Run(name, first, [last])
        done = before + size


class Import:
    """Import of lines into a store, by the arguments of the command.

    Attributes: ``count`` of the stored messages; ``where``: the next line. Thread: one.
    """

    def __init__(self, store: MessageStore, arguments: argparse.Namespace) -> None:
        self.count = 0
        self.where = "the first line"
        self._store = store
        self._arguments = arguments
        self._skip: int = arguments.skip
        self._rows = RowPutter(store, arguments.topic, arguments.queue)
        if arguments.lines:
            given = {"tags": arguments.tags, "keys": arguments.keys, "properties": dict(arguments.property) or None}
            self._text = {"topic": arguments.topic, "queue_id": arguments.queue or 0, **given}

    def store(self, run: Run) -> None:
        """Store the messages of a run. Raises: UsageError for an invalid line; the errors of a put."""
        index, self._skip = min(self._skip, len(run.lines)), max(0, self._skip - len(run.lines))
        while index < len(run.lines):
            if not self._arguments.lines:
                try:
                    self._rows.put(run.lines[index:] if index else run.lines)
                finally:
                    self.count += self._rows.stored
                    index += self._rows.passed
                    if index < len(run.lines):
                        self.where = run.where(index)
                if index == len(run.lines):
                    break
            self.where = run.where(index)
            self._put_one(run, index)
            index += 1

    def _put_one(self, run: Run, index: int) -> None:
        line = run.lines[index]
        if self._arguments.lines:
            self._store.put(body=line, **self._text)
        elif line:
            message = json_message(line, run.where(index))
            if self._arguments.topic is not None:
                message["topic"] = self._arguments.topic
            if self._arguments.queue is not None:
                message["queue_id"] = self._arguments.queue
            self._store.put(**message)
        else:
            return
        self.count += 1


class RowPutter:
    """Puts runs of JSON lines. ``topic`` and ``queue_id`` replace those of the lines.

    Attributes: of the last run, the count of ``passed`` lines, and of their ``stored`` messages. Thread: one.
    """

    def __init__(self, store: MessageStore, topic: str | None, queue_id: int | None) -> None:
        self.passed = self.stored = 0
        self._decode = _decoder()
        self._result: PutResult | None = None  # reused buffer: no other code reads the content
        self._engine = store.engine
        self._topic = topic
        self._queue_id = queue_id
        self._topics: dict[str, bytes] = {}
        self._hosts: dict[str | None, bytes | None] = {None: None}
        self._orders: dict[tuple[str, ...], tuple[str, ...]] = {}

    def put(self, lines: list[bytes]) -> None:
        """Put the messages of JSON lines, without a wait for the disk, up to the first line that may be wrong."""
        self.passed = self.stored = 0
        try:
            # A JSON text contains no line end, so a line cannot be a part of the message of another line.
            rows = self._decode(b"[" + b",\n".join([line or b"{}" for line in lines]) + b"]")
            if len(rows) != len(lines):
                return
            texts = self._property_texts([row.properties for row in rows])
        except (ValueError, TypeError, MessageIllegal):
            return
        for line, row, text in zip(lines, rows, texts, strict=True):
            if line:
                try:
                    self._put_row(row, text)
                except (ValueError, TypeError, MessageIllegal):
                    return  # before any byte was written
                self.stored += 1
            self.passed += 1

    def _put_row(self, row: Any, properties: bytes) -> None:
        text, coded = row.body, row.bodyBase64
        if (text is None) == (coded is None):
            raise ValueError
        topic = self._topic or row.topic
        self._result = self._engine.put_encoded(
            self._topics.get(topic) or self._new_topic(topic),
            row.queueId if self._queue_id is None else self._queue_id,
            base64.b64decode(coded, validate=True) if text is None else text.encode("utf-8"),
            properties,
            row.flag,
            row.sysFlag,
            row.bornTimestamp,
            self._hosts[row.bornHost] if row.bornHost in self._hosts else self._new_host(row.bornHost),
            None,
            row.reconsumeTimes,
            row.preparedTransactionOffset,
            False,
            self._result,
        )

    def _new_topic(self, topic: str) -> bytes:
        text = self._topics[topic] = check_topic(topic)
        return text

    def _new_host(self, host: str) -> bytes:
        parsed = self._hosts[host] = parse_host(_host_text(host))
        return parsed

    def _property_texts(self, rows: list[dict[str, str]]) -> list[bytes]:
        from mqfast.store.put.staged import property_texts

        if len(self._orders) > _MOST_ORDERS:
            self._orders = {}
        return property_texts(rows, self._orders, _stored_order, lambda _, row: encode(row))


def _decoder() -> Callable[[bytes], list[Any]]:
    """Return a decoder of a list of rows, with an attribute for each field; by msgspec if installed, three times as
    fast.

    The decoder raises ValueError or TypeError for a row that no export wrote.
    """
    fields: dict[str, tuple[type, Any]] = {
        "topic": (str, ""), "properties": (dict, {}), "queueId": (int, 0), "flag": (int, 0), "sysFlag": (int, 0),
        "bornTimestamp": (int, None), "reconsumeTimes": (int, 0), "preparedTransactionOffset": (int, 0),
        "body": (str, None), "bodyBase64": (str, None), "bornHost": (str, None),
    }  # fmt: skip
    try:
        import msgspec
    except ImportError:
        return functools.partial(_rows_of_json, fields)
    raw = [(name, msgspec.Raw, msgspec.Raw()) for name in _TOLD]
    known = [(name, kind, default) for name, (kind, default) in fields.items()]
    row = msgspec.defstruct("Row", [*known, *raw], forbid_unknown_fields=True, gc=False)
    decoder = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]

    def decode(text: bytes) -> list[Any]:
        try:
            return decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise ValueError from error

    return decode


def _rows_of_json(fields: Mapping[str, tuple[type, Any]], text: bytes) -> list[Any]:
    """Return the rows of a JSON list, checked column by column: loops of Python's own would double the time.

    Raises: ValueError; TypeError for a row that no export wrote.
    """
    rows = json.loads(text)
    if set(map(type, rows)) != {dict} or not _PLAIN.issuperset(chain.from_iterable(set(map(tuple, rows)))):
        raise TypeError
    columns = []
    for name, (kind, default) in fields.items():
        try:
            column = list(map(itemgetter(name), rows))
        except KeyError:
            column = [row.get(name, _ABSENT) for row in rows]
        if not {kind, _Absent}.issuperset(map(type, column)):
            raise TypeError
        columns.append([default if value is _ABSENT else value for value in column] if _ABSENT in column else column)
    row_type = namedtuple("Row", list(fields))  # type: ignore[misc]  # fields are known here only
    return list(starmap(row_type, zip(*columns, strict=True)))


def _stored_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of properties in the order of a store."""
    return tuple(pair.partition("\x01")[0] for pair in encode(dict.fromkeys(names, "1")).decode().split("\x02") if pair)


def _host_text(host: str) -> str:
    """Return an address in the form of a put, from the form of an export."""
    address, _, port = host.rpartition("|")
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def json_message(line: bytes, where: str) -> dict[str, Any]:
    """Return the arguments of the put for a JSON line. Raises: UsageError with the problem."""

    def wrong(expected: str, value: object) -> UsageError:
        return UsageError(f"{where}: expected {expected}, found {value!r:.200}")

    try:
        row = json.loads(line)
    except ValueError:  # of text that is not UTF-8 as well
        raise wrong("a JSON object (--lines takes text)", line) from None
    if not isinstance(row, dict):
        raise wrong("a JSON object (--lines takes text)", row)
    unknown = [name for name in row if name not in (*_PUT, *_TOLD)]
    if unknown:
        raise wrong(f"only the fields {', '.join(_PUT)}, and those that are not kept: {', '.join(_TOLD)}", unknown[0])
    for name, kind in (("topic", str), ("queueId", int), ("properties", dict), *((name, int) for name in _OPTIONS)):
        if not isinstance(row.get(name, kind()), kind) or isinstance(row.get(name), bool):
            raise wrong(
                f"{name} to be {'a number' if kind is int else 'text' if kind is str else 'an object'}", row[name]
            )
    if ("body" in row) == ("bodyBase64" in row):
        raise wrong("either body or bodyBase64", sorted(row))
    try:
        body = row["body"].encode("utf-8") if "body" in row else base64.b64decode(row["bodyBase64"], validate=True)
    except (AttributeError, TypeError, UnicodeEncodeError, binascii.Error) as error:
        raise wrong("a text as body, or base64 as bodyBase64", str(error)) from None
    message = {"topic": row.get("topic"), "body": body, "queue_id": row.get("queueId", 0)}
    message |= {name: row[field] for field, name in _OPTIONS.items() if field in row}
    if "bornHost" in row:
        message["born_host"] = _host_text(str(row["bornHost"]))
    if "tags" in row or "keys" in row:
        return {**message, "tags": row.get("tags"), "keys": row.get("keys"), "properties": row.get("properties")}
    return {**message, "properties": encode(row.get("properties", {}))}
