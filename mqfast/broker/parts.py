"""BrokerContext: what each part of a broker gets in its constructor.

It must never do anything itself: ``broker.py`` fills it, parts read it. Source: BrokerController's getters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mqfast.remoting.processors import Processors

if TYPE_CHECKING:
    from mqfast.broker.acl.rights import Rights
    from mqfast.broker.admin.queue_assignment import RequestMode
    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.filter.consumer_filter_manager import ConsumerFilters
    from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerManager
    from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
    from mqfast.broker.metadata.client_manager.queue_locks import QueueLocks
    from mqfast.broker.metadata.config_persistence import Changes
    from mqfast.broker.metadata.registration import Registration
    from mqfast.broker.metadata.subscription_group_manager import SubscriptionGroupManager
    from mqfast.broker.metadata.topic_manager import TopicManager
    from mqfast.broker.metrics.broker_stats import BrokerStats
    from mqfast.broker.metrics.http_server import HttpServer
    from mqfast.broker.pull.consumer_offsets import QueueOffsets, ResetOffsets
    from mqfast.broker.pull.long_polling import LongPolling
    from mqfast.broker.replication.replica_manager import ReplicaManager
    from mqfast.broker.send.flush_waiter import FlushWaiter
    from mqfast.broker.send.message_writer import MessageWriter
    from mqfast.broker.transaction.open_transactions import OpenTransactions
    from mqfast.remoting.client import RemotingClient
    from mqfast.remoting.latency import Latencies
    from mqfast.schedule.delay_service import DelayService
    from mqfast.schedule.timer.service import TimerService
    from mqfast.store.engine import Engine
    from mqfast.store.message_store import MessageStore
    from mqfast.store.meta.offsets import ConsumerOffsets
    from mqfast.store.meta.tables import ConfigTables

__all__ = ["BrokerContext", "Part"]


class Part(Protocol):
    """One part of a broker: what serves some codes, or works by the clock.

    ``Broker`` registers the codes of every part, starts parts in the order of its list and stops them in reverse.
    """

    def register(self, processors: Processors) -> None:
        """Put the codes into the table of the server."""

    def start(self) -> None:
        """Begin what runs by the clock; the event loop runs."""

    async def stop(self) -> None:
        """End it: answer what waits, persist what is to be persisted."""


@dataclass(slots=True)
class BrokerContext:
    """What the parts share.

    Attributes:
        now_ms: the wall clock, ms since the epoch.
        address: ``host:port`` that clients are told; store_host: the same as 8 or 20 bytes.
        tables: the tables of ``config/``; the broker owns them and persists them.
        changes: what was changed in the tables of topics and groups, and is not yet on disk.
        replicas: the other brokers of this broker's name.
        rights: what callers may do; everything without access control.
        timer: the timing wheel, where it is on.
        delays: what delivers messages of delay levels; None on a slave.
        stopping: the broker takes no new requests.
        latencies: how long requests took, where metrics are served.
        halves: which transactions are open.
        http: the server of metrics and probes, where it runs.
        filters: SQL filters of groups; hold: pulls that wait for messages; pull_offsets: how far each group has pulled;
            reset_offsets: offsets of admins that the next pull of a group is told.
        request_modes: topic -> group -> how the group is to consume the topic.
    Thread: that of the event loop.
    """

    config: BrokerConfig
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    store: MessageStore
    engine: Engine
    tables: ConfigTables
    changes: Changes
    topics: TopicManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsets
    consumers: ConsumerManager
    producers: ProducerManager
    locks: QueueLocks
    writer: MessageWriter
    stats: BrokerStats
    durable: FlushWaiter
    client: RemotingClient
    registration: Registration
    address: str
    store_host: bytes
    replicas: ReplicaManager
    rights: Rights
    latencies: Latencies | None = None
    timer: TimerService | None = None
    delays: DelayService | None = None
    stopping: bool = False
    started_ms: int = field(default=0)
    http: HttpServer | None = field(default=None)
    request_modes: dict[str, dict[str, RequestMode]] = field(default_factory=dict)
    filters: ConsumerFilters = field(init=False)
    open_transactions: OpenTransactions = field(init=False)
    long_polling: LongPolling = field(init=False)
    pull_offsets: QueueOffsets = field(init=False)
    reset_offsets: ResetOffsets = field(init=False)
