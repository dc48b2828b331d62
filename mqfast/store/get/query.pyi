"""Types of query.pyx."""

from mqfast.store.core import StoreBase
from mqfast.store.record.record import StoredMessage

def query(
    self: StoreBase,
    topic: str,
    key: str | None = None,
    max_count: int | None = None,
    begin_ms: int = 0,
    end_ms: int = ...,
    *,
    tag: str | None = None,
) -> list[StoredMessage]: ...
