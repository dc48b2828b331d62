"""Storing of messages, for all parts of the broker; the outcomes of the store become RocketMQ's codes and texts.

A delayed message gets another topic first (``deferrals``). Waits for the disk are awaited, and never block the event
loop. Source: HookUtils.handleScheduleMessage, SendMessageProcessor.handlePutMessageResult.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from mqfast.broker.send.flush_waiter import FlushWaiter, Outcome, ReplicaWaiter
from mqfast.errors import (
    DiskFull,
    MapFailed,
    MessageIllegal,
    MqfastError,
    NotMaster,
    PageCacheBusy,
    StorageError,
    StoreBusy,
    StoreClosed,
)
from mqfast.remoting.codes import ResponseCode
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.metrics.broker_stats import BrokerStats
    from mqfast.ha.failover.lease_guard import LeaseGuard
    from mqfast.store.engine import Engine
    from mqfast.store.put.put_result import BatchResult, PutResult

__all__ = ["ArrivalListener", "DelayHook", "MessageRecord", "Refusal", "Stored", "MessageWriter", "failure"]

PREPARED: Final = 4
ROLLBACK: Final = 12
_TRANSACTION_MASK: Final = 12
_NO_WAIT: Final = b"WAIT\x01"
T = TypeVar("T")


class MessageRecord:
    """A message to be stored; ``properties`` are the bytes of the property string."""

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        self.properties = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset

    def with_topic(self, topic: str, queue_id: int, properties: bytes) -> MessageRecord:
        """Return the same message for another topic and queue, with other properties."""
        return MessageRecord(
            topic,
            queue_id,
            self.body,
            properties,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )


class Refusal(NamedTuple):
    """The code and the reason of a message that is not stored."""

    code: int
    remark: str


class Stored(NamedTuple):
    """The outcome of a put: RocketMQ's code and remark, and the position of the message if stored."""

    code: int
    remark: str | None
    result: PutResult | BatchResult | None


class ArrivalListener(Protocol):
    """Held pulls: the queues in which pulls wait, and the call for a message in such a queue."""

    @property
    def waiting(self) -> dict[tuple[str, int], Any]:
        """Return the queues, by (topic, queue id); always the same object."""

    def notify_arrival(self, queue: tuple[str, int]) -> None:
        """Notify the pulls of a queue of a message."""


class DelayHook(Protocol):
    """Replaces the topic of delayed messages."""

    def defer(self, record: MessageRecord, now_ms: int) -> MessageRecord | Refusal | None:
        """Return the record to store instead; a refusal; None if the message is not delayed."""


_Source = Literal["disk", "replicas"]


class CommitWait(Generic[T]):
    """Waits until a stored message is committed: on this disk, at the replicas, or both, as the settings say.

    Attributes: ``pending``: the sources that have not reported yet; ``future``: of what ``make`` returns.
    """

    __slots__ = ("_disk", "_make", "_replica_code", "_stored", "_writer", "future", "pending")

    def __init__(
        self, writer: MessageWriter, stored: Stored, make: Callable[[Stored], T], future: asyncio.Future[T]
    ) -> None:
        self.pending: set[_Source] = set()
        self.future = future
        self._writer = writer
        self._stored = stored
        self._make = make
        self._disk: Outcome = True
        self._replica_code: int = 0

    def begin(self, end_offset: int) -> None:
        """Wait for all sources; a message that waits for none is committed at once."""
        writer, pending = self._writer, self.pending
        replicas = writer.replicated
        if replicas is not None:
            if replicas.is_possible(end_offset, writer.max_gap_bytes):
                pending.add("replicas")
            else:
                self._replica_code = ResponseCode.SLAVE_NOT_AVAILABLE
        if writer.sync_flush:
            pending.add("disk")
        if not pending:
            self._finish()
            return
        if replicas is not None and "replicas" in pending:  # all are pending before the first one may report
            replicas.when(end_offset, self._replicas_done)
        if writer.sync_flush:
            writer.disk.when(end_offset, self._disk_done)

    def _replicas_done(self, outcome: Outcome) -> None:
        if outcome is not True:
            self._replica_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        self._complete("replicas")

    def _disk_done(self, outcome: Outcome) -> None:
        self._disk = outcome
        if isinstance(outcome, MqfastError):  # replicas do not make up for a failed disk
            self._finish()
        else:
            self._complete("disk")

    def _complete(self, source: _Source) -> None:
        self.pending.discard(source)
        if not self.pending:
            self._finish()

    def _finish(self) -> None:
        if self.future.done():
            return
        try:
            self.future.set_result(self._make(self._outcome()))
        except Exception as error:
            self.future.set_exception(error)

    def _outcome(self) -> Stored:
        writer, disk = self._writer, self._disk
        if isinstance(disk, MqfastError):
            return writer.failed(disk)
        if writer.right is not None and not writer.right.is_valid():
            # The message may be in this log only: another broker may be the master by now.
            return writer.failed(NotMaster(writer.right.reason))
        if self._replica_code:
            return self._stored._replace(code=self._replica_code)
        return self._stored if disk else self._stored._replace(code=ResponseCode.FLUSH_DISK_TIMEOUT)


