"""One pull of one queue, as steps: the request, and what its answer says.

Room: client. It must never do I/O, keep a position or decide what to pull next. Source: PullAPIWrapper, PullSysFlag,
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
_LONGER_S: Final = 15.0  # than the broker holds the pull: RocketMQ's 30 s for 15 s
_STATUS: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


# Words of brokers: an admin reset the offset; the messages from the offset on are deleted, or about to be.
_RESET: Final = "OFFSET_RESET"
_GONE: Final = ("MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL")


class _Header(Struct, rename="camel"):
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0


class PullAnswer(NamedTuple):
    """What one pull found.

    Attributes: ``messages``: those that the subscription wants; ``filtered``: how many the client itself left out;
        ``next_offset``: where the next pull begins; ``broker_id``: which broker of the name to ask next; ``remark``:
        the broker's own words; ``asked_offset``: where this pull began.
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
        """Did somebody reset the group's offset, so that the group goes on at ``next_offset``?"""
        if self.status is not PullStatus.OFFSET_ILLEGAL:
            return False
        return self.remark == _RESET or self.min_offset <= self.asked_offset <= self.max_offset

    @property
    def leads_nowhere(self) -> bool:
        """Did the broker serve nothing, and sends to another one for the same offset, as a slave that is not read?"""
        return self.status is PullStatus.NO_MATCHED_MSG and self.next_offset <= self.asked_offset

    @property
    def is_moved(self) -> bool:
        """Is the offset no place in the queue: messages were deleted, or the queue ends before it?"""
        if self.status is PullStatus.OFFSET_ILLEGAL:
            return not self.is_reset
        return self.remark in _GONE and self.next_offset > self.asked_offset


class TopicGone(NoRoute):
    """A broker does not have the topic any more; what it has under this name later is another one, from 0 on."""


class RawAnswer(NamedTuple):
    """What one pull found, its records as the broker sent them; otherwise as PullAnswer."""

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
    """Ask a broker for messages from ``offset`` on.

    Args:
        suspend_s: how long the broker holds the request while there is no message, seconds; 0: it answers at once.
        commit_offset: the group's offset, which the broker takes as committed; None: nothing is committed.
        post_subscription: send the expression along, for a client whose heartbeat does not name the topic.
        timeout_s: for the answer; None: ``suspend_s`` and 15 s.
    Raises: BrokerError and its kinds, NoRoute; ClientError for an answer that makes no sense; what a shell throws.
    """
    found = yield from raw_pull(
        address, group, queue, offset, subscription, max_count=max_count, suspend_s=suspend_s,
        commit_offset=commit_offset, post_subscription=post_subscription, is_lite=is_lite, timeout_s=timeout_s,
    )  # fmt: skip
    try:
        is_found = found.status is PullStatus.FOUND
        messages, rest = decode_pulled(found.records, source) if is_found else ([], None)
    except (FieldError, CorruptFile) as error:
        raise _nonsense(address, queue, offset, 0, error) from error
    if messages and messages[0].is_part:  # the pull began within a record of several messages
        messages = [one for one in messages if one.queue_offset >= offset]
    wanted = messages if subscription.is_all else [one for one in messages if subscription.wants(one)]
    return PullAnswer(
        found.status,
        wanted,
        found.next_offset if rest is None else rest,
        found.min_offset,
        found.max_offset,
        found.broker_id,
        len(messages) - len(wanted),
        found.remark,
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
    """As ``pull``, without a look at the records. Args: max_bytes: of the answer; brokers of 4.x do not know that."""
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
