"""Promises of client.md and of the stubs, each by public calls against a broker."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mqfast import errors
from mqfast.client import (
    ClientError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
    SendStatus,
    TransactionStatus,
)
from mqfast.errors import UsageError
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker

LONG_S = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": 1}) as one:
        yield one


def test_every_error_of_a_call_is_a_client_error(broker: Broker) -> None:
    producer = broker.producer(max_message_bytes=100)
    consumer = broker.puller(topics="t")
    calls: list[Any] = [
        lambda: producer.send("t", b"x" * 101),
        lambda: producer.send("t", b""),
        lambda: producer.send("no/topic", b"x"),
        lambda: producer.send(Message("t", b"x"), timeout_s=-1),
        lambda: producer.send("t", b"x", queue="none"),  # type: ignore[arg-type]
        lambda: producer.send("t", b"x", properties={"k": "v" * 40_000}),
        lambda: producer.recall("t", "none"),
        lambda: Producer("no group!"),
        lambda: Producer("g", send_timeout_s=-1),
        lambda: PushConsumer("g", topics="t", threads=0),
        lambda: consumer.poll(-1),
        lambda: consumer.commit({broker.producer().queues("t")[0]: -1}),
    ]
    for call in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert isinstance(caught.value, (UsageError, ValueError)), caught.value
    assert issubclass(errors.OffsetMoved, ClientError)


def test_each_message_of_send_many_has_a_result_or_an_error_in_its_place(broker: Broker) -> None:
    producer = broker.producer(max_message_bytes=100)
    given: list[Any] = [Message("t", b"1"), Message("t", b"x" * 101), "none", Message("t", b"2"), Message("t", b"")]
    ends = list(producer.send_many([*given, Message("t", b"3")]))
    assert [isinstance(one, SendResult) for one in ends] == [True, False, False, True, False, True]
    assert all(isinstance(one, (SendResult, ClientError)) for one in ends)
    assert [one.body for one in broker.messages("t")] == [b"1", b"2", b"3"]


def test_an_error_of_a_selector_stands_in_the_place_of_its_message(broker: Broker) -> None:
    def choose(queues: Any, message: Message) -> Any:
        if message.body == b"2":
            raise KeyError("no such customer")
        return queues[0]

    ends = list(broker.producer(selector=choose).send_many(Message("t", b"%d" % n) for n in range(1, 4)))
    assert [isinstance(one, SendResult) for one in ends] == [True, False, True]
    assert isinstance(ends[1], ClientError)
    assert isinstance(ends[1].__cause__, KeyError)


def test_sends_that_wait_for_each_other_are_joined_before_the_route_is_known(broker: Broker) -> None:
    producer = broker.producer(linger_ms=200)
    with broker.faults.slow(0.2, only=[RequestCode.GET_ROUTEINFO_BY_TOPIC]):
        futures = [producer.send_future(Message("t", b"%d" % n)) for n in range(400)]
        assert all(one.result(LONG_S).ok for one in futures)
    assert len(broker.messages("t")) == 400
    codes = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    assert len(broker.requests(*codes)) < 40


def test_statuses_print_as_their_names(broker: Broker) -> None:
    status = broker.producer().send("t", b"x").status
    assert (str(status), f"{status}", f"{TransactionStatus.COMMIT}") == ("SEND_OK", "SEND_OK", "COMMIT")
    assert status == 0
    assert status is SendStatus.SEND_OK


def test_a_pause_holds_the_messages_of_a_held_pull(broker: Broker) -> None:
    seen: list[bytes] = []
    consumer = broker.consumer("g", from_where="first")
    consumer.subscribe("t", lambda message: seen.append(message.body))
    consumer.start()
    broker.send("t", b"before")
    broker.wait_until(lambda: seen == [b"before"], timeout_s=LONG_S)
    pulls = len(broker.requests(RequestCode.PULL_MESSAGE))
    broker.wait_until(lambda: len(broker.requests(RequestCode.PULL_MESSAGE)) >= pulls, timeout_s=LONG_S)
    consumer.pause()
    broker.send("t", b"held")
    states = lambda: [one["state"] for one in consumer.stats()["queues"].values()]  # noqa: E731
    broker.wait_until(lambda: states() == ["paused"], timeout_s=LONG_S)
    assert seen == [b"before"]
    consumer.resume()
    broker.wait_until(lambda: seen == [b"before", b"held"], timeout_s=LONG_S)


def test_assignment_and_stats_are_of_the_topics_of_the_user(broker: Broker) -> None:
    consumer = broker.consumer("g")
    consumer.subscribe("t", lambda message: None)
    consumer.start()
    broker.wait_until(lambda: len(consumer.assignment(retry=True)) == 2, timeout_s=LONG_S)
    assert [queue.topic for queue in consumer.assignment()] == ["t"]
    assert sorted(queue.topic for queue in consumer.assignment(retry=True)) == ["%RETRY%g", "t"]
    assert [queue.topic for queue in consumer.stats()["queues"]] == ["t"]
    assert list(consumer.stats()["members"]) == ["t"]
    assert len(consumer.stats(retry=True)["queues"]) == 2


def test_an_offset_of_an_assigned_queue_is_committed_before_anything_was_handed_out(broker: Broker) -> None:
    broker.send("t", b"0", b"1", b"2")
    with PullConsumer("g", broker.namesrv_addr, auto_commit_s=None) as consumer:
        queue = consumer.queues("t")[0]
        with broker.faults.lose_answers(only=[RequestCode.GET_MAX_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET]):
            consumer.assign([queue])
            consumer.commit({queue: 2})
    assert broker.offset("g", "t")[queue] == 2


def test_a_commit_beyond_the_handed_out_messages_names_seek(broker: Broker) -> None:
    broker.send("t", b"0", b"1", b"2")
    with PullConsumer("g", broker.namesrv_addr, topics="t", from_where="first", auto_commit_s=None) as consumer:
        assert consumer.poll(LONG_S, 1)
        queue = consumer.queues("t")[0]
        with pytest.raises(UsageError, match=r"expected an offset of 0 to 1, found 3, .*seek"):
            consumer.commit({queue: 3})


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
def test_a_new_group_reads_a_message_that_is_stored_while_the_position_is_requested(kind: Any, broker: Broker) -> None:
    """The end was asked for behind the group's offset: a message between both answers was passed over."""
    broker.send("t", b"an old one")
    consumer = kind("g", broker.namesrv_addr, topics="t")
    asked = threading.Event()

    def send_between() -> None:
        broker.wait_until(lambda: broker.requests(RequestCode.QUERY_CONSUMER_OFFSET), timeout_s=LONG_S)
        broker.send("t", b"between")
        asked.set()

    thread = threading.Thread(target=send_between)
    thread.start()
    found: list[bytes] = []
    with broker.faults.slow(1.0, only=[RequestCode.QUERY_CONSUMER_OFFSET], times=1):
        consumer.start()
        assert asked.wait(LONG_S)
    with consumer:
        for message in consumer:
            found.append(message.body)
            if found[-1] == b"between":
                break
    thread.join()
    assert found[-1] == b"between"


def test_the_old_api_without_msgspec_names_the_extra() -> None:
    code = """
import sys
sys.modules["msgspec"] = None
try:
    import mqfast.compat.rocketmq_client
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'mqfast[client]'" in done.stdout
