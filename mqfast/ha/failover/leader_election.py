"""Which copy leads where etcd's record is gone, or is older than a store: the newest one, once enough are there.

Each broker without a master tells etcd how far its store goes. The brokers of the name are those that the settings name
and those that stores have seen in sync. A majority of them must be there: a single store cannot know what it missed.

Room: ha/failover. It must never choose between stores of two histories: an operator does. Source: our own; the order of
copies is that of Kafka's unclean election, epoch first.
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

__all__ = ["Copy", "LeaderChoice", "View", "contradiction", "decide", "ids_text", "read_view"]

_TERMS_MAX: Final = 2000  # etcd takes requests of 1.5 MiB


@dataclass(frozen=True)
class Copy:
    """The store of one broker that follows nobody.

    Attributes: id: of the broker; terms: of the log, oldest first; end: of the log; members: brokers of the name that
        this one knows; known: the newest record of etcd that this broker has seen, None without one; revision: of etcd.
    """

    id: int
    terms: tuple[Term, ...]
    end: int
    members: frozenset[int]
    known: State | None = None
    revision: int = field(default=0, compare=False)

    @property
    def epoch(self) -> int:
        """The newest epoch, NO_EPOCH without one."""
        return self.terms[-1].epoch if self.terms else NO_EPOCH

    def begin_of(self, epoch: int) -> Term | None:
        """How an epoch began in this log."""
        return next((one for one in self.terms if one.epoch == epoch), None)

    def encoded(self) -> bytes:
        """As etcd keeps it."""
        value: dict[str, Any] = {
            "id": self.id, "end": self.end, "terms": [list(one) for one in self.terms[-_TERMS_MAX:]],
            "members": sorted(self.members),
        }  # fmt: skip
        if self.known is not None:
            value["known"] = json.loads(self.known.encoded())
            value["knownRevision"] = self.known.revision
        return json.dumps(value).encode()

    @classmethod
    def decoded(cls, value: Value) -> Copy:
        """Raises: CorruptFile."""
        try:
            found = json.loads(value.data)
            known = None
            if "known" in found:
                state = json.dumps(found["known"]).encode()
                known = State.decoded(Value(state, 0, int(found["knownRevision"]), 0))
            members = frozenset(int(one) for one in found["members"])
            return cls(int(found["id"]), terms_of(found["terms"]), int(found["end"]), members, known, value.modified)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(
                "etcd: what a broker tells of its copy is damaged", expected="id, end, terms, members",
                found=repr(error),
            ) from None  # fmt: skip


class View(NamedTuple):
    """What etcd has at one moment. ``copies``: broker id -> what a broker without a master tells."""

    leader: Leader | None
    state: State | None
    copies: Mapping[int, Copy]


def read_view(etcd: Etcd, keys: Keys) -> View:
    """What etcd has. Raises: EtcdUnreachable, CorruptFile."""
    (leader, state), copies = etcd.read_many((keys.leader, keys.state), keys.copies)
    told = [Copy.decoded(value) for value in copies.values()]
    return View(
        None if leader is None else Leader.decoded(leader),
        None if state is None else State.decoded(state),
        {one.id: one for one in told},
    )


class LeaderChoice(NamedTuple):
    """Who leads, or what is waited for.

    Attributes: leader: broker id, None while that is open; waits_for: brokers that are not there; why: a sentence.
    """

    leader: int | None
    waits_for: frozenset[int]
    why: str


def ids_text(ids: Iterable[int]) -> str:
    """``1``, ``1 and 2``, ``1, 2 and 3``."""
    words = [str(one) for one in sorted(ids)]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def contradiction(state: State, copy: Copy) -> str | None:
    """Why this record of etcd cannot be in force: a store knows of a later one. None where the store agrees."""
    known, epoch = copy.known, state.epoch
    store = f"the store of broker {copy.id}"
    if copy.epoch > epoch:
        return f"etcd has a record of epoch {epoch}, and {store} has epoch {copy.epoch}"
    began = copy.begin_of(epoch)
    if began is not None and began.leader > 0 and began.leader != state.master:
        return f"etcd says that broker {state.master} got epoch {epoch}, and {store} has it of broker {began.leader}"
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


def decide(copies: Mapping[int, Copy], named: frozenset[int] = frozenset()) -> LeaderChoice:
    """Choose among the copies that are there.

    Args: copies: broker id -> copy; named: the brokers of the name by the settings, none where they say nothing.
    """
    present = frozenset(copies)
    members = named | frozenset().union(*(one.members for one in copies.values()))
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
    records = [one.known for one in copies.values() if one.known is not None]
    record = max(records, key=lambda one: (one.epoch, one.revision), default=None)
    if record is not None and record.epoch >= newest.epoch:
        in_sync = [one for one in copies.values() if one.id in record.in_sync]
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


def _place(one: Copy) -> tuple[int, int, int]:
    return one.epoch, one.end, -one.id


def _conflict(copies: Mapping[int, Copy]) -> str | None:
    """Two stores of which neither follows from the other: they have no term in common, or began one epoch apart."""
    for one, other in combinations(sorted(copies.values(), key=lambda copy: copy.id), 2):
        both = f"the stores of broker {one.id} and broker {other.id} are of two histories"
        if one.epoch == other.epoch and (text := _began_apart(one, other)) is not None:
            return f"{both}: {text}"
        have_ids = all(any(term.history for term in copy.terms) for copy in (one, other))
        if have_ids and common_end(one.terms, one.end, other.terms, other.end) is None:
            return f"{both}: they have no term in common"
    return None


def _began_apart(one: Copy, other: Copy) -> str | None:
    mine, theirs = one.begin_of(one.epoch), other.begin_of(one.epoch)
    if mine is None or theirs is None:
        return None
    if mine.start != theirs.start or (mine.history and theirs.history and mine.history != theirs.history):
        return (
            f"epoch {one.epoch} began at {mine.start} under broker {mine.leader}, and at {theirs.start} under broker "
            f"{theirs.leader}"
        )
    return None
