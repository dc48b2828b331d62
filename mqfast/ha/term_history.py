"""The terms of a log: every start of a master that may append begins one, within an epoch, with a random id.

RocketMQ's file of epochs has numbers and offsets alone. Two masters may give the same number, and one master may lose
the end of its log in a power cut and write other messages there. A term names its leader and has an id that nobody else
draws, so two logs that have a term in common are equal up to the smaller end of the newest such term.

Room: ha. It must never call two terms equal where an id is unknown, and never do I/O. Source: KIP-101, KIP-279,
EpochFileCache.findConsistentPoint.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from mqfast.errors import CorruptFile

__all__ = ["NO_EPOCH", "UNKNOWN", "Term", "common_end", "first_wrong_term", "new_id", "parse_terms", "terms_text"]

NO_EPOCH: Final = -1
"""The epoch of a log that no master has begun with an epoch of its own."""
UNKNOWN: Final = -1
"""The leader of a term that a broker of RocketMQ wrote."""
_EPOCH_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1
_ID_CHARS_MAX: Final = 64


class Term(NamedTuple):
    """One start of a master.

    Attributes: epoch; start: the physical offset from which on the log is of this term; leader: broker id of the
        master, UNKNOWN for a broker of RocketMQ; history: random id, empty where nobody knows.
    """

    epoch: int
    start: int
    leader: int = UNKNOWN
    history: str = ""


def new_id() -> str:
    """An id that nobody else draws."""
    return secrets.token_hex(8)


def first_wrong_term(terms: Iterable[Term]) -> Term | None:
    """The first term that does not begin behind the one before, or whose epoch is smaller; None where all are right."""
    before = Term(0, -1)
    for term in terms:
        if not before.epoch <= term.epoch <= _EPOCH_MAX or not before.start < term.start <= _OFFSET_MAX:
            return term
        before = term
    return None


def common_end(mine: Sequence[Term], my_end: int, theirs: Sequence[Term], their_end: int) -> int | None:
    """Up to which physical offset two logs are of one history: the smaller end of the newest term that both have.

    Args: my_end, their_end: of the logs. Returns: None where no term is common, or nobody knows whether what follows
        that term in one log is what follows in the other; the records must be compared then.
    """
    places = {term: place for place, term in enumerate(theirs) if term.history}
    for place, term in reversed(list(enumerate(mine))):
        other = places.get(term)
        if other is None:
            continue
        ends = (_end(mine, place, my_end), _end(theirs, other, their_end))
        common = min(end for end, _ in ends)
        return common if all(is_known for end, is_known in ends if end == common) else None
    return None


def _end(terms: Sequence[Term], place: int, end: int) -> tuple[int, bool]:
    """Where a term ends, and whether it is known who wrote what follows."""
    if place + 1 < len(terms) and terms[place + 1].start < end:
        return terms[place + 1].start, bool(terms[place + 1].history)
    return end, True


def terms_of(rows: Any) -> tuple[Term, ...]:
    """The terms in decoded JSON. Raises: ValueError."""
    if not isinstance(rows, list):
        raise ValueError("expected a list of terms")
    terms = []
    for row in rows:
        epoch, start, leader, history = row
        if type(epoch) is not int or type(start) is not int or type(leader) is not int or type(history) is not str:
            raise ValueError(f"expected epoch, offset, broker id and history id, found {row!r}")
        terms.append(Term(epoch, start, leader, history[:_ID_CHARS_MAX]))
    if (wrong := first_wrong_term(terms)) is not None:
        raise ValueError(f"expected terms that grow, found {wrong}")
    return tuple(terms)


def terms_text(terms: Iterable[Term], newest: int) -> bytes:
    """The content of the file. Args: newest: the highest epoch that this store has ever known."""
    rows = [list(term) for term in terms]
    crc = zlib.crc32(json.dumps([newest, rows]).encode())
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f'{{"crc": {crc}, "newestEpoch": {newest}, "terms": [\n{lines}\n]}}\n'.encode()


def parse_terms(data: bytes, path: str) -> tuple[tuple[Term, ...], int]:
    """The terms of a file, and the highest epoch that the store has known. Raises: CorruptFile."""
    expected = "an object with crc, newestEpoch and terms"
    try:
        found = json.loads(data)
        crc, newest, rows = found["crc"], found["newestEpoch"], found["terms"]
        terms = terms_of(rows)
        if type(newest) is not int:
            raise ValueError(f"expected a number, found {newest!r}")
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptFile("terms are damaged", path=path, expected=expected, found=str(error)) from None
    if crc != zlib.crc32(json.dumps([newest, rows]).encode()):
        raise CorruptFile("terms are damaged", path=path, expected=f"CRC {crc}", found="other bytes")
    return terms, newest
