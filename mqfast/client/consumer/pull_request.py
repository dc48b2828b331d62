"""A pull of a queue, as request steps without I/O: the request and the decoded answer.
Source: PullAPIWrapper, PullSysFlag,
MQClientAPIImpl.processPullResponse.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec import Struct

from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Delivery, Source, decode_pulled
from mqfast.client.net.request_steps import Request, RequestSteps, checked
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import ClientError, CorruptFile, FieldError, NoRoute
from mqfast.remoting.bodies import build_tables, header_of
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["PullAnswer", "RawAnswer", "pull", "raw_pull"]

_COMMIT, _SUSPEND, _SUBSCRIPTION, _LITE = 1, 2, 4, 16
_LONGER_S: Final = 15.0  # longer than the broker holds the pull: in RocketMQ 30 s for 15 s
_STATUS: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


# Remarks of brokers: an admin reset the offset; the messages from the offset on are deleted, or will be soon.
_RESET: Final = "OFFSET_RESET"
_GONE: Final = ("MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL")


class _Header(Struct, rename="camel"):
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0


class PullAnswer(NamedTuple):
    """The result of a pull.

    Attributes: ``messages``: those that match the subscription; ``filtered``: messages that the client has filtered;
        ``next_offset``: the offset of the next pull; ``broker_id``: the id of the broker for the next pull;
        ``remark``: of the broker; ``asked_offset``: the offset of this pull.
    """

    status: PullStatus
    messages: list[Delivery]
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0
    filtered: int = 0
    remark: str = ""
    asked_offset: int = 0

    @property
    def is_reset(self) -> bool:
        """Return whether an admin has reset the offset of the group to ``next_offset``."""
        if self.status is not PullStatus.OFFSET_ILLEGAL:
            return False
        return self.remark == _RESET or self.min_offset <= self.asked_offset <= self.max_offset

    @property
    def leads_nowhere(self) -> bool:
        """Return whether the broker redirects the same offset to another broker, as a slave without reads does."""
        return self.status is PullStatus.NO_MATCHED_MSG and self.next_offset <= self.asked_offset

    @property
    def is_moved(self) -> bool:
        """Return whether the offset is outside of the queue: messages were deleted, or the queue ends before."""
        if self.status is PullStatus.OFFSET_ILLEGAL:
            return not self.is_reset
        return self.remark in _GONE and self.next_offset > self.asked_offset


class TopicGone(NoRoute):
    """The topic was deleted at a broker; a later topic of this name has offsets from 0 again."""


class RawAnswer(NamedTuple):
    """The result of a pull with the encoded records; otherwise as PullAnswer."""

    status: PullStatus
    records: bytes | bytearray | memoryview
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int
    remark: str


def pull(
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    source: Source,
    *,
    max_count: int = 32,
    suspend_s: float = 0.0,
    commit_offset: int | None = None,
    post_subscription: bool = False,
    is_lite: bool = False,
    timeout_s: float | None = None,
) -> RequestSteps[PullAnswer]:
    """Request messages from ``offset`` on.

    Args:
        suspend_s: how long the broker holds the request while there is no message, seconds; 0: immediate answer.
        commit_offset: the offset that the broker commits for the group; None: nothing is committed.
        post_subscription: send the expression too, for a client whose heartbeat does not name the topic.
        timeout_s: for the answer; None: ``suspend_s`` and 15 s.
    Raises: BrokerError and its subclasses, NoRoute; ClientError for an invalid answer; the errors of the driver.
    """
    raw = yield from raw_pull(
        address, group, queue, offset, subscription, max_count=max_count, suspend_s=suspend_s,
        commit_offset=commit_offset, post_subscription=post_subscription, is_lite=is_lite, timeout_s=timeout_s,
    )  # fmt: skip
    try:
        is_found = raw.status is PullStatus.FOUND
        messages, rest = decode_pulled(raw.records, source) if is_found else ([], None)
    except (FieldError, CorruptFile) as error:
        raise _nonsense(address, queue, offset, 0, error) from error
    if messages and messages[0].is_part:  # the pull began within a record of several messages
        messages = [message for message in messages if message.queue_offset >= offset]
    wanted = messages if subscription.is_all else [message for message in messages if subscription.wants(message)]
    return PullAnswer(
        raw.status,
        wanted,
        raw.next_offset if rest is None else rest,
        raw.min_offset,
        raw.max_offset,
        raw.broker_id,
        len(messages) - len(wanted),
        raw.remark,
        offset,
    )


def raw_pull(
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    max_count: int = 32,
    max_bytes: int | None = None,
    suspend_s: float = 0.0,
    commit_offset: int | None = None,
    post_subscription: bool = False,
    is_lite: bool = False,
    timeout_s: float | None = None,
) -> RequestSteps[RawAnswer]:
    """Pull without decoding the records, else as ``pull``. Args: max_bytes: of the answer; ignored by 4.x brokers."""
    flags = _LITE if is_lite else 0
    fields: dict[str, Any] = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "maxMsgNums": max_count,
        "commitOffset": 0,
        "suspendTimeoutMillis": round(suspend_s * 1000),
        "subVersion": subscription.version,
        "expressionType": subscription.kind,
        "bname": queue.broker_name,
    }
    if max_bytes is not None:
        fields["maxMsgBytes"] = max_bytes
    if commit_offset is not None and commit_offset > 0:
        flags |= _COMMIT
        fields["commitOffset"] = commit_offset
    if suspend_s > 0:
        flags |= _SUSPEND
    if post_subscription:
        flags |= _SUBSCRIPTION
        fields["subscription"] = subscription.expression
    fields["sysFlag"] = flags
    code = RequestCode.LITE_PULL_MESSAGE if is_lite else RequestCode.PULL_MESSAGE
    texts = {name: str(value) for name, value in fields.items()}
    answer = yield Request(address, code, texts, b"", suspend_s + _LONGER_S if timeout_s is None else timeout_s)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise TopicGone(f"{_about(queue, offset)}: {address} answered code 17 {answer.remark or ''!r}")
    checked(answer, address, _about(queue, offset), *_STATUS)
    try:
        header = header_of(answer, _Header)
    except FieldError as error:
        raise _nonsense(address, queue, offset, answer.code, error) from error
    return RawAnswer(
        _STATUS[answer.code],
        answer.body,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
        answer.remark or "",
    )


def _about(queue: MessageQueue, offset: int) -> str:
    return f"pull of {queue.topic}/{queue.broker_name}/{queue.queue_id} from {offset}"


def _nonsense(address: str, queue: MessageQueue, offset: int, code: int, error: Exception) -> ClientError:
    return ClientError(f"{_about(queue, offset)}: {address} answered code {code} and what is no answer: {error}")


build_tables(__name__)
