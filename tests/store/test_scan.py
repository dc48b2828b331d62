"""The walk by pread: every record, any damage, files that shrink, records longer than the window.

Room: tests/store. Compared with the slow model and with golden stores. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import CorruptFile, MqfastError, StorageError, StoreClosed, StoreNotFound
from mqfast.properties import jhash
from mqfast.store._os import OsDoor
from mqfast.store._record import StoredMessage
from mqfast.store._scan import LogTally, LogWalk, PreadFile, tally_units

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import reference
from conftest import golden_cases

DOOR = OsDoor()
(CASE,) = golden_cases("5.3.3", ("normal-clean",))
(WALKED,) = golden_cases("5.3.3", ("killed",))
START = 32768
PATH = WALKED.store / "commitlog" / f"{START:020}"
LOG = PATH.read_bytes()
RECORDS = [(at, size) for at, size, record in reference.scan({START: LOG}) if record is not None]


def _walk(file: PreadFile, start: int, check_crc: bool = True) -> tuple[list[StoredMessage], str, int]:
    walk = LogWalk(file, start, check_crc)
    found: list[StoredMessage] = []
    stop: str | None = None
    while stop is None:
        messages, stop = walk.batch()
        assert messages or stop
        found += messages
    assert stop is not None
    return found, stop, walk.at


def _log_of(path: Path, records: list[reference.Record], file_bytes: int, start: int = 0) -> bytes:
    data = b""
    for record in records:
        data += dataclasses.replace(record, physical_offset=start + len(data)).encode()
    if file_bytes - len(data) >= 8:
        data += reference.blank(file_bytes - len(data))
    path.write_bytes(data.ljust(file_bytes, b"\0"))
    return data


def test_equals_the_model() -> None:
    """Place, size and bytes of every record, and where the file ends."""
    file = PreadFile(DOOR, PATH, START)
    found, stop, at = _walk(file, START)
    assert [(m.physical_offset, m.size) for m in found] == RECORDS
    assert stop == "blank"
    assert [m.to_bytes() for m in found] == [LOG[p - START : p - START + n] for p, n in RECORDS]
    assert at == RECORDS[-1][0] + RECORDS[-1][1]
    assert LogWalk(file, START).skip() == "blank"
    assert LogWalk(file, START).skip(RECORDS[3][0]) == "limit"


@given(st.integers(0, len(LOG) - 1), st.integers(1, 255))
def test_any_flipped_byte(tmp_path_factory: pytest.TempPathFactory, at: int, change: int) -> None:
    """Records before the flip are all there; one whose structure, place or body changed ends the walk at its start, and
    the search behind it finds the next whole record."""
    data = bytearray(LOG)
    data[at] ^= change
    path = tmp_path_factory.getbasetemp() / "flip"
    path.write_bytes(data)
    file = PreadFile(DOOR, path, START)
    found, stop, stopped = _walk(file, START)
    places = [(m.physical_offset, m.size) for m in found]
    before = [row for row in RECORDS if row[0] + row[1] <= START + at]
    assert places[: len(before)] == before
    for message in found:
        assert message.check_crc()
        assert isinstance(message.properties, dict)
    if len(before) == len(RECORDS):
        assert stop in ("blank", "no record", "zero", "length")
        return
    start, _ = RECORDS[len(before)]
    assert places == RECORDS or (stopped == start and stop in ("no record", "length", "place", "crc", "blank", "zero"))
    field = START + at - start
    body = struct.unpack_from(">i", LOG, start - START + 84)[0]
    if field < 12 or 28 <= field < 36 or 88 <= field < 88 + body:
        assert stopped == start
        if len(before) + 1 < len(RECORDS):
            assert file.find_record(start + 1) == RECORDS[len(before) + 1][0]
    if 88 <= field < 88 + body:
        assert stop == "crc"
        assert [(m.physical_offset, m.size) for m in _walk(file, START, False)[0]] == RECORDS


@given(st.binary(max_size=400))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Nothing but an exception of ours or an orderly stop, whatever the file holds."""
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    file = PreadFile(DOOR, path)
    at = _walk(file, 0)[2]
    assert 0 <= at <= len(data)
    assert file.find_record(0) == -1
    assert file.first_set_byte(0) == next((i for i, byte in enumerate(data) if byte), -1)
    for size in (0, 91, 200, 2**31 - 1):
        assert isinstance(file.record(0, size), str)
    for unit_bytes in (20, 46):
        valid = file.valid_units(0, unit_bytes)
        assert valid % unit_bytes == 0
        assert valid <= len(data)


def test_a_record_longer_than_the_window(tmp_path: Path) -> None:
    """Large records pass through, alone and between small ones."""
    small = reference.Record("T", b"x" * 100)
    records = [
        small,
        reference.Record("T", os.urandom(900_000)),
        small,
        reference.Record("T", os.urandom(300_000)),
        small,
    ]
    _log_of(tmp_path / "log", records, 2_000_000, 4_000_000)
    file = PreadFile(DOOR, tmp_path / "log", 4_000_000)
    found, stop, _ = _walk(file, 4_000_000)
    assert [bytes(m.body) for m in found] == [r.body for r in records]
    assert stop == "blank"
    assert bytes(file.record(found[1].physical_offset).body) == records[1].body  # type: ignore[union-attr]
    assert file.record(found[1].physical_offset, found[1].size - 1) == "length"
    assert LogWalk(file, 4_000_000).batch(found[2].physical_offset)[1] in (None, "limit")


