"""Two brokers and three members of etcd, each in a network namespace of its own, and faults between them.

A packet from one node to another is lost without a word where the sender's route leads to an address that nobody has.
So each direction of each pair can be cut alone. Needs root and Linux; nothing outside the namespaces is touched.

Room: tests/ha.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from ha.etcd_members import ETCD, EtcdMember
from ha.history import Stored, read_history
from running import SMALL

from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.failover.etcd import Etcd, EtcdUnreachable
from mqfast.ha.failover.etcd_state import Leader, State
from mqfast.store.base.os_api import OsApi
from mqfast.store.reader.store_reader import StoreReader

T = TypeVar("T")
__all__ = ["NEEDS_NAMESPACES", "Network", "running_network"]

BROKERS = {"b1": "10.77.0.1", "b2": "10.77.0.2"}
MEMBERS = {"e1": "10.77.0.11", "e2": "10.77.0.12", "e3": "10.77.0.13"}
CLIENTS = {"c": "10.77.0.20"}
ADDRESSES = {**BROKERS, **MEMBERS, **CLIENTS}
_SPACES = "/run/netns"
_PREFIX = "/mqfast/DefaultCluster/broker-a"
_CLONE_NEWNET = 0x40000000
NOWHERE = "10.77.0.254"
PORT = 10911


def _missing() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "ip and nsenter are not installed (Debian: iproute2, util-linux)"
    if ETCD is None:
        return "etcd is not installed (Debian: etcd-server)"
    probe = f"mqf-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine makes no network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return ""


WHY_NOT = _missing()
NEEDS_NAMESPACES = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Network:
    """The nodes and what runs in them."""

    def __init__(self, work: Path, **settings: Any) -> None:
        self.work = work
        self._tag = f"mqf{os.getpid()}"
        self._settings = settings
        self.members: dict[str, EtcdMember] = {}
        self.brokers: dict[str, subprocess.Popen[bytes]] = {}
        self.clients: subprocess.Popen[bytes]
        self.stopped: set[str] = set()
        self.cuts: set[tuple[str, str]] = set()

    # -- up and down ---------------------------------------------------------------------------------------------------

    def space(self, node: str) -> str:
        return f"{self._tag}-{node}"

    def up(self) -> None:
        hub = self.space("hub")
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for node, address in ADDRESSES.items():
            space = self.space(node)
            ip("netns", "add", space)
            ip("link", "add", "net0", "netns", space, "type", "veth", "peer", "name", f"p{node}", "netns", hub)
            ip("-n", hub, "link", "set", f"p{node}", "master", "br0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "net0", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "net0")
            ip("-n", space, "neigh", "add", NOWHERE, "lladdr", "02:00:00:00:00:fe", "nud", "permanent", "dev", "net0")
        for name in MEMBERS:
            self.members[name] = EtcdMember(name, MEMBERS, self.work, 2379, 2380, self._in(name))
        endpoints = ";".join(f"{address}:2379" for address in MEMBERS.values())
        brokers = [f"{address}:{PORT}={name[1:]}" for name, address in BROKERS.items()]
        with (self.work / "clients.log").open("ab") as log:
            script = str(Path(__file__).with_name("partition_client.py"))
            self.clients = subprocess.Popen(
                [*self._in("c"), sys.executable, script, str(self.work), endpoints, *brokers], stdout=log, stderr=log
            )
        for name in BROKERS:
            self.start(name)

    def _in(self, node: str) -> tuple[str, ...]:
        return ("nsenter", f"--net={_SPACES}/{self.space(node)}")

    def start(self, name: str) -> None:
        """Start a broker."""
        settings: dict[str, Any] = {
            "brokerName": "broker-a", "brokerId": name[1:], "brokerRole": "SYNC_MASTER", "bindAddress": "0.0.0.0",
            "brokerIP1": BROKERS[name], "listenPort": PORT, "namesrvAddr": f"{CLIENTS['c']}:9876",
            "haEtcdEndpoints": ";".join(f"{address}:2379" for address in MEMBERS.values()),
            "haTruncateDiverged": "true", "haSendHeartbeatInterval": 500, "haHousekeepingInterval": 3000,
            "haMaxTimeSlaveNotCatchup": 3000, "storePathRootDir": self.work / name, **SMALL, **self._settings,
        }  # fmt: skip
        lines = [f"{key}={value}" for key, value in settings.items()]
        with (self.work / f"{name}.log").open("ab") as log:
            self.brokers[name] = subprocess.Popen(
                [*self._in(name), sys.executable, "-m", "mqfast.cli", "broker", *lines], stdout=log, stderr=log
            )

    def down(self) -> None:
        for process in [*self.brokers.values(), self.clients]:
            if process.poll() is None:
                process.kill()
                process.wait(200)
        for member in self.members.values():
            member.end()
        for node in ["hub", *ADDRESSES]:
            ip("netns", "del", self.space(node), check=False)

    # -- faults --------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose every packet from one node to another."""
        if (source, target) not in self.cuts:
            self.cuts.add((source, target))
            ip("-n", self.space(source), "route", "add", f"{ADDRESSES[target]}/32", "via", NOWHERE, "dev", "net0")

    def heal(self, source: str, target: str) -> None:
        if (source, target) in self.cuts:
            self.cuts.discard((source, target))
            ip("-n", self.space(source), "route", "del", f"{ADDRESSES[target]}/32", "via", NOWHERE, "dev", "net0")

    def signal(self, node: str, number: int) -> None:
        """To a broker, or a member of etcd."""
        if node in self.members:
            self.members[node].signal(number)
        elif self.brokers[node].poll() is None:
            self.brokers[node].send_signal(number)

    def heal_all(self) -> None:
        """No cuts, everything runs."""
        for source, target in list(self.cuts):
            self.heal(source, target)
        for node in list(self.stopped):
            self.signal(node, signal.SIGCONT)
        self.stopped.clear()
        for name, broker in self.brokers.items():
            if broker.poll() is not None:
                self.start(name)
        for member in self.members.values():
            if member.process.poll() is not None:
                member.start()

    def schedule(self, seed: int, seconds: float) -> list[str]:
        """Random faults for so long. Returns: what was done."""
        rng, done = random.Random(seed), []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done.append(self._fault(rng))
            time.sleep(rng.uniform(0.3, 2.5))
            if rng.random() < 0.3:
                self.heal_all()
                done.append("heal")
        return done

    def _fault(self, rng: random.Random) -> str:
        nodes = [*BROKERS, *MEMBERS]
        kind = rng.choice(["cut", "cut", "cut", "side", "isolate", "kill", "pause"])
        if kind in ("cut", "side"):
            one, two = rng.choice(
                [(a, b) for a in nodes for b in [*nodes, "c"] if a != b and (b != "c" or a in BROKERS)]
            )
            self.cut(one, two)
            if kind == "cut":
                self.cut(two, one)
            return f"{kind} {one} {two}"
        node = rng.choice([*BROKERS, *BROKERS, *MEMBERS])
        if kind == "isolate":
            for other in nodes:
                if other != node:
                    self.cut(node, other)
                    self.cut(other, node)
        elif kind == "kill":
            self.signal(node, signal.SIGKILL)
            process = self.members[node].process if node in self.members else self.brokers[node]
            process.wait(200)
        else:
            self.signal(node, signal.SIGSTOP)
            self.stopped.add(node)
        return f"{kind} {node}"

    # -- what came of it -----------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.clients.poll() is None, (self.work / "clients.log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join((self.work / f"{name}.log").read_text()[-2500:] for name in BROKERS)

    def acknowledged_since(self, at_s: float, count: int = 20) -> bool:
        """Do sends go through?"""
        history = self.work / "history"
        sends = read_history(history)[0] if history.exists() else []
        return sum(one.code == 0 and one.began_s > at_s for one in sends[-400:]) >= count

    def _ask(self, work: Callable[[Etcd], T]) -> T:
        """A call of etcd from the namespace of the clients."""

        def enter() -> None:
            with open(f"{_SPACES}/{self.space('c')}") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")

        def ask() -> T:
            etcd = Etcd([f"{address}:2379" for address in MEMBERS.values()], 1.0)
            try:
                return work(etcd)
            finally:
                etcd.close()

        with ThreadPoolExecutor(1, initializer=enter) as thread:
            return thread.submit(ask).result()

    def both_in_sync(self) -> bool:
        """Is there a master, and are both brokers in sync, as etcd says?"""

        def work(etcd: Etcd) -> bool:
            leader, state = etcd.read(f"{_PREFIX}/leader", f"{_PREFIX}/state")
            return leader is not None and state is not None and len(State.decoded(state).in_sync) == len(BROKERS)

        try:
            return self._ask(work)
        except EtcdUnreachable:
            return False

    def leader(self) -> int:
        """The broker that has the lease."""
        value = self._ask(lambda etcd: etcd.read(f"{_PREFIX}/leader")[0])
        assert value is not None
        return Leader.decoded(value).member.id

    def masters(self) -> dict[int, int]:
        """Epoch -> broker id, out of all states that etcd ever had."""

        def work(etcd: Etcd) -> dict[int, int]:
            found: dict[int, int] = {}
            newest = etcd.read(f"{_PREFIX}/state")[0]
            at = 0 if newest is None else newest.modified
            while at > 0 and (value := etcd.read_at(f"{_PREFIX}/state", at)) is not None:
                state = State.decoded(value)
                assert found.setdefault(state.epoch, state.master) == state.master, state
                at = value.modified - 1
            return found

        return self._ask(work)

    def end_clients(self) -> None:
        self.clients.send_signal(signal.SIGTERM)
        self.clients.wait(60)

    def until_level(self) -> None:
        """The clients have ended: both stores get to have the same messages."""
        deadline = time.monotonic() + 180
        while self.stored("b1") != self.stored("b2"):
            assert time.monotonic() < deadline, f"the stores do not get level\n{self.logs()}"
            time.sleep(0.3)

    def end_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.send_signal(signal.SIGTERM)
        for broker in self.brokers.values():
            broker.wait(60)

    def stored(self, name: str) -> dict[int, list[Stored]]:
        """Queue -> what is in it."""
        found: dict[int, list[Stored]] = {}
        with StoreReader(self.work / name) as reader:
            for queue in range(4):
                messages = reader.messages("T", queue)
                found[queue] = [
                    Stored(bytes(one.body).decode(), one.queue_offset, one.physical_offset) for one in messages
                ]
        return found

    def epochs(self, name: str) -> list[tuple[int, int]]:
        return [(one.epoch, one.start) for one in EpochFile.load(OsApi(), str(self.work / name)).entries]


@contextlib.contextmanager
def running_network(work: Path, **settings: Any) -> Iterator[Network]:
    """All nodes up, both brokers in sync. Everything is ended and taken away at the end."""
    network = Network(work, **settings)
    try:
        network.up()
        network.until(network.both_in_sync, "two brokers in sync")
        yield network
    finally:
        network.down()
