"""The timer on a real store: order, rolls, deletes, clocks that jump, puts that fail, and files that are damaged.

Room: tests/schedule. The clock is the test's.
"""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from timed import START_MS, Timed

import mqfast
from mqfast import properties as names
from mqfast.errors import ConfigError, CorruptFile, DiskFull, StorageError, UsageError
from mqfast.schedule.timer.checkpoint import load_checkpoint
from mqfast.schedule.timer.service import TimerService
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.reader.timer_files import TIMER_TOPIC, WHEEL_BYTES

DAY_MS = 86_400_000


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Timed]:
    run = Timed(tmp_path / "store")
    yield run
    run.close()


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# --- delivery ---


def test_messages_of_a_slot_come_in_the_order_in_which_they_were_sent(timed: Timed) -> None:
    for body in numbered(0, 500):
        timed.send(body, TIMER_DELAY_SEC=10)
    timed.run_until(START_MS + 9999)
    assert timed.bodies() == []
    timed.run_until(START_MS + 10_000)
    assert timed.bodies() == numbered(0, 500)


def test_a_turn_does_a_bounded_part_of_the_work(timed: Timed) -> None:
    for body in numbered(0, 50):
        timed.send(body, TIMER_DELAY_SEC=1)
    assert timed.step(START_MS, most=20) == START_MS
    assert timed.timer.enqueued == 20
    assert timed.step(START_MS, most=20) == START_MS
    timed.step(START_MS, most=20)
    assert timed.timer.enqueued == 50
    for done in (7, 14, 21):
        assert timed.step(START_MS + 1000, most=7) == START_MS + 1000
        assert timed.bodies() == numbered(0, done)
    timed.run_until(START_MS + 1000)
    assert timed.bodies() == numbered(0, 50)


def test_properties_of_a_delivered_message(timed: Timed) -> None:
    fields = {"TIMER_DELAY_SEC": 5, "KEYS": "k", "TAGS": "t", "UNIQ_KEY": "u"}
    timed.send(b"body", topic="Real", queue_id=3, **fields)
    (parked,) = timed.store.get(TIMER_TOPIC, 0, 0)
    timed.run_until(START_MS + 5000)
    (found,) = timed.store.get("Real", 3, 0, tags="t")
    assert found.properties == {
        "KEYS": "k", "TAGS": "t", "UNIQ_KEY": "u", "TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": str(START_MS + 4000),
        "TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(START_MS + 5000), "REAL_TOPIC": "Real",
        "REAL_QID": "3",
    }  # fmt: skip
    assert found.properties_bytes == names.encode(found.properties)
    for name in ("born_timestamp", "born_host", "store_host", "flag", "sys_flag", "reconsume_times"):
        assert getattr(found, name) == getattr(parked, name)


def test_a_message_that_is_due_when_its_turn_comes_goes_to_its_topic_at_once(timed: Timed) -> None:
    timed.send(b"late", TIMER_DELAY_SEC=2)
    timed.step(START_MS + 5000)
    (found,) = timed.store.get("T", 0, 0)
    assert found.properties["TIMER_ENQUEUE_MS"] == str(2**63 - 1)
    assert timed.timer.log.end == 0
    assert timed.timer.metrics.counts() == {}


def test_a_message_beyond_the_window_rolls(timed: Timed) -> None:
    timed.send(b"far", TIMER_DELIVER_MS=START_MS + 3 * DAY_MS)
    timed.send(b"a bit further", TIMER_DELIVER_MS=START_MS + 2 * DAY_MS + 60_000)
    timed.run_until(START_MS)
    assert [timed.timer.log.unit(at)[2:5] for at in (0, 52)] == [
        (3, START_MS, 2 * DAY_MS), (3, START_MS, DAY_MS)
    ]  # fmt: skip
    timed.run_until(START_MS + 3 * DAY_MS - 1)
    assert timed.bodies() == [b"a bit further"]
    timed.run_until(START_MS + 3 * DAY_MS)
    assert timed.bodies() == [b"a bit further", b"far"]
    rolls = [m.properties["TIMER_ROLL_TIMES"] for m in timed.store.get("T", 0, 0)]
    assert rolls == ["1", "1"]
    assert timed.store.max_offset(TIMER_TOPIC, 0) == 4
    assert timed.timer.metrics.counts() == {"T": 0}


