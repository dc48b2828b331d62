"""Scenarios of consumer groups: orderly queues, members that come and go, dead letters, delay levels."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from mqfast.sim import Cluster

__all__ = ["dead_letters", "levels", "members", "orderly", "retried"]

_LEVELS_S = (1, 2, 4)
_DELAYS = " ".join(["1s", "2s", "4s", *["1s"] * 15])


def _nothing(_: Any) -> None:
    """Handle a message without any effect."""


async def orderly(c: Cluster) -> None:
    """Consume in order with members that come and go; some messages fail at first."""
    failed: set[bytes] = set()

    async def handle(message: Any) -> None:
        body = bytes(message.body)
        await asyncio.sleep(c.rng.choice((0.0, 0.05, 0.5, 2.0)))
        if body not in failed and c.rng.random() < 0.1:
            failed.add(body)
            raise ValueError("at first")

    await c.brokers("a")
    await _come_and_go(c, handle, orderly=True)


async def members(c: Cluster) -> None:
    """Consume with members that come and go."""

    async def handle(_: Any) -> None:
        await asyncio.sleep(c.rng.choice((0.05, 0.5, 1.0)))

    await c.brokers("a")
    await _come_and_go(c, handle, threads=1)


async def _come_and_go(c: Cluster, handle: Any, **options: Any) -> None:
    producer = await c.producer("p")
    consumers = [await c.consumer("g", "T", handle, **options)]
    for number in range(60):
        with contextlib.suppress(MqfastError):
            if number in (10, 20, 30):
                consumers.append(await c.consumer("g", "T", handle, **options))
            if number == 40:
                await consumers.pop(c.rng.randrange(len(consumers))).close()
        await producer.try_send("T", b"%d" % number)
        await c.sleep(c.rng.random() / 2)
    await c.heal()
    await c.settled()


async def retried(c: Cluster) -> None:
    """Consume with SYNC_FLUSH and a handler with failures at first, through power cuts."""
    await c.brokers("a", messageDelayLevel=_DELAYS, flushDiskType="SYNC_FLUSH")
    producer = await c.producer("p")
    failed: set[bytes] = set()

    async def handle(message: Any) -> None:
        body = bytes(message.body)
        await asyncio.sleep(c.rng.choice((0.0, 0.5)))
        if c.rng.random() < 0.5 and body not in failed:
            failed.add(body)
            raise ValueError("at first")

    await c.consumer("g", "T", handle)
    for number in range(40):
        await producer.try_send("T", b"%d" % number)
        await c.sleep(c.rng.random() / 2)
    await c.heal()
    await c.settled()


async def dead_letters(c: Cluster) -> None:
    """Consume with a handler that never succeeds for some messages: these become dead letters, and no others do."""
    await c.brokers("a", messageDelayLevel=_DELAYS)
    producer = await c.producer("p")

    def handle(message: Any) -> None:
        if bytes(message.body).endswith(b"bad"):
            raise ValueError("always")

    await c.consumer("g", "T", handle, max_reconsume_times=2)
    for number in range(30):
        await producer.try_send("T", b"%d %s" % (number, c.rng.choice((b"good", b"bad"))))
        await c.sleep(c.rng.random() / 4)
    await c.heal()
    await c.settled()
    if not c.faults.plan:
        for sent in c.history.promised:
            tries = sum(delivery.body == sent.body for delivery in c.history.begun)
            assert tries == (3 if sent.body.endswith(b"bad") else 1), f"{sent.body!r} had {tries} deliveries"


async def levels(c: Cluster) -> None:
    """Send with delay levels."""
    await c.brokers("a", messageDelayLevel=_DELAYS)
    producer = await c.producer("p")
    await c.consumer("g", "T", _nothing)
    for number in range(40):
        body, level = b"%d" % number, c.rng.randrange(3)
        c.history.due_s[body] = c.now_s + _LEVELS_S[level]
        with contextlib.suppress(MqfastError):
            if (await producer.send("T", body, delay_level=level + 1)).ok:
                c.history.expected.append(("T", body))
        await c.sleep(c.rng.random())
    await c.heal()
    await c.settled()
    if not c.faults.plan:
        assert len({delivery.body for delivery in c.history.begun}) == len(c.history.begun), "delivered twice"
