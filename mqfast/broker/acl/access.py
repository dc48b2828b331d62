"""The access control of a broker: created from the settings, with a watch of the files of ACL 1.0.

No overhead without access control. Source: BrokerController.initialAcl, AuthenticationFactory, AuthorizationFactory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mqfast.broker.acl.acl_filter import AclFilter, GuardedProcessors
from mqfast.broker.acl.auth_processor import AuthProcessor
from mqfast.broker.acl.plain_files import PlainFiles
from mqfast.broker.acl.plain_processor import PlainAclProcessor
from mqfast.broker.acl.policies import Policies
from mqfast.broker.acl.rights import Rights
from mqfast.broker.acl.terms import UserType
from mqfast.broker.acl.users import User, Users
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.errors import ConfigError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import VERSION, Buffer, RemotingCommand
from mqfast.remoting.processors import Processors
from mqfast.remoting.signature import sign

__all__ = ["AccessControl", "SigningClient"]

_LOOK_S = 0.5
_USER_HINT = "set initAuthenticationUser, or make a user with mqadmin createUser before"


class SigningClient(RemotingClient):
    """A client that signs all requests.

    Args: access_key, secret: of the user for the broker's requests.
    """

    def __init__(self, access_key: str, secret: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._signer = access_key, secret

    async def call(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        timeout_ms: int = 3000,
        serialize: int | None = None,
        version: int = VERSION,
    ) -> RemotingCommand:
        """Call as ``RemotingClient.call``, with a signature."""
        fields = sign(ext_fields or {}, body, *self._signer)
        return await super().call(
            address, code, fields, body, timeout_ms=timeout_ms, serialize=serialize, version=version
        )

    async def oneway(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        serialize: int | None = None,
    ) -> None:
        """Send as ``RemotingClient.oneway``, with a signature."""
        await super().oneway(address, code, sign(ext_fields or {}, body, *self._signer), body, serialize=serialize)


class AccessControl:
    """Serves 50 to 54 with ACL 1.0, and 3001 to 3010.

    Created after the store is opened, since the first users may be written into its ``config/``.

    Args: config: of the broker; offset_of: returns the offset of a group in a queue of a topic, -1 without one.
    Attributes: ``address``: of the broker, for 52; ``policy``: in a sentence, for the banner; ``rights``: for checks by
        handlers.
    Raises: ConfigError, CorruptFile, OSError if the settings or files are invalid.
    Thread: that of the event loop.
    """

    def __init__(self, config: BrokerConfig, offset_of: Callable[[str, str, int], int]) -> None:
        self.address = ""
        self._config = config
        self._offset_of = offset_of
        self._timer: asyncio.TimerHandle | None = None
        directory = Path(config.store_path) / "config"
        self._plain = PlainFiles(_plain_file(config)) if config["aclEnable"] else None
        self._users = Users(directory / "authUsers.json", _codes(config, "authenticationWhitelist"))
        self._policies = Policies(directory / "authAcls.json", config["brokerClusterName"])
        # A name without a signature is no proof: rules need users that sign.
        self._authenticates = config["authenticationEnabled"] or config["authorizationEnabled"]
        self._inner = _pair(config, "innerClientAuthenticationCredentials", "accessKey", "secretKey")
        if self._authenticates:
            self._make_first_users()
        self.rights: Final[Rights] = self._make_rights()

    def _make_first_users(self) -> None:
        first = _pair(self._config, "initAuthenticationUser", "username", "password")
        for pair in (first, self._inner):
            if pair is not None and self._users.get(pair[0]) is None:
                self._users.create(User(*pair, UserType.SUPER))
        if not len(self._users):
            raise ConfigError(f"authenticationEnabled: expected a user, found none, nobody would get in; {_USER_HINT}")

    @property
    def policy(self) -> str:
        """Return the checks in a sentence."""
        checks = [
            *(["ACL 1.0"] if self._plain is not None else []),
            *(["users sign"] if self._authenticates else []),
            *(["users have rules"] if self._config["authorizationEnabled"] else []),
        ]
        return ", ".join(checks) or "none: everybody who connects may do everything"

    def processors(self) -> Processors:
        """Return the table for requests, behind a filter if there are checks."""
        return GuardedProcessors(self.rights) if isinstance(self.rights, AclFilter) else Processors()

    def _make_rights(self) -> Rights:
        if self._plain is None and not self._authenticates:
            return Rights()
        return AclFilter(
            self._plain,
            self._users if self._authenticates else None,
            self._policies if self._config["authorizationEnabled"] else None,
            authorization_whitelist=_codes(self._config, "authorizationWhitelist"),
            cluster=self._config["brokerClusterName"],
            trusts_proxy=self._config["aclTrustProxyProtocol"],
            offset_of=self._offset_of,
        )

    def client(self, **settings: Any) -> RemotingClient:
        """Return the client of the broker for other servers."""
        return RemotingClient(**settings) if self._inner is None else SigningClient(*self._inner, **settings)

    def register(self, processors: Processors) -> None:
        """Register the handlers."""
        config = self._config
        if self._plain is not None:
            PlainAclProcessor(
                self._plain, address=self.address, name=config["brokerName"], cluster=config["brokerClusterName"]
            ).register(processors)
        AuthProcessor(self._users, self._policies, is_checked=self._authenticates).register(processors)

    def start(self) -> None:
        """Start to poll the files of ACL 1.0 for changes."""
        if self._plain is not None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._poll)

    def _poll(self) -> None:
        if self._plain is not None:
            self._plain.reload_if_changed()
        self.start()

    async def stop(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()


def _plain_file(config: BrokerConfig) -> Path:
    if config["aclFile"]:
        return Path(config["aclFile"])
    if config["rocketmqHome"]:
        return Path(config["rocketmqHome"]) / "conf" / "plain_acl.yml"
    raise ConfigError("aclEnable: expected aclFile or rocketmqHome, to find plain_acl.yml, found neither")


def _codes(config: BrokerConfig, name: str) -> list[int]:
    words = [word.strip() for word in str(config[name]).split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"{name}: expected request codes between commas, found {config[name]!r}")
    return [int(word) for word in words]


def _pair(config: BrokerConfig, name: str, first: str, second: str) -> tuple[str, str] | None:
    """Return two texts of a JSON object in the format of RocketMQ's settings; errors do not show the value."""
    if not str(config[name]).strip():
        return None
    try:
        fields = json.loads(config[name])
        pair = str(fields[first]), str(fields[second])
    except (ValueError, KeyError, TypeError):
        pair = ("", "")
    if not all(pair):
        raise ConfigError(f'{name}: expected {{"{first}":"...","{second}":"..."}}, found another text')
    return pair
