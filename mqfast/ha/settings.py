"""Settings of replication, with RocketMQ's defaults. Source: MessageStoreConfig."""

from __future__ import annotations

from dataclasses import dataclass

from mqfast.settings.declaration import setting

__all__ = ["HaSettings"]


@dataclass(frozen=True, slots=True)
class HaSettings:
    """Timing and limits of a master and a slave; times in seconds, RocketMQ's settings are ms."""

    batch_bytes: int = setting(32768, "haTransferBatchSize", "bytes", "Log bytes of one frame.")
    heartbeat_s: float = setting(
        5.0,
        "haSendHeartbeatInterval",
        "s",
        "Idle time after which a master sends an empty frame, and a slave its report.",
    )
    housekeeping_s: float = setting(
        20.0, "haHousekeepingInterval", "s", "A connection without received bytes for so long is closed."
    )
    flow_bytes_per_s: int | None = setting(
        None,
        "maxHaTransferByteInSecond",
        "bytes",
        "A master sends at most this per second, to all slaves together; none without haFlowControlEnable: no limit.",
    )
    reconnect_s: float = setting(5.0, None, "s", "Pause of a slave after a connection ended.")
    connect_timeout_s: float = setting(3.0, None, "s", "Time limit of a connect.")
    whole_log: bool = setting(
        False, None, "", "A slave without a log begins with the master's first file, not with its last file."
    )
    truncate_diverged: bool = setting(
        False, "haTruncateDiverged", "", "A slave truncates bytes that its master lacks; else the slave stops."
    )
