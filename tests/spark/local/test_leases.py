"""Leases end with what they are for: with the last task of a read, with a stream or a job, or a minute after a kill.

No Spark; what a session leaves is in ``test_source.py`` and ``test_stream_queries.py``.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import mqfast
from mqfast.spark.local.leases import HeldLease, TaskLease, hold
from mqfast.store.base.os_api import REAL
from mqfast.store.meta.leases import end_lease, least_leased, renew_lease, write_lease

MINUTE = 60_000
HOUR = 60 * MINUTE


def now() -> int:
    return int(time.time() * 1000)


def leased(root: Path, ahead_ms: int = 0) -> int | None:
    return least_leased(REAL, str(root), now() + ahead_ms)


def left(root: Path) -> list[str]:
    return os.listdir(root / "spark-leases")


def test_the_last_task_to_end_ends_the_lease_of_a_read(tmp_path: Path) -> None:
    path = write_lease(REAL, str(tmp_path), 700, HOUR)
    tasks = [TaskLease(path, 700, HOUR, number, 3) for number in range(3)]
    assert leased(tmp_path, HOUR - MINUTE) == 700  # it may take long until the first one begins
    with hold(tasks[0]):
        assert leased(tmp_path) == 700
        assert leased(tmp_path, 2 * MINUTE) is None  # what reads says so again and again
    with pytest.raises(RuntimeError), hold(tasks[1]):
        raise RuntimeError
    for _ in range(3):  # again, and by another attempt at the same time
        with hold(tasks[1]), hold(tasks[0]):
            pass
    assert leased(tmp_path) == 700
    with hold(tasks[2]):
        assert leased(tmp_path) == 700
    assert leased(tmp_path) is None
    assert left(tmp_path) == []


def test_a_task_that_runs_again_has_its_lease_again(tmp_path: Path) -> None:
    path = write_lease(REAL, str(tmp_path), 700, HOUR)
    task = TaskLease(path, 700, HOUR, 0, 1)
    for _ in range(2):
        with hold(task):
            assert leased(tmp_path) == 700
        assert leased(tmp_path) is None


def test_a_reader_that_stops_early_ends_it_as_well(tmp_path: Path) -> None:
    def rows(task: TaskLease) -> object:
        with hold(task):
            yield 1
            yield 2

    reading = rows(TaskLease(write_lease(REAL, str(tmp_path), 700, HOUR), 700, HOUR, 0, 1))
    assert next(reading) == 1  # type: ignore[call-overload]
    assert leased(tmp_path) == 700
    reading.close()  # type: ignore[attr-defined]
    assert leased(tmp_path) is None


def test_a_lease_of_a_process_moves_with_its_batches(tmp_path: Path) -> None:
    with HeldLease(str(tmp_path), HOUR) as held:
        for place in (0, 500, 900):
            task = held.move(place)
            assert task is not None
            assert leased(tmp_path) == place
            with hold(task):  # tasks keep it, and none of them ends it
                pass
            assert leased(tmp_path) == place
        assert len(left(tmp_path)) == 1
        assert leased(tmp_path, 2 * MINUTE) is None  # should this process die
    assert left(tmp_path) == []
    held.close()


def test_no_lease_where_none_is_wanted_or_none_can_be_written(tmp_path: Path) -> None:
    with HeldLease(str(tmp_path), 0) as held:
        assert held.move(5) is None
    assert not (tmp_path / "spark-leases").exists()
    (tmp_path / "spark-leases").write_text("in the way")
    with HeldLease(str(tmp_path), HOUR) as held:
        assert held.move(5) is None
    with hold(TaskLease(str(tmp_path / "spark-leases" / "x"), 5, HOUR, 0, 1)), hold(None):
        pass


def test_leases_of_killed_processes_are_removed_with_the_next_lease(tmp_path: Path) -> None:
    old = write_lease(REAL, str(tmp_path), 1, -1)
    for name in (f"{old}.ended", f"{old}.abc.tmp", str(tmp_path / "spark-leases" / "gone.ended")):
        Path(name).write_bytes(b"x")
    live = write_lease(REAL, str(tmp_path), 2, HOUR)
    Path(f"{live}.ended").write_bytes(b"x")
    third = write_lease(REAL, str(tmp_path), 3, HOUR)
    assert sorted(left(tmp_path)) == sorted(os.path.basename(name) for name in (live, f"{live}.ended", third))
    renew_lease(REAL, live, 9, HOUR)
    assert json.loads(Path(live).read_bytes())["minPhysicalOffset"] == 9
    end_lease(REAL, live)
    end_lease(REAL, live)
    assert left(tmp_path) == [os.path.basename(third)]


def test_retention_has_what_an_ended_lease_kept(tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    settings = {"mapped_file_bytes_commit_log": 1 << 16, "mapped_file_bytes_consume_queue": 2000}
    with mqfast.open(store_path, max_hash_slot_num=64, max_index_num=500, **settings) as store:  # type: ignore[arg-type]
        store.put_many("t", [b"x" * 1000] * 400)
    task = TaskLease(write_lease(REAL, str(store_path), 0, HOUR), 0, HOUR, 0, 1)
    with mqfast.open(store_path, retention_bytes=1 << 17, clean_resource_interval_ms=20) as store:
        with hold(task):
            store.put("t", b"y")
            time.sleep(0.2)
            assert store.min_physical_offset == 0
        deadline = time.monotonic() + 30
        while store.max_physical_offset - store.min_physical_offset > 1 << 18 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert store.max_physical_offset - store.min_physical_offset <= 1 << 18
