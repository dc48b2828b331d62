"""Frames that real brokers, clients and tools sent to RocketMQ's name server, sent to ours: the same answers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remoting"))

from captures import SETS, Capture, captures

from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode
from mqfast.util.fastjson import standard

CLIENTS = [name for name in SETS if not name.endswith("registration")]
BROKERS = [name for name in SETS if name.endswith("registration")]


def decoded(frame: bytes) -> RemotingCommand:
    (command,) = FrameDecoder(1 << 26, 1 << 24).feed(frame)
    return command


class Wire:
    """A name server in memory, with one connection for each of the capture's."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter, FrameDecoder]] = {}

    async def tell(self, connection: int, frame: bytes) -> None:
        if connection not in self.open:
            self.open[connection] = (*await asyncio.open_connection(*self.server.address), FrameDecoder())
        self.open[connection][1].write(frame)

    async def ask(self, connection: int, frame: bytes) -> RemotingCommand:
        await self.tell(connection, frame)
        reader, _, decoder = self.open[connection]
        found: list[RemotingCommand] = []
        while not found:
            data = await asyncio.wait_for(reader.read(65536), 300)
            assert data, "the connection was closed"
            found = decoder.feed(data)
        return found[0]


def body_of(command: RemotingCommand) -> Any:
    return json.loads(standard(command.body)) if command.body else None


async def played(
    name: str, tmp_path: Path, first: list[bytes]
) -> list[tuple[Capture, RemotingCommand, RemotingCommand]]:
    """(request, the answer that was captured, ours) of all that went to the name server."""
    config = NamesrvConfig()
    config.update({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}, "test")
    server = NameServer(config)
    await server.start()
    wire = Wire(server)
    found = []
    try:
        for frame in first:
            await wire.ask(-1, frame)
        rows = [row for row in captures(name) if row.peer == "namesrv"]
        for at, row in enumerate(rows):
            request = decoded(row.frame)
            if row.direction != "client->server":
                continue
            if request.is_oneway:
                await wire.tell(row.connection, row.frame)
                continue
            theirs = next(
                answer
                for later in rows[at + 1 :]
                if later.connection == row.connection
                and (answer := decoded(later.frame)).is_response
                and answer.opaque == request.opaque
            )
            found.append((row, theirs, await wire.ask(row.connection, row.frame)))
    finally:
        for _, writer, _ in wire.open.values():
            writer.close()
        await server.stop()
    return found


@pytest.mark.parametrize("name", BROKERS)
def test_brokers_register_as_they_did_with_java(name: str, tmp_path: Path) -> None:
    seen = set()
    for row, theirs, mine in asyncio.run(played(name, tmp_path, [])):
        request = decoded(row.frame)
        seen.add(request.code)
        assert mine.code == theirs.code, (row.flow, request, mine)
        assert mine.opaque == request.opaque
        assert mine.serialize == request.serialize
        if theirs.code == 0:
            assert {k: v for k, v in mine.ext_fields.items() if v} == {k: v for k, v in theirs.ext_fields.items() if v}
            ours, java = body_of(mine), body_of(theirs)
            if request.code == 322 and java:
                java.setdefault("stateVersion", 0)  # since 5.0
            assert ours == java, (row.flow, request)
    assert {103, 104} <= seen


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_get_routes_as_from_java(name: str, tmp_path: Path) -> None:
    """The broker of these captures registers first; a topic that it made meanwhile it tells as a broker does."""

    def registration(address: str, cluster: str, broker: str, topics: dict[str, dict[str, Any]]) -> bytes:
        table = {
            topic: {"topicName": topic, "perm": one["perm"], "readQueueNums": one["readQueueNums"],
                    "writeQueueNums": one["writeQueueNums"], "topicSysFlag": one["topicSysFlag"]}
            for topic, one in topics.items()
        }  # fmt: skip
        version = {"counter": 1, "timestamp": 1, "stateVersion": 0}
        body = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table}}).encode()
        header = {
            "brokerName": broker,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": "h:1",
            "brokerId": 0,
        }
        return encode(RemotingCommand(103, header, body, version=479))

    known: dict[str, dict[str, Any]] = {}
    where: dict[str, Any] = {}
    for row in captures(name):
        if row.peer == "namesrv" and row.direction == "client->server" and decoded(row.frame).code == 105:
            topic = decoded(row.frame).ext_fields["topic"]
            answers = [
                decoded(later.frame)
                for later in captures(name)
                if later.connection == row.connection
                and later.direction == "server->client"
                and later.peer == "namesrv"
            ]
            (answer,) = [one for one in answers if one.opaque == decoded(row.frame).opaque][:1]
            if answer.code == 0:
                route = body_of(answer)
                known.setdefault(topic, route["queueDatas"][0])
                where = route["brokerDatas"][0]
    assert where, "no route was captured"
    known.setdefault("another", next(iter(known.values())))
    first = registration(where["brokerAddrs"]["0"], where["cluster"], where["brokerName"], known)
    compared = 0
    deleted = set()
    for row, theirs, mine in asyncio.run(played(name, tmp_path, [first])):
        request = decoded(row.frame)
        if request.code == 105:
            topic = request.ext_fields["topic"]
            if topic in deleted:
                continue  # the broker made it anew, which a name server cannot know
            if theirs.code == 0:
                mine_body, theirs_body = body_of(mine), body_of(theirs)
                assert mine_body["brokerDatas"] == [{**where}], row.flow
                assert mine_body.keys() == theirs_body.keys()
                assert mine_body["queueDatas"][0].keys() == theirs_body["queueDatas"][0].keys()
                assert (b'{"0":' in mine.body) == (b'{"0":' in theirs.body)
                compared += 1
            elif topic not in known:
                assert (mine.code, mine.remark) == (17, theirs.remark)
        elif request.code == 106:
            assert body_of(mine) == body_of(theirs)
            assert (b"{0:" in mine.body) == (b"{0:" in theirs.body)
        else:
            assert mine.code == theirs.code, request
            if request.code == 216:
                deleted.add(request.ext_fields["topic"])
    assert compared
