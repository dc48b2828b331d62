"""Types of gather.pyx."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

from mqfast.store.reader.scan import LogWalk, PreadFile
from mqfast.store.record.record import StoredMessage

ANY_QUEUE: Final[int]
COLUMNS: Final[tuple[str, ...]]

@final
class RecordColumns:
    @property
    def rows(self) -> int: ...
    def __len__(self) -> int: ...
    # Capsules have no type of their own.
    def __arrow_c_schema__(self) -> Any: ...
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...

@final
class Gather:
    def __new__(
        cls,
        columns: Iterable[tuple[str, str, bool]],
        *,
        batch_bytes: int = 1048576,
        batch_rows: int = 65536,
        micros: bool = False,
        check_crc: bool = False,
        bad: str = "stop",
        queues: Mapping[tuple[str, int], tuple[int, int]] | None = None,
        hidden: Sequence[str] = (),
        tags: Sequence[str] | None = None,
        stored_from: int | None = None,
        stored_before: int | None = None,
        queued_only: bool = True,
    ) -> Gather: ...
    @property
    def rows(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    def along(self, walk: LogWalk, limit: int) -> str: ...
    def units(
        self, units: bytes, at: int, first_offset: int, file: PreadFile, topic: bytes, queue_id: int
    ) -> tuple[int, str]: ...
    def answer(
        self,
        body: bytes | bytearray | memoryview,
        at: int,
        expected: int,
        begin: int,
        end: int,
        asked: bytes,
        topic: bytes,
        queue_id: int,
    ) -> tuple[int, str, int, int]: ...
    def message(
        self, message: StoredMessage, topic: bytes, queue_id: int, queue_offset: int, crc_ok: bool = True
    ) -> bool: ...
    def arrow_schema(self) -> Any: ...
    def finish(self) -> RecordColumns: ...
