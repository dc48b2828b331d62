"""Frames: captured ones decode to what their senders meant and encode to the same bytes; nothing else gets through."""

from __future__ import annotations

import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from captures import SETS, captures

from mqfast.errors import FieldError, FrameError, FrameTooLarge, HeaderIllegal
from mqfast.remoting.codes import LanguageCode
from mqfast.remoting.command import (
    JSON,
    ROCKETMQ,
    FrameDecoder,
    RemotingCommand,
    encode,
    offset_header,
    pull_header,
    send_answer,
    send_header,
)


def decode(data: bytes, **limits: int) -> list[RemotingCommand]:
    decoder = FrameDecoder(**limits)
    found = decoder.feed(data)
    if decoder.error is not None:
        raise decoder.error
    return found


def frame(header: bytes, body: bytes = b"", codec: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body


def text_of(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("name", SETS)
def test_captured_frames_decode(name: str) -> None:
    for capture in captures(name):
        (command,) = decode(capture.frame)
        meant = json.loads(capture.header)
        fields = {key: text_of(value) for key, value in (meant.get("extFields") or {}).items()}
        assert (command.code, command.opaque, command.flag) == (meant["code"], meant["opaque"], meant["flag"])
        assert command.version == meant["version"]
        language = meant["language"]
        assert command.language == (LanguageCode[language] if isinstance(language, str) else language)
        assert command.remark == meant.get("remark")
        assert command.serialize == (ROCKETMQ if capture.is_binary else JSON)
        # Java decodes an empty value of the binary codec to null.
        assert command.ext_fields == {k: v for k, v in fields.items() if v is not None and (v or not capture.is_binary)}
        header_bytes = int.from_bytes(capture.frame[5:8], "big")
        assert command.body == capture.frame[8 + header_bytes :]


@pytest.mark.parametrize("name", [name for name in SETS if name != "ali-ons"])
def test_captured_frames_of_java_encode_to_the_same_bytes(name: str) -> None:
    for capture in captures(name):
        (command,) = decode(capture.frame)
        if capture.is_binary and b"\0\0\0\0" in capture.frame[20:]:
            continue  # an empty value, which is left out
        command.ext_fields  # noqa: B018  (decoded, and encoded anew)
        assert encode(command) == capture.frame


@pytest.mark.parametrize("name", SETS)
def test_every_split_of_a_stream_gives_the_same_commands(name: str) -> None:
    stream = b"".join(capture.frame for capture in captures(name)[:60])
    whole = decode(stream)
    for step in (1, 2, 3, 7, 8, 9, 100, 4096):
        decoder = FrameDecoder()
        found = [c for at in range(0, len(stream), step) for c in decoder.feed(stream[at : at + step])]
        assert found == whole
        assert decoder.buffered == 0
        assert decoder.error is None


def test_the_examples_of_both_codecs() -> None:
    fields = {"topic": "T"}
    as_json = encode(RemotingCommand(105, fields, opaque=7, version=407))
    assert as_json == bytes.fromhex("0000007F0000007B") + (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    as_binary = encode(RemotingCommand(105, fields, opaque=7, version=407, serialize=ROCKETMQ))
    assert as_binary == bytes.fromhex(
        "0000002501000021006900019700000007000000000000" + "00000000000C0005746F7069630000000154"
    )
    assert decode(as_json) == decode(as_json)
    assert decode(as_binary)[0].ext_fields == decode(as_json)[0].ext_fields == fields


def test_fields_of_other_kinds_become_text() -> None:
    header = b'{"code":1,"opaque":2,"extFields":{"i":-7,"b":true,"n":null,"f":1.5,"o":{"a":[1,2]},"e":"","s":"x"}}'
    (command,) = decode(frame(header))
    assert command.ext_fields == {"i": "-7", "b": "true", "f": "1.5", "o": '{"a":[1,2]}', "e": "", "s": "x"}
    sent = RemotingCommand(1, {"yes": True, "no": False, "number": 12, "none": None, "text": "t"})
    for codec in (JSON, ROCKETMQ):
        copy = decode(encode(RemotingCommand(1, sent.ext_fields, serialize=codec)))[0]
        assert copy.ext_fields == {"yes": "true", "no": "false", "number": "12", "text": "t"}


def test_missing_fields_have_defaults_and_unknown_fields_are_ignored() -> None:
    (command,) = decode(frame(b' { "other" : [ {"deep": null} , 1e5 ] , "code" : "34" } '))
    assert (command.code, command.flag, command.opaque, command.remark, command.ext_fields) == (34, 0, 0, None, {})
    (command,) = decode(frame(b'{"language":"COBOL","extFields":null,"remark":null,"code":34}'))
    assert command.language == LanguageCode.OTHER
    assert command.remark is None
    assert decode(frame(b"{}"))[0].code == 0


def test_text_with_escapes() -> None:
    header = rb'{"code":1,"remark":"\u00e9\ud83d\ude00\ud83d \"\\\/\b\f\n\r\t","extFields":{"\u0061":"\u0001x\u0002"}}'
    (command,) = decode(frame(header))
    assert command.remark == 'é😀? "\\/\b\f\n\r\t'
    assert command.ext_fields == {"a": "\x01x\x02"}
    (invalid,) = decode(frame(b'{"code":1,"remark":"\xff\xfe"}'))
    assert invalid.remark == "��"
    assert decode(encode(RemotingCommand(1, {"x": "\ud800"})))[0].ext_fields == {"x": "?"}


@pytest.mark.parametrize(
    "data, error, said",
    [
        (b"\0\0\0\3", HeaderIllegal, "at least 4, found 3"),
        (b"\xff\xff\xff\xff", HeaderIllegal, "found -1"),
        (b"GET / HTTP/1.1\r\n", FrameTooLarge, "at most 16777216 bytes, found 1195725860"),
        (b"\x01\0\0\0", FrameTooLarge, "found 16777220"),
        (b"\0\0\0\4\2\0\0\0", HeaderIllegal, "codec 0 \\(JSON\\) or 1 \\(ROCKETMQ\\), found 2"),
        (b"\0\0\0\4\0\0\0\1", HeaderIllegal, "at most 0 bytes, found 1"),
        (b"\0\x90\0\0\0\x80\0\0", FrameTooLarge, "header: expected at most 1048576 bytes"),
        (frame(b""), HeaderIllegal, "a JSON object, found its end"),
        (frame(b"[]"), HeaderIllegal, "offset 0: expected a JSON object"),
        (frame(b'{"code":1'), HeaderIllegal, "comma or the end"),
        (frame(b'{"code":1}x'), HeaderIllegal, "offset 10: expected the end of the header, found b'x'"),
        (frame(b'{"code":1.5}'), HeaderIllegal, "offset 8: expected a whole number of 32 bits"),
        (frame(b'{"code":2147483648}'), HeaderIllegal, "32 bits"),
        (frame(b'{"code":"x"}'), HeaderIllegal, "32 bits"),
        (frame(b'{"code"'), HeaderIllegal, "a colon"),
        (frame(b'{"code":'), HeaderIllegal, "a JSON value"),
        (frame(b'{"remark":"\\x"}'), HeaderIllegal, "an escape of JSON"),
        (frame(b'{"remark":"\\u12'), HeaderIllegal, "the end of a string"),
        (frame(b'{"remark":"\\u12G4"}'), HeaderIllegal, "four hex digits"),
        (frame(b'{"extFields":[]}'), HeaderIllegal, "an object of fields"),
        (frame(b'{"x":' + b"[" * 100_000), HeaderIllegal, "at most 32 deep"),
        (frame(b"\0" * 20, codec=1), HeaderIllegal, "at least 21 bytes"),
        (frame(b"\0" * 13 + b"\x7f\xff\xff\xff" + b"\0" * 4, codec=1), HeaderIllegal, "length of a remark"),
        (frame(b"\0" * 13 + b"\xff\xff\xff\xff" + b"\0" * 4, codec=1), HeaderIllegal, "length of a remark"),
        (frame(b"\0" * 17 + b"\0\0\0\1", codec=1), HeaderIllegal, "length of the fields"),
        (frame(b"\0" * 17 + b"\0\0\0\1\0", codec=1), HeaderIllegal, "the length of a name"),
        (frame(b"\0" * 17 + b"\0\0\0\2\xff\xff", codec=1), HeaderIllegal, "name within the fields"),
        (frame(b"\0" * 17 + b"\0\0\0\6\0\0\0\0\0\1", codec=1), HeaderIllegal, "value within the fields"),
    ],
)
def test_invalid_frame_is_refused_and_later_bytes_are_not_decoded(
    data: bytes, error: type[FrameError], said: str
) -> None:
    good = encode(RemotingCommand(34, opaque=5))
    for pieces in ([good + data + good], [bytes([byte]) for byte in good + data + good]):
        decoder = FrameDecoder()
        found = [command.opaque for piece in pieces for command in decoder.feed(piece)]
        assert found == [5]
        assert type(decoder.error) is error
        with pytest.raises(error, match=said):
            raise decoder.error
        assert decoder.feed(good) == []
        assert decoder.buffered == 0


def test_limits_are_settable_and_inclusive() -> None:
    data = encode(RemotingCommand(34, body=b"x" * 100))
    header = int.from_bytes(data[5:8], "big")
    assert len(decode(data, frame_bytes_max=len(data), header_bytes_max=header)) == 1
    with pytest.raises(FrameTooLarge):
        decode(data, frame_bytes_max=len(data) - 1)
    with pytest.raises(FrameTooLarge):
        decode(data, header_bytes_max=header - 1)
    with pytest.raises(FrameTooLarge, match="below 16 MiB"):
        encode(RemotingCommand(1, {"x": "y" * 2**24}))
    with pytest.raises(FieldError, match="16 bits"):
        encode(RemotingCommand(200050, serialize=ROCKETMQ))
    with pytest.raises(FieldError, match="at most 32,767 bytes"):
        encode(RemotingCommand(1, {"n" * 40000: "y"}, serialize=ROCKETMQ))
    assert decode(encode(RemotingCommand(200050)))[0].code == 200050


def test_a_body_may_be_several_buffers() -> None:
    parts = [b"one", memoryview(b"twothree")[3:], bytearray(b"!")]
    command = RemotingCommand(0, body=parts)
    assert decode(encode(command))[0].body == b"onethree!"
    head = encode(command, with_body=False)
    assert head + b"onethree!" == encode(command)
    assert decode(encode(command))[0] == command


def test_an_answer_speaks_the_codec_of_its_request() -> None:
    for codec in (JSON, ROCKETMQ):
        (request,) = decode(encode(RemotingCommand(105, {"topic": "t"}, opaque=9, serialize=codec)))
        answer = request.response(17, remark="none")
        assert (answer.opaque, answer.is_response, answer.serialize, answer.code) == (9, True, codec, 17)
        assert answer.ext_fields == {}
        assert encode(answer)[4] == codec
        assert decode(encode(answer))[0] == answer
    assert b"extFields" not in encode(RemotingCommand(1))
    assert b'"extFields":{}' in encode(RemotingCommand(1, {}))


def test_commands_compare_pickle_and_say_what_they_are() -> None:
    (command,) = decode(encode(RemotingCommand(15, {"topic": "t"}, b"body", opaque=3, flag=2, remark="r")))
    assert pickle.loads(pickle.dumps(command)) == command
    assert repr(command) == "<one-way request 15, opaque 3, fields {'topic': 't'}, remark 'r', 4 bytes>"
    assert command != RemotingCommand(15)
    assert command != 15
    with pytest.raises(ValueError, match="serialize"):
        RemotingCommand(1, serialize=2)
    with pytest.raises(ValueError, match="language"):
        RemotingCommand(1, language=99)


# --- typed headers ----------------------------------------------------------------------------------------------------

SEND = {
    "producerGroup": "pg", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "-1",
    "sysFlag": "1", "bornTimestamp": "1795255178846", "flag": "7", "properties": "K\x01é\x02", "reconsumeTimes": "2",
    "unitMode": "TRUE", "maxReconsumeTimes": "16", "batch": "false", "bname": "brk",
}  # fmt: skip


def received(code: int, fields: dict[str, Any], codec: int = JSON) -> RemotingCommand:
    return decode(encode(RemotingCommand(code, fields, serialize=codec)))[0]


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ])
def test_the_header_of_a_send_by_long_and_by_short_names(codec: int) -> None:
    short = dict(zip("abcdefghijklmn", SEND.values(), strict=True))
    noise = {"Signature": "s", "AccessKey": "k", "aa": "x", "é": "y"}
    for code, fields in ((10, SEND), (324, SEND), (310, short), (320, short), (325, short)):
        for command in (received(code, noise | fields, codec), RemotingCommand(code, noise | fields, serialize=codec)):
            header = send_header(command)
            assert (header.producer_group, header.topic, header.default_topic) == ("pg", "t", "TBW102")
            assert (header.default_topic_queue_nums, header.queue_id, header.sys_flag, header.flag) == (4, -1, 1, 7)
            assert header.born_timestamp == 1795255178846
            assert header.properties == "K\x01é\x02".encode()
            assert (header.reconsume_times, header.max_reconsume_times) == (2, 16)
            assert header.unit_mode is True
            assert header.batch is False
            assert header.broker_name == "brk"
            assert command.ext_fields["AccessKey"] == "k"


def test_the_header_of_a_command_that_was_created_here() -> None:
    """The bytes of the header belong to a copy of the command; each text of the result is allocated beside these."""
    numbers = dict.fromkeys(["defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"], "7")
    texts = {"producerGroup": "g" * 900, "topic": "t" * 900, "defaultTopic": "d" * 900, "properties": "p" * 900}
    for _ in range(20):
        header = send_header(RemotingCommand(10, {**texts, **numbers}))
        found = header.producer_group, header.topic, header.default_topic, header.properties.decode()
        assert found == tuple(texts.values())
        assert (header.queue_id, header.born_timestamp, header.flag) == (7, 7, 7)


def test_optional_fields_of_a_send_have_the_defaults_of_java() -> None:
    header = send_header(received(310, dict(zip("abcdefgh", SEND.values(), strict=False))))
    assert (header.properties, header.reconsume_times, header.max_reconsume_times) == (b"", 0, None)
    assert (header.unit_mode, header.batch, header.broker_name) == (False, False, None)


@pytest.mark.parametrize("name", list(SEND)[:8])
def test_a_send_without_a_field_that_must_be_there(name: str) -> None:
    with pytest.raises(FieldError, match=f"field {name}: expected a value, found none") as caught:
        send_header(received(10, {key: value for key, value in SEND.items() if key != name}))
    assert pickle.loads(pickle.dumps(caught.value)).field == name


@pytest.mark.parametrize("value", ["", "x", "1x", "0x1", "2147483648", "-2147483649", "1" * 30, " 1", "-", "١"])
def test_a_number_that_is_none(value: str) -> None:
    with pytest.raises(FieldError, match="field queueId: expected a whole number of 32 bits"):
        send_header(received(10, SEND | {"queueId": value}))
    with pytest.raises(FieldError, match="field bornTimestamp: expected a whole number of 64 bits"):
        send_header(received(10, SEND | {"bornTimestamp": value if "4" not in value else "9223372036854775808"}))


def test_numbers_at_their_limits() -> None:
    for least, most in ((-(2**31), 2**31 - 1),):
        assert send_header(received(10, SEND | {"flag": least})).flag == least
        assert send_header(received(10, SEND | {"flag": f"+{most}"})).flag == most
    for value in (-(2**63), 2**63 - 1, 0):
        assert send_header(received(10, SEND | {"bornTimestamp": value})).born_timestamp == value


def test_the_headers_of_captured_sends_pulls_and_offsets() -> None:
    seen = set()
    for name in SETS:
        for capture in captures(name):
            (command,) = decode(capture.frame)
            if command.is_response:
                continue
            fields = command.ext_fields
            if command.code in (10, 310, 320, 325):
                header = send_header(command)
                names = dict(zip("abcdefghijklmn", SEND, strict=True)) if command.code != 10 else {n: n for n in SEND}
                meant = {names[key]: value for key, value in fields.items() if key in names}
                assert header.topic == meant["topic"]
                assert header.properties == meant.get("properties", "").encode()
                assert header.born_timestamp == int(meant["bornTimestamp"])
                assert header.batch == (meant.get("batch") == "true")
            elif command.code in (11, 361):
                pull = pull_header(command)
                assert (pull.consumer_group, pull.topic) == (fields["consumerGroup"], fields["topic"])
                assert (pull.queue_id, pull.queue_offset) == (int(fields["queueId"]), int(fields["queueOffset"]))
                assert (pull.max_msg_nums, pull.sys_flag) == (int(fields["maxMsgNums"]), int(fields["sysFlag"]))
                assert pull.commit_offset == int(fields["commitOffset"])
                assert pull.suspend_timeout_ms == int(fields["suspendTimeoutMillis"])
                assert pull.sub_version == int(fields["subVersion"])
                assert pull.subscription == fields.get("subscription")
                assert pull.expression_type == fields.get("expressionType")
                assert pull.max_msg_bytes == (int(fields["maxMsgBytes"]) if "maxMsgBytes" in fields else None)
                assert pull.broker_name == fields.get("bname")
            elif command.code == 15:
                offset = offset_header(command)
                assert (offset.consumer_group, offset.topic) == (fields["consumerGroup"], fields["topic"])
                assert (offset.queue_id, offset.commit_offset) == (int(fields["queueId"]), int(fields["commitOffset"]))
            else:
                continue
            seen.add(command.code)
    assert seen == {10, 310, 320, 325, 11, 361, 15}


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ])
def test_the_answer_to_a_send(codec: int) -> None:
    fields = {"msgId": "7F", "queueId": "3", "queueOffset": str((1 << 63) - 1), "other": "x", "MSG_REGION": "R\u00e9"}
    (command,) = FrameDecoder().feed(encode(RemotingCommand(0, fields, flag=1, serialize=codec)))
    answer = send_answer(command)
    assert (answer.msg_id, answer.queue_id, answer.queue_offset) == ("7F", 3, (1 << 63) - 1)
    assert (answer.transaction_id, answer.recall_handle, answer.region) == (None, None, "R\u00e9")
    more = send_answer(RemotingCommand(0, {**fields, "transactionId": "T", "recallHandle": "H"}))
    assert (more.transaction_id, more.recall_handle) == ("T", "H")
    for name in ("msgId", "queueId", "queueOffset"):
        with pytest.raises(FieldError, match=name):
            send_answer(RemotingCommand(0, {key: value for key, value in fields.items() if key != name}))
    for wrong in ("", "x", "1.0", str(1 << 31), "null"):
        with pytest.raises(FieldError, match="queueId"):
            send_answer(RemotingCommand(0, {**fields, "queueId": wrong}))


