"""Broker(config={"tls.server.certPath": ...}): all servers of the test speak TLS, and clients check the certificate."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqfast.client import Producer
from mqfast.errors import ClientError, ConnectError
from mqfast.testing import Broker


@pytest.fixture(scope="module", params=["permissive", "enforcing"])
def secure(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    work = tmp_path_factory.mktemp("tls")
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {work}/key.pem -out {work}/cert.pem -days 3650 "
        "-subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"openssl makes no certificate: {error}")
    config = {
        "tls.server.mode": request.param,
        "tls.server.certPath": f"{work}/cert.pem",
        "tls.server.keyPath": f"{work}/key.pem",
    }
    with Broker(topics={"orders": 2}, config=config, name_servers=2) as broker:
        yield broker, work / "cert.pem"


def test_clients_send_and_consume(secure: tuple[Broker, Path]) -> None:
    broker, certificate = secure
    tls = ssl.create_default_context(cafile=str(certificate))
    seen: list[bytes] = []
    consumer = broker.consumer("billing", tls=tls)
    consumer.subscribe("orders", lambda message: seen.append(message.body))
    with broker.producer(tls=tls) as producer, consumer:
        assert producer.send("orders", b"42").ok
        broker.wait_consumed("billing", "orders", timeout_s=30)
    assert seen == [b"42"]


def test_a_certificate_that_is_not_trusted_and_a_plain_client(secure: tuple[Broker, Path]) -> None:
    broker, _ = secure
    with Producer("makers", broker.namesrv_addr, tls=True, close_timeout_s=1) as producer:
        with pytest.raises(ConnectError, match="certificate verify failed"):
            producer.send("orders", b"43")
    with Producer("makers", broker.namesrv_addr, close_timeout_s=1) as producer:
        if broker._config["tls.server.mode"] == "permissive":
            assert producer.send("orders", b"44").ok
        else:
            with pytest.raises(ClientError):
                producer.send("orders", b"44")
