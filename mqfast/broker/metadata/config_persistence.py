"""Changes of topics and groups: one write of a table for all changes that wait, and answers that wait for the write.

A change is in memory at once. A thread writes the table, and whatever changes meanwhile is in the next write. The
answer to the request that made a change goes out once the table is on disk and the name servers know the topics. It
must never block the loop, nor let an answer wait for long on a name server that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from mqfast.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from mqfast.broker.metadata.registration import Registration

__all__ = ["AtOnce", "Changes", "ConfigPersister", "Table"]

_ROUTE_S: Final = 2.5
"""How long an answer waits for a registration that is on its way; clients wait 3 s for an answer."""
_Outcome = RemotingCommand | None


class Table(Protocol):
    """A table that a thread can put on disk."""

    def persist(self) -> bool:
        """Put the table on disk if it changed. Raises: StorageError."""


class ConfigPersister(Protocol):
    """Puts tables on disk that have changed."""

    def made(self, table: Table, topics: Iterable[str] = ()) -> None:
        """A table has changed: write the table. Args: topics: what a send must not be acknowledged without."""

    def wait_for(self, topic: str, table: Table) -> bool:
        """Let the answer to the present request wait until a topic is on disk. Returns: is there a need to wait?"""

    async def settled(self) -> None:
        """Wait until all that has changed so far is safe. Raises: StorageError."""


class AtOnce:
    """Puts each change on disk within the call; for tables of a broker that does not run."""

    def made(self, table: Table, topics: Iterable[str] = ()) -> None:
        """Write the table. Raises: StorageError."""
        table.persist()

    def wait_for(self, topic: str, table: Table) -> bool:
        """No topic is to be written."""
        return False

    async def settled(self) -> None:
        """All is written."""


class Changes:
    """What was changed and is not yet on disk, or not yet known to the name servers.

    Attributes: ``count``: steps with each change.
    Thread: that of the event loop.
    """

    def __init__(self, registration: Registration) -> None:
        self.count = 0
        self._unwritten: dict[str, asyncio.Future[None]] = {}  # topic -> the write that will have it
        self._loop: Final = asyncio.get_running_loop()
        self._registration: Final = registration
        self._next: dict[Table, asyncio.Future[None]] = {}  # the write that begins when the present one has ended
        self._names: dict[asyncio.Future[None], list[str]] = {}
        self._writing: dict[Table, asyncio.Task[None]] = {}
        self._writes: list[asyncio.Future[None]] = []  # of the request that is served now
        self._routes: list[asyncio.Future[None]] = []

    # --- what changes ---

    def made(self, table: Table, topics: Iterable[str] = ()) -> None:
        """A table has changed: write the table soon. Args: topics: what a send must not be acknowledged without."""
        self.count += 1
        write = self._next.get(table)
        if write is None:
            write = self._next[table] = self._loop.create_future()
            self._names[write] = []
            if table not in self._writing:
                self._writing[table] = asyncio.ensure_future(self._write(table))
        self._names[write] += topics
        self._unwritten.update(dict.fromkeys(topics, write))
        self._writes.append(write)

    def wait_for(self, topic: str, table: Table) -> bool:
        """Let the answer to the present request wait until a topic that another request made is on disk."""
        write = self._unwritten.get(topic)
        if write is None:
            return False
        if write.done():  # that write failed
            self.made(table, [topic])
        else:
            self.count += 1
            self._writes.append(write)
        return True

    def registering(self) -> None:
        """The name servers are being told of what has changed."""
        self.count += 1
        self._routes += self._registration.under_way()

    async def _write(self, table: Table) -> None:
        try:
            while (write := self._next.pop(table, None)) is not None:
                try:
                    await self._loop.run_in_executor(None, table.persist)
                except Exception as error:
                    self._names.pop(write)  # the topics stay: the next request that needs them writes the table
                    write.set_exception(error)
                    write.exception()  # all that wait are told; perhaps nothing waits
                else:
                    for topic in self._names.pop(write):
                        if self._unwritten.get(topic) is write:
                            del self._unwritten[topic]
                    write.set_result(None)
        finally:
            del self._writing[table]

    # --- answers ---

    def then(self, outcome: _Outcome | Awaitable[_Outcome]) -> _Outcome | Awaitable[_Outcome]:
        """The outcome of a request that has changed something, once the change is safe."""
        writes, self._writes = self._writes, []
        routes, self._routes = self._routes, []
        return None if outcome is None else self._then(outcome, writes, routes)

    async def _then(
        self,
        outcome: RemotingCommand | Awaitable[_Outcome],
        writes: list[asyncio.Future[None]],
        routes: list[asyncio.Future[None]],
    ) -> _Outcome:
        answer = outcome if isinstance(outcome, RemotingCommand) else await outcome
        await self._settled(writes, routes)
        return answer

    async def around(self, serve: Awaitable[_Outcome]) -> _Outcome:
        """The outcome of a handler that is a coroutine: all that changed meanwhile is safe."""
        before = self.count
        answer = await serve
        if self.count != before:
            await self.settled()
        return answer

    async def settled(self) -> None:
        """Wait until all that has changed so far is safe. Raises: StorageError."""
        self._writes.clear()  # of coroutines, and of what nobody waits for
        self._routes.clear()
        await self._settled(list(self._names), self._registration.under_way())

    async def _settled(self, writes: list[asyncio.Future[None]], routes: list[asyncio.Future[None]]) -> None:
        if writes:
            await asyncio.wait(writes)
        if routes := [one for one in routes if not one.done()]:
            _, late = await asyncio.wait(routes, timeout=_ROUTE_S)
            self._registration.is_late(late)
        for write in writes:
            write.result()

    async def close(self) -> None:
        """Wait until nothing is being written."""
        while self._writing:
            await asyncio.wait(set(self._writing.values()))