def test_pulls_and_offsets_without_their_fields() -> None:
    with pytest.raises(FieldError, match="field consumerGroup"):
        pull_header(received(11, {}))
    with pytest.raises(FieldError, match="field commitOffset: expected a value"):
        offset_header(received(15, {"consumerGroup": "g", "topic": "t", "queueId": "1"}))
    with pytest.raises(FieldError, match="field commitOffset: expected a whole number"):
        offset_header(received(15, {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "x"}))


# --- whatever comes ---------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=40)
COMMANDS = st.builds(
    RemotingCommand,
    st.integers(-(2**15), 2**15 - 1),
    st.none() | st.dictionaries(TEXTS, TEXTS.filter(bool), max_size=6),
    st.binary(max_size=200),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | TEXTS.filter(bool),
    language=st.integers(0, 13),
    version=st.integers(0, 32767),
    serialize=st.integers(0, 1),
)


@given(st.lists(COMMANDS, max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_encode_decode_round_trip_in_pieces_of_any_size(commands: list[RemotingCommand], cuts: list[int]) -> None:
    stream = b"".join(map(encode, commands))
    decoder = FrameDecoder()
    found: list[RemotingCommand] = []
    at, turn = 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(memoryview(stream)[at : at + step])
        at, turn = at + step, turn + 1
    assert decoder.error is None
    assert found == commands


@given(st.binary(max_size=300), st.integers(0, 1), st.booleans())
def test_garbage_is_refused_or_waits_and_never_more(data: bytes, codec: int, framed: bool) -> None:
    stream = frame(data, codec=codec) if framed else data
    decoder = FrameDecoder(frame_bytes_max=1 << 20)
    for command in decoder.feed(stream):
        _ask_everything(command)
    assert decoder.error is None or isinstance(decoder.error, FrameError)
    assert decoder.buffered <= len(stream)


@given(st.data())
def test_damaged_frames_are_refused_or_are_other_frames(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(SETS))
    raw = bytearray(data.draw(st.sampled_from(captures(name))).frame)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decoder = FrameDecoder()
    for command in decoder.feed(raw):
        _ask_everything(command)
    assert decoder.error is None or isinstance(decoder.error, FrameError)


def _ask_everything(command: RemotingCommand) -> None:
    assert all(isinstance(text, str) for pair in command.ext_fields.items() for text in pair)
    assert decode(encode(command))[0].ext_fields == {
        k: v for k, v in command.ext_fields.items() if v or command.serialize == JSON
    }
    for ask in (send_header, pull_header, offset_header):
        try:
            ask(command)
        except FieldError:
            pass
