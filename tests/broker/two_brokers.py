"""A name server, and the settings of a slave beside a master, for tests of two brokers in one loop.

Room: tests/broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from running import Running
from waiting import until_async as until

from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.codes import RequestCode

__all__ = ["as_slave", "end_of", "name_server", "pull", "run", "until"]


@contextlib.asynccontextmanager
async def name_server(tmp_path: Path) -> AsyncIterator[str]:
    config = NamesrvConfig()
    config.update({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}, "test")
    server = NameServer(config)
    await server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        await server.stop()


def end_of(one: Running) -> int:
    return one.context.store.engine.raw.end


def run(flow: Callable[[], Any]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(200):
            await flow()

    asyncio.run(whole())


def as_slave(namesrv: str, **more: Any) -> dict[str, Any]:
    settings = {"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": namesrv, "registerNameServerPeriod": 10_000}
    return {**settings, "haSendHeartbeatInterval": 200, **more}


async def pull(one: Running, topic: str, offset: int = 0, queue_id: int = 0) -> Any:
    return await one.call(
        RequestCode.PULL_MESSAGE,
        consumerGroup="readers", topic=topic, queueId=queue_id, queueOffset=offset, maxMsgNums=32, sysFlag=4,
        commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
    )  # fmt: skip
