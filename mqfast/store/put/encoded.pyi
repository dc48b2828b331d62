"""Types of encoded.pyx."""

from mqfast.message import Body
from mqfast.store.core import Core
from mqfast.store.put.put_result import BatchResult, PutResult

def put_encoded(
    self: Core,
    topic: bytes,
    queue_id: int,
    body: Body,
    properties: bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int | None = None,
    born_host: bytes | None = None,
    store_host: bytes | None = None,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    wait: bool = True,
    result: PutResult | None = None,
) -> PutResult: ...
def put_stored(
    self: Core,
    physical_offset: int,
    topic: bytes | None = None,
    queue_id: int | None = None,
    properties: bytes | None = None,
    *,
    sys_flag: int | None = None,
    born_timestamp: int | None = None,
    store_host: bytes | None = None,
    reconsume_times: int | None = None,
    prepared_transaction_offset: int | None = None,
    wait: bool = True,
    result: PutResult | None = None,
) -> PutResult: ...
def put_batch_encoded(
    self: Core,
    topic: bytes,
    queue_id: int,
    body: Body,
    properties: bytes = b"",
    sys_flag: int = 0,
    born_timestamp: int | None = None,
    born_host: bytes | None = None,
    store_host: bytes | None = None,
    reconsume_times: int = 0,
    wait: bool = True,
) -> BatchResult: ...
