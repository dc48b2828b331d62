"""The checked arguments of pull consumers. No I/O. Defaults: those of DefaultLitePullConsumer, docs/client.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from mqfast.client.consumer.allocation import Allocation, allocation_of
from mqfast.client.consumer.offsets import OffsetStore, check_offset_store
from mqfast.client.consumer.pull.prefetch_buffer import CacheLimits
from mqfast.client.consumer.queue_bounds import FromWhere, check_from_where
from mqfast.client.consumer.subscription import Subscription, checked_name, new_version, tags_of
from mqfast.client.hooks import ClientHook
from mqfast.client.net.instance import InstanceSettings
from mqfast.client.producer.trace import Tracer, trace_topic
from mqfast.client.route.namespace import namespace_of_address, wrap
from mqfast.client.settings import (
    CONSUMER_RULES,
    check,
    check_group,
    check_hooks,
    check_names,
    consumer_arguments,
    instance_settings,
)
from mqfast.client.values import Address
from mqfast.errors import ClientConfigError
from mqfast.settings.declaration import SettingSpec
from mqfast.util.java_text import java_trim, java_whole
from mqfast.util.offset_words import end_word

__all__ = ["OffsetReset", "PullSettings", "pull_arguments", "pull_settings", "subscriptions_of"]

OffsetReset = Literal["error", "earliest", "latest", "first", "last"]
_RULES: Final[Mapping[str, SettingSpec]] = {
    **{
        name: CONSUMER_RULES[name]
        for name in (
            "model", "auto_commit_s", "pull_batch", "pull_interval_s", "max_cached_messages", "max_cached_bytes",
            "max_body_bytes", "close_timeout_s", "start_timeout_s",
        )
    },
    "max_cached_total": SettingSpec("int", 1, 1 << 31, "messages"),
    "offset_reset": SettingSpec("str", choices=("error", "earliest", "latest")),
}  # fmt: skip
_OTHERS: Final = (
    "group", "namesrv_addr", "topics", "from_where", "allocation", "offset_store", "offset_reset", "hooks", "trace",
)  # fmt: skip
_JAVA: Final = ("autoCommit", "autoCommitIntervalMillis", "pullThresholdForAll")


class PullSettings(NamedTuple):
    """The checked arguments of one pull consumer; ``group``: without namespace."""

    group: str
    instance: InstanceSettings
    namespace: str | None
    is_broadcasting: bool
    from_where: FromWhere
    allocation: Allocation
    offset_store: OffsetStore | None
    auto_commit_s: float | None
    pull_batch: int
    pull_interval_s: float
    limits: CacheLimits
    offset_reset: OffsetReset
    close_timeout_s: float
    hooks: tuple[ClientHook, ...]
    max_body_bytes: int
    tracer: Tracer | None = None
    start_timeout_s: float | None = 0.0


def pull_settings(
    group: str,
    namesrv_addr: Address | None,
    *,
    from_where: Literal["latest", "earliest", "last", "first"] | datetime,
    allocation: Allocation | str,
    offset_store: OffsetStore | None,
    offset_reset: OffsetReset,
    hooks: Sequence[ClientHook],
    trace: bool | str,
    shared: Mapping[str, Any],
    numbers: Mapping[str, Any],
    unknown: Iterable[str],
) -> PullSettings:
    """Check all arguments.

    Args: shared: arguments of ``instance_settings``; numbers: arguments with a rule; unknown: unknown names.
    Raises: ConfigError with the argument, the expected and the given value.
    """
    check_names("PullConsumer", unknown, (*shared, *numbers, *_OTHERS))
    name = check_group(group)
    offset_reset = end_word(offset_reset)
    check(_RULES, {**numbers, "offset_reset": offset_reset})
    trace_to = trace_topic(trace)
    tracer = None if trace_to is None else Tracer(name, trace_to, "CONSUME")
    instance = instance_settings(namesrv_addr, **shared)
    is_broadcasting = numbers["model"] == "broadcasting"
    namespace = instance.namespace or namespace_of_address(instance.name_servers[0])
    instance = instance._replace(namespace=namespace)
    # The client id is part of the path of a broadcasting consumer's offset file, so it must not be random.
    if instance.instance_name is None and is_broadcasting:
        instance = instance._replace(instance_name="DEFAULT")
    return PullSettings(
        name,
        instance,
        namespace,
        is_broadcasting,
        check_from_where(from_where),
        allocation_of(allocation),
        check_offset_store(offset_store),
        numbers["auto_commit_s"],
        numbers["pull_batch"],
        numbers["pull_interval_s"],
        CacheLimits(numbers["max_cached_messages"], numbers["max_cached_bytes"], numbers["max_cached_total"]),
        offset_reset,
        numbers["close_timeout_s"],
        (*check_hooks(hooks), *(() if tracer is None else (tracer,))),
        numbers["max_body_bytes"],
        tracer,
        numbers["start_timeout_s"],
    )


def pull_arguments(settings: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Convert DefaultLitePullConsumer's settings to the arguments of a pull consumer. Raises: ConfigError."""
    others: dict[str, Any] = dict(settings)
    own = {name: others.pop(name) for name in _JAVA if name in others}
    arguments = consumer_arguments(others)
    check_names("PullConsumer from Java's settings", arguments, (*InstanceSettings._fields, *_RULES, *_OTHERS))
    if "pullThresholdForAll" in own:
        arguments["max_cached_total"] = _whole("pullThresholdForAll", own["pullThresholdForAll"])
    if "autoCommitIntervalMillis" in own:
        arguments["auto_commit_s"] = _whole("autoCommitIntervalMillis", own["autoCommitIntervalMillis"]) / 1000
    is_automatic = str(own.get("autoCommit", True)).strip().lower()
    if is_automatic not in ("true", "false"):
        raise ClientConfigError(f"autoCommit: expected true or false, found {own['autoCommit']!r}")
    if is_automatic == "false":
        arguments["auto_commit_s"] = None
    return arguments


def _whole(name: str, value: Any) -> int:
    try:
        return java_whole(java_trim(str(value)))
    except ValueError:
        raise ClientConfigError(f"{name}: expected a whole number, found {value!r}") from None


def subscriptions_of(topics: str | Mapping[str, str] | None, namespace: str | None) -> dict[str, Subscription]:
    """Return the subscriptions of the argument ``topics`` (a name, or name -> tags), by name on the wire.

    Raises: ConfigError, UsageError.
    """
    given = tags_of(topics)
    return {
        subscription.topic: subscription
        for subscription in (new_subscription(topic, tags, None, namespace) for topic, tags in given.items())
    }


def new_subscription(topic: str, tags: str | None, sql: str | None, namespace: str | None) -> Subscription:
    """Create a subscription with a new version. Raises: ConfigError, UsageError."""
    name = wrap(namespace, checked_name(topic))
    return Subscription(name, tags, sql=sql, version=new_version())
