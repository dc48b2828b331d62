"""Settings of a broker by RocketMQ's names: from ``broker.conf``, the command line and admins at run time.

Keys of the store go to the store's own parser as they are; the keys here are those of BrokerConfig and of the remoting
server. It must never guess. Source: BrokerConfig, BrokerIdentity, NettyServerConfig, BrokerStartup.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqfast.broker_conf import KNOWN_TO_ROCKETMQ
from mqfast.config import FIELD_OF_PROPERTY, StoreConfig
from mqfast.property_settings import PropertySettings, Setting

__all__ = ["BrokerConfig"]

MASTER_ID: Final = 0
_I64_MAX: Final = 2**63 - 1


def _settings() -> dict[str, Setting]:
    live: dict[str, Any] = {"live": True}
    acting = {
        # who the broker is, and where
        "brokerClusterName": Setting("DefaultCluster"),
        "brokerName": Setting(""),
        "brokerId": Setting(MASTER_ID),
        "brokerIP1": Setting(""),
        "brokerIP2": Setting(""),
        "bindAddress": Setting("127.0.0.1"),
        "listenPort": Setting(10911),
        "namesrvAddr": Setting(""),
        "regionId": Setting("DefaultRegion"),
        "traceOn": Setting(True),
        "brokerPermission": Setting(6, **live),
        # registration
        "registerNameServerPeriod": Setting(30_000),
        "registerBrokerTimeoutMills": Setting(24_000),
        "enableSingleTopicRegister": Setting(True, **live),
        # topics and groups
        "autoCreateTopicEnable": Setting(True, **live),
        "autoCreateSubscriptionGroup": Setting(True, **live),
        "defaultTopicQueueNums": Setting(8),
        "clusterTopicEnable": Setting(True),
        "brokerTopicEnable": Setting(True),
        "traceTopicEnable": Setting(False),
        "msgTraceTopicName": Setting("RMQ_SYS_TRACE_TOPIC"),
        "reviveQueueNum": Setting(8),
        # sending
        "rejectTransactionMessage": Setting(False, **live),
        "brokerFastFailureEnable": Setting(True, **live),
        "waitTimeMillsInSendQueue": Setting(200, **live),
        "sendThreadPoolQueueCapacity": Setting(10_000),
        "startAcceptSendRequestTimeStamp": Setting(0, most=_I64_MAX, **live),
        # pulling
        "longPollingEnable": Setting(True, **live),
        "shortPollingTimeMills": Setting(1000, **live),
        "slaveReadEnable": Setting(False, **live),
        "enablePropertyFilter": Setting(False, **live),
        "filterSupportRetry": Setting(False, **live),
        "rejectPullConsumerEnable": Setting(False, **live),
        "disableConsumeIfConsumerReadSlowly": Setting(False, **live),
        "consumerFallbehindThreshold": Setting(17_179_869_184, most=_I64_MAX, **live),
        "notifyConsumerIdsChangedEnable": Setting(True, **live),
        "useServerSideResetOffset": Setting(True, **live),
        "litePullMessageEnable": Setting(True, **live),
        "pullThreadPoolQueueCapacity": Setting(100_000),
        "flushConsumerOffsetInterval": Setting(5000),
        # later
        "flushDelayOffsetInterval": Setting(10_000),
        "transactionTimeOut": Setting(6000, **live),
        "transactionCheckMax": Setting(15, **live),
        "transactionCheckInterval": Setting(30_000, **live),
        "recallMessageEnable": Setting(False, **live),
        "storeReplyMessageEnable": Setting(True, **live),
        # connections
        "serverChannelMaxIdleTimeSeconds": Setting(120),
        "connectionsMax": Setting(50_000),
        "proxyProtocolEnable": Setting(True),
        "channelExpiredTimeout": Setting(120_000),
        "tls.server.mode": Setting("permissive"),
        "tls.server.certPath": Setting(""),
        "tls.server.keyPath": Setting(""),
        "tls.server.keyPassword": Setting(""),
        "tls.server.trustCertPath": Setting(""),
        "tls.server.need.client.auth": Setting("none"),
    }
    idle = {name: Setting("", acts=False) for name in KNOWN_TO_ROCKETMQ - acting.keys() - FIELD_OF_PROPERTY.keys()}
    return {**idle, **acting}


_HIDDEN: Final = ("tls.server.keyPassword",)


class BrokerConfig(PropertySettings):
    """All settings of a broker with their values.

    Attributes: ``store_keys``: those of the store, as they were written; ``path``: the file that was read, or None.
    """

    def __init__(self) -> None:
        super().__init__(_settings(), "broker", _HIDDEN)
        self.store_keys: dict[str, str] = {}
        self.path: str | Path | None = None

    def read_file(self, path: str | Path) -> None:
        """Take the settings of a property file. Raises: ConfigError, OSError."""
        super().read_file(path)
        self.path = path

    def knows(self, name: str) -> bool:
        """Is this a setting of broker or store?"""
        return name in self._known or name in FIELD_OF_PROPERTY

    def take(self, pairs: Mapping[str, str], where: str) -> None:
        """Take settings of broker and store. Raises: ConfigError for a value of the wrong kind."""
        of_store = {name: text for name, text in pairs.items() if name in FIELD_OF_PROPERTY}
        super().take({name: text for name, text in pairs.items() if name not in of_store}, where)
        self.store_keys.update(of_store)

    def store_config(self, **overrides: Any) -> StoreConfig:
        """The settings of the store: what a broker.conf with these lines means. Raises: ConfigError."""
        lines = "".join(f"{name}={_escaped(text)}\n" for name, text in self.store_keys.items())
        return StoreConfig.from_broker_conf(lines, **overrides)

    @property
    def store_path(self) -> str:
        """The directory of the store (RocketMQ: storePathRootDir)."""
        return self.store_keys.get("storePathRootDir") or str(Path.home() / "store")

    @property
    def name_servers(self) -> list[str]:
        """The addresses of all name servers."""
        return [one.strip() for one in str(self["namesrvAddr"]).split(";") if one.strip()]


def _escaped(text: str) -> str:
    """A value as a property file writes it, so that Java's rules read the same text."""
    units = text.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(one) if 32 < one < 127 else f"\\u{one:04x}" for one in numbers)
