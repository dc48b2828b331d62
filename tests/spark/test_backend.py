"""What a local store answers, along the log and along queues, against Java's account of every golden store; without
Spark.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from conftest import Case, copy_of, golden_cases
from golden_rows import expected_rows, key_of

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, DataLoss, StoreNotFound
from mqfast.spark.backend import ReadSettings
from mqfast.spark.local.local_backend import LocalBackend
from mqfast.spark.options import BATCH, STREAM, parse
from mqfast.spark.plan import OffsetRange, Selection, Split, plan
from mqfast.spark.schema import VIEWS, Column
from mqfast.spark.selection import ending_offsets, select, selected_queues, starting_offsets

EVERY = tuple(column for column in VIEWS["messages"] if column.name != "crcOk")


def rows(
    access: LocalBackend, pieces: list[Split], columns: tuple[Column, ...] = EVERY, **settings: Any
) -> list[dict[str, Any]]:
    """All rows of all pieces, each piece by an access of its own, as tasks have it."""
    found: list[dict[str, Any]] = []
    for piece in pieces:
        task = LocalBackend(access.root)
        batches = [] if piece.scan is None else list(task.scan(piece.scan, columns, ReadSettings(**settings)))
        for part in piece.queues:
            batches += list(task.gather(part, columns, ReadSettings(**settings)))
        task.close()
        for batch in batches:
            found += batch.to_pylist()
    for row in found:
        if "body" in row:
            row["body"] = hashlib.sha256(row["body"]).hexdigest()
            row["properties"] = dict(row["properties"])
            for name in ("bornTimestamp", "storeTimestamp"):
                row[name] = round(row[name].timestamp() * 1000)
    return sorted(found, key=key_of) if found and "physicalOffset" in found[0] else found


def test_every_message_of_every_golden_store(golden_case: Case, tmp_path: Path) -> None:
    path = copy_of(golden_case, tmp_path)
    options = parse({"path": str(path), "includeSystemTopics": "true"}, BATCH)
    access = LocalBackend(str(path))
    snapshot = access.snapshot()
    selection = select(snapshot, options, access)
    # Java cut the log at the damage; a reader that does not repair has what lies behind it as well.
    lossy = {"verify_crc": "skip"} if golden_case.name == "torn-middle" else {"verify_crc": "fail"}
    java = expected_rows(golden_case.expected, light=False)
    for order in ("commitlog", "queue"):
        for partition_bytes in (20_000, 1 << 30):
            pieces = plan(snapshot, selection, access, order=order, partition_bytes=partition_bytes)
            found = rows(access, pieces, **lossy)
            if golden_case.name == "torn-middle":
                assert [row for row in found if row["physicalOffset"] <= java[-1]["physicalOffset"]] == java
            elif golden_case.name == "killed-no-queues" and order == "queue":
                assert found == []
            else:
                assert found == java
            if partition_bytes == 20_000 and snapshot.log_end > 60_000 and selection.ranges:
                assert len(pieces) > 2


def test_light_queues_are_read_by_name(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("lmq",))
    access = LocalBackend(str(copy_of(case, tmp_path)))
    snapshot = access.snapshot()
    selection = select(snapshot, parse({"path": access.root, "subscribePattern": ".*"}, BATCH), access)
    assert rows(access, plan(snapshot, selection, access)) == expected_rows(case.expected)


# --- a store of our own ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics of two queues, twenty messages each, one second between two messages; a group has read some."""
    path = tmp_path_factory.mktemp("access") / "store"
    with mqfast.open(path, config=StoreConfig.tiny(mapped_file_bytes_commit_log=4096)) as opened:
        now = 1_700_000_000_000
        for i in range(120):
            opened.os_api.fix_clock(now + 1000 * i)
            opened.put(f"T{i % 3}", b"%d" % i, queue_id=i // 3 % 2, tags=f"tag{i % 4}")
        opened.os_api.fix_clock(None)
        opened.flush()
        opened.consumer("readers", "T0").commit_message(opened.get("T0", 0, 6, 1)[0])
    return path


def chosen(store: Path, **given: str) -> dict[tuple[str, int], tuple[int, int]]:
    access = LocalBackend(str(store))
    snapshot = access.snapshot()
    selection = select(snapshot, parse({"path": str(store), **given}, BATCH), access)
    return {(r.topic, r.queue_id): (r.start, r.end) for r in selection.ranges}


def every(start: int, end: int, *topics: str) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic, q): (start, end) for topic in topics or ("T0", "T1", "T2") for q in (0, 1)}


