"""``python -m mqfast.bench.counts module:function``: the instructions of a function of yours, or of a case.

``callgrind.py`` counts and describes what a count contains.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from mqfast.bench.callgrind import INSTALL, Count, count, is_there, parse
from mqfast.bench.compare import count_case, side_of
from mqfast.bench.worker import CASES, FUNCTION, about, begin_count, end_count
from mqfast.errors import MqfastError, UsageError

__all__ = ["INSTALL", "Count", "begin_count", "count", "end_count", "is_there", "main", "parse"]


def main(argv: Sequence[str] | None = None) -> int:
    """Count and print; returns 2 for wrong arguments, or where nothing can be counted."""
    parser = argparse.ArgumentParser(
        prog="python -m mqfast.bench.counts",
        description="Count the instructions of one call of your own function, or of one piece of work of the store.",
        epilog=f"cases: {'; '.join(CASES)}",
    )
    parser.add_argument("what", metavar="MODULE:FUNCTION|CASE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    try:
        if not is_there():
            raise UsageError(INSTALL)
        own = arguments.what not in CASES
        side = side_of(None, arguments.what if own else None)
        cost = count_case(side, FUNCTION if own else arguments.what, about())
    except MqfastError as error:
        print(f"mqfast.bench.counts: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({"name": arguments.what, "instructions": cost.whole, "of_mqfast": cost.ours, **about()}))
    else:
        print(f"{arguments.what}: {cost.whole:,.1f} instructions, of them {cost.ours:,.1f} in mqfast's extensions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
