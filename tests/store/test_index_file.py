"""IndexFile against real files and a plain model, and what becomes of a file in use.

Room: tests. The model in this file follows the description of the format, not the code under test.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import ConfigError, CorruptFile, StorageError, StoreClosed, StoreNotFound, UsageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.index.index_file import IndexFile, infer_sizes, key_hash

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ENGINE = GOLDEN / "golden-engine"
EVER = (-(2**63), 2**63 - 1)
DOOR = OsApi()
I32 = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")
HEADER = struct.Struct(">qqqqii")


def java_hash(text: str) -> int:
    """String.hashCode."""
    h = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - 2**32 if h >= 2**31 else h


class Model:
    """The index file as a plain object: what stands in it, and what a query finds."""

    def __init__(self, slots: int, capacity: int, previous: tuple[int, int] | None = None) -> None:
        self.capacity, self.slots = capacity, [0] * slots
        self.entries: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        self.begin_time, self.begin_offset = previous or (0, 0)
        self.end_time, self.end_offset = self.begin_time, self.begin_offset

    def put(self, h: int, offset: int, time: int) -> bool:
        number = len(self.entries)
        if number >= self.capacity:
            return False
        seconds = 0
        if self.begin_time > 0:
            seconds = min(max(time - self.begin_time, 0) // 1000, 2**31 - 1)
        self.entries.append((h, offset, seconds, self.slots[h % len(self.slots)]))
        self.slots[h % len(self.slots)] = number
        if number == 1:
            self.begin_time, self.begin_offset = time, offset
        self.end_time, self.end_offset = time, offset
        return True

    def query(self, h: int, begin: int, end: int, most: int) -> list[int]:
        overlaps = begin < self.begin_time and end > self.end_time
        overlaps = overlaps or self.begin_time <= begin <= self.end_time or self.begin_time <= end <= self.end_time
        found: list[int] = []
        number = self.slots[h % len(self.slots)] if overlaps else 0
        while number and len(found) < most:
            stored, offset, seconds, number = self.entries[number]
            time = self.begin_time + seconds * 1000
            if stored == h and begin <= time <= end:
                found.append(offset)
            if time < begin:
                break
        return found

    def image(self) -> bytes:
        used = sum(1 for slot in self.slots if slot)
        count = len(self.entries) if len(self.entries) > 1 else 0  # the count is written with the first entry
        header = HEADER.pack(self.begin_time, self.end_time, self.begin_offset, self.end_offset, used, count)
        body = b"".join(ENTRY.pack(*entry) for entry in self.entries)
        return (header + b"".join(map(I32.pack, self.slots)) + body).ljust(
            40 + 4 * len(self.slots) + 20 * self.capacity, b"\0"
        )


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "20260101000000000")


# --- hash ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [("TopicTest", "UK1", 85106457), ("TopicTest", "k1", 2746024), ("TopicTest", "k2", 2746025)],
)
def test_key_hash_equals_what_java_stored(topic: str, key: str, expected: int) -> None:
    assert key_hash(topic, key) == expected


def test_key_hash_of_a_negative_java_hash() -> None:
    assert java_hash("TopicTest#key1") == -1655984460
    assert key_hash("TopicTest", "key1") % 5_000_000 == 984460


@given(st.text(), st.text())
def test_key_hash_is_javas_for_any_text(topic: str, key: str) -> None:
    h = java_hash(topic + "#" + key)
    assert key_hash(topic, key) == (0 if h == -(2**31) else abs(h))


def test_trap_25_smallest_hash_becomes_zero() -> None:
    # A key is computed that brings the hash of "T#..." to -2^31, digit by digit in base 31.
    target = -(2**31)
    prefix = java_hash("T#")
    for a in range(32, 127):
        for b in range(32, 127):
            rest = (target - ((prefix * 31 + a) * 31 + b) * 31**5) % 2**32
            digits = []
            for power in range(4, -1, -1):
                digit = min(rest // 31**power, 0xD000)
                digits.append(digit)
                rest -= digit * 31**power
            if rest == 0:
                key = chr(a) + chr(b) + "".join(map(chr, digits))
                assert java_hash("T#" + key) == target
                assert key_hash("T", key) == 0
                return
    pytest.fail("no text with that hash was found")


# --- real files ------------------------------------------------------------------------------------------------------


def test_golden_first_file(tmp_path: Path) -> None:
    """The engine's first file: three keys of one record in 10 slots."""
    source = next((ENGINE / "data_A" / "index").iterdir())
    with_sizes = infer_sizes(DOOR, source, 10, 8)
    file = IndexFile.open(DOOR, source, *with_sizes, writable=False)
    rows = list(file.entries())
    assert rows[:3] == [(1, 85106457, 0, 0, 0), (2, 2746024, 0, 0, 0), (3, 2746025, 0, 0, 0)]
    assert file.query(key_hash("TopicTest", "k1"), *EVER, 64) == [0]
    file.close()


