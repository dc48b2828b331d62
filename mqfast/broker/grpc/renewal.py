"""Renewals: the invisible time of messages that push consumers work on (auto_renew) is extended by the broker.

A message is extended until the client answers, at most for three hours, and never after the end of the client. Clients
name a message by the handle of the delivery; no answer is served by a handle that an extension under way replaces.
Source: ReceiptHandleProcessor, RenewEvent.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mqfast.broker.pop.receipt_handle import ReceiptHandle
from mqfast.errors import CallRefused
from mqfast.remoting.codes import ResponseCode
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
_AGAIN_MS: Final = 2_000
_MINUTE_MS: Final = 60_000
_STEPS_MS: Final = (*(minutes * _MINUTE_MS for minutes in (1, 3, 5, 10, 30, 60)),)

_Key = tuple["GrpcClient", str, str]


class Held:
    """A message that a client works on.

    Attributes: ``handle``: the handle in force; ``extension``: done at the end of the extension under way;
        ``is_answered``: the client has acked the message or changed its time; such a message is not extended.
    """

    __slots__ = ("client", "extension", "group", "handle", "is_answered", "since_ms", "times", "topic")

    def __init__(self, client: GrpcClient, group: str, topic: str, handle: ReceiptHandle) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.handle = handle
        self.since_ms = handle.pop_time
        self.times = 0
        self.extension: asyncio.Future[None] | None = None
        self.is_answered = False

    async def settled(self) -> ReceiptHandle:
        """Return the handle in force; waits for the extension under way."""
        while self.extension is not None:
            await asyncio.wait([self.extension])
        return self.handle


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
        self._plan(key, held.handle.due_ms - _AHEAD_MS)

    def _plan(self, key: _Key, at_ms: int) -> None:
        heapq.heappush(self._due, (at_ms, next(self._numbers), key))

    async def answered(self, client: GrpcClient, group: str, texts: Sequence[str]) -> dict[str, Held]:
        """Note that the client has answered: no extension begins any more. Waits for extensions under way.

        Returns: the messages by the texts of the client, without unknown ones; to be released once the answer is
        stored, so that a repeated answer finds the handle in force.
        """
        named = {text: held for text in texts if (held := self._held.get((client, group, text))) is not None}
        for held in named.values():
            held.is_answered = True
        for held in named.values():
            await held.settled()
        return named

    def release(self, client: GrpcClient, group: str, text: str) -> Held | None:
        """Drop a message. Returns: the message, None for an unknown one."""
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
                await self.run_due()
            except Exception as error:
                self._log.warning("renewal", "invisible times are not extended: %r", error, exc_info=error)

    @property
    def next_due_ms(self) -> int | None:
        """Return the time of the next extension; None: nothing is extended."""
        while self._due and self._due[0][2] not in self._held:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    async def run_due(self) -> None:
        """Extend the messages whose invisible times end soon."""
        while keys := self._take_due():
            await asyncio.gather(*map(self._extend, keys))

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
        if held.is_answered or self._context.now_ms() - held.since_ms > _LONGEST_MS:
            self._drop(key)
            return
        step_ms = _STEPS_MS[min(held.times, len(_STEPS_MS) - 1)]
        held.extension = asyncio.get_running_loop().create_future()
        try:
            held.handle = await self._pop.change_invisible_time(
                held.group, held.topic, held.handle, step_ms, is_suspend=True
            )
        except Exception as error:
            now_ms = self._context.now_ms()
            is_gone = isinstance(error, CallRefused) and error.code == ResponseCode.NO_MESSAGE
            if is_gone or held.handle.due_ms <= now_ms:
                self._drop(key)
            else:
                self._log.warning("failed", "group %s: a message is not extended yet: %s", held.group, error)
                self._plan(key, now_ms + _AGAIN_MS)
        else:
            held.times += 1
            self._plan(key, held.handle.due_ms - _AHEAD_MS)
        finally:
            held.extension.set_result(None)
            held.extension = None
