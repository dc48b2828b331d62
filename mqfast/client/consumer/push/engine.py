"""The push consumer itself, in an event loop: who is in the group, which queues are its own, how far each one is.

Room: client. It must never call a handler or know a thread. One engine serves both faces: the sync one runs it in the
loop of the thread "mqfast-io". Source: DefaultMQPushConsumerImpl, RebalancePushImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mqfast.client.consumer.allocation import Allocation
from mqfast.client.consumer.group_requests import check_sql
from mqfast.client.consumer.members import group_members
from mqfast.client.consumer.offsets import GroupOffsets, OffsetStore, offsets_of
from mqfast.client.consumer.process_queue import ProcessQueue
from mqfast.client.consumer.push.consume_service import ConsumeService, Workers
from mqfast.client.consumer.push.diagnostics import LOOK_S, Diagnostics
from mqfast.client.consumer.push.locks import RENEW_S, Locks
from mqfast.client.consumer.push.pull_loop import PullLoop
from mqfast.client.consumer.push.remote_requests import ServerRequests
from mqfast.client.consumer.push.state import Assigned, Handler, TopicSubscription
from mqfast.client.consumer.queue_bounds import FromWhere, end_before, first_offset, max_offset, where_of_new
from mqfast.client.consumer.rebalance import RebalanceResult, rebalance, rebalance_broadcast
from mqfast.client.consumer.subscription import SQL92, Subscription, new_version
from mqfast.client.decompression import BODY_BYTES_MAX
from mqfast.client.delivery import Delivery, DeliveryOwner, Source
from mqfast.client.hooks import ClientHook
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.producer.trace import Tracer
from mqfast.client.route.namespace import plain_queue, retry_topic, unwrap
from mqfast.client.route.route_table import TopicRoute
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientError, MqfastError, NoRoute
from mqfast.remoting.codes import RequestCode
from mqfast.util.log_limit import LogLimit

__all__ = ["PushEngine", "PushSettings"]

_log = logging.getLogger("mqfast.client.consumer")
REBALANCE_S: Final = 20.0
REBALANCE_AGAIN_S: Final = 1.0
COMMIT_S: Final = 5.0
HAND_OVER_S: Final = 0.5
"""How long a queue rests that may come from another member, which commits meanwhile."""
GRACE_S: Final = 0.4
"""How long a queue that goes waits for its handlers."""
ORDERLY_GRACE_S: Final = 20.0
PLACE_AGAIN_S: Final = 1.0
PLACES_S: Final = 3.0
"""How long the start of a broadcasting consumer waits at most until it is known where each queue begins."""
MISSING_S: Final = (0.25, 10.0)
"""First and longest wait between two looks for a topic that does not exist yet."""


@dataclass(frozen=True, slots=True)
class PushSettings:
    """What a push consumer is told, checked before; the names and units of ``PushConsumer``."""

    group: str
    is_broadcasting: bool = False
    orderly: bool = False
    from_where: FromWhere = "latest"
    threads: int = 20
    pull_batch: int = 32
    pull_interval_s: float = 0.0
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 << 20
    max_span: int = 2000
    consume_timeout_s: float = 900.0
    max_reconsume_times: int = -1
    suspend_s: float = 1.0
    close_timeout_s: float = 5.0
    max_body_bytes: int = BODY_BYTES_MAX
    start_timeout_s: float | None = 0.0


class PushEngine:
    """One push consumer.

    Args:
        wanted: topic on the wire -> what is wanted of it.
        make_workers: gives the workers for the handling of this engine.
    Attributes:
        assigned: the queues that it has now; is_closing.
        members: client ids of the group at the last rebalance, by topic; missing: topics that nobody knows;
            not_shared: topics whose queues could not be shared, and why.
        refused: plain topics whose last subscription was refused while it ran, and why.
    Thread: that of the loop, but for ``soon``, ``copy_assignment`` and the parts that say otherwise.
    """

    def __init__(
        self,
        settings: PushSettings,
        instance: ClientInstance,
        wanted: Mapping[str, TopicSubscription],
        allocation: Allocation,
        make_workers: Callable[[PushEngine], Workers],
        *,
        own_offsets: OffsetStore | None = None,
        hooks: Sequence[ClientHook] = (),
        owner: DeliveryOwner | None = None,
    ) -> None:
        self.settings = settings
        self.instance = instance
        self.loop = instance.loop
        self.group = settings.group
        self.namespace = instance.settings.namespace or ""
        self.hooks = tuple(hooks)
        self.owner = owner
        self.tracer: Tracer | None = None
        self.wanted: dict[str, TopicSubscription] = dict(wanted)
        self.retry_topic = retry_topic(None, self.group)
        if self.is_clustering:
            subscription = Subscription(self.retry_topic, version=new_version())
            self.wanted[self.retry_topic] = TopicSubscription(subscription, None, self.retry_topic)
        self.assigned: dict[MessageQueue, Assigned] = {}
        self.members: dict[str, list[str]] = {}
        self.missing: set[str] = set()
        self.not_shared: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.is_closing = False
        self.begun_ms = int(time.time() * 1000)
        self.begun_s = time.monotonic()
        self.requests = ServerRequests(self)
        self.why = Diagnostics(self)
        self.pulls = PullLoop(self)
        self.handling = ConsumeService(self)
        self.locks = Locks(self)
        self.workers = make_workers(self)
        self.pull_seconds: dict[str, tuple[int, float, int]] = {}
        self.offsets: GroupOffsets = offsets_of(
            instance, self.group, broadcasting=settings.is_broadcasting, own=own_offsets
        )
        self.commits_by_pull = self.is_clustering and own_offsets is None
        self._allocation = allocation
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rebalancing = asyncio.Lock()
        self._rebalance_asked = False
        self._since_ms: dict[str, int] = {}  # broadcasting: topic -> since when it is read, once it has begun
        self._limited = LogLimit(_log)
        self._missing_task: asyncio.Task[None] | None = None

    @property
    def is_clustering(self) -> bool:
        """Are the messages shared by the members of the group?"""
        return not self.settings.is_broadcasting

    # --- what the instance asks ---

    def topics(self) -> Iterable[str]:
        """Topics whose routes are kept fresh."""
        return list(self.wanted)

    def heartbeat(self) -> Mapping[str, Any]:
        """RocketMQ's ConsumerData."""
        wheres = {"latest": "CONSUME_FROM_LAST_OFFSET", "earliest": "CONSUME_FROM_FIRST_OFFSET"}
        where = self.settings.from_where
        return {
            "consumeFromWhere": wheres[where] if isinstance(where, str) else "CONSUME_FROM_TIMESTAMP",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group,
            "messageModel": "CLUSTERING" if self.is_clustering else "BROADCASTING",
            "subscriptionDataSet": [one.subscription.as_json() for one in self.wanted.values()],
            "unitMode": False,
        }

    # --- life ---

    async def start(self) -> None:
        """Join the group and begin to pull.

        Raises: ConnectError when no name server answers, SubscriptionError for SQL that a broker refuses, ClientError.
        """
        self.instance.add_consumer(self.group, self)
        seconds = self.settings.start_timeout_s
        await self.instance.acquire(may_wait=seconds != 0)
        try:
            await self.instance.wait_for_name_server(seconds, lambda: self.is_closing)
            since_ms = int(time.time() * 1000)
            for topic, wanted in list(self.wanted.items()):
                await self._look_for(topic)
                if wanted.subscription.kind == SQL92:
                    await self.instance.driver.run(check_sql(self.instance, self.group, wanted.subscription))
            if not self.is_closing:  # else nobody would take back what is begun from here on
                self.instance.routes.on_change.append(self._route_changed)
                self.instance.remoting.on_closed.append(self.locks.disconnected)
                self.instance.serve(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.group, self._members_changed)
                self.requests.register()
                await self.instance.heartbeat()
                await self.rebalance()
                await self._wait_for_places(self.wanted, since_ms)
        except BaseException:
            await self.close(0.0)
            raise
        if self.is_closing:  # by a handler or another thread, meanwhile
            return
        self._every(REBALANCE_S, self.rebalance, "rebalance")
        self._every(COMMIT_S, self.commit, "offsets")
        self._every(min(60.0, max(0.1, self.settings.consume_timeout_s / 4)), self.handling.expire, "timeouts")
        self._every(LOOK_S, self.why.look, "why nothing comes")
        if self.settings.orderly and self.is_clustering:
            self._every(RENEW_S, self.locks.renew, "locks")

    def _every(self, seconds: float, work: Any, name: str) -> None:
        self._keep(self.instance.every(seconds, work, f"{self.group} {name}"))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def soon(self, work: Callable[[], object]) -> None:
        """Call a function in the loop; nothing once the loop has ended. Thread: any."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work)

    async def close(self, timeout_s: float | None = None) -> int:
        """Leave the group: let running handlers end, keep the offsets, give up locks.

        Returns: messages whose handlers did not end in time; they come again.
        """
        if self.is_closing:
            return 0
        self.is_closing = True
        deadline = time.monotonic() + (self.settings.close_timeout_s if timeout_s is None else timeout_s)
        with contextlib.suppress(ValueError):
            self.instance.routes.on_change.remove(self._route_changed)
        with contextlib.suppress(ValueError):
            self.instance.remoting.on_closed.remove(self.locks.disconnected)
        self.instance.requests.unserve(self.group, self._members_changed)
        self.requests.unregister()
        self.workers.stop()
        for task in list(self._tasks):
            task.cancel()
        reserve_s = 1.0  # for the offsets
        try:  # a caller that is interrupted waits for nothing any more; the rest is done all the same
            with contextlib.suppress(TimeoutError):  # one that runs takes no queue any more
                async with asyncio.timeout_at(self.loop.time() + deadline - time.monotonic()), self._rebalancing:
                    pass
            await asyncio.sleep(0)  # verdicts that were told before take effect: a dropped queue takes none
            self._drop_all()
            is_busy = True
            while is_busy and time.monotonic() < deadline - reserve_s:
                is_busy = self._is_busy()
                await asyncio.sleep(0.005 if is_busy else 0)  # what a handler said last takes effect
                is_busy = is_busy or self._is_busy()
        finally:
            mine = self._drop_all()
            left = sum(bool(one.begun_s) for assigned in mine for one in assigned.pq.open_messages())
            if left:
                _log.warning(
                    "group %s: %d messages have handlers that did not end in time: they come again", self.group, left
                )
            await self._leave_group(max(reserve_s, deadline - time.monotonic()))
        return left

    def _drop_all(self) -> list[Assigned]:
        """Hand out nothing any more. Returns: the queues that were this member's."""
        mine = list(self.assigned.values())
        for assigned in mine:
            if assigned.task is not None:
                assigned.task.cancel()
            assigned.pq.drop()
        return mine

    async def _leave_group(self, commit_s: float) -> None:
        self.handling.stop()
        try:
            await self._last_commit(commit_s)
            await self.workers.end(cancel=True)
            if self.tracer is not None:
                await self.tracer.close(1.0)
        finally:
            try:
                await self.instance.remove_consumer(self.group, self)
            finally:
                await self.instance.release()

    def _is_busy(self) -> bool:
        return self.workers.busy > 0 or self.handling.being_given_back > 0

    async def _last_commit(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.commit()
                leaving = list(self._leaving.values())
                for task in leaving:
                    task.cancel()
                await asyncio.gather(*leaving, return_exceptions=True)
                if self.settings.orderly and self.is_clustering and self.assigned:
                    await self.locks.unlock(self.assigned)
        except (MqfastError, TimeoutError, OSError) as error:
            _log.warning("group %s: offsets could not be kept, messages come again: %r", self.group, error)
        except Exception:
            _log.exception("group %s: offsets could not be kept, messages come again", self.group)

    # --- topics ---

    async def subscribe(self, topic: str, wanted: TopicSubscription) -> None:
        """Want another topic, or other messages of it, from now on. Raises: SubscriptionError."""
        await self._look_for(topic)
        if wanted.subscription.kind == SQL92:
            await self.instance.driver.run(check_sql(self.instance, self.group, wanted.subscription))
        since_ms = int(time.time() * 1000)
        self.wanted[topic] = wanted
        for assigned in self.assigned.values():
            if assigned.queue.topic == topic:
                assigned.wanted = wanted
        await self.instance.heartbeat()
        await self.rebalance()
        await self._wait_for_places([topic], since_ms)

    async def unsubscribe(self, topic: str) -> None:
        """Want a topic no more."""
        if self.wanted.pop(topic, None) is not None:
            self._since_ms.pop(topic, None)
            self.give_up([one for one in self.assigned.values() if one.queue.topic == topic])
            await self.instance.heartbeat()

    async def _look_for(self, topic: str) -> bool:
        """Is there a route to the topic? Asks for it where it is not known."""
        try:
            await self.instance.driver.run(self.instance.route(topic))
        except NoRoute as error:
            if topic not in self.missing:
                self.missing.add(topic)
                if topic != self.retry_topic:
                    _log.warning("group %s: %s; it is looked for from time to time", self.group, error)
            if self._missing_task is None or self._missing_task.done():
                self._missing_task = self._keep(self.instance.spawn(self._find_missing(), f"{self.group} topics"))
            return False
        self.missing.discard(topic)
        return True

    async def _find_missing(self) -> None:
        pause_s, longest_s = MISSING_S
        while self.missing and not self.is_closing:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)
            for topic in list(self.missing):
                with contextlib.suppress(ClientError):
                    if await self._look_for(topic):
                        await self.instance.heartbeat()  # its brokers may be new
                        self.rebalance_soon()

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self.soon(self.locks.route_changed)
        if topic in self.wanted:
            self.rebalance_soon()

    def handler_of(self, message: Delivery) -> Handler | None:
        """The handler of the topic that a message was sent to; with a single handler that one."""
        plain = message.topic
        handlers = [one for one in list(self.wanted.values()) if one.handler is not None]
        for one in handlers:
            if one.plain_topic == plain:
                return one.handler
        return handlers[0].handler if len(handlers) == 1 else None

    def handler_of_retried(self, message: Delivery) -> Handler | None:
        """Who gets a message of the retry topic; None: a loop."""
        found = self.handler_of(message)
        if found is None and any(one.handler is not None for one in list(self.wanted.values())):
            return _NO_HANDLER
        return found

    # --- rebalance ---

    def _members_changed(self, channel: Any, request: Any) -> None:
        """40: the group has changed."""
        self.rebalance_soon()

    def rebalance_soon(self, after_s: float = 0.0) -> None:
        """Rebalance as soon as the loop is free. Thread: any."""
        if not self._rebalance_asked and not self.is_closing:
            self._rebalance_asked = True
            self.soon(lambda: self.loop.call_later(after_s, self._begin_rebalance))

    def _begin_rebalance(self) -> None:
        self._rebalance_asked = False
        if not self.is_closing:
            self._keep(self.instance.spawn(self._rebalance_now(), f"{self.group} rebalance now"))

    async def _rebalance_now(self) -> None:
        try:
            await self.rebalance()
        except Exception:
            _log.exception("group %s: rebalance failed", self.group)

    async def rebalance(self) -> None:
        """Take the queues that are this member's, and give up the others."""
        is_whole = True
        async with self._rebalancing:
            for topic in list(self.wanted):
                if self.is_closing:
                    return
                try:
                    is_whole &= await self._rebalance_topic(topic)
                except MqfastError as error:
                    is_whole = False
                    self.not_shared[topic] = f"the members of the group are not known: {error}"
                    self._limited.warning(
                        f"rebalance {topic}", "group %s: rebalance of %s: %s", self.group, topic, error
                    )
        if not is_whole:
            self.rebalance_soon(REBALANCE_AGAIN_S)

    async def _rebalance_topic(self, topic: str) -> bool:
        """Returns: is there nothing that must be tried again soon?"""
        if not await self._look_for(topic):
            return True  # it is looked for
        queues = self.instance.routes.subscribe_queues(topic)
        members: list[str] = []
        if self.is_clustering:
            members = await self.instance.driver.run(group_members(self.instance, self.group, topic))
            self.members[topic] = members
        try:
            change = (
                rebalance(self.group, self.instance.client_id, topic, queues, members, self._allocation, self.assigned)
                if self.is_clustering
                else rebalance_broadcast(topic, queues, self.assigned)
            )
        except BaseException as error:  # the user's strategy
            if is_passed_on(error):
                raise
            name = getattr(self._allocation, "name", self._allocation)
            _log.exception("group %s: allocation %s of topic %s failed: %s", self.group, name, topic, error)
            self.not_shared[topic] = f"allocation {name} failed: {error!r}"
            return True
        self.not_shared.pop(topic, None)
        if change.unknown:
            _log.warning("group %s: the allocation named queues that do not exist: %s", self.group, change.unknown)
        if topic not in self.wanted:
            return True  # unsubscribed meanwhile
        self.give_up([self.assigned[queue] for queue in change.give_up])
        if self.is_closing:
            return True
        return await self._take(topic, change, len(members) > 1) and (not self.is_clustering or bool(members))

    async def _take(self, topic: str, change: RebalanceResult, has_others: bool) -> bool:
        queues = change.take
        until: dict[MessageQueue, float] = {}
        if queues and self.settings.orderly and self.is_clustering:
            for queue in queues:  # a lock that is about to be given up would be granted
                if (task := self._leaving.get(queue)) is not None:
                    await asyncio.wait([task], timeout=GRACE_S)
            until, _ = await self.locks.lock([one for one in queues if one not in self._leaving])
            if self.is_closing:
                await self.locks.unlock(until)
                return True
        is_whole = True
        for queue in queues:
            if self.settings.orderly and self.is_clustering and queue not in until:
                is_whole = False
                continue
            source = Source(
                queue.broker_name, plain_queue(self.namespace, queue),
                retry_topic=self.retry_topic if topic == self.retry_topic else "",
                namespace=self.namespace, owner=self.owner, body_bytes_max=self.settings.max_body_bytes,
            )  # fmt: skip
            assigned = Assigned(queue, self.wanted[topic], source, topic == self.retry_topic)
            assigned.locked_until_s = until.get(queue, 0.0)
            self.assigned[queue] = assigned
            rest_s = HAND_OVER_S if has_others and queue not in until else 0.0
            assigned.task = self.instance.spawn(self._serve(assigned, rest_s), f"{self.group} pull {queue}")
        return is_whole

    async def _serve(self, assigned: Assigned, rest_s: float) -> None:
        """Find the place of the group in the queue, then pull."""
        queue = assigned.queue
        if rest_s:
            await asyncio.sleep(rest_s)
        try:
            while self.assigned.get(queue) is assigned and not self.is_closing:
                await self._place(assigned)
                await self.pulls.run(assigned)
        except Exception:
            _log.exception("group %s: pulls of %s failed", self.group, queue)
            self.give_up([assigned])
            self.rebalance_soon(REBALANCE_AGAIN_S)

    async def _place(self, assigned: Assigned) -> None:
        queue = assigned.queue
        while not assigned.has_position:
            before = assigned.pq
            if (leaving := self._leaving.get(queue)) is not None:
                await asyncio.wait([leaving])
            try:
                since_ms = self._since_ms.get(queue.topic)
                where = where_of_new(self.settings.from_where, was_lost=assigned.was_lost, since_ms=since_ms)
                end = await self.instance.driver.run(end_before(self.instance, queue, where))
                offset = await self.offsets.read(queue)
                if offset is None:
                    offset = end
                if offset is None:
                    offset = await self.instance.driver.run(first_offset(self.instance, queue, where))
            except Exception as error:  # of a store of the user's: any
                assigned.state = f"no place: {error}"
                self._limited.warning(f"place {queue}", "group %s: no place in %s: %s", self.group, queue, error)
                await asyncio.sleep(PLACE_AGAIN_S)
                continue
            if assigned.pq is before:  # a reset meanwhile decides
                assigned.pq = ProcessQueue(queue, offset)
            assigned.has_position = True

    async def _wait_for_places(self, topics: Iterable[str], since_ms: int) -> None:
        """Broadcasting: until it is known where each queue of these topics begins; what is sent from then on is read.

        Nobody else reads it for this member. Clustering: brokers keep the group's place, and 0 for small new queues.
        """
        if self.is_clustering:
            return
        topics, until = set(topics), time.monotonic() + PLACES_S
        while not self.is_closing and time.monotonic() < until and self._lacks_places(topics):
            await asyncio.sleep(0.002)
        self._since_ms.update(dict.fromkeys(topics, since_ms))

    def _lacks_places(self, topics: set[str]) -> bool:
        mine = (one for one in self.assigned.values() if one.queue.topic in topics)
        return any(not one.has_position and one.state == "starting" for one in mine)

    def reset_position(self, assigned: Assigned) -> None:
        """The topic was deleted: what is known of the queue is void, and the group's offset is asked for anew."""
        assigned.has_position = False
        assigned.was_lost = True
        assigned.is_full = False
        assigned.pq.drop()
        self.offsets.remove(assigned.queue)

    def give_up(self, some: Iterable[Assigned], *, is_lost: bool = False) -> None:
        """These queues are no longer this member's: what is cached of them goes, what was done of them is kept.

        Args: is_lost: another member has them already, so their offsets and locks are that member's.
        """
        for assigned in list(some):
            if self.assigned.get(assigned.queue) is not assigned:
                continue
            del self.assigned[assigned.queue]
            if assigned.task is not None and assigned.task is not asyncio.current_task():
                assigned.task.cancel()
            assigned.pq.drop()
            task = self.instance.spawn(self._leave(assigned, is_lost), f"{self.group} leave {assigned.queue}")
            self._leaving[assigned.queue] = task
            task.add_done_callback(functools.partial(self._left, assigned.queue))

    def _left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._leaving.get(queue) is task:
            del self._leaving[queue]

    async def _leave(self, assigned: Assigned, is_lost: bool) -> None:
        queue = assigned.queue
        is_locked = self.settings.orderly and self.is_clustering
        until = time.monotonic() + (ORDERLY_GRACE_S if is_locked else GRACE_S)
        try:
            while any(one.begun_s for one in assigned.pq.open_messages()) and time.monotonic() < until:
                await asyncio.sleep(0.005)
        finally:
            if assigned.has_position and not is_lost:
                self.offsets.update(queue, assigned.pq.committable)
            try:
                async with asyncio.timeout(3.0):
                    await self.offsets.persist([queue])
            except Exception as error:
                _log.warning("group %s: the offset of %s could not be kept: %s", self.group, queue, error)
            self.offsets.remove(queue)
            if is_locked and not is_lost:
                await self.locks.unlock([queue])

    # --- offsets ---

    async def commit(self) -> None:
        """Keep the offsets of all queues."""
        for queue, assigned in self.assigned.items():
            if assigned.has_position:
                self.offsets.update(queue, assigned.pq.committable)
        await self.offsets.persist()

    def restart_at(self, assigned: Assigned, offset: int, *, restart_pull: bool = False) -> None:
        """Begin anew at another offset: what is cached is void. Args: restart_pull: a pull is on its way; drop it."""
        assigned.pq.drop()
        assigned.pq = ProcessQueue(assigned.queue, offset)
        assigned.is_full = False
        assigned.wake.set()
        self.offsets.update(assigned.queue, offset)
        if restart_pull and assigned.task is not None and assigned.has_position:
            assigned.task.cancel()
            assigned.task = self.instance.spawn(self._serve(assigned, 0.0), f"{self.group} pull {assigned.queue}")

    def note_pull(self, assigned: Assigned, seconds: float, messages: int) -> None:
        """Count a pull."""
        topic = assigned.queue.topic
        pulls, total_s, found = self.pull_seconds.get(topic, (0, 0.0, 0))
        self.pull_seconds[topic] = (pulls + 1, total_s + seconds, found + messages)

    # --- what users ask ---

    def copy_assignment(self, *, retry: bool = False) -> dict[MessageQueue, int]:
        """Queue -> the offset of the next message that is not done. Thread: any."""
        return {
            plain_queue(self.namespace, queue): assigned.pq.committable
            for queue, assigned in list(self.assigned.items())
            if assigned.has_position and (retry or not assigned.is_retry)
        }

    async def lag(self) -> dict[MessageQueue, int]:
        """Queue -> how many of its messages this group has not done. Raises: ClientError, what a shell throws."""
        mine = [one for one in self.assigned.values() if one.has_position]
        ends = await asyncio.gather(*(self.instance.driver.run(max_offset(self.instance, one.queue)) for one in mine))
        return {
            plain_queue(self.namespace, one.queue): max(0, end - one.pq.committable)
            for one, end in zip(mine, ends, strict=True)
        }

    def plain(self, topic: str) -> str:
        """A topic as users see it."""
        return unwrap(self.namespace, topic)


def _no_handler(messages: Any) -> bool:
    """For a retried message whose topic is no longer subscribed: another member, or a later version, may want it."""
    return False


_NO_HANDLER: Final = Handler(_no_handler)
