"""Spark's source on a Java broker: the rows of its files, a stream over its kill, a topic that is deleted.

Room: tests/interop. No Spark processes: readers are called as Spark calls them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")
pytest.importorskip("pyarrow")

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "spark"))

from java_broker import Java, admin_makes
from places import EVERY, flat, numbers, read, to_the_end
from pyspark.sql.streaming.datasource import ReadAllAvailable
from real_programs import NEEDS_JAVA, wait_for

from mqfast.client import AdminClient
from mqfast.errors import BrokerError, DataLoss

pytestmark = NEEDS_JAVA


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    made = Java(tmp_path_factory.mktemp("java"))
    yield made
    made.machine.end_all()


def test_rows_of_a_java_broker_are_those_of_its_files(java: Java) -> None:
    admin_makes(java, "Rows")
    java.fill("Rows", 0, 400)
    for more in ({"verifyCrc": "fail"}, {"decompress": "false"}, {"tagFilter": "tag1"}, {"minPartitions": "5"}):
        given: dict[str, Any] = {"subscribe": "Rows", "columns": EVERY, **more}
        by_files, by_broker = java.files.batch(**given), java.place.batch(**given)
        assert len(by_files) == (133 if "tagFilter" in more else 400)
        assert by_broker == by_files
    assert len(java.place.batch(assign="Rows/1", startingOffsets="-10")) == 10
    by_files, by_broker = (place.batch(view="queues", subscribe="Rows") for place in (java.files, java.place))
    untold = {name for row in by_broker for name, value in row.items() if value is None}
    assert by_broker == [{name: None if name in untold else row[name] for name in row} for row in by_files]
    assert all("hysical" in name for name in untold)  # a broker is asked for counts only
    with pytest.raises(BrokerError, match="does not support consumer to filter message by SQL92"):
        java.place.batch(subscribe="Rows", sqlFilter="n > 5", brokerTimeout="2s")


def test_a_stream_over_kills_of_a_java_broker(java: Java) -> None:
    admin_makes(java, "Killed")
    java.fill("Killed", 0, 90)
    reader = java.place.stream(subscribe="Killed", startingOffsets="earliest", maxOffsetsPerTrigger=40)
    end = reader.initialOffset()
    assert list(end["stores"]) == ["brk"]
    found: list[int] = []
    for turn in range(2):
        start, end = end, json.loads(json.dumps(reader.latestOffset(end, reader.getDefaultReadLimit())))
        java.kill()
        java.start()
        found += read(reader, start, end)
        admin_makes(java, "Killed")
        java.fill("Killed", 90 + 10 * turn, 100 + 10 * turn)
        reader.stop()
        reader = java.place.stream(subscribe="Killed", maxOffsetsPerTrigger=40)

    def all_are_there() -> bool:
        nonlocal end
        more, end = to_the_end(reader, end)
        found.extend(flat(more))
        return len(found) >= 110

    wait_for(all_are_there, "the rest")
    assert sorted(found) == list(range(110))
    reader.stop()


def test_a_topic_of_a_java_broker_is_deleted_in_mid_stream(java: Java) -> None:
    admin_makes(java, "Gone")
    java.fill("Gone", 0, 30)
    reader = java.place.stream(subscribe="Gone", startingOffsets="earliest")
    lax = java.place.stream(subscribe="Gone", startingOffsets="earliest", failOnDataLoss="false")
    batches, end = to_the_end(reader, reader.initialOffset())
    assert flat(batches) == list(range(30))
    with AdminClient(java.machine.namesrv) as admin:
        admin.delete_topic("Gone")
    with pytest.raises(DataLoss, match=r"queue Gone/\d"):
        reader.latestOffset(end, ReadAllAvailable())
    admin_makes(java, "Gone")
    java.fill("Gone", 500, 520)
    more, _ = to_the_end(lax, end)
    assert sorted(n for n in flat(more) if n >= 500) == list(range(500, 520))
    for one in (reader, lax):
        one.stop()


def test_groups_of_a_java_broker(java: Java) -> None:
    admin_makes(java, "Groups")
    java.fill("Groups", 0, 30)
    with AdminClient(java.machine.namesrv) as admin:
        admin.create_group("spark-group")
    reader = java.place.stream(subscribe="Groups", startingOffsets="earliest", commitGroup="spark-group")
    _, end = to_the_end(reader, reader.initialOffset())
    reader.commit(end)
    rows = [row for row in java.place.batch(view="groups") if row["group"] == "spark-group"]
    assert sum(row["committedOffset"] for row in rows) == 30
    assert {row["lag"] for row in rows} == {0}
    java.fill("Groups", 30, 36)
    found = java.place.batch(subscribe="Groups", startingOffsets="group", group="spark-group")
    assert numbers(found) == list(range(30, 36))
    reader.stop()
