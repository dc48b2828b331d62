"""A slave's tables: topics, groups, offsets, delay offsets, modes and the timer's checkpoint as its master has them.

Before all that the master is asked for its epochs: one with older epochs than this slave's was replaced, and is not
followed. Tables come from the master whose log is appended, and from no other: not while the two logs are compared, nor
where the slave found another history.

Room: broker/replica. It must never send a change to the master, nor claim for this log what is only in the master's: a
group's offset ends where the queue does, and what the master delivered counts when the log has it. All tables come
every three seconds (RocketMQ: once a minute, the checkpoint every three seconds), so that little is old when the slave
is asked. Source: SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from mqfast.broker.admin.queue_assignment import RequestMode
from mqfast.broker.metadata.topic_manager import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
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

    from mqfast.broker.parts import BrokerContext
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
    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


class _Runtime(Struct):
    table: dict[str, str]


class _Delivered(NamedTuple):
    """What a master had delivered when its log ended at ``end``: it says nothing of the log of another master."""

    master: str
    end: int
    delays: _Delays
    timer: TimerCheckpoint | None
    ended: dict[str, dict[str, int]]  # offsets of the transactions' group: what is below has ended
    followed: Followed | None


class TableSync:
    """Asks the master for its tables by the clock.

    Args: followed: whose log is appended now, None while there is none.
    Attributes: ``master``: its address for clients, as the name servers tell it; None while nobody knows; ``bounds``:
        first byte and end of its log, as it said when ``ask_bounds`` was called last, None until the answer;
        ``topics_end``: a message below, in the log, is of a topic that the master told, or that was deleted there;
        ``cuts``: of this slave's log, counted by the thread that cuts.
    Thread: that of the event loop; ``is_whole``: any.
    """

    def __init__(self, context: BrokerContext, epochs: EpochCheck, followed: Callable[[], Followed | None]) -> None:
        self.followed = followed
        self.master: str | None = None
        self.bounds: tuple[int, int] | None = None
        self.synced_ms = 0
        self.topics_end = max(0, context.engine.raw.master_flushed_offset)  # as an earlier process was told
        self._epochs = epochs
        self._has_old_epoch: bool | None = None
        self._changed = asyncio.Event()
        self._context = context
        self._limit = LogLimit(_log, 60.0)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self.cuts = 0
        self._delivered: _Delivered | None = None
        self._ended: tuple[Followed, dict[str, dict[str, int]]] | None = None
        self._whole: tuple[str, int] | None = None  # whose deliveries the tables tell, behind which cut
        self._checkpoint: TimerCheckpoint | None = None

    @property
    def is_whole(self) -> bool:
        """Do the tables tell what the master has delivered, and nothing else?

        A master that was replaced had delivered more: the messages are in what is cut from its log.
        """
        return self._whole is not None and self._whole == (self.master, self.cuts)

    def set_master(self, address: str) -> bool:
        """The master is this one; it is asked at once where it is another one than before. Returns: is it?"""
        if address == self.master:
            return False
        self.master, self._has_old_epoch = address, None
        self._changed.set()
        return True

    def ask_now(self) -> None:
        """The log of the master is followed from now on."""
        self._changed.set()

    async def ask_epochs(self) -> Told | None:
        """Before a connection for the log: what the master tells of its epochs.

        Returns: None where the master says nothing, or was replaced: it is not followed. Raises: FieldError.
        """
        master = self.master
        if master is None:
            return None
        self.ask_bounds()
        told = await epochs_of(self._context.client, master)
        if told is None or master != self.master:  # another one by now, which is asked next
            return None
        self._has_old_epoch = self._epochs.is_replaced(told.entries)
        return None if self._has_old_epoch else told

    def start(self) -> None:
        """Ask from now on."""
        self._task = asyncio.ensure_future(self._ask_for_ever())

    async def stop(self) -> None:
        """Ask no more."""
        for task in (self._task, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _ask_for_ever(self) -> None:
        while True:
            self._changed.clear()  # before the question: the master may change during it
            if self.master is not None:
                await self._try(self.ask_once(self.master))
            end_s = self._context.loop.time() + _INTERVAL_S
            while not self._changed.is_set() and (left_s := end_s - self._context.loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left_s, _DELIVERED_S if self._delivered is None else _LOOK_S)):
                        await self._changed.wait()
                except TimeoutError:
                    await self._try(self._ask_delivered() if self._delivered is None else self._take_delivered())

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # what a peer answers must not end the asking
            self._limit.warning("sync", "tables of master %s: %s", self.master, str(error) or repr(error))

    def ask_bounds(self) -> None:
        """Ask where the master's log begins and ends."""
        self.bounds = None
        if self.master is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.ensure_future(self._ask_bounds(self.master))

    async def _ask_bounds(self, master: str) -> None:
        try:
            found = await self._bounds(master)
            if master == self.master:
                self.bounds = found
        except (MqfastError, ValueError) as error:
            self._limit.warning("bounds", "bounds of the log of master %s: %s", master, error)

    async def _bounds(self, master: str) -> tuple[int, int]:
        found: _Runtime = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO, _Runtime)
        try:
            first, end = (int(found.table[name]) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, ValueError):
            raise FieldError(f"answer of {master} to 28", "commitLogMinOffset and commitLogMaxOffset", "none") from None
        confirmed = found.table.get("commitLogConfirmOffset", "")
        if confirmed.isdigit() and master == self.master:
            self._context.replicas.hear_confirmed(int(confirmed))
        return max(0, first), end

    def was_cut(self, end: int) -> None:
        """The log was cut: no table claims what is gone, since other messages come in its place. Raises: StorageError.

        Durability: the tables are on the disk when the call returns.
        """
        tables, store = self._context.tables, self._context.store
        self._whole = None
        self._changed.set()  # what this broker delivered itself may be gone
        self.topics_end = min(self.topics_end, end)
        ends = {(topic, queue_id): end_offset for topic, queue_id, _, end_offset in store.queues()}
        tables.offsets.cut(lambda topic, queue_id: ends.get((topic, queue_id), 0))
        for level, offset in tables.delays.offsets().items():
            tables.delays.set(level, min(offset, ends.get((SCHEDULE_TOPIC, level - 1), 0)))
        tables.persist()
        os_api, path = store.log.os_api, store.paths.timer_check
        if (timer := load_checkpoint(os_api, path)) is not None:  # of a wheel of its own, where this was a master
            write_checkpoint(os_api, path, of_master(timer))

    async def ask_once(self, master: str) -> None:
        """All tables once. Raises: RemotingError, FieldError, StorageError."""
        told = await epochs_of(self._context.client, master)
        if told is None:
            raise FieldError("epochs of the master", "an answer", "none")
        if master != self.master:
            return  # another one by now, which is asked next
        self._has_old_epoch = self._epochs.is_replaced(told.entries)
        if self._has_old_epoch:
            theirs = f"{told.entries[-1].epoch}"
            raise FieldError("epoch of the master, which was replaced", f"at least {self._epochs.last}", theirs)
        followed = self.followed()
        if followed is None:
            return
        if followed.session != told.session:
            raise FieldError("master whose tables are taken", "the one whose log is followed", master)
        end = (await self._bounds(master))[1]
        topics = await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG, _Topics)
        groups = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _Groups)
        offsets = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET, _Offsets)
        if self.followed() != followed:
            return  # another log by now
        tables, context = self._context.tables, self._context
        if _differ(tables.topics.data_version, topics.data_version):
            tables.topics.replace(topics.topic_config_table, _version(topics.data_version))
            context.topics.on_change([])
        # A promotion looks at that; a topic that is not in the table and has messages behind it is a new one.
        self.topics_end = self._context.engine.raw.master_flushed_offset = end
        if _differ(tables.groups.data_version, groups.data_version):
            tables.groups.replace(groups.subscription_group_table, _version(groups.data_version))
            tables.groups.replace_forbidden(groups.forbidden_table or {})
        if context.replicas.bounds_readers:
            await self._bounds(master)  # what the groups have consumed is confirmed, and is to be seen here as well
        ended: dict[str, dict[str, int]] = {}
        for key, queues in offsets.offset_table.items():
            topic, _, group = key.partition("@")
            if group == TRANSACTION_GROUP:
                ended[topic] = queues
            else:
                self._commit(group, topic, queues)
        self._ended = followed, ended
        await self._sync_delivered(master, ended)
        modes = await self._ask(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, _Modes, or_none=True)
        if self.followed() != followed:
            return
        if modes is not None:
            context.request_modes.clear()
            context.request_modes.update(modes.message_request_mode_map)
        self.synced_ms = context.now_ms()

    def _commit(self, group: str, topic: str, queues: dict[str, int]) -> None:
        context = self._context
        for queue_id, offset in queues.items():
            try:
                # Messages that this slave does not have are not consumed: it may be the master before they come.
                end = context.store.max_offset(topic, int(queue_id))
                context.offsets.commit(group, topic, int(queue_id), min(offset, end))
            except (UsageError, ValueError) as error:
                self._limit.warning("offset", "an offset of the master is left out: %s", error)

    async def _ask_delivered(self) -> None:
        """What was delivered since, with the ends of transactions as they were told last: what is not told of comes
        twice behind a take-over.
        """
        master, ended = self.master, self._ended
        if master is not None and ended is not None and ended[0] == self.followed():
            await self._sync_delivered(master, ended[1])

    async def _sync_delivered(self, master: str, ended: dict[str, dict[str, int]]) -> None:
        """Delay offsets, the timer's checkpoint, ends of transactions: what is before was delivered, into the log of
        the master.
        """
        followed = self.followed()
        if self._delivered is None or self._delivered.master != master or self._delivered.followed != followed:
            delays = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET, _Delays)
            timer = await self._ask_timer(master) if self._context.config["timerWheelEnable"] else None
            self._delivered = _Delivered(master, (await self._bounds(master))[1], delays, timer, ended, followed)
        await self._take_delivered()

    async def _take_delivered(self) -> None:
        """Note what was delivered, once the log has come so far. Raises: StorageError."""
        held, cuts = self._delivered, self.cuts
        if held is not None and held.followed != self.followed():
            held = self._delivered = None  # of a log that is not followed any more
        if held is None or self._context.engine.raw.end < held.end:
            return
        self._delivered = None
        version = held.delays.data_version or DataVersion()
        self._context.tables.delays.replace(held.delays.offset_table, _version(version))
        own = self._context.offsets.offsets(TRANSACTION_GROUP)
        for topic in {*held.ended, *own}:  # the master may be at the first one, and tell nothing
            self._commit(TRANSACTION_GROUP, topic, held.ended.get(topic, {"0": 0}))
        if held.timer is not None and held.timer != self._checkpoint:
            store = self._context.store
            await self._context.loop.run_in_executor(
                None, write_checkpoint, store.log.os_api, store.paths.timer_check, of_master(held.timer)
            )
            self._checkpoint = held.timer
        self._whole = held.master, cuts

    async def _ask_timer(self, master: str) -> TimerCheckpoint | None:
        answer = await self._context.client.call(master, RequestCode.GET_TIMER_CHECK_POINT, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return None  # a master without a timer
        return TimerCheckpoint.decode(bytes(answer.body))

    async def _ask(self, master: str, code: int, kind: type[Any], *, or_none: bool = False) -> Any:
        answer = await self._context.client.call(master, code, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            if or_none:  # 4.9 does not know the code
                return None
            raise FieldError(f"answer to {code}", "code 0", f"code {answer.code} {answer.remark or ''}")
        return decode_body(bytes(answer.body), kind, f"tables of the master ({code})")


def name_new_topics(context: BrokerContext, since: int) -> None:
    """Make topics that are in no table for messages at or above a physical offset: their master was lost too early."""
    topics = context.topics
    for topic, queue_id, first, end in reversed(context.store.queues()):  # the highest queue id first
        if first >= end or topic.startswith(LMQ_PREFIX) or topics.is_system(topic) or topics.get(topic):
            continue
        with contextlib.suppress(OffsetError):  # retention was quicker
            if context.engine.unit_at(topic, queue_id, end - 1).physical_offset < since:
                continue  # it was deleted at the master
        is_of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        least = 1 if is_of_group else context.config["defaultTopicQueueNums"]
        made = topics.ensure(topic, max(least, queue_id + 1))
        _log.warning("topic %s was new at the master that was lost: it has %d queues", topic, made.write_queue_nums)


def _version(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def _differ(mine: dict[str, int], other: DataVersion) -> bool:
    return (mine.get("counter"), mine.get("timestamp")) != (other.counter, other.timestamp)


build_tables(__name__)
