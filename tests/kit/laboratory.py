"""The inside of a store, for tests alone: services that take a step when a test says so, and what a step leaves.

Room: tests. Every access to what is private to an open store is here, so that the inside can change in one place. It
must never hold an expectation, and never import mqfast when it is imported: the model is tested without a build.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore

__all__ = ["Laboratory", "bodies", "lab", "open_still", "read_queue"]


def open_still(path: Any, **options: Any) -> MessageStore:
    """Open a store as ``mqfast.open`` does, without a thread: nothing happens but what a test does."""
    import mqfast

    return mqfast.open(path, _start_services=False, **options)


def read_queue(store: Any, topic: str, queue_id: int, at: int, **options: Any) -> Iterator[Any]:
    """Get the messages of a queue from offset ``at`` on, get by get, to its end."""
    while True:
        got = store.get(topic, queue_id, at, **options)
        yield from got
        if got.status.name not in ("FOUND", "NO_MATCHED_MESSAGE"):
            # 4.x leaves empty directories of queues; a queue without a file is no queue here.
            assert got.status.name in ("OFFSET_OVERFLOW_ONE", "NO_MATCHED_LOGIC_QUEUE"), got
            return
        assert got.next_offset > at, got
        at = got.next_offset


def bodies(store: Any, topic: str = "T", queue_id: int = 0, at: int = 0, **options: Any) -> list[bytes]:
    """The bodies of a queue from an offset on, read to its end."""
    return [bytes(message.body) for message in read_queue(store, topic, queue_id, at, **options)]


class Laboratory:
    """Steps and parts of one open store, or the parts that a reader has of the same name.

    A step does what the thread of that name does when it wakes up once. A part is the object of the engine itself.
    """

    __slots__ = ("store",)

    def __init__(self, store: Any) -> None:
        self.store = store

    # --- steps ---

    def step_dispatch(self, *arguments: Any) -> Any:
        """Dispatch what stands in the log; takes what ``CommitLogDispatcher.step`` takes."""
        return self.store._store_parts.dispatcher.step(*arguments)

    def step_dispatch_if_needed(self) -> Any:
        """Dispatch if the log has more than was dispatched."""
        return self.store._store_parts.dispatcher.step_if_needed()

    def flush_log(self, *arguments: Any, **options: Any) -> Any:
        """The step of the thread that syncs the log."""
        return self.store._store_parts.flush.flush_log(*arguments, **options)

    def flush_queues(self, *arguments: Any, **options: Any) -> Any:
        """The step of the thread that syncs queues and the checkpoint."""
        return self.store._store_parts.flush.flush_queues(*arguments, **options)

    def flush_turn(self) -> None:
        """What the flush thread does once the queues are due."""
        self.store._store_parts.flush.step()

    def make_next_file(self) -> Any:
        """The step of the thread that makes log files ahead. Returns: was one made?"""
        return self.store._store_parts.allocate.step()

    def persist_topics(self) -> None:
        """Write the table of topics."""
        self.store._store_parts.metadata.persist_topics()

    def catch_up(self) -> None:
        """What a query does before it asks the index."""
        self.store._catch_up()

    def retention_at_any_hour(self) -> None:
        """The next run of retention removes what is expired, whatever the hour."""
        self.store._store_parts.retention._manual_runs = 1

    def warn(self, text: str) -> None:
        """Tell of a warning as a service of the store does."""
        self.store._warn(text)

    def abandon(self) -> None:
        """Drop the memory of the store and its lock; nothing is written, as after a kill of the process."""
        store = self.store
        if store._is_closed:
            return
        store._is_closed = True
        for file in store._store_parts.allocate._ready.values():
            file.drop()
        for step in reversed(store._close_steps):
            step()

    # --- parts ---

    @property
    def is_closed(self) -> bool:
        """Was the store closed?"""
        return bool(self.store._is_closed)

    @property
    def dispatcher(self) -> Any:
        """CommitLogDispatcher."""
        return self.store._store_parts.dispatcher

    @property
    def queues(self) -> Any:
        """QueueStore; of a reader its tables of queues."""
        return self.store._store_parts.queues if hasattr(self.store, "_store_parts") else self.store._queues

    @property
    def flush(self) -> Any:
        """The flush service of the log."""
        return self.store._store_parts.flush

    @property
    def index(self) -> Any:
        """IndexService, or None."""
        return self.store._store_parts.index

    @property
    def allocate(self) -> Any:
        """The service that makes log files ahead."""
        return self.store._store_parts.allocate

    @property
    def retention(self) -> Any:
        """The retention service."""
        return self.store._store_parts.retention

    @property
    def checkpoint(self) -> Any:
        """StoreCheckpoint."""
        return self.store._store_parts.checkpoint

    @property
    def notes(self) -> Any:
        """StoreNotes."""
        return self.store._store_parts.notes

    @property
    def pool(self) -> Any:
        """The pool of buffers, or None."""
        return self.store._store_parts.pool

    @property
    def closer(self) -> Any:
        """The thread that closes the store now, or None."""
        return self.store._closer

    @property
    def services(self) -> Any:
        """Every service of the store."""
        return self.store._store_parts.services()


def lab(store: Any) -> Laboratory:
    """The laboratory of a store."""
    return Laboratory(store)
