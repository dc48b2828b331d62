"""The requests of a task that writes to brokers: in order for each queue, with retries, bounded in bytes.

The task's thread encodes while the client's thread sends. A queue has one request in flight, which keeps the order of
the rows. Rows count as sent only after a broker's acknowledgement. With exactly_once rows go only to brokers with write
state. Uses no Spark.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Final, NamedTuple

from mqfast.client.net import io_thread
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.net.request_steps import Request, broker_error
from mqfast.client.producer.send import RETRIED
from mqfast.client.route.namespace import wrap
from mqfast.client.values import MessageQueue
from mqfast.errors import (
    ClientError,
    ConfigError,
    ConnectError,
    MqfastError,
    NoRoute,
    UsageError,
)
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.once import ONCE, RowSequence, SequenceRange
from mqfast.spark.remote.write_state import (
    ATTEMPT_S,
    LOST,
    STORED_NOT_SAFE,
    BatchDone,
    BrokerWriteState,
    Partitioning,
    memory_lost,
    pause,
    query_write_state,
    unlike,
)

__all__ = ["TaskResult", "How", "TaskSender"]

_log = logging.getLogger("mqfast.spark")
GROUP: Final = "mqfast-spark"
_AUTO_CREATE: Final = "TBW102"
_TOPIC_QUEUES: Final = 8


class How(NamedTuple):
    """The settings of a task's sends.

    Attributes: key, batch, partition: identity of the rows; delivery: exactly_once, at_least_once, or None for exactly
        once if the brokers can; timeout_s: time for retries of a request, and of the requests before the first;
        bytes_max: bytes in flight; given_queues: rows have a queue id.
    """

    key: str
    batch: int
    partition: int
    delivery: str | None
    timeout_s: float
    bytes_max: int
    given_queues: bool = False


class TaskResult(NamedTuple):
    """The last row of a task for a queue."""

    topic: str
    broker: str
    queue_id: int
    row: int
    crc: int


class _Request(NamedTuple):
    queue: MessageQueue
    single: bool
    body: bytes
    properties: bytes
    span: SequenceRange
    sys_flag: int
    born: int
    reconsume_times: int
    flag: int

    @property
    def bytes(self) -> int:
        return len(self.body) + len(self.properties)


class TaskSender:
    """Sends the rows of a task; a context manager.

    Attributes: ``forgetful``: brokers without write state that received rows. ``repeated``: requests whose rows were
        already stored.
    Thread: the task's.
    """

    def __init__(self, settings: InstanceSettings, how: How) -> None:
        self.forgetful: set[str] = set()
        self.repeated = 0
        self._how: Final = how
        self._settings: Final = settings
        self._io = io_thread.shared()
        self._instance: ClientInstance = ClientInstance.shared(settings, self._io.loop)
        self._divisions: dict[str, Partitioning] = {}
        self._remembering: set[str] = set()
        self._waiting: dict[MessageQueue, deque[_Request]] = {}
        self._room = threading.Condition()
        self._bytes = 0
        self._error: Exception | None = None

    def __enter__(self) -> TaskSender:
        self._io.call(self._instance.acquire(), self._how.timeout_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self._fail(ClientError("the task ended"))
        self._io.call(self._instance.release(), self._how.timeout_s)

    # --- queues ---

    def division(self, topic: str) -> Partitioning:
        """Return the queues among which the rows of a topic are divided; creates a missing topic if brokers allow.

        Raises: BatchDone; NoRoute, ConnectError, ClientError; ConfigError for exactly_once with a broker without write
            state.
        """
        partitioning = self._divisions.get(topic)
        if partitioning is None:
            # Each request has a time-out within the total.
            partitioning = self._io.call(self._divide(topic), self._how.timeout_s + 2 * ATTEMPT_S)
            if self._how.given_queues and len(partitioning.brokers) > 1:
                raise UsageError(
                    f"column queueId: topic {topic} is on the brokers {', '.join(partitioning.brokers)}, and a queue "
                    "id alone names no queue there. Leave the column out: queueSelector chooses"
                )
            self._divisions[topic] = partitioning
        return partitioning

    def queue_count(self, topic: str) -> int:
        """Return the number of queues among which the rows of a topic are divided."""
        return len(self.division(topic).queues)

    def counts(self, topic: bytes) -> bytes:
        """Return the division in the form of the marks."""
        return "{}.{}".format(*self.division(topic.decode("utf-8")).counts).encode()

    async def _divide(self, topic: str) -> Partitioning:
        name = wrap(self._settings.namespace, topic)
        deadline = time.monotonic() + self._how.timeout_s
        attempt = 0
        while True:
            why: object
            try:
                division = Partitioning(name, await self._queues(name))
                reason = None
                if self._how.delivery != "at_least_once":
                    asked = [await self._memory(state, name) for state in division.brokers]
                    memories = [state for state in asked if state is not None]
                    division = division.as_before(memories)
                    reason = unlike(division, self._how.batch, memories)
                if reason is None:
                    return division
                why = reason
            except LOST as error:
                why = error
            if time.monotonic() >= deadline:
                raise ClientError(f"topic {topic}: no rows were sent in {self._how.timeout_s:g} s: {why}")
            await asyncio.sleep(pause(attempt))
            attempt += 1

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        instance = self._instance
        run = instance.driver.run
        route = await run(instance.publish_route(topic, copied_topic=_AUTO_CREATE, queues=_TOPIC_QUEUES, refresh=True))
        if route.is_default:
            await self._make(topic)
            route = await run(instance.route(topic, refresh=True))
        queues = route.publish_queues()
        if not queues:
            raise NoRoute(f"topic {topic}: no broker has a queue of it that may be written to")
        return queues

    async def _make(self, topic: str) -> None:
        """Create a topic on every broker that creates topics, as a broker does for a first send."""
        route = self._instance.routes.get(topic)
        assert route is not None
        fields = {
            "topic": topic, "defaultTopic": _AUTO_CREATE, "readQueueNums": _TOPIC_QUEUES, "perm": 6, "order": "false",
            "writeQueueNums": _TOPIC_QUEUES, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
        }  # fmt: skip
        for name in sorted(route.brokers):
            address = route.brokers[name].addresses.get(0)
            if address is not None:
                answer = await self._instance.driver.request(
                    Request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, timeout_s=ATTEMPT_S)
                )
                assert answer is not None
                if answer.code != ResponseCode.SUCCESS:
                    raise broker_error(answer, address, f"topic {topic}: it is not there and cannot be made")
        for _ in range(50):  # until the brokers have registered with the name servers
            with_it = await self._has_route(topic)
            if with_it:
                return
            await asyncio.sleep(0.1)
        raise NoRoute(f"topic {topic}: it was made, and the name server does not know it after 5 s")

    async def _has_route(self, topic: str) -> bool:
        try:
            await self._instance.driver.run(self._instance.route(topic, refresh=True))
        except NoRoute:
            return False
        return True

    def _address(self, broker: str) -> str:
        address = self._instance.routes.address(broker)
        if address is None:
            raise ConnectError(f"broker {broker}: no known route names its master")
        return address

    async def _memory(self, broker: str, topic: str) -> BrokerWriteState | None:
        """Return the write state of a broker for this batch; None for a broker without write state."""
        address = self._address(broker)
        memory = await query_write_state(self._instance, address, topic, self._how.key, self._how.batch)
        if memory is None and broker in self._remembering:
            raise memory_lost(broker, address)
        if memory is None:
            if self._how.delivery == "exactly_once":
                raise ConfigError(
                    f"option delivery: exactly_once needs brokers of mqfast that remember writes, and {broker} at "
                    f"{address} does not (RocketMQ's cannot): leave the option out, or choose at_least_once"
                )
            self.forgetful.add(broker)
            return None
        self._remembering.add(broker)
        if memory.done >= self._how.batch:
            raise BatchDone(memory.done)
        return memory

    # --- sends ---

    def send(self, ready: tuple[Any, ...]) -> None:
        """Send a request of ``Elements``; wait while too many bytes are in flight. Raises: the error of an earlier
        send.
        """
        topic, index, single, body, properties, _, previous, row, crc, sys_flag, born, reconsume_times, flag = ready
        division = self.division(topic.decode("utf-8"))
        if index >= len(division.queues):
            raise UsageError(
                f"column queueId: topic {division.topic}: expected a queue below {len(division.queues)}, found {index}"
            )
        how = self._how
        mark = RowSequence(how.key, how.batch, how.partition, row, crc, *division.counts)
        queue = division.queues[index]
        request = _Request(
            queue, single, body, properties, SequenceRange(previous, mark), sys_flag, born, reconsume_times, flag
        )
        with self._room:
            while self._error is None and self._bytes and self._bytes + request.bytes > how.bytes_max:
                self._room.wait()
            if self._error is not None:
                raise self._error
            self._bytes += request.bytes
        self._io.soon(lambda: self._begin(request))

    def finish(self) -> None:
        """Wait until all requests are acknowledged. Raises: the error of a send."""
        with self._room:
            while self._error is None and self._bytes:
                self._room.wait()
            if self._error is not None:
                raise self._error

    def result_of(self, topic: bytes, index: int, row: int, crc: int) -> TaskResult:
        """Return the result of a queue for the driver."""
        queue = self.division(topic.decode("utf-8")).queues[index]
        return TaskResult(queue.topic, queue.broker_name, queue.queue_id, row, crc)

    def _fail(self, error: Exception) -> None:
        with self._room:
            if self._error is None:
                self._error = error
            self._room.notify_all()

    def _begin(self, request: _Request) -> None:
        waiting = self._waiting.get(request.queue)
        if waiting is not None:
            waiting.append(request)
            return
        self._waiting[request.queue] = deque([request])
        self._instance.spawn(self._drain(request.queue), "mqfast rows")

    async def _drain(self, queue: MessageQueue) -> None:
        waiting = self._waiting[queue]
        try:
            while waiting and self._error is None:
                request = waiting.popleft()
                await self._stored(request)
                with self._room:
                    self._bytes -= request.bytes
                    self._room.notify_all()
        except Exception as error:  # every error: the task's thread waits for the end
            self._fail(error)
        finally:
            del self._waiting[queue]

    async def _stored(self, request: _Request) -> None:
        """Send a request until its rows are stored. Raises: ClientError, BrokerError."""
        deadline = time.monotonic() + self._how.timeout_s
        queue, attempt = request.queue, 0
        once = self._how.delivery != "at_least_once" and queue.broker_name not in self.forgetful
        code = RequestCode.SEND_MESSAGE_V2 if request.single else RequestCode.SEND_BATCH_MESSAGE
        why: object = None
        while self._error is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise ClientError(
                    f"topic {queue.topic}, queue {queue.queue_id} of {queue.broker_name}: rows up to "
                    f"{request.span.last.row} of the task are not stored after {self._how.timeout_s:g} s: {why}"
                )
            try:
                address = self._address(queue.broker_name)
                wanted = Request(address, code, self._fields(request, once), request.body, min(remaining_s, ATTEMPT_S))
                answer = await self._instance.driver.request(wanted)
            except LOST as error:
                why = error
                await self._refresh(queue.topic)
            else:
                assert answer is not None
                if answer.code == ResponseCode.SUCCESS and (not once or ONCE in answer.ext_fields):
                    self.repeated += answer.ext_fields.get(ONCE) in ("before", "rest")
                    return
                refusal = broker_error(answer, address, queue.topic)
                if answer.code == ResponseCode.SUCCESS:
                    raise ClientError(
                        f"{address}: the broker that remembered writes was replaced by one that does not; rows up to "
                        f"{request.span.last.row} of task {self._how.partition} may be stored twice"
                    )
                if answer.code in STORED_NOT_SAFE:
                    status = STORED_NOT_SAFE[answer.code]
                    why = f"{address} stored the rows with status {status}"
                    if not once:
                        raise ClientError(f"topic {queue.topic}: {why}; they are not as safe as the broker promises")
                elif answer.code in RETRIED:
                    why = refusal
                    if (
                        answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                    ):  # also from a slave: refresh the master's address
                        await self._refresh(queue.topic)
                else:
                    raise refusal
            await asyncio.sleep(pause(attempt))
            attempt += 1

    def _fields(self, request: _Request, once: bool) -> dict[str, Any]:
        queue = request.queue
        fields: dict[str, Any] = {
            "a": GROUP,
            "b": queue.topic,
            "c": _AUTO_CREATE,
            "d": _TOPIC_QUEUES,
            "e": queue.queue_id,
            "f": request.sys_flag,
            "g": request.born or time.time_ns() // 1_000_000,
            "h": request.flag,
            "i": request.properties.decode("utf-8"),
            "j": request.reconsume_times,
            "k": "false",
            "m": "false" if request.single else "true",
            "n": queue.broker_name,
        }
        if once:
            fields[ONCE] = request.span.text()
        return fields

    async def _refresh(self, topic: str) -> None:
        """Refresh the route: the broker may have moved. Without an answer the known route stays."""
        try:
            await self._instance.driver.run(self._instance.route(topic, refresh=True, timeout_s=1.0))
        except MqfastError as error:
            _log.info("%s", error)
