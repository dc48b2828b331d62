"""``rebuild``: the queues and the index of a store, rebuilt from the log, byte for byte as a broker builds them.

Tasks scan records, Spark sorts the records by queue file, and a task writes each queue file; so with each index file.
All files go into a new directory, which gets the final name when complete. The store stays unchanged.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqfast.config import StoreConfig
from mqfast.errors import DataLoss, UsageError
from mqfast.spark import options as table
from mqfast.spark.jobs.arguments import count, job_parser, names, run_job, size_argument
from mqfast.spark.jobs.index_files import build_index
from mqfast.spark.jobs.locations import add_place, directory, place_of
from mqfast.spark.jobs.queue_files import (
    BATCH,
    COLUMNS,
    UNIT_BYTES,
    FileKey,
    QueueFile,
    Units,
    write_batch_queue,
    write_queue_file,
)
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import context_of, print_progress, run_tasks
from mqfast.spark.local.staging import make_directory, sync_directory
from mqfast.spark.partitions import ScanPartition, read_part
from mqfast.spark.schema import chosen_columns
from mqfast.spark.source import BatchReader
from mqfast.store.base.os_api import REAL
from mqfast.store.base.paths import StorePaths, list_index_files, list_offset_files, list_queues, queue_dir
from mqfast.store.file_sizes import sizes_of_files
from mqfast.store.meta.metadata import TopicConfigTable
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RebuildSettings", "main", "run"]


@dataclass(frozen=True)
class RebuildSettings:
    """The settings. ``allow_gaps``: write fillers for lost messages of the log; ``compare``: with the store's files;
    ``config``: file sizes, if the store has no files, and delay levels; ``batch_topics``: topics with batch queues,
    beside those in topics.json and in the store's files.
    """

    store: str
    output: str
    config: StoreConfig
    partition_bytes: int = 128 << 20
    index: bool = True
    allow_gaps: bool = False
    compare: bool = False
    batch_topics: tuple[str, ...] = ()
    tags: bool = True


def run(spark: SparkSession, settings: RebuildSettings) -> JobReport:
    """Build the files; the report is ``damaged`` after gaps, or differences to the store's files.

    Raises: UsageError, DataLoss for lost messages of the log, StorageError, and Spark's errors of failed tasks.
    """
    output = os.path.abspath(settings.output)
    if os.path.exists(output):
        raise UsageError(f"{output}: expected no such directory yet, found one")
    paths = StorePaths(settings.store)
    ext = paths.consume_queue_ext
    if os.path.isdir(ext) and os.listdir(ext):
        raise UsageError(f"{ext}: queues with extensions are not rebuilt by this job; mqfast.repair does it")
    config = sizes_of_files(REAL, paths, settings.config)
    unfinished = f"{output}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    make_directory(unfinished)
    report = JobReport("rebuild", {"store": settings.store, "output": output})
    print_progress("rebuild: queues")
    files = _build_queues(spark, settings, config, _batch_topics(paths, settings), unfinished)
    gaps = _check_gaps(settings, files)
    report.damaged = gaps > 0
    report.facts.update(
        queues=len({file.key[:2] for file in files}), queueFiles=sum(file.files for file in files),
        units=sum(file.units for file in files), gaps=gaps,
    )  # fmt: skip
    if settings.index:
        report.facts["indexFiles"], report.facts["indexEntries"] = build_index(
            spark, settings.store, os.path.join(unfinished, "index"), config, settings.partition_bytes, settings.tags
        )
    os.rename(unfinished, output)
    sync_directory(os.path.dirname(output))
    if settings.compare:
        _compare(spark, paths, output, report, settings.index)
    return report


def _batch_topics(paths: StorePaths, settings: RebuildSettings) -> frozenset[str]:
    """Return topics with batch queues as the engine does: by the topics' attributes, or by the present files."""
    table = TopicConfigTable.load(REAL, paths.topics)
    named = [topic for topic in table if (config := table.get(topic)) is not None and config.is_batch_queue]
    return frozenset((*named, *_queues(paths.batch_consume_queue), *settings.batch_topics))


