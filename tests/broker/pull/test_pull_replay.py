"""Requests of real consumers, replayed frame by frame: our answers beside those that RocketMQ gave.

Times, hosts and message ids aside, each field that a Java broker sent is in our answer with the same value.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

from raw_frames import json_frame
from running import Running, running_broker
from waiting import until_async as until

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2] / "remoting"))

from captures import Capture, captures
from pulling import run

from mqfast.remoting.command import FrameDecoder, RemotingCommand

# In the order in which they were captured.
FLOWS = [
    "send-v2", "send-v1", "send-batch", "send-oneway", "send-async", "send-compressed", "send-delay", "pull-found",
    "pull-no-match", "pull-not-found-no-hold", "pull-held-until-timeout", "pull-held-then-message", "pull-offset-moved",
    "offset-query-update", "offset-max-min-time", "push-consumer-start", "push-consumer-second-joins",
    "push-consumer-second-leaves", "orderly-lock-unlock", "push-consumer-stop",
]  # fmt: skip
ONS_FLOWS = ["send-first", "send-v2", "send-compressed", "send-delay", "consumer-start-and-pull",
             "held-pull-then-message", "retry-and-offset-update", "shutdown"]  # fmt: skip
COMPARED = {11, 361, 14, 15, 29, 30, 31, 32}
SENT = COMPARED | {10, 310, 320, 34, 35, 38, 41, 42, 36}
QUERY_OFFSET = 14
RUNTIME_INFO = 28
OWN_OPAQUE = -46  # no client has it
PULLS = (11, 361)
VOLATILE = {"timestamp"}


class Wire:
    """The connections of one capture."""

    def __init__(self, one: Running) -> None:
        self.one = one
        self.streams: dict[int, tuple[asyncio.StreamWriter, asyncio.Task[None]]] = {}
        self.answers: dict[tuple[int, int], deque[RemotingCommand]] = {}

    async def send(self, connection: int, frame: bytes) -> None:
        if connection not in self.streams:
            host, port = self.one.broker.address
            reader, writer = await asyncio.open_connection(host, port)
            self.streams[connection] = writer, asyncio.ensure_future(self._read(connection, reader))
        self.streams[connection][0].write(frame)

    async def _read(self, connection: int, reader: asyncio.StreamReader) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for command in decoder.feed(data):
                if command.is_response:
                    self.answers.setdefault((connection, command.opaque), deque()).append(command)

    async def answer(self, connection: int, opaque: int) -> RemotingCommand:
        key = connection, opaque
        await until(lambda: self.answers.get(key), f"the answer to {key}")
        return self.answers[key].popleft()

    async def close(self) -> None:
        for writer, task in self.streams.values():
            writer.close()
            await task


def headers(rows: list[Capture]) -> list[tuple[Capture, dict[str, Any]]]:
    return [(row, json.loads(row.header)) for row in rows if row.peer == "broker"]


def differences(theirs: dict[str, Any], mine: RemotingCommand) -> list[str]:
    found = []
    if theirs["code"] != mine.code:
        found.append(f"code: {theirs['code']} {mine.code} {mine.remark}")
    if (theirs.get("remark") or None) != mine.remark:
        found.append(f"remark: {theirs.get('remark')!r} {mine.remark!r}")
    fields = theirs.get("extFields") or {}
    for name, value in fields.items():
        if name not in mine.ext_fields:
            found.append(f"{name} is missing")
        elif name not in VOLATILE and str(mine.ext_fields[name]) != str(value):
            found.append(f"{name}: {value} {mine.ext_fields[name]}")
    return found


async def replay(one: Running, name: str, flow: str) -> tuple[int, list[str]]:
    """Send what the clients sent, and compare what comes back. Returns: how much was compared, and what differs."""
    wire, compared, found = Wire(one), 0, []
    rows = headers([row for row in captures(name) if row.flow == flow])
    waiting: dict[tuple[int, int], dict[str, Any]] = {}  # requests that the capture shows unanswered so far
    for row, header in rows:
        key = row.connection, header["opaque"]
        is_answer = bool(header.get("flag", 0) & 1)
        if row.direction == "client->server" and not is_answer:
            if header["code"] not in SENT:
                continue
            held = [one_ for one_ in waiting.values() if one_["code"] in PULLS]
            if held and header["code"] in (310, 10):
                await until(lambda: len(one.parts.long_polling) >= 1, "the hold")
            await wire.send(row.connection, row.frame)
            if header.get("flag", 0) & 2:  # served before the next request of any other connection
                await wire.send(row.connection, json_frame({}, b"", code=RUNTIME_INFO, opaque=OWN_OPAQUE))
                await wire.answer(row.connection, OWN_OPAQUE)
            else:
                waiting[key] = header
            if header["code"] == QUERY_OFFSET:  # before a commit that another connection sends
                await until(lambda key=key: wire.answers.get(key), "the offset")
        elif is_answer and row.direction == "server->client" and key in waiting:
            request = waiting.pop(key)
            mine = await wire.answer(*key)
            if is_comparable(request, header):
                compared += 1
                found += [f"{flow} {request['code']} {key}: {text}" for text in differences(header, mine)]
                # 4.9.7 stores fewer properties, and before 5.5 messages of a batch (queue 1) have more of them.
                same = name.startswith("5.") and flow.startswith("pull-")
                if request["code"] in PULLS and same and len(mine.body) != body_size(row):
                    found.append(f"{flow} {request['code']} {key}: body {body_size(row)} {len(mine.body)}")
    await wire.close()
    return compared, found


def is_comparable(request: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Not what depends on when a message was stored, or on a pull that came before its heartbeat was looked at."""
    time_ms = int(request.get("extFields", {}).get("timestamp", 0))
    return request["code"] in COMPARED and time_ms in (0, 2**63 - 1) and answer["code"] != 25


def body_size(row: Capture) -> int:
    total = int.from_bytes(row.frame[:4], "big")
    return total - 4 - (int.from_bytes(row.frame[4:8], "big") & 0xFFFFFF)


async def replay_all(one: Running, name: str) -> int:
    one.context.topics.put(one.context.topics.raw("WireTopic", 2, 6))
    compared, found = 0, []
    for step in FLOWS:
        if step == "pull-found":  # the delayed message has come
            await until(lambda: one.context.store.max_offset("WireTopic", 0) >= 5, "the delayed message")
        count, differing = await replay(one, name, step)
        compared += count
        found += differing
    assert not found, "\n".join(found)
    return compared


def test_java_consumers_of_all_releases_and_codecs(tmp_path: Path) -> None:
    async def on_a_broker(name: str) -> int:
        async with running_broker(tmp_path / name, brokerName="brk", brokerClusterName="golden") as one:
            return await replay_all(one, name)

    async def flow() -> None:
        names = ("5.3.3-json", "5.3.3-rocketmq", "4.9.7-json", "binary-broker-4.9.7-rocketmq")
        compared = await asyncio.gather(*map(on_a_broker, names))  # most of the time they wait
        assert min(compared) > 30

    run(flow())


def test_ali_ons(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, brokerName="brk", brokerClusterName="golden") as one:
            one.context.topics.put(one.context.topics.raw("OnsTopic", 2, 6))
            compared, found = 0, []
            for step in ONS_FLOWS:
                count, differing = await replay(one, "ali-ons", step)
                compared += count
                found += differing
            assert not found, "\n".join(found)
            assert compared > 10

    run(flow())
