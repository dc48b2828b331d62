"""The commit protocol of the sink: staged records become messages of a store exactly once, across crashes.

Files and notes are in ``staging.py``. Each record carries the property SPK = transaction:batch:partition:row, so an
interrupted append is resumed after the last record present. The store's lock, held from reading the intent until the
marker is written, excludes a second driver. An intent names only files that are durable or whose rows can be staged
again. An intent is written after the log is durable up to the start of the append, a marker after the records are
durable. The log is never truncated, and waits for the store are bounded. Uses neither Spark nor Arrow.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Final, NoReturn
from urllib.parse import quote

from mqfast.errors import ConfigError, CorruptFile, StoreLocked, UsageError
from mqfast.properties import STAMP
from mqfast.spark.local.staging import (
    NOT_AS_LEFT,
    VERSION,
    Ledger,
    StagedFile,
    StagingWriter,
    drop_empty,
    read_note,
    record_blocks,
    unlink,
    write_note,
)
from mqfast.store.base.lock import StoreLock
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.put.staged import append_records
from mqfast.store.reader.store_reader import StoreReader

__all__ = ["STAMP", "Committed", "SinkTransaction", "check_target"]

_BLANK_BYTES: Final = 8
_MARKERS_KEPT: Final = 100
_SYNC_BYTES: Final = 16 << 20
_MARK: Final = re.compile(rf"(?:^|\x02){STAMP}\x01([^\x01\x02]+)\x02?$")
_OF_BATCH: Final = re.compile(r"(\d+)(?:\.intent|-.*\.records)$")
# Files that a store without a message may hold.
_BESIDE: Final = frozenset(
    ("lock", "checkpoint", "abort", "abort.bak", "config", "consumequeue", "index", "spark-staging", "spark-leases")
)
_LIVE: Final = (
    "{path} is open in another process: a store has one writer. Write into a running broker by the option namesrv in "
    "place of the path; otherwise stop its owner, or write to a store of your own"
)

Step = Callable[[str], None]


@dataclass(frozen=True)
class Committed:
    """The result of a commit: rows ``appended`` by this call; ``resumed`` after an interrupted commit; ``repeated`` if
    the batch was stored before.
    """

    rows: int
    appended: int
    resumed: bool
    repeated: bool


# --- the store -------------------------------------------------------------------------------------------------------


def check_target(store_path: str) -> None:
    """Check that the directory holds a store, or can hold a new store.

    Raises: ConfigError for any other content; StoreLocked if another process has the store open for writing.
    """
    if not os.path.isdir(store_path):
        return
    names = set(os.listdir(store_path))
    if os.path.isdir(os.path.join(store_path, "checkpoint")):
        raise ConfigError(
            f"path {store_path}: checkpoint is the name of a file of the store, and there is a directory; put Spark's "
            "checkpointLocation elsewhere"
        )
    if "commitlog" not in names and names - _BESIDE:
        raise ConfigError(f"path {store_path}: expected a store or an empty directory, found {min(names - _BESIDE)!r}")
    if not names:
        return
    try:
        StoreLock.acquire(OsApi(), os.path.join(store_path, "lock")).release()
    except StoreLocked:
        raise StoreLocked(_LIVE.format(path=store_path)) from None


def _open_waiting(store_path: str, wait_ms: int) -> MessageStore:
    """Open the store without services: no retention and no other thread while the sink has the store open.

    Waits for a lock held by another sink, or by a worker of a killed driver that still appends.
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


