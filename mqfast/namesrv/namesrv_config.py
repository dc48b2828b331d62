"""Settings of the name server by RocketMQ's names: from a file, the command line and admins at run time.

Room: namesrv. It must never guess: a value of the wrong kind is an error, a name that nobody knows a warning with the
near ones. Source: NamesrvConfig, NettyServerConfig, NamesrvStartup.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqfast.broker_conf import decode_conf, java_number, java_trim, parse_properties
from mqfast.errors import ConfigError

__all__ = ["NamesrvConfig", "Setting"]

_I64_MAX: Final = 2**63 - 1


class Setting(NamedTuple):
    """One setting: its default, and whether it does anything here, and at run time."""

    default: bool | int | str
    acts: bool = True
    live: bool = False


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
        "proxyProtocolEnable": Setting(True),
        "tls.server.mode": Setting("permissive"),
        "tls.server.certPath": Setting(""),
        "tls.server.keyPath": Setting(""),
        "tls.server.keyPassword": Setting(""),
        "tls.server.trustCertPath": Setting(""),
        "tls.server.need.client.auth": Setting("none"),
    }


_HIDDEN: Final = ("tls.server.keyPassword",)
# What says where files are, who may connect and how the process is reached is for its owner, never for the network.
_NEVER_LIVE: Final = ("configBlackList", "configStorePath", "kvConfigPath", "bindAddress", "listenPort")


class NamesrvConfig:
    """All settings with their values.

    Attributes: ``warnings``: what to tell the user once; ``unknown``: names that are no settings.
    """

    def __init__(self) -> None:
        self._known = _settings()
        self._values: dict[str, bool | int | str] = {name: one.default for name, one in self._known.items()}
        self.warnings: list[str] = []
        self.unknown: list[str] = []

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def read_file(self, path: str | Path) -> None:
        """Take the settings of a property file. Raises: ConfigError, OSError."""
        text, warnings = decode_conf(Path(path).read_bytes())
        self.warnings += [f"{path}: {line}" for line in warnings]
        self.take(parse_properties(text), str(path))

    def take(self, pairs: Mapping[str, str], where: str) -> None:
        """Take settings. Raises: ConfigError for a value of the wrong kind; nothing is taken then."""
        taken = {name: self._parsed(name, text, where) for name, text in pairs.items() if name in self._known}
        without_effect = sorted(name for name in taken if not self._known[name].acts)
        if without_effect:
            self.warnings.append(f"{where}: without effect here: {', '.join(without_effect)}")
        for name in pairs:
            if name not in self._known:
                self.unknown.append(name)
                near = difflib.get_close_matches(name, self._known, 3)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                self.warnings.append(f"{where}: expected a setting of the name server, found {name}{hint}")
        self._values.update(taken)

    def _parsed(self, name: str, text: str, where: str) -> bool | int | str:
        default = self._known[name].default
        found = java_trim(text)
        if isinstance(default, bool):
            if found.lower() not in ("true", "false"):
                raise ConfigError(f"{where}: {name}: expected true or false, found {text!r}")
            return found.lower() == "true"
        if isinstance(default, int):
            number = java_number(found, _I64_MAX)
            most = 65535 if name == "listenPort" else 2**31 - 1
            if number is None or not 0 <= number <= most:
                raise ConfigError(f"{where}: {name}: expected a whole number from 0 to {most}, found {text!r}")
            return number
        return found

    def update(self, pairs: Mapping[str, str]) -> None:
        """Take what an admin sends at run time (318).

        Raises: PermissionError for what only the owner of the process may change; ConfigError for a wrong value.
        """
        black = {*_NEVER_LIVE, *str(self["configBlackList"]).split(";")}
        if not black.isdisjoint(pairs) or any(name.startswith("tls.") for name in pairs):
            raise PermissionError("Can not update config in black list.")
        self.take(pairs, "request 318")

    def changes(self) -> dict[str, str]:
        """Name -> text of what differs from its default."""
        return {
            name: as_text(value)
            for name, value in self._values.items()
            if value != self._known[name].default and name not in _HIDDEN
        }

    def text(self) -> str:
        """All settings as a property file, sorted (319); no secrets."""
        lines = sorted(f"{name}={as_text(value)}" for name, value in self._values.items() if name not in _HIDDEN)
        return "".join(line + "\n" for line in lines)


def as_text(value: bool | int | str) -> str:
    """How a property file says it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
