"""Every client over TLS with checked certificates, signed, in a namespace, with a trace, beside our name server and
broker that take nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqfast.client import (
    AdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from mqfast.client.admin.trace_data import trace_rows
from mqfast.client.delivery import Delivery
from mqfast.errors import BrokerError, ConnectError, Refused

ACCOUNTS = """accounts:
- {accessKey: rootroot, secretKey: rootsecret, admin: true}
- {accessKey: tenant11, secretKey: tenantsecret, admin: false, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: readonly, secretKey: readsecret, admin: false, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""
ME = Credentials("tenant11", "tenantsecret")
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 1000,
         "maxIndexNum": 4000}  # fmt: skip


class Secured(NamedTuple):
    """A cluster that talks TLS only and checks who asks."""

    namesrv: str
    trusting: ssl.SSLContext

    @property
    def mine(self) -> dict[str, Any]:
        """What a client of the tenant is told."""
        return {"namesrv_addr": self.namesrv, "tls": self.trusting, "credentials": ME, "namespace": "tenant"}


@contextlib.contextmanager
def server(work: Path, pattern: str, *arguments: str) -> Iterator[str]:
    """A server of the command line. Yields: what the pattern finds in what it prints."""
    with (work / f"{arguments[0]}.log").open("w") as log:
        command = [sys.executable, "-m", "mqfast.cli", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, (work / f"{arguments[0]}.log").read_text()
            found = re.search(pattern, line)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(200)
        process.stdout.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    pytest.importorskip("yaml", reason="accounts are in a file of YAML")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make certificates")
    work = tmp_path_factory.mktemp("secured")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mqfast", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=work, check=True, capture_output=True,
    )  # fmt: skip
    (work / "plain_acl.yml").write_text(ACCOUNTS)
    tls = [f"tls.server.certPath={work}/cert.pem", f"tls.server.keyPath={work}/key.pem", "tls.server.mode=enforcing"]
    paths = [f"kvConfigPath={work}/kv.json", f"configStorePath={work}/namesrv.properties"]
    settings = {
        **SMALL, "storePathRootDir": f"{work}/store", "listenPort": 0, "brokerIP1": "127.0.0.1", "brokerName": "brk",
        "aclEnable": "true", "aclFile": f"{work}/plain_acl.yml", "traceTopicEnable": "true", "tls.enable": "true",
        "tls.client.authServer": "true", "tls.client.trustCertPath": f"{work}/cert.pem",
        "transactionTimeOut": 300, "transactionCheckInterval": 300, "messageDelayLevel": " ".join(["1s"] * 18),
    }  # fmt: skip
    with (
        server(work, r"NAMESRV_ADDR=(\S+)", "namesrv", "-p", "0", *paths, *tls) as namesrv,
        server(
            work,
            "(listens on)",
            "broker",
            "-n",
            namesrv,
            *tls,
            *(f"{name}={value}" for name, value in settings.items()),
        ),
    ):
        yield Secured(namesrv, ssl.create_default_context(cafile=str(work / "cert.pem")))


def test_producers_and_push_consumers_of_threads(secured: Secured) -> None:
    seen: list[Delivery] = []
    consumer = PushConsumer("readers", **secured.mine, from_where="first", trace=True)

    @consumer.on("orders")
    def handle(message: Delivery) -> bool:
        seen.append(message)
        return message.body != b"later" or message.attempt > 1

    checked = threading.Event()

    def check(message: Delivery) -> bool:
        checked.set()
        return True

    with Producer("makers", **secured.mine, trace=True) as producer, consumer:
        results = [producer.send("orders", b"sync"), producer.send("orders", b"later", delay_level=1)]
        producer.send_oneway(Message("orders", b"oneway"))
        results.append(producer.send_future(Message("orders", b"future")).result(20))
        producer.send_batch([Message("orders", b"b1"), Message("orders", b"b2")])
        assert all(one.ok for one in producer.send_many([Message("orders", b"m1")]))  # type: ignore[union-attr]
        with TransactionProducer("payers", **secured.mine, check=check, trace=True) as payer:
            with payer.transaction(Message("orders", b"paid")):
                pass
            with payer.transaction(Message("orders", b"asked")) as open_one:
                open_one.leave_open()
            assert checked.wait(30)
            wait(lambda: len(seen) == 10)
    bodies = sorted(one.body for one in seen)
    assert bodies == sorted([b"sync", b"later", b"later", b"oneway", b"future", b"b1", b"b2", b"m1", b"paid", b"asked"])
    assert {one.topic for one in seen} == {"orders"}
    assert {result.message_queue.topic for result in results} == {"orders"}
    with AdminClient(secured.namesrv, tls=secured.trusting, credentials=Credentials("rootroot", "rootsecret")) as root:
        assert {"tenant%orders", "%RETRY%tenant%readers"} <= set(root.topics())
        traced = root.trace(results[0].msg_id)
    assert {(one["type"], one["group"], one.get("topic", "orders")) for one in traced if "group" in one} == {
        ("Pub", "makers", "orders"), ("SubBefore", "readers", "orders"), ("SubAfter", "readers", "orders"),
    }  # fmt: skip


