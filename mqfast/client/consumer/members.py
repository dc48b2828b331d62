"""The members of a group, from a broker of the topic.

Request steps without I/O. Without an answer the steps raise: the caller keeps its queues. Source:
MQClientInstance.findConsumerIdList.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec import Struct

from mqfast.client.net.request_steps import Request, RequestSteps, checked
from mqfast.client.route.route_table import MASTER_ID
from mqfast.errors import CallTimeout, ClientError, ConnectionLost, FieldError, NoRoute
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode

if TYPE_CHECKING:
    from mqfast.client.net.instance import ClientInstance

__all__ = ["group_members"]


class _Members(Struct, rename="camel"):
    consumer_id_list: list[str] = []


def group_members(
    instance: ClientInstance, group: str, topic: str, *, timeout_s: float = 3.0
) -> RequestSteps[list[str]]:
    """Request the client ids of a group (38) from the brokers of the topic in turn, until a broker has members.

    Returns: a list that is not empty. Raises: the error of the last broker; NoRoute for a topic without brokers.
    """
    route = instance.routes.get(topic)
    brokers = [] if route is None else list(route.brokers.values())
    random.shuffle(brokers)
    error: Exception = NoRoute(f"topic {topic}: no broker is known")
    for broker in brokers:
        if not broker.addresses:
            continue
        address = broker.addresses.get(MASTER_ID) or next(iter(broker.addresses.values()))
        try:
            answer = yield Request(
                address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, b"", timeout_s
            )
            checked(answer, address, f"members of group {group}")
            ids = decode_body(bytes(answer.body), _Members, f"members of group {group}").consumer_id_list
            if ids:
                return ids
            error = ClientError(f"group {group}: {address} knows no member")
        except (ClientError, ConnectionLost, CallTimeout, FieldError) as failure:
            error = failure
    raise error


build_tables(__name__)