def _build_queues(
    spark: SparkSession, settings: RebuildSettings, config: StoreConfig, batch_topics: frozenset[str], base: str
) -> list[QueueFile]:
    """Build the queue files: Spark collects the units of all pieces of the log for each file."""
    options = table.parse(
        {
            "path": settings.store, "columns": COLUMNS, "properties": "raw", "order": "commitlog", "batchBytes": "4m",
            "includeSystemTopics": "true",
            "partitionBytes": str(settings.partition_bytes), "failOnDataLoss": str(not settings.allow_gaps),
            "verifyCrc": "skip" if settings.allow_gaps else "fail",
        },
        table.BATCH,
    )  # fmt: skip
    parts = BatchReader(options, chosen_columns(options)).partitions()
    if not parts:
        return []
    per_file = config.mapped_file_bytes_consume_queue // UNIT_BYTES
    collect = functools.partial(
        _units_of_part, delays_ms=config.delay_levels_ms, per_file=per_file, batch_topics=batch_topics
    )
    write = functools.partial(
        _write_group, base=base, per_file=per_file, batch_bytes=config.mapped_file_bytes_batch_consume_queue
    )
    context = context_of(spark, "rebuild")
    units = context.parallelize(parts, len(parts)).flatMap(collect)
    files = units.groupByKey(max(len(parts), context.defaultParallelism)).map(write).collect()
    return sorted(files, key=lambda file: file.key)


def _units_of_part(
    part: ScanPartition, delays_ms: tuple[int, ...], per_file: int, batch_topics: frozenset[str]
) -> Iterator[tuple[FileKey, bytes]]:
    units = Units(delays_ms, per_file, batch_topics)
    for batch in read_part(part):
        units.add(batch)
    return units.packed()


def _write_group(group: tuple[FileKey, Iterable[bytes]], base: str, per_file: int, batch_bytes: int) -> QueueFile:
    paths = StorePaths(base)
    if group[0][2] == BATCH:
        return write_batch_queue(*group, paths.batch_consume_queue, batch_bytes)
    return write_queue_file(*group, paths.consume_queue, per_file)


def _check_gaps(settings: RebuildSettings, files: list[QueueFile]) -> int:
    """Return the offsets without a record.

    Raises: DataLoss, unless gaps are allowed; and for a file that does not continue the previous file.
    """
    gaps = 0
    before: QueueFile | None = None
    for file in files:
        topic, queue_id, _ = file.key
        if before is not None and before.key[:2] == file.key[:2] and file.first > before.last + 1:
            raise DataLoss(
                f"queue {topic}/{queue_id}: the log has lost messages {before.last + 1} to {file.first - 1}, over the "
                "end of a queue file; that cannot be filled"
            )
        if file.gaps and not settings.allow_gaps:
            raise DataLoss(
                f"queue {topic}/{queue_id}: the log has lost {file.gaps} of the messages {file.first} to {file.last}; "
                "--allow-gaps goes on, with fillers in their places (a batch queue needs none)"
            )
        gaps += file.gaps
        before = file
    return gaps


def _compare(spark: SparkSession, paths: StorePaths, output: str, report: JobReport, index: bool) -> None:
    """Compare byte by byte with the store's files; index files by order, since the names are times."""
    made = StorePaths(output)
    pairs: list[tuple[str | None, str | None]] = []
    for bases in (made.consume_queue, paths.consume_queue), (made.batch_consume_queue, paths.batch_consume_queue):
        for topic, queue_id in sorted(
            {(topic, i) for base in bases for topic, ids in _queues(base).items() for i in ids}
        ):
            ours, theirs = (
                {file.start_offset: file.path for file in list_offset_files(REAL, queue_dir(base, topic, queue_id))[0]}
                for base in bases
            )
            pairs += [(ours.get(start), theirs.get(start)) for start in sorted({*ours, *theirs})]
    if index:
        names = [
            [os.path.join(base, name) for name in list_index_files(REAL, base)[0]] for base in (made.index, paths.index)
        ]
        longest = max(map(len, names))
        padded: list[list[str | None]] = [[*files, *[None] * (longest - len(files))] for files in names]
        pairs += zip(*padded, strict=True)
    differences = run_tasks(spark, pairs, difference, "rebuild: comparing")
    different = [(*pair, what) for pair, what in zip(pairs, differences, strict=True) if what]
    report.facts.update(compared=len(pairs), different=len(different))
    report.damaged = report.damaged or bool(different)
    report.table("different", ("rebuilt", "in the store", "what"), different)


