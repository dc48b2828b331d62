"""What POP consumers send, for tests: pops, acks and changes with any field changed, and the messages of answers."""

from __future__ import annotations

import base64
import json
import time
from typing import Any, NamedTuple

from running import Running

from mqfast.remoting.command import RemotingCommand
from mqfast.store.record.record import StoredMessage, decode_record

POP, ACK, PEEK, CHANGE, NOTIFY, POLLING, BATCH_ACK = 200050, 200051, 200052, 200053, 200054, 200055, 200151
INVISIBLE_MS = 60_000


class MovedClock:
    """The time of the machine, moved by a test: what is due in a minute is due at once."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class StandingClock:
    """A time that passes where a test says so only, however long the machine takes for a step; begins at half a second:
    the timer delivers what is due within a second at the end of that second.
    """

    def __init__(self) -> None:
        self.ms = time.time_ns() // 1_000_000_000 * 1000 + 500

    def __call__(self) -> int:
        return self.ms


class Popped(NamedTuple):
    """A message of an answer, with the handle as a client of RocketMQ builds it."""

    message: StoredMessage
    handle: str

    @property
    def body(self) -> bytes:
        return bytes(self.message.body)


async def pop(one: Running, *, count: int = 32, wait_ms: int = 0, age_ms: int = 0, **changed: Any) -> RemotingCommand:
    born_ms = int(time.time() * 1000) - age_ms if age_ms else 0
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": count, "invisibleTime": INVISIBLE_MS,
        "pollTime": wait_ms, "bornTime": born_ms, "initMode": 0, **changed,
    }  # fmt: skip
    given = {name: value for name, value in fields.items() if value is not None}
    return await one.call(POP, timeout_ms=30_000, **given)


def messages(answer: RemotingCommand, broker: str = "broker-a") -> list[Popped]:
    """The messages of an answer; handles by POP_CK, or by the texts of the header as Java's client builds these."""
    data, at, records = bytes(answer.body), 0, []
    while at < len(data):
        records.append(decode_record(data, at))
        at += int.from_bytes(data[at : at + 4], "big")
    fields = answer.ext_fields
    starts = {tuple(entry.split(" ")[:2]): entry.split(" ")[2] for entry in _entries(fields, "startOffsetInfo")}
    popped = []
    for record in records:
        handle = record.properties.get("POP_CK")
        if handle is None:
            kind = "0" if not record.topic.startswith("%RETRY%") else "2" if "+" in record.topic else "1"
            handle = " ".join([
                starts[kind, str(record.queue_id)], fields["popTime"], fields["invisibleTime"], fields["reviveQid"],
                kind, broker, str(record.queue_id), str(record.record_queue_offset),
            ])  # fmt: skip
        popped.append(Popped(record, handle))
    return popped


def _entries(fields: Any, name: str) -> list[str]:
    return [entry for entry in str(fields.get(name, "")).split(";") if entry]


def real_topic(handle: str, group: str = "g", topic: str = "T") -> str:
    kind = handle.split(" ")[4]
    return {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[kind]


async def ack(one: Running, handle: str, **changed: Any) -> RemotingCommand:
    parts = handle.split(" ")
    fields = {
        "consumerGroup": "g", "topic": real_topic(handle), "queueId": parts[6], "extraInfo": handle,
        "offset": parts[7], **changed,
    }  # fmt: skip
    return await one.call(ACK, **fields)


async def change(one: Running, handle: str, invisible_ms: int, **changed: Any) -> RemotingCommand:
    parts = handle.split(" ")
    fields = {
        "consumerGroup": "g", "topic": real_topic(handle), "queueId": parts[6], "extraInfo": handle,
        "offset": parts[7], "invisibleTime": invisible_ms, **changed,
    }  # fmt: skip
    return await one.call(CHANGE, **fields)


async def batch_ack(one: Running, handles: list[str], group: str = "g", topic: str = "T") -> RemotingCommand:
    acks = []
    for handle in handles:
        start, pop_time, invisible, revive, kind, _, queue, offset = handle.split(" ")
        bit = int(offset) - int(start)
        bits = (1 << bit).to_bytes(bit // 8 + 1, "little")
        acks.append({
            "c": group, "t": topic, "r": kind, "so": int(start), "q": int(queue), "rq": int(revive),
            "pt": int(pop_time), "it": int(invisible), "b": base64.b64encode(bits).decode(),
        })  # fmt: skip
    body = {"brokerName": "broker-a", "acks": acks}
    return await one.call(BATCH_ACK, json.dumps(body).encode())
