"""The job ``rebuild``: what it makes of a log is, byte for byte, what brokers made of it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
from conftest import Case, copy_of, golden_cases

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import UsageError
from mqfast.spark.jobs.queue_files import BATCH, Units
from mqfast.spark.jobs.rebuild import RebuildSettings, difference, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("5.3.3-normal-clean", "5.3.3-lmq", "5.3.3-ipv6", "5.3.3-batch-cq", "4.9.7-normal-clean")
NAMES += ("5.5.0-normal-clean", "5.5.0-batch-cq")
CASES = [case for case in golden_cases() if str(case) in NAMES]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
def test_queues_and_index_are_those_of_the_broker(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    store = copy_of(case, tmp_path)
    settings = RebuildSettings(
        str(store), str(tmp_path / "new"), StoreConfig(), partition_bytes=50_000, compare=True,
        tags=case.release >= "5.5",
    )  # fmt: skip
    report = run(spark, settings)
    assert not report.damaged, report.text()
    made = [path for path in (tmp_path / "new").glob("*consumequeue/*/*/*") if path.is_file()]
    assert len(made) == report.facts["queueFiles"] > 0
    assert report.facts["compared"] >= len(made) + report.facts["indexFiles"]
    assert report.facts["indexFiles"] == len(list((store / "index").iterdir())) > 0


def make(path: Path, count: int = 700) -> None:
    config = StoreConfig(
        mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=2000, max_hash_slot_num=50,
        max_index_num=300,
    )  # fmt: skip
    with mqfast.open(path, config=config) as store:
        for i in range(count):
            store.put("T", b"body", queue_id=i % 2, tags=f"t{i % 7}" if i % 3 else None, keys=f"k{i} again")


def test_a_store_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "store")
    settings = RebuildSettings(
        str(tmp_path / "store"), str(tmp_path / "new"), StoreConfig(), partition_bytes=30_000, compare=True
    )
    report = run(spark, settings)
    assert not report.damaged, report.text()
    assert report.facts["units"] == 700
    assert report.facts["queueFiles"] == 8
    assert report.facts["indexFiles"] > 3
    with pytest.raises(UsageError, match="expected no such directory"):
        run(spark, settings)


def test_differing_rows_are_found(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "store")
    unit = tmp_path / "store" / "consumequeue" / "T" / "1" / f"{2000:020d}"
    data = bytearray(unit.read_bytes())
    data[777] ^= 1
    unit.write_bytes(data)
    settings = RebuildSettings(str(tmp_path / "store"), str(tmp_path / "new"), StoreConfig(), compare=True, index=False)
    report = run(spark, settings)
    assert report.damaged
    assert report.tables[0].rows == [
        (str(tmp_path / "new" / "consumequeue" / "T" / "1" / unit.name), str(unit), "differs from byte 777 on")
    ]
    assert not (tmp_path / "new" / "index").exists()


def test_lost_messages_are_refused_or_filled(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store, 300)
    record = next(m for m in mqfast.StoreReader(store).messages("T", 0) if m.queue_offset == 20)
    (log,) = (path for path in (store / "commitlog").iterdir() if int(path.name) == 0)
    with log.open("r+b") as file:
        file.seek(record.physical_offset + record.size - 30)
        file.write(b"?")  # in the properties: the CRC of the body does not see it
        file.seek(record.physical_offset + 88)
        file.write(b"X")
    with pytest.raises(Exception, match="CorruptFile"):
        run(spark, RebuildSettings(str(store), str(tmp_path / "new"), StoreConfig()))
    assert not (tmp_path / "new").exists()
    report = run(spark, RebuildSettings(str(store), str(tmp_path / "new"), StoreConfig(), allow_gaps=True, index=False))
    assert report.damaged
    assert report.facts["gaps"] == 1
    data = (tmp_path / "new" / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
    assert data[400:420] == bytes(8) + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)


def test_a_log_that_lacks_messages_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store, 3000)
    logs = sorted((store / "commitlog").iterdir())
    first = next(m for m in mqfast.StoreReader(store).scan(int(logs[1].name)))
    assert first.queue_offset > 0
    logs[0].unlink()
    report = run(spark, RebuildSettings(str(store), str(tmp_path / "new"), StoreConfig(), index=False))
    assert report.facts["gaps"] == 0, "what retention took is no gap"
    logs[2].unlink()
    with pytest.raises(Exception, match=r"mqfast\.errors\.DataLoss"):
        run(spark, RebuildSettings(str(store), str(tmp_path / "other"), StoreConfig(), index=False))


def make_batches(path: Path) -> None:
    """A topic with batch queues of several files, whose records hold one to four messages, beside a plain one."""
    config = StoreConfig(
        mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=2000,
        mapped_file_bytes_batch_consume_queue=1000,
    )  # fmt: skip
    with mqfast.open(path, config=config) as store:
        store.topic_table.ensure("B", 2, attributes={"queue.type": "BatchCQ"})
        for i in range(120):
            number = {"INNER_NUM": str(i % 4 + 1), "TAGS": f"t{i % 5}"}
            store.put_message(mqfast.Message("B", b"x%d" % i, queue_id=i % 2, sys_flag=0x80, properties=number))
            store.put("T", b"plain")
        store.put("B", b"alone", queue_id=1, tags="t", keys="k")


def test_batch_queues_are_those_of_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_batches(store)
    report = run(
        spark, RebuildSettings(str(store), str(tmp_path / "new"), StoreConfig(), partition_bytes=9_000, compare=True)
    )
    assert not report.damaged, report.text()
    assert (report.facts["units"], report.facts["queueFiles"]) == (241, 3 + 3 + 2)
    made = sorted((tmp_path / "new" / "batchconsumequeue" / "B" / "1").iterdir())
    assert [int(file.name) for file in made] == [0, 1000, 2000]
    assert (tmp_path / "new" / "consumequeue" / "T").is_dir()
    assert not (tmp_path / "new" / "consumequeue" / "B").exists()
    # What the files tell is gone; topics.json tells as much, but for the size.
    shutil.rmtree(store / "batchconsumequeue")
    config = StoreConfig(mapped_file_bytes_batch_consume_queue=1000)
    again = run(spark, RebuildSettings(str(store), str(tmp_path / "again"), config, index=False))
    assert again.facts["units"] == 241
    for file in made:
        assert (tmp_path / "again" / "batchconsumequeue" / "B" / "1" / file.name).read_bytes() == file.read_bytes()
    for name in ("topics.json", "topics.json.bak"):
        (store / "config" / name).unlink(missing_ok=True)
    with pytest.raises(Exception, match=r"mqfast\.errors\.UsageError: topic B: found a record of several messages"):
        run(spark, RebuildSettings(str(store), str(tmp_path / "third"), config, index=False))
    told = RebuildSettings(str(store), str(tmp_path / "fourth"), config, index=False, batch_topics=("B",))
    assert run(spark, told).facts["units"] == 241


def test_a_batch_queue_that_lacks_messages(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_batches(store)
    with mqfast.StoreReader(store) as reader:
        record = [m for m in reader.scan() if m.topic == "B"][7]  # of four messages
    (log,) = (path for path in (store / "commitlog").iterdir() if int(path.name) == 0)
    with log.open("r+b") as file:
        file.seek(record.physical_offset + 4)
        file.write(b"\0")
    settings = RebuildSettings(str(store), str(tmp_path / "new"), StoreConfig(), index=False, allow_gaps=True)
    report = run(spark, settings)
    assert report.damaged
    assert (report.facts["gaps"], report.facts["units"]) == (4, 240)


def test_a_record_on_its_way_is_not_yet_in_light_queues(spark: SparkSession, tmp_path: Path) -> None:
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"}
    config = StoreConfig(
        mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=2000, enable_lmq=True,
        enable_multi_dispatch=True,
    )  # fmt: skip
    with mqfast.open(tmp_path / "store", config=config) as store:
        for topic in ("%RETRY%g", "SCHEDULE_TOPIC_XXXX", "T"):
            store.put(topic, b"body", properties=light)
    settings = RebuildSettings(str(tmp_path / "store"), str(tmp_path / "new"), StoreConfig(), compare=True, index=False)
    report = run(spark, settings)
    assert not report.damaged, report.text()
    assert report.facts["units"] == 4


def one_record(sys_flag: int) -> pa.RecordBatch:
    return pa.record_batch({
        "topic": ["T"], "queueId": pa.array([0], pa.int32()), "queueOffset": [5], "physicalOffset": [7],
        "msgSize": pa.array([100], pa.int32()), "storeTimestamp": pa.array([9000], pa.timestamp("us", tz="UTC")),
        "sysFlag": pa.array([sys_flag], pa.int32()), "tags": pa.array(["a"], pa.string()),
        "properties": ["INNER_NUM\x013\x02"],
    })  # fmt: skip


def test_a_record_of_several_messages_is_no_plain_unit() -> None:
    batch = one_record(0x80)
    with pytest.raises(UsageError, match=r"topic T: .*batch queues"):
        Units((1000,), 100).add(batch)
    units = Units((1000,), 100, frozenset({"T"}))
    units.add(batch)
    ((key, data),) = units.packed()
    assert key == ("T", 0, BATCH)
    assert struct.unpack("<qiqqqi", data) == (7, 100, 97, 9, 5, 3)


def test_a_number_of_messages_that_a_producer_has_set_does_not_count() -> None:
    for topics, unit in ((frozenset[str](), (5, 7, 100, 97)), (frozenset({"T"}), (7, 100, 97, 9, 5, 1))):
        units = Units((1000,), 100, topics)
        units.add(one_record(0))
        ((_, data),) = units.packed()
        assert struct.unpack("<qiqqqi" if topics else "<qqiq", data) == unit


def test_difference(tmp_path: Path) -> None:
    for name, data in {"a": b"12", "b": b"13", "c": b"123", "zero": bytes(9), "same": b"12"}.items():
        (tmp_path / name).write_bytes(data)

    def of(ours: str | None, theirs: str | None) -> str:
        return difference((ours and str(tmp_path / ours), theirs and str(tmp_path / theirs)))

    assert of("a", "same") == of(None, "zero") == ""
    assert of("a", "b") == "differs from byte 1 on"
    assert of("a", "c") == "differs from byte 2 on"
    assert of("a", None) == "only rebuilt"
    assert of(None, "a") == "only in the store"
