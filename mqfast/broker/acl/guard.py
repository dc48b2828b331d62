"""The guard: looks at a request before its handler does, and answers in its place where the caller may not.

Room: broker/acl. It must never be a cost where no access control is configured: a server without it has a table of
processors without a guard. Source: NettyRemotingAbstract.doBeforeRpcHooks, AuthenticationPipeline,
AuthorizationPipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from mqfast.broker.acl.needs import TopicAt, needs_of
from mqfast.broker.acl.plain_files import PlainFiles
from mqfast.broker.acl.policies import Policies
from mqfast.broker.acl.users import Users, denied
from mqfast.errors import CallRefused, FieldError
from mqfast.remoting.channel import Channel
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.log_limit import LogLimit
from mqfast.remoting.processors import Processors
from mqfast.remoting.signature import ACCESS_KEY

__all__ = ["Guard", "GuardedProcessors"]


class Guard:
    """What must be true of a request.

    Args:
        plain: accounts of ACL 1.0.
        users: those of ACL 2.0, who sign.
        policies: what the users may do; without them every user may do everything. Needs ``users``.
        authorization_whitelist: codes that need no rule.
        topic_at: physical offset -> topic of the message there.
        trusts_proxy: the address in a PROXY preamble counts, not that of the TCP connection.
    """

    def __init__(
        self,
        plain: PlainFiles | None = None,
        users: Users | None = None,
        policies: Policies | None = None,
        *,
        authorization_whitelist: Iterable[int] = (),
        topic_at: TopicAt = lambda _: None,
        trusts_proxy: bool = False,
    ) -> None:
        self._plain = plain
        self._users = users
        self._policies = policies
        self._whitelist: Final = frozenset(authorization_whitelist)
        self._topic_at = topic_at
        self._trusts_proxy = trusts_proxy
        self._log = LogLimit(logging.getLogger("mqfast.broker.acl"))

    def check(self, channel: Channel, request: RemotingCommand) -> None:
        """May this request be served? Raises: CallRefused."""
        address = (channel.peer if self._trusts_proxy else channel.socket_peer)[0]
        try:
            if self._plain is not None:
                self._plain.check(request, address, self._topic_at)
            if self._users is not None:
                self._users.authenticate(request)
                if self._policies is not None and request.code not in self._whitelist:
                    self._authorize(self._users, self._policies, request, address)
        except CallRefused as error:
            self._log.warning("refused", "%s: request %d refused: %s", address, request.code, error.remark)
            raise

    def _authorize(self, users: Users, policies: Policies, request: RemotingCommand, address: str) -> None:
        name = request.ext_fields.get(ACCESS_KEY, "")
        user = users.get(name)
        if user is not None and users.is_super(name):
            return
        try:
            needs = needs_of(request, self._topic_at)
        except FieldError:
            raise denied("parse authorization context error.") from None
        for need in needs:
            policies.authorize(name, need, address)


class GuardedProcessors(Processors):
    """A table of processors behind a guard."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Serve the request when the guard lets it pass; else the guard's answer."""
        try:
            self._guard.check(channel, request)
        except CallRefused as error:
            channel.answer(request, request.response(error.code, remark=error.remark))
            return
        except Exception as error:  # a fault of the guard lets nothing pass
            channel.answer(request, self._failure(request, error))
            return
        super().dispatch(channel, request)
