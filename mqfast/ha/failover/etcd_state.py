"""What stands in etcd: who is master now, and the state that outlives masters.

``leader`` goes with the lease of its master. ``state`` stays: the newest epoch, and the brokers that have every
acknowledged message. Only one of those may become master. Source: SyncStateInfo, of RocketMQ's controller.

Room: ha/failover. It must never read a clock, or talk to etcd.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.ha.failover.etcd import Value

__all__ = ["Keys", "Leader", "BrokerReplicaInfo", "State"]


class Keys(NamedTuple):
    """The keys of one broker name. ``copies``: what the keys of brokers without a master begin with."""

    leader: str
    state: str
    copies: str

    @classmethod
    def of(cls, prefix: str, cluster: str, name: str) -> Keys:
        """Args: prefix: haEtcdPrefix; cluster, name: of the brokers."""
        root = f"{prefix.rstrip('/')}/{cluster}/{name}"
        return cls(f"{root}/leader", f"{root}/state", f"{root}/copies/")


class BrokerReplicaInfo(NamedTuple):
    """One broker of the name. ``address``: for clients; ``ha``: where slaves connect; both ``host:port``."""

    id: int
    address: str
    ha: str


def _decoded(value: Value, what: str) -> dict[str, Any]:
    try:
        found = json.loads(value.data)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise CorruptFile(f"etcd: {what} is damaged", expected="a JSON object", found=repr(value.data[:60]))


@dataclass(frozen=True)
class Leader:
    """The master, as long as its lease. ``created``: the revision of this reign."""

    member: BrokerReplicaInfo
    epoch: int
    created: int = 0
    lease: int = 0

    def encoded(self) -> bytes:
        """As etcd keeps it."""
        return json.dumps({**self.member._asdict(), "epoch": self.epoch}).encode()

    @classmethod
    def decoded(cls, value: Value) -> Leader:
        """Raises: CorruptFile."""
        found = _decoded(value, "leader")
        try:
            member = BrokerReplicaInfo(int(found["id"]), str(found["address"]), str(found["ha"]))
            return cls(member, int(found["epoch"]), value.created, value.lease)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile("etcd: leader is damaged", expected="id, address, ha, epoch", found=repr(error)) from None


@dataclass(frozen=True)
class State:
    """What outlives masters.

    Attributes: epoch: the newest that was given away; master: to whom; in_sync: brokers that have every acknowledged
        message; set_epoch: the epoch in which the master made ``in_sync``; released: that master has said that it takes
        no more messages; since: the epoch with which this record began, where none was there before; revision: of etcd,
        0: not there yet.
    """

    epoch: int
    master: int
    in_sync: frozenset[int]
    set_epoch: int
    revision: int = 0
    released: bool = False
    since: int = 0

    def encoded(self) -> bytes:
        """As etcd keeps it."""
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
        """Raises: CorruptFile."""
        found = _decoded(value, "state")
        try:
            members = frozenset(int(one) for one in found["inSync"])
            epoch, master, set_epoch = (int(found[name]) for name in ("epoch", "master", "setEpoch"))
            is_released, since = found.get("released") is True, int(found.get("since", 0))
            return cls(epoch, master, members, set_epoch, value.modified, is_released, since)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile("etcd: state is damaged", expected="epoch, master, inSync", found=repr(error)) from None

    def may_lead(self, broker_id: int, last_epoch: int) -> bool:
        """Has this broker every acknowledged message? Its store knows the epoch in which that was noted."""
        return broker_id in self.in_sync and last_epoch >= self.set_epoch

    def with_members(self, members: frozenset[int]) -> State:
        """The same with another set."""
        return replace(self, in_sync=members)