def _queues(base: str) -> dict[str, list[int]]:
    return list_queues(REAL, base) if os.path.isdir(base) else {}


def difference(pair: tuple[str | None, str | None]) -> str:
    """Return the difference between two files as text; empty for none."""
    ours, theirs = pair
    if ours is None or theirs is None:
        path = ours or theirs
        assert path is not None
        with open(path, "rb") as file:
            if not any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 20), b"")):
                return ""  # created before the first unit
        return "only in the store" if ours is None else "only rebuilt"
    with open(ours, "rb") as a, open(theirs, "rb") as b:
        at = 0
        while True:
            x, y = a.read(1 << 20), b.read(1 << 20)
            if x != y:
                place = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
                return f"differs from byte {at + place} on"
            if not x:
                return ""
            at += len(x)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser(
        "rebuild", "Make the queues and the index of a store from its log, in a new directory. Changes no store."
    )
    add_place(parser, "root directory of the store")
    parser.add_argument("output", metavar="OUTPUT", help="directory to make, shared by all executors")
    parser.add_argument("--compare", action="store_true", help="compare with the store's own files, byte by byte")
    parser.add_argument("--no-index", action="store_true", help="only the queues")
    parser.add_argument(
        "--no-tags", action="store_true", help="no index entries for tags: what releases before 5.5 write"
    )
    parser.add_argument("--allow-gaps", action="store_true", help="go on where the log has lost messages")
    sizes = parser.add_argument_group("sizes, where the store has no files that tell them")
    sizes.add_argument("--queue-file-bytes", type=size_argument, metavar="SIZE")
    sizes.add_argument("--batch-queue-file-bytes", type=size_argument, metavar="SIZE")
    sizes.add_argument("--index-slots", type=count, metavar="N")
    sizes.add_argument("--index-entries", type=count, metavar="N")
    parser.add_argument(
        "--batch-topics", type=names, default=(), metavar="A,B",
        help="topics with batch queues, where neither topics.json nor the store's files tell",
    )  # fmt: skip
    parser.add_argument("--delay-levels", metavar="TEXT", help="messageDelayLevel, where it is not RocketMQ's own")
    parser.add_argument(
        "--partition-bytes", type=size_argument, default=128 << 20, metavar="SIZE", help="log per task (default: 128m)"
    )
    return parser


def settings_of(a: argparse.Namespace) -> RebuildSettings:
    """Return the settings of a command line."""
    given: dict[str, Any] = {
        "mapped_file_bytes_consume_queue": a.queue_file_bytes,
        "mapped_file_bytes_batch_consume_queue": a.batch_queue_file_bytes, "max_hash_slot_num": a.index_slots,
        "max_index_num": a.index_entries, "message_delay_level": a.delay_levels,
    }  # fmt: skip
    config = StoreConfig(**{name: value for name, value in given.items() if value is not None})
    store = directory(place_of(a), "rebuild", "queues and index are made from the files of the log")
    return RebuildSettings(
        store, a.output, config, a.partition_bytes, not a.no_index, a.allow_gaps, a.compare, a.batch_topics,
        not a.no_tags,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the class of a former name."""
        return former_name(__name__, name, {"Settings": RebuildSettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import rebuild

    sys.exit(rebuild.main())
