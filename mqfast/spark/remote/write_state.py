"""The write state of brokers: read by tasks before the first row, and by the driver after the last row.

A broker that does not answer is never taken for a broker without write state. Uses no Spark.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from mqfast.client.net import io_thread
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.net.request_steps import Request, broker_error
from mqfast.client.producer.send import RETRIED
from mqfast.client.values import MessageQueue
from mqfast.errors import CallTimeout, ClientError, ConnectError, ConnectionLost, NoRoute, TooManyCalls
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.once import ASK_ONCE, END_ONCE

__all__ = [
    "ATTEMPT_S", "LOST", "STORED_NOT_SAFE", "BatchDone", "BrokerWriteState", "Partitioning", "WriteBatch",
    "memory_lost", "pause", "query_write_state", "unlike",
]  # fmt: skip

T = TypeVar("T")
_log = logging.getLogger("mqfast.spark")
ATTEMPT_S: Final = 10.0
"""Time-out of one attempt of a request."""
_TOPICS_AT_ONCE: Final = 100
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
STORED_NOT_SAFE: Final = {
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
}
# Errors to retry: no response.
LOST: Final = (ConnectError, ConnectionLost, CallTimeout, TooManyCalls)


class BrokerWriteState(NamedTuple):
    """The response to ASK_ONCE."""

    divisions: dict[str, list[int]]
    before: dict[str, list[int]]
    rows: list[tuple[int, str, int, int, int]]
    done: int
    ended: list[str]


class BatchDone(Exception):
    """An earlier attempt stored the whole batch: no rows need to be sent.

    Attributes: newest: the newest completely stored batch.
    """

    def __init__(self, newest: int) -> None:
        super().__init__(newest)
        self.newest: Final = newest


class Partitioning(NamedTuple):
    """The queues among which the rows of a topic are divided. Attributes: topic: with namespace."""

    topic: str
    queues: tuple[MessageQueue, ...]

    @property
    def brokers(self) -> tuple[str, ...]:
        """Return the brokers of the queues."""
        return tuple(sorted({queue.broker_name for queue in self.queues}))

    @property
    def counts(self) -> tuple[int, int]:
        """Return the numbers of queues and of brokers, as in the marks."""
        return len(self.queues), len(self.brokers)

    def as_before(self, memories: Sequence[BrokerWriteState]) -> Partitioning:
        """Return the first queues of each broker if the topic has more queues than at the batch's first attempt."""
        for memory in memories:
            queues, brokers = memory.divisions.get(self.topic, self.counts)
            each = queues // brokers if brokers else 0
            had = tuple(queue for queue in self.queues if queue.queue_id < each)
            if (queues, brokers) != self.counts and (len(had), len(self.brokers)) == (queues, brokers):
                return Partitioning(self.topic, had)
        return self


def pause(attempt: int) -> float:
    """Return the seconds before the next attempt."""
    return _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]


def unlike(division: Partitioning, batch: int, memories: list[BrokerWriteState]) -> str | None:
    """Return the reason why the rows cannot be divided this way; None if they can."""
    own = division.counts
    for memory in memories:
        before = memory.divisions.get(division.topic)
        if before is not None and tuple(before) != own:
            return (
                f"rows of batch {batch} were divided among {before[0]} queues of {before[1]} brokers, and the topic "
                f"has {own[0]} of {own[1]} now; a batch that is repeated needs the same queues"
            )
        before = memory.before.get(division.topic)
        if before is not None and before[1] > own[1]:
            return (
                f"the batch before had {before[1]} brokers, and the topic has {own[1]} now "
                f"({', '.join(division.brokers)}): rows of this batch may be on a broker that is away. If it is gone "
                "for good, start with another txnId"
            )
    return None


async def query_write_state(
    instance: ClientInstance, address: str, topic: str, key: str, batch: int, tasks: bool = False
) -> BrokerWriteState | None:
    """Return the write state of a broker for a batch; None for a broker without write state.

    Args: tasks: include the last row of each task.
    Raises: ConnectionLost and other network errors; BrokerError, ClientError.
    """
    fields = {"topic": topic, "key": key, "batch": batch, "tasks": "true" if tasks else "false"}
    answer = await instance.driver.request(Request(address, ASK_ONCE, fields, timeout_s=ATTEMPT_S))
    assert answer is not None
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    if answer.code in RETRIED and answer.code != ResponseCode.SYSTEM_ERROR:  # the code of refused accounts
        raise ConnectionLost(str(broker_error(answer, address, "what is remembered of writes")))
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer, address, "what is remembered of writes")
    try:
        said = json.loads(bytes(answer.body))
        return BrokerWriteState(said["divisions"], said["before"], said["rows"], said["done"], said["ended"])
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"{address}: what is remembered of writes cannot be read: {error!r}") from None


