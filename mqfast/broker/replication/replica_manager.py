"""The other brokers of this broker's name: a master serves slaves, a slave follows its master.

A master whose name has a newer master refuses messages and registers at no name server. The settings, not this module,
determine the master. Source: DefaultHAService, BrokerController.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.config.broker_address import with_port
from mqfast.broker.replication.epoch_check import EpochCheck, Rival, newer_master, slave_hosts_of
from mqfast.broker.replication.metadata_sync import TableSync
from mqfast.broker.replication.replica_admission import Admission, HaTls
from mqfast.broker.send.flush_waiter import ReplicaWaiter
from mqfast.errors import ConfigError, CorruptFile, MqfastError
from mqfast.ha.divergence import load_divergence
from mqfast.ha.failover.confirm_offset import Confirmed
from mqfast.ha.failover.in_sync_replicas import SyncAcks
from mqfast.ha.master import HaMaster, SlaveStatus
from mqfast.ha.settings import HaSettings
from mqfast.ha.slave import Followed, FollowState, FollowStatus, HaSlave
from mqfast.remoting.client import split_address
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.processors import ConcurrencyLimit
from mqfast.store.log.acks import AckTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.parts import BrokerContext
    from mqfast.ha.failover.lease_guard import LeaseGuard
    from mqfast.remoting.client import RemotingClient
    from mqfast.remoting.processors import Processors
    from mqfast.store.message_store import MessageStore

__all__ = ["ReplicaManager"]

_log = logging.getLogger("mqfast.broker")
_SYNC_MASTER: Final = "SYNC_MASTER"
_LOOK_S: Final = 1.0
_ASK_S: Final = 3.0


def settings_of(config: BrokerConfig) -> HaSettings:
    """Return the settings of replication by RocketMQ's names.

    Under fail-over a slave reconnects every second and copies the whole log, since the slave may be the next master.
    """
    return HaSettings(
        batch_bytes=config["haTransferBatchSize"],
        heartbeat_s=config["haSendHeartbeatInterval"] / 1000,
        housekeeping_s=config["haHousekeepingInterval"] / 1000,
        flow_bytes_per_s=config["maxHaTransferByteInSecond"] if config["haFlowControlEnable"] else None,
        truncate_diverged=config["haTruncateDiverged"],
        whole_log=bool(config["haEtcdEndpoints"]),
        reconnect_s=1.0 if config["haEtcdEndpoints"] else 5.0,
    )


class ReplicaManager:
    """Serves slaves, or follows a master.

    Args: right: permission to accept messages under fail-over, which then alone determines the master.
    Attributes: ``host``, ``port``: listening address for slaves; port 0 without a listener; ``admission``: which slaves
        may connect; ``epochs``: of the log; ``fenced``: reason why this master refuses messages, None if it accepts;
        ``no_master``: under fail-over, the reason for a missing master.
    Thread: that of the event loop.
    """

    def __init__(self, config: BrokerConfig, store: MessageStore, right: LeaseGuard | None = None) -> None:
        self.port = 0
        self._right: Final = right
        self.epochs: Final = EpochCheck(config, store)
        self.fenced: str | None = None
        self.no_master: str | None = None
        self._context: BrokerContext | None = None
        self._looking: asyncio.Task[None] | None = None
        self._config: Final = config
        self._store: Final = store
        self._settings: Final = settings_of(config)
        self._confirmed = Confirmed(store.engine.raw) if right is not None and config.is_sync else None
        self._acks: AckTable | None = None
        self._master: HaMaster | None = None
        self._slave: HaSlave | None = None
        self._sync: TableSync | None = None
        self._tells_history = False
        self._replicated: ReplicaWaiter | None = None
        self.host: Final = str(config["haBindAddress"] or config["bindAddress"])
        self._tls: Final = HaTls.of(config)
        self.admission: Final = Admission(config, has_tls=self._tls is not None)
        self._master_ha: tuple[str, int] | None = None
        self._loop: asyncio.AbstractEventLoop
        if config["haMasterAddress"]:
            try:
                self._master_ha = split_address(config["haMasterAddress"])
            except ValueError as error:
                raise ConfigError(f"haMasterAddress: {error}") from None

    async def listen(self, broker_port: int) -> None:
        """Listen for slaves, on a master: at haListenPort, by default the broker's port plus one.

        Raises: OSError if a port given by haListenPort is not available.
        """
        config = self._config
        if config.is_slave:
            return
        if self._right is None:
            self._acks = AckTable(*self._needed())
        else:
            self._acks = SyncAcks(self._needed()[1], lambda: self._store.engine.raw.end)
            self._store.engine.raw.refuse_puts()  # until etcd confirms that this broker is the master
        master = HaMaster(
            self._store.engine.raw,
            self._acks,
            self._settings,
            file_bytes=self._store.config.mapped_file_bytes_commit_log,
            admits=self.admission,
            tls=None if self._tls is None else self._tls.server,
            epochs=self.epochs.file,
        )
        self.epochs.session = master.session
        if self._right is None and self.fenced is None:
            self.epochs.begin()
            self._warn_of_divergence()
        asked = config["haListenPort"] if "haListenPort" in config.given() else 0
        try:
            await master.start(self.host, asked or (broker_port + 1 if config["listenPort"] else 0))
        except OSError as error:
            if asked:
                raise
            _log.warning("slaves cannot connect: %s; haListenPort names another port", error)
            return
        self._master, self.port = master, master.port
        _log.info("replication: %s", self.policy)
        for line in self._warnings():
            _log.warning("%s", line)

    def _warnings(self) -> list[str]:
        """Return warnings for operators about the port."""
        warnings, config = [], self._config
        port_text = f"the port of replication ({with_port(self.host, self.port)})"
        wants_slaves = self._store.config.broker_role == _SYNC_MASTER or "haListenPort" in config.given()
        if config.is_guarded and not self.admission.is_open and (wants_slaves or config["haBindAddress"]):
            warnings.append(f"slaves cannot connect: {port_text} lets in {self.admission.who}")
        is_local = self.host in ("127.0.0.1", "::1", "localhost")
        if config.is_guarded and self.admission.is_open and self._tls is None and not is_local:
            warnings.append(
                f"access control is on, and {port_text} hands out all messages without a signature and in clear to "
                f"{self.admission.who}; haTlsCertFile asks for certificates"
            )
        return warnings

    @property
    def policy(self) -> str:
        """Return the listening address and the admission rule in words."""
        if self._config.is_slave:
            return "this broker follows its master"
        if not self.port:
            return "no port, slaves cannot connect"
        return f"{with_port(self.host, self.port)}{' with TLS' if self._tls else ''}, lets in {self.admission.who}"

    def reload_certificates(self) -> None:
        """Load renewed certificates."""
        if self._tls is not None:
            self._tls.reload_if_changed()

    def _warn_of_divergence(self) -> None:
        """Log a warning if the settings make a master of a diverged store that was not promoted."""
        with contextlib.suppress(CorruptFile):
            mark = load_divergence(self._store.os_api, self._store.path)
            if mark is not None:
                _log.warning("%s; this broker serves as a master without a promotion", mark)

    def _needed(self) -> tuple[int, float]:
        """Return the number of slaves that a send waits for without fail-over, and the timeout in seconds."""
        is_sync = self._store.config.broker_role == _SYNC_MASTER
        needed = max(0, self._config["inSyncReplicas"] - 1) if is_sync else 0
        return needed, max(0, self._config["slaveTimeout"]) / 1000

    def _settings_changed(self) -> None:
        """Apply changed settings, before senders check whether their responses wait."""
        assert self._context is not None
        writer = self._context.writer
        writer.max_gap_bytes = self._config["haMaxGapNotInSync"]
        if self._replicated is None or self._acks is None:
            return
        needed, timeout_s = self._needed()
        self._replicated.set_timeout(timeout_s)
        if self._right is None:
            writer.replicated = self._replicated if needed > 0 else None
            self._acks.change(needed, timeout_s)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: a fail-over made this broker the master. Raises: UsageError, StorageError."""
        self.epochs.begin(epoch)
        if self._master is not None:
            self._master.send_history()

    async def look_for_newer_master(self, client: RemotingClient, own: str = "") -> None:
        """Check for a master with a newer epoch, for a second at most; fence this master if there is one.

        The name servers give the address of a master of this broker's name; that master gives its epoch. Without an
        answer of
        a name server the check has no effect.
        """
        is_exempt = self._config.is_slave or self._right is not None
        if is_exempt or not self._config.name_servers or self.fenced is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                rival = await newer_master(client, self._config, self.epochs.last, own)
                if rival is not None:
                    self._fence(rival)

    def _fence(self, rival: Rival) -> None:
        self.fenced = (
            f"this broker was replaced as master of {self._config['brokerName']}: {rival.address} has epoch "
            f"{rival.epoch}, this one {self.epochs.last}; end this broker and start it with brokerRole=SLAVE and "
            "brokerId=1 or more, and with haTruncateDiverged=true if its log goes on otherwise"
        )
        _log.error("no messages are taken: %s", self.fenced)
        self._store.engine.raw.refuse_puts()
        if self._context is not None:
            self._tell_fenced(self._context)

    def _tell_fenced(self, context: BrokerContext) -> None:
        context.writer.fenced = self.fenced
        context.registration.is_silent = True

    def _look_again(self, _fields: Mapping[str, Any]) -> None:
        """Check again for a newer master: a name server accepted a registration."""
        context = self._context
        if context is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.ensure_future(self.look_for_newer_master(context.client, context.address))

    def bind(self, context: BrokerContext) -> None:
        """Connect to the other parts."""
        self._context = context
        self.admission.slave_hosts = lambda: slave_hosts_of(context.client, self._config)
        context.registration.state_version = max(0, self.epochs.last)
        if self.fenced is not None:
            self._tell_fenced(context)
        writer = context.writer
        writer.right = self._right
        if self._right is not None and not self._config.is_slave:
            context.registration.is_silent = True
        if self._acks is not None and self._store.config.broker_role == _SYNC_MASTER:
            master = self._master
            self._replicated = ReplicaWaiter(self._acks, master.wake if master is not None else lambda: None)
            writer.replicated = self._replicated
        self._settings_changed()
        self._config.listeners.append(self._settings_changed)
        if self._config.is_slave:
            self._sync = sync = TableSync(context, self.epochs, self._whose_log)
            self._loop = context.loop
            self._slave = HaSlave(
                context.engine.raw,
                self._settings,
                self._ask_for_master,
                bounds=(lambda: sync.bounds) if self._right is not None or self._config.name_servers else None,
                on_cut=self._count_cut,
                on_follow=self._look_at_tables,
                epochs=self.epochs.file,
                tells_history=lambda: self._tells_history,
                identity=self._identity,
                tls=None if self._tls is None else self._tls.client,
            )
            if self._right is None:
                context.registration.on_registered = self._hear_of_master
        else:
            context.registration.on_registered = self._look_again

    def _count_cut(self, end: int) -> None:
        """Count a truncation. Thread: that of the slave."""
        assert self._sync is not None
        self._sync.cuts += 1
        self._loop.call_soon_threadsafe(self._was_cut, end)

    def _was_cut(self, end: int) -> None:
        assert self._sync is not None
        self._sync.was_cut(end)

    def _whose_log(self) -> Followed | None:
        return None if self._slave is None else self._slave.followed

    def _look_at_tables(self) -> None:
        """Copy the tables at once when the slave begins to follow. Thread: that of the slave."""
        assert self._sync is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._sync.ask_now)

    def _identity(self) -> tuple[int, int] | None:
        """Return broker id and epoch, None if this broker must not lead: without tables of a master groups would skip
        messages.

        Thread: that of the slave.
        """
        epoch = self.epochs.last
        has_tables = self._sync is not None and self._sync.synced_ms > 0 and self._sync.is_whole
        return (self._config["brokerId"], epoch) if self._right is not None and has_tables and epoch >= 0 else None

    def _ask_for_master(self) -> tuple[str, int] | None:
        """Return the master's address before each connection. Thread: that of the slave."""
        assert self._sync is not None
        address = self._master_ha  # read first: a new master is set before its address
        self._tells_history = False
        if address is None or self._sync.master is None:
            return address
        asked = self._sync.ask_epochs()
        try:
            epochs = asyncio.run_coroutine_threadsafe(asked, self._loop).result(_ASK_S)
        except RuntimeError:  # the loop has ended
            asked.close()
            return None
        except (TimeoutError, CancelledError, MqfastError):
            return None
        if epochs is None:
            return None
        self._tells_history = bool(epochs.session)
        return address

    def _hear_of_master(self, fields: Mapping[str, Any]) -> None:
        """Follow the master in the response of a name server to a registration."""
        self.follow(str(fields.get("masterAddr") or ""), str(fields.get("haServerAddr") or ""))

    def follow(self, broker: str, ha: str) -> None:
        """Set the master of a slave: address for clients and address for slaves, empty if unknown."""
        if self._sync is not None and broker and self._sync.set_master(broker) and self._config["haMasterAddress"]:
            self.reconnect()  # now it is known whether the master is one of mqfast
        if not ha or self._config["haMasterAddress"]:
            return
        try:
            address = split_address(ha)
        except ValueError:
            return
        if address != self._master_ha:
            _log.info("master: %s, its log from %s", broker, ha)
            self._master_ha = address
            self.reconnect()

    def reconnect(self) -> None:
        """Close the connection of a slave; the next connection determines the master again."""
        if self._slave is not None:
            self._slave.reconnect()

    def register(self, processors: Processors) -> None:
        """Register 1007; the log has a port of its own."""
        processors.register([RequestCode.GET_BROKER_EPOCH_CACHE], self.epochs.answer, ConcurrencyLimit("epochs"))

    def start(self) -> None:
        """Start to follow, on a slave."""
        if self._slave is not None:
            self._slave.start()
        if self._sync is not None:
            self._sync.start()

    async def stop(self) -> None:
        """Stop serving and following."""
        if self._slave is not None:
            await asyncio.to_thread(self._slave.stop)  # the thread may wait for a disk, or for an unreachable master
        if self._sync is not None:
            await self._sync.stop()  # after the thread, which requests bounds
        await self.close()

    async def close(self) -> None:
        """Stop listening; also after a failed start of the broker."""
        if self._looking is not None:
            self._looking.cancel()
        if self._replicated is not None:
            self._replicated.close()
        self.rest()
        if self._master is not None:
            await self._master.stop()

    # -- fail-over -----------------------------------------------------------------------------------------------------

    @property
    def sync_acks(self) -> SyncAcks:
        """Return the acknowledged offsets of slaves, on a master under fail-over."""
        assert isinstance(self._acks, SyncAcks)
        return self._acks

    @property
    def bounds_readers(self) -> bool:
        """Return True if readers only see messages of all in-sync brokers: under fail-over with SYNC_MASTER."""
        return self._confirmed is not None

    @property
    def is_not_reigning(self) -> bool:
        """Return True if, under fail-over, another broker may be the master now and have further messages."""
        return self._right is not None and not self._right.is_valid()

    @property
    def confirmed(self) -> int | None:
        """Return the confirm offset of a master's log; None if readers are not bound."""
        is_bound = self._confirmed is not None and not self._config.is_slave
        return self._store.engine.raw.confirm_offset if is_bound else None

    def hear_confirmed(self, offset: int) -> None:
        """Store the confirm offset of the master; ignored unless this slave follows that master's log."""
        if self._confirmed is None or self._slave is None or self._master_ha is None:
            return
        status = self._slave.status
        # Before the end of a comparison, the end of this log may have diverged.
        if status.state is FollowState.TRANSFER and status.master == "{}:{}".format(*self._master_ha):
            self._confirmed.update(offset)

    def reign(self) -> None:
        """Start as master: etcd has stored the in-sync set with this master alone."""
        self.no_master = None
        if self._confirmed is not None:
            self._confirmed.start_leading(self.sync_acks)

    def rest(self) -> None:
        """Stop as master, or stay a slave."""
        if self._confirmed is not None:
            self._confirmed.stop_leading()

    @property
    def was_promoted(self) -> bool:
        """Return True for a master by settings with a slave's store. False under fail-over, which handles its own
        masters.
        """
        known_end = self._store.engine.raw.master_flushed_offset
        return not self._config.is_slave and self._right is None and (self.epochs.last > 0 or known_end > 0)

    def wake(self) -> None:
        """Send available bytes to slaves at once."""
        if self._master is not None:
            self._master.wake()

    def take_messages(self, takes: bool) -> None:
        """Accept or refuse messages as a master, and register at the name servers accordingly."""
        assert self._context is not None
        assert self._right is not None
        context, registration = self._context, self._context.registration
        self.fenced = context.writer.fenced = None if takes else self._right.reason
        self._store.engine.raw.refuse_puts(not takes)
        registration.is_silent = not takes
        if takes:
            registration.state_version = max(0, self.epochs.last)
            registration.register_soon()

    # -- requests of admins --------------------------------------------------------------------------------------------

    @property
    def slaves(self) -> list[SlaveStatus]:
        """Return the connected slaves."""
        return [] if self._master is None else self._master.statuses()

    @property
    def following(self) -> FollowStatus | None:
        """Return the status of a slave; None for a master."""
        if self._slave is None:
            return None
        status = self._slave.status
        return status if self.no_master is None else status._replace(error=self.no_master)

    @property
    def topics_end(self) -> int:
        """Return, for a slave, the offset below which all topics are known from the master; else 0."""
        return 0 if self._sync is None else self._sync.topics_end

    def in_sync(self) -> int:
        """Return the number of slaves within haMaxGapNotInSync of the end of the log."""
        gap = self._config["haMaxGapNotInSync"]
        return 0 if self._acks is None else self._acks.in_sync(self._store.engine.raw.end, gap)
