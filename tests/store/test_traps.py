"""Every trap of the store format that concerns the store, one test each, named after it.

Where a trap is a bug of RocketMQ the test says what we do instead. Formats: ``mqfast/store/FORMAT.md``.

Left to later rooms: 39 and 42 (replication), 44 to 53 (delays, timer, transactions), 57 to 60 (replication). Of 36 only
the master's side is here.
"""

from __future__ import annotations

import json
import locale
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, copy_of, golden_cases
from golden_checks import files_of, names_of, read_queue
from reference import DELAYS_MS, FILLER_SIZE, ModelStore, Record, encode_properties, java_map_order, jhash, unit

import mqfast
from mqfast import Message
from mqfast.errors import (
    CorruptFile,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLong,
    StoreLocked,
    TopicTooLong,
)
from mqfast.store._os import OsDoor

ENGINE = GOLDEN / "golden-engine"
SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 16,
    "maxIndexNum": 12,
}
T0 = 1_700_000_000_000
EVER = 2**63 - 1


def model_of_small(**more: Any) -> ModelStore:
    return ModelStore(commit_log_bytes=4096, consume_queue_bytes=200, slots=16, entries=12, **more)


def as_killed(directory: Path, target: Path) -> Path:
    """Copy an open store as a kill of its process would leave it."""
    shutil.copytree(directory, target)
    assert (target / "abort").exists()
    return target


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((directory / "commitlog").iterdir()))


def queue_bytes(directory: Path, topic: str, queue_id: int = 0) -> bytes:
    folder = directory / "consumequeue" / topic / str(queue_id)
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def bodies(store: Any, topic: str, queue_id: int = 0, at: int = 0, **options: Any) -> list[bytes]:
    return [bytes(message.body) for message in read_queue(store, topic, queue_id, at, **options)]


# --- format -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("born", ["10.1.2.3:65535", "[2001:db8::7]:65535"])
@pytest.mark.parametrize("stored", ["192.168.0.1:10911", "[fe80::1]:1"])
def test_trap_01_ports_have_four_bytes_and_hosts_move_everything_behind_them(
    tmp_path: Path, born: str, stored: str
) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        # Bits that the caller inherited from other hosts must not survive.
        result = store.put("T", b"body", born_host=born, store_host=stored, sys_flag=0x30, tags="A", keys="k")
        (message,) = store.get("T", 0, 0)
        assert (message.born_host, message.store_host) == (born, stored)
        assert (bytes(message.body), message.tags) == (b"body", "A")
        assert message.sys_flag == 0x10 * (born[0] == "[") | 0x20 * (stored[0] == "[")
        assert message.store_timestamp == result.store_timestamp
        assert len(result.message_id) == (56 if stored[0] == "[" else 32)
        assert store.look(result.message_id).physical_offset == result.physical_offset
        assert store.offset_by_time("T", 0, result.store_timestamp) == 0
    data = log_bytes(tmp_path / "store")
    width = 16 if born[0] == "[" else 4
    assert struct.unpack_from(">i", data, 48 + width) == (65535,)


