"""Columns of many records against the same records one by one, on every golden store; and what damage, loss and filters
make of them.

pyarrow only receives the columns; what they should hold comes from ``StoreReader``.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, DataLoss, OffsetError, UsageError
from mqfast.message import Message
from mqfast.store.reader.column_scan import LogColumns
from mqfast.store.reader.gather import COLUMNS, Gather, RecordColumns
from mqfast.store.reader.store_reader import StoreReader
from mqfast.store.record.record import StoredMessage

EVERY = [name for name in COLUMNS if name != "crc_ok"]


def rows_of(batches: Iterable[RecordColumns]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        size = len(batch)
        taken = pa.record_batch(batch)
        taken.validate(full=True)
        assert taken.num_rows == size > 0
        rows += taken.to_pylist()
    return rows


def row_of(m: StoredMessage, topic: str | None = None, queue_id: int = 0, offset: int = 0) -> dict[str, Any]:
    properties = m.properties
    return {
        "topic": m.topic if topic is None else topic,
        "queue_id": m.queue_id if topic is None else queue_id,
        "queue_offset": m.record_queue_offset if topic is None else offset,
        "physical_offset": m.physical_offset,
        "size": m.size,
        "body_size": len(m.body),
        "born_timestamp": m.born_timestamp,
        "store_timestamp": m.store_timestamp,
        "born_host": m.born_host,
        "store_host": m.store_host,
        "flag": m.flag,
        "sys_flag": m.sys_flag,
        "reconsume_times": m.reconsume_times,
        "prepared_transaction_offset": m.prepared_transaction_offset,
        "body_crc": m.body_crc,
        "tags": m.tags,
        "keys": properties.get("KEYS"),
        "uniq_key": properties.get("UNIQ_KEY"),
        "message_id": m.message_id,
        "properties": list(properties.items()),
        "raw_properties": m.properties_bytes.decode("utf-8", "replace"),
        "body": bytes(m.body),
    }


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times as milliseconds."""
    for row in rows:
        for name in ("born_timestamp", "store_timestamp"):
            row[name] = round(row[name].timestamp() * 1000)
    return rows


def test_the_log_in_columns_is_the_log(golden_case: Any) -> None:
    with StoreReader(golden_case.store) as reader:
        expected = [row_of(m) for m in reader.scan()]
        found: list[dict[str, Any]] = []

        def read() -> None:
            for batch in reader.scan_columns(columns=EVERY, batch_bytes=4000):
                found.extend(rows_of([batch]))

        if golden_case.name == "torn-middle":
            with pytest.raises(CorruptFile) as caught:
                read()
            assert caught.value.offset == expected[-1]["physical_offset"] + expected[-1]["size"]
            # The batches before the damage came out; what was not yet a batch did not.
            assert expected[: len(found)] == plain(found)
        else:
            read()
            assert plain(found) == expected


def test_a_queue_in_columns_is_the_queue(golden_case: Any) -> None:
    with StoreReader(golden_case.store) as reader:
        for q in reader.queues():
            expected, damaged = [], False
            try:
                for m in reader.messages(q.topic, q.queue_id):
                    expected.append(row_of(m, q.topic, q.queue_id, m.queue_offset))
            except CorruptFile:
                damaged = True
                assert golden_case.name == "torn-middle"
            columns = reader.queue_columns(q.topic, q.queue_id, columns=EVERY, batch_bytes=1)
            if damaged:
                with pytest.raises(CorruptFile):
                    rows_of(columns)
            else:
                assert plain(rows_of(columns)) == expected


def make(path: Path, count: int = 60) -> list[dict[str, Any]]:
    """A store of small files; returns the rows of its log."""
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=4096)
    with mqfast.open(path, config=config) as store:
        for i in range(count):
            tags = f"tag{i % 3}" if i % 4 else None
            store.put(
                f"T{i % 3}", b"%d " % i * (i % 50), queue_id=i % 2, tags=tags, keys=f"k{i}", properties={"ü": "é"}
            )
    with StoreReader(path) as reader:
        return [row_of(m) for m in reader.scan()]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    path = tmp_path_factory.mktemp("gather") / "store"
    return path, make(path)


