"""Spark reads and writes stores: ``spark.read.format("mqfast").load(path)``.

The only part of mqfast that may import pyspark and pyarrow (``pip install mqfast[spark]``). Importing this package
imports neither. See ``docs/spark/start.md``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL_CHECKPOINTS", "SETTINGS", "conf", "register"]

SETTINGS: Final[dict[str, str]] = {
    # Rows go to the JVM through a socket file: about a quarter less time, and much less for small tasks.
    "spark.python.unix.domain.socket.enabled": "true",
    # Required by a reader that evaluates filters (option pushdown).
    "spark.sql.python.filterPushdown.enabled": "true",
    # The default; without reuse every task starts an interpreter, which takes more than half a second.
    "spark.python.worker.reuse": "true",
    # Breaks Arrow writes in Spark 4.3.
    "spark.python.udf.pipelined.enabled": "false",
    # Rows that the sink gets at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
}
"""Settings of Spark that ``conf`` makes, and what for."""

LOCAL_CHECKPOINTS: Final[dict[str, str]] = {
    # Hadoop's file system for local files without checksum files beside each file.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # No checksum files of Spark beside the files of a checkpoint.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings for streams whose checkpoint lies on a local disk: half the files, and half the time that it takes."""


def register(spark: SparkSession) -> None:
    """Register ``format("mqfast")`` with a session.

    Spark finds an mqfast that is installed on every node without this call. Writes from a thread other than the creator
    of the session need this call, from any thread.
    """
    from mqfast.spark.source import MqFastSource
    from mqfast.spark.threads import write_from_any_thread

    spark.dataSource.register(MqFastSource)
    if hasattr(spark, "_jsparkSession"):  # not over Spark Connect, where the server sees no threads
        write_from_any_thread()


def conf(builder: SparkSession.Builder, *, local_checkpoints: bool = False) -> SparkSession.Builder:
    """Set options that make the source fast, except those set already: ``conf(SparkSession.builder).getOrCreate()``.

    With a local master the workers run the program's own Python (PYSPARK_PYTHON, unless set): Spark would take the
    first ``python3`` of the path, which may lack mqfast.

    Args: local_checkpoints: set LOCAL_CHECKPOINTS too. All local files of the session are then without checksums.
    """
    given = dict(getattr(builder, "_options", {}))
    for name, value in {**SETTINGS, **(LOCAL_CHECKPOINTS if local_checkpoints else {})}.items():
        if name not in given:
            builder = builder.config(name, value)
    # Each of these variables may name a master that the builder does not have.
    elsewhere = {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME", "SPARK_CONF_DIR"} & os.environ.keys()
    local = str(given.get("spark.master", "" if elsewhere else "local")).startswith("local")
    if local and "spark.pyspark.python" not in given:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder
