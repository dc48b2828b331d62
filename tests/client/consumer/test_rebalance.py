"""A rebalance is pure; a group of members that do it comes to rest with every queue owned once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parent))

from group_model import TOPIC, Group

from mqfast.client.consumer.allocation import (
    Allocation,
    AverageAllocation,
    CircleAllocation,
    ConfigAllocation,
    ConsistentHashAllocation,
    MachineRoomAllocation,
    NearbyAllocation,
)
from mqfast.client.consumer.rebalance import NOTHING, rebalance, rebalance_broadcast
from mqfast.client.values import MessageQueue

QUEUES = [MessageQueue(TOPIC, "b", number) for number in range(4)]


def nearby(inner: str) -> Allocation:
    return NearbyAllocation(inner, lambda queue: queue.broker_name.partition("@")[0], lambda me: me.partition("@")[0])


STRATEGIES = {
    "AVG": AverageAllocation(),
    "AVG_BY_CIRCLE": CircleAllocation(),
    "MACHINE_ROOM": MachineRoomAllocation(["r0", "r1"]),
    "NEARBY-AVG": nearby("AVG"),
    "NEARBY-CIRCLE": nearby("AVG_BY_CIRCLE"),
    "NEARBY-HASH": nearby("CONSISTENT_HASH"),
    "CONSISTENT_HASH": ConsistentHashAllocation(),
}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 11)),
        st.tuples(st.just("leave"), st.integers(0, 11)),
        st.tuples(st.just("tell"), st.integers(0, 11)),
        st.tuples(st.just("rebalance_one"), st.integers(0, 11)),
        st.tuples(st.just("resize"), st.integers(1, 20)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", STRATEGIES)
@given(queues=st.integers(1, 20), steps=STEPS)
def test_at_rest_every_queue_has_exactly_one_owner(name: str, queues: int, steps: list[tuple[str, int]]) -> None:
    group = Group([STRATEGIES[name]], queues)
    for what, number in steps:
        getattr(group, what)(number)
    group.settle()
    if group.members:
        assert {queue: len(owners) for queue, owners in group.owners().items()} == dict.fromkeys(group.queues, 1)


@given(queues=st.integers(1, 12), owners=st.lists(st.integers(0, 2), min_size=12, max_size=12), steps=STEPS)
def test_config_allocation_gives_the_configured_queues(
    queues: int, owners: list[int], steps: list[tuple[str, int]]
) -> None:
    """CONFIG: member ``number`` has the queues of owner ``number % 3``, whoever else is there."""
    all_queues = [MessageQueue(TOPIC, f"r{number % 2}@b", number // 2) for number in range(12)]
    told = [[queue for queue, owner in zip(all_queues, owners, strict=True) if owner == one] for one in range(3)]
    group = Group([ConfigAllocation(mine) for mine in told], queues)
    for what, number in steps:
        getattr(group, what)(number % 3 if what == "join" else min(number, 12))
    group.resize(queues)
    group.settle()
    for client_id, member in group.members.items():
        assert member.owned == set(told[int(client_id.split(".")[-1].removesuffix("#x"))]) & set(group.queues)


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_hundred_members_join_and_leave(name: str) -> None:
    group = Group([STRATEGIES[name]], 16)
    for number in range(200):
        group.join(number % 7)
        if number % 3:
            group.leave(number)
        group.rebalance_one(number)
        group.settle()
        if group.members:
            assert all(len(owners) == 1 for owners in group.owners().values())


def change(queues: list[MessageQueue], members: list[str], owned: list[MessageQueue], me: str = "me") -> object:
    return rebalance("g", me, TOPIC, queues, members, AverageAllocation(), owned)


def test_rebalance_without_queues_or_members_changes_nothing() -> None:
    assert change([], ["me"], QUEUES) == NOTHING
    assert change(QUEUES, [], QUEUES[:2]) == NOTHING
    assert rebalance_broadcast(TOPIC, [], QUEUES) == NOTHING
    assert not NOTHING


def test_rebalance_of_a_member_that_the_broker_does_not_know_revokes_all_queues() -> None:
    found = rebalance("g", "me", TOPIC, QUEUES, ["other"], AverageAllocation(), QUEUES[:2])
    assert found.give_up == tuple(QUEUES[:2])
    assert found.take == ()


def test_rebalance_changes_only_queues_of_the_topic() -> None:
    other = MessageQueue("other", "b", 0)
    found = rebalance("g", "me", TOPIC, QUEUES, ["me", "you"], AverageAllocation(), [other, QUEUES[3]])
    assert found == (tuple(QUEUES[:2]), (QUEUES[3],), ())


def test_a_queue_that_the_topic_does_not_have_is_named_and_not_taken() -> None:
    gone = MessageQueue(TOPIC, "b", 99)
    config = ConfigAllocation([gone, QUEUES[1], QUEUES[1], MessageQueue("other", "b", 0)])
    found = rebalance("g", "me", TOPIC, QUEUES, ["me"], config, [])
    assert found == ((QUEUES[1],), (), (gone,))


def test_an_error_of_an_allocation_strategy_is_reported() -> None:
    def broken(group: str, me: str, queues: object, members: object) -> list[MessageQueue]:
        raise RuntimeError("no idea")

    broken.name = "BROKEN"  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no idea"):
        rebalance("g", "me", TOPIC, QUEUES, ["me"], broken, [])  # type: ignore[arg-type]


def test_every_member_of_a_broadcasting_group_has_all_queues() -> None:
    found = rebalance_broadcast(TOPIC, QUEUES[::-1], [QUEUES[0], MessageQueue(TOPIC, "gone", 0)])
    assert found.take == tuple(QUEUES[1:])
    assert found.give_up == (MessageQueue(TOPIC, "gone", 0),)
