"""config/*.json: round trips of real files, backups, damage, and a crash at every step of a write."""

from __future__ import annotations

import errno
import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqfast.errors import CorruptFile, InternalError, StorageError, UsageError
from mqfast.sim.simulated_os import Sim
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.meta.metadata import (
    ConsumerFilterTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)

GOLDEN = Path(__file__).parents[1] / "golden"
STORES = sorted(path.parent for path in GOLDEN.glob("*/*/store/config/topics.json"))
TABLES = {
    "topics.json": TopicConfigTable,
    "subscriptionGroup.json": SubscriptionGroupTable,
    "delayOffset.json": DelayOffsetTable,
    "consumerFilter.json": ConsumerFilterTable,
}


def same_text(ours: bytes, theirs: bytes, source: Path) -> bool:
    """Byte for byte what 5.5 writes; older releases break lines in fewer places."""
    if "golden-5.5.0" in source.parts:
        return ours == theirs
    return ours.translate(None, b"\n\t") == theirs.translate(None, b"\n\t")


@pytest.mark.parametrize("config", STORES, ids=lambda path: "/".join(path.parts[-4:-2]))
def test_real_files_are_read_and_written_back_unchanged(tmp_path: Path, config: Path) -> None:
    for name, kind in TABLES.items():
        if not (config / name).exists():
            continue
        copy = tmp_path / name
        shutil.copyfile(config / name, copy)
        table = kind.load(OsApi(), str(copy))
        assert table.warnings == []
        assert not table.persist()
        copy.unlink()
        # Loaded, so not empty; written again because it is gone.
        again = kind(OsApi(), str(copy))
        again._root = table._root
        assert again.persist()
        assert same_text(copy.read_bytes(), (config / name).read_bytes(), config)


def test_topics_of_a_real_broker() -> None:
    topics = TopicConfigTable.load(
        OsApi(), str(GOLDEN / "golden-5.3.3" / "normal-clean" / "store" / "config" / "topics.json")
    )
    multi = topics.get("MultiTagTopic")
    assert multi is not None
    assert multi.is_multi_tag
    plain = topics.get("TopicA")
    assert plain is not None
    assert (plain.read_queue_nums, plain.write_queue_nums, plain.perm, plain.sys_flag) == (4, 4, 6, 0)
    assert (plain.queue_type, plain.is_batch_queue, plain.is_multi_tag, plain.order) == (
        "SimpleCQ",
        False,
        False,
        False,
    )
    assert topics.get("nothing") is None
    assert "TopicA" in topics
    assert len(list(topics)) == len(topics) > 10
    batch = TopicConfigTable.load(
        OsApi(), str(GOLDEN / "golden-5.3.3" / "batch-cq" / "store" / "config" / "topics.json")
    )
    assert any(config is not None and config.is_batch_queue for config in map(batch.get, batch))


