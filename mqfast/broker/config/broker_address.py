"""The address that a broker announces, and a check whether clients reach the broker there.

An address of a container bridge of this machine is announced only by a setting, and no packet is sent to find an
address. Source: RemotingUtil.getLocalAddress, BrokerConfig.brokerIP1.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from mqfast.errors import ConfigError, ConnectionLost
from mqfast.remoting.client import RemotingClient, split_address

__all__ = ["Announced", "announced", "check_reached", "with_port"]

_log = logging.getLogger("mqfast.broker")
ADVERTISE: Final = "MQFAST_ADVERTISE"
_BRIDGES: Final = ("docker", "br-", "veth", "virbr", "cni", "podman", "lxcbr")
_ANYWHERE: Final = ("0.0.0.0", "::", "")
_FAR: Final = "192.0.2.1"  # of RFC 5737: has the default route


class Announced(NamedTuple):
    """An announced address. Attributes: host: as announced; ip: the same as a number, for records; port: None: that of
    the listener; why: source.
    """

    host: str
    ip: str
    port: int | None
    why: str


def announced(
    ip1: str, bind: str, name_servers: list[str], environment: Mapping[str, str], bridges: set[str] | None = None
) -> Announced:
    """Return the address for clients: brokerIP1, else MQFAST_ADVERTISE, else bindAddress, else that of the route.

    Args: bridges: addresses of container bridges; by default those of this machine.
    Raises: ConfigError for a name without an address, or if no address is found.
    """
    if ip1:
        return _named(ip1, None, "brokerIP1")
    if text := environment.get(ADVERTISE, "").strip():
        host, port = _split(text)
        return _named(host, port, ADVERTISE)
    if bind not in _ANYWHERE:
        return _named(bind, None, "bindAddress")
    known = _bridge_addresses() if bridges is None else bridges
    routes = [(f"the route to name server {name_server}", _route_to(name_server)) for name_server in name_servers]
    routes.append(("the route to everywhere", _route_to(f"{_FAR}:9")))
    usable = [(why, ip) for why, ip in routes if ip and ip not in known]
    # A name server on this machine gives no information about the location of clients.
    usable.sort(key=lambda route: ipaddress.ip_address(route[1]).is_loopback)
    for why, ip in usable:
        return Announced(ip, ip, None, why)
    raise ConfigError(
        "brokerIP1: expected the address for clients, found none, and no route leads to one but over a container "
        f"bridge; set brokerIP1 or {ADVERTISE}"
    )


def with_port(host: str, port: int) -> str:
    """Return ``host:port``; an IPv6 host is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(text: str) -> tuple[str, int | None]:
    try:
        ipaddress.ip_address(text)
        return text, None
    except ValueError:
        pass
    if ":" not in text:
        return text, None
    try:
        return split_address(text)
    except ValueError:
        raise ConfigError(f"{ADVERTISE}: expected host or host:port, found {text!r}") from None


def _named(host: str, port: int | None, why: str) -> Announced:
    host = host.strip().removeprefix("[").removesuffix("]")
    try:
        return Announced(host, str(ipaddress.ip_address(host)), port, why)
    except ValueError:
        pass
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{why}: expected an address or a name with one, found {host!r}: {error}") from None
    return Announced(host, str(resolved[0][4][0]), port, why)


def _route_to(target: str) -> str | None:
    """Return this machine's address for a target, from a connected UDP socket; no packet is sent."""
    try:
        host, port = split_address(target)
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port or 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0]).partition("%")[0]
    except (OSError, ValueError):
        pass
    return None


def _bridge_addresses() -> set[str]:
    """Return the IPv4 addresses of this machine's container bridges; on Linux only."""
    try:
        import fcntl

        request = 0x8915  # SIOCGIFADDR
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return {
                ip
                for _, name in socket.if_nameindex()
                if name.startswith(_BRIDGES) and (ip := _address_of(fcntl, probe, request, name))
            }
    except (ImportError, OSError):
        return set()


def _address_of(fcntl: object, probe: socket.socket, request: int, name: str) -> str | None:
    try:
        answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))  # type: ignore[attr-defined]
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


async def check_reached(client: RemotingClient, address: str, timeout_s: float = 3.0) -> bool:
    """Connect to the announced address as clients do; log a warning if that fails. Returns: True if connected."""
    try:
        async with asyncio.timeout(timeout_s):
            channel = await client.channel(address)
    except (ConnectionLost, TimeoutError, ValueError) as error:
        _log.warning(
            "the announced address %s does not lead back here (%s): clients will not reach this broker; set brokerIP1 "
            "or %s to an address that they reach",
            address, error, ADVERTISE,
        )  # fmt: skip
        return False
    channel.close()
    return True
