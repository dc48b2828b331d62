"""delete_topic beside puts, and beside a close."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from laboratory import lab

import mqfast
from mqfast.errors import StoreClosed

WAIT_S = 30


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("dispatch", ["inline", "background"])
@pytest.mark.usefixtures("quick_switches")
def test_what_is_put_after_the_deletion_is_found(tmp_path: Path, dispatch: str) -> None:
    # Puts under way went on counting where the old queue stood: the new one began there, and hid what came after.
    with mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=1 << 20, dispatch=dispatch) as store:
        over = threading.Event()

        def put_many() -> None:
            while not over.is_set():
                store.put_many("T", [b"x"] * 64)

        def put_batch() -> None:
            while not over.is_set():
                store.put_batch([mqfast.Message("T", b"x")] * 3)

        def put() -> None:
            while not over.is_set():
                store.put("T", b"x")
                store.put("T", b"x", keys="k", properties={"a": "b"})

        threads = [threading.Thread(target=body) for body in (put_many, put_batch, put)]
        for thread in threads:
            thread.start()
        for _ in range(60):
            store.delete_topic("T")
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
        last = store.put("T", b"last")
        lab(store).step_dispatch()
        assert store.max_offset("T", 0) == last.queue_offset + 1
        assert store.get("T", 0, last.queue_offset).bodies() == [b"last"]
        assert [m.queue_offset for m in store.get("T", 0, 0, 1 << 20)] == list(range(last.queue_offset + 1))


def test_a_close_waits_for_the_deletion(tmp_path: Path) -> None:
    # Whoever opens the store next must not find a deletion still at work in it.
    store = mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=64 << 10)
    store.put("T", b"x")
    inside, go_on = threading.Event(), threading.Event()
    remove_topic = store.consumer_offsets.remove_topic

    def slowly(topic: str) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)
        remove_topic(topic)

    store.consumer_offsets.remove_topic = slowly  # type: ignore[method-assign]  # the last part of the deletion
    deleter = threading.Thread(target=store.delete_topic, args=("T",))
    deleter.start()
    assert inside.wait(WAIT_S)
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(0.3)
    waited = closer.is_alive()
    go_on.set()
    deleter.join(WAIT_S)
    closer.join(WAIT_S)
    assert waited
    with pytest.raises(StoreClosed):
        store.delete_topic("T")
