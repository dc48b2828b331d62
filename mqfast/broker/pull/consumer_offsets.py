"""Offsets of groups and bounds of queues: 14, 15, 29-32, 43, 308.

Offsets are in memory at once and on disk within flushConsumerOffsetInterval, never ahead of durable messages (the
broker persists the table with ``before_offsets``). An offset may go back, so that a group reads messages again.
Source: ConsumerManageProcessor, ConsumerOffsetManager, AdminBrokerProcessor.
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
        """Register the handlers."""
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
        """Do nothing: the broker persists the table."""

    async def stop(self) -> None:
        """Do nothing: the broker persists the table when the store closes."""

    # --- 14, 15 ---

    def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 14: the offset at which a group continues. Raises: FieldError."""
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
        """Return a pending reset offset of a group, else the committed offset; -1 without one."""
        context = self._context
        if context.config["useServerSideResetOffset"]:
            reset = context.reset_offsets.get(group, topic, queue_id)
            if reset is not None:
                return reset
        if "@" in topic or "@" in group or not topic or not group:
            return -1
        return context.offsets.get(group, topic, queue_id)

    def _begins_in_memory(self, topic: str, queue_id: int) -> bool:
        """Return True if the first message ever stored in the queue still exists, in memory."""
        context = self._context
        if not 0 <= queue_id <= _I32 or topic not in context.topics.table or context.store.min_offset(topic, queue_id):
            return False
        try:
            context.engine.unit_at(topic, queue_id, 0)
        except OffsetError:
            return False
        return not context.engine.is_on_disk(topic, queue_id, 0, self._limits.get())

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 15: commit an offset. Raises: CallRefused with RocketMQ's codes and texts."""
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
        """Return True if the topic has the queue, or had the queue before its number of queues was reduced."""
        config = self._context.topics.get(topic)
        if config is not None and queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return True
        return self._context.store.max_offset(topic, queue_id) > 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store a group's offset. Negative numbers are ignored: ali-ons sends -1 for 0."""
        if 0 <= queue_id <= _I32 and 0 <= offset <= _I64 and "@" not in group and "@" not in topic:
            self._context.offsets.commit(group, topic, queue_id, offset)

    # --- 29, 30, 31, 32 ---

    def search(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 29: the offset of a time. LOWER: the first message at or after the time; UPPER: the last at or
        before.
        """
        topic, queue_id, time_ms = text(request, "topic"), _queue_id(request), whole(request, "timestamp")
        boundary = "UPPER" if str(request.ext_fields.get("boundaryType", "")).upper() == "UPPER" else "LOWER"
        offset = self._context.store.offset_by_time(topic, queue_id, max(0, time_ms), boundary)
        return request.response(0, {"offset": str(offset)})

    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 30: the offset after the last message."""
        offset = self._context.store.max_offset(text(request, "topic"), _queue_id(request))
        return request.response(0, {"offset": str(offset)})

    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 31: the first readable offset."""
        offset = self._context.store.min_offset(text(request, "topic"), _queue_id(request))
        return request.response(0, {"offset": str(offset)})

    def earliest(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 32: the store time of the first message; -1 without messages."""
        time_ms = self._context.engine.earliest_message_time(text(request, "topic"), _queue_id(request))
        return request.response(0, {"timestamp": str(time_ms)})

    # --- 43, 308 ---

    def all_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 43: all offsets of all groups, in the format of the file."""
        return request.response(body=encode_body(self._context.offsets.as_file()))

    def correction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 308: by queue, the lowest offset of all groups of a topic; Long.MAX if the compared group is behind.

        Filtered groups are left out of the response. RocketMQ also deletes their offsets; this broker does not.
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
