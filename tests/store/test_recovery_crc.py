"""Recovery checks the CRC of each body: the log ends before the first one that is damaged, wherever it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies

import mqfast

FILE_BYTES = 1 << 20
COUNT = 20_000  # of about 1 KiB
SETTINGS: dict[str, Any] = {"mapped_file_bytes_commit_log": FILE_BYTES, "mapped_file_bytes_consume_queue": 20 << 14}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store as a kill leaves it, and where its records start."""
    path = tmp_path_factory.mktemp("killed") / "store"
    live = path.with_name("live")
    with mqfast.open(live, **SETTINGS) as store:
        put = store.producer("T").put
        starts = [put(b"%07d" % number + b"x" * (900 + number % 300)).physical_offset for number in range(COUNT)]
        store.flush()
        shutil.copytree(live, path)
    (path / "checkpoint").unlink(missing_ok=True)  # the walk begins at the first file
    return path, starts


def damaged(path: Path, tmp_path: Path, at: int) -> Path:
    """A copy with another byte in the body of the record at this physical offset."""
    copy = tmp_path / f"at{at}"
    shutil.copytree(path, copy)
    name = copy / "commitlog" / f"{at // FILE_BYTES * FILE_BYTES:020d}"
    with name.open("r+b") as file:
        file.seek(at % FILE_BYTES + 88 + 500)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    return copy


def test_all_records_are_found(killed: tuple[Path, list[int]], tmp_path: Path) -> None:
    path, starts = killed
    shutil.copytree(path, tmp_path / "store")
    with mqfast.open(tmp_path / "store", **SETTINGS) as store:
        assert store.recovery.records == COUNT
        assert store.recovery.last_start == starts[-1]
        assert [body[:7] for body in bodies(store)] == [b"%07d" % number for number in range(COUNT)]


@pytest.mark.parametrize("number", [0, 1, 777, 4001, 7000, 9999, 13_333, 17_017, COUNT - 2, COUNT - 1])
def test_the_log_ends_before_a_body_whose_crc_is_wrong(
    killed: tuple[Path, list[int]], tmp_path: Path, number: int
) -> None:
    path, starts = killed
    copy = damaged(path, tmp_path, starts[number])
    with mqfast.open(copy, **SETTINGS) as store:
        assert store.recovery.end == starts[number]
        assert store.recovery.records == number
        assert store.max_offset("T", 0) == number
        assert store.put("T", b"next").physical_offset == starts[number]
    shutil.rmtree(copy)


def test_a_store_damaged_repeatedly(killed: tuple[Path, list[int]], tmp_path: Path) -> None:
    """A dozen records, from the back to the front: each time the log gets shorter by what is behind it."""
    path, starts = killed
    copy = tmp_path / "store"
    shutil.copytree(path, copy)
    for number in range(COUNT - 50, 0, -COUNT // 12):
        with (copy / "commitlog" / f"{starts[number] // FILE_BYTES * FILE_BYTES:020d}").open("r+b") as file:
            file.seek(starts[number] % FILE_BYTES + 88)
            file.write(b"X")
        (copy / "abort").touch()
        (copy / "checkpoint").unlink(missing_ok=True)
        with mqfast.open(copy, **SETTINGS) as store:
            assert store.recovery.end == starts[number]
            assert store.max_offset("T", 0) == number


def test_a_truncated_file_is_an_error_and_does_not_end_the_process(
    killed: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, starts = killed
    copy = tmp_path / "store"
    shutil.copytree(path, copy)
    name = copy / "commitlog" / f"{10 * FILE_BYTES:020d}"
    os.truncate(name, FILE_BYTES // 2)
    with pytest.raises(mqfast.errors.CorruptFile, match=r"length|shorter|cut short"):
        mqfast.open(copy, **SETTINGS)
    os.truncate(name, FILE_BYTES)  # zeros: the log ends there
    with mqfast.open(copy, **SETTINGS) as store:
        torn = store.recovery.end
        assert torn in starts
        assert 10 * FILE_BYTES < torn <= 10 * FILE_BYTES + FILE_BYTES // 2
