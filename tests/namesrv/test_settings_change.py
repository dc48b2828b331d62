"""Settings of a running name server, changed by 318, and the file that keeps them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand
from mqfast.util.property_file import parse_properties

FILE = """# the name server of the east
orderMessageEnable = false
tls.server.keyPassword=secret
notOurs=1
listenPort=0
"""


def config_of(tmp_path: Path, text: str = FILE) -> NamesrvConfig:
    path = tmp_path / "namesrv.properties"
    path.write_text(text)
    path.chmod(0o600)
    config = NamesrvConfig()
    config.read_file(path)
    config.update({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}, "test")
    return config


def changed(config: NamesrvConfig, *bodies: bytes) -> list[RemotingCommand]:
    """The answers of a name server with these settings, which ends."""

    async def flow() -> list[RemotingCommand]:
        server = NameServer(config)
        await server.start()
        client = RemotingClient()
        try:
            return [await client.call("{}:{}".format(*server.address), 318, {}, body) for body in bodies]
        finally:
            await client.close()
            await server.stop()

    return asyncio.run(asyncio.wait_for(flow(), 300))


def test_a_settings_change_keeps_the_other_lines_of_the_file(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    path = tmp_path / "namesrv.properties"
    assert [one.code for one in changed(config, b"orderMessageEnable=true\nnotifyMinBrokerIdChanged=true\n")] == [0]
    assert path.read_text() == FILE.replace(" = false", "=true") + "notifyMinBrokerIdChanged=true\n"
    assert path.stat().st_mode & 0o777 == 0o600
    again = NamesrvConfig()
    again.read_file(path)
    assert again["orderMessageEnable"] is True
    assert again.given()["tls.server.keyPassword"] == "secret"


def test_a_line_end_makes_no_further_setting(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for answer in changed(config, b"productEnvName=x\\nbindAddress=0.0.0.0\n", b"a\\u000dbindAddress=0.0.0.0"):
        assert answer.code == 1
        assert "one line" in str(answer.remark)
    assert (tmp_path / "namesrv.properties").read_text() == FILE


@pytest.mark.parametrize("name", ["configBlackList", "configStorePath", "kvConfigPath"])
def test_rocketmqs_black_list_has_its_text(tmp_path: Path, name: str) -> None:
    (answer,) = changed(config_of(tmp_path), f"{name}=x".encode())
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")


def test_settings_without_live_effect_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    names = [
        "bindAddress",
        "listenPort",
        "connectionsMax",
        "proxyProtocolEnable",
        "tls.server.mode",
        "needWaitForService",
    ]
    for name, answer in zip(names, changed(config, *(f"{one}=1".encode() for one in names)), strict=True):
        assert answer.code == 16
        assert name in str(answer.remark)
    assert (tmp_path / "namesrv.properties").read_text() == FILE


def test_a_change_that_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config.update({"configStorePath": str(tmp_path / "namesrv.properties" / "below")}, "test")
    (answer,) = changed(config, b"orderMessageEnable=true")
    assert answer.code == 1
    assert "nothing was changed" in str(answer.remark)
    assert config["orderMessageEnable"] is False


def test_changes_at_the_same_time_are_all_in_the_file(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    names = [
        "orderMessageEnable",
        "notifyMinBrokerIdChanged",
        "supportActingMaster",
        "deleteTopicWithBrokerRegistration",
    ]

    async def flow() -> None:
        server = NameServer(config)
        await server.start()
        client = RemotingClient()
        address = "{}:{}".format(*server.address)
        try:
            calls = [client.call(address, 318, {}, f"{name}=true".encode()) for name in names]
            assert {one.code for one in await asyncio.gather(*calls)} == {0}
        finally:
            await client.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(flow(), 300))
    found = parse_properties((tmp_path / "namesrv.properties").read_text("latin-1"))
    assert {found[name] for name in names} == {"true"}


def test_the_file_of_the_start_keeps_changes(tmp_path: Path) -> None:
    """As in RocketMQ; a name in the file counts."""
    assert config_of(tmp_path)["configStorePath"] == str(tmp_path / "namesrv.properties")
    assert config_of(tmp_path, "configStorePath=/elsewhere\n")["configStorePath"] == "/elsewhere"


def test_the_page_lists_what_the_network_may_change() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "namesrv.md").read_text()
    text = page.partition("The network can change")[2].partition("Values with line ends")[0]
    config = NamesrvConfig()
    assert set(re.findall(r"`(\w+)`", text)) == {name for name in config.names() if config.is_live(name)}
