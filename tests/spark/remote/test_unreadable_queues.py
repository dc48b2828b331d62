"""Queues that a broker does not hand out now: topics made smaller, without permission to read, denied to an account.

No Spark processes: readers are called as Spark calls them. A queue that comes back goes on where the
stream left it, and messages that consumers may not read are neither an error nor lost.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")
pytest.importorskip("msgspec")

from places import Place, flat, numbers, read, to_the_end

from mqfast.client.net.request_steps import Request, checked
from mqfast.client.values import Credentials
from mqfast.errors import ConfigError, ConnectError, DataLoss, Refused
from mqfast.remoting.codes import RequestCode
from mqfast.spark import options as table
from mqfast.spark.archive_then_live import StreamFromArchive
from mqfast.spark.jobs import archive
from mqfast.spark.jobs.archive_cluster import archive_cluster
from mqfast.spark.jobs.locations import ClusterLocation
from mqfast.spark.remote import cluster as remote
from mqfast.spark.source import MqFastSource
from mqfast.testing import Broker

LOOSE = {"failOnDataLoss": "false"}
QUEUES = 4


@pytest.fixture
def one() -> Iterator[Place]:
    """Queues 0 to 3 of 10 messages each."""
    with Broker(topics={"orders": QUEUES, "other": 1}) as broker:
        send(broker, 0, 40)
        yield Place(broker, "", "broker")


def send(broker: Broker, first: int, end: int, topic: str = "orders", queues: Sequence[int] = range(QUEUES)) -> None:
    for n in range(first, end):
        broker.send(topic, b"%06d" % n, queue_id=queues[n % len(queues)])


def asked(address: str, code: int, fields: dict[str, Any], body: bytes) -> Any:
    return checked((yield Request(address, code, fields, body)), address)


def set_topic(broker: Broker, topic: str, *, reads: int = QUEUES, writes: int = QUEUES, perm: int = 6) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(reads), "writeQueueNums": str(writes),
        "perm": str(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    with broker.admin() as admin:
        admin._run(asked(next(iter(broker.addresses.values())), RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b""))

    options = table.parse({"namesrv": broker.namesrv_addr}, table.BATCH)

    def is_told() -> bool:
        route = remote.RemoteCluster(options).route(topic)
        assert route is not None
        [data] = route.queue_datas
        return (data.read_queue_nums, data.write_queue_nums, data.perm) == (reads, writes, perm)

    broker.wait_until(is_told, timeout_s=30)


class Stream:
    """A stream whose every run is a new reader that goes on from the checkpoint, as ``Trigger.AvailableNow``."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.place, self.options = place, {"subscribe": "orders", "startingOffsets": "earliest", **options}
        self.at: dict[str, Any] | None = None

    def run(self, **more: Any) -> list[int]:
        reader = self.place.stream(**self.options, **more)
        try:
            start = json.loads(json.dumps(reader.initialOffset())) if self.at is None else self.at
            reader.prepareForTriggerAvailableNow()
            batches, self.at = to_the_end(reader, start)
            reader.commit(self.at)
            return flat(batches)
        finally:
            reader.stop()


# What an operator does, what is left to read, and what undoes it.
CHANGES = {
    "smaller": ({"reads": 2, "writes": 2}, [0, 1]),
    "fewer to read": ({"reads": 2}, [0, 1]),
    "write-only": ({"perm": 2}, []),
    "none": ({"perm": 0}, []),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{}, LOOSE])
def test_an_unreadable_queue_keeps_its_offset(one: Place, change: str, options: dict[str, str]) -> None:
    given, left = CHANGES[change]
    stream = Stream(one, **options)
    assert stream.run() == list(range(40))
    set_topic(one.broker, "orders", **given)
    assert stream.run() == []
    queues = range(given.get("writes", QUEUES))
    send(one.broker, 40, 48, queues=queues)  # past the permissions of the topic
    now = [n for n in range(40, 48) if queues[n % len(queues)] in left]
    assert stream.run() == now
    set_topic(one.broker, "orders")
    send(one.broker, 48, 52)
    assert stream.run() == [n for n in range(40, 52) if n not in now]
    assert stream.run() == []
    assert "lost" not in stream.at["stores"]["broker-a"]


