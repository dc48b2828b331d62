"""Embedded consumers that wait: ``for`` and ``async for`` over ``follow()``, woken by puts and never too late."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from waiting import until

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import OffsetMoved, StoreClosed, UsageError


def opened(path: Path, **settings: Any) -> mqfast.MessageStore:
    return mqfast.open(path, config=StoreConfig.tiny(**settings))


def is_waiting(store: mqfast.MessageStore, loops: int = 1) -> Callable[[], bool]:
    """Do so many loops wait?"""
    return lambda: store.engine.followers is not None and len(store.engine.followers.waiters) >= loops


def test_a_loop_ends_when_nothing_comes_for_so_long(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put("T", b"0")
        consumer = store.consumer("g", "T")
        assert [bytes(message.body) for message in consumer.follow(timeout=0)] == [b"0"]
        begin = time.monotonic()
        assert list(consumer.follow(timeout=0.05)) == []
        assert time.monotonic() - begin >= 0.05
        assert consumer.lag() == 0


@pytest.mark.parametrize("timeout", [2_147_484, 1e10, float("inf")])
def test_a_follow_timeout_above_the_epoll_maximum(tmp_path: Path, timeout: float) -> None:
    with opened(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        came = pool.submit(lambda: bytes(next(store.consumer("g", "T").follow(timeout=timeout)).body))
        until(lambda: is_waiting(store)() or came.done())
        store.put("T", b"0")
        assert came.result(30) == b"0"


@pytest.mark.parametrize("dispatch", ["inline", "background"])
def test_a_thread_that_waits_is_woken_by_every_put_and_new_queue(tmp_path: Path, dispatch: str) -> None:
    """The topic does not even exist when the loop begins."""
    seen: list[bytes] = []
    with opened(tmp_path / "store", dispatch=dispatch) as store, ThreadPoolExecutor(1) as pool:

        def work() -> None:
            for message in store.consumer("g", "T", batch=2).follow(timeout=30):
                seen.append(bytes(message.body))
                if message.body == b"end":
                    break

        done = pool.submit(work)
        until(is_waiting(store))
        for number in range(60):
            store.put("other", b"x")
            store.put("T", b"%d" % number, queue_id=number % 5)
            until(lambda n=number: len(seen) == n + 1)
        store.put("T", b"end", queue_id=7)
        done.result(30)
    assert seen == [*(b"%d" % number for number in range(60)), b"end"]


def test_a_loop_waits_on_after_messages_of_other_tags(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: next(store.consumer("g", "T", tags="new").follow(timeout=30)).queue_offset)
        until(is_waiting(store))
        for _ in range(50):
            store.put("T", b"x", tags="old")
        store.put("T", b"x", tags="new")
        assert done.result(30) == 50


def test_several_loops_of_one_store_each_get_everything(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store, ThreadPoolExecutor(6) as pool:

        def work(group: str) -> list[int]:
            found = []
            for message in store.consumer(group, "T").follow(timeout=30):
                found.append(message.queue_offset)
                if len(found) == 200:
                    return found
            return found

        futures = [pool.submit(work, f"g{number}") for number in range(6)]
        until(is_waiting(store, 6))
        for _ in range(200):
            store.put("T", b"x")
        assert [future.result(30) for future in futures] == [list(range(200))] * 6


def test_a_message_is_acknowledged_when_the_loop_asks_for_the_next(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for _ in range(5):
            store.put("T", b"x")
        consumer = store.consumer("g", "T")
        for message in consumer.follow():
            if message.queue_offset == 2:
                break
        assert store.consumer_offsets.get("g", "T", 0) == 2
        with pytest.raises(ZeroDivisionError):
            for message in consumer.follow():
                assert message.queue_offset == 2
                raise ZeroDivisionError
        assert [message.queue_offset for message in consumer.follow(timeout=0)] == [2, 3, 4]
        assert store.consumer_offsets.get("g", "T", 0) == 5


def test_the_previous_message_is_acknowledged_while_follow_waits(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        store.put("T", b"0")
        done = pool.submit(
            lambda: [bytes(m.body) for m in store.consumer("g", "T").follow(timeout=30) if m.body == b"1"]
        )
        until(lambda: store.consumer_offsets.get("g", "T", 0) == 1)
        store.close()
        with pytest.raises(StoreClosed):
            done.result(30)


def test_deleted_messages_are_told_to_a_loop_that_waits(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put("T", b"x")
        consumer = store.consumer("g", "T")
        assert len(list(consumer.follow(timeout=0))) == 1
        consumer.seek(0, 50)
        with pytest.raises(OffsetMoved):
            next(consumer.follow(timeout=1))
        store.delete_topic("T")
        store.put("T", b"again")
        assert bytes(next(consumer.follow(timeout=30)).body) == b"again"


@pytest.mark.parametrize("timeout", [-1, "1", True])
def test_an_invalid_follow_timeout_is_refused(tmp_path: Path, timeout: Any) -> None:
    with opened(tmp_path / "store") as store, pytest.raises(UsageError, match="timeout: expected seconds"):
        store.consumer("g", "T").follow(timeout)


def test_loops_that_ended_leave_no_waiter(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put("T", b"x")
        consumer = store.consumer("g", "T")
        assert list(consumer.follow(timeout=0))
        for _ in range(20):
            assert list(consumer.follow(timeout=0)) == []
            with pytest.raises(StopIteration):
                next(consumer.follow(timeout=0))
        gc.collect()
        assert not store.engine.followers.waiters


LEFT = """
import gc, os, sys, mqfast

