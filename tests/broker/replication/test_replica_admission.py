"""Who may follow a master: the port of replication hands out the whole log, and trusts what slaves report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from broker.two_brokers import as_slave, end_of, name_server, run, until
from certificates import Authority
from running import Running, broker_config, running_broker

from mqfast.broker.replication.replica_admission import Admission
from mqfast.broker.server import Broker
from mqfast.errors import ConfigError
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.signature import sign

GUARDED = {"authenticationEnabled": True, "initAuthenticationUser": '{"username":"root","password":"root-secret"}'}
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 100}
EMPTY_SLAVE = bytes(8)


async def what_a_stranger_gets(one: Running, tls: ssl.SSLContext | None = None) -> bytes:
    """What the port of replication sends to a peer that says it is an empty slave, until it ends or sends a record."""
    reader, writer = await asyncio.open_connection("127.0.0.1", one.parts.replicas.port, ssl=tls)
    found = b""
    with contextlib.suppress(OSError):
        writer.write(EMPTY_SLAVE)
        async with asyncio.timeout(300):
            while b"a secret" not in found and (more := await reader.read(65536)):
                found += more
    writer.close()
    return found


async def put(one: Running, user: tuple[str, str] | None = ("root", "root-secret")) -> int:
    fields = {
        "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
        "k": "false", "m": "false",
    }  # fmt: skip
    signed = fields if user is None else sign(fields, b"a secret", *user)
    return (await one.client.call(one.address, 310, signed, b"a secret")).code


@pytest.mark.parametrize("more", [{}, {"haListenPort": 0}, {"haBindAddress": "127.0.0.1"}, SYNC])
def test_with_access_control_no_slave_is_admitted_without_a_setting(tmp_path: Path, more: dict[str, Any]) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **GUARDED, **more) as one:
            assert await put(one) == (11 if more is SYNC else 0)
            assert await what_a_stranger_gets(one) == b""
            assert one.parts.replicas.slaves == []

    run(flow)


def test_a_stranger_does_not_make_a_sync_master_answer_0(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **GUARDED, **SYNC) as one:
            _, writer = await asyncio.open_connection("127.0.0.1", one.parts.replicas.port)
            writer.write(EMPTY_SLAVE)
            for _ in range(20):
                assert await put(one) == 11
                with contextlib.suppress(OSError):
                    writer.write((end_of(one)).to_bytes(8, "big"))
            writer.close()

    run(flow)


def test_without_a_slave_that_a_name_server_names_the_port_is_closed(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "alone") as one:
            assert await put(one, None) == 0
            assert await what_a_stranger_gets(one) == b""
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as one:
            assert await put(one, None) == 0
            assert await what_a_stranger_gets(one) == b""
            for number, host, name in ((1, "192.0.2.7", "broker-a"), (1, "127.0.0.1", "other")):
                await register(one, namesrv, name, number, f"{host}:10911")
            assert await what_a_stranger_gets(one) == b"", "a slave elsewhere, and a slave of another broker"
            await register(one, namesrv, "broker-a", 2, "127.0.0.1:10911")
            assert b"a secret" in await what_a_stranger_gets(one), "a slave on that host, which is about to follow"

    run(flow)


async def register(one: Running, namesrv: str, name: str, number: int, address: str) -> None:
    fields = {
        "brokerName": name, "brokerAddr": address, "clusterName": "DefaultCluster", "haServerAddr": "x:1",
        "brokerId": str(number),
    }  # fmt: skip
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {}}, "filterServerList": []}).encode()
    assert (await one.client.call(namesrv, RequestCode.REGISTER_BROKER, fields, body)).code == 0


@pytest.mark.parametrize("more", [{"haListenPort": 0}, {"haBindAddress": "127.0.0.1"}])
def test_a_port_that_was_asked_for_is_open_without_access_control(tmp_path: Path, more: dict[str, Any]) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **more) as one:
            assert await put(one, None) == 0
            assert b"a secret" in await what_a_stranger_gets(one)

    run(flow)


@pytest.mark.parametrize(
    ("allowed", "gets"),
    [
        ("127.0.0.1", True),
        ("10.0.0.0/8; 127.0.0.0/8", True),
        ("*", True),
        ("10.0.0.0/8,192.0.2.1", False),
        ("::1", False),
    ],
)
def test_haAllowedAddresses_admits_addresses_and_networks(tmp_path: Path, allowed: str, gets: bool) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, haAllowedAddresses=allowed, **GUARDED) as one:
            assert await put(one) == 0
            assert (b"a secret" in await what_a_stranger_gets(one)) is gets

    run(flow)


@pytest.mark.parametrize("text", ["localhost", "10.0.0.0/33", "10.0.0.1,broker-b", "10.0.*.*"])
def test_an_invalid_allowed_address_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="haAllowedAddresses: expected addresses"):
        run(lambda: Broker(broker_config(tmp_path, haAllowedAddresses=text)).start())


def test_a_pair_of_a_guarded_cluster_replicates_over_tls_with_certificates(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    guarded = {**GUARDED, "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}'}

    def files(of: Authority, name: str) -> dict[str, str]:
        certificate, key = of.sign(name)
        return {"haTlsCaFile": str(of.ca), "haTlsCertFile": str(certificate), "haTlsKeyFile": str(key)}

    async def flow() -> None:
        settings = {**guarded, **SYNC, "slaveTimeout": 60_000, **files(authority, "master")}
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv, **settings) as one:
                assert await put(one) == 11
                assert await what_a_stranger_gets(one) == b"", "a plain peer"
                with contextlib.suppress(OSError):  # the port may end the handshake
                    assert await what_a_stranger_gets(one, anything()) == b"", "TLS without a certificate"
                strange = as_slave(namesrv, **guarded, **files(other, "stranger"))
                async with running_broker(tmp_path / "x", **strange) as stranger:
                    await until(lambda: "certificate" in str(stranger.parts.replicas.following.error))
                assert await put(one) == 11
                slave = as_slave(namesrv, **guarded, **files(authority, "slave"))
                async with running_broker(tmp_path / "s", **slave) as follower:
                    await until(lambda: one.parts.replicas.in_sync() == 1)
                    assert await put(one) == 0
                    assert end_of(follower) == end_of(one)

    run(flow)


def anything() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_tls_needs_all_three_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haTlsCaFile: expected a file together with haTlsCertFile"):
        run(lambda: Broker(broker_config(tmp_path, haTlsCertFile="/nowhere")).start())


def test_a_renewed_certificate_is_loaded(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.sign("a")
    names = {"haTlsCaFile": str(authority.ca), "haTlsCertFile": str(certificate), "haTlsKeyFile": str(key)}

    def shown(port: int) -> str:
        return ssl.get_server_certificate(("127.0.0.1", port))

    async def flow() -> None:
        async with running_broker(tmp_path / "m", **names) as one:
            port = one.parts.replicas.port
            before = await asyncio.to_thread(shown, port)
            renewed, new_key = authority.sign("b")
            renewed.replace(certificate)
            one.parts.replicas.ha.reload_certificates()
            assert await asyncio.to_thread(shown, port) == before, "the key is still the old one"
            new_key.replace(key)
            one.parts.replicas.ha.reload_certificates()
            assert await asyncio.to_thread(shown, port) != before

    run(flow)


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**GUARDED, "haAllowedAddresses": "10.0.0.0/8", "haBindAddress": "0.0.0.0"}, "in clear to 10.0.0.0/8"),
        ({**GUARDED, "haListenPort": 0}, "slaves cannot connect"),
        ({**GUARDED, **SYNC}, "slaves cannot connect"),
        (GUARDED, "access control is on and TLS is off: a signature hides no message"),
    ],
)
def test_the_start_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: str
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **settings):
            pass

    run(flow)
    assert words in said(caplog)


@pytest.mark.parametrize("settings", [{}, {"haListenPort": 0}, {"haAllowedAddresses": "*"}])
def test_without_access_control_the_start_warns_of_no_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **settings) as one:
            assert one.parts.replicas.ha.policy.startswith("127.0.0.1:")

    run(flow)
    assert "replication" not in said(caplog)
    assert "access control" not in said(caplog)


def test_a_pair_with_access_control_and_etcd_needs_to_know_its_brokers(tmp_path: Path) -> None:
    settings = {"haEtcdEndpoints": "127.0.0.1:2379", "brokerId": 1, "listenPort": 10911, **GUARDED}
    with pytest.raises(ConfigError, match="haAllowedAddresses: expected the addresses of the other brokers"):
        broker_config(tmp_path, **settings).check_failover()
    broker_config(tmp_path, haAllowedAddresses="10.0.0.2", **settings).check_failover()


def test_a_flood_of_peers_sends_no_concurrent_requests_to_name_servers(tmp_path: Path) -> None:
    async def flow() -> None:
        asked, running = [], []

        async def hosts() -> set[str]:
            running.append(1)
            asked.append(len(running))
            await asyncio.sleep(0)
            running.pop()
            return {"::ffff:10.0.0.1"}

        admission = Admission(broker_config(tmp_path), has_tls=False, slave_hosts=hosts)
        verdicts = [admission(f"10.0.0.{n}") for n in range(1, 100)]
        waiting = [one for one in verdicts if not isinstance(one, bool)]
        assert [one for one in verdicts if isinstance(one, bool)] == [False] * 83
        assert len(waiting) == 16
        found = await asyncio.gather(*waiting)
        assert found[0] is True
        assert sum(found) == 1
        assert max(asked) == 1

    run(flow)
