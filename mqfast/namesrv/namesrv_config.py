"""Settings of the name server by RocketMQ's names: from a file, the command line and admins at run time.

A value of the wrong kind is an error; an unknown name is a warning with similar names. Source: NamesrvConfig,
NettyServerConfig, NamesrvStartup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mqfast.settings.declaration import SettingSpec
from mqfast.settings.property_settings import PropertySettings

__all__ = ["NamesrvConfig"]


def _home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


def _settings() -> dict[str, SettingSpec]:
    spec = SettingSpec.of
    idle: dict[str, Any] = {"has_effect": False}
    live: dict[str, Any] = {"is_live": True}
    return {
        "rocketmqHome": spec("", **idle),
        "kvConfigPath": spec(_home("kvConfig.json")),
        "configStorePath": spec(_home("namesrv.properties")),
        "productEnvName": spec("center", **idle),
        "clusterTest": spec(False, **idle),
        "orderMessageEnable": spec(False, **live),
        "returnOrderTopicConfigToBroker": spec(True, **live),
        "clientRequestThreadPoolNums": spec(8, **idle),
        "defaultThreadPoolNums": spec(16, **idle),
        "clientRequestThreadPoolQueueCapacity": spec(50_000, **idle),
        "defaultThreadPoolQueueCapacity": spec(10_000, **idle),
        "scanNotActiveBrokerInterval": spec(5000, **live),
        "unRegisterBrokerQueueCapacity": spec(3000, **idle),
        "supportActingMaster": spec(False, **live),
        "enableAllTopicList": spec(True, **live),
        "enableTopicList": spec(True, **live),
        "notifyMinBrokerIdChanged": spec(False, **live),
        "enableControllerInNamesrv": spec(False, **idle),
        "needWaitForService": spec(False),
        "waitSecondsForService": spec(45),
        "deleteTopicWithBrokerRegistration": spec(False, **live),
        "configBlackList": spec("configBlackList;configStorePath;kvConfigPath"),
        "bindAddress": spec("127.0.0.1"),
        "listenPort": spec(9876, high=65_535),
        "serverWorkerThreads": spec(8, **idle),
        "serverCallbackExecutorThreads": spec(0, **idle),
        "serverSelectorThreads": spec(3, **idle),
        "serverOnewaySemaphoreValue": spec(256, **idle),
        "serverAsyncSemaphoreValue": spec(64, **idle),
        "serverChannelMaxIdleTimeSeconds": spec(120),
        "serverSocketSndBufSize": spec(0, **idle),
        "serverSocketRcvBufSize": spec(0, **idle),
        "writeBufferHighWaterMark": spec(0, **idle),
        "writeBufferLowWaterMark": spec(0, **idle),
        "serverSocketBacklog": spec(1024, **idle),
        "serverNettyWorkerGroupEnable": spec(True, **idle),
        "serverPooledByteBufAllocatorEnable": spec(True, **idle),
        "enableShutdownGracefully": spec(False, **idle),
        "shutdownWaitTimeSeconds": spec(30, **idle),
        "useEpollNativeSelector": spec(False, **idle),
        "connectionsMax": spec(50_000),
        "registrationTopicsMax": spec(40_000),
        "registrationBytesMax": spec(32 << 20),
        "topicsMax": spec(500_000),
        "brokersMax": spec(2000),
        "proxyProtocolEnable": spec(True),
        "tls.server.mode": spec("permissive"),
        "tls.server.certPath": spec(""),
        "tls.server.keyPath": spec(""),
        "tls.server.keyPassword": spec(""),
        "tls.server.trustCertPath": spec(""),
        "tls.server.need.client.auth": spec("none"),
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
