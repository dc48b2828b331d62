"""Jobs over a running cluster: what they say and write is what the brokers have.

Tasks run in this process, without a session, where a job needs none of Spark's own; the others share
the session of all tests.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("msgspec")

import pyarrow.parquet as pq

from mqfast.errors import ConfigError, DataLoss, UsageError
from mqfast.spark import options as table
from mqfast.spark.archive_manifest import manifests
from mqfast.spark.durable_files import crc_of
from mqfast.spark.jobs import analytics, archive, audit, compact, dlq, rebuild, replay
from mqfast.spark.jobs.locations import ClusterLocation, as_options
from mqfast.spark.schema import chosen_columns
from mqfast.spark.source import BatchReader
from mqfast.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 3
Row = dict[str, Any]


@pytest.fixture(scope="module")
def brokers() -> Iterator[Broker]:
    with Broker(topics={"orders": QUEUES, "stock": 2}) as broker:
        yield broker


@pytest.fixture
def broker(brokers: Broker) -> Broker:
    brokers.reset()
    return brokers


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of the archive job without a session."""

    def run_tasks(spark: object, items: Sequence[Any], task: Callable[[Any], Any], what: str) -> list[Any]:
        return [pickle.loads(pickle.dumps(task(pickle.loads(pickle.dumps(item))))) for item in items]

    monkeypatch.setattr("mqfast.spark.jobs.archive_cluster.run_tasks", run_tasks)


def fill(broker: Broker, first: int, end: int, topic: str = "orders", queues: int = QUEUES) -> None:
    for queue in range(queues):
        bodies = [b"%06d" % n + b"x" * (n % 5 * 40) for n in range(first, end) if n % queues == queue]
        if bodies:
            broker.send(
                topic, *bodies, queue_id=queue, tags=f"t{queue}", keys=f"k{queue}", properties={"n": str(first)}
            )


def of(broker: Broker) -> ClusterLocation:
    return ClusterLocation(broker.namesrv_addr)


def archived(path: Path) -> list[Row]:
    rows = []
    for manifest in manifests(str(path)):
        for file in manifest.files:
            found = pq.ParquetFile(path / file.path).read().to_pylist()
            assert len(found) == file.rows
            assert {(row["topic"], row["queueId"]) for row in found} == {(file.topic, file.queue_id)}
            assert [row["queueOffset"] for row in found] == sorted(row["queueOffset"] for row in found)
            rows += found
    return rows


