"""POP over remoting: delivery, acks, redelivery at the due time, retries, dead letters, refusals."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import Running, running_broker

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from popping import ack, batch_ack, change, messages, pop
from pulling import run
from waiting import until_async as until

from mqfast.broker.pop.pop_result import PopRequest
from mqfast.errors import CallRefused
from mqfast.remoting.codes import ResponseCode as Code
from mqfast.store.record.record import decode_record


async def pop_all(one: Running, **changed: Any) -> list[Any]:
    return messages(await pop(one, **changed))


def test_messages_are_delivered_once_and_acked(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(10):
                await one.send("T", b"%d" % number, queue_id=number % 4)
            answer = await pop(one, count=8)
            assert (answer.code, answer.remark) == (0, "FOUND")
            first = messages(answer)
            assert len(first) == 8
            assert int(answer.ext_fields["restNum"]) == 2
            second = await pop_all(one)
            assert sorted(got.body for got in first + second) == [b"%d" % number for number in range(10)]
            assert (await pop(one)).code == Code.POLLING_TIMEOUT
            in_flight = one.parts.pop.service.in_flight
            assert in_flight.messages == 10
            for got in first:
                assert (await ack(one, got.handle)).code == 0
                assert (await ack(one, got.handle)).code == 0  # a second ack changes nothing
            assert (await batch_ack(one, [got.handle for got in second])).code == 0
            assert in_flight.messages == 0
            assert sum(one.context.offsets.get("g", "T", queue) for queue in range(4)) == 10

    run(flow())


def test_a_message_without_ack_comes_again_at_the_due_time_with_a_count(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"again", properties="TAGS\x01a\x02KEYS\x01k\x02")
            first = messages(await pop(one, invisibleTime=300))[0]
            due_s = time.time() + 0.3
            answer = await pop(one, wait_ms=10_000)
            assert time.time() > due_s - 0.05
            second = messages(answer)[0]
            assert (second.body, second.message.topic, second.message.reconsume_times) == (b"again", "T", 1)
            pairs = second.message.properties
            assert (pairs["TAGS"], pairs["KEYS"], pairs["ORIGIN_GROUP"]) == ("a", "k", "g")
            assert pairs["1ST_POP_TIME"] == first.handle.split(" ")[1]
            assert pairs["POP_CK"].split(" ")[4] == "1"
            assert (await ack(one, first.handle)).code == 0  # late: no effect
            assert one.parts.pop.service.in_flight.messages == 1
            assert (await ack(one, second.handle)).code == 0
            assert one.parts.pop.service.in_flight.messages == 0
            assert "%RETRY%g_T" in one.context.topics.table

    run(flow())


def test_no_redelivery_of_many_is_early(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(200):
                await one.send("T", b"%d" % number)
            dues: dict[bytes, float] = {}
            for position in range(25):
                answer = await pop(one, count=8, invisibleTime=600 + 10 * position)
                for got in messages(answer):
                    dues[got.body] = (int(answer.ext_fields["popTime"]) + 600 + 10 * position) / 1000
            late: list[float] = []
            while len(late) < 200:
                for got in messages(await pop(one, wait_ms=10_000)):
                    stored_s = got.message.store_timestamp / 1000
                    late.append(stored_s - dues[got.body])
            assert min(late) >= -0.001

    run(flow())


def test_the_dead_letter_topic_gets_what_was_redelivered_too_often(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            one.context.groups.put({"groupName": "g", "retryMaxTimes": 1})
            await one.send("T", b"dead")
            for count in range(2):
                got = messages(await pop(one, invisibleTime=50, wait_ms=10_000))
                assert [message.message.reconsume_times for message in got] == [count]
            while one.context.store.max_offset("%DLQ%g", 0) == 0:
                await asyncio.sleep(0.01)
            assert (await pop(one)).code == Code.POLLING_TIMEOUT
            dead = one.context.engine.unit_at("%DLQ%g", 0, 0).record
            assert (bytes(dead.body), dead.properties["RETRY_TOPIC"]) == (b"dead", "T")
            assert one.parts.pop.service.in_flight.messages == 0

    run(flow())


def test_a_change_of_the_invisible_time_moves_the_redelivery(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"later")
            got = messages(await pop(one))[0]
            answer = await change(one, got.handle, 100)
            assert answer.code == 0
            fields = answer.ext_fields
            parts = got.handle.split(" ")
            assert (fields["invisibleTime"], fields["reviveQid"]) == ("100", parts[3])
            again = messages(await pop(one, wait_ms=10_000))
            assert [message.message.reconsume_times for message in again] == [1]
            changed = " ".join([parts[7], fields["popTime"], "100", *parts[3:]])
            assert (await change(one, got.handle, 100)).code == Code.NO_MESSAGE  # in another delivery already
            assert (await ack(one, changed)).code == 0
            assert one.parts.pop.service.in_flight.messages == 1
            suspended = await change(one, again[0].handle, 50, suspend="true")
            assert suspended.code == 0
            third = messages(await pop(one, wait_ms=10_000))
            assert [message.message.reconsume_times for message in third] == [1]  # not counted

    run(flow())


def test_one_of_many_waiting_consumers_gets_a_message(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            await pop(one)
            waiters = [asyncio.ensure_future(pop(one, wait_ms=20_000)) for _ in range(20)]
            service = one.parts.pop.service
            while len(service.waiters) < 20:
                await asyncio.sleep(0.005)
            info = await one.call(200055, consumerGroup="g", topic="T")
            assert info.ext_fields["pollingNum"] == "20"
            for number in range(5):
                await one.send("T", b"%d" % number, queue_id=number % 4)
            done: set[Any] = set()
            while len(done) < 5:
                done = {task for task in waiters if task.done()}
                await asyncio.sleep(0.005)
            assert Counter(got.body for task in done for got in messages(task.result())) == {
                b"%d" % number: 1 for number in range(5)
            }
            assert len(service.waiters) == 15
            for task in waiters:
                task.cancel()

    run(flow())


def test_a_closed_connection_takes_no_message(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            await pop(one)
            other = Running(one.broker, None)
            waiting = asyncio.ensure_future(pop(other, wait_ms=20_000))
            service = one.parts.pop.service
            while not len(service.waiters):
                await asyncio.sleep(0.005)
            await other.client.close()
            with pytest.raises(Exception):  # noqa: B017
                await waiting
            while len(service.waiters):
                await asyncio.sleep(0.005)
            await one.send("T", b"new")
            assert [got.body for got in await pop_all(one)] == [b"new"]

    run(flow())


def test_filters_and_notification(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            for tag in ("a", "b", "a"):
                await one.send("T", tag.encode(), properties=f"TAGS\x01{tag}\x02")
            got = await pop_all(one, exp="a", expType="TAG")
            assert [message.body for message in got] == [b"a", b"a"]
            sql = await pop_all(one, consumerGroup="h", exp="TAGS = 'b'", expType="SQL92")
            assert [message.body for message in sql] == [b"b"]
            assert (await pop(one, exp="(((", expType="SQL92")).code == Code.SUBSCRIPTION_PARSE_FAILED
            told = await one.call(200054, consumerGroup="g", topic="T", queueId=-1, pollTime=0, bornTime=0)
            assert told.ext_fields["hasMsg"] == "false"
            waiting = asyncio.ensure_future(
                one.call(
                    200054, consumerGroup="g", topic="T", queueId=-1, pollTime=20_000, bornTime=int(time.time() * 1000)
                )
            )
            while not len(one.parts.pop.service.waiters):
                await asyncio.sleep(0.005)
            await one.send("T", b"new", queue_id=2)
            assert (await waiting).ext_fields["hasMsg"] == "true"
            peeked = await one.call(200052, consumerGroup="g", topic="T", queueId=-1, maxMsgNums=32)
            assert peeked.code == 0
            assert one.parts.pop.service.in_flight.count("T", "g", 2) == 0

    run(flow())


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"maxMsgNums": 33}, Code.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, Code.INVALID_PARAMETER),
        ({"invisibleTime": 0}, Code.INVALID_PARAMETER),
        ({"invisibleTime": 2**50}, Code.INVALID_PARAMETER),
        ({"queueId": 4}, Code.INVALID_PARAMETER),
        ({"queueId": -2}, Code.INVALID_PARAMETER),
        ({"topic": "none"}, Code.TOPIC_NOT_EXIST),
        ({"consumerGroup": "no group!"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "x"}, Code.SYSTEM_ERROR),
        ({"age_ms": 30_000, "pollTime": 1}, Code.POLLING_TIMEOUT),
        ({"age_ms": 3_600_000, "pollTime": 1}, Code.SUCCESS),  # another clock
    ],
)
def test_wrong_requests_are_refused(tmp_path: Path, changed: dict[str, Any], code: int) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"m")
            assert (await pop(one, **changed)).code == code

    run(flow())


def test_a_changed_handle_acks_nothing_else(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(4):
                await one.send("T", b"%d" % number)
            got = messages(await pop(one, count=1))[0]
            others = messages(await pop(one, consumerGroup="h"))
            assert len(others) == 4
            in_flight = one.parts.pop.service.in_flight
            before = in_flight.messages
            parts = got.handle.split(" ")
            for position in range(8):
                for value in ("", "-1", "x", "99999999999999999999", "7", str(2**62), "broker-b"):
                    changed = [*parts[:position], value, *parts[position + 1 :]]
                    if changed == parts:
                        continue
                    fields = {
                        "consumerGroup": "g", "topic": "T", "queueId": changed[6] or "0", "offset": changed[7] or "0",
                        "extraInfo": " ".join(changed),
                    }  # fmt: skip
                    answer = await one.call(200051, **fields)
                    assert answer.code in (0, 1, 13, 17, 29, 208), (changed, answer.code)
                    await one.call(200053, invisibleTime=1000, **fields)
            assert in_flight.count("T", "h", 0) == 4
            assert in_flight.messages >= before - 1
            fields = {"consumerGroup": "g", "topic": "T", "extraInfo": got.handle}
            assert (await one.call(200051, queueId=0, offset=99, **fields)).code == Code.NO_MESSAGE
            assert (await one.call(200051, queueId=9, offset=0, **fields)).code == Code.MESSAGE_ILLEGAL

    run(flow())


def test_a_request_without_rights_any_more_leaves_the_message_to_the_next(tmp_path: Path) -> None:
    """The oldest request is awakened first; the others must not sleep beside the message."""

    def refuse() -> None:
        raise CallRefused(Code.NO_PERMISSION, "the rights were revoked")

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"before")
            assert len(await pop_all(one)) == 1
            service = one.parts.pop.service
            wanted = PopRequest(group="g", topic="T", queue_id=-1, max_count=1, invisible_ms=60_000, wait_ms=20_000)
            revoked = asyncio.ensure_future(service.pop(replace(wanted, check_rights=refuse)))
            await until(lambda: len(service.waiters) == 1)
            waiting = asyncio.ensure_future(service.pop(wanted))
            await until(lambda: len(service.waiters) == 2)
            for body in (b"first", b"second"):
                await one.send("T", body)
                result = await asyncio.wait_for(waiting, 300)
                assert [bytes(decode_record(got.record).body) for got in result.messages] == [body]
                waiting = asyncio.ensure_future(service.pop(wanted))
                await until(lambda: len(service.waiters) == 1)
            with pytest.raises(CallRefused):
                await revoked
            waiting.cancel()

    run(flow())
