"""Work of a job in Spark's tasks: a task for each item, results in the order of the items.

Functions must be named in an importable module, so that executors find them by name. The driver holds only the results.
"""

from __future__ import annotations

import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from mqfast.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["context_of", "is_connect", "run_tasks", "print_progress"]

T = TypeVar("T")
R = TypeVar("R")
_LOOK_EVERY_S: Final = 1.0


def print_progress(text: str) -> None:
    """Print a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def run_tasks(spark: SparkSession, items: Sequence[T], task: Callable[[T], R], what: str) -> list[R]:
    """Call ``task`` for each item on the cluster; progress goes to stderr.

    Raises: Spark's error of a task that failed for good; the text ends with the task's error.
    """
    if not items:
        return []
    if is_connect(spark):
        return _run_connected(spark, items, task, what)
    context, group = spark.sparkContext, uuid.uuid4().hex
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, len(items), what, done), daemon=True)
    context.setJobGroup(group, what)
    watcher.start()
    try:
        return context.parallelize(items, len(items)).map(partial(_done, task)).collect()
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def context_of(spark: SparkSession, job: str) -> SparkContext:
    """Return the SparkContext, for jobs that need RDDs. Raises: UsageError over Spark Connect."""
    if is_connect(spark):
        raise UsageError(
            f"{job}: expected a session with a SparkContext, found one of Spark Connect; run the command "
            f"(python -m mqfast.spark.jobs.{job}, or spark-submit) where the cluster is"
        )
    return spark.sparkContext


def _run_connected(spark: SparkSession, items: Sequence[T], task: Callable[[T], R], what: str) -> list[R]:
    """Run the tasks by a DataFrame: a row for each item, each in a partition."""
    print_progress(f"{what}: {len(items)} tasks")
    packed = [pickle.dumps(item) for item in items]
    rows = spark.range(0, len(items), 1, len(items)).mapInArrow(
        partial(_by_rows, task, packed), "number bigint, result binary"
    )
    return [pickle.loads(row.result) for row in sorted(rows.collect(), key=lambda row: int(row.number))]


def _by_rows(
    task: Callable[[T], R], packed: Sequence[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = pickle.dumps(_done(task, pickle.loads(packed[number])))
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([result], pa.binary())], names=["number", "result"]
            )


def _done(task: Callable[[T], R], item: T) -> R:
    from mqfast.spark.partitions import freeze_loaded

    freeze_loaded()
    return task(item)


def _watch(context: SparkContext, group: str, items: int, what: str, done: threading.Event) -> None:
    tracker = context.statusTracker()
    told = -1
    while not done.wait(_LOOK_EVERY_S):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        finished = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if finished != told:
            told = finished
            print_progress(f"{what}: {finished} of {items} tasks")
