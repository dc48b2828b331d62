"""The collector: requests by broker and not by topic or group, ages, history, and names of any kind.

Room: tests of the console.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_cluster import commit, many
from members import member, send
from running import BrokerProcess

from mqfast.console.ages import UnreadAges
from mqfast.console.broker_wide import BrokerWideClient, QueuePlace, read_places
from mqfast.console.collector import Collector
from mqfast.console.fetch_static import fetch, missing
from mqfast.console.history import SLOTS, History
from mqfast.console.members import Members
from mqfast.console.state import ClusterState, GroupState, Unknown
from mqfast.remoting.codes import RequestCode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("collector")) as running:
        yield running


def collected(namesrv: str, rounds: int = 1) -> tuple[ClusterState, list[int]]:
    """The state after some rounds, and the number of requests of each."""

    async def run() -> tuple[ClusterState, list[int]]:
        async with BrokerWideClient(namesrv, timeout_s=30) as admin:
            collector = Collector(admin, Members(admin))
            requests = []
            for _ in range(rounds):
                await collector.collect()
                requests.append(collector.state.requests)
            return collector.state, requests

    return asyncio.run(run())


def test_a_round_has_as_many_requests_for_900_topics_as_for_few(cluster: BrokerProcess) -> None:
    many(cluster.broker, 40)
    few = collected(cluster.namesrv)[1]
    many(cluster.broker, 900)
    state, requests = collected(cluster.namesrv)
    assert requests == few
    assert sum(name.startswith("topic-") for name in state.topics) == 900
    assert sum(name.startswith("group-") for name in state.groups) == 900


def test_lag_rate_and_age_are_those_of_the_broker(cluster: BrokerProcess) -> None:
    many(cluster.broker, 40)
    send(cluster.broker, "topic-7", *(b"%d" % number for number in range(20)))
    commit(cluster.broker, "group-7", "topic-7", 0, 5)
    commit(cluster.broker, "group-8", "topic-7", 0, 20)
    state, _ = collected(cluster.namesrv, rounds=2)
    late, done = state.groups["group-7"], state.groups["group-8"]
    assert (late.lag, late.topics, done.lag, done.age_s) == (15, ["topic-7"], 0, 0)
    assert not isinstance(late.age_s, Unknown)
    assert late.age_s > 0
    assert not late.age_is_least  # the broker was asked for the age of the worst groups
    assert state.topics["topic-7"].groups == ["group-7", "group-8"]
    assert state.groups_behind(3)[0].name == "group-7"
    assert isinstance(state.groups["group-9"].lag, Unknown)  # nothing was committed: that is no zero


@pytest.mark.parametrize(
    "body",
    [
        b'{"consumeStatsList":[{"g":[{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:'
        b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":1}}}]}]}',
        b'{"consumeStatsList":[{"g":[{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"t\\"}":'
        b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":1}}}]}]}',
    ],
    ids=["object as key", "text as key"],
)
def test_both_forms_of_queues_as_keys_are_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[str, list[QueuePlace]] = {}
    list(read_places(body, places))
    assert places == {"g": [QueuePlace("t", "b", 3, 9, 4, 1)]}


def test_a_silent_member_delays_one_page_and_is_not_asked_again_for_a_while(cluster: BrokerProcess) -> None:
    many(cluster.broker, 40)

    async def run() -> tuple[list[Any], int]:
        async with (
            BrokerWideClient(cluster.namesrv, timeout_s=30) as admin,
            member(cluster.namesrv, "group-3", "topic-3") as silent,
        ):
            silent.is_silent = True
            members = Members(admin)
            collector = Collector(admin, members)
            await collector.collect()
            group = collector.state.groups["group-3"]
            await collector.ask_members(collector.state, group)
            answers = [await members.of(group) for _ in range(4)]
            asked = sum(code == RequestCode.GET_CONSUMER_RUNNING_INFO for code, _, _ in silent.asked)
            return answers, asked

    answers, asked = asyncio.run(run())
    assert asked == 1
    causes = {row.queues.cause for rows in answers for row in rows}
    assert causes == {"the member did not answer in 2 s"}


def test_a_large_answer_is_read_in_small_steps() -> None:
    queues = ",".join(
        f'{{"brokerName":"b","queueId":{queue},"topic":"t"}}:{{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":1}}'
        for queue in range(40)
    )
    groups = ",".join(f'{{"g{number}":[{{"offsetTable":{{{queues}}}}}]}}' for number in range(500))
    places: dict[str, list[QueuePlace]] = {}
    body = f'{{"consumeStatsList":[{groups}]}}'.encode()
    assert sum(1 for _ in read_places(body, places)) > 500 + len(body) // 200_000
    assert (len(places), {len(rows) for rows in places.values()}) == (500, {40})


# --- ages and history, without a cluster ---


def place(end: int, committed: int) -> GroupState:
    return GroupState("g", places=[QueuePlace("t", "b", 0, end, committed, 0)])


def test_an_age_is_exact_once_the_message_came_under_watch() -> None:
    ages = UnreadAges()
    assert ages.of(place(10, 10), 100.0, is_new=True) == (0.0, False)
    assert ages.of(place(15, 10), 110.0, is_new=False) == (0.0, False)
    assert ages.of(place(30, 10), 120.0, is_new=False) == (10.0, False)
    assert ages.of(place(30, 16), 130.0, is_new=False) == (10.0, False)  # message 16 came at 120
    assert ages.of(place(30, 30), 140.0, is_new=False) == (0.0, False)


def test_an_age_from_before_the_first_round_is_a_bound() -> None:
    ages = UnreadAges()
    assert ages.of(place(10, 4), 100.0, is_new=True) == (0.0, True)
    assert ages.of(place(10, 4), 160.0, is_new=False) == (60.0, True)
    assert ages.of(place(20, 10), 170.0, is_new=False) == (0.0, False)


def test_a_history_is_bounded_and_a_gap_is_no_zero() -> None:
    history = History(slot_s=10, series_max=2)
    history.add(1000.0, {("lag", "a"): 1.0, ("lag", "b"): 0.0, ("lag", "c"): 5.0})
    assert len(history) == 2  # a zero begins no series
    history.add(1020.0, {("lag", "a"): 2.0})
    assert history.values("lag", "a", 4) == [None, 1.0, 2.0, 2.0]
    assert history.values("lag", "c", 4) == [None, 5.0, None, None]
    assert history.values("lag", "b", 4) == [None] * 4
    history.add(1030.0, {("lag", "d"): 9.0})  # the smallest makes room
    assert len(history) == 2
    assert history.values("lag", "a", 1) == [None]
    for number in range(SLOTS + 5):
        history.add(1040.0 + 10 * number, {("lag", "d"): float(number)})
    assert len(history.values("lag", "d")) == SLOTS
    assert history.times(2)[1] - history.times(2)[0] == 10


def test_a_file_with_another_checksum_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            return b"another archive"

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Answer())
    with pytest.raises(ValueError, match="expected the checksum sha512-"):
        fetch(tmp_path, "https://registry.example")
    assert list(tmp_path.iterdir()) == []
    assert len(missing(tmp_path)) == 5