def test_batches_live_on_their_own_and_are_given_away_once(small: tuple[Path, list[dict[str, Any]]]) -> None:
    path, expected = small
    with StoreReader(path) as reader:
        batches = list(reader.scan_columns(columns=EVERY, batch_bytes=1))
        assert reader.scan_columns(columns=["size"]).skipped_records == 0
    assert len(batches) > 1
    tables = [pa.record_batch(batch) for batch in batches]
    assert plain([row for table in tables for row in table.to_pylist()]) == expected
    with pytest.raises(UsageError, match="given away"):
        pa.record_batch(batches[0])
    assert pa.schema(batches[0]).names == EVERY


def gather(columns: list[str], **settings: Any) -> Gather:
    return Gather([(name, name, False) for name in columns], **settings)


def scan(reader: StoreReader, g: Gather, skip_damage: bool = False, skip_lost: bool = False) -> LogColumns:
    return LogColumns(reader, g, *reader.readable_range(), skip_damage=skip_damage, skip_lost=skip_lost)


def test_gather_filters_keep_the_named_messages(small: tuple[Path, list[dict[str, Any]]]) -> None:
    path, expected = small
    moment = expected[30]["store_timestamp"]
    wanted = {("T1", 0): (1, 5), ("T2", 1): (0, 3), ("none", 9): (0, 99)}
    with StoreReader(path) as reader:

        def places(**settings: Any) -> list[int]:
            return [row["physical_offset"] for row in rows_of(scan(reader, gather(["physical_offset"], **settings)))]

        def those(keep: Any) -> list[int]:
            return [row["physical_offset"] for row in expected if keep(row)]

        def in_queues(row: dict[str, Any]) -> bool:
            low, high = wanted.get((row["topic"], row["queue_id"]), (0, 0))
            return bool(low <= row["queue_offset"] < high)

        assert places(queues=wanted) == those(in_queues)
        assert places(queues={}) == []
        assert places(tags=("tag1", "tag2")) == those(lambda row: row["tags"] in ("tag1", "tag2"))
        assert places(tags=()) == []
        assert places(stored_from=moment) == those(lambda row: row["store_timestamp"] >= moment)
        assert places(stored_before=moment) == those(lambda row: row["store_timestamp"] < moment)
        assert 0 < len(places(queues=wanted, tags=("tag1",))) < len(places(queues=wanted))


def test_what_no_queue_has_is_left_out_when_asked_for(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig.tiny()) as store:
        for sys_flag in (0, 0x4, 0x8, 0xC):
            store.put("T", b"x", sys_flag=sys_flag)
    with StoreReader(tmp_path / "store") as reader:
        assert [r["sys_flag"] for r in rows_of(reader.scan_columns(columns=["sys_flag"]))] == [0, 4, 8, 12]
        assert [r["sys_flag"] for r in rows_of(reader.scan_columns(columns=["sys_flag"], queued_only=True))] == [0, 8]


def test_records_longer_than_a_block_come_whole(tmp_path: Path) -> None:
    bodies = [bytes([i]) * size for i, size in enumerate((10, 3 << 20, 5, (1 << 20) - 90, 1 << 20, 7))]
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=8 << 20, max_message_bytes=4 << 20)
    with mqfast.open(tmp_path / "store", config=config) as store:
        for body in bodies:
            store.put("T", body)
    with StoreReader(tmp_path / "store") as reader:
        assert [row["body"] for row in rows_of(reader.scan_columns(columns=["body"]))] == bodies
        assert [row["body"] for row in rows_of(reader.queue_columns("T", 0, columns=["body"]))] == bodies
        assert [row["body"] for row in rows_of(reader.queue_columns("T", 0, 1, 3, columns=["body"]))] == bodies[1:3]


def test_invalid_utf8_becomes_replacement_characters(tmp_path: Path) -> None:
    make(tmp_path / "store", 5)
    log = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    for name in (b"tag1", b"k2", "é".encode()):
        at = data.index(name)
        data[at] = 0xFF
    log.write_bytes(data)
    with StoreReader(tmp_path / "store") as reader:
        expected = [row_of(m) for m in reader.scan()]
        assert any("\ufffd" in str(row["tags"]) for row in expected)
        assert plain(rows_of(reader.scan_columns(columns=EVERY))) == expected


