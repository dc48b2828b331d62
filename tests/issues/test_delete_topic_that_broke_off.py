"""A deletion that memory broke off left its queues marked as deleted and in the table: the next batch put looked for
the topic's new queue for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from laboratory import lab

import mqfast


@pytest.mark.parametrize("failing", ["remove_topic", "of_topic"])
def test_who_puts_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def no_memory(topic: str) -> int:
        raise MemoryError

    with mqfast.open(tmp_path / "store") as store:
        store.put_many("gone", [b"old"] * 3)
        store.put("gone", b"old", 1)
        with monkeypatch.context() as patch:
            patch.setattr(lab(store).queues, failing, no_memory)
            with pytest.raises(MemoryError):
                store.delete_topic("gone")
        begun = failing == "remove_topic"
        first = store.put_many("gone", [b"new"] * 2)[0].queue_offset
        assert first == (0 if begun else 3)
        assert store.put("gone", b"new", 1).queue_offset == (0 if begun else 1)
        assert [bytes(m.body) for m in store.get("gone", 0, first)] == [b"new"] * 2
        assert store.delete_topic("gone") == 2
        assert store.put("gone", b"newest").queue_offset == 0


def test_so_does_who_puts_into_batch_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(topic: str) -> int:
        raise MemoryError

    with mqfast.open(tmp_path / "store") as store:
        store.topic_table.ensure("Units", 1, attributes={"queue.type": "BatchCQ"})
        store.put_batch([mqfast.Message("Units", b"old")] * 3)
        with monkeypatch.context() as patch:
            patch.setattr(lab(store).queues, "remove_topic", no_memory)
            with pytest.raises(MemoryError):
                store.delete_topic("Units")
        assert store.put_batch([mqfast.Message("Units", b"new")])[0].queue_offset == 3
        store.delete_topic("Units")
        assert store.put_batch([mqfast.Message("Units", b"newest")])[0].queue_offset == 0
