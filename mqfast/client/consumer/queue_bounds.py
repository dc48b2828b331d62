"""Requests about a queue: minimum and maximum offset, the offset of a time, the consumer offset of a group.

Request steps without I/O; an answer that cannot be decoded is an error. Source: MQAdminImpl,
MQClientAPIImpl, RebalancePushImpl.computePullFromWhere.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from mqfast.client.net.request_steps import Request, RequestSteps, checked
from mqfast.client.route.namespace import RETRY_PREFIX
from mqfast.client.values import MessageQueue, milliseconds
from mqfast.errors import BrokerError, ClientConfigError, NoRoute
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.util.java_text import java_whole
from mqfast.util.offset_words import end_word

if TYPE_CHECKING:
    from mqfast.client.net.instance import ClientInstance

__all__ = [
    "FromWhere",
    "check_from_where",
    "first_offset",
    "max_offset",
    "min_offset",
    "number_field",
    "offset_at",
    "read_place",
    "stored_offset",
    "store_offset",
    "where_of_new",
]

FromWhere = Literal["latest", "earliest"] | datetime
"""The start of a group without an offset: after the last message, at the first message, or at a time."""
TIMEOUT_S: Final = 5.0


def check_from_where(given: object) -> FromWhere:
    """Check an argument ``from_where``; the words ``last`` and ``first`` mean ``latest`` and ``earliest``.

    Raises: ConfigError.
    """
    where = end_word(given)
    if isinstance(where, datetime):
        return where
    if where == "latest":
        return "latest"
    if where == "earliest":
        return "earliest"
    raise ClientConfigError(f"from_where: expected 'latest', 'earliest' or a datetime, found {given!r}")


def where_of_new(from_where: FromWhere, *, was_lost: bool, since_ms: int | None) -> FromWhere:
    """Return the start of a group in a queue without a consumer offset.

    Args: was_lost: the topic was deleted and created again: the start is the first message, whatever ``from_where``.
        since_ms: broadcasting: time of the subscription, for a queue that was created later: messages of that time or
        later count as new.
    """
    if was_lost:
        return "earliest"
    if from_where == "latest" and since_ms is not None:
        return datetime.fromtimestamp(since_ms / 1000, UTC)
    return from_where


def read_place(
    instance: ClientInstance, queue: MessageQueue, broker_id: int = 0, *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[tuple[int, str]]:
    """Return (broker id, address) to read a queue from; request the route if no broker of that name is known.

    Raises: NoRoute, ConnectError.
    """
    place = instance.routes.read_address(queue.broker_name, broker_id)
    if place is None:
        yield from instance.route(queue.topic, timeout_s=timeout_s, refresh=True)
        place = instance.routes.read_address(queue.broker_name, broker_id)
    if place is None:
        known = ", ".join(sorted(instance.routes.brokers)) or "none"
        raise NoRoute(f"{queue}: expected a broker {queue.broker_name} in the route of its topic, found {known}")
    return place


def number_field(answer: RemotingCommand, name: str, address: str) -> int:
    """Return a whole number from the header of an answer. Raises: BrokerError."""
    value = answer.ext_fields.get(name)
    try:
        return java_whole(str(value))
    except ValueError:
        text = f"{address} answered code {answer.code}: field {name}: expected a whole number, found {value!r}"
        raise BrokerError(text, code=answer.code, remark=answer.remark or "", broker=address) from None


def _offset_of(
    instance: ClientInstance, code: int, queue: MessageQueue, timeout_s: float, **more: str
) -> RequestSteps[int]:
    _, address = yield from read_place(instance, queue, timeout_s=timeout_s)
    fields: dict[str, Any] = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name, **more}
    answer = yield Request(address, code, fields, timeout_s=timeout_s)
    return number_field(checked(answer, address, str(queue)), "offset", address)


def max_offset(instance: ClientInstance, queue: MessageQueue, *, timeout_s: float = TIMEOUT_S) -> RequestSteps[int]:
    """Request the offset after the last message (30)."""
    return (yield from _offset_of(instance, RequestCode.GET_MAX_OFFSET, queue, timeout_s))


def min_offset(instance: ClientInstance, queue: MessageQueue, *, timeout_s: float = TIMEOUT_S) -> RequestSteps[int]:
    """Request the offset of the first message (31)."""
    return (yield from _offset_of(instance, RequestCode.GET_MIN_OFFSET, queue, timeout_s))


def offset_at(
    instance: ClientInstance, queue: MessageQueue, time_ms: int, *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[int]:
    """Request the offset of the first message stored at a time or later, or the offset after the last message (29)."""
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    return (yield from _offset_of(instance, code, queue, timeout_s, timestamp=str(time_ms), boundaryType="LOWER"))


def stored_offset(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    *,
    zero_if_new: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> RequestSteps[int | None]:
    """Request the consumer offset of a group at the broker (14); None: there is none.

    For a new group a broker answers 0 while the whole queue is in memory: the group begins at the first message.

    Args: zero_if_new: False: request None instead of that 0 (brokers before 5.0 answer 0 in any case).
    Raises: BrokerError, ConnectError, ConnectionLost, CallTimeout: the offset is unknown.
    """
    _, address = yield from read_place(instance, queue, timeout_s=timeout_s)
    fields = {
        "consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name,
    }  # fmt: skip
    if not zero_if_new:
        fields["setZeroIfNotFound"] = "false"
    answer = yield Request(address, RequestCode.QUERY_CONSUMER_OFFSET, fields, timeout_s=timeout_s)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    offset = number_field(checked(answer, address, f"offset of group {group} in {queue}"), "offset", address)
    return offset if offset >= 0 else None


def store_offset(
    instance: ClientInstance, group: str, queue: MessageQueue, offset: int, *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[None]:
    """Commit the offset of a group at the broker (15), and wait for the answer. Raises: as ``stored_offset``."""
    _, address = yield from read_place(instance, queue, timeout_s=timeout_s)
    fields = {
        "consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id), "commitOffset": str(offset),
        "bname": queue.broker_name,
    }  # fmt: skip
    answer = yield Request(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields, timeout_s=timeout_s)
    checked(answer, address, f"offset {offset} of group {group} in {queue}")


def end_before(
    instance: ClientInstance, queue: MessageQueue, from_where: FromWhere, *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[int | None]:
    """Request the end of a queue before the offset of the group, for a group that begins at the end.

    In the other order a message that is stored between both requests would be skipped.
    Returns: None if a new group begins elsewhere.
    """
    if from_where != "latest" or queue.topic.startswith(RETRY_PREFIX):
        return None
    return (yield from max_offset(instance, queue, timeout_s=timeout_s))


def first_offset(
    instance: ClientInstance, queue: MessageQueue, from_where: FromWhere, *, timeout_s: float = TIMEOUT_S
) -> RequestSteps[int]:
    """Request the start of a group without an offset, by RocketMQ's rules.

    ``"latest"``: after the last message, but at 0 in a retry topic; ``"earliest"``: at 0; a datetime: at the first
    message of that time, but behind the last message in a retry topic.
    """
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if from_where == "earliest" or (from_where == "latest" and is_retry):
        return 0
    if from_where == "latest" or is_retry:
        return (yield from max_offset(instance, queue, timeout_s=timeout_s))
    assert isinstance(from_where, datetime)
    return (yield from offset_at(instance, queue, milliseconds(from_where), timeout_s=timeout_s))
