"""Bodies that hold what looks like records of another topic, at just the physical offsets that they get: no reader may
begin at one, wherever it is told to begin, divide, look, or go on behind damage.

What a producer can know (offsets, checksums, the format) is what these bodies are made of.
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast import StoreReader
from mqfast.errors import CorruptFile, DataLoss, OffsetError
from mqfast.store.reader.column_scan import LogColumns
from mqfast.store.reader.gather import Gather

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from forged import HEAD, Forged, chain, forge, record


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Forged:
    return forge(tmp_path_factory.mktemp("forged") / "store")


@pytest.fixture(params=["all queues", "no queues", "other queues"])
def store(request: pytest.FixtureRequest, made: Forged, tmp_path: Path) -> Forged:
    """The store as it is, without its queues, and without those that know the stretch."""
    shutil.copytree(made.path, tmp_path / "store")
    for directory in (tmp_path / "store" / "consumequeue").iterdir():
        if request.param == "no queues" or (request.param == "other queues" and directory.name == "guest"):
            shutil.rmtree(directory)
    return made._replace(path=tmp_path / "store")


def begin_at(starts: list[int], wanted: int, end: int) -> int:
    return min((start for start in starts if start >= wanted), default=end)


def spread(forged: Forged) -> Iterator[int]:
    """Places of all kinds: true ones, forged ones, and those beside them."""
    for place in [*forged.true, *forged.false[:: max(1, len(forged.false) // 60)]]:
        yield from (place, place + 1, place + 4)


def test_the_log_is_divided_where_records_begin(store: Forged) -> None:
    with StoreReader(store.path) as reader:
        for wanted in spread(store):
            assert reader.record_boundary(wanted, store.end) == begin_at(store.true, wanted, store.end)
        wanted_all = sorted(spread(store))
        found = reader.record_boundaries(wanted_all, store.end)
        assert found == [begin_at(store.true, wanted, store.end) for wanted in wanted_all]
        assert set(found) <= {*store.true, store.end}


def test_a_record_is_not_looked_up_in_a_body(store: Forged) -> None:
    with StoreReader(store.path) as reader:
        assert [reader.get_by_offset(place).physical_offset for place in store.true] == store.true
        for place in store.false[::50]:
            with pytest.raises(OffsetError, match="expected the beginning of a record"):
                reader.get_by_offset(place)
            with pytest.raises(OffsetError, match="expected the beginning of a record"):
                reader.get_by_offset(mqfast.message.encode_message_id("127.0.0.1:10911", place))


@pytest.mark.parametrize("dispatch", ["inline", "background"])
def test_nor_in_an_open_store(made: Forged, tmp_path: Path, dispatch: str) -> None:
    shutil.copytree(made.path, tmp_path / "store")
    with mqfast.open(tmp_path / "store", max_hash_slot_num=64, max_index_num=500, dispatch=dispatch) as store:
        body, places = chain(store.max_physical_offset, 5000, 0)
        placed = store.put("guest", body)  # perhaps not dispatched yet
        assert placed.physical_offset == places[0] - HEAD
        for place in (*made.false[::50], *places):
            with pytest.raises(OffsetError, match="expected the beginning of a record"):
                store.get_by_offset(place)
        true = [*made.true, placed.physical_offset]
        assert [store.get_by_offset(place).physical_offset for place in true] == true
        assert bytes(store.get_by_offset(placed.message_id).body) == body


def test_no_reader_begins_inside_a_body(store: Forged) -> None:
    with StoreReader(store.path) as reader:
        for place in store.false[::50]:
            for begin in (
                lambda place=place: list(reader.scan(place)),
                lambda place=place: list(reader.scan_columns(place, columns=["topic"])),
                lambda place=place: reader.tail(from_offset=place),
            ):
                with pytest.raises(OffsetError, match="expected the beginning of a record"):
                    begin()
        for place in store.true[::7]:
            assert [m.physical_offset for m in reader.scan(place)] == [true for true in store.true if true >= place]
            with reader.tail(from_offset=place) as tail:
                assert tail.poll(1)[0].physical_offset == place
        assert list(reader.scan(store.end)) == []
        reader.tail(from_offset=store.end).close()


@pytest.mark.parametrize("with_queues", [True, False])
def test_what_skips_damage_does_not_go_on_in_a_body(made: Forged, tmp_path: Path, with_queues: bool) -> None:
    shutil.copytree(made.path, tmp_path / "store")
    damaged = made.carriers[1::3]
    for place in damaged:
        log = max(file for file in (tmp_path / "store" / "commitlog").iterdir() if int(file.name) <= place)
        with log.open("r+b") as file:
            file.seek(place - int(log.name) + 2)
            file.write(b"\xff")  # of the length
    if not with_queues:
        shutil.rmtree(tmp_path / "store" / "consumequeue")
    with StoreReader(tmp_path / "store") as reader:
        gather = Gather(
            [("physical_offset", "p", False)], batch_bytes=1 << 20, batch_rows=1000, check_crc=True, queued_only=False
        )
        run = LogColumns(reader, gather, 0, made.end, skip_damage=True, skip_lost=True)
        pa = pytest.importorskip("pyarrow")
        seen = [row["p"] for batch in run for row in pa.record_batch(batch).to_pylist()]
        if with_queues:
            assert seen == [place for place in made.true if place not in damaged]
            assert [place for place, _ in run.damage] == damaged
            for place in spread(made):
                assert reader.record_boundary(place, made.end) in {*made.true, made.end}
        else:  # then only the next file is known to begin with a record
            assert set(seen) < set(made.true)
        for place in made.false[::50]:
            with pytest.raises(OffsetError):
                reader.get_by_offset(place)
            with pytest.raises((OffsetError, CorruptFile)):
                list(reader.scan(place))


def test_an_entry_of_the_index_that_outlived_its_record(tmp_path: Path) -> None:
    """A power loss takes the end of the log, and leaves an entry of the index file that points there."""
    settings: dict[str, Any] = {
        "mapped_file_bytes_commit_log": 1 << 20, "mapped_file_bytes_consume_queue": 2000,
        "max_hash_slot_num": 64, "max_index_num": 500,
    }  # fmt: skip
    with mqfast.open(tmp_path / "lost", **settings) as store:
        store.put("payments", b"real")
        at = store.put("x", b".").physical_offset
        place = store.put("payments", b"gone", keys="K").physical_offset
    with mqfast.open(tmp_path / "store", **settings) as store:
        store.put("payments", b"real")
        forged = record(place, "payments", b"FORGED", 0)[:-2] + b"\0\x06KEYS\1K"
        body = b"." * (place - at - HEAD) + struct.pack(">i", len(forged)) + forged[4:]
        assert store.put("guest", body).physical_offset == at
    shutil.rmtree(tmp_path / "store" / "index", ignore_errors=True)
    shutil.copytree(tmp_path / "lost" / "index", tmp_path / "store" / "index")
    with StoreReader(tmp_path / "store") as reader:
        assert reader.query("payments", "K") == []


def test_record_boundaries_read_few_of_thousands_of_queues(tmp_path: Path) -> None:
    """A boundary costs a bounded number of looks at queues; the walk from what they know does the rest."""
    forged = forge(tmp_path / "store", carriers=3, queues=600, mapped_file_bytes_commit_log=4 << 20)
    with StoreReader(tmp_path / "store") as reader:
        wanted = sorted(spread(forged._replace(true=forged.true[::100])))
        assert reader.record_boundaries(wanted, forged.end) == [begin_at(forged.true, w, forged.end) for w in wanted]


def test_a_task_that_was_told_to_begin_in_a_body(made: Forged) -> None:
    """The offsets of an old checkpoint beside another store, or what somebody wrote into one."""
    pytest.importorskip("pyarrow")
    from mqfast.spark.backend import ReadSettings
    from mqfast.spark.local.local_backend import LocalBackend
    from mqfast.spark.plan import ScanRange
    from mqfast.spark.schema import MESSAGES

    access = LocalBackend(str(made.path))
    columns = [column for column in MESSAGES if column.name == "topic"]
    try:
        with pytest.raises(DataLoss, match="no record begins"):
            list(access.scan(ScanRange(made.false[3], made.end), columns, ReadSettings()))
        rows = sum(b.num_rows for b in access.scan(ScanRange(made.true[3], made.end), columns, ReadSettings()))
        assert rows == len(made.true) - 3
    finally:
        access.close()
