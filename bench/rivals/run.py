"""``make bench-rivals``: every rival on the same bytes in one run; writes docs/dev/benchmarks.md and its picture.

One process a rival, all alive together, one of them at work at any time, turn about, while the others are stopped: so
the noise of the machine meets all, and nobody's threads are noise of another. Medians over rounds for rates; latencies
of all turns together for percentiles. Page-cache speed and durable speed are separate columns. It must never write the
documents from a quick run, and never leave a store or a stopped process behind.

    python bench/rivals/run.py                  the full run (about 40 minutes; --paced-seconds 300 for long tails)
    python bench/rivals/run.py --quick          seconds instead of minutes, into build/rivals: does everything work?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import host_memory  # noqa: E402
import java_side  # noqa: E402
import processors  # noqa: E402
from latency import LEAD_S, LONGEST_NS, PERCENTILES, machine, phase_of, steal_ms  # noqa: E402
from stores import RIVALS  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROCKETMQ, CHRONICLE = "RocketMQ 5.3.3 (Java)", "Chronicle Queue (Java)"
NOISE, NOISE_BESIDE = "hot memory (noise)", "hot memory beside a plain writer (noise)"
FLOOR, FLOOR_NEW_PAGES, FLOOR_PACED = "floor in C", "floor in C, new pages", "log in C (floor)"
KEYWORDS = "store.put 40 B by keyword"
PACED = (NOISE, NOISE_BESIDE, FLOOR_PACED, "mqfast", "mqfast, pool", CHRONICLE, ROCKETMQ)
THREADS = (16, 64)
RATES = (20_000, 200_000)
PARTS = {"due": "response time", "call": "service time"}
FEWEST_TURNS = 7  # of which a median is told
BEGIN, END = "<!-- measured: written by make bench-rivals -->", "<!-- end of measured -->"


class Process:
    """A rival at work; ``at`` keeps one store open and makes a new one when the mode changes or much was written."""

    def __init__(self, name: str, command: Sequence[str], version: str, place: Path, most_bytes: int) -> None:
        self.name = name
        self.version = version
        self.place = place
        self.most_bytes = most_bytes
        self.mode = ""
        self.written = 0
        self.number = 0
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )

    def ask(self, *words: object) -> dict[str, Any]:
        """One command."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: there is no answer then
            self.process.stdin.write("\t".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            tail = self.log.read()[-1000:].decode("utf-8", "replace")
            return {"error": f"the process ended with {code}: {tail}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def at(self, mode: str, bytes_coming: int) -> dict[str, Any]:
        """Have a store open in this mode that has room for so much."""
        if self.mode == mode and self.written + bytes_coming <= self.most_bytes:
            return {}
        self.end_store()
        self.number += 1
        self.written = 0
        answer = self.ask("open", self.place / f"{self.number}", mode)
        self.mode = mode if not answer else ""
        return answer

    def end_store(self) -> None:
        """Close and remove the present store."""
        if self.mode:
            self.ask("close")
            shutil.rmtree(self.place / f"{self.number}", ignore_errors=True)
            self.mode = ""

    def measure(self, mode: str, *words: object, processor: int | None = None) -> dict[str, Any]:
        """One measurement in one mode, with the thread that puts alone on this processor (None: anywhere)."""
        size = int(str(words[1]))
        seconds = float(str(words[3] if words[0] == "paced" else words[2]))
        rate = int(str(words[2])) if words[0] == "paced" else 2_000_000
        seconds += LEAD_S if words[0] == "paced" else 0
        coming = int(min(rate * seconds * (size + 200), 3 << 30)) if mode == "cache" else 64 << 20
        answer = self.at(mode, coming)
        if answer:
            return answer
        os.sync()  # what another rival left for the disk to do is not this one's
        loop = {"thread": 0} if processor is None else self.ask("thread")
        if "thread" not in loop:
            return loop  # an error
        with processors.alone_on(processor, loop["thread"]):
            answer = self.ask(*words)
        self.written += int(answer.get("count", rate * seconds)) * (size + 200)
        return answer

    def signal(self, number: int) -> None:
        """Send it a signal, unless it ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.end_store()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.log.close()


def rivals(place: Path, most_bytes: int, only: Sequence[str], notes: list[str]) -> list[Process]:
    """Start those that are here; the others get a note."""
    found: list[Process] = []
    for name, kind in RIVALS.items():
        if only and name not in only:
            continue
        check = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); import stores; print(stores.RIVALS[{name!r}]().version())"
        )
        if kind.package:
            check += f"; import {kind.package.replace('persist-queue', 'persistqueue')}"
        done = subprocess.run(
            [sys.executable, "-c", check],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        if done.returncode:
            notes.append(f"{name} is left out: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
            continue
        command = [sys.executable, str(HERE / "worker.py"), name]
        found.append(Process(name, command, done.stdout.strip(), place / f"p{len(found)}", most_bytes))
    java: tuple[tuple[str, Callable[[], list[str]], str], ...] = (
        (CHRONICLE, java_side.chronicle, java_side.chronicle_version()),
        (ROCKETMQ, java_side.rocketmq, "5.3.3"),
    )
    for name, command_of, version in java:
        if only and name not in only:
            continue
        lacking = java_side.missing()
        try:
            if lacking:
                raise RuntimeError(f"needs {lacking}")
            found.append(Process(name, command_of(), version, place / f"p{len(found)}", most_bytes))
        except (RuntimeError, OSError) as error:
            notes.append(f"{name} is left out: {error}")
    for process in found:
        process.place.mkdir(parents=True)
    return found


# --- the run ---


def _percentiles(histogram: Any) -> dict[str, int]:
    values = {f"p{p:g}": int(histogram.get_value_at_percentile(p)) for p in PERCENTILES}
    return {**values, "max": int(histogram.get_max_value())}


class Results:
    """Figures by (column, rival): ns of every round, histograms of all rounds as one, and percentiles of each."""

    def __init__(self) -> None:
        self.ns: dict[tuple[str, str], list[float]] = {}
        self.histograms: dict[tuple[str, str], Any] = {}
        self.turns: dict[tuple[str, str], list[dict[str, int]]] = {}
        self.skipped: dict[tuple[str, str], str] = {}

    def add(self, column: str, name: str, answer: dict[str, Any]) -> None:
        """Take one answer in."""
        why = answer.get("skip") or answer.get("error")
        if why:
            self.skipped[column, name] = str(why)
            return
        if "ns" in answer:
            self.ns.setdefault((column, name), []).append(answer["ns"])
        for part in PARTS:
            if part in answer:
                from hdrh.histogram import HdrHistogram

                key = (f"{column}, {part}", name)
                turn = HdrHistogram(1, LONGEST_NS, 3)
                for value, count in answer[part]:
                    turn.record_value(min(value, LONGEST_NS), count)
                self.histograms.setdefault(key, HdrHistogram(1, LONGEST_NS, 3)).add(turn)
                self.turns.setdefault(key, []).append(_percentiles(turn))

    def median(self, column: str, name: str) -> float | None:
        """ns, or None when it was not measured."""
        values = self.ns.get((column, name))
        return statistics.median(values) if values else None

    def percentiles(self, column: str, name: str) -> dict[str, int] | None:
        """ns by name, or None."""
        histogram = self.histograms.get((column, name))
        return None if histogram is None else _percentiles(histogram)

    def median_turn(self, column: str, name: str) -> dict[str, int] | None:
        """The median over the turns of each percentile, ns; None of fewer than FEWEST_TURNS."""
        turns = self.turns.get((column, name), [])
        if len(turns) < FEWEST_TURNS:
            return None
        return {part: int(statistics.median(turn[part] for turn in turns)) for part in turns[0]}


@contextlib.contextmanager
def stopped(processes: Sequence[Process]) -> Iterator[None]:
    """Stop these meanwhile: an open store has threads that wake up a thousand times a second, on any processor."""
    try:
        for process in processes:
            process.signal(signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def run(processes: list[Process], results: Results, arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    """All columns, round by round."""
    seconds, rounds = arguments.seconds, arguments.rounds

    def alone(process: Process, mode: str, *words: object, processor: int | None = None) -> dict[str, Any]:
        with stopped([other for other in processes if other is not process]):
            return process.measure(mode, *words, processor=processor)

    say("warming up")
    for process in processes:
        alone(process, "cache", "single", 1024, arguments.warm_up, 1)
    columns: list[tuple[str, str, tuple[object, ...]]] = [
        ("put 40 B", "cache", ("single", 40, seconds, 1)),
        (KEYWORDS, "cache", ("keywords", 40, seconds)),
        ("put 1 KiB", "cache", ("single", 1024, seconds, 1)),
        ("batch 64 B", "cache", ("batch", 64, seconds)),
        ("batch 1 KiB", "cache", ("batch", 1024, seconds)),
        ("latency 1 KiB", "cache", ("timed", 1024, seconds)),
        ("durable 1 KiB", "durable", ("single", 1024, seconds, 1)),
        *((f"durable 1 KiB, {n} threads", "durable", ("single", 1024, seconds, n)) for n in THREADS),
    ]
    for column, mode, words in columns:
        for number in range(rounds):
            for process in processes if number % 2 else reversed(processes):
                if column == KEYWORDS and not process.name.startswith("mqfast"):
                    continue
                if (column, process.name) not in results.skipped:
                    results.add(column, process.name, alone(process, mode, *words))
        say(f"{column}: {rounds} rounds")
    turns = max(1, round(arguments.paced_seconds / arguments.segment))
    segment = min(arguments.segment, arguments.paced_seconds)
    for rate in RATES:
        column = f"paced {rate:,}/s"
        for number in range(turns):
            for process in processes:
                rounds_ns = results.ns.get(("put 1 KiB", process.name), [0.0])
                if process.name not in PACED or min(rounds_ns) * rate > 1e9:
                    results.skipped.setdefault((column, process.name), "slower than the pace")
                    continue
                words = ("paced", 1024, rate, segment, phase_of(number, rate))
                results.add(column, process.name, alone(process, "cache", *words, processor=arguments.processor))
            say(f"{column}: turn {number + 1} of {turns}")


# --- the documents ---


def filesystem(path: Path) -> str:
    """Type and device of the filesystem that holds the path."""
    best = ("", "?", "?")
    try:
        for line in Path("/proc/mounts").read_text().splitlines():
            device, where, kind = line.split()[:3]
            if (str(path) + "/").startswith(where.rstrip("/") + "/") and len(where) >= len(best[0]):
                best = (where, kind, device)
    except OSError:
        pass
    return f"{best[1]} on {best[2]}"


def facts(place: Path, processes: list[Process], steal: int, took: float, arguments: argparse.Namespace) -> list[str]:
    """The machine, in lines."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = (
        subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        if not java_side.missing()
        else None
    )
    kept = arguments.processor
    on = (
        "any processor"
        if kept is None
        else f"processor {kept}, which the disk interrupts least, alone but for what the kernel must run there"
    )
    lines = [
        f"{machine()}, {memory:.0f} GiB of memory, {filesystem(place)}; {arguments.memory}",
        f"load before the run {arguments.load:.2f}; stolen by the hypervisor during the run {steal / 1000:.1f} s of "
        f"{took:.0f} s on all cores together",
        f"{arguments.rounds} rounds of {arguments.seconds:g} s a figure, medians; paced: {arguments.paced_seconds:g} s "
        f"of each in turns of {arguments.segment:g} s, the loop on {on}",
        "versions: " + ", ".join(f"{process.name} {process.version}".strip() for process in processes),
    ]
    if java is not None:
        lines.append("Java: " + (java.stderr.splitlines() or ["?"])[0])
    return lines


def _time(ns: float | None) -> str:
    if ns is None:
        return "-"
    return f"{ns:.0f} ns" if ns < 1000 else f"{ns / 1e3:.2f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms"


def _rate(ns: float | None) -> str:
    if ns is None:
        return "-"
    rate = 1e9 / ns
    return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:.1f} k/s" if rate >= 1e3 else f"{rate:.0f}/s"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


