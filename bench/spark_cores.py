"""Reads a whole store with Spark on the first N processors and prints bytes a second, a line a round; for
``bench_spark_cores.py``, as one process has one Spark session.

    python bench/spark_cores.py STORE CORES ROUNDS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(store: str, cores: int, rounds: int) -> int:
    """Full rows, and rows of one column, to noop: two figures a line."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # of the JVM and the workers too
    from pyspark.sql import SparkSession

    from mqfast.spark import conf, register

    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    spark = conf(builder.config("spark.driver.memory", "2g")).getOrCreate()
    register(spark)
    size = sum(file.stat().st_size for file in (Path(store) / "commitlog").iterdir())
    options = {"partitionBytes": str(max(1, size // 8))}
    frames = [
        spark.read.format("mqfast").options(columns=columns, **options).load(store)
        for columns in ("topic,queueId,queueOffset,storeTimestamp,body", "bodySize")
    ]
    for number in range(rounds + 1):
        rates = []
        for frame in frames:
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            rates.append(size / (time.perf_counter() - began))
        if number:  # the first round warms up
            print(*rates, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
