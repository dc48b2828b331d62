"""The boxes of docs/simulation.md print what the page shows."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

from document_boxes import boxes


def test_the_boxes_of_simulation_md(tmp_path: Path) -> None:
    page = boxes("docs/simulation.md")
    pairs = [
        (box.code, after.code)
        for box, after in itertools.pairwise(page)
        if box.language == "python" and after.language == "text"
    ]
    assert len(pairs) == sum(box.language == "python" for box in page) == 2
    for code, printed in pairs:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert done.stdout == printed
