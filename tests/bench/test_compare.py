"""``python -m mqfast.bench --compare``: when it raises an alarm, what it compares, and when that is an error.

The decision is tested on made noise, as a machine's own tells nothing twice; what is run for real is never judged by
its time. Room: tests of the benchmarks that users run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqfast.bench import counts
from mqfast.bench.__main__ import main
from mqfast.bench.compare import Side, compare, interval, judge, measure_pairs, side_of
from mqfast.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--pairs", "2", "--rounds", "1", "--counts", "no"]

Pairs = list[list[tuple[float, float]]]


def noise(seed: int, truth: float = 1.0, *, pairs: int = 8, rounds: int = 7, wild: bool = False) -> Pairs:
    """Rounds of a busy machine: it slows down and speeds up under both, a process lies well or badly for all of its
    life, and single rounds are far off; wild: all of it much more so.
    """
    chance = random.Random(seed)
    place, single = (0.15, 0.5) if wild else (0.03, 0.1)
    found: Pairs = []
    for _ in range(pairs):
        lies = chance.lognormvariate(0, place), chance.lognormvariate(0, place)
        rows = []
        for _ in range(rounds):
            hour = 200 * chance.lognormvariate(0, 0.5)
            took = [hour * factor * chance.lognormvariate(0, single) for factor in lies]
            if chance.random() < 0.1:
                took[chance.randrange(2)] *= chance.uniform(2, 50)
            rows.append((took[0], took[1] * truth))
        found.append(rows)
    return found


@pytest.mark.parametrize("wild", [False, True])
def test_the_same_build_beside_itself_does_not_alarm(wild: bool) -> None:
    alarms = sum(judge("put", noise(seed, wild=wild), 10).is_alarm for seed in range(2000))
    assert alarms <= 4  # each seed gives the same noise in every run


def test_what_is_much_slower_alarms() -> None:
    for truth, least in ((1.3, 180), (1.5, 195)):
        assert sum(judge("put", noise(seed, truth), 10).verdict == "slower" for seed in range(200)) >= least
    assert sum(judge("put", noise(seed, 0.5), 10).verdict == "faster" for seed in range(100)) >= 98
    # Slower, but by less than is allowed: no alarm.
    assert sum(judge("put", noise(seed, 1.05), 10).is_alarm for seed in range(1000)) <= 4


def test_the_interval_holds_the_truth() -> None:
    held = 0
    for seed in range(500):
        ratio = interval([[new / base for base, new in rounds] for rounds in noise(seed, 1.1)])
        assert ratio.low <= ratio.middle <= ratio.high
        held += ratio.low <= 1.1 <= ratio.high
    assert held >= 485


def test_more_instructions_alarm_whatever_the_times_are() -> None:
    quiet = noise(1)
    assert judge("put", quiet, 10, (1000, 1000)).verdict == "within the limit"
    assert judge("put", quiet, 10, (1000, 1030)).verdict == "within the limit"
    assert judge("put", quiet, 10, (1000, 1031)).verdict == "more instructions"
    assert judge("put", quiet, 10, (1000, 1031), 5).verdict == "within the limit"
    assert judge("put", noise(1, 0.5), 10, (1000, 1500)).is_alarm
    assert judge("put", noise(1, 2.0), 10, (1000, 1500)).verdict == "slower"


@pytest.mark.parametrize("pairs", [[], [[]], [[(1.0, 1.0)]], [[(1.0, 1.0)], []]])
def test_nothing_to_judge_is_an_error(pairs: Any) -> None:
    with pytest.raises(UsageError, match="expected at least 2 pairs"):
        judge("put", pairs, 10)


# --- sides ---


def test_sides_are_interpreters_environments_trees_and_functions(tmp_path: Path) -> None:
    assert side_of(None).command[0] == sys.executable
    assert side_of(sys.executable) == Side(sys.executable, (sys.executable,), {"PYTHONPATH": ""})
    assert side_of(str(ROOT)).environment == {"PYTHONPATH": str(ROOT)}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert side_of(str(tmp_path)).command == (str(tmp_path / "bin" / "python"),)
    assert side_of("mine.own:work").function == "mine.own:work"
    for wrong in ("", "nowhere", str(tmp_path / "bin"), "mine.own"):
        with pytest.raises(UsageError, match="expected an interpreter, a virtual environment"):
            side_of(wrong)


def test_both_sides_take_turns_in_every_round() -> None:
    base, new = side_of(None), side_of(str(ROOT))
    found, about = measure_pairs(base, new, {"query": 100, "put 40 B": 100}, 2, 3)
    assert [[len(rounds) for rounds in pairs] for pairs in found.values()] == [[3, 3], [3, 3]]
    assert all(before > 0 < after for pairs in found.values() for rounds in pairs for before, after in rounds)
    assert [side["package"] for side in about] == [str(ROOT / "mqfast")] * 2


def test_a_tree_whose_mqfast_is_not_measured_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mqfast").mkdir()
    (tmp_path / "mqfast" / "__init__.py").write_text("raise ImportError('not built')")
    with pytest.raises(UsageError, match="not built"):
        compare(side_of(str(tmp_path)), side_of(None), pairs=2, rounds=1, count=False)


# --- the command ---


def bench(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mqfast.bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=300, check=False)


def test_a_comparison_as_json_tells_machine_and_versions(tmp_path: Path) -> None:
    done = bench("--compare", ROOT, "--only", "query", "--limit", 100_000, "--json", "--path", tmp_path, *SHORT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["alarms"] == []
    assert [row["name"] for row in found["results"]] == ["query"]
    assert found["results"][0].keys() >= {"base_ns", "new_ns", "ratio", "low", "high", "verdict", "new_instructions"}
    assert found["base"]["named"] == str(ROOT)
    assert found["new"].keys() == {"named", "mqfast", "package", "python", "executable"}
    assert found["machine"]["processor"]
    assert list(tmp_path.iterdir()) == []


FUNCTIONS = """
import mqfast
from mqfast.errors import UsageError