def test_trap_24_first_entry_of_a_rolled_file(path: str) -> None:
    """A rolled file's first entry is measured from the end of the file before it; the bytes are Java's."""
    old, new = sorted((ENGINE / "data3_D" / "index").iterdir())
    full = IndexFile.open(DOOR, old, 10, 4, writable=False)
    golden = IndexFile.open(DOOR, new, 10, 4, writable=False)
    assert full.is_full
    assert next(golden.entries()) == (1, 79787510, 306, 1, 0)
    assert (golden.begin_timestamp, golden.end_timestamp) == (1795191084371, 1795191085472)
    assert (golden.begin_offset, golden.end_offset, golden.slots_used, golden.count) == (306, 408, 2, 3)
    mine = IndexFile.create(DOOR, path, 10, 4, (full.end_timestamp, full.end_offset))
    for (_, h, offset, _, _), time in zip(
        golden.entries(), (golden.begin_timestamp, golden.end_timestamp), strict=True
    ):
        assert mine.put(h, offset, time)
    mine.close()
    assert Path(path).read_bytes() == new.read_bytes()


def test_trap_23_entry_zero_is_never_used(path: str) -> None:
    file = IndexFile.create(DOOR, path, 3, 4)
    assert file.count == 1
    assert [file.put(5, offset, 1000) for offset in range(4)] == [True, True, True, False]
    assert file.is_full
    assert file.count == 4
    image = Path(path).read_bytes()
    assert image[52:72] == bytes(20)
    assert file.query(5, *EVER, 64) == [2, 1, 0]


def test_an_empty_file_is_flushed_as_rocketmq_does(path: str) -> None:
    file = IndexFile.create(DOOR, path, 4, 4, (77, 99))
    assert HEADER.unpack_from(Path(path).read_bytes()) == (77, 77, 99, 99, 0, 0)
    file.flush()
    assert HEADER.unpack_from(Path(path).read_bytes()) == (77, 77, 99, 99, 0, 1)
    file.put(1, 100, 5000)
    file.flush()
    assert HEADER.unpack_from(Path(path).read_bytes()) == (5000, 5000, 100, 100, 1, 2)


# --- model -----------------------------------------------------------------------------------------------------------

PUTS = st.lists(
    st.tuples(
        st.integers(0, 6) | st.integers(0, 2**31 - 1),
        st.integers(0, 2**62),
        st.sampled_from([0, 1, 999, 1000, 5000, 5_000_000, 2**45, -4000]),
    ),
    max_size=60,
)
PREVIOUS = st.none() | st.tuples(st.integers(1, 10**13), st.integers(1, 2**40))


