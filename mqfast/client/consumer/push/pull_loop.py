"""The pulls of a push consumer: one task for each queue, ahead of its handlers as far as the limits allow.

Room: client. It must never pass over a message: where the broker moves the offset, a warning says what lies between.
Source: DefaultMQPushConsumerImpl.pullMessage, PullMessageService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from mqfast.client.consumer.process_queue import ProcessQueue
from mqfast.client.consumer.pull_request import PullAnswer, TopicGone, pull
from mqfast.client.consumer.push.state import Assigned
from mqfast.client.consumer.queue_bounds import read_place
from mqfast.client.values import PullStatus
from mqfast.errors import BrokerError, MqfastError
from mqfast.remoting.codes import ResponseCode
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.client.consumer.push.engine import PushEngine

__all__ = ["PullLoop"]

_log = logging.getLogger("mqfast.client.consumer")
HOLD_S: Final = 15.0
FAILED_S: Final = 1.0
REFUSED_S: Final = 0.02
FULL_S: Final = 1.0  # at the latest the limits are looked at again
# The broker does not know the group, or an older state of what it wants: a heartbeat tells it.
_UNKNOWN: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


class PullLoop:
    """Pulls for one consumer.

    Attributes: resumed: set while the consumer is not paused.
    Thread: that of the loop, but for ``is_full``.
    """

    def __init__(self, engine: PushEngine) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._log = LogLimit(_log)
        self.resumed = asyncio.Event()
        self.resumed.set()

    def is_full(self, assigned: Assigned) -> bool:
        """Are as many messages of the queue cached as the limits allow?"""
        pq, settings = assigned.pq, self._settings
        if pq.count >= settings.max_cached_messages or pq.bytes >= settings.max_cached_bytes:
            return True
        return not settings.orderly and pq.count > 0 and pq.span > settings.max_span

    async def run(self, assigned: Assigned) -> None:
        """Pull until the queue is given up; its owner cancels the task."""
        while not assigned.pq.dropped:
            if not self.resumed.is_set():
                assigned.state = "paused"
                await self.resumed.wait()
            if self.is_full(assigned):
                await self._wait_for_room(assigned)
                continue
            pause_s = await self._once(assigned)
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _wait_for_room(self, assigned: Assigned) -> None:
        assigned.state = "flow control"
        assigned.wake.clear()
        assigned.is_full = True
        if not self.is_full(assigned):  # settled since: nobody saw the flag
            assigned.is_full = False
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FULL_S):
                await assigned.wake.wait()

    async def _once(self, assigned: Assigned) -> float:
        """One pull. Returns: how long to wait until the next one, seconds."""
        engine, pq = self._engine, assigned.pq
        driver = engine.instance.driver
        began, wanted = time.monotonic(), assigned.wanted
        assigned.state = "pulling"
        try:
            broker_id, address = await driver.run(read_place(engine.instance, assigned.queue, assigned.broker_id))
            committed = pq.committable if engine.commits_by_pull and broker_id == 0 else None
            answer = await driver.run(
                pull(
                    address,
                    engine.group,
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
            return await self._failed(assigned, error)
        if not self.resumed.is_set():  # a pull that waited for messages while the consumer was paused
            assigned.state = "paused"
            await self.resumed.wait()
        assigned.last_pull_s = time.monotonic()
        assigned.last_pull_ms = int(time.time() * 1000)
        engine.note_pull(assigned, assigned.last_pull_s - began, len(answer.messages))
        if pq.dropped or assigned.pq is not pq or assigned.wanted is not wanted:
            return 0.0  # another expression is asked from the same offset: this one may have passed messages over
        assigned.broker_id = answer.broker_id
        assigned.max_offset = answer.max_offset
        self._take(assigned, pq, answer)
        if answer.leads_nowhere and engine.instance.routes.read_address(
            assigned.queue.broker_name, answer.broker_id
        ) == (broker_id, address):
            engine.instance.route_failed(assigned.queue.topic)
            return FAILED_S
        return self._settings.pull_interval_s

    def _take(self, assigned: Assigned, pq: ProcessQueue, answer: PullAnswer) -> None:
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            self._moved(assigned, pq, answer)
            return
        assigned.pulled += len(answer.messages)
        assigned.filtered += answer.filtered
        if answer.status is PullStatus.NO_MATCHED_MSG and answer.next_offset > pq.next_offset:
            assigned.filtered += answer.next_offset - pq.next_offset
        if self._engine.hooks:
            now_s = time.time()
            for message in answer.messages:
                message.arrived_s = now_s
        new = pq.put(answer.messages, answer.next_offset)
        self._engine.handling.offer(assigned, new)

    def _moved(self, assigned: Assigned, pq: ProcessQueue, answer: PullAnswer) -> None:
        """The offset is not in the queue, or an admin has set another one: all that is cached is void."""
        _log.warning(
            "group %s, queue %s: offset %d is not from %d to %d, or was reset: goes on at %d",
            self._engine.group, assigned.queue, pq.next_offset, answer.min_offset, answer.max_offset,
            answer.next_offset,
        )  # fmt: skip
        self._engine.restart_at(assigned, answer.next_offset)

    async def _failed(self, assigned: Assigned, error: MqfastError) -> float:
        assigned.state = f"pull failed: {error}"
        if isinstance(error, TopicGone):
            self._engine.reset_position(assigned)
        if isinstance(error, BrokerError):
            if error.code == ResponseCode.FLOW_CONTROL:
                return REFUSED_S
            if error.code in _UNKNOWN:
                await self._engine.instance.heartbeat()
        else:
            self._engine.instance.route_failed(assigned.queue.topic)
        self._log.warning(f"pull {assigned.queue}", "group %s: %s", self._engine.group, error)
        return FAILED_S
