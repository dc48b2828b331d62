"""Traps 15 to 28: consume queues and the index.

Room: tests/traps. Where a trap is a bug of RocketMQ the test says what we do instead. Formats:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import copy_of, golden_cases
from golden_checks import files_of, read_queue
from laboratory import bodies, lab, open_still
from reference import DELAYS_MS, FILLER_SIZE, Record, encode_properties, jhash, unit
from traps.common import (
    ENGINE,
    EVER,
    SMALL,
    T0,
    age,
    as_killed,
    clean,
    fill,
    model_of_small,
    queue_bytes,
    units_of,
)

import mqfast
from mqfast.errors import (
    CorruptFile,
)
from mqfast.store.base.os_api import OsApi


def test_trap_15_tags_are_hashed_as_java_does_and_compared_by_their_text(tmp_path: Path) -> None:
    tags = ["TagA", "标签", "\U0001f600", "polygenelubricants", "Aa", "BB", "A B"]
    with mqfast.open(tmp_path / "store", **SMALL | {"mappedFileSizeConsumeQueue": 20 * 40}) as store:
        for tag in tags:
            store.put("T", tag.encode(), tags=tag)
            store.put("T", tag.encode(), properties={"TAGS": tag})  # the other way through the put path
        assert [unit[2] for unit in units_of(store, "T")] == [jhash(tag) for tag in tags for _ in range(2)]
        assert jhash("\U0001f600") == 1772899
        assert jhash("Aa") == jhash("BB")
        for tag in tags:
            assert bodies(store, "T", tags=tag) == [tag.encode()] * 2  # RocketMQ's store lets hash twins pass
        assert bodies(store, "T", tags=" 标签 || Aa ") == ["标签".encode()] * 2 + [b"Aa"] * 2
        assert len(bodies(store, "T", tags="*")) == len(tags) * 2
    assert struct.unpack_from(">q", queue_bytes(tmp_path / "store", "T"), 12 + 6 * 20) == (-(2**31),)


def test_trap_16_tags_code_of_a_delayed_message_is_its_delivery_time(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(T0)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        for level in ("1", "18", "99", "0"):
            store.put("SCHEDULE_TOPIC_XXXX", b"", properties={"DELAY": level, "TAGS": "A"})
        store.put("T", b"", properties={"DELAY": "3", "TAGS": "A"})
        codes = [unit[2] for unit in units_of(store, "SCHEDULE_TOPIC_XXXX")]
        assert codes == [T0 + DELAYS_MS[0], T0 + DELAYS_MS[17], T0 + DELAYS_MS[17], jhash("A")]
        assert codes[0] > 1 << 40
        assert [unit[2] for unit in units_of(store, "T")] == [jhash("A")]
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    shutil.rmtree(killed / "consumequeue")
    with mqfast.open(killed, **SMALL) as store:  # recovery must know the delay levels too (4.9.7 does not)
        assert [unit[2] for unit in units_of(store, "SCHEDULE_TOPIC_XXXX")] == codes


def test_trap_17_fillers_are_no_messages(tmp_path: Path) -> None:
    """RocketMQ reports min offset 7 before and 6 after a restart, and takes fillers for the end of the log."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        store.put("Other", b"x")
        lab(store).queues.find_or_create("T", 0).next_offset = 7
        assert store.put("T", b"seven").queue_offset == 7
        assert (store.max_offset("T", 0), store.min_offset("T", 0)) == (8, 7)
        assert store.get("T", 0, 0).status.name == "OFFSET_TOO_SMALL"
    assert queue_bytes(path, "T")[:140] == unit(0, FILLER_SIZE, 0) * 7
    for _ in range(2):
        with mqfast.open(path, **SMALL) as store:
            assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (7, 8)
            assert store.get("T", 0, 0).next_offset == 7
            assert bodies(store, "T", at=7) == [b"seven"]
            assert store.offset_by_time("T", 0, 0, "LOWER") == 7
            assert store.offset_by_time("T", 0, EVER, "UPPER") == 7


def test_trap_17_a_queue_of_fillers_only_takes_new_units(tmp_path: Path) -> None:
    """The queue of that store recovered with maxPhysicOffset 2147483647, and ignored what was put after it."""
    shutil.copytree(ENGINE / "data6_L", tmp_path / "store")
    raw = queue_bytes(tmp_path / "store", "TF")
    fillers = raw.count(unit(0, FILLER_SIZE, 0))
    assert fillers
    assert raw.replace(unit(0, FILLER_SIZE, 0), b"").strip(b"\0") == b""
    settings = SMALL | {"mappedFileSizeCommitLog": 1024, "mappedFileSizeConsumeQueue": 100}
    settings |= {"maxHashSlotNum": 10, "maxIndexNum": 8}
    with mqfast.open(tmp_path / "store", **settings) as store:
        log = [store.get_by_offset(offset) for offset in record_starts(store)]
        waiting = [message for message in log if message.topic == "TF"]
        result = store.put("TF", b"new")
        found = list(read_queue(store, "TF", 0, store.min_offset("TF", 0)))
        assert bytes(found[-1].body) == b"new"
        assert found[-1].physical_offset == result.physical_offset
        assert len(found) == len(waiting) + 1


