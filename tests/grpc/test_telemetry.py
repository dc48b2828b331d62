"""Commands of the broker reach a gRPC client by Telemetry: checks of transactions, stacks, direct consumption."""

from __future__ import annotations

import threading
import time

import pytest
from grpc_client import GrpcClient, GrpcFailure, Stream

from mqfast.broker.grpc.codes import Code
from mqfast.grpc import messages as m
from mqfast.testing import Broker

SETTINGS = {"transactionTimeOut": "100", "transactionCheckInterval": "200"}


def telemetry(client: GrpcClient, settings: m.Settings) -> Stream:
    stream = client.open("Telemetry")
    stream.send(m.TelemetryCommand(settings=settings))
    answer = stream.next(m.TelemetryCommand)
    assert answer is not None
    assert answer.status == m.Status(Code.OK, "OK")
    return stream


def half(client: GrpcClient, body: bytes) -> m.SendResultEntry:
    system = m.SystemProperties(message_id=f"0102FC000000012D7D0B1CA4E3{body.hex():0>8.8}", message_type=4)
    request = m.SendMessageRequest([m.GrpcMessage(m.Resource("", "half"), {}, system, body)])
    answer = client.call("SendMessage", request, m.SendMessageResponse)
    assert answer.status is not None
    assert answer.status.code == Code.OK
    return answer.entries[0]


def end(client: GrpcClient, message_id: str, transaction_id: str, resolution: int, source: int = 1) -> int:
    request = m.EndTransactionRequest(m.Resource("", "half"), message_id, transaction_id, resolution, source)
    answer = client.call("EndTransaction", request, m.StatusResponse)
    assert answer.status is not None
    return answer.status.code


def next_check(stream: Stream) -> m.RecoverOrphanedTransactionCommand:
    command = stream.next(m.TelemetryCommand)
    assert command is not None
    assert command.recover_orphaned_transaction_command is not None
    return command.recover_orphaned_transaction_command


def test_transactions_end_by_their_id_alone_and_orphans_are_asked_for() -> None:
    with Broker(config=SETTINGS) as broker, GrpcClient(broker.addresses["broker-a"]) as client:
        broker.admin().create_topic("half", kind="TRANSACTION")
        stream = telemetry(client, m.Settings(client_type=1, publishing=m.Publishing([m.Resource("", "half")])))
        first = half(client, b"one")
        assert end(client, "another", first.transaction_id, 1) == Code.INVALID_TRANSACTION_ID
        assert end(client, first.message_id, "", 1) == Code.INVALID_TRANSACTION_ID
        assert end(client, first.message_id, f"FFFF-0-{first.message_id}", 1) == Code.INVALID_TRANSACTION_ID
        far = f"FFFFFFFFFFFFFFFF-0-{first.message_id}"  # above 63 bits
        assert end(client, first.message_id, far, 1) == Code.INVALID_TRANSACTION_ID
        assert end(client, first.message_id, f"7{far[1:]}", 1) == Code.INVALID_TRANSACTION_ID
        place = first.transaction_id.removesuffix(first.message_id)
        assert end(client, "another", f"{place}another", 1) == Code.INVALID_TRANSACTION_ID
        assert end(client, first.message_id, first.transaction_id, 1) == Code.OK
        half(client, b"orphan")
        asked = next_check(stream)
        while asked.message is not None and asked.message.body == b"one":  # asked before its end
            asked = next_check(stream)
        assert asked.message is not None
        assert asked.message.system_properties is not None
        assert asked.message.body == b"orphan"
        assert asked.message.topic == m.Resource("", "half")
        message_id = asked.message.system_properties.message_id
        without_version = message_id[2:]  # as Python's SDK 5.0.1 names a message
        assert end(client, without_version, asked.transaction_id, 1, 2) == Code.OK
        assert sorted(message.body for message in broker.wait_for("half", 2)) == [b"one", b"orphan"]


def test_an_orphan_has_the_topic_as_the_client_names_the_topic() -> None:
    """An SDK ends the transaction in its own namespace, by the name without the namespace."""
    topic, message_id = m.Resource("space", "half"), "0102FC000000012D7D0B1CA4E300000001"
    with Broker(config=SETTINGS) as broker, GrpcClient(broker.addresses["broker-a"]) as client:
        broker.admin().create_topic("space%half", kind="TRANSACTION")
        stream = telemetry(client, m.Settings(client_type=1, publishing=m.Publishing([topic])))
        system = m.SystemProperties(message_id=message_id, message_type=4)
        request = m.SendMessageRequest([m.GrpcMessage(topic, {}, system, b"orphan")])
        client.call("SendMessage", request, m.SendMessageResponse)
        asked = next_check(stream)
        assert asked.message is not None
        assert asked.message.topic == topic
        ended = m.EndTransactionRequest(topic, message_id, asked.transaction_id, 1, 2)
        answer = client.call("EndTransaction", ended, m.StatusResponse)
        assert answer.status == m.Status(Code.OK, "OK")
        assert [message.body for message in broker.wait_for("space%half", 1)] == [b"orphan"]


