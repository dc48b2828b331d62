"""The epochs of a log: which master wrote which part of it, in RocketMQ's file ``epochFileCheckpoint``.

An epoch is the time of one master. Its entry says at which physical offset that master began to write. Both numbers
grow from entry to entry. Text: number of entries; CRC-32 of their lines, 31 bits; one line ``<epoch>-<start>`` each.

Room: ha. It must never forget an epoch by itself, and never give a number twice.
Source: EpochFileCache, CheckpointFile.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile, StoreNotFound, UsageError

if TYPE_CHECKING:
    from mqfast.store.base.paths import Door

__all__ = ["NO_EPOCH", "EpochEntry", "EpochFile", "epochs_text", "first_wrong", "parse_epochs"]

NO_EPOCH: Final = -1
"""The epoch of a log that no master has begun with an epoch of its own."""
_NAME: Final = "epochFileCheckpoint"
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
    """The epochs of one store.

    Args: root: of the store.
    Attributes: ``entries``: oldest first; ``damage``: the file was damaged, so the newest epoch may be missing.
    Thread: one at a time. Durability: every change is on the disk when the call returns.
    """

    def __init__(self, door: Door, root: str, entries: Sequence[EpochEntry] = ()) -> None:
        self.path: Final = os.path.join(root, _NAME)
        self.entries: list[EpochEntry] = list(entries)
        self.damage: CorruptFile | None = None
        self._door: Final = door

    @classmethod
    def load(cls, door: Door, root: str) -> EpochFile:
        """The epochs of a store; none where there is no file. Raises: CorruptFile where the file and its ``.bak`` are
        damaged, StorageError.
        """
        path = os.path.join(root, _NAME)
        failure: CorruptFile | None = None
        for one in (path, path + ".bak"):
            try:
                entries = parse_epochs(door.read_file(one), one)
            except StoreNotFound:
                continue
            except CorruptFile as error:
                failure = failure or error
                continue
            if entries:
                found = cls(door, root, entries)
                found.damage = failure
                return found
        if failure is not None:
            raise failure
        return cls(door, root)

    @property
    def last_epoch(self) -> int:
        """The newest epoch, NO_EPOCH without one."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def begin(self, epoch: int, start: int) -> None:
        """A master begins to write at ``start``. An epoch that began there before wrote nothing; its entry goes.

        Raises: UsageError for an epoch that is not above the last one, StorageError.
        """
        if not self.last_epoch < epoch <= _EPOCH_MAX:
            raise UsageError(f"epoch: expected more than {self.last_epoch}, at most {_EPOCH_MAX}, found {epoch}")
        self._write([*(entry for entry in self.entries if entry.start < start), EpochEntry(epoch, start)])

    def follow(self, entries: Iterable[EpochEntry], end: int) -> bool:
        """Take the epochs of the master that this log follows, as far as the log goes (``end``).

        Returns: is the newest epoch of the master among them? Raises: StorageError.
        """
        theirs = list(entries)
        mine = [entry for entry in theirs if entry.start <= end]
        if mine != self.entries:
            self._write(mine)
        return mine == theirs

    def cut(self, offset: int) -> None:
        """The log was cut: what began there or later goes. Raises: StorageError."""
        left = [entry for entry in self.entries if entry.start < offset]
        if left != self.entries:
            self._write(left)

    def _write(self, entries: list[EpochEntry]) -> None:
        door = self._door
        if not entries:  # RocketMQ writes no empty list
            for one in (self.path + ".bak", self.path):
                door.unlink(one, missing_ok=True)
        else:
            if self.entries:
                door.replace_file(self.path + ".bak", epochs_text(self.entries))
            door.replace_file(self.path, epochs_text(entries))
        self.entries = entries
