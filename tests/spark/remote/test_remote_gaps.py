"""Messages that a read of a cluster must not miss: behind holes, filters, caches, and brokers that are not known now.

No Spark processes: readers are called as Spark calls them. Answers that no broker of ours gives are made
of those that one gives.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")
pytest.importorskip("msgspec")

from places import Place, flat, numbers, to_the_end
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqfast.errors import ConfigError, ConnectError, DataLoss
from mqfast.spark import options as table
from mqfast.spark.backends import open_backend
from mqfast.spark.listener import GroupListener
from mqfast.spark.remote import cluster, pulls
from mqfast.spark.remote.cluster import RemoteCluster
from mqfast.spark.schema import chosen_columns
from mqfast.spark.source import BatchReader, PushdownBatchReader
from mqfast.store.record.record import decode_record
from mqfast.testing import Broker

ALL = ReadAllAvailable()
SOON = {"brokerTimeout": "1s"}
_SYS_FLAG_AT, _INNER_BATCH = 36, 1 << 7
_TOPIC_STATS, _ALL_TOPICS = 202, 21


@pytest.fixture
def one() -> Iterator[Place]:
    """Queues 0 to 2 of 20 messages each."""
    with Broker(topics={"orders": 3}) as broker:
        for n in range(60):
            broker.send("orders", b"%06d" % n, queue_id=n % 3, tags=f"tag{n % 2}")
        yield Place(broker, "", "broker")


@pytest.fixture
def two() -> Iterator[Place]:
    """Two brokers with ten messages of one topic each."""
    with Broker(topics={"orders": 1}, brokers=2) as broker:
        send_to(broker, "broker-a", 0, 10)
        send_to(broker, "broker-b", 10, 20)
        yield Place(broker, "", "broker")


def send_to(broker: Broker, name: str, first: int, end: int, topic: str = "orders") -> None:
    for n in range(first, end):
        broker.send(topic, b"%06d" % n, broker=name, queue_id=0)


def name_servers_know(place: Place, *names: str) -> None:
    """Wait until the name servers know these brokers and no others."""
    options = table.parse(place.options, table.BATCH)
    place.broker.wait_until(lambda: sorted(RemoteCluster(options).brokers()) == sorted(names), timeout_s=60)


def answered(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], first: int | None = None) -> None:
    """Pulls ask for 20 messages, from an offset of the test's, and hear what it makes of the answer."""
    before = pulls.raw_pull

    def changed(*args: Any, **kwargs: Any) -> Any:
        asked = args if first is None else (*args[:3], first, *args[4:])
        return change((yield from before(*asked, **{**kwargs, "max_count": 20})))

    monkeypatch.setattr(pulls, "raw_pull", changed)


def records_of(answer: Any) -> list[bytearray]:
    data, found, at = bytes(answer.records), [], 0
    while at < len(data):
        size = decode_record(data, at).size
        found.append(bytearray(data[at : at + size]))
        at += size
    return found


# --- holes -----------------------------------------------------------------------------------------------------------


def test_missing_messages_at_the_end_of_a_range_are_reported(one: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, lambda answer: answer._replace(records=b"".join(
        record for at, record in enumerate(records_of(answer)) if at not in (8, 9)
    )))  # fmt: skip
    wanted = {"assign": "orders/0", "endingOffsets": '{"orders/0": 10}'}
    with pytest.raises(DataLoss, match="messages 8 to 9 are not there"):
        one.batch(**wanted)
    assert numbers(one.batch(failOnDataLoss="false", **wanted)) == list(range(0, 24, 3))


