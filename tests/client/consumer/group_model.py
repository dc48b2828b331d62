"""A consumer group as a model: members come, go and rebalance on what they last heard.

A member hears of the group's members late, rebalances when it likes, and may rebalance on an old view. The model keeps
nothing but who owns what; every change comes from ``rebalance`` under test.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqfast.client.consumer.allocation import Allocation
from mqfast.client.consumer.rebalance import rebalance
from mqfast.client.values import MessageQueue

TOPIC = "orders"


class Member:
    """One client: what it owns, and the members and queues that it last heard of."""

    def __init__(self, client_id: str, strategy: Allocation) -> None:
        self.client_id = client_id
        self.strategy = strategy
        self.owned: set[MessageQueue] = set()
        self.members: list[str] = []
        self.queues: list[MessageQueue] = []

    def rebalance(self) -> bool:
        """Returns: did anything change?"""
        change = rebalance("group", self.client_id, TOPIC, self.queues, self.members, self.strategy, sorted(self.owned))
        assert self.owned.issuperset(change.give_up), "a queue is given up that nobody has"
        assert self.owned.isdisjoint(change.take), "a queue is taken twice"
        assert not set(change.take) & set(change.give_up)
        self.owned = (self.owned - set(change.give_up)) | set(change.take)
        return bool(change)


class Group:
    """All members of a group and the topic's queues, as brokers and name servers know them."""

    def __init__(self, strategies: Sequence[Allocation], queues: int) -> None:
        self._strategies = strategies
        self.members: dict[str, Member] = {}
        self.queues: list[MessageQueue] = []
        self.resize(queues)

    def resize(self, queues: int) -> None:
        """The topic has so many queues now, dealt to two brokers."""
        self.queues = [MessageQueue(TOPIC, f"r{number % 2}@b", number // 2) for number in range(queues)]

    def join(self, number: int) -> None:
        client_id = f"r{number % 2}@10.0.0.{number}#x"
        self.members[client_id] = Member(client_id, self._strategies[number % len(self._strategies)])

    def leave(self, at: int) -> None:
        """A member ends, or is cut off: its queues are its own no longer."""
        if self.members:
            del self.members[sorted(self.members)[at % len(self.members)]]

    def tell(self, at: int) -> None:
        """One member hears how the group and the topic are now, in the broker's own order."""
        if self.members:
            member = sorted(self.members.items())[at % len(self.members)][1]
            member.members, member.queues = list(self.members)[::-1], self.queues[::-1]

    def rebalance_one(self, at: int) -> None:
        if self.members:
            sorted(self.members.items())[at % len(self.members)][1].rebalance()

    def settle(self) -> int:
        """Everybody hears of everything and rebalances, until nothing changes. Returns: rounds with a change."""
        rounds = 0
        while True:
            for at in range(len(self.members)):
                self.tell(at)
            changes = [member.rebalance() for member in self.members.values()]
            if not any(changes):
                return rounds
            rounds += 1
            assert rounds < 3, "the group never comes to rest"

    def owners(self) -> dict[MessageQueue, list[str]]:
        """Who owns each queue, of queues that the topic no longer has as well."""
        found: dict[MessageQueue, list[str]] = {queue: [] for queue in self.queues}
        for client_id, member in self.members.items():
            for queue in member.owned:
                found.setdefault(queue, []).append(client_id)
        return found
