"""``make bench-client``: what producers reach, beside a lean C sender on the same broker, in one table.

It must never compare figures of different runs: rows are medians over rounds, in which the programs take turns, each in
a process of its own. Rows of the client alone talk to a stub in C that answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from running import BrokerProcess  # noqa: E402

LARGE = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000, "maxHashSlotNum": 5_000_000,
         "maxIndexNum": 20_000_000, "messageIndexEnable": False}  # fmt: skip
ON_BROKER = ("C1", "C2", "C3 uvloop", "C3 asyncio", "C4", "C6", "C10")
ON_STUB = ("C1", "C4", "C5 batch", "C5 many", "C12", "C14")
GOALS = {
    "C1": "0.85 of the C sender, 15 us", "C2": "24 k/s", "C3 uvloop": "40 k/s", "C3 asyncio": "32 k/s",
    "C4": "100 k/s, 4 us", "C5 batch": "600 k/s on the stub", "C5 many": "600 k/s on the stub", "C6": "150 k/s",
    "C10": "15 ms", "C12": "60 ms", "C14": "2 MiB", "C15": "16 + 8 MiB",
}  # fmt: skip


def compiled(work: Path, source: Path) -> Path:
    """A C program. Raises: CalledProcessError."""
    program = work / source.stem
    subprocess.run([os.environ.get("CC", "cc").split()[-1], "-O2", "-o", program, source], check=True)
    return program


def row(name: str, address: str, seconds: float) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, str(HERE / "producers.py"), name, address, str(seconds)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    if done.returncode:
        return {"failed": 1.0}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def lean(sender: Path, broker: str, connections: int, window: int, seconds: float) -> dict[str, float]:
    """The C sender on the same broker."""
    host, _, port = broker.rpartition(":")
    command = [sender, host, port, "bench", "4", str(connections), str(window), "1024", str(seconds)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {key: statistics.median(one[key] for one in rounds if key in one) for key in rounds[0]}


def shown(figures: dict[str, float]) -> str:
    """Figures as text."""
    return ", ".join(f"{key} {value:,.1f}" for key, value in figures.items())


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--rows", nargs="*", default=None)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        stub_program, sender = compiled(work, HERE / "stub.c"), compiled(work, ROOT / "bench" / "broker" / "sender.c")
        stub = subprocess.Popen([stub_program, "0"], stdout=subprocess.PIPE, text=True)
        assert stub.stdout is not None
        stub_address = f"127.0.0.1:{stub.stdout.readline().strip()}"
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        try:
            with BrokerProcess(work, **LARGE) as cluster:
                broker = f"127.0.0.1:{cluster._ports[1]}"
                row("C10", cluster.namesrv, 0.1)  # the topic is made
                for _ in range(given.rounds):
                    for name in ON_BROKER:
                        if given.rows is None or name in given.rows:
                            found.setdefault((name, "broker"), []).append(row(name, cluster.namesrv, given.seconds))
                    for text, connections, window in (("C sender, 1", 1, 1), ("C sender, 16", 16, 1)):
                        if given.rows is None or "C1" in given.rows:
                            found.setdefault((text, "broker"), []).append(
                                lean(sender, broker, connections, window, given.seconds)
                            )
                    for name in ON_STUB:
                        if given.rows is None or name in given.rows:
                            found.setdefault((name, "stub"), []).append(row(name, stub_address, given.seconds))
            if given.rows is None or "C15" in given.rows:
                found["C15", "nobody"] = [row("C15", "127.0.0.1:1", given.seconds)]
        finally:
            stub.terminate()
            stub.wait(10)
        print("| Row | Against | Figures | Goal |\n|---|---|---|---|")
        for (name, against), rounds in found.items():
            print(f"| {name} | {against} | {shown(median(rounds))} | {GOALS.get(name, '')} |")


if __name__ == "__main__":
    main()
