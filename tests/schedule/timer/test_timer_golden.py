"""Wheel, timer log and checkpoint beside those that RocketMQ wrote: the same bytes, and work that goes on.

Room: tests/schedule. Golden stores: ``tests/golden/README.md``.
"""

from __future__ import annotations

import lzma
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, copy_of, golden_cases
from laboratory import open_still, read_queue

import mqfast
from mqfast.schedule.timer.checkpoint import load_checkpoint
from mqfast.schedule.timer.service import TimerService
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.schedule.timer.timer_log import TimerLog
from mqfast.schedule.timer.wheel import TimerWheel
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import StorePaths
from mqfast.store.reader.timer_files import TIMER_TOPIC, TimerFiles, TimerUnit

CASES = pytest.mark.parametrize("case", golden_cases(names=("timer",)), ids=str)


class Golden:
    """A copy of a golden store, and what RocketMQ's timer files say."""

    def __init__(self, case: Case, place: Path) -> None:
        self.path = copy_of(case, place)
        self.wheel = lzma.decompress((case.dir / "timerwheel.xz").read_bytes())
        (self.path / "timerwheel").write_bytes(self.wheel)
        found: list[Any] = []
        self.units = list(TimerFiles(OsApi(), StorePaths(str(self.path))).walk(found))
        assert not found
        self.log = {path.name: path.read_bytes() for path in sorted((self.path / "timerlog").iterdir())}
        self.settings = case.settings
        checkpoint = load_checkpoint(OsApi(), str(self.path / "config/timercheck"))
        assert checkpoint is not None
        self.checkpoint = checkpoint

    def open(self) -> mqfast.MessageStore:
        os_api = OsApi()
        os_api.fix_clock(self.checkpoint.read_ms)
        return open_still(self.path, os_api=os_api, **self.settings)


@CASES
def test_the_same_messages_make_the_same_wheel_and_timer_log(case: Case, tmp_path: Path) -> None:
    golden = Golden(case, tmp_path)
    for path in ((golden.path / "timerlog").iterdir(), [golden.path / "timerwheel", golden.path / "config/timercheck"]):
        for one in path:
            one.unlink()
    with golden.open() as store:
        timer = TimerService(store, TimerSettings(stop_dequeue=True), golden.units[0].write_time)
        assert store.max_offset(TIMER_TOPIC, 0) == len(golden.units)
        for unit in golden.units:
            timer.run_once(unit.write_time + 999, max_messages=1)
        timer.close(golden.units[-1].write_time)
    assert {path.name: path.read_bytes() for path in (golden.path / "timerlog").iterdir()} == golden.log
    assert (golden.path / "timerwheel").read_bytes() == golden.wheel
    check = load_checkpoint(OsApi(), str(golden.path / "config/timercheck"))
    assert check is not None
    assert check[1:4] == golden.checkpoint[1:4]
    assert (golden.path / "config/timercheck").stat().st_size == 4096
    assert mqfast.verify(golden.path).ok


@CASES
def test_messages_parked_by_java_are_delivered_when_due(case: Case, tmp_path: Path) -> None:
    golden = Golden(case, tmp_path)
    now_ms = golden.checkpoint.read_ms
    with golden.open() as store:
        before = delivered(store)
        parked = list(read_queue(store, TIMER_TOPIC, 0, 0))
        deletes = [m.properties["TIMER_DEL_UNIQKEY"] for m in parked if "TIMER_DEL_UNIQKEY" in m.properties]
        assert len(deletes) == 1
        timer = TimerService(store, TimerSettings(), now_ms)
        expected: dict[int, list[bytes]] = {}
        for message in parked:
            fields = message.properties
            keys = {fields.get("UNIQ_KEY", ""), f"{fields['REAL_TOPIC']}+{fields.get('UNIQ_KEY')}"}
            out_ms = int(fields["TIMER_OUT_MS"])
            if out_ms >= now_ms and "TIMER_DEL_UNIQKEY" not in fields and not keys & {*deletes}:
                expected.setdefault(out_ms, []).append(bytes(message.body))
        assert sum(map(len, expected.values())) >= 12
        for out_ms in sorted(expected):
            run_to(timer, store, now_ms, out_ms + 999)
            assert delivered(store) == before
            run_to(timer, store, out_ms, out_ms + 1000)
            now_ms = out_ms + 1000
            before += Counter(expected[out_ms])
            assert delivered(store) == before
        told = timer.statistics(now_ms)
        assert [told[f"timer{name}"] for name in ("ReadBehind", "OffsetBehind", "CongestNum")] == [0, 0, 0]
        timer.close(now_ms)
    assert mqfast.verify(golden.path).ok


