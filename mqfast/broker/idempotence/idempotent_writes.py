"""Sends whose rows are stored once, and requests for the producer state.

``send_message.py`` passes each send with the field ONCE. Nothing else runs between the lookup of the state and the put,
so that two attempts of a request never both store. No row is acknowledged before the log has that row, and no row is
stored after a gap. Formats: ``mqfast/remoting/once.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from mqfast.broker.acl.required_permissions import ANY, of_topic
from mqfast.broker.context import BrokerContext
from mqfast.broker.idempotence.producer_state import (
    FencedBatch,
    LastSequence,
    OtherPartitioning,
    ProducerStateFull,
    ProducerStateTable,
)
from mqfast.broker.idempotence.state_recovery import ProducerStateFile, last_record, remember
from mqfast.broker.metadata.topic_manager import ENDS_TOPIC, illegal_topic
from mqfast.broker.send.message_writer import MessageRecord, Stored
from mqfast.errors import CallRefused, MqfastError
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.once import (
    ASK_ONCE,
    END_ONCE,
    KEY_MAX,
    NUMBER_MAX,
    ONCE,
    STAMP,
    VERSION,
    RowSequence,
    SequenceRange,
    end_text,
    gone_text,
)
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.store.put.put_result import BatchResult

__all__ = ["IdempotentWrites"]

_log = logging.getLogger("mqfast.broker")
_CHECK_S: Final = 5.0
_PERSIST_MS: Final = 60_000
_PERSIST_BYTES: Final = 256 << 20
_ELEMENT_HEAD: Final = 20

Body = bytes | memoryview
Put = Callable[[Body], Stored]
"""Stores the messages of a body, or the rest of a batch body."""


class IdempotentWrites:
    """The producer state of a broker, and the sends that use the state. A part of the broker.

    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._file = ProducerStateFile(context.engine)
        self._memory: ProducerStateTable | None = None
        self._loading: asyncio.Task[ProducerStateTable] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Future[None] | None = None
        self._dirty = False
        self._ends = 0  # after the last record of a completely stored batch
        self._saved_ms = 0
        self._saved_end = 0
        self._gone: set[str] = set()  # topics deleted during the recovery
        context.topics.on_delete.append(self._topic_leaves)

    def register(self, processors: Processors) -> None:
        """Register the handlers; requests are rare."""
        lane = ConcurrencyLimit("once", concurrency=64, queue_max=1000)
        processors.register((ASK_ONCE,), self.query, lane)
        processors.register((END_ONCE,), self.complete_batch, lane)

    def start(self) -> None:
        """Start to write the file periodically, when the state has changed."""
        if self._context.config.is_slave:
            self._file.forget()
            return
        self._timer = self._context.loop.call_later(_CHECK_S, self._check_file)

    async def stop(self) -> None:
        """Write the state into the file."""
        if self._timer is not None:
            self._timer.cancel()
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
        if self._saving is not None:
            await asyncio.wait([self._saving])
        if self._memory is not None and (self._dirty or self._grown):
            await self._save()

    # --- the producer state ---

    async def _loaded(self) -> ProducerStateTable:
        if self._memory is not None:
            return self._memory
        if self._loading is None or (self._loading.done() and self._memory is None):
            self._loading = self._context.loop.create_task(self._load(), name="mqfast memory of writes")
        return await asyncio.shield(self._loading)

    async def _load(self) -> ProducerStateTable:
        context, config = self._context, self._context.config
        memory = ProducerStateTable(config["idempotentWriteKeepHours"] * 3_600_000, config["idempotentWriteTasksMax"])
        work = (context.engine, self._file, memory, context.now_ms())
        await context.loop.run_in_executor(None, lambda: remember(*work))
        for topic in self._gone:
            memory.forget_topic(topic)
        self._gone.clear()
        self._memory, self._dirty = memory, True
        self._saved_ms, self._saved_end = context.now_ms(), context.engine.raw.end
        return memory

    def _check_file(self) -> None:
        self._timer = self._context.loop.call_later(_CHECK_S, self._check_file)
        if self._memory is None or (self._saving is not None and not self._saving.done()):
            return
        is_old = self._dirty and self._context.now_ms() - self._saved_ms >= _PERSIST_MS
        if is_old or self._grown >= _PERSIST_BYTES:  # a restart reads all of the log after the offset of the file
            self._saving = asyncio.ensure_future(self._save())

    @property
    def _grown(self) -> int:
        """Return the bytes of log since the file was written."""
        return self._context.engine.raw.end - self._saved_end

    async def _save(self) -> None:
        """Take a snapshot of the state and the log's end in the loop; write once the log is durable up to that end."""
        context, memory = self._context, self._memory
        assert memory is not None
        memory.expire(context.now_ms())
        writes, end = memory.dump(), context.engine.raw.end
        last = last_record(context.engine, memory.newest_begin) if memory.newest_begin >= 0 else None
        self._dirty = False
        self._saved_ms, self._saved_end = context.now_ms(), end
        try:
            await context.loop.run_in_executor(None, lambda: self._file.persist(writes, end, last, context.store.flush))
        except MqfastError as error:
            self._dirty = True
            _log.warning("what is remembered of writes is not in its file, the next turn tries again: %s", error)

    # --- requests ---

    async def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve ASK_ONCE. Fields: ``topic`` (names separated by ;, for access control), ``key``, ``batch``, ``tasks``.

        The body of the response: ``version``; ``newest``: the newest batch of the write, -1 if unknown; ``divisions``:
        topic -> [queues, brokers] of this batch; ``before``: of the newest batch before; ``done``: the newest batch
        that is completely stored in any of the requested topics, -1: none is; ``ended``: all topics in which this batch
        is completely stored; ``rows``: [partition, topic, queue id, last row, crc] of this batch, if ``tasks`` is true.
        """
        key, batch, _, topics = self._asked(request)
        memory, rights = await self._loaded(), self._context.rights
        caller = rights.caller(channel, request)
        newest = memory.newest(key)
        rows = memory.rows(key, batch) if request.ext_fields.get("tasks") == "true" else []

        def sees(topic: str) -> bool:
            return rights.may(caller, of_topic(topic, *ANY))

        said = {
            "version": VERSION,
            "newest": -1 if newest is None else newest,
            "divisions": {topic: division for topic, division in memory.divisions(key, batch).items() if sees(topic)},
            "before": {topic: division for topic, division in memory.before(key, batch).items() if sees(topic)},
            "rows": [row for row in rows if sees(row[1])],
            "done": memory.done(key, topics),
            "ended": [topic for topic in memory.ended(key, batch) if sees(topic)],
        }
        return request.response(ResponseCode.SUCCESS, {ONCE: str(VERSION)}, encode_body(said))

    async def complete_batch(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve END_ONCE: note that a batch is completely stored in these topics, and in no others.

        Fields: as of ``query``, and ``rows``: the number of rows.
        """
        key, batch, rows, topics = self._asked(request)
        memory, context = await self._loaded(), self._context
        if new := [topic for topic in topics if memory.done(key, (topic,)) < batch]:
            if any(memory.done(key, (topic,)) < 0 for topic in new):
                self._make_room(memory, key)
            done = self._note(end_text(key, batch, rows, new))
            if done.result is None:
                return request.response(done.code, remark=done.remark)
            memory.complete_batch(key, batch, new, context.now_ms())
        if context.writer.must_wait(b""):
            safe = await context.writer.durable_to(self._ends)
            return request.response(safe.code, {ONCE: str(VERSION)}, remark=safe.remark)
        return request.response(ResponseCode.SUCCESS, {ONCE: str(VERSION)})

    def _note(self, text: str) -> Stored:
        """Store a record of the broker; the caller changes the state before anything else runs."""
        context = self._context
        context.topics.ensure(ENDS_TOPIC, 1)
        properties = f"{STAMP}\x01{text}\x02".encode()
        done = context.writer.write(MessageRecord(ENDS_TOPIC, 0, b"", properties, born_timestamp=context.now_ms()))
        if done.result is not None and not isinstance(done.result, BatchResult):
            self._dirty = True
            self._ends = done.result.physical_offset + done.result.size
            if self._memory is not None:
                self._memory.newest_begin = done.result.physical_offset
        return done

    def _make_room(self, memory: ProducerStateTable, key: str) -> None:
        try:
            memory.make_room(key, self._context.now_ms())
        except ProducerStateFull as error:
            raise CallRefused(ResponseCode.SYSTEM_BUSY, f"idempotentWriteTasksMax: {error}") from None

    def _topic_leaves(self, topic: str) -> None:
        """Forget the rows of a deleted topic, here and, by a record, in later recoveries."""
        if self._context.config.is_slave or self._context.topics.get(ENDS_TOPIC) is None:  # no row was ever stored
            return
        done = self._note(gone_text(topic))
        if done.result is None:
            _log.warning(
                "topic %s is deleted, and its rows stay remembered where the log is read: %s", topic, done.remark
            )
        if self._memory is not None:
            self._memory.forget_topic(topic)
            self._dirty = True
        elif self._loading is not None:
            self._gone.add(topic)

    def _asked(self, request: RemotingCommand) -> tuple[str, int, int, list[str]]:
        """Return key, batch, rows and topics of a request. Raises: CallRefused."""
        fields = request.ext_fields
        try:
            key, batch, rows = str(fields["key"]), int(fields["batch"]), int(fields.get("rows", 0))
        except (KeyError, ValueError) as error:
            raise CallRefused(ResponseCode.INVALID_PARAMETER, f"key and batch: expected both, found {error}") from None
        is_name = len(key) <= KEY_MAX and key.isascii() and key.isalnum()
        if not is_name or min(batch, rows) < 0 or max(batch, rows) > NUMBER_MAX:
            raise CallRefused(
                ResponseCode.INVALID_PARAMETER,
                f"key and batch: expected 1 to {KEY_MAX} letters and digits, and numbers from 0 to 2^63-1, found "
                f"{key[: KEY_MAX + 1]!r}, batch {str(batch)[:20]}, {str(rows)[:20]} rows",
            )
        topics = str(fields.get("topic") or "").split(";")  # access control has checked each topic
        if wrong := [text for text in map(illegal_topic, topics) if text is not None]:
            raise CallRefused(ResponseCode.INVALID_PARAMETER, f"topic: {wrong[0]}")
        if self._context.config.is_slave:
            raise _of_slave()
        return key, batch, rows, topics

    # --- sends ---

    def send(
        self, request: RemotingCommand, text: str, topic: str, queue_id: int, properties: bytes, put: Put
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Store the rows of a request that are not stored yet.

        Args: properties: of a single message, else empty; put: stores a body.
        Raises: CallRefused.
        """
        if self._context.config.is_slave:  # the log of a slave may be truncated
            raise _of_slave()
        span = SequenceRange.parse(text)
        if span is None:
            raise CallRefused(ResponseCode.INVALID_PARAMETER, f"{ONCE}: expected the span of some rows, found {text!r}")
        end = f"{STAMP}\x01{span.last.text()}\x02".encode()
        body = request.body
        is_there = end in properties if properties else bytes(body[-len(end) :]) == end
        if not is_there:
            raise CallRefused(
                ResponseCode.INVALID_PARAMETER, f"{ONCE}: expected row {span.last.row} as the last message of the body"
            )
        if self._memory is None:
            return self._send_later(request, span, topic, queue_id, bool(properties), put)
        return self._send(self._memory, request, span, topic, queue_id, bool(properties), put)

    async def _send_later(
        self, request: RemotingCommand, span: SequenceRange, topic: str, queue_id: int, alone: bool, put: Put
    ) -> RemotingCommand:
        memory = await self._loaded()
        if self._context.topics.get(topic) is None:
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, it was deleted meanwhile")
        answer = self._send(memory, request, span, topic, queue_id, alone, put)
        return answer if isinstance(answer, RemotingCommand) else await answer

    def _send(
        self,
        memory: ProducerStateTable,
        request: RemotingCommand,
        span: SequenceRange,
        topic: str,
        queue_id: int,
        alone: bool,
        put: Put,
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        mark, now_ms = span.last, self._context.now_ms()
        try:
            known = memory.last(mark, topic, queue_id)
        except (FencedBatch, OtherPartitioning) as error:
            raise CallRefused(ResponseCode.MESSAGE_ILLEGAL, f"rows of write {mark.key}: {error}") from None
        row = -1 if known is None else known.row
        if known is not None and row >= mark.row:
            if row == mark.row and known.crc != mark.crc:
                raise _other_rows(topic, queue_id, mark, known)
            return self._answer(request, queue_id, known, "before")
        if memory.done(mark.key, (topic,)) >= mark.batch:  # e.g. from a task that the driver gave up
            raise CallRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"rows of write {mark.key}: batch {mark.batch} is over: topic {topic} has it as a whole, with the rows "
                f"of task {mark.partition} for queue {queue_id} up to row {row}; found row {mark.row}",
            )
        if row < span.previous:
            raise CallRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"rows of write {mark.key}: topic {topic}, queue {queue_id}: expected the rows of task "
                f"{mark.partition} behind row {row}, found those behind row {span.previous}: begin it anew",
            )
        if known is None:
            self._make_room(memory, mark.key)
            self._context.topics.ensure(ENDS_TOPIC, 1)  # the topic says that the log has marks
        body: Body = request.body
        if row > span.previous:
            assert known is not None
            body = memoryview(body)[_behind(body, topic, queue_id, mark, known) :]
        done = put(body)
        result = done.result
        if result is None:
            return request.response(done.code, remark=done.remark)
        if isinstance(result, BatchResult):
            last = result[len(result) - 1]
            self._context.stats.put(topic, len(result), result.end_offset - result[0].physical_offset)
        else:
            last = result
            self._context.stats.put(topic, 1, result.size)
        self._dirty = True
        memory.newest_begin = last.physical_offset
        stored = LastSequence(mark.row, mark.crc, last.physical_offset + last.size, last.queue_offset)
        memory.note(mark, topic, queue_id, stored, now_ms)
        return self._answer(request, queue_id, stored, "rest" if row > span.previous else "stored")

    def _answer(
        self, request: RemotingCommand, queue_id: int, last: LastSequence, how: str
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        if self._context.writer.must_wait(b""):
            return self._when_durable(request, queue_id, last, how)
        return self._said(request, queue_id, last, how, Stored(0, None, None))

    async def _when_durable(
        self, request: RemotingCommand, queue_id: int, last: LastSequence, how: str
    ) -> RemotingCommand:
        done = await self._context.writer.durable_to(last.end)
        return self._said(request, queue_id, last, how, done)

    def _said(
        self, request: RemotingCommand, queue_id: int, last: LastSequence, how: str, done: Stored
    ) -> RemotingCommand:
        if done.remark is not None:
            return request.response(done.code, remark=done.remark)
        fields: dict[str, object] = {
            "queueId": queue_id,
            "queueOffset": last.queue_offset,
            ONCE: how,
        }
        return request.response(done.code, fields)


def _behind(body: Body, topic: str, queue_id: int, mark: RowSequence, known: LastSequence) -> int:
    """Return the position in a batch body after the last stored row. Raises: CallRefused."""
    stamp = f"{STAMP}\x01{mark._replace(row=known.row, crc=known.crc).text()}\x02".encode()
    data = memoryview(body)
    at = 0
    while at + _ELEMENT_HEAD <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size < _ELEMENT_HEAD or at + size > len(data):
            break
        at += size
        if data[at - len(stamp) : at] == stamp:
            return at
    raise _other_rows(topic, queue_id, mark, known)


def _of_slave() -> CallRefused:
    return CallRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "a slave remembers no writes: ask the master")


def _other_rows(topic: str, queue_id: int, mark: RowSequence, known: LastSequence) -> CallRefused:
    return CallRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"rows of write {mark.key}: topic {topic}, queue {queue_id}: task {mark.partition} of batch {mark.batch} sends "
        f"other rows than before: expected the checksum {known.crc:08x} up to row {known.row}, found another. The rows "
        "of a batch that is repeated have to be the same, in the same order and tasks",
    )
