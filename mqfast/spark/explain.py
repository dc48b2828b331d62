"""The plan of a read as text: Spark's ``explain`` cannot show the plan of a Python source.

Plans as a batch read does, and reads no message.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqfast.spark import options as table
from mqfast.spark.partitions import ScanPartition
from mqfast.spark.plan import Split
from mqfast.spark.schema import chosen_columns
from mqfast.spark.source import BatchReader

__all__ = ["explain"]


def explain(options: Mapping[str, str]) -> str:
    """Return the plan of a batch read with these options, ``path`` among them: a line for the whole, and a line for
    each partition with store or broker, queues and offsets.

    Raises: as the read.
    """
    given = table.parse({name: str(value) for name, value in options.items()}, table.BATCH)
    reader = BatchReader(given, chosen_columns(given))
    parts = [part for part in reader.partitions() if isinstance(part, ScanPartition)]
    messages = sum(r.end - r.start for part in parts for r in part.piece.queues)
    log = sum(part.piece.scan.end - part.piece.scan.start for part in parts if part.piece.scan is not None)
    stores = len({part.store for part in parts})
    much = [f"{messages} messages along queues"] if messages else []
    much += [f"{log} bytes of log"] if log else []
    lines = [
        f"mqfast {given.view} of {given.namesrv or given.path or 'several paths'}: {', '.join(much) or 'nothing'}, "
        f"{stores} {'brokers' if given.namesrv is not None else 'stores'}, {len(parts)} partitions",
        f"  columns: {', '.join(column.name for column in reader.columns)}",
    ]
    if given.tag_filter is not None:
        lines.append(f"  tags: {given.tag_filter}")
    if given.sql_filter is not None:
        lines.append(f"  SQL92, by the brokers: {given.sql_filter}")
    for number, part in enumerate(parts):
        lines.append(f"  partition {number}: {part.store}: {_places(part.piece)}")
    return "\n".join(lines)


def _places(piece: Split) -> str:
    if piece.scan is not None:
        return f"log from {piece.scan.start} to {piece.scan.end}"
    return ", ".join(f"{r.topic}/{r.queue_id} from {r.start} to {r.end}" for r in piece.queues)
