"""The job ``audit``: sound stores are sound, and each kind of damage that a test does is found and named.

Room: tests/spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from conftest import Case, copy_of, golden_cases

import mqfast
from mqfast.config import StoreConfig
from mqfast.spark.jobs import audit
from mqfast.spark.jobs.audit import Settings, run
from mqfast.spark.jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOUND = [c for c in golden_cases() if str(c) in ("5.3.3-normal-clean", "5.3.3-lmq", "5.3.3-batch-cq")]


def tables(report: Report) -> dict[str, list[dict[str, Any]]]:
    return {t.title: [dict(zip(t.heads, row, strict=True)) for row in t.rows] for t in report.tables}


@pytest.mark.parametrize("case", SOUND, ids=map(str, SOUND))
def test_sound_stores_have_no_findings(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    report = run(spark, Settings(str(copy_of(case, tmp_path)), partition_bytes=40_000))
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


def test_a_flipped_bit_is_found_where_it_was_flipped(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("torn-middle",))
    report = run(spark, Settings(str(copy_of(case, tmp_path))))
    assert report.damaged
    assert report.facts["crcErrors"] == 1
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


def test_every_kind_of_wrong_unit(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    places = make(path)
    assert not run(spark, Settings(str(path))).damaged
    change_unit(path, 0, 1, 8, (99).to_bytes(4, "big"))  # message 6: another length
    change_unit(path, 1, 1, 0, (places[3] + 1).to_bytes(8, "big"))  # message 4: points beside it
    # Queue 2: its first two units change places.
    (file,) = (path / "consumequeue" / "T" / "2").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[20:40] + data[:20] + data[40:])
    report = run(spark, Settings(str(path)))
    assert report.damaged
    found = sorted((row["physicalOffset"], row["kind"]) for row in tables(report)["first findings"])
    assert found == sorted(
        [
            (places[5], audit.OTHER_SIZE), (places[3], audit.NO_UNIT), (places[3] + 1, audit.NO_RECORD),
            (places[1], audit.OTHER_PLACE), (places[4], audit.OTHER_PLACE),
        ]
    )  # fmt: skip
    assert report.facts["findings"] == 5
    assert len(tables(run(spark, Settings(str(path), findings=2)))["first findings"]) == 2


def test_what_is_no_record_is_a_gap_in_the_log(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    places = make(path)
    (log,) = (p for p in (path / "commitlog").iterdir() if int(p.name) == 0)
    with log.open("r+b") as f:
        f.seek(places[4])
        f.write(bytes(places[5] - places[4]))
    report = run(spark, Settings(str(path)))
    assert report.damaged
    (bad,) = tables(report)["damage in the log"]
    assert (bad["firstBadOffset"], bad["gaps"], bad["gapBytes"]) == (places[4], 1, places[5] - places[4])
    (finding,) = tables(report)["first findings"]
    assert (finding["physicalOffset"], finding["kind"]) == (places[4], audit.NO_RECORD)
    only_log = run(spark, Settings(str(path), queues=False))
    assert only_log.damaged
    assert "queues" not in tables(only_log)
