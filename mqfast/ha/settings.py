"""Settings of replication, with RocketMQ's defaults.

Room: ha. It must never read a file. Source: MessageStoreConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HaSettings"]


@dataclass(frozen=True, slots=True)
class HaSettings:
    """How a master sends and a slave follows.

    Attributes:
        batch_bytes: log bytes of one frame (RocketMQ: haTransferBatchSize).
        heartbeat_s: after so long without a frame a master sends an empty one, a slave its report
            (haSendHeartbeatInterval).
        housekeeping_s: a connection on which nothing came for so long ends (haHousekeepingInterval).
        flow_bytes_per_s: a master sends at most this, to all slaves together; None for no limit
            (maxHaTransferByteInSecond, with haFlowControlEnable).
        reconnect_s: how long a slave waits after a connection ended.
        connect_timeout_s: how long a connection may take.
        whole_log: a slave without a log begins with the master's first file, not with the last one.
        truncate_diverged: a slave cuts off what its master does not have (haTruncateDiverged); else it stops there.
    """

    batch_bytes: int = 32768
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    flow_bytes_per_s: int | None = None
    reconnect_s: float = 5.0
    connect_timeout_s: float = 3.0
    whole_log: bool = False
    truncate_diverged: bool = False