def test_clients_of_a_loop(secured: Secured) -> None:
    async def flow() -> None:
        async with AsyncProducer("makers", **secured.mine) as producer:
            await producer.send("async-orders", b"0")
            await asyncio.gather(*(producer.send("async-orders", b"%d" % i) for i in range(1, 20)))
        seen: list[bytes] = []
        one = AsyncPushConsumer("async-readers", **secured.mine, topics="async-orders", from_where="first")
        async with one as consumer:
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 20:
                    message.ack()
                    break
        assert sorted(seen, key=int) == [b"%d" % i for i in range(20)]
        pull = AsyncPullConsumer("async-pullers", **secured.mine, topics="async-orders", from_where="first")
        async with pull as puller:
            assert await puller.poll(timeout_s=20)

    asyncio.run(asyncio.wait_for(flow(), 300))


def test_orderly_and_pull_consumers(secured: Secured) -> None:
    with Producer("makers", **secured.mine) as producer:
        for i in range(12):
            producer.send("in-order", b"%d" % i, sharding_key="one")
    seen: list[int] = []
    consumer = PushConsumer("orderly", **secured.mine, from_where="first", orderly=True)
    consumer.subscribe("in-order", lambda message: seen.append(int(message.body)))
    with consumer:
        wait(lambda: len(seen) == 12)
    assert seen == list(range(12))
    with PullConsumer("pullers", **secured.mine, topics="in-order", from_where="first", trace="tenant-trace") as one:
        found: list[bytes] = []
        while len(found) < 12:
            found += [message.body for message in one.poll(timeout_s=20)]
        one.commit()
    with PullConsumer("trace-readers", secured.namesrv, tls=secured.trusting, credentials=ME) as one:
        rows = []
        for queue in one.queues("tenant-trace"):
            for message in one.pull(queue, 0, max_count=100).messages:
                rows += list(trace_rows(message.body))
    assert len([row for row in rows if row["type"] == "SubAfter" and row["success"]]) == 12


@pytest.mark.parametrize("wrong", ["no TLS", "nobody's certificate", "another host"])
def test_a_connection_that_is_not_safe_is_none(secured: Secured, wrong: str) -> None:
    tls: Any = {"no TLS": False, "nobody's certificate": True, "another host": secured.trusting}[wrong]
    kind = BrokerError if wrong == "no TLS" else ConnectError  # the port answers a plain request
    address = secured.namesrv
    if wrong == "another host":
        try:
            socket.getaddrinfo("localhost", None)
        except OSError:
            pytest.skip("this system has no address for localhost")
        address = "localhost:" + address.rpartition(":")[2]
    with Producer("makers", address, tls=tls, credentials=ME, send_timeout_s=3, close_timeout_s=1) as producer:
        with pytest.raises(kind) as refused:
            producer.send("orders", b"x")
    assert ("wants TLS" if wrong == "no TLS" else "certificate verify failed") in str(refused.value)
    consumer = PushConsumer("readers", address, tls=tls, credentials=ME, close_timeout_s=1)
    consumer.subscribe("orders", lambda message: None)
    why = "wants TLS" if wrong == "no TLS" else "CERTIFICATE_VERIFY_FAILED"
    with pytest.raises(kind, match=why):
        consumer.start()

    async def flow() -> None:
        async with AsyncProducer("makers", address, tls=tls, credentials=ME, send_timeout_s=3) as one:
            with pytest.raises(kind, match=why):  # nothing was sent
                await one.send("orders", b"x")

    asyncio.run(flow())


@pytest.mark.parametrize("who", [None, Credentials("tenant11", "another"), Credentials("nobody11", "secret")])
def test_unknown_account_can_neither_send_nor_consume(secured: Secured, who: Credentials | None) -> None:
    with Producer("makers", **secured.mine) as producer:
        producer.send("guarded", b"x")
    given = {**secured.mine, "credentials": who}
    with Producer("makers", **given, retries=0) as producer:
        with pytest.raises(Refused, match="AclException"):
            producer.send("guarded", b"x")
    with PullConsumer("strangers", **given, topics="guarded", from_where="first") as consumer:
        with pytest.raises(Refused):
            end = time.monotonic() + 30
            while time.monotonic() < end:
                assert consumer.poll(timeout_s=0.5) == []
    assert "secret" not in repr(who)


def test_read_only_account_cannot_send(secured: Secured) -> None:
    with Producer("makers", **secured.mine) as producer:
        producer.send("readable", b"x")
    reader = {**secured.mine, "credentials": Credentials("readonly", "readsecret")}
    with Producer("makers", **reader, retries=0) as producer:
        with pytest.raises(Refused):
            producer.send("readable", b"y")
    seen: list[bytes] = []
    consumer = PushConsumer("only-readers", **reader, from_where="first")
    consumer.subscribe("readable", lambda message: seen.append(message.body))
    with consumer:
        wait(lambda: seen)
    assert seen == [b"x"]


def wait(condition: Any) -> None:
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
