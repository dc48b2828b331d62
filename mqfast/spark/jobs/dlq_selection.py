"""The dead letters that the job ``dlq`` sends: a read without bodies, the counts, and the work of each task.

The same for a store (``dlq.py``) and for a cluster (``dlq_cluster.py``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import UsageError
from mqfast.properties import DLQ_ATTEMPTS, ORIGINS
from mqfast.spark import options as table
from mqfast.spark.jobs.dead_letters import DLQ_PREFIX, Queue, Runs, SentLetters, offsets_of, runs_of
from mqfast.spark.jobs.locations import as_options
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.settings import DlqSettings
from mqfast.spark.options import Options, nearest_name
from mqfast.spark.plan import OffsetRange, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["DeadLetterGroup", "letters_of", "options_of", "pieces_of", "queues_of", "add_letter_tables"]

_COLUMNS: Final = "topic,queueId,queueOffset,storeTimestamp,tags,properties"
_TO_SEND: Final = "topic,queueId,queueOffset,bornTimestamp,bornHost,flag,sysFlag,properties,body"
_LETTERS_PER_TASK: Final = 20_000
SEND: Final = "send"
KINDS: Final = ("filteredOut", "overCap", "withoutOrigin")


def queues_of(snapshot: Snapshot, settings: DlqSettings, *, optional: bool = False) -> list[OffsetRange]:
    """Return the queues of dead letters that have messages.

    Raises: UsageError for a group without a queue, unless ``optional``: another broker may have the letters.
    """
    dead = [q for q in snapshot.queues if q.topic.startswith(DLQ_PREFIX)]
    if settings.groups is not None:
        groups = sorted({q.topic.removeprefix(DLQ_PREFIX) for q in dead})
        chosen = {group.removeprefix(DLQ_PREFIX) for group in settings.groups}
        for group in sorted(chosen.difference(groups)) if not optional else ():
            raise UsageError(
                f"group {group}: the store has no dead letters of it, no topic {DLQ_PREFIX}{group}"
                f"{nearest_name(group, groups)}"
            )
        dead = [q for q in dead if q.topic.removeprefix(DLQ_PREFIX) in chosen]
    return [OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in dead if q.messages]


# --- selection -------------------------------------------------------------------------------------------------------


def letters_of(spark: SparkSession, settings: DlqSettings, queues: Sequence[OffsetRange]) -> DataFrame:
    """Return a row for each letter: topic, queueId, queueOffset, kind, target (null unless to be sent).

    Raises: UsageError for a condition that Spark refuses.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    reader = spark.read.format("mqfast").options(
        assign=json.dumps(_by_topic(queues)), order="queue",
        startingOffsets=json.dumps({f"{q.topic}/{q.queue_id}": q.start for q in queues}),
        endingOffsets=json.dumps({f"{q.topic}/{q.queue_id}": q.end for q in queues}),
    )  # fmt: skip
    if settings.where is None:
        reader = reader.option("columns", _COLUMNS)
    letters = reader.options(**as_options(settings.store)).load()
    try:
        wanted = _wanted(settings)
        letters = letters.withColumn("wanted", wanted)
    except AnalysisException as error:
        raise UsageError(f"where: expected a condition over the columns of messages; {_first_line(error)}") from None

    def property_of(name: str) -> Column:
        return f.col("properties")[name]

    origin = f.coalesce(*(f.when(_is_topic(property_of(name)), property_of(name)) for name in ORIGINS))
    # A value that is no number counts as 0, as in ``properties.attempts_of``.
    attempts = f.when(property_of(DLQ_ATTEMPTS).rlike("^[0-9]{1,9}$"), property_of(DLQ_ATTEMPTS).cast("int")).otherwise(
        0
    )
    target = f.lit(settings.topic) if settings.topic is not None else origin
    kind = (
        f.when(~f.col("wanted"), KINDS[0])
        .when(attempts >= settings.max_attempts, KINDS[1])
        .when(target.isNull(), KINDS[2])
        .otherwise(SEND)
    )
    return letters.select("topic", "queueId", "queueOffset", kind.alias("kind"), target.alias("target"))


def _is_topic(value: Column) -> Column:
    return (value != "") & ~value.startswith("%RETRY%") & ~value.startswith(DLQ_PREFIX)


