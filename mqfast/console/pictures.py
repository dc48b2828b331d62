"""Pictures of pages as SVG text: queues as bars, small lines, histograms, the life of a message, flows.

Made on the server, so that a picture is text for tests and needs no script. Must never contain a style attribute, which
the content policy forbids, or text that is not escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup, escape

__all__ = ["Band", "Event", "QueueBar", "Tick", "flow", "histogram", "life", "line", "meter", "queue_bars"]


class Tick(NamedTuple):
    """A place in a queue. Attributes: kind: class of the mark: ``at``, ``to`` or ``late``."""

    name: str
    offset: int
    kind: str = "at"


class QueueBar(NamedTuple):
    """A queue as a bar from its first to its last message, with places."""

    label: str
    first: int
    end: int
    ticks: Sequence[Tick]
    note: str = ""


class Event(NamedTuple):
    """A moment in the life of a message. Attributes: ms: time; kind: class; what, detail: texts."""

    ms: int
    kind: str
    what: str
    detail: str = ""


class Band(NamedTuple):
    """A flow from a topic to a group. Attributes: rate: messages per second; lag: unread messages."""

    topic: str
    group: str
    rate: float
    lag: int


def _svg(width: int, height: int, kind: str, title: str, parts: Sequence[str], role: str = "img") -> Markup:
    # Every part is built from escaped texts and numbers.
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="{role}" aria-label="{escape(title)}" '
        f'preserveAspectRatio="xMidYMid meet">{"".join(parts)}</svg>'
    )


def line(values: Sequence[float | None], title: str, *, width: int = 120, height: int = 28) -> Markup:
    """Return a small line; a gap where there is no measurement."""
    known = [value for value in values if value is not None]
    if not known and height > 60:
        return Markup('<p class="muted">no measurement other than zero yet</p>')
    high = max([*known, 1e-9])
    step = width / max(1, len(values) - 1)
    parts = [f'<line class="base" x1="0" x2="{width}" y1="{height - 1}" y2="{height - 1}"/>']
    run: list[tuple[float, float]] = []
    for index, value in enumerate([*values, None]):
        if value is not None:
            run.append((index * step, height - 2 - (height - 5) * value / high))
        elif run:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            area = f"{run[0][0]:.1f},{height} {points} {run[-1][0]:.1f},{height}"
            parts.append(f'<polygon class="area" points="{area}"/><polyline class="stroke" points="{points}"/>')
            if len(run) == 1:
                parts.append(f'<circle class="dot" cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="1.6"/>')
            run = []
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def queue_bars(bars: Sequence[QueueBar], title: str) -> Markup:
    """Return queues as bars on a scale of offsets, each with the places of groups."""
    if not bars:
        return Markup('<p class="muted">no queue</p>')
    row, width = 30, 900
    margin = min(230, 20 + 7 * max(len(bar.label) for bar in bars))
    high = max(max((bar.end for bar in bars), default=1), 1)
    low = min(bar.first for bar in bars)
    span = max(1, high - low)
    inner = width - margin - 110

    def at(offset: int) -> float:
        return margin + inner * min(1.0, max(0.0, (offset - low) / span))

    parts = []
    for index, bar in enumerate(bars):
        y = 8 + index * row
        x, end = at(bar.first), at(bar.end)
        late = min((tick.offset for tick in bar.ticks if tick.kind != "to"), default=bar.end)
        parts.append(f'<text class="label" x="{margin - 10}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(f'<rect class="track" x="{margin}" y="{y}" width="{inner}" height="18" rx="4"/>')
        parts.append(f'<rect class="held" x="{x:.1f}" y="{y}" width="{max(2.0, end - x):.1f}" height="18" rx="4"/>')
        if late < bar.end:
            begin = max(at(late), x)
            parts.append(
                f'<rect class="unread" x="{begin:.1f}" y="{y}" width="{max(1.0, end - begin):.1f}" height="18" rx="3"/>'
            )
        for tick in bar.ticks:
            place = at(tick.offset)
            text = f"{tick.name}: {tick.offset}"
            parts.append(
                f'<g class="tick {escape(tick.kind)}"><title>{escape(text)}</title><rect x="{place - 1.5:.1f}" '
                f'y="{y - 4}" width="3" height="26" rx="1.5"/></g>'
            )
        note = bar.note or f"{bar.first} to {bar.end}"
        parts.append(f'<text class="note" x="{width - 100}" y="{y + 13}">{escape(note)}</text>')
    return _svg(width, 14 + len(bars) * row, "queues", title, parts)


def histogram(columns: Sequence[tuple[str, int | None]], title: str) -> Markup:
    """Return columns with a label and a count each; None: unknown."""
    if not columns:
        return Markup('<p class="muted">nothing</p>')
    width, height, bottom = 900, 210, 34
    high = max((count or 0 for _, count in columns), default=1) or 1
    each = min(90.0, width / len(columns))
    parts = []
    for index, (label, count) in enumerate(columns):
        x = index * each + each * 0.14
        tall = (height - bottom - 24) * (count or 0) / high
        y = height - bottom - tall
        shown = "?" if count is None else f"{count}"
        kind = "column" if count else "column empty"
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{min(y, height - bottom - 2):.1f}" width="{each * 0.72:.1f}" '
            f'height="{max(2.0, tall):.1f}" rx="3"><title>{escape(label)}: {shown}</title></rect>'
            f'<text class="value" x="{x + each * 0.36:.1f}" y="{y - 6:.1f}" text-anchor="middle">{shown}</text>'
            f'<text class="label" x="{x + each * 0.36:.1f}" y="{height - 12}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    return _svg(width, height, "histogram", title, parts)


def life(events: Sequence[Event], title: str) -> Markup:
    """Return the life of a message: a row for each event, on a time axis of its own scale."""
    if not events:
        return Markup('<p class="muted">no event is known</p>')
    row, margin, width = 34, 14, 900
    begin, end = min(event.ms for event in events), max(event.ms for event in events)
    span = max(1, end - begin)
    axis = 150
    parts = []
    for index, event in enumerate(events):
        y = 18 + index * row
        x = margin + axis * (event.ms - begin) / span
        passed = event.ms - begin
        since = f"+{passed} ms" if passed < 10_000 else f"+{passed / 1000:.1f} s"
        if index + 1 < len(events):
            after = margin + axis * (events[index + 1].ms - begin) / span
            parts.append(f'<path class="way" d="M{x:.1f} {y} V{y + row / 2} H{after:.1f} V{y + row}"/>')
        parts.append(f'<circle class="event {escape(event.kind)}" cx="{x:.1f}" cy="{y}" r="6"/>')
        parts.append(
            f'<text class="since" x="{margin + axis + 90}" y="{y + 4}" text-anchor="end">{escape(since)}</text>'
            f'<text class="what" x="{margin + axis + 108}" y="{y + 4}">{escape(event.what)}'
            f'<tspan class="note" dx="10">{escape(event.detail[:100])}</tspan></text>'
        )
    return _svg(width, 10 + len(events) * row, "life", title, parts)


def meter(part: float, marks: Sequence[tuple[float, str]], title: str) -> Markup:
    """Return a part of a whole as a bar, with marks."""
    width = 320
    level = "bad" if marks and part >= marks[-1][0] else "warn" if any(part >= at for at, _ in marks) else "good"
    parts = [
        f'<rect class="track" width="{width}" height="14" rx="7"/>',
        f'<rect class="fill {level}" width="{width * min(1.0, max(0.0, part)):.1f}" height="14" rx="7"/>',
    ]
    parts += [
        f'<rect class="mark" x="{width * at:.1f}" y="-2" width="2" height="18"><title>{escape(name)}</title></rect>'
        for at, name in marks
    ]
    return Markup(
        f'<svg class="meter" viewBox="0 -2 {width} 18" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def flow(bands: Sequence[Band], title: str) -> Markup:
    """Return topics at the left, groups at the right, and a band of the width of the rate between them."""
    if not bands:
        return Markup('<p class="muted">no group has read a topic yet</p>')
    topics = list(dict.fromkeys(band.topic for band in bands))
    groups = list(dict.fromkeys(band.group for band in bands))
    width, row = 900, 46
    height = max(len(topics), len(groups)) * row + 30
    fastest = max(*(band.rate for band in bands), 1e-9)
    deepest = max(*(band.lag for band in bands), 1)
    margin = _spread(topics, height)
    right = _spread(groups, height)
    parts = [
        '<text class="head" x="220" y="16" text-anchor="end">Topics</text>',
        '<text class="head" x="668" y="16">Groups</text>',
    ]
    for band in bands:
        y, to = margin[band.topic], right[band.group]
        wide = 1.5 + 16 * band.rate / fastest
        kind = "band late" if band.lag else "band"
        label = f"{band.topic} to {band.group}: {band.rate:.1f}/s, {band.lag} unread"
        parts.append(
            f'<path class="{kind}" d="M230 {y:.1f} C450 {y:.1f} 450 {to:.1f} 630 {to:.1f}" '
            f'stroke-width="{wide:.1f}"><title>{escape(label)}</title></path>'
        )
    for name, y in margin.items():
        parts.append(_node(f"/topics/{_path(name)}", name, 220, y, "end"))
    lags: dict[str, int] = {}
    for band in bands:
        lags[band.group] = lags.get(band.group, 0) + band.lag
    for name, y in right.items():
        unread = f"{lags[name]} unread" if lags[name] else ""
        parts.append(_node(f"/groups/{_path(name)}", name, 668, y, "start", unread))
        if lags[name]:
            radius = 4 + 12 * (lags[name] / deepest) ** 0.5
            parts.append(
                f'<circle class="pool" cx="644" cy="{y:.1f}" r="{min(16.0, radius):.1f}">'
                f"<title>{lags[name]} unread</title></circle>"
            )
        else:
            parts.append(f'<circle class="pool none" cx="644" cy="{y:.1f}" r="4"/>')
    return _svg(width, height, "flow", title, parts, role="group")  # with links


def _spread(names: Sequence[str], height: float) -> dict[str, float]:
    each = (height - 30) / len(names)
    return {name: 30 + each * (index + 0.5) for index, name in enumerate(names)}


def _node(address: str, name: str, x: float, y: float, anchor: str, note: str = "") -> str:
    short = name if len(name) <= 28 else f"{name[:27]}…"
    return (
        f'<a href="{escape(address)}"><text class="node" x="{x}" y="{y + 5:.1f}" text-anchor="{anchor}">'
        f'<title>{escape(name)}</title>{escape(short)}<tspan class="note" dx="8">{escape(note)}</tspan></text></a>'
    )


def _path(name: str) -> str:
    return quote(str(name), safe="")
