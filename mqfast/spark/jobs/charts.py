"""Charts for reports: a self-contained HTML file, without scripts and network.

Bars are SVG. Every text is escaped: topics and tags are arbitrary input of producers. Uses no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from mqfast.spark.jobs.report import JobReport, cell_text

__all__ = ["Bars", "page"]

_WIDTH: Final = 900
_LABEL: Final = 300
_ROW: Final = 22
_COLUMNS_HEIGHT: Final = 160
_MOST_BARS: Final = 40
_STYLE: Final = (
    "body{font:14px system-ui,sans-serif;margin:2rem;max-width:1000px}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd}svg text{font:12px system-ui,sans-serif}"
)

Bars = Sequence[tuple[Any, float]]
"""Labels and lengths."""


def _across(bars: Bars) -> str:
    """Return horizontal bars, for names."""
    shown = list(bars)[:_MOST_BARS]
    longest = max((value for _, value in shown), default=0) or 1
    lines = [f'<svg width="{_WIDTH}" height="{_ROW * len(shown)}" role="img">']
    for i, (label, value) in enumerate(shown):
        y, width = i * _ROW, (_WIDTH - _LABEL - 110) * value / longest
        name = cell_text(label)
        short = name if len(name) <= 40 else name[:39] + "…"
        lines.append(f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(short)}</text>')
        lines.append(f'<rect x="{_LABEL}" y="{y + 3}" width="{max(width, 1):.1f}" height="{_ROW - 6}" fill="#3b7dd8"/>')
        lines.append(f'<text x="{_LABEL + width + 6:.1f}" y="{y + 15}">{cell_text(value)}</text>')
    return "".join([*lines, "</svg>"])


def _upright(bars: Bars) -> str:
    """Return vertical bars, for times; neighbours are added up if there are too many."""
    step = -(-len(bars) // (_WIDTH // 3)) or 1
    groups = [bars[i : i + step] for i in range(0, len(bars), step)]
    values = [sum(value for _, value in group) for group in groups]
    highest, width = max(values, default=0) or 1, _WIDTH / max(1, len(groups))
    lines = [f'<svg width="{_WIDTH}" height="{_COLUMNS_HEIGHT + 40}" role="img">']
    for i, value in enumerate(values):
        height = _COLUMNS_HEIGHT * value / highest
        lines.append(
            f'<rect x="{i * width:.1f}" y="{20 + _COLUMNS_HEIGHT - height:.1f}" width="{max(width - 1, 1):.1f}" '
            f'height="{height:.1f}" fill="#3b7dd8"/>'
        )
    if groups:
        ends = f"{cell_text(groups[0][0][0])} to {cell_text(groups[-1][-1][0])}"
        lines.append(f'<text x="0" y="14">highest: {cell_text(highest)}</text>')
        lines.append(f'<text x="0" y="{_COLUMNS_HEIGHT + 36}">{escape(ends)}</text>')
    return "".join([*lines, "</svg>"])


def page(report: JobReport, names: dict[str, Bars], times: dict[str, Bars]) -> str:
    """Return the page: facts, charts with titles, then the tables of the report."""
    facts = "".join(f"<tr><td>{escape(k)}</td><td>{escape(cell_text(v))}</td></tr>" for k, v in report.facts.items())
    parts = [f"<h1>{escape(report.job)}</h1><table>{facts}</table>"]
    parts += [f"<h2>{escape(title)}</h2>{_upright(bars)}" for title, bars in times.items() if bars]
    parts += [f"<h2>{escape(title)}</h2>{_across(bars)}" for title, bars in names.items() if bars]
    for table in report.tables:
        if table.rows:
            heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
            rows = "".join(
                "<tr>" + "".join(f"<td>{escape(cell_text(value))}</td>" for value in row) + "</tr>"
                for row in table.rows
            )
            parts.append(f"<h2>{escape(table.title)}</h2><table><tr>{heads}</tr>{rows}</table>")
    head = f'<meta charset="utf-8"><title>{escape(report.job)}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>\n"
