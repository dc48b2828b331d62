"""Offsets by store time: a running store and a reader give the same answers, which are those of the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from store.small_store import SMALL

import mqfast
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.results import BoundaryType

BEGIN = 1_750_000_000_000


@pytest.mark.parametrize("steps", [(1,), (0, 0, 3), (5, 0, 0, 0, 1), (0,)])
def test_a_store_and_a_reader_agree(tmp_path: Path, steps: tuple[int, ...]) -> None:
    os_api = OsApi()
    times, now = [], BEGIN
    with mqfast.open(tmp_path / "s", os_api=os_api, **SMALL) as store:
        for number in range(60):  # several queue files and log files
            now += steps[number % len(steps)]
            os_api.fix_clock(now)
            store.put("T", b"x" * 100)
            times.append(now)
        with mqfast.StoreReader(tmp_path / "s") as reader:
            for asked in {0, BEGIN - 1, now + 1, *times, *(time + 1 for time in times)}:
                lower = sum(time < asked for time in times)
                upper = max(0, sum(time <= asked for time in times) - 1)
                assert store.offset_by_time("T", 0, asked) == lower
                assert reader.offset_by_time("T", 0, asked) == lower
                assert reader.offset_by_time("T", 0, asked, BoundaryType.UPPER) == upper
                assert store.offset_by_time("T", 0, asked, BoundaryType.UPPER) == upper
