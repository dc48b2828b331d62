"""Orderly POP: a batch at a time, acks in any order, attempt ids, due times, the file."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from running import running_broker

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from popping import ack, change, messages, pop
from pulling import run

from mqfast.remoting.codes import ResponseCode as Code
from mqfast.util import fastjson


def test_a_batch_blocks_its_queue_until_all_is_acked(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(5):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one, count=2, order="true"))
            assert [got.body for got in first] == [b"0", b"1"]
            assert first[0].handle.split(" ")[3] == "999"
            assert (await pop(one, order="true")).code == Code.POLLING_TIMEOUT
            waiting = asyncio.ensure_future(pop(one, order="true", wait_ms=20_000))
            assert (await ack(one, first[1].handle)).code == 0
            assert one.context.offsets.get("g", "T", 0) == 0
            assert not waiting.done()
            assert (await ack(one, first[0].handle)).code == 0
            assert [got.body for got in messages(await waiting)] == [b"2", b"3", b"4"]
            assert one.context.offsets.get("g", "T", 0) == 2
            assert (await ack(one, first[0].handle)).code == 0  # below the offset: no effect
            stale = [*first[0].handle.split(" ")[:7], "3"]
            assert (await ack(one, " ".join(stale))).code == 0  # of an earlier batch: no effect
            assert one.context.offsets.get("g", "T", 0) == 2

    run(flow())


def test_what_is_due_comes_again_with_a_count(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(2):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one, order="true", attemptId="one"))
            while int(time.time() * 1000) <= int(first[0].handle.split(" ")[1]):
                await asyncio.sleep(0.001)  # batches of the same millisecond have the same handles
            same = await pop(one, order="true", attemptId="one")
            assert [got.body for got in messages(same)] == [b"0", b"1"]
            assert "qo" not in same.ext_fields["orderCountInfo"]
            again = messages(same)
            assert (await ack(one, first[0].handle)).code == 0  # the handle of the earlier answer: no effect
            assert one.context.offsets.get("g", "T", 0) == 0
            moved = await change(one, again[0].handle, 100)
            assert moved.code == 0
            moved = await change(one, again[1].handle, 200)
            answer = await pop(one, order="true", attemptId="two", wait_ms=20_000)
            assert [got.body for got in messages(answer)] == [b"0", b"1"]
            assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
            assert one.context.store.max_offset("%RETRY%g_T", 0) == 0

    run(flow())


def test_the_state_is_in_the_file_of_rocketmq(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(3):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one, order="true", attemptId="att"))
            assert (await ack(one, first[0].handle)).code == 0
        path = tmp_path / "config" / "consumerOrderInfo.json"
        entry = fastjson.loads(path.read_bytes())["table"]["T@g"][0]
        assert {name: entry[name] for name in ("a", "cm", "i", "o")} == {
            "a": "att",
            "cm": 1,
            "i": 60_000,
            "o": [0, 1, 2],
        }
        assert b"{0:" in path.read_bytes().replace(b" ", b"").replace(b"\n", b"").replace(b"\t", b"")
        async with running_broker(tmp_path) as one:
            assert (await pop(one, order="true")).code == Code.POLLING_TIMEOUT  # still blocked
            for got in first[1:]:
                assert (await ack(one, got.handle)).code == 0
            assert one.context.offsets.get("g", "T", 0) == 3
            await one.send("T", b"next")
            assert [got.body for got in messages(await pop(one, order="true"))] == [b"next"]

    run(flow())


def test_an_ack_without_state_passes_no_other_message(tmp_path: Path) -> None:
    """A promoted slave has no consumerOrderInfo.json."""

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(3):
                await one.send("T", b"%d" % number)
            first = messages(await pop(one, order="true"))
            assert len(first) == 3
        (tmp_path / "config" / "consumerOrderInfo.json").unlink()
        (tmp_path / "config" / "consumerOrderInfo.json.bak").unlink(missing_ok=True)
        async with running_broker(tmp_path) as one:
            assert (await ack(one, first[0].handle)).code == 0
            assert one.context.offsets.get("g", "T", 0) == 1
            assert (await ack(one, first[2].handle)).code == 0
            assert one.context.offsets.get("g", "T", 0) == 1
            assert [got.body for got in messages(await pop(one, order="true"))] == [b"1", b"2"]

    run(flow())


def test_the_state_of_a_deleted_group_goes(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"0")
            assert len(messages(await pop(one, order="true"))) == 1
            assert (await one.call(207, groupName="g", cleanOffset="true")).code == 0
        path = tmp_path / "config" / "consumerOrderInfo.json"
        assert not path.exists() or fastjson.loads(path.read_bytes())["table"] == {}

    run(flow())
