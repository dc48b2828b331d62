"""A damaged unit of a batch queue sent a consumer of a StoreReader back to the offset it had asked for, without an
error: it asked for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import copy_of, golden_cases

import mqfast
from mqfast.errors import CorruptFile


def test_every_get_leads_on(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    store = copy_of(case, tmp_path)
    (path,) = (store / "batchconsumequeue" / "BcqTopic" / "0").iterdir()
    data = bytearray(path.read_bytes())
    data[138:184] = data[:46]  # the first unit stands again in the place of the fourth
    path.write_bytes(data)
    with mqfast.StoreReader(store) as reader:
        for at in range(reader.max_offset("BcqTopic", 0)):
            found = reader.get("BcqTopic", 0, at, 16)
            assert found.next_offset > at
            offsets = [message.queue_offset for message in found]
            assert offsets == sorted(set(offsets))


def test_a_queue_file_that_is_named_between_two_units_is_an_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path) as store:
        store.put_many("T", [b"x"] * 10)
    queue = tmp_path / "consumequeue" / "T" / "0"
    (queue / f"{0:020d}").rename(queue / f"{1:020d}")
    with mqfast.StoreReader(tmp_path) as reader, pytest.raises(CorruptFile, match="between two units") as failure:
        reader.get("T", 0, 4)
    assert failure.value.found == 1
