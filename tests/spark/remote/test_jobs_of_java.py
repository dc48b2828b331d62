"""Jobs with ``--namesrv`` on a broker of Apache RocketMQ: what they say and write is what its store has.

The session is that of all tests; the broker is a process of Java.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("msgspec")

sys.path.append(str(Path(__file__).resolve().parents[2] / "interop"))
import pyarrow.parquet as pq
from java_broker import Java, admin_makes
from real_programs import NEEDS_JAVA, wait_for

from mqfast.client import Producer
from mqfast.errors import ConfigError
from mqfast.message import Message
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.spark.archive_manifest import manifests
from mqfast.spark.jobs import analytics, archive, audit, compact, dlq, replay
from mqfast.spark.jobs.locations import ClusterLocation
from mqfast.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*NEEDS_JAVA, pytest.mark.sampled(1, group="jobs on a Java broker")]
QUEUES = 3
Row = dict[str, Any]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    made = Java(tmp_path_factory.mktemp("java"))
    yield made
    made.machine.end_all()


def of(java: Java) -> ClusterLocation:
    return ClusterLocation(java.machine.namesrv, (("brokerTimeout", "60s"),))


def by_place(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def archived(path: Path) -> list[Row]:
    files = [path / file.path for manifest in manifests(str(path)) for file in manifest.files]
    return by_place([row for file in files for row in pq.ParquetFile(file).read().to_pylist()])


def in_the_files(java: Java, topic: str, count: int) -> list[Row]:
    """The messages of a topic as the files of the broker have them."""
    given = {"subscribe": topic, "columns": archive.COLUMNS, "properties": "raw", "decompress": "false"}
    wait_for(lambda: len(java.files.batch(**given)) == count, f"{count} messages of {topic} in the files")
    return by_place(java.files.batch(**given))


def test_archive_and_replay_both_ways(
    spark: SparkSession, java: Java, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every column of every message once; into a broker of ours each row once, into theirs at least once."""
    admin_makes(java, "orders")
    settings = archive.ArchiveSettings(of(java), str(tmp_path / "archive"), topics=("orders",))
    counts = []
    for first, end in ((0, 90), (90, 120), (120, 120)):
        java.fill("orders", first, end)
        counts.append(archive.run(spark, settings).facts["messages"])
    assert counts == [90, 30, 0]
    rows = in_the_files(java, "orders", 120)
    assert archived(tmp_path / "archive") == rows  # large bodies are compressed in both
    rows = by_place(java.files.batch(subscribe="orders", columns="topic,queueId,queueOffset,body"))
    with Broker(topics={"orders": QUEUES, "again": QUEUES}) as ours:
        back = replay.ReplaySettings(str(tmp_path / "archive"), ClusterLocation(ours.namesrv_addr))
        report = replay.run(spark, back)
        assert (report.facts["sent"], report.facts["queuesKept"]) == (120, True)
        assert replay.run(spark, back).facts["sent"] == 0
        for queue in range(QUEUES):
            found = [bytes(one.body) for one in ours.messages("orders", queue_id=queue)]
            assert found == [row["body"] for row in rows if row["queueId"] == queue]
        for queue in range(QUEUES):
            ours.send("again", *(b"%06d" % n for n in range(queue, 60, QUEUES)), queue_id=queue, keys="k", tags="t")
        archive.run(
            spark,
            archive.ArchiveSettings(ClusterLocation(ours.namesrv_addr), str(tmp_path / "ours"), topics=("again",)),
        )
    admin_makes(java, "again")
    with caplog.at_level(logging.WARNING, logger="mqfast.spark"):
        assert replay.run(spark, replay.ReplaySettings(str(tmp_path / "ours"), of(java))).facts["sent"] == 60
    assert "broker brk remembers no writes" in caplog.text
    names = ("queueId", "queueOffset", "body", "keys", "tags")
    expected = [tuple(row[name] for name in names) for row in archived(tmp_path / "ours")]
    assert [tuple(row[name] for name in names) for row in in_the_files(java, "again", 60)] == expected


