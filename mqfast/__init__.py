"""mqfast: RocketMQ's message store as a Python package.

    with mqfast.open("/var/lib/app/store") as store:
        result = store.put("orders", b"body", tags="new", keys="order-7")
        for message in store.get("orders", 0, 0):
            print(message.queue_offset, bytes(message.body))

The route of one message, and the file of each step:

    put        store/put/_put.pyx              checks, and the bound producer
    append     store/log/_commit_log.pyx       one record in the log, in the page cache (or a pool buffer)
    commit     store/log/flush.py              pool buffer -> page cache
    flush      store/log/flush.py              page cache -> disk
    dispatch   store/dispatch/_dispatch.pyx    log -> queue unit, index entry
    get        store/get/_read.pyx             queue unit -> message, zero-copy
    query      store/index/index_service.py    key -> message
    reopen     store/check/recovery.py         what a crash left -> a consistent store

The import of this package loads no other module of mqfast: each public name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast import errors
    from mqfast.config import Setting, StoreConfig
    from mqfast.message import Bodies, Body, Keys, Message, MessageId, Properties, PutOptions, SysFlag
    from mqfast.settings import StoreSettings
    from mqfast.store.base.results import BoundaryType, GetMessageStatus, PutMessageStatus, StoreState
    from mqfast.store.check.recovery import RecoveryReport
    from mqfast.store.check.repair import RepairReport, repair
    from mqfast.store.check.verify import Damage, Report, Severity, verify
    from mqfast.store.consumer import Consumer, OffsetReset
    from mqfast.store.get._get_result import GetResult
    from mqfast.store.message_store import MessageStore
    from mqfast.store.message_store import open_store as open
    from mqfast.store.put._put import BoundProducer
    from mqfast.store.put._put_result import BatchResult, PutResult, Ticket
    from mqfast.store.reader._gather import RecordColumns
    from mqfast.store.reader._tail import LogTail
    from mqfast.store.reader.bounds import QueueRange
    from mqfast.store.reader.store_reader import LogScan, ReadResult, StoreReader
    from mqfast.store.record._record import StoredMessage

__all__ = [
    "BatchResult",
    "Bodies",
    "Body",
    "BoundProducer",
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

# Where each name is; the imports above, which only type checkers read, say the same.
_HOMES = {
    "BatchResult": "mqfast.store.put._put_result",
    "Bodies": "mqfast.message",
    "Body": "mqfast.message",
    "BoundProducer": "mqfast.store.put._put",
    "BoundaryType": "mqfast.store.base.results",
    "Consumer": "mqfast.store.consumer",
    "Damage": "mqfast.store.check.verify",
    "GetMessageStatus": "mqfast.store.base.results",
    "GetResult": "mqfast.store.get._get_result",
    "Keys": "mqfast.message",
    "LogScan": "mqfast.store.reader.store_reader",
    "LogTail": "mqfast.store.reader._tail",
    "Message": "mqfast.message",
    "MessageId": "mqfast.message",
    "MessageStore": "mqfast.store.message_store",
    "OffsetReset": "mqfast.store.consumer",
    "Properties": "mqfast.message",
    "PutMessageStatus": "mqfast.store.base.results",
    "PutOptions": "mqfast.message",
    "PutResult": "mqfast.store.put._put_result",
    "QueueRange": "mqfast.store.reader.bounds",
    "ReadResult": "mqfast.store.reader.store_reader",
    "RecordColumns": "mqfast.store.reader._gather",
    "RecoveryReport": "mqfast.store.check.recovery",
    "RepairReport": "mqfast.store.check.repair",
    "Report": "mqfast.store.check.verify",
    "Setting": "mqfast.config",
    "Severity": "mqfast.store.check.verify",
    "StoreConfig": "mqfast.config",
    "StoreReader": "mqfast.store.reader.store_reader",
    "StoreSettings": "mqfast.settings",
    "StoreState": "mqfast.store.base.results",
    "StoredMessage": "mqfast.store.record._record",
    "SysFlag": "mqfast.message",
    "Ticket": "mqfast.store.put._put_result",
    "open": "mqfast.store.message_store",
    "repair": "mqfast.store.check.repair",
    "verify": "mqfast.store.check.verify",
}
# Modules that are reached as attributes, as after an import of the module itself.
_MODULES = frozenset({"config", "errors", "message", "properties", "settings", "store"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mqfast.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'mqfast' has no attribute {name!r}", name=name)
    value = getattr(import_module(_HOMES[name]), "open_store" if name == "open" else name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
