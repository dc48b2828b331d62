"""Locks of queues at brokers, for orderly consumers: at most one member reads a queue.

Room: client. It must never count a lock as held beyond the time for which the broker was asked. Source: RebalanceImpl,
ConsumeMessageOrderlyService.lockMQPeriodically.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from mqfast.client.consumer.group_asks import lock_queues, unlock_queues
from mqfast.client.consumer.push.assigned import Assigned
from mqfast.client.values import MessageQueue
from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from mqfast.client.consumer.push.engine import PushEngine

__all__ = ["LOCK_LIVES_S", "RENEW_S", "Locks"]

_log = logging.getLogger("mqfast.client.consumer")
RENEW_S: Final = 20.0
ASK_AGAIN_S: Final = 0.1
"""How soon a broker is asked again that did not answer whose a lock is."""
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

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[dict[MessageQueue, float], set[MessageQueue]]:
        """Lock queues. Returns: until when each one is held, by the clock, and those that another member has; a queue
        whose broker did not answer is in neither.
        """
        held: dict[MessageQueue, float] = {}
        refused: set[MessageQueue] = set()
        for some in _by_broker(queues):
            until = self._clock() + LOCK_LIVES_S
            try:
                instance = self._engine.instance
                granted = await instance.shell.run(lock_queues(instance, self._engine.group, some))
            except MqfastError as error:
                _log.warning("group %s: locks at %s: %s", self._engine.group, some[0].broker_name, error)
                continue
            held.update(dict.fromkeys(granted, until))
            refused.update(set(some) - granted)
        return held, refused

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

    def doubt(self, assigned: Assigned) -> None:
        """The connection to the broker has ended: one that was started anew knows no locks, and may give this one to
        another member. Nothing is handed out of the queue until the broker has said whose it is.
        """
        assigned.locked_until_s = 0.0
        begins = not self._doubted
        self._doubted.add(assigned.queue)
        if begins:
            self._engine.instance.spawn(self._clear_doubts(), f"{self._engine.group} locks")

    async def _clear_doubts(self) -> None:
        engine = self._engine
        try:
            while not engine.is_closing:
                mine = {queue: one for queue in self._doubted if (one := engine.assigned.get(queue)) is not None}
                if not mine:
                    return
                held, refused = await self.lock(mine)
                for queue, until in held.items():
                    mine[queue].locked_until_s = until
                    mine[queue].last_lock_ms = int(time.time() * 1000)
                engine.give_up([mine[queue] for queue in refused], is_lost=True)
                if refused:
                    engine.rebalance_soon()
                self._doubted -= {*held, *refused}
                await asyncio.sleep(ASK_AGAIN_S)
        finally:
            self._doubted.clear()

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks up; a broker that does not answer forgets them after 60 s."""
        instance, group = self._engine.instance, self._engine.group
        work = [instance.shell.run(unlock_queues(instance, group, some)) for some in _by_broker(queues)]
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
