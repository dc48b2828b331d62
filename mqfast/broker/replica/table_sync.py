"""A slave's tables: topics, groups, offsets and delay offsets as its master has them.

Room: broker/replica. It must never send a change to the master. All tables come every three seconds (RocketMQ: once a
minute), so that little is old when the slave is asked. Source: SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mqfast.errors import FieldError, MqfastError, UsageError
from mqfast.remoting.bodies import DataVersion, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

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


class TableSync:
    """Asks the master for its tables by the clock.

    Attributes: ``master``: its address for clients, as the name servers tell it; None while nobody knows.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.master: str | None = None
        self.synced_ms = 0
        self._context = context
        self._limit = LogLimit(_log, 60.0)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask from now on."""
        self._task = asyncio.ensure_future(self._ask_for_ever())

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_for_ever(self) -> None:
        while True:
            if self.master is not None:
                try:
                    await self.ask_once(self.master)
                except MqfastError as error:
                    self._limit.warning("sync", "tables of master %s: %s", self.master, error)
            await asyncio.sleep(_INTERVAL_S)

    async def ask_once(self, master: str) -> None:
        """All tables once. Raises: RemotingError, FieldError."""
        topics = await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG, _Topics)
        groups = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _Groups)
        offsets = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET, _Offsets)
        delays = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET, _Delays)
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
        version = delays.data_version or DataVersion()
        tables.delays.replace({int(level): offset for level, offset in delays.offset_table.items()}, _version(version))
        self.synced_ms = context.now_ms()

    def _commit(self, group: str, topic: str, queue_id: str, offset: int) -> None:
        try:
            self._context.offsets.commit(group, topic, int(queue_id), offset)
        except (UsageError, ValueError) as error:
            self._limit.warning("offset", "an offset of the master is left out: %s", error)

    async def _ask(self, master: str, code: int, kind: type[Any]) -> Any:
        answer = await self._context.client.call(master, code, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise FieldError(f"answer to {code}", "code 0", f"code {answer.code} {answer.remark or ''}")
        return decode_body(bytes(answer.body), kind, f"tables of the master ({code})")


def _version(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def _differ(mine: dict[str, int], other: DataVersion) -> bool:
    return (mine.get("counter"), mine.get("timestamp")) != (other.counter, other.timestamp)
