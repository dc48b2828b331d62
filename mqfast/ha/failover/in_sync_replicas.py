"""Which slaves must have a message before its send is acknowledged: all that etcd says are in sync.

A broker in that set may become master at any moment. So a broker is waited for before etcd names it, and until etcd has
confirmed that it does not name it any more.

Room: ha/failover. It must never wait for fewer than etcd names. Source: AutoSwitchHAService, allAckInSyncStateSet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple, Protocol

from mqfast.store.log.acks import AckTable

__all__ = ["ReplicaSetChange", "SyncAcks", "InSyncReplicas"]


class ReplicaConnection(Hashable, Protocol):
    """A connected slave. ``identity``: (broker id, newest epoch of its store), None while it did not say."""

    @property
    def identity(self) -> tuple[int, int] | None:
        """Who it is."""


class SyncAcks(AckTable):
    """What slaves have; ``acked`` is what all required ones have.

    Args: end: the end of the log; epoch: a slave counts once its store knows this epoch.
    Thread: any.
    """

    def __init__(self, timeout_s: float, end: Callable[[], int]) -> None:
        super().__init__(0, timeout_s)
        self.epoch = -1
        self._end: Final = end
        self._required: frozenset[int] = frozenset()

    @property
    def acked(self) -> int:
        """As ``AckTable.acked``; the end of the log while no slave is required."""
        return self._acked if self._required else self._end()

    @property
    def is_alone(self) -> bool:
        """Is no slave required? Then all that the master has is acknowledged."""
        return not self._required

    def positions(self) -> dict[int, int]:
        """Broker id -> physical offset up to which that slave has the log, of this epoch's slaves."""
        with self._lock:
            return self._positions()

    def _positions(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for slave, offset in self._slaves.items():
            identity = getattr(slave, "identity", None)
            if identity is not None and identity[1] == self.epoch:
                found[identity[0]] = max(offset, found.get(identity[0], 0))
        return found

    def require(self, ids: Iterable[int]) -> None:
        """These slaves must have a message from now on; what was acknowledged stays so."""
        with self._lock:
            self._required = frozenset(ids)
            self._acked = 0
            self._see()
        self._tell(self.acked)

    def _see(self) -> bool:
        if not self._required:
            return False
        positions = self._positions()
        reached = min(positions.get(one, 0) for one in self._required)
        if reached <= self._acked:
            return False
        self._acked = reached
        return True


class ReplicaSetChange(NamedTuple):
    """What the set in etcd is to become, and why."""

    members: frozenset[int]
    why: str


class InSyncReplicas:
    """Decides who joins and who leaves.

    Args: own: id of the master.
    Attributes: ``min_replicas``: the set never gets smaller than this (RocketMQ: minInSyncReplicas); ``absent_s``: a slave
        that was not level for so long leaves (haMaxTimeSlaveNotCatchup).
    Thread: that of the event loop.
    """

    def __init__(
        self,
        acks: SyncAcks,
        end: Callable[[], int],
        *,
        own: int,
        min_replicas: int,
        absent_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._acks: Final = acks
        self._end: Final = end
        self._own: Final = own
        self.min_replicas = min_replicas
        self.absent_s = absent_s
        self._clock: Final = clock
        self._members: frozenset[int] = frozenset({own})
        self._doubtful: frozenset[int] = frozenset()
        self._joining: dict[int, int] = {}
        self._level_s: dict[int, float] = {}
        self._last_end = 0

    @property
    def members(self) -> frozenset[int]:
        """As etcd said last, this broker included."""
        return self._members

    @property
    def possible(self) -> frozenset[int]:
        """As etcd may have it: of a write without an answer the set is one or the other."""
        return self._members | self._doubtful

    def begin(self, epoch: int) -> None:
        """A new epoch: only this broker is in sync."""
        self._acks.epoch = epoch
        self._doubtful = frozenset()
        self._joining.clear()
        self._last_end = self._end()
        self.confirmed(frozenset({self._own}))

    def confirmed(self, members: frozenset[int]) -> None:
        """etcd has taken this set; no earlier write can come behind it."""
        self._doubtful = frozenset()
        self.seen(members)

    def seen(self, members: frozenset[int]) -> None:
        """etcd has this set now; a write whose answer did not come may still change it."""
        self._members = members
        self._require()

    def unsure(self, change: ReplicaSetChange) -> None:
        """etcd did not answer, or had another state: the set may be the old one or the new one."""
        self._doubtful |= change.members
        self._require()

    def _require(self) -> None:
        now_s = self._clock()
        wanted = (self._members | self._doubtful | self._joining.keys()) - {self._own}
        for one in wanted:
            self._level_s.setdefault(one, now_s)
        self._acks.require(wanted)

    def evaluate(self) -> ReplicaSetChange | None:
        """Once a turn: what is to change in etcd now?"""
        end, now_s, positions = self._end(), self._clock(), self._acks.positions()
        for one, offset in positions.items():
            if offset >= self._last_end:
                self._level_s[one] = now_s
        known = self._members | self._doubtful
        late = [one for one in known - {self._own} if now_s - self._level_s.get(one, now_s) > self.absent_s]
        staying = self._members - frozenset(late)
        level = {one for one, offset in positions.items() if offset >= self._last_end}
        self._last_end = end
        before = dict(self._joining)
        self._joining = {one: mark for one, mark in before.items() if one in positions and one not in known}
        for one in level - known - self._joining.keys():
            self._joining[one] = end  # waited for from now on, so that nothing behind this offset can be missing
        if self._joining.keys() != before.keys():
            self._require()
        if late and len(staying) >= self.min_replicas:
            return ReplicaSetChange(staying, f"not level for {self.absent_s:g} s: {sorted(late)}")
        ready = frozenset(one for one, mark in self._joining.items() if positions[one] >= mark)
        if ready:
            return ReplicaSetChange(self._members | ready, f"level: {sorted(ready)}")
        if self._doubtful:
            return ReplicaSetChange(self._members, "to be sure which set is in force")
        return None
