"""What the sink makes of columns: records as a put would store them, and refusals that name the row.

No session: Arrow batches go in, a real store shows what came out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqfast
from mqfast.errors import MessageIllegal, MessageTooLarge, MqfastError, PropertiesTooLong
from mqfast.message import check_topic, parse_host
from mqfast.spark import options as table
from mqfast.spark.row_encoder import PLAIN_COLUMNS, RowEncoder
from mqfast.store.put.staged import append_records, count_records
from mqfast.store.record.record import StoredMessage, decode_record, java_hash

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types

from mqfast.spark.rows import COLUMNS, PLACES, RowWriter, check_columns

PROPERTIES = pa.map_(pa.string(), pa.string())
MS = pa.timestamp("us", tz="UTC")
AT = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)


def options(**given: Any) -> table.Options:
    return table.parse({"path": "/nowhere", **{name: str(value) for name, value in given.items()}}, table.SINK)


def writer(stamp: bytes = b"", first_turn: int = 0, queues: int = 4, **given: Any) -> RowWriter:
    return RowWriter(options(**given), stamp, first_turn, lambda topic: queues)


def batch(**columns: Any) -> Any:
    kinds = {
        "body": pa.binary(), "properties": PROPERTIES, "queueId": pa.int32(), "flag": pa.int32(), "sysFlag": pa.int32(),
        "reconsumeTimes": pa.int32(), "delayLevel": pa.int32(), "delayTimeMs": pa.int64(), "bornTimestamp": MS,
    }  # fmt: skip
    made = {
        name: values if isinstance(values, pa.Array) else pa.array(values, kinds.get(name, pa.string()))
        for name, values in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqfast.MessageStore]:
    small = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    with mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=1 << 20, **small) as opened:
        yield opened


def stored(store: mqfast.MessageStore, rows: RowWriter, *batches: Any) -> list[StoredMessage]:
    """The messages that batches become, in order."""
    for each in batches:
        encoded = rows.encode(each)
        if encoded:
            assert append_records(store, bytearray(encoded)) == each.num_rows
    store.flush()
    with mqfast.StoreReader(store.path) as reader:
        return list(reader.scan())


def test_every_column_arrives(store: mqfast.MessageStore) -> None:
    rows = writer(b"SPK\x01me:7:2:", preserveTimestamps="true", preserveIds="true")
    before = time.time_ns() // 1_000_000
    one, two = stored(
        store, rows,
        batch(
            topic=["a", "b"], body=[b"one", b""], tags=["new", None], keys=["k1 k2", ""], queueId=[3, 0],
            properties=[[("z", "1"), ("a", "2")], None], shardingKey=["s", None], flag=[-5, None], sysFlag=[1, None],
            bornTimestamp=[AT, None], bornHost=["1.2.3.4:5", None], reconsumeTimes=[2, 0], uniqKey=["u", None],
        ),
    )  # fmt: skip
    assert (one.topic, one.queue_id, bytes(one.body), one.tags, one.keys) == ("a", 3, b"one", "new", ["k1", "k2"])
    assert one.properties == {
        "z": "1", "a": "2", "TAGS": "new", "KEYS": "k1 k2", "__SHARDINGKEY": "s", "UNIQ_KEY": "u", "SPK": "me:7:2:0",
    }  # fmt: skip
    assert (one.flag, one.sys_flag, one.reconsume_times, one.born_host) == (-5, 1, 2, "1.2.3.4:5")
    assert one.born_timestamp == round(AT.timestamp() * 1000)
    assert (two.topic, two.queue_id, bytes(two.body), two.properties) == ("b", 0, b"", {"SPK": "me:7:2:1"})
    assert (two.flag, two.sys_flag) == (0, 0)
    assert before <= two.born_timestamp <= time.time_ns() // 1_000_000
    assert store.query("a", "k2")[0].physical_offset == one.physical_offset
    assert [m.physical_offset for m in store.get("a", 3, 0, tags="new")] == [one.physical_offset]


def test_the_record_is_the_one_that_a_put_stores(store: mqfast.MessageStore) -> None:
    properties = {"z": "1", "origin": "here", "Ä": "ö"}
    rows = writer(topic="t", preserveTimestamps="true")
    [spark] = stored(
        store, rows,
        batch(
            body=[b"body"], tags=["x"], keys=["k"], properties=[list(properties.items())], queueId=[1],
            bornTimestamp=[AT],
        ),
    )  # fmt: skip
    store.put("t", b"body", 1, "x", "k", properties, born_timestamp=round(AT.timestamp() * 1000))
    put = store.get("t", 1, 1)[0]
    a, b = bytearray(spark.to_bytes()), bytearray(put.to_bytes())
    for record in (a, b):
        record[20:36] = bytes(16)  # queue offset, physical offset
        record[56:64] = bytes(8)  # store time
    assert a == b


def test_a_column_goes_before_the_property_of_its_name(store: mqfast.MessageStore) -> None:
    rows = writer(topic="t")
    properties = [("TAGS", "old"), ("KEYS", "old"), ("UNIQ_KEY", "u"), ("SPK", "other:1:1:1"), ("__CRC32#", "1")]
    kept, replaced = stored(
        store, rows, batch(body=[b"", b""], tags=[None, "new"], keys=[None, "k"], properties=[properties] * 2)
    )
    assert kept.properties == {"TAGS": "old", "KEYS": "old"}
    assert replaced.properties == {"TAGS": "new", "KEYS": "k"}


def test_ids_are_kept_when_asked_for(store: mqfast.MessageStore) -> None:
    given = batch(body=[b""], properties=[[("UNIQ_KEY", "u")]])
    assert stored(store, writer(topic="t", preserveIds="true"), given)[0].properties == {"UNIQ_KEY": "u"}


def test_raw_properties_and_arrays_of_keys(store: mqfast.MessageStore) -> None:
    keys = pa.array([["a", "b"], [], None, [None, "c", None], [None]], pa.list_(pa.string()))
    raw = pa.array(["x\x01y\x02TAGS\x01t\x02", "", None, "", "KEYS\x01old\x02"])
    found = stored(store, writer(topic="t"), batch(body=[b""] * 5, keys=keys, properties=raw))
    assert [m.properties for m in found] == [
        {"x": "y", "TAGS": "t", "KEYS": "a b"}, {}, {}, {"KEYS": "c"}, {"KEYS": "old"},
    ]  # fmt: skip


def test_a_copy_of_property_strings_is_left_as_it_is(store: mqfast.MessageStore) -> None:
    """The quick way of a replay gives what the long way gives."""
    texts = [
        "b\x011\x02a\x012\x02", "TAGS\x01x\x02SPK\x01old:0:0:1\x02", "SPK\x01old:0:0:2\x02KEYS\x01k\x02",
        "UNIQ_KEY\x01u\x02NOSPK\x01s\x02",
        "a\x01no end", "a\x011\x02SPK\x01no end", "SPK\x01alone", "__CRC32#\x010\x02", "", None,
    ]  # fmt: skip
    queues = [0] * len(texts)
    for kept in ("false", "true"):
        given = {"body": [b""] * len(texts), "queueId": queues, "properties": pa.array(texts)}
        quick = stored(store, writer(b"SPK\x01new:", topic="q", preserveIds=kept), batch(**given))
        long = stored(
            store, writer(b"SPK\x01new:", topic="l", preserveIds=kept), batch(**given, tags=[None] * len(texts))
        )
        found = [[m.properties for m in long if m.topic == topic][-len(texts) :] for topic in "ql"]
        assert found[0] == found[1]
        assert found[0][3] == ({"UNIQ_KEY": "u"} if kept == "true" else {}) | {"NOSPK": "s", "SPK": "new:3"}
        first = next(m for m in quick if m.topic == "q")
        assert first.properties_bytes == b"b\x011\x02a\x012\x02SPK\x01new:0\x02"  # not put into another order


def test_text_bodies_and_slices(store: mqfast.MessageStore) -> None:
    whole = batch(body=pa.array([f"söme {n}" for n in range(9)]), properties=[[("n", str(n))] for n in range(9)])
    found = stored(store, writer(topic="t"), whole.slice(2, 3), whole.slice(8), whole.slice(0, 0))
    assert [str(m.body, "utf-8") for m in found] == ["söme 2", "söme 3", "söme 4", "söme 8"]
    assert [m.properties["n"] for m in found] == ["2", "3", "4", "8"]


def test_large_types_are_read_as_well(store: mqfast.MessageStore) -> None:
    body = pa.array([b"a", b"b"], pa.large_binary())
    assert [bytes(m.body) for m in stored(store, writer(topic="t"), batch(body=body))] == [b"a", b"b"]


# --- queues ----------------------------------------------------------------------------------------------------------


def queues_of(rows: RowWriter, **columns: Any) -> list[int]:
    import struct

    encoded = rows.encode(batch(**columns))
    found, at = [], 0
    while at < len(encoded):
        found.append(struct.unpack_from(">i", encoded, at + 12)[0])
        at += struct.unpack_from(">i", encoded, at)[0]
    return found


def test_the_hash_of_a_key_chooses_the_queue() -> None:
    keys = [f"key-{n}" for n in range(40)]
    found = queues_of(writer(topic="t", queues=7), body=[b""] * 40, keys=keys)
    assert found == [abs(java_hash(key)) % 7 for key in keys]
    assert len(set(found)) == 7
    sharded = queues_of(writer(topic="t", queues=7), body=[b""] * 40, keys=keys, shardingKey=["s"] * 40)
    assert set(sharded) == {abs(java_hash("s")) % 7}
    assert queues_of(writer(topic="t", queues=7), body=[b""] * 5, queueId=[9, None, 1, 2, None], keys=["s"] * 5) == [
        9,
        abs(java_hash("s")) % 7,
        1,
        2,
        abs(java_hash("s")) % 7,
    ]


def test_rows_without_a_key_are_spread_round_robin() -> None:
    rows = writer(topic="t", first_turn=2)
    assert queues_of(rows, body=[b""] * 5) == [2, 3, 0, 1, 2]
    assert queues_of(rows, body=[b""] * 2) == [3, 0]
    assert queues_of(writer(topic="t", queueSelector="round_robin"), body=[b""] * 3, keys=["k"] * 3) == [0, 1, 2]


def test_only_the_column_where_that_was_asked_for() -> None:
    rows = writer(topic="t", queueSelector="column")
    assert queues_of(rows, body=[b""] * 2, queueId=[5, 6]) == [5, 6]
    with pytest.raises(MessageIllegal, match="row 3: expected a queueId, found null"):
        queues_of(rows, body=[b""] * 2, queueId=[5, None])


# --- delay -----------------------------------------------------------------------------------------------------------


def test_delayed_rows_stand_where_a_broker_puts_them(store: mqfast.MessageStore) -> None:
    now = time.time_ns() // 1_000_000
    level, most, timed, plain, none = stored(
        store, writer(topic="t"),
        batch(
            body=[b""] * 5, queueId=[2] * 5, delayLevel=[3, 99, None, 0, None], delayTimeMs=[None, 5, 5000, None, -1]
        ),
    )  # fmt: skip
    assert (level.topic, level.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert level.properties == {"DELAY": "3", "REAL_TOPIC": "t", "REAL_QID": "2"}
    assert (most.topic, most.queue_id, most.properties["DELAY"]) == ("SCHEDULE_TOPIC_XXXX", 17, "18")
    assert (timed.topic, timed.queue_id) == ("rmq_sys_wheel_timer", 0)
    properties = dict(timed.properties)
    out = int(properties.pop("TIMER_OUT_MS"))
    assert out % 1000 == 0
    assert now + 3999 <= out <= now + 10_000
    assert properties == {"TIMER_DELAY_MS": "5000", "REAL_TOPIC": "t", "REAL_QID": "2"}
    assert plain.topic == none.topic == "t"
    # As in a broker the unit of a delayed message tells when it is due.
    assert store.get("SCHEDULE_TOPIC_XXXX", 2, 0)[0].physical_offset == level.physical_offset
    with pytest.raises(MessageIllegal, match="row 0: expected a delay of at most 259200000 ms"):
        writer(topic="t").encode(batch(body=[b""], delayTimeMs=[259_200_001]))


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns, error, message",
    [
        ({"body": [b"", None]}, MessageIllegal, "row 1: expected a body, found null"),
        ({"body": [b"", b""], "topic": ["t", None]}, MessageIllegal, "row 1: expected a topic, found null"),
        ({"body": [b""], "topic": ["a/b"]}, MessageIllegal, "topic: expected a name without"),
        ({"body": [b""], "topic": ["x" * 128]}, MqfastError, "topic: expected at most 127 bytes"),
        ({"body": [b"x" * (4 << 20) + b"y"], "topic": ["t"]}, MessageTooLarge, "row 0: expected a body of at most"),
        ({"body": [b""], "topic": ["t"], "queueId": [-1]}, MessageIllegal, "row 0: expected a queue id from 0"),
        (
            {"body": [b""], "topic": ["t"], "queueId": pa.array([1 << 31])},
            MessageIllegal,
            "row 0: expected a queue id below",
        ),
        ({"body": [b""], "topic": ["t"], "sysFlag": [0x80]}, MessageIllegal, "row 0: expected single messages"),
        ({"body": [b""], "topic": ["t"], "bornHost": ["here"]}, MessageIllegal, "row 0: host"),
        ({"body": [b""], "topic": ["t"], "properties": [[("a", "b\x02c")]]}, MessageIllegal, r"row 0: property 'a'"),
        ({"body": [b""], "topic": ["t"], "properties": [[("a\x01", "b")]]}, MessageIllegal, r"row 0: property"),
        ({"body": [b""], "topic": ["t"], "properties": [[("a", "")]]}, MessageIllegal, r"row 0: property 'a'"),
        ({"body": [b""], "topic": ["t"], "tags": ["x\x01"]}, MessageIllegal, r"row 0: property 'TAGS'"),
        (
            {"body": [b""], "topic": ["t"], "properties": [[("a", "b" * 33_000)]]},
            MqfastError,
            "row 0: expected properties of",
        ),
    ],
)
def test_rows_that_are_no_messages_are_refused_with_their_number(
    columns: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        writer(b"SPK\x01x:").encode(batch(**columns))


@pytest.mark.parametrize(
    "name, instead",
    [
        ("DELAY", "delayLevel"), ("TIMER_DELAY_SEC", "delayTimeMs"), ("TIMER_DELIVER_MS", "delayTimeMs"),
        ("TRAN_MSG", "TransactionProducer"), ("PGROUP", "TransactionProducer"), ("TIMER_DEL_UNIQKEY", "recall"),
    ],
)  # fmt: skip
def test_properties_that_steer_a_broker_are_columns(store: mqfast.MessageStore, name: str, instead: str) -> None:
    given = batch(body=[b"0", b"1", b"2"], properties=[[("a", "1")], None, [("b", "2"), (name, "3")]])
    for rows, at in ((given, 2), (given.slice(1), 1)):
        with pytest.raises(MessageIllegal, match=rf"row {at}: property '{name}' is RocketMQ's own: use .*{instead}"):
            writer(topic="t").encode(rows)
    assert stored(store, writer(topic="t"), given.slice(0, 2))[0].properties == {"a": "1"}
    # Of copies of messages it says what was.
    raw = batch(body=[b""], properties=pa.array([f"{name}\x013\x02"]))
    assert stored(store, writer(topic="t"), raw)[-1].properties == {name: "3"}
    read = batch(body=[b""], properties=[[(name, "3")]], queueOffset=pa.array([7]))
    assert stored(store, writer(topic="t"), read)[-1].properties == {name: "3"}


def test_null_properties_are_left_out(store: mqfast.MessageStore) -> None:
    given = batch(body=[b""], properties=[[("a", None), ("b", "1")]])
    assert stored(store, writer(topic="t"), given)[0].properties == {"b": "1"}


def test_the_same_names_in_another_order_are_written_alike(store: mqfast.MessageStore) -> None:
    pairs = [(name, name.lower()) for name in ("TAGX", "b", "KEYX", "zz", "__y", "1")]
    found = stored(store, writer(topic="t"), batch(body=[b""] * 2, properties=[pairs, pairs[::-1]]))
    assert found[0].properties_bytes == found[1].properties_bytes == mqfast.properties.encode(dict(pairs))


# --- schemas ---------------------------------------------------------------------------------------------------------


def schema(*names: str, **kinds: Any) -> Any:
    usual = {
        "binary": types.BinaryType(), "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        "string": types.StringType(), "int": types.IntegerType(), "timestamp": types.TimestampType(),
    }  # fmt: skip
    fields = []
    for name in names:
        kind = usual[COLUMNS[name][0][0]] if name in COLUMNS else types.LongType()
        fields.append(types.StructField(name, kinds.get(name, kind)))
    return types.StructType(fields)


@pytest.mark.parametrize(
    "given, settings, message",
    [
        (schema("topic"), {}, "column body: expected it, found topic"),
        (schema("body"), {}, "topic: expected a column or the option topic"),
        (schema("topic", "body", "tag"), {}, "column tag: .* did you mean tags"),
        (schema("topic", "body", "queueid"), {}, "did you mean queueId"),
        (schema("topic", "body", body=types.LongType()), {}, "column body: expected binary or string, found bigint"),
        (schema("topic", "body", "body"), {}, "each name once"),
        (schema("topic", "body"), {"queueSelector": "column"}, "needs the column queueId"),
        (schema("body"), {"topic": "a/b"}, "topic: expected a name"),
    ],
)
def test_schemas_that_cannot_be_written(given: Any, settings: dict[str, str], message: str) -> None:
    with pytest.raises(MqfastError, match=message):
        check_columns(given, options(**settings))


def test_schemas_that_can_be_written() -> None:
    check_columns(schema("body"), options(topic="t"))
    no_instant = types.StructType(
        [*schema("topic", "body").fields, types.StructField("bornTimestamp", types.TimestampNTZType())]
    )
    check_columns(no_instant, options())
    with pytest.raises(MqfastError, match=r"timestamp_ntz, which names no instant: CAST\(bornTimestamp AS timestamp\)"):
        check_columns(no_instant, options(preserveTimestamps="true"))
    check_columns(schema(*COLUMNS, *sorted(PLACES)), options())
    check_columns(schema("topic", "body", "mine"), options(ignoreExtraColumns="true"))


def test_everything_that_the_source_emits_is_taken_back() -> None:
    from mqfast.spark.schema import VIEWS

    for column in VIEWS["messages"]:
        assert column.name in PLACES or column.kind in COLUMNS[column.name][0], column.name


# --- copies of messages ----------------------------------------------------------------------------------------------

HOST = parse_host("10.0.0.1:10911")
FILE_BYTES = 1 << 18
DROPPED = (b"SPK", b"UNIQ_KEY")
ODD = re.compile(rb"(?:^|(?<=\x02))(?:SPK|UNIQ_KEY)\x01[^\x02]*(?:\x02|$)")
PAIRS = st.lists(
    st.sampled_from([b"SPK", b"SPKX", b"XSPK", b"UNIQ_KEY", b"a", b"", b"\x01", b"\x01v", b"\x02"]), max_size=9
)


def plain(**columns: Any) -> Any:
    kinds = {"u": pa.string(), "i": pa.int32(), "l": pa.int64(), "z": pa.binary()}
    made = {name: pa.array(values, kinds[PLAIN_COLUMNS[name]]) for name, values in columns.items()}
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def copied(batches: list[Any], order: list[int] | None = None, into: RowEncoder | None = None) -> list[Any]:
    """The records, parsed."""
    coder = into or RowEncoder(HOST, HOST, b"", 4 << 20, FILE_BYTES - 8, DROPPED)
    numbers = None if order is None else np.array(order, np.int64)
    block = bytes(coder.encode_plain(batches, numbers, 1_700_000_000_000, check_topic, parse_host))
    assert count_records(block)[1] == len(block)
    found, at = [], 0
    while at < len(block):
        size = int.from_bytes(block[at : at + 4], "big")
        found.append(decode_record(block[at : at + size]))
        at += size
    return found


@given(PAIRS)
def test_properties_of_copies_are_as_they_were_but_for_what_is_dropped(words: list[bytes]) -> None:
    text = b"".join(words)
    [row] = copied([plain(topic=["t"], queueId=[0], body=[b"b"], properties=[text])])
    kept = ODD.sub(b"", text)
    assert row.properties_bytes == (kept if not kept or kept.endswith(b"\x02") else kept + b"\x02")


TEXT = st.one_of(st.none(), st.sampled_from(["", "k", "k1", "polygenelubricants", "a b"]), st.text(max_size=5))
ROW = st.tuples(st.sampled_from(["t", "other", None]), TEXT, TEXT, TEXT, st.integers(-5, 5))


@given(st.lists(ROW, min_size=1, max_size=12), st.sampled_from(["hash", "round_robin"]), st.integers(0, 3))
def test_rows_of_texts_are_the_same_with_and_without_python_objects(rows: list[Any], selector: str, cut: int) -> None:
    """Without a map of properties the texts stay in Arrow's memory; with an empty one each row is a dict."""
    names = ("topic", "keys", "tags", "shardingKey", "flag")
    columns = dict(zip(names, ([row[i] for row in rows] for i in range(len(names))), strict=True))
    columns |= {"bornTimestamp": [AT] * len(rows), "uniqKey": ["own"] * len(rows)}
    queues = {"t": 4, "other": 3}
    for left_out in ((), ("keys",), ("shardingKey", "tags"), ("keys", "tags", "shardingKey")):
        given = {name: values for name, values in columns.items() if name not in left_out}
        bodies = [b"%d" % n for n in range(len(rows))]
        quick = batch(body=bodies, **given).slice(min(cut, len(rows) - 1))
        slow = batch(body=bodies, properties=[[]] * len(rows), **given).slice(min(cut, len(rows) - 1))
        found: list[Any] = []
        for one in (quick, slow):
            settings = options(topic="t", queueSelector=selector, preserveTimestamps="true")
            writer_of = RowWriter(settings, b"SPK\x01me:7:2:", 1, queues.__getitem__)
            try:
                found.append([bytes(writer_of.encode(one)) for _ in range(2)])
            except MqfastError as error:
                found.append(str(error))
        assert found[0] == found[1]


