"""The base of both push consumers: arguments, handlers, calls and the creation of the engine. No waits."""

from __future__ import annotations

import logging
import os
import pickle
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar

from mqfast.client.consumer.allocation import Allocation, allocation_of
from mqfast.client.consumer.call import Work, engine_call
from mqfast.client.consumer.iteration import InHand
from mqfast.client.consumer.offsets import OffsetStore, check_offset_store
from mqfast.client.consumer.push.dispatcher import Dispatcher, Workers
from mqfast.client.consumer.push.engine import PushEngine
from mqfast.client.consumer.push.settings import PushSettings
from mqfast.client.consumer.push.state import Handler, TopicSubscription
from mqfast.client.consumer.queue_bounds import check_from_where
from mqfast.client.consumer.subscription import Subscription, checked_name, new_version, tags_of
from mqfast.client.decompression import BODY_BYTES_MAX
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook
from mqfast.client.net.guard import Guard, refuse_nested
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.trace import Tracer, trace_topic
from mqfast.client.route.namespace import wrap
from mqfast.client.settings import (
    CONSUMER_RULES,
    NamedArguments,
    check,
    check_group,
    check_hooks,
    consumer_arguments,
    instance_settings,
    is_coroutine_function,
)
from mqfast.client.values import Credentials, MessageQueue
from mqfast.errors import ClientClosed, ClientConfigError, ClientForked, ClientUsageError

__all__ = ["PUSH_CALL_S", "PushConsumerBase", "close_quietly"]

_log = logging.getLogger("mqfast.client")

HandlerFunction: TypeAlias = Callable[[Delivery], object] | Callable[[list[Delivery]], object]
"""A function of a message, or of a list where ``batch`` is above 1; for asyncio also a coroutine function."""
F = TypeVar("F", bound=HandlerFunction)
BATCH_MAX: Final = 1024
PUSH_CALL_S: Final = 10.0
"""The limit of a sync call."""


