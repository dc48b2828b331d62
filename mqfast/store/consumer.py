"""Embedded consumers: read a topic's queues in order, commit, go on from there after a restart.

They must never skip a message: an offset is committed only when the caller says so, or asks for the next message after
having got one. Offsets live in ``config/consumerOffset.json``, as RocketMQ's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqfast.errors import UsageError
from mqfast.store.results import GetMessageStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqfast.store._record import StoredMessage
    from mqfast.store.message_store import MessageStore

__all__ = ["Consumer"]


class Consumer:
    """One member of a group, in this process.

    ``for message in consumer`` ends when every queue is read to its end; ``poll`` does one batch. Queues are read in
    turn, each in order.
    Thread: one thread at a time. Durability: committed offsets reach the disk every
    ``flush_consumer_offset_interval_ms``, with ``sync()`` and at close.
    """

    def __init__(
        self,
        store: MessageStore,
        group: str,
        topic: str,
        *,
        tags: str | None = None,
        from_first: bool = True,
        batch: int = 32,
    ) -> None:
        if not group or "@" in group:
            raise UsageError(f"group: expected a name without '@', found {group!r}")
        if batch < 1:
            raise UsageError(f"batch: expected at least 1, found {batch}")
        self._store = store
        self.group = group
        self.topic = topic
        self._tags = tags
        self._from_first = from_first
        self._batch = batch
        self._next: dict[int, int] = {}
        self._turn = 0

    def position(self, queue_id: int) -> int:
        """Queue offset of the next message of this queue."""
        at = self._next.get(queue_id)
        if at is None:
            at = self._store.consumer_offsets.get(self.group, self.topic, queue_id)
            if at < 0:
                at = (
                    self._store.min_offset(self.topic, queue_id)
                    if self._from_first
                    else self._store.max_offset(self.topic, queue_id)
                )
            self._next[queue_id] = at
        return at

    def seek(self, queue_id: int, offset: int) -> None:
        """Go on from this queue offset."""
        if offset < 0:
            raise UsageError(f"offset: expected at least 0, found {offset}")
        self._next[queue_id] = offset

    def poll(self) -> list[StoredMessage]:
        """The next messages of one queue; an empty list when all queues are read to their end. Commit them when they
        are done.
        """
        ids = self._store.queue_ids(self.topic)
        for step in range(len(ids)):
            queue_id = ids[(self._turn + step) % len(ids)]
            while True:
                at = self.position(queue_id)
                found = self._store.get(self.topic, queue_id, at, max_count=self._batch, tags=self._tags)
                moved = found.next_offset != at
                self._next[queue_id] = found.next_offset
                if len(found):
                    self._turn = (self._turn + step + 1) % len(ids)
                    return found.messages
                if not moved or found.status in (
                    GetMessageStatus.OFFSET_OVERFLOW_ONE,
                    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
                ):
                    break
        return []

    def commit(self) -> None:
        """Everything got so far is done: a restart goes on behind it."""
        for queue_id, at in self._next.items():
            self._store.consumer_offsets.commit(self.group, self.topic, queue_id, at)

    def commit_message(self, message: StoredMessage) -> None:
        """This message and all before it in its queue are done."""
        self._store.consumer_offsets.commit(self.group, self.topic, message.queue_id, message.queue_offset + 1)

    def sync(self) -> None:
        """Commit, and make the offsets durable."""
        self.commit()
        self._store.consumer_offsets.persist()

    def __iter__(self) -> Iterator[StoredMessage]:
        """Messages until all queues are read; each one is committed when the next is asked for."""
        while messages := self.poll():
            for message in messages:
                yield message
                self.commit_message(message)
            self.commit()

    def lag(self) -> int:
        """Messages that are stored and not yet got."""
        return sum(
            max(0, self._store.max_offset(self.topic, i) - self.position(i)) for i in self._store.queue_ids(self.topic)
        )
