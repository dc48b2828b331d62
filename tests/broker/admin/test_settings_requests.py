"""Settings of a running broker, asked and changed by admin requests, and the file that keeps the changes."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from running import Running, broker_config, serve

from mqfast.broker.admin.settings_requests import with_settings
from mqfast.broker.broker import Broker
from mqfast.broker_conf import parse_properties
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand


def settings_of(answer: RemotingCommand) -> dict[str, str]:
    return parse_properties(bytes(answer.body).decode())


def test_all_settings_are_told_without_secrets(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        answer = await one.call(26)
        found = settings_of(answer)
        assert found["brokerName"] == "broker-a"
        assert found["mappedFileSizeCommitLog"] == str(1 << 20)
        assert found["autoCreateTopicEnable"] == "true"
        assert found["fileReservedTime"] == "72"
        assert found["flushDiskType"] == "ASYNC_FLUSH"
        assert "tls.server.keyPassword" not in found
        names = [line.split("=")[0] for line in bytes(answer.body).decode().splitlines()]
        assert names == sorted(names)
        assert json.loads(answer.ext_fields["version"]).keys() == {"counter", "stateVersion", "timestamp"}

    serve(tmp_path, flow)


def test_a_change_acts_at_once(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.send("first", b"x")).code == 0
        assert (await one.call(25, b"autoCreateTopicEnable=false\n")).code == 0
        assert (await one.send("second", b"x")).code == 17
        assert settings_of(await one.call(26))["autoCreateTopicEnable"] == "false"
        version = json.loads((await one.call(26)).ext_fields["version"])
        assert version["counter"] == 1

    serve(tmp_path, flow)


def test_retention_follows_a_change(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(25, b"fileReservedTime=5\ndeleteWhen=03;17\n")).code == 0
        policy = one.context.store.retention.policy()
        assert "5 h" in policy
        assert "03,17" in policy
        assert settings_of(await one.call(26))["fileReservedTime"] == "5"

    serve(tmp_path, flow)


def test_a_change_of_something_else_lets_nothing_be_deleted(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        before = one.context.store.retention.policy()
        assert "nothing is deleted" in before
        assert (await one.call(25, b"flushIntervalCommitLog=700\n")).code == 0
        assert one.context.store.retention.policy() == before

    serve(tmp_path, flow)


def test_the_permission_of_the_broker_is_registered_anew(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        before = one.context.topics.table.data_version["counter"]
        assert (await one.call(25, b"brokerPermission=4\n")).code == 0
        assert one.context.config["brokerPermission"] == 4
        assert one.context.topics.table.data_version["counter"] > before

    serve(tmp_path, flow)


@pytest.mark.parametrize(
    "line",
    [
        "configBlackList=x", "rocketmqHome=/", "brokerConfigPath=/tmp/x", "listenPort=1", "bindAddress=0.0.0.0",
        "storePathRootDir=/tmp/x", "storePathCommitLog=/tmp/x", "tls.server.keyPath=/x", "aclEnable=false",
        "metricsPromExporterHost=0.0.0.0", "autoCreateTopicEnable=false\nlistenPort=1",
    ],
)  # fmt: skip
def test_what_is_for_the_owner_alone_is_refused(tmp_path: Path, line: str) -> None:
    async def flow(one: Running) -> None:
        before = bytes((await one.call(26)).body)
        answer = await one.call(25, line.encode())
        assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
        assert bytes((await one.call(26)).body) == before

    serve(tmp_path, flow)


def test_the_owner_can_forbid_more(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(25, b"traceOn=false\n")).code == 16
        assert (await one.call(25, b"autoCreateTopicEnable=false\n")).code == 0

    serve(tmp_path, flow, configBlackList="configBlackList;traceOn")


def test_unknown_names_and_empty_bodies_change_nothing(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for body in (b"", b"noSuchSetting=1\n", b"\xff\xfe", b"# a comment"):
            assert (await one.call(25, body)).code == 0
        assert "noSuchSetting" not in settings_of(await one.call(26))

    serve(tmp_path, flow)


def test_a_value_of_the_wrong_kind_is_refused_by_name(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        before = settings_of(await one.call(26))
        for line, name in (
            (b"autoCreateTopicEnable=maybe\nfileReservedTime=9", "autoCreateTopicEnable"),
            (b"autoCreateTopicEnable=false\nmappedFileSizeConsumeQueue=0", "mapped_file_bytes_consume_queue"),
        ):
            answer = await one.call(25, line)
            assert answer.code == 1
            assert name in str(answer.remark)
            assert settings_of(await one.call(26)) == before, "all of it or nothing"

    serve(tmp_path, flow)


def test_changes_are_kept_in_the_file_of_the_start(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# mine\nbrokerName=kept\nautoCreateTopicEnable = \\\n  true\nfileReservedTime=10\n")

    async def flow() -> None:
        config = broker_config(tmp_path / "store")
        config.read_file(conf)
        broker = Broker(config)
        await broker.start()
        client = RemotingClient()
        try:
            address = "{}:{}".format(*broker.address)
            body = "autoCreateTopicEnable=false\nfileReservedTime=11\nmsgTraceTopicName=\u00e9 x\nunknown=1\n"
            assert (await client.call(address, 25, {}, body.encode())).code == 0
        finally:
            await client.close()
            await broker.stop()

    asyncio.run(flow())
    text = conf.read_text("latin-1")
    assert text.startswith("# mine\nbrokerName=kept\n")
    found = parse_properties(text)
    assert found == {
        "brokerName": "kept",
        "autoCreateTopicEnable": "false",
        "fileReservedTime": "11",
        "msgTraceTopicName": "\u00e9 x",
    }


def test_any_file_keeps_its_other_settings() -> None:
    rng = random.Random(7)
    pieces = [
        "a=1",
        "b : 2",
        "c",
        " d=\\",
        "  a=x",
        "# a=2",
        "! b\\",
        "\\u0061=3",
        "a\\=b=4",
        "",
        "e=f\\\\",
        "a 5",
        "a:",
    ]
    for _ in range(500):
        text = "".join(rng.choice(pieces) + "\n" for _ in range(rng.randrange(8)))
        wanted = {name: rng.choice(["", " lead", "tail ", "back\\slash", "\u4e2d", "x=y"]) for name in ("a", "b")}
        before = parse_properties(text)
        after = parse_properties(with_settings(text, wanted))
        assert {name: value for name, value in after.items() if name not in wanted} == {
            name: value for name, value in before.items() if name not in wanted
        }, text
        assert {name: after[name].strip() for name in wanted} == {n: value.strip() for n, value in wanted.items()}, text
