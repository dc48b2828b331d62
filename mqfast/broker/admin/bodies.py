"""The bodies of admin requests as types; maps with queues as keys, as fastjson writes and reads them.

Source: the classes of the same names in RocketMQ's remoting.protocol.body and remoting.protocol.admin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from mqfast.errors import FieldError
from mqfast.remoting.bodies import DataVersion, build_tables, decode_body, encode_body
from mqfast.remoting.heartbeat import SubscriptionData
from mqfast.util.fastjson import object_keys

__all__ = [
    "AllGroups", "AllTopics", "ConsumeStats", "ConsumeStatsList", "GroupBody", "GroupForbidden", "GroupList",
    "GroupNames", "OffsetWrapper", "OffsetsBody", "ProducerRow", "QueueBody", "QueueRow", "QueueRows", "StatsData",
    "StatsItem", "SubscriptionOf", "TimeSpan", "TopicNames", "TopicOffset", "TopicStats", "by_client",
    "by_queue", "queue_offsets",
]  # fmt: skip


class QueueBody(Struct, rename="camel", frozen=True, order=True):
    """A queue of a topic on a broker; a key of maps."""

    broker_name: str
    queue_id: int
    topic: str


class TopicOffset(Struct, rename="camel"):
    """The bounds of a queue (202)."""

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class TopicStats(Struct, rename="camel"):
    """Body of 202; ``offset_table`` by ``by_queue``."""

    offset_table: Raw
    topic_put_tps: float


class OffsetWrapper(Struct, rename="camel"):
    """The progress of a group in a queue (208, 317)."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int


class ConsumeStats(Struct, rename="camel"):
    """Body of 208."""

    consume_tps: float
    offset_table: Raw


class ConsumeStatsList(Struct, rename="camel"):
    """Body of 317."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    total_diff: int
    total_inflight_diff: int


class OffsetsBody(Struct, rename="camel"):
    """Body of 222, and of 220 to a client."""

    offset_table: Raw


class StatsItem(Struct):
    """A window of a counter (315)."""

    avgpt: float
    sum: int
    tps: float


class StatsData(Struct, rename="camel"):
    """Body of 315."""

    stats_day: StatsItem
    stats_hour: StatsItem
    stats_minute: StatsItem


class TimeSpan(Struct, rename="camel"):
    """The times of the messages of a queue, and the progress of a group (303)."""

    consume_time_stamp: int
    consume_time_stamp_str: str
    delay_time: int
    max_time_stamp: int
    max_time_stamp_str: str
    message_queue: QueueBody
    min_time_stamp: int
    min_time_stamp_str: str


class QueueRow(Struct, rename="camel"):
    """A unit of a queue (321)."""

    eval: bool
    physic_offset: int
    physic_size: int
    tags_code: int


class QueueRows(Struct, rename="camel"):
    """Body of 321."""

    filter_data: str | UnsetType
    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueRow] | UnsetType = UNSET
    subscription_data: SubscriptionData | UnsetType = UNSET


class TopicNames(Struct, rename="camel"):
    """Topics (305, 343)."""

    broker_addr: str | UnsetType
    topic_list: list[str]


class GroupList(Struct, rename="camel"):
    """Groups (300)."""

    group_list: list[str]


class SubscriptionOf(Struct, rename="camel"):
    """The subscription of a group to a topic (345)."""

    group: str
    subscription_data: SubscriptionData | UnsetType
    topic: str


class GroupForbidden(Struct, rename="camel"):
    """The permission of a group to read a topic (353)."""

    group: str
    readable: bool
    topic: str


class GroupBody(Struct):
    """The name in a group's settings; other fields are unchanged (200, 225)."""

    groupName: str | None = None


class GroupNames(Struct):
    """Body of 225."""

    groupConfigList: list[dict[str, Any]]


class AllTopics(Struct, rename="camel"):
    """Body of 21."""

    data_version: DataVersion
    mapping_data_version: DataVersion
    topic_config_table: Mapping[str, Any]


class AllGroups(Struct, rename="camel"):
    """Body of 201."""

    data_version: DataVersion
    forbidden_table: Mapping[str, Any]
    subscription_group_table: Mapping[str, Any]


class ProducerRow(Struct, rename="camel"):
    """A member of a producer group (328)."""

    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str = msgspec.field(name="remoteIP")
    version: int


def by_queue(table: Iterable[tuple[QueueBody, Any]]) -> Raw:
    """Return a map with queues as keys, in fastjson's format."""
    return Raw(object_keys((encode_body(queue), encode_body(value)) for queue, value in table))


def by_client(tables: Mapping[str, Mapping[QueueBody, int]]) -> Raw:
    """Return a map of client id -> queue -> offset."""
    return Raw(encode_body({client: by_queue(table.items()) for client, table in tables.items()}))


class _QueueTable(Struct, rename="camel"):
    message_queue_table: dict[str, int] | None = None


def queue_offsets(body: bytes) -> dict[QueueBody, int]:
    """Decode the response of a client to 221. Raises: FieldError."""
    table = decode_body(body, _QueueTable, "body").message_queue_table or {}
    try:
        return {msgspec.json.decode(key, type=QueueBody, strict=False): offset for key, offset in table.items()}
    except msgspec.MsgspecError as error:
        raise FieldError("body.messageQueueTable", f"queues as keys ({str(error)[:80]})", "another key") from None


build_tables(__name__)
