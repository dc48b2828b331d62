"""RepairReport: the result of a repair and of a salvage."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqfast.store.check.verify import Report

__all__ = ["RepairReport"]


@dataclass
class RepairReport:
    """The report of repair: the state before, where the log was truncated, lost messages, moved files.

    ``lost_offsets``: ``"topic/queue id"`` -> queue offsets of whole messages behind the truncation. Damaged records
    cannot be counted by queue; ``damaged_ranges`` has their places. ``found_by_scan``: number of whole messages found
    by a scan only. ``salvaged``, ``salvaged_by_scan``: number of messages that were put back into the log.
    """

    before: Report
    dry_run: bool
    kept_in: str = ""
    cut_at: int | None = None
    bytes_lost: int = 0
    messages_lost: int = 0
    lost_offsets: dict[str, list[int]] = field(default_factory=dict)
    damaged_ranges: list[tuple[int, int]] = field(default_factory=list)
    found_by_scan: int = 0
    salvaged: int = 0
    salvaged_by_scan: int = 0
    actions: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        value = asdict(self)
        value["before"] = json.loads(self.before.to_json())
        return json.dumps(value, ensure_ascii=False)

    def __str__(self) -> str:
        lines = [f"{self.before.path}: {self.before.state}"]
        if self.cut_at is not None:
            scanned = f" ({self.found_by_scan} found by a scan)" if self.found_by_scan else ""
            lines.append(f"lost behind {self.cut_at}: {self.messages_lost} messages{scanned}, {self.bytes_lost} bytes")
        lines += [f"{'would ' if self.dry_run else ''}{action}" for action in self.actions]
        return "\n".join(lines)
