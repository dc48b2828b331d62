"""A message becomes what is sent: unique ids, property string, compressed body, frame, batch; and what is refused."""

from __future__ import annotations

import time
import zlib
from datetime import datetime
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mqfast import properties
from mqfast.client.producer.encode import Compressor, OwnMessage, Wire, batch_of, head_of, new_id, new_ids, prepared
from mqfast.errors import ConfigError, MessageIllegal, MessageTooLarge, PropertiesTooLong
from mqfast.message import Message
from mqfast.remoting.command import FrameDecoder, send_header

WIRE = Wire("producers", Compressor(4096))


# -- unique ids --------------------------------------------------------------------------------------------------------


def test_an_id_has_address_process_time_in_the_month_and_a_count() -> None:
    now = time.mktime((2026, 11, 26, 19, 0, 0, 0, 0, -1)) + 0.123
    ids = new_ids("10.1.2.3", clock=lambda: now)
    first, second = ids.next(), ids.next()
    begin = datetime(2026, 11, 1).timestamp()
    assert first.startswith("0A010203")
    assert len(first) == 32
    assert int(first[20:28], 16) == int(now * 1000) - int(begin * 1000)
    assert int(second[28:], 16) == (int(first[28:], 16) + 1) & 0xFFFF
    assert first[:28] == second[:28]


def test_the_time_begins_anew_each_month() -> None:
    clock = [time.mktime((2026, 12, 31, 23, 59, 59, 0, 0, -1)) + 0.9]
    ids = new_ids("10.1.2.3", clock=lambda: clock[0])
    before = int(ids.next()[20:28], 16)
    clock[0] += 0.2
    assert before == 31 * 86_400_000 - 100 or abs(before - (31 * 86_400_000 - 100)) <= 3_600_000
    assert int(ids.next()[20:28], 16) < 200


def test_an_id_of_an_ipv6_host_has_56_digits() -> None:
    text = new_ids("2001:db8::1").next()
    assert len(text) == 56
    assert text.startswith("20010DB8")


def test_no_id_comes_twice_when_the_clock_stands_or_goes_back() -> None:
    clock = [1_790_000_000.0]
    ids = new_ids("10.1.2.3", clock=lambda: clock[0])
    found = {ids.next() for _ in range(200_000)}
    clock[0] -= 3600
    found |= {ids.next() for _ in range(100_000)}
    clock[0] += 3600
    found |= {ids.next() for _ in range(100_000)}
    assert len(found) == 400_000


# -- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, {}),
        ({"tags": "new", "keys": "42"}, {"TAGS": "new", "KEYS": "42"}),
        ({"keys": ["a", "b"]}, {"KEYS": "a b"}),
        ({"tags": "", "keys": ""}, {}),
        ({"properties": {"n": 1, "yes": True}}, {"n": "1", "yes": "true"}),
        ({"properties": b"a\x01b\x02"}, {"a": "b"}),
        ({"sharding_key": "k"}, {"__SHARDINGKEY": "k"}),
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"delay_s": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        ({"wait_store_ok": False}, {"WAIT": "false"}),
        ({"tags": "h\u00e9"}, {"TAGS": "h\u00e9"}),
    ],
)
def test_message_attributes_become_properties(fields: dict[str, Any], expected: dict[str, str]) -> None:
    out = prepared(Message("T", b"x", **fields), WIRE)
    assert properties.decode(out.properties) == {"UNIQ_KEY": out.msg_id, **expected}


def test_an_id_that_the_client_gave_before_stays() -> None:
    out = prepared(OwnMessage("T", b"x", properties={"UNIQ_KEY": "mine"}), WIRE)
    assert out.msg_id == "mine"
    assert properties.decode(out.properties) == {"UNIQ_KEY": "mine"}


def test_the_message_is_not_changed() -> None:
    given = {"a": "b"}
    message = Message("T", bytearray(b"x"), properties=given)
    prepared(message, WIRE)
    assert given == {"a": "b"}
    assert message.body == b"x"


def test_encoded_body_does_not_change_with_the_buffer() -> None:
    body = bytearray(b"one")
    out = prepared(Message("T", body), WIRE)
    body[:] = b"two"
    assert out.body == b"one"


