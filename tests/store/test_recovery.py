"""Damage in the middle of the log: what a recovery cuts and holds whole records is kept, named and can be refused.

Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, open_still
from store.small_store import (
    still,
)

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, DiskFull
from mqfast.store.check.kept import kept_folders
from mqfast.store.reader.scan import PreadFile

LOG_FILE = 8192
SIZES: dict[str, Any] = {"mapped_file_bytes_commit_log": LOG_FILE, "mapped_file_bytes_consume_queue": 2000}


def killed(tmp_path: Path, messages: int = 60, **settings: Any) -> tuple[Path, list[tuple[int, int]]]:
    """A store as a killed writer leaves it, and (physical offset, size) of its messages."""
    path = tmp_path / "killed"
    with still(tmp_path / "live", **SIZES, **settings) as store:
        results = [
            store.put("T", b"body %d " % i * 20, i % 2, properties={"n": str(i)}, born_timestamp=1000 + i)
            for i in range(messages)
        ]
        ends = [result.physical_offset for result in results]
        places = [(at, store.get_by_offset(at).size) for at in ends]
        shutil.copytree(tmp_path / "live", path)
    return path, places


def flip(path: Path, physical: int) -> None:
    """Change one bit of the log."""
    file = path / "commitlog" / f"{physical - physical % LOG_FILE:020d}"
    with open(file, "r+b") as opened:
        opened.seek(physical % LOG_FILE)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))


def tree(path: Path) -> dict[str, str]:
    """Every file below a directory, and what it holds."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def reopened(path: Path, **settings: Any) -> mqfast.MessageStore:
    return open_still(path, config=StoreConfig.tiny(**{**SIZES, **settings}))


BODY = 100  # behind the head of a record, in its body


