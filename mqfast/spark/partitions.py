"""The partitions of a read: the input of each task, and the reading of a partition.

Spark pickles a partition and reads the partition in a Python process of an executor: a partition holds all that the
task needs. Every batch of rows is an Arrow batch: rows are ten times slower.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from mqfast.spark.backend import Backend, ReadSettings, StoreReplaced, log_of
from mqfast.spark.backends import open_backend
from mqfast.spark.local.leases import TaskLease, hold
from mqfast.spark.options import Options
from mqfast.spark.plan import Selection, Snapshot, Split
from mqfast.spark.pushdown import Narrowed
from mqfast.spark.schema import STORE, VIEWS, Column, arrow_schema
from mqfast.spark.selection import left_out_topics

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MOST_TAGS", "ScanPartition", "cached_backend", "freeze_loaded", "narrowed_settings", "partitions_of", "read_part",
    "read_settings",
]  # fmt: skip

# With more tags the comparison costs more than the rows that it leaves out.
MOST_TAGS: Final = 64

_log = logging.getLogger("mqfast.spark")


@dataclasses.dataclass
class ScanPartition(InputPartition):
    """The input of one task, complete: the task needs nothing else."""

    options: Options
    columns: tuple[Column, ...]
    store_id: str
    piece: Split
    settings: ReadSettings
    lease: TaskLease | None = None
    store: str = ""
    may_be_gone: bool = False  # the directory may hold another store now


_frozen = False


def freeze_loaded() -> None:
    """Exclude all loaded objects from garbage collection, once per worker process.

    Spark collects garbage after each task; without the freeze a collection can take longer than the task.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


_opened: tuple[str, str, Backend] | None = None


def cached_backend(options: Options, store_id: str) -> Backend:
    """Return the backend of a task, open and listed if the worker's previous task had the same store.

    Raises: StoreNotFound for another store than the planned one.
    """
    global _opened
    place = repr(options.place)
    if _opened is not None and _opened[:2] == (place, store_id):
        access = _opened[2]
        access.check(store_id)
        return access
    if _opened is not None:
        _opened[2].close()
        _opened = None
    access = open_backend(options)
    access.check(store_id)
    _opened = (place, store_id, access)
    return access


def read_part(part: ScanPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition.

    Raises: StoreNotFound for another store than the planned one, CorruptFile, DataLoss, StorageError.
    """
    try:
        access = cached_backend(part.options, part.store_id)
    except StoreReplaced as error:
        if not part.may_be_gone:
            raise
        _log.warning("%s: nothing of it is read", error)
        return
    try:
        with hold(part.lease):
            yield from _batches_of(part, access)
    finally:
        access.release_files()


def _batches_of(part: ScanPartition, access: Backend) -> Iterator[pa.RecordBatch]:
    named = [column.name for column in part.columns]
    if STORE.name not in named:
        yield from _rows_of(part, access, part.columns)
        return
    import pyarrow as pa

    # A batch without columns would not know how many rows it has.
    columns = tuple(column for column in part.columns if column.name != STORE.name) or VIEWS[part.options.view][1:2]
    schema = arrow_schema(part.columns)
    for batch in _rows_of(part, access, columns):
        arrays = dict(zip((column.name for column in columns), batch.columns, strict=True))
        arrays[STORE.name] = pa.repeat(pa.scalar(part.store or part.options.path, pa.string()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([arrays[name] for name in named], schema=schema)


def _rows_of(part: ScanPartition, access: Backend, columns: tuple[Column, ...]) -> Iterator[pa.RecordBatch]:
    if part.options.view != "messages":
        yield from access.view_rows(part.piece, columns, part.options)
        return
    if part.piece.scan is not None:
        yield from log_of(access).scan(part.piece.scan, columns, part.settings)
    for piece in part.piece.queues:
        yield from access.gather(piece, columns, part.settings)


def read_settings(options: Options, selection: Selection) -> ReadSettings:
    """Return the read settings of the options, for batches and streams."""
    bounds = None if selection.whole else {(r.topic, r.queue_id): (r.start, r.end) for r in selection.ranges}
    tags = None
    if options.tag_filter is not None and options.tag_filter.strip() != "*":
        tags = tuple(tag.strip() for tag in options.tag_filter.split("||") if tag.strip())
    return ReadSettings(
        batch_bytes=options.batch_bytes,
        verify_crc=options.verify_crc,
        fail_on_data_loss=options.fail_on_data_loss,
        queues=bounds,
        hidden=left_out_topics(options),
        tags=tags,
        sql=options.sql_filter,
        decompress=options.decompress,
        max_body_bytes=options.max_body_bytes,
    )


def partitions_of(
    options: Options, columns: tuple[Column, ...], snapshot: Snapshot, pieces: Sequence[Split], settings: ReadSettings
) -> list[ScanPartition]:
    """Return the partitions of planned splits, for batches and streams."""
    along_queues = dataclasses.replace(settings, queues=None)
    return [
        ScanPartition(options, columns, snapshot.store_id, piece, settings if piece.scan is not None else along_queues)
        for piece in pieces
    ]


def narrowed_settings(settings: ReadSettings, narrowed: Narrowed) -> ReadSettings:
    """Return the settings restricted to rows that the filters of a query may keep."""
    tags = settings.tags
    if narrowed.tags is not None:
        tags = tuple(sorted(narrowed.tags if tags is None else narrowed.tags.intersection(tags)))
    if tags is not None and len(tags) > MOST_TAGS:
        tags = settings.tags
    low, high = narrowed.stored_ms
    return dataclasses.replace(settings, tags=tags, stored_from=low, stored_before=high)
