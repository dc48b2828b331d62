"""The replication port of a master, open before the broker serves, and the check for a newer master of the broker's
name.

The settings determine the master. Source: DefaultHAService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from mqfast.broker.config.broker_address import with_port
from mqfast.broker.replication.epoch_check import EpochCheck, Rival, newer_master, slave_hosts_of
from mqfast.broker.replication.replica_admission import Admission, HaTls
from mqfast.errors import CorruptFile
from mqfast.ha.divergence import load_divergence
from mqfast.ha.failover.in_sync_replicas import SyncAcks
from mqfast.ha.master import HaMaster
from mqfast.ha.settings import HaSettings
from mqfast.store.log.acks import AckTable

if TYPE_CHECKING:
    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.ha.failover.lease_guard import LeaseGuard
    from mqfast.remoting.client import RemotingClient
    from mqfast.store.message_store import MessageStore

__all__ = ["SYNC_MASTER", "HaService"]

_log = logging.getLogger("mqfast.broker")
SYNC_MASTER: Final = "SYNC_MASTER"
_LOOK_S: Final = 1.0


def settings_of(config: BrokerConfig) -> HaSettings:
    """Return the settings of replication by RocketMQ's names.

    Under fail-over a slave reconnects every second and copies the whole log, since the slave may be the next master.
    """
    return HaSettings(
        batch_bytes=config["haTransferBatchSize"],
        heartbeat_s=config["haSendHeartbeatInterval"] / 1000,
        housekeeping_s=config["haHousekeepingInterval"] / 1000,
        flow_bytes_per_s=config["maxHaTransferByteInSecond"] if config["haFlowControlEnable"] else None,
        truncate_diverged=config["haTruncateDiverged"],
        whole_log=bool(config["haEtcdEndpoints"]),
        reconnect_s=1.0 if config["haEtcdEndpoints"] else 5.0,
    )


class HaService:
    """Serves slaves at a separate port; does nothing on a slave until ``listen`` is called.

    Args: client: for requests to name servers and other brokers; right: the lease under fail-over, which alone
        determines the master.
    Attributes: ``host``, ``port``: listening address for slaves; port 0 without a listener; ``admission``: which slaves
        may connect; ``epochs``: of the log; ``acks``: offsets of slaves, None on a slave; ``master``: the server, None
        without a listener; ``fenced``: reason why this master refuses messages, None if it accepts.
    Raises: ConfigError.
    Thread: that of the event loop.
    """

    def __init__(
        self, config: BrokerConfig, store: MessageStore, client: RemotingClient, right: LeaseGuard | None = None
    ) -> None:
        self.port = 0
        self.host: Final = str(config["haBindAddress"] or config["bindAddress"])
        self.tls: Final = HaTls.of(config)
        self.admission: Final = Admission(
            config, has_tls=self.tls is not None, slave_hosts=lambda: slave_hosts_of(client, config)
        )
        self.epochs: Final = EpochCheck(config, store)
        self.settings: Final = settings_of(config)
        self.right: Final = right
        self.acks: AckTable | None = None
        self.master: HaMaster | None = None
        self.fenced: str | None = None
        self._config: Final = config
        self._store: Final = store
        self._client: Final = client

    async def listen(self, broker_port: int) -> None:
        """Listen for slaves, on a master: at haListenPort, by default the broker's port plus one.

        Raises: OSError if a port given by haListenPort is not available.
        """
        config = self._config
        if config.is_slave:
            return
        if self.right is None:
            self.acks = AckTable(*self.needed())
        else:
            self.acks = SyncAcks(self.needed()[1], lambda: self._store.engine.raw.end)
            self._store.engine.raw.refuse_puts()  # until etcd confirms that this broker is the master
        master = HaMaster(
            self._store.engine.raw,
            self.acks,
            self.settings,
            file_bytes=self._store.config.mapped_file_bytes_commit_log,
            admits=self.admission,
            tls=None if self.tls is None else self.tls.server,
            epochs=self.epochs.file,
        )
        self.epochs.session = master.session
        if self.right is None and self.fenced is None:
            self.epochs.begin()
            self._warn_of_divergence()
        asked = config["haListenPort"] if "haListenPort" in config.given() else 0
        try:
            await master.start(self.host, asked or (broker_port + 1 if config["listenPort"] else 0))
        except OSError as error:
            if asked:
                raise
            _log.warning("slaves cannot connect: %s; haListenPort names another port", error)
            return
        self.master, self.port = master, master.port
        _log.info("replication: %s", self.policy)
        for line in self._warnings():
            _log.warning("%s", line)

    def _warnings(self) -> list[str]:
        """Return warnings for operators about the port."""
        warnings, config = [], self._config
        port_text = f"the port of replication ({with_port(self.host, self.port)})"
        wants_slaves = self._store.config.broker_role == SYNC_MASTER or "haListenPort" in config.given()
        if config.is_guarded and not self.admission.is_open and (wants_slaves or config["haBindAddress"]):
            warnings.append(f"slaves cannot connect: {port_text} lets in {self.admission.who}")
        is_local = self.host in ("127.0.0.1", "::1", "localhost")
        if config.is_guarded and self.admission.is_open and self.tls is None and not is_local:
            warnings.append(
                f"access control is on, and {port_text} hands out all messages without a signature and in clear to "
                f"{self.admission.who}; haTlsCertFile asks for certificates"
            )
        return warnings

    @property
    def policy(self) -> str:
        """Return the listening address and the admission rule in words."""
        if self._config.is_slave:
            return "this broker follows its master"
        if not self.port:
            return "no port, slaves cannot connect"
        return f"{with_port(self.host, self.port)}{' with TLS' if self.tls else ''}, lets in {self.admission.who}"

    def reload_certificates(self) -> None:
        """Load renewed certificates."""
        if self.tls is not None:
            self.tls.reload_if_changed()

    def _warn_of_divergence(self) -> None:
        """Log a warning if the settings make a master of a diverged store that was not promoted."""
        with contextlib.suppress(CorruptFile):
            mark = load_divergence(self._store.os_api, self._store.path)
            if mark is not None:
                _log.warning("%s; this broker serves as a master without a promotion", mark)

    def needed(self) -> tuple[int, float]:
        """Return the number of slaves that a send waits for without fail-over, and the timeout in seconds."""
        is_sync = self._store.config.broker_role == SYNC_MASTER
        needed = max(0, self._config["inSyncReplicas"] - 1) if is_sync else 0
        return needed, max(0, self._config["slaveTimeout"]) / 1000

    async def check_for_newer_master(self, own: str = "") -> None:
        """Check for a master with a newer epoch, for a second at most; ``fenced`` is set if this master was replaced.

        The name servers give the address of a master of this broker's name; that master gives its epoch. Without an
        answer nothing changes. Args: own: this broker's address, which is skipped.
        """
        is_exempt = self._config.is_slave or self.right is not None
        if is_exempt or not self._config.name_servers or self.fenced is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                rival = await newer_master(self._client, self._config, self.epochs.last, own)
                if rival is not None:
                    self._fence(rival)

    def _fence(self, rival: Rival) -> None:
        self.fenced = (
            f"this broker was replaced as master of {self._config['brokerName']}: {rival.address} has epoch "
            f"{rival.epoch}, this one {self.epochs.last}; end this broker and start it with brokerRole=SLAVE and "
            "brokerId=1 or more, and with haTruncateDiverged=true if its log goes on otherwise"
        )
        _log.error("no messages are taken: %s", self.fenced)
        self._store.engine.raw.refuse_puts()

    async def close(self) -> None:
        """Stop listening; also after a failed start of the broker."""
        if self.master is not None:
            await self.master.stop()
