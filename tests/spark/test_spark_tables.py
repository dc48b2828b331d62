"""docs/spark-tables.md: its scripts, run as they are printed, land every message once, whatever happens in between.

In `make test` the script for Parquet runs in the session of the tests; `make test-spark-tables` runs
all of them as programs, on the Spark release that each needs, and kills them in the middle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import pyarrow.parquet as pq
import pyspark
from recipes import (
    QUEUES,
    TOPIC,
    Lab,
    as_avro,
    as_json,
    cannot_be_had,
    committed,
    order,
    packages,
    put,
    put_to_broker,
    scripts,
)
from sampling import WHOLE

from mqfast.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELEASE = ".".join(pyspark.__version__.split(".")[:2])
Row = tuple[Any, ...]
FIRST, SECOND = "id BIGINT, cents INT", "id BIGINT, cents INT, note STRING"
LONG = pytest.mark.skipif(not WHOLE, reason="long; make test-spark-tables")


def needs(release: str) -> pytest.MarkDecorator:
    """A test of a table format whose jars are for one release of Spark."""
    return pytest.mark.skipif(release != RELEASE, reason=f"its jars are for Spark {release}; make test-spark-tables")


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Skip where the jars of a script cannot be had."""

    def get(script: str) -> None:
        why = cannot_be_had(Lab(tmp_path_factory.mktemp("jars")), packages(script))
        if why is not None:
            pytest.skip(why)

    return get


class Source:
    """Where the messages are, and what a table of them must hold."""

    def __init__(self, name: str, send: Callable[..., None]) -> None:
        self.name = name
        self._send = send
        self._next = dict.fromkeys(range(QUEUES), 0)
        self.expected: list[Row] = []

    def put(self, numbers: range, encode: Callable[[int], bytes], *, note: bool = False, **properties: str) -> None:
        """Messages, dealt out to the queues."""
        self._send(numbers, encode, **properties)
        for number in numbers:
            body = order(number, note=note)
            self._expect(number % QUEUES, body["id"], body["cents"], body.get("note"), None)

    def put_malformed(self, number: int, body: bytes, shown: object) -> None:
        """A body that does not fit the schema."""
        self._send(range(number, number + 1), lambda _: body)
        self._expect(number % QUEUES, None, None, None, shown)

    def _expect(self, queue: int, *values: object) -> None:
        self.expected.append((queue, self._next[queue], *values))
        self._next[queue] += 1


@pytest.fixture(params=["store", "broker"] if WHOLE else ["broker"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """A store, and a broker that is reached over the network."""
    if request.param == "store":
        yield Source(str(tmp_path / "store"), lambda *a, **k: put(tmp_path / "store", *a, **k))
        return
    with Broker(topics={TOPIC: QUEUES}) as broker:
        yield Source(broker.namesrv_addr, lambda *a, **k: put_to_broker(broker, *a, **k))


def rows_of(directory: Path) -> list[Row]:
    """The rows of a table that was written out as Parquet, in the order of the queues."""
    names = ["queueId", "queueOffset", "id", "cents", "note", "malformed"]
    table = pq.read_table(directory)
    found = [tuple(row.get(name) for name in names) for row in table.to_pylist()]
    return sorted(found, key=lambda row: row[:2])


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[:2])


# --- in the suite ----------------------------------------------------------------------------------------------------


def test_every_script_is_whole() -> None:
    found = scripts()
    assert {"land_parquet.py", "land_delta.py", "land_avro.py", "land_iceberg.py"} <= set(found)
    for name, text in found.items():
        compile(text, name, "exec")
    assert packages("land_avro.py") == [
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "org.apache.spark:spark-avro_2.13:4.2.0",
    ]


@pytest.mark.skipif(RELEASE == "4.1", reason="streams need pyspark 4.2")
def test_parquet_in_one_session(
    spark: SparkSession, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"

    def run(name: str, *arguments: object) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        space: dict[str, Any] = {}
        exec(compile(scripts()[name], name, "exec"), space)
        return space

    def found(out: str) -> list[Row]:
        run("read_parquet.py", table)["rows"].write.parquet(str(tmp_path / out))
        return rows_of(tmp_path / out)

    source.put(range(300), as_json())
    run("land_parquet.py", source.name, table, FIRST, 120)
    source.put_malformed(300, b"no json", "no json")
    source.put(range(301, 400), as_json(note=True), note=True)
    run("land_parquet.py", source.name, table, SECOND, 120)
    assert found("before") == in_order(source.expected)
    (day,) = {name.name.partition("=")[2] for name in (table / "landing").glob("day=*")}
    run("compact_parquet.py", table, day)
    assert len(list((table / "compacted" / f"day={day}").glob("*.parquet"))) == 1
    assert found("after") == in_order(source.expected)


# --- make test-spark-tables ------------------------------------------------------------------------------------------


def lands(
    lab: Lab, source: Source, script: str, arguments: list[object], batches: Callable[[], int], kills: int = 1
) -> None:
    """Runs that are killed in their first batches, then a whole one."""
    before = batches()
    killed = 0
    for more in range(1, kills + 1):
        killed += lab.run_and_kill(
            lambda least=before + more: batches() >= least, script, source.name, lab.table, *arguments
        )
    assert killed, f"{script} ended before it could be killed"
    lab.run(script, source.name, lab.table, *arguments)


def dump(lab: Lab, head: str, what: str) -> list[Row]:
    """The rows of a table, read by a session that a script of the document makes."""
    out = lab.path / "dump"
    (lab.path / "dump.py").write_text(f"{head}\n{what}.write.mode('overwrite').parquet({str(out)!r})\n")
    lab.run("dump.py", lab.table)
    return rows_of(out)


def session_of(script: str) -> str:
    """A script up to the line that makes its session."""
    before, made, _ = scripts()[script].partition("spark = builder.getOrCreate()\n")
    assert made
    return before + made


@LONG
@pytest.mark.slow
@pytest.mark.skipif(RELEASE == "4.1", reason="streams need pyspark 4.2")
def test_parquet(source: Source, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    table = lab.table

    def found() -> list[Row]:
        return dump(lab, scripts()["read_parquet.py"], "rows")

    def batches() -> int:
        return committed(table / "_checkpoint")

    source.put(range(3000), as_json())
    source.put_malformed(3000, b"{", "{")
    lands(lab, source, "land_parquet.py", [FIRST, 300], batches, kills=2)
    assert found() == in_order(source.expected)
    source.put(range(3001, 5001), as_json(note=True), note=True)
    lands(lab, source, "land_parquet.py", [SECOND, 300], batches)
    assert found() == in_order(source.expected)
    (day,) = {name.name.partition("=")[2] for name in (table / "landing").glob("day=*")}
    lab.run("compact_parquet.py", table, day)
    assert found() == in_order(source.expected)


@LONG
@pytest.mark.slow
@needs("4.2")
def test_delta(source: Source, tmp_path: Path, jars: Callable[[str], None]) -> None:
    jars("land_delta.py")
    lab = Lab(tmp_path / "lab")
    table = lab.table

    def found() -> list[Row]:
        return dump(lab, session_of("compact_delta.py"), "spark.sql(f'SELECT * FROM delta.`{table}`')")

    def batches() -> int:
        return committed(table / "_checkpoint")

    source.put(range(3000), as_json())
    source.put_malformed(3000, b"[1]", "[1]")
    lands(lab, source, "land_delta.py", [FIRST, 300], batches, kills=2)
    assert found() == in_order(source.expected)
    source.put(range(3001, 5001), as_json(note=True), note=True)
    lands(lab, source, "land_delta.py", [SECOND, 300], batches)
    assert found() == in_order(source.expected)
    lab.run("compact_delta.py", table)
    assert found() == in_order(source.expected)
    source.put(range(5001, 5101), as_json(note=True), note=True)
    lab.run("land_delta.py", source.name, table, SECOND)
    assert found() == in_order(source.expected)


AVRO = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "cents", "type": "int"}]}',
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "cents", "type": "int"}, '
    '{"name": "note", "type": ["null", "string"], "default": null}]}',
)


