"""Types of get_records.pyx."""

from collections.abc import Callable
from types import TracebackType
from typing import Self, final

from mqfast.store.base.results import GetMessageStatus
from mqfast.store.core import Core
from mqfast.store.get.get_message import QueueUnit
from mqfast.store.record.filter import UnitFilter
from mqfast.store.record.record import StoredMessage

@final
class GetLimits:
    def __init__(
        self,
        *,
        total_memory_bytes: int | None = None,
        access_message_in_memory_max_ratio: int = 40,
        max_transfer_bytes_on_message_in_memory: int = 262144,
        max_transfer_count_on_message_in_memory: int = 32,
        max_transfer_bytes_on_message_in_disk: int = 65536,
        max_transfer_count_on_message_in_disk: int = 8,
        max_filter_message_size: int = 16000,
        travel_cq_file_num_when_get_message: int = 1,
    ) -> None: ...
    @property
    def in_memory_bytes(self) -> int: ...

@final
class GetMessageResult:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def status(self) -> GetMessageStatus: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def message_count(self) -> int: ...
    @property
    def suggest_pulling_from_slave(self) -> bool: ...
    @property
    def buffers(self) -> list[memoryview]: ...
    @property
    def queue_offsets(self) -> list[int]: ...
    @property
    def messages(self) -> list[StoredMessage]: ...
    def check_damage(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __len__(self) -> int: ...

def get_records(
    self: Core,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int = 32,
    *,
    max_bytes: int = ...,
    filter: UnitFilter | Callable[[QueueUnit], bool] | None = None,
    limits: GetLimits | None = None,
    correct_offset: bool = True,
) -> GetMessageResult: ...
def unit_at(self: Core, topic: str, queue_id: int, offset: int) -> QueueUnit: ...
def record_at(self: Core, physical_offset: int) -> memoryview: ...