@given(
    PUTS,
    st.integers(1, 9),
    st.integers(2, 50),
    PREVIOUS,
    st.integers(0, 10**13),
    st.tuples(st.integers(-6000, 9000), st.integers(-6000, 9000)),
    st.integers(-1, 70),
)
def test_file_equals_the_model(
    tmp_path: Path,
    puts: list[tuple[int, int, int]],
    slots: int,
    capacity: int,
    previous: tuple[int, int] | None,
    start: int,
    window: tuple[int, int],
    most: int,
) -> None:
    path = str(tmp_path / "f")
    model = Model(slots, capacity, previous)
    file = IndexFile.create(DOOR, path, slots, capacity, previous)
    try:
        time = start
        for h, offset, step in puts:
            time += step
            assert file.put(h, offset, time) == model.put(h, offset, time)
        assert Path(path).read_bytes() == model.image()
        assert [row[1:] for row in file.entries()] == model.entries[1:]
        assert (file.end_timestamp, file.end_offset) == (model.end_time, model.end_offset)
        reader = IndexFile.open(DOOR, path, slots, capacity, writable=False)
        for h in {row[0] for row in puts} | {3}:
            for begin, end in (EVER, (start + window[0], start + window[1]), (time + window[0], time + window[1])):
                expected = model.query(h, begin, end, most)
                assert file.query(h, begin, end, most) == expected
                assert reader.query(h, begin, end, most) == expected
        reader.close()
        file.close()
        again = IndexFile.open(DOOR, path, slots, capacity)
        assert again.put(1, 2, time) == model.put(1, 2, time)
        assert Path(path).read_bytes() == model.image()
        again.close()
    finally:
        file.destroy()


def test_the_bounds_of_a_query_belong_to_it(path: str) -> None:
    file = IndexFile.create(DOOR, path, 2, 10)
    for offset, moment in ((100, 10_000), (200, 12_000), (300, 14_000)):
        file.put(4, offset, moment)
    for begin, end, expected in (
        (12_000, 12_000, [200]),
        (12_000, 14_000, [300, 200]),
        (10_000, 12_000, [200, 100]),
        (12_001, 13_999, []),
    ):
        assert file.query(4, begin, end, 10) == expected


def test_more_hits_than_one_chunk(path: str) -> None:
    file = IndexFile.create(DOOR, path, 2, 1000)
    for i in range(999):
        file.put(4, i, 1000)
    for most in (0, 1, 63, 64, 65, 128, 500, 10**12):
        assert file.query(4, *EVER, most) == list(range(998, -1, -1))[:most]
    out = [-1] * 990
    assert not file.select_into(out, 4, *EVER, 1000)
    assert out[990:] == list(range(998, 988, -1))


def test_times_beyond_64_bits_mean_the_bound(path: str) -> None:
    file = IndexFile.create(DOOR, path, 2, 10)
    file.put(4, 7, 1000)
    file.put(4, 8, 1000)
    assert file.query(4, -(10**30), 10**30, 5) == [8, 7]
    assert file.query(4, 10**30, 10**30, 5) == []


# --- life ------------------------------------------------------------------------------------------------------------


def test_closed_file_refuses(path: str) -> None:
    file = IndexFile.create(DOOR, path, 2, 10)
    file.put(1, 5, 1000)
    file.put(1, 6, 1000)
    iterator = file.entries()
    next(iterator)
    file.close()
    file.close()
    assert file.closed
    for call in (
        lambda: file.put(1, 1, 1),
        lambda: file.query(1, *EVER, 1),
        file.flush,
        lambda: list(IndexFile.entries(file)),
    ):
        with pytest.raises(StoreClosed, match="20260101000000000"):
            call()
    assert file.end_offset == 6
    file.destroy()
    assert not os.path.exists(path)


def test_a_file_cannot_be_made_without_create_or_open() -> None:
    with pytest.raises(UsageError):
        IndexFile()
    blank = IndexFile.__new__(IndexFile)
    blank.close()
    with pytest.raises(StoreClosed):
        blank.query(1, *EVER, 1)


def test_create_refuses_an_existing_file_and_leaves_it(path: str) -> None:
    Path(path).write_bytes(b"mine")
    with pytest.raises(StorageError, match="exists"):
        IndexFile.create(DOOR, path, 2, 10)
    assert Path(path).read_bytes() == b"mine"


