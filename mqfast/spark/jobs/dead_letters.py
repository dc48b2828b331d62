"""Dead letters: the record of sent letters, and the conversion of a letter into a message.

Beside the notes of the sink's transaction (``local/staging.py``) each run that sends has a file

    <batch>.letters    JSON: letters that the batches before have sent, and those of this batch, by queue, as runs of
                       queue offsets; of each queue the physical offset of the last letter that was sent

The file is written before the batch is staged, and counts once the batch is done. The note of the last finished batch
is never removed. A dead letter has the properties that the broker gave a message after too many failures. Uses no
Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from mqfast import properties as _properties
from mqfast.errors import CorruptFile, UsageError
from mqfast.spark.local.staging import VERSION, read_note, unlink, write_note
from mqfast.spark.plan import OffsetRange

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from mqfast.spark.backend import Backend

__all__ = ["DLQ_PREFIX", "Runs", "SentLetters", "marks_of", "offsets_of", "revived", "runs_of"]

DLQ_PREFIX: Final = "%DLQ%"
_NOTE: Final = re.compile(r"(\d+)\.letters")

Queue = tuple[str, int]
Runs = list[tuple[int, int]]
"""Queue offsets: each from, and up to, not including."""


def runs_of(offsets: np.ndarray[Any, np.dtype[np.int64]]) -> Runs:
    """Return ascending, distinct offsets as runs."""
    import numpy as np

    if not len(offsets):
        return []
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate(([0], cuts))]
    ends = offsets[np.concatenate((cuts - 1, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def offsets_of(runs: Iterable[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return runs as offsets."""
    import numpy as np

    ranges = [np.arange(start, end, dtype=np.int64) for start, end in runs]
    return np.concatenate(ranges, dtype=np.int64) if ranges else np.empty(0, np.int64)


class Noted(Protocol):
    """A transaction of either kind: directory, and finished batches."""

    @property
    def directory(self) -> str:
        """Return the directory of the notes."""

    def is_done(self, batch: int) -> bool:
        """Return whether the batch, or a later batch, is stored in the target."""


@dataclass
class SentLetters:
    """The letters that a transaction has sent, and the number of the next batch."""

    store_id: str = "empty"
    sent: dict[Queue, Runs] = field(default_factory=dict)
    batch: int = 0
    last: dict[Queue, Runs] = field(default_factory=dict)
    """Those of the last batch alone."""
    marks: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    """A letter of each queue: queue offset and physical offset. Notes of earlier releases have none."""

    @classmethod
    def load(cls, transaction: Noted) -> SentLetters:
        """Return the state after the last batch; a batch without marker and intent was never sent.

        Raises: CorruptFile; UsageError for the id of another job.
        """
        number = max(_notes(transaction.directory), default=-1)
        note = read_note(_path(transaction, number)) if number >= 0 else None
        if note is None:
            return cls()
        begun = os.path.exists(os.path.join(transaction.directory, f"{number}.intent"))
        counts = transaction.is_done(number) or begun
        try:
            known = cls(str(note["storeId"]), _by_queue(note["before"]), number + counts)
            known.marks = {queue: marks[0] for queue, marks in _by_queue(note.get("marks", {})).items()}
            if counts:
                known.last = _by_queue(note["now"])
                known.add(known.last)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(
                "a note of the job dlq is damaged", path=_path(transaction, number), found=str(error)
            ) from None
        return known

    def add(self, letters: Mapping[Queue, Runs]) -> None:
        """Add sent letters."""
        import numpy as np

        for queue, runs in letters.items():
            self.sent[queue] = runs_of(np.union1d(offsets_of(self.sent.get(queue, [])), offsets_of(runs)))

    def check(self, queues: Iterable[OffsetRange], access: Backend) -> None:
        """Check that the queues are the same: a recreated topic has other letters.

        Raises: UsageError.
        """
        for q in queues:
            queue = (q.topic, q.queue_id)
            runs = self.sent.get(queue, [])
            behind = runs[-1][1] if runs else 0
            at, physical = self.marks.get(queue, (-1, -1))
            mark = access.message_mark(*queue, at) if q.start <= at < q.end else None
            if behind > q.end or (mark is not None and mark[0] != physical):
                raise UsageError(
                    f"queue {q.topic}/{q.queue_id} has the letters {q.start} to {q.end - 1}, and they are not those of "
                    f"which letters up to {behind - 1} were sent back: it was made again; --txn-id with another name "
                    "sends what it has now"
                )

    def save(
        self, transaction: Noted, store_id: str, letters: Mapping[Queue, Runs], marks: Mapping[Queue, tuple[int, int]]
    ) -> None:
        """Write the letters of the next batch, with ``marks_of`` these letters; durable on return."""
        os.makedirs(transaction.directory, exist_ok=True)
        last = {**self.marks, **{queue: max(mark, self.marks.get(queue, mark)) for queue, mark in marks.items()}}
        note = {"storeId": store_id, "before": _by_name(self.sent), "now": _by_name(letters)}
        note["marks"] = _by_name({queue: [mark] for queue, mark in last.items()})
        write_note(_path(transaction, self.batch), {"version": VERSION, **note})

    def forget_older(self, transaction: Noted) -> None:
        """Remove earlier notes: the last note includes their letters."""
        for number in _notes(transaction.directory):
            if number < self.batch:
                unlink(_path(transaction, number))


def marks_of(letters: Mapping[Queue, Runs], access: Backend) -> dict[Queue, tuple[int, int]]:
    """Return the last of these letters of each queue: queue offset and physical offset."""
    marks = {}
    for queue, runs in letters.items():
        mark = access.message_mark(*queue, runs[-1][1] - 1)
        if mark is not None:
            marks[queue] = runs[-1][1] - 1, mark[0]
    return marks


def _path(transaction: Noted, number: int) -> str:
    return os.path.join(transaction.directory, f"{number}.letters")


def _notes(directory: str) -> list[int]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [int(match[1]) for match in map(_NOTE.fullmatch, names) if match is not None]


def _by_name(letters: Mapping[Queue, Runs]) -> dict[str, Runs]:
    return {f"{topic}/{queue_id}": runs for (topic, queue_id), runs in sorted(letters.items())}


def _by_queue(letters: dict[str, list[list[int]]]) -> dict[Queue, Runs]:
    by_queue: dict[Queue, Runs] = {}
    for name, runs in letters.items():
        topic, _, queue_id = name.rpartition("/")
        by_queue[topic, int(queue_id)] = [(int(start), int(end)) for start, end in runs]
    return by_queue


# --- letters ---------------------------------------------------------------------------------------------------------


def revived(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """Return dead letters as rows for the sink: to their original topics, or all to ``topic``.

    Body, born time, born host and flag are kept, and the properties as ``properties.revived`` says.
    """
    import pyarrow as pa

    names = ("bornTimestamp", "bornHost", "flag", "sysFlag", "body")
    topics: list[str] = []
    texts: list[list[tuple[str, str]]] = []
    for row in _decoded(batch.column("properties")):
        target = topic or _properties.origin_of(row)
        assert target is not None, "a letter without origin was chosen"
        topics.append(target)
        texts.append(list(_properties.revived(row, target).items()))
    columns = {
        "topic": pa.array(topics, pa.string()),
        "properties": pa.array(texts, pa.map_(pa.string(), pa.string())),
        **{name: batch.column(name) for name in names},
    }
    return pa.record_batch(columns)


def _decoded(column: pa.Array) -> Iterator[dict[str, str]]:
    for text in column.to_pylist():
        yield _properties.decode(text.encode("utf-8")) if text else {}
