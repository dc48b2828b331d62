"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: POP for gRPC clients.

A handle comes from a client and is not signed: PopService checks every part against its own tables, and the rights are
those of topic and group in the request. Source: ReceiveMessageActivity, AckMessageActivity,
ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from mqfast import properties as names
from mqfast.broker.acl.required_permissions import of_popped
from mqfast.broker.grpc.clients import GrpcClient
from mqfast.broker.grpc.codes import OK, Code, Refused, failure_of, overall, status_of
from mqfast.broker.grpc.outgoing import message_of_record
from mqfast.broker.grpc.polling import check_reads, wait_ms
from mqfast.broker.grpc.renewal import Held, Renewals
from mqfast.broker.grpc.telemetry import checked_group, checked_topic, expression_of, max_attempts
from mqfast.broker.pop.pop_result import PoppedMessage, PopRequest, PopResult, PopStatus
from mqfast.broker.pop.receipt_handle import ReceiptHandle
from mqfast.errors import CallRefused, FieldError
from mqfast.grpc.connection import Call
from mqfast.grpc.messages import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    GrpcMessage,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Resource,
    Status,
    StatusResponse,
)
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.heartbeat import TAG
from mqfast.store.record.record import decode_record
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pop.pop_service import PopService

__all__ = ["Receiving"]

_AUTO_RENEWED_MS: Final = 60_000
_INVISIBLE_MS_MIN, _INVISIBLE_MS_MAX = 10_000, 12 * 3_600_000
_POLLING_MS: Final = 20_000
_BATCH_MAX: Final = 32
_ENTRIES_MAX: Final = 1024
_OF_A_HANDLE: Final = (ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE)
_LITE: Final = Status(Code.NOT_IMPLEMENTED, "lite topics: this broker has none")
_NO_MESSAGE: Final = Status(Code.MESSAGE_NOT_FOUND, "no new message")


