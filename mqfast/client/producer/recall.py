"""Recall of a timed message that was not delivered yet: the steps of request code 370.

Source: DefaultMQProducerImpl.recallMessage, RecallMessageHandle.
"""

from __future__ import annotations

import base64
import binascii

from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import Request, RequestSteps, checked
from mqfast.client.producer.send import Sender
from mqfast.client.producer.trace import Tracer
from mqfast.client.route.namespace import unwrap
from mqfast.errors import BrokerError, ClientUsageError, ConnectError
from mqfast.remoting.codes import RequestCode

__all__ = ["broker_of_handle", "recall"]


def _parts(handle: object) -> list[str]:
    """Return version, topic, broker, time and msg_id of a handle. Raises: UsageError for another text."""
    expected = "recall_handle: expected that of a SendResult"
    if not isinstance(handle, str):
        raise ClientUsageError(f"{expected}, found {handle!r}")
    try:
        parts = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except (ValueError, binascii.Error):
        parts = []
    if len(parts) != 5 or parts[0] != "v1":
        raise ClientUsageError(f"{expected}, found {handle[:80]!r}")
    return parts


def broker_of_handle(handle: object) -> str:
    """Return the broker that a recall handle names. Raises: UsageError for another text."""
    return _parts(handle)[2]


def recall(
    instance: ClientInstance, sender: Sender, topic: str, handle: str, timeout_s: float, tracer: Tracer | None = None
) -> RequestSteps[str]:
    """Recall a message. Args: topic: with its namespace. Returns: its unique id.

    Raises: UsageError, NoRoute, ConnectError, BrokerError (for example for a delivered message).
    """
    _, _, broker, _, msg_id = _parts(handle)
    if instance.routes.address(broker) is None:
        yield from sender.queues(instance, topic, timeout_s)
    address = instance.routes.address(broker)
    if address is None:
        raise ConnectError(f"topic {topic}: no known route names the master of broker {broker}")
    fields = {"producerGroup": sender.wire.group, "topic": topic, "recallHandle": handle, "bname": broker}
    answer = yield Request(address, RequestCode.RECALL_MESSAGE, fields, timeout_s=timeout_s)
    if tracer is not None:
        region = answer.ext_fields.get("MSG_REGION")
        tracer.recalled(unwrap(instance.settings.namespace, topic), msg_id, region, success=answer.code == 0)
    checked(answer, address, f"recall of a message of topic {topic}")
    recalled_id = answer.ext_fields.get("msgId")
    if not recalled_id:
        raise BrokerError(f"{address} answered a recall without msgId", code=answer.code, broker=address)
    return str(recalled_id)
