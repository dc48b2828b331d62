"""Salvage: puts the whole messages that recovery and repair have kept (``kept.py``) back into the log as new messages.

Each message is put exactly once, however often salvage runs and is interrupted. Only records of the folder's list, or
records that a walk behind damage found, are put. A folder is never removed.

Before the first put, ``salvaged.json`` of the folder notes the end of the log; no other thread puts meanwhile. An
interrupted run leaves the first messages of the same sequence behind that offset. The next run counts and skips them.
Messages that are in two folders (recovery was killed between copy and cut) or still in the log are put once or not at
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, OffsetError
from mqfast.store.base.paths import list_offset_files
from mqfast.store.check.boundaries import Stretch
from mqfast.store.check.kept import KeptFolder, kept_folders
from mqfast.store.reader.scan import LogWalk, PreadFile

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.base.paths import StorePaths
    from mqfast.store.check.repair_report import RepairReport
    from mqfast.store.message_store import MessageStore
    from mqfast.store.record.record import StoredMessage

__all__ = ["put_back"]

# Set by the store at a put: the old values name other offsets, or another record's checksum.
_OF_THE_STORE: Final = (b"INNER_BASE", b"INNER_MULTI_QUEUE_OFFSET", b"__CRC32#")
_HOST_BITS: Final = 0x30

_Identity = tuple[int, int, int, int]


def put_back(os_api: OsApi, paths: StorePaths, config: StoreConfig | None, report: RepairReport) -> None:
    """Put the messages of all folders of a store back, and add the actions to ``report``.

    Raises: as open and put; a later run continues where this run stopped.
    """
    from mqfast.store.message_store import open_store

    if report.dry_run:
        report.salvaged = report.messages_lost
        report.salvaged_by_scan = report.found_by_scan
        if report.messages_lost:
            report.actions.append(f"put {report.messages_lost} messages of what is cut now back")
        for folder in kept_folders(os_api, paths.root):
            if not folder.is_salvaged:
                report.salvaged += folder.behind.records
                report.salvaged_by_scan += folder.behind.by_scan
                report.actions.append(f"put {folder.behind.records} messages of {folder.path} back")
        return
    if not kept_folders(os_api, paths.root, *_custom(report)):
        return
    with open_store(paths.root, config=config, os_api=os_api, create=False) as store:
        folders = kept_folders(os_api, paths.root, *_custom(report))
        for number, folder in enumerate(folders):
            if not folder.is_salvaged:
                _Salvage(store, folder, folders[:number], report).run()


def _custom(report: RepairReport) -> list[str]:
    return [report.kept_in] if report.kept_in else []


def _messages(os_api: OsApi, folder: KeptFolder) -> Iterator[tuple[StoredMessage, Stretch]]:
    """Return the kept messages in the order of the log."""
    for stretch in folder.behind.stretches:
        start, path = max(file for file in folder.files if file.start_offset <= stretch.start)
        opened = PreadFile(os_api, path, start)
        walk = LogWalk(opened, stretch.start)
        stop: str | None = None
        while stop is None:
            messages, stop = walk.batch(stretch.end)
            for message in messages:
                yield message, stretch
        if walk.at < stretch.end:
            raise CorruptFile(
                "a kept record has changed", path=path, offset=walk.at, expected="a whole record", found=stop
            )
        opened.close()


def _identity(message: StoredMessage) -> _Identity:
    return message.physical_offset, message.size, message.store_timestamp, message.body_crc


def _overlap(folder: KeptFolder, other: KeptFolder) -> bool:
    return any(a.start < b.end and b.start < a.end for a in folder.behind.stretches for b in other.behind.stretches)


class _Salvage:
    """The salvage of one folder."""

    def __init__(
        self, store: MessageStore, folder: KeptFolder, earlier: list[KeptFolder], report: RepairReport
    ) -> None:
        self.store = store
        self.folder = folder
        self.report = report
        self.known: set[_Identity] = set()
        for other in earlier:
            if _overlap(folder, other):
                self.known.update(_identity(message) for message, _ in _messages(store.os_api, other))

    def run(self) -> None:
        store, folder, report = self.store, self.folder, self.report
        began_at = folder.salvaged.get("beganAt")
        there = 0
        if began_at is None:
            began_at = store.log.written
            folder.note_salvage(store.os_api, began_at, done=False, records=0)
        else:
            there = self._put_before(began_at)
        count = 0
        for message, stretch in self._wanted():
            count += 1
            if count <= there:
                continue
            self._put(message)
            report.salvaged += 1
            report.salvaged_by_scan += stretch.by_scan
        store.flush()
        folder.note_salvage(store.os_api, began_at, done=True, records=count)
        report.actions.append(f"put {count - there} messages of {folder.path} back")

    def _wanted(self) -> Iterator[tuple[StoredMessage, Stretch]]:
        floors = self.folder.floors
        for message, stretch in _messages(self.store.os_api, self.folder):
            deleted = message.physical_offset + message.size <= floors.get(message.topic, -1)
            if not deleted and _identity(message) not in self.known and not self._is_in_the_log(message):
                yield message, stretch

    def _is_in_the_log(self, message: StoredMessage) -> bool:
        try:
            return _identity(self.store.log.message(message.physical_offset)) == _identity(message)
        except (CorruptFile, OffsetError):
            return False

    def _put(self, message: StoredMessage) -> None:
        properties = b"".join(
            field + b"\2"
            for field in message.properties_bytes.split(b"\2")
            if field and field.partition(b"\1")[0] not in _OF_THE_STORE
        )
        self.store.put(
            message.topic,
            message.body,
            message.queue_id,
            properties=properties,
            flag=message.flag,
            sys_flag=message.sys_flag & ~_HOST_BITS,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            wait_store_ok=False,
        )

    def _put_before(self, began_at: int) -> int:
        """Count the messages that an earlier run has put behind ``began_at``."""
        log = self._log_from(began_at)
        count = 0
        for message, _ in self._wanted():
            stored = next(log, None)
            if stored is None or _content(stored) != _content(message):
                break
            count += 1
        return count

    def _log_from(self, physical_offset: int) -> Iterator[StoredMessage]:
        store = self.store
        for start, path in list_offset_files(store.os_api, store.log.path)[0]:
            opened = PreadFile(store.os_api, path, start)
            if opened.end > physical_offset:
                walk = LogWalk(opened, max(physical_offset, start))
                stop: str | None = None
                while stop is None:
                    messages, stop = walk.batch()
                    yield from messages
                if stop not in ("blank", "end"):
                    return


def _content(message: StoredMessage) -> tuple[object, ...]:
    return (message.topic, message.queue_id, message.flag, message.born_timestamp, len(message.body), message.body_crc)
