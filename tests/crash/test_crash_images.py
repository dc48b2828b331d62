"""The short form of the crash sweep: crashes in every workload, every image checked. Long: ``make crash-images``."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from sampling import Sample
from sweep import Stretch, check_stretch, count_calls
from workloads import WORKLOADS

from mqfast.sim.simulated_os import CONTENTS_ONLY, KILLED, STRICT, Sim, scratch_root
from mqfast.store.base.os_api import OsApi

_WHOLE = 5200
_SHORT = 1300


def _stretches(sample: Sample) -> list[Stretch]:
    """Some runs of calls from each workload."""
    each = (_WHOLE if sample.whole else _SHORT) // len(WORKLOADS)
    pieces = 4 if sample.whole else 1
    length = -(-each // (pieces * 2))
    plan = []
    for number, name in enumerate(WORKLOADS):
        first, last = count_calls(name)
        room = max(0, last - first - length)
        if sample.whole:
            places = [room * piece // (pieces - 1) for piece in range(pieces)]
        else:
            places = [sample.rng.randrange(room + 1)]
        plan += [Stretch(name, first + at, first + at + length, 2, 1000 + number) for at in places]
    return plan


@pytest.mark.slow
@pytest.mark.sampled
def test_every_promise_holds_in_thousands_of_crash_images(sample: Sample) -> None:
    plan = _stretches(sample)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        outcomes = pool.map(check_stretch, plan, chunksize=4)
        pool.close()
        pool.join()  # else they are killed, and what they counted for make coverage is lost
    bad = [text for outcome in outcomes for text in outcome.bad]
    assert not bad, "\n".join(bad[:10])
    images = sum(outcome.images for outcome in outcomes)
    assert images >= (_WHOLE if sample.whole else _SHORT) * 9 // 10
    sample.note(images, 100_000, "crash images", "make crash-images")


@pytest.fixture
def sim(tmp_path: Path) -> Sim:
    """A simulation over one file of two pages and a directory."""
    root = tmp_path / "live"
    (root / "d").mkdir(parents=True)
    (root / "old").write_bytes(b"o" * 8192)
    return Sim(root)


def _image(sim: Sim, tmp_path: Path, mode: int) -> Path:
    target = tmp_path / f"image{sim.calls}-{mode}"
    sim.image(str(target), mode)
    return target


def test_what_is_not_synced_is_not_in_the_strict_image(sim: Sim, tmp_path: Path) -> None:
    os_api, live = sim.os_api, tmp_path / "live"
    (live / "old").write_bytes(b"n" * 8192)  # past the door: as a store through a mapping
    assert (_image(sim, tmp_path, STRICT) / "old").read_bytes() == b"o" * 8192
    assert (_image(sim, tmp_path, KILLED) / "old").read_bytes() == b"n" * 8192
    assert (_image(sim, tmp_path, CONTENTS_ONLY) / "old").read_bytes() == b"n" * 8192
    os_api.overwrite(live / "old", b"", 0)  # writes nothing, and syncs
    assert (_image(sim, tmp_path, STRICT) / "old").read_bytes() == b"n" * 8192


def test_a_name_is_durable_once_its_directory_is_synced(sim: Sim, tmp_path: Path) -> None:
    os_api, live = sim.os_api, tmp_path / "live"
    os_api.write_file(live / "d" / "new", b"whole")
    assert not (_image(sim, tmp_path, STRICT) / "d" / "new").exists()
    os_api.fsync_dir(live / "d")
    assert (_image(sim, tmp_path, STRICT) / "d" / "new").read_bytes() == b"whole"
    os_api.rename(live / "d" / "new", live / "d" / "renamed")
    assert [p.name for p in (_image(sim, tmp_path, STRICT) / "d").iterdir()] == ["new"]
    assert [p.name for p in (_image(sim, tmp_path, KILLED) / "d").iterdir()] == ["renamed"]
    os_api.fsync_dir(live / "d")
    os_api.unlink(live / "d" / "renamed")
    assert (_image(sim, tmp_path, STRICT) / "d" / "renamed").read_bytes() == b"whole"


def test_pages_of_a_failed_sync_are_not_written_by_the_next(sim: Sim, tmp_path: Path) -> None:
    os_api, live = sim.os_api, tmp_path / "live"
    (live / "old").write_bytes(b"n" * 8192)
    sim.fault("fsync", 1, 5)
    with pytest.raises(OSError):
        os_api.overwrite(live / "old", b"", 0)
    os_api.overwrite(live / "old", b"", 0)
    assert sim.fault_hits == 1
    assert sim.resyncs == 1
    assert (_image(sim, tmp_path, STRICT) / "old").read_bytes() == b"o" * 8192
    os_api.overwrite(live / "old", b"x", 4096)
    assert (_image(sim, tmp_path, STRICT) / "old").read_bytes() == b"o" * 4096 + b"x" + b"n" * 4095


def test_the_table_is_the_doors_own(sim: Sim) -> None:
    assert OsApi().table_address != sim.os_api.table_address
    assert scratch_root() is None or Path(str(scratch_root())).is_dir()
