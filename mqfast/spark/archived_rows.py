"""The files of an archive as the rows of a read: selection of files, and conversion of rows.

``read_archived`` runs in tasks. The job ``archive`` keeps records as stored; here bodies are decompressed and
properties decoded, as for a store. Each file is checked against the manifest, and no message that the live source would
return is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from mqfast import properties as _properties
from mqfast.errors import ConfigError, CorruptFile, UsageError
from mqfast.message import encode_message_id
from mqfast.spark.archive_manifest import ArchivedFile, Manifest, manifests, queue_ends
from mqfast.spark.bodies import decompressed
from mqfast.spark.durable_files import crc_of
from mqfast.spark.options import Options
from mqfast.spark.schema import STORE, Column, arrow_schema
from mqfast.spark.selection import wants_queue

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArchivePartition", "archive_ends", "archive_of", "check_archive", "read_archived", "wanted_files"]

_PREFIX: Final = "archive:"
_ROWS: Final = 4096
# The columns that decompression needs before the columns of a read.
_SYS_FLAG, _PHYSICAL_OFFSET = "sysFlag", "physicalOffset"
_MADE: Final = frozenset({"msgId", STORE.name})


@dataclass
class ArchivePartition(InputPartition):
    """The files of a task; ``archive``: the directory of the relative paths."""

    archive: str
    files: tuple[ArchivedFile, ...]
    options: Options
    columns: tuple[Column, ...]


def archive_of(starting_from: str) -> str:
    """Return the directory that the option startingFrom names. Raises: ConfigError."""
    if not starting_from.startswith(_PREFIX) or len(starting_from) == len(_PREFIX):
        raise ConfigError(f"option startingFrom: expected archive:PATH, found {starting_from!r}")
    return os.path.abspath(starting_from.removeprefix(_PREFIX).removeprefix("file://"))


def wanted_files(manifests: Sequence[Manifest], options: Options) -> list[ArchivedFile]:
    """Return the files with rows of a read, in the order of archiving."""
    return [file for manifest in manifests for file in manifest.files if wants_queue(options, file.topic)]


def archive_ends(archive: str, runs: Sequence[Manifest], options: Options) -> dict[tuple[str, str, int], int]:
    """Return the next queue offset of each queue to read (broker, topic, queue id).

    Manifests of older releases lack the offsets, which are then read from the rows.
    Raises: CorruptFile.
    """
    ends = queue_ends(runs)
    if ends is None:
        ends = _ends_of_rows(archive, wanted_files(runs, options))
    return {key: end for key, end in ends.items() if wants_queue(options, key[1], key[2])}


def _ends_of_rows(archive: str, files: Sequence[ArchivedFile]) -> dict[tuple[str, str, int], int]:
    import pyarrow.parquet as pq

    ends: dict[tuple[str, str, int], int] = {}
    for file in files:
        table = pq.ParquetFile(_checked(archive, file)).read(["queueId", "queueOffset"])
        for row in table.group_by("queueId").aggregate([("queueOffset", "max")]).to_pylist():
            key = (file.broker, file.topic, row["queueId"])
            ends[key] = max(ends.get(key, 0), row["queueOffset_max"] + 1)
    return ends


def check_archive(archive: str, options: Options) -> list[Manifest]:
    """Return the manifests of an archive that precedes a stream with these options.

    Raises: UsageError for a missing archive; ConfigError for options that an archive cannot serve; CorruptFile.
    """
    runs = manifests(archive)
    if not runs:
        raise UsageError(f"option startingFrom: {archive}: expected an archive of the job archive, found no manifest")
    if options.verify_crc == "mark":
        raise ConfigError(
            "options startingFrom and verifyCrc: an archive has no column crcOk; its job compares checksums"
        )
    if options.properties == "raw" and any(manifest.properties != "raw" for manifest in runs):
        raise ConfigError("option properties: raw needs an archive that was written with --properties raw")
    return runs


def _checked(archive: str, file: ArchivedFile) -> str:
    """Return the path of a file after comparison with the manifest. Raises: CorruptFile."""
    path = os.path.join(archive, file.path)
    try:
        crc = crc_of(path)
    except FileNotFoundError:
        raise CorruptFile(
            "a file of the archive is gone", path=path, expected=f"{file.bytes} bytes", found="none"
        ) from None
    if crc != file.crc:
        raise CorruptFile("a file is not as its manifest says", path=path, expected=file.crc, found=crc)
    return path


def read_archived(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files as a stream returns them. Raises: CorruptFile."""
    for file in part.files:
        yield from _rows_of(_checked(part.archive, file), file, part.options, part.columns)


