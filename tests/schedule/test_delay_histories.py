"""Random histories of delay levels: sends, steps, clocks set back, restarts and kills. No message is early or lost,
none comes twice without a kill, and a level keeps its order.

Room: tests/schedule. Store and tables are real; time passes when a step says so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from clocked import Clocked
from conftest import copy_of_open
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from laboratory import bodies

from mqfast import properties as names
from mqfast.schedule.delay_levels import DelayLevels
from mqfast.schedule.delay_service import DelayService

LEVELS = "1s 3s 10s"


class Run(Clocked):
    """A store with its delay service."""

    def open(self) -> None:
        super().open()
        self.levels = DelayLevels(self.config.delay_levels_ms)
        self.service = DelayService(self.store, self.tables.delays, self.levels, clock=lambda: 0.0)


class Delays(RuleBasedStateMachine):
    """Messages of three levels, one topic a level."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="mqfast-delays-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self.starts = 0
        self.real_ms = 0  # how much time has passed, whatever the clock says
        self.jumps = 0
        self.kills = 0
        self.sent: dict[int, list[tuple[bytes, int, int]]] = {1: [], 2: [], 3: []}  # body, real time, jumps before
        self.came: dict[bytes, int] = {}

    @initialize()
    def start(self) -> None:
        self.run = Run(self.root / "0", message_delay_level=LEVELS)

    def teardown(self) -> None:
        try:
            if hasattr(self, "run"):
                for _ in range(60):
                    self.wait(1000)
                assert len(self.came) == sum(map(len, self.sent.values()))
                self.run.store.close()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    @rule(level=st.sampled_from([1, 2, 3]))
    def send(self, level: int) -> None:
        body = b"%d of %d" % (len(self.sent[level]), level)
        place = self.run.levels.park(f"T{level}", 0, names.encode({"DELAY": level}))
        assert place is not None
        self.run.store.engine.put_encoded(place.topic.encode(), place.queue_id, body, place.properties)
        self.sent[level].append((body, self.real_ms, self.jumps))

    @rule(ms=st.sampled_from([1, 50, 500, 999, 1000, 1001, 2500, 4000]))
    def wait(self, ms: int) -> None:
        """Time passes in steps of at most a second, as the service asks for."""
        while ms:
            step = min(ms, 1000)
            ms -= step
            self.real_ms += step
            self.run.at(self.run.now_ms + step)
            while self.run.service.run_once(self.run.now_ms) == 0:
                pass
            for level in self.sent:
                for body in bodies(self.run.store, f"T{level}"):
                    self.came.setdefault(body, self.real_ms)

    @rule(ms=st.sampled_from([1, 700, 1000, 3000, 9000, 60_000, 86_400_000]))
    def set_back(self, ms: int) -> None:
        self.jumps += 1
        self.run.at(self.run.now_ms - ms)

    @rule()
    def restart(self) -> None:
        self.starts += 1
        self.run.service.stop()
        self.run.tables.persist()
        self.run.reopen()

    @rule()
    def kill(self) -> None:
        self.kills += 1
        self.starts += 1
        old, target = self.run, self.root / str(self.starts)
        copy_of_open(old.path, target)
        old.store.close()
        self.run = Run.__new__(Run)
        self.run.os_api, self.run.path, self.run.config, self.run.now_ms = old.os_api, target, old.config, old.now_ms
        self.run.open()

    @invariant()
    def every_message_is_in_time_and_in_order(self) -> None:
        if not hasattr(self, "run"):
            return
        for level, sent in self.sent.items():
            delay_ms = self.run.levels.delay_ms(level)
            found = bodies(self.run.store, f"T{level}")
            assert len(found) == len(set(found)) or self.kills
            assert list(dict.fromkeys(found)) == [body for body, _, _ in sent][: len(set(found))]
            for body, sent_ms, jumps in sent:
                if body in self.came:
                    waited_ms = self.came[body] - sent_ms
                    # A clock that was set back, or a start after that, costs one more delay at most.
                    assert delay_ms <= waited_ms <= delay_ms * (1 + self.jumps - jumps + self.starts) + 1000


TestDelays = Delays.TestCase
