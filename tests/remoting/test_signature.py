"""Signatures of requests: the header that is read once has the result of the fields as a dict, for random headers.

The expected value is made here with the module hmac. Room: tests; no sockets.
"""

from __future__ import annotations

import base64
import hmac
import json
import random
import struct
from typing import Any

import pytest

from mqfast.remoting.command import (
    JSON,
    ROCKETMQ,
    FrameDecoder,
    RemotingCommand,
    encode,
    repeated_name,
    send_header,
    signed_parts,
)
from mqfast.remoting.signature import is_signed_with, sign, signature_of, signer_of

SECRET = "12345678"
NAMES = (
    "a",
    "b",
    "ab",
    "i",
    "AccessKey",
    "SecurityToken",
    "Signature",
    "_UNIQUE_KEY_QUERY",
    "topic",
    "x\u00e9",
    "A",
    "",
)
VALUES = (
    "", "orders", "0", "UNIQ_KEY\x01U\x02", 'quo"te\\', "Größe", "\U0001f600", "\ud800", "null", "a" * 300, "\x00\x7f",
)  # fmt: skip


def expected(fields: dict[str, Any], body: bytes, *without: str, secret: str = SECRET) -> str:
    values = "".join([str(fields[name]) for name in sorted(fields) if name not in ("Signature", *without)])
    data = values.encode("utf-8", "replace") + body
    return base64.b64encode(hmac.new(secret.encode(), data, "sha1").digest()).decode()


def frame(extended: bytes, body: bytes = b"") -> bytes:
    """A request whose fields are these bytes of JSON."""
    head = b'{"code":310,"flag":0,"language":"JAVA","opaque":7,"version":477,"extFields":%s}' % extended
    return struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body


def received(data: bytes) -> RemotingCommand:
    decoder = FrameDecoder()
    (command,) = decoder.feed(data)
    return command


def agrees(data: bytes) -> None:
    """Compare all readers of this frame with its fields."""
    fields, body = received(data).ext_fields, received(data).body
    signature = str(fields.get("Signature", ""))
    known = {expected(fields, body)}
    if "_UNIQUE_KEY_QUERY" in fields:
        known.add(expected(fields, body, "_UNIQUE_KEY_QUERY"))
    assert is_signed_with(received(data), SECRET) == (signature in known)
    assert not is_signed_with(received(data), SECRET + "9")
    assert signer_of(received(data)) == fields.get("AccessKey")
    parts = signed_parts(received(data))
    if parts is not None:
        assert parts[:2] == (fields.get("AccessKey"), fields.get("Signature"))
        assert expected({"": parts[2].decode()}, body) == expected(fields, body)
    command = received(data)  # each reader after another
    repeated = repeated_name(command)
    assert repeated_name(command) == repeated
    assert is_signed_with(command, SECRET) == (signature in known)
    assert command.ext_fields == fields
    assert is_signed_with(command, SECRET) == (signature in known)
    assert signer_of(command) == fields.get("AccessKey")


@pytest.mark.parametrize("serialize", [JSON, ROCKETMQ])
def test_the_signature_of_random_fields_is_that_of_the_dict(serialize: int) -> None:
    dice = random.Random(serialize)
    for _ in range(2000):
        fields = {name: dice.choice(VALUES) for name in dice.sample(NAMES, dice.randrange(len(NAMES)))}
        body = dice.choice([b"", b"body", bytes(70_000)])
        if dice.random() < 0.7:  # as the peer reads the fields
            sent = received(encode(RemotingCommand(310, fields, serialize=serialize))).ext_fields
            without = dice.choice([(), ("_UNIQUE_KEY_QUERY",)])
            fields["Signature"] = expected(sent, body, *without)
        agrees(encode(RemotingCommand(310, fields, body, serialize=serialize)))


