"""Messages as rows: the fields of a row, JSON lines, and lines of text.

Every command that prints messages passes columns to a ``Printer``: those of a scan or of ``columns_of``. ``json_lines``
alone defines the JSON form. No store is read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.output import Output, body_text, time_text, visible
from mqfast.errors import UsageError
from mqfast.message import SysFlag

if TYPE_CHECKING:
    from mqfast.store.record.record import StoredMessage

__all__ = ["ROW_COLUMNS", "Printer", "columns_of", "host_text", "json_lines", "matching"]

_MAX_UNPACKED: Final = 1 << 20

ROW_COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "flag", "born_timestamp",
    "store_timestamp", "born_host", "store_host", "reconsume_times", "prepared_transaction_offset", "body_crc",
    "properties", "message_id",
)  # fmt: skip
"""Columns of a scan that a row without its body needs."""


@lru_cache(4096)
def host_text(host: str) -> str:
    """Return ``ip|port`` of ``ip:port`` or ``[v6]:port``, the address as Java prints it (no ``::``)."""
    address, _, port = host.rpartition(":")
    if address.startswith("["):
        import ipaddress

        v6 = ipaddress.IPv6Address(address[1:-1])
        if v6.ipv4_mapped is not None:
            address = str(v6.ipv4_mapped)
        else:
            address = ":".join(f"{int(group, 16):x}" for group in v6.exploded.split(":"))
    return f"{address}|{port}"


def columns_of(messages: Sequence[StoredMessage]) -> dict[str, list[Any]]:
    """Return messages as the columns of a scan, each with the offset of the queue of the get."""
    columns = {name: [getattr(message, name) for message in messages] for name in ROW_COLUMNS}
    return {**columns, "body": [bytes(message.body) for message in messages]}


_JSON_NAMES: Final = (
    "topic", "queueId", "queueOffset", "physicalOffset", "size", "sysFlag", "flag", "bornTimestamp",
    "storeTimestamp", "bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset", "bodyCRC",
    "properties", "msgId",
)  # fmt: skip


def json_lines(columns: Mapping[str, list[Any]], *, sha256: bool = False, body: bool = False) -> str:
    """Return one line of JSON (ASCII) for each row of columns.

    Args: columns: ROW_COLUMNS, properties as dicts or as texts of JSON objects; and ``body`` where it or its sum is
        asked for.
    """
    count = len(columns["topic"])
    if count == 0:
        return ""
    fields: list[tuple[str, list[Any]]] = []  # each with values that are JSON already
    for name, column in zip(_JSON_NAMES, ROW_COLUMNS, strict=True):
        values = columns[column]
        if name == "topic":
            values = list(map(encode_basestring_ascii, values))
        elif name in ("bornHost", "storeHost"):
            texts = {host: f'"{host_text(host)}"' for host in set(values)}
            values = list(map(texts.__getitem__, values))
        elif name == "properties":
            if sha256:
                fields.append(("bodySha256", [f'"{hashlib.sha256(data).hexdigest()}"' for data in columns["body"]]))
            if isinstance(values[0], dict):
                values = [json.dumps(properties, separators=(",", ":")) for properties in values]
        fields.append((name, values))
    # The common part of all rows becomes a part of the template, and loops in C fill in the rest: each step of
    # Python's own would take a second more for a million rows.
    template, varying = [], []
    for name, values in fields:
        form = '"%s"' if name == "msgId" else "%s"
        if values.count(values[0]) == count:
            template.append(f'"{name}":{form % values[0]}'.replace("%", "%%"))
        else:
            template.append(f'"{name}":{form}')
            varying.append(values)
    if body:
        template.append("%s")
        varying.append(_body_fields(columns["body"]))
    line = "{" + ",".join(template) + "}\n"
    if not varying:
        return line % () * count
    return "".join(map(line.__mod__, zip(*varying, strict=True)))


def _body_fields(bodies: Sequence[bytes]) -> list[str]:
    """Return ``"body":...`` of each body that is UTF-8, ``"bodyBase64":...`` of the others."""
    try:
        return list(map('"body":%s'.__mod__, map(encode_basestring_ascii, map(bytes.decode, bodies))))
    except UnicodeDecodeError:
        return [_body_field(body) for body in bodies]


def _body_field(body: bytes) -> str:
    try:
        return f'"body":{encode_basestring_ascii(body.decode("utf-8"))}'
    except UnicodeDecodeError:
        return f'"bodyBase64":"{base64.b64encode(body).decode("ascii")}"'


def _shown_body(body: bytes, sys_flag: int) -> tuple[bytes, str]:
    """Return the printable body, and how the body was converted. Only zlib is in the standard library."""
    kind = SysFlag.compression(sys_flag)
    if kind is None:
        return body, ""
    if kind == "zlib":
        try:
            # Limited: a few bytes may expand to gigabytes.
            return zlib.decompressobj().decompress(body, _MAX_UNPACKED), ", zlib"
        except zlib.error:
            return body, ", damaged zlib"
    return body, f", {kind}, shown as stored"


def matching(columns: Mapping[str, list[Any]], grep: re.Pattern[bytes]) -> dict[str, list[Any]]:
    """Return the rows whose printed body matches the expression."""
    bodies = zip(columns["body"], columns["sys_flag"], strict=True)
    matches = [grep.search(_shown_body(body, flag)[0]) is not None for body, flag in bodies]
    return {name: list(compress(values, matches)) for name, values in columns.items()}


class Printer:
    """Printer of rows of columns, in the form that the command line selects.

    Args: style: that of ``--body``; raw: bodies alone, as stored; sha256: with the sum of each body; grep: only rows
        whose printed body matches; separator: bytes after each raw body; short: one line of text a row, without bodies.
    """

    def __init__(
        self,
        out: Output,
        *,
        style: str = "auto",
        sha256: bool = False,
        grep: re.Pattern[bytes] | None = None,
        separator: bytes = b"",
        short: bool = False,
    ) -> None:
        if style == "raw" and out.as_json:
            raise UsageError("--body raw: expected without --json, which tells more than the bodies; found both")
        self._out = out
        self._style = style
        self._sha256 = sha256
        self._grep = grep
        self._separator = separator
        self._short = short
        self.count = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a scan that the printer needs."""
        bodies = not self._short or self._sha256 or self._grep is not None
        return (*ROW_COLUMNS, "body") if bodies else ROW_COLUMNS

    @property
    def json_maps(self) -> bool:
        """Return whether properties are texts of JSON objects."""
        return self._out.as_json

    def show(self, columns: Mapping[str, list[Any]], limit: int | None = None) -> int:
        """Print the rows, at most ``limit``. Returns: the number of printed rows."""
        if self._grep is not None:
            columns = matching(columns, self._grep)
        if limit is not None:
            columns = {name: values[:limit] for name, values in columns.items()}
        count = len(columns["topic"])
        if self._style == "raw":
            for body in columns["body"]:
                sys.stdout.buffer.write(body + self._separator)
        elif self._out.as_json:
            sys.stdout.write(json_lines(columns, sha256=self._sha256, body=not self._short and self._style != "none"))
        else:
            for row in range(count):
                (self._line if self._short else self._lines)(columns, row)
        self.count += count
        return count

    def _line(self, columns: Mapping[str, list[Any]], row: int) -> None:
        sha256 = f"  {hashlib.sha256(columns['body'][row]).hexdigest()}" if self._sha256 else ""
        self._out.line(
            f"{columns['physical_offset'][row]}  {columns['size'][row]}  "
            f"{visible(columns['topic'][row])}/{columns['queue_id'][row]}@{columns['queue_offset'][row]}  "
            f"{columns['store_timestamp'][row]}  {columns['message_id'][row]}{sha256}"
        )

    def _lines(self, columns: Mapping[str, list[Any]], row: int) -> None:
        body = columns["body"][row]
        shown, packing = _shown_body(body, columns["sys_flag"][row])
        self._out.line(
            f"{visible(columns['topic'][row])}/{columns['queue_id'][row]}@{columns['queue_offset'][row]}  "
            f"{time_text(columns['store_timestamp'][row])}",
            "bold cyan",
        )
        self._out.line(
            f"  physical offset {columns['physical_offset'][row]}, {columns['size'][row]} bytes, "
            f"body {len(body)} bytes{packing}, id {columns['message_id'][row]}",
            "dim",
        )
        text = "  ".join(f"{visible(name)}={visible(value)}" for name, value in columns["properties"][row].items())
        if text:
            self._out.line(f"  {text}", "dim")
        if self._sha256:
            self._out.line(f"  sha256 {hashlib.sha256(body).hexdigest()}", "dim")
        if self._style != "none":
            self._out.line(f"  {body_text(shown, self._style)}")