class Receiving:
    """Serves ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

    Attributes: ``renewals``: messages of push consumers, whose invisible time the broker extends.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self._context: Final = context
        self._pop: Final = pop
        self._log: Final = LogLimit(logging.getLogger("mqfast.broker"))
        self.renewals: Final = Renewals(context, pop)

    # --- ReceiveMessage ---

    async def receive(self, call: Call, client: GrpcClient, request: ReceiveMessageRequest) -> None:
        """Serve ReceiveMessage: the status, the messages, the time of the delivery. Raises: Refused, CallRefused."""
        queue = request.message_queue
        resource = Resource() if queue is None or queue.topic is None else queue.topic
        topic, group = checked_topic(resource), checked_group(request.group)
        self._admit(client, topic, group)
        # Settings may be missing: SDKs begin before the answer to Telemetry, and that of Python sends none for minutes
        # after a restart of the broker.
        if client.settings is not None and client.settings.subscription is None:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "expected a consumer, found the settings of a producer")
        check_reads(call)
        kind, expression = expression_of(request.filter_expression)
        pop = PopRequest(
            group=group,
            topic=topic,
            max_count=max(1, min(request.batch_size or _BATCH_MAX, _BATCH_MAX)),
            invisible_ms=_invisible_ms(request),
            wait_ms=wait_ms(call, self._context.loop.time(), _polling_ms(client, request)),
            expression_type=kind,
            expression=expression,
            is_orderly=bool((self._context.groups.table.get(group) or {}).get("consumeMessageOrderly", False)),
            attempt_id=request.attempt_id or None,
            check_rights=partial(self._admit, client, topic, group),
        )
        result = await self._pop.pop(pop)
        if result.status is PopStatus.FOUND:
            await self._deliver(call, client, pop, result, resource, is_renewed=request.auto_renew)
        else:
            is_full = result.status is PopStatus.FULL
            status = Status(Code.TOO_MANY_REQUESTS, "too many requests wait") if is_full else _NO_MESSAGE
            call.send(ReceiveMessageResponse(status))

    async def _deliver(
        self, call: Call, client: GrpcClient, pop: PopRequest, result: PopResult, topic: Resource, *, is_renewed: bool
    ) -> None:
        """Send popped messages. Those that the client does not get are visible soon. Raises: Refused, CallRefused."""
        try:
            delivered = await self._wanted(pop, result)
            check_reads(call)  # other calls may have been answered during the wait
            answers = [self._outgoing(pop, topic, message) for message in delivered]
        except BaseException:  # also of a call that is cancelled
            self._pop.release(pop.group, pop.topic, [message.handle for message in result.messages])
            raise
        if call.has_ended or client.is_closed:  # nothing ends the renewals of a closed client
            self._pop.release(pop.group, pop.topic, [message.handle for message in delivered])
            return
        if not delivered:
            call.send(ReceiveMessageResponse(_NO_MESSAGE))
            return
        call.on_lost = partial(self._lost, client, pop, delivered)
        call.send(ReceiveMessageResponse(OK))
        for message, answer in zip(delivered, answers, strict=True):
            if is_renewed:
                self.renewals.hold(_text(message), Held(client, pop.group, pop.topic, message.handle))
            call.send(ReceiveMessageResponse(None, answer))
        call.send(ReceiveMessageResponse(None, None, self._context.now_ms()))

    def _lost(self, client: GrpcClient, pop: PopRequest, messages: list[PoppedMessage]) -> None:
        """Make messages visible soon: the client has ended the call before all were written."""
        for message in messages:
            held = self.renewals.release(client, pop.group, _text(message))
            if held is None:
                self._pop.release(pop.group, pop.topic, [message.handle])
            else:
                self._release(held)

    def _admit(self, client: GrpcClient, topic: str, group: str) -> None:
        client.admit(*of_popped(topic, group))

    async def _wanted(self, pop: PopRequest, result: PopResult) -> list[PoppedMessage]:
        """Return the messages for the client; others are acked, and after the last attempt they are dead letters."""
        attempts = max_attempts(self._context.groups.table.get(pop.group))
        tags = _tags(pop)
        delivered = []
        for message in result.messages:
            if tags is not None and decode_record(message.record).properties.get(names.TAGS) not in tags:
                await self._pop.ack(pop.group, pop.topic, message.handle)
            elif message.reconsume_times >= attempts:
                await self._give_up(pop, message)
            else:
                delivered.append(message)
        return delivered

    async def _give_up(self, pop: PopRequest, message: PoppedMessage) -> None:
        try:
            await self._pop.forward_to_dead_letter_queue(pop.group, pop.topic, message.handle, message.physical_offset)
        except CallRefused as error:
            self._log.warning("dead", "group %s: a dead letter is not stored yet: %s", pop.group, error.remark)

    def _outgoing(self, pop: PopRequest, topic: Resource, message: PoppedMessage) -> GrpcMessage:
        return message_of_record(
            message.record,
            self._context,
            topic=topic,
            handle=_text(message),
            reconsume_times=message.reconsume_times,
            invisible_ms=pop.invisible_ms,
        )

    # --- handles ---

    async def _handles(
        self, client: GrpcClient, group: str, texts: Sequence[str]
    ) -> dict[str, tuple[ReceiptHandle, int | None] | Refused]:
        """Return the handle in force and the physical offset of each text, or why the text names no message.

        The caller uses the handles at once: after a wait others may be in force.
        """
        held = await self.renewals.answered(client, group, texts)
        handles: dict[str, tuple[ReceiptHandle, int | None] | Refused] = {}
        for text in texts:
            try:
                handle = held[text].handle if text in held else ReceiptHandle.decode(text, "receipt_handle")
                if handle.due_ms <= self._context.now_ms():
                    raise Refused(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired: the invisible time is over")
                handles[text] = handle, _physical_offset(text)
            except FieldError as error:
                handles[text] = Refused(Code.INVALID_RECEIPT_HANDLE, str(error))
            except Refused as error:
                handles[text] = error
        return handles

    async def _handle(self, client: GrpcClient, group: str, text: str) -> tuple[ReceiptHandle, int | None]:
        """Return the handle in force, and the physical offset that the text names. Raises: Refused."""
        handle = (await self._handles(client, group, [text]))[text]
        if isinstance(handle, Refused):
            raise handle
        return handle

    # --- AckMessage ---

    async def ack(self, call: Call, client: GrpcClient, request: AckMessageRequest) -> AckMessageResponse:
        """Serve AckMessage."""
        topic, group = checked_topic(request.topic), checked_group(request.group)
        self._admit(client, topic, group)
        if not 0 < len(request.entries) <= _ENTRIES_MAX:
            raise Refused(Code.BAD_REQUEST, f"entries: expected 1 to {_ENTRIES_MAX}, found {len(request.entries)}")
        texts = [entry.receipt_handle for entry in request.entries if not entry.lite_topic]
        named = await self._handles(client, group, texts)
        handles = {text: given[0] for text, given in named.items() if not isinstance(given, Refused)}
        refusals = await self._pop.ack_batch(group, topic, list(handles.values()))
        statuses = {text: Status(given.code, given.text) for text, given in named.items() if isinstance(given, Refused)}
        for text, refused in zip(handles, refusals, strict=True):
            statuses[text] = OK if refused is None else _status(refused)
            if refused is None:
                self.renewals.release(client, group, text)
        results = [_LITE if entry.lite_topic else statuses[entry.receipt_handle] for entry in request.entries]
        entries = [_result(entry, status) for entry, status in zip(request.entries, results, strict=True)]
        return AckMessageResponse(overall(results), entries)

    # --- ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue ---

    async def change(
        self, call: Call, client: GrpcClient, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Serve ChangeInvisibleDuration. A refusal has the handle of the request.

        Java's SDK takes the handle before the status: without one a refusal leaves a message that cannot be acked.
        """
        try:
            return await self._change(client, request)
        except Exception as error:
            status = failure_of(error)
            if status is None:
                raise
            return ChangeInvisibleDurationResponse(status, request.receipt_handle)

    async def _change(
        self, client: GrpcClient, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        topic, group = checked_topic(request.topic), checked_group(request.group)
        self._admit(client, topic, group)
        _check_no_lite(request.lite_topic)
        wanted_ms = request.invisible_duration or 0
        if not 0 <= wanted_ms <= _INVISIBLE_MS_MAX:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible_duration: expected 0 to {_INVISIBLE_MS_MAX} ms, found {wanted_ms}",
            )
        handle, physical_offset = await self._handle(client, group, request.receipt_handle)
        try:
            changed = await self._pop.change_invisible_time(
                group, topic, handle, max(1, wanted_ms), is_suspend=bool(request.suspend)
            )
        except CallRefused as error:
            return ChangeInvisibleDurationResponse(_status(error), request.receipt_handle)
        self.renewals.release(client, group, request.receipt_handle)
        text = changed.encode() + ("" if physical_offset is None else f" {physical_offset}")
        return ChangeInvisibleDurationResponse(OK, text)

    async def forward(
        self, call: Call, client: GrpcClient, request: ForwardMessageToDeadLetterQueueRequest
    ) -> StatusResponse:
        """Serve ForwardMessageToDeadLetterQueue."""
        topic, group = checked_topic(request.topic), checked_group(request.group)
        self._admit(client, topic, group)
        _check_no_lite(request.lite_topic)
        handle, physical_offset = await self._handle(client, group, request.receipt_handle)
        try:
            await self._pop.forward_to_dead_letter_queue(group, topic, handle, physical_offset)
        except CallRefused as error:
            return StatusResponse(_status(error))
        self.renewals.release(client, group, request.receipt_handle)
        return StatusResponse(OK)

    # --- the end ---

    def client_closed(self, client: GrpcClient) -> None:
        """Make the messages of a push consumer that has ended visible soon."""
        for held in self.renewals.forget(client):
            self._release(held)

    def _release(self, held: Held) -> None:
        """Make a message visible soon, by the handle that is in force after an extension under way."""

        def settled(_: object = None) -> None:
            self._pop.release(held.group, held.topic, [held.handle])

        if held.extension is None:
            settled()
        else:
            held.extension.add_done_callback(settled)


