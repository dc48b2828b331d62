"""Spans of OpenTelemetry for sends and consumption; the context of a trace travels in the properties of a message.

    producer:  "orders publish"  --traceparent, tracestate-->  consumer:  "orders process" or "orders receive"

Only the sent copy of a message gets the properties. Source: the semantic conventions of OpenTelemetry for messaging and
RocketMQ; W3C Trace Context.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import Any, Final

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    text = f"mqfast.contrib.otel needs {error.name}: pip install 'mqfast[otel]'"
    raise ModuleNotFoundError(text, name=error.name) from None

from mqfast import properties as names
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook, ConsumeContext, SendContext
from mqfast.client.values import ConsumeStatus
from mqfast.message import Message, join_keys

__all__ = ["OtelHook"]

_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_SPAN: Final = "mqfast.contrib.otel"
_EMPTY: Final = contexts.Context()
_here: ContextVar[object] = ContextVar("mqfast.contrib.otel", default=None)


class OtelHook(ClientHook):
    """Hook with spans, for any client: ``Producer("g", hooks=[OtelHook()])``.

    A send gets a span of kind PRODUCER. A call of a handler, or one turn of a loop, gets a span ``process`` of kind
    CONSUMER, which is current meanwhile. Messages of a pull consumer get a span ``receive``. One message continues the
    trace of its producer; several are linked.

    Args:
        tracer_provider: by default the global one.
        propagator: writes and reads the context; by default the global one, which is W3C Trace Context.
    Environment: OTEL_SEMCONV_STABILITY_OPT_IN: ``messaging``: attributes of the stable conventions; ``messaging/dup``:
        both; else those of before.
    Thread: any.
    """

    def __init__(self, *, tracer_provider: trace.TracerProvider | None = None, propagator: Any = None) -> None:
        wanted = {word.strip() for word in os.environ.get(_OPT_IN, "").split(",")}
        self._new = bool(wanted & {"messaging", "messaging/dup"})
        self._old = "messaging" not in wanted or "messaging/dup" in wanted
        self._tracer = trace.get_tracer("mqfast", tracer_provider=tracer_provider)
        self._propagator = propagator or propagate

    # --- producers ---

    def before_send(self, context: SendContext) -> None:
        """Begin a span, and put the context into a copy of the message."""
        message = context.message
        span = self._tracer.start_span(
            self._name("publish", "send", message.topic),
            kind=SpanKind.PRODUCER,
            attributes={
                **self._operation("publish", "send", "send"),
                **self._common(message.topic, context.group, is_consumer=False),
                **_sent(message),
            },
        )
        context.state[_SPAN] = span
        if isinstance(message.properties, bytes):
            return  # ready bytes are sent unchanged
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=trace.set_span_in_context(span))
        context.message = replace(message, properties={**(message.properties or {}), **carrier})

    def after_send(self, context: SendContext) -> None:
        """End the span."""
        span = context.state.pop(_SPAN, None)
        if span is None:
            return
        result, error = context.result, context.error
        msg_id = getattr(error, "msg_id", None) if result is None else result.msg_id
        if msg_id:
            span.set_attribute("messaging.message.id", msg_id)
        if context.queue is not None:
            span.set_attribute("messaging.destination.partition.id", str(context.queue.queue_id))
        _end_span(span, error)

    # --- consumers ---

    def before_consume(self, context: ConsumeContext) -> None:
        """Begin a span that continues the trace of a single message, or links several traces; make the span current."""
        messages = context.messages
        operation = context.operation
        origins = [self._propagator.extract(message.properties, context=_EMPTY) for message in messages]
        spans = [trace.get_current_span(origin).get_span_context() for origin in origins]
        topic = messages[0].topic
        span = self._tracer.start_span(
            self._name(operation, "poll" if operation == "receive" else operation, topic),
            context=origins[0] if len(messages) == 1 else _EMPTY,
            kind=SpanKind.CLIENT if operation == "receive" and not self._old else SpanKind.CONSUMER,
            links=[Link(span_context) for span_context in spans if span_context.is_valid] if len(messages) > 1 else (),
            attributes={
                **self._operation(operation, operation, "poll" if operation == "receive" else operation),
                **self._common(topic, context.group, is_consumer=True),
                **_received(messages),
            },
        )
        held = contexts.attach(trace.set_span_in_context(span, origins[0] if len(messages) == 1 else _EMPTY))
        context.state[_SPAN] = span, held, _here.set(span)

    def after_consume(self, context: ConsumeContext) -> None:
        """End the span."""
        entry = context.state.pop(_SPAN, None)
        if entry is None:
            return
        span, held, mark = entry
        if _is_here(mark):
            contexts.detach(held)
        if context.status is not ConsumeStatus.CONSUME_SUCCESS and context.error is None:
            span.set_status(Status(StatusCode.ERROR, "the handler asked for the message again"))
        _end_span(span, context.error)

    # --- names ---

    def _name(self, old: str, new: str, topic: str) -> str:
        return f"{topic} {old}" if self._old else f"{new} {topic}"

    def _operation(self, old: str, kind: str, name: str) -> dict[str, str]:
        attributes = {"messaging.operation": old} if self._old else {}
        if self._new:
            attributes |= {"messaging.operation.type": kind, "messaging.operation.name": name}
        return attributes

    def _common(self, topic: str, group: str, *, is_consumer: bool) -> dict[str, str]:
        attributes = {"messaging.system": "rocketmq", "messaging.destination.name": topic}
        if self._old:
            attributes["messaging.rocketmq.client_group"] = group
        if self._new and is_consumer:
            attributes["messaging.consumer.group.name"] = group
        return attributes


def _sent(message: Message) -> dict[str, Any]:
    body: Any = message.encoded_body()
    attributes: dict[str, Any] = {"messaging.message.body.size": memoryview(body).nbytes}
    properties: Mapping[str, Any] = message.properties if isinstance(message.properties, Mapping) else {}
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = join_keys(message.keys).split(" ")
    if message.sharding_key:
        attributes["messaging.rocketmq.message.group"] = message.sharding_key
    if message.delay_level:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    attributes["messaging.rocketmq.message.type"] = (
        "transaction" if properties.get(names.TRAN_MSG) == "true"
        else "delay" if message.delay_level or message.delay_s or message.deliver_at is not None
        else "fifo" if message.sharding_key
        else "normal"
    )  # fmt: skip
    return attributes


def _received(messages: Sequence[Delivery]) -> dict[str, Any]:
    if len(messages) > 1:
        return {"messaging.batch.message_count": len(messages)}
    message = messages[0]
    attributes: dict[str, Any] = {
        "messaging.message.id": message.msg_id,
        "messaging.message.body.size": len(message.view),
        "messaging.destination.partition.id": str(message.queue_id),
    }
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    return attributes


def _is_here(mark: Token[object]) -> bool:
    """Return whether the end runs in the context of the begin. In an executor not; the begin made no span current
    there.
    """
    try:
        _here.reset(mark)
    except ValueError:
        return False
    return True


def _end_span(span: trace.Span, error: Exception | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
