"""Locks of queues at brokers, for orderly consumers: at most a single member consumes a queue.

The local end of a lock is always earlier than the end at the broker. Source: RebalanceImpl,
ConsumeMessageOrderlyService.lockMQPeriodically.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mqfast.client.consumer.group_requests import lock_queues, unlock_queues
from mqfast.client.consumer.push.state import Assigned, ConsumerState
from mqfast.client.net.instance import ClientInstance
from mqfast.client.values import MessageQueue
from mqfast.errors import MqfastError
from mqfast.util.log_limit import LogLimit

__all__ = ["LOCK_LIVES_S", "RENEW_S", "Locks"]

_log = logging.getLogger("mqfast.client.consumer")
RENEW_S: Final = 20.0
ASK_AGAIN_S: Final = 0.1
ASK_AGAIN_AT_MOST_S: Final = 1.0
"""First and longest pause before a repeated lock request to a broker that did not answer; the pause doubles."""
LOCK_LIVES_S: Final = 30.0
"""How long a client relies on a lock; the broker keeps the lock for 60 s."""


class Locks:
    """The locks of a consumer.

    Args: lost: called with the queues whose locks another member has.
    Thread: that of the loop.
    """

    def __init__(
        self,
        state: ConsumerState,
        instance: ClientInstance,
        lost: Callable[[Sequence[Assigned]], object],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._lost: Final = lost
        self._clock = clock or time.monotonic
        self._doubted: set[MessageQueue] = set()
        self._limited: Final = LogLimit(_log)
        self._is_requesting = False
        self._requested_at: dict[str, str | None] = {}  # broker name -> address of the master of the last request
        self._doubts: Counter[str] = Counter()  # by broker name

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[dict[MessageQueue, float], set[MessageQueue]]:
        """Lock queues.

        Returns: the end of each granted lock, by the clock, and the queues that another member has locked. Neither
        contains a queue whose broker did not answer, or whose locks came into doubt after the request.
        """
        held: dict[MessageQueue, float] = {}
        refused: set[MessageQueue] = set()
        doubts = self._doubts.copy()
        instance = self._instance
        for some in _by_broker(queues):
            name = some[0].broker_name
            self._requested_at[name] = instance.routes.address(name)
            until = self._clock() + LOCK_LIVES_S
            try:
                granted = await instance.driver.run(lock_queues(instance, self._state.group, some))
            except MqfastError as error:
                self._limited.warning(name, "group %s: locks at %s: %s", self._state.group, name, error)
                continue
            held.update(dict.fromkeys(granted, until))
            refused.update(set(some) - granted)
        now = self._doubts
        valid = {queue: held[queue] for queue in held if now[queue.broker_name] == doubts[queue.broker_name]}
        return valid, refused

    async def renew(self) -> None:
        """Renew all locks and report lost locks: another member may consume such a queue now."""
        mine = dict(self._state.assigned)
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
            _log.warning("group %s: the locks of %d queues are lost", self._state.group, len(lost))
            self._lost(lost)

    def disconnected(self, address: str) -> None:
        """Doubt the locks of a broker whose connection has ended: a restarted broker has no locks."""
        self._doubt({name for name, requested in self._requested_at.items() if requested == address})

    def route_changed(self) -> None:
        """Doubt the locks of a broker name with a new master: the new master has no locks."""
        address = self._instance.routes.address
        self._doubt({name for name, requested in self._requested_at.items() if requested != address(name)})

    def _doubt(self, brokers: set[str]) -> None:
        """Stop the delivery from the queues of these brokers until the brokers confirm the locks.

        Another member may get the locks meanwhile.
        """
        self._doubts.update(brokers)
        for queue, assigned in self._state.assigned.items():
            if queue.broker_name in brokers:
                assigned.locked_until_s = 0.0
                self._doubted.add(queue)
        if self._doubted and not self._is_requesting:
            self._is_requesting = True
            self._instance.spawn(self._clear_doubts(), f"{self._state.group} locks")

    async def _clear_doubts(self) -> None:
        state, pause_s = self._state, ASK_AGAIN_S
        try:
            while not state.is_closing:
                mine = {
                    queue: assigned for queue in self._doubted if (assigned := state.assigned.get(queue)) is not None
                }
                self._doubted &= mine.keys()
                if not mine:
                    return
                held, refused = await self.lock(mine)
                for queue, until in held.items():
                    mine[queue].locked_until_s = until
                    mine[queue].last_lock_ms = int(time.time() * 1000)
                self._doubted -= {*held, *refused}
                if refused:
                    self._lost([mine[queue] for queue in refused])
                if self._doubted:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, ASK_AGAIN_AT_MOST_S)
        finally:
            self._is_requesting = False

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; a broker that does not answer releases them after 60 s."""
        instance, group = self._instance, self._state.group
        work = [instance.driver.run(unlock_queues(instance, group, some)) for some in _by_broker(queues)]
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, MqfastError):
                _log.info("group %s: unlock: %s", group, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    groups: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        groups.setdefault(queue.broker_name, []).append(queue)
    return list(groups.values())
