"""Comparison of two versions: ``python -m mqfast.bench --compare``.

A process of each side stays alive; the two run interleaved, round by round and in changing order, so that other load of
the machine affects both sides. The ratio of the two times of a round is compared. The memory layout of a process
changes times by some per cent, so several pairs of processes are started. The median ratio of a pair is one
observation, and the interval is Student's over the pairs. An alarm needs an interval entirely beyond the limit, or more
counted instructions: two equal builds give no alarm.

All figures are page-cache speed: syncs measure the disk. The sides never run at the same time, and a run without any
comparison is an error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqfast.bench import callgrind
from mqfast.bench.worker import CASES, FUNCTION
from mqfast.errors import UsageError

__all__ = [
    "Comparison",
    "Ratio",
    "Result",
    "Side",
    "compare",
    "count_case",
    "interval",
    "judge",
    "lines_of",
    "measure_pairs",
    "side_of",
]

_WORKER: Final = Path(__file__).with_name("worker.py")
_ROUND_S: Final = 0.02
# Student's t, two-sided 99 %, by degrees of freedom; beyond the last value rounded up.
_STUDENT: Final = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055)


class Side(NamedTuple):
    """A side: the measured program. ``label``: name by the user; ``function``: ``module:function`` or None."""

    label: str
    command: tuple[str, ...]
    environment: dict[str, str]
    function: str | None = None


def side_of(text: str | None, function: str | None = None) -> Side:
    """Return the side that a user names: an interpreter, a virtual environment, a built source tree, or
    ``module:function`` of the user; None: this interpreter and its mqfast.

    Raises: UsageError.
    """
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    here = {"PYTHONPATH": os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH")]))}
    if text is None:
        return Side("this one", (sys.executable, "-s"), here, function)
    python = os.path.join(text, "bin", "python")
    if os.path.isdir(text) and os.path.exists(python):
        return Side(text, (os.path.abspath(python),), {"PYTHONPATH": ""}, function)
    if text and os.path.isdir(os.path.join(text, "mqfast")):
        return Side(text, (sys.executable, "-s"), {"PYTHONPATH": os.path.abspath(text)}, function)
    if os.path.isfile(text) and os.access(text, os.X_OK):
        return Side(text, (os.path.abspath(text),), {"PYTHONPATH": ""}, function)
    if re.fullmatch(r"[\w.]+:[\w.]+", text) and function is None:
        return Side(text, (sys.executable, "-s"), here, text)
    raise UsageError(
        f"--compare: expected an interpreter, a virtual environment, a built source tree, module:function, or a file "
        f"that --json printed; found {text!r}"
    )


class _Process:
    """A running process of a side, with its stores below ``place``."""

    def __init__(self, side: Side, place: str | None) -> None:
        self._side = side
        self.place = tempfile.mkdtemp(prefix="mqfast-compare-", dir=place)
        environment = {**os.environ, "PYTHONHASHSEED": "0", **side.environment}
        words = [*side.command, str(_WORKER), self.place, *([side.function] if side.function else [])]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            self.about: dict[str, str] = json.loads(self._answer())
        except BaseException:
            self.close()
            raise

    def _answer(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().strip().splitlines()
            raise UsageError(f"{self._side.label}: expected a program that measures, found {said[-1:]}")
        return line

    def run(self, case: str, count: int) -> float:
        """Return ns of a piece of work."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([case, count]) + "\n")
            self._process.stdin.flush()
        return float(self._answer()) * 1e9 / count

    def close(self) -> None:
        """End the process and remove the stores."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


class Ratio(NamedTuple):
    """Ratio new/base, with bounds of a confidence of 99 %."""

    middle: float
    low: float
    high: float

    def verdict(self, limit_percent: float) -> str:
        """Return the verdict in a word; only ``slower`` is an alarm."""
        if self.low > 1 + limit_percent / 100:
            return "slower"
        return "faster" if self.high < 1 else "within the limit"


def interval(pairs: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio out of the ratios of all rounds of each pair of processes.

    Raises: UsageError with fewer than two pairs, or a pair without rounds.
    """
    if len(pairs) < 2 or not all(pairs):
        raise UsageError(f"comparison: expected at least 2 pairs of processes with rounds, found {len(pairs)}")
    logs = [math.log(statistics.median(ratios)) for ratios in pairs]
    middle = statistics.fmean(logs)
    student = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1]
    reach = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(*(math.exp(middle + part * reach) for part in (0, -1, 1)))


