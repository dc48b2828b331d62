"""The same requests to RocketMQ's name server and to ours: the same answers, but for the order of sets."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "remoting"))

from captures import captures
from real_programs import HERE, NEEDS_JAVA, NEWEST, Machine, OurNamesrv

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.util.fastjson import standard

pytestmark = NEEDS_JAVA

Request = tuple[int, dict[str, Any] | None, bytes, int]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    work = tmp_path_factory.mktemp("namesrv")
    machine = Machine(NEWEST, work, HERE / "Flow.java")
    ours = OurNamesrv(work)
    try:
        machine.start_namesrv()
        yield machine.namesrv, ours.address
    finally:
        machine.end_all()
        ours.stop()


def topics(*names: str, **more: Any) -> dict[str, Any]:
    config = {"perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    return {name: config | {"topicName": name, "order": False, "attributes": {}} | more for name in names}


def registration(
    name: str = "b1",
    broker_id: int = 0,
    *,
    cluster: str = "c1",
    table: dict[str, Any] | None = None,
    counter: int = 1,
    state: int = 0,
    version: int = 513,
    filters: list[str] | None = None,
    **fields: Any,
) -> Request:
    wrapper = {
        "dataVersion": {"counter": counter, "stateVersion": state, "timestamp": 1700000000000},
        "topicConfigTable": topics("T1", "T2") if table is None else table,
    }
    body = json.dumps({"filterServerList": filters or [], "topicConfigSerializeWrapper": wrapper}).encode()
    header = {
        "brokerName": name, "brokerAddr": f"10.0.0.{broker_id + 1}:10911", "clusterName": cluster,
        "haServerAddr": f"10.0.0.{broker_id + 1}:10912", "brokerId": broker_id, "compressed": False,
        "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
    }  # fmt: skip
    return 103, header | fields, body, version


def ask(code: int, body: bytes = b"", version: int = 513, **fields: Any) -> Request:
    return code, fields or None, body, version


def leave(name: str, broker_id: int, cluster: str = "c1") -> Request:
    address = f"10.0.0.{broker_id + 1}:10911"
    return ask(104, brokerName=name, brokerAddr=address, clusterName=cluster, brokerId=broker_id)


def route(topic: str, version: int = 513, **more: Any) -> Request:
    return ask(105, version=version, topic=topic, **more)


ALL = [ask(106), ask(206), ask(304), ask(224, cluster="c1"), route("T1"), route("T1", 317), route("T2")]
DATA_VERSION = b'{"counter":%d,"stateVersion":0,"timestamp":1700000000000}'


def packed(*lines: str, mappings: bool) -> bytes:
    pieces = [DATA_VERSION % 9, len(lines), *(line.encode() for line in lines), b"[]"]
    if mappings:
        pieces.append(0)
    return zlib.compress(
        b"".join(struct.pack(">i", p) if isinstance(p, int) else struct.pack(">i", len(p)) + p for p in pieces)
    )


def compressed(body: bytes, **fields: Any) -> Request:
    _, header, _, version = registration()
    assert header is not None
    return 103, header | {"compressed": True, "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF} | fields, body, version


def captured(name: str) -> list[Request]:
    found = []
    for capture in captures(name):
        (command,) = FrameDecoder().feed(capture.frame)
        if capture.peer == "namesrv" and not command.is_response and not command.is_oneway:
            found.append((command.code, command.ext_fields, command.body, command.version))
    return found


SCRIPTS: dict[str, list[Request]] = {
    "nothing is there": [*ALL, ask(311), ask(312), ask(313), ask(901, clusterName="c1", brokerName="b1")],
    "a master, its slave, and their end": [
        registration(), *ALL, registration(broker_id=1), *ALL, ask(901, clusterName="c1", brokerName="b1"),
        leave("b1", 0), *ALL, leave("b1", 1), *ALL, leave("b1", 1),
    ],
    "two brokers of a cluster and one of another": [
        registration("a"), registration("b", table=topics("T2", "T3")),
        registration("x", cluster="c2", table=topics("T1", "T9")), *ALL, ask(224, cluster="c2"),
        ask(224, cluster="none"), ask(216, topic="T1", clusterName="c2"), *ALL, ask(216, topic="T1"), *ALL,
        ask(216, topic="none"), leave("a", 0), *ALL,
    ],
    # Java keeps the name of a broker that it refused, without an address and for ever; ours keeps nothing of it.
    "a first registration with one topic, then with all, then the changed one": [
        registration(table=topics("T1")), registration(), registration(table=topics("T3"), counter=2), *ALL,
        registration(table=topics("T1", perm=4), counter=2), route("T1"),
        registration(table=topics("T1", perm=4), counter=3), route("T1"),
    ],
    "a table whose version did not change is not looked at": [
        registration(), registration(table=topics("T1", "T2", "T4", readQueueNums=3)), route("T1"), route("T4"),
    ],
    "data versions": [
        ask(322, DATA_VERSION % 1, brokerName="b1", brokerAddr="10.0.0.1:10911", clusterName="c1", brokerId=0),
        registration(),
        ask(322, DATA_VERSION % 1, brokerName="b1", brokerAddr="10.0.0.1:10911", clusterName="c1", brokerId=0),
        ask(322, DATA_VERSION % 2, brokerName="b1", brokerAddr="10.0.0.1:10911", clusterName="c1", brokerId=0),
        ask(904, brokerName="b1", brokerAddr="10.0.0.1:10911", clusterName="c1"),
    ],
    "a broker changes its id, and another takes its place": [
        registration(), registration(broker_id=1), registration(brokerAddr="10.0.0.1:10911", broker_id=2), *ALL,
        registration(brokerAddr="10.9.9.9:10911", counter=7), *ALL,
    ],
    "an older state does not take the place of a newer": [
        registration(state=5), registration(state=4, brokerAddr="10.9.9.9:10911"), *ALL,
        registration(state=6, brokerAddr="10.9.9.9:10911"), *ALL,
    ],
    "write permission": [
        registration(), ask(205, brokerName="b1"), *ALL, ask(327, brokerName="b1"), *ALL, ask(205, brokerName="none"),
    ],
    "acting masters": [
        registration(enableActingMaster=True), registration(broker_id=1, enableActingMaster=True), *ALL,
        leave("b1", 0), *ALL, registration(broker_id=1, enableActingMaster=True, counter=5), *ALL,
        ask(901, clusterName="c1", brokerName="b1"),
    ],
    "zones": [
        registration("a", __ZONE_NAME="z1"), registration("b", 1, __ZONE_NAME="z2"), ask(106),
        route("T1", __ZONE_MODE="true", __ZONE_NAME="z1"), route("T1", __ZONE_MODE="false", __ZONE_NAME="z1"),
        route("T1", __ZONE_NAME="z1"), route("T1", __ZONE_MODE="true"), route("none", __ZONE_MODE="true"),
    ],
    "filter servers": [registration(filters=["10.0.0.1:1", "10.0.0.1:2"]), *ALL, registration(counter=2), *ALL],
    "names beyond ASCII": [registration("брокер", table=topics("тема", "é|%-_")), ask(106), route("тема"),
                           route("тема", 317), ask(206)],
    "key words of routes": [
        registration(), route("T1", 317, acceptStandardJsonOnly="true"), route("T1", 317, acceptStandardJsonOnly=False),
        route("T1", 400), route("T1", 401),
    ],
    "units": [
        registration(table=topics("U", topicSysFlag=1) | topics("S", topicSysFlag=2) | topics("B", topicSysFlag=3)),
        ask(311), ask(312), ask(313),
    ],
    "topics that an admin gives": [
        registration(), ask(217, b'{"queueDatas":[{"brokerName":"b1","perm":6,"readQueueNums":2,"writeQueueNums":2}]}',
                            topic="given"), route("given"),
        ask(217, b'{"queueDatas":[{"brokerName":"none","perm":6}]}', topic="no"), route("no"),
        ask(217, b'{"queueDatas":[]}', topic="no"), route("no"),
    ],
    "values": [
        ask(101, namespace="n", key="k"), ask(219, namespace="n"), ask(100, namespace="n", key="k", value="v\"é\n"),
        ask(101, namespace="n", key="k"), ask(219, namespace="n"), ask(100, key="k", value="v"),
        ask(102, namespace="n", key="k"), ask(101, namespace="n", key="k"), ask(219, namespace="n"),
        ask(102, namespace="none", key="k"),
    ],
    "ordered topics": [
        ask(100, namespace="ORDER_TOPIC_CONFIG", key="T1", value="b1:4"), registration(), route("T1"),
        ask(318, b"orderMessageEnable=true"), route("T1"), route("T1", 317), route("T2"),
        ask(318, b"orderMessageEnable=false\nreturnOrderTopicConfigToBroker=false"), registration(), route("T1"),
        ask(318, b"returnOrderTopicConfigToBroker=true"), ask(102, namespace="ORDER_TOPIC_CONFIG", key="T1"),
    ],
    "settings": [
        ask(318, b"enableTopicList=false\nenableAllTopicList=false"), ask(206), ask(224, cluster="c"), ask(311),
        ask(318, b"enableTopicList=true\nenableAllTopicList=true"), ask(206), ask(318, b"kvConfigPath=x"),
        ask(318, b"configBlackList=x"),
        ask(318, b"deleteTopicWithBrokerRegistration=true"), registration(), registration(table=topics("T2", "T3"),
        counter=2), ask(206), ask(318, b"deleteTopicWithBrokerRegistration=false"),
    ],
    "compressed": [
        compressed(packed("T1 8 8 6 SINGLE_TAG {}", "T2 4 4 4 SINGLE_TAG {}", mappings=True)), *ALL,
        leave("b1", 0),
        compressed(packed("T1 8 8 6 SINGLE_TAG {}", "T2 4 4 4 SINGLE_TAG {}", mappings=True), bodyCrc32=0), *ALL,
    ],
    "registrations that are none": [
        registration(bodyCrc32=1), *ALL, (103, registration()[1], b"", 513), *ALL,
    ],
    "no such code": [ask(4711), ask(28)],
    "brokers of 5.3.3": captured("broker-5.3.3-registration"),
    "brokers of 4.9.7": captured("broker-4.9.7-registration"),
}  # fmt: skip

# Answers whose words are Java's own exceptions: only their code is compared.
_JAVA_WORDS = ("Exception", "java.")


async def play(address: str, script: list[Request]) -> list[RemotingCommand]:
    """The answers to a script, each broker of which comes by a connection of its own."""
    clients: dict[str, RemotingClient] = {}
    answers = []
    try:
        for code, fields, body, version in script:
            by = str((fields or {}).get("brokerAddr")) + str((fields or {}).get("brokerName")) if code == 103 else ""
            client = clients.setdefault(by, RemotingClient())
            answer = await client.call(address, code, fields, body, timeout_ms=20_000, version=version)
            answers.append(answer)
            if code == 104:
                assert fields is not None
                await is_gone(client, address, str(fields["brokerName"]), str(fields["brokerAddr"]))
    finally:
        for client in clients.values():
            await client.close()
    return answers


async def is_gone(client: RemotingClient, address: str, name: str, broker: str) -> None:
    """Java unregisters in a thread of its own."""
    for _ in range(400):
        body = json.loads(standard((await client.call(address, 106)).body))
        if broker not in body["brokerAddrTable"].get(name, {}).get("brokerAddrs", {}).values():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{address} still knows {name}")


async def forget_all(address: str) -> None:
    client = RemotingClient()
    try:
        body = json.loads(standard((await client.call(address, 106)).body))
        for name, group in body["brokerAddrTable"].items():
            for broker_id, broker in group["brokerAddrs"].items():
                fields = {"brokerName": name, "brokerAddr": broker, "clusterName": group["cluster"]}
                await client.call(address, 104, fields | {"brokerId": broker_id})
                await is_gone(client, address, name, broker)
        for topic in json.loads((await client.call(address, 206)).body)["topicList"]:
            await client.call(address, 216, {"topic": topic})
    finally:
        await client.close()


def shape(answer: RemotingCommand) -> tuple[Any, ...]:
    body = bytes(answer.body)
    if body[:1] == b"{":
        body = _sorted_lists(body)
    remark = answer.remark
    if remark == "not set any response code":
        remark = None
    if remark is not None and (any(word in remark for word in _JAVA_WORDS) or "Error: field" in remark):
        remark = "an exception's words"
    return answer.code, {k: v for k, v in answer.ext_fields.items() if v is not None}, remark, body


def _sorted_lists(body: bytes) -> bytes:
    """Java's sets and maps have no order: the JSON with its lists sorted, and what is peculiar to its text."""
    value = json.loads(standard(body))

    def order(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: order(one[key]) for key in sorted(one)}
        if isinstance(one, list):
            return sorted(map(order, one), key=lambda each: json.dumps(each, sort_keys=True))
        return one

    bare = b'"brokerAddrs":{0:' in body or b'"brokerAddrs":{1:' in body or b'"brokerAddrs":{2:' in body
    names = [name for name in (b"brokerDatas", b"filterServerTable", b"queueDatas") if name in body]
    return json.dumps([order(value), bare, [name.decode() for name in names], b"\\u" in body]).encode()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_answers_are_those_of_java(name: str, addresses: tuple[str, str]) -> None:
    async def both() -> list[list[RemotingCommand]]:
        found = []
        for address in addresses:
            await forget_all(address)
            found.append(await play(address, SCRIPTS[name]))
        return found

    for request, theirs, mine in zip(SCRIPTS[name], *asyncio.run(both()), strict=True):
        if (request[1] or {}).get("__ZONE_MODE") == "true":  # there Java writes bare keys, whatever was asked for
            theirs = theirs.response(theirs.code, theirs.ext_fields, standard(theirs.body), remark=theirs.remark)
        assert shape(mine) == shape(theirs), (request[0], request[1], request[2][:200], request[3])


def test_a_closed_connection_takes_its_brokers_with_it(addresses: tuple[str, str]) -> None:
    async def gone(address: str) -> list[tuple[Any, ...]]:
        await forget_all(address)
        await play(address, [registration(), registration(broker_id=1)])
        client = RemotingClient()
        try:
            for broker in ("10.0.0.1:10911", "10.0.0.2:10911"):
                await is_gone(client, address, "b1", broker)
            return [shape(await client.call(address, code)) for code in (106, 206)]
        finally:
            await client.close()

    java, ours = (asyncio.run(gone(address)) for address in addresses)
    assert ours == java
