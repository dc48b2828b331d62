"""The life of consumers whose application requests messages: start, close, exit, fork; blocking or in an event loop.

Pull consumers and simple consumers share this life, which reaches an engine by ``_start_engine`` and
``_end_of_engine`` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from mqfast.client.consumer.call import AsyncCalls, SyncCalls, Work
from mqfast.client.net import fork, io_thread
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.guard import Guard, check_may_wait
from mqfast.client.net.instance import ClientInstance
from mqfast.errors import ClientClosed, ClientForked, MqfastError

__all__ = ["AsyncOnDemandConsumer", "OnDemandConsumer", "SyncOnDemandConsumer"]

T = TypeVar("T")
START_S: Final = 30.0
_log = logging.getLogger("mqfast.client.consumer")


class OnDemandSettings(Protocol):
    """The settings that the life of a consumer needs."""

    @property
    def group(self) -> str: ...
    @property
    def start_timeout_s(self) -> float | None: ...
    @property
    def close_timeout_s(self) -> float: ...


class OnDemandConsumer(ABC):
    """The state of a consumer: its process, started, closed."""

    _kind: ClassVar[str]
    _settings: Any

    def _prepare(self) -> None:
        self._pid = os.getpid()
        self._is_started = False
        self._is_closed = False
        self._set_up()
        fork.watch(self)

    @abstractmethod
    def _set_up(self) -> None:
        """Create the lock of ``start``."""

    @abstractmethod
    def _start_engine(self, is_closed: Callable[[], bool]) -> Coroutine[Any, Any, Any]:
        """Join the group, unless the consumer was closed meanwhile."""

    @abstractmethod
    def _end_of_engine(self, *, all_handed_out: bool) -> Callable[[], Coroutine[Any, Any, Any]]:
        """Return the function that leaves the group; the function holds the engine, not the consumer.

        Args: all_handed_out: whether the messages of the last request count as consumed.
        """

    @property
    @abstractmethod
    def _instance(self) -> ClientInstance:
        """Return the client instance of a started consumer."""

    @property
    def _of_life(self) -> OnDemandSettings:
        settings: OnDemandSettings = self._settings
        return settings

    def after_fork(self) -> None:
        """In a child: allow the start of a consumer that was not started; a running consumer belongs to the parent."""
        if not self._is_started:
            self._pid = os.getpid()

    @property
    def group(self) -> str:
        """Return the consumer group."""
        return self._of_life.group

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClientForked(f"group {self.group}: the consumer belongs to process {self._pid}; make one of your own")
        if self._is_closed:
            raise ClientClosed(f"group {self.group}: the {self._kind} is closed")

    def _is_abandoned(self) -> bool:
        """Return whether a started consumer of this process is deleted without ``close``; warn, and mark as closed."""
        if not getattr(self, "_is_started", False) or self._is_closed or self._pid != os.getpid():
            return False
        self._is_closed = True
        text = f"{self._kind} of group {self.group} was not closed"
        warnings.warn(text, ResourceWarning, stacklevel=3, source=self)
        return True

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "running" if self._is_started else "not started"
        return f"<{type(self).__name__} of group {self.group!r}, {state}>"


class SyncOnDemandConsumer(OnDemandConsumer, SyncCalls):
    """The life of a blocking consumer, whose engine runs in the thread "mqfast-io"."""

    def _set_up(self) -> None:
        self._starting = Guard(brief=False)

    def after_fork(self) -> None:
        """In a child: see ``OnDemandConsumer``."""
        super().after_fork()
        self._starting = Guard(brief=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, all_handed_out=kind is None)

    def start(self) -> Self:
        """Join the group; the first other call does the same.

        Raises: ConnectError, SubscriptionError, ClientClosed.
        """
        self._check_open()
        check_may_wait()
        if self._is_started:
            return self
        with self._starting:
            if not self._is_started:
                self._io = io_thread.shared()
                limit_s = io_thread.start_limit(START_S, self._of_life.start_timeout_s)
                self._io.call(self._start_engine(lambda: self._is_closed), limit_s)
                if self._is_closed:  # by a signal handler or another thread
                    self._io.call(self._end_of_engine(all_handed_out=False)(), self._of_life.close_timeout_s)
                    self._check_open()
                self._is_started = True
                self._at_exit = _AtExit(self)
                close_at_exit(self._at_exit)
        return self

    def _close(self, timeout_s: float | None, *, all_handed_out: bool) -> None:
        if self._is_closed or self._pid != os.getpid():
            return
        check_may_wait()
        self._is_closed = True
        if not self._is_started or not self._io.is_alive:
            return
        limit_s = self._of_life.close_timeout_s if timeout_s is None else timeout_s
        try:
            self._io.call(self._end_of_engine(all_handed_out=all_handed_out)(), max(0.1, limit_s))
        except (MqfastError, RuntimeError) as error:
            _log.warning("group %s: the %s did not end in order: %s", self.group, self._kind, error)

    def __del__(self) -> None:
        if self._is_abandoned() and self._io.is_alive:
            io, close = self._io, self._end_of_engine(all_handed_out=False)
            io.soon(lambda: io.loop.create_task(close()))

    def _run(self, work: Work[T]) -> T:
        try:
            self.start()
        except BaseException:
            work.coroutine.close()
            raise
        return self._io.call(work.coroutine, work.timeout_s)


class _AtExit:
    """Closes an open consumer at exit: commits the acknowledged messages, not the last batch."""

    def __init__(self, consumer: SyncOnDemandConsumer) -> None:
        self._consumer: Final = weakref.ref(consumer)

    def close(self, timeout_s: float | None = None) -> None:
        """Close the consumer at the end of the process."""
        consumer = self._consumer()
        if consumer is not None:
            consumer._close(timeout_s, all_handed_out=False)


class AsyncOnDemandConsumer(OnDemandConsumer, AsyncCalls):
    """The life of a consumer in the running event loop."""

    def _set_up(self) -> None:
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None, all_handed_out=kind is None)

    async def start(self) -> Self:
        """Join the group; the first other call does the same.

        Raises: ConnectError, SubscriptionError, ClientClosed.
        """
        self._check_open()
        if not self._is_started:
            async with self._starting:
                if not self._is_started:
                    await self._start_engine(lambda: self._is_closed)
                    self._loop = asyncio.get_running_loop()
                    self._is_started = True
        self._instance.check_here()
        return self

    async def _close(self, timeout_s: float | None, *, all_handed_out: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_started and self._loop is not asyncio._get_running_loop():
            _log.warning("group %s: closed outside of its event loop: messages may come again", self.group)
        elif self._is_started:
            limit_s = self._of_life.close_timeout_s if timeout_s is None else timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    await self._end_of_engine(all_handed_out=all_handed_out)()
            except (MqfastError, TimeoutError) as error:
                text = "group %s: the %s did not end in order in %g s: %s"
                _log.warning(text, self.group, self._kind, limit_s, error)

    def __del__(self) -> None:
        if self._is_abandoned():
            loop, close = self._loop, self._end_of_engine(all_handed_out=False)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(lambda: loop.create_task(close()))

    async def _run(self, work: Work[T]) -> T:
        try:
            await self.start()
        except BaseException:
            work.coroutine.close()
            raise
        return await work.coroutine
