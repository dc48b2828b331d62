"""Bodies of all client versions: standard JSON, fastjson's, packed ones; and what is none says where."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import FieldError
from mqfast.remoting.bodies import DataVersion, RegisterBody, decode_body, decode_request, header_of
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.registrations import RegistrationLimits, at_once, registration_steps
from mqfast.util.fastjson import bare_keys, object_keys, quoted, standard

NO_LIMITS = RegistrationLimits()


def decode_registration(
    body: bytes, *, compressed: bool, version: int, limits: RegistrationLimits = NO_LIMITS
) -> RegisterBody:
    return at_once(registration_steps(body, compressed=compressed, version=version, limits=limits))


@pytest.mark.parametrize(
    "given_text, meant",
    [
        (b'{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
        (b'{ 12 : [ {3:4} , true ] , "k" : null }', {"12": [{"3": 4}, True], "k": None}),
        (
            b'{{"brokerName":"b","queueId":0,"topic":"t"}:12,{"queueId":1}:13}',
            {'{"brokerName":"b","queueId":0,"topic":"t"}': 12, '{"queueId":1}': 13},
        ),
        (b'{{"a":{1:2}}:3}', {'{"a":{"1":2}}': 3}),
        (b'{name.x$:1.5e3,"s":"{0:1}\\"{2:3}"}', {"name.x$": 1500.0, "s": '{0:1}"{2:3}'}),
        (b"[]", []),
        (b" {} ", {}),
    ],
)
def test_keys_without_quotes(given_text: bytes, meant: Any) -> None:
    assert json.loads(standard(given_text)) == meant


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_standard_json_keeps_its_meaning(value: Any) -> None:
    text = json.dumps(value).encode()
    assert json.loads(standard(text)) == value


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,01a ', max_size=60).map(str.encode))
def test_anything_else_is_refused_by_the_parser_or_has_a_meaning(data: bytes) -> None:
    with contextlib.suppress(FieldError):
        assert isinstance(decode_body(data, dict[str, Any], "body"), dict)  # type: ignore[arg-type]


def test_deep_json_is_refused() -> None:
    for text in (b"[" * 1_000_000, b'{"a":' * 1_000_000, b"{" * 1_000_000):
        with pytest.raises(FieldError, match="field body"):
            decode_body(text, RegisterBody, "body")
    with pytest.raises(FieldError):
        decode_body(b"[" * 70 + b"{0:1}" + b"]" * 70, list, "body")


def test_objects_as_keys_are_written_and_read() -> None:
    text = object_keys([(b'{"topic":"a\\"b"}', b"5"), (b'{"topic":"c"}', b"[6]")])
    assert text == b'{{"topic":"a\\"b"}:5,{"topic":"c"}:[6]}'
    assert json.loads(standard(text)) == {'{"topic":"a\\"b"}': 5, '{"topic":"c"}': [6]}
    assert object_keys([]) == b"{}"


def test_bare_keys_in_their_order() -> None:
    assert bare_keys({2: 'b"\\', 0: "é\n"}) == '{0:"é\\u000a",2:"b\\"\\\\"}'.encode()
    assert bare_keys({}) == b"{}"
    assert quoted("\ud800") == b'"?"'


def packed(version: bytes, lines: list[bytes], *more: bytes | int, count: int | None = None) -> bytes:
    pieces: list[bytes | int] = [version, len(lines) if count is None else count, *lines, *more]
    return zlib.compress(
        b"".join(struct.pack(">i", p) if isinstance(p, int) else struct.pack(">i", len(p)) + p for p in pieces)
    )


VERSION = b'{"counter":3,"timestamp":5}'
LINE = b'T1 8 4 6 SINGLE_TAG {"a":"b c"}'


def test_packed_registrations_of_4_and_5() -> None:
    for more in ([b"[]"], [b'["f:1"]', 1, b'{"topic":"T1","bname":"b",1:2}']):
        found = decode_registration(
            packed(VERSION, [LINE, b"T2 1 1 2 SINGLE_TAG"], *more), compressed=True, version=479
        )
        table = found.topic_config_serialize_wrapper
        assert table is not None
        assert table.data_version == DataVersion(3, 0, 5)
        topic = table.topic_config_table["T1"]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (8, 4, 6)
        assert list(table.topic_config_table) == ["T1", "T2"]
        assert found.filter_server_list == json.loads(more[0])
    assert msgspec.json.decode(table.topic_queue_mapping_info_map["T1"]) == {"topic": "T1", "bname": "b", "1": 2}


@pytest.mark.parametrize(
    "body, said",
    [
        (b"not zlib", r"field body: expected zlib \(.*\), found b'not zlib'"),
        (zlib.compress(b"x" * 100)[:-4], "to its end"),
        (zlib.compress(b""), "field body.dataVersion: expected four bytes, found 0"),
        (zlib.compress(b"\xff\xff\xff\xff"), "dataVersion: expected a length of at most 0, found -1"),
        (zlib.compress(b"\x7f\xff\xff\xff"), "found 2147483647"),
        (packed(b"[]", []), "field body.dataVersion: expected object, found array"),
        (packed(VERSION, [b"T1 8 8"]), "field body.topic: expected a name and three whole numbers, found 'T1 8 8'"),
        (packed(VERSION, [LINE], count=2**31 - 1), "body.topic"),
        (packed(VERSION, [LINE], b"{}"), "body.filterServerList"),
        (packed(VERSION, [LINE], b"[]", 5), "body.mapping"),
    ],
)
def test_packed_registrations_that_are_none(body: bytes, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        decode_registration(body, compressed=True, version=479)


def test_a_packed_body_that_would_fill_the_memory_is_refused() -> None:
    body = zlib.compress(b"\0" * (65 << 20))
    with pytest.raises(FieldError, match=r"at most 33554432 bytes when unpacked \(registrationBytesMax\)"):
        decode_registration(body, compressed=True, version=479)


def json_of(count: int, more: str = "") -> bytes:
    topic = (
        '{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"t%d"}'
    )
    table = ",".join(f'"t{i}":{topic % i}' for i in range(count))
    return f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"topicConfigTable":{{{table}}}{more}}}}}'.encode()


@pytest.mark.parametrize(
    ("body", "compressed"),
    [
        (json_of(101), False),
        (packed(VERSION, [b"t%d 1 1 6 SINGLE_TAG" % i for i in range(101)], b"[]"), True),
        (packed(VERSION, [LINE], b"[]", 101, *[b'{"topic":"T1"}'] * 101), True),
        (json_of(1, ',"more":{' + ",".join(f'"a{i}":{{}}' for i in range(50_000)) + "}"), False),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + b'"a":1,' * 50_000 + b'"b":1}}}', False),
    ],
)
def test_a_registration_of_too_many_topics_is_refused(body: bytes, compressed: bool) -> None:
    with pytest.raises(FieldError, match=r"at most 100 topics \(registrationTopicsMax\)"):
        decode_registration(body, compressed=compressed, version=479, limits=RegistrationLimits(topics=100))


def test_a_registration_of_many_topics_is_whole() -> None:
    for body, compressed in (
        (json_of(20_000), False),
        (packed(VERSION, [b"t%d 1 1 6 SINGLE_TAG" % i for i in range(20_000)], b"[]"), True),
    ):
        steps = registration_steps(body, compressed=compressed, version=479, limits=RegistrationLimits())
        count = 0
        try:
            while True:
                next(steps)
                count += 1
        except StopIteration as end:
            table = end.value.topic_config_serialize_wrapper.topic_config_table
        assert list(table) == [f"t{i}" for i in range(20_000)]
        assert count >= 20  # others are served between them


def test_a_request_has_fewer_bytes_than_an_answer() -> None:
    bare = b"{" + b",".join(b"%d:1" % i for i in range(20_000)) + b"}"
    assert len(decode_body(bare, dict[str, int], "body")) == 20_000
    with pytest.raises(FieldError, match="body: expected JSON"):
        decode_request(bare, dict[str, int], "body")
    with pytest.raises(FieldError, match="body: expected at most 1048576 bytes, found 1048577"):
        decode_request(bytes((1 << 20) + 1), dict[str, int], "body")


def test_registrations_of_old_brokers_and_without_a_body() -> None:
    bare = b'{"dataVersion":{"counter":"4"},"topicConfigTable":{"T":{"topicName":"T","perm":"2"}}}'
    table = decode_registration(bare, compressed=False, version=36).topic_config_serialize_wrapper
    assert table is not None
    assert (table.data_version, table.topic_config_table["T"].perm) == (DataVersion(4), 2)
    empty = decode_registration(b"", compressed=False, version=479).topic_config_serialize_wrapper
    assert empty is not None
    assert (empty.data_version, empty.topic_config_table) == (DataVersion(), {})
    with pytest.raises(FieldError, match=r"field body\.topicConfigSerializeWrapper: expected a table of topics"):
        decode_registration(b"{}", compressed=False, version=479)
    with pytest.raises(FieldError, match=r"field body\.topicConfigTable\['.*'\]\.perm"):
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}'
        decode_registration(body, compressed=False, version=479)


class Header(msgspec.Struct, rename="camel"):
    broker_id: int
    order: bool = False


def test_headers_as_types() -> None:
    found = header_of(RemotingCommand(1, {"brokerId": "7", "order": "TRUE", "other": "x"}), Header)
    assert (found.broker_id, found.order) == (7, True)
    with pytest.raises(FieldError, match="field brokerId: expected a value, found none"):
        header_of(RemotingCommand(1), Header)
    with pytest.raises(FieldError, match="field brokerId: expected int, found 'x'"):
        header_of(RemotingCommand(1, {"brokerId": "x"}), Header)
