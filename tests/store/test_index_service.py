"""IndexService against the golden stores, and its rules for names, rolling, retiring and failing.

Room: tests. Golden stores are copied before they are opened.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, golden_cases
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import CorruptFile, StoreClosed, UsageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.index.index_file import IndexFile, key_hash
from mqfast.store.index.index_service import IndexService, infer_index_sizes

EVER = (0, 2**63 - 1)
ROLLBACK = 0xC


@dataclasses.dataclass
class Config:
    max_hash_slot_num: int = 5
    max_index_num: int = 6
    max_msgs_num_batch: int = 64
    message_index_enable: bool = True


@dataclasses.dataclass
class Checkpoint:
    index_msg_timestamp: int = 0
    flushed: list[int] = dataclasses.field(default_factory=list)

    def flush(self) -> None:
        self.flushed.append(self.index_msg_timestamp)


@pytest.fixture
def os_api() -> OsApi:
    os_api = OsApi()
    os_api.fix_clock(1_700_000_000_000)
    return os_api


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint()


@pytest.fixture
def service(os_api: OsApi, tmp_path: Path, checkpoint: Checkpoint) -> Iterator[IndexService]:
    service = IndexService(os_api, str(tmp_path / "index"), Config(), checkpoint)
    service.load()
    yield service
    service.close()


def names(service: IndexService) -> list[str]:
    return [os.path.basename(file.path) for file in service.files]


def fill(service: IndexService, records: int, first: int = 0) -> None:
    """One key each, 100 bytes and 1000 ms apart; a file takes five."""
    for i in range(first, first + records):
        service.put("T", [f"k{i}"], i * 100, 1_000_000 + i * 1000)


# --- golden stores ---------------------------------------------------------------------------------------------------


def keys_of(row: dict[str, Any]) -> list[str]:
    return [row["uniqKey"] or "", *(row["keys"] or "").split(" ")]


def dispatch(service: IndexService, case: Case) -> None:
    """What the dispatcher does with the records of the log."""
    columns = case.expected["logColumns"]
    # Releases before 5.5 leave the tags out.
    units = case.expected["messages"] if case.release >= "5.5" else []
    tags = {row["physicalOffset"]: row["properties"].get("TAGS") for row in units}
    for values in case.expected["log"]:
        if "BLANK" in values:
            continue
        row = dict(zip(columns, values, strict=True))
        if row["sysFlag"] & ROLLBACK != ROLLBACK:
            place = row["physicalOffset"]
            keys = keys_of(row) + ([f"T#{tags[place]}"] if tags.get(place) else [])
            service.put(row["topic"], keys, place, row["storeTimestamp"])


def golden_service(case: Case, directory: Path, os_api: OsApi) -> IndexService:
    settings = case.settings
    config = Config(settings["maxHashSlotNum"], settings["maxIndexNum"])
    return IndexService(
        os_api, str(directory), config, Checkpoint(case.expected["checkpointFileBefore"]["indexMsgTimestamp"])
    )


def test_golden_answers(golden_case: Case, tmp_path: Path, os_api: OsApi) -> None:
    """Every query that Java answered, after the same load and the same dispatching."""
    index = tmp_path / "index"
    if (golden_case.store / "index").is_dir():
        shutil.copytree(golden_case.store / "index", index)
    service = golden_service(golden_case, index, os_api)
    killed = golden_case.expected["abortFileBefore"]
    report = service.load(last_exit_ok=not killed)
    gone = [name.split("/")[1] for name in golden_case.expected["filesDeletedByLoad"] if name.startswith("index/")]
    assert report.destroyed == gone
    assert (report.skipped, report.damaged) == ([], [])
    if killed:
        dispatch(service, golden_case)
    asked = 0
    for topic, key, most, begin, end, expected in golden_case.expected["index"]:
        assert service.query(topic, key, most, begin, end).physical_offsets == expected, (topic, key, begin, end)
        asked += 1
    assert asked == len(golden_case.expected["index"]) > 0
    service.close()


@pytest.mark.parametrize(
    "case", [case for case in golden_cases() if not case.expected["abortFileBefore"]], ids=lambda case: str(case)
)
def test_golden_bytes(case: Case, tmp_path: Path, os_api: OsApi) -> None:
    """The keys of every record put again give Java's files, byte for byte."""
    service = golden_service(case, tmp_path / "index", os_api)
    service.load()
    dispatch(service, case)
    service.close()
    mine = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    golden = [path.read_bytes() for path in sorted((case.store / "index").iterdir())]
    assert len(mine) == len(golden)
    for number, (a, b) in enumerate(zip(mine, golden, strict=True)):
        assert a == b, f"file {number}"


