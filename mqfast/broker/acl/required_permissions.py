"""The permissions that each request needs: actions on topics, groups or the cluster, in a table for all codes.

ACL 1.0 and 2.0, and the table of docs/broker.md, use the same list; the decision is made there. A code without an entry
is for administrators. Resources behind an offset or a message id are checked when the message is read
(``Rights.demand``), since a request may name another topic, or none. Source: DefaultAuthorizationContextBuilder and the
annotations of the request headers of 5.5.0, PlainAccessResource of 5.2.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from mqfast import properties as names
from mqfast.broker.acl.terms import Action, Kind
from mqfast.broker.metadata.topic_manager import DLQ_PREFIX, PARKED, RETRY_PREFIX, is_of_the_broker
from mqfast.remoting.bodies import LIST_BYTES_MAX, build_tables, decode_request
from mqfast.remoting.codes import RequestCode as R
from mqfast.remoting.command import RemotingCommand, pull_header, send_header
from mqfast.remoting.heartbeat import decode_heartbeat
from mqfast.remoting.once import ASK_ONCE, END_ONCE

__all__ = [
    "ADMIN_ONLY", "ANY", "NAME_MAX", "NEEDS", "Need", "RequestNeed", "needs_of", "of_group", "of_message", "of_popped",
    "of_topic",
]  # fmt: skip

CREATE, DELETE, GET, PUB, SUB, UPDATE = (
    Action.CREATE, Action.DELETE, Action.GET, Action.PUB, Action.SUB, Action.UPDATE,
)  # fmt: skip
ANY: Final = (PUB, SUB, GET)
"""Any of these on a topic or a group permits to see that the resource exists."""
NAME_MAX: Final = 255
"""Characters of the longest name of a resource whose needs are kept; longer names are those of nothing."""
REPLY_TOPIC: Final = "{}_REPLY_TOPIC"
_LIGHTS: Final = names.INNER_MULTI_DISPATCH.encode()


class Need(NamedTuple):
    """Alternative actions on a resource; the cluster has no name.

    Attributes: ``of_retry_topic``: the need on a group is that of the messages in its retry topic.
    """

    kind: Kind
    name: str
    actions: tuple[Action, ...]
    of_retry_topic: bool = False


class StoredFields(Protocol):
    """The part of a stored message that determines its permissions."""

    @property
    def topic(self) -> str:
        """Return the topic in which the message is stored."""

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of the message."""


def of_topic(name: str, *actions: Action) -> Need:
    """Return the need for actions on a topic.

    Retry and dead letter topics belong to their group: ``%RETRY%group``, and POP's ``%RETRY%group+topic``. Topics that
    only the broker writes are for administrators, since they contain messages of many topics.
    """
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            group = name.removeprefix(prefix).partition("+")[0]  # no name of a group contains this separator
            need = of_group(group, *(SUB if action is PUB else action for action in actions))
            return need._replace(of_retry_topic=name == RETRY_PREFIX + group)
    if is_of_the_broker(name):
        return Need(Kind.CLUSTER, "", (GET,) if GET in actions or SUB in actions else (UPDATE,))
    return Need(Kind.TOPIC, name, actions)


def of_group(name: str, *actions: Action) -> Need:
    """Return the need for actions on a group, given by group name or retry topic."""
    return Need(Kind.GROUP, name.removeprefix(RETRY_PREFIX), actions)


def of_message(message: StoredFields, *actions: Action) -> Need:
    """Return the need for actions on a stored message; for a parked message those of its real topic."""
    topic = message.topic
    return of_topic(message.properties.get(names.REAL_TOPIC) or topic if topic in PARKED else topic, *actions)


def needs_of(request: RemotingCommand, cluster: str) -> list[Need]:
    """Return all needs of a request by its named resources.

    Args: cluster: the broker's. Raises: FieldError for an invalid body.
    """
    needs: list[Need] = []
    for part in NEEDS.get(request.code, ADMIN_ONLY):
        needs += part.find(request, cluster)
    return needs


class RequestNeed(NamedTuple):
    """A need of a code.

    Attributes: ``find``: returns the needs of a request; ``kind``, ``actions``, ``where``: for the table of
        docs/broker.md.
    """

    kind: Kind
    actions: tuple[Action, ...]
    where: str
    find: Callable[[RemotingCommand, str], Iterable[Need]]


# --- parts ------------------------------------------------------------------------------------------------------------


def _field(fields: Mapping[str, object], name: str) -> str:
    return str(fields.get(name) or "")


