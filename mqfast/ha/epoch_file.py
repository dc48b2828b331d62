"""The epochs of a log: which master wrote which part, in RocketMQ's file ``epochFileCheckpoint``.

An epoch is the term of office of one master. Its entry has the physical offset at which that master began to write.
Both numbers grow from entry to entry. Text: number of entries; CRC-32 of their lines, 31 bits; one line
``<epoch>-<start>`` each. The file ``epochHistory`` beside it, which RocketMQ ignores, has the terms of each epoch
(``term_history.py``).

Invariants: no epoch is dropped except by a truncation of the log, no number is assigned twice, and a term is on the
disk before its first byte is appended. Source: EpochFileCache, CheckpointFile.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile, StoreNotFound, UsageError
from mqfast.ha.term_history import NO_EPOCH, UNKNOWN, Term, new_id, parse_terms, terms_text

if TYPE_CHECKING:
    from mqfast.store.base.paths import OsFiles

__all__ = ["EpochEntry", "EpochFile", "epochs_text", "first_wrong", "parse_epochs"]

_log = logging.getLogger("mqfast.ha")
_NAME: Final = "epochFileCheckpoint"
_TERMS: Final = "epochHistory"
_EPOCH_MAX: Final = 2**31 - 1


class EpochEntry(NamedTuple):
    """One epoch, and the physical offset at which its master began to write."""

    epoch: int
    start: int


def epochs_text(entries: Iterable[EpochEntry]) -> bytes:
    """Return the content of the file."""
    lines = [f"{epoch}-{start}\n" for epoch, start in entries]
    content = "".join(lines).encode()
    return f"{len(lines)}\n{zlib.crc32(content) & 0x7FFFFFFF}\n".encode() + content


def parse_epochs(data: bytes, path: str) -> list[EpochEntry]:
    """Return the entries of a file. Raises: CorruptFile."""
    lines = data.decode("latin-1").splitlines()
    entries = []
    try:
        expected, crc = int(lines[0]), int(lines[1])
        for line in lines[2:]:
            epoch, start = line.split("-")
            entries.append(EpochEntry(int(epoch), int(start)))
    except (ValueError, IndexError):
        raise CorruptFile("epochs are damaged", path=path, expected="lines of numbers", found=repr(data[:60])) from None
    content = "".join(f"{line}\n" for line in lines[2:]).encode("latin-1")
    computed = zlib.crc32(content) & 0x7FFFFFFF
    if len(entries) != expected:
        raise CorruptFile("epochs are damaged", path=path, expected=f"{expected} entries", found=f"{len(entries)}")
    if crc not in (0, computed):
        raise CorruptFile("epochs are damaged", path=path, expected=f"CRC {crc}", found=f"{computed}")
    if (wrong := first_wrong(entries)) is not None:
        raise CorruptFile("epochs are damaged", path=path, expected="numbers that grow", found=f"{wrong}")
    return entries


def first_wrong(entries: Iterable[EpochEntry]) -> EpochEntry | None:
    """Return the first entry that is not above the previous entry or has a negative number; None if all are valid."""
    before = EpochEntry(NO_EPOCH, -1)
    for entry in entries:
        if entry.epoch <= before.epoch or entry.start <= before.start:
            return entry
        before = entry
    return None


class EpochFile:
    """The epochs of one store, with their terms.

    Args: root: of the store; newest: the highest epoch that the store has known.
    Attributes: ``root``; ``terms``: oldest first; ``newest``; ``damage``: the file of epochs was damaged, so the newest
        epoch may be missing.
    Thread: any. Durability: every change is on the disk when the call returns.
    """

    def __init__(self, os_api: OsFiles, root: str, terms: Sequence[Term] = (), newest: int = NO_EPOCH) -> None:
        self.path: Final = os.path.join(root, _NAME)
        self.terms: tuple[Term, ...] = tuple(terms)
        self.newest = max([newest, *(term.epoch for term in self.terms)])
        self.damage: CorruptFile | None = None
        self._terms_path: Final = os.path.join(root, _TERMS)
        self.os_api: Final = os_api
        self.root: Final = root
        self._lock: Final = threading.RLock()

    @classmethod
    def load(cls, os_api: OsFiles, root: str) -> EpochFile:
        """Return the epochs of a store; none without a file. A damaged file of terms leaves the epochs without ids.

        Raises: CorruptFile if the file of epochs and its ``.bak`` are damaged, StorageError.
        """
        path = os.path.join(root, _NAME)
        failure: CorruptFile | None = None
        entries: list[EpochEntry] = []
        for candidate in (path, path + ".bak"):
            try:
                entries = parse_epochs(os_api.read_file(candidate), candidate)
            except StoreNotFound:
                continue
            except CorruptFile as error:
                failure = failure or error
                continue
            if entries:
                break
        if failure is not None and not entries:
            raise failure
        terms_path = os.path.join(root, _TERMS)
        terms: tuple[Term, ...] = ()
        newest = NO_EPOCH
        try:
            terms, newest = parse_terms(os_api.read_file(terms_path), terms_path)
        except StoreNotFound:
            pass
        except CorruptFile as error:
            _log.warning("%s: epochs are without ids, so whole records are compared", error)
        loaded = cls(os_api, root, _joined(entries, terms), newest)
        loaded.damage = failure
        return loaded

    @property
    def entries(self) -> list[EpochEntry]:
        """Return the epochs in RocketMQ's form, oldest first."""
        return _entries(self.terms)

    @property
    def last_epoch(self) -> int:
        """Return the newest epoch, NO_EPOCH without an epoch."""
        terms = self.terms
        return terms[-1].epoch if terms else NO_EPOCH

    @property
    def leaders(self) -> frozenset[int]:
        """Return the known broker ids of all masters that wrote this log."""
        return frozenset(term.leader for term in self.terms if term.leader != UNKNOWN)

    def begin(self, epoch: int, start: int, leader: int = UNKNOWN, *, low: int = 0) -> Term:
        """Begin the epoch of a master that writes from ``start`` on; replaces an empty term that began there.

        Args: leader: broker id of that master; low: where the log begins; terms that end below are removed.
        Raises: UsageError for an epoch that is not above the last epoch, StorageError.
        """
        with self._lock:
            if not self.last_epoch < epoch <= _EPOCH_MAX:
                raise UsageError(f"epoch: expected more than {self.last_epoch}, at most {_EPOCH_MAX}, found {epoch}")
            return self._begin(Term(epoch, start, leader, new_id()), low)

    def begin_term(self, start: int, leader: int = UNKNOWN, *, low: int = 0) -> Term:
        """Begin another term of the newest epoch, for a restart of its master; an empty store gets epoch 0.

        Raises: StorageError.
        """
        with self._lock:
            return self._begin(Term(max(self.newest, 0), start, leader, new_id()), low)

    def begin_unknown(self, start: int) -> None:
        """Begin a term without an id, for a master that sends no epochs. Raises: StorageError."""
        with self._lock:
            if self.terms and self.terms[-1].history:
                self._begin(Term(self.last_epoch, start), 0)

    def follow(self, theirs: Iterable[Term | EpochEntry], end: int) -> bool:
        """Replace the terms by those of the followed master, up to the end of this log (``end``).

        Returns: True if the newest term of the master is included. Raises: StorageError.
        """
        with self._lock:
            known = tuple(Term(*term) for term in theirs)
            mine = tuple(term for term in known if term.start <= end)
            if mine != self.terms:
                self._write(mine)
            return mine == known

    def cut(self, offset: int) -> None:
        """Remove the terms that begin at ``offset`` or later, after a truncation of the log. Raises: StorageError."""
        self._keep(lambda term: term.start < offset)

    def end_at(self, end: int) -> None:
        """Remove the terms that begin behind ``end``, after a power cut shortened the log. Raises: StorageError."""
        self._keep(lambda term: term.start <= end)

    def _keep(self, is_kept: Callable[[Term], bool]) -> None:
        with self._lock:
            kept = tuple(term for term in self.terms if is_kept(term))
            if kept != self.terms:
                self._write(kept)

    def _begin(self, term: Term, low: int) -> Term:
        before = [earlier for earlier in self.terms if earlier.start < term.start]
        while len(before) > 1 and before[1].start < low:  # a slave may end where this log begins
            del before[0]
        self._write((*before, term))
        return term

    def _write(self, terms: tuple[Term, ...]) -> None:
        """Write the epochs first: a crash in between leaves an epoch without an id, in which nothing was appended."""
        os_api, before, entries = self.os_api, self.entries, _entries(terms)
        if not entries:  # RocketMQ writes no empty list
            for path in (self.path + ".bak", self.path):
                os_api.unlink(path, missing_ok=True)
        elif entries != before:
            if before:
                os_api.replace_file(self.path + ".bak", epochs_text(before))
            os_api.replace_file(self.path, epochs_text(entries))
        newest = max([self.newest, *(term.epoch for term in terms)])
        os_api.replace_file(self._terms_path, terms_text(terms, newest))
        self.terms, self.newest = terms, newest


def _entries(terms: Iterable[Term]) -> list[EpochEntry]:
    entries: list[EpochEntry] = []
    for term in terms:
        if not entries or entries[-1].epoch < term.epoch:
            entries.append(EpochEntry(term.epoch, term.start))
    return entries


def _joined(entries: Sequence[EpochEntry], terms: Sequence[Term]) -> list[Term]:
    """Return the terms of the epochs in the file of epochs; an epoch without terms gets a term without an id."""
    joined: list[Term] = []
    for index, (epoch, start) in enumerate(entries):
        end = entries[index + 1].start if index + 1 < len(entries) else None
        matching = [
            term for term in terms if term.epoch == epoch and start <= term.start and (end is None or term.start < end)
        ]
        if not matching or matching[0].start != start:
            matching.insert(0, Term(epoch, start))
        joined += matching
    return joined
