"""The sink in a real session: batches, streams, repeats, refusals.

The protocol below it is in ``test_staging.py``, the columns are in ``test_sink_rows.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqfast
from mqfast.spark import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        yield Path(path)


def make_store(path: Path) -> str:
    small = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    with mqfast.open(path, mapped_file_bytes_commit_log=1 << 18, **small) as store:
        store.put("first", b"", keys="first")
    return str(path)


def messages(path: str) -> list[Any]:
    with mqfast.StoreReader(path) as reader:
        return [message for message in reader.scan() if message.topic != "first"]


def numbers(path: str) -> list[int]:
    return [int(bytes(message.body)) for message in messages(path)]


def frame(spark: SparkSession, rows: int = ROWS, partitions: int = 3) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr(
        "'t' as topic", "cast(cast(id as string) as binary) as body", "concat('k', id) as keys"
    )


def save(rows: DataFrame, path: str, mode: str = "append", **options: str) -> None:
    rows.write.format("mqfast").mode(mode).options(**options).save(path)


def refusal(act: Callable[[], object]) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        act()
    return str(caught.value)


def test_a_batch_is_appended_in_order_and_leaves_nothing_behind(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    save(frame(spark), path)
    assert numbers(path) == list(range(ROWS))  # by partition, and inside it as the rows came
    assert all(message.keys == [f"k{int(bytes(message.body))}"] for message in messages(path))
    assert os.listdir(place / "store" / "spark-staging") == [".cleaned"]
    save(frame(spark), path)  # another job is another write
    assert numbers(path) == [*range(ROWS), *range(ROWS)]
    with mqfast.open(path) as store:
        assert store.query("t", "k17")[0].body == b"17"


def test_a_job_with_an_id_counts_once(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    for _ in range(2):
        save(frame(spark), path, txnId="tonight", staging=str(place / "elsewhere"))
    assert numbers(path) == list(range(ROWS))
    save(frame(spark), path, txnId="tomorrow", staging=str(place / "elsewhere"))
    assert len(numbers(path)) == 2 * ROWS
    assert not (place / "store" / "spark-staging").exists()


def test_read_rows_are_written_back_without_renames(spark: SparkSession, place: Path) -> None:
    source, target = make_store(place / "source"), make_store(place / "target")
    with mqfast.open(source) as store:
        for n in range(50):
            store.put("t", b"%d" % n, n % 3, f"tag{n % 2}", f"k{n}", {"n": n, "UNIQ_KEY": f"u{n}"}, flag=n)
    from mqfast.spark.schema import VIEWS

    everything = ",".join(column.name for column in VIEWS["messages"] if column.name != "crcOk")
    rows = spark.read.format("mqfast").option("subscribe", "t").option("columns", everything).load(source)
    save(rows, target, preserveTimestamps="true", preserveIds="true")
    for old, new in zip(messages(source), messages(target), strict=True):
        stamp = {"SPK": new.properties["SPK"]}
        assert new.properties == {**old.properties, **stamp}
        for name in ("topic", "queue_id", "queue_offset", "born_timestamp", "born_host", "flag", "sys_flag", "tags"):
            assert getattr(new, name) == getattr(old, name)
        assert bytes(new.body) == bytes(old.body)
    again = make_store(place / "again")
    raw = spark.read.format("mqfast").option("properties", "raw").option("subscribe", "t").load(target)
    save(raw, again)
    assert len(messages(again)) == 50
    assert "UNIQ_KEY" not in messages(again)[0].properties


def test_a_new_store_is_made_where_there_is_none(spark: SparkSession, place: Path) -> None:
    save(frame(spark, 3, 1), str(place / "new"), topic="ignored, rows have one")
    assert numbers(str(place / "new")) == [0, 1, 2]


def test_a_failing_task_leaves_the_store_as_it_was(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    bad = frame(spark).selectExpr("topic", "if(keys = 'k250', null, body) as body")
    assert "expected a body, found null" in refusal(lambda: save(bad, path))
    assert numbers(path) == []
    left = (place / "store" / "spark-staging").glob("*/*")
    assert not [file for file in left if file.suffix in (".intent", ".done")]
    save(frame(spark), path)
    assert numbers(path) == list(range(ROWS))


@pytest.mark.parametrize(
    "options, change, message",
    [
        ({"mode": "overwrite"}, None, "a log is only ever added to"),
        ({"topci": "t"}, None, "did you mean topic"),
        ({"delivery": "twice"}, None, "exactly_once or at_least_once"),
        ({"namesrv": "somewhere:9876"}, None, "options namesrv and path: expected one of them"),
        ({}, "topic, body, 1L as mine", "the sink knows none of this name"),
        ({}, "topic, 7L as body", "column body: expected binary or string, found bigint"),
        ({}, "body", "expected a column or the option topic"),
    ],
)
def test_invalid_schemas_and_options_are_refused_before_a_job_begins(
    spark: SparkSession, place: Path, options: dict[str, str], change: str | None, message: str
) -> None:
    path = make_store(place / "store")
    rows = frame(spark, 3, 1) if change is None else frame(spark, 3, 1).selectExpr(*change.split(", "))
    text = refusal(lambda: save(rows, path, **{"mode": "append", **options}))
    assert message in text
    assert "PYTHON_DATA_SOURCE_ERROR" in text
    assert numbers(path) == []


def test_extra_columns_are_left_out_when_that_is_asked_for(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    save(frame(spark, 3, 1).selectExpr("body", "1L as mine"), path, ignoreExtraColumns="true", topic="u")
    assert [message.topic for message in messages(path)] == ["u"] * 3


def test_a_store_in_use_is_refused_with_the_reason(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    script = f"import mqfast, sys; s = mqfast.open({path!r}); print('open', flush=True); sys.stdin.read(); s.close()"
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    text = refusal(lambda: save(frame(spark, 3, 1), path))
    assert "by the option namesrv" in text
    owner.communicate("")
    save(frame(spark, 3, 1), path)
    assert numbers(path) == [0, 1, 2]


# --- streams ---------------------------------------------------------------------------------------------------------


def source_of_numbers(spark: SparkSession, place: Path, batches: int) -> DataFrame:
    """A stream of ``batches`` files, one a batch."""
    directory = place / "numbers"
    if not directory.exists():
        for n in range(batches):
            rows = spark.range(n * 100, n * 100 + 100, 1, 2).selectExpr("cast(id as string) as value")
            rows.coalesce(1).write.mode("append").text(str(directory))
    return (
        spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(directory)).selectExpr(
            "'t' as topic", "cast(value as binary) as body"
        )
    )  # fmt: skip


def run(rows: DataFrame, path: str, checkpoint: Path, **options: str) -> Any:
    writing = rows.writeStream.format("mqfast").option("checkpointLocation", str(checkpoint)).options(**options)
    query = writing.trigger(availableNow=True).start(path)
    query.awaitTermination(120)
    assert query.exception() is None
    return query


def test_a_stream_is_written_once_also_when_spark_repeats_a_batch(spark: SparkSession, place: Path) -> None:
    path, checkpoint = make_store(place / "store"), place / "checkpoint"
    rows = source_of_numbers(spark, place, 3)
    run(rows, path, checkpoint)
    assert sorted(numbers(path)) == list(range(300))
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    last.unlink()  # as if the driver had been killed behind the sink's commit
    for crc in (checkpoint / "commits").glob(".*.crc"):
        crc.unlink()
    run(rows, path, checkpoint)
    assert sorted(numbers(path)) == list(range(300))
    [transaction] = [p for p in (place / "store" / "spark-staging").iterdir() if p.is_dir()]
    assert sorted(p.name for p in transaction.iterdir()) == ["0.done", "1.done", "2.done"]


def test_a_new_checkpoint_under_an_old_id_is_refused(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    rows = source_of_numbers(spark, place, 1)
    run(rows, path, place / "one", txnId="stream")
    text = refusal(lambda: run(rows, path, place / "two", txnId="stream"))
    assert "an id of its own" in text
    assert len(numbers(path)) == 100


def test_at_least_once_has_no_stamp(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    run(source_of_numbers(spark, place, 2), path, place / "checkpoint", delivery="at_least_once")
    assert sorted(numbers(path)) == list(range(200))
    assert {tuple(message.properties) for message in messages(path)} == {()}


def test_complete_and_update_modes_are_refused(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    counted = source_of_numbers(spark, place, 1).groupBy("topic").count()
    counted = counted.selectExpr("topic", "cast(cast(count as string) as binary) as body")
    for mode, message in (("complete", "found complete"), ("update", "update")):
        writing = counted.writeStream.format("mqfast").outputMode(mode)
        writing = writing.option("checkpointLocation", str(place / mode)).trigger(availableNow=True)
        assert message in refusal(lambda writing=writing: writing.start(path).awaitTermination(60)).lower()  # type: ignore[misc]


def test_for_each_batch_with_an_id_of_the_batch(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")

    def write(rows: DataFrame, batch: int) -> None:
        for _ in range(2):  # as when the function is run again after a crash
            save(rows, path, txnId=f"mine-{batch}")

    rows = source_of_numbers(spark, place, 2)
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(place / "c"))
    query.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(numbers(path)) == list(range(200))


@pytest.mark.parametrize("name", ["totals-{batch}", "totals"])
def test_names_in_foreach_batch_belong_to_the_query(spark: SparkSession, place: Path, name: str) -> None:
    """Two queries, and two batches, may use one name: no rows are lost, and none is written twice."""
    path = make_store(place / "store")

    def writer(topic: str) -> Callable[[DataFrame, int], None]:
        def write(rows: DataFrame, batch: int) -> None:
            for _ in range(2):  # as when the function is run again after a crash
                save(rows.selectExpr(f"'{topic}' as topic", "body"), path, txnId=name.format(batch=batch))

        return write

    rows = source_of_numbers(spark, place, 2)
    for topic in ("q1", "q2", "new checkpoint"):
        query = rows.writeStream.foreachBatch(writer(topic)).option("checkpointLocation", str(place / topic))
        query.trigger(availableNow=True).start().awaitTermination(120)
    found: dict[str, list[int]] = {}
    for message in messages(path):
        found.setdefault(message.topic, []).append(int(bytes(message.body)))
    assert set(found) == {"q1", "q2", "new checkpoint"}
    assert all(sorted(seen) == list(range(200)) for seen in found.values())
    save(frame(spark), path, txnId=name.format(batch=0))  # a batch write is not one of theirs
    assert len(messages(path)) == 600 + ROWS


@pytest.mark.parametrize("options", [{}, {"txnId": "none"}, {"delivery": "at_least_once"}])
def test_a_write_without_rows_stores_nothing(spark: SparkSession, place: Path, options: dict[str, str]) -> None:
    path = make_store(place / "store")
    for empty in (frame(spark).where("keys = 'z'"), frame(spark, partitions=1).limit(0)):
        for _ in range(2):
            (place / "store" / "spark-staging" / ".cleaned").unlink(missing_ok=True)  # the janitor is due
            save(empty, path, **options)
    assert messages(path) == []
    save(frame(spark), path, **options)
    assert numbers(path) == list(range(ROWS))


def test_named_jobs_leave_no_directories(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    for day in range(3):
        save(frame(spark, 5), path, txnId=f"day-{day}")
    assert sorted(os.listdir(place / "store" / "spark-staging")) == [".cleaned", "done.txt"]
    assert len(numbers(path)) == 15


def test_writes_from_other_threads_of_the_driver(spark: SparkSession, place: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    register(spark)
    paths = [make_store(place / f"store{n}") for n in range(3)]
    rows = source_of_numbers(spark, place, 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(save, frame(spark), paths[0]).result()
        pool.submit(run, rows, paths[1], place / "checkpoint").result()
        pool.submit(lambda: frame(spark).write.save(paths[2], format="mqfast", mode="append")).result()
    assert [len(numbers(path)) for path in paths] == [ROWS, 100, ROWS]


def test_a_catalog_table_is_an_error_with_the_remedy(spark: SparkSession, place: Path) -> None:
    path = make_store(place / "store")
    wanted = "CREATE TEMPORARY VIEW name USING mqfast"
    assert wanted in refusal(lambda: spark.sql(f"CREATE TABLE plain USING mqfast OPTIONS (path '{path}')"))
    try:
        text = refusal(
            lambda: (
                spark.sql(f"CREATE TABLE typed (queueId int) USING mqfast OPTIONS (path '{path}')"),
                spark.sql("SELECT * FROM typed").collect(),
            )
        )
    finally:
        spark.sql("DROP TABLE IF EXISTS typed")
    assert wanted in text
    spark.sql(f"CREATE TEMPORARY VIEW seen USING mqfast OPTIONS (path '{path}')")
    assert spark.sql("SELECT topic FROM seen").collect()[0].topic == "first"