Times = dict[str, list[list[tuple[float, float]]]]
"""Case -> pairs of processes -> rounds -> (base, new) in ns."""


def measure_pairs(
    base: Side,
    new: Side,
    cases: Mapping[str, int],
    pairs: int,
    rounds: int,
    place: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Times, list[dict[str, str]]]:
    """Return (base, new) ns of every round of every case, and the description of each side.

    Args: cases: name -> pieces of work in a round, 0: as many as take some 20 ms.
    Raises: UsageError when a side does not measure.
    """
    times_by_case: Times = {case: [] for case in cases}
    sizes = dict(cases)
    about: list[dict[str, str]] = []
    for pair in range(pairs):
        with contextlib.ExitStack() as stack:
            sides = []
            for side in (base, new):
                process = _Process(side, place)
                stack.callback(process.close)
                sides.append(process)
            about = [process.about for process in sides]
            for case in cases:
                times_by_case[case].append([])
                if sizes[case] == 0:
                    sizes[case] = max(1, round(_ROUND_S * 1e9 / max(sides[0].run(case, 1), sides[0].run(case, 10))))
            for number in range(-1, rounds):
                for case, size in sizes.items():
                    order = (0, 1) if (number + pair) % 2 else (1, 0)
                    took = {which: sides[which].run(case, size) for which in order}
                    if number >= 0:  # the round before the first is a warm-up
                        times_by_case[case][-1].append((took[0], took[1]))
        if progress is not None:
            progress(pair + 1, pairs)
    return times_by_case, about


