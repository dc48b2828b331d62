"""The commit protocol of the sink: what tasks staged becomes messages of a store exactly once, whatever crashes when.

A transaction is a directory below the staging directory; ``batch`` counts inside it (always 0 for a batch write):

    <batch>-<partition>-<attempt>-<random>.records    what one task attempt wrote: encoded records, one behind the other
    <batch>.intent    JSON: which of these files are appended, in which order, and where in the log that began
    <batch>.done      JSON: they are in the log, durably

Each record carries the property SPK = transaction:batch:partition:row, so that whoever resumes an append that was cut
off finds the last record that is there and goes on behind it. The store's own lock, held from before the intent is
looked at until after the marker is written, keeps two drivers apart. A file is named by an intent only when it is
durable, an intent is written only when the log is durable up to its start, a marker only when the records are.

It must never truncate a log, never wait for ever for a store, and knows nothing of Spark or Arrow.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from mqfast.errors import ConfigError, CorruptFile, StoreLocked, UsageError
from mqfast.store._os import OsDoor
from mqfast.store._staged import append_records, count_records
from mqfast.store.lock import StoreLock
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.reader import StoreReader

__all__ = ["STAMP", "Committed", "StagedFile", "StagingWriter", "Transaction", "check_target", "clean_staging"]

STAMP: Final = "SPK"
_VERSION: Final = 1
_BLOCK_BYTES: Final = 4 << 20
_BLANK_BYTES: Final = 8
_MARKERS_KEPT: Final = 100
_CLEAN_EVERY_S: Final = 3600.0
_MARK: Final = re.compile(rf"(?:^|\x02){STAMP}\x01([^\x01\x02]+)\x02?$")
_OF_BATCH: Final = re.compile(r"(\d+)(?:\.intent|-.*\.records)$")
_BESIDE: Final = frozenset(("lock", "spark-staging", "spark-leases", "checkpoint"))
_NOT_AS_LEFT: Final = "a staged file is not as its task left it"
_LIVE: Final = (
    "{path} is open in another process: a store has one writer. Writing into a live broker's store goes through the "
    "broker, in a later release; until then stop its owner or write to a store of your own"
)

Step = Callable[[str], None]


@dataclass(frozen=True)
class StagedFile:
    """What one task attempt has staged; ``name`` is relative to the transaction's directory."""

    name: str
    partition: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Committed:
    """How a commit ended: ``appended`` rows by this call, ``resumed`` when an earlier one was cut off, ``repeated``
    when there was nothing left to do.
    """

    rows: int
    appended: int
    resumed: bool
    repeated: bool


