"""The largest queue id, 2^31-1, works wherever a queue id is taken; one more is an error that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import UsageError

LAST = 2**31 - 1


def test_the_largest_queue_id_works_everywhere(tmp_path: Path) -> None:
    with mqfast.open(tmp_path) as store:
        store.put("T", b"0", LAST, keys="k")
        store.put_many("T", [b"1"], LAST)
        store.producer("T", LAST).put(b"2")
        assert store.put_nowait("T", b"3", LAST).wait(30)
        assert [bytes(m.body) for m in store.get("T", LAST, 0)] == [b"0", b"1", b"2", b"3"]
        assert store.queue_ids("T") == [LAST]
        assert (store.min_offset("T", LAST), store.max_offset("T", LAST)) == (0, 4)
        assert store.offset_by_time("T", LAST, 0) == 0
        assert [m.queue_id for m in store.query("T", "k")] == [LAST]
        consumer = store.consumer("g", "T")
        assert [m.queue_id for m in consumer] == [LAST] * 4
        consumer.sync()
        assert consumer.lag() == 0
    with mqfast.open(tmp_path) as store:
        assert store.consumer_offsets.get("g", "T", LAST) == 4
        assert len(store.get("T", LAST, 0)) == 4
    with mqfast.StoreReader(tmp_path) as reader:
        assert len(reader.get("T", LAST, 0)) == 4
        assert [q.queue_id for q in reader.queues()] == [LAST]
        assert len(reader.tail("T", LAST, from_offset=0).poll(10, 0)) == 4
    assert mqfast.verify(tmp_path).state == "clean"


def test_topics_json_has_a_number_of_queues_that_a_broker_can_read(tmp_path: Path) -> None:
    """It had 2147483648, which is no int: a Java broker could not read the file at all."""
    with mqfast.open(tmp_path) as store:
        store.put("T", b"x", LAST)
    topic = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]["T"]
    assert (topic["readQueueNums"], topic["writeQueueNums"]) == (LAST, LAST)


@pytest.mark.parametrize(
    "call",
    [
        lambda store, number: store.put("T", b"x", number),
        lambda store, number: store.put_many("T", [b"x"], number),
        lambda store, number: store.put_nowait("T", b"x", number),
        lambda store, number: store.producer("T", number).put(b"x"),
        lambda store, number: store.get("T", number, 0),
        lambda store, number: store.consumer_offsets.commit("g", "T", number, 0),
    ],
)
@pytest.mark.parametrize("number", [-1, LAST + 1, 2**32, 2**63, 2**64])
def test_beyond_it_is_an_error_that_names_the_range(
    tmp_path: Path, call: Callable[[mqfast.MessageStore, int], Any], number: int
) -> None:
    with mqfast.open(tmp_path) as store:
        with pytest.raises(UsageError, match="queue_id: expected"):
            call(store, number)
        assert store.queues() == []
