"""Latency fault tolerance: slow or failed brokers are avoided for a while, by the tables of 5.x and of 4.9.

Source: MQFaultStrategy, LatencyFaultToleranceImpl.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mqfast.client.route.select import RoundRobin
from mqfast.client.values import MessageQueue

__all__ = ["V4", "V5", "FaultTable", "LatencyTable"]


class LatencyTable(NamedTuple):
    """The time for which a broker is avoided after a latency: from each ``latency_ms`` on for ``avoided_ms``.

    Attributes: isolated_ms: latency of a failed attempt; overwrites: a later update may shorten the time.
    """

    latency_ms: tuple[int, ...]
    avoided_ms: tuple[int, ...]
    isolated_ms: int
    overwrites: bool

    def avoided_after(self, latency_ms: float) -> int:
        """Return the milliseconds for which a broker with this latency is avoided."""
        for limit, avoided in zip(reversed(self.latency_ms), reversed(self.avoided_ms), strict=True):
            if latency_ms >= limit:
                return avoided
        return 0


V5: Final = LatencyTable((50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10000, 30000), 10_000, False)
"""The table of 5.x."""
V4: Final = LatencyTable(
    (50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30000, 60000, 120000, 180000, 600000), 30_000, True
)
"""The table of 4.9."""


class _Item:
    __slots__ = ("available_from_s", "latency_ms", "reachable")

    def __init__(self) -> None:
        self.latency_ms = 0.0
        self.available_from_s = 0.0
        self.reachable = True


class FaultTable:
    """The latency of each broker.

    Args: table: V5 or V4. clock: seconds that only grow.
    Thread: any; a race between two updates loses one of them.
    """

    def __init__(
        self,
        table: LatencyTable = V5,
        *,
        clock: Callable[[], float] | None = None,
        source: random.Random | None = None,
    ) -> None:
        self._table = table
        self._clock = clock or time.monotonic
        self._random = source or random.Random()
        self._items: dict[str, _Item] = {}
        self._worst = RoundRobin()

    def update(self, broker: str, latency_s: float, *, isolated: bool = False, reachable: bool = True) -> None:
        """Record the end of an attempt. Args: isolated: the attempt failed; reachable: there was a connection and a
        response.
        """
        latency_ms = latency_s * 1000
        avoided_s = self._table.avoided_after(self._table.isolated_ms if isolated else latency_ms) / 1000
        item = self._items.setdefault(broker, _Item())
        item.latency_ms = latency_ms
        item.reachable = reachable
        until = self._clock() + avoided_s
        if self._table.overwrites or (avoided_s > 0 and until > item.available_from_s):
            item.available_from_s = until

    def is_available(self, broker: str) -> bool:
        """Return whether the broker is not avoided now."""
        item = self._items.get(broker)
        return item is None or self._clock() >= item.available_from_s

    def is_reachable(self, broker: str) -> bool:
        """Return whether the last attempt reached the broker."""
        item = self._items.get(broker)
        return item is None or item.reachable

    def pick(self, queues: Sequence[MessageQueue], last_broker: str | None, robin: RoundRobin) -> MessageQueue:
        """Return the next queue of a broker that is not avoided; where there is none, of a fair one, at last of any."""
        if self._table.overwrites:
            return self._pick_as_4(queues, robin)
        others = [queue for queue in queues if queue.broker_name != last_broker]
        return (
            robin.first(others, lambda queue: self.is_available(queue.broker_name))
            or robin.first(others, lambda queue: self.is_reachable(queue.broker_name))
            or robin.pick(queues)
        )

    def _pick_as_4(self, queues: Sequence[MessageQueue], robin: RoundRobin) -> MessageQueue:
        queue = robin.first(queues, lambda candidate: self.is_available(candidate.broker_name))
        if queue is not None:
            return queue
        broker = self._one_of_the_better_half()
        of_broker = [queue for queue in queues if queue.broker_name == broker]
        if broker is not None and not of_broker:
            self._items.pop(broker, None)
        return of_broker[robin.number() % len(of_broker)] if of_broker else robin.pick(queues)

    def _one_of_the_better_half(self) -> str | None:
        now = self._clock()
        ranked = list(self._items.items())
        self._random.shuffle(ranked)
        ranked.sort(key=lambda entry: (now < entry[1].available_from_s, entry[1].latency_ms, entry[1].available_from_s))
        if not ranked:
            return None
        half = len(ranked) // 2
        return ranked[self._worst.number() % half if half else 0][0]
