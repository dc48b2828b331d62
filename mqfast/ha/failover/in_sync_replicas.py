"""The in-sync set: the slaves that must have a message before its send is acknowledged.

A broker in the set that etcd stores may become master at any moment. So acknowledgements of a broker are required
before the broker is added to the set in etcd, and until etcd has confirmed its removal. Never fewer brokers are
required than etcd has. Source: AutoSwitchHAService, allAckInSyncStateSet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple, Protocol

from mqfast.store.log.acks import AckTable

__all__ = ["ReplicaSetChange", "SyncAcks", "InSyncReplicas"]


class ReplicaConnection(Hashable, Protocol):
    """A connected slave. ``identity``: (broker id, newest epoch of its store), None before its report."""

    @property
    def identity(self) -> tuple[int, int] | None:
        """Return broker id and epoch."""


class SyncAcks(AckTable):
    """The acknowledged offsets of slaves; ``acked`` is the smallest offset of the required slaves.

    Args: end: the end of the log; epoch: a slave counts once its store has this epoch.
    Thread: any.
    """

    def __init__(self, timeout_s: float, end: Callable[[], int]) -> None:
        super().__init__(0, timeout_s)
        self.epoch = -1
        self._end: Final = end
        self._required: frozenset[int] = frozenset()

    @property
    def acked(self) -> int:
        """Return as ``AckTable.acked``; the end of the log while no slave is required."""
        return self._acked if self._required else self._end()

    @property
    def is_alone(self) -> bool:
        """Return True if no slave is required; then all of the log is acknowledged."""
        return not self._required

    def positions(self) -> dict[int, int]:
        """Return the acknowledged physical offset by broker id, of slaves with this epoch."""
        with self._lock:
            return self._positions()

    def _positions(self) -> dict[int, int]:
        positions: dict[int, int] = {}
        for slave, offset in self._slaves.items():
            identity = getattr(slave, "identity", None)
            if identity is not None and identity[1] == self.epoch:
                positions[identity[0]] = max(offset, positions.get(identity[0], 0))
        return positions

    def require(self, ids: Iterable[int]) -> None:
        """Require acknowledgements of these slaves from now on; acknowledged messages stay acknowledged."""
        with self._lock:
            self._required = frozenset(ids)
            self._acked = 0
            self._update()
        self._notify(self.acked)

    def _update(self) -> bool:
        if not self._required:
            return False
        positions = self._positions()
        offset = min(positions.get(broker_id, 0) for broker_id in self._required)
        if offset <= self._acked:
            return False
        self._acked = offset
        return True


class ReplicaSetChange(NamedTuple):
    """A change of the in-sync set in etcd: the new set and the reason."""

    members: frozenset[int]
    why: str


class InSyncReplicas:
    """Decides which brokers enter and leave the in-sync set.

    Args: own: id of the master.
    Attributes: ``min_replicas``: the smallest size of the set (RocketMQ: minInSyncReplicas); ``absent_s``: a slave that
        lags for longer is removed (haMaxTimeSlaveNotCatchup).
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
        """Return the last set that etcd has confirmed, with this broker."""
        return self._members

    @property
    def possible(self) -> frozenset[int]:
        """Return the union of all sets that etcd may have, after writes without an answer."""
        return self._members | self._doubtful

    def begin(self, epoch: int) -> None:
        """Begin a new epoch: only this broker is in sync."""
        self._acks.epoch = epoch
        self._doubtful = frozenset()
        self._joining.clear()
        self._last_end = self._end()
        self.confirmed(frozenset({self._own}))

    def confirmed(self, members: frozenset[int]) -> None:
        """Note a set that etcd has stored; no earlier write can follow."""
        self._doubtful = frozenset()
        self.seen(members)

    def seen(self, members: frozenset[int]) -> None:
        """Note the set that etcd has now; a write without an answer may still change the set."""
        self._members = members
        self._require()

    def unsure(self, change: ReplicaSetChange) -> None:
        """Note a change without an answer of etcd, or with a failed compare: the old or the new set is in force."""
        self._doubtful |= change.members
        self._require()

    def _require(self) -> None:
        now_s = self._clock()
        required = (self._members | self._doubtful | self._joining.keys()) - {self._own}
        for broker_id in required:
            self._level_s.setdefault(broker_id, now_s)
        self._acks.require(required)

    def evaluate(self) -> ReplicaSetChange | None:
        """Return the change that is due in etcd now, None without a change. Called once in each round."""
        end, now_s, positions = self._end(), self._clock(), self._acks.positions()
        for broker_id, offset in positions.items():
            if offset >= self._last_end:
                self._level_s[broker_id] = now_s
        known = self._members | self._doubtful
        late = [
            broker_id
            for broker_id in known - {self._own}
            if now_s - self._level_s.get(broker_id, now_s) > self.absent_s
        ]
        staying = self._members - frozenset(late)
        level = {broker_id for broker_id, offset in positions.items() if offset >= self._last_end}
        self._last_end = end
        before = dict(self._joining)
        self._joining = {
            broker_id: mark for broker_id, mark in before.items() if broker_id in positions and broker_id not in known
        }
        for broker_id in level - known - self._joining.keys():
            self._joining[broker_id] = end  # required from now on, so that no later message can be missing
        if self._joining.keys() != before.keys():
            self._require()
        if late and len(staying) >= self.min_replicas:
            return ReplicaSetChange(staying, f"not level for {self.absent_s:g} s: {sorted(late)}")
        ready = frozenset(broker_id for broker_id, mark in self._joining.items() if positions[broker_id] >= mark)
        if ready:
            return ReplicaSetChange(self._members | ready, f"level: {sorted(ready)}")
        if self._doubtful:
            return ReplicaSetChange(self._members, "to be sure which set is in force")
        return None
