"""The producer state of idempotent writes: the last row of each task in each queue, by write and batch.

No I/O and no clock. Each message has its mark, so that a restart can rebuild the state from the log. A row that may be
sent again is never forgotten: the newest two batches of a write stay until the write is idle for the time of the
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from mqfast.remoting.once import RowSequence

__all__ = ["Division", "LastSequence", "ProducerStateTable", "ProducerStateFull", "FencedBatch", "OtherPartitioning"]

_BATCHES_KEPT: Final = 2
_FRESH_MS: Final = 3_600_000

Place = tuple[int, str, int]
"""Partition, topic, queue id."""
Division = tuple[int, int]
"""Queues and brokers that the rows of a topic are divided among."""


class LastSequence(NamedTuple):
    """The last row of a task in a queue. ``end`` is the physical offset after the record."""

    row: int
    crc: int
    end: int
    queue_offset: int


class FencedBatch(Exception):
    """A row of an older batch: a newer batch has begun."""


class OtherPartitioning(Exception):
    """A row of a batch whose rows were divided among other queues."""


class ProducerStateFull(Exception):
    """There is no room for another write, and no write can be forgotten."""


class _Batch:
    def __init__(self) -> None:
        self.rows: dict[Place, LastSequence] = {}
        self.divisions: dict[str, Division] = {}


class _Write:
    def __init__(self) -> None:
        self.last_ms = 0
        self.done: dict[str, int] = {}  # topic -> the newest batch that is completely stored there
        self.batches: dict[int, _Batch] = {}

    @property
    def newest(self) -> int:
        return max(self.batches, default=-1)

    @property
    def places(self) -> int:
        return len(self.done) + sum(len(batch.rows) for batch in self.batches.values())


class ProducerStateTable:
    """The producer state of a broker.

    Args: keep_ms: how long a write is kept after the last row; places_max: the most entries: tasks times queues, and
        topics with a completely stored batch.
    Attributes: ``newest_begin``: the physical offset of the newest noted record, -1 without one.
    Thread: that of the event loop, or one at a time.
    """

    def __init__(self, keep_ms: int, places_max: int) -> None:
        self.keep_ms = keep_ms
        self.places_max = places_max
        self.newest_begin = -1
        self._writes: dict[str, _Write] = {}
        self._places = 0

    def __len__(self) -> int:
        return self._places

    @property
    def writes(self) -> int:
        """Return the number of writes."""
        return len(self._writes)

    # --- queries ---

    def last(self, mark: RowSequence, topic: str, queue_id: int) -> LastSequence | None:
        """Return the last row of a task in a queue. Raises: FencedBatch, OtherPartitioning."""
        write = self._writes.get(mark.key)
        if write is None:
            return None
        if mark.batch < write.newest - _BATCHES_KEPT + 1:
            raise FencedBatch(f"batch {mark.batch} is over: rows of batch {write.newest} are stored")
        batch = write.batches.get(mark.batch)
        if batch is None:
            return None
        before = batch.divisions.get(topic)
        if before is not None and before != (mark.queues, mark.brokers):
            raise OtherPartitioning(
                f"topic {topic}: rows of batch {mark.batch} were divided among {before[0]} queues of {before[1]} "
                f"brokers, and now among {mark.queues} of {mark.brokers}"
            )
        return batch.rows.get((mark.partition, topic, queue_id))

    def newest(self, key: str) -> int | None:
        """Return the newest batch of a write, None for an unknown write."""
        write = self._writes.get(key)
        return None if write is None else write.newest

    def done(self, key: str, topics: Iterable[str]) -> int:
        """Return the newest batch of a write that is completely stored in any of these topics, -1: none is."""
        write = self._writes.get(key)
        return -1 if write is None else max((write.done.get(topic, -1) for topic in topics), default=-1)

    def ended(self, key: str, batch: int) -> list[str]:
        """Return the topics in which a batch, or a later batch, is completely stored."""
        write = self._writes.get(key)
        return [] if write is None else [topic for topic, newest in write.done.items() if newest >= batch]

    def divisions(self, key: str, batch: int) -> dict[str, Division]:
        """Return topic -> division of a batch."""
        write = self._writes.get(key)
        entry = None if write is None else write.batches.get(batch)
        return {} if entry is None else dict(entry.divisions)

    def before(self, key: str, batch: int) -> dict[str, Division]:
        """Return topic -> division of the newest batch before this one."""
        write = self._writes.get(key)
        older = [number for number in write.batches if number < batch] if write is not None else []
        return self.divisions(key, max(older)) if older else {}

    def rows(self, key: str, batch: int) -> list[tuple[int, str, int, int, int]]:
        """Return (partition, topic, queue id, last row, crc) of all tasks of a batch."""
        write = self._writes.get(key)
        entry = None if write is None else write.batches.get(batch)
        return [] if entry is None else [(*place, last.row, last.crc) for place, last in entry.rows.items()]

    # --- changes ---

    def make_room(self, key: str, now_ms: int) -> None:
        """Forget expired writes, before something new of a write is stored. Raises: ProducerStateFull."""
        if self._places >= self.places_max:
            self.expire(now_ms)
            self._forget_idle(key, now_ms)
        if self._places >= self.places_max:
            raise ProducerStateFull(
                f"{self._places} tasks of {len(self._writes)} writes are remembered, all of the last hour"
            )

    def trim(self, now_ms: int) -> None:
        """Forget idle writes if there are too many: a log may have more writes than were ever kept at a time."""
        if self._places > self.places_max:
            self._forget_idle("", now_ms)

    def _forget_idle(self, spared: str, now_ms: int) -> None:
        for key, write in sorted(self._writes.items(), key=lambda item: item[1].last_ms):
            if self._places < self.places_max or write.last_ms > now_ms - _FRESH_MS:
                return
            if key != spared:
                self._drop(key)

    def note(self, mark: RowSequence, topic: str, queue_id: int, last: LastSequence, now_ms: int) -> None:
        """Note a stored row. A row at or before the last one, or of an older batch, changes nothing."""
        write = self._writes.get(mark.key)
        if write is None:
            write = self._writes[mark.key] = _Write()
        oldest = max(write.newest, mark.batch) - _BATCHES_KEPT + 1
        if mark.batch < oldest:
            return
        batch = write.batches.get(mark.batch)
        if batch is None:
            batch = write.batches[mark.batch] = _Batch()
            for old in [number for number in write.batches if number < oldest]:
                self._places -= len(write.batches.pop(old).rows)
        place = (mark.partition, topic, queue_id)
        known = batch.rows.get(place)
        if known is not None and known.row >= last.row:
            return
        self._places += known is None
        batch.rows[place] = last
        batch.divisions[topic] = (mark.queues, mark.brokers)
        write.last_ms = max(write.last_ms, now_ms)

    def complete_batch(self, key: str, batch: int, topics: Iterable[str], now_ms: int) -> None:
        """Note that a batch is completely stored in these topics; other topics are not affected."""
        write = self._writes.get(key)
        if write is None:
            write = self._writes[key] = _Write()
        for topic in topics:
            self._places += topic not in write.done
            write.done[topic] = max(batch, write.done.get(topic, -1))
        write.last_ms = max(write.last_ms, now_ms)

    def forget_topic(self, topic: str) -> None:
        """Forget the rows of a deleted topic: rows that are sent again are for a new topic of this name."""
        for write in self._writes.values():
            self._places -= write.done.pop(topic, None) is not None
            for number, batch in list(write.batches.items()):
                if batch.divisions.pop(topic, None) is None:
                    continue
                kept = {place: last for place, last in batch.rows.items() if place[1] != topic}
                self._places -= len(batch.rows) - len(kept)
                batch.rows = kept
                if not kept:
                    del write.batches[number]

    def expire(self, now_ms: int) -> int:
        """Forget writes that are idle for longer than ``keep_ms``. Returns: the number of writes."""
        old = [key for key, write in self._writes.items() if write.last_ms < now_ms - self.keep_ms]
        for key in old:
            self._drop(key)
        return len(old)

    def _drop(self, key: str) -> None:
        self._places -= self._writes.pop(key).places

    # --- as JSON ---

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            key: {
                "lastMs": write.last_ms,
                "done": dict(write.done),
                "batches": {
                    str(number): {
                        "divisions": {topic: list(division) for topic, division in batch.divisions.items()},
                        "rows": [[*place, *last] for place, last in batch.rows.items()],
                    }
                    for number, batch in write.batches.items()
                },
            }
            for key, write in self._writes.items()
        }

    def load(self, said: dict[str, Any]) -> None:
        """Replace the state by the output of ``dump``. Raises: ValueError, TypeError, KeyError, AttributeError."""
        writes: dict[str, _Write] = {}
        for key, value in said.items():
            write = writes[str(key)] = _Write()
            write.last_ms = int(value["lastMs"])
            write.done = {str(topic): int(number) for topic, number in value["done"].items()}
            for number, fields in value["batches"].items():
                batch = write.batches[int(number)] = _Batch()
                batch.divisions = {str(topic): (int(q), int(b)) for topic, (q, b) in fields["divisions"].items()}
                batch.rows = dict(_rows(fields["rows"]))
        self._writes = writes
        self._places = sum(write.places for write in writes.values())


def _rows(said: list[list[Any]]) -> Iterator[tuple[Place, LastSequence]]:
    for partition, topic, queue_id, row, crc, end, queue_offset in said:
        yield (int(partition), str(topic), int(queue_id)), LastSequence(int(row), int(crc), int(end), int(queue_offset))
