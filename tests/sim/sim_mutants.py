"""Mutants of replication, fail-over, offsets and delivery: places of the product that the simulation must find broken.

A mutant changes functions by the operators of tests/mutation. ``finder.py`` runs seeds until a promise breaks. The
first two are faults that replication had. ``issue``: the number of an issue of apache/rocketmq about such a fault.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "mutation"))

from mutant import ROOT, Mutant, broken
from operators import Operator, condition, drop, instead, replace, result

__all__ = ["MUTANTS", "ROOT", "SimMutant", "broken"]


class SimMutant(NamedTuple):
    """A mutant, the scenario that finds it, and the kinds of faults; empty: no faults; None: the default kinds."""

    name: str
    scenario: str
    parts: tuple[Mutant, ...]
    kinds: tuple[str, ...] | None = None
    issue: int = 0


def _of(
    name: str,
    scenario: str,
    file: str,
    function: str,
    operator: Operator,
    kinds: tuple[str, ...] | None = None,
    *,
    issue: int = 0,
) -> SimMutant:
    return SimMutant(name, scenario, (Mutant(name, f"mqfast/{file}", function, operator, "", ()),), kinds, issue)


_FAILOVER: Final = "broker/replication/failover_broker.py"
_IN_SYNC: Final = "ha/failover/in_sync_replicas.py"
_LEASE: Final = "ha/failover/lease_guard.py"
_STATE: Final = "ha/failover/etcd_state.py"
_SLAVE: Final = "ha/slave.py"
_MASTER: Final = "ha/master.py"
_COMPARISON: Final = "ha/log_comparison.py"
_WAITER: Final = "broker/send/flush_waiter.py"
_WRITER: Final = "broker/send/message_writer.py"
_PROCESS_QUEUE: Final = "client/consumer/process_queue.py"
_DISPATCHER: Final = "client/consumer/push/dispatcher.py"

_POP: Final = "broker/pop/pop_service.py"
_POP_READER: Final = "broker/pop/pop_reader.py"
_POP_OFFSETS: Final = "broker/pop/pop_offsets.py"
_IN_FLIGHT: Final = "broker/pop/in_flight.py"
_REVIVE: Final = "broker/pop/revive_log.py"
_ORDERS: Final = "broker/pop/order_info.py"
_END: Final = "broker/transaction/end_transaction.py"
_CHECK: Final = "broker/transaction/transaction_check.py"
_TRANSACTION_RECOVERY: Final = "broker/transaction/transaction_recovery.py"
_TIMER: Final = "schedule/timer/service.py"

_ROWS: Final = "broker/idempotence/idempotent_writes.py"
_ROW_RECOVERY: Final = "broker/idempotence/state_recovery.py"
_LEVELS: Final = "schedule/delay_service.py"
_BACK: Final = "broker/pull/send_message_back.py"
_LOCKS: Final = "broker/metadata/client_manager/queue_locks.py"
_COORDINATOR: Final = "client/consumer/push/coordinator.py"
_ALLOCATION: Final = "client/consumer/allocation.py"
_PROMOTION: Final = "ha/promotion.py"

_REPLICAS: Final = "broker/replication/replica_manager.py"
_DELIVERY: Final = "schedule/timer/delivery.py"

_CUTS: Final = ("kill", "isolate", "cut", "etcd away")

_LAST_64_KIB: Final = (
    Mutant(
        "last-64-kib", f"mqfast/{_COMPARISON}", "LogComparison.__init__",
        replace("common = common_end(mine, self.end, history.terms, history.end)", "common = None"), "", (),
    ),
    Mutant(
        "last-64-kib", f"mqfast/{_COMPARISON}", "LogComparison._start_of",
        replace(
            "record = self._raw.record_before(max(self.lowest, below - search.step))",
            "return max(self.limit - 65536, 1)",
        ), "", (),
    ),
)  # fmt: skip

_NEW_ETCD: Final = (
    Mutant("new-etcd", f"mqfast/{_FAILOVER}", "FailoverBroker._doubt", result("None", 3), "", ()),
    Mutant(
        "new-etcd", f"mqfast/{_FAILOVER}", "FailoverBroker._first_or_next",
        replace("State(1, own", "State(self._next_epoch(view), own"), "", (),
    ),
)  # fmt: skip

# fmt: off
MUTANTS: Final = (
    SimMutant("last-64-kib-only", "large_and_again", _LAST_64_KIB, ()),
    SimMutant("etcd-without-its-record-believed", "long_away", _NEW_ETCD, ()),
    _of("slave-not-waited-for", "fail_over", _WAITER, "ReplicaWaiter.when", condition("True"), _CUTS),
    _of("lease-not-checked", "fail_over", _LEASE, "LeaseGuard.is_valid", result("self._is_active"), _CUTS, issue=7017),
    _of(
        "lease-extended-for-ever", "fail_over", _LEASE, "LeaseGuard.extend",
        replace("max(self._deadline_s, deadline_s)", "deadline_s + 60"), _CUTS,
    ),
    _of(
        "permission-never-ends", "fail_over", _FAILOVER, "FailoverBroker._has_last_permission_expired",
        result("True", 2), _CUTS,
    ),
    _of("any-broker-may-lead", "take_overs", _STATE, "State.may_lead", result("True"), ()),
    _of(
        "leader-without-the-set-epoch", "disk_replaced", _STATE, "State.may_lead",
        result("broker_id in self.in_sync"), (),
    ),
    _of(
        "nobody-required", "fail_over", _IN_SYNC, "InSyncReplicas._require",
        replace("self._acks.require(required)", "self._acks.require(())"), _CUTS,
    ),
    _of(
        "doubtful-set-not-required", "joins", _IN_SYNC, "InSyncReplicas._require",
        replace("self._members | self._doubtful | self._joining.keys()", "self._members"), (), issue=5663,
    ),
    _of(
        "joins-before-level", "joins", _IN_SYNC, "InSyncReplicas.evaluate",
        replace("positions[broker_id] >= mark", "True"), (),
    ),
    _of(
        "late-slave-stays", "available", _IN_SYNC, "InSyncReplicas.evaluate",
        replace("> self.absent_s", "> 1e9"), (),
    ),
    _of("least-acked-is-most", "take_overs", _IN_SYNC, "SyncAcks._update", replace("min", "max"), ()),
    _of(
        "absent-slave-acknowledges", "absent_slave", _IN_SYNC, "SyncAcks._update",
        replace("positions.get(broker_id, 0)", "positions.get(broker_id, self._end())"), (), issue=6662,
    ),
    _of(
        "first-report-acknowledges", "diverged_slave", _MASTER, "_Follower.data_received",
        replace("offset = 0", "pass"), (),
    ),
    _of(
        "campaign-without-compares", "take_overs", _FAILOVER, "FailoverBroker._campaign",
        replace("self.etcd.write, compares, puts", "self.etcd.write, [], puts"), (),
    ),
    _of(
        "state-without-compares", "late_writes", _FAILOVER, "FailoverBroker._write_state",
        replace("self.etcd.write, compares", "self.etcd.write, []"), (),
    ),
    _of("old-master-goes-on", "fail_over", _FAILOVER, "FailoverBroker._follow", drop("self._reopen"), _CUTS),
    _of("epoch-not-begun", "fail_over", _FAILOVER, "FailoverBroker._promote", drop("begin_epoch"), _CUTS),
    _of(
        "send-back-at-an-old-master", "take_overs", _BACK, "SendBack._when_durable",
        replace("done.code not in _NOT_AT_SLAVES", "True"), (),
    ),
    _of("limit-ignored", "fail_over", _COMPARISON, "LogComparison.is_at_limit", result("False"), _CUTS),
    _of(
        "terms-of-the-master-not-kept", "take_overs", _SLAVE, "HaSlave._take_terms",
        drop("self._epochs.follow"), (),
    ),
    _of(
        "slaves-not-told-of-an-epoch", "same_master", _REPLICAS, "ReplicaManager.begin_epoch",
        replace("if self.ha.master is not None:", "if False:"), (), issue=9689,
    ),
    _of("log-not-cut", "fail_over", _SLAVE, "HaSlave._decide", drop("self._raw.truncate_to"), _CUTS),
    _of(
        "transactions-read-up-to-the-confirm-offset", "transactions_fail_over", _FAILOVER, "FailoverBroker._promote",
        drop("open_transactions.load"), (),
    ),
    _of(
        "hidden-message-is-given-up", "take_overs", _DELIVERY, "TimerDelivery.is_hidden", result("False"), (),
    ),
    _of(
        "takes-a-batch-too-much", "slow_handler", _PROCESS_QUEUE, "ProcessQueue.committable",
        result("self.next_offset"), ("kill", "reset", "cut"),
    ),
    _of(
        "failed-handler-is-success", "failing_handler", _DISPATCHER, "Dispatcher.process_result",
        instead("call_in_loop", "self._ack(job.assigned, job.pq, judged.later)"), (),
    ),
    _of("pop-ack-forgotten", "popped", _POP, "PopService._store_acks", drop("self.in_flight.settle"), (), issue=7724),
    _of(
        "pop-message-handed-out-early", "popped", _IN_FLIGHT, "InFlight.take_due",
        replace("<= now_ms", "<= now_ms + 2500"), (),
    ),
    _of(
        "pop-message-never-comes-again", "popped", _REVIVE, "ReviveLog._store_again", condition("True"), (),
        issue=7914,
    ),
    _of(
        "pop-change-forgets-the-message", "popped", _POP, "PopService.change_invisible_time",
        drop("self.in_flight.add"), (),
    ),
    _of(
        "pop-change-keeps-the-old-time", "popped", _POP, "PopService.change_invisible_time",
        replace("self._store_acks(group, real, handle, [handle.offset])", "None"), (),
    ),
    _of("pop-retries-not-read", "popped", _POP_READER, "PopReader._retry_topics", result("[]"), ()),
    _of(
        "pop-batches-of-before-forgotten", "popped", _REVIVE, "ReviveLog._redeliver_foreign",
        replace("not batch.is_own", "batch.is_own"), ("kill", "power"),
    ),
    _of(
        "pop-progress-in-front-of-an-open-batch", "popped", _REVIVE, "ReviveLog._commit",
        replace("(queue.open[0][0] if queue.open else queue.read)", "queue.read"), ("kill", "power"),
    ),
    _of("pop-offset-not-taken", "popped", _POP_OFFSETS, "PopOffsets.store", drop("self.commit"), ()),
    _of("orderly-pop-does-not-block", "popped_in_order", _ORDERS, "OrderInfo.blocked_until", result("None", 2), ()),
    _of("orderly-pop-acks-the-batch", "popped_in_order", _ORDERS, "OrderInfo.next_offset", condition("False"), ()),
    _of(
        "rolled-back-is-committed", "transactions", _END, "EndTransaction._end_transaction",
        replace("kind == COMMIT", "True"), (),
    ),
    _of("commit-is-forgotten", "transactions", _END, "EndTransaction._end_transaction", drop("self._commit"), ()),
    _of(
        "no-check-of-a-transaction", "transactions", _CHECK, "TransactionCheck._send_check", condition("True"), (),
        issue=544,
    ),
    _of(
        "delayed-is-early", "transactions", _TIMER, "TimerService.run_once",
        replace("self._follow_clock(now_ms)", "self._follow_clock(now_ms + 4000)"), (),
    ),
    _of("delayed-is-lost", "transactions", _TIMER, "TimerService._park", drop("self._append"), ()),
    _of(
        "promoted-though-diverged", "promoted_by_hand", _PROMOTION, "_checked",
        replace("mark is not None", "False"), (),
    ),
    _of("disk-not-waited-for", "power_cuts", _WRITER, "CommitWait.begin", condition("False", 3), ("power",)),
    _of("row-not-remembered", "rows", _ROWS, "IdempotentWrites._send", drop("memory.note"), ()),
    _of(
        "rest-of-rows-stored-as-a-whole", "rows", _ROWS, "IdempotentWrites._send",
        replace("memoryview(body)[_behind(body, topic, queue_id, mark, known) :]", "memoryview(body)"), (),
    ),
    _of("gap-in-rows-accepted", "rows", _ROWS, "IdempotentWrites._send", condition("False", 4), ()),
    _of("ended-batch-goes-on", "rows", _ROWS, "IdempotentWrites._send", condition("False", 3), ()),
    _of("rows-forgotten-by-a-restart", "rows", _ROW_RECOVERY, "remember", drop("_walk", 2), ("kill",)),
    _of("rows-forgotten-by-a-stop", "rows", _ROW_RECOVERY, "ProducerStateFile.load", drop("memory.load"), ("stop",)),
    _of("rows-forgotten-by-a-new-master", "rows_fail_over", _ROW_RECOVERY, "remember", drop("_walk", 2), _CUTS),
    _of(
        "transaction-ends-twice", "transactions", _END, "EndTransaction._end_transaction",
        replace("self._halves.newest(half)", "offset"), issue=8158,
    ),
    _of(
        "end-without-a-mark", "transactions", _END, "EndTransaction._end_transaction",
        drop("self._halves.end_all"), (), issue=1517,
    ),
    _of(
        "level-is-early", "levels", _LEVELS, "DelayService._pass",
        replace("self._run_level(level, now_ms)", "self._run_level(level, now_ms + 3000)"), (),
    ),
    _of(
        "level-skips-a-message", "levels", _LEVELS, "DelayService._run_level",
        replace("level.offset += 1", "level.offset += 2"), (),
    ),
    _of(
        "level-progress-in-front-of-deliveries", "levels", _LEVELS, "DelayService._run_level",
        condition("False", -1), ("disk full",),
    ),
    _of(
        "pop-without-a-check-point", "popped", _POP_READER, "PopReader._store_check_point",
        replace("self._revive.topic, self._revive.life", "'rmq_sys_other', self._revive.life"), ("kill",), issue=4806,
    ),
    _of("lock-granted-to-anyone", "orderly", _LOCKS, "QueueLocks.lock", condition("True", 2), ()),
    _of(
        "lock-released-during-a-handler", "orderly", _COORDINATOR, "Coordinator._leave_queue",
        replace("ORDERLY_GRACE_S if is_locked else GRACE_S", "0.0"), (),
    ),
    _of("failed-orderly-message-passed", "orderly", _DISPATCHER, "Dispatcher._resume_later", drop("pq.requeue"), ()),
    _of(
        "revoked-queue-skips-messages", "members", _COORDINATOR, "Coordinator._leave_queue",
        replace("assigned.pq.committable", "assigned.pq.next_offset"), (), issue=2732,
    ),
    _of(
        "queue-of-no-member", "members", _ALLOCATION, "AverageAllocation.__call__",
        replace("each + (index < rest)", "each"), (),
    ),
    _of(
        "dead-letter-a-try-early", "dead_letters", _BACK, "SendBack.send_back",
        replace(">= max_retries", ">= max_retries - 1"), (),
    ),
    _of(
        "retry-without-its-count", "dead_letters", _BACK, "SendBack.send_back",
        replace("message.reconsume_times + 1", "message.reconsume_times"), (),
    ),
    _of("retry-not-waited-for", "retried", _BACK, "SendBack.send_back", condition("False", -1), ("power",)),
    _of(
        "never-a-dead-letter", "dead_letters", _BACK, "SendBack.send_back",
        replace("message.reconsume_times >= max_retries or level < 0", "level < 0"), (),
    ),
    _of("two-handlers-of-an-orderly-queue", "orderly", _DISPATCHER, "Dispatcher._acquire_queue", result("True"), ()),
    _of(
        "failed-orderly-message-goes-behind", "orderly", _PROCESS_QUEUE, "ProcessQueue.requeue",
        replace("extendleft", "extend"), (),
    ),
    _of("revoked-queue-takes-messages-back", "orderly", _PROCESS_QUEUE, "ProcessQueue.requeue", condition("False"), ()),
    _of(
        "sent-back-without-an-answer", "retried", _DISPATCHER, "Dispatcher._send_back",
        condition("await self._send_to_broker(message, level) or True"), ("kill", "isolate"),
    ),
    _of(
        "checked-half-message-stays-open", "transactions", _CHECK, "TransactionCheck.round",
        drop("open_transactions.moved_all"), (),
    ),
    _of(
        "marks-forgotten-by-a-restart", "transactions", _TRANSACTION_RECOVERY, "find_open",
        drop("recovered.ended.update"), ("kill",),
    ),
)
# fmt: on
