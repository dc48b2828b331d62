"""Election of a leader without a valid record in etcd: the newest copy leads, once a majority is present.

Each broker without a master writes the end of its store to etcd. The brokers of the name are those in the settings and
those that stores have seen in sync. A majority of them must be present: a single store cannot know which messages it
lacks. Between diverged stores an operator decides. Source: own design; the order of copies is that of Kafka's unclean
election, epoch first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.ha.failover.etcd import Etcd, Value
from mqfast.ha.failover.etcd_state import Keys, Leader, State
from mqfast.ha.term_history import NO_EPOCH, Term, common_end, terms_of

__all__ = ["StoreCopy", "LeaderChoice", "View", "contradiction", "decide", "ids_text", "read_view"]

_TERMS_MAX: Final = 2000  # etcd takes requests of 1.5 MiB


@dataclass(frozen=True)
class StoreCopy:
    """The store of one broker that does not follow a master.

    Attributes: id: of the broker; terms: of the log, oldest first; end: of the log; members: brokers of the name known
        to this broker; known: the newest record of etcd that this broker has seen, None without a record; revision: of
        etcd.
    """

    id: int
    terms: tuple[Term, ...]
    end: int
    members: frozenset[int]
    known: State | None = None
    revision: int = field(default=0, compare=False)

    @property
    def epoch(self) -> int:
        """Return the newest epoch, NO_EPOCH without an epoch."""
        return self.terms[-1].epoch if self.terms else NO_EPOCH

    def begin_of(self, epoch: int) -> Term | None:
        """Return the first term of an epoch in this log, None if missing."""
        return next((term for term in self.terms if term.epoch == epoch), None)

    def encoded(self) -> bytes:
        """Return the value for etcd."""
        value: dict[str, Any] = {
            "id": self.id, "end": self.end, "terms": [list(term) for term in self.terms[-_TERMS_MAX:]],
            "members": sorted(self.members),
        }  # fmt: skip
        if self.known is not None:
            value["known"] = json.loads(self.known.encoded())
            value["knownRevision"] = self.known.revision
        return json.dumps(value).encode()

    @classmethod
    def decoded(cls, value: Value) -> StoreCopy:
        """Decode the value of etcd. Raises: CorruptFile."""
        try:
            fields = json.loads(value.data)
            known = None
            if "known" in fields:
                state = json.dumps(fields["known"]).encode()
                known = State.decoded(Value(state, 0, int(fields["knownRevision"]), 0))
            members = frozenset(int(member) for member in fields["members"])
            return cls(int(fields["id"]), terms_of(fields["terms"]), int(fields["end"]), members, known, value.modified)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(
                "etcd: what a broker tells of its copy is damaged", expected="id, end, terms, members",
                found=repr(error),
            ) from None  # fmt: skip


class View(NamedTuple):
    """The content of etcd at one moment. ``copies``: broker id -> copy of a broker without a master."""

    leader: Leader | None
    state: State | None
    copies: Mapping[int, StoreCopy]


def read_view(etcd: Etcd, keys: Keys) -> View:
    """Read leader, record and copies. Raises: EtcdUnreachable, CorruptFile."""
    (leader, state), copies = etcd.read_many((keys.leader, keys.state), keys.copies)
    decoded = [StoreCopy.decoded(value) for value in copies.values()]
    return View(
        None if leader is None else Leader.decoded(leader),
        None if state is None else State.decoded(state),
        {copy.id: copy for copy in decoded},
    )


class LeaderChoice(NamedTuple):
    """The elected leader, or the brokers that are missing for an election.

    Attributes: leader: broker id, None while undecided; waits_for: missing brokers; why: a sentence.
    """

    leader: int | None
    waits_for: frozenset[int]
    why: str


def ids_text(ids: Iterable[int]) -> str:
    """Return ``1``, ``1 and 2``, ``1, 2 and 3``."""
    words = [str(broker_id) for broker_id in sorted(ids)]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def contradiction(state: State, copy: StoreCopy) -> str | None:
    """Return the reason why a record of etcd cannot be in force: a store knows a later record. None without a
    contradiction.
    """
    known, epoch = copy.known, state.epoch
    store = f"the store of broker {copy.id}"
    if copy.epoch > epoch:
        return f"etcd has a record of epoch {epoch}, and {store} has epoch {copy.epoch}"
    begin = copy.begin_of(epoch)
    if begin is not None and begin.leader > 0 and begin.leader != state.master:
        return f"etcd says that broker {state.master} got epoch {epoch}, and {store} has it of broker {begin.leader}"
    if known is None or known.epoch < state.since:
        return None
    if known.epoch > epoch:
        return f"etcd has a record of epoch {epoch}, and broker {copy.id} has seen epoch {known.epoch}"
    if known.epoch == epoch:
        if known.master != state.master:
            return f"etcd says that broker {state.master} got epoch {epoch}, and broker {copy.id} saw {known.master}"
        if known.revision > state.revision:
            return f"etcd has revision {state.revision} of its record, and broker {copy.id} saw {known.revision}"
        return None
    was_alone = known.master == copy.id and known.set_epoch == known.epoch and known.in_sync == {copy.id}
    if was_alone and state.master != copy.id:
        return (
            f"broker {copy.id} alone was in sync in epoch {known.epoch}, and etcd has a record of epoch {epoch} of "
            f"broker {state.master}"
        )
    return None


_OPERATOR: Final = "an operator decides, with 'mqfast ha bootstrap'"


def decide(copies: Mapping[int, StoreCopy], named: frozenset[int] = frozenset()) -> LeaderChoice:
    """Elect a leader among the present copies.

    Args: copies: broker id -> copy; named: the brokers of the name in the settings, empty without a setting.
    """
    present = frozenset(copies)
    members = named | frozenset().union(*(copy.members for copy in copies.values()))
    if not members:
        return LeaderChoice(
            None, frozenset(), f"no store and no setting (haBrokerIds) names the brokers of this name; {_OPERATOR}"
        )
    members |= present
    missing = members - present
    if len(present) <= len(members) // 2:
        return LeaderChoice(
            None,
            missing,
            f"broker {ids_text(present)} of {ids_text(members)} is there, which is no majority; it waits for broker "
            f"{ids_text(missing)}",
        )
    if (conflict := _conflict(copies)) is not None:
        return LeaderChoice(None, frozenset(), f"{conflict}; {_OPERATOR}")
    newest = max(copies.values(), key=_place)
    records = [copy.known for copy in copies.values() if copy.known is not None]
    record = max(records, key=lambda copy: (copy.epoch, copy.revision), default=None)
    if record is not None and record.epoch >= newest.epoch:
        in_sync = [copy for copy in copies.values() if copy.id in record.in_sync]
        if not in_sync:
            return LeaderChoice(
                None,
                record.in_sync,
                f"in sync in epoch {record.epoch} was broker {ids_text(record.in_sync)}, which is not there; it is "
                "waited for",
            )
        newest = max(in_sync, key=_place)
    return LeaderChoice(
        newest.id,
        frozenset(),
        f"broker {newest.id} has the newest copy of {ids_text(present)}: epoch {newest.epoch}, to {newest.end}",
    )


def _place(copy: StoreCopy) -> tuple[int, int, int]:
    return copy.epoch, copy.end, -copy.id


def _conflict(copies: Mapping[int, StoreCopy]) -> str | None:
    """Return a text about two diverged stores: without a common term, or with different begins of one epoch. None
    without such a pair.
    """
    for first, second in combinations(sorted(copies.values(), key=lambda copy: copy.id), 2):
        both = f"the stores of broker {first.id} and broker {second.id} are of two histories"
        if first.epoch == second.epoch and (text := _began_apart(first, second)) is not None:
            return f"{both}: {text}"
        have_ids = all(any(term.history for term in copy.terms) for copy in (first, second))
        if have_ids and common_end(first.terms, first.end, second.terms, second.end) is None:
            return f"{both}: they have no term in common"
    return None


def _began_apart(first: StoreCopy, second: StoreCopy) -> str | None:
    mine, theirs = first.begin_of(first.epoch), second.begin_of(first.epoch)
    if mine is None or theirs is None:
        return None
    if mine.start != theirs.start or (mine.history and theirs.history and mine.history != theirs.history):
        return (
            f"epoch {first.epoch} began at {mine.start} under broker {mine.leader}, and at {theirs.start} under broker "
            f"{theirs.leader}"
        )
    return None
