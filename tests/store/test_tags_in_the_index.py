"""A message's tags in the index, as RocketMQ has them since 5.5: written, found, checked, not missed in old files.

The bytes are compared with the reference in tests/model and with Java in tests/compat.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still
from reference import ModelStore, Record, index_hash

import mqfast
from mqfast.errors import UsageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.check.verify import verify
from mqfast.store.index.index_file import IndexFile

SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 16,
    "maxIndexNum": 64,
}
EVER = 2**63 - 1


def entries(path: Path) -> list[tuple[int, int]]:
    """(hash, physical offset) of every entry of a store's index, oldest first."""
    found = []
    for name in sorted((path / "index").iterdir()):
        file = IndexFile.open(OsApi(), str(name), SIZES["maxHashSlotNum"], SIZES["maxIndexNum"], writable=False)
        found += [(hashed, physical) for _, hashed, physical, _, _ in file.entries()]
        file.close()
    return found


@pytest.mark.parametrize("more", [{}, {"dispatch": "background"}, {"transientStorePoolEnable": True}], ids=str)
def test_every_way_to_put_indexes_the_tags_behind_the_keys(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SIZES, **more) as store:
        producer = store.producer("T", 1, "bound")
        done = [
            store.put("T", b"", tags="a", keys="k1 k2", properties={"UNIQ_KEY": "u"}),
            store.put("T", b"", tags="a"),
            producer.put(b""),
            producer.put(b"", "key"),
            *store.put_many("T", [b"", b""], 0, "many"),
            *store.put_batch([mqfast.Message("T", b"", tags="batch"), mqfast.Message("T", b"", keys="k3")]),
            store.put("T", b"", tags="rolled back", sys_flag=0xC),
            store.put("T", b"", tags="half", sys_flag=0x4),
            store.put("T", b"plain"),
        ]
        places = [result.physical_offset for result in done]
    texts = [["T#u", "T#k1", "T#k2", "T#T#a"], ["T#T#a"], ["T#T#bound"], ["T#key", "T#T#bound"], ["T#T#many"]]
    texts += [["T#T#many"], ["T#T#batch"], ["T#k3"], [], ["T#T#half"], []]
    wanted = [(index_hash(text), place) for place, row in zip(places, texts, strict=True) for text in row]
    assert entries(path) == wanted
    assert verify(path).ok


def test_a_put_with_nothing_older_before_the_dispatcher_leaves_its_tags_to_the_dispatcher(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_still(path, **SIZES) as store:
        store.put("T", b"", 1)
        puts = [lambda: store.producer("T", 1, "bound").put(b""), lambda: store.put_many("T", [b""], 1, "many")[0]]
        places = []
        for put in puts:
            lab(store).step_dispatch()
            places.append(put().physical_offset)
            assert store.log.dispatched < store.log.written
        lab(store).step_dispatch()
    assert entries(path) == [(index_hash("T#T#bound"), places[0]), (index_hash("T#T#many"), places[1])]


def test_query_by_tag_finds_the_messages_of_a_topic_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SIZES) as store:
        for number in range(90):  # the index rolls
            store.put("AB"[number % 2], b"%d" % number, tags=["x", "Aa", "BB"][number % 3])
        store.put("A", b"a key that looks like tags", keys="T#x")
        for reader in (store, mqfast.StoreReader(path)):
            found = [bytes(message.body) for message in reader.query("A", tag="x", max_count=100)]
            assert found == [b"%d" % number for number in range(84, -1, -6)]
            # "Aa" and "BB" share a hash: each finds its own only.
            assert {message.tags for message in reader.query("A", tag="Aa")} == {"Aa"}
            assert len(reader.query("A", tag="BB", max_count=4)) == 4
            assert [bytes(message.body) for message in reader.query("A", "T#x")] == [b"a key that looks like tags"]
            assert reader.query("A", tag="y") == []
            newest = reader.query("A", tag="x", max_count=1)[0]
            assert reader.query("A", tag="x", begin_ms=newest.store_timestamp + 1) == []
            for arguments in ({}, {"key": "k", "tag": "t"}):
                with pytest.raises(UsageError, match="expected a key or a tag"):
                    reader.query("A", **arguments)
            with pytest.raises(UsageError, match="tag: expected str, found int"):
                reader.query("A", tag=5)


