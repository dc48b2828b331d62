"""Settings of a broker by RocketMQ's names: from ``broker.conf``, the environment, the command line and admins.

Keys of the store are passed unchanged to the store's parser; the keys here are those of BrokerConfig, AuthConfig and of
the remoting server. An ambiguous value is an error. Source: BrokerConfig, BrokerIdentity, NettyServerConfig,
BrokerStartup.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqfast.broker.config.broker_settings import MASTER_ID, acting_settings
from mqfast.broker.config.rocketmq_keys import ROCKETMQ_KEYS
from mqfast.config import FIELD_OF_PROPERTY, PROPERTY_OF_FIELD, StoreConfig
from mqfast.errors import ConfigError
from mqfast.settings.declaration import SettingSpec
from mqfast.settings.property_settings import PropertySettings, as_text
from mqfast.settings.rocketmq_names import KNOWN_TO_ROCKETMQ
from mqfast.util.near_names import near_names
from mqfast.util.property_file import escaped

__all__ = ["BrokerConfig"]

# Keys that the store's parser checks, also without a setting of the store.
_FOR_THE_STORE: Final = frozenset({*FIELD_OF_PROPERTY, "enableDLegerCommitLog"})
# Settings of the store that take effect in retention at once.
_LIVE_IN_THE_STORE: Final = frozenset(
    {
        "fileReservedTime", "deleteWhen", "deleteFileBatchMax", "deleteCommitLogFilesInterval", "cleanResourceInterval",
        "cleanFileForciblyEnable", "destroyMapedFileIntervalForcibly", "redeleteHangedFileInterval",
        "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio",
    }
)  # fmt: skip


@functools.cache
def _settings() -> Mapping[str, SettingSpec]:
    idle = (ROCKETMQ_KEYS.keys() | KNOWN_TO_ROCKETMQ) - _FOR_THE_STORE
    defaults = {name: key.default for name, key in ROCKETMQ_KEYS.items()} | _by_cpus(os.cpu_count() or 1)
    return {
        **{name: SettingSpec(default=defaults.get(name, ""), has_effect=False) for name in idle},
        **acting_settings(),
    }


def _by_cpus(cpus: int) -> dict[str, str]:
    """Return RocketMQ's thread pool sizes: shown in responses, without effect here."""
    sends = min(cpus, 4)
    pools = {
        "sendMessageThreadPoolNums": sends,
        "putMessageFutureThreadPoolNums": sends,
        "pullMessageThreadPoolNums": 16 + 2 * cpus,
        "litePullMessageThreadPoolNums": 16 + 2 * cpus,
        "processReplyMessageThreadPoolNums": 16 + 2 * cpus,
        "queryMessageThreadPoolNums": 8 + cpus,
        "heartbeatThreadPoolNums": min(32, cpus),
        "endTransactionThreadPoolNums": max(8 + 2 * cpus, 4 * sends),
        "clientCallbackExecutorThreads": cpus,
    }
    return {name: str(number) for name, number in pools.items()}


_HIDDEN: Final = (
    "tls.server.keyPassword",
    "tls.client.keyPassword",
    "initAuthenticationUser",
    "innerClientAuthenticationCredentials",
    "socksProxyConfig",  # user and password of a proxy
    "metricsGrpcExporterHeader",  # tokens
)
_TLS_FILE: Final = "/etc/rocketmq/tls.properties"
_NEAR: Final = 0.8  # a variable this similar to a setting is mistyped; others belong to scripts, images and clients


