"""Broadcasting clients that come through a proxy, directly, and change between the two."""

from __future__ import annotations

import sys
from pathlib import Path

from running import running_broker

sys.path.append(str(Path(__file__).resolve().parent))

from pulling import bodies, heartbeat, offsets, pull, run, subscription

from mqfast.remoting.codes import ResponseCode

BY_PROXY = {"requestSource": 1, "proxyFrowardClientId": "client-1"}
MOVED = ResponseCode.PULL_OFFSET_MOVED


def test_broadcasting_client_continues_at_its_offset_after_a_switch_to_or_from_a_proxy(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for i in range(9):
                await one.send("T", b"m%d" % i)
            await heartbeat(one, subscription(), model="BROADCASTING")
            # Through a proxy for the first time: at the first message, which is in memory.
            first = await pull(one, queueOffset=-1, **BY_PROXY)
            assert (first.code, offsets(first)[0]) == (MOVED, 0)
            assert len(bodies(await pull(one, maxMsgNums=4, **BY_PROXY))) == 4
            assert len(bodies(await pull(one, queueOffset=4, maxMsgNums=2, **BY_PROXY))) == 2
            # Directly now, with an offset of its own that is older: it goes on where the proxy was.
            direct = await pull(one, queueOffset=0)
            assert (direct.code, direct.remark, offsets(direct)[0]) == (MOVED, "OFFSET_RESET", 4)
            assert bodies(await pull(one, queueOffset=4, maxMsgNums=3)) == [b"m4", b"m5", b"m6"]
            assert bodies(await pull(one, queueOffset=7, maxMsgNums=1)) == [b"m7"]
            # And back: the proxy asks without an offset.
            back = await pull(one, queueOffset=-1, **BY_PROXY)
            assert (back.code, offsets(back)[0]) == (MOVED, 7)
            # Another client knows nothing of it.
            other = await pull(one, queueOffset=-1, requestSource=1, proxyFrowardClientId="client-2")
            assert (other.code, offsets(other)[0]) == (MOVED, 0)

    run(flow())


def test_broadcasting_client_without_a_proxy_keeps_its_own_offset(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for i in range(5):
                await one.send("T", b"m%d" % i)
            await heartbeat(one, subscription(), model="BROADCASTING")
            for offset in (3, 0, 4, 1):
                assert bodies(await pull(one, queueOffset=offset, maxMsgNums=1)) == [b"m%d" % offset]

    run(flow())


def test_where_the_first_message_is_not_in_memory_a_client_of_a_proxy_begins_at_the_end(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, accessMessageInMemoryMaxRatio=0) as one:
            assert (await one.send("T", b"x")).code == 0
            await one.send("T", b"y")
            first = await pull(one, queueOffset=-1, **BY_PROXY)
            assert (first.code, offsets(first)) == (MOVED, (2, 0, 2))
            empty = await pull(one, queueId=1, queueOffset=-1, **BY_PROXY)
            assert (empty.code, offsets(empty)) == (MOVED, (0, 0, 0))

    run(flow())


def test_broadcast_offsets_of_disconnected_clients_expire(tmp_path: Path) -> None:
    now = [1_700_000_000_000]

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=lambda: now[0]) as one:
            for i in range(5):
                await one.send("T", b"m%d" % i)
            await pull(one, queueOffset=-1, **BY_PROXY)
            await pull(one, queueOffset=3, **BY_PROXY)
            assert offsets(await pull(one, queueOffset=-1, **BY_PROXY))[0] == 3
            now[0] += 119_000
            one.parts.pull.scan()
            assert offsets(await pull(one, queueOffset=-1, **BY_PROXY))[0] == 3
            now[0] += 121_000
            one.parts.pull.scan()
            assert offsets(await pull(one, queueOffset=-1, **BY_PROXY))[0] == 0
            one.context.config.update({"enableBroadcastOffsetStore": "false"}, "test")
            assert (await pull(one, queueOffset=-1, **BY_PROXY)).remark == "OFFSET_TOO_SMALL"

    run(flow())
