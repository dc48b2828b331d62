"""Telemetry, heartbeats and the end of clients: settings, groups, and answers of a client to commands.

A client is registered by the handler of remoting's heartbeat, with the same rights. Settings that a broker decides win
over those of the client. Source: ClientActivity, ClientSettingsManager.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.grpc.clients import GrpcClient, GrpcClients
from mqfast.broker.grpc.codes import OK, Code, Refused, status_of
from mqfast.broker.metadata.topic_manager import illegal_group, illegal_topic, is_system_topic
from mqfast.errors import FieldError
from mqfast.grpc.connection import Call, GrpcError, GrpcStatus
from mqfast.grpc.messages import (
    CustomizedBackoff,
    ExponentialBackoff,
    FilterExpression,
    HeartbeatRequest,
    Message,
    Metric,
    NotifyClientTerminationRequest,
    Resource,
    RetryPolicy,
    Settings,
    StatusResponse,
    TelemetryCommand,
    encode,
)
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.heartbeat import ACTIVELY, CLUSTERING, PASSIVELY, TAG
from mqfast.store.record.record import java_hash

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["Telemetry", "checked_group", "checked_topic", "expression_of", "max_attempts"]

PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER, PULL_CONSUMER, LITE_PUSH, LITE_SIMPLE = 1, 2, 3, 4, 5, 6
_CONSUMERS: Final = (PUSH_CONSUMER, SIMPLE_CONSUMER, PULL_CONSUMER)
_SQL: Final = 2
_BATCH: Final = 32
_LONG_POLLING_MS: Final = 20_000
_PRODUCER_BACKOFF: Final = RetryPolicy(3, ExponentialBackoff(10, 1_000, 2.0))
_MINUTE: Final = 60_000
_RETRY_MS: Final = [
    *(1_000, 5_000, 10_000, 30_000), *(minute * _MINUTE for minute in (*range(1, 11), 20, 30, 60, 120)),
]  # fmt: skip
_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
_PROPERTIES_MAX, _PROPERTY_VALUE_MAX, _PROPERTIES_BYTES_MAX = 32, 256, 4096
_SUBSCRIPTIONS_MAX: Final = 1000
_SETTINGS_BYTES_MAX: Final = 256 * 1024
_NODE_JS: Final = 8
_REPEATED_S: Final = 1.0
"""rocketmq-client-nodejs with several topics misses settings that come before the last route, and waits for more."""


def checked_topic(topic: Resource | None) -> str:
    """Return the full name of a topic. Raises: Refused for an illegal name, and for a system topic."""
    name = "" if topic is None else topic.full_name
    why = illegal_topic(name)
    if why is None and is_system_topic(name):
        why = f"The topic[{name}] is conflict with system topic."
    if why is not None:
        raise Refused(Code.ILLEGAL_TOPIC, why)
    return name


def checked_group(group: Resource | None) -> str:
    """Return the full name of a group. Raises: Refused for an illegal name."""
    name = "" if group is None else group.full_name
    if (why := illegal_group(name)) is not None:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, why)
    return name


def expression_of(given: FilterExpression | None) -> tuple[str, str]:
    """Return type and text of a filter: ("TAG", "*") for all messages."""
    if given is None:
        return TAG, "*"
    return ("SQL92" if given.type == _SQL else TAG), given.expression or "*"


def max_attempts(group: dict[str, Any] | None) -> int:
    """Return the number of deliveries before a message of a group becomes a dead letter."""
    return int((group or {}).get("retryMaxTimes", 16)) + 1


class Telemetry:
    """Serves Telemetry, Heartbeat and NotifyClientTermination. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, clients: GrpcClients) -> None:
        self._context: Final = context
        self._clients: Final = clients

    # --- the stream ---

    def telemetry(self, call: Call, command: TelemetryCommand) -> Any:
        """Take a message of a client's stream. Raises: GrpcError, which ends the stream."""
        try:
            client = self._clients.of(call)
        except Refused as error:
            raise _end_of_stream(error.code, error.text) from None
        if command.settings is not None:
            return self._settings(call, client, command.settings)
        if command.thread_stack_trace is not None:
            client.answered(command.thread_stack_trace.nonce, command)
        elif command.verify_message_result is not None:
            client.answered(command.verify_message_result.nonce, command)
        return None

    async def _settings(self, call: Call, client: GrpcClient, given: Settings) -> Message | None:
        try:
            await_ms = _await_ms(given)
            merged = self._merged(given)
            before = client.settings
            client.settings = merged
            status = await self._register(client)
        except (Refused, FieldError) as error:
            code, text = (error.code, error.text) if isinstance(error, Refused) else (Code.BAD_REQUEST, str(error))
            raise _end_of_stream(code, text) from None
        if status.code != Code.OK:
            client.settings = before
            raise _end_of_stream(status.code, status.message)
        client.await_ms = await_ms
        if call.has_ended:
            return None
        answer = TelemetryCommand(status=OK, settings=merged)
        agent = merged.user_agent
        if client.telemetry is not call and agent is not None and agent.language == _NODE_JS:
            self._context.loop.call_later(_REPEATED_S, call.send, answer)
        self._hold(call, client)
        return answer

    def _hold(self, call: Call, client: GrpcClient) -> None:
        """Send later commands on this stream, which stays open."""
        if client.telemetry is call:
            return

        def ended() -> None:
            if client.telemetry is call:
                client.telemetry = None

        client.telemetry = call
        call.on_end = ended

    def _merged(self, given: Settings) -> Settings:
        """Return the settings in force. Raises: Refused."""
        if (size := len(encode(given))) > _SETTINGS_BYTES_MAX:  # remembered for each client id
            raise Refused(Code.BAD_REQUEST, f"settings: expected at most {_SETTINGS_BYTES_MAX} bytes, found {size}")
        self._check_properties(given.client_properties)
        if given.publishing is not None:
            if len(given.publishing.topics) > _SUBSCRIPTIONS_MAX:
                raise Refused(Code.BAD_REQUEST, f"publishing.topics: expected at most {_SUBSCRIPTIONS_MAX} topics")
            for topic in given.publishing.topics:
                checked_topic(topic)
            publishing = given.publishing
            publishing.max_body_size = self._context.store.config.max_message_bytes
            publishing.validate_message_type = bool(self._context.config["enableTopicMessageTypeCheck"])
            given.backoff_policy = _PRODUCER_BACKOFF
        elif given.subscription is not None:
            self._merge_subscription(given)
        else:
            raise Refused(Code.BAD_REQUEST, "settings: expected publishing or subscription, found neither")
        given.metric = Metric(False)  # Python's SDK takes no settings without this field
        return given

    def _merge_subscription(self, given: Settings) -> None:
        subscription = given.subscription
        assert subscription is not None
        name = checked_group(subscription.group)
        if len(subscription.subscriptions) > _SUBSCRIPTIONS_MAX:
            raise Refused(Code.BAD_REQUEST, f"subscriptions: expected at most {_SUBSCRIPTIONS_MAX} topics")
        for entry in subscription.subscriptions:
            checked_topic(entry.topic)
        if given.client_type in (LITE_PUSH, LITE_SIMPLE):
            raise Refused(Code.NOT_IMPLEMENTED, "lite topics: this broker has none")
        group = self._context.groups.table.get(name) or {}
        subscription.fifo = bool(group.get("consumeMessageOrderly", False))
        subscription.receive_batch_size = _BATCH
        subscription.long_polling_timeout = _LONG_POLLING_MS
        given.backoff_policy = _retry_policy(group)

    def _check_properties(self, given: dict[str, str]) -> None:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in given.items())
        legal = all(
            _PROPERTY_NAME.fullmatch(name) and len(value) <= _PROPERTY_VALUE_MAX for name, value in given.items()
        )
        if not legal or len(given) > _PROPERTIES_MAX or size > _PROPERTIES_BYTES_MAX:
            raise Refused(
                Code.INVALID_CLIENT_PROPERTIES,
                f"client_properties: expected at most {_PROPERTIES_MAX} short names of letters, values up to "
                f"{_PROPERTY_VALUE_MAX} characters, {_PROPERTIES_BYTES_MAX} bytes in all, found {len(given)} pairs of "
                f"{size} bytes",
            )

    # --- registration ---

    async def _register(self, client: GrpcClient) -> Any:
        """Pass a heartbeat of the client's groups to the handler of remoting. Returns: the status."""
        answer = await client.request(RequestCode.HEART_BEAT, {}, encode_body(self._heartbeat_body(client)))
        return status_of(answer.code, answer.remark)

    def _heartbeat_body(self, client: GrpcClient) -> dict[str, Any]:
        settings = client.settings
        assert settings is not None
        body: dict[str, Any] = {"clientID": client.client_id, "consumerDataSet": [], "producerDataSet": []}
        if settings.publishing is not None:
            topics = sorted({topic.full_name for topic in settings.publishing.topics})
            body["producerDataSet"] = [{"groupName": topic} for topic in topics]
        elif settings.subscription is not None:
            subscriptions = [
                _subscription(entry.topic.full_name, *expression_of(entry.expression))
                for entry in settings.subscription.subscriptions
                if entry.topic is not None
            ]
            body["consumerDataSet"] = [
                {
                    "groupName": checked_group(settings.subscription.group),
                    "consumeType": PASSIVELY if settings.client_type == PUSH_CONSUMER else ACTIVELY,
                    "messageModel": CLUSTERING,
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": subscriptions,
                }
            ]
        return body

    async def heartbeat(self, call: Call, client: GrpcClient, request: HeartbeatRequest) -> StatusResponse:
        """Serve Heartbeat."""
        if request.client_type in (LITE_PUSH, LITE_SIMPLE):
            raise Refused(Code.NOT_IMPLEMENTED, "lite topics: this broker has none")
        if client.settings is None or request.client_type not in (0, PRODUCER, *_CONSUMERS):
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                f"expected a client with settings (Telemetry) and a known type, found type {request.client_type}",
            )
        return StatusResponse(await self._register(client))

    def client_ended(self, call: Call, client: GrpcClient, request: NotifyClientTerminationRequest) -> StatusResponse:
        """Serve NotifyClientTermination: the client leaves its groups."""
        if client.settings is None:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "expected a client with settings (Telemetry), found none")
        client.close()
        return StatusResponse(OK)