@pytest.mark.parametrize("at", [0, 4, 28, BODY], ids=["size", "magic", "place", "body"])
@pytest.mark.parametrize("number", [0, 5, 30])
def test_whole_records_behind_damage_are_kept(
    tmp_path: Path, at: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, places = killed(tmp_path)
    flip(path, places[number][0] + at)
    with reopened(path) as store:
        report = store.recovery
        assert report.end == places[number][0]
        assert report.records == number
        assert report.kept_records == 59 - number
        assert report.kept_by_scan == 0
        assert report.damaged_ranges == [(places[number][0], sum(places[number]))]
        assert sum(records for _, _, records, _ in report.kept_ranges) == 59 - number
        assert report.kept_ranges[0][0] == places[number + 1][0]
        (said,) = [text for text in store.stats()["warnings"] if "whole records" in text]
        assert report.kept_in in said
        assert f"{59 - number} whole records" in said
        assert store.max_offset("T", 0) + store.max_offset("T", 1) == number
    assert [record.levelname for record in caplog.records if "whole records" in record.getMessage()] == ["WARNING"]
    (folder,) = kept_folders(store.os_api, str(path))
    assert folder.path == report.kept_in
    assert os.path.dirname(folder.path) == str(path)
    found = []
    for start, file in folder.files:
        opened = PreadFile(store.os_api, file, start)
        found += [place for place, size in places if start <= place and place + size <= opened.end
                  and not isinstance(opened.record(place, size), str)]  # fmt: skip
    assert sorted(found) == [place for place, _ in places[number + 1 :]]
    with reopened(path) as store:
        assert store.recovery.kept_records == 0
        assert not [text for text in store.stats()["warnings"] if "whole records" in text]


def test_a_clean_store_with_damage_in_the_last_file_keeps_whole_records(tmp_path: Path) -> None:
    with still(tmp_path / "s", **SIZES) as store:
        places = [store.put("T", b"x" * 100).physical_offset for _ in range(20)]
    flip(tmp_path / "s", places[7] + BODY)
    with reopened(tmp_path / "s") as store:
        assert store.recovery.clean
        assert store.recovery.end == places[7]
        assert store.recovery.kept_records == 12


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    path, places = killed(tmp_path, 20)
    last, size = places[-1]
    with open(path / "commitlog" / f"{last - last % LOG_FILE:020d}", "r+b") as file:
        file.seek(last % LOG_FILE + size // 2)
        file.write(bytes(size - size // 2))
    with reopened(path, on_damage="stop") as store:
        assert store.recovery.end == last
        assert store.recovery.kept_in == ""
        assert store.stats()["warnings"] == []
    assert kept_folders(store.os_api, str(path)) == []


@pytest.mark.parametrize("clean", [False, True])
def test_on_damage_stop_changes_nothing(tmp_path: Path, clean: bool) -> None:
    path, places = killed(tmp_path)
    if clean:
        reopened(path).close()
    flip(path, places[-6][0] + BODY)
    before = tree(path)
    with pytest.raises(CorruptFile, match="5 whole records stand behind") as raised:
        mqfast.open(path, on_damage="stop", **SIZES)
    assert raised.value.offset == places[-6][0]
    assert raised.value.path.endswith(f"{places[-6][0] - places[-6][0] % LOG_FILE:020d}")
    assert tree(path) == before
    with mqfast.open(path, **SIZES) as store:
        assert store.recovery.kept_records == 5


def test_on_damage_stop_opens_an_undamaged_store(tmp_path: Path) -> None:
    path, _ = killed(tmp_path)
    with mqfast.open(path, on_damage="stop", **SIZES) as store:
        assert store.recovery.records == 60
    with mqfast.open(path, on_damage="stop") as store:
        assert len(bodies(store)) == 30
    mqfast.open(tmp_path / "new", on_damage="stop", **SIZES).close()


def test_recovery_without_disk_space_for_kept_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, places = killed(tmp_path)
    flip(path, places[3][0] + BODY)
    log = tree(path / "commitlog")

    def full(*_: Any, **__: Any) -> None:
        raise DiskFull(errno.ENOSPC, "write failed: No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("mqfast.store.check.kept.KeptRecordsWriter.write_list", full)
        with pytest.raises(DiskFull, match="nothing was cut"):
            reopened(path)
    assert tree(path / "commitlog") == log
    with reopened(path) as store:
        assert store.recovery.kept_records == 56


def test_a_body_that_looks_like_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    """The damage is in the head of the record whose body holds records made to measure."""
    with still(tmp_path / "live", **SIZES) as store:
        first = store.put("T", b"first")
        inner = bytearray(bytes(store.get_by_offset(first.physical_offset)))
        head = store.get_by_offset(first.physical_offset)
        after = first.physical_offset + head.size
        planted = after + 88  # where the body of the next record begins
        inner[28:36] = planted.to_bytes(8, "big")
        carrier = store.put("T", bytes(inner))
        assert bytes(store.get_by_offset(carrier.physical_offset).to_bytes())[88:].startswith(bytes(inner)[:50])
        rest = [store.put("T", b"rest %d" % i) for i in range(5)]
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    flip(tmp_path / "killed", carrier.physical_offset)  # its size
    with reopened(tmp_path / "killed") as store:
        assert store.recovery.end == carrier.physical_offset
        assert store.recovery.kept_records == 5
        assert store.recovery.kept_ranges[0][0] == rest[0].physical_offset
        assert store.recovery.kept_by_scan == 0


def test_without_units_records_are_found_by_scan_and_reported(tmp_path: Path) -> None:
    path, places = killed(tmp_path)
    shutil.rmtree(path / "consumequeue")
    flip(path, places[5][0])  # its size: no length leads on
    with reopened(path) as store:
        assert store.recovery.kept_records == 54
        in_file = [place for place, _ in places[6:] if place < LOG_FILE]
        assert store.recovery.kept_by_scan == len(in_file)
    listed = json.loads((Path(store.recovery.kept_in) / "kept.json").read_text())
    assert listed["cutAt"] == places[5][0]
    assert listed["records"][0][3] is True


def test_records_are_counted_once(tmp_path: Path) -> None:
    with still(tmp_path / "live", **SIZES) as store:
        for i in range(100):
            store.put("T", b"x" * 200, keys=f"k{i}")
        assert store.max_offset("T", 0) == 100
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "consumequeue")
    with reopened(tmp_path / "killed") as store:
        assert store.recovery.records == 100
        assert len(bodies(store)) == 100
    shutil.rmtree(tmp_path / "killed" / "consumequeue")
    with reopened(tmp_path / "killed") as store:
        assert store.recovery.records == 100


def test_expired_queue_files_go_at_open(tmp_path: Path) -> None:
    """A kill between the deletion of a log file and of the queue files behind it."""
    settings = {**SIZES, "mapped_file_bytes_consume_queue": 200}
    with still(tmp_path / "s", **settings) as store:
        for _ in range(100):
            store.put("T", b"x" * 200)
    os.unlink(tmp_path / "s" / "commitlog" / ("0" * 20))
    with reopened(tmp_path / "s", **settings) as store:
        low = store.min_offset("T", 0)
        assert low > 10
    first = min(int(file.name) for file in (tmp_path / "s" / "consumequeue" / "T" / "0").iterdir())
    assert first // 20 <= low < first // 20 + 10


def told(store: Any) -> list[tuple[Any, ...]]:
    """What each message is, without its place and store time."""
    found = []
    for topic, queue_id, low, high in store.queues():
        at = low
        while at < high:
            for m in store.get(topic, queue_id, at):
                found.append(
                    (
                        m.topic,
                        m.queue_id,
                        bytes(m.body),
                        m.properties,
                        m.flag,
                        m.sys_flag,
                        m.born_timestamp,
                        m.born_host,
                    )
                )
                at += 1
    return sorted(found, key=repr)


def varied(tmp_path: Path) -> tuple[Path, list[int], list[tuple[Any, ...]]]:
    """A killed store of many kinds of messages: its path, their places, and what they are."""
    settings = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}
    with still(tmp_path / "live", **settings) as store:
        store.topic_table.ensure("units", 1, attributes={"queue.type": "BatchCQ"})
        store.topic_table.persist()
        places = []
        for i in range(40):
            place = store.put(
                f"T{i % 3}", b"body %d" % i * 9, i % 2, tags=f"tag{i}", keys=f"k{i} l{i}", properties={"n": str(i)},
                flag=i, born_timestamp=5000 + i, born_host="1.2.3.4:5" if i % 2 else "[::1]:7", reconsume_times=i,
            ).physical_offset  # fmt: skip
            places.append(place)
        store.put("T0", b"light", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
        store.put("T0", b"half", sys_flag=4)
        store.put_batch([mqfast.Message("units", b"unit")] * 3)
        messages = told(store)
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    return tmp_path / "killed", places, messages


def test_salvage_puts_everything_back_once(tmp_path: Path) -> None:
    path, places, messages = varied(tmp_path)
    settings = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}
    config = StoreConfig.tiny(**settings)
    flip(path, places[9] + BODY)
    with reopened(path, **settings) as store:
        assert store.recovery.kept_records == 35
        before = told(store)
    dry = mqfast.repair(path, dry_run=True, salvage=True, config=config)
    assert dry.salvaged == 35
    report = mqfast.verify(path, config=config)
    assert report.state == "clean"
    assert "35 whole records, not put back" in str(report)
    done = mqfast.repair(path, salvage=True, config=config)
    assert (done.salvaged, done.salvaged_by_scan) == (35, 0)
    with reopened(path, **settings) as store:
        after = told(store)
        lost = [message for message in messages if message not in after]
        assert [message[2] for message in lost] == [b"body 9" * 9]
        assert len(after) == len(messages) - 1
        assert [row for row in after if row in before] == before
        assert [m.physical_offset >= done.before.log_range[1] for m in store.query("T1", "k10")] == [True]
        assert store.max_offset("units", 0) == 3
        assert store.max_offset("%LMQ%a", 0) == store.max_offset("%LMQ%b", 0) == 1
    again = mqfast.repair(path, salvage=True, config=config)
    assert again.salvaged == 0
    with reopened(path, **settings) as store:
        assert told(store) == after
    report = mqfast.verify(path, config=config)
    assert report.state == "clean"
    assert "put back already" in str(report)


@pytest.mark.parametrize("stop_after", [0, 1, 20])
def test_a_salvage_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int) -> None:
    path, places = killed(tmp_path)
    flip(path, places[9][0] + BODY)
    put = mqfast.MessageStore.put
    done = 0

    def some(store: Any, *args: Any, **options: Any) -> Any:
        nonlocal done
        if done == stop_after:
            raise DiskFull(errno.ENOSPC, "no room", str(path))
        done += 1
        return put(store, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(mqfast.MessageStore, "put", some)
        with pytest.raises(DiskFull):
            mqfast.repair(path, salvage=True, config=StoreConfig.tiny(**SIZES))
    assert mqfast.repair(path, salvage=True, config=StoreConfig.tiny(**SIZES)).salvaged == 50 - stop_after
    with reopened(path) as store:
        numbers = [m.properties["n"] for queue_id in (0, 1) for m in store.get("T", queue_id, 0, 100)]
        assert sorted(map(int, numbers)) == [i for i in range(60) if i != 9]


def test_what_was_kept_twice_is_put_back_once(tmp_path: Path) -> None:
    """A recovery that was killed between the copy and the cut."""
    path, places = killed(tmp_path)
    flip(path, places[9][0] + BODY)
    shutil.copytree(path, tmp_path / "again")
    with reopened(path) as store:
        folder = Path(store.recovery.kept_in)
    shutil.copytree(folder, tmp_path / "again" / "repair-20200101-000000")
    assert mqfast.repair(tmp_path / "again", salvage=True, config=StoreConfig.tiny(**SIZES)).salvaged == 50
    with reopened(tmp_path / "again") as store:
        assert store.max_offset("T", 0) + store.max_offset("T", 1) == 59
    # ... or before anything was cut, and the log was mended since.
    other = tmp_path / "live"
    shutil.copytree(folder, other / "repair-20200101-000000")
    assert mqfast.repair(other, salvage=True, config=StoreConfig.tiny(**SIZES)).salvaged == 0


def test_units_are_put_again_behind_damage_that_no_recovery_cuts(tmp_path: Path) -> None:
    """It lies in a file before those that a recovery walks with checksums."""
    with still(tmp_path / "s", **SIZES) as store:
        results = [store.put(f"T{i % 2}", b"%d " % i + b"x" * 200) for i in range(200)]
    damaged = results[11].physical_offset
    assert results[-1].physical_offset > 3 * LOG_FILE
    shutil.rmtree(tmp_path / "s/consumequeue/T0")
    flip(tmp_path / "s", damaged)  # the size of a record of T1, whose units are there
    with reopened(tmp_path / "s") as store:
        found = [int(body.split()[0]) for body in bodies(store, "T0")]
        assert found == list(range(0, 200, 2))
        warnings = store.stats()["warnings"]
    assert any(f"damaged at physical offset {damaged}" in text for text in warnings)
    assert any("T0/0" in text for text in warnings)


@pytest.mark.parametrize("end", ["nothing", "blank", "record"])
def test_without_units_what_a_body_holds_is_no_record(tmp_path: Path, end: str) -> None:
    """A body with a record at just its place, and behind it what ends a file: only the real records are found."""
    with still(tmp_path / "live", **SIZES) as store:
        first = store.get_by_offset(store.put("T", b"first").physical_offset)
        planted = first.size + 88
        inner = bytearray(first.to_bytes())
        inner[28:36] = planted.to_bytes(8, "big")
        if end == "blank":
            inner += (LOG_FILE - planted - first.size).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        elif end == "record":
            second = bytearray(first.to_bytes())
            second[28:36] = (planted + first.size).to_bytes(8, "big")
            inner += second
        carrier = store.put("T", bytes(inner) + b"end")
        rest = [store.put("T", b"rest %d" % i) for i in range(5)]
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed/consumequeue", ignore_errors=True)
    flip(tmp_path / "killed", carrier.physical_offset)
    report = mqfast.verify(tmp_path / "killed")
    assert report.counts["records"] == 6
    with reopened(tmp_path / "killed") as store:
        assert store.recovery.kept_records == store.recovery.kept_by_scan == 5
        assert store.recovery.kept_ranges[0][0] == rest[0].physical_offset
    mqfast.repair(tmp_path / "killed", salvage=True, config=StoreConfig.tiny(**SIZES))
    with reopened(tmp_path / "killed") as store:
        assert bodies(store) == [b"first", *(b"rest %d" % i for i in range(5))]


def test_a_full_disk_cuts_nothing(tmp_path: Path, tmpfs: Callable[[str], Path]) -> None:
    path, places = killed(tmp_path)
    flip(path, places[3][0] + BODY)
    disk = tmpfs("2m")
    shutil.copytree(path, disk / "s")
    with open(disk / "others", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(DiskFull, match="nothing was cut") as raised:
        reopened(disk / "s")
    assert raised.value.wanted_bytes is not None
    assert str(disk / "s") in str(raised.value.filename)
    assert tree(disk / "s" / "commitlog") == tree(path / "commitlog")
    (disk / "others").unlink()
    with reopened(disk / "s") as store:
        assert store.recovery.end == places[3][0]
        assert store.recovery.kept_records == 56
    assert mqfast.repair(disk / "s", salvage=True, config=StoreConfig.tiny(**SIZES)).salvaged == 56


@pytest.mark.parametrize("by_repair", [False, True])
def test_a_log_on_another_file_system(tmp_path: Path, tmpfs: Callable[[str], Path], by_repair: bool) -> None:
    settings = {**SIZES, "store_path_commit_log": str(tmpfs("2m") / "log")}
    config = StoreConfig.tiny(**settings)
    with open_still(tmp_path / "s", config=config) as store:
        places = [store.put("T", b"%d " % i + b"x" * 300).physical_offset for i in range(100)]
        assert store.max_offset("T", 0) == 100
    os.truncate(tmp_path / "s" / "checkpoint", 0)
    (tmp_path / "s" / "abort").touch()
    with open(Path(settings["store_path_commit_log"]) / ("0" * 20), "r+b") as file:
        file.seek(places[4] + BODY)
        file.write(b"!")
    if by_repair:
        assert mqfast.repair(tmp_path / "s", config=config).messages_lost == 95
    with open_still(tmp_path / "s", config=config) as store:
        assert store.recovery.end == places[4]
        assert store.recovery.kept_records == (0 if by_repair else 95)
    assert mqfast.repair(tmp_path / "s", salvage=True, config=config).salvaged == 95
    with open_still(tmp_path / "s", config=config) as store:
        assert [int(body.split()[0]) for body in bodies(store)] == [i for i in range(100) if i != 4]
