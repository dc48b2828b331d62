"""``mqfast admin dlq``: the dead letters of a group: list, show, send again, export.

The stored letters stay. A letter is sent to the topic that it came from, with ``--yes`` only.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin.commands import AdminCommands
from mqfast.cli.admin.messages import add_limits, add_times, checked_max, moment, show_messages
from mqfast.cli.arguments import Parser
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, time_text, visible
from mqfast.cli.rows import ROW_COLUMNS, columns_of, json_lines
from mqfast.errors import ClientError, ConfigError, RemotingError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.delivery import Delivery

__all__ = ["add_commands"]

_AT_ONCE: Final = 1000


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.add(
        "ls", ls, "list dead letters: when, where from, how often tried", _fill_ls, example="billing --begin -1d"
    )
    commands.add("show", show, "print dead letters with their bodies", _fill_ls, example="billing --max 1")
    commands.add("list", show, "print dead letters", _fill_ls, hidden=True)
    commands.add(
        "resend", resend, "send dead letters to the topics that they came from", _fill_resend,
        example="billing --begin -1d --rate 100 --yes",
        more="The stored letters stay. Shows what would be sent; --yes sends.", changes=True,
    )  # fmt: skip
    commands.add(
        "export", export, "write dead letters into a file: .jsonl, or .parquet (needs pyarrow)", _fill_export,
        example="billing letters.jsonl",
    )  # fmt: skip


def _fill_ls(sub: Parser) -> None:
    sub.add_argument("group", metavar="GROUP")
    _add_choice(sub)
    add_limits(sub)


def _add_choice(sub: Parser) -> None:
    sub.add_argument("--id", metavar="ID", action="append", help="only this one (may be given several times)")
    add_times(sub)


def _fill_resend(sub: Parser) -> None:
    sub.add_argument("group", metavar="GROUP")
    sub.add_argument("--topic", metavar="TOPIC", help="all to this topic")
    sub.add_argument("--rate", type=float, metavar="N", help="messages a second at most")
    _add_choice(sub)


def _fill_export(sub: Parser) -> None:
    sub.add_argument("group", metavar="GROUP")
    sub.add_argument("file", metavar="FILE", help="must not exist yet")
    _add_choice(sub)


def _chosen(admin: AdminClient, arguments: argparse.Namespace, missing: set[str]) -> Iterator[Delivery]:
    """Yield the letters that the command line chooses; found ids leave ``missing``."""
    wanted = set(missing)
    for letter in admin.dead_letters(arguments.group, begin=moment(arguments.begin), end=moment(arguments.end)):
        ids = {letter.msg_id, letter.offset_msg_id}
        if not wanted or wanted & ids:
            missing -= ids
            yield letter


def _say_missing(arguments: argparse.Namespace, out: Output, missing: set[str]) -> None:
    for msg_id in sorted(missing):
        out.note(f"{msg_id}: no dead letter of group {arguments.group} has this id")


def show(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print dead letters."""
    missing = set(arguments.id or ())
    code = show_messages(arguments, out, _chosen(admin, arguments, missing), checked_max(arguments))
    _say_missing(arguments, out, missing)
    return code


