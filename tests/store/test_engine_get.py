"""The get for a broker against a plain model: statuses, limits, filters, buffers and who holds their files.

What RocketMQ itself answers: ``tests/compat/test_engine_get_against_java.py``.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.small_store import POOL, SMALL, still

import mqfast
from mqfast import Message
from mqfast.errors import CorruptFile, OffsetError, StoreClosed, UsageError
from mqfast.properties import jhash
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.engine import GetLimits, GetMessageResult, QueueUnit, TagCodes
from mqfast.store.message_store import MessageStore


class Stored(NamedTuple):
    """What the model knows of one message of the queue."""

    physical: int
    size: int
    tags: str | None


class Asked(NamedTuple):
    """The numbers of one get."""

    offset: int
    count: int
    bytes: int
    tags: tuple[str, ...] | None
    memory: int
    in_memory: tuple[int, int]
    on_disk: tuple[int, int]
    scan: int


def expected(queue: list[Stored], per_file: int, asked: Asked) -> dict[str, Any]:
    """RocketMQ's rules as its format description tells them, one unit at a time."""
    end = len(queue)
    answer: dict[str, Any] = {"max": end, "offsets": [], "suggest": False}
    if end == 0:
        return answer | {"status": "NO_MESSAGE_IN_QUEUE", "next": 0}
    if asked.offset < 0:
        return answer | {"status": "OFFSET_TOO_SMALL", "next": 0}
    if asked.offset >= end:
        name = "OFFSET_OVERFLOW_ONE" if asked.offset == end else "OFFSET_OVERFLOW_BADLY"
        return answer | {"status": name, "next": end}
    log_end = queue[-1].physical + queue[-1].size
    most = min(max(asked.bytes, 100), 128 << 20)
    scan = max(asked.scan, asked.count * 20)
    at, total, last = asked.offset, 0, 0
    while at < min(end, (asked.offset // per_file + 1) * per_file):
        unit = queue[at]
        count = len(answer["offsets"])
        in_memory = log_end - unit.physical <= asked.memory
        bytes_, messages = asked.in_memory if in_memory else asked.on_disk
        if (at - asked.offset) * 20 >= scan:
            break
        if count and (count + 1 > asked.count or total + unit.size > min(most, bytes_) or count >= messages):
            break
        last = unit.physical
        if asked.tags is None or unit.tags in asked.tags:
            answer["offsets"].append(at)
            total += unit.size
        at += 1
    status = "FOUND" if answer["offsets"] else "NO_MATCHED_MESSAGE"
    return answer | {"status": status, "next": at, "suggest": log_end - last > asked.memory}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store of small queue files, and what its one queue holds."""
    with still(tmp_path_factory.mktemp("get") / "store") as store:
        queue = []
        for i in range(600):
            tags = ("A", "B", None)[i * i % 3]
            put = store.put("T", b"b" * (i * 37 % 400), tags=tags)
            queue.append(Stored(put.physical_offset, put.size, tags))
        yield store, queue


numbers = st.integers(0, 40)
asks = st.builds(
    Asked,
    offset=st.integers(-2, 620),
    count=st.integers(0, 300),
    bytes=st.sampled_from([0, 500, 5_000, 1 << 40]),
    tags=st.sampled_from([None, ("A",), ("A", "B"), ("C",), ()]),
    memory=st.sampled_from([0, 1_000, 50_000, 1 << 40]),
    in_memory=st.tuples(st.sampled_from([0, 900, 9_000, 1 << 40]), numbers),
    on_disk=st.tuples(st.sampled_from([0, 900, 9_000, 1 << 40]), numbers),
    scan=st.sampled_from([0, 20, 30, 400, 16_000]),
)


def limits_of(asked: Asked) -> GetLimits:
    return GetLimits(
        total_memory_bytes=asked.memory,
        access_message_in_memory_max_ratio=100,
        max_transfer_bytes_on_message_in_memory=asked.in_memory[0],
        max_transfer_count_on_message_in_memory=asked.in_memory[1],
        max_transfer_bytes_on_message_in_disk=asked.on_disk[0],
        max_transfer_count_on_message_in_disk=asked.on_disk[1],
        max_filter_message_size=asked.scan,
    )


@given(asked=asks, by_python=st.booleans())
def test_every_answer_is_the_models(filled: tuple[MessageStore, list[Stored]], asked: Asked, by_python: bool) -> None:
    store, queue = filled
    per_file = store.config.mapped_file_bytes_consume_queue // 20
    wanted: Any = None
    if asked.tags is not None:
        codes = {jhash(tag) for tag in asked.tags}
        wanted = (lambda unit: unit.tags_code in codes) if by_python else TagCodes(codes)
    with store.engine.get_records(
        "T", 0, asked.offset, asked.count, max_bytes=asked.bytes, filter=wanted, limits=limits_of(asked)
    ) as found:
        answer = {
            "status": found.status.name,
            "next": found.next_offset,
            "max": found.max_offset,
            "offsets": found.queue_offsets,
            "suggest": found.suggest_pulling_from_slave,
        }
        assert answer == expected(queue, per_file, asked)
        assert len(found) == len(found.queue_offsets)
        records = b"".join(found.buffers)
        assert records == b"".join(message.to_bytes() for message in found.messages)
        assert found.total_bytes == len(records) == sum(queue[offset].size for offset in found.queue_offsets)


def test_a_result_ends_with_its_queue_file_unless_more_are_allowed(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **SMALL) as store:
        for i in range(50):
            store.put("T", b"x", tags="A" if i == 45 else "B")
        assert store.engine.get_records("T", 0, 15).next_offset == 20  # 20 units a file
        code = TagCodes([jhash("A")])
        assert store.engine.get_records("T", 0, 0, filter=code).next_offset == 20
        found = store.engine.get_records(
            "T", 0, 0, filter=code, limits=GetLimits(travel_cq_file_num_when_get_message=3)
        )
        assert (found.status, found.queue_offsets) == (GetMessageStatus.FOUND, [45])


def test_a_slave_returns_the_offset_that_was_asked_for(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **SMALL) as store:
        engine = store.engine
        empty = engine.get_records("T", 0, 7, correct_offset=False)
        assert (empty.status.name, empty.next_offset) == ("NO_MESSAGE_IN_QUEUE", 7)
        store.put("T", b"x")
        badly = engine.get_records("T", 0, 7, correct_offset=False)
        assert (badly.status.name, badly.next_offset) == ("OFFSET_OVERFLOW_BADLY", 7)
        small = engine.get_records("T", 0, -7, correct_offset=False)
        assert (small.status.name, small.next_offset) == ("OFFSET_TOO_SMALL", -7)


# --- filters ---------------------------------------------------------------------------------------------------------


def test_a_filter_reads_the_record_only_where_it_asks_for_it(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        for i in range(10):
            store.put("T", b"x", tags="AB"[i % 2], properties={"price": str(i)})
        seen: list[QueueUnit] = []

        def wanted(unit: QueueUnit) -> bool:
            seen.append(unit)
            return unit.tags_code == jhash("A") and int(unit.record.properties["price"]) > 3

        found = store.engine.get_records("T", 0, 0, filter=wanted)
        assert found.queue_offsets == [4, 6, 8]
        assert [unit.queue_offset for unit in seen] == list(range(10))
        assert seen[4].record.queue_offset == 4
        assert (seen[4].physical_offset, seen[4].size) == (seen[4].record.physical_offset, seen[4].record.size)


def test_what_a_filter_raises_comes_out(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        store.put("T", b"x")

        def broken(unit: QueueUnit) -> bool:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.engine.get_records("T", 0, 0, filter=broken)
        with pytest.raises(UsageError, match="filter"):
            store.engine.get_records("T", 0, 0, filter="A")  # type: ignore[arg-type]


@pytest.mark.parametrize("codes", [[], [0], [jhash("A")], list(range(-5000, 5000)), [-(2**31), 2**31 - 1]])
def test_tags_codes_of_any_number(tmp_path: Path, codes: list[int]) -> None:
    with mqfast.open(tmp_path / "s") as store:
        for tags in ("A", "B", None, "AaAa", "BBBB"):
            store.put("T", b"x", tags=tags)
        found = store.engine.get_records("T", 0, 0, filter=TagCodes(codes))
        stored = [0 if tag is None else jhash(tag) for tag in ("A", "B", None, "AaAa", "BBBB")]
        assert found.queue_offsets == [i for i, code in enumerate(stored) if code in codes]


def test_tags_of_the_same_code_are_the_clients_to_tell_apart(tmp_path: Path) -> None:
    assert jhash("AaAa") == jhash("BBBB")
    with mqfast.open(tmp_path / "s") as store:
        store.put("T", b"x", tags="AaAa")
        store.put("T", b"x", tags="BBBB")
        assert store.engine.get_records("T", 0, 0, filter=TagCodes([jhash("AaAa")])).queue_offsets == [0, 1]
        assert [m.tags for m in store.get("T", 0, 0, tags="AaAa")] == ["AaAa"]


@pytest.mark.parametrize("code", [2**31, -(2**31) - 1, "A", None, 1.0])
def test_wrong_tags_codes(code: Any) -> None:
    with pytest.raises(UsageError, match="codes"):
        TagCodes([code])


# --- buffers ---------------------------------------------------------------------------------------------------------


def test_adjacent_records_are_a_single_buffer(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        for i in range(12):
            store.put("T", b"x" * 50, queue_id=0 if i % 4 else 1, tags="A")
        with store.engine.get_records("T", 0, 0) as found:
            assert [view.nbytes for view in found.buffers] == [3 * found.messages[0].size] * 3
            assert all(view.readonly for view in found.buffers)
        store.put("T", b"x", queue_id=2)
        store.put("T", b"x", queue_id=2)
        assert len(store.engine.get_records("T", 2, 0).buffers) == 1


def test_a_closed_result_has_let_go(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        store.put("T", b"x")
        found = store.engine.get_records("T", 0, 0)
        (view,) = found.buffers
        file = store.log.files[0]
        held = file.holds
        found.close()
        found.close()
        assert file.holds < held
        with pytest.raises(ValueError, match="released"):
            bytes(view)
        with pytest.raises(UsageError, match="closed"):
            found.buffers  # noqa: B018


def test_views_outlive_retention_and_the_store(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "s", **SMALL)
    while len(store.log.files) < 4:
        store.put("T", b"x" * 300)
    found = store.engine.get_records("T", 0, 0, 3)
    (view,) = found.buffers
    part = view[8:]
    before = bytes(view)
    store.flush()
    store.log.reap()
    removed = store.log.remove_first()
    assert not Path(removed).exists()
    assert store.engine.get_records("T", 0, 0).status in (
        GetMessageStatus.MESSAGE_WAS_REMOVING,
        GetMessageStatus.FOUND,
    )
    assert bytes(view) == before
    store.close()
    assert bytes(view) == before
    found.close()  # a slice keeps its file
    gc.collect()
    assert bytes(part) == before[8:]


def test_removed_messages_are_passed_and_the_rest_is_found(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **(SMALL | {"mappedFileSizeConsumeQueue": 4000})) as store:
        while len(store.log.files) < 3:
            store.put("T", b"x" * 300)
        store.get("T", 0, 0)  # every message has its unit before its file goes
        kept = store.log.files[1].start_offset
        store.flush()
        store.log.reap()
        store.log.remove_first()
        found = store.engine.get_records("T", 0, 0)
        assert found.status is GetMessageStatus.FOUND
        assert found.queue_offsets[0] > 0
        assert found.messages[0].physical_offset == kept
        gone = store.engine.get_records("T", 0, 0, limits=GetLimits(max_filter_message_size=20), max_count=1)
        assert (gone.status, gone.next_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 1)

        def reads(unit: QueueUnit) -> bool:
            return unit.record.tags is None

        assert store.engine.get_records("T", 0, 0, filter=reads).queue_offsets == found.queue_offsets


def test_an_invalid_first_unit_raises(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        for _ in range(3):
            store.put("T", b"x")
    unit_file = next((tmp_path / "s" / "consumequeue" / "T" / "0").iterdir())
    with mqfast.open(tmp_path / "s") as store:
        with unit_file.open("r+b") as file:
            file.seek(20 + 11)
            file.write(b"\x07")  # of the second one's size
        assert store.engine.get_records("T", 0, 0).queue_offsets == [0]
        with pytest.raises(CorruptFile, match="offset 1"):
            store.engine.get_records("T", 0, 1)
        with pytest.raises(CorruptFile, match="offset 1"):
            store.engine.get_records("T", 0, 1, filter=lambda unit: unit.record.tags is None)
        assert store.engine.get_records("T", 0, 0, filter=lambda unit: unit.record.tags is None).queue_offsets == [0]


# --- other kinds of stores and queues --------------------------------------------------------------------------------


def test_of_a_batch_queue(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        store.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
        for tags in ("A", "B", "A"):
            store.put("B", b"x", tags=tags)
        found = store.engine.get_records("B", 0, 0)
        assert (found.status, found.queue_offsets, found.next_offset) == (GetMessageStatus.FOUND, [0, 1, 2], 3)
        assert store.engine.get_records("B", 0, 0, filter=TagCodes([jhash("A")])).queue_offsets == [0, 2]
        by_record = store.engine.get_records("B", 0, 0, filter=lambda unit: unit.record.tags == "B")
        assert by_record.queue_offsets == [1]
        assert (
            store.engine.get_records("B", 0, 1, limits=GetLimits(max_filter_message_size=0), max_count=1).next_offset
            == 2
        )
        assert store.engine.unit_at("B", 0, 1).record.tags == "B"


def test_with_a_pool_and_unflushed_messages(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **POOL) as store:
        store.put("T", b"x")
        assert store.engine.get_records("T", 0, 0).queue_offsets == [0]


def test_a_closed_store_has_no_answers(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "s")
    store.put("T", b"x")
    engine = store.engine
    store.close()
    for call in (
        lambda: engine.get_records("T", 0, 0),
        lambda: engine.unit_at("T", 0, 0),
        lambda: engine.record_at(0),
    ):
        with pytest.raises(StoreClosed):
            call()


def test_wrong_arguments(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        for arguments in (
            (5, 0, 0),
            ("T", "0", 0),
            ("T", -1, 0),
            ("T", 0, None),
            ("T", 0, 0, -1),
            ("T", 0, 0, 1 << 40),
        ):
            with pytest.raises(UsageError):
                store.engine.get_records(*arguments)
        with pytest.raises(UsageError):
            GetLimits(total_memory_bytes=-1)
        with pytest.raises(UsageError):
            GetLimits(access_message_in_memory_max_ratio=101)
        with pytest.raises(UsageError):
            store.engine.record_at("0")  # type: ignore[arg-type]


# --- the GIL ---------------------------------------------------------------------------------------------------------


def test_a_long_walk_lets_other_threads_run(tmp_path: Path) -> None:
    """Counted, not timed: a thread that keeps the GIL is never asked for it here, so whoever runs meanwhile was let."""
    with still(
        tmp_path / "s", mapped_file_bytes_commit_log=64 << 20, mapped_file_bytes_consume_queue=20 * 200_000
    ) as store:
        store.put_many("T", [b"x"] * 150_000, tags="A")
        assert store.engine.get_records("T", 0, 0).max_offset == 150_000
        turns, over, runs, deadline = 0, threading.Event(), threading.Event(), time.monotonic() + 60

        def count() -> None:
            nonlocal turns
            while not over.is_set():
                turns += 1
                runs.set()
                time.sleep(0)

        limits = GetLimits(max_filter_message_size=1 << 40)
        before = sys.getswitchinterval()
        thread = threading.Thread(target=count)
        thread.start()
        runs.wait()
        sys.setswitchinterval(1000.0)
        try:
            first = turns
            while turns == first and time.monotonic() < deadline:
                assert not store.engine.get_records("T", 0, 0, filter=TagCodes([1]), limits=limits).queue_offsets
            of_broker = turns - first
            before_user = turns
            while turns == before_user and time.monotonic() < deadline:
                assert len(store.get("T", 0, 0, tags="none")) == 0
            of_user = turns - before_user
        finally:
            sys.setswitchinterval(before)
            over.set()
            thread.join()
        assert of_broker > 0
        assert of_user > 0


# --- admin questions -------------------------------------------------------------------------------------------------


def test_admin_questions(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s") as store:
        engine = store.engine
        assert engine.earliest_message_time() == -1
        assert engine.earliest_message_time("T", 0) == -1
        assert engine.message_store_time("T", 0, 0) == -1
        first = store.put("T", b"one", tags="A")
        second = store.put_message(Message("T", b"two"))
        assert engine.earliest_message_time() == engine.earliest_message_time("T", 0) == first.store_timestamp
        assert engine.message_store_time("T", 0, 1) == second.store_timestamp
        assert engine.message_store_time("T", 0, 2) == -1
        unit = engine.unit_at("T", 0, 0)
        assert (unit.queue_offset, unit.physical_offset, unit.size) == (0, first.physical_offset, first.size)
        assert unit.tags_code == jhash("A")
        assert bytes(unit.record.body) == b"one"
        with pytest.raises(OffsetError):
            engine.unit_at("T", 0, 2)
        with pytest.raises(OffsetError):
            engine.unit_at("None", 0, 0)
        assert bytes(engine.record_at(second.physical_offset)) == store.get_by_offset(second.physical_offset).to_bytes()
        with pytest.raises(OffsetError):
            engine.record_at(1 << 40)
        assert not engine.is_page_cache_busy
        assert not engine.is_disk_full
        assert 0 <= engine.disk_use().percent <= 100
        assert not engine.is_on_disk("T", 0, 0)
        assert engine.is_on_disk("T", 0, 0, GetLimits(total_memory_bytes=0))
        assert not engine.is_on_disk("T", 0, 5)


def test_dispatch_behind_bytes(tmp_path: Path) -> None:
    with still(tmp_path / "s", dispatch="background") as store:
        size = store.put("T", b"x").size
        assert store.engine.dispatch_behind_bytes == size == store.stats()["dispatch_behind_bytes"]
        store.engine.dispatcher.step(-1, True)
        assert store.engine.dispatch_behind_bytes == 0


def test_a_record_view_keeps_its_file(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "s", **SMALL)
    place = store.put("T", b"x" * 100)
    view = store.engine.record_at(place.physical_offset)
    assert len(view) == place.size
    assert view.readonly
    before = bytes(view)
    store.close()
    assert bytes(view) == before


def test_a_result_cannot_be_made_by_hand_into_something_that_crashes() -> None:
    made = GetMessageResult.__new__(GetMessageResult)
    with pytest.raises((AttributeError, TypeError, UsageError)):
        made.buffers  # noqa: B018
