"""Records that hold several messages (topics with queue.type=BatchCQ): consumers get the single messages."""

from __future__ import annotations

import asyncio
import pickle
import zlib
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from asking import call

from mqfast.client import AsyncPullConsumer, Message, MessageQueue, PullConsumer
from mqfast.client.delivery import Delivery, Source, decode_deliveries
from mqfast.client.inner_batch import INNER, inner_records
from mqfast.client.producer.encode import Compressor, Wire, batch_of, new_id
from mqfast.errors import FieldError
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker

TOPIC = "batches"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        fields = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "+queue.type=BatchCQ",
        }  # fmt: skip
        answer = call(one.addresses["broker-a"], RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        assert answer.code == 0, answer.remark
        yield one


def fill(broker: Broker, *sizes: int) -> list[bytes]:
    """A batch of each size, with a unique id of its own as RocketMQ 5's producers give it. Returns: the bodies."""
    bodies: list[bytes] = []
    for size in sizes:
        batch = [
            Message(TOPIC, b"%04d" % i, tags="ab"[i % 2], keys=f"k{i}", properties={"n": str(i)}, flag=i)
            for i in range(len(bodies), len(bodies) + size)
        ]
        letters = {
            "a": "makers", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0,
            "i": f"UNIQ_KEY\x01{new_id()}\x02", "j": 0, "k": "false", "m": "true",
        }  # fmt: skip
        body = batch_of(batch, Wire("makers", Compressor(None))).body
        answer = call(broker.addresses["broker-a"], RequestCode.SEND_BATCH_MESSAGE, body, **letters)
        assert (answer.code, "batchUniqId" in answer.ext_fields) == (0, True), answer.remark
        bodies += [bytes(one.body) for one in batch]  # type: ignore[arg-type]
    return bodies


def test_a_push_consumer_gets_each_message_with_its_own_fields(broker: Broker) -> None:
    bodies = fill(broker, 5, 1, 7)
    seen: list[Delivery] = []
    consumer = broker.consumer("readers")
    consumer.subscribe(TOPIC, seen.append)
    with consumer:
        broker.wait_until(lambda: len(seen) == 13, timeout_s=20)
        broker.wait_until(lambda: consumer.assignment().get(QUEUE) == 13, timeout_s=20)
    seen.sort(key=lambda one: one.queue_offset)
    assert [one.body for one in seen] == bodies
    assert [one.queue_offset for one in seen] == list(range(13))
    assert [(one.tags, list(one.keys), one.properties["n"], one.flag) for one in seen] == [
        ("ab"[i % 2], [f"k{i}"], str(i), i) for i in range(13)
    ]
    assert len({one.msg_id for one in seen}) == 13
    assert len({one.offset_msg_id for one in seen}) == 3  # by the place of their record
    assert {(one.topic, one.queue, one.attempt) for one in seen} == {(TOPIC, QUEUE, 1)}
    assert broker.offset("readers", TOPIC) == {QUEUE: 13}


def test_only_the_failed_message_of_a_record_is_delivered_again(broker: Broker) -> None:
    bodies = fill(broker, 6)
    seen: list[Delivery] = []
    consumer = broker.consumer("readers")

    @consumer.on(TOPIC)
    def handle(message: Delivery) -> bool:
        seen.append(message)
        return message.body != b"0003" or message.attempt == 2

    with consumer:
        broker.wait_until(lambda: len(seen) == 7, timeout_s=20)
        broker.wait_consumed("readers", timeout_s=20)
    assert Counter(one.body for one in seen) == Counter([*bodies, b"0003"])
    again = seen[-1]
    assert (again.topic, again.attempt, again.tags, list(again.keys)) == (TOPIC, 2, "b", ["k3"])
    assert again.msg_id == next(one.msg_id for one in seen if one.body == b"0003")


def test_a_message_of_a_batch_above_max_reconsume_times_goes_to_the_dead_letter_queue(broker: Broker) -> None:
    fill(broker, 3)
    consumer = broker.consumer("readers", max_reconsume_times=1)
    consumer.subscribe(TOPIC, lambda message: message.body != b"0001")
    with consumer:
        broker.wait_for("%DLQ%readers", 1, timeout_s=20)
        broker.wait_consumed("readers", timeout_s=20)
    (dead,) = broker.dead_letters("readers")
    assert (dead.body, dead.tags, dead.properties["n"]) == (b"0001", "b", "1")


def test_pull_consumers_go_on_within_a_record(broker: Broker) -> None:
    bodies = fill(broker, 5, 5)
    with PullConsumer("pullers", broker.namesrv_addr, topics=TOPIC, from_where="first", auto_commit_s=None) as one:
        found = [one.poll(timeout_s=20, max_count=1)[0].body for _ in range(3)]
        one.commit()
    assert broker.offset("pullers", TOPIC) == {QUEUE: 3}
    with PullConsumer("pullers", broker.namesrv_addr, topics=TOPIC) as one:
        while len(found) < 10:
            found += [message.body for message in one.poll(timeout_s=20)]
        one.seek(QUEUE, 7)
        assert [message.body for message in one.poll(timeout_s=20)] == bodies[7:]
        answer = one.pull(QUEUE, 2, max_count=1)
        assert [message.body for message in answer.messages] == bodies[2:5]
        assert answer.next_offset == 5
    assert found == bodies

    async def flow() -> list[bytes]:
        async with AsyncPullConsumer("async", broker.namesrv_addr, topics=TOPIC, from_where="first") as consumer:
            got: list[bytes] = []
            while len(got) < 10:
                got += [message.body for message in await consumer.poll(timeout_s=20)]
            return got

    assert asyncio.run(flow()) == bodies


def test_a_copy_for_another_process_is_whole(broker: Broker) -> None:
    fill(broker, 2)
    with PullConsumer("pullers", broker.namesrv_addr, topics=TOPIC, from_where="first") as one:
        first, second = one.poll(timeout_s=20)
    copy = pickle.loads(pickle.dumps(second))
    assert (copy.body, copy.queue_offset, copy.tags, copy.msg_id) == (b"0001", 1, "b", second.msg_id)
    assert copy.view == b"0001"
    assert first.msg_id != second.msg_id


def test_a_body_that_is_no_batch_stays_one_message(broker: Broker) -> None:
    fill(broker, 2)
    (record,) = broker.messages(TOPIC)
    whole = record.record_bytes()
    assert record.sys_flag & INNER == INNER
    body = bytes(record.view)
    assert [one.queue_offset for one in inner_records(record._record, body)] == [0, 1]  # type: ignore[arg-type]
    for wrong in (body[:-1], body + b"\0", b"\0" * 21, b"\xff" * 40):
        with pytest.raises(FieldError):
            inner_records(record._record, wrong)  # type: ignore[arg-type]
    broken = bytes([body[0], *body[1:16], 0x7F, *body[17:]])  # the length of the first body
    at = whole.index(body)
    crc = zlib.crc32(broken) & 0x7FFFFFFF
    forged = whole[:8] + crc.to_bytes(4, "big") + whole[12:at] + broken + whole[at + len(body) :]
    (kept,) = decode_deliveries(forged, Source("broker-a", QUEUE), unwrap=True)
    assert kept.body == broken


def test_records_of_an_answer_are_taken_apart_up_to_a_limit_together(broker: Broker) -> None:
    bodies = fill(broker, 50, 50, 50, 50)
    pulled: list[int] = []
    with PullConsumer("readers", broker.namesrv_addr, max_body_bytes=4000) as consumer:
        found: list[Delivery] = []
        offset = 0
        while offset < len(bodies):
            answer = consumer.pull(QUEUE, offset)
            assert answer.next_offset > offset
            offset = answer.next_offset
            found += answer.messages
            pulled.append(len(answer.messages))
    assert [one.body for one in found] == bodies
    assert len(pulled) > 1


def test_a_record_of_too_many_messages_is_handed_out_whole() -> None:
    body = b"".join(bytes(16) + bytes(4) + bytes(2) for _ in range(100_001))
    outer: Any = SimpleNamespace(queue_offset=0)
    with pytest.raises(FieldError, match="at most 100000 messages"):
        inner_records(outer, body)
