"""Paced latency of a put, with coordinated omission handled: ``make bench-latency``.

The k-th put is due at t0 + k * period, whatever the puts before it did. Its latency counts from when it was due, so
that one stall shows in every put that it delayed (response time). The time from the call itself (service time) is the
second figure. The same loop runs in the same run, interleaved, on

* hot private memory (a copy of the same bytes into memory in the cache): the jitter baseline,
* a store with file mappings (the default),
* a store with the transient pool.

Both stores flush at their default interval; every figure is page-cache speed. The loop has the processor that the
disk interrupts least to itself (processors.py), unless told otherwise; the threads of the stores have the others. The
pace is kept by spinning on ``time.perf_counter_ns``; values go into arrays that were touched before, and into an
HdrHistogram (PyPI: hdrhistogram) only between the turns. It must never sleep in the loop, and never drop a value.

    python bench/latency.py --seconds 300 --rates 20000 200000      5 minutes of each kind at each rate
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
KINDS = ("memory", "mmap", "pool")
LONGEST_NS = 60_000_000_000
WARM_UP = 2000
LEAD_S = 1  # of puts at the same pace that do not count: pages that were synced before a turn are read-only at first
_TICKS_NS = 20_000_000  # whole ticks of 100, 250 and 1,000 a second


@dataclass
class Series:
    """One kind at one rate: histograms of (due to done) and (call to done), and what the system did meanwhile."""

    kind: str
    rate: int
    due: Any
    call: Any
    counters: dict[str, int] = field(default_factory=dict)

    def add(self, due: array[int], call: array[int], counters: dict[str, int]) -> None:
        """Fold one turn in."""
        import numpy

        for histogram, values in ((self.due, due), (self.call, call)):
            numbers, counts = numpy.unique(numpy.frombuffer(values, dtype=numpy.uint64), return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                histogram.record_value(min(max(1, number), LONGEST_NS), count)
        for name, value in counters.items():
            self.counters[name] = self.counters.get(name, 0) + value

    def row(self) -> dict[str, Any]:
        """As a JSON object; ns."""

        def figures(histogram: Any) -> dict[str, int]:
            values = {f"p{p:g}": int(histogram.get_value_at_percentile(p)) for p in PERCENTILES}
            return {**values, "max": int(histogram.get_max_value())}

        return {
            "kind": self.kind,
            "rate": self.rate,
            "samples": int(self.due.get_total_count()),
            "from_due_ns": figures(self.due),
            "from_call_ns": figures(self.call),
            "counters": self.counters,
        }


def steal_ms() -> int:
    """Time that the hypervisor gave to others, of all cores; 0 where the kernel does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8]) * 1000 // os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0


