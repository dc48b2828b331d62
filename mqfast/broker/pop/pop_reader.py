"""The reading part of POP: takes messages from the queues of a topic and from the retry topics.

A result has messages of several queues. Each queue gets a check-point, stored before the result is complete. No two
POPs read a queue at the same time. Records that are probably on disk are read in a thread. Source: PopMessageProcessor.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqfast import properties as names
from mqfast.broker.pop.check_point import Batch, check_point_record
from mqfast.broker.pop.pop_long_polling import QueueToWatch
from mqfast.broker.pop.pop_result import PoppedMessage, PopRequest, PopResult, PopStatus
from mqfast.broker.pop.receipt_handle import (
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    ReceiptHandle,
    kind_of,
    message_offsets,
    pop_retry_topic,
    start_offsets,
)
from mqfast.broker.pop.retry_message import is_of_group, records_of, with_topic
from mqfast.broker.send.message_writer import end_of
from mqfast.errors import CallRefused, CorruptFile, MqfastError, PropertiesTooLong
from mqfast.remoting.codes import ResponseCode
from mqfast.store.base.results import GetMessageStatus
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.filter.queue_unit_filter import WantedUnits
    from mqfast.broker.pop.in_flight import InFlight
    from mqfast.broker.pop.order_info import OrderInfos
    from mqfast.broker.pop.pop_offsets import PopOffsets, Taken
    from mqfast.broker.pop.revive_log import ReviveLog
    from mqfast.broker.pull.get_limits import Limits
    from mqfast.store.engine import GetMessageResult
    from mqfast.store.meta.metadata import TopicConfig
    from mqfast.store.record.record import StoredMessage

__all__ = ["PopReader", "PopTurn"]

_log = logging.getLogger("mqfast.broker")
_OFFSET_MAX: Final = 1 << 56
"""Beyond the end of any queue; a client may have committed a larger offset."""
_MESSAGE_TYPE, _PRIORITY = "message.type", "PRIORITY"
_MOVED: Final = (
    GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.OFFSET_FOUND_NULL,
)  # fmt: skip
_SKIPPED: Final = (
    GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.OFFSET_FOUND_NULL, GetMessageStatus.MESSAGE_WAS_REMOVING,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
)  # fmt: skip


@dataclass(slots=True)
class PopTurn:
    """An attempt to serve a POP.

    Attributes: ``wanted``: the filter, which retries have passed already; ``end``: of the stored check-points in the
        log; ``taken``: what to commit once these are durable; ``failure``: why messages of a queue were not taken.
    """

    request: PopRequest
    topic: TopicConfig
    wanted: WantedUnits
    pop_time: int
    revive_queue_id: int
    result: PopResult
    end: int = 0
    taken: list[Taken] = field(default_factory=list)
    starts: list[tuple[int, int, int]] = field(default_factory=list)
    offsets: list[tuple[int, int, list[int]]] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    is_known: bool | None = None
    failure: CallRefused | None = None

    @property
    def room(self) -> int:
        """Return how many more messages the request takes."""
        return self.request.max_count - len(self.result.messages)


class PopReader:
    """Reads queues for POP.

    Attributes: ``starved``: topics and groups of requests that got nothing because of a limit of messages in flight.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        context: BrokerContext,
        limits: Limits,
        offsets: PopOffsets,
        orders: OrderInfos,
        in_flight: InFlight,
        revive: ReviveLog,
    ) -> None:
        self._context: Final = context
        self._limits: Final = limits
        self._offsets: Final = offsets
        self._orders: Final = orders
        self._in_flight: Final = in_flight
        self._revive: Final = revive
        self.starved: set[tuple[str, str]] = set()
        self._locked: set[tuple[str, str, int]] = set()
        self._limit = LogLimit(_log)

    # --- the queues ---

    def _retry_topics(self, topic: str, group: str) -> list[tuple[int, str]]:
        """Return kind and name of the retry topics that a group reads."""
        config, kinds = self._context.config, [RETRY_V2]
        if not config["enableRetryTopicV2"] or config["retrieveMessageFromPopRetryTopicV1"]:
            kinds.append(RETRY_V1)
        return [(kind, pop_retry_topic(topic, group, kind)) for kind in kinds]

    def _queue_ids(self, topic: str) -> range:
        config = self._context.topics.get(topic)
        return range(max(1, config.read_queue_nums) if config is not None else 1)

    def queues_to_watch(
        self, topic: str, group: str, queue_id: int, is_orderly: bool = False
    ) -> Iterator[QueueToWatch]:
        """Yield the queues from which a waiting POP gets the next message; a blocked queue is left out."""
        config = self._context.topics.get(topic)
        if config is None or self._is_full:
            return
        chosen = range(config.read_queue_nums) if queue_id < 0 else (queue_id,)
        for number in chosen:
            if not self._is_blocked(topic, group, number):
                yield QueueToWatch(topic, number, self._offsets.next_offset(topic, group, number))
        for _, name in [] if is_orderly else self._retry_topics(topic, group):
            for number in self._queue_ids(name):
                if not self._is_blocked(name, group, number):
                    yield QueueToWatch(name, number, self._offsets.next_offset(name, group, number))

    def _is_blocked(self, topic: str, group: str, queue_id: int) -> bool:
        return (
            (topic, group, queue_id) in self._locked
            or self._is_limited(topic, group, queue_id)
            or self._orders.blocked_until(topic, group, queue_id, None) is not None
        )

    def _is_limited(self, topic: str, group: str, queue_id: int) -> bool:
        config = self._context.config
        if not config["enablePopMessageThreshold"]:
            return False
        return self._in_flight.count(topic, group, queue_id) > int(config["popInflightMessageThreshold"])

    @property
    def _is_full(self) -> bool:
        return self._in_flight.messages >= int(self._context.config["popMessagesInFlightMax"])

    def has_messages(
        self, topic: str, group: str, queue_id: int, is_orderly: bool = False, attempt_id: str | None = None
    ) -> bool:
        """Return True if a POP finds messages, with any filter."""
        store = self._context.store
        if any(
            store.max_offset(name, number) > offset
            for name, number, offset in self.queues_to_watch(topic, group, queue_id, is_orderly)
        ):
            return True
        return is_orderly and attempt_id is not None and self._has_attempt(topic, group, queue_id, attempt_id)

    def _has_attempt(self, topic: str, group: str, queue_id: int, attempt_id: str) -> bool:
        """Return True if a repeated request with this attempt id gets the current batch of a queue."""
        chosen = self._queue_ids(topic) if queue_id < 0 else (queue_id,)
        infos = [self._orders.get(topic, group, number) for number in chosen]
        return any(info is not None and info.attempt_id == attempt_id for info in infos)

    async def peek(self, turn: PopTurn) -> None:
        """Read the next messages, without a check-point: first of the topic, then of the retry topics."""
        request, brokers = turn.request, self._context.config["brokerName"]
        queues = [*self.queues_to_watch(request.topic, request.group, request.queue_id)]
        for topic, queue_id, offset in queues:
            if turn.room <= 0:
                break
            kind = kind_of(topic, request.group)
            got = await self._records((topic, request.group, queue_id), offset, turn.room, None)
            if got is None:
                continue
            turn.result.rest += max(0, got.max_offset - max(offset, got.next_offset))
            for message, at, raw in _of_group(got, topic, request.group):
                handle = ReceiptHandle(offset, turn.pop_time, 0, 0, kind, brokers, queue_id, at)
                record = self._record(request, kind, message, raw, handle)
                turn.result.messages.append(
                    PoppedMessage(record, handle, message.physical_offset, message.reconsume_times)
                )
        if turn.result.messages:
            turn.result.status = PopStatus.FOUND

    # --- reading ---

    async def read(self, turn: PopTurn) -> None:
        """Take messages up to the count of the request, and store their check-points.

        The coroutine suspends only while records are read from the disk.
        """
        request, topic = turn.request, turn.topic
        if self._is_full:
            self._limit.warning(
                "full", "%d messages are in flight, POP gets no more (popMessagesInFlightMax)", self._in_flight.messages
            )
            self.starved.add((request.topic, request.group))
            return
        draw = random.randrange(100)
        store = self._context.store
        retries = [
            (kind, name)
            for kind, name in ([] if request.is_orderly else self._retry_topics(request.topic, request.group))
            if store.max_offset(name, 0) > 0
        ]
        retry = random.choice(retries) if retries else None  # the texts of the answer have room for a single kind
        is_by_priority = self._is_by_priority(topic, request.group)
        config = self._context.config
        is_first = draw < config["popFromRetryProbabilityForPriority" if is_by_priority else "popFromRetryProbability"]
        if retry is not None and is_first:
            await self._read_retry(turn, *retry, draw)
        if request.queue_id < 0:
            count = topic.read_queue_nums
            queue_ids = [(draw + number) % count for number in range(count)]
            if is_by_priority:
                queue_ids.sort(reverse=config["priorityOrderAsc"])
            for number in queue_ids:
                await self._read_queue(turn, request.topic, NORMAL, number)
        else:
            await self._read_queue(turn, request.topic, NORMAL, request.queue_id)
        if retry is not None and not is_first and turn.room > 0:
            await self._read_retry(turn, *retry, draw)
        result = turn.result
        result.start_offset_info = start_offsets(turn.starts)
        result.message_offset_info = message_offsets(turn.offsets)
        result.order_count_info = ";".join(turn.counts)
        if result.messages:
            result.status = PopStatus.FOUND

    def _is_by_priority(self, topic: TopicConfig, group: str) -> bool:
        """Return True if the queues are read from the highest priority on: each queue holds messages of a priority.

        The group's ``priority.factor`` is the percentage of such requests. Source: PopMessageProcessor (5.4).
        """
        if topic.attributes.get(_MESSAGE_TYPE) != _PRIORITY:
            return False
        rules = self._context.groups.table.get(group) or {}
        factor = str((rules.get("attributes") or {}).get("priority.factor", "100"))
        return not factor.isascii() or not factor.isdigit() or random.randrange(100) < int(factor)

    async def _read_retry(self, turn: PopTurn, kind: int, name: str, draw: int) -> None:
        self._context.topics.ensure(name, 1)  # a kill came before the table was written
        count = len(self._queue_ids(name))
        for number in range(count):
            await self._read_queue(turn, name, kind, (draw + number) % count)

    def _from_max(self, turn: PopTurn) -> bool:
        """Return False for a group that reads other queues of the topic: the queue is new.

        RocketMQ skips the first messages of such a queue.
        """
        request = turn.request
        if turn.is_known is None:
            offsets, count = self._context.offsets, turn.topic.read_queue_nums if request.queue_id < 0 else 0
            turn.is_known = any(offsets.get(request.group, request.topic, number) >= 0 for number in range(count))
        return request.from_max and not turn.is_known

    async def _read_queue(self, turn: PopTurn, topic: str, kind: int, queue_id: int) -> None:
        context, request = self._context, turn.request
        group, store = request.group, context.store
        queue = topic, group, queue_id
        if queue in self._locked:
            if not request.is_orderly:
                turn.result.rest += max(0, store.max_offset(topic, queue_id) - self._offsets.next_offset(*queue))
            return
        offset = self._offsets.begin(*queue, lambda: self._from_max(turn))
        reset = self._offsets.reset(*queue)
        if reset is not None:
            offset = reset
            self._orders.clear(*queue)
        end = store.max_offset(topic, queue_id)
        is_limited = self._is_limited(*queue)
        if is_limited:
            self.starved.add((request.topic, group))
        if is_limited or (turn.room <= 0 and not request.is_orderly):
            turn.result.rest += max(0, end - offset)
            return
        if turn.room <= 0 or end == offset:
            return
        if request.is_orderly and self._orders.blocked_until(*queue, request.attempt_id) is not None:
            return
        try:
            await self._read_records(turn, queue, kind, offset)
        except CorruptFile as error:  # the other queues are read all the same
            turn.failure = CallRefused(ResponseCode.SYSTEM_ERROR, f"topic[{topic}], queue {queue_id}: {error}")

    async def _read_records(self, turn: PopTurn, queue: tuple[str, str, int], kind: int, offset: int) -> None:
        topic, group, queue_id = queue
        wanted = turn.wanted if kind == NORMAL else None
        got = await self._records(queue, offset, turn.room, wanted)
        if got is not None and got.status in _MOVED and got.next_offset != offset:
            self._limit.info(
                "moved", "group %s, topic %s, queue %d: offset %d is moved to %d: %s",
                group, topic, queue_id, offset, got.next_offset, got.status.name,
            )  # fmt: skip
            offset = got.next_offset
            self._offsets.correct(*queue, offset)
            got = await self._records(queue, offset, turn.room, wanted)
        if got is not None:
            self._take(turn, queue, kind, offset, got)

    async def _records(
        self, queue: tuple[str, str, int], offset: int, count: int, wanted: WantedUnits
    ) -> GetMessageResult | None:
        """Return the records of a queue; None if the topic was deleted meanwhile."""
        context, (topic, _, queue_id) = self._context, queue
        limits = self._limits.get(wanted, count)
        offset = min(offset, _OFFSET_MAX)

        def read() -> GetMessageResult:
            return context.engine.get_records(topic, queue_id, offset, count, filter=wanted, limits=limits)

        if not context.engine.is_on_disk(topic, queue_id, offset, limits):
            return read()
        deletions = context.offsets.deletions(topic)
        self._locked.add(queue)
        try:
            got = await context.loop.run_in_executor(None, read)
            return got if context.offsets.deletions(topic) == deletions else None
        finally:
            self._locked.discard(queue)

    def _take(self, turn: PopTurn, queue: tuple[str, str, int], kind: int, offset: int, got: GetMessageResult) -> None:
        request, result = turn.request, turn.result
        topic, group, queue_id = queue
        taken = _of_group(got, topic, group)
        if not taken:
            if (got.message_count or got.status in _SKIPPED) and got.next_offset > offset:
                self._offsets.store(self._offsets.advance(*queue, got.next_offset))
            if not request.is_orderly:
                result.rest += max(0, got.max_offset - max(offset, got.next_offset))
            return
        offsets = [at for _, at, _ in taken]
        counts: dict[int, int] = {}
        if request.is_orderly:
            counts, text = self._orders.update(*queue, offsets, turn.pop_time, request.invisible_ms, request.attempt_id)
            turn.counts.append(text)
            self._offsets.commit(*queue, offset)
        elif not self._store_check_point(turn, queue, offset, offsets, got.next_offset):
            result.rest += len(offsets)
            return
        result.rest += max(0, got.max_offset - got.next_offset)
        turn.starts.append((kind, queue_id, offset))
        turn.offsets.append((kind, queue_id, offsets))
        self._context.stats.got(request.topic, group, len(taken), sum(len(raw) for _, _, raw in taken))
        for message, at, raw in taken:
            handle = ReceiptHandle(
                offset,
                turn.pop_time,
                request.invisible_ms,
                turn.revive_queue_id,
                kind,
                self._context.config["brokerName"],
                queue_id,
                at,
            )
            count = counts.get(at, 0) if request.is_orderly else message.reconsume_times
            result.messages.append(
                PoppedMessage(self._record(request, kind, message, raw, handle), handle, message.physical_offset, count)
            )

    def _record(
        self, request: PopRequest, kind: int, message: StoredMessage, raw: memoryview, handle: ReceiptHandle
    ) -> bytes | memoryview:
        """Return the record for a client; a retry with properties too long for POP_CK stays in its retry topic."""
        if kind == NORMAL or self._context.config["popResponseReturnActualRetryTopic"]:
            return raw
        pairs = message.properties
        pairs[names.POP_CK] = handle.encode()
        try:
            return with_topic(message, raw, request.topic, pairs)
        except PropertiesTooLong:
            return raw

    def _store_check_point(
        self, turn: PopTurn, queue: tuple[str, str, int], start: int, offsets: list[int], next_offset: int
    ) -> bool:
        """Store the check-point of a queue's messages; False, with ``failure`` set, if that fails."""
        context, (topic, group, queue_id) = self._context, queue
        batch = Batch(
            topic, group, queue_id, start, offsets, turn.pop_time, turn.request.invisible_ms, turn.revive_queue_id,
            context.config["brokerName"],
        )  # fmt: skip
        try:
            stored = context.writer.write(
                check_point_record(batch, self._revive.topic, self._revive.life, context.store_host)
            )
        except MqfastError as error:
            stored = context.writer.failed(error)
        if stored.result is None:
            turn.failure = CallRefused(stored.code, stored.remark or "")
            return False
        self._in_flight.add(batch)
        self._revive.wake()
        turn.end = max(turn.end, end_of(stored.result))
        turn.taken.append(self._offsets.advance(*queue, next_offset))
        return True


def _of_group(got: GetMessageResult, topic: str, group: str) -> list[tuple[StoredMessage, int, memoryview]]:
    """Return message, offset and record of each message, without the retries of other groups."""
    every = zip(got.messages, got.queue_offsets, records_of(got), strict=True)
    return [(message, at, raw) for message, at, raw in every if is_of_group(message, topic, group)]
