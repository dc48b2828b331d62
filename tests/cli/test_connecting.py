"""TLS and credentials of the commands: by arguments and variables, with errors that say what a port wants."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from free_ports import free_port

STEP_S = 120


class Up:
    """``mqfast up`` that takes nothing but TLS and signed requests."""

    def __init__(self, work: Path, *settings: str, stdout: int = subprocess.PIPE) -> None:
        self.log = work / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mqfast.cli", "up", "--namesrv-port", "0", "--broker-port", "0", "--store",
                 str(work / "store"), "mappedFileSizeCommitLog=1048576", *settings],
                stdout=stdout, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.banner = ""
        while "access control" not in self.banner:
            line = self.process.stdout.readline()
            assert line, self.log.read_text()
            self.banner += line
        found = re.match(r"NAMESRV_ADDR=(\S+)", self.banner)
        assert found
        self.namesrv = found[1]
        listens = re.search(r"listens on (\S+)", self.banner)
        assert listens
        self.broker = listens[1]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(200)


def mqfast(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {name: text for name, text in os.environ.items() if not name.startswith(("MQFAST_TLS", "ROCKETMQ_"))}
    return subprocess.run(
        [sys.executable, "-m", "mqfast.cli", *words], capture_output=True, text=True, timeout=STEP_S, check=False,
        env={**given, **variables},
    )  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Up]:
    work = tmp_path_factory.mktemp("up")
    certificate, key = authority.sign("server")
    one = Up(
        work, "tls.server.mode=enforcing", f"tls.server.certPath={certificate}", f"tls.server.keyPath={key}",
        "tls.server.need.client.auth=require", f"tls.server.trustCertPath={authority.ca}", "authenticationEnabled=true",
        'initAuthenticationUser={"username":"root","password":"root-secret"}',
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret"}',
    )  # fmt: skip
    yield one
    one.end()


def test_up_gives_its_name_server_the_tls_of_its_broker(secured: Up) -> None:
    assert "(TLS: enforcing)" in secured.banner.splitlines()[0]
    assert "  TLS: enforcing; " in secured.banner
    assert "not registered" not in secured.banner


def test_commands_reach_servers_with_tls_and_credentials(secured: Up, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("operator")
    secret = tmp_path / "secret"
    secret.write_text("root-secret\n")
    tls = ["--ca", str(authority.ca), "--cert", str(certificate), "--key", str(key)]
    who = ["--access-key", "root", "--secret-key-file", str(secret)]
    for words in (
        ["admin", "cluster", "-n", secured.namesrv, *tls, *who],
        ["admin", "broker", "config", secured.broker, "-n", secured.namesrv, *tls, *who],
        ["admin", "cluster", "-n", secured.namesrv, *tls, "--access-key", "root", "--secret-key", "root-secret"],
        ["health", "--port", secured.broker.rpartition(":")[2], *tls],
        ["health", "--port", secured.namesrv.rpartition(":")[2], *tls],
    ):  # fmt: skip
        done = mqfast(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    done = mqfast("ha", "status", "-n", secured.namesrv, *tls, *who)
    assert (done.returncode, "no slave is connected" in done.stderr) == (6, True), done.stderr
    variables = {
        "MQFAST_TLS": "true", "MQFAST_TLS_CA": str(authority.ca), "MQFAST_TLS_CERT": str(certificate),
        "MQFAST_TLS_KEY": str(key), "ROCKETMQ_ACCESS_KEY": "root", "ROCKETMQ_SECRET_KEY": "root-secret",
        "NAMESRV_ADDR": secured.namesrv,
    }  # fmt: skip
    done = mqfast("admin", "broker", "config", secured.broker, **variables)
    assert done.returncode == 0, done.stderr
    refused = mqfast("admin", "broker", "config", secured.broker, **{**variables, "ROCKETMQ_SECRET_KEY": "x"})
    assert (refused.returncode, "signature" in refused.stderr) == (7, True)


def test_a_plain_client_gets_an_error_from_an_enforcing_tls_port(secured: Up) -> None:
    done = mqfast("admin", "cluster", "-n", secured.namesrv)
    assert (done.returncode, "wants TLS" in done.stderr) == (7, True), done.stderr
    for address in (secured.namesrv, secured.broker):
        done = mqfast("health", "--port", address.rpartition(":")[2])
        assert done.returncode != 0
        assert "wants TLS: --tls asks with it" in done.stdout + done.stderr


def test_a_port_that_ends_the_connection_is_suspected_to_want_tls() -> None:
    """As RocketMQ's, which says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asked = subprocess.Popen(
            [sys.executable, "-m", "mqfast.cli", "health", "--port", str(port)], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        peer, _ = server.accept()
        peer.recv(1)
        peer.close()
        said, _ = asked.communicate(timeout=STEP_S)
    assert asked.returncode != 0
    assert "TLS" in said or "reset" in said


