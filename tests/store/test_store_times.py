"""Store times are those of the clock, as RocketMQ's are.

Written for a line that could be left out without any test failing (``tests/mutation``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast import Message
from mqfast.store.base.os_api import OsApi

T0 = 1_700_000_000_000

WAYS: dict[str, Callable[[Any], Any]] = {
    "put": lambda store: store.put("T", b"x"),
    "keyed": lambda store: store.put("T", b"x", keys="k"),
    "producer": lambda store: store.producer("T").put(b"x"),
    "general": lambda store: store.put("T", b"x", flag=1),
    "many": lambda store: store.put_many("T", [b"x", b"y"])[-1],
    "batch": lambda store: store.put_batch([Message("T", b"x"), Message("T", b"y")])[0],
    "nowait": lambda store: store.put_nowait("T", b"x").result,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_store_time_is_the_clock_s_also_where_that_falls(tmp_path: Path, way: str) -> None:
    os_api = OsApi()
    os_api.fix_clock(T0)
    with mqfast.open(tmp_path / "store", os_api=os_api, mappedFileSizeCommitLog=1 << 16) as store:
        store.put("T", b"first")
        for now in (T0 - 3_600_000, T0 + 1, T0 + 1, T0 + 7):
            os_api.fix_clock(now)
            assert WAYS[way](store).store_timestamp == now
        assert store.offset_by_time("T", 0, T0 + 7) == store.max_offset("T", 0) - (2 if way in ("many", "batch") else 1)
    os_api.fix_clock(T0 - 7_200_000)
    with mqfast.open(tmp_path / "store", os_api=os_api) as store:
        assert WAYS[way](store).store_timestamp == T0 - 7_200_000


def test_store_times_are_those_of_the_wall_clock(tmp_path: Path) -> None:
    """A put may use the clock reading of the one before for some 20 us: never a time to come, nor one of long ago."""
    late: list[int] = []
    with mqfast.open(tmp_path / "store") as store:
        put = store.producer("T").put
        for number in range(20_000):
            if number % 1000 == 0:
                time.sleep(0.002)  # a reading that is too old to serve again
            before = time.time_ns() // 1_000_000
            stored = put(b"x").store_timestamp
            assert stored <= time.time_ns() // 1_000_000
            late.append(before - stored)
    assert max(late) <= 1, "the millisecond that ended while the last reading still served"
    assert sum(1 for ms in late if ms > 0) < len(late) // 10