@pytest.mark.parametrize(
    "fields, kind, match",
    [
        ({"topic": 5}, MessageIllegal, "topic: expected str"),
        ({"topic": ""}, MessageIllegal, "topic: expected 1 to 127"),
        ({"topic": "a b"}, MessageIllegal, "topic: expected 1 to 127"),
        ({"topic": "x" * 128}, MessageIllegal, "found 128"),
        ({"topic": "%RETRY%" + "x" * 249}, MessageIllegal, "topic: expected 1 to 255"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, MessageIllegal, "the broker's own"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, MessageIllegal, "the broker's own"),
        ({"body": 5}, MessageIllegal, "body: expected bytes"),
        ({"body": b""}, MessageIllegal, "at least one byte"),
        ({"body": ""}, MessageIllegal, "at least one byte"),
        ({"body": "\ud800"}, MessageIllegal, "UTF-8"),
        ({"body": bytes((4 << 20) + 1)}, MessageTooLarge, "at most 4194304 bytes"),
        ({"tags": "a\x01b"}, MessageIllegal, r"U\+0001"),
        ({"keys": "a\x02b"}, MessageIllegal, r"U\+0001"),
        ({"tags": "\ud800"}, MessageIllegal, "UTF-8"),
        ({"tags": 7}, MessageIllegal, "expected str"),
        ({"properties": {"a": 1.5}}, MessageIllegal, "expected str, int or bool"),
        ({"properties": {"a": ""}}, MessageIllegal, "expected a name and a value"),
        ({"properties": [1]}, MessageIllegal, "properties: expected a mapping"),
        ({"tags": "x" * 32768}, PropertiesTooLong, "at most 32767"),
        ({"properties": {"a": "x" * 32768}}, PropertiesTooLong, "at most 32767"),
        ({"flag": 1 << 31}, MessageIllegal, "flag: expected a whole number of 32 bits"),
        ({"flag": "1"}, MessageIllegal, "flag: expected a whole number of 32 bits"),
        ({"queue_id": 1}, MessageIllegal, "queue= of send"),
        ({"sys_flag": 1}, MessageIllegal, "sys_flag: expected none"),
        ({"born_host": "1.2.3.4:5"}, MessageIllegal, "born_host: expected none"),
        ({"born_timestamp": "now"}, MessageIllegal, "born_timestamp: expected milliseconds"),
        ({"delay_level": 1, "delay_s": 1}, MessageIllegal, "expected one delay"),
    ],
)
def test_invalid_messages_are_refused(fields: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        prepared(Message(**{"topic": "T", "body": b"x", **fields}), WIRE)


def test_something_that_is_no_message_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="expected a Message, found str"):
        prepared("T", WIRE)  # type: ignore[arg-type]


def test_a_body_of_the_limit_is_sent() -> None:
    assert len(prepared(Message("T", bytes(4 << 20)), Wire("g", Compressor(None))).body) == 4 << 20


# -- compression -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, flags, back",
    [
        ("zlib", 0x301, zlib.decompress),
        ("lz4", 0x101, lz4.frame.decompress),
        ("zstd", 0x201, lambda data: zstandard.ZstdDecompressor().decompress(data)),
    ],
)
def test_large_bodies_are_compressed(kind: str, flags: int, back: Any) -> None:
    body = b"abc" * 5000
    out = prepared(Message("T", body), Wire("g", Compressor(4096, kind)))
    assert out.sys_flag == flags
    assert back(out.body) == body
    assert len(out.body) < 500


def test_lz4_frames_have_independent_blocks() -> None:
    small, _ = Compressor(10, "lz4")(b"abc" * 100_000)
    assert lz4.frame.get_frame_info(small)["block_linked"] is False


def test_small_bodies_and_bodies_that_would_grow_stay() -> None:
    compress = Compressor(100)
    assert compress(b"x" * 99) == (b"x" * 99, 0)
    assert compress(b"x" * 100)[1] == 0x301
    noise = bytes((i * i * 7919 + i) % 251 for i in range(120))
    assert compress(noise) == (noise, 0)
    assert Compressor(None)(b"x" * 10_000)[1] == 0


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ConfigError, match="zlib, lz4 or zstd"):
        Compressor(1, "brotli")


# -- the frame ---------------------------------------------------------------------------------------------------------


