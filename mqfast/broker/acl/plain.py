"""ACL 1.0: the accounts of ``plain_acl.yml`` and what each of them may do.

Room: broker/acl. It must never let a request pass because a file is broken: the accounts of before stay in force, and
at start a broken file is an error. Source: PlainPermissionManager, PlainAccessResource, Permission.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from mqfast.broker.acl.addresses import Matcher, pattern
from mqfast.broker.acl.kinds import Action, Kind
from mqfast.broker.acl.needs import Need, TopicAt, needs_of
from mqfast.errors import CallRefused, ConfigError, FieldError
from mqfast.remoting.codes import RequestCode as R
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.signature import ACCESS_KEY, is_signed_with

__all__ = ["Account", "PlainAccounts", "account_of", "refuse"]

_log = logging.getLogger("mqfast.broker.acl")
DENY, PUB, SUB = 1, 4, 8
_PERMS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
_TOO_SHORT: Final = 6
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
# The five of Java, those that Java forgot, and those of ACL 2.0.
_ADMIN_CODES: Final = frozenset(
    {
        R.UPDATE_AND_CREATE_TOPIC, R.UPDATE_BROKER_CONFIG, R.DELETE_TOPIC_IN_BROKER,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, R.DELETE_SUBSCRIPTIONGROUP,
        R.UPDATE_AND_CREATE_TOPIC_LIST, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, R.UPDATE_AND_CREATE_ACL_CONFIG,
        R.DELETE_ACL_CONFIG, R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, R.GET_BROKER_CLUSTER_ACL_CONFIG,
        R.CLEAN_EXPIRED_CONSUMEQUEUE, R.CLEAN_UNUSED_TOPIC, R.DELETE_EXPIRED_COMMITLOG, R.SET_MESSAGE_REQUEST_MODE,
        R.RESUME_CHECK_HALF_MESSAGE, R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER, R.AUTH_GET_USER,
        R.AUTH_LIST_USER, R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL, R.AUTH_DELETE_ACL, R.AUTH_GET_ACL, R.AUTH_LIST_ACL,
    }
)  # fmt: skip


def refuse(text: str) -> NoReturn:
    """The answer of a Java broker: code 1, the exception's name and its text."""
    raise CallRefused(ResponseCode.SYSTEM_ERROR, f"org.apache.rocketmq.acl.common.AclException: {text}")


@dataclass(frozen=True, slots=True)
class Account:
    """One access key: its secret, where it may come from without a signature, and what it may do."""

    access_key: str
    secret_key: str = field(repr=False)
    is_white: Matcher = field(repr=False)
    admin: bool
    default_topic: int
    default_group: int
    perms: Mapping[tuple[Kind, str], int]


def _perm(text: Any) -> int:
    return _PERMS.get(str(text).strip(), DENY) if text is not None else DENY


def account_of(entry: Mapping[str, Any]) -> Account:
    """An entry of ``accounts``. Raises: ConfigError."""
    key, secret = entry.get("accessKey"), entry.get("secretKey")
    if key is None or secret is None or min(len(str(key)), len(str(secret))) <= _TOO_SHORT:
        raise ConfigError(f"The accessKey={key} and its secretKey cannot be null and length should longer than 6")
    perms: dict[tuple[Kind, str], int] = {}
    for kind, what in ((Kind.GROUP, "group"), (Kind.TOPIC, "topic")):
        for line in entry.get(f"{what}Perms") or ():
            words = [word.strip() for word in str(line).split("=") if word]
            if len(words) != 2:
                raise ConfigError(f"Parse resource permission failed for {what}:{line}")
            perms[kind, words[0]] = _perm(words[1])
    return Account(
        str(key),
        str(secret),
        pattern(entry.get("whiteRemoteAddress")),
        entry.get("admin") is True or str(entry.get("admin")).lower() == "true",
        _perm(entry.get("defaultTopicPerm")),
        _perm(entry.get("defaultGroupPerm")),
        perms,
    )


class PlainAccounts:
    """All accounts in force.

    Args: files: path -> content of each file; the accounts of a path that comes first count.
    Raises: ConfigError for a content that Java would not start with.
    """

    def __init__(self, files: Mapping[Path, Mapping[str, Any]]) -> None:
        self._white: list[Matcher] = []
        self._accounts: dict[str, Account] = {}
        self.file_of: dict[str, Path] = {}
        for path, content in files.items():
            self._white += [pattern(str(one)) for one in content.get("globalWhiteRemoteAddresses") or ()]
            for entry in content.get("accounts") or ():
                account = account_of(entry)
                if account.access_key in self._accounts:
                    _log.warning("%s: access key %s: ignored, it stands twice", path, account.access_key)
                    continue
                self._accounts[account.access_key] = account
                self.file_of[account.access_key] = path

    def check(self, request: RemotingCommand, address: str, topic_at: TopicAt) -> None:
        """May this request be served? ``address``: where it comes from. Raises: CallRefused."""
        if any(is_white(address) for is_white in self._white):
            return
        key = request.ext_fields.get(ACCESS_KEY)
        if key is None:
            refuse("No accessKey is configured")
        account = self._accounts.get(key)
        if account is None:
            refuse(f"No acl config for {key}")
        if account.is_white(address):
            return
        if not is_signed_with(request, account.secret_key):
            refuse(f"Check signature failed for accessKey={key}")
        if request.code in _ADMIN_CODES:
            if not account.admin:
                refuse(f"Need admin permission for request code={request.code}, but accessKey={key} is not")
        elif account.perms or not account.admin:
            _check_perms(account, request, topic_at)


def _check_perms(account: Account, request: RemotingCommand, topic_at: TopicAt) -> None:
    try:
        needs = needs_of(request, topic_at)
    except FieldError as error:
        refuse(str(error))
    if any(need.name == _TRACE_TOPIC and need.actions == (Action.PUB,) for need in needs):
        return
    for need in needs:
        wanted = _wanted(need)
        if wanted and need.kind is not Kind.CLUSTER:
            default = account.default_group if need.kind is Kind.GROUP else account.default_topic
            owned = account.perms.get((need.kind, need.name), default)
            if owned & DENY or not owned & wanted:
                refuse(f"No default permission for {need.kind.lower()}:{need.name}")


def _wanted(need: Need) -> int:
    """ACL 1.0 knows PUB and SUB. What changes a group counts as SUB; what only asks is free, as in Java."""
    if Action.PUB in need.actions:
        return PUB
    return SUB if Action.SUB in need.actions or Action.UPDATE in need.actions else 0
