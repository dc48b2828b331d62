"""``python -m mqfast.bench``: the table of figures for this machine, and the comparison with an earlier one.

It must never call a run good that could not be compared: a file that is no result is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from mqfast.bench.suite import ROWS, Row, measure, slower
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


def _machine(place: str) -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, in {place}"
    )


def _earlier(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        if not rows or not all(isinstance(row, dict) and row["floor_ns"] > 0 for row in rows):
            raise ValueError("no rows")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: expected what --json printed, found something else ({error})") from None
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 when something is slower than in the file of --compare, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m mqfast.bench",
        description="Measure mqfast on this machine. Each figure is a median; page-cache speed (the call returned) and "
        "durable speed (the disk has it) are separate columns; the floor is measured in between.",
        epilog="rows: " + "; ".join(ROWS),
    )
    parser.add_argument("--path", metavar="DIR", help="where to make stores: the disk to measure (default: temporary)")
    parser.add_argument("--seconds", type=float, default=1.0, help="about so long for each row (default: 1)")
    parser.add_argument(
        "--only", metavar="ROW", action="append", choices=list(ROWS), help="only this row; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a row")
    parser.add_argument("--compare", metavar="FILE", help="what --json printed earlier; exit code 1 when slower")
    parser.add_argument(
        "--limit", type=float, default=25.0, metavar="PERCENT", help="how much slower --compare allows (default: 25)"
    )
    arguments = parser.parse_args(argv)
    place = arguments.path or tempfile.gettempdir()
    rows: list[Row] = []
    try:
        before = _earlier(arguments.compare) if arguments.compare else None
        if not arguments.json:
            print(_machine(place))
            print(_line(("one piece of work", "page cache", "a second", "durable", "a second", "floor")), flush=True)
        for row in measure(place, arguments.seconds, arguments.only):
            rows.append(row)
            if arguments.json:
                print(json.dumps(row.to_json()), flush=True)
            else:
                cells = (
                    _time(row.page_cache_ns),
                    _rate(row.page_cache_ns),
                    _time(row.durable_ns),
                    _rate(row.durable_ns),
                )
                print(_line((row.name, *cells, _time(row.floor_ns))), flush=True)
    except KeyboardInterrupt:
        return 130
    except (MqfastError, OSError) as error:
        print(f"mqfast.bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    if not arguments.json:
        for floor in sorted({row.floor for row in rows}):
            print(f"floor of {', '.join(row.name for row in rows if row.floor == floor)}: {floor}")
    if before is None:
        return 0
    lines = slower(rows, before, arguments.limit)
    for line in lines:
        print(f"slower: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
