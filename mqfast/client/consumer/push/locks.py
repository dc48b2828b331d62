"""Locks of queues at brokers, for orderly consumers: at most one member reads a queue.

Room: client. It must never count a lock as held beyond the time for which the broker was asked. Source: RebalanceImpl,
ConsumeMessageOrderlyService.lockMQPeriodically.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from mqfast.client.consumer.group_requests import lock_queues, unlock_queues
from mqfast.client.consumer.push.state import Assigned
from mqfast.client.values import MessageQueue
from mqfast.errors import MqfastError
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.client.consumer.push.engine import PushEngine

__all__ = ["LOCK_LIVES_S", "RENEW_S", "Locks"]

_log = logging.getLogger("mqfast.client.consumer")
RENEW_S: Final = 20.0
ASK_AGAIN_S: Final = 0.1
ASK_AGAIN_AT_MOST_S: Final = 1.0
"""How soon a broker is asked again that did not answer whose a lock is: twice as late each time."""
LOCK_LIVES_S: Final = 30.0
"""How long a client counts on a lock; the broker keeps it for 60 s."""


class Locks:
    """The locks of one consumer.

    Thread: that of the loop.
    """

    def __init__(self, engine: PushEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._doubted: set[MessageQueue] = set()
        self._limited = LogLimit(_log)
        self._is_asking = False
        self._asked_at: dict[str, str | None] = {}  # broker name -> address of the master that was asked last
        self._doubts: Counter[str] = Counter()  # by broker name

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[dict[MessageQueue, float], set[MessageQueue]]:
        """Lock queues. Returns: until when each one is held, by the clock, and those that another member has; a queue
        whose broker did not answer, or whose locks came into doubt since it was asked, is in neither.
        """
        held: dict[MessageQueue, float] = {}
        refused: set[MessageQueue] = set()
        doubts = self._doubts.copy()
        for some in _by_broker(queues):
            self._asked_at[some[0].broker_name] = self._engine.instance.routes.address(some[0].broker_name)
            until = self._clock() + LOCK_LIVES_S
            try:
                instance = self._engine.instance
                granted = await instance.driver.run(lock_queues(instance, self._engine.group, some))
            except MqfastError as error:
                name = some[0].broker_name
                self._limited.warning(name, "group %s: locks at %s: %s", self._engine.group, name, error)
                continue
            held.update(dict.fromkeys(granted, until))
            refused.update(set(some) - granted)
        return {one: held[one] for one in held if self._doubts[one.broker_name] == doubts[one.broker_name]}, refused

    async def renew(self) -> None:
        """Renew all locks; a queue whose lock is lost is given up, since another member may read it now."""
        mine = dict(self._engine.assigned)
        if not mine:
            return
        held, refused = await self.lock(mine)
        lost: list[Assigned] = []
        for queue, assigned in mine.items():
            if queue in refused or (self._clock() >= assigned.locked_until_s and queue not in self._doubted):
                lost.append(assigned)
            elif queue in held and queue not in self._doubted:
                assigned.locked_until_s = held[queue]
                assigned.last_lock_ms = int(time.time() * 1000)
        if lost:
            _log.warning("group %s: the locks of %d queues are lost", self._engine.group, len(lost))
            self._engine.give_up(lost, is_lost=True)
            self._engine.rebalance_soon()

    def disconnected(self, address: str) -> None:
        """A connection has ended, or its broker leaves: a broker that was started anew knows no locks."""
        self._doubt({name for name, asked in self._asked_at.items() if asked == address})

    def route_changed(self) -> None:
        """Another broker may be the master now: it knows no locks."""
        address = self._engine.instance.routes.address
        self._doubt({name for name, asked in self._asked_at.items() if asked != address(name)})

    def _doubt(self, brokers: set[str]) -> None:
        """These brokers may give the locks to another member: nothing is handed out of their queues until they have
        said whose they are.
        """
        self._doubts.update(brokers)
        for queue, assigned in self._engine.assigned.items():
            if queue.broker_name in brokers:
                assigned.locked_until_s = 0.0
                self._doubted.add(queue)
        if self._doubted and not self._is_asking:
            self._is_asking = True
            self._engine.instance.spawn(self._clear_doubts(), f"{self._engine.group} locks")

    async def _clear_doubts(self) -> None:
        engine, again_s = self._engine, ASK_AGAIN_S
        try:
            while not engine.is_closing:
                mine = {queue: one for queue in self._doubted if (one := engine.assigned.get(queue)) is not None}
                self._doubted &= mine.keys()
                if not mine:
                    return
                held, refused = await self.lock(mine)
                for queue, until in held.items():
                    mine[queue].locked_until_s = until
                    mine[queue].last_lock_ms = int(time.time() * 1000)
                self._doubted -= {*held, *refused}
                engine.give_up([mine[queue] for queue in refused], is_lost=True)
                if refused:
                    engine.rebalance_soon()
                if self._doubted:
                    await asyncio.sleep(again_s)
                    again_s = min(2 * again_s, ASK_AGAIN_AT_MOST_S)
        finally:
            self._is_asking = False

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks up; a broker that does not answer forgets them after 60 s."""
        instance, group = self._engine.instance, self._engine.group
        work = [instance.driver.run(unlock_queues(instance, group, some)) for some in _by_broker(queues)]
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, MqfastError):
                _log.info("group %s: unlock: %s", group, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return list(found.values())
