"""Queries of messages: by key, unique key or tag (12), by physical offset (33), and the units of a queue (321).

No body is copied in Python: responses are views of the mapped log. Source: QueryMessageProcessor,
AdminBrokerProcessor.queryConsumeQueue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Struct

from mqfast.broker.acl.required_permissions import of_message
from mqfast.broker.acl.terms import Action
from mqfast.broker.admin.bodies import QueueRow, QueueRows
from mqfast.errors import CorruptFile, OffsetError, UsageError
from mqfast.remoting.bodies import build_tables, encode_body, header_of
from mqfast.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import Buffer, RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["Query"]

_I64_MAX: Final = 2**63 - 1
_MESSAGES_MAX: Final = 1024  # of a response, for any request and any maxMsgsNumBatch
_BYTES_MAX: Final = 12 * 1024 * 1024  # below the frame's limit
_UNITS_MAX: Final = 4096


class _QueryHeader(Struct, rename="camel"):
    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None


class _ViewHeader(Struct):
    offset: int


class _QueueHeader(Struct, rename="camel"):
    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


class Query:
    """Serves 12, 33 and 321. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        processors.register([RequestCode.QUERY_MESSAGE], self.query, lane)
        processors.register([RequestCode.VIEW_MESSAGE_BY_ID], self.view, lane)
        processors.register([RequestCode.QUERY_CONSUME_QUEUE], self.units, lane)

    def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 12: messages by a key, oldest first; no messages without an index."""
        header = header_of(request, _QueryHeader)
        store = self._context.store
        is_unique = request.ext_fields.get("_UNIQUE_KEY_QUERY", "").lower() == "true"
        limit = store.config.default_query_max_num if is_unique else header.max_num
        by_tag = header.index_type == "T" and not is_unique
        end = min(header.end_timestamp, _I64_MAX)
        try:
            hits = store.query(
                header.topic,
                None if by_tag else header.key,
                max(0, min(limit, store.config.max_msgs_num_batch, _MESSAGES_MAX)),
                header.begin_timestamp,
                end,
                tag=header.key if by_tag else None,
            )
        except UsageError:
            hits = []  # the index is off
        messages = sorted(hits, key=lambda message: message.physical_offset)
        fields = {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"}
        if not messages:
            remark = "can not find message, maybe time range not correct"
            return request.response(ResponseCode.QUERY_NOT_FOUND, fields, remark=remark)
        fields["indexLastUpdatePhyoffset"] = str(messages[-1].physical_offset)
        fields["indexLastUpdateTimestamp"] = str(messages[-1].store_timestamp)
        records: list[Buffer] = []
        so_far = 0
        for message in messages:
            record = self._context.engine.record_at(message.physical_offset)
            so_far += len(record)
            if records and so_far > _BYTES_MAX:
                break
            records.append(record)
        return request.response(0, fields, records)

    def view(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 33: the message at a physical offset."""
        header = header_of(request, _ViewHeader)
        try:
            # Checked, since a body may contain the bytes of a record.
            message = self._context.store.get_by_offset(header.offset)
            self._context.rights.demand(channel, request, of_message(message, Action.SUB, Action.GET))
            record = self._context.engine.record_at(header.offset)
        except (OffsetError, CorruptFile):
            remark = f"can not find message by the offset, {header.offset}"
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        return request.response(body=[record])

    def units(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 321: the units of a queue, as on disk."""
        header = header_of(request, _QueueHeader)
        context = self._context
        place = f"{header.queue_id}@{header.topic}"
        if header.queue_id not in context.store.queue_ids(header.topic):
            return request.response(ResponseCode.SYSTEM_ERROR, remark=f"{place} is not exist!")
        low = context.store.min_offset(header.topic, header.queue_id)
        high = context.store.max_offset(header.topic, header.queue_id)
        rows = QueueRows(UNSET, high, low)
        if header.consumer_group is not None:
            subscription = context.consumers.subscription(header.consumer_group, header.topic)
            if subscription is None:
                rows.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
            else:
                rows.filter_data = "null"
                rows.subscription_data = subscription
        if not low <= header.index < high:
            remark = f"Index {header.index} of {place} is not exist!"
            return request.response(body=b"", remark=remark)
        rows.queue_data = []
        for offset in range(header.index, min(high, header.index + min(header.count, _UNITS_MAX))):
            unit = context.engine.unit_at(header.topic, header.queue_id, offset)
            rows.queue_data.append(QueueRow(False, unit.physical_offset, unit.size, unit.tags_code))
        return request.response(body=encode_body(rows))


build_tables(__name__)
