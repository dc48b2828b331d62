"""A broker under fail-over: an election at etcd, messages accepted for the time of its lease, and a return to slave.

Each broker starts as a slave. While etcd has no master, a broker with every acknowledged message waits until the
permission of the last master has expired, and requests the lease. A single broker gets the lease. Its store is opened
as a master's, the new epoch is written, and the in-sync set of this broker alone is stored in etcd; only then messages
are accepted. A master without a valid lease refuses messages; once there is another master, the store of the old one
becomes a slave's. Reads continue meanwhile. If etcd has lost its record, or was restored to an older one, the newest
copy leads (``ha.failover.leader_election``).

Invariants: no message without a lease; a master is elected only by a transaction of etcd; a record older than a store
is not used. Source: ReplicasManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast.broker.config.broker_address import with_port
from mqfast.broker.replication.copy_publisher import OwnCopy
from mqfast.broker.replication.metadata_sync import name_new_topics
from mqfast.broker.server import Broker
from mqfast.errors import MqfastError, UsageError
from mqfast.ha.failover.etcd import Compare, Etcd, EtcdUnreachable, endpoints_of, tls_context
from mqfast.ha.failover.etcd_state import BrokerReplicaInfo, Keys, Leader, State
from mqfast.ha.failover.in_sync_replicas import InSyncReplicas, ReplicaSetChange
from mqfast.ha.failover.known_state import KnownRecord
from mqfast.ha.failover.leader_election import StoreCopy, View, contradiction, decide, read_view
from mqfast.ha.failover.lease_guard import LeaseGuard, LeaseKeeper
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.broker.config.broker_config import BrokerConfig

__all__ = ["FailoverBroker"]

T = TypeVar("T")
_log = logging.getLogger("mqfast.broker")
_FIRST: Final = 1  # the broker id of the first master of a name
_SETTLE_S: Final = 10.0
_SWITCH_S: Final = 600.0  # a long recovery delays the open; the lease is renewed meanwhile
_LEVEL_S: Final = 2.0
_WATCH_S: Final = 0.05
_LEASE_LEAST_S: Final = 2  # etcd's minimum with its defaults


class FailoverBroker:
    """A broker under fail-over, in the running event loop.

    Args: make_broker, make_etcd: as ``Broker`` and ``Etcd``.
    Attributes: ``broker``: in its current role; another object after a change of role.
    Raises: ConfigError.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        make_broker: Callable[..., Broker] = Broker,
        make_etcd: Callable[..., Etcd] = Etcd,
    ) -> None:
        config.check_failover()
        self._make_broker: Final = make_broker
        self._config: Final = config
        self._ttl_s: Final = int(config["haLeaseSeconds"])  # waiting time of the next master
        self._lease_s: Final = max(_LEASE_LEAST_S, self._ttl_s * 2 // 3)
        endpoints = endpoints_of(config["haEtcdEndpoints"])
        context = tls_context(*(config[f"haEtcd{name}File"] for name in ("Ca", "Cert", "Key")))
        self.right: Final = LeaseGuard()
        self.broker: Broker
        self.etcd: Final = make_etcd(endpoints, max(1.0, self._ttl_s / 3), context)
        self._keys: Final = Keys.of(config["haEtcdPrefix"], config["brokerClusterName"], config["brokerName"])
        self.leader_key: Final = self._keys.leader
        self.state_key: Final = self._keys.state
        self._copies_key: Final = self._keys.copies
        self._keeper: Final = LeaseKeeper(
            make_etcd(endpoints, self._ttl_s / 6, context),
            self.right,
            key=self.leader_key,
            interval_s=self._ttl_s / 6,
            right_s=self._ttl_s - config["haLeaseMarginMs"] / 1000,
            watchdog_s=float(self._ttl_s),
        )
        own = config["brokerId"]
        self._own_copy: Final = OwnCopy(self.etcd, self._call, f"{self._copies_key}{own}", self._ttl_s)
        self._known: KnownRecord
        self._named: Final = config.broker_ids()
        self._ended_epoch = -1  # of this process, whose permission has expired
        self._absent: tuple[int, float] | None = None  # (revision of the state, time since which there is no leader)
        self._calls = ThreadPoolExecutor(1, "mqfast-etcd")
        self._limit = LogLimit(_log, 10.0)
        self._leader: Leader | None = None  # set while this broker is the master
        self._state: State | None = None
        self._set: InSyncReplicas | None = None
        self._takes = False
        self._is_open = False
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._switching: asyncio.Task[None] | None = None

    # -- start and end -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start serving; returns when the master is known, after ten seconds at the latest."""
        try:
            await self._open(is_slave=True)
        except BaseException:
            self._close()
            raise
        self._tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._watch())]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._settled.wait()

    async def stop(self) -> None:
        """Stop serving. A master refuses messages, waits for its slaves to catch up, and revokes its lease."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._switching is not None:  # a store in the middle of a close cannot be closed
            await asyncio.gather(self._switching, return_exceptions=True)
        was_master = self.right.is_active
        self.right.revoke()
        if was_master:
            self._accept_messages(False)
            await self._wait_for_slaves()
        if was_master:
            await self._release()
        lease = self._keeper.drop()
        if lease:
            with contextlib.suppress(MqfastError):
                await self._call(self.etcd.revoke, lease)
        await self._own_copy.withdraw()
        if self._is_open:
            await self.broker.stop()
        self._close()

    def _close(self) -> None:
        self._keeper.stop()
        self._calls.shutdown(wait=True)
        self.etcd.close()

    async def _wait_for_slaves(self) -> None:
        replicas, end = self.broker.parts.replicas, self.broker.context.engine.raw.end
        slave_ids = (self._set.members if self._set is not None else frozenset()) - {self._config["brokerId"]}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEVEL_S):
                while any(replicas.sync_acks.positions().get(slave_id, 0) < end for slave_id in slave_ids):
                    replicas.wake()
                    await asyncio.sleep(0.01)

    async def _open(self, *, is_slave: bool) -> None:
        """Start the broker in a role; the previous broker is stopped."""
        self._is_open = False
        self.broker = self._make_broker(self._config.in_role(is_slave=is_slave), right=self.right)
        await self.broker.start()
        context = self.broker.context
        self._known = KnownRecord(context.store.os_api, context.store.path)
        host = context.address.rpartition(":")[0]
        port = self._config["listenPort"] + 1
        if "haListenPort" in self._config.given():
            port = self._config["haListenPort"]
        self._member = BrokerReplicaInfo(
            self._config["brokerId"], context.address, with_port(self._config["brokerIP2"] or host.strip("[]"), port)
        )
        self._is_open = True

    async def _reopen(self, *, is_slave: bool) -> None:
        self._switching = asyncio.ensure_future(self._switch(is_slave))
        await asyncio.shield(self._switching)

    async def _switch(self, is_slave: bool) -> None:
        self._keeper.grace_s = _SWITCH_S
        self._is_open = False
        try:
            await self.broker.stop()
            await self._open(is_slave=is_slave)
        finally:
            self._keeper.heartbeat()
            self._keeper.grace_s = 0.0

    # -- by the clock --------------------------------------------------------------------------------------------------

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._calls, work, *arguments)

    async def _watch(self) -> None:
        """Refuse messages once the lease ends; a put also checks the clock."""
        while True:
            self._keeper.heartbeat()
            self._accept_messages(self.right.is_valid())
            await asyncio.sleep(_WATCH_S)

    def _accept_messages(self, takes: bool) -> None:
        if takes == self._takes:
            return
        self._takes = takes
        if not self.broker.config.is_slave:
            if takes:
                _log.warning("master of epoch %d: messages are taken", self.right.epoch)
            else:
                _log.warning("messages are not taken any more: %s", self.right.reason)
            self.broker.parts.replicas.take_messages(takes)

    async def _run(self) -> None:
        while True:
            try:
                await self._run_round(await self._read_view())
                self._settled.set()
            except EtcdUnreachable as error:
                self._limit.warning("etcd", "%s", error)
            except (MqfastError, OSError) as error:
                self._limit.warning("turn", "fail-over: %s", error)
            except Exception:
                _log.exception("a turn of the fail-over failed; the next one tries again")
            await asyncio.sleep(self._ttl_s / 12)

    async def _read_view(self) -> View:
        return await self._call(read_view, self.etcd, self._keys)

    async def _run_round(self, view: View) -> None:
        if not self._is_open:  # the last change of role failed
            await self._open(is_slave=True)
        leader = view.leader
        if leader is None:
            await self._elect(view)
            return
        self._absent = None
        if self._leader is not None and leader.created == self._leader.created:
            await self._lead(view)
        elif leader.member.id == self._config["brokerId"]:
            self.right.revoke()  # the key of an earlier process, or of an election without an answer: the key expires
        else:
            await self._follow(leader, view)

    async def _follow(self, leader: Leader, view: View) -> None:
        self._leader = None
        self.right.revoke()
        self._keeper.drop()
        if not self.broker.config.is_slave:
            _log.warning("broker %d is the master of epoch %d: this one follows", leader.member.id, leader.epoch)
            self._accept_messages(False)
            await self._reopen(is_slave=True)
        replicas = self.broker.parts.replicas
        if (doubt := self._doubt(view)) is not None:
            # Following would truncate acknowledged messages of the newer epoch. The master reads this copy and resigns.
            await self._own_copy.publish(self._copy())
            self._set_no_master(
                f"broker {leader.member.id} is the master of epoch {leader.epoch} by an older record: {doubt}; it is "
                "not followed"
            )
            return
        await self._own_copy.withdraw()
        replicas.no_master = None
        await self._store_record(view.state, leader.member.id)
        replicas.follow(leader.member.address, leader.member.ha)

    def _set_no_master(self, why: str) -> None:
        self.broker.parts.replicas.no_master = why
        self._limit.warning("wait", "%s", why)

    # -- state of this store -------------------------------------------------------------------------------------------

    def _copy(self) -> StoreCopy:
        context, own = self.broker.context, self._config["brokerId"]
        epochs = self.broker.parts.replicas.epochs.file
        members = self._known.members | {leader_id for leader_id in epochs.leaders if leader_id >= _FIRST}
        if members:
            members |= {own}
        return StoreCopy(own, epochs.terms, context.engine.raw.end, members, self._known.state)

    def _doubt(self, view: View) -> str | None:
        """Return the reason why the record of etcd is not in force: a store has a newer one. None without a reason."""
        own = self._copy()
        copies = [own, *(copy for copy in view.copies.values() if copy.id != own.id)]
        if view.state is not None:
            return next((text for copy in copies if (text := contradiction(view.state, copy)) is not None), None)
        newest = max(copies, key=lambda copy: copy.epoch)
        if newest.epoch < 0 and own.known is None:
            return None
        return f"etcd has no record of this name, and the store of broker {newest.id} has epoch {newest.epoch}"

    async def _store_record(self, state: State | None, *members: int) -> None:
        """Store a record that is in force, and brokers of the name. Raises: StorageError."""
        in_sync = frozenset() if state is None else state.in_sync
        await self._call(self._known.note, state, {*in_sync, *members, self._config["brokerId"]})

    # -- becoming master -----------------------------------------------------------------------------------------------

    async def _elect(self, view: View) -> None:
        """Request the lease if this broker has every acknowledged message; called without a master."""
        if self._leader is not None:
            self._ended_epoch = self._leader.epoch
        self._leader = None
        self.right.revoke()
        self._accept_messages(False)  # also if this broker gets the next lease before the watch runs again
        self.broker.context.store.log.check_state()  # a store that failed cannot lead
        revision = 0 if view.state is None else view.state.revision
        if self._absent is None or self._absent[0] != revision:
            self._absent = revision, self.right.clock()
        doubt = self._doubt(view)
        if doubt is not None and not self.broker.config.is_slave:
            await self._reopen(is_slave=True)
        state = self._first_or_next(view) if doubt is None else self._newest(view, doubt)
        if state is None:
            await self._own_copy.publish(self._copy())
            return
        if not self._has_last_permission_expired(view, doubt):
            return
        compares = [Compare(self.leader_key, 0), Compare(self.state_key, state.revision, state.revision > 0)]
        if doubt is not None:  # the decision is valid for these copies only
            compares += [Compare(f"{self._copies_key}{copy.id}", copy.revision, True) for copy in view.copies.values()]
        await self._campaign(state, compares)

    def _first_or_next(self, view: View) -> State | None:
        """Return the next record if the record of etcd is in force; None if this broker cannot lead."""
        own, last = self._config["brokerId"], self.broker.parts.replicas.epochs.last
        if (state := view.state) is None:
            if own != _FIRST:
                self._limit.warning("first", "no master yet: broker %d becomes the first one", _FIRST)
                return None
            return State(1, own, frozenset({own}), last, since=1)
        if not state.may_lead(own, last):
            self._set_no_master(
                f"no master, and this broker may lack acknowledged messages: in sync are {sorted(state.in_sync)} of "
                f"epoch {state.set_epoch}, this is broker {own} with epoch {last}"
            )
            return None
        return replace(state, epoch=self._next_epoch(view), master=own, released=False)

    def _newest(self, view: View, doubt: str) -> State | None:
        """Return the next record if the record of etcd is missing or older than a store; None if this broker cannot
        lead.
        """
        own = self._config["brokerId"]
        published = view.copies.get(own)
        if published is None or published != self._copy():  # the other brokers decide by the published copies
            self._set_no_master(f"no master: {doubt}")
            return None
        decision = decide(view.copies, self._named)
        if decision.leader != own:
            self._set_no_master(f"no master: {doubt}; {decision.why}")
            return None
        self._limit.warning("newest", "no master: %s; %s", doubt, decision.why)
        revision, epoch = 0 if view.state is None else view.state.revision, self._next_epoch(view)
        return State(epoch, own, frozenset({own}), published.epoch, revision, since=epoch)

    def _next_epoch(self, view: View) -> int:
        known = [0 if view.state is None else view.state.epoch, self.broker.parts.replicas.epochs.file.newest, 0]
        return max([*known, *(copy.epoch for copy in view.copies.values())]) + 1

    def _has_last_permission_expired(self, view: View, doubt: str | None) -> bool:
        """Return True if the permission of the last master has expired. See ``lease_guard.py``."""
        state = view.state
        if doubt is None and (state is None or state.released or state.epoch == self._ended_epoch):
            return True
        assert self._absent is not None
        return self.right.clock() - self._absent[1] >= self._ttl_s

    async def _campaign(self, state: State, compares: list[Compare]) -> None:
        """Request the lease, and take over with it."""
        lease = await self._call(self.etcd.grant, self._lease_s)
        leader = Leader(self._member, state.epoch, 0, lease)
        asked_s = self.right.clock()
        puts = [(self.leader_key, leader.encoded(), lease), (self.state_key, state.encoded(), 0)]
        revision = None
        try:
            revision = await self._call(self.etcd.write, compares, puts)
        finally:
            if revision is None:
                with contextlib.suppress(EtcdUnreachable):
                    await self._call(self.etcd.revoke, lease)
        if revision is None:
            return  # another broker got the lease
        self._leader, self._state = replace(leader, created=revision), replace(state, revision=revision)
        self._keeper.keep(lease, revision, asked_s)
        await self._own_copy.withdraw()
        await self._promote()

    async def _promote(self) -> None:
        assert self._leader is not None
        assert self._state is not None
        _log.warning("broker %d has the lease of epoch %d", self._leader.member.id, self._leader.epoch)
        try:
            topics_end = self.broker.parts.replicas.topics_end if self.broker.config.is_slave else None
            if topics_end is not None:
                await self._reopen(is_slave=False)
            context, epoch = self.broker.context, self._leader.epoch
            raw, acks = context.engine.raw, self.broker.parts.replicas.sync_acks
            raw.refuse_puts()
            self.broker.parts.replicas.stop_leading()
            self.broker.parts.replicas.begin_epoch(epoch)
            self._set = InSyncReplicas(
                acks,
                lambda: raw.end,
                own=self._config["brokerId"],
                min_replicas=self._config["minInSyncReplicas"],
                absent_s=self._config["haMaxTimeSlaveNotCatchup"] / 1000,
                clock=self.right.clock,
            )
            self._set.begin(epoch)
            state = replace(self._state, set_epoch=epoch, in_sync=frozenset({self._config["brokerId"]}))
            if not await self._write_state(state):
                raise EtcdUnreachable(f"etcd: expected the state of epoch {epoch}, found another one")
            await self._store_record(self._state)
            self.broker.parts.replicas.start_leading()
            self.broker.parts.transactions.open_transactions.load()
            if topics_end is not None:
                name_new_topics(context, topics_end)
                await context.changes.settled()
            self.right.activate(epoch)
            self._accept_messages(self.right.is_valid())
        except Exception:  # a cancelled task (stop) revokes the lease itself
            await self._resign()
            raise

    async def _resign(self) -> None:
        """Resign: revoke the lease, so that another broker may become master."""
        self.right.revoke()
        self._accept_messages(False)
        await self._release()
        if self._leader is not None:
            self._ended_epoch = self._leader.epoch
        self._leader = None
        lease = self._keeper.drop()
        with contextlib.suppress(EtcdUnreachable):
            await self._call(self.etcd.revoke, lease)
        if not self._is_open:
            await self._open(is_slave=True)

    async def _release(self) -> None:
        """Store in etcd that this master accepts no more messages, so that the next master need not wait."""
        with contextlib.suppress(MqfastError):
            if self._leader is not None and self._state is not None:
                await self._write_state(replace(self._state, released=True))

    # -- being master --------------------------------------------------------------------------------------------------

    async def _lead(self, view: View) -> None:
        """Update the in-sync set, while this broker has the lease."""
        assert self._leader is not None
        assert self._set is not None
        try:
            self.broker.context.store.log.check_state()
        except MqfastError:
            await self._resign()
            raise
        if view.state is None or view.state.epoch != self._leader.epoch:
            self.right.revoke()
            raise EtcdUnreachable(f"etcd: expected the state of epoch {self._leader.epoch}, found {view.state}")
        self._state = view.state
        if (doubt := self._doubt(view)) is not None:
            await self._resign()
            raise UsageError(f"no messages are taken by the record of epoch {view.state.epoch}: {doubt}")
        self._set.seen(view.state.in_sync)
        await self._store_record(view.state.with_members(self._set.possible))
        if not self.right.is_valid():
            return
        self._set.min_replicas = max(1, self._config["minInSyncReplicas"])
        self._set.absent_s = self._config["haMaxTimeSlaveNotCatchup"] / 1000
        change = self._set.evaluate()
        if change is not None:
            await self._change(change)

    async def _change(self, change: ReplicaSetChange) -> None:
        assert self._set is not None
        assert self._state is not None
        # Before a new member may lead.
        await self._store_record(self._state.with_members(self._set.possible | change.members))
        try:
            is_done = await self._write_state(self._state.with_members(change.members))
        except EtcdUnreachable:
            self._set.unsure(change)
            raise
        if is_done:
            _log.warning("in sync: %s (%s)", sorted(change.members), change.why)
            self._set.confirmed(change.members)
            await self._store_record(self._state)
        else:
            self._set.unsure(change)

    async def _write_state(self, state: State) -> bool:
        """Write the record if this broker is still the master and the record is unchanged. Returns: True if written."""
        assert self._leader is not None
        compares = [Compare(self.leader_key, self._leader.created), Compare(self.state_key, state.revision, True)]
        revision = await self._call(self.etcd.write, compares, [(self.state_key, state.encoded(), 0)])
        if revision is not None:
            self._state = replace(state, revision=revision)
        return revision is not None
