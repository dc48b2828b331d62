"""Settings of the name server by RocketMQ's names: from a file, the command line and admins at run time.

A value of the wrong kind is an error; an unknown name is a warning with similar names. Source: NamesrvConfig,
NettyServerConfig, NamesrvStartup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mqfast.property_settings import PropertySetting, PropertySettings

__all__ = ["NamesrvConfig"]


def _home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


def _settings() -> dict[str, PropertySetting]:
    idle, live = {"acts": False}, {"live": True}
    return {
        "rocketmqHome": PropertySetting("", **idle),
        "kvConfigPath": PropertySetting(_home("kvConfig.json")),
        "configStorePath": PropertySetting(_home("namesrv.properties")),
        "productEnvName": PropertySetting("center", **idle),
        "clusterTest": PropertySetting(False, **idle),
        "orderMessageEnable": PropertySetting(False, **live),
        "returnOrderTopicConfigToBroker": PropertySetting(True, **live),
        "clientRequestThreadPoolNums": PropertySetting(8, **idle),
        "defaultThreadPoolNums": PropertySetting(16, **idle),
        "clientRequestThreadPoolQueueCapacity": PropertySetting(50_000, **idle),
        "defaultThreadPoolQueueCapacity": PropertySetting(10_000, **idle),
        "scanNotActiveBrokerInterval": PropertySetting(5000, **live),
        "unRegisterBrokerQueueCapacity": PropertySetting(3000, **idle),
        "supportActingMaster": PropertySetting(False, **live),
        "enableAllTopicList": PropertySetting(True, **live),
        "enableTopicList": PropertySetting(True, **live),
        "notifyMinBrokerIdChanged": PropertySetting(False, **live),
        "enableControllerInNamesrv": PropertySetting(False, **idle),
        "needWaitForService": PropertySetting(False),
        "waitSecondsForService": PropertySetting(45),
        "deleteTopicWithBrokerRegistration": PropertySetting(False, **live),
        "configBlackList": PropertySetting("configBlackList;configStorePath;kvConfigPath"),
        "bindAddress": PropertySetting("127.0.0.1"),
        "listenPort": PropertySetting(9876),
        "serverWorkerThreads": PropertySetting(8, **idle),
        "serverCallbackExecutorThreads": PropertySetting(0, **idle),
        "serverSelectorThreads": PropertySetting(3, **idle),
        "serverOnewaySemaphoreValue": PropertySetting(256, **idle),
        "serverAsyncSemaphoreValue": PropertySetting(64, **idle),
        "serverChannelMaxIdleTimeSeconds": PropertySetting(120),
        "serverSocketSndBufSize": PropertySetting(0, **idle),
        "serverSocketRcvBufSize": PropertySetting(0, **idle),
        "writeBufferHighWaterMark": PropertySetting(0, **idle),
        "writeBufferLowWaterMark": PropertySetting(0, **idle),
        "serverSocketBacklog": PropertySetting(1024, **idle),
        "serverNettyWorkerGroupEnable": PropertySetting(True, **idle),
        "serverPooledByteBufAllocatorEnable": PropertySetting(True, **idle),
        "enableShutdownGracefully": PropertySetting(False, **idle),
        "shutdownWaitTimeSeconds": PropertySetting(30, **idle),
        "useEpollNativeSelector": PropertySetting(False, **idle),
        "connectionsMax": PropertySetting(50_000),
        "registrationTopicsMax": PropertySetting(40_000),
        "registrationBytesMax": PropertySetting(32 << 20),
        "topicsMax": PropertySetting(500_000),
        "brokersMax": PropertySetting(2000),
        "proxyProtocolEnable": PropertySetting(True),
        "tls.server.mode": PropertySetting("permissive"),
        "tls.server.certPath": PropertySetting(""),
        "tls.server.keyPath": PropertySetting(""),
        "tls.server.keyPassword": PropertySetting(""),
        "tls.server.trustCertPath": PropertySetting(""),
        "tls.server.need.client.auth": PropertySetting("none"),
    }


_HIDDEN: Final = ("tls.server.keyPassword",)


class NamesrvConfig(PropertySettings):
    """All settings of a name server with their values."""

    def __init__(self) -> None:
        super().__init__(_settings(), "name server", _HIDDEN)

    def read_file(self, path: str | Path) -> None:
        """Read the settings of a property file. Later changes are stored there unless the file sets configStorePath.

        Raises: ConfigError, OSError. Source: NamesrvStartup.
        """
        super().read_file(path)
        if "configStorePath" not in self._given:
            self._values["configStorePath"] = str(path)