def ls(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List dead letters in a line each."""
    from mqfast.properties import attempts_of, origin_of

    missing, max_count = set(arguments.id or ()), checked_max(arguments)
    letters = _chosen(admin, arguments, missing)
    rows = []
    for letter in islice(letters, max_count):
        at = letter.store_timestamp if out.as_json else time_text(letter.store_timestamp)
        row = (at, letter.msg_id, origin_of(letter.properties) or "?", letter.reconsume_times,
               attempts_of(letter.properties), " ".join(letter.keys), len(letter.view))  # fmt: skip
        rows.append(row)
    heads = ("stored", "id", "topic", "retries", "resends", "keys", "bytes")
    if out.as_json:
        for row in rows:
            out.json(dict(zip(heads, row, strict=True)))
    elif rows:
        out.table(heads, rows)
    if not rows:
        out.note("nothing was found")
    elif len(rows) == max_count and next(letters, None) is not None:
        out.note(f"there are more than {max_count}; --max shows more")
    _say_missing(arguments, out, missing)
    return ExitCode.OK if rows else ExitCode.NOTHING_FOUND


def resend(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Send dead letters, or show which would be sent; a letter that fails is said, and the next one is sent."""
    from mqfast.properties import origin_of

    if arguments.rate is not None and not 0 < arguments.rate <= 1_000_000:
        raise ConfigError(f"--rate: expected more than 0 and at most 1000000, found {arguments.rate}")
    missing = set(arguments.id or ())
    count, failed = 0, 0
    code = ExitCode.OK
    for letter in _chosen(admin, arguments, missing):
        to = arguments.topic or origin_of(letter.properties) or "?"
        row: dict[str, Any] = {"msgId": letter.msg_id, "topic": to, "sent": arguments.yes}
        place = ""
        if arguments.yes:
            try:
                result = admin.resend(letter, topic=arguments.topic)
            except (ClientError, RemotingError) as error:
                failed += 1
                row |= {"sent": False, "error": str(error)}
                place = f": NOT SENT: {error}"
                code = ExitCode.REFUSED
            else:
                count += 1
                row |= {"queueId": result.message_queue.queue_id, "queueOffset": result.queue_offset}
                place = f"/{row['queueId']}@{row['queueOffset']}"
            if arguments.rate:
                time.sleep(1 / arguments.rate)
        else:
            count += 1
        if out.as_json:
            out.json(row)
        else:
            out.line(visible(f"{letter.msg_id} -> {to}{place}"))
    _say_missing(arguments, out, missing)
    failures = f", {failed} failed" if failed else ""
    out.note(f"{count} sent{failures}" if arguments.yes else f"{count} letters; nothing was sent; --yes does it")
    return code if count or failed else ExitCode.NOTHING_FOUND


def export(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Write dead letters into a new file."""
    is_parquet = arguments.file.endswith(".parquet")
    if not is_parquet and not arguments.file.endswith((".jsonl", ".json")):
        raise ConfigError(f"FILE: expected a name that ends with .jsonl or .parquet, found {arguments.file}")
    if os.path.exists(arguments.file):
        raise ConfigError(f"{arguments.file}: expected a new file, found one that exists")
    missing = set(arguments.id or ())
    letters = _chosen(admin, arguments, missing)
    count = _write_parquet(arguments.file, letters) if is_parquet else _write_lines(arguments.file, letters)
    _say_missing(arguments, out, missing)
    out.note(f"{count} dead letters written into {arguments.file}")
    return ExitCode.OK if count else ExitCode.NOTHING_FOUND


def _columns(letters: list[Delivery]) -> dict[str, list[Any]]:
    from mqfast.store.record.record import decode_record

    return columns_of([decode_record(letter.record_bytes()) for letter in letters])


def _write_lines(path: str, letters: Iterator[Delivery]) -> int:
    count = 0
    with open(path, "x", encoding="ascii") as file:
        while batch := list(islice(letters, _AT_ONCE)):
            file.write(json_lines(_columns(batch), body=True))
            count += len(batch)
    return count


def _write_parquet(path: str, letters: Iterator[Delivery]) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path}: Parquet needs {error.name}: pip install pyarrow") from None
    text, number, binary = pyarrow.string(), pyarrow.int64(), pyarrow.binary()
    texts = {"topic", "born_host", "store_host", "message_id"}
    fields = [(name, text if name in texts else number) for name in ROW_COLUMNS if name != "properties"]
    schema = pyarrow.schema([*fields, ("properties", pyarrow.map_(text, text)), ("body", binary)])
    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while batch := list(islice(letters, _AT_ONCE)):
            columns = _columns(batch)
            columns["properties"] = [list(pairs.items()) for pairs in columns["properties"]]
            writer.write_table(pyarrow.table({name: columns[name] for name in schema.names}, schema=schema))
            count += len(batch)
    return count
