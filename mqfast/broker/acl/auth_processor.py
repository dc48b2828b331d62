"""The requests of admins for users and rules of ACL 2.0: 3001 to 3010.

No password leaves the broker. The ACL filter has checked the requests; only the permission to create a super user is
checked here. Source: AdminBrokerProcessor of 5.3.3 and 5.5.0, UserConverter, AclConverter.
"""

from __future__ import annotations

from typing import Final

from mqfast.broker.acl.policies import Acl, Policies, subject_of
from mqfast.broker.acl.terms import UserStatus, UserType, word
from mqfast.broker.acl.users import User, Users, denied
from mqfast.errors import CallRefused
from mqfast.remoting.bodies import decode_request, encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["AuthProcessor"]

_ONLY_SUPER: Final = "The super user can only be update by super user"


class AuthProcessor:
    """Serves 3001 to 3005 (users) and 3006 to 3010 (rules).

    Args: is_checked: whether users are authenticated by signatures; otherwise super users cannot be distinguished.
    """

    def __init__(self, users: Users, policies: Policies, *, is_checked: bool) -> None:
        self._users = users
        self._policies = policies
        self._is_checked = is_checked

    def register(self, processors: Processors) -> None:
        """Register the handlers."""
        lane = ConcurrencyLimit("auth")
        for code, handler in {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.put_acl,
            RequestCode.AUTH_UPDATE_ACL: self.put_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
        }.items():
            processors.register([code], handler, lane)

    def _by_super(self, request: RemotingCommand) -> bool:
        return not self._is_checked or self._users.is_super(self._users.signer(request))

    def create_user(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3001: create a user."""
        user = _user_of(request)
        if user.user_type == UserType.SUPER and not self._by_super(request):
            remark = "The super user can only be create by super user"
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        self._users.create(user)
        return request.response()

    def update_user(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3002: change password, type or status."""
        user = _user_of(request)
        if user.user_type == UserType.SUPER and not self._by_super(request):
            return request.response(ResponseCode.SYSTEM_ERROR, remark=_ONLY_SUPER)
        old = self._users.get(user.username or "")
        if old is not None and old.user_type == UserType.SUPER and not self._by_super(request):
            raise denied(_ONLY_SUPER)
        self._users.update(user)
        return request.response()

    def delete_user(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3003: delete a user and the user's rules."""
        name = _name(request)
        user = self._users.get(name)
        if user is not None:
            if user.user_type == UserType.SUPER and not self._by_super(request):
                raise denied(_ONLY_SUPER)
            self._users.delete(name)
            self._policies.forget(str(subject_of(f"User:{name}")))
        return request.response()

    def get_user(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3004: a user, without the password."""
        user = self._users.get(_name(request))
        return request.response(body=b"" if user is None else encode_body(user.shown))

    def list_users(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3005: users by a part of the name, without passwords."""
        users = [user.shown for user in self._users.listed(request.ext_fields.get("filter"))]
        return request.response(body=encode_body(users) if users else b"")

    def put_acl(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3006 and 3007: set rules of a user."""
        acl = decode_request(request.body, Acl, "body")
        if not acl.policies:
            raise CallRefused(
                ResponseCode.SYSTEM_ERROR,
                "org.apache.rocketmq.auth.authorization.exception.AuthorizationException: The body of acl is null",
            )
        self._policies.put(self._subject(acl.subject or request.ext_fields.get("subject")), acl)
        return request.response()

    def delete_acl(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3008: delete a rule of a user, or all rules."""
        fields = request.ext_fields
        self._policies.delete(self._subject(fields.get("subject")), fields.get("policyType"), fields.get("resource"))
        return request.response()

    def get_acl(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3009: the rules of a user."""
        acl = self._policies.get(self._subject(request.ext_fields.get("subject")))
        return request.response(body=b"" if acl is None else encode_body(acl))

    def list_acls(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 3010: rules by parts of the names of users and resources."""
        fields = request.ext_fields
        acls = self._policies.listed(fields.get("subjectFilter"), fields.get("resourceFilter"))
        return request.response(body=encode_body(acls) if acls else b"")

    def _subject(self, text: str | None) -> str:
        subject = subject_of(text)
        if subject is None:
            raise denied("The subject is null.")
        if self._users.get(subject.partition(":")[2]) is None:
            raise denied(f"The subject of {subject} is not exist.")
        return subject


def _name(request: RemotingCommand) -> str:
    name = request.ext_fields.get("username", "")
    if not name.strip():
        raise CallRefused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return str(name)


def _user_of(request: RemotingCommand) -> User:
    name, given = _name(request), decode_request(request.body, User, "body")
    return User(name, given.password, word(UserType, given.user_type), word(UserStatus, given.user_status))