def _wanted(settings: DlqSettings) -> Column:
    from pyspark.sql import functions as f

    wanted = f.lit(True)
    if settings.since_ms is not None:
        wanted &= f.col("storeTimestamp") >= f.timestamp_millis(f.lit(settings.since_ms))
    if settings.until_ms is not None:
        wanted &= f.col("storeTimestamp") < f.timestamp_millis(f.lit(settings.until_ms))
    if settings.tags is not None:
        wanted &= f.col("tags").isin(*settings.tags)
    for name, value in settings.properties:
        wanted &= f.col("properties")[name] == value
    if settings.where is not None:
        wanted &= f.expr(settings.where)
    return f.coalesce(wanted, f.lit(False))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _by_topic(queues: Sequence[OffsetRange]) -> dict[str, list[int]]:
    queue_ids: dict[str, list[int]] = {}
    for q in queues:
        queue_ids.setdefault(q.topic, []).append(q.queue_id)
    return queue_ids


class DeadLetterGroup:
    """The result of the first read: counts, and the offsets of the letters to be sent."""

    def __init__(self, letters: pa.Table | None) -> None:
        import pyarrow.compute as pc

        self.kinds: Final[Counter[tuple[str, str]]] = Counter()
        self.chosen: Final[dict[Queue, Any]] = {}
        self._targets: Final[dict[Queue, tuple[Any, Any]]] = {}
        if letters is None:
            return
        for row in letters.group_by(["topic", "kind"]).aggregate([([], "count_all")]).to_pylist():
            self.kinds[row["topic"], row["kind"]] = row["count_all"]
        send = letters.filter(pc.equal(letters["kind"], SEND)).sort_by("queueOffset")
        for row in send.group_by(["topic", "queueId"]).aggregate([]).to_pylist():
            mine = send.filter(
                pc.and_(pc.equal(send["topic"], row["topic"]), pc.equal(send["queueId"], row["queueId"]))
            )
            queue = row["topic"], row["queueId"]
            self.chosen[queue] = mine["queueOffset"].to_numpy()
            self._targets[queue] = mine["queueOffset"].to_numpy(), mine["target"]

    def new(self, known: SentLetters) -> tuple[dict[Queue, Runs], Counter[str]]:
        """Return the letters that were not sent before, and the number of sent letters by topic."""
        import numpy as np

        now: dict[Queue, Runs] = {}
        before: Counter[str] = Counter()
        for queue, offsets in sorted(self.chosen.items()):
            unsent = np.setdiff1d(offsets, offsets_of(known.sent.get(queue, [])))
            before[queue[0]] += len(offsets) - len(unsent)
            if len(unsent):
                now[queue] = runs_of(unsent)
        return now, before

    def targets(self, letters: dict[Queue, Runs]) -> Counter[str]:
        """Return the number of these letters by target topic."""
        import numpy as np
        import pyarrow as pa

        counts: Counter[str] = Counter()
        for queue, runs in letters.items():
            offsets, targets = self._targets[queue]
            mine = targets.filter(pa.array(np.isin(offsets, offsets_of(runs))))
            counts.update({row["values"]: row["counts"] for row in mine.value_counts().to_pylist()})
        return counts


def add_letter_tables(report: JobReport, group: DeadLetterGroup, now: dict[Queue, Runs], before: Counter[str]) -> None:
    chosen: Counter[str] = Counter()
    for (topic, _), runs in now.items():
        chosen[topic] += sum(end - start for start, end in runs)
    rows: list[tuple[Any, ...]] = []
    for topic in sorted({topic for topic, _ in group.kinds}):
        kinds = [group.kinds[topic, kind] for kind in KINDS]
        letters = sum(n for (name, _), n in group.kinds.items() if name == topic)
        rows.append((topic.removeprefix(DLQ_PREFIX), letters, *kinds, before[topic], chosen[topic]))
    heads = ("letters", *KINDS, "sentBefore", "chosen")
    report.facts.update({head: sum(row[i] for row in rows) for i, head in enumerate(heads, 1)})
    report.table("dead letters by group", ("group", *heads), rows)
    report.table("chosen by topic", ("topic", "letters"), sorted(group.targets(now).items()))


def options_of(settings: DlqSettings) -> Options:
    how = {"columns": _TO_SEND, "properties": "raw", "verifyCrc": "fail", "decompress": "false"}
    return table.parse({**as_options(settings.store), **how}, table.BATCH)


def pieces_of(letters: dict[Queue, Runs]) -> list[tuple[OffsetRange, Runs]]:
    """Return the letters of each task."""
    pieces = []
    for (topic, queue_id), runs in sorted(letters.items()):
        offsets = offsets_of(runs)
        for at in range(0, len(offsets), _LETTERS_PER_TASK):
            mine = offsets[at : at + _LETTERS_PER_TASK]
            pieces.append((OffsetRange(topic, queue_id, int(mine[0]), int(mine[-1]) + 1), runs_of(mine)))
    return pieces
