"""Redelivery beside faults: a message that cannot be read or stored delays neither its batch nor other batches."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from running import running_broker

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from popping import INVISIBLE_MS, MovedClock, ack, messages, pop
from pulling import run
from waiting import until_async as until

from mqfast.broker.pop import revive_log
from mqfast.errors import StorageError


def properties_of(length: int) -> str:
    """A property with a value of this length; the broker's own properties have about 100 bytes."""
    return "k\x01" + "v" * length + "\x02"


READ_FAILED = StorageError(5, "read failed", "file")


@pytest.mark.parametrize(
    ("error", "is_restarted"), [(READ_FAILED, False), (READ_FAILED, True), (RuntimeError("unexpected"), False)]
)
def test_a_failing_read_delays_a_redelivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_restarted: bool
) -> None:
    failures: list[int] = []
    real = revive_log.message_at

    def failing(context: Any, topic: str, queue_id: int, offset: int) -> Any:
        if len(failures) < 2:
            failures.append(offset)
            raise error
        return real(context, topic, queue_id, offset)

    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock) as running:
            for number in range(3):
                await running.send("T", b"%d" % number)
            assert len(messages(await pop(running))) == 3
            if not is_restarted:
                await redelivered(running, clock)
        if is_restarted:
            async with running_broker(tmp_path, now_ms=clock) as running:
                await redelivered(running, clock)

    async def redelivered(running: Any, clock: MovedClock) -> None:
        monkeypatch.setattr(revive_log, "message_at", failing)
        clock.ahead_ms += INVISIBLE_MS
        await until(lambda: len(failures) == 2)
        clock.ahead_ms += 2000
        got: set[bytes] = set()
        async with asyncio.timeout(300):
            while len(got) < 3:
                got |= {popped.body for popped in messages(await pop(running, wait_ms=5000))}

    run(flow())


def test_a_message_that_cannot_be_stored_again_does_not_hold_up_its_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The properties of the first message have no room for those of a retry."""

    async def flow() -> None:
        async with running_broker(tmp_path) as running:
            assert (await running.send("T", b"large", properties=properties_of(32_650))).code == 0
            for number in range(2):
                await running.send("T", b"%d" % number)
            first = messages(await pop(running, invisibleTime=50))
            assert len(first) == 3
            got: list[bytes] = []
            async with asyncio.timeout(300):
                while len(got) < 2:
                    got += [popped.body for popped in messages(await pop(running, wait_ms=5000))]
            assert sorted(got) == [b"0", b"1"]
            assert running.parts.pop.service.in_flight.count("T", "g", 0) == 1
            await until(lambda: "offset 0 of topic T, queue 0, waits for group g" in caplog.text)
            assert (await ack(running, first[0].handle)).code == 0  # late, and still counted
            assert running.parts.pop.service.in_flight.count("T", "g", 0) == 0

    run(flow())


def test_a_retry_without_room_for_a_handle_is_delivered_in_its_retry_topic(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as running:
            assert (await running.send("T", b"large", properties=properties_of(32_600))).code == 0
            await running.send("T", b"small")
            assert len(messages(await pop(running, invisibleTime=50))) == 2
            got = messages(await pop(running, wait_ms=20_000))
            assert [(popped.body, popped.message.topic) for popped in got] == [
                (b"large", "%RETRY%g_T"),
                (b"small", "T"),
            ]
            for popped in got:
                assert (await ack(running, popped.handle)).code == 0
            assert running.parts.pop.service.in_flight.messages == 0

    run(flow())
