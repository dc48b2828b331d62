"""Threads put and read at once; their recorded history obeys the rules of history.py, and broken histories do not.

Room: tests/linearity. MQFAST_LONG=1 records a quarter of a minute of each kind. A failure prints the seed; threads may
still interleave otherwise.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast

sys.path.insert(0, str(Path(__file__).resolve().parent))

from history import History, record, violations
from sampling import WHOLE

SECONDS = 15.0 if WHOLE else 1.0
SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3, "commitIntervalCommitLog": 5}
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "maxHashSlotNum": 500,
    "maxIndexNum": 5000,
}


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads change places a hundred times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("dispatch", ["inline", "background"])
@pytest.mark.parametrize("mode", [{}, SYNC, POOL, SYNC | POOL], ids=["async", "sync", "pool", "pool-sync"])
def test_histories(tmp_path: Path, seed: int, mode: dict[str, Any], dispatch: str) -> None:
    print(f"seed {seed}")
    with mqfast.open(tmp_path / "store", **SMALL, **mode, dispatch=dispatch) as store:
        history = record(store, SECONDS, seed, writers=3, readers=3)
        inline = dispatch == "inline"
        # with the pool a message is seen once it was committed, which inline dispatch does for its readers
        at_once = inline or mode is not POOL
        broken = violations(history, inline=inline, sync="flushDiskType" in mode, at_once=at_once)
        assert not broken, f"{len(broken)} violations, seed {seed}:\n" + "\n".join(broken[:10])
        assert len(history.puts) > 50
        assert sum(len(read.found) for read in history.reads) > 50
        print(f"{len(history.puts)} messages put, {len(history.reads)} reads")


# --- the rules see what they should ----------------------------------------------------------------------------------


def _history(path: Path) -> History:
    with mqfast.open(path, **SMALL, dispatch="inline") as store:
        history = record(store, 0.15, 3, writers=2, readers=2)
    assert not violations(history, inline=True, sync=False)
    return history


def _hole(h: History) -> None:
    h.puts.remove(h.puts[len(h.puts) // 2])


def _repeat(h: History) -> None:
    h.puts.append(dataclasses.replace(h.puts[0]))


def _early_sight(h: History) -> None:
    read = next(read for read in h.reads if read.kind in ("tail", "get") and read.found)
    put = next(put for put in h.puts if put.physical_offset == read.found[0][1])
    put.began = read.ended + 1


def _unseen(h: History) -> None:
    last = max(put.ended for put in h.puts)
    read = next(read for read in reversed(h.reads) if read.kind == "tail" and read.found)
    read.began, read.found, read.limit = last + 1, [], 8


def _foreign(h: History) -> None:
    read = next(read for read in h.reads if read.kind == "tail" and read.found)
    read.found[0] = (*read.found[0][:3], b"never put", read.found[0][4])


def _late_in_log(h: History) -> None:
    puts = sorted(h.puts, key=lambda put: put.physical_offset)
    puts[-1].ended = puts[0].began - 1


def _time_falls(h: History) -> None:
    max(h.puts, key=lambda put: put.physical_offset).store_timestamp = 1


def _shrinks(h: History) -> None:
    best = max((read for read in h.reads if read.kind == "tail"), key=lambda read: read.offset + len(read.found))
    after = max(read.ended for read in h.reads) + 1
    h.reads.append(dataclasses.replace(best, kind="max", found=[], answer=0, began=after, ended=after + 1))


@pytest.mark.parametrize(
    "harm,text",
    [
        (_hole, "a hole or a repeat"),
        (_repeat, "a hole or a repeat"),
        (_early_sight, "before its put began"),
        (_unseen, "did not see offset"),
        (_foreign, "never put"),
        (_late_in_log, "ended before another put began"),
        (_time_falls, "store time falls"),
        (_shrinks, "after it had been"),
    ],
)
def test_a_broken_history_is_seen(tmp_path: Path, harm: Callable[[History], None], text: str) -> None:
    history = _history(tmp_path / "store")
    harm(history)
    assert any(text in line for line in violations(history, inline=True, sync=False))


def test_a_message_that_is_seen_before_its_flush_is_seen(tmp_path: Path) -> None:
    history = _history(tmp_path / "store")
    next(read for read in history.reads if read.kind == "tail" and read.found).flushed = 0
    assert any("before it was flushed" in line for line in violations(history, inline=True, sync=True))
