"""QueueExt against RocketMQ's files, and against damage of every kind."""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from conftest import GOLDEN, golden_cases
from hypothesis import given
from hypothesis import strategies as st
from reference import ext_record

from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import OsApi
from mqfast.store.queues.queue_ext import ExtUnit, QueueExt, is_address

(CASE,) = golden_cases("5.3.3", ("cq-ext",))
LEAST = -(2**63)


def write(tmp_path: Path, *files: bytes, size: int = 128, first: int = 0) -> QueueExt:
    folder = tmp_path / "T" / "0"
    folder.mkdir(parents=True)
    for i, data in enumerate(files):
        (folder / f"{first + i * size:020}").write_bytes(data.ljust(size, b"\0"))
    ext = QueueExt(OsApi(), str(tmp_path), "T", 0, size)
    ext.load()
    return ext


def test_golden_units_are_those_that_the_queues_point_at(tmp_path: Path) -> None:
    base = shutil.copytree(CASE.store / "consumequeue_ext", tmp_path / "ext")
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    seen = 0
    for row in CASE.expected["queues"]:
        ext = QueueExt(OsApi(), str(base), row["topic"], row["queueId"], CASE.settings["mappedFileSizeConsumeQueueExt"])
        ext.load()
        ext.recover()
        queue = CASE.store / "consumequeue" / row["topic"] / str(row["queueId"])
        units = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
        addresses = [struct.unpack_from(">q", units, i * 20 + 12)[0] for i in range(row["units"])]
        messages = [
            m for m in CASE.expected["messages"] if (m["topic"], m["queueId"]) == (row["topic"], row["queueId"])
        ]
        assert len(messages) == len(addresses)
        for address, message in zip(addresses, messages, strict=True):
            unit = ext.get(address)
            assert unit is not None
            assert (unit.tags_code, unit.store_timestamp) == (message["tagsCode"], message["storeTimestamp"])
            seen += 1
        assert [address for address, _ in ext.units()] == addresses
        ext.truncate(addresses[-1])
        assert ext.max_address == addresses[-1] + 20
        ext.close()
    assert seen > 50
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before


def test_v12_extension(tmp_path: Path) -> None:
    base = shutil.copytree(GOLDEN / "golden-engine/data3_G/consumequeue_ext", tmp_path / "ext")
    ext = QueueExt(OsApi(), str(base), "TE", 0, 64)
    ext.load()
    ext.recover()
    stored = 0x1A1F9BA3969
    expected = {
        LEAST + offset: ExtUnit(2598919, time, b"")
        for offset, time in ((0, stored), (0x14, stored + 2), (0x28, stored + 3), (0x40, stored + 3))
    }
    assert dict(ext.units()) == expected
    assert {address: ext.get(address) for address in expected} == expected
    assert (ext.min_address, ext.max_address) == (LEAST, LEAST + 0x54)
    assert ext.get(LEAST + 60) is None  # the end mark
    assert ext.get(LEAST + 0x54) is None  # the end
    queue = (GOLDEN / "golden-engine/data3_G/consumequeue/TE/0" / f"{0:020}").read_bytes()
    assert [struct.unpack_from(">q", queue, i * 20 + 12)[0] for i in range(4)] == list(expected)


def test_addresses_and_tags_codes_do_not_mix() -> None:
    assert is_address(LEAST)
    assert is_address(-(2**31) - 1)
    assert not any(is_address(code) for code in (-(2**31), -1, 0, 1, 2**31, 2**63 - 1))
    assert not is_address(LEAST - 1)


def test_bitmaps(tmp_path: Path) -> None:
    ext = write(tmp_path, ext_record(-5, 7, b"\x01\x02\x03") + ext_record(6, 8, b"x" * 70))
    ext.recover()
    assert ext.get(LEAST) == ExtUnit(-5, 7, b"\x01\x02\x03")
    assert ext.get(LEAST + 23) == ExtUnit(6, 8, b"x" * 70)
    assert ext.max_address == LEAST + 23 + 90


@pytest.mark.parametrize(
    "record",
    [
        struct.pack(">hqqh", -1, 0, 0, 0),
        struct.pack(">hqqh", 0, 0, 0, 0),
        struct.pack(">hqqh", 1, 0, 0, 0),
        struct.pack(">hqqh", 19, 0, 0, 0),
        struct.pack(">hqqh", 19, 0, 0, -1),
        struct.pack(">hqqh", 20, 0, 0, 1),
        struct.pack(">hqqh", 20, 0, 0, -1),
        struct.pack(">hqqh", 30, 0, 0, 11),
        struct.pack(">hqqh", 32767, 0, 0, 32747),
    ],
    ids=range(9),
)
def test_a_unit_that_is_none_is_not_found_and_ends_the_walk(record: bytes, tmp_path: Path) -> None:
    ext = write(tmp_path, ext_record(1, 2) + record + ext_record(3, 4))
    assert ext.get(LEAST + 20) is None
    ext.recover()
    assert [address for address, _ in ext.units()] == [LEAST]
    assert ext.max_address == LEAST + 20
    assert ext.get(LEAST + 40) is None


