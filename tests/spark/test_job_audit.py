"""The job ``audit``: sound stores are sound, and each kind of damage that a test does is found and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from conftest import Case, copy_of, golden_cases

import mqfast
from mqfast.config import StoreConfig
from mqfast.spark.jobs import audit, index_check
from mqfast.spark.jobs.audit import AuditSettings, run
from mqfast.spark.jobs.report import JobReport
from mqfast.store.check.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOUND = [c for c in golden_cases() if str(c) in ("5.3.3-normal-clean", "5.3.3-batch-cq", "5.3.3-cq-ext")]


def tables(report: JobReport) -> dict[str, list[dict[str, Any]]]:
    return {t.title: [dict(zip(t.heads, row, strict=True)) for row in t.rows] for t in report.tables}


@pytest.mark.sampled(4, group="the tests of the job audit")
@pytest.mark.parametrize("case", SOUND, ids=map(str, SOUND))
def test_sound_stores_have_no_findings(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    report = run(spark, AuditSettings(str(copy_of(case, tmp_path)), partition_bytes=40_000))
    assert not report.damaged
    assert report.facts["crcErrors"] == report.facts["gaps"] == report.facts["findings"] == 0
    records = [row for row in case.expected["log"] if "BLANK" not in row]
    assert report.facts["records"] == len(records)
    plain = {
        (row["topic"], row["queueId"], row["physicalOffset"])
        for row in case.expected["messages"]
        if not row["topic"].startswith("%LMQ%")
    }
    assert report.facts["units"] == len(plain)
    assert report.facts["keys"] == report.facts["indexEntries"] > 0
    assert report.facts["indexFindings"] == report.facts["keysNotYetIndexed"] == 0


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_a_flipped_bit_is_found_where_it_was_flipped(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("torn-middle",))
    report = run(spark, AuditSettings(str(copy_of(case, tmp_path))))
    assert report.damaged
    assert report.facts["crcErrors"] == 1
    assert report.facts["indexFindings"] == 0, "a record with a torn body has its keys all the same"
    found = tables(report)
    damage = json.loads((case.dir / "damage.json").read_text())
    (bad,) = found["damage in the log"]
    (finding,) = found["first findings"]
    assert bad["reason"] == "crc"
    assert finding["kind"] == audit.CRC
    assert finding["physicalOffset"] == bad["firstBadOffset"]
    place = next(value for name, value in damage.items() if "ffset" in name and isinstance(value, int))
    assert bad["firstBadOffset"] % (1 << 15) <= place % (1 << 15)


def make(path: Path) -> list[int]:
    """Nine messages in three queues; returns their physical offsets."""
    with mqfast.open(path, config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        return [store.put("T", b"body" * i, queue_id=i % 3).physical_offset for i in range(1, 10)]


def change_unit(path: Path, queue: int, offset: int, at: int, data: bytes) -> None:
    (file,) = (path / "consumequeue" / "T" / str(queue)).iterdir()
    with file.open("r+b") as f:
        f.seek(offset * 20 + at)
        f.write(data)


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_every_kind_of_wrong_unit(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    places = make(path)
    assert not run(spark, AuditSettings(str(path))).damaged
    change_unit(path, 0, 1, 8, (99).to_bytes(4, "big"))  # message 6: another length
    change_unit(path, 0, 2, 19, b"x")  # message 9: no tags, and a code
    change_unit(path, 1, 1, 0, (places[3] + 1).to_bytes(8, "big"))  # message 4: points beside it
    # Queue 2: its first two units change places.
    (file,) = (path / "consumequeue" / "T" / "2").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[20:40] + data[:20] + data[40:])
    report = run(spark, AuditSettings(str(path)))
    assert report.damaged
    found = sorted((row["physicalOffset"], row["kind"]) for row in tables(report)["first findings"])
    assert found == sorted(
        [
            (places[5], audit.OTHER_SIZE), (places[3], audit.NO_UNIT), (places[3] + 1, audit.NO_RECORD),
            (places[1], audit.OTHER_PLACE), (places[4], audit.OTHER_PLACE), (places[8], audit.OTHER_TAGS),
        ]
    )  # fmt: skip
    assert report.facts["findings"] == 6
    assert len(tables(run(spark, AuditSettings(str(path), findings=2)))["first findings"]) == 2


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_bytes_that_are_no_record_are_a_gap_in_the_log(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    places = make(path)
    (log,) = (p for p in (path / "commitlog").iterdir() if int(p.name) == 0)
    with log.open("r+b") as f:
        f.seek(places[4])
        f.write(bytes(places[5] - places[4]))
    report = run(spark, AuditSettings(str(path)))
    assert report.damaged
    (bad,) = tables(report)["damage in the log"]
    assert (bad["firstBadOffset"], bad["gaps"], bad["gapBytes"]) == (places[4], 1, places[5] - places[4])
    (finding,) = tables(report)["first findings"]
    assert (finding["physicalOffset"], finding["kind"]) == (places[4], audit.NO_RECORD)
    only_log = run(spark, AuditSettings(str(path), queues=False, index=False))
    assert only_log.damaged
    assert "queues" not in tables(only_log)
    assert "indexFiles" not in only_log.facts


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_delivery_times_of_delay_levels(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    store = copy_of(case, tmp_path)
    levels = "2s 5s 10s"  # not the broker's
    report = run(spark, AuditSettings(str(store), index=False, delay_levels=levels))
    delayed = [row for row in case.expected["messages"] if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
    found = {row["kind"]: row["count"] for row in tables(report)["findings by kind"]}
    assert found == {audit.OTHER_TIME: sum(row["queueId"] not in (1, 2) for row in delayed)}
    (file,) = (store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "0").iterdir()
    data = bytearray(file.read_bytes())
    data[39] ^= 1
    file.write_bytes(data)
    report = run(spark, AuditSettings(str(store), index=False))
    (finding,) = tables(report)["first findings"]
    assert (finding["kind"], finding["unitOffset"]) == (audit.OTHER_TIME, 1)
    assert finding["unitCode"] - finding["recordCode"] in (1, -1)


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_a_store_in_use_is_behind_and_not_damaged(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("killed-no-queues",))
    report = run(spark, AuditSettings(str(copy_of(case, tmp_path))))
    assert not report.damaged
    assert report.facts["unitsNotYetThere"] == report.facts["records"] > 0
    assert report.facts["findings"] == report.facts["indexFiles"] == 0
    path = tmp_path / "live"
    make(path)
    (path / "abort").touch()
    change_unit(path, 2, 2, 0, bytes(20))  # the last one of its queue is not there yet
    change_unit(path, 1, 1, 0, bytes(8))  # one in the middle is another matter
    report = run(spark, AuditSettings(str(path)))
    assert report.damaged
    assert report.facts["unitsNotYetThere"] == 1
    assert {row["kind"] for row in tables(report)["findings by kind"]} >= {audit.NO_UNIT}


SLOTS = 50


def with_keys(path: Path) -> list[Path]:
    """Forty messages with two keys each; returns the index files, of which there are several."""
    config = StoreConfig(mapped_file_bytes_commit_log=1 << 16, max_hash_slot_num=SLOTS, max_index_num=20)
    with mqfast.open(path, config=config) as store:
        for i in range(40):
            store.put("T", b"body", queue_id=i % 3, keys=f"k{i} x")
    return sorted((path / "index").iterdir())


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_every_kind_of_wrong_index(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    files = with_keys(path)
    assert len(files) > 3

    def check() -> tuple[JobReport, dict[str, int], list[dict[str, Any]]]:
        report = run(spark, AuditSettings(str(path), queues=False, partition_bytes=2000))
        assert report.damaged == (verify(path).state == "damaged")
        found = tables(report)
        counts = {row["kind"]: row["count"] for row in found["findings in the index by kind"]}
        assert report.facts["indexFindings"] == sum(counts.values())
        return report, counts, found["first findings in the index"]

    report, counts, rows = check()
    assert (counts, rows, report.damaged) == ({}, [], False)
    assert report.facts["indexEntries"] == report.facts["keys"]

    sound = files[1].read_bytes()
    data = bytearray(sound)
    entry = 40 + 4 * SLOTS + 20 * 3
    data[entry + 11] ^= 1  # its physical offset
    files[1].write_bytes(data)
    report, counts, rows = check()
    assert counts == {index_check.NO_KEY: 1, index_check.NO_ENTRY: 1}
    place = int.from_bytes(sound[entry + 4 : entry + 12], "big")
    assert {row["kind"]: row["offset"] for row in rows} == {
        index_check.NO_KEY: place ^ 1, index_check.NO_ENTRY: place,
    }  # fmt: skip
    by_kind = {row["kind"]: row for row in rows}
    assert by_kind[index_check.NO_KEY]["file"] == str(files[1])
    assert by_kind[index_check.NO_ENTRY]["key"].startswith("T#")

    data = bytearray(sound)
    data[entry + 3] ^= 1  # its hash: it is in another chain as well
    files[1].write_bytes(data)
    report, counts, rows = check()
    assert report.damaged
    assert counts[index_check.CHAIN] + counts.get(index_check.SLOT, 0) > 0
    assert counts[index_check.NO_KEY] == counts[index_check.NO_ENTRY] == 1

    files[1].write_bytes(sound[:100])
    report, counts, rows = check()
    assert report.damaged
    assert counts == {index_check.BROKEN: 1}

    files[1].unlink()
    report, counts, rows = check()
    assert not report.damaged, "RocketMQ loses keys itself"
    assert list(counts) == [index_check.NO_ENTRY]
    assert counts[index_check.NO_ENTRY] == 19

    for file in files[2:]:
        file.unlink()
    report, counts, rows = check()
    assert report.facts["keysNotYetIndexed"] == report.facts["keys"] - report.facts["indexEntries"] > 0
    assert counts == {}


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_an_index_entry_into_log_damage_is_reported_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with_keys(path)
    with mqfast.StoreReader(path) as reader:
        record = list(reader.scan())[20]
    (log,) = (p for p in (path / "commitlog").iterdir() if int(p.name) == 0)
    with log.open("r+b") as f:
        f.seek(record.physical_offset + 4)
        f.write(b"\0")
    report = run(spark, AuditSettings(str(path), queues=False))
    assert report.damaged
    assert (report.facts["gaps"], report.facts["indexFindings"]) == (1, 0)


@pytest.mark.sampled(4, group="the tests of the job audit")
def test_a_killed_writer_may_leave_its_newest_index_file_torn(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    files = with_keys(path)
    data = bytearray(files[-1].read_bytes())
    data[40 + 4 * SLOTS + 20 + 11] ^= 1
    files[-1].write_bytes(data)
    assert run(spark, AuditSettings(str(path), queues=False)).damaged
    (path / "abort").touch()
    report = run(spark, AuditSettings(str(path), queues=False))
    assert not report.damaged
    assert report.facts["indexFindings"] > 0
    assert verify(path).state == "recoverable"


def test_the_command_line() -> None:
    parser = audit.build_parser()

    def settings(*line: str) -> AuditSettings:
        return audit.settings_of(parser.parse_args(["s", *line]))

    assert settings() == AuditSettings("s")
    assert settings("--log-only") == AuditSettings("s", queues=False, index=False)
    assert settings("--no-index", "--delay-levels", "1s") == AuditSettings("s", index=False, delay_levels="1s")
