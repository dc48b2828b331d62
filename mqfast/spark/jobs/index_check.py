"""Comparison of the index files of a store with the log.

Sums are compared first, as in ``mqfast store verify``: the keys of the records of each log file, and the entries of
each index file, both added up in C, a task for each file. Only after a difference are keys and entries compared one by
one. Format: ``mqfast/store/FORMAT.md``. The store stays unchanged.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import CorruptFile
from mqfast.spark import options as table
from mqfast.spark.backends import open_local
from mqfast.spark.jobs.index_files import KEY_COLUMNS, IndexPiece, entries_of
from mqfast.spark.jobs.tasks import context_of, run_tasks
from mqfast.spark.plan import Snapshot, scan_pieces
from mqfast.spark.schema import chosen_columns
from mqfast.store.base.os_api import REAL
from mqfast.store.base.paths import OffsetFile, StorePaths, list_index_files, list_offset_files
from mqfast.store.index.index_file import IndexFile, key_hash
from mqfast.store.index.index_service import infer_index_sizes
from mqfast.store.reader.scan import LogTally, LogWalk, PreadFile, tally_index
from mqfast.store.reader.store_reader import StoreReader

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

__all__ = ["BROKEN", "CHAIN", "NO_ENTRY", "NO_KEY", "SLOT", "IndexFinding", "IndexReport", "check_index", "rows_of"]

BROKEN: Final = "an index file cannot be read"
CHAIN: Final = "an entry is not chained by its slot"
SLOT: Final = "a slot does not name its newest entry"
NO_KEY: Final = "an entry points at no record with its key"
NO_ENTRY: Final = "a key of a record has no entry"
_SUM: Final = (1 << 64) - 1
_IN_LOG, _IN_INDEX, _TAGS_IN_LOG = 1, 2, 4  # releases before 5.5 have no entries for tags


@dataclass(frozen=True)
class IndexFinding:
    """A finding. ``at``: physical offset of the record, or a byte of the index file for CHAIN and SLOT; ``key``:
    topic#key.
    """

    kind: str
    path: str | None
    at: int | None
    key: str | None = None


@dataclass
class IndexReport:
    """The result. ``counts``: findings by kind; ``listed``: the first findings; ``damaged``: more than a killed broker
    leaves.

    ``keys``: of the log; ``behind``: keys of records from the newest entry's record on, which a running broker has not
    indexed yet.
    """

    files: int
    keys: int
    entries: int
    behind: int
    counts: dict[str, int]
    listed: list[IndexFinding]
    damaged: bool


@dataclass(frozen=True)
class _LogTask:
    root: str
    file: OffsetFile


@dataclass(frozen=True)
class _OfLog:
    keys: int
    key_sum: int
    tags: int
    tag_sum: int
    bad: list[tuple[int, int]]
    """Ranges of physical offsets without a record."""


@dataclass(frozen=True)
class _IndexTask:
    path: str
    slots: int
    capacity: int
    log_start: int
    log_end: int


@dataclass(frozen=True)
class _OfIndex:
    entries: int
    counted: int
    digest: int
    findings: list[IndexFinding]
    counts: dict[str, int]


def check_index(spark: SparkSession, store: str, snapshot: Snapshot, partition_bytes: int, limit: int) -> IndexReport:
    """Compare index and log, up to the snapshot's end; at most ``limit`` findings are listed.

    Raises: Spark's errors of failed tasks.
    """
    options = {
        "path": store,
        "columns": KEY_COLUMNS,
        "batchBytes": "4m",
        "verifyCrc": "mark",
        "failOnDataLoss": "false",
    }
    parsed = table.parse(options, table.BATCH)
    access = open_local(parsed)
    try:
        span = snapshot.log_start, snapshot.log_end
        parts = max(1, round((span[1] - span[0]) / partition_bytes))
        scans = scan_pieces(*span, parts, access) if span[0] < span[1] else []
    finally:
        access.close()
    paths = StorePaths(snapshot.root)
    logs = [
        _LogTask(paths.root, file) for directory in paths.commit_logs for file in list_offset_files(REAL, directory)[0]
    ]
    names = [name for name in list_index_files(REAL, paths.index)[0] if os.path.getsize(f"{paths.index}/{name}")]
    report = IndexReport(len(names), 0, 0, 0, {}, [], False)
    if not names:
        return report  # an index is optional
    try:
        sizes = infer_index_sizes(REAL, paths.index)
    except CorruptFile as error:
        sizes = None
        report.counts[BROKEN] = 1
        report.listed.append(IndexFinding(BROKEN, error.path, None))
        report.damaged = True
    if sizes is None:
        return report
    of_logs = run_tasks(spark, logs, _tally_log, "audit: keys")
    tasks = [_IndexTask(os.path.join(paths.index, name), *sizes, *span) for name in names]
    of_files = run_tasks(spark, tasks, _tally_file, "audit: index")
    report.keys = sum(tally.keys for tally in of_logs)
    report.entries = sum(tally.entries for tally in of_files)
    # A killed broker leaves its newest file unfinished; recovery rebuilds the file.
    killed = os.path.exists(paths.abort)
    for number, tally in enumerate(of_files):
        for kind, count in tally.counts.items():
            report.counts[kind] = report.counts.get(kind, 0) + count
        report.listed += tally.findings
        report.damaged |= bool(tally.counts) and not (killed and number == len(of_files) - 1)
    summed = sum(tally.counted for tally in of_files), sum(tally.digest for tally in of_files) & _SUM
    wanted = report.keys, sum(tally.key_sum for tally in of_logs) & _SUM
    tagged = (
        report.keys + sum(tally.tags for tally in of_logs),
        (wanted[1] + sum(tally.tag_sum for tally in of_logs)) & _SUM,
    )
    if summed not in (wanted, tagged) and BROKEN not in report.counts:
        pieces = [IndexPiece(parsed, chosen_columns(parsed), snapshot.store_id, scan) for scan in scans]
        bad = sorted(span for tally in of_logs for span in tally.bad)
        _compare(spark, pieces, tasks, bad, killed, limit, report)
    del report.listed[limit:]
    return report


def _tally_log(task: _LogTask) -> _OfLog:
    """Count the keys of a log file, skipping damage, in a task."""
    file = task.file
    opened = PreadFile(REAL, file.path, file.start_offset)
    tally, bad = LogTally(), []
    at = file.start_offset
    while at < opened.end:
        # The first part of the audit checks bodies; a record with a torn body still has keys.
        walk = LogWalk(opened, at, False)
        stop = walk.tally(tally)
        at = walk.at
        if stop in ("blank", "end") or (stop == "zero" and opened.first_set_byte(at - file.start_offset) < 0):
            break
        with StoreReader(task.root) as reader:
            following = reader.next_known_record(at + 1, opened.end)
        bad.append((at, following))
        at = following
    return _OfLog(tally.keys, tally.key_sum, tally.tags, tally.tag_sum, bad)


def _tally_file(task: _IndexTask) -> _OfIndex:
    """Count the entries of an index file, in a task."""
    try:
        opened = PreadFile(REAL, task.path)
        entries, counted, digest, wrong, wrong_at, slots, slot_at, _ = tally_index(
            opened, task.slots, task.capacity, task.log_start, task.log_end
        )
    except CorruptFile as error:
        return _OfIndex(0, 0, 0, [IndexFinding(BROKEN, task.path, error.offset)], {BROKEN: 1})
    findings, counts = [], {}
    for kind, number, at in ((CHAIN, wrong, wrong_at), (SLOT, slots, slot_at)):
        if number:
            findings.append(IndexFinding(kind, task.path, at))
            counts[kind] = number
    return _OfIndex(entries, counted, digest, findings, counts)


# --- comparison ------------------------------------------------------------------------------------------------------

Pair = tuple[tuple[int, int], tuple[int, str]]
"""(hash, physical offset), and (where found, name there)."""


def _compare(
    spark: SparkSession,
    pieces: list[IndexPiece],
    tasks: list[_IndexTask],
    bad: list[tuple[int, int]],
    killed: bool,
    limit: int,
    report: IndexReport,
) -> None:
    context = context_of(spark, "audit")
    keys: RDD[Pair] = context.parallelize(pieces, max(1, len(pieces))).flatMap(_pairs_of_log)
    entries: RDD[Pair] = context.parallelize(tasks, len(tasks)).flatMap(_pairs_of_index)
    both = keys.union(entries).reduceByKey(_either, max(len(pieces), context.defaultParallelism))
    alone = both.filter(_is_alone).persist()
    try:
        span = entries.map(_place).aggregate(_NOWHERE, _widen, _join)
        # Entries within damage of the log are reported with the log.
        starts = [low for low, _ in bad]

        def in_damage(pair: Pair) -> bool:
            i = bisect.bisect_right(starts, pair[0][1]) - 1
            return i >= 0 and pair[0][1] < bad[i][1]

        wrong = alone.filter(lambda pair: pair[1][0] == _IN_INDEX and not in_damage(pair))
        missing = alone.filter(lambda pair: bool(pair[1][0] & _IN_LOG) and span[0] <= pair[0][1] < span[1])
        report.behind = alone.filter(lambda pair: bool(pair[1][0] & _IN_LOG) and pair[0][1] >= span[1]).count()
        for kind, pairs in ((NO_KEY, wrong), (NO_ENTRY, missing)):
            first = pairs.takeOrdered(limit, key=_order)
            if not first:
                continue
            report.counts[kind] = pairs.count()
            for (_, place), (_, name) in first:
                path, key = (name, None) if kind == NO_KEY else (None, name)
                report.listed.append(IndexFinding(kind, path, place, key))
        if not wrong.isEmpty():
            newest = tasks[-1].path
            report.damaged |= not killed or not wrong.filter(lambda pair: pair[1][1] != newest).isEmpty()
    finally:
        alone.unpersist()


_NOWHERE: Final = (1 << 63, -1)


def _pairs_of_log(piece: IndexPiece) -> Iterator[Pair]:
    for topic, key, place, _, tagged in entries_of(piece):
        yield (key_hash(topic, key), place), (_TAGS_IN_LOG if tagged else _IN_LOG, f"{topic}#{key}")


def _pairs_of_index(task: _IndexTask) -> Iterator[Pair]:
    file = IndexFile.open(REAL, task.path, task.slots, task.capacity, writable=False)
    try:
        for _, hashed, place, _, _ in file.entries():
            if task.log_start <= place < task.log_end:
                yield (hashed, place), (_IN_INDEX, task.path)
    finally:
        file.close()


def _either(a: tuple[int, str], b: tuple[int, str]) -> tuple[int, str]:
    return a[0] | b[0], min(a[1], b[1])


def _is_alone(pair: Pair) -> bool:
    return pair[1][0] == _IN_INDEX or pair[1][0] & (_IN_LOG | _IN_INDEX) == _IN_LOG


def _place(pair: Pair) -> int:
    return pair[0][1]


def _order(pair: Pair) -> tuple[int, int]:
    return pair[0][1], pair[0][0]


def _widen(span: tuple[int, int], place: int) -> tuple[int, int]:
    return min(span[0], place), max(span[1], place)


def _join(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return min(a[0], b[0]), max(a[1], b[1])


def rows_of(report: IndexReport) -> list[tuple[Any, ...]]:
    """Return the listed findings as rows: kind, file, physical offset or byte, key."""
    return [(finding.kind, finding.path, finding.at, finding.key) for finding in report.listed]
