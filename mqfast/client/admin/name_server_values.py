"""Values that name servers keep: namespace, key and value; and the order of queues of ordered topics.

Name servers share no state: a change goes to each of them. Source: DefaultMQAdminExtImpl, UpdateKvConfigCommand,
DeleteKvConfigCommand, UpdateOrderConfCommand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqfast.client.admin.admin_base import AdminBase
from mqfast.client.admin.bodies import TableBody
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_text
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["ORDER_NAMESPACE", "NameServerValueCalls"]

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the order of queues: topic -> ``broker-a:8;broker-b:8``."""


class NameServerValueCalls(AdminBase):
    """The calls about values of name servers."""

    @call
    def namesrv_values(self, namespace: str = ORDER_NAMESPACE) -> RequestSteps[Mapping[str, Mapping[str, str]]]:
        """Return the values of a namespace at each name server: address -> key -> value; empty without a value."""
        code, also = RequestCode.GET_KVLIST_BY_NAMESPACE, (ResponseCode.QUERY_NOT_FOUND,)
        fields = {"namespace": checked_text("namespace", namespace)}
        answers = yield from self._each_name_server(code, fields, also=also, about=f"namespace {namespace}")
        return {
            address: read_answer(answer, address, lambda data: decode_body(data, TableBody, "body").table)
            if answer.code == ResponseCode.SUCCESS
            else {}
            for address, answer in answers.items()
        }

    @call
    def set_namesrv_value(self, key: str, value: str | None, namespace: str = ORDER_NAMESPACE) -> RequestSteps[None]:
        """Set a value at every name server. Args: value: None deletes the key."""
        fields = {"namespace": checked_text("namespace", namespace), "key": checked_text("key", key)}
        about = f"value {key} of namespace {namespace}"
        if value is None:
            yield from self._each_name_server(RequestCode.DELETE_KV_CONFIG, fields, about=about)
            return
        pair = {**fields, "value": checked_text("value", value)}
        yield from self._each_name_server(RequestCode.PUT_KV_CONFIG, pair, about=about)