def test_audit_analytics_and_compact(spark: SparkSession, java: Java, tmp_path: Path) -> None:
    admin_makes(java, "keyed")
    with Producer("filler", java.machine.namesrv) as producer:
        for n in range(40):
            producer.send(Message("keyed", b"%d" % n, tags=f"tag{n % 2}", keys=f"key{n % 4}"))
    report = analytics.run(spark, analytics.AnalyticsSettings(of(java), topics=("keyed",)))
    assert report.facts["messages"] == 40
    tags = next(found.rows for found in report.tables if found.title == "tags")
    assert sorted(row[:3] for row in tags) == [("keyed", "tag0", 20), ("keyed", "tag1", 20)]
    out = tmp_path / "out"
    report = compact.run(spark, compact.CompactSettings(of(java), str(out), ("keyed",)))
    assert (report.facts["messages"], report.facts["written"]) == (40, 4)
    found = {row["keys"]: bytes(row["body"]) for row in spark.read.parquet(str(out)).collect()}
    assert found == {f"key{n % 4}": b"%d" % n for n in range(36, 40)}
    report = audit.run(spark, audit.AuditSettings(of(java)))
    assert not report.damaged
    assert (report.facts["missing"], report.facts["repeated"], report.facts["crcErrors"]) == (0, 0, 0)
    assert report.facts["records"] == sum(row["messages"] for row in java.place.batch(view="queues")) >= 40


def bury(java: Java, topic: str, group: str) -> None:
    """Have the broker make dead letters of all messages of a topic, as a consumer that gives them up."""
    rows = java.place.batch(subscribe=topic, columns="physicalOffset,uniqKey")

    async def give_up() -> None:
        client = RemotingClient()
        for row in rows:
            answer = await client.call(
                f"127.0.0.1:{java.port}",
                RequestCode.CONSUMER_SEND_MSG_BACK,
                {
                    "group": group, "offset": str(row["physicalOffset"]), "delayLevel": "-1",
                    "originMsgId": row["uniqKey"], "originTopic": topic, "unitMode": "false", "maxReconsumeTimes": "3",
                },
            )  # fmt: skip
            assert answer.code == 0, answer.remark
        await client.close()

    asyncio.run(give_up())

    def are_there() -> bool:
        try:
            return len(java.place.batch(subscribe=f"%DLQ%{group}", columns="queueOffset")) == len(rows)
        except ConfigError:  # the broker has not told of the topic yet
            return False

    wait_for(are_there, f"dead letters of {group}")


def test_dead_letters_are_counted_selected_and_sent_back(spark: SparkSession, java: Java, tmp_path: Path) -> None:
    admin_makes(java, "sick")
    java.fill("sick", 0, 10)
    bury(java, "sick", "shop")
    notes = str(tmp_path / "notes")
    look = dlq.run(spark, dlq.DlqSettings(of(java), dry_run=True, tags=("tag1",)))
    assert (look.facts["letters"], look.facts["chosen"], look.facts["sent"]) == (10, 3, 0)
    assert dlq.run(spark, dlq.DlqSettings(of(java), staging=notes, tags=("tag1",))).facts["sent"] == 3
    assert dlq.run(spark, dlq.DlqSettings(of(java), staging=notes)).facts["sent"] == 7
    assert dlq.run(spark, dlq.DlqSettings(of(java), staging=notes)).facts["sent"] == 0
    rows = java.place.batch(subscribe="sick", columns="body,keys,tags,properties")
    first = [row for row in rows if "DLQ_ATTEMPTS" not in row["properties"]]
    back = [row for row in rows if row["properties"].get("DLQ_ATTEMPTS") == "1"]
    assert len(first) == len(back) == 10
    names = ("body", "keys", "tags")
    assert sorted([row[name] for name in names] for row in back) == sorted([row[n] for n in names] for row in first)
