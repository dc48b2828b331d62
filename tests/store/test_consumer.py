"""Embedded consumers: order, tags, commits, and going on after a restart or a crash."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from laboratory import open_still

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import NestedCall, OffsetMoved, StoreClosed, UsageError


def bodies(messages: object) -> list[bytes]:
    return [bytes(message.body) for message in messages]  # type: ignore[attr-defined]


def filled(path: Path, count: int = 20) -> mqfast.MessageStore:
    store = mqfast.open(path, config=StoreConfig.tiny())
    for number in range(count):
        store.put("T", b"%d" % number, number % 2, tags="even" if number % 2 == 0 else "odd")
    return store


def test_every_queue_in_order_and_nothing_twice(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        got = bodies(store.consumer("g", "T", batch=3))
        for parity in (0, 1):
            mine = [int(body) for body in got if int(body) % 2 == parity]
            assert mine == list(range(parity, 20, 2))
        assert bodies(store.consumer("g", "T")) == []
        store.put("T", b"20", 0)
        assert bodies(store.consumer("g", "T")) == [b"20"]


def test_tags_choose_and_the_others_are_passed(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", tags="odd")
        assert [int(body) for body in bodies(consumer)] == list(range(1, 20, 2))
        assert consumer.lag() == 0


def test_an_uncommitted_message_comes_again(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        first = store.consumer("g", "T", batch=4)
        taken = first.poll()
        assert len(taken) == 4
        assert bodies(store.consumer("g", "T", batch=4).poll()) == bodies(taken)
        first.commit_message(taken[1])
        assert bodies(store.consumer("g", "T", batch=2).poll()) == bodies(taken[2:])


def test_the_group_goes_on_after_a_restart(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", batch=4)
        seen = bodies(consumer.poll())
        consumer.commit()
    with mqfast.open(tmp_path / "store") as store:
        rest = bodies(store.consumer("g", "T"))
        assert sorted(map(int, seen + rest)) == list(range(20))
        assert len(bodies(store.consumer("another", "T"))) == 20


def test_synced_offsets_survive_a_kill(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", batch=10)
        consumer.poll()
        consumer.sync()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")  # what a killed process leaves
    with mqfast.open(tmp_path / "killed") as store:
        assert not store.recovery.clean
        assert len(bodies(store.consumer("g", "T"))) == 10


def test_a_commit_after_the_close_says_that_nothing_was_stored(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        store.put("T", b"x")
        consumer = store.consumer("G", "T")
        (message,) = consumer.poll()
    for commit in (consumer.commit, consumer.sync, lambda: consumer.commit_message(message)):
        with pytest.raises(StoreClosed):
            commit()
    with mqfast.open(tmp_path / "store") as store:
        assert len(store.consumer("G", "T").poll()) == 1


def test_a_new_group_may_begin_behind_the_last_message(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", from_first=False)
        assert consumer.poll() == []
        store.put("T", b"new", 1)
        assert bodies(consumer.poll()) == [b"new"]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "store", 1) as store:
        for group in ("", "a@b"):
            with pytest.raises(UsageError, match="group"):
                store.consumer(group, "T")
        with pytest.raises(UsageError, match="batch"):
            store.consumer("g", "T", batch=0)
        with pytest.raises(UsageError, match="offset"):
            store.consumer("g", "T").seek(0, -1)


def test_seek_goes_anywhere_but_below_zero(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", batch=2)
        consumer.seek(0, 8)
        assert [int(body) for body in bodies(consumer.poll())] == [16, 18]
        with pytest.raises(UsageError, match="offset"):
            consumer.seek(0, -1)


@pytest.mark.parametrize("how", ["break", "exception", "next"])
def test_after_break_a_new_loop_begins_at_the_unacknowledged_message(tmp_path: Path, how: str) -> None:
    with filled(tmp_path / "store", 0) as store:
        for number in range(10):
            store.put("T", b"%d" % number)
        consumer = store.consumer("g", "T")
        if how == "break":
            for message in consumer:
                if bytes(message.body) == b"3":
                    break
        elif how == "exception":
            with pytest.raises(RuntimeError):
                for message in consumer:
                    if bytes(message.body) == b"3":
                        raise RuntimeError
        else:
            loop = iter(consumer)
            for _ in range(4):
                next(loop)
        assert store.consumer_offsets.get("g", "T", 0) == 3  # 0, 1 and 2: the next one was asked for
        assert consumer.lag() == 7
        assert bodies(consumer) == [b"%d" % number for number in range(3, 10)]
        assert consumer.lag() == 0


def test_commit_acknowledges_the_handed_out_messages_only(tmp_path: Path) -> None:
    with filled(tmp_path / "store", 0) as store:
        for number in range(10):
            store.put("T", b"%d" % number)
        consumer = store.consumer("g", "T")
        for message in consumer:
            if bytes(message.body) == b"3":
                break
        consumer.commit()
        assert bodies(store.consumer("g", "T")) == [b"%d" % number for number in range(4, 10)]


def test_poll_within_a_loop_goes_on_behind_the_message_in_hand(tmp_path: Path) -> None:
    with filled(tmp_path / "store", 0) as store:
        for number in range(6):
            store.put("T", b"%d" % number)
        consumer = store.consumer("g", "T", batch=2)
        seen = []
        for message in consumer:
            seen.append(bytes(message.body))
            if len(seen) == 1:
                polled = bodies(consumer.poll())
                assert polled == [b"1", b"2"]
                assert store.consumer_offsets.get("g", "T", 0) == -1
        assert seen == [b"0", b"3", b"4", b"5"]


def test_the_same_loop_goes_on_when_messages_come(tmp_path: Path) -> None:
    with filled(tmp_path / "store", 0) as store:
        store.put("T", b"a")
        consumer = store.consumer("g", "T")
        assert bodies(consumer) == [b"a"]
        store.put("T", b"b")
        assert bodies(consumer) == [b"b"]


def test_a_later_message_stays_acknowledged_when_an_earlier_one_is_committed(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T")
        first, second, third = consumer.poll()[:3]
        consumer.commit_message(third)
        consumer.commit_message(first)
        assert store.consumer_offsets.get("g", "T", 0) == third.queue_offset + 1
        consumer.commit_message(second)
        assert store.consumer_offsets.get("g", "T", 0) == third.queue_offset + 1


def expired(path: Path) -> mqfast.MessageStore:
    """A store of which retention has deleted the first messages; group ``g`` has read five of them."""
    with mqfast.open(path, config=StoreConfig.tiny()) as store:
        for number in range(400):
            store.put("T", b"%03d" % number * 300)
        loop = iter(store.consumer("g", "T"))
        for _ in range(6):
            next(loop)
    store = mqfast.open(path, retention_bytes=128 << 10)
    assert store.retention.run_once(store.os_api.now_ms()) > 0
    assert store.consumer_offsets.get("g", "T", 0) == 5
    assert store.min_offset("T", 0) > 5
    return store


@pytest.mark.parametrize("read", [lambda c: c.poll(), lambda c: next(iter(c)), list], ids=["poll", "next", "loop"])
def test_a_group_is_told_that_its_next_messages_were_deleted(tmp_path: Path, read: Callable[[object], object]) -> None:
    with expired(tmp_path / "store") as store:
        consumer = store.consumer("g", "T")
        first = store.min_offset("T", 0)
        for _ in range(2):  # it stays so until the caller decides
            with pytest.raises(OffsetMoved, match=rf"seek\(0, {first}\)") as caught:
                read(consumer)
        error = caught.value
        assert (error.group, error.topic, error.queue_id, error.offset, error.min_offset) == ("g", "T", 0, 5, first)
        assert error.max_offset == 400
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert store.consumer_offsets.get("g", "T", 0) == 5
        consumer.seek(error.queue_id, error.min_offset)
        assert consumer.poll()[0].queue_offset == first


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_may_choose_where_to_go_on_behind_deleted_messages(
    tmp_path: Path, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    with expired(tmp_path / "store") as store, caplog.at_level(logging.WARNING, "mqfast.store"):
        consumer = store.consumer("g", "T", offset_reset=reset)  # type: ignore[arg-type]
        first = store.min_offset("T", 0)
        got = [message.queue_offset for message in consumer]
        assert got == (list(range(first, 400)) if reset == "earliest" else [])
        assert f"the {first - 5} messages from there on were deleted" in caplog.text
        assert store.consumer_offsets.get("g", "T", 0) == 400


def test_a_new_group_begins_at_the_first_message_there_is(tmp_path: Path) -> None:
    with expired(tmp_path / "store") as store:
        assert store.consumer("new", "T").poll()[0].queue_offset == store.min_offset("T", 0)


def test_a_place_behind_the_end_of_the_queue_is_told(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T")
        consumer.seek(0, 500)
        with pytest.raises(OffsetMoved, match="ends before it"):
            consumer.poll()


def test_a_consumer_begins_again_when_its_topic_is_deleted_and_made_again(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", from_first=False)
        assert len(list(consumer)) == 0
        loop = iter(store.consumer("h", "T"))
        next(loop)
        store.delete_topic("T")
        for number in range(15):
            store.put("T", b"new%d" % number)
        assert bodies(consumer) == [b"new%d" % number for number in range(15)]
        assert bytes(next(loop).body) == b"new0"
        assert store.consumer_offsets.get("h", "T", 0) == -1  # what was in hand was of the old topic


def test_offsets_reach_the_disk_behind_their_messages(tmp_path: Path) -> None:
    slow = {"flush_interval_ms_commit_log": 100_000, "flush_thorough_interval_ms_commit_log": 100_000}
    with mqfast.open(tmp_path / "store", config=StoreConfig.tiny(**slow)) as store:
        for number in range(20):
            store.put("T", b"%d" % number)
        consumer = store.consumer("g", "T")
        assert len(list(consumer)) == 20
        consumer.sync()
        stats = store.stats()
        assert stats["flushed_offset"] == stats["written_offset"]


def test_offsets_ahead_of_a_log_that_lost_its_end_are_cut_at_open(tmp_path: Path) -> None:
    with filled(tmp_path / "store", 4) as store:
        pass
    shutil.copytree(tmp_path / "store", tmp_path / "older")
    with mqfast.open(tmp_path / "store") as store:
        for number in range(8):
            store.put("T", b"%d" % number)
        store.consumer("g", "T").poll()
        list(store.consumer("g", "T"))
    shutil.copytree(tmp_path / "store" / "config", tmp_path / "older" / "config", dirs_exist_ok=True)
    with mqfast.open(tmp_path / "older") as store:
        assert any("group g, topic T, queue 0" in text for text in store.stats()["warnings"])
        for number in range(20):
            store.put("T", b"new%d" % number)
        assert bodies(store.consumer("g", "T")) == [b"new%d" % number for number in range(20)]


class AnyOrder(RuleBasedStateMachine):
    """Whatever the order of calls: the stored offset never passes a message that was not handed out, and a message
    that was neither acknowledged by a loop nor committed comes again."""

    directory: Path

    @initialize(batch=st.integers(1, 5), queues=st.integers(1, 3))
    def begin(self, batch: int, queues: int) -> None:
        self.path = self.directory / "store"
        shutil.rmtree(self.path, ignore_errors=True)
        self.batch, self.queues = batch, queues
        self.handed: dict[int, set[int]] = {queue_id: set() for queue_id in range(queues)}
        self.done: dict[int, int] = dict.fromkeys(range(queues), 0)
        self.count = 0
        self.open()

    def open(self) -> None:
        self.store = open_still(self.path, config=StoreConfig.tiny())
        self.new_consumer()

    def new_consumer(self) -> None:
        self.consumer = self.store.consumer("g", "T", batch=self.batch)
        self.loop: Iterator[object] | None = None
        self.in_hand: tuple[int, int] | None = None
        # Handed out by this consumer and not acknowledged, in the order of each queue.
        self.pending: dict[int, list[int]] = {queue_id: [] for queue_id in range(self.queues)}

    def hand_out(self, message: object) -> tuple[int, int]:
        queue_id, offset = message.queue_id, message.queue_offset  # type: ignore[attr-defined]
        expected = max([self.done[queue_id] - 1, *self.pending[queue_id]]) + 1
        assert offset == expected, "the next one of its queue: no gap, nothing twice"
        self.handed[queue_id].add(offset)
        self.pending[queue_id].append(offset)
        return queue_id, offset

    def acknowledge(self, queue_id: int, to: int) -> None:
        self.done[queue_id] = max(self.done[queue_id], to)
        self.pending[queue_id] = [offset for offset in self.pending[queue_id] if offset >= to]

    @rule(count=st.integers(1, 12), queue_id=st.integers(0, 2))
    def put(self, count: int, queue_id: int) -> None:
        for _ in range(count):
            self.store.put("T", b"%d" % self.count, queue_id % self.queues)
            self.count += 1

    @rule()
    def poll(self) -> None:
        for message in self.consumer.poll():
            self.hand_out(message)

    @rule()
    def begin_loop(self) -> None:
        self.loop = iter(self.consumer)
        self.in_hand = None
        self.pending = {queue_id: [] for queue_id in range(self.queues)}

    @precondition(lambda self: self.loop is not None)
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        assert self.loop is not None
        for _ in range(count):
            message = next(self.loop, None)
            if self.in_hand is not None:
                self.acknowledge(self.in_hand[0], self.in_hand[1] + 1)
            self.in_hand = None if message is None else self.hand_out(message)
            if message is None:
                break

    @rule()
    def commit(self) -> None:
        self.consumer.commit()
        self.in_hand = None
        for queue_id, offsets in self.pending.items():
            if offsets:
                self.acknowledge(queue_id, offsets[-1] + 1)

    @rule(how=st.sampled_from(["consumer", "close", "copy"]))
    def again(self, how: str) -> None:
        if how == "close":
            self.store.close()
            self.open()
        elif how == "copy":  # killed: what was synced is there
            self.store.persist_offsets()
            killed = self.directory / "killed"
            shutil.rmtree(killed, ignore_errors=True)
            shutil.copytree(self.path, killed)
            self.store.close()
            shutil.rmtree(self.path)
            killed.rename(self.path)
            self.open()
        else:
            self.new_consumer()

    @invariant()
    def nothing_is_passed_that_was_not_handed_out(self) -> None:
        for queue_id in range(self.queues):
            stored = self.store.consumer_offsets.get("g", "T", queue_id)
            assert max(stored, 0) == self.done[queue_id]
            assert self.handed[queue_id] >= set(range(stored))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def test_in_any_order_of_calls_no_message_is_passed_that_was_not_handed_out(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (AnyOrder,), {"directory": tmp_path})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


def test_a_loop_in_a_handler_that_interrupts_a_loop(tmp_path: Path) -> None:
    """At every line of the consumer: it works or is refused, and every message is handed out."""
    with filled(tmp_path / "store", 6) as store:
        everything = {b"%d" % number for number in range(6)}
        for line in range(1, 150):
            consumer = store.consumer(f"group {line}", "T", batch=2)
            seen: set[bytes] = set()
            lines = 0

            def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
                nonlocal lines
                if "mqfast" not in frame.f_code.co_filename:
                    return None
                if event == "line":
                    lines += 1
                    if lines == line:  # noqa: B023
                        sys.settrace(None)
                        with contextlib.suppress(NestedCall):
                            seen.update(bodies(itertools.islice(consumer, 2)))  # noqa: B023
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                seen.update(bodies(consumer))
            finally:
                sys.settrace(before)
            assert seen | set(bodies(consumer)) == everything
            assert consumer.lag() == 0
