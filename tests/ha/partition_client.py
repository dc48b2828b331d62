"""The process of the clients in a network of namespaces: a name server, producers, and a look at etcd's leader.

``python partition_client.py WORK ETCD[;ETCD...] BROKER=ID ...``: writes WORK/history until SIGTERM.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TextIO

from mqfast.errors import MqfastError
from mqfast.ha.failover.etcd import Etcd
from mqfast.ha.failover.etcd_state import Leader
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.client import RemotingClient

QUEUES: Final = 4
LEADER_KEY: Final = "/mqfast/DefaultCluster/broker-a/leader"


class Clients:
    def __init__(self, history: TextIO, endpoints: list[str], brokers: dict[str, int]) -> None:
        self.history = history
        self.endpoints = endpoints
        self.brokers = brokers
        self.client = RemotingClient(connect_timeout_ms=500)

    def note(self, *row: Any) -> None:
        self.history.write(json.dumps(row) + "\n")
        self.history.flush()

    async def produce(self, queue: int) -> None:
        """One send after the other; after one that was not acknowledged the other broker is tried."""
        addresses = itertools.cycle(self.brokers)
        address = next(addresses)
        for number in itertools.count():
            body = f"{queue}-{number}"
            fields = {
                "a": "p", "b": "T", "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0", "g": "1700000000000",
                "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            began_s = time.monotonic()
            code, queue_offset, physical = -1, -1, -1
            try:
                answer = await self.client.call(address, 310, fields, body.encode(), timeout_ms=2000)
                code = answer.code
                if code == 0:
                    queue_offset = int(answer.ext_fields["queueOffset"])
                    physical = int(answer.ext_fields["msgId"][-16:], 16)
            except (MqfastError, OSError, KeyError, ValueError):
                pass
            ended_s = time.monotonic()
            self.note("send", began_s, ended_s, queue, body, self.brokers[address], code, queue_offset, physical)
            if code == 0:
                await asyncio.sleep(0.005)
            else:
                address = next(addresses)
                await asyncio.sleep(0.02)

    async def watch(self) -> None:
        """Who has the lease. This process is never cut off from etcd."""
        etcd, pool = Etcd(self.endpoints, 0.5), ThreadPoolExecutor(1)
        before: tuple[int | None, int] = (-1, -1)
        while True:
            try:
                found = (await asyncio.get_running_loop().run_in_executor(pool, etcd.read, LEADER_KEY))[0]
                leader = None if found is None else Leader.decoded(found)
                now = (None, before[1]) if leader is None else (leader.member.id, leader.epoch)
                if now != before:
                    self.note("leader", time.monotonic(), *now)
                before = now
            except MqfastError:
                pass
            await asyncio.sleep(0.03)


async def main(work: str, endpoints: str, *brokers: str) -> None:
    config = NamesrvConfig()
    paths = {"kvConfigPath": f"{work}/kv.json", "configStorePath": f"{work}/namesrv.properties"}
    config.update({**paths, "listenPort": "9876", "bindAddress": "0.0.0.0"}, "test")
    names = NameServer(config)
    await names.start()
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    with open(f"{work}/history", "w") as history:
        pairs = {address: int(number) for address, number in (one.split("=") for one in brokers)}
        clients = Clients(history, endpoints.split(";"), pairs)
        tasks = [asyncio.ensure_future(clients.produce(queue)) for queue in range(QUEUES)]
        tasks.append(asyncio.ensure_future(clients.watch()))
        await end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await clients.client.close()
    await names.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
