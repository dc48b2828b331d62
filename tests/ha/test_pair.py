"""A master and a slave as processes under load: killed, stopped, on a full disk. Short here, long with ``make ha``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ha.processes import (
    TOPIC,
    Load,
    OurSide,
    assert_all_is_there,
    assert_equal_logs,
    at_rest,
    kills,
    log_end,
    name_server,
    until,
)
from sampling import WHOLE, seed_of_the_run

import mqfast
from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.admin.brokers import SlaveStatus
from mqfast.errors import MqfastError

KILLS = int(os.environ.get("MQFAST_HA_KILLS", "200"))
SEED = seed_of_the_run()
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}


class Pair(NamedTuple):
    """Attributes: namesrv: the address of the name server."""

    namesrv: str
    master: OurSide
    slave: OurSide

    def slaves(self, of: str) -> list[SlaveStatus]:
        """What a broker says of the slaves; nothing while it does not answer."""
        with contextlib.suppress(MqfastError), AdminClient(self.namesrv, timeout_s=5) as admin:
            return list(admin.ha_status(of).slaves)
        return []


@contextlib.contextmanager
def pair(work: Path, master: dict[str, Any], slave: dict[str, Any] | None = None) -> Iterator[Pair]:
    names = name_server(work)
    ours = OurSide(work, "master", names.address, **master)
    theirs = OurSide(work, "slave", names.address, **SLAVE, **(slave or {}))
    try:
        ours.start()
        theirs.start()
        both = Pair(names.address, ours, theirs)
        end = time.monotonic() + 120
        while not both.slaves(ours.address):  # a slave that comes later begins with its master's last file
            assert time.monotonic() < end, theirs.log.read_text()[-3000:]
            time.sleep(0.1)
        yield both
    finally:
        for one in (theirs, ours, names):
            one.end(signal.SIGKILL)


def run(flow: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(flow())  # type: ignore[arg-type]


async def ended_equal(both: Pair) -> None:
    """At rest both logs are one, byte for byte."""
    end = await at_rest(both.master, both.slave)
    for one in (both.slave, both.master):
        await asyncio.to_thread(one.end)
    assert_equal_logs(both.slave.store, both.master.store, end)


def test_no_acknowledged_message_is_lost_whoever_is_killed(tmp_path: Path) -> None:
    count, rng = KILLS if WHOLE else 2, random.Random(SEED)

    async def flow(both: Pair) -> None:
        async with Load(lambda: both.master.address, SEED) as load:
            await load.goes_on()
            if WHOLE:
                await kills([both.master, both.slave], load, count, rng)
            else:
                for side in (both.slave, both.master):
                    await kills([side], load, 1, rng)
        await ended_equal(both)
        assert load.count > count
        for one in (both.master, both.slave):
            assert_all_is_there(one.store, load)

    with pair(tmp_path, SYNC) as both:
        run(lambda: flow(both))


def test_a_suspended_slave_delays_no_send_in_async_mode(tmp_path: Path) -> None:
    """And in sync mode the answers are 12: tests/broker/test_replicas.py."""
    seconds = 60 if WHOLE else 1.0

    async def flow(both: Pair) -> None:
        async with Load(lambda: both.master.address, SEED, (30_000, 60_000)) as load:
            await load.goes_on()
            both.slave.signal(signal.SIGSTOP)
            stood_s = time.monotonic()
            while time.monotonic() < stood_s + seconds:
                await load.goes_on()
            both.slave.signal(signal.SIGCONT)
        await ended_equal(both)
        assert_all_is_there(both.slave.store, load)

    with pair(tmp_path, {}) as both:
        run(lambda: flow(both))


def test_a_gibibyte_under_load(tmp_path: Path) -> None:
    wanted = 1 << 30 if WHOLE else 16 << 20

    async def flow(both: Pair) -> None:
        async with Load(lambda: both.master.address, SEED, (100_000, 400_000), None) as load:

            async def is_enough() -> bool:
                return load.sent_bytes >= wanted

            await until(is_enough, f"{wanted} bytes", 1200)
        await ended_equal(both)
        assert_all_is_there(both.slave.store, load)

    settings = {"mappedFileSizeCommitLog": 64 << 20 if WHOLE else 4 << 20}
    with pair(tmp_path, settings, settings) as both:
        run(lambda: flow(both))


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"mount: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def filled(disk: Path) -> Path:
    """Take every byte of it. Returns: the file that has them."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return ballast


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_slave_with_a_full_disk_reports_it_and_resumes_with_space(tmp_path: Path, mode: str) -> None:
    async def flow(both: Pair, disk: Path) -> None:
        async with Load(lambda: both.master.address, SEED, (5_000, 20_000), 256 << 10) as load:
            await load.goes_on()
            ballast = await asyncio.to_thread(filled, disk)

            async def says_so() -> bool:
                (one,) = await asyncio.to_thread(both.slaves, both.slave.address) or (None,)
                return one is not None and one.state == "READY" and "disk" in str(one.error).lower()

            await until(says_so, "a slave that says that its disk is full")
            if mode == "async":
                await load.goes_on()
            else:
                refused = dict(load.codes)

                async def is_told() -> bool:
                    return any(load.codes.get(code, 0) > refused.get(code, 0) for code in (11, 12))

                await until(is_told, f"answers 11 or 12, of {load.codes}, {load.count}")
            ballast.unlink()

            async def follows() -> bool:
                (one,) = await asyncio.to_thread(both.slaves, both.slave.address) or (None,)
                return one is not None and one.state == "TRANSFER"

            await until(follows, "a slave that goes on")
            await load.goes_on()
        await ended_equal(both)
        assert_all_is_there(both.slave.store, load)

    with small_disk(tmp_path / "disk", "128m") as disk:
        # Else the slave deletes its oldest files, as brokers of RocketMQ do, and follows.
        keeps = {"cleanResourceInterval": 100, "cleanFileForciblyEnable": False}
        settings = {"storePathRootDir": disk / "store", **keeps}
        with pair(tmp_path, SYNC if mode == "sync" else {}, settings) as both:
            run(lambda: flow(both, disk))


