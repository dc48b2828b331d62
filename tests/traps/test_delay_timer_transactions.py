"""Traps 44 to 53: what a broker's delays, timers and transactions leave in a store.

Room: tests/traps. The engine delivers nothing of its own accord: these are about reading, dispatching, putting again
and verifying what brokers wrote. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, copy_of, golden_cases
from golden_checks import read_queue
from laboratory import bodies, lab
from reference import DELAYS_MS, jhash
from traps.common import (
    SMALL,
    T0,
    as_killed,
    patch,
    rest_of_record,
    units_of,
)

import mqfast
from mqfast import Message
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import StorePaths
from mqfast.store.check.verify import Severity
from mqfast.store.meta.metadata import DelayOffsetTable
from mqfast.store.reader.timer_files import TimerFiles

SCHEDULE, WHEEL = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WAITING = (SCHEDULE, WHEEL, HALF, OP)
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"  # halves that were checked too often
RELEASES = pytest.mark.parametrize("case", golden_cases(None, ("normal-clean",)), ids=str)


# --- waiting and delivered --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden_cases(None, ("normal-clean", "timer")), ids=str)
def test_trap_44_a_delivered_message_is_an_ordinary_one_with_the_properties_of_its_waiting(
    case: Case, tmp_path: Path
) -> None:
    """Whoever takes DELAY for "is waiting" puts it off for ever: topic and queue say what a message is."""
    os_api = OsApi()
    again = mqfast.open(tmp_path / "again", os_api=os_api, mappedFileSizeCommitLog=1 << 20)
    with mqfast.open(copy_of(case, tmp_path), **case.settings) as store, again:
        log = list(mqfast.StoreReader(case.store).scan())
        waiting: dict[str, list[dict[str, str]]] = {}
        for message in log:
            if message.topic in (SCHEDULE, WHEEL, HALF):
                waiting.setdefault(message.properties.get("UNIQ_KEY", ""), []).append(message.properties)
        kinds = set()
        for message in log:
            fields = message.properties
            if message.topic in WAITING or "REAL_TOPIC" not in fields or message.topic.startswith(("%DLQ%", GIVEN_UP)):
                continue
            kinds |= {"DELAY", "TIMER_OUT_MS", "TRAN_MSG"} & fields.keys()
            assert (message.topic, str(message.queue_id)) == (fields["REAL_TOPIC"], fields["REAL_QID"])
            assert any(parked.items() <= fields.items() for parked in waiting[fields["UNIQ_KEY"]])
            offset = message.record_queue_offset
            assert store.get(message.topic, message.queue_id, offset)[0].physical_offset == message.physical_offset
            unit = lab(store).queues.get(message.topic, message.queue_id).unit(offset)
            assert unit[2] == jhash(message.tags or "")
            # Put again as it is: the same bytes, in its own topic.
            os_api.fix_clock(message.store_timestamp)
            result = again.put_message(
                Message(
                    message.topic, message.body, message.queue_id, None, None, message.properties_bytes, message.flag,
                    message.sys_flag, message.born_timestamp, message.born_host, message.store_host,
                    message.reconsume_times, message.prepared_transaction_offset,
                )
            )  # fmt: skip
            twin = again.get_by_offset(result.physical_offset)
            assert rest_of_record(twin.to_bytes()) == rest_of_record(message.to_bytes())
        # Since 5.5 a committed message says no longer where it was to go.
        committed = set() if case.release >= "5.5" else {"TRAN_MSG"}
        assert kinds == ({"TIMER_OUT_MS"} if case.name == "timer" else {"DELAY"} | committed)
        assert not set(again.topics()) & set(WAITING)


@RELEASES
def test_trap_45_a_level_above_the_table_waits_in_the_last_queue(case: Case, tmp_path: Path) -> None:
    with mqfast.open(copy_of(case, tmp_path), **case.settings) as store:
        (capped,) = [message for message in read_queue(store, SCHEDULE, 17, 0) if message.tags == "capped"]
        assert capped.properties["DELAY"] == "18"
        for queue_id in store.queue_ids(SCHEDULE):
            for message in read_queue(store, SCHEDULE, queue_id, 0):
                assert message.properties["DELAY"] == str(queue_id + 1)
                due = message.store_timestamp + DELAYS_MS[queue_id]
                assert lab(store).queues.get(SCHEDULE, queue_id).unit(message.queue_offset)[2] == due


def test_trap_45_dispatch_takes_a_level_above_its_table_as_the_last(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(T0)
    settings = SMALL | {"messageDelayLevel": "2s 1m 3h"}
    with mqfast.open(tmp_path / "store", os_api=os_api, **settings) as store:
        for level in (1, 3, 4, 18, 2**31 - 1):
            store.put(SCHEDULE, b"", min(level, 40) - 1, properties={"DELAY": str(level)})
        due = {queue_id: units_of(store, SCHEDULE, queue_id)[0][2] - T0 for queue_id in store.queue_ids(SCHEDULE)}
        assert due == {0: 2000, 2: 10_800_000, 3: 10_800_000, 17: 10_800_000, 39: 10_800_000}
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    shutil.rmtree(killed / "consumequeue")
    with mqfast.open(killed, **settings) as store:
        assert {q: units_of(store, SCHEDULE, q)[0][2] - T0 for q in store.queue_ids(SCHEDULE)} == due


@RELEASES
def test_trap_46_delay_offsets_count_by_level_not_by_queue(case: Case, tmp_path: Path) -> None:
    directory = copy_of(case, tmp_path)
    path = directory / "config/delayOffset.json"
    table = DelayOffsetTable.load(OsApi(), str(path))
    with mqfast.open(directory, **case.settings) as store:
        delivered = {f["UNIQ_KEY"] for f in _properties(case) if f["topic"] not in WAITING}
        assert len(table.offsets()) > 2
        for level, offset in table.offsets().items():
            parked = list(read_queue(store, SCHEDULE, level - 1, 0))
            assert parked
            assert offset <= len(parked)
            assert all(message.properties["UNIQ_KEY"] in delivered for message in parked[:offset])
            assert not any(message.properties["UNIQ_KEY"] in delivered for message in parked[offset:])
        end_of_first, end_of_second = (store.max_offset(SCHEDULE, queue_id) for queue_id in (0, 1))
    assert end_of_first > end_of_second
    path.write_text(f'{{"offsetTable":{{1:{end_of_first}}}}}')
    assert not [d for d in mqfast.verify(directory).damages if d.kind == "config.delay"]
    path.write_text(f'{{"offsetTable":{{1:0,2:{end_of_first}}}}}')
    (found,) = [d for d in mqfast.verify(directory).damages if d.kind == "config.delay"]
    assert (found.severity, found.found) == (Severity.NOTE, str(end_of_first))
    assert found.expected == f"at most {end_of_second} of level 2"


def _properties(case: Case) -> list[dict[str, str]]:
    return [{"UNIQ_KEY": "", **m.properties, "topic": m.topic} for m in mqfast.StoreReader(case.store).scan()]


# --- timer ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wheel_of() -> dict[str, Any]:
    """What RocketMQ's classes say of that wheel and timer log."""
    (case,) = golden_cases("5.3.3", ("timer",))
    loaded: dict[str, Any] = json.loads((case.dir / "expected-timer.json").read_text())
    return loaded