def record_starts(store: Any) -> list[int]:
    starts, at = [], store.min_physical_offset
    while at < store.max_physical_offset:
        try:
            message = store.get_by_offset(at)
        except CorruptFile:  # a blank
            at += 1024 - at % 1024
            continue
        starts.append(at)
        at += message.size
    return starts


def test_trap_18_the_place_of_a_unit_is_the_queue_offset(tmp_path: Path) -> None:
    """Records 0, 1, 5, 6: units still stand one behind the other, and what is served is where they stand."""
    model = model_of_small()
    for offset in (0, 1, 5, 6):
        model.put(Record("T", b"%d" % offset, born_timestamp=T0, store_timestamp=T0), offset)
    model.dump(tmp_path / "store")
    shutil.rmtree(tmp_path / "store/consumequeue")
    (tmp_path / "store/abort").touch()
    for _ in range(2):
        with mqfast.open(tmp_path / "store", **SMALL) as store:
            found = store.get("T", 0, 0)
            assert [(m.queue_offset, m.record_queue_offset) for m in found] == [(0, 0), (1, 1), (2, 5), (3, 6)]
            assert (found.next_offset, store.max_offset("T", 0)) == (4, 4)
            assert [bytes(m.body) for m in store.get("T", 0, 2)] == [b"5", b"6"]
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.put("T", b"next").queue_offset == 4
        assert store.get("T", 0, 4)[0].record_queue_offset == 4


@pytest.mark.parametrize("name", ["normal-clean", "batch-cq"])
def test_trap_19_dispatching_again_repeats_no_unit(tmp_path: Path, name: str) -> None:
    (case,) = golden_cases("5.3.3", (name,))
    directory = copy_of(case, tmp_path)
    before = {n: d for n, d in files_of(directory).items() if "consumequeue" in n}
    (directory / "abort").touch()
    (directory / "checkpoint").unlink()  # dispatch everything
    with mqfast.open(directory, **case.settings) as store:
        assert store.recovery.start == 0
    assert {n: d for n, d in files_of(directory).items() if "consumequeue" in n} == before


def test_trap_20_files_go_first_and_then_the_min_offset_is_corrected(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        results = fill(store, 60)
        age(tmp_path / "store", 100, only=4)
        assert clean(store) == 4
        first = next(result for result in results if result.physical_offset >= 4 * 4096)
        assert store.min_physical_offset == 4 * 4096
        assert store.min_offset("T", 0) == first.queue_offset > 20  # more than two queue files on
        assert store.get("T", 0, 0).next_offset == first.queue_offset
        assert [m.queue_offset for m in read_queue(store, "T", 0, first.queue_offset)] == list(
            range(first.queue_offset, 60)
        )
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.min_offset("T", 0) == first.queue_offset


def test_trap_21_queue_sizes_round_up_and_other_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL | {"mappedFileSizeConsumeQueue": 190}) as store:
        fill(store, 12)
    files = sorted((path / "consumequeue/T/0").iterdir())
    assert [(file.name, file.stat().st_size) for file in files] == [(f"{0:020}", 200), (f"{200:020}", 200)]
    with mqfast.open(path, **SMALL | {"mappedFileSizeConsumeQueue": 190}) as store:
        assert store.max_offset("T", 0) == 12
    for victim in (files[1], path / "commitlog" / f"{4096:020}"):
        data = victim.read_bytes()
        victim.write_bytes(data[:-20])
        with pytest.raises(CorruptFile) as caught:
            mqfast.open(path, **SMALL)
        assert caught.value.path == str(victim)
        victim.write_bytes(data)


def test_trap_22_lower_and_upper_are_not_symmetric(tmp_path: Path) -> None:
    os_api = OsApi()
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        for step in (0, 3, 24, 24, 45, 45, 66, 68):
            os_api.fix_clock(T0 + step)
            store.put("T", b"")
        asked = {
            at: [store.offset_by_time("T", 0, T0 + at, boundary) for boundary in ("LOWER", "UPPER")]
            for at in (23, 24, 25, 69, -1)
        }
        assert asked == {23: [2, 1], 24: [2, 3], 25: [4, 3], 69: [8, 7], -1: [0, 0]}
        assert store.offset_by_time("Nothing", 0, T0, "LOWER") == 0


