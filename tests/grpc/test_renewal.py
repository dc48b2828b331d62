"""The messages of a push consumer are extended until its answer, and come again soon when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_client import GrpcClient
from grpc_consumers import PUSH, ack, begin_receive, bodies_of, handle_of, open_consumer, receive
from grpc_gate import Gate
from running import Running, running_broker

from mqfast.broker.grpc.codes import Code
from mqfast.broker.pop.receipt_handle import ReceiptHandle
from mqfast.errors import CallRefused
from mqfast.grpc import messages as m
from mqfast.testing import Broker

RENEWED = {"auto_renew": True, "invisible_duration": None}


def consumer(broker: Broker, name: str) -> GrpcClient:
    return open_consumer(broker.addresses["broker-a"], name, "plain", kind=PUSH)


def test_messages_of_a_client_that_has_ended_come_again_soon() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"]) as broker, consumer(broker, "second") as second:
        assert receive(second, "plain", **RENEWED) == []
        with consumer(broker, "first") as first:
            broker.send("plain", b"held")
            assert bodies_of(receive(first, "plain", **RENEWED, long_polling_timeout=5_000)) == [b"held"]
        # 60 s of invisible time become one second.
        assert bodies_of(receive(second, "plain", **RENEWED, long_polling_timeout=15_000)) == [b"held"]


def test_messages_for_a_client_that_ended_while_it_waited_come_again_soon() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"]) as broker, consumer(broker, "second") as second:
        assert receive(second, "plain", **RENEWED) == []
        with consumer(broker, "first") as first:
            waiting = begin_receive(first, "plain", **RENEWED, long_polling_timeout=10_000)
            first.call("NotifyClientTermination", m.NotifyClientTerminationRequest(), m.StatusResponse)
            broker.send("plain", b"late")
            assert waiting.next(m.ReceiveMessageResponse) is None
            assert bodies_of(receive(second, "plain", **RENEWED, long_polling_timeout=15_000)) == [b"late"]


class Clock:
    """The clock of a broker, which a test advances."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        self.ms += ms


def serve(path: Path, flow: Callable[[Running, Clock], Awaitable[None]]) -> None:
    """Run a flow against a broker with a clock of its own, which has the topic T."""

    async def run() -> None:
        clock = Clock()
        async with asyncio.timeout(300), running_broker(path, now_ms=clock.now_ms) as running:
            await running.send("T", b"first", queues=1)
            await flow(running, clock)

    asyncio.run(run())


async def delivered(running: Running, clock: Clock) -> list[bytes]:
    """Return what another consumer gets after an hour."""
    clock.ms += 3_600_000
    running.parts.pop.service.run_due()

    def look() -> list[bytes]:
        with open_consumer(running.address, "other", "T") as other:
            return bodies_of(receive(other, "T"))

    return await asyncio.to_thread(look)


def test_an_ack_during_an_extension_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow(running: Running, clock: Clock) -> None:
        gate = Gate(running, monkeypatch)

        def work() -> None:
            with open_consumer(running.address, "worker", "T", kind=PUSH) as worker:
                message = receive(worker, "T", **RENEWED)[0]
                gate.hold(1)
                clock.ms += 55_000
                assert gate.held.wait(20)
                call = worker.open("AckMessage")
                entry = m.AckMessageEntry("id", handle_of(message))
                call.send(m.AckMessageRequest(m.Resource("", "readers"), m.Resource("", "T"), [entry]))
                call.end()
                worker.call("QueryRoute", m.QueryRouteRequest(m.Resource("", "T")), m.QueryRouteResponse)
                gate.open()
                answer = call.next(m.AckMessageResponse)
                assert answer is not None
                assert answer.entries[0].status == m.Status(Code.OK, "OK")

        await asyncio.to_thread(work)
        assert await delivered(running, clock) == []

    serve(tmp_path, flow)


def test_an_ack_that_failed_is_repeated_by_the_handle_of_the_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flow(running: Running, clock: Clock) -> None:
        service = running.parts.pop.service
        extended, failed = asyncio.Event(), [CallRefused(1, "the disk is busy")]
        change, store_acks = service.change_invisible_time, service.ack_batch

        async def change_invisible_time(*args: Any, **more: Any) -> ReceiptHandle:
            changed = await change(*args, **more)
            extended.set()
            return changed

        async def ack_batch(group: str, topic: str, handles: list[ReceiptHandle]) -> list[CallRefused | None]:
            return [failed.pop()] if failed else await store_acks(group, topic, handles)

        monkeypatch.setattr(service, "change_invisible_time", change_invisible_time)
        monkeypatch.setattr(service, "ack_batch", ack_batch)
        with await asyncio.to_thread(open_consumer, running.address, "worker", "T", kind=PUSH) as worker:
            message = (await asyncio.to_thread(receive, worker, "T", **RENEWED))[0]
            clock.ms += 55_000
            await extended.wait()
            codes = [await asyncio.to_thread(ack, worker, "T", handle_of(message)) for _ in range(2)]
            assert codes == [[Code.INTERNAL_SERVER_ERROR], [Code.OK]]
        assert await delivered(running, clock) == []

    serve(tmp_path, flow)


def test_a_failed_extension_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow(running: Running, clock: Clock) -> None:
        service = running.parts.pop.service
        extended, failures = asyncio.Event(), [OSError("no room"), CallRefused(1, "the disk is busy")]
        change = service.change_invisible_time

        async def change_invisible_time(*args: Any, **more: Any) -> ReceiptHandle:
            running.context.loop.call_soon(clock.advance, 2_500)  # to the next try
            if failures:
                raise failures.pop()
            changed = await change(*args, **more)
            extended.set()
            return changed

        monkeypatch.setattr(service, "change_invisible_time", change_invisible_time)
        with await asyncio.to_thread(open_consumer, running.address, "worker", "T", kind=PUSH) as worker:
            message = (await asyncio.to_thread(receive, worker, "T", **RENEWED))[0]
            clock.ms += 50_500
            await extended.wait()
            clock.ms += 20_000  # beyond the invisible time of the delivery
            assert await asyncio.to_thread(ack, worker, "T", handle_of(message)) == [Code.OK]
        assert await delivered(running, clock) == []

    serve(tmp_path, flow)