def test_many_properties_and_repeated_names(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig.tiny()) as store:
        store.put("T", b"x", properties={f"p{i}": str(i) for i in range(90)})
        store.put_message(Message("T", b"y", properties={"a": "1"}))
    with StoreReader(tmp_path / "store") as reader:
        assert [dict(r["properties"]) for r in rows_of(reader.scan_columns(columns=["properties"]))] == [
            m.properties for m in reader.scan()
        ]


def test_where_the_log_may_be_divided(golden_case: Any) -> None:
    with StoreReader(golden_case.store) as reader:
        begin, end = reader.readable_range()
        g = gather(["physical_offset", "size"], queued_only=False)
        run = LogColumns(reader, g, begin, end, skip_damage=True, skip_lost=True)
        records = {row["physical_offset"]: row["size"] for row in rows_of(run)}
        starts = {*records, *(start + size for start, size in records.items())}  # at the end of a file a blank begins
        starts.update(first for _, first, _ in reader.log_files())
        for offset in range(begin, end, 97):
            exact = min((start for start in starts if start >= offset), default=end)
            assert reader.record_boundary(offset, end) == min(exact, end)
        assert reader.record_boundary(begin + 1, begin + 2) == begin + 2
        assert all(reader.record_boundary(start, end) == start for start in starts if start < end)


# --- damage and loss -------------------------------------------------------------------------------------------------


