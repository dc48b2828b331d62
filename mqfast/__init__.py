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
from mqfast.config import Setting, StoreConfig
from mqfast.message import Bodies, Body, Keys, Message, MessageId, Properties, PutOptions, SysFlag
from mqfast.store._put import Producer
from mqfast.store._put_result import BatchResult, PutResult, Ticket
from mqfast.store._read import GetResult
from mqfast.store._record import StoredMessage
from mqfast.store.consumer import Consumer, OffsetReset
from mqfast.store.message_store import MessageStore
from mqfast.store.message_store import open_store as open
from mqfast.store.recovery import RecoveryReport
from mqfast.store.results import BoundaryType, GetMessageStatus, PutMessageStatus, StoreState

if TYPE_CHECKING:
    from mqfast.settings import StoreSettings
    from mqfast.store._gather import RecordColumns
    from mqfast.store._tail import LogTail
    from mqfast.store.reader import LogScan, ReadResult, StoreReader
    from mqfast.store.reader_bounds import QueueRange
    from mqfast.store.repair import RepairReport, repair
    from mqfast.store.verify import Damage, Report, Severity, verify

__all__ = [
    "BatchResult",
    "Bodies",
    "Body",
    "BoundaryType",
    "Consumer",
    "Damage",
    "GetMessageStatus",
    "GetResult",
    "Keys",
    "LogScan",
    "LogTail",
    "Message",
    "MessageId",
    "MessageStore",
    "OffsetReset",
    "Producer",
    "Properties",
    "PutMessageStatus",
    "PutOptions",
    "PutResult",
    "QueueRange",
    "ReadResult",
    "RecordColumns",
    "RecoveryReport",
    "RepairReport",
    "Report",
    "Setting",
    "Severity",
    "StoreConfig",
    "StoreReader",
    "StoreSettings",
    "StoreState",
    "StoredMessage",
    "SysFlag",
    "Ticket",
    "__version__",
    "errors",
    "open",
    "repair",
    "verify",
]

__version__ = "0.1.0"

# What only some programs need is imported when it is asked for.
_LATER = {
    "Damage": "mqfast.store.verify",
    "LogScan": "mqfast.store.reader",
    "LogTail": "mqfast.store._tail",
    "QueueRange": "mqfast.store.reader_bounds",
    "ReadResult": "mqfast.store.reader",
    "RecordColumns": "mqfast.store._gather",
    "RepairReport": "mqfast.store.repair",
    "Report": "mqfast.store.verify",
    "Severity": "mqfast.store.verify",
    "StoreReader": "mqfast.store.reader",
    "StoreSettings": "mqfast.settings",
    "repair": "mqfast.store.repair",
    "verify": "mqfast.store.verify",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mqfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
