"""Fail-over with bodies up to 4 MiB and retries of the same message to old and new masters, checked by a reading of the
log files of its own: everything that was answered 0 stands where the answer said.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from ha.etcd_members import NEEDS_ETCD, one_etcd
from ha.processes import NAME, TOPIC, OurSide, at_rest, name_server
from sampling import WHOLE, seed_of_the_run

import mqfast
from mqfast.errors import MqfastError
from mqfast.ha.failover.etcd import Etcd
from mqfast.ha.failover.etcd_state import Leader, State
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode

ROUNDS = int(os.environ.get("MQFAST_HISTORY_ROUNDS", "200" if WHOLE else "2"))
OF_ONE_CLUSTER = 5
LOG_FILE = 16 << 20
BODY_MAX = 4 << 20
QUEUES = 4
_HEAD = struct.Struct(">IIIIIQQIQ")  # size, magic, CRC, queue, flag, queue offset, place, system flag, born
_MAGICS = (0xDAA320A7, 0xDAA320AB)
_BLANK = 0xCBD43194


class Record(NamedTuple):
    queue: int
    queue_offset: int
    topic: str
    digest: bytes


def records_of(store: Path) -> dict[int, Record]:
    """Every record of a log by its physical offset, read from the files alone."""
    found = {}
    for file in sorted((store / "commitlog").iterdir()):
        data, at, base = file.read_bytes(), 0, int(file.name)
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if size == 0 or magic == _BLANK:
                break
            assert magic in _MAGICS, f"{file.name}, position {at}: magic {magic:#x}"
            _, _, crc, queue, _, queue_offset, place, flags, _ = _HEAD.unpack_from(data, at)
            assert place == base + at, f"{file.name}, position {at}: names {place}"
            behind = at + _HEAD.size + (20 if flags & 0x10 else 8) + 8 + (20 if flags & 0x20 else 8) + 4 + 8
            (length,) = struct.unpack_from(">I", data, behind)
            body = data[behind + 4 : behind + 4 + length]
            assert zlib.crc32(body) & 0x7FFFFFFF == crc, f"{file.name}, position {at}: CRC"
            behind += 4 + length
            width = 2 if magic == _MAGICS[1] else 1
            named = int.from_bytes(data[behind : behind + width], "big")
            topic = data[behind + width : behind + width + named].decode()
            found[place] = Record(queue, queue_offset, topic, hashlib.sha256(body).digest())
            at += size
    return found


class Answer(NamedTuple):
    """A send that was answered 0."""

    physical: int
    queue: int
    queue_offset: int
    digest: bytes
    broker: int


class Cluster:
    """Two brokers of one name under fail-over, as processes, with what they answered."""

    def __init__(self, work: Path, namesrv: str, endpoint: str, rng: random.Random) -> None:
        settings = {
            "brokerRole": "SYNC_MASTER", "haEtcdEndpoints": endpoint, "haTruncateDiverged": True, "slaveTimeout": 500,
            "haLeaseSeconds": 2, "haMaxTimeSlaveNotCatchup": 30_000, "mappedFileSizeCommitLog": LOG_FILE,
            "maxMessageSize": BODY_MAX + 1024,
        }  # fmt: skip
        self.sides = {number: OurSide(work, f"b{number}", namesrv, brokerId=number, **settings) for number in (1, 2)}
        self.rng = rng
        self.answers: list[Answer] = []
        self.refused = 0
        self.client = RemotingClient(connect_timeout_ms=500)
        self._etcd = Etcd([endpoint], 2.0)
        self._number = 0

    def leader(self) -> int:
        """Who has the lease, 0: nobody. To choose victims, never to judge."""
        with contextlib.suppress(MqfastError):
            found = self._etcd.read(f"/mqfast/DefaultCluster/{NAME}/leader")[0]
            return 0 if found is None else Leader.decoded(found).member.id
        return 0

    def in_sync(self) -> bool:
        with contextlib.suppress(MqfastError):
            found = self._etcd.read(f"/mqfast/DefaultCluster/{NAME}/state")[0]
            return found is not None and State.decoded(found).in_sync == {1, 2}
        return False

    def message(self, size: int | None = None) -> tuple[int, str, bytes]:
        """A new one: queue, key and body."""
        self._number += 1
        if size is None:
            size = self.rng.choice((10, 1000, 70_000, 200_000, 1 << 20, BODY_MAX))
        body = b"%d:" % self._number + self.rng.randbytes(16) * (size // 16)
        return self.rng.randrange(QUEUES), f"{self._number:032X}", body[:BODY_MAX]

    async def send(self, broker: int, message: tuple[int, str, bytes]) -> bool:
        """One attempt at one broker. Returns: was it answered 0?"""
        queue, key, body = message
        fields = {
            "a": "p", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0", "g": "1700000000000",
            "h": "0", "i": f"UNIQ_KEY\x01{key}\x02", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        address = self.sides[broker].address
        try:
            answer = await self.client.call(address, RequestCode.SEND_MESSAGE_V2, fields, body, timeout_ms=5000)
        except (MqfastError, OSError):
            return False
        if answer.code != 0:
            self.refused += 1
            return False
        physical = int(answer.ext_fields["msgId"][-16:], 16)
        digest = hashlib.sha256(body).digest()
        self.answers.append(Answer(physical, queue, int(answer.ext_fields["queueOffset"]), digest, broker))
        return True

    async def deliver(self, message: tuple[int, str, bytes]) -> None:
        """Send the same message to one broker after the other until one answers 0."""
        end = time.monotonic() + 120
        while not (await self.send(1, message) or await self.send(2, message)):
            assert time.monotonic() < end, "no broker took a message within 120 s"
            await asyncio.sleep(0.1)

    # -- faults --------------------------------------------------------------------------------------------------------

    async def kill_of_the_master(self) -> None:
        master, messages = self.leader() or 1, [self.message() for _ in range(3)]
        asked = [asyncio.ensure_future(self.send(master, one)) for one in messages]
        await asyncio.sleep(self.rng.uniform(0, 0.1))
        await asyncio.to_thread(self.sides[master].end, signal.SIGKILL)
        await asyncio.gather(*asked)
        for one in messages:  # some of them were stored, or even answered
            await self.deliver(one)
        await asyncio.to_thread(self.sides[master].start)

    async def master_without_slave(self) -> None:
        """Its last messages are answered by nobody; the other broker takes other ones, then the same ones again."""
        master = self.leader() or 1
        slave = 3 - master
        await asyncio.to_thread(self.sides[slave].end, signal.SIGKILL)
        large = self.message(self.rng.choice((70_000, 200_000, 1 << 20, BODY_MAX)))
        for one in (self.message(100), large):
            await self.send(master, one)
        await asyncio.to_thread(self.sides[master].end, signal.SIGKILL)
        await asyncio.to_thread(self.sides[slave].start)
        await self.deliver(self.message(100))
        await self.deliver(large)
        await self.deliver(self.message(10))
        await asyncio.to_thread(self.sides[master].start)

    async def master_that_stands_still(self) -> None:
        master, messages = self.leader() or 1, [self.message() for _ in range(2)]
        asked = [asyncio.ensure_future(self.send(master, one)) for one in messages]
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        self.sides[master].signal(signal.SIGSTOP)
        await self.deliver(messages[0])
        self.sides[master].signal(signal.SIGCONT)
        await asyncio.gather(*asked)
        await self.deliver(messages[1])

    async def kill_of_the_slave(self) -> None:
        slave = 3 - (self.leader() or 1)
        await asyncio.to_thread(self.sides[slave].end, signal.SIGKILL)
        asked = asyncio.ensure_future(self.deliver(self.message()))
        await asyncio.to_thread(self.sides[slave].start)
        await asked

    async def end_of_the_master(self) -> None:
        master = self.leader() or 1
        asked = asyncio.ensure_future(self.deliver(self.message()))
        await asyncio.to_thread(self.sides[master].end, signal.SIGTERM)
        await asked
        await asyncio.to_thread(self.sides[master].start)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 180
        while not await asyncio.to_thread(condition):
            if time.monotonic() > end:
                logs = {number: one.log.read_text()[-1500:] for number, one in self.sides.items() if one.log.exists()}
                pytest.fail(f"{what}: {logs}")
            await asyncio.sleep(0.1)

    async def run(self, rounds: int) -> list[str]:
        """Start, so many faults, and then both brokers level and ended. Returns: the faults."""
        faults = [
            self.kill_of_the_master, self.master_without_slave, self.master_without_slave,
            self.master_that_stands_still, self.kill_of_the_slave, self.end_of_the_master,
        ]  # fmt: skip
        await asyncio.to_thread(self.sides[1].start)
        await self.until(lambda: self.leader() == 1, "broker 1 leads")
        await asyncio.to_thread(self.sides[2].start)
        done = []
        for _ in range(rounds):
            await self.until(self.in_sync, "both are in sync")
            for _ in range(3):
                await self.deliver(self.message(self.rng.choice((10, 1000, 70_000))))
            fault = self.rng.choice(faults)
            done.append(fault.__name__)
            await fault()
        await self.until(self.in_sync, "both are in sync")
        await self.deliver(self.message(10))
        await self.client.close()
        await at_rest(self.sides[1], self.sides[2])
        for one in self.sides.values():
            await asyncio.to_thread(one.end)
        return done


@contextlib.contextmanager
def cluster(work: Path, seed: int) -> Iterator[Cluster]:
    names = name_server(work)
    try:
        with one_etcd(work) as etcd:
            one = Cluster(work, names.address, etcd.endpoint, random.Random(seed))
            try:
                yield one
            finally:
                for side in one.sides.values():
                    side.end(signal.SIGKILL)
    finally:
        names.end(signal.SIGKILL)


@NEEDS_ETCD
@pytest.mark.parametrize("first", range(0, ROUNDS, OF_ONE_CLUSTER))
def test_acknowledged_messages_are_at_the_acknowledged_offsets(first: int, disk_path: Path) -> None:
    seed = seed_of_the_run() + first
    with cluster(disk_path, seed) as one:
        done = asyncio.run(one.run(min(OF_ONE_CLUSTER, ROUNDS - first)))
        assert one.answers
        logs = [records_of(side.store) for side in one.sides.values()]
        assert logs[0] == logs[1], f"{done}: the logs of both brokers differ"
        for answer in one.answers:
            found = logs[0].get(answer.physical)
            wanted = Record(answer.queue, answer.queue_offset, TOPIC, answer.digest)
            assert found == wanted, f"seed {seed}, {done}: {answer}: found {found}"
        places = [(answer.queue, answer.queue_offset) for answer in one.answers]
        assert len(set(places)) == len(places), "one place was answered twice"
        for side in one.sides.values():
            assert mqfast.verify(side.store).ok
        figures = f"seed {seed}: {len(one.answers)} answered 0, {one.refused} otherwise, 0 lost, after {done}\n"
    if path := os.environ.get("MQFAST_FIGURES"):
        with open(path, "a") as file:
            file.write(figures)
