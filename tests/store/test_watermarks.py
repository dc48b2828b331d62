"""Who waits for the disk by callback: one call a sync for a watch, tickets in the order of their end offsets."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab
from store.small_store import eventually, in_threads, still

import mqfast
from mqfast.aio import DurableFutures
from mqfast.errors import FlushError, MqfastError, StoreClosed

SYNC: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH", "mapped_file_bytes_commit_log": 1 << 20}


def end_of(result: Any) -> int:
    return int(result.physical_offset + result.size)


def test_ten_thousand_waiters_are_one_callback_per_sync(tmp_path: Path) -> None:
    calls: list[tuple[int, MqfastError | None]] = []
    with mqfast.open(tmp_path / "s", **SYNC | {"mapped_file_bytes_commit_log": 64 << 20}) as store:
        watch = store.engine.watch_flushed(lambda flushed, error: calls.append((flushed, error)))
        ends = [end_of(store.put_nowait("T", b"x" * 100).result) for _ in range(10_000)]
        before = store.stats()["sync_calls"]
        watch.want(ends[-1])
        assert eventually(lambda: bool(calls) and calls[-1][0] >= ends[-1])
        assert len(calls) == store.stats()["sync_calls"] - before == 1
        for end in ends:  # durable, each of them: at most one call a turn of the thread
            watch.want(end)
        assert eventually(lambda: len(calls) > 1 and not store.engine.waiters.pending)
        assert len(calls) < 1000
        assert {flushed for flushed, _ in calls} == {ends[-1]}
        assert {error for _, error in calls} == {None}


def test_a_watch_that_wants_nothing_is_not_called(tmp_path: Path) -> None:
    calls: list[int] = []
    with mqfast.open(tmp_path / "s", **SYNC) as store:
        store.engine.watch_flushed(lambda flushed, error: calls.append(flushed))
        store.put("T", b"x")
        done = threading.Event()
        store.put_nowait("T", b"y").add_done_callback(lambda _: done.set())
        assert done.wait(20)
    assert calls == []


def test_a_watch_is_called_for_an_offset_that_is_durable_already(tmp_path: Path) -> None:
    calls: list[int] = []
    with mqfast.open(tmp_path / "s", **SYNC) as store:
        watch = store.engine.watch_flushed(lambda flushed, error: calls.append(flushed))
        end = end_of(store.put("T", b"x"))
        for times in (1, 2):
            watch.want(end)
            assert eventually(lambda times=times: len(calls) == times)  # type: ignore[misc]
        assert calls == [end, end]


def test_without_sync_flush_an_offset_that_is_wanted_is_flushed_at_once(tmp_path: Path) -> None:
    calls: list[int] = []
    settings = {"mapped_file_bytes_commit_log": 1 << 20, "flush_interval_ms_commit_log": 60_000}
    with mqfast.open(tmp_path / "s", **settings) as store:
        watch = store.engine.watch_flushed(lambda flushed, error: calls.append(flushed))
        watch.want(end_of(store.put("T", b"x")))
        assert eventually(lambda: bool(calls))
        assert calls == [store.stats()["flushed_offset"]]


def test_a_closed_watch_is_called_no_more(tmp_path: Path) -> None:
    calls: list[str] = []
    store = still(tmp_path / "s")
    gone = store.engine.watch_flushed(lambda flushed, error: calls.append("gone"))
    kept = store.engine.watch_flushed(lambda flushed, error: calls.append("kept"))
    end = end_of(store.put("T", b"x"))
    gone.want(end)
    kept.want(end)
    gone.close()
    gone.close()
    store.flush()
    lab(store).flush.waiters.notify()
    assert calls == ["kept"]
    store.close()
    with pytest.raises(StoreClosed):
        kept.want(end + 1)


def test_a_failed_sync_is_reported_once_with_its_error(tmp_path: Path) -> None:
    calls: list[MqfastError | None] = []
    store = still(tmp_path / "s")
    watch = store.engine.watch_flushed(lambda flushed, error: calls.append(error))
    watch.want(end_of(store.put("T", b"x")))
    store.log.fail(errno.EIO)
    lab(store).flush.waiters.notify()
    lab(store).flush.waiters.notify()
    assert [type(error) for error in calls] == [FlushError]
    store.close()


def test_a_watch_whose_callback_fails_harms_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def fail(flushed: int, error: MqfastError | None) -> None:
        raise RuntimeError("of a user")

    store = still(tmp_path / "s")
    watches = [
        store.engine.watch_flushed(fail),
        store.engine.watch_flushed(lambda flushed, error: calls.append(flushed)),
    ]
    end = end_of(store.put("T", b"x"))
    for watch in watches:
        watch.want(end)
    store.flush()
    lab(store).flush.waiters.notify()
    assert calls == [end]
    assert not lab(store).flush.waiters.pending
    assert "a flush callback failed" in caplog.text
    store.close()


def test_tickets_are_finished_in_the_order_of_their_offsets_and_only_when_covered(tmp_path: Path) -> None:
    told: list[int] = []
    store = still(tmp_path / "s")
    early = [store.put_nowait("T", b"%d" % i) for i in range(5)]
    store.flush()
    late = [store.put_nowait("T", b"%d" % i) for i in range(5)]
    for ticket in reversed(late):
        ticket.add_done_callback(lambda done: told.append(done.end_offset))
    for ticket in early:
        assert ticket.done()
    lab(store).flush.waiters.notify()
    assert told == []
    assert lab(store).flush.waiters.pending
    store.flush()
    lab(store).flush.waiters.notify()
    assert told == [ticket.end_offset for ticket in late]
    assert not lab(store).flush.waiters.pending
    store.close()


def test_close_tells_every_watch_and_ticket(tmp_path: Path) -> None:
    calls: list[tuple[int, MqfastError | None]] = []
    store = mqfast.open(tmp_path / "s", mapped_file_bytes_commit_log=1 << 20, flush_interval_ms_commit_log=60_000)
    watch = store.engine.watch_flushed(lambda flushed, error: calls.append((flushed, error)))
    end = end_of(store.put("T", b"x"))
    watch.want(end + 1000)  # nobody will ever write so far
    store.close()
    assert isinstance(calls[-1][1], StoreClosed)
    assert calls[-1][0] == end


def test_many_loops_and_threads_share_the_syncs(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **SYNC | {"mapped_file_bytes_commit_log": 16 << 20}) as store:

        def work(number: int) -> None:
            async def main() -> None:
                results = await asyncio.gather(*(store.aput("T", b"x", number) for _ in range(300)))
                assert {result.status.name for result in results} == {"PUT_OK"}
                flushed = store.stats()["flushed_offset"]
                assert all(end_of(result) <= flushed for result in results)

            asyncio.run(main())

        in_threads(3, work)
        assert [store.max_offset("T", number) for number in range(3)] == [300] * 3
        assert store.stats()["sync_calls"] < 300


def test_aput_of_a_closed_loop_leaves_no_watch(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **SYNC) as store:
        for _ in range(5):
            asyncio.run(store.aput("T", b"x"))
        assert len(store.engine.waiters.futures) == 1


def test_futures_fail_with_the_flush(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "s", **SYNC)

    async def main() -> None:
        futures = DurableFutures.of(store.engine)
        end = end_of(await store.aput("T", b"x"))
        assert await futures.wait(end)
        assert not await futures.wait(end + 1, 0.01)
        waiting = [asyncio.ensure_future(futures.wait(end + more)) for more in range(1, 100)]
        await asyncio.sleep(0)
        store.log.fail(errno.EIO)
        lab(store).flush.service.wake()
        for found in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(found, FlushError)

    asyncio.run(main())
    store.close()