def test_the_signature_of_random_json_is_that_of_the_dict() -> None:
    dice = random.Random(3)
    names = (
        b'"a"',
        b'"b"',
        b'"\\u0061"',
        b'"AccessKey"',
        b'"Signature"',
        b'"\\u0053ignature"',
        b'"x\xc3\xa9"',
        b'"\xff"',
    )
    values = (
        b"null", b'"v"', b"12", b"true", b"-1.5e3", b'{"n":[1]}', b"[ 1, 2 ]", b'"\\u0001\\u0002"', b'"\\ud83d\\ude00"',
        b'"\\ud800"', b'"\xff\xfe"', b'"\xe4\xbd\xa0"', b'"\xc3"', b'"\\n\\"\\\\"', b'""',
    )  # fmt: skip
    for _ in range(3000):
        pairs = [dice.choice(names) + b" : " + dice.choice(values) for _ in range(dice.randrange(6))]
        data = frame(b"{" + b" , ".join(pairs) + b"}", b"body")
        agrees(data)
        fields = received(data).ext_fields
        if b"ignature" not in data:
            signed = json.dumps(expected(fields, b"body")).encode()
            pairs.insert(dice.randrange(len(pairs) + 1), b'"Signature":' + signed)
            data = frame(b"{" + b",".join(pairs) + b"}", b"body")
            assert is_signed_with(received(data), SECRET)
            agrees(data)


@pytest.mark.parametrize("count", [31, 32, 33, 500])
@pytest.mark.parametrize("serialize", [JSON, ROCKETMQ])
def test_many_fields_and_names_with_the_same_begin_are_signed_in_their_order(serialize: int, count: int) -> None:
    names = ["n" * (i % 7) + str(i) for i in range(count - 2)]
    fields = sign({name: f"value {name}" for name in names[::-1]}, b"body", "key", SECRET)
    assert is_signed_with(received(encode(RemotingCommand(310, fields, b"body", serialize=serialize))), SECRET)
    agrees(encode(RemotingCommand(310, fields, b"body", serialize=serialize)))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200])
def test_secrets_of_every_length_sign_as_hmac_does(size: int) -> None:
    secret = "ü" * (size // 2) + "k" * (size % 2)
    for _ in range(2):  # the state of a key is used again
        for body in (b"body", [b"bo", memoryview(b"dy")], bytearray(b"body")):
            assert signature_of({"b": 1, "a": "x"}, body, secret) == expected(
                {"b": 1, "a": "x"}, b"body", secret=secret
            )


def test_a_signature_of_other_bytes_is_none() -> None:
    fields = {"a": "p", "b": "orders", "AccessKey": "key"}
    for wrong in (None, "", "é", "\ud800", signature_of(fields, b"body", SECRET)[:-1], "A" * 28):
        changed = {**fields, **({} if wrong is None else {"Signature": wrong})}
        for serialize in (JSON, ROCKETMQ):
            assert not is_signed_with(
                received(encode(RemotingCommand(310, changed, b"body", serialize=serialize))), SECRET
            )
    signed = sign(fields, b"body", "key", SECRET)
    assert is_signed_with(received(encode(RemotingCommand(310, signed, b"body"))), SECRET)
    assert not is_signed_with(received(encode(RemotingCommand(310, {**signed, "b": "other"}, b"body"))), SECRET)
    assert not is_signed_with(received(encode(RemotingCommand(310, signed, b"bodY"))), SECRET)
    assert is_signed_with(RemotingCommand(310, signed, b"body"), SECRET)


def test_a_header_that_is_read_twice_is_the_same_and_a_changed_command_is_read_anew() -> None:
    fields = {"a": "p", "b": "orders", "c": "d", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
    command = received(encode(RemotingCommand(310, fields)))
    assert send_header(command).topic == send_header(command).topic == "orders"
    made = RemotingCommand(310, fields)
    assert send_header(made).topic == "orders"
    made.ext_fields["b"] = "changed"
    assert send_header(made).topic == "changed"
