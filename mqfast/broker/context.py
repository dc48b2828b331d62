"""BrokerContext: the settings, clocks, tables and connections that the parts of a broker share.

No part is in here: a part that needs another part gets the other one in its constructor (``parts.py``).
Source: BrokerController's getters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqfast.broker.acl.rights import Rights
    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.filter.consumer_filter_manager import ConsumerFilters
    from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerManager
    from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
    from mqfast.broker.metadata.client_manager.queue_locks import QueueLocks
    from mqfast.broker.metadata.config_persistence import Changes
    from mqfast.broker.metadata.message_request_mode import RequestModes
    from mqfast.broker.metadata.registration import Registration
    from mqfast.broker.metadata.subscription_group_manager import SubscriptionGroupManager
    from mqfast.broker.metadata.topic_manager import TopicManager
    from mqfast.broker.metrics.broker_stats import BrokerStats
    from mqfast.broker.pull.queue_offsets import QueueOffsets, ResetOffsets
    from mqfast.broker.send.flush_waiter import FlushWaiter
    from mqfast.broker.send.message_writer import MessageWriter
    from mqfast.remoting.client import RemotingClient
    from mqfast.remoting.latency import Latencies
    from mqfast.store.engine import Engine
    from mqfast.store.message_store import MessageStore
    from mqfast.store.meta.offsets import ConsumerOffsets
    from mqfast.store.meta.tables import ConfigTables

__all__ = ["BrokerContext"]


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """What the parts share.

    Attributes:
        now_ms: the wall clock, ms since the epoch.
        address: ``host:port`` for clients; store_host: the same as 8 or 20 bytes.
        tables: the tables of ``config/``; the broker owns and persists them.
        changes: changes of the tables of topics and groups that are not yet on disk.
        filters: SQL92 filters of groups.
        writer: stores messages; durable: waits until the log is on disk.
        rights: the permissions of callers; everything is allowed without access control.
        latencies: request latencies, where metrics are served.
        started_ms: when the broker started, ms since the epoch.
        pull_offsets: where the last pull of each group and queue ended; reset_offsets: offsets that an admin has reset
            and that the next pull of the group gets.
        request_modes: topic -> group -> how the group consumes the topic.
        stopping: set once the broker stops.
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
    filters: ConsumerFilters
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
    rights: Rights
    latencies: Latencies | None
    started_ms: int
    pull_offsets: QueueOffsets
    reset_offsets: ResetOffsets
    request_modes: RequestModes = field(default_factory=dict)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
