"""The fetcher of a push consumer: positions of the assigned queues and a pull loop per queue, up to the cache limits.

No message is skipped: where the broker moves the offset, a warning states the gap.
Source: DefaultMQPushConsumerImpl.pullMessage, PullMessageService, RebalancePushImpl.computePullFromWhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from mqfast.client.consumer.offsets import GroupOffsets
from mqfast.client.consumer.process_queue import ProcessQueue
from mqfast.client.consumer.pull_request import PullAnswer, TopicGone, pull
from mqfast.client.consumer.push.state import Assigned, ConsumerState
from mqfast.client.consumer.queue_bounds import end_before, first_offset, max_offset, read_place, where_of_new
from mqfast.client.net.instance import ClientInstance
from mqfast.client.route.namespace import plain_queue
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import BrokerError, MqfastError
from mqfast.remoting.codes import ResponseCode
from mqfast.util.log_limit import LogLimit

__all__ = ["Fetcher"]

_log = logging.getLogger("mqfast.client.consumer")
HOLD_S: Final = 15.0
FAILED_S: Final = 1.0
REFUSED_S: Final = 0.02
FULL_S: Final = 1.0
"""Longest wait between two checks of the cache limits."""
POSITION_AGAIN_S: Final = 1.0
POSITIONS_S: Final = 3.0
"""Longest wait of the start of a broadcasting consumer for the positions of its queues."""
# The broker does not know the group, or has an older version of its subscriptions: a heartbeat updates the broker.
_UNKNOWN: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


class Fetcher:
    """Pulls for a consumer.

    Args:
        deliver: called with a queue and the number of messages that a pull added to the cache.
        commits_by_pull: a pull from a master carries the committable offset.
        stamps_arrival: set the time of arrival of each message, for hooks.
    Attributes: pull_seconds: topic -> pulls, seconds of all pulls, messages.
    Thread: that of the loop.
    """

    def __init__(
        self,
        state: ConsumerState,
        instance: ClientInstance,
        offsets: GroupOffsets,
        deliver: Callable[[Assigned, int], object],
        *,
        commits_by_pull: bool,
        stamps_arrival: bool,
    ) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._offsets: Final = offsets
        self._deliver: Final = deliver
        self._settings: Final = state.settings
        self._commits_by_pull: Final = commits_by_pull
        self._stamps_arrival: Final = stamps_arrival
        self._limited: Final = LogLimit(_log)
        self._since_ms: dict[str, int] = {}  # broadcasting: topic -> ms of its subscription, once the start is over
        self.pull_seconds: dict[str, tuple[int, float, int]] = {}

    async def run(self, assigned: Assigned) -> None:
        """Determine the position and pull, until the queue is revoked; the owner cancels the task."""
        state, queue = self._state, assigned.queue
        while state.assigned.get(queue) is assigned and not state.is_closing:
            await self._find_position(assigned)
            await self._pull_while_assigned(assigned)

    # --- positions ---

    async def _find_position(self, assigned: Assigned) -> None:
        queue = assigned.queue
        run = self._instance.driver.run
        while not assigned.has_position:
            before = assigned.pq
            if (leaving := self._state.leaving.get(queue)) is not None:
                await asyncio.wait([leaving])  # the last commit of this queue by this member
            try:
                since_ms = self._since_ms.get(queue.topic)
                where = where_of_new(self._settings.from_where, was_lost=assigned.was_lost, since_ms=since_ms)
                end = await run(end_before(self._instance, queue, where))
                offset = await self._offsets.read(queue)
                if offset is None:
                    offset = end
                if offset is None:
                    offset = await run(first_offset(self._instance, queue, where))
            except Exception as error:  # an offset store of the user may raise any
                assigned.state = f"no place: {error}"
                self._limited.warning(f"place {queue}", "group %s: no place in %s: %s", self._state.group, queue, error)
                await asyncio.sleep(POSITION_AGAIN_S)
                continue
            if assigned.pq is before:  # else a reset of the offset has replaced the queue meanwhile
                assigned.pq = ProcessQueue(queue, offset)
            assigned.has_position = True

    async def wait_for_positions(self, topics: Iterable[str], since_ms: int) -> None:
        """Broadcasting: wait until the queues of these topics have positions, so that later messages are consumed.

        No other member consumes these messages in place of this member. Clustering: brokers keep the offsets of the
        group, and return 0 for small new queues.
        """
        if self._state.is_clustering:
            return
        topics, until = set(topics), time.monotonic() + POSITIONS_S
        while not self._state.is_closing and time.monotonic() < until and self._lacks_positions(topics):
            await asyncio.sleep(0.002)
        self._since_ms.update(dict.fromkeys(topics, since_ms))

    def _lacks_positions(self, topics: set[str]) -> bool:
        mine = (assigned for assigned in self._state.assigned.values() if assigned.queue.topic in topics)
        return any(not assigned.has_position and assigned.state == "starting" for assigned in mine)

    def forget_topic(self, topic: str) -> None:
        """Discard the time of a subscription that has ended."""
        self._since_ms.pop(topic, None)

    def _reset_position(self, assigned: Assigned) -> None:
        """Discard position and offset of a queue whose topic was deleted; the offset of the group is read again."""
        assigned.has_position = False
        assigned.was_lost = True
        assigned.is_full = False
        assigned.pq.drop()
        self._offsets.remove(assigned.queue)

    def seek(self, assigned: Assigned, offset: int) -> None:
        """Set the position of a queue and discard the cached messages."""
        assigned.pq.drop()
        assigned.pq = ProcessQueue(assigned.queue, offset)
        assigned.is_full = False
        assigned.wake.set()
        self._offsets.update(assigned.queue, offset)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return queue -> messages between the committable offset and the end. Raises: ClientError."""
        instance = self._instance
        mine = [assigned for assigned in self._state.assigned.values() if assigned.has_position]
        ends = await asyncio.gather(*(instance.driver.run(max_offset(instance, assigned.queue)) for assigned in mine))
        return {
            plain_queue(self._state.namespace, assigned.queue): max(0, end - assigned.pq.committable)
            for assigned, end in zip(mine, ends, strict=True)
        }

    # --- pull loop ---

    async def _pull_while_assigned(self, assigned: Assigned) -> None:
        state = self._state
        while not assigned.pq.dropped:
            if not state.resumed.is_set():
                await self._wait_for_resume(assigned)
            if state.is_full(assigned):
                await self._wait_for_room(assigned)
                continue
            pause_s = await self._pull_once(assigned)
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _wait_for_resume(self, assigned: Assigned) -> None:
        assigned.state = "paused"
        await self._state.resumed.wait()

    async def _wait_for_room(self, assigned: Assigned) -> None:
        assigned.state = "flow control"
        assigned.wake.clear()
        assigned.is_full = True
        if not self._state.is_full(assigned):  # a worker acknowledged messages before the flag was set
            assigned.is_full = False
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FULL_S):
                await assigned.wake.wait()

    async def _pull_once(self, assigned: Assigned) -> float:
        """Pull once. Returns: the pause until the next pull, seconds."""
        instance, pq = self._instance, assigned.pq
        driver = instance.driver
        started_s, wanted = time.monotonic(), assigned.wanted
        assigned.state = "pulling"
        try:
            broker_id, address = await driver.run(read_place(instance, assigned.queue, assigned.broker_id))
            committed = pq.committable if self._commits_by_pull and broker_id == 0 else None
            answer = await driver.run(
                pull(
                    address,
                    self._state.group,
                    assigned.queue,
                    pq.next_offset,
                    wanted.subscription,
                    assigned.source,
                    max_count=self._settings.pull_batch,
                    suspend_s=HOLD_S,
                    commit_offset=committed,
                )
            )
        except MqfastError as error:
            return await self._pull_failed(assigned, error)
        if not self._state.resumed.is_set():  # the pull waited for messages while the consumer was paused
            await self._wait_for_resume(assigned)
        assigned.last_pull_s = time.monotonic()
        assigned.last_pull_ms = int(time.time() * 1000)
        self._count_pull(assigned, assigned.last_pull_s - started_s, len(answer.messages))
        if pq.dropped or assigned.pq is not pq or assigned.wanted is not wanted:
            return 0.0  # pull again from the same offset: an older subscription may have filtered other messages
        assigned.broker_id = answer.broker_id
        assigned.max_offset = answer.max_offset
        self._accept(assigned, pq, answer)
        if answer.leads_nowhere and instance.routes.read_address(assigned.queue.broker_name, answer.broker_id) == (
            broker_id,
            address,
        ):
            instance.route_failed(assigned.queue.topic)
            return FAILED_S
        return self._settings.pull_interval_s

    def _count_pull(self, assigned: Assigned, seconds: float, messages: int) -> None:
        topic = assigned.queue.topic
        pulls, total_s, pulled = self.pull_seconds.get(topic, (0, 0.0, 0))
        self.pull_seconds[topic] = (pulls + 1, total_s + seconds, pulled + messages)

    def _accept(self, assigned: Assigned, pq: ProcessQueue, answer: PullAnswer) -> None:
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            self._offset_moved(assigned, pq, answer)
            return
        assigned.pulled += len(answer.messages)
        assigned.filtered += answer.filtered
        if answer.status is PullStatus.NO_MATCHED_MSG and answer.next_offset > pq.next_offset:
            assigned.filtered += answer.next_offset - pq.next_offset
        if self._stamps_arrival:
            now_s = time.time()
            for message in answer.messages:
                message.arrived_s = now_s
        self._deliver(assigned, pq.put(answer.messages, answer.next_offset))

    def _offset_moved(self, assigned: Assigned, pq: ProcessQueue, answer: PullAnswer) -> None:
        """Continue at the offset of the broker: the old offset is outside of the queue, or was reset by an admin."""
        _log.warning(
            "group %s, queue %s: offset %d is not from %d to %d, or was reset: goes on at %d",
            self._state.group, assigned.queue, pq.next_offset, answer.min_offset, answer.max_offset,
            answer.next_offset,
        )  # fmt: skip
        self.seek(assigned, answer.next_offset)

    async def _pull_failed(self, assigned: Assigned, error: MqfastError) -> float:
        assigned.state = f"pull failed: {error}"
        if isinstance(error, TopicGone):
            self._reset_position(assigned)
        if isinstance(error, BrokerError):
            if error.code == ResponseCode.FLOW_CONTROL:
                return REFUSED_S
            if error.code in _UNKNOWN:
                await self._instance.heartbeat()
        else:
            self._instance.route_failed(assigned.queue.topic)
        self._limited.warning(f"pull {assigned.queue}", "group %s: %s", self._state.group, error)
        return FAILED_S
