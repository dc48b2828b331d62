"""The sink for clusters in a real session: batches, streams, foreachBatch, repeats, refusals.

What one task does is in ``test_remote_tasks.py``; kills are in ``test_kills_of_brokers.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sampling import WHOLE

import mqfast
from mqfast.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Broker:
    shared.reset()
    shared.create_topics(topics={"t": 4})
    return shared


def frame(spark: SparkSession, rows: int = ROWS, partitions: int = 3) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr(
        "'t' as topic", "cast(cast(id as string) as binary) as body", "concat('k', id % 7) as keys"
    )


def save(rows: DataFrame, broker: Broker, mode: str = "append", **options: str) -> None:
    rows.write.format("mqfast").mode(mode).options(namesrv=broker.namesrv_addr, **options).save()


def numbers(broker: Broker) -> list[int]:
    return sorted(int(bytes(message.body)) for message in broker.messages("t"))


def refusal(act: Callable[[], object]) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        act()
    return str(caught.value)


def test_a_batch_arrives_once_and_a_named_one_once_however_often_it_is_run(spark: SparkSession, broker: Broker) -> None:
    save(frame(spark), broker, delivery="exactly_once")
    assert numbers(broker) == list(range(ROWS))
    for _ in range(2):
        save(frame(spark, 100), broker, txnId="tonight")
    assert numbers(broker) == sorted([*range(ROWS), *range(100)])
    save(frame(spark, 1), broker)  # another job is another write
    assert len(numbers(broker)) == ROWS + 101


def test_a_named_batch_that_is_done_writes_nothing_again_whatever_its_rows_and_tasks(
    spark: SparkSession, broker: Broker
) -> None:
    save(frame(spark), broker, txnId="x")
    save(frame(spark).selectExpr("topic", "concat('9', cast(body as string)) as body", "keys"), broker, txnId="x")
    save(frame(spark, ROWS, 5), broker, txnId="x")
    assert numbers(broker) == list(range(ROWS))


@pytest.mark.parametrize(
    "options, change, message",
    [
        ({"mode": "overwrite"}, None, "a log is only ever added to"),
        ({"staging": "/tmp/s"}, None, "options namesrv and staging"),
        ({"path": "/tmp/s"}, None, "options namesrv and path"),
        ({"subscribe": "t"}, None, "it is for batch and stream, not for sink"),
        ({}, "topic, 7L as body", "column body: expected binary or string, found bigint"),
        ({}, "body", "expected a column or the option topic"),
        ({"tlsCa": "/missing"}, None, "it needs tls=true"),
        ({"tls": "true", "tlsCa": "/missing"}, None, "expected files of certificates"),
    ],
)
def test_invalid_schemas_and_options_are_refused_before_a_job_begins(
    spark: SparkSession, broker: Broker, options: dict[str, str], change: str | None, message: str
) -> None:
    rows = frame(spark, 3, 1)
    if change is not None:
        rows = rows.selectExpr(*change.split(", "))
    assert message in refusal(lambda: save(rows, broker, **options))
    assert numbers(broker) == []


def make_source(path: Path, rows: int) -> str:
    small = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    with mqfast.open(path, mapped_file_bytes_commit_log=1 << 20, **small) as store:
        for n in range(rows):
            store.put("t", b"%d" % n, n % 4, keys=f"k{n % 7}")
    return str(path)


def stream(spark: SparkSession, source: str, limit: int = 50) -> Any:
    rows = spark.readStream.format("mqfast").option("subscribe", "t").option("startingOffsets", "earliest")
    rows = rows.option("maxOffsetsPerTrigger", str(limit)).option("minPartitions", "2").load(source)
    return rows.select("topic", "keys", "body")


def run(rows: Any, broker: Broker, checkpoint: Path, **options: str) -> None:
    query = rows.writeStream.format("mqfast").options(namesrv=broker.namesrv_addr, **options)
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_batch_of_a_stream_that_is_run_again_stores_nothing_twice(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    source = make_source(tmp_path / "source", 90)
    checkpoint = tmp_path / "checkpoint"
    run(stream(spark, source), broker, checkpoint)
    assert numbers(broker) == list(range(90))
    for kept in (
        (1, 2) if WHOLE else (1,)
    ):  # as a crash leaves it: the rows are written, the note that the batch is done is not
        last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
        for file in (checkpoint / "commits").glob(f"*{last}*"):
            file.unlink()
        run(stream(spark, source), broker, checkpoint)
        assert numbers(broker) == list(range(90)), kept
    shutil.rmtree(checkpoint)
    run(stream(spark, source), broker, checkpoint)  # a new checkpoint is a new query
    assert len(numbers(broker)) == 180


def test_a_function_of_each_batch_writes_once_under_its_name(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    source = make_source(tmp_path / "source", 60)
    checkpoint = tmp_path / "checkpoint"
    failed: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        save(rows, broker, txnId="rows")
        if batch == 1 and not failed:
            failed.append(batch)
            raise RuntimeError("behind the write")

    def once() -> None:
        query = stream(spark, source, 20).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    assert "behind the write" in refusal(once)
    once()
    assert failed == [1]
    assert numbers(broker) == list(range(60))


def test_lost_answers_repeat_rows_on_a_broker_without_write_state(spark: SparkSession, broker: Broker) -> None:
    from mqfast.remoting.once import ASK_ONCE

    with broker.faults.busy(4, only=[320]):
        save(frame(spark), broker)
    assert numbers(broker) == list(range(ROWS))
    with broker.faults.answer(3, "not supported", only=[ASK_ONCE]):
        said = refusal(lambda: save(frame(spark), broker, delivery="exactly_once"))
        assert "exactly_once needs brokers of mqfast" in said
        assert numbers(broker) == list(range(ROWS))
        save(frame(spark), broker)
        save(frame(spark), broker, delivery="at_least_once")
    assert len(numbers(broker)) == 3 * ROWS
