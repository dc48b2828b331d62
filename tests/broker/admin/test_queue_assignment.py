"""Which queues a client has when it asks the broker, and the calls that have nothing to do here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Running, running_broker, serve

sys.path.append(str(Path(__file__).resolve().parents[1]))

from two_brokers import name_server, run

from mqfast.broker.admin.bodies import QueueBody
from mqfast.broker.admin.queue_assignment import allocated, shared
from mqfast.errors import CallRefused

HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
}
ASKED = {
    "topic": "T", "consumerGroup": "g", "clientId": "c", "strategyName": "AVG", "messageModel": "CLUSTERING",
}  # fmt: skip


def queues(many: int) -> list[QueueBody]:
    return [QueueBody("b", number, "T") for number in range(many)]


def shares(strategy: str, many: int, clients: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in allocated(strategy, queues(many), clients, one)] for one in clients]


def test_averages_by_rocketmqs_rule() -> None:
    assert shares("AVG", 7, ["a", "b", "c"]) == [[0, 1, 2], [3, 4], [5, 6]]
    assert shares("AVG", 2, ["a", "b", "c"]) == [[0], [1], []]
    assert shares("AVG_BY_CIRCLE", 7, ["a", "b", "c"]) == [[0, 3, 6], [1, 4], [2, 5]]
    assert allocated("AVG", queues(3), ["a"], "stranger") == []


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_every_queue_has_one_owner(strategy: str) -> None:
    for many in range(1, 20):
        for clients in range(1, 8):
            found = shares(strategy, many, [f"10.0.0.{n}@1" for n in range(clients)])
            assert sorted(queue for share in found for queue in share) == list(range(many))


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(CallRefused, match="MACHINE_ROOM is not supported"):
        allocated("MACHINE_ROOM", queues(1), ["a"], "a")


def test_a_client_asks_for_its_queues(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await one.call(17, topic="T", readQueueNums=4, writeQueueNums=4, perm=6)
        await one.call(34, json.dumps(HEARTBEAT).encode())

        async def assigned(**more: Any) -> list[int]:
            answer = await one.call(400, json.dumps({**ASKED, **more}).encode())
            assert answer.code == 0
            rows = json.loads(answer.body).get("messageQueueAssignments", [])
            assert all(row["mode"] == "PULL" and row["messageQueue"]["brokerName"] == "broker-a" for row in rows)
            return [row["messageQueue"]["queueId"] for row in rows]

        assert await assigned() == [0, 1, 2, 3]
        assert await assigned(clientId="other") == []
        assert await assigned(clientId="other", messageModel="BROADCASTING") == [0, 1, 2, 3]
        assert await assigned(topic="no") == []

    serve(tmp_path, flow)


def test_queues_of_all_brokers_are_assigned(tmp_path: Path) -> None:
    """A client asks one broker: whichever one answers, the client gets the same queues."""

    async def flow() -> None:
        async with name_server(tmp_path) as names, contextlib.AsyncExitStack() as stack:
            brokers = []
            for broker in ("b1", "b2"):
                made = running_broker(tmp_path / broker, namesrvAddr=names, brokerName=broker)
                brokers.append(await stack.enter_async_context(made))
                await brokers[-1].call(17, topic="T", readQueueNums=2, writeQueueNums=2, perm=6)
            for running in brokers:
                await running.call(34, json.dumps(HEARTBEAT).encode())
                body = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
                assigned = []
                for _ in ("PULL", "POP"):
                    answer = await running.call(400, json.dumps(ASKED).encode())
                    rows = [row["messageQueue"] for row in json.loads(answer.body)["messageQueueAssignments"]]
                    assigned.append([(row["brokerName"], row["queueId"]) for row in rows])
                    assert (await running.call(401, json.dumps(body).encode())).code == 0
                assert assigned == [[("b1", 0), ("b1", 1), ("b2", 0), ("b2", 1)], [("b1", -1), ("b2", -1)]]

    run(flow)


def test_a_silent_name_server_delays_no_other_requests(tmp_path: Path) -> None:
    """Many requests for unknown topics wait for the name server, or share one wait; admin requests go on."""

    async def flow() -> None:
        taken: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
        address = "{}:{}".format(*silent.sockets[0].getsockname())
        async with running_broker(tmp_path, namesrvAddr=address) as running:
            wanted = [json.dumps({**ASKED, "topic": f"unknown-{number}"}).encode() for number in range(70)]
            assert (await running.call(26)).code == 0
            assignments = [asyncio.ensure_future(running.call(400, body)) for body in wanted]
            await asyncio.sleep(0)  # all are written, in this order
            assert (await running.call(26)).code == 0
            assert not any(assignment.done() for assignment in assignments)
            answers = await asyncio.gather(*assignments)
            assert {answer.code for answer in answers} == {0}
            assert json.loads((await running.call(400, wanted[0].replace(b"-0", b"-later"))).body) == {}
        for writer in taken:
            writer.close()
        silent.close()

    run(flow)


def test_how_topics_are_consumed(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        async def mode(**more: Any) -> tuple[int, str | None]:
            body = {"topic": "TBW102", "consumerGroup": "g", "mode": "PULL", "popShareQueueNum": 0, **more}
            answer = await one.call(401, json.dumps(body).encode())
            return answer.code, answer.remark

        assert await mode() == (0, None)
        assert await mode(topic="%RETRY%g") == (16, "retry topic is not allowed to set mode")
        assert (await mode(mode="PUSH"))[0] == 29
        assert await mode(consumerGroup="no group!") == (26, "subscription group does not exist")
        assert await mode(topic="no") == (17, "topic[no] not exist")
        found = json.loads((await one.call(402)).body)["messageRequestModeMap"]
        assert found["TBW102"]["g"]["mode"] == "PULL"

    serve(tmp_path, flow)


def test_calls_about_cold_data_are_answered(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(2001, b"g=1\n")).code == (await one.call(2002, b"g")).code == 0
        assert json.loads((await one.call(2003)).body)["globalAcc"] == 0
        answers = [await one.call(2004, **fields) for fields in ({}, {"READ_AHEAD_MODE": 3}, {"READ_AHEAD_MODE": 1})]
        assert [answer.code for answer in answers] == [1, 29, 0]

    serve(tmp_path, flow)


@pytest.mark.parametrize(
    ("share", "clients", "expected"),
    [
        (-1, ["a", "b", "c"], [-1]),
        (2, ["a", "b", "c"], [-1]),
        (1, ["a", "b", "c", "d"], [0, 1, 2, 3]),
        (1, ["a", "b", "c", "d", "e", "f", "g", "h", "i"], [0]),
        (1, ["b", "c", "d"], []),
    ],
)
def test_queues_of_pop_clients(share: int, clients: list[str], expected: list[int]) -> None:
    assert [queue.queue_id for queue in shared("AVG", queues(8), clients, "a", share)] == expected
