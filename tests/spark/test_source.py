"""The batch source in a real session: every column against Java's account, every view, every way to be wrong.

What does not need Spark is in ``test_backend.py``, ``test_options.py`` and ``test_plan.py``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from conftest import copy_of, golden_cases
from forged import forge
from golden_rows import PLAIN, expected_rows, key_of
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.types import IntegerType, StructField, StructType

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import StoreNotFound
from mqfast.spark import LOCAL_CHECKPOINTS, SETTINGS, conf, register
from mqfast.spark.local.local_backend import LocalBackend
from mqfast.spark.options import BATCH, parse
from mqfast.spark.partitions import cached_backend
from mqfast.spark.plan import Queue
from mqfast.spark.schema import VIEWS, arrow_schema, struct_type
from mqfast.store.reader.store_reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES = ("bornTimestamp", "storeTimestamp")
# All golden stores are compared without Spark in test_backend.py; here are those that differ in their columns.
CASES = [
    ("5.3.3-normal-clean", "auto"),
    ("5.3.3-normal-clean", "queue"),
    ("4.9.7-killed", "auto"),
    ("5.3.3-ipv6", "auto"),
    ("5.3.3-lmq", "auto"),
]


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("mqfast").options(**options).load(str(path))


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.collect()]
    for row in found:
        for name in TIMES:
            if row.get(name) is not None:
                row[name] = round(row[name].timestamp() * 1000)
        if "body" in row:
            row["body"] = hashlib.sha256(row["body"]).hexdigest()
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name, order", CASES)
def test_every_column_of_golden_stores(spark: SparkSession, name: str, order: str, tmp_path: Path) -> None:
    (case,) = [case for case in golden_cases() if str(case) == name]
    frame = load(
        spark, copy_of(case, tmp_path), order=order, columns=",".join((*PLAIN, "body")), partitionBytes="40k",
        subscribePattern=".*", verifyCrc="fail", includeSystemTopics="true", decompress="false",
    )  # fmt: skip
    assert frame.schema == struct_type(c for c in VIEWS["messages"] if c.name != "crcOk")
    assert sorted(rows(frame), key=key_of) == expected_rows(case.expected)


# --- one small store -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "store"
    with mqfast.open(path, config=StoreConfig.tiny(mapped_file_bytes_commit_log=8192)) as opened:
        for i in range(240):
            tags = f"tag{i % 4}" if i % 5 else None
            opened.put(f"T{i % 3}", b"%d" % i * 9, queue_id=i // 3 % 2, tags=tags, keys=f"k{i}")
        opened.flush()
        opened.consumer("readers", "T0").commit_message(opened.get("T0", 0, 6, 1)[0])
    return path


def test_default_columns_and_what_changes_them(spark: SparkSession, store: Path) -> None:
    every = [column.name for column in VIEWS["messages"]]
    default = [name for name in every if name not in ("bornHost", "storeHost", "msgId", "crcOk")]
    assert load(spark, store).columns == default
    assert load(spark, store, includeBody="false").columns == default[:-1]
    assert load(spark, store, properties="none").columns == [name for name in default if name != "properties"]
    assert load(spark, store, verifyCrc="mark").columns == [*default, "crcOk"]
    assert load(spark, store, columns="body, topic").columns == ["body", "topic"]
    raw = load(
        spark, store, columns="properties", properties="raw", assign="T1/0", endingOffsets='{"T1/0": 1}'
    ).collect()
    with StoreReader(store) as reader:
        assert raw[0][0] == reader.get("T1", 0, 0, 1)[0].properties_bytes.decode()


def test_a_schema_of_ones_own_is_a_choice_of_columns(spark: SparkSession, store: Path) -> None:
    reader = spark.read.format("mqfast").option("view", "messages")
    frame = reader.schema("bodySize int, keys string, properties map<string,string>").load(str(store))
    assert frame.columns == ["bodySize", "keys", "properties"]
    found = frame.collect()
    assert len(found) == 240
    assert sum(row[0] for row in found) == sum(9 * len(str(i)) for i in range(240))
    assert found[0]["properties"]["KEYS"] == found[0]["keys"]
    for schema, says in (
        ("bodySize bigint", "expected type int, found bigint"), ("bodysise int", "did you mean bodySize?"),
        (StructType([StructField("x", IntegerType())]), "none of this name"),
    ):  # fmt: skip
        with pytest.raises(AnalysisException, match=says.replace("?", r"\?")):
            spark.read.format("mqfast").schema(schema).load(str(store)).collect()


def test_errors_show_before_a_job_begins(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    spark.sparkContext.setJobGroup("wrong", "nothing may run")
    wrong: list[tuple[dict[str, str], str]] = [
        ({"subscribeTo": "T0"}, "did you mean subscribe?"),
        ({"columns": "topic,bdy"}, "did you mean body?"),
        ({"view": "queus"}, "did you mean queues?"),
        ({"view": "queues", "columns": "maxofset"}, "did you mean maxOffset?"),
        ({"subscribe": "TT0"}, "did you mean T0?"),
        ({"assign": "T0/9"}, "did you mean T0/"),
        ({"startingOffsets": '{"T0/0": 4000}'}, "DataLoss"),
        ({"startingOffsets": "group"}, "group needs the option group"),
        ({"maxOffsetsPerTrigger": "5"}, "it is for stream"),
        ({"columns": "crcOk"}, "verifyCrc=mark only"),
        ({"view": "audit", "subscribe": "T0"}, "view audit does not have it"),
        ({"namesrv": "localhost:9876"}, "namesrv and path: expected one of them"),
    ]
    for options, says in wrong:
        with pytest.raises(AnalysisException) as caught:
            load(spark, store, **options).collect()
        assert says in str(caught.value), options
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(AnalysisException, match="no store here"):
            load(spark, path)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("wrong") == []
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_partitions_and_nothing_to_read(spark: SparkSession, store: Path) -> None:
    assert load(spark, store, minPartitions="7").rdd.getNumPartitions() == 7
    assert load(spark, store, partitionBytes="4k", maxPartitions="3").rdd.getNumPartitions() == 3
    nothing = load(spark, store, startingOffsets="latest")
    assert nothing.rdd.getNumPartitions() == 1
    assert nothing.collect() == []
    tagged = load(spark, store, tagFilter="tag1 || tag2", columns="tags")
    assert {row[0] for row in tagged.distinct().collect()} == {"tag1", "tag2"}


def test_sql_and_aggregates(spark: SparkSession, store: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW messages USING mqfast OPTIONS (path '{store}', columns 'topic,queueId,bodySize')")
    found = spark.sql("SELECT topic, count(*), sum(bodySize) FROM messages GROUP BY topic ORDER BY topic").collect()
    spark.sql("DROP VIEW messages")
    assert [(row[0], row[1]) for row in found] == [("T0", 80), ("T1", 80), ("T2", 80)]


def test_filters_pushed_down_change_no_result(spark: SparkSession, store: Path) -> None:
    moment = load(spark, store, columns="storeTimestamp", assign="T1/0").collect()[20][0]
    asked = [
        "topic = 'T1'",
        "topic IN ('T0', 'T2') AND queueId = 1 AND queueOffset BETWEEN 5 AND 9",
        "tags = 'tag3' OR topic = 'T0'",
        "tags = 'tag3' AND physicalOffset > 9000 AND physicalOffset <= 20000",
        f"storeTimestamp >= timestamp'{moment}' AND topic LIKE 'T%'",
        "topic = 'none'",
    ]
    columns = "topic,queueId,queueOffset,physicalOffset,storeTimestamp,tags"
    for where in asked:
        plain = load(spark, store, columns=columns).where(where)
        pushed = load(spark, store, columns=columns, pushdown="true", partitionBytes="4k").where(where)
        assert sorted(rows(pushed), key=key_of) == sorted(rows(plain), key=key_of), where
    narrow = load(spark, store, columns=columns, pushdown="true", partitionBytes="4k").where(
        "topic = 'T1' AND queueId = 0"
    )
    assert narrow.rdd.getNumPartitions() < load(spark, store, partitionBytes="4k").rdd.getNumPartitions()


def test_a_frame_with_pushdown_is_for_one_query_as_the_document_says(spark: SparkSession, store: Path) -> None:
    def frame() -> DataFrame:
        return load(spark, store, columns="topic", pushdown="true")

    assert frame().where("topic = 'T0'").union(frame().where("topic = 'T1'")).count() == 160
    shared = frame()
    assert shared.where("topic = 'T0'").count() == 80
    assert shared.count() == 80, "Spark plans each query of a DataFrame: the warning in docs/spark can go"


def test_pushdown_without_its_setting_is_refused(spark: SparkSession, store: Path) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert load(spark, store, columns="topic").where("topic = 'T1'").count() == 80
        with pytest.raises(AnalysisException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
            load(spark, store, pushdown="true").count()
    finally:
        spark.conf.set(name, "true")


# --- damage, loss, leases --------------------------------------------------------------------------------------------


def _flip(path: Path, number: int) -> tuple[Path, int]:
    """Damage the body of message ``number`` of T1/0; returns its file and place."""
    with StoreReader(path) as reader:
        message = reader.get("T1", 0, number, 1)[0]
        place, body = message.physical_offset, bytes(message.body)
    log = [file for file in sorted((path / "commitlog").iterdir()) if int(file.name) <= place][-1]
    data = bytearray(log.read_bytes())
    data[data.index(body, place - int(log.name))] ^= 1
    log.write_bytes(data)
    return log, place


def test_damage_is_an_error_with_its_place_or_left_out_or_marked(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    log, place = _flip(copy, 11)
    for order in ("queue", "commitlog"):
        given = {"order": order, "columns": "physicalOffset,crcOk"}
        assert load(spark, copy, order=order, columns="bodySize").count() == 240  # nobody asked
        with pytest.raises(PythonException) as caught:
            load(spark, copy, order=order, columns="bodySize", verifyCrc="fail").collect()
        assert "CorruptFile" in str(caught.value)
        assert str(log) in str(caught.value)
        assert f"offset {place}" in str(caught.value)
        left = load(spark, copy, order=order, columns="physicalOffset", verifyCrc="skip").collect()
        assert len(left) == 239
        assert place not in {row[0] for row in left}
        marked = load(spark, copy, verifyCrc="mark", **given).where("NOT crcOk").collect()
        assert [row[0] for row in marked] == [place]
    found = load(spark, copy, view="audit").groupBy().sum("records", "crcErrors", "gaps").collect()[0]
    assert tuple(found) == (239, 1, 0)
    bad = load(spark, copy, view="audit").where("crcErrors > 0").collect()
    assert [(row.path, row.firstBadOffset, row.firstBadReason) for row in bad] == [(str(log), place, "crc")]


def _hide(path: Path, number: int) -> Path:
    log = sorted((path / "commitlog").iterdir())[number]
    log.unlink()
    return log


def _cut(path: Path, number: int) -> Path:
    log = sorted((path / "commitlog").iterdir())[number]
    log.write_bytes(log.read_bytes()[:3000])
    return log


@pytest.mark.parametrize("harm", [_hide, _cut], ids=["gone", "cut short"])
def test_lost_messages_fail_unless_they_may_be_left_out(
    spark: SparkSession, store: Path, tmp_path: Path, harm: Callable[[Path, int], Path]
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    begin = int(harm(copy, 2).name)
    with StoreReader(store) as reader:
        places = [message.physical_offset for message in reader.scan()]
    for order in ("queue", "commitlog"):
        given = {"order": order, "columns": "physicalOffset"}
        with pytest.raises((PythonException, AnalysisException)) as caught:
            load(spark, copy, **given).collect()
        assert "DataLoss" in str(caught.value) or "CorruptFile" in str(caught.value)
        found = load(spark, copy, failOnDataLoss="false", verifyCrc="skip", **given).collect()
        lost = set(places) - {row[0] for row in found}
        assert lost
        assert all(begin <= place < begin + 8192 for place in lost)


def test_a_lease_ends_with_its_query(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy, ignore=lambda _, names: [name for name in names if name == "spark-leases"])
    assert load(spark, copy, columns="bodySize", leaseTtl="0s").count() == 240
    assert not (copy / "spark-leases").exists()
    small: dict[str, object] = {"partitionBytes": "4k", "columns": "bodySize"}
    for act in (
        lambda: load(spark, copy, columns="bodySize").count(),
        lambda: load(spark, copy, columns="bodySize").take(3),
        lambda: load(spark, copy, **small).count(),
        lambda: load(spark, copy, **small).union(load(spark, copy, **small)).count(),
        lambda: load(spark, copy, columns="bodySize").explain(),
        lambda: load(spark, copy, columns="bodySize", startingOffsets="latest").count(),
    ):
        act()
        assert not (copy / "spark-leases").exists() or os.listdir(copy / "spark-leases") == []
    assert len(load(spark, copy, **small).take(2)) == 2  # the other tasks never run
    leases = [json.loads(p.read_bytes()) for p in (copy / "spark-leases").iterdir() if "." not in p.name]
    assert leases
    with StoreReader(copy) as reader:
        assert all(lease["minPhysicalOffset"] == reader.readable_range()[0] for lease in leases)
    assert all(lease["expiresMs"] < time.time() * 1000 + 60_000 for lease in leases)


def test_a_store_that_may_not_be_written_is_read_without_a_lease(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy, ignore=lambda _, names: [name for name in names if name == "spark-leases"])
    (copy / "spark-leases").write_text("in the way")  # works for root as well, whom no permission stops
    assert load(spark, copy, columns="bodySize").count() == 240


def test_a_worker_keeps_a_store_open_until_it_is_another_one(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    options = parse({"path": str(copy)}, BATCH)
    first = cached_backend(options, LocalBackend(str(copy)).snapshot().store_id)
    first.release_files()
    assert cached_backend(options, LocalBackend(str(copy)).snapshot().store_id) is first
    old = LocalBackend(str(copy)).snapshot().store_id
    shutil.rmtree(copy)
    with mqfast.open(copy, config=StoreConfig.tiny()) as other:
        other.put("T", b"other")
    with pytest.raises(StoreNotFound, match="not the store"):
        cached_backend(options, old)
    second = cached_backend(options, LocalBackend(str(copy)).snapshot().store_id)
    assert second is not first
    assert second.snapshot().queues == (Queue("T", 0, 0, 1),)


# --- views -----------------------------------------------------------------------------------------------------------


def test_views_equal_the_store_reader(spark: SparkSession, store: Path) -> None:
    with StoreReader(store) as reader:
        queues = load(spark, store, view="queues").orderBy("topic", "queueId").collect()
        assert [tuple(row)[:5] for row in queues] == [(*q, q.max_offset - q.min_offset) for q in reader.queues()]
        for row in queues:
            last = reader.get(row.topic, row.queueId, row.maxOffset - 1, 1)[0]
            assert row.maxPhysicalOffset == last.physical_offset
            assert round(row.maxTimestamp.timestamp() * 1000) == last.store_timestamp
        begin, end = reader.readable_range()
        files = load(spark, store, view="files").collect()
        assert [(row.path, row.startOffset, row.fileBytes) for row in files] == reader.log_files()
        assert sum(row.usedBytes for row in files) == end - begin
        audit = load(spark, store, view="audit", partitionBytes="3k").collect()
        messages = list(reader.scan())
        assert sum(row.records for row in audit) == len(messages) == 240
        assert sum(row.recordBytes for row in audit) == sum(message.size for message in messages)
        assert sum(row.bodyBytes for row in audit) == sum(len(message.body) for message in messages)
        assert sum(row.crcErrors + row.gaps + row.gapBytes for row in audit) == 0
        assert len(audit) > len(files)
        units = load(spark, store, view="consumequeue", subscribe="T1", startingOffsets="-7").collect()
        assert len(units) == 14
        for row in units:
            assert reader.get_by_offset(row.physicalOffset).size == row.msgSize
            assert reader.unit_at(row.topic, row.queueId, row.queueOffset).tags_code == row.tagsCode
        groups = load(spark, store, view="groups").collect()
        assert [tuple(row) for row in groups] == [("readers", "T0", 0, 7, 0, 40, 33)]
        subscribed = load(spark, store, view="queues", columns="topic", subscribe="T2").distinct().collect()
        assert [row[0] for row in subscribed] == ["T2"]


def test_the_schemas_of_all_views_are_those_that_spark_expects(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.1 takes UTC unasked.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    for columns in VIEWS.values():
        assert to_arrow_schema(struct_type(columns), **zone) == arrow_schema(columns)


def test_registering_by_hand_works_as_well(spark: SparkSession, store: Path) -> None:
    register(spark)
    assert load(spark, store, columns="topic").count() == 240


@pytest.mark.parametrize(
    ("settings", "environment", "python"),
    [
        ({}, {}, sys.executable),
        ({"spark.master": "local[2]"}, {}, sys.executable),
        ({"spark.master": "local[2]"}, {"PYSPARK_PYTHON": "/mine"}, "/mine"),
        ({"spark.master": "spark://host:7077"}, {}, None),
        ({"spark.pyspark.python": "env/bin/python"}, {}, None),
        ({}, {"PYSPARK_GATEWAY_PORT": "1"}, None),
        ({}, {"SPARK_HOME": "/opt/spark"}, None),
        ({}, {"SPARK_CONF_DIR": "/etc/spark"}, None),
        ({"spark.master": "local[2]"}, {"SPARK_HOME": "/opt/spark"}, sys.executable),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, None),
    ],
)
def test_workers_of_a_local_session_run_by_the_python_of_the_program(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], environment: dict[str, str], python: str | None
) -> None:
    from pyspark.sql import SparkSession

    for name in ("PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.setenv(name, "to be taken back")
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    builder = SparkSession.Builder()
    for name, value in settings.items():
        builder = builder.config(name, value)
    conf(builder)
    assert os.environ.get("PYSPARK_PYTHON") == python


def test_conf_sets_what_matters_and_leaves_what_is_set() -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().config("spark.python.worker.reuse", "false")
    settings = dict(conf(builder)._options)
    assert settings == {**SETTINGS, "spark.python.worker.reuse": "false"}
    builder = SparkSession.Builder().config("spark.hadoop.fs.file.impl", "mine")
    settings = dict(conf(builder, local_checkpoints=True)._options)
    assert settings == {**SETTINGS, **LOCAL_CHECKPOINTS, "spark.hadoop.fs.file.impl": "mine"}


def test_a_body_that_looks_like_records_is_one_message(spark: SparkSession, tmp_path: Path) -> None:
    """A producer of one topic plants rows of another: records in a body, at the physical offsets that they get."""
    forged = forge(tmp_path / "store", carriers=5, size=1_000_000, mapped_file_bytes_commit_log=16 << 20)
    for size in ("100k", "700k", "128m"):
        frame = load(spark, forged.path, columns="topic,physicalOffset", partitionBytes=size, order="commitlog")
        rows = frame.collect()
        assert sorted(row.physicalOffset for row in rows) == forged.true
        assert [row.physicalOffset for row in rows if row.topic == "payments"] == [0]
