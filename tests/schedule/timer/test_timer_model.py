"""Random work on a timer against a model of a few lines: what is due is delivered, never early, and once.

Room: tests/schedule. The store is real, the clock is the test's; a kill leaves a copy of the directory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed import START_MS, Timed

from mqfast.schedule.timer.settings import TimerSettings

STEP_MS = 1000

seconds = st.integers(0, 70_000)
works = st.lists(
    st.one_of(
        st.tuples(st.just("send"), seconds, st.booleans()),
        st.tuples(st.just("send at"), seconds, st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("go on"), st.sampled_from([1, 400, 999, 1000, 1001, 5000, 30_000])),
        st.tuples(st.just("one turn"), st.integers(1, 3)),
        st.tuples(st.just("jump"), st.sampled_from([-90_000, -5000, -1000, -999, -1, 1, 3000, 45_000, 90_000])),
        st.tuples(st.just("flush")),
        st.tuples(st.just("restart"), st.sampled_from([-90_000, -2000, 0, 0, 0, 5000])),
        st.tuples(st.just("kill")),
    ),
    max_size=25,
)


class Model:
    """What was sent, and what may be delivered."""

    def __init__(self, place: Path, window: int) -> None:
        self.timed = Timed(
            place / "store", TimerSettings(roll_window_slots=window, max_delay_s=200, flush_interval_ms=2500)
        )
        self.due: dict[bytes, int] = {}
        self.deleted: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.was_killed = False

    def look(self) -> None:
        """Nothing was early, nothing was deleted, and only a kill lets a message come twice."""
        found = Counter(self.timed.bodies())
        for body in found - self.seen:
            assert self.due[body] <= self.timed.now_ms, body
            assert body not in self.deleted
        if not self.was_killed:
            assert max(found.values(), default=0) <= 1
        assert found >= self.seen or self.was_killed
        self.seen = found

    def all_due_came(self) -> None:
        for body, due_ms in self.due.items():
            if body not in self.deleted and (due_ms + STEP_MS - 1) // STEP_MS * STEP_MS <= self.timed.now_ms:
                assert self.seen[body] > 0, (body, due_ms - START_MS, self.timed.now_ms - START_MS)

    def settle(self) -> None:
        self.timed.run_until(self.timed.now_ms)
        self.look()
        self.all_due_came()

    def send(self, delay_ms: int, is_time: bool, parks: bool) -> None:
        body = b"%d" % len(self.due)
        due_ms = self.timed.now_ms + delay_ms
        how: dict[str, Any] = {"TIMER_DELIVER_MS": due_ms} if is_time else {"TIMER_DELAY_MS": delay_ms}
        self.timed.send(body, UNIQ_KEY=body.decode(), **how)
        self.due[body] = due_ms
        self.look()
        if parks:
            self.settle()

    def delete(self, number: int) -> None:
        """Delete a message that waits; its slot is not due before the delete is parked."""
        body = b"%d" % number
        if body not in self.due or self.seen[body] or self.due[body] <= self.timed.now_ms + 2 * STEP_MS:
            return
        self.settle()
        self.timed.send(b"0", TIMER_DEL_UNIQKEY=body.decode(), TIMER_DELIVER_MS=self.due[body])
        self.deleted.add(body)
        self.settle()

    def do(self, what: str, *more: Any) -> None:
        if what == "send":
            self.send(more[0], False, more[1])
        elif what == "send at":
            self.send(more[0], True, more[1])
        elif what == "delete":
            self.delete(more[0])
        elif what == "go on":
            self.timed.run_until(self.timed.now_ms + more[0])
            self.settle()
        elif what == "one turn":
            self.timed.step(self.timed.now_ms, most=more[0])
            self.look()
        elif what == "jump":
            self.timed.at(self.timed.now_ms + more[0])
            self.settle()
        elif what == "flush":
            self.timed.timer.flush(self.timed.now_ms)
        elif what == "restart":
            self.timed.close()
            self.timed.at(self.timed.now_ms + more[0])
            self.timed.open()
            self.look()
        elif what == "kill":
            self.was_killed = True
            self.timed.kill()
            self.look()

    def end(self) -> None:
        last = max(self.due.values(), default=START_MS)
        self.timed.run_until(max(self.timed.now_ms, last + STEP_MS))
        self.settle()
        assert set(self.seen) == set(self.due) - self.deleted
        self.timed.close()


def run_model(works: list[tuple[Any, ...]], window: int) -> None:
    place = Path(tempfile.mkdtemp(prefix="timer-model-"))
    try:
        model = Model(place, window)
        for work in works:
            model.do(*work)
        model.end()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("window", [20, 172_800], ids=["rolls", "one_window"])
@settings(deadline=None)
@given(works=works)
def test_everything_due_comes_once_and_never_early(window: int, works: list[tuple[Any, ...]]) -> None:
    run_model(works, window)
