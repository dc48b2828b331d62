"""POP and replication: a slave that becomes the master redelivers what its master had in flight."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from broker.two_brokers import as_slave, end_of, name_server, run, until
from running import running_broker

sys.path.append(str(Path(__file__).resolve().parent))

from popping import INVISIBLE_MS, MovedClock, ack, messages, pop


def test_a_promoted_slave_redelivers_what_was_in_flight(tmp_path: Path) -> None:
    async def flow() -> None:
        clock = MovedClock()
        known: dict[str, Any] = {"haAllowedAddresses": "127.0.0.1"}
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", now_ms=clock, namesrvAddr=namesrv, **known) as master:
                async with running_broker(tmp_path / "s", now_ms=clock, **as_slave(namesrv)) as slave:
                    for number in range(8):
                        await master.send("T", b"%d" % number, queue_id=number % 4)
                    first = messages(await pop(master))
                    assert len(first) == 8
                    for got in first[:3]:
                        assert (await ack(master, got.handle)).code == 0
                    assert (await pop(slave)).code == 1
                    await until(lambda: end_of(slave) == end_of(master))
                    offsets = slave.context.offsets
                    await until(lambda: sum(offsets.get("g", "T", queue) for queue in range(4)) == 8)
                    await until(lambda: "g" in slave.context.groups.table)
                    await master.broker.abandon()
            async with running_broker(tmp_path / "s", now_ms=clock, namesrvAddr=namesrv) as promoted:
                clock.ahead_ms += INVISIBLE_MS
                again = []
                while len(again) < 5:
                    again += messages(await pop(promoted, wait_ms=10_000))
                assert sorted(got.body for got in again) == sorted(got.body for got in first[3:])
                assert {got.message.reconsume_times for got in again} == {1}

    run(flow)
