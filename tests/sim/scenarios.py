"""Scenarios of the simulation's tests: one broker, and brokers under fail-over, with a producer and a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.sim import Cluster

__all__ = ["fail_over", "one_broker", "send_and_consume"]


def _nothing(_: Any) -> None:
    """Handle a message without any effect."""


async def send_and_consume(c: Cluster) -> None:
    """Send twenty messages through one broker, and consume them."""
    await c.brokers("a")
    producer = await c.producer("p")
    await c.consumer("g", "T", _nothing)
    for number in range(20):
        await producer.send("T", b"%d" % number)
    await c.settled()


async def one_broker(c: Cluster) -> None:
    """Send through one broker that is killed, cut off and stopped."""
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
