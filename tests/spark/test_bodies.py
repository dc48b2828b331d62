"""Compressed bodies, and topics of the broker itself: what a read of a store gives when nothing is said about them.

Stores of real clients and brokers where there are any; no Spark processes.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
from conftest import copy_of, golden_cases
from test_stream import flat, small, stream, to_the_end

import mqfast
from mqfast.errors import ConfigError, CorruptFile
from mqfast.message import SysFlag
from mqfast.spark import options as table
from mqfast.spark.schema import chosen_columns
from mqfast.spark.selection import is_hidden
from mqfast.spark.source import BatchReader

CODECS = {
    "zlib": SysFlag.COMPRESSION_ZLIB,
    "old zlib": 0,
    "lz4": SysFlag.COMPRESSION_LZ4,
    "zstd": SysFlag.COMPRESSION_ZSTD,
}
ORDERS = pytest.mark.parametrize("order", ["queue", "commitlog"])


def batches(path: Path, **options: Any) -> list[pa.RecordBatch]:
    """A batch read without Spark's processes."""
    parsed = table.parse({"path": str(path), **{name: str(value) for name, value in options.items()}}, table.BATCH)
    reader = BatchReader(parsed, chosen_columns(parsed))
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in batches(path, **options) for row in batch.to_pylist()]


def packed(codec: str, body: bytes) -> bytes:
    if codec.endswith("zlib"):
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    found: bytes = sink.getvalue().to_pybytes()
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    return copy_of(case, tmp_path)


# --- bodies ----------------------------------------------------------------------------------------------------------


@ORDERS
def test_bodies_that_clients_compressed_are_what_was_sent(broker: Path, order: str) -> None:
    stored = rows(broker, subscribe="CompressTopic", order=order, decompress="false")
    found = rows(broker, subscribe="CompressTopic", order=order, verifyCrc="fail")
    kinds = {SysFlag.compression(row["sysFlag"]) for row in stored}
    assert kinds == {"zlib", "lz4", "zstd"}
    for before, after in zip(stored, found, strict=True):
        assert before["physicalOffset"] == after["physicalOffset"]
        assert len(after["body"]) > len(before["body"]) == after["bodySize"]
        assert after["sysFlag"] == before["sysFlag"] & ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        if SysFlag.compression(before["sysFlag"]) == "zlib":
            assert after["body"] == zlib.decompress(before["body"])


@ORDERS
@pytest.mark.parametrize("codec", CODECS)
def test_plain_and_compressed_bodies_side_by_side(tmp_path: Path, order: str, codec: str) -> None:
    flag = SysFlag.COMPRESSED | CODECS[codec]
    with small(str(tmp_path)) as store:
        for n in range(30):
            body = b"%d " % n * 500
            store.put("t", packed(codec, body), n % 2, sys_flag=flag) if n % 3 == 0 else store.put("t", body, n % 2)
    for columns in ("body", "queueOffset,body,sysFlag", "topic,physicalOffset,body"):
        found = rows(tmp_path, order=order, columns=columns)
        assert sorted(int(row["body"].split()[0]) for row in found) == list(range(30))
        assert all(len(row["body"]) == 500 * (len(row["body"].split()[0]) + 1) for row in found)
        assert all(row.get("sysFlag", 0) == 0 for row in found)
    flags = [row["sysFlag"] for row in rows(tmp_path, order=order, columns="sysFlag")]  # as stored without the body
    assert sorted(flags) == sorted([flag] * 10 + [0] * 20)
    reader = stream(str(tmp_path), startingOffsets="earliest", order=order)
    assert sorted(flat(to_the_end(reader, reader.initialOffset()))) == list(range(30))


def test_the_first_batch_has_the_schema_that_was_promised(broker: Path) -> None:
    for given in ({}, {"decompress": "false"}):
        parsed = table.parse({"path": str(broker), "subscribe": "CompressTopic", **given}, table.BATCH)
        from mqfast.spark.schema import arrow_schema

        wanted = arrow_schema(chosen_columns(parsed))
        assert all(batch.schema.equals(wanted) for batch in batches(broker, subscribe="CompressTopic", **given))


def test_large_bodies_are_handed_out_in_several_batches(tmp_path: Path) -> None:
    body = bytes(40 << 20)
    with small(str(tmp_path)) as store:
        for n in range(5):
            store.put("t", zlib.compress(b"%d " % n + body), sys_flag=SysFlag.COMPRESSED)
    found = batches(tmp_path, columns="queueOffset,body", maxBodyBytes="64m")
    assert [row for batch in found for row in batch.column("queueOffset").to_pylist()] == list(range(5))
    assert max(batch.nbytes for batch in found) < 100 << 20
    assert {len(row) for batch in found for row in batch.column("body").to_pylist()} == {len(body) + 2}


