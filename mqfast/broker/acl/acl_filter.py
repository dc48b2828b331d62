"""The ACL filter: checks a request before the handler, and refuses a request without permission.

No overhead without access control: a server without ACL has a table of processors without the filter. Source:
NettyRemotingAbstract.doBeforeRpcHooks, AuthenticationPipeline, AuthorizationPipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from mqfast.broker.acl.plain import EXCEPTION
from mqfast.broker.acl.plain_files import PlainFiles
from mqfast.broker.acl.policies import Policies
from mqfast.broker.acl.required_permissions import NAME_MAX, Need, needs_of
from mqfast.broker.acl.rights import Caller, Rights
from mqfast.broker.acl.users import Users, denied
from mqfast.broker.metadata.topic_manager import RETRY_PREFIX
from mqfast.errors import CallRefused, FieldError
from mqfast.remoting.channel import Channel
from mqfast.remoting.command import RemotingCommand, repeated_name
from mqfast.remoting.processors import Processors
from mqfast.remoting.signature import ACCESS_KEY
from mqfast.util.log_limit import LogLimit

__all__ = ["AclFilter", "GuardedProcessors"]


class AclFilter(Rights):
    """Compares requests, and the resources that handlers find behind a request, with accounts and rules.

    Args:
        plain: accounts of ACL 1.0.
        users: of ACL 2.0, which sign.
        policies: rules of the users; without rules every user may do everything. Needs ``users``.
        authorization_whitelist: codes that need no rule.
        cluster: the broker's.
        trusts_proxy: use the address in a PROXY header, not that of the TCP connection.
        offset_of: returns the offset of a group in a queue of a topic, -1 without one.
    """

    compares = True

    def __init__(
        self,
        plain: PlainFiles | None = None,
        users: Users | None = None,
        policies: Policies | None = None,
        *,
        authorization_whitelist: Iterable[int] = (),
        cluster: str = "DefaultCluster",
        trusts_proxy: bool = False,
        offset_of: Callable[[str, str, int], int] = lambda _group, _topic, _queue: -1,
    ) -> None:
        self._plain = plain
        self._users = users
        self._policies = policies
        self._whitelist: Final = frozenset(authorization_whitelist)
        self._cluster: Final = cluster
        self._trusts_proxy = trusts_proxy
        self._offset_of = offset_of
        self._log = LogLimit(logging.getLogger("mqfast.broker.acl"))

    def check(self, channel: Channel, request: RemotingCommand) -> None:
        """Raise CallRefused with the response for a request that is not permitted."""
        self._check(channel, request, None)

    def admit(self, channel: Channel, request: RemotingCommand, *needs: Need) -> None:
        """Check as ``Rights.admit``."""
        self._check(channel, request, needs)

    def secret_of(self, access_key: str) -> str | None:
        """Return as ``Rights.secret_of``."""
        user = None if self._users is None else self._users.get(access_key)
        if user is not None:
            return user.password
        return None if self._plain is None else self._plain.secret_of(access_key)

    def _check(self, channel: Channel, request: RemotingCommand, needs: tuple[Need, ...] | None) -> None:
        """Check a request. Args: needs: None: those of its code."""
        if needs is not None:
            needs = (*self._with_pop_groups(needs),)
        address = self._address(channel)
        try:
            if (name := repeated_name(request)) is not None:  # the signature may belong to the other value
                raise denied(f"field {name[:40]}: expected once, found twice")
            if self._plain is not None:
                self._plain.check(request, address, self._needs_of, needs)
            if self._users is not None:
                name = self._users.authenticate(request)
                if self._policies is not None and request.code not in self._whitelist:
                    self._authorize(self._users, self._policies, Caller(name, address), request, needs)
        except CallRefused as error:
            raise self._logged(request, address, error) from None

    def _address(self, channel: Channel) -> str:
        return (channel.peer if self._trusts_proxy else channel.socket_peer)[0]

    def _logged(self, request: RemotingCommand, address: str, error: CallRefused) -> CallRefused:
        self._log.warning("refused", "%s: request %d refused: %s", address, request.code, error.remark)
        return error

    def _authorize(
        self,
        users: Users,
        policies: Policies,
        caller: Caller,
        request: RemotingCommand,
        given: tuple[Need, ...] | None,
    ) -> None:
        if users.is_super(caller.name):
            return
        try:
            needs = self._needs_of(request) if given is None else given
        except FieldError:
            raise denied("parse authorization context error.") from None
        for need in needs:
            policies.authorize(caller.name, need, caller.address)

    def _needs_of(self, request: RemotingCommand) -> Sequence[Need]:
        return self._with_pop_groups(needs_of(request, self._cluster))

    def _with_pop_groups(self, needs: Sequence[Need]) -> Sequence[Need]:
        """Add the POP groups whose messages a retry topic contains.

        ``%RETRY%a_b`` is the retry topic of the group a_b, and that of the group a for the topic b. POP commits an
        offset there before the first message.
        """
        more = [
            need._replace(name=group) for need in needs if need.of_retry_topic for group in self._pop_groups(need.name)
        ]
        return [*needs, *more] if more else needs

    def _pop_groups(self, name: str) -> Iterator[str]:
        topic = RETRY_PREFIX + name
        if len(name) <= NAME_MAX and "@" not in name:
            for place in range(1, len(name)):
                if name[place] == "_" and self._offset_of(name[:place], topic, 0) >= 0:
                    yield name[:place]

    # --- checks by handlers ---

    def caller(self, channel: Channel, request: RemotingCommand) -> Caller:
        """Return as ``Rights.caller``."""
        if self._users is None:
            name = str(request.ext_fields.get(ACCESS_KEY) or "")
        else:
            name = self._users.signer(request)
        return Caller(name, self._address(channel))

    def may(self, caller: Caller, *needs: Need) -> bool:
        """Return as ``Rights.may``."""
        try:
            self._compare(caller, needs, 0)
        except CallRefused:
            return False
        return True

    def demand(self, channel: Channel, request: RemotingCommand, *needs: Need) -> None:
        """Check as ``Rights.demand``."""
        caller = self.caller(channel, request)
        try:
            self._compare(caller, needs, request.code)
        except CallRefused as error:
            self._logged(request, caller.address, error)
            # The text of the error would name resources that the caller may not know.
            begin = EXCEPTION if (error.remark or "").startswith(EXCEPTION) else ""
            remark = f"{begin}{caller.name} has no permission for what is asked for"
            raise CallRefused(error.code, remark) from None

    def _compare(self, caller: Caller, needs: Sequence[Need], code: int) -> None:
        needs = self._with_pop_groups(needs)
        if self._plain is not None:
            self._plain.compare(caller, needs, code)
        if self._users is None or self._policies is None or code in self._whitelist:
            return
        if not self._users.is_super(caller.name):
            for need in needs:
                self._policies.authorize(caller.name, need, caller.address)


class GuardedProcessors(Processors):
    """A table of processors behind a filter."""

    def __init__(self, guard: AclFilter) -> None:
        super().__init__()
        self._guard = guard

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Serve a request that passes the filter; else send the response of the filter."""
        try:
            self._guard.check(channel, request)
        except CallRefused as error:
            channel.answer(request, request.response(error.code, remark=error.remark))
            return
        except Exception as error:  # a request does not pass after an exception of the filter
            channel.answer(request, self._failure(request, error))
            return
        super().dispatch(channel, request)
