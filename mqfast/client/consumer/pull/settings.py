"""The arguments of pull consumers: checked before anything is sent, once for both faces.

It must never do I/O. Defaults: DefaultLitePullConsumer's, docs/client.md.
"""

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
    """The checked arguments of one pull consumer; ``group`` is without its namespace."""

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
    """Check all of them.

    Args: shared: what ``instance_settings`` takes; numbers: those with a rule; unknown: names that are no argument.
    Raises: ConfigError that names the argument, what is expected and what was found.
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
    # The file of a broadcasting consumer's offsets is found by the client id, so that must not be by chance.
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
    """The arguments of a pull consumer from DefaultLitePullConsumer's settings. Raises: ConfigError."""
    left: dict[str, Any] = dict(settings)
    own = {name: left.pop(name) for name in _JAVA if name in left}
    found = consumer_arguments(left)
    check_names("PullConsumer from Java's settings", found, (*InstanceSettings._fields, *_RULES, *_OTHERS))
    if "pullThresholdForAll" in own:
        found["max_cached_total"] = _whole("pullThresholdForAll", own["pullThresholdForAll"])
    if "autoCommitIntervalMillis" in own:
        found["auto_commit_s"] = _whole("autoCommitIntervalMillis", own["autoCommitIntervalMillis"]) / 1000
    is_automatic = str(own.get("autoCommit", True)).strip().lower()
    if is_automatic not in ("true", "false"):
        raise ClientConfigError(f"autoCommit: expected true or false, found {own['autoCommit']!r}")
    if is_automatic == "false":
        found["auto_commit_s"] = None
    return found


def _whole(name: str, value: Any) -> int:
    try:
        return java_whole(java_trim(str(value)))
    except ValueError:
        raise ClientConfigError(f"{name}: expected a whole number, found {value!r}") from None


def subscriptions_of(topics: str | Mapping[str, str] | None, namespace: str | None) -> dict[str, Subscription]:
    """Those of the argument ``topics`` (one name, or name -> tags), by name on the wire.

    Raises: ConfigError, UsageError.
    """
    given = tags_of(topics)
    return {one.topic: one for one in (new_subscription(topic, tags, None, namespace) for topic, tags in given.items())}


def new_subscription(topic: str, tags: str | None, sql: str | None, namespace: str | None) -> Subscription:
    """One subscription of this moment. Raises: ConfigError, UsageError."""
    name = wrap(namespace, checked_name(topic))
    return Subscription(name, tags, sql=sql, version=new_version())