class MessageWriter:
    """Stores messages.

    Args: store_host: address and port of the broker, 8 or 20 bytes; sync_flush: responses wait for the disk; arrivals:
        notified of a message in a queue with held pulls; right: the lease, under fail-over.
    Attributes: ``deferrals``: called in order; ``replicated``: set if responses wait for slaves, too;
        ``max_gap_bytes``: a slave further behind counts as absent (RocketMQ: haMaxGapNotInSync); ``disk``: where
        responses wait for the disk, with ``sync_flush``; ``fenced``: reason why this master refuses messages.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        durable: FlushWaiter,
        *,
        store_host: bytes,
        sync_flush: bool,
        max_message_bytes: int,
        disk_use: Callable[[], str],
        now_ms: Callable[[], int],
        stats: BrokerStats,
        logger: logging.Logger,
        arrivals: ArrivalListener,
        right: LeaseGuard | None = None,
    ) -> None:
        self.deferrals: list[DelayHook] = []
        self._waiting: Final = arrivals.waiting
        self._notify: Final = arrivals.notify_arrival
        self.replicated: ReplicaWaiter | None = None
        self.max_gap_bytes = 256 << 20
        self.fenced: str | None = None
        self.right: Final = right
        self._engine = engine
        self.disk: Final = durable
        self._store_host: Final = store_host
        self.sync_flush: Final = sync_flush
        self._max_message_bytes: Final = max_message_bytes
        self._disk_use = disk_use
        self._now_ms = now_ms
        self._stats: Final = stats
        self._log = LogLimit(logger)

    def put(self, record: MessageRecord) -> PutResult:
        """Store a record unchanged, without waiting for the disk. Raises: NotMaster, as ``Engine.put_encoded``."""
        if self.right is not None:
            self.right.check()
        start_s = perf_counter()
        result = self._engine.put_encoded(
            record.topic.encode(),
            record.queue_id,
            record.body,
            record.properties,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            self._store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            False,
        )
        took_s = perf_counter() - start_s
        if took_s >= 0.001:
            self._stats.put_took(took_s * 1000)
        self._notify_arrival(record.topic, record.queue_id)
        return result

    def _notify_arrival(self, topic: str, queue_id: int) -> None:
        if self._waiting and (topic, queue_id) in self._waiting:
            self._notify((topic, queue_id))

    def deferred(self, record: MessageRecord) -> MessageRecord | Refusal:
        """Return the record to store now: the parked hook of a delayed message."""
        kind = record.sys_flag & _TRANSACTION_MASK
        if self.deferrals and kind not in (PREPARED, ROLLBACK):
            for hook in self.deferrals:
                parked = hook.defer(record, self._now_ms())
                if parked is not None:
                    return parked
        return record

    def write(self, record: MessageRecord) -> Stored:
        """Store a message, parked if delayed, without waiting for the disk."""
        other = self.deferred(record)
        if isinstance(other, Refusal):
            return Stored(other.code, other.remark, None)
        try:
            result = self.put(other)
        except MqfastError as error:
            return self.failed(error)
        return Stored(0, None, result)

    def write_batch(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        *,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes | None = None,
        reconsume_times: int = 0,
    ) -> Stored:
        """Store a client's batch body (320), without waiting for the disk."""
        try:
            if self.right is not None:
                self.right.check()
            result = self._engine.put_batch_encoded(
                topic.encode(),
                queue_id,
                body,
                properties,
                sys_flag,
                born_timestamp,
                born_host,
                self._store_host,
                reconsume_times,
                False,
            )
        except MqfastError as error:
            return self.failed(error)
        self._notify_arrival(topic, queue_id)
        return Stored(0, None, result)

    def must_wait(self, properties: bytes) -> bool:
        """Return True if the response waits for the disk, for slaves, or for a check of the lease.

        Source: Message.isWaitStoreMsgOK.
        """
        if not self.sync_flush and self.replicated is None and self.right is None:
            return False
        at = properties.find(_NO_WAIT)
        while at > 0 and properties[at - 1] != 2:
            at = properties.find(_NO_WAIT, at + 1)
        return at < 0 or properties[at + len(_NO_WAIT) :].partition(b"\x02")[0].lower() == b"true"

    async def durable(self, stored: Stored) -> Stored:
        """Wait until a stored message is on disk and at slaves, as the settings require.

        The code becomes FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT after a timeout, SLAVE_NOT_AVAILABLE with too few
        slaves.
        Source: CommitLog.handleDiskFlushAndHA.
        """
        return stored if stored.result is None else await self.on_committed(stored, _as_it_is)

    async def durable_to(self, end_offset: int) -> Stored:
        """Wait as ``durable`` for the log up to a physical offset."""
        return await self.on_committed(Stored(0, None, None), _as_it_is, end_offset)

    def flush_soon(self) -> None:
        """Sync the log soon, for messages of the broker that no request waits for. Raises: StoreClosed.

        With SYNC_FLUSH readers see durable messages only: else the messages wait for ``flushIntervalCommitLog``.
        """
        if self.sync_flush:
            self.disk.want(self._engine.log.written)

    def on_committed(
        self, stored: Stored, make: Callable[[Stored], T], end_offset: int | None = None
    ) -> asyncio.Future[T]:
        """Return a future of ``make(stored)``, called once the message is committed or has failed; see ``durable``.

        Args: end_offset: end of the stored messages; None: taken from the result of ``stored``.
        """
        if end_offset is None:
            assert stored.result is not None
            end_offset = end_of(stored.result)
        wait = CommitWait(self, stored, make, asyncio.get_running_loop().create_future())
        wait.begin(end_offset)
        return wait.future

    async def stored(self, record: MessageRecord) -> Stored:
        """Store a message and wait for the disk if the settings and the message require that."""
        done = self.write(record)
        return await self.durable(done) if done.result is not None and self.must_wait(record.properties) else done

    def failed(self, error: MqfastError) -> Stored:
        """Return RocketMQ's code and text for a failed put; logs the cause, at most once a minute per class of
        error.
        """
        self._stats.put_failed()
        if self.fenced is not None and isinstance(error, NotMaster):
            error = NotMaster(self.fenced)
        if not isinstance(error, MessageIllegal):
            self._log.warning(type(error).__name__, "a message was refused: %s", error)
        return failure(error, self._max_message_bytes, self._disk_use)


