"""Paced latency (bench/latency.py): a stall counts for every put it delayed, no put is early, gates follow the noise.

It must never judge the speed of this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import ModuleType

import pytest


def test_a_stall_is_charged_to_all_it_delayed(latency: ModuleType) -> None:
    """One put of 50 ms at 1,000 a second delays those due meanwhile: from when due they are late, from the call not."""
    calls = [0]

    def put(body: bytes) -> None:
        calls[0] += 1
        if calls[0] == 20:
            until = time.perf_counter_ns() + 50_000_000
            while time.perf_counter_ns() < until:
                pass

    due, call = array("Q", bytes(8 * 100)), array("Q", bytes(8 * 100))
    latency.paced(put, b"x", 1_000_000, due, call, 0)
    assert calls[0] == 100
    assert due[19] >= 50_000_000
    assert call[19] >= 50_000_000
    # Put k was due k - 19 ms after the one that stalled, and could only begin behind it.
    for k in range(20, 60):
        assert due[k] >= 50_000_000 - (k - 19) * 1_000_000
    assert sorted(call)[90] < 50_000_000
    assert all(one >= other for one, other in zip(due, call, strict=True))


def test_no_put_begins_early(latency: ModuleType) -> None:
    """The schedule is kept: n puts take at least (n - 1) periods."""
    times: list[int] = []
    due, call = array("Q", bytes(8 * 50)), array("Q", bytes(8 * 50))
    latency.paced(lambda body: times.append(time.perf_counter_ns()), b"x", 200_000, due, call, 0)
    assert times[-1] - times[0] >= 49 * 200_000 - due[0]


def test_turns_begin_at_phases_of_the_timer_that_are_spread_evenly(latency: ModuleType) -> None:
    """Of ten turns in a row one begins in each tenth of the period, or beside it."""
    for now in (0, 7, 123_456_789_012):
        for phase in (0, 1, 49_999):
            begin = latency.first_due(now, phase)
            assert 1_000_000 <= begin - now < 21_000_000
            assert begin % 4_000_000 == phase, "so long after a tick of 250 a second"
    for first in (0, 13):
        phases = sorted(latency.phase_of(number, 20_000) for number in range(first, first + 10))
        assert phases[0] >= 0
        assert phases[-1] < 50_000
        assert max(b - a for a, b in itertools.pairwise(phases)) < 10_000

    due, call = array("Q", bytes(8 * 3)), array("Q", bytes(8 * 3))
    times: list[int] = []
    latency.paced(lambda body: times.append(time.perf_counter_ns()), b"x", 1_000_000, due, call, 123_000)
    assert (times[0] - 123_000) % 20_000_000 <= due[0]


def test_a_turn_has_a_lead_that_does_not_count(latency: ModuleType) -> None:
    """The disk was asked to write everything just before a turn: what that costs the first puts is not the pace's."""
    calls = 0

    def put(_body: bytes) -> None:
        nonlocal calls
        calls += 1

    due, call, _ = latency.turn(put, 10, 500, 0.2)
    assert len(due) == len(call) == 100
    assert min(call) > 0
    assert calls == latency.WARM_UP + 500 * latency.LEAD_S + 100


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="only Linux counts them for a thread")
def test_the_sleeps_of_the_loop_are_its_own(latency: ModuleType) -> None:
    """Each of a put that sleeps is counted, those of the warm-up are not. No other thread of the process asks for the
    GIL meanwhile: waiting for that is a sleep as well.
    """
    slept = latency.turn(lambda body: time.sleep(0.0001), 10, 500, 0.2)[2]
    awake = latency.turn(lambda body: None, 10, 500, 0.2)[2]
    assert 300 <= slept["loop_waits"] < latency.WARM_UP  # of 600 sleeps; one that is over at once is none
    assert awake["loop_waits"] < 300


def test_gates_follow_the_noise(latency: ModuleType) -> None:
    """p99.99 may be twice the noise of the same run; the other limits are fixed."""

    def row(kind: str, tail: int, p99: int = 500) -> dict[str, object]:
        figures = {"p50": 40, "p90": 50, "p99": p99, "p99.9": 900, "p99.99": tail, "max": 1_000_000}
        return {"kind": kind, "rate": 20_000, "from_due_ns": figures}

    (line,) = latency.verdicts([row("memory", 10_000), row("mmap", 49_000)])
    assert line.startswith("mmap at 20,000/s: p99 0.5 us, jitter 0.5: met")
    assert "MISSED" not in line
    (line,) = latency.verdicts([row("memory", 40_000), row("mmap", 79_000)])
    assert "MISSED" not in line
    (line,) = latency.verdicts([row("memory", 10_000), row("pool", 51_000, p99=1001)])
    assert "p99 1.0 us, jitter 0.5: MISSED (<= 1 us)" in line
    assert "p99.99 51.0 us, jitter 10.0: MISSED (<= 50 us)" in line


def test_all_kinds_of_one_run(latency: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind at every rate has a row with all its samples, percentiles that rise, and nothing is left behind."""
    pytest.importorskip("hdrh.histogram")
    monkeypatch.setattr(latency, "LEAD_S", 0.05)
    rows = latency.measure(tmp_path, [1000, 5000], 0.2, 0.1, 1024, 16 << 20)
    assert [(row["kind"], row["rate"]) for row in rows] == [
        (kind, rate) for rate in (1000, 5000) for kind in latency.KINDS
    ]
    for row in rows:
        assert row["samples"] == row["rate"] * 0.2
        for part in ("from_due_ns", "from_call_ns"):
            figures = list(row[part].values())
            assert figures == sorted(figures)
        assert row["from_due_ns"]["max"] >= row["from_call_ns"]["max"]
        assert row["counters"]["loop_waits"] <= row["counters"]["waits"]
        assert len(latency.table(rows).splitlines()) == 2 + 2 * len(rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux has what a run changes")
def test_a_run_that_is_stopped_puts_everything_back(
    processors: ModuleType, host_memory: ModuleType, tmp_path: Path
) -> None:
    """SIGTERM ends it through its blocks, and a second one does not stop that: no store is left, the settings of the
    machine are as they were, and the kernel's threads where they were.
    """
    pytest.importorskip("hdrh.histogram")

    def settings() -> list[str]:
        files = (host_memory._REPORTING_ORDER, processors._WORKQUEUES)
        return [path.read_text() for path in files if path.exists()]

    def threads() -> dict[int, set[int]]:
        found = {}
        for number in processors._of_kernel():
            with contextlib.suppress(ProcessLookupError):  # it ended
                found[number] = os.sched_getaffinity(number)
        return found

    were, stood = settings(), threads()
    script = Path(__file__).resolve().parents[2] / "bench" / "latency.py"
    words = ("--kinds", "mmap", "--rates", "1000", "--seconds", "4.9", "--segment", "4.9", "--path", str(tmp_path))
    with subprocess.Popen([sys.executable, str(script), *words], stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/mmap/consumequeue/Bench")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (128 + signal.SIGTERM, b"")
    assert list(tmp_path.iterdir()) == []
    assert settings() == were
    stand = threads()
    assert [number for number in stood.keys() & stand.keys() if stood[number] != stand[number]] == []
