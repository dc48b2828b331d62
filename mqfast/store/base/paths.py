"""The names in the directory of a store, and the interface of the operating system for modules that keep small files.

This module opens no file: listings use the OsApi that a caller passes, and only the links of a path are resolved. Tree
and names: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from errno import EACCES, ENOENT, ENOTDIR, EPERM
from itertools import islice
from typing import Final, NamedTuple, Protocol

from mqfast.errors import CorruptFile, StorageError, StoreNotFound, UsageError
from mqfast.message import broker_accepts_topic

__all__ = [
    "ByteLockHandle",
    "DirectoryHandle",
    "OsFiles",
    "OffsetFile",
    "StorePaths",
    "absolute",
    "index_name",
    "list_index_files",
    "list_offset_files",
    "list_queues",
    "offset_name",
    "parse_index_name",
    "parse_offset_name",
    "queue_dir",
    "root_of",
    "usual_queue_bytes",
]

_OFFSET_DIGITS: Final = 20
_INDEX_DIGITS: Final = 17
_QUEUES_ASKED: Final = 9  # for the length of queue files
_I64_MAX: Final = 2**63 - 1


class ByteLockHandle(Protocol):
    """A held lock; release is safe to call twice; a forked child abandons the copy that it has."""

    def release(self) -> None: ...
    def abandon(self) -> None: ...


class DirectoryHandle(Protocol):
    """A directory that is kept open; close is safe to call twice."""

    def lock(self) -> bool: ...
    def unlock(self) -> None: ...
    def close(self) -> None: ...


class OsFiles(Protocol):
    """The part of ``mqfast.store.base.os_api.OsApi`` for modules that keep small files; every method raises
    StorageError.
    """

    def read_file(self, path: str, max_bytes: int = ...) -> bytes: ...
    def write_file(self, path: str, data: bytes) -> None: ...
    def overwrite(self, path: str, data: bytes, offset: int = ..., create: bool = ...) -> None: ...
    def replace_file(self, path: str, data: bytes, keep: str | None = None) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str, missing_ok: bool = ...) -> None: ...
    def makedirs(self, path: str) -> None: ...
    def listdir(self, path: str) -> list[str]: ...
    def subdirectories(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def file_size(self, path: str) -> int: ...
    def mtime_ms(self, path: str) -> int: ...
    def open_directory(self, path: str) -> DirectoryHandle: ...
    def file_id(self, path: str) -> tuple[int, int]: ...
    def fsync_dir(self, path: str) -> None: ...
    def now_ms(self) -> int: ...
    def lock_byte(self, path: str) -> ByteLockHandle: ...


class OffsetFile(NamedTuple):
    """A file whose name is the start offset."""

    start_offset: int
    path: str


def absolute(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], what: str = "path") -> str:
    """Return the absolute path, links resolved, so that no later chdir or change of a link moves the store.

    Args: what: name of the path in errors.
    Raises: UsageError for an invalid path; StoreNotFound where the working directory was removed.
    """
    try:
        given = os.fspath(path)
        if isinstance(given, bytes):
            native = given
        elif codecs.lookup(sys.getfilesystemencoding()).name in ("utf-8", "ascii"):
            native = given.encode("utf-8", "surrogateescape")  # the C locale has only UTF-8 names as well
        else:
            native = os.fsencode(given)
        text = native.decode("utf-8", "surrogateescape")
    except TypeError:
        raise UsageError(f"{what}: expected a path, found {type(path).__name__}") from None
    except ValueError:
        raise UsageError(f"{what}: expected a path that the file system can encode, found {path!r}") from None
    if not text:
        raise UsageError(f'{what}: expected the path of a directory, found an empty one (the working directory is ".")')
    if "\0" in text:
        raise UsageError(f"{what}: expected a path without NUL characters, found {text!r}")
    try:
        return os.path.realpath(native).decode("utf-8", "surrogateescape")  # spelled as OsApi does
    except FileNotFoundError:
        raise StoreNotFound(ENOENT, f"{what}: relative, and the working directory was removed", text) from None


def root_of(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], os_api: OsFiles) -> str:
    """Return the absolute path of a store that a user named.

    Raises: as absolute; StoreNotFound when the path, or a parent, is a file.
    """
    root = absolute(path)
    there = root
    while not os_api.exists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if not os_api.is_dir(there):
        raise StoreNotFound(ENOTDIR, "expected the directory of a store, found a file", there)
    return root


class StorePaths:
    """The paths of a store below the root.

    ``commit_logs`` are the writable log directories; ``read_only_commit_logs`` get no new files. All paths are made
    absolute here, once.
    Raises: UsageError.
    """

    __slots__ = (
        "abort",
        "batch_consume_queue",
        "checkpoint",
        "commit_logs",
        "config",
        "consume_queue",
        "consume_queue_ext",
        "consumer_filter",
        "consumer_offset",
        "consumer_order_info",
        "delay_offset",
        "index",
        "kv_store",
        "lmq_consumer_offset",
        "lock",
        "message_request_mode",
        "read_only_commit_logs",
        "root",
        "subscription_group",
        "timer_check",
        "timer_log",
        "timer_wheel",
        "topics",
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        commit_logs: Sequence[str] = (),
        read_only_commit_logs: Sequence[str] = (),
    ) -> None:
        join = os.path.join
        self.root: Final = absolute(path)
        root = self.root
        self.commit_logs: Final = tuple(absolute(log, "store_path_commit_log") for log in commit_logs) or (
            join(root, "commitlog"),
        )
        self.read_only_commit_logs: Final = tuple(
            absolute(log, "read_only_commit_log_store_paths") for log in read_only_commit_logs
        )
        self.consume_queue: Final = join(root, "consumequeue")
        self.consume_queue_ext: Final = join(root, "consumequeue_ext")
        self.batch_consume_queue: Final = join(root, "batchconsumequeue")
        self.index: Final = join(root, "index")
        self.checkpoint: Final = join(root, "checkpoint")
        self.abort: Final = join(root, "abort")
        self.lock: Final = join(root, "lock")
        self.timer_wheel: Final = join(root, "timerwheel")
        self.timer_log: Final = join(root, "timerlog")
        self.config: Final = join(root, "config")
        self.timer_check: Final = join(self.config, "timercheck")
        self.topics: Final = join(self.config, "topics.json")
        self.subscription_group: Final = join(self.config, "subscriptionGroup.json")
        self.consumer_offset: Final = join(self.config, "consumerOffset.json")
        self.lmq_consumer_offset: Final = join(self.config, "lmqConsumerOffset.json")
        self.delay_offset: Final = join(self.config, "delayOffset.json")
        self.consumer_filter: Final = join(self.config, "consumerFilter.json")
        self.consumer_order_info: Final = join(self.config, "consumerOrderInfo.json")
        self.message_request_mode: Final = join(self.config, "messageRequestMode.json")
        self.kv_store: Final = join(self.root, "kvStore")

    def offsets_file(self, enable_lmq: bool) -> str:
        """Return the file of the consumer offsets: light message queues have a file name of their own."""
        return self.lmq_consumer_offset if enable_lmq else self.consumer_offset


def offset_name(start_offset: int) -> str:
    """Return the 20-digit name of the file that starts at this byte of the stream."""
    if not 0 <= start_offset <= _I64_MAX:
        raise ValueError(f"start offset: expected 0 to 2^63-1, found {start_offset}")
    return f"{start_offset:020d}"


def _digits(name: str, count: int) -> bool:
    return len(name) == count and name.isascii() and name.isdigit()


def parse_offset_name(name: str, directory: str = "") -> int:
    """Return the start offset in a file name.

    Raises: CorruptFile unless the name is 20 ASCII digits of at most 2^63-1.
    """
    if _digits(name, _OFFSET_DIGITS) and int(name) <= _I64_MAX:
        return int(name)
    raise CorruptFile(
        "file name is no offset",
        path=os.path.join(directory, name),
        expected="20 digits up to 2^63-1",
        found=repr(name),
    )


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _index_fields(name: str) -> list[int] | None:
    # By hand: time.strptime depends on the locale, and its import costs more than opening an empty store.
    if not _digits(name, _INDEX_DIGITS):
        return None
    year, month, day = int(name[:4]), int(name[4:6]), int(name[6:8])
    hour, minute, second, ms = int(name[8:10]), int(name[10:12]), int(name[12:14]), int(name[14:])
    if (
        year < 1
        or not 1 <= month <= 12
        or not 1 <= day <= _days(year, month)
        or hour > 23
        or minute > 59
        or second > 59
    ):
        return None
    return [year, month, day, hour, minute, second, ms]


def _index_text(fields: Sequence[int]) -> str:
    return "{:04d}{:02d}{:02d}{:02d}{:02d}{:02d}{:03d}".format(*fields)


def index_name(now_ms: int, after: str | None = None) -> str:
    """Return the name of an index file created now: local time, ``yyyyMMddHHmmssSSS``.

    Index files are read in the order of their names. With ``after``, the name of the newest index file, the result is
    at least a millisecond later even if the clock stood still or was set back.
    """
    seconds, ms = divmod(now_ms, 1000)
    local = time.localtime(seconds)
    # A leap second is no valid name.
    name = _index_text((*local[:5], min(local.tm_sec, 59), ms))
    fields = _index_fields(after) if after is not None and name <= after else None
    if fields is None:
        return name
    # One millisecond later, digit by digit: no hour is missing or repeated in this calculation.
    limits = (9999, 12, _days(fields[0], fields[1]), 23, 59, 59, 999)
    for place in range(6, -1, -1):
        if fields[place] < limits[place]:
            fields[place] += 1
            break
        fields[place] = 1 if place in (1, 2) else 0
    return _index_text(fields)


def parse_index_name(name: str, directory: str = "") -> int:
    """Return the creation time of an index file, ms since the epoch; ambiguous for an hour a year, as local time is.

    Raises: CorruptFile unless the name is a time of 17 digits.
    """
    fields = _index_fields(name)
    if fields is None:
        raise CorruptFile(
            "file name is no time",
            path=os.path.join(directory, name),
            expected="yyyyMMddHHmmssSSS",
            found=repr(name),
        )
    year, month, day, hour, minute, second, ms = fields
    return int(time.mktime((year, month, day, hour, minute, second, 0, 0, -1))) * 1000 + ms


def list_offset_files(os_api: OsFiles, directory: str) -> tuple[list[OffsetFile], list[str]]:
    """Return the offset-named files of a directory in order, and the other names; both empty for a missing
    directory.
    """
    files: list[OffsetFile] = []
    others: list[str] = []
    for name in os_api.listdir(directory):
        path = os.path.join(directory, name)
        if _digits(name, _OFFSET_DIGITS) and int(name) <= _I64_MAX and not os_api.is_dir(path):
            files.append(OffsetFile(int(name), path))
        else:
            others.append(name)
    files.sort()
    return files, others


def list_index_files(os_api: OsFiles, directory: str) -> tuple[list[str], list[str]]:
    """Return the names of the index files, oldest first, and the other names in the directory."""
    names: list[str] = []
    others: list[str] = []
    for name in os_api.listdir(directory):
        regular = _index_fields(name) is not None and not os_api.is_dir(os.path.join(directory, name))
        (names if regular else others).append(name)
    return sorted(names), others


def queue_dir(base: str, topic: str, queue_id: int) -> str:
    """Return the directory of a queue below ``consumequeue`` or a sibling directory."""
    return f"{base}/{topic}/{queue_id}"


def queue_ids(os_api: OsFiles, base: str, topic: str) -> list[int]:
    """Return the queue ids that have a directory below the topic's; other names are skipped.

    Raises: StorageError for an unreadable directory, unless no broker accepts the name as a topic, as ``lost+found``.
    """
    try:
        names = os_api.subdirectories(os.path.join(base, topic))
    except StorageError as error:
        if error.errno not in (EACCES, EPERM) or broker_accepts_topic(topic):
            raise
        return []
    # Only the form that the store writes: "007" would be another directory than 7.
    return sorted(
        int(name)
        for name in names
        if name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name and int(name) < 2**31
    )


def list_queues(os_api: OsFiles, base: str) -> dict[str, list[int]]:
    """Return topic -> queue ids that have a directory below ``base``. Raises: as queue_ids."""
    return {topic: queue_ids(os_api, base, topic) for topic in os_api.subdirectories(base)}


def _first_files(os_api: OsFiles, base: str) -> Iterator[tuple[str, int]]:
    """Yield path and length of the first file of each queue."""
    for topic in os_api.subdirectories(base):
        for queue_id in queue_ids(os_api, base, topic):
            for file in list_offset_files(os_api, queue_dir(base, topic, queue_id))[0][:1]:
                size = os_api.file_size(file.path)
                if size > 0:
                    yield file.path, size


def usual_queue_bytes(os_api: OsFiles, base: str, configured: int) -> tuple[int, str]:
    """Return the length of the queue files below ``base``, and a file of that length; 0 without files.

    A truncated or extended file must not decide for the others: the result is the most frequent length of the first
    queues. Of two equally frequent lengths the configured length wins.
    """
    sizes = dict(islice(_first_files(os_api, base), _QUEUES_ASKED))
    if not sizes:
        return 0, base
    counts = Counter(sizes.values())
    size = max(counts, key=lambda size: (counts[size], size == configured))
    return size, next(path for path in sizes if sizes[path] == size)
