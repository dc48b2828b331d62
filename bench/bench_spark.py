"""Reading a store with Spark, beside Spark's own reader of Parquet with the same rows, in one run and one session.
Targets: full rows to noop >= 1.0x of snappy Parquet; metadata columns >= 2x and one column >= 3x the full-row rate;
checking every body's CRC >= 1.7x in bytes; memory of a Python worker <= 256 MiB.

Beside each figure of ours stands the floor: a source that does nothing (``spark_floor.py``) with as many tasks and the
same rows. What a query takes whatever its size (planning, beginning 8 tasks) is shown as well: the ratios are those of
2 GiB, where it is a tenth of the fastest one; in a quick run it decides them.

Needs ``mqfast[spark]`` and Java. A store of 2 GiB (MQFAST_BENCH_QUICK=1: 64 MiB; MQFAST_BENCH_SPARK_BYTES: any size)
is made under MQFAST_BENCH_DIR.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from harness import QUICK, Table, interleaved, ratio_of

import mqfast
from mqfast.config import StoreConfig

pytest.importorskip("pyspark", reason="needs mqfast[spark]")
if shutil.which("java") is None:
    pytest.skip("needs Java 17", allow_module_level=True)

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from spark_floor import FloorSource

from mqfast.spark import conf, register

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

STORE_BYTES = int(os.environ.get("MQFAST_BENCH_SPARK_BYTES", 64 << 20 if QUICK else 2 << 30))
TOPICS, QUEUES = 8, 4
# 8 tasks; what is measured is the reading, not how long Spark takes to begin a task.
PARTITION = str(STORE_BYTES // 8)
ROUNDS = 2 if QUICK else 5
METADATA = "topic,queueId,queueOffset,physicalOffset,msgSize,bodySize,bornTimestamp,storeTimestamp"
FULL = METADATA + ",body"


class Source(NamedTuple):
    """The same rows twice."""

    spark: SparkSession
    store: Path
    parquet: Path
    rows: int
    bytes: int


def make_store(path: Path, total_bytes: int) -> int:
    """A store of messages like those of an order system, of about 1 KiB each; returns how many."""
    chance = random.Random(7)
    words = [f"{chance.getrandbits(64):016x}" for _ in range(512)]
    bodies = []
    for number in range(4096):
        lines = [
            {"sku": chance.choice(words), "n": chance.randrange(9), "price": chance.randrange(99999)} for _ in range(16)
        ]
        text = json.dumps({"order": number, "customer": chance.choice(words), "lines": lines})
        bodies.append(text[: chance.randrange(840, 940)].encode())
    config = StoreConfig(mapped_file_bytes_commit_log=min(1 << 30, total_bytes))
    count = 0
    with mqfast.open(path, config=config) as store:
        producers = [store.producer(f"Topic{t}", q, tags=f"tag{t % 3}") for t in range(TOPICS) for q in range(QUEUES)]
        while store.log.written < total_bytes * 0.98:
            for producer in producers:
                at = chance.randrange(len(bodies) - 64)
                producer.put_many(bodies[at : at + 64])
                count += 64
    return count


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    """The store, and what Spark makes of it as Parquet."""
    # For the source that does nothing: the process that plans a stream does not see what addPyFile brings.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    base = Path(tempfile.mkdtemp(prefix="mqfast-spark-", dir=os.environ.get("MQFAST_BENCH_DIR")))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = conf(builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")).getOrCreate()
    try:
        register(spark)
        spark.dataSource.register(FloorSource)
        rows = make_store(base / "store", STORE_BYTES)
        frame = spark.read.format("mqfast").option("columns", FULL).load(str(base / "store"))
        frame.write.option("compression", "snappy").parquet(str(base / "parquet"))
        size = sum(file.stat().st_size for file in (base / "store" / "commitlog").iterdir())
        yield Source(spark, base / "store", base / "parquet", rows, size)
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)


def floor_reader(spark: SparkSession, columns: str, rows: int) -> DataFrameReader:
    """As many rows in 8 tasks, of a source that does nothing."""
    return spark.read.format("floor").options(columns=columns, tasks="8", rows=str(rows))


def _most_memory() -> float:
    """Most MiB that any Python worker has had, of those that live."""
    most = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if b"pyspark.daemon" in status.with_name("cmdline").read_bytes():
                found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
                most = max(most, int(found[1]) if found else 0)
    return most / 1024


def _seconds(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _read(source: Source, columns: str, **options: str) -> DataFrame:
    given = {"columns": columns, "partitionBytes": PARTITION, **options}
    return source.spark.read.format("mqfast").options(**given).load(str(source.store))


def _audit(source: Source) -> float:
    began = time.perf_counter()
    frame = source.spark.read.format("mqfast").options(view="audit", partitionBytes=PARTITION).load(str(source.store))
    found = frame.groupBy().sum("records", "crcErrors", "gaps").collect()[0]
    assert (found[0], found[1], found[2]) == (source.rows, 0, 0)
    return time.perf_counter() - began


def test_reading(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """All rows of the table, interleaved."""
    works = {
        "full rows": lambda: _seconds(_read(source, FULL)),
        "Parquet (snappy)": lambda: _seconds(source.spark.read.parquet(str(source.parquet))),
        "metadata columns": lambda: _seconds(_read(source, METADATA)),
        "one int column": lambda: _seconds(_read(source, "bodySize")),
        "CRC audit": lambda: _audit(source),
        "floor of full rows": lambda: _seconds(floor_reader(source.spark, FULL, source.rows).load()),
        "floor of metadata columns": lambda: _seconds(floor_reader(source.spark, METADATA, source.rows).load()),
        "floor of one int column": lambda: _seconds(floor_reader(source.spark, "bodySize", source.rows).load()),
        "floor of 8 tasks": lambda: _seconds(floor_reader(source.spark, "bodySize", 8).load()),
    }
    assert _read(source, "bodySize").count() == source.rows == source.spark.read.parquet(str(source.parquet)).count()
    figures = dict(zip(works, interleaved(*works.values(), rounds=ROUNDS), strict=True))
    benchmark.pedantic(works["one int column"], rounds=1)
    targets = {
        "full rows": ("Parquet (snappy)", 1.0), "metadata columns": ("full rows", 2.0),
        "one int column": ("full rows", 3.0), "CRC audit": ("full rows", 1.7),
    }  # fmt: skip
    for what, seconds in figures.items():
        median = statistics.median(seconds)
        text = f"{source.bytes / median / 1e9:.2f} GB/s, {source.rows / median / 1e6:.2f} M rows/s"
        if what in targets:
            other, least = targets[what]
            ratio = ratio_of(figures[other], seconds)
            text = f"{text}, {ratio:.2f}x {other}"
            if f"floor of {what}" in figures:
                text += f", {ratio_of(seconds, figures[f'floor of {what}']):.2f}x the floor's time"
            table.add(f"Spark: {what}", text, f">= {least}x {other}", None if QUICK else ratio >= least)
        elif what == "floor of 8 tasks":
            table.add(f"Spark: {what}", f"{median * 1000:.0f} ms", "", None)
        else:
            table.add(f"Spark: {what}", text, "", None)
    memory = _most_memory()
    table.add("Spark: memory of a Python worker", f"{memory:.0f} MiB at most", "<= 256 MiB", 0 < memory <= 256)
