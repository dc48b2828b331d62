"""The messages in flight: delivered batches in memory, by key, by queue and by due time.

The table is a copy of what the records of the revive topic say, made at each POP and ack, so that redelivery needs no
scan. Batches of earlier processes enter when the scan reads the check-point. Source: PopBufferMergeService.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

from mqfast.broker.pop.check_point import Batch

__all__ = ["InFlight"]

_Queue = tuple[str, str, int]
_SPARE: Final = 1024


class InFlight:
    """The batches with messages that are neither acked nor stored again.

    Attributes: ``messages``: the count of these messages.
    Thread: that of the event loop.
    """

    def __init__(self) -> None:
        self.messages = 0
        self._batches: dict[str, Batch] = {}
        self._of_queue: dict[_Queue, int] = {}
        self._due: list[tuple[int, int, Batch]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> None:
        """Add a batch. An own batch becomes due by the clock, another batch by the scan of the revive topic."""
        if not batch.pending:
            return
        self._batches[batch.key] = batch
        self._count(batch, len(batch.pending))
        if batch.is_own:
            self.due_at(batch.due_ms, batch)

    def due_at(self, due_ms: int, batch: Batch) -> None:
        """Note a due time of a batch, also for a further try."""
        if len(self._due) > _SPARE + 2 * len(self._batches):
            self._due = [entry for entry in self._due if entry[2].pending]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (due_ms, next(self._numbers), batch))

    def get(self, key: str) -> Batch | None:
        """Return a batch; None for an unknown batch, and one without pending messages."""
        return self._batches.get(key)

    def settle(self, batch: Batch, offset: int) -> bool:
        """Note that a message is acked or stored again. Returns: False if that was known."""
        if offset not in batch.pending:
            return False
        batch.pending.remove(offset)
        self._count(batch, -1)
        if not batch.pending and self._batches.get(batch.key) is batch:
            del self._batches[batch.key]
        return True

    def forget(self, batch: Batch) -> None:
        """Drop a batch: the topic or the group is gone."""
        for offset in list(batch.pending):
            self.settle(batch, offset)

    def of_topic(self, topic: str) -> list[Batch]:
        """Return the batches of a topic."""
        return [batch for batch in self._batches.values() if batch.topic == topic]

    def take_due(self, now_ms: int) -> Iterator[Batch]:
        """Yield the batches that are due; each is removed from the due times."""
        while self._due and self._due[0][0] <= now_ms:
            batch = heapq.heappop(self._due)[2]
            if batch.pending:
                yield batch

    @property
    def next_due_ms(self) -> int | None:
        """Return the next due time; None without a batch."""
        while self._due and not self._due[0][2].pending:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the messages in flight of a queue and a group."""
        return self._of_queue.get((topic, group, queue_id), 0)

    def counts(self) -> dict[_Queue, int]:
        """Return the messages in flight by (topic, group, queue id)."""
        return dict(self._of_queue)

    def _count(self, batch: Batch, change: int) -> None:
        self.messages += change
        queue = batch.topic, batch.group, batch.queue_id
        count = self._of_queue.get(queue, 0) + change
        if count:
            self._of_queue[queue] = count
        else:
            del self._of_queue[queue]