def test_a_delete_removes_only_the_message_of_its_slot(timed: Timed) -> None:
    for body in numbered(0, 4):
        timed.send(body, UNIQ_KEY=f"k{body.decode()}", TIMER_DELIVER_MS=START_MS + 10_000)
    timed.send(b"elsewhen", UNIQ_KEY="k9", TIMER_DELIVER_MS=START_MS + 20_000)
    timed.send(b"0", TIMER_DEL_UNIQKEY="k2", TIMER_DELIVER_MS=START_MS + 10_000)
    timed.send(b"0", TIMER_DEL_UNIQKEY="T+k0", TIMER_DELIVER_MS=START_MS + 10_000)
    timed.send(b"0", TIMER_DEL_UNIQKEY="k9", TIMER_DELIVER_MS=START_MS + 10_000)
    timed.run_until(START_MS + 30_000)
    assert timed.bodies() == [b"1", b"3", b"elsewhen"]
    # A delete that meets no message leaves the count as it was.
    assert timed.timer.metrics.counts() == {"T": 0}


def test_with_topics_in_the_key_a_delete_of_another_topic_has_no_effect(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "store", TimerSettings(append_topic_for_delete_key=True))
    timed.send(b"a", UNIQ_KEY="k", TIMER_DELAY_SEC=10)
    timed.send(b"b", topic="U", UNIQ_KEY="k", TIMER_DELAY_SEC=10)
    timed.send(b"0", TIMER_DEL_UNIQKEY="k", TIMER_DELAY_SEC=10)
    timed.send(b"0", topic="U", TIMER_DEL_UNIQKEY=names.delete_key("U", "k"), TIMER_DELAY_SEC=10)
    timed.run_until(START_MS + 10_000)
    assert (timed.bodies(), timed.bodies("U")) == ([b"a"], [])
    timed.close()


@pytest.mark.parametrize("key", ["k", "U+k"])
def test_a_delete_sent_to_another_topic_has_no_effect(timed: Timed, key: str) -> None:
    timed.send(b"b", topic="U", UNIQ_KEY="k", TIMER_DELAY_SEC=10)
    timed.send(b"0", topic="T", TIMER_DEL_UNIQKEY=key, TIMER_DELAY_SEC=10)
    timed.run_until(START_MS + 10_000)
    assert timed.bodies("U") == [b"b"]


def test_deletes_that_roll_still_meet_their_message(timed: Timed) -> None:
    due = START_MS + 3 * DAY_MS
    timed.send(b"far", UNIQ_KEY="k", TIMER_DELIVER_MS=due)
    timed.run_until(START_MS + 60_000)
    timed.send(b"0", TIMER_DEL_UNIQKEY="k", TIMER_DELIVER_MS=due)
    timed.run_until(due + 5000)
    assert timed.bodies() == []
    assert timed.store.max_offset(TIMER_TOPIC, 0) == 4


def test_a_message_that_readers_do_not_see_yet_waits(timed: Timed) -> None:
    """Run the timer of a new master of a fail-over: readers see the log up to the confirm offset."""
    timed.send(b"before", TIMER_DELAY_SEC=2)
    timed.send(b"deleted", UNIQ_KEY="u", TIMER_DELAY_SEC=2)
    end = timed.store.max_physical_offset
    timed.send(b"behind", TIMER_DELAY_SEC=2)
    timed.send(b"", TIMER_DEL_UNIQKEY=names.delete_key("T", "u"), TIMER_DELAY_SEC=2)
    timed.run_until(START_MS)
    raw = timed.store.engine.raw
    raw.bound_readers(end)
    timed.step(START_MS + 5000)
    raw.unbound_readers()
    assert timed.bodies() == []  # a delete of the slot is not known yet
    timed.run_until(START_MS + 10_000)
    assert timed.bodies() == [b"before", b"behind"]