def _topic(*actions: Action, field: str = "topic", optional: bool = False) -> RequestNeed:
    def find(request: RemotingCommand, _: str) -> Iterator[Need]:
        if (name := _field(request.ext_fields, field)) or not optional:
            yield of_topic(name, *actions)

    return RequestNeed(Kind.TOPIC, actions, f"`{field}`" + ", where it is given" * optional, find)


def _topics(*actions: Action, field: str, optional: bool = False) -> RequestNeed:
    """Return a part for topic names separated by ``;``."""

    def find(request: RemotingCommand, _: str) -> Iterator[Need]:
        given = [name for name in _field(request.ext_fields, field).split(";") if name]
        for name in given if given or optional else [""]:
            yield of_topic(name, *actions)

    return RequestNeed(Kind.TOPIC, actions, f"each in `{field}`", find)


def _group(*actions: Action, field: str = "group", optional: bool = False) -> RequestNeed:
    def find(request: RemotingCommand, _: str) -> Iterator[Need]:
        if (name := _field(request.ext_fields, field)) or not optional:
            yield of_group(name, *actions)

    return RequestNeed(Kind.GROUP, actions, f"`{field}`" + ", where it is given" * optional, find)


def _cluster(*actions: Action) -> RequestNeed:
    return RequestNeed(Kind.CLUSTER, actions, "", lambda _request, _cluster: [Need(Kind.CLUSTER, "", actions)])


def _reached(kind: Kind, *actions: Action, what: str) -> RequestNeed:
    """Return a part that the handler checks, or the previous part with the same body."""
    return RequestNeed(kind, actions, what, lambda _request, _cluster: ())


def _by_body(find: Callable[[RemotingCommand], Iterable[Need]], *parts: RequestNeed) -> tuple[RequestNeed, ...]:
    """Return parts that are found by decoding the body once."""
    return parts[0]._replace(find=lambda request, _: find(request)), *parts[1:]


# --- bodies -----------------------------------------------------------------------------------------------------------


class _Named(Struct, rename="camel"):
    topic: str = ""


class _Lock(Struct, rename="camel"):
    consumer_group: str = ""
    mq_set: list[_Named] | None = None


class _GroupBody(Struct, rename="camel"):
    group_name: str = ""


class _GroupsBody(Struct, rename="camel"):
    group_config_list: list[_GroupBody] = []


class _TopicBody(Struct, rename="camel"):
    topic_name: str = ""


class _TopicsBody(Struct, rename="camel"):
    topic_config_list: list[_TopicBody] = []


class _Assignment(Struct, rename="camel"):
    topic: str = ""
    consumer_group: str = ""


class _Ack(Struct):
    c: str = ""
    t: str = ""


class _Acks(Struct):
    acks: list[_Ack] | None = None


class _Check(Struct, rename="camel"):
    group: str = ""
    subscription_data: _Named | None = None


def _lock(request: RemotingCommand) -> Iterator[Need]:
    body = decode_request(request.body, _Lock, "body")
    yield of_group(body.consumer_group, SUB)
    for topic in sorted({queue.topic for queue in body.mq_set or ()}):
        yield of_topic(topic, SUB)


def _new_group(request: RemotingCommand) -> Iterator[Need]:
    name = decode_request(request.body, _GroupBody, "body").group_name if request.body else ""
    yield of_group(name, CREATE, UPDATE)


def _new_groups(request: RemotingCommand) -> Iterator[Need]:
    for group in decode_request(request.body, _GroupsBody, "body", bytes_max=LIST_BYTES_MAX).group_config_list:
        yield of_group(group.group_name, CREATE, UPDATE)


def _new_topics(request: RemotingCommand) -> Iterator[Need]:
    for topic in decode_request(request.body, _TopicsBody, "body", bytes_max=LIST_BYTES_MAX).topic_config_list:
        yield of_topic(topic.topic_name, CREATE)


def _subscribed(group: str, topics: Iterable[str]) -> Iterator[Need]:
    """Yield the needs of subscriptions, which reach no message. The group's own retry topic belongs to the group."""
    yield of_group(group, SUB)
    for topic in topics:
        if topic != RETRY_PREFIX + group:
            yield of_topic(topic, SUB)


def _heartbeat(request: RemotingCommand) -> Iterator[Need]:
    for consumer in decode_heartbeat(request.body).consumer_data_set or ():
        yield from _subscribed(consumer.group_name, [data.topic for data in consumer.subscription_data_set or ()])


