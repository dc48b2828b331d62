"""The runtime info of a broker: every key that dashboards, the exporter and clusterList read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from running import Running, serve

from mqfast.broker.admin.runtime_info import size_text

# What a Java broker 5.5.0 answers, without the keys that a setting adds.
KEYS = re.findall(
    r"\w+",
    """
    EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
    ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersionDesc
    commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio
    dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps
    getTotalTps getTransferredTps litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills
    litePullThreadPoolQueueSize msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning
    msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills
    pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99
    putLatency999 putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
    putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
    sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
    timerOffsetBehind timerReadBehind
    """,
)


async def info(one: Running) -> dict[str, str]:
    answer = await one.call(28)
    assert answer.code == 0
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


def test_every_key_is_there_as_text(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        found = await info(one)
        assert set(KEYS) <= set(found)
        assert all(isinstance(value, str) for value in found.values())
        assert any(name.startswith("commitLogDiskRatio_/") for name in found)
        for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
            assert len([float(part) for part in found[name].split(" ")]) == 3
        assert (found["brokerActive"], found["brokerVersion"]) == ("true", "513")
        assert found["runtime"].startswith("[ 0 days, 0 hours, 0 minutes,")
        assert found["putMessageDistributeTime"].split(" ")[0] == "[<=0ms]:0"

    serve(tmp_path, flow)


def test_values_move_with_messages(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        before = await info(one)
        assert before["earliestMessageTimeStamp"] == "-1"
        for _ in range(10):
            await one.send("T", b"x" * 100)
        one.context.tables.delays.set(2, 5)
        after = await info(one)
        assert after["putMessageTimesTotal"] == "10"
        assert after["msgPutTotalTodayNow"] == "10"
        assert float(after["putMessageAverageSize"]) > 100
        assert int(after["commitLogMaxOffset"]) == int(after["putMessageSizeTotal"])
        assert int(after["earliestMessageTimeStamp"]) > 0
        assert after["scheduleMessageOffset_2"] == "5,0"
        assert (await one.send("no/topic", b"x")).code == 29

    serve(tmp_path, flow)


def test_a_master_has_no_slaves(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await one.send("T", b"x")
        found = json.loads((await one.call(907)).body)
        assert (found["master"], found["haConnectionInfo"], found["inSyncSlaveNums"]) == (True, [], 0)
        assert found["masterCommitLogMaxOffset"] == one.context.store.log.written

    serve(tmp_path, flow)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (2**70, "1024.0 EiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text
