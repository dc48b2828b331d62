"""Brokers, drivers, executors and tasks killed while a stream writes into a broker: each row is there once.

``make broker-kills``, which puts the folder of tests on the path, runs the long form,
``test_kills_of_brokers.py`` the short one. The broker is ``mqfast up`` in a process of its own; after each SIGKILL it
comes back on its ports and its store. The rest is as in ``kills.py``; reading from a broker is in ``landing_kills.py``.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kills
from running import BrokerProcess

import mqfast
from mqfast.remoting.once import RowSequence

KINDS = (
    *("broker", "task", "broker", "broker", "task", "broker", "broker", "task", "broker", "driver", "broker", "task"),
    *("broker", "broker", "task", "broker", "broker", "task", "jvm"),
)
LOCAL = "local[2,100]"
EXECUTORS = "local-cluster[2,1,1024]"  # each executor is a process of its own
KINDS_OF_EXECUTORS = ("executor", "broker", "executor", "task", "executor", "driver")
RUNS = ("landing", "sink", "landing-executors", "sink-executors", "landing-each")


@dataclass
class BrokerRun(kills.Run):
    """A copy of a store into a broker."""

    most_away_s: float = 1.0
    done_before: int = 0

    def __post_init__(self) -> None:
        self.source = self.directory / "source"
        self.directory.mkdir(parents=True, exist_ok=True)
        kills.fill(self.source, self.rows)
        (self.directory / "broker").mkdir()
        self.broker = BrokerProcess(self.directory / "broker", defaultTopicQueueNums=kills.QUEUES)
        self.target = self.broker.store

    def _more(self) -> dict[str, Any]:
        options = {"namesrv": self.broker.namesrv, "delivery": "exactly_once", "brokerTimeout": "300s"}
        return {"target": "", "options": options}

    def _batches(self) -> int:
        """How many batches are done."""
        commits = self.directory / "checkpoint" / "commits"
        return sum(file.name.isdigit() for file in commits.iterdir()) if commits.is_dir() else 0

    def _kill(self, pid: int, kind: str) -> bool:
        """A kill hits a stream that runs: since the one before a batch was done."""
        done = self._batches()
        if done <= self.done_before:
            return False
        self.done_before = done
        if kind != "broker":
            return super()._kill(pid, kind)
        self.broker.end(signal.SIGKILL)
        time.sleep(self.chance.uniform(0, self.most_away_s))
        self.broker.start()
        return True

    def end(self) -> None:
        """The broker ends."""
        if self.broker.process.poll() is None:
            self.broker.end()

    def check(self) -> None:
        """Each row once; the rows of each task in their order in each queue."""
        self.end()
        found: Counter[int] = Counter()
        rows: dict[tuple[int, int, int], list[int]] = {}
        with mqfast.StoreReader(self.target) as reader:
            for message in reader.scan():
                if message.topic == "t":
                    number = int(bytes(message.body).split()[0])
                    found[number] += 1
                    assert message.queue_id == number % kills.QUEUES
                    mark = RowSequence.parse(message.properties["SPK"])
                    assert mark is not None
                    rows.setdefault((mark.batch, mark.partition, message.queue_id), []).append(mark.row)
        lost = [n for n in range(self.rows) if n not in found]
        repeated = [n for n, count in found.items() if count > 1]
        assert not lost, f"{len(lost)} lost, {len(repeated)} repeated; the first lost: {lost[:5]}"
        assert not repeated, f"{len(repeated)} repeated: {repeated[:5]}"
        assert len(found) == self.rows
        assert all(numbers == sorted(numbers) for numbers in rows.values())


# --- the long form ---------------------------------------------------------------------------------------------------


def runs(given: argparse.Namespace, seed: int, directory: Path) -> Iterator[BrokerRun]:
    """Each run when it is asked for: into a broker and from a broker into Parquet in one JVM, with all kills and rows;
    then both on a cluster of two executors and by a function of each batch, with a fifth of them.
    """
    from landing_kills import LandingRun

    few, few_rows = max(1, given.crashes // 5), max(1, given.rows // 5)
    for name, kind, sink, master, kinds, crashes, rows in (
        ("landing", LandingRun, "files", LOCAL, KINDS, given.crashes, given.rows),
        ("sink", BrokerRun, "broker", LOCAL, KINDS, given.crashes, given.rows),
        ("landing-executors", LandingRun, "files", EXECUTORS, KINDS_OF_EXECUTORS, few, few_rows),
        ("sink-executors", BrokerRun, "broker", EXECUTORS, KINDS_OF_EXECUTORS, few, few_rows),
        ("landing-each", LandingRun, "each", LOCAL, KINDS, few, few_rows),
    ):
        if name in given.runs:
            planned = [kinds[n % len(kinds)] for n in range(crashes)]
            yield kind(
                directory / name, sink, rows, planned, random.Random(seed), master=master, limit=given.limit,
                most_delay_s=3.0,
            )  # fmt: skip


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crashes", type=int, default=55)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--limit", type=int, default=1000, help="rows of a batch")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mqfast-kills-") as name:
        began = time.monotonic()
        for run in runs(given, seed, Path(name)):
            try:
                run.carry_out()
                run.check()
            finally:
                run.end()
            print(
                f"{run.directory.name}: {sum(run.done.values())} kills {dict(run.done)}, {run.lives} lives, "
                f"{run.rows} rows: 0 lost, 0 repeated ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            began = time.monotonic()


if __name__ == "__main__":
    main()
