"""Opening a store: no queue is mapped, every queue ends where it did, what lies behind is cleared; hits of a query."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still

import mqfast
from mqfast.errors import CorruptFile, StorageError
from mqfast.store.base.os_api import OsApi

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "prefault_window_bytes": 0,
    "preallocate_files": 0,
}


def _open(path: Path) -> mqfast.MessageStore:
    return open_still(path, **SMALL)


def _made(path: Path, queues: int, messages: int) -> None:
    with _open(path) as store:
        for queue_id in range(queues):
            store.put_many(f"T{queue_id % 3}", [b"%d" % n for n in range(messages)], queue_id)


@pytest.mark.parametrize("messages", [1, 204, 205, 300, 301, 1201])
def test_next_queue_offsets_continue_after_a_reopen(messages: int, tmp_path: Path) -> None:
    _made(tmp_path / "store", 5, messages)
    for turn in (0, 1):
        with _open(tmp_path / "store") as store:
            rows = store.queues()
            assert [row[3] for row in rows] == [messages + turn] * 5
            mapped = [file for queue in lab(store).queues.table.all() for file in queue.file_list if file.is_mapped]
            assert len(mapped) == (5 if messages > 900 else 0)  # the last three files are read, not mapped
            for topic, queue_id, _, end in rows:
                assert store.put(topic, b"more", queue_id=queue_id).queue_offset == end
                assert bytes(store.get(topic, queue_id, end)[0].body) == b"more"
                assert len(store.get(topic, queue_id, 0, 2000).messages) == end + 1


def _queue_files(path: Path) -> list[Path]:
    return sorted((path / "consumequeue" / "T0" / "0").iterdir())


@pytest.mark.parametrize("at", [20 * 10 + 1, 4090, 4100, 5999])
def test_bytes_behind_the_end_are_cleared(at: int, tmp_path: Path) -> None:
    _made(tmp_path / "store", 1, 10)
    (file,) = _queue_files(tmp_path / "store")
    before = file.read_bytes()
    with file.open("r+b") as out:
        out.seek(at)
        out.write(b"\7")
    with _open(tmp_path / "store") as store:
        assert store.max_offset("T0", 0) == 10
    assert file.read_bytes() == before


def test_strangers_and_unfinished_files_beside_a_queue(tmp_path: Path) -> None:
    _made(tmp_path / "store", 1, 310)
    first, second = _queue_files(tmp_path / "store")
    folder = first.parent
    (folder / f"{12000:020d}").touch()  # made, but never given its length
    (folder / f"{18000:020d}").mkdir()
    for name in ("99999999999999999999", "9223372036854775808", "x" * 20, "123"):
        (folder / name).touch()
    with _open(tmp_path / "store") as store:
        assert store.max_offset("T0", 0) == 310
        assert [file.start_offset for file in lab(store).queues.of_topic("T0")[0].file_list] == [0, 6000]
    assert first.exists()
    assert second.exists()
    assert not (folder / f"{12000:020d}").exists()


def test_a_queue_of_more_files_than_fit_one_listing(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **(SMALL | {"mappedFileSizeConsumeQueue": 40})) as store:
        store.put_many("T", [b"x"] * 201)
    with _open_with(tmp_path / "store") as store:
        assert len(lab(store).queues.of_topic("T")[0].file_list) == 101
        assert store.queues() == [("T", 0, 0, 201)]
        assert len(store.get("T", 0, 0, 300).messages) == 201


def _open_with(path: Path) -> mqfast.MessageStore:
    settings = {name: value for name, value in SMALL.items() if name != "mappedFileSizeConsumeQueue"}
    return open_still(path, **settings)


@pytest.mark.parametrize("change", ["longer", "shorter", "gap", "odd"])
def test_a_file_out_of_place_is_named(change: str, tmp_path: Path) -> None:
    _made(tmp_path / "store", 1, 700)
    files = _queue_files(tmp_path / "store")
    bad = files[-1]
    if change == "longer":
        bad.write_bytes(bad.read_bytes() + bytes(20))
    elif change == "shorter":
        bad.write_bytes(bad.read_bytes()[:-20])
    elif change == "gap":
        files[1].unlink()
    else:
        bad = bad.rename(bad.with_name(f"{12001:020d}"))
    with pytest.raises(CorruptFile) as found:
        _open(tmp_path / "store")
    assert found.value.path == str(bad)


def test_units_above_a_cut_of_the_log_go(tmp_path: Path) -> None:
    _made(tmp_path / "store", 4, 3)
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    with _open(tmp_path / "store") as store:
        cut = store.get("T0", 0, 1)[0].physical_offset
    data = log.read_bytes()
    log.write_bytes(data[:cut] + bytes(len(data) - cut))
    with _open(tmp_path / "store") as store:
        assert store.queues() == [("T0", 0, 0, 1)]
        assert store.put("T1", b"y", queue_id=1).queue_offset == 0
        assert bytes(store.get("T1", 1, 0)[0].body) == b"y"


def test_fillers_of_a_queue_that_begins_later(tmp_path: Path) -> None:
    _made(tmp_path / "store", 1, 5)
    (file,) = _queue_files(tmp_path / "store")
    data = bytearray(file.read_bytes())
    data[:40] = struct.pack(">qiq", 0, 2**31 - 1, 0) * 2
    file.write_bytes(data)
    with _open(tmp_path / "store") as store:
        assert store.queues() == [("T0", 0, 2, 5)]


def test_directories_of_a_directory(tmp_path: Path) -> None:
    os_api = OsApi()
    for name in ("b", "a", "c/d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    assert os_api.subdirectories(tmp_path) == ["a", "b", "c", "link"]
    assert os_api.subdirectories(tmp_path / "nothing") == []
    with pytest.raises(StorageError):
        os_api.subdirectories(tmp_path / "file")


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 130])
@pytest.mark.parametrize("limit", [1, 2, 64, 1000])
def test_hits_of_a_key_are_the_newest_ones_newest_first(count: int, limit: int, tmp_path: Path) -> None:
    with open_still(tmp_path / "store", maxHashSlotNum=4, maxIndexNum=1000, **SMALL) as store:
        for n in range(count):
            store.put("T", b"%d" % n, keys="key other")
            store.put("T", b"-", keys=f"twin{n}")
        found = [bytes(message.body) for message in store.query("T", "key", limit)]
        # RocketMQ's limit of one look at the index, which goes on while new ones are found by store time
        assert found == [b"%d" % n for n in reversed(range(count))][: len(found)]
        assert len(found) >= min(limit, count, 64)
        assert len(found) <= limit
        assert store.query("T", "key", 0) == store.query("T", "none") == store.query("U", "key") == []