def _subscription(request: RemotingCommand) -> Iterator[Need]:
    body = decode_request(request.body, _Check, "body") if request.body else _Check()
    yield from _subscribed(body.group, [] if body.subscription_data is None else [body.subscription_data.topic])


def _assignment(request: RemotingCommand) -> Iterator[Need]:
    body = decode_request(request.body, _Assignment, "body")
    yield of_topic(body.topic, SUB)
    yield of_group(body.consumer_group, SUB)


def of_popped(topic: str, group: str) -> Iterator[Need]:
    """Yield the needs of a POP consumer on a topic, or on the group's retry topic for this topic."""
    yield of_group(group, SUB)
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if group and topic.startswith(prefix):
            yield of_topic(topic.removeprefix(prefix), SUB)
            return
    yield of_topic(topic, SUB)


def _popped(request: RemotingCommand, _: str) -> Iterator[Need]:
    fields = request.ext_fields
    yield from of_popped(_field(fields, "topic"), _field(fields, "consumerGroup"))


def _acks(request: RemotingCommand) -> Iterator[Need]:
    acks = decode_request(request.body, _Acks, "body").acks
    for topic, group in sorted({(ack.t, ack.c) for ack in acks or ()}):
        yield from of_popped(topic, group)


@lru_cache(maxsize=4096)
def _published(topic: str) -> Need:
    return of_topic(topic, PUB)


def _send(request: RemotingCommand, _: str) -> list[Need]:
    """Return needs by the handler's parser, as in ``_pull``: a repeated field means the same topic for both."""
    header = send_header(request)
    topic = header.topic
    needs = [_published(topic) if len(topic) <= NAME_MAX else of_topic(topic, PUB)]
    if _LIGHTS in header.properties:
        needs += [of_topic(name, PUB) for name in names.light_queues(header.properties)]
    return needs


def _reply(request: RemotingCommand, cluster: str) -> list[Need]:
    return [*_send(request, cluster), of_topic(REPLY_TOPIC.format(cluster), PUB)]


def _pull(request: RemotingCommand, _: str) -> list[Need]:
    header = pull_header(request)
    return [of_topic(header.topic, SUB), of_group(header.consumer_group, SUB)]


# --- the table --------------------------------------------------------------------------------------------------------

_SEND_LONG: Final = (
    RequestNeed(Kind.TOPIC, (PUB,), "`topic`", _send),
    _reached(Kind.TOPIC, PUB, what="each that `INNER_MULTI_DISPATCH` names"),
)
_SEND_SHORT: Final = (_SEND_LONG[0]._replace(where="`b`"), *_SEND_LONG[1:])
_TO_REPLY: Final = _reached(Kind.TOPIC, PUB, what="the cluster's `_REPLY_TOPIC`")
_PULL: Final = (
    RequestNeed(Kind.TOPIC, (SUB,), "`topic`", _pull),
    _reached(Kind.GROUP, SUB, what="`consumerGroup`"),
)
_POP: Final = (
    RequestNeed(Kind.TOPIC, (SUB,), "`topic`, or the topic of this retry topic", _popped),
    _reached(Kind.GROUP, SUB, what="`consumerGroup`"),
)
_LOCK: Final = _by_body(
    _lock, _reached(Kind.GROUP, SUB, what="`consumerGroup`"), _reached(Kind.TOPIC, SUB, what="each in `mqSet`")
)
_GET_TOPIC: Final = (_topic(GET),)
_OF_ANY: Final = "the answer names those alone on which the account has any right"
ADMIN_ONLY: Final = (_cluster(UPDATE),)
_SEES: Final = (_cluster(GET),)
_ONCE: Final = (_topics(PUB, field="topic"),)
_UPDATE_COLD_DATA, _REMOVE_COLD_DATA, _COLD_DATA, _SET_READ_MODE = 2001, 2002, 2003, 2004

