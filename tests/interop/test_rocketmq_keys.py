"""The table of RocketMQ's properties against the classes of its newest release."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, NEWEST, STEP_S, Machine, compile_java

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.config.rocketmq_keys import ROCKETMQ_KEYS

pytestmark = NEEDS_JAVA
CLASSES = [
    "org.apache.rocketmq.common.BrokerIdentity",
    "org.apache.rocketmq.common.BrokerConfig",
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    "org.apache.rocketmq.auth.config.AuthConfig",
]
TYPES = {"boolean": "boolean", "int": "int", "long": "long", "double": "double"}
# The fields behind setters of other names.
FIELDS = {"isBrokerContainer", "isInBrokerContainer", "isScanAvailableNameSrv"}
OF_THE_MACHINE = {"brokerName", "brokerIP1", "brokerIP2", "storePathRootDir", "rocketmqHome"}


def test_names_types_and_defaults_are_javas(tmp_path: Path) -> None:
    machine = Machine(NEWEST, tmp_path, HERE / "Flow.java")
    compile_java(machine.home, HERE / "Keys.java")
    try:
        out, _ = machine.java(*CLASSES, main="Keys").communicate(timeout=STEP_S)
    finally:
        machine.end_all()
    rows = [line.split("\t") for line in out.splitlines() if line.startswith("key\t")]
    java: dict[str, tuple[str, str]] = {}
    for _, name, kind, default in rows:
        java.setdefault(name, (TYPES.get(kind, "text"), "" if default == "null" else default))
    assert sorted(java.keys() - FIELDS) == sorted(ROCKETMQ_KEYS)
    config = BrokerConfig()
    for name, key in ROCKETMQ_KEYS.items():
        kind, default = java[name]
        assert key.type == kind, name
        if name in OF_THE_MACHINE or default == "?":
            continue
        if key.default == "" and default.isdigit():
            assert config[name] == default, f"{name}: a thread pool by the processors of the machine, {os.cpu_count()}"
        else:
            assert key.default == default, name
