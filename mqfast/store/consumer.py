"""Embedded consumers: read a topic's queues in order, acknowledge, and resume after a restart.

A message is acknowledged only after the message was handed out, and deleted messages are never skipped silently.
Offsets are stored in ``config/consumerOffset.json``, as RocketMQ's.

Each queue has two offsets: behind the last message that was *handed out*, and behind the last message that was
*acknowledged*. Only acknowledged offsets are stored. A new loop begins at the acknowledged offset.
"""

from __future__ import annotations

import logging
from collections import deque
from operator import index
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol

from mqfast.errors import NestedCall, OffsetMoved, UsageError
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.follow import Follow
from mqfast.util.offset_words import end_word
from mqfast.util.validate import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqfast.store.engine import Engine
    from mqfast.store.get.get_result import GetResult
    from mqfast.store.meta.offsets import ConsumerOffsets
    from mqfast.store.record.record import StoredMessage

__all__ = ["Consumer", "OffsetReset"]

_log = logging.getLogger("mqfast.store")

OffsetReset = Literal["error", "earliest", "latest", "first", "last"]
_NESTED: Final = (
    "another call of this consumer is under way, as where a signal handler interrupted it: nothing was done; call "
    "again when it has returned"
)
_RESETS: Final = ("error", "earliest", "latest")


class _Store(Protocol):
    """The interface of the store that a consumer uses."""

    @property
    def engine(self) -> Engine: ...
    @property
    def consumer_offsets(self) -> ConsumerOffsets: ...
    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int = ..., *, tags: str | None = ...
    ) -> GetResult: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def queue_ids(self, topic: str) -> list[int]: ...
    def persist_offsets(self) -> None: ...
    def check_still_open(self) -> None: ...
    @property
    def units_wait(self) -> bool: ...


