"""Consumers of gRPC get every message until its ack, by POP; handles that are not the broker's change nothing."""

from __future__ import annotations

import itertools
import threading

import pytest
from grpc_client import GrpcClient, GrpcFailure

from mqfast.broker.grpc.codes import Code
from mqfast.grpc import messages as m
from mqfast.testing import Broker

numbers = itertools.count()


def consumer(
    broker: Broker, topic: str, group: str, *, kind: int = 3, client_id: str = "", await_ms: int | None = None
) -> GrpcClient:
    """Return a client with settings of a consumer."""
    client = GrpcClient(broker.addresses["broker-a"], client_id or f"consumer-{next(numbers)}")
    entry = m.SubscriptionEntry(m.Resource("", topic), m.FilterExpression(1, "*"))
    subscription = m.Subscription(m.Resource("", group), [entry], long_polling_timeout=await_ms)
    settings = m.Settings(client_type=kind, subscription=subscription)
    stream = client.open("Telemetry")
    stream.send(m.TelemetryCommand(settings=settings))
    answer = stream.next(m.TelemetryCommand)
    assert answer is not None
    assert answer.settings is not None
    assert answer.settings.subscription is not None
    assert answer.settings.subscription.receive_batch_size == 32
    assert answer.settings.backoff_policy is not None
    assert answer.settings.backoff_policy.max_attempts == 17
    assert answer.settings.metric == m.Metric(False)
    return client


def receive(client: GrpcClient, topic: str, group: str, **more: object) -> tuple[int, list[m.GrpcMessage]]:
    given = {"batch_size": 32, "invisible_duration": 30_000, "long_polling_timeout": 0, **more}
    request = m.ReceiveMessageRequest(
        m.Resource("", group),
        m.MessageQueue(m.Resource("", topic)),
        **given,  # type: ignore[arg-type]
    )
    answers = list(client.stream("ReceiveMessage", request, m.ReceiveMessageResponse))
    assert answers[0].status is not None
    return answers[0].status.code, [answer.message for answer in answers if answer.message is not None]


def handle_of(message: m.GrpcMessage) -> str:
    assert message.system_properties is not None
    assert message.system_properties.receipt_handle is not None
    return message.system_properties.receipt_handle


def ack(client: GrpcClient, topic: str, group: str, *handles: str) -> list[int]:
    entries = [m.AckMessageEntry("id", handle) for handle in handles]
    request = m.AckMessageRequest(m.Resource("", group), m.Resource("", topic), entries)
    answer = client.call("AckMessage", request, m.AckMessageResponse)
    return [entry.status.code for entry in answer.entries if entry.status is not None]


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"received-{next(numbers)}"
    broker.create_topic(name, 2)
    return name