NEEDS: Final[Mapping[int, tuple[RequestNeed, ...]]] = {
    R.SEND_MESSAGE: _SEND_LONG,
    R.PULL_MESSAGE: _PULL,
    R.QUERY_MESSAGE: (_topic(SUB, GET),),
    R.QUERY_CONSUMER_OFFSET: (_topic(SUB, GET), _group(SUB, GET, field="consumerGroup")),
    R.UPDATE_CONSUMER_OFFSET: (_topic(SUB, UPDATE), _group(SUB, UPDATE, field="consumerGroup")),
    R.UPDATE_AND_CREATE_TOPIC: (_topic(CREATE),),
    R.UPDATE_AND_CREATE_TOPIC_LIST: _by_body(
        _new_topics, _reached(Kind.TOPIC, CREATE, what="each in `topicConfigList`")
    ),
    R.GET_ALL_TOPIC_CONFIG: _SEES,
    R.UPDATE_BROKER_CONFIG: ADMIN_ONLY,
    R.GET_BROKER_CONFIG: _SEES,
    R.GET_BROKER_RUNTIME_INFO: _SEES,
    R.SEARCH_OFFSET_BY_TIMESTAMP: _GET_TOPIC,
    R.GET_MAX_OFFSET: _GET_TOPIC,
    R.GET_MIN_OFFSET: _GET_TOPIC,
    R.GET_EARLIEST_MSG_STORETIME: _GET_TOPIC,
    R.VIEW_MESSAGE_BY_ID: (
        _topic(GET, optional=True),
        _reached(Kind.TOPIC, SUB, GET, what="of the message at `offset`"),
    ),
    R.HEART_BEAT: _by_body(
        _heartbeat,
        _reached(Kind.GROUP, SUB, what="each in `consumerDataSet`"),
        _reached(Kind.TOPIC, SUB, what="each in their subscriptions"),
        _reached(Kind.TOPIC, PUB, what="of each half message that a member of `producerDataSet` is asked about (39)"),
    ),
    R.UNREGISTER_CLIENT: (_group(SUB, field="consumerGroup", optional=True),),
    R.CONSUMER_SEND_MSG_BACK: (_group(SUB), _reached(Kind.TOPIC, SUB, what="of the message at `offset`")),
    R.END_TRANSACTION: (  # the response to a check names the topic of half messages
        _reached(Kind.TOPIC, PUB, what="`REAL_TOPIC` of the half message at `commitLogOffset`"),
    ),
    R.GET_CONSUMER_LIST_BY_GROUP: (_group(SUB, GET, field="consumerGroup"),),
    R.LOCK_BATCH_MQ: _LOCK,
    R.UNLOCK_BATCH_MQ: _LOCK,
    R.GET_ALL_CONSUMER_OFFSET: _SEES,
    R.GET_ALL_DELAY_OFFSET: _SEES,
    R.CHECK_CLIENT_CONFIG: _by_body(
        _subscription,
        _reached(Kind.GROUP, SUB, what="`group`"),
        _reached(Kind.TOPIC, SUB, what="of `subscriptionData`"),
    ),
    R.UPDATE_AND_CREATE_ACL_CONFIG: ADMIN_ONLY,
    R.DELETE_ACL_CONFIG: ADMIN_ONLY,
    R.GET_BROKER_CLUSTER_ACL_INFO: _SEES,
    R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ADMIN_ONLY,
    R.GET_BROKER_CLUSTER_ACL_CONFIG: _SEES,
    R.GET_TIMER_CHECK_POINT: _SEES,
    R.GET_TIMER_METRICS: _SEES,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _by_body(
        _new_group, _reached(Kind.GROUP, CREATE, UPDATE, what="`groupName`")
    ),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _SEES,
    R.GET_TOPIC_STATS_INFO: _GET_TOPIC,
    R.GET_CONSUMER_CONNECTION_LIST: (
        _group(GET, field="consumerGroup"),
        _reached(Kind.TOPIC, *ANY, what=_OF_ANY),
    ),
    R.GET_PRODUCER_CONNECTION_LIST: _SEES,
    R.DELETE_SUBSCRIPTIONGROUP: (_group(DELETE, field="groupName"),),
    R.GET_CONSUME_STATS: (
        _topic(GET, optional=True),
        _topics(GET, field="topicList", optional=True),
        _group(GET, field="consumerGroup"),
        _reached(Kind.TOPIC, *ANY, what=_OF_ANY),
    ),
    R.DELETE_TOPIC_IN_BROKER: (_topic(DELETE),),
    R.INVOKE_BROKER_TO_RESET_OFFSET: (_topic(UPDATE), _group(UPDATE)),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_topic(GET), _group(GET)),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _by_body(
        _new_groups, _reached(Kind.GROUP, CREATE, UPDATE, what="each in `groupConfigList`")
    ),
    R.QUERY_TOPIC_CONSUME_BY_WHO: (_topic(GET), _reached(Kind.GROUP, *ANY, what=_OF_ANY)),
    R.QUERY_CONSUME_TIME_SPAN: (_topic(GET), _group(GET)),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _SEES,
    R.CLEAN_EXPIRED_CONSUMEQUEUE: ADMIN_ONLY,
    R.GET_CONSUMER_RUNNING_INFO: (_group(GET, field="consumerGroup"),),
    R.QUERY_CORRECTION_OFFSET: (_topic(GET), _group(GET, field="compareGroup", optional=True)),
    R.CONSUME_MESSAGE_DIRECTLY: (
        _topic(SUB, optional=True),
        _group(SUB, field="consumerGroup"),
        _reached(Kind.TOPIC, SUB, what="of the message `msgId`"),
    ),
    R.SEND_MESSAGE_V2: _SEND_SHORT,
    R.CLONE_GROUP_OFFSET: (
        _topic(UPDATE, optional=True),
        _group(GET, UPDATE, field="srcGroup"),
        _group(UPDATE, field="destGroup"),
        _reached(Kind.TOPIC, UPDATE, what="of each offset that is copied; others stay as they are"),
    ),
    R.VIEW_BROKER_STATS_DATA: _SEES,
    R.CLEAN_UNUSED_TOPIC: ADMIN_ONLY,
    R.GET_BROKER_CONSUME_STATS: _SEES,
    R.SEND_BATCH_MESSAGE: _SEND_SHORT,
    R.QUERY_CONSUME_QUEUE: (_topic(GET), _group(GET, field="consumerGroup", optional=True)),
    R.RESUME_CHECK_HALF_MESSAGE: ADMIN_ONLY,
    R.SEND_REPLY_MESSAGE: (_SEND_LONG[0]._replace(find=_reply), *_SEND_LONG[1:], _TO_REPLY),
    R.SEND_REPLY_MESSAGE_V2: (_SEND_SHORT[0]._replace(find=_reply), *_SEND_SHORT[1:], _TO_REPLY),
    R.GET_ALL_PRODUCER_INFO: _SEES,
    R.DELETE_EXPIRED_COMMITLOG: ADMIN_ONLY,
    R.QUERY_TOPICS_BY_CONSUMER: (_group(GET), _reached(Kind.TOPIC, *ANY, what=_OF_ANY)),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: (_topic(GET), _group(GET)),
    R.GET_TOPIC_CONFIG: _GET_TOPIC,
    R.GET_SUBSCRIPTIONGROUP_CONFIG: (_group(GET),),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: (_topic(UPDATE), _group(UPDATE)),
    R.LITE_PULL_MESSAGE: _PULL,
    R.RECALL_MESSAGE: (_topic(PUB), _reached(Kind.TOPIC, PUB, what="of the message that the handle names: the same")),
    R.QUERY_ASSIGNMENT: _by_body(
        _assignment, _reached(Kind.TOPIC, SUB, what="`topic`"), _reached(Kind.GROUP, SUB, what="`consumerGroup`")
    ),
    R.SET_MESSAGE_REQUEST_MODE: ADMIN_ONLY,
    R.POP_MESSAGE: _POP,
    R.ACK_MESSAGE: _POP,
    R.PEEK_MESSAGE: _POP,
    R.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    R.NOTIFICATION: _POP,
    R.POLLING_INFO: _POP,
    R.BATCH_ACK_MESSAGE: _by_body(
        _acks,
        _reached(Kind.TOPIC, SUB, what="each `t` in `acks`"),
        _reached(Kind.GROUP, SUB, what="each `c` in `acks`"),
    ),
    R.GET_ALL_MESSAGE_REQUEST_MODE: _SEES,
    R.GET_BROKER_HA_STATUS: _SEES,
    R.GET_BROKER_EPOCH_CACHE: _SEES,
    _UPDATE_COLD_DATA: ADMIN_ONLY,
    _REMOVE_COLD_DATA: ADMIN_ONLY,
    _COLD_DATA: _SEES,
    _SET_READ_MODE: ADMIN_ONLY,
    R.AUTH_CREATE_USER: ADMIN_ONLY,
    R.AUTH_UPDATE_USER: ADMIN_ONLY,
    R.AUTH_DELETE_USER: ADMIN_ONLY,
    R.AUTH_GET_USER: _SEES,
    R.AUTH_LIST_USER: _SEES,
    R.AUTH_CREATE_ACL: ADMIN_ONLY,
    R.AUTH_UPDATE_ACL: ADMIN_ONLY,
    R.AUTH_DELETE_ACL: ADMIN_ONLY,
    R.AUTH_GET_ACL: _SEES,
    R.AUTH_LIST_ACL: _SEES,
    ASK_ONCE: (*_ONCE, _reached(Kind.TOPIC, *ANY, what=_OF_ANY)),
    END_ONCE: _ONCE,
}
"""Needs by request code."""


build_tables(__name__)
