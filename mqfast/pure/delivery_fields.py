"""The base of ``Delivery`` in Python: the form of ``client/delivery_fields.pyx`` without compiled code. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqfast.client.delivery import Source
    from mqfast.client.inner_batch import InnerRecord
    from mqfast.store.record.record import StoredMessage


class Received:
    """The base of ``Delivery``. Attributes: as in ``delivery_fields.pyx``."""

    __slots__ = ("_record", "_source", "again", "arrived_s", "begun_s")

    def __init__(self, record: StoredMessage | InnerRecord, source: Source) -> None:
        self._record = record
        self._source = source
        self.again = 0
        self.arrived_s = 0.0
        self.begun_s = 0.0

    @property
    def queue_offset(self) -> int:
        """Return the queue offset."""
        return self._record.queue_offset

    @property
    def store_size(self) -> int:
        """Return the size of the record, bytes."""
        return self._record.size
