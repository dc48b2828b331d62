"""dispatch and recovery: the walk over the log. Targets: >= 10 million units a second, >= 4 million with
index entries; recovery after a kill >= 5 GB/s, CRC checked.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

from harness import Table, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

ROUNDS = 7


def _killed(path: Path, copy: Path, size: int, count: int) -> int:
    """Write a store and leave a copy of it as a killed process would; returns the log's bytes."""
    with mqfast.open(path, mappedFileSizeCommitLog=128 << 20, profile="broker") as store:
        bodies = [b"x" * size] * 1000
        for number in range(count // 1000):
            store.put_many("Bench", bodies, number % 4)
        written = store.log.written
        shutil.copytree(path, copy)
    return written


def test_dispatch_units(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """Queues rebuilt from the log without CRC checks: mostly the walk itself."""
    count = 500_000
    _killed(place / "store", place / "killed", 64, count)

    def fresh() -> tuple[tuple[Path], dict[str, object]]:
        shutil.rmtree(place / "killed" / "consumequeue", ignore_errors=True)
        (place / "killed" / "abort").touch()
        return (place / "killed",), {}

    seconds: list[float] = []

    def work(path: Path) -> None:
        store = mqfast.open(path, checkCRCOnRecover=False, create=False, profile="broker")
        seconds.append(store.recovery.seconds - store.recovery.sync_seconds)
        assert store.recovery.records == count
        store.close()

    benchmark.pedantic(work, setup=fresh, rounds=ROUNDS)
    rate = count / statistics.median(seconds)
    table.add("dispatch log -> queues, 64 B bodies", f"{rate / 1e6:.1f} M units/s", ">= 10 M units/s", rate >= 10e6)


def test_dispatch_keys(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """Units and index entries of records that each have a key, by the dispatcher's own walk, a step a round."""
    count = scaled(100_000)
    settings = {"mappedFileSizeCommitLog": 256 << 20, "maxHashSlotNum": 500_000, "maxIndexNum": 2_000_000}
    # Without services nothing dispatches but the steps that are timed.
    with mqfast.open(
        place / "store", dispatch="background", _start_services=False, **settings, profile="broker"
    ) as store:
        put = store.producer("Bench").put
        put(b"first", "key")
        store.engine.dispatcher.step()
        seconds: list[float] = []

        def fill() -> tuple[tuple[()], dict[str, object]]:
            for number in range(count):
                put(b"x" * 64, f"key{number}")
            return (), {}

        def work() -> None:
            began = time.perf_counter()
            assert store.engine.dispatcher.step() == count
            seconds.append(time.perf_counter() - began)

        benchmark.pedantic(work, setup=fill, rounds=ROUNDS)
    rate = count / statistics.median(seconds)
    table.add("dispatch log -> queues and index", f"{rate / 1e6:.1f} M units/s", ">= 4 M units/s", rate >= 4e6)


def test_recovery(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """A killed store of 1 KiB messages, whole log walked with CRC checks, queues written again."""
    written = _killed(place / "store", place / "killed", 1024, 500_000)

    def fresh() -> tuple[tuple[Path], dict[str, object]]:
        shutil.rmtree(place / "killed" / "consumequeue", ignore_errors=True)
        (place / "killed" / "checkpoint").unlink(missing_ok=True)
        (place / "killed" / "abort").touch()
        return (place / "killed",), {}

    seconds: list[float] = []
    synced: list[float] = []

    def work(path: Path) -> None:
        store = mqfast.open(path, create=False, profile="broker")
        seconds.append(store.recovery.seconds - store.recovery.sync_seconds)
        synced.append(store.recovery.seconds)
        assert store.recovery.end == written
        store.close()

    benchmark.pedantic(work, setup=fresh, rounds=ROUNDS)
    rate = written / statistics.median(seconds) / 1e9
    table.add("recovery after a kill, 1 KiB bodies, CRC", f"{rate:.2f} GB/s", ">= 5 GB/s", rate >= 5)
    rate = written / statistics.median(synced) / 1e9
    table.add("the same, with the sync of all that no checkpoint covers", f"{rate:.2f} GB/s", "-", None, "durable")
