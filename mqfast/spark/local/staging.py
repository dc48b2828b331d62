"""Staged files and notes: written completely, durable before use, and removed at the end.

A transaction is a directory below the staging directory; ``batch`` is a number within the transaction:

    <batch>-<partition>-<attempt>-<random>.records    encoded records of one task attempt, one after the other
    <batch>.intent    JSON: which of these files are appended, in which order, and the start of the append in the log
    <batch>.done      JSON: the files are in the log, durably

A batch write with a name is a single batch: afterwards a line of ``done.txt`` in the staging directory replaces the
directory. ``commit.py`` describes the meaning. A file that an intent names is never removed. Uses neither Spark nor
Arrow.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from mqfast.errors import CorruptFile, StorageError, UsageError
from mqfast.store.put.staged import count_records
from mqfast.util.atomic_file import replace_file

__all__ = [
    "Ledger",
    "StagedFile",
    "StagingWriter",
    "clean_staging",
    "drop_empty",
    "make_directory",
    "read_note",
    "record_blocks",
    "unlink",
    "write_note",
]

VERSION: Final = 1
_BLOCK_BYTES: Final = 4 << 20
_CLEAN_EVERY_S: Final = 3600.0
_TRIES: Final = 100
NOT_AS_LEFT: Final = "a staged file is not as its task left it"


@dataclass(frozen=True)
class StagedFile:
    """The staged file of a task attempt; ``name`` is relative to the transaction's directory."""

    name: str
    partition: int
    rows: int
    bytes: int


# --- files -----------------------------------------------------------------------------------------------------------


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """Create a directory and missing parents; durable on return."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directory(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    sync_directory(parent)


def write_note(path: str, value: dict[str, Any]) -> None:
    """Write JSON atomically; durable on return."""
    replace_file(path, json.dumps(value, sort_keys=True).encode(), mode=None, make_parents=False)


def read_note(path: str) -> dict[str, Any] | None:
    """Return the JSON of a note, or None. Raises: CorruptFile."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile("a note of the sink is damaged", path=path, expected="JSON", found=str(error)) from None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise CorruptFile("a note of the sink is damaged", path=path, expected=f"version {VERSION}", found=value)
    return value


