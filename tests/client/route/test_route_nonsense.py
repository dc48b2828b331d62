"""A name server that answers nonsense: an error of a client that names the server, and the next route is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client.net.raw_server import Connection, RawServer

from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.producer.producer import Producer
from mqfast.client.route.route_table import TopicRoute, decode_route
from mqfast.client.values import MessageQueue
from mqfast.errors import BrokerError, ClientError, FieldError
from mqfast.message import Message
from mqfast.remoting.command import RemotingCommand, encode


def route(
    addresses: dict[str, Any] | None = None, queues: object = 1, order: str | None = None, **more: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "brokerDatas": [{"brokerAddrs": addresses or {"0": "h:1"}, "brokerName": "a", "cluster": "c"}],
        "queueDatas": [{"brokerName": "a", "perm": 6, "readQueueNums": queues, "writeQueueNums": queues}],
        **more,
    }
    return found if order is None else {**found, "orderTopicConf": order}


def decoded(found: dict[str, Any]) -> TopicRoute:
    return decode_route("T", json.dumps(found).encode())


def short(given: object) -> str:
    return ascii(given)[:16]


UNREADABLE = [
    b"",
    b"no JSON",
    b"[" * 100_000,
    json.dumps(route(queues=2_000_000_000)).encode(),
    json.dumps(route(queues=10**30)).encode(),
    json.dumps(route(order=";".join(["a:99999"] * 20))).encode(),
    json.dumps(route(brokerDatas=5)).encode(),
]


@pytest.mark.parametrize("body", UNREADABLE, ids=short)
def test_invalid_route_is_an_error_with_bounded_memory(body: bytes) -> None:
    with pytest.raises(FieldError):
        decode_route("T", body)


@pytest.mark.parametrize("key", ["\u00b2", "--5", "-", "", "9" * 5000, "\u0665", "0x0"], ids=short)
def test_a_broker_id_that_is_no_number_names_no_broker(key: str) -> None:
    assert decoded(route({key: "h:2", "0": "h:1"})).brokers["a"].addresses == {0: "h:1"}
    assert decoded(route({key: "h:2"})).publish_queues() == ()


@pytest.mark.parametrize("count", ["\u00b2", "-1", "", "9" * 5000, "\u0665", "1e3"], ids=short)
def test_a_count_of_an_order_that_is_no_number_is_left_out(count: str) -> None:
    assert decoded(route(order=f"b:{count};a:2")).publish_queues() == (
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
    )


class Names:
    """A name server whose routes are ``body`` while that is set."""

    def __init__(self, body: bytes) -> None:
        self.body: bytes | None = body

    def __call__(self, one: Connection, request: RemotingCommand) -> bool:
        if self.body is not None:
            one.send(encode(request.response(0, None, self.body)))
        return self.body is not None


@pytest.mark.parametrize("body", UNREADABLE, ids=short)
def test_clients_report_an_invalid_response_and_continue(body: bytes) -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        names = server.names = Names(body)
        with Producer("g", server.address) as producer:
            sends = (
                lambda: producer.send("T", b"x"),
                lambda: producer.send_future(Message("T", b"x")).result(20),
                lambda: producer.send_batch([Message("T", b"x")]),
                lambda: producer.queues("T"),
            )
            for send in sends:
                with pytest.raises(BrokerError, match=f"route of topic T: {server.address}: the answer cannot be read"):
                    send()
            assert [type(end) for end in producer.send_many([Message("T", b"x")] * 2)] == [BrokerError] * 2
            consumer = PushConsumer("c", server.address, topics="T")
            with pytest.raises(BrokerError, match="the answer cannot be read"):
                consumer.start()
            names.body = None
            assert producer.send("T", b"x").ok
            assert producer.send_future(Message("T", b"x")).result(20).ok


@pytest.mark.parametrize(
    "address", ["", "no port", "h:99999", "x" * 300 + ":1", "a..b:1", "a\0b:1", "\ud800:1", "h:-1"], ids=short
)
def test_an_address_that_is_none(address: str) -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        names = server.names = Names(json.dumps(route({"0": address}, queues=4)).encode())
        with Producer("g", server.address, retries=0) as producer:
            with pytest.raises(ClientError) as caught:
                producer.send("T", b"x")
            assert not getattr(caught.value, "maybe_stored", False)
            with pytest.raises(ClientError):
                producer.send_future(Message("T", b"x")).result(20)
            names.body = None
            assert producer.send("U", b"x").ok
