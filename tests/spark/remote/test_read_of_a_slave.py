"""Reading from a slave while its master is dead: two broker processes of ours, SIGKILL, batches, streams, an archive.

No Spark processes: readers are called as Spark calls them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")
pytest.importorskip("msgspec")

from ha.processes import NAME, OurSide, name_server
from places import EVERY, Place, flat, numbers, read, to_the_end

from mqfast.client import AdminClient, Producer
from mqfast.client.admin.bodies import TopicStatsBody
from mqfast.client.values import MessageQueue
from mqfast.errors import ConnectError, MqfastError
from mqfast.message import Message
from mqfast.remoting.bodies import ClusterBody, decode_body
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.spark import options as table
from mqfast.spark.jobs import archive
from mqfast.spark.jobs.archive_cluster import archive_cluster
from mqfast.spark.jobs.locations import ClusterLocation
from mqfast.spark.schema import chosen_columns
from mqfast.spark.source import BatchReader

pytestmark = pytest.mark.slow
QUEUES = 3
WAIT_S = 120
FILE = 1 << 16


def wait_for(done: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, f"{what}: not within {WAIT_S} s"
        time.sleep(0.05)


def body_of(address: str, code: RequestCode, **fields: str) -> bytes:
    """The body of an answer; empty where there is none."""

    async def ask() -> bytes:
        client = RemotingClient()
        try:
            answer = await client.call(address, code, fields, timeout_ms=5000)
        except (MqfastError, OSError):
            return b""
        finally:
            await client.close()
        return bytes(answer.body) if answer.code == 0 else b""

    return asyncio.run(ask())


class Pair:
    """A name server, a master and a slave that is read from, on ports of their own."""

    def __init__(self, work: Path) -> None:
        self.names = name_server(work)
        of_slave = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True}
        self.master = OurSide(work, "master", self.names.address, mappedFileSizeCommitLog=FILE)
        self.slave = OurSide(work, "slave", self.names.address, mappedFileSizeCommitLog=FILE, **of_slave)
        self.place = Place.of_cluster(self.names.address)
        self.place.options["brokerTimeout"] = "60s"

    def end(self) -> None:
        for one in (self.slave, self.master, self.names):
            one.end(signal.SIGKILL)

    def wait_known(self, *ids: int) -> None:
        """Until the name server knows these brokers alone: 0 is the master, 1 the slave."""

        def are_known() -> bool:
            body = body_of(self.names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
            table = decode_body(body, ClusterBody, "clusters").broker_addr_table if body else {}
            return set(table[NAME].broker_addrs if NAME in table else ()) == set(ids)

        wait_for(are_known, f"brokers {ids} at the name server")

    def wait_followed(self) -> None:
        """Until the slave follows the master: one that comes later begins with its master's last file."""

        def is_followed() -> bool:
            try:
                with AdminClient(self.names.address, timeout_s=5) as admin:
                    return len(admin.ha_status(self.master.address).slaves) > 0
            except MqfastError:
                return False

        self.wait_known(0, 1)
        wait_for(is_followed, "the slave at the master")

    def make(self, topic: str, queues: int = QUEUES) -> None:
        with AdminClient(self.names.address) as admin:
            admin.create_topic(topic, queues=queues)

    def send(self, topic: str, first: int, end: int, queues: int = QUEUES) -> None:
        """Messages, dealt out to the queues of the master."""
        with Producer("filler", self.names.address) as producer:
            for n in range(first, end):
                queue = MessageQueue(topic, NAME, n % queues)
                producer.send(Message(topic, b"%06d" % n + b"x" * (n % 90), tags=f"tag{n % 2}"), queue=queue)

    def wait_level(self, topic: str, messages: int) -> None:
        """Until the slave has the topic, its queues up to so many messages."""

        def is_level() -> bool:
            body = body_of(self.slave.address, RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
            found = decode_body(body, TopicStatsBody, "offsets").offset_table.values() if body else ()
            return sum(one.max_offset for one in found) == messages

        wait_for(is_level, f"{messages} messages of {topic} on the slave")

    def kill_master(self) -> None:
        self.master.end(signal.SIGKILL)

    def restart_master(self) -> None:
        self.master.start()
        self.wait_known(0, 1)

    def let_read(self, enabled: str) -> None:
        """May the slave be read from?"""
        with AdminClient(self.names.address) as admin:
            admin.set_broker_config(self.slave.address, {"slaveReadEnable": enabled})

    def archive_of(self, topic: str, path: Path) -> archive.ArchiveSettings:
        return archive.ArchiveSettings(ClusterLocation(self.names.address), str(path), topics=(topic,))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both are there and registered, before each test and after it."""
    both = Pair(tmp_path_factory.mktemp("pair"))
    try:
        both.master.start()
        both.slave.start()
        both.wait_followed()
        yield both
    finally:
        both.end()


def planned(place: Place, **options: str) -> tuple[BatchReader, list[Any]]:
    parsed = table.parse({**place.options, "columns": "body", **options}, table.BATCH)
    reader = BatchReader(parsed, chosen_columns(parsed))
    return reader, list(reader.partitions())


def rows_of(reader: BatchReader, parts: list[Any]) -> list[int]:
    found = [body for part in parts for batch in reader.read(part) for body in batch.column(0).to_pylist()]
    return sorted(int(body[:6]) for body in found)


def next_end(reader: Any, start: dict[str, Any]) -> dict[str, Any]:
    """The end of the next batch, as a checkpoint has it."""
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return end


def new_rows(reader: Any, end: dict[str, Any], count: int) -> list[int]:
    """What a stream reads from an offset on, until there are so many; a reader knows the master again after seconds."""
    found: list[int] = []

    def all_are_there() -> bool:
        nonlocal end
        more, end = to_the_end(reader, end)
        found.extend(flat(more))
        return len(found) >= count

    wait_for(all_are_there, f"{count} new messages")
    return sorted(found)


def archived(settings: archive.ArchiveSettings) -> int:
    """How many messages one run of the archive adds; its tasks run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mqfast.spark.jobs.archive_cluster.run_tasks", lambda spark, items, task, what: [task(one) for one in items]
        )
        manifest, lost = archive_cluster(None, settings, archive.COLUMNS)  # type: ignore[arg-type]
    assert lost == 0
    return sum(file.rows for file in manifest.files)


