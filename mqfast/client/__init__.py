"""The client of RocketMQ clusters: producers, consumers, administration, each for threads and for asyncio.

    with Producer("order-service", "127.0.0.1:9876") as producer:
        producer.send("orders", b"42", tags="new", keys="42")

Packages: ``net`` (request steps, their drivers, the client instance of a process), ``route``, ``producer``,
``consumer``, ``admin``. The import of this package loads no package: each name is loaded on first use.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.admin.async_admin_client import AsyncAdminClient
    from mqfast.client.consumer.allocation import Allocation
    from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
    from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
    from mqfast.client.consumer.async_simple_consumer import AsyncSimpleConsumer
    from mqfast.client.consumer.offsets import OffsetStore
    from mqfast.client.consumer.pull_consumer import PullConsumer
    from mqfast.client.consumer.push_consumer import PushConsumer
    from mqfast.client.consumer.simple_consumer import SimpleConsumer
    from mqfast.client.delivery import Delivery
    from mqfast.client.hooks import ClientHook, ConsumeContext, SendContext
    from mqfast.client.producer.async_producer import AsyncProducer
    from mqfast.client.producer.producer import Producer
    from mqfast.client.producer.transaction import AsyncTransactionProducer, Transaction, TransactionProducer
    from mqfast.client.values import (
        Address,
        Body,
        ConsumeStatus,
        Credentials,
        MessageQueue,
        PullStatus,
        ResetPlan,
        Retry,
        SendResult,
        SendStatus,
        TransactionStatus,
        When,
    )
    from mqfast.errors import (
        Backlog,
        BrokerBusy,
        BrokerError,
        ClientClosed,
        ClientError,
        ClientForked,
        ClientNested,
        ConnectError,
        NoRoute,
        Refused,
        RequestLost,
        RequestTimeout,
        SendFailed,
        SendTimeout,
        SubscriptionError,
    )
    from mqfast.message import Message

__all__ = [
    "Address",
    "AdminClient",
    "Allocation",
    "AsyncAdminClient",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransactionProducer",
    "Backlog",
    "Body",
    "BrokerBusy",
    "BrokerError",
    "ClientClosed",
    "ClientError",
    "ClientForked",
    "ClientHook",
    "ClientNested",
    "ConnectError",
    "ConsumeContext",
    "ConsumeStatus",
    "Credentials",
    "Delivery",
    "Message",
    "MessageQueue",
    "NoRoute",
    "OffsetStore",
    "Producer",
    "PullConsumer",
    "PullStatus",
    "PushConsumer",
    "Refused",
    "RequestLost",
    "RequestTimeout",
    "ResetPlan",
    "Retry",
    "SendContext",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "SimpleConsumer",
    "SubscriptionError",
    "Transaction",
    "TransactionProducer",
    "TransactionStatus",
    "When",
]

# The module of each name; the imports above, which only type checkers read, have the same names.
_HOMES = {
    "Address": "mqfast.client.values",
    "AdminClient": "mqfast.client.admin.admin_client",
    "Allocation": "mqfast.client.consumer.allocation",
    "AsyncAdminClient": "mqfast.client.admin.async_admin_client",
    "AsyncProducer": "mqfast.client.producer.async_producer",
    "AsyncPullConsumer": "mqfast.client.consumer.async_pull_consumer",
    "AsyncPushConsumer": "mqfast.client.consumer.async_push_consumer",
    "AsyncSimpleConsumer": "mqfast.client.consumer.async_simple_consumer",
    "AsyncTransactionProducer": "mqfast.client.producer.transaction",
    "Backlog": "mqfast.errors",
    "Body": "mqfast.client.values",
    "BrokerBusy": "mqfast.errors",
    "BrokerError": "mqfast.errors",
    "ClientClosed": "mqfast.errors",
    "ClientError": "mqfast.errors",
    "ClientForked": "mqfast.errors",
    "ClientHook": "mqfast.client.hooks",
    "ClientNested": "mqfast.errors",
    "ConnectError": "mqfast.errors",
    "ConsumeContext": "mqfast.client.hooks",
    "ConsumeStatus": "mqfast.client.values",
    "Credentials": "mqfast.client.values",
    "Delivery": "mqfast.client.delivery",
    "Message": "mqfast.message",
    "MessageQueue": "mqfast.client.values",
    "NoRoute": "mqfast.errors",
    "OffsetStore": "mqfast.client.consumer.offsets",
    "Producer": "mqfast.client.producer.producer",
    "PullConsumer": "mqfast.client.consumer.pull_consumer",
    "PullStatus": "mqfast.client.values",
    "PushConsumer": "mqfast.client.consumer.push_consumer",
    "Refused": "mqfast.errors",
    "RequestLost": "mqfast.errors",
    "RequestTimeout": "mqfast.errors",
    "ResetPlan": "mqfast.client.values",
    "Retry": "mqfast.client.values",
    "SendContext": "mqfast.client.hooks",
    "SendFailed": "mqfast.errors",
    "SendResult": "mqfast.client.values",
    "SendStatus": "mqfast.client.values",
    "SendTimeout": "mqfast.errors",
    "SimpleConsumer": "mqfast.client.consumer.simple_consumer",
    "SubscriptionError": "mqfast.errors",
    "Transaction": "mqfast.client.producer.transaction",
    "TransactionProducer": "mqfast.client.producer.transaction",
    "TransactionStatus": "mqfast.client.values",
    "When": "mqfast.client.values",
}

logging.getLogger("mqfast.client").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqfast.client' has no attribute {name!r}", name=name)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # later accesses do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
