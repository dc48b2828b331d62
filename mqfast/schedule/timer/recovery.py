"""Recovery of the timer: makes wheel, timer log and checkpoint consistent (RocketMQ: TimerMessageStore.recover).

The timer's queue is the source of truth; wheel and timer log are derived from the queue. Up to the checkpoint wheel and
timer log are durable; later changes may be there in part after a crash. So the timer log is applied to the wheel from
the checkpoint on, up to the last whole unit with a record in the log. The queue is read again from the checkpoint on:
a message that has a unit is not parked twice. No message is lost. The whole timer log is read only if wheel or timer
log are damaged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.store.reader.timer_files import DELETE

if TYPE_CHECKING:
    from mqfast.schedule.timer.checkpoint import TimerCheckpoint
    from mqfast.schedule.timer.timer_log import TimerLog
    from mqfast.schedule.timer.wheel import TimerWheel

__all__ = ["Recovered", "recover"]

_log = logging.getLogger("mqfast.schedule")

_UNITS_AT_ONCE: Final = 4096


class Recovered(NamedTuple):
    """The state from which the timer continues.

    Attributes: ``read``: the first step with an undelivered slot, None for now; ``queue_offset``: of the timer's
        queue, the first message to park; ``parked``: physical offsets of later messages that have a unit;
        ``delivered``: messages before this queue offset and due before this step were delivered.
    """

    read: int | None
    queue_offset: int = 0
    parked: frozenset[int] = frozenset()
    delivered: tuple[int, int] = (0, 0)


class _Recovery:
    def __init__(self, wheel: TimerWheel, log: TimerLog, checkpoint: TimerCheckpoint, precision: int) -> None:
        self.wheel = wheel
        self.log = log
        self.checkpoint = checkpoint
        self.precision = precision
        self.parked: set[int] = set()
        self.read = checkpoint.read_ms // precision

    def find_flushed(self, log_end: int) -> int:
        """Return the end of the units before the checkpoint with records in the log; -1 for a damaged timer log."""
        end = max(self.checkpoint.flushed, self.log.begin)
        if end > self.log.end:
            return -1
        while end > self.log.begin:
            position = self.log.before(end)
            try:
                _, _, _, _, _, physical, size, _ = self.log.unit(position)
            except CorruptFile:
                return -1
            if physical + size <= log_end:
                return end
            end = position
        return end

    def is_of_this_precision(self) -> bool:
        """Return True if slots and units agree; slots of another configured precision differ."""
        bounds = self.wheel.bounds()
        slot = None if bounds is None else self.wheel.get(bounds[1])
        if bounds is None or slot is None or not self.log.begin <= slot[1] < self.log.end:
            return True
        try:
            unit = self.log.unit(slot[1])
        except CorruptFile:
            return True
        return (unit[3] + unit[4]) // self.precision == bounds[1]

    def apply(self, start: int, flushed: int, log_end: int) -> int:
        """Put the units from ``start`` on into the wheel. Returns: the end of the timer log."""
        while True:
            units, behind = self.log.units(start, _UNITS_AT_ONCE)
            for position, _, magic, written, delay, physical, size, _ in units:
                if physical + size > log_end:
                    return position
                step = (written + delay) // self.precision
                if position >= flushed:
                    self.parked.add(physical)
                    self.read = min(self.read, step)
                elif step < self.read:
                    continue  # delivered
                self.wheel.put(step, position, -1 if magic & DELETE else 1)
            start = behind
            if not units:
                return start

    def cut(self, end: int) -> None:
        """Remove units behind the end from the wheel; the slots get the units before the end."""
        start = self.wheel.cut(end)
        while 0 <= start < end:
            units, behind = self.log.units(start, _UNITS_AT_ONCE)
            for position, _, magic, written, delay, _, _, _ in units:
                step = (written + delay) // self.precision
                if self.wheel.get(step) is not None:
                    self.wheel.put(step, position, -1 if magic & DELETE else 1)
            start = behind if units else end


def recover(
    wheel: TimerWheel,
    log: TimerLog,
    checkpoint: TimerCheckpoint | None,
    precision: int,
    log_end: int,
    has_snapshots: bool = False,
) -> Recovered:
    """Load the files and make wheel and log consistent.

    Args: precision: ms of a step; log_end: physical offset behind the last record of the log; has_snapshots: the wheel
        was stored in other files (``timerWheelSnapshotFlush``), so its own file may be old.
    Raises: CorruptFile for files of a wrong length; StorageError.
    """
    had_wheel = wheel.load()
    log.load()
    if checkpoint is None:
        if log.end:
            _log.warning("timer: no checkpoint: all messages of the timer's queue are parked, or delivered, again")
        log.clear()
        wheel.renew()
        return Recovered(None)
    run = _Recovery(wheel, log, checkpoint, precision)
    if checkpoint.is_of_master:
        _log.warning("timer: this store was a slave's: what its master had not delivered is parked from the queue")
        log.clear()
        wheel.renew()
        return Recovered(run.read, delivered=(checkpoint.master_queue_offset, run.read))
    flushed = run.find_flushed(log_end)
    if flushed < 0:
        _log.error(
            "timer log %s: expected units up to %d, found none there; wheel and timer log are rebuilt from the queue",
            log.directory,
            checkpoint.flushed,
        )
        log.clear()
        wheel.renew()
        return Recovered(run.read, delivered=(checkpoint.queue_offset, run.read))
    start = flushed
    if not had_wheel or has_snapshots or not run.is_of_this_precision():
        if flushed > log.begin:
            _log.warning("timer wheel %s: rebuilt from the timer log", wheel.path)
        wheel.renew()
        start = log.begin
    end = run.apply(start, flushed, log_end)
    log.truncate(end)
    run.cut(end)
    return Recovered(run.read, checkpoint.queue_offset, frozenset(run.parked))
