"""The rows of one task as Spark's sink sends them, for tests of a broker that stores each once."""

from __future__ import annotations

import zlib
from typing import Any, Protocol

from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.once import ONCE, RowSequence, SequenceRange


class Caller(Protocol):
    """A client that makes requests."""

    async def call(self, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand: ...


class Task:
    """The rows of one task for one queue, as a sink sends them."""

    def __init__(self, bodies: list[bytes], batch: int = 7, partition: int = 3, key: str = "k" * 16) -> None:
        self.bodies = bodies
        self.marks = []
        crc = 0
        for row, body in enumerate(bodies):
            crc = zlib.crc32(body, crc)
            self.marks.append(RowSequence(key, batch, partition, 2 * row, crc, 4, 1))  # every second row goes elsewhere

    def properties(self, n: int, more: str = "") -> bytes:
        return f"{more}SPK\x01{self.marks[n].text()}\x02".encode()

    def body(self, begin: int, end: int) -> bytes:
        items = []
        for n in range(begin, end):
            properties = self.properties(n)
            size = 22 + len(self.bodies[n]) + len(properties)
            head = b"".join(number.to_bytes(4, "big") for number in (size, 0, 0, 7, len(self.bodies[n])))
            items.append(head + self.bodies[n] + len(properties).to_bytes(2, "big") + properties)
        return b"".join(items)

    def span(self, begin: int, end: int) -> str:
        previous = self.marks[begin - 1].row if begin else -1
        return SequenceRange(previous, self.marks[end - 1]).text()

    async def send(self, one: Caller, begin: int, end: int, queue_id: int = 1, **more: Any) -> RemotingCommand:
        return await one.call(
            RequestCode.SEND_BATCH_MESSAGE, self.body(begin, end),
            **{
                "a": "p", "b": "t", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": "", "j": 0,
                "k": "false", "m": "true", ONCE: self.span(begin, end), **more,
            },
        )  # fmt: skip


def how(answer: RemotingCommand) -> str:
    assert answer.code == 0, answer.remark
    return str(answer.ext_fields[ONCE])
