"""Metrics as text for Prometheus: names, labels, values, histograms (text format 0.0.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_LINES_AT_ONCE: Final = 256


class Exposition:
    """Collects families of metrics. Args: labels: common to all samples."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._common = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        self._lines: list[str] = []
        self._turn_at = _LINES_AT_ONCE

    def labels(self, labels: Mapping[str, object]) -> str:
        """Return labels in the format of a line; to be created once for several families."""
        own = ",".join(f'{name}="{_escaped(_text(value))}"' for name, value in labels.items())
        return f"{self._common},{own}" if own and self._common else own or self._common

    async def family(self, name: str, kind: str, text: str, samples: Iterable[tuple[str, float | int]]) -> None:
        """Add a gauge or counter. Args: kind: ``gauge`` or ``counter``; samples: labels, by ``labels``, and value."""
        self._head(name, kind, text)
        for labels, value in samples:
            self._lines.append(f"{name}{{{labels}}} {_number(value)}")
            if len(self._lines) >= self._turn_at:
                await self._let_others()

    async def metric(self, name: str, kind: str, text: str, value: float | int) -> None:
        """Add a metric of the broker as a whole."""
        await self.family(name, kind, text, [(self._common, value)])

    async def histogram(
        self,
        name: str,
        text: str,
        bounds: Sequence[float | int],
        samples: Iterable[tuple[str, Sequence[int], float | int]],
    ) -> None:
        """Add a histogram. Args: samples: labels, the count of each step (bounds plus 1), and the sum of values."""
        self._head(name, "histogram", text)
        steps = [_number(bound) for bound in [*bounds, float("inf")]]
        for labels, counts, total in samples:
            so_far = 0
            comma = "," if labels else ""
            for step, count in zip(steps, counts, strict=True):
                so_far += count
                self._lines.append(f'{name}_bucket{{{labels}{comma}le="{step}"}} {so_far}')
            self._lines.append(f"{name}_sum{{{labels}}} {_number(total)}")
            self._lines.append(f"{name}_count{{{labels}}} {so_far}")
            if len(self._lines) >= self._turn_at:
                await self._let_others()

    async def _let_others(self) -> None:
        self._turn_at = len(self._lines) + _LINES_AT_ONCE
        await asyncio.sleep(0)

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines.append(f"# HELP {name} {text}")
        self._lines.append(f"# TYPE {name} {kind}")

    def text(self) -> bytes:
        """Return the whole text."""
        return ("\n".join(self._lines) + "\n").encode("utf-8", "replace")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def _number(value: float | int) -> str:
    if isinstance(value, int):
        return str(int(value))
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
