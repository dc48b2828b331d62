"""The consumer offsets of a group: in memory for every queue, and stored by brokers, in a file or by the user.

Only changed offsets are stored, so that an offset that an admin has reset is not overwritten. A failed read is an
error, not a missing offset.
Source: OffsetStore, ControllableOffset, RemoteBrokerOffsetStore, LocalFileOffsetStore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from mqfast.client.consumer.queue_bounds import store_offset, stored_offset
from mqfast.client.net.user_errors import shielded
from mqfast.client.route.namespace import plain_queue
from mqfast.client.settings import check_function
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientConfigError, ClientError
from mqfast.util.validate import is_whole

if TYPE_CHECKING:
    from mqfast.client.consumer.offset_file import LocalFileOffsetStore
    from mqfast.client.net.instance import ClientInstance

__all__ = [
    "FileOffsets",
    "OffsetStore",
    "GroupOffsets",
    "OwnOffsets",
    "RemoteOffsets",
    "check_offset_store",
    "offsets_of",
]

_AT_ONCE: Final = 64


@runtime_checkable
class OffsetStore(Protocol):
    """An offset store of the user: for example a table of a database, in the same transaction as the results.

    Both methods may block and are called on a thread of the loop's default executor, one call at a time.
    """

    def load(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message; None: there is none yet."""

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets."""


def check_offset_store(given: OffsetStore | None) -> OffsetStore | None:
    """Check the argument ``offset_store``. Raises: ConfigError."""
    if given is not None and not isinstance(given, OffsetStore):
        raise ClientConfigError(f"offset_store: expected an object with load and save, found {type(given).__name__}")
    if given is not None:
        check_function("offset_store: load", given.load)
        check_function("offset_store: save", given.save)
    return given


class GroupOffsets:
    """The offsets of one consumer in memory; the subclasses store the offsets.

    Thread: that of the event loop.
    """

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self._kept: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()
        self._one_save = asyncio.Lock()

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""
        return self._table.get(queue)

    def copy(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return all offsets in memory, or those of a topic."""
        return {queue: offset for queue, offset in self._table.items() if topic is None or queue.topic == topic}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Set an offset in memory, unless the offset is frozen. Args: increase_only: ignore a smaller offset."""
        if queue in self._frozen or (increase_only and offset <= self._table.get(queue, -1)):
            return
        self._table[queue] = offset

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset that the broker has moved; later updates are ignored until ``remove``."""
        self._table[queue] = offset
        self._frozen.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Discard the offset of a revoked queue in memory."""
        self._table.pop(queue, None)
        self._kept.pop(queue, None)
        self._frozen.discard(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        """Read the stored offset into memory and return the offset; None: there is none.

        Raises: ClientError, CallTimeout, ConnectionLost, CorruptFile, or an error of the user's store: the offset is
            unknown, so the queue must wait.
        """
        offset = await self._load(queue)
        if offset is not None:
            self._table[queue] = self._kept[queue] = offset
        return offset

    async def kept(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None: there is none. The offset in memory stays. Raises: as ``read``."""
        return await self._load(queue)

    async def persist(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Store the changed offsets of these queues, or of all queues.

        Raises: the first error, after all queues were tried; the next call stores the rest.
        """
        async with self._one_save:
            wanted = self._table.keys() if queues is None else self._table.keys() & set(queues)
            changed = {queue: self._table[queue] for queue in wanted if self._kept.get(queue) != self._table[queue]}
            if changed:
                await self._save(changed)

    def _was_kept(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue in self._table:
                self._kept[queue] = offset

    async def _load(self, queue: MessageQueue) -> int | None:
        raise NotImplementedError

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        raise NotImplementedError


class RemoteOffsets(GroupOffsets):
    """Offsets at the brokers of the queues, by requests 14 and 15: clustering.
    Durability: that of the broker, some 5 s.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance: Final = instance
        self._group: Final = group

    async def _load(self, queue: MessageQueue) -> int | None:
        return await self._instance.driver.run(stored_offset(self._instance, self._group, queue))

    async def kept(self, queue: MessageQueue) -> int | None:
        """Return the offset at the broker; None, not 0, for a small queue without an offset."""
        return await self._instance.driver.run(stored_offset(self._instance, self._group, queue, zero_if_new=False))

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        error: BaseException | None = None
        queues = list(changed)
        for start in range(0, len(queues), _AT_ONCE):
            batch = queues[start : start + _AT_ONCE]
            outcomes = await asyncio.gather(
                *(self._store_at_broker(queue, changed[queue]) for queue in batch), return_exceptions=True
            )
            for queue, outcome in zip(batch, outcomes, strict=True):
                if outcome is None:
                    self._was_kept({queue: changed[queue]})
                else:
                    error = error or outcome
        if error is not None:
            raise error

    async def _store_at_broker(self, queue: MessageQueue, offset: int) -> None:
        await self._instance.driver.run(store_offset(self._instance, self._group, queue, offset))


class FileOffsets(GroupOffsets):
    """Offsets in Java's file for broadcasting consumers. Durability: every persist survives a power loss."""

    def __init__(self, file: LocalFileOffsetStore) -> None:
        super().__init__()
        self._file: Final = file

    async def _load(self, queue: MessageQueue) -> int | None:
        return (await asyncio.to_thread(self._file.load)).get(queue)

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        await asyncio.to_thread(self._file.save, changed)
        self._was_kept(changed)


class OwnOffsets(GroupOffsets):
    """Offsets in a store of the user, with topics without the namespace."""

    def __init__(self, store: OffsetStore, namespace: str | None = None) -> None:
        super().__init__()
        self._store: Final = store
        self._namespace: Final = namespace

    async def _load(self, queue: MessageQueue) -> int | None:
        offset: Any = await asyncio.to_thread(
            shielded, "offset_store.load", self._store.load, plain_queue(self._namespace, queue)
        )
        if offset is None:
            return None
        if not is_whole(offset, 0):
            raise ClientError(f"offset_store.load({queue}): expected None or a number from 0 on, found {offset!r}")
        return offset

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        plain = {plain_queue(self._namespace, queue): offset for queue, offset in changed.items()}
        await asyncio.to_thread(shielded, "offset_store.save", self._store.save, plain)
        self._was_kept(changed)


def offsets_of(
    instance: ClientInstance, group: str, *, broadcasting: bool = False, own: OffsetStore | None = None
) -> GroupOffsets:
    """Create the offsets of a consumer. Args: group: the name on the wire. Raises: ConfigError."""
    if own is not None:
        checked: object = own
        if not isinstance(checked, OffsetStore):
            raise ClientConfigError(f"offset_store: expected methods load and save, found {type(own).__name__}")
        return OwnOffsets(own, instance.settings.namespace)
    if not broadcasting:
        return RemoteOffsets(instance, group)
    from mqfast.client.consumer.offset_file import LocalFileOffsetStore

    return FileOffsets(LocalFileOffsetStore(instance.client_id, group))
