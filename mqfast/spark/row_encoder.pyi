"""Types of row_encoder.pyx."""

from collections.abc import Callable
from typing import Any, final

PLAIN_COLUMNS: dict[str, str]

@final
class RowEncoder:
    def __init__(
        self,
        born_host: bytes,
        store_host: bytes,
        stamp: bytes,
        max_body_bytes: int,
        max_record_bytes: int,
        dropped: tuple[bytes, ...] = (),
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    def encode(
        self,
        topics: list[bytes],
        topic_of: Any,
        queue_ids: Any,
        body_offsets: Any,
        body_data: Any,
        properties: list[bytes] | None,
        flags: Any,
        sys_flags: Any,
        born_timestamps: Any,
        reconsume_times: Any,
        born_hosts: list[bytes | None] | None,
    ) -> memoryview: ...
    def encode_plain(
        self,
        batches: list[Any],
        order: Any,
        born_timestamp: int,
        check_topic: Callable[[str], bytes],
        parse_host: Callable[[str], bytes],
    ) -> memoryview: ...

def java_hashes(ends: Any, data: Any, into: Any) -> None: ...
def merge_properties(
    n: int,
    names: list[str] | None,
    values: list[str | None] | None,
    ends: list[int] | None,
    extras: list[tuple[str, list[str | None]]],
    dropped: frozenset[str],
) -> list[dict[str, str]]: ...
