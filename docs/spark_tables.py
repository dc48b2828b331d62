"""Writes the tables of columns and options in ``docs/spark/`` from the code itself: ``python docs/spark_tables.py``.

It must never hold a fact about an option or a column of its own: they come from ``mqfast/spark/options.py``,
``schema.py`` and ``rows.py``. A test compares the document with what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mqfast.spark.options import describe  # noqa: E402  (the sources beside this file, not an installed package)
from mqfast.spark.rows import COLUMNS  # noqa: E402
from mqfast.spark.schema import VIEWS  # noqa: E402

DOCUMENTS = (ROOT / "docs" / "spark" / "reference.md", ROOT / "docs" / "spark" / "write.md")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def options_table() -> str:
    """Every option."""
    rows = []
    for option in describe():
        default = f"`{option.default}`" if option.default else ""
        rows.append((f"`{option.name}`", option.kind, default, option.where, option.meaning))
    return _table(("Option", "Type", "Default", "Where", "Meaning"), rows)


def columns_table(view: str) -> str:
    """Every column of one view."""
    rows = [(f"`{c.name}`", c.kind + (", may be null" if c.nullable else ""), c.meaning) for c in VIEWS[view]]
    return _table(("Column", "Type", "Meaning"), rows)


def sink_table() -> str:
    """Every column that the sink takes."""
    rows = [(f"`{name}`", " or ".join(kinds), meaning) for name, (kinds, meaning) in COLUMNS.items()]
    return _table(("Column", "Type", "Meaning"), rows)


def renewed(document: str) -> str:
    """Return the document with all its tables written again."""
    parts = {"options": options_table(), **{f"columns of {view}": columns_table(view) for view in VIEWS}}
    parts["columns of the sink"] = sink_table()
    for name, text in parts.items():
        begin, end = f"<!-- {name}: written by docs/spark_tables.py -->", f"<!-- end of {name} -->"
        head, mark, rest = document.partition(begin)
        if not mark:
            continue
        _, _, tail = rest.partition(end)
        document = f"{head}{begin}\n\n{text}\n\n{end}{tail}"
    return document


if __name__ == "__main__":
    for path in DOCUMENTS:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
