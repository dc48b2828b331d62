"""``mqfast explain ID``: the life of a message, from a running cluster or from a store, ours or a Java broker's.

A store is opened read-only: beside its broker, or after the broker stopped. What no record shows is said, not guessed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.arguments import Parser
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.cli.output import Output, time_text

if TYPE_CHECKING:
    from mqfast.client.admin.life import Copy, Life
    from mqfast.store.reader.store_reader import StoreReader
    from mqfast.store.record.record import StoredMessage

__all__ = ["add_commands", "life_in_store"]

_COPIES_MAX: Final = 1000
"""Records of one message that are looked at: 16 retries and resends are far fewer."""


def add_commands(rooms: argparse._SubParsersAction[Any]) -> None:
    """Add ``explain``."""
    rooms.add_parser(
        "explain",
        help="show the life of a message: sent, stored, delivered, retried, dead",
        description="Show the life of a message: sent, stored, delivered, consumed, retried, given up; with offsets "
        "and times. From a running cluster (needs the extra mqfast[client]), or with --store from a broker's store.",
        epilog="example:\n  mqfast explain 7F0000010A2B18B4AAC27B3D5A0A0000 --topic orders\n"
        f"  mqfast explain 7F0000010A2B18B4AAC27B3D5A0A0000 --store /data/store\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fill=_fill,
    )


def _fill(sub: Parser) -> None:
    from mqfast.cli.admin.commands import add_common

    sub.add_argument("id", metavar="ID", help="the producer's unique id, or the broker's offset id")
    sub.add_argument("--topic", metavar="TOPIC", help="search only there (default: every topic)")
    sub.add_argument("--store", dest="path", metavar="PATH", help="read this store, and ask no cluster")
    sub.add_argument("--conf", metavar="FILE", help="broker.conf of the store")
    sub.add_argument("--scan", action="store_true", help="with --store: read the whole log, where the index is missing")
    add_common(sub)
    sub.places_anywhere = True
    sub.set_defaults(run=run, command="explain")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the life of a message."""
    out = Output(arguments.json)
    if arguments.path is not None:
        from mqfast.cli.stores import reader_of

        with reader_of(arguments) as reader:
            life = life_in_store(reader, arguments.id, arguments.topic, scan=arguments.scan)
    else:
        from mqfast.cli.admin.commands import admin_client

        with admin_client(arguments) as admin:
            life = admin.life(arguments.id, arguments.topic)
    if life is None:
        out.note(f"{arguments.id}: no message has this id" + _hint(arguments))
        return ExitCode.NOTHING_FOUND
    _show(out, life)
    return ExitCode.OK


def _hint(arguments: argparse.Namespace) -> str:
    if arguments.path is not None and not arguments.scan:
        return " in the index of the store; --scan reads the whole log"
    return f" in topic {arguments.topic}" if arguments.topic else ""


def _show(out: Output, life: Life) -> None:
    if out.as_json:
        for event in life.events:
            row = {"time": event.time_ms, "kind": event.kind, "text": event.text, "group": event.group}
            out.json({**row, "place": None if event.place is None else event.place._asdict()})
        for text in life.unknown:
            out.json({"time": None, "kind": "unknown", "text": text, "group": None, "place": None})
        return
    out.line(f"{life.msg_id}, topic {life.topic}", "bold")
    rows = []
    for event in life.events:
        at = "-" if event.time_ms is None else time_text(event.time_ms)
        place = "-"
        if event.place is not None:
            broker = f"{event.place.broker}/" if event.place.broker else ""
            place = f"{event.place.topic}/{broker}{event.place.queue_id}@{event.place.queue_offset}"
            place += f", log {event.place.physical_offset}"
        rows.append((at, event.kind, event.text, place))
    out.table(("time", "what", "how", "where"), rows)
    for text in life.unknown:
        out.note(f"unknown: {text}")


# --- a store ---


def life_in_store(reader: StoreReader, msg_id: str, topic: str | None = None, *, scan: bool = False) -> Life | None:
    """Return the life of a message by the records, units and offsets of a store; None without a record of it.

    Args: msg_id: unique id or offset id; topic: search only there; scan: read the whole log instead of the index.
    """
    from mqfast.client.admin.life import life_of, progress_event

    records = _records(reader, msg_id, scan=scan)
    if not records:
        return None
    home = topic or _home(records[0])
    records = [record for record in records if _home(record) == home]  # another topic may have the same id
    if not records:
        return None
    copies = [_copy(reader, record) for record in records]
    places = [copy.place for copy in copies if copy.place.topic == home]
    progress = []
    for group in reader.consumer_groups():
        offsets = reader.consumer_offsets(group).get(home, {})
        progress += [progress_event(group, offsets.get(place.queue_id, -1), place) for place in places if offsets]
    unknown = [
        "single deliveries: a store keeps committed offsets, retries and dead letters; offsets are those last written "
        "to disk"
    ]
    return life_of(_unique(records[0]) or msg_id, home, copies, progress, (), unknown)


def _unique(record: StoredMessage) -> str | None:
    return record.properties.get("UNIQ_KEY")


def _home(record: StoredMessage) -> str:
    """Return the topic to which the producer sent the message."""
    from mqfast.client.admin.life import PARKING_TOPICS
    from mqfast.message import DLQ_PREFIX, RETRY_PREFIX
    from mqfast.properties import REAL_TOPIC, origin_of

    topic = record.topic
    if topic in PARKING_TOPICS:
        topic = record.properties.get(REAL_TOPIC, topic)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        topic = origin_of(record.properties) or topic
    return topic


def _records(reader: StoreReader, msg_id: str, *, scan: bool) -> list[StoredMessage]:
    """Return all records of the message, in the order of the log."""
    from mqfast.errors import OffsetError

    unique: str | None = msg_id
    records: dict[int, StoredMessage] = {}
    try:
        record = reader.get_by_offset(msg_id)
    except OffsetError:
        pass  # a unique id
    else:
        records[record.physical_offset] = record
        unique = _unique(record)
    if unique is not None and scan:
        records |= {record.physical_offset: record for record in reader.scan() if _unique(record) == unique}
    elif unique is not None:
        for name in reader.topics():
            for record in reader.query(name, unique, _COPIES_MAX):
                if _unique(record) == unique:
                    records[record.physical_offset] = record
    return [records[offset] for offset in sorted(records)]


def _copy(reader: StoreReader, record: StoredMessage) -> Copy:
    from mqfast.client.admin.life import HALF_TOPIC, Copy, RecordPlace

    place = RecordPlace(None, record.topic, record.queue_id, record.record_queue_offset, record.physical_offset)
    if record.topic == HALF_TOPIC and place.queue_offset == 0:
        return Copy(record, place, None)
    unit = reader.get(place.topic, place.queue_id, place.queue_offset, 1)
    return Copy(record, place, len(unit) > 0 and unit[0].physical_offset == record.physical_offset)