def in_the_cluster(broker: Broker, columns: str) -> list[Row]:
    given = {"namesrv": broker.namesrv_addr, "columns": columns, "properties": "raw", "decompress": "false"}
    options = table.parse(given, table.BATCH)
    reader = BatchReader(options, chosen_columns(options))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def by_place(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def run_archive(broker: Broker, path: Path, **settings: Any) -> Any:
    return archive.run(None, archive.ArchiveSettings(of(broker), str(path), **settings))  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_this_process")
def test_archive_has_every_column_of_every_message_once(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    counts = []
    for first, end in ((0, 100), (100, 170), (170, 170)):
        fill(broker, first, end)
        counts.append(run_archive(broker, path, partition_bytes=8000).facts["messages"])
    fill(broker, 0, 10, "stock", 2)
    counts.append(run_archive(broker, path).facts["messages"])
    assert counts == [100, 70, 0, 10]
    assert len(manifests(str(path))) == 3
    assert by_place(archived(path)) == by_place(in_the_cluster(broker, archive.COLUMNS))
    ends = {(q.topic, q.queue_id): q.end for m in manifests(str(path)) for q in m.queues or ()}
    assert ends[("orders", 0)] == 57
    assert (path / "topic=orders").is_dir()


@pytest.mark.usefixtures("in_this_process")
def test_archive_of_some_topics_and_of_another_kind(broker: Broker, tmp_path: Path) -> None:
    fill(broker, 0, 30)
    fill(broker, 0, 10, "stock", 2)
    path = tmp_path / "archive"
    assert run_archive(broker, path, topics=("stock",)).facts["messages"] == 10
    with pytest.raises(UsageError, match="another choice needs an archive of its own"):
        run_archive(broker, path)
    with pytest.raises(UsageError, match="found that of a cluster"):
        archive.run(None, archive.ArchiveSettings(str(_store(tmp_path)), str(path), topics=("stock",)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean stock"):
        run_archive(broker, tmp_path / "other", topics=("stok",))


def _store(tmp_path: Path) -> Path:
    import mqfast

    with mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=1 << 16) as store:
        store.put("stock", b"x")
    return tmp_path / "store"


@pytest.mark.usefixtures("in_this_process")
def test_archived_messages_lost_in_the_cluster_are_reported(broker: Broker, tmp_path: Path) -> None:
    fill(broker, 0, 30)
    path = tmp_path / "archive"
    run_archive(broker, path)
    broker.reset()
    fill(broker, 0, 6)
    with pytest.raises(DataLoss, match="ends at 2, and the archive has it up to 10"):
        run_archive(broker, path)
    report = run_archive(broker, path, allow_loss=True)
    assert report.damaged
    assert report.facts["messages"] == 6
    assert run_archive(broker, path, allow_loss=True).facts["messages"] == 0


@pytest.mark.usefixtures("in_this_process")
def test_a_queue_that_was_made_again_takes_the_place_of_no_file_and_loses_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    fill(broker, 0, 6)
    run_archive(broker, path)
    fill(broker, 6, 30)
    run_archive(broker, path)
    broker.reset()
    fill(broker, 100, 106)  # the same offsets as in the first run
    assert run_archive(broker, path, allow_loss=True).facts["messages"] == 6
    broker.reset()
    fill(broker, 200, 260)  # more than the archive has of the queue
    with pytest.raises(DataLoss, match=r"orders/0 of broker broker-a: message 1 is not the one that the archive has"):
        run_archive(broker, path)
    report = run_archive(broker, path, allow_loss=True)
    assert report.damaged
    assert report.facts["messages"] == 60
    assert run_archive(broker, path).facts["messages"] == 0
    for manifest in manifests(str(path)):
        for file in manifest.files:
            assert crc_of(str(path / file.path)) == file.crc
    assert sorted(int(row["body"][:6]) for row in archived(path)) == [*range(30), *range(100, 106), *range(200, 260)]


def stream(broker: Broker, path: Path, **options: Any) -> Any:
    from mqfast.spark.source import MqFastSource

    given = {"namesrv": broker.namesrv_addr, "startingFrom": f"archive:{path}", "subscribe": "orders"}
    source = MqFastSource({**given, **{name: str(value) for name, value in options.items()}})
    return source.streamReader(source.schema())


def batches(make: Callable[[], Any], start: Row | None = None) -> tuple[list[list[int]], list[Row]]:
    """Each batch read by a reader of its own, as if every batch were the first one after a restart."""
    first = make()
    chain = [json.loads(json.dumps(first.initialOffset() if start is None else start))]
    first.stop()
    found: list[list[int]] = []
    for _ in range(100):
        one = make()
        end = json.loads(json.dumps(one.latestOffset(chain[-1], one.getDefaultReadLimit())))
        if end == chain[-1]:
            one.stop()
            return found, chain
        parts = pickle.loads(pickle.dumps(one.partitions(chain[-1], end)))
        rows = [row for part in parts for batch in one.read(part) for row in batch.to_pylist()]
        one.stop()
        found.append([int(row["body"][:6]) for row in rows])
        chain.append(end)
    raise AssertionError("the stream never reaches its end")


@pytest.mark.usefixtures("in_this_process")
def test_a_stream_goes_from_the_archive_to_the_brokers(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    fill(broker, 0, 100)
    run_archive(broker, tmp_path / "archive", partition_bytes=8000)
    fill(broker, 100, 160)

    def make() -> Any:
        return stream(broker, tmp_path / "archive", maxOffsetsPerTrigger=30)

    found, chain = batches(make)
    assert sorted(n for batch in found for n in batch) == list(range(160))
    assert all(max(batch) < 100 or min(batch) >= 100 for batch in found)
    for at, offset in enumerate(chain):
        rest, _ = batches(make, offset)
        assert sorted(n for batch in [*found[:at], *rest] for n in batch) == list(range(160))


@pytest.mark.usefixtures("in_this_process")
def test_a_topic_that_was_made_again_since_the_archive_is_no_part_of_it(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    fill(broker, 0, 30)
    run_archive(broker, tmp_path / "archive")
    broker.reset()
    fill(broker, 100, 190)
    with pytest.raises(DataLoss, match="another one now: its topic was made again"):
        stream(broker, tmp_path / "archive").initialOffset()
    found, _ = batches(lambda: stream(broker, tmp_path / "archive", failOnDataLoss="false"))
    assert sorted(n for batch in found for n in batch) == [*range(30), *range(100, 190)]


@pytest.mark.usefixtures("in_this_process")
def test_queues_of_two_brokers_are_kept_apart(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")

    def fill_both(first: int, end: int) -> None:
        for n in range(first, end):
            name = "broker-a" if n % 3 else "broker-b"
            two.send("orders", b"%06d" % n, queue_id=n % QUEUES, broker=name)

    with Broker(topics={"orders": QUEUES}, brokers=2) as two:
        fill_both(0, 90)
        assert run_archive(two, tmp_path / "archive").facts["messages"] == 90
        fill_both(90, 120)
        assert run_archive(two, tmp_path / "archive").facts["messages"] == 30
        fill_both(120, 150)
        (manifest, _) = manifests(str(tmp_path / "archive"))
        assert {file.broker for file in manifest.files} == {"broker-a", "broker-b"}
        found, _ = batches(lambda: stream(two, tmp_path / "archive"))
        assert sorted(n for batch in found for n in batch) == list(range(150))
        assert [len(batch) for batch in found] == [120, 30]


@pytest.mark.usefixtures("in_this_process")
def test_a_stream_goes_from_the_files_of_a_broker_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    monkeypatch.setattr(
        "mqfast.spark.jobs.archive.run_tasks", lambda spark, items, task, what: [task(item) for item in items]
    )
    with Broker(topics={"orders": QUEUES}, store=str(tmp_path / "store")) as broker:
        fill(broker, 0, 60)
        files = archive.ArchiveSettings(str(tmp_path / "store"), str(tmp_path / "archive"))
        assert archive.run(None, files).facts["messages"] >= 60  # type: ignore[arg-type]
        fill(broker, 60, 90)
        found, _ = batches(lambda: stream(broker, tmp_path / "archive"))
        assert [len(batch) for batch in found] == [60, 30]
        assert sorted(n for batch in found for n in batch) == list(range(90))


def test_analytics_of_a_cluster(spark: SparkSession, broker: Broker) -> None:
    fill(broker, 0, 90)
    fill(broker, 0, 10, "stock", 2)
    report = analytics.run(spark, analytics.AnalyticsSettings(of(broker), topics=("orders", "stock")))
    assert report.facts["messages"] == 100
    topics = next(found.rows for found in report.tables if found.title == "topics")
    assert {row[0]: row[1:3] for row in topics} == {"orders": (3, 90), "stock": (2, 10)}


def test_compact_of_a_cluster(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    for n in range(40):
        broker.send("orders", b"%d" % n, queue_id=n % QUEUES, keys=f"key{n % 4}")
    report = compact.run(spark, compact.CompactSettings(of(broker), str(tmp_path / "out"), ("orders",)))
    assert (report.facts["messages"], report.facts["written"]) == (40, 4)
    found = {row["keys"]: bytes(row["body"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert found == {f"key{n % 4}": b"%d" % n for n in range(36, 40)}


def deliveries(broker: Broker, topic: str) -> list[tuple[int, bytes, str, str, int]]:
    found = broker.messages(topic)
    return [(m.queue_id, bytes(m.body), m.tags or "", m.properties.get("n", ""), m.flag) for m in found]


def test_archive_and_replay_into_another_cluster(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Every row of each queue, in its order, once; a second run sends nothing; a longer archive sends what is new."""
    fill(broker, 0, 150)
    fill(broker, 0, 20, "stock", 2)
    archive.run(spark, archive.ArchiveSettings(of(broker), str(tmp_path / "archive"), partition_bytes=8000))
    with Broker(topics={"orders": QUEUES, "stock": 2}) as other:
        settings = replay.ReplaySettings(str(tmp_path / "archive"), of(other), batch_bytes=6000)
        report = replay.run(spark, settings)
        assert report.facts["sent"] == report.facts["messages"] == 170
        assert report.facts["batches"] > 1
        assert report.facts["queuesKept"]
        for topic in ("orders", "stock"):
            for queue in range(QUEUES):
                ours = [row for row in deliveries(broker, topic) if row[0] == queue]
                assert [row for row in deliveries(other, topic) if row[0] == queue] == ours
        again = replay.run(spark, settings)
        assert again.facts["sent"] == 0
        assert again.facts["doneBefore"] == report.facts["batches"]
        fill(broker, 150, 180)
        archive.run(spark, archive.ArchiveSettings(of(broker), str(tmp_path / "archive")))
        assert replay.run(spark, settings).facts["sent"] == 30
        assert sorted(deliveries(other, "orders")) == sorted(deliveries(broker, "orders"))
        born = {row["uniqKey"]: row["bornTimestamp"] for row in in_the_cluster(broker, "uniqKey,bornTimestamp")}
        assert {row["uniqKey"]: row["bornTimestamp"] for row in in_the_cluster(other, "uniqKey,bornTimestamp")} == born


def test_archive_of_a_cluster_replays_into_a_store(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    import mqfast

    fill(broker, 0, 60)
    archive.run(spark, archive.ArchiveSettings(of(broker), str(tmp_path / "archive")))
    report = replay.run(spark, replay.ReplaySettings(str(tmp_path / "archive"), str(tmp_path / "store")))
    assert report.facts["appended"] == 60
    with mqfast.StoreReader(tmp_path / "store") as reader:
        found = [(m.queue_id, bytes(m.body)) for m in reader.scan() if m.topic == "orders"]
    for queue in range(QUEUES):
        expected = [row[1] for row in deliveries(broker, "orders") if row[0] == queue]
        assert [body for number, body in found if number == queue] == expected


def test_audit_does_not_miss_messages_that_consumers_may_not_read(spark: SparkSession) -> None:
    with Broker(topics={"orders": 2}) as broker:
        broker.send("orders", *map(str, range(10)))
        broker.create_topic("orders", 2, perm="w")
        report = audit.run(spark, audit.AuditSettings(of(broker)))
        assert (report.damaged, report.facts["records"]) == (False, 0)
        assert report.facts["unreadQueues"] == "broker-a orders/0, broker-a orders/1"
        broker.create_topic("orders", 2)
        report = audit.run(spark, audit.AuditSettings(of(broker)))
        assert (report.damaged, report.facts["records"], report.facts["unreadQueues"]) == (False, 10, "")


def test_audit_of_a_running_cluster(spark: SparkSession, broker: Broker) -> None:
    fill(broker, 0, 90)
    report = audit.run(spark, audit.AuditSettings(of(broker)))
    assert not report.damaged
    assert report.facts["records"] == 90
    assert (report.facts["missing"], report.facts["repeated"], report.facts["crcErrors"]) == (0, 0, 0)
    assert "where the files of the broker are" in report.facts["notChecked"]


def bury(broker: Broker, numbers: range, group: str = "shop") -> None:
    """Dead letters as a broker stores them."""
    for n in numbers:
        broker.send(
            f"%DLQ%{group}", b"letter %d" % n, queue_id=0, tags="late" if n % 2 else "bad",
            properties={"RETRY_TOPIC": "orders", "n": str(n)},
        )  # fmt: skip


def test_dead_letters_of_a_cluster_go_back_once(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("%DLQ%shop", 1)
    bury(broker, range(10))
    settings = dlq.DlqSettings(of(broker), staging=str(tmp_path / "notes"))
    look = dlq.run(spark, dlq.DlqSettings(of(broker), dry_run=True, tags=("late",)))
    assert (look.facts["letters"], look.facts["chosen"], look.facts["sent"]) == (10, 5, 0)
    assert broker.messages("orders") == []
    chosen = dlq.run(spark, dlq.DlqSettings(of(broker), staging=str(tmp_path / "notes"), tags=("late",)))
    assert chosen.facts["sent"] == 5

    class Killed(BaseException):
        pass

    def die(*args: object) -> None:
        raise Killed

    # Killed when the letters are sent, and nobody has noted it.
    with monkeypatch.context() as patched:
        patched.setattr("mqfast.spark.remote.sink.RemoteBatchWriter.check", die)
        with pytest.raises(Killed):
            dlq.run(spark, settings)
    bury(broker, range(10, 13))
    report = dlq.run(spark, settings)
    assert (report.facts["resumed"], report.facts["sent"]) == (5, 3)
    assert dlq.run(spark, settings).facts["sent"] == 0
    back = broker.messages("orders")
    assert sorted(bytes(m.body) for m in back) == sorted(b"letter %d" % n for n in range(13))
    assert all(m.properties["DLQ_ATTEMPTS"] == "1" for m in back)


def test_dead_letters_of_a_queue_that_was_made_again_are_not_taken_for_those_of_before(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("%DLQ%shop", 1)
    bury(broker, range(10))
    settings = dlq.DlqSettings(of(broker), staging=str(tmp_path / "notes"))
    assert dlq.run(spark, settings).facts["sent"] == 10
    with broker.admin() as admin:
        admin.delete_topic("%DLQ%shop")
    broker.create_topic("%DLQ%shop", 1)
    for numbers, says in ((range(10, 13), "0 to 2"), (range(13, 25), "0 to 14")):  # fewer, and more than before
        bury(broker, numbers)
        with pytest.raises(UsageError, match=rf"has the letters {says}.* letters up to 9 were sent.* made again"):
            dlq.run(spark, settings)
    again = dlq.DlqSettings(of(broker), staging=str(tmp_path / "notes"), txn_id="again")
    assert dlq.run(spark, again).facts["sent"] == 15
    assert dlq.run(spark, again).facts["sent"] == 0


def test_missing_arguments_of_a_job_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for job, arguments, says in (
        (rebuild, ["--namesrv", "127.0.0.1:1", "out"], "run the job where the files of the broker are"),
        (audit, ["--namesrv", "127.0.0.1:1", "--delay-levels", "1s"], "units of delay levels are in the files"),
        (dlq, ["--namesrv", "127.0.0.1:1", "store"], "found both"),
        (compact, ["out", "--topics", "a", "--tls"], "--tls: it goes with --namesrv"),
        (analytics, [], "expected STORE or --namesrv, found neither"),
    ):
        assert job.main(arguments) == 2
        assert says in capsys.readouterr().err


def test_arguments_of_a_cluster_are_options_of_the_source() -> None:
    given = archive.build_parser().parse_intermixed_args(
        ["--namesrv", "a:1;b:2", "--brokers", "x,y", "--access-key", "k", "--secret-key", "s", "--tls", "out",
         "--namespace", "n"]
    )  # fmt: skip
    settings = archive.settings_of(given)
    assert settings.archive == "out"
    assert as_options(settings.store) == {
        "namesrv": "a:1;b:2", "brokers": "x,y", "namespace": "n", "accessKey": "k", "secretKey": "s", "tls": "true",
    }  # fmt: skip
    assert "secretKey" not in repr(settings)
    of_store = archive.build_parser().parse_intermixed_args(["store", "--topics", "a", "out"])
    assert archive.settings_of(of_store).store == "store"