def timer_damage(directory: Path) -> list[tuple[str, int | None, str]]:
    """What verify says of the timer files of a store: kind, place, severity."""
    return [(d.kind, d.offset, str(d.severity)) for d in mqfast.verify(directory).damages if d.kind.startswith("timer")]


def test_trap_48_a_slot_counts_only_where_its_time_is_right(timer_store: Path, wheel_of: dict[str, Any]) -> None:
    files = TimerFiles(OsApi(), StorePaths(str(timer_store)))
    assert [[*slot, 0] for slot in files.used_slots()] == wheel_of["slots"]
    units = [row for row in wheel_of["log"] if row[3] != "BLANK"]
    found: list[Any] = []
    assert [[u.position, 52, *u[1:]] for u in files.walk(found)] == units
    assert found == []
    report = mqfast.verify(timer_store)
    assert (report.state, report.counts["timer slots"], report.counts["timer units"]) == ("clean", 10, 21)
    slot, time, _, last, *_ = wheel_of["slots"][4]
    assert time % 1_209_600 == slot
    at = slot * 32
    patch(timer_store / "timerwheel", at + 24, struct.pack(">i", 77))  # how many are in it: recovery leaves that wrong
    assert timer_damage(timer_store) == []
    patch(timer_store / "timerwheel", at, struct.pack(">q", time + 1_209_600))  # a turn of the wheel later
    assert timer_damage(timer_store) == [("timer.slot", at, "damage")]
    patch(timer_store / "timerwheel", at, bytes(32))
    patch(timer_store / "timerwheel", at + 32, struct.pack(">qqqii", time, last, last, 1, 0))  # one place on
    assert timer_damage(timer_store) == [("timer.slot", at + 32, "damage")]
    patch(timer_store / "timerwheel", at + 32, bytes(32))
    patch(timer_store / "timerwheel", at, struct.pack(">qqqii", time + 1, last, last, 1, 0))
    assert timer_damage(timer_store) == [("timer.slot", at, "damage")]
    patch(timer_store / "timerwheel", at, struct.pack(">qqq", time, last, last + 5200))
    assert timer_damage(timer_store) == [("timer.slot", at, "damage")]
    (timer_store / "abort").touch()  # then it is what a kill leaves: the broker puts the wheel right
    assert timer_damage(timer_store) == [("timer.slot", at, "recoverable")]


