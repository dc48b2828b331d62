"""Replication with brokers of Apache RocketMQ, both ways: the logs are equal at rest, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import LEVELS
from ha.pairs import FILE as LOG_FILE
from ha.pairs import Cutter, as_slave, following
from ha.processes import log_end
from running import BrokerProcess, running_broker
from sampling import WHOLE

from mqfast.ha.divergence import load_divergence
from mqfast.ha.slave import FollowState
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.store.base.os_api import OsApi
from mqfast.util.fastjson import standard

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, Machine, free_port
from waiting import until_async as until

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


async def plain_send(client: RemotingClient, address: str, body: bytes, topic: str = "T", number: int = 0) -> Any:
    fields = {
        "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "1700000000000",
        "h": "0", "i": f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number}\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return await client.call(address, RequestCode.SEND_MESSAGE_V2, fields, body)


async def send(client: RemotingClient, address: str, topic: str, count: int) -> None:
    for number in range(count):
        answer = await plain_send(client, address, b"x" * (1 + number * 37 % 5000), topic, number)
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
            following = lambda: slave.parts.replicas.following  # noqa: E731
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


def kept_copy(store: Path, target: Path) -> Path:
    """A copy of the store of a broker that runs and gets no messages, as a snapshot of its disk would be."""
    while True:
        try:
            return Path(shutil.copytree(store, target))
        except shutil.Error:  # a table was saved meanwhile
            shutil.rmtree(target)


def log_of(store: Path, end: int) -> bytes:
    """The log from its first byte on, up to ``end``. It begins at 0."""
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))[:end]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_slave_ahead_of_a_restored_java_master_names_both_offsets(release: str, tmp_path: Path) -> None:
    """A Java master sends heartbeats for bytes that it does not have: its bounds come from 28. The slave is left as it
    is; told to, it keeps and cuts what the master does not have, and follows.
    """

    async def flow(java: Any, master: Any, port: int) -> None:
        client = RemotingClient()
        address = f"127.0.0.1:{port}"
        settings = {
            "brokerName": "brk", "brokerClusterName": "golden", "brokerRole": "SLAVE", "brokerId": 1,
            "namesrvAddr": java.namesrv, "mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000,
            "haSendHeartbeatInterval": 500,
        }  # fmt: skip
        await address_of(client, java.namesrv, 0)
        await send(client, address, "T", 60)
        kept_copy(tmp_path / "java", tmp_path / "snapshot")
        await send(client, address, "T", 40)
        async with running_broker(tmp_path / "ours", **settings) as slave:
            end_of = lambda: slave.context.store.engine.raw.end  # noqa: E731
            following = lambda: slave.parts.replicas.following  # noqa: E731
            await until(lambda: following().state is FollowState.TRANSFER)
            await until(lambda: sum(slave.context.store.max_offset("T", one) for one in range(4)) == 100)
            end = end_of()
            java.stop(master)
            shutil.rmtree(tmp_path / "java")
            (tmp_path / "snapshot").rename(tmp_path / "java")
            java.start_broker(tmp_path / "java", sizes, port)
            restored = -1
            while restored < 0:
                restored = await log_end(address)
            assert 0 < restored < end
            told = f"ends at {end}, its master's at {restored}: the slave is ahead"
            await until(lambda: told in str(following().error))
            assert following().state is FollowState.DIVERGED
            assert end_of() == end
        whole = log_of(tmp_path / "ours", end)
        async with running_broker(tmp_path / "ours", **settings, haTruncateDiverged=True) as slave:
            await until(lambda: following().state is FollowState.TRANSFER)
            await client.close()
            client = RemotingClient()
            await send(client, address, "T", 5)
            await until(lambda: sum(slave.context.store.max_offset("T", one) for one in range(4)) == 65)
            end = end_of()
        await client.close()
        java.end_all()
        assert_equal_logs(tmp_path / "ours", tmp_path / "java", end)
        (kept,) = (tmp_path / "ours").glob("repair-*")
        assert whole[restored:].rstrip(b"\0") in b"".join(one.read_bytes() for one in (kept / "commitlog").iterdir())

    with machine(release, tmp_path) as java:
        java.start_namesrv()
        port = free_port()
        sizes = {"mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500}
        master = java.start_broker(tmp_path / "java", sizes, port)
        asyncio.run(flow(java, master, port))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_large_message_at_both_ends_hides_no_other_history_of_a_java_master(release: str, tmp_path: Path) -> None:
    """The slave ran as a master for a while; then a producer sent the same large message to both."""
    large = b"M" * (200 << 10)

    async def flow(java: Any, port: int) -> None:
        client, address = RemotingClient(), f"127.0.0.1:{port}"
        settings = {
            "brokerName": "brk", "brokerClusterName": "golden", "mappedFileSizeCommitLog": FILE,
            "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500,
        }  # fmt: skip
        as_slave = {**settings, "brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": java.namesrv}
        await address_of(client, java.namesrv, 0)
        await send(client, address, "T", 20)
        async with running_broker(tmp_path / "ours", **as_slave) as slave:
            following = lambda: slave.parts.replicas.following  # noqa: E731
            await until(lambda: sum(slave.context.store.max_offset("T", one) for one in range(4)) == 20)
            common = slave.context.store.engine.raw.end
        async with running_broker(tmp_path / "ours", **settings) as alone:
            for body in (b"X of nobody", large):
                assert (await plain_send(client, alone.address, body)).code == 0
        for body in (b"Y of the master", large, b"after"):
            assert (await plain_send(client, address, body)).code == 0
        async with running_broker(tmp_path / "ours", **as_slave) as slave:
            await until(lambda: following().state is FollowState.DIVERGED)
        mark = load_divergence(OsApi(), str(tmp_path / "ours"))
        assert mark is not None
        assert mark.common == common
        async with running_broker(tmp_path / "ours", **as_slave, haTruncateDiverged=True) as slave:
            await until(lambda: slave.context.store.engine.raw.end > common + len(large))
            end = await log_end(address)
            await until(lambda: slave.context.store.engine.raw.end == end)
        await client.close()
        java.end_all()
        assert load_divergence(OsApi(), str(tmp_path / "ours")) is None
        assert b"Y of the master" in log_of(tmp_path / "ours", end)
        assert_equal_logs(tmp_path / "ours", tmp_path / "java", end)

    with machine(release, tmp_path) as java:
        java.start_namesrv()
        port = free_port()
        sizes = {"mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500}
        java.start_broker(tmp_path / "java", sizes, port)
        asyncio.run(flow(java, port))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_java_slave_ahead_of_our_restored_master_is_refused(release: str, tmp_path: Path) -> None:
    """Our master names both offsets, the Java slave's log stays as it is, and its offset acknowledges nothing."""

    async def flow(ours: BrokerProcess, java: Any, port: int) -> None:
        client = RemotingClient()
        master = await address_of(client, ours.namesrv, 0)
        await send(client, master, "T", 60)
        kept_copy(ours.store, tmp_path / "snapshot")
        settings = {
            "brokerName": "broker-a", "brokerRole": "SLAVE", "brokerId": 1, "brokerClusterName": "DefaultCluster",
            "mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500,
        }  # fmt: skip
        java.start_broker(tmp_path / "java", settings, port)
        async with asyncio.timeout(100):  # 0: stored on both
            while (await plain_send(client, master, b"x")).code != 0:
                await asyncio.sleep(0.2)
        await send(client, master, "T", 40)
        end = await log_end(master)
        async with asyncio.timeout(100):
            while await log_end(f"127.0.0.1:{port}") != end:
                await asyncio.sleep(0.2)
        before = log_of(tmp_path / "java", end)
        assert before == log_of(ours.store, end)
        await client.close()
        ours.end(signal.SIGKILL)
        shutil.rmtree(ours.store)
        (tmp_path / "snapshot").rename(ours.store)
        ours.start()
        restored = await log_end(master)
        assert 0 < restored < end
        told = f"asks for {end}, this log has 0 to {restored}; it was told so"
        await until(lambda: told in ours.log.read_text())
        client = RemotingClient()
        for _ in range(3):
            assert (await plain_send(client, master, b"y")).code in (11, 12)
        status = json.loads(bytes((await client.call(master, 907)).body))
        assert status["inSyncSlaveNums"] == 0
        await client.close()
        java.end_all()
        assert log_of(tmp_path / "java", end) == before
        assert not any(log_of(tmp_path / "java", 1 << 30)[end:])

    sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 1000}
    with (
        BrokerProcess(tmp_path, brokerName="broker-a", mappedFileSizeCommitLog=FILE, **sync) as ours,
        machine(release, tmp_path) as java,
    ):
        java.namesrv = ours.namesrv
        asyncio.run(flow(ours, java, free_port()))