def _rows_of(path: str, file: ArchivedFile, options: Options, columns: tuple[Column, ...]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    stored = pq.ParquetFile(path)
    tags = None
    if options.tag_filter is not None and options.tag_filter.strip() != "*":
        tags = [tag.strip() for tag in options.tag_filter.split("||") if tag.strip()]
    queues = None
    if options.assign is not None:
        queues = [queue_id for topic, queue_id in options.assign if topic == file.topic]
    needed = {column.name for column in columns} - _MADE | {_SYS_FLAG, _PHYSICAL_OFFSET}
    needed |= {"storeHost"} if any(column.name == "msgId" for column in columns) else set()
    needed |= {"tags"} if tags is not None else set()
    needed |= {"queueId"} if queues is not None else set()
    # Batches of about the size in the options, estimated from the file.
    rows = max(1, min(_ROWS, options.batch_bytes * max(1, file.rows) // max(1, file.bytes * 4)))
    batches = (
        _wanted(batch, tags, queues) for batch in stored.iter_batches(rows, columns=sorted(needed), use_threads=False)
    )
    made = (_made(batch, file, options, columns) for batch in batches if batch.num_rows)
    if options.decompress and any(column.name == "body" for column in columns):
        yield from decompressed(made, columns, options.verify_crc, path, options.max_body_bytes)
        return
    for batch in made:
        yield batch.select(range(2, batch.num_columns))


def _wanted(batch: pa.RecordBatch, tags: list[str] | None, queues: list[int] | None) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    if tags is not None:
        batch = batch.filter(pc.is_in(batch.column("tags"), pa.array(tags, pa.string())))
    if queues is not None:
        batch = batch.filter(pc.is_in(batch.column("queueId"), pa.array(queues, batch.column("queueId").type)))
    return batch


def _made(batch: pa.RecordBatch, file: ArchivedFile, options: Options, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """Return the columns of a read, after the two columns that decompression needs."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    arrays: list[Any] = []
    for column, field in zip(columns, schema, strict=True):
        if column.name == STORE.name:
            array = pa.repeat(pa.scalar(file.broker or options.path, pa.string()), batch.num_rows)
        elif column.name == "msgId":
            places = zip(batch.column("storeHost").to_pylist(), batch.column(_PHYSICAL_OFFSET).to_pylist(), strict=True)
            array = pa.array([encode_message_id(host, at) for host, at in places], pa.string())
        elif column.name == "properties" and column.kind != "string":
            array = _as_map(batch.column("properties"), field.type)
        else:
            array = batch.column(column.name).cast(field.type)
        arrays.append(array)
    first = [pa.field(_SYS_FLAG, pa.int32()), pa.field(_PHYSICAL_OFFSET, pa.int64())]
    return pa.RecordBatch.from_arrays(
        [batch.column(_SYS_FLAG), batch.column(_PHYSICAL_OFFSET), *arrays], schema=pa.schema([*first, *schema])
    )


def _as_map(properties: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_map(properties.type):
        return properties.cast(kind)
    rows = [list(_properties.decode((text or "").encode()).items()) for text in properties.to_pylist()]
    return pa.array(rows, kind)
