"""A slave's tables: topics, groups, offsets, delay offsets, modes and the timer's checkpoint as its master has them.

Before all that the master is asked for its epochs: one with older epochs than this slave's was replaced, and is not
followed.

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

from mqfast.broker.admin.assignment import RequestMode
from mqfast.broker.replica.epochs import epochs_of
from mqfast.errors import FieldError, MqfastError, UsageError
from mqfast.remoting.bodies import DataVersion, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.log_limit import LogLimit
from mqfast.schedule.timer.checkpoint import TimerCheckpoint, of_master, write_checkpoint

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.replica.epochs import Epochs

__all__ = ["TableSync"]

_log = logging.getLogger("mqfast.broker")
_INTERVAL_S: Final = 3.0
_TIMEOUT_MS: Final = 3000


class _Topics(Struct, rename="camel"):
    topic_config_table: dict[str, dict[str, Any]]
    data_version: DataVersion


class _Groups(Struct, rename="camel"):
    subscription_group_table: dict[str, dict[str, Any]]
    data_version: DataVersion


class _Offsets(Struct, rename="camel"):
    offset_table: dict[str, dict[str, int]]


class _Delays(Struct, rename="camel"):
    offset_table: dict[str, int]
    data_version: DataVersion | None = None


class _Modes(Struct, rename="camel"):
    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


class _Runtime(Struct):
    table: dict[str, str]


class _Delivered(NamedTuple):
    """What the master had delivered when its log ended at ``end``."""

    end: int
    delays: _Delays
    timer: TimerCheckpoint | None


class TableSync:
    """Asks the master for its tables by the clock.

    Attributes: ``master``: its address for clients, as the name servers tell it; None while nobody knows; ``bounds``:
        first byte and end of its log, as it said when ``ask_bounds`` was called last, None until the answer.
    Thread: that of the event loop; ``is_followed``: any.
    """

    def __init__(self, context: BrokerContext, epochs: Epochs) -> None:
        self.master: str | None = None
        self.bounds: tuple[int, int] | None = None
        self.synced_ms = 0
        self._epochs = epochs
        self._has_old_epoch: bool | None = None
        self._changed = asyncio.Event()
        self._context = context
        self._limit = LogLimit(_log, 60.0)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._delivered: _Delivered | None = None
        self._checkpoint: TimerCheckpoint | None = None

    @property
    def is_followed(self) -> bool:
        """May the log of the master be followed? Not before the master has told its epochs."""
        return self.master is None or self._has_old_epoch is False

    def set_master(self, address: str) -> None:
        """The master is this one; it is asked at once where it is another one than before."""
        if address != self.master:
            self.master, self._has_old_epoch = address, None
            self._changed.set()

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
            if self.master is not None:
                try:
                    await self.ask_once(self.master)
                except MqfastError as error:
                    self._limit.warning("sync", "tables of master %s: %s", self.master, error)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _INTERVAL_S)

    def ask_bounds(self) -> None:
        """Ask where the master's log begins and ends."""
        self.bounds = None
        if self.master is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.ensure_future(self._ask_bounds(self.master))

    async def _ask_bounds(self, master: str) -> None:
        try:
            self.bounds = await self._bounds(master)
        except MqfastError as error:
            self._limit.warning("bounds", "bounds of the log of master %s: %s", master, error)

    async def _bounds(self, master: str) -> tuple[int, int]:
        found: _Runtime = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO, _Runtime)
        try:
            first, end = (int(found.table[name]) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, ValueError):
            raise FieldError(f"answer of {master} to 28", "commitLogMinOffset and commitLogMaxOffset", "none") from None
        return max(0, first), end

    async def ask_once(self, master: str) -> None:
        """All tables once. Raises: RemotingError, FieldError, StorageError."""
        entries = await epochs_of(self._context.client, master)
        if entries is None:
            raise FieldError("epochs of the master", "an answer", "none")
        self._has_old_epoch = not self._epochs.follow(master, entries)
        if self._has_old_epoch:
            theirs = f"{entries[-1].epoch}" if entries else "none"
            raise FieldError("epoch of the master, which was replaced", f"at least {self._epochs.last}", theirs)
        self._context.engine.raw.master_flushed_offset = (await self._bounds(master))[1]  # a promotion looks at that
        topics = await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG, _Topics)
        groups = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _Groups)
        offsets = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET, _Offsets)
        tables, context = self._context.tables, self._context
        if _differ(tables.topics.data_version, topics.data_version):
            tables.topics.replace(topics.topic_config_table, _version(topics.data_version))
            context.topics.on_change([])
        if _differ(tables.groups.data_version, groups.data_version):
            tables.groups.replace(groups.subscription_group_table, _version(groups.data_version))
        for key, queues in offsets.offset_table.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                self._commit(group, topic, queue_id, offset)
        await self._sync_delivered(master)
        modes = await self._ask(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, _Modes, or_none=True)
        if modes is not None:
            context.request_modes.clear()
            context.request_modes.update(modes.message_request_mode_map)
        self.synced_ms = context.now_ms()

    def _commit(self, group: str, topic: str, queue_id: str, offset: int) -> None:
        context = self._context
        try:
            # Messages that this slave does not have are not consumed: it may be the master before they come.
            offset = min(offset, context.store.max_offset(topic, int(queue_id)))
            context.offsets.commit(group, topic, int(queue_id), offset)
        except (UsageError, ValueError) as error:
            self._limit.warning("offset", "an offset of the master is left out: %s", error)

    async def _sync_delivered(self, master: str) -> None:
        """Delay offsets and the timer's checkpoint: messages before them were delivered, into the master's log."""
        held = self._delivered
        if held is None:
            delays = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET, _Delays)
            timer = await self._ask_timer(master) if self._context.config["timerWheelEnable"] else None
            held = _Delivered((await self._bounds(master))[1], delays, timer)
        if self._context.engine.raw.end < held.end:
            self._delivered = held  # until the log has come so far
            return
        self._delivered = None
        version = held.delays.data_version or DataVersion()
        offsets = {int(level): offset for level, offset in held.delays.offset_table.items()}
        self._context.tables.delays.replace(offsets, _version(version))
        if held.timer is not None and held.timer != self._checkpoint:
            store = self._context.store
            await self._context.loop.run_in_executor(
                None, write_checkpoint, store.log.door, store.paths.timer_check, of_master(held.timer)
            )
            self._checkpoint = held.timer

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


def _version(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def _differ(mine: dict[str, int], other: DataVersion) -> bool:
    return (mine.get("counter"), mine.get("timestamp")) != (other.counter, other.timestamp)
