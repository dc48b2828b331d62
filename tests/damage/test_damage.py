"""Twenty thousand damaged stores, and queues and index made anew from the log alone. What is held to which rule:
``check.py``; the long form is ``make damage``.
"""

from __future__ import annotations

import os
from pathlib import Path

from damage.runner import run
from damage.stores import files_below, make_bases, write_files

import mqfast

COUNT = int(os.environ.get("MQFAST_DAMAGE", "20000"))


def test_damage_is_reported_or_harmless() -> None:
    outcome = run(make_bases(), 0, COUNT, full=False)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.counts["mutations"] == COUNT
    # A harness that sees no damage, or nothing but damage, is broken.
    assert outcome.counts["detected"] > COUNT // 6
    assert outcome.counts["harmless"] > COUNT // 40
    assert outcome.counts["opened"] > COUNT // 6


def test_queues_and_index_made_anew_from_the_log_equal_the_originals(tmp_path: Path) -> None:
    for base in make_bases(("clean", "killed", "checked", "one-file")):
        root = tmp_path / base.name
        kept = {name: data for name, data in base.files.items() if not name.startswith(("consumequeue/", "index/"))}
        write_files(str(root), {**kept, "abort": b"1"})
        mqfast.open(root, _start_services=False, **base.settings).close()
        made = files_below(str(root))
        queues = {name: data for name, data in base.files.items() if name.startswith("consumequeue/")}
        assert {name: made.get(name) for name in queues} == queues, base.name
        # The names of index files are times.
        index = [base.files[name] for name in sorted(base.files) if name.startswith("index/")]
        assert [made[name] for name in sorted(made) if name.startswith("index/")] == index, base.name
