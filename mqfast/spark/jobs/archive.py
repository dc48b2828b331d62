"""``archive``: messages of a store or a cluster as Parquet, by topic and day; each run adds new messages.

Tasks write the files, so rows never pass through the JVM; the driver writes the manifest last. The store stays
unchanged, and every file in a manifest is durable.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import DataLoss, UsageError
from mqfast.spark import options as table
from mqfast.spark.archive_manifest import (
    CLUSTER,
    ArchivedFile,
    ArchivedQueue,
    DamagedFile,
    Manifest,
    manifests,
    merge_queues,
    only_run,
    save,
)
from mqfast.spark.backend import LeftOut, LogAccess, log_of
from mqfast.spark.backends import open_local
from mqfast.spark.jobs.arguments import job_parser, names, run_job, size_argument
from mqfast.spark.jobs.locations import ClusterLocation, add_place, as_options, name_of, place_of
from mqfast.spark.jobs.parquet_files import PieceFiles
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.settings import ArchiveSettings
from mqfast.spark.jobs.tasks import run_tasks
from mqfast.spark.local.leases import HeldLease
from mqfast.spark.partitions import ScanPartition, cached_backend, partitions_of, read_settings
from mqfast.spark.plan import Snapshot, plan
from mqfast.spark.schema import chosen_columns
from mqfast.spark.selection import select
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArchiveSettings", "main", "read_archive", "run"]

COLUMNS: Final = (
    "topic,queueId,queueOffset,physicalOffset,msgSize,bodySize,bornTimestamp,storeTimestamp,bornHost,storeHost,flag,"
    "sysFlag,reconsumeTimes,preparedTransactionOffset,bodyCrc,tags,keys,uniqKey,properties,body"
)
# Listed offsets of a log file in a manifest, and of all in a report; the others are counted.
_MOST_PLACES: Final = 1000
_MOST_SHOWN: Final = 100


def run(spark: SparkSession, settings: ArchiveSettings) -> JobReport:
    """Archive the new messages.

    Raises: ConfigError, UsageError, DataLoss, StoreLocked, StorageError, ClientError, and Spark's errors of failed
        tasks.
    """
    if isinstance(settings.store, ClusterLocation):
        from mqfast.spark.jobs.archive_cluster import archive_cluster

        return _report(*archive_cluster(spark, settings, COLUMNS), of_queues=True)
    # Marked, not skipped: the tasks record the rows that they leave out.
    marked = settings.verify_crc == "skip"
    options = table.parse(
        {
            **as_options(settings.store), "order": "commitlog", "properties": settings.properties, "batchBytes": "4m",
            "includeSystemTopics": "true", "decompress": "false",  # all records, as stored
            "columns": f"{COLUMNS},crcOk" if marked else COLUMNS,
            "verifyCrc": "mark" if marked else settings.verify_crc,
            "partitionBytes": str(settings.partition_bytes), "failOnDataLoss": str(not settings.allow_loss),
        },
        table.BATCH,
    )  # fmt: skip
    if settings.topics is not None and (no_queues := [t for t in settings.topics if t.startswith("%LMQ%")]):
        raise UsageError(f"topic {no_queues[0]}: its messages are in the log under another topic; archive that one")
    archive = os.path.abspath(settings.archive)
    with only_run(archive) as done:
        access = open_local(options)
        try:
            snapshot = access.snapshot()
            start, lost = _start(settings, done, snapshot, access)
            selection = select(snapshot, options, access)
            pieces = plan(
                snapshot, selection, access, order="commitlog", partition_bytes=settings.partition_bytes,
                within=(start, snapshot.log_end),
            )  # fmt: skip
        finally:
            access.close()
        parts = partitions_of(options, chosen_columns(options), snapshot, pieces, read_settings(options, selection))
        with HeldLease(snapshot.root, options.lease_ttl) as held:
            if pieces:
                held.move(start)
            work = [_Work(part, archive, settings) for part in parts]
            done_parts = run_tasks(spark, work, _archive_part, "archive")
        files = [file for result in done_parts for file in result.files]
        manifest = Manifest(
            number=len(done) + 1, store_id=snapshot.store_id, start=start, end=snapshot.log_end,
            topics=settings.topics, properties=settings.properties, made_ms=time.time_ns() // 1_000_000,
            files=tuple(sorted(files, key=lambda file: (file.piece_start, file.path))),
            left_out=_damaged_files(done_parts), left_out_bytes=sum(result.left_out_bytes for result in done_parts),
            queues=merge_queues(queue for result in done_parts for queue in result.queues),
        )  # fmt: skip
        if snapshot.log_end > start or not done:
            save(archive, manifest)
    return _report(manifest, lost)


def _start(settings: ArchiveSettings, done: list[Manifest], snapshot: Snapshot, access: LogAccess) -> tuple[int, int]:
    """Return the start of this run, and the bytes of log that were removed before any run."""
    if not done:
        return snapshot.log_start, 0
    last = done[-1]
    if last.store_id == CLUSTER:
        raise UsageError(f"{settings.archive}: expected the archive of a store, found that of a cluster")
    if (last.topics, last.properties) != (settings.topics, settings.properties):
        raise UsageError(
            f"{settings.archive}: expected the topics and the form of properties of the runs before, "
            f"{last.topics or 'all topics'} and {last.properties}, found {settings.topics or 'all topics'} and "
            f"{settings.properties}; another choice needs an archive of its own"
        )
    if snapshot.log_start <= last.end:
        if last.store_id != "empty" and int(last.store_id[:20]) >= snapshot.log_start:
            access.check(last.store_id)
        if snapshot.log_end < last.end:
            raise DataLoss(
                f"the log of {name_of(settings.store)} ends at {snapshot.log_end}, and the archive has it up to "
                f"{last.end}"
            )
        return last.end, 0
    lost = snapshot.log_start - last.end
    if not settings.allow_loss:
        raise DataLoss(
            f"the archive has the log up to {last.end}, and the store begins at {snapshot.log_start}: {lost} bytes "
            "were removed before they were archived; --allow-loss goes on without them"
        )
    return snapshot.log_start, lost


@dataclass(frozen=True)
class _Work:
    part: ScanPartition
    archive: str
    settings: ArchiveSettings


@dataclass(frozen=True)
class _Done:
    """The result of a task: files, queues, and records left out."""

    files: list[ArchivedFile]
    queues: list[ArchivedQueue]
    left_out: list[DamagedFile]
    left_out_bytes: int


def _archive_part(work: _Work) -> _Done:
    """Write a range of the log into files, in a task."""
    part, settings = work.part, work.settings
    scan = part.piece.scan
    assert scan is not None
    topics = frozenset(settings.topics) if settings.topics is not None else None
    left_out = LeftOut()
    access = log_of(cached_backend(part.options, part.store_id))
    try:
        with PieceFiles(work.archive, scan.start, scan.end, settings.compression, settings.level) as files:
            for batch in access.scan(scan, part.columns, part.settings, left_out):
                files.add(_with_valid_crc(batch, left_out) if settings.verify_crc == "skip" else batch, topics)
            written = files.close()
        return _Done(written, files.queues(), _by_file(access, left_out), left_out.bytes)
    finally:
        access.release_files()


def _with_valid_crc(batch: pa.RecordBatch, left_out: LeftOut) -> pa.RecordBatch:
    """Return the rows with a valid checksum, without the column ``crcOk``."""
    import pyarrow.compute as pc

    ok = batch.column("crcOk")
    rows = batch.drop_columns(["crcOk"])
    if pc.all(ok).as_py() is not False:
        return rows
    bad = rows.filter(pc.invert(ok))
    left_out.places += [(at, "crc") for at in bad.column("physicalOffset").to_pylist()]
    left_out.bytes += pc.sum(bad.column("msgSize")).as_py()
    return rows.filter(ok)


def _by_file(access: LogAccess, left_out: LeftOut) -> list[DamagedFile]:
    by_path: dict[str, list[tuple[int, str]]] = {}
    for place in sorted(left_out.places):
        by_path.setdefault(access.log_path(place[0]), []).append(place)
    return [DamagedFile(path, len(places), tuple(places[:_MOST_PLACES])) for path, places in by_path.items()]


def _damaged_files(parts: Sequence[_Done]) -> tuple[DamagedFile, ...]:
    """Return the damage of all tasks, each log file once."""
    damaged: dict[str, DamagedFile] = {}
    for file in (file for part in parts for file in part.left_out):
        known = damaged.get(file.path, DamagedFile(file.path, 0, ()))
        places = (known.places + file.places)[:_MOST_PLACES]
        damaged[file.path] = DamagedFile(file.path, known.count + file.count, places)
    return tuple(damaged[path] for path in sorted(damaged))


def _report(manifest: Manifest, lost: int, *, of_queues: bool = False) -> JobReport:
    left_out = sum(file.count for file in manifest.left_out)
    report = JobReport("archive", damaged=lost > 0 or left_out > 0)
    place: dict[str, Any] = {"start": manifest.start, "end": manifest.end, "logBytes": manifest.end - manifest.start,
                             "lostBytes": lost}  # fmt: skip
    if of_queues:
        place = {"queues": len(manifest.queues or ()), "lostMessages": lost}
    report.facts.update(
        messages=manifest.rows, files=len(manifest.files), parquetBytes=manifest.bytes, leftOut=left_out,
        leftOutBytes=manifest.left_out_bytes, manifest=manifest.number, **place,
    )  # fmt: skip
    rows: dict[tuple[str, str], list[int]] = {}
    for file in manifest.files:
        row = rows.setdefault((file.topic, file.date), [0, 0, 0])
        for i, value in enumerate((file.rows, 1, file.bytes)):
            row[i] += value
    report.table(
        "archived", ("topic", "date", "messages", "files", "bytes"), [(*key, *row) for key, row in sorted(rows.items())]
    )
    places = [(file.path, at, why) for file in manifest.left_out for at, why in file.places]
    report.table("left out of the log", ("file", "physicalOffset", "reason"), places[:_MOST_SHOWN])
    return report


def read_archive(spark: SparkSession, archive: str, topics: Sequence[str] | None = None) -> DataFrame:
    """Return the messages of an archive, by the manifests.

    Raises: UsageError for a missing archive, or an archive without these topics; CorruptFile.
    """
    runs = manifests(archive)
    if not runs:
        raise UsageError(f"{archive}: expected an archive, found no manifest")
    files = [file for m in runs for file in m.files if topics is None or file.topic in topics]
    if not files:
        raise UsageError(f"{archive}: the archive holds no message{' of these topics' if topics else ''}")
    return spark.read.parquet(*(os.path.join(archive, file.path) for file in files))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser(
        "archive",
        "Write the messages of a store or a cluster to Parquet by topic and day. Each run adds what is new.",
    )
    add_place(parser, "root directory of the store, which may be in use")
    parser.add_argument("archive", metavar="ARCHIVE", help="directory of the archive, shared by all executors")
    parser.add_argument("--topics", type=names, metavar="A,B", help="only these topics (default: all)")
    parser.add_argument(
        "--properties", choices=("raw", "map"), default="raw", help="as the string stored, or as a map (default: raw)"
    )
    parser.add_argument("--compression", choices=("zstd", "snappy", "lz4", "none"), default="zstd")
    parser.add_argument("--level", type=int, default=3, metavar="N", help="level of zstd (default: 3)")
    parser.add_argument(
        "--verify-crc", choices=("fail", "skip", "off"), default="fail",
        help="a damaged record fails the job (default), is left out, or is not looked for",
    )  # fmt: skip
    parser.add_argument(
        "--partition-bytes", type=size_argument, default=128 << 20, metavar="SIZE", help="log per task (default: 128m)"
    )
    parser.add_argument("--allow-loss", action="store_true", help="go on where retention was faster than the archive")
    return parser


def settings_of(a: argparse.Namespace) -> ArchiveSettings:
    """Return the settings of a command line."""
    settings = ArchiveSettings(
        place_of(a), a.archive, a.topics, a.properties, a.compression, a.level, a.verify_crc, a.partition_bytes,
        a.allow_loss,
    )  # fmt: skip
    return settings if a.compression == "zstd" else replace(settings, level=None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the settings class for its former name."""
        return former_name(__name__, name, {"Settings": ArchiveSettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import archive

    sys.exit(archive.main())
