"""Clients over TLS on brokers of Apache RocketMQ, which have a certificate of nobody's unless they are told of one."""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "consumer"))

from consumer_cluster import until

from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.producer.producer import Producer
from mqfast.errors import ConnectError
from mqfast.message import Message


def blind() -> ssl.SSLContext:
    """A context that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.fixture
def tls_address(cluster_address: str) -> str:
    host, _, port = cluster_address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 10) as plain, blind().wrap_socket(plain):
            return cluster_address
    except OSError as error:
        pytest.skip(f"the servers of this cluster have no certificate: {error}")


def test_clients_over_tls(tls_address: str) -> None:
    seen: list[bytes] = []
    consumer = PushConsumer("tls-pushers", tls_address, tls=blind(), from_where="first")
    consumer.subscribe("encrypted", lambda message: seen.append(message.body))
    with Producer("tls-makers", tls_address, tls=blind(), send_timeout_s=20) as producer:
        assert producer.send("encrypted", b"sync").ok
        assert producer.send_future(Message("encrypted", b"future")).result(30).ok
        assert producer.send_batch([Message("encrypted", b"b1"), Message("encrypted", b"b" * 100_000)]).ok
        with consumer:
            until(lambda: len(seen) == 4, "all messages")
    assert sorted(seen) == sorted([b"sync", b"future", b"b1", b"b" * 100_000])
    with PullConsumer("tls-pullers", tls_address, tls=blind(), topics="encrypted", from_where="first") as puller:
        pulled: list[bytes] = []
        until(lambda: pulled.extend(one.body for one in puller.poll(timeout_s=1)) or len(pulled) == 4, "all, pulled")


def test_a_certificate_of_nobody_s_is_refused(tls_address: str) -> None:
    with Producer("tls-makers", tls_address, tls=True, close_timeout_s=1) as producer:
        with pytest.raises(ConnectError, match="certificate verify failed"):
            producer.send("encrypted", b"x")