def test_new_tables_look_like_a_brokers(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(1_700_000_000_000)
    path = tmp_path / "config" / "topics.json"
    topics = TopicConfigTable.load(os_api, str(path))
    assert not topics.persist()
    assert not path.exists()
    topics.ensure("OrderEvents", 8, attributes={"queue.type": "BatchCQ"})
    assert topics.persist()
    assert path.read_text() == (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"OrderEvents":{\n\t\t\t"attributes":{\n\t\t\t\t"queue.type":"BatchCQ"\n\t\t\t},\n'
        '\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":8,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
        '\t\t\t"topicName":"OrderEvents",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
    )
    assert topics.ensure("OrderEvents", 2).write_queue_nums == 8
    assert not topics.persist()
    assert topics.ensure("OrderEvents", 9).read_queue_nums == 9
    assert topics.persist()
    assert '"readQueueNums":8' in path.with_name("topics.json.bak").read_text()
    assert topics.delete("OrderEvents")
    assert not topics.delete("OrderEvents")
    assert topics.persist()
    assert len(TopicConfigTable.load(os_api, str(path))) == 0

    groups = SubscriptionGroupTable.load(os_api, str(tmp_path / "config" / "subscriptionGroup.json"))
    assert groups.get("billing") is None
    assert groups.ensure("billing")["retryMaxTimes"] == 16
    assert groups.persist()
    real = GOLDEN / "golden-5.3.3" / "normal-clean" / "store" / "config" / "subscriptionGroup.json"
    theirs = SubscriptionGroupTable.load(os_api, str(real)).get("cg_retry")
    assert theirs is not None
    assert list(theirs.items()) == list({**groups.ensure("billing"), "groupName": "cg_retry"}.items())

    delays = DelayOffsetTable.load(os_api, str(tmp_path / "config" / "delayOffset.json"))
    assert delays.get(3) == 0
    delays.set(1, 10)
    delays.set(3, 42)
    assert delays.persist()
    text = (tmp_path / "config" / "delayOffset.json").read_text()
    assert text.endswith('\t"offsetTable":{\n\t\t1:10,\n\t\t3:42\n\t}\n}')
    assert DelayOffsetTable.load(os_api, str(tmp_path / "config" / "delayOffset.json")).get(3) == 42


def test_unknown_fields_come_back(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(
        '{"future":[1,2],"topicConfigTable":{"T":{"perm":6,"mood":"good"}},"dataVersion":{"counter":4,"x":9}}'
    )
    topics = TopicConfigTable.load(OsApi(), str(path))
    topics.ensure("U", 1)
    topics.persist()
    text = path.read_text()
    for kept in ('"future":[\n\t\t1,\n\t\t2\n\t]', '"mood":"good"', '"x":9', '"counter":5'):
        assert kept in text
    # A file of 4.x stays one.
    assert "stateVersion" not in text


GOOD = b'{\n\t"a":1\n}'
DAMAGED = [b"", b"\0" * 100, b'{"a":', b"[]", b"\xff"]


@pytest.mark.parametrize("damage", DAMAGED)
def test_trap_a_bad_main_is_kept_until_the_backup_was_read(tmp_path: Path, damage: bytes) -> None:
    main, backup = tmp_path / "x.json", tmp_path / "x.json.bak"
    main.write_bytes(damage)
    backup.write_bytes(GOOD)
    file = ConfigFile(OsApi(), str(main))
    assert file.load() == {"a": 1}
    assert len(file.warnings) == 1
    assert f"using {backup}" in file.warnings[0]
    assert str(main) in file.warnings[0]
    assert main.read_bytes() == damage
    assert file.persist({"a": 2})
    # The good backup is still there, the bad file is set aside.
    assert backup.read_bytes() == GOOD
    assert (tmp_path / "x.json.damaged").read_bytes() == damage
    assert file.persist({"a": 3})
    assert ConfigFile(OsApi(), str(backup)).load() == {"a": 2}


@pytest.mark.parametrize("damage", [damage for damage in DAMAGED if damage])
def test_two_bad_files_are_an_error_and_stay(tmp_path: Path, damage: bytes) -> None:
    main, backup = tmp_path / "x.json", tmp_path / "x.json.bak"
    main.write_bytes(damage)
    with pytest.raises(CorruptFile, match=r"x\.json,|x\.json$"):
        ConfigFile(OsApi(), str(main)).load()
    backup.write_bytes(damage)
    with pytest.raises(CorruptFile, match=r"x\.json\.bak"):
        ConfigFile(OsApi(), str(main)).load()
    assert main.read_bytes() == backup.read_bytes() == damage


@pytest.mark.parametrize("backup", [None, b""])
def test_an_empty_file_counts_as_missing_with_a_warning(tmp_path: Path, backup: bytes | None) -> None:
    main = tmp_path / "x.json"
    main.write_bytes(b"")
    if backup is not None:
        main.with_name("x.json.bak").write_bytes(backup)
    file = ConfigFile(OsApi(), str(main))
    assert file.load() == {}
    assert len(file.warnings) == 1
    assert f"{main} is empty" in file.warnings[0]
    assert file.persist({"a": 1})
    assert ConfigFile(OsApi(), str(main)).load() == {"a": 1}


def test_a_text_that_could_not_be_read_back_never_replaces_the_file(tmp_path: Path) -> None:
    main = tmp_path / "x.json"
    file = ConfigFile(OsApi(), str(main))
    assert file.persist({"a": 1})
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    for value in ({"a": float("nan")}, {"a": 2**70}, {"a": float("inf")}):
        with pytest.raises(InternalError, match="left as it is"):
            file.persist(value)
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "value", [2**63, float("nan"), "\ud800", functools.reduce(lambda inner, _: [inner], range(70), 0)]
)
def test_what_no_file_can_hold_is_not_taken(tmp_path: Path, value: object) -> None:
    table = SubscriptionGroupTable.load(OsApi(), str(tmp_path / "subscriptionGroup.json"))
    table.put("good", {"groupName": "good"})
    with pytest.raises(UsageError, match="expected what JSON can hold"):
        table.put("bad", {"groupName": "bad", "more": value})
    assert list(table) == ["good"]
    assert table.persist()


def test_missing_main_takes_the_backup_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.json.bak").write_bytes(GOOD)
    file = ConfigFile(OsApi(), str(tmp_path / "x.json"))
    assert file.load() == {"a": 1}
    assert "is missing" in file.warnings[0]
    assert ConfigFile(OsApi(), str(tmp_path / "y.json")).load() == {}


STARTS = ["nothing", "main", "main and backup", "bad main and backup", "backup"]


def _begin(place: Path, start: str) -> tuple[Path, dict[str, int]]:
    """The files of a start, and what they say."""
    place.mkdir()
    main, backup = place / "x.json", place / "x.json.bak"
    if start in ("main", "main and backup"):
        main.write_bytes(GOOD)
    if start == "main and backup":
        backup.write_bytes(b'{"a":0}')
    if start in ("bad main and backup", "backup"):
        backup.write_bytes(GOOD)
    if start == "bad main and backup":
        main.write_bytes(b"{")
    return main, {} if start == "nothing" else {"a": 1}


@pytest.mark.parametrize("start", STARTS)
def test_a_crash_at_any_step_leaves_the_old_or_the_new_state(tmp_path: Path, start: str) -> None:
    main, old = _begin(tmp_path / "live", start)
    images = tmp_path / "images"
    images.mkdir()
    with simulated(main.parent) as sim:
        file = ConfigFile(sim.os_api, str(main))
        assert file.load() == old
        sim.images(str(images), first=0, last=1000, per_call=5, seed=1)
        assert file.persist({"a": 2})
        sim.take()
        taken = sim.taken()
    found = [ConfigFile(OsApi(), str(images / str(n) / "x.json")).load() for n in range(len(taken))]
    assert len(taken) >= 30
    assert all(state in (old, {"a": 2}) for state in found)
    assert found[-1] == {"a": 2}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "stat", "rename", "sync_directory"])