def test_trap_27_after_a_crash_the_unfinished_file_goes(tmp_path: Path, os_api: OsApi) -> None:
    case = golden_cases("5.3.3", ("killed",))[0]
    shutil.copytree(case.store / "index", tmp_path / "index")
    service = golden_service(case, tmp_path / "index", os_api)
    report = service.load(last_exit_ok=False)
    assert report.destroyed == ["20261121094440329"]
    assert len(report.kept) == 3
    assert sorted(os.listdir(tmp_path / "index")) == report.kept
    service.close()


def test_trap_26_and_28_collisions_and_topics_are_the_callers_business(service: IndexService) -> None:
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    service.put("T", ["Aa"], 0, 1000)
    service.put("T", ["BB"], 100, 1000)
    service.put("SCHEDULE_TOPIC_XXXX", ["Aa"], 200, 1000)
    assert service.query("T", "Aa", 64, *EVER).physical_offsets == [100, 0]
    assert service.query("SCHEDULE_TOPIC_XXXX", "Aa", 64, *EVER).physical_offsets == [200]


# --- put, roll, query ------------------------------------------------------------------------------------------------


def test_empty_index(service: IndexService, tmp_path: Path) -> None:
    assert service.current() is None
    assert service.query("T", "k", 5, *EVER) == ([], 0, 0)
    assert service.end_offset == 0
    assert service.delete_expired(100) == []
    assert service.truncate(0) == 0
    service.flush()
    assert not (tmp_path / "index").exists()


def test_roll_over_files(service: IndexService, checkpoint: Checkpoint) -> None:
    fill(service, 12)
    assert [file.count for file in service.files] == [6, 6, 3]
    assert checkpoint.flushed == [1_004_000, 1_009_000]
    for i in range(12):
        assert service.query("T", f"k{i}", 5, *EVER).physical_offsets == [i * 100]
    assert service.query("T", "k3", 5, *EVER)[1:] == (1_011_000, 1100)
    assert service.current() is service.files[-1]
    assert service.roll() is service.files[-1], "not full: nothing is made"


def test_newest_first_and_limits(os_api: OsApi, tmp_path: Path) -> None:
    service = IndexService(os_api, str(tmp_path), Config(max_msgs_num_batch=7), Checkpoint())
    for i in range(20):
        service.put("T", ["same"], i * 100, 1_000_000 + i * 1000)
    assert service.query("T", "same", 99, *EVER).physical_offsets == [i * 100 for i in range(19, 12, -1)]
    assert service.query("T", "same", 2, *EVER).physical_offsets == [1900, 1800]
    assert service.query("T", "same", 0, *EVER).physical_offsets == []
    assert service.query("T", "same", -1, *EVER).physical_offsets == []
    # The second file begins at 1005000. Its first entry, measured from the end of the first file, seems a second
    # younger than it is.
    assert service.query("T", "same", 99, 1_006_000, 1_008_000).physical_offsets == [800, 700, 600, 500]
    assert service.query("T", "same", 99, 1_007_000, 1_008_000).physical_offsets == [800, 700]
    assert service.query("T", "same", 99, 1_020_000, 1_030_000).physical_offsets == []
    service.close()


def test_records_below_the_end_are_not_put_again(service: IndexService) -> None:
    assert service.put("T", ["a", "", "b"], 500, 1000) == 2
    assert service.put("T", ["c"], 499, 1000) == 0
    assert service.put("T", ["c"], 500, 1000) == 1
    assert service.put("T", [], 600, 1000) == 0
    assert service.end_offset == 500


