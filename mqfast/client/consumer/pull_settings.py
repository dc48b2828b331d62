"""The arguments of pull consumers: checked before anything is sent, once for both faces.

It must never do I/O. Defaults: DefaultLitePullConsumer's, docs/client.md.
"""

from __future__ import annotations

import difflib
import math
import ssl
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from mqfast.client.consumer.allocation import Allocation, allocation_of
from mqfast.client.consumer.offsets import OffsetStore
from mqfast.client.consumer.pull_cache import CacheLimits
from mqfast.client.consumer.queue_bounds import FromWhere, check_from_where
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.net.instance import InstanceSettings
from mqfast.client.route.name_servers import parse_addresses
from mqfast.client.route.namespace import namespace_of_address, wrap
from mqfast.client.values import Address, Credentials
from mqfast.errors import ConfigError

__all__ = ["OffsetReset", "PullSettings", "pull_settings", "subscriptions_of"]

OffsetReset = Literal["error", "earliest", "latest"]
_RESETS: Final = ("error", "earliest", "latest")
_MODELS: Final = ("clustering", "broadcasting")
_GROUP_LENGTH: Final = 120
_SECONDS_MAX: Final = 7 * 86400.0


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


def pull_settings(
    group: str,
    namesrv_addr: Address | None,
    *,
    credentials: Credentials | None,
    tls: bool | ssl.SSLContext,
    namespace: str | None,
    instance_name: str | None,
    unit_name: str | None,
    model: str,
    from_where: Literal["last", "first"] | datetime,
    allocation: Allocation | str,
    offset_store: OffsetStore | None,
    auto_commit_s: float | None,
    pull_batch: int,
    pull_interval_s: float,
    max_cached_messages: int,
    max_cached_bytes: int,
    max_cached_total: int,
    offset_reset: OffsetReset,
    close_timeout_s: float,
) -> PullSettings:
    """Check all of them. Raises: ConfigError that names the argument, what is expected and what was found."""
    name = _text("group", group)
    if len(name) > _GROUP_LENGTH:
        raise ConfigError(f"group: expected at most {_GROUP_LENGTH} characters, found {len(name)}")
    if not all(letter.isascii() and (letter.isalnum() or letter in "%|_-") for letter in name):
        raise ConfigError(f"group: expected letters, digits and any of %|_-, found {name!r}")
    servers = parse_addresses(namesrv_addr)
    is_broadcasting = _one_of("model", model, _MODELS) == "broadcasting"
    if namespace is None:
        namespace = namespace_of_address(servers[0])
    # The file of a broadcasting consumer's offsets is found by the client id, so that must not be by chance.
    if instance_name is None and is_broadcasting:
        instance_name = "DEFAULT"
    instance = InstanceSettings(servers, credentials, tls, namespace, instance_name, unit_name)
    commit_s = None if auto_commit_s is None else _seconds("auto_commit_s", auto_commit_s, 0.001)
    return PullSettings(
        name,
        instance,
        namespace,
        is_broadcasting,
        check_from_where(from_where),
        allocation_of(allocation),
        offset_store,
        commit_s,
        _count("pull_batch", pull_batch, 1, 1024),
        _seconds("pull_interval_s", pull_interval_s, 0.0),
        CacheLimits(
            _count("max_cached_messages", max_cached_messages, 1, 65_535),
            _count("max_cached_bytes", max_cached_bytes, 1, 1 << 30),
            _count("max_cached_total", max_cached_total, 1, 1 << 31),
        ),
        _one_of("offset_reset", offset_reset, _RESETS),  # type: ignore[arg-type]
        _seconds("close_timeout_s", close_timeout_s, 0.0),
    )


def subscriptions_of(topics: str | Mapping[str, str] | None, namespace: str | None) -> dict[str, Subscription]:
    """Those of the argument ``topics`` (one name, or name -> tags), by name on the wire.

    Raises: ConfigError, UsageError.
    """
    if topics is None:
        return {}
    given: object = topics
    if isinstance(given, str):
        table: Mapping[Any, Any] = {given: "*"}
    elif isinstance(given, Mapping):
        table = given
    else:
        raise ConfigError(f"topics: expected a name or a mapping from names to tags, found {type(given).__name__}")
    return {one.topic: one for one in (new_subscription(topic, tags, None, namespace) for topic, tags in table.items())}


def new_subscription(topic: str, tags: str | None, sql: str | None, namespace: str | None) -> Subscription:
    """One subscription of this moment. Raises: ConfigError, UsageError."""
    name = wrap(namespace, _text("topic", topic))
    return Subscription(name, tags, sql=sql, version=time.time_ns() // 1_000_000)


def _text(what: str, given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{what}: expected a name, found {given!r}")
    return given


def _one_of(what: str, given: object, allowed: tuple[str, ...]) -> str:
    if given in allowed:
        return str(given)
    near = difflib.get_close_matches(str(given).lower(), allowed, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{what}: expected one of {', '.join(map(repr, allowed))}, found {given!r}{hint}")


def _count(what: str, given: object, least: int, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ConfigError(f"{what}: expected a whole number from {least} to {most}, found {given!r}")
    return given


def _seconds(what: str, given: object, least: float) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
        raise ConfigError(f"{what}: expected seconds from {least:g} to {_SECONDS_MAX:g}, found {given!r}")
    if not least <= given <= _SECONDS_MAX:
        raise ConfigError(f"{what}: expected seconds from {least:g} to {_SECONDS_MAX:g}, found {given!r}")
    return float(given)
