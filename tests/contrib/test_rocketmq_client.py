"""The names of rocketmq-client-python 2.0.0, used as programs of that package use them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from mqfast.compat.rocketmq_client import (
    ConsumerException,
    ConsumeStatus,
    MallocFailed,
    Message,
    MessageModel,
    MessageProperty,
    NullPointerException,
    Producer,
    ProducerException,
    ProducerSendAsyncFailed,
    ProducerSendOnewayFailed,
    ProducerSendSyncFailed,
    PushConsumer,
    PushConsumerStartFailed,
    ReceivedMessage,
    RocketMQException,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from mqfast.testing import Broker


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(config={"transactionCheckInterval": "200", "transactionTimeOut": "100"}) as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Broker:
    module_broker.reset()
    module_broker.create_topics(topics={"TopicTest": 2})
    return module_broker


def message(body: str = "message body") -> Message:
    made = Message("TopicTest")
    made.set_keys("XXX")
    made.set_tags("XXX")
    made.set_property("property", "test")
    made.set_body(body)
    return made


def producer_of(broker: Broker, **arguments: Any) -> Producer:
    producer = Producer("test", **arguments)
    producer.set_name_server_address(broker.namesrv_addr)
    return producer


def consumer_of(broker: Broker, group: str = "CID_XXX", **arguments: Any) -> PushConsumer:
    consumer = PushConsumer(group, **arguments)
    consumer.set_namesrv_addr(broker.namesrv_addr)
    return consumer


def test_send_sync_and_what_the_broker_has(broker: Broker) -> None:
    producer = producer_of(broker, timeout=3000, compress_level=5, max_message_size=1 << 20)
    producer.set_group("other")
    producer.set_instance_name("one")
    producer.set_message_trace(True)
    producer.set_session_credentials("key", "secret", "ALIYUN")
    producer.start()
    result = producer.send_sync(message())
    assert result.status == SendStatus.OK
    assert result.status is SendStatus.OK
    assert result.offset == 0
    status, msg_id, _offset = result
    assert (status, len(msg_id)) == (0, 32)
    producer.send_oneway(message("oneway"))
    broker.wait_for("TopicTest", 2)
    producer.shutdown()
    producer.shutdown()
    broker.wait_for("RMQ_SYS_TRACE_TOPIC")
    [stored] = [one for one in broker.messages("TopicTest") if one.body == b"message body"]
    assert (stored.tags, list(stored.keys), stored.properties["property"]) == ("XXX", ["XXX"], "test")
    assert stored.msg_id == msg_id


def test_an_http_server_tells_the_name_servers(broker: Broker) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(broker.namesrv_addr.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        producer = Producer(b"test")
        producer.set_name_server_domain(f"127.0.0.1:{server.server_port}/rocketmq/nsaddr")
        with producer:
            assert producer.send_sync(message()).status == SendStatus.OK
        server.shutdown()


def test_a_sharding_key_keeps_one_queue_in_order(broker: Broker) -> None:
    with producer_of(broker, orderly=True) as producer:
        results = [producer.send_orderly_with_sharding_key(message(str(n)), "orderId") for n in range(5)]
    assert [result.offset for result in results] == [0, 1, 2, 3, 4]
    assert len({one.queue_id for one in broker.messages("TopicTest")}) == 1
    broker.assert_in_order("TopicTest")


def test_a_delay_level_is_kept(broker: Broker) -> None:
    delayed = message()
    delayed.set_delay_time_level(3)
    got: list[ReceivedMessage] = []
    with producer_of(broker) as producer:
        producer.send_sync(delayed)
    consume(broker, got, 1)
    assert got[0].delay_time_level == 3


def consume(broker: Broker, into: list[ReceivedMessage], count: int, **arguments: Any) -> None:
    seen = threading.Semaphore(0)

    def callback(msg: ReceivedMessage) -> ConsumeStatus:
        into.append(msg)
        seen.release()
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = consumer_of(broker, **arguments)
    broker.create_topics(groups=["CID_XXX"])
    consumer._arguments["from_where"] = "first"
    consumer.subscribe("TopicTest", callback)
    with consumer:
        for _ in range(count):
            assert seen.acquire(timeout=20)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_received_message_has_bytes_and_outlives_its_callback(broker: Broker, orderly: bool) -> None:
    with producer_of(broker) as producer:
        sent = producer.send_sync(message())
    got: list[ReceivedMessage] = []
    consume(broker, got, 1, orderly=orderly)
    [msg] = got
    assert (msg.topic, msg.body, msg.tags, msg.keys) == ("TopicTest", b"message body", b"XXX", b"XXX")
    assert (str(msg), bytes(msg), msg.id) == ("message body", b"message body", sent.msg_id)
    assert msg["property"] == msg.get_property(b"property") == b"test"
    assert msg[MessageProperty.KEYS] == b"XXX"
    assert msg["none"] == b""
    assert (msg.queue_offset, msg.reconsume_times, msg.delay_time_level) == (0, 0, 0)
    assert msg.store_timestamp >= msg.born_timestamp > 0
    assert msg.store_size > 0
    assert msg.commit_log_offset >= 0
    assert msg.prepared_transaction_offset == 0
    assert repr(msg) == f"<ReceivedMessage topic='TopicTest' id='{sent.msg_id}' body=b'message body'>"


@pytest.mark.parametrize("end", ["later", "nothing", "raises", "exits"])
def test_a_failed_callback_gets_the_message_again(broker: Broker, end: str) -> None:
    times: list[int] = []
    done = threading.Event()

    def callback(msg: ReceivedMessage) -> ConsumeStatus | None:
        times.append(msg.reconsume_times)
        if msg.reconsume_times == 1:
            done.set()
            return ConsumeStatus.CONSUME_SUCCESS
        if end == "raises":
            raise KeyError("no such order")
        if end == "exits":
            raise SystemExit
        return ConsumeStatus.RECONSUME_LATER if end == "later" else None

    consumer = consumer_of(broker)
    consumer._arguments["from_where"] = "first"
    consumer.set_thread_count(2)
    consumer.set_message_batch_max_size(1)
    consumer.subscribe("TopicTest", callback, "XXX")
    with producer_of(broker) as producer, consumer:
        producer.send_sync(message())
        assert done.wait(20)
    assert times == [0, 1]


def test_every_topic_has_its_own_callback(broker: Broker) -> None:
    broker.create_topics(topics=["Other"])
    got: dict[str, str] = {}
    both = threading.Barrier(3)

    def callback(name: str) -> Any:
        def called(msg: ReceivedMessage) -> ConsumeStatus:
            got[msg.topic] = name
            both.wait(20)
            return ConsumeStatus.CONSUME_SUCCESS

        return called

    consumer = consumer_of(broker)
    consumer._arguments["from_where"] = "first"
    consumer.subscribe("TopicTest", callback("first"))
    consumer.subscribe("Other", callback("second"), "*")
    broker.send("TopicTest", b"1")
    broker.send("Other", b"2")
    with consumer:
        both.wait(20)
    assert got == {"TopicTest": "first", "Other": "second"}


def test_broadcasting_goes_to_every_member(broker: Broker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = threading.Barrier(3)

    def callback(msg: ReceivedMessage) -> ConsumeStatus:
        seen.wait(20)
        return ConsumeStatus.CONSUME_SUCCESS

    consumers = []
    for name in ("one", "two"):
        consumer = consumer_of(broker, message_model=MessageModel.BROADCASTING)
        consumer.set_instance_name(name)
        consumer._arguments["from_where"] = "first"
        consumer.subscribe("TopicTest", callback)
        consumers.append(consumer)
    broker.send("TopicTest", b"1")
    with consumers[0], consumers[1]:
        seen.wait(20)


@pytest.mark.parametrize(
    "local, check, delivered",
    [
        (TransactionStatus.COMMIT, None, 1),
        (TransactionStatus.ROLLBACK, None, 0),
        (TransactionStatus.UNKNOWN, TransactionStatus.COMMIT, 1),
        (ValueError("raised"), TransactionStatus.COMMIT, 1),
        ("no status", TransactionStatus.COMMIT, 1),
    ],
)
def test_transactions(broker: Broker, local: Any, check: TransactionStatus | None, delivered: int) -> None:
    seen: list[tuple[str, ReceivedMessage, Any]] = []

    def local_execute(msg: ReceivedMessage, user_args: Any) -> Any:
        seen.append(("local", msg, user_args))
        if isinstance(local, Exception):
            raise local
        return local

    def check_callback(msg: ReceivedMessage) -> Any:
        seen.append(("check", msg, None))
        if check is None:
            raise AssertionError("a transaction that has ended is asked for")
        return check

    producer = TransactionMQProducer("test-transactions", check_callback, timeout=3000)
    producer.set_name_server_address(broker.namesrv_addr)
    with producer:
        result = producer.send_message_in_transaction(message(), local_execute, {"order": 42})
        assert result.status == SendStatus.OK
        if delivered:
            broker.wait_for("TopicTest", timeout_s=20)
    kind, first, user_args = seen[0]
    assert (kind, first.body, first.tags, first.id) == ("local", b"message body", b"XXX", result.msg_id)
    assert user_args == {"order": 42}
    assert {kind for kind, _, _ in seen[1:]} == ({"check"} if check is not None else set())
    assert len(broker.messages("TopicTest")) == delivered


def test_errors_are_those_of_the_package(broker: Broker) -> None:
    assert issubclass(PushConsumerStartFailed, ConsumerException)
    assert issubclass(ProducerSendAsyncFailed, ProducerException)
    assert issubclass(MallocFailed, RocketMQException)
    with pytest.raises(NullPointerException, match="call start"):
        Producer("test").send_sync(message())
    consumer = consumer_of(broker)
    with pytest.raises(PushConsumerStartFailed, match="topic"):
        consumer.start()
    producer = producer_of(broker)
    with producer:
        with pytest.raises(RocketMQException, match="before start"):
            producer.set_timeout(1)
        wrong = message()
        wrong.set_property("a\x01", "b")
        with pytest.raises(ProducerSendSyncFailed):
            producer.send_sync(wrong)
        with pytest.raises(ProducerSendOnewayFailed):
            producer.send_oneway(wrong)
    with pytest.raises(ProducerSendSyncFailed, match="closed"):
        producer.send_sync(message())


def test_clients_start_again_after_their_end(broker: Broker) -> None:
    seen: list[bytes] = []

    def callback(received: ReceivedMessage) -> ConsumeStatus:
        seen.append(received.body)
        return ConsumeStatus.CONSUME_SUCCESS

    producer = producer_of(broker)
    consumer = PushConsumer("again")
    consumer.set_name_server_address(broker.namesrv_addr)
    consumer.subscribe("TopicTest", callback)
    for body in ("first", "second"):
        producer.start()
        consumer.start()
        producer.send_sync(message(body))
        broker.wait_until(lambda body=body: body.encode() in seen, timeout_s=30)
        with pytest.raises(RocketMQException, match="before start"):
            consumer.set_thread_count(2)
        consumer.shutdown()
        producer.shutdown()
        with pytest.raises(ProducerSendSyncFailed):
            producer.send_sync(message(body))
    consumer.set_thread_count(2)  # a client that has ended may be set anew
    consumer.subscribe("TopicTest", callback, "XXX")
    assert set(seen) == {b"first", b"second"}
