"""What a request needs: which actions on which topics, groups or the cluster.

Room: broker/acl. It must never decide: ACL 1.0 and 2.0 read the same list. Source: DefaultAuthorizationContextBuilder
and the annotations of the request headers of 5.5.0, PlainAccessResource of 5.2.0. Codes that both let pass without a
look, though they change something or show secrets, stand here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mqfast.broker.acl.kinds import Action, Kind
from mqfast.broker.clients.heartbeat import decode_heartbeat
from mqfast.message import decode_message_id
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode as R
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.once import ASK_ONCE, END_ONCE

__all__ = ["RETRY", "Need", "TopicAt", "needs_of"]

RETRY: Final = "%RETRY%"


TopicAt = Callable[[int], str | None]


class Need(NamedTuple):
    """One of these actions on this resource; the cluster has no name."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]


class _Named(Struct, rename="camel"):
    topic: str = ""


class _Lock(Struct, rename="camel"):
    consumer_group: str = ""
    mq_set: list[_Named] | None = None


class _Group(Struct, rename="camel"):
    group_name: str = ""


class _Groups(Struct, rename="camel"):
    group_config_list: list[_Group] = []


class _Topic(Struct, rename="camel"):
    topic_name: str = ""


class _Topics(Struct, rename="camel"):
    topic_config_list: list[_Topic] = []


def needs_of(request: RemotingCommand, topic_at: TopicAt) -> list[Need]:
    """All that a request needs.

    Args: topic_at: physical offset -> topic of the message there, None where there is none.
    Raises: FieldError for a body or a field that cannot be read.
    """
    code = request.code
    if code in _CLUSTER_UPDATE:
        return [Need(Kind.CLUSTER, "", (Action.UPDATE,))]
    if code in _CLUSTER_GET:
        return [Need(Kind.CLUSTER, "", (Action.GET,))]
    row = _ROWS.get(code)
    if row is not None:
        found = list(_of_fields(request.ext_fields, *row))
        if code in (R.VIEW_MESSAGE_BY_ID, R.CONSUME_MESSAGE_DIRECTLY):
            found += _of_message(request, topic_at)
        if not found and not _CHANGES.isdisjoint(row[0]):
            found.append(Need(Kind.CLUSTER, "", _UPDATE))
        return found
    special = _SPECIAL.get(code)
    return [] if special is None else list(special(request))


def _topic(name: str, *actions: Action) -> Need:
    """A retry topic belongs to its group."""
    if name.startswith(RETRY):
        return Need(Kind.GROUP, name.removeprefix(RETRY), actions)
    return Need(Kind.TOPIC, name, actions)


def _group(name: str, *actions: Action) -> Need:
    return Need(Kind.GROUP, name.removeprefix(RETRY), actions)


def _of_fields(
    fields: dict[str, Any], actions: tuple[Action, ...], topics: tuple[str, ...], groups: tuple[str, ...]
) -> Iterator[Need]:
    for field in topics:
        for name in str(fields.get(field) or "").split(";"):
            if name:
                yield _topic(name, *actions)
    for field in groups:
        if name := str(fields.get(field) or ""):
            yield _group(name, *actions)


