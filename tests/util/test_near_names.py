"""Hints for mistyped names: the nearest known names."""

from __future__ import annotations

import pytest

from mqfast.util.near_names import did_you_mean, near_names

KNOWN = ("maxMessageSize", "flushDiskType", "brokerName", "brokerIP1")


@pytest.mark.parametrize(
    "name, options, expected",
    [
        ("maxMesageSize", {}, "; did you mean maxMessageSize?"),
        ("brokerNme", {}, "; did you mean brokerName?"),
        ("brokerIP", {"count": 3}, "; did you mean brokerIP1 or brokerName?"),
        ("MAXMESSAGESIZE", {}, ""),
        ("MAXMESSAGESIZE", {"ignore_case": True}, "; did you mean maxMessageSize?"),
        ("brokrNam", {"cutoff": 0.99}, ""),
        ("unrelated", {}, ""),
    ],
)
def test_the_hint_names_the_nearest_names(name: str, options: dict[str, object], expected: str) -> None:
    assert did_you_mean(name, KNOWN, **options) == expected  # type: ignore[arg-type]


def test_several_near_names_begin_with_the_nearest() -> None:
    assert near_names("orders", ["order", "borders", "orders2"], count=3) == ["orders2", "borders", "order"]
    assert did_you_mean("orders", iter(["orders2", "border"]), count=2) == "; did you mean orders2 or border?"
