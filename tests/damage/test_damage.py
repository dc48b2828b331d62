"""Damaged stores, a part of the million of ``make damage``, and queues and index made anew from the log alone. What is
held to which rule: ``check.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from damage.check import Workplace
from damage.runner import run
from damage.stores import Bases, files_below, make_bases, write_files
from laboratory import open_still
from sampling import Sample

SEEDS = 1_000_000


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("small", [False, True])
def test_damage_is_reported_or_harmless(small: bool, sample: Sample) -> None:
    count = 10_000 if sample.whole else 1000
    first = sample.rng.randrange(SEEDS // count) * count
    sample.note(count, SEEDS, f"damaged {'small' if small else 'large'} stores, from seed {first}", "make damage")
    outcome = run(Bases() if small else Bases(make_bases()), first, count, full=False)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.counts["mutations"] == count
    # A harness that sees no damage, or nothing but damage, is broken.
    assert outcome.counts["detected"] > count // 6
    assert outcome.counts["harmless"] > count // 40
    assert outcome.counts["opened"] > count // 6


@pytest.mark.parametrize(
    "seed", [104827, 105567, 434143, 1000553, 1003061, 2011371, 3048971, 3049790, 5013438, 6020185, 8152676]
)
def test_seeds_that_broke_the_rule_of_the_small_stores(seed: int, tmp_path: Path) -> None:
    Workplace(str(tmp_path), Bases()).run(seed)


def test_every_store_opens_undamaged(tmp_path: Path) -> None:
    for base in make_bases() + Bases().of(0):
        root = str(tmp_path / base.name)
        write_files(root, base.files)
        with open_still(root, config=base.config) as store:
            assert {(topic, queue): (low, high) for topic, queue, low, high in store.queues()} == base.queues


def test_queues_and_index_made_anew_from_the_log_equal_the_originals(tmp_path: Path) -> None:
    for base in make_bases(("clean", "killed", "checked", "one-file")):
        root = tmp_path / base.name
        kept = {name: data for name, data in base.files.items() if not name.startswith(("consumequeue/", "index/"))}
        write_files(str(root), {**kept, "abort": b"1"})
        open_still(root, **base.settings).close()
        made = files_below(str(root))
        queues = {name: data for name, data in base.files.items() if name.startswith("consumequeue/")}
        assert {name: made.get(name) for name in queues} == queues, base.name
        # The names of index files are times.
        index = [base.files[name] for name in sorted(base.files) if name.startswith("index/")]
        assert [made[name] for name in sorted(made) if name.startswith("index/")] == index, base.name
