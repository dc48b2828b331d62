"""The time of mqfast.testing.Broker: delays, timed messages, checks of transactions, locks, pulls that wait."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from asking import call, send

from mqfast.errors import UsageError
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.testing import Broker

PREPARED = 4


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}, virtual_time=True) as broker:
        yield broker


def bodies(broker: Broker, topic: str = "orders") -> list[bytes]:
    return [one.body for one in broker.messages(topic)]


def test_time_stands_until_it_is_moved(broker: Broker) -> None:
    before = broker.clock.now()
    time.sleep(0.02)
    assert broker.clock.now() == before
    assert broker.clock.advance(1.5) == 0
    assert broker.clock.advance(timedelta(hours=1)) == 0
    assert broker.clock.now() - before == timedelta(hours=1, seconds=1.5)
    assert broker.clock.travel_to(before + timedelta(days=1)) == 0
    assert broker.clock.now() - before == timedelta(days=1)
    broker.send("orders", "42")
    (message,) = broker.messages("orders")
    assert message.store_timestamp == broker.clock.now_ms()
    assert broker.clock.advance_to_next() is None


@pytest.mark.parametrize("seconds", [1, 90, 3600])
def test_a_delay_ends_with_just_that_time(seconds: int) -> None:
    with Broker(virtual_time=True, topics={"orders": 1}) as broker, broker.producer() as producer:
        producer.send("orders", b"of a producer", delay_s=seconds)
        broker.send("orders", "of the test", delay_s=seconds)
        broker.clock.advance(seconds - 0.001)
        broker.assert_nothing_sent("orders")
        assert broker.clock.advance(0.001) == 2
        broker.assert_sent("orders", times=2)


def test_time_moves_ahead_only(broker: Broker) -> None:
    for wrong in (-1, True, 1e12):
        with pytest.raises(UsageError, match="advance: expected 0 to"):
            broker.clock.advance(wrong)
    with pytest.raises(UsageError, match="travel_to: expected a moment from"):
        broker.clock.travel_to(datetime(2020, 1, 1, tzinfo=UTC))


def test_delay_levels_come_in_their_order_and_not_before(broker: Broker) -> None:
    broker.send("orders", "10 s", delay_level=3)
    broker.send("orders", "1 s", delay_level=1)
    broker.send("orders", "2 h", delay_level=18)
    start = broker.clock.now()
    waiting = [(due - start, message.body, message.properties["REAL_TOPIC"]) for due, message in broker.scheduled()]
    assert waiting == [
        (timedelta(seconds=1), b"1 s", "orders"), (timedelta(seconds=10), b"10 s", "orders"),
        (timedelta(hours=2), b"2 h", "orders"),
    ]  # fmt: skip
    assert broker.clock.advance(0.999) == 0
    assert bodies(broker) == []
    assert broker.clock.advance(0.001) == 1
    assert bodies(broker) == [b"1 s"]
    assert broker.clock.advance_to_next() == timedelta(seconds=9)
    assert bodies(broker) == [b"1 s", b"10 s"]
    assert broker.clock.advance(timedelta(days=1)) == 1
    messages = broker.messages("orders")
    assert [one.body for one in messages] == [b"1 s", b"10 s", b"2 h"]
    # Each was stored at its own moment, though the clock was moved in one step.
    assert [one.store_timestamp - round(start.timestamp() * 1000) for one in messages] == [1000, 10_000, 7_200_000]
    assert broker.scheduled() == []


def test_three_days_of_timed_messages_take_no_time(broker: Broker) -> None:
    hours = range(1, 72)
    for hour in reversed(hours):
        broker.send("orders", str(hour), delay_s=hour * 3600)
    assert len(broker.scheduled()) == len(hours)
    began = time.process_time()  # the broker is in this process, which may have to wait for others
    assert broker.clock.advance(timedelta(days=3)) == len(hours)
    took_s = time.process_time() - began
    assert bodies(broker) == [str(hour).encode() for hour in hours]
    assert broker.scheduled() == []
    assert took_s < 5, took_s  # some 0.1 s on a machine that does nothing else


def test_a_timed_message_is_delivered_at_its_time(broker: Broker) -> None:
    at = broker.clock.now() + timedelta(minutes=5)
    broker.send("orders", "42", deliver_at=at)
    ((due, _),) = broker.scheduled()
    assert abs(due - at) <= timedelta(seconds=1)
    assert broker.clock.advance(298) == 0
    assert broker.clock.advance(3) == 1
    assert bodies(broker) == [b"42"]


def test_time_that_runs_can_be_moved_too() -> None:
    with Broker(topics=["orders"], retry_at_once=False) as broker:
        broker.send("orders", "42", delay_level=18)
        assert broker.clock.advance(timedelta(hours=3)) == 1
        broker.assert_sent("orders", body="42", times=1)
        assert broker.clock.now_ms() > time.time() * 1000 + 3 * 3600 * 1000 - 60_000
        before = broker.clock.now_ms()
        broker.wait_until(lambda: broker.clock.now_ms() > before, timeout_s=60)


def test_retries_take_no_time_unless_they_shall() -> None:
    with Broker(topics=["orders"]) as broker:
        for level in (1, 3, 18):
            broker.send("orders", str(level), delay_level=level)
        assert len(broker.wait_for("orders", 3, timeout_s=60)) == 3  # two hours, by RocketMQ's levels
        (last,) = [one for one in broker.messages("orders") if one.body == b"18"]
        assert last.properties["DELAY"] == "18"
    with Broker(topics=["orders"], retry_at_once=False) as broker:
        broker.send("orders", "42", delay_level=3)
        assert len(broker.scheduled()) == 1


def test_a_held_pull_ends_at_its_suspend_timeout(broker: Broker) -> None:
    fields = {
        "consumerGroup": "billing", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip
    answers: list[RemotingCommand] = []
    address = broker.addresses["broker-a"]
    puller = threading.Thread(
        target=lambda: answers.append(call(address, RequestCode.PULL_MESSAGE, timeout_ms=60_000, **fields))
    )
    puller.start()
    broker.wait_until(lambda: broker.requests(RequestCode.PULL_MESSAGE), timeout_s=60)
    broker.clock.advance(14)
    assert answers == []
    broker.clock.advance(2)
    puller.join(120)
    assert [one.code for one in answers] == [ResponseCode.PULL_NOT_FOUND]


def test_a_lock_of_a_queue_ends_with_its_time(broker: Broker) -> None:
    address = broker.addresses["broker-a"]
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"orders"}'

    def lock(client: str) -> int:
        body = f'{{"consumerGroup":"billing","clientId":"{client}","mqSet":[{queue}]}}'
        return len(json.loads(call(address, RequestCode.LOCK_BATCH_MQ, body.encode()).body)["lockOKMQSet"])

    heartbeat = b'{"clientID":"one","consumerDataSet":[{"groupName":"billing"}]}'
    assert call(address, RequestCode.HEART_BEAT, heartbeat).code == 0  # locks are of known groups
    assert lock("one") == 1
    assert lock("two") == 0
    broker.clock.advance(61)
    assert lock("two") == 1


def test_a_transaction_is_checked_when_its_time_has_come(broker: Broker) -> None:
    address = broker.addresses["broker-a"]
    asked: list[dict[str, str]] = []

    async def flow() -> None:
        processors = Processors()

        def check(channel: Channel, request: RemotingCommand) -> None:
            fields = request.ext_fields
            asked.append(fields)
            if len(asked) == 2:
                end = {
                    "producerGroup": "payers", "tranStateTableOffset": fields["tranStateTableOffset"],
                    "commitLogOffset": fields["commitLogOffset"], "commitOrRollback": "8",
                    "fromTransactionCheck": "true",
                    "msgId": fields["msgId"], "transactionId": fields["transactionId"],
                }  # fmt: skip
                channel.oneway(RequestCode.END_TRANSACTION, end)

        processors.register([RequestCode.CHECK_TRANSACTION_STATE], check, ConcurrencyLimit("check"))
        client = RemotingClient(processors)
        heartbeat = b'{"clientID":"payer","producerDataSet":[{"groupName":"payers"}],"consumerDataSet":[]}'
        assert (await client.call(address, RequestCode.HEART_BEAT, {}, heartbeat)).code == 0
        properties = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01" + "0" * 31 + "1\x02"
        answer = await asyncio.to_thread(lambda: send(address, "orders", b"42", 0, properties, f=PREPARED, a="payers"))
        assert answer.code == 0
        assert await asyncio.to_thread(broker.clock.advance, 5) == 0
        assert asked == []
        await asyncio.to_thread(broker.clock.advance, 30)
        assert len(asked) == 1
        assert bodies(broker) == []
        await asyncio.to_thread(broker.clock.advance, 30)
        assert len(asked) == 2
        broker.wait_for("orders", body="42", timeout_s=60)
        await client.close()

    asyncio.run(flow())


def test_a_transaction_without_a_producer_is_discarded(broker: Broker) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01" + "0" * 31 + "1\x02"
    assert send(broker.addresses["broker-a"], "orders", b"42", 0, properties, f=PREPARED, a="payers").code == 0
    broker.clock.advance(timedelta(hours=1))
    assert bodies(broker) == []
    assert bodies(broker, "TRANS_CHECK_MAX_TIME_TOPIC") == [b"42"]
    assert broker.clock.advance_to_next() is None
