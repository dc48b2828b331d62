"""The guard over instruction counts (bench/counts.py): what it sums, when it fails, and that a slowdown fails.

It must never run more than a few cases: the whole guard is a step of its own in .ci/run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "counts.py"


def test_self_cost_by_object(counts: ModuleType) -> None:
    """The cost of a call belongs to the function called, not once more to its caller."""
    text = "\n".join(
        [
            "version: 1",
            "events: Ir",
            "",
            f"ob={ROOT}/mqfast/store/_put.so",
            "fl=???",
            "fn=put",
            "0 100",
            "cob=/lib/libc.so.6",
            "cfn=memcpy",
            "calls=3 0",
            "0 5000",
            "0 20",
            "",
            "ob=/lib/libc.so.6",
            "fn=memcpy",
            "0 5000",
            f"ob={ROOT}/.venv/mqfast/other.so",
            "0 7",
            "totals: 5127",
        ]
    )
    assert counts.parse(text) == counts.Count(120, 5127)


@pytest.mark.parametrize(
    ("ours", "whole", "same_python", "failed"),
    [
        (1000, 3000, True, False),
        (1030, 3090, True, False),  # three per cent exactly
        (1031, 3031, True, True),
        (1000, 3300, True, False),  # ten per cent exactly: where objects lie
        (1000, 3301, True, True),
        (1000, 3301, False, False),  # another build of the interpreter
        (1031, 3031, False, True),
        (900, 2900, True, False),
    ],
)
def test_limit(counts: ModuleType, ours: float, whole: float, same_python: bool, failed: bool) -> None:
    """More than 3 % above the baseline is a failure of mqfast's own instructions, more than 10 % one of all."""
    now, base = {"put": counts.Count(ours, whole)}, {"put": counts.Count(1000, 3000)}
    (verdict,) = counts.compare(now, base, same_python)
    assert verdict.failed is failed
    assert ("SLOWER" in counts.table([verdict], same_python)) is failed


def test_no_baseline_is_no_failure(counts: ModuleType) -> None:
    """A case or a machine without a baseline passes and is named."""
    (verdict,) = counts.compare({"new": counts.Count(1, 2)}, {}, True)
    assert not verdict.failed
    assert "no baseline" in counts.table([verdict], True)


def test_committed_baseline(counts: ModuleType) -> None:
    """bench/baseline.json has every case of the guard."""
    for entry in json.loads(counts.BASELINE.read_text()).values():
        assert set(entry["cases"]) == set(counts.CASES)
        assert all(0 < ours <= whole for ours, whole in entry["cases"].values())


def _check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.sampled(1, group="the tests that count instructions")
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_a_slowdown_fails(tmp_path: Path) -> None:
    """The same code passes; one put in twenty done twice fails."""
    baseline = tmp_path / "baseline.json"
    case = ["put_1k", "--jobs=1", f"--baseline={baseline}"]
    first = _check(*case, "--write")
    assert first.returncode == 0, first.stdout + first.stderr
    again = _check(*case)
    assert again.returncode == 0, again.stdout
    planted = _check(*case, "--plant=0.05")
    assert planted.returncode == 1, planted.stdout
    assert "SLOWER" in planted.stdout
    assert "slower by more than 3%: put_1k" in planted.stdout


@pytest.mark.slow
@pytest.mark.sampled(1, group="the tests that count instructions")
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_a_slow_line_in_the_engine_fails(tmp_path: Path) -> None:
    """A copy of the tree whose put computes one small CRC too many is caught; the query, which does not, passes."""
    tree = tmp_path / "tree"
    leave = shutil.ignore_patterns(".git", ".venv*", "ab", ".hypothesis", "golden", "__pycache__", "target")
    shutil.copytree(ROOT, tree, ignore=leave, symlinks=True)
    source = tree / "mqfast" / "store" / "put" / "put_message.pyx"
    line = "        if body_bytes + extra > self.most_bytes:\n"
    text = source.read_text()
    assert text.count(line) == 1
    slower = "        if body_bytes + extra + (crc31(body, min(body_bytes, 88)) & 0) > self.most_bytes:\n"
    first_import = "from mqfast.store."
    with_crc = f"from mqfast.store.base.os_api cimport crc31\n{first_import}"
    source.write_text(text.replace(line, slower).replace(first_import, with_crc, 1))
    built = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr

    baseline = tmp_path / "baseline.json"
    cases = ["put_1k", "query", f"--baseline={baseline}"]
    assert _check(*cases, "--write").returncode == 0
    done = subprocess.run(
        [sys.executable, str(tree / "bench" / "counts.py"), *cases], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slower by more than 3%: put_1k\n" in done.stdout
