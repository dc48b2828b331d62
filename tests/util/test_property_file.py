"""Property files with some values changed: every other line stays as it was, byte for byte."""

from __future__ import annotations

import random

from mqfast.util.property_file import parse_properties, with_settings

PIECES = [
    "a=1", "b : 2", "c", " d=\\", "  a=x", "# a=2", "! b\\", "\\u0061=3", "a\\=b=4", "", "e=f\\\\", "a 5", "a:",
    "g=\x85h", "\x0cb=9", "i=j\x1ck", "# a \x85 b=1",
]  # fmt: skip
VALUES = ["", " lead", "tail ", "back\\slash", "\u4e2d", "x=y", "\x85", "#no comment", "a\tb", "\x0c"]


def test_any_file_keeps_its_other_settings_and_lines() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        ends = rng.choice(["\n", "\r\n", "\r"])
        text = "".join(rng.choice(PIECES) + ends for _ in range(rng.randrange(8)))
        if rng.random() < 0.3:
            text = text.rstrip("\r\n")
        wanted = {name: rng.choice(VALUES) for name in ("a", "b")}
        before = parse_properties(text)
        changed = with_settings(text, wanted)
        after = parse_properties(changed)
        assert {name: value for name, value in after.items() if name not in wanted} == {
            name: value for name, value in before.items() if name not in wanted
        }, text
        assert {name: after[name] for name in wanted} == wanted, text
        assert with_settings(changed, wanted) == changed, "a second time changes nothing"
        for line in text.split(ends):
            if line.lstrip(" ")[:1] in ("#", "!"):
                assert line in changed


def test_a_value_is_changed_in_its_place() -> None:
    text = "# first\r\na=1\r\na=2\r\n\r\n# about b\r\nb=\\\r\n  3\r\nc=4"
    assert with_settings(text, {"a": "5", "b": "6", "d": "7"}) == (
        "# first\r\na=5\r\n\r\n# about b\r\nb=6\r\nc=4\r\nd=7\r\n"
    )


def test_a_name_is_escaped() -> None:
    assert parse_properties(with_settings("", {"a b=c:d": "1", "#x": "2"})) == {"a b=c:d": "1", "#x": "2"}
