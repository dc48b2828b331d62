"""Records whose lengths or properties are damaged, met by recovery, by ``look`` and by a get.

Formats: ``mqfast/store/FORMAT.md``. Written for checks that could be left out without any test failing
(``tests/mutation``).
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import CorruptFile, OffsetError

SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 400, "maxIndexNum": 100}
SIZE, BODY_LENGTH, BODY = 0, 84, 88


def killed_store(tmp_path: Path, **settings: Any) -> tuple[Path, list[Any]]:
    """Three messages and a kill; where they stand."""
    with mqfast.open(tmp_path / "store", **SETTINGS, **settings) as store:
        placed = [store.put("Topic", b"body %d" % i, tags="tag") for i in range(3)]
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    return tmp_path / "killed", placed


def patch(path: Path, at: int, data: bytes) -> None:
    with (path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0x7FFFFF00, 0x20000000, 4096, 200])
def test_a_body_that_would_reach_out_of_its_file_ends_recovery(tmp_path: Path, length: int) -> None:
    path, placed = killed_store(tmp_path)
    second = placed[1].physical_offset
    patch(path, second + BODY_LENGTH, struct.pack(">i", length))
    with mqfast.open(path, **SETTINGS) as store:
        assert store.max_physical_offset == second
        assert store.max_offset("Topic", 0) == 1
        assert store.put("Topic", b"next").queue_offset == 1


@pytest.mark.parametrize("topic", ["Topic", "%RETRY%" + "g" * 123], ids=["version 1", "version 2"])
@pytest.mark.parametrize("field", [*range(8), *range(12, 16), *range(28, 36), 39, 87, "topic", "properties"])
def test_a_get_checks_the_place_and_the_lengths_of_a_record(tmp_path: Path, topic: str, field: int | str) -> None:
    behind_body = BODY + len(b"body 0")
    length_bytes = 1 if len(topic) < 128 else 2
    ends = {"topic": behind_body + length_bytes, "properties": behind_body + length_bytes + len(topic) + 1}
    at = ends[field] if isinstance(field, str) else field
    flips = [0x10, 0x20] if field == 39 else [1, 0x80]  # of the flags those that make the hosts longer
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    with mqfast.open(tmp_path / "store", **SETTINGS) as store:
        placed = [store.put(topic, b"body %d" % i) for i in range(3)]
        assert store.get(topic, 0, 0).bodies() == [b"body 0", b"body 1", b"body 2"]
        where = placed[1].physical_offset + at
        byte = log.read_bytes()[where]
        for flip in flips:
            patch(tmp_path / "store", where, bytes([byte ^ flip]))
            assert store.get(topic, 0, 0).bodies() == [b"body 0"]
            with pytest.raises(CorruptFile):
                store.get(topic, 0, 1)
        patch(tmp_path / "store", where, bytes([byte]))
        assert store.get(topic, 0, 1).bodies() == [b"body 1", b"body 2"]


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0x7FFFFF00, 0x20000000, 4096])
def test_a_body_that_would_reach_out_of_its_file_is_not_read(tmp_path: Path, length: int) -> None:
    with mqfast.open(tmp_path / "store", **SETTINGS) as store:
        placed = [store.put("Topic", b"body %d" % i) for i in range(3)]
        assert len(store.get("Topic", 0, 0)) == 3
        patch(tmp_path / "store", placed[1].physical_offset + BODY_LENGTH, struct.pack(">i", length))
        assert len(store.get("Topic", 0, 0)) == 1
        with pytest.raises(CorruptFile):
            store.get("Topic", 0, 1)
        with pytest.raises(OffsetError, match="expected a record"):  # no whole record begins there, as for StoreReader
            store.get_by_offset(placed[1].physical_offset)


def test_a_negative_length_of_properties_is_not_walked_over_backwards(tmp_path: Path) -> None:
    path, placed = killed_store(tmp_path)
    second = placed[1].physical_offset
    length_at = BODY + len(b"body 1") + 1 + len(b"Topic")
    patch(path, second + length_at, struct.pack(">h", -1))
    patch(path, second + SIZE, struct.pack(">i", length_at + 2 - 1))  # what the parts add up to, read so
    with mqfast.open(path, **SETTINGS) as store:
        assert store.max_physical_offset == second
        assert store.recovery.reason == "record length does not agree with its parts"


@pytest.mark.parametrize("forced", [True, False])
def test_the_checksum_of_the_whole_record_covers_topic_and_properties(tmp_path: Path, forced: bool) -> None:
    crc: dict[str, Any] = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": forced}
    path, placed = killed_store(tmp_path, **crc)
    second = placed[1].physical_offset
    tag_at = BODY + len(b"body 1") + 1 + len(b"Topic") + 2 + len(b"TAGS\x01")
    with mqfast.open(path, **SETTINGS, **crc) as store:
        assert store.get_by_offset(second).tags == "tag"
    (path / "abort").touch()
    patch(path, second + tag_at, b"T")
    with mqfast.open(path, **SETTINGS, **crc) as store:
        # the checksum of the body alone says nothing of it
        assert store.max_physical_offset == (second if forced else placed[2].physical_offset + placed[2].size)


@pytest.mark.parametrize("clean", [True, False])
def test_units_of_a_cut_log_go_with_it(tmp_path: Path, clean: bool) -> None:
    path, placed = killed_store(tmp_path)
    with mqfast.open(path, **SETTINGS):
        pass
    if not clean:
        (path / "abort").touch()
    patch(path, placed[2].physical_offset + BODY, b"damage")
    with mqfast.open(path, **SETTINGS) as store:
        assert store.max_physical_offset == placed[2].physical_offset
        assert store.max_offset("Topic", 0) == 2
        assert store.put("Topic", b"next").queue_offset == 2
        assert [bytes(m.body) for m in store.get("Topic", 0, 0)] == [b"body 0", b"body 1", b"next"]
