"""A damaged unit of a batch queue whose offsets end beyond 64 bits: opening the store raised OverflowError.

Found by ``python -m tests.damage --small`` (seed 2011371).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from laboratory import lab

import mqfast
from mqfast.store.base.os_api import OsApi
from mqfast.store.queues.batch_queue import BatchConsumeQueue


@pytest.mark.parametrize("base", [2**63 - 1, 2**62, -1])
def test_the_queue_ends_before_such_a_unit(tmp_path: Path, base: int) -> None:
    (tmp_path / "commitlog").mkdir()
    folder = str(tmp_path / "batchconsumequeue")
    queue = BatchConsumeQueue(OsApi(), folder, "T", 0, 138)
    for i in range(3):
        queue.put(i * 100, 100, 0, 1_700_000_000_000, i, 1)
    queue.close()
    path = Path(folder) / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[46 + 28 : 46 + 36] = (base % 2**64).to_bytes(8, "big")
    path.write_bytes(data)
    with mqfast.StoreReader(tmp_path) as reader:
        assert lab(reader).queues["T", 0].end() == 46  # what recovery finds
    queue = BatchConsumeQueue(OsApi(), folder, "T", 0, 138)
    queue.load()
    queue.recover()
    assert (queue.unit_count, queue.max_offset) == (1, 1)
    queue.close()


def test_such_a_unit_is_not_written(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(OsApi(), str(tmp_path), "T", 0, 138)
    with pytest.raises(ValueError, match="2\\^62"):
        queue.put(0, 100, 0, 1_700_000_000_000, 2**62, 1)
