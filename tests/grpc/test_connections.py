"""A gRPC connection is bounded in every direction, and makes no other wait; both protocols share the port."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path

import pytest
from certificates import Authority
from grpc_client import GrpcClient, GrpcFailure
from waiting import until

from mqfast.broker.grpc.codes import Code
from mqfast.errors import FieldError
from mqfast.grpc import messages as m
from mqfast.grpc.connection import Call, GrpcServer, Method
from mqfast.grpc.http2 import Http2Session
from mqfast.grpc.settings import GrpcSettings
from mqfast.remoting.loop import new_event_loop
from mqfast.remoting.processors import Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.settings import RemotingSettings
from mqfast.testing import Broker

ACCOUNTS = """
accounts:
- accessKey: producer
  secretKey: producer-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - allowed=PUB
- accessKey: consumer
  secretKey: consumer-secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


def request(topic: str = "plain", body: bytes = b"x") -> m.SendMessageRequest:
    system = m.SystemProperties(message_id="0102FC000000012D7D0B1CA4E300000001", message_type=1)
    return m.SendMessageRequest([m.GrpcMessage(m.Resource("", topic), {}, system, body)])


def send(client: GrpcClient, topic: str = "plain", body: bytes = b"x") -> int:
    answer = client.call("SendMessage", request(topic, body), m.SendMessageResponse)
    assert answer.status is not None
    return answer.status.code


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    return broker.addresses["broker-a"]


def test_access_control_is_that_of_remoting(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "aclFile": str(tmp_path / "plain_acl.yml")}
    with Broker(topics=["allowed", "other"], groups=["group"], config=settings) as broker:
        address = broker.addresses["broker-a"]

        def code(topic: str, key: str = "", secret: str = "") -> int:
            with GrpcClient(address, key=key, secret=secret) as client:
                return send(client, topic)

        assert code("allowed", "producer", "producer-secret") == Code.OK
        assert code("other", "producer", "producer-secret") == Code.UNAUTHORIZED
        assert code("allowed", "producer", "wrong-secret") == Code.UNAUTHORIZED
        assert code("allowed", "nobody", "nobody-secret") == Code.UNAUTHORIZED
        assert code("allowed") == Code.UNAUTHORIZED
        assert code("allowed", "consumer", "consumer-secret") == Code.UNAUTHORIZED
        with GrpcClient(address, key="producer", secret="producer-secret") as client:
            route = client.call("QueryRoute", m.QueryRouteRequest(m.Resource("", "other")), m.QueryRouteResponse)
            assert route.status is not None
            assert route.status.code == Code.UNAUTHORIZED
            ack = m.AckMessageRequest(m.Resource("", "group"), m.Resource("", "allowed"), [m.AckMessageEntry("", "1")])
            answer = client.call("AckMessage", ack, m.AckMessageResponse)
            assert answer.status is not None
            assert answer.status.code == Code.UNAUTHORIZED