class Target(NamedTuple):
    """A row of the table of targets."""

    what: str
    measured: str
    target: str
    met: bool | None
    """None: nothing to compare with. A tail is judged by all turns as one."""
    durability: str
    baseline: str = ""
    """What the same work takes in C, in the same run."""
    jitter: str = ""
    """What a loop that stores nothing has, in the same run."""


def _limits(noise: dict[str, int]) -> dict[str, int]:
    """What a tail may have, ns, beside the noise of the same turns."""
    return {"p99": 1000, "p99.9": 3000, "p99.99": max(50_000, 2 * noise["p99.99"]), "max": 2_000_000}


def _both(whole: dict[str, int], median: dict[str, int] | None, part: str) -> str:
    """The percentile of all turns as one, and the median over them."""
    return _time(whole[part]) + (f" / {_time(median[part])}" if median else "")


def _paced(results: Results, rate: int, name: str) -> list[Target]:
    """The rows of one of ours at one pace: its own limits, then each of the stores in Java.

    A stall that comes once in minutes is most of a p99.99 over all turns; the median over the turns says what a turn is
    like without it. Both are printed; all turns as one decide.
    """
    column, cached = f"paced {rate:,}/s, due", "page cache"
    ours, noise = results.percentiles(column, name), results.percentiles(column, NOISE)
    if ours is None or noise is None:
        return []
    beside = results.percentiles(column, NOISE_BESIDE)
    bare = results.percentiles(column, FLOOR_PACED)
    turn, turn_noise = results.median_turn(column, name), results.median_turn(column, NOISE)
    turn_bare = results.median_turn(column, FLOOR_PACED)
    rows = []
    limits = _limits(noise)
    for part, limit in limits.items():
        jitter = _both(noise, turn_noise, part) + (f", beside a writer {_time(beside[part])}" if beside else "")
        what, in_c = f"{part} at {rate:,}/s, {name}", _both(bare, turn_bare, part) if bare else ""
        met = ours[part] <= limit
        rows.append(Target(what, _both(ours, turn, part), f"<= {_time(limit)}", met, cached, in_c, jitter))
    for other in (CHRONICLE, ROCKETMQ):
        theirs = results.percentiles(column, other)
        if theirs is None:
            continue
        turn_theirs = results.median_turn(column, other)
        parts = list(limits)
        text = ", ".join(f"{part} {_both(theirs, turn_theirs, part)}" for part in parts)
        worse = [part for part in parts if ours[part] > theirs[part]]
        what = f"p99 to max at {rate:,}/s, {name}"
        rows.append(Target(what, f"{other}: {text}", "better at each", not worse, cached))
    return rows


