"""Parts: all components of a running broker, built at once by ``build_parts``.

Shared tables and clocks are in ``BrokerContext``; a part that needs another part gets the other part in the
constructor. ``server.py`` registers, starts and stops the parts. Source: BrokerController.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mqfast.broker.acl.access import AccessControl
from mqfast.broker.admin.admin import Admin
from mqfast.broker.config.broker_address import with_port
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.context import BrokerContext
from mqfast.broker.filter.consumer_filter_manager import ConsumerFilters
from mqfast.broker.idempotence.idempotent_writes import IdempotentWrites
from mqfast.broker.metadata.client_manager.client_limits import ClientLimits
from mqfast.broker.metadata.client_manager.client_processor import ClientProcessor
from mqfast.broker.metadata.client_manager.client_rules import ClientRules
from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerManager
from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
from mqfast.broker.metadata.client_manager.queue_locks import QueueLocks
from mqfast.broker.metadata.config_persistence import Changes
from mqfast.broker.metadata.message_request_mode import load_modes
from mqfast.broker.metadata.registration import Registration
from mqfast.broker.metadata.subscription_group_manager import SubscriptionGroupManager
from mqfast.broker.metadata.topic_manager import TopicManager
from mqfast.broker.metrics.broker_stats import BrokerStats
from mqfast.broker.pop.pop_processor import PopProcessor
from mqfast.broker.pull.consumer_offsets import OffsetProcessor
from mqfast.broker.pull.get_limits import Limits
from mqfast.broker.pull.long_polling import LongPolling
from mqfast.broker.pull.pull_message import PullProcessor
from mqfast.broker.pull.queue_offsets import QueueOffsets, ResetOffsets
from mqfast.broker.pull.send_message_back import SendBack
from mqfast.broker.replication.ha_service import HaService
from mqfast.broker.replication.replica_manager import ReplicaManager
from mqfast.broker.schedule.delay_level import Delays
from mqfast.broker.schedule.recall_message import Recall
from mqfast.broker.schedule.timer import BrokerTimers
from mqfast.broker.send.flush_waiter import FlushWaiter
from mqfast.broker.send.message_writer import MessageWriter
from mqfast.broker.send.reply_message import ReplyMessage
from mqfast.broker.send.send_message import SendProcessor
from mqfast.broker.transaction.half_message import half_of
from mqfast.broker.transaction.transactional_messages import Transactions
from mqfast.errors import MqfastError
from mqfast.grpc import IS_BUILT
from mqfast.message import parse_host
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.latency import Latencies
from mqfast.remoting.processors import Processors
from mqfast.remoting.tls import ServerCertificates
from mqfast.store.engine import Engine
from mqfast.store.message_store import MessageStore
from mqfast.store.meta.tables import ConfigTables

if TYPE_CHECKING:
    from mqfast.broker.grpc.service import GrpcService
    from mqfast.grpc.connection import Call

__all__ = ["Clocks", "Ground", "Kept", "Part", "Parts", "build_parts"]

_log = logging.getLogger("mqfast.broker")


class Part(Protocol):
    """A component of a broker: serves request codes, or runs periodically.

    ``Broker`` registers the codes of all parts, starts the parts in order and stops the parts in reverse.
    """

    def register(self, processors: Processors) -> None:
        """Put the codes into the table of the server."""

    def start(self) -> None:
        """Start periodic work; the event loop runs."""

    async def stop(self) -> None:
        """Answer waiting requests, persist, stop periodic work."""


class Clocks(NamedTuple):
    """The clocks of a broker, in ms: the wall clock, a monotonic clock, and the clock that expires clients."""

    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    client_ms: Callable[[], int]


class Ground(NamedTuple):
    """The resources that are open before the parts are built.

    Attributes: ``client``: for requests to other servers; ``host``, ``ip``, ``port``: the address for clients;
        ``latencies``: None without metrics.
    """

    config: BrokerConfig
    clocks: Clocks
    access: AccessControl
    processors: Processors
    certificates: ServerCertificates
    client: RemotingClient
    ha: HaService
    host: str
    ip: str
    port: int
    latencies: Latencies | None


class Kept(NamedTuple):
    """The state that a broker keeps when the store is replaced: the registration and the connected clients."""

    registration: Registration
    consumers: ConsumerManager
    producers: ProducerManager


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a broker, with the shared context. Thread: that of the event loop."""

    ground: Ground
    context: BrokerContext
    clients: ClientProcessor
    send: SendProcessor
    idempotent_writes: IdempotentWrites
    offsets: OffsetProcessor
    long_polling: LongPolling
    pull: PullProcessor
    pop: PopProcessor
    delays: Delays
    send_back: SendBack
    reply: ReplyMessage
    timers: BrokerTimers
    recall: Recall
    admin: Admin
    transactions: Transactions
    replicas: ReplicaManager
    grpc: GrpcService | None

    @property
    def in_start_order(self) -> tuple[Part, ...]:
        """Return the parts that serve requests, in start order."""
        return (
            self.ground.access,
            self.send,
            self.idempotent_writes,
            self.offsets,
            self.pull,
            self.delays,
            self.send_back,
            self.reply,
            self.timers,
            self.recall,
            self.pop,
            self.admin,
            self.transactions,
            self.replicas,
            *(() if self.grpc is None else (self.grpc,)),
        )

    def register(self) -> None:
        """Register the codes of all parts; responses wait for changes of tables."""
        processors = self.ground.processors
        processors.settling = self.context.changes
        self.clients.register(processors)
        for part in self.in_start_order:
            part.register(processors)

    def kept(self) -> Kept:
        """Return the state that a broker with another store keeps."""
        return Kept(self.context.registration, self.context.consumers, self.context.producers)


