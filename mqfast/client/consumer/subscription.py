"""The subscription of a topic, with the client's check of tags. No I/O; the clock is read for versions only.

A broker filters by the hash of a tag, so the client compares the text too. Source: SubscriptionData, FilterAPI.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from mqfast.client.delivery import Delivery
from mqfast.errors import ClientConfigError, ClientUsageError
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX, broker_accepts_topic
from mqfast.properties import jhash, tag_codes

__all__ = ["SQL92", "TAG", "Subscription", "checked_name", "new_version", "tags_of"]

TAG: Final = "TAG"
SQL92: Final = "SQL92"
_BLANK: Final = "".join(map(chr, range(0x21)))  # the characters that Java's trim() removes


_last_version = 0


def new_version() -> int:
    """Return the version of a new subscription: ms since the epoch, above all earlier versions of this process.

    A broker keeps the higher version: without this rule a change after a step back of the clock would be ignored.
    """
    global _last_version
    _last_version = max(_last_version + 1, time.time_ns() // 1_000_000)
    return _last_version


def checked_name(topic: object) -> str:
    """Return a valid topic name. Raises: ConfigError."""
    if not isinstance(topic, str):
        raise ClientConfigError(f"topic: expected a name, found {topic!r}")
    if not broker_accepts_topic(topic):
        size = 255 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else 127
        raise ClientConfigError(
            f"topic: expected 1 to {size} of the characters a-z, A-Z, 0-9, % | - _, found {len(topic)}: {topic[:140]!r}"
        )
    return topic


def tags_of(topics: object) -> Mapping[str, str]:
    """Convert the argument ``topics`` of a consumer, a name or a mapping, to name -> tags. Raises: ConfigError."""
    if topics is None or topics == {}:
        return {}
    if isinstance(topics, str):
        return {topics: "*"}
    if isinstance(topics, Mapping):
        return topics
    raise ClientConfigError(f"topics: expected a name or a mapping from names to tags, found {type(topics).__name__}")


class Subscription:
    """The subscription of a group to one topic.

    Args:
        tags: ``"*"``, or tags joined by ``||``.
        sql: an SQL92 expression over the properties instead of tags.
        version: grows with each change; ms since the epoch.
    Attributes: ``topic``, ``expression``, ``kind`` (TAG or SQL92), ``version``.
    Raises: UsageError for an expression without a tag, or for both tags and SQL.
    """

    __slots__ = ("_tags", "expression", "kind", "topic", "version")

    def __init__(self, topic: str, tags: str | None = "*", *, sql: str | None = None, version: int = 0) -> None:
        self.topic = topic
        self.version = version
        self._tags: tuple[str, ...] | None = None
        if sql is not None:
            if tags not in (None, "", "*"):
                raise ClientUsageError(f"topic {topic}: expected tags or sql, found both: {tags!r} and {sql!r}")
            if type(sql) is not str or not sql.strip():
                raise ClientUsageError(f"topic {topic}, sql: expected an expression, found {sql!r}")
            self.kind, self.expression = SQL92, sql
            return
        self.kind, self.expression = TAG, "*"
        if tag_codes(tags) is not None:
            assert tags is not None
            self.expression = tags
            parts = (part.strip(_BLANK) for part in tags.split("||"))
            self._tags = tuple(dict.fromkeys(part for part in parts if part))

    def wants(self, message: Delivery) -> bool:
        """Return whether the message has a subscribed tag. Only the broker evaluates SQL."""
        return self._tags is None or message.tags in self._tags

    @property
    def is_all(self) -> bool:
        """Return whether the subscription matches every message."""
        return self.kind == TAG and self._tags is None

    def as_json(self) -> dict[str, Any]:
        """Return RocketMQ's SubscriptionData, for a heartbeat."""
        tags = self._tags or ()
        return {
            "classFilterMode": False,
            "codeSet": [jhash(tag) for tag in tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(tags),
            "topic": self.topic,
        }

    def __repr__(self) -> str:
        return f"<Subscription {self.topic} {self.kind} {self.expression!r}>"
