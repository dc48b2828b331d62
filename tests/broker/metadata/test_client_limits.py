"""What clients may make a broker remember, and how long one of them may hold up the others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

from mqfast.broker.filter import expression_compiler as compiling
from mqfast.broker.filter.sql92_parser import SqlError, SqlExpression, compile_sql, uncompiled
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand


def heartbeat(
    groups: Sequence[str] = (), producers: Sequence[str] = (), client: str = "c", **subscription: Any
) -> bytes:
    one = {"topic": "T", "subString": "*", "subVersion": 1, **subscription}
    consumers = [{"groupName": group, "subscriptionDataSet": [one]} for group in groups]
    made = [{"groupName": group} for group in producers]
    return json.dumps({"clientID": client, "consumerDataSet": consumers, "producerDataSet": made}).encode()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def assert_refused(answer: RemotingCommand, setting: str) -> None:
    assert answer.code != 0
    assert setting in (answer.remark or "")


def test_groups_of_one_connection_have_a_limit(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        beat = RequestCode.HEART_BEAT
        assert (await one.call(beat, heartbeat(names("g", 10), names("p", 10)))).code == 0
        assert (await one.call(beat, heartbeat(names("g", 10), names("p", 10)))).code == 0
        assert_refused(await one.call(beat, heartbeat(["more"])), "clientGroupsMax=10")
        assert_refused(await one.call(beat, heartbeat(producers=["more"])), "clientGroupsMax=10")
        for number in range(9):
            assert (await one.call(beat, heartbeat(producers=["p0"], client=f"c{number}"))).code == 0
        assert_refused(await one.call(beat, heartbeat(producers=["p0"], client="many ids")), "clientGroupsMax=10")
        await one.call(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="g0", producerGroup="p0")
        assert (await one.call(beat, heartbeat(["more"], ["more"]))).code == 0
        other = RemotingClient()
        assert (await other.call(one.address, beat, body=heartbeat(["more"], ["more"]))).code == 0
        await other.close()

    serve(tmp_path, flow, clientGroupsMax=10)


def test_members_of_all_groups_have_a_limit_and_room_comes_back(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        other = RemotingClient()
        beat = RequestCode.HEART_BEAT
        assert (await other.call(one.address, beat, body=heartbeat(names("g", 6), names("p", 6)))).code == 0
        assert_refused(await one.call(beat, heartbeat(names("g", 6))), "groupMembersMax=10")
        assert_refused(await one.call(beat, heartbeat(producers=names("p", 6))), "groupMembersMax=10")
        await other.close()
        async with asyncio.timeout(300):
            while (await one.call(beat, heartbeat(names("g", 6), names("p", 6)))).code:
                await asyncio.sleep(0.01)

    serve(tmp_path, flow, groupMembersMax=10)


def test_the_text_of_all_subscriptions_has_a_limit(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        beat, long = RequestCode.HEART_BEAT, "x" * 6000
        assert (await one.call(beat, heartbeat(["a"], subString=long))).code == 0
        assert_refused(await one.call(beat, heartbeat(["b"], subString=long)), "subscriptionBytesMax=10000")
        assert (await one.call(beat, heartbeat(["a"], subString="*", subVersion=2))).code == 0
        assert (await one.call(beat, heartbeat(["b"], subString=long))).code == 0
        await one.call(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="b")
        assert (await one.call(beat, heartbeat(["a"], subString=long, subVersion=3))).code == 0
        too_long = heartbeat(["a"], names("p", 90_000))
        assert len(too_long) > 1 << 20
        assert_refused(await one.call(beat, too_long), "at most 1048576 bytes")
        assert_refused(await one.call(beat, heartbeat(producers=["n" * 2000])), "names of at most 1024 characters")

    serve(tmp_path, flow, subscriptionBytesMax=10_000)


def lock_body(group: str, queues: list[tuple[str, int]], broker: str = "broker-a") -> bytes:
    wanted = [{"topic": topic, "queueId": queue_id, "brokerName": broker} for topic, queue_id in queues]
    return json.dumps({"consumerGroup": group, "clientId": "c", "mqSet": wanted}).encode()


def test_locks_are_of_queues_that_exist(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        async def granted(*queues: tuple[str, int], group: str = "g", broker: str = "broker-a") -> int:
            answer = await one.call(RequestCode.LOCK_BATCH_MQ, lock_body(group, list(queues), broker))
            assert answer.code == 0
            return len(json.loads(bytes(answer.body))["lockOKMQSet"])

        assert (await one.send("T", b"x", queues=4)).code == 0
        assert await granted(("T", 0), group="nobody") == 0
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat(["g", "h"]))).code == 0
        assert await granted(("T", 0), ("T", 3), ("T", 4), ("T", -1), ("none", 0)) == 2
        assert await granted(("T", 0), broker="another") == 0
        assert await granted(("T", 0), ("T", 1), group="h") == 1  # queueLocksMax
        body = lock_body("g", [("T", 0), ("T", 3)])
        assert (await one.call(RequestCode.UNLOCK_BATCH_MQ, body)).code == 0
        assert await granted(("T", 0), ("T", 1), group="h") == 2

    serve(tmp_path, flow, queueLocksMax=3)


def test_offsets_are_of_queues_that_exist(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        async def commit(topic: str, queue_id: int) -> RemotingCommand:
            fields = {"consumerGroup": "g", "topic": topic, "queueId": queue_id, "commitOffset": 1}
            return await one.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)  # type: ignore[no-any-return]

        assert (await one.send("T", b"x", queue_id=3, queues=4)).code == 0
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat(["g"]))).code == 0
        assert (await commit("T", 3)).code == 0
        for queue_id in (4, 2**31 - 1):
            assert_refused(await commit("T", queue_id), "has no such queue")
        assert_refused(await commit("none", 0), "not exist")
        raw = {**one.context.topics.table.get("T").raw, "readQueueNums": 1, "writeQueueNums": 1}  # type: ignore[union-attr]
        one.context.topics.put(raw)
        assert (await commit("T", 3)).code == 0  # the queue is there, and its messages
        assert_refused(await commit("T", 2), "has no such queue")
        assert one.context.offsets.offsets("g") == {"T": {3: 1}}

    serve(tmp_path, flow)


def test_topics_and_groups_that_clients_make_have_limits(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        room = 200 - len(one.context.topics.table)
        for number in range(room):
            assert (await one.send(f"t{number}", b"x")).code == 0
        refused = await one.send("more", b"x")
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST
        assert_refused(refused, "maxAutoCreatedTopics")
        assert (await one.send("t0", b"x")).code == 0
        made = await one.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic="by an admin".replace(" ", "-"), readQueueNums=1,
            writeQueueNums=1, perm=6, topicFilterType="SINGLE_TAG",
        )  # fmt: skip
        assert made.code == 0
        room = 20 - len(one.context.groups.table)
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat(names("g", room + 5)))).code == 0
        assert len(one.context.groups.table) == 20
        assert one.context.consumers.group(f"g{room}") is None

    serve(tmp_path, flow, maxAutoCreatedTopics=200, maxAutoCreatedGroups=20)


# --- SQL92 ------------------------------------------------------------------------------------------------------------


def expression(seed: str, terms: int) -> str:
    return " OR ".join(f"{seed}{i} = {i}" for i in range(terms))


def test_errors_are_kept_as_expressions_are() -> None:
    bad = expression("bad", 50) + " OR ("
    assert uncompiled([bad, "x" * 40_000]) == [bad]
    for _ in range(2):
        with pytest.raises(SqlError, match="expected an SQL92 condition"):
            compile_sql(bad)
        assert uncompiled([bad]) == []


@pytest.mark.parametrize("how", ["heartbeat", "check", "pull"])
def test_expressions_are_compiled_while_others_are_served(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_served = threading.Event()

    def after_others(text: str) -> SqlExpression:
        assert others_served.wait(60), "nobody was served while an expression waited to be compiled"
        return compile_sql(text)

    async def flow(one: Running) -> None:
        monkeypatch.setattr(compiling, "compile_sql", after_others)
        assert (await one.send("T", b"x")).code == 0
        assert (await one.call(RequestCode.HEART_BEAT, heartbeat(["g"]))).code == 0
        other = RemotingClient()
        texts = [expression(f"{how}{number}", 700) for number in range(10)]
        subscriptions = [{"topic": f"T{i}", "subString": t, "expressionType": "SQL92"} for i, t in enumerate(texts)]
        if how == "heartbeat":
            body = json.dumps({"clientID": "c", "consumerDataSet": [
                {"groupName": "g", "subscriptionDataSet": subscriptions}]}).encode()  # fmt: skip
            work = one.call(RequestCode.HEART_BEAT, body, timeout_ms=60_000)
        elif how == "check":
            body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscriptions[0]}).encode()
            work = one.call(RequestCode.CHECK_CLIENT_CONFIG, body, timeout_ms=60_000)
        else:
            work = one.call(
                RequestCode.PULL_MESSAGE, timeout_ms=60_000, consumerGroup="g", topic="T", queueId=0, queueOffset=0,
                maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription=texts[0],
                expressionType="SQL92", subVersion=1,
            )  # fmt: skip
        task = asyncio.ensure_future(work)
        for _ in range(3):
            assert (await other.call(one.address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=60_000)).code == 0
        assert not task.done()
        others_served.set()
        assert (await task).code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
        if how == "heartbeat":
            assert all(one.context.filters.get(f"T{i}", "g") is not None for i in range(10))
        await other.close()

    serve(tmp_path, flow, enablePropertyFilter=True)


def test_one_connection_compiles_one_request_at_a_time_and_so_much_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flow(one: Running) -> None:
        beat = RequestCode.HEART_BEAT
        sql = {"expressionType": "SQL92"}
        first, second = (heartbeat(["g"], subString=expression(f"only{i}", 700), **sql) for i in range(2))
        answers = await asyncio.gather(one.call(beat, first), one.call(beat, first), one.call(beat, second))
        assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_BUSY]
        assert (await one.call(beat, second)).code == 0
        monkeypatch.setattr(compiling, "REQUEST_CHARS_MAX", 1000)
        large = heartbeat(["g"], subString=expression("large", 700), **sql)
        assert_refused(await one.call(beat, large), "at most 1000 characters in a request")
        assert (await one.call(beat, second)).code == 0  # kept

    serve(tmp_path, flow, enablePropertyFilter=True)