def test_selection_of_queues(store: Path) -> None:
    assert chosen(store) == every(0, 20)
    assert chosen(store, subscribe="T0,T2") == every(0, 20, "T0", "T2")
    assert chosen(store, assign="T1/1") == {("T1", 1): (0, 20)}
    assert chosen(store, assign='{"T0": [1], "T2": [0]}') == {("T0", 1): (0, 20), ("T2", 0): (0, 20)}
    assert chosen(store, subscribePattern="T[12]") == every(0, 20, "T1", "T2")
    assert chosen(store, subscribePattern="nothing") == {}
    with pytest.raises(ConfigError, match="did you mean T0"):
        chosen(store, subscribe="t0x")
    with pytest.raises(ConfigError, match=r"T0/7.*did you mean T0/"):
        chosen(store, assign="T0/7")


def test_bounds_of_queues(store: Path) -> None:
    assert chosen(store, startingOffsets="latest") == {}
    assert chosen(store, startingOffsets="-5") == every(15, 20)
    assert chosen(store, startingOffsets="-500") == every(0, 20)
    assert chosen(store, endingOffsets="-5") == every(0, 15)
    assert chosen(store, startingOffsets="-10m") == {}
    json = '{"T0/1": 3, "T1": {"0": -1, "1": 19}, "*": -2}'
    found = chosen(store, startingOffsets=json)
    assert ("T1", 0) not in found  # from its end on
    assert (found["T0", 1], found["T1", 1], found["T2", 0], found["T0", 0]) == ((3, 20), (19, 20), (0, 20), (0, 20))
    partly = chosen(store, startingOffsets='{"T0/0": 5}', endingOffsets='{"T0/0": 7, "*": 2}')
    assert partly == {**every(0, 2), ("T0", 0): (5, 7)}
    assert chosen(store, startingOffsets="group", group="readers", subscribe="T0") == {
        ("T0", 0): (7, 20),
        ("T0", 1): (0, 20),
    }
    with pytest.raises(ConfigError, match="T9/0 is not among"):
        chosen(store, startingOffsets='{"T9/0": 5}')
    with pytest.raises(DataLoss, match="expected 0 to 20"):
        chosen(store, startingOffsets='{"T0/0": 21}')
    assert chosen(store, startingOffsets='{"T0/0": 21}', failOnDataLoss="false", assign="T0/0") == {}


def test_offsets_by_time(store: Path) -> None:
    moment = 1_700_000_000_000 + 60_000  # message 60: T0/0 offset 10
    assert chosen(store, startingTimestamp=str(moment)) == every(10, 20)
    assert chosen(store, endingTimestamp="2023-11-14T22:14:20Z") == every(0, 10)
    assert chosen(store, startingTimestamp=str(moment), endingTimestamp=str(moment + 1)) == {("T0", 0): (10, 11)}
    given = {"startingOffsetsByTimestamp": f'{{"T0/0": {moment}}}', "startingTimestamp": str(moment + 30_000)}
    assert chosen(store, **given)["T0", 0] == (10, 20)
    assert chosen(store, **given)["T0", 1] == (15, 20)
    assert chosen(store, endingOffsetsByTimestamp=f'{{"T0/0": {moment}}}')["T0", 0] == (0, 10)
    late = str(moment + 999_000)
    assert chosen(store, startingTimestamp=late) == {}
    with pytest.raises(ConfigError, match="no message from then on"):
        chosen(store, startingTimestamp=late, startingOffsetsByTimestampStrategy="error")


def test_streams_begin_at_the_end_by_default(store: Path) -> None:
    access = LocalBackend(str(store))
    snapshot = access.snapshot()
    options = parse({"path": str(store), "subscribe": "T0"}, STREAM)
    queues = selected_queues(snapshot, options)
    assert starting_offsets(snapshot, queues, options, access, "latest") == {("T0", 0): 20, ("T0", 1): 20}
    assert ending_offsets(snapshot, queues, options, access) == {("T0", 0): 20, ("T0", 1): 20}


def test_both_orders_read_the_same_ranges(store: Path) -> None:
    access = LocalBackend(str(store))
    snapshot = access.snapshot()
    options = parse({"path": str(store), "assign": "T0/1,T2/0", "startingOffsets": "-13", "endingOffsets": "-2"}, BATCH)
    selection = select(snapshot, options, access)
    bounds = {(r.topic, r.queue_id): (r.start, r.end) for r in selection.ranges}
    along_queues = rows(access, plan(snapshot, selection, access, order="queue"))
    along_log = rows(access, plan(snapshot, selection, access, order="commitlog", partition_bytes=1000), queues=bounds)
    assert len(along_log) == 22
    assert along_log == along_queues


