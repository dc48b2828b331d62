"""Access control of brokers: users and rules of ACL 2.0, and accounts of ACL 1.0.

Each broker has its own users and rules; a change of a cluster is sent to every master. No answer has a password.
Source: DefaultMQAdminExtImpl, UserConverter, AclConverter, UpdateAccessConfigSubCommand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mqfast.client.admin.admin_base import AdminBase
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_text, known_name
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.errors import ClientConfigError
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode

__all__ = ["AccessCalls"]

_ACCOUNT_TEXTS = ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")


class AccessCalls(AdminBase):
    """The calls about access control. A broker is named by its name (the master) or by ``host:port``."""

    # --- ACL 2.0 ---

    @call
    def users(self, broker: str, name_part: str = "") -> RequestSteps[Sequence[Mapping[str, Any]]]:
        """Return the users of a broker, each with ``username``, ``userType`` and ``userStatus``."""
        fields = {"filter": name_part or None}
        return (yield from _rows(self, broker, RequestCode.AUTH_LIST_USER, fields, "users"))

    @call
    def set_user(
        self,
        broker: str,
        name: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        status: str | None = None,
        create: bool = False,
    ) -> RequestSteps[None]:
        """Create a user, or change the given fields. Args: user_type: Normal or Super; status: enable or disable."""
        if create and not password:
            raise ClientConfigError("password: expected one for a new user, found none")
        body = {"username": checked_text("username", name), "password": password, "userType": user_type,
                "userStatus": status}  # fmt: skip
        address = yield from self._address_of(broker)
        code = RequestCode.AUTH_CREATE_USER if create else RequestCode.AUTH_UPDATE_USER
        given = msgspec.json.encode({key: value for key, value in body.items() if value is not None})
        yield from self._call(address, code, {"username": name}, given, about=f"user {name}")

    @call
    def delete_user(self, broker: str, name: str) -> RequestSteps[None]:
        """Delete a user with the user's rules."""
        address = yield from self._address_of(broker)
        fields = {"username": checked_text("username", name)}
        yield from self._call(address, RequestCode.AUTH_DELETE_USER, fields, about=f"user {name}")

    @call
    def rules(self, broker: str, subject: str = "", resource: str = "") -> RequestSteps[Sequence[Mapping[str, Any]]]:
        """Return the rules of a broker by parts of subject and resource: ``subject`` and ``policies`` of each user."""
        fields = {"subjectFilter": subject or None, "resourceFilter": resource or None}
        return (yield from _rows(self, broker, RequestCode.AUTH_LIST_ACL, fields, "rules"))

    @call
    def set_rules(
        self,
        broker: str,
        subject: str,
        resources: Sequence[str],
        actions: Sequence[str],
        decision: str,
        *,
        addresses: Sequence[str] = (),
    ) -> RequestSteps[None]:
        """Set a rule for resources.

        Args:
            subject: ``User:name``.
            resources: ``Topic:name``, ``Group:name*``, ``Cluster:name`` and so on.
            actions: Pub, Sub, Create, Update, Delete, Get, List or All.
            decision: Allow or Deny.
            addresses: only for callers with these addresses or networks.
        """
        known_name("kind", decision, ("Allow", "Deny"))
        for what, words in (("resources", resources), ("actions", actions)):
            if not words:
                raise ClientConfigError(f"{what}: expected at least one, found none")
        entry: dict[str, Any] = {"actions": list(actions), "decision": decision}
        entries = [{"resource": resource, **entry, "sourceIps": list(addresses)} for resource in resources]
        body = {"subject": checked_text("subject", subject),
                "policies": [{"policyType": "Custom", "entries": entries}]}  # fmt: skip
        address = yield from self._address_of(broker)
        code, about = RequestCode.AUTH_UPDATE_ACL, f"rules of {subject}"
        yield from self._call(address, code, {"subject": subject}, msgspec.json.encode(body), about=about)

    @call
    def delete_rules(self, broker: str, subject: str, resource: str | None = None) -> RequestSteps[None]:
        """Delete the rule of a subject for a resource; without a resource all rules of the subject."""
        address = yield from self._address_of(broker)
        fields = {"subject": checked_text("subject", subject), "resource": resource}
        yield from self._call(address, RequestCode.AUTH_DELETE_ACL, fields, about=f"rules of {subject}")

    # --- ACL 1.0 ---

    @call
    def accounts(self, broker: str) -> RequestSteps[Mapping[str, Any]]:
        """Return accounts and white list of ACL 1.0: ``plainAccessConfigs`` and ``globalWhiteAddrs``."""
        address = yield from self._address_of(broker)
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        body = yield from self._query(address, code, dict[str, Any], about=f"accounts of broker {broker}")
        for account in body.get("plainAccessConfigs") or ():
            account.pop("secretKey", None)
        return body

    @call
    def accounts_version(self, broker: str) -> RequestSteps[Mapping[str, Any]]:
        """Return the versions of the files of ACL 1.0: file -> ``counter`` and ``timestamp``."""
        address = yield from self._address_of(broker)
        answer = yield from self._call(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, about="versions of accounts")
        text = answer.ext_fields.get("allAclFileVersion") or answer.ext_fields.get("version") or "{}"
        return read_answer(answer, address, lambda _: dict(json.loads(text)))

    @call
    def set_account(self, broker: str, access_key: str, changes: Mapping[str, Any]) -> RequestSteps[None]:
        """Create an account of ACL 1.0, or change the given fields.

        Args: changes: by RocketMQ's names: ``secretKey``, ``whiteRemoteAddress``, ``admin``, ``defaultTopicPerm``,
            ``defaultGroupPerm``; ``topicPerms`` and ``groupPerms`` as ``topicA=DENY,topicB=PUB|SUB``.
        """
        for name in changes:
            known_name("changes", name, (*_ACCOUNT_TEXTS, "admin", "topicPerms", "groupPerms"))
        address = yield from self._address_of(broker)
        fields = {"accessKey": checked_text("access_key", access_key), **changes}
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        yield from self._call(address, code, fields, about=f"account {access_key}")

    @call
    def delete_account(self, broker: str, access_key: str) -> RequestSteps[None]:
        """Delete an account of ACL 1.0."""
        address = yield from self._address_of(broker)
        fields = {"accessKey": checked_text("access_key", access_key)}
        yield from self._call(address, RequestCode.DELETE_ACL_CONFIG, fields, about=f"account {access_key}")

    @call
    def set_white_list(self, broker: str, addresses: Sequence[str], file: str | None = None) -> RequestSteps[None]:
        """Set the addresses that have all permissions under ACL 1.0. Args: file: on the broker; None: its main file."""
        address = yield from self._address_of(broker)
        fields = {"globalWhiteAddrs": ",".join(addresses), "aclFileFullPath": file}
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        yield from self._call(address, code, fields, about="white list")


def _rows(
    admin: AdminBase, broker: str, code: RequestCode, fields: Mapping[str, Any], about: str
) -> RequestSteps[list[dict[str, Any]]]:
    """Return the rows of a list; an empty body is an empty list."""
    address = yield from admin._address_of(broker)
    answer = yield from admin._call(address, code, fields, about=about)
    return read_answer(answer, address, lambda data: decode_body(data, list[dict[str, Any]], "body") if data else [])