def count_case(side: Side, case: str, about: Mapping[str, str], place: str | None = None) -> callgrind.Count:
    """Return the instructions of a piece of work of a case on a side; ``about``: the description of the side.

    Raises: UsageError as callgrind.count.
    """
    n = max(1, CASES.get(case, 1000) // 10)
    with tempfile.TemporaryDirectory(prefix="mqfast-counts-", dir=place) as work:
        words = [about["executable"], "-s", str(_WORKER), "--count", case, str(n), os.path.join(work, "store")]
        words += [side.function] if side.function else []
        package = os.path.realpath(about["package"])
        return callgrind.count(words, n, package, Path(work), side.environment)


@dataclass(frozen=True)
class Result:
    """A case: medians in ns, ratio with interval, instructions if counted, and the verdict."""

    name: str
    base_ns: float
    new_ns: float
    ratio: float
    low: float
    high: float
    base_instructions: float | None
    new_instructions: float | None
    verdict: str

    @property
    def is_alarm(self) -> bool:
        """Return whether the new side is slower."""
        return self.verdict.startswith(("slower", "more instructions"))


def judge(
    name: str,
    pairs: Sequence[Sequence[tuple[float, float]]],
    limit_percent: float,
    instructions: tuple[float, float] | None = None,
    instructions_percent: float = 3.0,
) -> Result:
    """Return the verdict over the rounds of a case: an alarm if the interval is beyond the limit, or instructions are
    more by ``instructions_percent``.

    Raises: UsageError when there is nothing to judge.
    """
    ratio = interval([[new / base for base, new in rounds] for rounds in pairs])
    base_ns, new_ns = (
        statistics.median(column) for column in zip(*(r for rounds in pairs for r in rounds), strict=True)
    )
    verdict = ratio.verdict(limit_percent)
    if (
        instructions is not None
        and verdict != "slower"
        and instructions[1] > instructions[0] * (1 + instructions_percent / 100)
    ):
        verdict = "more instructions"
    return Result(
        name=name,
        base_ns=base_ns,
        new_ns=new_ns,
        ratio=ratio.middle,
        low=ratio.low,
        high=ratio.high,
        base_instructions=None if instructions is None else instructions[0],
        new_instructions=None if instructions is None else instructions[1],
        verdict=verdict,
    )


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison; ``alarms``: the names of cases that are slower."""

    base: dict[str, str]
    new: dict[str, str]
    limit_percent: float
    instructions_percent: float
    counted: bool
    results: list[Result]

    @property
    def alarms(self) -> list[str]:
        """Return the names of the cases in which the new side is slower."""
        return [result.name for result in self.results if result.is_alarm]

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object."""
        return {**asdict(self), "alarms": self.alarms}


def compare(
    base: Side,
    new: Side,
    *,
    only: Sequence[str] | None = None,
    pairs: int = 8,
    rounds: int = 7,
    limit_percent: float = 10.0,
    instructions_percent: float = 3.0,
    count: bool | None = None,
    place: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Measure both sides in turn and judge.

    Args: only: of CASES, None for all (a user's function is the only case); count: instructions as well,
        None: where valgrind is there; place: directory for stores.
    Raises: UsageError when a side does not measure, or nothing was compared.
    """
    if base.function or new.function:
        if not (base.function and new.function):
            raise UsageError("--compare: expected a function on both sides, found one on one of them")
        cases = {FUNCTION: 0}
    else:
        cases = {case: size for case, size in CASES.items() if only is None or case in only}
    if not cases or pairs < 2 or rounds < 1:
        raise UsageError(
            f"comparison: expected a case, 2 pairs and 1 round at least, found {len(cases)}, {pairs}, {rounds}"
        )
    if count and not callgrind.is_there():
        raise UsageError(f"--counts yes: {callgrind.INSTALL}")
    times_by_case, about = measure_pairs(base, new, cases, pairs, rounds, place, progress)
    for side, said in zip((base, new), about, strict=True):
        tree = side.environment["PYTHONPATH"].split(os.pathsep)[0]
        if tree and os.path.realpath(said["package"]) != os.path.realpath(os.path.join(tree, "mqfast")):
            raise UsageError(f"{side.label}: expected the mqfast of this source tree, found {said['package']}")
    counting = callgrind.is_there() if count is None else count
    same_python = about[0]["python"] == about[1]["python"]
    results = []
    for case, times in times_by_case.items():
        instructions = None
        if counting:
            before, after = (count_case(side, case, said, place) for side, said in zip((base, new), about, strict=True))
            # All instructions are comparable on the very same Python only; mqfast's own on any Python.
            known = [(before.whole, after.whole)] if same_python else []
            known += [(before.ours, after.ours)] if case != FUNCTION and before.ours > 0 else []
            instructions = max(known, key=lambda both: both[1] / both[0], default=None)
        results.append(judge(case, times, limit_percent, instructions, instructions_percent))
    sides = [{"named": side.label, **said} for side, said in zip((base, new), about, strict=True)]
    return Comparison(sides[0], sides[1], limit_percent, instructions_percent, counting, results)


def lines_of(comparison: Comparison) -> Iterator[str]:
    """Yield the comparison as lines of text."""
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        version = side["python"].split()[0]
        yield f"{name}: {side['named']}: mqfast {side['mqfast']} in {side['package']}, Python {version}"
    yield f"{'':16}{'base':>12}{'new':>12}{'new/base':>10}   99 % confidence   {'instructions':>24}"
    for row in comparison.results:
        counted = ""
        if row.base_instructions and row.new_instructions is not None:
            change = 100 * (row.new_instructions / row.base_instructions - 1)
            counted = f"{row.new_instructions:,.0f} ({change:+.2f}%)"
        yield (
            f"{row.name:16}{row.base_ns:9,.0f} ns{row.new_ns:9,.0f} ns{row.ratio:10.3f}   "
            f"{row.low:.3f} to {row.high:.3f}  {counted:>24}  {row.verdict}"
        )
    if not comparison.counted:
        yield f"instructions were not counted: {'--counts no' if callgrind.is_there() else callgrind.INSTALL}"