class SinkTransaction:
    """A transaction id in a staging directory.

    Args: owner: the writer under the id (a query's id); a second owner is refused, since the batch numbers mean other
        rows. within: query and batch of foreachBatch; the id is valid within the batch only. single: the only batch is
        0, and a line of the ledger replaces the directory afterwards. wait_ms: how long to wait for a locked store.
        repeatable: a repeated commit has the same rows in the same partitions staged again, so staged files need not
        survive a power cut.
    Thread: one; any number of processes.
    """

    def __init__(
        self,
        store_path: str,
        staging: str,
        txn_id: str,
        *,
        owner: str = "",
        within: tuple[str, int] | None = None,
        single: bool = False,
        wait_ms: int = 60_000,
        repeatable: bool = False,
    ) -> None:
        self.store_path: Final = store_path
        self.txn_id: Final = txn_id
        identity = txn_id if within is None else f"{within[0]}\0{within[1]}\0{txn_id}"
        self.key: Final = hashlib.sha256(identity.encode("utf-8")).hexdigest()[:16]
        shown = quote(txn_id, safe="")[:60] if within is None else _batch_prefix(within[0]) + str(within[1])
        self.directory: Final = os.path.join(staging, f"{shown}-{self.key}")
        self._staging: Final = staging
        self._within: Final = within
        self._ledger: Final = Ledger(staging, store_path)
        self._single: Final = single
        self._owner: Final = owner
        self._wait_ms: Final = wait_ms
        self._repeatable: Final = repeatable

    def stamp(self, batch: int, partition: int) -> bytes:
        """Return the stamp at the end of the properties of a task's records, without the row number."""
        return f"{STAMP}\x01{self.key}:{batch}:{partition}:".encode("ascii")

    def writer(self, batch: int, partition: int, attempt: int) -> StagingWriter:
        """Return the writer of the staged file of a task attempt."""
        return StagingWriter(self.directory, batch, partition, attempt, durable=not self._repeatable)

    def is_done(self, batch: int) -> bool:
        """Return whether the batch, or a later batch, is in the store. Raises: UsageError for another owner's batch."""
        last = self._last_marker()
        if last is None:
            return self._is_in_ledger()
        self._check_owner(read_note(self._path(last, "done")))
        return last >= batch

    def open_store(self) -> MessageStore:
        """Open the store for several commits: opening can cost as much as appending some hundred megabytes.

        Raises: StoreLocked.
        """
        return _open_waiting(self.store_path, self._wait_ms)

    def commit(
        self,
        batch: int,
        files: Iterable[StagedFile],
        step: Step = lambda name: None,
        *,
        opened: MessageStore | None = None,
    ) -> Committed:
        """Append the staged records exactly once; a second call for the same batch completes the first or does nothing.

        Args: step: called before each step that a crash may interrupt; for tests. opened: the store of open_store,
            which the caller closes.
        Raises: StoreLocked, UsageError, CorruptFile (before the first append), DiskFull and StorageError: call again.
        Durability: on return the records survive power loss.
        """
        given = sorted(files, key=lambda file: (file.partition, file.name))
        if not given and not os.path.exists(self._path(batch, "intent")):
            return Committed(0, 0, False, False)
        step("open")
        with nullcontext(opened) if opened is not None else self.open_store() as store:
            if self.is_done(batch):
                step("clean")
                self._clean(batch)
                self._remove_finished(step)
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
                if self._repeatable:
                    self._restage(batch, intent, given, store)
                last = self._last_stamp(store, batch, intent)
            named = [StagedFile(**file) for file in intent["files"]]
            # The disk syncs during the rest of the append: the last sync is short.
            with ThreadPoolExecutor(1, "mqfast-sync") as syncing:
                appended = self._append(store, named, last, step, syncing)
            step("flush")
            store.flush()
            rows = sum(file.rows for file in named)
            step("mark")
            self._note(batch, "done", {"rows": rows, "start": intent["start"], "end": store.max_physical_offset})
            step("marked")
            self._clean(batch)
            self._remove_finished(step)
            step("close")
        return Committed(rows, appended, resumed, False)

    def append_at_least_once(self, batch: int, files: Iterable[StagedFile]) -> Committed:
        """Append without intent, stamp or marker: a repeated call repeats the messages."""
        given = sorted(files, key=lambda file: (file.partition, file.name))
        if given:
            with _open_waiting(self.store_path, self._wait_ms) as store:
                self._verify(given, store)
                with ThreadPoolExecutor(1, "mqfast-sync") as syncing:
                    self._append(store, given, None, lambda name: None, syncing)
                store.flush()
            self._clean(batch)
            drop_empty(self.directory)
        rows = sum(file.rows for file in given)
        return Committed(rows, rows, False, False)

    def abort(self, batch: int, files: Iterable[StagedFile]) -> None:
        """Remove the staged files, unless an intent names them: then only a commit can finish the batch."""
        if self._intent(batch) is None:
            for file in files:
                unlink(os.path.join(self.directory, file.name))
            drop_empty(self.directory)

    def forget(self) -> None:
        """Remove all files of a transaction whose id is unknown to any caller and cannot be repeated."""
        for name in self._names():
            unlink(os.path.join(self.directory, name))
        drop_empty(self.directory)

    def _remove_finished(self, step: Step) -> None:
        """Remove directories of finished work: see ``single``, and earlier batches of a query, which Spark never
        repeats.
        """
        if self._single:
            last = self._last_marker()
            if last is not None:
                step("ledger")
                if self._ledger.find(self.key, self._owner) is None:
                    done = read_note(self._path(last, "done")) or {}
                    self._ledger.add(self.key, self._owner, int(done.get("rows", 0)))
                step("noted")
                unlink(self._path(last, "done"))
            drop_empty(self.directory)
        if self._within is not None:
            prefix = _batch_prefix(self._within[0])
            for name in os.listdir(self._staging):
                number = name.removeprefix(prefix).partition("-")[0]
                if name.startswith(prefix) and number.isdigit() and int(number) < self._within[1] - 1:
                    self._drop_done(os.path.join(self._staging, name))

    def _drop_done(self, directory: str) -> None:
        if not any(name.endswith(".intent") for name in os.listdir(directory)):
            for name in os.listdir(directory):
                unlink(os.path.join(directory, name))
            drop_empty(directory)

    # --- notes ---

    def _path(self, batch: int, kind: str) -> str:
        return os.path.join(self.directory, f"{batch}.{kind}")

    def _note(self, batch: int, kind: str, value: dict[str, Any]) -> None:
        said = {"version": VERSION, "txnId": self.txn_id, "batch": batch, "owner": self._owner}
        if not self._is_inside():
            said["store"] = os.path.realpath(self.store_path)
        write_note(self._path(batch, kind), {**said, **value})

    def _intent(self, batch: int) -> dict[str, Any] | None:
        intent = read_note(self._path(batch, "intent"))
        self._check_owner(intent)
        return intent

    def _check_owner(self, note: dict[str, Any] | None) -> None:
        if note is None:
            return
        if note["owner"] != self._owner:
            self._refuse_owner(repr(note["owner"]))
        if not self._is_inside() and note.get("store", here := os.path.realpath(self.store_path)) != here:
            raise UsageError(
                f"txnId {self.txn_id!r}: expected the store {here}, found that {note['store']} was written under it "
                f"from {self._staging}; give each store a staging directory of its own"
            )

    def _refuse_owner(self, before: str) -> NoReturn:
        raise UsageError(
            f"txnId {self.txn_id!r}: expected one query under it, found {before} before {self._owner!r}; "
            "its batch numbers mean other rows. Give every query, and every new checkpoint, an id of its own"
        )

    def _is_inside(self) -> bool:
        """Return whether the staging directory is inside the store directory."""
        return os.path.abspath(self._staging).startswith(os.path.join(os.path.abspath(self.store_path), ""))

    def _is_in_ledger(self) -> bool:
        entry = self._ledger.find(self.key, self._owner)
        if entry is not None and not entry[0]:
            self._refuse_owner("a batch write")
        return entry is not None

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []

    def _batches(self, kind: str) -> list[int]:
        numbers = (name.removesuffix(f".{kind}") for name in self._names() if name.endswith(f".{kind}"))
        return sorted(int(number) for number in numbers if number.isdigit())

    def _last_marker(self) -> int | None:
        done = self._batches("done")
        return done[-1] if done else None

    def _clean(self, batch: int) -> None:
        """Remove files that the marker makes obsolete, of this batch and earlier ones; then old markers."""
        for name in self._names():
            match = _OF_BATCH.match(name)
            if match is not None and int(match[1]) <= batch:
                unlink(os.path.join(self.directory, name))
        for old in self._batches("done")[:-_MARKERS_KEPT]:
            unlink(self._path(old, "done"))

    def _restage(self, batch: int, intent: dict[str, Any], given: Sequence[StagedFile], store: MessageStore) -> None:
        """Rewrite the intent with the files staged now, which hold the same rows: the earlier files may be lost.

        Raises: UsageError for other rows.
        """
        before = [(file["partition"], file["rows"]) for file in intent["files"]]
        now = [(file.partition, file.rows) for file in given]
        if now != before:
            raise UsageError(
                f"batch {batch} of {self.txn_id!r}: expected the rows of the run that was cut off, by partition "
                f"{before}, found {now}"
            )
        self._verify(given, store)
        intent["files"] = [asdict(file) for file in given]

    # --- records ---

    def _verify(self, files: Sequence[StagedFile], store: MessageStore) -> None:
        """Check that every file exists, is undamaged and fits the log, before an intent names the files."""
        max_record = store.log.file_bytes - _BLANK_BYTES
        for file in files:
            rows = 0
            for _, count in record_blocks(self.directory, file, max_record):
                rows += count
            if rows != file.rows:
                path = os.path.join(self.directory, file.name)
                raise CorruptFile(NOT_AS_LEFT, path=path, expected=file.rows, found=rows)

    def _append(
        self,
        store: MessageStore,
        files: Sequence[StagedFile],
        last: tuple[int, int] | None,
        step: Step,
        syncing: Executor,
    ) -> int:
        """Append all records, or the records after ``last`` (partition, row)."""
        appended = 0
        synced: Future[bool] | None = None
        begun = store.max_physical_offset
        for file in files:
            if last is not None and file.partition < last[0]:
                continue
            skip = last[1] + 1 if last is not None and file.partition == last[0] else 0
            for block, count in record_blocks(self.directory, file):
                if skip >= count:
                    skip -= count
                    continue
                step("append")
                appended += append_records(store, _behind(block, skip))
                skip = 0
                step("appended")
                if store.max_physical_offset - begun > _SYNC_BYTES and (synced is None or synced.done()):
                    # A failed sync latches the store: the next append or the last flush raises.
                    begun = store.max_physical_offset
                    synced = syncing.submit(store.flush)
        return appended

    def _last_stamp(self, store: MessageStore, batch: int, intent: dict[str, Any]) -> tuple[int, int] | None:
        """Return partition and row of the last record of this batch in the log.

        Raises: CorruptFile for a log that is unreadable after the intent's start; UsageError if retention removed the
            records.
        """
        start, last = int(intent["start"]), None
        prefix = f"{self.key}:{batch}:"
        end = store.max_physical_offset
        if start > end:
            # The log lost a durable end; the append starts before the noted start.
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
                    if last is not None and (partition, row) <= last:
                        raise CorruptFile(
                            "messages of a batch are not in the order of their append",
                            path=self.store_path,
                            offset=message.physical_offset,
                            expected=f"behind {last}",
                            found=(partition, row),
                        )
                    last = (partition, row)
        if scan.at < end and scan.reason not in (None, "end"):
            raise CorruptFile("the log cannot be read", path=self.store_path, offset=scan.at, found=scan.reason)
        if last is None and first > start:
            raise UsageError(
                f"{self.store_path}: batch {batch} of {self.txn_id!r} was cut off at {start}, and the log begins at "
                f"{first}: nobody can tell how much of it was written"
            )
        return last


def _batch_prefix(query: str) -> str:
    """Return the common prefix of the directories of a query's foreachBatch batches."""
    return f"query-{quote(query, safe='')}-"


def _behind(block: memoryview, skip: int) -> memoryview:
    """Return the block without the first records."""
    at = 0
    for _ in range(skip):
        at += int.from_bytes(block[at : at + 4], "big")
    return block[at:]