def test_copies_have_every_column_of_their_row_in_the_order_that_is_asked_for() -> None:
    one = plain(
        topic=["t", "t", "other"], queueId=[1, 2, 3], body=[b"", b"x" * 5000, b"three"], flag=[7, None, -1],
        bornTimestamp=[1_234_567, None, -1], bornHost=["1.2.3.4:5", None, "[2001:db8::1]:9"],
        reconsumeTimes=[0, 4, None], sysFlag=[1, None, 0], properties=[b"a\x01b\x02", None, b"SPK\x01x"],
    )  # fmt: skip
    two = plain(topic=["pad", "last"], queueId=[0, 9], body=[b"pad", b"four"]).slice(1)
    rows = copied([one, two], [2, 1 << 32, 0, 1])
    assert [(r.topic, r.queue_id, bytes(r.body)) for r in rows] == [
        ("other", 3, b"three"), ("last", 9, b"four"), ("t", 1, b""), ("t", 2, b"x" * 5000),
    ]  # fmt: skip
    assert [r.born_timestamp for r in rows] == [-1, 1_700_000_000_000, 1234, 1_700_000_000_000]
    assert [r.born_host for r in rows] == ["[2001:db8::1]:9", "10.0.0.1:10911", "1.2.3.4:5", "10.0.0.1:10911"]
    assert [(r.flag, r.reconsume_times, r.sys_flag & 1) for r in rows] == [(-1, 0, 0), (0, 0, 0), (7, 0, 1), (0, 4, 0)]
    assert [r.properties_bytes for r in rows] == [b"", b"", b"a\x01b\x02", b""]
    assert [bytes(r.body) for r in copied([one])] == [b"", b"x" * 5000, b"three"]
    assert copied([one.slice(0, 0)]) == []


