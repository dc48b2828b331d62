"""Settings of replication, with RocketMQ's defaults. Source: MessageStoreConfig."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HaSettings"]


@dataclass(frozen=True, slots=True)
class HaSettings:
    """Timing and limits of a master and a slave.

    Attributes:
        batch_bytes: log bytes of one frame (RocketMQ: haTransferBatchSize).
        heartbeat_s: idle time after which a master sends an empty frame, and a slave its report
            (haSendHeartbeatInterval).
        housekeeping_s: a connection without received bytes for so long is closed (haHousekeepingInterval).
        flow_bytes_per_s: a master sends at most this, to all slaves together; None for no limit
            (maxHaTransferByteInSecond, with haFlowControlEnable).
        reconnect_s: pause of a slave after a connection ended.
        connect_timeout_s: time limit of a connect.
        whole_log: a slave without a log begins with the master's first file, not with its last file.
        truncate_diverged: a slave truncates bytes that its master lacks (haTruncateDiverged); else the slave stops.
    """

    batch_bytes: int = 32768
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    flow_bytes_per_s: int | None = None
    reconnect_s: float = 5.0
    connect_timeout_s: float = 3.0
    whole_log: bool = False
    truncate_diverged: bool = False
