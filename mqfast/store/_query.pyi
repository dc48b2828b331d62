from mqfast.store._put import PutPath
from mqfast.store._record import StoredMessage
from mqfast.store.index_service import IndexService

def query(
    store: PutPath, index: IndexService, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
) -> list[StoredMessage]: ...
