"""``python -m mqfast.bench``: the table of figures for this machine, and comparisons.

Two versions or two functions run interleaved; or this run is compared with an earlier run. A file that is no result, or
has no row of this run, is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from mqfast.bench.compare import compare, lines_of, side_of
from mqfast.bench.suite import ROWS, Row, measure, slower
from mqfast.bench.worker import CASES
from mqfast.errors import MqfastError, UsageError

__all__ = ["main"]


def _time(ns: float | None) -> str:
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def _rate(ns: float | None) -> str:
    if not ns:
        return "-"
    rate = 1e9 / ns
    return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:.1f} k/s" if rate >= 1e3 else f"{rate:.0f} /s"


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:24}" + "".join(f"{cell:>13}" for cell in cells[1:])


def _machine(place: str) -> dict[str, Any]:
    """Return the conditions of the figures: the machine, its load, and the versions."""
    import mqfast

    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        processor = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), processor)
    return {
        "processor": processor,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "mqfast": mqfast.__version__,
        "place": place,
    }


def _earlier(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        if not rows or not all(isinstance(row, dict) and row["floor_ns"] > 0 for row in rows):
            raise ValueError("no rows")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: expected what --json printed, found something else ({error})") from None
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mqfast.bench",
        description="Measure mqfast on this machine. Each figure is a median; page-cache speed (the call returned) and "
        "durable speed (the disk has it) are separate columns; the floor is measured in between. With --compare two "
        "versions, or two functions, take turns.",
        epilog=f"rows: {'; '.join(ROWS)}. Rows of --compare with two versions: {'; '.join(CASES)}. "
        "Exit code: 0, 1 when something is slower, 2 for wrong arguments or when nothing was compared.",
    )
    parser.add_argument("--path", metavar="DIR", help="where to make stores: the disk to measure (default: temporary)")
    parser.add_argument("--seconds", type=float, default=1.0, help="about so long for each row (default: 1)")
    parser.add_argument(
        "--only", metavar="ROW", action="append", choices=[*ROWS, *CASES], help="only this row; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a row, or one of a comparison")
    parser.add_argument(
        "--compare",
        metavar="SIDE",
        nargs="+",
        help="BASE [NEW]: an interpreter, a virtual environment or a built source tree each, or two functions of yours "
        "as module:function (NEW by default: this interpreter); or a file that --json printed earlier",
    )
    parser.add_argument("--function", metavar="MODULE:FUNCTION", help="compare your own function with both sides")
    parser.add_argument("--pairs", type=int, default=8, metavar="N", help="pairs of processes (default: 8)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of each pair (default: 7)")
    parser.add_argument(
        "--counts",
        choices=("auto", "yes", "no"),
        default="auto",
        help="count instructions as well (default: where valgrind is there)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="PERCENT",
        help="how much slower --compare allows (default: 10; beside an earlier file 25 and a factor of two)",
    )
    parser.add_argument(
        "--counts-limit", type=float, default=3.0, metavar="PERCENT", help="how many more instructions (default: 3)"
    )
    return parser


def _measured(arguments: argparse.Namespace, place: str) -> list[Row]:
    """Measure and print the rows."""
    names = None if arguments.only is None else [name for name in arguments.only if name in ROWS]
    if names == []:
        raise UsageError(f"--only: expected one of {', '.join(ROWS)}, found {', '.join(arguments.only)}")
    rows = []
    machine = _machine(place)
    if not arguments.json:
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
        print(_line(("one piece of work", "page cache", "a second", "durable", "a second", "floor")), flush=True)
    for row in measure(place, arguments.seconds, names):
        rows.append(row)
        if arguments.json:
            print(json.dumps({**row.to_json(), "machine": machine}), flush=True)
        else:
            cells = (_time(row.page_cache_ns), _rate(row.page_cache_ns), _time(row.durable_ns), _rate(row.durable_ns))
            print(_line((row.name, *cells, _time(row.floor_ns))), flush=True)
    if not arguments.json:
        for floor in sorted({row.floor for row in rows}):
            print(f"floor of {', '.join(row.name for row in rows if row.floor == floor)}: {floor}")
    return rows


def _compared(arguments: argparse.Namespace, place: str) -> list[str]:
    """Compare two sides and print the comparison. Returns: the alarms."""
    names = arguments.compare
    base = side_of(names[0], arguments.function)
    new = side_of(names[1] if len(names) > 1 else None, arguments.function)
    comparison = compare(
        base,
        new,
        only=arguments.only,
        pairs=arguments.pairs,
        rounds=arguments.rounds,
        limit_percent=10.0 if arguments.limit is None else arguments.limit,
        instructions_percent=arguments.counts_limit,
        count={"auto": None, "yes": True, "no": False}[arguments.counts],
        place=arguments.path,
    )
    if arguments.json:
        print(json.dumps({**comparison.to_json(), "machine": _machine(place)}), flush=True)
    else:
        for line in lines_of(comparison):
            print(line)
    return comparison.alarms


def _is_earlier_run(names: Sequence[str] | None) -> bool:
    return names is not None and len(names) == 1 and os.path.isfile(names[0]) and not os.access(names[0], os.X_OK)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or compare, and print; returns 1 when something is slower, 2 for wrong arguments."""
    arguments = _parser().parse_args(argv)
    place = arguments.path or tempfile.gettempdir()
    try:
        if arguments.compare is not None and len(arguments.compare) > 2:
            raise UsageError(f"--compare: expected one or two sides, found {len(arguments.compare)}")
        if arguments.function is not None and arguments.compare is None:
            raise UsageError("--function: expected --compare, found none")
        if arguments.compare is None or _is_earlier_run(arguments.compare):
            before = None if arguments.compare is None else _earlier(arguments.compare[0])
            rows = _measured(arguments, place)
            limit = 25.0 if arguments.limit is None else arguments.limit
            alarms = [] if before is None else slower(rows, before, limit)
        else:
            alarms = _compared(arguments, place)
    except KeyboardInterrupt:
        return 130
    except (MqfastError, OSError) as error:
        print(f"mqfast.bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    for line in alarms:
        print(f"slower: {line}", file=sys.stderr)
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
