"""The first page: five numbers with their last 15 minutes, and what is wrong in sentences.

Must never send a request: the collector has asked already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqfast.console.findings import findings
from mqfast.console.history import SPARK_SLOTS
from mqfast.console.page import Console, Page, command
from mqfast.console.pages.topics import is_own
from mqfast.console.pictures import line
from mqfast.console.state import largest, total

__all__ = ["now"]


async def now(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the state of all clusters."""
    collector = console.collector
    state, history = collector.state, collector.history
    brokers = list(state.brokers.values())
    all_findings = findings(state, collector.stuck)
    late = state.groups_behind(8)
    worst = largest([group.age_s for group in state.groups.values()])
    data = {
        "clusters": sorted({broker.cluster for broker in brokers}),
        "brokers": len(brokers),
        "topics": sum(is_own(name, state) for name in state.topics),
        "groups": sum(bool(group.places) for group in state.groups.values()),
        "in": total([broker.number("putTps") for broker in brokers]),
        "out": total([broker.number("getTransferredTps") for broker in brokers]),
        "worst_s": worst,
        "disk": largest([broker.number("commitLogDiskRatio") for broker in brokers]),
        "errors": sum(finding.level == "bad" for finding in all_findings),
        "findings": [finding._asdict() for finding in all_findings[:12]],
        "more_findings": max(0, len(all_findings) - 12),
        "late": [
            {"name": group.name, "lag": group.lag, "age_s": group.age_s, "age_is_least": group.age_is_least}
            for group in late
        ],
    }

    def summed(kind: str) -> list[float | None]:
        columns = [history.values(kind, broker.name, SPARK_SLOTS) for broker in brokers]
        return [_sum(values) for values in zip(*columns, strict=True)]

    pictures: dict[str, Any] = {
        "in": line(summed("in"), "messages in"),
        "out": line(summed("out"), "messages out"),
        "worst": line(history.values("worst", "", SPARK_SLOTS), "worst lag in seconds"),
        "disk": line(summed("disk"), "disk use"),
        "lines": {
            group.name: line(history.values("lag", group.name, SPARK_SLOTS), f"lag of {group.name}") for group in late
        },
    }
    return Page("now.html", "Now", data, command("cluster"), pictures)


def _sum(values: tuple[float | None, ...]) -> float | None:
    sure = [value for value in values if value is not None]
    return sum(sure) if sure else None
