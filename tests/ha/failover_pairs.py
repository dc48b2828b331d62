"""Brokers 1 and 2 of one name under fail-over, in the running event loop, with a real etcd and a name server.

Room: tests/ha.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from free_ports import free_ports
from ha.etcd_members import EtcdMember, one_etcd
from running import broker_config
from waiting import until_async as until

from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode

__all__ = ["CALL_MS", "Pair", "cut_off", "in_sync", "pair", "until"]

CALL_MS = 30_000


class Pair:
    """A name server and the brokers 1 and 2 of one name."""

    def __init__(self, work: Path, etcd: EtcdMember, **settings: Any) -> None:
        self.work = work
        self.etcd = etcd
        self.client = RemotingClient()
        self.brokers: dict[int, FailoverBroker] = {}
        self._settings = settings
        self._ports = free_ports(24)
        config = NamesrvConfig()
        paths = {"kvConfigPath": f"{work}/kv.json", "configStorePath": f"{work}/namesrv.properties"}
        config.update({**paths, "listenPort": "0"}, "test")
        self.names = NameServer(config)

    async def start(self, number: int, **more: Any) -> FailoverBroker:
        namesrv = "{}:{}".format(*self.names.address)
        settings = {
            "brokerId": number, "brokerRole": "SYNC_MASTER", "listenPort": self._ports + 10 * number - 6,
            "namesrvAddr": namesrv, "haEtcdEndpoints": self.etcd.endpoint, "haSendHeartbeatInterval": 500,
            "haTruncateDiverged": True, "haMaxTimeSlaveNotCatchup": 2000, **self._settings, **more,
        }  # fmt: skip
        one = self.brokers[number] = FailoverBroker(broker_config(self.work / f"b{number}", **settings))
        await one.start()
        return one

    def free_port(self) -> int:
        """For a third broker, which needs the ports around this one as well."""
        return free_ports(8) + 4

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).stop()

    async def send(self, number: int, body: bytes, queue_id: int = 0) -> int:
        """The code of the answer; -1 where none came."""
        fields = {
            "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": "1700000000000", "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        address = f"127.0.0.1:{self._ports + 10 * number - 6}"
        try:
            return (await self.client.call(address, RequestCode.SEND_MESSAGE_V2, fields, body, timeout_ms=CALL_MS)).code
        except (OSError, RuntimeError, ValueError):
            return -1

    async def is_named(self, one: FailoverBroker) -> None:
        """Wait until the name server knows the address of this master."""
        address, port = "{}:{}".format(*self.names.address), str(one.broker.address[1]).encode()
        async with asyncio.timeout(100):
            while port not in bytes((await self.client.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)).body):
                await asyncio.sleep(0.02)

    def bodies(self, number: int) -> list[bytes]:
        store = self.brokers[number].broker.context.store
        return [bytes(one.body) for one in store.get("T", 0, 0, max_count=10_000)]


def in_sync(one: FailoverBroker) -> frozenset[int]:
    return one._set.members if one._set is not None and one.right.is_valid() else frozenset()


@contextlib.asynccontextmanager
async def pair(work: Path, **settings: Any) -> AsyncIterator[Pair]:
    with one_etcd(work) as etcd:
        one = Pair(work, etcd, **settings)
        await one.names.start()
        try:
            yield one
        finally:
            for number in list(one.brokers):
                await one.stop(number)
            await one.client.close()
            await one.names.stop()


def cut_off(one: FailoverBroker) -> None:
    """As far as etcd is concerned this broker is gone; it hears nothing either."""
    one._keeper.drop()
    one._tasks[0].cancel()
