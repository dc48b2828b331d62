"""``make bench-client``: our client beside a lean C sender and the Java and Go clients on one broker, in one table.

It must never compare figures of different runs: each is the median over rounds, in which the programs take turns, each
in a process of its own. Rows of the client alone talk to a stub in C that answers at once. A rival that cannot be
built here has no column of figures. ``--long 10000000`` makes C14 send and receive as many messages.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [*(str(ROOT / "tests" / part) for part in ("kit", "golden/make", "compat"))]

from java_oracle import NEWEST, JavaOracle  # noqa: E402
from make import jars  # noqa: E402
from running import BrokerProcess  # noqa: E402

LARGE = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000, "maxHashSlotNum": 5_000_000,
         "maxIndexNum": 20_000_000, "messageIndexEnable": False}  # fmt: skip
FILLED = 100_000
Figures = dict[str, float]
Test = Callable[[Figures, dict[str, Figures]], bool]


class Row(NamedTuple):
    """One line. Args: against: broker, stub or nobody. is_met: from our figures and those of the rivals."""

    name: str
    what: str
    against: str
    goal: str
    is_met: Test
    rivals: tuple[str, ...] = ()


def least(rate: float, cpu_us: float | None = None) -> Test:
    """A rate and a limit of CPU."""
    return lambda ours, others: ours["rate"] >= rate and (cpu_us is None or ours["cpu_us"] <= cpu_us)


def most(key: str, limit: float) -> Test:
    """A limit of one figure."""
    return lambda ours, others: ours[key] <= limit


def beside_rivals(ours: Figures, others: dict[str, Figures]) -> bool:
    """C1."""
    lean, java = others.get("C sender"), others.get("Java")
    return (
        (lean is None or ours["rate"] >= 0.85 * lean["rate"])
        and ours["cpu_us"] <= 15
        and (java is None or ours["rate"] >= 1.8 * java["rate"])
    )


BOTH = ("Java", "Go")
ROWS = (
    Row("C1", "sync, 1 thread", "broker", "0.85 of C, 15 us, 1.8 of Java", beside_rivals, ("C sender", *BOTH)),
    Row("C1", "sync, 1 thread", "stub", "15 us", most("cpu_us", 15)),
    Row("C2", "sync, 16 threads", "broker", "24 k/s", least(24e3), ("C sender", *BOTH)),
    Row("C3 uvloop", "64 tasks, uvloop", "broker", "40 k/s", least(40e3)),
    Row("C3 asyncio", "64 tasks, asyncio", "broker", "32 k/s", least(32e3)),
    Row("C4", "send_nowait, 1,024 on their way", "broker", "100 k/s, 4 us", least(100e3, 4), ("C sender", *BOTH)),
    Row("C4", "send_nowait, 1,024 on their way", "stub", "100 k/s, 4 us", least(100e3, 4)),
    Row("C5 batch", "send_batch, 32 of 100 B", "stub", "600 k/s", least(600e3)),
    Row("C5 many", "send_many, 100 B", "stub", "600 k/s", least(600e3)),
    Row("C5 batch", "send_batch, 32 of 100 B", "broker", "", least(0), BOTH),
    Row("C6", "linger 5 ms, 256 tasks, 100 B", "broker", "150 k/s", least(150e3)),
    Row("C7 batch", "push, threads, batch=32", "broker", "150 k/s", least(150e3), BOTH),
    Row("C7", "push, threads, batch=1", "broker", "60 k/s", least(60e3), BOTH),
    Row("C8 tasks", "push, coroutine", "broker", "60 k/s", least(60e3)),
    Row("C8 loop", "push, `async for`", "broker", "120 k/s", least(120e3)),
    Row("C9", "a message decoded, with CRC", "nobody", "300 ns", most("ns", 300)),
    Row("C10", "first SEND_OK", "broker", "15 ms", most("ms", 15)),
    Row(
        "C11", "send to handler", "broker", "p50 300 us, p99 1.5 ms",
        lambda ours, others: ours["p50_us"] <= 300 and ours["p99_us"] <= 1500,
    ),
    Row("C12", "import of Producer", "nobody", "60 ms", most("ms", 60)),
    Row("C13", "idle producer and consumer", "broker", "12 MiB", most("mib", 12)),
    Row("C14", "memory of sends", "stub", "2 MiB", most("mib", 2)),
    Row("C14 received", "memory of receives", "broker", "2 MiB", most("mib", 2)),
    Row("C15", "1 M tries, nobody there", "nobody", "16 + 8 MiB", most("mib", 24)),
)  # fmt: skip
OF_CONSUMERS = ("C7", "C8", "C9", "C11", "C13", "C14 received")
WINDOWS = {"C1": (1, 1), "C2": (16, 1), "C4": (4, 256)}  # connections and requests under way in each of the C sender


def compiled(work: Path, source: Path) -> Path:
    """A C program. Raises: CalledProcessError."""
    program = work / source.stem
    subprocess.run([os.environ.get("CC", "cc").split()[-1], "-O2", "-o", program, source], check=True)
    return program


def java(work: Path) -> list[str] | None:
    """The command of the Java client; None where Java or the network is missing."""
    if not JavaOracle.available()[0]:
        return None
    try:
        home = jars(NEWEST, HERE / "rivals" / "Rival.java", timeout_s=300)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"no Java client: {error}", file=sys.stderr)
        return None
    logging_off = ROOT / "tests" / "compat" / "java" / "logging-off.xml"
    return [
        "java", "-Xms512m", "-Xmx512m", f"-Duser.home={work}", f"-Drocketmq.client.logRoot={work}",
        f"-Drmq.logback.configurationFile={logging_off}", "-cp", f"{home / 'classes'}:{home / 'jars'}/*", "Rival",
    ]  # fmt: skip


def go(work: Path) -> list[str] | None:
    """The command of the Go client; None where Go or its modules are missing."""
    if shutil.which("go") is None:
        return None
    program = work / "rival-go"
    done = subprocess.run(
        ["go", "build", "-o", program, "."], cwd=HERE / "rivals" / "go", capture_output=True, text=True
    )
    if done.returncode:
        print(f"no Go client: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return [str(program)]


def turn(command: list[Any]) -> Figures:
    """One measurement in a process of its own; nothing where it failed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an import of users compiles nothing
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        print(" ".join(map(str, command)), done.stderr[-1000:], sep="\n", file=sys.stderr)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    figures = {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}
    if "answers" in figures:  # of the C sender
        answers = figures["answers"]
        return {"rate": answers / figures["seconds"], "cpu_us": figures["sender_cpu_s"] / answers * 1e6}
    return figures