def test_batch_and_stream_go_on_by_the_slave_when_the_master_is_killed(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between plan and read, killed before the plan; then the master comes back."""
    pair.make("orders")
    pair.send("orders", 0, 300)
    pair.wait_level("orders", 300)
    before = pair.place.batch(subscribe="orders", columns=EVERY)
    assert len(before) == 300
    stream = pair.place.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=100)
    start = stream.initialOffset()
    end = next_end(stream, start)
    reader, parts = planned(pair.place, subscribe="orders")
    pair.kill_master()
    assert rows_of(reader, parts) == list(range(300))
    found = read(stream, start, end)
    with caplog.at_level(logging.WARNING, logger="mqfast.spark"):
        after = pair.place.batch(subscribe="orders", columns=EVERY)
    assert after == before
    assert "the master is away" in caplog.text
    assert numbers(pair.place.batch(subscribe="orders", tagFilter="tag1")) == list(range(1, 300, 2))
    more, end = to_the_end(stream, end)
    assert sorted([*found, *flat(more)]) == list(range(300))
    again = pair.place.stream(subscribe="orders")  # as after a restart of the query
    assert to_the_end(again, end)[0] == []
    again.stop()
    settings = pair.archive_of("orders", tmp_path / "archive")
    assert archived(settings) == 300
    pair.restart_master()
    pair.send("orders", 300, 330)
    assert new_rows(stream, end, 30) == list(range(300, 330))
    stream.stop()
    assert archived(settings) == 30


def test_messages_missing_on_a_slave_are_waited_for_not_lost(pair: Pair, tmp_path: Path) -> None:
    pair.make("ahead")
    pair.send("ahead", 0, 60)
    pair.wait_level("ahead", 60)
    pair.slave.end()
    pair.send("ahead", 60, 90)
    stream = pair.place.stream(subscribe="ahead", startingOffsets="earliest")
    start = stream.initialOffset()
    end = next_end(stream, start)
    reader, parts = planned(pair.place, subscribe="ahead")
    soon, of_soon = planned(pair.place, subscribe="ahead", brokerTimeout="2s")
    settings = pair.archive_of("ahead", tmp_path / "archive")
    assert archived(settings) == 90
    pair.kill_master()
    pair.slave.start()
    pair.wait_known(1)
    assert numbers(pair.place.batch(subscribe="ahead")) == list(range(60))  # what is planned now
    with pytest.raises(ConnectError, match=r"ahead/\d.*a slave, has nothing at 20"):
        rows_of(soon, of_soon)
    ahead = pair.place.stream(subscribe="ahead")
    assert to_the_end(ahead, end)[0] == []
    by_name = {NAME: {f"ahead/{queue}": 30 for queue in range(QUEUES)}}
    named = pair.place.stream(subscribe="ahead", startingOffsets=json.dumps(by_name), failOnDataLoss="false")
    first = named.initialOffset()
    assert to_the_end(named, first)[0] == []
    assert archived(settings) == 0
    pair.master.start()
    assert rows_of(reader, parts) == list(range(90))
    assert read(stream, start, end) == list(range(90))
    pair.wait_known(0, 1)
    pair.send("ahead", 90, 99)
    for one, offset in ((ahead, end), (named, first), (stream, end)):
        assert new_rows(one, offset, 9) == list(range(90, 99))
        one.stop()
    assert archived(settings) == 9
    pair.wait_level("ahead", 99)


def test_a_slave_that_may_not_be_read_from_is_asked_until_the_master_is_back(pair: Pair) -> None:
    pair.make("refused")
    pair.send("refused", 0, 30)
    pair.wait_level("refused", 30)
    stream = pair.place.stream(subscribe="refused", startingOffsets="earliest")
    more, end = to_the_end(stream, stream.initialOffset())
    assert flat(more) == list(range(30))
    pair.let_read("false")
    pair.kill_master()
    pair.wait_known(1)
    with pytest.raises(ConnectError, match="slaveReadEnable is false"):
        pair.place.batch(subscribe="refused", brokerTimeout="1s")
    assert to_the_end(stream, end)[0] == []
    pair.restart_master()
    pair.let_read("true")
    assert numbers(pair.place.batch(subscribe="refused")) == list(range(30))
    pair.send("refused", 30, 40)
    assert new_rows(stream, end, 10) == list(range(30, 40))
    stream.stop()


def test_a_slave_that_came_late_does_not_end_a_stream_of_what_only_the_master_has(tmp_path: Path) -> None:
    """A slave begins with its master's last file: its queues begin later."""
    both = Pair(tmp_path)
    try:
        both.master.start()
        both.wait_known(0)
        both.make("late", 1)
        both.send("late", 0, 700, 1)  # some 200 bytes each, in files of 64 KiB
        both.slave.start()
        both.wait_known(0, 1)
        both.wait_level("late", 700)
        stream = both.place.stream(subscribe="late", startingOffsets="earliest", maxOffsetsPerTrigger=100)
        start = stream.initialOffset()
        end = next_end(stream, start)
        settings = both.archive_of("late", tmp_path / "archive")
        both.kill_master()
        both.wait_known(1)
        there = numbers(both.place.batch(subscribe="late"))
        assert there == list(range(there[0], 700))
        assert there[0] > 100
        says = f"is at 100, the slave of broker {NAME} begins at {there[0]}"
        for fails in ("true", "false"):
            again = both.place.stream(subscribe="late", failOnDataLoss=fails, brokerTimeout="300ms")
            wait_for(lambda: says in failure_of(again, end), says)  # noqa: B023
            again.stop()
        assert to_the_end(stream, end)[0] == []  # the broker counts as away, for brokerTimeout
        soon = both.place.stream(subscribe="late", brokerTimeout="1s")
        with pytest.raises(ConnectError, match="a slave, has nothing at 0"):
            read(soon, start, end)
        soon.stop()
        with pytest.raises(ConnectError, match=f"begins at {there[0]}, and the master"):
            archived(settings)
        both.restart_master()
        found = read(stream, start, end)
        assert sorted([*found, *new_rows(stream, end, 600)]) == list(range(700))
        stream.stop()
        assert archived(settings) == 700
    finally:
        both.end()


def failure_of(reader: Any, end: dict[str, Any]) -> str:
    """What the stream fails with; nothing while it goes on."""
    try:
        assert next_end(reader, end) == end
    except ConnectError as error:
        return str(error)
    return ""
