"""Delayed and half messages of a store that Java's broker and ours serve in turns: each goes on where the other ended.

Room: tests/interop. Requests are raw frames, so that both brokers get the same ones.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, NEWEST, Machine, free_port
from running import running_broker
from waiting import until_async as until

import mqfast
from mqfast import properties as names
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.store.record.record import decode_record

pytestmark = NEEDS_JAVA

SETTINGS: dict[str, Any] = {
    "brokerName": "brk", "brokerClusterName": "golden", "messageDelayLevel": "1s 15s", "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000, "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000, "maxIndexNum": 4000,
}  # fmt: skip
# Java collects its marks for 3 s: a check that comes sooner asks for what has ended, and commits it once more.
JAVA = {"transactionCheckInterval": 4000}
COMMIT, ROLLBACK = 8, 12


class Producer:
    """A producer by raw frames; it answers checks with what ``minds`` says of the body."""

    def __init__(self) -> None:
        self.minds: dict[bytes, int] = {}
        self.checked: list[bytes] = []
        self.processors = Processors()
        self.processors.register([RequestCode.CHECK_TRANSACTION_STATE], self._asked, ConcurrencyLimit("check"))
        self.client = RemotingClient(self.processors)
        self.address = ""

    def _asked(self, channel: Any, request: RemotingCommand) -> None:
        body = bytes(decode_record(bytes(request.body)).body)
        self.checked.append(body)
        if body in self.minds:
            fields = {**request.ext_fields, "producerGroup": "p", "fromTransactionCheck": "true"}
            channel.oneway(RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": str(self.minds[body])})

    async def join(self, address: str) -> None:
        self.address = address
        body = {"clientID": "c", "consumerDataSet": [], "producerDataSet": [{"groupName": "p"}]}
        for _ in range(100):
            try:
                answer = await self.client.call(address, RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
                assert answer.code == 0
                return
            except OSError:
                await asyncio.sleep(0.1)
        raise AssertionError("no broker")

    async def send(self, body: bytes, sys_flag: int = 0, **pairs: Any) -> RemotingCommand:
        letters = {
            "a": "p", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": sys_flag, "h": 0,
            "g": time.time_ns() // 1_000_000,
            "i": names.encode({**pairs, "UNIQ_KEY": f"U{body.decode()}"}).decode(), "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        texts = {name: str(value) for name, value in letters.items()}
        answer = await self.client.call(self.address, RequestCode.SEND_MESSAGE_V2, texts, body, timeout_ms=20_000)
        assert answer.code == 0, answer.remark
        return answer

    async def prepare(self, body: bytes, end: int = 0) -> None:
        half = await self.send(body, 4, TRAN_MSG=True, PGROUP="p")
        if end:
            fields = {
                "producerGroup": "p", "tranStateTableOffset": half.ext_fields["queueOffset"], "msgId": "x",
                "commitLogOffset": str(int(half.ext_fields["msgId"][16:], 16)), "commitOrRollback": str(end),
                "fromTransactionCheck": "false", "transactionId": "x", "topic": "T", "bname": "brk",
            }  # fmt: skip
            assert (await self.client.call(self.address, RequestCode.END_TRANSACTION, fields)).code == 0

    async def max_offset(self, topic: str) -> int:
        answer = await self.client.call(
            self.address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0", "committed": "true"}
        )
        return int(answer.ext_fields["offset"])


@pytest.mark.slow
def test_delayed_and_half_messages_go_on_when_brokers_take_turns(tmp_path: Path) -> None:
    store = tmp_path / "store"
    machine = Machine(NEWEST, tmp_path, HERE / "Later.java")

    async def ours_first() -> None:
        producer = Producer()
        async with running_broker(store, **SETTINGS, transactionCheckMax=100) as one:
            await producer.join(one.address)
            await producer.prepare(b"committed by us", COMMIT)
            await producer.prepare(b"taken back by us", ROLLBACK)
            await producer.prepare(b"open, ours")
            await until(lambda: b"open, ours" in producer.checked)  # stored once more
            await producer.send(b"delivered by us", DELAY=1)
            await until(lambda: one.context.store.max_offset("T", 0) == 2)
            await producer.send(b"parked by us", DELAY=2)
            await producer.client.close()

    async def java_next() -> None:
        producer = Producer()
        port = free_port()
        process = machine.start_broker(store, {**SETTINGS, "transactionCheckMax": 100, **JAVA}, port)
        await producer.join(f"127.0.0.1:{port}")
        producer.minds[b"open, ours"] = COMMIT
        await producer.prepare(b"committed by Java", COMMIT)
        await producer.prepare(b"taken back by Java", ROLLBACK)
        await producer.prepare(b"open, Java's")
        await until(lambda: {b"open, ours", b"open, Java's"} <= set(producer.checked))
        while await producer.max_offset("T") < 5:
            await asyncio.sleep(0.1)
        await producer.send(b"parked by Java", DELAY=2)
        await asyncio.sleep(4)  # its marks are collected for 3 s
        machine.stop(process)
        await producer.client.close()
        assert not {b"committed by us", b"taken back by us"} & set(producer.checked)

    async def ours_again() -> None:
        producer = Producer()
        async with running_broker(store, **SETTINGS, transactionCheckMax=100) as one:
            producer.minds[b"open, Java's"] = COMMIT
            await producer.join(one.address)
            await until(lambda: one.context.store.max_offset("T", 0) >= 7)
            await asyncio.sleep(2.5)  # two more rounds of checks
            await producer.client.close()
            assert set(producer.checked) <= {b"open, Java's"}

    try:
        for part in (ours_first, java_next, ours_again):
            asyncio.run(asyncio.wait_for(part(), 240))
    finally:
        machine.end_all()
    with mqfast.open(store) as opened:
        bodies = [bytes(m.body) for m in opened.get("T", 0, 0, max_count=100)]
        assert sorted(bodies) == sorted(
            [
                b"committed by us", b"committed by Java", b"open, ours", b"open, Java's", b"delivered by us",
                b"parked by us", b"parked by Java",
            ]
        )  # fmt: skip