def test_trap_48_a_wheel_of_another_length_is_damage(timer_store: Path) -> None:
    with (timer_store / "timerwheel").open("r+b") as file:
        file.truncate(38_707_168)
    assert timer_damage(timer_store) == [("timer.wheel", None, "damage")]


@pytest.mark.parametrize("asked", [T0 + 5000, T0 + 5001])
def test_trap_49_a_message_is_due_at_its_timer_out_not_at_the_time_asked_for(tmp_path: Path, asked: int) -> None:
    """A broker takes a whole number of seconds for one second less; who computes it anew finds the wrong slot."""
    directory = tmp_path / "store"
    out = (asked - 1) // 1000 * 1000
    fields = {"TIMER_DELIVER_MS": str(asked), "TIMER_OUT_MS": str(out), "REAL_TOPIC": "T", "REAL_QID": "0"}
    with mqfast.open(directory, **SMALL) as store:
        parked = store.put(WHEEL, b"x", properties=fields)
    (directory / "timerlog").mkdir()
    log = directory / "timerlog" / f"{0:020}"

    def write(due: int) -> None:
        place = (parked.physical_offset, parked.size, jhash("T"), 0)
        log.write_bytes(struct.pack(">iqiqiqiiq", 52, -1, 1, T0, due - T0, *place).ljust(1000, b"\0"))

    write(out)
    assert mqfast.verify(directory).state == "clean"
    for wrong in {asked // 1000 * 1000, asked, out - 1000} - {out}:
        write(wrong)
        assert timer_damage(directory) == [("timer.unit", 0, "damage")]


def test_trap_50_the_blank_of_the_timer_log_has_the_magic_of_the_log_at_another_place(timer_store: Path) -> None:
    log = timer_store / "timerlog" / f"{0:020}"
    blank = log.read_bytes()[936:952]
    assert blank == struct.pack(">iqI", 64, 0, 0xCBD43194)
    log.write_bytes(log.read_bytes()[:936] + struct.pack(">iIq", 64, 0xCBD43194, 0).ljust(64, b"\0"))
    assert timer_damage(timer_store)[0] == ("timer.log", 936, "damage")  # units go on in the next file


def test_trap_50_a_blank_of_the_timer_log_closes_no_log_file(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        result = store.put("T", b"x")
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    end = result.physical_offset + result.size
    patch(killed / "commitlog" / f"{0:020}", end, struct.pack(">iqI", 4096 - end, 0, 0xCBD43194))
    with mqfast.open(killed, **SMALL) as store:
        assert store.put("T", b"y").physical_offset == end
        assert bodies(store, "T") == [b"x", b"y"]


def test_trap_51_a_delete_reaches_only_a_message_of_its_own_slot(timer_store: Path) -> None:
    log = timer_store / "commitlog" / f"{0:020}"
    data = log.read_bytes()
    at = data.index(b"TIMER_DEL_UNIQKEY\x01") + 18
    target = data[at : data.index(b"\x02", at)]
    other = next(m for m in mqfast.StoreReader(timer_store).scan() if m.properties.get("TIMER_DELAY_SEC") == "86412")
    assert target.startswith(b"TimerTopic+")
    assert timer_damage(timer_store) == []
    patch(log, at, f"TimerTopic+{other.properties['UNIQ_KEY']}".encode())  # it waits, but for another second
    assert timer_damage(timer_store) == [("timer.delete", 104, "note")]
    patch(log, at, b"OtherTopic" + target[10:])  # the right key of the wrong topic
    assert timer_damage(timer_store) == [("timer.delete", 104, "note")]


# --- transactions -----------------------------------------------------------------------------------------------------


@RELEASES
def test_trap_52_bodies_of_op_messages_are_offsets_with_or_without_a_comma(case: Case, tmp_path: Path) -> None:
    with mqfast.open(copy_of(case, tmp_path), **case.settings) as store:
        halves = list(read_queue(store, HALF, 0, 0))
        # Halves have no transaction bits: they have units, and queue offsets of their own.
        assert [half.record_queue_offset for half in halves] == list(range(len(halves)))
        assert not any(half.sys_flag & 0xC for half in halves)
        done: list[int] = []
        for op in read_queue(store, OP, 0, 0):
            text = bytes(op.body).decode()
            assert op.tags == "d"
            assert text.endswith(",") is (case.release > "5")
            done += [int(part) for part in text.split(",") if part]
        assert len(set(done)) == len(done) > 3
        ended = {halves[offset].physical_offset for offset in done}
        committed = [m for m in mqfast.StoreReader(case.store).scan() if m.sys_flag & 0xC == 0x8]
        assert len(committed) > 2
        for message in committed:
            half = store.get_by_offset(message.prepared_transaction_offset)
            assert half.topic == HALF
            assert half.physical_offset in ended
            assert bytes(half.body) == bytes(message.body)


@RELEASES
def test_trap_53_a_half_that_was_checked_is_another_record_at_another_place(case: Case, tmp_path: Path) -> None:
    with mqfast.open(copy_of(case, tmp_path), **case.settings) as store:
        by_key: dict[str, list[Any]] = {}
        for half in read_queue(store, HALF, 0, 0):
            by_key.setdefault(half.properties["UNIQ_KEY"], []).append(half)
        checked = {key: halves for key, halves in by_key.items() if len(halves) > 1}
        assert checked
        for first, *later in checked.values():
            assert first.properties.get("TRANSACTION_CHECK_TIMES") is None
            for n, half in enumerate(later, 1):
                assert half.properties["TRANSACTION_CHECK_TIMES"] == str(n)
                assert (half.flag, half.reconsume_times) == (0, 0)
                assert (bytes(half.body), half.born_timestamp) == (bytes(first.body), first.born_timestamp)
                assert half.queue_offset == half.record_queue_offset > first.queue_offset
        # What commits is the newest of them: its offsets are what a producer has to name.
        committed = {
            m.properties["UNIQ_KEY"]: m.prepared_transaction_offset
            for m in mqfast.StoreReader(case.store).scan()
            if m.sys_flag & 0xC == 0x8
        }
        ends = {key: halves[-1].physical_offset for key, halves in checked.items() if key in committed}
        assert ends
        assert {key: committed[key] for key in ends} == ends
