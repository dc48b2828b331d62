"""The job ``compact``: the latest message of each key, against plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import UsageError
from mqfast.spark.jobs.compact import CompactSettings, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_latest_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    latest: dict[tuple[str, str], bytes] = {}
    keyless = 0
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        for i in range(600):
            topic, key = f"T{i % 3}", f"k{i * i % 41}" if i % 11 else None
            body = b"" if i % 7 == 0 else f"{i}".encode()
            store.put(topic, body, queue_id=i % 2, keys=key)
            if topic != "T2" and key is not None:
                latest[topic, key] = body
            keyless += topic != "T2" and key is None
    settings = CompactSettings(str(tmp_path / "store"), str(tmp_path / "out"), ("T0", "T1"), partition_bytes=20_000)
    report = run(spark, settings)
    rows = spark.read.parquet(settings.output).collect()
    found = {(row["topic"], row["keys"]): bytes(row["body"]) for row in rows}
    live = {place: body for place, body in latest.items() if body}
    assert len(rows) == len(found)
    assert found == live
    deleted = len(latest) - len(live)
    assert 0 < deleted < len(latest)
    facts = ("keys", "deleted", "keyless", "written", "messages")
    assert [report.facts[name] for name in facts] == [len(latest), deleted, keyless, len(live), 400]
    with pytest.raises(UsageError, match="expected no such directory"):
        run(spark, settings)
    kept = CompactSettings(settings.store, str(tmp_path / "kept"), ("T1",), keep_deleted=True)
    assert run(spark, kept).facts["written"] == sum(topic == "T1" for topic, _ in latest)
    rows = spark.read.parquet(kept.output).collect()
    assert {row["keys"]: bytes(row["body"]) for row in rows} == {k: b for (t, k), b in latest.items() if t == "T1"}
