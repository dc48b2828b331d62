"""SendMessage, EndTransaction, RecallMessage: requests of remoting, with the properties that RocketMQ's proxy sets.

A message is checked whole before the put: a stored message is never answered with an error of a check.
Source: SendMessageActivity, EndTransactionActivity, RecallMessageActivity.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from mqfast import properties as names
from mqfast.broker.grpc.clients import GrpcClient, transaction_id
from mqfast.broker.grpc.codes import OK, Code, Refused, failure_of, overall, status_of
from mqfast.broker.grpc.outgoing import DELAY, FIFO, LITE, NORMAL, PRIORITY, PRIORITY_PROPERTY, TRANSACTION
from mqfast.broker.grpc.routes import accepted_types, topic_type
from mqfast.broker.grpc.telemetry import checked_topic
from mqfast.broker.metadata.topic_manager import AUTO_CREATE_TOPIC
from mqfast.broker.send.restored_message import get_by_offset
from mqfast.grpc.connection import Call
from mqfast.grpc.messages import (
    EndTransactionRequest,
    GrpcMessage,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
    StatusResponse,
    SystemProperties,
)
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.store.record.record import java_hash

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["Sends", "queue_of_group"]

_PROPERTIES_MAX, _PROPERTIES_BYTES_MAX, _GROUP_BYTES_MAX = 128, 16 * 1024, 64
_STORED_BYTES_MAX: Final = 31 * 1024  # of 32,767; the timer adds some
_MESSAGES_MAX: Final = 1024
_RECOVERY_MS_MAX: Final = 3_600_000
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_COMPRESSED, _PREPARED = 1, 4
_GZIP: Final = 2
_COMMIT, _ROLLBACK = 8, 12
_KINDS: Final = {1: _COMMIT, 2: _ROLLBACK}
_SERVER_CHECK: Final = 2
_NEW_QUEUES: Final = 8
_STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
_TYPE_NAMES: Final = {
    NORMAL: "NORMAL", FIFO: "FIFO", DELAY: "DELAY", TRANSACTION: "TRANSACTION", PRIORITY: "PRIORITY",
}  # fmt: skip
_M64: Final = 2**64 - 1
_TRANSACTION: Final = re.compile(r"([0-7]?[0-9A-F]{1,15})-([0-7]?[0-9A-F]{1,15})-(.+)", re.DOTALL)


def queue_of_group(group: str, queues: int) -> int:
    """Return the queue of a message group. Source: Guava's consistentHash of Java's hash."""
    state, candidate = java_hash(group) & _M64, 0
    while True:
        state = (state * 2862933555777941757 + 1) & _M64
        following = int((candidate + 1) / (((state >> 33) + 1) / 2**31))
        if not 0 <= following < queues:
            return candidate
        candidate = following


class Sends:
    """Serves SendMessage, EndTransaction and RecallMessage. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context
        self._turn = 0

    # --- SendMessage ---

    def send(
        self, call: Call, client: GrpcClient, request: SendMessageRequest
    ) -> SendMessageResponse | Awaitable[SendMessageResponse]:
        """Serve SendMessage. Raises: Refused."""
        messages = request.messages
        if len(messages) != 1:
            return self._send_all(client, self._checked_batch(messages))
        answer = client.dispatch(RequestCode.SEND_MESSAGE, *self._fields(messages[0]))
        if isinstance(answer, RemotingCommand):
            return _response([self._entry(messages[0], answer)])
        return self._send_one(messages[0], answer)

    async def _send_one(self, message: GrpcMessage, answer: Awaitable[RemotingCommand]) -> SendMessageResponse:
        return _response([self._entry(message, await answer)])

    def _checked_batch(self, messages: list[GrpcMessage]) -> list[GrpcMessage]:
        if not messages:
            raise Refused(Code.MESSAGE_CORRUPTED, "messages: expected at least one, found none")
        if len(messages) > _MESSAGES_MAX:
            raise Refused(Code.BAD_REQUEST, f"messages: expected at most {_MESSAGES_MAX}, found {len(messages)}")
        topics = {message.topic.full_name for message in messages if message.topic is not None}
        if len(topics) != 1:
            raise Refused(Code.MESSAGE_CORRUPTED, "messages: expected a single topic, found several")
        for message in messages:
            self._fields(message)
        return messages

    async def _send_all(self, client: GrpcClient, messages: list[GrpcMessage]) -> SendMessageResponse:
        entries = []
        for message in messages:
            try:
                answer = await client.request(RequestCode.SEND_MESSAGE, *self._fields(message))
                entries.append(self._entry(message, answer))
            except Exception as error:
                status = failure_of(error)
                if status is None:
                    raise
                entries.append(SendResultEntry(status))
        return _response(entries)

    def _entry(self, message: GrpcMessage, answer: RemotingCommand) -> SendResultEntry:
        status = status_of(answer.code, answer.remark)
        if answer.code not in _STORED:
            return SendResultEntry(status)
        fields, system = answer.ext_fields, message.system_properties
        assert system is not None
        message_id, offset = system.message_id, int(fields["queueOffset"])
        name = ""
        if system.message_type == TRANSACTION:
            name = transaction_id(int(str(fields["msgId"])[-16:], 16), offset, message_id)
        return SendResultEntry(status, message_id, name, offset, str(fields.get("recallHandle") or ""))

    def _fields(self, message: GrpcMessage) -> tuple[dict[str, Any], bytes]:
        """Return header fields and body of a send. Raises: Refused."""
        topic, system = checked_topic(message.topic), message.system_properties
        if system is None:
            raise Refused(Code.MESSAGE_CORRUPTED, "system_properties: expected, found none")
        self._check_body(message.body)
        self._check_type(topic, system)
        properties = self._properties(topic, message, system)
        sys_flag = (_COMPRESSED if system.body_encoding == _GZIP else 0) | (
            _PREPARED if system.message_type == TRANSACTION else 0
        )
        return {
            "producerGroup": topic,
            "topic": topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": str(_NEW_QUEUES),
            "queueId": str(self._queue(topic, system)),
            "sysFlag": str(sys_flag),
            "bornTimestamp": str(system.born_timestamp or self._context.now_ms()),
            "flag": "0",
            "properties": properties,
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }, message.body

    def _check_body(self, body: bytes) -> None:
        largest = self._context.store.config.max_message_bytes
        if not body:
            raise Refused(Code.MESSAGE_BODY_EMPTY, "body: expected at least one byte, found none")
        if len(body) > largest:
            raise Refused(Code.MESSAGE_BODY_TOO_LARGE, f"body: expected at most {largest} bytes, found {len(body)}")

    def _check_type(self, topic: str, system: SystemProperties) -> None:
        kind = system.message_type
        if kind == LITE or system.lite_topic is not None:
            raise Refused(Code.NOT_IMPLEMENTED, "lite topics: this broker has none")
        is_due, is_grouped = system.delivery_timestamp is not None, system.message_group is not None
        fits = {
            NORMAL: not is_due and not is_grouped,
            FIFO: is_grouped and not is_due,
            DELAY: is_due and not is_grouped,
            TRANSACTION: not is_due and not is_grouped,
            PRIORITY: system.priority is not None and not is_due and not is_grouped,
        }
        if not fits.get(kind, False):
            raise Refused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"message type {_TYPE_NAMES.get(kind, kind)}: expected a message group for FIFO, a delivery time for "
                "DELAY, a priority for PRIORITY alone, found others",
            )
        config = self._context.topics.get(topic)
        is_checked = bool(self._context.config["enableTopicMessageTypeCheck"])
        if is_checked and kind not in accepted_types(config, is_checked=True):
            raise Refused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic}: expected messages of its type {topic_type(config)}, found "
                f"{_TYPE_NAMES.get(kind, kind)}; the topic's attribute message.type says which",
            )

    def _queue(self, topic: str, system: SystemProperties) -> int:
        config = self._context.topics.get(topic)
        queues = 0 if config is None else config.write_queue_nums
        if queues <= 0:
            return -1
        if system.message_group is not None:
            return queue_of_group(system.message_group, queues)
        if system.message_type == PRIORITY and system.priority is not None:
            return max(0, min(system.priority, queues - 1))
        self._turn += 1
        return self._turn % queues

    # --- properties ---

    def _properties(self, topic: str, message: GrpcMessage, system: SystemProperties) -> str:
        """Return the property string. Raises: Refused."""
        users = message.user_properties
        if len(users) > _PROPERTIES_MAX:
            raise Refused(
                Code.MESSAGE_PROPERTIES_TOO_LARGE, f"expected at most {_PROPERTIES_MAX} properties, found {len(users)}"
            )
        for name in users:
            if not name.strip() or name in names.RESERVED or name.startswith(names.TRANSIENT_PREFIX):
                raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name[:80]!r}: expected a name of your own")
        pairs: dict[str, str] = {**users, **self._system_pairs(topic, system)}
        text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items() if value])
        if (size := len(text.encode("utf-8", "replace"))) > _PROPERTIES_BYTES_MAX:
            _check_size([*users, *users.values(), system.tag or "", *system.keys], size)
        # Every control character is refused in names and values; of those between them there are two for a pair.
        if len(_CONTROL.findall(text)) != 2 * sum(map(bool, pairs.values())):
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "properties: expected no control character, found one")
        return text

    def _system_pairs(self, topic: str, system: SystemProperties) -> dict[str, str]:
        if not system.message_id.strip():
            raise Refused(Code.ILLEGAL_MESSAGE_ID, "message_id: expected a text, found none")
        pairs = {names.UNIQ_KEY: system.message_id, names.PGROUP: topic}
        if system.tag is not None:
            if not system.tag.strip() or "|" in system.tag:
                raise Refused(Code.ILLEGAL_MESSAGE_TAG, f"tag: expected a text without |, found {system.tag[:80]!r}")
            pairs[names.TAGS] = system.tag
        if system.keys:
            if not all(key.strip() for key in system.keys):
                raise Refused(Code.ILLEGAL_MESSAGE_KEY, "keys: expected texts, found an empty one")
            pairs[names.KEYS] = " ".join(system.keys)
        if system.message_group is not None:
            if not system.message_group.strip() or len(system.message_group.encode()) >= _GROUP_BYTES_MAX:
                raise Refused(Code.ILLEGAL_MESSAGE_GROUP, f"message_group: expected 1 to {_GROUP_BYTES_MAX - 1} bytes")
            pairs[names.SHARDINGKEY] = system.message_group
        if system.trace_context:
            pairs["TRACE_CONTEXT"] = system.trace_context
        if system.born_host:
            pairs["__BORNHOST"] = system.born_host
        self._add_times(pairs, system)
        return pairs

    def _add_times(self, pairs: dict[str, str], system: SystemProperties) -> None:
        if system.message_type == TRANSACTION:
            pairs[names.TRAN_MSG] = "true"
            wait_ms = system.orphaned_transaction_recovery_duration
            if wait_ms is not None:
                if not 0 <= wait_ms <= _RECOVERY_MS_MAX:
                    raise Refused(
                        Code.BAD_REQUEST,
                        f"orphaned_transaction_recovery_duration: expected 0 to {_RECOVERY_MS_MAX} ms, found {wait_ms}",
                    )
                pairs[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(wait_ms // 1000)
        if system.message_type == PRIORITY:
            pairs[PRIORITY_PROPERTY] = str(max(0, system.priority or 0))
        if system.delivery_timestamp is not None:
            longest_ms = self._context.config["timerMaxDelaySec"] * 1000
            if not 0 < system.delivery_timestamp <= self._context.now_ms() + longest_ms:
                raise Refused(
                    Code.ILLEGAL_DELIVERY_TIME,
                    f"delivery_timestamp: expected at most {longest_ms} ms from now, found {system.delivery_timestamp}",
                )
            pairs[names.TIMER_DELIVER_MS] = str(system.delivery_timestamp)

    # --- EndTransaction, RecallMessage ---

    async def end_transaction(self, call: Call, client: GrpcClient, request: EndTransactionRequest) -> StatusResponse:
        """Serve EndTransaction. Raises: Refused."""
        topic = checked_topic(request.topic)
        parts = _TRANSACTION.fullmatch(request.transaction_id)
        # Python's SDK 5.0.1 leaves out the version, the first two letters of a message id.
        if parts is None or request.message_id not in (parts[3], parts[3][2:]):
            raise _other_transaction()
        await self._check_half(int(parts[1], 16), parts[3])
        kind = _KINDS.get(request.resolution)
        if kind is None:
            return StatusResponse(OK)  # the client does not know; a check asks later
        fields = {
            "producerGroup": topic,
            "topic": topic,
            "commitLogOffset": str(int(parts[1], 16)),
            "tranStateTableOffset": str(int(parts[2], 16)),
            "commitOrRollback": str(kind),
            "fromTransactionCheck": "true" if request.source == _SERVER_CHECK else "false",
            "msgId": parts[3],
            "transactionId": parts[3],
        }
        answer = await client.request(RequestCode.END_TRANSACTION, fields)
        return StatusResponse(status_of(answer.code, answer.remark))

    async def _check_half(self, physical_offset: int, message_id: str) -> None:
        """Check that an offset has the half message of this id: offsets are easy to guess, ids are not."""
        context, log = self._context, self._context.engine.log
        if log.readable <= physical_offset < log.written:  # with sync flush a client may be faster than the disk
            await context.durable.wait(physical_offset + 1)
        half = get_by_offset(context, physical_offset)
        if half is None or message_id != (half.properties.get(names.UNIQ_KEY) or half.message_id):
            raise _other_transaction()

    async def recall(self, call: Call, client: GrpcClient, request: RecallMessageRequest) -> RecallMessageResponse:
        """Serve RecallMessage."""
        fields = {
            "topic": checked_topic(request.topic),
            "recallHandle": request.recall_handle,
            "brokerName": self._context.config["brokerName"],
        }
        answer = await client.request(RequestCode.RECALL_MESSAGE, fields)
        return RecallMessageResponse(status_of(answer.code, answer.remark), str(answer.ext_fields.get("msgId") or ""))


def _other_transaction() -> Refused:
    return Refused(
        Code.INVALID_TRANSACTION_ID,
        "transaction_id: expected the id that this broker has given for this message, found another",
    )


def _response(entries: list[SendResultEntry]) -> SendMessageResponse:
    return SendMessageResponse(overall([entry.status or Status() for entry in entries]), entries)


def _check_size(texts: list[str], stored: int) -> None:
    """Check names and values of properties, tag and keys, and the size of all that is stored. Raises: Refused."""
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if stored > _STORED_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties: expected at most {_STORED_BYTES_MAX} bytes with those of the system, found {stored}",
        )
    if size > _PROPERTIES_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties: expected at most {_PROPERTIES_BYTES_MAX} bytes with tag and keys, found {size}",
        )