class PushConsumerBase(NamedArguments):
    """Arguments and state of a push consumer.

    Args:
        group: the consumer group; the members share the messages (clustering).
        namesrv_addr: ``"a:9876;b:9876"``, a list of addresses, or None for $NAMESRV_ADDR.
        topics: topic, or topic -> tags: subscriptions whose messages a loop consumes.
        namespace, namespace_v2, address_map: as a producer's.
        model: ``"broadcasting"``: each member gets all messages, and offsets are kept in a file of this machine.
        orderly: deliver the messages of a queue in order; a failed message suspends the queue for ``suspend_s``.
        from_where: the start of a group without an offset.
        allocation: the strategy that shares queues; all members must use the same strategy.
        threads: maximum of concurrent handlers: threads, tasks, or jobs of ``executor``.
        max_cached_messages, max_cached_bytes, max_span: limits of each queue, at which pulls stop.
        max_body_bytes: limit of a decompressed body. Reading a larger or damaged body is an error: the message is
            delivered again like any failed message, and finally goes to the dead-letter queue.
        consume_timeout_s: a message is delivered again if the handler takes longer.
        trace: write a record of each consumption into the trace topic, or into the topic of this name.
        hooks: are called before and after every handler.
        max_reconsume_times: deliveries of a failed message before the dead-letter queue; -1: the setting of the group
            at the broker (16), or no limit for orderly consumers.
        start_timeout_s: how long ``start`` tries to reach a name server; 0: one attempt; None: no limit.
        close_timeout_s: for the whole of ``close``.
    Raises: ConfigError, UsageError.
    """

    _takes_coroutines: ClassVar[bool]

    def __init__(
        self,
        group: str,
        namesrv_addr: str | Sequence[str] | None = None,
        *,
        topics: str | Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        address_map: Mapping[str, str] | None = None,
        model: Literal["clustering", "broadcasting"] = "clustering",
        orderly: bool = False,
        from_where: Literal["latest", "earliest", "last", "first"] | datetime = "latest",
        allocation: Allocation | str = "AVG",
        offset_store: OffsetStore | None = None,
        threads: int = 20,
        executor: Executor | None = None,
        pull_batch: int = 32,
        pull_interval_s: float = 0.0,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 100 << 20,
        max_span: int = 2000,
        max_body_bytes: int = BODY_BYTES_MAX,
        consume_timeout_s: float = 900.0,
        max_reconsume_times: int = -1,
        suspend_s: float = 1.0,
        trace: bool | str = False,
        hooks: Sequence[ClientHook] = (),
        start_timeout_s: float | None = 0.0,
        close_timeout_s: float = 5.0,
    ) -> None:
        given = locals()
        check(CONSUMER_RULES, {name: given[name] for name in CONSUMER_RULES if name in given})
        check_group(group)
        if executor is not None and not isinstance(executor, Executor):
            raise ClientConfigError(
                f"executor: expected a concurrent.futures.Executor, found {type(executor).__name__}"
            )
        is_broadcasting = model == "broadcasting"
        if is_broadcasting and instance_name is None:
            instance_name = "DEFAULT"  # as Java: the path of the offset file stays the same
        self.group = group
        self._start_lock = Guard(brief=False)
        self._namespace = namespace
        self._instance_settings = instance_settings(
            namesrv_addr, credentials=credentials, tls=tls, namespace=namespace, instance_name=instance_name,
            unit_name=unit_name, namespace_v2=namespace_v2, address_map=address_map,
        )  # fmt: skip
        topic = trace_topic(trace)
        self._tracer = None if topic is None else Tracer(group, topic, "CONSUME")
        self._hooks = check_hooks(hooks)
        if self._tracer is not None:
            self._hooks = (*self._hooks, self._tracer)
        self._settings = PushSettings(
            wrap(namespace, group), is_broadcasting, orderly, check_from_where(from_where), threads, pull_batch,
            pull_interval_s, max_cached_messages, max_cached_bytes, max_span, consume_timeout_s, max_reconsume_times,
            suspend_s, close_timeout_s, max_body_bytes, start_timeout_s,
        )  # fmt: skip
        self._allocation = allocation_of(allocation)
        self._offset_store = check_offset_store(offset_store)
        self._executor = executor
        self._wanted: dict[str, TopicSubscription] = {}
        self._in_hand = InHand()
        self._engine: PushEngine | None = None
        self._pid = os.getpid()
        self._is_closed = False
        self._is_paused = False
        for topic, tags in tags_of(topics).items():
            self._want(topic, None, tags, None, 1)

    @classmethod
    def from_java(cls, settings: Mapping[str, str | int | bool]) -> Self:
        """Create a consumer by Java's names and units: ``{"consumerGroup": "billing", "consumeThreadMax": 8}``.

        Raises: ConfigError for an unknown name, with the nearest name, or a wrong value.
        """
        return cls(**consumer_arguments(settings))

    # --- handlers ---

    def on(self, topic: str, tags: str = "*", *, sql: str | None = None, batch: int = 1) -> Callable[[F], F]:
        """Return a decorator that registers a function as the handler of a topic.

        Args: tags: tags joined by ``||``; sql: an SQL92 expression over the properties instead; batch: maximum of
            messages per call; above 1 the argument is a list.
        Raises: UsageError.
        """

        checked_name(topic)

        def register(function: F) -> F:
            self.subscribe(topic, function, tags, sql=sql, batch=batch)
            return function

        return register

    def subscribe(
        self, topic: str, handler: HandlerFunction, tags: str = "*", *, sql: str | None = None, batch: int = 1
    ) -> None:
        """Register a handler as ``on`` does; also while the consumer runs. Raises: UsageError, SubscriptionError."""
        checked: object = handler
        if not callable(checked):
            raise ClientUsageError(f"topic {topic}: expected a function as handler, found {type(handler).__name__}")
        if not self._takes_coroutines and is_coroutine_function(handler):
            raise ClientUsageError(
                f"topic {topic}: expected a function, found a coroutine function: use AsyncPushConsumer"
            )
        self._want(topic, handler, tags, sql, batch)

    def _want(self, topic: str, function: HandlerFunction | None, tags: str, sql: str | None, batch: int) -> None:
        self._check_usable()
        refuse_nested()
        checked_name(topic)
        if type(batch) is not int or not 1 <= batch <= BATCH_MAX:
            raise ClientUsageError(f"topic {topic}, batch: expected 1 to {BATCH_MAX}, found {batch!r}")
        on_wire = wrap(self._namespace, topic)
        subscription = Subscription(on_wire, tags, sql=sql, version=new_version())
        handler = None if function is None else Handler(function, batch)
        wanted = TopicSubscription(subscription, handler, topic)
        before = self._wanted.get(on_wire)
        others = [other for name, other in list(self._wanted.items()) if name != on_wire]
        if any((other.handler is None) != (handler is None) for other in others):
            raise ClientUsageError(f"topic {topic}: expected a handler for every topic, or a loop for all, found both")
        if before is not None and before.handler is not None and self._engine is None:
            raise ClientUsageError(f"topic {topic}: expected one handler, found {before.handler.name} and another one")
        self._wanted[on_wire] = wanted
        if self._engine is not None:
            self._subscribe_now(self._engine, on_wire, wanted)

    @engine_call
    def unsubscribe(self, topic: str) -> Work[None]:
        """Remove the subscription of a topic; its cached messages are delivered to other members."""
        self._check_usable()
        return Work(self._unsubscribe(topic), PUSH_CALL_S)

    async def _unsubscribe(self, topic: str) -> None:
        for name in [name for name, wanted in list(self._wanted.items()) if wanted.plain_topic == topic]:
            self._wanted.pop(name, None)
            if self._engine is not None:
                await self._engine.coordinator.unsubscribe(name)

    def _warn_of_no_handler(self, hint: str) -> None:
        if self._is_loop and self._wanted:
            names = ", ".join(wanted.plain_topic for wanted in list(self._wanted.values()))
            text = "group %s: run: no handler for %s, so its messages wait for a loop: use %s"
            _log.warning(text, self.group, names, hint)

    def _subscribe_now(self, engine: PushEngine, topic: str, wanted: TopicSubscription) -> None:
        raise NotImplementedError

    # --- state ---

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClientClosed(f"group {self.group}: the consumer is closed")
        if self._engine is not None and self._pid != os.getpid():
            raise ClientForked(f"group {self.group}: the consumer was started in process {self._pid}; make one here")

    def _running(self) -> PushEngine:
        self._check_usable()
        if self._engine is None:
            raise ClientClosed(f"group {self.group}: expected a started consumer, found one that is not: call start()")
        return self._engine

    @property
    def _is_loop(self) -> bool:
        return all(wanted.handler is None for wanted in list(self._wanted.values()))

    def _make_engine(self, instance: ClientInstance, make_workers: Callable[[Dispatcher], Workers]) -> PushEngine:
        if not self._wanted:
            raise ClientUsageError(f"group {self.group}: expected a topic: topics=, on() or subscribe(), found none")
        if self._executor is not None:
            self._check_picklable(self._executor)
        engine = PushEngine(
            self._settings, instance, self._wanted, self._allocation, make_workers,
            own_offsets=self._offset_store, hooks=self._hooks, owner=self._in_hand, tracer=self._tracer,
        )  # fmt: skip
        if self._tracer is not None:
            self._tracer.begin(instance)
        self._in_hand.dispatcher = engine.dispatcher
        if self._is_paused:
            engine.state.resumed.clear()
        return engine

    def _check_picklable(self, executor: Executor) -> None:
        from concurrent.futures import ProcessPoolExecutor  # loads multiprocessing

        for item in list(self._wanted.values()):
            if item.handler is None or not isinstance(executor, ProcessPoolExecutor):
                continue
            try:
                pickle.dumps(item.handler.function)
            except Exception as error:
                raise ClientUsageError(
                    f"topic {item.plain_topic}: expected a handler that another process can import, as a function of a "
                    f"module; found {item.handler.name}: {error}"
                ) from None

    def _producer_arguments(self) -> dict[str, Any]:
        """Return the arguments of a producer of the same cluster, for replies."""
        settings = self._instance_settings
        return {
            "namesrv_addr": list(settings.name_servers), "credentials": settings.credentials, "tls": settings.tls,
            "namespace": settings.namespace, "unit_name": settings.unit_name, "namespace_v2": settings.namespace_v2,
            "address_map": dict(settings.address_map),
        }  # fmt: skip

    def pause(self) -> None:
        """Stop pulling. Cached messages are still handled; the messages of a held pull wait until ``resume``.

        Thread: any.
        """
        self._is_paused = True
        if (engine := self._engine) is not None:
            engine.call_soon(engine.state.resumed.clear)

    def resume(self) -> None:
        """Resume pulling. Thread: any."""
        self._is_paused = False
        if (engine := self._engine) is not None:
            engine.call_soon(engine.state.resumed.set)

    def assignment(self, *, retry: bool = False) -> Mapping[MessageQueue, int]:
        """Return the queues of this member: queue -> committable offset.

        Args: retry: also the queues of the group's retry topic.
        """
        return self._running().state.copy_assignment(retry=retry)

    @engine_call
    def lag(self) -> Work[dict[MessageQueue, int]]:
        """Return queue of this member -> messages that the group has not consumed yet. Raises: ClientError."""
        return Work(self._running().fetcher.lag(), PUSH_CALL_S)

    def stats(self, *, retry: bool = False) -> Mapping[str, Any]:
        """Return counts, the state of every queue, and in ``why_nothing`` the reasons for missing messages.
        Thread: any.

        Args: retry: ``queues`` and ``members`` also of the group's retry topic.
        """
        return self._running().diagnostics.stats(retry=retry)


async def close_quietly(engine: PushEngine) -> None:
    """Close the engine of a consumer that was not closed."""
    await engine.close()
