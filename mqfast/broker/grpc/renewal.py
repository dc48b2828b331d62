"""Renewals: the invisible time of messages that push consumers work on (auto_renew) is extended by the broker.

A message is extended until the ack, at most for three hours, and never after the end of the client. Clients name a
message by the handle of the delivery. Source: ReceiptHandleProcessor, RenewEvent.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Final

from mqfast.broker.pop.receipt_handle import ReceiptHandle
from mqfast.errors import CallRefused
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.grpc.clients import GrpcClient
    from mqfast.broker.pop.pop_service import PopService

__all__ = ["Held", "Renewals"]

_LOOK_S: Final = 1.0
_AHEAD_MS: Final = 10_000
_TOGETHER: Final = 64
_HELD_MAX: Final = 200_000
_LONGEST_MS: Final = 3 * 3_600_000
_FAILURES_MAX: Final = 3
_MINUTE_MS: Final = 60_000
_STEPS_MS: Final = (*(minutes * _MINUTE_MS for minutes in (1, 3, 5, 10, 30, 60)),)

_Key = tuple["GrpcClient", str, str]


class Held:
    """A message that a client works on; ``handle``: the handle in force."""

    __slots__ = ("client", "failures", "group", "handle", "since_ms", "times", "topic")

    def __init__(self, client: GrpcClient, group: str, topic: str, handle: ReceiptHandle) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.handle = handle
        self.since_ms = handle.pop_time
        self.times = 0
        self.failures = 0


class Renewals:
    """The messages whose invisible time is extended. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self._context: Final = context
        self._pop: Final = pop
        self._log: Final = LogLimit(logging.getLogger("mqfast.broker"))
        self._held: dict[_Key, Held] = {}
        self._of_client: dict[GrpcClient, dict[_Key, None]] = {}
        self._due: list[tuple[int, int, _Key]] = []
        self._numbers = itertools.count()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def start(self) -> None:
        """Start to extend."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Stop to extend; messages become visible by their times."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def hold(self, text: str, held: Held) -> None:
        """Extend a delivered message from now on. Args: text: the handle that the client gets."""
        if len(self._held) >= _HELD_MAX:
            self._log.warning("many", "%d messages are extended already: another one is not", len(self._held))
            return
        key = held.client, held.group, text
        self._held[key] = held
        self._of_client.setdefault(held.client, {})[key] = None
        self._plan(key, held)

    def _plan(self, key: _Key, held: Held) -> None:
        heapq.heappush(self._due, (held.handle.due_ms - _AHEAD_MS, next(self._numbers), key))

    def release(self, client: GrpcClient, group: str, text: str) -> Held | None:
        """Extend a message no longer: the client has answered. Returns: the message, None if not extended."""
        return self._drop((client, group, text))

    def _drop(self, key: _Key) -> Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            keys = self._of_client[held.client]
            del keys[key]
            if not keys:
                del self._of_client[held.client]
        return held

    def forget(self, client: GrpcClient) -> list[Held]:
        """Extend no message of a client that has ended. Returns: the messages."""
        return [held for key in list(self._of_client.get(client, ())) if (held := self._drop(key)) is not None]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                while keys := self._take_due():
                    await asyncio.gather(*map(self._extend, keys))
            except Exception as error:
                self._log.warning("renewal", "invisible times are not extended: %r", error, exc_info=error)

    def _take_due(self) -> list[_Key]:
        keys: list[_Key] = []
        now_ms = self._context.now_ms()
        while self._due and self._due[0][0] <= now_ms and len(keys) < _TOGETHER:
            key = heapq.heappop(self._due)[2]
            if key in self._held:
                keys.append(key)
        return keys

    async def _extend(self, key: _Key) -> None:
        held = self._held.get(key)
        if held is None:
            return
        if self._context.now_ms() - held.since_ms > _LONGEST_MS:
            self._drop(key)
            return
        step_ms = _STEPS_MS[min(held.times, len(_STEPS_MS) - 1)]
        try:
            held.handle = await self._pop.change_invisible_time(
                held.group, held.topic, held.handle, step_ms, is_suspend=True
            )
        except CallRefused as error:
            held.failures += 1
            if held.failures >= _FAILURES_MAX:
                self._drop(key)
                self._log.info("given up", "group %s: a message is not extended: %s", held.group, error.remark)
                return
        else:
            held.times += 1
        if key in self._held:
            self._plan(key, held)
