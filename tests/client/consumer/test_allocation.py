"""The six strategies give Java's answers: recorded by ``record_allocations.py`` from the classes of release 5.5.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqfast.client.consumer.allocation import (
    Allocation,
    AverageAllocation,
    ConfigAllocation,
    ConsistentHashAllocation,
    MachineRoomAllocation,
    NearbyAllocation,
    allocation_of,
    sorted_members,
    sorted_queues,
)
from mqfast.client.values import MessageQueue
from mqfast.errors import ConfigError

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "allocations.json").read_text())["cases"]


def room(name: str) -> str:
    return name.partition("@")[0] if "@" in name else ""


def strategy_of(name: str, case: dict[str, Any]) -> Allocation:
    if name == "CONFIG":
        return ConfigAllocation(MessageQueue(*row) for row in case["config"])
    if name == "MACHINE_ROOM":
        return MachineRoomAllocation(case["rooms"])
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        inner = name.removeprefix("MACHINE_ROOM_NEARBY-")
        return NearbyAllocation(inner, lambda queue: room(queue.broker_name), room)
    return allocation_of(name)


def test_the_recorded_cases_are_of_every_strategy() -> None:
    nearby = {f"MACHINE_ROOM_NEARBY-{inner}" for inner in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")}
    expected = {"AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "CONFIG", "MACHINE_ROOM", *nearby}
    assert {case["name"] for case in CASES} == expected
    assert sum(len(rows) for case in CASES for rows in case["answers"].values() if isinstance(rows, list)) > 1000


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_member_gets_what_java_gives_it(number: int) -> None:
    case = CASES[number]
    strategy = strategy_of(case["strategy"], case)
    assert strategy.name == case["name"]
    queues = sorted_queues(MessageQueue(*row) for row in case["queues"])
    members = sorted_members(case["sent"])
    assert members == case["members"], "Java sorts members otherwise"
    for me, expected in case["answers"].items():
        if isinstance(expected, str):  # Java refused
            with pytest.raises(ValueError, match="expected"):
                strategy("group", me, queues, members)
        else:
            assert [list(queue) for queue in strategy("group", me, queues, members)] == expected, me


def test_a_strategy_is_found_by_its_wire_name() -> None:
    assert isinstance(allocation_of("AVG"), AverageAllocation)
    own = ConfigAllocation([])
    assert allocation_of(own) is own


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("AVG_BY_CIRCEL", "did you mean AVG_BY_CIRCLE"),
        ("avg", "did you mean AVG"),
        ("CONFIG", r"ConfigAllocation\(queues\)"),
        ("MACHINE_ROOM", r"MachineRoomAllocation\(rooms\)"),
        ("MACHINE_ROOM_NEARBY", r"NearbyAllocation\(inner"),
        (7, "found int"),
        (sorted, "attribute name"),
    ],
)
def test_an_unknown_allocation_is_refused_with_the_nearest_name(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        allocation_of(given)


def test_a_ring_without_points_gives_nobody_anything() -> None:
    queues = [MessageQueue("t", "b", 0)]
    assert ConsistentHashAllocation(0)("g", "me", queues, ["me"]) == []
    with pytest.raises(ConfigError, match="at least 0"):
        ConsistentHashAllocation(-1)


def test_an_own_hash_is_used() -> None:
    queues = [MessageQueue("t", "b", number) for number in range(4)]
    by_number = ConsistentHashAllocation(1, lambda text: int("".join(c for c in text if c.isdigit())))
    assert by_number("g", "a1", queues, ["a1", "b2"]) == [queues[0], queues[1], queues[2], queues[3]]
