"""From a snapshot of a store to the pieces that tasks read.

Room: the Spark adapter, imports neither Spark nor Arrow. Everything here is arithmetic on a snapshot that was taken
once; the few questions that need the store (where a record begins, which bytes a queue's offsets span) go through
``LogBoundaries``, so that it can be tested without one. It must never read a file.
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

# Along the log when at least this part of the bytes between the first and the last message is asked for.
_LOG_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue: messages from ``min_offset`` up to, not including, ``max_offset``.

    ``is_readable``: False for a queue that a broker has and hands out no messages of: the topic has no permission to
    read, or fewer queues for reading than for writing.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    is_batch: bool = False
    is_readable: bool = True

    @property
    def is_light(self) -> bool:
        """Do its messages lie in the log under another topic?"""
        return self.topic.startswith(LMQ_PREFIX)

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store at one moment. What lies beyond these ends is not read, however long a job runs.

    ``store_id`` names the store by its content, see ``LocalAccess.check``; ``log_start`` and ``log_end`` are physical
    offsets, ``taken_ms`` is the time. ``dispatched``: every message below this physical offset is in ``queues``;
    ``newest``: the last record that a queue has, -1 for none; ``record_bytes``: about how many bytes a message takes,
    0 where the log tells; ``may_lag``: a slave says so, which may have fewer messages than its master; ``topics``:
    topics that a broker has, also those of which it tells of some queues only: a queue that is missing may come back.
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
        """About how many bytes of log one message takes."""
        if self.record_bytes:
            return self.record_bytes
        messages = sum(q.messages for q in self.queues if not q.is_light)
        return (self.log_end - self.log_start) / messages if messages else 1024.0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages of one queue from ``start`` up to, not including, ``end``."""

    topic: str
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Records that begin in the log from ``start`` up to, not including, ``end``; a record begins at ``start``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads: a part of the log, or parts of queues one after another."""

    scan: ScanRange | None = None
    queues: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that a user asked for.

    ``whole``: everything that queues could hold, so that the log need not be compared with them.
    """

    ranges: tuple[OffsetRange, ...] = ()
    whole: bool = False

    @property
    def messages(self) -> int:
        """How many messages it holds at most."""
        return sum(r.end - r.start for r in self.ranges)


class LogBoundaries(Protocol):
    """What planning asks of a store."""

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Where the first record at or behind a physical offset begins, ``limit`` when none does before it."""

    def boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """The same for several physical offsets, which ascend."""

    def physical_span(self, ranges: Sequence[OffsetRange]) -> tuple[int, int]:
        """The part of the log in which these messages lie; ``(0, 0)`` for none."""


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
    """Cut what was asked for into pieces of about ``partition_bytes`` of log; empty when there is nothing.

    ``places``: None where there is no log to be asked: everything is read along the queues. ``within``: only this part
    of the log is wanted; along queues it is not looked at.
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


def _parts(total: float, partition_bytes: int, least: int | None, most: int | None) -> int:
    parts = max(1, round(total / partition_bytes), least or 1)
    return parts if most is None else min(parts, most)


def _prefers_log(snapshot: Snapshot, selection: Selection, selected: float, span: tuple[int, int]) -> bool:
    if selection.whole:
        return True
    kinds = {(q.topic, q.queue_id): q for q in snapshot.queues}
    wanted = [kinds.get((r.topic, r.queue_id)) for r in selection.ranges]
    # A light queue's messages are found through it only; a batch queue counts otherwise than its records do.
    if any(q is not None and (q.is_light or q.is_batch) for q in wanted):
        return False
    return selected >= _LOG_SHARE * (span[1] - span[0])


def scan_pieces(start: int, end: int, parts: int, places: LogBoundaries) -> list[ScanRange]:
    """Cut a part of the log into at most ``parts`` pieces of like size, each from the beginning of a record on."""
    cuts = [start]
    for cut in places.boundaries([start + (end - start) * i // parts for i in range(1, parts)], end):
        if cuts[-1] < cut < end:
            cuts.append(cut)
    return [ScanRange(a, b) for a, b in zip(cuts, [*cuts[1:], end], strict=True)]


def _queue_pieces(ranges: Sequence[OffsetRange], parts: int) -> list[Split]:
    """Deal the messages out in order; a queue is cut where a piece is full, and a piece may hold many queues."""
    total = sum(r.end - r.start for r in ranges)
    parts = min(parts, total)
    pieces: list[Split] = []
    current: list[OffsetRange] = []
    done = 0
    for r in ranges:
        at = r.start
        while at < r.end:
            # Messages up to the end of the piece that is being filled: all pieces differ by at most one.
            room = total * (len(pieces) + 1) // parts - done
            count = min(room, r.end - at)
            current.append(OffsetRange(r.topic, r.queue_id, at, at + count))
            at += count
            done += count
            if count == room:
                pieces.append(Split(queues=tuple(current)))
                current = []
    return pieces