def test_an_index_without_tags_is_whole(tmp_path: Path) -> None:
    """As a release before 5.5 writes it, and with tags from some message on, as after an upgrade."""
    path = tmp_path / "store"
    with mqfast.open(path, **SIZES) as store:
        for number in range(30):
            store.put("T", b"%d" % number, tags="t", keys=f"k{number}")
    records = list(mqfast.StoreReader(path).scan())
    for file in (path / "index").iterdir():
        file.unlink()
    os_api = OsApi()
    file = IndexFile.create(os_api, str(path / "index" / "20260101000000000"), 16, 64)
    for number, message in enumerate(records):
        file.put(index_hash(f"T#k{number}"), message.physical_offset, message.store_timestamp)
    file.flush()
    file.close()
    report = verify(path)
    assert report.ok
    assert report.damages == []
    with mqfast.open(path, **SIZES) as store:
        assert store.query("T", tag="t") == []
        assert len(store.query("T", "k3")) == 1
        new = store.put("T", b"new", tags="t")
        assert [message.physical_offset for message in store.query("T", tag="t")] == [new.physical_offset]
    report = verify(path)
    assert report.ok
    assert report.damages == []
    # An entry that no record asks for is still damage.
    with mqfast.open(path, **SIZES) as store:
        lab(store).index.put("T", ["T#u"], new.physical_offset, new.store_timestamp)
    assert [damage.kind for damage in verify(path).damages] == ["index.entry"]


def test_tags_come_back_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SIZES) as store:
        for number in range(100):
            store.put("T", b"%d" % number, tags=f"t{number % 7}")
        store.flush()
        assert len(store.query("T", tag="t3", max_count=100)) == 14
        shutil.copytree(path, tmp_path / "killed")
    with mqfast.open(tmp_path / "killed", **SIZES) as store:
        assert not store.recovery.clean
        assert len(store.query("T", tag="t3", max_count=100)) == 14
    assert verify(tmp_path / "killed").ok


@pytest.mark.parametrize("off", ["indexFileWriteEnable", "messageIndexEnable"])
def test_without_the_index_a_tagged_put_has_its_unit_at_once(tmp_path: Path, off: str) -> None:
    with mqfast.open(tmp_path / "store", **SIZES, **{off: False}) as store:
        store.put("T", b"", tags="t")  # the first makes the queue
        store.get("T", 0, 0)
        for _ in range(20):
            result = store.put("T", b"", tags="t")
            assert store.log.dispatched == result.physical_offset + result.size
        assert not (tmp_path / "store" / "index").exists() or not list((tmp_path / "store" / "index").iterdir())
        with pytest.raises(UsageError, match="index_file_write_enable"):
            store.query("T", tag="t")


def test_reading_the_index_can_be_switched_off(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SIZES, indexFileReadEnable=False) as store:
        store.put("T", b"", keys="k")
        with pytest.raises(UsageError, match="index_file_read_enable"):
            store.query("T", "k")
    with mqfast.open(tmp_path / "store", **SIZES) as store:
        assert len(store.query("T", "k")) == 1


def test_the_bytes_are_those_of_the_reference(tmp_path: Path) -> None:
    os_api = OsApi()
    now = 1_700_000_000_000
    model = ModelStore(commit_log_bytes=1 << 16, consume_queue_bytes=2000, slots=16, entries=64)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SIZES) as store:
        for number in range(150):
            now += 700
            os_api.fix_clock(now)
            tag = ["x", "标签", None, "y"][number % 4]
            store.put("T", b"%d" % number, tags=tag)
            properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
            record = Record("T", b"%d" % number, properties=properties, born_timestamp=now, store_timestamp=now)
            model.put(record)
    assert model.differences(tmp_path / "store") == []
