"""``Broker``, the entry point of ``mqfast.testing``: servers in the process of the test, or in a child process."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any, Self

from mqfast.testing import checks
from mqfast.testing.broker_base import BrokerBase

__all__ = ["Broker"]


class Broker(BrokerBase, metaclass=ABCMeta):
    """Name servers and brokers in this process, on free ports of the loopback interface; a thread of their own.

    Args:
        topics: those that are there from the start: names (4 queues each), or name -> queues.
        groups: consumer groups that are there from the start; others are made when they are used.
        brokers, name_servers: how many.
        store: a directory that is kept; by default one in memory where there is room, which is removed at the end.
        virtual_time: time stands, and moves by ``clock`` alone.
        auto_create_topics: is a topic made by the first send to it?
        retry_at_once: delay levels, and so retries, take no time; not with virtual_time. Else RocketMQ's times.
        config: settings of the brokers by RocketMQ's names, as ``{"maxMessageSize": "65536"}``.
        process: run all servers in one child process: ``kill`` is a SIGKILL then, and no interpreter is shared.
    Attributes: ``namesrv_addr``: for clients; ``clock``; ``faults``.
    Raises: UsageError, ConfigError for arguments that cannot be; what ``start`` raises.
    Thread: any but its own; not several at once. Durability: acknowledged messages survive ``kill(power_loss=True)``
    unless config says flushDiskType=ASYNC_FLUSH.
    """

    def __new__(cls, *, process: bool = False, **arguments: Any) -> Self:
        """Return a Broker; a ``ProcessBroker``, which counts as a Broker, with ``process=True``."""
        if checks.flag("process", process) and cls is Broker:
            from mqfast.testing.process import ProcessBroker

            cls.register(ProcessBroker)
            return ProcessBroker(**arguments)  # type: ignore[return-value]
        return super().__new__(cls)
