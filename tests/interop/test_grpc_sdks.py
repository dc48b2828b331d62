"""The official SDKs of RocketMQ 5.x, unmodified, against a broker: every kind of message and of consumer.

SDKs come by name from Maven Central, PyPI, npm and crates.io, once, into the cache of interop. Without a language, or
without the registry, the tests of a language are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from document_boxes import boxes
from grpc_sdk_homes import java_jar, node_with_sdk, python_with_sdk
from sampling import WHOLE
from sdk_cache import UNREACHABLE, sdk_home

from mqfast.client import Credentials
from mqfast.grpc import IS_BUILT
from mqfast.testing import Broker

HERE = Path(__file__).resolve().parent
FLOWS_S, BUILD_S = 300, 900
pytestmark = [pytest.mark.interop, pytest.mark.skipif(not IS_BUILT, reason="built without gRPC")]
TLS, SIGNED = "tls", "signed"
SETTINGS = {
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "2000",
}
OPTIONS = {"5.0.0": ["-XX:ActiveProcessorCount=8"]}
"""A client of 5.0.0 has a thread for each processor, and each queue of a FIFO group occupies one during long polling:
on two processors none is left for the answers to acks (apache/rocketmq-clients issue 156, mended in 5.0.1)."""
KEYS = "sdkuser", "sdk-secret-of-a-test"
ACCOUNTS = """accounts:
- accessKey: sdkadmin
  secretKey: sdk-secret-of-admin
  admin: true
- accessKey: sdkuser
  secretKey: sdk-secret-of-a-test
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


@contextlib.contextmanager
def broker_for(path: Path, way: str, **more: str) -> Iterator[tuple[Broker, list[str]]]:
    """A broker with the topics of the flows, and the arguments of a program: endpoints, key, secret, ``tls``."""
    settings, credentials = {**SETTINGS, **more}, None
    if way == TLS:
        certificate, key = Authority(path / "ca").sign("broker")
        settings |= {
            "tls.server.certPath": str(certificate), "tls.server.keyPath": str(key), "tls.server.mode": "permissive",
        }  # fmt: skip
    elif way == SIGNED:
        (path / "plain_acl.yml").write_text(ACCOUNTS)
        settings |= {"aclEnable": "true", "aclFile": str(path / "plain_acl.yml")}
        credentials = Credentials("sdkadmin", "sdk-secret-of-admin")
    with Broker(topics=["normal", "filtered", "retried", "simple"], config=settings) as broker:
        admin = broker.admin(credentials=credentials)
        for kind in ("fifo", "delay", "transaction"):
            admin.create_topic(kind, kind=kind.upper(), queues=4)
        admin.create_group("push-fifo", orderly=True)
        keys = list(KEYS) if way == SIGNED else ["", ""]
        yield broker, [broker.endpoints, *keys, *([TLS] if way == TLS else [])]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with broker_for(tmp_path, "") as (broker, _):
        yield broker


@pytest.fixture
def flows(tmp_path: Path, way: str) -> Iterator[list[str]]:
    """The arguments of a program, and a broker for it."""
    with broker_for(tmp_path, way) as (_, arguments):
        yield arguments


def run(command: list[str], cwd: Path | None = None, last: str = "done", **variables: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FLOWS_S, cwd=cwd, env={**os.environ, **variables}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == last


def rust_program() -> Path:
    home = sdk_home("rocketmq-rust-5.0.0")
    command = ["cargo", "build", "--locked", "--target-dir", str(home), "--manifest-path"]
    done = subprocess.run(
        [*command, str(HERE / "rust_sdk" / "Cargo.toml")], capture_output=True, text=True, timeout=900
    )
    if done.returncode != 0:
        if any(word in done.stderr for word in UNREACHABLE):
            pytest.skip("cargo: its registry cannot be reached")
        pytest.fail(done.stderr[-3000:])
    return home / "debug" / "rocketmq-flows"


@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize(("version", "way"), [("5.2.0", ""), ("5.2.0", SIGNED), ("5.2.0", TLS), ("5.0.0", TLS)])
def test_java(flows: list[str], version: str) -> None:
    run(["java", *OPTIONS.get(version, []), "-cp", str(java_jar(version)), str(HERE / "GrpcSdk.java"), *flows])


@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize(("version", "way"), [("5.1.2", ""), ("5.1.2", SIGNED), ("5.1.2", TLS), ("5.0.1", "")])
def test_python(flows: list[str], version: str, tmp_path: Path) -> None:
    trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca" / "ca.pem")} if TLS in flows else {}
    run([python_with_sdk(version), str(HERE / "grpc_sdk.py"), *flows], **trusted)


@pytest.mark.skipif(not WHOLE, reason="make interop")
def test_python_connected_to_one_of_two_brokers() -> None:
    with Broker(topics={"spread": 2}, brokers=2) as broker:
        run([python_with_sdk("5.1.2"), str(HERE / "grpc_sdk_cluster.py"), broker.addresses["broker-a"]])


@pytest.mark.skipif(not WHOLE, reason="make interop")
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
@pytest.mark.parametrize("way", ["", SIGNED, TLS])
def test_node(flows: list[str], tmp_path: Path) -> None:
    trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca" / "ca.pem")} if TLS in flows else {}
    run(["node", str(HERE / "grpc_sdk.js"), *flows], node_with_sdk("1.0.8"), **trusted)


@pytest.mark.skipif(not WHOLE, reason="make interop")
@pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo")
@pytest.mark.parametrize("way", ["", SIGNED, TLS])
def test_rust(flows: list[str], tmp_path: Path) -> None:
    trusted = {"SSL_CERT_FILE": str(tmp_path / "ca" / "ca.pem")} if TLS in flows else {}
    run([str(rust_program()), *flows], **trusted)


def code_of_page(language: str, broker: Broker) -> str:
    box = next(box for box in boxes("docs/grpc.md") if box.language == language)
    assert "127.0.0.1:10911" in box.code
    return box.code.replace("127.0.0.1:10911", broker.endpoints)


def test_the_python_box_of_grpc_md(broker: Broker, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(code_of_page("python", broker) + "\nprint('done')\n")
    run([python_with_sdk("5.1.2"), str(script)])
    assert [message.body for message in broker.messages("orders")] == [b"42"]


def test_the_java_box_of_grpc_md(broker: Broker, tmp_path: Path) -> None:
    broker.send("orders", b"42")
    imports = "".join(
        f"import org.apache.rocketmq.client.apis.{name}*;\n" for name in ("", "consumer.", "message.", "producer.")
    )
    program = tmp_path / "Page.java"
    program.write_text(
        f"import java.util.Map;\n{imports}"
        "public class Page { public static void main(String[] args) throws Exception {\n"
        f"{code_of_page('java', broker)}\n"
        'System.out.println("done"); System.exit(0); } }\n'
    )
    run(["java", "-cp", str(java_jar("5.2.0")), str(program)])


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_the_node_box_of_grpc_md(broker: Broker) -> None:
    broker.send("orders", b"42")
    run(["node", "-e", code_of_page("javascript", broker)], node_with_sdk("1.0.8"), last="42")
