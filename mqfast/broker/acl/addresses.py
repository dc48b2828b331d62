"""Addresses of rules: an address, several, or a range for each part (ACL 1.0), and networks (ACL 2.0).

Only addresses named by a rule match: where Java ignores the parts after a range, every part counts here. Source:
RemoteAddressStrategyFactory, IPAddressUtils.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from mqfast.errors import ConfigError

__all__ = ["Matcher", "is_in_network", "is_network", "pattern"]

Matcher = Callable[[str], bool]
_Parts = list[tuple[int, int]]


def pattern(text: str | None) -> Matcher:
    """Return the matcher of an entry of a white list, which matches nothing for an empty entry. Raises: ConfigError.

    ``*``; ``10.1.2.3``; ``10.1.2.3,10.1.2.4``; ``10.1.2.{3,4}``; ``10.1.*.*``; ``10.1.2-9.*``; the same with the parts
    of IPv6, ranges in the last two.
    """
    entry = (text or "").strip()
    if not entry:
        return _nobody
    if entry in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return _everybody
    if entry.endswith("}"):
        head, _, tail = entry[:-1].partition("{")
        names = [head + word.strip() for word in tail.split(",") if word.strip()]
        if not names or head[-1:] not in (".", ":"):
            raise _wrong(entry)
    else:
        names = [word.strip() for word in entry.split(",") if word.strip()]
    rules = [_rule(name, entry) for name in names]
    return lambda address: any(_matches(rule, _numbers(address)) for rule in rules)


def _nobody(_: str) -> bool:
    return False


def _everybody(_: str) -> bool:
    return True


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"white list: expected an IP address, a list a,b, a choice 10.1.2.{{3,4}} or a range 10.1.2-9.*, found {text!r}"
    )


def _numbers(address: str) -> list[int]:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return []
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped  # an IPv4 client of a dual-stack socket
    size = 1 if ip.version == 4 else 2
    return [int.from_bytes(ip.packed[i : i + size], "big") for i in range(0, len(ip.packed), size)]


def _matches(rule: _Parts, numbers: list[int]) -> bool:
    return len(rule) == len(numbers) and all(
        low <= number <= high for (low, high), number in zip(rule, numbers, strict=True)
    )


def _rule(name: str, whole: str) -> _Parts:
    if "*" not in name and "-" not in name:
        numbers = _numbers(name)
        if not numbers:
            raise _wrong(whole)
        return [(number, number) for number in numbers]
    if ":" not in name:
        words, size, base, largest = name.split("."), 4, 10, 255
    else:
        head, gap, tail = name.partition("::")
        before, after = [w for w in head.split(":") if w], [w for w in tail.split(":") if w]
        words = before + ["0"] * (8 - len(before) - len(after) if gap else 0) + after
        size, base, largest = 8, 16, 0xFFFF
    if len(words) != size:
        raise _wrong(whole)
    return [_part(word.strip(), base, largest, whole) for word in words]


def _part(word: str, base: int, largest: int, whole: str) -> tuple[int, int]:
    if word == "*":
        return 0, largest
    digits = "[0-9]{1,3}" if base == 10 else "[0-9a-fA-F]{1,4}"
    match = re.fullmatch(f"({digits})(?:-({digits}))?", word)
    if not match:
        raise _wrong(whole)
    low = int(match[1], base)
    high = int(match[2], base) if match[2] else low
    if not low <= high <= largest:
        raise _wrong(whole)
    return low, high


def is_network(text: str) -> bool:
    """Return True for an address, or a network such as 10.0.0.0/8."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def is_in_network(address: str, network: str) -> bool:
    """Return True if the address is equal to the rule's address or in the rule's network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip in ipaddress.ip_network(network, strict=False)