def targets(results: Results) -> list[Target]:
    """The targets that this run can judge: those beside the two stores in Java, and the paced ones.

    The floor of a put is compared by bench_floor.py, in rounds shorter than the window of ready pages; here every store
    fills gigabytes, and its rate has the kernel's work on new pages in it.
    """
    rows: list[Target] = []
    cached = "page cache"

    def ratio(what: str, column: str, other: str, limit: float, our_name: str, our_column: str = "") -> None:
        ours, theirs = results.median(our_column or column, our_name), results.median(column, other)
        if ours is None or theirs is None:
            return
        text = f"{ours / theirs:.2f}x ({_time(ours)}, {_time(theirs)})"
        met = ours <= limit * theirs
        ready, new = results.median(column, FLOOR), results.median(column, FLOOR_NEW_PAGES)
        in_c = f"{_time(ready)}" + (f", new pages {_time(new)}" if new is not None else "") if ready is not None else ""
        rows.append(Target(f"{what}, {our_name}", text, f"<= {limit:g}x {other}", met, cached, in_c))

    for name in ("mqfast", "mqfast, pool"):
        ratio("put 40 B from Python", "put 40 B", CHRONICLE, 0.6, name)
        ratio(KEYWORDS, "put 40 B", CHRONICLE, 1.0, name, KEYWORDS)
        ours, theirs = (results.percentiles("latency 1 KiB, call", who) for who in (name, ROCKETMQ))
        if ours is not None and theirs is not None:
            text = f"{ours['p50'] / theirs['p50']:.2f}x ({_time(ours['p50'])}, {_time(theirs['p50'])})"
            met = ours["p50"] * 5 <= theirs["p50"]
            rows.append(Target(f"p50 of a put of 1 KiB, {name}", text, "<= 0.2x RocketMQ", met, cached))
        for rate in RATES:
            rows += _paced(results, rate, name)
    for threads in (1, *THREADS):
        column = "durable 1 KiB" + (f", {threads} threads" if threads > 1 else "")
        ours_ns, theirs_ns = results.median(column, "mqfast"), results.median(column, ROCKETMQ)
        if ours_ns is not None and theirs_ns is not None:
            text = f"{theirs_ns / ours_ns:.1f}x ({_rate(ours_ns)}, {_rate(theirs_ns)})"
            floor_ns = results.median(column, FLOOR)
            in_c = "" if floor_ns is None else f"{_rate(floor_ns)}"
            met = theirs_ns >= 2 * ours_ns
            rows.append(Target(f"sync flush, {threads} waiters", text, ">= 2x RocketMQ", met, "durable", in_c))
    return rows