def build_parts(
    ground: Ground,
    store: MessageStore,
    tables: ConfigTables,
    kept: Kept | None = None,
    *,
    client_closed: Callable[[Channel], None] = lambda _: None,
    make_call: Callable[..., Call] | None = None,
) -> Parts:
    """Build all parts of a broker, without registering or starting any.

    Args: kept: state of the previous broker, whose store is replaced; client_closed: called with a gRPC client that has
    ended; make_call: as that of ``GrpcServer``, None: its default. Raises: as the constructors of the parts.
    """
    config = ground.config
    ground.access.address = with_port(ground.host, ground.port)
    limits = Limits(config)
    long_polling = LongPolling(store, store.engine, limits, held_max=config["pullThreadPoolQueueCapacity"])
    context = _context(ground, store, tables, kept, long_polling)
    replicas = ReplicaManager(context, ground.ha)  # first: other parts read writer.replicated
    writes = IdempotentWrites(context)
    recall = Recall(context)
    send = SendProcessor(context, writes, long_polling, prepare=half_of, recall_handle=recall.handle_of)
    offsets = OffsetProcessor(context, limits)
    delays, timers = Delays(context), BrokerTimers(context)  # in this order: a delay level wins over the timer
    transactions = Transactions(context)
    pop = PopProcessor(context, limits, long_polling, timers)
    replicas.before_truncation.append(pop.service.before_truncation)
    return Parts(
        ground=ground,
        context=context,
        clients=_clients(context),
        send=send,
        idempotent_writes=writes,
        offsets=offsets,
        long_polling=long_polling,
        pull=PullProcessor(context, offsets, long_polling, limits, replicas),
        pop=pop,
        delays=delays,
        send_back=SendBack(context),
        reply=ReplyMessage(context, send),
        timers=timers,
        recall=recall,
        admin=Admin(
            context,
            ground.processors,
            replicas=replicas,
            long_polling=long_polling,
            delays=delays,
            timers=timers,
            open_transactions=transactions.open_transactions,
            pop=pop.service,
        ),
        transactions=transactions,
        replicas=replicas,
        grpc=_grpc(context, ground, pop, client_closed, make_call),
    )


def _grpc(
    context: BrokerContext,
    ground: Ground,
    pop: PopProcessor,
    client_closed: Callable[[Channel], None],
    make_call: Callable[..., Call] | None,
) -> GrpcService | None:
    """Return the gRPC service; None in a build without nghttp2."""
    if not IS_BUILT:
        return None
    from mqfast.broker.grpc.service import GrpcService

    own = {} if make_call is None else {"make_call": make_call}
    return GrpcService(context, ground.processors, pop.service, client_closed, **own)


