"""Scenarios of the simulation's tests: a broker, and brokers under fail-over, with a producer and a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parent))

from group_scenarios import dead_letters, levels, members, orderly, retried
from replica_scenarios import (
    absent_slave,
    available,
    disk_replaced,
    diverged_slave,
    joins,
    late_writes,
    same_master,
    take_overs,
    transactions_fail_over,
)
from row_scenarios import rows, rows_fail_over

from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from mqfast.sim import Cluster
    from mqfast.sim.clients import SimpleConsumer

__all__ = [
    "absent_slave", "available", "dead_letters", "disk_replaced", "diverged_slave", "fail_over", "joins", "late_writes",
    "levels", "members", "one_broker", "orderly", "retried", "rows", "rows_fail_over", "same_master",
    "send_and_consume", "take_overs", "transactions_fail_over",
]  # fmt: skip


def _nothing(_: Any) -> None:
    """Handle a message without any effect."""


async def send_and_consume(c: Cluster) -> None:
    """Send twenty messages through a broker, and consume all."""
    await c.brokers("a")
    producer = await c.producer("p")
    await c.consumer("g", "T", _nothing)
    for number in range(20):
        await producer.send("T", b"%d" % number)
    await c.settled()


async def one_broker(c: Cluster) -> None:
    """Send through a broker that is killed, cut off and stopped."""
    await c.brokers("a", flushDiskType=c.rng.choice(("ASYNC_FLUSH", "SYNC_FLUSH")))
    await _load(c, 60)


async def fail_over(c: Cluster) -> None:
    """Send through two or three brokers under fail-over."""
    await c.brokers("a", replicas=c.rng.choice((2, 3)), in_sync=2)
    await _load(c, 60)


async def _load(c: Cluster, messages: int) -> None:
    producer = await c.producer("p")
    await c.consumer("g", "T", _nothing)
    for number in range(messages):
        await producer.try_send("T", b"%d" % number)
        await c.sleep(c.rng.random())
    await c.heal()
    await c.settled()


async def long_away(c: Cluster) -> None:
    """Lose etcd's data while a broker is away: the store is behind, and nothing in etcd says so."""
    await c.brokers("a", replicas=2)
    producer = await c.producer("p")
    first, second = c.servers["a-1"], c.servers["a-2"]
    await _until_in_sync(c)
    await producer.try_send("T", b"before")
    behind, ahead = (first, second) if c.rng.random() < 0.5 else (second, first)
    behind.kill()
    await c.sleep(15)
    for number in range(20):
        await producer.try_send("T", b"%d" % number)
    await ahead.stop()
    c.servers["etcd"].model.lose_data()
    await c.heal()
    await c.settled()


async def large_and_again(c: Cluster) -> None:
    """Send a large message again and again: logs of two histories end with equal bytes."""
    await c.brokers("a", replicas=2)
    producer = await c.producer("p", compress_over_bytes=None, send_timeout_s=1.0)
    large = b"M" * (200 << 10)
    await _until_in_sync(c)
    await producer.try_send("T", b"of both")
    for round_number in range(6):
        victim = c.servers[c.rng.choice(("a-1", "a-2"))]
        other = c.servers["a-2" if victim.name == "a-1" else "a-1"]
        other.kill()
        await producer.try_send("T", b"%d without a slave" % round_number)
        await producer.try_send("T", large)
        victim.kill()
        other.start()
        await c.sleep(12)
        await producer.try_send("T", b"%d of the other one" % round_number)
        await producer.try_send("T", large)
        victim.start()
        await c.sleep(12)
    await c.heal()
    await c.settled()


async def _until_in_sync(c: Cluster) -> None:
    for _ in range(200):
        if c.invariants.is_unwell() is None:
            break
        await c.sleep(0.1)
    await c.sleep(3)


async def promoted_by_hand(c: Cluster) -> None:
    """Promote a slave by hand, in half of the seeds with a log of another history."""
    await c.brokers("a", brokerRole="ASYNC_MASTER", haSendHeartbeatInterval=500)
    master, slave = c.servers["a"], await c.slave("a", haSendHeartbeatInterval=500)
    producer = await c.producer("p")
    for number in range(5):
        await producer.try_send("T", b"%d" % number)
    await c.settled()
    if c.rng.random() < 0.5:
        await _ran_as_a_master(c, master, slave, producer)
        for number in range(5):
            await producer.try_send("T", b"acknowledged %d" % number)
        await c.sleep(5)
    master.kill()
    await slave.stop()
    if slave.promote().refusals:
        del c.servers[slave.name]  # the operator gives this store up
    else:
        del c.servers[master.name]
    await c.heal()
    await c.settled()


async def _ran_as_a_master(c: Cluster, master: Any, slave: Any, producer: Any) -> None:
    """Run a slave as a master for a while; no check expects these messages."""
    await master.stop()
    await slave.stop()
    slave.become_master()
    slave.start()
    await slave.started()
    for number in range(c.rng.choice((2, 20))):
        await producer.send_unpromised("T", b"of another history %d" % number)
        await c.sleep(0.2)
    await slave.stop()
    slave.become_slave()
    for server in (master, slave):
        server.start()
        await server.started()


async def power_cuts(c: Cluster) -> None:
    """Send through a broker with SYNC_FLUSH whose machine loses power."""
    await c.brokers("a", flushDiskType="SYNC_FLUSH")
    await _load(c, 60)


