"""Messages, hosts, ids, topics and system flags."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast import properties
from mqfast.errors import MessageIllegal, OffsetError, PropertiesTooLong, TopicTooLong
from mqfast.message import (
    Message,
    SysFlag,
    broker_accepts_topic,
    check_topic,
    decode_message_id,
    encode_message_id,
    format_host,
    join_keys,
    needs_version_2,
    parse_host,
)
from mqfast.store.base.results import GetMessageStatus, PutMessageStatus

GOLDEN = Path(__file__).parent / "golden"

hosts = st.one_of(
    st.builds(lambda ip, port: f"{ip}:{port}", st.ip_addresses(v=4), st.integers(0, 65535)),
    st.builds(lambda ip, port: f"[{ip}]:{port}", st.ip_addresses(v=6), st.integers(0, 65535)),
)


@given(hosts, st.integers(0, 2**63 - 1))
def test_host_and_message_id_round_trip(host: str, physical_offset: int) -> None:
    data = parse_host(host)
    assert len(data) == (20 if host.startswith("[") else 8)
    assert parse_host(format_host(data)) == data
    text = encode_message_id(host, physical_offset)
    found = decode_message_id(text.lower())
    assert parse_host(found.store_host) == data
    assert found.physical_offset == physical_offset


def test_trap_port_takes_four_bytes() -> None:
    assert parse_host("192.168.0.1:10911").hex() == "c0a8000100002a9f"
    assert parse_host("[::1]:77").hex() == "00" * 15 + "01" + "0000004d"
    assert encode_message_id("192.168.0.1:10911", 0) == "C0A8000100002A9F0000000000000000"


def test_ready_bytes_pass_and_odd_ports_print() -> None:
    assert parse_host(b"\x01\x02\x03\x04\x00\x00\x00\x05") == b"\x01\x02\x03\x04\x00\x00\x00\x05"
    assert format_host(b"\x01\x02\x03\x04\xff\xff\xff\xff") == "1.2.3.4:-1"
    for length in (0, 7, 9, 16, 21):
        with pytest.raises(MessageIllegal, match=f"found {length}"):
            parse_host(bytes(length))
        with pytest.raises(MessageIllegal):
            format_host(bytes(length))


@pytest.mark.parametrize(
    "host",
    ["", "1.2.3.4", "1.2.3.4:", "1.2.3:1", "1.2.3.256:1", "1.2.3.4:65536", "1.2.3.4:-1", "::1:80", "[::1]",
     "[::g]:1", "[fe80::1%eth0]:1",
     "localhost:1", "1.2.3.4:١", "1.2.3.4:00000000001", None, 5],
)  # fmt: skip
def test_bad_hosts_are_refused(host: object) -> None:
    with pytest.raises(MessageIllegal, match="host: expected"):
        parse_host(host)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "x" * 32, "00 " * 10 + "00", "0" * 16 + "F" * 16, None, 5])
def test_bad_message_ids_are_refused(text: object) -> None:
    with pytest.raises(OffsetError, match="expected"):
        decode_message_id(text)  # type: ignore[arg-type]


def test_message_id_refuses_a_bad_offset() -> None:
    for offset in (-1, 2**63):
        with pytest.raises(OffsetError, match="physical offset"):
            encode_message_id("1.2.3.4:5", offset)


@pytest.mark.parametrize("case", ["golden-5.3.3/normal-clean", "golden-5.3.3/ipv6", "golden-4.9.7/normal-clean"])
def test_message_ids_of_real_brokers(case: str) -> None:
    rows = json.loads((GOLDEN / case / "expected.json").read_text())["messages"]
    assert rows
    for row in rows:
        address, _, port = row["storeHost"].rpartition("|")
        host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        assert encode_message_id(host, row["physicalOffset"]) == row["msgId"]
        assert decode_message_id(row["msgId"]).physical_offset == row["physicalOffset"]


def test_topic_limits() -> None:
    assert check_topic("t" * 127) == b"t" * 127
    with pytest.raises(TopicTooLong, match="expected at most 127 bytes, found 128"):
        check_topic("t" * 128)
    with pytest.raises(TopicTooLong, match="found 129"):
        check_topic("é" * 64 + "t")
    retry = "%RETRY%" + "g" * 248
    assert len(check_topic(retry)) == 255
    with pytest.raises(TopicTooLong, match="expected at most 255 bytes, found 256"):
        check_topic(retry + "g")


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "/", "a\0b", "\ud800", None, b"t"])
def test_topics_that_are_no_directory_name_are_refused(topic: object) -> None:
    with pytest.raises(MessageIllegal):
        check_topic(topic)  # type: ignore[arg-type]


def test_trap_version_follows_the_character_count() -> None:
    assert not needs_version_2("t" * 127)
    assert needs_version_2("t" * 128)
    # 64 characters beyond U+FFFF are 128 UTF-16 units.
    assert needs_version_2("😀" * 64)
    assert not needs_version_2("é" * 127)


def test_what_a_broker_accepts() -> None:
    assert broker_accepts_topic("Order_Events-1|x%")
    assert broker_accepts_topic("%DLQ%" + "g" * 250)
    for bad in ("", "a.b", "a@b", "é", "t" * 128, "%RETRY%" + "g" * 249):
        assert not broker_accepts_topic(bad)


def test_sys_flag_helpers() -> None:
    assert SysFlag.transaction(0x3FD) == SysFlag.TRANSACTION_ROLLBACK
    assert SysFlag.with_transaction(0x10F, SysFlag.TRANSACTION_COMMIT) == 0x10B
    assert [SysFlag.is_queued(t) for t in (0, 4, 8, 12)] == [True, False, True, False]
    assert [SysFlag.compression(f) for f in (0x300, 0x001, 0x101, 0x201, 0x301, 0x401)] == [
        None,
        "zlib",
        "lz4",
        "zstd",
        "zlib",
        "unknown",
    ]
    v4, v6 = bytes(8), bytes(20)
    # An inherited IPv6 bit with an IPv4 host would shift every later field.
    assert SysFlag.with_hosts(0x31, v4, v4) == 0x01
    assert SysFlag.with_hosts(0x01, v6, v4) == 0x11
    assert SysFlag.with_hosts(0x01, v4, v6) == 0x21


def test_message_properties() -> None:
    assert Message("T", b"x").encoded_properties() == b""
    assert properties.decode(
        Message("T", b"x", tags="A", keys=["k1", "k2"], properties={"n": 1}).encoded_properties()
    ) == {
        "TAGS": "A",
        "KEYS": "k1 k2",
        "n": "1",
    }
    assert Message("T", b"x", wait_store_ok=False).encoded_properties() == b"WAIT\x01false\x02"
    assert Message("T", b"x", properties=b"any\x01thing\x02").encoded_properties() == b"any\x01thing\x02"
    assert Message("T", b"x", tags="A", properties={"TAGS": "A"}).encoded_properties() == b"TAGS\x01A\x02"
    assert Message("T", b"x", tags="", keys="").encoded_properties() == b""


def test_messages_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(MessageIllegal, match="TAGS: expected one value, found 'A' and, in the properties, 'B'"):
        Message("T", b"x", tags="A", properties={"TAGS": "B"}).encoded_properties()
    with pytest.raises(MessageIllegal, match="inside the ready bytes"):
        Message("T", b"x", tags="A", properties=b"").encoded_properties()
    with pytest.raises(MessageIllegal, match="found int"):
        Message("T", b"x", tags=5).encoded_properties()  # type: ignore[arg-type]
    with pytest.raises(MessageIllegal, match="expected a mapping or bytes"):
        Message("T", b"x", properties=[1]).encoded_properties()  # type: ignore[arg-type]
    with pytest.raises(PropertiesTooLong, match="found 32768"):
        Message("T", b"x", properties=bytes(32768)).encoded_properties()


def test_keys() -> None:
    assert join_keys("a b") == "a b"
    assert join_keys(k for k in ("a", "b")) == "a b"
    for bad in (["a b"], [""], [5]):
        with pytest.raises(MessageIllegal, match="keys: expected"):
            join_keys(bad)  # type: ignore[arg-type]


def test_result_ordinals() -> None:
    assert [s.name for s in PutMessageStatus if s.is_stored] == [
        "PUT_OK",
        "FLUSH_DISK_TIMEOUT",
        "FLUSH_SLAVE_TIMEOUT",
        "SLAVE_NOT_AVAILABLE",
    ]
    assert (PutMessageStatus.WHEEL_TIMER_NOT_ENABLE, GetMessageStatus.OFFSET_RESET) == (15, 9)


def test_a_text_as_body_is_its_utf_8() -> None:
    assert Message("T", "h\u00e9").encoded_body() == b"h\xc3\xa9"
    body = bytearray(b"x")
    assert Message("T", body).encoded_body() is body
    with pytest.raises(MessageIllegal, match="UTF-8"):
        Message("T", "\ud800").encoded_body()


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"sharding_key": "customer-7"}, b"__SHARDINGKEY\x01customer-7\x02"),
        ({"sharding_key": ""}, b""),
        ({"delay_level": 3}, b"DELAY\x013\x02"),
        ({"delay_level": 0}, b""),
        ({"delay_s": 90}, b"TIMER_DELAY_MS\x0190000\x02"),
        ({"delay_s": 0.25}, b"TIMER_DELAY_MS\x01250\x02"),
        ({"delay_s": 0}, b""),
        ({"deliver_at": 1_700_000_000_123}, b"TIMER_DELIVER_MS\x011700000000123\x02"),
        ({"deliver_at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}, b"TIMER_DELIVER_MS\x011700000000000\x02"),
        ({"delay_level": 3, "properties": {"DELAY": "3"}}, b"DELAY\x013\x02"),
    ],
)
def test_key_and_delay_become_properties(fields: dict[str, Any], expected: bytes) -> None:
    assert Message("T", b"x", **fields).encoded_properties() == expected


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"delay_level": -1}, "delay_level: expected a level"),
        ({"delay_level": True}, "delay_level: expected a level"),
        ({"delay_level": "3"}, "delay_level: expected a level"),
        ({"delay_s": -0.1}, "delay_s: expected seconds"),
        ({"delay_s": float("nan")}, "delay_s: expected seconds"),
        ({"delay_s": "1"}, "delay_s: expected seconds"),
        ({"deliver_at": -1}, "deliver_at: expected a datetime"),
        ({"deliver_at": "2023-11-14"}, "deliver_at: expected a datetime"),
        ({"delay_level": 1, "delay_s": 1}, "delay_s: expected one delay, found it beside delay_level"),
        ({"delay_level": 1, "properties": {"DELAY": "2"}}, "DELAY: expected one value"),
        ({"sharding_key": 7}, "__SHARDINGKEY: expected str"),
        ({"sharding_key": "k", "properties": b"a\x01b\x02"}, "inside the ready bytes"),
    ],
)
def test_a_key_or_delay_that_is_none_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(MessageIllegal, match=match):
        Message("T", b"x", **fields).encoded_properties()
