"""The tables of a broker, each by one request: topics, groups, progress of all groups, and counters; and cleaning.

A page or a list of a whole cluster costs one request a broker, whatever the count of topics and groups. Source:
AdminBrokerProcessor (21, 201, 306, 315, 316, 317, 329).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mqfast.client.admin.admin_base import AdminBase
from mqfast.client.admin.bodies import ConsumeStatsBody, GroupsBody, TopicsBody, by_queue
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_text, known_name
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.client.values import MessageQueue
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["BrokerTableCalls", "Progress", "BrokerStatsItem"]

CLEANINGS: Final = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
    "log": RequestCode.DELETE_EXPIRED_COMMITLOG,
}


class Progress(NamedTuple):
    """The progress of a group in a queue.

    Attributes: committed: next offset; end: behind the last message; last_ms: store time of the last consumed message,
        0 where the broker does not report it.
    """

    committed: int
    end: int
    last_ms: int


class BrokerStatsItem(NamedTuple):
    """A counter of a broker in a window: its sum, and the rate a second."""

    sum: int
    tps: float


class _AllStatsBody(Struct, rename="camel"):
    """Answer of 317."""

    consume_stats_list: list[dict[str, list[ConsumeStatsBody]]] = []


class _Window(Struct, frozen=True):
    sum: int = 0
    tps: float = 0.0


class _CounterBody(Struct, rename="camel"):
    """Answer of 315."""

    stats_day: _Window = _Window()
    stats_hour: _Window = _Window()
    stats_minute: _Window = _Window()


class BrokerTableCalls(AdminBase):
    """The calls about whole tables of a broker. A broker is named by its name (the master) or by ``host:port``."""

    @call
    def topic_configs(self, broker: str) -> RequestSteps[Mapping[str, Mapping[str, Any]]]:
        """Return the settings of all topics of a broker, RocketMQ's own included: topic -> settings."""
        address = yield from self._address_of(broker)
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        body = yield from self._query(address, code, TopicsBody, about=f"topics of broker {broker}")
        return dict(sorted(body.topic_config_table.items()))

    @call
    def group_configs(self, broker: str) -> RequestSteps[Mapping[str, Mapping[str, Any]]]:
        """Return the settings of all groups of a broker, RocketMQ's own included: group -> settings."""
        address = yield from self._address_of(broker)
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = yield from self._query(address, code, GroupsBody, about=f"groups of broker {broker}")
        return dict(sorted(body.subscription_group_table.items()))

    @call
    def all_progress(self, broker: str) -> RequestSteps[Mapping[str, Mapping[MessageQueue, Progress]]]:
        """Return the progress of all groups of a broker, by one request: group -> queue -> progress.

        A broker leaves out groups without an offset.
        """
        address = yield from self._address_of(broker)
        code, about = RequestCode.GET_BROKER_CONSUME_STATS, f"progress of groups at broker {broker}"
        answer = yield from self._call(address, code, {"isOrder": False}, about=about)

        def read(data: bytes) -> dict[str, dict[MessageQueue, Progress]]:
            groups: dict[str, dict[MessageQueue, Progress]] = {}
            for row in decode_body(data, _AllStatsBody, "body").consume_stats_list:
                for group, tables in row.items():
                    queues = groups.setdefault(group, {})
                    for table in tables:
                        for queue, offsets in by_queue("body.offsetTable", table.offset_table).items():
                            queues[queue] = Progress(
                                offsets.consumer_offset, offsets.broker_offset, max(0, offsets.last_timestamp)
                            )
            return {group: groups[group] for group in sorted(groups)}

        return read_answer(answer, address, read)

    @call
    def counter(self, broker: str, name: str, key: str) -> RequestSteps[Mapping[str, BrokerStatsItem] | None]:
        """Return a counter of a broker: ``day``, ``hour``, ``minute``; None where nothing was counted yet.

        Args: name: as TOPIC_PUT_NUMS (key: topic) or GROUP_GET_NUMS (key: ``topic@group``).
        """
        address = yield from self._address_of(broker)
        fields = {"statsName": checked_text("name", name), "statsKey": checked_text("key", key)}
        code, also = RequestCode.VIEW_BROKER_STATS_DATA, (ResponseCode.SYSTEM_ERROR,)
        answer = yield from self._call(address, code, fields, also=also, about=f"counter {name}")
        if answer.code != ResponseCode.SUCCESS:
            return None
        body = read_answer(answer, address, lambda data: decode_body(data, _CounterBody, "body"))
        windows = {"day": body.stats_day, "hour": body.stats_hour, "minute": body.stats_minute}
        return {window: BrokerStatsItem(values.sum, values.tps) for window, values in windows.items()}

    @call
    def clean(self, broker: str, what: str) -> RequestSteps[None]:
        """Make a broker remove what has expired, by the broker's own rules.

        Args: what: ``queues`` (queue files without messages in the log), ``topics`` (queues of deleted topics) or
            ``log`` (log files older than ``fileReservedTime``).
        """
        known_name("kind", what, CLEANINGS)
        address = yield from self._address_of(broker)
        yield from self._call(address, CLEANINGS[what], about=f"cleaning of broker {broker}")


build_tables(__name__)
