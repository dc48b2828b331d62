"""Types of _dispatch.pyx; what each part does is described there."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mqfast.store._commit_log import CommitLog
from mqfast.store._consume_queue import QueueTable

class Dispatcher:
    error: BaseException | None
    follow_bytes: int
    ahead_bytes: int
    def __init__(
        self, log: CommitLog, table: QueueTable, queues: Any, index: Any, delay_levels_ms: Sequence[int]
    ) -> None: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def table(self) -> QueueTable: ...
    @property
    def skipped(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def checked_ahead(self) -> int: ...
    def step_if_needed(self) -> None: ...
    def step(self, limit: int = -1) -> int: ...
    def recover(
        self,
        start: int,
        end: int,
        *,
        checked: bool,
        property_crc: bool,
        dispatch_from: int,
        index_from: int = 0,
        flushed_time: int = 0,
        keys: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[int, int, int, int, str, int]: ...
    def locked(self) -> AbstractContextManager[Any]: ...
