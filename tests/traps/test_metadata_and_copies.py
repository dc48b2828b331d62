"""Traps 54 to 62: metadata, the store of a slave, retention.

Room: tests/traps. Where a trap is a bug of RocketMQ the test says what we do instead. Formats:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, copy_of, golden_cases
from golden_checks import read_queue
from laboratory import bodies
from reference import FILLER_SIZE, unit
from traps.common import (
    SMALL,
    age,
    clean,
    fill,
    log_bytes,
    queue_bytes,
)

import mqfast


def test_trap_54_map_keys_are_bare_integers(tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    directory = copy_of(case, tmp_path)
    text = (directory / "config/consumerOffset.json").read_text()
    assert re.search(r"[{,]0:\d+", text)
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    with mqfast.open(directory) as store:
        (group, topic, queues), *_ = [
            (group, topic, queues)
            for group in store.consumer_offsets.groups()
            for topic, queues in store.consumer_offsets.offsets(group).items()
        ]
        queue_id, offset = next(iter(queues.items()))
        assert re.search(rf'"{re.escape(topic)}@{re.escape(group)}":{{[^}}]*\b{queue_id}:{offset}\b', text)
        store.consumer_offsets.commit("fresh group", "T", 3, 77)
    assert '"T@fresh group":{\n\t\t\t3:77' in (directory / "config/consumerOffset.json").read_text()
    with mqfast.open(directory) as store:
        assert store.consumer_offsets.get("fresh group", "T", 3) == 77
        assert store.consumer_offsets.get(group, topic, queue_id) == offset


def test_trap_55_the_map_of_groups_is_noise(tmp_path: Path) -> None:
    path = tmp_path / "store"
    mqfast.open(path, **SMALL).close()
    (path / "config").mkdir(exist_ok=True)
    (path / "config/consumerOffset.json").write_text(
        '{"groupTopicMap":{"ghost":["Nowhere"],"g":"?"},"offsetTable":{"T@g":{0:5}}}'
    )
    with mqfast.open(path, **SMALL) as store:
        assert store.consumer_offsets.groups() == ["g"]
        assert store.consumer_offsets.offsets("g") == {"T": {0: 5}}


def test_trap_56_a_bad_main_file_falls_back_to_the_copy_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for offset in (5, 6):
        with mqfast.open(path, **SMALL) as store:
            store.consumer_offsets.commit("g", "T", 0, offset)
    main, copy = path / "config/consumerOffset.json", path / "config/consumerOffset.json.bak"
    assert "0:6" in main.read_text()
    assert "0:5" in copy.read_text()
    main.write_text('{"offsetTable":{"T@g":{0:')
    with mqfast.open(path, **SMALL) as store:
        assert store.consumer_offsets.get("g", "T", 0) == 5
        assert any("consumerOffset.json" in warning for warning in store.stats()["warnings"])
    main.unlink()
    with mqfast.open(path, **SMALL) as store:  # the moment between the two renames of a save
        assert store.consumer_offsets.get("g", "T", 0) == 5


SLAVE, MASTER = golden_cases("5.3.3", ("ha-slave", "ha-master"))[::-1]


def messages_of(store: Any, case: Case) -> dict[tuple[str, int, int], bytes]:
    """(topic, queue id, queue offset) -> record, as an open store serves the queues of a golden case."""
    found = {}
    for queue in case.expected["queues"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        for message in read_queue(store, topic, queue_id, store.min_offset(topic, queue_id)):
            found[topic, queue_id, message.queue_offset] = message.to_bytes()
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_trap_57_the_store_of_a_slave_begins_late_and_its_queues_with_fillers(tmp_path: Path, killed: bool) -> None:
    directory = copy_of(SLAVE, tmp_path)
    if killed:
        (directory / "abort").touch()
    with mqfast.open(copy_of(MASTER, tmp_path), **MASTER.settings) as store:
        everything = messages_of(store, MASTER)
    bounds = {(q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"]) for q in SLAVE.expected["queues"]}
    with mqfast.open(directory, brokerRole="SLAVE", **SLAVE.settings) as store:
        assert store.min_physical_offset == 32768
        assert {(topic, q): (low, high) for topic, q, low, high in store.queues()} == bounds
        for (topic, queue_id), (low, _) in bounds.items():
            assert low > 20
            assert queue_bytes(directory, topic, queue_id).startswith(unit(0, FILLER_SIZE, 0) * low)
            found = store.get(topic, queue_id, 0)
            assert (found.status.name, found.next_offset) == ("OFFSET_TOO_SMALL", low)
        assert messages_of(store, SLAVE) == {
            place: record for place, record in everything.items() if place[2] >= bounds[place[:2]][0]
        }
    assert mqfast.verify(directory).ok
    with mqfast.open(directory, **SLAVE.settings) as store:  # its master is lost: it becomes one
        for (topic, queue_id), (_, high) in bounds.items():
            assert store.put(topic, b"", queue_id).queue_offset == high


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("whole", [0, 1, 6, 100, -1])
@pytest.mark.parametrize("nth", [-1, -60])
def test_trap_59_the_log_of_a_slave_may_end_inside_a_record(tmp_path: Path, nth: int, whole: int, killed: bool) -> None:
    """Frames of replication end anywhere. ``whole`` bytes of the record have come; the rest follows later."""
    directory = copy_of(SLAVE, tmp_path)
    records = [row for row in SLAVE.expected["log"] if row[2] is not None]
    torn, size = records[nth][:2]
    log = directory / "commitlog"
    complete = {path.name: path.read_bytes() for path in sorted(log.iterdir())}
    for path in sorted(log.iterdir()):
        if int(path.name) > torn:
            path.unlink()
        elif int(path.name) + 32768 > torn:
            at = torn - int(path.name) + whole % size
            path.write_bytes(complete[path.name][:at].ljust(32768, b"\0"))
    if killed:
        (directory / "abort").touch()
    with mqfast.open(directory, brokerRole="SLAVE", **SLAVE.settings) as store:
        assert store.max_physical_offset == torn
        have = messages_of(store, SLAVE)
        assert len(have) == len(records) + nth
    data = log_bytes(directory)
    assert data[: torn - 32768] == b"".join(complete.values())[: torn - 32768]
    assert not data[torn - 32768 :].strip(b"\0")
    for name, content in complete.items():  # replication goes on from there
        (log / name).write_bytes(content)
    if killed:
        (directory / "abort").touch()
    with mqfast.open(directory, brokerRole="SLAVE", **SLAVE.settings) as store:
        assert store.max_physical_offset == SLAVE.expected["maxPhyOffset"]
        again = messages_of(store, SLAVE)
        assert len(again) == len(records)
        assert have.items() <= again.items()


def test_trap_61_the_age_of_a_file_is_its_last_change(tmp_path: Path) -> None:
    path = tmp_path / "store"
    hour = time.localtime().tm_hour
    with mqfast.open(path, **SMALL, deleteWhen=f"{hour:02d}", fileReservedTime=72) as store:
        fill(store, 40)
        assert store.max_offset("T", 0) == 40
        store.flush()
        store.log.reap()
        now = store.os_api.now_ms()
        age(path, 73)
        os.utime(path / "commitlog" / f"{0:020}")  # touched: it lives on, and holds up those behind it
        assert store.retention.run_once(now) == 0
        age(path, 71.5, only=1)
        assert store.retention.run_once(now) == 0
        age(path, 200)
        for hours in range(1, 24):  # only in that hour of local time, but for all of it
            assert store.retention.run_once(now - hours * 3_600_000) == 0
        assert store.retention.run_once(now) >= 2
        assert store.max_offset("T", 0) == 40


def test_trap_62_queue_files_follow_the_log_and_the_last_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        store.put("Quiet", b"old")
        fill(store, 60)
        assert store.max_offset("T", 0) == 60
        for file in (path / "consumequeue").rglob("*"):
            if file.is_file():
                os.utime(file, (0, 0))  # their own age is nothing
        assert clean(store) == 0
        assert len(list((path / "consumequeue/T/0").iterdir())) == 6
        age(path, 100)
        assert clean(store) > 2
        assert len(list((path / "commitlog").glob("*"))) >= 1
        first = store.min_offset("T", 0)
        assert first > 10
        files = sorted(int(file.name) for file in (path / "consumequeue/T/0").iterdir())
        assert files == list(range(first * 20 // 200 * 200, 1200, 200))
        assert [file.name for file in (path / "consumequeue/Quiet/0").iterdir()] == [f"{0:020}"]
        assert (store.min_offset("Quiet", 0), store.max_offset("Quiet", 0)) == (1, 1)
        assert store.put("Quiet", b"new").queue_offset == 1
        assert bodies(store, "Quiet", at=1) == [b"new"]
    with mqfast.open(path, **SMALL) as store:
        assert bodies(store, "Quiet", at=1) == [b"new"]
        assert store.min_offset("T", 0) == first
