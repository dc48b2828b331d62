"""The messages of ``apache.rocketmq.v2``: what SDKs send and get, as types; the bytes by ``wire.pyx``.

Times are ms. A field of a later version is a line here; unknown fields of a peer are skipped. Source: rocketmq-apis,
definition.proto and service.proto.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeVar

from msgspec import Struct

from mqfast.grpc.wire import BOOL, BYTES, DURATION, FLOAT, INT32, INT64, MAP, TEXT, TIMESTAMP, Codec, Field
from mqfast.grpc.wire import MESSAGE as NESTED
from mqfast.remoting.bodies import build_tables

__all__ = ["Message", "decode", "encode"]

OPTIONAL: Final = "optional"
LIST: Final = "list"

_Line = tuple[int, str, int] | tuple[int, str, int, str] | tuple[int, str, int, str, "type[Message]"]
M = TypeVar("M", bound="Message")


class Message(Struct):
    """A message of the API. ``FIELDS``: number, attribute, kind, then whether optional or a list, and the class."""

    FIELDS: ClassVar[tuple[Any, ...]] = ()


_codecs: dict[type[Message], Codec] = {}


def codec_of(kind: type[Message]) -> Codec:
    """Return the codec of a class, made at the first use."""
    codec = _codecs.get(kind)
    if codec is None:
        fields = []
        for number, name, wire, mode, nested in ((*line, *("", None)[len(line) - 3 :]) for line in kind.FIELDS):
            inner = None if nested is None else codec_of(nested)
            fields.append(Field(number, name, wire, mode == LIST, mode == OPTIONAL, inner))
        codec = _codecs[kind] = Codec(kind, kind.__name__, fields)
    return codec


def decode(kind: type[M], data: bytes) -> M:
    """Return the message of these bytes. Raises: FieldError."""
    message: M = codec_of(kind).decode(data)
    return message


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return codec_of(type(message)).encode(message)


class Resource(Message):
    """A topic or group, with a namespace."""

    namespace: str = ""
    name: str = ""
    FIELDS: ClassVar = ((1, "namespace", TEXT), (2, "name", TEXT))

    @property
    def full_name(self) -> str:
        """Return the name in the broker: ``namespace%name``."""
        return f"{self.namespace}%{self.name}" if self.namespace else self.name


class Status(Message):
    """The outcome of a call."""

    code: int = 0
    message: str = ""
    FIELDS: ClassVar = ((1, "code", INT32), (2, "message", TEXT))


class Address(Message):
    """A host and a port."""

    host: str = ""
    port: int = 0
    FIELDS: ClassVar = ((1, "host", TEXT), (2, "port", INT32))


class Endpoints(Message):
    """The addresses of a broker; ``scheme``: 1 IPv4, 2 IPv6, 3 a name."""

    scheme: int = 0
    addresses: list[Address] = []
    FIELDS: ClassVar = ((1, "scheme", INT32), (2, "addresses", NESTED, LIST, Address))


class Broker(Message):
    """A broker of a route."""

    name: str = ""
    id: int = 0
    endpoints: Endpoints | None = None
    FIELDS: ClassVar = ((1, "name", TEXT), (2, "id", INT32), (3, "endpoints", NESTED, "", Endpoints))


class MessageQueue(Message):
    """A queue of a route; ``permission``: 1 none, 2 read, 3 write, 4 both."""

    topic: Resource | None = None
    id: int = 0
    permission: int = 0
    broker: Broker | None = None
    accept_message_types: list[int] = []
    FIELDS: ClassVar = (
        (1, "topic", NESTED, "", Resource),
        (2, "id", INT32),
        (3, "permission", INT32),
        (4, "broker", NESTED, "", Broker),
        (5, "accept_message_types", INT32, LIST),
    )


class FilterExpression(Message):
    """``type``: 1 tags, 2 SQL92."""

    type: int = 0
    expression: str = ""
    FIELDS: ClassVar = ((1, "type", INT32), (2, "expression", TEXT))


class Digest(Message):
    """The checksum of a body; ``type``: 1 CRC32, 2 MD5, 3 SHA1."""

    type: int = 0
    checksum: str = ""
    FIELDS: ClassVar = ((1, "type", INT32), (2, "checksum", TEXT))


class DeadLetterQueue(Message):
    """The origin of a dead letter."""

    topic: str = ""
    message_id: str = ""
    FIELDS: ClassVar = ((1, "topic", TEXT), (2, "message_id", TEXT))


class SystemProperties(Message):
    """The properties of a message that RocketMQ knows."""

    tag: str | None = None
    keys: list[str] = []
    message_id: str = ""
    body_digest: Digest | None = None
    body_encoding: int = 0
    message_type: int = 0
    born_timestamp: int | None = None
    born_host: str = ""
    store_timestamp: int | None = None
    store_host: str = ""
    delivery_timestamp: int | None = None
    receipt_handle: str | None = None
    queue_id: int = 0
    queue_offset: int | None = None
    invisible_duration: int | None = None
    delivery_attempt: int | None = None
    message_group: str | None = None
    trace_context: str | None = None
    orphaned_transaction_recovery_duration: int | None = None
    dead_letter_queue: DeadLetterQueue | None = None
    lite_topic: str | None = None
    priority: int | None = None
    FIELDS: ClassVar = (
        (1, "tag", TEXT, OPTIONAL),
        (2, "keys", TEXT, LIST),
        (3, "message_id", TEXT),
        (4, "body_digest", NESTED, "", Digest),
        (5, "body_encoding", INT32),
        (6, "message_type", INT32),
        (7, "born_timestamp", TIMESTAMP, OPTIONAL),
        (8, "born_host", TEXT),
        (9, "store_timestamp", TIMESTAMP, OPTIONAL),
        (10, "store_host", TEXT),
        (11, "delivery_timestamp", TIMESTAMP, OPTIONAL),
        (12, "receipt_handle", TEXT, OPTIONAL),
        (13, "queue_id", INT32),
        (14, "queue_offset", INT64, OPTIONAL),
        (15, "invisible_duration", DURATION, OPTIONAL),
        (16, "delivery_attempt", INT32, OPTIONAL),
        (17, "message_group", TEXT, OPTIONAL),
        (18, "trace_context", TEXT, OPTIONAL),
        (19, "orphaned_transaction_recovery_duration", DURATION, OPTIONAL),
        (20, "dead_letter_queue", NESTED, "", DeadLetterQueue),
        (21, "lite_topic", TEXT, OPTIONAL),
        (22, "priority", INT32, OPTIONAL),
    )


class GrpcMessage(Message):
    """A message of a producer or for a consumer (``Message`` of the API)."""

    topic: Resource | None = None
    user_properties: dict[str, str] = {}
    system_properties: SystemProperties | None = None
    body: bytes = b""
    FIELDS: ClassVar = (
        (1, "topic", NESTED, "", Resource),
        (2, "user_properties", MAP),
        (3, "system_properties", NESTED, "", SystemProperties),
        (4, "body", BYTES),
    )


class QueryRouteRequest(Message):
    """Asks for the queues of a topic."""

    topic: Resource | None = None
    endpoints: Endpoints | None = None
    FIELDS: ClassVar = ((1, "topic", NESTED, "", Resource), (2, "endpoints", NESTED, "", Endpoints))


class QueryRouteResponse(Message):
    """The queues of a topic."""

    status: Status | None = None
    message_queues: list[MessageQueue] = []
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "message_queues", NESTED, LIST, MessageQueue))


class SendMessageRequest(Message):
    """Messages of a topic."""

    messages: list[GrpcMessage] = []
    FIELDS: ClassVar = ((1, "messages", NESTED, LIST, GrpcMessage),)


class SendResultEntry(Message):
    """The outcome of a message."""

    status: Status | None = None
    message_id: str = ""
    transaction_id: str = ""
    offset: int = 0
    recall_handle: str = ""
    FIELDS: ClassVar = (
        (1, "status", NESTED, "", Status),
        (2, "message_id", TEXT),
        (3, "transaction_id", TEXT),
        (4, "offset", INT64),
        (5, "recall_handle", TEXT),
    )


class SendMessageResponse(Message):
    """The outcomes, in the order of the messages."""

    status: Status | None = None
    entries: list[SendResultEntry] = []
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "entries", NESTED, LIST, SendResultEntry))


class QueryAssignmentRequest(Message):
    """Asks which queues a push consumer is to receive from."""

    topic: Resource | None = None
    group: Resource | None = None
    endpoints: Endpoints | None = None
    FIELDS: ClassVar = (
        (1, "topic", NESTED, "", Resource),
        (2, "group", NESTED, "", Resource),
        (3, "endpoints", NESTED, "", Endpoints),
    )


class Assignment(Message):
    """A queue of a push consumer."""

    message_queue: MessageQueue | None = None
    FIELDS: ClassVar = ((1, "message_queue", NESTED, "", MessageQueue),)


class QueryAssignmentResponse(Message):
    """The queues of a push consumer."""

    status: Status | None = None
    assignments: list[Assignment] = []
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "assignments", NESTED, LIST, Assignment))


class ReceiveMessageRequest(Message):
    """Asks for messages, which become invisible for others."""

    group: Resource | None = None
    message_queue: MessageQueue | None = None
    filter_expression: FilterExpression | None = None
    batch_size: int = 0
    invisible_duration: int | None = None
    auto_renew: bool = False
    long_polling_timeout: int | None = None
    attempt_id: str | None = None
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "message_queue", NESTED, "", MessageQueue),
        (3, "filter_expression", NESTED, "", FilterExpression),
        (4, "batch_size", INT32),
        (5, "invisible_duration", DURATION, OPTIONAL),
        (6, "auto_renew", BOOL),
        (7, "long_polling_timeout", DURATION, OPTIONAL),
        (8, "attempt_id", TEXT, OPTIONAL),
    )


class ReceiveMessageResponse(Message):
    """Either the status, a message, or the time of the delivery."""

    status: Status | None = None
    message: GrpcMessage | None = None
    delivery_timestamp: int | None = None
    FIELDS: ClassVar = (
        (1, "status", NESTED, "", Status),
        (2, "message", NESTED, "", GrpcMessage),
        (3, "delivery_timestamp", TIMESTAMP, OPTIONAL),
    )


class AckMessageEntry(Message):
    """A message that was consumed."""

    message_id: str = ""
    receipt_handle: str = ""
    lite_topic: str | None = None
    FIELDS: ClassVar = ((1, "message_id", TEXT), (2, "receipt_handle", TEXT), (3, "lite_topic", TEXT, OPTIONAL))


class AckMessageRequest(Message):
    """Messages that were consumed."""

    group: Resource | None = None
    topic: Resource | None = None
    entries: list[AckMessageEntry] = []
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "topic", NESTED, "", Resource),
        (3, "entries", NESTED, LIST, AckMessageEntry),
    )


class AckMessageResultEntry(Message):
    """The outcome for a message."""

    message_id: str = ""
    receipt_handle: str = ""
    status: Status | None = None
    FIELDS: ClassVar = ((1, "message_id", TEXT), (2, "receipt_handle", TEXT), (3, "status", NESTED, "", Status))


class AckMessageResponse(Message):
    """The outcomes, in the order of the entries."""

    status: Status | None = None
    entries: list[AckMessageResultEntry] = []
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "entries", NESTED, LIST, AckMessageResultEntry))


class ForwardMessageToDeadLetterQueueRequest(Message):
    """A message that the consumer gives up."""

    group: Resource | None = None
    topic: Resource | None = None
    receipt_handle: str = ""
    message_id: str = ""
    delivery_attempt: int = 0
    max_delivery_attempts: int = 0
    lite_topic: str | None = None
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "topic", NESTED, "", Resource),
        (3, "receipt_handle", TEXT),
        (4, "message_id", TEXT),
        (5, "delivery_attempt", INT32),
        (6, "max_delivery_attempts", INT32),
        (7, "lite_topic", TEXT, OPTIONAL),
    )


class ChangeInvisibleDurationRequest(Message):
    """Another time until a message is delivered again."""

    group: Resource | None = None
    topic: Resource | None = None
    receipt_handle: str = ""
    invisible_duration: int | None = None
    message_id: str = ""
    lite_topic: str | None = None
    suspend: bool | None = None
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "topic", NESTED, "", Resource),
        (3, "receipt_handle", TEXT),
        (4, "invisible_duration", DURATION, OPTIONAL),
        (5, "message_id", TEXT),
        (6, "lite_topic", TEXT, OPTIONAL),
        (7, "suspend", BOOL, OPTIONAL),
    )


class ChangeInvisibleDurationResponse(Message):
    """The new handle."""

    status: Status | None = None
    receipt_handle: str = ""
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "receipt_handle", TEXT))


class HeartbeatRequest(Message):
    """A sign of life; ``client_type``: 1 producer, 2 push, 3 simple, 4 pull consumer, 5 and 6 lite."""

    group: Resource | None = None
    client_type: int = 0
    FIELDS: ClassVar = ((1, "group", NESTED, "", Resource), (2, "client_type", INT32))


class NotifyClientTerminationRequest(Message):
    """The end of a client."""

    group: Resource | None = None
    FIELDS: ClassVar = ((1, "group", NESTED, "", Resource),)


class StatusResponse(Message):
    """An answer with nothing but a status."""

    status: Status | None = None
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status),)


class EndTransactionRequest(Message):
    """``resolution``: 1 commit, 2 rollback; ``source``: 1 the client, 2 a check by the server."""

    topic: Resource | None = None
    message_id: str = ""
    transaction_id: str = ""
    resolution: int = 0
    source: int = 0
    trace_context: str = ""
    FIELDS: ClassVar = (
        (1, "topic", NESTED, "", Resource),
        (2, "message_id", TEXT),
        (3, "transaction_id", TEXT),
        (4, "resolution", INT32),
        (5, "source", INT32),
        (6, "trace_context", TEXT),
    )


class RecallMessageRequest(Message):
    """Calls a delayed message back."""

    topic: Resource | None = None
    recall_handle: str = ""
    FIELDS: ClassVar = ((1, "topic", NESTED, "", Resource), (2, "recall_handle", TEXT))


class RecallMessageResponse(Message):
    """The message that was called back."""

    status: Status | None = None
    message_id: str = ""
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "message_id", TEXT))


class PullMessageRequest(Message):
    """Asks for messages of a queue from an offset."""

    group: Resource | None = None
    message_queue: MessageQueue | None = None
    offset: int = 0
    batch_size: int = 0
    filter_expression: FilterExpression | None = None
    long_polling_timeout: int | None = None
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "message_queue", NESTED, "", MessageQueue),
        (3, "offset", INT64),
        (4, "batch_size", INT32),
        (5, "filter_expression", NESTED, "", FilterExpression),
        (6, "long_polling_timeout", DURATION, OPTIONAL),
    )


class PullMessageResponse(Message):
    """Either the status, a message, or the offset of the next pull."""

    status: Status | None = None
    message: GrpcMessage | None = None
    next_offset: int | None = None
    FIELDS: ClassVar = (
        (1, "status", NESTED, "", Status),
        (2, "message", NESTED, "", GrpcMessage),
        (3, "next_offset", INT64, OPTIONAL),
    )


class UpdateOffsetRequest(Message):
    """Commits the progress of a group in a queue."""

    group: Resource | None = None
    message_queue: MessageQueue | None = None
    offset: int = 0
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "message_queue", NESTED, "", MessageQueue),
        (3, "offset", INT64),
    )


class GetOffsetRequest(Message):
    """Asks for the progress of a group in a queue."""

    group: Resource | None = None
    message_queue: MessageQueue | None = None
    FIELDS: ClassVar = ((1, "group", NESTED, "", Resource), (2, "message_queue", NESTED, "", MessageQueue))


class QueryOffsetRequest(Message):
    """Asks for an offset of a queue; ``policy``: 0 the begin, 1 the end, 2 by time."""

    message_queue: MessageQueue | None = None
    policy: int = 0
    timestamp: int | None = None
    FIELDS: ClassVar = (
        (1, "message_queue", NESTED, "", MessageQueue),
        (2, "policy", INT32),
        (3, "timestamp", TIMESTAMP, OPTIONAL),
    )


class OffsetResponse(Message):
    """An offset."""

    status: Status | None = None
    offset: int = 0
    FIELDS: ClassVar = ((1, "status", NESTED, "", Status), (2, "offset", INT64))


# --- Telemetry --------------------------------------------------------------------------------------------------------


class ExponentialBackoff(Message):
    """Waits between tries that grow by a factor."""

    initial: int | None = None
    max: int | None = None
    multiplier: float = 0.0
    FIELDS: ClassVar = (
        (1, "initial", DURATION, OPTIONAL),
        (2, "max", DURATION, OPTIONAL),
        (3, "multiplier", FLOAT),
    )


class CustomizedBackoff(Message):
    """Waits between tries, as a list."""

    next: list[int] = []
    FIELDS: ClassVar = ((1, "next", DURATION, LIST),)


class RetryPolicy(Message):
    """The number and the times of further tries of a message."""

    max_attempts: int = 0
    exponential_backoff: ExponentialBackoff | None = None
    customized_backoff: CustomizedBackoff | None = None
    FIELDS: ClassVar = (
        (1, "max_attempts", INT32),
        (2, "exponential_backoff", NESTED, "", ExponentialBackoff),
        (3, "customized_backoff", NESTED, "", CustomizedBackoff),
    )


class Publishing(Message):
    """Settings of a producer."""

    topics: list[Resource] = []
    max_body_size: int = 0
    validate_message_type: bool = False
    FIELDS: ClassVar = (
        (1, "topics", NESTED, LIST, Resource),
        (2, "max_body_size", INT32),
        (3, "validate_message_type", BOOL),
    )


class SubscriptionEntry(Message):
    """A topic of a consumer, with a filter."""

    topic: Resource | None = None
    expression: FilterExpression | None = None
    FIELDS: ClassVar = ((1, "topic", NESTED, "", Resource), (2, "expression", NESTED, "", FilterExpression))


class Subscription(Message):
    """Settings of a consumer."""

    group: Resource | None = None
    subscriptions: list[SubscriptionEntry] = []
    fifo: bool | None = None
    receive_batch_size: int | None = None
    long_polling_timeout: int | None = None
    lite_subscription_quota: int | None = None
    max_lite_topic_size: int | None = None
    FIELDS: ClassVar = (
        (1, "group", NESTED, "", Resource),
        (2, "subscriptions", NESTED, LIST, SubscriptionEntry),
        (3, "fifo", BOOL, OPTIONAL),
        (4, "receive_batch_size", INT32, OPTIONAL),
        (5, "long_polling_timeout", DURATION, OPTIONAL),
        (6, "lite_subscription_quota", INT32, OPTIONAL),
        (7, "max_lite_topic_size", INT32, OPTIONAL),
    )


class UserAgent(Message):
    """The SDK of a client."""

    language: int = 0
    version: str = ""
    platform: str = ""
    hostname: str = ""
    FIELDS: ClassVar = ((1, "language", INT32), (2, "version", TEXT), (3, "platform", TEXT), (4, "hostname", TEXT))


class Metric(Message):
    """Where a client sends metrics."""

    on: bool = False
    endpoints: Endpoints | None = None
    FIELDS: ClassVar = ((1, "on", BOOL), (2, "endpoints", NESTED, "", Endpoints))


class Settings(Message):
    """The settings of a client, merged with those of the server."""

    client_type: int | None = None
    access_point: Endpoints | None = None
    backoff_policy: RetryPolicy | None = None
    request_timeout: int | None = None
    publishing: Publishing | None = None
    subscription: Subscription | None = None
    user_agent: UserAgent | None = None
    metric: Metric | None = None
    client_properties: dict[str, str] = {}
    FIELDS: ClassVar = (
        (1, "client_type", INT32, OPTIONAL),
        (2, "access_point", NESTED, "", Endpoints),
        (3, "backoff_policy", NESTED, "", RetryPolicy),
        (4, "request_timeout", DURATION, OPTIONAL),
        (5, "publishing", NESTED, "", Publishing),
        (6, "subscription", NESTED, "", Subscription),
        (7, "user_agent", NESTED, "", UserAgent),
        (8, "metric", NESTED, "", Metric),
        (9, "client_properties", MAP),
    )


class ThreadStackTrace(Message):
    """The stacks of a client."""

    nonce: str = ""
    thread_stack_trace: str | None = None
    FIELDS: ClassVar = ((1, "nonce", TEXT), (2, "thread_stack_trace", TEXT, OPTIONAL))


class Nonce(Message):
    """A command, or an answer, with nothing but a number."""

    nonce: str = ""
    FIELDS: ClassVar = ((1, "nonce", TEXT),)


class VerifyMessageCommand(Message):
    """A message that a client is to consume now."""

    nonce: str = ""
    message: GrpcMessage | None = None
    FIELDS: ClassVar = ((1, "nonce", TEXT), (2, "message", NESTED, "", GrpcMessage))


class RecoverOrphanedTransactionCommand(Message):
    """A transaction without an end, about which the server asks."""

    message: GrpcMessage | None = None
    transaction_id: str = ""
    FIELDS: ClassVar = ((1, "message", NESTED, "", GrpcMessage), (2, "transaction_id", TEXT))


class TelemetryCommand(Message):
    """What both sides send on a Telemetry stream: a status, and a command or an answer."""

    status: Status | None = None
    settings: Settings | None = None
    thread_stack_trace: ThreadStackTrace | None = None
    verify_message_result: Nonce | None = None
    recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand | None = None
    print_thread_stack_trace_command: Nonce | None = None
    verify_message_command: VerifyMessageCommand | None = None
    reconnect_endpoints_command: Nonce | None = None
    FIELDS: ClassVar = (
        (1, "status", NESTED, "", Status),
        (2, "settings", NESTED, "", Settings),
        (3, "thread_stack_trace", NESTED, "", ThreadStackTrace),
        (4, "verify_message_result", NESTED, "", Nonce),
        (5, "recover_orphaned_transaction_command", NESTED, "", RecoverOrphanedTransactionCommand),
        (6, "print_thread_stack_trace_command", NESTED, "", Nonce),
        (7, "verify_message_command", NESTED, "", VerifyMessageCommand),
        (8, "reconnect_endpoints_command", NESTED, "", Nonce),
    )


build_tables(__name__)
