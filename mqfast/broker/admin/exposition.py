"""Metrics as text for Prometheus: names, labels, values, histograms (text format 0.0.4).

Room: broker. It must never know what it writes. Source: Prometheus, exposition formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Exposition:
    """Collects families of metrics. Args: labels: those of every sample."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._common = "".join(f'{name}="{_escaped(value)}",' for name, value in labels.items())
        self._lines: list[str] = []
        self.names: list[str] = []

    def family(
        self, name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, object], float | int]]
    ) -> None:
        """A gauge or counter. Args: kind: ``gauge`` or ``counter``; samples: labels and value of each."""
        self._head(name, kind, text)
        for labels, value in samples:
            self._lines.append(f"{name}{self._labels(labels)} {_number(value)}")

    def one(self, name: str, kind: str, text: str, value: float | int) -> None:
        """A metric of the broker as a whole."""
        self.family(name, kind, text, [({}, value)])

    def histogram(
        self,
        name: str,
        text: str,
        bounds: Sequence[float | int],
        samples: Iterable[tuple[Mapping[str, object], Sequence[int], float | int]],
    ) -> None:
        """A histogram. Args: samples: labels, the count of each step (one more than bounds), and the sum of values."""
        self._head(name, "histogram", text)
        for labels, counts, total in samples:
            so_far = 0
            for bound, count in zip([*bounds, float("inf")], counts, strict=True):
                so_far += count
                self._lines.append(f"{name}_bucket{self._labels({**labels, 'le': _number(bound)})} {so_far}")
            self._lines.append(f"{name}_sum{self._labels(labels)} {_number(total)}")
            self._lines.append(f"{name}_count{self._labels(labels)} {so_far}")

    def _head(self, name: str, kind: str, text: str) -> None:
        self.names.append(name)
        self._lines.append(f"# HELP {name} {text}")
        self._lines.append(f"# TYPE {name} {kind}")

    def _labels(self, labels: Mapping[str, object]) -> str:
        inner = self._common + "".join(f'{name}="{_escaped(_text(value))}",' for name, value in labels.items())
        return "{" + inner.removesuffix(",") + "}" if inner else ""

    def text(self) -> bytes:
        """The whole of it."""
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
