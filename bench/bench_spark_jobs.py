"""Jobs on a store with Spark, beside Spark's own writer of Parquet with the same rows, in one run and one session.
Targets: archive >= 2x ``df.write.parquet`` (both zstd 3); replay >= 0.8x the archive's rate; rebuild of the queues
>= 0.25x the full-row rate.

Needs ``mqfast[spark]`` and Java. A store of 2 GiB (MQFAST_BENCH_QUICK=1: 64 MiB) is made under MQFAST_BENCH_DIR.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, Table, interleaved, ratio_of

pytest.importorskip("pyspark", reason="needs mqfast[spark]")
from bench_spark import FULL, ROUNDS, Source, source

from mqfast.config import StoreConfig
from mqfast.spark.jobs import archive, audit, rebuild, replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["source"]  # the fixture: a store and its rows as Parquet


BYTES_FLOOR = "the log's bytes, written and synced"


def _timed(work: Callable[[], object], *made: Path) -> float:
    """Seconds of the work; what it makes is removed before and stays until the next time."""
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _written(path: Path, total: int) -> None:
    """As many bytes as the log has, written into a new file and synced: no replay can do without."""
    block = os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, total)
        for _ in range(total >> 20):
            file.write(block)
        os.fdatasync(file.fileno())
    path.unlink()


def test_jobs(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """All rows of the table, interleaved."""
    spark, store, base = source.spark, str(source.store), source.store.parent
    to_parquet, new, queues, plain = base / "archive", base / "replayed", base / "rebuilt", base / "plain"

    def frame_of(columns: str) -> DataFrame:
        return spark.read.format("mqfast").options(columns=columns).load(store)

    def spark_writes() -> None:
        writer = frame_of(archive.COLUMNS).write.option("compression", "zstd")
        writer.option("parquet.compression.codec.zstd.level", "3").parquet(str(plain))

    def archives() -> None:
        report = archive.run(spark, archive.ArchiveSettings(store, str(to_parquet)))
        assert report.facts["messages"] == source.rows

    def replays() -> None:
        if not to_parquet.exists():
            archives()
        report = replay.run(spark, replay.ReplaySettings(str(to_parquet), str(new), txn_id="bench"))
        assert report.facts["appended"] == source.rows

    def rebuilds() -> None:
        report = rebuild.run(spark, rebuild.RebuildSettings(store, str(queues), StoreConfig(), index=False))
        assert report.facts["units"] == source.rows

    works = {
        "full rows": lambda: _timed(lambda: frame_of(FULL).write.format("noop").mode("overwrite").save()),
        "df.write.parquet": lambda: _timed(spark_writes, plain),
        "archive": lambda: _timed(archives, to_parquet),
        "replay": lambda: _timed(replays, new),
        "rebuild of the queues": lambda: _timed(rebuilds, queues),
        BYTES_FLOOR: lambda: _timed(lambda: _written(base / "floor", source.bytes)),
        "audit with queues": lambda: _timed(lambda: audit.run(spark, audit.AuditSettings(store))),
    }
    figures = dict(zip(works, interleaved(*works.values(), rounds=ROUNDS), strict=True))
    benchmark.pedantic(works["archive"], rounds=1)
    targets = {
        "archive": ("df.write.parquet", 2.0), "replay": ("archive", 0.8), "rebuild of the queues": ("full rows", 0.25),
    }  # fmt: skip
    for what, seconds in figures.items():
        median = statistics.median(seconds)
        text = f"{source.bytes / median / 1e9:.2f} GB/s, {source.rows / median / 1e6:.2f} M rows/s"
        if what in targets:
            other, least = targets[what]
            ratio = ratio_of(figures[other], seconds)
            text, target, met = (
                f"{text}, {ratio:.2f}x {other}",
                f">= {least}x {other}",
                None if QUICK else ratio >= least,
            )
            floor = ratio_of(figures[other], figures[BYTES_FLOOR])
            bare = f"writing and syncing as many bytes {floor:.2f}x" if what == "replay" else ""
            table.add(f"Spark job: {what}", text, target, met, baseline=bare)
        else:
            table.add(f"Spark job: {what}", text, "", None)
