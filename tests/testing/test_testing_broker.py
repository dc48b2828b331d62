"""mqfast.testing.Broker: what a test sends, sees, waits for and resets."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from asking import call, send

from mqfast.client.values import MessageQueue, SendStatus
from mqfast.errors import BrokerError, ConfigError, UsageError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.testing import Broker


def test_a_sent_message_is_visible() -> None:
    with Broker(topics={"orders": 4}) as broker:
        first, second = broker.send("orders", "42", b"43", tags="new", keys=["a", "b"])
        assert first.ok
        assert first.status is SendStatus.SEND_OK
        assert first.message_queue.broker_name == "broker-a"
        broker.send("orders", "44", tags="paid", queue_id=2, properties={"colour": "red"})
        assert [one.body for one in broker.messages("orders")] == [b"42", b"43", b"44"]
        assert [one.body for one in broker.messages("orders", tags="new || old")] == [b"42", b"43"]
        assert [one.body for one in broker.messages("orders", key="b")] == [b"42", b"43"]
        last = broker.messages("orders", tags="paid", queue_id=2)[-1]
        assert last.queue == MessageQueue("orders", "broker-a", 2)
        assert last.properties["colour"] == "red"
        assert broker.messages("nothing") == []
        (found,) = broker.assert_sent("orders", body="43", tags="new", key="a", times=1)
        assert found.msg_id == second.msg_id
        assert found.offset_msg_id == second.offset_msg_id


def test_a_client_finds_the_broker_by_the_name_server() -> None:
    with Broker(topics={"orders": 3}) as broker:
        route = call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
        assert route.code == 0
        assert broker.addresses["broker-a"].encode() in route.body
        assert send(broker.addresses["broker-a"], "orders", b"by the wire", 1).code == 0
        (message,) = broker.wait_for("orders", body=b"by the wire", timeout_s=60)
        assert message.queue_id == 1
        (asked,) = broker.requests(RequestCode.SEND_MESSAGE_V2)
        assert (asked.name, asked.server, asked.body, asked.answer) == (
            "SEND_MESSAGE_V2",
            "broker-a",
            b"by the wire",
            0,
        )
        assert asked.fields["b"] == "orders"
        assert broker.requests()[0].server == "namesrv-1"
        assert broker.requests(RequestCode.PULL_MESSAGE) == []


def test_topics_are_made_by_a_send_unless_they_may_not() -> None:
    with Broker(auto_create_topics=False) as broker:
        with pytest.raises(BrokerError, match="not exist") as caught:
            broker.send("orders", "42")
        assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
        broker.create_topic("orders", 2)
        broker.send("orders", "42")
        broker.assert_sent("orders", times=1)
    with Broker() as broker:
        broker.send("orders", "42")
        broker.assert_sent("orders", body="42", times=1)


def test_a_new_topic_takes_no_other_from_the_name_server() -> None:
    with Broker(topics=["orders"]) as broker:
        for topic in ("first", "second"):
            assert send(broker.addresses["broker-a"], topic, b"42").code == 0
        for topic in ("orders", "first", "second"):
            assert call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic).code == 0


def test_waiting_ends_with_the_message() -> None:
    with Broker(topics=["orders"]) as broker:
        later = threading.Timer(0.1, send, [broker.addresses["broker-a"], "orders", b"late"])
        later.start()
        assert [one.body for one in broker.wait_for("orders", timeout_s=600)] == [b"late"]
        later.join()


def test_a_failure_describes_the_cluster() -> None:
    with Broker(topics=["orders"], groups=["billing"]) as broker:
        broker.send("orders", "42", "43")
        broker.send("later", "44", delay_s=3600)
        send(broker.addresses["broker-a"], "orders", b"by the wire")
        with pytest.raises(AssertionError) as caught:
            broker.wait_for("orders", 5, timeout_s=0.05)
        text = str(caught.value)
        assert text.startswith("wait_for: expected 5 messages in orders within 0.05 s, found 3\n")
        for line in ("broker-a: running", "orders: 3 messages", "waiting for their time: 1", "faults: none"):
            assert line in text
        assert "SEND_MESSAGE_V2 orders" in text
        assert "b'44'" in text
        with pytest.raises(AssertionError, match="expected 1 messages in orders, body=b'42', tags='x', found 0"):
            broker.assert_sent("orders", body="42", tags="x", times=1)
        with pytest.raises(AssertionError, match="expected a message in other"):
            broker.assert_sent("other")
        with pytest.raises(AssertionError, match="expected no message in orders, found 3"):
            broker.assert_nothing_sent("orders")
        with pytest.raises(AssertionError, match="expected 1 members of group billing within"):
            broker.wait_members("billing", 1, timeout_s=0.01)
        with pytest.raises(AssertionError, match="expected group billing to have consumed all of orders"):
            broker.wait_consumed("billing", "orders", timeout_s=0.01)
        with pytest.raises(AssertionError, match=r"expected <lambda> to be true within 0\.01 s"):
            broker.wait_until(lambda: False, timeout_s=0.01)
        broker.assert_nothing_sent("nothing")
        broker.wait_until(lambda: True)


def test_a_failed_wait_in_an_event_loop_advises_a_thread() -> None:
    async def wait(broker: Broker) -> None:
        broker.wait_for("orders", timeout_s=0.01)

    with Broker() as broker:
        with pytest.raises(AssertionError, match="expected 1 messages") as caught:
            asyncio.run(wait(broker))
        assert "asyncio.to_thread" in str(caught.value)
        with pytest.raises(AssertionError, match="expected 1 messages") as caught:
            broker.wait_for("orders", timeout_s=0.01)
        assert "asyncio.to_thread" not in str(caught.value)


def test_a_reset_leaves_only_the_first_topics() -> None:
    with Broker(topics=["orders"], groups=["billing"]) as broker:
        address = broker.addresses["broker-a"]
        for _ in range(3):
            broker.prepare_reset()
            broker.send("orders", "42")
            broker.send("other", "43")
            broker.send("later", "44", delay_s=3600)
            fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 1}
            assert call(address, RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == 0
            assert broker.offset("billing", "orders") == {MessageQueue("orders", "broker-a", 0): 1}
            broker.clock.advance(10)
            broker.reset()
            assert broker.addresses["broker-a"] == address
            assert broker.messages("orders") == broker.messages("other") == []
            assert broker.offset("billing", "orders") == {}
            assert broker.scheduled() == []
            assert broker.requests() == []
            assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
            assert call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").code == 0
            broker.wait_until(
                lambda: call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="other").code == 17,
                timeout_s=60,
            )
            assert broker.send("orders", "42", queue_id=0)[0].queue_offset == 0
            broker.reset()


@pytest.mark.parametrize(
    "topic, body, fields, expected",
    [
        ("bad topic", "42", {}, "illegal characters"), (5, "42", {}, "expected the name of a topic, found 5"),
        ("orders", 5, {}, "body: expected bytes or text, found 5"), ("orders", None, {}, "found None"),
        ("orders", "42", {"delay_s": -1}, "delay_s: expected seconds"),
        ("orders", "42", {"delay_level": -3}, "delay_level: expected a level"),
        ("orders", "42", {"delay_s": 1, "delay_level": 1}, "expected one delay"),
        ("orders", "42", {"tag": "new"}, "send: expected .* found tag"),
        ("orders", "42", {"keys": 5}, "keys: expected"),
        ("orders", "42", {"properties": {"TAGS": "new"}}, "found 'TAGS', which is RocketMQ's own: use tags="),
        ("orders", "42", {"properties": {"TRAN_MSG": "true"}}, "found 'TRAN_MSG', .* TransactionProducer"),
        ("orders", "42", {"properties": {"RETRY_TOPIC": "x"}}, "found 'RETRY_TOPIC', .* brokers alone set it"),
    ],
)  # fmt: skip
def test_messages_that_no_client_can_send_are_refused(
    topic: Any, body: Any, fields: dict[str, Any], expected: str
) -> None:
    with Broker(topics=["orders"]) as broker:
        with pytest.raises(UsageError, match=expected):
            broker.send(topic, body, **fields)
        broker.assert_nothing_sent("orders")
        broker.send("%DLQ%billing", "42", properties={"RETRY_TOPIC": "orders"})  # as a broker writes it


def test_attributes_of_a_running_broker_are_errors_before_the_start() -> None:
    broker = Broker()
    for name in ("faults", "clock", "namesrv_addr", "addresses"):
        with pytest.raises(UsageError, match="a broker that is started"):
            getattr(broker, name)


def test_a_reset_keeps_connections() -> None:
    with Broker(topics=["orders"]) as broker:
        address = broker.addresses["broker-a"]

        async def flow() -> None:
            client = RemotingClient()
            channel = await client.channel(address)
            fields = {"topic": "orders", "queueId": "0"}
            assert (await channel.call(RequestCode.GET_MAX_OFFSET, fields)).ext_fields["offset"] == "0"
            broker.send("orders", "42", queue_id=0)
            assert (await channel.call(RequestCode.GET_MAX_OFFSET, fields)).ext_fields["offset"] == "1"
            broker.reset()
            assert (await channel.call(RequestCode.GET_MAX_OFFSET, fields)).ext_fields["offset"] == "0"
            await client.close()

        asyncio.run(flow())


def test_a_kept_store_is_opened_by_the_next_broker(tmp_path: Path) -> None:
    with Broker(store=tmp_path / "store") as broker:
        broker.send("orders", "42")
        with pytest.raises(UsageError, match="a store that is not kept"):
            broker.reset()
    with Broker(store=tmp_path / "store") as broker:
        broker.assert_sent("orders", body="42", times=1)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"brokers": 0}, "brokers: expected a whole number from 1 to 26"),
        ({"name_servers": True}, "name_servers: expected a whole number"),
        ({"topics": ["a b"]}, "topics: The specified topic: a b, contains illegal characters"),
        ({"groups": ["a b"]}, r"groups: expected 1 to 127 of the characters .*, found 'a b'"),
        ({"groups": [5]}, "groups: expected 1 to 127 of the characters .*, found 5"),
        ({"virtual_time": 1}, "virtual_time: expected True or False, found 1"),
        ({"auto_create_topics": "no"}, "auto_create_topics: expected True or False, found 'no'"),
        ({"retry_at_once": "no"}, "retry_at_once: expected True or False, found 'no'"),
        ({"process": "no"}, "process: expected True or False, found 'no'"),
        ({"topics": {"orders": 0}}, "topics: queues of orders: expected a whole number from 1 to 1024, found 0"),
    ],
)
def test_wrong_arguments_are_an_error_at_once(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        Broker(**arguments)


def test_wrong_calls_are_an_error() -> None:
    broker = Broker()
    with pytest.raises(UsageError, match="a broker that is started"):
        broker.send("orders", "42")
    with broker:
        with pytest.raises(UsageError, match="a broker that is not started"):
            broker.start()
        with pytest.raises(UsageError, match=r"send: expected .*, found colour"):
            broker.send("orders", "42", colour="red")
        with pytest.raises(UsageError, match="queue_id: expected a whole number from 0 to 3, found 7"):
            broker.send("orders", "42", queue_id=7)
        with pytest.raises(UsageError, match="broker: expected broker-a, found 'x'"):
            broker.send("orders", "42", broker="x")
        with pytest.raises(UsageError, match="expected body, tags, key or queue_id to match, found colour"):
            broker.wait_for("orders", colour="red")
        with pytest.raises(UsageError, match="broker: expected broker-a or namesrv-1, found 'x'"):
            broker.kill("x")
        for wait in (
            lambda timeout_s: broker.wait_for("orders", timeout_s=timeout_s),
            lambda timeout_s: broker.wait_consumed("g", timeout_s=timeout_s),
            lambda timeout_s: broker.wait_members("g", 1, timeout_s=timeout_s),
            lambda timeout_s: broker.wait_until(lambda: False, timeout_s=timeout_s),
        ):
            for wrong in ("5", -1, None, float("nan")):
                with pytest.raises(UsageError, match="timeout_s: expected 0 to 86400 seconds, found"):
                    wait(wrong)
        with pytest.raises(UsageError, match="body: expected bytes or text, found 5"):
            broker.assert_sent("orders", body=5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="count: expected a whole number"):
            broker.wait_for("orders", "2")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="order: expected True or False, found 'yes'"):
            broker.create_topic("orders", order="yes")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="create_topic: expected the name of a topic, found 5"):
            broker.create_topic(5)  # type: ignore[arg-type]
    broker.close()


def test_settings_are_the_brokers() -> None:
    with Broker(config={"maxMessageSize": "1000"}) as broker:
        with pytest.raises(BrokerError) as caught:
            broker.send("orders", b"x" * 1001)
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert send(broker.addresses["broker-a"], "orders", b"x" * 1001).code == ResponseCode.MESSAGE_ILLEGAL
    with pytest.raises(ConfigError, match=r"transactionCheckMax: expected a whole number .*, found 'often'"):
        Broker(config={"transactionCheckMax": "often"})
    with pytest.raises(ConfigError, match=r"found maxMesageSize; did you mean maxMessageSize"):
        Broker(config={"maxMesageSize": "1000"})
    with pytest.raises(ConfigError, match=r"maxMessageSize: expected a whole number of 32 bits .*, found 'abc'"):
        Broker(config={"maxMessageSize": "abc"})  # a broker takes the default then
    with Broker(config={"sendMessageThreadPoolNums": 8}) as broker:  # RocketMQ's, without effect here
        broker.send("orders", b"x")


def test_a_message_of_four_mebibytes_fits() -> None:
    with Broker(topics=["orders"]) as broker:
        assert send(broker.addresses["broker-a"], "orders", b"x" * (4 << 20), timeout_ms=20_000).code == 0
        (found,) = broker.messages("orders")
        assert len(found.body) == 4 << 20


def test_everything_listens_on_the_loopback_interface() -> None:
    with Broker(name_servers=2) as broker:
        for address in [*broker.namesrv_addr.split(";"), *broker.addresses.values()]:
            host, _, port = address.partition(":")
            assert host == "127.0.0.1"
            with socket.create_connection((host, int(port)), 5):
                pass
