"""ACL 2.0: the users, and the authentication of requests.

The file is on disk before a change takes effect, so that no user is lost. RocketMQ stores users in RocksDB; here they
are in ``config/authUsers.json``, in clear as there, since the password is needed to check a signature. Source:
AuthenticationMetadataManagerImpl, DefaultAuthenticationHandler.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from mqfast.broker.acl.terms import UserStatus, UserType
from mqfast.errors import CallRefused, CorruptFile, FieldError
from mqfast.remoting.bodies import build_tables, decode_body, encode_body
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.signature import is_signed_with, signer_of
from mqfast.util.atomic_file import replace_file

__all__ = ["User", "Users", "denied"]


def denied(text: str) -> CallRefused:
    """Return the response of a Java broker: code 16 and the exception's text."""
    return CallRefused(ResponseCode.NO_PERMISSION, text)


class User(Struct, rename="camel", omit_defaults=True, frozen=True):
    """Body of 3001 and 3002, and, without the password, of 3004 and 3005: UserInfo."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    @property
    def shown(self) -> User:
        """Return the user without the password."""
        return User(self.username, None, self.user_type, self.user_status)

    def __repr__(self) -> str:
        return f"<user {self.username}, {self.user_type}, {self.user_status}>"


class _File(Struct):
    users: dict[str, User] = {}


class Users:
    """All users, by name.

    Args: path: of the file; without a file there are no users. whitelist: codes that need no user.
    Raises: CorruptFile, OSError for an invalid or unreadable file.
    """

    def __init__(self, path: Path, whitelist: Iterable[int] = ()) -> None:
        self._path = path
        self._whitelist = frozenset(whitelist)
        self._users: dict[str, User] = {}
        if path.exists():
            try:
                self._users = decode_body(path.read_bytes(), _File, "users").users
            except FieldError as error:
                raise CorruptFile(f"the users cannot be read ({error}); repair the file", path=str(path)) from None

    def __len__(self) -> int:
        return len(self._users)

    def authenticate(self, request: RemotingCommand) -> str:
        """Return the user that signed this request; empty for a code that needs no user. Raises: CallRefused."""
        if request.code not in self._whitelist:
            return self._signed_by(request)
        try:
            return self._signed_by(request)
        except CallRefused:
            return ""  # a name without a signature is no proof

    def signer(self, request: RemotingCommand) -> str:
        """Return the user that signed an authenticated request."""
        if request.code in self._whitelist:
            return self.authenticate(request)
        return str(signer_of(request) or "")

    def _signed_by(self, request: RemotingCommand) -> str:
        name = signer_of(request)
        if not name:
            raise denied("username cannot be null.")
        user = self._users.get(name)
        if user is None:
            raise denied(f"User:{name} is not found.")
        if user.user_status == UserStatus.DISABLE:
            raise denied(f"User:{name} is disabled.")
        if not is_signed_with(request, user.password or ""):
            raise denied("check signature failed.")
        return str(name)

    def get(self, name: str) -> User | None:
        """Return a user, None if unknown."""
        return self._users.get(name)

    def is_super(self, name: str) -> bool:
        """Return True for a super user. Raises: CallRefused for an unknown or disabled user."""
        user = self._users.get(name)
        if user is None:
            raise denied(f"User:{name} is not found")
        if user.user_status == UserStatus.DISABLE:
            raise denied(f"User:{name} is disabled.")
        return user.user_type == UserType.SUPER

    def listed(self, part: str | None) -> list[User]:
        """Return the users with ``part`` in the name, in the order of names."""
        return [self._users[name] for name in sorted(self._users) if not part or part in name]

    def create(self, user: User) -> None:
        """Add a user. Raises: CallRefused, OSError."""
        name = (user.username or "").strip()
        if not name:
            raise denied("username can not be blank")
        if not (user.password or "").strip():
            raise denied("password can not be blank")
        if name in self._users:
            raise denied("The user is existed")
        self._put(User(name, user.password, user.user_type or UserType.NORMAL, user.user_status or UserStatus.ENABLE))

    def update(self, user: User) -> None:
        """Change the given fields of a user. Raises: CallRefused, OSError."""
        old = self._users.get(user.username or "")
        if old is None:
            raise denied("The user is not exist")
        password = user.password if (user.password or "").strip() else old.password
        self._put(User(old.username, password, user.user_type or old.user_type, user.user_status or old.user_status))

    def delete(self, name: str) -> None:
        """Remove a user; no effect for an unknown user. Raises: OSError."""
        self._write({other: user for other, user in self._users.items() if other != name})

    def _put(self, user: User) -> None:
        self._write({**self._users, str(user.username): user})

    def _write(self, users: dict[str, User]) -> None:
        replace_file(self._path, encode_body(_File(users)))
        self._users = users


build_tables(__name__)
