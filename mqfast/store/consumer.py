"""Embedded consumers: read a topic's queues in order, acknowledge, and resume there after a restart.

A consumer must never acknowledge a message that was not handed out, and must never skip deleted messages silently.
Offsets are stored in ``config/consumerOffset.json``, as RocketMQ's do.

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
    """What a consumer needs of its store."""

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
    @property
    def units_wait(self) -> bool: ...


class Consumer:
    """A consumer of one topic for one group, in this process. ``MessageStore.consumer`` creates it.

    ``for message in consumer`` ends when every queue is read to its end, ``follow`` waits; ``poll`` returns one batch.
    Queues are read in turn, each in order. A loop acknowledges a message when the loop asks for the next one.
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
        # By queue id: behind what was handed out, and behind what was acknowledged.
        self._handed_out: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._stored: dict[int, int] = {}  # the acknowledged offsets that this consumer knows to be in the table
        # What a loop has read and not yet handed out, all of one queue, and where that queue goes on behind it.
        self._ahead: deque[StoredMessage] = deque()
        self._ahead_end = (0, 0)
        # The message of the loop that waits for its acknowledgement: its queue, and the offset that acknowledges it.
        self._in_hand: tuple[StoredMessage, int, int] | None = None
        self._turn = 0

    def position(self, queue_id: int) -> int:
        """Queue offset behind the last message of this queue that was handed out: the next offset of ``poll``."""
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
        """The next messages of one queue; an empty list when all queues are read to their end. ``commit()``
        acknowledges them.

        Raises: OffsetMoved, CorruptFile, StoreClosed.
        """
        with self._alone:
            self._look_for_deletion()
            self._ahead.clear()
            found, queue_id, end = self._read()
            if found:
                self._handed_out[queue_id] = end
            return found

    def _read(self) -> tuple[list[StoredMessage], int, int]:
        """Read one batch of the next queue that has one: messages, queue id, where the queue goes on behind them."""
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
                found = self._store.get(self.topic, queue_id, at, max_count=self._batch, tags=self._tags)
                if found.status == GetMessageStatus.OFFSET_OVERFLOW_BADLY and self._store.units_wait:
                    break  # after an open on a full disk: the messages up to there wait for their places
                if self._is_outside(found, at):
                    if not is_new:  # a new group has no place yet: it begins at the first message there is now
                        self._move(queue_id, at, found)
                    continue
                self._handed_out.setdefault(queue_id, at)
                self._acknowledged.setdefault(queue_id, at)
                if found.status == GetMessageStatus.FOUND:
                    self._turn = (self._turn + step + 1) % len(ids)
                    return found.messages, queue_id, found.next_offset
                if found.next_offset <= at:
                    break
                # No message there has a wanted tag. Without others before them they need no acknowledgement.
                if self._acknowledged[queue_id] == at:
                    self._acknowledged[queue_id] = found.next_offset
                self._handed_out[queue_id] = found.next_offset
        return [], 0, 0

    @staticmethod
    def _is_outside(found: GetResult, at: int) -> bool:
        """Is the offset no place in the queue, or are its messages being removed?"""
        if found.status in (GetMessageStatus.MESSAGE_WAS_REMOVING, GetMessageStatus.OFFSET_FOUND_NULL):
            return found.next_offset > at
        return found.status in (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)

    def _move(self, queue_id: int, at: int, found: GetResult) -> None:
        """Raise OffsetMoved, or go where ``offset_reset`` says, with a warning."""
        low = max(found.min_offset, found.next_offset) if found.next_offset > at else found.min_offset
        moved = OffsetMoved(self.group, self.topic, queue_id, at, low, found.max_offset)
        if self._offset_reset == "error":
            raise moved
        to = low if self._offset_reset == "earliest" else found.max_offset
        _log.warning("%s (offset_reset=%r: it goes on at %d)", moved, self._offset_reset, to)
        self._handed_out[queue_id] = self._acknowledged[queue_id] = to

    def _look_for_deletion(self) -> None:
        """Forget the places in a topic that was deleted: a new topic of that name begins at its first message."""
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
        """Store what was acknowledged, unless this consumer did so before: another one may have come further."""
        to = self._acknowledged[queue_id]
        if self._stored.get(queue_id) != to:
            self._store.consumer_offsets.commit(self.group, self.topic, queue_id, to)
            self._stored[queue_id] = to

    def commit(self) -> None:
        """Acknowledge all messages that were handed out, the current one of a loop included."""
        with self._alone:
            self._look_for_deletion()
            self._in_hand = None
            for queue_id, to in self._handed_out.items():
                self._acknowledged[queue_id] = to
                self._store_offset(queue_id)

    def commit_message(self, message: StoredMessage) -> None:
        """Acknowledge this message and all earlier messages of its queue."""
        with self._alone:
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
        """Messages until all queues are read to their end. Each one is acknowledged when the loop asks for the next.

        Raises (while looping): OffsetMoved, CorruptFile, StoreClosed.
        """
        self._begin_loop()
        return _Loop(self)

    def follow(self, timeout: float | None = None) -> Follow:
        """Messages as they come, for ``for`` and ``async for``; acknowledged as by iteration.

            for message in consumer.follow(timeout=60): ...
            async for message in consumer.follow(): ...

        Args: timeout: the loop ends when no message has come for so many seconds; None: it ends with the store.
        Raises: UsageError; while looping: OffsetMoved, CorruptFile, StoreClosed when the store closes.
        Thread: as the consumer's; the wait of ``for`` releases the GIL, that of ``async for`` leaves the loop free.
        """
        given: object = timeout
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0
        if given is not None and not is_number:
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
        """Acknowledge the message that the loop has in hand, and hand out the next one."""
        with self._alone:
            self._look_for_deletion()
            if before is not None and self._in_hand is not None and self._in_hand[0] is before:
                _, queue_id, to = self._in_hand
                self._in_hand = None
                self._acknowledge(queue_id, to)
            if not self._ahead:
                found, queue_id, end = self._read()
                if not found:
                    for passed in self._acknowledged:
                        self._store_offset(passed)
                    return None
                self._ahead.extend(found)
                self._ahead_end = queue_id, end
            message = self._ahead.popleft()
            queue_id, end = self._ahead_end
            # Up to the next one that is wanted: a record may also stand for several places in its queue.
            to = self._ahead[0].queue_offset if self._ahead else end
            self._handed_out[queue_id] = to
            self._in_hand = message, queue_id, to
            return message

    def lag(self) -> int:
        """Number of stored messages that are not yet acknowledged, over all queues and all tags."""
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
    """One call of a consumer at a time: what a signal handler would do within another one is refused."""

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
    """One loop over a consumer; a second one takes over from it."""

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
