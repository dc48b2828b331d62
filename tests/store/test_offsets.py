"""Consumer offsets: a broker's file, read, kept and written back."""

from __future__ import annotations

import enum
import os
import shutil
import threading
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, FlushError, UsageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.offsets import ConsumerOffsets

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*/*/store/config/*onsumerOffset.json"))


def same_text(ours: bytes, theirs: bytes, source: Path) -> bool:
    """Byte for byte what 5.5 writes; older releases break lines in fewer places."""
    if "golden-5.5.0" in source.parts:
        return ours == theirs
    return ours.translate(None, b"\n\t") == theirs.translate(None, b"\n\t")


@pytest.mark.parametrize("source", FILES, ids=lambda path: "/".join(path.parts[-5:-3]))
def test_real_files_are_written_back_unchanged(tmp_path: Path, source: Path) -> None:
    lmq = source.name.startswith("lmq")
    copy = tmp_path / source.name
    shutil.copyfile(source, copy)
    offsets = ConsumerOffsets.load(OsApi(), str(copy), lmq=lmq)
    assert not offsets.persist()
    # There and back, so that the write really happens.
    offsets.commit("g", "T", 0, 5)
    assert offsets.persist()
    assert copy.read_bytes() != source.read_bytes()
    offsets.remove_group("g")
    assert offsets.persist()
    assert same_text(copy.read_bytes(), source.read_bytes(), source)


def test_offsets_of_a_real_broker() -> None:
    path = GOLDEN / "golden-5.3.3" / "normal-clean" / "store" / "config" / "consumerOffset.json"
    offsets = ConsumerOffsets.load(OsApi(), str(path))
    assert offsets.get("cg_all", "TopicA", 2) == 23
    assert offsets.get("cg_all", "TopicA", 4) == -1
    assert offsets.get("cg_none", "TopicA", 0) == -1
    assert offsets.offsets("cg_retry") == {"%RETRY%cg_retry": {0: 3}, "RetryTopic": {0: 3}}
    assert offsets.groups() == ["CID_RMQ_SYS_TRANS", "cg_all", "cg_order", "cg_pull", "cg_retry", "cg_tag"]


def test_new_file_looks_like_a_brokers(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(1_700_000_000_000)
    path = tmp_path / "config" / "consumerOffset.json"
    offsets = ConsumerOffsets.load(os_api, str(path))
    assert not offsets.persist()
    offsets.commit("billing", "OrderEvents", 0, 120)
    offsets.commit("billing", "OrderEvents", 1, 118)
    assert offsets.persist()
    assert path.read_text() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"billing":[\n\t\t\t"OrderEvents"\n\t\t]\n\t},\n'
        '\t"offsetTable":{\n\t\t"OrderEvents@billing":{\n\t\t\t0:120,\n\t\t\t1:118\n\t\t}\n\t}\n}'
    )
    again = ConsumerOffsets.load(os_api, str(path))
    assert again.offsets("billing") == {"OrderEvents": {0: 120, 1: 118}}


def test_version_steps_with_the_commits(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"dataVersion":{"counter":7,"stateVersion":3,"timestamp":1},"offsetTable":{}}')
    offsets = ConsumerOffsets.load(OsApi(), str(path), version_step=10)
    for i in range(25):
        offsets.commit("g", "T", 0, i)
    offsets.persist()
    text = path.read_text()
    assert '"counter":9' in text
    assert '"stateVersion":3' in text


def test_file_of_4x_keeps_its_form(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@g":{0:1}}}')
    offsets = ConsumerOffsets.load(OsApi(), str(path), version_step=1)
    offsets.commit("g", "T", 0, 2)
    offsets.persist()
    assert path.read_text() == '{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:2\n\t\t}\n\t}\n}'


@pytest.mark.parametrize("lmq", [True, False])
def test_consumer_offsets_survive_a_switch_of_light_queues(tmp_path: Path, lmq: bool) -> None:
    """Else every group begins anew: with light queues all offsets are in a file of its own (RocketMQ issue 7087)."""
    with mqfast.open(tmp_path, config=StoreConfig.tiny(enable_lmq=not lmq)) as store:
        for number in range(5):
            store.put("T", b"%d" % number)
        store.consumer_offsets.commit("g", "T", 0, 3)
    with mqfast.open(tmp_path, config=StoreConfig.tiny(enable_lmq=lmq)) as store:
        assert store.consumer_offsets.get("g", "T", 0) == 3
        assert any("enableLmq" in text for text in store.stats()["warnings"])
        store.consumer_offsets.commit("g", "T", 0, 5)
    with mqfast.open(tmp_path, config=StoreConfig.tiny(enable_lmq=lmq)) as store:
        assert store.consumer_offsets.get("g", "T", 0) == 5
        assert not any("enableLmq" in text for text in store.stats()["warnings"]), "the file is there and the youngest"


def test_the_file_of_the_setting_counts_and_a_younger_one_of_the_other_is_told(tmp_path: Path) -> None:
    for lmq, offset in ((False, 1), (True, 2)):
        with mqfast.open(tmp_path, config=StoreConfig.tiny(enable_lmq=lmq)) as store:
            store.put("T", b"x")
            store.put("T", b"x")
            store.consumer_offsets.commit("g", "T", 0, offset)
    plain, light = (tmp_path / "config" / name for name in ("consumerOffset.json", "lmqConsumerOffset.json"))
    os.utime(plain, (1, 1))
    with mqfast.open(tmp_path, config=StoreConfig.tiny()) as store:
        assert store.consumer_offsets.get("g", "T", 0) == 1
        assert any(f"{light} is younger than {plain}" in text for text in store.stats()["warnings"])


def test_light_groups_have_their_own_table(tmp_path: Path) -> None:
    path = tmp_path / "lmqConsumerOffset.json"
    offsets = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    offsets.commit("%LMQ%a", "%LMQ%a", 0, 9)
    offsets.commit("plain", "%LMQ%a", 0, 4)
    offsets.persist()
    again = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    assert (again.offsets("%LMQ%a"), again.offsets("%LMQ%none")) == ({"%LMQ%a": {0: 9}}, {})
    assert again.get("%LMQ%a", "%LMQ%a", 0) == 9
    assert again.get("plain", "%LMQ%a", 0) == 4
    assert again.groups() == ["%LMQ%a", "plain"]
    assert '"lmqOffsetTable":{\n\t\t"%LMQ%a@%LMQ%a":9\n\t}' in path.read_text()
    again.remove_topic("%LMQ%a")
    assert again.groups() == []


def test_trap_quoted_queue_ids_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"offsetTable":{"T@g":{"0":1,"12":3}},"groupTopicMap":{"noise":5}}')
    assert ConsumerOffsets.load(OsApi(), str(path)).offsets("g") == {"T": {0: 1, 12: 3}}


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":5}',
        '{"offsetTable":{"T@g":5}}',
        '{"offsetTable":{"T@g":{"x":5}}}',
        '{"offsetTable":{"T@g":{0:"5"}}}',
        '{"offsetTable":{"T@g":{0:true}}}',
        '{"offsetTable":{5:{}}}',
        '{"lmqOffsetTable":{"T@g":{}}}',
        '{"dataVersion":[]}',
    ],
)
def test_damage_falls_back_to_the_backup(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=r"c\.json, expected"):
        ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    path.with_name("c.json.bak").write_text('{"offsetTable":{"T@g":{0:8}}}')
    offsets = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    assert offsets.get("g", "T", 0) == 8
    assert len(offsets.warnings) == 1


@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "offset"),
    [("", "T", 0, 0), ("a@b", "T", 0, 0), ("g", "a@b", 0, 0), ("g", "T", -1, 0), ("g", "T", 0, -1),
     ("g", "T", 0, 2**63), ("g", "T", 2**31, 0), (5, "T", 0, 0), ("g", "T", "0", 0), ("g", "T", 0, 1.5)],
)  # fmt: skip
def test_wrong_commits_are_refused_and_leave_nothing(group: str, topic: str, queue_id: int, offset: int) -> None:
    offsets = ConsumerOffsets(OsApi(), "unused")
    with pytest.raises(UsageError, match="expected"):
        offsets.commit(group, topic, queue_id, offset)
    assert offsets.groups() == []


class Place(enum.IntEnum):
    FIFTH = 5


@pytest.mark.parametrize("number", [True, Place.FIFTH, numpy.int64(5), numpy.uint8(5)], ids=repr)
def test_offsets_are_stored_as_plain_ints(tmp_path: Path, number: int) -> None:
    path = tmp_path / "c.json"
    offsets = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    offsets.commit("g", "T", number, number)
    offsets.commit("%LMQ%a", "%LMQ%a", 0, number)
    assert offsets.persist()
    again = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    assert again.offsets("g") == {"T": {int(number): int(number)}}
    assert again.offsets("%LMQ%a") == {"%LMQ%a": {0: int(number)}}


def test_offsets_behind_the_end_of_their_queue_are_cut_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    offsets = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    for group, topic, queue_id, offset in (("g", "T", 0, 10), ("g", "T", 1, 11), ("%LMQ%a", "%LMQ%a", 0, 12)):
        offsets.commit(group, topic, queue_id, offset)
    offsets.cut(lambda topic, queue_id: {("T", 0): 10, ("T", 1): 4}.get((topic, queue_id), 0))
    assert offsets.offsets("g") == {"T": {0: 10, 1: 4}}
    assert offsets.get("%LMQ%a", "%LMQ%a", 0) == 0
    assert len(offsets.warnings) == 2
    assert "group g, topic T, queue 1: the stored offset 11 is behind the end of the queue, 4" in offsets.warnings[0]


def test_offsets_are_not_written_when_their_messages_cannot_be_made_durable(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    offsets = ConsumerOffsets.load(OsApi(), str(path))
    offsets.commit("g", "T", 0, 1)
    offsets.persist()

    def refuse() -> None:
        raise FlushError(5, "Input/output error", "commitlog")

    assert not offsets.persist(before=refuse)  # nothing to write: nothing to make durable
    offsets.commit("g", "T", 0, 2)
    with pytest.raises(FlushError):
        offsets.persist(before=refuse)
    assert ConsumerOffsets.load(OsApi(), str(path)).get("g", "T", 0) == 1


names = st.text(st.characters(exclude_characters="@", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(st.tuples(names, names, st.integers(0, 9), st.integers(0, 2**63 - 1)), max_size=20))
def test_commits_survive_a_reload(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, str, int, int]]
) -> None:
    path = str(tmp_path_factory.mktemp("offsets") / "c.json")
    offsets = ConsumerOffsets.load(OsApi(), path)
    model: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in commits:
        offsets.commit(group, topic, queue_id, offset)
        model[group, topic, queue_id] = offset
    offsets.persist()
    again = ConsumerOffsets.load(OsApi(), path)
    assert {key: again.get(*key) for key in model} == model
    assert again.groups() == sorted({group for group, _, _ in model})


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "c.json")
    offsets = ConsumerOffsets.load(OsApi(), path)

    def work(queue_id: int) -> None:
        for offset in range(200):
            offsets.commit("g", "T", queue_id, offset)
            if offset % 50 == 0:
                offsets.persist()

    threads = [threading.Thread(target=work, args=(queue_id,)) for queue_id in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offsets.persist()
    assert ConsumerOffsets.load(OsApi(), path).offsets("g") == {"T": dict.fromkeys(range(4), 199)}


def test_light_offsets_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "lmqConsumerOffset.json"
    offsets = ConsumerOffsets.load(OsApi(), str(path), lmq=True)
    offsets.commit("g", "%LMQ%a", 0, 5)
    offsets.commit("other", "%LMQ%b", 0, 6)
    assert offsets.offsets("g") == {"%LMQ%a": {0: 5}}
    assert offsets.offsets("other") == {"%LMQ%b": {0: 6}}
    assert offsets.offsets("none") == {}


def test_a_light_table_by_numbers_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "lmqConsumerOffset.json"
    path.write_bytes(b'{"lmqOffsetTable":{5:6}}')
    with pytest.raises(CorruptFile, match="by name"):
        ConsumerOffsets.load(OsApi(), str(path), lmq=True)
