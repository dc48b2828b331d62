"""The job ``replay``: what was archived is in the new store once, in order, whatever crashed in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import copy_of, golden_cases

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import StoreLocked, UsageError
from mqfast.spark.archive_manifest import ArchivedFile, Manifest, batches_of, manifests
from mqfast.spark.jobs import archive as archive_job
from mqfast.spark.jobs.merge import in_order, merged
from mqfast.spark.jobs.replay import ReplaySettings, run
from mqfast.spark.local.commit import STAMP, SinkTransaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = StoreConfig(mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=4000)


def put(path: Path, count: int) -> None:
    with mqfast.open(path, config=CONFIG) as store:
        for i in range(count):
            store.put(f"T{i % 3}", f"body {i}".encode(), queue_id=i % 2, tags=f"t{i % 5}", keys=f"k{i}")


def target(path: Path) -> Path:
    """A store with small files, and one message of its own, which ``messages`` leaves out."""
    with mqfast.open(path, config=CONFIG) as store:
        store.put("Before", b"was here")
    return path


def archived(spark: SparkSession, store: Path, archive: Path, **settings: Any) -> None:
    archive_job.run(spark, archive_job.ArchiveSettings(str(store), str(archive), **settings))


def messages(path: Path) -> list[tuple[Any, ...]]:
    """Everything that a replay keeps, in log order."""
    with mqfast.StoreReader(path) as reader:
        return [
            (
                m.topic, m.queue_id, bytes(m.body), m.flag, m.born_timestamp, m.reconsume_times, m.born_host,
                {k: v for k, v in m.properties.items() if k != STAMP},
            )
            for m in reader.scan()
            if m.topic != "Before"
        ]  # fmt: skip


def test_a_replay_keeps_content_and_order_and_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    store, archive, new = tmp_path / "store", tmp_path / "archive", tmp_path / "new"
    put(store, 900)
    archived(spark, store, archive, partition_bytes=20_000)
    target(new)
    settings = ReplaySettings(str(archive), str(new), batch_bytes=30_000)
    report = run(spark, settings)
    assert messages(new) == messages(store)
    assert report.facts["appended"] == report.facts["messages"] == 900
    assert report.facts["batches"] > 2
    again = run(spark, settings)
    assert again.facts["appended"] == 0
    assert again.facts["doneBefore"] == report.facts["batches"]
    put(store, 100)
    archived(spark, store, archive, partition_bytes=20_000)
    assert run(spark, settings).facts["appended"] == 100
    assert messages(new) == messages(store)
    with pytest.raises(UsageError, match="expected one query under it"):
        run(spark, ReplaySettings(str(archive), str(new)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", ["intended", "append", "flush", "marked"])
def test_a_replay_that_is_cut_off_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store, archive, new = tmp_path / "store", tmp_path / "archive", tmp_path / "new"
    put(store, 600)
    archived(spark, store, archive, partition_bytes=6_000)
    target(new)
    real = SinkTransaction.commit

    class Killed(BaseException):
        pass

    def commit(self: SinkTransaction, batch: int, files: Any, *, opened: Any) -> Any:
        seen = 0

        def crash(name: str) -> None:
            nonlocal seen
            seen += name == step
            if batch == 1 and name == step and (step != "append" or seen == 2):
                raise Killed

        return real(self, batch, files, crash, opened=opened)

    settings = ReplaySettings(str(archive), str(new), batch_bytes=50_000)
    batches = batches_of(manifests(str(archive)), None, 50_000)
    assert len(batches) > 2
    assert len(batches[1]) > 1
    monkeypatch.setattr(SinkTransaction, "commit", commit)
    with pytest.raises(Killed):
        run(spark, settings)
    monkeypatch.undo()
    assert len(messages(new)) < 600
    run(spark, settings)
    assert messages(new) == messages(store)


def test_a_golden_store_and_maps_of_properties(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    store = copy_of(case, tmp_path)
    rows = [row for row in case.expected["messages"] if not row["topic"].startswith("RMQ_SYS")]
    topics = tuple(sorted({row["topic"] for row in rows}))
    for form in ("raw", "map"):
        archive, new = tmp_path / f"archive-{form}", tmp_path / f"new-{form}"
        archived(spark, store, archive, properties=form, topics=topics)
        assert run(spark, ReplaySettings(str(archive), str(new), topics=topics)).facts["appended"] == len(rows)
        kept = [m for m in messages(store) if m[0] in topics]
        assert messages(new) == kept


def test_only_topics_and_new_times_and_ids(spark: SparkSession, tmp_path: Path) -> None:
    store, archive, new = tmp_path / "store", tmp_path / "archive", tmp_path / "new"
    put(store, 30)
    archived(spark, store, archive)
    target(new)
    run(spark, ReplaySettings(str(archive), str(new), topics=("T1",), new_times=True, new_ids=True))
    found, old = messages(new), [m for m in messages(store) if m[0] == "T1"]
    assert [m[:3] for m in found] == [m[:3] for m in old]
    assert all(m[4] > max(o[4] for o in old) for m in found)
    assert all("UNIQ_KEY" not in m[7] for m in found)


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    put(store, 30)
    with pytest.raises(UsageError, match="found no manifest"):
        run(spark, ReplaySettings(str(tmp_path / "nothing"), str(tmp_path / "new")))
    archived(spark, store, archive)
    put(tmp_path / "live", 1)
    with mqfast.open(tmp_path / "live", config=CONFIG), pytest.raises(StoreLocked, match="one writer"):
        run(spark, ReplaySettings(str(archive), str(tmp_path / "live")))
    target(tmp_path / "new")
    path = archive / manifests(str(archive))[0].files[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"mqfast\.errors\.CorruptFile: a file is not as its manifest says"):
        run(spark, ReplaySettings(str(archive), str(tmp_path / "new")))
    assert messages(tmp_path / "new") == []


def manifest_of(number: int, sizes: list[int]) -> Manifest:
    files = [ArchivedFile(f"{number}-{i}", "T", "d", i * 10, i * 10 + 10, 1, n, 0, 0, 0) for i, n in enumerate(sizes)]
    return Manifest(number, "empty", 0, 0, None, "raw", 0, tuple(files))


def test_batches_of_a_longer_archive_begin_the_same() -> None:
    first, second = manifest_of(1, [5, 5, 5, 20, 1]), manifest_of(2, [1, 1])
    short = batches_of([first], None, 10)
    assert [[file.path for piece in batch for file in piece] for batch in short] == [
        ["1-0", "1-1"], ["1-2"], ["1-3"], ["1-4"],
    ]  # fmt: skip
    assert batches_of([first, second], None, 10)[: len(short)] == short
    assert len(batches_of([first, second], None, 10)) == 5
    assert batches_of([first], ("other",), 10) == []


def test_rows_are_merged_by_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqfast.spark.jobs.merge._ROWS_AT_ONCE", 20)
    places = {"a": list(range(0, 900, 3)), "b": [1, 4, 7], "c": list(range(500, 700, 3)), "d": []}
    for name, offsets in places.items():
        pq.write_table(pa.table({"physicalOffset": pa.array(offsets, pa.int64())}), tmp_path / name)
    batches = [in_order(*ready) for ready in merged([str(tmp_path / name) for name in places], ["physicalOffset"])]
    found = [offset for batch in batches for offset in batch.column(0).to_pylist()]
    assert found == sorted(offset for offsets in places.values() for offset in offsets)
    assert len(batches) > 10
    assert list(merged([], ["physicalOffset"])) == []