@given(
    tags=st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=30),
    body=st.binary(min_size=1, max_size=50),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    queue_id=st.integers(0, (1 << 31) - 1),
    opaque=st.integers(0, (1 << 31) - 1),
    born=st.integers(0, 1 << 60),
)
def test_frame_has_the_given_fields(tags: str, body: bytes, flag: int, queue_id: int, opaque: int, born: int) -> None:
    out = prepared(Message("T", body, tags=tags, flag=flag), WIRE)
    frame = head_of(out, WIRE, 'bro"ker', queue_id).frame(opaque, 5, born, flag, out.properties, out.body)
    (command,) = FrameDecoder().feed(frame)
    header = send_header(command)
    assert (command.code, command.opaque, command.flag, command.language) == (310, opaque, 0, 3)
    assert bytes(command.body) == body
    assert (header.producer_group, header.topic, header.default_topic) == ("producers", "T", "TBW102")
    assert (header.default_topic_queue_nums, header.queue_id, header.sys_flag) == (4, queue_id, 5)
    assert (header.born_timestamp, header.flag, header.reconsume_times) == (born, flag, 0)
    assert header.properties == out.properties
    assert header.broker_name == 'bro"ker'
    assert (header.batch, header.unit_mode) == (False, False)


def test_oneway_frame_has_the_oneway_flag() -> None:
    out = prepared(Message("T", b"x"), WIRE)
    frame = head_of(out, WIRE, "b", 0).frame(1, 0, 0, 0, out.properties, out.body, True)
    (command,) = FrameDecoder().feed(frame)
    assert command.is_oneway


# -- a batch -----------------------------------------------------------------------------------------------------------


def items(body: bytes) -> list[tuple[int, bytes, dict[str, str]]]:
    """The messages of a batch's body, read by the format's description."""
    found = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        assert body[at + 4 : at + 12] == bytes(8)
        flag = int.from_bytes(body[at + 12 : at + 16], "big", signed=True)
        length = int.from_bytes(body[at + 16 : at + 20], "big")
        text = body[at + 20 : at + 20 + length]
        count = int.from_bytes(body[at + 20 + length : at + 22 + length], "big")
        assert size == 22 + length + count
        found.append((flag, text, properties.decode(body[at + 22 + length : at + size])))
        at += size
    return found


def test_batch_body_has_the_messages_in_order() -> None:
    out = batch_of([Message("T", b"one", tags="a", flag=-7), Message("T", "zw\u00f6lf", keys="k")], WIRE)
    first, second = items(out.body)
    assert out.code == 320
    assert out.msg_id.split(",") == list(out.msg_ids)
    assert first == (-7, b"one", {"UNIQ_KEY": out.msg_ids[0], "TAGS": "a"})
    assert second == (0, "zw\u00f6lf".encode(), {"UNIQ_KEY": out.msg_ids[1], "KEYS": "k"})
    assert out.properties == b""


def test_a_batch_without_wait_says_so_in_its_header() -> None:
    out = batch_of([Message("T", b"x", wait_store_ok=False)] * 2, WIRE)
    assert out.properties == b"WAIT\x01false\x02"


@pytest.mark.parametrize(
    "messages, match",
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "one topic"),
        ([Message("T", b"x"), Message("T", b"x", wait_store_ok=False)], "one wait_store_ok"),
        ([Message("T", b"x", delay_level=1)], "no delay"),
        ([Message("T", b"x", delay_s=1)], "no delay"),
        ([OwnMessage("T", b"x", properties={"TRAN_MSG": "true"})], "transaction"),
        ([Message("T", b"x", sharding_key="a"), Message("T", b"x", sharding_key="b")], "one sharding_key"),
        ([Message("%RETRY%g", b"x")], "no retry topic"),
    ],
)
def test_invalid_batches_are_refused(messages: list[Message], match: str) -> None:
    with pytest.raises(MessageIllegal, match=match):
        batch_of(messages, WIRE)


def test_a_batch_larger_than_a_message_may_be_is_refused() -> None:
    with pytest.raises(MessageTooLarge, match="at most 1000 bytes together"):
        batch_of([Message("T", bytes(600))] * 2, WIRE._replace(max_message_bytes=1000))


def test_ids_differ() -> None:
    assert len({new_id() for _ in range(1000)}) == 1000


def test_a_half_message_and_a_reply_say_so() -> None:
    assert prepared(OwnMessage("T", b"x", properties={"TRAN_MSG": "true"}), WIRE).sys_flag == 4
    assert prepared(OwnMessage("T", b"x", properties={"MSG_TYPE": "reply"}), WIRE).code == 325
