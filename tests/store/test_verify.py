"""verify finds what is wrong and says where; repair cuts and moves only what it copied, and what follows is whole.

All work is on copies of golden stores. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import StorageError, StoreLocked, StoreNotFound
from mqfast.store.base.lock import StoreLock
from mqfast.store.base.os_api import OsApi
from mqfast.store.check.repair import repair
from mqfast.store.check.verify import Damage, Severity, verify
from mqfast.store.reader.store_reader import StoreReader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from conftest import GOLDEN, Case, golden_cases
from store.small_store import SMALL

KILLED = ("killed", "killed-no-queues", "torn-flip", "torn-half")


def _copy(case: Case, tmp_path: Path) -> Path:
    return Path(shutil.copytree(case.store, tmp_path / "store"))


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A copy of the broadest clean store."""
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    return _copy(case, tmp_path)


def _image(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).digest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def _patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def _only(path: Path, kind: str, severity: Severity = Severity.DAMAGE) -> Damage:
    """The one finding of a kind; nothing worse may be there."""
    report = verify(path)
    (found,) = [damage for damage in report.damages if damage.kind == kind]
    assert found.severity == severity
    assert report.counts[kind] == 1
    assert report.ok == (severity != Severity.DAMAGE)
    return found


def _first_log(store: Path) -> Path:
    return min((store / "commitlog").iterdir())


# --- whole stores -----------------------------------------------------------------------------------------------------


def test_golden_stores(golden_case: Case) -> None:
    """Clean stores are clean, killed ones recoverable, and damage is reported at the byte where it was made."""
    before = _image(golden_case.store)
    report = verify(golden_case.store)
    assert _image(golden_case.store) == before
    damage_file = golden_case.dir / "damage.json"
    made: dict[str, Any] = json.loads(damage_file.read_text()) if damage_file.exists() else {}
    wanted = (
        "recoverable" if golden_case.name in KILLED else "damaged" if golden_case.name == "torn-middle" else "clean"
    )
    assert report.state == wanted, str(report)
    assert report.ok == (wanted != "damaged")
    records = [row for row in golden_case.expected["log"] if row[-1] != "BLANK"]
    behind = made.get("goodRecordsBehindIt", 0)
    assert report.counts["records"] == len(records) + behind
    assert report.log_range[0] == golden_case.expected["minPhyOffset"]
    if not behind:
        assert report.log_range[1] == golden_case.expected["maxPhyOffset"]
    logs = [damage for damage in report.damages if damage.kind.startswith("log.")]
    if "recordOffset" in made:
        (found,) = logs
        assert found.offset == made["recordOffset"]
        assert found.kind == ("log.record" if behind else "log.tail")
        assert int(Path(found.path).name) <= found.offset
        assert "#" in report.damage_map()
    else:
        assert logs == []
    if wanted == "clean":
        assert report.damages == []
        assert report.counts["units"] - report.counts["fillers"] == len(golden_case.expected["messages"])
    assert json.loads(report.to_json())["state"] == wanted


@pytest.mark.parametrize("name", ["data3_C", "data3_D", "data3_G", "data3_J", "data4_H", "data_A", "data_B"])
def test_engine_stores(name: str) -> None:
    """Batch queues, light queues, extensions, fillers, IPv6 and version 2 all agree with their logs."""
    report = verify(GOLDEN / "golden-engine" / name)
    assert report.ok
    assert {damage.severity for damage in report.damages} <= {Severity.NOTE}, str(report)


