"""Rules around POP: resets, retry topics by both names, limits, new queues, deleted topics, lag, rights."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from running import running_broker

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from popping import NOTIFY, ack, change, messages, pop
from pulling import run
from waiting import until_async as until

from mqfast.broker.acl.required_permissions import needs_of
from mqfast.broker.metrics.consumer_lag import lag_of_all
from mqfast.broker.pop.receipt_handle import ReceiptHandle
from mqfast.errors import CallRefused
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.codes import ResponseCode as Code
from mqfast.remoting.command import RemotingCommand


def test_a_reset_while_messages_are_in_flight(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(4):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one))
            assert len(first) == 4
            one.context.reset_offsets.assign("g", "T", 0, 2)
            assert [got.body for got in messages(await pop(one))] == [b"2", b"3"]
            assert one.context.offsets.get("g", "T", 0) == 4
            for got in first:
                assert (await ack(one, got.handle)).code == 0
            orderly = messages(await pop(one, consumerGroup="o", order="true"))
            assert len(orderly) == 4
            one.context.reset_offsets.assign("o", "T", 0, 3)
            assert [got.body for got in messages(await pop(one, consumerGroup="o", order="true"))] == [b"3"]

    run(flow())


@pytest.mark.parametrize("order", ["false", "true"])
def test_an_offset_beyond_the_range_of_a_queue_is_corrected(tmp_path: Path, order: str) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"before")
            (first,) = messages(await pop(one, consumerGroup="h", order=order))
            assert (await ack(one, first.handle, consumerGroup="h")).code == 0
            committed = {"consumerGroup": "h", "topic": "T", "queueId": 0, "commitOffset": 2**63 - 1}
            assert (await one.call(RequestCode.UPDATE_CONSUMER_OFFSET, **committed)).code == 0
            assert (await pop(one, consumerGroup="h", order=order)).code == Code.POLLING_TIMEOUT
            await one.send("T", b"after")
            assert [got.body for got in messages(await pop(one, consumerGroup="h", order=order))] == [b"after"]

    run(flow())


def test_retries_in_the_topic_of_either_name_are_read(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enableRetryTopicV2=True) as one:
            await one.send("T", b"two")
            await pop(one, invisibleTime=50)
            again = messages(await pop(one, wait_ms=10_000, invisibleTime=50))
            assert [got.handle.split(" ")[4] for got in again] == ["2"]
            assert one.context.store.max_offset("%RETRY%g+T", 0) == 1
            one.context.config.update({"enableRetryTopicV2": "false"}, "test")
            third = messages(await pop(one, wait_ms=10_000))
            assert [(got.body, got.message.reconsume_times) for got in third] == [(b"two", 2)]
            assert (await ack(one, third[0].handle)).code == 0
            assert one.context.store.max_offset("%RETRY%g_T", 0) == 0  # a retry stays in its retry topic
            await one.send("T", b"one")
            await pop(one, invisibleTime=50)
            fourth = messages(await pop(one, wait_ms=10_000))
            assert [got.handle.split(" ")[4] for got in fourth] == ["1"]

    run(flow())


def test_limits_of_messages_in_flight(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePopMessageThreshold=True, popInflightMessageThreshold=1) as one:
            for number in range(3):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one, count=2))
            refused = await pop(one)
            assert (refused.code, refused.ext_fields["restNum"]) == (Code.POLLING_TIMEOUT, "1")
            waiting = asyncio.ensure_future(pop(one, wait_ms=20_000))
            while not len(one.parts.pop.service.waiters):
                await asyncio.sleep(0.005)
            assert (await ack(one, first[0].handle)).code == 0
            assert [got.body for got in messages(await waiting)] == [b"2"]
        async with running_broker(tmp_path / "other", popMessagesInFlightMax=1, popPollingSize=1) as one:
            for number in range(2):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one, count=1))
            assert (await pop(one)).code == Code.POLLING_TIMEOUT
            waiting = asyncio.ensure_future(pop(one, wait_ms=20_000))
            while not len(one.parts.pop.service.waiters):
                await asyncio.sleep(0.005)
            assert (await pop(one, wait_ms=20_000)).code == Code.POLLING_FULL
            assert (await ack(one, first[0].handle)).code == 0
            assert [got.body for got in messages(await waiting)] == [b"1"]

    run(flow())


def test_a_group_gets_all_messages_of_a_new_queue(tmp_path: Path) -> None:
    """RocketMQ begins at the end of a queue that is younger than the group."""

    async def flow() -> None:
        async with running_broker(tmp_path, initPopOffsetByCheckMsgInMem=False) as one:
            await one.send("T", b"old")
            await one.send("T", b"last")
            assert [got.body for got in messages(await pop(one, initMode=1))] == [b"last"]
            raw = dict(one.context.topics.table.get("T").raw)  # type: ignore[union-attr]
            one.context.topics.put({**raw, "readQueueNums": 6, "writeQueueNums": 6})
            for number in range(3):
                await one.send("T", b"%d" % number, queue_id=5)
            assert [got.body for got in messages(await pop(one, initMode=1))] == [b"0", b"1", b"2"]

    run(flow())


@pytest.mark.parametrize(("is_ascending", "expected"), [(True, [3, 2, 2, 1, 0]), (False, [0, 1, 2, 2, 3])])
def test_queues_of_a_priority_topic_are_read_from_the_highest(
    tmp_path: Path, is_ascending: bool, expected: list[int]
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, priorityOrderAsc=is_ascending) as one:
            raw = one.context.topics.raw("P", 4, 6)
            one.context.topics.put({**raw, "attributes": {"message.type": "PRIORITY"}})
            for priority in (0, 2, 3, 1, 2):
                text = f"_SYS_MSG_PRIORITY_\x01{priority}\x02"
                sent = await one.send("P", b"%d" % priority, queue_id=0, properties=text)
                assert sent.ext_fields["queueId"] == str(priority)
            bodies = [int(got.body) for _ in range(5) for got in messages(await pop(one, topic="P", count=1))]
            assert bodies == expected
            above = await one.send("P", b"9", properties="_SYS_MSG_PRIORITY_\x019\x02")
            assert above.ext_fields["queueId"] == "3"
            fifo = await one.send("P", b"f", properties="_SYS_MSG_PRIORITY_\x012\x02__SHARDINGKEY\x01k\x02")
            assert fifo.ext_fields["queueId"] == "0"
            assert "_SYS_MSG_PRIORITY_" not in one.context.engine.unit_at("P", 0, 1).record.properties

    run(flow())


@pytest.mark.parametrize(("percent", "is_first"), [(0, False), (100, True)])
def test_retries_of_a_priority_topic_come_last_or_first(tmp_path: Path, percent: int, is_first: bool) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, popFromRetryProbabilityForPriority=percent) as one:
            raw = one.context.topics.raw("P", 2, 6)
            one.context.topics.put({**raw, "attributes": {"message.type": "PRIORITY"}})
            await one.send("P", b"again")
            assert len(messages(await pop(one, topic="P", invisibleTime=1))) == 1
            await until(lambda: one.context.store.max_offset("%RETRY%g_P", 0) == 1)
            await one.send("P", b"new")
            bodies = [got.body for got in messages(await pop(one, topic="P"))]
            assert bodies == ([b"again", b"new"] if is_first else [b"new", b"again"])

    run(flow())


def test_all_notifications_that_wait_see_a_message(tmp_path: Path) -> None:
    """One is notified at once, and the other at the end of its time."""

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.call(17, topic="T", readQueueNums=4, writeQueueNums=4, perm=6)
            fields = {"consumerGroup": "g", "topic": "T", "queueId": -1, "pollTime": 500, "bornTime": 0}
            waiting = [asyncio.ensure_future(one.call(NOTIFY, **fields)) for _ in range(2)]
            while len(one.parts.pop.service.waiters) < 2:
                await asyncio.sleep(0.005)
            await one.send("T", b"m")
            answers = await asyncio.gather(*waiting)
            assert [answer.ext_fields["hasMsg"] for answer in answers] == ["true", "true"]

    run(flow())


def test_a_deleted_topic_takes_its_messages_in_flight_along(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"m")
            (got,) = messages(await pop(one))
            waiting = asyncio.ensure_future(pop(one, wait_ms=20_000))
            while not len(one.parts.pop.service.waiters):
                await asyncio.sleep(0.005)
            assert (await one.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
            assert (await waiting).code == Code.TOPIC_NOT_EXIST
            assert one.parts.pop.service.in_flight.messages == 0
            assert (await ack(one, got.handle)).code == Code.TOPIC_NOT_EXIST
            await one.send("T", b"new")
            assert [popped.body for popped in messages(await pop(one))] == [b"new"]

    run(flow())


def test_lag_and_messages_in_flight(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(5):
                await one.send("T", b"%d" % number)
            await pop(one, count=3)
            await pop(one, consumerGroup="o", order="true", count=2)
            groups, _ = await lag_of_all(one.context, one.parts.pop.service.in_flight_counts())
            lags = {lag.group: (lag.messages, lag.in_flight) for lag in groups if lag.topic == "T"}
            assert lags == {"g": (2, 3), "o": (5, 2)}

    run(flow())


def test_groups_with_one_name_for_their_retries_get_their_own(tmp_path: Path) -> None:
    """``%RETRY%a_b_T`` has the retries of group a_b for topic T, and those of group a for topic b_T."""

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            names = {"a_b": "T", "a": "b_T"}
            for group, topic in names.items():
                await one.send(topic, group.encode())
                first = messages(await pop(one, consumerGroup=group, topic=topic, invisibleTime=50))
                assert [got.body for got in first] == [group.encode()]
            while one.context.store.max_offset("%RETRY%a_b_T", 0) < 2:
                await asyncio.sleep(0.01)
            for group, topic in names.items():
                again = messages(await pop(one, consumerGroup=group, topic=topic))
                assert [got.body for got in again] == [group.encode()]
                assert messages(await pop(one, consumerGroup=group, topic=topic)) == []
            named = await pop(one, consumerGroup="a", topic="%RETRY%a_b_T")
            assert messages(named) == []
            # A retry by RocketMQ 5.3 of a message that was a dead letter of group x.
            await one.send("%RETRY%a_b_T", b"of x", queues=1, properties="ORIGIN_GROUP\x01x\x02")
            again = messages(await pop(one, consumerGroup="a_b"))
            assert [got.body for got in again] == [b"of x"]

    run(flow())


def test_a_made_up_handle_gets_no_retry_of_another_group(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"of a_b")
            await one.send("b_T", b"of a")
            await pop(one, consumerGroup="a_b", invisibleTime=50)
            await pop(one, consumerGroup="a", topic="b_T")
            while one.context.store.max_offset("%RETRY%a_b_T", 0) < 1:
                await asyncio.sleep(0.01)
            handle = "0 1 60000 0 1 broker-a 0 0"  # as of an earlier process
            given = {"consumerGroup": "a", "topic": "b_T"}
            assert (await change(one, handle, 50, **given)).code == 208
            parsed = ReceiptHandle.decode(handle)
            with pytest.raises(CallRefused) as refused:
                await one.parts.pop.service.forward_to_dead_letter_queue("a", "b_T", parsed)
            assert refused.value.code == 208
            assert messages(await pop(one, **given)) == []

    run(flow())


def test_rights_of_pops_and_acks() -> None:
    def needs(code: int, body: bytes = b"", **fields: str) -> set[tuple[str, str]]:
        request = RemotingCommand(code, fields, body)
        return {(need.kind.value.upper(), need.name) for need in needs_of(request, "c")}

    both = {("TOPIC", "T"), ("GROUP", "g")}
    assert needs(200050, topic="T", consumerGroup="g") == both
    for retry in ("%RETRY%g_T", "%RETRY%g+T"):
        assert needs(200051, topic=retry, consumerGroup="g") == both
    assert needs(200053, topic="%RETRY%other_T", consumerGroup="g") == {("GROUP", "other_T"), ("GROUP", "g")}
    acks = [{"c": "g", "t": "T"}, {"c": "h", "t": "U"}]
    assert needs(200151, json.dumps({"acks": acks}).encode()) == both | {("TOPIC", "U"), ("GROUP", "h")}
