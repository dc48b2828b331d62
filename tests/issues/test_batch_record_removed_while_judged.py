"""Retention removed a log file between the judgement of a batch queue's unit and the hold of its record: a segfault."""

from __future__ import annotations

from pathlib import Path

import pytest
from laboratory import lab, open_still

from mqfast.config import StoreConfig
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.engine import QueueUnit


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_record_that_is_gone_is_passed(tmp_path: Path, earlier: int) -> None:
    with open_still(tmp_path / "s", config=StoreConfig.tiny(mapped_file_bytes_commit_log=4096)) as store:
        store.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
        while len(store.log.files) < 3:
            store.put("B", b"x" * 300)
        store.flush()
        lab(store).step_dispatch()
        places = [message.physical_offset for message in store.get("B", 0, 0)]
        last = sum(place < store.log.files[1].start_offset for place in places) - 1
        store.log.reap()

        def passes(unit: QueueUnit) -> bool:
            if unit.queue_offset == last:
                store.log.remove_first()
            return True

        found = store.engine.get_records("B", 0, last - earlier, max_count=2, filter=passes)
        assert found.status is GetMessageStatus.FOUND
        assert found.queue_offsets == ([last - 1, last + 1] if earlier else [last + 1, last + 2])