def test_messages_are_received_once_and_acked(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        assert receive(client, topic, "readers") == (Code.MESSAGE_NOT_FOUND, [])
        broker.send(topic, *(b"%d" % number for number in range(20)), tags="t", keys="k", properties={"p": "q"})
        messages: list[m.GrpcMessage] = []
        while len(messages) < 20:
            code, more = receive(client, topic, "readers", long_polling_timeout=5_000)
            assert code == Code.OK
            messages += more
        assert {message.body for message in messages} == {b"%d" % number for number in range(20)}
        first = messages[0]
        assert first.user_properties["p"] == "q"
        system = first.system_properties
        assert system is not None
        assert (system.tag, system.keys, system.delivery_attempt, system.message_type) == ("t", ["k"], 1, 1)
        assert first.topic == m.Resource("", topic)
        assert set(ack(client, topic, "readers", *map(handle_of, messages))) == {Code.OK}
        assert receive(client, topic, "readers") == (Code.MESSAGE_NOT_FOUND, [])


def test_a_held_call_gets_a_message_that_arrives(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        assert receive(client, topic, "readers")[0] == Code.MESSAGE_NOT_FOUND
        sender = threading.Timer(0.2, broker.send, [topic, b"late"])
        sender.start()
        code, messages = receive(client, topic, "readers", long_polling_timeout=20_000)
        assert (code, [message.body for message in messages]) == (Code.OK, [b"late"])
        sender.join()


def test_an_empty_answer_comes_before_the_deadline(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        request = m.ReceiveMessageRequest(
            m.Resource("", "readers"), m.MessageQueue(m.Resource("", topic)), None, 32, 30_000, False, 20_000
        )
        answers = list(client.stream("ReceiveMessage", request, m.ReceiveMessageResponse, grpc_timeout="800m"))
        assert [answer.status.code for answer in answers if answer.status] == [Code.MESSAGE_NOT_FOUND]


def test_a_request_without_a_polling_time_waits_as_the_settings_say(broker: Broker, topic: str) -> None:
    """Java's SDK up to 5.0.3 sends none: its simple consumers waited until the deadline, which an answer may miss."""
    request = m.ReceiveMessageRequest(
        m.Resource("", "readers"), m.MessageQueue(m.Resource("", topic)), None, 32, 30_000, False, 20_000
    )
    with consumer(broker, topic, "readers", await_ms=300) as client:
        assert receive(client, topic, "readers") == (Code.MESSAGE_NOT_FOUND, [])
        held = client.open("ReceiveMessage")
        held.send(request)
        held.end()
        assert receive(client, topic, "readers", long_polling_timeout=None) == (Code.MESSAGE_NOT_FOUND, [])
        broker.send(topic, b"for the longer wait")
        assert held.next(m.ReceiveMessageResponse) == m.ReceiveMessageResponse(m.Status(Code.OK, "OK"))


def test_tags_select_messages(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        receive(client, topic, "readers")
        broker.send(topic, b"1", tags="a")
        broker.send(topic, b"2", tags="b")
        broker.send(topic, b"3", tags="c")
        wanted = m.FilterExpression(1, "a || c")
        bodies: set[bytes] = set()
        while len(bodies) < 2:
            bodies |= {
                message.body
                for message in receive(client, topic, "readers", filter_expression=wanted, long_polling_timeout=2_000)[
                    1
                ]
            }
        assert bodies == {b"1", b"3"}


def test_a_changed_time_gives_a_new_handle_and_another_delivery(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        receive(client, topic, "readers")
        broker.send(topic, b"again")
        first = receive(client, topic, "readers", long_polling_timeout=5_000)[1][0]
        request = m.ChangeInvisibleDurationRequest(
            m.Resource("", "readers"), m.Resource("", topic), handle_of(first), 50
        )
        answer = client.call("ChangeInvisibleDuration", request, m.ChangeInvisibleDurationResponse)
        assert answer.status is not None
        assert answer.status.code == Code.OK
        assert answer.receipt_handle not in ("", handle_of(first))
        second = receive(client, topic, "readers", long_polling_timeout=15_000)[1][0]
        assert second.body == b"again"
        assert second.system_properties is not None
        assert second.system_properties.delivery_attempt == 2
        assert ack(client, topic, "readers", answer.receipt_handle) == [Code.INVALID_RECEIPT_HANDLE]
        assert ack(client, topic, "readers", handle_of(second)) == [Code.OK]


def test_a_refused_change_has_the_handle_of_the_request(broker: Broker, topic: str) -> None:
    """Java's SDK takes the handle before the status, and later acks by this handle."""
    with consumer(broker, topic, "readers") as client:
        receive(client, topic, "readers")
        broker.send(topic, b"kept")
        handle = handle_of(receive(client, topic, "readers", long_polling_timeout=5_000)[1][0])

        def change(invisible_ms: int) -> m.ChangeInvisibleDurationResponse:
            request = m.ChangeInvisibleDurationRequest(
                m.Resource("", "readers"), m.Resource("", topic), handle, invisible_ms
            )
            return client.call("ChangeInvisibleDuration", request, m.ChangeInvisibleDurationResponse)

        refused = change(13 * 3_600_000)
        assert refused.status is not None
        assert (refused.status.code, refused.receipt_handle) == (Code.ILLEGAL_INVISIBLE_TIME, handle)
        assert ack(client, topic, "readers", refused.receipt_handle) == [Code.OK]
        refused = change(20_000)
        assert refused.status is not None
        assert (refused.status.code, refused.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, handle)


def test_a_message_that_is_given_up_is_a_dead_letter(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        receive(client, topic, "readers")
        broker.send(topic, b"dead")
        message = receive(client, topic, "readers", long_polling_timeout=5_000)[1][0]
        request = m.ForwardMessageToDeadLetterQueueRequest(
            m.Resource("", "readers"), m.Resource("", topic), handle_of(message), "id", 17, 17
        )
        answer = client.call("ForwardMessageToDeadLetterQueue", request, m.StatusResponse)
        assert answer.status is not None
        assert answer.status.code == Code.OK
        assert b"dead" in [letter.body for letter in broker.dead_letters("readers")]


def test_no_part_of_a_handle_is_trusted(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        receive(client, topic, "readers")
        broker.send(topic, b"kept")
        handle = handle_of(receive(client, topic, "readers", long_polling_timeout=5_000)[1][0])
        parts = handle.split(" ")
        for position in (0, 1, 4, 5, 6, 7):  # 2 and 3 name no message: the time, and the queue of its records
            for text in ("", "x", "-1", "7", "99999999999999999999", "9" * 18, "\N{SUPERSCRIPT TWO}"):
                forged = " ".join([*parts[:position], text, *parts[position + 1 :]])
                if forged != handle:
                    code = ack(client, topic, "readers", forged)[0]
                    assert code in (Code.INVALID_RECEIPT_HANDLE, Code.OK, Code.TOPIC_NOT_FOUND), forged
        for forged in ("", " ", "1 2 3", handle + " 1 2 3"):
            assert ack(client, topic, "readers", forged) == [Code.INVALID_RECEIPT_HANDLE]
        # The message is still in flight: its own handle changes it.
        request = m.ChangeInvisibleDurationRequest(m.Resource("", "readers"), m.Resource("", topic), handle, 20_000)
        answer = client.call("ChangeInvisibleDuration", request, m.ChangeInvisibleDurationResponse)
        assert answer.status is not None
        assert answer.status.code == Code.OK


def test_pulls_and_offsets(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers") as client:
        group, queue = m.Resource("", "pullers"), m.MessageQueue(m.Resource("", topic), 1)
        broker.create_topics(groups=["pullers"])
        for _ in range(6):
            broker.send(topic, b"x")
        end = client.call("QueryOffset", m.QueryOffsetRequest(queue, 1), m.OffsetResponse).offset
        assert client.call("QueryOffset", m.QueryOffsetRequest(queue, 0), m.OffsetResponse).offset == 0
        pull = m.PullMessageRequest(group, queue, 0, 32)
        answers = list(client.stream("PullMessage", pull, m.PullMessageResponse))
        assert answers[0].status is not None
        assert answers[0].status.code == Code.OK
        assert len([answer for answer in answers if answer.message is not None]) == end
        assert answers[-1].next_offset == end
        updated = client.call("UpdateOffset", m.UpdateOffsetRequest(group, queue, end), m.StatusResponse)
        assert updated.status is not None
        assert updated.status.code == Code.OK
        assert client.call("GetOffset", m.GetOffsetRequest(group, queue), m.OffsetResponse).offset == end


def test_a_receive_needs_no_settings(broker: Broker, topic: str) -> None:
    """Python's SDK receives before the answer to its settings, and after a restart of the broker it sends none."""
    with GrpcClient(broker.addresses["broker-a"], "none") as client:
        assert receive(client, topic, "readers") == (Code.MESSAGE_NOT_FOUND, [])
        broker.send(topic, b"read")
        code, messages = receive(client, topic, "readers", long_polling_timeout=5_000)
        assert (code, [message.body for message in messages]) == (Code.OK, [b"read"])
        assert ack(client, topic, "readers", *map(handle_of, messages)) == [Code.OK]


def test_a_producer_receives_nothing(broker: Broker, topic: str) -> None:
    with GrpcClient(broker.addresses["broker-a"], "producer") as client:
        stream = client.open("Telemetry")
        publishing = m.Publishing([m.Resource("", topic)])
        stream.send(m.TelemetryCommand(settings=m.Settings(client_type=1, publishing=publishing)))
        assert stream.next(m.TelemetryCommand) is not None
        assert receive(client, topic, "readers") == (Code.UNRECOGNIZED_CLIENT_TYPE, [])


def test_assignments_name_the_queues_of_the_broker(broker: Broker, topic: str) -> None:
    with consumer(broker, topic, "readers", kind=2) as client:
        request = m.QueryAssignmentRequest(m.Resource("", topic), m.Resource("", "readers"))
        answer = client.call("QueryAssignment", request, m.QueryAssignmentResponse)
        assert [given.message_queue.id for given in answer.assignments if given.message_queue] == [-1]


def test_settings_without_a_side_end_the_stream(broker: Broker) -> None:
    with GrpcClient(broker.addresses["broker-a"], "nothing") as client:
        stream = client.open("Telemetry")
        stream.send(m.TelemetryCommand(settings=m.Settings(client_type=1)))
        with pytest.raises(GrpcFailure) as caught:
            stream.next(m.TelemetryCommand)
        assert caught.value.args[0] == 3  # INVALID_ARGUMENT
        answer = client.call("Heartbeat", m.HeartbeatRequest(None, 1), m.StatusResponse)
        assert answer.status is not None
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