def test_create_takes_over_what_a_killed_creation_left(path: str) -> None:
    Path(path + ".tmp").write_bytes(b"x" * 1000)
    file = IndexFile.create(DOOR, path, 2, 10)
    assert Path(path).read_bytes() == bytes(248)
    assert not os.path.exists(path + ".tmp")
    file.destroy()


@pytest.mark.parametrize(("slots", "capacity"), [(0, 10), (-1, 10), (5, 1), (5, -3), (2**40, 10), (5, 2**31)])
def test_impossible_sizes(path: str, slots: int, capacity: int) -> None:
    with pytest.raises(ConfigError, match="max_index_num"):
        IndexFile.create(DOOR, path, slots, capacity)
    assert not os.listdir(os.path.dirname(path))


def test_open_refuses_a_wrong_length(path: str) -> None:
    Path(path).write_bytes(bytes(247))
    with pytest.raises(CorruptFile, match=r"2 slots and 10 entries.*expected 248 bytes, found 247 bytes"):
        IndexFile.open(DOOR, path, 2, 10)
    with pytest.raises(StoreNotFound):
        IndexFile.open(DOOR, path + "x", 2, 10)
    with pytest.raises(StorageError):
        IndexFile.open(DOOR, os.path.dirname(path), 2, 10, writable=False)


def test_a_reader_does_not_write(path: str) -> None:
    IndexFile.create(DOOR, path, 2, 10).close()
    reader = IndexFile.open(DOOR, path, 2, 10, writable=False)
    with pytest.raises(UsageError):
        reader.put(1, 1, 1)
    reader.flush()
    reader.reserve()
    assert Path(path).read_bytes() == bytes(248)


def test_a_reader_sees_what_the_writer_adds(path: str) -> None:
    writer = IndexFile.create(DOOR, path, 2, 10)
    reader = IndexFile.open(DOOR, path, 2, 10, writable=False)
    assert reader.query(7, *EVER, 5) == []
    writer.put(7, 100, 1000)
    writer.put(7, 200, 3000)
    assert reader.query(7, *EVER, 5) == [200, 100]
    assert (reader.count, reader.begin_timestamp, reader.end_timestamp) == (3, 1000, 3000)


def test_a_reader_outlives_a_shrinking_file(path: str) -> None:
    """No signal, only an error, when the file becomes shorter under a reader."""
    writer = IndexFile.create(DOOR, path, 2, 10)
    writer.put(7, 100, 1000)
    writer.put(7, 200, 1000)
    writer.close()
    reader = IndexFile.open(DOOR, path, 2, 10, writable=False)
    for length in (90, 47, 10, 0):
        os.truncate(path, length)
        with pytest.raises(CorruptFile, match="shrunk"):
            reader.query(7, *EVER, 5)
    with pytest.raises(CorruptFile, match="shrunk"):
        list(reader.entries())