def test_a_unit_never_reaches_beyond_its_file(tmp_path: Path) -> None:
    ext = write(tmp_path, bytes(110) + struct.pack(">hqq", 21, 0, 0), b"\x00\x01" + ext_record(1, 2))
    for position in range(109, 129):
        assert ext.get(LEAST + position) is None
    assert ext.get(LEAST + 130) == ExtUnit(1, 2, b"")


def test_no_address_outside_is_answered(tmp_path: Path) -> None:
    ext = write(tmp_path, ext_record(1, 2), first=256)
    # RocketMQ answers address 0 with the first file's first unit even when that file begins elsewhere
    assert [ext.get(LEAST + offset) for offset in (0, 255, 384, 2**62, 2**63 - 2**31 - 1)] == [None] * 5
    assert [ext.get(code) for code in (0, -1, 256, 2**63 - 1)] == [None] * 4
    assert ext.get(LEAST + 256) == ExtUnit(1, 2, b"")
    assert ext.min_address == LEAST + 256


def test_truncate_and_follow_the_queue(tmp_path: Path) -> None:
    full = b"".join(ext_record(i, i) for i in range(6)) + b"\xff\xff"
    ext = write(tmp_path, full, full, full)
    ext.recover()
    assert len(list(ext.units())) == 18
    ext.truncate(LEAST + 121)  # no unit there: nothing happens
    ext.truncate(5)
    assert len(ext.file_list) == 3
    ext.truncate(LEAST + 128 + 20)
    assert ext.max_address == LEAST + 128 + 40
    assert [address - LEAST for address, _ in ext.units()] == [0, 20, 40, 60, 80, 100, 128, 148]
    assert ext.get(LEAST + 168) is None
    assert sorted(path.name for path in Path(ext.path).iterdir()) == [f"{0:020}", f"{128:020}"]


def test_the_file_behind_a_full_one_stays(tmp_path: Path) -> None:
    ext = write(tmp_path, b"".join(ext_record(i, i) for i in range(5)) + ext_record(5, 5, b"12345678"), b"")
    ext.recover()
    ext.truncate(LEAST + 100)
    assert (ext.max_address, len(ext.file_list)) == (LEAST + 128, 2)


def test_load_refuses_files_of_another_length_and_gaps(tmp_path: Path) -> None:
    ext = write(tmp_path, b"", b"", b"")
    ext.close()
    with pytest.raises(CorruptFile, match="128 bytes"):
        QueueExt(OsApi(), str(tmp_path), "T", 0, 64).load()
    (Path(ext.path) / f"{128:020}").unlink()
    with pytest.raises(CorruptFile, match="out of place"):
        QueueExt(OsApi(), str(tmp_path), "T", 0, 128).load()


def test_missing_directory_is_an_empty_extension(tmp_path: Path) -> None:
    ext = QueueExt(OsApi(), str(tmp_path), "T", 0, 64)
    ext.load()
    ext.recover()
    ext.truncate(LEAST)
    assert (ext.get(LEAST), list(ext.units()), ext.max_address) == (None, [], LEAST)


def test_rest_close_destroy(tmp_path: Path) -> None:
    ext = write(tmp_path, ext_record(1, 2))
    assert ext.get(LEAST) is not None
    ext.unmap_idle()
    assert not ext.file_list[0].is_mapped
    assert ext.get(LEAST) is not None
    ext.close()
    assert ext.get(LEAST) is None
    ext.load()
    ext.destroy()
    assert not Path(ext.path).exists()


@given(st.binary(min_size=0, max_size=256), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_read_without_harm(tmp_path: Path, data: bytes, offsets: list[int]) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        ext = write(Path(folder), data[:128], data[128:])
        found = dict(ext.units())
        ext.recover()
        assert LEAST <= ext.max_address <= LEAST + 256
        for offset in offsets:
            unit = ext.get(LEAST + offset)
            if unit is not None:
                raw = data[:128].ljust(128, b"\0") + data[128:].ljust(128, b"\0")
                assert raw[offset : offset + unit.size] == ext_record(*unit)
        assert all(address in found for address, _ in ext.units())
        ext.close()


def test_what_is_no_extension(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file_bytes"):
        QueueExt(OsApi(), str(tmp_path), "T", 0, 20)
    unit = ext_record(5, 6)
    ext = write(tmp_path, unit)
    ext.recover()
    assert ext.get(LEAST) is not None
    assert ext.get(LEAST + len(unit)) is None  # behind the last unit
    assert ext.get(7) is None  # no address
    assert "T/0 1 files" in repr(ext)
    ext.close()
    (tmp_path / "T" / "0" / f"{128:020}").touch()  # made, but never given its length
    again = QueueExt(OsApi(), str(tmp_path), "T", 0, 128)
    again.load()
    assert len(again.file_list) == 1
    (tmp_path / "T" / "0" / "stranger").touch()
    again.destroy()
    assert [path.name for path in (tmp_path / "T" / "0").iterdir() if path.name == "stranger"] == ["stranger"]