def memory_lost(broker: str, address: str) -> ConnectionLost:
    """Return the error for another server at the address of a broker with write state: retry."""
    return ConnectionLost(
        f"{address} does not know the requests about writes, and {broker} does: another server is there"
    )


class WriteBatch:
    """The write state of a batch on all brokers, for the driver.

    Args: topics: with namespace; brokers: brokers with rows, which must answer; forgetful: brokers without write state,
        which get no request; timeout_s: of each call.
    Thread: one.
    """

    def __init__(
        self,
        settings: InstanceSettings,
        key: str,
        batch: int,
        topics: set[str],
        brokers: set[str],
        forgetful: set[str],
        timeout_s: float,
    ) -> None:
        self._io = io_thread.shared()
        self._settings: Final = settings
        self._key: Final = key
        self._batch: Final = batch
        self._topics: Final = topics
        self._brokers: Final = brokers
        self._forgetful: Final = forgetful
        self._timeout_s: Final = timeout_s

    def rows(self) -> dict[tuple[int, str, str, int], tuple[int, int]]:
        """Return (partition, topic, broker, queue id) -> (last row, crc), from the brokers of the topics.

        Rows of other topics belong to another, finished write of this name and are left out.
        Raises: ClientError.
        """
        return self._run(self._rows)

    def mark_stored(self, rows: int) -> None:
        """Mark the batch as completely stored on the brokers. Raises: ClientError."""
        self._run(lambda instance: self._mark_stored(instance, rows))

    def _run(self, work: Callable[[ClientInstance], Awaitable[T]]) -> T:
        instance = ClientInstance.shared(self._settings, self._io.loop)

        async def tried() -> T:
            await instance.acquire()
            try:
                deadline, attempt = time.monotonic() + self._timeout_s, 0
                while True:
                    try:
                        return await work(instance)
                    except LOST as error:
                        if time.monotonic() >= deadline:
                            raise
                        _log.info("%s", error)
                    await asyncio.sleep(pause(attempt))
                    attempt += 1
            finally:
                await instance.release()

        return self._io.call(tried(), self._timeout_s + 2 * ATTEMPT_S)

    async def _brokers_of_topics(self, instance: ClientInstance) -> dict[str, tuple[str, list[str]]]:
        """Return broker -> (address, topics). Raises: ConnectionLost if a broker with rows is unavailable."""
        asked: dict[str, tuple[str, list[str]]] = {}
        for topic in sorted(self._topics):
            try:
                route = await instance.driver.run(instance.route(topic, refresh=True))
            except NoRoute as error:
                raise ConnectionLost(str(error)) from None
            for name, place in route.brokers.items():
                if name not in self._forgetful and 0 in place.addresses:
                    asked.setdefault(name, (place.addresses[0], []))[1].append(topic)
        if away := self._brokers - self._forgetful - asked.keys():
            raise ConnectionLost(f"no route names the master of {', '.join(sorted(away))}, which rows were sent to")
        return asked

    async def _rows(self, instance: ClientInstance) -> dict[tuple[int, str, str, int], tuple[int, int]]:
        stored_rows: dict[tuple[int, str, str, int], tuple[int, int]] = {}
        for name, (address, topics) in (await self._brokers_of_topics(instance)).items():
            memory = await query_write_state(instance, address, topics[0], self._key, self._batch, tasks=True)
            if memory is None and name in self._brokers:
                raise memory_lost(name, address)
            if memory is not None:
                finished = set(memory.ended) - self._topics
                for partition, of, queue_id, row, crc in memory.rows:
                    if of not in finished:
                        stored_rows[partition, of, name, queue_id] = row, crc
        return stored_rows

    async def _mark_stored(self, instance: ClientInstance, rows: int) -> None:
        for name, (address, topics) in (await self._brokers_of_topics(instance)).items():
            for begin in range(0, len(topics), _TOPICS_AT_ONCE):
                names = ";".join(topics[begin : begin + _TOPICS_AT_ONCE])
                fields = {"topic": names, "key": self._key, "batch": self._batch, "rows": rows}
                answer = await instance.driver.request(Request(address, END_ONCE, fields, timeout_s=ATTEMPT_S))
                assert answer is not None
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and name in self._brokers:
                    raise memory_lost(name, address)
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    break  # no write state: the broker joined the topic after the last row
                if answer.code in RETRIED or answer.code in STORED_NOT_SAFE:
                    raise ConnectionLost(str(broker_error(answer, address, "the end of a batch")))
                if answer.code != ResponseCode.SUCCESS:
                    raise broker_error(answer, address, "the end of a batch")
