"""Every number has a test that bears it, or a reason in the README why there is none."""

from __future__ import annotations

import re
from pathlib import Path

ROOM = Path(__file__).parent
COUNT = 62


def test_every_number_has_a_test_or_a_reason() -> None:
    tested = {
        int(number)
        for path in ROOM.glob("test_*.py")
        for number in re.findall(r"^def test_trap_(\d\d)_", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    text = (ROOM / "README.md").read_text(encoding="utf-8").split("## Not of the store")[1]
    excused = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert tested | excused == set(range(1, COUNT + 1))
    assert not tested & excused
