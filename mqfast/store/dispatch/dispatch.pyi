"""Types of dispatch.pyx; the docstrings are there."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mqfast.store.base.event import Event
from mqfast.store.base.space import Space
from mqfast.store.log.commit_log import CommitLog
from mqfast.store.queues.consume_queue import QueueTable

ODD_BLANK: str

class CommitLogDispatcher:
    error: BaseException | None
    space: Space
    follow_bytes: int
    def __init__(
        self, log: CommitLog, table: QueueTable, queues: Any, index: Any, delay_levels_ms: Sequence[int]
    ) -> None: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def table(self) -> QueueTable: ...
    @property
    def records(self) -> int: ...
    def step_if_needed(self) -> None: ...
    def follow(self, event: Event) -> None: ...
    def wait_for_records(self, event: Event, seconds: float = ...) -> bool: ...
    def step(self, limit: int = -1, again: bool = False) -> int: ...
    @property
    def waits(self) -> bool: ...
    @property
    def units_wait(self) -> bool: ...
    def hold_back(self, end: int) -> bool: ...
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
        odd_blanks_stop: bool = False,
        keys: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[int, int, int, int, str, int]: ...
    def locked(self) -> AbstractContextManager[Any]: ...
