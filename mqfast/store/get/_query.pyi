"""Types of _query.pyx; what each part does is described there."""

from mqfast.store.put._put import PutPath
from mqfast.store.record._record import StoredMessage

def query(
    self: PutPath,
    topic: str,
    key: str | None = None,
    max_count: int | None = None,
    begin_ms: int = 0,
    end_ms: int = ...,
    *,
    tag: str | None = None,
) -> list[StoredMessage]: ...