@ORDERS
@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd", "unknown"])
@pytest.mark.parametrize("harm", ["cut", "other", "empty"])
def test_a_body_that_is_not_what_its_flag_says(tmp_path: Path, order: str, codec: str, harm: str) -> None:
    whole = packed("zlib" if codec == "unknown" else codec, b"body " * 1000)
    body = {"cut": whole[:-5], "other": b"no compressed data", "empty": b"\0"}[harm]
    flag = SysFlag.COMPRESSED | (0x700 if codec == "unknown" else CODECS[codec])
    with small(str(tmp_path)) as store:
        store.put("t", b"before")
        place = store.put("t", body, sys_flag=flag).physical_offset
        store.put("t", b"after")
    found = rows(tmp_path, order=order, columns="body,sysFlag")
    assert found == [
        {"body": b"before", "sysFlag": 0}, {"body": body, "sysFlag": flag}, {"body": b"after", "sysFlag": 0}
    ]  # fmt: skip
    with pytest.raises(CorruptFile, match=f"physical offset {place}"):
        rows(tmp_path, order=order, verifyCrc="fail")
    left = rows(tmp_path, order=order, verifyCrc="skip", columns="queueOffset,body")
    assert left == [{"queueOffset": 0, "body": b"before"}, {"queueOffset": 2, "body": b"after"}]
    marked = rows(tmp_path, order=order, verifyCrc="mark", columns="crcOk,body")
    assert [row["crcOk"] for row in marked] == [True, False, True]
    assert marked[1]["body"] == body


def test_a_missing_codec_names_the_extra(broker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqfast.spark import bodies

    class Without:
        @staticmethod
        def is_available(_: str) -> bool:
            return False

    monkeypatch.setattr(pa, "Codec", Without)
    with pytest.raises(ConfigError, match=r"mqfast\[spark\].*decompress=false"):
        bodies._stream("zstd")
    with pytest.raises(ConfigError, match=r"zstd|lz4"):
        rows(broker, subscribe="CompressTopic")


# --- topics of the broker itself -------------------------------------------------------------------------------------


SYSTEM = ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "%RETRY%cg_retry"]


@ORDERS
def test_half_messages_and_other_system_topics_are_left_out(broker: Path, order: str) -> None:
    with mqfast.StoreReader(broker) as reader:
        there = {q.topic for q in reader.queues() if q.max_offset > q.min_offset}
    assert there >= set(SYSTEM)
    for ways in ({}, {"subscribePattern": ".*"}):
        found = rows(broker, order=order, columns="topic,body", **ways)
        assert {row["topic"] for row in found} == {topic for topic in there if not is_hidden(topic)}
        assert "%DLQ%cg_retry" in {row["topic"] for row in found}
        assert not [row for row in found if b"transaction" in row["body"] and b"rollback" in row["body"]]
        every = rows(broker, order=order, columns="topic", includeSystemTopics="true", **ways)
        assert {row["topic"] for row in every} == there
    named = rows(broker, order=order, columns="topic", subscribe=",".join(SYSTEM))
    assert {row["topic"] for row in named} == set(SYSTEM)
    assigned = rows(broker, order=order, columns="topic", assign="RMQ_SYS_TRANS_HALF_TOPIC/0")
    assert {row["topic"] for row in assigned} == {"RMQ_SYS_TRANS_HALF_TOPIC"}


@ORDERS
def test_a_stream_leaves_out_unreadable_queues(broker: Path, order: str) -> None:
    def topics(**options: str) -> set[str]:
        reader = stream(str(broker), startingOffsets="earliest", order=order, columns="topic", **options)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return {
            topic for part in reader.partitions(start, end) for batch in reader.read(part)
            for topic in batch.column("topic").to_pylist()
        }  # fmt: skip

    assert topics() == topics(subscribePattern=".*") == {topic for topic in topics() if not is_hidden(topic)}
    assert topics(includeSystemTopics="true") >= set(SYSTEM)
    assert topics(subscribe=SYSTEM[0]) == {SYSTEM[0]}


