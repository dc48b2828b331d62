"""Steps of the time of a cluster: waiting work runs in order, at the due time.

Nothing runs early, and a blocked consumer does not block a step. Thread: that of the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mqfast.broker.metadata.topic_manager import SCHEDULE_TOPIC, TIMER_TOPIC
from mqfast.remoting.codes import RequestCode
from mqfast.testing import store_inspection as look
from mqfast.testing.cluster import RunningCluster, RunningServer
from mqfast.testing.wait_helpers import Waits

__all__ = ["TimeSteps"]

_SETTLE_S: Final = 2.0  # for consumers to process their messages
_ANSWER_S: Final = 1.0  # for producers with a transaction check
_CLEAN_MS: Final = 10_000
_PASSIVELY: Final = "CONSUME_PASSIVELY"
_CLUSTERING: Final = "CLUSTERING"


class TimeSteps:
    """The time steps of a cluster."""

    def __init__(self, cluster: RunningCluster, waits: Waits) -> None:
        self._cluster = cluster
        self._waits = waits
        self._late: set[str] = set()  # groups that did not finish in this advance
        self._checked_ms: dict[str, int] = {}
        self._cleaned_ms = 0

    def reset(self) -> None:
        """Use the system's clock again."""
        self._checked_ms.clear()
        self._cleaned_ms = 0

    async def next_ms(self) -> int | None:
        """Return the time of the next waiting work; None: nothing waits."""
        await self._deliver()
        return self._next_due_ms()

    def _next_due_ms(self) -> int | None:
        return min((ms for member in self._cluster.running() for ms in self._dues(member)), default=None)

    def _dues(self, member: RunningServer) -> Iterator[int]:
        context = member.context
        for queue_id, offset in _heads(member):
            yield context.engine.unit_at(SCHEDULE_TOPIC, queue_id, offset).tags_code
        timer = member.parts.timers.service
        if timer is not None and (timed := timer.next_due_ms()) is not None:
            yield timed
        if (popped := member.parts.pop.service.in_flight.next_due_ms) is not None:
            yield popped
        if member.parts.grpc is not None and (renewal := member.parts.grpc.renewals.next_due_ms) is not None:
            yield renewal
        if member.parts.transactions.open_transactions.has_open:
            yield self._next_check_ms(member)

    def _next_check_ms(self, member: RunningServer) -> int:
        now, interval = self._cluster.time.now_ms(), max(1, int(member.context.config["transactionCheckInterval"]))
        last = self._checked_ms.setdefault(member.name, member.context.started_ms)
        if last > now:  # the clock was reset
            last = self._checked_ms[member.name] = now
        return last + max(1, -(-(now + 1 - last) // interval)) * interval

    async def advance_to(self, target_ms: int) -> int:
        """Move the clock there. Returns: count of messages that came due and can be pulled now."""
        self._late.clear()
        count = await self._deliver()
        while True:
            due_ms = self._next_due_ms()
            step_ms = target_ms if due_ms is None else min(max(due_ms, self._cluster.time.now_ms()), target_ms)
            is_check = {
                member.name
                for member in self._cluster.running()
                if member.parts.transactions.open_transactions.has_open and self._next_check_ms(member) <= step_ms
            }
            self._move_to(step_ms)
            delivered = await self._deliver()
            count += delivered
            if delivered:
                await self._settle()
            await self._check(is_check)
            self._clean()
            if step_ms >= target_ms:
                return count

    def _move_to(self, ms: int) -> None:
        seconds = (ms - self._cluster.time.now_ms()) / 1000
        self._cluster.time.move_to(ms)
        if seconds > 0:
            for member in self._cluster.running():
                member.parts.long_polling.pass_time(seconds)
                member.parts.pop.service.pass_time(seconds)

    async def _deliver(self) -> int:
        """Deliver all due messages, and wait until readers can read the messages. Returns: the count of messages."""
        running = self._cluster.running()
        for member in running:
            if member.parts.grpc is not None:  # before the count: an extension adds records of POP to the timer
                await member.parts.grpc.renewals.run_due()
        await self._readable(running)
        begin = sum(map(_delivered, running))
        moves: list[int] = []
        while moves != (moves := [number for member in running for number in _moves(member)]):
            for member in running:
                self._deliver_once(member)
            await self._readable(running)
        return sum(map(_delivered, running)) - begin

    @staticmethod
    async def _readable(running: list[RunningServer]) -> None:
        for member in running:
            log = member.context.engine.log
            if log.readable < log.written:
                await member.context.durable.wait(log.written)

    def _deliver_once(self, member: RunningServer) -> None:
        now_ms = self._cluster.time.now_ms()
        while member.parts.delays.service.run_once(now_ms) == 0:
            pass
        timer = member.parts.timers.service
        if timer is not None:
            timer.wake()
            moves = (-1, -1)
            while moves != (moves := (timer.enqueued, timer.dequeued)):
                timer.run_once(now_ms)
            member.parts.pop.service.run_due()

    async def _settle(self) -> None:
        """Let consumers process their messages, so that retries wait from this moment on."""
        for group in self._groups():
            if group in self._late:
                continue

            def is_done(group: str = group) -> bool | None:
                topics = look.topics_of(self._cluster, group)
                done = all(lag.behind <= 0 for topic in topics for lag in look.lags(self._cluster, group, topic))
                return True if done else None

            if await self._waits.until(is_done, _SETTLE_S, nudge=group) is None:
                self._late.add(group)

    def _groups(self) -> list[str]:
        """Return the groups with progress known to the brokers."""
        names = {
            group.name: None
            for member in self._cluster.running()
            for group in member.context.consumers.groups()
            if group.consume_type == _PASSIVELY and group.message_model == _CLUSTERING
        }
        return list(names)

    async def _check(self, names: set[str]) -> None:
        """Check open transactions at their producers, and wait for the answers."""
        for member in self._cluster.running():
            if member.name not in names:
                continue
            self._checked_ms[member.name] = self._cluster.time.now_ms()
            before = self._ends()
            asked = await member.parts.transactions.check.round()
            if asked:

                def is_answered(wanted: int = before + asked) -> bool | None:
                    return True if self._ends() >= wanted else None

                await self._waits.until(is_answered, _ANSWER_S)

    def _ends(self) -> int:
        return self._cluster.gate.counts[RequestCode.END_TRANSACTION]

    def _clean(self) -> None:
        now_ms = self._cluster.time.now_ms()
        if not 0 <= now_ms - self._cleaned_ms < _CLEAN_MS:
            self._cleaned_ms = now_ms
            for member in self._cluster.running():
                member.context.store.retention.run_once(now_ms)


def _moves(member: RunningServer) -> list[int]:
    """Return values that change while messages are delivered."""
    timer = member.parts.timers.service
    redelivered = member.parts.pop.service.revive.redelivered
    return [
        member.context.engine.log.written,
        redelivered,
        *((timer.enqueued, timer.dequeued) if timer is not None else ()),
    ]


def _delivered(member: RunningServer) -> int:
    """Return the count of messages that came due so far, without messages that the timer parks again.

    The records of POP in the timer are no messages for consumers; redelivered messages are.
    """
    context, delays = member.context, member.parts.delays
    by_level = sum(delays.service.offset(level + 1) for level in range(len(delays.levels.delays_ms)))
    timer = member.parts.timers.service
    timed = timer.dequeued - context.store.max_offset(TIMER_TOPIC, 0) if timer is not None else 0
    revive = member.parts.pop.service.revive
    return by_level + timed + revive.redelivered - revive.timed_records


def _heads(member: RunningServer) -> Iterator[tuple[int, int]]:
    """Return (queue id, offset) of the first message of each delay level with messages."""
    context, service = member.context, member.parts.delays.service
    for queue_id in context.store.queue_ids(SCHEDULE_TOPIC):
        offset = service.offset(queue_id + 1)
        if offset < context.store.max_offset(SCHEDULE_TOPIC, queue_id):
            yield queue_id, offset
