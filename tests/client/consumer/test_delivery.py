"""Deliveries: every field of a record, bodies of each compression, and what a copy of one may do."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Record, encode_properties

from mqfast.client.delivery import Delivery, Source, decode_deliveries, decompressed
from mqfast.client.values import MessageQueue
from mqfast.errors import ConfigError, CorruptFile, FieldError, UsageError
from mqfast.message import SysFlag

QUEUE = MessageQueue("orders", "broker-a", 3)


def record(body: bytes = b"42", properties: dict[str, str] | None = None, **fields: Any) -> Record:
    given = {
        "queue_id": 3, "queue_offset": 7, "physical_offset": 4711, "born_timestamp": 11, "store_timestamp": 22,
        "born_host": ("10.0.0.1", 5000), "store_host": ("10.0.0.2", 10911), **fields,
    }  # fmt: skip
    return Record(given.pop("topic", "orders"), body, properties=encode_properties(properties or {}), **given)


def delivered(*records: Record, **source: Any) -> list[Delivery]:
    return decode_deliveries(b"".join(one.encode() for one in records), Source("broker-a", QUEUE, **source))


def test_every_field_of_a_message() -> None:
    properties = {"UNIQ_KEY": "7F0000010001", "TAGS": "new", "KEYS": "42 43", "colour": "blue"}
    (one,) = delivered(record(b'{"a": "\xc3\xa4"}', properties, flag=5, reconsume_times=2))
    assert (one.topic, one.tags, list(one.keys), one.properties) == ("orders", "new", ["42", "43"], properties)
    assert (one.body, one.text(), one.json()) == (b'{"a": "\xc3\xa4"}', '{"a": "ä"}', {"a": "ä"})
    assert one.msg_id == "7F0000010001"
    assert one.offset_msg_id == "0A00000200002A9F0000000000001267"
    assert (one.queue, one.queue_id, one.queue_offset, one.physical_offset) == (QUEUE, 3, 7, 4711)
    assert (one.reconsume_times, one.attempt, one.flag) == (2, 3, 5)
    assert (one.born_timestamp, one.born_host) == (11, "10.0.0.1:5000")
    assert (one.store_timestamp, one.store_host) == (22, "10.0.0.2:10911")
    assert one.transaction_id is None
    assert bytes(one.view) == one.body
    assert "orders/broker-a/3@7" in repr(one)


def test_without_a_key_of_the_producer_the_broker_s_id_names_the_message() -> None:
    (one,) = delivered(record())
    assert one.msg_id == one.offset_msg_id


def test_a_message_of_a_transaction_tells_its_id() -> None:
    (one,) = delivered(record(properties={"UNIQ_KEY": "AB", "TRAN_MSG": "true"}))
    assert one.transaction_id == "AB"


def test_a_query_by_key_gives_each_record_its_own_queue() -> None:
    found = decode_deliveries(record(topic="other", queue_id=9).encode(), Source("broker-b"))
    assert found[0].queue == MessageQueue("other", "broker-b", 9)


def test_a_retried_message_shows_the_topic_that_it_was_sent_to() -> None:
    again = record(topic="%RETRY%billing", properties={"RETRY_TOPIC": "orders"})
    assert delivered(again, retry_topic="%RETRY%billing")[0].topic == "orders"
    assert delivered(again)[0].topic == "%RETRY%billing"
    assert delivered(record(topic="%RETRY%billing"), retry_topic="%RETRY%billing")[0].topic == "%RETRY%billing"


@pytest.mark.parametrize(
    "topic, shown", [("MQ_INST_1%orders", "orders"), ("%DLQ%MQ_INST_1%billing", "%DLQ%billing"), ("orders", "orders")]
)
def test_the_namespace_is_not_shown(topic: str, shown: str) -> None:
    assert delivered(record(topic=topic), namespace="MQ_INST_1")[0].topic == shown


def compressed(kind: str, data: bytes) -> bytes:
    if kind == "lz4":
        return bytes(pytest.importorskip("lz4.frame").compress(data))
    if kind == "zstd":
        return bytes(pytest.importorskip("zstandard").ZstdCompressor(write_content_size=False).compress(data))
    return gzip.compress(data) if kind == "gzip" else zlib.compress(data)


@pytest.mark.parametrize(
    "kind, bits",
    [
        ("zlib", SysFlag.COMPRESSION_ZLIB),
        ("zlib", 0),
        ("gzip", 0),
        ("lz4", SysFlag.COMPRESSION_LZ4),
        ("zstd", SysFlag.COMPRESSION_ZSTD),
    ],
)
class TestCompressed:
    def test_the_body_is_the_producer_s_and_made_once(self, kind: str, bits: int) -> None:
        data = b"abc" * 4000
        packed = compressed(kind, data)
        (one,) = delivered(record(packed, sys_flag=SysFlag.COMPRESSED | bits))
        assert one.body == data
        assert one.body is one.body
        assert bytes(one.view) == packed

    @pytest.mark.parametrize("damage", ["cut", "other bytes", "nothing"])
    def test_a_damaged_body_is_an_error_of_the_body_alone(self, kind: str, bits: int, damage: str) -> None:
        packed = compressed(kind, bytes(range(256)) * 40)
        packed = {"cut": packed[:-5], "other bytes": b"\x99" * 40, "nothing": b""}[damage]
        (one,) = delivered(record(packed, {"TAGS": "new"}, sys_flag=SysFlag.COMPRESSED | bits))
        assert one.tags == "new"
        with pytest.raises(FieldError, match="body"):
            _ = one.body


def test_an_unknown_compression_is_named() -> None:
    (one,) = delivered(record(sys_flag=SysFlag.COMPRESSED | 0x700))
    with pytest.raises(FieldError, match="sysFlag: expected compression zlib, lz4 or zstd"):
        _ = one.body


@pytest.mark.parametrize(
    ("kind", "package", "flag"),
    [("lz4", "lz4", SysFlag.COMPRESSION_LZ4), ("zstd", "zstandard", SysFlag.COMPRESSION_ZSTD)],
)
def test_a_package_that_is_missing_is_named(
    kind: str, package: str, flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, f"{package}.frame"):
        monkeypatch.setitem(sys.modules, name, None)
    text = f"^body compressed by {kind}: expected the package {package}, found none: pip install {package}$"
    with pytest.raises(ConfigError, match=text):
        decompressed(memoryview(b"anything"), SysFlag.COMPRESSED | flag)


def test_many_messages_of_one_answer() -> None:
    found = delivered(*(record(b"%d" % i, queue_offset=i, topic="t" * (1 + i)) for i in range(140)))
    assert [(one.queue_offset, one.body) for one in found] == [(i, b"%d" % i) for i in range(140)]
    assert decode_deliveries(b"", Source("broker-a")) == []


def test_bytes_that_are_no_records_are_an_error() -> None:
    whole = record().encode()
    for wrong in (whole[:-1], b"\0" * 100, whole + b"\0\0\0\x04", whole[:90] + b"!" + whole[91:]):
        with pytest.raises(CorruptFile):
            decode_deliveries(wrong, Source("broker-a"))


@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_give_messages_or_an_error(noise: bytes, at: int) -> None:
    whole = record(b"x" * 50).encode()
    for data in (noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            for one in decode_deliveries(data, Source("broker-a")):
                assert one.queue
                assert one.properties is not None
                assert one.body is not None
                assert repr(one)
        except (CorruptFile, FieldError):
            pass


class Owner:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def ack(self, delivery: Delivery) -> None:
        self.said.append(("ack", delivery))

    def retry(self, delivery: Delivery, delay_level: int) -> None:
        self.said.append(("retry", delivery, delay_level))

    async def reply(self, delivery: Delivery, body: Any) -> Any:
        return ("reply", body)

    def reply_sync(self, delivery: Delivery, body: Any) -> Any:
        return ("reply_sync", body)


def test_ack_retry_and_reply_go_to_the_owner() -> None:
    owner = Owner()
    (one,) = delivered(record(), owner=owner)
    one.ack()
    one.retry(-1)
    assert owner.said == [("ack", one), ("retry", one, -1)]
    assert asyncio.run(one.reply(b"yes")) == ("reply", b"yes")
    assert one.reply_sync(b"yes") == ("reply_sync", b"yes")


@pytest.mark.parametrize("level", [-2, 19, 1.0, "3", True, None])
def test_a_delay_level_that_no_broker_knows_is_refused(level: Any) -> None:
    with pytest.raises(UsageError, match="delay_level: expected"):
        delivered(record(), owner=Owner())[0].retry(level)


def test_a_copy_in_another_process_has_all_fields_and_cannot_be_acknowledged() -> None:
    first, second = delivered(
        record(b"a" * 9, {"UNIQ_KEY": "AB", "RETRY_TOPIC": "orders"}, topic="%RETRY%billing"),
        record(zlib.compress(b"b" * 99), sys_flag=SysFlag.COMPRESSED, queue_offset=8),
        retry_topic="%RETRY%billing",
        owner=Owner(),
    )
    second.again = 2  # it was tried again without the broker
    copies = pickle.loads(pickle.dumps([first, second]))
    assert [(c.attempt, c.reconsume_times) for c in copies] == [(1, 0), (3, 2)]
    assert [(c.topic, c.body, c.queue, c.queue_offset) for c in copies] == [
        ("orders", b"a" * 9, QUEUE, 7),
        ("orders", b"b" * 99, QUEUE, 8),
    ]
    for act in (copies[0].ack, copies[0].retry, lambda: copies[0].reply_sync(b"x")):
        with pytest.raises(UsageError, match="expected a message of a running consumer"):
            act()
