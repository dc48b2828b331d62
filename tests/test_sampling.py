"""Samples of sweeps (sampling.py): they repeat with their seed, change with it, and the report names them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sampling
from sampling import Sample, choose

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "WHOLE", False)


def with_seed(monkeypatch: pytest.MonkeyPatch, seed: int, name: str = "a test") -> list[int]:
    monkeypatch.setenv("MQFAST_SEED", str(seed))
    return Sample(name).of(range(1000), 10, "numbers")


def test_a_sample_depends_on_the_seed_and_the_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = with_seed(monkeypatch, 20260105)
    assert first == sorted(set(first))
    assert len(first) == 10
    assert with_seed(monkeypatch, 20260105) == first
    assert with_seed(monkeypatch, 20260106) != first
    assert with_seed(monkeypatch, 20260105, "another test") != first


def test_every_item_has_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {item for day in range(2000) for item in with_seed(monkeypatch, day)} == set(range(1000))


def test_the_seed_is_the_date_and_stays_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQFAST_SEED")
    seed = sampling.seed_of_the_run()
    assert 20260101 <= seed <= 99991231
    assert os.environ["MQFAST_SEED"] == str(seed)


def test_the_long_form_takes_everything_and_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "WHOLE", True)
    sample = Sample("a test")
    assert sample.of(range(100), 3, "numbers") == list(range(100))
    assert sample.lines == []


class Item:
    """A test case, as far as choose looks at it."""

    def __init__(self, nodeid: str, *args: int, **options: str) -> None:
        self.nodeid = nodeid
        self.user_properties: list[tuple[str, str]] = []
        self.marker = pytest.mark.sampled(*args, **options).mark if args or options else None

    def get_closest_marker(self, name: str) -> Any:
        return self.marker


def test_of_the_cases_of_a_test_so_many_are_left() -> None:
    items: list[Any] = [Item(f"t.py::a[{n}]", 3) for n in range(20)]
    items += [Item("t.py::plain"), Item("t.py::b", 1, group="pairs", lane="make x"), Item("t.py::c", 1, group="pairs")]
    kept, left_out = choose(items)
    assert len(kept) == 5
    assert sorted(kept + left_out, key=items.index) == items
    assert kept == sorted(kept, key=items.index)
    assert sum(item.nodeid.startswith("t.py::a") for item in kept) == 3
    assert kept[0].user_properties == [("sampled", "3 of 20 cases of t.py::a; all of them: make sweeps")]
    assert kept[-1].user_properties[0][1].startswith("1 of 2 cases of pairs; all of them: make ")


def test_a_case_selected_by_name_runs() -> None:
    items: list[Any] = [Item("t.py::a[7]", 3)]
    assert choose(items) == (items, [])


def test_the_report_names_the_sample_and_its_seed() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += ["tests/issues/test_signals.py", "-k", "exceptions_of_a_handler"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MQFAST_LONG", "MQFAST_WHOLE")}
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "MQFAST_SEED": "20260105"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "sampled, with MQFAST_SEED=20260105" in done.stdout
    assert "50 of 200 rounds of exceptions_of_a_handler; all of them: make sweeps" in done.stdout