def document(
    processes: list[Process], results: Results, told: list[str], notes: list[str], judged: Sequence[Target]
) -> str:
    """The measured part of docs/dev/benchmarks.md."""
    names = [process.name for process in processes if process.name not in (NOISE, NOISE_BESIDE, FLOOR_PACED)]
    cached = ("put 40 B", KEYWORDS, "put 1 KiB", "batch 64 B", "batch 1 KiB")
    durable = ("durable 1 KiB", *(f"durable 1 KiB, {n} threads" for n in THREADS))
    rows = [
        [
            name,
            *(_time(results.median(column, name)) for column in cached),
            *(_rate(results.median(column, name)) for column in durable),
        ]
        for name in names
    ]
    heads = ["", *(f"{column}, page cache" for column in cached), *durable]
    parts = [
        "\n".join(f"- {line}" for line in told),
        "Time of one message; durable columns: messages a second.",
        _table(heads, rows),
    ]
    labels = [*(f"p{p:g}" for p in PERCENTILES), "max"]
    latency, turns = [], []
    paces = [("as fast as it goes, service time", "latency 1 KiB, call")]
    for rate in RATES:
        paces += [(f"paced {rate:,}/s, {words}", f"paced {rate:,}/s, {part}") for part, words in PARTS.items()]
    for words, column in paces:
        for process in processes:
            values = results.percentiles(column, process.name)
            if values is not None:
                latency.append([words, process.name, *(_time(values[n]) for n in labels)])
            values = results.median_turn(column, process.name)
            if values is not None and column.startswith("paced"):
                turns.append([words, process.name, *(_time(values[n]) for n in labels)])
    parts += ["Latency of one put of 1 KiB, page cache:", _table(["pace", "", *labels], latency)]
    if turns:
        parts += ["The same, each percentile the median over the turns:", _table(["pace", "", *labels], turns)]
    parts.append("![Latency and throughput](benchmarks.png)")
    verdict = {True: "met", False: "missed", None: ""}
    two = " A tail has two figures: of all turns as one, by which it is judged, and the median over the turns."
    parts.append(f"Targets, with what was measured in this run.{two if turns else ''}")
    parts.append(
        _table(
            ["what", "measured", "C baseline", "jitter", "target", "durability", ""],
            [
                [row.what, row.measured, row.baseline, row.jitter, row.target, row.durability, verdict[row.met]]
                for row in judged
            ],
        )
    )
    left_out = [f"- {note}" for note in notes]
    left_out += [
        f"- {name}: {column} not measured ({why})"
        for (column, name), why in sorted(results.skipped.items())
        if why
        not in (
            "one writer only",
            "has no batch",
            "has no durable put",
            "measured whole",
            "stores nothing",
            "at a pace only",
            "not measured",
        )
        and name in (*PACED, *names)
        and not (why == "slower than the pace" and name not in PACED)
    ]
    if left_out:
        parts.append("\n".join(["Left out:", "", *left_out]))
    return "\n\n".join(parts)


