"""Bodies of admin responses as types, and the conversion for callers.

Fields that some version of RocketMQ leaves out have a default. Source: the classes of the same names in RocketMQ's
remoting.protocol.body and remoting.protocol.admin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mqfast.client.values import MessageQueue
from mqfast.errors import FieldError
from mqfast.remoting.bodies import TopicConfigBody, build_tables, decode_body

__all__ = [
    "AllOffsetsBody", "ConnectionsBody", "ConsumeStatsBody", "DirectResultBody", "GroupListBody",
    "GroupsBody", "HaBody", "ConsumerOffsetsBody", "ProducersBody", "RunningInfoBody", "TableBody", "TimeSpansBody",
    "TopicConfigBody", "TopicStatsBody", "TopicsBody", "by_queue", "properties_text", "settings_of",
    "subscriptions_of",
]  # fmt: skip

T = TypeVar("T")


class _Queue(Struct, rename="camel", frozen=True):
    broker_name: str
    queue_id: int
    topic: str


def by_queue(what: str, table: Mapping[str, T]) -> dict[MessageQueue, T]:
    """Return a map whose keys are the JSON of queues, in the order of queues. Raises: FieldError."""
    values: dict[MessageQueue, T] = {}
    for key, value in table.items():
        queue = decode_body(key.encode(), _Queue, f"{what} (key)")
        values[MessageQueue(queue.topic, queue.broker_name, queue.queue_id)] = value
    return {queue: values[queue] for queue in sorted(values)}


class GroupListBody(Struct, rename="camel"):
    """Answer of 300."""

    group_list: list[str] = []


class GroupsBody(Struct, rename="camel"):
    """Answer of 201: the settings of each group, with all fields."""

    subscription_group_table: dict[str, dict[str, Any]] = {}


class TableBody(Struct, rename="camel"):
    """Answer of 28 and 219."""

    table: dict[str, str] = {}


class _TopicOffset(Struct, rename="camel"):
    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicsBody(Struct, rename="camel"):
    """Answer of 21."""

    topic_config_table: dict[str, Any] = {}


class AllOffsetsBody(Struct, rename="camel"):
    """Answer of 43: ``topic@group`` -> queue id -> offset."""

    offset_table: dict[str, dict[int, int]] = {}


class TopicStatsBody(Struct, rename="camel"):
    """Answer of 202."""

    offset_table: dict[str, _TopicOffset] = {}


class _OffsetWrapper(Struct, rename="camel"):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStatsBody(Struct, rename="camel"):
    """Answer of 208."""

    consume_tps: float = 0.0
    offset_table: dict[str, _OffsetWrapper] = {}


class _TimeSpan(Struct, rename="camel"):
    message_queue: _Queue
    delay_time: int = 0

    @property
    def queue(self) -> MessageQueue:
        at = self.message_queue
        return MessageQueue(at.topic, at.broker_name, at.queue_id)


class TimeSpansBody(Struct, rename="camel"):
    """Answer of 303."""

    consume_time_span_set: list[_TimeSpan] = []


class ConsumerOffsetsBody(Struct, rename="camel"):
    """Answer of 222."""

    offset_table: dict[str, int] = {}


class _Connection(Struct, rename="camel"):
    client_id: str = ""
    client_addr: str = ""
    language: str | int = ""
    version: int = 0


class _Subscription(Struct, rename="camel"):
    topic: str = ""
    sub_string: str = ""
    expression_type: str | None = "TAG"


class ConnectionsBody(Struct, rename="camel"):
    """Answer of 203 and 204."""

    connection_set: list[_Connection] = []
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | int | None = None
    subscription_table: dict[str, _Subscription] = {}


class _Producer(Struct, rename="camel"):
    client_id: str = ""
    remote_ip: str = msgspec.field(name="remoteIP", default="")
    language: str | int = ""
    version: int = 0
    last_update_timestamp: int = 0


class ProducersBody(Struct):
    """Answer of 328."""

    data: dict[str, list[_Producer]] = {}


class RunningInfoBody(Struct, rename="camel"):
    """Answer of 307."""

    properties: dict[str, str] = {}
    subscription_set: list[_Subscription] = []
    mq_table: dict[str, dict[str, Any]] = {}
    mq_pop_table: dict[str, dict[str, Any]] = {}
    status_table: dict[str, dict[str, Any]] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None


class DirectResultBody(Struct, rename="camel"):
    """Answer of 309; Go sends the number of the result."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | int = ""
    remark: str | None = None
    spent_time_mills: int = 0


class _HaConnection(Struct, rename="camel"):
    addr: str = ""
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transferred_byte_in_second: int = 0
    behind_millis: int | None = None
    last_contact_millis: int | None = None


class _HaClient(Struct, rename="camel"):
    master_addr: str | None = None
    max_offset: int = 0
    is_activated: bool = False
    last_read_timestamp: int = 0
    transferred_byte_in_second: int = 0
    state: str | None = None
    behind_millis: int | None = None
    last_contact_millis: int | None = None
    error: str | None = None


class HaBody(Struct, rename="camel"):
    """Answer of 907; brokers of RocketMQ have no milliseconds, state or error."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[_HaConnection] = []
    ha_client_runtime_info: _HaClient | None = None


def subscriptions_of(subscriptions: Mapping[str, _Subscription] | list[_Subscription]) -> dict[str, str]:
    """Return topic -> expression."""
    rows = subscriptions.values() if isinstance(subscriptions, Mapping) else subscriptions
    return {row.topic: row.sub_string for row in sorted(rows, key=lambda row: row.topic)}


def settings_of(what: str, body: bytes) -> dict[str, str]:
    """Return the settings of a body of lines ``name=value``, as servers write them: without escapes. Raises:
    FieldError.
    """
    try:
        lines = body.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FieldError(what, "lines name=value in UTF-8", str(error)) from None
    pairs = [line.partition("=") for line in lines if line]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        raise FieldError(what, "lines name=value", repr(wrong[0][:60]))
    return {name: value for name, _, value in sorted(pairs)}


def properties_text(pairs: Mapping[str, str]) -> bytes:
    """Return settings as the body of 25 and 318: a line for each setting."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in pairs.items()).encode()


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\")
    return "\\" + text if text.startswith((" ", "\t")) else text


build_tables(__name__)