def test_sizes_of_units_are_those_of_the_records(store: Path) -> None:
    access = LocalBackend(str(store))
    sizes = access.unit_sizes(OffsetRange("T1", 0, 3, 17))
    assert list(sizes) == [m.size for m in access.reader.get("T1", 0, 3, 14)]
    assert list(access.unit_sizes(OffsetRange("T1", 0, 5, 5))) == []


@pytest.mark.parametrize("name", ["normal-clean", "cq-ext", "batch-cq"])
def test_units_of_every_kind_of_queue(name: str, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", (name,))
    access = LocalBackend(str(copy_of(case, tmp_path)))
    snapshot = access.snapshot()
    options = parse(
        {"path": access.root, "view": "consumequeue", "partitionBytes": "9k", "includeSystemTopics": "true"}, BATCH
    )
    found = [
        tuple(row.values())
        for piece in access.view_pieces(snapshot, options)
        for batch in access.view_rows(piece, VIEWS["consumequeue"], options)
        for row in batch.to_pylist()
    ]
    names = ("topic", "queueId", "cqOffset", "physicalOffset", "size", "tagsCode")
    java = [tuple(row[name] for name in names) for row in case.expected["messages"]]
    assert sorted(row[:6] for row in found) == sorted(java)
    assert sum(row[6] for row in found) == sum(q.messages for q in snapshot.queues)
    for q in snapshot.queues:
        sizes = access.unit_sizes(OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset))
        assert sum(sizes) == sum(row[4] for row in java if row[:2] == (q.topic, q.queue_id))


def test_another_store_under_the_same_path_is_refused(store: Path, tmp_path: Path) -> None:
    planned = LocalBackend(str(store)).snapshot().store_id
    LocalBackend(str(store)).check(planned)
    with mqfast.open(tmp_path / "other", config=StoreConfig.tiny()) as opened:
        opened.put("T0", b"other")
    with pytest.raises(StoreNotFound, match="not the store that was planned"):
        LocalBackend(str(tmp_path / "other")).check(planned)
    with pytest.raises(StoreNotFound, match="no store here"):
        LocalBackend(str(tmp_path))
    shutil.rmtree(tmp_path / "other" / "commitlog")
    (tmp_path / "other" / "commitlog").mkdir()
    with pytest.raises(StoreNotFound):
        LocalBackend(str(tmp_path / "other")).check(planned)
    empty = LocalBackend(str(tmp_path / "other")).snapshot()
    assert (empty.log_start, empty.log_end, empty.store_id) == (0, 0, "empty")
    assert plan(empty, Selection(whole=True), LocalBackend(str(tmp_path / "other"))) == []


def test_messages_removed_between_planning_and_reading_are_a_loss(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    access = LocalBackend(str(copy))
    snapshot = access.snapshot()
    selection = select(snapshot, parse({"path": str(copy)}, BATCH), access)
    whole = rows(access, plan(snapshot, selection, access))
    logs = sorted((copy / "commitlog").iterdir())
    assert len(logs) >= 4
    for log in logs[:2]:
        log.unlink()
    begin = int(logs[2].name)
    for order in ("commitlog", "queue"):
        pieces = (
            plan(snapshot, selection, access, order=order, partition_bytes=1 << 30)
            if order == "commitlog"
            else [Split(queues=selection.ranges)]
        )
        with pytest.raises(DataLoss):
            rows(access, pieces)
        found = rows(access, pieces, fail_on_data_loss=False)
        assert found == [row for row in whole if row["physicalOffset"] >= begin]


def test_a_writer_at_work_does_not_change_what_was_planned(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig.tiny(mapped_file_bytes_commit_log=4096)) as opened:
        for i in range(30):
            opened.put("T", b"%d" % i)
        access = LocalBackend(str(tmp_path / "store"))
        snapshot = access.snapshot()
        selection = select(snapshot, parse({"path": access.root}, BATCH), access)
        pieces = plan(snapshot, selection, access, partition_bytes=2000)
        first = rows(access, pieces)
        for i in range(30, 60):
            opened.put("T", b"%d" % i)
        assert rows(access, pieces) == first
        assert [row["queueOffset"] for row in first] == list(range(30))
        again = access.snapshot()
        assert again.log_end > snapshot.log_end
        assert again.store_id != ""
