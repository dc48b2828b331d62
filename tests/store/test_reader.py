"""StoreReader on stores that are damaged, shrink, vanish or grow: exceptions of mqfast or right answers, nothing else.

What whole stores must give stands in ``test_golden_reader.py``. All work is on copies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, MqfastError, OffsetError, StoreClosed, StoreNotFound, UsageError
from mqfast.store.base.results import BoundaryType, GetMessageStatus
from mqfast.store.check.verify import verify
from mqfast.store.reader.store_reader import StoreReader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from conftest import golden_cases

TINY: dict[str, Any] = {
    "mapped_file_bytes_commit_log": 65536,
    "mapped_file_bytes_consume_queue": 1000,
    "max_hash_slot_num": 64,
    "max_index_num": 500,
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the broadest clean store."""
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    return Path(shutil.copytree(case.store, tmp_path / "store"))


def _tour(reader: StoreReader, calm: bool = False) -> int:
    """Call everything; errors of mqfast are fine, anything else is not. Returns how much was read."""
    seen = 0

    def attempt(call: Callable[[], Any]) -> Any:
        nonlocal seen
        with contextlib.nullcontext() if calm else contextlib.suppress(MqfastError):
            result = call()
            seen += 1
            return result
        return None

    places: list[int] = []

    def walk(iterator: Iterator[Any]) -> None:
        nonlocal seen
        for message in iterator:
            seen += 1
            places.append(message.physical_offset)
            assert len(message.to_bytes()) == message.size
            assert message.check_crc()
            assert isinstance(message.topic, str)

    attempt(lambda: walk(reader.scan()))
    attempt(reader.log_range)
    attempt(lambda: reader.earliest_message_time)
    attempt(reader.queues)
    for topic in attempt(reader.topics) or ():
        for queue_id in range(4):
            low = attempt(lambda t=topic, q=queue_id: reader.min_offset(t, q)) or 0
            high = attempt(lambda t=topic, q=queue_id: reader.max_offset(t, q)) or 0
            assert low <= high
            attempt(lambda t=topic, q=queue_id: walk(reader.messages(t, q)))
            for offset in (0, low, (low + high) // 2, high):
                attempt(lambda t=topic, q=queue_id, o=offset: reader.get(t, q, o, 3, tags="TagA || TagB"))
            for boundary in BoundaryType:
                attempt(lambda t=topic, q=queue_id, b=boundary: reader.offset_by_time(t, q, 1795253890000, b))
        attempt(lambda t=topic: reader.query(t, "k1"))
    for place in places[:5]:
        attempt(lambda p=place: reader.get_by_offset(p))
    attempt(lambda: reader.checkpoint)
    attempt(lambda: reader.consumer_offsets("cg_all"))
    return seen


# --- damage -----------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["normal-clean", "lmq", "cq-ext", "batch-cq", "ha-slave"]),
    st.randoms(use_true_random=False),
    st.sampled_from(["flip", "truncate", "remove", "random"]),
)
def test_any_damage(tmp_path_factory: pytest.TempPathFactory, name: str, random: Any, what: str) -> None:
    """Whatever happens to a file: whole messages or errors of mqfast; verify never fails, and sees a changed unit."""
    (case,) = golden_cases("5.3.3", (name,))
    store = tmp_path_factory.mktemp("damage") / "store"
    shutil.copytree(case.store, store)
    path = random.choice([p for p in sorted(store.rglob("*")) if p.is_file() and p.stat().st_size])
    data = bytearray(path.read_bytes())
    touched_unit = False
    if what == "flip":
        used = len(bytes(data).rstrip(b"\0"))
        at = random.randrange(max(1, used))
        change = random.randrange(1, 256)
        topic, base = path.parent.parent.name, path.parent.parent.parent.name
        # Delivery times in the schedule queues depend on the broker's table of delays: verify does not know it.
        filler = data[at - at % 20 :][:12] == bytes(8) + b"\x7f\xff\xff\xff"
        touched_unit = base == "consumequeue" and at < used - used % 20 and topic != "SCHEDULE_TOPIC_XXXX"
        touched_unit = touched_unit and not filler
        data[at] ^= change
    elif what == "truncate":
        del data[random.randrange(len(data)) :]
    elif what == "random":
        at = random.randrange(len(data))
        data[at : at + 64] = random.randbytes(len(data[at : at + 64]))
    if what == "remove":
        path.unlink()
    else:
        path.write_bytes(data)
    with contextlib.suppress(MqfastError), StoreReader(store) as reader:
        assert _tour(reader) > 5
    report = verify(store)
    assert isinstance(str(report), str)
    if touched_unit:
        assert report.state == "damaged"
    shutil.rmtree(store.parent)


