"""The official SDKs of RocketMQ 5.x, unmodified, against our broker: every kind of message and of consumer.

They come by name from Maven Central and PyPI, once, into the cache of interop. Without a language, or without its
registry, its part is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from document_boxes import boxes
from sdk_cache import fetch, sdk_home

from mqfast.grpc import IS_BUILT
from mqfast.testing import Broker

HERE = Path(__file__).resolve().parent
FLOWS_S = 300
pytestmark = [pytest.mark.interop, pytest.mark.skipif(not IS_BUILT, reason="built without gRPC")]
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sdk</groupId><artifactId>sdk</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client-java</artifactId><version>{version}</version>
</dependency></dependencies></project>"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {
        "recallMessageEnable": "true",
        "enablePropertyFilter": "true",
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "2000",
    }
    with Broker(topics=["normal", "filtered", "retried", "simple"], config=settings) as broker:
        admin = broker.admin()
        for kind in ("fifo", "delay", "transaction"):
            admin.create_topic(kind, kind=kind.upper(), queues=4)
        admin.create_group("push-fifo", orderly=True)
        yield broker


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=FLOWS_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == "done"


def java_jar(version: str) -> Path:
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("it needs java and mvn")
    home = sdk_home(f"rocketmq-client-java-{version}")
    (home / "pom.xml").write_text(POM.format(version=version))
    fetch(home, ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={home / 'lib'}"])
    return home / "lib" / f"rocketmq-client-java-{version}.jar"


def python_with_sdk(version: str) -> str:
    home = sdk_home(f"rocketmq-python-client-{version}")
    fetch(
        home,
        [sys.executable, "-m", "venv", str(home)],
        [str(home / "bin" / "pip"), "install", "-q", f"rocketmq-python-client=={version}"],
    )
    return str(home / "bin" / "python")


@pytest.mark.parametrize("version", ["5.2.0"])
def test_java(broker: Broker, version: str) -> None:
    command = ["java", "-cp", str(java_jar(version)), str(HERE / "GrpcSdk.java"), broker.endpoints]
    run(command)


@pytest.mark.parametrize("version", ["5.1.2"])
def test_python(broker: Broker, version: str) -> None:
    run([python_with_sdk(version), str(HERE / "grpc_sdk.py"), broker.endpoints])


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
