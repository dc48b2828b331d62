"""Types of delivery_fields.pyx."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqfast.client.delivery import Source
    from mqfast.client.inner_batch import InnerRecord
    from mqfast.store.record.record import StoredMessage

class Received:
    again: int
    arrived_s: float
    begun_s: float
    def __init__(self, record: StoredMessage | InnerRecord, source: Source) -> None: ...
    @property
    def _record(self) -> StoredMessage | InnerRecord: ...
    @property
    def _source(self) -> Source: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_size(self) -> int: ...