def test_records_that_no_queue_has_yet_are_left_out_by_their_topic(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("killed-no-queues",))
    path = copy_of(case, tmp_path)
    every = {row["topic"] for row in rows(path, columns="topic", includeSystemTopics="true")}
    assert "SCHEDULE_TOPIC_XXXX" in every
    assert {row["topic"] for row in rows(path, columns="topic")} == every - {"SCHEDULE_TOPIC_XXXX"}


def test_a_pattern_that_only_system_topics_fit_is_refused(broker: Path) -> None:
    for ways in ("%RETRY%.*", "RMQ_SYS.*"):
        with pytest.raises(ConfigError, match="includeSystemTopics=true"):
            rows(broker, subscribePattern=ways)
        with pytest.raises(ConfigError, match="includeSystemTopics=true"):
            stream(str(broker), subscribePattern=ways).initialOffset()
    assert rows(broker, subscribePattern="%RETRY%.*", includeSystemTopics="true", columns="topic")


def test_the_view_queues_leaves_out_unreadable_queues_and_groups_has_them(broker: Path) -> None:
    shown = {row["topic"] for row in rows(broker, view="queues")}
    assert not [topic for topic in shown if is_hidden(topic)]
    assert {row["topic"] for row in rows(broker, view="queues", includeSystemTopics="true")} >= set(SYSTEM)
    groups = rows(broker, view="groups")
    assert all(row["maxOffset"] is not None for row in groups if row["topic"] == "%RETRY%cg_retry")


@pytest.mark.parametrize(
    "topic, hidden",
    [
        ("RMQ_SYS_TRANS_HALF_TOPIC", True), ("rmq_sys_wheel_timer", True), ("rmq_sys_REVIVE_LOG_c", True),
        ("%RETRY%g", True), ("SCHEDULE_TOPIC_XXXX", True), ("TBW102", True), ("OFFSET_MOVED_EVENT", True),
        ("orders", False), ("%DLQ%g", False),
        ("SCHEDULE_TOPIC_XXXX2", False), ("xrmq_sys_", False), ("%LMQ%a", False), ("RMQ_SYS", False), ("", False),
    ],
)  # fmt: skip
def test_hidden_topics_equal_those_of_the_broker(tmp_path: Path, topic: str, hidden: bool) -> None:
    assert is_hidden(topic) == hidden
    if topic and not topic.startswith("%LMQ%"):  # the scanner is of the same opinion
        with small(str(tmp_path)) as store:
            store.put(topic, b"body")
            store.put("orders", b"body")
        found = {row["topic"] for row in rows(tmp_path, columns="topic", order="commitlog")}
        assert (topic not in found) == hidden


# --- where queues begin that JSON does not name ----------------------------------------------------------------------


def test_queues_that_json_does_not_name_begin_at_earliest(tmp_path: Path) -> None:
    with small(str(tmp_path)) as store:
        for n in range(30):
            store.put("t", b"%d" % n, n % 3)
    past = 10**15
    for given in (
        {"startingOffsets": '{"t/0": 10}'}, {"startingOffsetsByTimestamp": f'{{"t/0": {past}}}'},
        {"startingOffsets": '{"t/0": 10, "t/1": "group"}', "group": "nobody"},
    ):  # fmt: skip
        batch = sorted(int(row["body"]) for row in rows(tmp_path, **given))
        reader = stream(str(tmp_path), **given)
        assert batch == sorted(flat(to_the_end(reader, reader.initialOffset()))) == [n for n in range(30) if n % 3]
    ends = rows(tmp_path, endingOffsets='{"t/0": 3}')
    assert len(ends) == 23


# --- the limit -------------------------------------------------------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("codec", CODECS)
def test_a_body_above_the_limit_is_treated_as_a_damaged_one(tmp_path: Path, order: str, codec: str) -> None:
    flag = SysFlag.COMPRESSED | CODECS[codec]
    large, small_one = packed(codec, bytes(50_000)), packed(codec, bytes(1000))
    with small(str(tmp_path)) as store:
        for body in (small_one, large, small_one):
            store.put("t", body, 0, sys_flag=flag)
    found = rows(tmp_path, order=order, maxBodyBytes="10k")
    assert [row["body"] for row in found] == [bytes(1000), large, bytes(1000)]
    assert [SysFlag.compression(row["sysFlag"]) for row in found] == [None, SysFlag.compression(flag), None]
    with pytest.raises(CorruptFile, match="maxBodyBytes"):
        rows(tmp_path, order=order, maxBodyBytes="10k", verifyCrc="fail")
    assert [len(row["body"]) for row in rows(tmp_path, order=order, maxBodyBytes="50000")] == [1000, 50_000, 1000]
