"""A store without threads whose clock stands still until a test moves it, and golden records to compare with.

Room: tests. It must never hold an expectation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import Case
from laboratory import open_still

from mqfast.config import StoreConfig
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore
from mqfast.store.meta.tables import ConfigTables
from mqfast.store.record.record import StoredMessage, decode_record

START_MS = 1_700_000_000_000


class Clocked:
    """One store directory: opened, closed and opened again, at the time that ``now_ms`` says."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.os_api = OsApi()
        self.path = path
        self.config = StoreConfig.tiny(**{"mapped_file_bytes_commit_log": 1 << 20, **settings})
        self.at(START_MS)
        self.open()

    def at(self, now_ms: int) -> None:
        """Set the clock of the store, forward or back."""
        self.now_ms = now_ms
        self.os_api.fix_clock(now_ms)

    def open(self) -> None:
        """Open the directory with the tables that are on disk."""
        self.tables = ConfigTables.load(self.path, self.config, os_api=self.os_api)
        self.store: MessageStore = open_still(self.path, config=self.config, os_api=self.os_api, tables=self.tables)

    def reopen(self) -> None:
        """Close in order and open; tables that nobody persisted are as they were on disk."""
        self.store.close()
        self.open()


def golden_records(case: Case) -> Iterator[tuple[str, StoredMessage]]:
    """Topic and record of every record of a golden store, in the order of the log."""
    starts = sorted(int(path.name) for path in (case.store / "commitlog").iterdir())
    files = {start: (case.store / "commitlog" / f"{start:020d}").read_bytes() for start in starts}
    for physical, _, topic, *_ in case.expected["log"]:
        if topic and topic != "BLANK":
            start = max(start for start in starts if start <= physical)
            yield topic, decode_record(files[start], physical - start)