class BrokerConfig(PropertySettings):
    """All settings of a broker with their values.

    Attributes: ``store_keys``: settings of the store, unparsed; ``path``: the file that was read, or None.
    """

    def __init__(self) -> None:
        super().__init__(_settings(), "broker", _HIDDEN, also=_FOR_THE_STORE)
        self.store_keys: dict[str, str] = {}
        self.path: str | Path | None = None
        self._origin: BrokerConfig | None = None

    def read_file(self, path: str | Path) -> None:
        """Read the settings of a property file. Raises: ConfigError, OSError."""
        super().read_file(path)
        self.path = path

    def acts(self, name: str) -> bool:
        """Return whether this key has an effect here."""
        return name in FIELD_OF_PROPERTY or super().acts(name)

    def is_live(self, name: str) -> bool:
        """Return whether an administrator may change this setting over the network, with effect at once.

        On a slave the name servers determine whose log is copied, so the network must not choose the name servers.
        """
        if name == "namesrvAddr":
            return not self.is_slave
        return name in _LIVE_IN_THE_STORE or super().is_live(name)

    def check_values(self, pairs: Mapping[str, str], where: str) -> None:
        """Raise as ``update`` for invalid settings, without a change. Raises: ConfigError."""
        of_store = {name: text for name, text in pairs.items() if name in _FOR_THE_STORE}
        super().check_values(
            {name: text for name, text in pairs.items() if name not in of_store or name in self._known}, where
        )
        if of_store:
            strange = set(StoreConfig.from_broker_conf(_lines(of_store)).warnings)
            if strange:
                raise ConfigError(f"{where}: {'; '.join(sorted(strange))}")
            StoreConfig.from_broker_conf(_lines({**self.store_keys, **of_store}))

    def update(self, pairs: Mapping[str, str], where: str) -> None:
        """Set settings of broker and store. Raises: ConfigError for a value of the wrong kind."""
        of_store = {name: text for name, text in pairs.items() if name in _FOR_THE_STORE}
        super().update(
            {name: text for name, text in pairs.items() if name not in of_store or name in self._known}, where
        )
        self.store_keys.update(of_store)
        if self._origin is not None:
            self._origin.update(pairs, where)

    def update_defaults(self, environment: Mapping[str, str]) -> None:
        """Set the variables that RocketMQ uses as defaults, below a file: NAMESRV_ADDR and ROCKETMQ_HOME."""
        names = {"NAMESRV_ADDR": "namesrvAddr", "ROCKETMQ_HOME": "rocketmqHome"}
        self.update({names[name]: text for name, text in environment.items() if name in names}, "environment")

    def update_environment(self, environment: Mapping[str, str]) -> None:
        """Set settings from variables ROCKETMQ_<KEY>, above a file: in any case, ``_`` for ``.`` or between words.

        Variables without a similar setting are ignored, such as ROCKETMQ_VERSION of images.
        """
        spelled = {_plain(name): name for name in (*self._known, *_FOR_THE_STORE)}
        pairs = {}
        for name, text in environment.items():
            if not name.startswith("ROCKETMQ_") or name == "ROCKETMQ_HOME":
                continue
            key = name.removeprefix("ROCKETMQ_")
            if _plain(key) in spelled:
                pairs[spelled[_plain(key)]] = text
            elif near := near_names(_plain(key), spelled, count=3, cutoff=_NEAR):
                self.unknown.append(key)
                meant = " or ".join(spelled[match] for match in near)
                self.warnings.append(
                    f"environment: expected a setting of the broker, found {name}; did you mean {meant}?"
                )
        self.update(pairs, "environment")

    def store_config(self, **overrides: Any) -> StoreConfig:
        """Return the settings of the store from these lines of a broker.conf.

        Without a file, and without a setting of retention, no message is deleted. Raises: ConfigError.
        """
        lines = _lines(self.store_keys)
        config = StoreConfig.from_broker_conf(lines, **overrides)
        if self.path is not None or config.names_retention:
            return config
        return StoreConfig.from_broker_conf(lines, **overrides, retention="never")

    def check(self) -> None:
        """Refuse settings that this broker cannot honour. Raises: ConfigError."""
        for name in ("enableControllerMode", "messageStorePlugIn"):
            if str(self[name]).strip().lower() not in ("", "false"):
                raise ConfigError(f"{name}: expected none, found {self[name]!r}: this broker does not have it")
        if not str(self["brokerName"]).strip():
            raise ConfigError("brokerName: expected a name, found none")
        if self.is_slave:
            if self["brokerId"] <= MASTER_ID:
                raise ConfigError(f"brokerId: expected at least 1 for a slave, found {self['brokerId']}")
        elif self["brokerId"] != MASTER_ID:
            self.warnings.append(f"brokerId: a master has {MASTER_ID}, as in Java, not {self['brokerId']}")
            self._values["brokerId"] = MASTER_ID

    @property
    def is_slave(self) -> bool:
        """Return True if the broker follows a master (RocketMQ: brokerRole)."""
        return self.store_keys.get("brokerRole", "").strip() == "SLAVE"

    @property
    def is_guarded(self) -> bool:
        """Return True if access control of any kind is on."""
        return any(self[name] for name in ("aclEnable", "authenticationEnabled", "authorizationEnabled"))

    def check_failover(self) -> None:
        """Refuse settings that prevent a fail-over. Raises: ConfigError."""
        for name, minimum in (("brokerId", 1), ("haLeaseSeconds", 2), ("listenPort", 1), ("minInSyncReplicas", 1)):
            if self[name] < minimum:
                raise ConfigError(f"{name}: expected at least {minimum} with haEtcdEndpoints, found {self[name]}")
        if not 0 < self["haLeaseMarginMs"] < self["haLeaseSeconds"] * 500:
            raise ConfigError(
                f"haLeaseMarginMs: expected 1 to less than half of haLeaseSeconds, found {self['haLeaseMarginMs']}"
            )
        if self.is_guarded and not self["haAllowedAddresses"] and not self["haTlsCertFile"]:
            raise ConfigError(
                "haAllowedAddresses: expected the addresses of the other brokers, or haTlsCertFile, with "
                "haEtcdEndpoints and access control: the port of replication lets in nobody else, so that no slave "
                "could follow"
            )
        if self["haMasterAddress"]:
            raise ConfigError(
                f"haMasterAddress: expected none with haEtcdEndpoints, found {self['haMasterAddress']!r}: etcd says "
                "which broker is the master"
            )
        if self.is_slave:
            raise ConfigError(
                "brokerRole: expected ASYNC_MASTER or SYNC_MASTER with haEtcdEndpoints, found SLAVE: etcd says which "
                "broker is the master, and all have the same settings but brokerId"
            )

    def broker_ids(self) -> frozenset[int]:
        """Return the brokers of this name in haBrokerIds. Raises: ConfigError."""
        words = [word.strip() for word in self["haBrokerIds"].replace(",", ";").split(";") if word.strip()]
        if wrong := [word for word in words if not (word.isascii() and word.isdigit() and int(word) >= 1)]:
            raise ConfigError(f"haBrokerIds: expected broker ids of at least 1 between semicolons, found {wrong[0]!r}")
        return frozenset(int(word) for word in words)

    def in_role(self, *, is_slave: bool) -> BrokerConfig:
        """Return the same settings for the current role as slave or master; later changes apply to both."""
        other = copy.copy(self)
        other._origin = self
        other._values, other._given = dict(self._values), set(self._given)
        other.store_keys, other.warnings, other.listeners = dict(self.store_keys), [], []
        if is_slave:
            other.store_keys["brokerRole"] = "SLAVE"
        else:
            other._values["brokerId"] = MASTER_ID
        return other

    @property
    def is_sync(self) -> bool:
        """Return True if responses of this broker as a master wait for slaves. Also for a slave under fail-over."""
        return (self._origin or self).store_keys.get("brokerRole") == "SYNC_MASTER"

    def become_master(self) -> None:
        """Change the settings of this slave to those of a master, synchronous if inSyncReplicas is above 1."""
        if self.is_slave or "brokerRole" not in self.store_keys:
            self.store_keys["brokerRole"] = "SYNC_MASTER" if self["inSyncReplicas"] > 1 else "ASYNC_MASTER"
        self._values["brokerId"] = MASTER_ID

    @property
    def store_path(self) -> str:
        """Return the directory of the store (RocketMQ: storePathRootDir)."""
        return self.store_keys.get("storePathRootDir") or str(Path.home() / "store")

    @property
    def name_servers(self) -> list[str]:
        """Return the addresses of all name servers."""
        return [address.strip() for address in str(self["namesrvAddr"]).split(";") if address.strip()]

    @property
    def serves_metrics(self) -> bool:
        """Return True if metrics and probes are served over HTTP."""
        return str(self["metricsExporterType"]).strip().upper() == "PROM"

    def tls(self, side: str) -> dict[str, str]:
        """Return the ``tls.server.*`` or ``tls.client.*`` settings: those given here, else those of the TLS file.

        The file is ``tls.config.file``, by default RocketMQ's ``/etc/rocketmq/tls.properties`` if present.
        Raises: ConfigError, OSError if the named file cannot be read.
        """
        prefix = f"tls.{side}."
        path = Path(self["tls.config.file"] or _TLS_FILE)
        from_file: dict[str, str] = {}
        if self["tls.config.file"] or path.is_file():
            of_file = PropertySettings({**self._known}, "broker", _HIDDEN)
            of_file.read_file(path)
            from_file = {name: text for name, text in of_file.given().items() if name.startswith(prefix)}
        given = {name: text for name, text in self.given().items() if name.startswith(prefix)}
        return {**from_file, **given}

    def text(self) -> str:
        """Return all settings as a property file, sorted: broker and store; no secrets."""
        store = self.store_config()
        shown = {
            prop: as_text(value)
            for field, prop in PROPERTY_OF_FIELD.items()
            if (value := getattr(store, field)) is not None
        }
        shown["storePathRootDir"] = self.store_path
        shown.setdefault("storePathCommitLog", str(Path(self.store_path) / "commitlog"))
        shown |= {name: as_text(value) for name, value in self._values.items() if name not in _HIDDEN}
        return "".join(f"{name}={shown[name]}\n" for name in sorted(shown))


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(".", "")


def _lines(pairs: Mapping[str, str]) -> str:
    return "".join(f"{name}={escaped(text)}\n" for name, text in pairs.items())
