"""Frames that real programs sent, from ``frames/``; what the columns mean is in the README there."""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import Path
from typing import NamedTuple

__all__ = ["SETS", "Capture", "captures"]

FRAMES = Path(__file__).parent / "frames"
SETS = tuple(sorted(path.name.removesuffix(".jsonl.xz") for path in FRAMES.glob("*.jsonl.xz")))


class Capture(NamedTuple):
    """One frame: ``header`` is its header as text, ``frame`` all of its bytes."""

    flow: str
    connection: int
    peer: str
    direction: str
    header: str
    frame: bytes

    @property
    def is_binary(self) -> bool:
        return self.frame[4] == 1


@functools.cache
def captures(name: str) -> tuple[Capture, ...]:
    """All frames of one set."""
    with lzma.open(FRAMES / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return tuple(Capture(*row[:5], bytes.fromhex(row[5])) for row in rows)
