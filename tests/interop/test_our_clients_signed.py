"""Our clients where a broker of Apache RocketMQ 5.5 checks who asks (ACL 2.0): known ones work, others are refused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, Machine, free_port, wait_for

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.producer.producer import Producer
from mqfast.client.values import Credentials
from mqfast.errors import BrokerError, ClientError
from mqfast.message import Message

pytestmark = NEEDS_JAVA
ROOT = Credentials("root", "root-secret")
AUTH = "org.apache.rocketmq.auth"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    work = tmp_path_factory.mktemp("signed")
    machine = Machine("5.5.0", work, HERE / "Flow.java")
    (work / "conf").mkdir()
    for program in ("namesrv", "broker"):
        shutil.copy(HERE.parent / "compat/java/logging-off.xml", work / f"conf/logback_{program}.xml")
    try:
        machine.start_namesrv()
        settings = {
            "autoCreateTopicEnable": "true",
            "registerNameServerPeriod": 10_000,
            "authenticationEnabled": "true",
            "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
            "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
            "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}',
        }
        machine.start_broker(work / "store", settings, free_port())

        def is_there() -> bool:
            with AdminClient(machine.namesrv, credentials=ROOT) as admin:
                try:
                    return bool(admin.clusters())
                except ClientError:
                    return False

        wait_for(is_there, "the broker's registration")
        yield machine.namesrv
    finally:
        machine.end_all()


@pytest.mark.slow
def test_known_clients_work_and_others_are_refused(names: str) -> None:
    seen: list[bytes] = []
    consumer = PushConsumer("signed-pushers", names, credentials=ROOT, from_where="first")
    consumer.subscribe("signed", lambda message: seen.append(message.body))
    with Producer("signed-makers", names, credentials=ROOT, send_timeout_s=20, namespace_v2="tenant") as producer:
        assert producer.send("signed", b"1").ok
        assert producer.send_future(Message("signed", b"2")).result(30).ok
        with consumer:
            wait_for(lambda: len(seen) == 2, "both messages")
    with PullConsumer("signed-pullers", names, credentials=ROOT, topics="signed", from_where="first") as puller:
        pulled: list[bytes] = []
        wait_for(
            lambda: pulled.extend(one.body for one in puller.poll(timeout_s=1)) or len(pulled) == 2, "both, pulled"
        )
        puller.commit()
    for who in (None, Credentials("root", "wrong"), Credentials("nobody", "secret")):
        with Producer("signed-makers", names, credentials=who, retries=0, send_timeout_s=20) as producer:
            with pytest.raises(BrokerError) as refused:
                producer.send("signed", b"x")
        assert "secret" not in str(refused.value)
        with AdminClient(names, credentials=who) as admin:
            with pytest.raises(ClientError):
                admin.topic_stats("signed")
