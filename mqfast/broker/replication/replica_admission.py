"""The peers that may follow this master: the port of replication sends the whole log and trusts the acks of slaves.

RocketMQ's port accepts every peer. Here only peers named by a setting or a name server are accepted. The event loop is
not blocked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from mqfast.broker.acl.addresses import is_in_network, is_network
from mqfast.errors import ConfigError
from mqfast.remoting.tls import client_context, server_context

if TYPE_CHECKING:
    from mqfast.broker.config.broker_config import BrokerConfig

__all__ = ["Admission", "HaTls"]

_log = logging.getLogger("mqfast.broker")
_ASKING_MAX: Final = 16
_TLS_NAMES: Final = ("haTlsCaFile", "haTlsCertFile", "haTlsKeyFile")


class HaTls:
    """TLS between brokers: both ends have a certificate signed by the same CA, which signs only brokers.

    Raises: ConfigError for a missing or invalid file.
    Thread: any.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._ca, self._certificate, self._key = (str(config[name]) for name in _TLS_NAMES)
        for name, path in zip(_TLS_NAMES, (self._ca, self._certificate, self._key), strict=True):
            if not path:
                raise ConfigError(f"{name}: expected a file together with {_given(config)}, found none")
        self.server: Final = self._make_server()
        self.client()
        self._seen = self._times()

    @classmethod
    def of(cls, config: BrokerConfig) -> HaTls | None:
        """Return the TLS of the settings; None without files."""
        return cls(config) if _given(config) else None

    def _make_server(self) -> ssl.SSLContext:
        context = server_context(
            {
                "tls.server.certPath": self._certificate,
                "tls.server.keyPath": self._key,
                "tls.server.trustCertPath": self._ca,
                "tls.server.need.client.auth": "require",
            }
        )
        assert context is not None
        return context

    def client(self) -> ssl.SSLContext:
        """Return a context for the next connection to a master, from the current files."""
        return client_context(
            {
                "tls.client.certPath": self._certificate,
                "tls.client.keyPath": self._key,
                "tls.client.trustCertPath": self._ca,
                "tls.client.authServer": "true",
            }
        )

    def _times(self) -> list[tuple[int, int] | None]:
        times: list[tuple[int, int] | None] = []
        for path in (self._ca, self._certificate, self._key):
            try:
                status = os.stat(path)
            except OSError:
                times.append(None)
            else:
                times.append((status.st_mtime_ns, status.st_ino))
        return times

    def reload_if_changed(self) -> None:
        """Load renewed files for the next connections; files that do not match leave the previous files in force."""
        if (times := self._times()) == self._seen:
            return
        self._seen = times
        try:
            self._make_server()
            self.server.load_cert_chain(self._certificate, self._key, lambda: "")
            self.server.load_verify_locations(self._ca)
        except (ConfigError, OSError) as error:
            _log.error("replication: the certificate of before stays in force: %s", error)


def _given(config: BrokerConfig) -> str:
    return next((name for name in _TLS_NAMES if config[name]), "")


class Admission:
    """Decides which peers may follow.

    - ``haAllowedAddresses``: these addresses and networks.
    - Else with TLS: every broker with a certificate.
    - Else with access control: no peer.
    - Else with ``haListenPort``, ``haBindAddress`` or fail-over: every peer.
    - Else a slave of this broker's name that the name servers have at the peer's address.

    Args: slave_hosts: asks the name servers for the hosts of this broker's slaves.
    Attributes: ``who``: the rule in words; ``is_open``: whether any peer may follow.
    Raises: ConfigError for an invalid address.
    Thread: that of the event loop.
    """

    def __init__(self, config: BrokerConfig, *, has_tls: bool, slave_hosts: Callable[[], Awaitable[set[str]]]) -> None:
        self._slave_hosts: Final = slave_hosts
        self._networks: Final = _networks(str(config["haAllowedAddresses"]))
        self._asking = 0
        self._lock: Final = asyncio.Lock()
        given = config.given()
        is_configured = "haListenPort" in given or bool(config["haBindAddress"]) or bool(config["haEtcdEndpoints"])
        self._takes_all: Final = not self._networks and (has_tls or (is_configured and not config.is_guarded))
        self._asks: Final = not (self._networks or self._takes_all or config.is_guarded)
        self.is_open: Final = bool(self._networks) or self._takes_all or self._asks
        if self._networks:
            self.who = ", ".join(self._networks) + (" with a certificate" if has_tls else "")
        elif has_tls:
            self.who = "brokers with a certificate"
        elif self._takes_all:
            self.who = "everybody who reaches it"
        elif self._asks:
            self.who = "slaves that the name servers name"
        else:
            self.who = "nobody: access control is on; haAllowedAddresses or haTlsCertFile let slaves in"

    def __call__(self, host: str) -> bool | Awaitable[bool]:
        """Return whether a peer may follow; an awaitable if the name servers must be requested."""
        if self._takes_all:
            return True
        if any(network == "*" or is_in_network(host, network) for network in self._networks):
            return True
        if not self._asks or self._asking >= _ASKING_MAX:
            return False
        self._asking += 1
        return self._is_named(host)

    async def _is_named(self, host: str) -> bool:
        try:
            async with self._lock:  # no concurrent requests, even in a flood of connections
                named = {_plain(slave_host) for slave_host in await self._slave_hosts()}
            # On one machine the kernel chooses the address that a peer connects from.
            return _plain(host) in named or (_is_here(host) and any(map(_is_here, named)))
        finally:
            self._asking -= 1


def _networks(text: str) -> list[str]:
    networks = [word for word in re.split(r"[,;\s]+", text) if word]
    for word in networks:
        if word != "*" and not is_network(word):
            raise ConfigError(
                f"haAllowedAddresses: expected addresses as 10.0.0.2 and networks as 10.0.0.0/24 between commas, or *, "
                f"found {word!r}"
            )
    return networks


def _is_here(host: str) -> bool:
    """Return whether this is an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _plain(host: str) -> str:
    """Return the canonical spelling of an address."""
    try:
        ip = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
