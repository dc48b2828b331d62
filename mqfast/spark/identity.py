"""Is the store still the one that an offset of a stream was made from, and what of it is gone?

Room: the Spark adapter, imports neither Spark nor Arrow. A store has no name that survives a copy, a move and a Java
broker, so an offset keeps records that were there instead: physical offset and a checksum of the record's head, which
holds store time, hosts and the checksum of the body. Retention removes records from the front of the log and nothing
else, so a record that is still within the log must still be the same; a copy or a moved directory has the same ones.
``marks`` are records of the log, ``anchors`` one message of each queue (the last one that was read): a topic that was
deleted and made again has others. It must never take a record that retention removed for a sign of another store, and
never go on behind messages without a ``Loss`` that names them.
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
    """One thing that a stream cannot read any more, in words and, as far as is known, in numbers."""

    what: str
    lost: Lost = field(default_factory=lambda: Lost(times=1))


@dataclass(slots=True)
class Resumed:
    """Where a stream along queues goes on.

    ``gone``: queues that are missing, with their offsets; ``unread``: those that are not read now, and whose topic is
    there.
    """

    first: Offsets = field(default_factory=dict)
    gone: Offsets = field(default_factory=dict)
    unread: list[Place] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


def refuse(losses: Iterable[Loss]) -> None:
    """Raises: DataLoss that names every loss (the first five of many), unless there is none."""
    found = [loss.what for loss in losses]
    if found:
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        raise DataLoss(f"{'; '.join(found[:5])}{more}. failOnDataLoss=false goes on with what is there")


# --- what is kept ----------------------------------------------------------------------------------------------------


def log_marks(
    snapshot: Snapshot, access: Backend, position: int | None = None, before: Iterable[Mark] = ()
) -> tuple[Mark, ...]:
    """The records by which a store is known again: the newest one that a queue has, the first one of its file, the one
    at ``position``, where a stream goes on, and of ``before`` some, ever further apart, which tell how far back a store
    was set."""
    log = access.log
    if log is None:
        return ()
    newest = snapshot.newest if snapshot.newest >= 0 else log.file_start(snapshot.log_end - 1)
    places = {newest, log.file_start(newest)}
    if position is not None and position < snapshot.log_end:
        places.add(position)
    found = {place: log.mark(place) for place in places if snapshot.log_start <= place < snapshot.log_end}
    apart: dict[int, Mark] = {}  # the furthest one of each distance, by powers of four
    for place, crc in sorted(before):
        if snapshot.log_start <= place < newest:
            apart.setdefault((newest - place).bit_length() // 2, (place, crc))
    for place, crc in apart.values():
        found.setdefault(place, crc)
    return tuple((place, crc) for place, crc in sorted(found.items()) if crc is not None)


def anchor_of(place: Place, offset: int, access: Backend) -> Anchor | None:
    """The message before an offset of a queue or, where there is none, the one at it; None for neither."""
    for at in (offset - 1, offset):
        found = access.message_mark(*place, at) if at >= 0 else None
        if found is not None and found[1] is not None:
            return at, found[0], found[1]
    return None


# --- what became of it -----------------------------------------------------------------------------------------------


def _known(marks: Iterable[Mark], snapshot: Snapshot, access: Backend) -> tuple[list[int], list[int]]:
    """Physical offsets of the marks that are the same, and of those that are not."""
    same: list[int] = []
    other: list[int] = []
    log = access.log
    if log is None:
        return same, other
    for place, crc in marks:
        if place >= snapshot.log_start:  # else retention removed it
            (same if place < snapshot.log_end and log.mark(place) == crc else other).append(place)
    return same, other


def _replaced(root: str, other: list[int], what: str) -> str:
    return (
        f"store {root}: not the store that the stream was reading, or one that was set back: {what} physical offset "
        f"{other[0]} is another one or gone"
    )


def resume_log(offset: StreamOffset, snapshot: Snapshot, access: LogAccess) -> tuple[int, list[Loss]]:
    """Where a stream in log order goes on, and what it has lost."""
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
        # Only a record that is still the same says that this is the old log without its end.
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
    """Where a stream along queues goes on, and what it has lost.

    A queue that is missing keeps its offset: a topic may get its queues and permissions back, and a store its queue
    files. The anchor tells whether a queue that is there again is the same.

    Args: selected: the queues that are read; every: look at the anchor of every queue, not only of those that moved;
        wanted: do the options still name a queue? All others stay where they are, there or not; named: topics that
        the offset does not know were added to the options, and are not new to the store.
    Raises: ConnectError where only the master, which is away, can tell.
    """
    assert offset.queues is not None
    found = Resumed()
    queues = {(q.topic, q.queue_id): q for q in snapshot.queues}
    same, other = _known(offset.marks, snapshot, access)
    if other:
        found.losses.append(Loss(_replaced(snapshot.root, other, "the record at")))
    foreign = bool(other) and not same
    for place, at in offset.queues.items():
        queue = queues.get(place)
        if not wanted(place) or (queue is None and snapshot.may_lag):
            found.first[place] = at  # a slave may not have heard of the topic yet
        elif (queue is None and place[0] in snapshot.topics) or (queue is not None and not queue.is_readable):
            found.first[place] = at
            found.unread.append(place)
        elif queue is None:
            if _expired(place, offset, snapshot):
                continue
            if place in offset.anchors:
                found.gone[place] = at
            if at > 0 or place in offset.anchors:
                found.losses.append(
                    Loss(f"queue {_name(place)}: the stream is at {at}, and the queue is gone: was its topic deleted?")
                )
        elif every or other or at != queue.max_offset:
            known = None if foreign else max(same, default=-1)
            found.first[place] = _resume_queue(queue, at, offset.anchors.get(place), known, snapshot, access, found)
        else:
            found.first[place] = at
    _resume_missing(offset, queues, snapshot, access, found, foreign=foreign, wanted=wanted)
    topics = {topic for topic, _ in offset.queues}
    for queue in selected:
        place = (queue.topic, queue.queue_id)
        if place not in offset.queues and place not in offset.gone:
            if queue.min_offset > 0 and snapshot.may_lag:
                raise _only_the_master(queue, 0, snapshot)
            found.first[place] = queue.min_offset
            added = named and queue.topic not in topics
            if queue.min_offset > 0 and not foreign and not added and _was_trimmed(queue, offset, snapshot, access):
                found.losses.append(Loss(
                    f"queue {_name(place)}: it is new to the stream and begins at {queue.min_offset}: what was before "
                    "was removed unread", Lost(times=1, messages=queue.min_offset),
                ))  # fmt: skip
    return found


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _resume_missing(
    offset: StreamOffset,
    queues: Mapping[Place, Queue],
    snapshot: Snapshot,
    access: Backend,
    found: Resumed,
    *,
    foreign: bool,
    wanted: Callable[[Place], bool],
) -> None:
    """Queues that were gone: one that is there again goes on, or from its first message on if its anchor says that it
    is another one. The loss was told when the queue went.
    """
    for place, at in offset.gone.items():
        queue, anchor = queues.get(place), offset.anchors.get(place)
        if queue is None or not queue.is_readable or not wanted(place) or (snapshot.may_lag and at > queue.max_offset):
            found.gone[place] = at
        elif foreign or at > queue.max_offset or (anchor and _is_replaced(place, anchor, snapshot, access)):
            found.first[place] = queue.min_offset
        else:
            found.first[place] = _resume_queue(queue, at, anchor, -1, snapshot, access, found)


def _expired(place: Place, offset: StreamOffset, snapshot: Snapshot) -> bool:
    """Did retention remove a queue that had been read to its end? RocketMQ removes queues whose messages all expired,
    and such a queue begins anew at 0."""
    anchor = offset.anchors.get(place)
    return anchor is not None and anchor[1] < snapshot.log_start <= offset.read


def _was_trimmed(queue: Queue, offset: StreamOffset, snapshot: Snapshot, access: Backend) -> bool:
    """Had a queue that is new to the stream messages below its present beginning?"""
    if snapshot.log_start <= offset.read:  # nothing was removed that the stream had not read
        return False
    return not access.is_filler(queue.topic, queue.queue_id, queue.min_offset - 1)


def _is_replaced(place: Place, anchor: Anchor, snapshot: Snapshot, access: Backend) -> bool:
    """Has the queue another message at this offset now? One that retention removed is none."""
    at, physical, crc = anchor
    found = access.message_mark(*place, at)
    if found is None:
        return False
    return found[0] != physical or (physical >= snapshot.log_start and found[1] != crc)


def _resume_queue(
    queue: Queue, at: int, anchor: Anchor | None, known: int | None, snapshot: Snapshot, access: Backend, found: Resumed
) -> int:
    """Args: known: up to this physical offset the log is the one that the stream was reading, -1 where nothing tells;
    None: it is another log."""
    place = (queue.topic, queue.queue_id)
    name, low, high = _name(place), queue.min_offset, queue.max_offset
    if known is None:
        return low
    if anchor is not None and _is_replaced(place, anchor, snapshot, access):
        found.losses.append(Loss(
            f"queue {name}: made again or set back: message {anchor[0]} was the one at physical offset {anchor[1]}, "
            f"and is another one now; the queue has {low} to {high}"
        ))  # fmt: skip
        return _first_behind(queue, min(at, high), known, access)
    if at < low and snapshot.may_lag:
        raise _only_the_master(queue, at, snapshot)
    if at < low:
        found.losses.append(
            Loss(
                f"queue {name}: the stream is at {at}, and the queue begins at {low}",
                Lost(times=1, messages=low - at),
            )
        )
        return low
    if at > high and snapshot.may_lag:
        return at
    if at > high:
        found.losses.append(Loss(f"queue {name}: the stream is at {at}, and the queue ends at {high}"))
        return _first_behind(queue, high, known, access)
    return at


def _only_the_master(queue: Queue, at: int, snapshot: Snapshot) -> ConnectError:
    return ConnectError(
        f"queue {_name((queue.topic, queue.queue_id))}: the stream is at {at}, the slave of broker {snapshot.store_id} "
        f"begins at {queue.min_offset}, and the master, which may have what is before, is away"
    )


def _first_behind(queue: Queue, end: int, physical_offset: int, access: Backend) -> int:
    """The first message of a queue up to ``end`` that lies in the log behind a place."""
    low, high = queue.min_offset, max(end, queue.min_offset)
    log = access.log
    if log is None or physical_offset < 0:
        return low
    while low < high:
        middle = (low + high) // 2
        found = log.unit_place(queue.topic, queue.queue_id, middle)
        if found is not None and found <= physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


def still_there(offset: StreamOffset, snapshot: Snapshot, access: Backend, places: Iterable[Place]) -> list[Loss]:
    """What is gone of an end that an earlier run planned: marks of the log, and the messages before the end of these
    queues."""
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
    """All losses together."""
    for loss in losses:
        before += loss.lost
    return before


def moved(first: Mapping[Place, int], offset: StreamOffset) -> Offsets:
    """Where a batch begins other than its start says; a queue that the start does not know begins at 0."""
    assert offset.queues is not None
    return {place: at for place, at in first.items() if at != offset.queues.get(place, 0)}
