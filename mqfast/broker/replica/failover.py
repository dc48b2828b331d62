"""A broker that is master or slave as etcd says: it campaigns, takes messages while its lease lasts, and steps back.

Each broker starts as a slave. Where etcd knows no master, a broker that has every acknowledged message asks for the
lease. Only one gets it. The store is then opened as a master's, the new epoch is written, etcd is told that this broker
alone is in sync, and only then messages are taken. A master whose lease ends takes none; once another one is there, the
old master's store becomes a slave's again. Reads go on in between.

Room: broker/replica. It must never let messages be taken without a lease, and never choose a master by itself: etcd's
transactions do. Source: ReplicasManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast.broker.address import with_port
from mqfast.broker.broker import Broker
from mqfast.broker.replica.table_sync import name_new_topics
from mqfast.errors import MqfastError
from mqfast.ha.failover.etcd import Compare, Etcd, EtcdUnreachable, endpoints_of
from mqfast.ha.failover.record import Leader, Member, State, View
from mqfast.ha.failover.right import LeaseKeeper, Right
from mqfast.ha.failover.sync_set import Change, SyncSet
from mqfast.remoting.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.broker.broker_config import BrokerConfig

__all__ = ["FailoverBroker"]

T = TypeVar("T")
_log = logging.getLogger("mqfast.broker")
_FIRST: Final = 1  # the broker id of the first master of a name
_SETTLE_S: Final = 10.0
_SWITCH_S: Final = 600.0  # an open that recovers much takes long; the lease is kept meanwhile
_LEVEL_S: Final = 2.0
_WATCH_S: Final = 0.05


class FailoverBroker:
    """A broker under fail-over, in the running event loop.

    Attributes: ``broker``: in its role of now; another object after a change of role.
    Raises: ConfigError.
    Thread: that of the event loop.
    """

    def __init__(self, config: BrokerConfig) -> None:
        config.check_failover()
        self._config: Final = config
        self._ttl_s: Final = int(config["haLeaseSeconds"])
        endpoints, context = endpoints_of(config["haEtcdEndpoints"]), _tls(config)
        self.right: Final = Right()
        self.broker: Broker
        self.etcd: Final = Etcd(endpoints, max(1.0, self._ttl_s / 3), context)
        self._keeper: Final = LeaseKeeper(
            Etcd(endpoints, self._ttl_s / 6, context),
            self.right,
            ttl_s=self._ttl_s,
            margin_s=config["haLeaseMarginMs"] / 1000,
            pulse_s=float(self._ttl_s),
        )
        prefix = f"{config['haEtcdPrefix'].rstrip('/')}/{config['brokerClusterName']}/{config['brokerName']}"
        self.leader_key: Final = f"{prefix}/leader"
        self.state_key: Final = f"{prefix}/state"
        self._calls = ThreadPoolExecutor(1, "mqfast-etcd")
        self._limit = LogLimit(_log, 10.0)
        self._leader: Leader | None = None  # this broker's own reign
        self._state: State | None = None
        self._set: SyncSet | None = None
        self._takes = False
        self._is_open = False
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._switching: asyncio.Task[None] | None = None

    # -- start and end -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve from now on; returns when etcd has said who is master, after ten seconds at the latest."""
        try:
            await self._open(is_slave=True)
        except BaseException:
            self._close()
            raise
        self._tasks = [asyncio.ensure_future(self._turns()), asyncio.ensure_future(self._watch())]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._settled.wait()

    async def stop(self) -> None:
        """Serve no more. A master stops taking messages, lets its slaves have the rest, and gives its lease back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._switching is not None:  # a store that is half closed cannot be closed
            await asyncio.gather(self._switching, return_exceptions=True)
        was_master = self.right.is_active
        self.right.end()
        if was_master:
            self._take(False)
            await self._let_slaves_be_level()
        lease = self._keeper.drop()
        if lease:
            with contextlib.suppress(MqfastError):
                await self._call(self.etcd.revoke, lease)
        if self._is_open:
            await self.broker.stop()
        self._close()

    def _close(self) -> None:
        self._keeper.stop()
        self._calls.shutdown(wait=True)
        self.etcd.close()

    async def _let_slaves_be_level(self) -> None:
        replicas, end = self.broker.context.replicas, self.broker.context.engine.raw.end
        waited_for = (self._set.members if self._set is not None else frozenset()) - {self._config["brokerId"]}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEVEL_S):
                while any(replicas.sync_acks.positions().get(one, 0) < end for one in waited_for):
                    replicas.wake()
                    await asyncio.sleep(0.01)

    async def _open(self, *, is_slave: bool) -> None:
        """Start the broker in a role; the one before was stopped."""
        self._is_open = False
        self.broker = Broker(self._config.in_role(is_slave=is_slave), right=self.right)
        await self.broker.start()
        context = self.broker.context
        host = context.address.rpartition(":")[0]
        port = self._config["listenPort"] + 1
        if "haListenPort" in self._config.given():
            port = self._config["haListenPort"]
        self._member = Member(
            self._config["brokerId"], context.address, with_port(self._config["brokerIP2"] or host.strip("[]"), port)
        )
        self._is_open = True

    async def _reopen(self, *, is_slave: bool) -> None:
        self._switching = asyncio.ensure_future(self._switch(is_slave))
        await asyncio.shield(self._switching)

    async def _switch(self, is_slave: bool) -> None:
        self._keeper.patience_s = _SWITCH_S
        self._is_open = False
        try:
            await self.broker.stop()
            await self._open(is_slave=is_slave)
        finally:
            self._keeper.beat()
            self._keeper.patience_s = 0.0

    # -- by the clock --------------------------------------------------------------------------------------------------

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._calls, work, *arguments)

    async def _watch(self) -> None:
        """The end of the lease ends the taking of messages; a put looks at the clock itself."""
        while True:
            self._keeper.beat()
            self._take(self.right.holds())
            await asyncio.sleep(_WATCH_S)

    def _take(self, takes: bool) -> None:
        if takes == self._takes:
            return
        self._takes = takes
        if not self.broker.config.is_slave:
            if takes:
                _log.warning("master of epoch %d: messages are taken", self.right.epoch)
            else:
                _log.warning("messages are not taken any more: %s", self.right.why)
            self.broker.context.replicas.take_messages(takes)

    async def _turns(self) -> None:
        while True:
            try:
                await self._turn(await self._look())
                self._settled.set()
            except EtcdUnreachable as error:
                self._limit.warning("etcd", "%s", error)
            except (MqfastError, OSError) as error:
                self._limit.warning("turn", "fail-over: %s", error)
            except Exception:
                _log.exception("a turn of the fail-over failed; the next one tries again")
            await asyncio.sleep(self._ttl_s / 12)

    async def _look(self) -> View:
        leader, state = await self._call(self.etcd.read, self.leader_key, self.state_key)
        return View(None if leader is None else Leader.decoded(leader), None if state is None else State.decoded(state))

    async def _turn(self, view: View) -> None:
        if not self._is_open:  # a change of role failed
            await self._open(is_slave=True)
        leader, is_slave = view.leader, self.broker.config.is_slave
        if leader is None:
            await self._campaign(view)
        elif self._leader is not None and leader.created == self._leader.created:
            await self._reign(view)
        elif leader.member.id == self._config["brokerId"]:
            self.right.end()  # of an earlier process, or of a campaign whose answer was lost: it ends by itself
        else:
            self._leader = None
            self.right.end()
            self._keeper.drop()
            if not is_slave:
                _log.warning("broker %d is the master of epoch %d: this one follows", leader.member.id, leader.epoch)
                self._take(False)
                await self._reopen(is_slave=True)
            self.broker.context.replicas.follow(leader.member.address, leader.member.ha)

    # -- becoming master -----------------------------------------------------------------------------------------------

    async def _campaign(self, view: View) -> None:
        """Nobody is master: ask for the lease, if this broker has every acknowledged message."""
        own, last = self._config["brokerId"], self.broker.context.replicas.epochs.last
        self._leader = None
        self.right.end()
        self._take(False)  # also where this broker gets the next lease before the watch looks again
        self.broker.context.store.log.check_state()  # a store that failed cannot lead
        if (state := view.state) is None:
            if own != _FIRST:
                self._limit.warning("first", "no master yet: broker %d becomes the first one", _FIRST)
                return
            state = State(0, own, frozenset({own}), last)
        if not state.may_lead(own, last):
            self._limit.warning(
                "candidate",
                "no master, and this broker may lack acknowledged messages: in sync are %s of epoch %d, this is broker "
                "%d with epoch %d",
                sorted(state.in_sync),
                state.set_epoch,
                own,
                last,
            )
            return
        state = replace(state, epoch=max(state.epoch, last, 0) + 1, master=own)
        asked_s = self.right.clock()
        lease = await self._call(self.etcd.grant, self._ttl_s)
        leader = Leader(self._member, state.epoch, 0, lease)
        compares = [Compare(self.leader_key, 0), Compare(self.state_key, state.revision, state.revision > 0)]
        puts = [(self.leader_key, leader.encoded(), lease), (self.state_key, state.encoded(), 0)]
        revision = None
        try:
            revision = await self._call(self.etcd.write, compares, puts)
        finally:
            if revision is None:
                with contextlib.suppress(EtcdUnreachable):
                    await self._call(self.etcd.revoke, lease)
        if revision is None:
            return  # another broker was quicker
        self._leader, self._state = replace(leader, created=revision), replace(state, revision=revision)
        self._keeper.keep(lease, asked_s)
        await self._take_over()

    async def _take_over(self) -> None:
        assert self._leader is not None
        assert self._state is not None
        _log.warning("broker %d has the lease of epoch %d", self._leader.member.id, self._leader.epoch)
        try:
            if self.broker.config.is_slave:
                topics_end = self.broker.context.replicas.topics_end
                await self._reopen(is_slave=False)
                name_new_topics(self.broker.context, topics_end)
            context, epoch = self.broker.context, self._leader.epoch
            raw, acks = context.engine.raw, context.replicas.sync_acks
            raw.refuse_puts()
            context.replicas.epochs.file.begin(epoch, raw.end, self._config["brokerId"], low=raw.min_offset)
            self._set = SyncSet(
                acks,
                lambda: raw.end,
                own=self._config["brokerId"],
                least=self._config["minInSyncReplicas"],
                absent_s=self._config["haMaxTimeSlaveNotCatchup"] / 1000,
                clock=self.right.clock,
            )
            self._set.begin(epoch)
            state = replace(self._state, set_epoch=epoch, in_sync=frozenset({self._config["brokerId"]}))
            if not await self._write_state(state):
                raise EtcdUnreachable(f"etcd: expected the state of epoch {epoch}, found another one")
            self.right.activate(epoch)
            self._take(self.right.holds())
        except Exception:  # not where this broker ends: that gives the lease back as well
            await self._give_back()
            raise

    async def _give_back(self) -> None:
        """This broker cannot be master: another one may."""
        self.right.end()
        self._leader = None
        lease = self._keeper.drop()
        with contextlib.suppress(EtcdUnreachable):
            await self._call(self.etcd.revoke, lease)
        if not self._is_open:
            await self._open(is_slave=True)

    # -- being master --------------------------------------------------------------------------------------------------

    async def _reign(self, view: View) -> None:
        """The lease is this broker's: keep the set of brokers that are in sync."""
        assert self._leader is not None
        assert self._set is not None
        try:
            self.broker.context.store.log.check_state()
        except MqfastError:
            await self._give_back()
            raise
        if view.state is None or view.state.epoch != self._leader.epoch:
            self.right.end()
            raise EtcdUnreachable(f"etcd: expected the state of epoch {self._leader.epoch}, found {view.state}")
        self._state = view.state
        self._set.seen(view.state.in_sync)
        if not self.right.holds():
            return
        change = self._set.look()
        if change is not None:
            await self._change(change)

    async def _change(self, change: Change) -> None:
        assert self._set is not None
        assert self._state is not None
        try:
            is_done = await self._write_state(self._state.with_members(change.members))
        except EtcdUnreachable:
            self._set.unsure(change)
            raise
        if is_done:
            _log.warning("in sync: %s (%s)", sorted(change.members), change.why)
            self._set.confirmed(change.members)
        else:
            self._set.unsure(change)

    async def _write_state(self, state: State) -> bool:
        """Write, if this broker still reigns and nobody wrote meanwhile."""
        assert self._leader is not None
        compares = [Compare(self.leader_key, self._leader.created), Compare(self.state_key, state.revision, True)]
        revision = await self._call(self.etcd.write, compares, [(self.state_key, state.encoded(), 0)])
        if revision is not None:
            self._state = replace(state, revision=revision)
        return revision is not None


def _tls(config: BrokerConfig) -> ssl.SSLContext | None:
    """For members of etcd that are reached by https."""
    ca, certificate, key = (config[f"haEtcd{name}File"] for name in ("Ca", "Cert", "Key"))
    if not ca and not certificate:
        return None
    context = ssl.create_default_context(cafile=ca or None)
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context
