"""Consumers of gRPC for tests: settings by Telemetry, ReceiveMessage, acks."""

from __future__ import annotations

from grpc_client import GrpcClient, Stream

from mqfast.grpc import messages as m

__all__ = ["PUSH", "SIMPLE", "ack", "begin_receive", "bodies_of", "handle_of", "open_consumer", "receive"]

PUSH, SIMPLE = 2, 3


def open_consumer(
    address: str, name: str, topic: str, group: str = "readers", *, kind: int = SIMPLE, window_bytes: int = 1 << 20
) -> GrpcClient:
    """Return a client with the settings of a consumer."""
    client = GrpcClient(address, name, window_bytes=window_bytes)
    entry = m.SubscriptionEntry(m.Resource("", topic), m.FilterExpression(1, "*"))
    stream = client.open("Telemetry")
    subscription = m.Subscription(m.Resource("", group), [entry])
    stream.send(m.TelemetryCommand(settings=m.Settings(client_type=kind, subscription=subscription)))
    assert stream.next(m.TelemetryCommand) is not None
    return client


def begin_receive(
    client: GrpcClient, topic: str, group: str = "readers", headers: dict[str, str] | None = None, **more: object
) -> Stream:
    """Send ReceiveMessage, with a long invisible time unless told otherwise; return the open call."""
    given = {"batch_size": 32, "invisible_duration": 600_000, "long_polling_timeout": 0, **more}
    call = client.open("ReceiveMessage", **(headers or {}))
    queue = m.MessageQueue(m.Resource("", topic))
    call.send(m.ReceiveMessageRequest(m.Resource("", group), queue, **given))  # type: ignore[arg-type]
    call.end()
    return call


def receive(client: GrpcClient, topic: str, group: str = "readers", **more: object) -> list[m.GrpcMessage]:
    """Return the messages of one ReceiveMessage."""
    call = begin_receive(client, topic, group, **more)
    messages = []
    while (answer := call.next(m.ReceiveMessageResponse)) is not None:
        if answer.message is not None:
            messages.append(answer.message)
    return messages


def bodies_of(messages: list[m.GrpcMessage]) -> list[bytes]:
    """Return the bodies, in order."""
    return sorted(message.body for message in messages)


def handle_of(message: m.GrpcMessage) -> str:
    """Return the receipt handle."""
    assert message.system_properties is not None
    assert message.system_properties.receipt_handle is not None
    return message.system_properties.receipt_handle


def ack(client: GrpcClient, topic: str, *handles: str, group: str = "readers") -> list[int]:
    """Return the codes of the acks."""
    entries = [m.AckMessageEntry("id", handle) for handle in handles]
    request = m.AckMessageRequest(m.Resource("", group), m.Resource("", topic), entries)
    answer = client.call("AckMessage", request, m.AckMessageResponse)
    return [entry.status.code for entry in answer.entries if entry.status is not None]
