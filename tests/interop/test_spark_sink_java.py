"""The sink of Spark and brokers of Apache RocketMQ: at least once into theirs, and theirs on a store of ours.

Room: tests/interop. One task of the sink runs in this process, without Spark's JVM.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

sys.path.append(str(Path(__file__).resolve().parent))

import pyarrow as pa
from clusters import cluster
from pyspark.sql.pandas.types import from_arrow_schema
from real_programs import HERE, NEEDS_JAVA, NEWEST, Machine, free_port, wait_for
from running import BrokerProcess

from mqfast.client import AdminClient, PullConsumer
from mqfast.errors import ConfigError, MqfastError
from mqfast.remoting.once import RowSequence
from mqfast.spark import options as table
from mqfast.spark.remote.sink import RemoteBatchWriter, SentRows

pytestmark = NEEDS_JAVA
ROWS = 500
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


def columns(**more: Any) -> pa.RecordBatch:
    numbers = range(ROWS)
    return pa.RecordBatch.from_pydict(
        {
            "body": [b"%d" % n for n in numbers],
            "keys": [f"k{n % 7}" for n in numbers],
            "tags": [f"T{n % 3}" for n in numbers],
        }
        | more
    )


def send(namesrv: str, rows: pa.RecordBatch, key: str = "a" * 16, **options: str) -> tuple[RemoteBatchWriter, SentRows]:
    given = {"namesrv": namesrv, "topic": "SparkRows", **options}
    writer = RemoteBatchWriter(table.parse(given, table.SINK), from_arrow_schema(rows.schema), False)
    return writer, writer.send(iter([rows]), key, 0)


def received(namesrv: str, topic: str, count: int) -> list[Any]:
    found: list[Any] = []

    def all_there() -> bool:
        found.extend(consumer.poll(1.0, count))
        return len(found) >= count

    with PullConsumer("readers", namesrv, auto_commit_s=None) as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, 0)
        wait_for(all_there, f"{count} messages")
    return found


def _has_rows(namesrv: str) -> bool:
    try:
        with AdminClient(namesrv) as admin:
            return "SparkRows" in admin.topics()
    except MqfastError:
        return False


def test_rows_reach_a_java_broker_at_least_once_and_exactly_once_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(NEWEST, tmp_path) as namesrv:
        writer, sent = send(namesrv, columns(), sendBytes="4k")
        assert (sent.rows, sent.forgetful) == (ROWS, ("brk",))
        writer.check([sent])
        assert "broker brk remembers no writes" in caplog.text
        with pytest.raises(ConfigError, match="exactly_once needs brokers of mqfast"):
            send(namesrv, columns(), delivery="exactly_once")
        messages = received(namesrv, "SparkRows", ROWS)
        assert sorted(int(bytes(one.body)) for one in messages) == list(range(ROWS))
        rows: dict[tuple[int, str], list[int]] = {}
        for one in messages:
            number = int(bytes(one.body))
            assert (one.keys, one.tags) == ([f"k{number % 7}"], f"T{number % 3}")
            mark = RowSequence.parse(one.properties["SPK"])
            assert mark is not None
            assert mark.row == number
            rows.setdefault((one.queue_id, one.keys[0]), []).append(number)
        assert all(numbers == sorted(numbers) for numbers in rows.values())
        assert len(rows) == 7  # each key is in one queue


def test_a_java_broker_hands_out_the_rows_of_our_store(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, **SIZES) as ours:
        writer, sent = send(ours.namesrv, columns(), sendBytes="4k", delivery="exactly_once")
        writer.check([sent])
        again = send(ours.namesrv, columns(), delivery="exactly_once")[1]
        assert again.done
    (tmp_path / "java").mkdir()
    machine = Machine(NEWEST, tmp_path / "java", HERE / "Flow.java")
    try:
        machine.start_namesrv()
        machine.start_broker(ours.store, SIZES, free_port())
        wait_for(lambda: _has_rows(machine.namesrv), "the broker's topics")
        messages = received(machine.namesrv, "SparkRows", ROWS)
        assert sorted(int(bytes(one.body)) for one in messages) == list(range(ROWS))
    finally:
        machine.end_all()