@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_damaged_byte_stops_or_is_left_out_and_never_lies(
    small: tuple[Path, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory, where: float, value: int
) -> None:
    path, expected = small
    copy = tmp_path_factory.mktemp("damage") / "store"
    shutil.copytree(path, copy)
    end = expected[-1]["physical_offset"] + expected[-1]["size"]
    logs = sorted((copy / "commitlog").iterdir())
    at = int(where * end)
    log = [file for file in logs if int(file.name) <= at][-1]
    data = bytearray(log.read_bytes())
    data[at - int(log.name)] ^= value
    log.write_bytes(data)
    bodies = {row["physical_offset"]: row["body"] for row in expected}
    with StoreReader(copy) as reader:
        first, last = reader.readable_range()
        g = gather(["physical_offset", "body", "crc_ok"], check_crc=True, bad="mark")
        run = LogColumns(reader, g, first, last, skip_damage=True, skip_lost=True)
        found = rows_of(run)
        good = {row["physical_offset"]: row["body"] for row in found if row["crc_ok"]}
        assert good.items() <= bodies.items()
        hit = [row for row in expected if row["physical_offset"] <= at < row["physical_offset"] + row["size"]]
        assert len(bodies) - len(good) <= len(hit) + sum(place >= last for place in bodies)
        assert len(found) + len(run.damage) >= len([place for place in bodies if place < last])
        strict = LogColumns(reader, gather(["body"], check_crc=True), first, last, skip_damage=False, skip_lost=False)
        damage: CorruptFile | None = None
        try:
            assert [row["body"] for row in rows_of(strict)] == [body for place, body in bodies.items() if place < last]
        except CorruptFile as error:
            damage = error
        except DataLoss:
            assert hit == []  # the mark at the end of a file
        assert damage is None or (damage.offset is not None and damage.offset <= at)
        for q in reader.queues():
            try:
                for row in rows_of(reader.queue_columns(q.topic, q.queue_id, columns=["physical_offset", "body"])):
                    assert bodies[row["physical_offset"]] == row["body"]
            except CorruptFile:
                pass


def test_checksums_stop_skip_or_mark(small: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, expected = small
    shutil.copytree(path, tmp_path / "store")
    victim = expected[25]
    log = [f for f in sorted((tmp_path / "store" / "commitlog").iterdir()) if int(f.name) <= victim["physical_offset"]][
        -1
    ]
    data = bytearray(log.read_bytes())
    at = data.index(victim["body"], victim["physical_offset"] - int(log.name))
    data[at] ^= 1
    log.write_bytes(data)
    places = [row["physical_offset"] for row in expected]
    with StoreReader(tmp_path / "store") as reader:
        unchecked = rows_of(scan(reader, gather(["physical_offset"])))
        assert [row["physical_offset"] for row in unchecked] == places
        with pytest.raises(CorruptFile) as caught:
            rows_of(scan(reader, gather(["size"], check_crc=True)))
        assert (caught.value.path, caught.value.offset) == (str(log), victim["physical_offset"])
        run = scan(reader, gather(["physical_offset"], check_crc=True, bad="skip"))
        assert [row["physical_offset"] for row in rows_of(run)] == [p for p in places if p != victim["physical_offset"]]
        assert run.skipped_records == 1
        marked = rows_of(scan(reader, gather(["physical_offset", "crc_ok"], check_crc=True, bad="mark")))
        assert [row["physical_offset"] for row in marked if not row["crc_ok"]] == [victim["physical_offset"]]
        assert len(marked) == len(places)
        with pytest.raises(CorruptFile):
            rows_of(reader.queue_columns(victim["topic"], victim["queue_id"]))


def test_a_truncated_or_removed_file_is_a_loss(small: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, expected = small
    places = [row["physical_offset"] for row in expected]
    for number, cut in ((1, 700), (1, None), (0, 8)):
        copy = tmp_path / f"{number}-{cut}"
        shutil.copytree(path, copy)
        logs = sorted((copy / "commitlog").iterdir())
        assert len(logs) > 2
        begin, end = int(logs[number].name), int(logs[number + 1].name)
        with StoreReader(copy) as reader:
            first, last = reader.readable_range()
            if cut is None:
                logs[number].unlink()
            else:
                data = logs[number].read_bytes()
                logs[number].write_bytes(data[:cut])
            strict = LogColumns(reader, gather(["body"]), first, last, skip_damage=False, skip_lost=False)
            with pytest.raises((DataLoss, CorruptFile)):
                rows_of(strict)
            lossy = LogColumns(reader, gather(["physical_offset"]), first, last, skip_damage=True, skip_lost=True)
            found = [row["physical_offset"] for row in rows_of(lossy)]
            kept = begin + (cut or 0)
            sizes = {row["physical_offset"]: row["size"] for row in expected}
            assert found == [p for p in places if p >= end or p + sizes[p] <= kept]
            assert lossy.lost


def test_units_that_point_elsewhere_are_not_believed(small: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, expected = small
    other = next(row for row in expected if row["topic"] == "T0")
    wrong = [
        (1 << 62, 200),
        (other["physical_offset"], other["size"]),
        (expected[3]["physical_offset"], 1 << 30),
        (expected[3]["physical_offset"] + 1, 150),
        (expected[3]["physical_offset"], 95),
        (-5, 100),
    ]
    for number, (physical, size) in enumerate(wrong):
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        queue = sorted((copy / "consumequeue" / "T1" / "1").iterdir())[0]
        data = bytearray(queue.read_bytes())
        struct.pack_into(">qi", data, 40, physical, size)
        queue.write_bytes(data)
        with StoreReader(copy) as reader, pytest.raises((CorruptFile, DataLoss, OffsetError)):
            rows_of(reader.queue_columns("T1", 1, 0, 5))


def test_wrong_arguments_are_refused(small: tuple[Path, list[dict[str, Any]]]) -> None:
    for columns in ([], [("nothing", "x", False)], [("crc_ok", "c", False)], [("size", "s", False)] * 65):
        with pytest.raises(UsageError):
            Gather(columns)
    with pytest.raises(UsageError, match="bad"):
        gather(["size"], bad="ignore")
    with pytest.raises(UsageError, match="tags"):
        gather(["size"], tags=[str(i) for i in range(65)])
    with pytest.raises(UsageError, match="batch_bytes"):
        gather(["size"], batch_bytes=0)
    with StoreReader(small[0]) as reader:
        with pytest.raises(OffsetError):
            reader.scan_columns(-1)
        for arguments in (("T0", 9), ("T0", 0, 0, 999), ("T0", 0, 3, 2)):
            with pytest.raises(OffsetError):
                reader.queue_columns(*arguments)
