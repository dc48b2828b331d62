"""Who leads where etcd's record is gone or old: the newest copy, once enough are there; else an operator."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mqfast.errors import CorruptFile, UsageError
from mqfast.ha.failover.bootstrap import carry_out_bootstrap, plan_bootstrap
from mqfast.ha.failover.etcd import Etcd, Value
from mqfast.ha.failover.etcd_state import BrokerReplicaInfo, Keys, Leader, State
from mqfast.ha.failover.known_state import KnownRecord
from mqfast.ha.failover.leader_election import StoreCopy, View, contradiction, decide
from mqfast.ha.term_history import Term
from mqfast.store.base.os_api import OsApi

FIRST, SECOND = Term(1, 0, 1, "aa"), Term(2, 500, 2, "bb")


def copy_of(number: int, *terms: Term, end: int = 1000, known: State | None = None, members: str = "12") -> StoreCopy:
    return StoreCopy(number, terms, end, frozenset(int(one) for one in members), known)


def state(epoch: int, master: int, in_sync: str, *, set_epoch: int = -1, revision: int = 9, since: int = 1) -> State:
    members = frozenset(int(one) for one in in_sync)
    return State(epoch, master, members, epoch if set_epoch < 0 else set_epoch, revision, since=since)


def chosen(*copies: StoreCopy, named: str = "") -> tuple[int | None, frozenset[int], str]:
    return decide({one.id: one for one in copies}, frozenset(int(one) for one in named))


def test_the_newest_epoch_leads_then_the_longest_log() -> None:
    assert chosen(copy_of(1, FIRST, end=9000), copy_of(2, FIRST, SECOND))[0] == 2
    assert chosen(copy_of(1, FIRST, SECOND, end=700), copy_of(2, FIRST, SECOND, end=800))[0] == 2
    assert chosen(copy_of(1, FIRST, SECOND), copy_of(2, FIRST, SECOND))[0] == 1, "equal copies: the smaller id"
    assert chosen(copy_of(1), copy_of(2, FIRST))[0] == 2, "an empty store does not lead"


def test_without_a_majority_of_the_known_brokers_there_is_no_leader() -> None:
    leader, waits_for, why = chosen(copy_of(1, FIRST))
    assert (leader, waits_for) == (None, {2})
    assert "waits for broker 2" in why
    assert chosen(copy_of(2, FIRST, SECOND))[1] == {1}, "also the newest one cannot know what it missed"
    assert chosen(copy_of(1, FIRST, members="123"), copy_of(2, FIRST))[0] == 1, "two of three"
    assert chosen(copy_of(1, FIRST, members="1"), named="123")[1] == {2, 3}
    leader, waits_for, why = chosen(copy_of(1, FIRST, members=""))
    assert (leader, waits_for) == (None, frozenset())
    assert "haBrokerIds" in why


def test_the_broker_that_was_alone_in_sync_leads() -> None:
    """Also where another one of a majority has as much, as far as anybody can see."""
    alone, both = state(2, 2, "2", revision=20), state(2, 2, "12", revision=10)
    one = copy_of(1, FIRST, SECOND, known=both)
    assert chosen(one, copy_of(2, FIRST, SECOND, known=alone))[0] == 2
    three = copy_of(3, FIRST, SECOND, known=alone, members="123")
    leader, waits_for, why = chosen(one, three)
    assert (leader, waits_for) == (None, {2})
    assert "in sync in epoch 2 was broker 2" in why


def test_two_histories_are_for_an_operator() -> None:
    for other, named in (
        (copy_of(2, FIRST, Term(2, 600, 2, "cc")), "epoch 2 began at 500 under broker 1, and at 600 under broker 2"),
        (copy_of(2, Term(1, 0, 2, "xx")), "no term in common"),
    ):
        leader, waits_for, why = chosen(copy_of(1, FIRST, Term(2, 500, 1, "dd")), other)
        assert (leader, waits_for) == (None, frozenset())
        assert named in why
        assert "mqfast ha bootstrap" in why


@pytest.mark.parametrize(
    ("record", "copy", "named"),
    [
        (state(1, 1, "12"), copy_of(2, FIRST, SECOND), "record of epoch 1, and the store of broker 2 has epoch 2"),
        (state(2, 1, "1"), copy_of(2, FIRST, SECOND), "broker 1 got epoch 2, and the store of broker 2"),
        (state(1, 1, "12"), copy_of(2, FIRST, known=state(2, 2, "2")), "broker 2 has seen epoch 2"),
        (state(2, 1, "1"), copy_of(3, FIRST, known=state(2, 2, "2")), "broker 1 got epoch 2, and broker 3 saw 2"),
        (state(2, 2, "12"), copy_of(1, FIRST, known=state(2, 2, "2", revision=10)), "revision 9 of its record"),
        (state(3, 1, "1"), copy_of(2, FIRST, SECOND, known=state(2, 2, "2")), "broker 2 alone was in sync in epoch 2"),
        (state(2, 2, "2"), copy_of(2, FIRST, SECOND, known=state(2, 2, "2")), None),
        (state(3, 1, "1"), copy_of(2, FIRST, SECOND, known=state(2, 2, "12")), None),
        (state(3, 1, "1"), copy_of(2, FIRST, SECOND, known=state(2, 2, "12", set_epoch=1)), None),
        (state(3, 1, "1", since=3), copy_of(2, FIRST, SECOND, known=state(2, 2, "2")), None),
        (state(1, 1, "1"), copy_of(2), None),
    ],
)
def test_a_record_older_than_a_store_is_not_in_force(record: State, copy: StoreCopy, named: str | None) -> None:
    found = contradiction(record, copy)
    assert (found is None) == (named is None), found
    assert named is None or named in str(found)


def test_copies_and_known_records_are_decoded_as_encoded(tmp_path: Path) -> None:
    one = copy_of(2, FIRST, SECOND, known=dataclasses.replace(state(2, 2, "12", since=2), released=True))
    read = StoreCopy.decoded(Value(one.encoded(), 1, 7, 1))
    assert (read, read.revision) == (one, 7)
    for damaged in (b"", b"[]", b"{}", b'{"id": 1, "end": 2, "terms": [[1]], "members": []}'):
        with pytest.raises(CorruptFile, match="etcd"):
            StoreCopy.decoded(Value(damaged, 1, 1, 1))
    known = KnownRecord(OsApi(), str(tmp_path))
    assert (known.state, known.members) == (None, frozenset())
    known.note(one.known, {1, 2})
    known.note(None, {3})
    again = KnownRecord(OsApi(), str(tmp_path))
    assert (again.state, again.members) == (one.known, {1, 2, 3})
    (tmp_path / "failoverState.json").write_bytes(b"{")
    with pytest.raises(CorruptFile, match="what this store knows of its brokers is damaged"):
        KnownRecord(OsApi(), str(tmp_path))


def test_plans_of_a_bootstrap() -> None:
    one, two = copy_of(1, FIRST), copy_of(2, FIRST, SECOND, end=5000)
    none, both = View(None, None, {}), View(None, None, {1: one, 2: two})

    def refused(view: View, **more: object) -> str:
        plan = plan_bootstrap("broker-a", view, **more)  # type: ignore[arg-type]
        assert plan.refusals
        assert "refused" in str(plan)
        with pytest.raises(UsageError, match="refused"):
            carry_out_bootstrap(Etcd(["127.0.0.1:1"], 1.0), Keys.of("/mqfast", "c", "n"), plan)
        return "; ".join(plan.refusals)

    assert "no broker of this name is there" in refused(none)
    master = View(Leader(BrokerReplicaInfo(1, "h:1", "h:2"), 4), state(4, 1, "1"), {2: two})
    assert "broker 1 is the master of epoch 4; end that broker first" in refused(master)
    assert "broker 3 is not there" in refused(both, leader=3)
    assert "broker 2 leads by itself" in refused(both), "the brokers need no operator"
    assert "--accept-loss" in refused(both, leader=1), "the store of 1 lacks what 2 has"
    assert "waits for broker 2" in refused(View(None, None, {1: one}))
    in_force = View(None, state(1, 1, "1"), {1: one, 3: copy_of(3, FIRST, members="123")})
    assert "in sync: that broker leads by itself" in refused(in_force, leader=1)
    assert "what broker 1 alone has is lost" in refused(in_force, leader=3)
    plan = plan_bootstrap("broker-a", both, leader=1, accept_loss=True)
    assert (plan.leader, plan.epoch, plan.refusals) == (1, 3, [])
    assert "broker 2: epoch 2, log to 5000" in str(plan)
    assert "broker 1 leads, with a record that begins at epoch 3" in str(plan)
    alone = plan_bootstrap("broker-a", View(None, None, {1: copy_of(1, FIRST, members="")}))
    assert (alone.leader, alone.refusals) == (1, []), "nobody knows of another broker"
