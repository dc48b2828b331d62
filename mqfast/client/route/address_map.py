"""Addresses that brokers register, and the addresses to connect to from this client: containers, tunnels, networks.

Routes do not change: only the connection uses another address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from mqfast.errors import ClientConfigError
from mqfast.remoting.client import split_address

__all__ = ["AddressMap", "checked_map", "hint", "reached_at"]

AddressMap: TypeAlias = tuple[tuple[str, str], ...]
"""(registered host:port, host:port to connect to) in order; or a host alone on both sides."""
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")


def checked_map(given: object) -> AddressMap:
    """Return the checked argument ``address_map``. Raises: ConfigError."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ClientConfigError(f"address_map: expected a mapping of addresses, found {type(given).__name__}")
    for pair in given.items():
        for address in pair:
            if not isinstance(address, str) or not address:
                raise ClientConfigError(f"address_map: expected host:port or host as text, found {address!r}")
        if ":" in pair[0] or ":" in pair[1]:
            for address in pair:
                try:
                    split_address(address)
                except ValueError as error:
                    raise ClientConfigError(f"address_map, {pair[0]!r}: {error}") from None
    return tuple(given.items())


def reached_at(pairs: AddressMap, address: str) -> tuple[str, int]:
    """Return (host, port) to connect to for an address. Raises: ValueError for an invalid address."""
    host, port = split_address(address)
    for told, there in pairs:
        if told == address:
            return split_address(there)
        if told == host:
            return there, port
    return host, port


def hint(address: str, name_servers: Iterable[str], broker: str) -> str:
    """Return the likely reason why a broker cannot be reached; empty where nothing is known.

    Inside of a container or a private network a broker often registers an address that others cannot reach.
    """
    host = _host(address)
    if address in name_servers or host in map(_host, name_servers) or not _is_inner(host):
        return ""
    return (
        f"; this is the address that broker {broker} told the name servers: set brokerIP1 of the broker to an address "
        "that clients reach, or address_map= of this client"
    )


def _is_inner(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private  # the loopback interface as well
    except ValueError:
        return True  # a name: of a container, perhaps


def _host(address: str) -> str:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return "127.0.0.1" if host in _LOCAL_NAMES else host
