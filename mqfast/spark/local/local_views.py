"""The views of a local store other than ``messages``: queues, files, audit, consumequeue and groups.

Each view is divided among tasks, and each task makes the rows of a split; only ``consumequeue`` has many rows. Facts of
a record are read from the record, not from a queue or a file name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import ConfigError, CorruptFile, OffsetError
from mqfast.spark.backend import group_row
from mqfast.spark.options import Options, option_name
from mqfast.spark.plan import OffsetRange, ScanRange, Snapshot, Split, plan, scan_pieces
from mqfast.spark.schema import Column, arrow_schema
from mqfast.spark.selection import select, selected_queues
from mqfast.store.reader.column_scan import LogColumns
from mqfast.store.reader.gather import Gather

if TYPE_CHECKING:
    import pyarrow as pa

    from mqfast.spark.local.file_backend import FileBackend

__all__ = ["view_pieces", "view_rows"]

_QUEUES_AT_ONCE: Final = 1000
_ROWS_AT_ONCE: Final = 1 << 16
_OF_QUEUES: Final = (
    "subscribe", "assign", "subscribe_pattern", "starting_offsets", "ending_offsets", "starting_timestamp",
    "ending_timestamp", "starting_offsets_by_timestamp", "ending_offsets_by_timestamp",
)  # fmt: skip


def _refuse(options: Options, names: Sequence[str]) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ConfigError(f"option {option_name(name)}: view {options.view} does not have it")


def view_pieces(access: FileBackend, snapshot: Snapshot, options: Options) -> list[Split]:
    """Return the splits of the view.

    Raises: ConfigError, DataLoss.
    """
    view = options.view
    if view in ("files", "audit"):
        _refuse(options, _OF_QUEUES)
    if view in ("queues", "groups"):
        _refuse(options, _OF_QUEUES[3:])
    whole = ScanRange(snapshot.log_start, snapshot.log_end)
    if view == "files":
        return [Split(scan=whole)]
    if view == "audit":
        return _audit_pieces(access, snapshot, options)
    if view == "consumequeue":
        chosen = select(snapshot, options, access)
        return plan(
            snapshot, type(chosen)(chosen.ranges), access, order="queue", partition_bytes=options.partition_bytes * 8,
            min_partitions=options.min_partitions, max_partitions=options.max_partitions,
        )  # fmt: skip
    if view == "groups":  # a group may consume any topic
        options = replace(options, include_system_topics=True)
    queues = [OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in selected_queues(snapshot, options)]
    if view == "groups":
        return [Split(queues=tuple(queues))]
    return [Split(queues=tuple(queues[i : i + _QUEUES_AT_ONCE])) for i in range(0, len(queues), _QUEUES_AT_ONCE)]


def _audit_pieces(access: FileBackend, snapshot: Snapshot, options: Options) -> list[Split]:
    """Return parts of files, with a row each."""
    pieces: list[Split] = []
    at = snapshot.log_start
    for _, start, size in access.reader.log_files():
        end = min(start + size, snapshot.log_end)
        if start >= end:
            break
        if start > at:  # a missing file gets a row
            pieces.append(Split(scan=ScanRange(at, start)))
        parts = max(1, round((end - start) / options.partition_bytes))
        pieces += [Split(scan=piece) for piece in scan_pieces(start, end, parts, access)]
        at = end
    return pieces


def view_rows(
    access: FileBackend, piece: Split, columns: Sequence[Column], options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split.

    Raises: CorruptFile, DataLoss, StorageError.
    """
    import pyarrow as pa

    makers = {"queues": _queues, "files": _files, "audit": _audit, "groups": _groups}
    schema = arrow_schema(columns)
    if options.view == "consumequeue":
        for arrays in _units(access, piece):
            yield pa.RecordBatch.from_arrays([arrays[c.name] for c in columns], schema=schema)
        return
    for rows in makers[options.view](access, piece):
        if rows:
            yield pa.RecordBatch.from_pylist([{c.name: row[c.name] for c in columns} for row in rows], schema=schema)


Rows = Iterator[list[dict[str, Any]]]


def _store_time_us(access: FileBackend, physical_offset: int | None) -> int | None:
    """Return the store time of the record at a physical offset, microseconds; None without a whole record."""
    if physical_offset is None:
        return None
    try:
        return access.reader.get_by_offset(physical_offset).store_timestamp * 1000
    except (OffsetError, CorruptFile):
        return None


def _queues(access: FileBackend, piece: Split) -> Rows:
    rows = []
    for q in piece.queues:
        first = last = None
        if q.start < q.end:
            first = access.reader.unit_at(q.topic, q.queue_id, q.start).physical_offset
            last = access.reader.unit_at(q.topic, q.queue_id, q.end - 1).physical_offset
        rows.append({
            "topic": q.topic, "queueId": q.queue_id, "minOffset": q.start, "maxOffset": q.end,
            "messages": q.end - q.start, "minTimestamp": _store_time_us(access, first),
            "maxTimestamp": _store_time_us(access, last), "minPhysicalOffset": first, "maxPhysicalOffset": last,
        })  # fmt: skip
    yield rows


