"""mqfast: RocketMQ's message store as a Python package.

    with mqfast.open("/var/lib/app/store") as store:
        result = store.put("orders", b"body", tags="new", keys="order-7")
        for message in store.get("orders", 0, 0):
            print(message.queue_offset, bytes(message.body))

The route of one message, and the file of each step:

    put        store/put/put_message.pyx              checks, and the bound producer
    append     store/log/commit_log.pyx       one record in the log, in the page cache (or a pool buffer)
    commit     store/log/flush.py              pool buffer -> page cache
    flush      store/log/flush.py              page cache -> disk
    dispatch   store/dispatch/dispatch.pyx    log -> queue unit, index entry
    get        store/get/get_message.pyx             queue unit -> message, zero-copy
    query      store/index/index_service.py    key -> message
    reopen     store/check/recovery.py         the state after a crash -> a consistent store

Clients of brokers are public names as well: ``from mqfast import Producer, PushConsumer``; see ``mqfast.client``.

The import of this package loads no other module of mqfast: each public name is loaded on first use. Without compiled
code one module is loaded more, ``mqfast/pure/form.py``, which finds the Python forms of compiled modules.
"""

from __future__ import annotations

import os as _os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES as _EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast import errors
    from mqfast.client import AdminClient as AdminClient
    from mqfast.client import AsyncAdminClient as AsyncAdminClient
    from mqfast.client import AsyncProducer as AsyncProducer
    from mqfast.client import AsyncPullConsumer as AsyncPullConsumer
    from mqfast.client import AsyncPushConsumer as AsyncPushConsumer
    from mqfast.client import AsyncSimpleConsumer as AsyncSimpleConsumer
    from mqfast.client import AsyncTransactionProducer as AsyncTransactionProducer
    from mqfast.client import ClientHook as ClientHook
    from mqfast.client import ConsumeContext as ConsumeContext
    from mqfast.client import ConsumeStatus as ConsumeStatus
    from mqfast.client import Credentials as Credentials
    from mqfast.client import Delivery as Delivery
    from mqfast.client import MessageQueue as MessageQueue
    from mqfast.client import Producer as Producer
    from mqfast.client import PullConsumer as PullConsumer
    from mqfast.client import PullStatus as PullStatus
    from mqfast.client import PushConsumer as PushConsumer
    from mqfast.client import ResetPlan as ResetPlan
    from mqfast.client import Retry as Retry
    from mqfast.client import SendContext as SendContext
    from mqfast.client import SendResult as SendResult
    from mqfast.client import SendStatus as SendStatus
    from mqfast.client import SimpleConsumer as SimpleConsumer
    from mqfast.client import TransactionProducer as TransactionProducer
    from mqfast.client import TransactionStatus as TransactionStatus
    from mqfast.config import Setting, StoreConfig
    from mqfast.errors import Backlog as Backlog
    from mqfast.errors import BrokerBusy as BrokerBusy
    from mqfast.errors import BrokerError as BrokerError
    from mqfast.errors import ClientClosed as ClientClosed
    from mqfast.errors import ClientError as ClientError
    from mqfast.errors import ClientForked as ClientForked
    from mqfast.errors import ConnectError as ConnectError
    from mqfast.errors import NoRoute as NoRoute
    from mqfast.errors import Refused as Refused
    from mqfast.errors import SendFailed as SendFailed
    from mqfast.errors import SendTimeout as SendTimeout
    from mqfast.errors import SubscriptionError as SubscriptionError
    from mqfast.message import Bodies, Body, Keys, Message, MessageId, Properties, PutOptions, SysFlag
    from mqfast.settings import StoreSettings
    from mqfast.store.base.results import BoundaryType, GetMessageStatus, PutMessageStatus, StoreState
    from mqfast.store.check.recovery import RecoveryReport
    from mqfast.store.check.repair import repair
    from mqfast.store.check.repair_report import RepairReport
    from mqfast.store.check.verify import Damage, Report, Severity, verify
    from mqfast.store.consumer import Consumer, OffsetReset
    from mqfast.store.get.get_result import GetResult
    from mqfast.store.message_store import MessageStore
    from mqfast.store.message_store import open_store as open
    from mqfast.store.put.put_message import BoundProducer
    from mqfast.store.put.put_result import BatchResult, PutResult, Ticket
    from mqfast.store.reader.bounds import QueueRange
    from mqfast.store.reader.gather import RecordColumns
    from mqfast.store.reader.store_reader import LogScan, ReadResult, StoreReader
    from mqfast.store.reader.tail import LogTail
    from mqfast.store.record.record import StoredMessage

    # At run time the names of clients are included if msgspec is installed: see __getattr__.
    __all__ = [
        "AdminClient",
        "AsyncAdminClient",
        "AsyncProducer",
        "AsyncPullConsumer",
        "AsyncPushConsumer",
        "AsyncSimpleConsumer",
        "AsyncTransactionProducer",
        "Backlog",
        "BatchResult",
        "Bodies",
        "Body",
        "BoundProducer",
        "BoundaryType",
        "BrokerBusy",
        "BrokerError",
        "ClientClosed",
        "ClientError",
        "ClientForked",
        "ClientHook",
        "ConnectError",
        "ConsumeContext",
        "ConsumeStatus",
        "Consumer",
        "Credentials",
        "Damage",
        "Delivery",
        "GetMessageStatus",
        "GetResult",
        "Keys",
        "LogScan",
        "LogTail",
        "Message",
        "MessageId",
        "MessageQueue",
        "MessageStore",
        "NoRoute",
        "OffsetReset",
        "Producer",
        "Properties",
        "PullConsumer",
        "PullStatus",
        "PushConsumer",
        "SimpleConsumer",
        "PutMessageStatus",
        "PutOptions",
        "PutResult",
        "QueueRange",
        "ReadResult",
        "RecordColumns",
        "RecoveryReport",
        "Refused",
        "RepairReport",
        "Report",
        "ResetPlan",
        "Retry",
        "SendContext",
        "SendFailed",
        "SendResult",
        "SendStatus",
        "SendTimeout",
        "Setting",
        "Severity",
        "StoreConfig",
        "StoreReader",
        "StoreSettings",
        "StoreState",
        "StoredMessage",
        "SubscriptionError",
        "SysFlag",
        "Ticket",
        "TransactionProducer",
        "TransactionStatus",
        "__version__",
        "errors",
        "open",
        "repair",
        "verify",
    ]

