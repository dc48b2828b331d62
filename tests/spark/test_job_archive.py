"""The job ``archive``: what it writes is what Java says is in the store, once, whatever happened before.

The command line is in ``test_jobs_cli.py``.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import copy_of, golden_cases
from golden_rows import PLAIN, expected_rows, key_of

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, DataLoss, StoreLocked, UsageError
from mqfast.spark import archive_manifest as manifest_module
from mqfast.spark.archive_manifest import manifests, only_run
from mqfast.spark.durable_files import DurableFile, crc_of
from mqfast.spark.jobs.archive import ArchiveSettings, read_archive, run
from mqfast.spark.jobs.parquet_files import PieceFiles, by_topic_and_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_US = 86_400_000_000


def archived(archive: Path) -> list[dict[str, Any]]:
    """All rows, read without Spark, each in the file that its topic and day belong to."""
    rows = []
    for manifest in manifests(str(archive)):
        for file in manifest.files:
            path = archive / file.path
            assert crc_of(str(path)) == file.crc
            assert path.stat().st_size == file.bytes
            found = pq.ParquetFile(path).read().to_pylist()
            assert len(found) == file.rows
            assert {row["topic"] for row in found} == {file.topic}
            assert {str(row["storeTimestamp"].date()) for row in found} == {file.date}
            offsets = [row["physicalOffset"] for row in found]
            assert offsets == sorted(offsets)
            assert (offsets[0], offsets[-1]) == (file.min_physical_offset, file.max_physical_offset)
            rows += found
    return rows


def put(path: Path, count: int, topic: str = "Orders") -> None:
    with mqfast.open(path, config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        for i in range(count):
            store.put(topic, f"{topic} {i}".encode() * 5, queue_id=i % 3, tags=f"t{i % 2}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["normal-clean", "ipv6"])
def test_archive_of_a_golden_store_has_every_column_of_every_message(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    (case,) = golden_cases("5.3.3", (name,))
    settings = ArchiveSettings(
        str(copy_of(case, tmp_path)), str(tmp_path / "archive"), properties="map", partition_bytes=40_000
    )
    report = run(spark, settings)
    found = archived(tmp_path / "archive")
    for row in found:
        row["properties"] = dict(row["properties"])
        row["body"] = hashlib.sha256(row["body"]).hexdigest()
        for time in ("bornTimestamp", "storeTimestamp"):
            row[time] = round(row[time].timestamp() * 1000)
    expected = [
        {k: v for k, v in row.items() if k in {*PLAIN, "body"} - {"msgId"}}
        for row in expected_rows(case.expected, light=False)
    ]
    assert sorted(found, key=key_of) == expected
    assert report.facts["messages"] == len(expected)
    assert not report.damaged
    frame = read_archive(spark, settings.archive)
    assert frame.count() == len(expected)
    topic = expected[0]["topic"]
    assert read_archive(spark, settings.archive, [topic]).count() == sum(row["topic"] == topic for row in expected)


def test_each_run_adds_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    settings = ArchiveSettings(str(store), str(archive), partition_bytes=20_000)
    counts = []
    for new in (500, 300, 0, 7):
        put(store, new)
        counts.append(run(spark, settings).facts["messages"])
    assert counts == [500, 300, 0, 7]
    places = [(row["queueId"], row["queueOffset"]) for row in archived(archive)]
    assert len(places) == len(set(places)) == 807
    assert [m.number for m in manifests(str(archive))] == [1, 2, 3]


def test_only_the_topics_that_were_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    for topic in ("A", "%RETRY%b", "C"):
        put(store, 50, topic)
    run(spark, ArchiveSettings(str(store), str(archive), topics=("%RETRY%b", "C")))
    assert {row["topic"] for row in archived(archive)} == {"%RETRY%b", "C"}
    assert (archive / "topic=%25RETRY%25b").is_dir()
    with pytest.raises(UsageError, match="another choice needs an archive of its own"):
        run(spark, ArchiveSettings(str(store), str(archive)))
    with pytest.raises(UsageError, match="under another topic"):
        run(spark, ArchiveSettings(str(store), str(tmp_path / "other"), topics=("%LMQ%x",)))


def test_a_run_that_did_not_end_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    settings = ArchiveSettings(str(store), str(archive))
    put(store, 100)

    class Killed(BaseException):
        pass

    def die(*args: object) -> None:
        raise Killed

    monkeypatch.setattr("mqfast.spark.jobs.archive.save", die)
    with pytest.raises(Killed):
        run(spark, settings)
    monkeypatch.undo()
    (orphan,) = archive.rglob("*.parquet")
    put(store, 100)
    assert run(spark, settings).facts["messages"] == 200
    assert not orphan.exists()
    assert len(archived(archive)) == 200
    assert len(list(archive.rglob("*.parquet"))) == sum(len(m.files) for m in manifests(str(archive)))


def test_two_runs_exclude_each_other(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "store", 3)
    with only_run(str(tmp_path / "archive")), pytest.raises(StoreLocked, match="another run"):
        run(spark, ArchiveSettings(str(tmp_path / "store"), str(tmp_path / "archive")))


def test_messages_removed_by_retention_are_reported_as_lost(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    settings = ArchiveSettings(str(store), str(archive))
    put(store, 100)
    end = run(spark, settings).facts["end"]
    put(store, 2000)
    logs = sorted((store / "commitlog").iterdir())
    for log in logs[:2]:
        log.unlink()
    with pytest.raises(DataLoss, match="removed before they were archived"):
        run(spark, settings)
    report = run(spark, ArchiveSettings(str(store), str(archive), allow_loss=True))
    assert report.damaged
    assert report.facts["lostBytes"] == int(logs[2].name) - end


def test_a_damaged_record_fails_the_job_or_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("torn-middle",))
    store = str(copy_of(case, tmp_path))
    with pytest.raises(Exception, match=r"mqfast\.errors\.CorruptFile: .*commitlog"):
        run(spark, ArchiveSettings(store, str(tmp_path / "strict")))
    assert manifests(str(tmp_path / "strict")) == []
    whole = run(spark, ArchiveSettings(store, str(tmp_path / "off"), verify_crc="off")).facts["messages"]
    report = run(spark, ArchiveSettings(store, str(tmp_path / "skip"), verify_crc="skip", partition_bytes=40_000))
    assert report.damaged
    assert (report.facts["messages"], report.facts["leftOut"]) == (whole - 1, 1)
    with mqfast.StoreReader(store) as reader:
        (bad,) = (m for m in reader.scan(check_crc=False) if not m.check_crc())
    assert report.facts["leftOutBytes"] == bad.size
    (file,) = manifests(str(tmp_path / "skip"))[0].left_out
    assert (file.count, file.places) == (1, ((bad.physical_offset, "crc"),))
    assert report.tables[1].rows == [(file.path, bad.physical_offset, "crc")]
    assert Path(file.path).parent.name == "commitlog"


def test_left_out_records_are_reported_by_log_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqfast.spark.jobs.archive._MOST_SHOWN", 3)
    store, archive = tmp_path / "store", tmp_path / "archive"
    put(store, 1000)
    with mqfast.StoreReader(store) as reader:
        records = [(m.physical_offset, m.size) for m in reader.scan()]
    gone, torn = records[100:103], [records[500], records[510], records[-5]]
    for at, size in gone:
        overwrite(store, at, bytes(size))  # one gap
    for at, _ in torn:
        overwrite(store, at + 4, b"\0")
    report = run(spark, ArchiveSettings(str(store), str(archive), verify_crc="skip", partition_bytes=20_000))
    assert report.facts["messages"] == len(archived(archive)) == 1000 - 6
    assert (report.facts["leftOut"], report.facts["leftOutBytes"]) == (4, sum(size for _, size in gone + torn))
    assert len(report.tables[1].rows) == 3
    found = manifests(str(archive))[0].left_out
    assert len(found) > 1
    assert [at for file in found for at, _ in file.places] == [gone[0][0], *(at for at, _ in torn)]
    assert {file.path for file in found} <= {str(path) for path in (store / "commitlog").iterdir()}
    assert {why for file in found for _, why in file.places} == {"zero", "no record"}
    again = run(spark, ArchiveSettings(str(store), str(archive), verify_crc="skip"))
    assert not again.damaged, "the next run begins behind it"


def overwrite(store: Path, physical: int, data: bytes) -> None:
    log = next(path for path in sorted((store / "commitlog").iterdir(), reverse=True) if int(path.name) <= physical)
    with log.open("r+b") as file:
        file.seek(physical - int(log.name))
        file.write(data)


def test_an_archive_of_another_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "one", 10)
    put(tmp_path / "two", 20, "Other")
    run(spark, ArchiveSettings(str(tmp_path / "one"), str(tmp_path / "archive")))
    with pytest.raises(OSError, match="not the store"):
        run(spark, ArchiveSettings(str(tmp_path / "two"), str(tmp_path / "archive")))
    with pytest.raises(UsageError, match="expected an archive or an empty directory"):
        run(spark, ArchiveSettings(str(tmp_path / "one"), str(tmp_path / "two")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: "{", "not the JSON"),
        (lambda value: json.dumps([value]), "not the JSON"),
        (lambda value: json.dumps({**value, "version": 9}), "another version"),
        (lambda value: json.dumps({**value, "number": 2}), "not in its place"),
        (lambda value: json.dumps({k: v for k, v in value.items() if k != "files"}), "not as it was written"),
        (lambda value: json.dumps({**value, "left_out": [{}]}), "not as it was written"),
    ],
)
def test_damaged_manifests(tmp_path: Path, change: Any, message: str) -> None:
    with only_run(str(tmp_path)):
        manifest_module.save(str(tmp_path), manifest_module.Manifest(1, "empty", 0, 9, None, "raw", 1, ()))
    path = tmp_path / "_manifest" / "00000001.json"
    assert len(manifests(str(tmp_path))) == 1
    older = {name: value for name, value in json.loads(path.read_text()).items() if not name.startswith("left_out")}
    path.write_text(json.dumps(older))
    assert manifests(str(tmp_path))[0].left_out == ()
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(CorruptFile, match=message):
        manifests(str(tmp_path))


def batch_of(topics: list[str], days: list[int]) -> pa.RecordBatch:
    times = pa.array([day * DAY_US + i for i, day in enumerate(days)], pa.timestamp("us", tz="UTC"))
    numbers = range(len(topics))
    return pa.record_batch(
        {"topic": topics, "storeTimestamp": times, "physicalOffset": numbers, "queueId": [0] * len(topics),
         "queueOffset": numbers}
    )  # fmt: skip


def test_rows_by_topic_and_day() -> None:
    found = list(by_topic_and_day(batch_of(["B", "A", "B", "A", "B"], [1, 0, 0, 1, 1])))
    parts = {(topic, day): rows.column("physicalOffset").to_pylist() for topic, day, rows in found}
    assert parts == {
        ("B", "1970-01-01"): [2], ("A", "1970-01-01"): [1], ("B", "1970-01-02"): [0, 4], ("A", "1970-01-02"): [3],
    }  # fmt: skip
    assert list(by_topic_and_day(batch_of([], []))) == []
    ((topic, day, rows),) = by_topic_and_day(batch_of(["A", "A"], [-1, -1]))
    assert (topic, day, rows.num_rows) == ("A", "1969-12-31", 2)


def test_many_topics_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqfast.spark.jobs.parquet_files._MOST_PENDING_BYTES", 2000)
    monkeypatch.setattr("mqfast.spark.jobs.parquet_files._MOST_OPEN", 3)

    def write(archive: Path) -> list[manifest_module.ArchivedFile]:
        with PieceFiles(str(archive), 0, 1000, "zstd", 3) as files:
            for i in range(40):
                names = [f"T{(i + j) % 9}" for j in range(20)]
                batch = batch_of(names, [0] * 20)
                offsets = pa.array([i * 20 + j for j in range(20)])
                files.add(batch.set_column(2, "physicalOffset", offsets))
            return files.close()

    found = write(tmp_path / "a")
    assert len({file.path for file in found}) == len(found) > 9
    assert sum(file.rows for file in found) == 800
    read = {offset for f in found for offset in pq.read_table(tmp_path / "a" / f.path)["physicalOffset"].to_pylist()}
    assert read == set(range(800))
    assert write(tmp_path / "b") == found, "a task that runs again writes the same"


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_task_leaves_no_file(tmp_path: Path) -> None:
    files = PieceFiles(str(tmp_path), 0, 1000, "zstd", 3)
    with pytest.raises(KeyError), files:
        files.add(batch_of(["A"] * 5, [0] * 5))
        files._write(next(iter(files._open.values())))
        files.add(pa.record_batch({"physicalOffset": [1]}))
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []
    del files  # what it says now would be nobody's to catch
    gc.collect()


def test_a_disk_that_is_full_leaves_no_file_and_no_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: DurableFile, data: Any) -> int:
        raise OSError(28, "No space left on device")

    files = PieceFiles(str(tmp_path), 0, 1000, "zstd", 3)
    with pytest.raises(OSError, match="No space"), files:
        files.add(batch_of(["A"] * 5, [0] * 5))
        files._write(next(iter(files._open.values())))
        with monkeypatch.context() as patch:
            patch.setattr(DurableFile, "write", full)
            files.close()
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []
