"""ACL 1.0: the accounts of ``plain_acl.yml`` and their permissions.

A broken file opens nothing: the previous accounts stay in force, and at start a broken file is an error. Source:
PlainPermissionManager, PlainAccessResource, Permission.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from mqfast.broker.acl.addresses import Matcher, pattern
from mqfast.broker.acl.required_permissions import ADMIN_ONLY, NEEDS, Need
from mqfast.broker.acl.rights import Caller
from mqfast.broker.acl.terms import Action, Kind
from mqfast.broker.metadata.topic_manager import TRACE_TOPIC
from mqfast.errors import CallRefused, ConfigError, FieldError
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.signature import is_signed_with, signer_of

__all__ = [
    "EXCEPTION", "Account", "Find", "PlainAccounts", "account_of", "is_for_admins", "refuse", "right_of",
]  # fmt: skip

_log = logging.getLogger("mqfast.broker.acl")
Find = Callable[[RemotingCommand], Sequence[Need]]
"""Returns the needs of a request. Raises: FieldError for an invalid body."""
DENY, ADMIN, PUB, SUB = 1, 2, 4, 8
EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""The begin of the remark of each refusal, by which RocketMQ's proxy knows a refusal of ACL 1.0."""
_PERMS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
_TOO_SHORT: Final = 6
_TRACE: Final = Need(Kind.TOPIC, TRACE_TOPIC, (Action.PUB,))


def refuse(text: str) -> NoReturn:
    """Raise the response of a Java broker: code 1, the exception's name and text."""
    raise CallRefused(ResponseCode.SYSTEM_ERROR, EXCEPTION + text)


@dataclass(frozen=True, slots=True)
class Account:
    """An access key: secret, addresses that need no signature, and permissions."""

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
    """Return an entry of ``accounts``. Raises: ConfigError."""
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

    Args: files: path -> content of each file; of repeated accounts the first counts.
    Raises: ConfigError for a content that prevents a start of Java.
    """

    def __init__(self, files: Mapping[Path, Mapping[str, Any]]) -> None:
        self._white: list[Matcher] = []
        self._accounts: dict[str, Account] = {}
        self.file_of: dict[str, Path] = {}
        for path, content in files.items():
            self._white += [pattern(str(address)) for address in content.get("globalWhiteRemoteAddresses") or ()]
            for entry in content.get("accounts") or ():
                account = account_of(entry)
                if account.access_key in self._accounts:
                    _log.warning("%s: access key %s: ignored, it stands twice", path, account.access_key)
                    continue
                self._accounts[account.access_key] = account
                self.file_of[account.access_key] = path

    def secret_of(self, access_key: str) -> str | None:
        """Return the secret of an account; None for an unknown account."""
        account = self._accounts.get(access_key)
        return None if account is None else account.secret_key

    def check(self, request: RemotingCommand, address: str, find: Find, given: Sequence[Need] | None = None) -> None:
        """Check the permission for a request.

        Args: address: of the sender; find: returns the needs of a code, if ``given`` is None. Raises: CallRefused.
        """
        if any(is_white(address) for is_white in self._white):
            return
        key = signer_of(request)
        if key is None:
            refuse("No accessKey is configured")
        account = self._accounts.get(key)
        if account is None:
            refuse(f"No acl config for {key}")
        if account.is_white(address):
            return
        if not is_signed_with(request, account.secret_key):
            refuse(f"Check signature failed for accessKey={key}")
        if account.admin and not account.perms:
            return
        if given is None and is_for_admins(request.code) and not account.admin:
            refuse(_not_admin(account, request.code))
        try:
            needs = find(request) if given is None else given
        except FieldError as error:
            refuse(str(error))
        _compare(account, needs, request.code)

    def compare(self, caller: Caller, needs: Iterable[Need], code: int) -> None:
        """Check further permissions of the caller of an admitted request. Raises: CallRefused."""
        if any(is_white(caller.address) for is_white in self._white):
            return
        account = self._accounts.get(caller.name)
        if account is None:
            refuse(f"No acl config for {caller.name}")
        if not account.is_white(caller.address) and not (account.admin and not account.perms):
            _compare(account, needs, code)


@lru_cache(maxsize=1024)
def is_for_admins(code: int) -> bool:
    """Return True if ACL 1.0, with only PUB and SUB, requires an administrator for this code."""
    return any(right_of(part.kind, part.actions) == ADMIN for part in NEEDS.get(code, ADMIN_ONLY))


@cache
def right_of(kind: Kind, actions: tuple[Action, ...]) -> int:
    """Return the right of ACL 1.0 for any of these actions: PUB, SUB, either, or ADMIN.

    A change of offsets counts as SUB; a query about a topic or a group needs any right on the resource. Java permits
    such queries to all accounts.
    """
    if kind is Kind.CLUSTER or not {Action.CREATE, Action.DELETE}.isdisjoint(actions):
        return ADMIN
    if {*actions} == {Action.GET} or {Action.PUB, Action.SUB} <= {*actions}:
        return PUB | SUB
    return PUB if Action.PUB in actions else SUB


def _not_admin(account: Account, code: int) -> str:
    return f"Need admin permission for request code={code}, but accessKey={account.access_key} is not"


def _compare(account: Account, needs: Iterable[Need], code: int) -> None:
    for need in needs:
        if need == _TRACE:
            continue  # every account may write traces
        right = right_of(need.kind, need.actions)
        if right == ADMIN:
            if not account.admin:
                refuse(_not_admin(account, code))
            continue
        default = account.default_group if need.kind is Kind.GROUP else account.default_topic
        owned = account.perms.get((need.kind, need.name), default)
        if owned & DENY or not owned & right:
            refuse(f"No default permission for {need.kind.lower()}:{need.name}")