def test_indexing_switched_off(os_api: OsApi, tmp_path: Path) -> None:
    service = IndexService(os_api, str(tmp_path / "index"), Config(message_index_enable=False), Checkpoint())
    assert service.put("T", ["a"], 0, 1000) == 0
    assert not (tmp_path / "index").exists()
    service.close()


def test_names_are_local_times_and_never_repeat(os_api: OsApi, tmp_path: Path) -> None:
    old = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Shanghai"
    time.tzset()
    try:
        service = IndexService(os_api, str(tmp_path / "index"), Config(), Checkpoint())
        fill(service, 11)
        os_api.fix_clock(1_600_000_000_000)  # the clock was put back
        fill(service, 5, 11)
        os_api.fix_clock(1_800_000_000_007)
        fill(service, 5, 16)
        assert names(service) == [
            "20231115061320000",
            "20231115061320001",
            "20231115061320002",
            "20231115061320003",
            "20270115160000007",
        ]
        service.close()
    finally:
        if old is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = old
        time.tzset()


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ("20271231235959999", "20280101000000000"),
        ("99980000000000000", "99980000000000001"),
        ("20279999999999999", "20280000000000000"),
    ],
)
def test_the_name_behind_a_strange_one(
    os_api: OsApi, tmp_path: Path, newest: str, expected: str, checkpoint: Checkpoint
) -> None:
    file = IndexFile.create(os_api, tmp_path / newest, 5, 6)
    for i in range(5):
        file.put(1, i, 1000)
    file.close()
    service = IndexService(os_api, str(tmp_path), Config(), checkpoint)
    service.load()
    fill(service, 1, 10)
    assert names(service) == [newest, expected]
    service.close()


def test_a_name_taken_by_something_else_is_left_alone(os_api: OsApi, tmp_path: Path) -> None:
    service = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    service.load()
    taken = tmp_path / time.strftime("%Y%m%d%H%M%S000", time.localtime(1_700_000_000))
    taken.mkdir()
    fill(service, 1)
    assert names(service) == [taken.name[:-1] + "1"]
    service.close()


def test_a_failed_roll_can_be_repeated(os_api: OsApi, tmp_path: Path) -> None:
    """The directory is a file: nothing is made, nothing is lost, and the next attempt works."""
    service = IndexService(os_api, str(tmp_path / "index"), Config(), Checkpoint())
    fill(service, 5)
    shutil.move(tmp_path / "index", tmp_path / "aside")
    (tmp_path / "index").write_text("in the way")
    for _ in range(3):
        with pytest.raises(OSError):
            fill(service, 1, 5)
    assert len(service.files) == 1
    assert service.query("T", "k4", 5, *EVER).physical_offsets == [400]
    os.unlink(tmp_path / "index")
    shutil.move(tmp_path / "aside", tmp_path / "index")
    fill(service, 1, 5)
    assert [file.count for file in service.files] == [6, 2]
    service.close()


def test_a_failed_checkpoint_does_not_make_more_files(service: IndexService, checkpoint: Checkpoint) -> None:
    def refuse() -> None:
        raise OSError("no")

    fill(service, 5)
    checkpoint.flush = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError):
        fill(service, 1, 5)
    fill(service, 1, 5)
    assert [file.count for file in service.files] == [6, 2]


# --- load ------------------------------------------------------------------------------------------------------------


def test_reopen(os_api: OsApi, tmp_path: Path) -> None:
    first = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    fill(first, 12)
    first.close()
    first.close()
    second = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    report = second.load()
    assert (len(report.kept), report.destroyed) == (3, [])
    with pytest.raises(UsageError):
        second.load()
    fill(second, 12, 0)  # dispatched again: only the last record, which may be incomplete, is put twice
    fill(second, 2, 12)
    assert [file.count for file in second.files] == [6, 6, 6]
    assert second.query("T", "k11", 5, *EVER).physical_offsets == [1100, 1100]
    second.close()


