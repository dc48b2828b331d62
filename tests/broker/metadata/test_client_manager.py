"""Who is connected and what they want, with a clock of the test's own: heartbeats, expiry, change notices, locks."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "remoting"))

from captures import SETS, captures

from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerManager, Notice
from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
from mqfast.broker.metadata.client_manager.queue_locks import LockedQueue, QueueLocks
from mqfast.errors import FieldError
from mqfast.remoting.command import FrameDecoder
from mqfast.remoting.heartbeat import ConsumerData, SubscriptionData, decode_heartbeat


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def data(group: str = "g", *topics: str, version: int = 1, expression: str = "*") -> ConsumerData:
    subscriptions = [SubscriptionData(topic, expression, sub_version=version) for topic in topics or ("T",)]
    return ConsumerData(group, subscription_data_set=subscriptions)


def test_heartbeats_of_real_clients() -> None:
    seen = set()
    for name in SETS:
        for capture in captures(name):
            (command,) = FrameDecoder().feed(capture.frame)
            if command.code != 34 or command.is_response:
                continue
            found = decode_heartbeat(command.body)
            assert found.client_id
            consumers = ConsumerManager(Clock())
            for one in found.consumer_data_set or ():
                assert consumers.register("c", found.client_id, one) == Notice(one.group_name, ("c",))
                for subscription in one.subscription_data_set or ():
                    assert consumers.subscription(one.group_name, subscription.topic) == subscription
                    seen.add(subscription.expression_type)
    assert "TAG" in seen


def test_heartbeats_of_other_clients() -> None:
    go = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY","consumeFromWhere":0,'
        b'"subscriptionDataSet":[{"topic":"T","codeSet":["2598919"],"subVersion":1795255178846000000}]}]}'
    )
    (one,) = decode_heartbeat(go).consumer_data_set or ()
    (subscription,) = one.subscription_data_set or ()
    assert (subscription.code_set, subscription.expression_type) == ([2598919], "TAG")
    assert decode_heartbeat(b'{"clientID":"c","consumerDataSet":null,"other":{0:1}}').producer_data_set is None
    for body in (b"", b"{}", b'{"clientID":""}', b"[]", b'{"clientID":"c","consumerDataSet":[{}]}'):
        with pytest.raises(FieldError, match="field body"):
            decode_heartbeat(body)


def test_a_new_member_is_notified_to_all_members_and_itself() -> None:
    consumers = ConsumerManager(Clock())
    assert consumers.register("c1", "one", data()) == Notice("g", ("c1",))
    assert consumers.register("c1", "one", data()) is None
    assert consumers.register("c2", "two", data()) == Notice("g", ("c1", "c2"))
    group = consumers.group("g")
    assert group is not None
    assert group.client_ids() == ["one", "two"]
    assert consumers.unregister("c1", "g") == Notice("g", ("c2",))
    assert consumers.unregister("c1", "g") is None
    assert consumers.unregister("c2", "g") is None
    assert consumers.group("g") is None


def test_subscriptions_follow_the_newest_heartbeat() -> None:
    consumers = ConsumerManager(Clock())
    consumers.register("c", "one", data("g", "T", "U", expression="a"))
    assert consumers.register("c", "one", data("g", "T", "U", version=1, expression="b")) is None
    assert consumers.subscription("g", "T").sub_string == "a"  # type: ignore[union-attr]
    assert consumers.register("c", "one", data("g", "T", "U", version=2, expression="b")) is None
    assert consumers.subscription("g", "T").sub_string == "b"  # type: ignore[union-attr]
    assert consumers.register("c", "one", data("g", "T", "V")) == Notice("g", ("c",))
    assert (consumers.groups_of_topic("U"), consumers.groups_of_topic("V")) == ([], ["g"])
    assert consumers.subscription("g", "U") is None
    assert consumers.subscription("none", "T") is None


def test_a_client_that_came_back_stays_when_its_old_connection_ends() -> None:
    clock = Clock()
    consumers = ConsumerManager(clock)
    consumers.register("old", "one", data())
    clock.now += 1
    assert consumers.register("new", "one", data()) == Notice("g", ("old", "new"))
    group = consumers.group("g")
    assert group is not None
    assert group.channel_of("one") == "new"
    assert group.channel_of("two") is None
    assert consumers.channel_closed("old") == [Notice("g", ("new",))]
    assert group.client_ids() == ["one"]


def test_silent_members_expire_after_120_seconds_and_not_before() -> None:
    clock = Clock()
    consumers = ConsumerManager(clock)
    for channel, group in (("c1", "g"), ("c2", "g"), ("c1", "h")):
        consumers.register(channel, channel, data(group))
    clock.now += 60_000
    consumers.register("c2", "c2", data("g"))
    clock.now += 60_000
    assert consumers.expire() == ([], [])
    clock.now += 1
    assert consumers.expire() == (["c1"], [Notice("g", ("c2",))])
    assert [group.name for group in consumers.groups()] == ["g"]


def test_producers() -> None:
    clock = Clock()
    producers = ProducerManager(clock)
    assert producers.pick("p") is None
    for channel in ("c1", "c2"):
        producers.register(channel, f"client of {channel}", "p", language=9, version=317)
    producers.register("c1", "client of c1", "q")
    assert {producers.pick("p") for _ in range(2)} == {"c1", "c2"}
    first = producers.members("p")[0]
    assert (first.client_id, first.language, first.version) == ("client of c1", 9, 317)
    producers.unregister("c1", "p")
    assert producers.channel_of("client of c1") == "c1"  # it is in another group still
    producers.unregister("c1", "q")
    producers.unregister("c1", "none")
    assert producers.channel_of("client of c1") is None
    assert producers.groups() == ["p"]
    producers.register("c3", "client of c2", "p")
    producers.channel_closed("c2")
    assert producers.channel_of("client of c2") == "c3"
    clock.now += 120_000
    assert producers.expire() == []
    clock.now += 1
    assert producers.expire() == ["c3"]
    assert (producers.groups(), producers.members("p")) == ([], [])


Q = [LockedQueue("T", "b", i) for i in range(3)]


def test_locks() -> None:
    clock = Clock()
    locks = QueueLocks(clock)
    assert locks.lock("g", "one", [Q[0], Q[1], Q[0]]) == [Q[0], Q[1]]
    assert locks.lock("g", "two", Q) == [Q[2]]
    assert locks.lock("h", "two", [Q[0]]) == [Q[0]]
    assert locks.is_locked("g", "one", Q[0])
    assert not locks.is_locked("g", "two", Q[0])
    locks.unlock("g", "two", [Q[0], Q[2]])
    assert locks.is_locked("g", "one", Q[0])
    assert locks.lock("g", "one", [Q[2]]) == [Q[2]]
    clock.now += 60_000
    assert locks.is_locked("g", "one", Q[0])
    assert locks.is_orderly("g")
    clock.now += 1
    assert not locks.is_locked("g", "one", Q[0])
    assert not locks.is_orderly("g")
    assert locks.lock("g", "two", [Q[0]]) == [Q[0]]
    locks.expire()
    assert locks.is_orderly("g")
    assert not locks.is_orderly("h")
    locks.unlock("g", "two", Q)
    locks.unlock("none", "two", Q)
    assert not locks.is_orderly("g")


class LockModel(RuleBasedStateMachine):
    """One client at most has a queue, whatever is locked, unlocked and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.locks = QueueLocks(self.clock)
        self.model: dict[LockedQueue, tuple[str, int]] = {}

    queues = st.lists(st.sampled_from(Q), max_size=3)
    clients = st.sampled_from(["one", "two", "three"])

    @rule(client=clients, queues=queues)
    def lock(self, client: str, queues: list[LockedQueue]) -> None:
        expected = []
        for queue in dict.fromkeys(queues):
            owner, since = self.model.get(queue, (client, self.clock.now))
            if owner == client or self.clock.now - since > 60_000:
                self.model[queue] = (client, self.clock.now)
                expected.append(queue)
        assert self.locks.lock("g", client, queues) == expected

    @rule(client=clients, queues=queues)
    def unlock(self, client: str, queues: list[LockedQueue]) -> None:
        self.locks.unlock("g", client, queues)
        for queue in queues:
            if self.model.get(queue, ("", 0))[0] == client:
                del self.model[queue]

    @rule(ms=st.sampled_from([1, 20_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.clock.now += ms

    @rule()
    def forget(self) -> None:
        self.locks.expire()
        self.model = {q: held for q, held in self.model.items() if self.clock.now - held[1] <= 60_000}

    @invariant()
    def agrees(self) -> None:
        for queue in Q:
            owner, since = self.model.get(queue, ("", 0))
            for client in ("one", "two", "three"):
                held: Hashable = self.locks.is_locked("g", client, queue)
                assert held == (client == owner and self.clock.now - since <= 60_000)


TestLockModel = LockModel.TestCase
TestLockModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class Counted(str):
    """A connection that counts how often a table looks at it."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()


@pytest.mark.parametrize("kind", [ConsumerManager, ProducerManager])
def test_the_close_of_a_connection_visits_only_its_groups(
    kind: type[ConsumerManager] | type[ProducerManager],
) -> None:
    manager = kind(Clock())
    for i in range(1000):
        one = Counted(f"c{i}")
        if isinstance(manager, ConsumerManager):
            manager.register(one, f"client {i}", data(f"g{i}"))
        else:
            manager.register(one, f"client {i}", f"g{i}")
    Counted.looks = 0
    manager.channel_closed(Counted("c7"))
    manager.channel_closed(Counted("a stranger"))
    assert Counted.looks < 20
    assert len(manager.groups()) == 999


def test_of_two_producers_with_the_same_id_the_connected_one_is_found() -> None:
    """Else no reply reaches it until its next heartbeat (RocketMQ issue 6810)."""
    producers = ProducerManager(Clock())
    for channel in ("first", "second"):
        producers.register(channel, "same id", "p")
    assert producers.channel_of("same id") == "second"
    producers.channel_closed("second")
    assert producers.channel_of("same id") == "first"
    producers.register("first", "other id", "p")
    producers.channel_closed("first")
    assert (producers.channel_of("same id"), producers.channel_of("other id")) == (None, None)
    assert producers.groups() == []