def test_full_disk_is_an_error_at_creation(path: str) -> None:
    """A real filesystem of one mebibyte, in a namespace of its own: DiskFull, and nothing is left behind."""
    folder = os.path.dirname(path)
    enter = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"', "sh", folder]
    try:
        possible = subprocess.run([*enter, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("this system does not let us mount a small filesystem")
    script = (
        "import os, sys\n"
        "from mqfast.errors import DiskFull\n"
        "from mqfast.store.index.index_file import IndexFile\n"
        "from mqfast.store.base.os_api import OsApi\n"
        "os.chdir(sys.argv[1])\n"
        "IndexFile.create(OsApi(), 'small', 4, 1000).put(1, 1, 1)\n"
        "try:\n"
        "    IndexFile.create(OsApi(), 'large', 1_000_000, 100_000)\n"
        "except DiskFull as error:\n"
        "    print(error.filename, os.listdir('.'))\n"
    )
    done = subprocess.run([*enter, sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "large ['small']\n"


def test_refused_allocation_leaves_nothing(path: str) -> None:
    """In a process whose files may not become that long."""
    script = (
        "import resource, signal, sys\n"
        "from mqfast.errors import StorageError\n"
        "from mqfast.store.index.index_file import IndexFile\n"
        "from mqfast.store.base.os_api import OsApi\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "small = IndexFile.create(OsApi(), sys.argv[1] + 's', 4, 10)\n"
        "assert small.put(1, 1, 1)\n"
        "try:\n"
        "    IndexFile.create(OsApi(), sys.argv[1], 1000, 10_000)\n"
        "except StorageError as error:\n"
        "    print('refused', error.filename)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"refused {path}\n"
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path) + "s"]


def test_blocks_are_there_before_each_put_and_not_long_before(disk_path: Path) -> None:
    path = str(disk_path / "20260101000000000")

    def blocks(name: str) -> int:
        return os.stat(name).st_blocks * 512

    file = IndexFile.create(DOOR, path, 1000, 500_000)
    assert os.stat(path).st_size == 10_004_040
    assert 4040 <= blocks(path) <= 2 << 20
    for number in range(1, 100_000):
        file.put(number, number, number)
        used = 4040 + 20 * (number + 1)
        if number % 1000 == 0 or number < 100:
            assert used <= blocks(path) <= 2 * used + (2 << 20), number
    file.close()
    # Of another program, with holes everywhere.
    with open(path + "x", "wb") as sparse:
        sparse.truncate(10_004_040)
    foreign = IndexFile.open(DOOR, path + "x", 1000, 500_000)
    foreign.flush()
    assert blocks(path + "x") == 0, "a flush wrote into a hole"
    foreign.put(3, 4, 5)
    assert 4040 + 40 <= blocks(path + "x") <= 2 << 20
    assert [row[:3] for row in foreign.entries()] == [(1, 3, 4)]


def test_queries_while_putting_and_closing(path: str) -> None:
    """Readers beside the writer never lose a key that was there, never see a strange one, and survive close."""
    file = IndexFile.create(DOOR, path, 16, 40_001)
    reader = IndexFile.open(DOOR, path, 16, 40_001, writable=False)
    done = threading.Event()
    wrong: list[object] = []
    outcomes: list[str] = []
    for i in range(64):
        file.put(i, i, 1000)

    def look(target: IndexFile, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not done.is_set():
                h = rng.randrange(64)
                hits = target.query(h, *EVER, 100_000)
                if not hits or hits[-1] != h or any(hit % 64 != h for hit in hits):
                    wrong.append((h, hits[-3:]))
                if hits != sorted(hits, reverse=True):
                    wrong.append((h, "order"))
            outcomes.append("stopped")
        except StoreClosed:
            outcomes.append("closed")

    threads = [threading.Thread(target=look, args=(target, n)) for n, target in enumerate((file, file, reader))]
    for thread in threads:
        thread.start()
    for i in range(64, 40_000):
        assert file.put(i % 64, i, 1000)
    file.close()
    threads[0].join()
    threads[1].join()
    done.set()
    threads[2].join()
    assert wrong == []
    assert outcomes == ["closed", "closed", "stopped"]


def test_fork_does_not_need_the_parents_mapping(path: str) -> None:
    file = IndexFile.create(DOOR, path, 4, 10)
    file.put(1, 5, 1000)
    file.put(1, 6, 1000)
    child = os.fork()
    if child == 0:
        os._exit(0 if file.query(1, *EVER, 5) == [6, 5] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's /proc")
def test_no_descriptor_is_left_open(path: str) -> None:
    for _ in range(20):
        IndexFile.create(DOOR, path, 2, 10).destroy()
        with pytest.raises(CorruptFile):
            Path(path).write_bytes(b"short")
            IndexFile.open(DOOR, path, 2, 10)
        with pytest.raises(CorruptFile):
            infer_sizes(DOOR, path)
        os.unlink(path)
    assert not [one for one in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{one}").startswith(path)]
