"""AsyncAdminClient with requests that cover a whole broker: all topics, all groups, all progress, in a request each.

Must never send a request per topic or per group of a broker, except the calls with a limited number of names. Source:
AdminBrokerProcessor.fetchAllConsumeStatsInBroker, TopicConfigManager, SubscriptionGroupManager.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from mqfast.client.admin.admin_base import Clusters
from mqfast.client.admin.async_admin_client import AsyncAdminClient
from mqfast.client.admin.bodies import ConnectionsBody, TableBody, TimeSpansBody
from mqfast.client.admin.call import call
from mqfast.client.admin.groups import members_at
from mqfast.client.admin.plan import QueueStats
from mqfast.client.admin.topics import stats_at
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.client.values import MessageQueue
from mqfast.errors import FieldError
from mqfast.remoting.bodies import TopicConfigBody, TopicTableBody, build_tables
from mqfast.remoting.codes import RequestCode

__all__ = ["BrokerWideClient", "GroupSettings", "QueuePlace", "read_places"]

# A queue as the key of a table: an object (fastjson's own form), or the same as a text.
_KEY_OBJECT: Final = re.compile(rb'\{"brokerName":"([^"\\]*)","queueId":(\d+),"topic":"([^"\\]*)"\}:')
_KEY_TEXT: Final = re.compile(
    rb'"\{\\"brokerName\\":\\"([^"\\]*)\\",\\"queueId\\":(\d+),\\"topic\\":\\"([^"\\]*)\\"\}":'
)
_PLAIN: Final = rb'"\1|\2|\3":'
_CUT: Final = b'"offsetTable"'
_PART: Final = 1 << 17  # bytes between two pauses


class GroupSettings(Struct, rename="camel"):
    """The settings of a consumer group that lists show."""

    consume_enable: bool = True
    consume_message_orderly: bool = False
    retry_max_times: int = 16


class _GroupTable(Struct, rename="camel"):
    subscription_group_table: dict[str, GroupSettings] = {}


class _Offsets(Struct, rename="camel"):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


class _Stats(Struct, rename="camel"):
    offset_table: dict[str, _Offsets] = {}


class _AllStats(Struct, rename="camel"):
    consume_stats_list: list[msgspec.Raw] = []


class QueuePlace(Struct, gc=False):
    """The place of a group in a queue. Attributes: last_ms: store time of the last consumed message, 0: unknown."""

    topic: str
    broker: str
    queue_id: int
    max_offset: int
    committed: int
    last_ms: int

    @property
    def behind(self) -> int:
        """Return the number of messages that the group has not consumed; deleted messages count."""
        return max(0, self.max_offset - self.committed)


_ENTRY: Final = msgspec.json.Decoder(dict[str, list[_Stats]])
_ALL: Final = msgspec.json.Decoder(_AllStats)


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the parts of a body, cut between the keys of queues."""
    at = 0
    while at < len(data):
        end = data.find(_CUT, at + _PART)
        end = len(data) if end < 0 else end
        yield data[at:end]
        at = end


def read_places(data: bytes, groups: dict[str, list[QueuePlace]]) -> Iterator[None]:
    """Add the places of all groups from the body of an answer, in steps of milliseconds. Raises: FieldError."""
    names: dict[str, str] = {}  # one text for each topic and broker, not one for each queue
    plain = []
    for part in _parts(data):
        plain.append(_KEY_TEXT.sub(_PLAIN, _KEY_OBJECT.sub(_PLAIN, part)))
        yield
    try:
        for entry in _ALL.decode(b"".join(plain)).consume_stats_list:
            yield
            _add_places(_ENTRY.decode(entry), names, groups)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FieldError("body", "the progress of all groups as JSON", str(error)) from None


def _add_places(entry: Mapping[str, list[_Stats]], names: dict[str, str], groups: dict[str, list[QueuePlace]]) -> None:
    for group, stats in entry.items():
        places = groups.setdefault(group, [])
        for topic_stats in stats:
            for key, offsets in topic_stats.offset_table.items():
                broker, _, rest = key.partition("|")
                queue_id, _, topic = rest.partition("|")
                if not queue_id.isdigit():
                    raise FieldError("body.offsetTable (key)", "brokerName, queueId and topic", repr(key[:80]))
                place = QueuePlace(
                    names.setdefault(topic, topic),
                    names.setdefault(broker, broker),
                    int(queue_id),
                    max(0, offsets.broker_offset),
                    max(0, offsets.consumer_offset),
                    max(0, offsets.last_timestamp),
                )
                places.append(place)


class BrokerWideClient(AsyncAdminClient):
    """Administration with requests by broker. Args, Thread: as AsyncAdminClient."""

    @call
    def all_brokers(self) -> RequestSteps[Clusters]:
        """Return all brokers that the name servers know, with their addresses."""
        return (yield from self._clusters())

    @call
    def runtime_at(self, address: str) -> RequestSteps[Mapping[str, str]]:
        """Return the measurements of the broker at an address."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        body = yield from self._query(address, code, TableBody, about="state of the broker")
        return body.table

    @call
    def topics_at(self, address: str) -> RequestSteps[Mapping[str, TopicConfigBody]]:
        """Return the settings of all topics of a broker."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        body = yield from self._query(address, code, TopicTableBody, about="topics")
        return body.topic_config_table

    @call
    def groups_at(self, address: str) -> RequestSteps[Mapping[str, GroupSettings]]:
        """Return the settings of all consumer groups of a broker."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = yield from self._query(address, code, _GroupTable, about="groups")
        return body.subscription_group_table

    @call
    def progress_at(self, address: str) -> RequestSteps[bytes]:
        """Return the place of every group in every queue of a broker, for ``read_places``."""
        code = RequestCode.GET_BROKER_CONSUME_STATS
        answer = yield from self._call(address, code, {"isOrder": False}, about="progress of all groups")
        return read_answer(answer, address, bytes)

    @call
    def queues_at(self, address: str, topic: str) -> RequestSteps[Mapping[MessageQueue, QueueStats]]:
        """Return the queues of a topic on a broker."""
        return (yield from stats_at(self, address, topic))

    @call
    def members_of(self, address: str, group: str) -> RequestSteps[ConnectionsBody]:
        """Return the members of a group that are connected to a broker."""
        return (yield from members_at(self, address, group))

    @call
    def ages_at(self, address: str, group: str, topic: str) -> RequestSteps[Mapping[tuple[str, int], int]]:
        """Return the age in ms of the first unread message of a group, by broker name and queue id."""
        code, fields = RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic, "group": group}
        body = yield from self._query(address, code, TimeSpansBody, fields, about=f"age of group {group}")
        return {
            (span.queue.broker_name, span.queue.queue_id): max(0, span.delay_time)
            for span in body.consume_time_span_set
        }


build_tables(__name__)
