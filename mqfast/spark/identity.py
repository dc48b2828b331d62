"""The identity of a store between batches: whether the store is still the same, and which messages were lost.

A store has no name that survives a copy, a move and a Java broker. So an offset keeps records as evidence: physical
offset and checksum of the record's head, which holds store time, hosts and body checksum. Retention removes records
from the front of the log only, so a record within the log stays the same; a copy has the same records. ``marks`` are
records of the log. ``anchors`` are the last message read of each queue: a topic that was deleted and created
again has others. A record that retention removed is not evidence of another store. Each skipped message is part of a
``Loss``. Imports neither Spark nor Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqfast.errors import ConnectError, DataLoss
from mqfast.spark.offsets import Anchor, Lost, Mark, Offsets, Place, StreamOffset
from mqfast.spark.plan import Queue, Snapshot

if TYPE_CHECKING:
    from mqfast.spark.backend import Backend, LogAccess

__all__ = ["Loss", "Resumed", "anchor_of", "log_marks", "refuse", "resume_log", "resume_queues", "still_there"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that a stream cannot read any more: a text and, where known, their number."""

    what: str
    lost: Lost = field(default_factory=lambda: Lost(times=1))


@dataclass(slots=True)
class Resumed:
    """The start of a batch of a stream along queues.

    ``gone``: missing queues with their offsets. ``unread``: queues that cannot be read now, of existing topics.
    """

    first: Offsets = field(default_factory=dict)
    gone: Offsets = field(default_factory=dict)
    unread: list[Place] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


def refuse(losses: Iterable[Loss]) -> None:
    """Raise DataLoss with the losses (the first five of many); return if there is none."""
    texts = [loss.what for loss in losses]
    if texts:
        more = f"; and {len(texts) - 5} more" if len(texts) > 5 else ""
        raise DataLoss(f"{'; '.join(texts[:5])}{more}. failOnDataLoss=false goes on with what is there")


# --- marks and anchors -----------------------------------------------------------------------------------------------


