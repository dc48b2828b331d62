"""Scenarios of replication: masters that end, are cut off or slow at bad moments. No plan of faults takes part."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mqfast.sim import Cluster

__all__ = ["absent_slave", "available", "disk_replaced", "diverged_slave", "joins", "late_writes", "take_overs"]
__all__ += ["same_master", "transactions_fail_over"]

_LARGE: Final = b"M" * (150 << 10)


async def take_overs(c: Cluster) -> None:
    """Take the master away again and again, while messages of all sizes are sent."""
    await c.brokers("a", replicas=c.rng.choice((2, 3, 3)), in_sync=c.rng.choice((1, 1, 2)), **_quick())
    load = await _Load.begin(c)
    await _until_in_sync(c)
    for _ in range(4):
        await c.rng.choice(_DISTURBANCES)(c)
        await c.sleep(c.rng.choice((0.1, 1.0, 6.0)) * c.rng.random())
        await _start_all(c)
    await load.end()


async def joins(c: Cluster) -> None:
    """Let a slave join over slow links, and end the master meanwhile."""
    await c.brokers("a", replicas=2, in_sync=1, **_quick())
    load = await _Load.begin(c, pause_s=0.1)
    await _until_in_sync(c)
    for _ in range(2):
        leader = await _leader(c)
        slave = next(server for server in _brokers(c) if server is not leader)
        slave.kill()
        await c.sleep(5 + c.rng.random())  # the set is the master alone
        etcd = c.servers["etcd"].machine
        c.network.slow_s[leader.machine, slave.machine] = c.rng.choice((0.0, 0.1, 0.4, 0.9))
        c.network.slow_s[etcd, leader.machine] = c.rng.choice((0.0, 0.1, 0.4, 0.9))
        slave.start()
        for _ in range(200):
            if slave.number in _in_sync(c):
                break
            await c.sleep(0.05)
        await c.sleep(c.rng.choice((0.0, 0.05, 0.5)) * c.rng.random())
        leader.kill()
        c.network.heal()
        await c.sleep(8)
        await _start_all(c)
        await c.sleep(4)
    await load.end()


async def late_writes(c: Cluster) -> None:
    """Hold requests of a master to etcd until another broker leads."""
    await c.brokers("a", replicas=3, in_sync=1, **_quick())
    load = await _Load.begin(c)
    await _until_in_sync(c)
    etcd = c.servers["etcd"].machine
    for _ in range(3):
        leader = await _leader(c)
        slave = c.rng.choice([server for server in _brokers(c) if server is not leader])
        slave.kill()
        await c.sleep(2.5 + c.rng.random())  # the removal of the slave is due
        c.network.cut_link(leader.machine, etcd, both=c.rng.random() < 0.5)
        if c.rng.random() < 0.3:
            c.network.cut_link(leader.machine, slave.machine)
        await c.sleep(5 + 4 * c.rng.random())
        c.network.heal()
        await c.sleep(c.rng.random() * 2)
        await _start_all(c)
        await c.sleep(c.rng.choice((0, 4)))
    await load.end()


async def same_master(c: Cluster) -> None:
    """Keep etcd away until the lease has ended; often the same broker leads again, and keeps its connections."""
    await c.brokers("a", replicas=2, in_sync=2, **_quick())
    load = await _Load.begin(c)
    await _until_in_sync(c)
    etcd = c.servers["etcd"].machine
    for _ in range(3):
        for server in _brokers(c):
            c.network.cut_link(server.machine, etcd)
        await c.sleep(3 + c.rng.random() * 3)
        c.network.heal()
        await _leader(c)
        await c.sleep(c.rng.random() * 3)
        await _until_in_sync(c)
    await load.end()


async def absent_slave(c: Cluster) -> None:
    """End the master while a slave of the in-sync set is back, but not connected to the master yet."""
    await c.brokers("a", replicas=3, in_sync=c.rng.choice((1, 2)), **_quick())
    load = await _Load.begin(c)
    await _until_in_sync(c)
    for _ in range(2):
        leader = await _leader(c)
        slave = c.rng.choice([server for server in _brokers(c) if server is not leader])
        slave.kill()
        c.network.cut_link(leader.machine, slave.machine)
        await c.sleep(0.5 + c.rng.random() * 1.5)
        slave.start()
        await c.sleep(c.rng.random() * 0.5)
        leader.kill()
        c.network.heal()
        await c.sleep(8)
        await _start_all(c)
        await _until_in_sync(c)
    await load.end()


async def transactions_fail_over(c: Cluster) -> None:
    """Take the master away while transactions are open."""
    await c.brokers(
        "a",
        replicas=2,
        in_sync=c.rng.choice((1, 2)),
        transactionCheckInterval=3000,
        transactionTimeOut=2000,
        **_quick(),
    )
    producer = await c.transactional_producer("t", send_timeout_s=1.0)
    await c.consumer("g", "T", lambda _: None)
    await _until_in_sync(c)
    for number in range(20):
        commits, answers = c.rng.random() < 0.6, c.rng.random() < 0.5
        with contextlib.suppress(MqfastError):
            await producer.send_in_transaction("T", b"t%d" % number, commits=commits, answers=answers)
        if number % 5 == 4:
            await c.rng.choice((_behind, _kill, _stop, _slow_slave))(c)
            await _start_all(c)
        await c.sleep(c.rng.random())
    await c.heal()
    await c.settled()


async def disk_replaced(c: Cluster) -> None:
    """Start a broker of the in-sync set on an empty disk, while the others are away."""
    await c.brokers("a", replicas=2, in_sync=2, **_quick())
    load = await _Load.begin(c)
    await _until_in_sync(c)
    await c.sleep(2)
    first, second = c.rng.sample(_brokers(c), 2)
    first.kill()
    second.kill()
    shutil.rmtree(first.disk.path)
    first.disk.path.mkdir()
    first.start()
    await c.sleep(5 + c.rng.random() * 10)
    await load.end()


async def available(c: Cluster) -> None:
    """End a slave, then the master: messages are taken again within a stated time."""
    await c.brokers("a", replicas=3, in_sync=2, **_quick())
    producer = await c.producer("p", send_timeout_s=1.0)
    await _until_in_sync(c)
    leader = await _leader(c)
    slave = c.rng.choice([server for server in _brokers(c) if server is not leader])
    slave.kill()
    await _taken(c, producer, b"without a slave", within_s=8.0)
    slave.start()
    await _until_in_sync(c)
    await c.sleep(3)
    (await _leader(c)).kill()
    await _taken(c, producer, b"without the master", within_s=12.0)
    await c.heal()
    await c.settled()


async def diverged_slave(c: Cluster) -> None:
    """Connect a slave with a log of another history, while messages wait for a slave that is cut off."""
    settings = {"haSendHeartbeatInterval": 500, "slaveTimeout": 15_000}
    await c.brokers("a", brokerRole="SYNC_MASTER", inSyncReplicas=2, minInSyncReplicas=2, **settings)
    master, good = c.servers["a"], await c.slave("a", machine="good", **settings)
    other = await c.slave("a", machine="other", **settings, brokerId=2)
    producer = await c.producer("p", send_timeout_s=20.0)
    for number in range(5):
        await producer.try_send("T", b"%d" % number)
    await c.settled()
    await c.sleep(4)  # until the slaves have the topic
    for server in (master, good, other):
        await server.stop()
    other.become_master()
    other.start()
    await other.started()
    for number in range(10):
        await producer.send_unpromised("T", b"of another history %d" % number)
        await c.sleep(0.2)
    await other.stop()
    other.become_slave()
    other.settings["brokerId"] = 2
    for server in (master, good):
        server.start()
        await server.started()
    while (result := await producer.try_send("T", b"of both %.3f" % c.now_s)) is None or not result.ok:
        await c.sleep(0.5)  # until the slave follows
    c.network.cut_link(master.machine, good.machine)
    sends = [asyncio.ensure_future(producer.try_send("T", b"of the master %d" % number)) for number in range(30)]
    await c.sleep(c.rng.random())
    other.start()
    results = await asyncio.gather(*sends)
    assert not any(result is not None and result.ok for result in results), "no slave has these messages"


# -- parts -------------------------------------------------------------------------------------------------------------


def _quick() -> dict[str, Any]:
    return {"messageDelayLevel": " ".join(["1s"] * 18)}


class _Load:
    """A producer that sends all the time, and a consumer whose handler fails at first for some messages."""

    def __init__(self, c: Cluster, producer: Any, pause_s: float) -> None:
        self._c: Final = c
        self._producer: Final = producer
        self._pause_s: Final = pause_s
        self._task: asyncio.Task[None] | None = None
        self._sends: set[asyncio.Task[Any]] = set()
        self._number = 0

    @classmethod
    async def begin(cls, c: Cluster, pause_s: float = 0.3) -> _Load:
        """Begin to send."""
        producer = await c.producer("p", compress_over_bytes=None, send_timeout_s=1.0)
        failed: set[bytes] = set()

        def handle(message: Any) -> None:
            body = bytes(message.body)
            if body not in failed and c.rng.random() < 0.1:
                failed.add(body)
                raise ValueError("at first")

        await c.consumer("g", "T", handle)
        load = cls(c, producer, pause_s)
        load._task = asyncio.ensure_future(load._main())
        return load

    async def _main(self) -> None:
        c = self._c
        while True:
            if len(self._sends) < 8:
                self._number += 1
                task = asyncio.ensure_future(self._send(b"%d" % self._number))
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
            await c.sleep(c.rng.random() * self._pause_s)

    async def _send(self, body: bytes) -> None:
        choice = self._c.rng.random()
        if choice < 0.05:
            body += _LARGE[: self._c.rng.randrange(len(_LARGE))]
        if choice > 0.9:
            await self._producer.try_send("T", body, delay_s=self._c.rng.choice((1, 3)))
        else:
            await self._producer.try_send("T", body)

    async def end(self) -> None:
        """End all faults and the load, and wait until the cluster is well."""
        assert self._task is not None
        await self._c.heal()
        await self._c.sleep(2)
        self._task.cancel()
        await asyncio.gather(self._task, *self._sends, return_exceptions=True)
        await self._c.settled()


def _brokers(c: Cluster) -> list[Any]:
    return [server for name, server in c.servers.items() if name.startswith("a-")]


def _in_sync(c: Cluster) -> frozenset[int]:
    from mqfast.ha.failover.etcd import Value
    from mqfast.ha.failover.etcd_state import Keys, State

    data = c.servers["etcd"].model.value(Keys.of("/mqfast", "DefaultCluster", "a").state)
    return frozenset() if data is None else State.decoded(Value(data, 0, 0, 0)).in_sync


async def _leader(c: Cluster) -> Any:
    """Wait for a master, and return its server."""
    for _ in range(600):
        leader = c.invariants.leader("a")
        if leader is not None:
            return leader
        await c.sleep(0.1)
    raise AssertionError("no master within a minute")


async def _until_in_sync(c: Cluster) -> None:
    """Wait until all brokers are in the in-sync set."""
    for _ in range(400):
        if len(_in_sync(c)) == len(_brokers(c)):
            return
        await c.sleep(0.1)
    raise AssertionError("not all brokers are in sync within 40 s")


async def _start_all(c: Cluster) -> None:
    c.network.heal()
    for server in _brokers(c):
        if server.process is None:
            server.start()
            await server.started()


async def _taken(c: Cluster, producer: Any, body: bytes, within_s: float) -> None:
    end_s, tries = c.now_s + within_s, 0
    while True:
        tries += 1
        result = await producer.try_send("T", b"%s %d" % (body, tries))
        if result is not None and result.ok:
            return
        assert c.now_s < end_s, f"{body!r}: no message is taken within {within_s:g} s"
        await c.sleep(0.2)


async def _behind(c: Cluster) -> None:
    """Cut a slave off from the master only, then end the master."""
    leader = await _leader(c)
    slave = c.rng.choice([server for server in _brokers(c) if server is not leader])
    c.network.cut_link(leader.machine, slave.machine)
    await c.sleep(c.rng.choice((1.0, 2.5, 5.0, 7.0)))
    leader.kill()
    await c.sleep(c.rng.choice((2.0, 6.0)))


async def _still_a_master(c: Cluster) -> None:
    """Cut the master off from all but the clients."""
    leader = await _leader(c)
    for other in [*_brokers(c), c.servers["etcd"]]:
        if other is not leader:
            c.network.cut_link(leader.machine, other.machine)
    await c.sleep(c.rng.choice((2.0, 5.0, 8.0)) * (0.5 + c.rng.random()))


async def _kill(c: Cluster) -> None:
    (await _leader(c)).kill()
    await c.sleep(c.rng.choice((0.2, 2.0, 7.0)))


async def _stop(c: Cluster) -> None:
    await (await _leader(c)).stop()
    await c.sleep(c.rng.choice((0.2, 2.0, 7.0)))


async def _slow_slave(c: Cluster) -> None:
    leader = await _leader(c)
    slave = c.rng.choice([server for server in _brokers(c) if server is not leader])
    c.network.slow_s[leader.machine, slave.machine] = c.rng.choice((0.05, 0.4, 1.0))
    await c.sleep(c.rng.random() * 4)
    leader.kill()
    await c.sleep(c.rng.choice((0.2, 5.0)))


async def _slow_etcd(c: Cluster) -> None:
    """Slow etcd's links down, and end the master."""
    leader, etcd = await _leader(c), c.servers["etcd"].machine
    for server in _brokers(c):
        c.network.slow_s[server.machine, etcd] = c.rng.choice((0.0, 0.2, 0.4))
        c.network.slow_s[etcd, server.machine] = c.rng.choice((0.0, 0.2, 0.4))
    await c.sleep(c.rng.random())
    if c.rng.random() < 0.7:
        leader.kill()
    await c.sleep(4 + c.rng.random() * 6)


async def _two(c: Cluster) -> None:
    """End the master, and the next one soon after its take-over."""
    first = await _leader(c)
    first.kill()
    await c.sleep(0.1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(15):
            second = await _leader(c)
            await c.sleep(c.rng.choice((0.0, 0.05, 1.0, 5.0)) * c.rng.random())
            second.kill()
    first.start()
    await c.sleep(c.rng.choice((1.0, 6.0)))


_DISTURBANCES: Final[tuple[Callable[[Any], Awaitable[None]], ...]] = (
    _behind, _behind, _still_a_master, _still_a_master, _kill, _stop, _slow_slave, _slow_etcd, _slow_etcd, _two,
)  # fmt: skip
