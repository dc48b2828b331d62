"""The terms of a log: every start of a master that may append begins a term, within an epoch, with a random id.

RocketMQ's file of epochs has only numbers and offsets. Two masters may use the same number, and a master may lose the
end of its log in a power cut and write other messages there. A term names its leader and has a random, unique id. So
two logs with a common term are equal up to the smaller end of the newest common term. Terms with an unknown id are
never equal.

No I/O. Source: KIP-101, KIP-279, EpochFileCache.findConsistentPoint.
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

    Attributes: epoch; start: the physical offset at which the term begins; leader: broker id of the master, UNKNOWN for
        a broker of RocketMQ; history: random id, empty if unknown.
    """

    epoch: int
    start: int
    leader: int = UNKNOWN
    history: str = ""


def new_id() -> str:
    """Return a random id."""
    return secrets.token_hex(8)


def first_wrong_term(terms: Iterable[Term]) -> Term | None:
    """Return the first term that does not begin behind the previous term or has a smaller epoch; else None."""
    before = Term(0, -1)
    for term in terms:
        if not before.epoch <= term.epoch <= _EPOCH_MAX or not before.start < term.start <= _OFFSET_MAX:
            return term
        before = term
    return None


def common_end(mine: Sequence[Term], my_end: int, theirs: Sequence[Term], their_end: int) -> int | None:
    """Return the physical offset up to which two logs have a common history.

    That is the smaller end of the newest common term.

    Args: my_end, their_end: of the logs. Returns: None without a common term, or if the bytes after that term are of an
        unknown master in one log; the records must be compared then.
    """
    indexes = {term: index for index, term in enumerate(theirs) if term.history}
    for index, term in reversed(list(enumerate(mine))):
        other = indexes.get(term)
        if other is None:
            continue
        ends = (_term_end(mine, index, my_end), _term_end(theirs, other, their_end))
        common = min(end for end, _ in ends)
        return common if all(is_known for end, is_known in ends if end == common) else None
    return None


def _term_end(terms: Sequence[Term], index: int, end: int) -> tuple[int, bool]:
    """Return the end of a term, and whether the master of the following bytes is known."""
    if index + 1 < len(terms) and terms[index + 1].start < end:
        return terms[index + 1].start, bool(terms[index + 1].history)
    return end, True


def terms_of(rows: Any) -> tuple[Term, ...]:
    """Return the terms in decoded JSON. Raises: ValueError."""
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
    """Return the content of the file. Args: newest: the highest epoch that this store has ever known."""
    rows = [list(term) for term in terms]
    crc = zlib.crc32(json.dumps([newest, rows]).encode())
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f'{{"crc": {crc}, "newestEpoch": {newest}, "terms": [\n{lines}\n]}}\n'.encode()


def parse_terms(data: bytes, path: str) -> tuple[tuple[Term, ...], int]:
    """Return the terms of a file, and the highest epoch that the store has known. Raises: CorruptFile."""
    expected = "an object with crc, newestEpoch and terms"
    try:
        document = json.loads(data)
        crc, newest, rows = document["crc"], document["newestEpoch"], document["terms"]
        terms = terms_of(rows)
        if type(newest) is not int:
            raise ValueError(f"expected a number, found {newest!r}")
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptFile("terms are damaged", path=path, expected=expected, found=str(error)) from None
    if crc != zlib.crc32(json.dumps([newest, rows]).encode()):
        raise CorruptFile("terms are damaged", path=path, expected=f"CRC {crc}", found="other bytes")
    return terms, newest
