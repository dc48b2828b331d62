"""Requests of admins for consumer groups (200, 225, 201, 207, 352, 353).

Unknown fields of a group's settings are kept, since newer tools send more fields. Source: AdminBrokerProcessor,
SubscriptionGroupManager.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from mqfast.broker.admin.attributes import GROUP_ATTRIBUTES, changed
from mqfast.broker.admin.bodies import AllGroups, GroupForbidden
from mqfast.broker.metadata.topic_manager import illegal_group
from mqfast.errors import CallRefused, FieldError
from mqfast.remoting.bodies import (
    LIST_BYTES_MAX,
    DataVersion,
    Int32,
    build_tables,
    decode_request,
    encode_body,
    header_of,
)
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["GroupRequests"]

_A_TURN: Final = 100


class _Settings(Struct, rename="camel"):
    """The fields of a group's settings that the broker uses; all other fields are kept unchanged."""

    group_name: str = ""
    attributes: dict[str, str] | None = None
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: Int32 = 15
    group_sys_flag: Int32 = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int32 = 1


_POLICY: Final = {"type": "CUSTOMIZED"}


class _ListBody(Struct, rename="camel"):
    group_config_list: list[dict[str, Any]]


class _GroupHeader(Struct):
    group: str


class _DeleteHeader(Struct, rename="camel"):
    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False  # the name in 4.9


class _ForbiddenHeader(Struct):
    group: str
    topic: str
    readable: bool | None = None


class GroupRequests:
    """Serves requests about groups. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._limit = LogLimit(logging.getLogger("mqfast.broker"), burst=20)

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        for code, handler in {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbidden,
        }.items():
            processors.register([code], handler, lane)
        processors.register([RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST], self.update_list, lane)
        processors.register([RequestCode.DELETE_SUBSCRIPTIONGROUP], self.delete, lane)

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 200: create or change a group; an empty body changes nothing."""
        if not request.body:
            return request.response()
        given = decode_request(request.body, dict[str, Any], "body")
        self._context.groups.put(self._checked(given))
        self._limit.info("set", "group %s was set by %s:%d", given["groupName"], *channel.peer)
        return request.response()

    async def update_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 225: several groups at once, or none if any is illegal. Yields to other requests in between."""
        groups = decode_request(request.body, _ListBody, "body", bytes_max=LIST_BYTES_MAX).group_config_list
        checked = [self._checked(given) for given in groups]
        for number, settings in enumerate(checked, 1):
            self._context.groups.put(settings)
            if not number % _A_TURN:
                await asyncio.sleep(0)
        self._limit.info("set", "%d groups were set by %s:%d", len(checked), *channel.peer)
        return request.response()

    def _checked(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the whole object of a group. Raises: CallRefused, FieldError."""
        try:
            settings = msgspec.convert(given, _Settings, strict=False)
        except msgspec.ValidationError as error:
            raise FieldError("body", "the settings of a group", str(error)[:200]) from None
        if (wrong := illegal_group(settings.group_name)) is not None:
            raise CallRefused(ResponseCode.INVALID_PARAMETER, wrong)
        if settings.retry_queue_nums < 0 or settings.retry_queue_nums > 1024:
            remark = f"retryQueueNums: expected 0 to 1024, found {settings.retry_queue_nums}"
            raise CallRefused(ResponseCode.INVALID_PARAMETER, remark)
        old = self._context.groups.table.get(settings.group_name)
        current = None if old is None else old.get("attributes") or {}
        attributes = changed(GROUP_ATTRIBUTES, current, settings.attributes or {})
        raw = {"groupRetryPolicy": _POLICY, **given, **msgspec.to_builtins(settings), "attributes": attributes}
        return {name: raw[name] for name in sorted(raw) if raw[name] is not None}

    async def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 207: delete a group, and its offsets if requested.

        Durability: all changes are on disk before the response is sent.
        """
        header = header_of(request, _DeleteHeader)
        context = self._context
        context.groups.delete(header.group_name)
        context.stats.group_deleted(header.group_name)
        if header.clean_offset or header.remove_offset:
            context.offsets.remove_group(header.group_name)
            context.pull_offsets.forget_group(header.group_name)
            context.reset_offsets.forget_group(header.group_name)
            # Otherwise a kill restores the offsets, and the next group of this name resumes there.
            await context.loop.run_in_executor(None, context.offsets.persist, context.store.flush)
        self._limit.info("deleted", "group %s was deleted by %s:%d", header.group_name, *channel.peer)
        return request.response()

    def group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 352: the settings of a group."""
        settings = self._context.groups.get(header_of(request, _GroupHeader).group)
        if settings is None:
            return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="No group in this broker")
        return request.response(body=encode_body(settings))

    def all_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 201: all groups, whatever slice is requested."""
        table = self._context.groups.table
        groups = {name: settings for name in table if (settings := table.get(name)) is not None}
        raw = table.data_version
        version = DataVersion(raw.get("counter", 0), raw.get("stateVersion", 0), raw.get("timestamp", 0))
        body = encode_body(AllGroups(version, table.forbidden_table, groups))
        return request.response(0, {"totalGroupNum": str(len(groups))}, body)

    def forbidden(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 353: forbid a group to read a topic, allow that again, or only return the permission."""
        header = header_of(request, _ForbiddenHeader)
        groups = self._context.groups
        if header.readable is not None:
            groups.set_may_read(header.group, header.topic, header.readable)
            self._limit.info("readable", "group %s, topic %s: readable=%s", header.group, header.topic, header.readable)
        may = groups.may_read(header.group, header.topic)
        return request.response(body=encode_body(GroupForbidden(header.group, may, header.topic)))


build_tables(__name__)
