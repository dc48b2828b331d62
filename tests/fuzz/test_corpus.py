"""Every input of the fuzz corpus, on the usual build: a result or an error of ours. ``make fuzz`` goes on from here."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz.fuzz import CORPUS, mutate
from fuzz.targets import TARGETS, end, run


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_input_of_the_corpus_and_some_more(target: str, tmp_path: Path) -> None:
    pool = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert pool, "no corpus"
    try:
        kinds = {run(target, data, str(tmp_path / "store")) for data in pool}
        rng = random.Random(7)
        for _ in range(150):
            kinds.add(run(target, mutate(rng, pool, target), str(tmp_path / "store")))
    finally:
        end()
    assert "" in kinds, "no input is taken"
