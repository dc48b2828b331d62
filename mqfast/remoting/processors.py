"""The handlers of request codes, and the limits of running and waiting requests.

Source: NettyRemotingAbstract.processRequestCommand, BrokerFastFailure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from mqfast.errors import CallRefused, FieldError, UsageError
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.util.log_limit import LogLimit

__all__ = ["Handler", "ConcurrencyLimit", "Processors"]

# Errors of the peer's request: the response has the text, and nothing is logged.
_OF_THE_PEER = (FieldError, UsageError)
_KNOWS_GO_AWAY = 475  # V5_3_1, in which clients do not know it yet

Outcome = RemotingCommand | None
Handler = Callable[[Channel, RemotingCommand], Outcome | Awaitable[Outcome]]
"""Serves one request. A handler returns the response; or None, and answers later by ``channel.answer`` (long polling);
or a future of the response; or it is a coroutine function. A CallRefused becomes the response's code and remark, any
other exception code 1 and its text; exceptions that are not the peer's fault are logged.
"""


class _Waiting(NamedTuple):
    entered_s: float
    channel: Channel
    request: RemotingCommand
    handler: Handler


class Settling(Protocol):
    """Changes by handlers for which responses wait.

    Attributes: ``count``: grows with each change.
    Thread: that of the event loop.
    """

    count: int

    def then(self, outcome: Outcome | Awaitable[Outcome]) -> Outcome | Awaitable[Outcome]:
        """Return the outcome of a handler that has changed something, once the change is safe."""

    def around(self, serve: Awaitable[Outcome]) -> Awaitable[Outcome]:
        """Return the outcome of a handler that is a coroutine, once all changes meanwhile are safe."""


class _Unsettled:
    """No changes: responses wait for nothing."""

    count = 0

    def then(self, outcome: Outcome | Awaitable[Outcome]) -> Outcome | Awaitable[Outcome]:
        return outcome

    def around(self, serve: Awaitable[Outcome]) -> Awaitable[Outcome]:
        return serve


class ConcurrencyLimit:
    """Limits of the running and waiting requests of some codes.

    Args:
        concurrency: coroutines and futures at once; any other handler is done before the next request is served.
        queue_max: requests that wait; further ones are answered SYSTEM_BUSY.
        queue_timeout_ms: a request that waited longer is answered SYSTEM_BUSY when its turn comes; None: no limit.
    """

    def __init__(
        self, name: str, *, concurrency: int = 64, queue_max: int = 10_000, queue_timeout_ms: int | None = None
    ) -> None:
        self.name = name
        self.concurrency = concurrency
        self.queue_max = queue_max
        self.queue_timeout_ms = queue_timeout_ms
        self.running = 0
        self.waiting: deque[_Waiting] = deque()

    def head_wait_ms(self, now_s: float) -> int:
        """Return the wait of the oldest waiting request."""
        return int((now_s - self.waiting[0].entered_s) * 1000) if self.waiting else 0


class Processors:
    """The table of a server: code -> handler and limit.

    Attributes: ``is_leaving``: the server is about to stop: clients that know GO_AWAY are sent to another connection.
        ``is_starting``: the server listens, and not every code is registered: unknown codes are answered SYSTEM_BUSY.
        ``settling``: changes for which responses wait.
    Thread: that of the event loop.
    """

    def __init__(self, *, clock: Callable[[], float] | None = None, logger: logging.Logger | None = None) -> None:
        self._table: dict[int, tuple[Handler, ConcurrencyLimit]] = {}
        self._default: tuple[Handler, ConcurrencyLimit] | None = None
        self._clock = clock or time.monotonic
        self._log = LogLimit(logger or logging.getLogger("mqfast.remoting"), clock=clock)
        self._futures: set[asyncio.Future[Outcome]] = set()
        self.is_leaving = False
        self.is_starting = False
        self.settling: Settling = _Unsettled()

    @property
    def codes(self) -> frozenset[int]:
        """Return the registered codes."""
        return frozenset(self._table)

    @property
    def lanes(self) -> dict[str, ConcurrencyLimit]:
        """Return name -> limit of all that are in use."""
        entries = [*self._table.values(), *([self._default] if self._default else [])]
        return {lane.name: lane for _, lane in entries}

    @property
    def running(self) -> int:
        """Return the number of running requests without a response; held requests are not counted."""
        return len(self._futures)

    def register(self, codes: Iterable[int], handler: Handler, lane: ConcurrencyLimit) -> None:
        """Serve these codes with this handler."""
        for code in codes:
            self._table[int(code)] = (handler, lane)

    def register_default(self, handler: Handler, lane: ConcurrencyLimit) -> None:
        """Serve every other code with this handler."""
        self._default = (handler, lane)

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Serve a request, or queue it, or refuse it; the response goes to ``channel.answer``."""
        entry = self._table.get(request.code) or self._default
        if entry is None and self.is_starting:  # clients repeat this request; a refused code is final
            remark = "[STARTING]system busy, the server is starting"
            channel.answer(request, request.response(ResponseCode.SYSTEM_BUSY, remark=remark))
            return
        if entry is None:
            remark = f" request type {request.code} not supported"
            channel.answer(request, request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        handler, lane = entry
        if self.is_leaving and request.version > _KNOWS_GO_AWAY:
            channel.answer(request, request.response(ResponseCode.GO_AWAY, remark="please go away"))
        elif lane.running < lane.concurrency:
            self._serve(channel, request, handler, lane)
        elif len(lane.waiting) < lane.queue_max:
            channel.queued_requests += 1
            lane.waiting.append(_Waiting(self._clock(), channel, request, handler))
        else:
            self._log.warning("overload", "lane %s: %d requests wait, one more is refused", lane.name, lane.queue_max)
            remark = "[OVERLOAD]system busy, start flow control for a while"
            channel.answer(request, request.response(ResponseCode.SYSTEM_BUSY, remark=remark))

    def _serve(self, channel: Channel, request: RemotingCommand, handler: Handler, lane: ConcurrencyLimit) -> None:
        settling = self.settling
        before = settling.count
        try:
            outcome = handler(channel, request)
        except Exception as error:
            channel.answer(request, self._failure(request, error))
            return
        if settling.count != before:
            outcome = settling.then(outcome)
        elif isinstance(outcome, Coroutine):
            outcome = settling.around(outcome)
        if outcome is None:
            return
        if isinstance(outcome, RemotingCommand):
            channel.answer(request, outcome)
            return
        lane.running += 1
        future = asyncio.ensure_future(outcome)
        self._futures.add(future)
        future.add_done_callback(partial(self._done, channel, request, lane))

    def _done(
        self, channel: Channel, request: RemotingCommand, lane: ConcurrencyLimit, future: asyncio.Future[Outcome]
    ) -> None:
        self._futures.discard(future)
        lane.running -= 1
        if not future.cancelled():
            error = future.exception()
            answer = future.result() if error is None else self._failure(request, error)
            if answer is not None:
                channel.answer(request, answer)
        self._next(lane)

    def _next(self, lane: ConcurrencyLimit) -> None:
        while lane.waiting and lane.running < lane.concurrency:
            waiting = lane.waiting.popleft()
            self._take_turn(waiting, lane)
            waiting.channel.leave_queue()

    def _take_turn(self, waiting: _Waiting, lane: ConcurrencyLimit) -> None:
        waited_ms = int((self._clock() - waiting.entered_s) * 1000)
        channel, request = waiting.channel, waiting.request
        if channel.is_closed:  # a client of gRPC has ended, and its call waits
            channel.answer(request, request.response(ResponseCode.SYSTEM_BUSY, remark="the client has ended"))
            return
        if lane.queue_timeout_ms is not None and waited_ms > lane.queue_timeout_ms:
            remark = (
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                f"period in queue: {waited_ms}ms, size of queue: {len(lane.waiting)}"
            )
            channel.answer(request, request.response(ResponseCode.SYSTEM_BUSY, remark=remark))
            return
        self._serve(channel, request, waiting.handler, lane)

    def _failure(self, request: RemotingCommand, error: BaseException) -> RemotingCommand:
        if isinstance(error, CallRefused):
            return request.response(error.code, remark=error.remark or None)
        if not isinstance(error, _OF_THE_PEER):
            # An OSError, for example of descriptors, is logged without a traceback.
            where = False if isinstance(error, OSError) else error
            self._log.warning(f"failure {request.code}", "request %d failed: %r", request.code, error, exc_info=where)
        return request.response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    async def stop(self, grace_s: float) -> None:
        """Let running requests end within the grace time; then cancel them. Waiting requests are dropped."""
        for lane in self.lanes.values():
            lane.waiting.clear()
        futures = set(self._futures)
        if futures:
            _, late = await asyncio.wait(futures, timeout=grace_s)
            for future in late:
                future.cancel()
            await asyncio.gather(*late, return_exceptions=True)