# --- files -----------------------------------------------------------------------------------------------------------


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_directory(path: str) -> None:
    """Durable on return, with those above it that were missing."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_directory(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    _sync_directory(parent)


def _write_json(path: str, value: dict[str, Any]) -> None:
    """All of it or nothing, durable on return."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with open(temporary, "x", encoding="utf-8") as file:
        json.dump(value, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    _sync_directory(os.path.dirname(path))


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile("a note of the sink is damaged", path=path, expected="JSON", found=str(error)) from None
    if not isinstance(value, dict) or value.get("version") != _VERSION:
        raise CorruptFile("a note of the sink is damaged", path=path, expected=f"version {_VERSION}", found=value)
    return value


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


class StagingWriter:
    """The file of one task attempt; ``close`` makes it durable. A context manager: an error removes the file.

    Thread: one.
    """

    def __init__(self, directory: str, batch: int, partition: int, attempt: int) -> None:
        _make_directory(directory)
        self._directory = directory
        self._name = f"{batch}-{partition}-{attempt}-{uuid.uuid4().hex[:12]}.records"
        self._partition = partition
        self._bytes = 0
        self._fd = -1

    def write(self, records: bytes | memoryview) -> None:
        """Stage whole records."""
        if self._fd < 0:
            path = os.path.join(self._directory, self._name)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._bytes += len(records)
        left = memoryview(records)
        while left:
            left = left[os.write(self._fd, left) :]

    def close(self, rows: int) -> StagedFile | None:
        """Durable on return; None when nothing was staged."""
        if self._fd < 0:
            return None
        os.fsync(self._fd)
        self._let_go()
        _sync_directory(self._directory)
        return StagedFile(self._name, self._partition, rows, self._bytes)

    def _let_go(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> StagingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._let_go()
            _unlink(os.path.join(self._directory, self._name))


# --- the store -------------------------------------------------------------------------------------------------------


def check_target(store_path: str) -> None:
    """Is there a store, or room for a new one?

    Raises: ConfigError, where something else is; StoreLocked, when another process has the store open for writing.
    """
    if not os.path.isdir(store_path):
        return
    names = set(os.listdir(store_path))
    if "commitlog" not in names and names - _BESIDE:
        raise ConfigError(f"path {store_path}: expected a store or an empty directory, found {min(names - _BESIDE)!r}")
    if not names:
        return
    try:
        StoreLock.acquire(OsDoor(), os.path.join(store_path, "lock")).release()
    except StoreLocked:
        raise StoreLocked(_LIVE.format(path=store_path)) from None


def _open_waiting(store_path: str, wait_ms: int) -> MessageStore:
    """The store without its services: neither retention nor any other thread runs while the sink has it.

    Another sink, or a driver that was killed and whose worker still appends, may hold it for a moment.
    Raises: StoreLocked.
    """
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        try:
            return open_store(store_path, _start_services=False)
        except StoreLocked:
            if time.monotonic() >= deadline:
                raise StoreLocked(_LIVE.format(path=store_path)) from None
            time.sleep(0.05)


# --- the protocol ----------------------------------------------------------------------------------------------------


class Transaction:
    """One transaction id in one staging directory.

    Args: owner: who writes under the id (a query's id); a second owner is refused, since its batch numbers mean other
    rows. wait_ms: how long a locked store is waited for.
    Thread: one; any number of processes.
    """

    def __init__(self, store_path: str, staging: str, txn_id: str, *, owner: str = "", wait_ms: int = 60_000) -> None:
        self.store_path: Final = store_path
        self.txn_id: Final = txn_id
        self.key: Final = hashlib.sha256(txn_id.encode("utf-8")).hexdigest()[:16]
        self.directory: Final = os.path.join(staging, f"{quote(txn_id, safe='')[:60]}-{self.key}")
        self._staging: Final = staging
        self._owner: Final = owner
        self._wait_ms: Final = wait_ms

    def stamp(self, batch: int, partition: int) -> bytes:
        """What the properties of a task's records end with, up to the row's number."""
        return f"{STAMP}\x01{self.key}:{batch}:{partition}:".encode("ascii")

    def writer(self, batch: int, partition: int, attempt: int) -> StagingWriter:
        """Where one task attempt stages its records."""
        return StagingWriter(self.directory, batch, partition, attempt)

    def is_done(self, batch: int) -> bool:
        """Is the batch, or a later one, in the store? Raises: UsageError when another owner's is."""
        last = self._last_marker()
        if last is None:
            return False
        self._check_owner(_read_json(self._path(last, "done")))
        return last >= batch

    def commit(self, batch: int, files: Iterable[StagedFile], step: Step = lambda name: None) -> Committed:
        """Append what was staged, once. A second call for the same batch finds it done, or finishes it.

        Args: step: called before each step that a crash may hit; for tests.
        Raises: StoreLocked, UsageError, CorruptFile (before anything is appended), DiskFull and StorageError: then
        call it again.
        Durability: when it returns the records survive power loss.
        """
        given = sorted(files, key=lambda file: (file.partition, file.name))
        if not given and not os.path.exists(self._path(batch, "intent")):
            return Committed(0, 0, False, False)
        step("open")
        with _open_waiting(self.store_path, self._wait_ms) as store:
            if self.is_done(batch):
                step("clean")
                self._clean(batch)
                return Committed(sum(file.rows for file in given), 0, False, True)
            intent = self._intent(batch)
            resumed = intent is not None
            if intent is None:
                self._verify(given, store)
                store.flush()
                intent = {"start": store.max_physical_offset, "files": [asdict(file) for file in given]}
                step("intend")
                self._note(batch, "intent", intent)
                step("intended")
                last = None
            else:
                last = self._last_stamp(store, batch, intent)
            named = [StagedFile(**file) for file in intent["files"]]
            appended = self._append(store, named, last, step)
            step("flush")
            store.flush()
            rows = sum(file.rows for file in named)
            step("mark")
            self._note(batch, "done", {"rows": rows, "start": intent["start"], "end": store.max_physical_offset})
            step("marked")
            self._clean(batch)
            step("close")
        return Committed(rows, appended, resumed, False)

    def append_at_least_once(self, batch: int, files: Iterable[StagedFile]) -> Committed:
        """Append without intent, stamp or marker: a repeated call repeats the messages."""
        given = sorted(files, key=lambda file: (file.partition, file.name))
        if given:
            with _open_waiting(self.store_path, self._wait_ms) as store:
                self._verify(given, store)
                self._append(store, given, None, lambda name: None)
                store.flush()
            self._clean(batch)
        rows = sum(file.rows for file in given)
        return Committed(rows, rows, False, False)

    def abort(self, batch: int, files: Iterable[StagedFile]) -> None:
        """Forget what was staged, unless an intent names it: then only a commit can end it."""
        if self._intent(batch) is None:
            for file in files:
                _unlink(os.path.join(self.directory, file.name))

    def forget(self) -> None:
        """Remove every trace of a transaction that nobody can repeat, because nobody knows its id."""
        for name in os.listdir(self.directory):
            _unlink(os.path.join(self.directory, name))
        os.rmdir(self.directory)

    # --- notes ---

    def _path(self, batch: int, kind: str) -> str:
        return os.path.join(self.directory, f"{batch}.{kind}")

    def _note(self, batch: int, kind: str, value: dict[str, Any]) -> None:
        said = {"version": _VERSION, "txnId": self.txn_id, "batch": batch, "owner": self._owner}
        _write_json(self._path(batch, kind), {**said, **value})

    def _intent(self, batch: int) -> dict[str, Any] | None:
        intent = _read_json(self._path(batch, "intent"))
        self._check_owner(intent)
        return intent

    def _check_owner(self, note: dict[str, Any] | None) -> None:
        if note is not None and note["owner"] != self._owner:
            raise UsageError(
                f"txnId {self.txn_id!r}: expected one query under it, found {note['owner']!r} before {self._owner!r}; "
                "its batch numbers mean other rows. Give every query, and every new checkpoint, an id of its own"
            )

    def _batches(self, kind: str) -> list[int]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        found = (name.removesuffix(f".{kind}") for name in names if name.endswith(f".{kind}"))
        return sorted(int(number) for number in found if number.isdigit())

    def _last_marker(self) -> int | None:
        done = self._batches("done")
        return done[-1] if done else None

    def _clean(self, batch: int) -> None:
        """Remove what the marker makes superfluous, of this batch and those before it; then old markers."""
        for name in os.listdir(self.directory):
            found = _OF_BATCH.match(name)
            if found is not None and int(found[1]) <= batch:
                _unlink(os.path.join(self.directory, name))
        for old in self._batches("done")[:-_MARKERS_KEPT]:
            _unlink(self._path(old, "done"))

    # --- records ---

    def _verify(self, files: Sequence[StagedFile], store: MessageStore) -> None:
        """Every file is there, whole, undamaged and fits: what an intent names must not fail later."""
        most = store.log.file_bytes - _BLANK_BYTES
        for file in files:
            rows = 0
            for _, count in self._blocks(file, most):
                rows += count
            if rows != file.rows:
                path = os.path.join(self.directory, file.name)
                raise CorruptFile(_NOT_AS_LEFT, path=path, expected=file.rows, found=rows)

    def _blocks(self, file: StagedFile, max_record_bytes: int = 0x7FFFFFFF) -> Iterable[tuple[memoryview, int]]:
        """Blocks of whole records, checked, with their number; a block is valid until the next one."""
        path = os.path.join(self.directory, file.name)
        if not os.path.exists(path):
            raise UsageError(
                f"staged file {path}: it is not here. The option staging must name a directory that all executors and "
                "the driver share"
            )
        with open(path, "rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            if size != file.bytes:
                raise CorruptFile(
                    "a staged file is not as its task left it", path=path, expected=file.bytes, found=size
                )
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
                    longer = bytearray(2 * len(buffer))  # for one record that is longer than a block
                    longer[: len(buffer)] = buffer
                    buffer = longer
                    kept += got
                    continue
                yield memoryview(buffer)[:used], count
                kept = kept + got - used
                buffer[:kept] = buffer[used : used + kept]
                at += used

    def _append(
        self, store: MessageStore, files: Sequence[StagedFile], last: tuple[int, int] | None, step: Step
    ) -> int:
        """Append all records, or those behind the last one that is there (partition, row)."""
        appended = 0
        for file in files:
            if last is not None and file.partition < last[0]:
                continue
            skip = last[1] + 1 if last is not None and file.partition == last[0] else 0
            for block, count in self._blocks(file):
                if skip >= count:
                    skip -= count
                    continue
                step("append")
                appended += append_records(store, _behind(block, skip))
                skip = 0
                step("appended")
        return appended

    def _last_stamp(self, store: MessageStore, batch: int, intent: dict[str, Any]) -> tuple[int, int] | None:
        """Partition and row of the last record of this batch that is in the log.

        Raises: CorruptFile, when the log is not readable from the intent's start on; UsageError, when retention took
        what would tell.
        """
        start, found = int(intent["start"]), None
        prefix = f"{self.key}:{batch}:"
        end = store.max_physical_offset
        if start > end:
            # The log lost its end although it was durable; what comes now begins earlier than was noted.
            intent["start"] = end
            self._note(batch, "intent", {"start": end, "files": intent["files"]})
            return None
        first = max(start, store.min_physical_offset)
        with StoreReader(self.store_path) as reader:
            scan = reader.scan(first, end, check_crc=False)
            for message in scan:
                mark = _MARK.search(str(message.properties_bytes, "utf-8", "replace"))
                if mark is not None and mark[1].startswith(prefix):
                    partition, row = map(int, mark[1][len(prefix) :].split(":"))
                    if found is not None and (partition, row) <= found:
                        raise CorruptFile(
                            "messages of a batch are not in the order of their append",
                            path=self.store_path,
                            offset=message.physical_offset,
                            expected=f"behind {found}",
                            found=(partition, row),
                        )
                    found = (partition, row)
        if scan.at < end and scan.reason not in (None, "end"):
            raise CorruptFile("the log cannot be read", path=self.store_path, offset=scan.at, found=scan.reason)
        if found is None and first > start:
            raise UsageError(
                f"{self.store_path}: batch {batch} of {self.txn_id!r} was cut off at {start}, and the log begins at "
                f"{first}: nobody can tell how much of it was written"
            )
        return found


def _behind(block: memoryview, skip: int) -> memoryview:
    """The block without its first records."""
    at = 0
    for _ in range(skip):
        at += int.from_bytes(block[at : at + 4], "big")
    return block[at:]


# --- what nobody needs any more --------------------------------------------------------------------------------------


def clean_staging(staging: str, ttl_ms: int, *, now: float | None = None) -> int:
    """Remove staged files that are older than ``ttl_ms`` and that no intent names; at most once an hour.

    Returns: how many. Markers stay: they are what a repeated job is known by.
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
                intent = _read_json(entry.path)
            except CorruptFile:
                return 0  # for its own transaction to say; what it names is not known
            named.update(file["name"] for file in (intent or {}).get("files", ()))
        elif entry.name.endswith((".records", ".tmp")):
            try:
                if entry.stat().st_mtime < before:
                    old.append(entry.name)
            except FileNotFoundError:
                continue
    gone = [name for name in old if name not in named]
    for name in gone:
        _unlink(os.path.join(directory, name))
    try:
        os.rmdir(directory)
    except OSError:
        pass  # notes or newer files are in it
    return len(gone)
