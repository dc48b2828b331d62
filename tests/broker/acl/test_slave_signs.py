"""A slave signs what it asks of its master with the credentials of its settings, and gets the master's tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

import yaml
from accounts import ACCOUNTS, PLAIN, Kind, Signing
from broker.two_brokers import as_slave, name_server, run, until
from running import running_broker


@pytest.mark.parametrize("kind", ["1.0", "2.0"])
def test_a_slave_gets_the_tables_of_a_master_with_access_control(tmp_path: Path, kind: Kind) -> None:
    key, password = ACCOUNTS["owner"]
    settings: dict[str, Any] = {
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": key, "secretKey": password}),
        "haAllowedAddresses": "127.0.0.1",
    }
    (tmp_path / "plain_acl.yml").write_text(yaml.safe_dump(PLAIN))
    if kind == "1.0":
        settings |= {"aclEnable": True, "aclFile": str(tmp_path / "plain_acl.yml")}
    else:
        settings |= {"authorizationEnabled": True}

    async def flow() -> None:
        async with (
            name_server(tmp_path) as namesrv,
            running_broker(tmp_path / "m", namesrvAddr=namesrv, haListenPort=0, **settings) as master,
        ):
            one = Signing(master)
            assert (await one.send("owner", "orders", b"first")).code == 0
            assert (await one.call("owner", 200, json.dumps({"groupName": "readers"}).encode())).code == 0
            master.context.offsets.commit("readers", "orders", 0, 1)
            async with running_broker(tmp_path / "s", haListenPort=0, **as_slave(namesrv, **settings)) as slave:
                context = slave.context
                await until(lambda: context.topics.get("orders") is not None)
                await until(lambda: "readers" in context.groups.table)
                await until(lambda: context.offsets.get("readers", "orders", 0) == 1)

    run(flow)
