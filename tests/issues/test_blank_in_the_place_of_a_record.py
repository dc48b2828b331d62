"""A record whose magic code became that of a blank: the records behind it in the file were hidden without a word.

Room: tests/issues. A blank that a store wrote reaches the end of its file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast
from mqfast.errors import CorruptFile

FILE = 65536
BLANK = (0xCBD43194).to_bytes(4, "big")


def store_of(path: Path, messages: int) -> list[tuple[int, int]]:
    """Returns: physical offset and size of each message."""
    with mqfast.open(path, mapped_file_bytes_commit_log=FILE) as store:
        for number in range(messages):
            store.put("T", b"%d " % number + bytes(1000))
        got = store.get("T", 0, 0, messages, max_bytes=1 << 30)
        return [(message.physical_offset, message.size) for message in got]


def bodies(store: mqfast.MessageStore) -> list[int]:
    found: list[int] = []
    at = 0
    while len(got := store.get("T", 0, at, 1000, max_bytes=1 << 30)):
        found += [int(bytes(message.body).split()[0]) for message in got]
        at = got.next_offset
    return found


def set_magic(path: Path, physical_offset: int) -> None:
    file = path / "commitlog" / f"{physical_offset // FILE * FILE:020d}"
    data = bytearray(file.read_bytes())
    at = physical_offset % FILE + 4
    data[at : at + 4] = BLANK
    file.write_bytes(data)


def lose_queues(path: Path) -> None:
    for file in (path / "consumequeue" / "T" / "0").iterdir():
        file.unlink()
    (path / "checkpoint").unlink()


@pytest.mark.parametrize("queues", [True, False], ids=["units", "no-units"])
@pytest.mark.parametrize("number", [5, 70, 140])
def test_after_a_kill_what_stands_behind_is_kept(tmp_path: Path, number: int, queues: bool) -> None:
    path = tmp_path / "s"
    places = store_of(path, 150)
    set_magic(path, places[number][0])
    if not queues:
        lose_queues(path)
    (path / "abort").touch()
    report = mqfast.verify(path)
    assert report.state == "damaged"
    (damage,) = [damage for damage in report.damages if damage.kind == "log.record"]
    assert damage.offset == places[number][0]
    (path / "checkpoint").unlink(missing_ok=True)  # recovery reads the whole log
    with pytest.raises(CorruptFile, match=f"{150 - number - 1} whole records stand behind"):
        mqfast.open(path, on_damage="stop")
    with mqfast.open(path) as store:
        assert bodies(store) == list(range(number))
        assert any("were kept" in text or "are kept" in text for text in store.stats()["warnings"])
    done = mqfast.repair(path, salvage=True)
    assert done.salvaged == 150 - number - 1
    with mqfast.open(path) as store:
        assert sorted(bodies(store)) == [n for n in range(150) if n != number]


@pytest.mark.parametrize("number", [5, 70])
def test_units_that_are_put_again_are_put_behind_it_as_well(tmp_path: Path, number: int) -> None:
    path = tmp_path / "s"
    places = store_of(path, 150)
    set_magic(path, places[number][0])
    report = mqfast.repair(path)
    assert report.cut_at == places[number][0]
    assert report.messages_lost == 150 - number - 1


def test_a_blank_of_another_size_with_nothing_behind_closes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    places = store_of(path, 150)
    starts = {place for place, _ in places}
    ends = [place + size for place, size in places if place + size not in starts and place < 2 * FILE]
    for at in ends:
        file = path / "commitlog" / f"{at // FILE * FILE:020d}"
        data = bytearray(file.read_bytes())
        assert data[at % FILE + 4 : at % FILE + 8] == BLANK
        data[at % FILE : at % FILE + 4] = (int.from_bytes(data[at % FILE : at % FILE + 4], "big") - 8).to_bytes(
            4, "big"
        )
        file.write_bytes(data)
    (path / "abort").touch()
    (path / "checkpoint").unlink()
    assert mqfast.verify(path).ok
    with mqfast.open(path, on_damage="stop") as store:
        assert bodies(store) == list(range(150))
    assert mqfast.verify(path).state == "clean"