@pytest.mark.parametrize(("known", "kept"), [(0, 0), (1_004_000, 1), (1_008_999, 1), (1_009_000, 2), (1_011_000, 2)])
def test_abnormal_exit_keeps_what_the_checkpoint_knows(os_api: OsApi, tmp_path: Path, known: int, kept: int) -> None:
    first = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    fill(first, 12)
    first.close()
    service = IndexService(os_api, str(tmp_path), Config(), Checkpoint(known))
    report = service.load(last_exit_ok=False)
    assert (len(report.kept), len(report.destroyed)) == (kept, 3 - kept)
    assert len(os.listdir(tmp_path)) == kept
    fill(service, 12)
    for i in range(12):
        assert 100 * i in service.query("T", f"k{i}", 5, *EVER).physical_offsets
    service.close()


def test_load_leaves_strangers_and_clears_unfinished_files(os_api: OsApi, tmp_path: Path) -> None:
    first = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    fill(first, 2)
    first.close()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "20230101000000000").mkdir()
    (tmp_path / "20230101000000001").write_bytes(b"")
    (tmp_path / "20230101000000002.tmp").write_bytes(b"half")
    (tmp_path / "99999999999999999").write_bytes(b"a name without a later one")
    service = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    report = service.load()
    assert report.destroyed == ["20230101000000001", "20230101000000002.tmp"]
    assert report.skipped == ["20230101000000000", "99999999999999999", "notes.txt"]
    assert service.query("T", "k1", 5, *EVER).physical_offsets == [100]
    service.close()


@pytest.mark.parametrize("last_exit_ok", [True, False])
def test_trap_25_wrong_sizes_are_refused_and_destroy_nothing(os_api: OsApi, tmp_path: Path, last_exit_ok: bool) -> None:
    first = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    fill(first, 12)
    first.close()
    service = IndexService(os_api, str(tmp_path), Config(max_index_num=7), Checkpoint())
    with pytest.raises(CorruptFile, match="expected 200 bytes, found 180 bytes"):
        service.load(last_exit_ok)
    assert len(os.listdir(tmp_path)) == 3
    assert service.files == ()


def test_damage_is_reported_and_the_rest_usable(os_api: OsApi, tmp_path: Path) -> None:
    first = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    fill(first, 12)
    middle = first.files[1].path
    first.close()
    with open(middle, "r+b") as raw:
        raw.seek(36)
        raw.write((1000).to_bytes(4, "big"))
    service = IndexService(os_api, str(tmp_path), Config(), Checkpoint())
    report = service.load()
    assert len(report.damaged) == 1
    assert "1000" in report.damaged[0]
    assert middle in report.damaged[0]
    for i in range(12):
        assert service.query("T", f"k{i}", 5, *EVER).physical_offsets == [i * 100]
    service.close()


def test_index_sizes_are_inferred_from_the_files(os_api: OsApi, tmp_path: Path) -> None:
    assert infer_index_sizes(os_api, str(tmp_path / "none")) is None
    assert infer_index_sizes(os_api, str(tmp_path)) is None
    IndexFile.create(os_api, tmp_path / "20230101000000000", 5, 6).close()
    with pytest.raises(CorruptFile, match="cannot be told"):
        infer_index_sizes(os_api, str(tmp_path))
    assert infer_index_sizes(os_api, str(tmp_path), 5, 6) == (5, 6)
    file = IndexFile.create(os_api, tmp_path / "20230101000000001", 5, 6)
    file.put(1234, 100, 1000)
    file.close()
    (tmp_path / "20230101000000002").write_bytes(b"")
    assert infer_index_sizes(os_api, str(tmp_path)) == (5, 6)


# --- retire ----------------------------------------------------------------------------------------------------------


def test_delete_expired_keeps_the_newest(service: IndexService) -> None:
    fill(service, 12)
    all_names = names(service)
    assert service.delete_expired(400) == []
    assert service.delete_expired(401) == all_names[:1]
    assert service.delete_expired(10**9) == all_names[1:2]
    assert names(service) == all_names[2:]
    assert service.query("T", "k3", 5, *EVER).physical_offsets == []
    assert service.query("T", "k11", 5, *EVER).physical_offsets == [1100]


