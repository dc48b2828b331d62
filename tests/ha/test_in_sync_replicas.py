"""Who is in sync: who joins when, who is waited for, who leaves; and the right of a master by the clock."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mqfast.errors import ConfigError, CorruptFile, NotMaster
from mqfast.ha.failover.etcd import Value, endpoints_of
from mqfast.ha.failover.etcd_state import BrokerReplicaInfo, Leader, State
from mqfast.ha.failover.in_sync_replicas import InSyncReplicas, ReplicaSetChange, SyncAcks
from mqfast.ha.failover.lease_guard import LeaseGuard
from mqfast.ha.protocol import Reports, identity_report, report


@dataclass(eq=False)
class Slave:
    identity: tuple[int, int] | None


class Setup:
    """A master with id 1 in epoch 5 whose log ends at ``end``."""

    def __init__(self, least: int = 1) -> None:
        self.end = 1000
        self.now_s = 0.0
        self.acks = SyncAcks(3.0, lambda: self.end)
        self.told: list[int] = []
        self.acks.watch(self.told.append)
        self.set = InSyncReplicas(
            self.acks, lambda: self.end, own=1, min_replicas=least, absent_s=15.0, clock=lambda: self.now_s
        )
        self.set.begin(5)
        self.slave = Slave((2, 5))

    def joined(self) -> Setup:
        self.acks.report(self.slave, self.end)
        self.set.evaluate()
        change = self.set.evaluate()
        assert change is not None
        assert change.members == {1, 2}
        self.set.confirmed(change.members)
        return self


def test_a_master_alone_in_sync_waits_for_no_ack() -> None:
    assert Setup().acks.acked == 1000


def test_a_slave_enters_the_in_sync_set_after_it_reached_the_end_at_its_first_required_ack() -> None:
    one = Setup()
    one.acks.report(one.slave, 400)
    assert one.set.evaluate() is None
    one.end = 1500
    assert one.set.evaluate() is None, "it is not level: nobody waits for it"
    assert one.acks.acked == 1500
    one.acks.report(one.slave, 1500)
    one.end = 2000
    assert one.set.evaluate() is None
    assert one.acks.acked == 1500, "from now on its acknowledgements are waited for, though etcd does not know"
    one.acks.report(one.slave, 2000)
    change = one.set.evaluate()
    assert change is not None
    assert change.members == {1, 2}


def test_a_slave_of_another_epoch_or_without_a_name_counts_for_nothing() -> None:
    one = Setup()
    for identity in ((2, 4), None):
        one.acks.report(Slave(identity), 1000)
        one.set.evaluate()
        assert one.set.evaluate() is None
    assert one.acks.acked == 1000


def test_a_lagging_member_delays_acks_and_is_removed_only_through_etcd() -> None:
    one = Setup().joined()
    one.acks.remove(one.slave)
    one.end = 3000
    assert one.acks.acked < 3000
    one.now_s = 14.9
    assert one.set.evaluate() is None
    one.now_s = 15.1
    change = one.set.evaluate()
    assert change is not None
    assert change.members == {1}
    assert one.acks.acked < 3000, "until etcd has taken the change"
    one.set.confirmed(change.members)
    assert one.acks.acked == 3000
    assert one.told[-1] == 3000, "who waits is told"


def test_a_change_without_an_answer_is_waited_for_in_both_forms() -> None:
    one = Setup()
    one.set.unsure(ReplicaSetChange(frozenset({1, 2}), "a join whose answer did not come"))
    assert one.acks.acked < 1000
    one.set.seen(frozenset({1}))
    assert one.acks.acked < 1000, "the write may come later than this look"
    change = one.set.evaluate()
    assert change is not None
    assert change.members == {1}
    one.set.confirmed(change.members)
    assert one.acks.acked == 1000


def test_the_set_never_gets_smaller_than_the_least() -> None:
    one = Setup(least=2).joined()
    one.acks.remove(one.slave)
    one.now_s = 100.0
    one.end = 2000
    assert one.set.evaluate() is None


def test_the_right_ends_by_its_own_clock() -> None:
    now_s = 0.0
    right = LeaseGuard(lambda: now_s)
    right.extend(2.5)
    assert not right.is_valid(), "a lease alone is no right"
    right.activate(7)
    assert right.is_valid()
    right.check()
    now_s = 2.5
    assert not right.is_valid()
    with pytest.raises(NotMaster, match="epoch 7"):
        right.check()
    right.extend(5.0)  # the lease lasted at etcd: nobody else was master
    assert right.is_valid()
    right.revoke()
    right.extend(9.0)
    assert not right.is_valid()


def test_identity_reports_are_parsed_between_offset_reports() -> None:
    data = identity_report(2, 7) + report(100) + identity_report(3, 2**31 - 1)
    reports = Reports()
    assert [reports.feed(data[:3]), reports.feed(data[3:20]), reports.feed(data[20:])] == [None, 100, None]
    assert reports.identity == (3, 2**31 - 1)


def test_etcd_values_are_decoded_as_encoded() -> None:
    leader = Leader(BrokerReplicaInfo(1, "h:1", "h:2"), 9)
    assert Leader.decoded(Value(leader.encoded(), 4, 5, 6)) == Leader(leader.member, 9, 4, 6)
    state = State(9, 1, frozenset({1, 2}), 8)
    assert State.decoded(Value(state.encoded(), 4, 5, 0)) == State(9, 1, frozenset({1, 2}), 8, 5)
    assert state.may_lead(2, 8)
    assert not state.may_lead(2, 7), "a store that lacks the epoch of the set may be another one"
    assert not state.may_lead(3, 9)
    for damaged in (b"", b"[]", b'{"id": "x"}', b"{}"):
        with pytest.raises(CorruptFile, match="etcd"):
            Leader.decoded(Value(damaged, 1, 1, 1))
        with pytest.raises(CorruptFile, match="etcd"):
            State.decoded(Value(damaged, 1, 1, 1))


def test_endpoints() -> None:
    assert endpoints_of("a:2379; https://b:1,c") == ["a:2379", "https://b:1", "c"]
    for wrong in ("ftp://a:1", "a:x", "a:1/path", ":1"):
        with pytest.raises(ConfigError, match="haEtcdEndpoints"):
            endpoints_of(wrong)