def test_retries_of_a_topic_need_the_rights_of_the_topic(tmp_path: Path) -> None:
    """The account may read every group, and no topic."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS.replace("defaultTopicPerm: SUB", "defaultTopicPerm: DENY"))
    settings = {"aclEnable": "true", "aclFile": str(tmp_path / "plain_acl.yml")}
    group, topic = m.Resource("", "group"), m.Resource("", "%RETRY%group_plain")
    calls: list[tuple[str, m.Message, type[m.Message]]] = [
        ("ReceiveMessage", m.ReceiveMessageRequest(group, m.MessageQueue(topic)), m.ReceiveMessageResponse),
        ("AckMessage", m.AckMessageRequest(group, topic, [m.AckMessageEntry("", "1")]), m.AckMessageResponse),
        (
            "ChangeInvisibleDuration",
            m.ChangeInvisibleDurationRequest(group, topic, "1", 1, "id"),
            m.ChangeInvisibleDurationResponse,
        ),
        (
            "ForwardMessageToDeadLetterQueue",
            m.ForwardMessageToDeadLetterQueueRequest(group, topic, "1", "id"),
            m.StatusResponse,
        ),
    ]
    with (
        Broker(topics=["plain"], groups=["group"], config=settings) as broker,
        GrpcClient(broker.addresses["broker-a"], key="consumer", secret="consumer-secret") as client,
    ):
        for name, request, kind in calls:
            (answer,) = client.stream(name, request, kind)
            assert answer.status.code == Code.UNAUTHORIZED, name  # type: ignore[attr-defined]


def test_a_transaction_is_ended_by_accounts_that_may_send_to_the_topic(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {
        "aclEnable": "true", "aclFile": str(tmp_path / "plain_acl.yml"), "enableTopicMessageTypeCheck": "false",
    }  # fmt: skip
    topic, message_id = m.Resource("", "allowed"), "0102FC000000012D7D0B1CA4E300000001"
    with Broker(topics=["allowed"], config=settings) as broker:
        address = broker.addresses["broker-a"]
        with (
            GrpcClient(address, "one", key="producer", secret="producer-secret") as producer,
            GrpcClient(address, "other", key="consumer", secret="consumer-secret") as consumer,
        ):
            half = m.GrpcMessage(topic, {}, m.SystemProperties(message_id=message_id, message_type=4), b"half")
            sent = producer.call("SendMessage", m.SendMessageRequest([half]), m.SendMessageResponse).entries[0]
            request = m.EndTransactionRequest(topic, message_id, sent.transaction_id, 1)
            for client, code in ((consumer, Code.UNAUTHORIZED), (producer, Code.OK)):
                answer = client.call("EndTransaction", request, m.StatusResponse)
                assert answer.status is not None
                assert answer.status.code == code
        assert [message.body for message in broker.wait_for("allowed", 1)] == [b"half"]


def test_the_rights_of_a_host_are_not_those_of_another_client_of_this_name(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text("globalWhiteRemoteAddresses:\n- 127.0.0.2\n" + ACCOUNTS.lstrip())
    settings = {"aclEnable": "true", "aclFile": str(tmp_path / "plain_acl.yml")}
    with Broker(topics=["allowed"], config=settings) as broker:
        host, _, port = broker.addresses["broker-a"].rpartition(":")
        with GrpcClient(f"{host}:{port}") as other, GrpcClient(f"{host}:{port}") as trusted:
            trusted.socket.close()
            trusted.socket = socket.create_connection((host, int(port)), 10, source_address=("127.0.0.2", 0))
            assert send(other, "allowed") == Code.UNAUTHORIZED
            assert send(trusted, "allowed") == Code.OK
            assert send(other, "allowed") == Code.UNAUTHORIZED
            other.headers["x-mq-date-time"] = "20261128T120000Z"
            start = "MQv2-HMAC-SHA1 Credential=producer, SignedHeaders=x-mq-date-time, Signature="
            other.headers["authorization"] = f"{start}\u00e9"
            assert send(other, "allowed") == Code.UNAUTHORIZED


def test_rights_that_are_revoked_while_a_receive_waits_are_gone(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    with Broker(topics=["plain"], groups=["group"], config={"aclEnable": "true", "aclFile": str(file)}) as broker:
        address, group, plain = broker.addresses["broker-a"], m.Resource("", "group"), m.Resource("", "plain")
        with GrpcClient(address, "waits", key="consumer", secret="consumer-secret") as client:
            stream = client.open("Telemetry")
            subscription = m.Subscription(group, [m.SubscriptionEntry(plain, m.FilterExpression(1, "*"))])
            stream.send(m.TelemetryCommand(settings=m.Settings(client_type=3, subscription=subscription)))
            assert stream.next(m.TelemetryCommand) is not None
            call = client.open("ReceiveMessage")
            call.send(m.ReceiveMessageRequest(group, m.MessageQueue(plain), None, 1, 10_000, False, 9_000))
            call.end()
            assert send(client) == Code.UNAUTHORIZED
            account = ACCOUNTS.replace("SUB", "DENY").replace("allowed=PUB", "plain=PUB")
            file.write_text(account)
            with GrpcClient(address, key="producer", secret="producer-secret") as producer:
                until = time.monotonic() + 8
                while send(producer) != Code.OK:  # the file is read again
                    assert time.monotonic() < until
                    time.sleep(0.05)
            answer = call.next(m.ReceiveMessageResponse)
            assert answer is not None
            assert answer.status is not None
            assert answer.status.code == Code.UNAUTHORIZED


def test_tls_is_on_the_same_port(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "ca").sign("broker")
    settings = {"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}
    with Broker(topics=["plain"], config=settings) as broker:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        with GrpcClient(broker.addresses["broker-a"], context=context) as client:
            assert client.socket.selected_alpn_protocol() == "h2"  # type: ignore[attr-defined]
            assert send(client) == Code.OK
        with GrpcClient(broker.addresses["broker-a"]) as client:
            assert send(client) == Code.OK
        broker.send("plain", b"by remoting")
        assert len(broker.messages("plain")) == 3


def test_a_message_above_the_limit_ends_its_call_alone(address: str) -> None:
    with GrpcClient(address) as client:
        with pytest.raises(GrpcFailure) as caught:
            send(client, body=b"x" * (17 << 20))
        assert caught.value.args[0] == 8  # RESOURCE_EXHAUSTED
        assert send(client) == Code.OK


def test_a_message_of_very_many_parts_is_refused() -> None:
    with pytest.raises(FieldError, match="at most 500000"):
        m.decode(m.SendMessageRequest, b"\x0a\x00" * 300_000)
    many = m.SendMessageRequest([m.GrpcMessage(m.Resource("", "plain"), {"a": "b"}) for _ in range(1024)])
    assert m.decode(m.SendMessageRequest, m.encode(many)) == many


def test_served_messages_count_no_longer_and_an_incomplete_one_still_does() -> None:
    client, server = Http2Session(is_server=False), Http2Session()
    pairs = {":method": "POST", ":scheme": "http", ":path": "/x", ":authority": "test"}
    stream = client.request([(name.encode(), value.encode()) for name, value in pairs.items()])
    client.write(stream, b"whole")
    client.write_raw(stream, bytes([0, 0, 0, 4, 0]) + bytes(900))
    server.receive(b"".join(client.data_to_send(1 << 20)))
    assert server.held == 905
    server.open_streams[0].release()
    assert server.held == 900


def test_a_stream_whose_answers_are_not_read_ends() -> None:
    answered: list[m.TelemetryCommand] = []

    async def answer(call: Call, command: m.TelemetryCommand) -> m.TelemetryCommand:
        answered.append(command)
        return m.TelemetryCommand(thread_stack_trace=m.ThreadStackTrace("", "x" * (72 << 10)))

    def flood(address: str) -> None:
        with GrpcClient(address, window_bytes=64 << 10) as client:
            stream = client.open("Stream")
            for count in range(1, 6):  # four answers wait within the limit beside the window, five do not
                stream.send(m.TelemetryCommand())
                until(lambda count=count: len(answered) >= count)
            stream.send(m.TelemetryCommand())
            stream.end()
            with pytest.raises(GrpcFailure) as caught:
                while stream.next(m.TelemetryCommand) is not None:
                    pass
            assert caught.value.args[0] == 8  # RESOURCE_EXHAUSTED
            assert len(answered) == 5

    async def run() -> None:
        method = Method(m.TelemetryCommand, m.TelemetryCommand, answer, is_stream=True)
        path = "/apache.rocketmq.v2.MessagingService/Stream"
        grpc = GrpcServer({path: method}, GrpcSettings(unsent_bytes_max=256 << 10))
        server = RemotingServer(Processors(), RemotingSettings(), others={ord("P"): grpc.connect})
        await server.start()
        host, port = server.address
        try:
            await asyncio.to_thread(flood, f"{host}:{port}")
        finally:
            await server.stop()

    asyncio.run(run())


def test_an_answer_that_was_complete_at_the_deadline_is_no_failure() -> None:
    """The deadline passes between the end of the work and the end of the call."""

    async def answer(call: Call, command: m.TelemetryCommand) -> m.TelemetryCommand:
        await asyncio.sleep(0)
        time.sleep(0.2)
        return command

    def ask(address: str) -> None:
        with GrpcClient(address) as client:
            sent = m.TelemetryCommand(thread_stack_trace=m.ThreadStackTrace("nonce"))
            assert client.call("Work", sent, m.TelemetryCommand, grpc_timeout="100m") == sent

    async def run() -> None:
        method = Method(m.TelemetryCommand, m.TelemetryCommand, answer)
        grpc = GrpcServer({"/apache.rocketmq.v2.MessagingService/Work": method})
        server = RemotingServer(Processors(), RemotingSettings(), others={ord("P"): grpc.connect})
        await server.start()
        host, port = server.address
        try:
            await asyncio.to_thread(ask, f"{host}:{port}")
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


def test_headers_above_the_limit_end_their_call_alone(address: str) -> None:
    with GrpcClient(address) as client:
        with pytest.raises(GrpcFailure) as caught:
            client.call("SendMessage", request(), m.SendMessageResponse, x_much="y" * 20_000)
        assert caught.value.args[0] == 8
        assert send(client) == Code.OK


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x00\x01\xff", b"\x01\x00\x00\x00\x01x", b"\x00\x00"])
def test_broken_messages_end_their_call_alone(address: str, data: bytes) -> None:
    with GrpcClient(address) as client:
        call = client.open("SendMessage")
        client.session.write_raw(call.stream, data)
        call.end()
        with pytest.raises(GrpcFailure) as caught:
            call.next(m.SendMessageResponse)
        assert caught.value.args[0] in (12, 13)  # UNIMPLEMENTED, INTERNAL
        assert send(client) == Code.OK


def test_a_thousand_open_streams_and_more_wait(address: str) -> None:
    with GrpcClient(address) as client:
        calls = [client.open("Telemetry") for _ in range(900)]
        client.flush()
        assert send(client) == Code.OK
        for call in calls:
            call.end()
        for call in calls:
            assert call.next(m.TelemetryCommand) is None


def test_resets_in_a_loop_close_the_connection_and_no_other(address: str) -> None:
    with GrpcClient(address) as flooder, GrpcClient(address) as other:
        with pytest.raises(OSError):
            for _ in range(200):
                for call in [flooder.open("Telemetry") for _ in range(50)]:
                    call.cancel()
            while True:
                flooder.receive()
        assert send(other) == Code.OK


def test_a_reader_that_does_not_read_blocks_nobody(broker: Broker, address: str) -> None:
    for _ in range(8):
        broker.send("plain", b"x" * (1 << 20))
    queue = m.MessageQueue(m.Resource("", "plain"), 0)
    with GrpcClient(address) as slow, GrpcClient(address) as other:
        broker.create_topics(groups=["slow"])
        for _ in range(40):
            call = slow.open("PullMessage")
            call.send(m.PullMessageRequest(m.Resource("", "slow"), queue, 0, 32))
            call.end()
        begin = time.monotonic()
        for _ in range(20):
            assert send(other) == Code.OK
        assert time.monotonic() - begin < 10


def test_bytes_that_are_no_http2_close_the_connection(address: str) -> None:
    with GrpcClient(address) as client:
        client.socket.sendall(b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n" + bytes(64))
        with pytest.raises(ConnectionError):
            while True:
                client.receive()
    assert Http2Session().receive(b"") == []
