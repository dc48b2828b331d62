"""Orderly consumers while another broker becomes the master: it knows no locks, and no two members handle one queue."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import pytest
from ha.etcd_members import NEEDS_ETCD
from ha.failover_pairs import CALL_MS, Pair, cut_off, in_sync, pair, until

from mqfast.broker.metadata.client_manager import queue_locks
from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.client import Delivery, PushConsumer
from mqfast.client.consumer.push import engine, locks
from mqfast.client.net import instance
from mqfast.remoting.codes import RequestCode, ResponseCode

QUEUES = 4
CHANGES = 3  # of the member that has a queue: to the one that asked first, back as the shares say, and the last close


async def replaced(both: Pair, how: str, one: FailoverBroker, two: FailoverBroker) -> None:
    """Another broker is the master; the one before is gone, or follows at its old address, or has heard nothing."""
    if how == "ends":
        await both.stop(1)
    else:
        cut_off(one)
    await until(two.right.is_valid)
    await both.is_named(two)
    if how == "follows":
        one._tasks[0] = asyncio.ensure_future(one._run())
        await until(lambda: one.broker.config.is_slave)


async def have_joined(both: Pair, one: FailoverBroker, count: int) -> None:
    """Wait until so many members have told this broker that they are there."""
    async with asyncio.timeout(100):
        while True:
            address = "{}:{}".format(*one.broker.address)
            answer = await both.client.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
            if answer.code == ResponseCode.SUCCESS and len(json.loads(answer.body)["consumerIdList"]) == count:
                return
            await asyncio.sleep(0.02)


@NEEDS_ETCD
@pytest.mark.parametrize("how", ["ends", "follows", "stays"])
def test_no_two_members_handle_a_queue_at_once_when_the_master_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(instance, "ROUTE_S", 1.0)  # a master that stays reachable is missed at the next look only
    monkeypatch.setattr(engine, "RENEW_S", 3600.0)  # nobody asks anew by the clock, and no lock ends by it
    monkeypatch.setattr(locks, "LOCK_LIVES_S", 3600.0)
    monkeypatch.setattr(queue_locks, "LOCK_MS", 3_600_000)
    begun: dict[int, list[tuple[int, int]]] = defaultdict(list)  # queue -> (member, message)
    lock, goes_on = threading.Lock(), threading.Event()

    def member(number: int, namesrv: str) -> PushConsumer:
        def handle(message: Delivery) -> None:
            with lock:
                begun[message.queue_id].append((number, int(message.text())))
            if len(begun[message.queue_id]) > 5:
                goes_on.wait(100)
            time.sleep(0.02)

        consumer = PushConsumer(
            "g", namesrv, orderly=True, from_where="first", suspend_s=0.1, instance_name=f"member-{number}"
        )
        consumer.subscribe("T", handle)
        return consumer.start()

    def all_begun(count: int) -> bool:
        return len({number for one in list(begun.values()) for _, number in list(one)}) == count

    async def flow() -> None:
        async with pair(tmp_path, slaveTimeout=CALL_MS) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            namesrv = "{}:{}".format(*both.names.address)

            async def send(broker: int, first: int, end: int) -> None:
                for number in range(first, end):
                    code = await both.send(broker, b"%d" % number, number % QUEUES)
                    assert code == ResponseCode.SUCCESS, (code, number)

            members: list[PushConsumer] = []
            try:
                await send(1, 0, 200)
                members.append(await asyncio.to_thread(member, 0, namesrv))
                await until(lambda: sum(map(len, list(begun.values()))) == 6 * QUEUES)
                await replaced(both, how, one, two)
                members.append(await asyncio.to_thread(member, 1, namesrv))
                if how == "stays":  # it has heard of the new master
                    await have_joined(both, two, 2)
                goes_on.set()
                await send(2, 200, 400)
                await until(lambda: all_begun(400))
            finally:
                goes_on.set()
                for consumer in members:
                    await asyncio.to_thread(consumer.close)

    asyncio.run(flow())
    for some in begun.values():
        numbers = [number for _, number in some]
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
        turns = [who for who, _ in groupby(who for who, _ in some)]
        assert len(turns) <= 1 + CHANGES, some
