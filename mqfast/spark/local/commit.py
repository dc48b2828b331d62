"""The commit protocol of the sink: what tasks staged becomes messages of a store exactly once, whatever crashes when.

Room: the Spark adapter; nothing of Spark or Arrow in it. Files and notes are in ``staging.py``. Each record carries the
property SPK = transaction:batch:partition:row, so that whoever resumes an append that was cut off finds the last record
that is there and goes on behind it. The store's own lock, held from before the intent is looked at until after the
marker is written, keeps two drivers apart. A file is named by an intent only when it is durable, or when the same rows
can be staged again; an intent is written only when the log is durable up to its start, a marker only when the records
are.

It must never truncate a log, and never wait for ever for a store.
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

STAMP: Final = "SPK"
_BLANK_BYTES: Final = 8
_MARKERS_KEPT: Final = 100
_SYNC_BYTES: Final = 16 << 20
_MARK: Final = re.compile(rf"(?:^|\x02){STAMP}\x01([^\x01\x02]+)\x02?$")
_OF_BATCH: Final = re.compile(r"(\d+)(?:\.intent|-.*\.records)$")
# What may stand in a store that has no message yet.
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
    """How a commit ended: ``appended`` rows by this call, ``resumed`` when an earlier one was cut off, ``repeated``
    when there was nothing left to do.
    """

    rows: int
    appended: int
    resumed: bool
    repeated: bool


# --- the store -------------------------------------------------------------------------------------------------------


def check_target(store_path: str) -> None:
    """Is there a store, or room for a new one?

    Raises: ConfigError, where something else is; StoreLocked, when another process has the store open for writing.
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


class SinkTransaction:
    """One transaction id in one staging directory.

    Args: owner: who writes under the id (a query's id); a second owner is refused, since its batch numbers mean other
    rows. within: the query and its batch that writes by foreachBatch: the id means something in there only. single:
    there is one batch, 0, and when it is done a line of the ledger is all that stays. wait_ms: how long a locked store
    is waited for. repeatable: whoever calls commit for a batch again has staged the same rows in the same partitions
    again, so that staged files need not outlive a power cut.
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
        """What the properties of a task's records end with, up to the row's number."""
        return f"{STAMP}\x01{self.key}:{batch}:{partition}:".encode("ascii")

    def writer(self, batch: int, partition: int, attempt: int) -> StagingWriter:
        """Where one task attempt stages its records."""
        return StagingWriter(self.directory, batch, partition, attempt, durable=not self._repeatable)

    def is_done(self, batch: int) -> bool:
        """Is the batch, or a later one, in the store? Raises: UsageError when another owner's is."""
        last = self._last_marker()
        if last is None:
            return self._is_in_ledger()
        self._check_owner(read_note(self._path(last, "done")))
        return last >= batch

    def open_store(self) -> MessageStore:
        """The store, for several commits: opening it costs as much as appending some hundred megabytes may.

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
        """Append what was staged, once. A second call for the same batch finds it done, or finishes it.

        Args: step: called before each step that a crash may hit; for tests. opened: the store, where the caller has it
        from open_store, and closes it.
        Raises: StoreLocked, UsageError, CorruptFile (before anything is appended), DiskFull and StorageError: then
        call it again.
        Durability: when it returns the records survive power loss.
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
            # The disk is at work while the rest is appended: what is left for the end is little.
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
        """Forget what was staged, unless an intent names it: then only a commit can end it."""
        if self._intent(batch) is None:
            for file in files:
                unlink(os.path.join(self.directory, file.name))
            drop_empty(self.directory)

    def forget(self) -> None:
        """Remove every trace of a transaction that nobody can repeat, because nobody knows its id."""
        for name in self._names():
            unlink(os.path.join(self.directory, name))
        drop_empty(self.directory)

    def _remove_finished(self, step: Step) -> None:
        """What is done for good leaves no directory: see ``single``, and batches before the last one of a query, which
        Spark never repeats.
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
        """Does the staging directory lie in the store, and move with it?"""
        return os.path.abspath(self._staging).startswith(os.path.join(os.path.abspath(self.store_path), ""))

    def _is_in_ledger(self) -> bool:
        found = self._ledger.find(self.key, self._owner)
        if found is not None and not found[0]:
            self._refuse_owner("a batch write")
        return found is not None

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []

    def _batches(self, kind: str) -> list[int]:
        found = (name.removesuffix(f".{kind}") for name in self._names() if name.endswith(f".{kind}"))
        return sorted(int(number) for number in found if number.isdigit())

    def _last_marker(self) -> int | None:
        done = self._batches("done")
        return done[-1] if done else None

    def _clean(self, batch: int) -> None:
        """Remove what the marker makes superfluous, of this batch and those before it; then old markers."""
        for name in self._names():
            found = _OF_BATCH.match(name)
            if found is not None and int(found[1]) <= batch:
                unlink(os.path.join(self.directory, name))
        for old in self._batches("done")[:-_MARKERS_KEPT]:
            unlink(self._path(old, "done"))

    def _restage(self, batch: int, intent: dict[str, Any], given: Sequence[StagedFile], store: MessageStore) -> None:
        """Have the intent name what is staged now, which holds the same rows: the files before may be lost.

        Raises: UsageError, when they are not the same.
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
        """Every file is there, whole, undamaged and fits: what an intent names must not fail later."""
        most = store.log.file_bytes - _BLANK_BYTES
        for file in files:
            rows = 0
            for _, count in record_blocks(self.directory, file, most):
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
        """Append all records, or those behind the last one that is there (partition, row)."""
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
                    # A sync that fails latches the store: the next append or the last flush says so.
                    begun = store.max_physical_offset
                    synced = syncing.submit(store.flush)
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


def _batch_prefix(query: str) -> str:
    """What the directories of a query's batches that write by foreachBatch begin with."""
    return f"query-{quote(query, safe='')}-"


def _behind(block: memoryview, skip: int) -> memoryview:
    """The block without its first records."""
    at = 0
    for _ in range(skip):
        at += int.from_bytes(block[at : at + 4], "big")
    return block[at:]
