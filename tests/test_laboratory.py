"""Only tests/kit/laboratory.py uses private attributes of a store, so that the inside can change in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# Names that only parts of the engine have; of a store they are in the laboratory.
LABORATORY = TESTS / "kit" / "laboratory.py"


def private_to_a_store() -> set[str]:
    """The names that the laboratory takes from its store."""
    return {
        node.attr
        for node in ast.walk(ast.parse(LABORATORY.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and ast.unparse(node.value) in ("store", "self.store")
    }


def test_the_laboratory_alone_touches_what_is_private_to_a_store() -> None:
    private = private_to_a_store()
    assert {"_store_parts", "_queues"} <= private
    names = re.compile(rf"\.(?:{'|'.join(private)})\b")
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        if path == LABORATORY:
            continue
        text = path.read_text(encoding="utf-8")
        if names.search(text) is None:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in private:
                owner = ast.unparse(node.value)
                if owner != "self" and not owner.startswith("lab("):
                    found.append(f"{path.relative_to(TESTS)}:{node.lineno}: {owner}.{node.attr}")
    assert not found, "use lab(store) of tests/kit/laboratory.py:\n" + "\n".join(found)