def _text(message: PoppedMessage) -> str:
    """Return the handle of a delivery, as clients name the message."""
    return f"{message.handle.encode()} {message.physical_offset}"


def _physical_offset(text: str) -> int | None:
    """Return the offset of the log that a handle's text names after the handle; None without a legal one."""
    parts = text.split(" ")
    hint = parts[8] if len(parts) > 8 else ""
    return int(hint) if hint.isascii() and hint.isdigit() and 0 < len(hint) < 19 and int(hint) else None


def _tags(pop: PopRequest) -> frozenset[str] | None:
    """Return the tags of a filter; None for other filters, and for all messages."""
    if pop.expression_type != TAG or pop.expression in (None, "*"):
        return None
    return frozenset(tag.strip() for tag in str(pop.expression).split("||") if tag.strip()) or None


def _invisible_ms(request: ReceiveMessageRequest) -> int:
    """Return the invisible time of a request. Raises: Refused."""
    if request.auto_renew:
        return _AUTO_RENEWED_MS
    wanted_ms = _AUTO_RENEWED_MS if request.invisible_duration is None else request.invisible_duration
    if wanted_ms < _INVISIBLE_MS_MIN:
        raise _illegal_invisible_time(f"the invisibleTime is too small. min is {_INVISIBLE_MS_MIN}", wanted_ms)
    if wanted_ms > _INVISIBLE_MS_MAX:
        raise _illegal_invisible_time(f"the invisibleTime is too large. max is {_INVISIBLE_MS_MAX}", wanted_ms)
    return wanted_ms


def _illegal_invisible_time(words: str, found_ms: int) -> Refused:
    """Return a refusal that begins with RocketMQ's words."""
    return Refused(Code.ILLEGAL_INVISIBLE_TIME, f"{words}; invisible_duration: found {found_ms} ms")


def _polling_ms(client: GrpcClient, request: ReceiveMessageRequest) -> int:
    """Return how long a request waits for messages. Java's SDK up to 5.0.3 says so in the settings alone."""
    if request.long_polling_timeout is not None:
        return request.long_polling_timeout
    return _POLLING_MS if client.await_ms is None else client.await_ms


def _check_no_lite(lite_topic: str | None) -> None:
    if lite_topic:
        raise Refused(_LITE.code, _LITE.message)


def _status(refused: CallRefused) -> Status:
    if refused.code in _OF_A_HANDLE:
        return Status(Code.INVALID_RECEIPT_HANDLE, refused.remark or "receipt_handle: expected one of this broker")
    return status_of(refused.code, refused.remark)


def _result(entry: AckMessageEntry, status: Status) -> AckMessageResultEntry:
    return AckMessageResultEntry(entry.message_id, entry.receipt_handle, status)
