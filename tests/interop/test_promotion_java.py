"""A rolling upgrade in short: a Java master, a slave of ours joins, the Java master ends, the slave is promoted."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from free_ports import free_port
from our_broker import OurBroker, on_a_free_port
from real_programs import NEEDS_JAVA, NEWEST, STEP_S, Machine, compile_java
from sampling import WHOLE
from waiting import until

import mqfast
from mqfast.client import Producer, PushConsumer
from mqfast.client.admin.admin_client import AdminClient
from mqfast.errors import ClientError, RemotingError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.util.fastjson import standard

pytestmark = NEEDS_JAVA
HERE = Path(__file__).resolve().parent
FILE = 1 << 20


def call(address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    async def run() -> RemotingCommand:
        client = RemotingClient()
        try:
            return await client.call(address, code, fields, body, timeout_ms=20_000)
        finally:
            await client.close()

    return asyncio.run(run())


def ask(address: str, code: int) -> dict[str, Any]:
    try:
        answer = call(address, code)
    except RemotingError:
        return {}
    found = json.loads(standard(bytes(answer.body))) if answer.body else {}
    return found if isinstance(found, dict) else {}


def permissions(namesrv: str) -> set[int]:
    """What the route of the topic permits."""
    answer = call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Upgrade"})
    return {one["perm"] for one in json.loads(standard(bytes(answer.body)))["queueDatas"]}


def slave_is_level(address: str, master: str) -> bool:
    """The slave has what the Java master had before it was asked."""
    end = int(ask(master, 28).get("table", {}).get("commitLogMaxOffset", -1))
    mine = ask(address, 28).get("table", {})
    return end > 0 and int(mine.get("commitLogMaxOffset", -1)) >= end


def consumed(address: str) -> int:
    """How many messages the group has consumed, by the offsets that a broker has."""
    return sum(ask(address, 43).get("offsetTable", {}).get("Upgrade@takers", {}).values())


@pytest.mark.skipif(not WHOLE, reason="a minute each: make interop")
@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_slave_of_ours_replaces_a_java_master_while_clients_go_on(release: str, tmp_path: Path) -> None:
    java = Machine(release, tmp_path, HERE / "Flow.java")
    (tmp_path / "conf").mkdir()
    for program in ("namesrv", "broker"):
        shutil.copy(HERE.parent / "compat/java/logging-off.xml", tmp_path / f"conf/logback_{program}.xml")
    ours: list[OurBroker] = []
    sent: list[str] = []
    received: set[str] = set()
    try:
        java.start_namesrv()
        port = free_port()
        sizes = {
            "mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "autoCreateTopicEnable": "true",
            "brokerClusterName": "DefaultCluster",
        }  # fmt: skip
        broker = java.start_broker(tmp_path / "java", sizes, port)
        until(lambda: ask(java.namesrv, 106).get("brokerAddrTable"), "the registration of the Java broker")
        slave = (
            "-n", java.namesrv, "brokerName=brk", "brokerRole=SLAVE", "brokerId=1",
            f"storePathRootDir={tmp_path / 'ours'}", f"mappedFileSizeCommitLog={FILE}", "brokerIP1=127.0.0.1",
            "registerNameServerPeriod=10000", "haSendHeartbeatInterval=500",
        )  # fmt: skip
        first, slave_port = on_a_free_port(tmp_path, *slave)
        ours.append(first)

        def send(producer: Producer, prefix: str, count: int) -> None:
            for number in range(count):
                body = f"{prefix}{number}"
                deadline = time.monotonic() + 120
                while True:
                    try:
                        producer.send(mqfast.Message("Upgrade", body.encode()))
                        break
                    except (ClientError, RemotingError):
                        assert time.monotonic() < deadline
                        time.sleep(0.5)
                sent.append(body)

        consumer = PushConsumer("takers", java.namesrv, from_where="first")
        consumer.subscribe("Upgrade", lambda message: received.add(bytes(message.body).decode()))
        with Producer("makers", java.namesrv) as producer, consumer:
            send(producer, "java-", 200)
            until(lambda: received == set(sent), "what the Java master gave")
            until(lambda: consumed(f"127.0.0.1:{port}") >= len(sent), "the offsets at the Java master")
            permission = call(f"127.0.0.1:{port}", RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
            assert permission.code == ResponseCode.SUCCESS, permission.remark
            until(lambda: permissions(java.namesrv) == {4}, "a route without writes")
            until(lambda: slave_is_level(f"127.0.0.1:{slave_port}", f"127.0.0.1:{port}"), "the slave is level")
            with AdminClient(java.namesrv, timeout_s=20) as admin:
                (row,) = admin.ha_status(f"127.0.0.1:{slave_port}").slaves
            assert (row.state, row.behind_bytes) == ("TRANSFER", 0)
            until(lambda: consumed(f"127.0.0.1:{slave_port}") >= len(sent), "the offsets at the slave")
            java.stop(broker)
            ours[0].stop()
            ours.append(OurBroker(tmp_path, "--promote", "--yes", f"listenPort={slave_port}", *slave))
            send(producer, "ours-", 200)
            until(lambda: received >= set(sent), "what the promoted slave gave")
        assert (tmp_path / "ours" / "epochFileCheckpoint").exists()
        if release == NEWEST:
            compile_java(java.home, HERE / "Admin.java")
            words = ("getBrokerEpoch", "-b", "brk", "-n", java.namesrv, "--")

            def shown() -> bool:  # its calls end after a few seconds, on a busy machine without an answer
                out, _ = java.java(*words, main="Admin").communicate(timeout=2 * STEP_S)
                return bool(re.search(r"epoch\D+1\D", out, re.IGNORECASE))

            until(shown, "the epoch in what mqadmin prints")
        ours[1].stop()
        verified = subprocess.run(
            [sys.executable, "-m", "mqfast.cli", "store", "verify", str(tmp_path / "ours")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert verified.returncode == 0, verified.stdout
    finally:
        java.end_all()
        for one in ours:
            if one.process.poll() is None:
                one.stop()
