"""Fail-over: what a master delivered that nobody has any more counts as delivered nowhere.

A master that was cut off ended transactions and delivered delayed messages. Its slave, the next master, never got the
outcome. The old master comes back, cuts its log, and may lead again at once: it must not skip what it had delivered.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ha.etcd_members import NEEDS_ETCD
from ha.failover_pairs import CALL_MS, Pair, cut_off, in_sync, pair, until

from mqfast import properties as names
from mqfast.broker.replication import metadata_sync as table_sync
from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand

HALF, SCHEDULE, TRANSACTIONS = "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "CID_RMQ_SYS_TRANS"
LEVEL = 1


async def call(both: Pair, one: FailoverBroker, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
    address = "{}:{}".format(*one.broker.address)
    return await both.client.call(
        address, code, {name: str(value) for name, value in fields.items()}, body, timeout_ms=CALL_MS
    )


async def send(both: Pair, one: FailoverBroker, body: bytes, sys_flag: int = 0, **pairs: Any) -> RemotingCommand:
    fields = {
        "a": "producers", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": sys_flag, "g": 1_700_000_000_000, "h": 0,
        "i": names.encode(pairs).decode(), "j": 0, "k": "false", "m": "false",
    }  # fmt: skip
    answer = await call(both, one, RequestCode.SEND_MESSAGE_V2, body, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def end(both: Pair, one: FailoverBroker, half: RemotingCommand) -> RemotingCommand:
    fields = half.ext_fields
    return await call(
        both, one, RequestCode.END_TRANSACTION, producerGroup="producers", topic="T", commitOrRollback=8,
        tranStateTableOffset=fields["queueOffset"], commitLogOffset=int(fields["msgId"][16:], 16),
        fromTransactionCheck="false", msgId=fields["transactionId"], transactionId=fields["transactionId"],
    )  # fmt: skip


def ended(one: FailoverBroker) -> int:
    return max(0, one.broker.context.offsets.get(TRANSACTIONS, HALF, 0))


def delivered(one: FailoverBroker) -> int:
    return one.broker.context.tables.delays.offsets().get(LEVEL, 0)


@NEEDS_ETCD
def test_a_returned_master_does_not_count_its_unreplicated_deliveries(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"brokerRole": "ASYNC_MASTER", "messageDelayLevel": "3s 1h"}
        async with pair(tmp_path, haMaxTimeSlaveNotCatchup=600_000, **settings) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            half = await send(both, one, b"transaction", 4, TRAN_MSG=True, PGROUP="producers", UNIQ_KEY="U")
            await send(both, one, b"delayed", DELAY=LEVEL)
            store = two.broker.context.store
            await until(lambda: store.max_offset(HALF, 0) == store.max_offset(SCHEDULE, LEVEL - 1) == 1)
            slave = two.broker.parts.replicas._slave
            assert slave is not None
            await asyncio.to_thread(slave.stop)  # it gets no more
            assert (await end(both, one, half)).code == ResponseCode.SUCCESS
            await until(lambda: len(both.bodies(1)) == 2 and ended(one) == 1 and delivered(one) == 1)
            cut_off(one)
            await until(two.right.is_valid)
            for number in range(50):  # its log goes beyond that of the old master
                assert await both.send(2, b"%d" % number) == ResponseCode.SUCCESS
            one._tasks[0] = asyncio.ensure_future(one._run())
            await until(lambda: in_sync(two) == {1, 2})
            assert ended(one) == 0, "the transaction is open at the master of now"
            delays = two.broker.parts.delays
            assert delays.is_delivering
            assert delivered(one) <= delays.service.offset(LEVEL)
            await both.stop(2)
            await until(one.right.is_valid)
            assert (await end(both, one, half)).code == ResponseCode.SUCCESS
            await until(lambda: {b"transaction", b"delayed"} <= set(both.bodies(1)))
            assert both.bodies(1).count(b"transaction") == 1

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_slave_copies_deliveries_between_two_copies_of_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a slave has not heard of comes twice behind a take-over."""
    monkeypatch.setattr(table_sync, "_INTERVAL_S", 3600.0)

    async def flow() -> None:
        async with pair(tmp_path, messageDelayLevel="1s 1h") as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            for number in range(3):
                await send(both, one, b"%d" % number, DELAY=LEVEL)
                await until(lambda number=number: delivered(one) == delivered(two) == number + 1)
            await both.stop(1)
            await until(two.right.is_valid)
            await send(both, two, b"3", DELAY=LEVEL)
            await until(lambda: b"3" in both.bodies(2))
            assert both.bodies(2) == [b"0", b"1", b"2", b"3"], "each once"

    asyncio.run(flow())