def counters() -> dict[str, int]:
    """Faults, context switches and stolen time of this process so far."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "minor_faults": use.ru_minflt,
        "major_faults": use.ru_majflt,
        "waits": use.ru_nvcsw,
        "preemptions": use.ru_nivcsw,
        "steal_ms": steal_ms(),
    }


def switches() -> tuple[int, int]:
    """How often this thread slept, and how often it lost its processor, so far; zeros where only Linux would tell."""
    which = getattr(resource, "RUSAGE_THREAD", None)
    if which is None:
        return 0, 0
    use = resource.getrusage(which)
    return use.ru_nvcsw, use.ru_nivcsw


def first_due(now_ns: int, phase_ns: int) -> int:
    """When the first put of a turn is due: at least 1 ms from now, so long after a tick of the timer.

    The timer of the kernel interrupts a busy processor 100, 250 or 1,000 times a second, for up to 18 us on a virtual
    machine, always at whole periods of the clock. At 20,000/s a tick comes with every 80th put, and where it falls in
    the period of 50 us, for a whole turn, is all the difference between 1.3 % of late puts and none. Left to chance it
    is another luck for each that is measured; so turns take phases in order, each kind the same.
    """
    soon = now_ns + 1_000_000
    return soon + (phase_ns - soon) % _TICKS_NS


def paced(
    put: Callable[[bytes], object],
    body: bytes,
    period_ns: int,
    due: array[int],
    call: array[int],
    phase_ns: int,
) -> None:
    """The loop that is measured: one put for every place of the arrays."""
    clock = time.perf_counter_ns
    at = first_due(clock(), phase_ns)
    for k in range(len(due)):
        now = clock()
        while now < at:
            now = clock()
        put(body)
        end = clock()
        due[k] = end - at
        call[k] = end - now
        at += period_ns


def phase_of(turn_number: int, rate: int) -> int:
    """Of this turn, ns: the turns of a run spread over the period evenly, however many they are (golden ratio)."""
    return int(1_000_000_000 / rate * (turn_number * 0.6180339887 % 1))


def turn(
    put: Callable[[bytes], object],
    size: int,
    rate: int,
    seconds: float,
    processor: int | None = None,
    phase_ns: int = 0,
) -> tuple[array[int], array[int], dict[str, int]]:
    """One turn of so many seconds, alone on this processor (None: anywhere), behind LEAD_S of puts that do not count;
    returns the response times (from when due) and the service times (from the call), and the differences of the
    counters, which do count the lead.
    """
    import processors  # beside this file, which tests import without its folder

    body, period_ns = b"x" * size, 1_000_000_000 // rate
    lead, count = int(rate * LEAD_S), max(1, int(rate * seconds))
    # Every page of the arrays is written here, before the clock runs.
    due, call = array("Q", bytes(8 * (lead + count))), array("Q", bytes(8 * (lead + count)))
    for _ in range(WARM_UP):
        put(body)
    gc.collect()
    gc.disable()
    before = counters()
    try:
        with processors.alone_on(processor, threading.get_native_id()):
            slept, lost = switches()
            paced(put, body, period_ns, due, call, phase_ns)
            slept, lost = (now - was for now, was in zip(switches(), (slept, lost), strict=True))
    finally:
        gc.enable()
    after = counters()
    told = {name: after[name] - before[name] for name in before} | {"loop_waits": slept, "loop_preemptions": lost}
    return due[lead:], call[lead:], told


class Target:
    """Where the puts of one kind go: a store that lives for one turn. The threads of an idle one would want the GIL of
    the next loop, whose store they are not lent it by.
    """

    def __init__(self, kind: str, place: Path, file_bytes: int, size: int, settings: dict[str, Any]) -> None:
        self.kind = kind
        self.place = place
        self.file_bytes = file_bytes
        self.settings = settings
        self.store: Any = None
        # Hot private memory: the bytes of a record, always at the same place.
        self.memory = memoryview(bytearray(size))

    def put(self) -> Callable[[bytes], object]:
        """What to call for each put of a turn."""
        import mqfast

        if self.kind == "memory":
            return partial(self.memory.__setitem__, slice(0, len(self.memory)))
        pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 3} if self.kind == "pool" else {}
        given = {"profile": "broker", "mapped_file_bytes_commit_log": self.file_bytes, **pool, **self.settings}
        self.store = mqfast.open(self.place / self.kind, **given)
        return self.store.producer("Bench", 0, "TagA").put  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close and remove the store."""
        if self.store is not None:
            self.store.close()
            self.store = None
            shutil.rmtree(self.place / self.kind, ignore_errors=True)


