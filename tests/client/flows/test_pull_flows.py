"""Pull consumers, sync and async, on our broker and on Java's of every release."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "consumer"))

from consumer_cluster import Hand, in_loop, until

from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import NoRoute, UsageError

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def hand(cluster_address: str) -> Hand:
    return Hand(cluster_address)


@pytest.fixture
def topic() -> str:
    return f"pulled-{next(_numbers)}"


def bodies(messages: object) -> list[bytes]:
    assert isinstance(messages, list)
    return [message.body for message in messages]


def polled(consumer: PullConsumer, count: int) -> list[Delivery]:
    """So many messages. Fails after 20 s."""
    found: list[Delivery] = []
    end = time.monotonic() + 20
    while len(found) < count and time.monotonic() < end:
        found += consumer.poll(timeout_s=1)
    return found


def test_a_group_goes_on_where_it_has_committed(hand: Hand, topic: str) -> None:
    hand.send(topic, *(b"%d" % number for number in range(20)))
    queue = hand.queue(topic)
    with PullConsumer("going-on", hand.namesrv, topics=topic, auto_commit_s=None, from_where="first") as consumer:
        until(lambda: len(consumer.assignment()) == 4, "assignment")
        assert bodies(polled(consumer, 20)) == [b"%d" % number for number in range(20)]
        consumer.commit({queue: 7})
        assert consumer.committed(queue) == 7
        with pytest.raises(UsageError, match="expected an offset of 0 to 20, found 21"):
            consumer.commit({queue: 21})
    assert hand.offset("going-on", queue) == 7, "without auto commit the end commits nothing"
    with PullConsumer("going-on", hand.namesrv, topics=topic) as consumer:
        assert bodies(polled(consumer, 13))[0] == b"7"
    assert hand.offset("going-on", queue) == 20, "the end commits what was handed out"


def test_an_exception_in_the_block_leaves_the_last_batch_for_the_next(hand: Hand, topic: str) -> None:
    hand.send(topic, b"0", b"1", b"2")
    with pytest.raises(ZeroDivisionError), PullConsumer("broken", hand.namesrv, topics=topic) as consumer:
        consumer.seek(hand.queue(topic), "first")
        assert len(consumer.poll(max_count=1, timeout_s=20)) == 1
        assert len(consumer.poll(max_count=1, timeout_s=20)) == 1
        raise ZeroDivisionError
    assert hand.offset("broken", hand.queue(topic)) == 1


def test_a_loop_acknowledges_one_by_one(hand: Hand, topic: str) -> None:
    hand.send(topic, *(b"%d" % number for number in range(9)))
    with PullConsumer("looping", hand.namesrv, topics=topic, from_where="first") as consumer:
        for message in consumer:
            if message.body == b"4":
                break
        with pytest.raises(ZeroDivisionError):
            for message in consumer:
                assert message.body == b"4", "the message in hand comes again"
                raise ZeroDivisionError
        assert message.queue == hand.queue(topic)
        assert next(iter(consumer)).body == b"4"
        consumer.commit()
        assert consumer.committed(message.queue) == 5
        assert next(iter(consumer)).body == b"5"


def test_seek_goes_to_an_offset_an_end_and_a_time(hand: Hand, topic: str) -> None:
    hand.send(topic, b"old", b"older")
    time.sleep(0.01)  # store times are in milliseconds
    between = time.time()
    time.sleep(0.01)
    hand.send(topic, b"new")
    queue = hand.queue(topic)
    with PullConsumer("seeking", hand.namesrv, topics=topic, auto_commit_s=None) as consumer:
        until(lambda: len(consumer.assignment()) == 4, "assignment")
        for to, expected in (("first", b"old"), (1, b"older"), (datetime.fromtimestamp(between), b"new")):
            consumer.seek(queue, to)  # type: ignore[arg-type]
            found = polled(consumer, 1)[0]
            assert found.body == expected, to
        consumer.seek(queue, "last")
        assert consumer.assignment()[queue] == 3
        assert consumer.poll(timeout_s=0.1) == []
        for wrong in (4, -1):
            with pytest.raises(UsageError, match=rf"expected an offset from 0 to 3, found {wrong}"):
                consumer.seek(queue, wrong)
        with pytest.raises(UsageError, match="is not assigned to this consumer; expected one of"):
            consumer.seek(queue._replace(queue_id=77), 0)
        assert consumer.offset_at(queue, datetime.fromtimestamp(between)) == 2
        assert consumer.offset_at(queue, 0) == 0


def test_only_wanted_tags_come_and_the_others_are_passed(hand: Hand, topic: str) -> None:
    for tag in ("AaAa", "BBBB", "AaBB", "other"):  # three tags of one hash
        hand.send(topic, tag.encode(), properties=f"TAGS\x01{tag}\x02")
    with PullConsumer("filtering", hand.namesrv, topics={topic: "BBBB || none"}, from_where="first") as consumer:
        assert bodies(polled(consumer, 1)) == [b"BBBB"]
        until(lambda: consumer.assignment()[hand.queue(topic)] == 4, "the others are passed")
    assert hand.offset("filtering", hand.queue(topic)) == 4


def test_a_raw_pull_reads_any_queue_and_moves_nothing(hand: Hand, topic: str) -> None:
    hand.send(topic, *(b"%d" % number for number in range(5)), properties="TAGS\x01new\x02")
    queue = hand.queue(topic)
    with PullConsumer("raw", hand.namesrv) as consumer:
        found = consumer.pull(queue, 3)
        assert (found.status, bodies(found.messages), found.next_offset) == (PullStatus.FOUND, [b"3", b"4"], 5)
        assert (found.min_offset, found.max_offset) == (0, 5)
        assert [m.queue for m in found.messages] == [queue, queue]
        assert len(consumer.pull(queue, 0, max_count=2).messages) == 2
        assert consumer.pull(queue, 5).status is PullStatus.NO_NEW_MSG
        assert consumer.pull(queue, 99).status is PullStatus.OFFSET_ILLEGAL
        assert consumer.pull(queue, 0, tags="gone").status is PullStatus.NO_MATCHED_MSG
        begin = time.monotonic()
        assert consumer.pull(queue, 5, wait_s=0.2).status is PullStatus.NO_NEW_MSG
        assert time.monotonic() - begin > 0.1
        assert consumer.committed(queue) in (None, 0)
        assert [one.queue_id for one in consumer.queues(topic)] == [0, 1, 2, 3]
        with pytest.raises(NoRoute):
            consumer.queues("unheard-of")


def test_members_share_queues_and_take_over(hand: Hand, topic: str) -> None:
    for number in range(4):
        hand.send(topic, b"%d" % number, queue_id=number)
    one = PullConsumer("sharing", hand.namesrv, topics=topic, from_where="first").start()
    with one:
        until(lambda: len(one.assignment()) == 4, "all queues")
        assert sorted(bodies(polled(one, 4))) == [b"0", b"1", b"2", b"3"]
        with PullConsumer("sharing", hand.namesrv, topics=topic, from_where="first") as two:
            assert two.stats()["client_id"] != one.stats()["client_id"]
            until(lambda: len(one.assignment()) == len(two.assignment()) == 2, "two queues each")
            assert not set(one.assignment()) & set(two.assignment())
            theirs = next(iter(two.assignment()))
            with pytest.raises(UsageError, match="not assigned to this consumer"):
                one.commit({theirs: 0})
            one.commit()
        until(lambda: len(one.assignment()) == 4, "the queues of the member that left")
    until(lambda: hand.members("sharing") == 0, "nobody is there")


def test_queues_may_be_chosen_by_hand(hand: Hand, topic: str) -> None:
    hand.send(topic, b"a", queue_id=1)
    hand.send(topic, b"b", queue_id=2)
    first, second = hand.queue(topic, 1), hand.queue(topic, 2)
    with PullConsumer("chosen", hand.namesrv, from_where="first") as consumer:
        consumer.assign([first])
        assert bodies(polled(consumer, 1)) == [b"a"]
        consumer.assign([second])
        assert bodies(polled(consumer, 1)) == [b"b"]
        assert list(consumer.assignment()) == [second]
        with pytest.raises(UsageError, match="use one of both"):
            consumer.subscribe(topic)
    with PullConsumer("chosen", hand.namesrv, topics=topic) as consumer, pytest.raises(UsageError, match="one of both"):
        consumer.assign([first])


def test_every_member_of_a_broadcasting_group_gets_everything(
    hand: Hand, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("rocketmq.client.localOffsetStoreDir", str(tmp_path))
    hand.send(topic, b"0", b"1")
    arguments = {"topics": topic, "model": "broadcasting", "from_where": "first"}
    with (
        PullConsumer("all", hand.namesrv, **arguments) as one,  # type: ignore[arg-type]
        PullConsumer("all", hand.namesrv, instance_name="other", **arguments) as two,  # type: ignore[arg-type]
    ):
        assert bodies(polled(one, 2)) == bodies(polled(two, 2)) == [b"0", b"1"]
    assert len(list(tmp_path.glob("*@DEFAULT/all/offsets.json"))) == 1
    hand.send(topic, b"2")
    with PullConsumer("all", hand.namesrv, **arguments) as one:  # type: ignore[arg-type]
        assert bodies(polled(one, 1)) == [b"2"]


def test_the_asynchronous_face_does_the_same(hand: Hand, topic: str) -> None:
    hand.send(topic, *(b"%d" % number for number in range(6)))
    queue = hand.queue(topic)

    async def flow() -> None:
        async with AsyncPullConsumer("asynchronous", hand.namesrv, topics=topic, from_where="first") as consumer:
            seen = []
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 3:
                    break
            assert seen == [b"0", b"1", b"2"]
            found: list[Delivery] = []
            async with asyncio.timeout(300):
                while len(found) < 3:
                    found += await consumer.poll(timeout_s=5)
            await consumer.commit()
            assert await consumer.committed(queue) == 6
            await consumer.seek(queue, "first")
            async with asyncio.timeout(300):
                assert (await consumer.poll(max_count=1))[0].body == b"0"
            assert (await consumer.pull(queue, 5)).messages[0].body == b"5"
            assert await consumer.offset_at(queue, 0) == 0
            assert len(await consumer.queues(topic)) == 4
            assert consumer.assignment()[queue] == 1
            assert consumer.stats()["queues"][queue]["next_offset"] == 1
            await consumer.pause()
            await consumer.resume([queue])
            await consumer.unsubscribe(topic)
            assert consumer.assignment() == {}
            await consumer.subscribe(topic)

    in_loop(flow)


def test_a_namespace_is_on_the_wire_and_nowhere_else(hand: Hand, topic: str) -> None:
    hand.send(f"tenant%{topic}", b"x")
    with PullConsumer("named", hand.namesrv, topics=topic, namespace="tenant", from_where="first") as consumer:
        (message,) = polled(consumer, 1)
        assert (message.topic, message.queue) == (topic, hand.queue(topic))
        consumer.commit({message.queue: 1})
        assert set(consumer.assignment()) == {hand.queue(topic, number) for number in range(4)}
        assert consumer.pull(message.queue, 0).messages[0].topic == topic
    assert hand.offset("tenant%named", MessageQueue(f"tenant%{topic}", hand.broker_name, 0)) == 1
