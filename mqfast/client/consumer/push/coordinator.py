"""The coordinator of a push consumer: membership in the group, heartbeats, rebalance, assigned queues, offset commits.

An orderly consumer gets no queue without a lock.
Source: DefaultMQPushConsumerImpl, RebalanceImpl, RebalancePushImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mqfast.client.consumer.allocation import Allocation
from mqfast.client.consumer.group_requests import check_sql
from mqfast.client.consumer.loop_calls import call_in_loop
from mqfast.client.consumer.members import group_members
from mqfast.client.consumer.offsets import GroupOffsets
from mqfast.client.consumer.push.fetcher import Fetcher
from mqfast.client.consumer.push.locks import Locks
from mqfast.client.consumer.push.state import Assigned, ConsumerState, TopicSubscription
from mqfast.client.consumer.rebalance import RebalanceResult, rebalance, rebalance_broadcast
from mqfast.client.consumer.subscription import SQL92
from mqfast.client.delivery import DeliveryOwner, Source
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.route.namespace import plain_queue
from mqfast.client.route.route_table import TopicRoute
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientError, MqfastError, NoRoute
from mqfast.remoting.codes import RequestCode
from mqfast.util.log_limit import LogLimit

__all__ = ["Coordinator"]

_log = logging.getLogger("mqfast.client.consumer")
REBALANCE_AGAIN_S: Final = 1.0
HAND_OVER_S: Final = 0.5
"""Delay of the first read of a queue that another member may still commit."""
GRACE_S: Final = 0.4
"""How long a revoked queue waits for running handlers."""
ORDERLY_GRACE_S: Final = 20.0
MISSING_S: Final = (0.25, 10.0)
"""First and longest wait between two requests for the route of a topic that does not exist yet."""
_FROM_WHERE: Final = {"latest": "CONSUME_FROM_LAST_OFFSET", "earliest": "CONSUME_FROM_FIRST_OFFSET"}


class Coordinator:
    """A member of the group, and the queues of the member.

    Args: owner: of the deliveries, for ``ack`` and ``retry`` of a loop.
    Attributes: locks: of an orderly consumer.
    Thread: that of the loop, except ``rebalance_soon``.
    """

    def __init__(
        self,
        state: ConsumerState,
        instance: ClientInstance,
        offsets: GroupOffsets,
        allocation: Allocation,
        fetcher: Fetcher,
        owner: DeliveryOwner | None = None,
    ) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._offsets: Final = offsets
        self._allocation: Final = allocation
        self._fetcher: Final = fetcher
        self._owner: Final = owner
        self._settings: Final = state.settings
        self._group: Final = state.group
        self.locks: Final = Locks(state, instance, self._locks_lost)
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order of their start
        self._rebalancing: Final = asyncio.Lock()
        self._rebalance_requested = False
        self._limited: Final = LogLimit(_log)
        self._missing_task: asyncio.Task[None] | None = None

    # --- requests of the instance ---

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes are refreshed periodically."""
        return list(self._state.wanted)

    def heartbeat(self) -> Mapping[str, Any]:
        """Return RocketMQ's ConsumerData."""
        where = self._settings.from_where
        return {
            "consumeFromWhere": _FROM_WHERE[where] if isinstance(where, str) else "CONSUME_FROM_TIMESTAMP",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self._group,
            "messageModel": "CLUSTERING" if self._state.is_clustering else "BROADCASTING",
            "subscriptionDataSet": [wanted.subscription.as_json() for wanted in self._state.wanted.values()],
            "unitMode": False,
        }

    # --- join and leave ---

    async def find_topics(self) -> None:
        """Request the routes of all topics, and let brokers check SQL expressions.
        Raises: SubscriptionError, ClientError.
        """
        for topic, wanted in list(self._state.wanted.items()):
            await self._find_topic(topic)
            await self._check_expression(wanted)

    async def join(self, since_ms: int) -> None:
        """Join the group and begin to pull. Args: since_ms: time of the subscriptions. Raises: ClientError."""
        self._instance.routes.on_change.append(self._route_changed)
        self._instance.remoting.on_closed.append(self.locks.disconnected)
        self._instance.serve(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._group, self._members_changed)
        await self._instance.heartbeat()
        await self.rebalance()
        await self._fetcher.wait_for_positions(self._state.wanted, since_ms)

    def stop(self) -> None:
        """End the reactions to changes of routes, connections and members, and the tasks of this coordinator."""
        with contextlib.suppress(ValueError):
            self._instance.routes.on_change.remove(self._route_changed)
        with contextlib.suppress(ValueError):
            self._instance.remoting.on_closed.remove(self.locks.disconnected)
        self._instance.requests.unserve(self._group, self._members_changed)
        for task in list(self._tasks):
            task.cancel()

    async def wait_for_rebalance(self, until_s: float) -> None:
        """Wait for the end of a running rebalance. Args: until_s: by the loop's clock; then return in any case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s), self._rebalancing:
                pass

    def drop_all(self) -> list[Assigned]:
        """Stop all pull loops and the delivery of messages. Returns: the assigned queues."""
        mine = list(self._state.assigned.values())
        for assigned in mine:
            if assigned.task is not None:
                assigned.task.cancel()
            assigned.pq.drop()
        return mine

    async def commit_last(self) -> None:
        """Commit the offsets of all assigned and revoked queues, and release the locks."""
        await self.commit()
        leaving = list(self._state.leaving.values())
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        if self._state.needs_locks and self._state.assigned:
            await self.locks.unlock(self._state.assigned)

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    # --- topics ---

    async def subscribe(self, topic: str, wanted: TopicSubscription) -> None:
        """Add or replace the subscription of a topic. Raises: SubscriptionError."""
        await self._find_topic(topic)
        await self._check_expression(wanted)
        since_ms = int(time.time() * 1000)
        self._state.wanted[topic] = wanted
        for assigned in self._state.assigned.values():
            if assigned.queue.topic == topic:
                assigned.wanted = wanted
        await self._instance.heartbeat()
        await self.rebalance()
        await self._fetcher.wait_for_positions([topic], since_ms)

    async def unsubscribe(self, topic: str) -> None:
        """Remove the subscription of a topic and revoke the queues."""
        if self._state.wanted.pop(topic, None) is not None:
            self._fetcher.forget_topic(topic)
            self.revoke([assigned for assigned in self._state.assigned.values() if assigned.queue.topic == topic])
            await self._instance.heartbeat()

    async def _check_expression(self, wanted: TopicSubscription) -> None:
        if wanted.subscription.kind == SQL92:
            await self._instance.driver.run(check_sql(self._instance, self._group, wanted.subscription))

    async def _find_topic(self, topic: str) -> bool:
        """Request the route of a topic unless the route is known. Returns: whether there is a route."""
        missing = self._state.missing
        try:
            await self._instance.driver.run(self._instance.route(topic))
        except NoRoute as error:
            if topic not in missing:
                missing.add(topic)
                if topic != self._state.retry_topic:
                    _log.warning("group %s: %s; it is looked for from time to time", self._group, error)
            if self._missing_task is None or self._missing_task.done():
                self._missing_task = self._keep(self._instance.spawn(self._find_missing(), f"{self._group} topics"))
            return False
        missing.discard(topic)
        return True

    async def _find_missing(self) -> None:
        pause_s, longest_s = MISSING_S
        while self._state.missing and not self._state.is_closing:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)
            for topic in sorted(self._state.missing):
                with contextlib.suppress(ClientError):
                    if await self._find_topic(topic):
                        await self._instance.heartbeat()  # the topic may be on brokers without a heartbeat so far
                        self.rebalance_soon()

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        call_in_loop(self._instance.loop, self.locks.route_changed)
        if topic in self._state.wanted:
            self.rebalance_soon()

    # --- rebalance ---

    def _members_changed(self, channel: Any, request: Any) -> None:
        """Serve request 40: the members of the group have changed."""
        self.rebalance_soon()

    def _locks_lost(self, lost: Sequence[Assigned]) -> None:
        self.revoke(lost, is_lost=True)
        self.rebalance_soon()

    def rebalance_soon(self, after_s: float = 0.0) -> None:
        """Schedule a rebalance in the loop. Thread: any."""
        if not self._rebalance_requested and not self._state.is_closing:
            self._rebalance_requested = True
            loop = self._instance.loop
            call_in_loop(loop, loop.call_later, after_s, self._begin_rebalance)

    def _begin_rebalance(self) -> None:
        self._rebalance_requested = False
        if not self._state.is_closing:
            self._keep(self._instance.spawn(self._rebalance_now(), f"{self._group} rebalance now"))

    async def _rebalance_now(self) -> None:
        try:
            await self.rebalance()
        except Exception:
            _log.exception("group %s: rebalance failed", self._group)

    async def rebalance(self) -> None:
        """Assign the queues that the strategy allocates to this member, and revoke the others."""
        state, is_whole = self._state, True
        async with self._rebalancing:
            for topic in list(state.wanted):
                if state.is_closing:
                    return
                try:
                    is_whole &= await self._rebalance_topic(topic)
                except MqfastError as error:
                    is_whole = False
                    state.not_shared[topic] = f"the members of the group are not known: {error}"
                    self._limited.warning(
                        f"rebalance {topic}", "group %s: rebalance of %s: %s", self._group, topic, error
                    )
        if not is_whole:
            self.rebalance_soon(REBALANCE_AGAIN_S)

    async def _rebalance_topic(self, topic: str) -> bool:
        """Rebalance a topic. Returns: False if the rebalance must be repeated soon."""
        if not await self._find_topic(topic):
            return True  # the task for missing topics rebalances later
        state, instance = self._state, self._instance
        queues = instance.routes.subscribe_queues(topic)
        members: list[str] = []
        if state.is_clustering:
            members = await instance.driver.run(group_members(instance, self._group, topic))
            state.members[topic] = members
        try:
            change = (
                rebalance(self._group, instance.client_id, topic, queues, members, self._allocation, state.assigned)
                if state.is_clustering
                else rebalance_broadcast(topic, queues, state.assigned)
            )
        except BaseException as error:  # of the strategy of the user
            if is_passed_on(error):
                raise
            name = getattr(self._allocation, "name", self._allocation)
            _log.exception("group %s: allocation %s of topic %s failed: %s", self._group, name, topic, error)
            state.not_shared[topic] = f"allocation {name} failed: {error!r}"
            return True
        state.not_shared.pop(topic, None)
        if change.unknown:
            _log.warning("group %s: the allocation named queues that do not exist: %s", self._group, change.unknown)
        if topic not in state.wanted:
            return True  # unsubscribed meanwhile
        self.revoke([state.assigned[queue] for queue in change.give_up])
        if state.is_closing:
            return True
        return await self._assign(topic, change, len(members) > 1) and (not state.is_clustering or bool(members))

    async def _assign(self, topic: str, change: RebalanceResult, has_others: bool) -> bool:
        """Assign queues and begin to pull. Returns: False if a lock was not granted."""
        state, queues = self._state, change.take
        until: dict[MessageQueue, float] = {}
        if queues and state.needs_locks:
            for queue in queues:  # the broker would grant a lock that this member is about to release
                if (task := state.leaving.get(queue)) is not None:
                    await asyncio.wait([task], timeout=GRACE_S)
            until, _ = await self.locks.lock([queue for queue in queues if queue not in state.leaving])
            if state.is_closing:
                await self.locks.unlock(until)
                return True
        is_whole = True
        for queue in queues:
            if state.needs_locks and queue not in until:
                is_whole = False
                continue
            is_retry = topic == state.retry_topic
            source = Source(
                queue.broker_name, plain_queue(state.namespace, queue),
                retry_topic=state.retry_topic if is_retry else "",
                namespace=state.namespace, owner=self._owner, body_bytes_max=self._settings.max_body_bytes,
            )  # fmt: skip
            assigned = Assigned(queue, state.wanted[topic], source, is_retry)
            assigned.locked_until_s = until.get(queue, 0.0)
            state.assigned[queue] = assigned
            self._begin_fetch(assigned, HAND_OVER_S if has_others and queue not in until else 0.0)
        return is_whole

    def _begin_fetch(self, assigned: Assigned, delay_s: float = 0.0) -> None:
        assigned.task = self._instance.spawn(self._fetch(assigned, delay_s), f"{self._group} pull {assigned.queue}")

    async def _fetch(self, assigned: Assigned, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        try:
            await self._fetcher.run(assigned)
        except Exception:
            _log.exception("group %s: pulls of %s failed", self._group, assigned.queue)
            self.revoke([assigned])
            self.rebalance_soon(REBALANCE_AGAIN_S)

    def revoke(self, queues: Iterable[Assigned], *, is_lost: bool = False) -> None:
        """Remove queues from this member: discard the cached messages and commit the offsets.

        Args: is_lost: another member already owns queues, offsets and locks.
        """
        for assigned in list(queues):
            if self._state.assigned.get(assigned.queue) is not assigned:
                continue
            del self._state.assigned[assigned.queue]
            if assigned.task is not None and assigned.task is not asyncio.current_task():
                assigned.task.cancel()
            assigned.pq.drop()
            task = self._instance.spawn(self._leave_queue(assigned, is_lost), f"{self._group} leave {assigned.queue}")
            self._state.leaving[assigned.queue] = task
            task.add_done_callback(functools.partial(self._queue_left, assigned.queue))

    def _queue_left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._state.leaving.get(queue) is task:
            del self._state.leaving[queue]

    async def _leave_queue(self, assigned: Assigned, is_lost: bool) -> None:
        queue, is_locked = assigned.queue, self._state.needs_locks
        until = time.monotonic() + (ORDERLY_GRACE_S if is_locked else GRACE_S)
        try:
            while any(message.begun_s for message in assigned.pq.open_messages()) and time.monotonic() < until:
                await asyncio.sleep(0.005)
        finally:
            if assigned.has_position and not is_lost:
                self._offsets.update(queue, assigned.pq.committable)
            try:
                async with asyncio.timeout(3.0):
                    await self._offsets.persist([queue])
            except Exception as error:
                _log.warning("group %s: the offset of %s could not be kept: %s", self._group, queue, error)
            self._offsets.remove(queue)
            if is_locked and not is_lost:
                await self.locks.unlock([queue])

    # --- offsets ---

    async def commit(self) -> None:
        """Commit the offsets of all assigned queues."""
        for queue, assigned in self._state.assigned.items():
            if assigned.has_position:
                self._offsets.update(queue, assigned.pq.committable)
        await self._offsets.persist()

    def seek(self, assigned: Assigned, offset: int) -> None:
        """Set the offset of a queue; discard cached messages and the current pull."""
        self._fetcher.seek(assigned, offset)
        if assigned.task is not None and assigned.has_position:
            assigned.task.cancel()
            self._begin_fetch(assigned)