def test_a_damaged_message_ends_a_get(copy: Path) -> None:
    """What stands before the damage is returned first; at the damage the error names file and offset."""
    with StoreReader(copy) as reader:
        messages = list(reader.messages("TopicA", 0))
        bad = messages[3]
    path = copy / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[bad.physical_offset + 88] ^= 1
    path.write_bytes(data)
    with StoreReader(copy) as reader:
        result = reader.get("TopicA", 0, 0)
        assert [m.queue_offset for m in result] == [0, 1, 2]
        assert result.next_offset == 3
        with pytest.raises(CorruptFile) as error:
            reader.get("TopicA", 0, 3)
        assert (error.value.path, error.value.offset) == (str(path), bad.physical_offset)
        with pytest.raises(CorruptFile):
            list(reader.messages("TopicA", 0))
        assert reader.get("TopicA", 0, 4)[0].to_bytes() == messages[4].to_bytes()
        with pytest.raises(CorruptFile):
            reader.get_by_offset(bad.physical_offset)
        scan = reader.scan()
        assert max(m.physical_offset for m in scan) < bad.physical_offset
        assert (scan.at, scan.reason) == (bad.physical_offset, "crc")
        assert [m.physical_offset for m in reader.scan(check_crc=False)][-1] > bad.physical_offset


@pytest.mark.parametrize("gone", ["consumequeue/TopicA/0", "commitlog", "consumequeue", "index", "."])
def test_files_that_vanish_after_open(copy: Path, gone: str) -> None:
    """Removed under the reader: errors of mqfast, and what is left is still read."""
    with StoreReader(copy) as reader:
        kept = reader.get("TopicA", 0, 0)[0]
        shutil.rmtree(copy / gone)
        _tour(reader)
        with contextlib.suppress(MqfastError):
            reader.refresh()
        _tour(reader)
        if gone in ("commitlog", "."):
            with pytest.raises(MqfastError):
                reader.get_by_offset(200_000)
        if gone.startswith("consume"):
            assert reader.get("TopicA", 0, 0).status == GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
            assert len(list(reader.scan())) == 353
        assert kept.check_crc()


@pytest.mark.parametrize("which", ["commitlog", "consumequeue/TopicA/0", "index"])
@pytest.mark.parametrize("size", [0, 1, 19, 700])
def test_files_that_shrink_after_open(copy: Path, which: str, size: int) -> None:
    """Cut under the reader: errors of mqfast, no signal."""
    with StoreReader(copy) as reader:
        assert _tour(reader, calm=True) > 1000
        for path in (copy / which).iterdir():
            os.truncate(path, size)
        _tour(reader)
        if which == "commitlog":
            with pytest.raises(MqfastError):
                reader.get("TopicA", 0, 0)
            with pytest.raises(CorruptFile):
                list(reader.scan())


def test_units_behind_the_log_are_cut_off(copy: Path) -> None:
    """A queue that is ahead of the log ends at its last whole record, however many units are ahead."""
    with StoreReader(copy) as reader:
        before = {(q.topic, q.queue_id): list(reader.messages(q.topic, q.queue_id)) for q in reader.queues()}
    log = max((copy / "commitlog").iterdir())
    cut = int(log.name) + 3000
    data = log.read_bytes()
    log.write_bytes(data[:3000].ljust(len(data), b"\0"))
    with StoreReader(copy) as reader:
        lost = 0
        for (topic, queue_id), messages in before.items():
            whole = [m.queue_offset for m in messages if m.physical_offset + m.size <= cut]
            assert [m.queue_offset for m in reader.messages(topic, queue_id)] == whole
            assert reader.max_offset(topic, queue_id) - len(whole) == reader.min_offset(topic, queue_id)
            lost += len(messages) - len(whole)
        assert lost > 20


