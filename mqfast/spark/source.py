"""The data source ``mqfast`` as Spark sees it: schemas, partitions, and the reading of one partition.

Room: the Spark adapter. Spark makes these objects in Python processes that know no session: once to plan, and again,
unpickled, in every task; whatever a task needs travels in its partition. Options, schemas, paths and offsets are
checked while planning, so that what is wrong shows before a job begins. It must never yield anything but Arrow
batches: rows are ten times slower.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqfast.errors import ConfigError
from mqfast.spark import options as table
from mqfast.spark.backend import Backend, ReadSettings, StoreReplaced, known_topics, log_of, open_access, stores_of
from mqfast.spark.local.leases import TaskLease, hold
from mqfast.spark.options import Options
from mqfast.spark.plan import Selection, Snapshot, Split, plan
from mqfast.spark.pushdown import Narrowed, narrow
from mqfast.spark.schema import (
    STORE,
    VIEWS,
    Column,
    arrow_schema,
    chosen_columns,
    columns_of_type,
    struct_type,
)
from mqfast.spark.selection import check_names, left_out_topics, present, select

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, DataSourceStreamReader

__all__ = ["BatchReader", "MqFastSource", "PushdownBatchReader"]


class MqFastSource(DataSource):
    """``format("mqfast")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqfast"

    def schema(self) -> StructType:
        """The columns that the options ask for.

        Raises: ConfigError, StoreNotFound.
        """
        options = table.parse(self.options, table.BATCH, table.STREAM)
        for _, one in stores_of(options):
            open_access(one).close()
        return struct_type(chosen_columns(options))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read. Raises: ConfigError."""
        options = table.parse(self.options, table.BATCH)
        kind = PushdownBatchReader if options.pushdown else BatchReader
        return kind(options, columns_of_type(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream read. Raises: ConfigError, also where pyspark is too old for streams."""
        try:
            from mqfast.spark.archive_then_live import StreamFromArchive
            from mqfast.spark.stream import StreamReader
            from mqfast.spark.stream_of_stores import StreamOfStores
        except ImportError as error:
            if error.name is None or not error.name.startswith("pyspark."):
                raise
            raise ConfigError(
                f"readStream: expected pyspark 4.2 or later, whose sources know limits and AvailableNow, found "
                f"{pyspark.__version__}; it reads and writes batches, and writes streams"
            ) from None

        options = table.parse(self.options, table.STREAM)
        columns = columns_of_type(schema, options)

        def live(of: Options) -> StreamReader | StreamOfStores:
            return StreamOfStores(of, columns) if of.has_stores else StreamReader(of, columns)

        return live(options) if options.starting_from is None else StreamFromArchive(options, columns, live)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch write. Raises: ConfigError."""
        options = table.parse(self.options, table.SINK)
        if options.namesrv is not None:
            from mqfast.spark.remote.sink import RemoteBatchWriter

            return RemoteBatchWriter(options, schema, overwrite)
        from mqfast.spark.local.sink import BatchWriter

        return BatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A stream write. Raises: ConfigError."""
        options = table.parse(self.options, table.SINK)
        if options.namesrv is not None:
            from mqfast.spark.remote.sink import RemoteStreamWriter

            return RemoteStreamWriter(options, schema, overwrite)
        from mqfast.spark.local.sink import StreamWriter

        return StreamWriter(options, schema, overwrite)


@dataclasses.dataclass
class ScanPartition(InputPartition):
    """What one task reads, and all that it needs for that."""

    options: Options
    columns: tuple[Column, ...]
    store_id: str
    piece: Split
    settings: ReadSettings
    lease: TaskLease | None = None
    store: str = ""
    may_be_gone: bool = False  # another store may be under the path by now


# More are not worth comparing with while reading.
MOST_TAGS: Final = 64

_log = logging.getLogger("mqfast.spark")
_frozen = False


def freeze_loaded() -> None:
    """Once per worker: what is loaded by now stays. Spark collects garbage after each task, which otherwise takes
    longer than many a task.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


_opened: tuple[str, str, Backend] | None = None


def cached_backend(options: Options, store_id: str) -> Backend:
    """The store of a task; a worker's next task of the same store finds it opened and listed.

    Raises: StoreNotFound where the store is another one than was planned.
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
    access = open_access(options)
    access.check(store_id)
    _opened = (place, store_id, access)
    return access


def read_part(part: ScanPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition.

    Raises: StoreNotFound where the store is another one, CorruptFile, DataLoss, StorageError.
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
    """How tasks read, as the options say; the same for batches and streams."""
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
    """Partitions of planned pieces; the same for batches and streams."""
    along_queues = dataclasses.replace(settings, queues=None)
    return [
        ScanPartition(options, columns, snapshot.store_id, piece, settings if piece.scan is not None else along_queues)
        for piece in pieces
    ]


def narrowed_settings(settings: ReadSettings, narrowed: Narrowed) -> ReadSettings:
    """The same, but only for rows that the filters of a query may keep."""
    tags = settings.tags
    if narrowed.tags is not None:
        tags = tuple(sorted(narrowed.tags if tags is None else narrowed.tags.intersection(tags)))
    if tags is not None and len(tags) > MOST_TAGS:
        tags = settings.tags
    low, high = narrowed.stored_ms
    return dataclasses.replace(settings, tags=tags, stored_from=low, stored_before=high)


class BatchReader(DataSourceReader):
    """One batch read: a snapshot when it is planned, pieces of it read by tasks."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self.options: Final = options
        self.columns: Final = columns
        self.narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Look at the store once, and divide what is to be read.

        Raises: ConfigError, DataLoss, StoreNotFound, StorageError.
        """
        found: list[InputPartition] = []
        with ExitStack() as stack:
            stores = [
                (name, options, stack.enter_context(closing(open_access(options))))
                for name, options in stores_of(self.options, begins=True)
            ]
            snapshots = [access.snapshot() for _, _, access in stores]
            if self.options.has_stores:
                check_names(snapshots, self.options, known_topics)
            for (name, options, access), snapshot in zip(stores, snapshots, strict=True):
                given = present(snapshot, options) if self.options.has_stores else options
                for part in self._parts(given, access, snapshot):
                    part.store = name
                    found.append(part)
        return found

    def _parts(self, o: Options, access: Backend, snapshot: Snapshot) -> list[ScanPartition]:
        if o.view != "messages":
            return partitions_of(o, self.columns, snapshot, access.view_pieces(snapshot, o), ReadSettings())
        narrowed = self.narrowed
        selection = narrowed.apply(select(snapshot, o, access))
        pieces = plan(
            snapshot, selection, access.log, order=o.order, partition_bytes=o.partition_bytes,
            min_partitions=o.min_partitions, max_partitions=o.max_partitions, within=narrowed.physical_offsets,
        )  # fmt: skip
        parts = partitions_of(
            o, self.columns, snapshot, pieces, narrowed_settings(read_settings(o, selection), narrowed)
        )
        lease = access.lease(pieces, o.lease_ttl)
        if lease is not None:
            for number, part in enumerate(parts):
                part.lease = dataclasses.replace(lease, number=number, tasks=len(parts))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in Arrow batches."""
        freeze_loaded()
        if isinstance(partition, ScanPartition):  # else Spark made a partition of its own: there is nothing to read
            yield from read_part(partition)


class PushdownBatchReader(BatchReader):
    """A batch read that evaluates filters itself; see BatchReader."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows the reading; Spark still evaluates all of them."""
        if self.options.view == "messages":
            self.narrowed = narrow(filters)
        return filters