@given(st.integers(0, 1300))
def test_truncate_and_dispatch_again(tmp_path: Path, cut: int) -> None:
    os_api = OsApi()
    service = IndexService(os_api, str(tmp_path / "t"), Config(), Checkpoint())
    fill(service, 12)
    start = service.truncate(cut)
    for file in service.files:
        assert all(row[2] < cut for row in file.entries())
    survivors = -(-cut // 100)
    assert start % 100 == 0
    for i in range(start // 100, min(12, survivors)):
        service.put("T", [f"k{i}"], i * 100, 1_000_000 + i * 1000)
    for i in range(12):
        expected = {i * 100} if i * 100 < cut else set()
        assert set(service.query("T", f"k{i}", 5, *EVER).physical_offsets) == expected
    service.destroy_all()
    service.close()


def test_destroy_all_leaves_a_usable_service(service: IndexService, tmp_path: Path) -> None:
    fill(service, 12)
    service.destroy_all()
    assert os.listdir(tmp_path / "index") == []
    assert service.end_offset == 0
    fill(service, 3)
    assert service.query("T", "k2", 5, *EVER).physical_offsets == [200]


def test_closed_service_refuses(service: IndexService) -> None:
    fill(service, 7)
    service.close()
    for call in (
        lambda: service.query("T", "k1", 5, *EVER),
        lambda: service.put("T", ["k"], 10**6, 1),
        service.roll,
        service.current,
        service.load,
        service.destroy_all,
        lambda: service.delete_expired(1),
        lambda: service.truncate(1),
    ):
        with pytest.raises(StoreClosed):
            call()


def test_queries_beside_rolling_and_deleting(os_api: OsApi, tmp_path: Path) -> None:
    """What is never deleted is always found; what is deleted is found or not, and nothing breaks."""
    service = IndexService(os_api, str(tmp_path), Config(max_index_num=50), Checkpoint())
    wrong: list[object] = []
    done = threading.Event()
    newest = [0]

    def look() -> None:
        try:
            while not done.is_set():
                i = newest[0]
                if 100 * i not in service.query("T", f"k{i}", 64, *EVER).physical_offsets and newest[0] < i + 10:
                    wrong.append(i)
                service.query("T", "k0", 64, *EVER)
        except Exception as error:
            wrong.append(error)

    fill(service, 1)
    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(1, 5000):
        fill(service, 1, i)
        newest[0] = i
        if i % 500 == 0:
            service.delete_expired((i - 200) * 100)
    done.set()
    for thread in threads:
        thread.join()
    service.close()
    assert wrong == []


def test_much_to_index_finds_the_pages_of_the_slots_ready(os_api: OsApi, tmp_path: Path) -> None:
    """A recovery touches them in no order; made one by one they are most of its time."""

    def resident_pages(log_bytes: int) -> int:
        config = Config(max_hash_slot_num=1_000_000, max_index_num=10_000)
        service = IndexService(os_api, str(tmp_path / str(log_bytes)), config, Checkpoint())
        service.load()
        file = service.roll(log_bytes)
        with open(file.path, "r+b") as handle, mmap.mmap(handle.fileno(), 0) as mapped:
            pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE + 1))()
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), pages) == 0
        service.put("T", ["k"], 700, 1000)
        assert service.query("T", "k", 64, *EVER).physical_offsets == [700]
        service.close()
        return sum(page & 1 for page in pages)

    assert resident_pages(1 << 20) < 50
    assert resident_pages(1 << 30) >= 4_000_040 // mmap.PAGESIZE


def test_slots_of_a_closed_file_are_not_made(os_api: OsApi, tmp_path: Path) -> None:
    file = IndexFile.create(os_api, str(tmp_path / "20260101000000000"), 16, 100)
    file.close()
    with pytest.raises(StoreClosed):
        file.populate_slots()
