"""A store with its timer, driven by a clock that a test moves.

Room: tests/schedule. It must never hold an expectation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clocked import START_MS, Clocked
from conftest import copy_of_open
from laboratory import read_queue

from mqfast import properties as names
from mqfast.schedule.delay_levels import QueuePosition
from mqfast.schedule.timer.accept import accept
from mqfast.schedule.timer.service import TimerService
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.store.base.results import PutMessageStatus

__all__ = ["START_MS", "Timed"]


class Timed(Clocked):
    """One store directory with its timer."""

    def __init__(self, path: Path, timer: TimerSettings | None = None, **settings: Any) -> None:
        self.timer_settings = timer or TimerSettings()
        self.timer: TimerService
        self.kills = 0
        super().__init__(path, **{"mapped_file_bytes_timer_log": 1000, **settings})

    def open(self) -> None:
        """Open store and timer."""
        super().open()
        self.start_timer()

    def start_timer(self) -> None:
        self.timer = TimerService(self.store, self.timer_settings, self.now_ms)

    def reopen(self) -> None:
        """Close both in order and open."""
        self.close()
        self.open()

    def close(self) -> None:
        self.timer.close(self.now_ms)
        self.store.close()

    def kill(self) -> None:
        """Go on with what a kill of the process would have left."""
        self.kills += 1
        left = self.path.with_name(f"killed-{self.kills}")
        copy_of_open(self.path, left)
        self.timer._close_files()
        self.store.close()
        self.path = left
        self.open()

    def send(
        self, body: bytes, topic: str = "T", queue_id: int = 0, sys_flag: int = 0, **properties: Any
    ) -> QueuePosition | PutMessageStatus | None:
        """Put a message as a broker does. Returns: what ``accept`` said."""
        text = names.encode(properties)
        place = accept(
            self.timer.settings, self.timer.is_crowded, topic, queue_id, text, sys_flag, self.now_ms, draw=lambda: 999
        )
        if isinstance(place, PutMessageStatus):
            return place
        to = place or QueuePosition(topic, queue_id, text)
        self.store.engine.put_encoded(to.topic.encode(), to.queue_id, body, to.properties, 0, sys_flag)
        self.timer.wake()
        return place

    def step(self, now_ms: int, most: int = 200) -> int | None:
        """One turn of the timer."""
        self.at(now_ms)
        return self.timer.run_once(now_ms, most)

    def run_until(self, now_ms: int) -> None:
        """Let the clock go to a time, with a turn whenever the timer asks for one."""
        while True:
            at = self.timer.run_once(self.now_ms)
            if self.timer.flush_is_due(self.now_ms):
                self.timer.flush(self.now_ms)
            if at is None or at > now_ms:
                break
            self.at(max(at, self.now_ms))
        self.at(now_ms)
        while self.timer.run_once(now_ms) == now_ms and not self.timer.flush_is_due(now_ms):
            pass

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """What was delivered."""
        return [bytes(message.body) for message in read_queue(self.store, topic, queue_id, 0)]
