"""``mqfast admin acl``: users and rules of ACL 2.0, and accounts of ACL 1.0, against brokers that check them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import BrokerProcess

from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(line: str) -> tuple[int, list[dict[str, Any]], str]:
        code = main(["admin", *line.split(), "--json"])
        said = capsys.readouterr()
        return int(code), [json.loads(text) for text in said.out.splitlines()], said.err

    return call


def test_users_and_rules(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("alice-secret\n")
    settings = {
        "authenticationEnabled": True, "authorizationEnabled": True, "brokerName": "broker-a",
        "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    }  # fmt: skip
    with BrokerProcess(tmp_path, **settings) as broker:
        monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv)
        assert run("acl user ls")[0] == ExitCode.REFUSED
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "root")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "root-secret")
        assert [row["user"] for row in run("acl user ls")[1]] == ["inner", "root"]
        assert run("acl user create alice --yes")[0] == ExitCode.USAGE  # without a password
        line = f"acl user create alice --password-file {secret}"
        code, (row,), said = run(line)
        assert (code, row["type"], row["typeAfter"], "alice-secret" in said) == (0, "-", "Normal", False)
        assert len(run("acl user ls")[1]) == 2
        assert run(f"{line} --yes")[0] == 0
        assert [row["user"] for row in run("acl user ls --name ali")[1]] == ["alice"]
        rule = "acl rule set User:alice --resource Topic:orders* --action Pub --decision Allow"
        assert run(rule)[1][-1]["broker"] == "(new)"
        assert run("acl rule ls")[0] == ExitCode.NOTHING_FOUND
        assert run(f"{rule} --yes")[0] == 0
        (row,) = run("acl rule ls --subject User:alice")[1]
        assert (row["resource"], row["actions"], row["decision"]) == ("Topic:orders*", "Pub", "Allow")
        assert run("createAcl -c DefaultCluster -s User:alice -r Topic:bills -a Sub -d Deny -i 10.0.0.1")[0] == 0
        assert {row["resource"] for row in run("listAcl -c DefaultCluster -s User:alice")[1]} == {
            "Topic:orders*", "Topic:bills",
        }  # fmt: skip
        assert run("acl rule delete User:alice --resource Topic:bills --yes")[0] == 0
        assert [row["resource"] for row in run("acl rule ls")[1]] == ["Topic:orders*"]
        assert run("acl user set alice --status disable --yes")[0] == 0
        assert run("getUser -c DefaultCluster -u alice")[1][0]["status"] == "disable"
        assert run("acl copy broker-a broker-a --user alice")[1] == [{"user": "alice", "state": "there", "rules": 1}]
        assert run("acl user delete alice")[0] == 0
        assert run("acl user delete alice --yes")[0] == 0
        assert [row["user"] for row in run("listUser -c DefaultCluster")[1]] == ["inner", "root"]


def test_accounts(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts:\n- accessKey: rootrootroot\n  secretKey: 12345678\n  admin: true\n")
    with BrokerProcess(tmp_path, aclEnable=True, aclFile=str(file), brokerName="broker-a") as broker:
        monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv)
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "rootrootroot")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "12345678")
        monkeypatch.setenv("MQFAST_NEW_PASSWORD", "87654321")
        assert run("acl account set reporter defaultTopicPerm=SUB")[1][0]["after"] == "SUB"
        assert [row["account"] for row in run("acl account ls")[1]] == ["rootrootroot"]
        assert run("acl account set reporter defaultTopicPerm=SUB --yes")[0] == 0
        rows = {row["account"]: row for row in run("acl account ls")[1]}
        assert (rows["reporter"]["topics"], rows["rootrootroot"]["admin"]) == ("SUB", True)
        assert "8765" not in json.dumps(rows)
        assert run("updateAclConfig -c DefaultCluster -a reporter -s 87654321 -t orders=PUB,bills=DENY")[0] == 0
        assert "orders=PUB" in run("getAclConfig -c DefaultCluster")[1][-1]["permissions"]
        assert run("acl account white-list 10.10.15.* --yes")[0] == 0
        assert "10.10.15.*" in main_text(broker)
        assert run("clusterAclConfigVersion -c DefaultCluster")[0] == 0
        assert run("deleteAclConfig -c DefaultCluster -a reporter")[0] == 0
        assert [row["account"] for row in run("acl account ls")[1]] == ["rootrootroot"]


def main_text(broker: BrokerProcess) -> str:
    """Return the file of accounts of the broker."""
    return (broker.store.parent / "plain_acl.yml").read_text()
