"""Sends of a SYNC_MASTER that reactors serve: an answer waits for slaves, and other connections do not wait with it.
Pulls of a master, of a slave, and after a change of role.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from raw_frames import Raw, json_frame, letters
from running import Running, running_broker
from waiting import until_async as until

sys.path.append(str(Path(__file__).resolve().parents[1]))

from two_brokers import as_slave, end_of, name_server, pull

from mqfast.remoting.codes import RequestCode

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="reactors need epoll")

SYNC = {
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": 2,
    "slaveTimeout": 60_000,
    "serverSelectorThreads": 2,
    "haAllowedAddresses": "127.0.0.1",
}
OK, SLAVE_TIMEOUT, NO_SLAVE = 0, 12, 11


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def counts(running: Running) -> dict[str, int]:
    result = running.broker.reactor_counts()
    assert result is not None
    return result


def code_of(frame: bytes) -> int:
    return int(json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])["code"])


class Slave:
    """A slave that acknowledges what it is told to, by the replication protocol."""

    def __init__(self, master: Running, writer: asyncio.StreamWriter) -> None:
        self._master = master
        self._writer = writer

    @classmethod
    async def of(cls, master: Running) -> Slave:
        before = master.parts.replicas.in_sync()
        _, writer = await asyncio.open_connection("127.0.0.1", master.parts.replicas.port)
        slave = cls(master, writer)
        slave.report(0)
        await until(lambda: master.parts.replicas.in_sync() == before + 1)
        return slave

    def report(self, offset: int) -> None:
        self._writer.write(offset.to_bytes(8, "big"))

    def acknowledge_all(self) -> None:
        self.report(self._master.context.store.max_physical_offset)

    async def leave(self) -> None:
        before = self._master.parts.replicas.in_sync()
        self._writer.close()
        await until(lambda: self._master.parts.replicas.in_sync() == before - 1)


async def known_topic(master: Running) -> Raw:
    """A connection; the reactors know the topic, and have not served a send."""
    raw = await Raw.to(master.address)
    for number in range(3):
        assert code_of(await raw.ask(json_frame(letters(number), b"x"))) == NO_SLAVE
    assert counts(master)["served"] == 0
    return raw


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_answers_wait_for_the_slave_and_other_connections_do_not(tmp_path: Path, flush: str) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, flushDiskType=flush, **SYNC) as master:
            raw = await known_topic(master)
            slave = await Slave.of(master)
            others = [await Raw.to(master.address) for _ in range(4)]
            for number, other in enumerate((raw, *others)):
                for at in range(20):
                    other.send(json_frame(letters(100 * number + at), b"waits", opaque=at))
            await until(lambda: counts(master)["answersWaiting"] == 100)
            # what need not wait is served beside, by both reactors
            for other in (raw, *others):
                assert code_of(await other.ask(json_frame({}, b"", code=RequestCode.GET_BROKER_RUNTIME_INFO))) == OK
            slave.acknowledge_all()
            for other in (raw, *others):
                assert [code_of(await other.receive()) for _ in range(20)] == [OK] * 20
                other.close()
            assert counts(master)["served"] == 100
            assert counts(master)["answersWaiting"] == 0

    run(flow())


def test_a_slave_that_is_late_gone_or_too_far_behind(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **{**SYNC, "slaveTimeout": 50}) as master:
            raw = await known_topic(master)
            slave = await Slave.of(master)
            assert code_of(await raw.ask(json_frame(letters(3), b"late"))) == SLAVE_TIMEOUT
            assert counts(master)["served"] == 1
            await master.call(RequestCode.UPDATE_BROKER_CONFIG, b"haMaxGapNotInSync=1")
            for number in range(3):  # settings withdraw the topics
                assert code_of(await raw.ask(json_frame(letters(number), b"behind"))) == NO_SLAVE
            await master.call(RequestCode.UPDATE_BROKER_CONFIG, b"haMaxGapNotInSync=1000000\nslaveTimeout=60000")
            for number in range(3):
                raw.send(json_frame(letters(number), b"in time"))
                await until(lambda n=number: master.context.store.max_offset("T", 0) == 8 + n)  # type: ignore[misc]
                slave.acknowledge_all()
                assert code_of(await raw.receive()) == OK
            await slave.leave()
            served = counts(master)["served"]
            assert code_of(await raw.ask(json_frame(letters(9), b"alone"))) == NO_SLAVE
            assert counts(master)["served"] == served
            raw.close()

    run(flow())


def test_a_change_of_settings_answers_only_what_waits_for_no_slave_any_more(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **SYNC) as master:
            raw = await known_topic(master)
            slave = await Slave.of(master)
            raw.send(json_frame(letters(3), b"waits"))
            await until(lambda: counts(master)["answersWaiting"] == 1)
            await master.call(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4")  # reactors serve no more sends
            await master.call(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6")
            assert counts(master)["answersWaiting"] == 1
            await master.call(RequestCode.UPDATE_BROKER_CONFIG, b"inSyncReplicas=1")
            assert code_of(await raw.receive()) == OK
            await slave.leave()
            raw.close()

    run(flow())


def test_the_end_of_the_broker_gives_the_slave_time_to_acknowledge(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **SYNC) as master:
            raw = await known_topic(master)
            slave = await Slave.of(master)
            raw.send(json_frame(letters(3), b"waits"))
            await until(lambda: counts(master)["answersWaiting"] == 1)
            asyncio.get_running_loop().call_soon(slave.acknowledge_all)
        assert code_of(await raw.receive()) == OK
        raw.close()

    run(flow())


async def pulled(one: Running, bodies: bytes) -> int:
    """Pull four times; each answer has the bodies. Returns: how many of the pulls reactors have served."""
    before = counts(one)["served"]
    for _ in range(4):
        found = await pull(one, "T")
        assert (found.code, b"".join(map(bytes, _parts(found.body))).count(bodies)) == (OK, 10)
    return counts(one)["served"] - before


def _parts(body: Any) -> list[Any]:
    return [body] if isinstance(body, bytes | memoryview) else list(body)


def test_pulls_of_a_sync_master_of_a_slave_and_after_both_changed_their_roles(tmp_path: Path) -> None:
    """The log of a slave may be truncated: its event loop serves all pulls."""
    both = {"serverSelectorThreads": 2}

    async def flow() -> None:
        async with name_server(tmp_path) as namesrv:
            as_master = {**SYNC, "namesrvAddr": namesrv}
            followed = as_slave(namesrv, slaveReadEnable=True, **both)
            async with (
                running_broker(tmp_path / "a", **as_master) as master,
                running_broker(tmp_path / "b", **followed) as slave,
            ):
                await until(lambda: master.parts.replicas.in_sync() == 1)
                for _ in range(10):
                    assert (await master.send("T", b"a body")).code == OK
                await until(lambda: slave.context.store.max_offset("T", 0) == 10)
                await until(lambda: "T" in slave.context.tables.topics)
                assert await pulled(master, b"a body") == 3
                assert await pulled(slave, b"a body") == 0
            async with (
                running_broker(tmp_path / "b", **as_master) as master,
                running_broker(tmp_path / "a", **followed) as slave,
            ):
                await until(lambda: end_of(slave) == end_of(master))
                assert await pulled(master, b"a body") == 3
                assert await pulled(slave, b"a body") == 0

    run(flow())
