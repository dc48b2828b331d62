"""Which address a broker tells others, and what it says when it is not reached there."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from mqfast.broker.config import broker_address as module
from mqfast.broker.config.broker_address import announced, check_reached, with_port
from mqfast.errors import ConfigError
from mqfast.remoting.client import RemotingClient


def _is_a_name(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


needs_localhost = pytest.mark.skipif(not _is_a_name("localhost"), reason="this system has no address for localhost")


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Target -> this machine's address towards it."""
    found: dict[str, str] = {}
    monkeypatch.setattr(module, "_route_to", found.get)
    return found


def host_of(ip1: str = "", bind: str = "0.0.0.0", *servers: str, **environment: str) -> tuple[str, str]:
    found = announced(ip1, bind, list(servers), environment, {"172.17.0.1"})
    return found.host, found.why


def test_the_order(routes: dict[str, str]) -> None:
    routes.update({"ns:9876": "10.0.0.5", "192.0.2.1:9": "10.9.9.9"})
    told = {"MQFAST_ADVERTISE": "10.3.3.3"}
    assert host_of("10.1.1.1", "0.0.0.0", "ns:9876", **told) == ("10.1.1.1", "brokerIP1")
    assert host_of("", "0.0.0.0", "ns:9876", **told) == ("10.3.3.3", "MQFAST_ADVERTISE")
    assert host_of("", "127.0.0.1", "ns:9876") == ("127.0.0.1", "bindAddress")
    assert host_of("", "10.4.4.4", "ns:9876") == ("10.4.4.4", "bindAddress")
    assert host_of("", "0.0.0.0", "ns:9876") == ("10.0.0.5", "the route to name server ns:9876")
    assert host_of("", "::") == ("10.9.9.9", "the route to everywhere")


def test_never_a_bridge_of_containers_nor_loopback_while_there_is_another(routes: dict[str, str]) -> None:
    routes.update({"a:1": "172.17.0.1", "b:1": "127.0.0.1", "192.0.2.1:9": "10.9.9.9"})
    assert host_of("", "0.0.0.0", "a:1", "b:1")[0] == "10.9.9.9"
    del routes["192.0.2.1:9"]
    assert host_of("", "0.0.0.0", "a:1", "b:1")[0] == "127.0.0.1"
    with pytest.raises(ConfigError, match="brokerIP1: expected the address for clients, found none"):
        host_of("", "0.0.0.0", "a:1")


@needs_localhost
def test_a_name_keeps_its_form_and_has_an_address() -> None:
    found = announced("localhost", "0.0.0.0", [], {})
    assert found.host == "localhost"
    assert found.ip in ("127.0.0.1", "::1")


def test_addresses_and_ports() -> None:
    assert announced("", "0.0.0.0", [], {"MQFAST_ADVERTISE": "10.1.1.1:20911"})[:3] == ("10.1.1.1", "10.1.1.1", 20911)
    assert announced("", "0.0.0.0", [], {"MQFAST_ADVERTISE": "[2001:db8::1]:7"})[:3] == (
        "2001:db8::1",
        "2001:db8::1",
        7,
    )
    assert announced("", "0.0.0.0", [], {"MQFAST_ADVERTISE": "2001:db8::1"}).port is None
    assert with_port("2001:db8::1", 7) == "[2001:db8::1]:7"
    for text in ("no such name", "host:port"):
        with pytest.raises(ConfigError, match="MQFAST_ADVERTISE: expected"):
            announced("", "0.0.0.0", [], {"MQFAST_ADVERTISE": text})


def test_a_real_route_is_an_address_of_this_machine() -> None:
    found = announced("", "0.0.0.0", ["127.0.0.1:9876"], {})
    with socket.socket() as probe:
        probe.bind((found.ip, 0))


def test_an_address_that_leads_nowhere_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[bool, bool]:
        client = RemotingClient()
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        there = await check_reached(client, f"127.0.0.1:{port}")
        server.close()
        await server.wait_closed()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
            gone = await check_reached(client, f"127.0.0.1:{taken.getsockname()[1]}")
        await client.close()
        return there, gone

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(main()) == (True, False)
    assert "does not lead back here" in caplog.text
    assert "set brokerIP1 or MQFAST_ADVERTISE" in caplog.text