def end_of(result: PutResult | BatchResult) -> int:
    """Return the physical offset after the stored messages."""
    end = getattr(result, "end_offset", None)
    return result.physical_offset + result.size if end is None else end  # type: ignore[union-attr]


def _as_it_is(stored: Stored) -> Stored:
    return stored


def failure(error: MqfastError, max_message_bytes: int, disk_use: Callable[[], str]) -> Stored:
    """Return RocketMQ's code and text for a failed put."""
    if isinstance(error, MessageIllegal):
        remark = (
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{max_message_bytes}B, msg properties length limit 32KB."
        )
        return Stored(ResponseCode.MESSAGE_ILLEGAL, remark, None)
    if isinstance(error, PageCacheBusy):
        remark = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
        return Stored(ResponseCode.SYSTEM_BUSY, remark, None)
    if isinstance(error, StoreBusy):
        return Stored(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]system busy: {error}", None)
    if isinstance(error, MapFailed):
        remark = f"create mapped file failed, server is busy or broken. ({error})"
        return Stored(ResponseCode.SYSTEM_ERROR, remark, None)
    if isinstance(error, (DiskFull, StorageError, StoreClosed, NotMaster)):
        remark = (
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
            f"[{disk_use()}], messages are put to the slave, message store has been shut down, etc. ({error})"
        )
        return Stored(ResponseCode.SERVICE_NOT_AVAILABLE, remark, None)
    return Stored(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", None)