def _await_ms(given: Settings) -> int | None:
    """Return how long a simple consumer waits for messages, as the client states; None for others."""
    if given.client_type != SIMPLE_CONSUMER or given.subscription is None:
        return None
    return given.subscription.long_polling_timeout


def _end_of_stream(code: int, text: str) -> GrpcError:
    return GrpcError(GrpcStatus.INVALID_ARGUMENT, f"{code}: {text}")


def _subscription(topic: str, kind: str, text: str) -> dict[str, Any]:
    tags = [] if kind != TAG or text == "*" else sorted({tag.strip() for tag in text.split("||") if tag.strip()})
    return {
        "topic": topic,
        "subString": text,
        "expressionType": kind,
        "tagsSet": tags,
        "codeSet": [java_hash(tag) for tag in tags],
        "subVersion": 1,
        "classFilterMode": False,
    }


def _retry_policy(group: dict[str, Any]) -> RetryPolicy:
    """Return the waits between deliveries of a group. Source: GroupRetryPolicy."""
    attempts = max_attempts(group)
    raw = group.get("groupRetryPolicy") or {}
    exponential = raw.get("exponentialRetryPolicy") or {}
    if raw.get("type") == "EXPONENTIAL":
        return RetryPolicy(
            attempts,
            ExponentialBackoff(
                int(exponential.get("initial", 5_000)),
                int(exponential.get("max", 7_200_000)),
                float(exponential.get("multiplier", 2)),
            ),
        )
    waits = (raw.get("customizedRetryPolicy") or {}).get("next") or _RETRY_MS
    return RetryPolicy(attempts, None, CustomizedBackoff([int(wait) for wait in waits]))