def test_what_async_mode_may_lose_is_the_end_of_what_was_sent(tmp_path: Path) -> None:
    """The master's machine is lost: the slave has a first part of each queue, and the window is measured."""
    count, rng = 20 if WHOLE else 1, random.Random(SEED)
    windows = []

    async def flow(both: Pair) -> None:
        async with Load(lambda: both.master.address, SEED, (100, 2000)) as load:
            await load.goes_on()

            async def slave_has_some() -> bool:
                return await log_end(both.slave.address) > 0

            await until(slave_has_some, "a slave that has something")
            await asyncio.sleep(rng.uniform(0.3, 1.0))
            await asyncio.to_thread(both.master.end, signal.SIGKILL)
            killed_s = time.monotonic()
        await asyncio.to_thread(both.slave.end)
        lost_ms, kept_count = 0.0, 0
        for queue, rows in load.acknowledged.items():
            there = _numbers(both.slave.store, queue)
            lost = [row for row in rows if row[0] >= len(there)]
            kept = [row for row in rows if row[0] < len(there)]
            assert all(there[offset] == number for offset, number, _ in kept), f"queue {queue}"
            kept_count += len(kept)
            lost_ms = max([lost_ms, *((killed_s - when) * 1000 for _, _, when in lost)])
        assert kept_count > 0
        windows.append((lost_ms, load.count))

    for number in range(count):
        work = tmp_path / str(number)
        work.mkdir()
        with pair(work, {}) as both:
            run(lambda both=both: flow(both))  # type: ignore[misc]
    print("lost of each run, ms before the kill, of messages acknowledged:", windows)


def _numbers(store: Path, queue: int) -> list[int]:
    with mqfast.StoreReader(store) as reader:
        return [int(bytes(one.body).split(b":")[1]) for one in reader.messages(TOPIC, queue)]
