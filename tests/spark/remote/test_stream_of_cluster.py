"""A running cluster in a real session: SQL, a stream with restarts of the query and of a broker, lag, groups.

What the readers do without a session is in ``test_both_backends.py`` and ``test_remote_read.py``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec")

from places import fill

from mqfast.spark.listener import GroupListener, lag
from mqfast.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 4}, brokers=2, groups=["watchers"], process=True) as broker:
        fill(broker, 0, 200)
        yield broker


def run(rows: DataFrame, place: Path, name: str) -> Any:
    """Everything that is there now, into Parquet."""
    writing = rows.writeStream.format("parquet").option("path", str(place / "out")).queryName(name)
    query = writing.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(180)
    assert query.exception() is None
    return query


def test_sql_on_a_running_cluster(spark: SparkSession, broker: Broker) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders_now USING mqfast "
        f"OPTIONS (namesrv '{broker.namesrv_addr}', subscribe 'orders', maxPartitions '1')"
    )
    frame = spark.table("orders_now").where("tags = 'tag1'")
    assert frame.columns[:4] == ["store", "topic", "queueId", "queueOffset"]
    rows = frame.select("store", "body").collect()
    assert {row.store for row in rows} == {"broker-a", "broker-b"}
    assert sorted(int(bytes(row.body)[:6]) for row in rows) == list(range(1, 200, 3))


def test_a_stream_over_restarts_of_the_query_and_of_a_broker(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    options = {"namesrv": broker.namesrv_addr, "subscribe": "orders", "startingOffsets": "earliest"}
    rows = spark.readStream.format("mqfast").options(**options, maxOffsetsPerTrigger="90").load()
    before = sum(len(broker.messages("orders", queue_id=i)) for i in range(4))
    listener = GroupListener({"namesrv": broker.namesrv_addr}, "watchers", query="landing")
    spark.streams.addListener(listener)
    try:
        query = run(rows, tmp_path, "landing")
        [source] = query.lastProgress["sources"]
        start, end, latest = (json.loads(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
        assert set(end["stores"]) == {"broker-a", "broker-b"}
        assert lag(None, end, latest) == 0
        assert lag(None, start, latest) == source["numInputRows"] > lag(None, start, latest, store="broker-a") > 0
        broker.kill("broker-b")
        timer = threading.Timer(1.0, broker.restart, ["broker-b"])
        timer.start()
        query = run(rows, tmp_path, "landing")
        timer.join()
        fill(broker, 900, 960)
        run(rows, tmp_path, "landing")
        broker.wait_until(lambda: sum(broker.offset("watchers", "orders").values()) == before + 60, timeout_s=30)
    finally:
        spark.streams.removeListener(listener)
    landed = spark.read.parquet(str(tmp_path / "out"))
    assert landed.count() == landed.select("store", "queueId", "queueOffset").distinct().count() == before + 60
