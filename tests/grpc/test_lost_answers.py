"""Messages of a ReceiveMessage that its client never gets are visible soon, wherever the call was given up."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from grpc_client import GrpcClient, GrpcFailure
from grpc_consumers import PUSH, SIMPLE, begin_receive, bodies_of, open_consumer, receive
from grpc_gate import Gate
from running import Running, running_broker

from mqfast.broker.grpc.codes import Code
from mqfast.grpc import messages as m
from mqfast.testing import Broker

SOON = {"long_polling_timeout": 15_000}  # far below the invisible time of ten minutes
SAME_HASH = "Aa", "BB"  # Java's hash of both tags is 2112, so the store's filter passes both


def serve(path: Path, flow: Callable[[Running], Awaitable[None]], **settings: int) -> None:
    """Run a flow against a broker in this process, which has the topic T."""

    async def run() -> None:
        async with asyncio.timeout(300), running_broker(path, **settings) as running:
            await running.send("T", b"first", queues=1)
            await flow(running)

    asyncio.run(run())


def send(client: GrpcClient, number: int, body: bytes, tag: str) -> None:
    system = m.SystemProperties(message_id=f"0102FC000000012D7D0B1CA4E3{number:08X}", message_type=1, tag=tag)
    request = m.SendMessageRequest([m.GrpcMessage(m.Resource("", "T"), {}, system, body)])
    answer = client.call("SendMessage", request, m.SendMessageResponse)
    assert answer.status is not None
    assert answer.status.code == Code.OK


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancel", "deadline"])
@pytest.mark.parametrize("wait", [1, 2], ids=["check-point", "filter"])
def test_of_a_call_that_ends_in_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool, wait: int
) -> None:
    async def flow(running: Running) -> None:
        gate = Gate(running, monkeypatch)
        await asyncio.to_thread(give_up, running, gate)

    def give_up(running: Running, gate: Gate) -> None:
        wanted = {"filter_expression": m.FilterExpression(1, SAME_HASH[0])}
        with (
            open_consumer(running.address, "first", "T") as first,
            open_consumer(running.address, "second", "T") as second,
        ):
            assert receive(second, "T", **wanted) == []
            send(second, 1, b"other", SAME_HASH[1])  # acked by the filter of the gRPC service
            send(second, 2, b"wanted", SAME_HASH[0])
            gate.hold(wait)
            call = begin_receive(first, "T", headers={} if is_cancelled else {"grpc_timeout": "600m"}, **wanted)
            assert gate.held.wait(20)
            if is_cancelled:
                call.cancel()
                first.call("QueryRoute", m.QueryRouteRequest(m.Resource("", "T")), m.QueryRouteResponse)
            else:
                with pytest.raises(GrpcFailure) as caught:
                    call.next(m.ReceiveMessageResponse)
                assert caught.value.args[0] == 4  # DEADLINE_EXCEEDED
            gate.open()
            while not (received := receive(second, "T", **wanted, **SOON)):
                pass  # the other message alone came again, which is acked by the filter
            assert bodies_of(received) == [b"wanted"]

    serve(tmp_path, flow)


def test_of_a_call_that_is_cancelled_before_its_begin(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Request and cancellation come together: no coroutine is left without a begin."""

    async def flow(running: Running) -> None:
        await asyncio.to_thread(cancel_at_once, running)

    def cancel_at_once(running: Running) -> None:
        with open_consumer(running.address, "first", "T") as client:
            call = client.open("ReceiveMessage")
            queue = m.MessageQueue(m.Resource("", "T"))
            request = m.ReceiveMessageRequest(m.Resource("", "readers"), queue, long_polling_timeout=15_000)
            client.session.write(call.stream, m.encode(request))
            client.session.end_request(call.stream)
            data = client.session.data_to_send(1 << 20)
            client.session.reset(call.stream, 8)
            client.socket.sendall(b"".join([*data, *client.session.data_to_send(1 << 20)]))
            client.call("QueryRoute", m.QueryRouteRequest(m.Resource("", "T")), m.QueryRouteResponse)

    serve(tmp_path, flow)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancel", "connection"])
def test_of_a_call_that_ends_while_its_answer_waits_for_the_client(broker: Broker, is_cancelled: bool) -> None:
    """Flow control lets only a part of the answer pass before the client reads."""
    topic = f"lost-{is_cancelled}"
    broker.create_topic(topic, 1)
    address = broker.addresses["broker-a"]
    kind = PUSH if is_cancelled else SIMPLE  # the messages of a push consumer are released with its connection
    first = open_consumer(address, "first", topic, kind=kind, window_bytes=60_000)
    with first, open_consumer(address, "second", topic) as second:
        assert receive(second, topic) == []
        broker.send(topic, b"x" * 100_000)
        call = begin_receive(first, topic, auto_renew=is_cancelled)
        assert first.socket.recv(1, socket.MSG_PEEK)
        if is_cancelled:
            call.cancel()
        else:
            first.close()
        assert len(receive(second, topic, **SOON)) == 1


def test_of_a_client_that_reads_no_answers(tmp_path: Path) -> None:
    """More than 32 MiB of answers wait for the client when a message comes, which is for another consumer."""

    async def flow(running: Running) -> None:
        for _ in range(12):
            await running.send("large", b"x" * 3_000_000, queues=1, queue_id=0)
        await asyncio.to_thread(not_read, running)

    def not_read(running: Running) -> None:
        assert running.parts.grpc is not None
        connections = running.parts.grpc.server.connections
        slow = open_consumer(running.address, "slow", "T", window_bytes=60_000)
        with slow, open_consumer(running.address, "second", "T") as second:
            receive(slow, "T")
            waiting = begin_receive(slow, "T", long_polling_timeout=20_000)
            queue = m.MessageQueue(m.Resource("", "large"), 0)
            for offset in range(12):
                pull = slow.open("PullMessage")
                pull.send(m.PullMessageRequest(m.Resource("", "readers"), queue, offset, 1))
                pull.end()
            until = time.monotonic() + 30
            while max(connection.unsent_bytes for connection in list(connections)) < 33 << 20:
                assert time.monotonic() < until
                time.sleep(0.01)
            send(second, 1, b"kept", "t")
            assert bodies_of(receive(second, "T", **SOON)) == [b"kept"]
            answer = waiting.next(m.ReceiveMessageResponse)
            assert answer is not None
            assert answer.status is not None
            assert answer.status.code == Code.TOO_MANY_REQUESTS

    serve(tmp_path, flow, mappedFileSizeCommitLog=64 << 20)
