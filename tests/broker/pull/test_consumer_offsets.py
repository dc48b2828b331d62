"""Offsets of groups and bounds of queues (14, 15, 29-32, 43, 308) through a running broker, and over its restart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from running import Running, running_broker
from waiting import until_async as until

sys.path.append(str(Path(__file__).resolve().parent))

from pulling import pull, run

from mqfast.remoting.command import RemotingCommand


def place(**more: Any) -> dict[str, Any]:
    return {"consumerGroup": "g", "topic": "T", "queueId": 0, **more}


async def commit(one: Running, offset: int, **more: Any) -> RemotingCommand:
    return await one.call(15, **place(commitOffset=offset, **more))


async def stored(one: Running, **more: Any) -> int | str | None:
    """The offset that 14 tells, or its remark."""
    answer = await one.call(14, **place(**more))
    if answer.code == 0:
        assert answer.remark is None
        return int(answer.ext_fields["offset"])
    assert answer.code == 22
    return answer.remark


NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def test_committed_offset_is_returned(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"x")
            await pull(one)
            for offset in (5, 0, 3, 2**62):
                answer = await commit(one, offset)
                assert (answer.code, answer.remark) == (0, None)
                assert await stored(one) == offset
            assert await stored(one, queueId=1) == NOT_FOUND
            assert await stored(one, consumerGroup="other") == 0

    run(flow())


def test_a_group_without_an_offset_begins_at_0_while_the_first_message_is_in_memory(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            assert await stored(one) == NOT_FOUND  # no topic
            await one.send("T", b"x")
            assert await stored(one) == 0
            assert await stored(one, setZeroIfNotFound="true") == 0
            assert await stored(one, setZeroIfNotFound="false") == (
                "Not found, do not set to zero, maybe this group boot first"
            )
            assert await stored(one, queueId=1) == NOT_FOUND
            assert await stored(one, queueId=-1) == NOT_FOUND
            assert await stored(one, topic="a@b") == NOT_FOUND

    run(flow())


def test_a_group_begins_elsewhere_where_the_first_message_is_not_in_memory(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, accessMessageInMemoryMaxRatio=0) as one:
            await one.send("T", b"x")
            assert await stored(one) == NOT_FOUND
            one.context.config.update({"accessMessageInMemoryMaxRatio": "40"}, "test")
            assert await stored(one) == 0

    run(flow())


def test_updates_are_refused_as_rocketmq_refuses_them(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"x")
            answer = await commit(one, 1)
            assert (answer.code, answer.remark) == (26, "Group g not exist!")
            one.context.groups.get("g")
            answer = await commit(one, 1, topic="none")
            assert (answer.code, answer.remark) == (17, "Topic none not exist!")
            answer = await one.call(15, consumerGroup="g", topic="T", commitOffset=1)
            assert (answer.code, answer.remark) == (29, "QueueId is null, topic is T")
            answer = await one.call(15, **place())
            assert (answer.code, answer.remark) == (29, "Offset is null, topic is T")
            answer = await commit(one, 1, queueId="x")
            assert answer.code == 1
            assert "queueId" in str(answer.remark)
            assert one.context.offsets.get("g", "T", 0) == -1

    run(flow())


def test_commit_of_offset_minus_one_is_ignored(tmp_path: Path) -> None:
    """ali-ons sends it in place of 0."""

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"x", queue_id=1)
            one.context.groups.get("g")
            assert (await commit(one, -1)).code == 0
            assert await stored(one) == NOT_FOUND
            await commit(one, 7)
            assert (await commit(one, -1)).code == 0
            assert await stored(one) == 7

    run(flow())


def test_commits_are_ignored_until_a_reset_offset_was_pulled(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for _ in range(5):
                await one.send("T", b"x")
            await pull(one)
            await commit(one, 5)
            one.context.reset_offsets.assign("g", "T", 0, 1)
            answer = await commit(one, 5)
            assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
            assert await stored(one) == 1
            moved = await pull(one, queueOffset=5)
            assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "1")
            await commit(one, 2)
            assert await stored(one) == 2
            one.context.reset_offsets.assign("g", "T", 0, 4)
            one.context.reset_offsets.forget_topic("T")
            await commit(one, 3)
            assert await stored(one) == 3

    run(flow())


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for _ in range(3):
                await one.send("T", b"x")
            await pull(one)
            await one.client.oneway(one.address, 15, {k: str(v) for k, v in place(commitOffset=2).items()})
            assert await stored(one) == 2
        async with running_broker(tmp_path) as one:
            assert await stored(one) == 2

    run(flow())
    assert '"T@g":{0:2}' in "".join((tmp_path / "config" / "consumerOffset.json").read_text().split())


def test_offsets_are_on_disk_after_the_interval(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, flushConsumerOffsetInterval=50) as one:
            await one.send("T", b"x")
            await pull(one)
            await commit(one, 1)
            file = tmp_path / "config" / "consumerOffset.json"
            await until(lambda: file.exists() and "T@g" in file.read_text(), "the file")
            # Never ahead of the messages: they were made durable first.
            assert one.context.store.stats()["flushed_offset"] == one.context.store.max_physical_offset

    run(flow())


def test_bounds_and_times_of_a_queue(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            place_ = {"topic": "T", "queueId": 0}
            empty = [await one.call(code, **place_) for code in (30, 31, 32)]
            assert [answer.ext_fields for answer in empty] == [{"offset": "0"}, {"offset": "0"}, {"timestamp": "-1"}]
            for _ in range(4):
                await one.send("T", b"x")
            assert (await one.call(30, **place_, committed="true")).ext_fields == {"offset": "4"}
            assert (await one.call(31, **place_)).ext_fields == {"offset": "0"}
            first = int((await one.call(32, **place_)).ext_fields["timestamp"])
            messages = one.context.store.get("T", 0, 0)
            assert first == messages[0].store_timestamp

            async def search(time_ms: int, **more: Any) -> int:
                return int((await one.call(29, **place_, timestamp=time_ms, **more)).ext_fields["offset"])

            last = messages[-1].store_timestamp
            assert await search(0) == 0
            assert await search(-1) == 0
            assert await search(first) == 0
            assert await search(last + 1) == 4
            assert await search(last, boundaryType="UPPER") == 3
            assert await search(last, boundaryType="upper") == 3
            assert await search(first, boundaryType="LOWER") == 0
            for code in (29, 30, 31, 32):
                answer = await one.call(code, topic="T", timestamp=0)
                assert answer.code == 1
                assert "queueId" in str(answer.remark)
                assert (await one.call(code, topic="T", timestamp=0, queueId=-1)).code == 1

    run(flow())


def test_all_offsets_and_the_lowest_of_all_groups(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            nothing = json.loads((await one.call(43)).body)
            assert nothing["offsetTable"] == {}
            assert set(nothing["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
            for _ in range(9):
                await one.send("T", b"x")
            for group, offset in (("g", 7), ("h", 4), ("i", 2)):
                one.context.groups.get(group)
                await commit(one, offset, consumerGroup=group)
            table = json.loads((await one.call(43)).body)["offsetTable"]
            assert table == {"T@g": {"0": 7}, "T@h": {"0": 4}, "T@i": {"0": 2}}

            async def lowest(**more: str) -> dict[str, int]:
                body = json.loads((await one.call(308, topic="T", **more)).body)
                found: dict[str, int] = body["correctionOffsets"]
                return found

            assert await lowest() == {"0": 2}
            assert await lowest(filterGroups="i,none") == {"0": 4}
            assert await lowest(filterGroups="i,none", compareGroup="i") == {"0": 2**63 - 1}
            assert await lowest(compareGroup="g") == {"0": 2}
            assert await lowest(compareGroup="none") == {"0": 2}
            assert one.context.offsets.get("i", "T", 0) == 2  # what is filtered out is not deleted

    run(flow())