def test_removed_log_files(copy: Path) -> None:
    """Behind retention the queues begin where the log begins; what was removed is not damage."""
    os.unlink(copy / "commitlog" / f"{0:020}")
    with StoreReader(copy) as reader:
        assert reader.log_range() == (131072, 326739)
        found = 0
        for queue in reader.queues():
            messages = list(reader.messages(queue.topic, queue.queue_id))
            assert [m.queue_offset for m in messages] == list(range(queue.min_offset, queue.max_offset))
            assert all(m.physical_offset >= 131072 for m in messages)
            if queue.min_offset:
                small = reader.get(queue.topic, queue.queue_id, 0)
                assert (small.status, small.next_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, queue.min_offset)
            found += len(messages)
        assert found == 102
        with pytest.raises(OffsetError):
            reader.get_by_offset(0)
        with pytest.raises(OffsetError):
            reader.scan(0)
    assert verify(copy).ok


# --- beside a writer --------------------------------------------------------------------------------------------------


def test_a_queue_that_was_listed_before_its_first_file_was_made(tmp_path: Path) -> None:
    """The writer makes the directory first; a reader that lists the queues in between sees the messages too."""
    with mqfast.open(tmp_path / "store", **TINY) as store:
        store.put("A", b"another queue")
        directory = tmp_path / "store" / "consumequeue" / "T" / "0"
        directory.mkdir(parents=True)
        with StoreReader(tmp_path / "store") as reader:
            assert ("T", 0, 0, 0) in reader.queues()
            assert reader.get("T", 0, 0).max_offset == 0
            store.put("T", b"first")
            assert [bytes(m.body) for m in store.get("T", 0, 0)] == [b"first"]
            assert [bytes(m.body) for m in reader.get("T", 0, 0)] == [b"first"]
            assert reader.max_offset("T", 0) == 1