def test_a_tls_client_gets_an_error_from_a_plain_port(tmp_path: Path, authority: Authority) -> None:
    one = Up(tmp_path)
    try:
        assert "TLS: off" in one.banner
        assert "(TLS" not in one.banner.splitlines()[0]
        done = mqfast("health", "--port", one.broker.rpartition(":")[2], "--ca", str(authority.ca))
        assert done.returncode != 0
        assert "takes no TLS" in done.stdout + done.stderr
        done = mqfast("admin", "cluster", "-n", one.namesrv, "--ca", str(authority.ca))
        assert (done.returncode, "TLS" in done.stderr) == (8, True), done.stderr
        assert "takes no" in done.stderr or "take none" in done.stderr, done.stderr
    finally:
        one.end()


def test_a_certificate_that_is_not_trusted(secured: Up, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    done = mqfast("health", "--port", secured.broker.rpartition(":")[2], "--ca", str(other.ca))
    assert done.returncode != 0
    assert "certificate is not trusted" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ca", "/nowhere"], "--ca /nowhere"),
        (["--cert", "/nowhere"], "--cert /nowhere"),
        (["--key", "/nowhere"], "expected together with --cert"),
        (["--access-key", "a"], "an access key and no secret"),
        (["--secret-key", "a"], "a secret and no access key"),
        (["--access-key", "a", "--secret-key-file", "/nowhere"], "--secret-key-file /nowhere"),
        (["--secret-key", "a", "--secret-key-file", "b"], "not allowed with"),
    ],
)
def test_wrong_arguments_are_one_line(words: list[str], said: str) -> None:
    done = mqfast("admin", "cluster", "-n", "127.0.0.1:1", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_variable_of_another_text_is_refused() -> None:
    done = mqfast("health", MQFAST_TLS="maybe")
    assert (done.returncode, "MQFAST_TLS: expected true or false" in done.stderr) == (2, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("program", ["namesrv", "broker"])
def test_a_server_survives_a_full_disk_under_its_log(tmp_path: Path, program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = [f"listenPort={port}", "noSuchSetting=1"]
    settings += ["storePathRootDir=" + str(tmp_path / "s"), "mappedFileSizeCommitLog=1048576"] * (program == "broker")
    settings += [f"kvConfigPath={tmp_path}/kv.json"] * (program == "namesrv")
    with open("/dev/full", "wb") as full:
        one = subprocess.Popen([sys.executable, "-m", "mqfast.cli", program, *settings], stdout=full, stderr=full)
    try:
        for _ in range(600):
            assert one.poll() is None
            if mqfast("health", "--port", str(port), "--timeout", "10").returncode == 0:
                break
        assert mqfast("health", "--port", str(port), "--timeout", "10").returncode == 0
        assert one.poll() is None
    finally:
        one.terminate()
        one.wait(60)


def test_a_broker_names_the_port_that_is_taken_and_warns_of_no_name_server(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port - 2)):
        settings = [f"storePathRootDir={tmp_path}/s", "mappedFileSizeCommitLog=1048576", f"listenPort={port}"]
        done = mqfast("broker", *settings, f"haListenPort={port + 1}", NAMESRV_ADDR="")
        assert done.returncode != 0
        assert f"port {port - 2} is taken: listenPort - 2 is RocketMQ's VIP port" in done.stderr
        assert done.stderr.count("no name server") == 1
        done = mqfast(
            "up", "--namesrv-port", "0", "--broker-port", str(port), "--store", f"{tmp_path}/s", *settings[1:2]
        )
        assert f"port {port - 2} is taken" in done.stderr
        assert "--broker-port" in done.stderr
