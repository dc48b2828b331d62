"""The state in etcd: the current master, and the record that outlives masters.

The key ``leader`` is deleted with the lease of its master. The key ``state`` stays: the newest epoch, and the brokers
that have every acknowledged message. Only these may become master. No clock and no etcd call here. Source:
SyncStateInfo, of RocketMQ's controller.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.ha.failover.etcd import Value

__all__ = ["Keys", "Leader", "BrokerReplicaInfo", "State"]


class Keys(NamedTuple):
    """The keys of one broker name. ``copies``: prefix of the keys of brokers without a master."""

    leader: str
    state: str
    copies: str

    @classmethod
    def of(cls, prefix: str, cluster: str, name: str) -> Keys:
        """Return the keys. Args: prefix: haEtcdPrefix; cluster, name: of the brokers."""
        root = f"{prefix.rstrip('/')}/{cluster}/{name}"
        return cls(f"{root}/leader", f"{root}/state", f"{root}/copies/")


class BrokerReplicaInfo(NamedTuple):
    """One broker of the name. ``address``: for clients; ``ha``: for slaves; both ``host:port``."""

    id: int
    address: str
    ha: str


def _decoded(value: Value, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(value.data)
        if isinstance(fields, dict):
            return fields
    except ValueError:
        pass
    raise CorruptFile(f"etcd: {what} is damaged", expected="a JSON object", found=repr(value.data[:60]))


@dataclass(frozen=True)
class Leader:
    """The master, for the time of its lease. ``created``: the revision at which the key was created."""

    member: BrokerReplicaInfo
    epoch: int
    created: int = 0
    lease: int = 0

    def encoded(self) -> bytes:
        """Return the value for etcd."""
        return json.dumps({**self.member._asdict(), "epoch": self.epoch}).encode()

    @classmethod
    def decoded(cls, value: Value) -> Leader:
        """Decode the value of etcd. Raises: CorruptFile."""
        fields = _decoded(value, "leader")
        try:
            member = BrokerReplicaInfo(int(fields["id"]), str(fields["address"]), str(fields["ha"]))
            return cls(member, int(fields["epoch"]), value.created, value.lease)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile("etcd: leader is damaged", expected="id, address, ha, epoch", found=repr(error)) from None


@dataclass(frozen=True)
class State:
    """The record that outlives masters.

    Attributes: epoch: the newest assigned epoch; master: of that epoch; in_sync: brokers that have every acknowledged
        message; set_epoch: the epoch in which the master set ``in_sync``; released: that master has confirmed that it
        accepts no more messages; since: the epoch with which this record began, if no record existed before; revision:
        of etcd, 0: not stored yet.
    """

    epoch: int
    master: int
    in_sync: frozenset[int]
    set_epoch: int
    revision: int = 0
    released: bool = False
    since: int = 0

    def encoded(self) -> bytes:
        """Return the value for etcd."""
        value: dict[str, Any] = {
            "epoch": self.epoch, "master": self.master, "inSync": sorted(self.in_sync), "setEpoch": self.set_epoch
        }  # fmt: skip
        if self.released:
            value["released"] = True
        if self.since:
            value["since"] = self.since
        return json.dumps(value).encode()

    @classmethod
    def decoded(cls, value: Value) -> State:
        """Decode the value of etcd. Raises: CorruptFile."""
        fields = _decoded(value, "state")
        try:
            members = frozenset(int(broker_id) for broker_id in fields["inSync"])
            epoch, master, set_epoch = (int(fields[name]) for name in ("epoch", "master", "setEpoch"))
            is_released, since = fields.get("released") is True, int(fields.get("since", 0))
            return cls(epoch, master, members, set_epoch, value.modified, is_released, since)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile("etcd: state is damaged", expected="epoch, master, inSync", found=repr(error)) from None

    def may_lead(self, broker_id: int, last_epoch: int) -> bool:
        """Return True if this broker has every acknowledged message: in sync, and its store has ``set_epoch``."""
        return broker_id in self.in_sync and last_epoch >= self.set_epoch

    def with_members(self, members: frozenset[int]) -> State:
        """Return a copy with another in-sync set."""
        return replace(self, in_sync=members)
