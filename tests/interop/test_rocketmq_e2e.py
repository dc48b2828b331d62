"""RocketMQ's end-to-end classes for 5.x clients (apache/rocketmq-e2e, ``java/e2e``), unmodified, against a broker.

The variable ROCKETMQ_E2E names a checkout; without one the tests are skipped. Libraries come from Maven Central, a
newer Lombok among them, since that of the checkout does not run on Java 17. Nothing of the checkout is changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sdk_cache import fetch, sdk_home

from mqfast.grpc import IS_BUILT

sys.path.append(str(Path(__file__).resolve().parent))

from test_grpc_sdks import TLS, broker_for

CHECKOUT = os.environ.get("ROCKETMQ_E2E", "")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not IS_BUILT, reason="built without gRPC"),
    pytest.mark.skipif(not CHECKOUT, reason="ROCKETMQ_E2E names no checkout of apache/rocketmq-e2e"),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="it needs java and mvn"),
]
CLASSES_S = 600
PACKAGE = "org.apache.rocketmq.broker"
CLASSES = {
    "kinds": "server.NormalMessageTest server.OrderMessageTest server.DelayMessageTest server.TransactionMessageTest",
    "simple": "simple.SimpleAckTest simple.SimpleOrderTest simple.SimpleTopicTypeTest cluster.ClusterTest",
    "filters": "filter.push.TagFilterTest filter.push.SqlFilterTest filter.push.SqlFilterWithOrderMsgTest",
    "messages": "client.message.MessageTagTest client.message.MessageKeyTest client.message.MessageBodyContentTest "
    "client.message.MessageUserPropertyTest client.message.NormalMessageSizeTest client.message.MessageAbnormalTest",
    "clients": "client.consumer.ConsumerGroupTest client.consumer.PushConsumerInitTest "
    "client.consumer.SimpleConsumerInitTest client.producer.ProducerInitTest simple.SimpleParamTest",
    "retries": "server.abnormal.PushConsumerRetryTest",
}
KNOWN = ("receipt handle is expired",)
"""A test wants the name of the code in the text of a late ack, and gets the words of RocketMQ's proxy."""
AS_THE_PROXY = {"autoCreateTopicEnable": "false", "timerMaxDelaySec": "86400"}
"""RocketMQ's proxy creates no topics, and delays messages for a day at most, a broker for three."""
EXTRA = {
    "lombok": "org.projectlombok:lombok:1.18.38",
    "launcher": "org.junit.platform:junit-platform-console-standalone:1.7.2",
}


@pytest.fixture(scope="module")
def class_path() -> str:
    """Compile the classes of the checkout."""
    source, home = Path(CHECKOUT) / "java" / "e2e", sdk_home("rocketmq-e2e")
    libraries = home / "lib"
    copy = ["mvn"]
    fetch(
        home,
        [*copy, "-f", str(source / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={libraries}"],
        *([*copy, "dependency:copy", f"-Dartifact={name}", f"-DoutputDirectory={home / key}"]
          for key, name in EXTRA.items()),
    )  # fmt: skip
    jars = [  # in this order: the client has classes that rocketmq-proto has in another form
        *(home / "lombok").glob("*.jar"),
        *(jar for jar in sorted(libraries.glob("*.jar")) if not jar.name.startswith("lombok")),
        *(home / "launcher").glob("*.jar"),
    ]
    classes = home / "classes"
    path = ":".join(map(str, [classes, *jars]))
    files = [str(file) for part in ("main", "test") for file in (source / "src" / part / "java").rglob("*.java")]
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", path, "-d", str(classes), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLASSES_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return f"{source / 'src' / 'test' / 'resources'}:{path}"


@pytest.mark.parametrize("part", CLASSES)
def test_classes_of_rocketmq(class_path: str, part: str, tmp_path: Path) -> None:
    with broker_for(tmp_path, TLS, **AS_THE_PROXY) as (broker, arguments):
        command = [
            "java", "-XX:ActiveProcessorCount=8", f"-DendPoint={arguments[0]}",
            f"-DnamesrvAddr={broker.namesrv_addr}", "-cp", class_path, "org.junit.platform.console.ConsoleLauncher",
            "--details=tree", "--disable-banner", "--disable-ansi-colors",
            *(f"--select-class={PACKAGE}.{name}" for name in CLASSES[part].split()),
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CLASSES_S, cwd=Path(CHECKOUT) / "java" / "e2e"
        )
    failed = re.findall(r".*✘.*", done.stdout)
    assert re.search(r"[1-9]\d* tests successful", done.stdout), done.stdout[-3000:] + done.stderr[-3000:]
    print(*failed, sep="\n")
    assert [line for line in failed if not any(words in line for words in KNOWN)] == []
