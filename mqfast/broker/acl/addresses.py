"""Addresses that a rule names: one, several, or a range of each part (ACL 1.0), and networks (ACL 2.0).

Room: broker/acl. It must never match an address that a rule does not name: where Java ignores what stands behind a
range, every part counts here. Source: RemoteAddressStrategyFactory, IPAddressUtils.
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
    """What an entry of a white list matches; nothing where it is empty. Raises: ConfigError.

    ``*``; ``10.1.2.3``; ``10.1.2.3,10.1.2.4``; ``10.1.2.{3,4}``; ``10.1.*.*``; ``10.1.2-9.*``; the same with the parts
    of IPv6, ranges in the last two.
    """
    found = (text or "").strip()
    if not found:
        return _nobody
    if found in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return _everybody
    if found.endswith("}"):
        head, _, tail = found[:-1].partition("{")
        names = [head + one.strip() for one in tail.split(",") if one.strip()]
        if not names or head[-1:] not in (".", ":"):
            raise _wrong(found)
    else:
        names = [one.strip() for one in found.split(",") if one.strip()]
    rules = [_rule(name, found) for name in names]
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
        ip = ip.ipv4_mapped  # an IPv4 client of a socket that listens to both
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
        words, size, base, most = name.split("."), 4, 10, 255
    else:
        head, gap, tail = name.partition("::")
        before, after = [w for w in head.split(":") if w], [w for w in tail.split(":") if w]
        words = before + ["0"] * (8 - len(before) - len(after) if gap else 0) + after
        size, base, most = 8, 16, 0xFFFF
    if len(words) != size:
        raise _wrong(whole)
    return [_part(word.strip(), base, most, whole) for word in words]


def _part(word: str, base: int, most: int, whole: str) -> tuple[int, int]:
    if word == "*":
        return 0, most
    digits = "[0-9]{1,3}" if base == 10 else "[0-9a-fA-F]{1,4}"
    found = re.fullmatch(f"({digits})(?:-({digits}))?", word)
    if not found:
        raise _wrong(whole)
    low = int(found[1], base)
    high = int(found[2], base) if found[2] else low
    if not low <= high <= most:
        raise _wrong(whole)
    return low, high


def is_network(text: str) -> bool:
    """Is this an address, or a network as 10.0.0.0/8?"""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def is_in_network(address: str, network: str) -> bool:
    """Is the address the one of the rule, or in its network?"""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip in ipaddress.ip_network(network, strict=False)