__version__ = "0.1.0"


def _is_excluded() -> bool:
    """Return whether ``MQFAST_PURE=1`` excludes compiled modules."""
    return _os.environ.get("MQFAST_PURE", "").strip().lower() not in ("", "0", "no", "off", "false")


def _is_compiled() -> bool:
    """Return whether compiled modules are there."""
    folder = _os.path.dirname(__file__)
    return any(_os.path.exists(_os.path.join(folder, f"cython_runtime{suffix}")) for suffix in _EXTENSION_SUFFIXES)


if _is_excluded() or not _is_compiled():
    from mqfast.pure.form import use_python_forms as _use_python_forms

    _use_python_forms(is_excluded=_is_excluded())
# Module of each name; the imports above, which only type checkers read, must agree.
_HOMES = {
    "BatchResult": "mqfast.store.put.put_result",
    "Bodies": "mqfast.message",
    "Body": "mqfast.message",
    "BoundProducer": "mqfast.store.put.put_message",
    "BoundaryType": "mqfast.store.base.results",
    "Consumer": "mqfast.store.consumer",
    "Damage": "mqfast.store.check.verify",
    "GetMessageStatus": "mqfast.store.base.results",
    "GetResult": "mqfast.store.get.get_result",
    "Keys": "mqfast.message",
    "LogScan": "mqfast.store.reader.store_reader",
    "LogTail": "mqfast.store.reader.tail",
    "Message": "mqfast.message",
    "MessageId": "mqfast.message",
    "MessageStore": "mqfast.store.message_store",
    "OffsetReset": "mqfast.store.consumer",
    "Properties": "mqfast.message",
    "PutMessageStatus": "mqfast.store.base.results",
    "PutOptions": "mqfast.message",
    "PutResult": "mqfast.store.put.put_result",
    "QueueRange": "mqfast.store.reader.bounds",
    "ReadResult": "mqfast.store.reader.store_reader",
    "RecordColumns": "mqfast.store.reader.gather",
    "RecoveryReport": "mqfast.store.check.recovery",
    "RepairReport": "mqfast.store.check.repair_report",
    "Report": "mqfast.store.check.verify",
    "Setting": "mqfast.config",
    "Severity": "mqfast.store.check.verify",
    "StoreConfig": "mqfast.config",
    "StoreReader": "mqfast.store.reader.store_reader",
    "StoreSettings": "mqfast.settings",
    "StoreState": "mqfast.store.base.results",
    "StoredMessage": "mqfast.store.record.record",
    "SysFlag": "mqfast.message",
    "Ticket": "mqfast.store.put.put_result",
    "open": "mqfast.store.message_store",
    "repair": "mqfast.store.check.repair",
    "verify": "mqfast.store.check.verify",
}
# Clients of brokers, which need the extra mqfast[client].
_OF_CLIENTS = frozenset(
    {
        "AdminClient",
        "AsyncAdminClient",
        "AsyncProducer",
        "AsyncPullConsumer",
        "AsyncPushConsumer",
        "AsyncSimpleConsumer",
        "AsyncTransactionProducer",
        "ClientHook",
        "ConsumeContext",
        "ConsumeStatus",
        "Credentials",
        "Delivery",
        "MessageQueue",
        "Producer",
        "PullConsumer",
        "PullStatus",
        "PushConsumer",
        "SimpleConsumer",
        "ResetPlan",
        "Retry",
        "SendContext",
        "SendResult",
        "SendStatus",
        "TransactionProducer",
        "TransactionStatus",
    }
)
_OF_ERRORS = frozenset(
    {
        "Backlog",
        "BrokerBusy",
        "BrokerError",
        "ClientClosed",
        "ClientError",
        "ClientForked",
        "ConnectError",
        "NoRoute",
        "Refused",
        "SendFailed",
        "SendTimeout",
        "SubscriptionError",
    }
)
# Modules that are reached as attributes, as after an import of the module itself.
_MODULES = frozenset({"client", "config", "errors", "message", "properties", "settings", "store"})


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _public_names()
    if name in _MODULES:
        return import_module(f"mqfast.{name}")
    if name in _OF_CLIENTS or name in _OF_ERRORS:
        return _of_client(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'mqfast' has no attribute {name!r}", name=name)
    value = getattr(import_module(_HOMES[name]), "open_store" if name == "open" else name)
    globals()[name] = value  # later accesses do not call this function
    return value


def _of_client(name: str) -> Any:
    try:
        value = getattr(import_module("mqfast.errors" if name in _OF_ERRORS else "mqfast.client"), name)
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise ImportError(f"mqfast.{name} needs msgspec: pip install 'mqfast[client]'", name=error.name) from None
    globals()[name] = value
    return value


def _public_names() -> list[str]:
    """Return the names of ``from mqfast import *``: without clients if the client's extra is missing."""
    from importlib.machinery import PathFinder

    clients = _OF_CLIENTS if PathFinder.find_spec("msgspec") is not None else ()
    return sorted({*_HOMES, *_OF_ERRORS, *clients, "__version__", "errors"})


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__") and name.endswith("__"))
    return sorted({*own, *_HOMES, *_OF_CLIENTS, *_OF_ERRORS, *_MODULES} - {"__getattr__", "__dir__"})
