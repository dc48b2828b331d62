"""Requests of a consumer for its group: locks of queues, messages sent back, checks of SQL expressions.

Request steps without I/O; every error is raised to the caller. Source: MQClientAPIImpl,
RebalanceImpl.lock, DefaultMQPushConsumerImpl.sendMessageBack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mqfast.client.consumer.queue_bounds import read_place
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Delivery
from mqfast.client.net.request_steps import Request, RequestSteps, broker_error, checked
from mqfast.client.values import MessageQueue
from mqfast.errors import BrokerError, ClientError, FieldError, NoRoute, SubscriptionError
from mqfast.remoting.bodies import build_tables, decode_body, encode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqfast.client.net.instance import ClientInstance

__all__ = ["check_sql", "send_message_back", "lock_queues", "unlock_queues"]

TIMEOUT_S: Final = 3.0


class _Queue(Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


class _Locked(Struct):
    lockOKMQSet: list[_Queue] | None = None


def _decoded(body: Any, kind: type[Any], address: str, what: str) -> Any:
    try:
        return decode_body(bytes(body), kind, what)
    except FieldError as error:
        raise ClientError(f"{address} answered with what is no answer: {error}") from error


def _lock_body(instance: ClientInstance, group: str, queues: Iterable[MessageQueue]) -> bytes:
    rows = [{"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic} for queue in queues]
    return encode_body({"clientId": instance.client_id, "consumerGroup": group, "mqSet": rows, "onlyThisBroker": False})


def lock_queues(
    instance: ClientInstance, group: str, queues: Sequence[MessageQueue], *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[set[MessageQueue]]:
    """Lock queues of a broker for this client, or renew the locks (41). Returns: the locked queues."""
    address = _master(instance, queues[0].broker_name, "lock")
    answer = yield Request(
        address, RequestCode.LOCK_BATCH_MQ, None, _lock_body(instance, group, queues), timeout_s=timeout_s
    )
    checked(answer, address, f"locks of group {group}")
    locked = _decoded(answer.body, _Locked, address, "lockOKMQSet").lockOKMQSet or []
    return {MessageQueue(row.topic, row.broker_name, row.queue_id) for row in locked} & set(queues)


def unlock_queues(
    instance: ClientInstance, group: str, queues: Sequence[MessageQueue], *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[None]:
    """Release the locks of queues of a broker (42), and wait for the answer."""
    address = _master(instance, queues[0].broker_name, "unlock")
    answer = yield Request(
        address, RequestCode.UNLOCK_BATCH_MQ, None, _lock_body(instance, group, queues), timeout_s=timeout_s
    )
    checked(answer, address, f"locks of group {group}")


def _master(instance: ClientInstance, broker_name: str, what: str) -> str:
    address = instance.routes.address(broker_name)
    if address is None:
        raise NoRoute(f"{what}: no address of the master of {broker_name} is known")
    return address


def send_message_back(
    instance: ClientInstance,
    group: str,
    message: Delivery,
    *,
    delay_level: int = 0,
    max_reconsume_times: int = -1,
    timeout_s: float = TIMEOUT_S,
) -> RequestSteps[None]:
    """Send a message back for its next delivery, or to the dead-letter queue of the group (36).

    Args:
        delay_level: 0: by the broker's schedule; -1: to the dead-letter queue now.
        max_reconsume_times: limit of deliveries; -1: the setting of the group at the broker, 16 by default.
    Raises: BrokerError if the broker has not stored the message; after an error of the driver the broker may have.
    """
    address = _master(instance, message.source.broker_name, "message given back")
    fields = {
        "offset": str(message.physical_offset),
        "group": group,
        "delayLevel": str(delay_level),
        "originMsgId": message.offset_msg_id,
        "originTopic": message.record_topic,
        "unitMode": "false",
        "bname": message.source.broker_name,
    }
    if max_reconsume_times >= 0:
        fields["maxReconsumeTimes"] = str(max_reconsume_times)
    answer = yield Request(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout_s=timeout_s)
    checked(answer, address, f"message {message.msg_id} given back by group {group}")


def check_sql(
    instance: ClientInstance, group: str, subscription: Subscription, *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[None]:
    """Let a broker check the SQL expression (46). Raises: SubscriptionError."""
    queues = instance.routes.subscribe_queues(subscription.topic)
    if not queues:
        return
    _, address = yield from read_place(instance, queues[0], timeout_s=timeout_s)
    body = {"clientId": instance.client_id, "group": group, "subscriptionData": subscription.as_json()}
    answer = yield Request(address, RequestCode.CHECK_CLIENT_CONFIG, None, encode_body(body), timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        error: BrokerError = broker_error(answer, address)
        text = f"topic {subscription.topic}, sql {subscription.expression!r}: {error}"
        raise SubscriptionError(text) from error


build_tables(__name__)
