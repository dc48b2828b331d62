"""A slave's copy of its master's tables: topics, groups, offsets, delay offsets, modes and the timer's checkpoint.

First the epochs of the master are requested. A master with older epochs than this slave's was replaced and is not
followed. Tables are only copied from the master whose log is appended: not during a comparison of the logs, and not
after a divergence.

The slave sends no change to the master. Nothing is claimed for this log that only the master's log has: a group's
offset is limited to the end of the queue, and the master's deliveries count once this log has them. All tables are
copied every three seconds (RocketMQ: once a minute, the checkpoint every three seconds), so that a take-over repeats
little. Source: SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from mqfast.broker.metadata.message_request_mode import RequestModes, store_modes
from mqfast.broker.metadata.topic_manager import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from mqfast.broker.pop.check_point import REVIVE_GROUP
from mqfast.broker.replication.epoch_check import epochs_of
from mqfast.broker.transaction.half_message import TRANSACTION_GROUP
from mqfast.errors import FieldError, MqfastError, OffsetError, UsageError
from mqfast.message import LMQ_PREFIX
from mqfast.remoting.bodies import DataVersion, build_tables, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.schedule.timer.checkpoint import TimerCheckpoint, load_checkpoint, of_master, write_checkpoint
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mqfast.broker.context import BrokerContext
    from mqfast.broker.replication.epoch_check import EpochCheck, Told
    from mqfast.ha.slave import Followed

__all__ = ["TableSync", "name_new_topics"]

_log = logging.getLogger("mqfast.broker")
_INTERVAL_S: Final = 3.0
_DELIVERED_S: Final = 0.5
_LOOK_S: Final = 0.05
_TIMEOUT_MS: Final = 3000


class _Topics(Struct, rename="camel"):
    topic_config_table: dict[str, dict[str, Any]]
    data_version: DataVersion


class _Groups(Struct, rename="camel"):
    subscription_group_table: dict[str, dict[str, Any]]
    data_version: DataVersion
    forbidden_table: dict[str, dict[str, int]] | None = None


class _Offsets(Struct, rename="camel"):
    offset_table: dict[str, dict[str, int]]


class _Delays(Struct, rename="camel"):
    offset_table: dict[int, int]
    data_version: DataVersion | None = None


class _Modes(Struct, rename="camel"):
    message_request_mode_map: RequestModes = {}


class _Runtime(Struct):
    table: dict[str, str]


class _Delivered(NamedTuple):
    """The deliveries of a master at the moment its log ended at ``end``; not valid for the log of another master."""

    master: str
    end: int
    delays: _Delays
    timer: TimerCheckpoint | None
    ended: dict[str, dict[str, int]]  # offsets of the transactions' group: transactions below have ended
    followed: Followed | None


class _Consumed(NamedTuple):
    """The offsets of all groups at the moment the master's log ended at ``end``, by ``topic@group`` and queue id."""

    end: int
    offsets: dict[str, dict[str, int]]
    followed: Followed


