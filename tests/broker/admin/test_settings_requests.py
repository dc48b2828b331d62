"""Settings of a running broker, asked and changed by admin requests, and the file that keeps the changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from running import Running, broker_config, serve

from mqfast.broker.server import Broker
from mqfast.config import FIELD_OF_PROPERTY
from mqfast.errors import BrokerError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand
from mqfast.util.property_file import parse_properties


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


def test_no_setting_with_a_secret_is_told(tmp_path: Path) -> None:
    secrets = {
        "initAuthenticationUser": '{"username":"root","password":"sesame"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"sesame"}',
        "tls.server.keyPassword": "sesame",
        "tls.client.keyPassword": "sesame",
        "socksProxyConfig": '{"*":{"addr":"a:1","username":"u","password":"sesame"}}',
        "metricsGrpcExporterHeader": "token:sesame",
    }

    async def flow(one: Running) -> None:
        body = bytes((await one.call(26)).body)
        assert b"sesame" not in body
        assert not settings_of(await one.call(26)).keys() & secrets.keys()

    serve(tmp_path, flow, **secrets)


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
        assert (await one.call(25, b"transactionCheckMax=7\n")).code == 0
        assert one.context.store.retention.policy() == before

    serve(tmp_path, flow)


def test_the_permission_of_the_broker_is_registered_anew(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        before = one.context.topics.table.data_version["counter"]
        assert (await one.call(25, b"brokerPermission=4\n")).code == 0
        assert one.context.config["brokerPermission"] == 4
        assert one.context.topics.table.data_version["counter"] > before

    serve(tmp_path, flow)


@pytest.mark.parametrize("line", ["configBlackList=x", "brokerConfigPath=/tmp/x"])
def test_rocketmqs_black_list_has_its_text(tmp_path: Path, line: str) -> None:
    async def flow(one: Running) -> None:
        answer = await one.call(25, line.encode())
        assert (answer.code, answer.remark) == (16, "Can not update config in black list.")

    serve(tmp_path, flow)


def test_what_the_network_may_change_is_a_list(tmp_path: Path) -> None:
    """Every setting that acts at the next start only is refused, and nothing else is changed with it."""

    async def flow(one: Running) -> None:
        config = one.context.config
        before = bytes((await one.call(26)).body)
        acting = [name for name in (*config.names(), *FIELD_OF_PROPERTY) if config.acts(name)]
        live = {name for name in acting if config.is_live(name)}
        assert {"brokerPermission", "autoCreateTopicEnable", "namesrvAddr", "fileReservedTime"} <= live
        assert not {
            "haEtcdEndpoints", "haMasterAddress", "haListenPort", "haTruncateDiverged", "brokerRole", "brokerId",
            "brokerIP1", "connectionsMax", "frameMaxLength", "metricsExporterType", "storePathRootDir", "bindAddress",
            "listenPort", "aclEnable", "haTransferBatchSize", "flushDiskType", "rocketmqHome", "tls.server.mode",
        } & live  # fmt: skip
        for name in acting:
            if name not in live and name != "configBlackList":
                answer = await one.call(25, f"autoCreateTopicEnable=false\n{name}=1".encode())
                assert answer.code == 16, name
                assert name in str(answer.remark)
        assert bytes((await one.call(26)).body) == before

    serve(tmp_path, flow)


def test_the_network_does_not_choose_whose_log_a_slave_copies(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(25, b"namesrvAddr=192.0.2.1:9876")).code == 16

    serve(tmp_path, flow, brokerRole="SLAVE", brokerId=1)


@pytest.mark.parametrize(
    "line",
    [
        "msgTraceTopicName=x\\nbindAddress=0.0.0.0", "namesrvAddr=a:1\\rlistenPort=1", "unknown=a\\u000ab=1",
        "x\\ny=1", "namesrvAddr=a\\u0000",
    ],
)  # fmt: skip
def test_a_value_with_a_line_end_is_refused(tmp_path: Path, line: str) -> None:
    async def flow(one: Running) -> None:
        answer = await one.call(25, line.encode())
        assert answer.code == 1
        assert "one line" in str(answer.remark)

    serve(tmp_path, flow)


def test_a_change_that_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("autoCreateTopicEnable=true\n")

    async def flow() -> None:
        config = broker_config(tmp_path / "store")
        config.read_file(conf)
        broker = Broker(config)
        await broker.start()
        client = RemotingClient()
        try:
            address = "{}:{}".format(*broker.address)
            conf.unlink()
            conf.mkdir()
            with pytest.raises(BrokerError, match="nothing was changed") as refused:
                await checked(client, address, b"autoCreateTopicEnable=false\n")
            assert str(conf) in str(refused.value)
            assert config["autoCreateTopicEnable"] is True
            assert settings_of(await client.call(address, 26))["autoCreateTopicEnable"] == "true"
            conf.rmdir()
            conf.write_text("# other\n")
            await checked(client, address, b"autoCreateTopicEnable=false\n")
            assert conf.read_text() == "# other\nautoCreateTopicEnable=false\n"
        finally:
            await client.close()
            await broker.stop()

    asyncio.run(flow())


async def checked(client: RemotingClient, address: str, body: bytes) -> None:
    answer = await client.call(address, 25, {}, body)
    if answer.code:
        raise BrokerError(str(answer.remark))


def test_a_broker_of_a_pair_keeps_a_change_behind_a_change_of_its_role(tmp_path: Path) -> None:
    config = broker_config(tmp_path)
    config.in_role(is_slave=True).update({"autoCreateTopicEnable": "false", "fileReservedTime": "9"}, "test")
    assert config.in_role(is_slave=False)["autoCreateTopicEnable"] is False
    assert config.store_keys["fileReservedTime"] == "9"


def test_the_owner_can_forbid_more(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(25, b"brokerPermission=4\n")).code == 16
        assert (await one.call(25, b"autoCreateTopicEnable=false\n")).code == 0

    serve(tmp_path, flow, configBlackList="configBlackList;brokerPermission")


def test_unknown_names_and_empty_bodies_change_nothing(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for body in (b"", b"noSuchSetting=1\n", b"\xff\xfe", b"# a comment", b"sendMessageThreadPoolNums=3"):
            answer = await one.call(25, body)
            assert answer.code == 0
            assert ("without effect" in str(answer.remark)) == (b"=" in body or b"\xff" in body)
        assert "noSuchSetting" not in settings_of(await one.call(26))

    serve(tmp_path, flow)


def test_a_value_of_the_wrong_kind_is_refused_by_name(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        before = settings_of(await one.call(26))
        for line, name in (
            (b"autoCreateTopicEnable=maybe\nfileReservedTime=9", "autoCreateTopicEnable"),
            (b"autoCreateTopicEnable=false\nfileReservedTime=many", "fileReservedTime"),
            (b"autoCreateTopicEnable=false\ndeleteWhen=noon", "delete_when"),
            (b"brokerPermission=1_0", "brokerPermission"),
            (b"brokerPermission=\\u00zz", "hex digits"),
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
            body = "autoCreateTopicEnable=false\nfileReservedTime=11\nnamesrvAddr=\u00e9 x\nunknown=1\n"
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
        "namesrvAddr": "\u00e9 x",
    }
