"""One record by itself: every length that a record has, wrong; ill-formed text; its place in queues.

The records come from the model's encoder (``tests/model/reference.py``), never from the engine's. Format:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Record, jhash

import mqfast
from mqfast.errors import CorruptFile
from mqfast.store.record.record import decode_record, java_hash

V1 = Record("Topic", b"body", properties=b"KEYS\x01a b\x02TAGS\x01t\x02", queue_offset=7, physical_offset=100)
V2 = dataclasses.replace(V1, topic="T" * 130)
# Where the fields are that parsing trusts, in a record whose hosts are of IPv4 or of IPv6.
SYS_FLAG, BODY_LENGTH, BODY = 36, 84, 88
BORN_V6, STORE_V6 = 1 << 4, 1 << 5
SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 400, "maxIndexNum": 100}


def with_total(data: bytes) -> bytes:
    """The same bytes with the length in front that they have."""
    return struct.pack(">i", len(data)) + data[4:]


@pytest.mark.parametrize("record", [V1, V2], ids=["version 1", "version 2"])
def test_no_part_of_a_record_is_a_record(record: Record) -> None:
    whole = record.encode()
    message = decode_record(whole)
    assert (message.topic, bytes(message.body), message.queue_offset) == (record.topic, b"body", 7)
    assert (message.keys, message.tags, message.check_crc()) == (["a", "b"], "t", True)
    for length in range(len(whole)):
        for part in (whole[:length], with_total(whole[:length])):
            with pytest.raises(CorruptFile, match="record"):
                decode_record(part)
    with pytest.raises(CorruptFile, match="no record"):
        decode_record(whole, -1)
    with pytest.raises(CorruptFile, match="not a whole record"):
        decode_record(with_total(whole + b"\0"))


@pytest.mark.parametrize("flags", [BORN_V6, STORE_V6, BORN_V6 | STORE_V6])
def test_a_record_that_is_too_short_for_its_long_hosts(flags: int) -> None:
    hosts = ("::1", 1) if flags & BORN_V6 else V1.born_host, ("::2", 2) if flags & STORE_V6 else V1.store_host
    whole = dataclasses.replace(V1, sys_flag=flags, born_host=hosts[0], store_host=hosts[1]).encode()
    assert decode_record(whole).topic == "Topic"
    for length in range(88, len(whole)):
        with pytest.raises(CorruptFile):
            decode_record(with_total(whole[:length]))


def patched(data: bytes, position: int, number: int, form: str = ">i") -> bytes:
    """With another number at that place."""
    field = struct.pack(form, number)
    return data[:position] + field + data[position + len(field) :]


def test_lengths_below_zero_and_beyond_the_end() -> None:
    empty = dataclasses.replace(V1, body=b"", properties=b"").encode()
    # As RocketMQ: a negative length of body or properties counts as nothing.
    assert bytes(decode_record(patched(empty, BODY_LENGTH, -5)).body) == b""
    assert decode_record(patched(empty, len(empty) - 2, -1, ">h")).properties == {}
    whole = V1.encode()
    for number in (-1, len(whole), 2**31 - 1):
        with pytest.raises(CorruptFile):
            decode_record(patched(whole, BODY_LENGTH, number))
    for number in (-1, -128, 127):
        with pytest.raises(CorruptFile):
            decode_record(patched(whole, BODY + 4, number, ">b"))
    long = V2.encode()
    for number in (-1, -(2**15), 2**15 - 1):
        with pytest.raises(CorruptFile):
            decode_record(patched(long, BODY + 4, number, ">h"))
    at = len(whole) - len(V1.properties) - 2
    for number in (-1, 2**15 - 1, len(V1.properties) + 1):
        with pytest.raises(CorruptFile):
            decode_record(patched(whole, at, number, ">h"))


def test_a_record_says_what_is_wrong_with_it() -> None:
    whole = V1.encode()
    with pytest.raises(CorruptFile, match="body CRC differs"):
        decode_record(whole[:BODY] + b"B" + whole[BODY + 1 :])
    with pytest.raises(CorruptFile, match="magic 0x7"):
        decode_record(patched(whole, 4, 7))
    text = repr(decode_record(whole))
    assert "Topic/0@7" in text
    assert "physical_offset=100" in text
    assert decode_record(dataclasses.replace(V1, properties=b"").encode()).keys == []


# --- where a record belongs ------------------------------------------------------------------------------------------

MULTI = [
    # names, offsets, what queue "lmq" of number 0 gets
    ("lmq", "5", 5),
    ("a,lmq", "1,2", 2),
    ("a,lmq,b", "1,+22,3", 22),
    ("a,lmq", "1,-3", -3),
    ("lmq", None, -1),
    ("a,lmq", "1", -1),
    ("a,b,lmq", "1", -1),
    ("lmq", "x", -1),
    ("lmq", "1/2", -1),
    ("lmq", "-", -1),
    ("lmq,a", ",1", -1),
    ("lmq", "1234567890123456789", -1),
    ("lmq", "123456789012345678", 123456789012345678),
    ("lmx,lm,lmqq", "1,2,3", None),
]


@pytest.mark.parametrize(("names", "offsets", "expected"), MULTI)
def test_the_offset_in_another_queue(names: str, offsets: str | None, expected: int | None) -> None:
    text = f"INNER_MULTI_DISPATCH\x01{names}\x02"
    if offsets is not None:
        text += f"INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    message = decode_record(dataclasses.replace(V1, properties=text.encode()).encode())
    assert message.offset_in(b"lmq", 0) == expected
    assert message.offset_in(b"Topic", 0) == 7


def test_offset_in_a_foreign_queue_is_none() -> None:
    message = decode_record(V1.encode())
    assert message.offset_in(b"Topic", 0) == 7
    assert message.offset_in(b"Topic", 1) is None
    assert message.offset_in(b"Topix", 0) is None
    assert message.offset_in(b"Top", 0) is None


# --- hashes of text --------------------------------------------------------------------------------------------------


@given(st.text(st.characters(codec=None), max_size=20))
def test_java_hash_of_any_text(text: str) -> None:
    assert java_hash(text) == jhash(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


ILL_FORMED = [
    *(b"\x80", b"\xbf\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2A", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xe1\x80"),
    *(b"\xe1\x80A", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf1\x80\x80"),
    *(b"\xf1\x80\x80A", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xf8\x88\x80\x80\x80", b"\xf1A\x80"),
    *(
        "é".encode(),
        "語".encode(),
        "\ud7ff".encode(),
        "\U0001f600".encode(),
        "\U0010ffff".encode(),
        b"\xf0\x90\x80\x80",
    ),
]


def test_tags_of_ill_formed_text_hash_as_java_reads_them(tmp_path: Path) -> None:
    """Java puts U+FFFD for each part that is no text, as Python's decoder does; the units are made from the log."""
    path = tmp_path / "store"
    with mqfast.open(path, **SETTINGS) as store:
        for tag in ILL_FORMED:
            store.put("T", b"", tags="#" * len(tag))
    for log in sorted((path / "commitlog").iterdir()):
        data = bytearray(log.read_bytes())
        at = 0
        while int.from_bytes(data[at + 4 : at + 8], "big") == 0xDAA320A7:
            number = int.from_bytes(data[at + 20 : at + 28], "big")
            place = data.index(b"TAGS\x01", at) + 5
            data[place : place + len(ILL_FORMED[number])] = ILL_FORMED[number]
            at += int.from_bytes(data[at : at + 4], "big")
        log.write_bytes(data)
    for queue in (path / "consumequeue" / "T" / "0").iterdir():
        queue.unlink()
    (path / "abort").touch()
    with mqfast.open(path, **SETTINGS) as store:
        found = store.get("T", 0, 0)
        assert [message.tags for message in found] == [tag.decode("utf-8", "replace") for tag in ILL_FORMED]
    units = b"".join(file.read_bytes() for file in sorted((path / "consumequeue" / "T" / "0").iterdir()))
    codes = [struct.unpack_from(">q", units, 20 * i + 12)[0] for i in range(len(ILL_FORMED))]
    assert codes == [jhash(tag.decode("utf-8", "replace")) for tag in ILL_FORMED]