def test_copies_that_no_store_takes_are_refused() -> None:
    row: dict[str, Any] = {"topic": ["t"], "queueId": [0], "body": [b"b"]}
    for name in row:
        with pytest.raises(MessageIllegal, match="row 0: expected a topic, a queueId and a body, found null"):
            copied([plain(**{**row, name: [None]})])
        with pytest.raises(MessageIllegal, match=f"column {name}: expected it, found none"):
            copied([plain(**{other: row[other] for other in row if other != name})])
    with pytest.raises(MessageIllegal, match="column body: expected the Arrow type 'z', found 'u'"):
        copied([pa.RecordBatch.from_pydict({"topic": ["t"], "queueId": pa.array([0], pa.int32()), "body": ["b"]})])
    for order in ([1], [1 << 32], [-1]):
        with pytest.raises(MessageIllegal, match="order: expected a row of a batch"):
            copied([plain(**row)], order)
    with pytest.raises(MessageIllegal, match="row 0: "):
        copied([plain(**row, bornHost=["nowhere"])])
    with pytest.raises(MessageTooLarge, match="row 0: expected a record of at most"):
        copied([plain(**{**row, "body": [b"x" * FILE_BYTES]})])
    with pytest.raises(PropertiesTooLong, match="row 0: "):
        copied([plain(**row, properties=[b"a\x01" + b"x" * 32767])])
    offsets = pa.py_buffer(np.array([0, 4, 1, 4], np.int32).tobytes())
    falling = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"abcd")])
    three = plain(topic=["t"] * 3, queueId=[0] * 3)
    with pytest.raises(MessageIllegal, match="expected rising Arrow offsets, found 4 and 1"):
        copied([pa.RecordBatch.from_arrays([*three.columns, falling], ["topic", "queueId", "body"])])
