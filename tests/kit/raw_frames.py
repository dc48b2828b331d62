"""Frames of sends in many forms, and a connection that sends raw frames, for tests of reactors.

Room: tests. It must never use the codec of the package: frames are made by hand.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

__all__ = ["Raw", "binary_frame", "json_frame", "letters", "pull_fields", "strange_frame", "strange_pull"]

_LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip


def letters(number: int, topic: str = "T", queue_id: int = 0, properties: str | None = None) -> dict[str, str]:
    """The fields of a plain send by 310."""
    return {
        "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "0", "i": f"UNIQ_KEY\x01id{number:06}\x02" if properties is None else properties, "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip


def _framed(header: bytes, body: bytes, codec: int) -> bytes:
    total = 4 + len(header) + len(body)
    return total.to_bytes(4, "big") + bytes([codec]) + len(header).to_bytes(3, "big") + header + body


def json_frame(fields: dict[str, Any], body: bytes, *, code: int = 310, opaque: int = 1, **more: Any) -> bytes:
    """A request in JSON; ``more``: other members of the header."""
    if code == 10:
        fields = {_LONG.get(name, name): value for name, value in fields.items()}
    header = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "version": 479,
        **more,
    }
    return _framed(json.dumps(header, separators=(",", ":")).encode(), body, 0)


def binary_frame(
    fields: dict[str, Any], body: bytes, *, code: int = 310, opaque: int = 1, flag: int = 0, remark: bytes = b""
) -> bytes:
    """A request in the binary codec."""
    if code == 10:
        fields = {_LONG.get(name, name): value for name, value in fields.items()}
    pairs = b""
    for name, value in fields.items():
        text = str(value).encode()
        pairs += len(name).to_bytes(2, "big") + name.encode() + len(text).to_bytes(4, "big") + text
    header = code.to_bytes(2, "big") + b"\0" + (479).to_bytes(2, "big") + opaque.to_bytes(4, "big", signed=True)
    header += flag.to_bytes(4, "big") + len(remark).to_bytes(4, "big") + remark + len(pairs).to_bytes(4, "big") + pairs
    return _framed(header, body, 1)


_PROPERTIES = (
    "UNIQ_KEY\x01{id}\x02", "UNIQ_KEY\x01{id}", "TAGS\x01A\x02UNIQ_KEY\x01{id}\x02",
    "KEYS\x01k {id}\x02UNIQ_KEY\x01{id}",
    "", "UNIQ_KEY\x01\x02", "WAIT\x01false\x02UNIQ_KEY\x01{id}\x02", "WAIT\x01true\x02UNIQ_KEY\x01{id}",
    "UNIQ_KEY\x01{id}\x02WAIT\x01true", "UNIQ_KEY\x01a\"b\\c{id}\x02", "UNIQ_KEY\x01ü€😀{id}\x02",
    "text\x01ü€😀\x02UNIQ_KEY\x01{id}",
    "MSG_REGION\x01other\x02UNIQ_KEY\x01{id}\x02", "CLUSTER\x01c\x02UNIQ_KEY\x01{id}", "UNIQ_KEY\x01" + "x" * 200,
    "TRACE_ON\x01false\x02UNIQ_KEY\x01{id}\x02", "\x02UNIQ_KEY\x01{id}\x02", "no separator",
    "UNIQ_KEY\x01{id}\x02\x02x\x01\x02",
)  # fmt: skip
_NUMBERS = ("0", "1", "+1", "-1", "007", "2147483647", "2147483648", "x", "", "1.0", "9223372036854775808")


def strange_frame(chance: random.Random, number: int, topic: str) -> bytes:
    """A send that is plain, unusual or wrong; its connection stays usable."""
    identity = f"id{number:06}"
    fields: dict[str, Any] = letters(number, topic, chance.randrange(4))
    fields["i"] = chance.choice(_PROPERTIES).replace("{id}", identity)
    for name in chance.sample("defghjlmkbc", chance.choice((0, 0, 1))):
        fields[name] = chance.choice(_NUMBERS)
    if chance.random() < 0.1:
        del fields[chance.choice(list(fields))]
    if chance.random() < 0.1:
        fields[chance.choice(("n", "z", "other", "ab"))] = chance.choice(("", "broker-a", "0"))
    if chance.random() < 0.1:
        fields["f"] = chance.choice(("1", "2", "4", "8", "16", "32", "128"))
    body = chance.randbytes(chance.choice((0, 1, 100, 1000, 5000)))
    code = chance.choice((310, 310, 10))
    opaque = chance.choice((number, -number, 2**31 - 1))
    if chance.random() < 0.4:
        remark = chance.choice((b"", b"", b"a remark"))
        return binary_frame(fields, body, code=code, opaque=opaque, remark=remark)
    more: dict[str, Any] = chance.choice(
        ({}, {}, {"serializeTypeCurrentRPC": "JSON"}, {"remark": None}, {"x": [1, {}]})
    )
    if chance.random() < 0.1:
        more = {"flag": "0"}  # a number as text
    frame = json_frame(fields, body, code=code, opaque=opaque, **more)
    if chance.random() < 0.1 and b'"e":' in frame:  # a repeated name, and one with an escape
        header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
        header = header.replace(b'"e":', chance.choice((b'"e":"3","e":', b'"\\u0065":"3","e":')), 1)
        frame = _framed(header, body, 0)
    return frame


def pull_fields(offset: int, *, queue_id: int = 0, group: str = "readers", **more: Any) -> dict[str, str]:
    """The fields of a pull by 11 with the filter of the pull."""
    fields: dict[str, Any] = {
        "consumerGroup": group, "topic": "T", "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip
    fields.update(more)
    return {name: str(value) for name, value in fields.items() if value is not None}


def strange_pull(chance: random.Random, number: int, end: int) -> bytes:
    """A pull that is plain, unusual or wrong, and not held; its connection stays usable. Args: end: of the queues."""
    strange = chance.random() < 0.3
    offset = chance.choice((0, end - 1, end, end + 1, -1, end + 100)) if strange else chance.randrange(end)
    fields = pull_fields(offset, queue_id=chance.choice((2, 3, 4, -1) if strange else (0, 1)))
    fields["consumerGroup"] = chance.choice(("readers", "readers", "subscribers", "broadcasters"))
    if fields["consumerGroup"] == "subscribers":
        fields["sysFlag"] = "0"
        fields["subVersion"] = chance.choice(("0", "7", "7", "8"))
    if chance.random() < 0.5:
        fields["sysFlag"] = str(int(fields["sysFlag"]) | 1)
        fields["commitOffset"] = str(chance.choice((0, 1, chance.randrange(end), end, -1)))
    fields["subscription"] = chance.choice(("*", "*", "A", "A || BBBB"))
    if strange:
        fields["consumerGroup"] = chance.choice(("readers", "other", ""))
        fields["subscription"] = chance.choice(("none", "", "||", "(a > 1)", "*"))
        fields["expressionType"] = chance.choice(("", "SQL92", "TAG", "other"))
    fields["maxMsgNums"] = str(chance.choice((32, 32, 1, 0, -1, 5, 1024, 1025, 5000)))
    if chance.random() < 0.2:
        fields["maxMsgBytes"] = str(chance.choice((-1, 0, 1, 500, 3000, 1 << 30)))
    if strange and chance.random() < 0.5:
        fields[chance.choice(list(fields))] = chance.choice(_NUMBERS)
    if chance.random() < 0.05:
        del fields[chance.choice(list(fields))]
    if chance.random() < 0.05:
        fields[chance.choice(("bname", "requestSource", "proxyFrowardClientId"))] = chance.choice(("0", "1", "x"))
    code = chance.choice((11, 11, 361))
    opaque = chance.choice((number, -number, 2**31 - 1))
    if chance.random() < 0.4:
        return binary_frame(fields, b"", code=code, opaque=opaque)
    return json_frame(fields, b"", code=code, opaque=opaque)


class Raw:
    """A connection of raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, address: str) -> Raw:
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, frame: bytes) -> None:
        self.writer.write(frame)

    async def receive(self) -> bytes:
        """The next frame."""
        size = await self.reader.readexactly(4)
        return size + await self.reader.readexactly(int.from_bytes(size, "big"))

    async def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return await self.receive()

    def close(self) -> None:
        self.writer.close()
