"""Two masters never exist by a leader of etcd that stands still, or that ends and renews leases it should not."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_ports
from ha.etcd_members import NEEDS_ETCD, EtcdMember
from ha.failover_pairs import in_sync, pair, until

from mqfast.errors import MqfastError
from mqfast.ha.failover.etcd import Etcd, Value
from mqfast.ha.failover.lease_guard import LeaseGuard, LeaseKeeper
from mqfast.remoting.codes import ResponseCode


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class StaleLeader:
    """A member of etcd that renews every lease, whatever its cluster says of the key."""

    def __init__(self, value: Value | None) -> None:
        self.value = value
        self.renewed = threading.Semaphore(0)

    def read(self, *_keys: str) -> list[Value | None]:
        return [self.value]

    def keep_alive(self, _lease: int) -> int:
        self.renewed.release()
        return 3

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("value", "is_valid"), [(Value(b"{}", 7, 7, 5), True), (Value(b"{}", 8, 8, 6), False), (None, False)]
)
def test_the_right_goes_by_the_key_and_never_by_the_lease(value: Value | None, is_valid: bool) -> None:
    clock = Clock()
    right, etcd = LeaseGuard(clock), StaleLeader(value)
    keeper = LeaseKeeper(etcd, right, key="leader", interval_s=0.01, right_s=2.5, watchdog_s=3.0)  # type: ignore[arg-type]
    try:
        right.activate(1)
        keeper.keep(5, 7, clock.now_s)
        deadline = time.monotonic() + 60
        while right.is_active and not etcd.renewed.acquire(timeout=0.01):
            assert time.monotonic() < deadline
        assert right.is_valid() == is_valid
        if is_valid:
            assert right.left_s <= 2.5, "from the moment at which the read was sent"
    finally:
        keeper.stop()


@contextlib.contextmanager
def three_members(work: Path) -> Iterator[dict[str, EtcdMember]]:
    hosts = {"e1": "127.0.0.2", "e2": "127.0.0.3", "e3": "127.0.0.4"}
    port = free_ports(2)
    members = {name: EtcdMember(name, hosts, work, port, port + 1) for name in hosts}
    try:
        client = Etcd([one.endpoint for one in members.values()], 1.0)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(MqfastError):
                client.read("x")
                break
            assert time.monotonic() < deadline, "etcd does not answer"
        client.close()
        yield members
    finally:
        for one in members.values():
            one.end()


def leader_of(members: dict[str, EtcdMember]) -> str:
    """The member that leads, as all say."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = set()
        for one in members.values():
            client = Etcd([one.endpoint], 1.0)
            with contextlib.suppress(MqfastError):
                found.add(
                    client._call(
                        "/v3/maintenance/status", {}, lambda answer: (answer["leader"], answer["header"]["raft_term"])
                    )
                )
            client.close()
        if len(found) == 1 and (leader := found.pop()[0]) != "0":
            for name, one in members.items():
                client = Etcd([one.endpoint], 1.0)
                number = client._call("/v3/maintenance/status", {}, lambda answer: answer["header"]["member_id"])
                client.close()
                if number == leader:
                    return name
    raise AssertionError("no leader of etcd")


@NEEDS_ETCD
def test_a_suspended_etcd_leader_leads_to_no_second_master(tmp_path: Path) -> None:
    """The member that stood still is a leader for itself when it wakes up, and may end or renew leases."""

    async def flow(members: dict[str, EtcdMember]) -> None:
        async with pair(tmp_path) as both:
            endpoints = ";".join(one.endpoint for one in members.values())
            one = await both.start(1, haEtcdEndpoints=endpoints)
            two = await both.start(2, haEtcdEndpoints=endpoints)
            await until(lambda: in_sync(one) == {1, 2})
            ends = False
            masters: list[tuple[bool, bool]] = []

            async def watch() -> None:
                while not ends:
                    masters.append((one.right.is_valid(), two.right.is_valid()))
                    await asyncio.sleep(0.005)

            watching = asyncio.ensure_future(watch())
            for number in range(3):
                leader = await asyncio.to_thread(leader_of, members)
                members[leader].signal(signal.SIGSTOP)
                others = {name: member for name, member in members.items() if name != leader}
                await asyncio.to_thread(leader_of, others)
                members[leader].signal(signal.SIGCONT)
                await asyncio.to_thread(leader_of, members)
                await until(lambda: one.right.is_valid() or two.right.is_valid())
                master = 1 if one.right.is_valid() else 2
                body = f"m{number}".encode()
                deadline = time.monotonic() + 60
                while await both.send(master, body) != ResponseCode.SUCCESS:
                    assert time.monotonic() < deadline
                    master = 3 - master
            ends = True
            await watching
            assert (True, True) not in masters
            await until(lambda: both.bodies(1) == both.bodies(2))

    with three_members(tmp_path) as members:
        asyncio.run(flow(members))


@NEEDS_ETCD
def test_a_lease_ended_early_by_etcd_gives_no_new_master_before_the_deadline(tmp_path: Path) -> None:
    """As a former leader of etcd does, whose clock did not see the renewals."""

    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            lease = one._keeper.lease
            one._tasks[0].cancel()  # it sees nothing of etcd; only its clock is left
            one._keeper.drop()
            right_ends_s = one.right.clock() + one.right.left_s
            two.etcd.revoke(lease)
            codes = []
            while not two.right.is_valid():
                codes.append(await both.send(1, b"x"))
                await asyncio.sleep(0.01)
            assert two.right.clock() > right_ends_s
            assert not one.right.is_valid()
            assert codes[0] == ResponseCode.SUCCESS, "the lease was gone, the right was not"

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_master_that_ends_in_order_is_not_waited_for(tmp_path: Path) -> None:
    """With a lease of a minute: who waits for the right of the last master waits longer."""

    async def flow() -> None:
        async with pair(tmp_path, haLeaseSeconds=60) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            await both.stop(1)
            ended_s = two.right.clock()
            await until(two.right.is_valid)
            assert two.right.clock() - ended_s < 60
            assert await both.send(2, b"x") == ResponseCode.SUCCESS

    asyncio.run(flow())


@NEEDS_ETCD
def test_reads_of_etcd_are_linearizable(tmp_path: Path) -> None:
    """A member that is cut off from its cluster gives no answer, and so no right."""
    with three_members(tmp_path) as members:
        leader = leader_of(members)
        for name, one in members.items():
            if name != leader:
                one.signal(signal.SIGSTOP)
        client = Etcd([members[leader].endpoint], 1.0)
        with pytest.raises(MqfastError):
            client.read("x")
        client.close()
