"""Persistence of topics and groups: a single write of a table for all pending changes, and responses after the write.

A change is in memory at once. A thread writes the changes; changes during a write are part of the next write. The
response to the request that made a change is sent once the change is on disk and the name servers have the topics. The
loop is not blocked, and a name server that does not answer delays a response only for a limited time.

Changes of a large table go to the journal of the table. The file is replaced within a second of the last change, so
that RocketMQ and tools of operators read current tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterable
from typing import Final, Protocol

from mqfast.remoting.command import RemotingCommand

__all__ = ["AtOnce", "Changes", "ConfigPersister", "Registrar", "Table"]

_log = logging.getLogger("mqfast.broker")
_ROUTE_S: Final = 2.5
"""Time limit of a response that waits for a registration; clients wait 3 s for a response."""
_FILE_S: Final = 0.5
"""Time from the last change in a journal to the replacement of the file."""
_Outcome = RemotingCommand | None


class Table(Protocol):
    """A table that a thread can persist."""

    def persist(self) -> bool:
        """Write the table to disk if changed. Raises: StorageError."""

    def persist_changes(self) -> bool:
        """Write the changes to disk, to the journal of a large table. Raises: StorageError."""

    @property
    def has_journal(self) -> bool:
        """True if changes are in the journal and not in the file."""


class ConfigPersister(Protocol):
    """Persists changed tables."""

    def made(self, table: Table, topics: Iterable[str] = ()) -> None:
        """Write a changed table. Args: topics: must be on disk before a send is acknowledged."""

    def wait_for(self, topic: str, table: Table) -> bool:
        """Delay the response to the current request until a topic is on disk. Returns: True if a write is pending."""

    async def settled(self) -> None:
        """Wait until all changes so far are safe. Raises: StorageError."""


class Registrar(Protocol):
    """Registers topics with the name servers."""

    def topics_changed(self, topics: Collection[str]) -> None:
        """Register changed topics soon."""

    def under_way(self) -> list[asyncio.Future[None]]:
        """Return the registrations that have not ended."""

    def is_late(self, told: Collection[asyncio.Future[None]]) -> None:
        """Stop delaying responses for these registrations."""


class AtOnce:
    """Persists each change within the call; for tables of a broker that does not run."""

    def made(self, table: Table, topics: Iterable[str] = ()) -> None:
        """Write the table. Raises: StorageError."""
        table.persist()

    def wait_for(self, topic: str, table: Table) -> bool:
        """Return False: no write is pending."""
        return False

    async def settled(self) -> None:
        """Return at once: no write is pending."""


class Changes:
    """The changes that are not on disk yet, or not known to the name servers yet.

    Attributes: ``count``: increases with each change.
    Thread: that of the event loop.
    """

    def __init__(self, registration: Registrar) -> None:
        self.count = 0
        self._unwritten: dict[str, asyncio.Future[None]] = {}  # topic -> the write that will contain the topic
        self._loop: Final = asyncio.get_running_loop()
        self._registration: Final = registration
        self._next: dict[Table, asyncio.Future[None]] = {}  # the write that follows the current write
        self._names: dict[asyncio.Future[None], list[str]] = {}
        self._writing: dict[Table, asyncio.Task[None]] = {}
        self._file_timers: dict[Table, asyncio.TimerHandle] = {}
        self._replacing: set[asyncio.Future[bool]] = set()
        self._writes: list[asyncio.Future[None]] = []  # of the current request
        self._routes: list[asyncio.Future[None]] = []

    # --- changes ---

    def made(self, table: Table, topics: Iterable[str] = ()) -> None:
        """Write a changed table soon. Args: topics: must be on disk before a send is acknowledged."""
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
        """Delay the response to the current request until a topic of another request is on disk."""
        write = self._unwritten.get(topic)
        if write is None:
            return False
        if write.done():  # that write failed
            self.made(table, [topic])
        else:
            self.count += 1
            self._writes.append(write)
        return True

    def topics_changed(self, topics: Collection[str]) -> None:
        """Register changed topics with the name servers; the answer to the present request waits for that."""
        self._registration.topics_changed(topics)
        self.registering()

    def registering(self) -> None:
        """Delay the response to the current request until the pending registrations have ended."""
        self.count += 1
        self._routes += self._registration.under_way()

    async def _write(self, table: Table) -> None:
        try:
            while (write := self._next.pop(table, None)) is not None:
                try:
                    await self._loop.run_in_executor(None, table.persist_changes)
                except Exception as error:
                    # The topics stay pending: the next request that needs a topic writes the table.
                    self._names.pop(write)
                    write.set_exception(error)
                    write.exception()  # marks the exception as retrieved, also without a waiter
                else:
                    for topic in self._names.pop(write):
                        if self._unwritten.get(topic) is write:
                            del self._unwritten[topic]
                    write.set_result(None)
        finally:
            del self._writing[table]
            self._replace_file_soon(table)

    def _replace_file_soon(self, table: Table) -> None:
        """Replace the file of a table with a journal, half a second after the last change."""
        if (timer := self._file_timers.pop(table, None)) is not None:
            timer.cancel()
        if table.has_journal:
            self._file_timers[table] = self._loop.call_later(_FILE_S, self._replace_file, table)

    def _replace_file(self, table: Table) -> None:
        del self._file_timers[table]
        replacing = self._loop.run_in_executor(None, table.persist)
        self._replacing.add(replacing)
        replacing.add_done_callback(self._replaced)

    def _replaced(self, replacing: asyncio.Future[bool]) -> None:
        self._replacing.discard(replacing)
        if not replacing.cancelled() and (error := replacing.exception()) is not None:
            _log.warning("a table stays in its journal, the next turn tries again: %s", error)

    # --- responses ---

    def then(self, outcome: _Outcome | Awaitable[_Outcome]) -> _Outcome | Awaitable[_Outcome]:
        """Return the outcome of a request, after its changes are safe."""
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
        """Return the outcome of a coroutine handler, after all changes during the handler are safe."""
        before = self.count
        answer = await serve
        if self.count != before:
            await self.settled()
        return answer

    async def settled(self) -> None:
        """Wait until all changes so far are safe. Raises: StorageError."""
        self._writes.clear()  # of coroutines, and of changes without a waiting response
        self._routes.clear()
        await self._settled(list(self._names), self._registration.under_way())

    async def _settled(self, writes: list[asyncio.Future[None]], routes: list[asyncio.Future[None]]) -> None:
        if writes:
            await asyncio.wait(writes)
        if routes := [route for route in routes if not route.done()]:
            _, late = await asyncio.wait(routes, timeout=_ROUTE_S)
            self._registration.is_late(late)
        for write in writes:
            write.result()

    async def close(self) -> None:
        """Wait until no write is running. Files of tables with a journal are left to the caller."""
        while self._writing:
            await asyncio.wait(set(self._writing.values()))
        for timer in self._file_timers.values():
            timer.cancel()
        self._file_timers.clear()
        if self._replacing:
            await asyncio.wait(self._replacing)
