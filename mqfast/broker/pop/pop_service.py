"""PopService: POP, acks, change of the invisible time, dead letters and notifications, for remoting and gRPC.

Callers check the rights of their client first. No answer comes before its record is stored: a check-point before the
messages, an ack record before the ack. Source: PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor,
NotificationProcessor.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mqfast.broker.pop.check_point import Batch, ack_record, batch_key, check_point_record
from mqfast.broker.pop.in_flight import InFlight
from mqfast.broker.pop.order_info import ILLEGAL, OrderInfos
from mqfast.broker.pop.pop_checks import PopChecks, illegal
from mqfast.broker.pop.pop_long_polling import PopLongPolling, Waiter
from mqfast.broker.pop.pop_offsets import PopOffsets
from mqfast.broker.pop.pop_reader import PopReader, PopTurn
from mqfast.broker.pop.pop_result import ANY_QUEUE, PopRequest, PopResult, PopStatus
from mqfast.broker.pop.receipt_handle import ORDER_QUEUE, ReceiptHandle
from mqfast.broker.pop.retry_message import is_of_group, message_at, origin_topic, put_dead_letter
from mqfast.broker.pop.revive_log import ReviveLog
from mqfast.broker.pop.truncation import forget_cut_part
from mqfast.broker.send.message_writer import MessageRecord, Stored, end_of
from mqfast.errors import CallRefused, CorruptFile
from mqfast.remoting.codes import ResponseCode
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pull.get_limits import Limits
    from mqfast.broker.pull.long_polling import LongPolling
    from mqfast.broker.schedule.timer import BrokerTimers

__all__ = ["PopService"]

_RELEASED_MS: Final = 1_000
_STORED: Final = (
    ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)  # fmt: skip


class PopService:
    """The POP of a broker; ``Parts.pop.service``.

    A cancelled ``pop`` or ``notification`` waits no longer. Messages that a ``pop`` has taken when it is cancelled, or
    fails, come again soon.

    Attributes: ``in_flight``: the messages without ack; ``orders``: the batches of orderly POP; ``waiters``: the held
        requests; ``revive``: redelivery.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, limits: Limits, long_polling: LongPolling, timers: BrokerTimers) -> None:
        self._context: Final = context
        self._timers: Final = timers
        self._checks: Final = PopChecks(context, timers)
        self.in_flight: Final = InFlight()
        self.orders: Final = OrderInfos(context.tables.orders, context.now_ms)
        self.offsets: Final = PopOffsets(context, limits)
        self.revive: Final = ReviveLog(context, self.in_flight, timers, self._has_room)
        self.reader: Final = PopReader(context, limits, self.offsets, self.orders, self.in_flight, self.revive)
        self.waiters: Final = PopLongPolling(long_polling, self.reader.queues_to_watch)
        self._batches = itertools.count()
        self._log: Final = LogLimit(logging.getLogger("mqfast.broker"))
        self._releases: Final[set[asyncio.Task[None]]] = set()
        self._new_groups: set[str] = set()
        self._began_ms: Final = context.now_ms()
        context.topics.on_delete.append(self._topic_deleted)

    def start(self) -> None:
        """Begin redelivery; on a slave the master redelivers."""
        if self._timers.service is not None and not self._context.config.is_slave:
            self.revive.start()

    def stop(self) -> None:
        """Answer all held requests, and end redelivery."""
        self.waiters.stop()
        self.revive.stop()
        self.store_orders()

    def store_orders(self) -> None:
        """Hand the state of orderly POP to the table of the file, without queues that are gone or unused for a day."""
        self.orders.clean(self._has_queue)
        self.orders.store()

    def _has_queue(self, topic: str, group: str, queue_id: int) -> bool:
        config = self._context.topics.get(topic)
        return config is not None and queue_id < config.read_queue_nums and group in self._context.groups.table

    def before_truncation(self, end: int) -> None:
        """Forget what only the log from ``end`` on proves, since a slave's log is cut there. Raises: StorageError."""
        self.orders.forget_all()
        self.orders.store()
        forget_cut_part(self._context, end)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of held requests."""
        self.waiters.pass_time(seconds)

    def run_due(self) -> None:
        """Redeliver all that is due, at once: for tests with a clock of their own."""
        while not self.revive.run_once(self._context.now_ms()):
            pass
        self.revive.scan(math.inf)
        self._context.writer.flush_soon()

    def in_flight_counts(self) -> dict[tuple[str, str, int], int]:
        """Return the messages without ack by (topic, group, queue id), orderly and not."""
        counts = self.in_flight.counts()
        for topic, group, queue_id, count in self.orders.counts():
            counts[topic, group, queue_id] = counts.get((topic, group, queue_id), 0) + count
        return counts

    # --- pop ---

    async def pop(self, request: PopRequest) -> PopResult:
        """Return messages and store their check-points; wait for messages if there are none.

        Raises: CallRefused with RocketMQ's code and text: no permission (16), unknown topic (17), unknown group (26),
        a filter that cannot be parsed (23), numbers out of range (29), a disabled timer or a slave (1).
        """
        await self._settle_group(request)
        wanted, waiter = await self._checks.filter(request), None
        while True:
            topic = self._checks.request(request)
            turn = PopTurn(
                request, topic, wanted, self._context.now_ms(), self._revive_queue(request),
                PopResult(PopStatus.NOT_FOUND),
            )  # fmt: skip
            turn.result.pop_time, turn.result.invisible_ms = turn.pop_time, request.invisible_ms
            turn.result.revive_queue_id = turn.revive_queue_id
            try:
                await self._read(turn, is_woken=waiter is not None)
                if turn.result.status is PopStatus.FOUND:
                    await self._durable(turn.end)
                    return turn.result
                if turn.failure is not None:
                    raise turn.failure
            except BaseException:  # also of a cancelled request
                self.release(request.group, request.topic, [message.handle for message in turn.result.messages])
                raise
            finally:
                for taken in turn.taken:
                    self.offsets.store(taken)
            if request.wait_ms <= 0:
                return turn.result
            if waiter is None:
                if not self._may_wait(request):
                    turn.result.status = PopStatus.FULL
                    return turn.result
                waiter = self._waiter(request)
            self._watch_orders(request)
            if not await self.waiters.wait(waiter):
                return turn.result
            self._check_rights(request)

    async def _read(self, turn: PopTurn, *, is_woken: bool) -> None:
        """Take messages; a request that leaves messages, or an awakened one that fails, wakes the next request."""
        request, is_read = turn.request, False
        try:
            await self.reader.read(turn)
            is_read = True
        finally:
            if is_woken:
                self.waiters.tried(request.topic, request.group)
            is_passed_on = is_woken and not is_read
            if is_passed_on or (turn.result.status is PopStatus.FOUND and turn.result.rest > 0):
                self.waiters.wake_group(request.topic, request.group)

    def _check_rights(self, request: PopRequest) -> None:
        """Check the rights of an awakened request, since these may have been revoked. Raises: CallRefused."""
        if request.check_rights is None:
            return
        try:
            request.check_rights()
        except CallRefused:
            self.waiters.tried(request.topic, request.group)
            self.waiters.wake_group(request.topic, request.group)
            raise

    async def _settle_group(self, request: PopRequest) -> None:
        """Wait until a new group is on the disk: messages in flight of an unknown group are not redelivered."""
        changes = self._context.changes
        before = changes.count
        self._checks.request(request)
        if changes.count != before:
            self._new_groups.add(request.group)
        if request.group in self._new_groups:
            await changes.settled()
            self._new_groups.discard(request.group)

    def _waiter(self, request: PopRequest) -> Waiter:
        return Waiter(
            (request.topic, request.group),
            request.queue_id,
            f"{request.expression_type} {request.expression}",
            self.waiters.due_in(request.wait_ms),
            is_orderly=request.is_orderly,
        )

    def _may_wait(self, request: PopRequest) -> bool:
        config = self._context.config
        of_group = self.waiters.count(request.topic, request.group)
        return len(self.waiters) < int(config["maxPopPollingSize"]) and of_group < int(config["popPollingSize"])

    async def _durable(self, end: int) -> None:
        """Wait until the log up to ``end`` is committed as the settings require. Raises: CallRefused."""
        if end and self._context.writer.must_wait(b""):
            stored = await self._context.writer.durable_to(end)
            if stored.code not in _STORED:
                raise CallRefused(stored.code, stored.remark or "")

    def _revive_queue(self, request: PopRequest) -> int:
        return ORDER_QUEUE if request.is_orderly else next(self._batches) % self.revive.queue_count

    def _watch_orders(self, request: PopRequest) -> None:
        """Wake the group when the first blocked queue of an orderly request becomes free by time."""
        if not request.is_orderly:
            return
        now_ms, count = self._context.now_ms(), self._checks.request(request).read_queue_nums
        queues = range(count) if request.queue_id < 0 else (request.queue_id,)
        times = [self.orders.blocked_until(request.topic, request.group, queue, None) for queue in queues]
        due_ms = min((time for time in times if time is not None), default=None)
        if due_ms is not None:
            self.waiters.wake_at((due_ms - now_ms) / 1000, request.topic, request.group)

    def _has_room(self, topic: str, group: str) -> None:
        """Wake a group that got nothing because of a limit: a message is no longer in flight."""
        starved = self.reader.starved
        if starved and (topic, group) in starved:
            starved.discard((topic, group))
            self.waiters.wake_group(topic, group)

    def _topic_deleted(self, topic: str) -> None:
        for batch in self.in_flight.of_topic(topic):
            self.in_flight.forget(batch)
        self.offsets.forget_topic(topic)
        self.orders.forget_topic(topic)
        self.waiters.wake_topic(topic)

    # --- ack ---

    async def ack(self, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Store that a message is consumed. A message that is unknown, or acked already, is no error.

        Args: topic: the topic of the request, or the retry topic.
        Raises: CallRefused for an unknown topic (17), a wrong queue (13), an offset out of range (208), a handle of
        another broker or with a wrong revive queue (29), a failed put.
        """
        refusals = await self.ack_batch(group, topic, [handle])
        if refusals[0] is not None:
            raise refusals[0]

    async def ack_batch(self, group: str, topic: str, handles: Sequence[ReceiptHandle]) -> list[CallRefused | None]:
        """Store several acks with as few records as possible; return the refusal of each handle, None if acked."""
        refusals: list[CallRefused | None] = [None] * len(handles)
        batches: dict[tuple[str, ReceiptHandle], list[int]] = {}
        for position, handle in enumerate(handles):
            try:
                real = self._checks.handle(group, topic, handle, self.revive.queue_count, is_end_allowed=True)
                if handle.revive_queue_id == ORDER_QUEUE:
                    self._ack_orderly(group, real, handle)
                else:
                    batches.setdefault((real, handle._replace(offset=0)), []).append(position)
            except CallRefused as refused:
                refusals[position] = refused
        end = 0
        for (real, handle), positions in batches.items():
            stored = self._store_acks(group, real, handle, sorted({handles[position].offset for position in positions}))
            if stored is not None and stored.result is None:
                for position in positions:
                    refusals[position] = CallRefused(stored.code, stored.remark or "")
            elif stored is not None and stored.result is not None:
                end = max(end, end_of(stored.result))
        try:
            await self._durable(end)
        except CallRefused as refused:
            refusals = [before or refused for before in refusals]
        return refusals

    def _store_acks(self, group: str, topic: str, handle: ReceiptHandle, offsets: list[int]) -> Stored | None:
        """Store acks of a batch, and note these in memory. Returns: None if no record is needed."""
        context = self._context
        batch = self.in_flight.get(_key(group, topic, handle))
        if batch is not None:
            offsets = [offset for offset in offsets if offset in batch.pending]
        elif not self._is_of_earlier_process(handle.pop_time):
            offsets = []  # acked or redelivered already
        if not offsets:
            return None
        if batch is None:
            life, due_ms, revive_queue = None, handle.due_ms, handle.revive_queue_id
        else:
            life = self.revive.life if batch.is_own else None
            due_ms, revive_queue = batch.due_ms, batch.revive_queue_id
        key = topic, handle.queue_id, handle.start_offset, group, handle.pop_time, handle.broker_name
        stored = context.writer.write(
            ack_record(
                key, offsets, revive_queue, due_ms, self.revive.topic, life, context.now_ms(), context.store_host
            )
        )
        if stored.result is not None and batch is not None:
            for offset in offsets:
                self.in_flight.settle(batch, offset)
            self._has_room(origin_topic(topic, group), group)
        return stored

    def _is_of_earlier_process(self, pop_time: int) -> bool:
        """Return True if an earlier process may have made the check-point; such a batch is not in memory until due."""
        return pop_time <= self._began_ms

    def _ack_orderly(self, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Note an ack of orderly POP; the next batch waits for all. Raises: CallRefused for an offset outside (13)."""
        queue_id, offset = handle.queue_id, handle.offset
        committed = self._context.offsets.get(group, topic, queue_id)
        if offset < committed or not self._is_of_batch(group, topic, handle):
            return
        next_offset = self.orders.ack(topic, group, queue_id, offset, handle.pop_time, committed)
        if next_offset == ILLEGAL:
            raise CallRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{offset}",
            )
        if next_offset >= 0:
            self.offsets.commit(topic, group, queue_id, next_offset)
            if self.orders.blocked_until(topic, group, queue_id, None) is None:
                self.waiters.wake_group(topic, group)

    def _is_of_batch(self, group: str, topic: str, handle: ReceiptHandle) -> bool:
        """Return False if the offset has a message that is younger than the handle, as a power cut may leave it."""
        if self.orders.get(topic, group, handle.queue_id) is not None:
            return True  # on the disk once the messages of the batch are
        try:
            message = message_at(self._context, topic, handle.queue_id, handle.offset)
        except CorruptFile:
            return True
        return message is not None and message.store_timestamp <= handle.pop_time

    # --- invisible time, dead letters ---

    async def change_invisible_time(
        self, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int, *, is_suspend: bool = False
    ) -> ReceiptHandle:
        """Make a message due after ``invisible_ms`` from now, and return the new handle; the old one is acked.

        Args: is_suspend: the redelivery does not count as a failed attempt.
        Raises: as ``ack``; the offset after the last message is out of range (208).
        """
        real = self._checks.handle(group, topic, handle, self.revive.queue_count, is_end_allowed=False)
        self._checks.invisible(invisible_ms)
        context, now_ms = self._context, self._context.now_ms()
        if handle.revive_queue_id == ORDER_QUEUE:
            return self._change_orderly(group, real, handle, now_ms + invisible_ms)
        if not self._is_delivered(group, real, handle):
            # Acked, or redelivered: another check-point would deliver the message twice. RocketMQ does that.
            raise CallRefused(ResponseCode.NO_MESSAGE, f"the message is not in flight any more: {handle.encode()}")
        pop_time = now_ms
        while self.in_flight.get(batch_key(real, handle.queue_id, handle.offset, group, pop_time, handle.broker_name)):
            pop_time += 1  # the key of another change in the same millisecond
        changed = Batch(
            real, group, handle.queue_id, handle.offset, [handle.offset], pop_time, invisible_ms,
            handle.revive_queue_id, handle.broker_name, is_suspended=is_suspend,
        )  # fmt: skip
        stored = self._write(check_point_record(changed, self.revive.topic, self.revive.life, context.store_host))
        self.in_flight.add(changed)
        self.revive.wake()
        acked = self._store_acks(group, real, handle, [handle.offset])
        end = end_of(stored.result) if stored.result is not None else 0
        if acked is not None and acked.result is not None:
            end = max(end, end_of(acked.result))
        await self._durable(end)
        return handle._replace(start_offset=handle.offset, pop_time=pop_time, invisible_ms=invisible_ms)

    def _change_orderly(self, group: str, topic: str, handle: ReceiptHandle, due_ms: int) -> ReceiptHandle:
        if handle.offset >= self._context.offsets.get(group, topic, handle.queue_id):
            self.orders.set_due(topic, group, handle.queue_id, handle.offset, handle.pop_time, due_ms)
            if self.orders.blocked_until(topic, group, handle.queue_id, None) is not None:
                seconds = (due_ms - self._context.now_ms()) / 1000
                self.waiters.wake_at(seconds, topic, group)
        return handle._replace(invisible_ms=due_ms - handle.pop_time)

    def _write(self, record: MessageRecord) -> Stored:
        stored = self._context.writer.write(record)
        if stored.result is None:
            raise CallRefused(stored.code, stored.remark or "")
        return stored

    def release(self, group: str, topic: str, handles: Sequence[ReceiptHandle]) -> None:
        """Make messages that no client gets visible soon, in the background. An acked message stays acked.

        The end of a coroutine may call this without a running loop; after the end of the broker's loop nothing is done.
        """
        loop = self._context.loop
        if handles and not loop.is_closed():
            task = loop.create_task(self._release(group, topic, handles))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, group: str, topic: str, handles: Sequence[ReceiptHandle]) -> None:
        for handle in handles:
            try:
                await self.change_invisible_time(group, topic, handle, _RELEASED_MS, is_suspend=True)
            except Exception as error:  # also of a store that is closed
                self._log.info("release", "group %s: a message comes by its invisible time: %s", group, error)

    async def forward_to_dead_letter_queue(
        self, group: str, topic: str, handle: ReceiptHandle, physical_offset: int | None = None
    ) -> None:
        """Store a message in the dead letter topic of the group, and ack the message.

        Args: physical_offset: from the client's handle; compared with that of the message; None: not compared.
        Raises: as ``ack``; a physical offset of another message (29); the message is gone (22).
        """
        real = self._checks.handle(group, topic, handle, self.revive.queue_count, is_end_allowed=False)
        try:
            message = message_at(self._context, real, handle.queue_id, handle.offset)
        except CorruptFile:
            message = None
        if message is None:
            raise CallRefused(ResponseCode.QUERY_NOT_FOUND, f"no message at offset {handle.offset} of topic {real}")
        if physical_offset is not None and physical_offset != message.physical_offset:
            raise illegal(f"commitLogOffset: expected {message.physical_offset}, found {physical_offset}")
        if not self._is_delivered(group, real, handle):
            raise CallRefused(ResponseCode.NO_MESSAGE, f"the message is not in flight any more: {handle.encode()}")
        copy = put_dead_letter(self._context, message, real, group)
        if copy.result is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, copy.status.name)
        await self._durable(end_of(copy.result))
        await self.ack(group, topic, handle)

    def _is_delivered(self, group: str, topic: str, handle: ReceiptHandle) -> bool:
        """Return True unless the message was acked or redelivered already."""
        if handle.revive_queue_id == ORDER_QUEUE:
            info = self.orders.get(topic, group, handle.queue_id)
            return info is not None and info.pop_time == handle.pop_time and handle.offset not in info.acked
        batch = self.in_flight.get(_key(group, topic, handle))
        if batch is not None:
            return handle.offset in batch.pending
        return self._is_of_earlier_process(handle.pop_time) and self._is_of_group(group, topic, handle)

    def _is_of_group(self, group: str, topic: str, handle: ReceiptHandle) -> bool:
        """Return False if the offset has a retry of another group."""
        try:
            message = message_at(self._context, topic, handle.queue_id, handle.offset)
        except CorruptFile:
            return True
        return message is None or is_of_group(message, topic, group)

    # --- notification, peek ---

    async def notification(
        self,
        group: str,
        topic: str,
        queue_id: int = ANY_QUEUE,
        wait_ms: int = 0,
        *,
        is_orderly: bool = False,
        attempt_id: str | None = None,
    ) -> bool:
        """Return True if a POP of the group would find messages now, or within ``wait_ms``. Raises: as ``pop``."""
        due_s = self.waiters.due_in(wait_ms)
        waiter, is_over = Waiter((topic, group), queue_id, "notification", due_s, is_orderly=is_orderly), False
        while True:
            config = self._checks.readable(group, topic)
            if not ANY_QUEUE <= queue_id < config.read_queue_nums:
                raise illegal(f"queueId[{queue_id}] is illegal, topic:[{topic}]")
            if self.reader.has_messages(topic, group, queue_id, is_orderly, attempt_id):
                return True
            if is_over or wait_ms <= 0:
                return False
            # A message wakes one request: at the end of the time the others look once more, as in RocketMQ.
            is_over = not await self.waiters.wait(waiter)

    async def peek(self, group: str, topic: str, queue_id: int, max_count: int) -> PopResult:
        """Return the next messages of a group without taking these. Raises: as ``pop``."""
        request = PopRequest(group=group, topic=topic, queue_id=queue_id, max_count=max_count)
        topic_config, result = self._checks.request(request), PopResult(PopStatus.NOT_FOUND)
        turn = PopTurn(request, topic_config, None, self._context.now_ms(), 0, result)
        turn.result.pop_time = turn.pop_time
        await self.reader.peek(turn)
        return turn.result


def _key(group: str, topic: str, handle: ReceiptHandle) -> str:
    return batch_key(topic, handle.queue_id, handle.start_offset, group, handle.pop_time, handle.broker_name)
