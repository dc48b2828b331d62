"""Runs request steps in an event loop, over a single connection to each address.

The loop is never blocked. A request is sent a second time only to a broker that answered GO_AWAY.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from mqfast.client.net.request_steps import Blocking, EncodedRequest, Request, RequestSteps, Sleep, of_client
from mqfast.errors import CallTimeout, ConnectError, ConnectionLost, TooManyCalls
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["AsyncioDriver", "Sign"]

T = TypeVar("T")
Sign = Callable[[int, dict[str, Any], Any], dict[str, Any]]
"""(code, fields, body) -> the fields that are sent: with signature and namespace."""


class AsyncioDriver:
    """Runs steps over the connections of a RemotingClient.

    Args: explain: returns a hint about an unreachable address, appended to the error.
    Thread: that of the event loop.
    """

    def __init__(
        self, client: RemotingClient, sign: Sign | None = None, explain: Callable[[str], str] | None = None
    ) -> None:
        self._client = client
        self._sign = sign
        self._explain = explain or _nothing

    async def run(self, steps: RequestSteps[T]) -> T:
        """Run the steps. Returns: the result of the steps. Raises: the exceptions of the steps."""
        answer: RemotingCommand | None = None
        error: Exception | None = None
        try:
            while True:
                try:
                    step = steps.send(answer) if error is None else steps.throw(error)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = error = None
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                    continue
                if isinstance(step, Blocking):
                    try:
                        answer = await asyncio.to_thread(step.function)
                    except Exception as failure:
                        error = failure
                    continue
                try:
                    answer = await self.request(step)
                except (ConnectError, ConnectionLost, CallTimeout, TooManyCalls) as failure:
                    error = of_client(failure)
        finally:
            steps.close()

    async def request(self, request: Request | EncodedRequest) -> RemotingCommand | None:
        """Send a request. Raises: ConnectError, ConnectionLost, CallTimeout, TooManyCalls."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_s
        frame = None if self._sign is not None or isinstance(request, Request) else request.frame
        fields = None
        if frame is None:
            fields = request.ext_fields
            if self._sign is not None:
                fields = self._sign(request.code, fields or {}, request.body)
        answer = None
        for attempt in range(2):
            channel = self._client.ready(request.address) or await self._connected(request, deadline)
            left_ms = max(1, round((deadline - loop.time()) * 1000))
            if request.oneway:
                if frame is None:
                    channel.oneway(request.code, fields, request.body)
                else:
                    channel.oneway_ready(frame)
                return None
            if frame is None:
                answer = await channel.call(request.code, fields, request.body, timeout_ms=left_ms)
            else:
                future: asyncio.Future[RemotingCommand] = loop.create_future()
                channel.begin(frame, request.code, future, max(0.001, deadline - loop.time()))
                answer = await future
            if answer.code != ResponseCode.GO_AWAY or attempt:
                break
            self._client.renew(request.address)  # the broker is leaving: one more attempt, over a new connection
        return answer

    @property
    def signs(self) -> bool:
        """Return whether requests are signed."""
        return self._sign is not None

    def begin(self, request: EncodedRequest, context: Any, timeout_s: float) -> bool:
        """Send a request over an existing connection; ``context`` gets the result, see ``Channel.begin``.

        Returns: False where the caller has to use ``request``: there is no connection, or requests are signed.
        """
        channel = None if self._sign is not None else self._client.ready(request.address)
        if channel is None:
            return False
        channel.begin(request.frame, request.code, context, timeout_s)
        return True

    async def connect(self, address: str) -> ConnectError | None:
        """Connect to an address. Returns: the error, None after success."""
        try:
            await self._client.channel(address)
        except (ConnectionLost, ValueError) as error:
            return ConnectError(f"{error}{self._explain(address)}")
        return None

    async def _connected(self, request: Request | EncodedRequest, deadline: float) -> Channel:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._client.channel(request.address)
        except TimeoutError:
            text = f"{request.address}: no connection in {request.timeout_s:.2f} s{self._explain(request.address)}"
            raise ConnectError(text) from None
        except (ConnectionLost, ValueError) as error:
            raise ConnectError(f"{error}{self._explain(request.address)}") from None


def _nothing(address: str) -> str:
    return ""
