from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, final

from mqfast.store.base.os_api import OsApi
from mqfast.store.record.record import StoredMessage

@final
class LogTail:
    position: int
    def __init__(
        self,
        os_api: OsApi,
        directories: Sequence[str],
        position: int,
        topic: str | None,
        queue_id: int | None,
        tags: str | None,
        spin: bool,
        poll_interval_us: float,
        check_crc: bool,
    ) -> None: ...
    def poll(self, max_count: int = 32, timeout: float | None = None) -> list[StoredMessage]: ...
    def __iter__(self) -> Iterator[StoredMessage]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
