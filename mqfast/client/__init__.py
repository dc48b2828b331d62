"""The client of RocketMQ clusters: producers, consumers, administration, each for threads and for asyncio.

    with Producer("order-service", "127.0.0.1:9876") as producer:
        producer.send("orders", b"42", tags="new", keys="42")

Rooms: ``net`` (steps, the shells that run them, what all clients of a process share), ``route``, ``producer``,
``consumer``, ``admin``. The import of this package loads none of them: each name is loaded on first use.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.admin.async_admin_client import AsyncAdminClient
    from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
    from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
    from mqfast.client.consumer.pull_consumer import PullConsumer
    from mqfast.client.consumer.push_consumer import PushConsumer
    from mqfast.client.delivery import Delivery
    from mqfast.client.hooks import ClientHook, ConsumeContext, SendContext
    from mqfast.client.producer.async_producer import AsyncProducer
    from mqfast.client.producer.producer import Producer
    from mqfast.client.producer.transaction import AsyncTransactionProducer, TransactionProducer
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

__all__ = [
    "Address",
    "AdminClient",
    "AsyncAdminClient",
    "AsyncPullConsumer",
    "AsyncProducer",
    "AsyncPushConsumer",
    "AsyncTransactionProducer",
    "Body",
    "ClientHook",
    "ConsumeContext",
    "ConsumeStatus",
    "Credentials",
    "Delivery",
    "MessageQueue",
    "PullConsumer",
    "PullStatus",
    "Producer",
    "PushConsumer",
    "ResetPlan",
    "Retry",
    "SendContext",
    "SendResult",
    "SendStatus",
    "TransactionProducer",
    "TransactionStatus",
    "When",
]

# Where each name is; the imports above, which only type checkers read, say the same.
_HOMES = {
    "AsyncProducer": "producer.async_producer",
    "AsyncTransactionProducer": "producer.transaction",
    "TransactionProducer": "producer.transaction",
    "ClientHook": "hooks",
    "ConsumeContext": "hooks",
    "Producer": "producer.producer",
    "SendContext": "hooks",
    "Address": "values",
    "AdminClient": "admin.admin_client",
    "AsyncAdminClient": "admin.async_admin_client",
    "AsyncPullConsumer": "consumer.async_pull_consumer",
    "AsyncPushConsumer": "consumer.async_push_consumer",
    "Body": "values",
    "ConsumeStatus": "values",
    "Credentials": "values",
    "Delivery": "delivery",
    "MessageQueue": "values",
    "PullConsumer": "consumer.pull_consumer",
    "PullStatus": "values",
    "PushConsumer": "consumer.push_consumer",
    "ResetPlan": "values",
    "Retry": "values",
    "SendResult": "values",
    "SendStatus": "values",
    "TransactionStatus": "values",
    "When": "values",
}

logging.getLogger("mqfast.client").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqfast.client' has no attribute {name!r}", name=name)
    value = getattr(import_module(f"mqfast.client.{_HOMES[name]}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