async def failing_handler(c: Cluster) -> None:
    """Consume with a handler with failures at first; a message is delivered until the handler succeeds."""
    await c.brokers("a", messageDelayLevel=" ".join(["1s"] * 18))
    producer = await c.producer("p")
    failed: set[bytes] = set()

    def handle(message: Any) -> None:
        body = bytes(message.body)
        if c.rng.random() < 0.3 and body not in failed:
            failed.add(body)
            raise ValueError("at first")

    await c.consumer("g", "T", handle)
    for number in range(40):
        await producer.try_send("T", b"%d" % number)
    await c.heal()
    await c.settled()


async def transactions(c: Cluster) -> None:
    """Commit and roll back transactions, half of them by a check of the broker, and send delayed messages."""
    await c.brokers("a", transactionCheckInterval=3000, transactionTimeOut=2000)
    producer = await c.transactional_producer("t")
    await c.consumer("g", "T", _nothing)
    for number in range(30):
        commits, answers = c.rng.random() < 0.6, c.rng.random() < 0.5
        with contextlib.suppress(MqfastError):
            await producer.send_in_transaction("T", b"t%d" % number, commits=commits, answers=answers)
        await producer.try_send("T", b"d%d" % number, delay_s=c.rng.choice((1, 3, 8)))
        await c.sleep(c.rng.random())
    await c.heal()
    await c.settled()


async def pulled(c: Cluster) -> None:
    """Poll messages with two consumers of a group."""
    await c.brokers("a")
    producer = await c.producer("p")
    consumers = [await c.pull_consumer("g", "T") for _ in range(2)]
    for number in range(40):
        await producer.try_send("T", b"%d" % number)
        for consumer in consumers:
            await consumer.poll(0.2)
    await c.heal()
    wanted = {sent.body for sent in c.history.promised}
    for _ in range(200):
        for consumer in consumers:
            await consumer.poll(0.5)
        if wanted <= {delivery.body for delivery in c.history.deliveries}:
            break
    await c.settled()
    assert wanted <= {delivery.body for delivery in c.history.deliveries}


async def popped(c: Cluster) -> None:
    """Receive by POP with two consumers: ack, forget and prolong messages."""
    await _pop_load(c, await _popping(c, "SYNC_FLUSH"))


async def popped_in_order(c: Cluster) -> None:
    """Receive by orderly POP: the messages of a queue come in order, each after the ack of the one before."""
    consumers = await _popping(c, "SYNC_FLUSH", orderly=True)
    await _pop_load(c, consumers)
    c.history.check_pop_order()


async def popped_fail_over(c: Cluster) -> None:
    """Receive by POP from brokers under fail-over: no message is lost."""
    await c.brokers("a", replicas=2, in_sync=2)
    c.history.kills_s.append(0.0)  # after a take-over, as after a kill, a message may be in two batches
    consumers = [await c.simple_consumer("g", "T") for _ in range(2)]
    await _pop_load(c, consumers)


async def _popping(c: Cluster, flush: str, **options: Any) -> list[SimpleConsumer]:
    await c.brokers("a", flushDiskType=flush)
    return [await c.simple_consumer("g", "T", **options) for _ in range(2)]


async def _pop_load(c: Cluster, consumers: list[SimpleConsumer]) -> None:
    producer = await c.producer("p")
    for number in range(40):
        await producer.try_send("T", b"%d" % number)
        for consumer in consumers:
            with contextlib.suppress(MqfastError):
                await _work(c, consumer)
        await c.sleep(0.01)  # a call may fail at once
    await c.heal()
    await _all_acked(c, consumers)
    await c.settled()


async def _work(c: Cluster, consumer: SimpleConsumer) -> None:
    """Receive messages, and ack, prolong or forget each."""
    messages = await consumer.receive(8, invisible_s=c.rng.choice((3, 10, 30)), timeout_s=c.rng.choice((0.0, 0.5)))
    for message in messages:
        choice = c.rng.random()
        if choice < 0.6:
            await consumer.ack([message])
        elif choice < 0.8:
            await consumer.change_invisible_time(message, c.rng.choice((2.0, 8.0)))
            if choice < 0.7:
                await consumer.ack([message])
    await c.sleep(c.rng.random())


async def _all_acked(c: Cluster, consumers: list[SimpleConsumer], within_s: float = 150.0) -> None:
    """Ack all messages: a promised message comes until an ack of the group."""
    until_s = c.now_s + (60.0 if c.history.has_clock_jumped else within_s)
    while c.now_s < until_s:
        for consumer in consumers:
            with contextlib.suppress(MqfastError):
                messages = await consumer.receive(32, invisible_s=30, timeout_s=1.0)
                if messages:
                    await consumer.ack(messages)
        await c.sleep(0.01)
        acked = {pop.body for pop in c.history.pops if pop.is_given_back}
        if {sent.body for sent in c.history.promised} <= acked:
            return
    acked = {pop.body for pop in c.history.pops if pop.is_given_back}
    missing = [sent for sent in c.history.promised if sent.body not in acked]
    # Due times are of the wall clock: a message that was read while the clock was an hour ahead comes an hour late.
    assert not missing or c.history.has_clock_jumped, f"invisible for ever: {missing[0]}"


async def slow_handler(c: Cluster) -> None:
    """Consume with a handler that takes longer for some messages than the interval of commits."""

    async def handle(_: Any) -> None:
        await asyncio.sleep(c.rng.choice((0.0, 0.1, 8.0)))

    await c.brokers("a")
    producer = await c.producer("p")
    await c.consumer("g", "T", handle)
    await _send(c, producer, 40)
    await c.heal()
    await c.settled()


async def _send(c: Cluster, producer: Any, messages: int) -> None:
    for number in range(messages):
        await producer.try_send("T", b"%d" % number)
        await c.sleep(c.rng.random() / 2)
