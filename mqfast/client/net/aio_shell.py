"""Runs steps in an event loop: each question over the one connection to its address.

Room: client. It must never block the loop, or ask twice by itself but for a broker that says that it is leaving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from mqfast.client.net.steps import Ask, Pause, Steps
from mqfast.errors import CallTimeout, ConnectError, ConnectionLost, TooManyCalls
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["AioShell", "Sign"]

T = TypeVar("T")
Sign = Callable[[int, dict[str, Any], Any], dict[str, Any]]
"""(code, fields, body) -> the fields that are sent: with signature and namespace."""


class AioShell:
    """Runs steps over the connections of a RemotingClient.

    Thread: that of the event loop.
    """

    def __init__(self, client: RemotingClient, sign: Sign | None = None) -> None:
        self._client = client
        self._sign = sign

    async def run(self, steps: Steps[T]) -> T:
        """Run to the end. Returns: what the steps return; raises what they raise."""
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
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    continue
                try:
                    answer = await self.ask(step)
                except (ConnectError, ConnectionLost, CallTimeout, TooManyCalls) as failure:
                    error = failure
        finally:
            steps.close()

    async def ask(self, ask: Ask) -> RemotingCommand | None:
        """One question. Raises: ConnectError, ConnectionLost, CallTimeout, TooManyCalls."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ask.timeout_s
        fields = ask.ext_fields if self._sign is None else self._sign(ask.code, ask.ext_fields or {}, ask.body)
        answer = None
        for attempt in range(2):
            try:
                async with asyncio.timeout_at(deadline):
                    channel = await self._client.channel(ask.address)
            except TimeoutError:
                raise ConnectError(f"{ask.address}: no connection in {ask.timeout_s:.2f} s") from None
            except (ConnectionLost, ValueError) as error:
                raise ConnectError(str(error)) from None
            if ask.oneway:
                channel.oneway(ask.code, fields, ask.body)
                return None
            left_ms = max(1, round((deadline - loop.time()) * 1000))
            answer = await channel.call(ask.code, fields, ask.body, timeout_ms=left_ms)
            if answer.code != ResponseCode.GO_AWAY or attempt:
                break
            self._client.leave(ask.address)  # the broker is leaving; whoever listens there now is asked once more
        return answer
