"""``Broker``, the entry point of ``mqfast.testing``: servers in the process of the test, or in a child process."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any, Self

from mqfast.testing import checks
from mqfast.testing.broker_base import BrokerBase

__all__ = ["Broker"]


class Broker(BrokerBase, metaclass=ABCMeta):
    """Name servers and brokers in this process, on free ports of the loopback interface, in a thread of their own.

    Args:
        topics: initial topics: names (4 queues each), or name -> queues.
        groups: initial consumer groups; further groups are created on first use.
        brokers, name_servers: count of each.
        store: a directory that is kept; by default a directory in memory if there is room, removed at the end.
        virtual_time: time stands still, and only ``clock`` advances the time.
        auto_create_topics: whether the first send creates a topic.
        retry_at_once: delay levels, and so retries, take no time; not with virtual_time. Else RocketMQ's times.
        config: settings of the brokers by RocketMQ's names, as ``{"maxMessageSize": "65536"}``.
        process: run all servers in one child process: ``kill`` is a SIGKILL then, and no interpreter is shared.
    Attributes: ``namesrv_addr``: for clients; ``clock``; ``faults``.
    Raises: UsageError, ConfigError for impossible arguments; the errors of ``start``.
    Thread: any other than the broker's; one call at a time. Durability: acknowledged messages survive
    ``kill(power_loss=True)`` unless config says flushDiskType=ASYNC_FLUSH.
    """

    def __new__(cls, *, process: bool = False, **arguments: Any) -> Self:
        """Return a Broker; a ``ProcessBroker``, which counts as a Broker, with ``process=True``."""
        if checks.flag("process", process) and cls is Broker:
            from mqfast.testing.process import ProcessBroker

            cls.register(ProcessBroker)
            return ProcessBroker(**arguments)  # type: ignore[return-value]
        return super().__new__(cls)