@LONG
@pytest.mark.slow
@needs("4.2")
def test_avro(source: Source, tmp_path: Path, jars: Callable[[str], None]) -> None:
    jars("land_avro.py")
    lab = Lab(tmp_path / "lab")
    table = lab.table
    names = []
    for number, text in enumerate(AVRO, 1):
        (lab.path / f"order{number}.avsc").write_text(text)
        names.append(f"order{number}.avsc")

    def found() -> list[Row]:
        return dump(lab, session_of("compact_delta.py"), "spark.sql(f'SELECT * FROM delta.`{table}`')")

    def batches() -> int:
        return committed(table / "_checkpoint")

    source.put(range(2000), as_avro())
    source.put_malformed(2000, b"\x80", b"\x80")
    lands(lab, source, "land_avro.py", [300, names[0]], batches)
    assert found() == in_order(source.expected)
    source.put(range(2001, 3501), as_avro(note=True), note=True, schema="2")
    source.put(range(3501, 3601), as_avro(), schema="1")
    lands(lab, source, "land_avro.py", [300, *names], batches)
    assert found() == in_order(source.expected)
    lab.run("compact_delta.py", table)
    assert found() == in_order(source.expected)


@LONG
@pytest.mark.slow
@needs("4.1")
def test_iceberg(source: Source, tmp_path: Path, jars: Callable[[str], None]) -> None:
    jars("land_iceberg.py")
    lab = Lab(tmp_path / "lab")
    table = lab.table

    def found() -> list[Row]:
        return dump(lab, session_of("compact_iceberg.py"), "spark.table('lake.db.orders')")

    def batches() -> int:
        """Versions of the table: each append makes one."""
        folder = table / "db" / "orders" / "metadata"
        return len(list(folder.glob("v*.metadata.json"))) if folder.is_dir() else 0

    source.put(range(3000), as_json())
    source.put_malformed(3000, b"{", "{")
    lands(lab, source, "land_iceberg.py", [FIRST, 100], batches, kills=2)
    assert found() == in_order(source.expected)
    source.put(range(3001, 5001), as_json(note=True), note=True)
    lands(lab, source, "land_iceberg.py", [SECOND, 100], batches)
    assert found() == in_order(source.expected)
    lab.run("compact_iceberg.py", table)
    assert found() == in_order(source.expected)
    source.put(range(5001, 5101), as_json(note=True), note=True)
    lab.run("land_iceberg.py", source.name, table, SECOND)
    assert found() == in_order(source.expected)
