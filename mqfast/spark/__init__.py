"""Spark reads and writes stores: ``spark.read.format("mqfast").load(path)``.

Room: the Spark adapter; the only part of mqfast that may import pyspark and pyarrow (``pip install mqfast[spark]``).
Importing this package imports neither. See ``docs/spark.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "conf", "register"]

SETTINGS: Final[dict[str, str]] = {
    # Rows go to the JVM through a socket file: about a quarter less time, and much less for small tasks.
    "spark.python.unix.domain.socket.enabled": "true",
    # Without it a reader that evaluates filters is refused (option pushdown).
    "spark.sql.python.filterPushdown.enabled": "true",
    # The default; turned off, every task starts an interpreter, which takes more than half a second.
    "spark.python.worker.reuse": "true",
    # Breaks Arrow writes in Spark 4.3.
    "spark.python.udf.pipelined.enabled": "false",
    # Rows that the sink gets at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
}
"""Settings of Spark that ``conf`` makes, and what for."""


def register(spark: SparkSession) -> None:
    """Make ``format("mqfast")`` known to a session. Where mqfast is installed on every node, Spark finds it itself."""
    from mqfast.spark.source import MqFastSource

    spark.dataSource.register(MqFastSource)


def conf(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set what makes the source fast, but for what was set already: ``conf(SparkSession.builder).getOrCreate()``."""
    given = dict(getattr(builder, "_options", {}))
    for name, value in SETTINGS.items():
        if name not in given:
            builder = builder.config(name, value)
    return builder
