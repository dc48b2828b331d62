"""Sends of gRPC clients are ordinary messages for all others; every refusal has its code."""

from __future__ import annotations

import time

import pytest
from grpc_client import GrpcClient, GrpcFailure

from mqfast.broker.grpc.codes import Code
from mqfast.broker.grpc.sends import queue_of_group
from mqfast.grpc import messages as m
from mqfast.testing import Broker


def message(topic: str = "plain", body: bytes = b"body", **system: object) -> m.GrpcMessage:
    given = {"message_id": "0102FC000000012D7D0B1CA4E300000001", "message_type": 1, "born_timestamp": 1700000000123}
    return m.GrpcMessage(
        m.Resource("", topic),
        {"colour": "red"},
        m.SystemProperties(**{**given, **system}),
        body,  # type: ignore[arg-type]
    )


def send(client: GrpcClient, *messages: m.GrpcMessage) -> m.SendMessageResponse:
    return client.call("SendMessage", m.SendMessageRequest(list(messages)), m.SendMessageResponse)


def code_of(answer: m.Message) -> int:
    status: m.Status = answer.status  # type: ignore[attr-defined]
    return status.code


def test_a_message_is_stored_as_a_remoting_client_sees_it(broker: Broker, client: GrpcClient) -> None:
    answer = send(client, message(tag="blue", keys=["k1", "k2"], trace_context="trace"))
    assert code_of(answer) == Code.OK
    assert code_of(answer.entries[0]) == Code.OK
    assert answer.entries[0].message_id == "0102FC000000012D7D0B1CA4E300000001"
    stored = next(seen for seen in broker.messages("plain") if seen.tags == "blue")
    assert stored.body == b"body"
    assert stored.properties["colour"] == "red"
    assert stored.properties["UNIQ_KEY"] == answer.entries[0].message_id
    assert stored.keys == ["k1", "k2"]
    assert stored.queue_offset == answer.entries[0].offset


@pytest.mark.parametrize("size", [16 * 1024, 16 * 1024 + 1])
def test_the_limit_of_properties_counts_names_values_tag_and_keys(client: GrpcClient, size: int) -> None:
    """What the broker adds, and what separates properties, does not count."""
    rest = size - len("namevaluekey")
    system = message(tag="t" * (rest - 100), keys=["key", "k" * 100]).system_properties
    answer = send(client, m.GrpcMessage(m.Resource("", "plain"), {"name": "value"}, system, b"x"))
    assert code_of(answer) == (Code.OK if size == 16 * 1024 else Code.MESSAGE_PROPERTIES_TOO_LARGE)


def test_a_batch_has_an_entry_for_each_message(broker: Broker, client: GrpcClient) -> None:
    answer = send(client, *(message("one", b"%d" % number) for number in range(5)))
    assert code_of(answer) == Code.OK
    assert [entry.offset for entry in answer.entries] == list(range(5))
    assert [stored.body for stored in broker.messages("one")] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (message(body=b""), Code.MESSAGE_BODY_EMPTY),
        (message(body=b"x" * (5 << 20)), Code.MESSAGE_BODY_TOO_LARGE),
        (message(topic=""), Code.ILLEGAL_TOPIC),
        (message(topic="a b"), Code.ILLEGAL_TOPIC),
        (message(topic="rmq_sys_wheel_timer"), Code.ILLEGAL_TOPIC),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=[""]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (message(message_type=0), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=2, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),  # a NORMAL topic
        (message(message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=5), Code.NOT_IMPLEMENTED),
        (m.GrpcMessage(m.Resource("", "plain"), {"TRAN_MSG": "true"}, message().system_properties, b"x"),
         Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (m.GrpcMessage(m.Resource("", "plain"), {"a": "b\x02TRAN_MSG\x01true"}, message().system_properties, b"x"),
         Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (m.GrpcMessage(m.Resource("", "plain"), {"a": "b" * 20_000}, message().system_properties, b"x"),
         Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (m.GrpcMessage(m.Resource("", "plain"), {str(n): "b" for n in range(129)}, message().system_properties, b"x"),
         Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(trace_context="c" * 40_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (m.GrpcMessage(m.Resource("", "plain"), {}, None, b"x"), Code.MESSAGE_CORRUPTED),
    ],
)  # fmt: skip
def test_refusals_have_the_codes_of_the_api(client: GrpcClient, given: m.GrpcMessage, code: int) -> None:
    answer = send(client, given)
    assert code_of(answer) == code
    assert answer.status is not None
    assert answer.status.message


def test_calls_without_a_client_id_or_with_other_paths_are_refused(broker: Broker, client: GrpcClient) -> None:
    with GrpcClient(broker.addresses["broker-a"], client_id="") as nobody:
        assert code_of(send(nobody, message())) == Code.CLIENT_ID_REQUIRED
    with pytest.raises(GrpcFailure) as caught:
        client.call("NoSuchMethod", m.SendMessageRequest(), m.SendMessageResponse)
    assert caught.value.args[0] == 12  # UNIMPLEMENTED
    with pytest.raises(GrpcFailure) as caught:
        client.call("/other.Service/Call", m.SendMessageRequest(), m.SendMessageResponse)
    assert caught.value.args[0] == 12


def test_routes_name_the_address_that_the_client_used(client: GrpcClient) -> None:
    used = m.Endpoints(3, [m.Address("broker.example", 18081)])
    answer = client.call("QueryRoute", m.QueryRouteRequest(m.Resource("", "plain"), used), m.QueryRouteResponse)
    assert code_of(answer) == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    for queue in answer.message_queues:
        assert queue.broker is not None
        assert queue.broker.endpoints == used
        assert queue.permission == 4
        assert queue.accept_message_types == [1]


def test_message_groups_go_to_the_queues_that_java_chooses() -> None:
    queues = [
        queue_of_group(group, count) for group in ("", "a", "order-1", "order-2", "ü") for count in (1, 4, 8, 1000)
    ]
    # By Guava 31's Hashing.consistentHash of String.hashCode.
    assert queues == [0, 0, 0, 0, 0, 0, 0, 346, 0, 3, 3, 489, 0, 2, 2, 184, 0, 0, 0, 535]
    assert all(queue_of_group(str(number), 1) == 0 for number in range(50))
    assert {queue_of_group(str(number), 4) for number in range(100)} == {0, 1, 2, 3}


def test_delayed_messages_can_be_recalled(broker: Broker, client: GrpcClient) -> None:
    broker.admin().create_topic("later", kind="DELAY")
    due = int(time.time() * 1000) + 60_000
    answer = send(client, message("later", message_type=3, delivery_timestamp=due))
    assert code_of(answer) == Code.OK
    handle = answer.entries[0].recall_handle
    assert handle
    request = m.RecallMessageRequest(m.Resource("", "later"), handle)
    recalled = client.call("RecallMessage", request, m.RecallMessageResponse)
    assert code_of(recalled) == Code.OK
    assert recalled.message_id == answer.entries[0].message_id
