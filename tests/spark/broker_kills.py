"""Brokers, drivers and tasks killed while a stream writes into a broker: each row is there once.

Room: tests; ``make broker-kills``, which puts the folder of tests on the path, runs the long form,
``test_kills_of_brokers.py`` the short one. The broker is ``mqfast up`` in a process of its own; after each SIGKILL it
comes back on its ports and its store. The rest is as in ``kills.py``.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kills
from running import BrokerProcess

import mqfast
from mqfast.remoting.once import Mark

KINDS = (
    *("broker", "task", "broker", "broker", "task", "broker", "broker", "task", "broker", "driver", "broker", "task"),
    *("broker", "broker", "task", "broker", "broker", "task", "jvm"),
)


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
                    mark = Mark.parse(message.properties["SPK"])
                    assert mark is not None
                    rows.setdefault((mark.batch, mark.partition, message.queue_id), []).append(mark.row)
        lost = [n for n in range(self.rows) if n not in found]
        repeated = [n for n, count in found.items() if count > 1]
        assert not lost, f"{len(lost)} lost, {len(repeated)} repeated; the first lost: {lost[:5]}"
        assert not repeated, f"{len(repeated)} repeated: {repeated[:5]}"
        assert len(found) == self.rows
        assert all(numbers == sorted(numbers) for numbers in rows.values())


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crashes", type=int, default=55)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--limit", type=int, default=1000, help="rows of a batch")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    planned = [KINDS[n % len(KINDS)] for n in range(given.crashes)]
    with tempfile.TemporaryDirectory(prefix="mqfast-kills-") as name:
        began = time.monotonic()
        run = BrokerRun(
            Path(name), "broker", given.rows, planned, random.Random(seed), limit=given.limit, most_delay_s=3.0
        )
        try:
            run.carry_out()
            run.check()
        finally:
            run.end()
        print(
            f"{sum(run.done.values())} kills {dict(run.done)}, {run.lives} lives, {run.rows} rows: 0 lost, 0 repeated "
            f"({time.monotonic() - began:.0f} s)"
        )


if __name__ == "__main__":
    main()
