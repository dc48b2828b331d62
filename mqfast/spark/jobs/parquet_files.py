"""Rows of a piece of a store or of a queue as Parquet files, a file for each topic and day, in a task.

Rows are kept for each file until a row group is full; memory is bounded for any number of topics. A repeated task
writes the same files: names and contents follow from the piece alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from mqfast.spark.archive_manifest import ArchivedFile, ArchivedQueue, path_of, path_of_queue
from mqfast.spark.durable_files import DurableFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["PieceFiles", "by_topic_and_day"]

_DAY_US: Final = 86_400_000_000
_MOST_PENDING_BYTES: Final = 48 << 20
_MOST_OPEN: Final = 200
# Columns with repeated values; for the other columns a dictionary only takes time.
_REPEATING: Final = ["topic", "tags", "bornHost", "storeHost"]
_WITHOUT_STATISTICS: Final = frozenset({"body", "properties", "keys", "uniqKey", "bornHost", "storeHost"})


def by_topic_and_day(batch: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """Yield the rows of a batch by topic and UTC day of the store time, each part in the order of the batch."""
    import numpy as np
    import pyarrow as pa

    if batch.num_rows == 0:
        return
    topics = batch.column("topic").dictionary_encode()
    days = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // _DAY_US
    names = topics.dictionary.to_pylist()
    codes = (days - days.min()) * len(names) + topics.indices.to_numpy()
    if codes.min() == codes.max():
        yield names[0], str(np.datetime64(int(days[0]), "D")), batch
        return
    order = np.argsort(codes, kind="stable")
    batch, codes = batch.take(pa.array(order)), codes[order]
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, end in pairwise(cuts):
        row = int(order[start])
        day = str(np.datetime64(int(days[row]), "D"))
        yield names[topics.indices[row].as_py()], day, batch.slice(start, end - start)


@dataclass
class _Open:
    """A file being written."""

    path: str
    topic: str
    date: str
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0
    file: DurableFile | None = None
    writer: pq.ParquetWriter | None = None
    rows: int = 0
    first: int = 0
    last: int = 0


class PieceFiles:
    """The files of a piece of the log; a context manager: an error removes unfinished files.

    Args: queue: broker and queue id if the piece is of a queue; run: number of the archive's run in that case.
    Thread: one.
    """

    def __init__(
        self, archive: str, piece_start: int, piece_end: int, compression: str, level: int | None,
        queue: tuple[str, int] | None = None, run: int = 0,
    ) -> None:  # fmt: skip
        self._archive: Final = archive
        self._piece: Final = (piece_start, piece_end)
        self._queue: Final = queue
        self._path_of: Final[Callable[[str, str, int], str]] = partial(_path, queue, run, self._piece)
        self._ends: Final[dict[tuple[str, int], tuple[int, int]]] = {}
        self._compression: Final = compression
        self._level: Final = level
        self._open: Final[dict[tuple[str, str], _Open]] = {}
        self._part = 0
        self._pending_bytes = 0
        self._done: list[ArchivedFile] = []

    def __enter__(self) -> PieceFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        for entry in self._open.values():
            if entry.file is not None:
                entry.file.discard()
            if entry.writer is not None:
                entry.writer.close()  # discarded; a later close by the garbage collector would raise without a caller

    def add(self, batch: pa.RecordBatch, topics: frozenset[str] | None = None) -> None:
        """Add the rows of these topics, in log order."""
        for topic, date, rows in by_topic_and_day(batch):
            if topics is None or topic in topics:
                self._take(topic, date, rows)
        while self._pending_bytes > _MOST_PENDING_BYTES:
            self._write(max(self._open.values(), key=lambda entry: entry.pending_bytes))
            if sum(entry.writer is not None for entry in self._open.values()) >= _MOST_OPEN:
                self._end_part()

    def _take(self, topic: str, date: str, rows: pa.RecordBatch) -> None:
        entry = self._open.get((topic, date))
        if entry is None:
            entry = self._open[topic, date] = _Open(self._path_of(topic, date, self._part), topic, date)
        offsets = rows.column("physicalOffset")
        if entry.rows == 0:
            entry.first = offsets[0].as_py()
        entry.last = offsets[-1].as_py()
        entry.rows += rows.num_rows
        self._note_queues(topic, rows)
        entry.pending.append(rows)
        size = rows.nbytes
        entry.pending_bytes += size
        self._pending_bytes += size

    def _note_queues(self, topic: str, rows: pa.RecordBatch) -> None:
        """Note the added messages of each queue."""
        import pyarrow as pa

        offsets = pa.table({name: rows.column(name) for name in ("queueId", "queueOffset")})
        bounds = offsets.group_by("queueId").aggregate([("queueOffset", "min"), ("queueOffset", "max")])
        for row in bounds.to_pylist():
            first, end = row["queueOffset_min"], row["queueOffset_max"] + 1
            known = self._ends.get((topic, row["queueId"]), (first, end))
            self._ends[topic, row["queueId"]] = (min(first, known[0]), max(end, known[1]))

    def queues(self) -> list[ArchivedQueue]:
        """Return the added messages of each queue."""
        broker = "" if self._queue is None else self._queue[0]
        return [ArchivedQueue(broker, *key, *bounds) for key, bounds in sorted(self._ends.items())]

    def _write(self, entry: _Open) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_batches(entry.pending)
        if entry.writer is None:
            entry.file = DurableFile(os.path.join(self._archive, entry.path))
            known = table.schema.names
            entry.writer = pq.ParquetWriter(
                entry.file, table.schema, compression=self._compression, compression_level=self._level,
                use_dictionary=[name for name in _REPEATING if name in known],
                write_statistics=[name for name in known if name not in _WITHOUT_STATISTICS],
            )  # fmt: skip
        entry.writer.write_table(table, row_group_size=table.num_rows)
        self._pending_bytes -= entry.pending_bytes
        entry.pending, entry.pending_bytes = [], 0

    def _end_part(self) -> None:
        for entry in self._open.values():
            if entry.pending:
                self._write(entry)
            assert entry.writer is not None
            assert entry.file is not None
            entry.writer.close()
            entry.file.commit()
            broker, queue_id = self._queue or ("", -1)
            self._done.append(
                ArchivedFile(
                    path=entry.path, topic=entry.topic, date=entry.date, piece_start=self._piece[0],
                    piece_end=self._piece[1], rows=entry.rows, bytes=entry.file.bytes, crc=entry.file.crc,
                    min_physical_offset=entry.first, max_physical_offset=entry.last, broker=broker, queue_id=queue_id,
                )
            )  # fmt: skip
        self._open.clear()
        self._part += 1

    def close(self) -> list[ArchivedFile]:
        """Finish all files; durable on return."""
        self._end_part()
        return self._done


def _path(queue: tuple[str, int] | None, run: int, piece: tuple[int, int], topic: str, date: str, part: int) -> str:
    if queue is None:
        return path_of(topic, date, *piece, part)
    return path_of_queue(topic, date, *queue, *piece, run, part)