def picture(processes: list[Process], results: Results, path: Path) -> None:
    """Percentiles of the paced put, and bars of the rates."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(19, 5.2), layout="constrained")
    labels = [*(f"p{p:g}" for p in PERCENTILES), "max"]
    for axis, rate in zip(axes[:2], RATES, strict=True):
        for process in processes:
            values = results.percentiles(f"paced {rate:,}/s, due", process.name)
            if values is not None:
                style = "--" if process.name in (NOISE, NOISE_BESIDE, FLOOR_PACED) else "-"
                axis.plot(
                    labels, [values[name] / 1e3 for name in labels], style, marker="o", markersize=3, label=process.name
                )
        axis.set_yscale("log")
        axis.set_title(f"put of 1 KiB at {rate:,}/s: response time, us\npage cache")
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
    for axis, column, title in (
        (axes[2], "put 1 KiB", "messages of 1 KiB a second, put by put\npage cache"),
        (axes[3], "durable 1 KiB", "messages of 1 KiB a second, put by put\ndurable, one thread"),
    ):
        pairs = [(process.name, results.median(column, process.name)) for process in processes]
        bars = sorted(((name, 1e9 / ns) for name, ns in pairs if ns is not None), key=lambda pair: pair[1])
        colours = [
            "tab:orange" if name.startswith("mqfast") else "tab:gray" if "floor" in name else "tab:blue"
            for name, _ in bars
        ]
        axis.barh([name for name, _ in bars], [rate for _, rate in bars], color=colours)
        axis.set_xscale("log")
        axis.set_title(title)
        axis.grid(True, axis="x", alpha=0.3)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def insert(path: Path, text: str) -> None:
    """Put the measured part between its marks; a new file gets only the marks."""
    before = path.read_text() if path.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    head, _, rest = before.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and write the documents; returns 0, or 2 when the environment lacks something."""
    parser = argparse.ArgumentParser(description="mqfast beside other stores, on the same bytes, in one run.")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one figure in one round (default: 1)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each figure (default: 7)")
    parser.add_argument(
        "--warm-up", type=float, default=5.0, help="seconds of puts before anything counts (default: 5)"
    )
    parser.add_argument("--paced-seconds", type=float, default=60.0, help="of each at each rate (default: 60)")
    parser.add_argument("--segment", type=float, default=10.0, help="seconds of one paced turn (default: 10)")
    parser.add_argument("--quick", action="store_true", help="everything once and short; writes to build/rivals")
    parser.add_argument("--only", action="append", default=[], help="only this rival; may be repeated")
    parser.add_argument("--most-bytes", type=int, default=4 << 30, help="a store is made anew before so much of log")
    parser.add_argument("--targets", type=Path, help="what `make bench` wrote in the same run (MQFAST_BENCH_TABLE)")
    parser.add_argument("--path", type=Path, help="directory on the disk that is measured")
    parser.add_argument("--out", type=Path, help="for benchmarks.md and .png (default: docs/dev; quick: build/rivals)")
    arguments = parser.parse_args(argv)
    try:
        import hdrh.histogram  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"{error}: make bench-rivals installs what is needed", file=sys.stderr)
        return 2
    if arguments.quick:
        arguments.seconds, arguments.rounds, arguments.warm_up = 0.15, 1, 0.3
        arguments.paced_seconds = arguments.segment = 0.3
    out = arguments.out or (ROOT / "build" / "rivals" if arguments.quick else ROOT / "docs" / "dev")
    out.mkdir(parents=True, exist_ok=True)
    arguments.load = os.getloadavg()[0]
    processors.end_in_order()
    place = Path(tempfile.mkdtemp(prefix="mqfast-rivals-", dir=arguments.path or os.environ.get("MQFAST_BENCH_DIR")))
    arguments.processor = processors.quietest(place)
    began, steal = time.monotonic(), steal_ms()
    notes: list[str] = []
    results = Results()
    processes: list[Process] = []

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    try:
        processes = rivals(place, arguments.most_bytes, arguments.only, notes)
        with (
            host_memory.kept(0 if arguments.quick else 1 << 60) as arguments.memory,
            processors.without_kernel(arguments.processor),
        ):
            run(processes, results, arguments, say)
        told = facts(place, processes, steal_ms() - steal, time.monotonic() - began, arguments)
    finally:
        for process in processes:
            process.close()
        shutil.rmtree(place, ignore_errors=True)
    judged = targets(results)
    if arguments.targets and arguments.targets.exists():
        for row in json.loads(arguments.targets.read_text()):
            judged.append(
                Target(row["what"], row["figure"], row["target"], row["met"], row["durability"], row["baseline"])
            )
    text = document(processes, results, told, notes, judged)
    insert(out / "benchmarks.md", text)
    picture(processes, results, out / "benchmarks.png")
    print(text)
    print(f"written: {out / 'benchmarks.md'}, {out / 'benchmarks.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
