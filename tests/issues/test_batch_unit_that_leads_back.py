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


def begins_behind_its_end(tmp_path: Path) -> tuple[Path, dict[str, object], int]:
    """A store whose first unit, of one flipped bit, begins behind all others: its path, settings, and the bound."""
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    store = copy_of(case, tmp_path)
    (path,) = (store / "batchconsumequeue" / "BcqTopic" / "0").iterdir()
    data = bytearray(path.read_bytes())
    data[34] ^= 0x10  # of the queue offset, bytes 28 to 35
    path.write_bytes(data)
    return store, case.settings, 1 << 12


def test_a_queue_that_begins_behind_its_end_is_an_error_of_every_get(tmp_path: Path) -> None:
    """Each bound sent the caller to the other one, without an error: a consumer looped for ever."""
    path, settings, low = begins_behind_its_end(tmp_path)
    with mqfast.StoreReader(path) as reader:
        for at in (0, 1, low, low + 1):
            with pytest.raises(CorruptFile, match="begins behind its own end") as raised:
                reader.get("BcqTopic", 0, at)
            assert raised.value.found == low
    with mqfast.open(path, **settings) as store:
        assert store.min_offset("BcqTopic", 0) == low > store.max_offset("BcqTopic", 0)
        for at in (0, 1, low, low + 1):
            with pytest.raises(CorruptFile, match="begins behind its own end"):
                store.get("BcqTopic", 0, at)
        for reset in ("error", "earliest", "latest"):
            for from_first in (True, False):
                consumer = store.consumer(f"g-{reset}", "BcqTopic", from_first=from_first, offset_reset=reset)
                with pytest.raises(CorruptFile, match="begins behind its own end"):
                    consumer.poll()
                consumer.seek(0, 1)
                with pytest.raises(CorruptFile, match="begins behind its own end"):
                    next(iter(consumer))


def test_repair_makes_such_a_queue_anew(tmp_path: Path) -> None:
    path, settings, _ = begins_behind_its_end(tmp_path)
    assert mqfast.verify(path).state == "damaged"
    mqfast.repair(path)
    with mqfast.open(path, **settings) as store:
        assert store.min_offset("BcqTopic", 0) == 0
        assert len(store.get("BcqTopic", 0, 0).messages) > 0
        assert store.consumer("g", "BcqTopic").poll()


def test_a_unit_behind_the_end_of_its_queue_is_an_error(tmp_path: Path) -> None:
    """A get in front of it did not move on, and said nothing: a consumer took the queue as read to its end."""
    (case,) = golden_cases("5.3.3", ("batch-cq",))
    path = copy_of(case, tmp_path)
    with mqfast.open(path, **case.settings):
        pass  # closed in order: the next open looks at the last files only
    (file,) = (path / "batchconsumequeue" / "BcqTopic" / "0").iterdir()
    data = bytearray(file.read_bytes())
    at = int.from_bytes(data[46 + 28 : 46 + 36], "big")  # of the second unit
    data[46 + 28] ^= 0x10
    file.write_bytes(data)
    with mqfast.open(path, **case.settings) as store, pytest.raises(CorruptFile):
        for _ in range(store.max_offset("BcqTopic", 0)):
            found = store.get("BcqTopic", 0, at, 1)
            assert found.next_offset > at
            at = found.next_offset
