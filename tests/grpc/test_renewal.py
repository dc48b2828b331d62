"""The messages of a push consumer that has ended come again soon, although their invisible time is long."""

from __future__ import annotations

from grpc_client import GrpcClient

from mqfast.grpc import messages as m
from mqfast.testing import Broker


def consumer(broker: Broker, name: str) -> GrpcClient:
    client = GrpcClient(broker.addresses["broker-a"], name)
    entry = m.SubscriptionEntry(m.Resource("", "plain"), m.FilterExpression(1, "*"))
    stream = client.open("Telemetry")
    subscription = m.Subscription(m.Resource("", "readers"), [entry])
    stream.send(m.TelemetryCommand(settings=m.Settings(client_type=2, subscription=subscription)))
    assert stream.next(m.TelemetryCommand) is not None
    return client


def receive(client: GrpcClient, wait_ms: int = 0) -> list[bytes]:
    request = m.ReceiveMessageRequest(
        m.Resource("", "readers"), m.MessageQueue(m.Resource("", "plain")), None, 32, None, True, wait_ms
    )
    answers = client.stream("ReceiveMessage", request, m.ReceiveMessageResponse)
    return [answer.message.body for answer in answers if answer.message is not None]


def test_messages_of_a_client_that_has_ended_come_again_soon() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"]) as broker, consumer(broker, "second") as second:
        assert receive(second) == []
        with consumer(broker, "first") as first:
            broker.send("plain", b"held")
            assert receive(first, 5_000) == [b"held"]
        # 60 s of invisible time become one second.
        assert receive(second, 15_000) == [b"held"]


def test_messages_for_a_client_that_ended_while_it_waited_come_again_soon() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"]) as broker, consumer(broker, "second") as second:
        assert receive(second) == []
        with consumer(broker, "first") as first:
            waiting = first.open("ReceiveMessage")
            queue = m.MessageQueue(m.Resource("", "plain"))
            waiting.send(m.ReceiveMessageRequest(m.Resource("", "readers"), queue, None, 32, None, True, 10_000))
            waiting.end()
            first.call("NotifyClientTermination", m.NotifyClientTerminationRequest(), m.StatusResponse)
            broker.send("plain", b"late")
            assert waiting.next(m.ReceiveMessageResponse) is None
            assert receive(second, 15_000) == [b"late"]
