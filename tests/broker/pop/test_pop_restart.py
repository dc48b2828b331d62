"""POP over the life of a broker: what was in flight comes again after a restart, and nothing that was acked."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from running import Running, running_broker

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from popping import INVISIBLE_MS, MovedClock, ack, change, messages, pop
from pulling import run
from waiting import until_async as until

from mqfast.errors import ConfigError

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
REVIVERS = "CID_RMQ_SYS_REVIVE_GROUP"


async def all_until(one: Running, count: int) -> list[Any]:
    """So many messages, and those that come with these or soon after."""
    got: list[Any] = []
    while len(got) < count:
        got += messages(await pop(one, wait_ms=10_000))
    while more := messages(await pop(one, wait_ms=300)):
        got += more
    return got


def test_what_was_not_acked_comes_again_after_a_restart(tmp_path: Path) -> None:
    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock) as one:
            for number in range(10):
                await one.send("T", b"%d" % number, queue_id=number % 4)
            first = messages(await pop(one))
            assert len(first) == 10
            for got in first[:4]:
                assert (await ack(one, got.handle)).code == 0
            moved = await change(one, first[4].handle, INVISIBLE_MS)
            assert moved.code == 0
        async with running_broker(tmp_path, now_ms=clock) as one:
            assert (await ack(one, first[5].handle)).code == 0  # of the earlier process
            assert await all_until(one, 0) == []
            clock.ahead_ms += INVISIBLE_MS
            again = await all_until(one, 5)
            assert Counter(got.body for got in again) == Counter(got.body for got in [first[4], *first[6:]])
            assert {got.message.reconsume_times for got in again} == {1}
            for got in again:
                assert (await ack(one, got.handle)).code == 0
            ends = [one.context.store.max_offset(REVIVE, queue) for queue in range(8)]

            def is_passed() -> bool:
                offsets = [one.context.offsets.get(REVIVERS, REVIVE, queue) for queue in range(8)]
                return all(offset + 1 >= end for offset, end in zip(offsets, ends, strict=True))

            await until(is_passed)
        async with running_broker(tmp_path, now_ms=clock) as one:
            clock.ahead_ms += INVISIBLE_MS
            assert await all_until(one, 0) == []

    run(flow())


def test_a_retry_topic_that_a_kill_left_out_of_the_table(tmp_path: Path) -> None:
    """The topic is in the log, and its table was not written yet: acks and redelivery go on."""

    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock) as one:
            await one.send("T", b"a")
            await one.send("T", b"b")
            assert len(messages(await pop(one, invisibleTime=1))) == 2
            again = await all_until(one, 2)
            assert {got.message.reconsume_times for got in again} == {1}
            one.context.topics.table.delete("%RETRY%g_T")
            assert (await ack(one, again[0].handle)).code == 0
        async with running_broker(tmp_path, now_ms=clock) as one:
            assert "%RETRY%g_T" not in one.context.topics.table
            clock.ahead_ms += INVISIBLE_MS
            third = {(got.body, got.message.reconsume_times) for got in await all_until(one, 3)}
            assert (again[1].body, 2) in third  # besides, the group has no offset in the forgotten topic
            assert "%RETRY%g_T" in one.context.topics.table

    run(flow())


def test_a_long_invisible_time_does_not_hold_up_the_others_after_a_restart(tmp_path: Path) -> None:
    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock, reviveQueueNum=1) as one:
            for number in range(3):
                await one.send("T", b"%d" % number)
            assert len(messages(await pop(one, count=1, invisibleTime=12 * 3600 * 1000))) == 1
            assert len(messages(await pop(one, invisibleTime=INVISIBLE_MS))) == 2
        async with running_broker(tmp_path, now_ms=clock, reviveQueueNum=1) as one:
            clock.ahead_ms += INVISIBLE_MS
            assert sorted(got.body for got in await all_until(one, 2)) == [b"1", b"2"]

    run(flow())


def test_records_have_the_form_of_a_java_broker(tmp_path: Path) -> None:
    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock, reviveQueueNum=1) as one:
            for number in range(3):
                await one.send("T", b"%d" % number)
            got = messages(await pop(one))
            pop_time = int(got[0].handle.split(" ")[1])
            assert (await ack(one, got[1].handle)).code == 0
            clock.ahead_ms += INVISIBLE_MS
            await until(lambda: one.context.store.max_offset(REVIVE, 0) == 2)
            check_point, ack_record = (one.context.engine.unit_at(REVIVE, 0, offset).record for offset in range(2))
            key = f"T@0@0@g@{pop_time}@broker-a@ck"
            assert (check_point.tags, check_point.properties["UNIQ_KEY"]) == ("ck", key)
            assert json.loads(bytes(check_point.body)) == {
                "bm": 0, "bn": "broker-a", "c": "g", "d": [0, 1, 2], "it": INVISIBLE_MS, "n": 3, "pt": pop_time, "q": 0,
                "reviveTime": pop_time + INVISIBLE_MS, "ro": 0, "so": 0, "sp": False, "t": "T",
            }  # fmt: skip
            assert (ack_record.tags, ack_record.properties["UNIQ_KEY"]) == ("ack", f"T@0@1@g@{pop_time}@broker-a@ack")
            assert json.loads(bytes(ack_record.body)) == {
                "ao": 1, "bn": "broker-a", "c": "g", "pt": pop_time, "q": 0, "so": 0, "t": "T",
            }  # fmt: skip

    run(flow())


def test_state_in_rocksdb_is_refused(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path):
            pass
        (tmp_path / "kvStore").mkdir()
        (tmp_path / "kvStore" / "000004.log").write_bytes(b"x")
        with pytest.raises(ConfigError, match="RocksDB"):
            async with running_broker(tmp_path):
                pass

    run(flow())


def test_modes_of_groups_survive_a_restart(tmp_path: Path) -> None:
    async def flow() -> None:
        body = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
        query = {
            "topic": "T",
            "consumerGroup": "g",
            "clientId": "c",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }
        async with running_broker(tmp_path) as one:
            await one.send("T", b"m")
            assert (await one.call(401, json.dumps(body).encode())).code == 0
        async with running_broker(tmp_path) as one:
            answer = json.loads(bytes((await one.call(400, json.dumps(query).encode())).body))
            queue = {"brokerName": "broker-a", "queueId": -1, "topic": "T"}
            row = {"attachments": None, "messageQueue": queue, "mode": "POP"}
            assert answer["messageQueueAssignments"] == [row]

    run(flow())
