"""The SQL filters of consumer groups from heartbeats, in ``config/consumerFilter.json``; and request 46.

A filter is kept for a day after the group went offline, and after a restart until the next heartbeat of the group. Only
the newest expression of a group is applied. Source: ConsumerFilterManager, ClientManageProcessor.checkClientConfig.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from msgspec import Struct

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.filter.bloom_filter import BloomFilter
from mqfast.broker.filter.expression_compiler import Compiling
from mqfast.broker.filter.sql92_parser import SqlError, SqlExpression, compile_sql
from mqfast.errors import CallRefused
from mqfast.remoting.bodies import build_tables, decode_request
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.heartbeat import SubscriptionData
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.store.meta.metadata import ConsumerFilterTable
from mqfast.util.log_limit import LogLimit

__all__ = ["SQL92", "ConsumerFilters", "check_supported", "expressions", "is_tag_type"]

_log = logging.getLogger("mqfast.broker")

SQL92: Final = "SQL92"
CHARS_MAX: Final = 4 * 1024 * 1024
ENTRIES_MAX: Final = 50_000
_LOADED_DEAD_MS: Final = 30_000


def is_tag_type(expression_type: str | None) -> bool:
    """Return True for the type of tag expressions. Source: ExpressionType.isTagType."""
    return expression_type in (None, "", "TAG")


def check_supported(expression_type: str | None, config: BrokerConfig) -> None:
    """Raise CallRefused with RocketMQ's text if the broker filters by tags only."""
    if not is_tag_type(expression_type) and not config["enablePropertyFilter"]:
        raise CallRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )


class _CheckBody(Struct, rename="camel"):
    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerFilters:
    """The compiled filters by topic and group.

    Thread: that of the event loop.
    """

    def __init__(self, table: ConsumerFilterTable, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._table: Final = table
        self._config: Final = config
        self._now_ms: Final = now_ms
        self._bloom: Final = BloomFilter(config["maxErrorRateOfBloomFilter"], config["expectConsumerNumUseFilter"])
        self._entries: dict[str, dict[str, ConsumerFilterData]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}  # group -> topics of its filters
        self._changed: set[str] = set()
        self.compiling: Final = Compiling()
        self._count = self._chars = 0
        self._limit = LogLimit(_log, burst=5)
        self._load()

    def _load(self) -> None:
        now = self._now_ms()
        for topic in self._table:
            raw = self._table.get(topic) or {}
            groups = raw.get("groupFilterData")
            for group, data in (groups if isinstance(groups, dict) else {}).items():
                entry = ConsumerFilterData.of(data) if isinstance(data, dict) else None
                if entry is None or (entry.topic, entry.group) != (topic, group):
                    _log.warning("consumerFilter.json: %s of topic %s is no filter, left out", group, topic)
                    continue
                if entry.dead_ms == 0:  # every group is offline until a heartbeat
                    entry.dead_ms = max(entry.born_ms, now - _LOADED_DEAD_MS)
                self._put(entry)

    # --- heartbeats ---

    def registered(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Update the filters of a group by a heartbeat; filters of other topics end."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        for topic, subscription in wanted.items():
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(topic, group, subscription)
        for topic in self._topics_of.get(group, ()):
            entry = self._entries[topic][group]
            if topic not in wanted and not entry.is_dead:
                entry.dead_ms = self._now_ms()
                self._changed.add(topic)

    def unregistered(self, group: str) -> None:
        """End the filters of a group without members."""
        for topic in self._topics_of.get(group, ()):
            entry = self._entries[topic][group]
            if not entry.is_dead:
                entry.dead_ms = self._now_ms()
                self._changed.add(topic)

    def _register(self, topic: str, group: str, subscription: SubscriptionData) -> None:
        old = self.get(topic, group)
        expression_type = str(subscription.expression_type)
        if old is not None and not old.is_dead and subscription.sub_version <= old.client_version:
            return  # but a group that was offline may return with an older version, by a slower clock
        if old is not None and (old.expression, old.expression_type) == (subscription.sub_string, expression_type):
            old.client_version, old.dead_ms = subscription.sub_version, 0
        else:
            try:
                self._check_room(subscription.sub_string)
                compiled = _compiled(subscription.sub_string, expression_type)
            except SqlError as error:
                self._limit.warning("filter", "group %s, topic %s: the filter is refused: %s", group, topic, error)
                self._drop(topic, group)  # its pulls are refused (27)
            else:
                self._put(
                    ConsumerFilterData(
                        topic,
                        group,
                        subscription.sub_string,
                        expression_type,
                        subscription.sub_version,
                        self._now_ms(),
                        compiled,
                    )
                )
        self._changed.add(topic)

    def _check_room(self, text: str) -> None:
        if self._count >= ENTRIES_MAX or self._chars + len(text) > CHARS_MAX:
            raise SqlError(f"there are {self._count} filters with {self._chars} characters already")

    def _put(self, entry: ConsumerFilterData) -> None:
        self._drop(entry.topic, entry.group)
        self._entries.setdefault(entry.topic, {})[entry.group] = entry
        self._topics_of.setdefault(entry.group, {})[entry.topic] = None
        self._count += 1
        self._chars += len(entry.expression)

    def _drop(self, topic: str, group: str) -> None:
        dropped = self._entries.get(topic, {}).pop(group, None)
        if dropped is not None:
            topics = self._topics_of[group]
            del topics[topic]
            if not topics:
                del self._topics_of[group]
            self._count -= 1
            self._chars -= len(dropped.expression)

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """Return the filter of a group for a topic, None without a filter."""
        return self._entries.get(topic, {}).get(group)

    def forget_late(self) -> None:
        """Remove filters of groups that are offline for filterDataCleanTimeSpan."""
        latest = self._now_ms() - self._config["filterDataCleanTimeSpan"]
        for topic, groups in list(self._entries.items()):
            late = [group for group, entry in groups.items() if entry.is_dead and entry.dead_ms <= latest]
            for group in late:
                self._drop(topic, group)
            if late:
                self._changed.add(topic)

    def write(self) -> None:
        """Write changed entries into the table, which the caller persists."""
        while self._changed:
            self._store(self._changed.pop())

    def _store(self, topic: str) -> None:
        groups = self._entries.get(topic)
        if not groups:
            self._entries.pop(topic, None)
            self._table.delete(topic)
            return
        data = {group: entry.raw(self._bloom.data_of(f"{group}#{topic}")) for group, entry in groups.items()}
        self._table.put(topic, {"groupFilterData": data, "topic": topic})

    # --- 46 ---

    def register(self, processors: Processors) -> None:
        """Register the handler of 46."""
        processors.register([RequestCode.CHECK_CLIENT_CONFIG], self.check_client, ConcurrencyLimit("client"))

    def check_client(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve 46: check a subscription. Raises: CallRefused."""
        given = decode_request(request.body, _CheckBody, "body").subscription_data if request.body else None
        if given is None or is_tag_type(given.expression_type):
            return request.response()
        check_supported(given.expression_type, self._config)
        return self.compiling.then(channel, expressions([given]), partial(_checked, request, given))


def expressions(subscriptions: Iterable[SubscriptionData]) -> list[str]:
    """Return the SQL92 expressions of subscriptions."""
    return [
        subscription.sub_string
        for subscription in subscriptions
        if subscription.expression_type == SQL92 and subscription.sub_string
    ]


def _checked(request: RemotingCommand, given: SubscriptionData) -> RemotingCommand:
    try:
        _compiled(given.sub_string, str(given.expression_type))
    except SqlError as error:
        raise CallRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    return request.response()


def _compiled(text: str, expression_type: str) -> SqlExpression:
    if expression_type != SQL92:
        raise SqlError(f"expected an expression of type TAG or SQL92, found {expression_type!r:.80}")
    return compile_sql(text)


class ConsumerFilterData:
    """The filter of a group for a topic.

    Attributes: times in ms; ``dead_ms``: when the group went offline, 0: online.
    """

    __slots__ = (
        "born_ms", "client_version", "compiled", "dead_ms", "expression", "expression_type", "group", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        group: str,
        expression: str,
        expression_type: str,
        client_version: int,
        born_ms: int,
        compiled: SqlExpression,
        dead_ms: int = 0,
    ) -> None:
        self.topic = topic
        self.group = group
        self.expression = expression
        self.expression_type = expression_type
        self.client_version = client_version
        self.born_ms = born_ms
        self.compiled = compiled
        self.dead_ms = dead_ms

    @classmethod
    def of(cls, raw: dict[str, Any]) -> ConsumerFilterData | None:
        """Return an entry of the file; None for an invalid entry."""
        texts = [raw.get(name) for name in ("topic", "consumerGroup", "expression", "expressionType")]
        numbers = [raw.get(name, 0) for name in ("clientVersion", "bornTime", "deadTime")]
        if not all(isinstance(value, str) for value in texts) or not all(isinstance(value, int) for value in numbers):
            return None
        topic, group, expression, expression_type = map(str, texts)
        try:
            compiled = _compiled(expression, expression_type)
        except SqlError:
            return None
        return cls(topic, group, expression, expression_type, numbers[0], numbers[1], compiled, numbers[2])

    @property
    def is_dead(self) -> bool:
        """Return True if the group is offline."""
        return self.dead_ms >= self.born_ms

    def raw(self, bloom: dict[str, Any]) -> dict[str, Any]:
        """Return the entry in the format of the file."""
        return {
            "bloomFilterData": bloom,
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


build_tables(__name__)