def median(rounds: list[Figures]) -> Figures:
    """Of each figure."""
    there = [one for one in rounds if one]
    return {key: statistics.median(one[key] for one in there) for key in there[0]} if there else {}


def shown(figures: Figures) -> str:
    """Figures as text."""
    parts = []
    for key, value in figures.items():
        name, _, unit = key.rpartition("_")
        if key == "rate":
            parts.append(f"{value / 1000:,.1f} k/s")
        elif key == "messages":
            parts.append(f"{value:,.0f} messages")
        elif key == "cpu_us":
            parts.append(f"{value:.1f} us")
        elif key != "refused":
            parts.append(f"{name} {value:,.1f} {unit}".strip())
    return ", ".join(parts) or "-"


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--rows", nargs="*", default=None, help="names, such as C1 C4")
    arguments.add_argument("--long", type=int, default=0, help="messages each way for C14, such as 10000000")
    given = arguments.parse_args()
    rows = [row for row in ROWS if given.rows is None or row.name.split()[0] in given.rows or row.name in given.rows]
    in_memory = Path("/dev/shm").is_dir() and not given.long
    with tempfile.TemporaryDirectory(dir="/dev/shm" if in_memory else None) as directory:
        work = Path(directory)
        sender = compiled(work, ROOT / "bench" / "broker" / "sender.c")
        wanted = {one for row in rows for one in row.rivals}
        rivals = {"Java": java(work) if "Java" in wanted else None, "Go": go(work) if "Go" in wanted else None}
        stub = subprocess.Popen([compiled(work, HERE / "stub.c"), "0"], stdout=subprocess.PIPE, text=True)
        assert stub.stdout is not None
        found: dict[tuple[Row, str], list[Figures]] = {}
        try:
            with BrokerProcess(work, **LARGE) as cluster:
                broker = cluster.namesrv
                addresses = {
                    "broker": broker, "stub": f"127.0.0.1:{stub.stdout.readline().strip()}", "nobody": "127.0.0.1:1",
                }  # fmt: skip
                turn([sys.executable, HERE / "producers.py", "C10", broker, 0.1])  # the topic is made
                filled = max(given.long, FILLED)
                if any(row.name.startswith(OF_CONSUMERS) and row.against == "broker" for row in rows):
                    turn([sys.executable, HERE / "producers.py", "fill", broker, filled])
                turn([sys.executable, HERE / "producers.py", "C12", broker, 0.1])  # everything is compiled
                for _ in range(given.rounds):
                    for row in rows:
                        of_consumers = row.name.startswith(OF_CONSUMERS)
                        program, number = ("consumers.py", FILLED) if of_consumers else ("producers.py", given.seconds)
                        if row.name.startswith("C14"):
                            number = filled if row.name == "C14 received" or given.long else 0
                        command = [sys.executable, HERE / program, row.name, addresses[row.against], number]
                        found.setdefault((row, "ours"), []).append(turn(command))
                        for one in row.rivals:
                            if one == "C sender":
                                connections, window = WINDOWS[row.name]
                                lean = [sender, *cluster.broker.split(":"), "bench", 4, connections, window, 1024]
                                found.setdefault((row, one), []).append(turn([*lean, given.seconds]))
                            elif (prefix := rivals[one]) is not None:
                                rest = [broker, row.name, given.seconds, FILLED, f"rival-{secrets.token_hex(4)}"]
                                found.setdefault((row, one), []).append(turn([*prefix, *rest]))
        finally:
            stub.terminate()
            stub.wait(10)
    columns = ("C sender", *BOTH)
    print(f"| Row | | Against | Goal | mqfast | C sender | Java client {NEWEST} | Go client 2.1.2 | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ours = median(found[row, "ours"])
        others = {one: figures for one in columns if (figures := median(found.get((row, one), [])))}
        verdict = "" if not row.goal else "failed" if not ours else "met" if row.is_met(ours, others) else "**missed**"
        cells = [shown(others.get(one, {})) for one in columns]
        print("|", " | ".join((row.name, row.what, row.against, row.goal, shown(ours), *cells, verdict)), "|")


if __name__ == "__main__":
    main()