@pytest.mark.skipif(not WHOLE, reason="a minute each: make ha")
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_connection_to_a_java_master_that_is_cut_anywhere_costs_nothing(release: str, tmp_path: Path) -> None:
    """At every byte of a frame and of the head of the next one."""
    batch = 300

    async def flow(port: int) -> None:
        client, address = RemotingClient(), f"127.0.0.1:{port}"
        with as_slave(tmp_path / "ours") as ours:
            async with Cutter(("127.0.0.1", port + 1), range(12 + batch + 12 + 1)).listening() as cutter:
                with following(ours, cutter.port, reconnect_s=0.001):
                    async with asyncio.timeout(600):
                        while cutter.left:  # each of them needs bytes that come
                            if ours.engine.raw.end == await log_end(address):
                                await send(client, address, "T", 3)
                            await asyncio.sleep(0.01)
                    end = await log_end(address)
                    await until(lambda: ours.engine.raw.end == end)
        java.end_all()
        assert_equal_logs(tmp_path / "ours", tmp_path / "java", end)
        await client.close()

    with machine(release, tmp_path) as java:
        java.start_namesrv()
        port = free_port()
        java.start_broker(tmp_path / "java", {"mappedFileSizeCommitLog": LOG_FILE, "haTransferBatchSize": batch}, port)
        asyncio.run(flow(port))