def test_beside_a_live_writer(tmp_path: Path) -> None:
    """Each message is seen as soon as it is dispatched, over many file ends and in queues that are new."""
    with mqfast.open(tmp_path / "store", **TINY) as store, StoreReader(tmp_path / "store") as reader:
        assert reader.queues() == []
        assert reader.log_range()[1] == 0
        for i in range(700):
            topic = f"T{i % 3}"
            put = store.put(topic, b"%06d" % i * 40, tags="even" if i % 2 == 0 else "odd", keys=f"k{i}")
            assert list(reader.scan(put.physical_offset))[-1].physical_offset == put.physical_offset
            store.query(topic, f"k{i}")  # has the put dispatched, its key too
            result = reader.get(topic, 0, i // 3)
            assert [bytes(m.body) for m in result] == [b"%06d" % i * 40]
            assert result.max_offset == i // 3 + 1 == reader.max_offset(topic, 0)
            if i % 50 == 0:
                assert reader.get_by_offset(put.physical_offset).queue_offset == i // 3
                assert [m.queue_offset for m in reader.query(topic, f"k{i}")] == [i // 3]
        assert len(os.listdir(tmp_path / "store/commitlog")) > 3
        assert len(list(reader.scan())) == 700
        assert reader.log_range() == (0, put.physical_offset + put.size)
        assert [m.tags for m in reader.get("T0", 0, 0, 1000, tags="odd")] == ["odd"] * 117
        assert reader.is_dirty
        assert verify(tmp_path / "store").ok
    with StoreReader(tmp_path / "store") as reader:
        assert [bytes(m.body[:6]) for m in reader.messages("T1", 0)] == [b"%06d" % i for i in range(1, 700, 3)]
        assert not reader.is_dirty
    assert verify(tmp_path / "store").state == "clean"


def test_threads_share_a_reader(copy: Path) -> None:
    """Calls of many threads take turns and give each its answer."""
    with StoreReader(copy) as reader:
        wanted = [m.to_bytes() for m in reader.messages("TopicA", 0)]
        results: list[list[bytes]] = []

        def read() -> None:
            results.append([m.to_bytes() for _ in range(5) for m in reader.messages("TopicA", 0)])

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [wanted * 5] * 4


# --- the interface ----------------------------------------------------------------------------------------------------


def test_the_log_may_lie_elsewhere(copy: Path, tmp_path: Path) -> None:
    """One other directory, or several, by keyword or by configuration."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    logs = sorted((copy / "commitlog").iterdir())
    for i, path in enumerate(logs):
        path.rename(tmp_path / "ab"[i % 2] / path.name)
    (copy / "commitlog").rmdir()
    with pytest.raises(StoreNotFound):
        StoreReader(copy)
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    with StoreReader(copy, commit_log=places) as reader:
        assert len(list(reader.scan())) == 353
    config = StoreConfig.from_kwargs(storePathCommitLog=",".join(places))
    with StoreReader(copy, config=config) as reader:
        assert sum(1 for _ in reader.messages("TopicA", 0)) == reader.max_offset("TopicA", 0) > 5
    assert verify(copy, config=config).state == "clean"
    with StoreReader(copy, commit_log=places[1]) as reader:
        assert reader.log_range()[0] == 131072


def test_more_files_than_are_kept_open(tmp_path: Path) -> None:
    """A store of more files than the reader keeps open."""
    with mqfast.open(tmp_path / "store", **TINY) as store:
        for i in range(160):
            store.put(f"T{i}", b"x" * 100)
    with StoreReader(tmp_path / "store") as reader:
        for _ in range(2):
            assert [sum(1 for _ in reader.messages(f"T{i}", 0)) for i in range(160)] == [1] * 160
        assert len(reader._files._files) <= 128


def test_after_close(copy: Path) -> None:
    """Every call is refused; messages stay."""
    reader = StoreReader(copy)
    message = reader.get("TopicA", 0, 0)[0]
    assert "TopicA" not in repr(reader)
    reader.close()
    reader.close()
    calls: list[Callable[[], Any]] = [
        reader.topics, reader.queues, reader.log_range, reader.scan, reader.refresh, lambda: reader.get_by_offset(0),
        lambda: reader.get("TopicA", 0, 0), lambda: reader.query("TopicA", "k"), lambda: reader.max_offset("TopicA", 0),
        lambda: reader.offset_by_time("TopicA", 0, 0), lambda: reader.checkpoint, lambda: reader.consumer_offsets("g"),
        lambda: reader.earliest_message_time,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
    assert message.check_crc()


def test_refusals(copy: Path, tmp_path: Path) -> None:
    """Bad arguments, and queues that are not there."""
    with pytest.raises(StoreNotFound):
        StoreReader(tmp_path / "none")
    with StoreReader(copy) as reader:
        for topic, queue_id in (("none", 0), ("TopicA", 99), ("..", 0), ("a/b", 0), ("\0", 0), ("", 0), ("TopicA", -1)):
            assert reader.get(topic, queue_id, 0).status == GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
            assert reader.max_offset(topic, queue_id) == reader.min_offset(topic, queue_id) == 0
            assert reader.offset_by_time(topic, queue_id, 5) == 0
        with pytest.raises(UsageError):
            reader.get("TopicA", 0, 0, tags=" || ".join(f"t{i}" for i in range(65)))
        for place in (-1, 1, 10**12, 326739):
            with pytest.raises(OffsetError):
                reader.get_by_offset(place)
        with pytest.raises(OffsetError):
            reader.get_by_offset("no id")
        assert reader.get("TopicA", 0, 0, 0).next_offset == 0
        assert len(reader.get("TopicA", 0, 0, 5, 1)) == 1
        first = reader.get("TopicA", 0, 0, 5)
        assert len(reader.get("TopicA", 0, 0, 5, first[0].size + first[1].size)) == 2
        assert reader.query("TopicA", "k1", 0) == []
        assert [m.queue_offset for m in first[1:3]] == [1, 2]


# --- queues and records that do not agree -----------------------------------------------------------------------------


def _written(path: Path, count: int, body: bytes = b"body", **settings: Any) -> list[Any]:
    """A store of so many messages of topic T, and where they stand."""
    with mqfast.open(path, **{**TINY, **settings}) as store:
        return [store.put("T", body, keys=f"k{i}", tags="a") for i in range(count)]


def _patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _queue_file(path: Path, start: int = 0) -> Path:
    return path / "consumequeue" / "T" / "0" / f"{start:020}"


def _claim(path: Path, placed: Any, queue_offset: int) -> None:
    """Let a record of the first log file say that it has another place in its queue."""
    _patch(path / "commitlog" / f"{0:020}", placed.physical_offset + 20, queue_offset.to_bytes(8, "big"))


def test_reader_of_a_queue_whose_first_file_was_removed_during_a_roll(tmp_path: Path) -> None:
    path = tmp_path / "store"
    _written(path, 50)
    with StoreReader(path) as reader:
        assert reader.max_offset("T", 0) == 50
        whole = _queue_file(path).read_bytes()
        _queue_file(path).unlink()
        _queue_file(path, 1000).write_bytes(whole[:60].ljust(1000, b"\0"))
        assert reader.max_offset("T", 0) == 53


def test_a_get_in_a_gap_between_queue_files_goes_on_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    _written(path, 500)
    _queue_file(path, 6000).unlink()
    with StoreReader(path) as reader:
        assert reader.max_offset("T", 0) == 500
        result = reader.get("T", 0, 310, 5)
        assert (result.status, result.next_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 350)
        assert "OFFSET_FOUND_NULL 0 messages" in repr(result)
        assert [message.queue_offset for message in reader.get("T", 0, 350, 5)] == [350, 351, 352, 353, 354]
    _queue_file(path, 5000).unlink()  # where the search for the first message of the log looks first
    with StoreReader(path) as reader, pytest.raises(CorruptFile, match="lost a unit"):
        reader.max_offset("T", 0)


def test_reader_of_a_log_file_removed_since_the_listing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **TINY) as store:
        store.put("Old", b"x")
    placed = _written(path, 300, b"x" * 500)
    first_of_second = next(i for i, place in enumerate(placed) if place.physical_offset >= 65536)
    with StoreReader(path) as reader:
        assert reader.queues()
        (path / "commitlog" / f"{0:020}").unlink()
        reader._files.clear()  # as when more files are in use than are kept open
        result = reader.get("Old", 0, 0, 5)
        assert (result.status, len(result), result.next_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 0, 1)
        with pytest.raises(OffsetError):
            reader.get_by_offset(0)
        assert reader.get("T", 0, first_of_second, 1)[0].physical_offset == placed[first_of_second].physical_offset


def _end(result: Any) -> int:
    return int(result.physical_offset + result.size)


def test_the_log_range_follows_a_writer_into_its_next_file(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **TINY) as store, StoreReader(tmp_path / "store") as reader:
        for _ in range(4):
            end = _end(store.put("T", b"x" * 500))
            assert reader.log_range() == (0, end)
            file = end // 65536
            while end // 65536 == file:
                end = _end(store.put("T", b"x" * 500))
            assert reader.log_range() == (0, end)


def test_records_that_claim_another_place(tmp_path: Path) -> None:
    """As the store itself: a queue may stand lower than its records say, in their order; RocketMQ takes 0 anywhere."""
    path = tmp_path / "store"
    placed = _written(path, 6)
    one_by_one: list[tuple[dict[int, int], int | None]] = [
        ({3: 0}, None),  # queue offset 0, wherever the queue ends
        ({3: 2}, 3),  # another one that is too low
        ({2: 3, 3: 4, 4: 5, 5: 6}, None),  # two lost units before it
        ({2: 9}, None),  # higher than the queue is long
        ({2: 3}, 2),  # where the unit of that place is exact
        ({0: 9, 2: 9}, 2),  # a queue that does not begin at 0
    ]
    for claims, bad in one_by_one:
        for number, place in enumerate(placed):
            _claim(path, place, claims.get(number, number))
        with StoreReader(path) as reader:
            for number in range(1, 6):
                if number == bad:
                    with pytest.raises(CorruptFile, match=f"claims queue offset {claims[number]}"):
                        reader.get("T", 0, number, 1)
                elif number in claims:
                    assert reader.get("T", 0, number, 1)[0].physical_offset == placed[number].physical_offset
    for number, place in enumerate(placed):
        _claim(path, place, {2: 3}.get(number, number))
    # The unit of the claimed place is no witness: it points behind the log, at an earlier record, at no record.
    for physical in (1 << 40, placed[1].physical_offset, placed[3].physical_offset + 1):
        _patch(_queue_file(path), 3 * 20, physical.to_bytes(8, "big"))
        with StoreReader(path) as reader, pytest.raises(CorruptFile, match="claims queue offset 3"):
            reader.get("T", 0, 2, 1)


def test_offset_by_time_over_a_unit_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "store"
    placed = _written(path, 40)
    for physical, size in ((1 << 40, 100), (placed[20].physical_offset + 1, 100), (placed[20].physical_offset, 90)):
        for number in range(1, 39):
            _patch(_queue_file(path), number * 20, physical.to_bytes(8, "big") + size.to_bytes(4, "big"))
        with StoreReader(path) as reader:
            assert reader.offset_by_time("T", 0, placed[20].store_timestamp) in range(40)


def test_a_batch_unit_that_points_at_another_record_raises(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    path = Path(shutil.copytree(case.store, tmp_path / "store"))
    for folder in sorted((path / "batchconsumequeue").glob("*/*")):
        data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
        units = [i for i in range(0, len(data) - 45, 46) if any(data[i : i + 46])]
        if len(units) < 4:
            continue
        third = units[2] % case.settings["mapperFileSizeBatchConsumeQueue"]
        file = sorted(folder.iterdir())[0]
        base = int.from_bytes(data[units[2] + 28 : units[2] + 36], "big")
        topic, queue_id = folder.parent.name, int(folder.name)
        _patch(file, third, data[units[0] : units[0] + 8])  # the record of another unit
        with StoreReader(path) as reader, pytest.raises(CorruptFile, match="does not point at its record"):
            reader.get(topic, queue_id, base, 1)
        return
    pytest.fail("no queue with enough units")


def test_query_distinguishes_keys_with_the_same_hash(tmp_path: Path) -> None:
    """Java's hash takes "Aa" and "BB" for the same: more entries are asked for until enough are right."""
    with mqfast.open(tmp_path / "store", **TINY) as store:
        oldest = store.put("T", b"", keys="BB")
        for _ in range(60):
            store.put("T", b"", keys="Aa")
    with StoreReader(tmp_path / "store") as reader:
        assert [message.physical_offset for message in reader.query("T", "BB", 1)] == [oldest.physical_offset]
        assert len(reader.query("T", "Aa", 100)) == 60


def test_an_expression_of_bars_only_takes_everything(tmp_path: Path) -> None:
    _written(tmp_path / "store", 3)
    with StoreReader(tmp_path / "store") as reader:
        assert len(reader.get("T", 0, 0, tags=" || ")) == 3
        assert len(reader.get("T", 0, 0, tags="b||c")) == 0


def test_a_queue_extension_that_is_made_after_the_reader_looked(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("cq-ext",))
    path = Path(shutil.copytree(case.store, tmp_path / "store"))
    files = {file: file.read_bytes() for file in (path / "consumequeue_ext").glob("*/*/*")}
    for file in files:
        file.unlink()
    with StoreReader(path) as reader:
        rows = reader.queues()
        tags = {m.tags for row in rows for m in reader.get(row.topic, row.queue_id, row.min_offset, 99)} - {None}
        before = [len(reader.get(row.topic, row.queue_id, row.min_offset, 99, tags=" || ".join(tags))) for row in rows]
        for file, data in files.items():
            file.write_bytes(data)
        after = [len(reader.get(row.topic, row.queue_id, row.min_offset, 99, tags=" || ".join(tags))) for row in rows]
        reader.refresh()
        assert (
            after
            == before
            == [len(reader.get(row.topic, row.queue_id, row.min_offset, 99, tags=" || ".join(tags))) for row in rows]
        )
        assert sum(before) > 0


def test_get_distinguishes_tags_with_the_same_hash(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **TINY) as store:
        for tags in ("Aa", "BB", "Aa"):
            store.put("T", b"", tags=tags)
    with StoreReader(tmp_path / "store") as reader:
        assert [message.queue_offset for message in reader.get("T", 0, 0, tags="BB")] == [1]
        assert reader.get("T", 0, 0, tags="BB").next_offset == 3


def test_a_get_that_comes_to_a_gap_ends_before_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    _written(path, 500)
    _queue_file(path, 6000).unlink()
    with StoreReader(path) as reader:
        result = reader.get("T", 0, 295, 32)
        assert [message.queue_offset for message in result] == [295, 296, 297, 298, 299]
        assert (result.status, result.next_offset) == (GetMessageStatus.FOUND, 300)


def test_a_filtered_get_does_not_follow_a_unit_that_leads_back(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    path = Path(shutil.copytree(case.store, tmp_path / "store"))
    (units,) = (path / "batchconsumequeue" / "BcqTopic" / "0").iterdir()
    _patch(units, 3 * 46, units.read_bytes()[:46])
    with StoreReader(path) as reader, pytest.raises(CorruptFile, match="does not lead on"):
        reader.get("BcqTopic", 0, 0, 32, tags="no such tag")


def test_a_record_that_claims_to_be_the_first_behind_a_later_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    placed = _written(path, 6)
    _claim(path, placed[3], 0)
    _patch(_queue_file(path), 2 * 20, placed[5].physical_offset.to_bytes(8, "big"))
    with StoreReader(path) as reader, pytest.raises(CorruptFile, match="claims queue offset 0"):
        reader.get("T", 0, 3, 1)


def test_units_of_a_queue_that_lost_its_beginning_may_be_too_low(tmp_path: Path) -> None:
    path = tmp_path / "store"
    placed = _written(path, 120)
    for number in range(60, 120):
        _claim(path, placed[number], number + 1)
    _queue_file(path).unlink()
    with StoreReader(path) as reader:
        assert [m.physical_offset for m in reader.get("T", 0, 60, 5)] == [p.physical_offset for p in placed[60:65]]


def test_messages_end_where_the_queue_ended_at_the_first_look(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **TINY) as store, StoreReader(tmp_path / "store") as reader:
        for _ in range(300):
            store.put("T", b"x")
        assert store.get("T", 0, 299)  # now all have their units
        messages = reader.messages("T", 0)
        assert next(messages).queue_offset == 0
        for _ in range(20):
            store.put("T", b"late")
        assert store.get("T", 0, 319)
        assert [message.queue_offset for message in messages] == list(range(1, 300))


def test_messages_of_a_queue_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    _written(tmp_path / "store", 300)
    with StoreReader(tmp_path / "store") as reader:
        messages = reader.messages("T", 0)
        assert next(messages).queue_offset == 0
        shutil.rmtree(tmp_path / "store" / "consumequeue" / "T")
        reader.refresh()
        assert [message.queue_offset for message in messages] == list(range(1, 256))


def test_a_search_by_time_over_units_below_the_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    placed = _written(path, 300, b"x" * 500)
    (path / "commitlog" / f"{0:020}").unlink()
    first = next(i for i, place in enumerate(placed) if place.physical_offset >= 65536)
    with StoreReader(path) as reader:
        assert reader.min_offset("T", 0) == first
        middle = (250 + 299) // 2
        _patch(_queue_file(path, 5000), (middle - 250) * 20, bytes(8))
        assert reader.offset_by_time("T", 0, placed[middle].store_timestamp) in range(first, 300)
        assert reader.offset_by_time("T", 0, 0) == first


def test_ranges_of_a_store_without_messages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **TINY), StoreReader(path) as reader:
        assert reader.readable_range() == reader.log_range() == (0, 0)
        assert (reader.queues(), list(reader.scan()), reader.earliest_message_time) == ([], [], -1)
    placed = _written(path, 3)
    (path / "consumequeue" / "Empty" / "0").mkdir(parents=True)
    (path / "consumequeue" / "Empty" / "0" / f"{0:020}").write_bytes(bytes(1000))
    with StoreReader(path) as reader:
        assert reader.readable_range() == (0, _end(placed[2]))
        assert [row[2:] for row in reader.queues() if row.topic == "Empty"] == [(0, 0)]


def test_the_groups_that_have_persisted_offsets(copy: Path, tmp_path: Path) -> None:
    with StoreReader(copy) as reader:
        assert "cg_all" in reader.consumer_groups()
    (case,) = golden_cases("5.3.3", ("lmq",))
    path = Path(shutil.copytree(case.store, tmp_path / "lmq"))
    with StoreReader(path) as reader:
        groups = reader.consumer_groups()
        assert groups == sorted(set(groups))
        assert all(reader.consumer_offsets(group) for group in groups)


@pytest.mark.parametrize("group", [None, b"billing", 7])
def test_a_group_of_another_type_is_named_in_the_error(group: Any, tmp_path: Path) -> None:
    mqfast.open(tmp_path / "store").close()
    with StoreReader(tmp_path / "store") as reader, pytest.raises(UsageError, match="group: expected str, found"):
        reader.consumer_offsets(group)