def _files(access: FileBackend, piece: Split) -> Rows:
    assert piece.scan is not None
    rows = []
    for path, start, size in access.reader.log_files():
        rows.append({
            "path": path, "startOffset": start, "fileBytes": size,
            "usedBytes": min(max(piece.scan.end - start, 0), size), "modified": access.modified_ms(path) * 1000,
            "minTimestamp": _store_time_us(access, start),
        })  # fmt: skip
    yield rows


def _audit(access: FileBackend, piece: Split) -> Rows:
    """Scan a part of a file with every checksum, and count."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert piece.scan is not None
    start, end = piece.scan.start, piece.scan.end
    names = [(name, name, False) for name in ("physical_offset", "size", "body_size", "store_timestamp", "crc_ok")]
    gather = Gather(
        names, batch_bytes=4 << 20, batch_rows=_ROWS_AT_ONCE, micros=True, check_crc=True, bad="mark", queued_only=False
    )
    run = LogColumns(access.reader, gather, start, end, skip_damage=True, skip_lost=True)
    records = record_bytes = body_bytes = crc_errors = 0
    first_bad: tuple[int, str] | None = None
    low: int | None = None
    high: int | None = None
    for batch in run:
        records_batch = pa.record_batch(batch)
        ok = records_batch.column("crc_ok")
        bad = records_batch.num_rows - (pc.sum(ok).as_py() or 0)
        if bad:
            crc_errors += bad
            place = pc.min(records_batch.filter(pc.invert(ok)).column("physical_offset")).as_py()
            first_bad = min(first_bad, (place, "crc")) if first_bad is not None else (place, "crc")
            records_batch = records_batch.filter(ok)
        if records_batch.num_rows:
            records += records_batch.num_rows
            record_bytes += pc.sum(records_batch.column("size")).as_py()
            body_bytes += pc.sum(records_batch.column("body_size")).as_py()
            span = pc.min_max(records_batch.column("store_timestamp").cast(pa.int64())).as_py()
            low = span["min"] if low is None else min(low, span["min"])
            high = span["max"] if high is None else max(high, span["max"])
    if run.damage:
        first_bad = min(first_bad, run.damage[0]) if first_bad is not None else run.damage[0]
    yield [{
        "path": access.log_path(start), "startOffset": start, "endOffset": end, "records": records,
        "recordBytes": record_bytes, "bodyBytes": body_bytes, "crcErrors": crc_errors, "gaps": len(run.damage),
        "gapBytes": run.skipped_bytes, "firstBadOffset": first_bad[0] if first_bad else None,
        "firstBadReason": first_bad[1] if first_bad else None, "minTimestamp": low, "maxTimestamp": high,
    }]  # fmt: skip


def _units(access: FileBackend, piece: Split) -> Iterator[dict[str, pa.Array]]:
    """Yield units as columns: there may be as many units as messages."""
    import numpy as np
    import pyarrow as pa

    for q in piece.queues:
        offset = q.start
        for numbers in _unit_numbers(access, q):
            n = len(numbers["physical"])
            own = numbers.get("offset", np.arange(offset, offset + n, dtype=np.int64))
            offset += n
            yield {
                "topic": pa.repeat(pa.scalar(q.topic, pa.string()), n),
                "queueId": pa.repeat(pa.scalar(q.queue_id, pa.int32()), n),
                "queueOffset": pa.array(own, pa.int64()),
                "physicalOffset": pa.array(numbers["physical"], pa.int64()),
                "msgSize": pa.array(numbers["size"], pa.int32()),
                "tagsCode": pa.array(numbers["tags"], pa.int64()),
                "messages": pa.array(numbers.get("messages", np.ones(n, dtype=np.int32)), pa.int32()),
            }


def _unit_numbers(access: FileBackend, q: OffsetRange) -> Iterator[dict[str, Any]]:
    import numpy as np

    reader = access.reader
    if reader.has_plain_units(q.topic, q.queue_id):
        fields = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
        for data in reader.unit_bytes(q.topic, q.queue_id, q.start, q.end):
            rows = np.frombuffer(data, fields)
            yield {name: rows[name].astype(rows[name].dtype.newbyteorder("=")) for name in ("physical", "size", "tags")}
        return
    for units in reader.units(q.topic, q.queue_id, q.start, q.end):
        physical, size, tags, offset, messages = (list(column) for column in zip(*units, strict=True))
        yield {"physical": physical, "size": size, "tags": tags, "offset": offset, "messages": messages}


def _groups(access: FileBackend, piece: Split) -> Rows:
    bounds = {(q.topic, q.queue_id): (q.start, q.end) for q in piece.queues}
    rows = []
    for group in access.reader.consumer_groups():
        for (topic, queue_id), offset in sorted(access.group_offsets(group).items()):
            rows.append(group_row(group, topic, queue_id, offset, bounds.get((topic, queue_id))))
    yield rows
