"""Jobs over a running cluster: what they say and write is what the brokers have.

Room: tests/spark. Tasks run in this process, without a session, where a job needs none of Spark's own; the others share
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
from mqfast.spark.jobs import analytics, archive, compact
from mqfast.spark.jobs.manifest import manifests
from mqfast.spark.jobs.places import Cluster
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


def of(broker: Broker) -> Cluster:
    return Cluster(broker.namesrv_addr)


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
    return archive.run(None, archive.Settings(of(broker), str(path), **settings))  # type: ignore[arg-type]


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
        archive.run(None, archive.Settings(str(_store(tmp_path)), str(path), topics=("stock",)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean stock"):
        run_archive(broker, tmp_path / "other", topics=("stok",))


def _store(tmp_path: Path) -> Path:
    import mqfast

    with mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=1 << 16) as store:
        store.put("stock", b"x")
    return tmp_path / "store"


@pytest.mark.usefixtures("in_this_process")
def test_what_the_archive_has_and_the_cluster_lost_is_told(broker: Broker, tmp_path: Path) -> None:
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
def test_a_stream_goes_from_the_files_of_a_broker_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    monkeypatch.setattr(
        "mqfast.spark.jobs.archive.run_tasks", lambda spark, items, task, what: [task(item) for item in items]
    )
    with Broker(topics={"orders": QUEUES}, store=str(tmp_path / "store")) as broker:
        fill(broker, 0, 60)
        files = archive.Settings(str(tmp_path / "store"), str(tmp_path / "archive"))
        assert archive.run(None, files).facts["messages"] >= 60  # type: ignore[arg-type]
        fill(broker, 60, 90)
        found, _ = batches(lambda: stream(broker, tmp_path / "archive"))
        assert [len(batch) for batch in found] == [60, 30]
        assert sorted(n for batch in found for n in batch) == list(range(90))


def test_analytics_of_a_cluster(spark: SparkSession, broker: Broker) -> None:
    fill(broker, 0, 90)
    fill(broker, 0, 10, "stock", 2)
    report = analytics.run(spark, analytics.Settings(of(broker), topics=("orders", "stock")))
    assert report.facts["messages"] == 100
    topics = next(found.rows for found in report.tables if found.title == "topics")
    assert {row[0]: row[1:3] for row in topics} == {"orders": (3, 90), "stock": (2, 10)}


def test_compact_of_a_cluster(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    for n in range(40):
        broker.send("orders", b"%d" % n, queue_id=n % QUEUES, keys=f"key{n % 4}")
    report = compact.run(spark, compact.Settings(of(broker), str(tmp_path / "out"), ("orders",)))
    assert (report.facts["messages"], report.facts["written"]) == (40, 4)
    found = {row["keys"]: bytes(row["body"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert found == {f"key{n % 4}": b"%d" % n for n in range(36, 40)}