def unlink(path: str) -> None:
    """Remove a file if present."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


class StagingWriter:
    """The file of a task attempt; ``close`` makes the file durable, unless the rows can be staged again
    (``durable=False``). A context manager: an error removes the file.

    Thread: one.
    """

    def __init__(self, directory: str, batch: int, partition: int, attempt: int, *, durable: bool = True) -> None:
        make_directory(directory)
        self._durable = durable
        self._directory = directory
        self._name = f"{batch}-{partition}-{attempt}-{uuid.uuid4().hex[:12]}.records"
        self._partition = partition
        self._bytes = 0
        self._fd = -1

    def write(self, records: bytes | memoryview) -> None:
        """Stage whole records."""
        if self._fd < 0:
            self._fd = self._create(os.path.join(self._directory, self._name))
        self._bytes += len(records)
        rest = memoryview(records)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _create(self, path: str) -> int:
        for _ in range(_TRIES):
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # another driver removed the empty directory
                make_directory(self._directory)
        raise StorageError(errno.ENOENT, "the directory of staged files goes as soon as it is made", self._directory)

    def close(self, rows: int) -> StagedFile | None:
        """Finish the file, see the class; return None without records."""
        if self._fd < 0:
            return None
        if self._durable:
            os.fsync(self._fd)
        self._release()
        if self._durable:
            sync_directory(self._directory)
        return StagedFile(self._name, self._partition, rows, self._bytes)

    def _release(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> StagingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._release()
            unlink(os.path.join(self._directory, self._name))


def record_blocks(
    directory: str, file: StagedFile, max_record_bytes: int = 0x7FFFFFFF
) -> Iterator[tuple[memoryview, int]]:
    """Yield blocks of whole, checked records with the number of records; a block is valid until the next."""
    path = os.path.join(directory, file.name)
    if not os.path.exists(path):
        raise UsageError(
            f"staged file {path}: it is not here. The option staging must name a directory that all executors and "
            "the driver share"
        )
    with open(path, "rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        if size != file.bytes:
            raise CorruptFile("a staged file is not as its task left it", path=path, expected=file.bytes, found=size)
        buffer = bytearray(min(_BLOCK_BYTES, file.bytes))
        at = kept = 0
        while at < file.bytes:
            got = source.readinto(memoryview(buffer)[kept:]) or 0
            try:
                count, used = count_records(memoryview(buffer)[: kept + got], max_record_bytes)
            except CorruptFile as error:
                where = at + (error.offset or 0)
                raise CorruptFile("a staged file is damaged", path=path, offset=where) from None
            if used == 0:
                if got == 0:
                    raise CorruptFile("a staged file ends inside a record", path=path, offset=at)
                longer = bytearray(2 * len(buffer))  # for a record longer than a block
                longer[: len(buffer)] = buffer
                buffer = longer
                kept += got
                continue
            yield memoryview(buffer)[:used], count
            kept = kept + got - used
            buffer[:kept] = buffer[used : used + kept]
            at += used


# --- finished writes -------------------------------------------------------------------------------------------------


class Ledger:
    """The finished named batch writes into a store: a line of fixed length each, durable before the write counts.

    Thread: one; writers hold the lock of the store.
    """

    def __init__(self, staging: str, store_path: str) -> None:
        inside = os.path.dirname(os.path.abspath(staging)) == os.path.abspath(store_path)
        which = "" if inside else "-" + hashlib.sha256(os.path.realpath(store_path).encode()).hexdigest()[:16]
        self.path: Final = os.path.join(staging, f"done{which}.txt")

    def add(self, key: str, owner: str, rows: int) -> None:
        """Add a finished transaction."""
        line = f"{key} {_owner_mark(owner)} {rows:019d}\n".encode("ascii")
        made = not os.path.exists(self.path)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            end = os.fstat(fd).st_size
            os.pwrite(fd, line, end - end % len(line))  # a crash left half a line, which does not count
            os.fsync(fd)
        finally:
            os.close(fd)
        if made:
            sync_directory(os.path.dirname(self.path))

    def find(self, key: str, owner: str) -> tuple[bool, int] | None:
        """Return (whether the owner is the same, rows) of a finished transaction; None for an unknown key."""
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        at = data.find(key.encode("ascii"))
        while at >= 0:
            line = data[at : at + _LINE_BYTES]
            if at % _LINE_BYTES == 0 and line.endswith(b"\n"):
                _, mark, rows = line.decode("ascii").split()
                return mark == _owner_mark(owner), int(rows)
            at = data.find(key.encode("ascii"), at + 1)
        return None


_LINE_BYTES: Final = 16 + 1 + 8 + 1 + 19 + 1


def _owner_mark(owner: str) -> str:
    return hashlib.sha256(owner.encode("utf-8")).hexdigest()[:8]


# --- clean-up --------------------------------------------------------------------------------------------------------


def clean_staging(staging: str, ttl_ms: int, *, now: float | None = None) -> int:
    """Remove staged files older than ``ttl_ms`` that no intent names, and directories empty for as long; at most
    hourly.

    Returns: number of files. Markers stay: they identify a repeated job.
    """
    seen = os.path.join(staging, ".cleaned")
    moment = time.time() if now is None else now
    try:
        if moment - os.stat(seen).st_mtime < _CLEAN_EVERY_S:
            return 0
    except FileNotFoundError:
        if not os.path.isdir(staging):
            return 0
    with open(seen, "wb"):
        os.utime(seen, (moment, moment))
    removed = 0
    for entry in os.scandir(staging):
        if entry.is_dir():
            removed += _clean_transaction(entry.path, moment - ttl_ms / 1000)
    return removed


def _clean_transaction(directory: str, before: float) -> int:
    named: set[str] = set()
    old: list[str] = []
    for entry in list(os.scandir(directory)):
        if entry.name.endswith(".intent"):
            try:
                intent = read_note(entry.path)
            except CorruptFile:
                return 0  # its own transaction reports the damage; the named files are unknown
            named.update(file["name"] for file in (intent or {}).get("files", ()))
        elif entry.name.endswith((".records", ".tmp")):
            try:
                if entry.stat().st_mtime < before:
                    old.append(entry.name)
            except FileNotFoundError:
                continue
    gone = [name for name in old if name not in named]
    for name in gone:
        unlink(os.path.join(directory, name))
    if gone or os.stat(directory).st_mtime < before:  # a task may be about to write into a newer directory
        drop_empty(directory)
    return len(gone)


def drop_empty(directory: str) -> None:
    """Remove a directory if present and empty."""
    with contextlib.suppress(OSError):
        os.rmdir(directory)
