"""The data source ``mqfast`` as Spark sees it: schemas, partitions, and the reading of one partition.

Room: the Spark adapter. Spark makes these objects in Python processes that know no session: once to plan, and again,
unpickled, in every task; whatever a task needs travels in its partition. Options, schemas, paths and offsets are
checked while planning, so that what is wrong shows before a job begins. It must never yield anything but Arrow
batches: rows are ten times slower.
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
        """The name of the format."""
        return "mqfast"

    def schema(self) -> StructType:
        """The columns that the options ask for.

        Raises: ConfigError, StoreNotFound.
        """
        options = table.parse(self.options, table.BATCH, table.STREAM)
        for _, one in stores_of(options):
            open_backend(one).close()
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
