"""The epochs of a log: which master wrote which part of it, in RocketMQ's file ``epochFileCheckpoint``.

An epoch is the time of one master. Its entry says at which physical offset that master began to write. Both numbers
grow from entry to entry. Text: number of entries; CRC-32 of their lines, 31 bits; one line ``<epoch>-<start>`` each.
Beside that file stands ``epochHistory``, which RocketMQ ignores: the terms of each epoch (``terms.py``).

Room: ha. It must never forget an epoch by itself, never give a number twice, and never let a byte of a term be appended
before the term is on the disk. Source: EpochFileCache, CheckpointFile.
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
    from mqfast.store.base.paths import Door

__all__ = ["EpochEntry", "EpochFile", "epochs_text", "first_wrong", "parse_epochs"]

_log = logging.getLogger("mqfast.ha")
_NAME: Final = "epochFileCheckpoint"
_TERMS: Final = "epochHistory"
_EPOCH_MAX: Final = 2**31 - 1


class EpochEntry(NamedTuple):
    """One epoch, and the physical offset from which on the log is of its master."""

    epoch: int
    start: int


def epochs_text(entries: Iterable[EpochEntry]) -> bytes:
    """The content of the file."""
    lines = [f"{epoch}-{start}\n" for epoch, start in entries]
    content = "".join(lines).encode()
    return f"{len(lines)}\n{zlib.crc32(content) & 0x7FFFFFFF}\n".encode() + content


def parse_epochs(data: bytes, path: str) -> list[EpochEntry]:
    """The entries of a file. Raises: CorruptFile."""
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
    found = zlib.crc32(content) & 0x7FFFFFFF
    if len(entries) != expected:
        raise CorruptFile("epochs are damaged", path=path, expected=f"{expected} entries", found=f"{len(entries)}")
    if crc not in (0, found):
        raise CorruptFile("epochs are damaged", path=path, expected=f"CRC {crc}", found=f"{found}")
    if (wrong := first_wrong(entries)) is not None:
        raise CorruptFile("epochs are damaged", path=path, expected="numbers that grow", found=f"{wrong}")
    return entries


def first_wrong(entries: Iterable[EpochEntry]) -> EpochEntry | None:
    """The first entry that is not above the one before it, or has a number below 0; None where all are right."""
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

    def __init__(self, os_api: Door, root: str, terms: Sequence[Term] = (), newest: int = NO_EPOCH) -> None:
        self.path: Final = os.path.join(root, _NAME)
        self.terms: tuple[Term, ...] = tuple(terms)
        self.newest = max([newest, *(term.epoch for term in self.terms)])
        self.damage: CorruptFile | None = None
        self._terms_path: Final = os.path.join(root, _TERMS)
        self.os_api: Final = os_api
        self.root: Final = root
        self._lock: Final = threading.RLock()

    @classmethod
    def load(cls, os_api: Door, root: str) -> EpochFile:
        """The epochs of a store; none where there is no file. A damaged file of terms leaves the epochs without ids.

        Raises: CorruptFile where the file of epochs and its ``.bak`` are damaged, StorageError.
        """
        path = os.path.join(root, _NAME)
        failure: CorruptFile | None = None
        entries: list[EpochEntry] = []
        for one in (path, path + ".bak"):
            try:
                entries = parse_epochs(os_api.read_file(one), one)
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
        found = cls(os_api, root, _joined(entries, terms), newest)
        found.damage = failure
        return found

    @property
    def entries(self) -> list[EpochEntry]:
        """The epochs as RocketMQ knows them, oldest first."""
        return _entries(self.terms)

    @property
    def last_epoch(self) -> int:
        """The newest epoch, NO_EPOCH without one."""
        terms = self.terms
        return terms[-1].epoch if terms else NO_EPOCH

    @property
    def leaders(self) -> frozenset[int]:
        """The broker ids of all masters that wrote this log, as far as they are known."""
        return frozenset(term.leader for term in self.terms if term.leader != UNKNOWN)

    def begin(self, epoch: int, start: int, leader: int = UNKNOWN, *, low: int = 0) -> Term:
        """A master begins to write at ``start``. A term that began there before wrote nothing, and goes.

        Args: leader: broker id of that master; low: where the log begins; terms that end below are forgotten.
        Raises: UsageError for an epoch that is not above the last one, StorageError.
        """
        with self._lock:
            if not self.last_epoch < epoch <= _EPOCH_MAX:
                raise UsageError(f"epoch: expected more than {self.last_epoch}, at most {_EPOCH_MAX}, found {epoch}")
            return self._begin(Term(epoch, start, leader, new_id()), low)

    def begin_term(self, start: int, leader: int = UNKNOWN, *, low: int = 0) -> Term:
        """The master of the newest epoch starts once more, or the first one of a store, which has epoch 0.

        Raises: StorageError.
        """
        with self._lock:
            return self._begin(Term(max(self.newest, 0), start, leader, new_id()), low)

    def begin_unknown(self, start: int) -> None:
        """What follows is of a master that tells no epochs. Raises: StorageError."""
        with self._lock:
            if self.terms and self.terms[-1].history:
                self._begin(Term(self.last_epoch, start), 0)

    def follow(self, theirs: Iterable[Term | EpochEntry], end: int) -> bool:
        """Take the terms of the master that this log follows, as far as the log goes (``end``).

        Returns: is the newest term of the master among them? Raises: StorageError.
        """
        with self._lock:
            known = tuple(Term(*one) for one in theirs)
            mine = tuple(term for term in known if term.start <= end)
            if mine != self.terms:
                self._write(mine)
            return mine == known

    def cut(self, offset: int) -> None:
        """The log was cut: what began there or later goes. Raises: StorageError."""
        self._keep(lambda term: term.start < offset)

    def end_at(self, end: int) -> None:
        """The log was opened, and ends there: a power cut took what began behind. Raises: StorageError."""
        self._keep(lambda term: term.start <= end)

    def _keep(self, is_kept: Callable[[Term], bool]) -> None:
        with self._lock:
            left = tuple(term for term in self.terms if is_kept(term))
            if left != self.terms:
                self._write(left)

    def _begin(self, term: Term, low: int) -> Term:
        before = [one for one in self.terms if one.start < term.start]
        while len(before) > 1 and before[1].start < low:  # a slave may end where this log begins
            del before[0]
        self._write((*before, term))
        return term

    def _write(self, terms: tuple[Term, ...]) -> None:
        """Epochs first: a crash in between leaves an epoch without an id, in which nothing was appended."""
        os_api, before, entries = self.os_api, self.entries, _entries(terms)
        if not entries:  # RocketMQ writes no empty list
            for one in (self.path + ".bak", self.path):
                os_api.unlink(one, missing_ok=True)
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
    """The terms of the epochs that the file of epochs has; an epoch without terms has one without an id."""
    joined: list[Term] = []
    for place, (epoch, start) in enumerate(entries):
        end = entries[place + 1].start if place + 1 < len(entries) else None
        found = [one for one in terms if one.epoch == epoch and start <= one.start and (end is None or one.start < end)]
        if not found or found[0].start != start:
            found.insert(0, Term(epoch, start))
        joined += found
    return joined
