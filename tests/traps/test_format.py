"""Traps 1 to 14: records, their properties and file names.

Room: tests/traps. Where a trap is a bug of RocketMQ the test says what we do instead. Formats:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import locale
import random
import re
import struct
import zlib
from pathlib import Path

import pytest
from golden_checks import names_of
from laboratory import bodies
from reference import Record, java_map_order
from traps.common import (
    SMALL,
    T0,
    as_killed,
    log_bytes,
    model_of_small,
    patch,
)

import mqfast
from mqfast import Message
from mqfast.errors import (
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLong,
    TopicTooLong,
)
from mqfast.store.base.os_api import OsApi


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
        assert store.get_by_offset(result.message_id).physical_offset == result.physical_offset
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
    os_api = OsApi()
    os_api.fix_clock(T0)
    overhead = 91 + 1
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
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
            assert store.get_by_offset(result.physical_offset).record_queue_offset == 0
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
            text = store.get_by_offset(result.physical_offset).properties_bytes.decode()
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
