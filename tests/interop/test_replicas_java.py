"""Replication with brokers of Apache RocketMQ, both ways: the logs are equal at rest, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import LEVELS
from ha.processes import log_end
from running import BrokerProcess, running_broker

from mqfast.ha.slave import FollowState
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.fastjson import standard

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, Machine, free_port

pytestmark = NEEDS_JAVA
FILE = 1 << 20


@contextlib.contextmanager
def machine(release: str, work: Path) -> Iterator[Any]:
    here = Path(__file__).resolve().parent
    one = Machine(release, work, here / "Flow.java")
    (work / "conf").mkdir()
    for program in ("namesrv", "broker"):
        shutil.copy(here.parent / "compat/java/logging-off.xml", work / f"conf/logback_{program}.xml")
    try:
        yield one
    finally:
        one.end_all()


def assert_equal_logs(slave: Path, master: Path, end: int) -> None:
    """Every file of the slave is the master's up to the end; a slave begins with its master's last file."""
    files = sorted((slave / "commitlog").iterdir())
    assert files
    for file in files:
        start, mine = int(file.name), file.read_bytes()
        theirs = (master / "commitlog" / file.name).read_bytes() if start < end else b""
        assert mine[: max(0, end - start)] == theirs[: max(0, end - start)]
        assert not any(mine[max(0, end - start) :])


async def until(condition: Callable[[], Any], seconds: float = 100) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.1)


async def send(client: RemotingClient, address: str, topic: str, count: int) -> None:
    for number in range(count):
        fields = {
            "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "1700000000000",
            "h": "0", "i": f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number}\x02", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        answer = await client.call(address, RequestCode.SEND_MESSAGE_V2, fields, b"x" * (1 + number * 37 % 5000))
        assert answer.code in (0, 10, 11, 12), answer.remark


async def address_of(client: RemotingClient, namesrv: str, broker_id: int) -> str:
    found = ""

    async def ask() -> bool:
        nonlocal found
        answer = await client.call(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
        table = json.loads(standard(bytes(answer.body)))["brokerAddrTable"] if answer.body else {}
        found = next((one["brokerAddrs"].get(str(broker_id), "") for one in table.values()), "")
        return bool(found)

    async with asyncio.timeout(100):
        while not await ask():
            await asyncio.sleep(0.2)
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_slave_of_ours_follows_a_java_master(release: str, tmp_path: Path) -> None:
    async def flow(java: Any, port: int) -> None:
        client = RemotingClient()
        settings = {
            "brokerName": "brk",
            "brokerClusterName": "golden",
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "slaveReadEnable": True,
            "namesrvAddr": java.namesrv,
            "mappedFileSizeCommitLog": FILE,
            "registerNameServerPeriod": 10_000,
            "haSendHeartbeatInterval": 500,
        }
        address = f"127.0.0.1:{port}"
        await address_of(client, java.namesrv, 0)
        await send(client, address, "T", 300)
        async with running_broker(tmp_path / "ours", **settings) as slave:
            await send(client, address, "T", 300)
            following = lambda: slave.context.replicas.following  # noqa: E731
            await until(lambda: following().state is FollowState.TRANSFER)
            await until(lambda: sum(slave.context.store.max_offset("T", one) for one in range(4)) == 600)
            await until(lambda: "T" in slave.context.tables.topics)
            end = slave.context.store.engine.raw.end
        java.end_all()
        assert_equal_logs(tmp_path / "ours", tmp_path / "java", end)
        await client.close()

    with machine(release, tmp_path) as java:
        java.start_namesrv()
        port = free_port()
        sizes = {"mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "messageDelayLevel": LEVELS}
        java.start_broker(tmp_path / "java", sizes, port)
        asyncio.run(flow(java, port))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_java_slave_follows_our_master(release: str, tmp_path: Path) -> None:
    async def flow(ours: BrokerProcess, java: Any, port: int) -> None:
        client = RemotingClient()
        master = await address_of(client, ours.namesrv, 0)
        await send(client, master, "T", 300)
        settings = {
            "brokerName": name, "brokerRole": "SLAVE", "brokerId": 1, "brokerClusterName": "DefaultCluster",
            "mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500,
        }  # fmt: skip
        java.start_broker(tmp_path / "java", settings, port)
        await address_of(client, ours.namesrv, 1)
        await send(client, master, "T", 300)
        status: dict[str, Any] = {}

        async def is_there() -> bool:
            answer = await client.call(master, 907)
            status.update(json.loads(bytes(answer.body)))
            infos = status["haConnectionInfo"]
            return bool(infos) and infos[0]["slaveAckOffset"] == status["masterCommitLogMaxOffset"]

        async with asyncio.timeout(100):
            while not await is_there():
                await asyncio.sleep(0.2)
        end = status["masterCommitLogMaxOffset"]
        java.end_all()
        assert_equal_logs(tmp_path / "java", ours.store, end)
        await client.close()

    name = "broker-a"
    with (
        BrokerProcess(tmp_path, brokerName=name, mappedFileSizeCommitLog=FILE) as ours,
        machine(release, tmp_path) as java,
    ):
        java.namesrv = ours.namesrv
        asyncio.run(flow(ours, java, free_port()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_slave_ahead_of_a_restored_java_master_names_both_offsets(release: str, tmp_path: Path) -> None:
    """A Java master sends heartbeats for bytes that it does not have: its bounds come from 28."""

    async def flow(java: Any, master: Any, port: int) -> None:
        client = RemotingClient()
        address = f"127.0.0.1:{port}"
        settings = {
            "brokerName": "brk", "brokerClusterName": "golden", "brokerRole": "SLAVE", "brokerId": 1,
            "namesrvAddr": java.namesrv, "mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000,
            "haSendHeartbeatInterval": 500,
        }  # fmt: skip
        await address_of(client, java.namesrv, 0)
        await send(client, address, "T", 100)
        async with running_broker(tmp_path / "ours", **settings) as slave:
            end_of = lambda: slave.context.store.engine.raw.end  # noqa: E731
            following = lambda: slave.context.replicas.following  # noqa: E731
            await until(lambda: following().state is FollowState.TRANSFER)
            await until(lambda: sum(slave.context.store.max_offset("T", one) for one in range(4)) == 100)
            end = end_of()
            java.stop(master)
            shutil.rmtree(tmp_path / "java")
            java.start_broker(tmp_path / "java", sizes, port)
            await client.close()
            client = RemotingClient()
            await send(client, address, "T", 5)
            restored = -1
            while restored < 0:
                restored = await log_end(address)
            told = f"ends at {end}, its master's at {restored}: the slave is ahead"
            await until(lambda: told in str(following().error))
            assert following().state is FollowState.DIVERGED
            assert end_of() == end
        await client.close()

    with machine(release, tmp_path) as java:
        java.start_namesrv()
        port = free_port()
        sizes = {"mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500}
        master = java.start_broker(tmp_path / "java", sizes, port)
        asyncio.run(flow(java, master, port))