def machine() -> str:
    """One line about where this ran."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def measure(
    place: Path,
    rates: Sequence[int],
    seconds: float,
    segment: float,
    size: int,
    file_bytes: int,
    kinds: Sequence[str] = KINDS,
    say: Callable[[str], None] = lambda text: None,
    settings: dict[str, Any] | None = None,
    processor: int | None = None,
) -> list[dict[str, Any]]:
    """Measure every kind at every rate, in turns of ``segment`` seconds; a row each. The loop has
    the processor to itself; None: all run anywhere.
    """
    from hdrh.histogram import HdrHistogram

    series = {
        (kind, rate): Series(kind, rate, *(HdrHistogram(1, LONGEST_NS, 3) for _ in range(2)))
        for rate in rates
        for kind in kinds
    }
    targets = {kind: Target(kind, place, file_bytes, size, settings or {}) for kind in kinds}
    turns = max(1, round(seconds / segment))
    try:
        for rate in rates:
            for number in range(turns):
                for kind in kinds:
                    put = targets[kind].put()
                    os.sync()  # what the turn before left for the disk to do is not this one's
                    phase_ns = phase_of(number, rate)
                    series[kind, rate].add(*turn(put, size, rate, min(segment, seconds), processor, phase_ns))
                    targets[kind].close()
                say(f"{rate:,}/s: turn {number + 1} of {turns}")
    finally:
        for target in targets.values():
            target.close()
    return [one.row() for one in series.values()]


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The gates of docs/dev/benchmarks.md for each store, by its own noise."""
    noise = {row["rate"]: row["from_due_ns"] for row in rows if row["kind"] == "memory"}
    lines = []
    for row in rows:
        if row["kind"] == "memory" or row["rate"] not in noise:
            continue
        found, jitter = row["from_due_ns"], noise[row["rate"]]
        limits = {"p99": 1000, "p99.9": 3000, "p99.99": max(50_000, 2 * jitter["p99.99"]), "max": 2_000_000}
        words = []
        for name, limit in limits.items():
            verdict = "met" if found[name] <= limit else f"MISSED (<= {limit / 1e3:,.0f} us)"
            words.append(f"{name} {found[name] / 1e3:,.1f} us, jitter {jitter[name] / 1e3:,.1f}: {verdict}")
        lines.append(f"{row['kind']} at {row['rate']:,}/s: {'; '.join(words)}")
    return lines


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text, us."""
    names = [*(f"p{p:g}" for p in PERCENTILES), "max"]
    lines = ["us: response time (service time)"]
    lines.append(" " * 32 + "".join(f"{name:>28}" for name in names))
    for row in rows:
        both = [row[part] for part in ("from_due_ns", "from_call_ns")]
        cells = ("{:,.2f} ({:,.2f})".format(*(part[name] / 1e3 for part in both)) for name in names)
        lines.append(f"{row['kind']:8}{row['rate']:>10,}/s {row['samples']:>11,}" + "".join(f"{c:>28}" for c in cells))
        lines.append(
            "        " + ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in row["counters"].items())
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0, or 2 without the histogram library."""
    parser = argparse.ArgumentParser(description="Paced latency of a put beside the noise of the machine.")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each kind at each rate (default: 300)")
    parser.add_argument("--segment", type=float, default=10.0, help="seconds of one turn (default: 10)")
    parser.add_argument("--rates", type=int, nargs="+", default=[20_000, 200_000], help="puts a second")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (default: 1024)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--file-bytes", type=int, default=1 << 30, help="length of a log file (default: 1 GiB)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of both stores")
    parser.add_argument(
        "--processor",
        default="quietest",
        help="of the loop alone: its number, or any, or the one that the disk interrupts least (default: quietest)",
    )
    parser.add_argument("--path", type=Path, default=None, help="directory on the disk that is measured")
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    arguments = parser.parse_args(argv)
    import host_memory  # beside this file, which tests import without its folder
    import processors

    try:
        import hdrh.histogram  # noqa: F401
    except ImportError:
        print("latency needs the package hdrhistogram: make bench-latency installs it", file=sys.stderr)
        return 2
    settings: dict[str, Any] = {}
    for text in arguments.set:
        name, _, value = text.partition("=")
        settings[name] = int(value) if value.isdigit() else value
    processors.end_in_order()
    place = Path(tempfile.mkdtemp(prefix="mqfast-latency-", dir=arguments.path or os.environ.get("MQFAST_BENCH_DIR")))
    wanted = arguments.processor
    processor = None if wanted == "any" else processors.quietest(place) if wanted == "quietest" else int(wanted)
    try:
        with (
            host_memory.kept(0 if arguments.seconds < 5 else 1 << 60) as told,
            processors.without_kernel(processor),
        ):
            rows = measure(
                place,
                arguments.rates,
                arguments.seconds,
                arguments.segment,
                arguments.size,
                arguments.file_bytes,
                arguments.kinds,
                lambda text: print(text, file=sys.stderr, flush=True),
                settings,
                processor,
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(
        f"{machine()}; {told}; the loop on {'any processor' if processor is None else f'processor {processor} alone'}"
    )
    print(f"{arguments.size} B, page cache, flush at its default interval {settings or ''}\n{table(rows)}")
    for line in verdicts(rows):
        print(line)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine(), "size": arguments.size, "rows": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
