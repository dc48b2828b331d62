"""Pulls that wait: woken by their message, by their time, by the end; and forgotten with their connection."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Running, running_broker
from waiting import until_async as until

sys.path.append(str(Path(__file__).resolve().parent))

from pulling import SUBSCRIPTION, SUSPEND, bodies, heartbeat, offsets, pull, pull_fields, run, subscription

import mqfast.broker.pull.long_polling
from mqfast.errors import ConnectionLost
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode

WAIT = SUSPEND | SUBSCRIPTION


async def held(one: Running, count: int = 1, **changed: Any) -> list[asyncio.Task[Any]]:
    """So many pulls that wait now."""
    before = len(one.parts.long_polling)
    tasks = [asyncio.ensure_future(pull(one, sysFlag=WAIT, **changed)) for _ in range(count)]
    await until(lambda: len(one.parts.long_polling) == before + count, "the hold")
    return tasks


def test_arrival_wakes_all_held_pulls_of_the_queue_and_no_other(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            others = await held(one, queueId=1)
            waiting = await held(one, 20, queueOffset=1)
            await one.send("T", b"new")
            for task in waiting:
                answer = await task
                assert (answer.code, answer.remark, bodies(answer)) == (0, "FOUND", [b"new"])
                assert offsets(answer) == (2, 0, 2)
            assert not others[0].done()
            assert len(one.parts.long_polling) == 1
            await one.send("T", b"other", queue_id=1)
            assert bodies(await others[0]) == [b"other"]
            assert len(one.parts.long_polling) == 0

    run(flow())


def test_held_pull_times_out_without_a_message(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            began = asyncio.get_running_loop().time()
            answer = await pull(one, sysFlag=WAIT, queueOffset=1, suspendTimeoutMillis=150)
            took = asyncio.get_running_loop().time() - began
            assert (answer.code, answer.remark, offsets(answer)) == (
                ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", (1, 0, 1),
            )  # fmt: skip
            assert 0.14 < took < 10
            for suspend in (0, -5):
                answer = await pull(one, sysFlag=WAIT, queueOffset=1, suspendTimeoutMillis=suspend)
                assert answer.code == ResponseCode.PULL_NOT_FOUND
            forever = (await held(one, queueOffset=1, suspendTimeoutMillis=2**62))[0]
            await one.send("T", b"new")
            assert bodies(await forever) == [b"new"]

    run(flow())


def test_short_polling(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, longPollingEnable=False, shortPollingTimeMills=120) as one:
            await one.send("T", b"old")
            began = asyncio.get_running_loop().time()
            answer = await pull(one, sysFlag=WAIT, queueOffset=1, suspendTimeoutMillis=600_000)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert 0.11 < asyncio.get_running_loop().time() - began < 10

    run(flow())


def test_held_pull_skips_messages_that_do_not_match_its_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await one.send("T", b"old")
            tagged = (await held(one, queueOffset=1, subscription="B"))[0]
            by_value = (await held(one, queueOffset=1, subscription="n > 5", expressionType="SQL92"))[0]
            for number in range(3):
                await one.send("T", b"unwanted", properties=f"TAGS\x01A\x02n\x01{number}\x02")
            await until(lambda: one.context.store.max_offset("T", 0) == 4)
            await asyncio.sleep(0.02)
            assert not tagged.done()
            assert not by_value.done()
            await one.send("T", b"wanted", properties="TAGS\x01B\x02n\x017\x02")
            for task in (tagged, by_value):
                answer = await task
                assert (bodies(answer), offsets(answer)) == ([b"wanted"], (5, 0, 5))
            monkeypatch.setattr(mqfast.broker.pull.long_polling, "PROGRESS_S", 0.1)
            late = (await held(one, queueOffset=5, subscription="B"))[0]
            await one.send("T", b"unwanted", properties="TAGS\x01A\x02")
            answer = await late
            assert (answer.code, offsets(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, (6, 0, 6))

    run(flow())


def test_held_pull_is_checked_again_at_an_arrival(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            await heartbeat(one, subscription())
            waiting = asyncio.ensure_future(pull(one, sysFlag=SUSPEND, queueOffset=1))
            await until(lambda: len(one.parts.long_polling) == 1)
            group = one.context.groups.table.ensure("g")
            one.context.groups.put({**group, "consumeEnable": False})
            await one.send("T", b"new")
            assert (await waiting).code == ResponseCode.NO_PERMISSION

    run(flow())


def test_a_reset_and_a_deletion_reach_pulls_that_wait(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            waiting = (await held(one, queueOffset=1))[0]
            one.context.reset_offsets.assign("g", "T", 0, 0)
            await one.send("T", b"new")
            answer = await waiting
            assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
            waiting = (await held(one, queueOffset=2))[0]
            async with one.context.topics.leaving("T"):
                one.context.store.delete_topic("T")
            assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST

    run(flow())


def test_held_pulls_of_a_closed_connection_are_forgotten(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            stays = await held(one, 3, queueOffset=1)
            goes = RemotingClient()
            channel = await goes.channel(one.address)
            futures = [
                asyncio.ensure_future(channel.call(11, pull_fields(sysFlag=WAIT, queueOffset=1), timeout_ms=20_000))
                for _ in range(5)
            ]
            futures += [
                asyncio.ensure_future(channel.call(11, pull_fields(sysFlag=WAIT, queueId=2), timeout_ms=20_000))
            ]
            await until(lambda: len(one.parts.long_polling) == 9)
            channel.abort()
            await until(lambda: len(one.parts.long_polling) == 3)
            assert len(one.context.engine.arrivals()) == 1  # queue 2 is watched no more
            await one.send("T", b"new")
            assert [bodies(await task) for task in stays] == [[b"new"]] * 3
            await asyncio.gather(*futures, return_exceptions=True)
            await goes.close()

    run(flow())


def test_number_of_held_pulls_is_bounded(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, pullThreadPoolQueueCapacity=5) as one:
            await one.send("T", b"old")
            waiting = await held(one, 5, queueOffset=1)
            busy = await pull(one, sysFlag=WAIT, queueOffset=1)
            assert (busy.code, busy.remark) == (
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while",
            )  # fmt: skip
            await one.send("T", b"new")
            assert [bodies(await task) for task in waiting] == [[b"new"]] * 5

    run(flow())


def test_held_pulls_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async def flow() -> None:
        client = RemotingClient()
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            tasks = [
                asyncio.ensure_future(pull(one, client=client, sysFlag=WAIT, queueOffset=1, queueId=0))
                for _ in range(50)
            ]
            await until(lambda: len(one.parts.long_polling) == 50)
        for task in tasks:
            answer = await task
            assert (answer.code, offsets(answer)) == (ResponseCode.PULL_NOT_FOUND, (1, 0, 1))
        await client.close()

    run(flow())


def test_long_polling_of_ten_thousand_pulls(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            one.context.topics.put(one.context.topics.raw("T", 100, 6))
            await one.send("T", b"old")
            tasks = [
                asyncio.ensure_future(pull(one, sysFlag=WAIT, queueId=number % 100, queueOffset=int(number % 100 == 0)))
                for number in range(9_000)
            ]
            await until(lambda: len(one.parts.long_polling) == 9_000)
            for queue_id in range(100):
                await one.send("T", b"new", queue_id=queue_id)
            assert {(answer.code, bodies(answer)[0]) for answer in await asyncio.gather(*tasks)} == {(0, b"new")}
            hold = one.parts.long_polling
            assert (len(hold), len(hold.waiting), len(hold._channels), len(hold._watched)) == (0, 0, 0, 0)

    run(flow())


def test_held_pulls_wake_after_the_sync_flush_of_a_message(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as one:
            await one.send("T", b"old")
            for number in range(20):
                waiting = (await held(one, queueOffset=1 + number))[0]
                await one.send("T", b"%d" % number)
                assert bodies(await waiting) == [b"%d" % number]

    run(flow())


def test_held_pulls_wake_for_messages_without_a_send(tmp_path: Path) -> None:
    """Delayed and replicated messages, and those of a plug-in, are put without the way of a send."""

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            waiting = (await held(one, queueOffset=1))[0]
            one.context.engine.put_encoded(b"T", 0, b"by hand", b"UNIQ_KEY\x01k\x02")
            assert bodies(await waiting) == [b"by hand"]

    run(flow())


@pytest.mark.parametrize("properties", ["UNIQ_KEY\x01k\x02", "DELAY\x010\x02", ""])
def test_held_pulls_wake_for_every_kind_of_send(tmp_path: Path, properties: str) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            hold = one.parts.long_polling
            one.context.loop.remove_reader(hold._fd)  # without the signal of the store
            waiting = (await held(one, queueOffset=1))[0]
            await one.send("T", b"new", properties=properties)
            assert bodies(await waiting) == [b"new"]
            batch = (await held(one, queueOffset=2))[0]
            item = b"".join(number.to_bytes(4, "big") for number in (4 * 5 + 3 + 2, 0, 0, 0, 3)) + b"one" + bytes(2)
            fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "m": "true"}
            assert (await one.call(320, item, **fields)).code == 0
            assert bodies(await batch) == [b"one"]

    run(flow())


def test_pulls_that_wait_and_read_from_the_disk(tmp_path: Path) -> None:
    async def flow() -> None:
        # Nothing counts as in memory, so that a thread reads every answer.
        async with running_broker(tmp_path, accessMessageInMemoryMaxRatio=0) as one:
            await one.send("T", b"old")
            waiting = await held(one, 10, queueOffset=1)
            await one.send("T", b"new")
            assert [bodies(await task) for task in waiting] == [[b"new"]] * 10

    run(flow())


@pytest.mark.parametrize(("seed", "turn_s"), [(1, 0.003), (2, 0.003), (3, 0.0)])
def test_consumers_that_wait_see_every_message_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, turn_s: float
) -> None:
    """Random sends, filters and waits, connections that break: nothing is missed, nothing comes twice."""
    monkeypatch.setattr(mqfast.broker.pull.long_polling, "TURN_S", turn_s)
    chosen = random.Random(seed)
    filters = [("*", "TAG"), ("A", "TAG"), ("A || C", "TAG"), ("n BETWEEN 20 AND 150 OR TAGS = 'B'", "SQL92")]
    wants = [
        lambda tag, n: True,
        lambda tag, n: tag == "A",
        lambda tag, n: tag in "AC",
        lambda tag, n: 20 <= n <= 150 or tag == "B",
    ]
    count = 200

    async def consume(one: Running, queue_id: int, kind: int, done: asyncio.Event) -> list[bytes]:
        client, offset, found = RemotingClient(), 0, []
        text, of = filters[kind]
        while not done.is_set() or offset < one.context.store.max_offset("T", queue_id):
            try:
                answer = await pull(
                    one, client=client, sysFlag=WAIT, queueId=queue_id, queueOffset=offset, subscription=text,
                    expressionType=of, suspendTimeoutMillis=chosen.choice([1, 5, 20, 60]),
                    maxMsgNums=chosen.choice([1, 3, 32]),
                )  # fmt: skip
            except ConnectionLost:
                continue
            assert answer.code in (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
            found += bodies(answer)
            offset = offsets(answer)[0]
            if chosen.random() < 0.03:
                (await client.channel(one.address)).abort()
        await client.close()
        return found

    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await one.send("T", b"0", properties="TAGS\x01A\x02n\x010\x02")
            sent: dict[int, list[tuple[str, int]]] = {0: [("A", 0)], 1: [], 2: []}
            done = asyncio.Event()
            consumers = [
                asyncio.ensure_future(consume(one, queue_id, kind, done)) for queue_id in sent for kind in range(4)
            ]
            for n in range(1, count):
                queue_id, tag = chosen.randrange(3), chosen.choice("ABC")
                sent[queue_id].append((tag, n))
                await one.send("T", b"%d" % n, queue_id=queue_id, properties=f"TAGS\x01{tag}\x02n\x01{n}\x02")
                if chosen.random() < 0.3:
                    await asyncio.sleep(chosen.random() * 0.01)
            done.set()
            for i, found in enumerate(await asyncio.gather(*consumers)):
                queue_id, kind = divmod(i, 4)
                assert found == [b"%d" % n for tag, n in sent[queue_id] if wants[kind](tag, n)], (queue_id, kind)
            await until(lambda: len(one.parts.long_polling) == 0, "the end of all holds")

    run(flow())


def test_other_requests_are_served_while_many_held_pulls_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqfast.broker.pull.long_polling, "TURN_S", 0.0)  # one pull in each turn of the loop

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            waiting = await held(one, 500, queueOffset=1)
            put = asyncio.ensure_future(one.send("T", b"new"))
            other = RemotingClient()
            await put
            assert (await pull(one, client=other, queueId=1)).code == ResponseCode.PULL_NOT_FOUND
            assert len(one.parts.long_polling) > 100  # it was answered in between
            late = asyncio.ensure_future(pull(one, client=other, sysFlag=WAIT, queueOffset=2))
            assert [bodies(await task) for task in waiting] == [[b"new"]] * 500
            await one.send("T", b"newer")
            assert bodies(await late) == [b"newer"]
            expiring = await held(one, 50, queueOffset=3, suspendTimeoutMillis=30)
            assert {(await task).code for task in expiring} == {ResponseCode.PULL_NOT_FOUND}
            await other.close()

    run(flow())


def test_held_pull_that_fails_on_wake_up_is_answered_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"old")
            waiting = await held(one, 3, queueOffset=1)
            broken = one.parts.pull._permitted
            calls = iter(range(10))

            def permitted(*given: Any) -> Any:
                if next(calls) == 0:
                    raise RuntimeError("planted")
                return broken(*given)

            monkeypatch.setattr(one.parts.pull, "_permitted", permitted)
            await one.send("T", b"new")
            answers = [await task for task in waiting]
            assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, 0, 0]
            assert answers[0].remark == "RuntimeError: planted"

    run(flow())