def test_an_offset_outside_does_not_wait_for_ever_for_readers_that_lag(tmp_path: Path) -> None:
    """Open with the timer files of a store with more messages; readers stay behind the end of the log."""
    other, timed = Timed(tmp_path / "other"), Timed(tmp_path / "store")
    for body in numbered(0, 9):
        other.send(body, TIMER_DELAY_SEC=50)
    other.run_until(START_MS)
    other.close()
    timed.send(b"first", TIMER_DELAY_SEC=2)
    timed.close()
    for name in ("timerlog", "timerwheel", "config/timercheck"):
        place = timed.path / name
        if place.is_dir():
            shutil.rmtree(place)
        (shutil.copytree if (other.path / name).is_dir() else shutil.copy)(other.path / name, place)
    timed.open()
    raw = timed.store.engine.raw
    raw.bound_readers(timed.store.max_physical_offset)
    for number in range(3):
        raw.confirm(timed.store.log.written)
        timed.send(b"%d" % number, TIMER_DELAY_SEC=20)
        timed.step(START_MS + 1000 * number)
    raw.unbound_readers()
    timed.run_until(START_MS + 30_000)
    assert b"2" in timed.bodies()  # sent after the offset was put right
    timed.close()


def test_stopped_ways_go_on_where_they_stood(timed: Timed) -> None:
    timed.timer.configure(replace(timed.timer.settings, stop_enqueue=True))
    timed.send(b"x", TIMER_DELAY_SEC=5)
    timed.run_until(START_MS + 1000)
    assert timed.timer.enqueued == 0
    timed.timer.configure(replace(timed.timer.settings, stop_enqueue=False, stop_dequeue=True))
    timed.run_until(START_MS + 9000)
    assert (timed.timer.enqueued, timed.bodies()) == (1, [])
    timed.timer.configure(replace(timed.timer.settings, stop_dequeue=False))
    timed.run_until(START_MS + 9001)
    assert timed.bodies() == [b"x"]


def test_the_timer_sleeps_until_something_is_due(timed: Timed) -> None:
    assert timed.step(START_MS + 3000) is None
    timed.send(b"x", TIMER_DELAY_SEC=100)
    at = timed.step(START_MS + 3000)
    while timed.timer.flush_is_due(START_MS + 6000):
        timed.timer.flush(START_MS + 6000)
        at = timed.step(START_MS + 6000)
    assert at == START_MS + 103_000


# --- puts that fail ---


