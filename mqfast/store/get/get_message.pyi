"""Types of get_message.pyx."""

from typing import final

from mqfast.store.core import StoreBase
from mqfast.store.get.get_result import GetResult
from mqfast.store.record.record import StoredMessage

@final
class QueueUnit:
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def tags_code(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def record(self) -> StoredMessage: ...

def read(
    self: StoreBase, topic: str, queue_id: int, offset_: int, max_count_: int, max_bytes_: int, tags: str | None
) -> GetResult: ...
