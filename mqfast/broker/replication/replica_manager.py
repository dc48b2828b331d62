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

from mqfast.broker.replication.ha_service import SYNC_MASTER, HaService
from mqfast.broker.replication.metadata_sync import TableSync
from mqfast.broker.send.flush_waiter import ReplicaWaiter
from mqfast.errors import ConfigError, MqfastError
from mqfast.ha.failover.confirm_offset import Confirmed
from mqfast.ha.failover.in_sync_replicas import SyncAcks
from mqfast.ha.master import SlaveProgress
from mqfast.ha.slave import Followed, FollowState, FollowStatus, HaSlave
from mqfast.remoting.client import split_address
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.processors import ConcurrencyLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.processors import Processors

__all__ = ["ReplicaManager"]

_log = logging.getLogger("mqfast.broker")
_ASK_S: Final = 3.0
_FORGET_S: Final = 60.0


class ReplicaManager:
    """Serves slaves, or follows a master.

    Attributes: ``ha``: the port for slaves; ``epochs``: of the log; ``no_master``: under fail-over, why no broker is
        master, and what is waited for; ``before_truncation``: called with the new end before a slave's log is cut.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, ha: HaService) -> None:
        config, store = context.config, context.store
        self.ha: Final = ha
        self.epochs: Final = ha.epochs
        self.no_master: str | None = None
        self.before_truncation: Final[list[Callable[[int], object]]] = []
        self._context: Final = context
        self._right: Final = ha.right
        self._looking: asyncio.Task[None] | None = None
        self._config: Final = config
        self._store: Final = store
        self._confirmed = Confirmed(store.engine.raw) if ha.right is not None and config.is_sync else None
        self._slave: HaSlave | None = None
        self._sync: TableSync | None = None
        self._tells_history = False
        self._replicated: ReplicaWaiter | None = None
        self._master_ha = _address_of(config)
        if ha.acks is not None and store.config.broker_role == SYNC_MASTER:
            master = ha.master
            self._replicated = ReplicaWaiter(ha.acks, master.wake if master is not None else lambda: None)
            context.writer.replicated = self._replicated
        context.registration.state_version = max(0, self.epochs.last)
        if ha.fenced is not None:
            self._apply_fence()
        if ha.right is not None and not config.is_slave:
            context.registration.is_silent = True
        self._settings_changed()
        config.listeners.append(self._settings_changed)
        if config.is_slave:
            self._follow_master(context)
        else:
            context.registration.on_registered = self._check_again

    def _follow_master(self, context: BrokerContext) -> None:
        self._sync = sync = TableSync(
            context,
            self.epochs,
            self._followed_log,
            update_confirm_offset=self.update_confirm_offset,
            bounds_readers=self.bounds_readers,
        )
        tls = self.ha.tls
        self._slave = HaSlave(
            context.engine.raw,
            self.ha.settings,
            self._master_address,
            bounds=(lambda: sync.bounds) if self._right is not None or self._config.name_servers else None,
            before_cut=self._before_cut,
            on_cut=self._count_cut,
            on_follow=self._on_follow,
            epochs=self.epochs.file,
            tells_history=lambda: self._tells_history,
            identity=self._identity,
            tls=None if tls is None else tls.client,
        )
        if self._right is None:
            context.registration.on_registered = self._on_registered

    @property
    def port(self) -> int:
        """Return the listening port for slaves; 0 without a listener."""
        return self.ha.port

    @property
    def fenced(self) -> str | None:
        """Return the reason why this master refuses messages; None if it accepts."""
        return self.ha.fenced

    def _settings_changed(self) -> None:
        """Apply changed settings, before senders check whether their responses wait."""
        writer, acks = self._context.writer, self.ha.acks
        writer.max_gap_bytes = self._config["haMaxGapNotInSync"]
        if self._replicated is None or acks is None:
            return
        needed, timeout_s = self.ha.needed()
        self._replicated.set_timeout(timeout_s)
        if self._right is None:
            writer.replicated = self._replicated if needed > 0 else None
            acks.change(needed, timeout_s)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: a fail-over made this broker the master. Raises: UsageError, StorageError."""
        self.epochs.begin(epoch)
        if self.ha.master is not None:
            self.ha.master.send_history()

    def _apply_fence(self) -> None:
        self._context.writer.fenced = self.ha.fenced
        self._context.registration.is_silent = True

    def _check_again(self, _fields: Mapping[str, Any]) -> None:
        """Check again for a newer master: a name server accepted a registration."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_for_newer_master())

    async def _look_for_newer_master(self) -> None:
        was_fenced = self.ha.fenced is not None
        await self.ha.check_for_newer_master(self._context.address)
        if self.ha.fenced is not None and not was_fenced:
            self._apply_fence()

    def _before_cut(self, end: int) -> None:
        """Announce a truncation to other parts; without their consent the log is not cut. Thread: that of the slave."""

        async def announce() -> None:
            for forget in self.before_truncation:
                forget(end)

        asyncio.run_coroutine_threadsafe(announce(), self._context.loop).result(_FORGET_S)

    def _count_cut(self, end: int) -> None:
        """Count a truncation. Thread: that of the slave."""
        assert self._sync is not None
        self._sync.cuts += 1
        self._context.loop.call_soon_threadsafe(self._on_truncated, end)

    def _on_truncated(self, end: int) -> None:
        assert self._sync is not None
        self._sync.on_truncated(end)

    def _followed_log(self) -> Followed | None:
        return None if self._slave is None else self._slave.followed

    def _on_follow(self) -> None:
        """Copy the tables at once when the slave begins to follow. Thread: that of the slave."""
        assert self._sync is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._context.loop.call_soon_threadsafe(self._sync.sync_now)

    def _identity(self) -> tuple[int, int] | None:
        """Return broker id and epoch, None if this broker must not lead: without tables of a master groups would skip
        messages.

        Thread: that of the slave.
        """
        epoch = self.epochs.last
        has_tables = self._sync is not None and self._sync.synced_ms > 0 and self._sync.is_whole
        return (self._config["brokerId"], epoch) if self._right is not None and has_tables and epoch >= 0 else None

    def _master_address(self) -> tuple[str, int] | None:
        """Return the master's address before each connection. Thread: that of the slave."""
        assert self._sync is not None
        address = self._master_ha  # read first: a new master is set before its address
        self._tells_history = False
        if address is None or self._sync.master is None:
            return address
        asked = self._sync.request_epochs()
        try:
            epochs = asyncio.run_coroutine_threadsafe(asked, self._context.loop).result(_ASK_S)
        except RuntimeError:  # the loop has ended
            asked.close()
            return None
        except (TimeoutError, CancelledError, MqfastError):
            return None
        if epochs is None:
            return None
        self._tells_history = bool(epochs.session)
        return address

    def _on_registered(self, fields: Mapping[str, Any]) -> None:
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
        if self._looking is not None:
            self._looking.cancel()
        if self._replicated is not None:
            self._replicated.close()
        self.stop_leading()
        await self.ha.close()

    # -- fail-over -----------------------------------------------------------------------------------------------------

    @property
    def sync_acks(self) -> SyncAcks:
        """Return the acknowledged offsets of slaves, on a master under fail-over."""
        assert isinstance(self.ha.acks, SyncAcks)
        return self.ha.acks

    @property
    def bounds_readers(self) -> bool:
        """Return True if readers only see messages of all in-sync brokers: under fail-over with SYNC_MASTER."""
        return self._confirmed is not None

    @property
    def may_be_replaced(self) -> bool:
        """Return True if, under fail-over, another broker may be the master now and have further messages."""
        return self._right is not None and not self._right.is_valid()

    @property
    def confirmed(self) -> int | None:
        """Return the confirm offset of a master's log; None if readers are not bound."""
        is_bound = self._confirmed is not None and not self._config.is_slave
        return self._store.engine.raw.confirm_offset if is_bound else None

    def update_confirm_offset(self, offset: int) -> None:
        """Store the confirm offset of the master; ignored unless this slave follows that master's log."""
        if self._confirmed is None or self._slave is None or self._master_ha is None:
            return
        status = self._slave.status
        # Before the end of a comparison, the end of this log may have diverged.
        if status.state is FollowState.TRANSFER and status.master == "{}:{}".format(*self._master_ha):
            self._confirmed.update(offset)

    def start_leading(self) -> None:
        """Start as master: etcd has stored the in-sync set with this master alone."""
        self.no_master = None
        if self._confirmed is not None:
            self._confirmed.start_leading(self.sync_acks)

    def stop_leading(self) -> None:
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
        if self.ha.master is not None:
            self.ha.master.wake()

    def take_messages(self, takes: bool) -> None:
        """Accept or refuse messages as a master, and register at the name servers accordingly."""
        assert self._right is not None
        context, registration = self._context, self._context.registration
        self.ha.fenced = context.writer.fenced = None if takes else self._right.reason
        self._store.engine.raw.refuse_puts(not takes)
        registration.is_silent = not takes
        if takes:
            registration.state_version = max(0, self.epochs.last)
            registration.register_soon()

    # -- requests of admins --------------------------------------------------------------------------------------------

    @property
    def slaves(self) -> list[SlaveProgress]:
        """Return the connected slaves."""
        return [] if self.ha.master is None else self.ha.master.statuses()

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
        return 0 if self.ha.acks is None else self.ha.acks.in_sync(self._store.engine.raw.end, gap)


def _address_of(config: BrokerConfig) -> tuple[str, int] | None:
    """Return haMasterAddress, None without the setting. Raises: ConfigError."""
    if not config["haMasterAddress"]:
        return None
    try:
        return split_address(config["haMasterAddress"])
    except ValueError as error:
        raise ConfigError(f"haMasterAddress: {error}") from None
