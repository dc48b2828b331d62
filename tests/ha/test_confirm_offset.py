"""With SYNC_MASTER under fail-over readers see nothing that a broker in sync lacks; everything else goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ha.etcd_members import NEEDS_ETCD
from ha.failover_pairs import Pair, cut_off, in_sync, pair, until
from store.small_store import still

from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.ha.failover.confirm_offset import Confirmed
from mqfast.ha.failover.in_sync_replicas import SyncAcks
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand

MISSES_THE_SLAVE = {"minInSyncReplicas": 2, "slaveTimeout": 300}
_SUSPEND = 2 | 4  # with its subscription, and it waits


async def ask(both: Pair, one: FailoverBroker, code: int, **fields: Any) -> RemotingCommand:
    address = "{}:{}".format(*one.broker.address)
    texts = {name: str(value) for name, value in fields.items()}
    return await both.client.call(address, code, texts, timeout_ms=100_000)


async def pull(both: Pair, one: FailoverBroker, offset: int, *, wait_ms: int = 0, tags: str = "*") -> RemotingCommand:
    return await ask(
        both, one, RequestCode.PULL_MESSAGE, consumerGroup="readers", topic="T", queueId=0, queueOffset=offset,
        maxMsgNums=32, sysFlag=_SUSPEND if wait_ms else 4, commitOffset=0, suspendTimeoutMillis=wait_ms,
        subscription=tags, subVersion=0, expressionType="TAG",
    )  # fmt: skip


async def end_of(both: Pair, one: FailoverBroker, code: int = RequestCode.GET_MAX_OFFSET, **more: Any) -> int:
    answer = await ask(both, one, code, topic="T", queueId=0, **more)
    return int(answer.ext_fields["offset"])


async def one_missing(both: Pair, **more: Any) -> tuple[FailoverBroker, FailoverBroker]:
    """Brokers 1 and 2 have ``seen``; 2 is away, and 1 alone has ``unconfirmed``."""
    one, two = await both.start(1, **more), await both.start(2, **more)
    await until(lambda: in_sync(one) == {1, 2})
    assert await both.send(1, b"seen") == ResponseCode.SUCCESS
    await until(lambda: len(both.bodies(1)) == 1)
    await both.stop(2)
    assert await both.send(1, b"unconfirmed") == ResponseCode.FLUSH_SLAVE_TIMEOUT
    return one, two


@NEEDS_ETCD
@pytest.mark.parametrize("reactors", [0, 2])
def test_readers_see_a_message_only_after_all_in_sync_brokers_have_it(tmp_path: Path, reactors: int) -> None:
    async def flow() -> None:
        async with pair(tmp_path, serverSelectorThreads=reactors, **MISSES_THE_SLAVE) as both:
            one, _ = await one_missing(both)
            for _ in range(3):
                found = await pull(both, one, 0)
                assert (found.code, found.ext_fields["nextBeginOffset"], found.ext_fields["maxOffset"]) == (0, "1", "1")
                assert b"unconfirmed" not in bytes(found.body)
            assert (await pull(both, one, 1)).code == ResponseCode.PULL_NOT_FOUND
            assert await end_of(both, one) == 1
            assert await end_of(both, one, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=2**50) == 1
            store, log_end = one.broker.context.store, one.broker.context.engine.raw.end
            assert store.log.dispatched < log_end, "queues and index end there as well"
            shown = await ask(both, one, RequestCode.VIEW_MESSAGE_BY_ID, offset=store.log.readable)
            assert shown.code != ResponseCode.SUCCESS
            by_tag = asyncio.ensure_future(pull(both, one, 1, wait_ms=90_000, tags="*"))
            filtered = asyncio.ensure_future(pull(both, one, 1, wait_ms=90_000, tags="red"))
            await until(lambda: len(one.broker.context.engine.arrivals()) > 0)
            await both.send(1, b"once more")
            done, _ = await asyncio.wait([by_tag, filtered], timeout=0.5)
            assert not done, "a message that is put wakes nobody"
            await both.start(2)
            answer = await by_tag
            assert answer.code == ResponseCode.SUCCESS
            assert b"unconfirmed" in bytes(answer.body)
            await until(lambda: store.log.readable == one.broker.context.engine.raw.end)
            assert await end_of(both, one) == 3
            filtered.cancel()

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_master_alone_in_sync_confirms_messages_at_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            one = await both.start(1)
            await until(one.right.is_valid)
            for number in range(3):
                assert await both.send(1, b"%d" % number) == ResponseCode.SUCCESS
                assert await end_of(both, one) == number + 1
            await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await end_of(both, one) == 3, "a slave that joins hides nothing"
            await both.stop(2)
            waiting = asyncio.ensure_future(pull(both, one, 3, wait_ms=90_000))
            assert await both.send(1, b"alone again") == ResponseCode.SUCCESS, "once the slave has left the set"
            assert b"alone again" in bytes((await waiting).body)

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_take_over_loses_no_message_that_readers_have_seen(tmp_path: Path) -> None:
    """What the old master had alone is cut there, and nobody has read it."""

    async def flow() -> None:
        async with pair(tmp_path, slaveTimeout=300) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"seen") == ResponseCode.SUCCESS
            # The slave hears no more of the log, while etcd still says that it is in sync.
            slave = two.broker.parts.replicas._slave
            assert slave is not None
            await asyncio.to_thread(slave.stop)
            assert await both.send(1, b"lost") in (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
            assert await end_of(both, one) == 1
            cut_off(one)
            await until(two.right.is_valid)
            assert await end_of(both, one) == 1, "also without its right"
            behind = await pull(both, one, 2)
            assert (behind.code, behind.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2"), (
                "who has read on at the new master, and asks the old one, is not sent back"
            )
            assert await both.send(2, b"instead") == ResponseCode.SUCCESS
            assert both.bodies(2) == [b"seen", b"instead"]
            one._tasks[0] = asyncio.ensure_future(one._run())
            await until(lambda: in_sync(two) == {1, 2})
            await until(lambda: both.bodies(1) == [b"seen", b"instead"])

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_slave_shows_no_more_than_its_master_has_confirmed(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"minInSyncReplicas": 3, "slaveTimeout": 300, "slaveReadEnable": True}
        async with pair(tmp_path, **settings) as both:
            one, two = await both.start(1), await both.start(2)
            await both.start(3, listenPort=both.free_port())
            await until(lambda: in_sync(one) == {1, 2, 3})
            assert await both.send(1, b"seen") == ResponseCode.SUCCESS
            await until(lambda: two.broker.context.store.max_offset("T", 0) == 1)
            await both.stop(3)
            assert await both.send(1, b"of two brokers") == ResponseCode.FLUSH_SLAVE_TIMEOUT
            raw = two.broker.context.engine.raw
            await until(lambda: raw.end == one.broker.context.engine.raw.end)
            synced = two.broker.parts.replicas._sync
            assert synced is not None
            at_ms = synced.synced_ms
            await until(lambda: synced.synced_ms > at_ms)
            found = await pull(both, two, 1)
            assert found.code == ResponseCode.PULL_NOT_FOUND
            assert both.bodies(2) == [b"seen"]
            await both.start(3, listenPort=both.free_port())
            await until(lambda: both.bodies(2) == [b"seen", b"of two brokers"])
            told = json.loads(bytes((await ask(both, one, RequestCode.GET_BROKER_RUNTIME_INFO)).body))["table"]
            assert int(told["commitLogConfirmOffset"]) == raw.end

    asyncio.run(flow())


class Slave:
    identity = (2, 5)


@pytest.mark.parametrize("known", [0, 1])
def test_the_bound_moves_with_the_set_and_never_back(tmp_path: Path, known: int) -> None:
    store = still(tmp_path / "s", broker_role="SYNC_MASTER")
    raw, slave = store.engine.raw, Slave()

    def put() -> int:
        store.put("T", b"x")
        return raw.end

    ends = [put() for _ in range(3)]
    raw.confirm(ends[known])
    store.close()
    store = still(tmp_path / "s", broker_role="SYNC_MASTER")
    raw = store.engine.raw
    one = Confirmed(raw)
    assert store.max_offset("T", 0) == known + 1, "as an earlier process knew it"
    acks = SyncAcks(3.0, lambda: raw.end)
    acks.epoch = 5
    acks.require(())
    assert store.max_offset("T", 0) == known + 1, "not before etcd has taken that this master is alone in sync"
    one.start_leading(acks)
    assert store.max_offset("T", 0) == 3
    put()
    assert store.max_offset("T", 0) == 4
    acks.report(slave, ends[0])
    acks.require([2])
    assert store.max_offset("T", 0) == 4, "what was confirmed stays so"
    end = put()
    assert store.max_offset("T", 0) == 4
    acks.report(slave, end)
    assert store.max_offset("T", 0) == 5
    end = put()
    acks.remove(slave)
    one.stop_leading()
    acks.report(slave, end)
    acks.require(())
    assert store.max_offset("T", 0) == 5, "a reign that is over confirms nothing"
    one.start_leading(acks)
    assert store.max_offset("T", 0) == 6
    one.stop_leading()
    assert store.max_offset("T", 0) == 6
    assert raw.confirm_offset == raw.end
    store.close()