def index_files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / "index").iterdir())]


def test_trap_23_index_entries_count_from_one(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for i in range(11):
            store.put("T", b"", keys=f"k{i}")
        assert store.max_offset("T", 0) == 11
        assert len(lab(store).index.files) == 1  # 12 entries hold 11 keys
        store.put("T", b"", keys="k11")
        assert store.max_offset("T", 0) == 12
        assert len(lab(store).index.files) == 2
        for i in range(12):
            assert [m.queue_offset for m in store.query("T", f"k{i}")] == [i]
    first, second = index_files(tmp_path / "store")
    assert [struct.unpack_from(">i", data, 36) for data in (first, second)] == [(12,), (2,)]
    assert first[40 + 16 * 4 :][:20] == bytes(20)


def test_trap_24_the_first_entry_of_a_follow_up_file_is_measured_from_the_file_before(tmp_path: Path) -> None:
    os_api, model = OsApi(), model_of_small()
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        for i in range(12):
            now = T0 + i * 5000
            os_api.fix_clock(now)
            store.put("T", b"", keys=f"k{i}")
            keys = encode_properties({"KEYS": f"k{i}"})
            model.put(Record("T", properties=keys, born_timestamp=now, store_timestamp=now))
        assert [m.queue_offset for m in store.query("T", "k11")] == [11]
        assert [m.queue_offset for m in store.query("T", "k11", begin_ms=T0 + 54000, end_ms=T0 + 70000)] == [11]
    assert model.differences(tmp_path / "store") == []
    assert struct.unpack_from(">i", index_files(tmp_path / "store")[1], 40 + 16 * 4 + 20 + 12) == (5,)


def test_trap_25_the_hash_without_a_positive_twin_is_zero(tmp_path: Path) -> None:
    assert jhash("T#wvrrqpotyhba") == jhash("T#szmqdhzposrz") == -(2**31)
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"", keys="wvrrqpotyhba")
        store.put("T", b"", keys="szmqdhzposrz")
        assert [m.queue_offset for m in store.query("T", "wvrrqpotyhba")] == [0]
        assert [m.queue_offset for m in store.query("T", "szmqdhzposrz")] == [1]
    (data,) = index_files(tmp_path / "store")
    assert struct.unpack_from(">i", data, 40) == (2,)  # slot 0 holds the newest of the chain
    assert struct.unpack_from(">i", data, 40 + 16 * 4 + 20) == (0,)


def test_trap_26_hash_twins_are_told_apart_by_the_message(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"", keys="Aa")
        store.put("T", b"", keys=["x", "BB"])
        store.put("T", b"", properties={"UNIQ_KEY": "AaAa"})
        store.put("T", b"", keys="BBBB")
        assert store.max_offset("T", 0) == 4
        assert len(lab(store).index.query("T", "Aa", 10, 0, EVER).physical_offsets) == 2
        keys = ("Aa", "BB", "AaAa", "BBBB", "AaBB", "A")
        found = {key: [m.queue_offset for m in store.query("T", key)] for key in keys}
        assert found == {"Aa": [0], "BB": [1], "AaAa": [2], "BBBB": [3], "AaBB": [], "A": []}


def test_trap_27_no_key_is_lost_by_a_crash(tmp_path: Path) -> None:
    """RocketMQ drops the newest index file and rebuilds it only from the log file where recovery starts."""
    os_api = OsApi()
    with open_still(tmp_path / "store", os_api=os_api, **SMALL | {"maxIndexNum": 100}) as store:
        for i in range(40):
            os_api.fix_clock(T0 + i * 1000)
            store.put("T", b"%03d" % i + b"x" * 400, keys=f"k{i}")
        assert store.max_offset("T", 0) == 40
        lab(store).flush_log(thorough=True)
        lab(store).flush_queues()
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    with mqfast.open(killed, **SMALL | {"maxIndexNum": 100}) as store:
        assert store.recovery.removed_index_files
        assert store.recovery.start >= 4096  # several files before it were not walked for the queues' sake
        for i in range(40):
            assert [m.queue_offset for m in store.query("T", f"k{i}")] == [i]


def test_trap_28_keys_are_indexed_under_the_topic_of_the_record(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        parked = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0", "KEYS": "k", "UNIQ_KEY": "u"}
        store.put("SCHEDULE_TOPIC_XXXX", b"parked", properties=parked)
        assert [len(store.query("SCHEDULE_TOPIC_XXXX", key)) for key in ("k", "u")] == [1, 1]
        assert [len(store.query("T", key)) for key in ("k", "u")] == [0, 0]
        store.put("T", b"delivered", properties=parked)
        assert [[bytes(m.body) for m in store.query("T", key)] for key in ("k", "u")] == [[b"delivered"]] * 2