def log_marks(
    snapshot: Snapshot, access: Backend, position: int | None = None, before: Iterable[Mark] = ()
) -> tuple[Mark, ...]:
    """Return the records that identify a store.

    These are the newest record of a queue, the first record of the same file, and the record at ``position``, where a
    stream continues. Some of ``before`` are kept, at growing distances: they show how far a store was set back.
    """
    log = access.log
    if log is None:
        return ()
    newest = snapshot.newest if snapshot.newest >= 0 else log.file_start(snapshot.log_end - 1)
    places = {newest, log.file_start(newest)}
    if position is not None and position < snapshot.log_end:
        places.add(position)
    marks = {place: log.mark(place) for place in places if snapshot.log_start <= place < snapshot.log_end}
    apart: dict[int, Mark] = {}  # the furthest mark of each distance, by powers of four
    for place, crc in sorted(before):
        if snapshot.log_start <= place < newest:
            apart.setdefault((newest - place).bit_length() // 2, (place, crc))
    for place, crc in apart.values():
        marks.setdefault(place, crc)
    return tuple((place, crc) for place, crc in sorted(marks.items()) if crc is not None)


def anchor_of(place: Place, offset: int, access: Backend) -> Anchor | None:
    """Return the message before an offset of a queue or, without one, the message at the offset; None for neither."""
    for at in (offset - 1, offset):
        mark = access.message_mark(*place, at) if at >= 0 else None
        if mark is not None and mark[1] is not None:
            return at, mark[0], mark[1]
    return None


# --- resuming --------------------------------------------------------------------------------------------------------


def _known(marks: Iterable[Mark], snapshot: Snapshot, access: Backend) -> tuple[list[int], list[int]]:
    """Return the physical offsets of the unchanged marks, and of the changed marks."""
    same: list[int] = []
    other: list[int] = []
    log = access.log
    if log is None:
        return same, other
    for place, crc in marks:
        if place >= snapshot.log_start:  # otherwise retention removed the record
            (same if place < snapshot.log_end and log.mark(place) == crc else other).append(place)
    return same, other


def _replaced(root: str, other: list[int], what: str) -> str:
    return (
        f"store {root}: not the store that the stream was reading, or one that was set back: {what} physical offset "
        f"{other[0]} is another one or gone"
    )


def resume_log(offset: StreamOffset, snapshot: Snapshot, access: LogAccess) -> tuple[int, list[Loss]]:
    """Return the position where a stream in log order continues, and the losses."""
    assert offset.position is not None
    position, start, end = offset.position, snapshot.log_start, snapshot.log_end
    same, other = _known(offset.marks, snapshot, access)
    if other:
        what = _replaced(snapshot.root, other, "the record at")
        if not same:
            return start, [Loss(f"{what}; the stream is at physical offset {position}, the log begins at {start}")]
        behind = access.behind(max(same)) if max(same) < position else position
        return min(behind, end), [Loss(f"{what}; records behind {max(same)} were lost")]
    if position < start:
        lost = Lost(times=1, bytes=start - position)
        return start, [Loss(f"the stream wants physical offset {position}, and the log begins at {start}", lost)]
    if position > end:
        # Only an unchanged record shows that this is the old log without its end.
        first = end if same else start
        return first, [Loss(f"the stream is at physical offset {position}, and the log ends at {end}")]
    return position, []


def resume_queues(
    offset: StreamOffset,
    snapshot: Snapshot,
    selected: Iterable[Queue],
    access: Backend,
    *,
    every: bool,
    wanted: Callable[[Place], bool],
    named: bool,
) -> Resumed:
    """Return the offsets where a stream along queues continues, and the losses.

    A missing queue keeps its offset: a topic may get queues and permissions back, a store its queue files. The anchor
    shows whether a returned queue is the same.

    Args: selected: the queues to read; every: check the anchors of all queues, not only of those that moved; wanted:
        whether the options still select a queue; others keep their offsets; named: topics missing in the offset were
        added to the options and are not new in the store.
    Raises: ConnectError if only the master, which is unavailable, has the messages.
    """
    assert offset.queues is not None
    resumed = Resumed()
    queues = {(q.topic, q.queue_id): q for q in snapshot.queues}
    same, other = _known(offset.marks, snapshot, access)
    if other:
        resumed.losses.append(Loss(_replaced(snapshot.root, other, "the record at")))
    foreign = bool(other) and not same
    for place, at in offset.queues.items():
        queue = queues.get(place)
        if not wanted(place) or (queue is None and snapshot.may_lag):
            resumed.first[place] = at  # a slave may not have the topic yet
        elif (queue is None and place[0] in snapshot.topics) or (queue is not None and not queue.is_readable):
            resumed.first[place] = at
            resumed.unread.append(place)
        elif queue is None:
            if _expired(place, offset, snapshot):
                continue
            if place in offset.anchors:
                resumed.gone[place] = at
            if at > 0 or place in offset.anchors:
                resumed.losses.append(
                    Loss(f"queue {_name(place)}: the stream is at {at}, and the queue is gone: was its topic deleted?")
                )
        elif every or other or at != queue.max_offset:
            known = None if foreign else max(same, default=-1)
            resumed.first[place] = _resume_queue(queue, at, offset.anchors.get(place), known, snapshot, access, resumed)
        else:
            resumed.first[place] = at
    _resume_missing(offset, queues, snapshot, access, resumed, foreign=foreign, wanted=wanted)
    topics = {topic for topic, _ in offset.queues}
    for queue in selected:
        place = (queue.topic, queue.queue_id)
        if place not in offset.queues and place not in offset.gone:
            if queue.min_offset > 0 and snapshot.may_lag:
                raise _only_the_master(queue, 0, snapshot)
            resumed.first[place] = queue.min_offset
            added = named and queue.topic not in topics
            if queue.min_offset > 0 and not foreign and not added and _was_trimmed(queue, offset, snapshot, access):
                resumed.losses.append(Loss(
                    f"queue {_name(place)}: it is new to the stream and begins at {queue.min_offset}: what was before "
                    "was removed unread", Lost(times=1, messages=queue.min_offset),
                ))  # fmt: skip
    return resumed


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _resume_missing(
    offset: StreamOffset,
    queues: Mapping[Place, Queue],
    snapshot: Snapshot,
    access: Backend,
    resumed: Resumed,
    *,
    foreign: bool,
    wanted: Callable[[Place], bool],
) -> None:
    """Resume queues that were missing: a returned queue continues, or starts at the first message if the anchor
    changed. The loss was reported when the queue disappeared.
    """
    for place, at in offset.gone.items():
        queue, anchor = queues.get(place), offset.anchors.get(place)
        if queue is None or not queue.is_readable or not wanted(place) or (snapshot.may_lag and at > queue.max_offset):
            resumed.gone[place] = at
        elif foreign or at > queue.max_offset or (anchor and _is_replaced(place, anchor, snapshot, access)):
            resumed.first[place] = queue.min_offset
        else:
            resumed.first[place] = _resume_queue(queue, at, anchor, -1, snapshot, access, resumed)


def _expired(place: Place, offset: StreamOffset, snapshot: Snapshot) -> bool:
    """Return whether retention removed a queue that had been read to its end.

    RocketMQ removes queues whose messages have all expired; such a queue starts again at 0.
    """
    anchor = offset.anchors.get(place)
    return anchor is not None and anchor[1] < snapshot.log_start <= offset.read


def _was_trimmed(queue: Queue, offset: StreamOffset, snapshot: Snapshot, access: Backend) -> bool:
    """Return whether a queue that is new to the stream had messages below the present start."""
    if snapshot.log_start <= offset.read:  # retention removed only messages that the stream had read
        return False
    return not access.is_filler(queue.topic, queue.queue_id, queue.min_offset - 1)


def _is_replaced(place: Place, anchor: Anchor, snapshot: Snapshot, access: Backend) -> bool:
    """Return whether the queue has another message at the anchor's offset now; a removed message does not count."""
    at, physical, crc = anchor
    mark = access.message_mark(*place, at)
    if mark is None:
        return False
    return mark[0] != physical or (physical >= snapshot.log_start and mark[1] != crc)


def _resume_queue(
    queue: Queue,
    at: int,
    anchor: Anchor | None,
    known: int | None,
    snapshot: Snapshot,
    access: Backend,
    resumed: Resumed,
) -> int:
    """Return the offset where the stream continues in a queue; losses go to ``resumed``.

    Args: known: up to this physical offset the log is unchanged, -1 if unknown; None: another log.
    """
    place = (queue.topic, queue.queue_id)
    name, low, high = _name(place), queue.min_offset, queue.max_offset
    if known is None:
        return low
    if anchor is not None and _is_replaced(place, anchor, snapshot, access):
        resumed.losses.append(Loss(
            f"queue {name}: made again or set back: message {anchor[0]} was the one at physical offset {anchor[1]}, "
            f"and is another one now; the queue has {low} to {high}"
        ))  # fmt: skip
        return _first_behind(queue, min(at, high), known, access)
    if at < low and snapshot.may_lag:
        raise _only_the_master(queue, at, snapshot)
    if at < low:
        resumed.losses.append(
            Loss(
                f"queue {name}: the stream is at {at}, and the queue begins at {low}",
                Lost(times=1, messages=low - at),
            )
        )
        return low
    if at > high and snapshot.may_lag:
        return at
    if at > high:
        resumed.losses.append(Loss(f"queue {name}: the stream is at {at}, and the queue ends at {high}"))
        return _first_behind(queue, high, known, access)
    return at


def _only_the_master(queue: Queue, at: int, snapshot: Snapshot) -> ConnectError:
    return ConnectError(
        f"queue {_name((queue.topic, queue.queue_id))}: the stream is at {at}, the slave of broker {snapshot.store_id} "
        f"begins at {queue.min_offset}, and the master, which may have what is before, is away"
    )


def _first_behind(queue: Queue, end: int, physical_offset: int, access: Backend) -> int:
    """Return the first message of a queue up to ``end`` with a physical offset above ``physical_offset``."""
    low, high = queue.min_offset, max(end, queue.min_offset)
    log = access.log
    if log is None or physical_offset < 0:
        return low
    while low < high:
        middle = (low + high) // 2
        physical = log.unit_place(queue.topic, queue.queue_id, middle)
        if physical is not None and physical <= physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


def still_there(offset: StreamOffset, snapshot: Snapshot, access: Backend, places: Iterable[Place]) -> list[Loss]:
    """Return the losses in a range that an earlier run planned: marks of the log, and the last messages of these
    queues.
    """
    losses = []
    other = _known(offset.marks, snapshot, access)[1]
    if other:
        losses.append(Loss(_replaced(snapshot.root, other, "the record at")))
    for place in places:
        anchor = offset.anchors.get(place)
        if anchor is not None and _is_replaced(place, anchor, snapshot, access):
            losses.append(Loss(f"queue {_name(place)}: made again or set back since the batch was planned"))
    return losses


def numbered(losses: Iterable[Loss], before: Lost) -> Lost:
    """Return the sum of all losses."""
    for loss in losses:
        before += loss.lost
    return before


def moved(first: Mapping[Place, int], offset: StreamOffset) -> Offsets:
    """Return the offsets where a batch begins, if other than in ``offset``; a queue without an offset begins at 0."""
    assert offset.queues is not None
    return {place: at for place, at in first.items() if at != offset.queues.get(place, 0)}
