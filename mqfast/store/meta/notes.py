"""Notes: what a store knows about itself that none of RocketMQ's files says, in ``config/mqfast.json``, which RocketMQ
leaves alone.

- which topics were deleted, and up to which record: RocketMQ forgets a deletion when it makes queues anew from the log;
- which queues have messages, so that one whose directory is gone is missed;
- where a cut of a slave's log is under way, so that the next open goes on with it;
- the size of the log files, so that a single one that was cut short is not taken for whole.

It must never hide a record that was not deleted: a deletion counts only while the log still has, in its place, the
record that it names. A file that cannot be read counts as empty, with a warning. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import Door, StorePaths
from mqfast.store.meta.metadata import ConfigFile
from mqfast.store.record.record import StoredMessage

__all__ = ["Deletion", "StoreNotes", "log_file_bytes", "notes_path"]

_DELETED: Final = "deletedTopics"
_QUEUES: Final = "queues"
_TOPICS_VERSION: Final = "topicsVersion"
_KIB: Final = 1024
_LOG_FILE_BYTES: Final = "mappedFileSizeCommitLog"
_CUT: Final = "cutOfLog"


def notes_path(paths: StorePaths) -> str:
    """Where the notes of a store are."""
    return os.path.join(paths.config, "mqfast.json")


def log_file_bytes(files: Sequence[tuple[int, int]], noted: int) -> int:
    """The size that log files have, although one may have been cut short or have grown; 0: nothing tells.

    Args: files: (start offset, bytes) of each, in order; noted: what the store noted, 0: nothing.
    """
    if not files:
        return noted
    steps = {later[0] - earlier[0] for earlier, later in pairwise(files)}
    found = {size for _, size in files if size > 0}
    if len(steps) == 1 and (step := min(steps)) in (*found, noted) and files[0][0] % step == 0:
        return step
    whole = [size for size in found if all(step % size == 0 for step in steps) and files[0][0] % size == 0]
    longest = max(whole, default=0)
    if noted > 0 and longest <= noted and all(step % noted == 0 for step in steps) and files[0][0] % noted == 0:
        return noted
    if not whole:
        return noted or max(found, default=0)  # one of them is out of place
    return longest if steps or longest % _KIB == 0 else noted


class Deletion(NamedTuple):
    """The last record that a topic had when it was deleted."""

    physical_offset: int
    size: int
    store_timestamp: int

    @property
    def end(self) -> int:
        """Records of the topic that end here or before are deleted."""
        return self.physical_offset + self.size


def _check(root: dict[Any, Any]) -> None:
    def want(what: str, value: object, kind: type) -> None:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CorruptFile("JSON is damaged", expected=f"{what} to be {kind.__name__}", found=type(value).__name__)

    for topic, fields in root.get(_DELETED, {}).items():
        want(f"{_DELETED}[{topic!r}]", fields, dict)
        for name in ("physicalOffset", "size", "storeTimestamp"):
            want(f"{_DELETED}[{topic!r}].{name}", fields.get(name), int)
    for topic, ids in root.get(_QUEUES, {}).items():
        want(f"{_QUEUES}[{topic!r}]", ids, list)
        for queue_id in ids:
            want(f"{_QUEUES}[{topic!r}][]", queue_id, int)
    if _CUT in root:
        want(_CUT, root[_CUT], dict)
        want(f"{_CUT}.physicalOffset", root[_CUT].get("physicalOffset"), int)
        want(f"{_CUT}.head", root[_CUT].get("head"), str)
        try:
            bytes.fromhex(root[_CUT]["head"])
        except ValueError:
            raise CorruptFile("JSON is damaged", expected=f"{_CUT}.head to be hex digits", found="other text") from None
    for name in (_TOPICS_VERSION, _LOG_FILE_BYTES):
        want(name, root.get(name, 0), int)


class StoreNotes:
    """``config/mqfast.json`` of one store. Thread: any."""

    def __init__(self, os_api: Door, paths: StorePaths) -> None:
        self.path: Final = notes_path(paths)
        self.warnings: list[str] = []
        self._file: Final = ConfigFile(os_api, self.path, _check)
        self._lock: Final = Mutex()
        self._root: dict[str, Any] = {}

    @classmethod
    def load(cls, os_api: Door, paths: StorePaths) -> StoreNotes:
        """Read the notes; none where the file is missing or damaged (then with a warning). Raises: StorageError."""
        self = cls(os_api, paths)
        try:
            self._root = self._file.load()
        except CorruptFile as error:
            self.warnings.append(
                f"{error}; going on without it: topics that were deleted may come back where queues are made anew"
            )
        self.warnings += self._file.warnings
        return self

    @property
    def is_there(self) -> bool:
        """Has the store any notes?"""
        return bool(self._root)

    # --- deletions ---

    @property
    def deletions(self) -> dict[str, Deletion]:
        """Topic -> its last deletion, whether the log still has the records or not."""
        with self._lock:
            return {
                topic: Deletion(fields["physicalOffset"], fields["size"], fields["storeTimestamp"])
                for topic, fields in self._root.get(_DELETED, {}).items()
            }

    def note_deletion(self, topic: str, deletion: Deletion | None) -> None:
        """Note it, and that the topic has no queues; None: it had no message that could come back.

        Durable when it returns. Raises: StorageError; nothing is noted then.
        """
        with self._lock:
            root = {**self._root, _QUEUES: {name: ids for name, ids in self._queues.items() if name != topic}}
            if deletion is not None:
                fields = {
                    "physicalOffset": deletion.physical_offset,
                    "size": deletion.size,
                    "storeTimestamp": deletion.store_timestamp,
                }
                root[_DELETED] = {**self._root.get(_DELETED, {}), topic: fields}
            self._file.persist(root)
            self._root = root

    def floors(self, record: Callable[[int], StoredMessage | None], min_offset: int) -> dict[str, int]:
        """Topic -> end of its last deleted record, of the deletions that this log was there for.

        Args: record: the whole record at a physical offset, None where there is none; min_offset: of the log.
        """
        found: dict[str, int] = {}
        for topic, deletion in self.deletions.items():
            if deletion.end <= min_offset:
                continue  # its records are gone
            message = record(deletion.physical_offset)
            if (
                message is not None
                and message.size == deletion.size
                and message.store_timestamp == deletion.store_timestamp
            ):
                found[topic] = deletion.end
        return found

    def keep_deletions(self, topics: Iterable[str]) -> list[str]:
        """Forget every other one, at the next persist; returns the forgotten topics."""
        kept = set(topics)
        with self._lock:
            table = self._root.get(_DELETED, {})
            gone = sorted(topic for topic in table if topic not in kept)
            for topic in gone:
                del table[topic]
            return gone

    # --- a cut of a slave's log ---

    @property
    def cut(self) -> tuple[int, bytes] | None:
        """(physical offset, the first bytes that stood there) of a cut that may not be whole."""
        with self._lock:
            found = self._root.get(_CUT)
            return None if found is None else (found["physicalOffset"], bytes.fromhex(found["head"]))

    def note_cut(self, physical_offset: int, head: bytes) -> None:
        """Before the cut. Durable when it returns. Raises: StorageError; nothing is noted then."""
        self._persist_cut({"physicalOffset": physical_offset, "head": head.hex()})

    def forget_cut(self) -> None:
        """Behind the cut. Raises: StorageError; the cut then counts as under way."""
        self._persist_cut(None)

    def _persist_cut(self, cut: dict[str, Any] | None) -> None:
        with self._lock:
            root = {name: value for name, value in self._root.items() if name != _CUT}
            if cut is not None:
                root[_CUT] = cut
            self._file.persist(root)
            self._root = root

    # --- queues, and the size of log files ---

    @property
    def _queues(self) -> dict[str, list[int]]:
        queues: dict[str, list[int]] = self._root.get(_QUEUES, {})
        return queues

    def missed(self, present: dict[str, list[int]], topics_version: int, known: Callable[[str], bool]) -> list[str]:
        """Queues, as ``topic/queue id``, that had messages and are not among those present.

        Args: known: does topics.json have the topic? A topic that neither the queues nor a newer topics.json have was
        deleted by RocketMQ.
        """
        newer = topics_version > self._root.get(_TOPICS_VERSION, 0)
        return [
            f"{topic}/{queue_id}"
            for topic, ids in sorted(self._queues.items())
            if not (newer and topic not in present and not known(topic))
            for queue_id in ids
            if queue_id not in present.get(topic, ())
        ]

    @property
    def log_file_bytes(self) -> int:
        """Size of the log files, 0: not known."""
        return int(self._root.get(_LOG_FILE_BYTES, 0))

    def persist(self, queues: dict[str, list[int]], topics_version: int, log_file_bytes: int) -> None:
        """Put them on disk if they changed. Raises: StorageError."""
        with self._lock:
            root = {**self._root, _QUEUES: queues, _TOPICS_VERSION: topics_version, _LOG_FILE_BYTES: log_file_bytes}
            self._file.persist(root)
            self._root = root
