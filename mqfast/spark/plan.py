"""Planning: from a snapshot of a store to the splits that tasks read.

Arithmetic on a snapshot. Record starts and the log range of queue offsets come through ``LogBoundaries``, so planning
can be tested without a store. Reads no file; imports neither Spark nor Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mqfast.message import LMQ_PREFIX

__all__ = [
    "Split",
    "LogBoundaries",
    "Queue",
    "OffsetRange",
    "ScanRange",
    "Selection",
    "Snapshot",
    "plan",
    "scan_pieces",
]

# Read along the log from this share of selected bytes between the first and the last message.
_LOG_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: messages from ``min_offset`` to ``max_offset``, exclusive.

    ``is_readable``: False for a queue whose messages a broker does not return: the topic has no permission to read, or
    fewer queues for reading than for writing.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    is_batch: bool = False
    is_readable: bool = True

    @property
    def is_light(self) -> bool:
        """Return whether the log holds the messages under another topic."""
        return self.topic.startswith(LMQ_PREFIX)

    @property
    def messages(self) -> int:
        """Return the number of messages."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store at a moment. Messages beyond these ends are not read, however long a job runs.

    ``store_id`` identifies the store by content, see ``LocalBackend.check``; ``log_start`` and ``log_end`` are physical
    offsets, ``taken_ms`` is the time. ``dispatched``: every message below this physical offset is in ``queues``;
    ``newest``: the last record of a queue, -1 for none; ``record_bytes``: estimated bytes of a message, 0 if the log
    shows them; ``may_lag``: the data comes from a slave, which may have fewer messages than the master; ``topics``:
    topics of a broker, also those with missing queues, which may return.
    """

    root: str
    store_id: str
    taken_ms: int
    log_start: int
    log_end: int
    queues: tuple[Queue, ...] = ()
    dispatched: int = 0
    newest: int = -1
    record_bytes: float = 0.0
    may_lag: bool = False
    topics: frozenset[str] = frozenset()

    @property
    def message_bytes(self) -> float:
        """Return the estimated bytes of log of a message."""
        if self.record_bytes:
            return self.record_bytes
        messages = sum(q.messages for q in self.queues if not q.is_light)
        return (self.log_end - self.log_start) / messages if messages else 1024.0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages of a queue from ``start`` to ``end``, exclusive."""

    topic: str
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Records that begin in the log from ``start`` to ``end``, exclusive; a record begins at ``start``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """The input of a task: a range of the log, or ranges of queues in order."""

    scan: ScanRange | None = None
    queues: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that a user selected.

    ``whole``: all messages of all queues, so that the log need not be compared with the ranges.
    """

    ranges: tuple[OffsetRange, ...] = ()
    whole: bool = False

    @property
    def messages(self) -> int:
        """Return the largest possible number of messages."""
        return sum(r.end - r.start for r in self.ranges)


class LogBoundaries(Protocol):
    """The operations of a store that planning uses."""

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Return the start of the first record at or after a physical offset, ``limit`` if there is none before
        ``limit``.
        """

    def boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """Return the record starts for several physical offsets, in ascending order."""

    def physical_span(self, ranges: Sequence[OffsetRange]) -> tuple[int, int]:
        """Return the range of the log that holds these messages; ``(0, 0)`` for none."""


def plan(
    snapshot: Snapshot,
    selection: Selection,
    places: LogBoundaries | None,
    *,
    order: str = "auto",
    partition_bytes: int = 128 << 20,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
    within: tuple[int, int] = (0, 1 << 63),
) -> list[Split]:
    """Cut the selected messages into splits of about ``partition_bytes`` of log; empty if there are none.

    ``places``: None for a store without a log: all messages are read along the queues. ``within``: only this range of
    the log is wanted; ignored along queues.
    """
    ranges = [r for r in selection.ranges if r.start < r.end]
    if places is None:
        parts = _parts(selection.messages * snapshot.message_bytes, partition_bytes, min_partitions, max_partitions)
        return _queue_pieces(ranges, parts)
    if selection.whole:
        span = (snapshot.log_start, snapshot.log_end)
    else:
        span = places.physical_span(ranges) if ranges else (0, 0)
    if span[0] < within[0] < span[1]:
        span = (places.boundary(within[0], span[1]), span[1])
    span = (span[0], min(span[1], within[1]))
    if span[0] >= span[1] or within[0] >= span[1]:
        return []
    selected = span[1] - span[0] if selection.whole else sum(r.end - r.start for r in ranges) * snapshot.message_bytes
    along_log = order == "commitlog" or (order == "auto" and _prefers_log(snapshot, selection, selected, span))
    total = span[1] - span[0] if along_log else selected
    parts = _parts(total, partition_bytes, min_partitions, max_partitions)
    if along_log:
        return [Split(scan=piece) for piece in scan_pieces(span[0], span[1], parts, places)]
    return _queue_pieces(ranges, parts)


def _parts(total: float, partition_bytes: int, minimum: int | None, maximum: int | None) -> int:
    parts = max(1, round(total / partition_bytes), minimum or 1)
    return parts if maximum is None else min(parts, maximum)


def _prefers_log(snapshot: Snapshot, selection: Selection, selected: float, span: tuple[int, int]) -> bool:
    if selection.whole:
        return True
    kinds = {(q.topic, q.queue_id): q for q in snapshot.queues}
    wanted = [kinds.get((r.topic, r.queue_id)) for r in selection.ranges]
    # Messages of a light queue are reachable through the queue only; a batch queue counts messages, not records.
    if any(q is not None and (q.is_light or q.is_batch) for q in wanted):
        return False
    return selected >= _LOG_SHARE * (span[1] - span[0])


def scan_pieces(start: int, end: int, parts: int, places: LogBoundaries) -> list[ScanRange]:
    """Cut a range of the log into at most ``parts`` ranges of similar size, each starting at a record."""
    cuts = [start]
    for cut in places.boundaries([start + (end - start) * i // parts for i in range(1, parts)], end):
        if cuts[-1] < cut < end:
            cuts.append(cut)
    return [ScanRange(a, b) for a, b in zip(cuts, [*cuts[1:], end], strict=True)]


def _queue_pieces(ranges: Sequence[OffsetRange], parts: int) -> list[Split]:
    """Distribute the messages in order; a queue is cut where a split is full, and a split may hold many queues."""
    total = sum(r.end - r.start for r in ranges)
    parts = min(parts, total)
    pieces: list[Split] = []
    current: list[OffsetRange] = []
    done = 0
    for r in ranges:
        at = r.start
        while at < r.end:
            # Messages up to the end of the split being filled: all splits differ by at most one message.
            room = total * (len(pieces) + 1) // parts - done
            count = min(room, r.end - at)
            current.append(OffsetRange(r.topic, r.queue_id, at, at + count))
            at += count
            done += count
            if count == room:
                pieces.append(Split(queues=tuple(current)))
                current = []
    return pieces
