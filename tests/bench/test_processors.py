"""The processor that a paced loop is kept on (bench/processors.py): how it is found, and that the thread is let go.

It must never need two processors where one shows the same.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import ModuleType

import pytest

TABLE = """           CPU0       CPU2
 24:          1          5  IO-APIC   5-edge      ACPI:Ged
 36:          0      12889  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
LOC:    7930247    8261288   Local timer interrupts
ERR:          0
"""

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are kept on processors by Linux only")


def test_only_devices_count(processors: ModuleType) -> None:
    """Columns are processors, which need not be numbered in a row; timers are no devices."""
    assert processors.interrupts(TABLE) == {0: 1, 2: 12894}
    assert processors.interrupts("") == {}


@linux
def test_the_one_with_fewest_interrupts(
    processors: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came to each while the file was synced decides, not what came before."""
    told = iter([{0: 10, 1: 1000}, {0: 110, 1: 1001}])
    monkeypatch.setattr(processors, "interrupts", lambda text: next(told))
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0, 1})
    assert processors.quietest(tmp_path) == 1
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert processors.quietest(tmp_path) in {None, *os.sched_getaffinity(0)}


@linux
def test_one_processor_is_no_choice(processors: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured then."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {1})
    assert processors.quietest(tmp_path) is None


@linux
def test_a_thread_is_alone_and_all_is_put_back(processors: ModuleType) -> None:
    """The others of its process stay off its processor; also when the block raises, or when a thread ends meanwhile."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one processor")
    one, this = min(before), threading.get_native_id()
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    number = other.native_id
    with processors.alone_on(None, this):
        assert os.sched_getaffinity(0) == os.sched_getaffinity(number) == before
    with pytest.raises(KeyError), processors.alone_on(one, this):
        assert os.sched_getaffinity(0) == {one}
        assert os.sched_getaffinity(number) == before - {one}
        raise KeyError
    assert os.sched_getaffinity(0) == os.sched_getaffinity(number) == before
    with processors.alone_on(one, number):
        assert os.sched_getaffinity(number) == {one}
        assert os.sched_getaffinity(0) == before - {one}
        end.set()
        other.join()
    assert os.sched_getaffinity(0) == before


@linux
def test_threads_of_the_kernel_make_way(processors: ModuleType) -> None:
    """For root, and only meanwhile; what is bound to a processor stays. Others ask in vain, which is no error."""
    before: dict[int, set[int]] = {}

    def where(number: int) -> set[int]:
        try:
            return os.sched_getaffinity(number)
        except ProcessLookupError:  # a worker that ended meanwhile
            return before.get(number, set())

    def may_be_moved(number: int) -> bool:
        try:
            os.sched_setaffinity(number, before[number])
        except OSError:  # bound to where it is, or not ours to move
            return False
        return len(before[number]) > 1

    before = {number: where(number) for number in processors._of_kernel()}
    one = min(os.sched_getaffinity(0))
    movable = [number for number in before if one in before[number] and may_be_moved(number)]
    queued = processors._WORKQUEUES.read_text() if processors._WORKQUEUES.exists() else ""
    mask = int(queued.replace(",", "") or "0", 16)
    mask_moves = mask & 1 << one != 0 and mask != 1 << one and os.access(processors._WORKQUEUES, os.W_OK)
    with processors.without_kernel(one):
        during = processors._WORKQUEUES.read_text() if queued else ""
        made_way = [number for number in before if where(number) == before[number] - {one} != before[number]]
        assert all(where(number) == before[number] for number in before if number not in made_way)
    assert [number for number in movable if Path(f"/proc/{number}").exists() and number not in made_way] == []
    assert all(where(number) == before[number] for number in before)
    assert (during != queued) is mask_moves
    assert not queued or processors._WORKQUEUES.read_text() == queued
    with processors.without_kernel(None):
        assert all(where(number) == before[number] for number in before)


@pytest.mark.parametrize(
    ("before", "processor", "during"),
    [
        ("3", 0, "00000002"),
        ("ff,ffffffff", 35, "000000f7,ffffffff"),
        ("2", 1, "2"),  # nobody else could do the work
        ("what it is in years to come", 0, "what it is in years to come"),
    ],
)
def test_queued_work_makes_way(
    processors: ModuleType, tmp_path: Path, before: str, processor: int, during: str
) -> None:
    """The mask of the kernel's unbound workers loses the processor for the block, whatever ends it."""
    mask = tmp_path / "cpumask"
    mask.write_text(before + "\n")
    with pytest.raises(ZeroDivisionError), processors.queued_work_away_from(processor, mask):
        found = mask.read_text().strip()
        raise ZeroDivisionError
    assert (found, mask.read_text().strip()) == (during, before)


def test_without_a_kernel_mask_nothing_is_changed(processors: ModuleType, tmp_path: Path) -> None:
    """The block runs, and no file is made."""
    with processors.queued_work_away_from(0, tmp_path / "cpumask"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("buckets", "connections", "during"),
    [("262144", "3", "4096"), ("262144", "1000", "262144"), ("2048", "0", "2048")],
)
def test_the_table_of_connections_is_small_for_the_block_if_nearly_empty(
    processors: ModuleType, tmp_path: Path, buckets: str, connections: str, during: str
) -> None:
    """Whatever ends the block, it is as large as it was; one that is in use, or small, is left alone."""
    count, size = tmp_path / "count", tmp_path / "size"
    count.write_text(connections + "\n")
    size.write_text(buckets + "\n")
    with pytest.raises(ZeroDivisionError), processors.short_walks_of_connections(count, size):
        found = size.read_text().strip()
        raise ZeroDivisionError
    assert (found, size.read_text().strip()) == (during, buckets)


def test_without_a_firewall_nothing_happens(processors: ModuleType, tmp_path: Path) -> None:
    """The block runs, and no file is made."""
    with processors.short_walks_of_connections(tmp_path / "count", tmp_path / "size"):
        pass
    assert not list(tmp_path.iterdir())
