"""What a broker lets in: TLS with and without certificates of clients, and the limits of its settings."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from event_loop import run
from running import running_broker

from mqfast.broker.replication.ha_service import HaService
from mqfast.errors import ConfigError, ConnectionLost, StoreClosed
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.once import ASK_ONCE
from mqfast.remoting.tls import client_context


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Two certificates that trust themselves: of the broker, and of a client."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    for name in ("broker", "client"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
    return tmp_path


async def code_of(address: str, settings: dict[str, str] | None) -> int | str:
    """Of the answer to a question; ``refused`` where the connection ends."""
    client = RemotingClient(context=None if settings is None else client_context(settings))
    try:
        return (await client.call(address, 28, timeout_ms=10_000)).code
    except ConnectionLost:
        return "refused"
    finally:
        await client.close()


def test_the_file_of_tls_makes_the_broker_ask_for_certificates(keys: Path) -> None:
    (keys / "tls.properties").write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={keys}/broker.pem\ntls.server.keyPath={keys}/broker.key\n"
        f"tls.server.need.client.auth=require\ntls.server.trustCertPath={keys}/client.pem\n"
    )
    trusted = {"tls.client.authServer": "true", "tls.client.trustCertPath": f"{keys}/broker.pem"}
    known = {**trusted, "tls.client.certPath": f"{keys}/client.pem", "tls.client.keyPath": f"{keys}/client.key"}
    other = {"tls.client.authServer": "true", "tls.client.trustCertPath": f"{keys}/client.pem"}

    async def flow() -> None:
        async with running_broker(keys / "s", **{"tls.config.file": str(keys / "tls.properties")}) as one:
            found = [await code_of(one.address, settings) for settings in (known, trusted, other, None)]
        assert found == [0, "refused", "refused", 1]  # a plain request is told that the port wants TLS

    run(flow())


def test_plain_and_encrypted_connections_share_the_port(keys: Path) -> None:
    async def flow() -> None:
        names = {"tls.server.certPath": f"{keys}/broker.pem", "tls.server.keyPath": f"{keys}/broker.key"}
        async with running_broker(keys / "s", **names) as one:
            assert [await code_of(one.address, settings) for settings in ({}, None)] == [0, 0]
            assert "keyPath" in one.broker.config.text()

    run(flow())


@contextlib.asynccontextmanager
async def server_of(kind: str, home: Path, names: dict[str, str]) -> AsyncIterator[str]:
    """The address of a broker, or of a name server, with these settings."""
    if kind == "broker":
        async with running_broker(home / "s", **names) as one:
            yield one.address
        return
    config = NamesrvConfig()
    config.update(
        {"listenPort": "0", "kvConfigPath": str(home / "kv.json"), "scanNotActiveBrokerInterval": "50", **names}, "test"
    )
    server = NameServer(config)
    await server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        await server.stop()


@pytest.mark.parametrize("kind", ["broker", "name server"])
def test_a_renewed_certificate_counts_for_new_connections_without_a_restart(
    keys: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mqfast.broker.server._SCAN_S", 0.05)
    pem, key = keys / "tls.pem", keys / "tls.key"

    def renew(name: str, target: Path) -> None:
        new = keys / "new"
        shutil.copy(keys / f"{name}{target.suffix}", new)
        new.replace(target)

    def trusting(name: str) -> dict[str, str]:
        return {"tls.client.authServer": "true", "tls.client.trustCertPath": f"{keys}/{name}.pem"}

    async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(300):
            while not await is_so():
                await asyncio.sleep(0.05)

    async def is_told() -> bool:
        return "the certificate of before stays in force" in caplog.text

    async def flow() -> None:
        renew("broker", pem)
        renew("broker", key)
        names = {"tls.server.certPath": str(pem), "tls.server.keyPath": str(key)}
        async with server_of(kind, keys, names) as address:
            open_one = RemotingClient(context=client_context(trusting("broker")))
            await open_one.call(address, 28, timeout_ms=10_000)
            assert await code_of(address, trusting("client")) == "refused"
            renew("client", key)  # which does not fit the certificate yet
            await until(is_told)
            assert await code_of(address, trusting("broker")) != "refused"
            renew("client", pem)

            async def is_renewed() -> bool:
                return await code_of(address, trusting("client")) != "refused"

            await until(is_renewed)
            assert await code_of(address, trusting("broker")) == "refused"
            await open_one.call(address, 28, timeout_ms=10_000)
            await open_one.close()

    run(flow())


def test_keys_that_are_not_there_are_an_error_of_the_start(tmp_path: Path) -> None:
    async def flow() -> None:
        with pytest.raises(ConfigError, match=r"TLS: certificate /none\.pem"):
            async with running_broker(tmp_path / "s", **{"tls.server.certPath": "/none.pem"}):
                pass

    run(flow())


def test_a_frame_beyond_the_limit_ends_its_connection_alone(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "s", frameMaxLength=4096) as one:
            host, port = one.broker.address
            reader, writer = await asyncio.open_connection(host, port)
            writer.write((5000).to_bytes(4, "big") + b"\0" * 100)
            assert await reader.read() == b"", "a frame that is too long ends its connection"
            writer.close()
            assert (await one.call(28)).code == 0

    run(flow())


def test_one_connection_too_many_is_closed_and_the_others_stay(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "s", connectionsMax=2) as one:
            assert (await one.call(28)).code == 0
            host, port = one.broker.address
            opened = [await asyncio.open_connection(host, port) for _ in range(3)]
            assert await asyncio.wait_for(opened[-1][0].read(), 300) == b""
            assert (await one.call(28)).code == 0
            for _, writer in opened:
                writer.close()

    run(flow())


def test_a_broker_that_starts_answers_busy_and_never_that_it_does_not_know_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients come back as soon as the port listens; who is told that a code is unknown does not ask again."""
    codes: list[int] = []
    listen = HaService.listen

    async def asked_meanwhile(self: HaService, broker_port: int) -> None:
        client = RemotingClient()
        for code in (ASK_ONCE, RequestCode.SEND_MESSAGE_V2, 9999):
            codes.append((await client.call(f"127.0.0.1:{broker_port}", code, {})).code)
        await client.close()
        await listen(self, broker_port)

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            assert (await one.call(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    monkeypatch.setattr(HaService, "listen", asked_meanwhile)
    run(flow())
    assert codes == [ResponseCode.SYSTEM_BUSY] * 3
    assert "AttributeError" not in caplog.text


def test_a_part_that_does_not_stop_leaves_no_store_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async def flow() -> None:
        for body in (b"first", b"second"):  # the second broker finds the store closed
            async with running_broker(tmp_path) as one:
                monkeypatch.setattr(one.parts.replicas, "stop", fail)  # which is the first to stop
                answer = await one.send("T", body)
                assert answer.code == 0
            with pytest.raises(StoreClosed):
                one.context.store.max_offset("T", 0)
        assert answer.ext_fields["queueOffset"] == "1"

    asyncio.run(asyncio.wait_for(flow(), 300))
