"""The base of all producers: arguments, checks, counters, hooks. No I/O."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count, islice
from typing import Any, Final, Self, TypedDict

from mqfast.client.hooks import ClientHook, SendContext, call_hooks
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.batch import Done
from mqfast.client.producer.encode import Compressor, PreparedMessage, Wire, checked_topic
from mqfast.client.producer.in_flight_limiter import InFlightLimiter
from mqfast.client.producer.send import RETRIED, Sender, SendOptions
from mqfast.client.producer.trace import Tracer, trace_topic
from mqfast.client.route.fault import V4, V5, FaultTable
from mqfast.client.route.namespace import unwrap, wrap
from mqfast.client.route.select import Selector
from mqfast.client.settings import (
    PRODUCER_RULES,
    NamedArguments,
    check,
    check_function,
    check_group,
    check_hooks,
    instance_settings,
    listed,
    producer_arguments,
)
from mqfast.client.values import Address, Body, Credentials, MessageQueue, SendResult
from mqfast.errors import ClientClosed, ClientConfigError, ClientUsageError
from mqfast.message import Message

__all__ = ["Counter", "ProducerOwner", "ProducerArguments", "ProducerBase", "check_call", "message_of"]

_LATENCY_TABLES: Final = {"True": V5, "5": V5, "4.9": V4}
_NOTHING: Final = (None,) * 8


class Counter:
    """A counter for any thread."""

    __slots__ = ("_next", "add")

    def add_many(self, number: int) -> None:
        """Add so many."""
        deque(islice(self._next, number), 0)

    def __init__(self) -> None:
        self._next = count()
        self.add: Callable[[], int] = self._next.__next__

    @property
    def value(self) -> int:
        """Return the sum."""
        return int(repr(self._next)[len("count(") : -1])  # Python 3.14 has no other way to look


class ProducerOwner:
    """A producer as the instance refers to it, so that an unused producer can be collected."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._topics: frozenset[str] = frozenset()

    def heartbeat(self) -> Mapping[str, Any]:
        """Return RocketMQ's ProducerData."""
        return {"groupName": self._group}

    def topics(self) -> Iterable[str]:
        """Return no topics: routes in use are refreshed anyway."""
        return self._topics


class ProducerArguments(TypedDict, total=False):
    """Keyword arguments of ``ProducerBase``, for the constructors of subclasses: type checkers find a wrong name."""

    credentials: Credentials | None
    tls: bool | ssl.SSLContext
    namespace: str | None
    namespace_v2: str | None
    instance_name: str | None
    unit_name: str | None
    address_map: Mapping[str, str] | None
    send_timeout_s: float
    retries: int
    retry_other_broker_when_not_ok: bool
    retry_response_codes: Iterable[int]
    latency_fault: bool | str
    selector: Selector | None
    compress_over_bytes: int | None
    compression: str
    compress_level: int
    max_message_bytes: int
    topic_queues: int
    create_topic_key: str
    linger_ms: float
    batch_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int
    trace: bool | str
    hooks: Sequence[ClientHook]
    start_timeout_s: float | None
    close_timeout_s: float


