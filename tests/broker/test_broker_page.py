"""docs/broker.md against the running broker, and the files for systemd and Docker."""

from __future__ import annotations

import asyncio
import configparser
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from running import running_broker
from selector_threads import reactor_settings

from mqfast.broker.acl.required_permissions import NEEDS
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.remoting.codes import RequestCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "broker.md").read_text()
SERVICE = ROOT / "docs" / "service"


def served(work: Path) -> set[int]:
    (work / "plain_acl.yml").write_text(yaml.safe_dump({"accounts": []}))

    async def ask() -> set[int]:
        async with running_broker(work / "store", aclEnable=True, aclFile=str(work / "plain_acl.yml")) as one:
            return set(one.broker.processors.codes)

    return asyncio.run(ask())


def test_the_table_has_the_codes_that_the_broker_serves(tmp_path: Path) -> None:
    table = PAGE.partition("<!-- request codes -->")[2].partition("<!-- end of request codes -->")[0]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", table, re.MULTILINE)
    assert sorted(int(code) for code, _ in rows) == sorted(served(tmp_path))
    names = {int(code): code.name for code in RequestCode}
    assert {name for code, name in rows if names.get(int(code), name) != name} == set()


def test_access_control_knows_every_code_that_is_served(tmp_path: Path) -> None:
    assert sorted(served(tmp_path)) == sorted(map(int, NEEDS))
    assert all(NEEDS.values()), "no code is free"


def test_the_table_of_rights_is_that_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("rights_table", ROOT / "docs" / "rights_table.py")
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.renewed(PAGE) == PAGE, "run: python docs/rights_table.py"


def test_settings_of_the_page_exist_with_these_defaults() -> None:
    table = PAGE.partition("| Setting | Default | Meaning |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]*)\|", table, re.MULTILINE)
    assert len(rows) > 12
    config = BrokerConfig()
    for name, default in rows:
        if name == "storePathRootDir" or name in reactor_settings():
            continue
        assert config.acts(name), name
        if re.fullmatch(r"\d[\d.]*|true|false", default.strip()):
            value = config[name]
            assert (str(value).lower() if isinstance(value, bool) else str(value)) == default.strip(), name


def test_tests_that_the_page_names_exist() -> None:
    for name in re.findall(r"`(test_\w+\.py)`", PAGE):
        assert (ROOT / "tests" / "interop" / name).is_file(), name


@pytest.mark.parametrize("name", ["mqfast-broker.service", "mqfast-namesrv.service"])
def test_units_of_systemd(name: str, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(SERVICE / name)
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["ExecStart"].split()[:2] == [
        "/opt/mqfast/bin/mqfast",
        name.removesuffix(".service").partition("-")[2],
    ]
    if shutil.which("systemd-analyze") is None:
        return
    text = (SERVICE / name).read_text().replace("/opt/mqfast/bin/mqfast", shutil.which("true") or "/bin/true")
    (tmp_path / name).write_text(text.replace("User=rocketmq\nGroup=rocketmq\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=200
    )
    assert name not in done.stderr, done.stderr


def test_the_image_has_rocketmqs_user_ports_and_variables() -> None:
    text = (SERVICE / "Dockerfile").read_text()
    assert re.search(r"^FROM python:\S+-slim$", text, re.MULTILINE)
    assert "--uid 3000 --gid 3000" in text
    assert re.search(r"^EXPOSE 9876 10909 10911 5557$", text, re.MULTILINE)
    config = BrokerConfig()
    config.update_environment(dict(re.findall(r"(ROCKETMQ_\w+)=(\S+)", text)))
    assert config.unknown == []
    assert (config["bindAddress"], config.store_path) == ("0.0.0.0", "/home/rocketmq/store")
