"""The base of both simple consumers: arguments, checks, and the calls that differ only in how the caller waits."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from mqfast.client.consumer.call import CALL_S, Work, engine_call
from mqfast.client.consumer.on_demand import OnDemandConsumer
from mqfast.client.consumer.pull.settings import new_subscription, subscriptions_of
from mqfast.client.consumer.simple.engine import SimpleEngine, SimpleSettings
from mqfast.client.consumer.subscription import checked_name
from mqfast.client.decompression import BODY_BYTES_MAX
from mqfast.client.delivery import Delivery
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.route.namespace import namespace_of_address, wrap
from mqfast.client.settings import CONSUMER_RULES, check, check_group, check_names, instance_settings
from mqfast.client.values import Address, Credentials
from mqfast.errors import ClientUsageError
from mqfast.settings.declaration import SettingSpec
from mqfast.util.validate import is_number, is_whole

__all__ = ["SimpleConsumerBase"]

_COUNT_MAX: Final = 32
_WAIT_S_MAX: Final = 300
_INVISIBLE_S_MAX: Final = 7 * 86_400
_RULES: Final[Mapping[str, SettingSpec]] = {
    **{name: CONSUMER_RULES[name] for name in ("orderly", "max_body_bytes", "close_timeout_s", "start_timeout_s")},
    "from_where": SettingSpec("str", choices=("latest", "earliest")),
}


class SimpleConsumerBase(OnDemandConsumer):
    """Arguments, checks and calls of a simple consumer.

    Args:
        group: the consumer group; the members share the messages of the topics.
        namesrv_addr: name servers; None: $NAMESRV_ADDR.
        topics: a topic, or topic -> tag expression.
        orderly: messages of a queue in order: the next messages come after the acks of the previous messages.
        from_where: the start of a new group: at the end of each queue, or at the first message.
        namespace, namespace_v2, address_map: as a producer's.
        max_body_bytes: limit of a decompressed body; reading a larger or damaged body is an error.
        start_timeout_s: how long ``start`` tries to reach a name server; 0: one attempt; None: no limit.
        close_timeout_s: limit of ``close()``.
    Raises: ConfigError, UsageError.
    """

    _kind = "simple consumer"
    _settings: SimpleSettings

    def __init__(
        self,
        group: str,
        namesrv_addr: Address | None = None,
        *,
        topics: str | Mapping[str, str] | None = None,
        orderly: bool = False,
        from_where: Literal["latest", "earliest"] = "latest",
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        address_map: Mapping[str, str] | None = None,
        max_body_bytes: int = BODY_BYTES_MAX,
        start_timeout_s: float | None = 0.0,
        close_timeout_s: float = 5.0,
        **unknown: Any,
    ) -> None:
        check_names("SimpleConsumer", unknown, ("group", "namesrv_addr", "topics", *_RULES, *InstanceSettings._fields))
        name = check_group(group)
        check(
            _RULES,
            {
                "orderly": orderly,
                "max_body_bytes": max_body_bytes,
                "close_timeout_s": close_timeout_s,
                "start_timeout_s": start_timeout_s,
                "from_where": from_where,
            },
        )
        instance = instance_settings(
            namesrv_addr,
            credentials=credentials,
            tls=tls,
            namespace=namespace,
            namespace_v2=namespace_v2,
            instance_name=instance_name,
            unit_name=unit_name,
            address_map=address_map,
        )
        wire_namespace = instance.namespace or namespace_of_address(instance.name_servers[0])
        self._settings = SimpleSettings(
            name,
            instance._replace(namespace=wire_namespace),
            wire_namespace,
            orderly,
            from_where == "latest",
            max_body_bytes,
            start_timeout_s,
            close_timeout_s,
        )
        self._engine: Final = SimpleEngine(self._settings, subscriptions_of(topics, wire_namespace))
        self._prepare()

    def _start_engine(self, is_closed: Callable[[], bool]) -> Coroutine[Any, Any, None]:
        return self._engine.start(is_closed)

    def _end_of_engine(self, *, all_handed_out: bool) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._engine.close

    @property
    def _instance(self) -> ClientInstance:
        return self._engine.instance

    @engine_call
    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Work[None]:
        """Add or replace the subscription of a topic. Raises: UsageError, SubscriptionError, ConnectError."""
        self._check_open()
        return Work(self._engine.subscribe(new_subscription(topic, tags, sql, self._settings.namespace)))

    @engine_call
    def unsubscribe(self, topic: str) -> Work[None]:
        """Remove the subscription of a topic."""
        self._check_open()
        return Work(self._engine.unsubscribe(wrap(self._settings.namespace, checked_name(topic))))

    @engine_call
    def receive(
        self, max_count: int = 16, *, invisible_s: float = 60.0, timeout_s: float = 5.0
    ) -> Work[Sequence[Delivery]]:
        """Wait for messages; another consumer gets these only after ``invisible_s`` without an ack.

        Args: max_count: 1 to 32; timeout_s: how long to wait for the first message; 0: no wait.
        Returns: the messages; an empty list after the timeout.
        Raises: NoRoute, BrokerError, Refused, ConnectError, ClientClosed; UsageError without a topic.
        """
        self._check_open()
        if not is_whole(max_count, 1) or max_count > _COUNT_MAX:
            raise ClientUsageError(f"max_count: expected 1 to {_COUNT_MAX}, found {max_count!r}")
        self._check_invisible(invisible_s)
        if not is_number(timeout_s, 0) or timeout_s > _WAIT_S_MAX:
            raise ClientUsageError(f"timeout_s: expected 0 to {_WAIT_S_MAX} seconds, found {timeout_s!r}")
        return Work(self._engine.receive(max_count, invisible_s, timeout_s), timeout_s + CALL_S)

    @engine_call
    def ack(self, messages: Delivery | Iterable[Delivery]) -> Work[None]:
        """Acknowledge a message, or several: no consumer of the group gets these again.

        An ack after the invisible time has no effect: the message comes again.
        Raises: BrokerError, ConnectError, RequestTimeout; UsageError for a message of another consumer.
        """
        self._check_open()
        given = [messages] if isinstance(messages, Delivery) else list(messages)
        if not all(isinstance(message, Delivery) for message in given):
            raise ClientUsageError(f"ack: expected messages of receive(), found {messages!r:.100}")
        return Work(self._engine.ack(given))

    @engine_call
    def change_invisible_time(self, message: Delivery, invisible_s: float) -> Work[None]:
        """Make a message visible to other consumers ``invisible_s`` seconds from now, instead of the earlier time.

        Raises: BrokerError (208: acknowledged or delivered again already), ConnectError, UsageError.
        """
        self._check_open()
        self._check_invisible(invisible_s)
        if not isinstance(message, Delivery):
            raise ClientUsageError(f"change_invisible_time: expected a message of receive(), found {message!r:.100}")
        return Work(self._engine.change_invisible_time(message, invisible_s))

    @staticmethod
    def _check_invisible(invisible_s: float) -> None:
        if not is_number(invisible_s, 0.001) or invisible_s > _INVISIBLE_S_MAX:
            raise ClientUsageError(f"invisible_s: expected 0.001 to {_INVISIBLE_S_MAX} seconds, found {invisible_s!r}")
