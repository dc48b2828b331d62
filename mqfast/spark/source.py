"""The data source ``mqfast`` of Spark: schemas, readers and writers.

Spark creates these objects in Python processes without a session: in the planner and, unpickled, in every task. All
that a task needs is in the partition (``partitions.py``). Options, schemas, paths and offsets are checked while
planning, before a job begins. Every batch of rows is an Arrow batch: rows are ten times slower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqfast.errors import ConfigError
from mqfast.spark import options as table
from mqfast.spark.backend import Backend, ReadSettings
from mqfast.spark.backends import known_topics, open_backend, stores_of
from mqfast.spark.options import Options
from mqfast.spark.partitions import (
    ScanPartition,
    freeze_loaded,
    narrowed_settings,
    partitions_of,
    read_part,
    read_settings,
)
from mqfast.spark.plan import Snapshot, plan
from mqfast.spark.pushdown import Narrowed, narrow
from mqfast.spark.schema import Column, chosen_columns, columns_of_type, struct_type
from mqfast.spark.selection import check_names, present, select

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, DataSourceStreamReader

__all__ = ["BatchReader", "MqFastSource", "PushdownBatchReader"]


class MqFastSource(DataSource):
    """``format("mqfast")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mqfast"

    def schema(self) -> StructType:
        """Return the columns that the options select.

        Raises: ConfigError, StoreNotFound.
        """
        options = table.parse(self.options, table.BATCH, table.STREAM)
        for _, of_store in stores_of(options):
            open_backend(of_store).close()
        return struct_type(chosen_columns(options))

    def reader(self, schema: StructType) -> BatchReader:
        """Return a batch reader. Raises: ConfigError."""
        options = table.parse(self.options, table.BATCH)
        kind = PushdownBatchReader if options.pushdown else BatchReader
        return kind(options, columns_of_type(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader. Raises: ConfigError, also for a pyspark without streams from Python sources."""
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
        """Return a batch writer. Raises: ConfigError."""
        options = table.parse(self.options, table.SINK)
        if options.namesrv is not None:
            from mqfast.spark.remote.sink import RemoteBatchWriter

            return RemoteBatchWriter(options, schema, overwrite)
        from mqfast.spark.local.sink import BatchWriter

        return BatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return a stream writer. Raises: ConfigError."""
        options = table.parse(self.options, table.SINK)
        if options.namesrv is not None:
            from mqfast.spark.remote.sink import RemoteStreamWriter

            return RemoteStreamWriter(options, schema, overwrite)
        from mqfast.spark.local.sink import StreamWriter

        return StreamWriter(options, schema, overwrite)


class BatchReader(DataSourceReader):
    """A batch read: a snapshot at planning, and the splits that tasks read."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self.options: Final = options
        self.columns: Final = columns
        self.narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Take a snapshot of each store, and divide the selected messages into partitions.

        Raises: ConfigError, DataLoss, StoreNotFound, StorageError.
        """
        partitions: list[InputPartition] = []
        with ExitStack() as stack:
            stores = [
                (name, options, stack.enter_context(closing(open_backend(options))))
                for name, options in stores_of(self.options, begins=True)
            ]
            snapshots = [access.snapshot() for _, _, access in stores]
            if self.options.has_stores:
                check_names(snapshots, self.options, known_topics)
            for (name, options, access), snapshot in zip(stores, snapshots, strict=True):
                given = present(snapshot, options) if self.options.has_stores else options
                for part in self._parts(given, access, snapshot):
                    part.store = name
                    partitions.append(part)
        return partitions

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
        """Yield the rows of a partition, in Arrow batches."""
        freeze_loaded()
        if isinstance(partition, ScanPartition):  # any other partition is Spark's own and has no rows
            yield from read_part(partition)


class PushdownBatchReader(BatchReader):
    """A batch read that evaluates filters; see BatchReader."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read by the filters; Spark still evaluates all of them."""
        if self.options.view == "messages":
            self.narrowed = narrow(filters)
        return filters