def run_to(timer: TimerService, store: mqfast.MessageStore, now_ms: int, end_ms: int) -> None:
    at: int | None = now_ms
    while at is not None and at <= end_ms:
        store.log.os_api.fix_clock(at)
        at = timer.run_once(at)
        if timer.flush_is_due(end_ms):
            timer.flush(end_ms)
    while timer.run_once(end_ms) == end_ms:
        timer.flush(end_ms)


def delivered(store: mqfast.MessageStore) -> Counter[bytes]:
    queues = [queue_id for topic, queue_id, *_ in store.queues() if topic == "TimerTopic"]
    return Counter(bytes(m.body) for queue_id in queues for m in read_queue(store, "TimerTopic", queue_id, 0))


@CASES
def test_the_metrics_go_on_and_keep_their_text(case: Case, tmp_path: Path) -> None:
    golden = Golden(case, tmp_path)
    text = (golden.path / "config/timermetrics").read_bytes()
    with golden.open() as store:
        timer = TimerService(store, TimerSettings(), golden.checkpoint.read_ms)
        assert timer.metrics.text() == text
        assert timer.metrics.counts() == {"TimerTopic": 15}
        timer.close(golden.checkpoint.read_ms)


def test_the_unit_and_the_slot_of_the_specification(tmp_path: Path) -> None:
    """Two messages of topic RT in one slot, in files of 127 bytes: units, blank and slot as RocketMQ wrote them."""
    os_api = OsApi()
    log = TimerLog(os_api, str(tmp_path / "timerlog"), 127)
    log.load()
    wheel = TimerWheel(os_api, str(tmp_path / "timerwheel"))
    assert not wheel.load()
    written_ms, due = 1_795_191_154_000, 1_795_191_160
    for physical in (0, 176, 352):
        position = log.append(wheel.last(due), 1, written_ms, 6000, physical, 176, 2626)
        if physical < 352:
            wheel.put(due, position, 1)
    log.write()
    first = (tmp_path / "timerlog" / f"{0:020}").read_bytes()
    assert first.hex() == (
        "00000034ffffffffffffffff00000001000001a1f9bb2550000017700000000000000000000000b000000a420000000000000000"
        "00000034000000000000000000000001000001a1f9bb25500000177000000000000000b0000000b000000a420000000000000000"
        "000000170000000000000000cbd43194" + "00" * 7
    )
    assert position == 127
    while wheel.write():
        pass
    wheel.sync()
    slot = (tmp_path / "timerwheel").read_bytes()[144760 * 32 : 144761 * 32]
    assert slot.hex() == "000000006b007178000000000000000000000000000000340000000200000000"
    assert struct.unpack(">q", slot[:8])[0] % 1_209_600 == 144760


def test_a_unit_is_read_as_the_reader_reads_it(tmp_path: Path) -> None:
    (case,) = golden_cases("5.5.0", ("timer",))
    golden = Golden(case, tmp_path)
    log = TimerLog(OsApi(), str(golden.path / "timerlog"), 1000)
    log.load()
    assert [TimerUnit(*log.unit(unit.position)) for unit in golden.units] == golden.units
    assert [TimerUnit(*unit) for unit in log.units(0, 100)[0]] == golden.units
    assert log.units(0, 100)[1] == golden.checkpoint.flushed