class Consumer:
    """A consumer of one topic for one group, in this process. ``MessageStore.consumer`` creates it.

    ``for message in consumer`` ends when every queue is read to its end, ``follow`` waits; ``poll`` returns one batch.
    Queues are read round-robin, each in order. A loop acknowledges a message with its request for the next message.
    ``commit()`` acknowledges all messages that were handed out. After ``break`` or an exception, a new loop begins at
    the first message that was not acknowledged, which is the current message of the old loop. ``poll`` continues behind
    the messages that were handed out.

    If messages were deleted before the group has read them, ``poll`` and iteration raise OffsetMoved;
    ``offset_reset`` selects another behaviour.

    Thread: one thread at a time. A call in a signal handler that interrupts another call raises NestedCall.
    Durability: acknowledged offsets reach the disk every ``flush_consumer_offset_interval_ms``, with ``sync()`` and at
    close, and never before the messages that they pass. After a crash a group may receive messages again; no message
    is skipped.
    """

    def __init__(
        self,
        store: _Store,
        group: str,
        topic: str,
        *,
        tags: str | None = None,
        from_first: bool = True,
        batch: int = 32,
        offset_reset: OffsetReset = "error",
    ) -> None:
        for what, name in (("group", group), ("topic", topic)):
            _check_name(what, name)
        if _integer("batch", batch) < 1:
            raise UsageError(f"batch: expected at least 1, found {batch}")
        offset_reset = end_word(offset_reset)
        if offset_reset not in _RESETS:
            raise UsageError(f"offset_reset: expected one of {', '.join(_RESETS)}, found {offset_reset!r}")
        self._store: Final = store
        self.group: Final = group
        self.topic: Final = topic
        self._tags: Final = tags
        self._from_first = from_first
        self._batch: Final = _integer("batch", batch)
        self._offset_reset: Final = offset_reset
        self._alone: Final = _Alone()
        self._birth = store.consumer_offsets.deletions(topic)
        # By queue id: the offset behind the handed-out messages, and the offset behind the acknowledged messages.
        self._handed_out: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._stored: dict[int, int] = {}  # the acknowledged offsets that this consumer has stored in the table
        # Messages of one queue that a loop has read and not yet handed out, and the offset behind them.
        self._ahead: deque[StoredMessage] = deque()
        self._ahead_end = (0, 0)
        # The loop's message that waits for its acknowledgement, its queue, and the offset that acknowledges the
        # message.
        self._in_hand: tuple[StoredMessage, int, int] | None = None
        self._turn = 0

    def position(self, queue_id: int) -> int:
        """Return the queue offset behind the last handed-out message of this queue: the next offset of ``poll``."""
        self._look_for_deletion()
        at = self._handed_out.get(_integer("queue_id", queue_id))
        return self._first_position(queue_id) if at is None else at

    def _first_position(self, queue_id: int) -> int:
        at = self._store.consumer_offsets.get(self.group, self.topic, queue_id)
        if at >= 0:
            return at
        if self._from_first:
            return self._store.min_offset(self.topic, queue_id)
        return self._store.max_offset(self.topic, queue_id)

    def seek(self, queue_id: int, offset: int) -> None:
        """Continue from this queue offset; ``commit()`` stores it.

        Raises: UsageError for a number below 0.
        """
        queue_id, offset = _integer("queue_id", queue_id), _integer("offset", offset)
        if offset < 0 or queue_id < 0:
            raise UsageError(f"queue_id and offset: expected at least 0, found {queue_id} and {offset}")
        with self._alone:
            self._look_for_deletion()
            self._ahead.clear()
            self._in_hand = None
            self._handed_out[queue_id] = self._acknowledged[queue_id] = offset

    def poll(self) -> list[StoredMessage]:
        """Return the next messages of a queue, or an empty list at the end of all queues. ``commit()`` acknowledges the
        messages.

        Raises: OffsetMoved, CorruptFile, StoreClosed.
        """
        with self._alone:
            self._look_for_deletion()
            self._ahead.clear()
            messages, queue_id, end = self._read()
            if messages:
                self._handed_out[queue_id] = end
            return messages

    def _read(self) -> tuple[list[StoredMessage], int, int]:
        """Read a batch of the next queue with a message. Returns: (messages, queue id, offset behind the messages)."""
        ids = self._store.queue_ids(self.topic)
        for step in range(len(ids)):
            queue_id = ids[(self._turn + step) % len(ids)]
            while True:
                at = self._handed_out.get(queue_id)
                is_new = at is None
                if at is None:
                    stored = self._store.consumer_offsets.get(self.group, self.topic, queue_id)
                    is_new = stored < 0
                    at = self._first_position(queue_id) if is_new else stored
                result = self._store.get(self.topic, queue_id, at, max_count=self._batch, tags=self._tags)
                if result.status == GetMessageStatus.OFFSET_OVERFLOW_BADLY and self._store.units_wait:
                    break  # after an open on a full disk: the messages up to there wait for disk space
                if self._is_outside(result, at):
                    if not is_new:  # a new group has no offset yet and begins at the current first message
                        self._move(queue_id, at, result)
                    continue
                self._handed_out.setdefault(queue_id, at)
                self._acknowledged.setdefault(queue_id, at)
                if result.status == GetMessageStatus.FOUND:
                    self._turn = (self._turn + step + 1) % len(ids)
                    return result.messages, queue_id, result.next_offset
                if result.next_offset <= at:
                    break
                # No message there has a requested tag. They need no acknowledgement unless other messages precede them.
                if self._acknowledged[queue_id] == at:
                    self._acknowledged[queue_id] = result.next_offset
                self._handed_out[queue_id] = result.next_offset
        return [], 0, 0

    @staticmethod
    def _is_outside(result: GetResult, at: int) -> bool:
        """Return True if the offset is outside the queue, or retention is removing the messages there."""
        if result.status in (GetMessageStatus.MESSAGE_WAS_REMOVING, GetMessageStatus.OFFSET_FOUND_NULL):
            return result.next_offset > at
        return result.status in (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)

    def _move(self, queue_id: int, at: int, result: GetResult) -> None:
        """Raise OffsetMoved, or move to the offset of ``offset_reset`` with a warning."""
        low = max(result.min_offset, result.next_offset) if result.next_offset > at else result.min_offset
        moved = OffsetMoved(self.group, self.topic, queue_id, at, low, result.max_offset)
        if self._offset_reset == "error":
            raise moved
        to = low if self._offset_reset == "earliest" else result.max_offset
        _log.warning("%s (offset_reset=%r: it goes on at %d)", moved, self._offset_reset, to)
        self._handed_out[queue_id] = self._acknowledged[queue_id] = to

    def _look_for_deletion(self) -> None:
        """Drop all offsets if the topic was deleted: a new topic of that name begins at its first message."""
        now = self._store.consumer_offsets.deletions(self.topic)
        if now == self._birth:
            return
        self._birth = now
        self._ahead.clear()
        self._in_hand = None
        self._from_first = True
        for table in (self._handed_out, self._acknowledged, self._stored):
            table.clear()
        _log.warning("group %s: topic %s was deleted; its consumer begins again", self.group, self.topic)

    def _store_offset(self, queue_id: int) -> None:
        """Store the acknowledged offset, unless this consumer has stored the same offset before: another consumer of
        the group may have stored a higher offset.
        """
        to = self._acknowledged[queue_id]
        if self._stored.get(queue_id) != to:
            self._store.consumer_offsets.commit(self.group, self.topic, queue_id, to)
            self._stored[queue_id] = to

    def commit(self) -> None:
        """Acknowledge all messages that were handed out, including the current message of a loop.

        Raises: StoreClosed, StoreForked: no offset would reach the disk.
        """
        with self._alone:
            self._store.check_still_open()
            self._look_for_deletion()
            self._in_hand = None
            for queue_id, to in self._handed_out.items():
                self._acknowledged[queue_id] = to
                self._store_offset(queue_id)

    def commit_message(self, message: StoredMessage) -> None:
        """Acknowledge this message and all earlier messages of its queue. Raises: StoreClosed, StoreForked."""
        with self._alone:
            self._store.check_still_open()
            self._look_for_deletion()
            self._acknowledge(message.queue_id, message.queue_offset + 1)

    def _acknowledge(self, queue_id: int, to: int) -> None:
        self._acknowledged[queue_id] = max(to, self._acknowledged.get(queue_id, 0))
        self._store_offset(queue_id)

    def sync(self) -> None:
        """Commit, and make the offsets durable, after the messages that they pass.

        Raises: FlushError, StoreFailed, StorageError. The disk then keeps the previous offsets.
        """
        self.commit()
        self._store.persist_offsets()

    def __iter__(self) -> Iterator[StoredMessage]:
        """Iterate over the messages to the end of all queues. The request for the next message acknowledges the
        previous message.

        Raises (while looping): OffsetMoved, CorruptFile, StoreClosed.
        """
        self._begin_loop()
        return _Loop(self)

    def follow(self, timeout: float | None = None) -> Follow:
        """Iterate over messages as they arrive, with ``for`` or ``async for``; acknowledged as by iteration.

            for message in consumer.follow(timeout=60): ...
            async for message in consumer.follow(): ...

        Args: timeout: the loop ends when no message has come for so many seconds; None: the loop ends with the store.
        Raises: UsageError; while looping: OffsetMoved, CorruptFile, StoreClosed when the store closes.
        Thread: as the consumer's; the wait of ``for`` releases the GIL, the wait of ``async for`` leaves the event loop
        free.
        """
        given: object = timeout
        if given is not None and not is_number(given, 0):
            raise UsageError(f"timeout: expected seconds from 0 on or None, found {timeout!r}")
        self._begin_loop()
        return Follow(self, self._store.engine, timeout)

    def _begin_loop(self) -> None:
        with self._alone:
            self._look_for_deletion()
            self._ahead.clear()
            self._in_hand = None
            self._handed_out.update(self._acknowledged)

    def _next(self, before: StoredMessage | None) -> StoredMessage | None:
        """Acknowledge the current message of the loop, and hand out the next message."""
        with self._alone:
            self._look_for_deletion()
            if before is not None and self._in_hand is not None and self._in_hand[0] is before:
                _, queue_id, to = self._in_hand
                self._in_hand = None
                self._acknowledge(queue_id, to)
            if not self._ahead:
                messages, queue_id, end = self._read()
                if not messages:
                    for passed in self._acknowledged:
                        self._store_offset(passed)
                    return None
                self._ahead.extend(messages)
                self._ahead_end = queue_id, end
            message = self._ahead.popleft()
            queue_id, end = self._ahead_end
            # The offset of the next requested message: a record may occupy several offsets of its queue.
            to = self._ahead[0].queue_offset if self._ahead else end
            self._handed_out[queue_id] = to
            self._in_hand = message, queue_id, to
            return message

    def lag(self) -> int:
        """Return the number of stored messages that are not yet acknowledged, over all queues and all tags."""
        self._look_for_deletion()
        total = 0
        for queue_id in self._store.queue_ids(self.topic):
            at = self._acknowledged.get(queue_id)
            if at is None:
                at = self._first_position(queue_id)
            total += max(0, self._store.max_offset(self.topic, queue_id) - at)
        return total

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Consumer cannot be pickled: it belongs to its store; send its messages, which can")

    def __repr__(self) -> str:
        return f"<Consumer of group {self.group!r}, topic {self.topic!r}>"


class _Alone:
    """A guard against nested calls of a consumer: a second call, from a signal handler, raises NestedCall."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = False

    def __enter__(self) -> None:
        if self._taken:
            raise NestedCall(_NESTED)
        self._taken = True

    def __exit__(self, *exc: object) -> None:
        self._taken = False


class _Loop:
    """A loop over a consumer. A later loop continues at the messages that this loop has read."""

    __slots__ = ("_consumer", "_message")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer: Final = consumer
        self._message: StoredMessage | None = None

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> StoredMessage:
        before, self._message = self._message, None
        self._message = self._consumer._next(before)
        if self._message is None:
            raise StopIteration
        return self._message


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name or "@" in name:
        raise UsageError(f"{what}: expected a name without '@', found {name!r}")


def _integer(what: str, value: object) -> int:
    try:
        return int(index(value))  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what}: expected a whole number, found {type(value).__name__}") from None
