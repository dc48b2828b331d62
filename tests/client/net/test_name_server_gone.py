"""The name server goes after the start: clients go on by what they know, say what they miss, and find it again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mqfast.client import AsyncProducer, AsyncPushConsumer, Message, TransactionProducer
from mqfast.client.delivery import Delivery
from mqfast.errors import ConnectError
from mqfast.testing import Broker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr("mqfast.client.net.instance.ROUTE_S", 0.2)
    monkeypatch.setattr("mqfast.client.net.instance.HEARTBEAT_S", 0.2)
    monkeypatch.setattr("mqfast.client.consumer.push.engine.REBALANCE_S", 0.2)
    with Broker(topics={"orders": 2}) as one:
        yield one


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_sync_clients_continue_without_name_servers(broker: Broker, how: str) -> None:
    seen: list[str] = []
    consumer = broker.consumer("pushers")
    consumer.subscribe("orders", lambda message: seen.append(message.text()))
    pulled: list[str] = []
    payer = TransactionProducer("payers", broker.namesrv_addr, check=lambda message: True)
    with consumer, broker.puller("pullers", topics="orders") as puller, broker.producer("makers") as producer, payer:

        def some(name: str) -> list[str]:
            bodies = [f"{name} {i}" for i in range(6)]
            producer.send("orders", bodies[0])
            producer.send_future(Message("orders", bodies[1])).result(20)
            producer.send_batch([Message("orders", bodies[2]), Message("orders", bodies[3])])
            with payer.transaction(Message("orders", bodies[4])):
                pass
            producer.send_oneway(Message("orders", bodies[5]))
            broker.wait_until(lambda: set(bodies) <= set(seen), timeout_s=30)
            broker.wait_until(
                lambda: pulled.extend(one.text() for one in puller.poll(timeout_s=0.2)) or set(bodies) <= set(pulled),
                timeout_s=30,
            )
            return bodies

        some("before")
        getattr(broker, how)("namesrv-1")
        for round_ in range(3):  # several looks for routes fail meanwhile
            some(f"without {round_}")
        with pytest.raises(ConnectError, match=r"no name server answered.*127\.0\.0\.1:"):
            producer.send("new-topic", b"x")
        with pytest.raises(ConnectError, match="no name server answered"):
            broker.consumer("late", topics="orders").start()
        broker.restart("namesrv-1")
        some("after")
        broker.create_topic("new-topic")  # the broker tells the new name server all that it has
        assert producer.send("new-topic", b"x").ok
    assert len(seen) == len(set(seen)) == 30


def test_async_clients_continue_without_name_servers(broker: Broker) -> None:
    async def flow() -> None:
        seen: set[str] = set()
        consumer = AsyncPushConsumer("pushers", broker.namesrv_addr, from_where="first")

        async def handle(message: Delivery) -> None:
            seen.add(message.text())

        consumer.subscribe("orders", handle)
        async with consumer, AsyncProducer("makers", broker.namesrv_addr) as producer, asyncio.timeout(300):
            for name in ("before", "without", "still without", "after"):
                await producer.send("orders", name)
                while name not in seen:
                    await asyncio.sleep(0.01)
                if name == "before":
                    await asyncio.to_thread(broker.kill, "namesrv-1")
                if name == "still without":
                    with pytest.raises(ConnectError):
                        await producer.send("new-topic", b"x")
                    await asyncio.to_thread(broker.restart, "namesrv-1")

    asyncio.run(flow())
