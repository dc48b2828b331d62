"""Spans of clients, with OpenTelemetry's own SDK and a real broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk: pip install mqfast[test]")
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mqfast import Message
from mqfast.client import Delivery
from mqfast.contrib.otel import OtelHook
from mqfast.errors import MessageIllegal
from mqfast.testing import Broker


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Broker:
    module_broker.reset()
    module_broker.create_topics(topics={"orders": 1})
    return module_broker


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def hook(self) -> OtelHook:
        return OtelHook(tracer_provider=self.provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    monkeypatch.delenv("OTEL_SEMCONV_STABILITY_OPT_IN", raising=False)
    return Spans()


def test_a_trace_goes_from_the_producer_through_the_handler(broker: Broker, spans: Spans) -> None:
    seen = threading.Event()
    consumer = broker.consumer("billing", hooks=[spans.hook()])

    @consumer.on("orders")
    def bill(message: Delivery) -> None:
        with spans.tracer.start_as_current_span("bill"):
            seen.set()

    sent = Message("orders", b"42", tags="new", keys="a b")
    with broker.producer(hooks=[spans.hook()]) as producer, spans.tracer.start_as_current_span("request") as request:
        result = producer.send(sent)
    assert sent.properties is None  # the message of the application is as it was
    with consumer:
        assert seen.wait(20)
        broker.wait_consumed("billing", "orders")
    [publish], [process], [bill_span] = (
        spans.named("orders publish"),
        spans.named("orders process"),
        spans.named("bill"),
    )
    assert publish.kind is SpanKind.PRODUCER
    assert process.kind is SpanKind.CONSUMER
    assert publish.parent is not None
    assert publish.parent.span_id == request.get_span_context().span_id
    assert process.parent is not None
    assert process.parent.span_id == publish.context.span_id
    assert bill_span.parent is not None
    assert bill_span.parent.span_id == process.context.span_id
    assert dict(publish.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation": "publish",
        "messaging.destination.name": "orders",
        "messaging.rocketmq.client_group": "test-producer",
        "messaging.message.body.size": 2,
        "messaging.message.id": result.msg_id,
        "messaging.destination.partition.id": "0",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.rocketmq.message.type": "normal",
    }
    attributes = dict(process.attributes or {})
    assert attributes["messaging.operation"] == "process"
    assert attributes["messaging.rocketmq.client_group"] == "billing"
    assert attributes["messaging.message.id"] == result.msg_id
    [stored] = broker.messages("orders")
    trace_id, span_id = publish.context.trace_id, publish.context.span_id
    assert stored.properties["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-0")


def test_a_batch_is_linked_to_the_traces_of_its_messages(broker: Broker, spans: Spans) -> None:
    with broker.producer(hooks=[spans.hook()]) as producer:
        producer.send_batch([Message("orders", str(number)) for number in range(3)])
        producer.send("orders", b"3")
    broker.send("orders", b"without a trace")
    consumer = broker.consumer("billing", hooks=[spans.hook()], threads=1)
    consumer.subscribe("orders", lambda messages: None, batch=8)
    with consumer:
        broker.wait_consumed("billing", "orders")
    published = {span.context.span_id for span in spans.named("orders publish")}
    assert len(published) == 4
    [process] = spans.named("orders process")
    assert process.parent is None
    assert {link.context.span_id for link in process.links} == published
    assert (process.attributes or {})["messaging.batch.message_count"] == 5


def test_a_failed_send_and_a_failed_handler_are_errors(broker: Broker, spans: Spans) -> None:
    with broker.producer(hooks=[spans.hook()]) as producer:
        with pytest.raises(MessageIllegal):
            producer.send("orders", b"x", properties={"WAIT\x01": "y"})
        producer.send("orders", b"42")
    consumer = broker.consumer("billing", hooks=[spans.hook()], max_reconsume_times=0)

    @consumer.on("orders")
    def bill(message: Delivery) -> None:
        raise KeyError("no such order")

    with consumer:
        broker.wait_until(lambda: len(broker.dead_letters("billing")) == 1, timeout_s=20)
    failed = [span for span in spans.named("orders process") if span.status.status_code is StatusCode.ERROR]
    assert (failed[0].attributes or {})["error.type"] == "KeyError"
    assert failed[0].events[0].name == "exception"
    ends = [span.status.status_code for span in spans.named("orders publish")]
    assert ends == [StatusCode.UNSET] or ends == [StatusCode.ERROR, StatusCode.UNSET]


def test_messages_of_a_pull_consumer_are_received(broker: Broker, spans: Spans) -> None:
    with broker.producer(hooks=[spans.hook()]) as producer:
        producer.send("orders", b"42")
    with broker.puller(topics="orders", hooks=[spans.hook()]) as consumer:
        broker.wait_until(lambda: bool(consumer.poll(1.0)), timeout_s=20)
    [publish], [receive] = spans.named("orders publish"), spans.named("orders receive")
    assert receive.parent is not None
    assert receive.parent.span_id == publish.context.span_id
    assert (receive.attributes or {})["messaging.operation"] == "receive"


@pytest.mark.parametrize(
    "opt_in, name, new, old",
    [
        ("messaging", "send orders", True, False),
        ("messaging/dup", "orders publish", True, True),
        ("http", "orders publish", False, True),
    ],
)
def test_the_conventions_of_the_attributes_are_chosen(
    broker: Broker, spans: Spans, monkeypatch: pytest.MonkeyPatch, opt_in: str, name: str, new: bool, old: bool
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    with broker.producer(hooks=[spans.hook()]) as producer:
        producer.send("orders", b"42", sharding_key="7")
    with broker.consumer("billing", topics="orders", hooks=[spans.hook()]) as consumer:
        next(iter(consumer))
    [publish] = spans.named(name)
    attributes = publish.attributes or {}
    assert attributes.get("messaging.operation") == ("publish" if old else None)
    assert attributes.get("messaging.operation.type") == ("send" if new else None)
    assert attributes["messaging.rocketmq.message.group"] == "7"
    assert attributes["messaging.rocketmq.message.type"] == "fifo"
    [process] = spans.named("orders process" if old else "process orders")
    assert (process.attributes or {}).get("messaging.consumer.group.name") == ("billing" if new else None)


def test_a_turn_of_a_loop_is_a_span_that_ends_with_the_loop(broker: Broker, spans: Spans) -> None:
    broker.send("orders", b"1", b"2")
    with broker.consumer("billing", topics="orders", hooks=[spans.hook()]) as consumer:
        for number, _message in enumerate(consumer):
            assert trace.get_current_span().is_recording()
            if number == 1:
                break
        del _message
        assert not trace.get_current_span().is_recording()
    first, second = spans.named("orders process")
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR


def test_handlers_of_an_executor_leave_no_span_behind(broker: Broker, spans: Spans) -> None:
    broker.send("orders", *map(str, range(20)))
    with ThreadPoolExecutor(2) as executor:
        consumer = broker.consumer("billing", hooks=[spans.hook()], executor=executor)
        consumer.subscribe("orders", lambda message: None)
        with consumer:
            broker.wait_consumed("billing", "orders")
    found = spans.named("orders process")
    assert len(found) == 20
    assert all(span.parent is None for span in found)
