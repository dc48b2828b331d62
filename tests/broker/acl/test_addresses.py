"""White lists and networks: what a rule matches, and what is none."""

from __future__ import annotations

import pytest

from mqfast.broker.acl.addresses import is_in_network, is_network, pattern
from mqfast.errors import ConfigError


@pytest.mark.parametrize(
    "rule, matches, others",
    [
        ("", (), ("127.0.0.1", "")),
        (None, (), ("127.0.0.1",)),
        ("*", ("127.0.0.1", "::1"), ()),
        ("*.*.*.*", ("127.0.0.1", "::1"), ()),
        ("10.1.2.3", ("10.1.2.3", "::ffff:10.1.2.3"), ("10.1.2.30", "110.1.2.3", "::1", "nonsense", "")),
        ("10.1.2.3,10.1.2.4", ("10.1.2.3", "10.1.2.4"), ("10.1.2.5",)),
        ("10.1.2.{3,4}", ("10.1.2.3", "10.1.2.4"), ("10.1.2.34",)),
        ("192.168.0-1.*", ("192.168.0.0", "192.168.1.255"), ("192.168.2.0", "192.169.0.1")),
        ("192.168.*.*", ("192.168.9.9",), ("192.16.8.1", "193.168.0.1")),
        ("192.168.0.10-20", ("192.168.0.10", "192.168.0.20"), ("192.168.0.9", "192.168.0.21")),
        ("192.168.0-10.5", ("192.168.3.5",), ("192.168.3.6",)),
        ("::1", ("::1", "0:0:0:0:0:0:0:1"), ("::2", "127.0.0.1")),
        ("2001:db8::{1,2}", ("2001:db8::1", "2001:DB8::2"), ("2001:db8::3",)),
        ("2::ac5:78:1-200:*", ("2::ac5:78:1:9", "2:0:0:0:ac5:78:200:ffff"), ("2::ac5:78:201:0", "2::ac5:79:1:0")),
        ("5::1-3", ("5::1", "5::3"), ("5::4",)),
    ],
)
def test_white_list_patterns(rule: str | None, matches: tuple[str, ...], others: tuple[str, ...]) -> None:
    is_white = pattern(rule)
    assert [one for one in matches if not is_white(one)] == []
    assert [one for one in others if is_white(one)] == []


@pytest.mark.parametrize(
    "rule",
    [
        "10.1.2",
        "10.*",
        "10.1.2.256",
        "10.1.9-2.*",
        "10.1.-2.*",
        "10.1.2.{}",
        "10.1.2.{3,x}",
        "{1,2}",
        "a.b.c.d",
        "1:2-3",
    ],
)
def test_an_invalid_white_list_pattern_is_an_error(rule: str) -> None:
    with pytest.raises(ConfigError, match="white list: expected an IP address"):
        pattern(rule)


@pytest.mark.parametrize(
    "address, network, inside",
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.9/24", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("2001:db8::1", "2001:db8::/32", True),
        ("10.1.2.3", "::/0", False),
        ("nonsense", "0.0.0.0/0", False),
    ],
)
def test_networks(address: str, network: str, inside: bool) -> None:
    assert is_in_network(address, network) is inside


def test_networks_are_recognised() -> None:
    assert all(map(is_network, ["10.0.0.0/8", "10.1.2.3", "::1", "2001:db8::/32"]))
    assert not any(map(is_network, ["", "10.0.0.0/33", "10.0.0", "10.*.*.*", "host"]))
