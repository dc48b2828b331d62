"""Request and reply: a request message, the reply that a broker pushes, and the reply message of a consumer.

No request is kept beyond its time. Source: DefaultMQProducerImpl.request, RequestFutureHolder,
ClientRemotingProcessor.receiveReplyMessage, MessageUtil.createReplyMessage.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
import uuid
import weakref
import zlib
from collections.abc import Mapping
from typing import Any, Final

from mqfast import properties as names
from mqfast.client.delivery import Delivery, Source
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.encode import MSG_TYPE, OwnMessage, Wire, prepared
from mqfast.client.producer.fast_encode import PreparedMessage
from mqfast.client.producer.send import Sender, SendOptions
from mqfast.client.values import Body, SendResult
from mqfast.errors import ClientError, ClientUsageError, MqfastError, SendTimeout
from mqfast.message import Message
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import split_address
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.store.record.record import decode_record
from mqfast.util.java_text import java_whole

__all__ = ["introduced", "reply_message", "request", "request_of"]

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
_V1: Final = 0xDAA320A7 - (1 << 32)
_log = logging.getLogger("mqfast.client.producer")


async def introduced(instance: ClientInstance, sender: Sender, topic: str, timeout_s: float) -> None:
    """Register this client at every master of a topic: a broker can only push to registered clients. Raises: as a send.

    For a master that accepts no heartbeat the wait is repeated at intervals, for half of the time: others may accept
    the message.
    """
    queues = await instance.driver.run(sender.queues(instance, topic, timeout_s))
    addresses = {instance.routes.address(queue.broker_name) for queue in queues}
    if not all(address is None or instance.has_tried_heartbeat(address) for address in addresses):
        heartbeat = instance.spawn(instance.heartbeat(), "mqfast introduction")
        await asyncio.wait([heartbeat], timeout=timeout_s / 2)  # continues after the call, for the next caller


# -- request -----------------------------------------------------------------------------------------------------------


class _Requests:
    """The requests of one instance that wait for their replies."""

    def __init__(self, instance: ClientInstance) -> None:
        self.waiting: dict[str, asyncio.Future[Delivery]] = {}
        instance.serve(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, None, self.answered)

    def answered(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Set the reply of a broker; a late reply is accepted and dropped."""
        fields = request.ext_fields
        pairs = names.decode(str(fields.get("properties") or "").encode())
        waiting = self.waiting.get(pairs.get(CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            _log.info("answer %s came when nobody waited for it", pairs.get(CORRELATION_ID))
        else:
            try:
                waiting.set_result(_delivery(fields, bytes(request.body)))
            except (KeyError, ValueError, OSError, struct.error, MqfastError) as error:
                waiting.set_exception(
                    ClientError(f"{channel.peer[0]}:{channel.peer[1]}: an answer is no message: {error!r}")
                )
        return request.response(0)


_requests: weakref.WeakKeyDictionary[ClientInstance, _Requests] = weakref.WeakKeyDictionary()


def request_of(message: Message, wire: Wire, client_id: str, timeout_s: float) -> tuple[PreparedMessage, str]:
    """Return a request message, and its correlation id."""
    correlation = str(uuid.uuid4())
    more = {CORRELATION_ID: correlation, REPLY_TO_CLIENT: client_id, TTL: str(round(timeout_s * 1000))}
    return prepared(message, wire, more), correlation


async def request(
    instance: ClientInstance, sender: Sender, message: Message, how: SendOptions
) -> tuple[Delivery, SendResult]:
    """Send a request message and await the reply, within ``how.timeout_s``. Returns: the reply, the queue of the
    request.

    Raises: as a send; SendTimeout without a reply.
    """
    out, correlation = request_of(message, sender.wire, instance.client_id, how.timeout_s)
    requests = _requests.get(instance)
    if requests is None:
        requests = _requests[instance] = _Requests(instance)
    deadline = time.monotonic() + how.timeout_s
    future: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
    requests.waiting[correlation] = future
    try:
        await introduced(instance, sender, out.topic, how.timeout_s)
        remaining_s = max(0.001, deadline - time.monotonic())
        result = await instance.driver.run(
            sender.send(instance, out, SendOptions(remaining_s, how.queue, how.selector))
        )
        assert result is not None
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await future, result
        except TimeoutError:
            raise SendTimeout(
                f"{message.topic}: no answer in {how.timeout_s:g} s to the request that is in {result.message_queue} "
                f"at {result.queue_offset} (msg_id {out.msg_id})",
                msg_id=out.msg_id,
            ) from None
    finally:
        del requests.waiting[correlation]


def _host(text: object, default: str) -> bytes:
    host, port = split_address(str(text or default).lstrip("/"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host) + struct.pack(">i", port)


def _number(fields: Mapping[str, Any], name: str) -> int:
    return java_whole(str(fields.get(name) or 0))


def _delivery(fields: Mapping[str, Any], body: bytes) -> Delivery:
    """Return the message of a reply, as a record that no store has."""
    topic = str(fields["topic"]).encode()
    properties = f"{fields.get('properties') or ''}"
    if properties and not properties.endswith("\x02"):
        properties += "\x02"
    pairs = (properties + f"ARRIVE_TIME\x01{round(time.time() * 1000)}\x02").encode()
    sys_flag = _number(fields, "sysFlag") & ~0x30
    born, stored = _host(fields.get("bornHost"), "0.0.0.0:0"), _host(fields.get("storeHost"), "0.0.0.0:0")
    sys_flag |= (0x10 if len(born) == 20 else 0) | (0x20 if len(stored) == 20 else 0)
    record = b"".join(
        (
            struct.pack(
                ">iiiqqiq",
                zlib.crc32(body) & 0x7FFFFFFF,
                _number(fields, "queueId"),
                _number(fields, "flag"),
                0,
                0,
                sys_flag,
                _number(fields, "bornTimestamp"),
            ),
            born,
            struct.pack(">q", _number(fields, "storeTimestamp")),
            stored,
            struct.pack(">iq", _number(fields, "reconsumeTimes"), 0),
            struct.pack(">i", len(body)),
            body,
            struct.pack(">B", len(topic)),
            topic,
            struct.pack(">h", len(pairs)),
            pairs,
        )
    )
    return Delivery(decode_record(struct.pack(">ii", len(record) + 8, _V1) + record), Source(""))


# -- reply -------------------------------------------------------------------------------------------------------------


def reply_message(request: Delivery, body: Body) -> Message:
    """Return the reply to a request message; a producer sends it as any other message (request code 325).

    Raises: UsageError where the message is no request.
    """
    pairs = request.properties
    cluster, correlation, client = (pairs.get(name) for name in (names.CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT))
    if not (cluster and correlation and client):
        raise ClientUsageError(f"message {request.msg_id}: expected a request, found a message that asks for no answer")
    properties = {MSG_TYPE: "reply", CORRELATION_ID: correlation, REPLY_TO_CLIENT: client}
    if TTL in pairs:
        properties[TTL] = pairs[TTL]
    return OwnMessage(f"{cluster}_REPLY_TOPIC", body, properties=properties)
