"""The state of a running broker as a table of texts (28), its counters (315), and its slaves (907).

Dashboards, the exporter and mqadmin read these keys. Keys without an equivalent in this broker (thread pools, a
dispatch buffer) have a neutral value. No key is omitted: clusterList and the exporter fail silently without a key.
Source: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService, DefaultMessageStore.getRuntimeInfo, MixAll.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from mqfast.broker.admin.bodies import StatsData, StatsItem
from mqfast.errors import CallRefused, MqfastError
from mqfast.remoting.bodies import build_tables, encode_body, header_of
from mqfast.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.metrics.broker_stats import Rate
    from mqfast.broker.replication.replica_manager import ReplicaManager
    from mqfast.broker.schedule.timer import BrokerTimers
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["RuntimeInfo", "size_text"]

_VERSION: Final = "V5_5_0"
_VERSION_NUMBER: Final = 513  # of the same; no broker of 5.x sends it, but without it the exporter reads nothing
_OF_A_SLAVE: Final = (
    "lastReadTimestamp", "lastWriteTimestamp", "masterFlushOffset", "maxOffset", "transferredByteInSecond",
)  # fmt: skip
_NO_POOL: Final = 2**31 - 1
# Thread pool in RocketMQ -> the equivalent concurrency limit here, and RocketMQ's capacity of the queue.
_POOLS: Final = {
    "send": ("send", 10_000),
    "pull": ("pull", 100_000),
    "litePull": ("litePull", 100_000),
    "query": ("query", 20_000),
    "ack": ("ack", 100_000),
}
_END_TRANSACTION: Final = ("endTransaction", 100_000)


class _StatsHeader(Struct, rename="camel"):
    stats_name: str
    stats_key: str


class RuntimeInfo:
    """Serves 28, 315 and 907. Thread: that of the event loop."""

    def __init__(
        self, context: BrokerContext, processors: Processors, replicas: ReplicaManager, timers: BrokerTimers
    ) -> None:
        self._context = context
        self._replica_manager = replicas
        self._timers = timers
        self._processors = processors

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        processors.register([RequestCode.GET_BROKER_RUNTIME_INFO], self.info, lane)
        processors.register([RequestCode.VIEW_BROKER_STATS_DATA], self.stats_data, lane)
        processors.register([RequestCode.GET_BROKER_HA_STATUS], self.ha_status, lane)

    def stats_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 315: a counter in its three windows."""
        header = header_of(request, _StatsHeader)
        rates = self._context.stats.rates(header.stats_name, header.stats_key)
        if rates is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, remark)
        return request.response(body=encode_body(StatsData(_item(rates.day), _item(rates.hour), _item(rates.minute))))

    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 907: the slaves of a master, or the status of a slave; own fields follow RocketMQ's."""
        replicas, end = self._replica_manager, self._context.store.log.written
        following, now_ms = replicas.following, self._context.now_ms()
        client: dict[str, object] = dict.fromkeys(_OF_A_SLAVE, 0)
        if following is not None:
            client |= {
                "masterAddr": following.master or "",
                "maxOffset": following.end,
                "isActivated": following.state == "TRANSFER",
                "lastReadTimestamp": _moment(now_ms, following.silent_ms),
                "lastWriteTimestamp": _moment(now_ms, following.unreported_ms),
                "transferredByteInSecond": following.bytes_per_s,
                "state": following.state,
                "behindBytes": following.behind_bytes,
                "behindMillis": following.behind_ms,
                "lastContactMillis": following.silent_ms,
                "error": following.error,
            }
        body = {
            "haClientRuntimeInfo": client,
            "haConnectionInfo": [
                {
                    "addr": slave.address,
                    "diff": slave.behind_bytes,
                    "inSync": slave.behind_bytes < self._context.config["haMaxGapNotInSync"],
                    "slaveAckOffset": slave.acknowledged,
                    "transferFromWhere": slave.sent,
                    "transferredByteInSecond": slave.bytes_per_s,
                    "behindMillis": slave.behind_ms,
                    "lastContactMillis": slave.silent_ms,
                }
                for slave in replicas.slaves
            ],
            "inSyncSlaveNums": replicas.in_sync(),
            "master": following is None,
            "masterCommitLogMaxOffset": end if following is None else following.master_end,
        }
        return request.response(body=encode_body(body))

    def info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 28: the runtime info."""
        return request.response(body=encode_body({"table": self.table()}))

    def table(self) -> dict[str, str]:
        """Return all keys with values."""
        rows = {
            **self._counts(), **self._store(), **self._lanes(), **self._delays(), **self._timer(), **self._replicas(),
        }  # fmt: skip
        return {name: value if isinstance(value, str) else str(value) for name, value in rows.items()}

    def _counts(self) -> dict[str, object]:
        context = self._context
        stats = context.stats
        puts = stats.put_totals_all
        times = max(1, puts.times)
        return {
            "bootTimestamp": context.started_ms,
            "runtime": _days_text(context.now_ms() - context.started_ms),
            "brokerActive": "true",
            "brokerVersion": _VERSION_NUMBER,
            "brokerVersionDesc": _VERSION,
            "putMessageEntireTimeMax": stats.put_time_max_ms,
            "putMessageTimesTotal": times,
            "putMessageFailedTimes": stats.failures,
            "putMessageSizeTotal": puts.size,
            "putMessageDistributeTime": stats.put_times_text(),
            "putMessageAverageSize": puts.size / times,
            "getMessageEntireTimeMax": 0,
            "putTps": self._three("put"),
            "getFoundTps": self._three("found"),
            "getMissTps": self._three("miss"),
            "getTotalTps": " ".join(str(stats.tps("found", s) + stats.tps("miss", s)) for s in (10, 60, 600)),
            "getTransferredTps": self._three("transferred"),
            "putLatency99": f"{stats.put_latency_ms(0.99):.2f}",
            "putLatency999": f"{stats.put_latency_ms(0.999):.2f}",
            "msgPutTotalYesterdayMorning": stats.yesterday[0],
            "msgPutTotalTodayMorning": stats.morning[0],
            "msgPutTotalTodayNow": stats.put_totals.count,
            "msgGetTotalYesterdayMorning": stats.yesterday[1],
            "msgGetTotalTodayMorning": stats.morning[1],
            "msgGetTotalTodayNow": stats.get_totals.count,
            "startAcceptSendRequestTimeStamp": context.config["startAcceptSendRequestTimeStamp"],
        }

    def _three(self, column: str) -> str:
        return " ".join(str(self._context.stats.tps(column, seconds)) for seconds in (10, 60, 600))

    def _store(self) -> dict[str, object]:
        context = self._context
        store, engine = context.store, context.engine
        log = store.log
        directory = os.path.join(context.config.store_path, "commitlog")
        try:
            used = f"{engine.disk_use().percent / 100:.2f}"
        except MqfastError:
            used = "-1"
        free = store.stats()["pool_free_buffers"]
        rows: dict[str, object] = {
            "commitLogDiskRatio": used,
            f"commitLogDiskRatio_{directory}": used,
            "consumeQueueDiskRatio": used,
            "commitLogMinOffset": max(0, log.min_offset),
            "commitLogMaxOffset": log.written,
            **({} if (confirmed := self._replica_manager.confirmed) is None else {"commitLogConfirmOffset": confirmed}),
            "dispatchMaxBuffer": 0,
            "dispatchBehindBytes": engine.dispatch_behind_bytes,
            "pageCacheLockTimeMills": log.lock_held_ms,
            "earliestMessageTimeStamp": engine.earliest_message_time(),
            "remainTransientStoreBufferNumbs": _NO_POOL if free is None else free,
            "remainHowManyDataToFlush": size_text(log.written - log.flushed),
        }
        if free is not None:
            rows["remainHowManyDataToCommit"] = size_text(log.written - log.committed)
        try:
            space = os.statvfs(context.config.store_path)
        except OSError:
            return rows
        total, free_bytes = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
        rows["commitLogDirCapacity"] = f"Total : {size_text(total)}, Free : {size_text(free_bytes)}."
        return rows

    def _lanes(self) -> dict[str, object]:
        lanes = self._processors.lanes
        now_s = time.monotonic()
        rows: dict[str, object] = {}
        for pool, (name, capacity) in _POOLS.items():
            lane = lanes.get(name)
            rows[f"{pool}ThreadPoolQueueSize"] = 0 if lane is None else len(lane.waiting)
            rows[f"{pool}ThreadPoolQueueCapacity"] = capacity if lane is None else lane.queue_max
            rows[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0 if lane is None else lane.head_wait_ms(now_s)
        lane = lanes.get(_END_TRANSACTION[0])
        rows["EndTransactionQueueSize"] = 0 if lane is None else len(lane.waiting)
        rows["EndTransactionThreadPoolQueueCapacity"] = _END_TRANSACTION[1] if lane is None else lane.queue_max
        return rows

    def _delays(self) -> dict[str, object]:
        context = self._context
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{context.store.max_offset('SCHEDULE_TOPIC_XXXX', level - 1)}"
            for level, offset in sorted(context.tables.delays.offsets().items())
        }

    def _replicas(self) -> dict[str, object]:
        """Return own keys of replication, which RocketMQ has for 907 only."""
        replicas = self._replica_manager
        following, slaves = replicas.following, replicas.slaves
        if following is not None:
            return {
                "followState": following.state,
                "followBehindBytes": following.behind_bytes,
                "followBehindMillis": following.behind_ms,
            }
        rows: dict[str, object] = {"slaves": len(slaves), "slavesInSync": replicas.in_sync()}
        for slave in slaves:
            rows[f"slaveBehindBytes_{slave.address}"] = slave.behind_bytes
            rows[f"slaveBehindMillis_{slave.address}"] = slave.behind_ms
        return rows

    def _timer(self) -> dict[str, object]:
        timer = self._timers.service
        if timer is not None:
            return timer.statistics(self._context.now_ms())
        return {
            "timerReadBehind": 0,
            "timerOffsetBehind": 0,
            "timerCongestNum": 0,
            "timerEnqueueTps": 0.0,
            "timerDequeueTps": 0.0,
        }


def _item(rate: Rate) -> StatsItem:
    return StatsItem(rate.avgpt, rate.sum, rate.tps)


def _moment(now_ms: int, ago_ms: int | None) -> int:
    """Return the time of an event, ms since the epoch; 0: never."""
    return 0 if ago_ms is None else now_ms - ago_ms


def _days_text(ms: int) -> str:
    """Return a duration in RocketMQ's words."""
    seconds = max(0, ms) // 1000
    return (
        f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
        f"{seconds % 60} seconds ]"
    )


def size_text(size: int) -> str:
    """Return a size in RocketMQ's format: 414 B, 1.5 KiB, 218.3 GiB. Source: MixAll.humanReadableByteCount."""
    if size < 1024:
        return f"{size} B"
    power = 0
    scaled = float(size)
    while scaled >= 1024 and power < 6:
        scaled /= 1024
        power += 1
    return f"{scaled:.1f} {'KMGTPE'[power - 1]}iB"


build_tables(__name__)
