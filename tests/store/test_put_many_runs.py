"""A batch says where log and queue end once a run, not after each message: it leaves what single puts leave.

The runs: ``_append_run`` in ``mqfast/store/log/append.pyx``.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, lab
from store.small_store import (
    POOL,
    still,
)

from mqfast.store.message_store import MessageStore

FILES = {"mapped_file_bytes_consume_queue": 400, "mapped_file_bytes_commit_log": 16384}


def given(kind: str, texts: list[bytes]) -> Any:
    """The bodies as one argument of put_many; rows have one length."""
    if kind == "arrow":
        pyarrow = pytest.importorskip("pyarrow")
        return pyarrow.array(texts, type=pyarrow.binary())
    if kind == "rows":
        import numpy

        return numpy.frombuffer(b"".join(texts), dtype=numpy.uint8).reshape(len(texts), -1)
    return texts


def left(store: MessageStore) -> tuple[Any, ...]:
    """What a put leaves behind: positions, units, messages."""
    queues = [lab(store).queues.table.get("T", number) for number in (0, 1)]
    units = [[queue.unit(at) for at in range(queue.max_offset)] if queue is not None else [] for queue in queues]
    nexts = [0 if queue is None else queue.next_offset for queue in queues]
    return store.log.written, store.log.dispatched, store.put_count, nexts, units


@pytest.mark.parametrize("pool", [False, True], ids=["mapped", "pool"])
@pytest.mark.parametrize("kind", ["list", "rows", "arrow"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tags", ["", "A"], ids=["untagged", "tagged"])
def test_batches_leave_what_single_puts_leave(tmp_path: Path, tags: str, seed: int, kind: str, pool: bool) -> None:
    """Over ends of files of the log and the queue, behind puts that left their units, and behind the dispatcher.

    A put leaves no unit of a message with tags, which the index contains.
    """
    chance = random.Random(seed)
    settings = {**FILES, **(POOL if pool else {})}
    with still(tmp_path / "runs", **settings) as runs, still(tmp_path / "single", **settings) as single:
        for _ in range(chance.randrange(10, 40)):
            queue_id = chance.choice((0, 0, 0, 1))
            size = chance.choice((0, 3, 40, 900))
            count = chance.choice((1, 2, 19, 20, 21, 70))
            texts = [
                bytes([65 + number % 26]) * (size if kind == "rows" else chance.choice((size, 5)))
                for number in range(count)
            ]
            if kind == "rows" and size == 0:
                continue
            batch = runs.put_many("T", given(kind, texts), queue_id=queue_id, tags=tags)
            results = [single.put("T", text, queue_id=queue_id, tags=tags) for text in texts]
            assert [(r.physical_offset, r.queue_offset, r.size) for r in batch] == [
                (r.physical_offset, r.queue_offset, r.size) for r in results
            ]
            assert left(runs) == left(single)
            for store in (runs, single):
                event = chance.getstate()
                if chance.random() < 0.2:
                    store.put("T", b"keyed", keys="k")
                if chance.random() < 0.3:
                    store.log.commit()
                    lab(store).step_dispatch()
                if store is runs:
                    chance.setstate(event)
            assert left(runs) == left(single)
        for store in (runs, single):
            store.log.commit()
            lab(store).step_dispatch()
        assert left(runs) == left(single)
        for queue_id in (0, 1):
            assert bodies(runs, "T", queue_id) == bodies(single, "T", queue_id)
        ours, theirs = (store.log.message(0) for store in (runs, single))
        assert (ours.properties, ours.tags, ours.body_crc) == (theirs.properties, theirs.tags, theirs.body_crc)


def test_a_batch_into_a_queue_whose_next_offset_is_not_its_end(tmp_path: Path) -> None:
    """The unit goes to the end and is counted as misplaced, as that of a single put."""
    with still(tmp_path / "runs", **FILES) as runs, still(tmp_path / "single", **FILES) as single:
        for store in (runs, single):
            store.put("T", b"first")
            lab(store).step_dispatch()
            queue = lab(store).queues.table.get("T", 0)
            assert queue is not None
            queue.next_offset = 7
        runs.put_many("T", [b"a", b"b"])
        for text in (b"a", b"b"):
            single.put("T", text)
        assert left(runs) == left(single)
        counts = [lab(store).queues.table.get("T", 0).misplaced for store in (runs, single)]  # type: ignore[union-attr]
        assert counts == [2, 2]


def test_a_batch_ends_eight_bytes_before_the_end_of_a_file(tmp_path: Path) -> None:
    with still(tmp_path / "store", mapped_file_bytes_commit_log=4096) as store:
        one = store.put("T", b"").size
        left_bytes = 4096 - 2 * one - 8
        exact, more = store.put_many("T", [b"x" * left_bytes, b"y"])
        assert (exact.physical_offset + exact.size, more.physical_offset) == (4088, 4096)
    with still(tmp_path / "other", mapped_file_bytes_commit_log=4096) as store:
        store.put("T", b"")
        (over,) = store.put_many("T", [b"x" * (left_bytes + 1)])
        assert over.physical_offset == 4096
