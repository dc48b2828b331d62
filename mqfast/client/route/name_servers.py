"""Addresses of name servers: from an argument, the environment or an HTTP address server.

Source: NameServerAddressUtils, TopAddressing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final

from mqfast.errors import ClientConfigError
from mqfast.remoting.client import split_address

__all__ = ["ENVIRONMENT", "NameServers", "fetch_addresses", "parse_addresses"]

ENVIRONMENT: Final = "NAMESRV_ADDR"
_ANSWER_BYTES_MAX: Final = 64 * 1024


def parse_addresses(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the addresses of ``"a:9876;b:9876"``, of a list, or of NAMESRV_ADDR; or the URL of an address server
    alone.

    The default port is 9876. Raises: ConfigError.
    """
    if given is None:
        given = os.environ.get(ENVIRONMENT, "")
        if not given.strip():
            raise ClientConfigError(f"namesrv_addr: expected host:port or the variable {ENVIRONMENT}, found neither")
    checked: object = given
    if not isinstance(checked, (str, list, tuple)):
        raise ClientConfigError(f"namesrv_addr: expected text or a list of addresses, found {type(given).__name__}")
    parts = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
    addresses: list[str] = []
    for part in parts:
        if not isinstance(part, str):
            raise ClientConfigError(f"namesrv_addr: expected text in the list, found {type(part).__name__}")
        address = part.strip()
        if not address:
            continue
        if address.startswith(("http://", "https://")):
            if len([text for text in parts if text.strip()]) > 1:
                raise ClientConfigError(f"namesrv_addr: expected one URL alone, found {given!r}")
            return (address,)
        if any(map(str.isspace, address)):
            raise ClientConfigError(f"namesrv_addr: expected addresses with ';' between them, found {address!r}")
        if ":" not in address:
            address += ":9876"
        try:
            split_address(address)
        except ValueError as error:
            raise ClientConfigError(f"namesrv_addr: {error}") from None
        if address not in addresses:
            addresses.append(address)
    if not addresses:
        raise ClientConfigError(f"namesrv_addr: expected host:port, found {given!r}")
    return tuple(addresses)


def fetch_addresses(url: str, timeout_s: float = 3.0) -> tuple[str, ...]:
    """Return the addresses of an address server. The call blocks. Raises: OSError, ConfigError."""
    from urllib.request import urlopen

    with urlopen(url, timeout=timeout_s) as answer:  # the scheme was checked by parse_addresses
        return parse_addresses(answer.read(_ANSWER_BYTES_MAX).decode("utf-8", "replace"))


class NameServers:
    """The name servers of a cluster, the last to answer first.

    Args: given: addresses, or the URL of an address server (``url``); ``update`` then sets the addresses later.
    Thread: any; each method is a single assignment or reads a single tuple.
    """

    def __init__(self, given: tuple[str, ...], source: random.Random | None = None) -> None:
        self.url = given[0] if given and given[0].startswith(("http://", "https://")) else None
        self._random = source or random.Random()
        self._addresses: tuple[str, ...] = ()
        if self.url is None:
            self.update(given)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return all addresses, in the order of requests."""
        return self._addresses

    def update(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses; new addresses are in random order, known addresses keep the order."""
        known = tuple(address for address in self._addresses if address in addresses)
        new = [address for address in addresses if address not in known]
        self._random.shuffle(new)
        self._addresses = known + tuple(new)

    def failed(self, address: str) -> None:
        """Move an address to the end after a failed request."""
        if address in self._addresses:
            self._addresses = (*(known for known in self._addresses if known != address), address)
