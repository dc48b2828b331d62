"""A broker of ours and one of Apache RocketMQ as master and slave, killed under load: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port, still_free
from ha.processes import (
    NAME,
    Load,
    OurSide,
    Side,
    assert_all_is_there,
    assert_equal_logs,
    at_rest,
    kills,
    name_server,
    until,
)
from sampling import WHOLE, seed_of_the_run

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA
from test_replicas_java import machine

pytestmark = NEEDS_JAVA
KILLS = int(os.environ.get("MQFAST_HA_JAVA_KILLS", "50"))  # of each pair; a start of a JVM takes seconds
FILE = 1 << 20
RELEASES = pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
WHO = pytest.mark.parametrize("who", ["master", "slave"])


class JavaSide:
    """A broker of Java that comes back, on its port unless another process took that."""

    def __init__(self, java: Any, what: str, **settings: Any) -> None:
        self._java, self._port = java, free_port()
        self.store = java.work / what
        self._settings = {
            "brokerName": NAME, "brokerClusterName": "DefaultCluster", "mappedFileSizeCommitLog": FILE,
            "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500, **settings,
        }  # fmt: skip
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._port = still_free(self._port)
        self._process = self._java.start_broker(self.store, self._settings, self._port)

    def end(self, how: int = signal.SIGTERM) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(100)

    def signal(self, how: int) -> None:
        assert self._process is not None
        self._process.send_signal(how)


@contextlib.contextmanager
def pair(release: str, who: str, work: Path, **settings: Any) -> Iterator[tuple[Side, Side]]:
    """A master and a slave; ``who`` of them is ours."""
    as_master = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, **settings}
    as_slave = {"brokerRole": "SLAVE", "brokerId": 1, **settings}
    names = name_server(work)
    with machine(release, work) as java:
        java.namesrv = names.address
        if who == "master":
            master: Side = OurSide(work, "ours", names.address, **as_master)
            slave: Side = JavaSide(java, "java", **as_slave)
        else:
            master = JavaSide(java, "java", **as_master)
            slave = OurSide(work, "ours", names.address, **as_slave)
        try:
            master.start()
            slave.start()
            yield master, slave
        finally:
            for one in (slave, master, names):
                one.end(signal.SIGKILL)


async def ended_equal(master: Side, slave: Side, load: Load) -> None:
    """At rest both logs are one, byte for byte, with everything that was acknowledged."""
    end = await at_rest(master, slave)
    for one in (slave, master):
        await asyncio.to_thread(one.end)
    assert_equal_logs(slave.store, master.store, end)
    for one in (master, slave):
        assert_all_is_there(one.store, load)


@pytest.mark.sampled(1)
@WHO
@RELEASES
def test_no_acknowledged_message_is_lost_beside_a_java_broker(release: str, who: str, tmp_path: Path) -> None:
    """``who`` is ours; the other one is Java's."""
    rng = random.Random(seed_of_the_run())

    async def flow(master: Side, slave: Side) -> None:
        async with Load(lambda: master.address, seed_of_the_run(), bytes_per_s=256 << 10) as load:
            await load.goes_on()
            if WHOLE:
                await kills([master, slave], load, KILLS, rng)
            else:
                await kills([slave], load, 1, rng)
                await kills([master], load, 1, rng)
        await ended_equal(master, slave, load)

    with pair(release, who, tmp_path) as (master, slave):
        asyncio.run(flow(master, slave))


@pytest.mark.skipif(not WHOLE, reason="a gibibyte each: make ha")
@WHO
@RELEASES
def test_a_gibibyte_beside_a_java_broker(release: str, who: str, tmp_path: Path) -> None:
    """``who`` is ours. Each message is acknowledged once both have it, so the slave has all from its first file on."""

    async def flow(master: Side, slave: Side) -> None:
        async with Load(lambda: master.address, seed_of_the_run(), bytes_per_s=256 << 10) as load:
            await load.goes_on()
            load.body_bytes, load.bytes_per_s = (100_000, 400_000), None

            async def is_enough() -> bool:
                return load.sent_bytes >= 1 << 30

            await until(is_enough, "a gibibyte", 1200)
        await ended_equal(master, slave, load)

    with pair(release, who, tmp_path, mappedFileSizeCommitLog=64 << 20) as (master, slave):
        asyncio.run(flow(master, slave))
