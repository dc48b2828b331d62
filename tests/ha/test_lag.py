"""How far a slave is behind, as its master says it: bytes, and the age of the first message that it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ha.pairs import FILE, SIZES, as_slave, fill, following, serving, until

import mqfast
from mqfast.ha.master import HaMaster, SlaveProgress
from mqfast.ha.protocol import report
from mqfast.ha.slave import FollowState
from mqfast.store.base.os_api import OsApi

START_MS = 1_700_000_000_000


@asynccontextmanager
async def reporting(master: HaMaster) -> AsyncIterator[asyncio.StreamWriter]:
    """The connection of a slave that a test plays."""
    _, writer = await asyncio.open_connection("127.0.0.1", master.port)
    writer.write(report(0))
    await until(master.statuses)
    yield writer
    writer.close()


async def status_after(master: HaMaster, writer: asyncio.StreamWriter, acknowledged: int) -> SlaveProgress:
    writer.write(report(acknowledged))
    await until(lambda: master.statuses()[0].acknowledged == acknowledged)
    return master.statuses()[0]


def test_the_lag_is_the_age_of_the_first_message_that_is_missing(tmp_path: Path) -> None:
    async def flow() -> None:
        os_api = OsApi()
        os_api.fix_clock(START_MS)
        with mqfast.open(tmp_path / "m", os_api=os_api, **SIZES) as ours:
            ends = [0]
            for number in range(3):
                os_api.fix_clock(START_MS + 1000 * number)
                ours.put("T", b"x")
                ends.append(ours.engine.raw.end)
            os_api.fix_clock(START_MS + 10_000)
            async with serving(ours) as master, reporting(master) as writer:
                first = master.statuses()[0]
                assert (first.behind_bytes, first.behind_ms) == (ends[3], 10_000)
                one = await status_after(master, writer, ends[1])
                assert (one.behind_bytes, one.behind_ms) == (ends[3] - ends[1], 9000)
                # Within a record, as slaves of RocketMQ report: the message before it is older.
                within = await status_after(master, writer, ends[1] + 5)
                assert within.behind_bytes == ends[3] - ends[1] - 5
                assert 9000 <= within.behind_ms < 60_000
                two = await status_after(master, writer, ends[2])
                assert (two.behind_bytes, two.behind_ms) == (ends[3] - ends[2], 8000)
                all_of_it = await status_after(master, writer, ends[3])
                assert (all_of_it.behind_bytes, all_of_it.behind_ms) == (0, 0)

    asyncio.run(flow())


def test_the_lag_of_a_slave_that_is_at_the_end_mark_of_a_file(tmp_path: Path) -> None:
    async def flow() -> None:
        os_api = OsApi()
        os_api.fix_clock(START_MS)
        with mqfast.open(tmp_path / "m", os_api=os_api, **SIZES) as ours:
            mark = 0
            while ours.engine.raw.end < FILE:
                mark = ours.engine.raw.end
                os_api.fix_clock(START_MS if mark < FILE - 2000 else START_MS + 3000)
                ours.put("T", bytes(700))
            os_api.fix_clock(START_MS + 5000)
            async with serving(ours) as master, reporting(master) as writer:
                at_the_mark = await status_after(master, writer, mark)
                assert at_the_mark.behind_bytes == ours.engine.raw.end - mark
                assert at_the_mark.behind_ms == 2000

    asyncio.run(flow())


def test_status_of_a_slave_has_last_contact_and_lag(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            async with serving(ours) as master:
                with following(theirs, master.port) as slave:
                    before = slave.status
                    assert (before.silent_ms, before.behind_bytes, before.behind_ms) == (None, 0, 0)
                    fill(ours, 50)
                    await until(lambda: slave.status.state is FollowState.TRANSFER)
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                    status = slave.status
                    assert (status.behind_bytes, status.behind_ms) == (0, 0)
                    assert status.master_end == ours.engine.raw.end
                    assert status.silent_ms is not None
                    assert status.unreported_ms is not None

    asyncio.run(flow())
