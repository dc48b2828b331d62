"""Columns of stores from which something goes while they are read: it is an error, or it is counted, and the rest is
right.

What whole stores give stands in ``test_gather.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import golden_cases
from laboratory import lab

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, DataLoss
from mqfast.store.reader.column_scan import LogColumns, QueueColumns
from mqfast.store.reader.gather import Gather
from mqfast.store.reader.store_reader import StoreReader

UNIT = 20
PER_FILE = 50  # units of a queue file


def gather(batch_bytes: int = 1, **settings: Any) -> Gather:
    # Without a body a row is small: one row of a batch is the least.
    names = ["queue_offset", "physical_offset", *(["crc_ok"] if "bad" in settings else [])]
    return Gather(
        [(name, name, False) for name in names], batch_bytes=batch_bytes, batch_rows=1 << 16, check_crc=True, **settings
    )


def along(
    reader: StoreReader,
    topic: str = "T",
    queue_id: int = 0,
    *,
    mark: bool = False,
    skip_damage: bool = False,
    skip_lost: bool = False,
) -> QueueColumns:
    first, end = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
    return reader.queue_run(
        topic,
        queue_id,
        first,
        end,
        gather(bad="mark") if mark else gather(),
        check_crc=True,
        mark=mark,
        skip_damage=skip_damage,
        skip_lost=skip_lost,
    )


def column(run: Any, name: str = "queue_offset") -> list[int]:
    import pyarrow as pa

    return [value for batch in run for value in pa.record_batch(batch).column(name).to_pylist()]


def told(run: QueueColumns) -> list[str]:
    """The losses, each up to the name of the queue."""
    return [text.split(" of queue ")[0] for text in run.lost]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages of one queue in several files of the log and of the queue."""
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=8192, mapped_file_bytes_consume_queue=PER_FILE * UNIT)
    with mqfast.open(tmp_path / "store", config=config) as opened:
        for i in range(170):
            opened.put("T", b"%03d" % i * 30)
    return tmp_path / "store"


def test_a_log_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, config=StoreConfig.tiny(mapped_file_bytes_commit_log=4 << 20)) as opened:
        ends = [placed.physical_offset + placed.size for placed in (opened.put("T", bytes(9000)) for _ in range(400))]
    log = path / "commitlog" / f"{0:020}"
    for skip in (False, True):
        with log.open("r+b") as file:
            file.truncate(4 << 20)
        with StoreReader(path) as reader:
            run = LogColumns(reader, gather(), 0, ends[-1], skip_damage=skip, skip_lost=skip)
            found = column([next(run)])
            with log.open("r+b") as file:
                file.truncate(1 << 20)
            if not skip:
                with pytest.raises(DataLoss):
                    column(run)
                continue
            found += column(run)
            # A block that was read before stays; of the rest every byte is counted.
            assert found == list(range(len(found)))
            assert 0 < len(found) < 400
            assert run.damage == [(ends[len(found) - 1], "the file has shrunk")]
            assert run.skipped_bytes == (4 << 20) - ends[len(found) - 1]
            assert len(run.lost) == 1


@pytest.mark.parametrize("relisted", [False, True])
def test_column_scan_of_units_removed_meanwhile(store: Path, relisted: bool) -> None:
    with StoreReader(store) as reader:
        strict, lossy = along(reader), along(reader, skip_lost=True)
        for start in (2, 3):
            (store / "consumequeue" / "T" / "0" / f"{start * PER_FILE * UNIT:020}").unlink()
        reader.release_files()
        if relisted:
            lab(reader).queues["T", 0].refresh()
        with pytest.raises(DataLoss, match="lost its units from offset 100 to 170"):
            column(strict)
        assert column(lossy) == list(range(100))
        assert len(lossy.lost) == 1


def test_column_scan_of_log_files_removed_meanwhile(store: Path) -> None:
    with StoreReader(store) as reader:
        starts = [start for start, _ in reader.log_starts()]
        places = column(along(reader), "physical_offset")
        strict, lossy = along(reader), along(reader, skip_lost=True)
        for start in starts[:2]:
            (store / "commitlog" / f"{start:020}").unlink()
        reader.release_files()
        gone = sum(place < starts[2] for place in places)
        assert PER_FILE < gone < 2 * PER_FILE
        with pytest.raises(DataLoss, match="messages 0 to 49 of queue"):
            column(strict)
        assert column(lossy) == list(range(gone, 170))
        assert told(lossy) == ["messages 0 to 49", f"messages 50 to {gone - 1}"]


def test_a_removed_log_is_a_loss_per_queue_file(store: Path) -> None:
    with StoreReader(store) as reader:
        run = along(reader, skip_lost=True)
        shutil.rmtree(store / "commitlog")
        reader.release_files()
        assert column(run) == []
        assert told(run) == ["messages 0 to 49", "messages 50 to 99", "messages 100 to 149", "messages 150 to 169"]


