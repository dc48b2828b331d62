"""Queue units that a crash took away, tore or left too low: recovery puts them again from the log.

Formats: ``mqfast/store/FORMAT.md``. Written for steps of recovery that could be left out without any test failing
(``tests/mutation``).
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still

import mqfast
from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import OsApi

SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 20 * 200, "maxIndexNum": 100}
UNIT = 20
T0 = 1_700_000_000_000


def write_units(path: Path, topic: str, at: int, data: bytes) -> None:
    with (path / "consumequeue" / topic / "0" / ("0" * 20)).open("r+b") as file:
        file.seek(at)
        file.write(data)


def numbers(store: mqfast.MessageStore, topic: str, tags: str | None = None) -> list[tuple[int, int]]:
    return [(m.queue_offset, int(bytes(m.body))) for m in store.get(topic, 0, 0, 1000, tags=tags)]


def test_after_a_clean_stop_the_walk_begins_where_the_units_end(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SETTINGS) as store:
        placed = [store.put("T", b"000")]
        while 8192 - store.log.written >= placed[0].size + 8:
            placed.append(store.put("T", b"%03d" % len(placed)))
        later = [store.put("U", b"%03d" % i) for i in range(20)]
        assert later[0].physical_offset == 8192
    gone = next(i for i, place in enumerate(placed) if place.physical_offset > 4096 + 1000)
    write_units(path, "T", gone * UNIT, bytes((len(placed) - gone) * UNIT))
    write_units(path, "U", 0, bytes(20 * UNIT))  # nothing in the third file shows that units are missing in the second
    with mqfast.open(path, **SETTINGS) as store:
        assert store.recovery.clean
        assert numbers(store, "T") == [(i, i) for i in range(len(placed))]
        assert numbers(store, "U") == [(i, i) for i in range(20)]


def test_after_a_kill_a_unit_with_a_torn_end_is_put_again(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SETTINGS) as store:
        for i in range(5):
            store.put("T", b"%d" % i, tags="tag")
        lab(store).step_dispatch()
        path = shutil.copytree(tmp_path / "store", tmp_path / "killed")
    write_units(path, "T", 4 * UNIT + 12, bytes(8))  # the tags code: a sector may end before it
    with mqfast.open(path, **SETTINGS) as store:
        assert not store.recovery.clean
        assert numbers(store, "T", "tag") == [(i, i) for i in range(5)]


@pytest.mark.parametrize("lost", [4, 11])
def test_after_a_kill_units_lost_below_the_start_of_the_walk_are_put_again(tmp_path: Path, lost: int) -> None:
    os_api = OsApi()
    os_api.fix_clock(T0)
    settings = {**SETTINGS, "messageIndexEnable": False}  # else the walk for lost keys passes there
    with open_still(tmp_path / "store", os_api=os_api, **settings) as store:
        for i in range(100):
            store.put("TU"[i % 2], b"%d" % (i // 2))
        os_api.fix_clock(T0 + 60_000)
        for i in range(100, 160):
            store.put("TU"[i % 2], b"%d" % (i // 2))
        lab(store).step_dispatch()
        lab(store).flush_log(thorough=True)
        lab(store).flush_queues()
        path = shutil.copytree(tmp_path / "store", tmp_path / "killed")
    write_units(path, "T", lost * UNIT, bytes((80 - lost) * UNIT))
    with mqfast.open(path, os_api=os_api, **settings) as store:
        assert store.recovery.start > 0  # the walk itself does not reach the first record that has no unit
        assert numbers(store, "T") == [(i, i) for i in range(80)]
        assert numbers(store, "U") == [(i, i) for i in range(80)]
        assert store.put("T", b"80").queue_offset == 80


@pytest.mark.parametrize("way", ["longer", "shorter", "another topic", "another queue"])
def test_a_unit_that_leads_elsewhere_is_an_error(tmp_path: Path, way: str) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SETTINGS) as store:
        placed = [store.put("T", b"0"), store.put("T", b"1"), store.put("T", b"2")]
        for _ in range(2):  # so that the queue offset alone would be right
            others = {"another topic": store.put("U", b"1"), "another queue": store.put("T", b"1", 1)}
        assert store.get("T", 0, 0).bodies() == [b"0", b"1", b"2"]
        other = others.get(way)
        at, size = (placed[1] if other is None else other).physical_offset, placed[1].size
        size += {"longer": 1, "shorter": -1}.get(way, 0)
        write_units(path, "T", UNIT, struct.pack(">qi", at, size))
        assert store.get("T", 0, 0).bodies() == [b"0"]
        with pytest.raises(CorruptFile, match="does not point at its record"):
            store.get("T", 0, 1)
