"""Faults, records and time of mqfast.testing.Broker for clients that speak gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from grpc_client import GrpcClient, GrpcFailure
from grpc_consumers import PUSH, ack, begin_receive, bodies_of, handle_of, open_consumer, receive

from mqfast.broker.grpc.codes import Code
from mqfast.grpc import IS_BUILT
from mqfast.grpc import messages as m
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.testing import Broker

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="a build without nghttp2")

SEND, POP, ACK = RequestCode.SEND_MESSAGE_V2, RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE
DEADLINE_EXCEEDED = 4


@pytest.fixture(scope="module")
def one() -> Iterator[Broker]:
    """A broker for tests that leave it as it was."""
    with Broker(topics={"plain": 1}, groups=["readers"]) as broker:
        yield broker


@pytest.fixture
def broker(one: Broker) -> Broker:
    one.reset()
    return one


@pytest.fixture
def client(broker: Broker) -> Iterator[GrpcClient]:
    with GrpcClient(broker.endpoints) as client:
        yield client


def sent(client: GrpcClient, body: bytes, **headers: str) -> int:
    """Send a message. Returns: the code of the answer."""
    properties = m.SystemProperties(message_id=f"0102FC000000012D7D0B1CA4E3{int(body):08X}", message_type=1)
    message = m.GrpcMessage(m.Resource("", "plain"), {}, properties, body)
    answer = client.call("SendMessage", m.SendMessageRequest([message]), m.SendMessageResponse, **headers)
    assert answer.status is not None
    return answer.status.code


def test_calls_are_recorded(broker: Broker, client: GrpcClient) -> None:
    assert sent(client, b"42") == Code.OK
    (asked,) = broker.requests(SEND)
    assert (asked.name, asked.method, asked.server) == ("SendMessage", "SendMessage", "broker-a")
    assert (asked.fields["topic"], asked.body, asked.body_bytes) == ("plain", b"42", 2)
    assert (asked.answer, asked.fault, asked.is_oneway) == (Code.OK, "", False)


def test_a_lost_answer_is_a_message_that_is_stored(broker: Broker, client: GrpcClient) -> None:
    with broker.faults.lose_answers(only=[SEND], times=1):
        with pytest.raises(GrpcFailure) as failure:
            sent(client, b"42", grpc_timeout="300m")
        assert failure.value.args[0] == DEADLINE_EXCEEDED
        assert sent(client, b"43") == Code.OK
    broker.assert_sent("plain", body=b"42", times=1)
    first, second = broker.requests(SEND)
    assert (first.answer, first.fault) == (None, "the answer is lost")
    assert (second.answer, second.fault) == (Code.OK, "")


def test_a_lost_request_is_a_message_that_is_not_stored(broker: Broker, client: GrpcClient) -> None:
    with broker.faults.lose_requests(only=[SEND]), pytest.raises(GrpcFailure):
        sent(client, b"42", grpc_timeout="300m")
    broker.assert_nothing_sent("plain")
    assert sent(client, b"43") == Code.OK


def test_an_answer_of_the_test_has_the_status_of_its_code(broker: Broker, client: GrpcClient) -> None:
    with broker.faults.busy(times=1):
        assert sent(client, b"42") == Code.TOO_MANY_REQUESTS
    with broker.faults.answer(ResponseCode.NO_PERMISSION, "not today", only=[SEND]):
        assert sent(client, b"42") == Code.FORBIDDEN
    assert [(asked.answer, asked.remark) for asked in broker.requests(SEND)][1] == (Code.FORBIDDEN, "not today")
    broker.assert_nothing_sent("plain")


def test_slow_calls_are_served_later(broker: Broker, client: GrpcClient) -> None:
    with broker.faults.slow(0.05), broker.faults.slow(0.05, only=[SEND]):
        assert sent(client, b"42") == Code.OK
    assert broker.requests(SEND)[0].fault == "0.1 s late"


def test_messages_of_a_receive_without_an_answer_come_again(broker: Broker, client: GrpcClient) -> None:
    broker.send("plain", b"42")
    with broker.faults.lose_answers(only=[POP]):
        call = begin_receive(client, "plain")
        broker.wait_until(lambda: any(asked.fault for asked in broker.requests(POP)))
        call.cancel()
    assert bodies_of(receive(client, "plain", long_polling_timeout=15_000)) == [b"42"]


def test_a_lost_ack_lets_a_message_come_again() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"], virtual_time=True) as broker:
        broker.send("plain", b"42")
        with open_consumer(broker.endpoints, "consumer", "plain") as consumer:
            (message,) = receive(consumer, "plain", invisible_duration=30_000)
            with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[ACK]):
                entries = [m.AckMessageEntry("id", handle_of(message))]
                request = m.AckMessageRequest(m.Resource("", "readers"), m.Resource("", "plain"), entries)
                answer = consumer.call("AckMessage", request, m.AckMessageResponse)
                assert answer.status is not None
                assert answer.status.code == Code.INTERNAL_SERVER_ERROR
            broker.clock.advance(29.9)
            assert receive(consumer, "plain") == []
            assert broker.clock.advance(0.2) == 1
            (again,) = receive(consumer, "plain", invisible_duration=30_000)
            assert ack(consumer, "plain", handle_of(again)) == [Code.OK]
            assert broker.clock.advance(timedelta(hours=1)) == 0


def test_an_advance_extends_what_a_push_consumer_works_on() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"], virtual_time=True) as broker:
        broker.send("plain", b"42")
        with open_consumer(broker.endpoints, "worker", "plain", kind=PUSH) as worker:
            (message,) = receive(worker, "plain", auto_renew=True, invisible_duration=None)
            assert broker.clock.advance(timedelta(hours=2)) == 0, "a message that is worked on came again"
            assert ack(worker, "plain", handle_of(message)) == [Code.OK]
            assert broker.clock.advance(timedelta(hours=2)) == 0


def test_a_wait_for_messages_ends_with_the_time_of_the_test() -> None:
    with Broker(topics={"plain": 1}, groups=["readers"], virtual_time=True) as broker:
        with open_consumer(broker.endpoints, "consumer", "plain") as consumer:
            call = begin_receive(consumer, "plain", long_polling_timeout=20_000)
            broker.wait_until(lambda: broker.requests(POP))
            broker.clock.advance(21)
            answer = call.next(m.ReceiveMessageResponse)
            assert answer is not None
            assert answer.status is not None
            assert answer.status.code == Code.MESSAGE_NOT_FOUND


def test_connections_are_dropped_and_refused(broker: Broker, client: GrpcClient) -> None:
    assert sent(client, b"42") == Code.OK
    assert broker.faults.drop_connections() == 1
    with pytest.raises((GrpcFailure, OSError)):
        sent(client, b"43")
    with broker.faults.refuse_connections(), pytest.raises((GrpcFailure, OSError)):
        with GrpcClient(broker.endpoints) as refused:
            sent(refused, b"44")
    with GrpcClient(broker.endpoints) as again:
        assert sent(again, b"45") == Code.OK