def _context(
    ground: Ground, store: MessageStore, tables: ConfigTables, kept: Kept | None, long_polling: LongPolling
) -> BrokerContext:
    config, clocks, engine = ground.config, ground.clocks, store.engine
    registration, consumers, producers = kept or _new_clients(ground, tables)
    registration.follow(tables.topics)
    filters = ConsumerFilters(tables.filters, config, clocks.now_ms)
    consumers.on_register, consumers.on_end = filters.registered, filters.unregistered
    changes = Changes(registration)
    topics = TopicManager(tables.topics, config, len(store.config.delay_levels_ms), changes)
    topics.on_change.append(changes.topics_changed)
    groups = SubscriptionGroupManager(tables.groups, config, changes)
    if topics.ensure_system_topics() or kept is None:
        tables.topics.persist()
    if groups.ensure_system_groups() or kept is None:
        tables.groups.persist()
    durable = FlushWaiter(engine, store.config.sync_flush_timeout_ms / 1000)
    store_host = parse_host(with_port(ground.ip, ground.port))
    stats = BrokerStats(config["brokerClusterName"], topics.is_system)
    return BrokerContext(
        config=config,
        loop=asyncio.get_running_loop(),
        now_ms=clocks.now_ms,
        store=store,
        engine=engine,
        tables=tables,
        changes=changes,
        topics=topics,
        groups=groups,
        offsets=tables.offsets,
        filters=filters,
        consumers=consumers,
        producers=producers,
        locks=QueueLocks(clocks.steady_ms, max_locks=_client_limits(config).locks),
        writer=MessageWriter(
            engine,
            durable,
            store_host=store_host,
            sync_flush=store.config.sync_flush,
            max_message_bytes=store.config.max_message_bytes,
            disk_use=partial(_disk_use, engine),
            now_ms=clocks.now_ms,
            stats=stats,
            logger=_log,
            arrivals=long_polling,
            right=ground.ha.right,
        ),
        stats=stats,
        durable=durable,
        client=ground.client,
        registration=registration,
        address=ground.access.address,
        store_host=store_host,
        rights=ground.access.rights,
        latencies=ground.latencies,
        started_ms=clocks.now_ms(),
        pull_offsets=QueueOffsets(),
        reset_offsets=ResetOffsets(tables.offsets),
        request_modes=load_modes(tables.modes),
    )


def _new_clients(ground: Ground, tables: ConfigTables) -> Kept:
    config, client_ms, limits = ground.config, ground.clocks.client_ms, _client_limits(ground.config)
    ha_address = with_port(config["brokerIP2"] or ground.host, ground.ha.port or ground.port + 1)
    address = with_port(ground.host, ground.port)
    return Kept(
        Registration(config, tables.topics, ground.client, address=address, ha_address=ha_address),
        ConsumerManager(client_ms, expiry_ms=config["channelExpiredTimeout"], limits=limits),
        ProducerManager(client_ms, limits=limits),
    )


def _clients(context: BrokerContext) -> ClientProcessor:
    rules = ClientRules(context)
    return ClientProcessor(
        context.consumers,
        context.producers,
        context.locks,
        is_group_allowed=rules.is_group_allowed,
        is_told=rules.notifies_members,
        has_queue=rules.has_queue,
        compiled=rules.compiled,
        limits=_client_limits(context.config),
        gives_locks=not context.config.is_slave,
        rights=context.rights,
    )


def _client_limits(config: BrokerConfig) -> ClientLimits:
    return ClientLimits(
        config["clientGroupsMax"],
        config["groupMembersMax"],
        config["subscriptionBytesMax"],
        config["queueLocksMax"],
    )


def _disk_use(engine: Engine) -> str:
    try:
        use = engine.disk_use().percent / 100
    except MqfastError:
        use = -1.0
    return f"CL: {use:5.2f} CQ: {use:5.2f} INDEX: {use:5.2f}"
