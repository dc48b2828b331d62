"""The heartbeat of a client, every 30 seconds (34): its groups and their subscriptions.

The format of every client version is accepted: missing fields have Java's defaults, numbers may be text. Source:
HeartbeatData, ConsumerData, SubscriptionData.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from mqfast.errors import FieldError
from mqfast.remoting.bodies import build_tables, decode_request

__all__ = ["ACTIVELY", "ConsumerData", "Heartbeat", "ProducerData", "SubscriptionData", "decode_heartbeat"]

PASSIVELY: Final = "CONSUME_PASSIVELY"
ACTIVELY: Final = "CONSUME_ACTIVELY"
CLUSTERING: Final = "CLUSTERING"
TAG: Final = "TAG"


class SubscriptionData(Struct, rename="camel"):
    """A topic of a group; ``sub_version`` grows with each change, in ms or ns by choice of the client."""

    topic: str
    sub_string: str = ""
    tags_set: list[str] | None = None
    code_set: list[int] | None = None
    sub_version: int = 0
    expression_type: str | None = TAG
    class_filter_mode: bool = False


class ConsumerData(Struct, rename="camel"):
    """A consumer group of a client."""

    group_name: str
    consume_type: str = PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str | int | None = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False
    subscription_data_set: list[SubscriptionData] | None = None


class ProducerData(Struct, rename="camel"):
    """A producer group of a client."""

    group_name: str


class Heartbeat(Struct, rename="camel"):
    """Body of 34."""

    client_id: str = field(name="clientID")
    consumer_data_set: list[ConsumerData] | None = None
    producer_data_set: list[ProducerData] | None = None
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Decode the body of 34. Raises: FieldError."""
    heartbeat = decode_request(body, Heartbeat, "body")
    if not heartbeat.client_id:
        raise FieldError("body.clientID", "a name", "an empty one")
    return heartbeat


build_tables(__name__)
