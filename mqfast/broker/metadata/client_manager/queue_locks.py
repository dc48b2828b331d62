"""Locks of queues for orderly consumers (41, 42).

A lock that is not renewed for 60 s expires; clients renew their locks every 20 s. No I/O and no clock except
``now_ms``. Source: RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

__all__ = ["LockedQueue", "QueueLocks"]

LOCK_MS: Final = 60_000


class LockedQueue(NamedTuple):
    """A queue of a topic on a broker."""

    topic: str
    broker_name: str
    queue_id: int


class _Lock:
    __slots__ = ("client_id", "updated_ms")

    def __init__(self, client_id: str, updated_ms: int) -> None:
        self.client_id = client_id
        self.updated_ms = updated_ms


class QueueLocks:
    """The locks of all groups.

    Args: now_ms: the time in ms; lock_ms: lifetime of a lock (RocketMQ: rocketmq.broker.rebalance.lockMaxLiveTime);
        max_locks: limit of locks of all groups.
    Thread: no concurrent calls.
    """

    def __init__(self, now_ms: Callable[[], int], *, lock_ms: int = LOCK_MS, max_locks: int = 500_000) -> None:
        self._now_ms = now_ms
        self._lock_ms = lock_ms
        self._max_locks = max_locks
        self._count = 0
        self._groups: dict[str, dict[LockedQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[LockedQueue]) -> list[LockedQueue]:
        """Lock queues, or renew locks. Returns: the queues that the client has locked now."""
        now = self._now_ms()
        locks = self._groups.setdefault(group, {})
        granted = []
        for queue in dict.fromkeys(queues):
            held = locks.get(queue)
            if held is None and self._count >= self._max_locks:
                continue
            if held is None or held.client_id == client_id or self._is_over(held, now):
                self._count += held is None
                locks[queue] = _Lock(client_id, now)
                granted.append(queue)
        if not locks:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[LockedQueue]) -> None:
        """Unlock queues, except those of other clients."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def is_locked(self, group: str, client_id: str, queue: LockedQueue) -> bool:
        """Return True if this client has locked the queue."""
        held = self._groups.get(group, {}).get(queue)
        return held is not None and held.client_id == client_id and not self._is_over(held, self._now_ms())

    def is_orderly(self, group: str) -> bool:
        """Return True if a member of the group has locked a queue."""
        now = self._now_ms()
        return any(not self._is_over(held, now) for held in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Remove expired locks."""
        now = self._now_ms()
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, held in locks.items() if self._is_over(held, now)]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]

    def _is_over(self, held: _Lock, now: int) -> bool:
        return now - held.updated_ms > self._lock_ms
