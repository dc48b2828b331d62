"""The report of a job: facts, tables and whether damage was found; as text or as a JSON object.

Control characters are never sent to a terminal. Uses neither Spark nor stores.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["JobReport", "ReportTable", "cell_text"]


@dataclass(frozen=True)
class ReportTable:
    """Rows with headings."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def text(self) -> str:
        """Return the columns side by side, numbers right-aligned."""
        cells = [[cell_text(value) for value in row] for row in self.rows]
        right = [all(isinstance(row[i], (int, float)) for row in self.rows) for i in range(len(self.heads))]
        widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(self.heads)]
        lines = [self.title]
        for line in ([*self.heads], *cells):
            shown = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
            lines.append("  " + "  ".join(shown).rstrip())
        return "\n".join(lines)


@dataclass
class JobReport:
    """The result of a job.

    ``damaged``: the job has finished, and found or left out damage.
    """

    job: str
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[ReportTable] = field(default_factory=list)
    damaged: bool = False

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table."""
        self.tables.append(ReportTable(title, tuple(heads), [tuple(row) for row in rows]))

    def json(self) -> str:
        """Return a JSON object on one line, ASCII."""
        return json.dumps(dataclasses.asdict(self), default=str)

    def text(self) -> str:
        """Return text for people: the facts, then the tables with rows."""
        width = max(map(len, self.facts), default=0)
        facts = [f"  {name.ljust(width)}  {cell_text(value)}" for name, value in self.facts.items()]
        return "\n".join(["\n".join([self.job, *facts]), *(table.text() for table in self.tables if table.rows)])


def cell_text(value: Any) -> str:
    """Return a value on one line, for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
