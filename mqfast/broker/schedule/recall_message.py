"""370: a producer recalls a timed message before the delivery, by a handle.

The response to the send has the handle. A recall is a timed message for the same time, which deletes the target in the
common slot. The response says "recalled" only if the message can be recalled.
Source: RecallMessageProcessor, RecallMessageHandle, SendMessageProcessor.attachRecallHandle.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import RETRY_PREFIX, TIMER_TOPIC, WRITE
from mqfast.broker.send.message_writer import MessageRecord
from mqfast.broker.send.send_message import host_bytes
from mqfast.errors import FieldError
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.util.java_text import java_number

__all__ = ["RecallMessageHandle", "Recall", "recall_handle"]

_LONG_MAX: Final = 2**63 - 1
_TAG: Final = "_RECALL_TAG_"
_VERSION: Final = "v1"
_OUTCOMES_OF_STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class RecallMessageHandle(NamedTuple):
    """The message to recall; ``time``: ms since the epoch, as text."""

    topic: str
    broker_name: str
    time: str
    message_id: str

    def encode(self) -> str:
        """Return the text for clients."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()


def decode_handle(text: str) -> RecallMessageHandle | None:
    """Return the fields of a handle; None for another text."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4 if "=" not in text else 0), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    items = data.decode("utf-8", "replace").rstrip(" ").split(" ")
    return RecallMessageHandle(*items[1:5]) if items[0] == _VERSION and len(items) >= 5 else None


def recall_handle(properties: bytes, broker_name: str) -> str | None:
    """Return the handle of a parked message, by the parked properties; None without one."""
    fields = names.decode(properties)
    topic, unique = fields.get(names.REAL_TOPIC), fields.get(names.UNIQ_KEY)
    time = java_number(fields.get(names.TIMER_OUT_MS, ""), _LONG_MAX)
    if topic is None or unique is None or time is None or topic.startswith(RETRY_PREFIX):
        return None
    # One more than the time of the slot, so that the recall is parked in the same slot.
    return RecallMessageHandle(topic, broker_name, str(time + 1), unique).encode()


class Recall:
    """Serves 370, and makes the handles in responses to sends. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._fields: Final = {"MSG_REGION": context.config["regionId"]}

    def register(self, processors: Processors) -> None:
        """Register the handler; recalls do not wait behind sends."""
        processors.register([RequestCode.RECALL_MESSAGE], self.recall, ConcurrencyLimit("recall", concurrency=10_000))

    def start(self) -> None:
        """Do nothing: no periodic work."""

    async def stop(self) -> None:
        """Do nothing: no periodic work."""

    def handle_of(self, record: MessageRecord) -> str | None:
        """Return the handle for the response to a send."""
        return recall_handle(record.properties, self._context.config["brokerName"])

    async def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 370. Raises: FieldError."""
        topic, text = request.ext_fields.get("topic"), request.ext_fields.get("recallHandle")
        if topic is None:
            raise FieldError("topic", "a value", "none")
        if text is None:
            raise FieldError("recallHandle", "a value", "none")
        refused = self._refusal(topic)
        if refused is not None:
            return request.response(refused[0], self._fields, remark=refused[1])
        handle, why = self._handle(topic, text)
        if handle is None:
            return request.response(ResponseCode.ILLEGAL_OPERATION, self._fields, remark=why)
        record = self._record(handle, request.ext_fields.get("producerGroup"), channel)
        done = await self._context.writer.stored(record)
        if done.result is None or done.code not in _OUTCOMES_OF_STORED:
            return request.response(ResponseCode.SYSTEM_ERROR, self._fields, remark="recall failed, execute error")
        self._context.stats.put(TIMER_TOPIC, 1, getattr(done.result, "size", 0))
        return request.response(ResponseCode.SUCCESS, {**self._fields, "msgId": handle.message_id})

    def _refusal(self, topic: str) -> tuple[int, str] | None:
        context, config = self._context, self._context.config
        unavailable = "recall failed, broker service not available"
        if not config["recallMessageEnable"]:
            return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
        if context.store.config.broker_role == "SLAVE":
            return ResponseCode.SLAVE_NOT_AVAILABLE, unavailable
        if context.now_ms() < config["startAcceptSendRequestTimeStamp"]:
            return ResponseCode.SERVICE_NOT_AVAILABLE, unavailable
        if not config["brokerPermission"] & WRITE and not config["allowRecallWhenBrokerNotWriteable"]:
            return ResponseCode.SERVICE_NOT_AVAILABLE, unavailable
        if context.topics.get(topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist"
        return None

    def _handle(self, topic: str, text: str) -> tuple[RecallMessageHandle | None, str]:
        """Return the handle, or None and the reason of a refusal."""
        handle = decode_handle(text)
        if handle is None:
            return None, "recall handle is invalid"
        if handle.topic != topic:
            return None, "recall failed, topic not match"
        if handle.broker_name != self._context.config["brokerName"]:
            return None, "recall failed, broker service not available"
        time = java_number(handle.time, _LONG_MAX)
        left_ms = (-1 if time is None else time) - self._context.now_ms()
        if not 0 < left_ms < self._context.config["timerMaxDelaySec"] * 1000:
            return None, "recall failed, timestamp invalid"
        return handle, ""

    def _record(self, handle: RecallMessageHandle, group: str | None, channel: Channel) -> MessageRecord:
        now_ms = self._context.now_ms()
        target = handle.message_id
        if self._context.config["appendTopicForTimerDeleteKey"]:
            target = names.delete_key(handle.topic, target)
        fields = {
            names.TAGS: _TAG,
            names.TIMER_DEL_UNIQKEY: target,
            names.UNIQ_KEY: handle.message_id,
            names.TIMER_DELIVER_MS: handle.time,
            "BORN_TIMESTAMP": str(now_ms),
            names.PGROUP: group or None,
        }
        text = names.encode(fields, buckets=16)
        return MessageRecord(handle.topic, 0, b"0", text, born_timestamp=now_ms, born_host=host_bytes(channel))