def test_a_queue_that_is_not_read_yet_when_the_stream_begins(one: Place) -> None:
    set_topic(one.broker, "orders", reads=2)
    stream = Stream(one, startingOffsets="latest")
    assert stream.run() == []
    send(one.broker, 40, 44)
    set_topic(one.broker, "orders")
    assert stream.run() == [40, 41, 42, 43]


def test_a_running_stream_goes_on_with_the_queues_that_are_left(
    one: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqfast.spark.remote.cluster.ROUTE_S", 0.0)
    reader = one.stream(subscribe="orders", startingOffsets="earliest")
    _, end = to_the_end(reader, reader.initialOffset())
    set_topic(one.broker, "orders", reads=1)
    send(one.broker, 40, 44)
    with caplog.at_level(logging.WARNING, "mqfast.spark"):
        more, end = to_the_end(reader, end)
    assert flat(more) == [40]
    assert "queues orders/1, orders/2, orders/3" in caplog.text
    set_topic(one.broker, "orders")
    last, end = to_the_end(reader, end)
    assert flat(last) == [41, 42, 43]
    reader.stop()


def test_a_deleted_topic_is_still_a_loss_and_one_that_is_the_same_again_goes_on(tmp_path: Path) -> None:
    with Broker(store=tmp_path) as broker:
        broker.create_topic("orders", QUEUES)
        send(broker, 0, 40)
        place = Place(broker, "", "broker")
        strict, loose = Stream(place), Stream(place, **LOOSE)
        assert strict.run() == loose.run() == list(range(40))
        topics = next(tmp_path.rglob("topics.json"))
        broker.stop()
        before = topics.read_bytes()
        for file in topics.parent.glob("topics.json*"):
            file.write_bytes(before.replace(b'"orders"', b'"moved"'))
        broker.restart()
        with pytest.raises(DataLoss, match="orders/0: the stream is at 10, and the queue is gone"):
            strict.run(brokers="broker-a")
        assert loose.run(brokers="broker-a") == []
        assert loose.at is not None
        assert loose.at["stores"]["broker-a"]["lost"]["times"] == QUEUES
        broker.stop()
        for file in topics.parent.glob("topics.json*"):
            file.write_bytes(before)
        broker.restart()
        send(broker, 40, 42)
        assert strict.run() == loose.run() == [40, 41]
        assert loose.at["stores"]["broker-a"]["lost"]["times"] == QUEUES


# --- batches and views -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filled", [False, True])
def test_more_queues_for_writing_than_for_reading(one: Place, filled: bool, caplog: pytest.LogCaptureFixture) -> None:
    set_topic(one.broker, "orders", reads=2)
    if not filled:
        one.broker.create_topic("orders2", 2)
        set_topic(one.broker, "orders2", reads=2)
    topic = "orders" if filled else "orders2"
    if not filled:
        send(one.broker, 0, 40, topic, (0, 1, 0, 1))
    expected = [n for n in range(40) if n % QUEUES < 2] if filled else list(range(40))
    send(one.broker, 100, 101, "other", (0,))
    with caplog.at_level(logging.WARNING, "mqfast.spark"):
        for ways in ({"subscribe": topic}, {"subscribePattern": topic}, {"assign": f"{topic}/0,{topic}/1"}):
            assert numbers(one.batch(**ways)) == expected
            ends = {"startingOffsets": "-1000", "endingTimestamp": "2099-01-01T00:00:00Z"}
            assert numbers(one.batch(**ways, **ends)) == expected
    assert ("queues orders/2, orders/3 have messages and are not read" in caplog.text) == filled
    assert set(expected) < set(numbers(one.batch()))
    assert Stream(one, subscribe=topic).run() == expected
    with pytest.raises(ConfigError, match=f"queue {topic}/3 cannot be read now"):
        one.batch(assign=f"{topic}/0,{topic}/3")
    rows = one.batch(view="queues", subscribe=topic)
    assert [row["messages"] for row in rows] == ([10] * 4 if filled else [20, 20, 0, 0])


def test_views_read_counts_and_never_pull(one: Place) -> None:
    set_topic(one.broker, "orders", perm=2)
    before = len(one.broker.requests(RequestCode.PULL_MESSAGE))
    rows = one.batch(view="queues")
    assert [row["messages"] for row in rows if row["topic"] == "orders"] == [10] * QUEUES
    sent = [one.broker.messages("orders", queue_id=n) for n in range(QUEUES)]
    times = [(row["minTimestamp"], row["maxTimestamp"]) for row in rows if row["topic"] == "orders"]
    assert [(round(low.timestamp() * 1000), round(high.timestamp() * 1000)) for low, high in times] == [
        (found[0].store_timestamp, found[-1].store_timestamp) for found in sent
    ]
    assert {row["minTimestamp"] for row in rows if row["topic"] == "other"} == {None}
    one.batch(view="groups")
    assert len(one.broker.requests(RequestCode.PULL_MESSAGE)) == before


# --- accounts --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def denied() -> Iterator[Place]:
    """An account that may read orders and counts of everything, and not secret."""
    rules = {
        "authenticationEnabled": "true", "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    }  # fmt: skip
    entries = [
        {"resource": resource, "actions": actions, "decision": "Allow"}
        for resource, actions in (
            ("Topic:orders", ["Sub"]), ("Group:TOOLS_CONSUMER", ["Sub"]), ("Topic:*", ["Get"]), ("Cluster:*", ["All"]),
        )
    ]  # fmt: skip
    with Broker(topics={"orders": QUEUES, "secret": 1}, config=rules) as broker:
        send(broker, 0, 40)
        broker.send("secret", b"000099")
        with broker.admin(credentials=Credentials("root", "root-secret")) as admin:
            address = next(iter(broker.addresses.values()))
            for code, fields, body in (
                (RequestCode.AUTH_CREATE_USER, {"username": "reader"},
                 {"username": "reader", "password": "reader-secret", "userType": "Normal"}),
                (RequestCode.AUTH_CREATE_ACL, {"subject": "User:reader"},
                 {"subject": "User:reader", "policies": [{"policyType": "Custom", "entries": entries}]}),
            ):  # fmt: skip
                admin._run(asked(address, code, fields, json.dumps(body).encode()))
        place = Place(broker, "", "broker")
        place.options |= {"accessKey": "reader", "secretKey": "reader-secret"}
        yield place


def test_a_topic_without_permission_is_named_and_can_be_left_out(denied: Place) -> None:
    for ways in ({}, {"subscribePattern": "orders|sec.*"}, {"subscribe": "orders,secret"}):
        with pytest.raises(Refused, match=r"topic secret .* no permission to read.*excludeTopics"):
            denied.batch(**ways)
        with pytest.raises(Refused, match=r"topic secret .* no permission to read.*excludeTopics"):
            Stream(denied, **{"subscribe": None, **ways}).run() if "subscribe" in ways else all_topics(denied, **ways)
    for exclude in ("secret", "sec*"):
        assert numbers(denied.batch(excludeTopics=exclude)) == list(range(40))
        assert numbers(denied.batch(subscribePattern=".*", excludeTopics=exclude)) == list(range(40))
        assert all_topics(denied, excludeTopics=exclude) == list(range(40))
    assert sum(row["messages"] for row in denied.batch(view="queues")) == 41
    with pytest.raises(ConfigError, match="options excludeTopics and subscribe"):
        denied.batch(subscribe="orders", excludeTopics="secret")


def all_topics(place: Place, **options: Any) -> list[int]:
    reader = place.stream(startingOffsets="earliest", **options)
    try:
        return flat(to_the_end(reader, reader.initialOffset())[0])
    finally:
        reader.stop()


# --- between plan and task -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("perm", [2, 6])
def test_a_planned_batch_waits_for_a_queue_that_became_unreadable(one: Place, perm: int) -> None:
    """As when a driver was killed in the middle of a batch: its offsets are in the checkpoint already."""
    planning = one.stream(subscribe="orders", startingOffsets="earliest")
    start = json.loads(json.dumps(planning.initialOffset()))
    end = json.loads(json.dumps(planning.latestOffset(start, planning.getDefaultReadLimit())))
    planning.stop()
    set_topic(one.broker, "orders", reads=2, writes=2, perm=perm)
    reader = one.stream(subscribe="orders", brokerTimeout="300ms")
    with pytest.raises(ConnectError, match=r"queue orders/\d of broker broker-a is not read now"):
        read(reader, start, end)
    reader.stop()
    loose = one.stream(subscribe="orders", brokerTimeout="300ms", **LOOSE)
    assert read(loose, start, end) == ([n for n in range(40) if n % QUEUES < 2] if perm == 6 else [])
    loose.stop()
    waiting = one.stream(subscribe="orders", brokerTimeout="60s")
    timer = threading.Timer(0.5, set_topic, [one.broker, "orders"])
    timer.start()
    assert read(waiting, start, end) == list(range(40))
    timer.join()
    waiting.stop()


# --- archives, groups ------------------------------------------------------------------------------------------------


def archived(settings: archive.ArchiveSettings) -> int:
    """How many messages one run of the archive adds; its tasks run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mqfast.spark.jobs.archive_cluster.run_tasks", lambda spark, items, task, what: [task(one) for one in items]
        )
        manifest, lost = archive_cluster(None, settings, archive.COLUMNS)  # type: ignore[arg-type]
    assert lost == 0
    return sum(file.rows for file in manifest.files)


@pytest.mark.parametrize("change", CHANGES)
def test_an_archive_goes_on_and_a_stream_from_it_begins_at_its_end(one: Place, tmp_path: Path, change: str) -> None:
    given, left = CHANGES[change]
    settings = archive.ArchiveSettings(
        ClusterLocation(one.broker.namesrv_addr), str(tmp_path / "archive"), topics=("orders",)
    )
    assert archived(settings) == 40
    set_topic(one.broker, "orders", **given)
    queues = range(given.get("writes", QUEUES))
    send(one.broker, 40, 44, queues=queues)
    now = [n for n in range(40, 44) if queues[n % len(queues)] in left]
    assert archived(settings) == len(now)
    options = {
        **one.options, "subscribe": "orders", "columns": "body", "startingFrom": f"archive:{tmp_path / 'archive'}",
    }  # fmt: skip
    source = MqFastSource(options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamFromArchive)
    batches, end = to_the_end(reader, json.loads(json.dumps(reader.initialOffset())))
    assert flat(batches) == [*range(40), *now]
    reader.stop()
    set_topic(one.broker, "orders")
    send(one.broker, 44, 48)
    rest = [n for n in range(40, 48) if n not in now]
    again = source.streamReader(source.schema())
    again.prepareForTriggerAvailableNow()
    assert flat(to_the_end(again, end)[0]) == rest
    again.stop()
    assert archived(settings) == len(rest)


def test_progress_of_a_group_is_committed_for_the_queues_that_are_there(tmp_path: Path) -> None:
    with Broker(topics={"orders": 2, "other": 2}, groups=["watchers"], store=tmp_path) as broker:
        send(broker, 0, 20, queues=(0, 1))
        send(broker, 100, 110, "other", (0, 1))
        place = Place(broker, "", "broker")
        stream = Stream(place, subscribe="orders,other", commitGroup="watchers")
        assert len(stream.run()) == 30
        set_topic(broker, "orders", reads=1, writes=1)
        send(broker, 20, 21, queues=(0, 1))
        send(broker, 110, 111, "other", (0, 1))
        assert len(stream.run()) == 2
        send(broker, 22, 23, queues=(0, 1))
        assert len(stream.run()) == 1
        assert sorted(broker.offset("watchers", "other").values()) == [5, 6]
        assert sorted(broker.offset("watchers", "orders").values()) == [10, 12]