def test_a_record_ignored_behind_fillers() -> None:
    """Trap 17 leaves a record without unit: found."""
    report = verify(GOLDEN / "golden-engine" / "data6_L")
    assert [damage.kind for damage in report.damages if damage.severity is Severity.DAMAGE] == ["queue.behind"]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_finds_the_same(threads: int) -> None:
    """The number of threads changes nothing, and progress ends at the whole."""
    (case,) = golden_cases("5.3.3", ("torn-middle",))
    seen: list[tuple[int, int]] = []
    report = verify(case.store, threads=threads, progress=lambda done, total: seen.append((done, total)))
    assert report.damages == verify(case.store).damages
    assert seen[-1] == (5 * 32768, 5 * 32768)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_without_crc(tmp_path: Path) -> None:
    """check_crc=False does not look at bodies."""
    (case,) = golden_cases("5.3.3", ("torn-middle",))
    assert verify(case.store, check_crc=False).state == "recoverable"


def test_no_store(tmp_path: Path) -> None:
    """A directory that is no store is refused."""
    with pytest.raises(StoreNotFound):
        verify(tmp_path)
    with pytest.raises(StoreNotFound):
        repair(tmp_path)


# --- one damage each --------------------------------------------------------------------------------------------------


def test_a_record_of_another_place(clean: Path) -> None:
    """A whole record that names another physical offset."""
    with StoreReader(clean) as reader:
        third = list(reader.scan())[2].physical_offset
    _patch(_first_log(clean), third + 28, struct.pack(">q", 12345))
    found = _only(clean, "log.record")
    assert (found.path, found.offset) == (str(_first_log(clean)), third)
    assert "another place" in found.found


def test_a_stray_byte_behind_the_end(clean: Path) -> None:
    """After an orderly close nothing may stand behind the last record."""
    last = max((clean / "commitlog").iterdir())
    _patch(last, 131_000, b"x")
    assert _only(clean, "log.tail").offset == 326739


def test_a_missing_log_file(clean: Path) -> None:
    """A hole in the row of log files, and every unit that pointed into it."""
    middle = sorted((clean / "commitlog").iterdir())[1]
    middle.unlink()
    assert _only(clean, "log.gap").offset == 131072
    assert verify(clean).counts["queue.unit"] > 0


def test_a_truncated_log_file(clean: Path) -> None:
    """A file that is shorter than the others."""
    os.truncate(max((clean / "commitlog").iterdir()), 60000)
    assert _only(clean, "log.size").found == "60000"


@pytest.mark.parametrize(
    "field, data", [(0, struct.pack(">q", 3)), (8, b"\0\0\1\1"), (12, struct.pack(">q", 7)), (12, b"\x80")]
)
def test_a_wrong_unit(clean: Path, field: int, data: bytes) -> None:
    """Place, size or tags code of a unit that the record does not have; also an address without an extension."""
    queue = clean / "consumequeue/TopicA/0" / f"{0:020}"
    _patch(queue, 20 + field, data)
    report = verify(clean)
    found = [d for d in report.damages if d.kind in ("queue.unit", "queue.missing", "queue.order", "queue.beyond")]
    assert ("queue.unit", str(queue), 20) in [(d.kind, d.path, d.offset) for d in found]
    assert report.state == "damaged"


def test_a_hole_in_a_queue(clean: Path) -> None:
    """A zero unit with others behind it."""
    queue = clean / "consumequeue/TopicA/0" / f"{0:020}"
    _patch(queue, 20, bytes(20))
    assert _only(clean, "queue.hole").offset == 20


def test_a_queue_that_is_too_short(clean: Path) -> None:
    """A clean store must have a unit for every record; a killed one is behind and will be put right."""
    with StoreReader(clean) as reader:
        last = reader.max_offset("TopicA", 0) - 1
    _patch(clean / "consumequeue/TopicA/0" / f"{0:020}", last * 20, bytes(20))
    assert _only(clean, "queue.behind").path.endswith("TopicA/0")
    (clean / "abort").touch()
    assert _only(clean, "queue.behind", Severity.RECOVERABLE)