def test_a_range_that_begins_in_a_record_of_several_messages(one: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_ten(answer: Any) -> Any:
        first, *others = records_of(answer)
        first[_SYS_FLAG_AT + 3] |= _INNER_BATCH  # stands for the messages 0 to 9
        return answer._replace(records=b"".join((first, *others[9:])))

    answered(monkeypatch, of_ten, first=0)
    starting = {"assign": "orders/0", "startingOffsets": '{"orders/0": 5}'}
    assert numbers(one.batch(**starting)) == list(range(30, 60, 3))


def test_an_answer_without_progress_is_retried_until_the_timeout(one: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def nothing(answer: Any) -> Any:
        asked.append(answer)
        assert len(asked) < 500
        return answer._replace(
            status=pulls.PullStatus.NO_MATCHED_MSG, records=b"", next_offset=0, remark="NO_MATCHED_MESSAGE"
        )

    answered(monkeypatch, nothing, first=0)
    with pytest.raises(ConnectError, match="finds nothing at 0"):
        one.batch(assign="orders/0", tagFilter="tag0", **SOON)


def test_queues_for_reading_alone_have_messages_too(one: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # As RocketMQ 4.9 answers while a topic is made smaller: of the queues for writing.
    before = cluster.by_queue

    def of_writing(*args: Any) -> Any:
        return {queue: bounds for queue, bounds in before(*args).items() if queue.queue_id < 2}

    monkeypatch.setattr(cluster, "by_queue", of_writing)
    for which in ({"subscribe": "orders"}, {"subscribePattern": "orders"}, {"assign": "orders/2,orders/0,orders/1"}):
        assert len(one.batch(**which)) == 60


@pytest.mark.parametrize("named", [0, 4, 5, 7, 9, 10, 19, 20])
def test_an_inexact_offset_by_time_of_a_broker_is_corrected(
    in_groups: tuple[Place, list[int]], monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    # As RocketMQ answers before 5.2: one of the same millisecond, or the nearest one before or behind the time.
    place, times = in_groups
    monkeypatch.setattr(RemoteCluster, "offset_at", lambda *args: named)
    for moment in (times[0], times[1], times[1] + 1, times[3], times[3] + 1):
        later = [n for n in range(20) if times[n // 5] >= moment]
        assert numbers(place.batch(subscribe="orders", startingTimestamp=moment)) == later
        earlier = [n for n in range(20) if times[n // 5] < moment]
        assert numbers(place.batch(subscribe="orders", endingTimestamp=moment)) == earlier


@pytest.fixture(scope="module")
def in_groups() -> Iterator[tuple[Place, list[int]]]:
    """20 messages of one queue, five of each of four store times, ms."""
    with Broker(topics={"orders": 1}, virtual_time=True) as broker:
        times = []
        for group in range(4):
            broker.clock.advance(1)
            times.append(broker.clock.now_ms())
            broker.send("orders", *(b"%06d" % n for n in range(5 * group, 5 * group + 5)))
        yield Place(broker, "", "broker"), times


def test_times_of_queues_that_not_every_broker_has(two: Place) -> None:
    two.broker.stop("broker-a")
    name_servers_know(two, "broker-b")
    two.broker.create_topic("late", 1)
    send_to(two.broker, "broker-b", 20, 30, "late")
    two.broker.restart("broker-a")
    name_servers_know(two, "broker-a", "broker-b")
    future = json.dumps({"late/0": "2099-01-01T00:00:00Z"})
    given = {"subscribe": "orders,late", "startingOffsetsByTimestamp": future}
    assert numbers(two.batch(**given)) == list(range(20))
    reader = two.stream(**given)
    assert flat(to_the_end(reader, reader.initialOffset())[0]) == list(range(20))
    reader.stop()
    with pytest.raises(ConfigError, match="option endingOffsetsByTimestamp: queue late/7 is not among those"):
        two.batch(subscribe="orders,late", endingOffsetsByTimestamp='{"late/7": 1}')


# --- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["a||b", " a", "a ", "\ta", "*"])
def test_tags_that_no_expression_can_name_are_compared_by_the_task(tag: str) -> None:
    with Broker(topics={"orders": 1}) as broker:
        for n, one in enumerate((tag, "a", "b", tag)):
            broker.send("orders", b"%06d" % n, queue_id=0, tags=one)
        options = {"namesrv": broker.namesrv_addr, "subscribe": "orders", "columns": "tags,body"}
        parsed = table.parse(options, table.BATCH)
        reader = PushdownBatchReader(parsed, chosen_columns(parsed))
        reader.pushFilters([EqualTo(("tags",), tag)])
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert numbers([row for row in rows if row["tags"] == tag]) == [0, 3]


# --- what was known --------------------------------------------------------------------------------------------------


def test_a_read_that_begins_knows_the_brokers_of_now(two: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ROUTE_S", 1000.0)
    assert len(two.batch(**SOON)) == 20
    two.broker.stop("broker-b")
    name_servers_know(two, "broker-a")
    two.broker.create_topic("late", 1)
    send_to(two.broker, "broker-a", 0, 3, "late")
    assert numbers(two.batch(subscribe="late")) == [0, 1, 2]
    assert len(two.batch(**SOON)) == 13
    two.broker.restart("broker-b")
    name_servers_know(two, "broker-a", "broker-b")
    two.broker.create_topic("late", 1)
    send_to(two.broker, "broker-b", 3, 5, "late")
    assert numbers(two.batch(subscribe="late")) == [0, 1, 2, 3, 4]
    assert len(two.batch()) == 25


def test_a_run_that_ends_by_itself_knows_the_topics_of_now(one: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ROUTE_S", 1000.0)
    reader = one.stream(subscribePattern="orders.*", startingOffsets="earliest")
    batches, end = to_the_end(reader, reader.initialOffset())
    assert len(flat(batches)) == 60
    one.broker.create_topic("orders-late", 1)
    send_to(one.broker, "broker-a", 60, 63, "orders-late")
    reader.prepareForTriggerAvailableNow()
    assert flat(to_the_end(reader, end)[0]) == [60, 61, 62]
    reader.stop()


def test_name_servers_without_brokers_are_retried(one: Place) -> None:
    one.broker.stop("broker-a")
    name_servers_know(one)
    with pytest.raises(ConnectError, match="know no broker"):
        one.batch(**SOON)
    timer = threading.Timer(0.5, one.broker.restart, ["broker-a"])
    timer.start()
    assert len(one.batch(brokerTimeout="30s")) == 60
    timer.join()


def test_a_name_server_that_has_just_started_hides_no_broker(two: Place) -> None:
    with Broker() as other:
        other.stop("broker-a")
        name_servers_know(Place(other, "", "broker"))  # none: as long as no broker has told it
        two.options["namesrv"] += f";{other.namesrv_addr}"
        for n in range(4):  # which one is asked first is by chance
            more = {"pullGroup": f"group{n}"}
            assert numbers(two.batch(**more)) == list(range(20))
            assert numbers(two.batch(subscribe="orders", **more)) == list(range(20))
            reader = two.stream(subscribe="orders", startingOffsets="earliest", **more)
            assert set(reader.initialOffset()["stores"]) == {"broker-a", "broker-b"}
            reader.stop()


@pytest.mark.parametrize("ways", [{"subscribe": "orders"}, {"subscribePattern": "or.*"}])
def test_a_name_server_that_has_just_started_does_not_delete_a_topic(one: Place, ways: dict[str, str]) -> None:
    """Who may only read a topic asks name servers for its queues; those of brokers are known for some seconds."""
    with Broker() as other, one.broker.faults.answer(16, "no permission", only=[_TOPIC_STATS, _ALL_TOPICS]):
        other.stop("broker-a")
        name_servers_know(Place(other, "", "broker"))
        more = {"pullGroup": f"of-{min(ways)}", "brokerAway": "wait", **ways}
        reader = one.stream(startingOffsets="earliest", **more)
        batches, end = to_the_end(reader, reader.initialOffset())
        assert flat(batches) == list(range(60))
        known = RemoteCluster.shared(reader.options)
        known._metadata.name_servers.update([other.namesrv_addr])
        known._brokers.store(known._brokers.value)
        known._routes = {}
        known._topics.expire()
        assert reader.latestOffset(end, ALL) == end  # the broker is away, as it would be a moment later
        known._metadata.name_servers.update([one.broker.namesrv_addr])
        known.forget()
        one.broker.send("orders", b"000060", queue_id=0)
        one.broker.wait_until(lambda: reader.latestOffset(end, ALL) != end, timeout_s=30)
        batches, _ = to_the_end(reader, end)
        assert flat(batches) == [60]
        reader.stop()


# --- brokers that are not there now ----------------------------------------------------------------------------------


def test_a_run_that_ends_by_itself_does_not_end_without_a_broker_that_name_servers_forgot(two: Place) -> None:
    reader = two.stream(subscribe="orders", startingOffsets="earliest")
    batches, end = to_the_end(reader, reader.initialOffset())
    assert flat(batches) == list(range(20))
    reader.stop()
    send_to(two.broker, "broker-b", 20, 25)
    two.broker.stop("broker-b")
    name_servers_know(two, "broker-a")
    again = two.stream(subscribe="orders", brokerTimeout="300ms")
    again.prepareForTriggerAvailableNow()
    with pytest.raises(ConnectError, match="broker-b"):
        again.latestOffset(end, ALL)
    without = two.stream(subscribe="orders", brokers="broker-a")  # its owner says that it does not come back
    without.prepareForTriggerAvailableNow()
    assert without.latestOffset(end, ALL) == end
    two.broker.restart("broker-b")
    name_servers_know(two, "broker-a", "broker-b")
    back = two.stream(subscribe="orders")
    back.prepareForTriggerAvailableNow()
    assert flat(to_the_end(back, end)[0]) == list(range(20, 25))
    for one_reader in (again, without, back):
        one_reader.stop()


def test_a_joining_broker_that_does_not_answer_delays_no_other_broker(two: Place) -> None:
    alone = two.stream(subscribe="orders", startingOffsets="earliest", brokers="broker-a")
    _, of_a = to_the_end(alone, alone.initialOffset())
    alone.stop()
    both = {"subscribe": "orders", "brokers": "broker-a,broker-b"}
    planning = two.stream(**both)
    of_both = planning.latestOffset(of_a, ALL)
    planning.stop()
    two.broker.stop("broker-b")
    send_to(two.broker, "broker-a", 30, 33)
    reader = two.stream(**both, brokerAway="wait")
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(flat(to_the_end(reader, of_a)[0])), daemon=True)
    thread.start()
    thread.join(30)
    assert found == [30, 31, 32]
    soon = two.stream(**both, brokerTimeout="300ms")
    with pytest.raises(ConnectError, match="broker-b"):  # of a batch that was planned with it nothing is left out
        soon.partitions(of_a, of_both)
    for one_reader in (reader, soon):
        one_reader.stop()


def test_the_end_of_a_task_ends_the_wait_for_a_broker(one: Place, caplog: pytest.LogCaptureFixture) -> None:
    parsed = table.parse(
        {**one.options, "assign": "orders/0", "columns": "body", "pullBytes": "1", "batchBytes": "1"},
        table.BATCH,
    )  # fmt: skip
    reader = BatchReader(parsed, chosen_columns(parsed))
    [part] = reader.partitions()
    before = set(threading.enumerate())
    rows = reader.read(part)
    next(rows)
    [puller] = [thread for thread in set(threading.enumerate()) - before if thread.name == "mqfast-pull"]
    one.broker.kill()
    next(rows)
    one.broker.wait_until(lambda: "it is asked again" in caplog.text, timeout_s=60)
    rows.close()  # type: ignore[attr-defined]
    puller.join(120)
    assert not puller.is_alive()


# --- whose requests ---


def test_a_namespace_of_version_2_is_in_every_request(one: Place) -> None:
    before = len(one.broker.requests())
    given = {"subscribe": "orders", "namespaceV2": "tenant"}
    assert len(one.batch(**given)) == 60
    reader = one.stream(**given, startingOffsets="earliest")
    assert len(flat(to_the_end(reader, reader.initialOffset())[0])) == 60
    reader.stop()
    asked = one.broker.requests()[before:]
    assert {one.server for one in asked} >= {"broker-a"}
    assert {(one.fields.get("nsd"), one.fields.get("ns")) for one in asked} == {("true", "tenant")}


# --- progress --------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_to_the_master_only(one: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one.broker.create_topics(groups=["watchers"])
    reader = one.stream(subscribe="orders", startingOffsets="earliest")
    _, end = to_the_end(reader, reader.initialOffset())
    reader.stop()
    access = open_backend(table.parse({**one.options, "brokers": "broker-a"}, table.STREAM))
    there = RemoteCluster.address
    monkeypatch.setattr(RemoteCluster, "address", lambda self, broker, broker_id=0: (1, there(self, broker)[1]))
    assert not access.commit_group("watchers", end["stores"]["broker-a"])
    assert not one.broker.offset("watchers", "orders")
    monkeypatch.undo()
    assert access.commit_group("watchers", end["stores"]["broker-a"])
    assert sorted(one.broker.offset("watchers", "orders").values()) == [20, 20, 20]


def test_a_listener_leaves_offsets_of_other_sources_alone(one: Place) -> None:
    listener = GroupListener({"namesrv": one.broker.namesrv_addr}, "watchers")
    for text in ("17", "no JSON", None, json.dumps({"orders": {"0": 3}})):
        progress = SimpleNamespace(name="q", sources=[SimpleNamespace(endOffset=text)])
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