@pytest.mark.skipif(not WHOLE, reason="two minutes each: make ha")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has 127.0.0.2")
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_a_connection_of_a_java_slave_that_is_cut_costs_nothing(release: str, tmp_path: Path) -> None:
    """Within a head, behind it, within the bytes of a frame, at its end. A Java slave waits 5 s before the next one."""
    batch = 300
    cuts = [0, 5, 12, 13, 200, 11 + batch, 12 + batch, 13 + batch, 2 * (12 + batch) - 1]

    async def flow(ours: BrokerProcess, java: Any, port: int) -> None:
        client = RemotingClient()
        host, own_port = ours.address
        master = await address_of(client, ours.namesrv, 0)
        settings = {
            "brokerName": "broker-a", "brokerRole": "SLAVE", "brokerId": 1, "brokerClusterName": "DefaultCluster",
            "mappedFileSizeCommitLog": FILE, "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500,
        }  # fmt: skip
        async with Cutter((host, own_port + 1), cuts).listening("127.0.0.2", own_port + 1) as cutter:
            await send(client, master, "T", 10)
            await asyncio.to_thread(java.start_broker, tmp_path / "java", settings, port)
            async with asyncio.timeout(600):
                while cutter.left:
                    if await log_end(master) == await log_end(f"127.0.0.1:{port}"):
                        await send(client, master, "T", 3)
                    await asyncio.sleep(0.2)
                while (end := await log_end(master)) != await log_end(f"127.0.0.1:{port}"):
                    await asyncio.sleep(0.2)
            await client.close()
            java.end_all()
        assert_equal_logs(tmp_path / "java", ours.store, end)

    more = {"mappedFileSizeCommitLog": FILE, "brokerIP2": "127.0.0.2", "haTransferBatchSize": batch}
    with BrokerProcess(tmp_path, brokerName="broker-a", **more) as ours, machine(release, tmp_path) as java:
        java.namesrv = ours.namesrv
        asyncio.run(flow(ours, java, free_port()))