def test_a_doubtful_unit_stops_or_is_counted(store: Path) -> None:
    units = store / "consumequeue" / "T" / "0" / f"{0:020}"
    data = bytearray(units.read_bytes())
    data[7 * UNIT : 8 * UNIT] = data[3 * UNIT : 4 * UNIT]
    units.write_bytes(data)
    with StoreReader(store) as reader:
        with pytest.raises(CorruptFile, match="unit 7 of queue"):
            column(along(reader))
        run = along(reader, skip_damage=True)
        assert column(run) == [i for i in range(170) if i != 7]
        assert (run.skipped_records, [why for _, why in run.damage]) == (1, ["one that claims queue offset 3"])


# --- batch queues -----------------------------------------------------------------------------------------------------


@pytest.fixture
def batches(tmp_path: Path) -> tuple[Path, str, int]:
    """A store of Java's with batch queues; its longest one."""
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    path = Path(shutil.copytree(case.store, tmp_path / "store"))
    with StoreReader(path) as reader:
        rows = [row for row in reader.queues() if (path / "batchconsumequeue" / row.topic).is_dir()]
        longest = max(rows, key=lambda row: len(column(along(reader, row.topic, row.queue_id))))
    return path, longest.topic, longest.queue_id


def test_batches_of_a_removed_log_count_as_lost(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, config=StoreConfig.tiny(mapped_file_bytes_commit_log=8192)) as opened:
        opened.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
        placed = [opened.put("B", bytes(400)) for _ in range(60)]
    with StoreReader(path) as reader:
        starts = [start for start, _ in reader.log_starts()]
        assert len(starts) > 2
        assert column(along(reader, "B")) == list(range(60))
        strict, lossy = along(reader, "B"), along(reader, "B", skip_lost=True)
        (path / "commitlog" / f"{0:020}").unlink()
        reader.refresh()
        gone = sum(place.physical_offset < starts[1] for place in placed)
        with pytest.raises(DataLoss, match="message 0 of queue"):
            column(strict)
        assert column(lossy) == list(range(gone, 60))
        assert told(lossy) == [f"message {i}" for i in range(gone)]


def test_batches_of_removed_units_count_as_lost(batches: tuple[Path, str, int]) -> None:
    path, topic, queue_id = batches
    with StoreReader(path) as reader:
        first, end = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
        strict, lossy = along(reader, topic, queue_id), along(reader, topic, queue_id, skip_lost=True)
        for file in (path / "batchconsumequeue" / topic / str(queue_id)).iterdir():
            file.unlink()
        reader.refresh()
        with pytest.raises(DataLoss, match=f"lost its units from offset {first} to {end}"):
            column(strict)
        assert column(lossy) == []
        assert len(lossy.lost) == 1


def test_batches_whose_first_units_go(batches: tuple[Path, str, int]) -> None:
    path, topic, queue_id = batches
    with StoreReader(path) as reader:
        whole = column(along(reader, topic, queue_id))
        run = along(reader, topic, queue_id, skip_lost=True)
        (file,) = (path / "batchconsumequeue" / topic / str(queue_id)).iterdir()
        file.rename(file.with_name(f"{2 * 46:020}"))
        with (file.with_name(f"{2 * 46:020}")).open("r+b") as units:
            data = units.read()
            units.seek(0)
            units.write(data[2 * 46 :] + bytes(2 * 46))
        reader.refresh()
        assert column(run) == whole[2:]
        assert [text.split("units ")[1] for text in run.lost] == [f"from offset {whole[0]} to {whole[2]}"]


def test_a_batch_with_a_wrong_checksum_stops_is_marked_or_counted(batches: tuple[Path, str, int]) -> None:
    path, topic, queue_id = batches
    with StoreReader(path) as reader:
        whole = column(along(reader, topic, queue_id))
        place = column(along(reader, topic, queue_id), "physical_offset")[1]
        start, log = [(start, file) for start, file in reader.log_starts() if start <= place][-1]
        at = place - start + (88 if reader.get_by_offset(place).size > 200 else 0)
    data = bytearray(Path(log).read_bytes())
    data[at] ^= 1
    Path(log).write_bytes(data)
    with StoreReader(path) as reader:
        with pytest.raises(CorruptFile, match=f"unit {whole[1]} of queue"):
            column(along(reader, topic, queue_id))
        assert column(along(reader, topic, queue_id, mark=True), "crc_ok") == [i != 1 for i in range(len(whole))]
        run = along(reader, topic, queue_id, skip_damage=True)
        assert column(run) == [offset for offset in whole if offset != whole[1]]
        assert run.damage == [(place, "crc")]
