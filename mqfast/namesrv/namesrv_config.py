"""Settings of the name server by RocketMQ's names: from a file, the command line and admins at run time.

A value of the wrong kind is an error; an unknown name is a warning with similar names. Source: NamesrvConfig,
NettyServerConfig, NamesrvStartup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mqfast.settings.declaration import SettingSpec
from mqfast.settings.property_settings import PropertySettings

__all__ = ["NamesrvConfig", "acting_settings"]


def _home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


def _settings() -> dict[str, SettingSpec]:
    spec = SettingSpec.of
    idle: dict[str, Any] = {"has_effect": False}
    live: dict[str, Any] = {"is_live": True}
    return {
        "rocketmqHome": spec("", **idle),
        "kvConfigPath": spec(
            _home("kvConfig.json"), doc="File of the values that administrators set; the former file stays as .bak."
        ),
        "configStorePath": spec(
            _home("namesrv.properties"), doc="File of settings that administrators change; by default the file of -c."
        ),
        "productEnvName": spec("center", **idle),
        "clusterTest": spec(False, **idle),
        "orderMessageEnable": spec(False, doc="Routes contain the entry of updateOrderConf.", **live),
        "returnOrderTopicConfigToBroker": spec(True, doc="Brokers get the ordered topics.", **live),
        "clientRequestThreadPoolNums": spec(8, **idle),
        "defaultThreadPoolNums": spec(16, **idle),
        "clientRequestThreadPoolQueueCapacity": spec(50_000, **idle),
        "defaultThreadPoolQueueCapacity": spec(10_000, **idle),
        "scanNotActiveBrokerInterval": spec(
            5000,
            unit="ms",
            doc="Pause between two scans for brokers that were silent for 120 s, or for the time that they named.",
            **live,
        ),
        "unRegisterBrokerQueueCapacity": spec(3000, **idle),
        "supportActingMaster": spec(
            False, doc="A group without a master shows its smallest slave as a master.", **live
        ),
        "enableAllTopicList": spec(True, doc="Answer requests for the list of all topics.", **live),
        "enableTopicList": spec(True, doc="Answer requests for the topics of a cluster.", **live),
        "notifyMinBrokerIdChanged": spec(False, doc="Notify brokers of a group when the smallest id changes.", **live),
        "enableControllerInNamesrv": spec(False, **idle),
        "needWaitForService": spec(False, doc="Refuse routes in the first seconds."),
        "waitSecondsForService": spec(45, unit="s", doc="Time without routes, with needWaitForService."),
        "deleteTopicWithBrokerRegistration": spec(
            False, doc="A registration removes topics that it does not name.", **live
        ),
        "configBlackList": spec(
            "configBlackList;configStorePath;kvConfigPath",
            doc="Settings, between semicolons, that administrators may not change.",
        ),
        "bindAddress": spec("127.0.0.1", doc="Listening address; RocketMQ's default is every interface."),
        "listenPort": spec(9876, high=65_535, doc="Listening port; 0 for a free port, which the first line names."),
        "serverWorkerThreads": spec(8, **idle),
        "serverCallbackExecutorThreads": spec(0, **idle),
        "serverSelectorThreads": spec(3, **idle),
        "serverOnewaySemaphoreValue": spec(256, **idle),
        "serverAsyncSemaphoreValue": spec(64, **idle),
        "serverChannelMaxIdleTimeSeconds": spec(
            120, unit="s", doc="A connection without a byte for this long is closed; its broker is removed at once."
        ),
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
        "connectionsMax": spec(50_000, unit="connections", doc="Connections at once; a further one is closed at once."),
        "registrationTopicsMax": spec(40_000, unit="topics", doc="Topics of one registration."),
        "registrationBytesMax": spec(32 << 20, unit="bytes", doc="Bytes of one registration."),
        "topicsMax": spec(500_000, unit="topics", doc="Topics of all broker names together."),
        "brokersMax": spec(2000, unit="brokers", doc="Registered brokers."),
        "proxyProtocolEnable": spec(True, doc="A PROXY preamble (version 1 or 2) of a load balancer names the client."),
        "tls.server.mode": spec("permissive", doc="disabled, permissive or enforcing."),
        "tls.server.certPath": spec("", doc="Certificate of the server."),
        "tls.server.keyPath": spec("", doc="Key of the server."),
        "tls.server.keyPassword": spec("", doc="Password of the key."),
        "tls.server.trustCertPath": spec("", doc="CA of the clients' certificates."),
        "tls.server.need.client.auth": spec("none", doc="none, optional or require: certificates of clients."),
    }


def acting_settings() -> dict[str, SettingSpec]:
    """Return the declarations of the settings with an effect here, by name."""
    return {name: spec for name, spec in _settings().items() if spec.has_effect}


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
