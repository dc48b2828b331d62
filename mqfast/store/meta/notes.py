"""Notes: facts about a store that no file of RocketMQ holds, in ``config/mqfast.json``, which RocketMQ ignores.

- deleted topics, each with the last deleted record: RocketMQ forgets a deletion when it rebuilds queues from the log;
- the queues that have messages, so that a missing directory is noticed;
- a running cut of a slave's log, so that the next open completes the cut;
- the size of the log files, so that a single file that was cut short is not accepted as valid.

A record that was not deleted is never hidden: a deletion counts only while the log still has the noted record at the
noted offset. An unreadable file counts as empty, with a warning. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import OsFiles, StorePaths
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.record.record import StoredMessage

__all__ = ["Deletion", "StoreNotes", "log_file_bytes", "notes_path"]

_DELETED: Final = "deletedTopics"
_QUEUES: Final = "queues"
_TOPICS_VERSION: Final = "topicsVersion"
_KIB: Final = 1024
_LOG_FILE_BYTES: Final = "mappedFileSizeCommitLog"
_CUT: Final = "cutOfLog"


def notes_path(paths: StorePaths) -> str:
    """Return the path of a store's notes."""
    return os.path.join(paths.config, "mqfast.json")


def log_file_bytes(files: Sequence[tuple[int, int]], noted: int) -> int:
    """Return the size of the log files, although a file may have been cut short or have grown; 0: unknown.

    Args: files: (start offset, bytes) of each, in order; noted: the noted size, 0: none.
    """
    if not files:
        return noted
    steps = {later[0] - earlier[0] for earlier, later in pairwise(files)}
    file_sizes = {size for _, size in files if size > 0}
    if len(steps) == 1 and (step := min(steps)) in (*file_sizes, noted) and files[0][0] % step == 0:
        return step
    whole = [size for size in file_sizes if all(step % size == 0 for step in steps) and files[0][0] % size == 0]
    longest = max(whole, default=0)
    if noted > 0 and longest <= noted and all(step % noted == 0 for step in steps) and files[0][0] % noted == 0:
        return noted
    if not whole:
        return noted or max(file_sizes, default=0)  # a file is at a wrong offset
    return longest if steps or longest % _KIB == 0 else noted


class Deletion(NamedTuple):
    """The last record of a topic at its deletion."""

    physical_offset: int
    size: int
    store_timestamp: int

    @property
    def end(self) -> int:
        """Return the end of the last deleted record: records of the topic that end there or before are deleted."""
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
    """``config/mqfast.json`` of a store. Thread: any."""

    def __init__(self, os_api: OsFiles, paths: StorePaths) -> None:
        self.path: Final = notes_path(paths)
        self.warnings: list[str] = []
        self._file: Final = ConfigFile(os_api, self.path, _check)
        self._lock: Final = Mutex()
        self._root: dict[str, Any] = {}

    @classmethod
    def load(cls, os_api: OsFiles, paths: StorePaths) -> StoreNotes:
        """Read the notes; empty for a missing file, and with a warning for a damaged file. Raises: StorageError."""
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
        """True if the store has notes."""
        return bool(self._root)

    # --- deletions ---

    @property
    def deletions(self) -> dict[str, Deletion]:
        """Topic -> the last deletion, also if the log no longer has the records."""
        with self._lock:
            return {
                topic: Deletion(fields["physicalOffset"], fields["size"], fields["storeTimestamp"])
                for topic, fields in self._root.get(_DELETED, {}).items()
            }

    def note_deletion(self, topic: str, deletion: Deletion | None) -> None:
        """Note a deletion, and that the topic has no queues. None: the topic had no message that could be restored.

        Durability: synced when the call returns. Raises: StorageError; nothing is noted then.
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
        """Return topic -> end of the last deleted record, for the deletions that this log contains.

        Args: record: returns the whole record at a physical offset, or None; min_offset: of the log.
        """
        floors: dict[str, int] = {}
        for topic, deletion in self.deletions.items():
            if deletion.end <= min_offset:
                continue  # the records have been removed
            message = record(deletion.physical_offset)
            if (
                message is not None
                and message.size == deletion.size
                and message.store_timestamp == deletion.store_timestamp
            ):
                floors[topic] = deletion.end
        return floors

    def keep_deletions(self, topics: Iterable[str]) -> list[str]:
        """Drop all other deletions at the next persist. Returns: the dropped topics."""
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
        """(physical offset, the first bytes there) of a cut that may be incomplete."""
        with self._lock:
            note = self._root.get(_CUT)
            return None if note is None else (note["physicalOffset"], bytes.fromhex(note["head"]))

    def note_cut(self, physical_offset: int, head: bytes) -> None:
        """Note a cut before it begins. Durability: synced when the call returns. Raises: StorageError; nothing is noted
        then.
        """
        self._persist_cut({"physicalOffset": physical_offset, "head": head.hex()})

    def forget_cut(self) -> None:
        """Remove the note after the cut. Raises: StorageError; the cut then counts as incomplete."""
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
        """Return the queues, as ``topic/queue id``, that had messages and are missing in ``present``.

        Args: known: returns True if topics.json has the topic. A topic without queues and without an entry in a newer
        topics.json was deleted by RocketMQ.
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
        """Size of the log files, 0: unknown."""
        return int(self._root.get(_LOG_FILE_BYTES, 0))

    def persist(self, queues: dict[str, list[int]], topics_version: int, log_file_bytes: int) -> None:
        """Put the notes on disk if they changed. Raises: StorageError."""
        with self._lock:
            root = {**self._root, _QUEUES: queues, _TOPICS_VERSION: topics_version, _LOG_FILE_BYTES: log_file_bytes}
            self._file.persist(root)
            self._root = root
