"""Settings of the name server by RocketMQ's names: from a file, the command line and admins at run time.

Room: namesrv. It must never guess: a value of the wrong kind is an error, a name that nobody knows a warning with the
near ones. Source: NamesrvConfig, NettyServerConfig, NamesrvStartup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mqfast.property_settings import PropertySettings, Setting

__all__ = ["NamesrvConfig"]


def _home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


def _settings() -> dict[str, Setting]:
    idle, live = {"acts": False}, {"live": True}
    return {
        "rocketmqHome": Setting("", **idle),
        "kvConfigPath": Setting(_home("kvConfig.json")),
        "configStorePath": Setting(_home("namesrv.properties")),
        "productEnvName": Setting("center", **idle),
        "clusterTest": Setting(False, **idle),
        "orderMessageEnable": Setting(False, **live),
        "returnOrderTopicConfigToBroker": Setting(True, **live),
        "clientRequestThreadPoolNums": Setting(8, **idle),
        "defaultThreadPoolNums": Setting(16, **idle),
        "clientRequestThreadPoolQueueCapacity": Setting(50_000, **idle),
        "defaultThreadPoolQueueCapacity": Setting(10_000, **idle),
        "scanNotActiveBrokerInterval": Setting(5000, **live),
        "unRegisterBrokerQueueCapacity": Setting(3000, **idle),
        "supportActingMaster": Setting(False, **live),
        "enableAllTopicList": Setting(True, **live),
        "enableTopicList": Setting(True, **live),
        "notifyMinBrokerIdChanged": Setting(False, **live),
        "enableControllerInNamesrv": Setting(False, **idle),
        "needWaitForService": Setting(False),
        "waitSecondsForService": Setting(45),
        "deleteTopicWithBrokerRegistration": Setting(False, **live),
        "configBlackList": Setting("configBlackList;configStorePath;kvConfigPath"),
        "bindAddress": Setting("127.0.0.1"),
        "listenPort": Setting(9876),
        "serverWorkerThreads": Setting(8, **idle),
        "serverCallbackExecutorThreads": Setting(0, **idle),
        "serverSelectorThreads": Setting(3, **idle),
        "serverOnewaySemaphoreValue": Setting(256, **idle),
        "serverAsyncSemaphoreValue": Setting(64, **idle),
        "serverChannelMaxIdleTimeSeconds": Setting(120),
        "serverSocketSndBufSize": Setting(0, **idle),
        "serverSocketRcvBufSize": Setting(0, **idle),
        "writeBufferHighWaterMark": Setting(0, **idle),
        "writeBufferLowWaterMark": Setting(0, **idle),
        "serverSocketBacklog": Setting(1024, **idle),
        "serverNettyWorkerGroupEnable": Setting(True, **idle),
        "serverPooledByteBufAllocatorEnable": Setting(True, **idle),
        "enableShutdownGracefully": Setting(False, **idle),
        "shutdownWaitTimeSeconds": Setting(30, **idle),
        "useEpollNativeSelector": Setting(False, **idle),
        "connectionsMax": Setting(50_000),
        "registrationTopicsMax": Setting(40_000),
        "registrationBytesMax": Setting(32 << 20),
        "topicsMax": Setting(500_000),
        "brokersMax": Setting(2000),
        "proxyProtocolEnable": Setting(True),
        "tls.server.mode": Setting("permissive"),
        "tls.server.certPath": Setting(""),
        "tls.server.keyPath": Setting(""),
        "tls.server.keyPassword": Setting(""),
        "tls.server.trustCertPath": Setting(""),
        "tls.server.need.client.auth": Setting("none"),
    }


_HIDDEN: Final = ("tls.server.keyPassword",)


class NamesrvConfig(PropertySettings):
    """All settings of a name server with their values."""

    def __init__(self) -> None:
        super().__init__(_settings(), "name server", _HIDDEN)

    def read_file(self, path: str | Path) -> None:
        """Take the settings of a property file, which keeps later changes unless it names another file for them.

        Raises: ConfigError, OSError. Source: NamesrvStartup.
        """
        super().read_file(path)
        if "configStorePath" not in self._given:
            self._values["configStorePath"] = str(path)