def test_a_step_that_fails_leaves_the_old_or_the_new_state(tmp_path: Path, start: str, call: str) -> None:
    for n in (1, 2):
        main, old = _begin(tmp_path / str(n), start)
        with simulated(main.parent) as sim:
            file = ConfigFile(sim.os_api, str(main))
            assert file.load() == old
            sim.fault(call, n, errno.EIO)
            if write_fails(file):
                assert ConfigFile(OsApi(), str(main)).load() in (old, {"a": 2})
                assert not main.with_name("x.json.tmp").exists()
            sim.heal()
            file.persist({"a": 3})
        assert ConfigFile(OsApi(), str(main)).load() == {"a": 3}


def write_fails(file: ConfigFile) -> bool:
    """Does writing the new state fail?"""
    try:
        file.persist({"a": 2})
    except StorageError:
        return True
    return False


@contextmanager
def simulated(root: Path) -> Iterator[Sim]:
    """A simulated system over a directory."""
    sim = Sim(root)
    yield sim
    sim.free()


@pytest.mark.parametrize(
    "text",
    [
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"T":5}}',
        '{"topicConfigTable":{5:{}}}',
        '{"dataVersion":7}',
        '{"dataVersion":{"counter":"x"}}',
    ],
)
def test_json_of_another_shape_is_damage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topics.json"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=r"topics\.json, expected"):
        TopicConfigTable.load(OsApi(), str(path))


def test_strange_values_inside_a_topic_count_as_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('{"topicConfigTable":{"T":{"perm":"x","attributes":7,"readQueueNums":null}}}')
    topic = TopicConfigTable.load(OsApi(), str(path)).get("T")
    assert topic is not None
    assert (topic.perm, topic.attributes, topic.read_queue_nums) == (6, {}, 16)


def test_small_tables_without_an_entry(tmp_path: Path) -> None:
    os_api = OsApi()
    filters = ConsumerFilterTable.load(os_api, str(tmp_path / "consumerFilter.json"))
    assert filters.get("T") is None
    (tmp_path / "consumerFilter.json").write_bytes(b'{"filterDataByTopic":{"T":{"topic":"T"}}}')
    filters = ConsumerFilterTable.load(os_api, str(tmp_path / "consumerFilter.json"))
    found = filters.get("T")
    assert found == {"topic": "T"}
    found.clear()
    assert filters.get("T") == {"topic": "T"}, "not a copy"
    delays = DelayOffsetTable.load(os_api, str(tmp_path / "delayOffset.json"))
    delays.set(3, 7)
    assert delays.persist()
    delays.set(3, 7)
    assert not delays.persist()
    assert delays.offsets() == {3: 7}
    topics = TopicConfigTable.load(os_api, str(tmp_path / "topics.json"))
    assert "'T', queues=2" in repr(topics.ensure("T", 2))


def test_an_unchanged_config_file_is_not_rewritten(tmp_path: Path) -> None:
    """Releases before 5.5 write maps of numbers in one line: only a change brings the newer form."""
    path = tmp_path / "consumerOffset.json"
    older = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:5,1:6\n\t\t}\n\t}\n}'
    path.write_bytes(older)
    file = ConfigFile(OsApi(), str(path))
    value = file.load()
    assert not file.persist(value)
    assert not file.persist(value)
    assert path.read_bytes() == older
    value["offsetTable"]["T@g"][1] = 7
    assert file.persist(value)
    assert path.read_bytes() == b'{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:5,\n\t\t\t1:7\n\t\t}\n\t}\n}'
    assert (tmp_path / "consumerOffset.json.bak").read_bytes() == older
