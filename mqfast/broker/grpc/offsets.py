"""PullMessage, UpdateOffset, GetOffset and QueryOffset, which RocketMQ's proxy declares and does not serve.

Each is a request of remoting, with its checks and rights. Source: service.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.grpc.clients import GrpcClient
from mqfast.broker.grpc.codes import OK, Code, Refused, status_of
from mqfast.broker.grpc.outgoing import message_of_record
from mqfast.broker.grpc.polling import check_reads, wait_ms
from mqfast.broker.grpc.telemetry import checked_group, checked_topic, expression_of
from mqfast.errors import ConnectionLost
from mqfast.grpc.connection import Call
from mqfast.grpc.messages import (
    GetOffsetRequest,
    MessageQueue,
    OffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetRequest,
    Resource,
    Status,
    StatusResponse,
    UpdateOffsetRequest,
)
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.store.record.record import decode_record

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["Offsets"]

_SUSPEND, _SUBSCRIPTION = 2, 4
_BATCH_MAX: Final = 32
_BEGINNING, _END, _TIMESTAMP = 0, 1, 2
_NOT_FOUND: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
_NONE: Final = Status(Code.MESSAGE_NOT_FOUND, "no new message")


class Offsets:
    """Serves PullMessage, UpdateOffset, GetOffset and QueryOffset. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context

    async def pull(self, call: Call, client: GrpcClient, request: PullMessageRequest) -> None:
        """Serve PullMessage: the status, the messages, the offset of the next pull. Raises: Refused."""
        topic, queue_id = _queue(request.message_queue)
        group = checked_group(request.group)
        check_reads(call)
        kind, expression = expression_of(request.filter_expression)
        polling_ms = wait_ms(call, self._context.loop.time(), request.long_polling_timeout or 0)
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(request.offset),
            "maxMsgNums": str(max(1, min(request.batch_size or _BATCH_MAX, _BATCH_MAX))),
            "sysFlag": str(_SUBSCRIPTION | (_SUSPEND if polling_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(polling_ms),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": kind,
        }
        try:
            answer = await client.request_held(RequestCode.PULL_MESSAGE, fields)
        except ConnectionLost:  # the client has ended itself: as ReceiveMessage
            call.send(PullMessageResponse(_NONE))
            return
        check_reads(call)  # other calls may have been answered during the wait
        resource = None if request.message_queue is None else request.message_queue.topic
        following = answer.ext_fields.get("nextBeginOffset")
        if answer.code == ResponseCode.SUCCESS:
            call.send(PullMessageResponse(OK))
            for record in _records(_body(answer.body)):
                call.send(PullMessageResponse(None, message_of_record(record, self._context, topic=resource)))
        elif answer.code in _NOT_FOUND:
            call.send(PullMessageResponse(_NONE))
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            text = f"offset: expected an offset of the queue, found {request.offset}; next_offset is one"
            call.send(PullMessageResponse(Status(Code.ILLEGAL_OFFSET, text)))
        else:
            call.send(PullMessageResponse(status_of(answer.code, answer.remark)))
            return
        if following is not None:
            call.send(PullMessageResponse(None, None, int(following)))

    async def update(self, call: Call, client: GrpcClient, request: UpdateOffsetRequest) -> StatusResponse:
        """Serve UpdateOffset."""
        topic, queue_id = _queue(request.message_queue)
        fields = {
            "consumerGroup": checked_group(request.group),
            "topic": topic,
            "queueId": str(queue_id),
            "commitOffset": str(request.offset),
        }
        answer = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return StatusResponse(status_of(answer.code, answer.remark))

    async def get(self, call: Call, client: GrpcClient, request: GetOffsetRequest) -> OffsetResponse:
        """Serve GetOffset."""
        topic, queue_id = _queue(request.message_queue)
        fields = {"consumerGroup": checked_group(request.group), "topic": topic, "queueId": str(queue_id)}
        answer = await client.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return OffsetResponse(Status(Code.OFFSET_NOT_FOUND, answer.remark or "no offset"))
        return _offset(answer.code, answer.remark, answer.ext_fields)

    async def query(self, call: Call, client: GrpcClient, request: QueryOffsetRequest) -> OffsetResponse:
        """Serve QueryOffset. Raises: Refused."""
        topic, queue_id = _queue(request.message_queue)
        fields = {"topic": topic, "queueId": str(queue_id)}
        codes = {
            _BEGINNING: RequestCode.GET_MIN_OFFSET,
            _END: RequestCode.GET_MAX_OFFSET,
            _TIMESTAMP: RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        }
        code = codes.get(request.policy)
        if code is None or (code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP and request.timestamp is None):
            raise Refused(Code.BAD_REQUEST, f"policy: expected 0, 1, or 2 with a timestamp, found {request.policy}")
        if request.policy == _TIMESTAMP:
            fields["timestamp"] = str(request.timestamp)
        answer = await client.request(code, fields)
        return _offset(answer.code, answer.remark, answer.ext_fields)


def _queue(queue: MessageQueue | None) -> tuple[str, int]:
    """Return topic and queue id. Raises: Refused."""
    given = MessageQueue(Resource()) if queue is None else queue
    return checked_topic(given.topic), given.id


def _offset(code: int, remark: str | None, fields: dict[str, Any]) -> OffsetResponse:
    return OffsetResponse(status_of(code, remark), int(fields["offset"]) if code == ResponseCode.SUCCESS else 0)


def _body(body: Any) -> bytes:
    return bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(map(bytes, body))


def _records(body: bytes) -> Iterator[Any]:
    at = 0
    while at < len(body):
        record = decode_record(body, at)
        yield record
        at += record.size
