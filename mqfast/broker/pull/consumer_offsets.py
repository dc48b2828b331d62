"""How far groups have come, and the bounds of queues: 14, 15, 29-32, 43, 308.

Offsets are in memory at once and on disk within flushConsumerOffsetInterval, never ahead of durable messages (the
broker persists the table with ``before_offsets``). It must never refuse an offset that goes back: that is how a group
reads again. Source: ConsumerManageProcessor, ConsumerOffsetManager, AdminBrokerProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast.broker.pull.get_limits import Limits
from mqfast.broker.send.header_fields import text, whole
from mqfast.errors import CallRefused, FieldError, OffsetError
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["OffsetProcessor"]

_I32, _I64 = 2**31 - 1, 2**63 - 1


class OffsetProcessor:
    """Serves 14, 15, 29, 30, 31, 32, 43 and 308. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, limits: Limits) -> None:
        self._context = context
        self._limits: Final = limits

    def register(self, processors: Processors) -> None:
        """Put the codes into the table of the server."""
        consumers, admin = ConcurrencyLimit("consumerManage"), ConcurrencyLimit("admin")
        for code, handler, lane in (
            (RequestCode.QUERY_CONSUMER_OFFSET, self.query, consumers),
            (RequestCode.UPDATE_CONSUMER_OFFSET, self.update, consumers),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search, admin),
            (RequestCode.GET_MAX_OFFSET, self.max_offset, admin),
            (RequestCode.GET_MIN_OFFSET, self.min_offset, admin),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest, admin),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self.all_offsets, admin),
            (RequestCode.QUERY_CORRECTION_OFFSET, self.correction, admin),
        ):
            processors.register([code], handler, lane)

    def start(self) -> None:
        """Nothing runs by the clock; the broker persists the table."""

    async def stop(self) -> None:
        """The broker persists the table when it closes the store."""

    # --- 14, 15 ---

    def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """14: where does the group go on? Raises: FieldError."""
        group, topic, queue_id = text(request, "consumerGroup"), text(request, "topic"), whole(request, "queueId")
        offset = self.position(group, topic, queue_id)
        if offset < 0:
            asked = request.ext_fields.get("setZeroIfNotFound")
            if asked is not None and str(asked).lower() == "false":
                remark = "Not found, do not set to zero, maybe this group boot first"
                return request.response(ResponseCode.QUERY_NOT_FOUND, remark=remark)
            if not self._begins_in_memory(topic, queue_id):
                remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                return request.response(ResponseCode.QUERY_NOT_FOUND, remark=remark)
            offset = 0
        return request.response(0, {"offset": str(offset)})

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group goes on: at a reset that waits, or behind what it has consumed; -1: it never said."""
        context = self._context
        if context.config["useServerSideResetOffset"]:
            reset = context.reset_offsets.get(group, topic, queue_id)
            if reset is not None:
                return reset
        if "@" in topic or "@" in group or not topic or not group:
            return -1
        return context.offsets.get(group, topic, queue_id)

    def _begins_in_memory(self, topic: str, queue_id: int) -> bool:
        """Is the first message that the queue ever had still there, and in memory?"""
        context = self._context
        if not 0 <= queue_id <= _I32 or topic not in context.topics.table or context.store.min_offset(topic, queue_id):
            return False
        try:
            context.engine.unit_at(topic, queue_id, 0)
        except OffsetError:
            return False
        return not context.engine.is_on_disk(topic, queue_id, 0, self._limits.get())

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """15: the group has come so far. Raises: CallRefused with RocketMQ's codes and words."""
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        context = self._context
        if group not in context.groups.table:
            raise CallRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if topic not in context.topics.table:
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        for name, words in (("queueId", "QueueId"), ("commitOffset", "Offset")):
            if request.ext_fields.get(name) in (None, ""):
                raise CallRefused(ResponseCode.INVALID_PARAMETER, f"{words} is null, topic is {topic}")
        queue_id, offset = whole(request, "queueId"), whole(request, "commitOffset")
        if 0 <= queue_id <= _I32 and not self._has_queue(topic, queue_id):
            raise CallRefused(
                ResponseCode.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic {topic} has no such queue"
            )
        if context.config["useServerSideResetOffset"] and context.reset_offsets.get(group, topic, queue_id) is not None:
            return request.response(remark="Offset has been previously reset")
        self.commit(group, topic, queue_id, offset)
        return request.response()

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        """Has the topic the queue, or had it when the topic had more?"""
        found = self._context.topics.get(topic)
        if found is not None and queue_id < max(found.read_queue_nums, found.write_queue_nums):
            return True
        return self._context.store.max_offset(topic, queue_id) > 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far a group has come. Numbers below 0 say nothing: ali-ons sends -1 where it means 0."""
        if 0 <= queue_id <= _I32 and 0 <= offset <= _I64 and "@" not in group and "@" not in topic:
            self._context.offsets.commit(group, topic, queue_id, offset)

    # --- 29, 30, 31, 32 ---

    def search(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29: the offset of a time. LOWER: the first message at or behind it; UPPER: the last at or before it."""
        topic, queue_id, time_ms = text(request, "topic"), _queue_id(request), whole(request, "timestamp")
        boundary = "UPPER" if str(request.ext_fields.get("boundaryType", "")).upper() == "UPPER" else "LOWER"
        offset = self._context.store.offset_by_time(topic, queue_id, max(0, time_ms), boundary)
        return request.response(0, {"offset": str(offset)})

    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """30: the offset behind the last message."""
        offset = self._context.store.max_offset(text(request, "topic"), _queue_id(request))
        return request.response(0, {"offset": str(offset)})

    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """31: the first offset that can be read."""
        offset = self._context.store.min_offset(text(request, "topic"), _queue_id(request))
        return request.response(0, {"offset": str(offset)})

    def earliest(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """32: when the first message was stored; -1: there is none."""
        time_ms = self._context.engine.earliest_message_time(text(request, "topic"), _queue_id(request))
        return request.response(0, {"timestamp": str(time_ms)})

    # --- 43, 308 ---

    def all_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """43: all offsets of all groups, as their file has them."""
        return request.response(body=encode_body(self._context.offsets.as_file()))

    def correction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """308: the lowest offset of all groups of a topic, by queue; Long.MAX where a group is behind it.

        Groups to filter are left out of the answer. RocketMQ deletes their offsets, which is not done here.
        """
        topic, compared = text(request, "topic"), str(request.ext_fields.get("compareGroup") or "")
        left_out = {name for name in str(request.ext_fields.get("filterGroups") or "").split(",") if name}
        lowest: dict[int, int] = {}
        store, positions = self._context.store, self._context.offsets.positions().get(topic, {})
        for group, queues in positions.items():
            for queue_id, offset in queues.items() if group not in left_out else ():
                if offset >= store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, _I64))
        for queue_id, offset in positions.get(compared, {}).items():
            if lowest.get(queue_id, -1) > offset:
                lowest[queue_id] = _I64
        return request.response(body=encode_body({"correctionOffsets": lowest}))


def _queue_id(request: RemotingCommand) -> int:
    number = whole(request, "queueId")
    if not 0 <= number <= _I32:
        raise FieldError("queueId", f"0 to {_I32}", str(number))
    return number
