"""Arrivals: the queues that got a message for a waiting consumer; never missed, one signal a batch."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab
from store.small_store import POOL, still

import mqfast
from mqfast.errors import MessageIllegal, StoreClosed, UsageError

MIB = 1 << 20
SYNC = {"flush_disk_type": "SYNC_FLUSH"}


def is_signalled(arrivals: Any) -> bool:
    return bool(select.select([arrivals], [], [], 0)[0])


def quiet(path: Path, queues: int = 4, **settings: Any) -> Any:
    """A store without threads, whose queues have room, so that a put writes its unit itself."""
    store = still(path, **settings)
    for queue_id in range(queues):
        store.put("T", b"first", queue_id)
    lab(store).step_dispatch()
    return store


def test_a_queue_without_a_watch_signals_nothing(tmp_path: Path) -> None:
    store = still(tmp_path / "s")
    arrivals = store.engine.arrivals()
    store.put("T", b"x")
    assert not is_signalled(arrivals)
    assert arrivals.drain() == []
    store.close()


def test_long_poll_arrival_is_signalled_by_an_inline_put(tmp_path: Path) -> None:
    store = quiet(tmp_path / "s")
    arrivals = store.engine.arrivals()
    assert not arrivals.watch("T", 3, 1)
    store.put("T", b"x", 2)
    assert not is_signalled(arrivals)
    store.put("T", b"x", 3)
    assert is_signalled(arrivals)
    assert arrivals.drain() == [("T", 3)]
    assert not is_signalled(arrivals)
    assert store.get("T", 3, 1).messages[0].body == b"x"
    store.put("T", b"y", 3)  # the watch ended
    assert not is_signalled(arrivals)
    assert len(arrivals) == 0
    store.close()


@pytest.mark.parametrize(
    "settings", [{}, {"dispatch": "background"}, POOL, SYNC], ids=["keyed", "background", "pool", "sync"]
)
def test_long_poll_arrival_is_signalled_by_the_dispatcher(tmp_path: Path, settings: dict[str, Any]) -> None:
    store = still(tmp_path / "s", **settings)
    arrivals = store.engine.arrivals()
    assert not arrivals.watch("T", 0, 0)
    store.put("T", b"x", keys="k")
    store.log.commit()
    lab(store).step_dispatch()
    assert arrivals.drain() == [("T", 0)]
    assert store.get("T", 0, 0).messages[0].body == b"x"
    store.close()


def test_a_batch_of_arrivals_is_one_signal_and_one_report_per_queue(tmp_path: Path) -> None:
    store = quiet(tmp_path / "s", 100)
    arrivals = store.engine.arrivals()
    for queue_id in range(100):
        assert not arrivals.watch("T", queue_id, 1)
    for queue_id in range(0, 100, 2):
        store.put_many("T", [b"x"] * 10, queue_id)
    found = arrivals.drain()
    assert sorted(found) == [("T", queue_id) for queue_id in range(0, 100, 2)]
    assert arrivals.drain() == []
    assert len(arrivals) == 50
    store.close()


def test_watch_returns_at_once_for_an_existing_message(tmp_path: Path) -> None:
    store = quiet(tmp_path / "s")
    arrivals = store.engine.arrivals()
    assert arrivals.watch("T", 0, 0)
    assert not arrivals.watch("T", 0, 1)
    assert len(arrivals) == 1
    store.put("T", b"y")
    assert arrivals.drain() == [("T", 0)]
    store.close()


def test_a_message_below_the_watched_offset_does_not_end_the_watch(tmp_path: Path) -> None:
    store = quiet(tmp_path / "s")
    arrivals = store.engine.arrivals()
    assert not arrivals.watch("T", 0, 3)
    for _ in range(2):
        store.put("T", b"x")
        assert arrivals.drain() == []
    store.put("T", b"x")
    assert arrivals.drain() == [("T", 0)]
    store.close()


def test_unwatch_and_watch_again_in_any_order(tmp_path: Path) -> None:
    store = quiet(tmp_path / "s")
    arrivals = store.engine.arrivals()
    arrivals.unwatch("T", 0)
    arrivals.watch("T", 0, 1)
    arrivals.unwatch("T", 0)
    store.put("T", b"x")
    assert arrivals.drain() == []
    arrivals.watch("T", 0, 2)
    store.put("T", b"x")
    arrivals.unwatch("T", 0)  # it stands in the list already
    arrivals.watch("T", 0, 6)
    assert arrivals.drain() == []
    assert len(arrivals) == 1
    for _ in range(4):
        store.put("T", b"x")
    assert arrivals.drain() == [("T", 0)]
    store.close()


def test_with_sync_flush_a_message_counts_behind_the_sync(tmp_path: Path) -> None:
    store = still(tmp_path / "s", **SYNC)
    arrivals = store.engine.arrivals()
    assert not arrivals.watch("T", 0, 0)
    store.put_nowait("T", b"x")
    arrivals.drain()
    assert store.max_offset("T", 0) == 0
    assert len(arrivals) == 1
    store.flush()
    lab(store).step_dispatch()
    assert is_signalled(arrivals)
    assert arrivals.drain() == [("T", 0)]
    store.close()


def test_a_confirm_offset_shows_what_it_covers(tmp_path: Path) -> None:
    store = still(tmp_path / "s")
    arrivals, raw = store.engine.arrivals(), store.engine.raw
    raw.bound_readers(0)
    assert not arrivals.watch("T", 0, 0)
    end = store.put("T", b"x").physical_offset + store.put("T", b"y").size
    lab(store).step_dispatch()
    assert arrivals.drain() == []
    assert store.get("T", 0, 0).messages == []
    raw.confirm(end)
    lab(store).step_dispatch()
    assert arrivals.drain() == [("T", 0)]
    assert [message.body for message in store.get("T", 0, 0).messages] == [b"x"]
    store.close()


def test_a_deleted_topic_ends_its_watches(tmp_path: Path) -> None:
    store = still(tmp_path / "s")
    arrivals = store.engine.arrivals()
    store.put("T", b"x")
    arrivals.watch("T", 0, 1)
    store.delete_topic("T")
    assert arrivals.drain() == [("T", 0)]
    assert not arrivals.watch("T", 0, 0)
    store.put("T", b"y")
    lab(store).step_dispatch()
    assert arrivals.drain() == [("T", 0)]
    store.close()


def test_an_arrival_in_a_light_queue_is_signalled(tmp_path: Path) -> None:
    store = still(tmp_path / "s", enable_lmq=True, enable_multi_dispatch=True)
    arrivals = store.engine.arrivals()
    assert not arrivals.watch("%LMQ%a", 0, 0)
    store.put("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    lab(store).step_dispatch()
    assert arrivals.drain() == [("%LMQ%a", 0)]
    store.close()


def test_bad_arguments(tmp_path: Path) -> None:
    store = still(tmp_path / "s")
    arrivals = store.engine.arrivals()
    with pytest.raises(MessageIllegal):
        arrivals.watch("a/b", 0, 0)
    for queue_id in (-1, "0", 1 << 31):
        with pytest.raises(UsageError, match="queue_id"):
            arrivals.watch("T", queue_id, 0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="offset"):
        arrivals.watch("T", 0, -1)
    assert store.engine.arrivals() is arrivals
    store.close()


def test_close_wakes_arrival_waiters(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "s", mapped_file_bytes_commit_log=MIB)
    arrivals = store.engine.arrivals()
    arrivals.watch("T", 0, 0)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            arrivals.wait()
        except BaseException as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    store.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert [type(error) for error in failures] == [StoreClosed]
    with pytest.raises(StoreClosed):
        arrivals.watch("T", 0, 0)
    arrivals.close()
    arrivals.close()


def test_arrivals_wait_times_out_and_can_be_reopened_after_close(tmp_path: Path) -> None:
    store = still(tmp_path / "s")
    arrivals = store.engine.arrivals()
    arrivals.watch("T", 0, 0)
    assert arrivals.wait(0.01) == []
    arrivals.close()
    again = store.engine.arrivals()
    assert again is not arrivals
    again.watch("T", 0, 0)
    store.put("T", b"x")
    lab(store).step_dispatch()
    assert again.wait(20) == [("T", 0)]
    store.close()


@pytest.mark.parametrize("settings", [{}, SYNC, {"dispatch": "background"}], ids=["inline", "sync", "background"])
def test_a_thread_that_waits_for_each_message_misses_none(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Each message waits for the one before to be seen, so that one that is missed stops everything."""
    with mqfast.open(tmp_path / "s", mapped_file_bytes_commit_log=MIB, **settings) as store:
        arrivals = store.engine.arrivals()
        seen = threading.Semaphore(0)
        count = 60 if settings else 1000

        def put() -> None:
            for number in range(count):
                store.put("T", b"x", keys="k" if number % 3 == 0 else None)
                assert seen.acquire(timeout=30)

        putting = threading.Thread(target=put)
        putting.start()
        at = 0
        while at < count:
            if not arrivals.watch("T", 0, at):
                assert arrivals.wait(30) == [("T", 0)]
            found = store.get("T", 0, at)
            assert len(found) == 1
            at = found.next_offset
            seen.release()
        putting.join(30)
        assert not putting.is_alive()


def test_ten_thousand_held_pulls_in_an_event_loop(tmp_path: Path) -> None:
    async def main(store: Any) -> tuple[set[tuple[str, int]], int]:
        loop = asyncio.get_running_loop()
        arrivals = store.engine.arrivals()
        found: set[tuple[str, int]] = set()
        calls = 0
        done = asyncio.Event()

        def arrived() -> None:
            nonlocal calls
            calls += 1
            found.update(arrivals.drain())
            if len(found) == 100:
                done.set()

        for queue_id in range(10_000):
            assert not arrivals.watch("T", queue_id, 0)
        loop.add_reader(arrivals.fileno(), arrived)
        threading.Thread(target=lambda: [store.put("T", b"x", queue_id * 7) for queue_id in range(100)]).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), 300)
        loop.remove_reader(arrivals.fileno())
        return found, calls

    with mqfast.open(tmp_path / "s", mapped_file_bytes_commit_log=16 * MIB) as store:
        found, calls = asyncio.run(main(store))
    assert found == {("T", queue_id * 7) for queue_id in range(100)}
    assert calls <= 200  # a signal may come while the list is taken