def test_trap_02_checksums_have_31_bits_and_the_property_stores_its_digits_backwards(tmp_path: Path) -> None:
    body = next(b"%d" % i for i in range(100) if zlib.crc32(b"%d" % i) >> 31)
    with mqfast.open(tmp_path / "store", enabledAppendPropCRC=True, **SMALL) as store:
        result = store.put("T", body, tags="A", sys_flag=0x1)  # "compressed": the checksum is of what is stored
        (message,) = store.get("T", 0, 0)
        assert message.body_crc == zlib.crc32(body) & 0x7FFFFFFF
        assert message.check_crc()
        digits = message.properties["__CRC32#"]
    record = log_bytes(tmp_path / "store")[: result.size]
    assert record.endswith(b"__CRC32#\x01" + digits.encode() + b"\x02")
    assert int(digits[::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF
    assert len(digits) == 10
    with mqfast.open(tmp_path / "store", enabledAppendPropCRC=True, forceVerifyPropCRC=True, **SMALL) as store:
        assert store.max_offset("T", 0) == 1


def test_trap_03_topic_and_properties_lengths_are_signed(tmp_path: Path) -> None:
    retry = "%RETRY%" + "g" * 248
    big = {"mappedFileSizeCommitLog": 1 << 18}
    for with_crc, reserved in ((False, 0), (True, 20)):
        path = tmp_path / f"store{with_crc}"
        with mqfast.open(path, **SMALL | big, enabledAppendPropCRC=with_crc) as store:
            for topic in ("t" * 128, retry + "g", "标" * 43):
                with pytest.raises(TopicTooLong):
                    store.put(topic, b"")
            for too_long in (32768, 32768 - reserved):
                with pytest.raises(PropertiesTooLong):
                    store.put("T", b"", properties=b"p\x01" + b"v" * (too_long - 3) + b"\x02")
            assert store.max_physical_offset == 0
            text = b"p\x01" + b"v" * (32767 - reserved - 3) + b"\x02"
            store.put("T", b"", properties=text)
            store.put("t" * 127, b"x")
            store.put(retry, b"y")
            assert store.get("T", 0, 0)[0].properties_bytes[: len(text)] == text
            assert [store.get(topic, 0, 0)[0].magic for topic in ("t" * 127, retry)] == [0xDAA320A7, 0xDAA320AB]
        with mqfast.open(path, **SMALL | big, enabledAppendPropCRC=with_crc) as store:
            assert bodies(store, retry) == [b"y"]


@pytest.mark.parametrize("characters", [81, 127])
def test_trap_04_the_version_follows_characters_but_the_length_field_holds_bytes(
    tmp_path: Path, characters: int
) -> None:
    """RocketMQ takes version 1 for a topic of at most 127 characters and writes a negative length for its many bytes:
    a record that ends every scan. Ours is version 2 as soon as the bytes need it, which RocketMQ reads."""
    topic = "%RETRY%" + "é" * (characters - 7)
    assert 127 < len(topic.encode()) <= 255
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"before")
        store.put(topic, b"body")
        store.put_batch([Message(topic, b"element")])
        store.put("T", b"after")
        assert store.get(topic, 0, 0)[0].magic == 0xDAA320AB
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert bodies(store, "T") == [b"before", b"after"]
        assert bodies(store, topic) == [b"body", b"element"]


@pytest.mark.parametrize("wrong", [-1, 1])
def test_trap_05_a_size_that_disagrees_with_the_parts_is_damage(tmp_path: Path, wrong: int) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        results = [store.put("T", b"x" * 50) for _ in range(3)]
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    patch(killed / "commitlog" / f"{0:020}", results[1].physical_offset, struct.pack(">i", results[1].size + wrong))
    with mqfast.open(killed, **SMALL) as store:
        assert store.max_physical_offset == results[1].physical_offset
        assert store.max_offset("T", 0) == 1
        assert store.put("T", b"y").queue_offset == 1
        assert bodies(store, "T") == [b"x" * 50, b"y"]


@pytest.mark.parametrize("left", [9, 8, 7, 0])
def test_trap_06_eight_bytes_must_remain_behind_a_record(tmp_path: Path, left: int) -> None:
    model = model_of_small()
    door = OsDoor()
    door.fix_clock(T0)
    overhead = 91 + 1
    with mqfast.open(tmp_path / "store", door=door, **SMALL) as store:
        for body in (b"a" * (2000 - overhead), b"b" * (4096 - 2000 - left - overhead), b"c"):
            result = store.put("T", body)
            model.put(Record("T", body, born_timestamp=T0, store_timestamp=T0))
            if body[:1] == b"b":
                assert result.physical_offset == (2000 if left >= 8 else 4096)
    assert model.differences(tmp_path / "store", ("commitlog", "consumequeue")) == []
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert [body[:1] for body in bodies(store, "T")] == [b"a", b"b", b"c"]


def test_trap_06_the_roll_of_a_batch_is_cumulative(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x" * 3500)
        results = list(store.put_batch([Message("T", b"y" * 100) for _ in range(3)]))
        assert [result.physical_offset for result in results] == [4096 + i * results[0].size for i in range(3)]


def test_trap_07_message_longer_than_a_log_file(tmp_path: Path) -> None:
    """RocketMQ answers PUT_OK with a failed append inside, and burns a file."""
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"first")
        before, puts = log_bytes(tmp_path / "store").rstrip(b"\0"), store.stats()["puts"]
        most = 4096 - 8 - 92
        for put in (
            lambda: store.put("T", bytes(most + 1)),
            lambda: store.put_many("T", [b"x", bytes(most + 1)]),
            lambda: store.put_batch([Message("T", bytes(most // 2)) for _ in range(3)]),
            lambda: store.put("T", bytes(most + 1), properties={"a": "b"}),
            lambda: store.producer("T").put(bytes(most + 1)),
        ):
            with pytest.raises(MessageTooLarge):
                put()
        assert log_bytes(tmp_path / "store").rstrip(b"\0") == before
        assert store.stats()["puts"] == puts
        assert store.put("T", bytes(most)).physical_offset == 4096


@pytest.mark.parametrize("tail", [b"", bytes(4) + struct.pack(">I", 0xDAA320A7), bytes(4) + struct.pack(">I", 1)])
def test_trap_08_zeros_are_no_blank_and_a_size_of_zero_ends_the_scan(tmp_path: Path, tail: bytes) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        result = store.put("T", b"x")
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    end = result.physical_offset + result.size
    patch(killed / "commitlog" / f"{0:020}", end, tail)
    with mqfast.open(killed, **SMALL) as store:
        assert store.max_physical_offset == end
        assert store.recovery.records == 1
        assert store.put("T", b"y").physical_offset == end


def test_trap_09_prepared_and_rollback_records_have_no_queue_offset(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"0")
        for kind in (0x4, 0xC):
            result = store.put("T", b"none", sys_flag=kind, keys=f"k{kind}")
            assert result.queue_offset == 0
            assert store.look(result.physical_offset).record_queue_offset == 0
        assert store.put("T", b"1", sys_flag=0x8, prepared_transaction_offset=7).queue_offset == 1
        assert bodies(store, "T") == [b"0", b"1"]
        assert store.get("T", 0, 1)[0].prepared_transaction_offset == 7
        assert [len(store.query("T", f"k{kind}")) for kind in (0x4, 0xC)] == [1, 0]  # rollbacks are not indexed
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert bodies(store, "T") == [b"0", b"1"]


def test_trap_10_properties_stand_in_the_order_of_javas_hash_map(tmp_path: Path) -> None:
    names = [f"name-{i}" for i in range(60)] + ["WAIT", "UNIQ_KEY", "CLUSTER", "标签"]
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for seed in range(3):
            random.Random(seed).shuffle(names)
            result = store.put("T", b"", tags="A", properties=dict.fromkeys(names, "v"))
            text = store.look(result.physical_offset).properties_bytes.decode()
            assert [pair.split("\x01")[0] for pair in text.split("\x02")[:-1]] == java_map_order([*names, "TAGS"])


def test_trap_11_empty_values_are_written_but_not_read(tmp_path: Path) -> None:
    """RocketMQ stores a pair that no reader sees. A mapping with one is refused; ready bytes are the caller's."""
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for properties in ({"a": ""}, {"": "a"}):
            with pytest.raises(MessageIllegal):
                store.put("T", b"", properties=properties)
        raw = b"a\x01\x02\x01b\x02c\x01d\x02TAGS\x01\x02c\x01e"
        store.put("T", b"", properties=raw)
        (message,) = store.get("T", 0, 0)
        assert (message.properties_bytes, message.properties, message.tags) == (raw, {"c": "e"}, None)


def test_trap_12_a_batch_element_without_last_separator_keeps_its_last_value(tmp_path: Path) -> None:
    """With the record checksum RocketMQ's batch path fuses that value with ``__CRC32#``; ours sets the separator."""
    settings = SMALL | {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
    with mqfast.open(tmp_path / "store", **settings) as store:
        store.put_batch([Message("T", b"%d" % i, properties=b"a\x01b") for i in range(2)])
        store.put("T", b"2", properties=b"a\x01b")
    with mqfast.open(tmp_path / "store", **settings) as store:
        for message in store.get("T", 0, 0):
            assert message.properties.keys() == {"a", "__CRC32#"}
            assert message.properties["a"] == "b"
    plain = tmp_path / "plain"
    with mqfast.open(plain, **SMALL) as store:  # without it the bytes stay as they are
        store.put_batch([Message("T", b"", properties=b"a\x01b")])
        assert store.get("T", 0, 0)[0].properties_bytes == b"a\x01b"


def test_trap_13_wait_is_stored(tmp_path: Path) -> None:
    settings = SMALL | {"enableLmq": True, "enableMultiDispatch": True}
    with mqfast.open(tmp_path / "store", **settings) as store:
        store.put("T", b"", wait_store_ok=False)
        store.put("T", b"", properties={"WAIT": "true"})
        store.put("T", b"", properties={"WAIT": "true", "INNER_MULTI_DISPATCH": "%LMQ%a"})  # as golden `lmq` has it
        assert [message.properties["WAIT"] for message in store.get("T", 0, 0)] == ["false", "true", "true"]


def test_trap_14_file_names_are_ascii_digits_in_every_locale(tmp_path: Path) -> None:
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("ar_EG.UTF-8", "fa_IR.UTF-8", "hi_IN", "C.UTF-8"):
            try:
                locale.setlocale(locale.LC_ALL, name)
                break
            except locale.Error:
                continue
        with mqfast.open(tmp_path / "store", **SMALL) as store:
            for i in range(40):
                store.put("T", b"x" * 400, keys=f"k{i}")
    finally:
        locale.setlocale(locale.LC_ALL, before)
    names = names_of(tmp_path / "store")
    assert len(names) > 12
    for name in names:
        assert re.fullmatch(r"index/[0-9]{17}|commitlog/[0-9]{20}|consumequeue/T/0/[0-9]{20}", name), name


# --- queues and index -------------------------------------------------------------------------------------------------


def test_trap_15_tags_are_hashed_as_java_does_and_compared_by_their_text(tmp_path: Path) -> None:
    tags = ["TagA", "标签", "\U0001f600", "polygenelubricants", "Aa", "BB", "A B"]
    with mqfast.open(tmp_path / "store", **SMALL | {"mappedFileSizeConsumeQueue": 20 * 40}) as store:
        for tag in tags:
            store.put("T", tag.encode(), tags=tag)
            store.put("T", tag.encode(), properties={"TAGS": tag})  # the other way through the put path
        assert [unit[2] for unit in units_of(store, "T")] == [jhash(tag) for tag in tags for _ in range(2)]
        assert jhash("\U0001f600") == 1772899
        assert jhash("Aa") == jhash("BB")
        for tag in tags:
            assert bodies(store, "T", tags=tag) == [tag.encode()] * 2  # RocketMQ's store lets hash twins pass
        assert bodies(store, "T", tags=" 标签 || Aa ") == ["标签".encode()] * 2 + [b"Aa"] * 2
        assert len(bodies(store, "T", tags="*")) == len(tags) * 2
    assert struct.unpack_from(">q", queue_bytes(tmp_path / "store", "T"), 12 + 6 * 20) == (-(2**31),)


def units_of(store: Any, topic: str, queue_id: int = 0) -> list[Any]:
    store.max_offset(topic, queue_id)  # whatever is dispatched when somebody asks is there now
    queue = store._queues.get(topic, queue_id)
    return [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]


def test_trap_16_tags_code_of_a_delayed_message_is_its_delivery_time(tmp_path: Path) -> None:
    door = OsDoor()
    door.fix_clock(T0)
    with mqfast.open(tmp_path / "store", door=door, **SMALL) as store:
        for level in ("1", "18", "99", "0"):
            store.put("SCHEDULE_TOPIC_XXXX", b"", properties={"DELAY": level, "TAGS": "A"})
        store.put("T", b"", properties={"DELAY": "3", "TAGS": "A"})
        codes = [unit[2] for unit in units_of(store, "SCHEDULE_TOPIC_XXXX")]
        assert codes == [T0 + DELAYS_MS[0], T0 + DELAYS_MS[17], T0 + DELAYS_MS[17], jhash("A")]
        assert codes[0] > 1 << 40
        assert [unit[2] for unit in units_of(store, "T")] == [jhash("A")]
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    shutil.rmtree(killed / "consumequeue")
    with mqfast.open(killed, **SMALL) as store:  # recovery must know the delay levels too (4.9.7 does not)
        assert [unit[2] for unit in units_of(store, "SCHEDULE_TOPIC_XXXX")] == codes


def test_trap_17_fillers_are_no_messages(tmp_path: Path) -> None:
    """RocketMQ reports min offset 7 before and 6 after a restart, and takes fillers for the end of the log."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        store.put("Other", b"x")
        store._queues.head("T", 0).next_offset = 7
        assert store.put("T", b"seven").queue_offset == 7
        assert (store.max_offset("T", 0), store.min_offset("T", 0)) == (8, 7)
        assert store.get("T", 0, 0).status.name == "OFFSET_TOO_SMALL"
    assert queue_bytes(path, "T")[:140] == unit(0, FILLER_SIZE, 0) * 7
    for _ in range(2):
        with mqfast.open(path, **SMALL) as store:
            assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (7, 8)
            assert store.get("T", 0, 0).next_offset == 7
            assert bodies(store, "T", at=7) == [b"seven"]
            assert store.offset_by_time("T", 0, 0, "LOWER") == 7
            assert store.offset_by_time("T", 0, EVER, "UPPER") == 7


def test_trap_17_a_queue_of_fillers_only_takes_new_units(tmp_path: Path) -> None:
    """The queue of that store recovered with maxPhysicOffset 2147483647, and ignored what was put after it."""
    shutil.copytree(ENGINE / "data6_L", tmp_path / "store")
    raw = queue_bytes(tmp_path / "store", "TF")
    fillers = raw.count(unit(0, FILLER_SIZE, 0))
    assert fillers
    assert raw.replace(unit(0, FILLER_SIZE, 0), b"").strip(b"\0") == b""
    settings = SMALL | {"mappedFileSizeCommitLog": 1024, "mappedFileSizeConsumeQueue": 100}
    settings |= {"maxHashSlotNum": 10, "maxIndexNum": 8}
    with mqfast.open(tmp_path / "store", **settings) as store:
        log = [store.look(offset) for offset in record_starts(store)]
        waiting = [message for message in log if message.topic == "TF"]
        result = store.put("TF", b"new")
        found = list(read_queue(store, "TF", 0, store.min_offset("TF", 0)))
        assert bytes(found[-1].body) == b"new"
        assert found[-1].physical_offset == result.physical_offset
        assert len(found) == len(waiting) + 1


def record_starts(store: Any) -> list[int]:
    starts, at = [], store.min_physical_offset
    while at < store.max_physical_offset:
        try:
            message = store.look(at)
        except CorruptFile:  # a blank
            at += 1024 - at % 1024
            continue
        starts.append(at)
        at += message.size
    return starts


def test_trap_18_the_place_of_a_unit_is_the_queue_offset(tmp_path: Path) -> None:
    """Records 0, 1, 5, 6: units still stand one behind the other, and what is served is where they stand."""
    model = model_of_small()
    for offset in (0, 1, 5, 6):
        model.put(Record("T", b"%d" % offset, born_timestamp=T0, store_timestamp=T0), offset)
    model.dump(tmp_path / "store")
    shutil.rmtree(tmp_path / "store/consumequeue")
    (tmp_path / "store/abort").touch()
    for _ in range(2):
        with mqfast.open(tmp_path / "store", **SMALL) as store:
            found = store.get("T", 0, 0)
            assert [(m.queue_offset, m.record_queue_offset) for m in found] == [(0, 0), (1, 1), (2, 5), (3, 6)]
            assert (found.next_offset, store.max_offset("T", 0)) == (4, 4)
            assert [bytes(m.body) for m in store.get("T", 0, 2)] == [b"5", b"6"]
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.put("T", b"next").queue_offset == 4
        assert store.get("T", 0, 4)[0].record_queue_offset == 4


@pytest.mark.parametrize("name", ["normal-clean", "batch-cq"])
def test_trap_19_dispatching_again_repeats_no_unit(tmp_path: Path, name: str) -> None:
    (case,) = golden_cases("5.3.3", (name,))
    directory = copy_of(case, tmp_path)
    before = {n: d for n, d in files_of(directory).items() if "consumequeue" in n}
    (directory / "abort").touch()
    (directory / "checkpoint").unlink()  # dispatch everything
    with mqfast.open(directory, **case.settings) as store:
        assert store.recovery.start == 0
    assert {n: d for n, d in files_of(directory).items() if "consumequeue" in n} == before


def fill(store: Any, count: int, **more: Any) -> list[Any]:
    return [store.put("T", b"%03d" % i + b"x" * 400, keys=f"k{i}", **more) for i in range(count)]


def clean(store: Any) -> int:
    """Delete what is old enough, whatever the hour; returns how many log files went."""
    store.flush()
    store.log.reap()
    assert store.max_offset("T", 0)  # dispatched
    store._retention._manual_runs = 1
    return int(store.retention.run_once(store.door.now_ms()))


def age(directory: Path, hours: float, only: int | None = None) -> None:
    for path in sorted((directory / "commitlog").iterdir())[:only]:
        at = time.time() - hours * 3600
        os.utime(path, (at, at))


def test_trap_20_files_go_first_and_then_the_min_offset_is_corrected(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        results = fill(store, 60)
        age(tmp_path / "store", 100, only=4)
        assert clean(store) == 4
        first = next(result for result in results if result.physical_offset >= 4 * 4096)
        assert store.min_physical_offset == 4 * 4096
        assert store.min_offset("T", 0) == first.queue_offset > 20  # more than two queue files on
        assert store.get("T", 0, 0).next_offset == first.queue_offset
        assert [m.queue_offset for m in read_queue(store, "T", 0, first.queue_offset)] == list(
            range(first.queue_offset, 60)
        )
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.min_offset("T", 0) == first.queue_offset


def test_trap_21_queue_sizes_round_up_and_other_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL | {"mappedFileSizeConsumeQueue": 190}) as store:
        fill(store, 12)
    files = sorted((path / "consumequeue/T/0").iterdir())
    assert [(file.name, file.stat().st_size) for file in files] == [(f"{0:020}", 200), (f"{200:020}", 200)]
    with mqfast.open(path, **SMALL | {"mappedFileSizeConsumeQueue": 190}) as store:
        assert store.max_offset("T", 0) == 12
    for victim in (files[1], path / "commitlog" / f"{4096:020}"):
        data = victim.read_bytes()
        victim.write_bytes(data[:-20])
        with pytest.raises(CorruptFile) as caught:
            mqfast.open(path, **SMALL)
        assert caught.value.path == str(victim)
        victim.write_bytes(data)


def test_trap_22_lower_and_upper_are_not_symmetric(tmp_path: Path) -> None:
    door = OsDoor()
    with mqfast.open(tmp_path / "store", door=door, **SMALL) as store:
        for step in (0, 3, 24, 24, 45, 45, 66, 68):
            door.fix_clock(T0 + step)
            store.put("T", b"")
        asked = {
            at: [store.offset_by_time("T", 0, T0 + at, boundary) for boundary in ("LOWER", "UPPER")]
            for at in (23, 24, 25, 69, -1)
        }
        assert asked == {23: [2, 1], 24: [2, 3], 25: [4, 3], 69: [8, 7], -1: [0, 0]}
        assert store.offset_by_time("Nothing", 0, T0, "LOWER") == 0


def index_files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / "index").iterdir())]


def test_trap_23_index_entries_count_from_one(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for i in range(11):
            store.put("T", b"", keys=f"k{i}")
        assert store.max_offset("T", 0) == 11
        assert len(store._index.files) == 1  # 12 entries hold 11 keys
        store.put("T", b"", keys="k11")
        assert store.max_offset("T", 0) == 12
        assert len(store._index.files) == 2
        for i in range(12):
            assert [m.queue_offset for m in store.query("T", f"k{i}")] == [i]
    first, second = index_files(tmp_path / "store")
    assert [struct.unpack_from(">i", data, 36) for data in (first, second)] == [(12,), (2,)]
    assert first[40 + 16 * 4 :][:20] == bytes(20)


def test_trap_24_the_first_entry_of_a_follow_up_file_is_measured_from_the_file_before(tmp_path: Path) -> None:
    door, model = OsDoor(), model_of_small()
    with mqfast.open(tmp_path / "store", door=door, **SMALL) as store:
        for i in range(12):
            now = T0 + i * 5000
            door.fix_clock(now)
            store.put("T", b"", keys=f"k{i}")
            keys = encode_properties({"KEYS": f"k{i}"})
            model.put(Record("T", properties=keys, born_timestamp=now, store_timestamp=now))
        assert [m.queue_offset for m in store.query("T", "k11")] == [11]
        assert [m.queue_offset for m in store.query("T", "k11", begin_ms=T0 + 54000, end_ms=T0 + 70000)] == [11]
    assert model.differences(tmp_path / "store") == []
    assert struct.unpack_from(">i", index_files(tmp_path / "store")[1], 40 + 16 * 4 + 20 + 12) == (5,)


def test_trap_25_the_hash_without_a_positive_twin_is_zero(tmp_path: Path) -> None:
    assert jhash("T#wvrrqpotyhba") == jhash("T#szmqdhzposrz") == -(2**31)
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"", keys="wvrrqpotyhba")
        store.put("T", b"", keys="szmqdhzposrz")
        assert [m.queue_offset for m in store.query("T", "wvrrqpotyhba")] == [0]
        assert [m.queue_offset for m in store.query("T", "szmqdhzposrz")] == [1]
    (data,) = index_files(tmp_path / "store")
    assert struct.unpack_from(">i", data, 40) == (2,)  # slot 0 holds the newest of the chain
    assert struct.unpack_from(">i", data, 40 + 16 * 4 + 20) == (0,)


def test_trap_26_hash_twins_are_told_apart_by_the_message(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"", keys="Aa")
        store.put("T", b"", keys=["x", "BB"])
        store.put("T", b"", properties={"UNIQ_KEY": "AaAa"})
        store.put("T", b"", keys="BBBB")
        assert store.max_offset("T", 0) == 4
        assert len(store._index.query("T", "Aa", 10, 0, EVER).physical_offsets) == 2
        keys = ("Aa", "BB", "AaAa", "BBBB", "AaBB", "A")
        found = {key: [m.queue_offset for m in store.query("T", key)] for key in keys}
        assert found == {"Aa": [0], "BB": [1], "AaAa": [2], "BBBB": [3], "AaBB": [], "A": []}


def test_trap_27_no_key_is_lost_by_a_crash(tmp_path: Path) -> None:
    """RocketMQ drops the newest index file and rebuilds it only from the log file where recovery starts."""
    door = OsDoor()
    with mqfast.open(tmp_path / "store", door=door, **SMALL | {"maxIndexNum": 100}) as store:
        for i in range(40):
            door.fix_clock(T0 + i * 1000)
            store.put("T", b"%03d" % i + b"x" * 400, keys=f"k{i}")
        assert store.max_offset("T", 0) == 40
        store._flush.flush_log(thorough=True)
        store._flush.flush_queues()
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    with mqfast.open(killed, **SMALL | {"maxIndexNum": 100}) as store:
        assert store.recovery.removed_index_files
        assert store.recovery.start >= 4096  # several files before it were not walked for the queues' sake
        for i in range(40):
            assert [m.queue_offset for m in store.query("T", f"k{i}")] == [i]


def test_trap_28_keys_are_indexed_under_the_topic_of_the_record(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        parked = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0", "KEYS": "k", "UNIQ_KEY": "u"}
        store.put("SCHEDULE_TOPIC_XXXX", b"parked", properties=parked)
        assert [len(store.query("SCHEDULE_TOPIC_XXXX", key)) for key in ("k", "u")] == [1, 1]
        assert [len(store.query("T", key)) for key in ("k", "u")] == [0, 0]
        store.put("T", b"delivered", properties=parked)
        assert [[bytes(m.body) for m in store.query("T", key)] for key in ("k", "u")] == [[b"delivered"]] * 2


# --- recovery and life cycle ------------------------------------------------------------------------------------------


def test_trap_29_the_abort_file_alone_decides(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 5)
        assert (path / "abort").read_bytes() == str(os.getpid()).encode()
    assert not (path / "abort").exists()
    (path / "abort.bak").touch()
    (path / "compaction").mkdir()
    (path / "compaction/position-checkpoint").write_text('{"empty":true,"queueOffsetMap":{}}')
    end = store.recovery.end
    (path / "commitlog" / f"{4096:020}").write_bytes(bytes(4096))  # made ahead of need
    with mqfast.open(path, **SMALL) as store:
        assert store.recovery.clean
        assert store.max_offset("T", 0) == 5
    (path / "abort").write_bytes(b"")  # as 4.9.7 leaves it
    with mqfast.open(path, **SMALL) as store:
        assert not store.recovery.clean
        assert store.recovery.end > end == 0
    assert (path / "compaction/position-checkpoint").exists()


def test_trap_30_a_queue_that_is_one_unit_short_after_a_clean_stop_gets_it(tmp_path: Path) -> None:
    """RocketMQ leaves it short for ever, and later units shift down by one."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 8)
    for lost in (1, 3):
        patch(path / "consumequeue/T/0" / f"{0:020}", (8 - lost) * 20, bytes(20 * lost))
        with mqfast.open(path, **SMALL) as store:
            assert store.recovery.clean
            assert store.max_offset("T", 0) == 8
            assert [m.record_queue_offset for m in read_queue(store, "T", 0, 0)] == list(range(8))


def test_trap_31_a_log_without_files_leaves_no_queue(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 12)
    shutil.rmtree(path / "commitlog")
    with mqfast.open(path, **SMALL) as store:
        assert store.queues() == []
        assert store.query("T", "k1") == []
        result = store.put("T", b"new", keys="k1")
        assert (result.queue_offset, result.physical_offset) == (0, 0)
        assert [bytes(m.body) for m in store.query("T", "k1")] == [b"new"]
    with mqfast.open(path, **SMALL) as store:
        assert bodies(store, "T") == [b"new"]
        assert [bytes(m.body) for m in store.query("T", "k1")] == [b"new"]


def test_trap_32_the_confirm_offset_is_where_the_last_record_starts(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        last = fill(store, 12)[-1]
    with mqfast.open(path, **SMALL):
        pass
    assert struct.unpack_from(">q", (path / "checkpoint").read_bytes(), 32) == (last.physical_offset,)


def test_trap_33_recovery_starts_three_seconds_before_the_checkpoint(tmp_path: Path) -> None:
    door = OsDoor()
    with mqfast.open(tmp_path / "store", door=door, **SMALL) as store:
        for i in range(40):
            door.fix_clock(T0 + i * 1000)
            store.put("T", b"x" * 400)
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    first_of_file = {n: T0 + i * 1000 for n, i in ((0, 0), (1, 8), (2, 16), (3, 24), (4, 32))}
    for physic, logics, file in (
        (T0 + 40000, T0 + 40000, 4),
        (T0 + 35000, T0 + 40000, 4),
        (T0 + 34999, T0 + 40000, 3),
        (T0 + 40000, T0 + 27000, 3),
        (T0 + 40000, T0 + 26999, 2),
        (T0 + 40000, 0, 0),
    ):
        assert first_of_file[file] <= max(min(physic, logics) - 3000, T0)
        again = tmp_path / f"again{physic}{logics}"
        shutil.copytree(killed, again)
        (again / "checkpoint").write_bytes(struct.pack(">qq", physic, logics).ljust(4096, b"\0"))
        with mqfast.open(again, **SMALL) as store:
            assert store.recovery.start == file * 4096
            assert store.max_offset("T", 0) == 40


def test_trap_34_the_cut_removes_every_file_above_it(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        results = fill(store, 40)
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    victim = results[12]
    patch(killed / "commitlog" / f"{4096:020}", victim.physical_offset - 4096 + 90, b"?")
    names = sorted(path.name for path in (killed / "commitlog").iterdir())
    with mqfast.open(killed, **SMALL) as store:
        assert store.recovery.removed_log_files == names[:1:-1]
        assert store.max_physical_offset == victim.physical_offset
        assert store.max_offset("T", 0) == 12
        assert store.query("T", "k12") == store.query("T", "k39") == []
        assert [m.queue_offset for m in store.query("T", "k11")] == [11]
    # and what lay behind the cut in its own file is gone for good
    assert not log_bytes(killed)[victim.physical_offset :].strip(b"\0")
    (killed / "abort").touch()
    with mqfast.open(killed, **SMALL) as store:
        assert store.max_offset("T", 0) == 12


@pytest.mark.parametrize("clean", [True, False])
def test_trap_35_lost_queue_files_do_not_restart_the_offsets(tmp_path: Path, clean: bool) -> None:
    """After a clean stop RocketMQ would begin at 0 again."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 25)
    shutil.rmtree(path / "consumequeue")
    if not clean:
        (path / "abort").touch()
    with mqfast.open(path, **SMALL) as store:
        assert store.put("T", b"next").queue_offset == 25
        assert [m.queue_offset for m in read_queue(store, "T", 0, 0)] == list(range(26))


def test_trap_36_a_record_that_cannot_be_read_is_not_skipped_in_silence(tmp_path: Path) -> None:
    """RocketMQ's master drops the rest of the file from its queues, with a line in its own log."""
    path = tmp_path / "store"
    store = mqfast.open(path, **SMALL)
    with store._dispatcher.locked():
        fill(store, 2)
        bad = store.put("T", b"bad", keys="k")
        store.put("T", b"behind", keys="k")
        patch(path / "commitlog" / f"{0:020}", bad.physical_offset + 4, b"?")
    with pytest.raises(CorruptFile) as caught:
        store.get("T", 0, 0, max_count=10)
    assert caught.value.offset == bad.physical_offset
    assert str(bad.physical_offset) in store.stats()["dispatch_error"]
    with pytest.raises(CorruptFile):
        store.close()
    assert (path / "abort").exists()


def test_trap_37_the_lock_is_a_record_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    mqfast.open(path, **SMALL).close()
    holder = textwrap.dedent("""
        import fcntl, sys
        file = open(sys.argv[1], "r+b")
        fcntl.flock(file, fcntl.LOCK_EX) if sys.argv[2] == "flock" else fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        print("held", flush=True)
        sys.stdin.read()
    """)
    for kind in ("lockf", "flock"):
        command = [sys.executable, "-c", holder, str(path / "lock"), kind]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            if kind == "lockf":  # as a Java broker holds it
                with pytest.raises(StoreLocked):
                    mqfast.open(path, **SMALL)
            else:
                mqfast.open(path, **SMALL).close()
            child.communicate()
    mqfast.open(path, **SMALL).close()


# --- put path ---------------------------------------------------------------------------------------------------------


def test_trap_38_a_free_put_lock_is_never_busy(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", osPageCacheBusyTimeOutMills=1, **SMALL) as store:
        for _ in range(50):
            store.put("T", b"x")
            stats = store.stats()
            assert (stats["put_lock_held_ms"], stats["page_cache_busy"]) == (0, False)


SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <stdlib.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
int msync(void *address, size_t bytes, int flags)
{
    int (*real)(void *, size_t, int) = (int (*)(void *, size_t, int)) dlsym(RTLD_NEXT, "msync");
    if (access(getenv("SLOW_SYNC_WHEN"), F_OK) == 0)
        usleep(600000);
    return real(address, bytes, flags);
}
"""

TIMED_OUT = """
import sys, threading
import mqfast
path, gate = sys.argv[1:]
settings = {"mappedFileSizeCommitLog": 1 << 16, "flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 50}
with mqfast.open(path, **settings) as store:
    store.put("T", b"warm")
    open(gate, "w").close()
    results = []
    def put(body):
        results.append(store.put("T", body))
    threads = [threading.Thread(target=put, args=(b"%d" % i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush()
    names = sorted(result.status.name for result in results)
    found = sorted(bytes(message.body) for message in store.get("T", 0, 1))
    print(names.count("FLUSH_DISK_TIMEOUT") >= 1, set(names) <= {"PUT_OK", "FLUSH_DISK_TIMEOUT"},
          found == [b"0", b"1", b"2", b"3"], all(result.status.is_stored for result in results))
"""


def test_trap_40_a_message_whose_flush_timed_out_is_stored(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a slow msync with")
    (tmp_path / "slow.c").write_text(SLOW_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "slow.so", tmp_path / "slow.c", "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(tmp_path / "slow.so"), "SLOW_SYNC_WHEN": str(tmp_path / "gate")}
    command = [sys.executable, "-c", TIMED_OUT, str(tmp_path / "store"), str(tmp_path / "gate")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["True"] * 4, done
    with mqfast.open(tmp_path / "store") as store:
        assert store.max_offset("T", 0) == 5


def test_trap_41_with_sync_flush_readers_stop_at_the_flushed_position(tmp_path: Path) -> None:
    settings = SMALL | {"flushDiskType": "SYNC_FLUSH", "flushIntervalCommitLog": 60000}
    with mqfast.open(tmp_path / "store", **settings) as store:
        first = store.put("T", b"0")
        end = first.physical_offset + first.size
        ticket = store.put_nowait("T", b"1", keys="k")
        assert store.max_physical_offset == end
        assert store.max_offset("T", 0) == 1
        assert store.get("T", 0, 1).status.name == "OFFSET_OVERFLOW_ONE"
        assert store.query("T", "k") == []
        assert not ticket.done()
        assert ticket.wait(10)
        assert bodies(store, "T") == [b"0", b"1"]
        assert len(store.query("T", "k")) == 1


def test_trap_41_with_the_pool_readers_stop_at_the_committed_position(tmp_path: Path) -> None:
    settings = SMALL | {
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 2,
        "commitIntervalCommitLog": 60000,
        "dispatch": "background",
    }
    with mqfast.open(tmp_path / "store", **settings) as store:
        results = [store.put("T", b"%d" % i * 200) for i in range(3)]
        assert store.stats()["written_offset"] == results[-1].physical_offset + results[-1].size
        committed = store.stats()["committed_offset"]
        assert store.max_physical_offset == committed
        assert store.stats()["dispatched_offset"] <= committed
        store.log.commit()
        assert store.max_physical_offset == results[-1].physical_offset + results[-1].size
        store._dispatcher.step()
        assert [body[:1] for body in bodies(store, "T")] == [b"0", b"1", b"2"]


def test_trap_43_a_light_queue_message_may_be_as_large_as_any_other(tmp_path: Path) -> None:
    """RocketMQ limits these by the whole record, others by the body. Ours is the body for both; Java reads either."""
    settings = SMALL | {"enableLmq": True, "enableMultiDispatch": True, "maxMessageSize": 1000}
    with mqfast.open(tmp_path / "store", **settings) as store:
        for properties in ({}, {"INNER_MULTI_DISPATCH": "%LMQ%a"}):
            with pytest.raises(MessageTooLarge):
                store.put("T", bytes(1001), properties=properties)
            store.put("T", bytes(1000), properties=properties)
        assert [len(body) for body in bodies(store, "T")] == [1000, 1000]
        assert [len(body) for body in bodies(store, "%LMQ%a")] == [1000]


# --- metadata and retention -------------------------------------------------------------------------------------------


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
    assert '"T@fresh group":{3:77' in (directory / "config/consumerOffset.json").read_text()
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
    assert "{0:6" in main.read_text()
    assert "{0:5" in copy.read_text()
    main.write_text('{"offsetTable":{"T@g":{0:')
    with mqfast.open(path, **SMALL) as store:
        assert store.consumer_offsets.get("g", "T", 0) == 5
        assert any("consumerOffset.json" in warning for warning in store.stats()["warnings"])
    main.unlink()
    with mqfast.open(path, **SMALL) as store:  # the moment between the two renames of a save
        assert store.consumer_offsets.get("g", "T", 0) == 5


def test_trap_61_the_age_of_a_file_is_its_last_change(tmp_path: Path) -> None:
    path = tmp_path / "store"
    hour = time.localtime().tm_hour
    with mqfast.open(path, **SMALL, deleteWhen=f"{hour:02d}", fileReservedTime=72) as store:
        fill(store, 40)
        assert store.max_offset("T", 0) == 40
        store.flush()
        store.log.reap()
        now = store.door.now_ms()
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