def test_settings_above_their_limit_end_the_stream(client: GrpcClient) -> None:
    entry = m.SubscriptionEntry(m.Resource("", "plain"), m.FilterExpression(1, "x" * (256 << 10)))
    settings = m.Settings(client_type=2, subscription=m.Subscription(m.Resource("", "readers"), [entry]))
    stream = client.open("Telemetry")
    stream.send(m.TelemetryCommand(settings=settings))
    with pytest.raises(GrpcFailure, match="262144"):
        stream.next(m.TelemetryCommand)


def test_an_administrator_sees_the_stacks_of_a_client() -> None:
    with Broker(topics=["plain"], groups=["readers"]) as broker:
        with GrpcClient(broker.addresses["broker-a"], "shown") as client:
            entry = m.SubscriptionEntry(m.Resource("", "plain"), m.FilterExpression(1, "*"))
            subscription = m.Subscription(m.Resource("", "readers"), [entry])
            stream = telemetry(client, m.Settings(client_type=2, subscription=subscription))

            def answer() -> None:
                command = stream.next(m.TelemetryCommand)
                assert command is not None
                assert command.print_thread_stack_trace_command is not None
                nonce = command.print_thread_stack_trace_command.nonce
                stream.send(m.TelemetryCommand(m.Status(Code.OK), None, m.ThreadStackTrace(nonce, "main: at work")))

            thread = threading.Thread(target=answer)
            thread.start()
            info = broker.admin().running_info("readers", "shown", stack=True)
            thread.join()
            assert info["stack"] == "main: at work"


def test_a_client_leaves_its_groups_with_its_connection_and_by_its_own_word() -> None:
    with Broker(topics=["plain"], groups=["readers"]) as broker:
        entry = m.SubscriptionEntry(m.Resource("", "plain"), m.FilterExpression(1, "*"))
        settings = m.Settings(client_type=2, subscription=m.Subscription(m.Resource("", "readers"), [entry]))
        admin = broker.admin()
        with GrpcClient(broker.addresses["broker-a"], "leaving") as client:
            telemetry(client, settings)
            assert [member["client_id"] for member in admin.connections("readers")] == ["leaving"]
            for kind in (2, 0):  # Java's SDK 5.0.0 names no type
                known = client.call("Heartbeat", m.HeartbeatRequest(None, kind), m.StatusResponse)
                assert known.status == m.Status(Code.OK, "OK")
            answer = client.call("NotifyClientTermination", m.NotifyClientTerminationRequest(), m.StatusResponse)
            assert answer.status == m.Status(Code.OK, "OK")
            beat = client.call("Heartbeat", m.HeartbeatRequest(None, 2), m.StatusResponse)
            assert beat.status is not None
            assert beat.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
            assert admin.connections("readers") == []
        with GrpcClient(broker.addresses["broker-a"], "cut off") as client:
            telemetry(client, settings)
            assert len(admin.connections("readers")) == 1
        until = time.monotonic() + 10
        while admin.connections("readers"):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_broker_that_was_emptied_serves_no_stream_of_before() -> None:
    """The service behind such a stream has ended: no command of the broker would reach the client."""
    entry = m.SubscriptionEntry(m.Resource("", "plain"), m.FilterExpression(1, "*"))
    settings = m.Settings(client_type=2, subscription=m.Subscription(m.Resource("", "readers"), [entry]))
    with Broker(topics=["plain"], groups=["readers"]) as broker, GrpcClient(broker.addresses["broker-a"]) as client:
        stream = client.open("Telemetry")
        client.flush()
        client.call("QueryRoute", m.QueryRouteRequest(m.Resource("", "plain")), m.QueryRouteResponse)
        broker.reset()
        with pytest.raises(GrpcFailure) as caught:
            stream.send(m.TelemetryCommand(settings=settings))
            stream.next(m.TelemetryCommand)
        assert caught.value.args[0] == 14  # UNAVAILABLE
        with GrpcClient(broker.addresses["broker-a"], "again") as again:
            telemetry(again, settings)
            assert [member["client_id"] for member in broker.admin().connections("readers")] == ["again"]


def test_settings_are_repeated_for_the_sdk_of_node(client: GrpcClient) -> None:
    """With several topics rocketmq-client-nodejs 1.0.8 misses settings that come before the route of the last topic."""
    publishing = m.Publishing([m.Resource("", "plain")])
    node = telemetry(client, m.Settings(client_type=1, publishing=publishing, user_agent=m.UserAgent(8)))
    repeated = node.next(m.TelemetryCommand)
    assert repeated is not None
    assert repeated.status == m.Status(Code.OK, "OK")
    assert repeated.settings is not None
    assert repeated.settings.publishing is not None
    assert repeated.settings.publishing.topics == publishing.topics
