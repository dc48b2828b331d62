"""Publication of a failed message to the retry topic of the group, on any broker, where sending back fails.

Messages of a record that holds several are always published: brokers refuse to take such a record back. The caller
acknowledges the message after the steps. The copy has the unique id of the message, so duplicates can be detected.
Source: DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage, DefaultMQProducerImpl.sendKernelImpl.
"""

from __future__ import annotations

import contextlib
from typing import Final

from mqfast import properties as names
from mqfast.client.delivery import Delivery
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import RequestSteps
from mqfast.client.producer.encode import LANGUAGE, Compressor, PreparedMessage, Wire, prepared
from mqfast.client.producer.fast_encode import HeaderTemplate
from mqfast.client.producer.send import Sender, SendOptions
from mqfast.client.route.namespace import RETRY_PREFIX
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientError
from mqfast.message import Message
from mqfast.remoting.command import VERSION

__all__ = ["publish_back"]

GROUP: Final = "CLIENT_INNER_PRODUCER"
FIRST_LEVEL: Final = 3
LAST_LEVEL: Final = 18
_BODY_BYTES_MAX: Final = (16 << 20) - 65_536
# Properties that broker or client added for the failed delivery.
_OF_DELIVERY: Final = (names.TRAN_MSG, names.POP_CK, names.INNER_NUM, names.INNER_BASE, "MIN_OFFSET", "MAX_OFFSET")


class _BackSender(Sender):
    """A sender with a limit of deliveries in the header; -1: the setting of the group."""

    def __init__(self, wire: Wire, max_reconsume_times: int) -> None:
        super().__init__(wire)
        self._max_reconsume_times = max_reconsume_times

    def _head(self, out: PreparedMessage, queue: MessageQueue) -> HeaderTemplate:
        head = super()._head(out, queue)
        if self._max_reconsume_times < 0:
            return head
        limited = HeaderTemplate(head.code, {**head.fields, "l": self._max_reconsume_times}, VERSION, LANGUAGE)
        limited.queue = head.queue
        return limited


def publish_back(
    instance: ClientInstance,
    group: str,
    message: Delivery,
    *,
    delay_level: int = 0,
    max_reconsume_times: int = -1,
    timeout_s: float = 3.0,
) -> RequestSteps[None]:
    """Publish the message for the next delivery, or for the dead-letter queue.

    Args: as ``send_message_back``. Raises: as a send; the message may be stored then.
    """
    retry_topic = RETRY_PREFIX + group
    pairs = {name: value for name, value in message.properties.items() if name not in _OF_DELIVERY}
    first_topic = pairs.get(names.RETRY_TOPIC) if message.record_topic == retry_topic else None
    level = delay_level or FIRST_LEVEL + message.reconsume_times
    if delay_level < 0:
        max_reconsume_times = 0  # the broker puts the message into the dead-letter queue
    pairs |= {
        names.UNIQ_KEY: message.msg_id,
        names.RETRY_TOPIC: first_topic or message.record_topic,
        names.ORIGIN_MESSAGE_ID: pairs.get(names.ORIGIN_MESSAGE_ID) or message.msg_id,
        names.DELAY: str(max(1, min(level, LAST_LEVEL))),
    }
    if {queue.broker_name for queue in instance.routes.publish_queues(retry_topic)} <= {message.source.broker_name}:
        with contextlib.suppress(ClientError):  # other brokers may have the topic since
            yield from instance.route(retry_topic, timeout_s=timeout_s, refresh=True)
    again = Message(retry_topic, message.body, flag=message.flag, reconsume_times=message.reconsume_times + 1)
    wire = Wire(GROUP, Compressor(4096), _BODY_BYTES_MAX)
    out = prepared(again, wire, pairs)
    yield from _BackSender(wire, max_reconsume_times).send(instance, out, SendOptions(timeout_s))
