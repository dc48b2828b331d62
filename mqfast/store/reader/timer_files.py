"""A broker's timer files, read-only: the waiting messages, and the check of wheel, timer log and log against each other
(RocketMQ: TimerWheel, Slot, TimerLog, TimerCheckpoint).

Nothing is written here: only a broker's timer service parks and delivers messages. verify uses this module; the engine
needs no timer file, since a delivered message is an ordinary message. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from mqfast import properties as _properties
from mqfast.properties import jhash
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import OffsetFile, StorePaths, list_offset_files
from mqfast.store.reader.scan import PreadFile
from mqfast.store.record.record import StoredMessage
from mqfast.util.java_text import java_number

__all__ = [
    "BLANK", "BLANK_MAGIC", "CHECKPOINT_BYTES", "DELETE", "MAGIC_MAX", "ROLL", "SLOT", "SLOTS", "TIMER_TOPIC", "UNIT",
    "WHEEL_BYTES", "TimerFinding", "Slot", "TimerFiles", "TimerUnit",
]  # fmt: skip

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SLOTS: Final = 2 * 7 * 86_400
SLOT: Final = struct.Struct(">qqqii")
WHEEL_BYTES: Final = SLOTS * SLOT.size
UNIT: Final = struct.Struct(">iqiqiqiiq")
BLANK: Final = struct.Struct(">iqI")
BLANK_MAGIC: Final = 0xCBD43194
CHECKPOINT_BYTES: Final = 56
ROLL: Final = 2
DELETE: Final = 4
MAGIC_MAX: Final = 15
_CHUNK_BYTES: Final = 1 << 20
_UNITS_AT_ONCE: Final = 20_000


class Slot(NamedTuple):
    """A used slot of the wheel; ``time`` is in steps of the timer's precision, ``first`` and ``last`` are positions in
    the timer log. A broker's recovery does not correct ``units``, so the count is unreliable.
    """

    number: int
    time: int
    first: int
    last: int
    units: int


class TimerUnit(NamedTuple):
    """A parked message; ``previous`` is the previous unit in the same slot, -1 for none."""

    position: int
    previous: int
    magic: int
    write_time: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int

    @property
    def due_ms(self) -> int:
        """Time at which the slot of this unit is read, ms."""
        return self.write_time + self.delay_ms


class TimerFinding(NamedTuple):
    """A fault; ``weight``: ``"note"``, ``"tail"`` (left by a kill) or ``"damage"``."""

    kind: str
    path: str
    offset: int | None
    expected: object
    actual: object
    weight: str


def _unit(position: int, fields: tuple[int, ...]) -> TimerUnit | None:
    size, previous, magic, write_time, delay, physical, record_size, topic_hash, _ = fields
    if size != UNIT.size or not 0 <= magic <= MAGIC_MAX or not -1 <= previous < position:
        return None
    return TimerUnit(position, previous, magic, write_time, delay, physical, record_size, topic_hash)


class _Log(Protocol):
    """A function that returns the record at an offset of the log, or the reason why there is none."""

    def __call__(self, physical_offset: int, size: int) -> StoredMessage | str: ...


class TimerFiles:
    """``timerwheel``, ``timerlog/`` and ``config/timercheck`` of a store."""

    def __init__(self, os_api: OsApi, paths: StorePaths) -> None:
        self._door = os_api
        self._wheel = paths.timer_wheel
        self._check = paths.timer_check
        self._files: list[OffsetFile] = list_offset_files(os_api, paths.timer_log)[0]
        self._opened: tuple[str, PreadFile] | None = None
        self._ends: list[int] = []
        self.units = 0
        self.slots = 0

    # --- the timer log ---

    def walk(self, findings: list[TimerFinding]) -> Iterator[TimerUnit]:
        """Yield every unit of the timer log, in order; faults of the files themselves are added to ``findings``."""
        self._ends = []
        files = [(file, PreadFile(self._door, file.path, file.start_offset)) for file in self._files]
        for n, (file, opened) in enumerate(files):
            if n and files[n - 1][1].end != file.start_offset:
                expected = f"a file that starts at {files[n - 1][1].end}"
                findings.append(TimerFinding("timer.gap", file.path, None, expected, file.start_offset, "damage"))
            at = 0
            while units := self._units(opened, at):
                self.units += len(units)
                at += len(units) * UNIT.size
                yield from units
            self._ends.append(opened.start + at)
            rest_bytes = opened.bytes - at
            head = opened.read(at, min(BLANK.size, rest_bytes))
            if len(head) == BLANK.size and BLANK.unpack(head) == (rest_bytes, 0, BLANK_MAGIC):
                continue
            is_last = all(later.first_set_byte(0) < 0 for _, later in files[n + 1 :])
            if opened.first_set_byte(at) >= 0:
                what = f"bytes {head.hex()}"
            elif is_last or rest_bytes < BLANK.size:
                continue
            else:
                what = "zeros, and units in the next file"
            weight = "tail" if is_last else "damage"
            findings.append(TimerFinding("timer.log", file.path, at, "a unit, a blank or zeros", what, weight))

    @staticmethod
    def _units(opened: PreadFile, at: int) -> list[TimerUnit]:
        """Return some units from a position of a file on; none if no unit is there."""
        data = opened.read(at, min(_UNITS_AT_ONCE * UNIT.size, (opened.bytes - at) // UNIT.size * UNIT.size))
        units = []
        for position, fields in enumerate(UNIT.iter_unpack(data)):
            unit = _unit(opened.start + at + position * UNIT.size, fields)
            if unit is None:
                break
            units.append(unit)
        return units

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit at a position of the timer log; None if no unit of ``walk`` starts there."""
        i = bisect_right(self._files, position, key=lambda file: file.start_offset) - 1
        if i < 0 or position >= self._ends[i] or (position - self._files[i].start_offset) % UNIT.size:
            return None
        file = self._files[i]
        if self._opened is None or self._opened[0] != file.path:
            self._opened = (file.path, PreadFile(self._door, file.path, file.start_offset))
        return _unit(position, UNIT.unpack(self._opened[1].read(position - file.start_offset, UNIT.size)))

    # --- the wheel ---

    def used_slots(self) -> Iterator[Slot]:
        """Yield the slots of the wheel that were ever used; old slots keep their content."""
        if not self._door.exists(self._wheel) or self._door.file_size(self._wheel) != WHEEL_BYTES:
            return
        opened = PreadFile(self._door, self._wheel)
        for at in range(0, WHEEL_BYTES, _CHUNK_BYTES):
            data = opened.read(at, min(_CHUNK_BYTES, WHEEL_BYTES - at))
            if data.count(0) == len(data):
                continue
            for n, (time, first, last, count, _) in enumerate(SLOT.iter_unpack(data)):
                if time or first or last or count:
                    yield Slot(at // SLOT.size + n, time, first, last, count)

    # --- all of it ---

    def check(self, record: _Log, log_min: int, log_end: int) -> list[TimerFinding]:
        """Check that the files agree with each other and with the log.

        Args: record: reads a record of the log; log_min, log_end: bounds of its records.
        """
        findings: list[TimerFinding] = []
        if self._door.exists(self._wheel) and self._door.file_size(self._wheel) not in (0, WHEEL_BYTES):
            size = self._door.file_size(self._wheel)
            findings.append(TimerFinding("timer.wheel", self._wheel, None, f"{WHEEL_BYTES} bytes", size, "damage"))
        for unit in self.walk(findings):
            if not 0 <= unit.physical_offset < log_min:  # records below were removed by retention
                self._check_unit(unit, record, log_end, findings)
        begin, end = self._begin(), max(self._ends, default=0)
        slots = list(self.used_slots())
        self.slots = len(slots)
        precision = self._precision(slots)
        for slot in slots:
            at = slot.number * SLOT.size
            if slot.time % SLOTS != slot.number:
                expected = f"a time of slot {slot.number}"
                findings.append(TimerFinding("timer.slot", self._wheel, at, expected, slot.time, "damage"))
            elif slot.last >= end:
                findings.append(TimerFinding("timer.slot", self._wheel, at, f"a unit below {end}", slot.last, "tail"))
            elif slot.last >= begin:
                self._check_chain(slot, precision, record, findings)
        self._check_checkpoint(end, findings)
        return findings

    def _begin(self) -> int:
        return self._files[0].start_offset if self._files else 0

    def _check_unit(self, unit: TimerUnit, record: _Log, log_end: int, findings: list[TimerFinding]) -> None:
        path, at = self._place(unit.position)
        if unit.physical_offset + unit.size > log_end:
            expected = f"records below {log_end}"
            findings.append(TimerFinding("timer.beyond", path, at, expected, unit.physical_offset, "tail"))
            return
        message = record(unit.physical_offset, unit.size)
        if isinstance(message, str) or message.topic != TIMER_TOPIC:
            what = message if isinstance(message, str) else f"one of {message.topic}"
            expected = f"a parked record at {unit.physical_offset}"
            findings.append(TimerFinding("timer.unit", path, at, expected, what, "damage"))
            return
        fields = message.properties
        real = fields.get(_properties.REAL_TOPIC, "")
        if unit.topic_hash != jhash(real):
            findings.append(
                TimerFinding("timer.unit", path, at, f"hash {jhash(real)} of {real}", unit.topic_hash, "damage")
            )
        out = fields.get(_properties.TIMER_OUT_MS, "")
        # A message beyond the wheel's window is due earlier, to be parked again then.
        due_ms = java_number(out, 2**63 - 1)
        if due_ms is not None and (unit.due_ms >= due_ms if unit.magic & ROLL else unit.due_ms != due_ms):
            findings.append(TimerFinding("timer.unit", path, at, f"due at {out}", unit.due_ms, "damage"))

    def _precision(self, slots: list[Slot]) -> int:
        """Return the milliseconds of a step, which no file holds: the value of most slots."""
        steps: Counter[int] = Counter()
        for slot in slots:
            unit = self.unit(slot.last)
            if unit is not None and slot.time > 0:
                steps[unit.due_ms // slot.time] += 1
        return steps.most_common(1)[0][0] if steps else 1000

    def _check_chain(self, slot: Slot, precision: int, record: _Log, findings: list[TimerFinding]) -> None:
        at = slot.number * SLOT.size
        position, chain = slot.last, []
        while position >= self._begin():
            unit = self.unit(position)
            if unit is None or unit.due_ms // max(1, precision) != slot.time:
                what = "none" if unit is None else f"one that is due at {unit.due_ms}"
                expected = f"a unit at {position} that is due at {slot.time * precision}"
                findings.append(TimerFinding("timer.slot", self._wheel, at, expected, what, "damage"))
                return
            chain.append(unit)
            position = unit.previous
        if any(unit.magic & DELETE for unit in chain):
            self._check_deletes(chain, record, findings)

    def _check_deletes(self, chain: list[TimerUnit], record: _Log, findings: list[TimerFinding]) -> None:
        """Find deletes without a target: a message of another slot, or of another topic, stays and is delivered."""
        parked: set[tuple[str | None, str]] = set()
        deletes: list[tuple[TimerUnit, str | None, str]] = []
        for unit in chain:
            message = record(unit.physical_offset, unit.size)
            if isinstance(message, str):
                continue
            fields = message.properties
            topic = fields.get(_properties.REAL_TOPIC)
            if not unit.magic & DELETE:
                # 5.5 identifies a message by its key alone, unless appendTopicForTimerDeleteKey is on.
                key = fields.get(_properties.UNIQ_KEY, "")
                parked |= {(topic, key), (topic, _properties.delete_key(topic, key))}
            elif not unit.magic & ROLL:
                deletes.append((unit, topic, fields.get(_properties.TIMER_DEL_UNIQKEY, "")))
        for unit, topic, target in deletes:
            if (topic, target) not in parked:
                path, at = self._place(unit.position)
                findings.append(TimerFinding("timer.delete", path, at, f"{target} in the same slot", "none", "note"))

    def _check_checkpoint(self, end: int, findings: list[TimerFinding]) -> None:
        if not self._door.exists(self._check) or not self._door.file_size(self._check):
            return
        opened = PreadFile(self._door, self._check)
        if opened.bytes < CHECKPOINT_BYTES:
            expected = f"at least {CHECKPOINT_BYTES} bytes"
            findings.append(TimerFinding("timer.check", self._check, None, expected, opened.bytes, "damage"))
            return
        flushed = struct.unpack_from(">q", opened.read(0, CHECKPOINT_BYTES), 8)[0]
        if flushed > end:
            findings.append(TimerFinding("timer.check", self._check, 8, f"a position up to {end}", flushed, "tail"))

    def _place(self, position: int) -> tuple[str, int]:
        i = bisect_right(self._files, position, key=lambda file: file.start_offset) - 1
        return self._files[i].path, position - self._files[i].start_offset