def test_a_missing_queue(clean: Path) -> None:
    """The queue of a topic that exists is damage, that of a deleted topic is not."""
    shutil.rmtree(clean / "consumequeue/TopicA/0")
    assert _only(clean, "queue.none").path.endswith("TopicA/0")
    for name in ("topics.json", "topics.json.bak"):
        path = clean / "config" / name
        if path.exists():
            path.write_text(path.read_text().replace("TopicA", "TopicZ"))
    assert _only(clean, "queue.none", Severity.NOTE)


def test_a_damaged_index(clean: Path) -> None:
    """A wrong slot, a wrong chain, an entry whose record has no such key."""
    path = min((clean / "index").iterdir())
    entry = 40 + 4 * 64 + 20 * 5
    saved = path.read_bytes()
    _patch(path, 40, struct.pack(">i", 1))
    assert _only(clean, "index.slot").offset == 40
    path.write_bytes(saved)
    _patch(path, entry + 16, struct.pack(">i", 77))
    assert _only(clean, "index.chain").offset == entry
    path.write_bytes(saved)
    _patch(path, entry + 4, struct.pack(">q", 50))
    assert _only(clean, "index.entry").offset == entry
    path.write_bytes(saved)
    os.truncate(path, 1000)
    assert "index.file" in [d.kind for d in verify(clean).damages]


def test_small_files(clean: Path) -> None:
    """Checkpoint of no known form or ahead of the log; JSON that cannot be read, with and without backup."""
    saved = (clean / "checkpoint").read_bytes()
    (clean / "checkpoint").write_bytes(b"short")
    assert _only(clean, "checkpoint").path == str(clean / "checkpoint")
    (clean / "checkpoint").write_bytes(struct.pack(">q", 2**60) + saved[8:])
    assert _only(clean, "checkpoint").offset == 0
    (clean / "checkpoint").write_bytes(saved)
    topics = clean / "config/topics.json"
    shutil.copy(topics, clean / "config/topics.json.bak")
    topics.write_bytes(b"{")
    assert _only(clean, "config", Severity.RECOVERABLE).path == str(topics)
    (clean / "config/topics.json.bak").write_bytes(b"}")
    assert _only(clean, "config").path == str(topics)


# --- repair -----------------------------------------------------------------------------------------------------------


def _messages(store: Path) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    with StoreReader(store) as reader:
        return {
            (q.topic, q.queue_id): [(m.queue_offset, m.to_bytes()) for m in reader.messages(q.topic, q.queue_id)]
            for q in reader.queues()
        }


def _reopen(store: Path, case: Case) -> None:
    with mqfast.open(store, **case.settings):
        pass


@pytest.mark.parametrize("case", golden_cases(None, ("torn-middle",)), ids=str)
def test_cut_at_the_first_damage(case: Case, tmp_path: Path) -> None:
    """The log is cut where it is damaged, the cut is kept and counted, and recovery gives what Java's gives."""
    store = _copy(case, tmp_path)
    made = json.loads((case.dir / "damage.json").read_text())
    before = _image(store)
    plan = repair(store, dry_run=True)
    assert _image(store) == before
    report = repair(store)
    assert (plan.cut_at, plan.messages_lost, plan.lost_offsets) == (
        report.cut_at,
        report.messages_lost,
        report.lost_offsets,
    )
    assert report.cut_at == made["recordOffset"]
    assert report.messages_lost == made["goodRecordsBehindIt"] == sum(map(len, report.lost_offsets.values()))
    assert report.damaged_ranges == [(made["recordOffset"], made["recordOffset"] + made["recordSize"])]
    name = f"{98304:020}"
    kept = Path(report.kept_in) / "commitlog" / f"{name}.from-{made['recordOffset'] - 98304}"
    original = (case.store / "commitlog" / name).read_bytes()[made["recordOffset"] - 98304 :]
    assert kept.read_bytes() == original
    assert verify(store).state == "recoverable"
    _reopen(store, case)
    assert verify(store).state == "clean", str(verify(store))
    wanted: dict[tuple[str, int], list[int]] = {}
    for row in case.expected["messages"]:
        wanted.setdefault((row["topic"], row["queueId"]), []).append(row["physicalOffset"])
    with StoreReader(store) as reader:
        for (topic, queue_id), offsets in wanted.items():
            assert [m.physical_offset for m in reader.messages(topic, queue_id)] == offsets
    assert json.loads(report.to_json())["cut_at"] == report.cut_at


