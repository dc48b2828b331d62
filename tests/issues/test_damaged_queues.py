"""Damaged queue units and record headers that ``python -m tests.damage`` met: a wrong message was handed out, a reader
was left without message and without error for ever, new messages were kept out of their queue, or the process died.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from laboratory import open_still

import mqfast
from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import OsApi
from mqfast.store.check.verify import verify

SETTINGS = {"mapped_file_bytes_commit_log": 16384, "mapped_file_bytes_consume_queue": 2000}
UNIT = struct.Struct(">qiq")


def fill(path: Path) -> list[bytes]:
    bodies = [b"%03d" % i for i in range(12)]
    with mqfast.open(path, **SETTINGS) as store:
        for i, body in enumerate(bodies):
            store.put("T" if i % 2 else "S", body)
    return bodies[1::2]


def change(path: Path, topic: str, edit: Callable[[list[tuple[int, int, int]]], None]) -> None:
    file = path / "consumequeue" / topic / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    units = [UNIT.unpack_from(data, at) for at in range(0, len(data), 20)]
    edit(units)
    for i, unit in enumerate(units):
        UNIT.pack_into(data, 20 * i, *unit)
    file.write_bytes(data)


def exchange(units: list[tuple[int, int, int]]) -> None:
    units[1], units[3] = units[3], units[1]


def double(units: list[tuple[int, int, int]]) -> None:
    units[1] = units[3]


def beyond(units: list[tuple[int, int, int]]) -> None:
    units[1] = (1 << 40, *units[1][1:])


@pytest.mark.parametrize("edit", [exchange, double, beyond])
def test_a_damaged_unit_is_an_error_with_its_place(tmp_path: Path, edit: Callable[..., None]) -> None:
    bodies = fill(tmp_path)
    change(tmp_path, "T", edit)
    with mqfast.StoreReader(tmp_path) as reader:
        assert reader.get("T", 0, 0).bodies() == bodies[:1]
        with pytest.raises(CorruptFile, match="does not point at its record"):
            reader.get("T", 0, 1)
    with mqfast.open(tmp_path, **SETTINGS) as store:
        assert store.get("T", 0, 0).bodies() == bodies[:1]
        with pytest.raises(CorruptFile, match="does not point at its record"):
            store.get("T", 0, 1)


def test_the_queue_of_another_topic_is_made_anew_from_the_log(tmp_path: Path) -> None:
    bodies = fill(tmp_path)
    one, two = (tmp_path / "consumequeue" / topic / "0" / f"{0:020d}" for topic in "ST")
    good = two.read_bytes()
    two.write_bytes(one.read_bytes())
    with mqfast.StoreReader(tmp_path) as reader, pytest.raises(CorruptFile, match="of S/0"):
        reader.get("T", 0, 0)
    with mqfast.open(tmp_path, **SETTINGS) as store:
        assert store.get("T", 0, 0).bodies() == bodies
    assert two.read_bytes() == good


@pytest.mark.parametrize("unit", [(0, 0, 0), (1 << 50, 100, 0), (0, 1 << 30, 0)])
@pytest.mark.parametrize("place", [3, 5])
def test_units_lost_from_a_queue_come_back_and_new_messages_are_seen(
    tmp_path: Path, unit: tuple[int, int, int], place: int
) -> None:
    if place == 3 and unit[0] == 0 and unit[1]:
        pytest.skip("a unit inside the queue that points at another record is an error of get: see above")
    bodies = fill(tmp_path)

    def spoil(units: list[tuple[int, int, int]]) -> None:
        units[place] = unit

    change(tmp_path, "T", spoil)
    with mqfast.open(tmp_path, **SETTINGS) as store:
        result = store.put("T", b"new")
        assert result.queue_offset == 6
        assert store.get("T", 0, 6).bodies() == [b"new"]
        if place == 5 or unit[0] == 0:
            assert store.get("T", 0, 0).bodies() == [*bodies, b"new"]


@pytest.mark.parametrize("place", [3, 5])
def test_a_unit_that_looks_like_a_filler_hides_only_itself(tmp_path: Path, place: int) -> None:
    """The search for the first unit took it for one of those in front of the queue, and left out all before it."""
    bodies = fill(tmp_path)

    def spoil(units: list[tuple[int, int, int]]) -> None:
        units[place] = (0, 0x7FFFFFFF, units[place][2])

    change(tmp_path, "T", spoil)
    for _ in range(2):
        with mqfast.open(tmp_path, **SETTINGS) as store:
            assert store.min_offset("T", 0) == 0
            found = store.get("T", 0, 0).bodies()
            assert found[: len(bodies) - 1] == [body for i, body in enumerate(bodies) if i != place]
            store.put("T", b"new")


def test_a_lost_body_length_is_no_empty_body(tmp_path: Path) -> None:
    """RocketMQ checks no CRC where the length says that there is no body."""
    body = bytes([0]) + b"x" * 20
    with mqfast.open(tmp_path, **SETTINGS) as store:
        place = store.put("T", body).physical_offset
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(place + 84)
        file.write(struct.pack(">ib", 0, 1) + b"T" + struct.pack(">h", 21))  # the lengths agree
    with mqfast.StoreReader(tmp_path) as reader:
        assert list(reader.scan()) == []
    assert not verify(tmp_path).ok


@pytest.mark.parametrize(("at", "value"), [(12, struct.pack(">i", -5)), (20, struct.pack(">q", -1)), (20, b"\x7f" * 8)])
def test_a_record_with_an_impossible_header_gets_no_queue(tmp_path: Path, at: int, value: bytes) -> None:
    bodies = fill(tmp_path)
    with mqfast.StoreReader(tmp_path) as reader:
        second = [message.physical_offset for message in reader.messages("T", 0)][1]
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[second + at : second + at + len(value)] = value
    log.write_bytes(data)
    for file in (tmp_path / "consumequeue").glob("*/*/*"):
        file.unlink()
    (tmp_path / "abort").write_bytes(b"")
    with mqfast.open(tmp_path, **SETTINGS) as store:
        assert store.stats()["records_without_queue"] >= 1
        found = [bytes(message.body) for message in store.get("T", 0, 0)]
        assert found == [body for body in bodies if body != bodies[1]]
        assert bytes(store.get_by_offset(second).body) == bodies[1]


def test_a_record_that_stands_elsewhere_ends_recovery(tmp_path: Path) -> None:
    fill(tmp_path)
    with mqfast.StoreReader(tmp_path) as reader:
        first, second = [message.physical_offset for message in reader.messages("T", 0)][:2]
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[second + 28 : second + 36] = first.to_bytes(8, "big")
    log.write_bytes(data)
    (tmp_path / "abort").write_bytes(b"")
    with mqfast.open(tmp_path, **SETTINGS) as store:
        assert store.recovery.end == second
        assert store.recovery.reason == "a record that belongs elsewhere"


def test_verify_sees_a_queue_file_that_is_named_between_two_units(tmp_path: Path) -> None:
    fill(tmp_path)
    file = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    file.rename(file.with_name(f"{1:020d}"))
    report = verify(tmp_path)
    assert [damage.kind for damage in report.damages if damage.path.endswith("1")] == ["queue.gap"]


def test_a_damaged_unit_that_a_crash_leaves_at_the_end_is_put_again(tmp_path: Path) -> None:
    """After a crash the units of the last files are dropped; a damaged one before them was taken for the end, and a
    record of queue offset 0 was put behind it once more while later ones were kept out.
    """
    settings = {"mapped_file_bytes_commit_log": 1024, "mapped_file_bytes_consume_queue": 200}
    bodies = [b"%03d" % i * 30 for i in range(9)]
    os_api, places = OsApi(), []
    os_api.fix_clock(1_700_000_000_000)
    with open_still(tmp_path, os_api=os_api, **settings) as store:
        for i, body in enumerate(bodies):
            os_api.fix_clock(1_700_000_000_000 + 5000 * i)  # so that the checkpoint vouches for all but the last file
            places.append(store.put("T", body).physical_offset)
    last_file = max(place - place % 1024 for place in places)
    at = next(i for i, place in enumerate(places) if place >= last_file) - 1
    assert at > 1

    def spoil(units: list[tuple[int, int, int]]) -> None:
        units[at] = (1, *units[at][1:])

    change(tmp_path, "T", spoil)
    (tmp_path / "abort").write_bytes(b"1")
    with mqfast.open(tmp_path, **settings) as store:
        assert store.recovery.start == last_file
        assert store.get("T", 0, 0).bodies() == bodies
    assert not verify(tmp_path).damages