def test_a_length_that_its_parts_contradict(tmp_path: Path) -> None:
    """A damaged length field of nearly the whole file is refused before memory for it is asked for."""
    data = bytearray(reference.Record("T", b"x" * 100).encode())
    data[:4] = struct.pack(">i", (1 << 30) - 100)
    with (tmp_path / "log").open("wb") as handle:
        handle.write(data)
        handle.truncate(1 << 30)
    file = PreadFile(DOOR, tmp_path / "log")
    peak = _peak_kib()
    assert LogWalk(file, 0).skip() == "length"
    assert file.record(0) == "length"
    assert _peak_kib() - peak < 100_000


def _peak_kib() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    """Cut under the walk, under a single read and under the units: CorruptFile with file and offset, no crash."""
    path = tmp_path / "log"
    _log_of(path, [reference.Record("T", bytes(1000))] * 600, 1_000_000)
    file = PreadFile(DOOR, path)
    walk = LogWalk(file, 0)
    messages, stop = walk.batch()
    assert messages
    assert stop is None
    (tmp_path / "queue").write_bytes(reference.unit(0, 100, 0) * 1000)
    queue = PreadFile(DOOR, tmp_path / "queue")
    assert queue.valid_units(0, 20) == 20000
    os.truncate(path, 5000)
    os.truncate(tmp_path / "queue", 5000)
    with pytest.raises(CorruptFile) as error:
        walk.batch()
    assert error.value.path == str(path)
    assert error.value.offset == messages[-1].physical_offset + messages[-1].size
    for attempt in (
        lambda: file.record(messages[20].physical_offset, messages[20].size),
        lambda: file.read(4000, 2000),
        lambda: queue.valid_units(0, 20),
        lambda: tally_units(queue, 0, 9000, 20, 0, 1, True, None, None),
        lambda: LogWalk(file, messages[30].physical_offset).tally(LogTally()),
    ):
        with pytest.raises(CorruptFile):
            attempt()
    assert file.length() == 5000
    assert file.record(messages[20].physical_offset, messages[20].size) == "outside of the file"
    assert bytes(messages[20].body) == bytes(1000)  # what was read stays


def test_refusals(tmp_path: Path) -> None:
    """No file, a directory, a closed file."""
    with pytest.raises(StoreNotFound):
        PreadFile(DOOR, tmp_path / "none")
    with pytest.raises(StorageError):
        PreadFile(DOOR, tmp_path)
    (tmp_path / "log").write_bytes(b"x" * 100)
    file = PreadFile(DOOR, tmp_path / "log")
    assert file.read(90, 20, False) == b"x" * 10
    for position, n in ((-1, 5), (90, 20), (0, -1), (200, 1)):
        with pytest.raises(CorruptFile):
            file.read(position, n)
    file.close()
    file.close()
    for attempt in (lambda: file.read(0, 1), file.length, lambda: file.record(0, 91), lambda: LogWalk(file, 0).skip()):
        with pytest.raises((StoreClosed, MqfastError)):
            attempt()


def test_the_tally_equals_the_model() -> None:
    """Counts and bounds of every queue; the sums equal those over the queue files."""
    tally = LogTally()
    for path in sorted((CASE.store / "commitlog").iterdir()):
        LogWalk(PreadFile(DOOR, path, int(path.name)), int(path.name)).tally(tally)
    rows = [row for row in CASE.expected["log"] if row[-1] != "BLANK"]
    assert tally.records == len(rows)
    assert tally.bytes == sum(row[1] for row in rows)
    assert tally.first_timestamp == rows[0][6]
    assert tally.last_timestamp == rows[-1][6]
    wanted: dict[tuple[str, int], list[int]] = {}
    for row in CASE.expected["messages"]:
        wanted.setdefault((row["topic"], row["queueId"]), []).append(row["cqOffset"])
    found = tally.queues()
    assert {key: (row[0], row[5], row[6]) for key, row in found.items()} == {
        key: (len(offsets), min(offsets), max(offsets) + 1) for key, offsets in wanted.items()
    }
    for (topic, queue_id), row in found.items():
        state = None
        for path in sorted((CASE.store / "consumequeue" / topic / str(queue_id)).iterdir()):
            file = PreadFile(DOOR, path, int(path.name))
            with_tags = topic != "SCHEDULE_TOPIC_XXXX"
            state = tally_units(file, 0, file.valid_units(0, 20), 20, 0, 1 << 40, with_tags, None, state)
        assert state is not None
        assert (state[8], state[9]) == (row[0], row[1])


@given(st.permutations(range(6)), st.integers(0, 5), st.integers(0, 3))
def test_the_sum_sees_any_difference(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], changed: int, field: int
) -> None:
    """Equal units in other places, and any changed number, give another sum than the log's."""
    path = tmp_path_factory.getbasetemp() / "sums"
    records = [reference.Record("T", bytes(i), properties=b"TAGS\x01a\x02", queue_offset=i) for i in range(6)]
    _log_of(path, records, 4096)
    tally = LogTally()
    file = PreadFile(DOOR, path)
    messages = _walk(file, 0)[0]
    LogWalk(file, 0).tally(tally)
    row = tally.queues()["T", 0]
    units = [[m.physical_offset, m.size, jhash("a")] for m in messages]
    shuffled = [list(units[i]) for i in order]
    if field < 3:
        shuffled[changed][field] += 1
    path.write_bytes(b"".join(reference.unit(*u) for u in shuffled))
    queue = PreadFile(DOOR, path)
    state = tally_units(queue, 0, queue.bytes, 20, 0, 1 << 40, True, None, None)
    assert state[8] == 6
    assert (state[9] == row[1]) == (shuffled == units)
    if shuffled == units:
        assert state[6] == 0