def _of_message(request: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:
    """The topic of the message that is asked for, whatever topic the request names."""
    fields = request.ext_fields
    try:
        if request.code == R.VIEW_MESSAGE_BY_ID:
            offset = int(fields["offset"])
        elif not fields.get("msgId"):
            return
        else:
            offset = decode_message_id(fields["msgId"]).physical_offset
    except (LookupError, ValueError):
        return  # the handler answers what is wrong
    topic = topic_at(offset)
    if topic is not None:
        yield _topic(topic, Action.SUB, Action.GET)


def _send(request: RemotingCommand) -> Iterator[Need]:
    """The topic's own group counts for a retry topic, not the group that the sender names."""
    name = str(request.ext_fields.get("topic" if request.code in _LONG_NAMES else "b") or "")
    need = _topic(name, Action.PUB)
    yield need._replace(actions=(Action.SUB,)) if need.kind is Kind.GROUP else need


def _pull(request: RemotingCommand) -> Iterator[Need]:
    fields = request.ext_fields
    yield _topic(str(fields.get("topic") or ""), Action.SUB)
    yield _group(str(fields.get("consumerGroup") or ""), Action.SUB)


def _heartbeat(request: RemotingCommand) -> Iterator[Need]:
    for consumer in decode_heartbeat(request.body).consumer_data_set or ():
        yield _group(consumer.group_name, Action.SUB)
        for subscription in consumer.subscription_data_set or ():
            if not subscription.topic.startswith(RETRY):
                yield _topic(subscription.topic, Action.SUB)


def _lock(request: RemotingCommand) -> Iterator[Need]:
    body = decode_body(request.body, _Lock, "body")
    yield _group(body.consumer_group, Action.SUB)
    for name in sorted({queue.topic for queue in body.mq_set or ()}):
        if not name.startswith(RETRY):
            yield _topic(name, Action.SUB)


def _new_group(request: RemotingCommand) -> Iterator[Need]:
    yield _group(decode_body(request.body, _Group, "body").group_name, Action.CREATE, Action.UPDATE)


def _new_groups(request: RemotingCommand) -> Iterator[Need]:
    for one in decode_body(request.body, _Groups, "body").group_config_list:
        yield _group(one.group_name, Action.CREATE, Action.UPDATE)


def _new_topics(request: RemotingCommand) -> Iterator[Need]:
    for one in decode_body(request.body, _Topics, "body").topic_config_list:
        yield _topic(one.topic_name, Action.CREATE)


_LONG_NAMES: Final = frozenset({R.SEND_MESSAGE, R.SEND_REPLY_MESSAGE})
_SPECIAL: Final[dict[int, Callable[[RemotingCommand], Iterator[Need]]]] = {
    R.SEND_MESSAGE: _send,
    R.SEND_MESSAGE_V2: _send,
    R.SEND_BATCH_MESSAGE: _send,
    R.SEND_REPLY_MESSAGE: _send,
    R.SEND_REPLY_MESSAGE_V2: _send,
    R.PULL_MESSAGE: _pull,
    R.LITE_PULL_MESSAGE: _pull,
    R.HEART_BEAT: _heartbeat,
    R.LOCK_BATCH_MQ: _lock,
    R.UNLOCK_BATCH_MQ: _lock,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _new_group,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _new_groups,
    R.UPDATE_AND_CREATE_TOPIC_LIST: _new_topics,
}
_PUB, _SUB, _GET, _UPDATE = (Action.PUB,), (Action.SUB,), (Action.GET,), (Action.UPDATE,)
_CHANGES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})
_SUB_GET, _SUB_UPDATE, _TOPIC = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE), ("topic",)
# Code -> actions, fields with topics, fields with groups.
_ROWS: Final[dict[int, tuple[tuple[Action, ...], tuple[str, ...], tuple[str, ...]]]] = {
    R.RECALL_MESSAGE: (_PUB, _TOPIC, ()),
    R.END_TRANSACTION: (_PUB, _TOPIC, ()),
    ASK_ONCE: (_PUB, _TOPIC, ()),
    END_ONCE: (_PUB, _TOPIC, ()),
    R.CONSUMER_SEND_MSG_BACK: (_SUB, (), ("group",)),
    R.QUERY_MESSAGE: (_SUB_GET, _TOPIC, ()),
    R.VIEW_MESSAGE_BY_ID: (_GET, _TOPIC, ()),
    R.UNREGISTER_CLIENT: (_SUB, (), ("consumerGroup",)),
    R.GET_CONSUMER_LIST_BY_GROUP: (_SUB_GET, (), ("consumerGroup",)),
    R.QUERY_CONSUMER_OFFSET: (_SUB_GET, _TOPIC, ("consumerGroup",)),
    R.UPDATE_CONSUMER_OFFSET: (_SUB_UPDATE, _TOPIC, ("consumerGroup",)),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (_GET, _TOPIC, ()),
    R.GET_MAX_OFFSET: (_GET, _TOPIC, ()),
    R.GET_MIN_OFFSET: (_GET, _TOPIC, ()),
    R.GET_EARLIEST_MSG_STORETIME: (_GET, _TOPIC, ()),
    R.GET_TOPIC_STATS_INFO: (_GET, _TOPIC, ()),
    R.GET_TOPIC_CONFIG: (_GET, _TOPIC, ()),
    R.QUERY_TOPIC_CONSUME_BY_WHO: (_GET, _TOPIC, ()),
    R.GET_CONSUMER_CONNECTION_LIST: (_GET, (), ("consumerGroup",)),
    R.GET_CONSUMER_RUNNING_INFO: (_GET, (), ("consumerGroup",)),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: (_GET, (), ("group",)),
    R.QUERY_TOPICS_BY_CONSUMER: (_GET, (), ("group",)),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: (_GET, _TOPIC, ("group",)),
    R.QUERY_CONSUME_TIME_SPAN: (_GET, _TOPIC, ("group",)),
    R.QUERY_CONSUME_QUEUE: (_GET, _TOPIC, ("consumerGroup",)),
    R.QUERY_CORRECTION_OFFSET: (_GET, _TOPIC, ("compareGroup",)),
    R.GET_CONSUME_STATS: (_GET, ("topic", "topicList"), ("consumerGroup",)),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_GET, _TOPIC, ("group",)),
    R.CONSUME_MESSAGE_DIRECTLY: (_SUB, _TOPIC, ("consumerGroup",)),
    R.INVOKE_BROKER_TO_RESET_OFFSET: (_UPDATE, _TOPIC, ("group",)),
    R.CLONE_GROUP_OFFSET: (_UPDATE, _TOPIC, ("srcGroup", "destGroup")),
    R.RESUME_CHECK_HALF_MESSAGE: (_UPDATE, _TOPIC, ()),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: (_UPDATE, _TOPIC, ("group",)),
    R.UPDATE_AND_CREATE_TOPIC: ((Action.CREATE,), _TOPIC, ()),
    R.DELETE_TOPIC_IN_BROKER: ((Action.DELETE,), _TOPIC, ()),
    R.DELETE_SUBSCRIPTIONGROUP: ((Action.DELETE,), (), ("groupName",)),
}
_UPDATE_COLD_DATA, _REMOVE_COLD_DATA, _SET_READ_MODE = 2001, 2002, 2004
_CLUSTER_UPDATE: Final[frozenset[int]] = frozenset(
    {
        R.UPDATE_BROKER_CONFIG, R.UPDATE_AND_CREATE_ACL_CONFIG, R.DELETE_ACL_CONFIG, R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        R.CLEAN_EXPIRED_CONSUMEQUEUE, R.CLEAN_UNUSED_TOPIC, R.DELETE_EXPIRED_COMMITLOG, R.SET_MESSAGE_REQUEST_MODE,
        R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER, R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL,
        R.AUTH_DELETE_ACL, _UPDATE_COLD_DATA, _REMOVE_COLD_DATA, _SET_READ_MODE,
    }
)  # fmt: skip
_CLUSTER_GET: Final = frozenset(
    {
        R.GET_BROKER_HA_STATUS, R.GET_BROKER_EPOCH_CACHE,
        R.GET_BROKER_CONFIG, R.GET_BROKER_CLUSTER_ACL_CONFIG, R.GET_ALL_PRODUCER_INFO, R.GET_PRODUCER_CONNECTION_LIST,
        R.VIEW_BROKER_STATS_DATA, R.AUTH_GET_USER, R.AUTH_LIST_USER, R.AUTH_GET_ACL, R.AUTH_LIST_ACL,
        R.GET_ALL_CONSUMER_OFFSET, R.GET_ALL_DELAY_OFFSET, R.GET_TIMER_CHECK_POINT, R.GET_TIMER_METRICS,
    }
)  # fmt: skip


build_tables(__name__)
