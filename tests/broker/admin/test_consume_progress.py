"""How far groups are, by admin requests to a running broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

from mqfast.broker.admin import consume_progress as progress
from mqfast.remoting.command import RemotingCommand
from mqfast.util.fastjson import standard


def table(answer: RemotingCommand) -> dict[tuple[str, int], dict[str, Any]]:
    """The offsetTable of an answer, by topic and queue id."""
    assert answer.code == 0, answer.remark
    return by_queue(json.loads(standard(bytes(answer.body)))["offsetTable"])


def by_queue(found: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    queues = {key: json.loads(key) for key in found}
    assert {queue["brokerName"] for queue in queues.values()} <= {"broker-a"}
    return {(queues[key]["topic"], queues[key]["queueId"]): value for key, value in found.items()}


async def send_three(one: Running) -> None:
    for queue_id in (0, 0, 1):
        await one.send("T", b"x", queue_id=queue_id, queues=2)


def test_bounds_of_a_topic(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        answer = await one.call(202, topic="T")
        found = table(answer)
        assert {key: (row["minOffset"], row["maxOffset"]) for key, row in found.items()} == {
            ("T", 0): (0, 2), ("T", 1): (0, 1),
        }  # fmt: skip
        assert all(abs(row["lastUpdateTimestamp"] - one.context.now_ms()) < 60_000 for row in found.values())
        assert bytes(answer.body).startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{')
        assert bytes(answer.body).endswith(b'},"topicPutTps":0.0}')
        missing = await one.call(202, topic="no")
        assert (missing.code, missing.remark) == (17, "topic[no] not exist")

    serve(tmp_path, flow)


def test_the_rate_of_a_topic_follows_its_puts(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        for _ in range(10):
            one.context.stats.tick()
        found = json.loads(standard(bytes((await one.call(202, topic="T")).body)))
        assert found["topicPutTps"] > 0
        stats = json.loads((await one.call(315, statsName="TOPIC_PUT_NUMS", statsKey="T")).body)
        assert stats["statsMinute"]["sum"] == 3
        assert stats["statsHour"] == stats["statsDay"] == {"avgpt": 0.0, "sum": 0, "tps": 0.0}
        missing = await one.call(315, statsName="TOPIC_PUT_NUMS", statsKey="no")
        assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <no> not exist")

    serve(tmp_path, flow)


def test_how_far_a_group_is(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        one.context.offsets.commit("g", "T", 0, 1)
        found = table(await one.call(208, consumerGroup="g"))
        times = {key: row.pop("lastTimestamp") for key, row in found.items()}
        assert found == {
            ("T", 0): {"brokerOffset": 2, "consumerOffset": 1, "pullOffset": 1},
            ("T", 1): {"brokerOffset": 1, "consumerOffset": 0, "pullOffset": 0},
        }
        assert times["T", 0] > 0
        assert times["T", 1] == 0
        assert table(await one.call(208, consumerGroup="nobody")) == {}
        assert set(table(await one.call(208, consumerGroup="nobody", topic="T"))) == {("T", 0), ("T", 1)}
        assert set(table(await one.call(208, consumerGroup="g", topicList="T;no"))) == {("T", 0), ("T", 1)}

    serve(tmp_path, flow)


def test_the_progress_of_an_online_group_covers_its_subscriptions(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        one.context.offsets.commit("g", "T", 0, 1)
        one.context.offsets.commit("g", "old", 0, 1)
        await one.call(17, topic="old", readQueueNums=1, writeQueueNums=1, perm=6)
        heartbeat = {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "A || B"}]}],
        }
        assert (await one.call(34, json.dumps(heartbeat).encode())).code == 0
        assert {topic for topic, _ in table(await one.call(208, consumerGroup="g"))} == {"T"}
        found = json.loads((await one.call(345, group="g", topic="T")).body)
        assert (found["group"], found["topic"], found["subscriptionData"]["subString"]) == ("g", "T", "A || B")
        assert json.loads((await one.call(345, group="g", topic="no")).body) == {"group": "g", "topic": "no"}
        assert json.loads((await one.call(300, topic="T")).body) == {"groupList": ["g"]}
        found = json.loads((await one.call(343, group="g")).body)
        assert found == {"brokerAddr": one.context.address, "topicList": ["T", "old"]}

    serve(tmp_path, flow)


def test_all_groups_at_once(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        for group in ("g", "h"):
            await one.call(200, json.dumps({"groupName": group}).encode())
            one.context.offsets.commit(group, "T", 0, 1)
        found = json.loads(standard(bytes((await one.call(317, isOrder="false")).body)))
        assert found["brokerAddr"] == one.context.address
        assert found["totalDiff"] == 4
        stats = {group: rows for one_group in found["consumeStatsList"] for group, rows in one_group.items()}
        assert {group for group, rows in stats.items() if rows} == {"g", "h"}
        assert by_queue(stats["g"][0]["offsetTable"])["T", 0]["brokerOffset"] == 2
        ordered = json.loads(standard(bytes((await one.call(317, isOrder="true")).body)))
        assert ordered["totalDiff"] == 0
        assert [rows for row in ordered["consumeStatsList"] for rows in row.values() if rows] == []

    serve(tmp_path, flow)


def test_from_when_to_when_messages_are(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        one.context.offsets.commit("g", "T", 0, 2)
        spans = json.loads((await one.call(303, topic="T", group="g")).body)["consumeTimeSpanSet"]
        first, second = spans
        assert first["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        assert first["minTimeStamp"] <= first["consumeTimeStamp"] == first["maxTimeStamp"]
        assert first["delayTime"] == 0
        assert 0 <= second["delayTime"] < 60_000
        assert second["minTimeStampStr"][4:5] == "-"
        assert (await one.call(303, topic="no", group="g")).code == 17

    serve(tmp_path, flow)


def test_offsets_of_one_group_are_given_to_another(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        await one.send("U", b"x")
        offsets = one.context.offsets
        offsets.commit("g", "T", 0, 2)
        offsets.commit("g", "U", 0, 1)
        offsets.commit("g", "gone", 0, 5)
        assert (await one.call(314, srcGroup="g", destGroup="h", topic="T", offline="true")).code == 0
        assert offsets.offsets("h") == {"T": {0: 2}}
        assert (await one.call(314, srcGroup="g", destGroup="i", offline="false")).code == 0
        assert offsets.offsets("i") == {"T": {0: 2}, "U": {0: 1}}
        assert offsets.offsets("g")["T"] == {0: 2}

    serve(tmp_path, flow)


def test_delay_levels_for_slaves(tmp_path: Path) -> None:
    """What was delivered is told, also before the disk knows."""

    async def flow(one: Running) -> None:
        assert (await one.send("T", b"x", properties="DELAY\x011\x02")).code == 0
        found: dict[str, Any] = {}
        async with asyncio.timeout(300):
            while found.get("offsetTable") != {"1": 1}:
                await asyncio.sleep(0.01)
                found = json.loads((await one.call(45)).body)
        assert "counter" in found["dataVersion"]

    serve(tmp_path, flow)


def test_what_a_group_pulled_and_has_not_consumed(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 2, "sysFlag": 5,
            "commitOffset": 1, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
        }  # fmt: skip
        assert (await one.call(11, **fields)).code == 0
        found = table(await one.call(208, consumerGroup="g"))["T", 0]
        assert (found["consumerOffset"], found["pullOffset"], found["brokerOffset"]) == (1, 2, 2)
        all_of_them = json.loads(standard(bytes((await one.call(317, isOrder="false")).body)))
        assert all_of_them["totalInflightDiff"] == 1
        for _ in range(10):
            one.context.stats.tick()
        got = json.loads((await one.call(315, statsName="GROUP_GET_NUMS", statsKey="T@g")).body)
        assert got["statsMinute"]["sum"] == 2
        reset = await one.call(222, topic="T", group="g", timestamp=0, isForce="true")
        assert reset.code == 0
        moved = await one.call(11, **{**fields, "queueOffset": 2})
        assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "0"), "the next pull hears of the reset"

    serve(tmp_path, flow)


def test_a_group_that_may_not_read_a_topic_does_not_get_it(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_three(one)
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 2, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
        }  # fmt: skip
        assert (await one.call(11, **fields)).code == 0
        await one.call(353, group="g", topic="T", readable="false")
        assert (await one.call(353, group="g", topic="T")).code == 0
        # a pull with its own subscription is not checked, as in RocketMQ; one by the heartbeat's is
        heartbeat = {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
        }
        assert (await one.call(34, json.dumps(heartbeat).encode())).code == 0
        refused = await one.call(11, **{**fields, "sysFlag": 0})
        assert (refused.code, refused.remark) == (16, "the consumer group[g] is forbidden for topic[T]")

    serve(tmp_path, flow)


def test_an_answer_has_a_limited_number_of_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is named often is answered once; others are served meanwhile."""
    monkeypatch.setattr(progress, "_QUEUES_MAX", 5000)

    async def flow(one: Running) -> None:
        settings = {"defaultTopic": "", "perm": 6, "readQueueNums": 2600, "writeQueueNums": 2600}
        for topic in ("A", "B"):
            assert (await one.call(17, topic=topic, topicFilterType="SINGLE_TAG", **settings)).code == 0
            one.context.offsets.commit("g", topic, 0, 0)
        await one.call(200, b'{"groupName":"g"}')
        assert len(table(await one.call(208, consumerGroup="g", topicList=";".join(["A"] * 500)))) == 2600
        for many in (one.call(208, consumerGroup="g", topicList="A;B"), one.call(317)):
            answer = await many
            assert answer.code == 1
            assert "at most 5000 queues in one answer" in str(answer.remark)
        asked = asyncio.ensure_future(one.call(202, topic="A"))
        turns = 0
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        assert len(table(await asked)) == 2600
        assert turns > 10

    serve(tmp_path, flow)