def events():
    return sum("eventfd" in os.readlink(one.path) for one in os.scandir("/proc/self/fd") if os.path.islink(one.path))

with mqfast.open(sys.argv[1]) as store:
    store.put("T", b"x")
    consumer = store.consumer("g", "T")
    assert list(consumer.follow(timeout=0))
    before = events()
    for _ in range(20):
        assert list(consumer.follow(timeout=0)) == []
    gc.collect()
    assert events() == before
"""


def test_loops_that_ended_leave_no_descriptor(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LEFT, str(tmp_path / "store")], check=True, timeout=100)


def test_an_event_loop_stays_free_while_many_wait(tmp_path: Path) -> None:
    async def flow() -> None:
        with opened(tmp_path / "store") as store:

            async def work(group: str, count: int) -> list[int]:
                found: list[int] = []
                async for message in store.consumer(group, "T").follow(timeout=30):
                    found.append(message.queue_offset)
                    if len(found) == count:
                        break
                return found

            tasks = [asyncio.create_task(work(f"g{number}", 100)) for number in range(10)]
            thread = threading.Thread(target=lambda: [store.put("T", b"x") for _ in range(50)])
            while not is_waiting(store, 10)():
                await asyncio.sleep(0)
            thread.start()
            for _ in range(50):
                store.put("T", b"x")
                await asyncio.sleep(0)
            async with asyncio.timeout(300):
                assert await asyncio.gather(*tasks) == [list(range(100))] * 10
            thread.join()
            silent = store.consumer("g0", "T").follow(timeout=0.05)
            store.consumer("g0", "T").commit()
            silent = store.consumer("late", "T", from_first=False).follow(timeout=0.05)
            assert [message async for message in silent] == []
            waiting = asyncio.create_task(work("late", 1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(flow())


def test_a_store_that_closes_ends_an_async_loop(tmp_path: Path) -> None:
    async def flow() -> None:
        store = opened(tmp_path / "store")

        async def work() -> None:
            async for _ in store.consumer("g", "T").follow():
                pass

        task = asyncio.create_task(work())
        while not is_waiting(store)():
            await asyncio.sleep(0)
        store.close()
        async with asyncio.timeout(300):
            with pytest.raises(StoreClosed):
                await task

    asyncio.run(flow())
