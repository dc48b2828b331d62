"""The walk by pread: every record, any damage, files that shrink, records longer than the window.

Compared with the slow model and with golden stores. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import CorruptFile, MqfastError, StorageError, StoreClosed, StoreNotFound
from mqfast.properties import jhash
from mqfast.store.base.os_api import OsApi
from mqfast.store.reader.scan import ExtFiles, LogTally, LogWalk, PreadFile, tally_index, tally_units
from mqfast.store.record.record import StoredMessage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import reference
from conftest import golden_cases

DOOR = OsApi()
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


# --- edges that golden stores do not have -----------------------------------------------------------------------------

BLOCK = 262144  # what is read at once


class Failing:
    """A door whose reads fail or find nothing from a call on."""

    def __init__(self, answer: int) -> None:
        signature = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        )
        self.os_api = OsApi()
        self._function = signature(lambda *_: answer)
        self._table = (ctypes.c_void_p * 27).from_address(self.os_api.table_address)

    def fail(self) -> None:
        self._table[13] = ctypes.cast(self._function, ctypes.c_void_p).value  # pread, in csrc/os_api.h


@pytest.mark.parametrize("answer", [-errno.EIO, 0])
def test_unreadable_file_raises_in_every_read(tmp_path: Path, answer: int) -> None:
    """A failed read, and one that finds less than the file was long."""
    _log_of(tmp_path / "log", [reference.Record("T", b"x")] * 20, 4096)
    (tmp_path / "units").write_bytes(reference.unit(0, 100, 0) * 400)
    slots = 70_000
    (tmp_path / "index").write_bytes((bytes(36) + struct.pack(">i", 2)).ljust(40 + 4 * slots + 20 * 3, b"\0"))
    (tmp_path / "slots").write_bytes((bytes(36) + struct.pack(">i", 1)).ljust(40 + 4 * slots + 20 * 3, b"\0"))
    failing = Failing(answer)
    log, units = PreadFile(failing.os_api, tmp_path / "log"), PreadFile(failing.os_api, tmp_path / "units")
    index, empty = PreadFile(failing.os_api, tmp_path / "index"), PreadFile(failing.os_api, tmp_path / "slots")
    assert tally_index(index, slots, 3, 0, 1)[0] == 1
    assert tally_index(empty, slots, 3, 0, 1)[0] == 0
    assert log.read(4000, 200, False) == bytes(96)
    failing.fail()
    calls: list[Callable[[], object]] = [
        lambda: log.read(0, 10),
        lambda: log.record(0),
        lambda: units.valid_units(0, 20),
        lambda: LogWalk(log, 0).batch(),
        lambda: LogWalk(log, 0).skip(),
        lambda: LogWalk(log, 0).tally(LogTally()),
        lambda: tally_units(units, 0, 8000, 20, 0, 1, True, None, None),
        lambda: tally_index(index, slots, 3, 0, 1),
    ]
    for call in calls:
        with pytest.raises(StorageError if answer else CorruptFile) as raised:
            call()
        assert answer == 0 or (raised.value.errno == errno.EIO and not isinstance(raised.value, CorruptFile))
    if answer == 0:
        assert log.read(0, 10, False) == b""
        assert log.first_set_byte(0) == log.find_record(1) == -1
    else:
        for search in (log.first_set_byte, log.find_record):
            with pytest.raises(StorageError):
                search(0)


def test_a_slot_table_that_is_cut_off(tmp_path: Path) -> None:
    """The entries are all there (there are none), the slots are not."""
    slots = 70_000
    path = tmp_path / "index"
    path.write_bytes((bytes(36) + struct.pack(">i", 1)).ljust(40 + 4 * slots + 20 * 3, b"\0"))
    file = PreadFile(DOOR, path)
    os.truncate(path, 40 + 4 * slots - 8)
    with pytest.raises(CorruptFile, match="has shrunk"):
        tally_index(file, slots, 3, 0, 1)
    path.write_bytes((bytes(36) + struct.pack(">i", 3)).ljust(40 + 4 * slots + 20 * 3, b"\0"))
    file = PreadFile(DOOR, path)
    os.truncate(path, 40 + 4 * slots + 30)
    with pytest.raises(CorruptFile, match="has shrunk"):
        tally_index(file, slots, 3, 0, 1)
    for sizes in ((0, 3), (slots, 1), (slots, 4)):
        with pytest.raises(CorruptFile, match="no index file of these sizes"):
            tally_index(file, *sizes, 0, 1)


def test_a_closed_file_answers_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100)
    file = PreadFile(DOOR, tmp_path / "log", 1000)
    assert file.read(200, 5, False) == b""
    with pytest.raises(CorruptFile):
        file.read(-1, 5, False)
    assert file.record(999) == file.record(1093) == "outside of the file"
    assert file.record(1000, 90) == file.record(1000, 101) == "length"
    file.close()
    for call in (lambda: file.valid_units(0, 20), lambda: file.first_set_byte(0)):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StorageError):
        file.find_record(1000)


def test_records_are_found_behind_anything(tmp_path: Path) -> None:
    """Behind a block without one, among bytes that begin like a magic code, and not where there is none."""
    record = dataclasses.replace(reference.Record("T", b"x" * 50), physical_offset=BLOCK + 777)
    marks = b"\xda" * 200
    (tmp_path / "log").write_bytes((marks + bytes(BLOCK + 577) + record.encode()).ljust(2 * BLOCK + 20, b"\xda"))
    file = PreadFile(DOOR, tmp_path / "log")
    assert file.find_record(-5) == file.find_record(1) == file.find_record(BLOCK + 777) == BLOCK + 777
    assert file.find_record(BLOCK + 778) == -1
    long = dataclasses.replace(record, topic="T" * 130, physical_offset=300)  # of version 2, behind a mere likeness
    likeness = bytearray(dataclasses.replace(record, physical_offset=100).encode())
    likeness[:4] = struct.pack(">i", 1 << 20)
    (tmp_path / "long").write_bytes((bytes(100) + likeness).ljust(300, b"\0") + long.encode())
    assert PreadFile(DOOR, tmp_path / "long").find_record(0) == 300
    for length in (91, 92, 95, 120, 126, 127):
        (tmp_path / "short").write_bytes(b"\xda" * length)
        assert PreadFile(DOOR, tmp_path / "short").find_record(0) == -1


def test_bytes_behind_holes(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as handle:
        handle.truncate(3 * BLOCK)
        handle.seek(2 * BLOCK + 10)
        handle.write(b"x")
    file = PreadFile(DOOR, tmp_path / "log")
    assert file.first_set_byte(0) == file.first_set_byte(2 * BLOCK + 10) == 2 * BLOCK + 10
    assert file.first_set_byte(2 * BLOCK + 11) == -1
    assert file.first_set_byte(3 * BLOCK) == -1


def test_lengths_that_do_not_fit_a_body_beyond_the_window(tmp_path: Path) -> None:
    whole = reference.Record("T", bytes(400_000)).encode()
    body_length = 84
    (tmp_path / "good").write_bytes(whole)
    assert LogWalk(PreadFile(DOOR, tmp_path / "good"), 0).skip() == "end"
    for number in (-1, 1, 399_000 - 65_538 - 100, 400_020, 2**31 - 1):
        (tmp_path / "log").write_bytes(whole[:body_length] + struct.pack(">i", number) + whole[body_length + 4 :])
        assert LogWalk(PreadFile(DOOR, tmp_path / "log"), 0).skip() == "length"
    (tmp_path / "least").write_bytes(struct.pack(">i", 80) + whole[4:])
    assert LogWalk(PreadFile(DOOR, tmp_path / "least"), 0, block_bytes=1).skip() == "no record"
    six = dataclasses.replace(
        reference.Record("T", bytes(400_000)), sys_flag=0x30, born_host=("::1", 1), store_host=("::2", 2)
    )
    (tmp_path / "six").write_bytes(six.encode())
    assert LogWalk(PreadFile(DOOR, tmp_path / "six"), 0).skip() == "end"


def test_a_tally_of_many_queues(tmp_path: Path) -> None:
    """More queues than its table begins with, and topics of every length around the eight bytes hashed at once."""
    topics = ["T" * n for n in range(1, 40)] + [f"topic{n}" for n in range(400)]
    records = [reference.Record(topic, b"", queue_id=i % 3, queue_offset=i) for i, topic in enumerate(topics)]
    _log_of(tmp_path / "log", records, 80_000)
    tally = LogTally()
    LogWalk(PreadFile(DOOR, tmp_path / "log"), 0).tally(tally)
    assert {key: (row[0], row[5]) for key, row in tally.queues().items()} == {
        (topic, i % 3): (1, i) for i, topic in enumerate(topics)
    }


def test_a_tally_of_other_queues_keys_and_times(tmp_path: Path) -> None:
    def record(text: str, **fields: Any) -> reference.Record:
        return reference.Record("T", b"", properties=text.encode(), **fields)

    multi = "INNER_MULTI_DISPATCH\x01{}\x02INNER_MULTI_QUEUE_OFFSET\x01{}\x02"
    records = [
        record(multi.format("%LMQ%a,b", "7,8"), store_timestamp=10),
        record(multi.format("%LMQ%a,,a/b,c", "8,1,2"), store_timestamp=9),  # no name, no directory, no offset
        record(multi.format("%LMQ%a,b", "9"), store_timestamp=8),
        record(multi.format("%LMQ%a,b", "x,"), store_timestamp=12),
        record("INNER_MULTI_DISPATCH\x01%LMQ%a\x02", store_timestamp=12),
        record("INNER_NUM\x015\x02INNER_BASE\x0130\x02", sys_flag=0x80, store_timestamp=12, queue_offset=30),
        record("KEYS\x01 a  b \x02UNIQ_KEY\x01u\x02", store_timestamp=12),
        record("KEYS\x01a\x02", sys_flag=0xC, store_timestamp=12),  # rolled back: neither queue nor index
        record("KEYS\x01a\x02", sys_flag=0x4, store_timestamp=12),  # prepared: only the index
        reference.Record("SCHEDULE_TOPIC_XXXX", b"", properties=b"TAGS\x01t\x02", store_timestamp=12),
    ]
    _log_of(tmp_path / "log", records, 8192)
    tally = LogTally()
    LogWalk(PreadFile(DOOR, tmp_path / "log"), 0).tally(tally)
    assert (tally.records, tally.backward_times, tally.keys) == (10, 2, 4)
    rows = {key: (row[0], row[5], row[6]) for key, row in tally.queues().items()}
    assert rows.pop(("SCHEDULE_TOPIC_XXXX", 0)) == (1, 0, 1)
    assert rows.pop(("T", 0)) == (7, 0, 35)
    assert rows == {("%LMQ%a", 0): (3, 7, 10), ("b", 0): (1, 8, 9)}


def test_invalid_units_are_counted(tmp_path: Path) -> None:
    good, bad = reference.unit(0, 100, 0), reference.unit(-1, 100, 0)
    (tmp_path / "queue").write_bytes(good + bad + reference.unit(100, 0, 0) + reference.unit(200, 100, 5) + b"rest")
    file = PreadFile(DOOR, tmp_path / "queue", 1000)
    found = tally_units(file, 0, 84, 20, 0, 1000, False, None, None)
    assert found[:6] == (4, 0, 0, 0, 2, 1020)


def test_an_extension_that_cannot_be_resolved(tmp_path: Path) -> None:
    least = -(1 << 63)
    unit = reference.ext_record(5, 6)
    (tmp_path / "ext").write_bytes(unit + struct.pack(">h", 19) + bytes(100))
    ext = ExtFiles([PreadFile(DOOR, tmp_path / "ext", 0)])
    assert ext.tags_code(7) == 7
    assert ext.tags_code(least) == 5
    for address in (least + len(unit), least + 4096):  # too short to be a unit; behind the file
        assert ext.tags_code(address) == address
    os.truncate(tmp_path / "ext", 8)
    assert ext.tags_code(least) == least
    assert ExtFiles([PreadFile(DOOR, tmp_path / "ext", 50)]).tags_code(least) == least  # before the first file
    assert ExtFiles([]).tags_code(least) == least


def test_an_index_of_more_entries_than_are_read_at_once(tmp_path: Path) -> None:
    """Every entry and every slot is looked at, also those that are wrong."""
    slots, entries = 70_000, 15_000
    heads: dict[int, int] = {}
    rows = []
    for number in range(1, entries):
        key_hash = number * 7919 % 100_003
        rows.append([key_hash, number, 0, heads.get(key_hash % slots, 0)])
        heads[key_hash % slots] = number
    size = 40 + 4 * slots + 20 * entries

    def tally(rows: list[list[int]], heads: dict[int, int], count: int = entries) -> tuple[int, ...]:
        data = bytearray(size)
        struct.pack_into(">i", data, 36, count)
        for slot, number in heads.items():
            struct.pack_into(">i", data, 40 + 4 * slot, number)
        for number, row in enumerate(rows, 1):
            struct.pack_into(">iqii", data, 40 + 4 * slots + 20 * number, *row)
        (tmp_path / "index").write_bytes(data)
        return tally_index(PreadFile(DOOR, tmp_path / "index"), slots, entries, 1000, 10_000)

    right = tally(rows, heads)
    assert (right[0], right[1], right[3:]) == (entries - 1, 9000, (0, -1, 0, -1, 5000))
    for column, value in ((0, -1), (1, -1), (2, -1), (3, 77)):
        wrong = [list(row) for row in rows]
        wrong[99][column] = wrong[14_000][column] = value
        assert tally(wrong, heads)[3:5] == (2, 40 + 4 * slots + 20 * 100)
    others = {**heads, 3: 5, 69_999: 5}
    assert tally(rows, others)[5:7] == (sum(heads.get(slot, 0) != 5 for slot in (3, 69_999)), 40 + 4 * 3)
    assert tally(rows, heads, -5)[0] == 0  # no such count: taken for none
    assert tally(rows, heads, entries + 5)[0] == entries - 1  # nor this one: as many as there is room for