def light():
    return sum(range(2000))

def heavy():
    return sum(range(2200))

def broken():
    raise RuntimeError("this one is broken")
"""


def test_functions_of_users_are_compared(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    loose = ["--limit", 100_000, *SHORT]
    done = bench("--compare", "mine:light", "mine:light", *loose, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[3].startswith("function ")
    done = bench("--compare", sys.executable, "--function", "mine:light", *loose, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = bench("--compare", "mine:light", "mine:broken", *loose, cwd=tmp_path)
    assert (done.returncode, "this one is broken" in done.stderr) == (2, True)
    done = bench("--compare", "mine:light", "mine:missing", *loose, cwd=tmp_path)
    assert (done.returncode, "has no attribute 'missing'" in done.stderr) == (2, True)
    done = bench("--compare", "mine:light", *loose, cwd=tmp_path)
    assert (done.returncode, "expected a function on both sides" in done.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.sampled(1, group="the tests that count instructions")
@pytest.mark.skipif(not counts.is_there(), reason="needs valgrind on x86-64")
def test_a_planted_slowdown_alarms_by_its_instructions(tmp_path: Path) -> None:
    """Ten per cent more work alarms at any limit of time."""
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    counted = ["--limit", 100_000, "--pairs", 2, "--rounds", 1, "--counts", "yes"]
    done = bench("--compare", "mine:light", "mine:heavy", *counted, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "more instructions" in done.stdout
    assert done.stderr == "slower: function\n"


@pytest.mark.slow
@pytest.mark.sampled(1, group="the tests that count instructions")
@pytest.mark.skipif(not counts.is_there(), reason="needs valgrind on x86-64")
def test_a_function_is_counted_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    found = []
    for name in ("light", "light", "heavy"):
        command = [sys.executable, "-m", "mqfast.bench.counts", f"mine:{name}", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
        found.append(json.loads(done.stdout)["instructions"])
    assert found[1] == pytest.approx(found[0], rel=0.005)
    assert found[2] == pytest.approx(1.1 * found[0], rel=0.02)
    assert counts.main(["nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.sampled(1, group="the tests that count instructions")
@pytest.mark.skipif(not counts.is_there(), reason="needs valgrind on x86-64")
def test_the_same_build_has_the_same_instructions(tmp_path: Path) -> None:
    done = bench(
        "--compare", ROOT, "--only", "put 1 KiB", "--limit", 100_000, "--pairs", 2, "--rounds", 1, "--counts", "yes",
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert row["base_instructions"] > 100
    assert row["new_instructions"] == pytest.approx(row["base_instructions"], rel=0.01)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--compare", str(ROOT), "--only", "get 32, bytes"],  # no case of a comparison
        ["--compare", str(ROOT), "--pairs", "1"],
        ["--compare", str(ROOT), "--rounds", "0"],
        ["--compare", str(ROOT), str(ROOT), str(ROOT)],
        ["--compare", "nowhere"],
        ["--function", "a:b"],
        ["--only", "put 40 B"],  # a case of a comparison alone
    ],
)
def test_an_empty_or_wrong_comparison_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("mqfast.bench: ")


def test_counting_without_valgrind_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["--compare", str(ROOT), "--counts", "yes"]) == 2
    assert "valgrind on x86-64 is needed: apt-get install valgrind" in capsys.readouterr().err


def test_the_worker_needs_nothing_of_this_version(tmp_path: Path) -> None:
    """The script runs beside any version: it imports nothing of mqfast but the package itself."""
    package = tmp_path / "mqfast"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.0.1'\n")
    process = subprocess.run(
        [sys.executable, "-s", str(ROOT / "mqfast" / "bench" / "worker.py"), str(tmp_path)],
        input="", capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert json.loads(process.stdout)["mqfast"] == "0.0.1"
