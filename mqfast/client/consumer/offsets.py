"""How far a group is: in memory for every queue, and where that is kept, at brokers, in a file or by the user.

An offset in memory is where its owner put it; a store is told of changes only, so that an offset that somebody else
has reset is not put back. It must never take "cannot be asked" for "there is none".
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
    from mqfast.client.consumer.offset_file import OffsetFile
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
    """A store of the user's: a table of a database, say, in the same transaction as the results.

    Both methods may block and are called on a thread of the loop's default executor, one call at a time.
    """

    def load(self, queue: MessageQueue) -> int | None:
        """The offset of the next message, None where there is none yet."""

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these."""


def check_offset_store(given: OffsetStore | None) -> OffsetStore | None:
    """The argument ``offset_store``. Raises: ConfigError."""
    if given is not None and not isinstance(given, OffsetStore):
        raise ClientConfigError(f"offset_store: expected an object with load and save, found {type(given).__name__}")
    if given is not None:
        check_function("offset_store: load", given.load)
        check_function("offset_store: save", given.save)
    return given


class GroupOffsets:
    """The offsets of one consumer in memory; its subclasses keep them.

    Thread: that of the event loop.
    """

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self._kept: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()
        self._one_save = asyncio.Lock()

    def get(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""
        return self._table.get(queue)

    def copy(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """All offsets in memory, or those of a topic."""
        return {queue: at for queue, at in self._table.items() if topic is None or queue.topic == topic}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Set an offset in memory; a frozen one stays. Args: increase_only: a smaller one is ignored."""
        if queue in self._frozen or (increase_only and offset <= self._table.get(queue, -1)):
            return
        self._table[queue] = offset

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset that no later update of this owner of the queue changes: the broker has moved it."""
        self._table[queue] = offset
        self._frozen.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        """The queue is given up: nothing in memory is known of it."""
        self._table.pop(queue, None)
        self._kept.pop(queue, None)
        self._frozen.discard(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        """The kept offset, which is the one in memory from now on; None: there is none.

        Raises: ClientError, CallTimeout, ConnectionLost, CorruptFile, or what a store of the user's raises: the offset
            cannot be known, so the queue must wait.
        """
        offset = await self._load(queue)
        if offset is not None:
            self._table[queue] = self._kept[queue] = offset
        return offset

    async def kept(self, queue: MessageQueue) -> int | None:
        """The kept offset, None where there is none; what is in memory stays. Raises: as ``read``."""
        return await self._load(queue)

    async def persist(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Keep the offsets of these queues, or of all; of those only that changed since.

        Raises: the first error, after all queues were tried; what was not kept is kept by the next call.
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
    """At the brokers that have the queues, by requests 14 and 15: clustering. Durability: the broker's, some 5 s."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance: Final = instance
        self._group: Final = group

    async def _load(self, queue: MessageQueue) -> int | None:
        return await self._instance.driver.run(stored_offset(self._instance, self._group, queue))

    async def kept(self, queue: MessageQueue) -> int | None:
        """The offset that the broker has; where it has none also no 0 for a small queue."""
        return await self._instance.driver.run(stored_offset(self._instance, self._group, queue, zero_if_new=False))

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        error: BaseException | None = None
        queues = list(changed)
        for start in range(0, len(queues), _AT_ONCE):
            some = queues[start : start + _AT_ONCE]
            outcomes = await asyncio.gather(*(self._tell(one, changed[one]) for one in some), return_exceptions=True)
            for queue, outcome in zip(some, outcomes, strict=True):
                if outcome is None:
                    self._was_kept({queue: changed[queue]})
                else:
                    error = error or outcome
        if error is not None:
            raise error

    async def _tell(self, queue: MessageQueue, offset: int) -> None:
        await self._instance.driver.run(store_offset(self._instance, self._group, queue, offset))


class FileOffsets(GroupOffsets):
    """In Java's file for broadcasting consumers. Durability: every persist survives a power loss."""

    def __init__(self, file: OffsetFile) -> None:
        super().__init__()
        self._file: Final = file

    async def _load(self, queue: MessageQueue) -> int | None:
        return (await asyncio.to_thread(self._file.load)).get(queue)

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        await asyncio.to_thread(self._file.save, changed)
        self._was_kept(changed)


class OwnOffsets(GroupOffsets):
    """In a store of the user's, which sees topics without the namespace."""

    def __init__(self, store: OffsetStore, namespace: str | None = None) -> None:
        super().__init__()
        self._store: Final = store
        self._namespace: Final = namespace

    async def _load(self, queue: MessageQueue) -> int | None:
        found: Any = await asyncio.to_thread(
            shielded, "offset_store.load", self._store.load, plain_queue(self._namespace, queue)
        )
        if found is None:
            return None
        if not is_whole(found, 0):
            raise ClientError(f"offset_store.load({queue}): expected None or a number from 0 on, found {found!r}")
        return found

    async def _save(self, changed: dict[MessageQueue, int]) -> None:
        plain = {plain_queue(self._namespace, queue): offset for queue, offset in changed.items()}
        await asyncio.to_thread(shielded, "offset_store.save", self._store.save, plain)
        self._was_kept(changed)


def offsets_of(
    instance: ClientInstance, group: str, *, broadcasting: bool = False, own: OffsetStore | None = None
) -> GroupOffsets:
    """Where a consumer's offsets are kept. Args: group: as it goes over the wire. Raises: ConfigError."""
    if own is not None:
        checked: object = own
        if not isinstance(checked, OffsetStore):
            raise ClientConfigError(f"offset_store: expected methods load and save, found {type(own).__name__}")
        return OwnOffsets(own, instance.settings.namespace)
    if not broadcasting:
        return RemoteOffsets(instance, group)
    from mqfast.client.consumer.offset_file import OffsetFile

    return FileOffsets(OffsetFile(instance.client_id, group))
