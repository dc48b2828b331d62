"""Another broker becomes the master of a name: clients find it at the first failure, not with the next look at all
routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker.two_brokers import as_slave, name_server, run, until
from running import running_broker

from mqfast import AsyncProducer, AsyncPullConsumer, AsyncPushConsumer
from mqfast.client.consumer.push import fetcher
from mqfast.errors import ClientError

pytestmark = pytest.mark.usefixtures("nobody_looks_at_all_routes")


@pytest.fixture
def nobody_looks_at_all_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqfast.client.net.instance.ROUTE_S", 3600.0)


@contextlib.asynccontextmanager
async def reading(consumer: Any) -> AsyncIterator[list[bytes]]:
    found: list[bytes] = []

    async def read() -> None:
        async for message in consumer:
            found.append(bytes(message.body))

    async with consumer:
        task = asyncio.ensure_future(read())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def send(producer: AsyncProducer, body: bytes) -> None:
    """Send, again until a broker takes the message; ``run`` ends that."""
    while True:
        try:
            await producer.send("T", body)
        except ClientError:
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("kind", [AsyncPushConsumer, AsyncPullConsumer])
def test_producer_and_consumer_find_the_new_master(tmp_path: Path, kind: Any) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as names, AsyncProducer("p", names) as producer:
            async with running_broker(tmp_path / "m", namesrvAddr=names) as one:
                await send(producer, b"before")
                before = one.address
                consumer = kind("g", names, topics="T", from_where="first")
                reader = reading(consumer)
                found = await reader.__aenter__()
                await until(lambda: b"before" in found)
            async with running_broker(tmp_path / "m", namesrvAddr=names) as one:
                assert one.address != before
                await send(producer, b"after")
                await until(lambda: b"after" in found)
                await reader.__aexit__(None, None, None)

    run(flow)


def test_pulls_from_an_unreadable_slave_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends to the master, which is away."""
    asked: list[str] = []
    original = fetcher.pull

    def pull(address: str, *more: Any, **named: Any) -> Any:
        asked.append(address)
        return original(address, *more, **named)

    async def flow() -> None:
        async with name_server(tmp_path) as names, AsyncProducer("p", names) as producer:
            async with running_broker(tmp_path / "m", namesrvAddr=names) as master:
                await send(producer, b"x")
                async with running_broker(tmp_path / "s", **as_slave(names)) as slave:
                    async with reading(AsyncPushConsumer("g", names, topics="T", from_where="first")) as found:
                        await until(lambda: found == [b"x"])
                        await until(lambda: slave.context.store.max_offset("T", 0) + 1)
                        await master.broker.stop()
                        await until(lambda: asked.count(slave.address) > 10)
                        began, count = time.monotonic(), asked.count(slave.address)
                        await until(lambda: asked.count(slave.address) >= count + 100)
                        assert time.monotonic() - began > 15 * fetcher.FAILED_S, "of five queues, each 20 times"

    monkeypatch.setattr(fetcher, "pull", pull)
    monkeypatch.setattr(fetcher, "FAILED_S", 0.05)
    run(flow)
