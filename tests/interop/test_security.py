"""Stock Java clients and tools on a broker of ours with access control and TLS."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).resolve().parent))

from free_ports import free_port
from our_broker import SIZES, Setup, numbered, setup
from real_programs import HERE, NEEDS_JAVA, STEP_S, Machine, certificate, compile_java

__all__ = ["setup"]
pytestmark = NEEDS_JAVA


def test_java_clients_sign_and_encrypt(setup: Setup) -> None:
    tls = certificate(setup.work)
    if not tls:
        pytest.skip("there is no openssl")
    names = setup.start_names(*tls)
    account = {
        "accessKey": "swapper1",
        "secretKey": "12345678",
        "defaultTopicPerm": "PUB|SUB",
        "defaultGroupPerm": "SUB",
    }
    (setup.work / "plain_acl.yml").write_text(yaml.safe_dump({"accounts": [account]}))
    setup.broker(
        "-n", names, f"storePathRootDir={setup.work}/ours", f"listenPort={free_port()}", "brokerName=brk",
        *(f"{name}={value}" for name, value in SIZES.items()), *tls, "tls.server.mode=enforcing",
        "aclEnable=true", f"aclFile={setup.work}/plain_acl.yml",
    )  # fmt: skip
    (setup.work / "tls.properties").write_text(
        f"tls.client.authServer=true\ntls.client.trustCertPath={setup.work}/certificate.pem\n"
    )
    secured = {"tls": "true", "tls.test.mode.enable": "false", "tls.config.file": f"{setup.work}/tls.properties"}
    user = {"user": "swapper1", "secret": "12345678"}
    assert setup.swap("t", 10, **secured, **user) == numbered("t", 10)
    (refused,) = setup.swap("u", 1, **secured, user="swapper1", secret="wrong-secret")
    assert "Check signature failed for accessKey=swapper1" in refused
    (unsigned,) = setup.swap("v", 1, **secured)
    assert "No accessKey is configured" in unsigned


def test_java_users_have_rules_and_mqadmin_makes_them(setup: Setup) -> None:
    names = setup.start_names()
    port = free_port()
    setup.broker(
        "-n", names, f"storePathRootDir={setup.work}/ours", f"listenPort={port}", "brokerName=brk",
        *(f"{name}={value}" for name, value in SIZES.items()), "authenticationEnabled=true",
        "authorizationEnabled=true", 'initAuthenticationUser={"username":"root","password":"root-secret"}',
    )  # fmt: skip
    (setup.work / "conf").mkdir()
    (setup.work / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret\n")
    compile_java(setup.machine.home, HERE / "Admin.java")
    at = ["-b", f"127.0.0.1:{port}"]

    def admin(*lines: list[str]) -> list[str]:
        words = [word for line in lines for word in (*line, *at, "-n", names, "--")]
        process = setup.machine.java(*words, main="Admin", **{"rocketmq.home.dir": str(setup.work)})
        out, _ = process.communicate(timeout=STEP_S)
        return out.split("==\n")[:-1]

    user = {"user": "swapper", "secret": "user-secret"}
    made = admin(
        ["createUser", "-u", "swapper", "-p", "user-secret"],
        ["createAcl", "-s", "User:swapper", "-r", "Topic:SwapTopic", "-a", "Pub,Sub", "-d", "Allow"],
        ["listUser"],
        ["listAcl"],
        ["getUser", "-u", "swapper"],
    )
    assert "success" in made[0], made
    assert re.search(r"swapper\s+null\s+Normal\s+enable", made[2]), made
    assert re.search(r"root\s+null\s+Super\s+enable", made[2]), made
    assert "-secret" not in made[2] + made[4], "no password leaves the broker"
    assert re.search(r"User:swapper\s+Custom\s+Topic:SwapTopic\s+\[?Pub, ?Sub", made[3]), made
    assert setup.swap("w", 1, wanted=0, **user) == [], "the group needs a rule as well"
    changed = admin(["createAcl", "-s", "User:swapper", "-r", "Group:*", "-a", "Sub", "-d", "Allow"])
    assert "success" in changed[0], changed
    assert "x0" in setup.swap("x", 1, **user)


def test_the_tools_of_4_9_keep_the_accounts(setup: Setup) -> None:
    """mqadmin 4.9.7 with an administrator's secret on codes 50 to 54."""
    names, port = setup.start_names(), free_port()
    boss = {"accessKey": "manager1", "secretKey": "12345678", "admin": True}
    (setup.work / "plain_acl.yml").write_text(yaml.safe_dump({"accounts": [boss]}))
    setup.broker(
        "-n", names, f"storePathRootDir={setup.work}/ours", f"listenPort={port}", "brokerName=brk",
        *(f"{name}={value}" for name, value in SIZES.items()), "aclEnable=true",
        f"aclFile={setup.work}/plain_acl.yml",
    )  # fmt: skip
    (setup.work / "conf").mkdir()
    (setup.work / "conf" / "logback_tools.xml").write_text("<configuration/>")
    (setup.work / "conf" / "tools.yml").write_text("accessKey: manager1\nsecretKey: '12345678'\n")
    older = Machine("4.9.7", setup.work, HERE / "Flow.java")
    compile_java(older.home, HERE / "Admin.java")
    at = ["-b", f"127.0.0.1:{port}"]
    lines = [
        ["updateAclConfig", *at, "-a", "newuser1", "-s", "87654321", "-w", "10.0.0.*", "-i", "DENY", "-u", "SUB",
         "-t", "topicA=DENY,topicB=PUB|SUB", "-g", "groupD=DENY", "-m", "false"],
        ["updateGlobalWhiteAddr", *at, "-g", "10.10.154.1,10.10.154.2"],
        ["clusterAclConfigVersion", *at],
        ["getAccessConfigSubCommand", *at],
        ["deleteAccessConfig", *at, "-a", "newuser1"],
    ]  # fmt: skip
    process = older.java(
        *[word for line in lines for word in (*line, "-n", names, "--")], main="Admin",
        **{"rocketmq.home.dir": str(setup.work)},
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=STEP_S)
    finally:
        older.end_all()
    made, white, version, shown, gone = out.split("==\n")[:5]
    assert "success" in made, out
    assert "success" in white, out
    assert f"127.0.0.1:{port}" in version, out
    for word in ("10.10.154.1", "10.10.154.2", "newuser1", "topicB=PUB|SUB", "groupD=DENY", "manager1"):
        assert word in shown, out
    assert "87654321" not in shown, "no secret leaves the broker"
    assert "success" in gone, out
    kept = yaml.safe_load((setup.work / "plain_acl.yml").read_text())
    assert [one["accessKey"] for one in kept["accounts"]] == ["manager1"]
    assert kept["globalWhiteRemoteAddresses"] == ["10.10.154.1", "10.10.154.2"]