class TableSync:
    """Copies the tables of the master periodically.

    Args: followed: returns the connection whose log is appended now, None without a connection; update_confirm_offset:
        called with the confirm offset of the master; bounds_readers: readers only see messages of all in-sync brokers.
    Attributes: ``master``: the master's address for clients, from the name servers; None while unknown; ``bounds``:
    first byte and end of the master's log, from the last ``request_bounds``, None until the answer; ``topics_end``:
    every earlier message in the log is of a topic that the master has sent, or that was deleted there; ``cuts``: number
    of truncations of this slave's log, counted by the truncating thread.
    Thread: that of the event loop; ``is_whole``: any.
    """

    def __init__(
        self,
        context: BrokerContext,
        epochs: EpochCheck,
        followed: Callable[[], Followed | None],
        *,
        update_confirm_offset: Callable[[int], object],
        bounds_readers: bool,
    ) -> None:
        self.followed = followed
        self._hear_confirmed: Final = update_confirm_offset
        self._bounds_readers: Final = bounds_readers
        self.master: str | None = None
        self.bounds: tuple[int, int] | None = None
        self.synced_ms = 0
        self.topics_end = max(0, context.engine.raw.master_flushed_offset)  # as an earlier process stored it
        self._epochs = epochs
        self._has_old_epoch: bool | None = None
        self._changed = asyncio.Event()
        self._context = context
        self._limit = LogLimit(_log, 60.0)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self.cuts = 0
        self._delivered: _Delivered | None = None
        self._consumed: _Consumed | None = None
        self._ended: tuple[Followed, dict[str, dict[str, int]]] | None = None
        self._whole: tuple[str, int] | None = None  # (master, number of truncations) of the deliveries in the tables
        self._checkpoint: TimerCheckpoint | None = None

    @property
    def is_whole(self) -> bool:
        """Return True if the tables contain exactly the deliveries of the master.

        A replaced master had delivered more: those messages are in the truncated part of its log.
        """
        return self._whole is not None and self._whole == (self.master, self.cuts)

    def set_master(self, address: str) -> bool:
        """Set the master; a new master is requested at once. Returns: True for a new master."""
        if address == self.master:
            return False
        self.master, self._has_old_epoch = address, None
        self._changed.set()
        return True

    def sync_now(self) -> None:
        """Copy the tables at once: the log of the master is followed from now on."""
        self._changed.set()

    async def request_epochs(self) -> Told | None:
        """Request the epochs of the master, before a connection for the log.

        Returns: None without an answer, or for a replaced master, which is not followed. Raises: FieldError.
        """
        master = self.master
        if master is None:
            return None
        self.request_bounds()
        epochs = await epochs_of(self._context.client, master)
        if epochs is None or master != self.master:  # the master changed; the next request goes to the new master
            return None
        self._has_old_epoch = self._epochs.is_replaced(epochs.entries)
        return None if self._has_old_epoch else epochs

    def start(self) -> None:
        """Start the periodic requests."""
        self._task = asyncio.ensure_future(self._sync_loop())

    async def stop(self) -> None:
        """Stop the periodic requests."""
        for task in (self._task, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _sync_loop(self) -> None:
        while True:
            self._changed.clear()  # before the request, since the master may change during the request
            if self.master is not None:
                await self._try(self.sync_once(self.master))
            end_s = self._context.loop.time() + _INTERVAL_S
            while not self._changed.is_set() and (left_s := end_s - self._context.loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left_s, _DELIVERED_S if self._delivered is None else _LOOK_S)):
                        await self._changed.wait()
                except TimeoutError:
                    await self._try(
                        self._sync_new_deliveries() if self._delivered is None else self._apply_deliveries()
                    )

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # no response of a peer may end the loop
            self._limit.warning("sync", "tables of master %s: %s", self.master, str(error) or repr(error))

    def request_bounds(self) -> None:
        """Request begin and end of the master's log."""
        self.bounds = None
        if self.master is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.ensure_future(self._request_bounds(self.master))

    async def _request_bounds(self, master: str) -> None:
        try:
            bounds = await self._bounds(master)
            if master == self.master:
                self.bounds = bounds
        except (MqfastError, ValueError) as error:
            self._limit.warning("bounds", "bounds of the log of master %s: %s", master, error)

    async def _bounds(self, master: str) -> tuple[int, int]:
        runtime: _Runtime = await self._request(master, RequestCode.GET_BROKER_RUNTIME_INFO, _Runtime)
        try:
            first, end = (int(runtime.table[name]) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, ValueError):
            raise FieldError(f"answer of {master} to 28", "commitLogMinOffset and commitLogMaxOffset", "none") from None
        confirmed = runtime.table.get("commitLogConfirmOffset", "")
        if confirmed.isdigit() and master == self.master:
            self._hear_confirmed(int(confirmed))
        return max(0, first), end

    def on_truncated(self, end: int) -> None:
        """Limit the tables to the truncated log, since other messages will follow. Raises: StorageError.

        Durability: the tables are on the disk when the call returns.
        """
        tables, store = self._context.tables, self._context.store
        self._whole = None
        self._changed.set()  # this broker's own deliveries may be truncated
        self.topics_end = min(self.topics_end, end)
        ends = {(topic, queue_id): end_offset for topic, queue_id, _, end_offset in store.queues()}
        tables.offsets.cut(lambda topic, queue_id: ends.get((topic, queue_id), 0))
        for level, offset in tables.delays.offsets().items():
            tables.delays.set(level, min(offset, ends.get((SCHEDULE_TOPIC, level - 1), 0)))
        tables.persist()
        os_api, path = store.log.os_api, store.paths.timer_check
        if (timer := load_checkpoint(os_api, path)) is not None:  # of this broker's own wheel, if it was a master
            write_checkpoint(os_api, path, of_master(timer))

    async def sync_once(self, master: str) -> None:
        """Copy all tables once. Raises: RemotingError, FieldError, StorageError."""
        epochs = await epochs_of(self._context.client, master)
        if epochs is None:
            raise FieldError("epochs of the master", "an answer", "none")
        if master != self.master:
            return  # the master changed; the next request goes to the new master
        self._has_old_epoch = self._epochs.is_replaced(epochs.entries)
        if self._has_old_epoch:
            theirs = f"{epochs.entries[-1].epoch}"
            raise FieldError("epoch of the master, which was replaced", f"at least {self._epochs.last}", theirs)
        followed = self.followed()
        if followed is None:
            return
        if followed.session != epochs.session:
            raise FieldError("master whose tables are taken", "the one whose log is followed", master)
        end = (await self._bounds(master))[1]
        topics = await self._request(master, RequestCode.GET_ALL_TOPIC_CONFIG, _Topics)
        groups = await self._request(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _Groups)
        offsets = await self._request(master, RequestCode.GET_ALL_CONSUMER_OFFSET, _Offsets)
        offsets_end = (await self._bounds(master))[1]
        if self.followed() != followed:
            return  # another log is followed now
        tables, context = self._context.tables, self._context
        if _differ(tables.topics.data_version, topics.data_version):
            tables.topics.replace(topics.topic_config_table, _version(topics.data_version))
            context.topics.notify_changed([])
        # For a promotion: a topic with later messages that is not in the table is a new topic.
        self.topics_end = self._context.engine.raw.master_flushed_offset = end
        if _differ(tables.groups.data_version, groups.data_version):
            tables.groups.replace(groups.subscription_group_table, _version(groups.data_version))
            tables.groups.replace_forbidden(groups.forbidden_table or {})
        if self._bounds_readers:
            await self._bounds(master)  # consumed messages are confirmed, and must be visible to readers here as well
        ended: dict[str, dict[str, int]] = {}
        for key, queues in offsets.offset_table.items():
            topic, _, group = key.partition("@")
            if group == TRANSACTION_GROUP:
                ended[topic] = queues
        if self._consumed is None or self._consumed.followed != followed:  # else an older state is applied first
            self._consumed = _Consumed(offsets_end, offsets.offset_table, followed)
        self._apply_offsets()
        if self._consumed is not None:
            self._begin_groups(offsets.offset_table)
        self._ended = followed, ended
        await self._sync_deliveries(master, ended)
        modes = await self._request(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, _Modes, or_none=True)
        if self.followed() != followed:
            return
        if modes is not None and context.request_modes != modes.message_request_mode_map:
            context.request_modes.clear()
            context.request_modes.update(modes.message_request_mode_map)
            store_modes(tables.modes, context.request_modes)
        self.synced_ms = context.now_ms()

    def _apply_offsets(self) -> None:
        """Commit the offsets of groups, once this log has all that the master's log had at that moment.

        A POP group's offset passes messages that only a check-point or a retry message in the log still covers.
        """
        consumed = self._consumed
        if consumed is not None and consumed.followed != self.followed():
            consumed = self._consumed = None  # of a log that is no longer followed
        if consumed is None or self._context.engine.raw.end < consumed.end:
            return
        self._consumed = None
        for key, queues in consumed.offsets.items():
            topic, _, group = key.partition("@")
            if group != TRANSACTION_GROUP:
                self._commit(group, topic, queues)

    def _begin_groups(self, offsets: dict[str, dict[str, int]]) -> None:
        """Let groups without an offset here begin at the first message: no group of the master counts as new.

        The offset of the revive topic is that of the last processed record, and none means the first message.
        """
        context = self._context
        for key, queues in offsets.items():
            topic, _, group = key.partition("@")
            if group == REVIVE_GROUP:
                continue
            with contextlib.suppress(UsageError, ValueError):
                for queue_id, offset in queues.items():
                    if context.offsets.get(group, topic, int(queue_id)) < 0:
                        first = max(0, context.store.min_offset(topic, int(queue_id)))
                        self._commit(group, topic, {queue_id: min(offset, first)})

    def _commit(self, group: str, topic: str, queues: dict[str, int]) -> None:
        context = self._context
        for queue_id, offset in queues.items():
            try:
                # Messages that this slave lacks count as not consumed: the slave may become master before they arrive.
                end = context.store.max_offset(topic, int(queue_id))
                context.offsets.commit(group, topic, int(queue_id), min(offset, end))
            except (UsageError, ValueError) as error:
                self._limit.warning("offset", "an offset of the master is left out: %s", error)

    async def _sync_new_deliveries(self) -> None:
        """Request the deliveries since the last request, with the last known ends of transactions.

        Deliveries that are not copied are repeated after a take-over.
        """
        master, ended = self.master, self._ended
        if master is not None and ended is not None and ended[0] == self.followed():
            await self._sync_deliveries(master, ended[1])

    async def _sync_deliveries(self, master: str, ended: dict[str, dict[str, int]]) -> None:
        """Copy delay offsets, the timer's checkpoint and ends of transactions: the deliveries into the log of the
        master.
        """
        followed = self.followed()
        if self._delivered is None or self._delivered.master != master or self._delivered.followed != followed:
            delays = await self._request(master, RequestCode.GET_ALL_DELAY_OFFSET, _Delays)
            timer = await self._request_timer(master) if self._context.config["timerWheelEnable"] else None
            self._delivered = _Delivered(master, (await self._bounds(master))[1], delays, timer, ended, followed)
        await self._apply_deliveries()

    async def _apply_deliveries(self) -> None:
        """Store the deliveries, once this log has them. Raises: StorageError."""
        self._apply_offsets()
        delivered, cuts = self._delivered, self.cuts
        if delivered is not None and delivered.followed != self.followed():
            delivered = self._delivered = None  # of a log that is no longer followed
        if delivered is None or self._context.engine.raw.end < delivered.end:
            return
        self._delivered = None
        version = delivered.delays.data_version or DataVersion()
        self._context.tables.delays.replace(delivered.delays.offset_table, _version(version))
        own = self._context.offsets.offsets(TRANSACTION_GROUP)
        for topic in {*delivered.ended, *own}:  # a master at offset 0 sends none
            self._commit(TRANSACTION_GROUP, topic, delivered.ended.get(topic, {"0": 0}))
        if delivered.timer is not None and delivered.timer != self._checkpoint:
            store = self._context.store
            await self._context.loop.run_in_executor(
                None, write_checkpoint, store.log.os_api, store.paths.timer_check, of_master(delivered.timer)
            )
            self._checkpoint = delivered.timer
        self._whole = delivered.master, cuts

    async def _request_timer(self, master: str) -> TimerCheckpoint | None:
        answer = await self._context.client.call(master, RequestCode.GET_TIMER_CHECK_POINT, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return None  # a master without a timer
        return TimerCheckpoint.decode(bytes(answer.body))

    async def _request(self, master: str, code: int, kind: type[Any], *, or_none: bool = False) -> Any:
        answer = await self._context.client.call(master, code, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            if or_none:  # 4.9 has no such request code
                return None
            raise FieldError(f"answer to {code}", "code 0", f"code {answer.code} {answer.remark or ''}")
        return decode_body(bytes(answer.body), kind, f"tables of the master ({code})")


def name_new_topics(context: BrokerContext, since: int) -> None:
    """Create missing topics that have messages at or above ``since``: the lost master had not replicated them."""
    topics = context.topics
    for topic, queue_id, first, end in reversed(context.store.queues()):  # highest queue id first
        if first >= end or topic.startswith(LMQ_PREFIX) or topics.is_system(topic) or topics.get(topic):
            continue
        with contextlib.suppress(OffsetError):  # deleted by retention
            if context.engine.unit_at(topic, queue_id, end - 1).physical_offset < since:
                continue  # the topic was deleted at the master
        is_of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        min_queues = 1 if is_of_group else context.config["defaultTopicQueueNums"]
        created = topics.ensure(topic, max(min_queues, queue_id + 1))
        _log.warning("topic %s was new at the master that was lost: it has %d queues", topic, created.write_queue_nums)


def _version(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def _differ(mine: dict[str, int], other: DataVersion) -> bool:
    return (mine.get("counter"), mine.get("timestamp")) != (other.counter, other.timestamp)


build_tables(__name__)