def failing(timed: Timed, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    calls = []

    def put_stored(*arguments: Any, **more: Any) -> None:
        calls.append(1)
        raise error

    engine = SimpleNamespace(log=timed.store.engine.log, put_stored=put_stored)
    monkeypatch.setattr(timed.timer._delivery, "_engine", engine)
    return calls


@pytest.mark.parametrize("parks", [True, False], ids=["parked", "late"])
def test_a_full_disk_delays_a_message_and_loses_none(
    timed: Timed, monkeypatch: pytest.MonkeyPatch, parks: bool
) -> None:
    timed.send(b"x", TIMER_DELAY_SEC=1)
    timed.send(b"y", TIMER_DELAY_SEC=1)
    if parks:
        timed.run_until(START_MS)
    calls = failing(timed, monkeypatch, DiskFull(28, "no space"))
    timed.step(START_MS + 1000)
    for tried in range(1, 6):
        timed.run_until(START_MS + 1000 + 500 * tried)
    assert len(calls) == 6
    assert timed.bodies() == []
    monkeypatch.undo()
    timed.run_until(START_MS + 4000)
    assert timed.bodies() == [b"x", b"y"]


def test_a_fall_of_the_clock_during_a_retry_stops_nothing(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    timed.send(b"x", TIMER_DELAY_SEC=1)
    timed.run_until(START_MS)
    calls = failing(timed, monkeypatch, DiskFull(28, "no space"))
    timed.step(START_MS + 60_000)
    assert len(calls) == 1
    monkeypatch.undo()
    timed.at(START_MS + 30_000)
    timed.run_until(START_MS + 30_000)
    assert timed.bodies() == [b"x"]


def test_a_message_is_dropped_after_three_tries_only_by_setting(
    timed: Timed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timed.timer.configure(replace(timed.timer.settings, retry_until_success=False))
    timed.send(b"x", TIMER_DELAY_SEC=1)
    timed.run_until(START_MS)
    calls = failing(timed, monkeypatch, DiskFull(28, "no space"))
    timed.run_until(START_MS + 5000)
    assert len(calls) == 3
    assert "is not delivered" in caplog.text
    monkeypatch.undo()
    timed.run_until(START_MS + 9000)
    assert timed.bodies() == []


def test_a_message_without_room_for_more_properties_is_delivered_without_the_times(timed: Timed) -> None:
    long = "x" * (names.MAX_PROPERTIES_BYTES - 100)
    timed.send(b"x", TIMER_DELAY_SEC=1, long=long)
    timed.run_until(START_MS + 1000)
    (found,) = timed.store.get("T", 0, 0)
    assert found.properties["long"] == long
    assert "TIMER_DEQUEUE_MS" not in found.properties


@pytest.mark.parametrize(
    "fields",
    [{}, {"TIMER_OUT_MS": "soon"}, {"TIMER_OUT_MS": "1"}, {"TIMER_OUT_MS": "1", "REAL_TOPIC": "T", "REAL_QID": "-1"}],
)
def test_a_record_that_names_no_time_or_no_place_stops_nothing(
    timed: Timed, fields: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    timed.store.put(TIMER_TOPIC, b"strange", properties=fields)
    timed.send(b"x", TIMER_DELAY_SEC=1)
    timed.run_until(START_MS + 1000)
    assert timed.bodies() == [b"x"]
    assert [r.levelno for r in caplog.records if r.name == "mqfast.schedule"] == [logging.ERROR]


# --- the clock ---


def test_after_a_fall_of_the_clock_nothing_is_early_and_nothing_comes_twice(timed: Timed) -> None:
    for delay in (5, 10, 15):
        timed.send(b"%d" % delay, TIMER_DELAY_SEC=delay)
    timed.run_until(START_MS + 11_000)
    assert timed.bodies() == [b"5", b"10"]
    back = START_MS + 2000
    timed.at(back)
    timed.send(b"new", TIMER_DELAY_SEC=4)
    timed.run_until(back + 3999)
    assert timed.bodies() == [b"5", b"10"]
    timed.run_until(back + 4000)
    assert timed.bodies() == [b"5", b"10", b"new"]
    timed.run_until(START_MS + 20_000)
    assert timed.bodies() == [b"5", b"10", b"new", b"15"]


def test_a_partly_delivered_slot_resumes_after_the_clock_was_set_back(timed: Timed) -> None:
    for body in numbered(0, 10):
        timed.send(body, TIMER_DELAY_SEC=5)
    timed.run_until(START_MS)
    timed.step(START_MS + 5000, most=4)
    assert timed.bodies() == numbered(0, 4)
    timed.at(START_MS + 2000)
    timed.run_until(START_MS + 2000)
    timed.send(b"10", TIMER_DELIVER_MS=START_MS + 5000)
    timed.run_until(START_MS + 4999)
    assert timed.bodies() == numbered(0, 4)
    timed.run_until(START_MS + 5000)
    assert timed.bodies() == numbered(0, 11)


def damaged(timed: Timed, number: int) -> None:
    """The unit of this number can be read no more, though its slot was followed already."""
    with (timed.path / "timerlog" / f"{0:020}").open("r+b") as file:
        file.seek(number * 52)
        file.write(b"\xff" * 30)
    timed.timer.log.unit(1000)  # another file, so that the block in memory is not the damaged one


@pytest.mark.parametrize("back_ms", [2000, 30 * DAY_MS], ids=["two_seconds", "a_month"])
def test_a_damaged_unit_holds_up_no_other_one_when_the_clock_falls(
    timed: Timed, back_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    for body in numbered(0, 10):
        timed.send(body, TIMER_DELAY_SEC=5)
    for _ in range(20):
        timed.send(b"later", TIMER_DELAY_SEC=100_000)
    timed.run_until(START_MS)
    timed.step(START_MS + 5000, most=4)
    assert timed.bodies() == numbered(0, 4)
    timed.timer.flush(timed.now_ms)
    damaged(timed, 6)
    timed.at(START_MS + 5000 - back_ms)
    timed.run_until(timed.now_ms)
    assert "a parked message is lost" in caplog.text
    timed.run_until(START_MS + 4999)
    assert timed.bodies() == numbered(0, 4)
    timed.run_until(START_MS + 5000)
    assert timed.bodies() == [*numbered(0, 6), *numbered(7, 10)]


def test_a_damaged_delete_holds_up_no_message_of_its_slot(timed: Timed, caplog: pytest.LogCaptureFixture) -> None:
    timed.send(b"kept", UNIQ_KEY="k", TIMER_DELAY_SEC=5)
    for number in range(3):
        timed.send(b"0", TIMER_DEL_UNIQKEY=f"none {number}", TIMER_DELAY_SEC=5)
    for _ in range(20):
        timed.send(b"later", TIMER_DELAY_SEC=100_000)
    timed.run_until(START_MS)
    timed.step(START_MS + 5000, most=1)  # the slot was followed, and one delete is read
    timed.timer.flush(timed.now_ms)
    for number in (1, 2, 3):
        damaged(timed, number)
    timed.run_until(START_MS + 6000)
    assert timed.bodies() == [b"kept"]
    assert "a parked message is lost" in caplog.text


def test_a_clock_that_was_a_month_ahead(timed: Timed) -> None:
    month = 30 * DAY_MS
    timed.at(START_MS + month)
    timed.send(b"ahead", UNIQ_KEY="a", TIMER_DELAY_SEC=60)
    timed.send(b"gone", UNIQ_KEY="g", TIMER_DELAY_SEC=60)
    timed.send(b"0", TIMER_DEL_UNIQKEY="g", TIMER_DELAY_SEC=60)
    timed.run_until(START_MS + month)
    timed.at(START_MS)
    timed.send(b"soon", TIMER_DELAY_SEC=60)
    timed.run_until(START_MS + 60_000)
    assert b"soon" in timed.bodies()
    for day in range(1, 31):
        timed.run_until(START_MS + day * DAY_MS)
        assert b"ahead" not in timed.bodies()
    timed.run_until(START_MS + month + 60_000)
    assert sorted(timed.bodies()) == [b"ahead", b"soon"]


@pytest.mark.parametrize("back_ms", [30 * DAY_MS, 2000], ids=["a_month", "two_seconds"])
def test_a_full_disk_while_the_clock_falls_forgets_nothing(timed: Timed, back_ms: int) -> None:
    timed.at(START_MS + 30 * DAY_MS)
    now_ms = timed.now_ms
    for number in range(16):
        timed.send(b"%d" % number, UNIQ_KEY=str(number), TIMER_DELIVER_MS=now_ms + 3000)
    timed.run_until(now_ms)
    timed.step(now_ms + 3000, most=4)
    left = timed.path / "timerlog" / f"{1000:020}"
    left.mkdir()  # the next file of the timer log cannot be made
    timed.at(now_ms + 3000 - back_ms)
    with pytest.raises(StorageError):
        timed.timer.run_once(timed.now_ms)
    left.rmdir()
    timed.run_until(timed.now_ms)
    timed.run_until(now_ms + 2999)
    assert timed.bodies() == numbered(0, 4)
    timed.run_until(now_ms + 3000)
    assert timed.bodies() == numbered(0, 16)


def test_a_restart_at_an_earlier_time(timed: Timed) -> None:
    timed.send(b"1", TIMER_DELAY_SEC=10)
    timed.run_until(START_MS + 11_000)
    timed.at(START_MS + 5000)
    timed.reopen()
    timed.send(b"2", TIMER_DELAY_SEC=5)
    timed.run_until(START_MS + 9999)
    assert timed.bodies() == [b"1"]
    timed.run_until(START_MS + 20_000)
    assert timed.bodies() == [b"1", b"2"]


@pytest.mark.parametrize("days", [8, 20], ids=["more_than_half_a_wheel", "more_than_a_wheel"])
def test_a_broker_that_was_down_for_long_delivers_what_it_had(timed: Timed, days: int) -> None:
    timed.send(b"old", TIMER_DELAY_SEC=100)
    timed.send(b"rolls", TIMER_DELIVER_MS=START_MS + 3 * DAY_MS)
    timed.run_until(START_MS)
    timed.timer.close(START_MS)
    timed.send(b"never parked", TIMER_DELAY_SEC=50)
    timed.at(START_MS + days * DAY_MS)
    timed.start_timer()
    timed.send(b"new", TIMER_DELAY_SEC=5)
    timed.run_until(timed.now_ms)
    assert sorted(timed.bodies()) == [b"never parked", b"old", b"rolls"]
    timed.run_until(timed.now_ms + 5000)
    assert len(timed.bodies()) == 4


# --- files ---


def test_a_clean_stop_in_the_middle_of_a_slot_repeats_nothing(timed: Timed) -> None:
    for body in numbered(0, 10):
        timed.send(body, UNIQ_KEY=body.decode(), TIMER_DELAY_SEC=5)
    timed.send(b"0", TIMER_DEL_UNIQKEY="8", TIMER_DELAY_SEC=5)
    timed.run_until(START_MS)
    timed.step(START_MS + 5000, most=4)
    timed.step(START_MS + 5000, most=2)
    assert 0 < len(timed.bodies()) < 9
    timed.reopen()
    timed.run_until(START_MS + 5000)
    assert timed.bodies() == [*numbered(0, 8), b"9"]


def parked(timed: Timed, count: int = 30) -> None:
    """Messages of three times in several files of the timer log; one file is flushed."""
    for number in range(count):
        timed.send(b"%d" % number, UNIQ_KEY=f"k{number}", TIMER_DELAY_SEC=10 + number % 3)
        timed.run_until(START_MS)
        if number == count // 2:
            timed.timer.flush(START_MS)
    assert timed.timer.log.end > 1000


def all_came(timed: Timed, count: int = 30) -> None:
    timed.run_until(START_MS + 9000)
    assert timed.bodies() == []
    timed.run_until(START_MS + 13_000)
    assert sorted(timed.bodies()) == sorted(numbered(0, count))


def kill_and(timed: Timed, *, remove: tuple[str, ...] = (), patch: tuple[str, int, bytes] | None = None) -> None:
    """Kill, change the files, go on."""
    timed.timer._close_files()
    timed.store.close()
    for name in remove:
        path = timed.path / name
        for one in sorted(path.iterdir()) if path.is_dir() else [path]:
            one.unlink()
    if patch is not None:
        with (timed.path / patch[0]).open("r+b") as file:
            file.seek(patch[1])
            file.write(patch[2])
    timed.open()


@pytest.mark.parametrize(
    "remove",
    [(), ("timerwheel",), ("timerlog",), ("timerlog", "timerwheel"), ("config/timercheck",),
     ("timerlog", "timerwheel", "config/timercheck")],
    ids=lambda names_: "+".join(names_) or "nothing",
)  # fmt: skip
@pytest.mark.parametrize("flushed", [False, True], ids=["killed", "flushed"])
def test_files_that_are_missing_are_rebuilt(timed: Timed, remove: tuple[str, ...], flushed: bool) -> None:
    parked(timed)
    if flushed:
        timed.timer.flush(START_MS)
    kill_and(timed, remove=remove)
    all_came(timed)


def test_a_rebuild_of_the_timer_log_redelivers_nothing(timed: Timed) -> None:
    parked(timed)
    timed.run_until(START_MS + 10_000)
    timed.timer.flush(timed.now_ms)
    assert len(timed.bodies()) == 10
    kill_and(timed, remove=("timerlog", "timerwheel"))
    timed.run_until(START_MS + 13_000)
    assert sorted(timed.bodies()) == sorted(numbered(0, 30))


@pytest.mark.parametrize("at", [16 * 52, 28 * 52 + 64])
def test_a_torn_unit_ends_the_timer_log_and_loses_nothing(timed: Timed, at: int) -> None:
    parked(timed)
    kill_and(timed, patch=(f"timerlog/{at // 1000 * 1000:020}", at % 1000, b"\xff" * 30))
    all_came(timed)


def test_a_broken_chain_is_searched_for(timed: Timed, caplog: pytest.LogCaptureFixture) -> None:
    parked(timed)
    timed.timer.flush(START_MS)
    kill_and(timed, patch=(f"timerlog/{0:020}", 6 * 52 + 4, struct.pack(">q", 52)))  # leads to another slot
    all_came(timed)
    assert "its units are searched" in caplog.text


def test_records_that_a_power_cut_took_from_the_log_leave_no_unit(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "store")
    parked(timed)
    kept = tmp_path / "kept"
    timed.kill()
    for number in range(30, 40):
        timed.send(b"%d" % number, TIMER_DELAY_SEC=10)
    timed.run_until(START_MS)
    timed.timer.flush(START_MS)  # as a broker whose log was not flushed
    timed.timer._close_files()
    timed.store.close()
    before = tmp_path / "store"
    for name in ("timerwheel", "config/timercheck"):
        (timed.path / name).replace(before / name)
    for path in (timed.path / "timerlog").iterdir():
        path.replace(before / "timerlog" / path.name)
    timed.path = before
    timed.open()
    assert timed.timer.log.end < 40 * 52
    all_came(timed)
    timed.close()
    assert mqfast.verify(before).ok
    assert not kept.exists()


def test_a_wheel_in_snapshots_is_rebuilt_from_the_timer_log(timed: Timed) -> None:
    """RocketMQ with timerWheelSnapshotFlush: the file of the wheel itself stays as it was before."""
    timed.timer.flush(START_MS)
    empty = timed.path / "timerwheel"
    before = empty.read_bytes()
    parked(timed)
    timed.timer.flush(START_MS)
    timed.timer._close_files()
    timed.store.close()
    empty.rename(timed.path / "timerwheel.1560")
    empty.write_bytes(before)
    timed.open()
    timed.timer.flush(START_MS)
    assert not (timed.path / "timerwheel.1560").exists()
    timed.kill()
    all_came(timed)


def test_another_precision_than_before(timed: Timed) -> None:
    parked(timed)
    timed.timer_settings = TimerSettings(precision_ms=100)
    timed.reopen()
    all_came(timed)


def test_a_wheel_or_timer_log_of_a_wrong_length_is_an_error_that_says_what_to_do(timed: Timed) -> None:
    parked(timed)
    timed.close()
    with (timed.path / "timerwheel").open("ab") as file:
        file.write(b"?")
    timed.store = mqfast.open(timed.path)
    with pytest.raises(CorruptFile, match="once it is removed") as error:
        timed.start_timer()
    assert error.value.expected == f"{WHEEL_BYTES} bytes"
    (timed.path / "timerwheel").unlink()
    last = sorted((timed.path / "timerlog").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match="999 bytes"):
        timed.start_timer()
    timed.store.close()
    last.write_bytes(last.read_bytes() + b"\0")
    timed.open()
    all_came(timed)


def test_files_of_the_timer_log_go_with_their_records(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    parked(timed, 60)
    all_came(timed, 60)
    files = sorted(path.name for path in (timed.path / "timerlog").iterdir())
    assert len(files) == 4
    log = timed.timer.log
    assert log.expire(0) == 0
    physical = log.unit(1000)[5]
    timed.timer.flush(timed.now_ms)
    assert log.expire(physical) == 1
    assert log.begin == 1000
    assert log.expire(1 << 40) == 2
    assert sorted(path.name for path in (timed.path / "timerlog").iterdir()) == files[-1:]
    timed.reopen()
    timed.send(b"x", TIMER_DELAY_SEC=10)
    timed.run_until(START_MS + 30_000)
    assert b"x" in timed.bodies()


def fail(*_: object) -> None:
    raise DiskFull(28, "no space")


def test_the_checkpoint_contains_only_durable_progress(timed: Timed) -> None:
    parked(timed)
    timed.run_until(START_MS + 11_000)
    timed.timer.flush(timed.now_ms)
    found = load_checkpoint(timed.os_api, str(timed.path / "config/timercheck"))
    assert found is not None
    assert found[:4] == (START_MS + 11_000, timed.timer.log.end, 30, 30)
    assert (found.timestamp, found.state_version) == (START_MS + 11_000, 0)
    assert found.counter > 1
    before = found.counter
    timed.timer.flush(timed.now_ms)
    again = load_checkpoint(timed.os_api, str(timed.path / "config/timercheck"))
    assert again is not None
    assert again.counter == before


def test_a_failed_timer_flush_is_retried(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    parked(timed)

    monkeypatch.setattr("mqfast.schedule.timer.flush.write_checkpoint", fail)
    with pytest.raises(DiskFull):
        timed.timer.flush(START_MS)
    monkeypatch.undo()
    assert not timed.timer.flush_is_due(START_MS + 999)
    assert timed.timer.flush_is_due(START_MS + 1000)
    timed.timer.flush(START_MS + 1000)
    kill_and(timed)
    all_came(timed)


def test_a_kill_between_the_flush_of_the_wheel_and_that_of_the_checkpoint(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery applies units that the wheel on the disk has already."""
    parked(timed)
    monkeypatch.setattr("mqfast.schedule.timer.flush.write_checkpoint", fail)
    with pytest.raises(DiskFull):
        timed.timer.flush(START_MS)
    monkeypatch.undo()
    timed.kill()
    assert timed.timer.wheel.count_from(0) == 30
    all_came(timed)


def test_a_kill_leaves_the_counts_right(timed: Timed) -> None:
    parked(timed)
    timed.kill()
    timed.run_until(START_MS)
    assert timed.timer.metrics.counts() == {"T": 30}
    all_came(timed)
    assert timed.timer.metrics.counts() == {"T": 0}


def test_timer_metrics_restart_at_zero_after_a_damaged_file(timed: Timed) -> None:
    parked(timed)
    timed.timer.flush(START_MS)
    assert timed.timer.metrics.count("T") == 30
    timed.reopen()
    assert timed.timer.metrics.counts() == {"T": 30}
    timed.close()
    for name in ("timermetrics", "timermetrics.bak"):
        (timed.path / "config" / name).write_bytes(b'{"timingCount":[1]}')
    timed.open()
    assert timed.timer.metrics.counts() == {}
    all_came(timed)


def test_settings_that_cannot_be_used(timed: Timed) -> None:
    with pytest.raises(UsageError, match="timerPrecisionMs"):
        TimerService(timed.store, TimerSettings(precision_ms=0), START_MS)
    assert TimerSettings(roll_window_slots=1).window_slots == 604_740
    assert TimerSettings(roll_window_slots=604_741).window_slots == 604_740
    assert TimerSettings(roll_window_slots=2).window_slots == 2
    assert TimerSettings(precision_ms=10_000, roll_window_slots=600_000).window_slots == 214_748


def test_a_timer_log_file_has_room_for_a_unit_and_a_blank(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least 68 bytes"):
        Timed(tmp_path / "store", mapped_file_bytes_timer_log=67)


def test_crowded_slots_refuse(timed: Timed) -> None:
    timed.timer.configure(replace(timed.timer.settings, congest_count_each_slot=2))
    for _ in range(3):
        assert not isinstance(timed.send(b"x", TIMER_DELAY_SEC=10), PutMessageStatus)
    timed.run_until(START_MS)
    # Three of at most two: chance decides, and the number that is drawn is the largest.
    assert timed.send(b"x", TIMER_DELAY_SEC=10) is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
    assert not timed.timer.is_crowded(START_MS + 9000, lambda: 476)
    assert timed.timer.is_crowded(START_MS + 9000, lambda: 477)
    assert not isinstance(timed.send(b"x", TIMER_DELAY_SEC=11), PutMessageStatus)
