"""Types of _staged.pyx; what each part does is described there."""

from typing import Any, final

from mqfast.store._put import PutPath

@final
class RowEncoder:
    def __init__(
        self, born_host: bytes, store_host: bytes, stamp: bytes, max_body_bytes: int, max_record_bytes: int
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
    ) -> bytes: ...

def count_records(block: Any, max_record_bytes: int = 0x7FFFFFFF) -> tuple[int, int]: ...
def append_records(store: PutPath, block: Any) -> int: ...
