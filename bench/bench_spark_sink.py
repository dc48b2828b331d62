"""Writing into a broker with Spark, beside a sink that does nothing, with the same rows, in one run and one session.
Target: 138,000 to 202,000 rows/s, which is twice what Spark's Kafka sink reaches on a comparable machine with 2 cores.

The broker is a process of its own on the same machine. The CPU time of all processes (JVM, Python workers, broker) for
a row is shown as well: other programs change it less than the rate. Needs ``mqfast[spark,broker]`` and Java.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, Table, interleaved, ratio_of

pytest.importorskip("pyspark", reason="needs mqfast[spark]")
if shutil.which("java") is None:
    pytest.skip("needs Java 17", allow_module_level=True)

import psutil
from pyspark.sql import DataFrame, SparkSession

from mqfast.spark import conf, register
from mqfast.testing import Broker

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

# Bytes of a body -> rows: the broker's store is in memory.
ROWS = {100: 100_000 if QUICK else 1_000_000, 1000: 50_000 if QUICK else 250_000}
ROUNDS = 2 if QUICK else 3
QUEUES = 8
TARGET = 138_000
FILES = {"mappedFileSizeCommitLog": str(256 << 20), "flushDiskType": "ASYNC_FLUSH"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker in a process of its own."""
    with Broker(topics={"rows": QUEUES}, process=True, config=FILES) as one:
        yield one


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two slots."""
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    builder = conf(SparkSession.builder).master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = builder.config("spark.driver.memory", "2g").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


def rows_of(spark: SparkSession, body_bytes: int) -> DataFrame:
    """Rows with a key, in memory of the JVM."""
    body = f"cast(rpad(cast(id as string), {body_bytes}, 'x') as binary) as body"
    rows = spark.range(0, ROWS[body_bytes], 1, 4).selectExpr("concat('k', id % 1000) as keys", body).cache()
    rows.count()
    return rows


def cpu_s() -> float:
    """CPU seconds of this process and all below it: JVM, workers, broker."""
    me = psutil.Process()
    found = 0.0
    for one in (me, *me.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


@pytest.mark.parametrize("body_bytes", ROWS)
def test_rows_into_a_broker(
    benchmark: BenchmarkFixture, spark: SparkSession, broker: Broker, table: Table, body_bytes: int
) -> None:
    """Exactly once and at least once, beside Spark's noop sink."""
    rows = rows_of(spark, body_bytes)
    cpu: dict[str, list[float]] = {"exactly_once": [], "at_least_once": []}

    def nothing() -> float:
        began = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def write(delivery: str) -> float:
        began, used = time.perf_counter(), cpu_s()
        options = {"namesrv": broker.namesrv_addr, "topic": "rows", "delivery": delivery}
        rows.write.format("mqfast").mode("append").options(**options).save()
        cpu[delivery].append((cpu_s() - used) / ROWS[body_bytes] * 1e6)
        return time.perf_counter() - began

    floor, once, careless = interleaved(
        nothing, lambda: write("exactly_once"), lambda: write("at_least_once"), rounds=ROUNDS
    )
    benchmark.pedantic(nothing, rounds=1)
    for what, seconds in (("exactly_once", once), ("at_least_once", careless)):
        rate = ROWS[body_bytes] / statistics.median(seconds)
        table.add(
            f"Spark: {what} into a broker, {body_bytes} B",
            f"{rate / 1000:.0f} k rows/s, {statistics.median(cpu[what]):.1f} us CPU a row, "
            f"{ratio_of(seconds, floor):.1f}x the time of noop",
            f">= {TARGET // 1000} k rows/s",
            None if QUICK else rate >= TARGET,
        )
    rows.unpersist()