class ProducerBase(NamedArguments):
    """Arguments of a producer; times in seconds but ``linger_ms``.

    Args:
        group: the producer group, 1 to 120 of the characters a-z, A-Z, 0-9, % | - _.
        namesrv_addr: ``"a:9876;b:9876"``, a list, or an HTTP address server; None: the variable NAMESRV_ADDR.
        credentials: None: ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, where both are set.
        tls: True: TLS with the system's certificates; or a context. Certificates are checked unless the context says
            otherwise.
        namespace: prefix of topics and groups on the wire; namespace_v2: namespace in a field of every request, for
            RocketMQ 5.
        address_map: registered addresses of brokers -> addresses to connect to from this client, as
            ``{"172.17.0.2:10911": "127.0.0.1:10911"}``, or hosts alone.
        send_timeout_s: for all attempts of a send together.
        retries: attempts after the first, on another broker where possible; a send to a fixed queue (``queue=``,
            ``selector``, a sharding key) has a single attempt, as in RocketMQ.
        retry_other_broker_when_not_ok: another attempt after a status other than SEND_OK.
        latency_fault: avoid slow brokers; True with the table of 5.x, ``"4.9"`` with that of 4.9.
        compress_over_bytes: bodies from this size on are compressed; None: none.
        topic_queues, create_topic_key: of a topic that brokers create at the first send.
        linger_ms: time that sends wait for others, for a common request of up to ``batch_bytes``; a send with a queue,
            a selector or a timeout is not batched.
        max_in_flight, max_in_flight_bytes: limits of unacknowledged messages of sends that do not wait; each message
            counts 2 KiB in addition to its bytes.
        trace: write sends, ends of transactions and recalls into the trace topic, or into the topic of this name.
        hooks: called for every send.
        start_timeout_s: limit of ``start`` for a response of a name server; 0: no request, the first send raises; None:
            without end.
        close_timeout_s: limit of ``close``.
    Raises: ConfigError (UsageError, ValueError) before anything is sent.
    Source: DefaultMQProducer.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: Address | None = None,
        *,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        address_map: Mapping[str, str] | None = None,
        send_timeout_s: float = 3.0,
        retries: int = 2,
        retry_other_broker_when_not_ok: bool = False,
        retry_response_codes: Iterable[int] = RETRIED,
        latency_fault: bool | str = False,
        selector: Selector | None = None,
        compress_over_bytes: int | None = 4096,
        compression: str = "zlib",
        compress_level: int = 5,
        max_message_bytes: int = 4 << 20,
        topic_queues: int = 4,
        create_topic_key: str = "TBW102",
        linger_ms: float = 0,
        batch_bytes: int = 32 << 10,
        max_in_flight: int = 16_384,
        max_in_flight_bytes: int = 64 << 20,
        trace: bool | str = False,
        hooks: Sequence[ClientHook] = (),
        start_timeout_s: float | None = 0.0,
        close_timeout_s: float = 5.0,
    ) -> None:
        check(PRODUCER_RULES, {name: value for name, value in locals().items() if name in PRODUCER_RULES})
        self.group = check_group(group)
        checked_topic(create_topic_key)
        self._settings = instance_settings(
            namesrv_addr,
            credentials=credentials,
            tls=tls,
            namespace=namespace,
            namespace_v2=namespace_v2,
            instance_name=instance_name,
            unit_name=unit_name,
            address_map=address_map,
        )
        if latency_fault is not False and str(latency_fault) not in _LATENCY_TABLES:
            raise ClientConfigError(f'latency_fault: expected True, False, "5" or "4.9", found {latency_fault!r}')
        codes = listed("retry_response_codes", retry_response_codes)
        if not all(type(code) is int for code in codes):
            raise ClientConfigError(f"retry_response_codes: expected response codes, found {codes!r}")
        self._hooks = check_hooks(hooks)
        if compression == "zlib" and compress_level > 9:
            raise ClientConfigError(f"compress_level: expected 0 to 9 for zlib, found {compress_level}")
        self._wire = Wire(
            wrap(namespace, self.group),
            Compressor(compress_over_bytes, compression, compress_level),
            max_message_bytes,
            topic_queues,
            create_topic_key,
            unit_name is not None,
            (lambda topic: wrap(namespace, topic)) if namespace else str,
        )
        self._sender = Sender(
            self._wire,
            retries=retries,
            retry_codes=codes,
            retry_when_not_ok=retry_other_broker_when_not_ok,
            faults=FaultTable(_LATENCY_TABLES[str(latency_fault)]) if latency_fault else None,
            without_namespace=(lambda topic: unwrap(namespace, topic)) if namespace else str,
        )
        self._selector = selector
        self._timeout_s = float(send_timeout_s)
        self._usual = SendOptions(self._timeout_s, None, selector)
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._limits = (max_in_flight, max_in_flight_bytes)
        self._pressure = InFlightLimiter(*self._limits)
        topic = trace_topic(trace)
        self._tracer = None if topic is None else Tracer(self.group, topic, "PRODUCE")
        if self._tracer is not None:
            self._hooks = (*self._hooks, self._tracer)
        self._start_timeout_s = start_timeout_s
        self._close_timeout_s = float(close_timeout_s)
        self._owner = ProducerOwner(self._wire.group)
        self._instance: ClientInstance | None = None
        self._closed = False
        self._sent, self._failed = Counter(), Counter()
        self._set_up()

    def _set_up(self) -> None:
        """Set up the state of the subclass."""

    @classmethod
    def from_java(cls, settings: Mapping[str, str | int | bool]) -> Self:
        """Return a producer for Java's names and milliseconds: ``{"producerGroup": "g", "sendMsgTimeout": 3000}``.

        Raises: ConfigError for an unknown name, with the nearest name.
        """
        return cls(**producer_arguments(settings))

    def stats(self) -> Mapping[str, Any]:
        """Return the counts of this producer, and the producer's names at the brokers."""
        instance = self._instance
        return {
            "group": self.group,
            "client_id": None if instance is None else instance.client_id,
            "sent": self._sent.value,
            "failed": self._failed.value,
            "retried": self._sender.retried,
            "in_flight": self._pressure.messages,
            "in_flight_bytes": self._pressure.bytes,
            "topics": () if instance is None else instance.routes.topics,
            "closed": self._closed,
        }

    # -- for both clients ----------------------------------------------------------------------------------------------

    def _check_close(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            check({"timeout_s": PRODUCER_RULES["close_timeout_s"]}, {"timeout_s": timeout_s})

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"producer of group {self.group}: it is closed")

    def _how(self, queue: MessageQueue | None, selector: Selector | None, timeout_s: float | None) -> SendOptions:
        if queue is None and selector is None and timeout_s is None:
            return self._usual
        if timeout_s is not None:
            check({"timeout_s": PRODUCER_RULES["send_timeout_s"]}, {"timeout_s": timeout_s})
        if queue is not None and selector is not None:
            raise ClientUsageError("queue: expected a queue or a selector, found both")
        if selector is not None:
            check(PRODUCER_RULES, {"selector": selector})
        return SendOptions(
            self._timeout_s if timeout_s is None else float(timeout_s),
            queue,
            selector or (self._selector if queue is None else None),
        )

    def _contexts(self, messages: Iterable[Message], *, is_half: bool = False) -> list[SendContext]:
        contexts = [SendContext(message, self.group) for message in messages]
        for context in contexts:
            context.is_half = is_half
            call_hooks(self._hooks, "before_send", context)
        return contexts

    def _after(
        self,
        contexts: Iterable[SendContext],
        results: Sequence[SendResult | None],
        error: Exception | None,
        seconds: float,
    ) -> None:
        for i, context in enumerate(contexts):
            context.error = error
            context.seconds = seconds
            if results:
                context.result = results[i]
                context.queue = None if results[i] is None else results[i].message_queue  # type: ignore[union-attr]
            call_hooks(self._hooks, "after_send", context)

    @contextmanager
    def _counted(self, contexts: Sequence[SendContext]) -> Iterator[Callable[[SendResult], None]]:
        """Count the sends of the block, and call the hooks. The block sets the queue; an exception is a failure."""
        begin = time.monotonic()
        results: list[SendResult] = []
        try:
            yield results.append
        except Exception as error:
            self._failed.add()
            self._after(contexts, (), error, time.monotonic() - begin)
            raise
        self._sent.add()
        self._after(contexts, results, None, time.monotonic() - begin)

    def _hooked(self, contexts: list[SendContext], done: Done) -> Done:
        """Return ``done`` after calls of the hooks."""
        if not contexts:
            return done
        begin = time.monotonic()

        def ended(result: SendResult | None, error: Exception | None) -> None:
            self._after(contexts, () if result is None else (result,), error, time.monotonic() - begin)
            done(result, error)

        return ended

    def _count(self, error: object) -> None:
        if error is None:
            self._sent.add()
        else:
            self._failed.add()

    def _count_all(self, ends: Sequence[object]) -> None:
        failed = sum(isinstance(end, Exception) for end in ends)
        self._failed.add_many(failed)
        self._sent.add_many(len(ends) - failed)

    def _publish_topic(self, topic: str) -> str:
        return self._wire.topic(checked_topic(topic))

    def _waits_for_others(self, out: PreparedMessage, how: SendOptions) -> bool:
        """Return whether ``linger_ms`` may batch this send: not with a time limit."""
        return how.any_queue and how.timeout_s == self._timeout_s and out.is_batchable


def check_call(name: str, given: object) -> None:
    """Check that an argument is a function, or None. Raises: ConfigError."""
    if given is not None:
        check_function(name, given)


def message_of(
    given: Message | str,
    body: Body | None,
    tags: str | None,
    keys: str | Iterable[str] | None,
    properties: Mapping[str, str | int | bool] | None,
    sharding_key: str | None,
    delay_level: int | None,
    delay_s: float | None,
    deliver_at: datetime | int | None,
) -> Message:
    """Return the message of a send, from a Message, or from topic, body and the rest. Raises: UsageError."""
    if isinstance(given, Message):
        if (body, tags, keys, properties, sharding_key, delay_level, delay_s, deliver_at) != _NOTHING:
            raise ClientUsageError(
                "send: expected a Message alone, found fields beside it; they belong into the Message"
            )
        return given
    if body is None:
        raise ClientUsageError(f"send: expected a Message, or topic and body, found {given!r} alone")
    return Message(
        given,
        body,
        tags=tags,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        delay_level=delay_level,
        delay_s=delay_s,
        deliver_at=deliver_at,
    )
