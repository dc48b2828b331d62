"""A data source that does nothing: what Spark itself takes for so many tasks and rows, whatever a source does.

``rows`` rows of the columns of ``bench_spark.py`` in ``tasks`` tasks, each of which makes one batch and gives it again
and again; as a stream one such read for each of ``batches`` batches. Workers find it by PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = {
    "topic": "string", "queueId": "int", "queueOffset": "bigint", "physicalOffset": "bigint", "msgSize": "int",
    "bodySize": "int", "bornTimestamp": "timestamp", "storeTimestamp": "timestamp", "body": "binary",
}  # fmt: skip
BODY_BYTES = 890
BATCH_BYTES = 1 << 20
MOST_ROWS = 1 << 16


@dataclass
class Share(InputPartition):
    """What one task gives."""

    columns: tuple[str, ...]
    rows: int


def batch_of(columns: tuple[str, ...], rows: int) -> pa.RecordBatch:
    """Some rows, as the source of stores would give them."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
    }  # fmt: skip
    values = {"string": "Topic1", "binary": b"x" * BODY_BYTES, "int": 3, "bigint": 4, "timestamp": 0}
    fields = [pa.field(name, kinds[COLUMNS[name]], nullable=False) for name in columns]
    arrays = [pa.array([values[COLUMNS[name]]] * rows, kinds[COLUMNS[name]]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def give(share: Share) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    from mqfast.spark.partitions import freeze_loaded

    freeze_loaded()  # as the source does: it is not the source's work that is left out, but its reading
    each = min(MOST_ROWS, BATCH_BYTES // BODY_BYTES if "body" in share.columns else MOST_ROWS, share.rows)
    if each:
        batch = batch_of(share.columns, each)
        for _ in range(share.rows // each):
            yield batch
        if share.rows % each:
            yield batch.slice(0, share.rows % each)


class FloorSource(DataSource):
    """``format("floor")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "floor"

    def schema(self) -> str:
        """The columns asked for."""
        return ", ".join(f"{name} {COLUMNS[name]} not null" for name in self.options["columns"].split(","))

    def reader(self, schema: StructType) -> FloorReader:
        """A batch read."""
        return FloorReader(dict(self.options))

    def streamReader(self, schema: StructType) -> FloorStream:
        """A stream."""
        return FloorStream(dict(self.options))


class FloorReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: dict[str, str]) -> None:
        self.tasks, self.rows = int(options["tasks"]), int(options["rows"])
        self.columns = tuple(options["columns"].split(","))

    def partitions(self) -> list[InputPartition]:
        """Equal shares."""
        return [Share(self.columns, self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One share."""
        assert isinstance(partition, Share)
        return give(partition)


class FloorStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of ``batches`` equal batches."""

    def __init__(self, options: dict[str, str]) -> None:
        self.batches = int(options["batches"])
        self.batch = FloorReader(options)

    def initialOffset(self) -> dict[str, int]:
        """Before all."""
        return {"n": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is known."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """One batch further."""
        return {"n": min(start["n"] + 1, self.batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The same for each batch."""
        return self.batch.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One share."""
        return self.batch.read(partition)