def _break_queue(store: Path) -> None:
    _patch(store / "consumequeue/TopicA/0" / f"{0:020}", 20, bytes(20))


def _break_index(store: Path) -> None:
    _patch(min((store / "index").iterdir()), 40, struct.pack(">i", 1))


def _lose_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue/TopicA/0")


def _break_checkpoint(store: Path) -> None:
    (store / "checkpoint").write_bytes(b"short")


@pytest.mark.parametrize("damage", [_break_queue, _break_index, _lose_queue, _break_checkpoint])
def test_queues_and_index_are_rebuilt(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """Damaged queues, index and checkpoint are moved away and come back from the log; no message is lost."""
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    store = _copy(case, tmp_path)
    before = _messages(store)
    damage(store)
    assert verify(store).state == "damaged"
    report = repair(store)
    assert (report.cut_at, report.messages_lost) == (None, 0)
    assert (store / "abort").exists()
    assert verify(store).state == "recoverable", str(verify(store))
    _reopen(store, case)
    assert verify(store).state == "clean", str(verify(store))
    assert _messages(store) == before


def test_a_queue_is_rebuilt_with_its_extension(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("cq-ext",))
    store = _copy(case, tmp_path)
    before = _messages(store)
    _patch(store / "consumequeue/PlainA/0" / f"{0:020}", 20, bytes(20))
    assert verify(store).state == "damaged"
    report = repair(store)
    assert report.messages_lost == 0
    kept = Path(report.kept_in)
    # Both went together: the units that are made anew know nothing of the old extension.
    assert {str(path.relative_to(kept)) for path in kept.rglob(f"{0:020}")} == {
        f"consumequeue/PlainA/0/{0:020}",
        f"consumequeue_ext/PlainA/0/{0:020}",
    }
    _reopen(store, case)
    assert verify(store).ok, str(verify(store))
    assert _messages(store) == before


def test_verify_misses_units_only_of_queued_records(tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings: dict[str, Any] = {"enableMultiDispatch": True, "enableLmq": True, **SMALL}
    with mqfast.open(store, **settings) as opened:
        opened.put("T", b"half of a transaction", sys_flag=4)
        opened.put("T", b"plain")
        light = opened.put("T", b"light", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        opened.put("T", b"no batch at all", properties={"INNER_NUM": "many"})
    assert verify(store).state == "clean"
    before = _messages(store)
    _patch(store / "consumequeue/T/0" / f"{0:020}", 20, struct.pack(">qi", 0, 1 << 20))
    found = [str(damage) for damage in verify(store).damages if damage.kind == "queue.missing"]
    assert len(found) == 1
    assert f"a unit for the record at {light.physical_offset}" in found[0]
    repair(store)
    with mqfast.open(store, **settings):
        pass
    assert verify(store).state == "clean"
    assert _messages(store) == before


def test_a_clean_store_is_left_alone(clean: Path) -> None:
    """Nothing to do, nothing done; likewise where recovery will do it."""
    before = _image(clean)
    assert repair(clean).actions == []
    assert _image(clean) == before
    (case,) = golden_cases("5.3.3", ("killed",))
    killed = Path(shutil.copytree(case.store, clean.parent / "killed"))
    assert repair(killed).actions == []
    assert _image(killed) == _image(case.store)


@pytest.mark.parametrize("name", ["killed-no-queues", "torn-half"])
def test_a_killed_store_recovers_from_the_whole_log(name: str, tmp_path: Path) -> None:
    """Where queues are missing or the tail is torn, repair and an open give what Java's recovery gives."""
    (case,) = golden_cases("5.3.3", (name,))
    store = _copy(case, tmp_path)
    report = repair(store)
    assert report.messages_lost == 0
    assert not (store / "checkpoint").exists()
    _reopen(store, case)
    assert verify(store).state == "clean", str(verify(store))
    assert sum(map(len, _messages(store).values())) == len(case.expected["messages"])


def test_the_files_behind_the_cut_are_moved(clean: Path) -> None:
    """A cut in the first file takes the later ones away; they are kept whole."""
    with StoreReader(clean) as reader:
        records = list(reader.scan())
        third = records[2].physical_offset
    logs = sorted((clean / "commitlog").iterdir())
    later = {path.name: path.read_bytes() for path in logs[1:]}
    _flip(logs[0], third + 90)
    report = repair(clean, keep=clean / "kept")
    assert report.messages_lost == len(records) - 3
    assert {name: (clean / "kept/commitlog" / name).read_bytes() for name in later} == later
    assert [path.name for path in (clean / "commitlog").iterdir()] == [logs[0].name]
    assert logs[0].stat().st_size == 131072
    with StoreReader(clean) as reader:
        assert [m.physical_offset for m in reader.scan()] == [m.physical_offset for m in records[:2]]


def test_a_locked_store_is_not_repaired(clean: Path) -> None:
    """Only who may write may repair."""
    _break_queue(clean)
    before = _image(clean)
    with StoreLock.acquire(OsApi(), str(clean / "lock")), pytest.raises(StoreLocked):
        repair(clean)
    assert _image(clean) == before


class _Failing(OsApi):
    """A door whose n-th change fails."""

    left = -1

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise StorageError(5, "made to fail")

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def overwrite(self, path: str, data: bytes, offset: int = 0) -> None:
        self._count()
        super().overwrite(path, data, offset)

    def write_file(self, path: str, data: bytes) -> None:
        self._count()
        super().write_file(path, data)


def test_an_interrupted_repair_can_be_run_again(tmp_path: Path) -> None:
    """Whatever step fails, a second repair ends in the same store, and the cut bytes are in one of the two copies."""
    (case,) = golden_cases("5.3.3", ("torn-middle",))
    whole = Path(shutil.copytree(case.store, tmp_path / "whole"))
    repair(whole, keep=tmp_path / "kept")
    wanted = _image(whole)
    (copy,) = (tmp_path / "kept/commitlog").glob("*.from-*")
    failed = 0
    for n in range(1, 50):
        store = Path(shutil.copytree(case.store, tmp_path / f"store{n}"))
        os_api = _Failing()
        os_api.left = n
        keep = tmp_path / f"kept{n}"
        try:
            repair(store, keep=keep, os_api=os_api)
        except StorageError:
            failed += 1
            repair(store, keep=tmp_path / f"again{n}")
            copies = [path.read_bytes() for root in (keep, tmp_path / f"again{n}") for path in root.rglob(copy.name)]
            assert copy.read_bytes() in copies
            image = _image(store)
            assert image.pop("abort", None) is not None
            assert image == {name: data for name, data in wanted.items() if name != "abort"}
        else:
            break
    assert failed >= 4


def test_a_table_of_delays_that_is_another_one(clean: Path) -> None:
    """It is JSON, and still no table of offsets by level."""
    (clean / "config/delayOffset.json.bak").unlink(missing_ok=True)
    (clean / "config/delayOffset.json").write_text('{"offsetTable":{"one":"two"}}')
    assert _only(clean, "config").path.endswith("delayOffset.json")


def test_two_repairs_in_the_same_second_use_two_folders(clean: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(1_800_000_000_000)
    for number in range(2):
        _flip(clean / f"consumequeue/TopicA/{number}" / f"{0:020}", 7)
        report = repair(clean, os_api=os_api)
        assert "lost behind" not in str(report)
        assert report.actions
    assert len(list(clean.glob("repair-*"))) == 2
