"""Kills and power cuts of a simulated system at any call: what was flushed is delivered, nothing is early.

Room: tests/schedule. What an image of a crash keeps and loses: ``mqfast/sim/sim_door.c``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sampling import WHOLE
from timed import START_MS, Timed

sys.path.append(str(Path(__file__).resolve().parents[2] / "crash"))

from mqfast.config import StoreConfig
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.sim.simulated_os import Sim, scratch_root

SETTINGS = TimerSettings(roll_window_slots=15, max_delay_s=300)
IMAGES_AT_ONCE = 3


class Crashing(Timed):
    """A timer on a simulated system, and what it had flushed at each mark."""

    def __init__(self, sim: Sim, path: Path) -> None:
        self.os_api = sim.os_api
        self.sim = sim
        self.path = path
        self.config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_timer_log=1000)
        self.timer_settings = SETTINGS
        self.due: dict[bytes, int] = {}
        self.deleted: set[bytes] = set()
        self.flushed: list[tuple[int, dict[bytes, int], set[bytes]]] = [(START_MS, {}, set())]
        self.at(START_MS)
        self.open()

    def at(self, now_ms: int) -> None:
        """Set the clock of the simulated system."""
        self.now_ms = now_ms
        self.sim.clock(now_ms, 0)

    def park(self, count: int, delay_ms: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.due)
            self.due[body] = self.now_ms + delay_ms + 700 * (len(self.due) % 5)
            self.send(body, UNIQ_KEY=body.decode(), TIMER_DELIVER_MS=self.due[body])
            self.timer.run_once(self.now_ms)

    def flush(self) -> None:
        self.timer.flush(self.now_ms)
        self.flushed.append((self.now_ms, dict(self.due), set(self.deleted)))
        self.sim.mark(len(self.flushed) - 1)

    def delete(self, body: bytes) -> None:
        self.send(b"0", TIMER_DEL_UNIQKEY=body.decode(), TIMER_DELIVER_MS=self.due[body])
        self.deleted.add(body)
        self.timer.run_once(self.now_ms)

    def work(self) -> None:
        """Parks, rolls, deletes, deliveries, a fall of the clock and a restart."""
        self.park(12, 8000)
        self.flush()
        self.park(6, 40_000)
        self.delete(b"3")
        self.flush()
        self.run_until(START_MS + 9500)
        self.flush()
        self.park(8, 3000)
        self.run_until(START_MS + 13_000)
        self.at(START_MS + 10_000)
        self.park(4, 1500)
        self.delete(b"14")
        self.flush()
        self.run_until(START_MS + 12_000)
        self.timer.close(self.now_ms)
        self.start_timer()
        self.flush()
        self.park(5, 20_000)
        self.run_until(START_MS + 45_000)
        self.flush()


def check(image: Path, run: Crashing, mark: int) -> None:
    """Open what a crash left: what was flushed at the mark is there, all that was done later may be there."""
    now_ms, due, deleted = run.flushed[mark]
    left = Timed(image, SETTINGS, mapped_file_bytes_commit_log=1 << 16)
    try:
        before = Counter(left.bodies())
        left.at(now_ms)
        while left.now_ms < START_MS + 100_000:
            left.run_until(left.now_ms + 1000)
            found = Counter(left.bodies())
            for body in found - before:
                assert run.due[body] <= left.now_ms, (body, "early")
            before = found
        assert set(due) - run.deleted <= set(before)
        assert not deleted & set(before)
    finally:
        left.close()


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="mqfast-timer-crash-", dir=scratch_root()))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def crashed(place: Path, first: int, seed: int) -> tuple[Crashing, list[Any], int]:
    """Run the work, with images before some calls from ``first`` on. Returns: it, the images, and all calls."""
    root = place / "live"
    root.mkdir()
    sim = Sim(root)
    images = place / "images"
    images.mkdir()
    run = Crashing(sim, root / "store")
    began = sim.calls
    if first >= 0:
        sim.images(str(images), first=began + first, last=began + first + IMAGES_AT_ONCE, per_call=1, seed=seed)
    run.work()
    calls = sim.calls - began
    taken = sim.taken()
    run.close()
    return run, taken, calls


def test_a_crash_at_any_call_loses_nothing_that_was_flushed(place: Path, seed: int) -> None:
    _, _, calls = crashed(place, -1, 0)
    shutil.rmtree(place / "live")
    shutil.rmtree(place / "images")
    rounds = 10 if WHOLE else 5
    checked = 0
    for number in range(rounds):
        first = (number * calls + seed % calls) // rounds % calls
        run, taken, _ = crashed(place, first, seed + number)
        for at, image in enumerate(taken):
            check(place / "images" / str(at) / "store", run, image.mark)
            checked += 1
        shutil.rmtree(place / "live")
        shutil.rmtree(place / "images")
    assert checked > rounds
