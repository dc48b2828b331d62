"""mqfast: RocketMQ's message store, embedded.

    with mqfast.open("/var/lib/app/store") as store:
        result = store.put("orders", b"body", tags="new", keys="order-7")
        for message in store.get("orders", 0, 0):
            print(message.queue_offset, bytes(message.body))

The route of one message, and the room of each step:

    put        store/_put.pyx            checks, and the bound producer
    append     store/_commit_log.pyx     one record in the log, in the page cache (or a pool buffer)
    commit     store/flush.py            pool buffer -> page cache
    flush      store/flush.py            page cache -> disk
    dispatch   store/_dispatch.pyx       log -> queue unit, index entry
    get        store/_read.pyx           queue unit -> message, zero-copy
    query      store/index_service.py    key -> message
    reopen     store/recovery.py         what a crash left -> a store that goes on

Importing this package imports neither numpy nor asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mqfast import errors
from mqfast.config import StoreConfig
from mqfast.message import Message
from mqfast.store.message_store import MessageStore
from mqfast.store.message_store import open_store as open
from mqfast.store.results import BoundaryType, GetMessageStatus, PutMessageStatus, StoreState

if TYPE_CHECKING:
    from mqfast.store.reader import StoreReader
    from mqfast.store.verify import repair, verify

__all__ = [
    "BoundaryType",
    "GetMessageStatus",
    "Message",
    "MessageStore",
    "PutMessageStatus",
    "StoreConfig",
    "StoreReader",
    "StoreState",
    "__version__",
    "errors",
    "open",
    "repair",
    "verify",
]

__version__ = "0.1.0"

_LATER = {"StoreReader": "mqfast.store.reader", "repair": "mqfast.store.verify", "verify": "mqfast.store.verify"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mqfast' has no attribute {name!r}")
